"""The workloads against stores that break what each is about: whether anybody would notice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from kvstore.api.model import Add, Append, Get, Operation, OperationResult, Result, Transaction, Txn
from kvstore.http import errors
from multicast.types import Timestamp
from spark_etl import schemas
from spark_etl.checks import bank as bank_checks
from spark_etl.checks import workloads
from spark_etl.frames import relations
from spark_etl.frames.columns import union
from spark_etl.ingest.histories import parse_history
from tests.client_sdk.fake import FakeCluster
from workloads import bank, invariants

SOMETIMES = 7
TRANSACTIONS = 100


class Buggy(FakeCluster):
    """numbers: to do something wrong now and then."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = count(1)

    def now(self) -> bool:
        return next(self.numbers) % SOMETIMES == 0


class LastWriteLost(Buggy):
    """A transaction of several writes now and then has no effect on its last key."""

    def execute(self, txn: Transaction) -> Result:
        last = txn.success[-1]
        before = None if isinstance(last, Txn) else self.rows.get(last.key)
        result = super().execute(txn)
        if txn.compare and result.succeeded and len(txn.success) > 1 and before is not None and self.now():
            self.rows[last.key] = before
        return result


class EveryOtherReaderElsewhere(Buggy):
    """Of two readers in turn one does not see the first key of a group, the other one not the second."""

    def execute(self, txn: Transaction) -> Result:
        result = super().execute(txn)
        if not all(isinstance(one, Get) for one in txn.success):
            return result
        hidden = b"/0" if next(self.numbers) % 2 else b"/1"
        pairs = zip(txn.success, result.results, strict=True)
        seen = tuple(OperationResult() if op.key.endswith(hidden) else one for op, one in pairs)
        return Result(result.succeeded, result.version, seen)


class AppendsLost(Buggy):
    def operate(self, operation: Operation, version: Timestamp) -> OperationResult:
        if isinstance(operation, Append) and self.now():
            return OperationResult()
        return super().operate(operation, version)


class AppendsTwice(Buggy):
    def operate(self, operation: Operation, version: Timestamp) -> OperationResult:
        if isinstance(operation, Append) and self.now():
            super().operate(operation, version)
        return super().operate(operation, version)


class RefusedAndDone(Buggy):
    """What the client is told to be without effect is done."""

    def execute(self, txn: Transaction) -> Result:
        result = super().execute(txn)
        if any(isinstance(one, Append | Add) for one in txn.success) and self.now():
            raise errors.Problem(422, "failed", "so it says", field="success[0]")
        return result


class AddsTwice(Buggy):
    def operate(self, operation: Operation, version: Timestamp) -> OperationResult:
        if isinstance(operation, Add) and self.now():
            super().operate(operation, version)
        return super().operate(operation, version)


FINDS: dict[tuple[str, type[FakeCluster]], set[str]] = {
    ("cycle", LastWriteLost): {"ring-broken"},
    ("long_fork", EveryOtherReaderElsewhere): {"long-fork"},
    ("set", AppendsLost): {"lost-element"},
    ("set", AppendsTwice): {"repeated-element"},
    ("set", RefusedAndDone): {"unexpected-element"},
    ("counter", AddsTwice): {"counter-out-of-bounds"},
    ("bank", LastWriteLost): {"total-changed"},
    **{(name, FakeCluster): set() for name in (*invariants.WORKLOADS, "bank")},
}
"""Workload and store -> what the audit finds."""


async def stop_after(cluster: FakeCluster, stop: asyncio.Event) -> None:
    while cluster.time < TRANSACTIONS:
        await asyncio.sleep(0.01)
    stop.set()


async def histories(directory: Path) -> list[Path]:
    """One per entry of FINDS, all at once."""

    async def run(number: int, name: str, kind: Callable[[], FakeCluster]) -> Path:
        home = directory / str(number)
        async with kind() as cluster:
            stop = asyncio.Event()
            common: dict[str, Any] = {"directory": home, "clients": 3, "seconds": 60.0, "stop": stop}
            enough = asyncio.create_task(stop_after(cluster, stop))
            if name == "bank":
                await bank.run(cluster.urls, accounts=4, **common)
            else:
                await invariants.run(name, cluster.urls, **common)
            await enough
        return home / "history" / f"{name}.jsonl"

    return await asyncio.gather(*(run(i, name, kind) for i, (name, kind) in enumerate(FINDS)))


def conserved(operations: DataFrame) -> DataFrame:
    """The bank's check of what clients saw, one bank; its journals are not there."""
    messages = operations.select("id", F.col("version").alias("gts"))
    columns = "key binary, gts binary, id binary, value binary, digested boolean, deleted boolean"
    writes = operations.sparkSession.createDataFrame([], columns)
    return bank_checks.conservation(operations, messages, writes, F.lit(True))


def test_every_workload_shows_the_bug_that_it_is_about_and_accuses_no_correct_store(spark: Any, tmp_path: Path):
    paths = asyncio.run(histories(tmp_path))
    rows = []
    for number, path in enumerate(paths):
        for found in parse_history(str(number), path.read_bytes()):
            rows += [tuple(row.values()) for row in found["history"].to_pylist(maps_as_pydicts="strict")]
    operations = relations.operations(spark.createDataFrame(rows, schemas.HISTORY)).cache()
    owner = {row.id.hex(): int(row.file) for row in operations.select("id", "file").collect()}
    found: dict[int, set[str]] = {number: set() for number in range(len(FINDS))}
    checks = [check(operations) for _, check in workloads.INVARIANTS.values()]
    banks = [number for number, (name, _) in enumerate(FINDS) if name == "bank"]
    checks += [conserved(operations.where(F.col("file") == str(number))) for number in banks]
    for row in union(checks).select("name", "transactions").distinct().collect():
        found[owner[row.transactions[0].replace("-", "")]].add(row.name)
    assert dict(zip(FINDS, found.values(), strict=True)) == FINDS


def test_banks_of_several_histories_have_totals_of_their_own(spark: Any):
    def reads(file: str, f: str, *balances: dict[str, int]) -> list[tuple[Any, ...]]:
        return [(file, f"{file}{i}".encode().rjust(16), "ok", f, b"%d" % i, seen) for i, seen in enumerate(balances)]

    rows = [
        *reads("large", "read_all", {"a": 5, "b": 5, "c": 5}, {"a": 4, "b": 5, "c": 6}),
        *reads("inside", "read_all", {"a": 5, "b": 5}, {"a": 4, "b": 5}),  # the large one takes from it
        *reads("same", "read_all", {"c": 6, "b": 5, "a": 4}),
        *reads("another", "read_all", {"x": 1, "y": 2}, {"x": 2, "y": 1}),
        *reads("lost", "read_all", {"p": 1, "q": 2}, {"p": 1}),
        *reads("less", "read_all", {"c": 5, "b": 5, "a": 4}),
    ]
    columns = "file string, id binary, type string, f string, version binary, value map<string,bigint>"
    found = conserved(spark.createDataFrame(rows, columns)).collect()
    accused = {bytes.fromhex(row.transactions[0].replace("-", "")).strip() for row in found}
    assert accused == {b"lost1", b"less0"} and {row.name for row in found} == {"total-changed"}
