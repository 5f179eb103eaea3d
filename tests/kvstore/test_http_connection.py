"""Connections of clients: whatever they send, and however slowly, what comes back is decided by the bytes alone."""

from __future__ import annotations

import asyncio
import gc
import math
import re
import socket
import struct
import time
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from kvstore.api.model import KeyValue, OperationResult, Transaction
from kvstore.core.messages import Answered, Refused
from kvstore.http import connection as module
from kvstore.http.app import HttpApi
from kvstore.http.calls import UNSENT_BYTES_MAX
from kvstore.http.connection import ApiServer, Connection
from kvstore.http.metrics import Metrics
from kvstore.limits import Limits
from multicast.types import MessageId
from tests.kvstore.test_http_app import VERSION, Client, FakeNode, answered, done, never, serving
from tests.multicast.live import eventually

ID = "0197b3c2-7f00-7cc3-98c4-dc0c0c07398f"
HOST = "Host: x\r\n"
VALUE = b"value"


class ReadyNode(FakeNode):
    """Answers before `request` returns: every key has the same value."""

    def __init__(self) -> None:
        super().__init__(never)
        self.asked: list[Transaction] = []

    def request(self, asked: Any, answer: Callable[[Answered | Refused], None]) -> int:
        transaction = asked.transaction
        self.asked.append(transaction)
        key = transaction.success[0].key  # type: ignore[union-attr]
        answer(answered(OperationResult(found=KeyValue(key, VALUE, VERSION))))
        return 1


class Transport(asyncio.Transport):
    """What a connection does with its socket."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = b""
        self.writes = self.unsent = 0
        self.ended = self.closed = False

    def write(self, data: Any) -> None:
        self.sent += data
        self.writes += 1

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.ended = True

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


class Wire:
    """A connection without a socket, and a node that is always ready. server: with others on it."""

    def __init__(self, server: ApiServer | None = None) -> None:
        self.node = ReadyNode()
        self.server = server or ApiServer(HttpApi(self.node, Limits(connections_max=3), Metrics(dict)))
        self.connection = Connection(self.server)
        self.transport = Transport()
        self.connection.connection_made(self.transport)

    def receive(self, data: bytes) -> None:
        self.connection.get_buffer(-1)[: len(data)] = data
        self.connection.buffer_updated(len(data))

    @property
    def sent(self) -> str:
        dated = re.sub("Date: [^\r]* GMT", "Date: now", self.transport.sent.decode())
        return re.sub("for example [0-9a-f-]*", f"for example {ID}", dated)


def answer(status: str, body: str, *headers: str) -> str:
    """What stands on the wire."""
    lines = [f"HTTP/1.1 {status}", *headers]
    at = next((i for i, line in enumerate(lines) if line.startswith("Connection: ")), len(lines))
    lines[at:at] = [f"Content-Length: {len(body)}", "Date: now"]
    return "\r\n".join(lines) + f"\r\n\r\n{body}"


REQUEST_ID = "0123456789abcdef"


@pytest.fixture(autouse=True)
def one_request_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvstore.http.calls.secrets.token_hex", lambda _: REQUEST_ID)


def problem(status: str, code: str, detail: str, *headers: str, field: str = "") -> str:
    number, _, title = status.partition(" ")
    body = f'{{"type":"about:blank","title":"{title}","status":{number},"detail":"{detail}","code":"{code}",'
    body += f'"retryable":false,"outcome":"not_applied","request_id":"{REQUEST_ID}"'
    body += (f',"field":"{field}"' if field else "") + "}"
    return answer(status, body, "Content-Type: application/problem+json", *headers)


ETAG = f'ETag: "{VERSION}"'
WRITTEN = f'{{"version":"{VERSION}","id":"{ID}"}}'
GOT = answer("200 OK", "value", "Content-Type: application/octet-stream", ETAG)
DID_PUT = answer("200 OK", WRITTEN, "Content-Type: application/json", ETAG, f"Idempotency-Key: {ID}")
LIVE = answer("200 OK", "ok\n", "Content-Type: text/plain; charset=utf-8")
CLOSE = "Connection: close"
GET = f"GET /v1/kv/a HTTP/1.1\r\n{HOST}\r\n"
PUT = f"PUT /v1/kv/a HTTP/1.1\r\n{HOST}Idempotency-Key: {ID}\r\nContent-Length: 3\r\n\r\nabc"
ASKS = f"PUT /v1/kv/a HTTP/1.1\r\n{HOST}Idempotency-Key: {ID}\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\nabc"
CHUNKED = f"PUT /v1/kv/a HTTP/1.1\r\n{HOST}Idempotency-Key: {ID}\r\nTransfer-Encoding: chunked\r\n\r\n"
LIVEZ = f"GET /livez HTTP/1.1\r\n{HOST}\r\n"

EXCHANGES: dict[str, tuple[str, str]] = {
    "get": (GET, GOT),
    "head": (GET.replace("GET", "HEAD"), GOT.removesuffix("value")),
    "put": (PUT, DID_PUT),
    "an empty line before": ("\r\n" + PUT, DID_PUT),
    "in chunks": (CHUNKED + "1;x=y\r\na\r\n2\r\nbc\r\n0\r\nA: b\r\n\r\n", DID_PUT),
    "told to go on": (ASKS, "HTTP/1.1 100 Continue\r\n\r\n" + DID_PUT),
    "delete": (
        f"DELETE /v1/kv/a HTTP/1.1\r\n{HOST}Idempotency-Key: {ID}\r\n\r\n",
        answer(
            "200 OK",
            f'{{"version":"{VERSION}","deleted":false,"id":"{ID}"}}',
            "Content-Type: application/json",
            f"Idempotency-Key: {ID}",
        ),
    ),
    "txn": (
        f"POST /v1/txn HTTP/1.1\r\n{HOST}Content-Type: application/json\r\nIdempotency-Key: {ID}\r\n"
        'Content-Length: 36\r\n\r\n{"success":[{"op":"get","key":"a"}]}',
        answer(
            "200 OK",
            f'{{"succeeded":true,"version":"{VERSION}","id":"{ID}","results":'
            f'[{{"key":"a","value":"value","version":"{VERSION}"}}]}}',
            "Content-Type: application/json",
            f"Idempotency-Key: {ID}",
        ),
    ),
    "not modified": (
        f"GET /v1/kv/a HTTP/1.1\r\n{HOST}If-None-Match: *\r\n\r\n",
        f"HTTP/1.1 304 Not Modified\r\n{ETAG}\r\nDate: now\r\n\r\n",
    ),
    "absolute": (f"GET http://x:80/v1/kv/a HTTP/1.1\r\n{HOST}\r\n", GOT),
    "a body that nobody wants": (f"GET /v1/kv/a HTTP/1.1\r\n{HOST}Content-Length: 3\r\n\r\nabc", GOT),
    "an upgrade that is not taken up": (GET.replace("Host", "Connection: Upgrade\r\nUpgrade: h2c\r\nHost"), GOT),
    "compressed": (
        PUT.replace("Content-Length", "Content-Encoding: gzip\r\nContent-Length"),
        problem(
            "415 Unsupported Media Type",
            "unsupported_type",
            "Content-Encoding: bodies are taken as they are",
            field="Content-Encoding",
        ),
    ),
    "method": (
        f"PATCH /v1/kv/a HTTP/1.1\r\n{HOST}\r\n",
        problem(
            "405 Method Not Allowed",
            "method_not_allowed",
            "PATCH is not possible here, only DELETE, GET, HEAD, OPTIONS, PUT",
            "Allow: DELETE, GET, HEAD, OPTIONS, PUT",
        ),
    ),
    "path": (
        f"GET /v2 HTTP/1.1\r\n{HOST}\r\n",
        problem(
            "404 Not Found",
            "unknown_path",
            "nothing is here; /v1/openapi.json tells what is known",
        ),
    ),
    "an id given twice": (
        PUT.replace("Content-Length", f"Idempotency-Key: {ID}\r\nContent-Length"),
        problem(
            "400 Bad Request",
            "invalid",
            f"Idempotency-Key: a UUIDv7 is needed, now for example {ID}, not '{ID}, {ID[:22]}'",
            field="Idempotency-Key",
        ),
    ),
    "kept, in HTTP/1.0": (
        "GET /v1/kv/a HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
        GOT.replace("1.1 ", "1.0 ", 1).replace("now\r\n", "now\r\nConnection: keep-alive\r\n"),
    ),
    "nothing": ("", ""),
}
"""After each of these the connection goes on."""

LAST: dict[str, tuple[str, str]] = {
    "HTTP/1.0, told nothing": (ASKS.replace("HTTP/1.1", "HTTP/1.0"), DID_PUT.replace("1.1 ", "1.0 ", 1)),
    "HTTP/1.0": ("GET /v1/kv/a HTTP/1.0\r\n\r\n", GOT.replace("1.1 ", "1.0 ", 1)),
    "close": (
        f"GET /v1/kv/a HTTP/1.1\r\n{HOST}Connection: close\r\n\r\n",
        GOT.replace("now\r\n", "now\r\nConnection: close\r\n"),
    ),
    "too large": (
        f"PUT /v1/kv/a HTTP/1.1\r\n{HOST}Content-Length: 1048577\r\n\r\nabc",
        problem(
            "413 Content Too Large", "too_large", "a value has at most 1048576 bytes", CLOSE, field="body"
        ).replace(f"\r\n{CLOSE}", "", 1).replace("now\r\n", f"now\r\n{CLOSE}\r\n"),
    ),
    "two lengths": (
        PUT.replace("Content-Length", "Content-Length: 3\r\nContent-Length"),
        problem("400 Bad Request", "invalid", "Content-Length is not one number of bytes", CLOSE),
    ),
    "length and chunks": (
        CHUNKED.replace("Transfer", "Content-Length: 3\r\nTransfer"),
        problem("400 Bad Request", "invalid", "both Content-Length and Transfer-Encoding", CLOSE),
    ),
    "a bad chunk": (CHUNKED + "zz\r\n", problem("400 Bad Request", "invalid", "no size of a chunk", CLOSE)),
    "a bare LF": (
        "GET /v1/kv/a HTTP/1.1\nHost: x\n\n",
        problem("400 Bad Request", "invalid", "a line that ends without CR", CLOSE),
    ),
}  # fmt: skip
"""After each of these it ends."""


@pytest.mark.parametrize("name", [*EXCHANGES, *LAST])
async def test_what_a_request_is_answered_with_to_the_byte(name: str) -> None:
    request, expected = {**EXCHANGES, **LAST}[name]
    wire = Wire()
    wire.receive(request.encode())
    assert wire.sent == expected
    if name in EXCHANGES:
        wire.receive(LIVEZ.encode())
        assert wire.sent == expected + LIVE and not wire.transport.closed
    else:
        # Else more may come, over which a closed socket would be reset.
        whole = name.startswith("HTTP/1.0") or name == "close"
        assert (wire.transport.closed, wire.transport.ended) == (whole, not whole)
        wire.receive(LIVEZ.encode())
        assert wire.sent == expected


@pytest.mark.parametrize("name", [*EXCHANGES, *LAST])
async def test_a_request_is_answered_alike_however_it_is_cut(name: str) -> None:
    request, expected = {**EXCHANGES, **LAST}[name]
    for cut in range(1, len(request)):
        wire = Wire()
        wire.receive(request[:cut].encode())
        wire.receive(request[cut:].encode())
        assert wire.sent == expected, cut


async def test_requests_that_come_together_are_answered_together_in_order() -> None:
    wire = Wire()
    wire.receive("".join([*(request for request, _ in EXCHANGES.values()), LAST["close"][0], GET]).encode())
    assert wire.sent == "".join(expected for _, expected in EXCHANGES.values()) + LAST["close"][1]
    assert wire.transport.writes == 1


async def test_requests_byte_by_byte() -> None:
    wire = Wire()
    for request, _ in EXCHANGES.values():
        for byte in request.encode():
            wire.receive(bytes([byte]))
    assert wire.sent == "".join(expected for _, expected in EXCHANGES.values())


@pytest.mark.parametrize("name", [*EXCHANGES, *LAST])
async def test_of_a_request_that_breaks_off_nothing_is_ordered(name: str) -> None:
    request, _ = {**EXCHANGES, **LAST}[name]
    reads_only = name in ("a body that nobody wants",)
    for cut in range(len(request)):
        wire = Wire()
        wire.receive(request[:cut].encode())
        wire.connection.eof_received()
        assert wire.node.asked == [] or reads_only, cut
        assert wire.transport.closed or wire.transport.ended, cut


# -- over sockets -----------------------------------------------------------------------------------------------------


async def connect(client: Client) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", client.port, limit=1 << 24)


async def end(writer: asyncio.StreamWriter) -> None:
    writer.close()
    await writer.wait_closed()


async def response(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"Content-Length: (\d+)", head)
    return int(head.split()[1]), await reader.readexactly(int(length[1]) if length else 0)


def put(key: str, value: str = "x", *fields: str) -> bytes:
    lines = "".join(f"{field}\r\n" for field in fields)
    return f"PUT /v1/kv/{key} HTTP/1.1\r\n{HOST}{lines}Content-Length: {len(value)}\r\n\r\n{value}".encode()


class Gate:
    """Executes a put when the test says so, and keeps the order in which they came."""

    def __init__(self) -> None:
        self.came: list[bytes] = []
        self.open: dict[bytes, asyncio.Event] = {}

    async def execute(self, message_id: MessageId, transaction: Transaction) -> Answered:
        key = transaction.success[0].key  # type: ignore[union-attr]
        self.came.append(key)
        await self.open.setdefault(key, asyncio.Event()).wait()
        return answered(OperationResult(found=KeyValue(key, key, VERSION)))


async def test_a_request_begins_when_those_before_it_are_answered() -> None:
    gate = Gate()
    async with serving(FakeNode(gate.execute)) as client:
        reader, writer = await connect(client)
        writer.write(put("a") + put("b") + GET.replace("kv/a", "kv/c").encode())
        for key in (b"a", b"b", b"c"):
            await eventually(lambda key=key: gate.came[-1:] == [key])  # type: ignore[misc]
            gate.open[key].set()
            assert (await response(reader))[0] == 200
        assert gate.came == [b"a", b"b", b"c"]
        await end(writer)


async def test_what_a_client_declares_independent_begins_at_once_and_is_answered_in_order() -> None:
    gate = Gate()
    async with serving(FakeNode(gate.execute)) as client:
        reader, writer = await connect(client)
        request = GET.replace("Host", "X-Concurrent: 1\r\nHost")
        writer.write(b"".join(request.replace("kv/a", f"kv/{key}").encode() for key in "abc"))
        await eventually(lambda: gate.came == [b"a", b"b", b"c"])
        gate.open[b"c"].set()
        gate.open[b"b"].set()
        await asyncio.sleep(0)
        gate.open[b"a"].set()
        assert [(await response(reader))[1] for _ in "abc"] == [b"a", b"b", b"c"]
        await end(writer)


async def test_bodies_that_stall_do_not_stop_those_of_others() -> None:
    stalled = "PUT /v1/kv/a HTTP/1.1\r\nHost: x\r\nContent-Length: 1048576\r\n\r\n"
    async with serving(FakeNode(done), in_flight_bytes_max=2 << 20) as client:
        writers = []
        for sent in (0, 0, 0, 100_000, 100_000, 100_000):
            _, writer = await connect(client)
            writer.write(stalled.encode() + bytes(sent))
            writers.append(writer)
        arriving = client.api.calls.arriving
        await eventually(lambda: arriving.free == arriving.bytes_max - 300_000)
        reader, writer = await connect(client)
        head, _, body = put("b", "x" * 50_000).partition(b"\r\n\r\n")
        writer.write(head + b"\r\n\r\n")
        await writer.drain()
        writer.write(body)
        assert (await response(reader))[0] == 200
        for one in (writer, *writers):
            await end(one)
        await eventually(lambda: arriving.free == arriving.bytes_max and len(client.api.calls) == 0)


async def test_a_body_that_holds_room_and_stalls_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvstore.http.calls.LEAST_SECONDS", 0.05)
    async with serving(FakeNode(done), in_flight_bytes_max=1 << 20) as client:
        reader, writer = await connect(client)
        writer.write(b"PUT /v1/kv/a HTTP/1.1\r\nHost: x\r\nContent-Length: 1048576\r\n\r\n" + bytes(100_000))
        status, body = await response(reader)
        assert (status, b"body_too_slow" in body, b"not_applied" in body) == (408, True, True)
        arriving = client.api.calls.arriving
        assert arriving.free == arriving.bytes_max and len(client.api.calls) == 0
        await end(writer)


@pytest.mark.parametrize("sent", [0, 5], ids=["nothing", "half"])
async def test_a_small_body_that_stalls_is_refused_however_much_time_its_client_gives(
    monkeypatch: pytest.MonkeyPatch, sent: int
) -> None:
    """It holds one of the places for requests."""
    monkeypatch.setattr("kvstore.http.calls.OWN_SECONDS", 0.05)
    async with serving(FakeNode(done)) as client:
        reader, writer = await connect(client)
        head = b"PUT /v1/kv/a HTTP/1.1\r\nHost: x\r\nX-Timeout-Ms: 60000\r\nContent-Length: 10\r\n\r\n"
        writer.write(head + bytes(sent))
        status, body = await asyncio.wait_for(response(reader), 30)
        assert (status, b"body_too_slow" in body, b"not_applied" in body) == (408, True, True)
        assert len(client.api.calls) == 0
        await end(writer)


async def test_a_whole_body_that_waits_for_room_is_not_too_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvstore.http.calls.LEAST_SECONDS", 60.0)
    async with serving(FakeNode(done), in_flight_bytes_max=1 << 20) as client:
        calls = client.api.calls
        assert calls.ordering.take_now(1 << 20)
        asked = asyncio.create_task(client("PUT", "/v1/kv/a", bytes(500_000)))
        await eventually(lambda: bool(calls.ordering._waiting))
        assert all(call._pace is None for call in calls._open)
        calls.ordering.give(1 << 20)
        assert (await asked)[0] == 200
        assert calls.arriving.free == calls.arriving.bytes_max


async def test_large_bodies_wait_for_one_another_and_all_are_taken() -> None:
    async with serving(FakeNode(done), in_flight_bytes_max=1 << 20) as client:
        answers = await asyncio.gather(*(client("PUT", f"/v1/kv/{i}", bytes(700_000)) for i in range(6)))
        assert [status for status, _, _ in answers] == [200] * 6
        for budget in (client.api.calls.arriving, client.api.calls.ordering):
            assert budget.free == budget.bytes_max


async def test_a_client_that_does_not_read_is_not_read_either() -> None:
    count = 0

    async def execute(message_id: MessageId, transaction: Transaction) -> Answered:
        nonlocal count
        count += 1
        return answered(OperationResult(found=KeyValue(b"a", bytes(1 << 20), VERSION)))

    async with serving(FakeNode(execute)) as client:
        reader, writer = await connect(client)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(GET.encode() * 100)
        connection = await only_connection(client)
        await eventually(lambda: connection._clogged)
        began = count
        await client("GET", "/livez")
        assert count <= began + 1 < 100, "the one that had begun"
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        for _ in range(100):
            assert (await response(reader))[0] == 200
        await end(writer)


async def only_connection(client: Client) -> Connection:
    await eventually(lambda: len(client.server.connections) == 1)
    return next(iter(client.server.connections))


async def test_a_client_that_sends_no_more_is_still_answered() -> None:
    async with serving(FakeNode(done)) as client:
        reader, writer = await connect(client)
        writer.write(put("a") + put("b"))
        writer.write_eof()
        assert [(await response(reader))[0] for _ in "ab"] == [200, 200]
        assert await reader.read() == b""
        await end(writer)


async def test_after_an_early_answer_the_rest_of_the_body_is_dropped_and_the_connection_goes_on() -> None:
    async with serving(FakeNode(done)) as client:
        reader, writer = await connect(client)
        writer.write(b"PUT /v1/kv/%zz HTTP/1.1\r\nHost: x\r\nContent-Length: 200000\r\n\r\n")
        assert (await response(reader))[0] == 400
        writer.write(bytes(200_000) + LIVEZ.encode())
        assert await response(reader) == (200, b"ok\n")
        await end(writer)


@pytest.mark.parametrize("expect", ["", "Expect: 100-continue\r\n"])
async def test_a_connection_whose_next_request_cannot_be_found_ends(
    expect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LINGER_SECONDS", 0.05)
    async with serving(FakeNode(done)) as client:
        reader, writer = await connect(client)
        writer.write(f"PUT /v1/kv/%zz HTTP/1.1\r\n{HOST}{expect}Content-Length: 5\r\n\r\n".encode())
        assert (await response(reader))[0] == 400
        if expect:  # instead of the body
            writer.write(LIVEZ.encode())
        assert await reader.read() == b""
        await end(writer)


async def test_connections_that_are_not_used_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SWEEP_SECONDS", 0.01)
    async with serving(FakeNode(never)) as client:
        silent, slow, waiting = [await connect(client) for _ in range(3)]
        slow[1].write(b"GET /v1/kv/a HT")
        waiting[1].write(GET.replace("Host", "X-Timeout-Ms: 200\r\nHost").encode())
        there = client.server.connections
        await eventually(lambda: len(client.api.calls) == 1 and any(one._head_since for one in there), "all is read")
        monkeypatch.setattr(module, "IDLE_SECONDS", 0.02)
        assert await silent[0].read() == await slow[0].read() == b""
        assert (await response(waiting[0]))[0] == 504
        assert await waiting[0].read() == b""
        for _, writer in (silent, slow, waiting):
            await end(writer)


async def test_a_head_that_does_not_end_in_time_ends_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HEAD_SECONDS", 0.02)
    monkeypatch.setattr(module, "SWEEP_SECONDS", 0.01)
    async with serving(FakeNode(done)) as client:
        slow, used = [await connect(client) for _ in range(2)]
        used[1].write(LIVEZ.encode())
        assert (await response(used[0]))[0] == 200
        slow[1].write(b"GET /v1/kv/a HT")
        assert await slow[0].read() == b""
        used[1].write(LIVEZ.encode())
        assert (await response(used[0]))[0] == 200
        for _, writer in (slow, used):
            await end(writer)


async def test_beyond_the_limit_the_connection_that_is_unused_for_longest_is_closed() -> None:
    first = Wire()
    waiting, second = Wire(first.server), Wire(first.server)
    waiting.receive(PUT[:-1].encode())
    first.receive(LIVEZ.encode())
    fourth = Wire(first.server)
    assert [wire.transport.closed for wire in (first, waiting, second, fourth)] == [False, False, True, False]
    for wire in (first, fourth):
        wire.receive(PUT[:-1].encode())
    fifth = Wire(first.server)
    assert fifth.transport.closed and len(first.server.connections) == 3
    assert not any(wire.transport.closed for wire in (first, waiting, fourth))


def not_taken(wire: Wire, size: int) -> None:
    """So many bytes of answers are unsent there."""
    wire.transport.unsent = size
    wire.connection.pause_writing()


async def test_while_clients_take_too_little_of_their_answers_there_are_no_more(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SUM_SECONDS", 0.0)
    first = Wire()
    second, third = Wire(first.server), Wire(first.server)
    not_taken(first, UNSENT_BYTES_MAX // 2)
    not_taken(second, UNSENT_BYTES_MAX // 2)
    third.receive(GET.encode())
    assert third.sent == GOT
    not_taken(second, UNSENT_BYTES_MAX // 2 + 1)
    third.receive(GET.encode())
    await eventually(lambda: "503 Service Unavailable" in third.sent)
    assert third.server.api.calls.metrics.refusals == {"unsent": 1} and len(third.node.asked) == 0
    third.receive(LIVEZ.encode())
    await eventually(lambda: third.sent.endswith("ok\n"), "whoever looks after it is answered")
    second.transport.unsent = 0
    second.connection.resume_writing()
    third.receive(GET.encode())
    assert third.sent.endswith(GOT)


async def test_who_takes_his_answer_slowly_gets_all_of_it_and_who_takes_nothing_is_cut_off() -> None:
    taking, stalled, _ = wires = Wire(), Wire(), Wire()
    for wire in wires:
        wire.receive(GET.encode())
    now = float(math.ceil(time.monotonic()))  # else what is added and taken away again is rounded
    not_taken(taking, 10_000_000)
    not_taken(stalled, 10_000_000)
    for seconds in range(0, 80, 5):
        taking.transport.unsent -= 1
        assert not stalled.transport.closed
        for wire in wires:
            wire.connection.close_if_idle(now + seconds, module.IDLE_SECONDS)
    assert [wire.transport.closed for wire in wires] == [False, True, True]
    for seconds in range(80, 90, 5):
        assert not taking.transport.closed
        taking.connection.close_if_idle(now + seconds, module.STALLED_SECONDS)
    assert taking.transport.closed


async def test_what_a_connection_that_is_over_had_unsent_goes_with_it() -> None:
    """A transport of TLS refers to its protocol, whoever collects garbage when."""
    connection, transport = Connection(Wire().server), Transport()
    transport.protocol = connection  # type: ignore[attr-defined]
    connection.connection_made(transport)
    there = weakref.ref(transport)
    gc.disable()
    try:
        connection.connection_lost(None)
        del transport
        assert there() is None
    finally:
        gc.enable()


async def test_an_answer_to_a_client_that_has_gone_is_nobodys_whatever_it_had_asked_before() -> None:
    node = FakeNode(never)
    told: list[Callable[[Answered | Refused], None]] = []
    node.request = lambda asked, answer: told.append(answer) or 1  # type: ignore[method-assign,func-returns-value]
    server = ApiServer(HttpApi(node, Limits(), Metrics(dict)))
    calls, wire = server.api.calls, Wire(server)
    calls.admission.limit = 0
    wire.receive(GET.replace("Host", "X-Concurrent: 1\r\nHost").encode())  # it will be refused, in a moment
    calls.admission.limit = 1
    wire.receive(GET.encode())
    assert len(told) == 1 and len(calls._refused) == 1
    wire.connection.connection_lost(None)
    (waits,) = calls._open
    waits.caller.answered(waits)
    told[0](answered(OperationResult()))
    await eventually(lambda: not calls._refused)
    assert not wire.sent and not calls._open


async def test_bodies_that_never_come_lock_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    head = b"PUT /v1/kv/a HTTP/1.1\r\nHost: x\r\nX-Timeout-Ms: 60000\r\nContent-Length: 10\r\n\r\n"
    monkeypatch.setattr(module, "STARVED_SECONDS", 0.0, raising=False)
    first = Wire()
    wires = [first, Wire(first.server), Wire(first.server)]
    for wire in wires:
        wire.receive(head)
    first.receive(b"01234")
    later = Wire(first.server)
    assert [wire.transport.closed for wire in (*wires, later)] == [False, True, False, False]
    later.receive(head)
    monkeypatch.setattr(module, "STARVED_SECONDS", 60.0)
    assert Wire(first.server).transport.closed, "the others may send yet"
    first.receive(b"56789")
    assert "HTTP/1.1 200 OK" in first.sent


async def test_each_request_has_its_own_deadline_and_a_late_answer_is_forgotten() -> None:
    gate = Gate()
    node = FakeNode(gate.execute)
    async with serving(node) as client:

        async def ask(key: str, timeout_ms: int) -> int:
            return (await client("PUT", f"/v1/kv/{key}", b"x", X_Timeout_Ms=str(timeout_ms)))[0]

        patient = asyncio.create_task(ask("a", 60_000))
        await eventually(lambda: gate.came == [b"a"])
        assert [await ask(key, timeout_ms) for key, timeout_ms in (("b", 200), ("c", 20))] == [504, 504]
        first, *late = node._under_way.values()
        await eventually(lambda: len(late) == 2 and all(task.cancelled() for task in late))
        assert not patient.done() and not first.done()
        gate.open[b"a"].set()
        assert await patient == 200


async def test_a_client_that_resets_its_connection_is_no_error_of_ours() -> None:
    with capture_logs() as lines:
        async with serving(FakeNode(never)) as client:
            made, client.server.made = [], lambda one: made.append(one)  # type: ignore[method-assign,assignment]
            gone = socket.create_connection(("127.0.0.1", client.port))
            gone.sendall(b"GET /v1")
            gone.shutdown(socket.SHUT_WR)
            gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            gone.close()
            await eventually(lambda: made and made[0]._lost)
    assert lines == []


async def test_nothing_is_kept_for_a_client_that_has_gone() -> None:
    gate = Gate()
    async with serving(FakeNode(gate.execute)) as client:
        for request in (put("b")[:-1], put("c").replace(b"Length: 1", b"Length: 9"), put("a")):
            _, writer = await connect(client)
            writer.write(request)
            await eventually(lambda: len(client.server.connections) == 1)
            await eventually(lambda: len(client.api.calls) == 1)
            if request == put("a"):
                await eventually(lambda: gate.came == [b"a"])
            writer.transport.abort()
            await end(writer)
            await eventually(lambda: not client.server.connections)
        assert gate.came == [b"a"]
        gate.open[b"a"].set()
        await eventually(lambda: len(client.api.calls) == 0)
        assert client.api.calls.ordering.free == client.api.calls.ordering.bytes_max
