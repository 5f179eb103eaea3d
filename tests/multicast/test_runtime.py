"""The live host over real TCP and real files."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from multicast import checkpoint, wire
from multicast.journal import Journal
from multicast.protocol import Handler, Overloaded
from multicast.records import Completed, Delivered, JournalError
from multicast.runtime import DirectoryInUse, FileDisk, HostStopped, local_host
from multicast.runtime import host as host_module
from multicast.runtime import writer as writer_module
from multicast.runtime.clock import Clock
from multicast.types import AppMessage, Topology, new_message_id
from tests.multicast.live import CLUSTER, DEADLINE_S, BarePeer, Cluster, eventually, hello, soon
from tests.multicast.scripted import Note
from tests.ports import free_ports

ONE = Topology({0: (0,)})
TWO = Topology({0: (0, 1)})
THREE = Topology({0: (0, 1, 2)})


pytestmark = pytest.mark.usefixtures("nothing_is_left_over")


@pytest.fixture
def never_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No disk is so quick that the loop itself writes."""
    monkeypatch.setattr(writer_module, "QUICK_US", 0)


class SlowDisk(FileDisk):
    """Syncs only while the gate is open; fails if told to."""

    def __init__(self, path: Path):
        super().__init__(path)
        self.gate = threading.Event()
        self.gate.set()
        self.failing = False
        self.syncs = 0

    def sync(self, name: str) -> None:
        assert self.gate.wait(60)
        if self.failing:
            raise OSError(5, "Input/output error")
        self.syncs += 1
        super().sync(name)


# -- the ordinary course ----------------------------------------------------------------------------------------------


async def test_processes_deliver_the_same_over_tcp(clusters: Any) -> None:
    cluster = clusters(THREE)
    await cluster.start()
    await cluster.connected()
    positions = await asyncio.gather(*(cluster.multicast(0, b"m%d" % n) for n in range(200)))
    assert positions == list(range(1, 201))
    await eventually(lambda: all(len(k.delivered) == 200 for k in cluster.keepers.values()))
    assert cluster.payloads(0) == cluster.payloads(1) == cluster.payloads(2) == [b"m%d" % n for n in range(200)]
    status = cluster.hosts[0].status()
    assert (status["position"], status["completed"], status["state"]) == (200, 200, "running")
    assert status["fdatasync_us"]["p50"] > 0
    assert 0 < status["syncs"] < 200, "requests that come together are written together"
    await eventually(lambda: all(p["queued"] == 0 for p in cluster.hosts[0].status()["peers"].values()), "acknowledged")
    await cluster.stop()


async def test_white_box_orders_messages_to_two_groups_alike(clusters: Any) -> None:
    cluster = clusters(Topology.grid(2, 3), "white_box", clock="hybrid")
    await cluster.start()
    await cluster.connected()
    await asyncio.gather(
        *(cluster.multicast(p, b"%d-%d" % (p, n), 0, 1) for n in range(25) for p in range(6)),
        *(cluster.multicast(0, b"a%d" % n, 0) for n in range(25)),
    )
    await eventually(lambda: [len(cluster.payloads(p)) for p in range(6)] == [175, 175, 175, 150, 150, 150])
    both = [[m for m in cluster.payloads(p) if not m.startswith(b"a")] for p in range(6)]
    assert all(b == both[0] for b in both)
    assert cluster.payloads(0) == cluster.payloads(1) == cluster.payloads(2)
    await cluster.stop()


async def test_a_stopped_process_goes_on_where_it_was(clusters: Any) -> None:
    cluster = clusters(ONE)
    await cluster.start()
    for n in range(5):
        await cluster.multicast(0, b"m%d" % n)
    first_life = cluster.hosts[0].engine.incarnation
    await cluster.stop()
    await cluster.start()
    assert cluster.hosts[0].engine.incarnation > first_life
    assert cluster.keepers[0].delivered == [(n + 1, b"m%d" % n, b"done:m%d" % n) for n in range(5)]
    assert await cluster.multicast(0, b"next") == 6
    await cluster.stop()


async def test_a_process_that_was_away_gets_what_it_missed(clusters: Any) -> None:
    cluster = clusters(THREE, "white_box", clock="hybrid")
    await cluster.start()
    await cluster.connected()
    for n in range(20):
        await cluster.multicast(0, b"m%d" % n)
    await cluster.stop(2)
    await asyncio.gather(*(cluster.multicast(0, b"n%d" % n) for n in range(200)))
    await cluster.start(2)
    await eventually(lambda: cluster.payloads(2) == cluster.payloads(0), "caught up")
    await cluster.multicast(0, b"after")
    await eventually(lambda: len(cluster.payloads(2)) == 221)
    await cluster.stop()


async def test_a_frame_is_delivered_once_although_connections_break(clusters: Any) -> None:
    cluster = clusters(TWO)
    await cluster.start()
    await cluster.connected()
    waiting = []
    for n in range(100):
        waiting.append(asyncio.ensure_future(cluster.multicast(0, b"m%d" % n)))
        await asyncio.sleep(0)
        if n % 20 == 10:
            out = cluster.hosts[0]._links.outgoing[1]
            out.abort("test")
            await eventually(lambda out=out: out.ready, "the link is up again")  # type: ignore[misc]
    await asyncio.gather(*waiting)
    await eventually(lambda: len(cluster.payloads(1)) == 100)
    assert cluster.payloads(1) == [b"m%d" % n for n in range(100)]
    assert cluster.scripted(1).resets == cluster.scripted(0).resets == [], "nothing was lost"
    await cluster.stop()


async def test_both_ends_hear_of_a_restart(clusters: Any) -> None:
    cluster = clusters(TWO)
    await cluster.start()
    await cluster.connected()
    await cluster.stop(1)
    await cluster.start(1)
    await cluster.connected()
    assert set(cluster.scripted(0).resets) == {1}
    assert cluster.scripted(1).resets == [], "a new life had nothing to lose"
    await cluster.stop()


async def test_batches_and_flushes_are_reported_in_order(clusters: Any) -> None:
    cluster = clusters(ONE)
    await cluster.start()
    await asyncio.gather(*(cluster.multicast(0, b"m%d" % n) for n in range(50)))
    await cluster.stop()
    numbers = [b.number for b in cluster.batches[0]]
    assert numbers == list(range(1, len(numbers) + 1))
    assert cluster.flushed[0] == sorted(cluster.flushed[0])
    assert cluster.flushed[0][-1] == max(b.number for b in cluster.batches[0] if b.journal)


async def test_the_timer_follows_wake_at(clusters: Any) -> None:
    cluster = clusters(ONE)
    await cluster.start()
    host, protocol = cluster.hosts[0], cluster.scripted(0)
    ticks: list[int] = []

    def on_tick(now: int, out: Any) -> int | None:
        if ticks and now < ticks[0] + 30_000:
            return ticks[0] + 30_000
        ticks.append(now)
        return now + 30_000 if len(ticks) < 2 else None

    protocol.on_tick = on_tick
    host._schedule()
    await eventually(lambda: len(ticks) >= 2)
    assert 30_000 <= ticks[1] - ticks[0] < 25_000_000, "microseconds, and not milliseconds"
    await cluster.stop()


async def test_without_fsync_nothing_waits_for_the_disk(clusters: Any, tmp_path: Path) -> None:
    cluster = clusters(ONE)
    disk = SlowDisk(tmp_path / "0")
    await cluster.start(disk=disk, durability="os")
    await eventually(lambda: cluster.flushed[0] == [1])
    disk.gate.clear()
    assert await cluster.multicast(0, b"m") == 1
    await eventually(lambda: cluster.flushed[0][-1] > 1)
    assert cluster.hosts[0].status()["fdatasync_us"] is None
    await cluster.stop()


async def test_a_lone_message_is_written_by_the_loop_itself(
    clusters: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "QUICK_US", 1 << 60)
    by_loop: list[bool] = []

    class Watched(FileDisk):
        def sync(self, name: str) -> None:
            by_loop.append(threading.current_thread() is threading.main_thread())
            super().sync(name)

    cluster = clusters(ONE, "white_box")
    await cluster.start(disk=Watched(tmp_path / "0"))
    await eventually(lambda: cluster.flushed[0])
    by_loop.clear()
    async with asyncio.timeout(DEADLINE_S):
        while not any(by_loop):  # whenever the loop is late it leaves that to the thread
            await cluster.multicast(0, b"alone")
    await cluster.stop()


async def test_the_protocol_hears_what_is_stable_although_nothing_else_happens(clusters: Any) -> None:
    cluster = clusters(ONE)
    await cluster.start()
    await cluster.multicast(0, b"m")
    await eventually(lambda: 1 in cluster.scripted(0).durable)
    await cluster.stop()


async def test_what_can_wait_is_processed_although_nothing_else_happens(clusters: Any) -> None:
    cluster = clusters(TWO)
    await cluster.start()
    await cluster.connected()
    cluster.scripted(0).handlers[Note] = Handler(lambda *_: None, can_wait=lambda note: True)
    cluster.scripted(1).script = lambda out: out.send((0,), Note("later"))
    cluster.hosts[1].submit(AppMessage(bytes(16), (), b"", 1))
    await eventually(lambda: cluster.scripted(0).heard == [(1, "later")])
    await cluster.stop()


async def test_what_can_ride_leaves_although_nothing_follows_it(
    clusters: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = clusters(TWO)
    await cluster.start()
    await cluster.connected()
    cluster.scripted(1).handlers[Note] = Handler(lambda *_: None, can_ride=lambda note: True)
    monkeypatch.setattr(cluster.scripted(1), "on_message", lambda sender, note, now, out: out.send((0,), Note("alone")))
    cluster.scripted(0).script = lambda out: out.send((1,), Note("ask"))
    cluster.hosts[0].submit(AppMessage(bytes(16), (), b"", 0))
    await eventually(lambda: cluster.scripted(0).heard == [(1, "alone")])
    await cluster.stop()


async def test_the_example_of_the_package(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    delivered: asyncio.Queue[AppMessage] = asyncio.Queue()
    async with local_host(
        "skeen", ONE, 0, tmp_path / "data", {0: ("127.0.0.1", port)},
        on_deliver=lambda position, message, timestamp: delivered.put_nowait(message),
    ) as host:
        host.submit(AppMessage(new_message_id(host.now(), 42), (0,), b"hello", origin=0))
        assert (await soon(delivered.get())).payload == b"hello"
    with pytest.raises(HostStopped, match="nothing was done"):
        host.submit(AppMessage(new_message_id(host.now(), 43), (0,), b"hello", origin=0))


async def test_who_gives_wrong_arguments_may_give_others(tmp_path: Path) -> None:
    """The directory was given back."""
    (port,) = free_ports(1)
    for addresses in ({}, {0: ("127.0.0.1", port)}):
        with contextlib.suppress(ValueError):
            async with local_host("skeen", ONE, 0, tmp_path, addresses, on_deliver=lambda *_: None):
                assert addresses
                return
    pytest.fail("it has begun with both or with neither")


async def test_a_restart_tells_what_follows_the_position_that_the_caller_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "GROWTH_BYTES_MIN", 1_000)
    (port,) = free_ports(1)

    async def life(held: int, *numbers: int) -> list[int]:
        heard: list[int] = []
        async with local_host(
            "skeen", ONE, 0, tmp_path, {0: ("127.0.0.1", port)}, position=held,
            on_deliver=lambda position, message, timestamp: heard.append(position),
        ) as host:
            for number in numbers:
                host.submit(AppMessage(new_message_id(host.now(), number), (0,), b"hello", origin=0))
                await eventually(lambda last=[number]: heard[-1:] == last)
            await eventually(lambda: (tmp_path / "checkpoint-0").exists(), "a checkpoint")
        return heard

    assert await life(0, *range(1, 31)) == [*range(1, 31)]
    assert await life(28) == [29, 30]
    assert await life(30, 31) == [31]
    assert await life(0) == [*range(1, 32)]


CHILD = """
import asyncio, sys
from pathlib import Path
from multicast.types import Topology
from tests.multicast.live import Cluster

async def main():
    cluster = Cluster(Path(sys.argv[1]), Topology({0: (0,)}), "skeen")
    await cluster.start()
    async def client(c):
        n = 0
        while True:
            await cluster.multicast(0, b"%d-%d" % (c, n))
            sys.stderr.write(f"{c}-{n}\\n")
            sys.stderr.flush()
            n += 1
    await asyncio.gather(*(client(c) for c in range(8)))

asyncio.run(main())
"""


async def test_what_was_answered_survives_kill_9(clusters: Any, tmp_path: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(tmp_path)], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
        cwd=Path(__file__).parent.parent.parent,
    )
    assert child.stderr is not None
    answered = [child.stderr.readline().strip() for _ in range(300)]
    child.send_signal(signal.SIGKILL)
    answered += [line.strip() for line in child.stderr.read().splitlines(keepends=True) if line.endswith("\n")]
    child.stderr.close()
    assert child.wait(60) == -signal.SIGKILL
    assert len(answered) >= 300
    cluster = clusters(ONE, "skeen")
    await cluster.start()
    await cluster.multicast(0, b"after")
    delivered = [p.decode() for p in cluster.payloads(0)]
    await cluster.stop()
    assert set(answered) <= set(delivered)
    assert len(delivered) == len(set(delivered))
    disk = FileDisk(tmp_path / "0")
    journal = Journal(disk, CLUSTER, 0, 0)
    records = [r for _, r in journal.tail(0)]
    disk.close()
    assert [r.message.payload.decode() for r in records if isinstance(r, Delivered)] == delivered
    assert [r.position for r in records if isinstance(r, Completed)] == list(range(1, len(delivered) + 1))


# -- the disk ---------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("never_quick")
async def test_frames_are_acknowledged_only_after_the_flush(clusters: Any, tmp_path: Path) -> None:
    cluster = clusters(TWO)
    disk = SlowDisk(tmp_path / "0")
    await cluster.start(0, disk=disk)
    await eventually(lambda: cluster.flushed[0] == [1])
    peer = BarePeer(cluster.addresses[0])
    assert (await peer.greet(hello(1))).received == 0
    protocol, host = cluster.scripted(0), cluster.hosts[0]
    peer.send(1, host.engine.codec.encode(wire.PROTOCOL, Note("no effect")))
    assert await peer.acknowledgement() == 1, "nothing to write, nothing to wait for"
    disk.gate.clear()
    host.submit(cluster.message(0, b"m"))
    await eventually(lambda: len(cluster.keepers[0].delivered) == 1)
    peer.send(2, host.engine.codec.encode(wire.PROTOCOL, Note("behind a write")))
    await eventually(lambda: len(protocol.heard) == 2)
    await peer.close()
    again = BarePeer(cluster.addresses[0])
    assert (await again.greet(hello(1, first=2))).received == 1, "processed, but what precedes it is not on disk"
    disk.gate.set()
    again.send(2, host.engine.codec.encode(wire.PROTOCOL, Note("behind a write")))
    assert await again.acknowledgement() == 2
    assert [text for _, text in protocol.heard] == ["no effect", "behind a write"]
    await again.close()
    await cluster.stop()


@pytest.mark.usefixtures("never_quick")
async def test_batches_that_come_during_a_sync_are_written_as_one(clusters: Any, tmp_path: Path) -> None:
    cluster = clusters(ONE)
    disk = SlowDisk(tmp_path / "0")
    await cluster.start(disk=disk)
    await eventually(lambda: cluster.flushed[0] == [1])
    disk.gate.clear()
    before = disk.syncs
    for n in range(10):
        assert await cluster.multicast(0, b"m%d" % n) == n + 1
    disk.gate.set()
    await eventually(lambda: cluster.hosts[0].status()["unwritten_bytes"] == 0)
    assert disk.syncs - before <= 2
    await cluster.stop()


@pytest.mark.usefixtures("never_quick")
async def test_a_disk_error_stops_the_host_and_releases_nothing(clusters: Any, tmp_path: Path) -> None:
    cluster = clusters(TWO)
    disk = SlowDisk(tmp_path / "0")
    await cluster.start(0, disk=disk)
    await cluster.start(1)
    await cluster.connected()
    await cluster.multicast(0, b"good")
    await eventually(lambda: cluster.payloads(1) == [b"good"])
    await eventually(lambda: cluster.hosts[0].status()["unwritten_bytes"] == 0, "the thread is done")
    disk.gate.clear()
    disk.failing = True
    await cluster.multicast(0, b"lost")
    waiting = asyncio.ensure_future(cluster.request(0, "nobody answers this"))
    await asyncio.sleep(0)
    with capture_logs() as logs:
        disk.gate.set()
        with pytest.raises(OSError, match="Input/output error"):
            await soon(cluster.hosts[0].failed)
    assert [entry["event"] for entry in logs if entry["log_level"] == "critical"] == ["host failed"]
    with pytest.raises(HostStopped, match="unknown"):
        await soon(waiting)
    with pytest.raises(HostStopped):
        await cluster.request(0, "anything")
    await cluster.stop(0)
    await cluster.start(0)
    await cluster.connected()
    assert cluster.payloads(1) == [b"good"], "the order that waited for the disk was never told"
    await cluster.stop()


@pytest.mark.usefixtures("never_quick")
async def test_no_more_is_taken_than_the_disk_writes(
    clusters: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_module, "UNWRITTEN_BYTES_MAX", 100_000)
    cluster = clusters(TWO)
    disk = SlowDisk(tmp_path / "0")
    await cluster.start(0, disk=disk)
    await cluster.start(1)
    await cluster.connected()
    link = cluster.hosts[0]._links.incoming[1].connection
    disk.gate.clear()
    await cluster.multicast(0, bytes(30_000))
    with pytest.raises(Overloaded, match="the disk does not keep up"):
        await cluster.multicast(0, b"one more")
    assert link._transport.is_reading(), "but peers are heard, or this one would soon not lead any more"
    disk.gate.set()
    await eventually(lambda: cluster.hosts[0].status()["unwritten_bytes"] == 0)
    disk.gate.clear()
    await cluster.multicast(0, bytes(150_000))
    with pytest.raises(Overloaded, match="the disk does not keep up"):
        await cluster.multicast(0, b"one more")
    assert not link._transport.is_reading(), "peers keep their messages"
    disk.gate.set()
    await eventually(lambda: link._transport.is_reading())
    await cluster.multicast(0, b"one more")
    await cluster.stop()


async def test_a_directory_and_a_port_that_are_taken_are_named(clusters: Any, tmp_path: Path) -> None:
    cluster = clusters(ONE)
    await cluster.start()
    with pytest.raises(DirectoryInUse, match=f"{tmp_path}/0 is in use by another process"):
        FileDisk(tmp_path / "0")
    other = Cluster(tmp_path / "other", ONE)
    other.addresses = cluster.addresses
    port = cluster.addresses[0][1]
    with pytest.raises(OSError, match=rf"process 0 cannot listen on 127\.0\.0\.1:{port}: Address already in use"):
        await other.start()
    await cluster.stop()


async def test_a_journal_of_another_cluster_does_not_start(clusters: Any, tmp_path: Path) -> None:
    cluster = clusters(ONE)
    await cluster.start()
    await cluster.stop()
    disk = FileDisk(tmp_path / "0")
    with pytest.raises(JournalError, match="belongs to cluster"):
        Journal(disk, b"d" * 16, 0, 0)
    disk.close()


async def test_a_request_that_is_given_up_is_forgotten(clusters: Any) -> None:
    cluster = clusters(ONE)
    await cluster.start()
    host = cluster.hosts[0]
    waiting = asyncio.ensure_future(cluster.request(0, "nobody answers this"))
    await eventually(lambda: host.status()["requests"] == 1)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert host.status()["requests"] == 0
    await cluster.stop()


async def test_stopping_twice_and_without_ever_starting_is_harmless(clusters: Any) -> None:
    cluster = clusters(ONE)
    await cluster.start()
    host = cluster.hosts[0]
    await asyncio.gather(host.stop(), host.stop())
    await host.stop()
    assert host.status()["state"] == "stopped"


# -- the clock --------------------------------------------------------------------------------------------------------


def test_the_clock_begins_at_the_wall_clock_and_then_runs_steadily_whatever_that_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wall, steady = 1_000_000_000, 5_000_000
    monkeypatch.setattr("multicast.runtime.clock.time.clock_gettime_ns", lambda _: steady * 1000)
    clock = Clock(lambda: wall)
    assert clock.now() == 1_000_000_000
    wall, steady = wall + 300_000_000, steady + 100
    assert (clock.now(), clock.wall()) == (1_000_000_100, 1_300_000_000)
    wall, steady = wall - 400_000_000, steady + 1000
    assert (clock.now(), clock.wall()) == (1_000_001_100, 900_000_000)
    steady -= 500
    assert clock.now() == 1_000_001_100, "never back"


