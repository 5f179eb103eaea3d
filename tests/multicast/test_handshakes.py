"""Who connects and does not shake hands: no more than a few, and they make room for who does."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import suppress
from unittest.mock import Mock

import pytest
import trustme

from multicast.runtime import incoming, tls
from multicast.runtime.tls import Handshakes
from tests.ports import free_ports

MOST = 3
Connected = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Echo(asyncio.Protocol):
    """Says what it hears."""

    def __init__(self, handshakes: Handshakes):
        self._handshakes = handshakes

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._handshakes.over(self)

    def data_received(self, data: bytes) -> None:
        self._transport.write(data)


class Served:
    """A port with TLS."""

    def __init__(self) -> None:
        authority = trustme.CA()
        self.client = ssl.create_default_context()
        self.server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.configure_trust(self.client)
        authority.issue_cert("127.0.0.1").configure_cert(self.server)
        self.handshakes = Handshakes(lambda: self.server, MOST)
        self._open: list[asyncio.StreamWriter] = []

    async def connect(self, context: ssl.SSLContext | None = None) -> Connected:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, ssl=context)
        self._open.append(writer)
        return reader, writer

    async def close(self) -> None:
        for writer in self._open:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def echoes(self, said: bytes) -> bytes:
        reader, writer = await self.connect(self.client)
        writer.write(said)
        return await reader.readexactly(len(said))


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    found = Served()
    made = found.handshakes.before(lambda: Echo(found.handshakes))
    async with await asyncio.get_running_loop().create_server(made, "127.0.0.1", 0) as server:
        found.port = server.sockets[0].getsockname()[1]
        yield found
        await found.close()


async def silent(served: Served, many: int) -> list[Connected]:
    return [await served.connect() for _ in range(many)]


async def ended(reader: asyncio.StreamReader) -> bool:
    """Whether nothing comes any more."""
    with suppress(ConnectionError):
        return await reader.read(1) == b""
    return True


async def test_what_is_more_than_one_read_takes_comes_whole(served: Served) -> None:
    said = bytes(range(256)) * 4096
    assert await served.echoes(said) == said


async def test_there_are_no_more_than_may_be(served: Served) -> None:
    first = await silent(served, MOST)
    for reader, _ in await silent(served, 2):
        assert await ended(reader)
    assert not any([reader.at_eof() for reader, _ in first])


async def test_so_it_is_at_the_port_for_peers(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incoming, "HANDSHAKES_MAX", MOST, raising=False)
    peers, none = Mock(accepting=served.server), Mock()
    listener = incoming.Listener(
        none,
        ("127.0.0.1", free_ports(1)[0]),
        {},
        receive=none,
        reset=none,
        heard=none,
        fail=none,
        troubles=none,
        tls=peers,
    )
    await listener.bind()
    await listener.start()
    served.port = listener._address[1]
    first = await silent(served, MOST)
    for reader, _ in await silent(served, 2):
        assert await ended(reader)
    assert not any([reader.at_eof() for reader, _ in first])
    listener.close()
    await listener.closed()


async def test_who_takes_long_makes_room(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls, "SHAKEN_S", 0.0)
    waiting = await silent(served, MOST)
    assert await served.echoes(b"x") == b"x"
    assert await ended(waiting[0][0])


async def test_who_has_shaken_hands_or_gone_counts_no_more(served: Served) -> None:
    for _ in range(2 * MOST):
        await served.connect(served.client)
    for _, writer in await silent(served, MOST):
        writer.close()
    async with asyncio.timeout(30):
        while served.handshakes.waiting:
            await asyncio.sleep(0.01)
    assert await served.echoes(b"x") == b"x"
