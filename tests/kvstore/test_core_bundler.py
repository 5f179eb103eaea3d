"""Which requests leave together as one bundle, and when. See `kvstore.core.bundler`."""

from __future__ import annotations

import random
from unittest.mock import patch

from kvstore.api.model import (
    NOTED_KEYS_MAX,
    RANGE_KEYS_MAX,
    SLOTS,
    Add,
    Append,
    Compare,
    Delete,
    DeleteRange,
    Get,
    Move,
    Put,
    Range,
    Transaction,
)
from kvstore.api.shard_map import Place, ShardMap, runs_of, slot_of
from kvstore.core.bundler import (
    APPENDS_MAX,
    FULL_BYTES,
    FULL_TRANSACTIONS,
    PACE,
    PACE_US_MIN,
    UNDER_WAY,
    UNDER_WAY_MAX,
    Bundler,
)
from kvstore.core.bundles import (
    BUNDLE_VERSION,
    EMPTY,
    LIMITED_VERSION,
    NO_ID,
    decode_bundle,
    encode_transaction,
    format_of,
)
from kvstore.core.messages import MESSAGES, Parts, ShardResults
from kvstore.core.plans import LocalPlan
from kvstore.core.requests import RESULT_RETRY_US, WAIT_US_MAX, Requests, Waiting
from multicast.application import ApplicationOutbox
from multicast.types import AppMessage, Timestamp, created_us, new_message_id
from multicast.wire import APPLICATION, FRAME_BYTES_MAX, Codec
from tests.kvstore.one_replica import NOW, WINDOW, Bench, key, result_of, write

BUNDLER = "kvstore.core.bundler"


def ids_in(message: AppMessage) -> list[bytes]:
    return [bundled.id for bundled in decode_bundle(message)]


def put(bench: Bench, number: int = 0) -> bytes:
    """A request for shard 0; its id."""
    return bench.request(write(key(0, number)))


def loaded(took_us: int = 80_000) -> tuple[Bench, list[AppMessage]]:
    """Of shard 0 as many bundles are under way as may be without haste, the first of one request, and it is known that
    one takes so long."""
    bench = Bench()
    put(bench)
    (first,) = bench.multicast()
    bench.now += took_us
    bench.order(first)
    bench.answers()
    return bench, fill(bench)


def bundler_alone() -> tuple[Bundler, Requests]:
    requests = Requests()
    return Bundler(0, requests, random.Random(1), lambda now: now), requests


def a_request(requests: Requests) -> Waiting:
    """One for shard 0, of a client that waits."""
    transaction = write(key(0, 1))
    body = encode_transaction(transaction)
    waiting = Waiting(new_message_id(NOW, 1), transaction, body, ShardMap.even([0, 1]), (0,), b"", NOW, 0)
    waiting.tokens.append(1)
    requests.add(waiting)
    return waiting


def fill(bench: Bench) -> list[AppMessage]:
    """Ask for no more than it takes until as many bundles of shard 0 are under way as may be; those."""
    left: list[AppMessage] = []
    travelling = 0
    for _ in range(UNDER_WAY):
        for _ in range(max(1, travelling)):
            put(bench)
            travelling += 1
        left += bench.multicast()
    assert len(left) == UNDER_WAY
    return left


# -- when -------------------------------------------------------------------------------------------------------------


def test_a_lone_request_leaves_at_once():
    bench = Bench()
    message_id = put(bench)
    (message,) = bench.multicast()
    assert ids_in(message) == [message_id] and message.destinations == (0,)


def test_what_came_in_one_batch_leaves_together():
    bench = Bench()
    ids = [put(bench, number) for number in range(5)]
    (message,) = bench.multicast()
    assert ids_in(message) == ids


def test_a_bundle_sees_no_more_keys_than_a_record_of_the_journal_tells_of():
    bench, at_once = Bench(), NOTED_KEYS_MAX // RANGE_KEYS_MAX
    counting = [Put(key(0), b""), Range(b"", 1, count_only=True)]
    ids = [bench.request(Transaction(success=tuple(counting))) for _ in range(2 * at_once + 1)]
    large = bench.request(Transaction(success=(*counting, *[Range(b"", 1, count_only=True)] * 20)))
    small = [bench.request(Transaction(success=(Put(key(0), b""), Range(b"", 1)))) for _ in range(40)]
    left = []
    while messages := bench.multicast():
        left += [ids_in(message) for message in messages]
        for message in messages:
            bench.order(message)
        bench.now += PACE_US_MIN * 100
    assert left == [ids[:at_once], ids[at_once : 2 * at_once], ids[2 * at_once :], [large], small]


def test_what_shards_tell_of_slots_that_have_moved_one_by_one_is_no_more_than_a_message():
    """Each vote on a transaction with a range tells where all slots have gone. With a bundle of 256 of them a replica
    ended, and so did the next one."""
    bench = Bench()
    for number in range(FULL_TRANSACTIONS):
        bench.request(Transaction(success=(Put(key(0), b"%d" % number), Range(b"", 1))))
    first = bench.multicast()[0]
    moves = bench.replica.moves
    moves.places = {slot: Place(1, Timestamp(NOW + slot, 1)) for slot in range(SLOTS)}
    moves.runs = runs_of(moves.places)
    bench.order(first)
    codec = Codec((), MESSAGES)
    sizes = [len(codec.encode(APPLICATION, parts)) for _, parts in bench.sent(Parts)]
    assert sizes and max(sizes) <= FRAME_BYTES_MAX


def test_a_bundle_has_only_so_many_appends_as_it_may_write_large_values():
    bench = Bench()
    single = [bench.request(Transaction(success=(Append(key(0), b"a"),))) for _ in range(APPENDS_MAX + 1)]
    large = bench.request(Transaction(success=(Append(key(0), b"a"),) * (APPENDS_MAX + 1)))
    puts = [bench.request(Transaction(success=(Put(key(0), b"p"),))) for _ in range(APPENDS_MAX + 1)]
    left = []
    while messages := bench.multicast():
        left += [(ids_in(message), format_of(message)) for message in messages]
        for message in messages:
            bench.order(message)
        bench.now += PACE_US_MIN * 100
    assert left == [(single[:-1], BUNDLE_VERSION), (single[-1:], BUNDLE_VERSION), ([large], LIMITED_VERSION),
                    (puts, BUNDLE_VERSION)]  # fmt: skip


def test_different_destinations_leave_apart():
    bench = Bench()
    here, there, both = (bench.request(write(*keys)) for keys in ([key(0)], [key(1)], [key(0), key(1)]))
    messages = {message.destinations: ids_in(message) for message in bench.multicast()}
    assert messages == {(0,): [here], (1,): [there], (0, 1): [both]}


def test_what_waits_while_some_are_under_way_leaves_together_when_one_has_come_back():
    bench, left = loaded()
    waiting = [put(bench, number) for number in range(8)]
    assert bench.multicast() == []
    bench.order(left.pop(0))
    (message,) = bench.multicast()
    assert ids_in(message) == waiting


def test_a_further_bundle_leaves_at_once_when_as_much_waits_as_is_under_way():
    bench = Bench()
    ids = [put(bench) for _ in range(3)]
    (first,) = bench.multicast()
    waiting = [put(bench), put(bench)]
    assert bench.multicast() == []
    waiting.append(put(bench))
    (second,) = bench.multicast()
    assert (ids_in(first), ids_in(second)) == (ids, waiting)


def test_what_is_answered_is_not_under_way_though_others_of_its_bundle_are():
    bench = Bench()
    ids = [put(bench) for _ in range(3)]
    bench.multicast()
    waiting = put(bench)
    for number in range(2):
        assert bench.multicast() == []
        bench.hear(1, ShardResults(0, [result_of(write(key(0)), ids[number], Timestamp(bench.now, number), [])]))
    (message,) = bench.multicast()
    assert ids_in(message) == [waiting]


def test_what_waits_for_a_bundle_that_is_lost_leaves_all_the_same():
    bench = Bench()
    for _ in range(3):
        put(bench)
    bench.multicast()
    waiting = put(bench)
    assert bench.multicast() == [] and bench.tick() == bench.now + PACE_US_MIN
    bench.tick(PACE_US_MIN)
    (message,) = bench.multicast()
    assert ids_in(message) == [waiting]


def test_what_waits_for_a_bundle_that_the_protocol_refuses_leaves_with_the_refusal():
    bench = Bench()
    for _ in range(3):
        put(bench)
    (refused,) = bench.multicast()
    waiting = put(bench)
    assert bench.multicast() == []
    bench.replica.on_refused(refused, "too much", bench.now, bench.out)
    (message,) = bench.multicast()
    assert ids_in(message) == [waiting]


def test_other_destinations_do_not_wait_for_it():
    bench, _ = loaded()
    put(bench)
    bench.request(write(key(1)))
    assert [message.destinations for message in bench.multicast()] == [(1,)]


def test_a_bundle_has_come_back_when_all_in_it_are_answered():
    bench, left = loaded()
    waiting = [put(bench) for _ in range(8)]
    pair = next(ids for ids in map(ids_in, left) if len(ids) == 2)
    for number, message_id in enumerate(pair):
        assert bench.multicast() == []
        bench.hear(1, ShardResults(0, [result_of(write(key(0)), message_id, Timestamp(bench.now, number), [])]))
    (message,) = bench.multicast()
    assert ids_in(message) == waiting


def test_where_bundles_take_long_further_ones_leave_before_they_come_back():
    bench, _ = loaded(took_us=80_000)
    waiting = [put(bench, number) for number in range(3)]
    assert bench.multicast() == []
    assert bench.tick() == bench.now + 80_000 // PACE and bench.multicast() == []
    bench.tick(80_000 // PACE)
    (message,) = bench.multicast()
    assert ids_in(message) == waiting


def test_a_full_bundle_does_not_wait():
    bench, _ = loaded()
    ids = [put(bench) for _ in range(FULL_TRANSACTIONS + 1)]
    (message,) = bench.multicast()
    assert ids_in(message) == ids[:-1]
    bench.request(write(key(0), value=bytes(FULL_BYTES)))
    assert [len(ids_in(message)) for message in bench.multicast()] == [1, 1]


def crowded() -> tuple[Bench, list[AppMessage]]:
    """As many are under way as may be at all."""
    bench, left = loaded()
    while len(left) < UNDER_WAY_MAX:
        put(bench)
        bench.now += 100_000
        left += bench.multicast()
    return bench, left


def test_there_is_a_limit_to_what_is_under_way():
    bench, left = crowded()
    for _ in range(FULL_TRANSACTIONS + 1):
        put(bench)
    bench.now += 1_000_000
    assert bench.multicast() == []
    bench.order(left.pop(0))
    assert len(bench.multicast()) == 1


def test_bundles_whose_results_never_come_do_not_block_the_lane_for_ever():
    bench, _ = crowded()
    bench.tick(WAIT_US_MAX + RESULT_RETRY_US + 1)
    message_id = put(bench)
    (message,) = bench.multicast()
    assert ids_in(message) == [message_id]


def test_a_bundle_that_the_protocol_refuses_is_no_longer_under_way():
    bench, left = crowded()
    for message in left:
        bench.replica.on_refused(message, "too much", bench.now, bench.out)
    assert {answer.code for answer in bench.answers()} == {"overloaded"}
    put(bench)
    assert len(bench.multicast()) == 1


def test_refusals_do_not_quicken_the_pace():
    bench, left = loaded()
    for _ in range(20):
        for message in left:
            bench.replica.on_refused(message, "too much", bench.now, bench.out)
        left = []
        for _ in range(UNDER_WAY):
            put(bench)
            left += bench.multicast()
    put(bench)
    assert bench.tick() == bench.now + 80_000 // PACE and bench.multicast() == []


def test_of_a_lane_of_several_shards_fewer_are_under_way():
    bench = Bench()
    both = write(key(0), key(1))
    left = []
    for _ in range(UNDER_WAY):
        bench.request(both)
        left += bench.multicast()
    assert len(left) == UNDER_WAY // 2 and {message.destinations for message in left} == {(0, 1)}


def test_of_several_shards_further_ones_leave_when_it_takes_longer_than_it_did():
    bench, both = Bench(), write(key(0), key(1))
    bench.request(both)
    (first,) = bench.multicast()
    bench.now += 80_000
    for shard in (0, 1):
        answer = result_of(both, ids_in(first)[0], Timestamp(bench.now, 0), [])
        bench.hear(1 + 3 * shard, ShardResults(shard, [answer]))
    assert len(bench.answers()) == 1
    for _ in range(UNDER_WAY // 2):
        bench.request(both)
        assert len(bench.multicast()) == 1
    waiting = bench.request(both)
    assert bench.tick() == bench.now + 80_000 * PACE and bench.multicast() == []
    bench.tick(80_000 * PACE)
    (message,) = bench.multicast()
    assert ids_in(message) == [waiting]


# -- what -------------------------------------------------------------------------------------------------------------


def test_what_nobody_waits_for_any_more_is_not_multicast():
    bench, _ = loaded()
    put(bench)
    bench.tick(WAIT_US_MAX + RESULT_RETRY_US + 1)
    assert {answer.code for answer in bench.answers()} == {"timeout"} and bench.multicast() == []


def test_who_is_sent_elsewhere_twice_in_one_batch_travels_once_and_holds_one_place_until_it_is_answered():
    bundler, requests = bundler_alone()
    for detour in ((1,), (0,), (0,)), ((0,), (1,), (0,)), ((1,), (1,), (0,)):
        waiting, out = a_request(requests), ApplicationOutbox()
        for destinations in detour:
            waiting.destinations = destinations
            bundler.add(waiting)
        bundler.leave(NOW, out)
        (message,) = out.submissions
        assert message.destinations == (0,) and ids_in(message) == [waiting.id]
        bundler.finished(waiting, NOW + 1)
        assert not bundler._flights
        for flow in bundler._flows.values():
            assert not flow.queue and flow.bytes == flow.under_way == flow.travelling == 0


def test_who_is_sent_elsewhere_while_it_is_under_way_can_wait_there_again():
    bundler, requests = bundler_alone()
    waiting = a_request(requests)
    for _ in range(3):
        out = ApplicationOutbox()
        bundler.add(waiting)
        bundler.leave(NOW, out)
        assert [ids_in(message) for message in out.submissions] == [[waiting.id]]
        bundler.finished(waiting, NOW + 1)


def test_ids_of_bundles_are_fresh_and_as_young_as_what_is_in_them():
    bench = Bench()
    ahead = bench.request(write(key(0)), new_message_id(NOW + 5_000_000, 1))
    (first,) = bench.multicast()
    put(bench, 1)
    (second,) = bench.multicast()
    assert created_us(first.id) >= created_us(ahead) and created_us(second.id) >= NOW
    assert len({ahead, first.id, second.id}) == 3


def test_the_barrier_of_reads_is_a_bundle_of_its_own_without_an_id():
    bench = Bench()
    named = bench.request(write(key(0)))
    for number in (0, 1):
        bench.request(Transaction(success=(Get(key(0, number)),)), NO_ID)
    assert sorted(ids_in(message) for message in bench.multicast()) == [[NO_ID], [named]]


def test_no_vote_depends_on_what_another_transaction_of_the_bundle_writes():
    """Shards vote on all of them before any takes effect."""
    bench = Bench()
    a, b, far = key(0), key(0, 1), key(1)
    first = bench.request(Transaction(success=(Put(a, b"1"), Put(far, b""))))
    adds = bench.request(Transaction(success=(Add(a, 1), Put(far, b""))))
    apart = bench.request(Transaction((Compare(b, "exists", "==", False),), (Put(far, b""),), (Delete(a),)))
    compares = bench.request(Transaction((Compare(far, "exists", "==", True),), (Put(b, b""), Get(a))))
    left = bench.multicast()
    bench.tick(1_000_000)
    assert [ids_in(message) for message in left + bench.multicast()] == [[first, apart], [adds], [compares]]


def test_where_all_want_one_key_each_is_looked_at_once_and_no_bundle_looks_at_all() -> None:
    """A thousand of them took the loop two thirds of a second, as often as a bundle came back."""
    hot = Transaction(success=(Add(key(0), 1), Add(key(1), 1)))
    bench = Bench()
    with patch("kvstore.core.bundler.LocalPlan", side_effect=LocalPlan) as looked, patch(f"{BUNDLER}.PASSED_MAX", 20):
        wanted = [bench.request(hot) for _ in range(FULL_TRANSACTIONS + 5)]
        first = bench.multicast()
        assert [ids_in(message) for message in first] == [[one] for one in wanted[: len(first)]]
        assert looked.call_count <= len(first) + 21
    cold = bench.request(write(key(0, 1), key(1, 1)))
    bench.part(1, bench.order(first[0]))
    (next_one, *_) = bench.multicast()
    assert ids_in(next_one) == [wanted[len(first)], cold], "beside what waits for another bundle it leaves"


def test_who_deletes_a_range_depends_on_all_that_is_written_and_writes_all_that_votes_depend_on():
    bench = Bench()
    a, far = key(0), key(1)
    puts = Transaction(success=(Put(a, b"1"), Put(far, b""), Get(key(2))))
    deletes, adds = Transaction(success=(DeleteRange(b"x"),)), Transaction(success=(Add(a, 1), Get(far), Get(key(2))))
    asked = [bench.request(transaction) for transaction in (puts, deletes, puts, adds, deletes)]
    left = bench.multicast()
    for _ in asked:
        bench.tick(1_000_000)
        left += bench.multicast()
    assert [ids_in(message) for message in left] == [
        [asked[0], asked[2]], [asked[1]], [asked[3]], [asked[4]],
    ]  # fmt: skip


def test_in_one_shard_they_may_depend_on_one_another():
    bench = Bench()
    ids = [bench.request(Transaction(success=(Add(key(0), 1),))) for _ in range(3)]
    (message,) = bench.multicast()
    assert ids_in(message) == ids


def test_a_step_of_a_move_travels_alone():
    slot = slot_of(key(0))
    step = Transaction(success=(Move(0, 1, ((slot, slot),)),))
    for first, second in ((step, write(key(0), key(1))), (write(key(0), key(1)), step)):
        bench = Bench()
        ids = [bench.request(first), bench.request(second)]
        assert [ids_in(message) for message in bench.multicast()] == [[one] for one in ids]


def test_a_read_without_an_id_is_as_young_as_its_shard_though_its_clock_was_set_back():
    """Else it came too late, by an id that nobody has asked for, and whoever asks again is told so again."""
    bench = Bench(shared_reads=False)
    ahead = bench.now + 2 * WINDOW
    bench.order(AppMessage(bench.new_id(), (0,), EMPTY, 1), at=ahead)
    bench.request(Transaction(success=(Get(key(0)),)), NO_ID)
    (message,) = bench.multicast()
    assert created_us(message.id) >= ahead // 1000 * 1000
