"""A cluster under a steady load for a while: does what its replicas take stay as it is?

Every replica is a process; what it takes is read from `/proc` and from its directory: resident memory, open files, the
bytes of its journal, of its state, and of its part of the archive, which is pruned meanwhile as an operator's timer
would. They grow at first, until windows and limits are full; the limits are small here, so that this is soon. In the
second half they are to be flat. What goes up and down, as a journal does with every checkpoint, is judged by its peaks:
the greatest value of the last quarter may not exceed that of the third one by more than GROWTH, and SLACK.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from client_sdk import AsyncClient, KvError
from multicast.types import ProcessId
from workloads import directories
from workloads.bench.clusters import (
    DOWN_SECONDS,
    UP_SECONDS,
    ClusterFailed,
    run_kvstore,
    terminable,
    uninterrupted,
)
from workloads.ports import free_base_port

SAMPLE_SECONDS = 10.0
WORKERS = 16
KEYS = 2_000
VALUE_BYTES = 200
DELETED = 0.05
"""Of the operations: so many delete."""
ATTEMPT_SECONDS = 5.0
GROWTH = 0.05
SLACK = {"memory": 2 << 20, "files": 8, "journal": 3 << 20, "state": 1 << 20, "archive": 3 << 20}
"""What may come or go at any moment: an arena of the allocator; connections and segments; a segment that is being
written, and one that is being archived; pages of LMDB that are free again only after the next commit."""
MINUTES_MIN = 20.0
"""A quarter of it has a checkpoint, before which no segment of a journal goes (`multicast.checkpoint`)."""
LIMITS = {
    "segment_bytes_max": 1 << 20, "journal_keep_bytes": 4 << 20, "history_ms": 60_000, "commit_interval_ms": 500,
    "watch_buffer_bytes_max": 4 << 20,
}  # fmt: skip
DEDUP_WINDOW_MS = 30_000
ARCHIVE_KEEP_BYTES = 32 << 20


class SoakFailed(Exception):
    """The run cannot go on; one line."""


class Plan(msgspec.Struct, kw_only=True):
    """rate: puts and deletions per second, of all clients."""

    minutes: float
    rate: float
    protocol: str
    directory: Path
    shards: int = 2
    replicas: int = 3
    seed: int = 1


class Sample(msgspec.Struct):
    """At one instant, of one replica: bytes, and `files` open ones. seconds: since the load began."""

    seconds: float
    replica: ProcessId
    memory: int
    files: int
    journal: int
    state: int
    archive: int


class Report(msgspec.Struct):
    """grown: sentences, one for each that is not flat, or why that says nothing."""

    plan: Plan
    outcomes: dict[str, int]
    samples: list[Sample]
    grown: list[str]


def directory_bytes(directory: Path) -> int:
    """Of all files in it, as far as they are still there when they are looked at."""
    total = 0
    for path, _, names in os.walk(directory):
        for name in names:
            try:
                total += os.stat(os.path.join(path, name)).st_blocks * 512
            except FileNotFoundError:
                continue
    return total


def sample(directory: Path, replica: ProcessId, seconds: float) -> Sample:
    """Of a replica that runs. SoakFailed: it does not."""
    home = directory / "replicas" / str(replica)
    try:
        process = Path("/proc") / (home / "pid").read_text().strip()
        pages = int((process / "statm").read_text().split()[1])
        files = len(os.listdir(process / "fd"))
    except (OSError, IndexError):
        raise SoakFailed(f"replica {replica} has ended; see {home / 'log'}") from None
    return Sample(
        seconds, replica, pages * os.sysconf("SC_PAGE_SIZE"), files, directory_bytes(home / "journal"),
        directory_bytes(home / "data"), directory_bytes(directory / "archive" / "replicas" / str(replica)),
    )  # fmt: skip


def unanswered(rate: float, seconds: float, outcomes: Mapping[str, int]) -> list[str]:
    """That there was no such load, in a sentence, if less than half of it was answered: who does nothing is flat."""
    asked = rate * seconds
    if outcomes["ok"] >= max(1.0, asked / 2):
        return []
    return [f"of {asked:.0f} puts and deletions {outcomes['ok']} were answered, and {outcomes['failed']} failed"]


def grown(samples: Sequence[Sample], names: Sequence[str] = tuple(SLACK)) -> list[str]:
    """What of these is not flat in the second half. samples: evenly in time."""
    sentences = []
    for replica in sorted({one.replica for one in samples}):
        own = [one for one in samples if one.replica == replica]
        third, last = own[len(own) // 2 : -(len(own) // 4)], own[-(len(own) // 4) :]
        for name in names:
            before, after = [max([getattr(one, name) for one in some]) for some in (third, last)]
            if after > before * (1 + GROWTH) + SLACK[name]:
                sentences.append(f"replica {replica}: {name} has grown from {before} to {after}")
    return sentences


class _Load:
    """Puts and deletions of a bounded set of keys, evenly in time."""

    def __init__(self, client: AsyncClient, plan: Plan):
        self.outcomes: Counter[str] = Counter(ok=0, failed=0)
        self._client = client
        self._plan = plan
        self._turns = 0
        self._began = time.monotonic()

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop`."""
        async with asyncio.TaskGroup() as group:
            for number in range(WORKERS):
                group.create_task(self._work(random.Random(f"{self._plan.seed} {number}"), stop))

    async def _work(self, rng: random.Random, stop: asyncio.Event) -> None:
        while not stop.is_set():
            due = self._began + self._turns / self._plan.rate
            self._turns += 1
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            key = b"soak-%d" % rng.randrange(KEYS)
            try:
                if rng.random() < DELETED:
                    await self._client.delete(key, timeout=ATTEMPT_SECONDS)
                else:
                    await self._client.put(key, rng.randbytes(VALUE_BYTES), timeout=ATTEMPT_SECONDS)
                self.outcomes["ok"] += 1
            except KvError:
                self.outcomes["failed"] += 1


async def _under_load(plan: Plan, samples: list[Sample], say: Callable[[str], None]) -> Counter[str]:
    stop, replicas = asyncio.Event(), range(plan.shards * plan.replicas)
    async with AsyncClient(plan.directory) as client:
        load = _Load(client, plan)
        running = asyncio.create_task(load.run(stop))
        began = time.monotonic()
        try:
            while (passed := time.monotonic() - began) < plan.minutes * 60:
                await asyncio.wait({running}, timeout=SAMPLE_SECONDS)
                if running.done():
                    running.result()
                now = [sample(plan.directory, replica, passed) for replica in replicas]
                samples += now
                await _prune(plan.directory)
                means = [f"{name} {sum(getattr(one, name) for one in now) / len(now):.0f}" for name in SLACK]
                say(f"{passed:7.0f} s  {', '.join(means)}  {load.outcomes['ok']} ok, {load.outcomes['failed']} failed")
        finally:
            stop.set()
            await running
    return load.outcomes


async def _prune(directory: Path) -> None:
    """SoakFailed."""
    command = "archive", "prune", str(directory), "--keep-bytes", str(ARCHIVE_KEEP_BYTES)
    pruning = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "kvstore", *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL
    )
    if status := await pruning.wait():
        raise SoakFailed(f"kvstore archive prune: exit status {status}")


def new_cluster(directory: Path, protocol: str, shards: int, replicas: int) -> None:
    """A cluster with LIMITS in a directory; that of an earlier run is replaced. SoakFailed, ClusterFailed."""
    if not directories.is_free(directory):
        if not directories.is_replaceable(directory):
            raise SoakFailed(f"{directory} exists and was not made by such a run; nothing was changed")
        shutil.rmtree(directory)
    directories.mark(directory)
    run_kvstore(
        UP_SECONDS, "cluster", "init", str(directory), "--shards", str(shards), "--replicas", str(replicas),
        "--protocol", protocol, "--base-port", str(free_base_port(shards * replicas, apart=True)),
    )  # fmt: skip
    path = directory / "cluster.json"
    made = msgspec.json.decode(path.read_bytes())
    made["limits"] |= LIMITS
    path.write_bytes(msgspec.json.encode(made | {"dedup_window_ms": DEDUP_WINDOW_MS}))


def run(plan: Plan, say: Callable[[str], None]) -> Report:
    """Make a cluster in `plan.directory`, which is replaced, and stop it at the end. SoakFailed, ClusterFailed,
    KvError."""
    directory = plan.directory
    new_cluster(directory, plan.protocol, plan.shards, plan.replicas)
    samples: list[Sample] = []
    try:
        run_kvstore(UP_SECONDS, "cluster", "up", str(directory), "--detach")
        outcomes = asyncio.run(_under_load(plan, samples, say))
    finally:
        with uninterrupted():
            run_kvstore(DOWN_SECONDS, "cluster", "down", str(directory))
    short = [f"{plan.minutes:g} minutes are too few to tell; it takes {MINUTES_MIN:g}"]
    wrong = [*(grown(samples) if plan.minutes >= MINUTES_MIN else short)]
    wrong[:0] = unanswered(plan.rate, plan.minutes * 60, outcomes)
    return Report(plan, dict(outcomes), samples, wrong)


def table(report: Report) -> list[str]:
    """What each replica took, at a few instants; and what has grown."""
    lines = ["", f"{'replica':>8} {'seconds':>8}" + "".join(f" {name:>12}" for name in SLACK)]
    instants = sorted({one.seconds for one in report.samples})
    shown = set(instants[:: max(1, len(instants) // 8)]) | set(instants[-1:])
    for one in sorted(report.samples, key=lambda one: (one.replica, one.seconds)):
        if one.seconds in shown:
            cells = "".join(f" {getattr(one, name):12}" for name in SLACK)
            lines.append(f"{one.replica:8} {one.seconds:8.0f}{cells}")
    lines.append(", ".join(f"{count} {name}" for name, count in report.outcomes.items()))
    return [*lines, *(f"NOT FLAT: {sentence}" for sentence in report.grown)]


def command(plan: Plan, json: Path | None, say: Callable[[str], None]) -> int:
    """The exit status: 0 if everything is flat. SoakFailed, KvError."""
    try:
        with terminable():
            report = run(plan, say)
    except ClusterFailed as error:
        raise SoakFailed(str(error)) from None
    if json is not None:
        json.write_bytes(msgspec.json.encode(report, enc_hook=str) + b"\n")
    for line in table(report):
        say(line)
    return 1 if report.grown else 0
