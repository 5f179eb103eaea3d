"""Watches of the SDK beside replicas that say what a test wants."""

from __future__ import annotations

import asyncio

import pytest

from client_sdk import AsyncClient, Timestamp, Unavailable
from kvstore.api.events import EventReader, encode_change, encode_end
from multicast.types import ZERO

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
ONE, TWO = Timestamp(1, 1), Timestamp(2, 1)


async def test_who_lags_has_nothing_against_his_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    streams = [encode_change(ONE, [(b"k", b"1")]) + encode_end(ONE, "lagged", "x"), encode_change(TWO, [(b"k", b"2")])]
    asked: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append((await reader.readuntil(b"\r\n\r\n")).split()[1])
        writer.write(HEAD + streams.pop(0))
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with AsyncClient(f"http://127.0.0.1:{port}") as store:
            suspected: list[str] = []
            monkeypatch.setattr(store.attempts._router, "suspect", lambda url, now: suspected.append(url))
            watch = store.watch("k", after=ZERO)
            assert [(await anext(watch)).version for _ in range(2)] == [ONE, TWO]
            assert not suspected
            await watch.aclose()  # type: ignore[attr-defined]
    assert asked[1].endswith(b"&from=" + str(ONE).encode())


def test_a_large_event_is_looked_at_once() -> None:
    """Not again with every piece of it that comes."""
    data, piece = encode_change(ONE, [(b"k", b"v" * 1_000_000)]), 50
    reader, found = EventReader(), 0

    class Counted(bytearray):
        def find(self, *arguments: object) -> int:
            nonlocal found
            begin = arguments[1]
            assert isinstance(begin, int)
            found += len(self) - begin
            return super().find(*arguments)  # type: ignore[arg-type]

    reader._rest = Counted()
    events = [event for at in range(0, len(data), piece) for event in reader.feed(data[at : at + piece])]
    assert [event.version for event in events] == [ONE] and found < 3 * len(data)


@pytest.mark.parametrize("head", [b"HTTP/1.1 502 Bad\r\nno field\r\n\r\n", b"HTTP/1.1 200 OK\nA: b\r\n\r\n"])
async def test_what_is_no_answer_is_followed_by_another_replica(head: bytes) -> None:
    heads = [head, HEAD + encode_change(ONE, [(b"k", b"1")])]

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if b"/v1/watch" in await reader.readuntil(b"\r\n\r\n"):
            writer.write(heads.pop(0))
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with AsyncClient(f"http://127.0.0.1:{port}") as store:
            watch = store.watch("k", after=ZERO)
            assert (await anext(watch)).version == ONE
            await watch.aclose()  # type: ignore[attr-defined]


async def test_a_watch_that_nobody_begins_ends_in_its_own_time() -> None:
    """However long an attempt may take."""
    waiting = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await waiting.wait()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server, asyncio.timeout(20):
        port = server.sockets[0].getsockname()[1]
        async with AsyncClient(f"http://127.0.0.1:{port}", attempt_timeout=60) as store:
            with pytest.raises(Unavailable, match=r"nobody serves the watch for 0\.1 s"):
                await anext(store.watch(timeout=0.1))
        waiting.set()


async def test_a_watch_of_what_is_no_host_is_served_by_nobody() -> None:
    async with AsyncClient("http://a..b:7500") as store:
        with pytest.raises(Unavailable, match="no name of a host"):
            await anext(store.watch(timeout=0.5))
        with pytest.raises(Unavailable, match="no name of a host"):
            await store.get("a", timeout=0.5)
