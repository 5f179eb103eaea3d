"""The replicas of a cluster as processes of this one, and what can be done to each: start, stop, kill, pause, rob.

Every replica runs on a view of its own of the cluster's directory, `views/ID`, in which the others stand at the
proxies' addresses. What is to go wrong inside it stands in `views/ID/faults` (`multicast.runtime.failpoints`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec

from client_sdk import AsyncClient, KvError
from kvstore.api.shard_map import ShardMap
from multicast.runtime.failpoints import Faults
from multicast.types import GroupId, ProcessId
from workloads.nemesis.network import Network
from workloads.ports import free_base_port

STOP_SECONDS = 20.0
FACTS_SECONDS = 0.5
POLL_SECONDS = 0.05
ROOM = 40
"""Ports for so many that are added later, which take the next ones."""
LIMITS = {"segment_bytes_max": 1 << 20, "commit_interval_ms": 250}
"""Small, so that a short run meets what a long one would."""


class NemesisFailed(Exception):
    """The run cannot go on; one line."""


class Replica:
    """One replica over all its lives. paused: it stands still. ended_as_meant: its present life may end, or has."""

    def __init__(self, id: ProcessId, shard: GroupId, url: str, directory: Path):
        self.id = id
        self.shard = shard
        self.url = url
        self.directory = directory
        self.home = directory / "replicas" / str(id)
        self.view = directory / "views" / str(id)
        self.log = directory / "logs" / str(id)
        self.running: asyncio.subprocess.Process | None = None
        self.may_end = True
        self._client = AsyncClient(url, timeout=FACTS_SECONDS, attempt_timeout=FACTS_SECONDS)

    @property
    def up(self) -> bool:
        return self.running is not None and self.running.returncode is None

    def fail(self, faults: Faults) -> None:
        """From now on this is wrong inside it; `Faults()`: nothing."""
        beside = self.view / "faults.new"
        beside.write_bytes(msgspec.json.encode(faults))
        os.replace(beside, self.view / "faults")

    def slow_syncs(self, sync_ms: int) -> None:
        """From now on every sync of its journal takes so many milliseconds longer, and nothing else is wrong."""
        self.fail(Faults(sync_ms=sync_ms))

    async def facts(self) -> dict[str, Any]:
        """What it says of itself (`/v1/cluster`), and with it its `leader`; empty if it does not answer."""
        try:
            return dict((await self._client.cluster(self.url))["replica"])
        except KvError:
            return {}

    async def shard_map(self) -> ShardMap | None:
        """As it knows it; None if it does not answer."""
        try:
            return ShardMap.from_json((await self._client.cluster(self.url))["shard_map"])
        except KvError:
            return None

    async def start(self, *options: str) -> None:
        """As a process in a session of its own: Ctrl-C in a terminal reaches only us, and we end it."""
        arguments = ("serve", "--dir", str(self.view), "--replica", str(self.id))
        with open(self.log, "ab") as log:
            self.running = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "kvstore", *arguments, "--failpoints", str(self.view / "faults"), *options,
                stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        self.may_end = False

    def send(self, number: signal.Signals) -> None:
        """A signal, if it runs."""
        if self.running is not None and self.running.returncode is None:
            self.running.send_signal(number)

    async def kill(self) -> None:
        """SIGKILL; it is gone when this returns."""
        self.may_end = True
        self.send(signal.SIGKILL)
        await self.ended(STOP_SECONDS)

    async def stop(self) -> int | None:
        """SIGTERM, and its exit status; None: it had to be killed."""
        self.may_end = True
        self.send(signal.SIGTERM)
        status = await self.ended(STOP_SECONDS)
        if status is None:
            await self.kill()
        return status

    async def ended(self, seconds: float) -> int | None:
        """Its exit status, waiting for its end for so long; None: it still runs."""
        assert self.running is not None
        with contextlib.suppress(TimeoutError):
            return await asyncio.wait_for(self.running.wait(), seconds)
        return None

    def last_words(self) -> str:
        """The last error in its log, or its last line."""
        lines = [line for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        told = [line for line in lines if line.startswith("error: ")]
        return (told or lines or ["nothing in its log"])[-1][:300]

    async def close(self) -> None:
        await self.kill() if self.up else None
        await self._client.close()


class Cluster:
    """A new cluster in `directory`, which is made: `async with`. No process of it is left when the block ends."""

    def __init__(self, directory: Path, protocol: str, shards: int, replicas: int, durability: str = "fsync"):
        self.directory = directory
        self._durability = durability
        self.protocol = protocol
        self.shards = shards
        self.replicas_per_shard = replicas
        self.replicas: dict[ProcessId, Replica] = {}
        self.network = Network({})

    async def __aenter__(self) -> Cluster:
        await self._make()
        await self.network.start()
        for replica in self.replicas.values():
            self._make_view(replica)
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.shield(self._close())

    async def _close(self) -> None:
        for replica in self.replicas.values():
            await replica.close()
        await self.network.stop()

    async def _make(self) -> None:
        shards, replicas = self.shards, self.replicas_per_shard
        code = await execute(
            "kvstore", "cluster", "init", str(self.directory), "--shards", str(shards), "--replicas", str(replicas),
            "--protocol", self.protocol, "--durability", self._durability,
            "--base-port", str(free_base_port(shards * replicas + ROOM, apart=True)),
        )  # fmt: skip
        if code:
            raise NemesisFailed(f"kvstore cluster init: exit status {code}")
        path = self.directory / "cluster.json"
        self._config = msgspec.json.decode(path.read_bytes())
        self._config["limits"] |= LIMITS
        path.write_bytes(msgspec.json.format(msgspec.json.encode(self._config)))
        for one in self._config["replicas"]:
            url = f"http://{one['host']}:{one['http_port']}"
            self.replicas[one["id"]] = Replica(one["id"], one["shard"], url, self.directory)
        self.network = Network({one["id"]: one["peer_port"] for one in self._config["replicas"]})

    def _make_view(self, replica: Replica) -> None:
        replica.view.mkdir(parents=True)
        replica.log.parent.mkdir(exist_ok=True)
        (replica.view / "replicas").symlink_to(Path("..") / ".." / "replicas")
        ports = self.network.addresses(replica.id)
        seen = [{**one, "peer_port": ports[one["id"]]} for one in self._config["replicas"]]
        (replica.view / "cluster.json").write_bytes(msgspec.json.encode({**self._config, "replicas": seen}))
        replica.fail(Faults())

    def members(self, shard: GroupId) -> list[Replica]:
        return [replica for replica in self.replicas.values() if replica.shard == shard]

    async def leader(self, shard: GroupId) -> Replica | None:
        """Who says that it leads; None if nobody does."""
        for replica in self.members(shard):
            if (await replica.facts()).get("role") == "leader":
                return replica
        return None

    async def shard_map(self) -> ShardMap | None:
        """The latest that any replica tells; None if none answers."""
        told = await asyncio.gather(*(replica.shard_map() for replica in self.replicas.values()))
        return max((one for one in told if one is not None), key=lambda one: one.version, default=None)

    async def is_whole(self, shard: GroupId) -> bool:
        """Whether every member is ready and has what all others had when they were asked."""
        facts = await asyncio.gather(*(replica.facts() for replica in self.members(shard)))
        if not all(one.get("ready") for one in facts):
            return False
        reached = max(one["completed"] for one in facts)
        return all([await self._has(replica, reached) for replica in self.members(shard)])

    async def _has(self, replica: Replica, completed: int) -> bool:
        return (await replica.facts()).get("completed", -1) >= completed


async def until(holds: Callable[[], Awaitable[bool]], seconds: float) -> bool:
    """Wait for this; False if it was not so in time."""
    try:
        async with asyncio.timeout(seconds):
            while not await holds():
                await asyncio.sleep(POLL_SECONDS)
    except TimeoutError:
        return False
    return True


async def execute(module: str, *arguments: str) -> int:
    """Run `python -m module`, its output on ours; its exit status. It does not outlive this call."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", module, *arguments, stdin=asyncio.subprocess.DEVNULL, start_new_session=True
    )
    try:
        return await process.wait()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
