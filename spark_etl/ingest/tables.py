"""The tables of a run as Parquet: written by an extraction that reads only what is new, and opened for the checks.

    OUT/extract.json                              what was read, up to where; the version of the tables
    OUT/journal/table=NAME/r0-s00000000-b64.parquet   of replica 0's segment 0, from byte 64 on
    OUT/history/h47123245-b0.parquet              of a history (the CRC-32 of its name), from byte 0 on
    OUT/watched/h47123245-b0.parquet              of its watches
    OUT/trace/t01c314eb.parquet                   of a trace of a simulation

`extract.json` is written last; files that it does not name are what an interrupted extraction left, and go. It has a
checksum of each that it does name, and one of itself: a disk that has changed a byte must not accuse the cluster.
"""

from __future__ import annotations

import errno
import fcntl
import os
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from spark_etl import schemas
from spark_etl.ingest import parquet
from spark_etl.ingest.journals import arrow_schema
from spark_etl.ingest.sources import Unreadable

MANIFEST, LOCK = "extract.json", ".lock"
_RUN = ("replicas", "history", "trace")
NEVER = (0, 0, 0, 0)
_SMALL_TABLES = ("lives", "segments", "damage")


class SourceState(msgspec.Struct):
    """What is known of one file. read: up to which byte it was read for good; crc: of the bytes up to there. touched:
    size, times of the last changes (ns) and inode. records: before `read` (of a history: lines); batch: the number of
    the last batch there. rows: of these, by table; files: theirs, as written. rest_rows, rest_files: of what stands
    behind. error: why it is no segment. twin: `touched` of the copy in the archive, if it is the same."""

    name: str
    touched: tuple[int, int, int, int]
    read: int = 0
    crc: int = 0
    records: int = 0
    rows: dict[str, int] = {}
    files: dict[str, parquet.Seal] = {}
    rest_rows: dict[str, int] = {}
    rest_files: dict[str, parquet.Seal] = {}
    error: str = ""
    batch: int = 0
    twin: tuple[int, int, int, int] = NEVER


class Manifest(msgspec.Struct):
    """`extract.json`. marks: replica -> the journal offset up to which it vouched. floors: see `find_floors`.
    archived: unless the cluster says that it keeps nothing. crc: of all the rest, in the file; else 0."""

    version: int
    run: str
    marks: dict[int, int | None]
    segments: dict[str, SourceState]
    histories: dict[str, SourceState]
    traces: dict[str, SourceState] = {}
    floors: dict[int, tuple[int, int, int]] = {}
    archived: bool = True
    crc: int = 0

    def _states(self) -> list[SourceState]:
        return [*self.segments.values(), *self.histories.values(), *self.traces.values()]

    def rows(self) -> dict[str, int]:
        """How many rows each table has; "history", "watched" and "frames" too."""
        counts: Counter[str] = Counter()
        for state in self._states():
            counts.update(state.rows)
            counts.update(state.rest_rows)
        return dict(counts)

    def written(self) -> dict[str, parquet.Seal]:
        """The Parquet files that have rows, relative to the directory of the tables."""
        return {name: of for state in self._states() for name, of in (state.files | state.rest_files).items()}

    def files(self) -> set[str]:
        """Every Parquet file, relative to the directory of the tables."""
        return self.written().keys() | _EMPTY.keys()

    def without(self, files: Iterable[str]) -> Manifest:
        """Of the sources from which none of these files is."""
        lost = {*files}

        def left(states: dict[str, SourceState]) -> dict[str, SourceState]:
            return {name: one for name, one in states.items() if lost.isdisjoint(one.files.keys() | one.rest_files)}

        return msgspec.structs.replace(
            self, segments=left(self.segments), histories=left(self.histories), traces=left(self.traces)
        )


def place(table: str) -> str:
    """The directory of a table, relative to that of all."""
    return _PLACES.get(table, f"journal/table={table}")


_PLACES = {"history": "history", "watched": "watched", "frames": "trace"}
_PATTERNS = ("journal/**/*", *(f"{directory}/**/*" for directory in _PLACES.values()))
_TABLES = {name: schemas.table_schema(name) for name in schemas.TABLES}
_TABLES |= {"history": schemas.HISTORY, "watched": schemas.WATCHED, "frames": schemas.FRAMES}
_EMPTY = {f"{place(table)}/empty.parquet": arrow_schema(schema) for table, schema in _TABLES.items()}
"""A file without rows per table: it says which columns there are, and makes the table one even if nothing else does."""


def load_manifest(out: Path) -> Manifest | None:
    """What an earlier extraction left; None if there is none that is of use. Unreadable if a newer program made it."""
    path = out / MANIFEST
    if not path.is_file():
        return None
    try:
        version = msgspec.json.decode(path.read_bytes(), type=dict[str, Any]).get("version")
        if isinstance(version, int) and version > schemas.SCHEMA_VERSION:
            raise Unreadable(
                f"{path}: these tables have schema version {version}, and this program knows none newer than"
                f" {schemas.SCHEMA_VERSION}; use the program that wrote them, or another --out"
            )
        if version != schemas.SCHEMA_VERSION:
            return None
        manifest = msgspec.json.decode(path.read_bytes(), type=Manifest)
        bare = msgspec.structs.replace(manifest, crc=0)
        if manifest.crc != _crc(bare):
            raise ValueError("its checksum does not match")
        return bare
    except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
        why = f"it is not what an extraction writes ({error}); remove {out} and extract again"
        raise Unreadable(f"{path}: {why}") from None


def save_manifest(out: Path, manifest: Manifest) -> None:
    """Whole or not at all, with its checksum."""
    sealed = msgspec.structs.replace(manifest, crc=_crc(manifest))
    temporary = out / f"{MANIFEST}.new"
    temporary.write_bytes(msgspec.json.format(msgspec.json.encode(sealed), indent=1))
    os.replace(temporary, out / MANIFEST)


def _crc(manifest: Manifest) -> int:
    return zlib.crc32(msgspec.json.encode(manifest))


@contextmanager
def alone(run: Path, out: Path) -> Iterator[None]:
    """Nobody else works in `out` meanwhile. Unreadable if somebody does, or if `out` is a part of the run."""
    if out.resolve() == run.resolve() or any((run / part).resolve() in (out / "x").resolve().parents for part in _RUN):
        raise Unreadable(f"{out}: the run itself is there; choose another --out")
    try:
        out.mkdir(parents=True, exist_ok=True)
        lock_file = (out / LOCK).open("w")
    except OSError as error:
        if error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM):
            raise
        why = f"nothing can be written there ({error.strerror}); choose another --out"
        raise Unreadable(f"{out}: {why}") from None
    with lock_file as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Unreadable(f"{out}: another audit is at work there; wait for it, or choose another --out") from None
        yield


def write_empty(out: Path) -> None:
    """A file without rows for every table."""
    for name, schema in _EMPTY.items():
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        parquet.write(schema.empty_table(), out / name)


def clean(out: Path, named: set[str]) -> None:
    """Only the tables of these names are left."""
    for path in _present(out):
        if path.relative_to(out).as_posix() not in named and path.suffix == ".parquet":
            path.unlink(missing_ok=True)


def clear(out: Path) -> None:
    """No tables are left."""
    clean(out, set())
    for directory in (*out.glob("journal/table=*"), *map(out.joinpath, ("journal", *_PLACES.values()))):
        with suppress(OSError):
            directory.rmdir()


def _present(out: Path) -> Iterator[Path]:
    yield from (p for pattern in _PATTERNS for p in out.glob(pattern) if p.is_file())


def damaged(out: Path, manifest: Manifest) -> list[str]:
    """Which files of tables are not as they were written."""

    def differs(one: tuple[str, parquet.Seal]) -> bool:
        name, written = one
        try:
            return parquet.seal(out / name) != written
        except OSError:
            return True

    written = sorted(manifest.written().items())
    with ThreadPoolExecutor(os.cpu_count()) as readers:
        return [name for (name, _), bad in zip(written, readers.map(differs, written), strict=True) if bad]


def check_tables(out: Path, *, own: bool = False) -> Manifest:
    """What an extraction left in `out`, before Spark is started. own: by this process. Unreadable: no, or unfinished,
    or another version's, or not what was written."""
    manifest = load_manifest(out)
    if manifest is None:
        older = (out / MANIFEST).is_file()
        what = "its tables are of an older version" if older else "there are no tables of a run"
        raise Unreadable(f"{out}: {what}; run `python -m spark_etl extract RUN_DIR` first")
    present = {path.relative_to(out).as_posix() for path in _present(out) if not path.name.startswith((".", "_"))}
    named = manifest.files()
    if odd := sorted(present ^ named):
        what = "is not one of its files" if odd[0] in present else "is missing"
        raise Unreadable(f"{out / odd[0]}: it {what}; the extraction did not finish, or was changed: extract again")
    for name in sorted(named):
        columns = _version_checked(out / name)
        if not columns.equals(_EMPTY.get(name, columns)):
            raise Unreadable(f"{out / name}: it has other columns than it was written with; extract again")
    if not own and (lost := damaged(out, manifest)):
        more = f", and {len(lost) - 1} more" if lost[1:] else ""
        raise Unreadable(f"{out / lost[0]}{more}: it is damaged, not as it was written; extract again")
    return manifest


def _version_checked(path: Path) -> pa.Schema:
    try:
        schema = pq.read_schema(path)
    except (pa.ArrowException, OSError) as error:
        why = str(error).splitlines()[0]
        raise Unreadable(f"{path}: it cannot be read as Parquet ({why}); extract again") from None
    named = (schema.metadata or {}).get(schemas.VERSION_KEY.encode(), b"0")  # none: the manifest vouches for it
    version = named.decode(errors="replace")
    if not version.isdecimal() or int(version) > schemas.SCHEMA_VERSION:
        raise Unreadable(
            f"{path}: it has schema version {version}, and this program knows none newer than {schemas.SCHEMA_VERSION}"
        )
    return schema


class Tables:
    """The tables of a run, opened. counts: rows by table; inputs for the driver itself: `small`."""

    def __init__(self, spark: SparkSession, out: Path, manifest: Manifest):
        self.spark = spark
        self.out = out
        self.manifest = manifest
        self.counts = manifest.rows()

    def cut_out(self, name: str, files: Mapping[str, int]) -> Tables:
        """What was cut out of these into the directory `name` beside them: files, with their rows."""
        rows = Counter[str]()
        for file, count in files.items():
            rows[Path(file).parent.name.removeprefix("table=")] += count
        nobodys = dict.fromkeys(files, (0, 0))  # seals, which nobody compares
        cut = SourceState(name, NEVER, rows=dict(rows), files=nobodys)
        into = self.out / name
        write_empty(into)
        manifest = msgspec.structs.replace(self.manifest, segments={}, histories={name: cut}, traces={})
        return Tables(self.spark, into, manifest)

    def frame(self, table: str) -> DataFrame:
        """A table of `schemas.TABLES`, "history", "watched" or "frames"."""
        return self.spark.read.schema(_TABLES[table]).parquet(*(str(path.absolute()) for path in self._paths(table)))

    def _paths(self, table: str) -> list[Path]:
        return [self.out / name for name in sorted(self.manifest.files()) if Path(name).parent == Path(place(table))]

    def span(self, table: str, column: str) -> tuple[Any, Any] | None:
        """Least and greatest value of a column, from the files' statistics; None: no rows, or all null."""
        values: list[Any] = []
        for path in self._paths(table):
            metadata = pq.ParquetFile(path).metadata
            at = metadata.schema.names.index(column) if metadata.num_row_groups else 0
            for group in range(metadata.num_row_groups):
                statistics = metadata.row_group(group).column(at).statistics
                if statistics is not None and statistics.has_min_max:
                    values += [statistics.min, statistics.max]
        return (min(values), max(values)) if values else None

    def small(self) -> list[Any]:
        """The rows of lives, segments and damage, with the name of their `table`."""
        rows: list[Any] = []
        for table in _SMALL_TABLES:
            for path in self._paths(table):
                whole = pq.read_table(path, schema=arrow_schema(_TABLES[table]), partitioning=None)
                rows += [SimpleNamespace(table=table, **row) for row in whole.to_pylist()]
        return rows
