"""How much is looked at, or sent, for one event: not the more, the more there is."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from multicast.parts.barriers import Ask, Item, Repair
from multicast.parts.channels import Channels, Pending, WaitingMessages
from multicast.parts.deadlines import Deadlines
from multicast.parts.delivered import DeliveredLog
from multicast.parts.group_log import Assign, Entry, GroupLog
from multicast.parts.options import GroupOptions
from multicast.parts.patience import Patience
from multicast.parts.paxos import Accept, Chosen, Fetch, Paxos
from multicast.parts.portions import one_by_one, portions
from multicast.parts.retries import Retries
from multicast.parts.sequence import Fetch as FetchOfT
from multicast.parts.sequence import Refill, Sequence
from multicast.parts.stamps import Stamp
from multicast.parts.stream import Stream
from multicast.parts.window import Window
from multicast.protocol import Outbox
from multicast.runtime import outgoing
from multicast.runtime.greeting import FRAME, encode_greeting
from multicast.types import AppMessage, Ballot, Timestamp, Topology
from multicast.wire import WIRE_VERSION, Welcome
from tests.multicast.test_runtime_links import Ears, FakeTransport

TWO = Topology.grid(2, 3)
FIRST = Ballot(1, 0)
MANY = 2_000


def message(number: int) -> AppMessage:
    return AppMessage(number.to_bytes(16, "big"), (0, 1), b"x" * 100, 0)


class Looked(dict[Any, Any]):
    """times: how many of its items were looked at one after the other, or taken out."""

    times = 0

    def values(self) -> Any:
        for value in super().values():
            self.times += 1
            yield value

    def __iter__(self) -> Iterator[Any]:
        for key in super().__iter__():
            self.times += 1
            yield key

    def pop(self, *args: Any) -> Any:
        self.times += 1
        return super().pop(*args)


def test_a_leader_that_fetches_deliveries_does_not_look_through_the_log_for_each() -> None:
    """A reign is prepared until they are there: with 100,000 unsettled messages each cost 4 ms."""
    log, out = GroupLog(DeliveredLog(0, TWO, 1, 0), False, Window(0)), Outbox()
    for n in range(MANY):
        log.assign(Assign(FIRST, Timestamp(n + 1, 0), message(n)), None, out)
    log.entries = entries = Looked(log.entries)
    assert not log.is_behind
    assert not entries.times
    later = Timestamp(MANY + 1, 0)
    log.delivered(log.install(message(MANY), later, later, out), out)
    assert log.is_behind
    log.assign(Assign(FIRST, later, message(MANY)), None, out)
    assert not log.is_behind
    log._add(Entry(message(MANY + 1), Timestamp(MANY + 2, 0), False)).settled = True
    assert log.is_behind
    log._mark_logged(log.entries[Timestamp(MANY + 2, 0)], out)
    assert not log.is_behind


def test_who_was_away_for_long_does_not_count_the_places_that_it_missed() -> None:
    """10 million of them took half a second, in which nothing else was done."""
    sequence = Sequence(0, lambda *of: True, 10)
    far = 100 * MANY
    for place in (3, far):
        sequence.expect(Stamp(place.to_bytes(16, "big"), place, place, FIRST))
    sequence._expected = expected = Looked(sequence._expected)
    sequence.extend(far)
    assert expected.times <= 4
    proposed = sequence.next()
    assert proposed is not None and proposed.place == far and sequence.waiting == 1


def test_a_repair_looks_at_what_it_sends() -> None:
    """100,000 messages that a group lacks were looked at for each portion of them: 14 ms."""
    looked = 0

    class Kept(deque[Item]):
        def __iter__(self) -> Iterator[Item]:
            nonlocal looked
            for n in range(len(self)):
                looked += 1
                yield self[n]

    stream = Stream(TWO, 0, (1,), announced=False)
    stream._outgoing[1] = Kept(Item((n + 1, 0), message(n)) for n in range(MANY))
    stream.base.numbers[1] = MANY
    stream.base.last = (MANY, 0)
    repair = stream.repair(1, 0, 1_000)
    assert (len(repair.items), repair.upto, repair.more) == (6, 6, True)
    assert looked == 7
    last = stream.repair(1, MANY - 6, 1_000)
    assert (len(last.items), last.upto, last.more, last.barrier) == (6, MANY, False, (MANY, 0))
    assert stream.repair(1, MANY, 1_000).items == []


def test_portions_are_made_one_by_one() -> None:
    def size(item: int) -> int:
        return item

    items = iter(range(100))
    assert next(one_by_one(items, size, 1_000)) == list(range(10)) and next(items) == 11
    assert list(one_by_one([], size, 1)) == portions([], size, 1) == [[]]


def test_the_last_waiting_message_is_known() -> None:
    """It is asked for with each question for a repair."""
    waiting, rng = WaitingMessages(), random.Random(1)
    waiting.items = items = Looked()
    there: set[Timestamp] = set()
    for n in range(MANY):
        if there and rng.random() < 0.45:
            there.discard(waiting.pop()[0])
        else:
            timestamp = Timestamp(rng.randrange(MANY), 0)
            waiting.add(timestamp, Pending(0, n, message(n), False))
            there.add(timestamp)
        assert not there or waiting.last == max(there)
    assert items.times < MANY  # those that were taken out


def test_ids_are_looked_through_when_some_may_be_forgotten() -> None:
    """They are remembered in so many places as a window has seconds: of a day 5 ms went by every 0.1 s."""
    second, log, out = 1_000_000, DeliveredLog(0, Topology.grid(1, 1), 100_000, 3_600_000_000), Outbox()
    for n in range(MANY):
        log.add(message(n).id, (0,), Timestamp(n * second + 1, 0), out)
    log._buckets = buckets = Looked(log._buckets)
    ticks = [8_000 * second + n * 100_000 for n in range(100)]
    for now in ticks:
        log._forget_old(now - 7_200_000_000, out)
    assert min(buckets) == 809
    assert buckets.times < 15 * MANY


def test_what_waits_is_not_sorted_when_it_is_hurried() -> None:
    """It waits in the order in which it came: with 100,000 messages each new leader of any group cost 0.1 s."""

    class Since(dict[Any, Any]):
        def __getitem__(self, key: Any) -> Any:
            raise AssertionError("one by one")

    retries: Retries[int] = Retries(100, random.Random(1))
    for n in range(MANY):
        retries.add(n, n)
    for now in range(MANY, 3 * MANY, 50):
        retries.due(now)
    for n in range(0, MANY, 2):
        retries.discard(n)
    retries._since = Since(retries._since)
    retries.hurry()
    retries._since = dict(retries._since)
    first = retries.due(3 * MANY)
    assert first == [*range(1, 2 * len(first), 2)] and first


def slow(part: Paxos, decided: int, portion: int, beats: int) -> int:
    """The answers to a member that lacks so many decisions, over a link that takes so many heartbeats for a portion of
    them. Returns how many portions it was sent."""
    link: deque[Chosen] = deque()
    sent = busy = 0
    for beat in range(1, 100 * decided):
        out = Outbox()
        if link and beat - busy >= beats:
            busy = beat
            part.on_message(0, link.popleft(), beat * part.heartbeat_us, out)
        part.tick(beat * part.heartbeat_us, out)
        for _, asked, _ in out.sends:
            if isinstance(asked, Fetch):
                if not link:
                    busy = beat
                last = min(decided, asked.first + portion - 1)
                batches = [[b"a"] for _ in range(asked.first, last + 1)]
                link.append(Chosen(asked.first, batches, decided, 1))
                sent += 1
        if part.decided == decided:
            return sent
    raise AssertionError(f"{part.decided} of {decided} are here, {len(link)} portions are under way")


@pytest.mark.parametrize(("beats", "most"), [(1, 12), (4, 15), (20, 30), (60, 45)])
def test_decisions_are_not_asked_for_again_while_they_come(beats: int, most: int) -> None:
    """In each heartbeat they were: of 40 MB over a link with 10 MB/s more was under way with every portion, until the
    queue overflowed."""
    part, out = Paxos(1, (0, 1), GroupOptions(election_timeout_us=10**12), random.Random(1)), Outbox()
    part.on_start({}, 0, out)
    part.on_message(0, Accept(FIRST, 101, [b"a"], 100), 0, out)
    assert slow(part, 100, 10, beats) <= most


def test_after_a_reset_it_is_asked_for_at_once() -> None:
    patience = Patience()
    asked = [turn for turn in range(200) if patience.asks()]
    assert asked == [0, 1, 3, 7, 15, 31, 63, 127]
    patience.comes()
    assert not patience.asks()
    patience.over()
    assert patience.asks() and patience.asks() and not patience.asks()


def test_a_part_of_t_is_not_asked_for_again_while_it_comes() -> None:
    """In each heartbeat it was, and all of it was sent."""
    follower, out = Sequence(0, lambda *of: True, 10), Outbox()
    for beat in range(60):
        follower.compare(0, FIRST, MANY, out)
        if beat % 5 == 4:
            follower.missing(0, Refill(number=beat // 5, count=13, epoch=FIRST, first=0, clock=1, length=MANY, reach=0,
                                       entries=[]))  # fmt: skip
    asked = [to for to, asked, _ in out.sends if isinstance(asked, FetchOfT)]
    assert 1 <= len(asked) <= 4
    follower.on_peer_reset(0)
    follower.compare(0, FIRST, MANY, out)
    assert len(out.sends) == len(asked) + 1


async def test_what_is_sent_again_is_made_ready_as_the_connection_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue of 200,000 frames held up the loop for 100 ms, whenever the peer came back."""
    packed = 0

    def pack(*header: int) -> bytes:
        nonlocal packed
        packed += 1
        return FRAME.pack(*header)

    out = Ears().links.outgoing[1]

    class Full(FakeTransport):
        def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
            pass

        def write(self, data: Any) -> None:
            super().write(data)
            if out.ready:
                out.pause_writing()

    monkeypatch.setattr(outgoing, "FRAME", SimpleNamespace(size=FRAME.size, pack=pack))
    frames = [b"%06d" % n * 50 for n in range(MANY)]
    for frame in frames:
        out.send(frame)
    transport = Full()
    out.connection_made(transport)
    transport.written = b""
    answer = encode_greeting(Welcome(WIRE_VERSION, 9, 0))
    out.get_buffer(-1)[: len(answer)] = answer
    out.buffer_updated(len(answer))
    assert 0 < packed <= outgoing.WRITE_BYTES // 300 + 1
    out.send(b"one more")
    while out._pending:
        out.resume_writing()
    whole = [*frames, b"one more"]
    assert transport.written == b"".join(FRAME.pack(len(f), n) + f for n, f in enumerate(whole, 1))
    out.abort("")


def repaired(lacking: int, portion: int, periods: int) -> tuple[int, int]:
    """A member of group 1 lacks so many messages of group 0, and is blocked by one of another group. Each link takes so
    many periods for a portion. Returns in how many periods it had all, and how many portions it was sent."""
    period, three = 1_000, Topology.grid(3, 1)
    source, deadlines = Stream(three, 0, (1,), announced=False), Deadlines({})
    source._outgoing[1] += [Item((n + 1, 0), message(n)) for n in range(lacking)]
    source.base.numbers[1], source.base.last = lacking, (lacking, 0)
    log = DeliveredLog(1, three, 1, 0)
    channels = Channels(1, three, (0, 1, 2), log, period, deadlines, lambda group: group, lambda: True)
    channels.receive(2, 1, Item((lacking, 0), message(lacking)))
    link: deque[Repair] = deque()
    sent = busy = 0
    for turn in range(1, 20 * lacking):
        now, out = turn * period, Outbox()
        if link and turn - busy >= periods:
            busy = turn
            channels.take(0, 0, link.popleft(), now, out)
        channels.watch(now)
        deadlines.run(now, out)
        for to, asked, _ in out.sends:
            if type(asked) is Ask and to == (0,):
                busy = busy if link else turn
                link.append(source.repair(1, asked.received, portion * 200 - 100))
                sent += 1
        if channels.of[0].received == lacking:
            return turn, sent
    raise AssertionError(f"{channels.of[0].received} of {lacking} are here, {len(link)} portions are under way")


@pytest.mark.parametrize(("periods", "most"), [(1, 12), (2, 14), (6, 20)])
def test_a_repair_is_not_asked_for_again_while_it_comes(periods: int, most: int) -> None:
    """Who was blocked asked in every period, and asked on for each copy of a portion that it had, too."""
    turns, sent = repaired(100, 10, periods)
    assert sent <= most
    assert turns <= most * periods + 5
