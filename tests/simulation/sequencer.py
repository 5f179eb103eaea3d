"""A toy protocol for tests of the simulator: process 0 orders everything. One group; correct while nobody crashes."""

from __future__ import annotations

import random
from typing import Any

import msgspec

from multicast.protocol import MulticastProtocol, Options, Outbox, Saved, Specification
from multicast.types import AppMessage, MessageId, ProcessId, Timestamp, Topology


class Please(msgspec.Struct, array_like=True, tag=1):
    """Order this."""

    message: AppMessage


class Ordered(msgspec.Struct, array_like=True, tag=2):
    """Number `number` of the order."""

    number: int
    message: AppMessage


class Sequencer(MulticastProtocol):
    specification = Specification(
        name="sequencer",
        summary="a fixed sequencer",
        paper="folklore",
        options=Options,
        messages=(Please, Ordered),
        fault_tolerant=True,
        genuine=False,
    )

    def __init__(self, self_id: ProcessId, topology: Topology, options: Options, rng: random.Random):
        super().__init__(self_id, topology, options, rng)
        self.number = 0
        self.known: set[MessageId] = set()

    def reads_real_clock(self) -> bool:
        return False

    def on_start(self, saved: Saved, now: int, out: Outbox) -> None:
        self.number = saved.position

    def on_submit(self, message: AppMessage, now: int, out: Outbox) -> None:
        out.send((0,), Please(message))

    def on_message(self, sender: ProcessId, message: Any, now: int, out: Outbox) -> None:
        if isinstance(message, Please):
            if message.message.id not in self.known:
                self.known.add(message.message.id)
                self.number += 1
                self.order(Ordered(self.number, message.message), out)
        else:
            self.deliver(message, out)

    def order(self, ordered: Ordered, out: Outbox) -> None:
        out.send(self.topology.processes, ordered)

    def deliver(self, ordered: Ordered, out: Outbox) -> None:
        out.deliver(ordered.message, self.timestamp(ordered))

    def timestamp(self, ordered: Ordered) -> Timestamp:
        return Timestamp(ordered.number, 0)
