"""Requests in bytes: what is meant is read, however it is cut; what could be read in two ways is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import closing
from itertools import pairwise
from typing import NamedTuple

import pytest
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http import HttpRequestParser
from aiohttp.http_exceptions import HttpProcessingError
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kvstore.api.http1 import BodyTooLarge, Fields, Head, Malformed, RequestReader
from tests.amounts import examples

BODY_BYTES_MAX = 1000
METHODS = ("GET", "PUT", "POST", "DELETE", "HEAD")


class Read(NamedTuple):
    method: str
    target: str
    body: bytes


def read_all(pieces: Iterable[bytes]) -> Iterator[Read]:
    """The requests in these bytes, each as soon as it is whole. Malformed."""
    reader, head = RequestReader(), None
    for piece in pieces:
        reader.feed(piece)
        while True:
            head = head or reader.head()
            body = None if head is None else reader.body(BODY_BYTES_MAX)
            if head is None or body is None:
                break
            yield Read(head.method, head.target, body)
            head = None


def requests_until_refused(data: bytes) -> tuple[list[Read], bool]:
    """(requests that were read, whether what came then was refused)."""
    found: list[Read] = []
    try:
        for request in read_all([data]):
            found.append(request)
    except (Malformed, BodyTooLarge):
        return found, True
    return found, False


def llhttp_reads(data: bytes) -> tuple[list[Read], bool]:
    """The same by aiohttp's parser, which is that of Node.js. Byte by byte: it forgets what came beside a bad one."""
    with closing(asyncio.new_event_loop()) as loop:
        llhttp = HttpRequestParser(BaseProtocol(loop), loop, 2**16, auto_decompress=False)
        messages, refused = [], False
        try:
            for byte in data:
                messages += llhttp.feed_data(bytes([byte]))[0]
        except HttpProcessingError:
            refused = True
        whole = [(head, body) for head, body in messages if body.is_eof() and body.exception() is None]
        return [Read(head.method, head.path, body.read_nowait()) for head, body in whole], refused


def request_bytes(request: Read, chunks: list[int] | None, extra: bytes = b"") -> bytes:
    """chunks: sizes in which the body is sent; None: with its length."""
    head = f"{request.method} {request.target} HTTP/1.1\r\nHost: x\r\n".encode() + extra
    if chunks is None:
        return head + b"Content-Length: %d\r\n\r\n%b" % (len(request.body), request.body)
    coded, rest = b"", request.body
    for size in (*chunks, len(rest)):
        piece, rest = rest[:size], rest[size:]
        coded += b"%x\r\n%b\r\n" % (len(piece), piece) if piece else b""
    return head + b"Transfer-Encoding: chunked\r\n\r\n%b0\r\n\r\n" % coded


TARGETS = st.text("abXY09/%?&=.~-_:@+", max_size=12).map(lambda path: f"/{path}")
REQUESTS = st.builds(Read, st.sampled_from(METHODS), TARGETS, st.binary(max_size=40))
SENT = st.tuples(
    REQUESTS,
    st.none() | st.lists(st.integers(1, 9), max_size=3),
    st.sampled_from((b"", b"A: b\r\n", b"If-Match:\t\r\n", b"x-y:  z , \xe9 \r\n")),
)
MISCHIEF = st.sampled_from(
    (b"\r", b"\n", b"\r\n", b" ", b"\t", b":", b",", b"\0", b"0", b"1", b";", b"a", b"\x7f", b"\x80", b"HTTP/1.0",
     b"Content-Length: 1\r\n", b"Transfer-Encoding: chunked\r\n", b"\r\n\r\n", b"")
)  # fmt: skip


@settings(deadline=None)
@given(st.lists(SENT, max_size=4), st.lists(st.integers(0, 400), max_size=5))
def test_what_is_meant_is_read_however_it_is_cut(
    sent: list[tuple[Read, list[int] | None, bytes]], cuts: list[int]
) -> None:
    data = b"".join(request_bytes(*one) for one in sent)
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    pieces = [data[a:b] for a, b in pairwise(edges)]
    assert list(read_all(pieces)) == [request for request, _, _ in sent]


LINES = [
    b"X: 1", b"Connection: close", b"Expect: 100-continue", b"Idempotency-Key: " + b"a" * 36,
    b"idempotency-key: " + b"-" * 36, b"Idempotency-Key: " + b"b" * 36, b"Idempotency-Key: " + b"b" * 35 + b" ",
    b'Idempotency-Key: "' + b"b" * 36 + b'"', b"Idempotency-Key:" + b"b" * 36 + b" ",
]  # fmt: skip


@examples(120, 300)
@given(st.lists(st.lists(st.sampled_from(LINES), max_size=3), min_size=2, max_size=6))
@example([[LINES[3], LINES[3]], [LINES[5], LINES[3]]])
@example([[LINES[3]], [LINES[6]]])
def test_what_a_connection_said_before_changes_no_field(requests: list[list[bytes]]) -> None:
    reader = RequestReader()
    for lines in requests:
        block = b"".join([line + b"\r\n" for line in lines])
        reader.feed(b"GET / HTTP/1.0\r\n" + block + b"\r\n")
        head, alone = reader.head(), Fields(block)
        assert head is not None and reader.body(BODY_BYTES_MAX) == b""
        assert all(getattr(head.fields, name) == getattr(alone, name) for name in Fields.__slots__)


def test_a_cut_anywhere_changes_nothing() -> None:
    chunked = request_bytes(Read("PUT", "/c", b"0123456789"), [3, 1], b"Connection: close\r\n")
    trailers = chunked[:-2] + b"A: b\r\nC: d\r\n\r\n"
    data = request_bytes(Read("PUT", "/a", b"abc"), None) + b"\r\n\r\nGET /b HTTP/1.1\r\nHost:x\r\n\r\n" + trailers
    whole = list(read_all([data]))
    assert [r.body for r in whole] == [b"abc", b"", b"0123456789"]
    for cut in range(len(data)):
        assert list(read_all([data[:cut], data[cut:]])) == whole, cut
    assert list(read_all(data[i : i + 1] for i in range(len(data)))) == whole


@examples(120, 300)
@given(st.lists(SENT, min_size=1, max_size=2), st.data())
def test_nothing_is_read_in_another_way_than_a_proxy_would(
    sent: list[tuple[Read, list[int] | None, bytes]], drawn: st.DataObject
) -> None:
    """Whatever is taken, another parser takes as the same requests; what that one refuses is never taken."""
    data = b"".join(request_bytes(*one) for one in sent)
    for _ in range(drawn.draw(st.integers(1, 2))):
        at, dropped = drawn.draw(st.integers(0, len(data))), drawn.draw(st.integers(0, 2))
        data = data[:at] + drawn.draw(MISCHIEF) + data[at + dropped :]
    mine, refused = requests_until_refused(data)
    theirs, theirs_refused = llhttp_reads(data)
    if any(request.method not in METHODS for request in mine):
        return  # a method that they do not know: theirs is the 400, ours a 405
    assert mine == theirs[: len(mine)], data
    assert refused or theirs_refused or len(mine) == len(theirs), data


HOST = b"Host: x\r\n"


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n",
        b"GET / HTTP/1.1\nHost: x\n\n",
        b"GET / HTTP/1.1\r\nHost: x\nA: b\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\rA: b\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + HOST + b"A: b\r\n c\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + HOST + b"\tA: b\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost : x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + HOST + b": b\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\0\r\n\r\n",
        b"GET /\r\n\r\n",
        b"GET / HTTP/1.2\r\n" + HOST + b"\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET  / HTTP/1.1\r\n" + HOST + b"\r\n",
        b"GET / HTTP/1.1 \r\n" + HOST + b"\r\n",
        b"GET /\xc3\xa9 HTTP/1.1\r\n" + HOST + b"\r\n",
        b"GET /a\tb HTTP/1.1\r\n" + HOST + b"\r\n",
        b"G@T / HTTP/1.1\r\n" + HOST + b"\r\n",
        bytes.fromhex("16030100c2010000be0303"),
    ],
    ids=lambda data: repr(data)[2:60],
)
def test_what_is_no_request_is_refused(data: bytes) -> None:
    assert requests_until_refused(data) == ([], True)


@pytest.mark.parametrize(
    "framing",
    [
        b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        b"Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
        b"Content-Length: 3\r\ncontent-length: 4\r\n\r\nabcd",
        b"Content-Length: 3, 3\r\n\r\nabc",
        b"Content-Length: +3\r\n\r\nabc",
        b"Content-Length: -3\r\n\r\nabc",
        b"Content-Length: 0x3\r\n\r\nabc",
        b"Content-Length: 3 3\r\n\r\nabc",
        b"Content-Length: \xb2\r\n\r\nabc",
        b"Content-Length: \r\n\r\n",
        b"Content-Length: 99999999999999999999\r\n\r\nabc",
        b"Transfer-Encoding: gzip, chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked, identity\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        b"Transfer-Encoding: xchunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked\t\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        b"Transfer-Encoding : chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n3\nabc\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n3\r\nabcXY0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n3 \r\nabc\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n3;\r\nabc\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n 3\r\nabc\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n0x3\r\nabc\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n-3\r\nabc\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n\r\nabc\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nA b\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n0\r\nA: b\nC: d\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n0\r\nContent-Length: 1\r\n\r\n",
    ],
    ids=lambda framing: repr(framing)[2:90],
)
def test_a_body_whose_end_is_in_doubt_is_refused(framing: bytes) -> None:
    assert requests_until_refused(b"PUT / HTTP/1.1\r\n" + HOST + framing) == ([], True)


def test_no_chunks_in_http_1_0() -> None:
    data = b"PUT / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    assert requests_until_refused(data) == ([], True)


def heads(data: bytes) -> Head | None:
    reader = RequestReader()
    reader.feed(data)
    return reader.head()


@pytest.mark.parametrize(
    ("version", "connection", "kept"),
    [
        ("1.1", "A: b", True),
        ("1.1", "Connection: close", False),
        ("1.1", "Connection: Keep-Alive, CLOSE", False),
        ("1.1", "Connection: upgrade\r\nUpgrade: h2c", True),
        ("1.0", "A: b", False),
        ("1.0", "Connection: keep-alive", True),
    ],
)
def test_whether_a_connection_is_kept(version: str, connection: str, kept: bool) -> None:
    head = heads(f"GET / HTTP/{version}\r\nHost: x\r\n{connection}\r\n\r\n".encode())
    assert head is not None and head.keep_alive is kept


def test_fields_are_found_by_name_in_lower_case_and_those_of_one_name_are_joined() -> None:
    fields = b"HOST: x\r\nIf-Match: a\r\nA:\t b \t\r\nif-match: c\r\nExpect: 100-Continue\r\n"
    head = heads(b"GET / HTTP/1.1\r\n%b\r\n" % fields)
    assert head is not None and head.fields.expects_continue
    assert head.fields.values == {"host": "x", "if-match": "a, c", "a": "b", "expect": "100-Continue"}


START = b"GET / HTTP/1.1\r\nHost: x\r\n"
LONG, TOO_LONG = b"a" * 16_000, b"a" * 17_000


@pytest.mark.parametrize(
    ("fits", "refused"),
    [
        (b"GET /%b HTTP/1.1\r\nHost: x\r\n\r\n" % LONG, b"GET /%b" % TOO_LONG),
        (START + b"a: %b\r\n\r\n" % LONG, START + b"a: %b\r\n\r\n" % TOO_LONG),
        (START + b"a: b\r\n" * 127 + b"\r\n", START + b"a: b\r\n" * 128 + b"\r\n"),
        (b"\r\n" * 10 + START + b"\r\n", START + b"a: %b\r\n" % LONG * 5),
    ],
    ids=["line", "field", "fields", "head"],
)
def test_heads_have_limits(fits: bytes, refused: bytes) -> None:
    """Whole ones, and ones that are too long already."""
    assert heads(fits) is not None
    with pytest.raises(Malformed):
        heads(refused)


@pytest.mark.parametrize("framing", [b"Content-Length: 1001\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n3E9\r\n"])
def test_a_body_is_too_large_before_any_of_it_has_come(framing: bytes) -> None:
    with pytest.raises(BodyTooLarge):
        list(read_all([b"PUT / HTTP/1.1\r\nHost: x\r\n" + framing]))


def test_many_small_chunks_are_too_large_together() -> None:
    head = b"PUT / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert [r.body for r in read_all([head, b"1\r\na\r\n" * 1000, b"0\r\n\r\n"])] == [b"a" * 1000]
    with pytest.raises(BodyTooLarge):
        list(read_all([head, b"1\r\na\r\n" * 1001]))


@pytest.mark.parametrize("line", [b"1" * 2000, b"3;" + b"x" * 2000])
def test_the_line_of_a_chunk_has_a_limit(line: bytes) -> None:
    with pytest.raises(Malformed):
        list(read_all([b"PUT / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + line]))


@pytest.mark.parametrize("chunks", [None, [7]])
def test_a_body_that_nobody_wants_is_skipped(chunks: list[int] | None) -> None:
    reader = RequestReader()
    data = request_bytes(Read("PUT", "/a", b"x" * 5000), chunks)
    for at in range(0, len(data), 100):
        reader.feed(data[at : at + 100])
        if at == 0:
            assert reader.head() is not None
        assert reader.skip() is (at + 100 >= len(data)) is not reader.inside_body
    reader.feed(request_bytes(Read("GET", "/b", b""), None))
    found = reader.head()
    assert found is not None and found.target == "/b"
