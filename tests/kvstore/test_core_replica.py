"""One replica alone: what it asks, tells and answers. The deliveries are the test's."""

from __future__ import annotations

import msgspec
import pytest

from kvstore.api.model import Add, Compare, Get, OperationResult, Put, Transaction
from kvstore.api.shard_map import ShardMap
from kvstore.core.audit import APPLIED, EXPIRED, FAILED, MISMATCH, decode_outcome
from kvstore.core.clients import READS_KEPT, RESULT_BYTES_KEPT
from kvstore.core.messages import (
    Answered,
    EnvelopeError,
    Execute,
    Part,
    PartRequest,
    Parts,
    Refused,
    ResultRequest,
    ShardResult,
    ShardResults,
    Vote,
    body_digest,
    encode_payload,
    read_id,
)
from kvstore.core.replica import Replica
from kvstore.core.requests import REMEMBERED_WINDOWS, RESULT_RETRY_US, WAIT_US_MAX
from kvstore.core.signals import PULLS_BEFORE_FETCH
from kvstore.storage.backend import MemoryBackend
from kvstore.storage.store import Store
from multicast.protocol import ApplicationOutbox, PeerError
from multicast.records import Delivered
from multicast.types import FINAL, AppMessage, Timestamp, Topology, new_message_id

NOW = 1_700_000_000_000_000
WINDOW = 10_000_000
TOPOLOGY = Topology.grid(3, 3)
SHARDS = ShardMap.even([0, 1, 2])


def key(shard: int, number: int = 0) -> bytes:
    """The number-th key of a shard."""
    return [k for k in (b"k%d" % i for i in range(400)) if SHARDS.shard_of(k) == shard][number]


def write(*keys: bytes, value: bytes = b"v") -> Transaction:
    return Transaction(success=tuple(Put(k, value) for k in keys))


class Bench:
    """Replica 0, leader of shard 0 of three."""

    def __init__(self, self_id: int = 0, **options):
        self.store = Store.open(MemoryBackend())
        self.options = {"dedup_window_us": WINDOW, "digest_every": 1, **options}
        self.self_id = self_id
        self.now = NOW
        self.position = 0
        self.ids = 0
        self.tokens = 0
        self.delivered = []
        self.restart_replica()

    def restart_replica(self) -> None:
        """A new replica on the same store; what was not complete is delivered again."""
        self.replica = Replica(
            self.self_id, TOPOLOGY, SHARDS, self.store, leader_of=lambda g: TOPOLOGY.groups[g][0], **self.options
        )
        completed = len(self.out.completions) if self.delivered else 0
        self.out = ApplicationOutbox()
        for arguments in self.delivered[completed:]:
            self.replica.on_deliver(*arguments, self.now, self.out)
        self.replica.on_start(self.now, self.out)

    def new_id(self) -> bytes:
        self.ids += 1
        return new_message_id(self.now, self.ids)

    def request(self, transaction: Transaction, message_id: bytes | None = None) -> bytes:
        message_id = message_id or self.new_id()
        self.tokens += 1
        self.replica.on_request(self.tokens, Execute(message_id, transaction), self.now, self.out)
        return message_id

    def deliver(self, transaction: Transaction, message_id=None, origin=0, expired=False, outcome=None) -> bytes:
        message_id = message_id or self.new_id()
        self.position += 1
        message = AppMessage(message_id, SHARDS.shards_of(transaction), encode_payload(transaction), origin)
        stamp = Timestamp(self.now + self.position, 0)
        self.delivered.append((Delivered(self.position, stamp, FINAL, expired, message, self.now), outcome))
        self.replica.on_deliver(*self.delivered[-1], self.now, self.out)
        return message_id

    def hear(self, sender: int, message) -> None:
        self.replica.on_message(sender, message, self.now, self.out)

    def part(self, shard: int, message_id: bytes, transaction: Transaction, vote: Vote | None = None) -> None:
        digest = body_digest(encode_payload(transaction), SHARDS.shards_of(transaction))
        self.hear(TOPOLOGY.groups[shard][0], Parts(shard, [Part(message_id, digest, vote or Vote())]))

    def tick(self, us: int = 0) -> int | None:
        self.now += us
        wake = self.replica.on_tick(self.now, self.out)
        self.replica.end_batch(self.now, self.out)
        return wake

    def sent(self, kind: type) -> list[tuple[tuple[int, ...], object]]:
        self.replica.end_batch(self.now, self.out)
        found = [(to, m) for to, m in self.out.sends if type(m) is kind]
        self.out.sends = [(to, m) for to, m in self.out.sends if type(m) is not kind]
        return found

    def outcomes(self):
        return [decode_outcome(record) for _, record in self.out.completions]

    def answers(self):
        answers, self.out.answers = [answer for _, answer in self.out.answers], []
        return answers


# -- execution -------------------------------------------------------------------------------------------------------


def test_a_single_shard_transaction_completes_at_delivery():
    bench = Bench()
    message_id = bench.request(write(key(0)))
    (message,) = bench.out.submissions
    assert (message.id, message.destinations, message.origin) == (message_id, (0,), 0)
    bench.deliver(write(key(0)), message_id)
    (answer,) = bench.answers()
    assert answer == Answered(answer.result) and answer.result.succeeded
    assert bench.store.get(key(0)) == (b"v", answer.result.version)
    (outcome,) = bench.outcomes()
    assert outcome.status == APPLIED and outcome.state_digest == bench.store.state_digest()


def test_a_multi_shard_transaction_waits_for_the_parts_of_all_others():
    bench = Bench()
    transaction = write(key(0), key(1), key(2))
    message_id = bench.request(transaction)
    bench.deliver(transaction, message_id)
    bench.part(1, message_id, transaction)
    assert bench.store.get(key(0)) is None and bench.answers() == []
    assert bench.replica.status()["head_waiting_for"] == [2]
    bench.part(2, message_id, transaction)
    assert bench.store.get(key(0)) is not None and len(bench.answers()) == 1


def test_what_comes_later_waits_behind_it():
    bench = Bench()
    transaction = write(key(0), key(1))
    message_id = bench.deliver(transaction)
    bench.deliver(write(key(0, 1)))
    assert bench.outcomes() == []
    bench.part(1, message_id, transaction)
    assert [p for p, _ in bench.out.completions] == [1, 2]


def test_the_leader_pushes_its_part_to_all_replicas_of_the_other_shards():
    bench = Bench()
    bench.deliver(write(key(0), key(1)))
    ((to, parts),) = bench.sent(Parts)
    assert to == (3, 4, 5) and parts.shard == 0 and len(parts.parts) == 1
    follower = Bench(1)
    follower.deliver(write(key(0), key(1)))
    assert follower.sent(Parts) == []


def test_a_part_waits_for_transactions_of_other_shards_but_not_for_a_subset():
    bench = Bench()
    blocking = write(key(0), key(2))
    first = bench.deliver(blocking)
    second = bench.deliver(blocking)
    ((to, parts),) = bench.sent(Parts)
    assert to == (6, 7, 8) and len(parts.parts) == 2
    bench.deliver(write(key(0), key(1)))
    bench.part(2, first, blocking)
    assert bench.sent(Parts) == []
    bench.part(2, second, blocking)
    ((to, _),) = bench.sent(Parts)
    assert to == (3, 4, 5)


def test_signalling_at_delivery_does_not_wait():
    bench = Bench(signals="delivery")
    bench.deliver(write(key(0), key(2)))
    bench.deliver(write(key(0), key(1)))
    assert {to for to, _ in bench.sent(Parts)} == {(3, 4, 5), (6, 7, 8)}


def test_without_signals_only_votes_are_waited_for():
    bench = Bench(signals="off")
    bench.deliver(write(key(0), key(1)))
    assert len(bench.outcomes()) == 1
    transaction = Transaction((Compare(key(1), "exists", "==", False),), (Put(key(0), b"v"),))
    message_id = bench.deliver(transaction)
    assert len(bench.outcomes()) == 1
    bench.part(1, message_id, transaction, Vote(holds=False))
    assert bench.store.get(key(0))[1] == Timestamp(NOW + 1, 0)


def test_votes_of_all_shards_choose_the_branch():
    bench = Bench()
    transaction = Transaction(
        (Compare(key(0), "exists", "==", False), Compare(key(1), "exists", "==", True)),
        (Put(key(0), b"yes"),),
        (Put(key(0), b"no"),),
    )
    message_id = bench.deliver(transaction)
    bench.part(1, message_id, transaction, Vote(holds=False))
    assert bench.store.get(key(0))[0] == b"no" and not bench.outcomes()[0].succeeded


def test_an_impossible_operation_in_another_shard_fails_everything():
    bench = Bench()
    transaction = Transaction(success=(Put(key(0), b"v"), Add(key(1), 1)))
    message_id = bench.request(transaction)
    bench.deliver(transaction, message_id)
    bench.part(1, message_id, transaction, Vote(success_failure="add: no", success_key=key(1)))
    (answer,) = bench.answers()
    assert (answer.result.failure, answer.result.failure_key) == ("add: no", key(1))
    assert bench.store.get(key(0)) is None and bench.outcomes()[0].status == FAILED


def test_the_own_vote_says_what_is_impossible_here():
    bench = Bench()
    bench.deliver(write(key(0), value=b"text"))
    bench.deliver(Transaction(success=(Add(key(0), 1), Put(key(1), b""))))
    ((_, parts),) = bench.sent(Parts)
    assert "not a decimal integer" in parts.parts[0].vote.success_failure


# -- ids --------------------------------------------------------------------------------------------------------------


def test_a_repetition_gets_the_first_result():
    bench = Bench()
    transaction = Transaction(success=(Add(key(0), 5),))
    message_id = bench.deliver(transaction)
    bench.request(transaction, message_id)
    (answer,) = bench.answers()
    assert answer.repeated and answer.result.results[0].value == 5
    assert bench.out.submissions == []


def test_the_same_id_with_another_body_is_refused():
    bench = Bench()
    done = bench.deliver(write(key(0)))
    under_way = bench.request(write(key(1)))
    bench.request(write(key(0), value=b"other"), done)
    bench.request(write(key(2)), under_way)
    assert [a.code for a in bench.answers()] == ["id_reused", "id_reused"]


def test_one_id_with_different_bodies_in_two_shards_has_no_effect():
    bench = Bench()
    transaction = write(key(0), key(1))
    message_id = bench.request(transaction)
    bench.deliver(transaction, message_id)
    bench.part(1, message_id, write(key(0), key(1), value=b"other"))
    assert bench.outcomes()[0].status == MISMATCH and bench.store.get(key(0)) is None
    assert bench.answers()[0].code == "id_reused"


def test_requests_with_one_id_share_one_message():
    bench = Bench()
    message_id = bench.request(write(key(0)))
    bench.request(write(key(0)), message_id)
    assert len(bench.out.submissions) == 1
    bench.deliver(write(key(0)), message_id)
    assert len(bench.answers()) == 2


@pytest.mark.parametrize(
    ("offset_us", "code", "outcome"),
    [
        (-WINDOW - 1_000_000, "id_expired", "unknown"),
        (15_000_000, "id_in_future", "unknown"),
        (25_000_000, "id_in_future", "not_applied"),
    ],
)
def test_ids_outside_the_window_are_refused_with_the_clock(offset_us, code, outcome):
    bench = Bench()
    bench.request(write(key(0)), new_message_id(NOW + offset_us, 1))
    (refused,) = bench.answers()
    assert (refused.code, refused.outcome) == (code, outcome)
    assert "1700000000.000 s since 1970" in refused.message and bench.out.submissions == []


def test_an_old_id_that_is_remembered_is_answered():
    bench = Bench()
    message_id = bench.deliver(write(key(0)))
    bench.now += WINDOW + 1_000_000
    bench.request(write(key(0)), message_id)
    assert bench.answers()[0].repeated


@pytest.mark.parametrize(
    ("message_id", "transaction", "text"),
    [
        (bytes(16), write(b"k"), "UUIDv7"),
        (None, write(b""), "success[0].key"),
        (None, Transaction(), "no operation"),
    ],
)
def test_invalid_requests_are_refused_before_anything_is_ordered(message_id, transaction, text):
    bench = Bench()
    bench.request(transaction, message_id)
    (refused,) = bench.answers()
    assert refused.code == "invalid" and text in refused.message and bench.out.submissions == []


def test_a_repetition_that_expired_while_the_first_delivery_waits_changes_nothing():
    bench = Bench()
    transaction = write(key(0), key(1))
    message_id = bench.request(transaction)
    bench.deliver(transaction, message_id)
    bench.deliver(transaction, message_id, expired=True)
    assert bench.out.completions == []
    bench.part(1, message_id, transaction)
    assert [decode_outcome(record).status for _, record in bench.out.completions] == [APPLIED, EXPIRED]
    assert bench.store.get(key(0)) is not None


def test_an_expired_delivery_has_no_effect_and_says_so():
    bench = Bench()
    message_id = bench.request(write(key(0), key(1)))
    bench.deliver(write(key(0), key(1)), message_id, expired=True)
    (refused,) = bench.answers()
    assert (refused.code, refused.outcome) == ("expired", "not_applied")
    assert bench.store.get(key(0)) is None and bench.outcomes()[0].status == EXPIRED


def test_a_late_repetition_does_not_replace_the_first_result():
    bench = Bench()
    message_id = bench.deliver(write(key(0)))
    bench.deliver(write(key(0)), message_id, expired=True)
    bench.request(write(key(0)), message_id)
    assert isinstance(bench.answers()[0], Answered)


def test_results_are_kept_for_as_long_as_a_protocol_may_know_the_id():
    """Delivered with effect within one window, known for another two."""
    bench = Bench()
    old = bench.deliver(write(key(0)))
    bench.now += REMEMBERED_WINDOWS * WINDOW - 1_000_000
    bench.deliver(write(key(0)))
    assert bench.store.remembered(old) is not None
    bench.now += 3_000_000
    young = bench.deliver(write(key(0)))
    assert bench.store.remembered(old) is None and bench.store.remembered(young) is not None


def test_a_copy_so_late_that_the_first_result_may_be_forgotten_is_not_called_without_effect():
    bench = Bench()
    message_id = bench.deliver(write(key(0)))
    bench.request(write(key(0)), new_message_id(bench.now, 99))  # not ordered yet
    bench.now += REMEMBERED_WINDOWS * WINDOW + 3_000_000
    bench.deliver(write(key(0)))
    assert bench.store.remembered(message_id) is None
    waiting = Bench()
    waiting.request(write(key(0)), message_id)  # through a replica whose clock is far behind
    waiting.now = bench.now
    waiting.deliver(write(key(0)), message_id, expired=True)
    (refused,) = waiting.answers()
    assert (refused.code, refused.outcome, refused.retryable) == ("id_expired", "unknown", False)


def test_parts_whose_settlement_was_lost_in_a_crash_go_with_the_next_one():
    """Settled, but not committed when the replica died: nobody says so again."""
    bench = Bench()
    both, all_three = write(key(0), key(1)), write(key(0), key(1), key(2))
    lost = bench.deliver(both)
    wider = bench.deliver(all_three)
    waiting = bench.deliver(both)
    for message_id, transaction, shards in ((lost, both, (1,)), (wider, all_three, (1, 2))):
        for shard in shards:
            bench.part(shard, message_id, transaction)
    assert bench.store.part(lost) and bench.store.part(wider)
    bench.restart_replica()
    later = bench.deliver(both)
    for message_id in (waiting, later):
        bench.part(1, message_id, both)
    assert {i for i, _ in bench.store.parts()} == {lost, wider, waiting, later}
    bench.replica.on_settled(later, bench.now, bench.out)
    assert {i for i, _ in bench.store.parts()} == {wider}


def test_a_likely_repetition_asks_the_shards_at_once():
    bench = Bench()
    transaction = write(key(1))
    bench.request(transaction, new_message_id(NOW - 200_000, 1))
    assert bench.sent(ResultRequest) and bench.out.submissions
    bench.request(transaction, new_message_id(NOW - 1_000, 2))
    assert not bench.sent(ResultRequest) and len(bench.out.submissions) == 2


def test_a_repetition_that_completes_here_asks_the_others_at_once():
    """They have told, or will tell, the replica that asked first."""
    bench = Bench()
    transaction = Transaction(success=(Get(key(0)), Get(key(1))))
    message_id = bench.request(transaction)
    bench.deliver(transaction, message_id, origin=4)
    bench.part(1, message_id, transaction)
    assert [to for to, _ in bench.sent(ResultRequest)] == [(3,)]


def test_an_overloaded_protocol_refuses_without_effect():
    bench = Bench()
    message_id = bench.request(write(key(0)))
    bench.replica.on_refused(bench.out.submissions[0], "too much", bench.now, bench.out)
    (refused,) = bench.answers()
    assert refused == Refused("overloaded", "too much", True, "not_applied")
    bench.request(write(key(0)), message_id)
    assert len(bench.out.submissions) == 2


# -- reads that nobody can repeat -------------------------------------------------------------------------------------

GET = Transaction(success=(Get(key(0)),))


def test_a_read_that_nobody_can_repeat_leaves_nothing_in_the_store():
    bench = Bench()
    bench.deliver(write(key(0)))
    before = bench.store.pending_bytes
    message_id = bench.request(GET, read_id(bench.new_id()))
    bench.deliver(GET, message_id)
    bench.replica.on_settled(message_id, bench.now, bench.out)
    (answer,) = bench.answers()
    assert answer.result.results[0].found.value == b"v" and not answer.repeated
    assert bench.store.pending_bytes == before and bench.store.remembered(message_id) is None
    assert not bench.replica.signals._settled_early
    assert bench.outcomes()[-1].reads and bench.outcomes()[-1].id == message_id  # the audit sees it as any other


def test_its_result_is_told_again_if_it_was_lost_on_its_way():
    bench = Bench()
    message_id = bench.deliver(GET, read_id(bench.new_id()), origin=4)
    ((to, first),) = bench.sent(ShardResults)
    bench.hear(4, ResultRequest([message_id]))
    assert to == (4,) and bench.sent(ShardResults) == [((4,), first)]


def test_of_such_results_only_the_last_are_kept():
    bench = Bench()
    ids = [bench.deliver(GET, read_id(bench.new_id()), origin=4) for _ in range(READS_KEPT + 1)]
    bench.sent(ShardResults)
    bench.hear(4, ResultRequest(ids[:2]))
    ((_, results),) = bench.sent(ShardResults)
    assert [r.id for r in results.results] == ids[1:2]


@pytest.mark.parametrize(
    "transaction",
    [
        write(key(0)),
        Transaction(success=(Get(key(0)), Get(key(1)))),
        Transaction((Compare(key(0), "exists", "==", True),), (Get(key(0)),)),
    ],
)
def test_only_reads_of_one_shard_have_such_ids(transaction):
    bench = Bench()
    bench.request(transaction, read_id(bench.new_id()))
    (refused,) = bench.answers()
    assert (refused.code, refused.outcome) == ("invalid", "not_applied") and bench.out.submissions == []


# -- results ----------------------------------------------------------------------------------------------------------


def result_of(transaction: Transaction, message_id: bytes, stamp: Timestamp, results) -> ShardResult:
    digest = body_digest(encode_payload(transaction), SHARDS.shards_of(transaction))
    return ShardResult(message_id, digest, stamp, APPLIED, True, "", b"", results)


def test_the_entry_replica_waits_for_what_other_shards_read():
    bench = Bench()
    transaction = Transaction(success=(Get(key(0)), Get(key(1))))
    message_id = bench.request(transaction)
    bench.deliver(transaction, message_id)
    bench.part(1, message_id, transaction)
    assert len(bench.outcomes()) == 1 and bench.answers() == []
    theirs = result_of(transaction, message_id, Timestamp(NOW + 1, 0), [(1, OperationResult(value=7))])
    bench.hear(3, ShardResults(1, [theirs]))
    (answer,) = bench.answers()
    assert [r.value for r in answer.result.results] == [0, 7]


def test_the_pusher_returns_what_its_shard_read_to_the_entry_replica():
    bench = Bench()
    transaction = Transaction(success=(Get(key(0)), Put(key(1), b"v")))
    message_id = bench.deliver(transaction, origin=4)
    bench.part(1, message_id, transaction)
    ((to, results),) = bench.sent(ShardResults)
    assert to == (4,) and results.results[0].results == [(0, OperationResult())]
    bench.deliver(write(key(0)), origin=8)
    ((to, _),) = bench.sent(ShardResults)
    assert to == (8,)


def test_puts_alone_need_no_results_of_other_shards():
    bench = Bench()
    transaction = write(key(0), key(1))
    message_id = bench.deliver(transaction, origin=4)
    bench.part(1, message_id, transaction)
    assert bench.sent(ShardResults) == []


def test_results_are_asked_for_after_a_while_from_one_replica_after_the_other():
    bench = Bench()
    transaction = write(key(1))
    message_id = bench.request(transaction)
    wake = bench.tick()
    assert wake == NOW + RESULT_RETRY_US and bench.sent(ResultRequest) == []
    asked = []
    for _ in range(4):
        bench.tick(RESULT_RETRY_US)
        asked += [to for to, _ in bench.sent(ResultRequest)]
    assert asked == [(3,), (4,), (5,), (3,)]
    bench.hear(4, ShardResults(1, [result_of(transaction, message_id, Timestamp(NOW, 1), [])]))
    assert bench.answers()[0].result.version == Timestamp(NOW, 1)
    assert bench.tick(RESULT_RETRY_US) is None


def test_nobody_waits_for_ever():
    bench = Bench()
    bench.request(write(key(1)))
    bench.tick(WAIT_US_MAX + RESULT_RETRY_US + 1)
    (refused,) = bench.answers()
    assert (refused.code, refused.outcome) == ("timeout", "unknown") and bench.replica.status()["requests_waiting"] == 0


def test_a_replica_tells_the_result_that_it_remembers():
    bench = Bench()
    message_id = bench.deliver(write(key(0)))
    bench.hear(7, ResultRequest([message_id, bench.new_id()]))
    ((to, results),) = bench.sent(ShardResults)
    assert to == (7,) and [r.id for r in results.results] == [message_id]


def test_a_large_result_is_given_once_and_then_marked_as_omitted():
    bench = Bench()
    bench.deliver(write(key(0), value=bytes(RESULT_BYTES_KEPT)))
    transaction = Transaction(success=(Get(key(0)),))
    message_id = bench.request(transaction)
    bench.deliver(transaction, message_id)
    bench.request(transaction, message_id)
    first, again = bench.answers()
    assert len(first.result.results[0].found.value) == RESULT_BYTES_KEPT
    assert again.results_omitted and again.result.results == () and again.result.version == first.result.version


# -- parts, pulled and kept -------------------------------------------------------------------------------------------


def test_parts_are_pulled_after_a_while_from_one_replica_after_the_other():
    bench = Bench(part_retry_us=1000)
    message_id = bench.deliver(write(key(0), key(1)))
    assert bench.tick() == NOW + 1000
    asked = []
    for _ in range(4):
        bench.tick(1000)
        asked += bench.sent(PartRequest)
    assert [to for to, _ in asked] == [(3,), (4,), (5,), (3,)]
    assert asked[0][1].ids == [message_id]
    assert bench.replica.status()["parts_pulled"] == 4


def test_outcomes_that_others_forgot_are_fetched_in_the_own_shard():
    bench = Bench(part_retry_us=1000)
    bench.deliver(write(key(0), key(1)))
    for _ in range(PULLS_BEFORE_FETCH):
        bench.tick(1000)
    assert bench.out.fetches and set(bench.out.fetches) <= {1, 2}
    other = Bench(1)
    other.deliver(write(key(0), key(1)), outcome=None)
    record = other_outcome(other)
    bench.replica.on_outcome(1, record, bench.now, bench.out)
    assert bench.out.completions == [(1, record)] and bench.store.get(key(0)) is not None


def other_outcome(bench: Bench) -> bytes:
    entry = bench.replica.log.entries[0]
    bench.part(1, entry.message.id, write(key(0), key(1)))
    return bench.out.completions[-1][1]


def test_a_part_is_told_again_until_the_transaction_is_settled():
    bench = Bench()
    transaction = write(key(0), key(1))
    message_id = bench.deliver(transaction)
    ((_, pushed),) = bench.sent(Parts)
    for complete in (False, True):
        if complete:
            bench.part(1, message_id, transaction)
        bench.hear(4, PartRequest([message_id]))
        assert bench.sent(Parts) == [((4,), pushed)]
    bench.replica.on_settled(message_id, bench.now, bench.out)
    assert bench.store.part(message_id) is None
    bench.hear(4, PartRequest([message_id]))
    ((to, results),) = bench.sent(ShardResults)
    assert to == (4,) and results.results[0].status == APPLIED


def test_a_pull_of_a_completed_transaction_brings_what_it_returned():
    bench = Bench()
    transaction = Transaction(success=(Add(key(0), 7), Add(key(1), 1)))
    message_id = bench.deliver(transaction, origin=4)
    bench.part(1, message_id, transaction)
    bench.sent(ShardResults)
    bench.replica.on_settled(message_id, bench.now, bench.out)
    bench.hear(4, PartRequest([message_id]))
    ((to, results),) = bench.sent(ShardResults)
    assert to == (4,) and results.results[0].results == [(0, OperationResult(value=7))]


def test_a_result_without_its_operations_does_not_replace_one_with_them():
    bench = Bench()
    transaction = Transaction(success=(Get(key(0)), Get(key(1))))
    message_id = bench.request(transaction)
    stamp = Timestamp(NOW + 1, 0)
    bench.hear(3, ShardResults(1, [result_of(transaction, message_id, stamp, [(1, OperationResult(value=7))])]))
    bench.hear(4, ShardResults(1, [result_of(transaction, message_id, stamp, None)]))
    bench.deliver(transaction, message_id)
    bench.part(1, message_id, transaction)
    (answer,) = bench.answers()
    assert not answer.results_omitted and [r.value for r in answer.result.results] == [0, 7]


def test_the_result_of_another_shard_does_instead_of_parts():
    bench = Bench()
    transaction = write(key(0), key(1), key(2))
    message_id = bench.deliver(transaction)
    bench.hear(5, ShardResults(1, [result_of(transaction, message_id, Timestamp(NOW + 1, 0), None)]))
    assert bench.outcomes()[0].status == APPLIED and bench.store.get(key(0)) is not None


def test_parts_may_come_before_the_delivery():
    bench = Bench()
    transaction = write(key(0), key(1))
    message_id = bench.new_id()
    bench.part(1, message_id, transaction)
    bench.deliver(transaction, message_id)
    assert len(bench.outcomes()) == 1
    bench.part(1, message_id, transaction)
    assert not bench.replica.signals._early


def test_settled_before_it_is_complete_here_leaves_nothing_behind():
    bench = Bench()
    transaction = write(key(0), key(1))
    early, late = bench.new_id(), bench.new_id()
    bench.replica.on_settled(early, bench.now, bench.out)
    for message_id in (early, late):
        bench.deliver(transaction, message_id)
    bench.replica.on_settled(late, bench.now, bench.out)
    for message_id in (early, late):
        bench.part(1, message_id, transaction)
        assert bench.store.part(message_id) is None
    assert not bench.replica.signals._settled_early


def test_a_replayed_outcome_needs_no_parts_and_remembers_the_same():
    first, second = Bench(), Bench()
    transaction = Transaction((Compare(key(1), "exists", "==", True),), (Add(key(0), 1),), (Add(key(0), 10),))
    message_id = first.deliver(transaction)
    first.part(1, message_id, transaction, Vote(holds=False))
    ((_, record),) = first.out.completions
    second.deliver(transaction, message_id, outcome=record)
    assert second.out.completions == [(1, record)]
    assert second.store.remembered(message_id) == first.store.remembered(message_id)
    assert second.store.state_digest() == first.store.state_digest()
    assert second.store.part(message_id) == first.store.part(message_id)


def test_a_replay_that_gives_another_state_stops_the_replica():
    first, second = Bench(), Bench()
    message_id = first.deliver(Transaction(success=(Add(key(0), 1),)))
    ((_, record),) = first.out.completions
    second.store.write(key(0), b"41", Timestamp(1, 0))
    with pytest.raises(AssertionError, match="state after delivery 1"):
        second.deliver(Transaction(success=(Add(key(0), 1),)), message_id, outcome=record)


# -- what must not come -----------------------------------------------------------------------------------------------


def test_a_part_from_a_replica_of_another_shard_is_the_peers_error():
    bench = Bench()
    with pytest.raises(PeerError, match="part of shard 1"):
        bench.hear(6, Parts(1, []))
    with pytest.raises(PeerError, match="result of shard 2"):
        bench.hear(3, ShardResults(2, []))


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        (
            msgspec.msgpack.encode([2, [[], [], []]]),
            "format 2 was ordered and this program knows 1; use a newer release",
        ),
        (msgspec.msgpack.encode([2, {"new": 1}]), "format 2 was ordered"),
        (b"\xc1", "not a transaction"),
    ],
)
def test_an_ordered_message_of_another_program_is_named(payload, text):
    bench = Bench()
    message = AppMessage(bench.new_id(), (0,), payload, 0)
    with pytest.raises(EnvelopeError, match=text):
        bench.replica.on_deliver(Delivered(1, Timestamp(NOW, 0), FINAL, False, message, NOW), None, NOW, bench.out)
