"""Copies of a simulated run with everything in it (moves, watches, leases, nested transactions) in one audit."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import Column
from pyspark.sql import functions as F

from kvstore.core.audit import SLOTS
from spark_etl import schemas
from spark_etl.checks import leases, moves
from spark_etl.ingest import histories
from spark_etl.ingest.journals import arrow_schema
from tests.spark_etl import folded
from tests.spark_etl.forged import Events, Forged, forge

OWN = "\0\0"
"""With what the store's own keys begin."""
_OF_SCHEMA = {"moves": schemas.table_schema("moves"), "given": schemas.table_schema("given")} | {
    "watched": schemas.WATCHED
}  # fmt: skip


def key_of_case(case: int, key: str) -> str:
    """The store's own key remains one."""
    own = OWN if key.startswith(OWN) else ""
    return f"{own}{case}:{key.removeprefix(own)}"


def slot_of_case(slot_of: Callable[[Column], Column]) -> Callable[[Column], Column]:
    """Of such a key: each case has slots of its own."""

    def slot(key: Column) -> Column:
        text = F.decode(key, "ISO-8859-1")
        case = F.regexp_extract(text, r"(?s)^(?:\x00\x00)?(\d+):", 1).cast("int")
        whole = F.encode(F.regexp_replace(text, r"(?s)^(\x00\x00)?\d+:", "$1"), "ISO-8859-1")
        return case * SLOTS + slot_of(whole)

    return slot


class Featured(Forged):
    """See `Forged`; what was forged may concern moves and watches, too."""

    def _rows(self) -> Mapping[str, list[dict[str, Any]]]:
        rows: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for number, (change, replicas) in enumerate(self.copies):
            case = self.first + number
            for segment in self.segments:
                found = self.parsed[segment.replica]
                if segment.replica in replicas:
                    found = self._parse(segment, forge(self.journals[segment.replica], change))
                for table, row in found:
                    rows[table].append(self._fold(case, row))
            for table, row in self._lines(self.told.get(number)):
                rows[table].append(self._fold(case, row))
        self.written = rows
        return rows

    def _open(self) -> None:
        super()._open()
        self.leased = True
        frames = {}
        for name, schema in _OF_SCHEMA.items():
            path = self.out / f"{name}.parquet"
            pq.write_table(pa.Table.from_pylist(self.written.get(name, []), schema=arrow_schema(schema)), path)
            frames[name] = self.spark.read.schema(schema).parquet(str(path))
        opened = self.opened.frame
        self.opened = SimpleNamespace(frame=lambda name: frames[name] if name in frames else opened(name))

    def _lines(self, change: Callable[[Events], Events | None] | None) -> list[tuple[str, dict[str, Any]]]:
        lines = [json.loads(line) for line in self.history_file.read_bytes().splitlines()]
        if change is not None:
            lines = change(lines) or lines
        data = "".join(json.dumps(line) + "\n" for line in lines).encode()
        found = histories.parse_history("history/clients.jsonl", data)
        return [(table, row) for batches in found for table, rows in batches.items() for row in rows.to_pylist()]

    def _fold(self, case: int, row: Mapping[str, Any]) -> dict[str, Any]:
        theirs = {name: row[name] for name in ("key", "reads", "value", "asked", "told", "slots") if name in row}
        new = super()._fold(case, {name: value for name, value in row.items() if name not in theirs}) | theirs
        if row.get("key") is not None:
            new["key"] = self._bytes_of_case(case, row["key"])
        if "slots" in row:
            for name in ("source", "target"):
                new[name] = case * folded.SHARDS + row[name]
            for name in ("asked", "slots"):
                ranges = json.loads(row[name])
                new[name] = json.dumps([[case * SLOTS + slot for slot in one] for one in ranges])
        elif row.get("asked") is not None:
            new["asked"] = json.dumps(self._asked(case, json.loads(row["asked"])))
        if row.get("told") is not None:
            new["told"] = json.dumps([self._answer(case, one) for one in json.loads(row["told"])])
        if row.get("reads") is not None:
            new["reads"] = [(key_of_case(case, key), self._version(case, version)) for key, version in row["reads"]]
        if isinstance(row.get("value"), list):
            new["value"] = [(key_of_case(case, key), number) for key, number in row["value"]]
        if row.get("changes") is not None:
            new["changes"] = [(key_of_case(case, key), value) for key, value in row["changes"]]
        if row.get("f") == "begin" and "first" in row and row["first"] is not None:
            new["first"] = self._bytes_of_case(case, row["first"])
            new["end"] = self._bytes_of_case(case, row["end"]) if row["end"] else b"%d;" % case
        return new

    @staticmethod
    def _bytes_of_case(case: int, key: bytes) -> bytes:
        own = OWN.encode() if key.startswith(OWN.encode()) else b""
        return own + b"%d:" % case + key.removeprefix(own)

    def _key(self, case: int, key: str) -> str:
        return key_of_case(case, key)


def is_lease_of_case(key: Column) -> Column:
    """Of such a key."""
    return F.decode(key, "ISO-8859-1").rlike(r"^\x00\x00\d+:lease/")


def patched(patch: pytest.MonkeyPatch) -> None:
    """See `folded.unlimited`; and slots and leases by case."""
    folded.unlimited(patch)
    patch.setattr(leases, "is_lease", is_lease_of_case)
    patch.setattr(moves, "slot_of", slot_of_case(moves.slot_of))
