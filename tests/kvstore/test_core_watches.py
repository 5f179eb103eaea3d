"""Watches, at one replica: whom it asks, when it releases what it is told, and what it tells other replicas."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

import pytest

from kvstore.api.model import between
from kvstore.core import watches
from kvstore.core.bundles import last_version, version_of
from kvstore.core.changes import HOLD_US, Changes
from kvstore.core.messages import ChangesAfter, ChangesTold, Follow, Followed, Refused
from kvstore.core.peers import Peers
from kvstore.core.state import Changed
from kvstore.core.watches import LINGER_US, PACE_US, PROGRESS_US, RETRY_US, within
from kvstore.storage.backend import MemoryBackend
from kvstore.storage.store import Store
from multicast.application import ApplicationOutbox
from multicast.types import ZERO, Timestamp, Topology
from multicast.wire import APPLICATION, Codec
from tests.kvstore.one_replica import NOW, Bench, key, write

A, B, C = key(0), key(1), key(2)


def follow(bench: Bench, after: Timestamp | None, first: bytes = b"", end: bytes = b"", live: bool = False) -> None:
    bench.tokens += 1
    bench.replica.on_request(bench.tokens, Follow(after, first, end, live), bench.now, bench.out)


def asked(bench: Bench) -> dict[int, ChangesAfter]:
    """The last question to each replica since this was asked last."""
    return {to[0]: question for to, question in bench.sent(ChangesAfter)}


def tell(bench: Bench, replica: int, question: ChangesAfter, upto: Timestamp, *told: Changed) -> None:
    bench.hear(replica, ChangesTold(replica // 3, question.number, list(told), upto, upto))


def change(at: int, *keys: bytes) -> Changed:
    return Timestamp(NOW + at, 0), [(k, b"v") for k in keys]


def at(us: int) -> Timestamp:
    return Timestamp(NOW + us, 0)


def test_nothing_is_released_before_all_shards_have_passed_it() -> None:
    bench = Bench()
    bench.now += 10
    own = bench.deliver(write(A))
    follow(bench, ZERO)
    questions = asked(bench)
    tell(bench, 3, questions[3], at(50), change(5, B), change(30, B))
    assert bench.answers() == []
    tell(bench, 6, questions[6], at(20), change(15, C))
    first = version_of(own.timestamp, 0)
    assert bench.answers() == [Followed([change(5, B), (first, [(A, b"v")])], last_version(own.timestamp))]


def test_a_transaction_of_several_shards_is_told_as_one() -> None:
    bench = Bench()
    bench.deliver(write(A))
    follow(bench, ZERO)
    questions = asked(bench)
    bench.now += 100
    both = at(0)
    tell(bench, 3, questions[3], at(0), (both, [(B, b"1")]))
    tell(bench, 6, questions[6], at(0), (both, [(C, None)]))
    [answer] = bench.answers()
    assert isinstance(answer, Followed)
    assert answer.transactions == [(both, sorted([(B, b"1"), (C, None)]))]


def test_who_names_no_version_begins_where_all_shards_are_then() -> None:
    bench = Bench()
    bench.deliver(write(A))
    follow(bench, None)
    questions = asked(bench)
    tell(bench, 3, questions[3], at(70))
    tell(bench, 6, questions[6], at(5))
    assert bench.answers() == []
    bench.tick(PACE_US)
    questions = asked(bench)
    assert questions[6].wanted == at(70) and not questions[6].news
    [moves_own_shard_on] = bench.multicast()
    bench.order(moves_own_shard_on)
    tell(bench, 3, questions[3], at(70))
    tell(bench, 6, questions[6], at(90))
    [answer] = bench.answers()
    assert answer == Followed([], at(70))


def live(bench: Bench, first: bytes = b"") -> dict[int, ChangesAfter]:
    """A client that waits for what is new; what others are asked for him."""
    bench.deliver(write(A))
    here = bench.store.complete_to
    follow(bench, here, first, live=True)
    bench.tick()
    questions = asked(bench)
    assert bench.answers() == [] and all(question.news for question in questions.values())
    return questions


def test_news_of_one_shard_hurry_the_others() -> None:
    bench = Bench()
    questions = live(bench)
    new = change(1_000, B)
    tell(bench, 3, questions[3], new[0], new)
    again = asked(bench)[6]
    assert (again.wanted, again.news, again.number) == (new[0], False, questions[6].number)
    [moves_own_shard_on] = bench.multicast()
    bench.order(moves_own_shard_on, at=NOW + 2_000)
    tell(bench, 6, again, at(3_000))
    [answer] = bench.answers()
    assert answer == Followed([new], new[0])


def test_a_quiet_client_is_told_how_far_everything_was_told() -> None:
    bench = Bench()
    here = bench.store.complete_to
    live(bench, b"\xff")
    bench.tick(PROGRESS_US)
    [answer] = bench.answers()
    assert isinstance(answer, Followed) and answer.transactions == [] and answer.upto >= here


def test_who_does_not_answer_is_followed_by_another_replica() -> None:
    bench = Bench()
    live(bench)
    bench.tick(RETRY_US)
    assert {4, 7} <= set(asked(bench))


def test_who_falls_behind_the_buffer_is_told_so_and_may_begin_again() -> None:
    bench = Bench()
    bench.replica.watches.buffer_bytes_max = 1
    questions = live(bench)
    before = questions[3].after
    new = change(1_000, B)
    tell(bench, 3, questions[3], new[0], new)
    [moves_own_shard_on] = bench.multicast()
    bench.order(moves_own_shard_on, at=NOW + 2_000)
    tell(bench, 6, asked(bench)[6], at(3_000))
    [told] = bench.answers()
    assert isinstance(told, Refused) and (told.code, told.retryable) == ("lagged", True)
    follow(bench, before, live=True)
    [refused] = bench.answers()
    assert isinstance(refused, Refused) and refused.code == "lagged"
    follow(bench, before)
    questions = asked(bench)
    assert questions[3].after == before and not questions[3].news
    tell(bench, 3, questions[3], new[0], new)
    tell(bench, 6, questions[6], new[0])
    [answer] = bench.answers()
    assert answer == Followed([new], new[0])


def test_most_replicas_of_a_shard_must_have_compacted_what_is_asked_for() -> None:
    bench = Bench()
    bench.deliver(write(A))
    follow(bench, ZERO)
    number = asked(bench)[3].number
    bench.hear(3, ChangesTold(1, number, None, at(1), at(2)))
    [(others, question)] = bench.sent(ChangesAfter)
    assert others == (4, 5) and question.number == number, "at once, for some of them may be dead"
    assert bench.answers() == []
    bench.hear(5, ChangesTold(1, number, None, at(0), at(2)))
    [refused] = bench.answers()
    assert isinstance(refused, Refused) and refused.code == "compacted" and str(at(0)) in refused.message


def test_a_shard_that_has_stood_still_begins_where_others_still_know_what_follows() -> None:
    """Where nothing was written for ten minutes, and elsewhere there was, nobody could begin to watch."""
    bench = Bench()
    bench.deliver(write(A))
    follow(bench, None)
    number = asked(bench)[3].number
    bench.hear(3, ChangesTold(1, number, None, at(4_000), at(9_000)))
    bench.hear(5, ChangesTold(1, number, None, at(5_000), at(9_000)))
    questions = asked(bench)
    assert questions[3].number != number and (questions[3].after, questions[6].wanted) == (at(5_000), at(5_000))
    [moves_own_shard_on] = bench.multicast()
    here = last_version(bench.order(moves_own_shard_on, at=NOW + 9_000).timestamp)
    tell(bench, 3, questions[3], here)
    tell(bench, 6, questions[6], here)
    assert bench.answers() == [Followed([], here)]


def test_a_buffer_that_begins_anew_holds_nothing_from_before_its_own_shards_present() -> None:
    """Others know what follows an earlier version, and whoever goes on from there asks them."""
    bench = Bench()
    bench.deliver(write(A))
    follow(bench, None)
    number = asked(bench)[3].number
    bench.now += 10_000
    own = bench.deliver(write(A, value=b"new"))
    for replica in (3, 5):
        bench.hear(replica, ChangesTold(1, number, None, at(5_000), at(20_000)))
    asked(bench)
    follow(bench, at(7_000))
    questions = asked(bench)
    here = last_version(own.timestamp)
    for replica in (3, 6):
        tell(bench, replica, questions[replica], here, *([change(8_000, B)] if replica == 3 else []))
    first = version_of(own.timestamp, 0)
    assert bench.answers()[-1:] == [Followed([change(8_000, B), (first, [(A, b"new")])], here)]


def test_who_waits_for_what_is_compacted_is_told_so() -> None:
    bench = Bench()
    questions = live(bench)
    for replica in (3, 5):
        bench.hear(replica, ChangesTold(1, questions[3].number, None, at(5_000), at(9_000)))
    number = asked(bench)[3].number
    for replica in (3, 5):
        bench.hear(replica, ChangesTold(1, number, None, at(5_000), at(9_000)))
    [refused] = bench.answers()
    assert isinstance(refused, Refused) and refused.code == "compacted"


def test_after_a_beginning_anew_each_client_is_told_in_its_own_time() -> None:
    bench = Bench()
    bench.deliver(write(A))
    for _ in range(3):
        follow(bench, at(20_000), live=True)
        bench.tick(PROGRESS_US // 4)
    number = asked(bench)[3].number
    for replica in (3, 5):
        bench.hear(replica, ChangesTold(1, number, None, at(5_000), at(9_000)))
    assert asked(bench)[3].number != number and bench.answers() == []
    bench.tick(PROGRESS_US // 4)
    assert bench.answers() == [Followed([], at(20_000))], "the first one, whose time it is"
    bench.tick(PROGRESS_US // 4)
    assert bench.answers() == [Followed([], at(20_000))]


def test_who_is_no_member_of_its_group_asks_one_that_is() -> None:
    """It was removed, say, and a client watches there. Itself it would ask again and again: its word does not count."""
    bench = Bench(topology=Topology({0: (1,), 1: (3, 4, 5), 2: (6, 7, 8)}, {0: (0,)}))
    bench.deliver(write(A))
    follow(bench, ZERO)
    assert set(asked(bench)) == {1, 3, 6}


def test_nobody_watches_nobody_is_asked() -> None:
    bench = Bench()
    live(bench)
    bench.tick(PROGRESS_US)
    for _ in range(20):
        bench.tick(LINGER_US // 10)
    asked(bench)
    assert bench.tick(RETRY_US) is None and asked(bench) == {}


def question(after: Timestamp, wanted: Timestamp, news: bool) -> ChangesAfter:
    return ChangesAfter(1, after, wanted, news, b"", b"")


def told(bench: Bench) -> list[ChangesTold]:
    return [message for _, message in bench.sent(ChangesTold)]


def test_another_replica_is_told_news_when_there_are_some() -> None:
    bench = Bench()
    bench.deliver(write(A))
    here = bench.store.complete_to
    bench.hear(3, question(here, here, True))
    assert told(bench) == [] and bench.multicast() == []
    own = bench.deliver(write(A, value=b"new"))
    [answer] = told(bench)
    assert answer.transactions == [(version_of(own.timestamp, 0), [(A, b"new")])]
    assert answer.upto == answer.complete == last_version(own.timestamp)


def test_without_news_it_is_told_so_after_a_while() -> None:
    bench = Bench()
    here = bench.store.complete_to
    bench.hear(3, question(here, here, True))
    bench.tick(HOLD_US - 1)
    assert told(bench) == []
    bench.tick(1)
    assert [(answer.transactions, answer.upto) for answer in told(bench)] == [([], here)]


def test_a_quiet_shard_is_moved_on_to_where_it_is_wanted() -> None:
    bench = Bench()
    bench.deliver(write(A))
    wanted = at(1_000)
    bench.hear(3, question(bench.store.complete_to, wanted, False))
    [empty] = bench.multicast()
    assert told(bench) == []
    bench.order(empty, at=NOW + 2_000)
    [answer] = told(bench)
    assert answer.transactions == [] and answer.upto >= wanted


@pytest.mark.parametrize("limit", ["ANSWER_BYTES", "_LOOKED_MAX"])
def test_an_answer_that_does_not_tell_all_says_up_to_where_it_does(monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    monkeypatch.setattr(watches, limit, 1)
    released = [change(1, B), change(2, B), change(3, B)]
    assert watches.within(released, ZERO, b"", b"") == (released[:1], at(1))
    assert watches.within(released, at(2), b"", b"")[0] == released[2:]


class Looked(Sequence[Changed]):
    """Counts how often one of them is looked at."""

    def __init__(self, released: list[Changed]):
        self.times = 0
        self._released = released

    def __len__(self) -> int:
        return len(self._released)

    def __getitem__(self, index: Any) -> Any:
        self.times += 1
        return self._released[index]


def test_who_has_seen_nearly_all_of_the_buffer_costs_no_look_at_what_he_has_seen() -> None:
    released = Looked([change(n, B) for n in range(10_000)])
    assert watches.within(released, at(9_997), b"", b"") == ([change(9_998, B), change(9_999, B)], None)
    assert released.times < 20


def test_a_change_within_the_bounds_is_told_whatever_comes_before_them() -> None:
    bench = Bench()
    low, high = sorted((B, C))
    questions = live(bench, high)
    new = Timestamp(NOW + 1_000, 0), [(low, b"v"), (high, b"v")]
    tell(bench, 3, questions[3], new[0], new)
    tell(bench, 6, asked(bench)[6], new[0])
    bench.order(bench.multicast()[0], at=NOW + 2_000)
    assert bench.answers() == [Followed([(new[0], [(high, b"v")])], new[0])]


def test_what_leaves_the_buffer_makes_room() -> None:
    bench = Bench()
    bench.replica.watches.buffer_bytes_max = 1_000
    questions = live(bench)
    for number in range(1, 6):
        new = change(1_000 * number, B)
        tell(bench, 3, questions[3], new[0], new)
        tell(bench, 6, asked(bench)[6], new[0])
        bench.order(bench.multicast()[0], at=NOW + 1_000 * number + 1)
        bench.tick(PACE_US)
        questions = asked(bench)
    assert 0 < bench.replica.status()["watch_buffer_bytes"] <= 1_000 and bench.replica.watches.released == 5


def test_who_begins_does_not_wait_for_news() -> None:
    bench = Bench()
    news = live(bench)
    follow(bench, None)
    assert asked(bench)[3].number != news[3].number


def test_who_is_behind_is_followed_by_another_replica() -> None:
    bench = Bench()
    questions = live(bench)
    new = change(1_000, B)
    tell(bench, 3, questions[3], new[0], new)
    tell(bench, 6, asked(bench)[6], at(-1))
    bench.order(bench.multicast()[0], at=NOW + 2_000)
    bench.tick(PACE_US)
    assert {3, 7} <= asked(bench).keys()


def test_a_shard_that_was_added_meanwhile_is_asked_before_anything_is_released() -> None:
    bench = Bench(topology=Topology.grid(4, 3))
    peers = bench.replica.peers
    whole, peers.replicas = peers.replicas, {shard: peers.replicas[shard] for shard in range(3)}
    questions = live(bench)
    new = change(1_000, B)
    tell(bench, 3, questions[3], new[0], new)
    tell(bench, 6, asked(bench)[6], new[0])
    peers.replicas = whole
    bench.order(bench.multicast()[0], at=NOW + 2_000)
    assert bench.answers() == []
    tell(bench, 9, asked(bench)[9], new[0], (new[0], [(b"moved there", b"v")]))
    assert bench.answers() == [Followed([(new[0], sorted([*new[1], (b"moved there", b"v")]))], new[0])]


def test_a_shard_says_what_it_does_not_know_any_more() -> None:
    store = Store.open(MemoryBackend(), history_us=0)
    store.write(A, b"v", at(1))
    store.reached(1, at(1))
    changes, out = Changes(Peers(0, Topology.grid(1, 1), lambda shard: 0), store), ApplicationOutbox()
    told = changes.ask(0, ChangesAfter(1, ZERO, ZERO, False, b"", b""), NOW, out)
    assert told is not None and told.transactions is None and told.upto == store.complete_to > ZERO


@pytest.mark.parametrize("changes", [1, 20])
def test_the_buffer_takes_as_much_memory_as_it_says(changes: int) -> None:
    """As it comes over a link."""
    codec = Codec((), (ChangesTold,))
    bench = Bench(topology=Topology.grid(2, 3))
    bench.replica.watches.buffer_bytes_max = 1 << 30
    questions = live(bench)
    many = 4000 // changes
    new = [(Timestamp(NOW + 1_000 + n, n << 40), [(b"key-%d-%d" % (n, m), b"%040d" % m) for m in range(changes)])
           for n in range(many)]  # fmt: skip
    data = codec.encode(APPLICATION, ChangesTold(1, questions[3].number, new, new[-1][0], new[-1][0]))
    del new
    tracemalloc.start()
    try:
        _, told = codec.decode(data)
        bench.hear(3, told)
        [moves_own_shard_on] = bench.multicast()
        bench.order(moves_own_shard_on, at=NOW + 1_000_000)
        bench.answers()
        del told
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert bench.replica.watches.released == many
    assert 0.8 * taken < bench.replica.watches.buffer_bytes < 1.2 * taken


def test_a_transaction_of_many_keys_is_not_looked_at_whole_for_each_who_watches_one_of_them() -> None:
    """Where a range of ten thousand keys was deleted and five hundred watched one each, their replica stood still."""
    looked: list[bytes] = []
    keys = [b"%05d" % number for number in range(10_000)]
    released = [(Timestamp(1, 0), [(one, None) for one in keys])]

    def counted(change: tuple[bytes, bytes | None]) -> bytes:
        looked.append(change[0])
        return change[0]

    def counted_between(one: bytes, first: bytes, end: bytes) -> bool:
        looked.append(one)
        return between(one, first, end)

    with (
        patch("kvstore.core.watches._key", counted),
        patch("kvstore.core.watches.between", counted_between),
    ):
        for some in (keys[5000:5001], keys[:2], keys[-1:]):
            found, upto = within(released, ZERO, some[0], some[-1] + b"\0")
            assert (found, upto) == ([(Timestamp(1, 0), [(one, None) for one in some])], None)
        assert within(released, ZERO, b"a", b"") == within(released, ZERO, b"", b"0") == ([], None)
        assert within(released, ZERO, b"", b"")[0][0][1] is released[0][1]
    assert len(looked) < 200


def test_those_who_watch_the_same_are_looked_for_once() -> None:
    """A release of a thousand transactions took their replica a second where a thousand watched all of it."""
    bench, looks = Bench(), 0
    bench.deliver(write(A))
    at = last_version(bench.delivered[-1][0].timestamp)

    def counted(*arguments: Any) -> Any:
        nonlocal looks
        looks += 1
        return within(*arguments)

    for first in 50 * (b"", A):
        follow(bench, at, first, live=True)
    with patch("kvstore.core.watches.within", counted):
        bench.deliver(write(A))
        for _ in range(3):
            bench.tick(PACE_US)
            for replica, question in asked(bench).items():
                tell(bench, replica, question, Timestamp(bench.now + 1000, 0))
    answers = [answer for answer in bench.answers() if isinstance(answer, Followed)]
    assert len(answers) == 100 and {len(answer.transactions) for answer in answers} == {1} and looks == 2


def test_a_watch_goes_on_after_a_version_that_is_ahead_of_the_clock() -> None:
    """Most clocks were wrong when that was written, and are right by now."""
    bench = Bench()
    bench.now += 3_600_000_000
    own = bench.deliver(write(A))
    bench.now -= 3_600_000_000
    follow(bench, version_of(own.timestamp, 0))
    assert set(asked(bench)) == {3, 6} and bench.answers() == []


def test_what_is_too_large_for_a_message_is_not_told_to_others() -> None:
    """A transaction of a few kilobytes had appended to seventy large values: its replica ended when another shard asked
    for the change, and so did the next one that was asked."""
    bench = Bench()
    begin = version_of(bench.deliver(write(A)).timestamp, 0)
    small, large, after = [version_of(bench.deliver(write(A, value=size * b"v")).timestamp, 0) for size in (9, 999, 8)]
    told: list[ChangesTold] = []
    with patch("kvstore.core.changes.CHANGED_BYTES_MAX", 100):
        for number, version in enumerate((begin, small, large)):
            bench.hear(3, ChangesAfter(number, version, version, False, b"", b""))
            told += [one for _, one in bench.sent(ChangesTold)]
    complete_to = bench.store.complete_to
    assert told == [
        ChangesTold(0, 0, [(small, [(A, 9 * b"v")])], small, complete_to),
        ChangesTold(0, 1, None, large, complete_to),
        ChangesTold(0, 2, [(after, [(A, 8 * b"v")])], complete_to, complete_to),
    ]


@patch("kvstore.core.changes.CHANGED_BYTES_MAX", 100)
def test_what_is_too_large_in_all_shards_together_ends_a_watch() -> None:
    """All that came before it is told. The buffer does not hold it, so who waits for news has to ask again."""
    bench = Bench()
    bench.replica.watches.buffer_bytes_max = 100
    questions = live(bench)
    before, small, both = questions[3].after, change(1_000, B), at(2_000)
    told = {3: (small, (both, [(B, 60 * b"v")])), 6: ((both, [(C, 60 * b"v")]),)}
    tell(bench, 3, questions[3], both, *told[3])
    [moves_own_shard_on] = bench.multicast()
    here = last_version(bench.order(moves_own_shard_on, at=NOW + 4_000).timestamp)
    tell(bench, 6, asked(bench)[6], both, *told[6])
    answers = bench.answers()
    for after in (before, small[0]):
        follow(bench, after)
        for replica, question in asked(bench).items():
            tell(bench, replica, question, here, *[one for one in told[replica] if one[0] > after])
        answers += bench.answers()
    lagged, first, compacted = answers
    assert isinstance(lagged, Refused) and lagged.code == "lagged"
    assert first == Followed([small], small[0])
    assert isinstance(compacted, Refused) and compacted.code == "compacted" and str(both) in compacted.message
