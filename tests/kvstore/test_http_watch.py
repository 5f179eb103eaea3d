"""Watches over HTTP: what a stream says, that it holds one answer and no more, and how it ends."""

from __future__ import annotations

import asyncio
from collections import deque
from unittest.mock import patch

import pytest

from kvstore.api.answers import MalformedAnswer
from kvstore.api.events import (
    CHANGE,
    COMPACTED,
    ENDED,
    LAGGED,
    PROGRESS,
    Change,
    Event,
    EventReader,
    encode_change,
    encode_end,
    encode_progress,
)
from kvstore.core.messages import Follow, Followed, Refused, Told
from kvstore.core.state import Changed
from kvstore.core.watches import within
from multicast.types import Timestamp
from tests.kvstore.test_http_app import Client, FakeNode, done, serving

ONE, TWO, THREE = (Timestamp(time, 1) for time in (1, 2, 3))
BINARY = b"\xff\n\n:\x00"


class Followers(FakeNode):
    """asked: with how it is answered, which the test does."""

    def __init__(self) -> None:
        super().__init__(done)
        self.asked: deque[tuple[Follow, Told]] = deque()
        self.forgotten = 0

    def request(self, asked: Follow, answer: Told) -> int:
        self.asked.append((asked, answer))
        return 1

    def forget(self, token: int) -> None:
        self.forgotten += 1

    async def next(self) -> tuple[Follow, Told]:
        while not self.asked:
            await asyncio.sleep(0)
        return self.asked.popleft()

    async def answer(self, answer: Followed | Refused) -> Follow:
        asked, told = await self.next()
        told(answer)
        return asked


def lagged() -> Refused:
    return Refused("lagged", "too slow", True, "not_applied")


def changed(version: Timestamp, *changes: tuple[bytes, bytes | None]) -> Changed:
    return version, list(changes)


async def all_of(client: Client, path: str, **headers: str) -> list[Event]:
    status, head, body = await client("GET", path, **headers)
    assert status == 200 and "text/event-stream" in head and "Content-Length" not in head
    return EventReader().feed(body)


@pytest.mark.parametrize("piece", [1, 7, 10_000])
def test_events_are_read_as_they_were_written_however_they_are_cut(piece: int) -> None:
    data = encode_change(ONE, [(b"a", b"1"), (BINARY, BINARY), (b"c", None), (b"d", b"")])
    data += encode_progress(TWO) + encode_end(THREE, "lagged", "x") + encode_end(THREE, "stopping", "y")
    reader = EventReader()
    events = [event for at in range(0, len(data), piece) for event in reader.feed(data[at : at + piece])]
    assert [event.kind for event in events] == [CHANGE, PROGRESS, LAGGED, ENDED]
    changes = (Change(b"a", b"1"), Change(BINARY, BINARY), Change(b"c", None), Change(b"d", b""))
    assert events[0] == Event(CHANGE, ONE, changes) and events[1] == Event(PROGRESS, TWO)
    with pytest.raises(MalformedAnswer):
        reader.feed(b"data: {}\n\n")


async def test_it_goes_on_from_each_answer_and_says_why_it_ends() -> None:
    node = Followers()
    async with serving(node) as client:
        stream = asyncio.create_task(all_of(client, "/v1/watch?prefix=a&from=1-1"))
        assert await node.answer(Followed([changed(TWO, (b"a", b"1"))], THREE)) == Follow(ONE, b"a", b"b")
        assert await node.answer(Followed([], THREE)) == Follow(THREE, b"a", b"b", True)
        await node.answer(lagged())
        events = await stream
    assert [event.kind for event in events] == [CHANGE, PROGRESS, LAGGED]
    assert [event.version for event in events] == [TWO, THREE, THREE]


async def test_who_connects_again_goes_on_at_the_last_event() -> None:
    node = Followers()
    async with serving(node) as client:
        stream = asyncio.create_task(all_of(client, "/v1/watch?from=1-1", Last_Event_ID=str(TWO)))
        asked, told = await node.next()
        told(Followed([], TWO))
        await node.answer(lagged())
        await stream
    assert asked.after == TWO and not asked.live


async def test_a_refusal_before_the_first_event_is_a_problem() -> None:
    node = Followers()
    async with serving(node) as client:
        stream = asyncio.create_task(client.problem("GET", "/v1/watch?from=1-1"))
        await node.answer(Refused("compacted", "too long ago", False, "not_applied"))
        problem = await stream
        assert (problem["status"], problem["code"]) == (410, COMPACTED) and not client.api.calls.streams


async def test_a_replica_that_stops_ends_its_watches() -> None:
    node = Followers()
    async with serving(node) as client:
        stream = asyncio.create_task(all_of(client, "/v1/watch"))
        await node.answer(Followed([], ONE))
        await node.next()
        assert await client.api.calls.drain(60.0) == 0
        events = await stream
    assert [(event.kind, event.code) for event in events] == [(PROGRESS, ""), (ENDED, "stopping")]


async def test_a_client_that_takes_nothing_is_not_asked_for_more_and_one_that_goes_is_forgotten() -> None:
    node = Followers()
    async with serving(node) as client:
        reader, writer = await asyncio.open_connection("127.0.0.1", client.port)
        writer.write(b"GET /v1/watch HTTP/1.1\r\nHost: x\r\n\r\n")
        large = Followed([changed(TWO, (b"a", bytes(8_000_000)))], TWO)
        _, told = await node.next()
        told(large)
        for _ in range(100):
            await asyncio.sleep(0)
        assert not node.asked and not client.server.clogged
        assert (await reader.read(12)) == b"HTTP/1.1 200"
        while not node.asked:
            await reader.read(1_000_000)
        writer.close()
        while client.api.calls.streams:
            await asyncio.sleep(0)
        assert node.forgotten == 1


async def test_there_are_so_many_and_none_without_a_history() -> None:
    async with serving(Followers(), watches_max=0) as client:
        assert (await client.problem("GET", "/v1/watch"))["code"] == "overloaded"
    async with serving(Followers(), history_ms=0) as client:
        assert "history" in (await client.problem("GET", "/v1/watch"))["detail"]


async def test_a_transaction_that_many_watches_are_told_is_written_once() -> None:
    """By the loop: five hundred watches of a value of 1 MB held up their replica for two seconds."""
    node, many, written = Followers(), 20, []
    feed = [changed(TWO, (b"a", b"1"), (b"b", b"2"))]

    def counted(version: Timestamp, changes: list[tuple[bytes, bytes | None]]) -> bytes:
        written.append(version)
        return encode_change(version, changes)

    async with serving(node) as client:
        streams = [asyncio.create_task(all_of(client, "/v1/watch?from=1-1")) for _ in range(many)]
        waiting = [await node.next() for _ in range(many)]
        with patch("kvstore.http.watching.encode_change", counted):
            for _, told in waiting:
                told(Followed(*within(feed, ONE, b"", b"")[:1], TWO))
            assert written == [TWO]
            for _ in range(many):
                await node.answer(Followed([changed(THREE, (b"a", b"3"))], THREE))
            assert written == [TWO] + many * [THREE]
        for _ in range(many):
            await node.answer(lagged())
        told_all = [[(event.version, event.changes) for event in await stream] for stream in streams]
    first, second = (TWO, (Change(b"a", b"1"), Change(b"b", b"2"))), (THREE, (Change(b"a", b"3"),))
    assert told_all == many * [[first, second, (THREE, ())]]


async def test_what_watches_do_not_take_is_held_once_for_all_of_them() -> None:
    """Of a transaction of 4 MB a thousand watches had 5 GB waiting in their connections."""
    node, many, streams = Followers(), 10, []
    feed = [changed(TWO, (b"a", 8_000_000 * b"a"))]
    async with serving(node) as client:
        for _ in range(many):
            reader, writer = await asyncio.open_connection("127.0.0.1", client.port, limit=1024)
            writer.write(b"GET /v1/watch?from=1-1 HTTP/1.1\r\nHost: x\r\n\r\n")
            streams.append((reader, writer))
        waiting = [await node.next() for _ in range(many)]
        for _, told in waiting:
            told(Followed(*within(feed, ONE, b"", b"")[:1], TWO))
        await asyncio.sleep(0.05)
        assert sum(connection.unsent_bytes for connection in client.server.connections) < many * 200_000
        assert not node.asked
        reading = [asyncio.create_task(reader.readuntil(b"\r\n\r\n")) for reader, _ in streams]
        await asyncio.gather(*reading)
        for reader, _ in streams:
            taken = 0
            while taken < 8_000_000:
                taken += len(await reader.read(1_000_000))
        for _ in range(many):
            await node.answer(lagged())
        for reader, writer in streams:
            assert b"event: lagged" in await reader.read()
            writer.close()
