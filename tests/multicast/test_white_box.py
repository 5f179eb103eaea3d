"""Scenarios of the White-Box paper, Figs. 4-6, and of the module's deviations."""

from __future__ import annotations

import random
from typing import Any

import pytest

from multicast.parts.ballots import Heartbeat, Joined
from multicast.protocol import Outbox, Overloaded, Saved
from multicast.protocols.white_box import ACCEPTED, Accept, AcceptAck, Deliver, Multicast, NewLeaderAck, WhiteBox
from multicast.records import Delivered
from multicast.types import FINAL, AppMessage, Ballot, Timestamp, Topology
from tests.conformance.journals import History, Submission, check
from tests.multicast.lockstep import Lockstep
from tests.planted.rewriting import rewrite
from tests.planted.white_box import (
    ClientRetryOnly,
    NoNegativeAnswer,
    OwnAcceptHeld,
    WaitsForItsCandidate,
    WithoutOwnAcknowledgement,
)

SECOND = 1_000_000


def cluster(groups: int = 2, replicas: int = 3, **options: object) -> Lockstep:
    world = Lockstep(Topology.grid(groups, replicas), "white_box", **options)
    world.settle()
    return world


def test_the_first_process_of_each_group_leads_first() -> None:
    world = cluster()
    assert [world.protocol(p).role() for p in range(6)] == ["leader", "follower", "follower"] * 2


def test_a_message_is_delivered_by_every_process_of_its_destinations_only() -> None:
    world = cluster(groups=3)
    m = world.submit(0, 0, 1)
    world.settle()
    assert [world.delivered(p) for p in range(9)] == [[m]] * 6 + [[]] * 3


def test_only_its_sender_waits_for_a_delivery() -> None:
    world = cluster(groups=1)
    m = world.submit(1, 0)
    for link in ((1, 0), (0, 1), (0, 2), (1, 0)):
        assert world.step(*link)
    delivers = {p: world.links[0, p].popleft() for p in (1, 2)}
    assert [world.engines[p].receive(0, delivers[p]) for p in (1, 2)] == [True, False]
    for process in (1, 2):
        world.engines[process].run(world.now)
        assert world.delivered(process) == [m]


def test_a_leader_hurries_only_if_a_follower_is_the_sender() -> None:
    world = cluster(groups=1)
    rides = {}
    for sender in (0, 1):
        m = world.submit(sender, 0)
        world.settle()
        deliver = Deliver(m, Ballot(1, 0), Timestamp(0, 0), Timestamp(0, 0), 0)
        rides[sender] = world.protocol(0).can_ride(deliver)
    assert rides == {0: True, 1: False}


def test_a_sender_outside_the_destinations_learns_that_its_message_was_delivered() -> None:
    world = cluster(groups=3)
    m = world.submit(8, 0, 1)
    assert world.protocol(8).describe()["submitted"] == 1
    world.settle()
    assert world.delivered(0) == world.delivered(5) == [m]
    assert world.protocol(8).describe()["submitted"] == 0


def test_the_stamp_of_a_groups_latest_ballot_counts_in_whatever_order_they_come() -> None:
    world = cluster()
    message, process = world.message(0, 1), world.protocol(0)
    for ballot, local in ((Ballot(2, 4), Timestamp(9, 1)), (Ballot(1, 3), Timestamp(5, 1))):
        process.on_message(ballot.leader, Accept(message.id, 1, ballot, local, None), world.now, Outbox())
    assert process.entries[message.id].accepts[1] == (Ballot(2, 4), Timestamp(9, 1))


def test_a_follower_votes_with_the_stamp_that_it_has_acknowledged_last() -> None:
    """Its leader has dropped a late copy, and stamps another one, in the same ballot."""
    world = cluster(groups=1)
    message, process = world.message(0), world.protocol(1)
    for local in (Timestamp(5, 0), Timestamp(9, 0)):
        out = Outbox()
        process.on_message(0, Accept(message.id, 0, Ballot(1, 0), local, message), world.now, out)
    assert [s.local for s in process.vote().entries] == [Timestamp(9, 0)]
    assert [key for key, _, _ in out.changes] == [b"m" + message.id]


def test_what_is_accepted_repeatedly_in_one_batch_is_acknowledged_once() -> None:
    world, out = cluster(groups=1), Outbox()
    process = world.protocol(1)
    messages = [world.message(0), world.message(0)]
    for message in (*messages, *messages):
        process.on_message(0, Accept(message.id, 0, Ballot(1, 0), Timestamp(5, 0), message), world.now, out)
    process.end_batch(world.now, out)
    (ack,) = [message for _, message, _ in out.sends if type(message) is AcceptAck]
    assert ack.ids == [message.id for message in messages]


def test_the_first_leader_of_a_restored_group_stamps_above_what_was_delivered_before() -> None:
    """Nobody's vote tells it a clock."""
    topology, options = Topology.grid(1, 3), WhiteBox.specification.options(clock="logical")
    before = dict(WhiteBox(0, topology, options, random.Random(0)).history.given(1, Timestamp(1_000, 0)))
    process, message = WhiteBox(0, topology, options, random.Random(0)), AppMessage(bytes(16), (0,), b"", 0)
    process.on_start(Saved(before, 1, first=False), 0, Outbox())
    process.on_message(0, Joined(Ballot(1, 0)), 1, Outbox())
    process.on_message(0, Multicast(message), 2, out := Outbox())
    [accept] = [sent for _, sent, _ in out.sends if isinstance(sent, Accept)]
    assert accept.local > Timestamp(1_000, 0)


def test_groups_deliver_common_messages_in_one_order() -> None:
    world = cluster()
    ids = [world.submit(p, 0, 1) for p in (0, 3, 1, 4, 2, 5)]
    world.settle()
    orders = [world.delivered(p) for p in range(6)]
    assert sorted(orders[0]) == sorted(ids)
    assert all(order == orders[0] for order in orders)


def test_a_follower_takes_over_and_delivers_what_was_accepted() -> None:
    world = cluster()
    world.cut = {(p, 0) for p in range(1, 6)}
    m = world.submit(0, 0, 1)
    world.settle()
    assert world.protocol(1).entries[m].phase == ACCEPTED
    assert world.delivered(1) == []
    world.crash(0)
    world.advance(5 * SECOND)
    assert [world.delivered(p) for p in range(1, 6)] == [[m]] * 5
    assert sorted(world.protocol(p).role() for p in (1, 2)) == ["follower", "leader"]


@pytest.mark.parametrize("protocol", [WhiteBox, ClientRetryOnly])
def test_a_message_that_reached_one_group_only_is_completed_by_its_leaders_retry(protocol: type[WhiteBox]) -> None:
    world = Lockstep(Topology.grid(2, 3), protocol)
    world.settle()
    world.cut = {(2, 3)}
    m = world.submit(2, 0, 1)
    world.settle()
    world.crash(2)
    world.cut = set()
    world.advance(20 * SECOND)
    expected = [m] if protocol is WhiteBox else []
    assert [world.delivered(p) for p in (0, 1, 3, 4, 5)] == [expected] * 5


def test_a_deposed_leader_cannot_deliver() -> None:
    world = cluster(groups=1)
    world.cut = {(0, 1), (0, 2), (1, 0), (2, 0)}
    lost = world.submit(0, 0)
    world.advance(5 * SECOND)
    m = world.submit(1, 0)
    world.advance(SECOND)
    assert world.delivered(0) == [] and world.delivered(1) == world.delivered(2) == [m]
    world.cut = set()
    world.advance(10 * SECOND)
    assert world.delivered(0) == world.delivered(1) == world.delivered(2)
    assert set(world.delivered(0)) == {m, lost}


def test_a_candidate_learns_of_a_higher_ballot_and_overtakes_it() -> None:
    world = cluster(groups=1)
    world.cut = {(1, 0), (1, 2)}
    world.advance(20 * SECOND)
    world.cut = set()
    world.advance(10 * SECOND)
    assert sorted(world.protocol(p).role() for p in range(3)) == ["follower", "follower", "leader"]
    m = world.submit(0, 0)
    world.advance(3 * SECOND)
    assert [world.delivered(p) for p in range(3)] == [[m]] * 3


def test_entries_go_once_a_quorum_of_each_destination_has_delivered() -> None:
    world = cluster()
    for _ in range(50):
        world.submit(0, 0, 1)
        world.submit(0, 0)
    world.settle()
    assert all(world.protocol(p).describe()["entries"] == 100 for p in range(3))
    world.advance(SECOND)
    assert [world.protocol(p).describe()["entries"] for p in range(6)] == [0] * 6


def test_a_settled_message_is_recognised_and_not_delivered_again() -> None:
    world = cluster()
    m = world.submit(0, 0, 1)
    original = world.protocol(0).entries[m].message
    world.advance(SECOND)
    world.engines[4].submit(original)
    world.engines[0].receive(3, world.engines[0].codec.encode(0, Multicast(original)))
    world.advance(3 * SECOND)
    assert [world.delivered(p) for p in range(6)] == [[m]] * 6


def test_ids_are_forgotten_after_twice_the_window() -> None:
    world = cluster(clock="hybrid", dedup_window_us=SECOND)
    for _ in range(6):
        for _ in range(10):
            world.submit(0, 0, 1)
        world.advance(SECOND)
    world.submit(0, 0, 1)
    world.advance(SECOND)
    assert all(len(world.protocol(p).log._known) <= 40 for p in range(6))


def test_a_leader_whose_acknowledgement_is_demanded_is_replaced_by_one_that_has_delivered() -> None:
    world = cluster(leaders_in_quorum=True)
    world.cut = {(p, 0) for p in range(1, 6)}
    m = world.submit(0, 0, 1)
    world.settle()
    world.cut = {(0, p) for p in (3, 4, 5)}
    world.settle()
    assert [world.delivered(p) for p in range(6)] == [[m]] * 3 + [[]] * 3
    world.crash(0)
    world.cut = set()
    world.advance(20 * SECOND)
    assert [world.delivered(p) for p in range(1, 6)] == [[m]] * 5


def test_who_waits_for_a_new_state_votes_once_per_link_and_without_its_own_state() -> None:
    world = cluster(groups=1)
    world.cut = {(1, 0), (2, 0), (2, 1)}
    m = world.submit(0, 0)
    world.settle()
    assert world.protocol(2).entries[m].phase == ACCEPTED

    def beat() -> list[NewLeaderAck]:
        engine = world.engines[2]
        engine.receive(1, engine.codec.encode(0, Heartbeat(Ballot(2, 1), 0, False)))
        world._run(2)
        return [engine.codec.decode(data)[1] for data in world.links[2, 1]]

    for _ in range(10):
        votes = beat()
        world.now += SECOND // 10
    assert [(v.ballot, v.entries) for v in votes] == [((2, 1), [])]
    world.lose_link(2, 1)
    assert len(beat()) == len(beat()) == 1
    world.cut = set()
    world.advance(10 * SECOND)
    assert [world.delivered(p) for p in range(3)] == [[m]] * 3


def test_a_follower_that_lost_deliveries_fetches_them() -> None:
    world = cluster(groups=1)
    world.cut = {(0, 2)}
    m = world.submit(0, 0)
    world.settle()
    world.links[(0, 2)].clear()
    world.cut = set()
    reads = []
    engine = world.engines[0]
    run = engine.run
    engine.run = lambda now: reads.append(run(now)) or reads[-1]  # type: ignore[method-assign]
    world.advance(SECOND // 2)
    asked = [read for batch in reads for read in batch.reads]
    assert asked[0] == (2, 1)
    assert world.delivered(1) == [m]


def test_a_large_state_changes_leaders_in_portions() -> None:
    world = cluster(groups=1)
    world.cut = {(1, 0), (2, 0)}
    for n in range(12):
        message = world.message(0)
        message.payload = bytes([n]) * 1_000_000
        world.engines[0].submit(message)
    world._run(0)
    world.settle()
    world.crash(0)
    longest = 0
    for engine in world.engines.values():
        receive = engine.receive

        def measured(peer: int, data: bytes, receive: Any = receive) -> None:
            nonlocal longest
            longest = max(longest, len(data))
            receive(peer, data)

        engine.receive = measured  # type: ignore[method-assign]
    world.advance(10 * SECOND)
    assert len(world.delivered(1)) == len(world.delivered(2)) == 12
    assert 4_000_000 < longest < 6_000_000


def test_with_leaders_in_the_quorum_a_remote_leader_must_have_acknowledged() -> None:
    for leaders_in_quorum, expected in ((False, 1), (True, 0)):
        world = cluster(leaders_in_quorum=leaders_in_quorum)
        world.cut = {(0, 3)}  # the leader of group 1 does not hear the stamp of group 0
        world.submit(1, 0, 1)
        world.settle()
        assert len(world.delivered(0)) == expected
        assert world.protocol(0).strict_groups_max() == 1 + leaders_in_quorum
        world.cut = set()
        world.advance(SECOND)
        assert [len(world.delivered(p)) for p in range(6)] == [1] * 6


class OwnDeliverOverALink(WhiteBox):
    """A leader's DELIVER to itself travels as any other (Fig. 4, line 23): it arrives when `deliver_own` is called."""

    def __init__(self, *args: Any):
        super().__init__(*args)
        self.own: list[Deliver] = []

    def _send_deliver(self, entry: Any, position: int, out: Outbox) -> None:
        assert entry.local is not None and entry.final is not None
        entry.sent = True
        deliver = Deliver(entry.id, self.leadership.joined, entry.local, entry.final, position)
        out.send([p for p in self.election.members if p != self.self_id], deliver)
        self.own.append(deliver)

    def deliver_own(self, world: Lockstep) -> None:
        own, self.own = self.own, []
        for deliver in own:
            world.engines[self.self_id].receive(self.self_id, world.engines[self.self_id].codec.encode(0, deliver))
        world._run(self.self_id)


@rewrite("adopt", "entry.begin_anew()", "entry.acks.clear()")
class DeliveredKept(OwnDeliverOverALink):
    """Line 44 as printed: `Delivered` survives a leader change."""


def deposed_before_its_own_deliver(protocol: type[OwnDeliverOverALink]) -> list[str]:
    """What the checkers say of this: leader 0 commits m, is deposed before it delivers m, gets m back as ACCEPTED,
    leads again, commits m again, and then another message."""
    world = Lockstep(Topology.grid(1, 3), protocol)
    world.settle()
    world.cut = {(1, 0), (2, 0)}
    first = world.message(0)
    world.engines[0].submit(first)
    world._run(0)
    world.settle()
    world.cut = {(0, 1), (0, 2)}
    world.settle()
    world.stand(1)  # its quorum is 1 and 2, because the vote of 0 does not reach it
    while world.protocol(1).leadership.joined.leader != 1:
        assert world.step(1, 2) or world.step(2, 1)
    while world.protocol(2).leadership.joined.leader != 1:
        assert world.step(1, 2)
    while world.protocol(0).leadership.joined.leader != 1:
        assert world.step(1, 0)
    world.protocol(0).deliver_own(world)
    assert world.delivered(0) == [] and world.protocol(0).entries[first.id].phase == ACCEPTED
    world.crash(1)
    world.cut = set()
    world.stand(0)
    world.settle()
    assert world.protocol(0).role() == "leader"
    second = world.message(0)
    world.engines[0].submit(second)
    world._run(0)
    world.settle()
    world.protocol(0).deliver_own(world)
    histories = {}
    for process in (0, 2):
        recorded = world.engines[process].application.delivered  # type: ignore[attr-defined]
        messages = {first.id: first, second.id: second}
        deliveries = [Delivered(n, ts, FINAL, False, messages[i], 0) for n, i, ts in recorded]
        histories[process] = History(1, True, deliveries)
    return check(Topology({0: [0, 2]}), histories, [Submission(0, 1, first), Submission(0, 1, second)])


def test_delivered_kept_across_a_leader_change_is_found() -> None:
    """The planted bug is found, and it is the keeping that is wrong, not the way of the leader's own DELIVER."""
    assert deposed_before_its_own_deliver(OwnDeliverOverALink) == []
    violations = deposed_before_its_own_deliver(DeliveredKept)
    assert violations and all("delivered" in violation for violation in violations)


def test_too_many_pending_messages_are_refused() -> None:
    world = cluster(pending_max=2)
    world.cut = {(p, q) for p in range(6) for q in range(6) if p != q}
    world.submit(0, 0, 1)
    world.submit(0, 0, 1)
    with pytest.raises(Overloaded, match="limit is 2"):
        world.protocol(0).on_submit(world.message(0, 1), world.now, world.engines[0]._out)


def test_a_leader_asks_its_group_for_what_the_others_have_settled() -> None:
    """m is delivered by 0, and by 1 from 0's journal after 1 has voted for 2; then 0 is gone and group 1 has settled m.
    2 leads, has delivered nothing, and nobody stamps m for it any more."""
    world = cluster()
    world.cut = {(1, 0), (2, 0)}
    m = world.submit(0, 0, 1)
    world.settle()
    world.cut = {(0, 1), (0, 2)}
    world.settle()
    assert [world.delivered(p) for p in range(3)] == [[m], [], []]
    world.links[(0, 1)].clear()
    world.links[(0, 2)].clear()
    world.cut = {(1, 0), (2, 0), (0, 2)}
    world.advance(SECOND // 4)
    world.cut = {(0, 1), (2, 0), (0, 2)}
    world.settle()
    world.cut |= {(1, 0), (2, 3), (2, 4), (2, 5)}
    while world.protocol(2).leadership.joined.leader != 2:
        world.advance(SECOND // 10)
    assert world.delivered(1) == [], "what it asked for is still under way"
    world.cut -= {(0, 1), (1, 0)}
    world.advance(SECOND // 4)
    assert world.delivered(1) == [m]
    world.crash(0)
    world.advance(SECOND)
    assert not any(world.protocol(p).entries for p in range(3, 6)), "group 1 has settled m"
    world.cut = set()
    later = world.submit(1, 0)
    world.advance(10 * SECOND)
    assert world.delivered(1) == world.delivered(2) == [m, later]


def committed_without_the_own_acknowledgement(protocol: type[OwnAcceptHeld]) -> list[Timestamp]:
    """Final timestamps at leader 0, whose own ACCEPTs are held up, and whose clock is behind group 1's."""
    world = Lockstep(Topology.grid(2, 3), protocol)
    world.settle()
    for _ in range(5):
        world.submit(3, 1)
        world.settle()
        own_accepts(world, 3)
    world.submit(0, 0, 1)
    world.settle()
    own_accepts(world, 3)
    if protocol is OwnAcceptHeld:
        assert world.delivered(0) == [], "0 has not acknowledged"
    second = world.submit(0, 0)
    world.settle()
    own_accepts(world, 0)
    assert second in world.delivered(0)
    return [timestamp for _, _, timestamp in world.engines[0].application.delivered]  # type: ignore[attr-defined]


def own_accepts(world: Lockstep, process: int) -> None:
    engine = world.engines[process]
    held, engine.protocol.own_accepts = engine.protocol.own_accepts, []  # type: ignore[attr-defined]
    for accept in held:
        engine.receive(process, engine.codec.encode(0, accept))
    world._run(process)
    world.settle()


def test_without_its_own_acknowledgement_a_leader_stamps_below_what_it_has_committed() -> None:
    assert len(committed_without_the_own_acknowledgement(OwnAcceptHeld)) == 2
    with pytest.raises(AssertionError, match=r"delivery at .* after"):
        committed_without_the_own_acknowledgement(WithoutOwnAcknowledgement)


@pytest.mark.parametrize("protocol", [WaitsForItsCandidate, NoNegativeAnswer])
def test_a_leader_cut_off_by_a_dead_candidates_ballot_must_hear_of_it(protocol: type[WhiteBox]) -> None:
    """2 stands for election, only 1 hears it, and 2 dies. 1 may acknowledge nothing to 0 any more."""
    world = Lockstep(Topology.grid(1, 3), protocol)
    world.settle()
    world.cut = {(0, 2), (2, 0), (1, 2)}
    world.stand(2)
    world.settle()
    assert world.protocol(0).role() == "leader" and world.protocol(1).election.promised.leader == 2
    world.crash(2)
    world.cut = set()
    m = world.submit(0, 0)
    world.advance(20 * SECOND)
    assert world.delivered(0) == ([m] if protocol is WaitsForItsCandidate else [])


@pytest.mark.parametrize("protocol", ["white_box", "primcast"])
def test_whom_the_leader_does_not_reach_has_the_deliveries_from_the_others(protocol: str) -> None:
    """Both hear of the third process, so that nobody is replaced; and it is a quorum with the leader."""
    world = Lockstep(Topology.grid(1, 3), protocol)
    world.settle()
    world.cut = {(0, 1), (1, 0)}
    for _ in range(50):
        world.submit(2, 0)
        world.advance(SECOND // 10)
    world.advance(2 * SECOND)
    assert world.protocol(0).role() == "leader"
    assert len(world.delivered(1)) == 50
    assert not world.protocol(1).entries
