"""The multicast layer alone: how many messages a second it orders when neither disk nor network costs anything.

    python -m multicast.bench [--protocols white_box,primcast] [--bundles 1,16,64] [--destinations 1,2]

All processes run in this one thread, one after the other, with the production engine: every protocol message is encoded
and decoded, every journal record is made; but frames go from queue to queue, and a flush takes no time. A process that
leads a group keeps a number of multicasts under way; each goes to its own group, or to that and the next. A bundle is
one multicast whose payload carries so many application messages of 20 bytes each, and counts as so many: that is how
the store multicasts transactions (`kvstore/core/bundles.py`). A multicast counts when the slowest process of its
destinations has delivered it.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import json
import platform
import pstats
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from multicast import registry
from multicast.application import Application, ApplicationOutbox
from multicast.batch import Batch
from multicast.engine import Engine
from multicast.records import Delivered
from multicast.types import FINAL, AppMessage, GroupId, ProcessId, Topology, new_message_id

GROUPS = 2
REPLICAS = 3
PAYLOAD_BYTES = 20
BUNDLES = (1, 16, 64)
DESTINATIONS = (1, 2)
PROTOCOLS = ("white_box", "primcast")
OUTSTANDING = 200
SECONDS = 2.0
WARMUP_SECONDS = 0.5
DRAIN_SECONDS = 10.0
GC_THRESHOLD = (20_000, 20, 50)
"""As in a replica of the store."""

PUBLISHED = {
    "white_box": ("White-Box, its authors' prototype in C", {1: (111_000, 164_000), 2: (59_000, 78_000)}),
    "primcast": ("PrimCast, its authors' prototype in Rust", {1: (211_000, 256_000), 2: (85_000, 99_000)}),
}
"""Protocol -> (what, destinations -> messages per second, from and to): prototypes, on a machine of two cores, in
memory, messages of 20 bytes, one message per multicast."""


class Result(msgspec.Struct, kw_only=True):
    """One measurement. per_second: application messages; multicasts_per_second times the bundle. cpu_us_per_multicast:
    processor time of all processes together. frames: encoded messages between processes, per multicast. batch:
    multicasts ordered per run of an engine that did anything."""

    protocol: str
    destinations: int
    bundle: int
    per_second: float
    multicasts_per_second: float
    per_cpu_second: float
    cpu_us_per_multicast: float
    frames: float
    batch: float


class _Counting(Application):
    """Counts final deliveries, and tells of those that this process has multicast."""

    def __init__(self, process: ProcessId):
        self.process = process
        self.delivered = 0
        self.own = 0

    def on_deliver(self, delivery: Delivered, outcome: bytes | None, now: int, out: ApplicationOutbox) -> None:
        if delivery.stage == FINAL:
            self.delivered += 1
            if delivery.message.origin == self.process:
                self.own += 1


class _Process:
    """An engine and what waits for it."""

    __slots__ = ("application", "engine", "inbox", "submitted", "wake_at")

    def __init__(self, engine: Engine, application: _Counting):
        self.engine = engine
        self.application = application
        self.inbox: list[tuple[ProcessId, bytes]] = []
        self.submitted = 0
        self.wake_at: int | None = None


class Memory:
    """Processes joined by queues in memory, driven by `submit` and `turn`.

    destinations: how many groups each multicast goes to. outstanding: multicasts under way per leader.
    """

    def __init__(self, protocol: str, destinations: int, bundle: int, outstanding: int, options: dict[str, Any]):
        cls = registry.load(protocol)
        self.topology = Topology.grid(GROUPS, REPLICAS if cls.specification.fault_tolerant else 1)
        self.frames = self.runs = 0
        self._payload = bytes(PAYLOAD_BYTES * bundle)
        self._destinations = destinations
        self._outstanding = outstanding
        self._rng = random.Random(1)
        self._began_us, self._began = time.time_ns() // 1000, time.perf_counter_ns()
        self.processes: dict[ProcessId, _Process] = {}
        for process in self.topology.processes:
            made = cls(process, self.topology, cls.specification.options(**options), random.Random(process))
            application = _Counting(process)
            self.processes[process] = _Process(Engine(made, application, 1), application)
        for process, node in self.processes.items():
            self._carry_out(process, node, node.engine.recover((), self.now()))

    def now(self) -> int:
        """Microseconds: real time, so that timers run as they do live."""
        return self._began_us + (time.perf_counter_ns() - self._began) // 1000

    def submit(self) -> None:
        """Every leader multicasts until enough is under way."""
        now = self.now()
        for group in self.topology.groups:
            leader = self._leader(group)
            node = self.processes[leader]
            to = tuple(sorted((group + i) % GROUPS for i in range(self._destinations)))
            for _ in range(self._outstanding - (node.submitted - node.application.own)):
                message_id = new_message_id(now, self._rng.getrandbits(62))
                node.engine.submit(AppMessage(message_id, to, self._payload, leader))
                node.submitted += 1

    def _leader(self, group: GroupId) -> ProcessId:
        first = self.topology.groups[group][0]
        leader = self.processes[first].engine.protocol.leader_of(group)
        return first if leader is None else leader

    def turn(self) -> None:
        """Every process takes what has come for it."""
        for process, node in self.processes.items():
            now = self.now()
            engine, inbox = node.engine, node.inbox
            if inbox:
                node.inbox = []
                receive = engine.receive
                for peer, frame in inbox:
                    receive(peer, frame)
            elif engine.idle and (node.wake_at is None or now < node.wake_at):
                continue
            self.runs += 1
            self._carry_out(process, node, engine.run(now))

    def _carry_out(self, process: ProcessId, node: _Process, batch: Batch) -> None:
        assert not batch.faulty, batch.faulty
        node.wake_at = batch.wake_at
        processes = self.processes
        if batch.journal:
            node.engine.flushed(batch.number)
        for to, data in batch.sends:
            self.frames += len(to)
            for peer in to:
                processes[peer].inbox.append((process, data))

    def delivered(self) -> int:
        """Multicasts that all their destinations have: of each group, as many as its slowest member has, over how many
        groups each goes to."""
        slowest = (
            min(self.processes[p].application.delivered for p in members) for members in self.topology.groups.values()
        )
        return sum(slowest) // self._destinations

    def idle(self) -> bool:
        """Whether everybody has delivered everything."""
        return self.delivered() == sum(node.submitted for node in self.processes.values())


def measure(
    protocol: str, destinations: int, bundle: int, *, seconds: float = SECONDS, warmup: float = WARMUP_SECONDS,
    outstanding: int = OUTSTANDING, **options: Any,
) -> Result:  # fmt: skip
    """Run one protocol. options: its own. AssertionError if in the end anybody lacks anything."""
    memory = Memory(protocol, destinations, bundle, outstanding, options)
    _run(memory, warmup)
    before, frames, runs = memory.delivered(), memory.frames, memory.runs
    began, cpu = time.perf_counter(), time.thread_time()
    _run(memory, seconds)
    took, spent = time.perf_counter() - began, time.thread_time() - cpu
    done = max(memory.delivered() - before, 1)
    frames, runs = memory.frames - frames, memory.runs - runs
    deadline = time.perf_counter() + DRAIN_SECONDS
    while not memory.idle():
        memory.turn()
        assert time.perf_counter() < deadline, f"{protocol}: not everything was delivered"
    return Result(
        protocol=protocol,
        destinations=destinations,
        bundle=bundle,
        per_second=round(done * bundle / took),
        multicasts_per_second=round(done / took),
        per_cpu_second=round(done * bundle / spent),
        cpu_us_per_multicast=round(spent * 1e6 / done, 1),
        frames=round(frames / done, 1),
        batch=round(done * len(memory.processes) * destinations / GROUPS / max(runs, 1), 1),
    )


def _run(memory: Memory, seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        memory.submit()
        memory.turn()


# -- the command -------------------------------------------------------------------------------------------------------


class _Column(NamedTuple):
    title: str
    width: int


_COLUMNS = (
    _Column("protocol", 14), _Column("to groups", 9), _Column("bundle", 6), _Column("messages/s", 11),
    _Column("of the papers'", 14), _Column("multicasts/s", 12), _Column("per cpu s", 11), _Column("µs/multicast", 12),
    _Column("frames", 6), _Column("batch", 6),
)  # fmt: skip


def row(result: Result) -> list[str]:
    """The cells of one line of the table. "of the papers'": messages/s over the highest published."""
    _, published = PUBLISHED.get(result.protocol, ("", {}))
    best = published.get(result.destinations)
    return [
        result.protocol, str(result.destinations), str(result.bundle), f"{result.per_second:,.0f}",
        f"{result.per_second / best[1]:.2f}" if best else "-", f"{result.multicasts_per_second:,.0f}",
        f"{result.per_cpu_second:,.0f}", f"{result.cpu_us_per_multicast:.1f}", f"{result.frames:.1f}",
        f"{result.batch:.1f}",
    ]  # fmt: skip


def explained(outstanding: int, seconds: float) -> list[str]:
    """What was measured, and what stands beside it."""
    lines = [
        f"Python {platform.python_version()}, msgspec {msgspec.__version__}, {_processor()}; one thread for all",
        f"{GROUPS} groups of {REPLICAS} (1 without fault tolerance), {outstanding} multicasts under way per group, "
        f"application messages of {PAYLOAD_BYTES} bytes, in memory: no disk, no network; {seconds:g} s each",
        "bundle: application messages in one multicast, each counted; the prototypes have one in each:",
    ]
    for what, published in PUBLISHED.values():
        told = "; ".join(f"to {n}: {low:,} to {high:,}" for n, (low, high) in published.items())
        lines.append(f"  {what}, messages/s: {told}")
    return lines


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown processor"
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


def _line(cells: Sequence[str]) -> str:
    return "  ".join(cell.rjust(column.width) for cell, column in zip(cells, _COLUMNS, strict=True))


def _profiled(count: int, options: argparse.Namespace) -> None:
    """Where one run spends its time: the first protocol, destinations and bundle."""
    profile = cProfile.Profile(time.process_time)
    memory = Memory(options.protocols[0], options.destinations[0], options.bundles[0], options.outstanding, {})
    _run(memory, WARMUP_SECONDS)
    before = memory.delivered()
    profile.runcall(_run, memory, options.seconds)
    print(f"{memory.delivered() - before} multicasts, under the profiler")
    pstats.Stats(profile, stream=sys.stdout).sort_stats("tottime").print_stats(count)


def _names(text: str) -> list[str]:
    names = registry.names() if text == "all" else text.split(",")
    for name in names:
        registry.load(name)
    return names


def _numbers(most: int) -> Any:
    def parse(text: str) -> list[int]:
        numbers = [int(part) for part in text.split(",")]
        if not all(1 <= number <= most for number in numbers):
            raise argparse.ArgumentTypeError(f"from 1 to {most}")
        return numbers

    return parse


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m multicast.bench", description="How fast the multicast layer is, alone and in memory."
    )
    parser.add_argument("--protocols", type=_names, default=list(PROTOCOLS), metavar="all|A,B", help="default: two")
    parser.add_argument("--destinations", type=_numbers(GROUPS), default=list(DESTINATIONS), metavar="1,2")
    parser.add_argument("--bundles", type=_numbers(10_000), default=list(BUNDLES), metavar="1,16,64")
    parser.add_argument("--outstanding", type=int, default=OUTSTANDING, help="per group; default %(default)s")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of each; default %(default)s")
    parser.add_argument("--profile", type=int, metavar="N", help="instead: the N functions that take most time")
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text")
    options = parser.parse_args(arguments)
    if not 0.05 <= options.seconds <= 600 or not 1 <= options.outstanding <= 50_000:
        parser.error("--seconds: from 0.05 to 600; --outstanding: from 1 to 50000")
    if options.profile is not None:
        _profiled(options.profile, options)
        return 0
    lines = explained(options.outstanding, options.seconds)
    if options.output == "text":
        print("\n".join([*lines, _line([column.title for column in _COLUMNS])]), flush=True)
    results = []
    for protocol in options.protocols:
        for destinations in options.destinations:
            for bundle in options.bundles:
                warmup = min(WARMUP_SECONDS, options.seconds)
                done = measure(
                    protocol, destinations, bundle, seconds=options.seconds, warmup=warmup,
                    outstanding=options.outstanding,
                )  # fmt: skip
                results.append(done)
                if options.output == "text":
                    print(_line(row(done)), flush=True)
    if options.output == "json":
        table = {"headings": [column.title for column in _COLUMNS], "rows": [row(one) for one in results]}
        print(json.dumps({"explained": lines, **table, "results": msgspec.to_builtins(results)}, indent=2))
    return 0


if __name__ == "__main__":
    gc.set_threshold(*GC_THRESHOLD)
    sys.exit(main())
