"""The bank against a cluster that fails at random: no money is lost, and its history says what really happened."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import msgspec
import pytest

from client_sdk import AsyncClient, KvError
from kvstore.core.audit import HistoryEvent
from tests.client_sdk.fake import FakeCluster
from workloads import bank

SECONDS = 50.0
"""No bank runs so long: each stops when it has seen enough."""

FAULTS = ["", "", "", "", "", "reset_before", "reset_after", "not_ready", "late", "page", "garbage", "timeout"]


def events_of(directory: Path) -> list[HistoryEvent]:
    text = (directory / "history" / "bank.jsonl").read_bytes()
    return [msgspec.json.decode(line, type=HistoryEvent) for line in text.splitlines()]


def check_well_formed(events: list[HistoryEvent]) -> None:
    """Every process is sequential, and invokes nothing after an unknown outcome."""
    pending: dict[int, HistoryEvent] = {}
    over: set[int] = set()
    ids: set[str] = set()
    for event in events:
        if event.type == "invoke":
            assert event.process not in pending
            assert event.process not in over
            assert event.id not in ids
            ids.add(event.id)
            pending[event.process] = event
        else:
            invoked = pending.pop(event.process)
            assert (invoked.id, invoked.f) == (event.id, event.f)
            assert invoked.at_us <= event.at_us
            if event.type == "info":
                over.add(event.process)
    assert not pending


async def test_the_total_never_changes_under_faults(tmp_path: Path) -> None:
    rng = random.Random(3)
    async with FakeCluster() as cluster:
        for replica in cluster.replicas:
            replica.faults.extend([""] * 5 + [rng.choice(FAULTS) for _ in range(300)])
        stop = asyncio.Event()

        def enough(_: float, totals: bank.Totals) -> None:
            if totals.transfers > 20:
                stop.set()

        totals, balances = await bank.run(
            cluster.urls, directory=tmp_path, clients=4, accounts=8, seconds=SECONDS, stop=stop, on_second=enough
        )
        assert stop.is_set()
        assert totals.wrong_totals == 0
        assert sum(balances.values()) == 8 * bank.START
        rows = {key.decode(): int(value) for key, (value, _) in cluster.rows.items()}
        assert rows == balances
    events = events_of(tmp_path)
    check_well_formed(events)
    done = [e for e in events if e.type == "ok" and e.f == "transfer" and e.succeeded]
    assert len(done) == totals.transfers
    reads = [e for e in events if e.type == "ok" and e.f == "read_all"]
    assert all(e.value is not None and sum(e.value.values()) == 8 * bank.START for e in reads)
    assert all(set(e.reads) == set(balances) for e in reads)


async def test_accounts_keep_their_minimum_and_seven_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bank, "START", bank.MINIMUM + bank.TRANSFER_MAX)
    async with FakeCluster() as cluster:
        stop = asyncio.Event()

        def enough(_: float, totals: bank.Totals) -> None:
            if totals.refused:
                stop.set()

        _, balances = await bank.run(cluster.urls, clients=2, accounts=2, seconds=SECONDS, stop=stop, on_second=enough)
        assert stop.is_set()
        assert all(bank.MINIMUM <= value < 10 * bank.MINIMUM for value in balances.values())


async def test_unknown_outcomes_are_said_to_be_unknown(tmp_path: Path) -> None:
    async with FakeCluster() as cluster:
        running = asyncio.create_task(
            bank.run(cluster.urls, directory=tmp_path, clients=2, accounts=4, seconds=SECONDS)
        )
        while cluster.applied < 20:
            await asyncio.sleep(0.01)
        for replica in cluster.replicas:
            replica.always = "reset_after"
            replica.seen.clear()
        while len({one for replica in cluster.replicas for _, _, one in replica.seen if one}) < 2:  # both had no answer
            await asyncio.sleep(0.01)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    events = events_of(tmp_path)
    check_well_formed(events)
    assert [e.error for e in events if e.type == "info"] == ["interrupted"] * 2


async def test_the_accounts_are_on_all_shards_and_a_second_bank_finds_them() -> None:
    async with FakeCluster() as cluster, AsyncClient(cluster.urls) as store:
        first = bank.Bank(store, None)
        await first.open()
        assert {cluster.shard_map.shard_of(a.encode()) for a in first.accounts} == {0, 1}
        second = bank.Bank(store, None)
        await second.open()
        assert second.total == first.total == bank.ACCOUNTS * bank.START
        with pytest.raises(ValueError, match="another size"):
            await bank.Bank(store, None, accounts=bank.ACCOUNTS + 1).open()


async def test_a_wrong_total_is_noticed() -> None:
    async with FakeCluster() as cluster, AsyncClient(cluster.urls) as store:
        workload = bank.Bank(store, None, accounts=4)
        await workload.open()
        await store.put(workload.accounts[0], "1000000")
        await workload.read_all()
        assert workload.totals.wrong_totals == 1


async def test_a_bank_that_is_not_served_is_no_good_bank() -> None:
    async with FakeCluster() as cluster:
        with pytest.raises(KvError, match="no operation was answered"):
            await bank.run(cluster.urls, clients=0, accounts=4, seconds=0.05)
