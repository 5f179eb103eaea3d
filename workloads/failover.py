"""How long clients of a shard wait when its leader is killed, and whether leaders change without need.

    python -m workloads.failover [--protocol white_box] [--kills 20] [--restarts 20] [--clients 8] [--dir failover-run]

A cluster of 2 shards of 3 replicas on this machine. Clients write without pause. Then the leader of a shard is killed
with -9, again and again; what is told is the longest time between two answers of that shard around each kill. After
that replicas that do not lead are killed and started again, one after the other. Exit status 0 if the median of the
gaps is below 0.6 s, none is above 1.5 s, and no restart of a non-leader has changed a leader. Figures of a busy machine
are worth little: the load average stands beside them.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import shutil
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from client_sdk import AsyncClient, KvError
from kvstore import cluster, config
from workloads.ports import free_base_port

SHARDS, REPLICAS = 2, 3
MEDIAN_SECONDS, MOST_SECONDS = 0.6, 1.5
WATCHED_SECONDS = 4.0
SETTLE_SECONDS = 1.5
READY_SECONDS = 60.0


class Failover:
    """One run. answers: of each shard, when its clients had theirs."""

    def __init__(self, directory: Path, protocol: str, clients: int):
        self.directory = directory
        self.clients = clients
        self.config = config.new_cluster(
            shards=SHARDS, replicas=REPLICAS, protocol=protocol, cluster_id=os.urandom(16).hex(),
            base_port=free_base_port(SHARDS * REPLICAS),
        )  # fmt: skip
        config.create(directory, self.config)
        self.answers: dict[int, list[float]] = {shard: [] for shard in self.config.shards}
        self.running: dict[int, cluster.Started] = {}

    # -- the cluster --------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self.running = {one.replica.id: one for one in cluster.up(self.directory, lambda text: None)}

    def stop(self) -> None:
        cluster.stop_started(self.directory, list(self.running.values()), lambda text: None)

    def kill(self, replica: int) -> None:
        self.running[replica].process.kill()
        self.running[replica].process.wait()

    async def restart(self, replica: int) -> None:
        """Until it is ready."""
        self.running[replica] = cluster.start(self.directory, self.config, self.config.replica(replica))
        deadline = time.monotonic() + READY_SECONDS
        while not await asyncio.to_thread(cluster.is_ready, self.config.replica(replica)):
            if time.monotonic() > deadline:
                raise SystemExit(f"replica {replica} is not ready after {READY_SECONDS:.0f} s")
            await asyncio.sleep(0.05)

    def ballots(self) -> dict[int, tuple[int, str]]:
        """Of each shard: its leader and its ballot, as the leader says."""
        found: dict[int, tuple[int, str]] = {}
        for line in cluster.status(self.directory):
            details: dict[str, Any] = line.details.get("details", {})
            if line.role == "leader":
                found[line.shard] = (line.id, str(details.get("ballot", details.get("epoch", ""))))
        return found

    # -- clients ------------------------------------------------------------------------------------------------------

    async def write(self, shard: int, number: int) -> None:
        """Without pause, to keys of this shard, until cancelled."""
        shard_of = self.config.map().shard_of
        keys = [k for i in range(1000) if shard_of(k := b"c%d-%d" % (number, i)) == shard][:50]
        async with AsyncClient([r.url for r in self.config.replicas], timeout=10.0) as client:
            for key in itertools.cycle(keys):
                try:
                    await client.put(key, b"v")
                except KvError as error:
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
        leader, _ = self.ballots()[shard]
        killed = time.monotonic()
        self.kill(leader)
        await asyncio.sleep(WATCHED_SECONDS)
        gap = self.longest_gap(shard, killed)
        await self.restart(leader)
        await asyncio.sleep(SETTLE_SECONDS)
        return gap

    async def restart_another(self, shard: int, turn: int) -> bool:
        """Whether that left all leaders in place."""
        before = self.ballots()
        others = [r for r in self.config.shards[shard] if r != before[shard][0]]
        victim = others[turn // SHARDS % len(others)]
        self.kill(victim)
        await self.restart(victim)
        await asyncio.sleep(SETTLE_SECONDS)
        after = self.ballots()
        if after != before:
            print(f"  after a restart of replica {victim}: {before} became {after}", flush=True)
        return after == before

    async def run(self, kills: int, restarts: int) -> bool:
        shards = sorted(self.config.shards)
        writers = [asyncio.create_task(self.write(shards[n % SHARDS], n)) for n in range(self.clients)]
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


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m workloads.failover", description=__doc__)
    parser.add_argument("--protocol", default="white_box")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--restarts", type=int, default=20)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--dir", type=Path, default=Path("failover-run"), help="replaced")
    given = parser.parse_args()
    shutil.rmtree(given.dir, ignore_errors=True)
    failover = Failover(given.dir, given.protocol, given.clients)
    try:
        failover.start()
        good = asyncio.run(failover.run(given.kills, given.restarts))
    finally:
        failover.stop()
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
