"""Few connections, many requests under way: every answer reaches whoever asked, and no failure passes for another."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest.mock import Mock

import pytest
import trustme

from client_sdk import AsyncClient, Unavailable
from client_sdk import connections as module
from client_sdk.connections import CONNECTIONS_MAX, Broken, Connections, NotConnected, Received, Transport, Untrusted
from kvstore.api.http1 import RequestReader
from tests.multicast.live import eventually
from tests.ports import free_ports

Answer = Callable[["Server", str, bytes], Awaitable[bytes]]


def ok(text: str) -> bytes:
    return f"HTTP/1.1 200 OK\r\nContent-Length: {len(text)}\r\n\r\n{text}".encode()


class Server:
    """Answers what `answer` gives for (target, body), in order. ends: each connection after one answer."""

    def __init__(self, answer: Answer):
        self._answer = answer
        self.ends = False
        self.writers: list[asyncio.StreamWriter] = []
        self.seen: list[str] = []
        self.release = asyncio.Event()
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        requests, tasks = RequestReader(), asyncio.Queue[asyncio.Task[bytes] | None]()

        async def write() -> None:
            while (task := await tasks.get()) is not None:
                writer.write(await task)
                if self.ends:
                    break
            writer.close()

        writing = asyncio.create_task(write())
        while data := await reader.read(65536):
            requests.feed(data)
            while (head := requests.head()) is not None:
                body = requests.body(1 << 24)
                while body is None:
                    requests.feed(await reader.read(65536))
                    body = requests.body(1 << 24)
                assert head.fields.values["x-concurrent"] == "1"
                self.seen.append(head.target)
                tasks.put_nowait(asyncio.create_task(self._answer(self, head.target, body)))
        tasks.put_nowait(None)
        await writing

    @property
    def connections(self) -> int:
        return len(self.writers)


@asynccontextmanager
async def serving(answer: Answer) -> AsyncIterator[tuple[Server, Connections]]:
    server, client = Server(answer), Connections()
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    try:
        yield server, client
    finally:
        await client.close()
        server.release.set()
        listener.close()
        await listener.wait_closed()
        for writer in server.writers:
            await asyncio.gather(writer.wait_closed(), return_exceptions=True)


def get(client: Connections, server: Server, target: str, seconds: float = 60.0) -> asyncio.Task[Received]:
    return asyncio.ensure_future(client.exchange(server.url, "GET", target, "", None, seconds))


async def echo(server: Server, target: str, body: bytes) -> bytes:
    return ok(f"{target} {body.decode()}")


async def hold(server: Server, target: str, body: bytes) -> bytes:
    if target.startswith("/held"):
        await server.release.wait()
    return ok(target)


async def test_many_requests_share_few_connections_and_each_gets_its_answer() -> None:
    async with serving(echo) as (server, client):
        asked = [client.exchange(server.url, "PUT", f"/{i}", "", b"%d" % i, 60.0) for i in range(300)]
        answers = await asyncio.gather(*asked)
        assert [a.body for a in answers] == [b"/%d %d" % (i, i) for i in range(300)]
        assert server.connections == CONNECTIONS_MAX


async def test_one_request_after_the_other_needs_one_connection() -> None:
    async with serving(echo) as (server, client):
        for i in range(5):
            assert (await get(client, server, f"/{i}")).body == b"/%d " % i
        assert server.connections == 1


async def test_a_free_connection_is_preferred_to_one_that_waits() -> None:
    async with serving(hold) as (server, client):
        held = get(client, server, "/held")
        await eventually(lambda: server.seen == ["/held"])
        for _ in range(3):
            assert (await get(client, server, "/free")).status == 200
        assert server.connections == 2 and not held.done()
        server.release.set()
        assert (await held).body == b"/held"


async def test_a_connection_with_a_late_answer_gets_no_more_requests_and_those_behind_it_are_not_lost(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    clock = loop.time
    async with serving(hold) as (server, client):
        late = [get(client, server, f"/held{i}", 600.0) for i in range(CONNECTIONS_MAX)]
        behind = get(client, server, "/behind", 6000.0)
        await eventually(lambda: len(server.seen) == CONNECTIONS_MAX + 1)
        monkeypatch.setattr(loop, "time", lambda: clock() + 1000.0)
        for task in late:
            with pytest.raises(TimeoutError):
                await task
        assert (await get(client, server, "/other")).body == b"/other"
        assert server.connections == CONNECTIONS_MAX + 1 and not behind.done()
        server.release.set()
        assert (await behind).body == b"/behind"


async def test_a_request_that_is_given_up_leaves_its_answer_to_nobody() -> None:
    async with serving(hold) as (server, client):
        given_up = get(client, server, "/held")
        await eventually(lambda: server.seen == ["/held"])
        given_up.cancel()
        await asyncio.gather(given_up, return_exceptions=True)
        assert (await get(client, server, "/next")).body == b"/next"
        server.release.set()
        assert (await get(client, server, "/last")).body == b"/last"


@pytest.mark.parametrize("given_up", [0, 1])
async def test_a_connection_on_which_a_request_was_given_up_ends_with_the_last_answer_that_somebody_waits_for(
    given_up: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else each such request would leave one open, until the server finds it idle."""
    monkeypatch.setattr(module, "CONNECTIONS_MAX", 1)
    async with serving(hold) as (server, client):
        asked = [get(client, server, f"/held{i}") for i in range(2)]
        await eventually(lambda: len(server.seen) == 2)
        asked[given_up].cancel()
        await asyncio.gather(asked[given_up], return_exceptions=True)
        server.release.set()
        assert (await asked[1 - given_up]).status == 200
        await eventually(lambda: server.writers[0].is_closing())
        assert (await get(client, server, "/next")).body == b"/next"


async def test_where_nobody_listens_nothing_was_sent() -> None:
    client = Connections()
    [port] = free_ports(1)
    with pytest.raises(NotConnected):
        await client.exchange(f"http://127.0.0.1:{port}", "GET", "/", "", None, 60.0)
    await client.close()


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nfour",
        b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\nno length",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\nContent-Length: 999999999999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 20_000,
    ],
    ids=["nothing", "half", "no HTTP", "no length", "two lengths", "too large", "bad chunk", "endless head"],
)
async def test_what_is_no_answer_leaves_it_open_whether_the_request_was_received(answer: bytes) -> None:
    async def say(server: Server, target: str, body: bytes) -> bytes:
        return answer

    async with serving(say) as (server, client):
        server.ends = True
        with pytest.raises(Broken):
            await get(client, server, "/")


async def test_answers_in_chunks_and_interim_ones_and_those_that_close() -> None:
    async def strange(server: Server, target: str, body: bytes) -> bytes:
        if target == "/chunked":
            return b"HTTP/1.1 200 OK\r\nEtag: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n"
        if target == "/interim":
            return b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 304 Not Modified\r\n\r\n"
        return b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"

    async with serving(strange) as (server, client):
        assert await get(client, server, "/chunked") == (200, {"etag": "x", "transfer-encoding": "chunked"}, b"abc")
        assert (await get(client, server, "/interim")).status == 304
        for connections in (1, 2):
            assert (await get(client, server, "/close")).status == 200
            assert server.connections == connections


async def test_closing_ends_what_is_under_way() -> None:
    async with serving(hold) as (server, client):
        held = get(client, server, "/held")
        await eventually(lambda: server.seen == ["/held"])
        await client.close()
        with pytest.raises(Broken):
            await held


async def test_a_client_of_https_where_there_is_http_is_told_so_before_its_time_is_over() -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(65536)
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with AsyncClient(f"https://127.0.0.1:{port}", timeout=60) as client:
            with pytest.raises(Unavailable, match=rf"https://127.0.0.1:{port}: it does not speak TLS: is it http://"):
                await client.get("k")


class Sent(asyncio.Transport):
    """data: what was written."""

    def __init__(self) -> None:
        super().__init__()
        self.data = b""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.data += data

    def abort(self) -> None:
        pass


async def test_a_connection_whose_time_is_over_when_it_is_made_may_have_sent_what_waited(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the loop stands still at this very moment: the request has left, and nobody may say that it was not
    sent."""
    monkeypatch.setattr(module, "CONNECT_TIMEOUT_SECONDS", 0.01)
    sent = Sent()

    class Late(Transport):
        async def connect(
            self, protocol: Callable[[], asyncio.BaseProtocol], host: str, port: int, tls: ssl.SSLContext | None
        ) -> None:
            protocol().connection_made(sent)
            await asyncio.Event().wait()

    client = Connections(transport=Late())
    with pytest.raises(Broken, match="not connected in time"):
        await client.exchange("http://x", "PUT", "/", "", b"value", 60.0)
    assert sent.data.endswith(b"value")


async def test_a_stream_that_is_connected_when_its_client_was_closed_meanwhile_is_none() -> None:
    connecting, ended = asyncio.Event(), asyncio.Event()

    class Slow(Transport):
        async def connect(
            self, protocol: Callable[[], asyncio.BaseProtocol], host: str, port: int, tls: ssl.SSLContext | None
        ) -> None:
            connecting.set()
            await asyncio.sleep(0.05)
            await super().connect(protocol, host, port, tls)

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert not await reader.read()
        writer.close()
        await writer.wait_closed()
        ended.set()

    async with await asyncio.start_server(silent, "127.0.0.1", 0) as server:
        client = Connections(transport=Slow())
        stream = client.stream(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", "/", "")
        begun = asyncio.create_task(stream.__aenter__())
        await connecting.wait()
        await client.close()
        with pytest.raises(Broken, match="the client was closed"):
            await begun
        await ended.wait()


async def test_a_name_of_which_one_address_is_silent_is_reached_by_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a name has an address of IPv6 and nothing of that comes through."""
    monkeypatch.setattr(module, "ADDRESS_SECONDS", 0.01)
    with socket.create_server(("127.0.0.2", 0), backlog=0) as silent, contextlib.ExitStack() as waiting:
        _, port = silent.getsockname()
        for _ in range(8):  # nobody takes them: from some on they are not even answered
            one = waiting.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(("127.0.0.2", port))
        answered = asyncio.Event()

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(ok("there"))
            await answered.wait()
            writer.close()

        async def resolve(*_: object, **__: object) -> list[object]:
            places = (("127.0.0.2", port), ("127.0.0.1", port))
            return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", place) for place in places]

        async with await asyncio.start_server(answer, "127.0.0.1", port):
            monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve)
            client = Connections()
            received = await client.exchange(f"http://two:{port}", "GET", "/", "", None, 10.0)
            assert received.body == b"there"
            await client.close()
            answered.set()


async def test_an_authority_is_followed_by_another_while_a_program_runs(tmp_path: Path) -> None:
    """Its file has the old one and the new one before anybody shows a certificate of the new one."""
    path, first, second = tmp_path / "ca.pem", trustme.CA(), trustme.CA()
    path.write_bytes(first.cert_pem.bytes())

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(ok("there"))
        writer.close()

    async def asked(shown: trustme.CA) -> bytes:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        shown.issue_cert("127.0.0.1").configure_cert(tls)
        async with await asyncio.start_server(answer, "127.0.0.1", 0, ssl=tls) as server:
            url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            return (await client.exchange(url, "GET", "/", "", None, 10.0)).body

    client = Connections(path)
    assert await asked(first) == b"there"
    with pytest.raises(Untrusted, match="see `ca`"):
        await asked(second)
    path.write_bytes(first.cert_pem.bytes() + second.cert_pem.bytes())
    assert [await asked(first), await asked(second)] == [b"there", b"there"]
    path.write_bytes(second.cert_pem.bytes()[:100])
    assert await asked(second) == b"there"  # a file that is half written counts for nothing
    path.write_bytes(second.cert_pem.bytes())
    with pytest.raises(Untrusted):
        await asked(first)
    await client.close()


async def test_who_has_a_certificate_that_is_over_is_told_nothing_of_authorities(tmp_path: Path) -> None:
    path, authority, now = tmp_path / "ca.pem", trustme.CA(), datetime.now(UTC)
    path.write_bytes(authority.cert_pem.bytes())
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    over = authority.issue_cert("127.0.0.1", not_before=now - timedelta(2), not_after=now - timedelta(1))
    over.configure_cert(tls)
    async with await asyncio.start_server(Mock(), "127.0.0.1", 0, ssl=tls) as server:
        client = Connections(path)
        with pytest.raises(Untrusted, match=r"certificate has expired$"):
            url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            await client.exchange(url, "GET", "/", "", None, 10.0)
        await client.close()
