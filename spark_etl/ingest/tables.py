"""The tables of a run as Parquet: written by an extraction that reads only what is new, and opened for the checks.

    OUT/extract.json                              what was read, up to where; the version of the tables
    OUT/journal/table=NAME/r0-s00000000-b64.parquet   of replica 0's segment 0, from byte 64 on
    OUT/history/h0-b0.parquet                     of the first history, from byte 0 on
    OUT/watched/h0-b0.parquet                     of its watches
    OUT/trace/t0.parquet                          of the first trace of a simulation

A file that was not touched since is not opened again. One that was touched is compared, by checksum, up to where it had
been read, and only what stands behind is parsed; if the beginning has changed, all of it is. What stands behind the
first damage or in an unfinished batch is never taken as read: it has files of its own ("-rest"), made anew every time.
`extract.json` is written last; files that it does not name are what an interrupted extraction left, and go.
"""

from __future__ import annotations

import fcntl
import os
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from multicast.records import HEADER_BYTES
from spark_etl import schemas
from spark_etl.ingest import parquet
from spark_etl.ingest.histories import parse_history, unreadable_history
from spark_etl.ingest.journals import Batches, SegmentParser, arrow_schema, unreadable_segment
from spark_etl.ingest.merging import merged
from spark_etl.ingest.sources import (
    SegmentFile,
    Unreadable,
    find_floors,
    find_histories,
    find_segments,
    gone,
    is_archived,
    same,
    status,
)
from spark_etl.ingest.traces import find_traces, parse_trace, unreadable_trace

MANIFEST, LOCK = "extract.json", ".lock"
_RUN = ("replicas", "history", "trace")
SMALL_EXTRACTION_BYTES = 64 * 1024 * 1024
"""Up to this much is parsed right here instead of in tasks of Spark: it takes less than starting its workers."""

_NEVER = (0, 0, 0, 0)
_CHUNK = 4 * 1024 * 1024
_SMALL_TABLES = ("lives", "segments", "damage")


class SourceState(msgspec.Struct):
    """What is known of one file. read: up to which byte it was read for good; crc: of the bytes up to there. touched:
    size, times of the last changes (ns) and inode. records: before `read` (of a history: lines); batch: the number of
    the last batch there. rows: of these, by table; files: theirs, with sizes. rest_rows, rest_files: of what stands
    behind. error: why it is no segment. twin: `touched` of the copy in the archive, if it is the same."""

    name: str
    touched: tuple[int, int, int, int]
    read: int = 0
    crc: int = 0
    records: int = 0
    rows: dict[str, int] = {}
    files: dict[str, int] = {}
    rest_rows: dict[str, int] = {}
    rest_files: dict[str, int] = {}
    error: str = ""
    batch: int = 0
    twin: tuple[int, int, int, int] = _NEVER


class Manifest(msgspec.Struct):
    """`extract.json`. marks: replica -> the journal offset up to which it vouched. floors: see `find_floors`.
    archived: unless the cluster says that it keeps nothing."""

    version: int
    run: str
    marks: dict[int, int | None]
    segments: dict[str, SourceState]
    histories: dict[str, SourceState]
    traces: dict[str, SourceState] = {}
    floors: dict[int, tuple[int, int, int]] = {}
    archived: bool = True

    def _states(self) -> list[SourceState]:
        return [*self.segments.values(), *self.histories.values(), *self.traces.values()]

    def rows(self) -> dict[str, int]:
        """How many rows each table has; "history", "watched" and "frames" too."""
        counts: Counter[str] = Counter()
        for state in self._states():
            counts.update(state.rows)
            counts.update(state.rest_rows)
        return dict(counts)

    def files(self) -> set[str]:
        """Every Parquet file, relative to the directory of the tables."""
        return {name for state in self._states() for name in (*state.files, *state.rest_files)} | _EMPTY.keys()


class Extraction(msgspec.Struct):
    """What an extraction did. bytes_read: parsed; bytes_known: parsed before and not again."""

    manifest: Manifest
    bytes_read: int
    bytes_known: int


def place(table: str) -> str:
    """The directory of a table, relative to that of all."""
    return _PLACES.get(table, f"journal/table={table}")


_PLACES = {"history": "history", "watched": "watched", "frames": "trace"}
_PATTERNS = ("journal/**/*", *(f"{directory}/**/*" for directory in _PLACES.values()))
_TABLES = {name: schemas.table_schema(name) for name in schemas.TABLES}
_TABLES |= {"history": schemas.HISTORY, "watched": schemas.WATCHED, "frames": schemas.FRAMES}
_EMPTY = {f"{place(table)}/empty.parquet": arrow_schema(schema) for table, schema in _TABLES.items()}
"""A file without rows per table: it says which columns there are, and makes the table one even if nothing else does."""


# -- one file ---------------------------------------------------------------------------------------------------------


class _Writer:
    """Parquet files of the rows of one source, `stem` being the last part of their names."""

    def __init__(self, out: Path, stem: str):
        self._out = out
        self._stem = stem
        self._open: dict[str, pq.ParquetWriter] = {}
        self.rows: Counter[str] = Counter()

    def add(self, batches: Batches) -> None:
        for table, batch in batches.items():
            if table not in self._open:
                path = self._out / self._name(table)
                path.parent.mkdir(parents=True, exist_ok=True)
                self._open[table] = parquet.writer(path, batch.schema)
            self._open[table].write_batch(batch)
            self.rows[table] += batch.num_rows

    def _name(self, table: str) -> str:
        return f"{place(table)}/{self._stem}.parquet"

    def __enter__(self) -> _Writer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            for writer in self._open.values():
                writer.is_open = False  # else it would try to write its footer when it is collected, and say so

    def close(self) -> dict[str, int]:
        """The files, with sizes."""
        for writer in self._open.values():
            writer.close()
        return {name: (self._out / name).stat().st_size for name in map(self._name, self._open)}


def _touched(path: Path) -> tuple[int, int, int, int]:
    found = status(path)
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino


def _known(path: Path, old: SourceState | None, out: Path) -> SourceState | None:
    """`old` if the file still begins with what was read of it, and the Parquet files are there."""
    touched = _touched(path)
    if old is None or old.read > touched[0]:
        return None
    for name, size in (old.files | old.rest_files).items():
        if not (out / name).is_file() or (out / name).stat().st_size != size:
            return None
    if old.touched != touched:
        crc, left = 0, old.read
        with path.open("rb") as file:
            while left and (chunk := file.read(min(left, _CHUNK))):
                crc, left = zlib.crc32(chunk, crc), left - len(chunk)
        if crc != old.crc:
            return None
    return old


def read_segment(segment: SegmentFile, old: SourceState | None, out: Path) -> tuple[SourceState, int]:
    """Parse what is new of a segment into Parquet. Returns what is known now, and the number of bytes parsed."""
    path = Path(segment.path)
    try:
        state = _known(path, old, out) or SourceState(segment.name, _NEVER)
        touched = _touched(path)
        twin = _touched(Path(segment.twin)) if segment.twin else _NEVER
        if state.touched == touched and state.read == touched[0] and state.twin == twin:
            return state, 0
        start = max(state.read, HEADER_BYTES)
        with path.open("rb") as file:
            data = file.read(HEADER_BYTES)
            file.seek(start)
            data += file.read(max(touched[0] - start, 0))
    except OSError as error:
        stem, why = f"r{segment.replica}-s{segment.number:08d}-b0", _why(error)
        return _unreadable(segment.name, why, stem, unreadable_segment(segment, why), out), 0
    parser = SegmentParser(segment, data, start, state.records, state.batch)
    stem = f"r{segment.replica}-s{segment.number:08d}-b{start}"
    with _Writer(out, stem) as kept, _Writer(out, f"{stem}-rest") as rest:
        for batches in parser.kept():
            kept.add(batches)
        rest.add(parser.rest())
        if segment.twin and not same(path, Path(segment.twin)):
            rest.add(unreadable_segment(segment, f"{segment.twin} is another copy of it, and not the same"))
            twin = _NEVER
        read = max(parser.clean, state.read)
        new = data[HEADER_BYTES : HEADER_BYTES + read - start] if state.read else data[:read]
        return SourceState(
            segment.name, touched, read, zlib.crc32(new, state.crc), parser.used,
            dict(Counter(state.rows) + kept.rows), state.files | kept.close(),
            dict(rest.rows), rest.close(), parser.error, parser.batch, twin,
        ), touched[0] - state.read  # fmt: skip


def _unreadable(name: str, why: str, stem: str, rows: Batches, out: Path) -> SourceState:
    rest = _Writer(out, f"{stem}-rest")
    rest.add(rows)
    return SourceState(name, _NEVER, rest_rows=dict(rest.rows), rest_files=rest.close(), error=why)


def _why(error: OSError) -> str:
    return f"it cannot be read: {error.strerror or error}"


def _read_history(name: str, path: Path, number: int, old: SourceState | None, out: Path) -> tuple[SourceState, int]:
    try:
        state = _known(path, old, out) or SourceState(name, _NEVER)
        touched = _touched(path)
        if state.touched == touched:
            return state, 0
        with path.open("rb") as file:
            file.seek(state.read)
            data = file.read(touched[0] - state.read)
    except OSError as error:
        why = _why(error)
        return _unreadable(name, why, f"h{number}-b0", {"history": unreadable_history(name, why)}, out), 0
    data = data[: data.rfind(b"\n") + 1]
    with _Writer(out, f"h{number}-b{state.read}") as writer:
        for batches in parse_history(name, data, state.records + 1):
            writer.add(batches)
        return SourceState(
            name, touched, state.read + len(data), zlib.crc32(data, state.crc), state.records + data.count(b"\n"),
            dict(Counter(state.rows) + writer.rows), state.files | writer.close(),
        ), len(data)  # fmt: skip


def _read_trace(name: str, path: Path, number: int, old: SourceState | None, out: Path) -> tuple[SourceState, int]:
    """Whole, if it was touched: a simulation writes it once."""
    try:
        state, touched = _known(path, old, out), _touched(path)
        if state is not None and state.touched == touched:
            return state, 0
        data = path.read_bytes()
    except OSError as error:
        why = _why(error)
        return _unreadable(name, why, f"t{number}", {"frames": unreadable_trace(name, why)}, out), 0
    writer = _Writer(out, f"t{number}")
    for batch in parse_trace(name, data):
        writer.add({"frames": batch})
    return SourceState(
        name, touched, len(data), zlib.crc32(data), data.count(b"\n"), dict(writer.rows), writer.close()
    ), len(data)


# -- the whole run ----------------------------------------------------------------------------------------------------


def sources(run: Path) -> tuple[list[SegmentFile], list[Path]]:
    """Journal segments and histories of a run. Unreadable if it is none."""
    if run.is_file():
        raise Unreadable(f"{run}: a file, not the directory of a run; histories of others are for check-history")
    if not run.is_dir():
        raise Unreadable(f"{run}: there is no such directory")
    segments, histories = find_segments(run), find_histories(run)
    if not segments:
        what = "it holds no journal (replicas/*/journal/journal-*.seg)"
        if not any(run.iterdir()):
            what = "it is empty, there is no journal in it"
        elif any(run.glob("*.jsonl")):
            what += "; histories of others are for check-history"
        raise Unreadable(f"{run}: {what}; is it a run's directory?")
    return segments, histories


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
        manifest = msgspec.json.decode(path.read_bytes(), type=Manifest)
    except (msgspec.MsgspecError, RecursionError) as error:
        why = f"it is not what an extraction writes ({error}); remove {out} and extract again"
        raise Unreadable(f"{path}: {why}") from None
    return manifest if manifest.version == schemas.SCHEMA_VERSION else None


def total_bytes(segments: Iterable[SegmentFile]) -> int:
    """Of journals."""
    return sum(_size(Path(segment.path)) for segment in segments)


def _size(path: Path) -> int:
    """0 if it cannot be read."""
    try:
        return status(path).st_size
    except OSError:
        return 0


def extract(run: Path, out: Path, spark: SparkSession | None = None) -> Extraction:
    """Bring the tables in `out` up to date with the run. spark: does the parsing, if given. Unreadable."""
    try:
        return _extract(run, out, spark)
    except OSError as error:  # of a full disk Python does not say which
        raise Unreadable(f"{error.filename or out}: {os.strerror(error.errno) if error.errno else error}") from None


def _extract(run: Path, out: Path, spark: SparkSession | None) -> Extraction:
    segments, histories = sources(run)
    old = load_manifest(out)
    if old is None or old.run != str(run.resolve()):
        old = Manifest(schemas.SCHEMA_VERSION, str(run.resolve()), {}, {}, {})
    _clean(out, old.files())
    write_empty(out)
    names = {f"history/{path.name}": path for path in histories}
    events = [_read_history(n, p, i, old.histories.get(n), out) for i, (n, p) in enumerate(names.items())]
    segments = find_segments(run)  # and marks: of a running cluster nothing that a client knows must be missing
    jobs = [(segment, old.segments.get(segment.name) or old.segments.get(segment.home)) for segment in segments]
    read = list(_in_tasks(jobs, out, spark) if spark else (read_segment(*job, out) for job in jobs))
    traces = {f"trace/{path.name}": path for path in find_traces(run)}
    frames = [_read_trace(n, p, i, old.traces.get(n), out) for i, (n, p) in enumerate(traces.items())]
    for state, _ in (*read, *events):
        state.files = merged(out, state.files)
    manifest = Manifest(
        schemas.SCHEMA_VERSION, old.run, {segment.replica: segment.mark for segment in segments},
        {state.name: state for state, _ in read}, {state.name: state for state, _ in events},
        {state.name: state for state, _ in frames}, find_floors(run), is_archived(run),
    )  # fmt: skip
    kept = gone(old.segments, segments, manifest.floors)
    manifest.segments |= {name: old.segments[name] for name in kept}
    errors = [state.error for state in manifest.segments.values()]
    if all(errors):
        clear(out)
        raise Unreadable(f"{run / segments[0].name}: {errors[0]}")
    temporary = out / f"{MANIFEST}.new"
    temporary.write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=1))
    os.replace(temporary, out / MANIFEST)
    _clean(out, manifest.files())
    now = sum(count for _, count in (*read, *events, *frames))
    others = sum(map(_size, (*histories, *traces.values())))
    return Extraction(manifest, now, total_bytes(segments) + others - now)


@contextmanager
def alone(run: Path, out: Path) -> Iterator[None]:
    """Nobody else works in `out` meanwhile. Unreadable if somebody does, or if `out` is a part of the run."""
    if out.resolve() == run.resolve() or any((run / part).resolve() in (out / "x").resolve().parents for part in _RUN):
        raise Unreadable(f"{out}: the run itself is there; choose another --out")
    out.mkdir(parents=True, exist_ok=True)
    with (out / LOCK).open("w") as lock:
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


def _in_tasks(
    jobs: list[tuple[SegmentFile, SourceState | None]], out: Path, spark: SparkSession
) -> Iterator[tuple[SourceState, int]]:
    """The same by Spark's workers, which must see the files where this program does."""
    encode = msgspec.msgpack.encode

    def work(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            for row in batch.column("job").to_pylist():
                segment, old = msgspec.msgpack.decode(row, type=tuple[SegmentFile, SourceState | None])
                yield pa.RecordBatch.from_pydict({"done": [encode(read_segment(segment, old, out))]})

    frame = spark.createDataFrame([(encode(job),) for job in jobs], "job binary").repartition(len(jobs))
    done = [msgspec.msgpack.decode(row.done, type=tuple[SourceState, int]) for row in
            frame.mapInArrow(work, "done binary").collect()]  # fmt: skip
    return iter(sorted(done, key=lambda one: one[0].name))


def _clean(out: Path, named: set[str]) -> None:
    for path in _present(out):
        if path.relative_to(out).as_posix() not in named and path.suffix == ".parquet":
            path.unlink(missing_ok=True)


def clear(out: Path) -> None:
    """No tables are left."""
    _clean(out, set())
    for directory in (*out.glob("journal/table=*"), *map(out.joinpath, ("journal", *_PLACES.values()))):
        with suppress(OSError):
            directory.rmdir()


def _present(out: Path) -> Iterator[Path]:
    yield from (p for pattern in _PATTERNS for p in out.glob(pattern) if p.is_file())


class Tables:
    """The tables of a run, opened. counts: rows by table; inputs for the driver itself: `small`."""

    def __init__(self, spark: SparkSession, out: Path, manifest: Manifest):
        self.spark = spark
        self.out = out
        self.manifest = manifest
        self.counts = manifest.rows()

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


def check_tables(out: Path) -> Manifest:
    """What an extraction left in `out`, before Spark is started. Unreadable: no, or unfinished, or another version's,
    or not what was written."""
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
        _check_version(out / name)
    return manifest


def _check_version(path: Path) -> None:
    try:
        metadata = pq.read_schema(path).metadata or {}
    except (pa.ArrowInvalid, OSError) as error:
        why = str(error).splitlines()[0]
        raise Unreadable(f"{path}: it cannot be read as Parquet ({why}); extract again") from None
    version = metadata.get(schemas.VERSION_KEY.encode(), b"0").decode()  # none: the manifest vouches for it
    if not version.isdecimal() or int(version) > schemas.SCHEMA_VERSION:
        raise Unreadable(
            f"{path}: it has schema version {version}, and this program knows none newer than {schemas.SCHEMA_VERSION}"
        )
