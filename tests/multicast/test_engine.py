"""The engine: lanes, batches, recovery, catching up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from multicast import records, wire
from multicast.application import ApplicationOutbox
from multicast.batch import Batch
from multicast.engine import Engine
from multicast.protocol import Handler, Options, Outbox, PeerError, Saved
from multicast.records import JournalError, decode_body, scan
from multicast.types import AppMessage, Topology, new_message_id
from tests.multicast.scripted import Keeper, Memo, Note, Order, Scripted, changes

NOW = 1_700_000_000_000_000
TOPOLOGY = Topology({0: (0, 1, 2), 1: (3,)})


def message(number: int, payload: bytes = b"", *destinations: int) -> AppMessage:
    return AppMessage(new_message_id(NOW, number), destinations or (0,), payload or b"m%d" % number, 0)


def read(data: bytes) -> list[Any]:
    return [decode_body(f[1], f[2]) for f in scan(data, 0) if not isinstance(f, records.Damage)]


class Bench:
    """An engine whose journal the test keeps and whose batches it flushes when it likes."""

    def __init__(self, process: int = 0, auto: bool = True, options: Options | None = None, incarnation: int = 1):
        self.protocol = Scripted(process, TOPOLOGY, options)
        self.application = Keeper(auto)
        self.engine = Engine(self.protocol, self.application, incarnation)
        self.journal = b""
        self.released: list[tuple[int, str]] = []

    def start(self, journal: bytes = b"") -> Batch:
        """Recover from this journal, whose first byte has offset 0, and flush."""
        self.journal = journal
        tail = []
        at = 0
        for record in read(journal):
            at += len(records.encode_record(record))
            tail.append((at, record))
        batch = self.keep(self.engine.recover(tail, NOW))
        self.flush(batch)
        return batch

    def keep(self, batch: Batch) -> Batch:
        self.journal += batch.journal
        assert self.engine.recorder.offset == len(self.journal)
        self.note(batch.sends)
        return batch

    def note(self, sends: list[tuple[tuple[int, ...], bytes]]) -> None:
        for peers, data in sends:
            decoded = self.engine.codec.decode(data)[1]
            self.released += [(peer, getattr(decoded, "text", decoded)) for peer in peers]

    def run(self, script: Callable[[Outbox], None] | None = None, now: int = NOW) -> Batch:
        """One batch; in it, the protocol does what the script says."""
        if script is not None:
            self.protocol.script = script
            self.engine.submit(AppMessage(bytes(16), (), b"", self.engine.self_id))
        return self.keep(self.engine.run(now))

    def submit(self, *messages: AppMessage) -> Batch:
        for m in messages:
            self.engine.submit(m)
        return self.run()

    def flush(self, batch: Batch) -> Batch:
        """It is on disk: what the next turn of the engine makes of that."""
        self.engine.flushed(batch.number)
        return self.run()

    def receive(self, sender: int, *messages: Any, channel: int = wire.PROTOCOL) -> Batch:
        for m in messages:
            self.engine.receive(sender, self.engine.codec.encode(channel, m))
        return self.run()


@pytest.fixture
def bench() -> Bench:
    bench = Bench()
    bench.start()
    return bench


# -- the end of a batch -----------------------------------------------------------------------------------------------


class Marking(Scripted):
    """Delivers what it was given on a timer; `end_batch` saves how many were delivered. It counts its timers."""

    given: tuple[AppMessage, ...] = ()
    ticks = 0

    def on_tick(self, now: int, out: Outbox) -> int | None:
        given, self.given = self.given, ()
        for m in given:
            self._deliver(Order(self.number + 1, m), out)
        self.ticks += 1
        return now + self.ticks

    def end_batch(self, now: int, out: Outbox) -> None:
        out.put(b"mark", b"%d" % self.number)


def marks(batch: Batch) -> list[bytes]:
    return [value for key, value in changes(batch.journal) if key == b"mark" and value is not None]


def test_what_a_timer_delivers_is_followed_by_the_end_of_the_batch() -> None:
    """Or a power failure after this batch would leave a journal that disagrees with what is saved beside it."""
    protocol = Marking(0, TOPOLOGY)
    engine = Engine(protocol, Keeper(), 1)
    engine.recover([], NOW)
    protocol.given, protocol.ticks = (message(1), message(2)), 0
    batch = engine.run(NOW)
    assert engine.position == 2
    assert marks(batch)[-1] == b"2"
    assert (protocol.ticks, batch.wake_at) == (2, NOW + 2)  # it is asked again when it wants to wake up


def test_what_the_application_submits_on_a_timer_is_followed_by_the_end_of_the_batch() -> None:
    class Late(Keeper):
        submitted = False

        def on_tick(self, now: int, out: ApplicationOutbox) -> int | None:
            if not self.submitted:
                self.submitted = True
                out.submit(message(1))
            return None

    engine = Engine(Marking(0, TOPOLOGY), Late(), 1)
    assert marks(engine.recover([], NOW))[-1] == b"1"


def test_timers_that_never_come_to_rest_are_a_bug() -> None:
    class Restless(Scripted):
        def on_tick(self, now: int, out: Outbox) -> int | None:
            out.put(b"k", b"v")
            return None

    with pytest.raises(AssertionError, match="does not come to rest"):
        Engine(Restless(0, TOPOLOGY), Keeper(), 1).recover([], NOW)


# -- lanes ------------------------------------------------------------------------------------------------------------


def test_a_durable_message_waits_for_the_flush_of_what_was_put_before_it(bench: Bench) -> None:
    def script(out: Outbox) -> None:
        out.put(b"k", b"v")
        out.send_durable((1,), Note("vote"))

    batch = bench.run(script)
    assert bench.released == []
    bench.flush(batch)
    assert bench.released == [(1, "vote")]


def test_no_message_overtakes_a_waiting_one_to_the_same_peer(bench: Bench) -> None:
    def script(out: Outbox) -> None:
        out.send((1, 2), Note("first"))
        out.put(b"k", b"v")
        out.send_durable((1,), Note("vote"))
        out.send((1, 2), Note("after"))

    batch = bench.run(script)
    assert bench.released == [(1, "first"), (2, "first"), (2, "after")]
    later = bench.run(lambda out: out.send((1,), Note("later")))
    assert (1, "later") not in bench.released
    bench.flush(batch)
    bench.flush(later)
    assert [text for peer, text in bench.released if peer == 1] == ["first", "vote", "after", "later"]


def test_with_everything_on_disk_a_durable_message_leaves_at_once(bench: Bench) -> None:
    bench.engine._out.send_durable((1, 2), Note("vote"))
    batch = bench.run()
    assert batch.journal == b""
    assert not batch.urgent
    assert bench.released == [(1, "vote"), (2, "vote")]


@pytest.mark.parametrize("before", [True, False])
def test_what_a_flush_releases_leaves_once_with_the_next_run_or_before(bench: Bench, before: bool) -> None:
    def script(out: Outbox) -> None:
        out.put(b"k", b"v")
        out.send_durable((1,), Note("vote"))
        out.send_durable((0,), Note("own"))

    batch = bench.run(script)
    assert batch.urgent and bench.engine.idle and not bench.engine.released().sends
    assert bench.engine.flushed(batch.number) and not bench.engine.idle
    assert bench.released == [] and bench.protocol.heard == []
    if before:
        released = bench.engine.released()
        assert released.hurried and released.number == batch.number and not released.journal
        bench.note(released.sends)
        assert bench.released == [(1, "vote")] and bench.protocol.heard == []
    assert bench.run().hurried is not before
    assert bench.released == [(1, "vote")] and bench.protocol.heard == [(0, "own")]
    assert bench.run().sends == []


@pytest.mark.parametrize("can_wait", [True, False])
def test_a_flush_is_a_reason_to_run_unless_what_was_told_oneself_can_wait(bench: Bench, can_wait: bool) -> None:
    def script(out: Outbox) -> None:
        out.put(b"a", b"1")
        out.send_durable((0,), Note("own"))

    bench.protocol.handlers[Note] = Handler(lambda *_: None, can_wait=lambda note: can_wait)
    batch = bench.run(script)
    assert bench.engine.flushed(batch.number) is not can_wait
    bench.run()
    assert bench.protocol.heard == [(0, "own")]


def test_without_a_write_of_its_own_a_durable_message_waits_for_the_last_one(bench: Bench) -> None:
    writing = bench.run(lambda out: out.put(b"k", b"v"))
    assert not writing.urgent, "nobody waits for that yet"
    bench.engine._out.send_durable((1,), Note("vote"))
    silent = bench.run()
    assert silent.journal == b""
    assert silent.urgent
    assert bench.released == []
    bench.flush(writing)
    assert bench.released == [(1, "vote")]


def test_of_messages_to_oneself_only_the_durable_ones_wait_for_the_flush(bench: Bench) -> None:
    def script(out: Outbox) -> None:
        out.send((0,), Note("now"))
        out.put(b"k", b"v")
        out.send_durable((0, 1), Note("vote"))
        out.send((0, 1), Note("later"))

    batch = bench.run(script)
    assert bench.protocol.heard == [(0, "now"), (0, "later")]
    assert batch.sends == [], "to others nothing overtakes"
    bench.run()
    assert bench.protocol.heard == [(0, "now"), (0, "later")], "the vote is not on disk"
    after = bench.flush(batch)
    assert bench.protocol.heard == [(0, "now"), (0, "later"), (0, "vote")]
    assert [to for to, _ in after.sends] == [(1,), (1,)], "what was held leaves in the next turn's batch"


LANES = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.sets(st.integers(0, 2), min_size=1), st.booleans()),
        st.tuples(st.just("put"), st.none(), st.none()),
        st.tuples(st.just("run"), st.none(), st.none()),
        st.tuples(st.just("flush"), st.integers(1, 3), st.none()),
    ),
    max_size=60,
)


@given(LANES)
def test_lanes_keep_order_and_promises_whatever_happens(steps: list[tuple[str, Any, Any]]) -> None:
    bench = Bench()
    bench.start()
    sent: dict[int, list[str]] = {0: [], 1: [], 2: []}
    needs: dict[str, int] = {}
    durable: set[str] = set()
    free: set[str] = set()
    unflushed: list[int] = []
    flushed = last_put_batch = number = 0
    next_batch = bench.engine._batch.number

    def check() -> None:
        for peer in (1, 2):
            texts = [text for to, text in bench.released if to == peer]
            assert texts == sent[peer][: len(texts)]
        heard = [text for _, text in bench.protocol.heard]
        for lane in (durable, free):
            texts = [text for text in heard if text in lane]
            assert texts == [text for text in sent[0] if text in lane][: len(texts)]
        for text in [text for _, text in bench.released] + heard:
            assert needs.get(text, 0) <= flushed

    for kind, a, b in steps:
        out = bench.engine._out
        if kind == "send":
            number += 1
            text = f"n{number}"
            for peer in sorted(a):
                sent[peer].append(text)
            (durable if b else free).add(text)
            if b:
                needs[text] = last_put_batch
                out.send_durable(sorted(a), Note(text))
            else:
                out.send(sorted(a), Note(text))
        elif kind == "put":
            out.put(b"k", b"v%d" % number)
            last_put_batch = next_batch
        elif kind == "run" or not unflushed:
            batch = bench.run()
            if batch.journal:
                unflushed.append(batch.number)
            next_batch = batch.number + 1
        else:
            flushed = unflushed[min(a, len(unflushed)) - 1]
            del unflushed[: unflushed.index(flushed) + 1]
            bench.engine.flushed(flushed)
        check()
    for _ in range(3):
        batch = bench.run()
        flushed = batch.number
        bench.flush(batch)
    check()
    assert [t for p, t in bench.released if p == 1] == sent[1]
    assert [t for p, t in bench.released if p == 2] == sent[2]
    assert sorted(t for _, t in bench.protocol.heard) == sorted(sent[0])


# -- batches ----------------------------------------------------------------------------------------------------------


def test_a_batch_is_written_as_one_with_its_end_last(bench: Bench) -> None:
    batch = bench.submit(message(1), message(2))
    written = read(batch.journal)
    assert written[-1] == records.BatchEnd(batch.number)
    assert [r.position for r in written if isinstance(r, records.Delivered)] == [1, 2]
    assert [r.position for r in written if isinstance(r, records.Completed)] == [1, 2]
    assert [r.id for r in written if isinstance(r, records.Submitted)] == [message(1).id, message(2).id]
    assert sum(isinstance(r, records.BatchEnd) for r in written) == 1
    assert changes(batch.journal) == [(b"last", message(1).id), (b"last", message(2).id)]


def test_a_batch_without_effects_writes_nothing(bench: Bench) -> None:
    batch = bench.receive(1, Note("hello"))
    assert (batch.journal, batch.sends) == (b"", [])


def test_what_can_wait_is_no_reason_to_run_and_comes_in_its_turn(bench: Bench) -> None:
    bench.protocol.handlers[Note] = Handler(lambda *_: None, can_wait=lambda note: note.text.startswith("later"))
    encoded = [bench.engine.codec.encode(wire.PROTOCOL, Note(text)) for text in ("later", "now", "last")]
    assert [bench.engine.receive(1, data) for data in encoded] == [False, True, True]
    bench.run()
    assert bench.protocol.heard == [(1, "later"), (1, "now"), (1, "last")]


def test_what_can_wait_alone_cannot_wait_with_another(bench: Bench) -> None:
    bench.protocol.handlers[Note] = Handler(lambda *_: None, can_wait=lambda note: True)
    data = bench.engine.codec.encode(wire.PROTOCOL, Note("later"))
    assert [bench.engine.receive(1, data), bench.engine.receive(2, data)] == [False, True]


def test_a_batch_is_hurried_by_what_cannot_ride(bench: Bench) -> None:
    bench.protocol.handlers[Note] = Handler(lambda *_: None, can_ride=lambda note: note.text == "later")
    batches = [
        bench.run(lambda out, texts=texts: [out.send((1,), Note(text)) for text in texts])
        for texts in (["later"], ["later", "now"], ["later"])
    ]
    assert [len(batch.sends) for batch in batches] == [1, 2, 1]
    assert [batch.hurried for batch in batches] == [False, True, False]


def test_the_next_wake_up_is_told(bench: Bench) -> None:
    assert bench.run().wake_at is None
    bench.protocol.wake_at = NOW + 5
    assert bench.run().wake_at == NOW + 5


def test_a_peers_error_is_reported_and_the_rest_of_the_batch_goes_on(bench: Bench) -> None:
    batch = bench.receive(1, Note("one"), Note("bad"), Note("two"))
    assert [(peer, str(error)) for peer, error in batch.faulty] == [(1, "a bad note")]
    assert bench.protocol.heard == [(1, "one"), (1, "two")]


def test_our_own_bug_is_not_taken_for_a_peers_error(bench: Bench) -> None:
    with pytest.raises(ZeroDivisionError, match="our own bug"):
        bench.receive(1, Note("bug"))


def test_a_refused_message_reaches_the_application_and_not_the_journal(bench: Bench) -> None:
    batch = bench.submit(message(1, b"too much"))
    assert bench.application.refused == ["enough for now"]
    assert batch.journal == b""


def test_application_messages_have_their_own_vocabulary(bench: Bench) -> None:
    bench.receive(1, Memo("hello"), channel=wire.APPLICATION)
    assert bench.application.memos == [(1, "hello")]
    assert bench.protocol.heard == []


def test_answers_leave_with_the_batch(bench: Bench) -> None:
    bench.engine.request(77, message(1))
    assert bench.run().answers == [(77, 1)]


def test_stable_is_what_was_completed_when_the_flushed_batch_was_written(bench: Bench) -> None:
    bench.application.auto = False
    first = bench.submit(message(1))
    bench.engine._app_out.complete(1, b"r")
    bench.engine._drain(NOW)
    second = bench.submit(message(2))
    bench.flush(first)
    bench.run()
    assert bench.protocol.durable == []
    bench.flush(second)
    bench.run()
    assert bench.protocol.durable == [1]


def test_outcomes_come_in_order_without_gaps(bench: Bench) -> None:
    bench.application.auto = False
    bench.submit(message(1), message(2))
    bench.engine._app_out.complete(2, b"r")
    with pytest.raises(AssertionError, match="completed 2 after 0"):
        bench.run()
        bench.engine._drain(NOW)


def test_a_message_later_than_its_window_is_expired() -> None:
    bench = Bench(options=Options(clock="hybrid", dedup_window_us=1000))
    bench.start()
    created = new_message_id(0, 1)
    bench.protocol.number = 0
    bench.submit(AppMessage(created, (0,), b"fresh", 0))
    bench.protocol.number = 5000
    bench.submit(AppMessage(created, (0,), b"late", 0))
    assert bench.application.expired == [2]


def test_the_last_batch_says_that_the_life_ended_in_good_order(bench: Bench) -> None:
    bench.flush(bench.submit(message(1)))
    batch = bench.keep(bench.engine.stop(NOW + 7))
    assert read(batch.journal) == [records.Stopped(1, 1, NOW + 7), records.BatchEnd(batch.number)]


# -- the next life ----------------------------------------------------------------------------------------------------


def test_a_lost_disk_is_told_once_and_only_if_nothing_is_there() -> None:
    def saved(journal: list[tuple[int, Any]], lost: bool) -> tuple[bool, bool]:
        bench = Bench()
        bench.engine.recover(journal, NOW, lost)
        assert bench.protocol.saved is not None
        return bench.protocol.saved.first, bench.protocol.saved.lost

    marker = [(10, records.Put(b"lost", b"")), (20, records.BatchEnd(1))]
    assert saved([], False) == (True, False)
    assert saved([], True) == (False, True)
    assert saved(marker, True) == (False, False)


def test_a_first_life_is_told_so_and_says_who_it_is() -> None:
    bench = Bench()
    batch = bench.start()
    assert bench.protocol.saved is not None
    assert (bench.protocol.saved.first, bench.protocol.saved.values, bench.protocol.saved.position) == (True, {}, 0)
    assert read(batch.journal) == [
        records.Started(1, 0, 0, {0: (0, 1, 2), 1: (3,)}, "scripted", "fsync", NOW),
        records.BatchEnd(batch.number),
    ]


def test_the_next_life_finds_values_positions_and_outcomes(bench: Bench) -> None:
    bench.run(lambda out: out.put(b"a", b"1"))
    bench.run(lambda out: out.put(b"b", b"2"))
    bench.run(lambda out: out.delete(b"a"))
    bench.run(lambda out: out.put(b"b", b"3"))
    bench.submit(message(1), message(2))
    bench.application.auto = False
    bench.submit(message(3))
    again = Bench(auto=False, incarnation=2)
    again.start(bench.journal)
    assert again.protocol.saved is not None
    assert again.protocol.saved.values == {b"b": b"3", b"last": message(3).id}
    assert (again.protocol.saved.first, again.protocol.saved.position) == (False, 3)
    assert again.application.delivered == [(1, b"m1", b"done:m1"), (2, b"m2", b"done:m2"), (3, b"m3", None)]
    assert (again.engine.position, again.engine.completed) == (3, 2)
    assert [type(r) for r in read(again.journal[len(bench.journal) :])] == [records.Started, records.BatchEnd]


def test_an_outcome_found_only_now_is_written_now(bench: Bench) -> None:
    bench.application.auto = False
    bench.submit(message(1))
    again = Bench(auto=True, incarnation=2)
    batch = again.start(bench.journal)
    assert [type(r) for r in read(batch.journal)] == [records.Completed, records.Started, records.BatchEnd]


def test_a_gap_in_the_journal_is_refused(bench: Bench) -> None:
    bench.submit(message(1))
    without = len(bench.journal)
    bench.submit(message(2))
    third = len(bench.journal)
    bench.submit(message(3))
    with pytest.raises(JournalError, match="delivery 3 follows delivery 1 in the journal"):
        Bench().start(bench.journal[:without] + bench.journal[third:])


# -- catching up ------------------------------------------------------------------------------------------------------


def feed(source: Bench, peer: int, position: int, count: int) -> list[Any]:
    """What a host does with `Batch.reads`, `count` deliveries at a time: messages for the peer."""
    written = read(source.journal)
    outcomes = {r.position: r.record for r in written if isinstance(r, records.Completed)}
    items = [r for r in written if isinstance(r, records.Delivered) and r.position >= position]
    some = [(d, outcomes.get(d.position)) for d in items[:count]]
    source.engine.found(peer, wire.CatchUpReply(some, len(items) > count))
    return [source.engine.codec.decode(d)[1] for _, d in source.engine.run(NOW).sends]


def test_a_process_that_missed_deliveries_gets_them_from_a_peers_journal() -> None:
    leader, follower = Bench(0), Bench(1)
    leader.start()
    follower.start()
    for number in range(1, 8):
        leader.flush(leader.submit(message(number)))
    follower.receive(0, Order(8, message(8)))
    requests = [m for p, m in follower.released if isinstance(m, wire.CatchUpRequest)]
    rounds = 0
    while requests:
        batch = leader.receive(1, requests.pop(), channel=wire.HOST)
        ((peer, position),) = batch.reads
        follower.released.clear()
        follower.receive(0, *feed(leader, peer, position, 3), channel=wire.HOST)
        requests += [m for p, m in follower.released if isinstance(m, wire.CatchUpRequest)]
        rounds += 1
    assert rounds == 3
    assert follower.protocol.installed == list(range(1, 8))
    assert [(p, m) for p, m, _ in follower.application.delivered] == [(n, b"m%d" % n) for n in range(1, 8)]
    assert all(c == b"done:" + m for _, m, c in follower.application.delivered)
    written = read(follower.journal)
    assert [r.installed_from for r in written if isinstance(r, records.Delivered)] == [0] * 7
    follower.receive(0, Order(8, message(8)))
    assert follower.engine.position == 8


def test_what_comes_after_a_missing_delivery_is_not_installed_in_its_place() -> None:
    leader, follower = Bench(0), Bench(1)
    leader.start()
    follower.start()
    leader.flush(leader.submit(message(1), message(2), message(3)))
    follower.receive(0, Order(1, message(1)))
    follower.receive(0, *feed(leader, 1, 3, 10), channel=wire.HOST)
    assert follower.engine.position == 1 and not follower.protocol.installed


def test_what_a_process_has_already_is_not_installed_again() -> None:
    leader, follower = Bench(0), Bench(1)
    leader.start()
    follower.start()
    leader.flush(leader.submit(message(1), message(2)))
    follower.receive(0, Order(1, message(1)))
    follower.receive(0, *feed(leader, 1, 1, 10), channel=wire.HOST)
    assert follower.protocol.installed == [2]
    assert [p for p, _, _ in follower.application.delivered] == [1, 2]


def seven_behind() -> tuple[Bench, wire.CatchUpReply]:
    """A follower that has asked for what it misses, and the first part of the answer."""
    leader, follower = Bench(0), Bench(1)
    leader.start()
    follower.start()
    for number in range(1, 8):
        leader.flush(leader.submit(message(number)))
    follower.receive(0, Order(9, message(9)))
    (answer,) = feed(leader, 1, 1, 3)
    return follower, answer


def test_an_answer_that_comes_twice_asks_for_nothing_more() -> None:
    """What takes longer than one waits is asked for again; for each answer that comes one asks for what follows."""
    follower, answer = seven_behind()
    follower.released.clear()
    follower.receive(0, answer, answer, answer, channel=wire.HOST)
    assert follower.engine.position == 3 and asked(follower) == [0]
    follower.receive(0, wire.CatchUpReply([], False), channel=wire.HOST)
    follower.receive(0, Order(9, message(9)))
    assert asked(follower) == [0, 0], "there was nothing more, and now there may be"


def test_an_answer_that_says_nothing_new_any_more_is_one_all_the_same() -> None:
    """Who asks once more meanwhile is not asked twice: what it lacks is to follow on the answer."""
    follower, answer = seven_behind()
    follower.receive(0, *[Order(number, message(number)) for number in range(1, 5)], Order(9, message(9)))
    assert asked(follower) == [0]
    follower.receive(0, answer, channel=wire.HOST)
    assert follower.released[-1] == (0, wire.CatchUpRequest(5))


def asked(bench: Bench) -> list[int]:
    """Of whom deliveries have been asked, in order."""
    return [p for p, m in bench.released if isinstance(m, wire.CatchUpRequest)]


def test_nobody_waits_for_deliveries_from_a_peer_whose_link_breaks_or_forgets() -> None:
    follower = Bench(1)
    follower.start()
    follower.receive(0, Order(8, message(8)))
    assert follower.engine.connected(2, up=False) and follower.engine.connected(0, up=False)
    assert not follower.engine.connected(0, up=False), "it is known"
    follower.run()
    assert asked(follower) == [0]  # nobody else is there, and the link keeps the question
    follower.engine.connected(0, up=True)
    follower.engine.peer_reset(0)
    follower.run()
    assert asked(follower) == [0, 0]
    follower.engine.connected(2, up=True)
    assert follower.engine.connected(0, up=False)
    follower.run()
    assert asked(follower) == [0, 0, 2]


def test_deliveries_are_asked_of_those_who_are_connected() -> None:
    follower = Bench(1)
    follower.start()
    follower.engine.connected(0, up=False)
    follower.receive(0, Order(8, message(8)))
    assert asked(follower) == [2]


def test_catching_up_is_a_matter_inside_a_group(bench: Bench) -> None:
    batch = bench.receive(3, wire.CatchUpRequest(1), channel=wire.HOST)
    assert [(p, str(error)) for p, error in batch.faulty] == [(3, "catch-up is a matter inside a group")]
    assert batch.reads == []


# -- bytes of a peer --------------------------------------------------------------------------------------------------


def test_a_sign_of_life_does_not_wait_behind_what_waits_for_the_disk() -> None:
    class Alive(Note, array_like=True, tag=3):
        overtakes = True

    class Lively(Scripted):
        specification = msgspec.structs.replace(Scripted.specification, messages=(Note, Order, Alive))

    engine = Engine(Lively(0, TOPOLOGY), Keeper(), 1)
    engine.recover([], NOW)

    def script(out: Outbox) -> None:
        out.put(b"k", b"v")
        out.send_durable([1], Note("vote"))
        out.send([1], Note("later"))
        out.send([1], Alive("here"))

    engine.protocol.script = script  # type: ignore[attr-defined]
    engine.submit(AppMessage(b"m" * 16, (), b"", 0))
    batch = engine.run(NOW)
    assert [engine.codec.decode(data)[1].text for _, data in batch.sends] == ["here"]
    engine.flushed(batch.number)
    assert [engine.codec.decode(data)[1].text for _, data in engine.run(NOW).sends] == ["vote", "later"]


def test_timers_start_when_everything_is_replayed() -> None:
    clock = iter([NOW + 9_000_000])
    started: list[int] = []

    class Timed(Scripted):
        def on_start(self, saved: Saved, now: int, out: Outbox) -> None:
            started.append(now)

        def on_tick(self, now: int, out: Outbox) -> int:
            started.append(now)
            return now + 1

    batch = Engine(Timed(0, TOPOLOGY), Keeper(), 1).recover(iter([]), NOW, clock=lambda: next(clock))
    assert set(started) == {NOW + 9_000_000} and batch.wake_at == NOW + 9_000_001


@given(st.binary(max_size=40))
def test_bytes_of_a_peer_are_a_message_or_a_peers_error(data: bytes) -> None:
    bench = Bench()
    bench.start()
    try:
        channel, decoded = bench.engine.codec.decode(data)
    except PeerError as error:
        assert str(error)
    else:
        assert bench.engine.codec.decode(bench.engine.codec.encode(channel, decoded)) == (channel, decoded)
