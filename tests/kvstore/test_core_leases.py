"""Leases: what is attached to them, what ends them, and when."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore.api import leases
from kvstore.api.leases import Lease
from kvstore.api.model import (
    LEASE_KEYS_MAX,
    NO_LEASE,
    Add,
    Append,
    Compare,
    Delete,
    DeleteRange,
    Get,
    LeasedPut,
    Max,
    Move,
    Put,
    Revoke,
    Transaction,
    lease_key,
)
from kvstore.api.shard_map import PlacedRun, ranges_of, slot_of
from kvstore.core import execution as executing
from kvstore.core import leases as measuring
from kvstore.core.audit import APPLIED, FAILED, Given, MovedRow
from kvstore.core.bundles import decode_bundle, decode_transaction
from kvstore.core.execution import Execution, vote
from kvstore.core.messages import Parts, ReadNow, ReadNowTold, ShardState, Vote
from kvstore.core.plans import LocalPlan
from kvstore.simulated.runner import run_seed
from kvstore.simulated.settings import Settings
from kvstore.storage.backend import MemoryBackend
from kvstore.storage.store import Store
from multicast.types import Timestamp, created_us
from tests.amounts import examples
from tests.kvstore.one_replica import SHARDS, Bench, key, write

NOW = Timestamp(100, 1)
TTL_US = 2_000_000
SECOND = 1_000_000


def lease(shard: int) -> bytes:
    """The id of one at home in this shard."""
    return next(i for i in (b"%016d" % n for n in range(1000)) if SHARDS.shard_of(lease_key(i)) == shard)


def attach(number: int, to: bytes) -> Transaction:
    return Transaction(success=(LeasedPut(key(0, number), b"v", to),))


def granted(bench: Bench, home: int = 0) -> bytes:
    made = lease(home)
    if home == 0:
        bench.deliver(leases.grant(made, TTL_US // 1000), made)
    return made


def asked(bench: Bench) -> list[Transaction]:
    """The transactions that have left since this was asked last."""
    return [decode_transaction(bundled) for message in bench.multicast() for bundled in decode_bundle(message)]


def row_version(bench: Bench, of: bytes) -> Timestamp:
    row = bench.store.get(lease_key(of))
    assert row is not None
    return row.version


def test_what_is_attached_goes_with_the_lease_and_nothing_else() -> None:
    bench = Bench()
    mine = granted(bench)
    for number in range(4):
        bench.deliver(attach(number, mine))
    bench.deliver(Transaction(success=(Put(key(0, 1), b"detached"), Delete(key(0, 2)), Append(key(0, 3), b"!"))))
    bench.deliver(Transaction(success=(Put(key(0, 2), b"again"),)))
    row = bench.store.get(lease_key(mine))
    assert row is not None
    bench.deliver(leases.revoke(row, mine))
    assert bench.store.get(lease_key(mine)) is None and bench.store.attached(mine) == []
    assert [bench.store.get(key(0, number)) is None for number in range(4)] == [True, False, False, True]


@pytest.mark.parametrize("again", [Add(key(0, 1), 5), Append(key(0, 1), b"!"), Max(key(0, 1), 7)])
def test_what_is_deleted_and_written_again_in_one_transaction_is_attached_no_more(again: Add | Append | Max) -> None:
    bench = Bench()
    mine = granted(bench)
    put = LeasedPut(key(0, 1), b"1", mine)
    bench.deliver(Transaction(success=(put, Delete(key(0, 1)), again)))
    bench.deliver(Transaction(success=(put, DeleteRange(b"", key(0, 1), key(0, 1) + b"\0"), again)))
    row = bench.store.get(key(0, 1))
    assert row is not None and row.lease == NO_LEASE and bench.store.attached(mine) == []


def test_a_renewal_that_was_ordered_first_wins() -> None:
    bench = Bench()
    mine = granted(bench)
    row = bench.store.get(lease_key(mine))
    assert row is not None
    bench.deliver(leases.renew(mine))
    bench.deliver(leases.revoke(row, mine))
    assert bench.store.get(lease_key(mine)) is not None and not bench.outcomes()[-1].succeeded


def test_nothing_is_attached_to_a_lease_that_is_not_there() -> None:
    bench = Bench()
    bench.deliver(Transaction(success=(Put(key(0), b"v"), LeasedPut(key(0, 1), b"v", lease(0)))))
    assert bench.statuses() == [FAILED] and bench.store.get(key(0)) is None


def test_the_home_of_a_lease_decides_whether_there_is_one() -> None:
    """Here is a key, at another shard the lease: its vote counts."""
    for vote_of_home, status in ((None, APPLIED), (Vote(True, "put: there is no such lease"), FAILED)):
        bench = Bench()
        elsewhere = lease(1)
        bench.part(1, bench.deliver(attach(0, elsewhere)), vote_of_home)
        row = bench.store.get(key(0))
        assert bench.statuses() == [status]
        assert (row.lease if row else NO_LEASE) == (elsewhere if status == APPLIED else NO_LEASE)


def test_the_home_of_a_lease_notes_the_slots_of_its_keys_once() -> None:
    bench = Bench()
    mine, there = granted(bench), key(1)
    versions = [row_version(bench, mine)]
    for _ in range(2):
        bench.part(1, bench.deliver(Transaction(success=(LeasedPut(there, b"v", mine),))))
        versions.append(row_version(bench, mine))
    row = bench.store.get(lease_key(mine))
    assert row is not None and leases.decode_lease(row.value) == Lease(TTL_US // 1000, (slot_of(there),))
    assert versions[0] < versions[1] == versions[2]
    assert SHARDS.shards_of(leases.revoke(row, mine)) == (0, 1)


def test_each_shard_of_a_revocation_deletes_what_is_its_own() -> None:
    bench = Bench()
    elsewhere = lease(1)
    bench.part(1, bench.deliver(attach(0, elsewhere)))
    revocation = Transaction(success=(Revoke(elsewhere, (slot_of(key(0)),)),))
    bench.part(1, bench.deliver(revocation))
    (read,) = bench.outcomes()[-1].reads
    assert bench.store.get(key(0)) is None and read.key == key(0)
    assert [write.key for write in bench.outcomes()[-1].writes] == [key(0)]


def test_a_vote_waits_for_a_revocation_that_does_not_name_what_it_deletes() -> None:
    """Else both shards would go by a key that is there no more."""
    bench = Bench()
    elsewhere = lease(1)
    bench.part(1, bench.deliver(attach(0, elsewhere)))
    revoked = bench.deliver(Transaction(success=(Revoke(elsewhere, (slot_of(key(0)),)),)))
    there = Compare(key(0), "exists", "==", True)
    judged = bench.deliver(Transaction((there,), (Put(key(0), b"w"), Put(key(1), b"w"))))
    assert judged.message.id not in [part.id for _, told in bench.sent(Parts) for part in told.parts]
    bench.part(1, revoked)
    (part,) = [part for _, told in bench.sent(Parts) for part in told.parts]
    assert part.id == judged.message.id and part.votes == [Vote(holds=False)]


def test_a_vote_on_what_is_attached_waits_for_what_is_to_be_attached_before_it() -> None:
    """Else there might be too many by then, in this shard alone."""
    bench = Bench()
    elsewhere = lease(1)
    first, second = [bench.deliver(attach(number, elsewhere)) for number in (0, 1)]
    assert second.message.id not in [part.id for _, told in bench.sent(Parts) for part in told.parts]
    bench.part(1, first)
    assert [part.id for _, told in bench.sent(Parts) for part in told.parts] == [second.message.id]


def test_no_more_keys_of_a_shard_are_attached_than_can_go_at_once() -> None:
    store, mine = Store.open(MemoryBackend()), lease(0)
    store.write(lease_key(mine), Lease(1000).encode(), NOW)
    keys = [b"k%d" % number for number in range(LEASE_KEYS_MAX + 1)]
    for one in keys[:-1]:
        store.write(one, b"v", NOW, lease=mine)
    again, more = [Transaction(success=(LeasedPut(one, b"w", mine),)) for one in (keys[0], keys[-1])]
    assert not vote(LocalPlan(again), store)[0].success_failure
    assert f"more than {LEASE_KEYS_MAX} keys" in vote(LocalPlan(more), store)[0].success_failure
    exchanged = Transaction(success=(Delete(keys[0]), *more.success))
    assert not vote(LocalPlan(exchanged), store)[0].success_failure


def test_what_is_attached_to_a_lease_is_looked_for_once_however_many_keys_come() -> None:
    """It is up to a thousand keys, and so are those that come: one after the other it would hold the shard up."""
    store, mine = Store.open(MemoryBackend()), lease(0)
    store.write(lease_key(mine), Lease(1000).encode(), NOW)
    for number in range(LEASE_KEYS_MAX):
        store.write(b"k%d" % number, b"v", NOW, lease=mine)
    again = tuple(LeasedPut(b"k%d" % number, b"w", mine) for number in range(LEASE_KEYS_MAX))
    with patch.object(Store, "attached", autospec=True, side_effect=Store.attached) as looked:
        assert not vote(LocalPlan(Transaction(success=again)), store)[0].success_failure
    assert looked.call_count == 1


LEASES = lease(0), lease(1)
FEW_KEYS = st.sampled_from([b"a", b"b", b"c", b"d", b"e"])
ATTACHING = st.one_of(
    st.builds(LeasedPut, FEW_KEYS, st.just(b"1"), st.sampled_from(LEASES)),
    st.builds(Put, FEW_KEYS, st.just(b"1")),
    st.builds(Append, FEW_KEYS, st.just(b"1")),
    st.builds(Delete, FEW_KEYS),
)


@examples(by_default=100, in_full=1000)
@given(st.dictionaries(FEW_KEYS, st.sampled_from((NO_LEASE, *LEASES))), st.lists(ATTACHING, max_size=12))
def test_of_each_lease_the_keys_are_counted_as_they_are_then(before: dict[bytes, bytes], operations: list[Any]) -> None:
    store = Store.open(MemoryBackend())
    for one in LEASES:
        store.write(lease_key(one), Lease(1000).encode(), NOW)
    for name, of in before.items():
        store.write(name, b"v", NOW, lease=of)
    there, possible = dict(before), True
    for operation in operations:
        if isinstance(operation, LeasedPut):
            others = [name for name, of in there.items() if of == operation.lease and name != operation.key]
            possible &= there.get(operation.key) == operation.lease or len(others) < 2
            there[operation.key] = operation.lease
        elif isinstance(operation, Delete):
            there.pop(operation.key, None)
        else:
            there[operation.key] = there.get(operation.key, NO_LEASE) if isinstance(operation, Append) else NO_LEASE
    execution = Execution(store, NOW)
    with patch.object(executing, "LEASE_KEYS_MAX", 2):
        execution.run(LocalPlan(Transaction(success=tuple(operations))).course(True))
    assert (execution.failure == "") == possible


def test_a_key_that_is_attached_in_a_revoking_transaction_goes_too() -> None:
    store, mine = Store.open(MemoryBackend()), lease(0)
    store.write(lease_key(mine), Lease(1000).encode(), NOW)
    execution = Execution(store, NOW)
    plan = LocalPlan(Transaction(success=(LeasedPut(b"a", b"v", mine), Revoke(mine, (slot_of(b"a"),)))))
    execution.run(plan.course(True))
    assert execution.writes == {b"a": None, lease_key(mine): None}


@pytest.mark.parametrize("change", [Add(key(0), 1), Append(key(0), b"1")])
def test_what_changes_a_value_leaves_it_attached(change: Add | Append) -> None:
    bench = Bench()
    mine = granted(bench)
    bench.deliver(Transaction(success=(LeasedPut(key(0), b"1", mine), change, Get(key(0)))))
    row = bench.store.get(key(0))
    assert row is not None and row.lease == mine


# -- time -------------------------------------------------------------------------------------------------------------


def test_a_lease_is_revoked_a_time_to_live_after_its_last_renewal_and_again_until_it_is_gone() -> None:
    bench = Bench()
    bench.tick()
    mine = granted(bench)
    bench.tick(TTL_US - 1)
    assert asked(bench) == []
    bench.deliver(leases.renew(mine))
    bench.tick(TTL_US - 1)
    assert asked(bench) == []
    bench.tick(1)
    (revocation,) = asked(bench)
    assert revocation.compare[0].operand == row_version(bench, mine)
    bench.tick(SECOND)
    assert asked(bench) == [revocation]
    bench.deliver(revocation)
    bench.tick(TTL_US + SECOND)
    assert asked(bench) == [] and bench.store.get(lease_key(mine)) is None


def test_the_time_to_live_begins_anew_with_a_new_leader() -> None:
    bench = Bench()
    leader = bench.replica.peers._leader_of
    mine = granted(bench)
    bench.replica.peers._leader_of = lambda group: 1
    bench.tick(TTL_US)
    assert asked(bench) == []
    bench.replica.peers._leader_of = leader
    bench.tick()
    bench.tick(TTL_US - 1)
    assert asked(bench) == []
    bench.tick(1)
    assert [transaction.success[0] for transaction in asked(bench)] == [Revoke(mine, ())]


@pytest.mark.parametrize("protocol", ["skeen", "white_box"])
def test_simulated_leases_expire_in_time_and_not_before_it(protocol: str) -> None:
    """What clients that hold some find under faults, slots that move among them; and at last all have gone."""
    settings = Settings(protocol=protocol, size="small", leases=True, moves=True)
    assert [run_seed(settings, seed).violations for seed in range(2)] == [[], []]


def test_all_leases_of_a_shard_are_measured_and_none_that_is_gone() -> None:
    bench = Bench()
    bench.replica.leases.portion = 1
    ids = [i for i in (b"%016d" % n for n in range(30)) if SHARDS.shard_of(lease_key(i)) == 0][:3]
    for made in ids:
        bench.deliver(leases.grant(made, TTL_US // 1000), made)
    for _ in ids:
        bench.tick()
    assert len(bench.replica.leases) == 3
    row = bench.store.get(lease_key(ids[0]))
    assert row is not None
    bench.deliver(leases.revoke(row, ids[0]))
    assert len(bench.replica.leases) == 2
    bench.tick(TTL_US)
    assert len(asked(bench)) == 2


def test_a_lease_that_is_granted_while_others_are_looked_for_is_measured() -> None:
    bench = Bench()
    bench.replica.leases.portion = 1
    first, *others = [i for i in (b"%016d" % n for n in range(30)) if SHARDS.shard_of(lease_key(i)) == 0][:4]
    for one in others:
        bench.store.write(lease_key(one), Lease(TTL_US // 1000).encode(), NOW)
    bench.tick()
    bench.deliver(leases.grant(first, TTL_US // 1000), first)
    for _ in others:
        bench.tick()
    assert len(bench.replica.leases) == 4


def test_of_several_shards_a_key_that_was_attached_for_a_moment_is_not_overlooked() -> None:
    """Who was told the same twice takes it for what held in between; nothing was deleted."""
    bench = Bench()
    mine = granted(bench)
    told: list[ReadNowTold] = []
    for number in (1, 2, 3):  # the first time its slot is new to the lease
        bench.deliver(attach(0, mine))
        bench.deliver(write(key(0)))
        bench.hear(3, ReadNow(number, leases.look(mine, keys=True), None))
        told += [one for _, one in bench.sent(ReadNowTold)]
    _, before, after = told
    assert before.digest == after.digest and after.deleted_at > before.position


def test_a_lease_of_a_day_that_is_renewed_all_the_time_takes_no_more_memory_for_that() -> None:
    bench, first = Bench(), lease(0)
    bench.deliver(leases.grant(first, leases.TTL_MS_MAX), first)
    bench.tick()
    with patch.object(measuring, "_STALE_MAX", 5):
        for _ in range(50):
            bench.deliver(leases.renew(first))
        for number in range(50):
            bench.deliver(leases.grant(made := b"%016d" % (5000 + number), leases.TTL_MS_MAX), made)
            row = bench.store.get(lease_key(made))
            if row is not None:  # it is at home here
                bench.deliver(leases.revoke(row, made))
    assert len(bench.replica.leases) == 1 and len(bench.replica.leases._due) <= 2 + 5
    bench.tick(1000 * leases.TTL_MS_MAX)
    assert [transaction.success for transaction in asked(bench)] == [(Revoke(first, ()),)]


@pytest.mark.parametrize("heard", [False, True], ids=["not heard of", "heard of"])
def test_a_lease_that_comes_with_a_move_is_measured_where_it_is_then(heard: bool) -> None:
    """Whether the new leader of its old shard, which has completed the step, has told of the move before or not."""
    bench, made = Bench(3), lease(0)
    bench.tick()
    slot = slot_of(lease_key(made))
    step = bench.deliver(Transaction(success=(Move(0, 1, ((slot, slot),)),)))
    if heard:
        bench.hear(1, ShardState(0, False, [], [PlacedRun(slot, slot, 1, step.timestamp)]))
    row = MovedRow(lease_key(made), NOW, Lease(TTL_US // 1000).encode(), NOW)
    bench.part(0, step, Vote(given=Given([row], [], b"", b"", True, True, [], ranges_of([slot_of(row.key)]))))
    bench.multicast()
    bench.tick()
    bench.tick(TTL_US - 1)
    assert asked(bench) == []
    bench.tick(1)
    (revocation,) = asked(bench)
    assert isinstance(revocation.success[0], Revoke) and revocation.success[0].lease == made


def test_a_lease_expires_though_slots_move_all_the_while() -> None:
    bench = Bench(3)
    bench.tick()
    first, second = [i for i in (b"%016d" % n for n in range(30)) if SHARDS.shard_of(lease_key(i)) == 0][:2]
    for made in (first, second):
        slots = ranges_of([slot_of(lease_key(made))])
        step = bench.deliver(Transaction(success=(Move(0, 1, slots),)))
        row = MovedRow(lease_key(made), NOW, Lease(TTL_US // 1000).encode(), NOW)
        bench.part(0, step, Vote(given=Given([row], [], b"", b"", True, True, [], slots)))
        bench.multicast()
        bench.tick()
        bench.tick(TTL_US // 2)
    assert [transaction.success for transaction in asked(bench)] == [(Revoke(first, ()),)]
    assert len(bench.replica.leases) == 2


def test_a_revocation_is_as_young_as_its_shard_though_its_clock_was_set_back() -> None:
    bench = Bench()
    granted(bench)
    bench.tick()
    ahead = bench.now + 60 * SECOND
    bench.order(bench.delivered[0][0].message, at=ahead)
    bench.tick(TTL_US)
    (message,) = bench.multicast()
    (bundled,) = decode_bundle(message)
    assert min(created_us(message.id), created_us(bundled.id)) >= ahead // 1000 * 1000


def test_thousands_that_expire_together_are_not_revoked_in_one_batch() -> None:
    """Ten thousand held up the leader for as long as it takes to ask for and to order as many, once a second."""
    bench, many = Bench(), 1000
    for number in range(many):
        bench.store.write(lease_key(b"%016d" % number), Lease(TTL_US // 1000).encode(), NOW)
    bench.tick()
    bench.tick(TTL_US)
    revoked = asked(bench)
    assert len(revoked) == measuring.REVOKED_AT_ONCE
    while len(revoked) < many:
        wake = bench.replica.on_tick(bench.now, bench.out)
        assert wake is not None and wake > bench.now
        bench.tick(wake - bench.now)
        some = asked(bench)
        assert 0 < len(some) <= measuring.REVOKED_AT_ONCE
        revoked += some
    assert len({str(transaction) for transaction in revoked}) == many


def test_the_leases_of_a_shard_are_found_a_portion_in_each_batch() -> None:
    """Who began to lead looked for all at once, and again at each step of a move: a second for a hundred thousand."""
    bench, ids = Bench(), [b"%016d" % number for number in range(25)]
    for one in ids:
        bench.store.write(lease_key(one), Lease(TTL_US // 1000).encode(), NOW)
    scan, looked = bench.store.scan, []

    def counted(*arguments: Any) -> Any:
        found = scan(*arguments)
        looked.append(len(found[0]))
        return found

    bench.replica.leases.portion = 10
    with patch.object(bench.store, "scan", counted):
        for many in (10, 20, 25):
            looked.clear()
            assert (bench.tick() == bench.now) == (many < 25)
            assert len(bench.replica.leases) == many and sum(looked) <= 10
        bench.replica.leases.moved()
        bench.tick()
        assert len(bench.replica.leases) == 25
        bench.store.place(lease_key(ids[24]), None, NOW)
        while bench.tick() == bench.now:
            pass
        assert len(bench.replica.leases) == 24
        bench.tick(TTL_US)
        assert len(asked(bench)) == 24
