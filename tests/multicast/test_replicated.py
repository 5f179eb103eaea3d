"""Scenarios of the protocols over black-box consensus, fault-tolerant Skeen and FastCast."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from multicast.parts.ballots import LeaderIs
from multicast.parts.delivered import Known, Watermark
from multicast.parts.group_log import Advance, Assign, Begin, Deliver, Entry, SavedEntry, State, encode_command
from multicast.parts.paxos import Accept, Fetch
from multicast.parts.reign import TRANSITIONS, Position, PositionAsk, Reign
from multicast.parts.replicated import Multicast, Stamp, Stamps
from multicast.parts.transfer import StateAsk
from multicast.parts.truncation import Applied
from multicast.protocol import MulticastProtocol, Outbox, Overloaded, PeerError
from multicast.protocols.fastcast import FastCast, Soft
from multicast.protocols.ft_skeen import FtSkeen
from multicast.types import AppMessage, Ballot, MessageId, ProcessId, Timestamp, Topology, new_message_id
from tests.multicast.lockstep import START_US, Lockstep
from tests.planted import fastcast, ft_skeen

SECOND = 1_000_000
PROTOCOLS = pytest.mark.parametrize("protocol", [FtSkeen, FastCast], ids=lambda p: p.specification.name)
CLOCKS = pytest.mark.parametrize("early_clock", [False, True], ids=["decided", "early"])


def cluster(protocol: type[MulticastProtocol], groups: int = 2, replicas: int = 3, **options: Any) -> Lockstep:
    world = Lockstep(Topology.grid(groups, replicas), protocol, **options)
    world.settle()
    return world


def logs(world: Lockstep) -> list[list[tuple[int, MessageId, Timestamp]]]:
    return [world.engines[p].application.delivered for p in world.topology.processes]  # type: ignore[attr-defined]


# -- order -------------------------------------------------------------------------------------------------------------


@PROTOCOLS
@CLOCKS
def test_a_message_is_delivered_by_every_process_of_its_destinations_only(
    protocol: type[MulticastProtocol], early_clock: bool
) -> None:
    world = cluster(protocol, groups=3, early_clock=early_clock)
    m = world.submit(0, 0, 1)
    world.settle()
    assert [world.delivered(p) for p in range(9)] == [[m]] * 6 + [[]] * 3


@PROTOCOLS
def test_a_sender_outside_the_destinations_learns_that_its_message_was_delivered(
    protocol: type[MulticastProtocol],
) -> None:
    world = cluster(protocol, groups=3)
    m = world.submit(8, 0, 1)
    assert world.protocol(8).describe()["submitted"] == 1
    world.settle()
    assert world.delivered(0) == world.delivered(5) == [m]
    assert world.protocol(8).describe()["submitted"] == 0


@PROTOCOLS
@CLOCKS
def test_groups_deliver_common_messages_in_one_order_with_equal_timestamps(
    protocol: type[MulticastProtocol], early_clock: bool
) -> None:
    world = cluster(protocol, early_clock=early_clock)
    ids = [world.submit(p, 0, 1) for p in (0, 3, 1, 4, 2, 5)]
    world.settle()
    assert sorted(i for _, i, _ in logs(world)[0]) == sorted(ids)
    assert all(log == logs(world)[0] for log in logs(world))


def convoy(protocol: type[MulticastProtocol], early_clock: bool) -> tuple[Lockstep, MessageId, MessageId]:
    """The schedule of the notes. Group 1's clock is ahead, so m, stamped 1 in group 0, gets 6. Group 0's followers know
    that the clock's move to 6 is decided; their leader does not, and stamps m' for group 0."""
    world = cluster(protocol, early_clock=early_clock)
    for _ in range(5):
        world.submit(3, 1)
        world.settle()
    world.cut = {(3, 0)}
    m = world.submit(0, 0, 1)
    world.settle()
    world.cut = {(1, 0), (2, 0)}
    world.settle()
    m2 = world.submit(0, 0)
    world.settle()
    return world, m, m2


@PROTOCOLS
def test_followers_wait_for_the_leaders_word_when_the_clock_moves_at_the_decision(
    protocol: type[MulticastProtocol],
) -> None:
    world, m, m2 = convoy(protocol, early_clock=False)
    assert world.delivered(1) == []
    world.cut = set()
    world.settle()
    assert [world.delivered(p) for p in range(3)] == [[m2, m]] * 3


@PROTOCOLS
def test_followers_deliver_by_the_log_when_the_clock_moves_at_the_proposal(protocol: type[MulticastProtocol]) -> None:
    world, m, m2 = convoy(protocol, early_clock=True)
    assert world.delivered(0) == []
    assert world.delivered(1)[0] == m
    world.cut = set()
    world.settle()
    assert [world.delivered(p) for p in range(3)] == [[m, m2]] * 3


@pytest.mark.parametrize("printed", [ft_skeen.FollowersApply, fastcast.FollowersApply], ids=["ft_skeen", "fastcast"])
def test_followers_that_apply_the_log_as_printed_violate_the_order(printed: type[MulticastProtocol]) -> None:
    """They have delivered m at 6 when m', which the leader delivers first, becomes due at 2."""
    with pytest.raises(AssertionError, match="delivery at 2-0 after 6-1"):
        world, _, _ = convoy(printed, early_clock=False)
        world.cut = set()
        world.settle()


# -- leader change -----------------------------------------------------------------------------------------------------


@PROTOCOLS
@CLOCKS
@pytest.mark.parametrize("victims", [(0,), (3,), (0, 3)])
def test_what_a_dead_leader_had_begun_is_finished_by_the_next_one(
    protocol: type[MulticastProtocol], early_clock: bool, victims: tuple[ProcessId, ...]
) -> None:
    world = cluster(protocol, early_clock=early_clock)
    world.cut = {(3, p) for p in (0, 1, 2)} | {(0, p) for p in (3, 4, 5)}
    m = world.submit(1, 0, 1)
    world.settle()
    assert world.delivered(1) == []
    for victim in victims:
        world.crash(victim)
    world.cut = set()
    world.advance(8 * SECOND)
    alive = [p for p in range(6) if p not in victims]
    assert [world.delivered(p) for p in alive] == [[m]] * len(alive)
    assert [world.protocol(p).role() for p in alive].count("leader") == 2


@PROTOCOLS
def test_a_stamp_that_was_not_decided_is_not_told_and_is_taken_back(protocol: type[MulticastProtocol]) -> None:
    world = cluster(protocol)
    world.cut = {(0, 1), (0, 2)}
    m = world.submit(4, 0, 1)
    world.settle()
    assert world.protocol(0).member.entry_of(m).local == Timestamp(1, 0)
    assert 0 not in world.protocol(3).stamps.get(m, {})
    world.crash(0)
    world.cut = set()
    other = world.submit(1, 0)
    world.advance(8 * SECOND)
    assert [sorted(world.delivered(p)) for p in (1, 2)] == [sorted((m, other))] * 2
    assert world.delivered(4) == world.delivered(5) == [m]


@PROTOCOLS
def test_a_command_of_an_earlier_leader_is_void_after_a_later_ones(protocol: type[MulticastProtocol]) -> None:
    world = cluster(protocol)
    log = world.protocol(1).member.log
    late = Assign(Ballot(1, 0), Timestamp(9, 0), world.message(0))
    begin, rise = Begin(Ballot(2, 2)), Advance(Ballot(1, 0), Timestamp(9, 0), Timestamp(30, 0), True)
    values = [encode_command(c) for c in (begin, late, rise)]
    assert log.read(log.instance + 1, values) == [begin]
    assert log.seen == Ballot(2, 2)


@PROTOCOLS
@pytest.mark.parametrize("copy", [False, True], ids=["another", "with another stamp"])
def test_a_leader_whose_group_delivers_what_it_has_not_stamped_stops(
    protocol: type[MulticastProtocol], copy: bool
) -> None:
    world = cluster(protocol)
    deposed = world.protocol(0)
    mine = deposed.member.stamp(world.message(0), 0)
    message = mine.message if copy else world.message(0)
    deposed.on_install(1, message, Timestamp(7, 0), Timestamp(7, 0).encode(), world.now, Outbox())
    assert not deposed.member.acting
    assert deposed.member.reign.in_flight == {}
    assert len(deposed.member.log) == 0, "what was in flight holds nothing up"


@PROTOCOLS
@pytest.mark.parametrize("begins", [True, False], ids=["begin", "assign"])
def test_a_leader_that_finds_a_later_leaders_command_in_the_log_stops(
    protocol: type[MulticastProtocol], begins: bool
) -> None:
    """It has heard nothing else of that one, nor perhaps of its Begin, which was in a state that it took over."""
    world = cluster(protocol)
    member = world.protocol(0).member
    later = Ballot(2, 2)
    command = Begin(later) if begins else Assign(later, Timestamp(9, 0), world.message(0))
    assert member.acting
    member._apply(member.log.instance + 1, [encode_command(command)], world.now, Outbox())
    assert not member.acting


@PROTOCOLS
def test_what_a_states_log_does_not_have_yet_is_not_taken_for_logged(protocol: type[MulticastProtocol]) -> None:
    """Both members have installed it before its Assign is applied."""
    world = cluster(protocol)
    log, local = world.protocol(2).member.log, Timestamp(7, 0)
    world.protocol(2).on_install(1, world.message(0), local, local.encode(), world.now, Outbox())
    log.adopt(State(1, log.instance + 5, 9, Ballot(1, 0), [local], [], 0, 1), Outbox())
    assert not log.entries[local].logged and [state.unlogged for state in log.state(1)] == [[local]]
    log.adopt(State(1, log.instance + 9, 9, Ballot(1, 0), [], [], 0, 1), Outbox())
    assert log.entries[local].logged


@PROTOCOLS
def test_what_is_certain_in_a_state_is_so_for_who_had_the_message_already(protocol: type[MulticastProtocol]) -> None:
    world = cluster(protocol)
    log, local, message = world.protocol(2).member.log, Timestamp(7, 0), world.message(0)
    log.assign(Assign(Ballot(1, 0), local, message), None, Outbox())
    items = [SavedEntry(message, local, Timestamp(8, 1), True)]
    log.adopt(State(0, log.instance + 5, 9, Ballot(1, 0), [], items, 0, 1), Outbox())
    entry = log.pop_due()
    assert entry is log.entries[local]
    assert entry.final == Timestamp(8, 1)


@PROTOCOLS
def test_who_was_deposed_before_it_acted_does_not_begin_to(protocol: type[MulticastProtocol]) -> None:
    """A later leader has stamped what was delivered here."""
    world = cluster(protocol)
    member, ballot, local = world.protocol(1).member, Ballot(2, 1), Timestamp(7, 0)
    member.reign.promise(ballot)
    member.reign.lead()
    member.log.seen = ballot
    for p in (1, 2):
        member.reign.told(p, Position(ballot, 1), world.now)
    world.protocol(1).on_install(1, world.message(0), local, local.encode(), world.now, Outbox())
    assert not member.acting
    member.log._mark_logged(member.log.entries[local], Outbox())
    member._reign_if_ready(world.now, Outbox())
    assert member.acting


def test_a_message_is_due_when_the_logs_clock_has_reached_it() -> None:
    log = cluster(FastCast).protocol(0).member.log
    entry = Entry(AppMessage(bytes(16), (0,), b"", 0), Timestamp(3, 0), True)
    log.block(entry)
    log.entries[entry.local] = entry
    log.raise_clock(5)
    log.set_final(entry, Timestamp(6, 1))
    assert log.pop_due() is None
    log.raise_clock(6)
    assert log.pop_due() is entry


@PROTOCOLS
def test_a_new_leader_first_delivers_what_its_group_has_delivered(protocol: type[MulticastProtocol]) -> None:
    world = cluster(protocol)
    world.cut = {(0, 1)}
    ids = [world.submit(3, 0, 1) for _ in range(3)]
    world.settle()
    assert world.delivered(2) == world.delivered(0) == ids
    assert world.delivered(1) == []
    world.crash(0)
    world.cut = set()
    world.advance(5 * SECOND)
    assert world.delivered(1) == ids
    assert world.protocol(1).log.position == 3


@PROTOCOLS
def test_a_new_leader_does_not_wait_for_deliveries_of_a_process_that_has_died(
    protocol: type[MulticastProtocol],
) -> None:
    """0 alone delivers m, tells the new leader its position, and dies before it can tell what it was."""
    world = cluster(protocol)
    world.reading = False
    for p in (1, 2):
        close_ears(world.protocol(p), Deliver, PositionAsk)
    m = world.submit(0, 0)
    world.settle()
    world.cut = {(0, 1), (0, 2)}
    world.advance(5 * SECOND)
    world.cut = set()
    world.settle()
    (leader,) = [p for p in (1, 2) if world.protocol(p).member.paxos.leading]
    assert world.protocol(leader).role() == "recovering"
    assert [world.delivered(p) for p in range(3)] == [[m], [], []]
    world.crash(0)
    world.reading = True
    for p in (1, 2):
        del world.protocol(p).on_message
    world.advance(5 * SECOND)
    assert [world.delivered(p) for p in range(3)] == [[m]] * 3


def close_ears(process: Any, *kinds: type) -> None:
    """It hears no message of these kinds, until its `on_message` is deleted."""
    hear = process.on_message

    def on_message(sender: ProcessId, message: Any, now: int, out: Outbox) -> None:
        if type(message) not in kinds:
            hear(sender, message, now, out)

    process.on_message = on_message


@PROTOCOLS
def test_a_new_leader_does_not_keep_the_words_of_the_former_one(protocol: type[MulticastProtocol]) -> None:
    """Process 1 has missed the first word of three when it begins to lead."""
    world = cluster(protocol)
    world.reading = False
    for p in (1, 2):
        close_ears(world.protocol(p), Deliver)
    ids = [world.submit(0, 0) for _ in range(3) if world.settle() is None]
    world.settle()
    heir, said = world.protocol(1), sorted(world.protocol(0).member.log.entries.values(), key=lambda e: e.position)
    words = [(e.position, e.local, e.final) for e in said]
    heir.handlers[Deliver].call(0, Deliver(words[1:]), world.now, Outbox())
    assert heir.member._words.at(3) == words[2][1:]
    world.crash(0)
    world.protocol(2).on_clock(True, world.now)
    world.advance(5 * SECOND)
    assert heir.role() == "leader"
    assert world.delivered(1) == ids
    assert heir.member._words.at(3) is None


def step_until(world: Lockstep, sender: ProcessId, receiver: ProcessId, done: Callable[[], bool]) -> None:
    """Let a link that is cut deliver message after message."""
    for _ in range(100):
        world.cut.discard((sender, receiver))
        while not done() and world.step(sender, receiver):
            pass
        world.cut.add((sender, receiver))
        if done():
            return
        world.advance(100_000)
    raise AssertionError("never")


@PROTOCOLS
@CLOCKS
def test_who_leads_already_goes_on_after_taking_over_a_state(
    protocol: type[MulticastProtocol], early_clock: bool
) -> None:
    """2 lacks instances that 0 has dropped and 1 has not. It has been told the state by 0, whose deliveries are still
    on their way, when it leads with what 1 promises; what it proposes again is not decided before they arrive."""
    world = cluster(protocol, early_clock=early_clock)
    world.cut = {(0, 2), (1, 2), (2, 0), (2, 1)}
    close_ears(world.protocol(1), Applied, Fetch, StateAsk)
    ids = [world.submit(0, 0) for _ in range(80) if world.settle() is None]
    world.advance(SECOND)
    assert world.protocol(0).member.paxos.instances.low > world.protocol(1).member.paxos.instances.low == 1
    for peer in (0, 1):
        world.lose_link(peer, 2)
        world.lose_link(2, peer)
    world.cut = {(0, 2), (1, 2)}
    lagging = world.protocol(2).member
    close_ears(world.protocol(2), Applied, Watermark)
    world.reading = False
    step_until(world, 0, 2, lambda: lagging._transfer._waiting is not None)
    world.reading = True
    world.lose_link(1, 2)
    world.stand(2)
    step_until(world, 1, 2, lambda: lagging.paxos.leading)
    assert (lagging.role(), lagging.log.instance, lagging.deliveries.position) == ("recovering", 1, 0)
    world.cut = {(1, 2)}
    world.settle()
    assert (lagging.deliveries.position, lagging.log.instance) == (80, world.protocol(0).member.log.instance)
    world.cut = set()
    ids.append(world.submit(1, 0, 1))
    world.advance(5 * SECOND)
    assert lagging.role() == "leader"
    assert [world.delivered(p) for p in range(3)] == [ids] * 3


@PROTOCOLS
@CLOCKS
def test_a_leader_that_did_not_hear_that_its_proposals_were_decided_leads_anew(
    protocol: type[MulticastProtocol], early_clock: bool
) -> None:
    """Its followers have dropped the first of them."""
    world = cluster(protocol, early_clock=early_clock)
    world.cut = {(1, 0), (2, 0)}
    ids = [world.submit(0, 0) for _ in range(90) if world.settle() is None]
    world.advance(SECOND)
    assert world.protocol(1).member.paxos.instances.low > 1
    world.lose_link(1, 0)
    world.lose_link(2, 0)
    world.cut = set()
    ids.append(world.submit(3, 0, 1))
    world.advance(5 * SECOND)
    assert [sorted(world.delivered(p)) for p in range(3)] == [sorted(ids)] * 3
    assert world.delivered(0) == world.delivered(1) == world.delivered(2)


def test_a_reign_has_its_states_and_nothing_else_leads_from_one_to_another() -> None:
    reign = Reign("logical", 2, SECOND)
    reign.promise(Ballot(2, 0))
    reign.lead()
    assert not reign.acting
    with pytest.raises(AssertionError, match="preparing in ballot"):
        reign.lead()
    reign.reign(7)
    assert reign.acting
    assert reign.clock.stamp(0) == 8
    reign.end()
    with pytest.raises(AssertionError, match="cannot reign"):
        reign.reign(9)
    reign.raised_to = 50
    reign.promise(Ballot(3, 1))
    assert set(TRANSITIONS["promise"].values()) == {reign.state}
    reign.lead()
    reign.reign(9)
    assert reign.raised_to == 9, "an Advance of an earlier reign may be lost"


def test_how_far_a_group_has_delivered_is_what_a_quorum_has_told_lately_in_this_ballot() -> None:
    reign = Reign("logical", 2, SECOND)
    reign.promise(Ballot(2, 0))
    reign.lead()
    reign.told(1, Position(Ballot(1, 0), 9), 0)
    reign.told(0, Position(Ballot(2, 0), 3), 0)
    assert reign.furthest(0) is None
    reign.told(2, Position(Ballot(2, 0), 5), 0)
    assert reign.furthest(SECOND) == (5, 2)
    assert reign.furthest(SECOND + 1) is None


# -- FastCast ----------------------------------------------------------------------------------------------------------


def test_the_slow_path_if_the_decided_stamps_do_not_bear_the_soft_ones_out() -> None:
    world = cluster(FastCast)
    world.cut = {(3, 4), (3, 5)}
    m = world.submit(0, 0, 1)
    world.settle()
    assert world.protocol(0).softs[m][1][1] == Timestamp(1, 1)
    assert world.protocol(0).member.log.clock == 1
    world.crash(3)
    world.cut = {(p, q) for p in (0, 1, 2) for q in (4, 5)} | {(q, p) for p in (0, 1, 2) for q in (4, 5)}
    for _ in range(5):
        world.submit(4, 1)
        world.advance(3 * SECOND)
    assert len(world.delivered(4)) == 5
    world.cut = set()
    world.advance(3 * SECOND)
    stamped = {timestamp for log in logs(world) for _, message_id, timestamp in log if message_id == m}
    assert [m in world.delivered(p) for p in range(6)] == [True, True, True, False, True, True]
    assert len(stamped) == 1
    assert max(stamped) > Timestamp(5, 1)


def test_who_asks_a_follower_for_many_stamps_is_told_once_who_leads() -> None:
    world, out = cluster(FtSkeen), Outbox()
    asked = [(world.message(0, 1).id, Timestamp(k, 1)) for k in range(1, 65)]
    world.protocol(1).on_message(3, Stamps(Ballot(1, 3), asked, True), world.now, out)
    assert [(to, type(sent)) for to, sent, _ in out.sends] == [((3,), LeaderIs)]


def test_stamps_in_somebody_elses_name_are_refused() -> None:
    world = cluster(FastCast)
    member = world.protocol(0)
    ballot, local = Ballot(1, 3), Timestamp(1, 1)
    for forged in (Soft(bytes(16), ballot, local), Stamp(bytes(16), ballot, local)):
        with pytest.raises(PeerError, match="somebody else's ballot"):
            member.on_message(4, forged, world.now, Outbox())


@PROTOCOLS
@pytest.mark.parametrize("process", [0, 1], ids=["leader", "follower"])
def test_a_message_for_others_is_refused_by_everybody(protocol: type[MulticastProtocol], process: ProcessId) -> None:
    world = cluster(protocol)
    for groups in ((1,), (0, 7)):
        with pytest.raises(PeerError, match="a message for groups"):
            world.protocol(process).on_message(3, Multicast(world.message(*groups)), world.now, Outbox())


# -- garbage, catching up ----------------------------------------------------------------------------------------------


@PROTOCOLS
@CLOCKS
def test_entries_stamps_and_instances_go_once_nobody_needs_them(
    protocol: type[MulticastProtocol], early_clock: bool
) -> None:
    world = cluster(protocol, early_clock=early_clock)
    for _ in range(10):
        world.submit(0, 0, 1)
        world.settle()
    world.advance(2 * SECOND)
    for p in range(6):
        member = world.protocol(p)
        log = member.member.log
        assert (log.entries, member.stamps, log._locals, len(log)) == ({}, {}, {}, 0)
        assert member.member.paxos.instances.low == log.instance + 1


@PROTOCOLS
def test_a_member_that_lacks_dropped_instances_gets_the_state(protocol: type[MulticastProtocol]) -> None:
    world = cluster(protocol)
    others = [p for p in range(6) if p != 2]
    world.cut = {(p, 2) for p in others} | {(2, p) for p in others}
    for _ in range(80):
        world.submit(0, 0, 1)
        world.settle()
        world.now += 10_000
    world.advance(SECOND)
    assert world.protocol(0).member.paxos.instances.low > 1
    for p in others:
        world.links[p, 2].clear()
        world.links.get((2, p), type(world.links[p, 2])()).clear()
        world.engines[2].peer_reset(p)
    world.cut = set()
    world.advance(4 * SECOND)
    assert world.delivered(2) == world.delivered(0)
    assert world.protocol(2).member.log.instance == world.protocol(0).member.log.instance
    m = world.submit(1, 0, 1)
    world.settle()
    assert world.delivered(2)[-1] == m


@PROTOCOLS
def test_the_own_stamp_of_a_later_copy_outlives_the_delivery_of_the_first(protocol: type[MulticastProtocol]) -> None:
    """A member that delivers the first one late may lead when the later one is due."""
    process = cluster(protocol, groups=1, dedup_window_us=SECOND, clock="hybrid").protocol(1)
    message, out = AppMessage(new_message_id(START_US, 1), (0,), b"x", 0), Outbox()
    times = START_US, START_US + 3 * SECOND
    first, later = [
        process.member.log.assign(Assign(Ballot(1, 0), Timestamp(time, 0), message), None, out) for time in times
    ]
    for entry in (first, later):
        process.on_assigned(entry, START_US, out)
    first.final = first.local
    process.member._deliver(first, out)
    assert process.waits_for() == ()
    assert process.stamps == {message.id: {0: later.local}}


@PROTOCOLS
def test_the_stamps_of_a_later_copy_count_where_the_first_one_is_known(protocol: type[MulticastProtocol]) -> None:
    process = cluster(protocol, dedup_window_us=SECOND, clock="hybrid").protocol(0)
    message, out = AppMessage(new_message_id(START_US, 1), (0, 1), b"x", 0), Outbox()
    process.log.add(message.id, message.destinations, Timestamp(START_US, 0), out)
    later = Timestamp(START_US + 4 * SECOND, 0)
    process.on_assigned(process.member.log.assign(Assign(Ballot(1, 0), later, message), None, out), START_US, out)
    stamp = Stamp(message.id, Ballot(1, 3), Timestamp(later.time + 1, 1))
    process.on_message(3, stamp, START_US, out)
    assert process.stamps == {message.id: {0: later, 1: stamp.local}}


def test_who_reigns_has_the_clock_moved_to_what_it_knows_to_be_final() -> None:
    """It may know that by a peer's state alone, and have heard no stamp."""
    process = cluster(FastCast).protocol(0)
    message, out = AppMessage(new_message_id(START_US, 1), (0, 1), b"x", 0), Outbox()
    entry = process.member.log.assign(Assign(Ballot(1, 0), Timestamp(5, 0), message), None, out)
    process.member.log.set_final(entry, Timestamp(9, 1))
    process.on_reign([], START_US, out)
    process.end_batch(START_US, out)
    proposed = [value for _, accept, _ in out.sends if type(accept) is Accept for value in accept.values]
    assert proposed == [encode_command(Advance(Ballot(1, 0), entry.local, Timestamp(9, 1), True))]


@PROTOCOLS
def test_of_the_stamps_of_two_copies_the_first_one_counts_whichever_comes_first(
    protocol: type[MulticastProtocol],
) -> None:
    process = cluster(protocol, dedup_window_us=SECOND, clock="hybrid").protocol(0)
    message_id = new_message_id(START_US, 1)
    for time in (5, 9, 3):
        process._hold_stamp(message_id, 1, Timestamp(time, 1), START_US)
    assert process.stamps == {message_id: {1: Timestamp(3, 1)}}


@PROTOCOLS
def test_that_a_message_was_delivered_elsewhere_counts_once_the_own_stamp_is_decided(
    protocol: type[MulticastProtocol],
) -> None:
    """It may be a later copy, which the other group knows by the first one. Before it is in the log, the log's clock
    may pass its final timestamp, and nobody would notice that it is due."""
    world = cluster(protocol)
    world.cut = {(1, 0), (2, 0)}
    m = world.submit(0, 0, 1)
    world.settle()
    leader = world.protocol(0)
    entry = leader.member.entry_of(m)
    assert not leader.member.is_decided(entry)
    leader._on_known(3, Known(m, Timestamp(1, 1)), world.now, Outbox())
    assert entry.final is None
    assert not entry.concluded
    world.cut = set()
    world.advance(SECOND)
    assert [world.delivered(p) for p in range(6)] == [[m]] * 6


@PROTOCOLS
def test_a_member_learns_from_its_group_that_it_is_behind(protocol: type[MulticastProtocol]) -> None:
    world = cluster(protocol)
    world.cut = {(0, 2)}
    m = world.submit(0, 0)
    world.settle()
    world.links[0, 2].clear()
    world.cut = set()
    world.advance(3 * SECOND)
    assert world.delivered(2) == [m]
    told = Applied(world.protocol(2).member.log.instance, world.protocol(2).log.timestamp)
    assert told.delivered == world.protocol(0).log.timestamp


@PROTOCOLS
def test_a_member_that_is_behind_does_not_rely_on_one_of_the_others(protocol: type[MulticastProtocol]) -> None:
    """Process 0 is the first to tell it so, and dies."""
    world = cluster(protocol)
    world.cut = {(p, 2) for p in (0, 1, 3, 4, 5)}
    world.submit(0, 0, 1)
    world.advance(SECOND // 2)
    for link in world.links:
        if link[1] == 2:
            world.links[link].clear()
    world.cut = set()
    for told in (0, 1):
        ahead = Applied(0, world.protocol(told).log.timestamp)
        world.protocol(2).on_message(told, ahead, world.now, Outbox())
    world.crash(0)
    world.advance(20 * SECOND)
    assert world.delivered(2) == world.delivered(1)


@PROTOCOLS
def test_whom_the_leader_does_not_reach_has_the_log_from_the_others(protocol: type[MulticastProtocol]) -> None:
    """It had deliveries alone, and kept each for as long as that lasted, waiting for the log to come to it."""
    world = cluster(protocol)
    world.cut = {(0, 1), (1, 0)}
    for _ in range(100):
        world.submit(2, 0)
        world.advance(SECOND // 10)
    world.advance(2 * SECOND)
    assert len(world.delivered(1)) == 100
    assert world.protocol(1).member.log.instance == world.protocol(2).member.log.instance
    assert not world.protocol(1).member.log.entries


def test_a_sender_hears_who_leads_now_though_others_have_told_the_leader_of_its_message() -> None:
    """Group 1's leader is dead. Its next one learns of the message from group 0's leader."""
    world = cluster(FtSkeen, groups=3)
    world.crash(3)
    world.advance(5 * SECOND)
    world.protocol(0).leaders[1] = world.protocol(4).member.paxos.promised
    world.submit(6, 0, 1)
    world.advance(5 * SECOND)
    m = world.submit(6, 0, 1)
    world.settle()
    assert m in world.delivered(1)


def test_a_message_that_waits_for_long_keeps_the_stamps_that_it_has() -> None:
    world = cluster(FtSkeen, retry_us=10_000)
    world.cut = {(a, b) for a in range(6) for b in range(6) if a // 3 != b // 3}
    m = world.submit(1, 0, 1)
    world.advance(SECOND)
    for link in world.cut:
        world.lose_link(*link)
    world.cut = set()
    world.advance(SECOND)
    assert [world.delivered(p) for p in range(6)] == [[m]] * 6


@PROTOCOLS
def test_too_many_pending_messages_are_refused(protocol: type[MulticastProtocol]) -> None:
    world = cluster(protocol, pending_max=2)
    world.cut = {(0, 3)}
    for _ in range(2):
        world.submit(0, 0, 1)
        world.settle()
    with pytest.raises(Overloaded, match="the limit is 2"):
        world.protocol(0).on_submit(world.message(0), world.now, Outbox())


def test_options_are_checked() -> None:
    with pytest.raises(ValueError, match="at least twice"):
        FtSkeen.specification.options(heartbeat_us=100, election_timeout_us=100)
    with pytest.raises(ValueError, match="at least 1"):
        FastCast.specification.options(instances_max=0)
