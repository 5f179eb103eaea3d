"""Many watches on many keys under a steady rate of puts: how late are they told, and what do the replicas take for it?

Each watch is of as many keys as any other one, all of which are there before it begins. A put says when it was sent, by
the clock of this process, in which all clients are; an event is late by the time from there to when the watch's client
has it, so the put itself is a part of it. Every put that was answered must have been told when the load is over.
Memory is judged as `workloads.soak` does.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgspec
from hdrh.histogram import HdrHistogram

from client_sdk import AsyncClient, KvError, Put
from kvstore.api.events import CHANGE
from multicast.types import ZERO
from workloads import soak
from workloads.bench.clusters import DOWN_SECONDS, UP_SECONDS, ClusterFailed, run_kvstore, terminable, uninterrupted

WORKERS = 256
"""Puts under way at most: far more than the rate needs, so that it is kept while puts are slow."""
FILL_OPERATIONS = 500
ATTEMPT_SECONDS = 10.0
LAST_SECONDS = 30.0
SAMPLES = 24
"""Of memory, evenly in time: six for each quarter."""
LATE_MS_MAX = 250.0
"""At the 99th percentile."""
_US_MAX = 3_600_000_000
_DIGITS = 3
PERCENTILES = (50, 90, 99, 99.9)
_WATCHES_AT_ONCE = 50


class Plan(msgspec.Struct, kw_only=True):
    """rate: puts per second, of all clients."""

    watches: int
    keys: int
    rate: float
    seconds: float
    protocol: str
    directory: Path
    shards: int = 2
    replicas: int = 3


class Report(msgspec.Struct):
    """late_ms: percentile -> how late an event was. memory: of each replica, bytes, at first, at most and at last.
    wrong: sentences."""

    plan: Plan
    outcomes: dict[str, int]
    events: int
    late_ms: dict[str, float]
    memory: dict[int, tuple[int, int, int]]
    wrong: list[str]


class _Run:
    def __init__(self, client: AsyncClient, plan: Plan):
        self.late = HdrHistogram(1, _US_MAX, _DIGITS)
        self.outcomes: Counter[str] = Counter(ok=0, failed=0)
        self.events = 0
        self._client = client
        self._plan = plan
        self._each = max(1, plan.keys // plan.watches)
        self._turns = 0
        self._told = [ZERO] * plan.watches
        self._put = [ZERO] * plan.watches

    def _key(self, watch: int, number: int) -> str:
        return f"watched/{watch}/{number}"

    async def fill(self) -> None:
        """All keys are there. KvError."""
        keys = [self._key(watch, number) for watch in range(self._plan.watches) for number in range(self._each)]
        for at in range(0, len(keys), FILL_OPERATIONS):
            await self._client.txn(success=[Put(key, b"0") for key in keys[at : at + FILL_OPERATIONS]])

    async def watch(self, watch: int, begun: asyncio.Event) -> None:
        """One watch, without end. begun: when it has."""
        async for event in self._client.watch(f"watched/{watch}/", progress=True, timeout=LAST_SECONDS):
            now = time.monotonic_ns()
            begun.set()
            self._told[watch] = event.version
            for change in event.changes if event.kind == CHANGE else ():
                self.events += 1
                self.late.record_value((now - int(change.value or b"0")) // 1000)

    async def put(self, began: float, stop: asyncio.Event, rng: random.Random) -> None:
        """Put keys until `stop`, in turn with all others, evenly in time."""
        while not stop.is_set():
            due = began + self._turns / self._plan.rate
            self._turns += 1
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            watch = rng.randrange(self._plan.watches)
            key = self._key(watch, rng.randrange(self._each))
            try:
                version = await self._client.put(key, b"%d" % time.monotonic_ns(), timeout=ATTEMPT_SECONDS)
                self._put[watch] = max(self._put[watch], version)
                self.outcomes["ok"] += 1
            except KvError:
                self.outcomes["failed"] += 1

    def behind(self) -> int:
        """How many watches were not told of the last put there that was answered."""
        return sum(told < put for told, put in zip(self._told, self._put, strict=True))


async def _under_load(plan: Plan, samples: list[soak.Sample], say: Callable[[str], None]) -> _Run:
    replicas, stop = range(plan.shards * plan.replicas), asyncio.Event()
    async with AsyncClient(plan.directory) as client:
        run = _Run(client, plan)
        await run.fill()
        say(f"{plan.keys} keys are there")
        watching: list[asyncio.Task[None]] = []
        putting: list[asyncio.Task[None]] = []
        try:
            for first in range(0, plan.watches, _WATCHES_AT_ONCE):
                some = [asyncio.Event() for _ in range(first, min(first + _WATCHES_AT_ONCE, plan.watches))]
                watching += [asyncio.create_task(run.watch(first + n, begun)) for n, begun in enumerate(some)]
                async with asyncio.timeout(LAST_SECONDS):
                    await asyncio.gather(*(begun.wait() for begun in some))
            say(f"{plan.watches} watches have begun")
            began = time.monotonic()
            putting += [asyncio.create_task(run.put(began, stop, random.Random(n))) for n in range(WORKERS)]
            while (passed := time.monotonic() - began) < plan.seconds:
                await asyncio.wait([*putting, *watching], timeout=plan.seconds / SAMPLES, return_when="FIRST_COMPLETED")
                _raise_first(putting, watching)
                samples += [soak.sample(plan.directory, replica, passed) for replica in replicas]
                late = run.late.get_value_at_percentile(99) / 1000
                say(f"{passed:7.0f} s  {run.events} events, 99 % within {late:.1f} ms; {run.outcomes['failed']} failed")
            stop.set()
            await asyncio.gather(*putting)
            deadline = time.monotonic() + LAST_SECONDS
            while run.behind() and time.monotonic() < deadline:
                await asyncio.wait(watching, timeout=0.1, return_when="FIRST_COMPLETED")
                _raise_first(watching)
        finally:
            for task in (*putting, *watching):
                task.cancel()
            await asyncio.gather(*putting, *watching, return_exceptions=True)
    return run


def _raise_first(*tasks: list[asyncio.Task[None]]) -> None:
    for task in (task for some in tasks for task in some if task.done()):
        task.result()


def run(plan: Plan, say: Callable[[str], None]) -> Report:
    """Make a cluster in `plan.directory`, which is replaced, and stop it at the end. soak.SoakFailed, ClusterFailed,
    KvError, TimeoutError."""
    soak.new_cluster(plan.directory, plan.protocol, plan.shards, plan.replicas)
    samples: list[soak.Sample] = []
    try:
        run_kvstore(UP_SECONDS, "cluster", "up", str(plan.directory), "--detach")
        done = asyncio.run(_under_load(plan, samples, say))
    finally:
        with uninterrupted():
            run_kvstore(DOWN_SECONDS, "cluster", "down", str(plan.directory))
    late = {f"{at:g}": done.late.get_value_at_percentile(at) / 1000 for at in PERCENTILES}
    memory: dict[int, tuple[int, int, int]] = {}
    for replica in sorted({one.replica for one in samples}):
        own = [one.memory for one in samples if one.replica == replica]
        memory[replica] = own[0], max(own), own[-1]
    enough = len(samples) >= SAMPLES // 2 * len(memory)
    wrong = soak.grown(samples, ("memory",)) if enough else ["memory: too few samples to tell"]
    wrong += soak.unanswered(plan.rate, plan.seconds, done.outcomes)
    if late["99"] >= LATE_MS_MAX:
        wrong.append(f"1 % of the events was later than {late['99']:.1f} ms; it may be {LATE_MS_MAX:g}")
    if behind := done.behind():
        wrong.append(f"{behind} watches were not told of the last put {LAST_SECONDS:g} s after it")
    if done.events < done.outcomes["ok"]:
        wrong.append(f"{done.outcomes['ok']} puts were answered, and {done.events} told")
    return Report(plan, dict(done.outcomes), done.events, late, memory, wrong)


def table(report: Report) -> list[str]:
    """In lines."""
    plan, seconds = report.plan, report.plan.seconds
    told = ", ".join(f"{at} % {late:.1f}" for at, late in report.late_ms.items())
    lines = [
        "", f"{plan.watches} watches, {plan.keys} keys, {report.outcomes['ok'] / seconds:.0f} puts per second "
        f"({report.outcomes['failed']} failed) for {seconds:g} s, {plan.shards} shards of {plan.replicas}",
        f"{report.events} events, late by ms: {told}",
    ]  # fmt: skip
    for replica, values in report.memory.items():
        begin, most, end = [value / (1 << 20) for value in values]
        lines.append(f"replica {replica}: {begin:.0f} MiB at first, {most:.0f} at most, {end:.0f} at last")
    return [*lines, *(f"WRONG: {sentence}" for sentence in report.wrong)]


def command(plan: Plan, json: Path | None, say: Callable[[str], None]) -> int:
    """The exit status: 0 if nothing is wrong. soak.SoakFailed, KvError."""
    try:
        with terminable():
            report = run(plan, say)
    except (ClusterFailed, TimeoutError) as error:
        raise soak.SoakFailed(str(error) or "the watches have not begun in time") from None
    if json is not None:
        json.write_bytes(msgspec.json.encode(report, enc_hook=str) + b"\n")
    for line in table(report):
        say(line)
    return 1 if report.wrong else 0
