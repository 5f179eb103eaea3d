"""Live hosts for tests: nothing of them stays behind."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from multicast.types import Topology
from tests.multicast.live import BarePeer, Cluster


@pytest.fixture
async def nothing_is_left_over(caplog: pytest.LogCaptureFixture) -> AsyncIterator[None]:
    """After every test: no task, no thread of ours, no complaint of asyncio."""
    with caplog.at_level(logging.WARNING, "asyncio"):
        yield
        await asyncio.sleep(0)
        gc.collect()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
    assert not [t for t in tasks if "link" in t.get_name() or "host" in t.get_name()]
    assert not [t for t in threading.enumerate() if t.name == "journal-writer"]
    assert not [r.getMessage() for r in caplog.records if r.name == "asyncio"]


@pytest.fixture
async def clusters(tmp_path: Path) -> AsyncIterator[Any]:
    """Makes clusters in a directory of their own, and stops what a failed test has left running."""
    made: list[Cluster] = []

    def make(topology: Topology, protocol: str | None = None, **options: Any) -> Cluster:
        made.append(Cluster(tmp_path, topology, protocol, **options))
        return made[-1]

    yield make
    for peer in list(BarePeer.connected):
        await peer.close()
    for cluster in made:
        await cluster.stop()
