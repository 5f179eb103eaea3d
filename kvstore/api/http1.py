"""Requests and answers in the bytes of one connection (RFC 9112). Bytes go in with `feed`, heads and bodies come out.

Strict where leniency lets two readers of the same bytes disagree about where a request ends (request smuggling): lines
end with CRLF, nothing is folded, a name ends at its colon, and a body has one `Content-Length` or is `chunked`, never
both. What breaks a rule is `Malformed`; nothing that follows it on the connection can be trusted. No length is
believed: lines, fields and heads are limited here, a body by whoever asks for it, before a byte more is kept.
"""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import NamedTuple

LINE_BYTES_MAX = 16 * 1024
"""Of the request line and of each field: a key of 400 bytes has 1200 characters percent-encoded."""
HEAD_BYTES_MAX = 64 * 1024
FIELDS_MAX = 128
CHUNK_LINE_BYTES_MAX = 1024
LENGTH_DIGITS_MAX = 15

PHRASES = {status.value: status.phrase for status in HTTPStatus}
PHRASES |= {413: "Content Too Large", 422: "Unprocessable Content"}
"""Of each status code, as RFC 9110 has it; Python below 3.13 has older ones of two."""

_TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_TARGET = rb"(?:/[!-~]*|\*|[A-Za-z][0-9A-Za-z+.-]*://[!-~]+)"
_STATUS_LINE = re.compile(rb"HTTP/1\.([01]) ([1-5][0-9][0-9])(?: [^\x00-\x08\n-\x1f\x7f]*)?")
_REQUEST_LINE = re.compile(_TOKEN + rb" " + _TARGET + rb" HTTP/1\.[01]")
_FIELDS = re.compile(rb"(?:" + _TOKEN + rb":[^\x00-\x08\n-\x1f\x7f]*\r\n)*")
_CHUNK_LINE = re.compile(rb"([0-9A-Fa-f]{1,12})(?:;" + _TOKEN + rb"(?:=(?:" + _TOKEN + rb'|"[ !#-\[\]-~]*"))?)*')
_NO_START = re.compile(rb"[^!#$%&'*+\-.^_`|~0-9A-Za-z\r]|\r[^\n]")
_TAB_IN_CODING = re.compile(rb"(?i)transfer-encoding:[^\r]*\t")
_LONE_LF = re.compile(rb"(?<!\r)\n")
_ID = "idempotency-key"
_ID_BYTES = 36
_ID_FIELD = re.compile(rb"(?i)(?:^|\n)idempotency-key: ([0-9a-f-]{36})\r\n")
_ID_VALUE = re.compile(rb"[0-9A-Fa-f-]{36}")


class Malformed(Exception):
    """What came is no request. The connection is of no further use."""


class BodyTooLarge(Exception):
    """The body has more bytes than whoever asked for it takes."""


class Fields:
    """The header section of a message.

    values: by name in lower case; a field that came several times has its values joined with commas (RFC 9110, Section
    5.3). length: of the body, bytes; None: chunked. keep_alive: whether the connection stays, by the minor version of
    the message. expects_continue: the client waits for a 100 before it sends the body.
    """

    __slots__ = ("expects_continue", "keep_alive", "length", "one_host", "values")

    def __init__(self, block: bytes):
        if not _FIELDS.fullmatch(block):
            raise Malformed("a header field is not `name: value`, ended by CRLF")
        lines = block.decode("latin-1").split("\r\n")
        if len(lines) > FIELDS_MAX + 1:
            raise Malformed(f"more than {FIELDS_MAX} header fields")
        values: dict[str, str] = {}
        for line in lines[:-1]:
            if len(line) > LINE_BYTES_MAX:
                raise Malformed(f"a header field of more than {LINE_BYTES_MAX} bytes")
            name, _, value = line.partition(":")
            name, value = name.lower(), value.strip(" \t")
            values[name] = f"{values[name]}, {value}" if name in values else value
        self.values = values
        self.one_host = "," not in values.get("host", ",")
        self.length = _body_length(values)
        if self.length is None and _TAB_IN_CODING.search(block):
            raise Malformed("a tab in Transfer-Encoding, which not everybody takes for a space")
        options = {option.strip() for option in values.get("connection", "").lower().split(",")}
        self.keep_alive = ("keep-alive" in options and "close" not in options, "close" not in options)
        self.expects_continue = values.get("expect", "").lower() == "100-continue"

    def with_id(self, text: str) -> Fields:
        """The same with another `Idempotency-Key`."""
        other = object.__new__(Fields)
        other.values = {**self.values, _ID: text}
        other.one_host, other.length, other.keep_alive = self.one_host, self.length, self.keep_alive
        other.expects_continue = self.expects_continue
        return other


def _body_length(values: dict[str, str]) -> int | None:
    """Section 6.3: how the body is delimited; None: chunked."""
    length, coding = values.get("content-length"), values.get("transfer-encoding")
    if coding is not None:
        if length is not None:
            raise Malformed("both Content-Length and Transfer-Encoding")
        if coding.lower() != "chunked":
            raise Malformed("a Transfer-Encoding other than chunked")
        return None
    if length is None:
        return 0
    if not (length.isascii() and length.isdigit()) or len(length) > LENGTH_DIGITS_MAX:
        raise Malformed("Content-Length is not one number of bytes")
    return int(length)


def origin_form(target: str) -> str:
    """The path and query of a request target that is a whole URL, as through a proxy (Section 3.2.2)."""
    _, _, rest = target.partition("://")
    return "/" + rest.partition("/")[2]


class Head(NamedTuple):
    """A request before its body. minor: of its version, HTTP/1.minor."""

    method: str
    target: str
    minor: int
    fields: Fields

    @property
    def keep_alive(self) -> bool:
        return self.fields.keep_alive[self.minor]

    @property
    def expects_continue(self) -> bool:
        """Whether the client waits for a 100: one of HTTP/1.0 would not know it (RFC 9110, Section 10.1.1)."""
        return self.minor > 0 and self.fields.expects_continue


class ResponseHead(NamedTuple):
    """An answer before its body."""

    status: int
    minor: int
    fields: Fields

    @property
    def keep_alive(self) -> bool:
        return self.fields.keep_alive[self.minor]


class _Reader:
    """What requests and answers have in common. After a head, `body` gives its body."""

    def __init__(self) -> None:
        self._data = b""
        self._at = 0
        self._block = b""
        self._fields = Fields(b"")
        self._id_at = 0
        """Where in `_block` the value of its only `Idempotency-Key` begins; 0: there is none, or not one of ours."""
        self._body = bytearray()
        self._chunked = _Chunked()
        self._left = 0
        """Bytes of the body that have not come; -1: of a chunked one, whose end is not known."""

    def feed(self, data: bytes) -> None:
        """Take what has come."""
        self._data = data if self._at == len(self._data) else self._data[self._at :] + data
        self._at = 0

    @property
    def unread_bytes(self) -> int:
        """What has come and was not asked for yet."""
        return len(self._data) - self._at

    @property
    def body_bytes(self) -> int:
        """What is kept of a body that is not whole."""
        return len(self._body)

    @property
    def inside_body(self) -> bool:
        """Whether a body has begun and its end has not been seen."""
        return self._left != 0

    def _fields_of(self, block: bytes) -> Fields:
        """A peer rarely changes its fields from message to message, but for the id of each."""
        if block != self._block:
            self._fields = self._same_but_for_id(block) or self._read_fields(block)
            self._block = block
        return self._fields

    def _read_fields(self, block: bytes) -> Fields:
        fields, found = Fields(block), _ID_FIELD.search(block)
        self._id_at = found.start(1) if found and fields.values[_ID] == found[1].decode() else 0
        return fields

    def _same_but_for_id(self, block: bytes) -> Fields | None:
        """Its fields, if it is like the block before it."""
        before, begin, end = self._block, self._id_at, self._id_at + _ID_BYTES
        if not begin or block[:begin] != before[:begin] or block[end:] != before[end:]:
            return None
        value = block[begin:end]
        return self._fields.with_id(value.decode()) if _ID_VALUE.fullmatch(value) else None

    def _begin_body(self, head_end: int, length: int | None) -> None:
        self._at = head_end
        self._left = -1 if length is None else length

    def body(self, bytes_max: int) -> bytes | None:
        """The whole body; None if not all of it has come. BodyTooLarge as soon as that is certain; Malformed."""
        left = self._left
        if left > bytes_max - len(self._body):
            raise BodyTooLarge
        if left >= 0 and not self._body and len(self._data) - self._at >= left:
            begin, self._at, self._left = self._at, self._at + left, 0
            return self._data[begin : self._at]
        self._take(self._body, bytes_max)
        if self._left:
            return None
        whole, self._body = bytes(self._body), bytearray()
        return whole

    def skip(self) -> bool:
        """Drop what has come of the body; whether that was all of it. Malformed."""
        self._body = bytearray()
        if self._left:
            self._take(None, 0)
        return self._left == 0

    def _take(self, into: bytearray | None, bytes_max: int) -> None:
        if self._left < 0:
            self._at = self._chunked.take(self._data, self._at, into, bytes_max)
            if self._chunked.whole:
                self._chunked, self._left = _Chunked(), 0
            return
        end = min(len(self._data), self._at + self._left)
        if into is not None:
            into += self._data[self._at : end]
        self._left -= end - self._at
        self._at = end


class RequestReader(_Reader):
    """`head` gives the next request; then `body` its body, or `skip` drops it; then `head` the next one, and so on."""

    def head(self) -> Head | None:
        """The next request; None if not all of its head has come. Malformed."""
        data, begin = self._data, self._at
        if begin == len(data):
            return None
        while data.startswith(b"\r\n", begin):  # Section 2.2: empty lines before a request
            begin += 2
        end = data.find(b"\r\n\r\n", begin, begin + HEAD_BYTES_MAX)
        if end < 0:
            self._at = begin
            self._check_unfinished_head()
            return None
        line_end = data.find(b"\r\n", begin)
        if line_end - begin > LINE_BYTES_MAX:
            raise Malformed(f"a request line of more than {LINE_BYTES_MAX} bytes")
        if not _REQUEST_LINE.fullmatch(data, begin, line_end):
            raise Malformed("no request line of HTTP/1.1")
        method, target, version = data[begin:line_end].decode("ascii").split(" ")
        minor, fields = 1 if version == "HTTP/1.1" else 0, self._fields_of(data[line_end + 2 : end + 2])
        if minor and not fields.one_host:
            raise Malformed("HTTP/1.1 needs one Host")
        if fields.length is None and not minor:
            raise Malformed("a chunked body in HTTP/1.0")
        self._begin_body(end + 4, fields.length)
        return Head(method, target, minor, fields)

    def _check_unfinished_head(self) -> None:
        """Malformed if it can no longer become one."""
        if _NO_START.match(self._data, self._at):
            raise Malformed("no HTTP request")
        if _LONE_LF.search(self._data, self._at):
            raise Malformed("a line that ends without CR")
        if self.unread_bytes >= HEAD_BYTES_MAX:
            raise Malformed(f"a head of more than {HEAD_BYTES_MAX} bytes")
        if self.unread_bytes > LINE_BYTES_MAX and self._data.find(b"\r\n", self._at, self._at + LINE_BYTES_MAX) < 0:
            raise Malformed(f"a request line of more than {LINE_BYTES_MAX} bytes")


class ResponseReader(_Reader):
    """`head` gives the next answer, `body` its body, and so on. For answers to other methods than HEAD."""

    def head(self) -> ResponseHead | None:
        """The next answer but those of status 1xx; None if not all of its head has come. Malformed."""
        data, begin = self._data, self._at
        end = data.find(b"\r\n\r\n", begin, begin + HEAD_BYTES_MAX)
        if end < 0:
            if self.unread_bytes >= HEAD_BYTES_MAX:
                raise Malformed(f"a head of more than {HEAD_BYTES_MAX} bytes")
            return None
        line_end = data.find(b"\r\n", begin)
        line = _STATUS_LINE.fullmatch(data, begin, line_end)
        if line is None:
            raise Malformed("no status line of HTTP/1.1")
        status, fields = int(line[2]), self._fields_of(data[line_end + 2 : end + 2])
        if status < 200:
            self._at = end + 4
            return self.head()
        bodiless = status in (204, 304)
        if not bodiless and fields.length is not None and "content-length" not in fields.values:
            raise Malformed("an answer without its length")
        self._begin_body(end + 4, 0 if bodiless else fields.length)
        return ResponseHead(status, int(line[1]), fields)


class _Chunked:
    """The chunked transfer coding (Section 7.1). Extensions and trailers are checked and dropped."""

    __slots__ = ("_left", "_trailers", "whole")

    def __init__(self) -> None:
        self.whole = False
        self._left = 0
        """Bytes until the end of the present chunk and of the CRLF after it; 0: a line with a size comes."""
        self._trailers = False

    def take(self, data: bytes, at: int, into: bytearray | None, bytes_max: int) -> int:
        """Take chunks from `data[at:]`; where it stopped. Malformed, or BodyTooLarge beyond `bytes_max` in `into`."""
        while not self.whole:
            begin = at
            if self._trailers:
                at = self._trailer_section(data, at)
            elif self._left:
                at = self._chunk(data, at, into)
            else:
                at = self._size_line(data, at)
                if into is not None and len(into) + self._left - 2 > bytes_max:
                    raise BodyTooLarge
            if at == begin:
                break
        return at

    def _size_line(self, data: bytes, at: int) -> int:
        end = data.find(b"\r\n", at, at + CHUNK_LINE_BYTES_MAX)
        if end < 0:
            if len(data) - at >= CHUNK_LINE_BYTES_MAX or _LONE_LF.search(data, at):
                raise Malformed("no line with the size of a chunk")
            return at
        line = _CHUNK_LINE.fullmatch(data, at, end)
        if line is None:
            raise Malformed("no size of a chunk")
        size = int(line[1], 16)
        if size:
            self._left = size + 2
        else:
            self._trailers = True
        return end + 2

    def _chunk(self, data: bytes, at: int, into: bytearray | None) -> int:
        end = min(len(data), at + self._left)
        content_end = max(at, min(end, at + self._left - 2))
        if into is not None:
            into += data[at:content_end]
        ending, seen = data[content_end:end], max(0, 2 - self._left)
        if ending != b"\r\n"[seen : seen + len(ending)]:
            raise Malformed("a chunk is longer than its size says")
        self._left -= end - at
        return end

    def _trailer_section(self, data: bytes, at: int) -> int:
        if data.startswith(b"\r\n", at):
            self.whole = True
            return at + 2
        end = data.find(b"\r\n\r\n", at, at + HEAD_BYTES_MAX)
        if end < 0:
            if len(data) - at >= HEAD_BYTES_MAX or _LONE_LF.search(data, at):
                raise Malformed("no trailers")
            return at
        if not Fields(data[at : end + 2]).values.keys().isdisjoint(("content-length", "transfer-encoding", "host")):
            raise Malformed("a trailer that would change how the request is read")
        self.whole = True
        return end + 4
