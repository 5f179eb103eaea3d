"""Just enough of gRPC for a load generator: unary calls, one at a time per kept connection.

HTTP/2 (RFC 9113) without TLS; header blocks (RFC 7541) are literals that use no table, so that a call's is the same
bytes every time, and answers' are not decoded: an answer with a message is a success, one without is none. What peers
must do for each other is done: settings and pings are acknowledged, windows are opened wide.
"""

from __future__ import annotations

import socket

from workloads.bench.connection import LOST, Connection

_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _GOAWAY, _WINDOW = 0, 1, 3, 4, 6, 7, 8
_END_STREAM, _ACK, _END_HEADERS = 1, 1, 4
_HEAD_BYTES = 9
_WINDOW_MAX = 2**31 - 1
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
FAILED = 500
"""The status of a call that was answered without a message."""


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """RFC 9113, Section 4.1."""
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def call(method: str, message: bytes) -> bytes:
    """What `GrpcConnection.send` takes. method: `/package.Service/Method`; message: as protobuf encodes it."""
    path = method.encode()
    headers = (
        b"\x83\x86"  # :method POST, :scheme http
        + b"\x04" + bytes((len(path),)) + path
        + b"\x01\x05bench"  # :authority
        + b"\x0f\x10\x10application/grpc"  # content-type
        + b"\x00\x02te\x08trailers"
    )  # fmt: skip
    return bytes((len(headers),)) + headers + b"\x00" + len(message).to_bytes(4, "big") + message


def field(number: int, value: bytes | int) -> bytes:
    """One field of a protobuf message: bytes (or a message), or an integer of at least 0."""
    if isinstance(value, int):
        return bytes((number << 3,)) + _varint(value)
    return bytes((number << 3 | 2,)) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


class GrpcConnection(Connection):
    """As `Connection`; a request is a `call`. Requests are small, so that the peer's window is never waited for."""

    __slots__ = ("_buffer", "_stream", "_with_message")

    @classmethod
    def open(cls, url: str) -> GrpcConnection:
        """Connect to `http://host:port`. OSError as usual."""
        return cls(Connection.open(url).socket)

    def __init__(self, connected: socket.socket):
        super().__init__(connected)
        self._buffer = b""
        self._stream = -1
        self._with_message = False
        settings = b"\x00\x02" + bytes(4) + b"\x00\x04" + _WINDOW_MAX.to_bytes(4, "big")  # no push; windows of streams
        more = (_WINDOW_MAX - 65_535).to_bytes(4, "big")  # for the window of the connection
        super().send(_PREFACE + frame(_SETTINGS, 0, 0, settings) + frame(_WINDOW, 0, 0, more))

    def send(self, request: bytes) -> bool:
        self._stream += 2
        end = 1 + request[0]
        headers = frame(_HEADERS, _END_HEADERS, self._stream, request[1:end])
        return super().send(headers + frame(_DATA, _END_STREAM, self._stream, request[end:]))

    def receive(self) -> int | None:
        data = self._read()
        if not data:
            return LOST if data == b"" else None
        buffer, place = self._buffer + data, 0
        status: int | None = None
        while len(buffer) - place >= _HEAD_BYTES:
            end = place + _HEAD_BYTES + int.from_bytes(buffer[place : place + 3], "big")
            if end > len(buffer):
                break
            kind, flags = buffer[place + 3], buffer[place + 4]
            stream = int.from_bytes(buffer[place + 5 : place + _HEAD_BYTES], "big")
            told = self._take(kind, flags, stream, buffer[place + _HEAD_BYTES : end])
            status = status if told is None else told
            place = end
        self._buffer = buffer[place:]
        return status

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> int | None:
        """One frame; the status if it ends the answer."""
        if kind == _GOAWAY:
            return LOST
        if kind in (_SETTINGS, _PING) and not flags & _ACK:
            answer = payload if kind == _PING else b""
            return None if super().send(frame(kind, _ACK, 0, answer)) else LOST
        if stream != self._stream:
            return None
        if kind == _DATA:
            self._with_message = True
        if kind == _RESET or (kind in (_DATA, _HEADERS) and flags & _END_STREAM):
            done, self._with_message = self._with_message and kind != _RESET, False
            return 200 if done else FAILED
        return None
