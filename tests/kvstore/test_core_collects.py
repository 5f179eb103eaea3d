"""Reads of several shards, at the replica where they enter: what is asked of each, and what makes one answer of it."""

from __future__ import annotations

from typing import Any
from unittest.mock import MagicMock, patch

import msgspec
import pytest

from kvstore.api.model import Get, KeyValue, Move, OperationResult, Range, Transaction
from kvstore.api.shard_map import PlacedRun, slot_of
from kvstore.core.audit import APPLIED, Given, MovedRow
from kvstore.core.bundles import NO_ID
from kvstore.core.collects import COLLECTS_MAX, FIRST_BYTES, UNDER_WAY_BYTES
from kvstore.core.messages import Answered, ReadAt, ReadAtTold, ReadNow, ReadNowTold, Refused, Vote
from kvstore.core.positions import WAIT_US_MAX
from kvstore.core.versions import RETRY_US
from multicast.types import ZERO, Timestamp
from tests.kvstore.one_replica import NOW, Bench, key

B, C = key(1), key(2)
BOTH = Transaction(success=(Get(B), Get(C)))


def at(time: int) -> Timestamp:
    return Timestamp(NOW + time, 0)


def row(k: bytes, time: int) -> OperationResult:
    return OperationResult(found=KeyValue(k, b"v", at(time)))


def found(shard: int, number: int, position: int, *results: tuple[int, OperationResult], **more: Any) -> ReadNowTold:
    """What a replica of this shard says after `position` deliveries, each a microsecond after the one before."""
    version = at(position)
    digest = bytes([len(results)]) + b"".join(str(result).encode() for _, result in results)
    values = {"seen": version, "oldest": ZERO, "deleted_at": 0, **more}
    return ReadNowTold(shard, number, position, version, digest=digest, results=list(results), **values)


def asked(bench: Bench) -> dict[int, ReadNow]:
    """Shard -> what one of its replicas is asked."""
    return {bench.topology.group_of[to]: message for (to,), message in bench.sent(ReadNow)}


def tell(bench: Bench, message: ReadNowTold) -> None:
    bench.hear(bench.topology.groups[message.shard][0], message)


def round_of(bench: Bench, *results: tuple[int, OperationResult], position: int = 9, **more: Any) -> None:
    """Shards 1 and 2 answer: each the result of its operation."""
    questions = asked(bench)
    assert set(questions) == {1, 2}
    for index, shard in enumerate((1, 2)):
        tell(bench, found(shard, questions[shard].number, position, results[index], **more))


def test_a_read_of_another_shard_is_what_one_of_its_replicas_says() -> None:
    bench = Bench()
    bench.request(Transaction(success=(Get(B),)), NO_ID)
    (question,) = asked(bench).values()
    tell(bench, found(1, question.number, 9, (0, row(B, 7))))
    (answer,) = bench.answers()
    assert isinstance(answer, Answered) and (answer.shard, answer.position) == (1, 9)
    assert answer.result.results == (row(B, 7),) and bench.multicast() == []


def test_what_came_with_a_slot_and_went_with_it_counts_as_deleted() -> None:
    """Who looks twice, each time while it is elsewhere, is told the same."""
    bench, slot = Bench(3), slot_of(key(0))
    told: list[ReadNowTold] = []
    for number, way in ((1, (0, 1)), (2, (1, 0))):
        bench.hear(0, ReadNow(number, Transaction(success=(Range(b"k", 9),)), None))
        told += [one for _, one in bench.sent(ReadNowTold)]
        step = bench.deliver(Transaction(success=(Move(*way, ((slot, slot),)),)))
        row = MovedRow(key(0), at(1), b"v", at(1))
        given = Given([row], [], b"", b"", True, True, [], ((slot, slot),))
        bench.part(0, step, *([Vote(given=given)] if way == (0, 1) else []))
    bench.hear(0, ReadNow(3, Transaction(success=(Range(b"k", 9),)), None))
    ((_, last),) = bench.sent(ReadNowTold)
    assert bench.statuses() == [APPLIED, APPLIED]
    assert told[0].digest == last.digest != told[1].digest and last.deleted_at > told[0].position


def test_what_two_rounds_find_alike_held_in_between() -> None:
    bench = Bench()
    bench.request(BOTH, NO_ID)
    for position in (9, 12):
        assert bench.answers() == []
        round_of(bench, (0, row(B, 7)), (1, row(C, 8)), position=position)
    (answer,) = bench.answers()
    assert isinstance(answer, Answered) and answer.places == ((1, 9), (2, 9))
    assert answer.result.results == (row(B, 7), row(C, 8)) and bench.multicast() == []


@pytest.mark.parametrize(("oldest", "ordered"), [(3, False), (4, True), (9, False)])
def test_a_read_whose_version_is_forgotten_already_is_ordered(oldest: int, ordered: bool) -> None:
    """Shard 2 has stood still since 3; shard 1 is at 9, and knows what stood since `oldest`: 9, if it keeps nothing."""
    bench = Bench()
    bench.request(BOTH, NO_ID)
    for _ in range(1 if ordered else 2):
        questions = asked(bench)
        tell(bench, found(1, questions[1].number, 9, (0, row(B, 7)), oldest=at(oldest)))
        tell(bench, found(2, questions[2].number, 3, (1, row(C, 2)), oldest=ZERO))
    if ordered:
        assert bench.answers() == [] and len(bench.multicast()) == 1
    else:
        (answer,) = bench.answers()
        assert isinstance(answer, Answered) and answer.result.version == at(3) and bench.multicast() == []


def test_the_second_round_brings_only_what_is_new() -> None:
    bench = Bench()
    bench.request(BOTH, NO_ID)
    round_of(bench, (0, row(B, 7)), (1, row(C, 8)))
    for shard, question in asked(bench).items():
        assert question.known
        same = found(shard, question.number, 10, (shard - 1, row((B, C)[shard - 1], 6 + shard)))
        assert same.digest == question.known
        same.results = None
        tell(bench, same)
    (answer,) = bench.answers()
    assert isinstance(answer, Answered) and answer.result.results == (row(B, 7), row(C, 8))


def test_after_some_differences_the_read_is_ordered() -> None:
    bench = Bench()
    bench.request(BOTH, NO_ID)
    for time in range(COLLECTS_MAX + 1):
        assert bench.multicast() == []
        round_of(bench, (0, row(B, time)), (1, row(C, 8)))
    (message,) = bench.multicast()
    assert message.destinations == (1, 2)


def test_what_stands_nowhere_must_not_have_been_deleted_in_between() -> None:
    bench = Bench()
    bench.request(BOTH, NO_ID)
    nothing = (0, OperationResult()), (1, OperationResult())
    round_of(bench, *nothing)
    round_of(bench, *nothing, position=12, deleted_at=11)
    assert bench.answers() == []
    round_of(bench, *nothing, position=13, deleted_at=11)
    assert len(bench.answers()) == 1


def test_late_answers_to_the_first_round_are_not_taken_for_the_second() -> None:
    bench = Bench()
    bench.request(BOTH, NO_ID)
    first = asked(bench)
    for _ in range(2):
        for shard, question in first.items():
            tell(bench, found(shard, question.number, 9, (shard - 1, row((B, C)[shard - 1], 7))))
    assert bench.answers() == []


RANGE = Transaction(success=(Range(b"k", 9),))


def some(shard: int, more: bool = False) -> tuple[int, OperationResult]:
    entry = KeyValue(key(shard), b"v", at(shard))
    return 0, OperationResult(entries=(entry,), more=more)


def test_a_range_of_all_shards_is_collected_twice_like_keys() -> None:
    bench = Bench()
    bench.request(RANGE, NO_ID)
    for _ in range(2):
        for shard, question in asked(bench).items():
            tell(bench, found(shard, question.number, 10 + shard, some(shard)))
    (answer,) = bench.answers()
    assert isinstance(answer, Answered) and len(answer.result.results[0].entries) == 3
    assert answer.result.version == at(10)  # of the shard that has come least far


def test_a_page_that_is_followed_by_others_is_ordered_and_the_first_keys_of_a_range_are_not() -> None:
    bench = Bench()
    bench.request(RANGE, NO_ID, paged=True)
    for shard, question in asked(bench).items():
        tell(bench, found(shard, question.number, 10 + shard, some(shard, more=True)))
    (message,) = bench.multicast()
    assert message.destinations == (0, 1, 2)
    bench = Bench()
    bench.request(RANGE, NO_ID)
    for _ in range(2):
        for shard, question in asked(bench).items():
            tell(bench, found(shard, question.number, 10 + shard, some(shard, more=True)))
    (answer,) = bench.answers()
    assert isinstance(answer, Answered) and answer.result.results[0].more


def test_a_stale_range_is_read_at_the_last_version_that_any_shard_has_completed() -> None:
    bench = Bench()
    bench.request(RANGE, NO_ID, consistency="stale", age_us=5)
    questions = asked(bench)
    assert set(questions) == {0, 1, 2} and all(q.whence and q.age_us == 5 for q in questions.values())
    for shard, question in questions.items():
        tell(bench, found(shard, question.number, 10 + shard))
    assert {message.version for _, message in bench.sent(ReadAt)} == {at(12)}


def test_what_nobody_tells_because_it_is_moving_is_ordered() -> None:
    bench = Bench()
    bench.request(BOTH, NO_ID, consistency="stale", age_us=5)
    for shard, question in asked(bench).items():
        tell(bench, found(shard, question.number, 10, *([(0, row(B, 7))] if shard == 1 else [])))
    (message,) = bench.multicast()
    assert message.destinations == (1, 2)


def test_a_snapshot_is_of_the_last_version_that_all_have_completed_unless_somebody_has_forgotten_it() -> None:
    for oldest, version in ((ZERO, at(10)), (at(11), at(11))):
        bench = Bench()
        bench.request(BOTH, NO_ID, consistency="snapshot")
        questions = asked(bench)
        assert all(question.age_us is None for question in questions.values())
        tell(bench, found(1, questions[1].number, 10))
        tell(bench, found(2, questions[2].number, 12, oldest=oldest))
        assert {message.version for _, message in bench.sent(ReadAt)} == {version}


def test_what_is_compacted_meanwhile_is_ordered() -> None:
    bench = Bench()
    bench.request(BOTH, NO_ID, consistency="snapshot")
    for shard, question in asked(bench).items():
        tell(bench, found(shard, question.number, 10))
    (_, question), _ = bench.sent(ReadAt)
    for replica in (3, 4):
        bench.hear(replica, ReadAtTold(1, question.number, None, at(11)))
    (message,) = bench.multicast()
    assert message.destinations == (1, 2) and bench.answers() == []


def test_stale_reads_take_each_shard_by_itself() -> None:
    bench = Bench()
    bench.request(BOTH, NO_ID, consistency="stale", age_us=5)
    round_of(bench, (0, row(B, 7)), (1, row(C, 8)))
    (answer,) = bench.answers()
    assert isinstance(answer, Answered) and answer.places == ((1, 9), (2, 9))


def test_who_is_silent_is_followed_by_the_next_replica_and_at_last_by_a_refusal() -> None:
    bench = Bench()
    bench.request(Transaction(success=(Get(B),)), NO_ID)
    first = bench.sent(ReadNow)[0][0]
    bench.tick(RETRY_US)
    assert bench.sent(ReadNow)[0][0] != first
    bench.tick(WAIT_US_MAX)
    (refused,) = bench.answers()
    assert isinstance(refused, Refused) and (refused.code, refused.outcome) == ("timeout", "not_applied")


@pytest.mark.parametrize("code", ["no_majority"])
def test_a_shard_that_can_take_nothing_is_named(code: str) -> None:
    bench = Bench()
    bench.replica.shards.trouble = lambda shard, now: f"shard {shard} has no leader" if shard == 0 else ""  # type: ignore
    bench.request(Transaction(success=(Get(key(0)),)), NO_ID)
    bench.multicast()
    bench.tick()
    (refused,) = bench.answers()
    assert isinstance(refused, Refused) and refused.code == code


def test_what_a_shard_will_not_tell_any_more_is_not_told_from_the_round_before() -> None:
    """Its answer is too large now, or the right to it was taken back."""
    bench = Bench()
    bench.request(BOTH, NO_ID)
    round_of(bench, (0, row(B, 7)), (1, row(C, 8)))
    questions = asked(bench)
    refused = found(1, questions[1].number, 12, (0, row(B, 11)))
    refused.results = None
    tell(bench, refused)
    tell(bench, found(2, questions[2].number, 12, (1, row(C, 8))))
    assert bench.answers() == [] and len(bench.multicast()) == 1


def test_a_range_of_which_a_slot_has_gone_elsewhere_is_ordered() -> None:
    bench = Bench()
    bench.request(Transaction(success=(Range(b"k", 100),)), NO_ID, consistency="stale", age_us=0)
    gone = [PlacedRun(slot_of(B), slot_of(B), 9, at(5))]
    for shard, question in asked(bench).items():
        told = found(shard, question.number, 9, (0, OperationResult()))
        told.places = gone if shard == 1 else []
        tell(bench, told)
    assert bench.answers() == [] and [message.destinations for message in bench.multicast()] == [(0, 1, 2)]


def test_who_waits_is_looked_at_when_somebody_is_to_be_asked_again_and_not_in_every_batch() -> None:
    bench = Bench()
    for _ in range(3):
        bench.request(BOTH, NO_ID)
    bench.tick()
    collects = bench.replica.collects
    bench.sent(ReadNow)
    with patch.object(collects, "_collects", MagicMock(wraps=collects._collects)) as looked:
        assert collects.on_tick(bench.now + RETRY_US - 1, bench.out) == bench.now + RETRY_US
        looked.items.assert_not_called()
    bench.now += RETRY_US // 2
    bench.request(BOTH, NO_ID)
    assert bench.tick(RETRY_US // 2) is not None and len(bench.sent(ReadNow)) == 2 * 4
    assert bench.tick(RETRY_US // 2) is not None and len(bench.sent(ReadNow)) == 2


MANY, VALUE = 300, bytes(1024 * 1024)


def many(bench: Bench, k: bytes = B) -> list[ReadNow]:
    """What is asked at once of a shard from which so many read."""
    for _ in range(MANY):
        bench.request(Transaction(success=(Get(k),)), NO_ID)
    return [message for _, message in bench.sent(ReadNow)]


def test_large_values_are_not_asked_for_all_at_once() -> None:
    """It would take their shard longer than it may stand still, and what came late be asked for again."""
    bench = Bench()
    under_way, most, answered = many(bench), 0, 0
    assert len(under_way) == UNDER_WAY_BYTES // FIRST_BYTES
    large = found(1, 0, 9, (0, row(B, 7)))
    large.results = [(0, OperationResult(found=KeyValue(B, VALUE, at(7))))]
    while under_way:
        tell(bench, msgspec.structs.replace(large, number=under_way.pop(0).number))
        answered += len(bench.answers())
        under_way += [message for _, message in bench.sent(ReadNow)]
        if answered > MANY // 2:
            most = max(most, len(under_way))
    assert answered == MANY and len(bench.replica.collects) == 0
    assert most * len(VALUE) <= 2 * UNDER_WAY_BYTES
    tell_small = found(1, many(bench)[0].number, 9, (0, row(B, 7)))
    tell(bench, tell_small)
    assert len(bench.answers()) == 1


def test_small_ones_are() -> None:
    bench = Bench()
    for question in many(bench):
        tell(bench, found(1, question.number, 9, (0, row(B, 7))))
    assert len(bench.answers()) == UNDER_WAY_BYTES // FIRST_BYTES
    bench.sent(ReadNow)
    assert len(many(bench)) == MANY


def test_those_of_a_shard_that_is_silent_hold_up_no_others_and_end_in_their_time() -> None:
    bench = Bench()
    asked_first = len(many(bench))
    assert asked_first < MANY and len(many(bench, C)) == asked_first
    for _ in range(2):
        bench.tick(WAIT_US_MAX)
    refused = bench.answers()
    assert len(refused) == 2 * MANY and {one.code for one in refused if isinstance(one, Refused)} == {"timeout"}
    assert len(bench.replica.collects) == 0 and len(many(bench)) == asked_first


def test_for_clients_that_have_gone_nothing_more_is_asked() -> None:
    bench = Bench()
    silent, *under_way = many(bench)
    for token in range(bench.tokens - MANY + 1, bench.tokens + 1):
        bench.replica.forget(token)
    assert len(bench.replica.collects) == 1 + len(under_way) < MANY
    for question in under_way:
        tell(bench, found(1, question.number, 9, (0, row(B, 7))))
    assert bench.sent(ReadNow) == [] and len(bench.replica.collects) == 1
    bench.tick(RETRY_US)
    assert bench.sent(ReadNow) == [] and len(bench.replica.collects) == 0
    tell(bench, found(1, silent.number, 9, (0, row(B, 7))))
    bench.request(BOTH, NO_ID)
    bench.replica.forget(bench.tokens)
    round_of(bench, (0, row(B, 7)), (1, row(C, 8)))
    assert asked(bench) == {} and bench.multicast() == [] and bench.answers() == []
    assert len(bench.replica.collects) == 0 and len(many(bench)) > len(under_way)


def test_who_does_not_answer_in_time_is_asked_again_after_longer_and_longer_pauses() -> None:
    """He may have too much to read already: of what is large he would not come to an end."""
    bench, times = Bench(), []
    bench.request(Transaction(success=(Get(B),)), NO_ID)
    bench.sent(ReadNow)
    for time in range(1, WAIT_US_MAX // RETRY_US):
        bench.tick(RETRY_US)
        times += [time] * len(bench.sent(ReadNow))
    assert times == [1, 3, 7, 15]
