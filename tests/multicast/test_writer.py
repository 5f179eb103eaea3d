"""Who writes the journal when: the loop itself if that costs it nothing, its thread otherwise, and in order."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import AsyncIterator

import pytest

from multicast.disk import DiskFull
from multicast.journal import Journal
from multicast.recorder import Recorder
from multicast.records import Put
from multicast.runtime import writer as writer_module
from multicast.runtime.writer import Writer
from multicast.simulation.disk import SimulatedDisk
from tests.multicast.live import eventually


class Watched(SimulatedDisk):
    """Notes which thread syncs, once the gate is open; fails if told to."""

    def __init__(self) -> None:
        super().__init__()
        self.by_loop: list[bool] = []
        self.full = 0
        self.gate = threading.Event()
        self.gate.set()

    def append(self, name: str, data: bytes) -> None:
        super().append(name, data)
        if self.full:
            raise OSError(self.full, "no room")

    def sync(self, name: str) -> None:
        assert self.gate.wait(60)
        super().sync(name)
        self.by_loop.append(threading.current_thread() is threading.main_thread())


class Bench:
    """A writer that has written once, so that it knows how quick its disk is."""

    def __init__(self, to_disk: bool = True) -> None:
        self.disk = Watched()
        self.journal = Journal(self.disk, b"c" * 16, 0, 1)
        self.flushed: list[int] = []
        self.failed: list[BaseException] = []
        self.told: list[bool] = []
        self.writer = Writer(self.journal, to_disk, self.flushed.append, self.failed.append, self._tell)
        self.number = 0
        self.recorder = Recorder()

    def _tell(self) -> None:
        self.told.append(self.writer.hangs)

    def put(self, size: int = 10) -> None:
        self.number += 1
        self.recorder.record(Put(b"key", bytes(size)))
        self.writer.put(self.number, self.recorder.take(self.number))

    async def begin(self) -> None:
        self.writer.start()
        self.put()
        self.writer.flush(idle=True)
        await eventually(lambda: self.flushed == [1])
        self.disk.by_loop.clear()


@pytest.fixture
async def bench(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    monkeypatch.setattr(writer_module, "QUICK_US", 1 << 60)
    bench = Bench()
    await bench.begin()
    yield bench
    bench.disk.gate.set()
    await bench.writer.close()


async def test_an_idle_loop_writes_itself_and_knows_at_once(bench: Bench) -> None:
    bench.put()
    bench.put()
    assert bench.flushed == [1]
    bench.writer.flush(idle=True)
    assert bench.flushed == [1, 3]
    assert bench.journal.synced == bench.recorder.offset
    assert bench.disk.by_loop == [True]


async def test_a_busy_loop_does_not_write(bench: Bench) -> None:
    bench.put()
    bench.writer.flush(idle=False)
    assert bench.flushed == [1]
    await eventually(lambda: bench.flushed == [1, 2])
    assert bench.disk.by_loop == [False]


async def test_the_loop_waits_for_no_disk_that_was_slow(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "QUICK_US", 0)
    bench.put()
    bench.writer.flush(idle=True)
    await eventually(lambda: bench.flushed == [1, 2])
    monkeypatch.setattr(writer_module, "QUICK_US", 1 << 60)
    bench.put()
    bench.writer.flush(idle=True)
    assert bench.disk.by_loop == [False, True], "and trusts it again once it was quick"


async def test_the_loop_does_not_write_much(bench: Bench) -> None:
    bench.put(writer_module.QUICK_BYTES)
    bench.writer.flush(idle=True)
    await eventually(lambda: bench.flushed == [1, 2])
    assert bench.disk.by_loop == [False]


async def test_what_the_thread_has_begun_comes_first(bench: Bench) -> None:
    bench.disk.gate.clear()
    bench.put()
    bench.writer.flush(idle=False)
    bench.put()
    bench.writer.flush(idle=True)
    assert bench.flushed == [1]
    bench.disk.gate.set()
    await eventually(lambda: bench.flushed[-1] == 3)
    assert not any(bench.disk.by_loop)
    assert bench.writer.pending_bytes == 0
    bench.put()
    bench.writer.flush(idle=True)
    assert bench.flushed[-1] == 4


async def test_a_disk_that_hangs_is_told_of_and_when_it_does_no_longer(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "LOOK_SECONDS", 0.001)
    monkeypatch.setattr(writer_module, "HANGS_US", 60_000_000)
    bench.disk.gate.clear()
    bench.put()
    bench.writer.flush(idle=False)
    await asyncio.sleep(0.02)
    assert bench.told == [], "a slow one"
    monkeypatch.setattr(writer_module, "HANGS_US", 1_000)
    await eventually(lambda: bench.told == [True])
    bench.disk.gate.set()
    await eventually(lambda: bench.told == [True, False])
    await eventually(lambda: bench.flushed == [1, 2])
    await eventually(lambda: bench.writer._looking is None, "nobody looks any more")


async def test_what_nobody_needs_is_written_all_the_same(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "LAZY_SECONDS", 0.001)
    bench.put()
    await eventually(lambda: bench.flushed == [1, 2])
    bench.put()
    await eventually(lambda: bench.flushed == [1, 2, 3])


async def test_without_a_sync_nothing_is_put_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "LAZY_SECONDS", 1e9)
    bench = Bench(to_disk=False)
    bench.writer.start()
    bench.put()
    await eventually(lambda: bench.flushed == [1])
    assert bench.journal.synced == bench.recorder.offset
    assert bench.disk.unsynced
    await bench.writer.close()


async def test_closing_writes_what_was_put(bench: Bench) -> None:
    bench.put()
    await bench.writer.close()
    assert bench.journal.synced == bench.recorder.offset
    await asyncio.sleep(0)
    assert bench.flushed == [1, 2]


async def test_after_a_failure_nothing_is_vouched_for(bench: Bench) -> None:
    bench.disk.failing = True
    bench.put()
    bench.writer.flush(idle=True)
    assert [type(error) for error in bench.failed] == [OSError]
    bench.disk.failing = False
    bench.put()
    bench.writer.flush(idle=True)
    await bench.writer.close()
    assert bench.flushed == [1]


@pytest.mark.parametrize("why", [errno.ENOSPC, errno.EDQUOT])
async def test_on_a_full_disk_nothing_is_vouched_for_until_there_is_room(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, why: int
) -> None:
    monkeypatch.setattr(writer_module, "FULL_SECONDS", 0.001)
    bench.disk.full = why
    bench.put()
    bench.writer.flush(idle=True)
    bench.put()
    bench.writer.flush(idle=True)
    await eventually(lambda: bench.writer.full)
    assert (bench.flushed, bench.failed) == ([1], [])
    bench.disk.full = 0
    await eventually(lambda: bench.flushed[-1] == 3)
    assert not bench.writer.full and not bench.failed
    assert bench.journal.synced == bench.recorder.offset
    assert Journal(bench.disk, b"c" * 16, 0, 1).end == bench.recorder.offset


async def test_who_ends_does_not_wait_for_room(bench: Bench) -> None:
    bench.disk.full = errno.ENOSPC
    bench.put()
    bench.writer.no_more_waiting()
    await bench.writer.close()
    await asyncio.sleep(0)
    assert ([type(error) for error in bench.failed], bench.flushed) == ([DiskFull], [1])


async def test_who_has_ended_with_an_error_does_not_look_at_its_disk_any_more(bench: Bench) -> None:
    bench.disk.failing = True
    bench.put()
    await bench.writer.close()
    await eventually(lambda: bench.failed)
    assert bench.writer._looking is None or bench.writer._looking.cancelled()
