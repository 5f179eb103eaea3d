"""What peers and strangers can do to a live host over TCP, and what they cannot."""

from __future__ import annotations

import asyncio
import math
import socket
import threading
from typing import Any

import pytest
from structlog.testing import capture_logs

from multicast import wire
from multicast.engine import Engine
from multicast.membership import Change
from multicast.runtime import outgoing
from multicast.runtime.greeting import encode_greeting
from multicast.runtime.outgoing import BACKOFF_MIN_S
from multicast.types import AppMessage, Topology
from multicast.wire import Welcome
from tests.multicast.live import CLUSTER, BarePeer, eventually, hello, soon
from tests.multicast.scripted import Note
from tests.ports import free_ports

TWO = Topology({0: (0, 1)})
THREE = Topology({0: (0, 1, 2)})

pytestmark = pytest.mark.usefixtures("nothing_is_left_over")


@pytest.fixture(autouse=True)
def nobody_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long a test takes, its host does not tell of peers that are not there, nor takes a connection for a good
    one because it lasted."""
    monkeypatch.setattr(outgoing, "MISSING_S", math.inf)
    monkeypatch.setattr(outgoing, "STEADY_S", math.inf)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"version": 4}, "wire version 4 is newer than this program's 3; use a newer release"),
        ({"cluster": b"d" * 16}, f"this process is of cluster {CLUSTER.hex()}, not of {(b'd' * 16).hex()}"),
        ({"receiver": 1}, "this is process 0, not 1"),
        ({"sender": 77}, "process 77 is not a member of this cluster"),
        ({"sender": 0}, "process 0 is not a member of this cluster"),
        (
            {"alike": {"dedup_window_us": "1000"}},
            "process 1 goes by dedup_window_us = '1000', and this one by '0': all have to go alike",
        ),
        ({"first": 0}, "impossible numbers in the greeting"),
    ],
)
async def test_who_does_not_belong_here_is_refused_in_one_sentence_and_logged_once(
    clusters: Any, change: dict[str, Any], reason: str
) -> None:
    cluster = clusters(TWO)
    await cluster.start(0)
    greeting = hello(1)
    for name, value in change.items():
        setattr(greeting, name, value)
    with capture_logs() as logs:
        for _ in range(3):
            peer = BarePeer(cluster.addresses[0])
            assert reason in (await peer.greet(greeting)).refusal
            assert await peer.closed()
            await peer.close()
    assert [entry["reason"] for entry in logs if entry["log_level"] == "warning"] == [
        "process 0 is not a member of this cluster" if greeting.sender == 0 else reason
    ]
    assert not cluster.hosts[0].failed.done()
    await cluster.stop()


async def test_there_is_a_link_to_who_was_removed_last_and_those_removed_before_are_told(clusters: Any) -> None:
    """The leader may have to tell the last one, and need it till then; to those who look it is no peer that is missed.
    Nobody dials who was removed before."""
    cluster = clusters(Topology({0: (0,)}))
    away = free_ports(1)[0]
    await cluster.start(0, address_of=lambda process, note: (note.decode(), away))
    topology = cluster.hosts[0].engine.protocol.topology
    linked: list[set[str]] = []
    for view, (process, adds) in enumerate(((7, True), (7, False), (8, True), (8, False))):
        topology.views[0].change(Change(view, adds, process, note=b"127.0.0.1"))
        topology.views[0].begin(view + 1)
        topology.follow(0)
        await cluster.multicast(0, b"")
        linked.append({task.get_name() for task in asyncio.all_tasks() if "link to" in task.get_name()})
    assert linked == [{"link to 7"}, {"link to 7"}, {"link to 8"}, {"link to 8"}]
    assert cluster.hosts[0].status()["peers"] == {}
    for process, told in ((7, True), (8, False)):
        peer = BarePeer(cluster.addresses[0])
        greeting = hello(process)
        assert (await peer.greet(greeting)).fenced == told
        await peer.close()
    await cluster.stop()


async def test_a_process_that_is_refused_tries_again_slowly_and_says_so_once(clusters: Any) -> None:
    cluster = clusters(TWO)
    loop = asyncio.get_running_loop()
    attempts: list[float] = []

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        attempts.append(loop.time())
        writer.write(encode_greeting(Welcome(1, 1, 0, "go away")))
        writer.close()

    server = await asyncio.start_server(refuse, *cluster.addresses[1])
    with capture_logs() as logs:
        await cluster.start(0)
        await eventually(lambda: len(attempts) >= 6)
        await cluster.stop()
    server.close()
    await server.wait_closed()
    assert attempts[5] - attempts[0] > 5 * BACKOFF_MIN_S
    assert attempts[5] - attempts[3] > 6 * BACKOFF_MIN_S, "it waits longer and longer"
    assert [e["reason"] for e in logs if e["log_level"] == "warning"] == ["refuses this process: go away"]


@pytest.mark.parametrize("bytes_", [b"GET / HTTP/1.1\r\n\r\n", b"\0", b"AMCL\0\1\0\4abcd", b"AMCL\xff\xff\0\0"])
async def test_other_languages_are_refused(clusters: Any, bytes_: bytes) -> None:
    cluster = clusters(TWO)
    await cluster.start(0)
    with capture_logs() as logs:
        peer = BarePeer(cluster.addresses[0])
        await peer.connect()
        peer.writer.write(bytes_)
        await soon(peer.reader.read())
        await peer.close()
    assert [entry["event"] for entry in logs] == ["refused a connection from 127.0.0.1"]
    assert not cluster.hosts[0].failed.done()
    await cluster.stop()


@pytest.mark.parametrize("length", [0, wire.FRAME_BYTES_MAX + 1, 2**32 - 1])
async def test_a_frames_length_is_checked_before_it_is_believed(clusters: Any, length: int) -> None:
    cluster = clusters(TWO)
    await cluster.start(0)
    peer = BarePeer(cluster.addresses[0])
    await peer.greet(hello(1))
    with capture_logs() as logs:
        peer.writer.write(length.to_bytes(4, "big") + bytes(8))
        assert await peer.closed()
    assert [entry["reason"] for entry in logs if entry["log_level"] == "warning"] == [
        f"a frame of {length} bytes; the limit is {wire.FRAME_BYTES_MAX}"
    ]
    await peer.close()
    await cluster.stop()


@pytest.mark.parametrize("payload", [b"\0\xc1", b"\7", b"\0\x92\x63\xa1x"])
async def test_a_message_that_is_none_costs_the_peer_its_link(clusters: Any, payload: bytes) -> None:
    cluster = clusters(TWO)
    await cluster.start(0)
    peer = BarePeer(cluster.addresses[0])
    await peer.greet(hello(1))
    peer.send(1, payload)
    assert await peer.closed()
    await peer.close()
    await eventually(lambda: cluster.scripted(0).resets == [1])
    assert not cluster.hosts[0].failed.done()
    await cluster.stop()


async def test_a_peer_that_breaks_the_protocol_loses_its_link_and_nobody_else_does(clusters: Any) -> None:
    cluster = clusters(THREE)
    await cluster.start()
    await cluster.connected()
    with capture_logs() as logs:
        cluster.scripted(1).script = lambda out: out.send((0,), Note("bad"))
        cluster.hosts[1].submit(AppMessage(bytes(16), (), b"", 1))
        await eventually(lambda: cluster.scripted(0).resets == [1], "told")
        await cluster.connected()
    broken = [entry for entry in logs if entry["event"] == "a peer broke the protocol: its link is closed"]
    assert [(entry["peer"], entry["reason"]) for entry in broken] == [(1, "a bad note")]
    assert not any(entry["event"] == "link down" and entry["peer"] == 2 for entry in logs)
    await cluster.multicast(0, b"still here")
    await eventually(lambda: cluster.payloads(1) == cluster.payloads(2) == [b"still here"])
    await cluster.stop()


@pytest.mark.parametrize("turns", range(5))
async def test_a_connection_that_is_just_accepted_when_the_host_stops_is_closed(clusters: Any, turns: int) -> None:
    """And not left to the garbage collector, which complains."""
    cluster = clusters(TWO)
    await cluster.start(0)
    with socket.create_connection(cluster.addresses[0], timeout=60):
        for _ in range(turns):
            await asyncio.sleep(0)
        cluster.hosts[0]._links.listener.close()
        await cluster.stop()


async def test_our_own_bug_stops_the_host(clusters: Any) -> None:
    cluster = clusters(TWO)
    await cluster.start()
    await cluster.connected()
    cluster.scripted(1).script = lambda out: out.send((0,), Note("bug"))
    cluster.hosts[1].submit(AppMessage(bytes(16), (), b"", 1))
    with capture_logs(), pytest.raises(ZeroDivisionError, match="our own bug"):
        await soon(cluster.hosts[0].failed)
    assert not cluster.hosts[1].failed.done()
    await cluster.stop()


async def test_a_peer_that_does_not_read_holds_up_nobody_else_and_is_dropped(clusters: Any) -> None:
    cluster = clusters(THREE)
    await cluster.start(0, 1)
    connections: list[asyncio.StreamWriter] = []

    def welcome(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        writer.write(encode_greeting(Welcome(1, 1, 0)))

    deaf = await asyncio.start_server(welcome, *cluster.addresses[2])
    out = cluster.hosts[0]._links.outgoing[2]
    out.sender.frames_max = 50
    await eventually(lambda: cluster.hosts[0].status()["peers"]["1"]["connected"] and out.ready)
    for n in range(120):
        await cluster.multicast(0, b"m%d" % n)
    await eventually(lambda: len(cluster.payloads(1)) == 120)
    await eventually(lambda: cluster.scripted(0).resets == [2, 2])
    assert out.sender.epoch == 2
    assert out.sender.queued <= 50
    for writer in connections:
        writer.close()
    deaf.close()
    await deaf.wait_closed()
    await cluster.start(2)
    await eventually(lambda: len(cluster.payloads(2)) == 120, "fed from a journal")
    await cluster.multicast(0, b"more")
    await eventually(lambda: cluster.payloads(2) == cluster.payloads(0))
    await cluster.stop()


async def test_what_a_link_does_not_take_at_once_waits_and_arrives_in_order(clusters: Any) -> None:
    cluster = clusters(TWO)
    await cluster.start(0)
    payloads = [bytes([n]) * 300_000 for n in range(40)]
    await asyncio.gather(*(cluster.multicast(0, p) for p in payloads))
    await cluster.start(1)
    await eventually(lambda: len(cluster.payloads(1)) == 40)
    assert cluster.payloads(1) == payloads
    await cluster.stop()


async def test_a_name_that_nobody_looks_up_holds_up_nothing_else(
    clusters: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often its peer is dialled."""
    cluster, answered = clusters(TWO), threading.Event()
    looked: list[str] = []
    dialled: list[bool] = []
    there = socket.getaddrinfo

    def hangs(host: Any, *others: Any, **named: Any) -> Any:
        if host == "nowhere":
            looked.append(host)
            assert answered.wait(60)
            host = "127.0.0.1"
        return there(host, *others, **named)

    monkeypatch.setattr(socket, "getaddrinfo", hangs)
    monkeypatch.setattr(outgoing, "CONNECT_TIMEOUT_S", 0.001)
    monkeypatch.setattr(outgoing, "BACKOFF_MIN_S", 0.001)
    monkeypatch.setattr(outgoing, "BACKOFF_MAX_S", 0.001)
    connected = Engine.connected
    monkeypatch.setattr(Engine, "connected", lambda self, peer, up: (dialled.append(up), connected(self, peer, up))[1])
    addresses = dict(cluster.addresses)
    cluster.addresses[1] = ("nowhere", addresses[1][1])
    await cluster.start(0)
    try:
        await eventually(lambda: len(dialled) > 40, "it is dialled again and again")
        await asyncio.wait_for(asyncio.to_thread(int), 20)
        assert looked == ["nowhere"]
        monkeypatch.setattr(outgoing, "CONNECT_TIMEOUT_S", 5.0)
    finally:
        answered.set()
    cluster.addresses[1] = addresses[1]
    await cluster.start(1)
    await cluster.connected()
