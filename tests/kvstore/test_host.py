"""One live replica, without HTTP: what it commits to LMDB."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from kvstore import config, host
from kvstore.api.model import Get, Put, Transaction
from kvstore.core.bundles import NO_ID
from kvstore.core.messages import Answered
from tests.kvstore.live import executed
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
