"""A fixed sequencer: the lowest process orders every message of the system. The example of TUTORIAL.md.

Theory of operation. The sequencer keeps one log for each group. It appends a message to the logs of its destinations,
on disk before anybody is told; a process delivers entries 1, 2, 3, ... of its group's log. There are no timers: links
resend by themselves, and after a restart or an overflow (`on_peer_reset`) a process asks for what it lacks.

    Please     submitter -> sequencer       order this; asked again until it is placed
    Placed     sequencer -> submitter       it is in the logs
    Ordered    sequencer -> destinations    entry `number` of your group's log
    Missing    destination -> sequencer     tell me again what follows entry `number`

Relies on: the FIFO of a link. Left out: fault tolerance (all may restart, none may be lost) and forgetting (the logs
grow for ever, no message is reported settled). Strictly serializable with any number of groups: one process places a
message after its submission and before its first delivery, so what is submitted after that comes later everywhere.
"""

from __future__ import annotations

import random
from typing import Any

import msgspec

from multicast.parts.clock import Clock
from multicast.protocol import Handler, MulticastProtocol, Options, Outbox, PeerError, Saved, Specification
from multicast.types import AppMessage, GroupId, MessageId, ProcessId, Timestamp, Topology


class Please(msgspec.Struct, array_like=True, tag=1):
    message: AppMessage


class Placed(msgspec.Struct, array_like=True, tag=2):
    id: MessageId


class Ordered(msgspec.Struct, array_like=True, tag=3):
    number: int
    message: AppMessage
    timestamp: Timestamp


class Missing(msgspec.Struct, array_like=True, tag=4):
    number: int


class Sequencer(MulticastProtocol):
    """One process: a submitter, a destination, and the sequencer if its id is the lowest."""

    specification = Specification(
        name="sequencer",
        summary="a fixed sequencer: the lowest process orders everything, no fault tolerance",
        paper="folklore",
        options=Options,
        messages=(Please, Placed, Ordered, Missing),
        housekeeping=(Placed, Missing),
        vouching=(Ordered, Placed),
        fault_tolerant=False,
        genuine=False,
        strict_groups_max=None,
        latency=(2, 2),
    )

    def __init__(self, self_id: ProcessId, topology: Topology, options: Options, rng: random.Random):
        super().__init__(self_id, topology, options, rng)
        if len(topology.processes) != len(topology.groups):
            raise ValueError("sequencer needs groups of one process")
        self._sequencer = min(topology.processes)
        self.handlers = {
            Please: Handler(self._on_please), Placed: Handler(self._on_placed),
            Ordered: Handler(self._on_ordered), Missing: Handler(self._on_missing),
        }  # fmt: skip
        self._unplaced: dict[MessageId, AppMessage] = {}  # submitted here, and not known to be placed
        self._delivered = 0
        self._clock = Clock(options.clock)  # from here on: only the sequencer's
        self._known: set[MessageId] = set()
        self._logs: dict[GroupId, list[Ordered]] = {group: [] for group in topology.groups}

    def on_start(self, saved: Saved, now: int, out: Outbox) -> None:
        self._delivered = saved.position
        for key, value in sorted(saved.values.items()):
            self._append(msgspec.msgpack.decode(value, type=AppMessage), Timestamp.decode(key))
        self.on_peer_reset(self._sequencer, now, out)

    def on_peer_reset(self, peer: ProcessId, now: int, out: Outbox) -> None:
        if peer == self._sequencer:
            for message in self._unplaced.values():
                out.send((peer,), Please(message))
            out.send((peer,), Missing(self._delivered))

    def on_submit(self, message: AppMessage, now: int, out: Outbox) -> None:
        self.refuse_beyond_limit(len(self._unplaced))
        self._unplaced[message.id] = message
        out.send((self._sequencer,), Please(message))

    def _check(self, process: ProcessId) -> None:
        """PeerError if another process says what only the sequencer says, or if this one is told what only the
        sequencer is told."""
        if process != self._sequencer:
            raise PeerError(f"process {process} is not the sequencer")

    def _on_please(self, sender: ProcessId, please: Please, now: int, out: Outbox) -> None:
        self._check(self.self_id)
        message = please.message
        if any(group not in self._logs for group in message.destinations):
            raise PeerError(f"a message for groups {message.destinations}")
        if message.id not in self._known:
            timestamp = Timestamp(self._clock.stamp(self.real_clock(now)), 0)
            out.put(timestamp.encode(), msgspec.msgpack.encode(message), carries=(message,))
            self._append(message, timestamp)
            for group in message.destinations:
                out.send_durable(self.topology.groups[group], self._logs[group][-1])
        out.send_durable((sender,), Placed(message.id))

    def _on_placed(self, sender: ProcessId, placed: Placed, now: int, out: Outbox) -> None:
        self._check(sender)
        self._unplaced.pop(placed.id, None)

    def _on_ordered(self, sender: ProcessId, ordered: Ordered, now: int, out: Outbox) -> None:
        self._check(sender)
        if ordered.number == self._delivered + 1:  # any other was delivered, or comes again
            self._delivered += 1
            out.deliver(ordered.message, ordered.timestamp)

    def _on_missing(self, sender: ProcessId, missing: Missing, now: int, out: Outbox) -> None:
        self._check(self.self_id)
        for ordered in self._logs[self.topology.group_of[sender]][missing.number :]:
            out.send_durable((sender,), ordered)

    def inspect(self) -> dict[str, Any]:
        messages = {message_id.hex(): {"phase": "submitted"} for message_id in self._unplaced}
        return {**super().inspect(), "delivered": self._delivered, "clock": self._clock.value, "messages": messages}

    def _append(self, message: AppMessage, timestamp: Timestamp) -> None:
        self._clock.advance(timestamp.time)
        self._known.add(message.id)
        for group in message.destinations:
            self._logs[group].append(Ordered(len(self._logs[group]) + 1, message, timestamp))
