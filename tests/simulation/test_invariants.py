"""Checkers of one protocol's invariants, on staged calls: they report what breaks one, and nothing else."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from multicast import registry
from multicast.protocols.white_box import ACCEPTED, Accept, AcceptAck, NewState
from multicast.simulation.invariants import WhiteBoxInvariants
from multicast.simulation.runner import run_seed
from multicast.types import AppMessage, Ballot, Timestamp, Topology
from tests.planted import SMALL

M, OTHER = b"m" * 16, b"o" * 16


class Watched:
    """The processes of one group, as far as the checker looks at them."""

    def __init__(self) -> None:
        topology = Topology.grid(1, 3)
        self.checker = WhiteBoxInvariants(topology)
        self.reports: list[str] = []
        self.nodes: list[Any] = [
            SimpleNamespace(
                pid=pid,
                life=0,
                up=True,
                protocol=SimpleNamespace(
                    leadership=SimpleNamespace(joined=Ballot(1, 0)),
                    entries={},
                    clock=SimpleNamespace(value=100),
                    log=SimpleNamespace(known=lambda message_id: None, position=0),
                    options=SimpleNamespace(dedup_window_us=0),
                ),
            )
            for pid in range(3)
        ]
        self.checker.world = SimpleNamespace(  # type: ignore[assignment]
            nodes=dict(enumerate(self.nodes)), report=lambda checker, text: self.reports.append(checker),
            topology=topology,
        )  # fmt: skip
        for node in self.nodes:
            self.checker.on_life(node)
        for message_id in (M, OTHER):
            self.checker.on_submit(self.nodes[0], AppMessage(message_id, (0,), b"", 0))

    def handle(self, pid: int, message: Any, *sends: Any, joined: Ballot, **entries: int) -> None:
        """`entries`: id -> local timestamp that the process holds as ACCEPTED afterwards."""
        protocol = self.nodes[pid].protocol
        protocol.leadership.joined = joined
        protocol.entries = {
            i: SimpleNamespace(id=i, phase=ACCEPTED, local=Timestamp(entries[i.decode()[0]], 0))
            for i in (M, OTHER)
            if i.decode()[0] in entries
        }
        sent = [((0, 1, 2), send, False) for send in sends]
        self.checker.on_handled(self.nodes[pid], "on_message", (joined.leader, message, 0, None), sent)


@pytest.mark.parametrize(("held", "reports"), [(9, []), (5, ["invariant 5"])])
def test_a_leader_knows_the_stamp_that_it_accepted_as_a_follower(held: int, reports: list[str]) -> None:
    """Leader 1 stamps the other message 2, and is deposed; as 2's follower it accepts stamp 9, which is delivered and
    settled. Leading again it stamps m 20. Who joins a later ballot may hold 9, and not another one below 20."""
    watched = Watched()
    first, second, third = Ballot(2, 1), Ballot(3, 2), Ballot(4, 1)

    def stamp(message_id: bytes, ballot: Ballot, time: int) -> Accept:
        return Accept(message_id, 0, ballot, Timestamp(time, 0), None)

    watched.handle(1, None, stamp(OTHER, first, 2), joined=first, o=2)
    watched.handle(1, NewState(second, 0, [], 0), joined=second)
    watched.handle(1, stamp(OTHER, second, 9), joined=second, o=9)
    watched.checker._positions[0, OTHER] = 1
    for node in watched.nodes:
        node.protocol.log.position = 1
    watched.handle(1, stamp(M, third, 20), stamp(M, third, 20), joined=third, m=20)
    ack = AcceptAck((third,), [M])
    watched.handle(1, None, ack, joined=third, m=20)
    for sender in (0, 1):
        watched.checker.on_handled(watched.nodes[1], "on_message", (sender, ack, 0, None), [])
    watched.handle(2, NewState(Ballot(5, 0), 0, [], 0), joined=Ballot(5, 0), m=20, o=held)
    assert watched.reports == reports


def test_who_wins_an_epoch_that_never_begins_counts_on_nothing_in_it() -> None:
    """A quorum has promised it and promises a rival the next one, which has a proposal of an epoch before both."""
    assert run_seed(registry.load("primcast"), 92000, SMALL).violations == []


@pytest.mark.parametrize(
    ("protocol", "seed"),
    [
        pytest.param("white_box", 105, id="what a later copy has taken the place of was settled"),
        pytest.param("ft_skeen", 200105, id="an entry of each copy of a message begins a life"),
        *(
            pytest.param(name, seed, id=what, marks=pytest.mark.full)
            for name, seed, what in (
                ("white_box", 200194, "a leader had a later copy of what others still know"),
                ("fastcast", 200061, "a probe waits behind a late copy"),
                ("fastcast", 200069, "who told its position and died does not count"),
            )
        ),
    ],
)
def test_late_copies_and_the_dead_accuse_nobody(protocol: str, seed: int) -> None:
    assert run_seed(registry.load(protocol), seed, SMALL).violations == []
