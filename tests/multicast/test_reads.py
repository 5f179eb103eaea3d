"""Reads at a leader (parts.reads): when they are answered, with which position, and when they must not be."""

from __future__ import annotations

from multicast import wire
from multicast.parts.reads import REPEATED_MAX, Confirm, Confirmed
from multicast.protocols.white_box import WhiteBox
from multicast.types import Ballot, Topology
from tests.multicast.lockstep import Lockstep
from tests.planted.reads import AmnesiacConfirms, AnybodyConfirms, JoinsTheRound, NobodyAsked, TakeoverNotAwaited

SECOND = 1_000_000


def cluster(protocol: type[WhiteBox] = WhiteBox, groups: int = 1, replicas: int = 3, **options: object) -> Lockstep:
    world = Lockstep(Topology.grid(groups, replicas), protocol, **options)
    world.settle()
    return world


def test_a_leader_answers_with_all_that_it_has_announced_once_a_quorum_confirms_it() -> None:
    world = cluster()
    world.submit(0, 0)
    world.submit(1, 0)
    world.settle()
    world.read(0)
    assert world.fresh(0) == []
    world.step(0, 1)
    world.step(1, 0)
    assert world.fresh(0) == [2]
    world.settle()
    assert world.fresh(0) == [2]


def test_a_confirmation_more_than_a_quorum_has_time() -> None:
    world = cluster()
    world.read(0)
    world.step(0, 1)
    assert not world.protocol(0).can_wait(Confirmed(1))
    world.step(1, 0)
    assert world.protocol(0).can_wait(Confirmed(1)) and not world.protocol(0).can_wait(Confirm(Ballot(1, 1), 1))


def test_a_confirmation_of_another_ballot_counts_for_nothing() -> None:
    """A leader counts its rounds from one in every life: what is late may be an answer to an earlier one."""
    world = cluster()
    world.read(0)
    for ballot in (None, Ballot(1, 1)):
        world.links[1, 0].appendleft(world.engines[1].codec.encode(wire.PROTOCOL, Confirmed(1, ballot)))
        world.step(1, 0)
        assert world.fresh(0) == []
    world.settle()
    assert world.fresh(0) == [0]


def test_what_is_asked_in_one_batch_costs_one_round() -> None:
    world = cluster()
    for token in range(5):
        world.engines[0].request(token, None)
    world.read(0)
    assert len(world.links[0, 1]) == 1
    world.settle()
    assert world.fresh(0) == [0] * 6


def test_nothing_is_put_for_a_read() -> None:
    world = cluster()
    before = [engine.recorder.offset for engine in world.engines.values()]
    world.read(0)
    world.settle()
    assert world.fresh(0) == [0]
    assert [engine.recorder.offset for engine in world.engines.values()] == before


def test_the_only_process_of_a_group_answers_at_once() -> None:
    world = cluster(replicas=1)
    world.read(0)
    assert world.fresh(0) == [0]


def test_who_does_not_lead_does_not_know() -> None:
    world = cluster()
    world.read(1)
    assert world.fresh(1) == [None]


def asked_during_a_round(protocol: type[WhiteBox]) -> list[int | None]:
    """A member has confirmed the ballot, then promised another, in which something is delivered."""
    world = cluster(protocol, retry_us=60 * SECOND)
    world.cut = {(0, 2), (2, 0)}
    world.read(0)
    world.step(0, 1)
    world.cut |= {(0, 1), (1, 0)}
    elect_and_deliver(world)
    world.read(0)
    world.cut.remove((1, 0))
    world.step(1, 0)
    return world.fresh(0)


def elect_and_deliver(world: Lockstep) -> None:
    """Processes 1 and 2 elect one of them, without 0, and deliver something."""
    world.advance(10 * SECOND)
    leader = next(p for p in (1, 2) if world.protocol(p).role() == "leader")
    world.submit(leader, 0)
    world.settle()
    assert [len(world.delivered(p)) for p in range(3)] == [0, 1, 1]


def test_a_round_answers_only_what_was_asked_before_it() -> None:
    assert asked_during_a_round(WhiteBox) == [0]
    assert asked_during_a_round(JoinsTheRound) == [0, 0]


def asked_of_a_deposed_leader(protocol: type[WhiteBox], lost_disk: bool = False) -> list[int | None]:
    """Process 0 does not know yet that 1 and 2 have gone on without it, and hears only 1 again."""
    world = cluster(protocol)
    world.cut = {(0, 2), (2, 0), (0, 1), (1, 0)}
    elect_and_deliver(world)
    if lost_disk:
        world.cut |= {(1, 2), (2, 1)}
        world.lose_disk(1)
    for link in ((0, 1), (1, 0)):
        world.links.pop(link, None)
    world.cut -= {(0, 1), (1, 0)}
    assert world.protocol(0).role() == "leader"
    world.read(0)
    world.step(0, 1)
    world.step(1, 0)
    return world.fresh(0)


def test_who_has_promised_another_ballot_does_not_confirm() -> None:
    assert asked_of_a_deposed_leader(WhiteBox) == []
    assert asked_of_a_deposed_leader(NobodyAsked) == [0]
    assert asked_of_a_deposed_leader(AnybodyConfirms) == [0]


def test_who_has_no_memory_does_not_confirm() -> None:
    assert asked_of_a_deposed_leader(WhiteBox, lost_disk=True) == []
    assert asked_of_a_deposed_leader(AmnesiacConfirms, lost_disk=True) == [0]


def asked_of_a_new_leader(protocol: type[WhiteBox]) -> list[int | None]:
    """The old leader of group 0 has delivered a message, and died; the new one has it as accepted, and cannot commit it
    while it does not hear the other group."""
    world = cluster(protocol, groups=2)
    world.submit(0, 0, 1)
    world.step(0, 1)
    world.step(0, 2)
    world.cut = {(0, 1), (0, 2)}
    world.settle()
    assert [len(world.delivered(p)) for p in range(3)] == [1, 0, 0]
    world.crash(0)
    world.cut = {(a, b) for a in (1, 2) for b in (3, 4, 5)} | {(b, a) for a in (1, 2) for b in (3, 4, 5)}
    world.advance(10 * SECOND)
    leader = next(p for p in (1, 2) if world.protocol(p).role() == "leader")
    world.read(leader)
    world.settle()
    return world.fresh(leader)


def test_a_new_leader_must_have_delivered_all_that_it_took_over() -> None:
    assert asked_of_a_new_leader(WhiteBox) == [None]
    assert asked_of_a_new_leader(TakeoverNotAwaited) == [0]


def test_a_leader_without_a_quorum_gives_up_after_some_repetitions() -> None:
    world = cluster()
    world.cut = {(1, 0), (2, 0)}
    world.read(0)
    world.advance((REPEATED_MAX + 2) * world.protocol(0).options.retry_us)
    assert world.fresh(0) == [None]


def test_a_round_that_was_lost_is_repeated() -> None:
    world = cluster()
    world.read(0)
    for peer in (1, 2):
        world.lose_link(0, peer)
    world.settle()
    assert world.fresh(0) == []
    world.advance(2 * world.protocol(0).options.retry_us)
    assert world.fresh(0) == [0]


def test_what_waits_when_the_ballot_ends_is_not_answered_with_a_position() -> None:
    world = cluster()
    world.cut = {(1, 0), (2, 0)}
    world.read(0)
    world.read(0)
    world.read(0)
    world.cut = {(0, 1), (0, 2)}
    world.advance(10 * SECOND)
    assert world.protocol(0).role() != "leader"
    assert world.fresh(0) == [None] * 3
