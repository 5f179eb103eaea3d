"""White-Box and a lost disk: how a process comes back, and what would happen if it took a short cut (staged)."""

from __future__ import annotations

import pytest

from multicast.parts.delivered import Watermark
from multicast.protocol import Outbox
from multicast.protocols.white_box import ACCEPTED, WhiteBox
from multicast.types import ZERO, Topology
from tests.multicast.lockstep import Lockstep
from tests.planted.white_box import AmnesiacJoinsBehind, AmnesiacWaitsForOne, MarksKept, MarksToldAlone

SECOND = 1_000_000


def cluster(protocol: type[WhiteBox] = WhiteBox, replicas: int = 3) -> Lockstep:
    world = Lockstep(Topology.grid(1, replicas), protocol)
    world.settle()
    return world


def isolate(world: Lockstep, process: int, but: int = -1) -> None:
    for other in world.topology.processes:
        if other not in (process, but):
            world.cut |= {(process, other), (other, process)}


def disagree(world: Lockstep) -> bool:
    """Whether two processes have delivered different messages at one position."""
    logs = [world.delivered(p) for p in world.topology.processes]
    longest = max(logs, key=len)
    return any(log != longest[: len(log)] for log in logs)


def test_a_follower_comes_back_without_its_disk() -> None:
    world = cluster()
    ids = [world.submit(0, 0) for _ in range(20)]
    world.advance(SECOND)
    world.lose_disk(1)
    assert world.protocol(1).role() == "rejoining" and not world.protocol(1).is_member()
    ids.append(world.submit(1, 0))
    world.advance(5 * SECOND)
    assert world.protocol(1).role() == "follower"
    assert world.delivered(1) == world.delivered(0) == ids
    world.crash(2)
    ids.append(world.submit(0, 0))
    world.advance(5 * SECOND)
    assert world.delivered(1) == ids, "it counts in a quorum again"


@pytest.mark.parametrize("name", ["white_box", "primcast"])
def test_who_has_lost_its_disk_tells_nobody_how_far_it_is(name: str) -> None:
    """Not even if asked."""
    world = Lockstep(Topology.grid(1, 3), name)
    world.submit(0, 0)
    world.advance(SECOND)
    for lost in (False, True):
        if lost:
            isolate(world, 1)
            world.lose_disk(1)
        world.protocol(1).on_message(0, Watermark(ZERO, True), world.now, out := Outbox())
        assert [type(told) for _, told, _ in out.sends] == ([] if lost else [Watermark])


def test_the_leader_comes_back_as_a_follower() -> None:
    world = cluster()
    first = world.submit(0, 0)
    world.advance(SECOND)
    world.lose_disk(0)
    world.advance(10 * SECOND)
    assert sorted(world.protocol(p).role() for p in range(3)) == ["follower", "follower", "leader"]
    assert world.protocol(0).role() == "follower" and world.delivered(0) == [first]


def test_it_says_nothing_until_it_has_heard_from_all_others() -> None:
    world = cluster()
    world.submit(0, 0)
    world.advance(SECOND)
    isolate(world, 2)
    world.lose_disk(1)
    lost = world.submit(0, 0)
    world.advance(20 * SECOND)
    assert world.protocol(1).role() == "rejoining"
    assert lost not in world.delivered(0), "nobody but 0 vouches for it"
    world.cut = set()
    world.advance(10 * SECOND)
    assert world.protocol(1).is_member() and world.delivered(1) == world.delivered(0)
    assert lost in world.delivered(0)


def test_two_of_five_come_back_at_once() -> None:
    world = cluster(replicas=5)
    ids = [world.submit(0, 0) for _ in range(5)]
    world.advance(SECOND)
    world.lose_disk(0)
    world.lose_disk(3)
    world.advance(20 * SECOND)
    assert world.protocol(0).is_member() and world.protocol(3).is_member()
    assert world.delivered(0) == world.delivered(3) == ids


def test_a_group_whose_majority_has_forgotten_stands_still() -> None:
    world = cluster()
    first = world.submit(0, 0)
    world.advance(SECOND)
    world.lose_disk(0)
    world.lose_disk(1)
    world.submit(2, 0)
    world.advance(20 * SECOND)
    assert world.protocol(0).role() == world.protocol(1).role() == "rejoining"
    assert world.delivered(2) == [first]


@pytest.mark.parametrize("protocol", [WhiteBox, AmnesiacWaitsForOne])
def test_who_does_not_ask_has_the_forgotten_vote(protocol: type[WhiteBox]) -> None:
    """Process 1 votes for 2's ballot (2, 2) and loses its disk. 2 is silent. With the answer of 0 alone, 1 would join
    0's ballot (2, 0) and help to decide m there; then 3 votes for 2 as well, whose state knows nothing of m."""
    world = cluster(protocol, replicas=5)
    isolate(world, 2, but=1)
    isolate(world, 1, but=2)
    world.stand(2)
    world.settle()
    assert world.protocol(2).election.promised == (2, 2) == world.protocol(1).election.promised
    isolate(world, 2)
    world.cut -= {(1, p) for p in (0, 3, 4)} | {(p, 1) for p in (0, 3, 4)}
    world.lose_disk(1)
    world.advance(SECOND // 2)
    world.cut |= {(0, 3), (3, 0)}
    m = world.submit(0, 0)
    world.settle()
    assert (m in world.delivered(0)) == (protocol is not WhiteBox)
    isolate(world, 0)
    for late in (3, 4):
        world.cut -= {(2, late), (late, 2)}
        world.settle()
    assert world.protocol(2).role() == "leader" and world.protocol(2).leadership.joined == (2, 2)
    world.submit(3, 0)
    world.settle()
    assert disagree(world) == (protocol is not WhiteBox)


@pytest.mark.parametrize("protocol", [WhiteBox, AmnesiacJoinsBehind])
def test_who_acknowledges_a_state_before_it_has_caught_up(protocol: type[WhiteBox]) -> None:
    """0 and 1 have delivered and settled m, of which 2 knows nothing. 1 loses its disk; the state of the new ballot
    says nothing of m. If 1 acknowledged it with nothing delivered, 1 and 2 could go on without m when 0 is gone."""
    world = cluster(protocol)
    isolate(world, 2)
    m = world.submit(0, 0)
    world.advance(SECOND // 2)
    assert world.delivered(0) == world.delivered(1) == [m] and not world.protocol(0).entries
    for p in (0, 1):
        world.lose_link(2, p)
        world.lose_link(p, 2)
    world.cut = set()
    world.reading = False
    world.lose_disk(1)
    world.advance(SECOND)
    world.crash(0)
    world.submit(2, 0)
    world.advance(10 * SECOND)
    assert world.protocol(1).is_member() == (protocol is not WhiteBox)
    assert disagree(world) == (protocol is not WhiteBox)


def leader(world: Lockstep) -> int:
    (found,) = [p for p in world.topology.groups[0] if world.protocol(p).role() == "leader"]
    return found


def deliver_alone(world: Lockstep, alone: int, group_hears: bool) -> None:
    """Group 0's leader gets the other group's stamps and all acknowledgements only now: its DELIVERs are lost, and it
    tells its watermark, to its own group, too, if that hears."""
    members, processes = world.topology.groups[0], world.topology.processes
    world.cut = {(p, alone) for p in processes}
    world.settle()
    world.cut = {(alone, p) for p in members}
    world.reading = False
    world.settle()
    for p in members:
        if p != alone and group_hears:
            world.lose_link(alone, p)
            world.cut.discard((alone, p))
    world.advance(SECOND // 5)
    world.cut = {(p, q) for p in processes if p not in members for q in members}
    world.reading = True


@pytest.mark.parametrize("ends", ["crashes", "loses its disk"])
@pytest.mark.parametrize("group_hears", [False, True])
@pytest.mark.parametrize(("protocol", "losses"), [(WhiteBox, 1), (WhiteBox, 2), (MarksToldAlone, 1), (MarksKept, 2)])
def test_others_do_not_drop_what_one_process_after_the_other_delivers_and_forgets(
    protocol: type[WhiteBox], losses: int, group_hears: bool, ends: str
) -> None:
    """m to {A, B}. A's leader p delivers m alone (its DELIVERs are lost), tells B its watermark, loses its disk, and is
    readmitted with m ACCEPTED. The new leader q delivers m alone and tells B; then it crashes or loses its disk. Should
    B drop m, on the word of two who do not have it any more, nobody could bring A past it."""
    world = Lockstep(Topology.grid(2, 3), protocol)
    world.settle()
    world.cut = {(p, 0) for p in range(1, 6)}
    m = world.submit(0, 0, 1)
    for _ in range(losses):
        lost = leader(world)
        deliver_alone(world, lost, group_hears)
        assert [m in world.delivered(p) for p in range(6)] == [p == lost or p > 2 for p in range(6)]
        world.lose_disk(lost)
        world.advance(10 * SECOND)
        assert world.protocol(lost).is_member() and world.protocol(lost).entries[m].phase == ACCEPTED
        assert not any(world.delivered(p) for p in range(3))
    last = leader(world)
    deliver_alone(world, last, group_hears)
    assert world.delivered(last) == [m]
    if ends == "crashes":
        world.crash(last)
    else:
        world.lose_disk(last)
    world.cut = set()
    world.advance(10 * SECOND)
    world.submit(3, 0)
    world.advance(10 * SECOND)
    alive = [p for p in range(3) if p not in world.down]
    dead = protocol is MarksToldAlone or (protocol is MarksKept and group_hears)
    for p in alive:
        assert len(world.delivered(p)) == (0 if dead else 2)
