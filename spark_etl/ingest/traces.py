"""Parsing the trace of a simulated run: who multicast what, and which frames left for whom, about which messages.

The format is that of `multicast/simulation/TRACE.md`; lines about anything else are left out. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from spark_etl import schemas
from spark_etl.ingest.journals import BATCH_ROWS, INT32, INT62, arrow_schema, check_numbers
from spark_etl.ingest.sources import lines_in

TRACE_VERSION = 1
"""The newest that this program reads."""

_FRAMES = arrow_schema(schemas.FRAMES)
_EMPTY = msgspec.Raw(b"null")


class _Line(msgspec.Struct):
    """What is read of a line; `message` and `groups` mean different things in different events."""

    event: str = ""
    t: int = 0
    process: int | None = None
    to: list[int] = []
    type: str = ""
    channel: str = ""
    housekeeping: bool = False
    about: list[str] = []
    message: msgspec.Raw = _EMPTY
    id: str = ""
    groups: msgspec.Raw = _EMPTY
    refused: str = ""
    trace: int | None = None
    genuine: bool | None = None
    epoch_us: int = 0


_decode = msgspec.json.Decoder(_Line).decode
_decode_name = msgspec.json.Decoder(str).decode
_decode_groups = msgspec.json.Decoder(list[int]).decode


def find_traces(run: Path) -> list[Path]:
    """Every trace of a run directory. OSError if nobody can say which there are."""
    return lines_in(run / "trace")


def parse_trace(name: str, data: bytes) -> Iterator[pa.RecordBatch]:
    """Rows of `schemas.FRAMES`. A last line without its end is what a killed program left, and ignored."""
    rows: list[dict[str, Any]] = []
    reader = _Reader()
    for number, line in enumerate(data.split(b"\n")[:-1], 1):
        try:
            row = reader.row(_decode(line))
        except RecursionError:
            row = {"damage": "it is nested too deeply"}
        except ValueError as error:  # msgspec's errors are ValueErrors
            row = {"damage": str(error)}
        if row is not None:
            rows.append({"file": name, "line": number, **row})
        if len(rows) >= BATCH_ROWS:
            yield pa.RecordBatch.from_pylist(rows, schema=_FRAMES)
            rows = []
    if rows:
        yield pa.RecordBatch.from_pylist(rows, schema=_FRAMES)


def unreadable_trace(name: str, reason: str) -> pa.RecordBatch:
    """That nothing of a trace could be read; its line is 0."""
    return pa.RecordBatch.from_pylist([{"file": name, "line": 0, "damage": reason}], schema=_FRAMES)


class _Reader:
    """Knows what the names of messages in a trace stand for."""

    def __init__(self) -> None:
        self._ids: dict[str, bytes] = {}
        self._epoch_us: int | None = None

    def row(self, line: _Line) -> dict[str, Any] | None:
        """The columns of a line that says something here. ValueError if it is no line of a trace."""
        if self._epoch_us is None:
            if line.trace is None:
                raise ValueError("the first line is not that of a trace")
            if line.trace > TRACE_VERSION:
                raise ValueError(f"trace version {line.trace} is newer than this program's {TRACE_VERSION}")
            if line.genuine is None:
                raise ValueError("an older program's trace: it does not say what its frames are about")
            self._epoch_us = line.epoch_us
            return {"event": "trace", "genuine": line.genuine}
        found = {"event": line.event, "at": self._epoch_us + line.t, "process": line.process}
        check_numbers("a line", INT62, self._epoch_us + line.t)
        check_numbers("a line", INT32, line.process, *line.to)
        if line.event == "leave":
            return found | {
                "to": line.to, "kind": line.type, "channel": line.channel, "housekeeping": line.housekeeping,
                "ids": [self._id(message) for message in line.about],
            }  # fmt: skip
        if line.event == "submit":
            message_id = self._ids[_decode_name(line.message)] = bytes.fromhex(line.id)
            if line.refused:
                return None
            destinations = _decode_groups(line.groups)
            check_numbers("a line", INT32, *destinations)
            return found | {"ids": [message_id], "destinations": destinations}
        return found if line.event == "end" else None

    def _id(self, name: str) -> bytes:
        try:
            return self._ids[name]
        except KeyError:
            raise ValueError(f"a frame about {name}, which no line has submitted") from None
