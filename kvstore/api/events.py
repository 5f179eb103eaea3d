"""The stream that answers `GET /v1/watch`: server-sent events (WHATWG HTML, Section 9.2), written and read. Pure.

An event is of one transaction, `change`: its version, and what it has changed within the bounds of the watch. Or it
says that everything up to a version was told, `progress`. The last one may say why the stream ends: `lagged`,
`compacted` or `ended`. The id of every event is the version after which a watch goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from kvstore.api.answers import MalformedAnswer
from kvstore.api.codec import bytes_of, encode
from kvstore.api.forms import text_or_b64
from multicast.types import Timestamp

CHANGE, PROGRESS, LAGGED, COMPACTED, ENDED = "change", "progress", "lagged", "compacted", "ended"
EVENT_BYTES_MAX = 128 * 1024 * 1024
"""Whoever reads gives up beyond. (A replica tells 16 MiB of a transaction, and JSON may need six bytes for one.)"""


class Change(NamedTuple):
    """value: None if the key was deleted."""

    key: bytes
    value: bytes | None


class Event(NamedTuple):
    """kind: see the module. version: of the transaction, or up to which everything was told. code, detail: why the
    stream ends."""

    kind: str
    version: Timestamp
    changes: tuple[Change, ...] = ()
    code: str = ""
    detail: str = ""


class ChangeJson(msgspec.Struct, omit_defaults=True):
    """One of value, value_b64 and deleted."""

    key: str | None = None
    key_b64: bytes | None = None
    value: str | None = None
    value_b64: bytes | None = None
    deleted: bool = False


class EventJson(msgspec.Struct, omit_defaults=True):
    """The data of an event."""

    version: str
    changes: list[ChangeJson] = []
    code: str = ""
    detail: str = ""


_decode = msgspec.json.Decoder(EventJson).decode


def encode_change(version: Timestamp, changes: Sequence[tuple[bytes, bytes | None]]) -> bytes:
    """A transaction."""
    return _event(CHANGE, EventJson(str(version), [_change_json(key, value) for key, value in changes]))


def event_json(event: Event) -> EventJson:
    """As its data stands in the stream."""
    changes = [_change_json(*change) for change in event.changes]
    return EventJson(str(event.version), changes, event.code, event.detail)


def _change_json(key: bytes, value: bytes | None) -> ChangeJson:
    fields: dict[str, Any] = text_or_b64("key", key) | ({} if value is None else text_or_b64("value", value))
    return ChangeJson(**fields, deleted=value is None)


def encode_progress(version: Timestamp) -> bytes:
    """Everything up to there was told."""
    return _event(PROGRESS, EventJson(str(version)))


def encode_end(version: Timestamp, code: str, detail: str) -> bytes:
    """Nothing follows; a watch may go on after this version, unless it is compacted."""
    kind = code if code in (LAGGED, COMPACTED) else ENDED
    return _event(kind, EventJson(str(version), code=code, detail=detail))


def _event(kind: str, data: EventJson) -> bytes:
    return b"id: %b\nevent: %b\ndata: %b\n\n" % (data.version.encode(), kind.encode(), encode(data))


class EventReader:
    """Bytes in, events out."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[Event]:
        """The events that are complete now. MalformedAnswer."""
        rest, looked = self._rest, max(0, len(self._rest) - 1)  # what is before has no end of an event: not again
        rest += data
        events, begin = [], 0
        while (end := rest.find(b"\n\n", max(begin, looked))) >= 0:
            events.append(_parse(bytes(rest[begin:end])))
            begin = end + 2
        del rest[:begin]
        if len(rest) > EVENT_BYTES_MAX:
            raise MalformedAnswer(f"an event of more than {EVENT_BYTES_MAX} bytes")
        return events


def _parse(block: bytes) -> Event:
    fields = dict(line.partition(b": ")[::2] for line in block.split(b"\n"))
    try:
        data = _decode(fields.get(b"data", b""))
        changes = [
            Change(
                bytes_of("key", change.key, change.key_b64),
                None if change.deleted else bytes_of("value", change.value, change.value_b64),
            )
            for change in data.changes
        ]
        kind = fields.get(b"event", b"").decode()
        return Event(kind, Timestamp.parse(data.version), tuple(changes), data.code, data.detail)
    except ValueError as error:
        raise MalformedAnswer(f"an event of a watch: {error}") from error
