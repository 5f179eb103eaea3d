"""White-Box with a deduplication window: copies that come when only some still know the message (`parts.entries`)."""

from __future__ import annotations

import random

import pytest

from multicast.parts.accepts import ACCEPTED, COMMITTED, PROPOSED, START, Entry, EntryState
from multicast.parts.ballots import LEADER
from multicast.parts.delivered import DeliveredLog, Known
from multicast.parts.entries import Entries
from multicast.parts.window import Window
from multicast.protocol import Outbox, Saved
from multicast.protocols.white_box import Accept, AcceptAck, Deliver, Multicast, NewState, Stamps, WhiteBox
from multicast.simulation.leftovers import held as kept
from multicast.types import AppMessage, Ballot, ProcessId, Timestamp, Topology, new_message_id
from tests.multicast.lockstep import START_US, Lockstep

SECOND = 1_000_000
WINDOW_US = 2 * SECOND


def around(world: Lockstep, process: ProcessId) -> set[tuple[ProcessId, ProcessId]]:
    return {(a, b) for a in world.topology.processes for b in world.topology.processes if process in (a, b) and a != b}


def cluster(name: str, groups: int) -> Lockstep:
    world = Lockstep(Topology.grid(groups, 3), name, clock="hybrid", dedup_window_us=WINDOW_US)
    world.settle()
    return world


def multicast(world: Lockstep, process: ProcessId, message: AppMessage) -> None:
    world.engines[process].submit(message)
    world._run(process)


def forget_but(world: Lockstep, straggler: ProcessId, leaders: tuple[ProcessId, ...]) -> None:
    """Two windows pass in all groups, and the straggler hears nothing of it."""
    world.cut = around(world, straggler)
    for _ in range(8):
        for leader in leaders:
            world.submit(leader, world.topology.group_of[leader])
        world.advance(SECOND)


def agree(world: Lockstep) -> bool:
    """Whether nobody has delivered something else at a position, or at another time, than others of its group."""
    for members in world.topology.groups.values():
        logs = [world.engines[p].application.delivered for p in members]  # type: ignore[attr-defined]
        longest = max(logs, key=len)
        if any(log != longest[: len(log)] for log in logs):
            return False
    return True


@pytest.mark.parametrize("name", ["white_box", "primcast", "ft_skeen", "fastcast"])
@pytest.mark.parametrize("candidate", [1, 2])
def test_a_later_copy_that_its_leader_has_delivered_survives_it(name: str, candidate: ProcessId) -> None:
    """Though one of those who elect the next leader knows the first copy as delivered."""
    world = cluster(name, 1)
    message = world.message(0, origin=0)
    multicast(world, 0, message)
    world.settle()
    forget_but(world, 2, (0,))
    multicast(world, 1, message)
    before = len(world.delivered(0))
    for link in ((1, 0), (0, 1)) * 20:
        if len(world.delivered(0)) > before:
            break
        world.step(*link)
    assert world.delivered(0)[before:] == [message.id]
    world.cut = around(world, 0)
    if name in ("white_box", "primcast"):
        world.stand(candidate)
    world.advance(5 * SECOND)
    world.submit(1, 0)
    world.advance(5 * SECOND)
    world.cut = set()
    world.advance(5 * SECOND)
    last = world.submit(1, 0)
    world.advance(5 * SECOND)
    assert agree(world)
    assert all(world.delivered(p).count(message.id) == 2 and world.delivered(p)[-1] == last for p in range(3))


@pytest.mark.parametrize("name", ["white_box", "primcast", "ft_skeen", "fastcast"])
def test_a_later_copy_that_its_leader_has_delivered_is_not_dropped_on_the_word_of_who_knows_the_first(
    name: str,
) -> None:
    world = cluster(name, 2)
    message = world.message(0, 1, origin=1)
    multicast(world, 1, message)
    world.advance(SECOND)
    forget_but(world, 5, (0, 3))
    multicast(world, 1, message)
    before, moving = len(world.delivered(0)), True
    while moving and len(world.delivered(0)) == before:
        moving = any([world.step(*link) for link in list(world.links) if len(world.delivered(0)) == before])
    assert world.delivered(0)[before:] == [message.id]
    world.cut = around(world, 0)
    for link in world.links:
        if 0 in link:
            world.links[link].clear()
    world.cut |= {link for link in around(world, 5) if 1 not in link}
    if name in ("white_box", "primcast"):
        world.stand(1)
    for link in ((1, 2), (2, 1), (1, 2), (2, 1), (1, 2), (1, 5), (5, 1)):
        while world.step(*link):
            pass
    world.advance(4 * SECOND)
    world.cut = around(world, 0)
    world.advance(4 * SECOND)
    world.submit(1, 0)
    world.advance(2 * SECOND)
    world.cut = set()
    world.advance(5 * SECOND)
    last = world.submit(1, 0)
    world.advance(5 * SECOND)
    assert agree(world)
    assert all(world.delivered(p)[-1] == last for p in range(3))


# -- one process ------------------------------------------------------------------------------------------------------

NOW = START_US
FIRST = Timestamp(NOW + 1_000, 0)
LATER = Timestamp(FIRST.time + 2 * WINDOW_US + 1, 0)
BALLOT = Ballot(1, 0)


def follower() -> tuple[WhiteBox, AppMessage, Outbox]:
    """Process 1 of one group, which follows process 0, and a message."""
    options = WhiteBox.specification.options(clock="hybrid", dedup_window_us=WINDOW_US)
    process = WhiteBox(1, Topology.grid(1, 3), options, random.Random(1))
    process.on_start(Saved({}), NOW, Outbox())
    return process, AppMessage(new_message_id(NOW, 1), (0,), b"x", 0), Outbox()


def deliver(process: WhiteBox, message: AppMessage, out: Outbox) -> None:
    """The first copy."""
    process.on_message(0, Accept(message.id, 0, BALLOT, FIRST, message), NOW, out)
    process.on_message(0, Deliver(message.id, BALLOT, FIRST, FIRST, 1), NOW, out)
    assert process.log.known(message.id) == (FIRST, 1)


def held(process: WhiteBox, message: AppMessage) -> tuple[int, Timestamp | None, int]:
    entry = process.entries[message.id]
    return entry.phase, entry.local, entry.position


def test_who_knows_the_first_copy_accepts_the_later_one_of_its_leader() -> None:
    process, message, out = follower()
    deliver(process, message, out)
    process.on_message(0, Accept(message.id, 0, BALLOT, LATER, message), NOW, out)
    assert held(process, message) == (ACCEPTED, LATER, 0)
    process.on_message(0, Deliver(message.id, BALLOT, LATER, LATER, 2), NOW, out)
    assert process.log.known(message.id) == (LATER, 2)


def test_a_stamp_that_is_no_later_copys_is_answered_with_the_delivery() -> None:
    process, message, out = follower()
    deliver(process, message, out)
    out.sends.clear()
    process.on_message(0, Accept(message.id, 0, BALLOT, Timestamp(LATER.time - 1, 0), message), NOW, out)
    assert [m for _, m, _ in out.sends] == [Known(message.id, FIRST)]
    assert held(process, message) == (COMMITTED, FIRST, 1)


def test_a_state_that_is_taken_over_brings_the_later_copy() -> None:
    process, message, out = follower()
    deliver(process, message, out)
    process.adopt(NewState(Ballot(2, 2), 1, [EntryState(message, ACCEPTED, LATER, None)], LATER.time), NOW, out)
    assert held(process, message) == (ACCEPTED, LATER, 0)


def test_what_a_state_that_is_taken_over_lacks_is_no_longer_accepted_on_disk() -> None:
    """Else it would be again after a restart, with its old stamp, in the ballot that began without it."""
    process, message, out = follower()
    process.on_message(0, Accept(message.id, 0, BALLOT, FIRST, message), NOW, out)
    process.adopt(NewState(Ballot(2, 2), 0, [], LATER.time), NOW, out)
    assert held(process, message) == (START, None, 0)
    saved = {key: value for key, value, _ in out.changes}
    again = WhiteBox(1, process.topology, process.options, random.Random(1))
    again.on_start(Saved({key: value for key, value in saved.items() if value is not None}), NOW, Outbox())
    assert not again.entries


def test_a_leader_goes_on_with_a_later_copy_though_somebody_knows_the_first() -> None:
    leader, out = cluster("white_box", 2).protocol(0), Outbox()
    message = AppMessage(new_message_id(NOW, 1), (0, 1), b"x", 3)
    leader.log.timestamp = Timestamp(FIRST.time + 1, 0)
    leader.on_message(3, Multicast(message), LATER.time, out)
    leader.on_message(4, Known(message.id, FIRST), LATER.time, out)
    phase, local, _ = held(leader, message)
    assert phase == PROPOSED and local is not None and local >= LATER


def test_the_first_copy_is_settled_and_the_later_one_stays() -> None:
    process, message, out = follower()
    deliver(process, message, out)
    process.on_message(0, Accept(message.id, 0, BALLOT, LATER, message), NOW, out)
    process._settled([message.id], out)
    assert held(process, message) == (ACCEPTED, LATER, 0)


def test_the_first_copy_is_installed_and_the_later_one_stays() -> None:
    process, message, out = follower()
    process.on_message(0, Accept(message.id, 0, BALLOT, LATER, message), NOW, out)
    process.on_install(1, message, FIRST, FIRST.encode(), NOW, out)
    assert held(process, message) == (ACCEPTED, LATER, 0) and process.log.known(message.id) == (FIRST, 1)


def test_what_was_accepted_of_the_first_copy_is_installed_and_no_longer_accepted() -> None:
    """Of the later copy there is only the stamp of a ballot that is not joined here."""
    process, message, out = follower()
    process.on_message(0, Accept(message.id, 0, BALLOT, FIRST, message), NOW, out)
    process.on_message(0, Accept(message.id, 0, Ballot(2, 0), LATER, message), NOW, out)
    assert held(process, message) == (ACCEPTED, FIRST, 0)
    process.on_install(1, message, FIRST, FIRST.encode(), NOW, out)
    assert held(process, message) == (START, None, 0)
    assert process.vote().entries == []
    process.adopt(NewState(Ballot(2, 0), 1, [EntryState(message, ACCEPTED, LATER, None)], LATER.time), NOW, out)
    assert held(process, message) == (ACCEPTED, LATER, 0)


def test_a_leader_that_installs_what_it_holds_as_a_copy_stamped_later_elsewhere_leads_no_more() -> None:
    """Others have settled its stamp, in a later ballot: its positions are not the group's."""
    leader, out = cluster("white_box", 2).protocol(0), Outbox()
    message, next_one = (AppMessage(new_message_id(NOW, n), groups, b"x", 3) for n, groups in ((1, (0, 1)), (2, (0,))))
    leader.on_message(3, Multicast(message), NOW, out)
    _, stamp, _ = held(leader, message)
    assert stamp is not None
    leader.on_message(3, Accept(message.id, 1, Ballot(1, 3), Timestamp(LATER.time, 1), None), NOW, out)
    leader.on_message(3, Multicast(next_one), NOW, out)
    leader.on_message(0, Accept(next_one.id, 0, BALLOT, held(leader, next_one)[1] or FIRST, next_one), NOW, out)
    leader.on_install(1, message, stamp, stamp.encode(), NOW, out)
    leader.on_message(3, Multicast(message), LATER.time, out)
    for process in (0, 1):
        leader.on_message(process, AcceptAck((BALLOT,), [next_one.id]), NOW, out)
    assert [told.position for _, told, _ in out.sends if type(told) is Deliver] == []
    assert leader.election.state is not LEADER


@pytest.mark.parametrize("copy", [False, True])
def test_a_word_that_came_too_early_goes_when_its_delivery_is_installed(copy: bool) -> None:
    """Else it takes the place of others for as long as its leader leads."""
    process, message, out = follower()
    if copy:
        process.on_message(0, Accept(message.id, 0, BALLOT, LATER, message), NOW, out)
    process.on_message(0, Deliver(message.id, BALLOT, FIRST, FIRST, 1), NOW, out)
    assert kept(process, {"WhiteBox": ("_early",)})
    process.on_install(1, message, FIRST, FIRST.encode(), NOW, out)
    assert kept(process, {"WhiteBox": ("_early",)}) == {}


def test_the_first_copys_delivery_is_not_the_later_ones() -> None:
    """Its leader's word of it came, and was kept for what lacked before it."""
    process, message, out = follower()
    process.on_message(0, Accept(message.id, 0, BALLOT, LATER, message), NOW, out)
    process.on_message(0, Deliver(message.id, BALLOT, FIRST, FIRST, 1), NOW, out)
    assert held(process, message) == (ACCEPTED, LATER, 0) and process.log.position == 0
    assert out.catch_ups == [0], "it is fetched"


def test_another_groups_stamp_begins_a_later_copy_once_the_first_is_settled() -> None:
    message = AppMessage(new_message_id(NOW, 1), (0, 1), b"x", 0)
    log = DeliveredLog(0, Topology.grid(2, 3), 1, WINDOW_US)
    entries = Entries(log, Window(WINDOW_US))
    log.add(message.id, (0, 1), FIRST, Outbox())
    entry = entries.load(EntryState(message, COMMITTED, FIRST, FIRST), NOW)
    entry.position = 1
    assert entries.of_stamp(message.id, LATER, False, NOW) is entry
    assert entries.delivered_at(message.id) == FIRST
    del entries[message.id]
    assert entries.of_stamp(message.id, Timestamp(LATER.time - 1, 0), False, NOW) == FIRST
    begun = entries.of_stamp(message.id, LATER, False, NOW)
    assert isinstance(begun, Entry) and begun is not entry
    begun.hold(1, BALLOT, LATER)
    assert entries.delivered_at(message.id) is None, "a leader takes part in it"


def test_a_leader_that_knows_the_first_copy_stamps_a_later_one_as_such_though_its_clock_is_slow() -> None:
    """Its followers, who know the first one, too, would take it for that, and not accept it."""
    world = cluster("white_box", 2)
    message = world.message(0, 1)
    multicast(world, 0, message)
    world.advance(3 * SECOND)
    assert [world.protocol(p).entries for p in range(6)] == [{}] * 6, "it is settled"
    leader, out = world.protocol(0), Outbox()
    later = Accept(message.id, 1, Ballot(1, 3), Timestamp(world.now + 3 * WINDOW_US, 1), None)
    for process in (0, 1):
        world.protocol(process).on_message(3, later, world.now, out)
    leader.on_message(3, Multicast(message), world.now, out)
    stamped = next(sent for _, sent, _ in out.sends if isinstance(sent, Accept))
    assert leader.entries._is_later(EntryState(message, ACCEPTED, stamped.local, None), leader.log.known(message.id)[0])
    follower = world.protocol(1)
    follower.on_message(0, stamped, world.now, Outbox())
    assert held(follower, message) == (ACCEPTED, stamped.local, 0)


def test_of_the_states_of_two_copies_the_later_one_counts() -> None:
    entries = Entries(DeliveredLog(0, Topology.grid(1, 3), 1, WINDOW_US), Window(WINDOW_US))
    message = AppMessage(new_message_id(NOW, 1), (0,), b"x", 0)
    ranks = [
        EntryState(message, ACCEPTED, FIRST, None),
        EntryState(message, COMMITTED, FIRST, FIRST),
        EntryState(message, ACCEPTED, LATER, None),
        EntryState(message, COMMITTED, LATER, LATER),
    ]
    for i, state in enumerate(ranks):
        for j, other in enumerate(ranks):
            if i != j:
                assert entries.outranks(state, other) == (i > j), (i, j)


def test_a_snapshot_leaves_the_later_copy() -> None:
    process, message, out = follower()
    there, _, _ = follower()
    deliver(there, message, Outbox())
    process.on_message(0, Accept(message.id, 0, BALLOT, LATER, message), NOW, out)
    own = {key: value for key, value, _ in out.changes if value is not None}
    given = dict(there.history.given(1, FIRST))
    assert b"m" + message.id in given
    taken = process.history.taken(own, given, 1, FIRST)
    assert b"m" + message.id not in taken and b"d" + message.id in taken


# -- a message that only leaders can bring on -------------------------------------------------------------------------


def test_a_leader_that_holds_a_message_of_a_sender_that_is_gone_stamps_it_when_asked() -> None:
    """All that is above the stamp of the other group waits for it."""
    world = Lockstep(Topology.grid(2, 3), "white_box")
    world.settle()
    world.cut = {(3, 0), (3, 1), (3, 2)}
    first = world.submit(0, 0, 1)
    world.settle()
    world.crash(0)
    world.advance(4 * SECOND)
    world.cut = set()
    second = world.submit(4, 1)
    world.advance(3 * SECOND)
    assert [world.delivered(p) for p in (3, 4, 5)] == [[first, second]] * 3


def test_a_stamp_that_was_overtaken_is_not_accepted_any_more_though_another_group_has_stamped_a_later_copy() -> None:
    """After a restart it would be taken for the stamp with which the message was delivered, and told in votes."""
    one = cluster("white_box", 2).protocol(0)
    message, ballot = AppMessage(new_message_id(NOW, 1), (0, 1), b"", 0), one.leadership.joined
    low, final = Timestamp(NOW + 1, 0), Timestamp(NOW + 50, 0)
    one.on_message(0, Accept(message.id, 0, ballot, low, message), NOW, Outbox())
    later = Timestamp(NOW + 3 * WINDOW_US, 1)
    one.on_message(3, Accept(message.id, 1, Ballot(1, 3), later, None), NOW, Outbox())
    assert held(one, message) == (ACCEPTED, low, 0)
    one.on_install(1, message, final, final.encode(), NOW, Outbox())
    assert held(one, message) == (START, None, 0) and one.log.known(message.id) == (final, 1)


def test_a_later_copy_is_accepted_when_what_was_committed_before_is_delivered() -> None:
    """Its leader has told it before the state in which the copy before is committed."""
    process, message, out = follower()
    process.on_message(0, Accept(message.id, 0, BALLOT, LATER, message), NOW, out)
    process.adopt(NewState(BALLOT, 0, [EntryState(message, COMMITTED, FIRST, FIRST)], LATER.time), NOW, out)
    process.entries[message.id].hold(0, BALLOT, LATER)
    process.confirmed(NOW, out)
    assert held(process, message) == (COMMITTED, FIRST, 0)
    process.on_install(1, message, FIRST, FIRST.encode(), NOW, out)
    process.on_message(0, Accept(message.id, 0, BALLOT, LATER, message), NOW, out)
    assert held(process, message) == (ACCEPTED, LATER, 0) and process.log.known(message.id) == (FIRST, 1)


def test_a_deposed_leaders_word_of_a_later_copy_does_not_take_the_place_of_what_was_delivered() -> None:
    """Votes need it, as long as somebody may ask for it."""
    process, message, out = follower()
    process.on_install(1, message, FIRST, FIRST.encode(), NOW, out)
    process.leadership.election.promise("promise", Ballot(BALLOT.number + 1, 1), NOW, out)
    process.on_message(BALLOT.leader, Accept(message.id, 0, BALLOT, LATER, message), NOW, out)
    process.on_message(BALLOT.leader, Stamps(0, BALLOT, [(message.id, LATER)], False), NOW, out)
    assert held(process, message) == (COMMITTED, FIRST, 1)
    assert [type(told).__name__ for _, told, _ in out.sends][-2:] == ["Nack", "Nack"]


def test_what_is_settled_leaves_the_disk_though_a_later_copy_was_heard_of() -> None:
    process, message, out = follower()
    process.on_install(1, message, FIRST, FIRST.encode(), NOW, out)
    process.entries.of_stamp(message.id, LATER, True, NOW)
    process._settled([message.id], out)
    assert held(process, message) == (START, None, 0)
    assert (b"m" + message.id, None) in [(key, value) for key, value, _ in out.changes]


@pytest.mark.parametrize("name", ["ft_skeen", "fastcast"])
def test_a_late_copy_is_settled_though_another_group_knows_the_message_and_delivers_nothing_more(name: str) -> None:
    """Else its watermark is asked for until it does."""
    world = cluster(name, 2)
    message = world.message(0, 1, origin=0)
    multicast(world, 0, message)
    world.settle()
    for _ in range(8):
        world.submit(3, 1)
        world.advance(SECOND)
    multicast(world, 3, message)
    world.advance(SECOND)
    assert world.delivered(3).count(message.id) == 2 and world.delivered(0).count(message.id) == 1
    assert {world.protocol(p).describe()["unsettled"] for p in world.topology.processes} == {0}
