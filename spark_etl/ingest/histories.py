"""Parsing client histories: lines in, Arrow batches of the table out. Pure."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import msgspec
import pyarrow as pa

from kvstore.core import audit
from multicast.types import ZERO, Timestamp
from spark_etl import schemas
from spark_etl.ingest.journals import BATCH_ROWS, INT32, INT64, arrow_schema, check_numbers

_HISTORY = arrow_schema(schemas.HISTORY)
_decode_event = msgspec.json.Decoder(audit.HistoryEvent).decode
EVENT_TYPES = ("invoke", "ok", "fail", "info")


def _event_row(name: str, number: int, line: bytes) -> tuple[Any, ...]:
    """One row of `schemas.HISTORY`. ValueError if the line is no event."""
    try:
        event = _decode_event(line)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if event.type not in EVENT_TYPES:
        raise ValueError(f"type: one of {', '.join(EVENT_TYPES)}, not {event.type!r}")
    seen = Timestamp.parse(event.at).encode() if event.at else ZERO.encode() if event.places else None
    version = Timestamp.parse(event.version).encode() if event.version and seen is None else None
    reads = [(key, Timestamp.parse(text).encode()) for key, text in event.reads.items() if text]
    value = None if event.value is None else list(event.value.items())
    check_numbers("an event", INT64, event.process, event.at_us, event.position, *(event.value or {}).values())
    check_numbers("an event", INT64, event.age_us, *event.places.values())
    check_numbers("an event", INT32, event.shard, *event.places)
    shard = event.shard if event.shard >= 0 else None
    return (
        name, number, event.process, event.type, event.at_us, uuid.UUID(event.id).bytes, event.f, version,
        event.succeeded, reads, value, event.error, _json(event.asked), _json(event.told), shard, event.position,
        event.consistency or None, event.age_us if event.consistency else None, list(event.places.items()), seen, None,
    )  # fmt: skip


def _json(one: Any) -> str | None:
    return None if one is None else msgspec.json.encode(one).decode()


def parse_history(name: str, data: bytes, first: int = 1) -> Iterator[pa.RecordBatch]:
    """The events of a client history, the number of whose first line is `first`. A last line without its end is a
    killed client's and ignored."""
    rows: list[tuple[Any, ...]] = []
    lines = data.split(b"\n")
    for number, line in enumerate(lines[:-1], first):
        if not line.strip():
            continue
        try:
            rows.append(_event_row(name, number, line))
        except ValueError as error:  # msgspec's errors are ValueErrors
            rows.append(_bad_line(name, number, str(error)))
        if len(rows) >= BATCH_ROWS:
            yield _batch(rows)
            rows = []
    if rows:
        yield _batch(rows)


def _bad_line(name: str, number: int, reason: str) -> tuple[Any, ...]:
    return (name, number, *[None] * (len(_HISTORY) - 3), reason)


def unreadable_history(name: str, reason: str) -> pa.RecordBatch:
    """That nothing of a history could be read; its line is 0."""
    return _batch([_bad_line(name, 0, reason)])


def _batch(rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    arrays = [pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), _HISTORY, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=_HISTORY)
