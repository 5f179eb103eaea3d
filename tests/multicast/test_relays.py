"""Messages that their sender cannot bring to their destinations itself: who passes them on, and who hears of it."""

from __future__ import annotations

import random
from typing import Any

import pytest

from multicast.parts.delivered import Known
from multicast.parts.reach import Reach
from multicast.parts.retries import IDS_MAX
from multicast.parts.submissions import Asked, Copies, Lacked, Relay, Submissions
from multicast.protocol import Outbox, Overloaded, PeerError
from multicast.types import AppMessage, Ballot, GroupId, ProcessId, Timestamp, Topology
from multicast.wire import PROTOCOL, Codec
from tests.multicast.lockstep import Lockstep

TOPOLOGY = Topology.grid(3, 3)
LEADERS = {group: Ballot(1, members[0]) for group, members in TOPOLOGY.groups.items()}
PERIOD, LONG = 1_000, 400
"""LONG: four election time-outs of 100."""
AT = Timestamp(7, 1)
SECOND = 1_000_000


def message(number: int, *groups: GroupId) -> AppMessage:
    return AppMessage(number.to_bytes(16, "big"), groups or (1,), b"", 1)


class Sender:
    """A process, its `Submissions`, what they hand to the protocol to multicast, and what it has delivered."""

    def __init__(self, pid: ProcessId = 1, leaders: bool = True) -> None:
        self.reach = Reach(pid, 100)
        if leaders:
            self.reach.need_leaders(TOPOLOGY, LEADERS)
        else:
            self.reach.need_quorums(TOPOLOGY)
        self.submitted: list[AppMessage] = []
        self.delivered: set[bytes] = set()
        self.full = False
        self.of = Submissions(
            TOPOLOGY, lambda m: [LEADERS[g].leader for g in m.destinations], PERIOD, random.Random(1),
            delivered_at=lambda i: AT if i in self.delivered else None, lacks=lambda i: False,
            take=lambda *args: None, on_known=lambda sender, known, now, out: self.of.known(known, out),
            refers=lambda sender, out: True, reach=self.reach, submit=self.submit,
        )  # fmt: skip

    def submit(self, message: AppMessage, now: int, out: Outbox) -> None:
        if self.full:
            raise Overloaded
        self.submitted.append(message)
        self.of.send(message, "alone", now, out)

    def lose(self, *peers: ProcessId) -> None:
        for peer in peers:
            self.reach.connected(peer, False, 0)

    def send(self, sent: AppMessage, now: int) -> list[tuple[tuple[int, ...], Any]]:
        out = Outbox()
        self.of.send(sent, "alone", now, out)
        return told(out)

    def hear(self, sender: ProcessId, heard: Any, now: int = LONG) -> list[tuple[tuple[int, ...], Any]]:
        out = Outbox()
        self.of.handlers[type(heard)].call(sender, heard, now, out)
        return told(out)

    def tick(self, now: int) -> list[tuple[tuple[int, ...], Any]]:
        out = Outbox()
        self.of.tick(now, out)
        return told(out)


def told(out: Outbox) -> list[tuple[tuple[int, ...], Any]]:
    return [(to, what) for to, what, _ in out.sends]


# -- who is cut off, and who can help ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("leaders", "lost", "cut_off"), [
    (True, [3], True), (True, [4, 5], False), (True, [], False),
    (False, [3], False), (False, [3, 4], False), (False, [3, 4, 5], True),
])  # fmt: skip
def test_who_has_long_had_no_connection_to_any_that_must_get_a_message_is_cut_off(
    leaders: bool, lost: list[ProcessId], cut_off: bool
) -> None:
    sender = Sender(1, leaders)
    sender.lose(*lost)
    assert not sender.reach.is_cut_off((1,), LONG - 1)
    assert sender.reach.is_cut_off((1,), LONG) == cut_off
    assert not sender.reach.is_cut_off((1, 2), LONG)  # the other one tells it
    assert not sender.reach.is_cut_off((0, 1), LONG) and not sender.reach.is_cut_off((2,), LONG)


def test_a_destination_passes_it_on_or_else_one_of_the_own_group_and_in_turn() -> None:
    sender = Sender()
    sender.lose(3)
    assert sender.reach.reached((1,)) == [4, 5]
    assert {to for n in range(4) for to, _ in sender.send(message(n), LONG)} == {(4,), (5,)}
    sender.lose(4, 5)
    assert sender.reach.reached((1,)) == [0, 2]
    sender.lose(0, 2)
    assert sender.reach.reached((1,)) == [] and sender.send(message(9), LONG) == [((), Relay([message(9)]))]


# -- the sender -------------------------------------------------------------------------------------------------------


def test_a_message_is_given_to_be_passed_on_only_where_the_sender_has_long_been_cut_off() -> None:
    sender = Sender()
    sender.lose(3, 4, 5)
    assert sender.send(message(1), LONG - 1) == [((3,), "alone")]
    assert sender.send(message(2, 1, 2), LONG) == [((3, 6), "alone")]
    ((to, relay),) = sender.send(message(3), LONG)
    assert to in ((0,), (2,)) and relay == Relay([message(3)])


@pytest.mark.parametrize("count", [2, IDS_MAX + 1])
def test_what_leaves_with_a_batch_is_given_to_be_passed_on_too(count: int) -> None:
    sender, out = Sender(leaders=False), Outbox()
    sender.lose(3, 4, 5)
    many = [message(n) for n in range(count)]
    for one in (*many, message(count, 2)):
        sender.of.submit(one, LONG)
    sender.of.end_batch(lambda m: m.id, LONG, out)
    relays = [what for _, what in told(out) if isinstance(what, Relay)]
    assert [m for relay in relays for m in relay.messages] == many
    assert len(relays) == 1 + count // IDS_MAX and {to for to, _ in told(out)[: len(relays)]} <= {(0,), (2,)}
    rest = [what for _, what in told(out) if not isinstance(what, Relay)]
    assert rest == [message(count).id] or rest == [Copies([message(count, 2)])]


def test_a_sender_that_is_cut_off_asks_whether_it_is_passed_on_and_tells_again_who_lacks_it() -> None:
    sender = Sender()
    sender.send(message(1), 0)
    sender.lose(3)
    asked = sender.tick(2 * PERIOD)
    assert asked[0] == ((3,), Asked([message(1).id])) and asked[1:] in (
        [((p,), Asked([message(1).id], (1,)))] for p in (4, 5)
    )
    assert sender.hear(4, Lacked([message(1).id])) == [((4,), Relay([message(1)]))]
    sender.reach.connected(3, True, LONG)
    assert sender.hear(4, Lacked([message(1).id])) == [((4,), Copies([message(1)]))]
    assert sender.tick(9 * PERIOD) == [((3, 4, 5), Asked([message(1).id]))]


# -- who passes on ----------------------------------------------------------------------------------------------------


def test_who_is_to_pass_it_on_multicasts_it_once_and_tells_of_the_delivery_who_asked_last() -> None:
    helper, out = Sender(2), Outbox()
    assert helper.hear(1, Relay([message(1)])) == [((3,), "alone")]
    assert helper.hear(0, Relay([message(1)])) == [] and helper.submitted == [message(1)]
    helper.of.known(Known(message(1).id, AT), out)
    assert told(out) == [((0,), Known(message(1).id, AT))] and len(helper.of) == 0
    helper.of.known(Known(message(1).id, AT), out)
    assert len(out.sends) == 1
    helper.hear(1, Relay([message(1)]))
    assert helper.submitted == [message(1)] * 2  # nobody remembers it here: its destinations do


def test_a_question_whether_it_is_passed_on_is_answered_by_everybody_and_not_by_the_leader_only() -> None:
    helper, out = Sender(2), Outbox()
    helper.hear(0, Relay([message(1)]))
    helper.delivered.add(message(2).id)
    ids = [message(n).id for n in (1, 2, 3)]
    assert helper.hear(1, Asked(ids)) == []  # it leads nobody
    assert helper.hear(1, Asked(ids, (1,))) == [((1,), Lacked([ids[2]], [Known(ids[1], AT)]))]
    helper.of.known(Known(ids[0], AT), out)
    assert told(out) == [((1,), Known(ids[0], AT))]


def test_what_was_delivered_here_is_not_multicast_again() -> None:
    helper = Sender(4)
    helper.delivered.add(message(1).id)
    assert helper.hear(1, Relay([message(1)])) == [((1,), Known(message(1).id, AT))] and helper.submitted == []


def test_who_delivers_what_it_passes_on_does_not_keep_it() -> None:
    helper, out = Sender(4), Outbox()
    helper.hear(1, Relay([message(1)]))
    helper.of.remove(message(1).id)
    helper.of.known(Known(message(1).id, AT), out)
    assert len(helper.of) == 0 and out.sends == []


def test_who_is_cut_off_as_well_or_overloaded_does_not_help() -> None:
    helper = Sender(2)
    helper.full = True
    assert helper.hear(1, Relay([message(1), message(2)])) == [] and len(helper.of) == 0
    helper.full = False
    helper.lose(3)
    assert helper.hear(1, Relay([message(1)])) == [] and helper.submitted == []
    assert helper.hear(1, Asked([message(1).id], (1,))) == []


@pytest.mark.parametrize("groups", [(), (1, 7)])
def test_a_message_for_no_group_or_for_one_that_is_not_there_is_refused(groups: tuple[GroupId, ...]) -> None:
    with pytest.raises(PeerError, match="a message for groups"):
        Sender(2).hear(1, Relay([AppMessage(bytes(16), groups, b"", 1)]))


def test_the_messages_are_read_as_they_were_written() -> None:
    codec = Codec((Asked, Relay))
    for one in (Asked([message(1).id]), Asked([message(1).id], (1, 2)), Relay([message(1)])):
        assert codec.decode(codec.encode(PROTOCOL, one)) == (PROTOCOL, one)


# -- protocols --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("far", [(3,), (3, 4, 5)])
@pytest.mark.parametrize("protocol", ["white_box", "fastcast", "ft_skeen", "primcast", "quasi_genuine"])
def test_what_a_process_multicasts_to_a_group_that_it_does_not_reach_is_delivered(
    protocol: str, far: tuple[ProcessId, ...]
) -> None:
    one = Lockstep(Topology.grid(2, 3), protocol)
    one.advance(SECOND)
    one.part(1, *far)
    early = one.submit(1, 1)
    one.advance(9 * SECOND)
    assert [one.delivered(p) for p in (3, 4, 5)] == [[early]] * 3
    assert one.protocol(1).describe()["submitted"] == 0
    late = one.submit(1, 1)
    one.settle()  # at once, now that it knows; in PrimCast a follower that has it asks its primary, in time
    assert one.delivered(4) == [early, late] or (protocol, len(far)) == ("primcast", 1)
    one.advance(9 * SECOND)
    assert one.delivered(4) == [early, late]
    assert one.protocol(1).describe()["submitted"] == 0
    assert not any(one.protocol(p)._submissions._asking for p in (0, 2) if protocol != "quasi_genuine")


@pytest.mark.parametrize("protocol", ["white_box", "fastcast", "ft_skeen", "primcast", "quasi_genuine"])
def test_who_has_not_heard_of_a_groups_new_leader_as_it_does_not_reach_it_learns_it_from_the_others(
    protocol: str,
) -> None:
    world = Lockstep(Topology.grid(2, 3), protocol, election_timeout_us=200_000, heartbeat_us=50_000)
    world.settle()
    world.part(1, 4)
    world.stand(4)
    world.advance(5 * SECOND)
    sent = world.submit(1, 1)
    world.advance(10 * SECOND)
    assert [sent in world.delivered(p) for p in (3, 4, 5)] == [True] * 3


def test_whom_the_coordinator_of_toto_does_not_reach_delivers_and_has_others_multicast_for_it() -> None:
    one = Lockstep(Topology.grid(2, 3), "toto")
    one.advance(SECOND)
    coordinator = one.protocol(0).paxos.promised.leader
    outside, others = 5, range(5)
    assert coordinator == 0
    one.part(outside, coordinator)
    one.advance(9 * SECOND)
    assert one.protocol(outside).role() == "outside" and one.protocol(1).role() == "member"
    sent = [one.submit(outside, *groups) for groups in ((0,), (0, 1), (1,), (0,))]
    one.advance(2 * SECOND)
    assert one.delivered(1) == [sent[0], sent[1], sent[3]] and one.delivered(4) == sent[1:3]
    one.advance(2 * SECOND)
    assert one.delivered(outside) == sent[1:3]
    assert not one.protocol(outside)._mine and not any(one.protocol(p)._asking for p in others)
    told = one.submit(1, 0, 1)
    one.advance(2 * SECOND)
    assert one.delivered(outside) == [*sent[1:3], told]


def test_who_multicasts_for_another_one_in_toto_tells_it_of_the_delivery_then_and_whenever_it_is_asked_again() -> None:
    one = Lockstep(Topology.grid(2, 3), "toto")
    one.advance(SECOND)
    helper, asked = one.protocol(1), one.message(0, origin=5)
    for _ in range(2):
        out = Outbox()
        helper.handlers[Relay].call(5, Relay([asked]), one.now, out)
        assert not out.sends and list(helper._asking) == list(helper._mine) == [asked.id]
    helper._is_delivered(asked.id, AT, out)
    assert told(out) == [((5,), Known(asked.id, AT))] and not helper._asking and not helper._mine
    known = one.message(0, origin=5)
    helper.log.delivered(known, AT, out)
    helper.handlers[Relay].call(5, Relay([known]), one.now, out)
    assert told(out)[-1:] == [((5,), Known(known.id, AT))] and not helper._asking
