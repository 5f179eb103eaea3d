"""What the kernels prove of a run, without Spark: of a directory, or of a small run in memory (`brute_run`)."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq

import spark_etl
from spark_etl import schemas
from spark_etl.audit import course
from spark_etl.certify import proof
from spark_etl.certify.proof import Proof
from spark_etl.certify.proving import prove
from spark_etl.certify.source import NOBODY, Source, source
from spark_etl.certify.tasks import work
from spark_etl.ingest import base, extraction, tables
from spark_etl.ingest.inputs import understand
from spark_etl.ingest.journals import arrow_schema
from tests.spark_etl import brute_run, folded

PROVABLE = {*proof.LOGS, *proof.ACCOUNTS, proof.VALIDITY, proof.ORDER, proof.READS, proof.CLIENTS, proof.VALUES,
            proof.POSITIONS, proof.PROMISES, proof.BANK}  # fmt: skip
"""Properties that a kernel proves by itself."""

_COLUMNS = {name: arrow_schema(schemas.table_schema(name)) for name in schemas.TABLES}
_COLUMNS |= {"history": arrow_schema(schemas.HISTORY)}
_FIELDS = dict.fromkeys(schemas.JOURNAL.fieldNames())


def workers(told: list[bytes]) -> list[bytes]:
    return list(map(work, told))


def of_directory(run: Path, out: Path, into: Path | None = None) -> Proof:
    """A run on the disk. into: see `prove`."""
    return of_tables(out, extraction.extract(run, out).manifest, into)


def of_tables(out: Path, manifest: tables.Manifest, into: Path | None = None) -> Proof:
    """What was extracted."""
    out, manifest, found = base.above(out, manifest)
    opened = tables.Tables(None, out, manifest)  # type: ignore[arg-type]
    small, span = opened.small(), opened.span("deliveries", "at")
    begins = found.begins if found else None
    inputs = understand(small, sorted(manifest.marks), manifest.marks, manifest.floors, begins)
    has_history = opened.counts.get("history", 0) > 0
    width = course.slice_width(small, span)
    return prove(workers, source(out, manifest.files()), inputs, has_history=has_history, width=width, into=into)


def of_run(run: brute_run.Run, out: Path, case: int = 0, into: Path | None = None) -> Proof:
    """A small run, the n-th, whose tables go to `out`. into: see `prove`."""
    return written(run, out, case, into)()


def written(run: brute_run.Run, out: Path, case: int = 0, into: Path | None = None) -> Callable[[], Proof]:
    """Its tables are written now, and judged as often as one asks. Those without rows need not be its own."""
    rows = folded.Rows()
    rows.add_run(case, run)
    files = {}
    for name, schema in _COLUMNS.items():
        found = rows.tables.get(name, [])
        path = out / f"{name}.parquet" if found else out / f"{name}-empty.parquet"
        if found or not path.exists():
            pq.write_table(pa.Table.from_pylist(found, schema=schema), path)
        files[name] = {NOBODY: [str(path)]}
    small = [
        SimpleNamespace(**{**_FIELDS, "table": name, **row})
        for name in ("lives", "segments", "damage")
        for row in rows.tables.get(name, [])
    ]
    inputs = understand(small, {row["replica"] for row in rows.tables["segments"]}, rows.marks)
    told = bool(rows.tables.get("history"))
    return lambda: prove(workers, Source(files), inputs, has_history=told, width=1000, into=into)


def properties() -> dict[str, set[str]]:
    """Violation -> the properties that it is one of, by the documentation."""
    text = Path(spark_etl.__file__).with_name("README.md").read_text()
    found: dict[str, set[str]] = defaultdict(set)
    name = ""
    for row in text.partition("| property | violation |")[2].partition("\n\n")[0].splitlines()[2:]:
        cells = row.split("|")
        name = cells[1].strip() or name
        for one in re.findall(r"`([^`]+)`", cells[2]):
            found[one].add(name)
    return found
