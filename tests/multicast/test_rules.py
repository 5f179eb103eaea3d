"""Rules of one line, whose harm takes a schedule that random runs do not find: each broken by a planted bug."""

from __future__ import annotations

import random
from collections.abc import Collection
from typing import Any

import msgspec
import pytest

from multicast.checkpoint import Checkpoints
from multicast.journal import Journal
from multicast.membership import Change, Views, change_payload
from multicast.parts.accepts import Entry, EntryState
from multicast.parts.ballots import (
    CANDIDATE,
    ELECT,
    FOLLOWER,
    LEADER,
    REJOINING,
    Agreed,
    Echo,
    Heartbeat,
    Joined,
    NewLeader,
)
from multicast.parts.deadlines import Deadlines
from multicast.parts.delivered import KNOWN_PREFIX, DeliveredLog, Known
from multicast.parts.group_clocks import GroupClocks
from multicast.parts.group_log import Advance, State
from multicast.parts.group_log import Entry as LogEntry
from multicast.parts.paxos import Begun, Chosen
from multicast.parts.rejoin import Highest, Rejoin, Returned
from multicast.parts.sequence import Refill
from multicast.parts.stamps import Entry as TEntry
from multicast.parts.stamps import Stamp
from multicast.parts.transfer import StateAsk
from multicast.parts.truncation import Applied, Truncation
from multicast.parts.window import Window
from multicast.protocol import MulticastProtocol, Outbox, Saved
from multicast.protocols.fastcast import FastCast
from multicast.protocols.ft_skeen import FtSkeen
from multicast.protocols.primcast import Ack, PrimCast
from multicast.protocols.skeen import Skeen
from multicast.protocols.skeen import _Entry as SkeenEntry
from multicast.protocols.white_box import NewLeaderAck, NewState, WhiteBox
from multicast.recorder import Recorder
from multicast.records import BatchEnd, Put, encode_record
from multicast.simulation.disk import SimulatedDisk
from multicast.types import VIEW_BITS, ZERO, AppMessage, Ballot, Timestamp, Topology, new_message_id

NOW = 1_000_000


def _without_memory() -> FtSkeen:
    """Process 1 of the group of 0, 1, 2, whose disk is gone."""
    process = FtSkeen(1, Topology.grid(2, 3), FtSkeen.specification.options(), random.Random(1))
    process.on_start(Saved({}, first=False, lost=True), NOW, Outbox())
    return process


def test_the_rest_of_a_state_counts_no_more_when_the_link_was_reset() -> None:
    """A queue that overflows while portions are put into it drops some of them."""
    for reset in (False, True):
        process = WhiteBox(1, Topology.grid(1, 3), WhiteBox.specification.options(), random.Random(1))
        ballot = Ballot(2, 2)
        process.on_start(Saved({}), NOW, Outbox())
        process.on_message(2, NewLeader(ballot, 0), NOW, Outbox())
        for number in range(2):
            process.on_message(2, NewState(ballot, 0, [], 1, number=number, count=2), NOW, Outbox())
            if reset:
                process.on_peer_reset(2, NOW, Outbox())
        assert (process.leadership.joined == ballot) != reset


def test_the_rest_of_a_groups_state_counts_no_more_when_the_link_was_reset() -> None:
    """What was in the portions that are lost would be missing here, and nowhere else."""
    for reset in (False, True):
        process = FtSkeen(1, Topology.grid(1, 3), FtSkeen.specification.options(), random.Random(1))
        process.on_start(Saved({}), NOW, Outbox())
        for number in (0, 2):
            process.on_message(0, State(0, 5, 9, Ballot(1, 0), [], [], number, 3), NOW, Outbox())
            if reset:
                process.on_peer_reset(0, NOW, Outbox())
        assert process.member.log.instance == (0 if reset else 5)


def test_the_rest_of_a_primarys_answer_counts_no_more_when_the_link_was_reset() -> None:
    """T would get a hole."""
    for reset in (False, True):
        process = PrimCast(1, Topology.grid(1, 3), PrimCast.specification.options(), random.Random(1))
        process.on_start(Saved({}), NOW, Outbox())
        for number in range(2):
            process.on_message(0, Refill(Ballot(1, 0), 0, 1, 3, 0, [], number=number, count=2), NOW, Outbox())
            if reset:
                process.on_peer_reset(0, NOW, Outbox())
        assert process.t.length == (0 if reset else 3)


@pytest.mark.parametrize("view", [0, 1])
def test_who_delivered_in_an_earlier_view_says_so_and_acknowledges_no_more(view: int) -> None:
    """Most of those who acknowledged the stamp may have been removed, and none of them is there to say it again."""
    process = PrimCast(1, Topology.grid(2, 3), PrimCast.specification.options(), random.Random(1))
    process.on_start(Saved({}), NOW, Outbox())
    message, final = AppMessage(new_message_id(NOW, 1), (0, 1), b"", 0), Timestamp(5, 0)
    note = msgspec.msgpack.encode((Ballot(1, 0), 5))
    process.on_install(1, message, final, note, NOW, Outbox())
    process.leadership.joined = Ballot((view << VIEW_BITS) + 1, 0)
    asked = Ack(Ballot(1, 3), 5, 1, 0, [Stamp(message.id, 0, 5, Ballot(1, 3))], True)
    process.on_message(4, asked, NOW, out := Outbox())
    process.end_batch(NOW, out)
    told = [type(one) for to, one, _ in out.sends if to == (4,)]
    assert told == [Known if view else Ack]


def test_who_lost_its_disk_gives_its_state_to_nobody() -> None:
    process, out = _without_memory(), Outbox()
    process.on_message(2, StateAsk(), NOW, out)
    assert not [message for _, message, _ in out.sends if type(message) is State]


def test_who_lost_its_disk_waits_for_the_decisions_that_others_have_told_of() -> None:
    paxos = _without_memory().member.paxos
    paxos.election.rejoin.bound, paxos.election.rejoin.reach = Ballot(1, 0), 1
    paxos.on_message(2, Begun(Ballot(2, 2), 0), NOW, Outbox())
    assert not paxos.may_return
    paxos.on_message(2, Chosen(1, [[]], 1, 1), NOW, Outbox())
    assert paxos.may_return


def test_who_lost_its_disk_helps_nobody_else_to_come_back() -> None:
    rejoin, out = Rejoin(Views(range(5)), 1, 100, random.Random(1)), Outbox()
    rejoin.restore(Saved({}, first=False, lost=True), NOW, out)
    assert rejoin.on_returned(2, Returned(7, Ballot(3, 0)), Ballot(9, 1), 0, out) is None
    rejoin.on_returned(2, Returned(7, None), Ballot(9, 1), 0, out)
    assert [message.ballot for _, message, _ in out.sends] == [None]


@pytest.mark.parametrize("replicas", [4, 6])
def test_half_of_a_group_without_memory_does_not_come_back(replicas: int) -> None:
    """A quorum of it must name ballots."""
    rejoin = Rejoin(Views(range(replicas)), 0, 100, random.Random(1))
    rejoin.restore(Saved({}, first=False, lost=True), NOW, Outbox())
    for _ in range(3):
        for peer in range(1, replicas):
            ballot = None if peer < replicas // 2 else Ballot(5, 3)
            rejoin.on_highest(peer, Highest(rejoin._question, ballot, 0, peer), NOW)
    assert rejoin.bound is None


def test_instances_go_when_a_quorum_has_applied_them_not_half_of_the_group() -> None:
    truncation = Truncation(0, (0, 1, 2, 3), 100, Deadlines({}), lambda: None)
    reached = [truncation.heard(p, Applied(upto, ZERO), 200) for p, upto in ((0, 200), (1, 150), (2, 140))]
    assert reached == [0, 0, 136]


def test_a_message_of_which_there_is_a_later_copy_is_settled() -> None:
    process = WhiteBox(0, Topology.grid(2, 3), WhiteBox.specification.options(), random.Random(1))
    message = AppMessage(bytes(16), (0, 1), b"", 0)
    entry = process.entries[message.id] = Entry(message.id, NOW)
    entry.message, entry.local = message, Timestamp(50, 0)
    assert process.entries.destinations(message.id, Timestamp(49, 1)) is None
    assert process.entries.destinations(message.id, Timestamp(50, 1)) == (0, 1)


def test_who_knows_a_later_view_does_not_win_in_an_earlier_one() -> None:
    process = WhiteBox(1, Topology.grid(1, 3), WhiteBox.specification.options(), random.Random(1))
    process.on_start(Saved({}), NOW, Outbox())
    election, out = process.election, Outbox()
    election.campaign(NOW, out)
    votes = [NewLeaderAck(election.promised, Ballot(1, 0), 0, [], 0) for _ in range(2)]
    election.views.change(Change(0, False, 0))
    for sender, vote in zip((1, 2), votes, strict=True):
        process.on_message(sender, vote, NOW, out)
    assert election.state == CANDIDATE


def test_a_record_refers_no_further_back_than_it_may() -> None:
    """What is further back may go."""
    recorder, message = Recorder(reach=1_000), AppMessage(bytes(16), (0,), b"x" * 100, 0)
    recorder.change([(b"key", message.payload, (message,))])
    recorder.change([(b"other", bytes(2_000), ())])
    assert recorder._place(message) is None


def test_of_two_checkpoints_the_later_one_counts() -> None:
    journal = Journal(SimulatedDisk(), b"c" * 16, 0, 0)
    for _ in range(3):
        journal.append(encode_record(Put(b"key", b"value")) + encode_record(BatchEnd(1)))
        journal.sync()
        Checkpoints(journal).advance()
    assert Checkpoints(journal).latest().offset == journal.end


def _started(pid: int, replicas: int) -> WhiteBox:
    process = WhiteBox(pid, Topology.grid(1, replicas), WhiteBox.specification.options(), random.Random(1))
    process.on_start(Saved({}), NOW, Outbox())
    return process


def test_who_missed_the_leader_long_ago_does_not_miss_it_now() -> None:
    process, out = _started(1, 5), Outbox()
    process.election.detector._question = 7
    process.on_message(2, Agreed(Ballot(1, 0), 7), NOW, out)
    later = NOW + process.options.election_timeout_us
    process.on_message(3, Agreed(Ballot(1, 0), 7), later, out)
    assert process.election.state == FOLLOWER
    process.on_message(2, Agreed(Ballot(1, 0), 7), later, out)
    assert process.election.state == CANDIDATE


def test_an_answer_to_another_ballots_pulse_is_none_to_this_ones() -> None:
    process, out = _started(0, 3), Outbox()
    process.on_message(0, Joined(Ballot(1, 0)), NOW, out)
    process.on_message(1, Echo(Ballot(0, 0)), NOW, out)
    assert process.election.state == LEADER and not process.election.has_majority
    process.on_message(1, Echo(Ballot(1, 0)), NOW, out)
    assert process.election.has_majority


def test_what_was_answered_in_an_earlier_reign_is_no_answer_in_this_one() -> None:
    process, out = _started(0, 5), Outbox()
    process.on_message(0, Joined(Ballot(1, 0)), NOW, out)
    process.on_message(1, Echo(Ballot(1, 0)), NOW, out)
    for what in ("step down", "campaign", "choose", "confirm"):
        process.election.go(what)
    process.election.detector.has_majority = False
    process.on_message(2, Echo(Ballot(1, 0)), NOW, out)
    assert process.election.state == LEADER and not process.election.has_majority
    process.on_message(1, Echo(Ballot(1, 0)), NOW, out)
    assert process.election.has_majority


def test_who_has_joined_an_earlier_ballot_has_not_joined_this_one() -> None:
    process, out = _started(1, 5), Outbox()
    process.election.campaign(NOW, out)
    ballot = process.election.promised
    for sender in (1, 2, 3):
        process.on_message(sender, NewLeaderAck(ballot, Ballot(1, 0), 0, [], 0), NOW, out)
    process.on_message(1, Joined(ballot), NOW, out)
    for sender in (2, 3):
        process.on_message(sender, Joined(Ballot(1, 0)), NOW, out)
    assert process.election.state == ELECT
    for sender in (2, 3):
        process.on_message(sender, Joined(ballot), NOW, out)
    assert process.election.state == LEADER


def test_a_change_makes_its_view_though_there_is_a_later_copy_of_it() -> None:
    options = PrimCast.specification.options(clock="hybrid", dedup_window_us=1_000)
    process, out = PrimCast(0, Topology.grid(1, 3), options, random.Random(1)), Outbox()
    process.on_start(Saved({}), NOW, out)
    message = AppMessage(new_message_id(NOW, 1), (0,), change_payload(Change(0, False, 2)), 0)
    entry = process.t.pending(message.id, NOW)
    entry.take(message)
    entry.epoch, entry.ts = Ballot(1, 0), NOW + 10_000
    process.on_install(1, message, Timestamp(NOW, 0), msgspec.msgpack.encode((Ballot(1, 0), NOW)), NOW, out)
    assert process.election.views.latest == 1
    assert process.t.reach == 1, "T has only the later copy, and says so"


def test_a_heartbeat_of_the_view_before_does_not_begin_the_next_one() -> None:
    process, out = _started(1, 3), Outbox()
    process.election.views.change(Change(0, False, 2))
    process.on_message(0, Heartbeat(Ballot(1, 0), 0, False), NOW, out)
    assert process.election.state == FOLLOWER and len(process.election.views.counting) == 2


def test_who_comes_back_joins_no_ballot_of_a_view_that_it_does_not_know() -> None:
    process, out = WhiteBox(1, Topology.grid(1, 3), WhiteBox.specification.options(), random.Random(1)), Outbox()
    process.on_start(Saved({}, first=False, lost=True), NOW, out)
    process.election.rejoin.bound = Ballot(1, 0)
    process.on_message(0, NewState(Ballot((1 << VIEW_BITS) + 1, 0), 0, [], 0), NOW, out)
    assert process.election.state == REJOINING
    process.election.views.change(Change(0, False, 2))
    process.leadership.installed(NOW, out)
    assert process.election.state == FOLLOWER


# -- late copies ------------------------------------------------------------------------------------------------------

WINDOW_US = 1_000


def _late(protocol: type[MulticastProtocol], replicas: int = 3) -> Any:
    options = protocol.specification.options(clock="hybrid", dedup_window_us=WINDOW_US)
    process = protocol(0, Topology.grid(2, replicas), options, random.Random(1))
    process.on_start(Saved({}), NOW, Outbox())
    return process


def _message(*groups: int) -> AppMessage:
    return AppMessage(new_message_id(NOW, 1), groups, b"", 0)


def test_a_stamp_is_in_time_for_one_window_and_a_later_copys_after_two() -> None:
    window = Window(WINDOW_US)
    assert window.limit(new_message_id(NOW, 1)) == NOW + WINDOW_US
    made, ahead = new_message_id(NOW, 1), new_message_id(NOW + 5_000, 1)
    assert not window.is_new_copy(made, NOW + 2 * WINDOW_US, Timestamp(NOW, 0))
    assert window.is_new_copy(made, NOW + 2 * WINDOW_US + 1, Timestamp(NOW, 0))
    assert not window.is_new_copy(ahead, NOW + 2 * WINDOW_US + 1, Timestamp(NOW, 0)), "so an id is remembered"


def test_what_another_group_says_to_have_delivered_is_put() -> None:
    log, out = DeliveredLog(0, Topology.grid(1, 3), 100, WINDOW_US), Outbox()
    log.recall(bytes(16), Timestamp(5, 0), out)
    assert [key for key, value, _ in out.changes if value is not None] == [KNOWN_PREFIX + bytes(16)]


def test_of_two_copies_stamps_the_lower_one_counts_and_late_ones_only_in_the_log() -> None:
    process, message = _late(FastCast), _message(0, 1)
    for stamp in (7, 9, 5):
        process._hold_stamp(message.id, 1, Timestamp(stamp, 1), NOW)
    assert process.stamps[message.id] == {1: Timestamp(5, 1)}
    entry = process.member.log._add(LogEntry(message, Timestamp(NOW, 0), True))
    process._conclude(entry, Timestamp(NOW + 2 * WINDOW_US, 1))
    assert entry.final is None
    process._conclude(entry, Timestamp(NOW + WINDOW_US // 2, 1))
    assert entry.final == Timestamp(NOW + WINDOW_US // 2, 1)


def test_a_group_may_have_concluded_two_copies_late_and_the_first_counts() -> None:
    log, message, out = _late(FtSkeen).member.log, _message(0, 1), Outbox()
    entry = log._add(LogEntry(message, Timestamp(NOW, 0), True))
    for time in (NOW + 2 * WINDOW_US, NOW + 3 * WINDOW_US):
        log.advance(Advance(Ballot(1, 0), entry.local, Timestamp(time, 1), True), out)
    assert entry.final == Timestamp(NOW + 2 * WINDOW_US, 1)


def test_what_was_delivered_before_a_later_copy_was_stamped_is_not_that_copy() -> None:
    message, local = _message(0, 1), Timestamp(NOW, 0)
    primcast, ft_skeen, skeen = _late(PrimCast), _late(FtSkeen), _late(Skeen, 1)
    primcast.t.install(message, Ballot(1, 0), local.time, NOW, Outbox())
    ft_skeen.member.log._add(LogEntry(message, local, True))
    skeen._entries[message.id] = SkeenEntry(message, {0: local})
    for destinations in (primcast.copies.destinations, ft_skeen.member.log._destinations, skeen._destinations):
        assert destinations(message.id, Timestamp(NOW - 1, 1)) is None
        assert destinations(message.id, Timestamp(NOW + 1, 1)) == (0, 1)


def test_what_was_delivered_or_dropped_is_not_taken_over() -> None:
    process, message = _late(WhiteBox), _message(0)
    process.log.timestamp = Timestamp(NOW + 3 * WINDOW_US, 0)
    assert process.entries.is_past(EntryState(message, 2, Timestamp(NOW, 0), None))
    assert not process.entries.is_past(EntryState(message, 2, Timestamp(NOW + 4 * WINDOW_US, 0), None))
    entry = Entry(message.id, NOW)
    entry.final = Timestamp(NOW + 2 * WINDOW_US, 0)
    assert process.entries.is_dropped_copy(entry)


# -- PrimCast ---------------------------------------------------------------------------------------------------------


def test_of_its_own_groups_stamps_a_process_decides_the_one_in_its_sequence() -> None:
    entry, epoch = TEntry(bytes(16), 0, NOW), Ballot(1, 0)
    entry.ts = 5

    def enough(group: int, ballot: Ballot, processes: Collection[int]) -> bool:
        return len(processes) > 1

    for ts in (7, 5):
        assert [entry.acknowledge(p, 0, Stamp(entry.id, 0, ts, epoch), enough) for p in (0, 1)] == [False, ts == 5]
    assert entry.locals == {0: 5}
    entry.take_out()
    assert entry.locals == {}


def test_what_was_told_of_a_later_epoch_goes_with_the_disk_of_who_told_it() -> None:
    clocks = GroupClocks(Views((0, 1, 2)), Ballot(1, 0))
    for member in (1, 2):
        clocks.report(member, Ballot(2, 1), 9, 0)
    clocks.forget(2)
    clocks.begin(Ballot(2, 1), 0, 0)
    assert clocks.quorum_clock == 0
    clocks.report(2, Ballot(2, 1), 9, 0)
    assert clocks.quorum_clock == 9
