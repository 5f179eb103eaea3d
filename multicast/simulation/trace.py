"""One run as lines of JSON: what happened, what it changed, and what keeps committed messages from being delivered.

`Trace` is an observer: it puts itself in front of a protocol's handlers and looks at the process
(`MulticastProtocol.inspect`) before and after each. Only differences are written. `FrameTrace` writes the lines about
messages that leave, and what they are about, alone. A traced run is the same run: nothing is drawn, sent or delayed for
the trace. TRACE.md, beside this file, describes every line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from multicast.protocol import Outbox, PeerError
from multicast.records import Delivered
from multicast.simulation.drawing import changed_options
from multicast.simulation.fault import Fault
from multicast.simulation.observe import Observer
from multicast.simulation.runner import Outcome
from multicast.simulation.scene import EPOCH_US, Node
from multicast.types import MESSAGE_ID_BYTES, AppMessage, ProcessId
from multicast.wire import APPLICATION, HOST

VERSION = 1
"""Of the format: it rises when a line loses or changes a field. Fields may be added."""

EVENTS = {
    "on_start": "start", "on_submit": "submit", "on_message": "arrival", "on_tick": "timer", "end_batch": "batch end",
    "on_peer_reset": "reset", "on_install": "install", "on_durable": "stable",
}  # fmt: skip
_QUIET = frozenset(("on_tick", "end_batch", "on_durable"))
"""Not written if they did nothing."""


_CHANNELS = {APPLICATION: "application", HOST: "host"}
_ID_IN_FRAME = re.compile(b"\xc4\x10(.{16})", re.DOTALL)
"""An id in msgpack: 16 bytes behind their type and number."""


class FrameTrace(Observer):
    """Writes who multicast what, and which frames left for whom, about which messages. The header comes with the first
    life, `finish` writes the end.

    write: takes one line, with its end. settings: what was asked for. replay: the command that runs this seed again.
    lines: written so far.
    """

    def __init__(
        self, write: Callable[[str], object], protocol: str, seed: int, settings: msgspec.Struct, replay: str
    ):
        self.lines = 0
        self._write = write
        self._first = {"protocol": protocol, "seed": seed, "settings": msgspec.to_builtins(settings), "replay": replay}
        self._now: Callable[[], int] = lambda: 0
        self._nodes: dict[ProcessId, Node] = {}
        self._names: dict[str, str] = {}
        self._violations: list[tuple[str, str]] = []
        self._told = 0
        self._housekeeping: tuple[type, ...] = ()

    # -- lines --------------------------------------------------------------------------------------------------------

    def _line(self, content: Mapping[str, Any]) -> None:
        self._write(json.dumps(content, separators=(",", ":")) + "\n")
        self.lines += 1

    def _event(self, event: str, process: ProcessId | None, **more: Any) -> None:
        line: dict[str, Any] = {"n": self.lines, "t": self._now(), "event": event}
        if process is not None:
            line["process"] = process
        line.update((key, value) for key, value in more.items() if value not in (None, [], {}))
        self._line(line)
        self._tell_violations()

    def _tell_violations(self) -> None:
        """Those that are new."""
        while self._told < len(self._violations):
            checker, text = self._violations[self._told]
            self._told += 1
            self._line({"n": self.lines, "t": self._now(), "event": "violation", "checker": checker, "text": text})

    def _header(self, node: Node) -> None:
        world, specification = node.world, node.protocol.specification
        groups = world.topology.groups
        self._now = lambda: world.now - EPOCH_US
        self._violations = world.violations
        self._housekeeping = specification.housekeeping
        self._line({
            "trace": VERSION, **self._first, "genuine": specification.genuine,
            "options": changed_options(node.protocol.options),
            "groups": {str(g): [p for p in world.topology.group_of if world.topology.group_of[p] == g] for g in groups},
            "epoch_us": EPOCH_US,
            "clock_offsets_us": {str(p): n.offset_us for p, n in world.nodes.items() if n.offset_us},
        })  # fmt: skip

    def finish(self, **more: Any) -> None:
        """The last line, `end`, with these fields."""
        self._tell_violations()
        self._event("end", None, **more)

    def dump_journals(self, directory: Path) -> None:
        """Of the world that was traced, as a live cluster has them; the audit reads both."""
        for node in self._nodes.values():
            node.dump_journal(directory)

    # -- the world ----------------------------------------------------------------------------------------------------

    def on_life(self, node: Node) -> None:
        if not self.lines:
            self._header(node)
        self._nodes[node.pid] = node

    def on_submit(self, node: Node, message: AppMessage) -> None:
        self._event("submit", node.pid, **self._submission(message))

    def on_frame(self, sender: ProcessId, to: tuple[ProcessId, ...], frame: bytes) -> None:
        message = self._nodes[sender].decode(frame)
        about = dict.fromkeys(self._names.get(found[1].hex()) for found in _ID_IN_FRAME.finditer(frame))
        self._event(
            "leave", sender, to=list(to), type=type(message).__name__, channel=_CHANNELS.get(frame[0]),
            housekeeping=isinstance(message, self._housekeeping) or None, about=[name for name in about if name],
        )  # fmt: skip

    def _submission(self, message: AppMessage) -> dict[str, Any]:
        return {
            "message": self._name(message.id), "id": message.id.hex(), "groups": list(message.destinations),
            "bytes": len(message.payload),
        }  # fmt: skip

    def _name(self, message_id: bytes) -> str:
        """m1, m2, ... in the order in which they were first seen."""
        name = self._names.get(message_id.hex())
        if name is None:
            name = self._names[message_id.hex()] = f"m{len(self._names) + 1}"
        return name


class Trace(FrameTrace):
    """Writes the whole trace of one run; `end` writes its last lines."""

    def __init__(
        self, write: Callable[[str], object], protocol: str, seed: int, settings: msgspec.Struct, replay: str
    ):
        super().__init__(write, protocol, seed, settings, replay)
        self._before: dict[ProcessId, dict[str, Any]] = {}
        self._inside = False

    def end(self, outcome: Outcome) -> None:
        """The last lines."""
        self.finish(
            digest=outcome.digest, simulated_us=outcome.simulated_us, messages=outcome.messages,
            deliveries=outcome.deliveries, faults=outcome.faults,
        )  # fmt: skip
        violations = [{"checker": checker, "text": text} for checker, text in outcome.violations]
        self._line({"n": self.lines, "event": "violations", "violations": violations})

    # -- the world ----------------------------------------------------------------------------------------------------

    def on_life(self, node: Node) -> None:
        super().on_life(node)
        self._before[node.pid] = {}
        self._event("life", node.pid, life=node.life, lost=(node.lost and node.engine.position == 0) or None)
        for name in EVENTS:
            setattr(node.protocol, name, self._handler(node, name))

    def on_crash(self, node: Node) -> None:
        self._event("crash", node.pid)

    def on_fault(self, fault: Fault, begins: bool) -> None:
        self._event(
            "fault", None, kind=fault.kind, begins=begins, processes=list(fault.processes), peers=list(fault.peers),
            lasts_us=fault.lasts_us or None, amount_us=fault.amount_us or None,
        )  # fmt: skip

    def on_heal(self) -> None:
        self._event("heal", None)

    def on_submit(self, node: Node, message: AppMessage) -> None:
        """The handler's line says it."""

    def on_deliver(self, node: Node, delivery: Delivered, replay: bool) -> None:
        self._event(
            "delivery", node.pid, message=self._name(delivery.message.id), position=delivery.position,
            at=list(delivery.timestamp), stage=delivery.stage, expired=delivery.expired or None, replay=replay or None,
        )  # fmt: skip

    # -- handlers -----------------------------------------------------------------------------------------------------

    def _handler(self, node: Node, name: str) -> Any:
        inner = getattr(node.protocol, name)

        def handle(*args: Any) -> Any:
            if self._inside:  # a handler that calls another one is one event
                return inner(*args)
            mark = _Mark(args[-1])
            self._inside = True
            error: Exception | None = None
            try:
                return inner(*args)
            except Exception as found:
                error = found
                raise
            finally:
                self._inside = False
                self._handled(node, name, args, mark, error)

        return handle

    def _handled(self, node: Node, name: str, args: tuple[Any, ...], mark: _Mark, error: Exception | None) -> None:
        about = self._about(name, args)  # first, so that names are given in the order of submissions
        effects = self._effects(args[-1], mark)
        if name in _QUIET and not effects and error is None and not self._looks_changed(node):
            return
        changed = self._changed(node)
        if error is not None:
            kind = "refused" if isinstance(error, PeerError) or name == "on_submit" else "raised"
            effects[kind] = f"{type(error).__name__}: {error}"
        self._event(EVENTS[name], node.pid, **about, **effects, changed=changed)

    def _about(self, name: str, args: tuple[Any, ...]) -> dict[str, Any]:
        """The inputs of a handler."""
        first = args[0]
        if name == "on_submit":
            return self._submission(first)
        if name == "on_message":
            return {"from": first, "message": self._typed(args[1])}
        if name == "on_start":
            return {
                "first": first.first, "lost": first.lost or None, "position": first.position, "keys": len(first.values)
            }  # fmt: skip
        if name == "on_peer_reset":
            return {"peer": first}
        if name == "on_install":
            return {"position": first, "message": self._name(args[1].id), "at": list(args[2])}
        return {"position": first} if name == "on_durable" else {}

    def _effects(self, out: Outbox, mark: _Mark) -> dict[str, Any]:
        """What a handler added to its batch."""
        sends: list[dict[str, Any]] = []
        for to, message, durable in out.sends[mark.sends :]:
            sends.append({"to": list(to), "durable": durable, **self._typed(message)})
        puts, deletes = [], []
        for key, value, _ in out.changes[mark.changes :]:
            if value is None:
                deletes.append(self._key(key))
            else:
                puts.append({"key": self._key(key), "bytes": len(value)})
        effects = {
            "sends": sends, "puts": puts, "deletes": deletes,
            "delivers": [self._name(d[0].id) for d in out.deliveries[mark.deliveries :]],
            "settled": [self._name(s[0]) for s in out.settlements[mark.settlements :]],
            "catch_up": list(out.catch_ups[mark.catch_ups :]),
        }  # fmt: skip
        return {key: value for key, value in effects.items() if value}

    def _looks_changed(self, node: Node) -> bool:
        """A cheap look, after a timer or the end of a batch that did nothing else; most of them change nothing."""
        before, protocol = self._before[node.pid], node.protocol
        look = {"role": protocol.role(), **protocol.describe()}
        return any(before.get(key) != value for key, value in look.items())

    def _changed(self, node: Node) -> dict[str, Any]:
        before, after = self._before[node.pid], node.protocol.inspect()
        if after == before:
            return {}
        self._before[node.pid] = after
        patch: dict[str, Any] = self._named(merge_patch(before, after))
        return patch

    # -- names --------------------------------------------------------------------------------------------------------

    def _named(self, value: Any) -> Any:
        """Of an inspection, with the names of messages for their ids."""
        if isinstance(value, str):
            return self._names.get(value, value)
        if isinstance(value, dict):
            return {self._names.get(key, key): self._named(item) for key, item in value.items()}
        return [self._named(item) for item in value] if isinstance(value, list) else value

    def _key(self, key: bytes) -> str:
        """A key of a protocol: a letter, and an id or something else."""
        rest = key[1:].hex()
        return f"{key[:1].decode('ascii', 'replace')} {self._names.get(rest, rest)}".strip()

    def _typed(self, message: Any) -> dict[str, Any]:
        return {"type": type(message).__name__, **self._readable(message)}

    def _readable(self, value: Any) -> Any:
        """A message's fields: messages by their names, other bytes by what is in them or their number."""
        if isinstance(value, AppMessage):
            return self._name(value.id)
        if isinstance(value, msgspec.Struct):
            return {name: self._readable(getattr(value, name)) for name in value.__struct_fields__}
        if isinstance(value, bytes):
            return self._bytes(value)
        if isinstance(value, list | tuple):
            return [self._readable(item) for item in value]
        if isinstance(value, set | frozenset):
            return [self._readable(item) for item in sorted(value)]
        if isinstance(value, dict):
            return {str(self._readable(key)): self._readable(item) for key, item in value.items()}
        return value

    def _bytes(self, value: bytes) -> Any:
        """Values that consensus decides are messages of their own, in msgpack arrays."""
        if len(value) == MESSAGE_ID_BYTES and value.hex() in self._names:
            return self._names[value.hex()]
        if value and value[0] & 0xF0 == 0x90:
            try:
                return self._readable(msgspec.msgpack.decode(value))
            except (msgspec.MsgspecError, ValueError):
                pass  # it only looks like one
        return f"{len(value)} bytes"


class _Mark:
    """How much was in an outbox before a handler."""

    __slots__ = ("catch_ups", "changes", "deliveries", "sends", "settlements")

    def __init__(self, out: Outbox):
        self.sends = len(out.sends)
        self.changes = len(out.changes)
        self.deliveries = len(out.deliveries)
        self.settlements = len(out.settlements)
        self.catch_ups = len(out.catch_ups)


def merge_patch(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """What makes `after` of `before`: a JSON merge patch (RFC 7396). There are no nulls in either."""
    patch: dict[str, Any] = dict.fromkeys((key for key in before if key not in after), None)
    for key, value in after.items():
        old = before.get(key)
        if isinstance(value, dict) and isinstance(old, dict):
            if inner := merge_patch(old, value):
                patch[key] = inner
        elif old != value or key not in before:
            patch[key] = value
    return patch


def apply_patch(before: Any, patch: Any) -> Any:
    """The inverse (RFC 7396, Section 2): for readers of a trace."""
    if not isinstance(patch, dict):
        return patch
    after = dict(before) if isinstance(before, dict) else {}
    for key, value in patch.items():
        if value is None:
            after.pop(key, None)
        else:
            after[key] = apply_patch(after.get(key), value)
    return after
