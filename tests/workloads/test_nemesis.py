"""The nemesis: short runs on real processes, what it makes of what it sees, and that it leaves nothing behind."""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from kvstore import config
from kvstore.process import running
from multicast import registry
from multicast.runtime.failpoints import Faults
from tests.kvstore.live import make_cluster, running_cluster
from workloads.nemesis import operations
from workloads.nemesis.cluster import Cluster, NemesisFailed, Replica
from workloads.nemesis.faults import FAULTS, KILLED, Scene, Wrong, failing_journal, survived, wiped_disk
from workloads.nemesis.gaps import Seen, split
from workloads.nemesis.run import INVALID, NOT_AUDITED, UNDETERMINED, VALID, Plan, Run, table, verdict_of


def test_a_short_run_meets_faults_and_nothing_is_wrong(tmp_path: Path) -> None:
    plan = Plan(seed=3, minutes=0.08, directory=tmp_path / "run", audit=False)
    report = asyncio.run(Run(plan, lambda _: None).run())
    assert (report.wrong, report.verdict) == ([], NOT_AUDITED)
    assert {one.shard for one in report.faults} == {0, 1}
    assert all(counts["ok"] for counts in report.operations.values())
    assert table(report)[-1] == "verdict: not audited"


def test_a_durability_that_there_is_not_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    with pytest.raises(NemesisFailed, match="--durability: one of fsync, os, not 'disk'"):
        Run(Plan(directory=tmp_path / "run", durability="disk"), lambda _: None)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("code", "wrong", "verdict"),
    [(0, [], VALID), (1, [], INVALID), (2, [], UNDETERMINED), (-9, [], INVALID), (None, [], NOT_AUDITED),
     (0, ["it hung"], INVALID), (2, ["it hung"], INVALID), (None, ["it hung"], INVALID)],
)  # fmt: skip
def test_what_cannot_be_decided_is_neither_valid_nor_wrong(code: int | None, wrong: list[str], verdict: str) -> None:
    assert verdict_of(code, wrong) == verdict


@pytest.mark.full
@pytest.mark.parametrize("protocol", registry.names())
def test_a_longer_run_is_valid(tmp_path: Path, protocol: str) -> None:
    report = asyncio.run(Run(Plan(seed=1, minutes=1, protocol=protocol, directory=tmp_path), lambda _: None).run())
    assert (report.wrong, report.verdict) == ([], VALID)


@pytest.mark.full
def test_an_interrupted_run_leaves_no_process(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "workloads", "nemesis", "--dir", str(tmp_path / "run"), "--no-audit"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        next(line for line in running.stdout if "shard 0: " in line)
        running.send_signal(signal.SIGINT)
        running.stdout.read()
        assert running.wait(60) == 130
    lines = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
    assert not any(str(tmp_path).encode() in line for line in lines)


async def test_replicas_of_the_added_shard_are_replaced_if_it_can_do_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make_cluster(tmp_path, 2, 3, "white_box")
    ran: list[tuple[str, ...]] = []

    async def execute(module: str, *arguments: str) -> int:
        ran.append(arguments)
        return 0

    monkeypatch.setattr(operations, "execute", execute)
    done = operations.Operations(Cluster(tmp_path, "white_box", 1, 3), 1, operations.KINDS, print, print)
    for added, replaced in (((), None), ((1,), True)):
        config.save(tmp_path, msgspec.structs.replace(made, added_shards=added))
        assert await done._replace(random.Random(1)) is replaced
    assert [arguments[:3] for arguments in ran] == [("cluster", "replace-replica", str(tmp_path))]
    assert ran[0][3] in ("3", "4", "5") and not operations.Operations(
        Cluster(tmp_path, "ft_skeen", 1, 3), 1, (operations.DISKS,), print, print
    ).outcomes


def test_who_was_added_stops_in_good_order_at_the_end(tmp_path: Path) -> None:
    """Killed, it could not show what it had answered last, and the run was not determined."""
    with running_cluster(tmp_path, 1, 1, "sequencer"):
        config.save(tmp_path, msgspec.structs.replace(config.load(tmp_path), added_shards=(0,)))
        operations.Operations(Cluster(tmp_path, "sequencer", 1, 1), 1, (), print, print).close()
        home = config.replica_directory(tmp_path, 0)
        assert running(home) is None
        assert '"event": "stopped"' in (home / "log").read_text()


# -- what a replica must do --------------------------------------------------------------------------------------------


class Stand:
    """Stands for a replica whose lives end as they are told to: with these exit statuses; None: it lives on."""

    def __init__(self, home: Path, *statuses: int | None):
        self.id = 7
        self.home = home
        self.may_end = False
        self.faults = Faults()
        self.started: list[tuple[str, ...]] = []
        self._statuses = list(statuses)

    def fail(self, faults: Faults) -> None:
        self.faults = faults

    async def start(self, *options: str) -> None:
        self.started.append(options)

    async def kill(self) -> None:
        self.may_end = True

    async def ended(self, seconds: float) -> int | None:
        return self._statuses.pop(0)


def scene(victim: Any) -> Scene:
    return Scene(cast(Cluster, None), cast(Replica, victim), 0.0, random.Random(1))


@pytest.mark.parametrize("status, told", [(None, "lives on"), (0, "ended with status 0"), (KILLED, "status -9")])
def test_a_replica_must_not_survive_its_disk(tmp_path: Path, status: int | None, told: str) -> None:
    victim = Stand(tmp_path, status)
    with pytest.raises(Wrong, match=told):
        asyncio.run(failing_journal(scene(victim)))
    assert (victim.started, victim.faults) == ([()], Faults())


def test_a_replica_that_ends_as_it_must_is_started_again(tmp_path: Path) -> None:
    victim = Stand(tmp_path, 1)
    asyncio.run(failing_journal(scene(victim)))
    assert victim.started == [()]


def test_an_empty_disk_must_be_refused(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    with pytest.raises(Wrong, match="as if it were new"):
        asyncio.run(wiped_disk(scene(Stand(home, None))))


def test_only_what_a_protocol_claims_to_survive_happens() -> None:
    names = {protocol: {f.name for f in survived(protocol, n)} for protocol, n in (("skeen", 1), ("toto", 3))}
    assert not names["skeen"] & {"wrong clock", "wiped disk"} and "kill -9" in names["skeen"]
    assert "wiped disk" not in names["toto"] and "wrong clock" in names["toto"]
    assert {f.name for f in survived("white_box", 3)} == {f.name for f in FAULTS}


# -- gaps --------------------------------------------------------------------------------------------------------------

BALLOTS = {1: "1/1", 2: "1/1"}


def test_a_gap_is_split_where_somebody_stands_and_where_somebody_leads() -> None:
    seen = [Seen(0.5, 2, "follower", "1/1"), Seen(1.0, 2, "recovering", "1/1"), Seen(1.3, 2, "leader", "2/2")]
    assert split(0.0, 2.0, seen, BALLOTS) == pytest.approx((1.0, 0.3, 0.7))


def test_an_election_that_nobody_saw_begins_where_its_ballot_is_seen() -> None:
    assert split(0.0, 2.0, [Seen(1.5, 2, "leader", "2/2")], BALLOTS) == (1.5, 0.0, 0.5)


def test_a_gap_without_a_new_leader_has_no_parts() -> None:
    seen = [Seen(0.5, 1, "leader", "1/1"), Seen(0.6, 2, "recovering", "1/1"), Seen(0.7, 1, "leader", "1/1")]
    assert split(0.0, 2.0, seen, BALLOTS) == (None, None, None)
