"""One live replica, without HTTP: what it commits to LMDB."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from kvstore import config, host
from kvstore.api.model import Get, Put, Transaction
from kvstore.core.bundles import NO_ID
from kvstore.core.messages import Answered
from multicast.runtime.failpoints import Failpoints, Faults
from tests.kvstore.live import executed, make_cluster
from tests.multicast.live import eventually
from tests.ports import free_base_port

PUT, GET = Transaction((), (Put(b"k", b"v"),)), Transaction((), (Get(b"k"),))


async def test_reads_that_nobody_can_repeat_write_nothing_but_now_and_then_the_position(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "COMMIT_POSITIONS", 10)
    made = config.new_cluster(
        shards=1, replicas=1, protocol="skeen", cluster_id="c0" * 16, base_port=free_base_port(1)
    )
    limits = msgspec.structs.replace(made.limits, commit_interval_ms=10)
    config.create(tmp_path, msgspec.structs.replace(made, limits=limits))
    live = host.LiveReplica(tmp_path, config.load(tmp_path), 0)
    await live.start()
    try:
        assert isinstance(await executed(live, live.new_message_id(), PUT), Answered)
        await eventually(lambda: live._store.position == 1, "the put is committed")
        for _ in range(9):
            assert isinstance(await executed(live, NO_ID, GET), Answered)
            assert live.status()["write_buffer_bytes"] == 0
        assert live._store.position == 1
        assert isinstance(await executed(live, NO_ID, GET), Answered)
        await eventually(lambda: live._store.position == 11, "the position is committed")
    finally:
        await live.stop()


async def test_a_replica_whose_buffer_is_full_takes_no_more_and_the_others_go_on(tmp_path: Path) -> None:
    """Its commits take long; once they are done it has everything."""
    made = make_cluster(tmp_path, 1, 3, "white_box", buffer_bytes_max=1 << 20, commit_bytes=1 << 16)
    (tmp_path / "faults").write_bytes(msgspec.json.encode(Faults(commit_ms=400)))
    slow = host.LiveReplica(tmp_path, made, 2, Failpoints(tmp_path / "faults"))
    replicas = [*(host.LiveReplica(tmp_path, made, number) for number in (0, 1)), slow]
    held = []
    try:
        await asyncio.gather(*(replica.start() for replica in replicas))
        await eventually(lambda: not any(replica.unready() for replica in replicas), "all are ready")
        for number in range(50):
            put = Transaction((), (Put(b"k%d" % number, bytes(100_000)),))
            assert isinstance(await executed(replicas[0], replicas[0].new_message_id(), put), Answered)
            held.append(slow.status()["write_buffer_bytes"])
        assert slow.overload() and slow.status()["completed"] < 50
        while slow.status()["completed"] < 50:
            held.append(slow.status()["write_buffer_bytes"])
            await eventually(lambda: slow.status()["completed"] == 50 or not slow.overload(), "it goes on")
            await asyncio.sleep(0)
        assert max(held) < 3 << 20
    finally:
        await asyncio.gather(*(replica.stop() for replica in replicas))
