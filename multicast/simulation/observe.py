"""What can be seen of a simulated process from outside, and who wants to see it.

A protocol and an application do not know that they are watched: `watch` puts itself in front of some of their methods.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from multicast.application import ApplicationOutbox
from multicast.protocol import Outbox
from multicast.records import Delivered
from multicast.simulation.fault import Fault
from multicast.simulation.scene import Node
from multicast.types import FINAL, AppMessage, ProcessId

_HANDLERS = (
    "on_start", "on_submit", "on_read", "on_message", "on_tick", "end_batch", "on_peer_reset", "on_install",
    "on_durable",
)  # fmt: skip


class Observer:
    """Hears what happens. All methods do nothing here.

    watches_protocol: `on_handled` is wanted; it costs time. watches_sends: only if the protocol has sent something.
    watches_idle: also of ticks and ends of batches of which nothing came, two of three calls.
    hears_frames: the class has an `on_frame` of its own.
    """

    watches_protocol = False
    watches_sends = False
    watches_idle = False
    hears_frames = False

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        cls.hears_frames = cls.on_frame is not Observer.on_frame

    def on_life(self, node: Node) -> None:
        """A life begins; nothing was replayed yet."""

    def on_crash(self, node: Node) -> None:
        """A life ended."""

    def on_fault(self, fault: Fault, begins: bool) -> None:
        """A fault takes place, or it is over."""

    def on_heal(self) -> None:
        """All faults are over: everybody is about to be up, every link works."""

    def on_submit(self, node: Node, message: AppMessage) -> None:
        """The process multicast this."""

    def on_deliver(self, node: Node, delivery: Delivered, replay: bool) -> None:
        """The process delivered this; replay: it told its application again what it had in its journal."""

    def on_frame(self, sender: ProcessId, to: tuple[ProcessId, ...], frame: bytes) -> None:
        """An encoded message leaves for other processes."""

    def on_handled(
        self, node: Node, handler: str, args: tuple[Any, ...], sends: list[tuple[tuple[ProcessId, ...], Any, bool]]
    ) -> None:
        """The protocol was called (`args` end with now and outbox) and sent these (receivers, message, durably)."""


def watch(node: Node, observers: Sequence[Observer], count: Callable[[], None]) -> None:
    """Put observers in front of this life's protocol and application. count(): a multicast, or a final delivery."""
    _watch_protocol(node, observers, count)
    _watch_application(node, observers, count)


def _watch_application(node: Node, observers: Sequence[Observer], count: Callable[[], None]) -> None:
    inner = node.application.on_deliver

    def on_deliver(delivery: Delivered, outcome: bytes | None, now: int, out: ApplicationOutbox) -> None:
        if delivery.stage == FINAL and not node.replaying:
            count()
        for observer in observers:
            observer.on_deliver(node, delivery, node.replaying)
        inner(delivery, outcome, now, out)

    setattr(node.application, "on_deliver", on_deliver)  # noqa: B010 - a method of this one object


def _watch_protocol(node: Node, observers: Sequence[Observer], count: Callable[[], None]) -> None:
    protocol = node.protocol
    watchers = [o for o in observers if o.watches_protocol]
    start, submit = protocol.on_start, protocol.on_submit

    def on_start(saved: Any, now: int, out: Outbox) -> None:
        node.replaying = False
        start(saved, now, out)

    def on_submit(message: AppMessage, now: int, out: Outbox) -> None:
        submit(message, now, out)
        count()
        for observer in observers:
            observer.on_submit(node, message)

    setattr(protocol, "on_start", on_start)  # noqa: B010
    setattr(protocol, "on_submit", on_submit)  # noqa: B010
    if watchers:
        under_way: list[str] = []
        for name in _HANDLERS:
            setattr(protocol, name, _handler(node, name, watchers, under_way))


def _handler(node: Node, name: str, watchers: list[Observer], under_way: list[str]) -> Any:
    """under_way: the handler that the host has called; what that calls in turn is a part of it."""
    inner = getattr(node.protocol, name)
    may_idle = name in ("on_tick", "end_batch")
    always = [w.on_handled for w in watchers if not w.watches_sends]
    idle = [w.on_handled for w in watchers if w.watches_idle] if may_idle else always
    all_of_them = [w.on_handled for w in watchers]

    def handle(*args: Any) -> Any:
        if under_way:
            return inner(*args)
        under_way.append(name)
        out: Outbox = args[-1]
        before, changes = len(out.sends), len(out.changes)
        try:
            return inner(*args)
        finally:  # who refuses may have sent something
            under_way.clear()
            sends = out.sends[before:]
            hear = all_of_them if sends else always if out.asks or len(out.changes) != changes else idle
            for on_handled in hear:
                on_handled(node, name, args, sends)

    return handle
