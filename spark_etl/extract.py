"""Journals and client histories as Spark data sources: files in, Arrow batches out.

One partition per journal segment and one per history file. What an unfinished batch at the very end of a journal left
behind is not yielded: a killed replica leaves that, and never vouched for it. Other damage becomes a row of the table
"damage", and whatever can be read around it is still yielded.
"""

from __future__ import annotations

import hashlib
import re
import uuid
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from kvstore.core import audit
from multicast import records
from multicast.records import FRAME_BYTES, HEADER_BYTES, JournalError, SegmentHeader
from multicast.types import Timestamp
from spark_etl import schemas

BATCH_ROWS = 50_000
"""Rows per Arrow batch, about; bounds a Python worker's memory."""

_SEGMENT_NAME = re.compile(r"journal-(\d{8})\.seg")

_ARROW_TYPES: dict[str, pa.DataType] = {
    "string": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "binary": pa.binary(),
    "boolean": pa.bool_(),
    "array<int>": pa.list_(pa.int32()),
    "map<string,binary>": pa.map_(pa.string(), pa.binary()),
    "map<string,bigint>": pa.map_(pa.string(), pa.int64()),
}


def _arrow(schema: StructType) -> pa.Schema:
    return pa.schema([(field.name, _ARROW_TYPES[field.dataType.simpleString()]) for field in schema])


class SegmentFile(msgspec.Struct, frozen=True):
    """A journal segment to read. mark: the journal offset up to which its replica vouched, None if unknown."""

    path: str
    name: str
    replica: int
    number: int
    last: bool
    mark: int | None


def find_segments(run: Path) -> list[SegmentFile]:
    """Every journal segment of a run directory, by replica and number."""
    found: list[SegmentFile] = []
    for journal in sorted(run.glob("replicas/*/journal")):
        if not journal.parent.name.isdecimal():
            continue
        mark = _read_mark(journal / "mark")
        paths = sorted(path for path in journal.glob("journal-*.seg") if _SEGMENT_NAME.fullmatch(path.name))
        for path in paths:
            number = int(path.name[8:16])
            name = str(path.relative_to(run))
            found.append(SegmentFile(str(path), name, int(journal.parent.name), number, path == paths[-1], mark))
    return sorted(found, key=lambda segment: (segment.replica, segment.number))


def find_histories(run: Path) -> list[Path]:
    """Every client history of a run directory."""
    return sorted(run.glob("history/*.jsonl"))


def _read_mark(path: Path) -> int | None:
    """Up to where syncing had returned (`multicast.journal`): 8 bytes and their CRC. None if unknown."""
    data = path.read_bytes() if path.is_file() else b""
    if len(data) != 12 or zlib.crc32(data[:8]).to_bytes(4, "big") != data[8:]:
        return None
    return int.from_bytes(data[:8], "big")


# -- journals ---------------------------------------------------------------------------------------------------------

_encode = msgspec.msgpack.Encoder().encode


class _Rows:
    """Rows of all tables, waiting to become an Arrow batch."""

    def __init__(self) -> None:
        self.tables: dict[str, list[tuple[Any, ...]]] = {table: [] for table in schemas.TABLES}
        self.count = 0

    def add(self, table: str, *values: Any) -> None:
        self.tables[table].append(values)
        self.count += 1

    def mark(self) -> dict[str, int]:
        """How many rows there are now, for `cut`."""
        return {table: len(rows) for table, rows in self.tables.items()}

    def cut(self, mark: dict[str, int]) -> None:
        """Forget every row added since `mark`."""
        for table, length in mark.items():
            del self.tables[table][length:]

    def take(self) -> pa.RecordBatch | None:
        """Everything so far as one batch of the wide schema; None if there is nothing."""
        arrow = _arrow(schemas.JOURNAL)
        parts: list[pa.Table] = []
        for table, rows in self.tables.items():
            if not rows:
                continue
            columns = dict(zip(schemas.TABLES[table], zip(*rows, strict=True), strict=True))
            arrays = [
                pa.array([table] * len(rows), field.type)
                if field.name == "table"
                else pa.array(columns[field.name], field.type)
                if field.name in columns
                else pa.nulls(len(rows), field.type)
                for field in arrow
            ]
            parts.append(pa.Table.from_arrays(arrays, schema=arrow))
        self.tables = {table: [] for table in schemas.TABLES}
        self.count = 0
        if not parts:
            return None
        return pa.concat_tables(parts).combine_chunks().to_batches()[0]


def _content(outcome: audit.Outcome) -> bytes:
    """Equal for equal accounts of a transaction, whatever order reads and writes are kept in."""
    reads, writes = sorted(outcome.reads, key=lambda r: r.key), sorted(outcome.writes, key=lambda w: w.key)
    body = _encode((outcome.id, outcome.timestamp, outcome.status, outcome.succeeded, reads, writes))
    return hashlib.blake2b(body, digest_size=16).digest()


def _add_record(rows: _Rows, place: tuple[int, int, int, int], record: Any) -> None:
    """Rows of one journal record. `place`: replica, shard, segment, journal offset. JournalError if it is nonsense."""
    kind = type(record)
    if kind is records.Delivered:
        message = record.message
        rows.add(
            "deliveries", *place, record.position, record.timestamp.encode(), message.id, record.stage, record.expired,
            message.destinations, message.origin, len(message.payload), record.at, record.installed_from,
        )  # fmt: skip
    elif kind is records.Completed:
        _add_outcome(rows, place, record)
    elif kind is records.Submitted:
        rows.add("submitted", *place, record.id, record.destinations, record.at)
    elif kind is records.Started:
        members = {str(group): list(processes) for group, processes in sorted(record.members.items())}
        rows.add(
            "lives", *place, record.at, "started", str(record.incarnation), record.protocol, record.durability,
            msgspec.json.encode(members).decode(), None, None,
        )  # fmt: skip
    elif kind is records.Stopped:
        rows.add(
            "lives", *place, record.at, "stopped", None, None, None, None, record.delivered, record.completed
        )  # fmt: skip


def _add_outcome(rows: _Rows, place: tuple[int, int, int, int], record: records.Completed) -> None:
    try:
        outcome = audit.decode_outcome(record.record)
    except msgspec.MsgspecError as error:
        raise JournalError(f"an outcome that is none of the store's: {error}") from None
    if outcome.version > audit.AUDIT_VERSION:
        raise JournalError(f"outcome version {outcome.version} is newer than this program's {audit.AUDIT_VERSION}")
    gts, message_id, position = outcome.timestamp.encode(), outcome.id, record.position
    applied = outcome.status == audit.APPLIED
    rows.add(
        "outcomes", *place, position, gts, message_id, record.at, outcome.status, outcome.succeeded,
        applied and bool(outcome.writes), _content(outcome), outcome.state_digest, outcome.reason,
    )  # fmt: skip
    for read in outcome.reads:
        rows.add("reads", *place, position, gts, message_id, read.key, read.version.encode())
    if applied:
        for write in outcome.writes:
            rows.add(
                "writes", *place, position, gts, message_id, write.key, write.value, write.value is None, write.digest
            )


_WANTED = (records.STARTED, records.STOPPED, records.SUBMITTED, records.DELIVERED, records.COMPLETED)
_IGNORED = (records.PUT, records.DELETE)


def _scan(data: bytes) -> Iterator[tuple[int, int, memoryview] | records.Damage]:
    """`records.scan`, going on behind a record whose checksum alone is wrong."""
    at = HEADER_BYTES
    while True:
        damage = None
        for found in records.scan(data, at):
            if isinstance(found, records.Damage):
                damage = found
            yield found
        if damage is None:
            return
        length = int.from_bytes(data[damage.at : damage.at + 4], "big")
        at = damage.at + FRAME_BYTES + length
        if "checksum" not in damage.reason or at >= len(data) or not _good_at(data, at):
            return


def _good_at(data: bytes, at: int) -> bool:
    """Whether a good record begins at this byte."""
    return not isinstance(next(records.scan(data, at), records.Damage(at, "")), records.Damage)


class _SegmentParser:
    """Reads one segment. Records of a batch whose end is missing are dropped if nobody vouched for them.

    good: where the last whole batch ends. clean: the same, counting only what stands before the first damage.
    """

    def __init__(self, segment: SegmentFile, data: bytes):
        self.segment = segment
        self.data = data
        self.rows = _Rows()
        self.damages: list[tuple[int, str]] = []
        self.good = self.clean = HEADER_BYTES
        self.good_mark = self.clean_mark = self.rows.mark()
        self.used = 0

    def batches(self) -> Iterator[pa.RecordBatch]:
        segment, rows = self.segment, self.rows
        if segment.last and not self.data[:HEADER_BYTES].strip(b"\0"):
            self._add_damage("unfinished", 0, "a segment that was only just created")
        else:
            try:
                header = SegmentHeader.decode(self.data, segment.name)
                if (header.process, header.segment) != (segment.replica, segment.number):
                    raise JournalError(
                        f"{segment.name}: it says that it is segment {header.segment} of replica {header.process}"
                    )
            except JournalError as error:
                self._add_damage("damage", 0, str(error).removeprefix(f"{segment.name}: "))
            else:
                yield from self._records(header)
                self._finish(header)
        if batch := rows.take():
            yield batch

    def _records(self, header: SegmentHeader) -> Iterator[pa.RecordBatch]:
        rows, segment, damages = self.rows, self.segment, self.damages
        for found in _scan(self.data):
            if isinstance(found, records.Damage):
                damages.append((found.at, found.reason))
                continue
            at, kind, body = found
            if kind == records.BATCH_END:
                self.good, self.good_mark = at + FRAME_BYTES + 1 + len(body), rows.mark()
                if not damages:
                    self.clean, self.clean_mark = self.good, self.good_mark
                    if rows.count >= BATCH_ROWS and (batch := rows.take()):
                        yield batch
                        self.good_mark = self.clean_mark = rows.mark()
            elif kind in _WANTED:
                place = (segment.replica, header.group, segment.number, header.base + at - HEADER_BYTES)
                try:
                    _add_record(rows, place, records.decode_body(kind, body))
                except (JournalError, ValueError, TypeError) as error:
                    damages.append((at, str(error)))
                else:
                    self.used += 1
            elif kind not in _IGNORED:
                damages.append((at, f"unknown record kind {kind}"))

    def _finish(self, header: SegmentHeader) -> None:
        """Decide what the end of the segment means, and describe the segment."""
        segment, size = self.segment, len(self.data)
        vouched = segment.mark is not None and segment.mark > header.base + self.clean - HEADER_BYTES
        torn = segment.last and not vouched and (segment.mark is not None or self.good == self.clean)
        if torn:
            self.rows.cut(self.clean_mark)
            self.good = self.clean
            if self.clean < size:
                self._add_damage("unfinished", self.clean, f"{size - self.clean} bytes after the last whole batch")
        else:
            self.rows.cut(self.good_mark)
            for at, reason in self.damages:
                self._add_damage("damage", at, reason)
            if self.good < size and not self.damages:
                self._add_damage("damage", self.good, "records without the end of their batch")
        end = header.base + self.good - HEADER_BYTES
        self.rows.add(
            "segments", segment.replica, header.group, segment.number, header.base, segment.name, end, self.used,
            header.cluster.hex(),
        )  # fmt: skip

    def _add_damage(self, event: str, at: int, reason: str) -> None:
        self.rows.add("damage", self.segment.replica, self.segment.number, self.segment.name, at, event, reason)


def parse_segment(segment: SegmentFile, data: bytes) -> Iterator[pa.RecordBatch]:
    """The rows of one segment, `data` being its whole content, in batches of `schemas.JOURNAL`."""
    return _SegmentParser(segment, data).batches()


class _SegmentPartition(InputPartition):
    def __init__(self, segment: SegmentFile):
        super().__init__(segment.name)
        self.segment = segment


class _JournalReader(DataSourceReader):
    def __init__(self, run: str):
        self.run = run

    def partitions(self) -> Sequence[InputPartition]:
        return [_SegmentPartition(segment) for segment in find_segments(Path(self.run))]

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        yield from parse_segment(partition.segment, Path(partition.segment.path).read_bytes())


class JournalSource(DataSource):
    """`spark.read.format("multicast_journal").load(RUN_DIR)`: the journals of all replicas, as `schemas.JOURNAL`."""

    @classmethod
    def name(cls) -> str:
        return "multicast_journal"

    def schema(self) -> StructType:
        return schemas.JOURNAL

    def reader(self, schema: StructType) -> DataSourceReader:
        return _JournalReader(self.options["path"])


# -- client histories -------------------------------------------------------------------------------------------------

_decode_event = msgspec.json.Decoder(audit.HistoryEvent).decode
EVENT_TYPES = ("invoke", "ok", "fail", "info")


def _event_row(name: str, number: int, line: bytes) -> tuple[Any, ...]:
    """One row of `schemas.HISTORY`. ValueError if the line is no event."""
    event = _decode_event(line)
    if event.type not in EVENT_TYPES:
        raise ValueError(f"type: one of {', '.join(EVENT_TYPES)}, not {event.type!r}")
    version = Timestamp.parse(event.version).encode() if event.version else None
    reads = [(key, Timestamp.parse(text).encode()) for key, text in event.reads.items() if text]
    value = None if event.value is None else list(event.value.items())
    return (
        name, number, event.process, event.type, event.at_us, uuid.UUID(event.id).bytes, event.f, version,
        event.succeeded, reads, value, event.error, None,
    )  # fmt: skip


def parse_history(name: str, data: bytes) -> Iterator[pa.RecordBatch]:
    """The events of a client history. A last line without its end is a killed client's and ignored."""
    arrow = _arrow(schemas.HISTORY)
    rows: list[tuple[Any, ...]] = []
    lines = data.split(b"\n")
    for number, line in enumerate(lines[:-1], 1):
        if not line.strip():
            continue
        try:
            rows.append(_event_row(name, number, line))
        except ValueError as error:  # msgspec's errors are ValueErrors
            rows.append((name, number, *[None] * (len(arrow) - 3), str(error)))
        if len(rows) >= BATCH_ROWS:
            yield _batch(rows, arrow)
            rows = []
    if rows:
        yield _batch(rows, arrow)


def _batch(rows: list[tuple[Any, ...]], arrow: pa.Schema) -> pa.RecordBatch:
    arrays = [pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), arrow, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow)


class _FilePartition(InputPartition):
    def __init__(self, path: str):
        super().__init__(path)
        self.path = path


class _HistoryReader(DataSourceReader):
    def __init__(self, run: str):
        self.run = run

    def partitions(self) -> Sequence[InputPartition]:
        return [_FilePartition(str(path)) for path in find_histories(Path(self.run))]

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        path = Path(partition.path)
        yield from parse_history(f"history/{path.name}", path.read_bytes())


class HistorySource(DataSource):
    """`spark.read.format("client_history").load(RUN_DIR)`: every line of every client history, as `schemas.HISTORY`."""

    @classmethod
    def name(cls) -> str:
        return "client_history"

    def schema(self) -> StructType:
        return schemas.HISTORY

    def reader(self, schema: StructType) -> DataSourceReader:
        return _HistoryReader(self.options["path"])
