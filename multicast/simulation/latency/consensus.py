"""T_cons: how long the consensus of `parts.paxos` takes, alone, measured as protocols are.

The papers compute with one figure, from a proposal at the leader to the decision at every learner. So the part is
dressed as a protocol: multicast(m) at the leader proposes m, and a decision delivers it.
"""

from __future__ import annotations

import random
from typing import Any

import msgspec

from multicast.parts import paxos
from multicast.parts.options import GroupOptions
from multicast.protocol import MulticastProtocol, Options, Outbox, Saved, Specification
from multicast.simulation.latency.schedule import Model, Played, Schedule, play
from multicast.types import AppMessage, ProcessId, Timestamp, Topology

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(AppMessage).decode


class Consensus(MulticastProtocol):
    """One member of one group; only the leader is given messages."""

    specification = Specification(
        name="parts.paxos",
        summary="consensus inside one group, for measurements",
        paper="Lamport, The part-time parliament, 1998",
        options=GroupOptions,
        messages=paxos.MESSAGES,
        housekeeping=paxos.HOUSEKEEPING,
        fault_tolerant=True,
        genuine=True,
    )

    def __init__(self, self_id: ProcessId, topology: Topology, options: Options, rng: random.Random):
        super().__init__(self_id, topology, options, rng)
        members = topology.groups[self.group]
        self._paxos = paxos.Paxos(self_id, members, self.options, rng)

    def on_start(self, saved: Saved, now: int, out: Outbox) -> None:
        self._paxos.on_start(saved.values, now, out)

    def on_submit(self, message: AppMessage, now: int, out: Outbox) -> None:
        self._paxos.propose(_encode(message))

    def on_message(self, sender: ProcessId, message: Any, now: int, out: Outbox) -> None:
        self._paxos.on_message(sender, message, now, out)

    def end_batch(self, now: int, out: Outbox) -> None:
        self._paxos.end_batch(now, out)
        for instance, values in self._paxos.instances.take():
            for place, value in enumerate(values):
                out.deliver(_decode(value), Timestamp(instance, place))

    def on_tick(self, now: int, out: Outbox) -> int | None:
        return self._paxos.tick(now, out)


def decide(replicas: int, protocol: type[Consensus] = Consensus) -> Played:
    """One decision in a group of so many. `every` is T_cons, in δ."""
    topology = Topology.grid(1, replicas)
    model = Model(protocol, topology, GroupOptions())
    leader = topology.groups[0][0]
    return play(model, Schedule(sender=leader, destinations=(0,)), protocol.specification.housekeeping)
