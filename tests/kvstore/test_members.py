"""What is asked of a shard until its replicas are as they are wanted."""

from __future__ import annotations

import msgspec
import pytest

from kvstore.config import ReplicaConfig
from kvstore.core.bundles import decode_bundle
from kvstore.members import (
    TooFew,
    Unfit,
    Wanted,
    ask_for,
    change_for,
    check_enough,
    check_id,
    decode_note,
    founding_for,
    is_done,
    note,
)
from multicast.membership import Change, Membership, Views, change_payload
from multicast.types import AppMessage, Topology
from tests.multicast.lockstep import Lockstep

SECOND = 1_000_000
NEW = ReplicaConfig(id=7, shard=0, host="127.0.0.1", peer_port=1007, http_port=1107, added=True)


def test_a_replica_is_added_once() -> None:
    views = Views((0, 1, 2))
    change = change_for(views, Wanted(add=NEW))
    assert change is not None and (change.view, change.adds, change.process) == (0, True, 7)
    assert decode_note(change.note) == NEW
    assert not is_done(views, Wanted(add=NEW)) and views.change(change)
    assert not is_done(views, Wanted(add=NEW)), "the view has not begun"
    assert change_for(views, Wanted(add=NEW)) is None, "one change after the other"
    views.begin(1)
    assert is_done(views, Wanted(add=NEW))


def test_a_replica_is_removed_and_comes_not_back() -> None:
    views = Views((0, 1, 7))
    change = change_for(views, Wanted(remove=7))
    assert change is not None and views.change(change)
    views.begin(1)
    assert is_done(views, Wanted(remove=7))
    with pytest.raises(Unfit, match="its id is not used again"):
        change_for(views, Wanted(add=NEW))


@pytest.mark.parametrize(
    ("members", "there", "wanted", "missing"),
    [
        ((0, 1, 2), {0, 1, 2}, Wanted(add=NEW), ""),
        ((0, 1, 2), {0, 1}, Wanted(add=NEW), "2"),
        ((0, 1, 2, 3, 4), {0, 1, 2}, Wanted(add=NEW), "3, 4"),
        ((0, 1, 2, 3, 4), {0, 1, 2, 3}, Wanted(add=NEW), ""),
        ((0,), {0}, Wanted(add=NEW), ""),
        ((0, 1), {0, 1}, Wanted(add=NEW), ""),
        ((0, 1, 2), {0, 1}, Wanted(remove=2), ""),
        ((0, 1, 2), {0, 1}, Wanted(remove=1), "2"),
        ((0, 1, 2, 3), {0, 1, 2}, Wanted(remove=0), ""),
        ((0, 1, 2, 3), {0, 1, 2, 3}, Wanted(remove=0), ""),
    ],
)
def test_no_change_after_which_the_shard_would_stand_still(
    members: tuple[int, ...], there: set[int], wanted: Wanted, missing: str
) -> None:
    """Who is added does not count before it has what the others have."""
    views = Views(members)
    change = change_for(views, wanted)
    assert change is not None
    if not missing:
        check_enough(views, change, there)
        return
    with pytest.raises(TooFew, match=f"take no part in it now: {missing}$"):
        check_enough(views, change, there)


def lockstep() -> Lockstep:
    world = Lockstep(Topology.grid(1, 3), "white_box")
    world.settle()
    world.advance(SECOND)
    return world


def ask(world: Lockstep, process: int, wanted: Wanted) -> bool:
    """Whether something is multicast. TooFew."""
    found: list[AppMessage] = []
    assert not ask_for(wanted, world.protocol(process), world.now, bytes(16), found.append)
    return bool(found)


def test_who_has_lost_its_disk_is_not_there_until_it_takes_part_again() -> None:
    """It is connected; with it counted the shard would stand still until the new one has all that there is."""
    world = lockstep()
    world.cut.add((2, 1))  # so it waits for the answer of 2
    world.lose_disk(1)
    world.advance(3 * SECOND)
    assert not world.protocol(1).is_member()
    with pytest.raises(TooFew, match=r"take no part in it now: 1$"):
        ask(world, 0, Wanted(add=NEW))
    with pytest.raises(TooFew, match=r"take no part in it now: 1$"):
        ask(world, 0, Wanted(remove=2))
    assert ask(world, 0, Wanted(remove=1))
    world.cut.clear()
    world.advance(5 * SECOND)
    leader = next(process for process in range(3) if world.protocol(process).role() == "leader")
    assert world.protocol(1).is_member() and ask(world, leader, Wanted(add=NEW))


def test_whose_connection_is_lost_is_not_there_though_it_has_just_answered() -> None:
    world = lockstep()
    election = world.protocol(0).election
    assert election is not None
    election.on_connected(2, False, world.now)
    with pytest.raises(TooFew, match=r"take no part in it now: 2$"):
        ask(world, 0, Wanted(add=NEW))
    election.on_connected(2, True, world.now)
    assert ask(world, 0, Wanted(add=NEW))


def test_who_stands_still_is_not_there_though_it_is_connected() -> None:
    world = lockstep()
    assert ask(world, 0, Wanted(add=NEW))
    world.cut |= {(0, 2), (2, 0)}
    world.advance(3 * SECOND)
    with pytest.raises(TooFew, match=r"take no part in it now: 2$"):
        ask(world, 0, Wanted(add=NEW))


@pytest.mark.parametrize("had", [(0, 1, 2), (0, 1, 2, 7)])
def test_an_id_that_another_replica_has_or_had_is_refused_whichever_shard_it_is_of(had: tuple[int, ...]) -> None:
    """Who asks may have a `cluster.json` that is older than that replica."""
    topology = Membership(Topology({0: (0, 1, 2), 1: (3,)}))
    new = msgspec.structs.replace(NEW, id=3)
    with pytest.raises(Unfit, match="replica 3 belongs to shard 1, or has before"):
        check_id(topology, 0, new)
    views = topology.views[0]
    assert views.change(Change(0, True, 7, b"", note(NEW))) and views.begin(1)
    if 7 not in had:
        assert views.change(Change(1, False, 7, b"")) and views.begin(2)
    check_id(topology, 0, NEW)
    for shard in (0, 1):
        other = msgspec.structs.replace(NEW, shard=shard, peer_port=1)
        with pytest.raises(Unfit, match="replica 7 belongs to shard 0, or has before"):
            check_id(topology, shard, other)


def test_a_founder_has_an_id_of_its_own() -> None:
    topology = Membership(Topology({0: (0, 1, 2), 1: (3,)}))
    with pytest.raises(Unfit, match="replica 3 belongs to shard 1"):
        founding_for(topology, 0, [msgspec.structs.replace(NEW, id=3, shard=2)])


def test_nobody_is_added_under_the_id_of_another() -> None:
    with pytest.raises(Unfit, match="replica 2 belongs to shard 0, or has before: its id is not used again"):
        ask(lockstep(), 0, Wanted(add=msgspec.structs.replace(NEW, id=2)))


def test_who_does_not_lead_says_whom_to_ask() -> None:
    with pytest.raises(TooFew, match="replica 0 leads the shard: ask it"):
        ask(lockstep(), 1, Wanted(add=NEW))


def test_the_last_replica_stays_and_something_must_be_wanted() -> None:
    with pytest.raises(Unfit, match="the last replica"):
        change_for(Views((3,)), Wanted(remove=3))
    with pytest.raises(Unfit, match="not said"):
        change_for(Views((3, 4)), Wanted())


def test_a_change_is_a_transaction_that_does_nothing() -> None:
    change = change_for(Views((0, 1, 2)), Wanted(remove=1))
    assert isinstance(change, Change)
    [bundled] = decode_bundle(AppMessage(bytes(16), (0,), change_payload(change), 0))
    assert not bundled.id
