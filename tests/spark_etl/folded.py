"""Hundreds of small runs (`brute_run.Run`) in one audit: run c has ids, versions, keys, replicas, shards and history
files of its own, so that nothing of one touches another. What the audit decides globally, it decides for all of them.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from hashlib import blake2b
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F

from kvstore.core.bundles import version_of
from multicast.types import FINAL, OPTIMISTIC, Timestamp
from spark_etl import schemas
from spark_etl.audit.guarantees import Guarantees
from spark_etl.audit.runner import Audit
from spark_etl.frames import relations
from spark_etl.ingest.inputs import understand
from spark_etl.ingest.journals import arrow_schema
from spark_etl.report import Course, Property, Report, Violation
from spark_etl.search import consistency, serialization
from tests.spark_etl import brute_run

IDS, REPLICAS, SHARDS, TIEBREAKS = 10_000, 16, 4, 100
"""How many ids, replicas, shards and tie-breaks of messages a run has room for."""


def gts(case: int, time: int) -> bytes:
    """Of a message."""
    return Timestamp(time, case).encode()


def version(case: int, number: int) -> bytes:
    """Of a transaction (`brute_run`)."""
    return version_of(Timestamp(number // 10, case), number % 10).encode() if number else bytes(16)


def case_of_gts(version: bytes) -> int:
    """Of a read at a position, too, whose place ends with its id."""
    if len(version) > len(bytes(16)):
        return int.from_bytes(version[-16:], "big") // IDS
    return Timestamp.decode(version).tiebreak >> 16


def message_id(case: int, one: int) -> bytes:
    return (case * IDS + one).to_bytes(16, "big")


def case_of_file() -> Any:
    """The run that a row with a history's `file` is of, as a column."""
    return F.split(F.split("file", "/")[1], "-")[0].cast("int")


def case_of_text(one: str) -> int:
    """Of an id; a transaction without one has its version for an id."""
    number = int(one.replace("-", ""), 16)
    return number // IDS if number < 2**64 else (number % 2**64 >> 16) // TIEBREAKS


def of_case(case: int, shard: int | tuple[int, int]) -> Any:
    """Of a shard, alone or with a position in its log, that of a case."""
    return case * SHARDS + shard if isinstance(shard, int) else (case * SHARDS + shard[0], shard[1])


class Rows:
    """The rows of all tables, as an extraction would have them."""

    def __init__(self) -> None:
        self.tables: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self.marks: dict[int, int | None] = {}
        self.offset = 0
        self.first: dict[str, Any] = {}

    def add_run(self, case: int, run: brute_run.Run) -> None:
        for shard, members in run.shards.items():
            for replica in members:
                place = {"replica": case * REPLICAS + replica, "shard": case * SHARDS + shard, "segment": 0}
                names = {case * SHARDS + s: [case * REPLICAS + r for r in rs] for s, rs in run.shards.items()}
                records, file = run.given(replica), f"{case}-{replica}"
                if records is None:
                    continue
                self.tables["segments"].append(
                    {**place, "offset": 0, "file": file, "end": 1, "records": 1, "cluster": "c"}
                )
                if gap := run.lost.get(replica):
                    if gap[1] == len(run.journals[replica]):
                        self.marks[case * REPLICAS + replica] = 2
                    else:
                        self.tables["damage"].append({**place, "event": "damage", "file": file, "byte": 0})
                for record in records:
                    self.offset += not isinstance(record, brute_run.Account) or record.first
                    self._add(case, {**place, "offset": self.offset, "at": self.offset}, record, json.dumps(names))
        self._add_history(case, run.ops)

    def _add(self, case: int, place: dict[str, Any], r: Any, members: str) -> None:
        tables = self.tables
        if isinstance(r, brute_run.Started):
            tables["lives"].append({**place, "event": "started", "protocol": "p", "members": members})
        elif isinstance(r, brute_run.Stopped):
            tables["lives"].append({**place, "event": "stopped", "delivered": r.delivered, "completed": r.completed})
        elif isinstance(r, brute_run.Submitted):
            destinations = [case * SHARDS + s for s in r.destinations]
            tables["submitted"].append({**place, "id": message_id(case, r.id), "destinations": destinations})
        elif isinstance(r, brute_run.Delivery):
            tables["deliveries"].append({
                **place, "position": r.position, "gts": gts(case, r.time), "id": message_id(case, r.id),
                "stage": FINAL if r.position else OPTIMISTIC, "expired": r.expired,
                "destinations": [case * SHARDS + s for s in r.destinations], "origin": case * REPLICAS + r.origin,
                "payload_crc": r.payload,
            })  # fmt: skip
        else:
            who = {**place, "position": r.position, "gts": version(case, r.version), "id": message_id(case, r.id)}
            tables["outcomes"].append({
                **who, "index": r.index, "timestamp": gts(case, r.time), "status": r.status, "succeeded": r.succeeded,
                "truths": r.truths, "effect": r.status == brute_run.APPLIED and bool(r.writes),
            })  # fmt: skip
            if r.first:
                digest = None if r.digest is None else b"%d" % r.digest
                self.first = tables["outcomes"][-1]
                self.first |= {"content": b"", "bundle": b"", "state_digest": digest}
            for name, told in (("content", r.content), ("bundle", r.id)):
                self.first[name] = blake2b(self.first[name] + str(told).encode(), digest_size=16).digest()
            for key, seen in r.reads.items():
                tables["reads"].append({**who, "key": f"{case}:{key}".encode(), "version": version(case, seen)})
            for key, value in r.writes.items() if r.status == brute_run.APPLIED else ():
                tables["writes"].append({
                    **who, "key": f"{case}:{key}".encode(), "value": None if value is None else b"%d" % value,
                    "deleted": value is None, "digested": False,
                })  # fmt: skip

    def _add_history(self, case: int, ops: Sequence[brute_run.Op]) -> None:
        events: dict[str, list[tuple[int, int, int, dict[str, Any]]]] = defaultdict(list)
        for n, op in enumerate(ops):
            file = f"history/{case}-{op.file}"
            base = {"file": file, "process": op.process, "id": message_id(case, op.id), "f": op.f, "reads": []}
            begin = {**base, "type": "invoke", "at_us": op.invoke}
            if op.told is not None:
                gets = [["get", f"{case}:{key}"] for key in op.told]
                begin["asked"] = json.dumps({"success": gets, "failure": gets})
            events[file].append((op.invoke, 1, n, begin))
            if op.type:
                end = {**base, "type": op.type, "at_us": op.complete, "succeeded": op.succeeded}
                end["version"] = None if op.version is None else version(case, op.version)
                end["reads"] = [(f"{case}:{key}", version(case, seen)) for key, seen in op.reads.items()]
                if op.told is not None:
                    end["told"] = json.dumps([None if value is None else f"={value}" for value in op.told.values()])
                if op.place:
                    end |= {"shard": case * SHARDS + op.place[0], "position": op.place[1]}
                events[file].append((op.complete, 2 * (op.complete == op.invoke), n, end))
        for found in events.values():
            for line, (_, _, _, event) in enumerate(sorted(found, key=lambda e: e[:3]), 1):
                self.tables["history"].append({**event, "line": line})


class Folded(Audit):
    """The audit of many runs as of one."""

    def __init__(self, spark: Any, runs: Sequence[brute_run.Run], out: Path, **options: Any):
        super().__init__(spark, out, out, **options)
        self.runs = runs
        self.members = [run.shards for run in runs]
        self.marks: dict[int, int | None] = {}
        self.base = None
        self.first = 0
        """The number of the first of its runs."""

    def _rows(self) -> Mapping[str, list[dict[str, Any]]]:
        rows = Rows()
        for case, run in enumerate(self.runs, self.first):
            rows.add_run(case, run)
        self.marks = rows.marks
        return rows.tables

    def _open(self) -> None:
        rows = self._rows()
        wanted = {name: schemas.table_schema(name) for name in schemas.TABLES} | {"history": schemas.HISTORY}
        opened = {}
        for name, schema in wanted.items():
            self.out.mkdir(parents=True, exist_ok=True)
            path = self.out / f"{name}.parquet"
            pq.write_table(pa.Table.from_pylist(rows.get(name, []), schema=arrow_schema(schema)), path)
            opened[name] = self.spark.read.schema(schema).parquet(str(path))
        self.tables = {name: opened[name] for name in ("deliveries", "outcomes", "reads", "writes", "submitted")}
        self.history = opened["history"]
        self.opened: Any = SimpleNamespace(frame=opened.__getitem__)
        self.counts = {"history": 0} | {name: len(found) for name, found in rows.items()}
        fields = dict.fromkeys(schemas.JOURNAL.fieldNames())
        self.small = [
            SimpleNamespace(**{**fields, "table": name, **row})
            for name in ("lives", "segments", "damage")
            for row in rows.get(name, [])
        ]
        self.inputs = understand(self.small, {row["replica"] for row in rows["segments"]}, self.marks)
        self.inputs.added = []  # no run knows the shards of the others
        self.has_history = True
        told = rows.get("history", ())
        self.has_positions = any(row.get("position") or row.get("version") == bytes(16) for row in told)
        self.has_promised = any(row.get("seen") for row in told)
        self.course = Course()

    def blind_shards(self, case: int) -> list[int]:
        """Of this run: `Audit.unsure_shards`."""
        return [shard for shard in self.unsure_shards if shard // SHARDS == case]

    def _prove(self) -> None:
        """No lines to show."""

    def complete_before(self, ends: Mapping[int, bytes]) -> Any:
        """Per run; as a column, which does where a version does."""
        limits = [
            min((end for shard, end in ends.items() if shard // SHARDS == case), default=b"\xff" * 16)
            for case in range(len(self.members))
        ]
        listed = F.lit(",".join(limit.hex() for limit in limits))
        return F.unhex(F.element_at(F.split(listed, ","), case_of_file() + 1))


class Together(Folded):
    """The audit of several folds as of one: the runs of each are numbered after those of the one before."""

    def __init__(self, spark: Any, folds: Sequence[Folded], out: Path, **options: Any):
        super().__init__(spark, [], out, **options)
        self.folds = folds
        for fold in folds:
            fold.first = len(self.members)
            self.members = self.members + fold.members

    def _rows(self) -> Mapping[str, list[dict[str, Any]]]:
        rows: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for fold in self.folds:
            for table, found in fold._rows().items():
                rows[table] += found
            self.marks |= fold.marks
        return rows


def by_case(report: Report) -> dict[int, list[tuple[str, Violation]]]:
    """Run -> what was found in it, and which property that violates."""
    found: dict[int, list[tuple[str, Violation]]] = defaultdict(list)
    for prop in report.properties:
        for violation in prop.examples:
            cases = {case_of_text(one) for one in violation.transactions}
            (case,) = cases | {replica // REPLICAS for replica in violation.replicas}
            found[case].append((prop.name, violation))
    return found


class Found:
    """What cycle searches found; and which runs were accused, or might be: property -> their numbers."""

    def __init__(self) -> None:
        self.searches: list[serialization.CycleSearch] = []
        self.suspected: dict[str, set[int]] = defaultdict(set)


def unlimited(patch: pytest.MonkeyPatch) -> Found:
    """Show all violations and cycles, and let shards be bits of their own run's."""
    find_cycles = serialization.find_cycles
    patch.setattr("spark_etl.audit.ahead.EXAMPLES", 1_000_000)
    patch.setattr(consistency, "RESIDUE_MAX", 1_000_000)
    patch.setattr(
        serialization, "find_cycles", lambda s, t, i, n, _=0, likely=None: find_cycles(s, t, i, n, 1_000_000, likely)
    )
    patch.setattr(serialization, "order_cycle", partial(serialization.order_cycle, where=1_000_000))
    patch.setattr(relations, "shard_bit", lambda shard, shards: _bit(F.col(shard)))
    patch.setattr(relations, "destination_bits", lambda names, shards: F.aggregate(
        names, F.lit(0).cast("bigint"), lambda bits, shard: bits.bitwiseOR(_bit(shard))))  # fmt: skip
    found = Found()
    search = serialization.search

    def searching(edges: Any, names: Any, timeline: Any, through: Any = None) -> serialization.CycleSearch:
        result = search(edges, names, timeline, through)
        if through is not None:
            return result
        found.searches.append(result)
        name = "serializability" if timeline is None else "strict serializability"
        found.suspected[name] |= {case_of_cycle(cycle) for cycle in result.cycles}
        return result

    def doubting(self: Guarantees, prop: Property, likely: Any) -> None:
        for row in likely.collect() if likely is not None else ():
            found.suspected[prop.name] |= {case_of_text(one) for one in row.transactions}

    patch.setattr(serialization, "search", searching)
    patch.setattr(Guarantees, "_doubt", doubting)
    return found


def case_of_cycle(cycle: serialization.Cycle) -> int:
    return case_of_text(cycle.operations[0].id)


def ids_of_cycle(cycle: serialization.Cycle) -> list[int]:
    return [int(operation.id.replace("-", ""), 16) % IDS for operation in cycle.operations]


def _bit(shard: Any) -> Any:
    return F.pow(F.lit(2), shard % SHARDS).cast("bigint")
