"""Reads and dependencies of tiny histories, written as strings.

Transactions stand in the order of their versions, with bars between them: `wx` writes x, `dx` deletes it, `rx1` reads x
as transaction 1 (counted from 1) wrote it, `rx0` reads that it is absent: "wx | rx1 wy | ry2".
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

import spark_etl
from multicast.types import Timestamp, new_message_id
from spark_etl.checks import delivery, promises, transactions
from spark_etl.frames import edges, relations
from spark_etl.search import serialization

READS = "key binary, gts binary, id binary, version binary, shard int, replica int"
WRITES = "key binary, gts binary, id binary, deleted boolean, value binary, digested boolean, replica int"
NAMES = "gts binary, id binary, f string"
STRIDE = 100
"""Between the versions of two histories."""


def gts(number: int) -> bytes:
    return Timestamp(number, 0).encode()


def number(version: Any) -> int:
    return Timestamp.decode(bytes(version)).time


def frames(spark: Any, *histories: str) -> tuple[Any, Any]:
    """(ordered reads, writes) of histories, each of which has keys and versions of its own."""
    reads: list[Any] = []
    writes: list[Any] = []
    for case, history in enumerate(histories):
        first = case * STRIDE
        for n, transaction in enumerate(history.split("|"), first + 1):
            who = gts(n), n.to_bytes(16, "big")
            for word in transaction.split():
                kind, key = word[0], f"{case} {word[1]}".encode()
                if kind == "r":
                    version = int(word[2:])
                    reads.append((key, *who, gts(first + version) if version else bytes(16), 0, 0))
                else:
                    writes.append((key, *who, kind == "d", b"", False, 0))
    read_frame, write_frame = spark.createDataFrame(reads, READS), spark.createDataFrame(writes, WRITES)
    return edges.reads_in_order(read_frame, write_frame), write_frame


BUNDLES = (
    "id binary, gts binary, replica int, shard int, live boolean, transaction binary, single boolean,"
    " outcome_message binary, outcome_gts binary, version binary, bundle binary, origin int, payload binary,"
    " destinations array<int>"
)


@pytest.mark.parametrize(
    ("live", "bundle", "named"), [
        (True, "given whom", False), (True, "nothing whom", True), (False, "nothing whom", False),
        (False, "nothing else", True),
    ],
)  # fmt: skip
def test_a_late_copy_of_a_step_hands_over_nothing_and_carries_the_same(
    spark: Any, live: bool, bundle: str, named: bool
) -> None:
    """What is taken as new in one shard and is expired in the other, or again in the first."""

    def row(replica: int, live: bool, bundle: str) -> tuple[Any, ...]:
        given, carried = bundle.split()
        mine = f"{given:<8}{carried:<8}".encode()
        return (bytes(16), gts(9), replica, replica, live, b"t", False, None, gts(9), gts(9), mine, 0, b"p", [0, 1])

    log = spark.createDataFrame([row(0, True, "given whom"), row(1, live, bundle)], BUNDLES)
    tops = spark.createDataFrame([(n, n, gts(9)) for n in range(2)], "replica int, shard int, top_gts binary")
    found = delivery.one_order(relations.messages(log, [0, 1]), tops, [0, 1], []).collect()
    assert [one.name for one in found] == ["bundle-disagreement"] * named


def test_no_window_goes_from_a_row_to_the_last_one():
    """Spark goes through such a one again for each row; in the opposite order it is gone through once."""
    paths = sorted(Path(spark_etl.__file__).parent.rglob("*.py"))
    assert [path.name for path in paths if "unboundedFollowing" in path.read_text()] == []


def test_reads(spark: Any):
    expected = {
        "wx | rx1 wx | rx2": set(),
        "rx0 | wx": set(),
        "wx | dx | rx0 | wx | rx4": set(),
        "wx | wx | rx1": {"stale-read"},
        "wx | rx0": {"stale-read"},
        "wx | dx | rx1": {"stale-read"},
        "wx | rx3 | wx": {"future-read"},
        "wx | rx2 wx": {"future-read"},
        "wx | wy | rx2": {"unwritten-version"},
        "rx7": {"unwritten-version"},
    }
    found: dict[str, set[str]] = {history: set() for history in expected}
    for row in transactions.reads(*frames(spark, *expected), []).collect():
        found[list(expected)[UUID(row.transactions[0]).int // STRIDE]].add(row.name)
    assert found == expected


def test_reads_of_a_shard_with_missing_writes_are_not_judged(spark: Any):
    reads, writes = frames(spark, "wx | rx7")
    assert transactions.reads(reads, writes, [0]).count() == 0


def test_what_is_called_too_late_is_older_than_all_that_is_not(spark: Any):
    """Not so where the id does not say how old it is, as a version in its place, whatever its digits are."""
    made = 1_700_000_000_000_000
    unnamed = Timestamp(made & ~0xFFFF | 0x7123, 0).encode()
    rows = [
        (new_message_id(made, 1), None, gts(made + 100)),
        (new_message_id(made + 5000, 2), None, gts(made + 5100)),
        (new_message_id(made, 3), gts(made + 101), None),
        (new_message_id(made, 4), gts(made + 100), None),
        (bytes(16), gts(made), None),
        (unnamed, None, unnamed),
    ]
    frame = spark.createDataFrame(rows, "id binary, lapsed binary, kept binary")
    (found,) = transactions.too_early(frame).collect()
    assert found.name == "expired-early" and found.transactions[0] == str(UUID(bytes=rows[3][0]))


@pytest.mark.parametrize("based", [False, True])
def test_what_stood_before_the_base_may_have_been_counted(spark: Any, based: bool):
    """But no fewer than are known. The store's own keys a client of the simulation may have counted, too."""
    asked = '{"success":[["count",""]]}'
    reads = [("a", bytes([n]) * 16, "count", asked, f"[{n}]", True, gts(5)) for n in range(4)]
    reads = spark.createDataFrame(
        reads, "file string, id binary, f string, asked string, told string, succeeded boolean, seen binary"
    )
    writes = spark.createDataFrame(
        [(b"a", 0, gts(1), False), (b"\0\0lease", 0, gts(2), False)],
        "key binary, shard int, gts binary, deleted boolean",
    )
    looks = spark.createDataFrame([], "file string, id binary, shard int, at binary")
    found = promises.incomplete(reads, looks, writes, writes, [], {}, based).collect()
    assert {one.name for one in found} == {"otherwise-counted"}
    assert {one.transactions[0][:2] for one in found} == ({"00"} if based else {"00", "03"})


def test_ranges_and_writes_are_not_multiplied(spark: Any):
    """No join compares keys with bounds: of a long run with many ranges that had no end."""
    reads = spark.createDataFrame(
        [],
        "file string, id binary, f string, asked string, told string, succeeded boolean, seen binary, shard int,"
        " at binary",
    )
    writes = spark.createDataFrame([], "key binary, shard int, gts binary, deleted boolean")
    found = promises.incomplete(reads, reads, writes, writes, [], {}, False)
    plan = found._jdf.queryExecution().optimizedPlan().toString()
    joins = [line for line in plan.splitlines() if "Join" in line]
    assert joins and not [line for line in joins if "<" in line or ">" in line]


def test_dependencies(spark: Any):
    expected = {
        "wx | wx": {"1 ww 2"},
        "wx | rx1": {"1 wr 2"},
        "rx0 | wx": {"1 rw 2"},
        "wx | rx1 | wx": {"1 ww 3", "1 wr 2", "2 rw 3"},
        "wx | rx1 wx": {"1 ww 2", "1 wr 2"},
        "wx | dx | rx0 | wx": {"1 ww 2", "2 wr 3", "2 ww 4", "3 rw 4"},
        "wx | wx | rx1": {"1 ww 2", "1 wr 3", "3 rw 2"},
        "wx | rx9 | wx": {"1 ww 3"},
    }
    found: dict[str, set[str]] = {history: set() for history in expected}
    for e in edges.dependencies(*frames(spark, *expected)).collect():
        case, source = divmod(number(e.source), STRIDE)
        found[list(expected)[case]].add(f"{source} {edges.KINDS[e.kind]} {number(e.target) % STRIDE}")
    assert found == expected


def test_cycles_get_their_names_and_a_sentence_per_edge(spark: Any):
    expected = {
        "wx wy | rx1 wx | ry1": set(),
        "rx2 wy | ry1 wx": {"G1c"},
        "wx wy | rx1 ry3 | wx wy": {"G-single"},
        "wx wy | rx1 wy | ry1 wx": {"G2-item"},
    }
    reads, writes = frames(spark, *expected)
    numbers = [case * STRIDE + n for case in range(len(expected)) for n in range(1, 4)]
    names = spark.createDataFrame([(gts(n), n.to_bytes(16, "big"), "txn") for n in numbers], NAMES)
    found: dict[str, set[str]] = {history: set() for history in expected}
    for cycle in serialization.search(edges.dependencies(reads, writes), names, None).cycles:
        found[list(expected)[UUID(cycle.operations[0].id).int // STRIDE]].add(cycle.name)
        assert len(cycle.edges) == len(cycle.operations) == len(cycle.sentences)
        assert all("key" in sentence for sentence in cycle.sentences)
    assert found == expected
