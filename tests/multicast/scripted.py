"""A protocol and an application that do what a test tells them, for tests of engines and hosts."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import msgspec

from multicast import records
from multicast.application import Application, ApplicationOutbox
from multicast.protocol import MulticastProtocol, Options, Outbox, Overloaded, PeerError, Saved, Specification
from multicast.records import Delivered
from multicast.types import AppMessage, ProcessId, Timestamp, Topology


def changes(journal: bytes) -> list[tuple[bytes, bytes | None]]:
    """What a batch puts, and deletes (None), by its journal."""
    found: list[tuple[bytes, bytes | None]] = []
    for one in records.scan(journal, 0):
        assert not isinstance(one, records.Damage)
        record = records.decode_body(one[1], one[2])
        if isinstance(record, records.Put | records.Delete):
            found.append((record.key, getattr(record, "value", None)))
    return found


class Note(msgspec.Struct, array_like=True, tag=1, gc=False):
    """A protocol message."""

    text: str


class Order(msgspec.Struct, array_like=True, tag=2, gc=False):
    """The leader's word: this is final delivery number `number`."""

    number: int
    message: AppMessage


class Memo(msgspec.Struct, array_like=True, tag=1, gc=False):
    """An application message."""

    text: str


class Scripted(MulticastProtocol):
    """Process 0 of a group orders its submissions and tells the others, durably or not; all deliver what it says.

    A submission for no group runs `script` instead. Note "bad" is a PeerError; Note "bug" is a bug of ours.
    """

    specification = Specification(
        name="scripted", summary="for tests", paper="-", options=Options, messages=(Note, Order), fault_tolerant=False,
        genuine=True,
    )

    def __init__(self, self_id: ProcessId, topology: Topology, options: Options | None = None):
        super().__init__(self_id, topology, options or Options(), random.Random(0))
        self.script: Callable[[Outbox], None] = lambda out: None
        self.heard: list[tuple[ProcessId, str]] = []
        self.installed: list[int] = []
        self.durable: list[int] = []
        self.resets: list[ProcessId] = []
        self.saved: Saved | None = None
        self.wake_at: int | None = None
        self.number = 0

    def on_start(self, saved: Saved, now: int, out: Outbox) -> None:
        self.saved = saved
        self.number = saved.position

    def on_submit(self, message: AppMessage, now: int, out: Outbox) -> None:
        if not message.destinations:
            self.script(out)
        elif message.payload == b"too much":
            raise Overloaded("enough for now")
        else:
            order = Order(self.number + 1, message)
            out.put(b"last", message.id)
            self._deliver(order, out)
            out.send_durable([p for p in self.topology.groups[self.group] if p != self.self_id], order)

    def _deliver(self, order: Order, out: Outbox) -> None:
        self.number = order.number
        out.deliver(order.message, Timestamp(order.number, 0))

    def on_message(self, sender: ProcessId, message: Any, now: int, out: Outbox) -> None:
        if isinstance(message, Order):
            if message.number == self.number + 1:
                self._deliver(message, out)
            elif message.number > self.number:
                out.catch_up(sender)
            return
        if message.text == "bad":
            raise PeerError("a bad note")
        if message.text == "bug":
            raise ZeroDivisionError("our own bug")
        self.heard.append((sender, message.text))

    def on_tick(self, now: int, out: Outbox) -> int | None:
        return self.wake_at

    def on_peer_reset(self, peer: ProcessId, now: int, out: Outbox) -> None:
        self.resets.append(peer)

    def on_install(
        self, position: int, message: AppMessage, timestamp: Timestamp, note: bytes, now: int, out: Outbox
    ) -> None:
        self.number = position
        self.installed.append(position)

    def on_durable(self, position: int, now: int, out: Outbox) -> None:
        self.durable.append(position)


class Keeper(Application):
    """Keeps what it is given. A request is (kind, ...): submit a message, or wait for nothing at all.

    auto: complete every delivery at once, unless it came with an outcome.
    """

    messages = (Memo,)
    completes = True

    def __init__(self, auto: bool = True):
        self.auto = auto
        self.delivered: list[tuple[int, bytes, bytes | None]] = []
        self.expired: list[int] = []
        self.refused: list[str] = []
        self.memos: list[tuple[ProcessId, str]] = []
        self.waiting: dict[bytes, int] = {}

    def on_deliver(self, delivery: Delivered, outcome: bytes | None, now: int, out: ApplicationOutbox) -> None:
        self.delivered.append((delivery.position, delivery.message.payload, outcome))
        if delivery.expired:
            self.expired.append(delivery.position)
        if self.auto or outcome is not None:
            done = outcome if outcome is not None else b"done:" + delivery.message.payload
            out.complete(delivery.position, done)
        token = self.waiting.pop(delivery.message.id, None)
        if token is not None:
            out.answer(token, delivery.position)

    def on_request(self, token: int, request: Any, now: int, out: ApplicationOutbox) -> None:
        if isinstance(request, AppMessage):
            self.waiting[request.id] = token
            out.submit(request)

    def on_refused(self, message: AppMessage, reason: str, now: int, out: ApplicationOutbox) -> None:
        self.refused.append(reason)

    def on_message(self, sender: ProcessId, message: Any, now: int, out: ApplicationOutbox) -> None:
        self.memos.append((sender, message.text))
