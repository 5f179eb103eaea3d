"""ToTo in staged scenarios: projections of one order, silence, views that change, coming back."""

from __future__ import annotations

import random
from typing import Any

import pytest

from multicast.application import Application
from multicast.parts.causal import RULES
from multicast.parts.views import NewView, ViewRecord
from multicast.protocol import Handler, Outbox, PeerError, Saved
from multicast.protocols.toto import Alive, Ask, Copies, OrderRecord, State, StateAsk, Toto, TotoOptions
from multicast.records import Delivered
from multicast.simulation.network import Conditions
from multicast.simulation.observe import Observer
from multicast.simulation.scene import Node
from multicast.simulation.world import World
from multicast.types import AppMessage, ProcessId, Topology, new_message_id
from multicast.wire import CatchUpReply
from tests.multicast.lockstep import Lockstep

SECOND = 1_000_000


def world(groups: int = 2, replicas: int = 3, **options: Any) -> Lockstep:
    one = Lockstep(Topology.grid(groups, replicas), "toto", **options)
    one.advance(SECOND)
    return one


def logs(one: Lockstep, *processes: int) -> list[list[tuple[int, bytes, Any]]]:
    return [one.engines[p].application.delivered for p in processes]  # type: ignore[attr-defined]


def isolate(one: Lockstep, process: int) -> None:
    for other in one.topology.processes:
        one.cut |= {(process, other), (other, process)}


@pytest.mark.parametrize("rule", RULES)
def test_every_group_delivers_its_projection_of_one_order(rule: str) -> None:
    one = world(rule=rule)
    sent = [one.submit(p, *groups) for p, groups in ((0, (0,)), (4, (0, 1)), (2, (1,)), (5, (0, 1)), (1, (0,)))]
    one.advance(SECOND)
    zero, also_zero, third, four = logs(one, 0, 1, 2, 4)
    assert zero == also_zero == third
    assert sorted(i for _, i, _ in zero) == sorted(sent[k] for k in (0, 1, 3, 4))
    assert sorted(i for _, i, _ in four) == sorted(sent[k] for k in (1, 2, 3))
    stamps = {i: t for _, i, t in zero}
    assert all(stamps[i] == t for _, i, t in four if i in stamps)
    times = sorted(t.time for _, _, t in {*zero, *four})
    assert len(set(times)) == 5
    assert [p for p, _, _ in four] == [1, 2, 3]


def test_when_nothing_is_pending_only_heartbeats_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    one = world()
    one.submit(0, 0, 1)
    one.advance(3 * SECOND)
    heard: set[type] = set()
    original = Toto.on_message

    def spy(self: Toto, sender: int, message: Any, now: int, out: Any) -> None:
        heard.add(type(message))
        original(self, sender, message, now, out)

    monkeypatch.setattr(Toto, "on_message", spy)
    one.advance(3 * SECOND)
    assert {kind.__name__ for kind in heard} == {"Alive", "Heartbeat", "Pulse", "Echo"}
    assert all(not one.protocol(p).view.everything() or not one.protocol(p)._is_busy() for p in range(6))


def test_casts_are_dropped_when_everybody_has_them() -> None:
    one = world(groups=1)
    for _ in range(30):
        one.submit(0, 0)
        one.advance(SECOND // 10)
    one.advance(SECOND)
    assert all(len(one.protocol(p).view.everything()) <= 6 for p in range(3))
    assert all(one.protocol(p).log.unsettled == 0 for p in range(3))


def test_a_minority_of_every_group_may_crash() -> None:
    one = world()
    before = one.submit(1, 0, 1)
    one.advance(SECOND)
    one.crash(0)  # the coordinator
    one.crash(5)
    after = one.submit(1, 0, 1)
    one.advance(8 * SECOND)
    for p in (1, 2, 3, 4):
        assert one.delivered(p) == [before, after]
        assert one.protocol(p).record.members == [1, 2, 3, 4]
    assert one.delivered(0) == one.delivered(5) == [before]


def test_without_a_quorum_of_a_group_the_view_stays_and_early_delivery_goes_on() -> None:
    one = world()
    one.crash(3)
    one.crash(4)
    sent = one.submit(1, 0)
    one.advance(10 * SECOND)
    assert all(one.protocol(p).record.number == 1 for p in (0, 1, 2, 5))
    assert one.delivered(0) == [sent]


def test_without_a_majority_of_all_everything_waits() -> None:
    one = world()
    for p in (0, 3, 4):
        one.crash(p)
    one.submit(1, 0)
    one.advance(10 * SECOND)
    assert all(one.protocol(p).record.number == 1 and one.delivered(p) == [] for p in (1, 2, 5))


def test_who_was_cut_off_comes_back_and_catches_up() -> None:
    one = world()
    isolate(one, 2)
    missed = [one.submit(p, 0, 1) for p in (0, 3)]
    one.advance(4 * SECOND)
    assert sorted(one.delivered(0)) == sorted(missed)
    assert one.protocol(0).record.members == [0, 1, 3, 4, 5]
    own = one.submit(2, 0)
    assert one.delivered(2) == []
    one.cut.clear()
    _feed_catch_up(one)
    one.advance(4 * SECOND)
    assert one.protocol(2).record.members == [0, 1, 2, 3, 4, 5]
    assert one.protocol(2).role() in ("member", "coordinator")
    assert one.delivered(2) == one.delivered(0) == one.delivered(1)
    assert set(one.delivered(2)) == {*missed, own}


def _feed_catch_up(one: Lockstep) -> None:
    """Answer reads of journals from what the applications recorded."""
    carry_out = one._carry_out

    def with_reads(process: int, batch: Any) -> None:
        carry_out(process, batch)
        for peer, position in batch.reads:
            items = [
                (Delivered(at, stamp, 2, False, _message(one, message_id), 0, None, b""), None)
                for at, message_id, stamp in logs(one, process)[0]
                if at >= position
            ]
            one.engines[process].found(peer, CatchUpReply(items, False))
            carry_out(process, one.engines[process].run(one.now))

    one._carry_out = with_reads  # type: ignore[method-assign]


def _message(one: Lockstep, message_id: bytes) -> AppMessage:
    return AppMessage(message_id, (0, 1), b"x", 0)


def test_a_cast_that_one_survivor_holds_is_delivered_by_all_before_the_view_changes() -> None:
    """Virtual synchrony: 5 sends to 4 only, and dies."""
    one = world()
    one.cut |= {(5, p) for p in (0, 1, 2, 3)}
    last = one.submit(5, 0, 1)
    one.step(5, 4)
    one.cut |= {(4, p) for p in (0, 1, 2, 3)}  # nobody hears 4's answering cast
    one.settle()
    assert one.protocol(0).view.held[5] == 0
    assert one.protocol(4).view.held[5] == 1
    one.crash(5)
    one.cut.clear()
    one.advance(5 * SECOND)
    assert 5 not in one.protocol(0).record.members
    assert all(one.delivered(p) == [last] for p in range(5))


def test_a_flush_that_its_coordinator_does_not_finish_is_finished_by_the_next() -> None:
    one = world()
    one.protocol(0).coordinator.propose_if_ready = lambda now, out: None
    isolate(one, 5)
    one.advance(3 * SECOND)
    assert all(one.protocol(p).record.stopped and one.protocol(p).record.number == 1 for p in range(5))
    one.crash(0)
    submitted = one.submit(1, 0, 1)
    one.advance(8 * SECOND)
    for p in (1, 2, 3, 4):
        assert one.protocol(p).record.number > 1
        assert not one.protocol(p).record.stopped
        assert one.delivered(p) == [submitted]


class CountsQuestions(Toto):
    """How many it was asked."""

    asked = 0

    def _on_ask(self, sender: ProcessId, ask: Ask, now: int, out: Outbox) -> None:
        self.asked += 1
        super()._on_ask(sender, ask, now, out)


def test_who_lacks_much_has_one_question_to_each_holder_under_way() -> None:
    """Each answer has one cast, so there are no fewer questions than casts; but not many times as many."""
    one = Lockstep(Topology.grid(2, 3), CountsQuestions, portion_bytes=100)
    one.advance(SECOND)
    one.cut = {(p, 5) for p in range(5)}
    ids = []
    for _ in range(20):
        ids += [one.submit(p, 0, 1) for p in range(5)]
        one.settle()
    for p in range(5):
        one.links[(p, 5)].clear()
    one.cut = set()
    one.advance(5 * SECOND)
    assert sorted(one.delivered(5)) == sorted(ids)
    lacked = sum(one.protocol(0).view.held)
    assert sum(one.protocol(p).asked for p in range(5)) < 2 * lacked, lacked


def test_what_an_answer_lacks_is_asked_of_somebody_else_at_once() -> None:
    """5 lacks three casts of 3, and asks 0, who has no more than two of them; 1, 2 and 4 have all."""
    one, out = Lockstep(Topology.grid(2, 3), CountsQuestions), Outbox()
    one.advance(SECOND)
    one.cut = {(3, 5)}
    for lost in range(3):
        one.cut |= {(3, 0)} if lost == 2 else set()
        one.submit(3, 1)
        one.settle()
    casts = list(one.protocol(1).view.copies((3, 1, 3)))
    assert len(casts) == 3 and one.protocol(5).view.held[3] == 0 and one.protocol(0).view.held[3] == 2
    one.protocol(5)._ask(0, [(3, 1, 3)], one.now, out)
    one.protocol(5).on_message(0, Copies(casts[0].view, casts[:2]), one.now, out)
    first, second = [(to, sent.spans) for to, sent, _ in out.sends if isinstance(sent, Ask)]
    assert first == ((0,), [(3, 1, 3)])
    assert second[0] in ((1,), (2,), (4,)) and second[1] == [(3, 3, 3)]


def test_what_does_not_arrive_is_asked_for_although_there_is_ever_more_of_it() -> None:
    """3 does not reach 5, and goes on: 5 is heard, so it stays, and without its votes nobody orders anything."""
    one = world()
    one.cut = {(3, 5)}
    sent = []
    for _ in range(30):
        sent.append(one.submit(3, 0, 1))
        one.advance(SECOND // 10)
    assert all(one.delivered(p) == sent for p in range(6))


def test_who_is_complete_takes_no_state() -> None:
    """One that it had asked for and does not need any more."""
    one, answer, out = world(), Outbox(), Outbox()
    one.submit(0, 0, 1)
    one.protocol(1).on_message(2, StateAsk(), one.now, answer)
    one.protocol(2).on_message(1, answer.sends[0][1], one.now, out)
    assert not out.sends and not out.changes and not out.catch_ups


def test_who_is_incomplete_tells_nobody_how_far_the_group_is() -> None:
    one = world()
    asked: Any = one.protocol(1)
    record, answer = asked.record, Outbox()
    asked.record = ViewRecord(record.number, record.members, record.instance, False, False, record.time)
    one.protocol(1).on_message(2, StateAsk(), one.now, answer)
    assert not answer.sends


def test_what_was_decided_since_the_view_before_is_kept_for_who_lacks_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The casts that were handed out are among it; maybe no more than a quorum has entered the view before."""
    one = world()
    process: Any = one.protocol(0)
    before, dropped = process.record, []
    monkeypatch.setattr(process.paxos.instances, "truncate", lambda instance, out: dropped.append(instance))
    process.paxos.instances.decided = before.instance + 9
    process._enter(
        ViewRecord(before.number + 1, before.members, before.instance + 7, False, True, before.time), one.now, Outbox()
    )
    assert dropped == [before.instance]


@pytest.mark.parametrize("first", [0, 900])
def test_a_cast_carries_no_more_than_a_portion(first: int) -> None:
    one = world(portion_bytes=2_000)
    messages = [one.message(0, 1) for _ in range(5)]
    for message in messages:
        message.payload = bytes(900 if message is not messages[0] else first)
        one.engines[0].submit(message)
    one._run(0)
    assert max(len(frame) for frame in one.links[0, 5]) < 2 * 1_500
    one.advance(SECOND)
    assert one.delivered(5) == [message.id for message in messages]


def test_what_a_member_lacks_travels_in_portions_however_much_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """5 lacks all that was multicast when 4 dies, and its group cannot spare it; half-way the coordinator dies, too."""
    one = world(portion_bytes=2_000)
    one.cut = {(p, 5) for p in range(5)}
    sent = []
    for _ in range(12):
        message = one.message(0, 1)
        message.payload = bytes(1_500)
        one.engines[0].submit(message)
        one._run(0)
        one.settle()
        sent.append(message.id)
    for p in range(5):
        one.lose_link(p, 5)
    one.crash(4)
    one.cut = set()
    largest, carry_out = 0, one._carry_out
    first, propose, handed = one.protocol(0).coordinator, one.protocol(0).coordinator._propose, []

    def hand_out(new: NewView) -> None:
        if len(handed) < 3:
            handed.append(new)
            propose(new)

    def measure(process: int, batch: Any) -> None:
        nonlocal largest
        largest = max([largest, *(len(data) for _, data in batch.sends)])
        carry_out(process, batch)

    one._carry_out = measure  # type: ignore[method-assign]
    monkeypatch.setattr(one.protocol(5), "_ask_for_gaps", lambda *_: None)
    monkeypatch.setattr(first, "_propose", hand_out)
    one.advance(3 * SECOND)
    count = sum(len(new.casts) for new in handed)
    assert [new.members for new in handed] == [[]] * 3
    assert all(len(one.protocol(p).coordinator.handed) == count for p in (0, 1, 2, 3, 5))
    one.crash(0)
    one.advance(8 * SECOND)
    assert one.protocol(1).record.members == [1, 2, 3, 5]
    assert all(one.delivered(p) == sent for p in (1, 2, 3, 5))
    assert largest < 2 * 2_000 + 1_500


def test_who_is_heard_but_hears_nothing_is_not_waited_for_and_comes_back() -> None:
    """Nothing of what the coordinator sends reaches 5; then 2 dies."""
    one = world()
    _feed_catch_up(one)
    one.cut = {(0, 5)}
    one.crash(2)
    sent = one.submit(1, 0, 1)
    one.advance(4 * SECOND)
    assert one.protocol(0).record.members == [0, 1, 3, 4]
    assert all(one.delivered(p) == [sent] for p in (0, 1, 3, 4))
    number = one.protocol(0).record.number
    one.advance(4 * SECOND)
    assert one.protocol(0).record.number == number  # and nobody asks it again and again
    one.cut = set()
    one.advance(4 * SECOND)
    assert one.protocol(0).record.members == [0, 1, 3, 4, 5]
    assert one.delivered(5) == [sent]


def test_whose_disk_stands_still_is_not_waited_for_and_comes_back() -> None:
    topology = Topology.grid(2, 3)

    def make(pid: int, rng: random.Random, disk: object) -> tuple[Toto, Application]:
        return Toto(pid, topology, TotoOptions(), rng), Application()

    one = World(topology, make, 0)
    one.start()
    one.run_for(SECOND)
    one.slow_disk(5, 60 * SECOND)
    one.crash(2)
    one.submit(1, AppMessage(new_message_id(one.now, 1), (0, 1), b"", 1))
    one.run_for(4 * SECOND)
    assert one.nodes[0].protocol.record.members == [0, 1, 3, 4]
    assert [one.nodes[p].engine.position for p in range(5) if p != 2] == [1] * 4
    one.slow_disk(5, 0)
    one.run_for(64 * SECOND)
    assert one.nodes[0].protocol.record.members == [0, 1, 3, 4, 5]
    assert one.nodes[5].engine.position == 1


def test_only_who_leads_the_consensus_proposes_a_view() -> None:
    one = world()
    assert [one.protocol(p)._may_propose() for p in range(6)] == [True] + [False] * 5


def test_what_only_the_dead_held_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """2 has a cast that nobody else holds, answers the flush with it, and dies before it can give it."""
    one = world()
    one.cut = {(2, p) for p in (0, 1, 3, 4, 5)}
    lost = one.submit(2, 0, 1)
    for p in (0, 1, 3, 4, 5):
        one.links[2, p].clear()
    one.cut.clear()
    monkeypatch.setitem(one.protocol(2).handlers, Ask, Handler(lambda *_: None))
    one.crash(5)
    while (gathering := one.protocol(0).coordinator.gathering) is None or 2 not in gathering.replies:
        one.advance(SECOND // 20)
    assert gathering.replies[2].held != gathering.replies[1].held
    one.crash(2)
    after = one.submit(1, 0, 1)
    one.advance(8 * SECOND)
    assert one.protocol(0).record.members == [0, 1, 3, 4]
    assert [one.delivered(p) for p in (0, 1, 3, 4)] == [[after]] * 4
    assert lost not in one.delivered(2)


@pytest.mark.parametrize("rule", RULES)
def test_who_is_outside_the_view_helps_to_finish_it(rule: str) -> None:
    """3 is taken for dead and comes back when 5 dies: of group 1 only 4 is a member that lives."""
    one = world(rule=rule)
    _feed_catch_up(one)
    isolate(one, 3)
    missed = [one.submit(p, 0, 1) for p in (0, 4)]
    one.advance(4 * SECOND)
    assert one.protocol(0).record.members == [0, 1, 2, 4, 5]
    later = [one.submit(p, 1) for p in (1, 4)]
    one.settle()
    one.cut.clear()
    one.crash(5)
    later.append(one.submit(2, 0, 1))
    one.advance(6 * SECOND)
    assert one.protocol(0).record.members == [0, 1, 2, 3, 4]
    assert one.protocol(3).record.complete
    assert one.delivered(3) == one.delivered(4)
    assert set(one.delivered(3)) == {*missed, *later}


def test_how_far_the_order_has_come_outside_a_view_survives_a_restart() -> None:
    """The flush counts on it: what its answer says that it holds does not come with the next view."""
    topology, saved = Topology.grid(2, 3), Saved({})
    for life in range(2):
        out, one = Outbox(), Toto(3, topology, TotoOptions(), random.Random(life))
        one.on_start(saved, SECOND, out)
        if life == 0:
            one._enter(ViewRecord(2, [0, 1, 2, 4, 5], 1, True, True, 0), SECOND, out)
            order = OrderRecord(2, [1, 0, 0, 2, 0], 0, 7, [1, 0, 0, 2, 0])
            one.on_message(4, State(2, [0, 1, 2, 4, 5], 1, 0, 0, order), SECOND, out)
        assert (one.view.held, one.view.base, one.time) == ([1, 0, 0, 2, 0], [1, 0, 0, 2, 0], 7)
        one.end_batch(SECOND, out)
        for key, value, _ in out.changes:
            saved.values.pop(key, None)
            if value is not None:
                saved.values[key] = value
        saved.first = False


def test_two_copies_that_come_very_late_are_delivered_once() -> None:
    """Beyond two windows after its creation a message has no effect, but is delivered, for those who wait for it."""
    one = world(clock="hybrid", dedup_window_us=SECOND)
    old = AppMessage(new_message_id(one.now - 5 * SECOND, 7), (0, 1), b"x", 0)
    for p in (0, 4):
        one.engines[p].submit(old)
        one._run(p)
    one.advance(SECOND)
    assert all(one.delivered(p) == [old.id] for p in range(6))
    one.advance(3 * SECOND)
    one.submit(1, 0, 1)
    one.advance(3 * SECOND)  # forgotten
    one.engines[2].submit(old)
    one._run(2)
    one.advance(SECOND)
    assert all(one.delivered(p).count(old.id) == 2 for p in range(6))


class Arrivals(Observer):
    """When each process delivered."""

    def __init__(self) -> None:
        self.at: dict[int, int] = {}

    def on_deliver(self, node: Node, *details: Any) -> None:
        self.at[node.pid] = node.world.now


@pytest.mark.parametrize("rule", RULES)
def test_every_replica_delivers_after_three_delays(rule: str) -> None:
    """The cast, what follows it, receipts."""
    topology, delay = Topology.grid(2, 3), 1_000

    def make(pid: int, rng: random.Random, disk: object) -> tuple[Toto, Application]:
        return Toto(pid, topology, TotoOptions(rule=rule), rng), Application()

    arrivals = Arrivals()
    one = World(topology, make, 0, Conditions.exact(delay), observers=[arrivals])
    one.start()
    one.run_for(300_500)
    start = one.now
    one.submit(4, AppMessage(new_message_id(one.now, 1), (0, 1), b"", 4))
    one.run_for(10 * delay)
    assert arrivals.at == dict.fromkeys(topology.processes, start + 3 * delay)


def test_what_arrives_while_a_receipt_waits_for_the_disk_shares_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a receipt for each arrival it was ten of every process to every other, for one message."""
    topology, heard = Topology.grid(2, 5), 0

    def make(pid: int, rng: random.Random, disk: object) -> tuple[Toto, Application]:
        return Toto(pid, topology, TotoOptions(), rng), Application()

    original = Toto._on_receipt

    def counting(self: Toto, sender: int, *rest: Any) -> None:
        nonlocal heard
        heard += sender != self.self_id
        original(self, sender, *rest)

    monkeypatch.setattr(Toto, "_on_receipt", counting)
    one = World(topology, make, 0, Conditions(delay_us=(100, 200), late_probability=0.0, fsync_us=(400, 600)))
    one.start()
    one.run_for(300_000)
    for _ in range(10):
        one.submit(4, AppMessage(new_message_id(one.now, 1), (0, 1), b"", 4))
        one.run_for(200_000)
    assert all(node.engine.position == 10 for node in one.nodes.values())
    assert heard < 3 * 10 * 90


def test_a_message_of_a_stranger_about_another_group_is_refused() -> None:
    one = world()
    with pytest.raises(PeerError, match="StateAsk from group 1"):
        one.protocol(0).on_message(3, StateAsk(), one.now, Outbox())
    one.protocol(0).on_message(3, Alive(1, False), one.now, Outbox())
    assert one.protocol(0).coordinator.heard[3] == one.now


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"rule": "x"}, "rule is one of toto, s_toto, g_toto, gl_toto, not 'x'"),
        ({"phi": -1}, "phi must be at least 0"),
        ({"retry_us": 0}, "heartbeat_us, retry_us and stability_us must be at least 1"),
        ({"heartbeat_us": 10, "election_timeout_us": 19}, "election_timeout_us must be at least twice heartbeat_us"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        TotoOptions(**options)


def test_phi_is_bounded_to_what_is_safe() -> None:
    assert world(groups=1, phi=1, rule="s_toto").protocol(0).order.votes.phi == 1
    assert world(groups=2, phi=1, rule="s_toto").protocol(0).order.votes.phi == 3
    assert world(groups=2, phi=9, rule="g_toto").protocol(0).order.votes.phi == 5
    assert world(groups=2, phi=1, rule="g_toto").protocol(0).order.votes.phi == 1
