"""Just enough of an HTTP/1.1 client for a load generator that shares its processors with what it measures.

One request at a time per kept connection (RFC 9112), on a plain socket that the owner polls: a request costs one `send`
and one `recv`, some 15 µs with all that Python does around them.
"""

from __future__ import annotations

import socket
import struct
from urllib.parse import urlsplit

LOST = 0
"""The status of a request whose connection broke."""
CONNECT_SECONDS = 5.0
SEND_SECONDS = 5
"""A server that takes nothing for so long is lost."""
_RECEIVE_BYTES = 64 * 1024
_UNKNOWN, _CHUNKED = -1, -2


class Connection:
    """One connection; `socket` is for polling: when it is readable, call `receive`."""

    __slots__ = ("_missing", "_received", "socket")

    def __init__(self, connected: socket.socket):
        self.socket = connected
        self._received = b""
        self._missing = _UNKNOWN

    @classmethod
    def open(cls, url: str) -> Connection:
        """Connect to `http://host:port`. OSError as usual."""
        parts = urlsplit(url)
        connected = socket.create_connection((parts.hostname or "127.0.0.1", parts.port or 80), CONNECT_SECONDS)
        connected.settimeout(None)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", SEND_SECONDS, 0))
        return cls(connected)

    def send(self, request: bytes) -> bool:
        """Send a whole request; the one before it has been answered. False: the connection is lost."""
        try:
            self.socket.sendall(request)
        except OSError:
            return False
        return True

    def receive(self) -> int | None:
        """What has come: the status if that completes the answer, LOST if the connection broke, None if there is more
        to come."""
        data = self._read()
        if not data:
            return LOST if data == b"" else None
        if self._received:
            data = self._received + data
        if self._missing == _UNKNOWN:
            end = data.find(b"\r\n\r\n")
            if end < 0:
                self._received = data
                return None
            length = content_length(data[:end])
            self._missing = _CHUNKED if length is None else end + 4 + length
        if not _ends(data) if self._missing == _CHUNKED else len(data) < self._missing:
            self._received = data
            return None
        self._received, self._missing = b"", _UNKNOWN
        return int(data[9:12])

    def _read(self) -> bytes | None:
        """What is there; None: nothing yet; empty: the connection is lost."""
        try:
            return self.socket.recv(_RECEIVE_BYTES, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return None
        except OSError:
            return b""

    def close(self) -> None:
        """Drop the connection."""
        self.socket.close()


def _ends(data: bytes) -> bool:
    """Whether an answer in chunks is whole: the last has no bytes, trailers may follow. Bodies are JSON on one line."""
    return data.endswith(b"\r\n\r\n") and data.find(b"\r\n0\r\n", data.find(b"\r\n\r\n") + 2) >= 0


def content_length(head: bytes) -> int | None:
    """Of an answer's head; None if its body comes in chunks, 0 if it has none."""
    start = head.find(b"Content-Length:")
    if start < 0:
        lower = head.lower()
        if b"\r\ntransfer-encoding: chunked" in lower:
            return None
        start = lower.find(b"content-length:")
        if start < 0:
            return 0
    end = head.find(b"\r\n", start)
    return int(head[start + 15 : end if end >= 0 else len(head)])


def request_bytes(method: str, path: str, headers: str, body: bytes = b"") -> bytes:
    """A request as it goes over the wire; `headers`: whole lines, each ended by CRLF."""
    head = f"{method} {path} HTTP/1.1\r\nHost: bench\r\n{headers}Content-Length: {len(body)}\r\n\r\n"
    return head.encode() + body
