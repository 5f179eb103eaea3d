"""How long clients of a shard wait when its leader is killed, and whether leaders change without need.

    python -m workloads.failover [--protocol white_box] [--kills 20] [--restarts 20] [--clients 8]
    python -m workloads.failover --kills 0 --restarts 0 --slow-minutes 10 [--sync-ms 300] [--slow-clients 64]

A cluster of 2 shards of 3 replicas on this machine. Clients write without pause. Then the leader of a shard is killed
with -9, again and again; what is told is the longest time between two answers of that shard around each kill. After
that replicas that do not lead are killed and started again, one after the other. At last, in a cluster of its own,
every sync of every journal takes `--sync-ms` longer for so many minutes, under more clients than such disks can serve.
Exit status 0 if the median of the gaps is below 0.6 s, none is above 1.5 s, no restart of a non-leader has changed a
leader, and slow disks have changed at most one. Figures of a busy machine are worth little: the load average stands
beside them.
"""

from __future__ import annotations

import argparse
import asyncio
import bisect
import itertools
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec

from client_sdk import AsyncClient, KvError
from kvstore.api.shard_map import ShardMap
from workloads.bench.clusters import UP_SECONDS, ClusterFailed, fresh_cluster
from workloads.nemesis.cluster import Cluster, NemesisFailed, until

SHARDS, REPLICAS = 2, 3
MEDIAN_SECONDS, MOST_SECONDS = 0.6, 1.5
WATCHED_SECONDS = 4.0
SETTLE_SECONDS = 1.5
SLOW_CHANGES_MAX = 1
POLL_SECONDS = 0.5
TELL_SECONDS = 30.0


class Failover:
    """One run on the running cluster of this directory. answers: of each shard, when its clients had theirs."""

    def __init__(self, directory: Path):
        self.directory = directory
        self.failed = 0
        self.answers: dict[int, list[float]] = {shard: [] for shard in range(SHARDS)}

    # -- the cluster --------------------------------------------------------------------------------------------------

    def status(self) -> list[dict[str, Any]]:
        """Of every replica, as `kvstore cluster status` says it."""
        command = (sys.executable, "-m", "kvstore", "cluster", "status", str(self.directory), "-o", "json")
        text = subprocess.run(command, check=False, capture_output=True, timeout=UP_SECONDS).stdout
        return msgspec.json.decode(text, type=list[dict[str, Any]])

    def leaders(self) -> dict[int, tuple[int, str]]:
        """Of each shard: its leader and its ballot, as the leader says."""
        found: dict[int, tuple[int, str]] = {}
        for line in self.status():
            if line["role"] == "leader":
                details = line["details"]["details"]
                found[line["shard"]] = line["id"], details.get("ballot", details.get("epoch", ""))
        return found

    def kill(self, replica: int) -> float:
        """When it was."""
        [pid] = [line["pid"] for line in self.status() if line["id"] == replica]
        os.kill(pid, signal.SIGKILL)
        return time.monotonic()

    async def restart(self) -> None:
        """Whoever is down, until all are ready."""
        up = (sys.executable, "-m", "kvstore", "cluster", "up", str(self.directory), "--detach")
        process = await asyncio.create_subprocess_exec(*up, stdout=subprocess.DEVNULL, start_new_session=True)
        await asyncio.wait_for(process.wait(), UP_SECONDS)
        await asyncio.sleep(SETTLE_SECONDS)

    # -- clients ------------------------------------------------------------------------------------------------------

    async def write(self, shard: int, number: int) -> None:
        """Without pause, to keys of this shard, until cancelled."""
        async with AsyncClient(self.directory, timeout=10.0) as client:
            shard_of = ShardMap.from_json((await client.cluster())["shard_map"]).shard_of
            keys = [k for i in range(1000) if shard_of(k := b"c%d-%d" % (number, i)) == shard][:50]
            for key in itertools.cycle(keys):
                try:
                    await client.put(key, b"v")
                except KvError as error:
                    self.failed += 1
                    print(f"  a write failed: {error}", flush=True)
                else:
                    self.answers[shard].append(time.monotonic())

    def longest_gap(self, shard: int, since: float) -> float:
        """Between two answers of this shard, from the last before `since` on."""
        answers = self.answers[shard]
        first = max((i for i, at in enumerate(answers) if at <= since), default=0)
        times = [*answers[first:], time.monotonic()]
        return max(b - a for a, b in itertools.pairwise(times))

    # -- what is done -------------------------------------------------------------------------------------------------

    async def kill_leader(self, shard: int) -> float:
        """Seconds without an answer."""
        leader, _ = (await asyncio.to_thread(self.leaders))[shard]
        killed = await asyncio.to_thread(self.kill, leader)
        await asyncio.sleep(WATCHED_SECONDS)
        gap = self.longest_gap(shard, killed)
        await self.restart()
        return gap

    async def restart_another(self, shard: int, turn: int) -> bool:
        """Whether that left all leaders in place."""
        before = await asyncio.to_thread(self.leaders)
        others = [r for r in range(shard * REPLICAS, (shard + 1) * REPLICAS) if r != before[shard][0]]
        victim = others[turn // SHARDS % len(others)]
        await asyncio.to_thread(self.kill, victim)
        await self.restart()
        after = await asyncio.to_thread(self.leaders)
        if after != before:
            print(f"  after a restart of replica {victim}: {before} became {after}", flush=True)
        return after == before

    async def run(self, clients: int, kills: int, restarts: int) -> bool:
        """Whether all was as it should be."""
        shards = range(SHARDS)
        writers = [asyncio.create_task(self.write(shards[n % SHARDS], n)) for n in range(clients)]
        await asyncio.sleep(SETTLE_SECONDS)
        gaps: list[float] = []
        for turn in range(kills):
            gaps.append(await self.kill_leader(shards[turn % SHARDS]))
            load = os.getloadavg()[0]
            print(f"kill {turn + 1}: {gaps[-1]:.2f} s without an answer (load average {load:.1f})", flush=True)
        changed = 0
        for turn in range(restarts):
            changed += not await self.restart_another(shards[turn % SHARDS], turn)
        for writer in writers:
            writer.cancel()
        await asyncio.gather(*writers, return_exceptions=True)
        if gaps:
            print(f"{kills} kills: median {statistics.median(gaps):.2f} s, longest {max(gaps):.2f} s")
        print(f"{restarts} restarts of replicas that do not lead: leaders changed after {changed}")
        quick = not gaps or (statistics.median(gaps) < MEDIAN_SECONDS and max(gaps) <= MOST_SECONDS)
        return quick and not changed


class SlowDisks:
    """Clients on a cluster whose every sync takes long, and who are answered all the same. changed: how often a shard
    had another leader, or a ballot."""

    def __init__(self, cluster: Cluster, sync_ms: int):
        self.cluster = cluster
        self.sync_ms = sync_ms
        self.changed = 0
        self._led: dict[int, tuple[int, str]] = {}

    async def look(self) -> None:
        """Who leads each shard now, and whether that is new."""
        for shard in range(SHARDS):
            leader = await self.cluster.leader(shard)
            facts = await leader.facts() if leader else {}
            if leader is None or facts.get("role") != "leader":
                continue
            now = leader.id, str(facts["details"].get("ballot", facts["details"].get("epoch", "")))
            before = self._led.setdefault(shard, now)
            if now != before:
                print(f"  shard {shard}: leader and ballot {before} became {now}", flush=True)
                self.changed += 1
                self._led[shard] = now

    async def run(self, clients: int, minutes: float) -> bool:
        """Whether leaders stayed, and each shard answered."""
        for replica in self.cluster.replicas.values():
            await replica.start()
        for shard in range(SHARDS):
            if not await until(lambda: self.cluster.is_whole(shard), UP_SECONDS):  # noqa: B023 - awaited at once
                raise NemesisFailed(f"shard {shard} is not ready after {UP_SECONDS:g} s")
        load = Failover(self.cluster.directory)
        writers = [asyncio.create_task(load.write(n % SHARDS, n)) for n in range(clients)]
        try:
            await asyncio.sleep(SETTLE_SECONDS)
            await self.look()
            for replica in self.cluster.replicas.values():
                replica.slow_syncs(self.sync_ms)
            began = told = time.monotonic()
            while (now := time.monotonic()) < began + minutes * 60:
                await self.look()
                if now >= told + TELL_SECONDS:
                    told = now
                    rate, average = self._answered(load, now), os.getloadavg()[0]
                    text = f"{rate} answers in the last second, {self.changed} changes of leader"
                    print(f"  {now - began:.0f} s: {text} (load average {average:.1f})", flush=True)
                await asyncio.sleep(POLL_SECONDS)
        finally:
            for writer in writers:
                writer.cancel()
            await asyncio.gather(*writers, return_exceptions=True)
            for replica in self.cluster.replicas.values():
                replica.slow_syncs(0)
        slow = [sum(at >= began for at in load.answers[shard]) for shard in range(SHARDS)]
        answers = sum(slow)
        text = f"{answers} writes, {load.failed} failed, {self.changed} changes of leader"
        print(f"{minutes:g} minutes with syncs that take {self.sync_ms} ms longer, {clients} clients: {text}")
        return self.changed <= SLOW_CHANGES_MAX and all(slow)

    @staticmethod
    def _answered(load: Failover, now: float) -> int:
        return sum(len(times) - bisect.bisect_left(times, now - 1) for times in load.answers.values())


async def slow_disks(protocol: str, sync_ms: int, clients: int, minutes: float) -> bool:
    """Whether leaders stayed, in a new cluster."""
    with tempfile.TemporaryDirectory(prefix="kvstore-slow-disks-") as text:
        async with Cluster(Path(text) / "cluster", protocol, SHARDS, REPLICAS) as cluster:
            return await SlowDisks(cluster, sync_ms).run(clients, minutes)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m workloads.failover", description=__doc__)
    parser.add_argument("--protocol", default="white_box")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--restarts", type=int, default=20)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--slow-minutes", type=float, default=0.0, help="of slow syncs; 0: none")
    parser.add_argument("--sync-ms", type=int, default=300)
    parser.add_argument("--slow-clients", type=int, default=64)
    given = parser.parse_args()
    if min(given.clients, given.slow_clients) < SHARDS:
        parser.error(f"--clients, --slow-clients: at least {SHARDS}, one for each shard")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the cluster is stopped then, too
    good = True
    try:
        if given.kills or given.restarts:
            with fresh_cluster(given.protocol, SHARDS, REPLICAS) as directory:
                good = asyncio.run(Failover(directory).run(given.clients, given.kills, given.restarts))
        if given.slow_minutes:
            good &= asyncio.run(slow_disks(given.protocol, given.sync_ms, given.slow_clients, given.slow_minutes))
    except (ClusterFailed, NemesisFailed) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("interrupted; the cluster is stopped", file=sys.stderr)
        sys.exit(130)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
