"""What stands at a place that a report names: one record of a journal segment, or one line of a history."""

from __future__ import annotations

import sys
import uuid
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from kvstore.core import audit
from multicast import records
from multicast.records import FRAME_BYTES, HEADER_BYTES, Damage, JournalError, SegmentHeader
from multicast.types import Timestamp
from spark_etl.ingest.sources import Unreadable


def show(path: Path, place: int) -> dict[str, Any]:
    """The record that begins at byte `place` of a segment (`*.seg`), or line `place`, from 1, of anything else.
    sources.Unreadable, a sentence, if there is none."""
    if not path.is_file():
        raise Unreadable(f"{path}: there is no such file")
    return _record(path, place) if path.suffix == ".seg" else _line(path, place)


def _line(path: Path, number: int) -> dict[str, Any]:
    with path.open("rb") as file:
        line = next(islice(file, number - 1, None), None) if 0 < number <= sys.maxsize else None
    if line is None:
        raise Unreadable(f"{path}: there is no line {number}")
    return {"line": number, "text": line.decode(errors="backslashreplace").rstrip("\n")}


def _record(path: Path, byte: int) -> dict[str, Any]:
    data = path.read_bytes()
    try:
        header = SegmentHeader.decode(data[:HEADER_BYTES], str(path))
        at, kind, body = _found(path, data, byte)
        record = records.decode_body(kind, body)
    except JournalError as error:
        raise Unreadable(str(error)) from None
    fields = _readable(record)
    if isinstance(record, records.Completed):
        with suppress(msgspec.MsgspecError):  # another application's than the store's
            fields["record"] = _readable(audit.decode_outcomes(record.record))
    return {
        "shard": header.group, "replica": header.process, "segment": header.segment, "byte": at,
        "bytes": FRAME_BYTES + 1 + len(body), "checksum": "matches", "kind": type(record).__name__, **fields,
    }  # fmt: skip


def _found(path: Path, data: bytes, byte: int) -> tuple[int, int, memoryview]:
    """The record at this byte. Unreadable, with the one that it stands in, if none begins there."""
    found = next(records.scan(data, byte), None) if HEADER_BYTES <= byte < len(data) else None
    if isinstance(found, tuple):
        return found
    before = (one for one in records.scan(data) if not isinstance(one, Damage) and one[0] < byte)
    last = max((at for at, _, _ in before), default=None)
    hint = "" if last is None else f"; the record before begins at byte {last}"
    raise Unreadable(f"{path}: no good record begins at byte {byte} of {len(data)}{hint}")


def _readable(value: Any, name: str = "") -> Any:
    """Structs as dictionaries, ids, versions and bytes as text."""
    if isinstance(value, Timestamp):
        return str(value)
    if isinstance(value, msgspec.Struct):
        return {field: _readable(getattr(value, field), field) for field in value.__struct_fields__}
    if isinstance(value, bytes):
        if name == "id" and len(value) == 16:
            return str(uuid.UUID(bytes=value))
        text = value.decode(errors="replace")
        return text if text.isprintable() and "\ufffd" not in text else f"hex {value.hex()}"
    if isinstance(value, tuple | list):
        return [_readable(one) for one in value]
    return value
