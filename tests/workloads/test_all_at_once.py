"""A bank on real processes while replicas are added, slots move, backups are made, leaders die and journals go."""

from __future__ import annotations

import asyncio
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kvstore import archive, cluster, config, growing
from kvstore.backup.files import read_manifest
from kvstore.backup.restore import configuration, restore
from kvstore.backup.take import take
from kvstore.process import Handle
from tests.kvstore.live import Replica, leader_of, running_cluster, wait_until
from tests.ports import free_base_port
from workloads import bank

SHARDS = 2
VALUE_BYTES = 100_000
"""Of what makes journals long: a segment has a MiB."""


def kill_leader(directory: Path, replicas: list[Replica], shard: int) -> int:
    """Of this shard, asked of the other one; returns when another one leads."""
    other = replicas[3 * (1 - shard)]
    leader = leader_of(other, shard)
    victim = Handle.of(config.replica_directory(directory, leader))
    assert victim is not None
    victim.send(signal.SIGKILL)
    assert victim.wait(60)
    victim.close()
    wait_until(lambda: leader_of(other, shard) != leader)
    return leader


def restarted(directory: Path, replica_id: int) -> cluster.Started:
    """When it is ready."""
    known = config.load(directory)
    started = cluster.start(directory, known, known.replica(replica_id))
    wait_until(lambda: cluster.is_ready(started.replica), 60)
    return started


def half_is_archived(replica: Replica) -> bool:
    status = replica("GET", "/v1/cluster").json["replica"]
    return bool(status["journal_floor"] and 2 * status["journal_held_bytes"] <= status["journal_bytes"])


def operate(directory: Path, replicas: list[Replica], backup: Path, started: list[cluster.Started]) -> None:
    """Everything that operators do, with a leader killed before each step. started: gets what it has started."""
    said: list[str] = []
    killed = kill_leader(directory, replicas, 0)
    base = free_base_port(1)
    ports = base, base + config.HTTP_PORT_OFFSET
    guest = growing.add_replica(directory, 1, "127.0.0.1", "", ports, said.append)
    started.append(guest)
    started.append(restarted(directory, killed))
    killed = kill_leader(directory, replicas, 1)
    growing.move_slots(directory, 0, 1, [(0, 3999)], said.append)
    started.append(restarted(directory, killed))
    for number in range(200):
        assert replicas[3]("PUT", f"/v1/kv/filler-{number % 4}", b"x" * VALUE_BYTES).status in (200, 503)
    wait_until(lambda: any(map(half_is_archived, replicas)), 60)
    take(str(directory), backup, said.append)
    growing.move_slots(directory, 1, 0, [(0, 1999)], said.append)
    growing.remove_replica(directory, guest.replica.id, said.append)


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize("protocol", ["white_box", "primcast"])
def test_the_total_holds_through_everything_and_the_audit_is_valid(tmp_path: Path, protocol: str) -> None:
    directory, backup, again = tmp_path / "run", tmp_path / "backup", tmp_path / "again"
    limits = {"segment_bytes_max": 1 << 20, "journal_keep_bytes": 0, "commit_interval_ms": 100}
    started: list[cluster.Started] = []

    async def under_the_bank() -> tuple[bank.Totals, dict[str, int]]:
        stop = asyncio.Event()
        running = asyncio.create_task(bank.run(directory, directory=directory, seconds=300, stop=stop))
        try:
            await asyncio.to_thread(operate, directory, replicas, backup, started)
        finally:
            stop.set()
        return await running

    with running_cluster(directory, SHARDS, 3, protocol, **limits) as replicas:
        try:
            totals, balances = asyncio.run(under_the_bank())
        finally:
            cluster.stop_started(directory, started, str)
    assert totals.transfers and not totals.wrong_totals, totals
    total = sum(balances.values())
    audited = subprocess.run([sys.executable, "-m", "spark_etl", "audit", str(directory)], stdout=subprocess.PIPE)
    assert audited.returncode == 0, audited.stdout

    kept = [path.stat().st_size for path in (directory / "archive").rglob("*.seg")]
    assert 0 < archive.prune(directory, sum(kept) // 2, None, False, str) < len(kept)
    shutil.rmtree(directory / "audit")
    audited = subprocess.run([sys.executable, "-m", "spark_etl", "audit", str(directory)], stdout=subprocess.PIPE)
    assert audited.returncode == 2 and b"violated" not in audited.stdout, audited.stdout

    made = configuration(
        read_manifest(backup), replicas=1, protocol="", base_port=free_base_port(SHARDS), host="127.0.0.1",
        advertise="", durability="fsync", archive="archive",
    )  # fmt: skip
    restore(backup, again, made, str)
    restored = cluster.up(again, str)
    try:
        found = Replica("127.0.0.1", made.replicas[0].http_port)("GET", "/v1/kv?prefix=account&limit=1000").json
        assert sum(int(entry["value"]) for entry in found["entries"]) == total
    finally:
        cluster.stop_started(again, restored, str)
