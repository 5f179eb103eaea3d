"""What a group has decided, and what a process multicasts: the same at every member, FIFO, without gaps."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from multicast.parts.barrier_leader import BarrierLeader
from multicast.parts.barriers import Ask, Barrier, Item, Repair, timestamp_of
from multicast.parts.casts import Casts, Ready, saved_life
from multicast.parts.channels import Channels
from multicast.parts.deadlines import Deadlines
from multicast.parts.delivered import DeliveredLog
from multicast.parts.learner import RemoteLearner
from multicast.parts.stream import Cast, Null, Stream
from multicast.protocol import Outbox, PeerError
from multicast.types import AppMessage, Ballot, Topology

TWO = Topology.grid(2, 3)
PERIOD = 1_000
encode = msgspec.msgpack.encode
decode = msgspec.msgpack.Decoder(Cast).decode


def message(number: int, *groups: int) -> AppMessage:
    return AppMessage(number.to_bytes(16, "big"), groups or (0,), b"", 0)


def stream() -> Stream:
    return Stream(TWO, 0, (1,), announced=False)


def value(sender: int, life: int, number: int, rtc: int, *groups: int) -> bytes:
    return encode(Cast(sender, life, number, rtc, message(sender << 40 | life << 20 | number, *groups)))


CASTS = st.tuples(st.integers(0, 2), st.integers(1, 3), st.integers(1, 4), st.integers(1, 9))
VALUES = st.lists(st.lists(st.one_of(CASTS, st.integers(1, 12)), max_size=5), max_size=8)


@given(VALUES)
def test_stamps_rise_and_each_life_of_a_sender_counts_without_gaps_and_repetitions(batches):
    one, stamps, order = stream(), [], []
    for instance, batch in enumerate(batches, 1):
        values = [encode(Null((v, 0))) if isinstance(v, int) else value(*v, 0) for v in batch]
        before = one.base.last
        sent, _ = one.decide(instance, values)
        for item in sent.get(0, []):
            number = int.from_bytes(item.message.id, "big")
            order.append((number >> 40, number >> 20 & 0xFFFFF, number & 0xFFFFF))
            stamps.append(item.stamp)
        assert one.base.last >= max([before, *((v, 0) for v in batch if isinstance(v, int))])
    assert stamps == sorted(set(stamps))
    for sender in range(3):
        taken = [(life, number) for who, life, number in order if who == sender]
        assert taken == sorted(set(taken))
        for life in {life for life, _ in taken}:
            numbers = [number for e, number in taken if e == life]
            assert numbers == list(range(1, len(numbers) + 1))


def test_a_batch_means_the_same_in_whatever_order_it_was_proposed():
    values = [value(0, 1, 1, 5), value(0, 1, 2, 5), value(1, 1, 1, 5), encode(Null((5, 0)))]
    one, other = stream(), stream()
    assert one.decide(1, values)[0] == other.decide(1, values[::-1])[0]
    assert one.base == other.base


def test_casts_of_one_stamp_get_different_ones():
    sent, _ = stream().decide(1, [value(0, 1, 1, 7, 1), value(1, 1, 1, 7, 1)])
    assert [item.stamp for item in sent[1]] == [(7, 0), (7, 1)]


def test_what_a_quorum_lacks_is_kept_and_repeated_with_its_numbers():
    one = stream()
    for k in range(1, 4):
        one.decide(k, [value(0, 1, k, k, 1)])
    for sender in (0, 1, 2):
        one.acknowledge(sender, 3)
    one.acknowledge(3, 3)
    assert one.truncate((), Outbox()) == 0
    one.acknowledge(4, 2)
    assert one.truncate((), Outbox()) == 2
    repair = one.repair(1, 0, 1_000)
    assert (repair.first, len(repair.items), repair.low, repair.upto, repair.more) == (3, 1, 3, 3, False)
    assert one.vouched_by(5) == 2, "what is dropped was acknowledged by a quorum"
    assert one.vouched_by(3) == 3, "it has said so"
    assert one.behind(1) == (4, 5)


def test_an_instance_stays_until_the_last_of_its_own_messages_is_delivered():
    one = stream()
    own = one.decide(1, [value(0, 1, 1, 5, 0), value(0, 1, 2, 6, 0)])[0][0]
    for sender in (0, 1, 2):
        one.acknowledge(sender, 1)
    assert one.truncate({timestamp_of(own[1].stamp, 0)}, Outbox()) == 0
    assert one.truncate((), Outbox()) == 1


def test_who_lacks_few_instances_can_get_them_and_need_not_be_given_a_state():
    one = stream()
    one.spare = 2
    for instance in range(1, 6):
        one.decide(instance, [encode(Null((instance, 0)))])
    for sender, instance in ((0, 5), (1, 5), (2, 1)):
        one.acknowledge(sender, instance)
    assert one.truncate((), Outbox()) == 3
    one.acknowledge(2, 4)
    assert one.truncate((), Outbox()) == 4


def test_a_restarted_member_begins_with_what_was_dropped():
    one, out = stream(), Outbox()
    one.decide(1, [value(0, 1, 1, 7, 1)])
    for sender in (0, 1, 2, 3, 4):
        one.acknowledge(sender, 1)
    one.truncate((), out)
    other = stream()
    other.restore({key: saved for key, saved, _ in out.changes if saved is not None})
    assert other.base == one.base


def casts() -> tuple[Casts, Deadlines]:
    deadlines = Deadlines({})
    return Casts(0, PERIOD, deadlines, lambda: 2, lambda cast, out: None), deadlines


def numbers(out: Outbox) -> list[int]:
    return [sent.number for to, sent, _ in out.sends if isinstance(sent, Cast) and to == (2,)]


def test_no_cast_leaves_before_its_life_is_on_disk():
    one, _ = casts()
    out = Outbox()
    one.begin(4, out)
    one.add(message(1), 10, 0, out)
    assert numbers(out) == []
    assert [(type(sent), durable) for _, sent, durable in out.sends] == [(Ready, True)]
    one.handlers[Ready].call(0, Ready(), 0, out)
    assert numbers(out) == [1]
    assert saved_life({key: value for key, value, _ in out.changes}) == 4
    with pytest.raises(PeerError):
        one.handlers[Ready].call(1, Ready(), 0, out)


def test_what_seems_lost_goes_again_in_order_and_little_at_a_time():
    one, deadlines = casts()
    one.begin(1, Outbox())
    one.handlers[Ready].call(0, Ready(), 0, Outbox())
    for k in range(100):
        one.add(message(k), 10, 0, Outbox())
    out = Outbox()
    deadlines.run(PERIOD, out)
    assert 0 < len(numbers(out)) < 20
    assert numbers(out) == list(range(1, len(numbers(out)) + 1))
    more = Outbox()
    one.forget((1, 3), PERIOD)
    one.send_more(more)
    assert numbers(more) == list(range(numbers(out)[-1] + 1, numbers(out)[-1] + 7)), "two for each that is decided"
    assert len(one) == 97


def test_more_is_decided_than_was_sent_again():
    """What seemed lost was only late."""
    one, deadlines = casts()
    one.begin(1, Outbox())
    one.handlers[Ready].call(0, Ready(), 0, Outbox())
    for k in range(30):
        one.add(message(k), 10, 0, Outbox())
    out, more = Outbox(), Outbox()
    deadlines.run(PERIOD, out)
    again = len(numbers(out))
    one.forget((1, again + 5), PERIOD)
    one.send_more(more)
    assert numbers(more)[0] == again + 6, "what is decided does not go again"
    assert numbers(more) == [*range(again + 6, again + 6 + len(numbers(more)))]


def test_a_decision_on_an_earlier_lifes_cast_is_none_on_this_lifes():
    one, _ = casts()
    one.begin(2, Outbox())
    one.add(message(1), 10, 0, Outbox())
    one.forget((1, 9), 0)
    assert message(1).id in one


def cast(number: int, rtc: int) -> Cast:
    return decode(value(0, 1, number, rtc))


def test_a_leader_goes_on_with_its_predecessors_casts_whatever_else_is_under_way():
    """The group is never idle: a periodic barrier is always about to be proposed, or to be decided."""
    one, proposed = stream(), []
    one.decide(1, [value(0, 1, 1, 1)])
    leader = BarrierLeader(one, 0, 100, proposed.append, announces=False)
    for number in (2, 3):
        leader.take_cast(cast(number, number), 50)  # the sender repeats what is still under way
    one.decide(2, [value(0, 1, number, number) for number in (2, 3, 4, 5)])
    leader.want(0, (60, 0))
    leader.take_cast(cast(6, 6), 50)
    one.decide(3, proposed)
    assert one.base.casts[0] == (1, 6)


@pytest.mark.parametrize("wait_us", [0, 20])
def test_casts_stay_in_order_although_the_leaders_clock_goes_back(wait_us: int):
    one, proposed = stream(), []
    leader = BarrierLeader(one, wait_us, 100, proposed.append, announces=False)
    for number, clock in ((1, 900), (2, 500), (3, 0)):
        leader.take_cast(cast(number, 2_000 + number), clock)
    leader.propose_due(0)
    assert [decode(one).rtc for one in proposed] == [1_000, 1_000, 2_003]
    one.decide(1, proposed)
    assert one.base.casts[0] == (1, 3)


def test_a_barrier_of_the_logs_own_time_does_not_wait_for_a_clock_that_was_set_back():
    one, proposed = stream(), []
    one.decide(1, [value(0, 1, 1, 500)])
    leader = BarrierLeader(one, 20, 1_000, proposed.append, announces=False)
    for stamp in ((500, 1), (501, 0)):
        leader.want(1, stamp)
    leader.propose_due(100)
    assert [msgspec.msgpack.decode(one, type=Null).stamp for one in proposed] == [(500, 1)]
    leader.propose_due(521)
    assert [msgspec.msgpack.decode(one, type=Null).stamp for one in proposed] == [(500, 1), (501, 0)]


def test_a_barrier_far_ahead_does_not_wait_for_a_clock_that_was_set_back():
    one, proposed = stream(), []
    leader = BarrierLeader(one, 20, 1_000, proposed.append, announces=False)
    for time in (1_100, 1_101):
        leader.want(1, (time, 0))
    leader.propose_due(100)
    assert proposed == []
    leader.propose_due(99)
    assert [msgspec.msgpack.decode(one, type=Null).stamp for one in proposed] == [(1_100, 0), (1_101, 0)]


def test_who_has_requested_barriers_for_its_first_stamp_needs_others_for_the_next_one():
    one = Stream(TWO, 0, (1,), announced=True)
    assert one.decide(1, [value(0, 1, 1, 7, 1)])[1] == {}
    assert one.decide(2, [value(1, 1, 1, 7, 1)])[1] == {1: (7, 1)}


def test_silence_is_broken_one_threshold_after_a_group_was_told_the_last_barrier():
    one, proposed = stream(), []
    leader = BarrierLeader(one, 0, 1_000, proposed.append, announces=False)
    leader.told = {0: 100, 1: 150}
    assert leader.break_silence(190, 100) == 10
    one.decide(1, [encode(Null((140, 0)))])  # the own group has its own last stamp
    leader.tells(1, (160, 0))
    leader.tells(1, (90, 0))
    assert leader.break_silence(239, 100) == 1
    assert proposed == []
    assert leader.break_silence(240, 100) == 20
    assert [msgspec.msgpack.decode(one, type=Null).stamp for one in proposed] == [(240, 0)]
    leader.tells(0, (240, 0))
    assert leader.break_silence(259, 100) == 1
    assert leader.break_silence(300, 100) == 40
    assert [msgspec.msgpack.decode(one, type=Null).stamp for one in proposed] == [(240, 0), (260, 0)]


def test_what_a_quorum_lacks_for_longer_than_a_period_is_overdue():
    one = stream()
    leader = BarrierLeader(one, 0, 1_000, [].append, announces=False)
    for instance, overdue in ((1, [False, True]), (2, [True, True])):
        one.decide(instance, [value(0, 1, instance, instance, 1)])
        assert [leader.overdue(1), leader.overdue(1)] == overdue
    for process in (3, 4):
        one.acknowledge(process, 2)
    assert not leader.overdue(1)


def test_who_announced_something_else_than_was_decided_announces_nothing_more():
    """A deposed leader that does not know it, and has fetched what another one had decided: what it goes on to say of
    what it knows as decided would make what it had announced count."""
    one, learner, ballot = stream(), RemoteLearner[object](2), Ballot(1, 0)
    leader = BarrierLeader(one, 0, 100, lambda value: None, announces=True)
    for announced in ([value(0, 1, 1, 10, 1)], [value(0, 1, 2, 20, 1)]):
        instance = one.base.instance + 1
        meant = leader.announce(instance, announced)
        assert (meant is not None) == (instance == 1)
        if meant is not None:
            assert not learner.tell(ballot, instance, one.base.instance, meant[1][1])
        decided = [value(1, 1, instance, 5, 1)]
        one.decide(instance, decided)
        assert not leader.was_announced(instance, decided)


def test_who_was_given_what_a_repair_does_not_contain_any_more_asks_for_the_rest_at_once() -> None:
    """A portion had come that began too late; the next one, which nobody had asked for, was waited for."""
    channels = Channels(
        1, TWO, (0, 1), DeliveredLog(3, TWO, 1, 0), PERIOD, Deadlines({}), lambda group: 3 * group, lambda: True
    )
    out = Outbox()
    channels.take(0, 0, Barrier((9, 0), 9), PERIOD, out)
    channels.take(0, 0, Repair(6, [Item((6, 0), message(6, 1))], (6, 0), 9, 6, True), PERIOD, out)
    channels.adopt([(0, 7, (7, 0))], [])
    channels.take(0, 0, Barrier((9, 0), 9), PERIOD + 1, out)
    assert [asked.received for _, asked, _ in out.sends if type(asked) is Ask] == [0, 7]


def test_what_comes_with_a_peers_state_is_saved_before_it_is_acknowledged() -> None:
    def member(values: dict[bytes, bytes]) -> Channels:
        log = DeliveredLog(3, TWO, 1, 0)
        made = Channels(1, TWO, (0, 1), log, PERIOD, Deadlines({}), lambda group: 3 * group, lambda: True)
        made.restore(values, Outbox())
        return made

    channels, out = member({}), Outbox()
    channels.adopt([(0, 7, (7, 0))], [(0, 7, Item((6, 0), message(7, 1)))])
    channels.tell_receipts(0, out)
    again = member({key: kept for key, kept, _ in out.changes if kept is not None})
    assert [pending.number for pending in again.waiting.items.values()] == [again.of[0].acked] == [7]
