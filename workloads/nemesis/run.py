"""One run: a new cluster, clients, and in each shard one fault after the other, drawn from the seed; then the audit.
Meanwhile operators work (`operations`).

In every shard faults are dealt from a shuffled pack of all that the protocol survives, so that a short run meets most
of them; a fault meets the leader as often as anybody. The next one comes when the shard is whole again: every member
ready, with what the others have. What does not become whole in time, ends by itself, or answers wrongly at the end is
told, and the run is not valid. Which faults meet whom, and for how long, is the seed's; when is the machine's.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from kvstore.config import DURABILITIES
from multicast import registry
from multicast.types import GroupId
from workloads.nemesis.cluster import Cluster, NemesisFailed, Replica, execute, until
from workloads.nemesis.faults import Fault, Scene, Wrong, survived
from workloads.nemesis.gaps import Gap, Watch
from workloads.nemesis.load import Load
from workloads.nemesis.operations import KINDS, Operations

START_SECONDS = 60.0
WHOLE_SECONDS = 60.0
"""A shard is whole again so soon after a fault."""
FAULT_SECONDS = (0.3, 4.0)
PAUSE_SECONDS = (0.3, 1.5)
LEADER_SHARE = 0.6
VALID, INVALID, UNDETERMINED, NOT_AUDITED = "valid", "not valid", "not determined", "not audited"
STATUS = {INVALID: 1, UNDETERMINED: 2}
"""Of the command; else 0."""


class Plan(msgspec.Struct):
    """minutes: of faults. directory: of the cluster, replaced if there is one. audit: have Spark judge it. only: names
    of faults; without any all that the protocol survives. leader_share: of the faults, how many meet leaders.
    operations: of operations, where the protocol has them."""

    seed: int = 1
    minutes: float = 1.0
    protocol: str = "white_box"
    directory: Path = Path("nemesis-run")
    shards: int = 2
    replicas: int = 3
    audit: bool = True
    only: tuple[str, ...] = ()
    leader_share: float = LEADER_SHARE
    operations: tuple[str, ...] = KINDS
    durability: str = "fsync"


class Happened(msgspec.Struct):
    """One fault. at, seconds: until the shard was whole again. leader: whether it met the leader."""

    fault: str
    shard: GroupId
    replica: int
    leader: bool
    at: float
    seconds: float = 0.0


class Report(msgspec.Struct):
    """longest: shard -> seconds between two answers. gaps: those that are told, longest first. wrong: sentences."""

    seed: int
    minutes: float
    protocol: str
    durability: str
    faults: list[Happened]
    operations: dict[str, dict[str, int]]
    longest: dict[GroupId, float]
    gaps: list[Gap]
    wrong: list[str]
    verdict: str


class Run:
    """See the module. say: hears a line of progress."""

    def __init__(self, plan: Plan, say: Callable[[str], None]):
        if not registry.load(plan.protocol).specification.fault_tolerant:
            plan = msgspec.structs.replace(plan, replicas=1)
        self.plan = plan
        self.faults = [f for f in survived(plan.protocol, plan.replicas) if f.name in plan.only or not plan.only]
        if plan.durability not in DURABILITIES:
            raise NemesisFailed(f"--durability: one of {', '.join(DURABILITIES)}, not {plan.durability[:60]!r}")
        if not self.faults:
            raise NemesisFailed(f"{plan.protocol} survives none of these; it survives: {_names(plan)}")
        self.wrong: list[str] = []
        self.happened: list[Happened] = []
        self._say = say
        self._began = time.monotonic()
        self._now: dict[GroupId, str] = {}
        self._watches: dict[GroupId, Watch] = {}
        self._outcomes: dict[str, Counter[str]] = {}

    async def run(self) -> Report:
        """NemesisFailed, KvError, OSError: it could not be carried out. No process is left in any case."""
        plan = self.plan
        self._clear(plan.directory)
        async with Cluster(
            plan.directory, plan.protocol, plan.shards, plan.replicas, plan.durability
        ) as cluster:
            load = Load(plan.directory, plan.seed, lambda shard: self._watches[shard].answered())
            try:
                await self._under_load(cluster, load)
            finally:
                await load.close()
            for replica in cluster.replicas.values():
                if replica.up and (status := await replica.stop()) != 0:
                    self._complain(f"replica {replica.id} ended with status {status} when it was asked to stop")
        code = await execute("spark_etl", "audit", str(plan.directory)) if plan.audit else None
        verdict = verdict_of(code, self.wrong)
        gaps = sorted((gap for watch in self._watches.values() for gap in watch.gaps), key=lambda gap: -gap.seconds)
        longest = {shard: watch.longest for shard, watch in self._watches.items()}
        operations = {name: dict(counts) for name, counts in load.outcomes().items()}
        operations |= {name: dict(counts) for name, counts in self._outcomes.items() if counts.total()}
        return Report(
            plan.seed, plan.minutes, plan.protocol, plan.durability,
            self.happened, operations, longest, gaps, self.wrong, verdict,
        )  # fmt: skip

    def _clear(self, directory: Path) -> None:
        """A cluster that is there goes; anything else stays."""
        if directory.exists() and any(directory.iterdir()):
            if not (directory / "cluster.json").is_file() or not (directory / "views").is_dir():
                raise NemesisFailed(f"{directory} exists and is not the directory of such a run; nothing was changed")
            shutil.rmtree(directory)

    async def _under_load(self, cluster: Cluster, load: Load) -> None:
        for replica in cluster.replicas.values():
            await replica.start()
        watching = asyncio.create_task(self._watch_ends(cluster))
        stop = asyncio.Event()
        operations = Operations(cluster, self.plan.seed, self.plan.operations, self._say, self._complain)
        self._outcomes = operations.outcomes
        running: list[asyncio.Task[None]] = [watching]
        try:
            for shard in range(self.plan.shards):
                if not await until(lambda: cluster.is_whole(shard), START_SECONDS):  # noqa: B023 - awaited at once
                    logs = self.plan.directory / "logs"
                    raise NemesisFailed(f"shard {shard} is not ready after {START_SECONDS:g} s; see {logs}")
            self._began = time.monotonic()
            for shard in range(self.plan.shards):
                members = cluster.members(shard)
                self._watches[shard] = Watch(shard, members, self._began, lambda: list(self._now.values()))
            await load.open()
            clients = asyncio.create_task(load.run(stop))
            running += [clients, *(asyncio.create_task(watch.run()) for watch in self._watches.values())]
            faults = [asyncio.create_task(self._torment(cluster, shard)) for shard in self._watches]
            faults += operations.tasks(self._began + self.plan.minutes * 60)
            running += faults
            await _all_or_first_error(faults, clients)
            stop.set()
            await clients
            self.wrong += await load.last_reads()
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            operations.close()

    async def _torment(self, cluster: Cluster, shard: GroupId) -> None:
        """One fault after the other in this shard, until the time is over."""
        plan, rng = self.plan, random.Random(f"{self.plan.seed} shard {shard}")
        deck = _deck(self.faults, rng)
        end = time.monotonic() + plan.minutes * 60
        while time.monotonic() < end:
            await asyncio.sleep(rng.uniform(*PAUSE_SECONDS))
            await self._strike(cluster, shard, next(deck), random.Random(rng.getrandbits(64)))

    async def _strike(self, cluster: Cluster, shard: GroupId, fault: Fault, rng: random.Random) -> None:
        leader = await cluster.leader(shard)
        others = [replica for replica in cluster.members(shard) if replica is not leader]
        hit = bool(leader) and (rng.random() < self.plan.leader_share or not others)
        victim = leader if leader and hit else rng.choice(others)
        began = time.monotonic()
        happened = Happened(fault.name, shard, victim.id, hit, began - self._began)
        self.happened.append(happened)
        self._now[shard] = f"{fault.name}: replica {victim.id}{', the leader' if hit else ''}"
        self._say(f"shard {shard}: {self._now[shard]}")
        try:
            await fault.happen(Scene(cluster, victim, rng.uniform(*FAULT_SECONDS), rng))
        except Wrong as wrong:
            self._complain(str(wrong))
        if not await until(lambda: cluster.is_whole(shard), WHOLE_SECONDS):
            self._complain(f"shard {shard} is not whole {WHOLE_SECONDS:g} s after: {self._now[shard]}")
            for replica in cluster.members(shard):
                if not replica.up:
                    await replica.start()
        happened.seconds = time.monotonic() - began
        del self._now[shard]

    async def _watch_ends(self, cluster: Cluster) -> None:
        """Nobody ends who was not meant to."""
        told: set[Replica] = set()
        while True:
            for replica in cluster.replicas.values():
                if replica.running is None or replica.up or replica.may_end:
                    told.discard(replica)
                elif replica not in told:
                    told.add(replica)
                    self._complain(f"replica {replica.id} ended by itself: {replica.last_words()}")
            await asyncio.sleep(0.1)

    def _complain(self, sentence: str) -> None:
        self.wrong.append(sentence)
        self._say(f"WRONG: {sentence}")


async def _all_or_first_error(faults: list[asyncio.Task[None]], clients: asyncio.Task[None]) -> None:
    """Until all faults are over; the clients do not end before."""
    waiting = set(faults)
    while waiting:
        done, _ = await asyncio.wait({*waiting, clients}, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
        waiting -= done


def verdict_of(code: int | None, wrong: list[str]) -> str:
    """code: of the audit; None: there was none. wrong: what was found without it."""
    if wrong or code not in (None, 0, STATUS[UNDETERMINED]):
        return INVALID
    return NOT_AUDITED if code is None else UNDETERMINED if code else VALID


def _names(plan: Plan) -> str:
    return ", ".join(fault.name for fault in survived(plan.protocol, plan.replicas))


def _deck(faults: list[Fault], rng: random.Random) -> Iterator[Fault]:
    """All of them in a new order, again and again."""
    while True:
        yield from rng.sample(faults, len(faults))


# -- for people -------------------------------------------------------------------------------------------------------


def table(report: Report) -> list[str]:
    """What happened, in lines."""
    counts = Counter(one.fault for one in report.faults)
    what = f"{report.protocol}, durability {report.durability}, seed {report.seed}"
    lines = ["", f"{len(report.faults)} faults in {report.minutes:g} minutes, {what}:"]
    for fault, count in sorted(counts.items()):
        longest = max(one.seconds for one in report.faults if one.fault == fault)
        leaders = sum(one.leader for one in report.faults if one.fault == fault)
        lines.append(f"  {fault:28} {count:4}, {leaders} of leaders; whole again after at most {longest:.1f} s")
    lines.append(f"{'operations':30} {'ok':>8} {'failed':>8} {'unknown':>8}")
    for name, outcomes in report.operations.items():
        lines.append(f"  {name:28} {outcomes['ok']:8} {outcomes['failed']:8} {outcomes['unknown']:8}")
    headings = " ".join(f"{name:>9}" for name in ("detection", "election", "clearing"))
    lines.append(f"{'longest gaps between answers':30} {'seconds':>8}  {headings}")
    for shard, seconds in report.longest.items():
        gap = next((gap for gap in report.gaps if gap.shard == shard), None)
        parts = [gap.detection, gap.election, gap.clearing] if gap else [None] * 3
        cells = " ".join(f"{'-' if part is None else f'{part:.2f}':>9}" for part in parts)
        during = f"  {'; '.join(gap.during)}" if gap and gap.during else ""
        lines.append(f"  {f'shard {shard}':28} {seconds:8.2f}  {cells}{during}")
    lines += [f"WRONG: {sentence}" for sentence in report.wrong]
    return [*lines, f"verdict: {report.verdict}"]


async def _interruptible(run: Run) -> Report:
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, lambda: (loop.remove_signal_handler(signal.SIGINT), task.cancel()))
    return await run.run()


def command(plan: Plan, json: Path | None, say: Callable[[str], None]) -> int:
    """The exit status: 0 if the run is valid. NemesisFailed, KvError, OSError: see `Run.run`."""
    began = time.monotonic()
    run = Run(plan, lambda text: say(f"{time.monotonic() - began:6.1f} s  {text}"))
    try:
        report = asyncio.run(_interruptible(run))
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    if json is not None:
        json.write_bytes(msgspec.json.format(msgspec.json.encode(report)) + b"\n")
    for line in table(report):
        say(line)
    return STATUS.get(report.verdict, 0)
