"""Reads and dependencies of tiny histories, written as strings.

Transactions stand in the order of their versions, with bars between them: `wx` writes x, `dx` deletes it, `rx1` reads x
as transaction 1 (counted from 1) wrote it, `rx0` reads that it is absent: "wx | rx1 wy | ry2".
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from multicast.types import Timestamp, new_message_id
from spark_etl import edges, serialization
from spark_etl.checks import transactions

READS = "key binary, gts binary, id binary, version binary, shard int, replica int"
WRITES = "key binary, gts binary, id binary, deleted boolean, value binary, digested boolean, replica int"


def gts(number: int) -> bytes:
    return Timestamp(number, 0).encode()


def number(version: Any) -> int:
    return Timestamp.decode(bytes(version)).time


def frames(spark: Any, history: str) -> tuple[Any, Any]:
    """(ordered reads, writes) of a history."""
    reads: list[Any] = []
    writes: list[Any] = []
    for n, transaction in enumerate(history.split("|"), 1):
        who = gts(n), n.to_bytes(16, "big")
        for word in transaction.split():
            kind, key = word[0], word[1].encode()
            if kind == "r":
                reads.append((key, *who, gts(int(word[2:])), 0, 0))
            else:
                writes.append((key, *who, kind == "d", b"", False, 0))
    read_frame, write_frame = spark.createDataFrame(reads, READS), spark.createDataFrame(writes, WRITES)
    return edges.reads_in_order(read_frame, write_frame), write_frame


@pytest.mark.parametrize(
    ("history", "expected"),
    [
        ("wx | rx1 wx | rx2", set()),
        ("rx0 | wx", set()),
        ("wx | dx | rx0 | wx | rx4", set()),
        ("wx | wx | rx1", {"stale-read"}),
        ("wx | rx0", {"stale-read"}),
        ("wx | dx | rx1", {"stale-read"}),
        ("wx | rx3 | wx", {"future-read"}),
        ("wx | rx2 wx", {"future-read"}),
        ("wx | wy | rx2", {"unwritten-version"}),
        ("rx7", {"unwritten-version"}),
    ],
)
def test_reads(spark: Any, history: str, expected: set[str]):
    reads, writes = frames(spark, history)
    assert {row.name for row in transactions.reads(reads, writes, []).collect()} == expected


def test_reads_of_a_shard_with_missing_writes_are_not_judged(spark: Any):
    reads, writes = frames(spark, "wx | rx7")
    assert transactions.reads(reads, writes, [0]).count() == 0


def test_what_is_called_too_late_is_older_than_all_that_is_not(spark: Any):
    """Not so where the id does not say how old it is."""
    made = 1_700_000_000_000_000
    rows = [
        (new_message_id(made, 1), None, gts(made + 100)),
        (new_message_id(made + 5000, 2), None, gts(made + 5100)),
        (new_message_id(made, 3), gts(made + 101), None),
        (new_message_id(made, 4), gts(made + 100), None),
        (bytes(16), gts(made), None),
    ]
    frame = spark.createDataFrame(rows, "id binary, lapsed binary, kept binary")
    (found,) = transactions.too_early(frame).collect()
    assert found.name == "expired-early" and found.transactions[0] == str(UUID(bytes=rows[3][0]))


@pytest.mark.parametrize(
    ("history", "expected"),
    [
        ("wx | wx", {"1 ww 2"}),
        ("wx | rx1", {"1 wr 2"}),
        ("rx0 | wx", {"1 rw 2"}),
        ("wx | rx1 | wx", {"1 ww 3", "1 wr 2", "2 rw 3"}),
        ("wx | rx1 wx", {"1 ww 2", "1 wr 2"}),
        ("wx | dx | rx0 | wx", {"1 ww 2", "2 wr 3", "2 ww 4", "3 rw 4"}),
        ("wx | wx | rx1", {"1 ww 2", "1 wr 3", "3 rw 2"}),
        ("wx | rx9 | wx", {"1 ww 3"}),
    ],
)
def test_dependencies(spark: Any, history: str, expected: set[str]):
    found = edges.dependencies(*frames(spark, history)).collect()
    assert {f"{number(e.source)} {edges.KINDS[e.kind]} {number(e.target)}" for e in found} == expected


@pytest.mark.parametrize(
    ("history", "expected"),
    [
        ("wx wy | rx1 wx | ry1", ""),
        ("rx2 wy | ry1 wx", "G1c"),
        ("wx wy | rx1 ry3 | wx wy", "G-single"),
        ("wx wy | rx1 wy | ry1 wx", "G2-item"),
    ],
)
def test_cycles_get_their_names_and_a_sentence_per_edge(spark: Any, history: str, expected: str):
    reads, writes = frames(spark, history)
    ids = [(gts(n), n.to_bytes(16, "big"), "txn") for n in range(1, 4)]
    names = spark.createDataFrame(ids, "gts binary, id binary, f string")
    found = serialization.search(edges.dependencies(reads, writes), names, None)
    assert [cycle.name for cycle in found.cycles] == ([expected] if expected else [])
    for cycle in found.cycles:
        assert len(cycle.edges) == len(cycle.operations) == len(cycle.sentences)
        assert all("key" in sentence for sentence in cycle.sentences)
