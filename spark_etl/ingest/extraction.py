"""Extraction: what is in journals, histories and traces becomes tables; only what is new is read.

A file that was not touched since is not opened again. One that was touched is compared, by checksum, up to where it had
been read, and only what stands behind is parsed; if the beginning has changed, all of it is. What stands behind the
first damage or in an unfinished batch is never taken as read: it has files of its own ("-rest"), made anew every time.
So is a table that is not as it was written.
"""

from __future__ import annotations

import os
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from multicast.records import HEADER_BYTES
from spark_etl import schemas
from spark_etl.ingest import parquet
from spark_etl.ingest.histories import parse_history, unreadable_history
from spark_etl.ingest.journals import Batches, SegmentParser, unreadable_segment
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
from spark_etl.ingest.tables import (
    NEVER,
    Manifest,
    SourceState,
    clean,
    clear,
    damaged,
    load_manifest,
    place,
    save_manifest,
    write_empty,
)
from spark_etl.ingest.traces import find_traces, parse_trace, unreadable_trace

SMALL_EXTRACTION_BYTES = 64 * 1024 * 1024
"""Up to this much is parsed right here instead of in tasks of Spark: it takes less than starting its workers."""

_CHUNK = 4 * 1024 * 1024


class Extraction(msgspec.Struct):
    """What an extraction did. bytes_read: parsed; bytes_known: parsed before and not again. damaged: tables that were
    not as an earlier one had written them, and were made anew."""

    manifest: Manifest
    bytes_read: int
    bytes_known: int
    damaged: list[str]


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

    def close(self) -> dict[str, parquet.Seal]:
        """The files, as written."""
        for writer in self._open.values():
            writer.close()
        return {name: parquet.seal(self._out / name) for name in map(self._name, self._open)}


def _touched(path: Path) -> tuple[int, int, int, int]:
    found = status(path)
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino


def _known(path: Path, old: SourceState | None, out: Path) -> SourceState | None:
    """`old` if the file still begins with what was read of it, and the Parquet files are there."""
    touched = _touched(path)
    if old is None or old.read > touched[0]:
        return None
    if not all((out / name).is_file() for name in (*old.files, *old.rest_files)):
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
        state = _known(path, old, out) or SourceState(segment.name, NEVER)
        touched = _touched(path)
        twin = _touched(Path(segment.twin)) if segment.twin else NEVER
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
        if why := _unlike(path, segment.twin):
            rest.add(unreadable_segment(segment, why))
            twin = NEVER
        read = max(parser.clean, state.read)
        new = data[HEADER_BYTES : HEADER_BYTES + read - start] if state.read else data[:read]
        return SourceState(
            segment.name, touched, read, zlib.crc32(new, state.crc), parser.used,
            dict(Counter(state.rows) + kept.rows), state.files | kept.close(),
            dict(rest.rows), rest.close(), parser.error, parser.batch, twin,
        ), touched[0] - state.read  # fmt: skip


def _unlike(path: Path, twin: str) -> str:
    """Why what the archive has of a segment, if it has it, is not the same; else empty."""
    try:
        return f"{twin} is another copy of it, and not the same" if twin and not same(path, Path(twin)) else ""
    except OSError as error:
        return f"it cannot be compared with {twin}: {error.strerror or error}"


def _unreadable(name: str, why: str, stem: str, rows: Batches, out: Path) -> SourceState:
    rest = _Writer(out, f"{stem}-rest")
    rest.add(rows)
    return SourceState(name, NEVER, rest_rows=dict(rest.rows), rest_files=rest.close(), error=why)


def _why(error: OSError) -> str:
    return f"it cannot be read: {error.strerror or error}"


def _named(directory: str, paths: Iterable[Path]) -> list[tuple[str, Path]]:
    """Under names that are text, whatever bytes those of the files have."""
    return [(f"{directory}/{os.fsencode(path.name).decode(errors='backslashreplace')}", path) for path in paths]


def _stem(name: str) -> str:
    """Of the tables of a history or trace: no other's, whatever files come and go beside it."""
    return f"{name[0]}{zlib.crc32(name.encode()):08x}"


def _read_history(name: str, path: Path, old: SourceState | None, out: Path) -> tuple[SourceState, int]:
    stem = _stem(name)
    try:
        state = _known(path, old, out) or SourceState(name, NEVER)
        touched = _touched(path)
        if state.touched == touched:
            return state, 0
        with path.open("rb") as file:
            file.seek(state.read)
            data = file.read(touched[0] - state.read)
    except OSError as error:
        why = _why(error)
        return _unreadable(name, why, f"{stem}-b0", {"history": unreadable_history(name, why)}, out), 0
    data = data[: data.rfind(b"\n") + 1]
    with _Writer(out, f"{stem}-b{state.read}") as writer:
        for batches in parse_history(name, data, state.records + 1):
            writer.add(batches)
        return SourceState(
            name, touched, state.read + len(data), zlib.crc32(data, state.crc), state.records + data.count(b"\n"),
            dict(Counter(state.rows) + writer.rows), state.files | writer.close(),
        ), len(data)  # fmt: skip


def _read_trace(name: str, path: Path, old: SourceState | None, out: Path) -> tuple[SourceState, int]:
    """Whole, if it was touched: a simulation writes it once."""
    stem = _stem(name)
    try:
        state, touched = _known(path, old, out), _touched(path)
        if state is not None and state.touched == touched:
            return state, 0
        data = path.read_bytes()
    except OSError as error:
        why = _why(error)
        return _unreadable(name, why, stem, {"frames": unreadable_trace(name, why)}, out), 0
    writer = _Writer(out, stem)
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


def total_bytes(segments: Iterable[SegmentFile]) -> int:
    """Of journals."""
    return sum(_size(Path(segment.path)) for segment in segments)


def _size(path: Path) -> int:
    """0 if it cannot be read."""
    try:
        return status(path).st_size
    except OSError:
        return 0


def extract(run: Path, out: Path, spark: SparkSession | None = None, *, own: bool = False) -> Extraction:
    """Bring the tables in `out` up to date with the run. spark: does the parsing, if given. own: what is there was
    written by this process, and is not looked through for damage. Unreadable."""
    try:
        return _extract(run, out, spark, own)
    except OSError as error:  # of a full disk Python does not say which
        raise Unreadable(f"{error.filename or out}: {os.strerror(error.errno) if error.errno else error}") from None


def _extract(run: Path, out: Path, spark: SparkSession | None, own: bool) -> Extraction:
    segments, histories = sources(run)
    old = load_manifest(out)
    if old is None or old.run != str(run.resolve()):
        old = Manifest(schemas.SCHEMA_VERSION, str(run.resolve()), {}, {}, {})
    lost = [] if own else damaged(out, old)
    old = old.without(lost)
    clean(out, old.files())
    write_empty(out)
    events = [_read_history(n, p, old.histories.get(n), out) for n, p in _named("history", histories)]
    known, count = dict(old.segments), 0
    while True:
        segments = find_segments(run)  # and marks: of a running cluster nothing that a client knows must be missing
        jobs = [(segment, known.get(segment.name) or known.get(segment.home)) for segment in segments]
        read = list(_in_tasks(jobs, out, spark) if spark else (read_segment(*job, out) for job in jobs))
        count += sum(bytes_ for _, bytes_ in read)
        known |= {state.name: state for state, _ in read if not state.error}
        if all(os.path.lexists(segment.path) for segment in segments):
            break  # else some have gone to the archive meanwhile, or away: where there are others, these are read
    traces = find_traces(run)
    frames = [_read_trace(n, p, old.traces.get(n), out) for n, p in _named("trace", traces)]
    for state, _ in (*read, *events):
        state.files = merged(out, state.files)
    manifest = Manifest(
        schemas.SCHEMA_VERSION, old.run, {segment.replica: segment.mark for segment in segments},
        {state.name: state for state, _ in read}, {state.name: state for state, _ in events},
        {state.name: state for state, _ in frames}, find_floors(run), is_archived(run),
    )  # fmt: skip
    manifest.segments |= {name: known[name] for name in gone(known, segments, manifest.floors)}
    errors = [state.error for state in manifest.segments.values()]
    if all(errors):
        clear(out)
        raise Unreadable(f"{run / segments[0].name}: {errors[0]}" if segments else f"{run}: its journals have gone")
    save_manifest(out, manifest)
    clean(out, manifest.files())
    now = count + sum(bytes_ for _, bytes_ in (*events, *frames))
    others = sum(map(_size, (*histories, *traces)))
    return Extraction(manifest, now, total_bytes(segments) + others - now, lost)


def _in_tasks(
    jobs: list[tuple[SegmentFile, SourceState | None]], out: Path, spark: SparkSession
) -> Iterator[tuple[SourceState, int]]:
    """The same by Spark's workers, which must see the files where this program does."""
    encode = msgspec.msgpack.encode

    def work(job: bytes) -> bytes:
        segment, old = msgspec.msgpack.decode(job, type=tuple[SegmentFile, SourceState | None])
        return encode(read_segment(segment, old, out))

    # not as a query: for one so small, planning took as long as reading a million rows
    done = spark.sparkContext.parallelize([encode(job) for job in jobs], len(jobs)).map(work).collect()
    read = [msgspec.msgpack.decode(one, type=tuple[SourceState, int]) for one in done]
    return iter(sorted(read, key=lambda one: one[0].name))
