"""What is sent back, as bytes."""

from __future__ import annotations

import email.utils
import time
from typing import NamedTuple

from kvstore.api import forms
from kvstore.api.codec import id_text
from kvstore.api.forms import Form
from kvstore.api.http1 import PHRASES
from kvstore.api.model import KeyValue
from kvstore.core.messages import Answered
from multicast.types import ZERO

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
JSON = forms.JSON.header
OCTETS = b"Content-Type: application/octet-stream\r\n"
TEXT = b"Content-Type: text/plain; charset=utf-8\r\n"
EVENTS = b"Content-Type: text/event-stream\r\nCache-Control: no-store\r\n"

_STATUS_LINES = [
    {status: b"HTTP/1.%d %d %b\r\n" % (minor, status, phrase.encode()) for status, phrase in PHRASES.items()}
    for minor in (0, 1)
]
_EMPTY = (204, 304)
_CONNECTION = {
    (0, False): b"",
    (0, True): b"Connection: keep-alive\r\n",
    (1, False): b"Connection: close\r\n",
    (1, True): b"",
}


def takes_gzip(accept_encoding: str) -> bool:
    """Whether this header allows an answer to be compressed (RFC 9110, Section 12.5.3)."""
    parts = [part.replace(" ", "").partition(";q=") for part in accept_encoding.lower().split(",")]
    weights = {coding: weight for coding, _, weight in parts}
    weight = weights.get("gzip", weights.get("*", "0"))
    return not weight or bool(weight.strip("0."))


class Response(NamedTuple):
    """headers: whole lines, each with its CRLF; nothing that a client chose stands in them unchecked. streams: its body
    is still to be made, and ends with the connection."""

    status: int
    headers: bytes
    body: bytes = b""
    streams: bool = False


def stream_head(response: Response, minor: int, date: bytes) -> bytes:
    """The head of an answer that ends with its connection (RFC 9112, Section 6.3)."""
    status, headers, _, _ = response
    return b"".join((_STATUS_LINES[minor][status], headers, date, _CONNECTION[minor, False], b"\r\n"))


def encoded(response: Response, minor: int, keep_alive: bool, date: bytes, bodiless: bool) -> bytes:
    """The whole answer to a request of HTTP/1.`minor`. date: a line, see `Date`. bodiless: to a HEAD."""
    status, headers, body, _ = response
    length = b"" if status in _EMPTY else b"Content-Length: %d\r\n" % len(body)
    if bodiless or status in _EMPTY:
        body = b""
    line, connection = _STATUS_LINES[minor][status], _CONNECTION[minor, keep_alive]
    return b"".join((line, headers, length, date, connection, b"\r\n", body))


def read_at(answered: Answered) -> str:
    """Where a read that had no id saw its shards, see `Answered`: SHARD/POSITION/VERSION of one; of several that were
    not ordered SHARD/POSITION of each, with commas. Else empty."""
    if answered.shard < 0:
        return ",".join([f"{shard}/{position}" for shard, position in answered.places])
    return f"{answered.shard}/{answered.position}/{answered.result.version}"


def read_at_line(seen_at: str) -> bytes:
    """The header line, from what `read_at` returns."""
    return b"Kv-Read-At: %b\r\n" % seen_at.encode() if seen_at else b""


def origin_lines(found: KeyValue) -> bytes:
    """The header lines of a key beside its version: its create version and its lease."""
    created, lease = found.create_version, found.lease
    line = b"Kv-Create-Version: %b\r\n" % str(created).encode() if created != ZERO else b""
    return b"%bKv-Lease: %b\r\n" % (line, id_text(lease).encode()) if lease else line


def write_headers(text_id: str, form: Form = forms.JSON) -> bytes:
    """The headers of the answer to a write. text_id: its id."""
    return b"%bIdempotency-Key: %b\r\n" % (form.header, text_id.encode())


class Date:
    """The `Date` line, made once a second."""

    def __init__(self) -> None:
        self._line = b""
        self._until = float("-inf")

    def line(self, now: float) -> bytes:
        """now: of any clock that does not go back, seconds."""
        if now >= self._until:
            wall = time.time()
            self._until = now + 1.0 - wall % 1.0
            self._line = b"Date: %b\r\n" % email.utils.formatdate(wall, usegmt=True).encode()
        return self._line
