"""The locust file, headless and in its own process: locust replaces the sockets of whatever process it is in."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from tests.client_sdk.fake import FakeCluster

ROOT = Path(__file__).parents[2]


async def locust(cluster: FakeCluster, enough: Callable[[Counter[str]], bool]) -> tuple[int | None, str]:
    """Ended when there have been enough requests, by method."""
    command = [
        *(sys.executable, "-m", "locust", "-f", str(ROOT / "workloads" / "locustfile.py"), "--headless"),
        *("-u", "4", "-r", "4", "-t", "150s", "--host", cluster.urls[0], "--only-summary"),
    ]
    process = await asyncio.create_subprocess_exec(
        *command, cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    ended = asyncio.create_task(process.communicate())
    while not ended.done():
        if enough(Counter(method for replica in cluster.replicas for method, _, _ in replica.seen)):
            process.terminate()
            break
        await asyncio.sleep(0.05)
    text, _ = await ended
    return process.returncode, text.decode()


async def test_a_good_cluster_gives_no_failure() -> None:
    async with FakeCluster() as cluster:
        status, text = await locust(cluster, lambda seen: min(seen["GET"], seen["PUT"], seen["POST"]) > 20)
        assert status == 0, text
        assert sum(int(cluster.rows.get(b"locust/account/%d" % i, (b"0",))[0]) for i in range(200)) == 0
        for name in ("PUT /v1/kv/{key}", "GET /v1/kv/{key}", "POST /v1/txn transfer"):
            assert name in text
        assert all(cluster.replicas[leader].seen for leader in (0, 2))


async def test_refusals_are_failures_under_their_own_name() -> None:
    async with FakeCluster() as cluster:
        for replica in cluster.replicas:
            replica.always = "not_ready"
        status, text = await locust(cluster, lambda seen: seen.total() > 20)
        assert status == 1, text
        assert "503 not_ready, outcome not_applied" in text
