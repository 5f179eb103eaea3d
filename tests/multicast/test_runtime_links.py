"""The ends of a link without a network: however the bytes come, the frames are the same."""

from __future__ import annotations

import asyncio
import random
import socket
import threading
import tracemalloc
from typing import Any, cast
from unittest.mock import Mock

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from multicast.protocol import PeerError
from multicast.runtime.fence import Fence, Places, Vouched
from multicast.runtime.greeting import ACK, FRAME, NewerVersion, decode_greeting, encode_greeting
from multicast.runtime.incoming import Connection
from multicast.runtime.links import Links
from multicast.runtime.outgoing import _REFUSAL_MAX
from multicast.wire import HOST, WIRE_VERSION, Codec, Hello, Welcome
from tests.multicast.live import CLUSTER, eventually, hello


class FakeTransport(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.open = True

    def write(self, data: Any) -> None:
        self.written += bytes(data)

    def close(self) -> None:
        self.open = False

    def abort(self) -> None:
        self.open = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def pause_reading(self) -> None:
        raise AssertionError("nobody asked for that")

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """As nothing is written out there is none."""


class Ears:
    """`Links` of process 0 towards process 1, whose frames are kept."""

    def __init__(self) -> None:
        self.frames: list[tuple[int, bytes]] = []
        self.resets: list[int] = []
        self.places: list[tuple[int, bytes]] = []
        self.links = Links(
            self_id=0, addresses={0: ("127.0.0.1", 1), 1: ("127.0.0.1", 2)}, cluster=CLUSTER, incarnation=9,
            fence=Fence(7, lambda: 100, Places(mine=b"there", told=lambda *place: self.places.append(place))),
            receive=lambda peer, data: self.frames.append((peer, bytes(data))), reset=self.resets.append,
            connected=lambda peer, up: None, fail=self.fail,
        )

    def fail(self, error: BaseException) -> None:
        raise error

    def connect(self) -> tuple[Connection, FakeTransport]:
        connection, transport = Connection(self.links.listener), FakeTransport()
        connection.connection_made(transport)
        return connection, transport


def feed(connection: Connection, data: bytes) -> None:
    """As the loop does it."""
    while data:
        buffer = connection.get_buffer(-1)
        size = min(len(buffer), len(data))
        buffer[:size] = data[:size]
        connection.buffer_updated(size)
        data = data[size:]


def frames(payloads: list[bytes], first: int = 1) -> bytes:
    return b"".join(FRAME.pack(len(p), first + i) + p for i, p in enumerate(payloads))


def welcome(transport: FakeTransport) -> Welcome:
    read = decode_greeting(transport.written, Welcome)
    assert read is not None
    return read[0]


@given(st.lists(st.binary(min_size=1, max_size=300), max_size=12), st.integers(0, 2**32), st.booleans())
def test_frames_are_the_same_however_the_bytes_come(payloads: list[bytes], seed: int, tiny: bool) -> None:
    async def feed_all() -> None:
        ears = Ears()
        connection, transport = ears.connect()
        data = encode_greeting(hello(1)) + frames(payloads)
        rng = random.Random(seed)
        while data:
            size = rng.randint(1, 5 if tiny else 400)
            feed(connection, data[:size])
            data = data[size:]
        assert ears.frames == [(1, p) for p in payloads]
        assert transport.open
        assert welcome(transport) == Welcome(WIRE_VERSION, 9, 0, life=7, length=100)
        assert ears.links.incoming[1].receiver.seen == len(payloads)
        connection.connection_lost(None)

    asyncio.run(feed_all())


async def test_what_was_seen_before_the_connection_broke_is_not_handed_on_again() -> None:
    ears = Ears()
    connection, _ = ears.connect()
    feed(connection, encode_greeting(hello(1)) + frames([b"one", b"two"]))
    ears.links.processed(1)
    link = ears.links.incoming[1]
    assert link.flushed(1) == 2
    feed(connection, frames([b"three"], 3))
    connection.connection_lost(None)
    again, transport = ears.connect()
    feed(again, encode_greeting(hello(1)) + frames([b"three", b"four"], 3))
    assert welcome(transport).received == 2, "the third is not flushed"
    assert [f for _, f in ears.frames] == [b"one", b"two", b"three", b"four"]
    ears.links.processed(2)
    assert link.flushed(2) == 2
    assert ears.resets == []


async def test_what_waits_for_a_flush_is_not_acknowledged_to_the_next_life_of_the_peer() -> None:
    ears = Ears()
    connection, _ = ears.connect()
    feed(connection, encode_greeting(hello(1)) + frames([b"one", b"two", b"three"]))
    ears.links.processed(1)
    again, transport = ears.connect()
    feed(again, encode_greeting(hello(1, incarnation=2)) + frames([b"uno"]))
    assert welcome(transport).received == 0
    assert ears.resets == [1]
    link = ears.links.incoming[1]
    assert link.flushed(1) == 0
    ears.links.processed(2)
    assert link.flushed(2) == 1


async def test_a_second_connection_of_a_peer_replaces_the_first() -> None:
    ears = Ears()
    first, transport = ears.connect()
    feed(first, encode_greeting(hello(1)))
    second, _ = ears.connect()
    feed(second, encode_greeting(hello(1)))
    assert not transport.open
    feed(first, frames([b"late"]))
    assert ears.frames == []
    first.connection_lost(None)
    assert ears.links.incoming[1].connection is second


async def test_strangers_are_few() -> None:
    ears = Ears()
    transports = [ears.connect()[1] for _ in range(70)]
    assert sum(t.open for t in transports) == 64


async def test_a_gap_costs_the_peer_its_link() -> None:
    ears = Ears()
    connection, transport = ears.connect()
    feed(connection, encode_greeting(hello(1)) + frames([b"one"]) + frames([b"three"], 3))
    assert not transport.open
    assert ears.frames == [(1, b"one")]
    assert ears.resets == [1]


@pytest.mark.parametrize("end", ["incoming", "outgoing"])
async def test_what_is_read_takes_no_buffer_of_its_own(end: str) -> None:
    """Which would cut the heap into pieces: it grew by 13 MB in half an hour."""
    ears, loop = Ears(), asyncio.get_running_loop()
    out = ears.links.outgoing[1]
    here, there = socket.socketpair()
    here.setblocking(False)
    if end == "incoming":
        await loop.connect_accepted_socket(lambda: Connection(ears.links.listener), here)
        first, second = encode_greeting(hello(1)) + frames([b"one"]), frames([b"two"], 2)
    else:
        out.send(b"one")
        out.send(b"two")
        await loop.create_connection(lambda: out, sock=here)
        first, second = encode_greeting(Welcome(WIRE_VERSION, 9, 0)) + ACK.pack(1, 0), ACK.pack(2, 0)
    there.sendall(first)
    await eventually(lambda: len(ears.frames) == 1 or out.sender.queued == 1)
    tracemalloc.start()
    try:
        there.sendall(second)
        await eventually(lambda: len(ears.frames) == 2 or (out.ready and not out.sender.queued))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        there.close()
        ears.links.abort()
    assert most < 64 * 1024


@given(st.binary(max_size=60))
def test_any_bytes_are_a_greeting_part_of_one_or_a_peers_error(data: bytes) -> None:
    for start in (data, encode_greeting(hello(1))[:8] + data, b"AMCL" + data):
        try:
            read = decode_greeting(start, Hello)
        except PeerError as error:
            assert str(error)
        else:
            assert read is None or isinstance(read[0], Hello)


def test_what_is_nested_too_deep_is_a_peers_error() -> None:
    """And no bug of ours, of which this process would die: nobody need be known to say it."""
    deep = b"\x91" * 10_000 + b"\x90"
    for greeting in (hello(1), Welcome(1, 2, 3, "no")):
        body = msgspec.msgpack.encode(greeting)
        body = bytes([body[0] + 1]) + body[1:] + deep
        data = encode_greeting(greeting)[:6] + len(body).to_bytes(2, "big") + body
        with pytest.raises(PeerError, match="malformed greeting"):
            decode_greeting(data, cast(Any, type(greeting)))
    with pytest.raises(PeerError, match="malformed message"):
        Codec(()).decode(bytes([HOST]) + b"\x93\x03\x01" + deep)


def test_greetings_come_back() -> None:
    for greeting in (hello(1), Welcome(1, 2, 3, "no")):
        data = encode_greeting(greeting)
        for size in range(len(data)):
            assert decode_greeting(data[:size], cast(Any, type(greeting))) is None
        assert decode_greeting(data + b"more", cast(Any, type(greeting))) == (greeting, len(data))


def test_a_newer_version_is_refused_before_its_body_is_read() -> None:
    with pytest.raises(NewerVersion, match="wire version 4 is newer than this program's 3; use a newer release"):
        decode_greeting(b"AMCL\0\4\xff\xff", Hello)


async def test_where_a_peer_is_said_to_be_may_be_no_address() -> None:
    """It is put right later, and the link is to know that."""
    ears, heard = Ears(), list[bool]()
    out = ears.links.outgoing[1]
    out._connected = lambda peer, up: heard.append(up)
    out.move(("no..name", 1))
    dialling = asyncio.create_task(out.run())
    await eventually(lambda: bool(heard) or dialling.done(), "it was dialled")
    assert not dialling.done()
    dialling.cancel()


async def test_who_can_start_no_thread_for_a_name_dials_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A system out of threads has some again later."""
    tried: list[threading.Thread] = []

    def refuse(thread: threading.Thread) -> None:
        tried.append(thread)
        raise RuntimeError("can't start new thread")

    out = Ears().links.outgoing[1]
    out.move(("localhost", 1))
    monkeypatch.setattr(threading.Thread, "start", refuse)
    dialling = asyncio.create_task(out.run())
    await eventually(lambda: len(tried) > 1 or dialling.done(), "it tried again")
    assert not dialling.done()
    dialling.cancel()


async def test_who_dials_again_does_so_with_the_certificates_of_then(monkeypatch: pytest.MonkeyPatch) -> None:
    dialled: list[object] = []

    async def refuse(*_: object, ssl: object, **__: object) -> None:
        dialled.append(ssl)
        raise ConnectionRefusedError

    out = Ears().links.outgoing[1]
    tls = out._tls = Mock(dialling="before")
    monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", refuse)
    dialling = asyncio.create_task(out.run())
    await eventually(lambda: bool(dialled), "it was dialled")
    tls.dialling = "after"
    await eventually(lambda: dialled[-1] == "after", "it was dialled again")
    dialling.cancel()
    assert dialled[0] == "before"


async def test_a_link_that_ends_by_a_bug_of_ours_is_not_the_silent_end_of_it() -> None:
    ears, failed = Ears(), list[BaseException]()
    ears.links._fail = failed.append

    async def broken() -> None:
        raise KeyError("ours")

    ears.links.outgoing[1].run = broken  # type: ignore[method-assign]
    ears.links._dial(1)
    await eventually(lambda: bool(failed), "it was told")
    assert isinstance(failed[0], KeyError)


# -- old copies of disks -----------------------------------------------------------------------------------------------


def test_a_journal_that_is_shorter_than_was_vouched_for_is_refused() -> None:
    fence = Fence(7, lambda: 100)
    assert fence.refusal(1, Vouched(5, 5, 40)) == ""
    fence.vouched(1, 60)
    fence.vouched(1, 50)
    assert "is an old copy: it has 59 bytes, and had vouched for 60" in fence.refusal(1, Vouched(6, 5, 59))
    assert fence.refusal(1, Vouched(6, 5, 60)) == fence.refusal(2, Vouched(6, 5, 0)) == ""


def test_a_process_that_lives_on_may_be_heard_in_any_order() -> None:
    """It greets on one connection with what it had before it acknowledged on another."""
    fence = Fence(7, lambda: 100)
    assert fence.refusal(1, Vouched(5, 5, 40)) == ""
    fence.vouched(1, 60)
    assert fence.refusal(1, Vouched(5, 5, 50)) == ""
    assert "had vouched for 60" in fence.refusal(1, Vouched(6, 5, 50))


def test_a_disk_that_took_the_place_of_a_lost_one_begins_anew_and_the_lost_one_stays_out() -> None:
    fence = Fence(7, lambda: 100)
    assert fence.refusal(1, Vouched(5, 5, 40)) == fence.refusal(1, Vouched(6, 6, 10)) == ""
    assert "leave this one off: with --lost-disk" in fence.refusal(1, Vouched(7, 5, 1000))


def test_a_new_disk_that_begins_by_a_clock_that_is_behind_is_told_so() -> None:
    """It would be told to stay off for ever, as the disk in whose place it is. Who heard of neither names both."""
    fence = Fence(7, lambda: 100, Places({2: 5_000_000}))
    assert fence.refusal(1, Vouched(5_000_000, 5_000_000, 40)) == ""
    for peer in (1, 2):
        told = fence.refusal(peer, Vouched(2_500_000, 2_500_000, 10))
        assert "began, by its clock, 2.5 s before" in told and "its clock is behind: set that, move its dir" in told
        assert "else another one has taken its place: leave it off" in told and len(told) < _REFUSAL_MAX
    assert fence.refusal(1, Vouched(6_000_000, 6_000_000, 10)) == ""


def test_a_second_copy_of_a_disk_that_is_as_long_is_noticed_when_both_run() -> None:
    """As of a machine that was cloned: each takes the other's links, until the first one greets again."""
    fence = Fence(7, lambda: 100)
    assert fence.refusal(1, Vouched(5, 5, 40)) == fence.refusal(1, Vouched(8, 5, 40)) == ""
    assert "two processes run as process 1, with copies of one journal: end both" in fence.refusal(1, Vouched(5, 5, 70))
    assert fence.refusal(1, Vouched(8, 5, 40)) == fence.refusal(1, Vouched(9, 5, 50)) == ""


async def test_who_greets_with_an_old_copy_is_told_and_not_heard() -> None:
    ears = Ears()
    connection, transport = ears.connect()
    feed(connection, encode_greeting(msgspec.structs.replace(hello(1), life=5, length=40)))
    connection.connection_lost(None)
    again, transport = ears.connect()
    copy = msgspec.structs.replace(hello(1), incarnation=99, life=5, length=39)
    feed(again, encode_greeting(copy) + frames([b"vote"]))
    assert welcome(transport).fenced and not transport.open and not ears.frames


async def test_who_was_removed_while_it_was_down_is_told_and_not_heard() -> None:
    ears = Ears()
    ears.links.gone[9] = 3
    connection, transport = ears.connect()
    feed(connection, encode_greeting(hello(9)) + frames([b"vote"]))
    told = welcome(transport)
    assert told.fenced and "process 9 was removed from its group, in view 3" in told.refusal
    assert not transport.open and not ears.frames
    stranger, transport = ears.connect()
    feed(stranger, encode_greeting(hello(8)))
    assert not welcome(transport).fenced, "whom nobody knows may belong to a view that is not known here yet"


async def test_with_who_is_gone_there_is_no_link_and_what_waited_for_it_is_forgotten() -> None:
    ears = Ears()
    connection, transport = ears.connect()
    feed(connection, encode_greeting(hello(1)))
    ears.links.send([((1,), b"waits")])
    ears.links.part({1: 3, 7: 1})
    assert not transport.open and not ears.links.outgoing and not ears.links.incoming and not ears.links.status()
    feed(connection, frames([b"late"]))
    connection.connection_lost(None)
    ears.links.send([((1,), b"vote")])
    ears.links.flush()
    again, transport = ears.connect()
    feed(again, encode_greeting(hello(1)) + frames([b"vote"]))
    assert "process 1 was removed from its group, in view 3" in welcome(transport).refusal
    assert welcome(transport).fenced and not transport.open and not ears.frames


async def test_a_connection_that_is_made_as_its_time_is_over_does_not_take_the_next_one_down(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    """As under TLS, where its loss is told only later."""
    ears, loop = Ears(), asyncio.get_running_loop()
    out = ears.links.outgoing[1]
    made: list[FakeTransport] = []

    async def connect(*_: object) -> None:
        made.append(FakeTransport())
        out.connection_made(made[-1])
        if len(made) == 1:
            loop.call_later(0.3, out.connection_lost, None)
            raise TimeoutError

    monkeypatch.setattr(out, "_connect", connect)
    dialling = asyncio.create_task(out.run())
    await eventually(lambda: len(made) == 2)
    await asyncio.sleep(0.4)
    assert len(made) == 2 and out.connected and made[1].open and not made[0].open
    dialling.cancel()
    await asyncio.wait([dialling])


async def test_who_took_the_place_of_another_says_where_it_is_once_it_is_believed() -> None:
    ears = Ears()
    assert ears.links.listener.identity.hello(1, ears.links.outgoing[1].sender).place == b"there"
    here = msgspec.structs.replace(hello(1), life=5, length=40, place=b"here")
    connection, transport = ears.connect()
    feed(connection, encode_greeting(here))
    assert ears.places == [(1, b"here")] and transport.open
    copy, transport = ears.connect()
    feed(copy, encode_greeting(msgspec.structs.replace(here, incarnation=99, length=39, place=b"elsewhere")))
    stranger, transport = ears.connect()
    feed(stranger, encode_greeting(msgspec.structs.replace(here, sender=8, place=b"elsewhere")))
    assert ears.places == [(1, b"here")]
