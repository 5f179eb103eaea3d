"""Parsing client histories: lines in, Arrow batches of the table out. Pure."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
import pyarrow as pa

from kvstore.core import audit
from multicast.types import ZERO, Timestamp
from spark_etl import schemas
from spark_etl.ingest.journals import BATCH_ROWS, INT32, INT62, INT64, Batches, arrow_schema, check_numbers

_SCHEMAS = {"history": arrow_schema(schemas.HISTORY), "watched": arrow_schema(schemas.WATCHED)}
_decode_event = msgspec.json.Decoder(audit.HistoryEvent).decode
EVENT_TYPES = ("invoke", "ok", "fail", "info")
WATCH = "watch"
_KINDS = (
    "get", "delete", "revoke", "add", "min", "max", "put", "append", "range", "keys", "count", "delete_range",
    "none_newer", "txn",
)  # fmt: skip
_CLUSTER = re.compile("[0-9a-f]{32}")
CONSISTENCIES = ("linearizable", "snapshot", "stale")
"""What is of another one is not known to promise anything."""


def _row(name: str, number: int, line: bytes) -> tuple[str, tuple[Any, ...]]:
    """The table of an event, and its row there. ValueError if the line is no event."""
    try:
        event = _decode_event(line)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if event.type == WATCH:
        return "watched", _watch_row(name, number, event)
    return "history", _event_row(name, number, event)


def _event_row(name: str, number: int, event: audit.HistoryEvent) -> tuple[Any, ...]:
    if event.type not in EVENT_TYPES:
        raise ValueError(f"type: one of {', '.join((*EVENT_TYPES, WATCH))}, not {event.type!r}")
    if event.consistency and event.consistency not in CONSISTENCIES:
        raise ValueError(f"consistency: one of {', '.join(CONSISTENCIES)}, not {event.consistency!r}")
    weaker = event.consistency if event.consistency not in ("", "linearizable") else None
    seen = Timestamp.parse(event.at).encode() if event.at else None
    if event.places and seen is None:
        seen = (Timestamp.parse(event.version) if event.version else ZERO).encode()
    version = Timestamp.parse(event.version).encode() if event.version and seen is None else None
    if event.at and event.version and Timestamp.parse(event.version).encode() != seen:
        raise ValueError(f"at: who reads at version {event.at} is told that, not {event.version}")
    if event.asked is not None:
        _check_asked(event.asked)
    reads = [(key, Timestamp.parse(text).encode()) for key, text in event.reads.items() if text]
    value = None if event.value is None else list(event.value.items())
    check_numbers("an event", INT64, event.process, *(event.value or {}).values())
    check_numbers("an event", INT62, event.at_us, event.age_us, event.position, *event.places.values())
    check_numbers("an event", INT32, event.shard, *event.places)
    shard = event.shard if event.shard >= 0 else None
    if event.cluster and not _CLUSTER.fullmatch(event.cluster):
        raise ValueError("cluster: 32 hexadecimal digits")
    return (
        name, number, event.process, event.type, event.at_us, uuid.UUID(event.id).bytes, event.f, version,
        event.succeeded, reads, value, event.error, _json(event.asked), _json(event.told), shard, event.position,
        weaker, event.age_us if weaker else None, list(event.places.items()), seen,
        event.cluster or None, None,
    )  # fmt: skip


def _watch_row(name: str, number: int, event: audit.HistoryEvent) -> tuple[Any, ...]:
    if event.f not in audit.WATCH_EVENTS:
        raise ValueError(f"f: of a watch, one of {', '.join(audit.WATCH_EVENTS)}, not {event.f!r}")
    check_numbers("an event", INT62, event.at_us)
    version = Timestamp.parse(event.version).encode() if event.version else None
    first = end = changes = None
    if event.f == "begin":
        if event.asked is None or len(event.asked.success) != 1 or len(event.asked.success[0]) != 3:
            raise ValueError("a watch begins with its bounds")
        first, end = [str(bound).encode() for bound in event.asked.success[0][1:]]
    elif event.f == "change":
        told = event.told[0] if event.told is not None and len(event.told) == 1 else None
        if version is None or not isinstance(told, dict):
            raise ValueError("a change is of a version, and tells of keys")
        changes = list(told.items())
    return name, number, event.at_us, uuid.UUID(event.id).bytes, event.f, version, first, end, changes


def _check_asked(asked: audit.Asked) -> None:
    """ValueError if a comparison or an operation has other words than `audit.Asked` says. Operations of kinds that are
    not known here are compared with nothing."""
    for compared in asked.compare:
        if len(compared) != 4 or not _texts(compared[:3]):
            raise ValueError(f"asked.compare: [key, target, operator, operand], not {compared!r}")
    for words in (*asked.success, *asked.failure):
        match words:
            case ["get" | "delete" | "revoke", str()] | ["add" | "min" | "max", str(), int()]:
                pass
            case ["put" | "append", str(), str()] | ["put", str(), str(), str()]:
                pass
            case ["range" | "keys" | "count" | "delete_range", str(), *ends] if len(ends) < 3 and _texts(ends):
                pass
            case ["none_newer", str(), str(version), *ends] if len(ends) < 3 and _texts(ends) and is_version(version):
                pass
            case ["txn", audit.Asked() as nested]:
                _check_asked(nested)
            case [str() as kind, *_] if kind not in _KINDS:
                pass
            case _:
                raise ValueError(f"asked: no operation has these words: {words!r}")


def is_version(text: str) -> bool:
    """Whether that is a version as text."""
    try:
        Timestamp.parse(text)
    except ValueError:
        return False
    return True


def _texts(words: Iterable[object]) -> bool:
    return all(isinstance(word, str) for word in words)


def _json(one: Any) -> str | None:
    return None if one is None else msgspec.json.encode(one).decode()


def parse_history(name: str, data: bytes, first: int = 1) -> Iterator[Batches]:
    """The events of a client history, the number of whose first line is `first`: of each table the next rows. A last
    line without its end is a killed client's and ignored."""
    rows: dict[str, list[tuple[Any, ...]]] = {table: [] for table in _SCHEMAS}
    lines = data.split(b"\n")
    for number, line in enumerate(lines[:-1], first):
        if not line.strip():
            continue
        try:
            table, row = _row(name, number, line)
        except ValueError as error:  # msgspec's errors are ValueErrors
            table, row = "history", _bad_line(name, number, str(error))
        rows[table].append(row)
        if len(rows[table]) >= BATCH_ROWS:
            yield {table: _batch(table, rows[table])}
            rows[table] = []
    if rest := {table: _batch(table, some) for table, some in rows.items() if some}:
        yield rest


def _bad_line(name: str, number: int, reason: str) -> tuple[Any, ...]:
    return (name, number, *[None] * (len(_SCHEMAS["history"]) - 3), reason)


def unreadable_history(name: str, reason: str) -> pa.RecordBatch:
    """That nothing of a history could be read; its line is 0."""
    return _batch("history", [_bad_line(name, 0, reason)])


def _batch(table: str, rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    schema = _SCHEMAS[table]
    arrays = [pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
