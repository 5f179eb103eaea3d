"""The locust file, headless and in its own process: locust replaces the sockets of whatever process it is in."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from tests.client_sdk.fake import FakeCluster

ROOT = Path(__file__).parents[2]


async def locust(host: str) -> tuple[int | None, str]:
    command = [
        *(sys.executable, "-m", "locust", "-f", str(ROOT / "workloads" / "locustfile.py"), "--headless"),
        *("-u", "4", "-r", "4", "-t", "2s", "--host", host, "--only-summary"),
    ]
    process = await asyncio.create_subprocess_exec(
        *command, cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    text, _ = await process.communicate()
    return process.returncode, text.decode()


@pytest.mark.timeout(60)
async def test_a_good_cluster_gives_no_failure() -> None:
    async with FakeCluster() as cluster:
        status, text = await locust(cluster.urls[0])
        assert status == 0, text
        assert sum(int(cluster.rows.get(b"locust/account/%d" % i, (b"0",))[0]) for i in range(200)) == 0
        for name in ("PUT /v1/kv/{key}", "GET /v1/kv/{key}", "POST /v1/txn transfer"):
            assert name in text
        assert all(cluster.replicas[leader].seen for leader in (0, 2))


@pytest.mark.timeout(60)
async def test_refusals_are_failures_under_their_own_name() -> None:
    async with FakeCluster() as cluster:
        for replica in cluster.replicas:
            replica.always = "not_ready"
        status, text = await locust(cluster.urls[0])
        assert status == 1, text
        assert "503 not_ready, outcome not_applied" in text
