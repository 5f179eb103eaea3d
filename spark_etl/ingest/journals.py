"""Parsing journals: bytes in, Arrow batches of the tables out. Pure.

What an unfinished batch at the very end of a journal left behind is not yielded: a killed replica leaves that, and
never vouched for it. Zeros behind a segment's last batch are room that was made beforehand. Other damage becomes a row
of the table "damage", and whatever can be read around it is yielded. What stands before the first damage or unfinished
batch is final: `tables` never reads it again.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql.types import StructType

from kvstore.core import audit
from kvstore.core.bundles import BUNDLE_TRANSACTIONS_MAX, is_single
from multicast import records
from multicast.records import FRAME_BYTES, HEADER_BYTES, JournalError, SegmentHeader
from multicast.types import MESSAGE_ID_BYTES, AppMessage, Timestamp
from spark_etl import schemas
from spark_etl.ingest.lives import NO_BEGINNING, Lives
from spark_etl.ingest.sources import SegmentFile

BATCH_ROWS = 50_000
"""Rows per Arrow batch, about; bounds a Python worker's memory."""

_ARROW_TYPES: dict[str, pa.DataType] = {
    "string": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "binary": pa.binary(),
    "boolean": pa.bool_(),
    "array<int>": pa.list_(pa.int32()),
    "array<binary>": pa.list_(pa.binary()),
    "map<string,bigint>": pa.map_(pa.string(), pa.int64()),
    "map<int,bigint>": pa.map_(pa.int32(), pa.int64()),
    "map<string,string>": pa.map_(pa.string(), pa.string()),
}


_ARROW_TYPES_OF_16_BYTES: dict[str, pa.DataType] = {
    "binary": pa.binary(16),
    "map<string,binary>": pa.map_(pa.string(), pa.binary(16)),
}


def _arrow_type(name: str, kind: str) -> pa.DataType:
    return (_ARROW_TYPES_OF_16_BYTES if name in schemas.VALUES_OF_16_BYTES else _ARROW_TYPES)[kind]


def arrow_schema(schema: StructType) -> pa.Schema:
    """The same columns for Arrow, with the version of the tables."""
    fields = pa.schema([(field.name, _arrow_type(field.name, field.dataType.simpleString())) for field in schema])
    return fields.with_metadata({schemas.VERSION_KEY: str(schemas.SCHEMA_VERSION)})


_SCHEMAS = {table: arrow_schema(schemas.table_schema(table)) for table in schemas.TABLES}

Batches = dict[str, pa.RecordBatch]
"""Rows by table."""


_encode = msgspec.msgpack.Encoder().encode


class _Rows:
    """Rows of all tables, waiting to become an Arrow batch."""

    def __init__(self) -> None:
        self.tables: dict[str, list[tuple[Any, ...]]] = {table: [] for table in schemas.TABLES}
        self.count = 0

    def add(self, table: str, *values: Any) -> None:
        self.tables[table].append(values)
        self.count += 1

    def drop(self, place: tuple[int, int, int, int]) -> None:
        """Forget the last record's rows, `place` being its."""
        for rows in self.tables.values():
            while rows and rows[-1][:4] == place:
                rows.pop()
                self.count -= 1

    def mark(self) -> dict[str, int]:
        """How many rows there are now, for `cut`."""
        return {table: len(rows) for table, rows in self.tables.items()}

    def cut(self, mark: dict[str, int]) -> None:
        """Forget every row added since `mark`."""
        for table, length in mark.items():
            del self.tables[table][length:]

    def take(self, mark: dict[str, int] | None = None) -> Batches:
        """Everything so far, or what there was at `mark`; it is no longer here then."""
        taken: Batches = {}
        for table, rows in self.tables.items():
            now = rows[: mark[table]] if mark else rows
            if now:
                arrays = zip(zip(*now, strict=True), _SCHEMAS[table], strict=True)
                columns = [pa.array(column, field.type) for column, field in arrays]
                taken[table] = pa.RecordBatch.from_arrays(columns, schema=_SCHEMAS[table])
            self.tables[table] = rows[mark[table] :] if mark else []
            self.count -= len(now)
        return taken


INT32, INT62, INT64 = 2**31, 2**62, 2**63
"""Of times and positions a column holds the difference of two: they are less than INT62."""


def check_numbers(what: str, limit: int, *numbers: int | None) -> None:
    """ValueError for one that is no column's: a forger's, whose checksums are right."""
    for number in numbers:
        if number is not None and not -limit <= number < limit:
            raise ValueError(f"{what}: the number {number} is out of range")


def check_slots(ranges: Sequence[tuple[int, int]]) -> None:
    """ValueError unless they rise, within those that there are: a forger's could be without end."""
    behind = -1
    for first, last in ranges:
        if not behind < first <= last < audit.SLOTS:
            raise ValueError(f"slots are rising ranges within 0 to {audit.SLOTS - 1}, not {first} to {last}")
        behind = last


def _check_id(message_id: bytes) -> None:
    if len(message_id) != MESSAGE_ID_BYTES:
        raise ValueError(f"an id of {len(message_id)} bytes, not {MESSAGE_ID_BYTES}")


def _content(account: audit.Outcomes) -> bytes:
    """Equal for equal accounts of a bundle, whatever order reads and writes are kept in."""
    told = [
        (o.id, o.status, o.succeeded, sorted(o.reads, key=lambda r: r.key), sorted(o.writes, key=lambda w: w.key),
         *([o.given] if isinstance(o, audit.MoveOutcome) else ()),
         *([o.truths] if isinstance(o, audit.NestedOutcome) and o.truths else ()))
        for o in account.outcomes
    ]
    return hashlib.blake2b(_encode((account.timestamp, told)), digest_size=16).digest()


def _add_delivery(
    rows: _Rows,
    place: tuple[int, int, int, int],
    record: records.Delivered | records.DeliveredReference,
    message: AppMessage | records.DeliveredReference,
    payload: records.Place,
    single: bool,
) -> None:
    _check_id(message.id)
    check_numbers("a delivery", INT62, record.position, record.at)
    check_numbers("a delivery", INT32, record.stage, message.origin, record.installed_from, payload.length)
    check_numbers("a delivery", INT62, payload.crc)
    check_numbers("a delivery", INT32, *message.destinations)
    rows.add(
        "deliveries", *place, record.position, record.timestamp.encode(), message.id, record.stage, record.expired,
        message.destinations, message.origin, payload.length, payload.crc, single, record.at, record.installed_from,
    )  # fmt: skip


def _add_record(rows: _Rows, place: tuple[int, int, int, int], record: Any) -> None:
    """Rows of one journal record. `place`: replica, shard, segment, journal offset. JournalError if it is nonsense."""
    kind = type(record)
    if kind is records.Delivered:
        payload = record.message.payload
        stands = records.Place(0, len(payload), zlib.crc32(payload))
        _add_delivery(rows, place, record, record.message, stands, is_single(payload))
    elif kind is records.DeliveredReference:
        _add_delivery(rows, place, record, record, record.places[0], False)
    elif kind is records.Completed:
        _add_account(rows, place, record)
    elif kind is records.Base:
        _add_base(rows, place, record)
    elif kind is records.Submitted:
        _check_id(record.id)
        check_numbers("a multicast", INT62, record.at)
        check_numbers("a multicast", INT32, *record.destinations)
        rows.add("submitted", *place, record.id, record.destinations, record.at)
    elif kind is records.Started:
        check_numbers("a start", INT62, record.at)
        if (record.process, record.group) != place[:2]:
            raise JournalError(
                f"it says that replica {record.process} of shard {record.group} started, in the journal of replica"
                f" {place[0]} of shard {place[1]}"
            )
        rows.add(
            "lives", *place, record.at, "started", str(record.incarnation), record.protocol, record.durability,
            _members(record.members), None, None, None,
        )  # fmt: skip
    elif kind is records.Members:
        check_numbers("members", INT62, record.at, record.position)
        members = _members(record.groups)
        rows.add("lives", *place, record.at, "members", None, None, None, members, record.position, None, None)
    elif kind is records.Stopped:
        check_numbers("a stop", INT62, record.at, record.delivered, record.completed)
        rows.add(
            "lives", *place, record.at, "stopped", None, None, None, None, record.delivered, record.completed, None
        )  # fmt: skip
    elif kind is records.Installed:
        check_numbers("an installation", INT62, record.at, record.position)
        rows.add(
            "lives", *place, record.at, "installed", None, None, None, None, record.position, record.position,
            record.digest,
        )  # fmt: skip


def _members(groups: Mapping[int, Sequence[int]]) -> str:
    """As JSON. ValueError."""
    for group, processes in groups.items():
        check_numbers("members", INT32, group, *processes)
    return msgspec.json.encode({str(group): list(processes) for group, processes in sorted(groups.items())}).decode()


def _add_account(rows: _Rows, place: tuple[int, int, int, int], record: records.Completed) -> None:
    """A row per transaction. What is said of the bundle as a whole stands in the first one's."""
    try:
        account = audit.decode_outcomes(record.record)
    except msgspec.MsgspecError as error:
        raise JournalError(f"outcomes that are none of the store's: {error}") from None
    if account.version > audit.NESTED_VERSION:
        raise JournalError(f"outcome version {account.version} is newer than this program's {audit.NESTED_VERSION}")
    if not 0 < len(account.outcomes) <= BUNDLE_TRANSACTIONS_MAX:
        raise JournalError(f"the outcomes of {len(account.outcomes)} transactions")
    check_numbers("an outcome", INT62, record.position, record.at)
    timestamp = account.timestamp.encode()
    message = account.outcomes[0].id if account.version == 1 else None
    whole = (_content(account), _bundle(account), account.state_digest)
    for index, outcome in enumerate(account.outcomes):
        check_numbers("an outcome", INT32, outcome.status)
        version = account.version_at(index).encode()
        transaction = outcome.id or version
        _check_id(transaction)
        who = (*place, record.position, version, transaction)
        applied = outcome.status == audit.APPLIED
        step = isinstance(outcome, audit.MoveOutcome) and outcome.given is not None
        reason, handed_over = _reason(outcome)
        rows.add(
            "outcomes", *who, index, message, timestamp, record.at, outcome.status, outcome.succeeded,
            outcome.truths if isinstance(outcome, audit.NestedOutcome) else b"",
            applied and (step or bool(outcome.writes)),
            *(whole if index == 0 else (None, None, None)), reason,
        )  # fmt: skip
        for key, seen in [(read.key, read.version) for read in outcome.reads] + handed_over:
            rows.add("reads", *who, key, seen.encode())
        for write in outcome.writes if applied else ():
            rows.add("writes", *who, write.key, write.value, write.value is None, write.digest)
        if isinstance(outcome, audit.MoveOutcome) and outcome.given is not None:
            _add_step(rows, who, outcome, outcome.given)


def _add_step(rows: _Rows, who: tuple[Any, ...], outcome: audit.MoveOutcome, given: audit.Given) -> None:
    check_numbers("a step of a move", INT32, outcome.source, outcome.target)
    check_slots(outcome.slots)
    check_slots(given.slots)
    handed = given.slots or (outcome.slots if given.last else ())  # earlier releases: the last step, and it names none
    asked, slots = (msgspec.json.encode(some).decode() for some in (outcome.slots, handed))
    rows.add("moves", *who, outcome.source, outcome.target, given.first, given.last, asked, slots)
    for row in given.rows:
        written = audit.Write.of(row.key, row.value)
        version = row.version.encode()
        rows.add("given", *who, row.key, version, written.value, written.value is None, written.digest)


def _add_base(rows: _Rows, place: tuple[int, int, int, int], record: records.Base) -> None:
    """Rows of `writes`: somebody wrote them before the first transaction, and is known by their version."""
    try:
        base = audit.decode_base(record.record)
    except msgspec.MsgspecError as error:
        raise JournalError(f"a base that is none of the store's: {error}") from None
    if base.version > audit.BASE_VERSION:
        raise JournalError(f"base version {base.version} is newer than this program's {audit.BASE_VERSION}")
    for key, version, value, digested in base.rows:
        rows.add("writes", *place, 0, version.encode(), version.encode(), key, value, False, digested)


MOVED_TO = "moved to shard "
"""So begins what is said of a step of a move that hands slots over, in place of a reason."""


def _reason(outcome: audit.Outcome) -> tuple[str, list[tuple[bytes, Timestamp]]]:
    """And what a step of a move gives. That is read by it: in the source, and again, alike, in the target."""
    if not isinstance(outcome, audit.MoveOutcome) or outcome.given is None:
        return outcome.reason, []
    given = outcome.given
    reason = f"{MOVED_TO}{outcome.target}" if given.slots or given.last else outcome.reason
    return reason, [(row.key, row.version) for row in given.rows]


def _bundle(account: audit.Outcomes) -> bytes:
    """Equal for accounts of the same transactions in the same order, of which those that move slots hand over the same:
    whatever shard they are of. The last eight bytes are of the transactions alone."""
    ids = b"".join(outcome.id or b"-" * 16 for outcome in account.outcomes)
    moves = [(o.source, o.target, o.slots, o.given) for o in account.outcomes if isinstance(o, audit.MoveOutcome)]
    both = (_encode(moves) if moves else b"", ids)
    return b"".join(hashlib.blake2b(part, digest_size=8).digest() for part in both)


_WANTED = (
    records.STARTED, records.MEMBERS, records.STOPPED, records.INSTALLED, records.SUBMITTED, *records.DELIVERIES,
    records.COMPLETED, records.BASE,
)  # fmt: skip
_IGNORED = records.CHANGES


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


class SegmentParser:
    """Reads one segment from some byte on. Records of a batch whose end is missing are dropped if nobody vouched for
    them.

    `kept` first, then `rest`. clean: the byte of the file up to which `kept` read; a later reading may begin there.
    used: how many records stand before it; batch: the number of the last batch before it. error: why this is no segment
    of this replica, or empty.
    """

    def __init__(self, segment: SegmentFile, data: bytes, start: int = HEADER_BYTES, used: int = 0, batch: int = 0):
        """data: the segment's header, and its bytes from `start` on. used, batch: of what stands before `start`."""
        self.segment = segment
        self.data = data
        self.shift = start - HEADER_BYTES
        self.rows = _Rows()
        self.header: SegmentHeader | None = None
        self.damages: list[tuple[int, str]] = []
        self.clean = 0
        self.used = used
        self.batch = batch
        self.error = ""
        self.size = len(data) + self.shift
        self._good = 0
        self._more = 0
        self._good_mark = self._clean_mark = self.rows.mark()

    def kept(self) -> Iterator[Batches]:
        """The rows that stand before the first damage and before an unfinished batch."""
        segment = self.segment
        if segment.last and (self.size < HEADER_BYTES or not self.data.strip(b"\0")):  # as `multicast.journal` has it
            self._add_damage("unfinished", 0, "a segment that was only just created")
            return
        try:
            header = SegmentHeader.decode(self.data[:HEADER_BYTES], segment.name)
            if (header.process, header.segment) != (segment.replica, segment.number):
                raise JournalError(
                    f"{segment.name}: it says that it is segment {header.segment} of replica {header.process}"
                )
            if header.base >= INT62:
                raise JournalError(f"{segment.name}: it says that it begins at offset {header.base}")
        except JournalError as error:
            self.error = str(error).removeprefix(f"{segment.name}: ")
            self._add_damage("damage", 0, self.error)
            return
        self.header = header
        self.clean = self._good = HEADER_BYTES + self.shift
        yield from self._records(header)
        self._good_mark = {t: n - self._clean_mark[t] for t, n in self._good_mark.items()}
        yield self.rows.take(self._clean_mark)

    def _records(self, header: SegmentHeader) -> Iterator[Batches]:
        rows, segment, damages = self.rows, self.segment, self.damages
        base = header.base + self.shift - HEADER_BYTES
        life = Lives(self.batch, base + HEADER_BYTES)
        for found in _scan(self.data):
            if isinstance(found, records.Damage):
                damages.append((found.at + self.shift, found.reason))
                life.unsure = True
                continue
            at, kind, body = found
            if life.lacks_beginning(at, kind, body):
                damages.append((life.begin + self.shift, NO_BEGINNING))
            if kind == records.BATCH_END:
                self._good, self._good_mark = at + self.shift + FRAME_BYTES + 1 + len(body), rows.mark()
                if not damages:
                    self.clean, self._clean_mark, self.batch = self._good, self._good_mark, life.batch
                    self.used, self._more = self.used + self._more, 0
                    if rows.count >= BATCH_ROWS:
                        yield rows.take()
                        self._good_mark = self._clean_mark = rows.mark()
            elif kind in _WANTED:
                place = (segment.replica, header.group, segment.number, base + at)
                try:
                    _add_record(rows, place, records.decode_body(kind, body))
                except (JournalError, ValueError, TypeError, OverflowError, struct.error) as error:
                    rows.drop(place)
                    damages.append((at + self.shift, str(error)))
                else:
                    self._more += 1
            elif kind not in _IGNORED:
                damages.append((at + self.shift, f"unknown record kind {kind}"))

    def rest(self) -> Batches:
        """What the end of the segment means: the rows behind damage, the damage, and a description of the segment."""
        if self.header is not None:
            self._finish(self.header)
        return self.rows.take()

    def _finish(self, header: SegmentHeader) -> None:
        segment, size = self.segment, self.size
        vouched = segment.mark is not None and segment.mark > header.base + self.clean - HEADER_BYTES
        torn = segment.last and not vouched and (segment.mark is not None or self._good == self.clean)
        if self._blank() and not (segment.last and vouched):
            good, used = self.clean, self.used
        elif torn:
            self.rows.cut(dict.fromkeys(schemas.TABLES, 0))
            good, used = self.clean, self.used
            if good < size:
                self._add_damage("unfinished", good, f"{size - good} bytes after the last whole batch")
        else:
            good, used = self._good, self.used + self._more
            self.rows.cut(self._good_mark)
            for at, reason in self.damages:
                self._add_damage("damage", at, reason)
            if good < size and not self.damages:
                self._add_damage("damage", good, "records without the end of their batch")
        end = header.base + good - HEADER_BYTES
        self.rows.add(
            "segments", segment.replica, header.group, segment.number, header.base, segment.name, end, used,
            header.cluster.hex(),
        )  # fmt: skip

    def _blank(self) -> bool:
        """Whether nothing was written behind the last whole batch: room made beforehand is zeros."""
        return self._good == self.clean and not self.data[self.clean - self.shift :].strip(b"\0")

    def _add_damage(self, event: str, at: int, reason: str) -> None:
        self.rows.add("damage", self.segment.replica, self.segment.number, self.segment.name, at, event, reason)


def parse_segment(segment: SegmentFile, data: bytes) -> Iterator[Batches]:
    """The rows of one segment, `data` being its whole content."""
    parser = SegmentParser(segment, data)
    yield from parser.kept()
    yield parser.rest()


def unreadable_segment(segment: SegmentFile, reason: str) -> Batches:
    """That nothing of a segment could be read."""
    rows = _Rows()
    rows.add("damage", segment.replica, segment.number, segment.name, 0, "damage", reason)
    return rows.take()
