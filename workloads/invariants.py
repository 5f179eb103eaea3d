"""Workloads with an invariant that the audit checks from what their clients were told.

cycle       the keys point to one another in one ring; a transaction moves one key further along it, if the three
            pointers that it changes are still what its client last saw; a reader must always see one ring
long_fork   every key is written once, by a transaction of its own; of two readers of the same keys, one must have seen
            all that the other has
set         elements are added; every acknowledged one is in all later reads, and nothing else ever is
counter     counters are added to; a read is between the acknowledged and the attempted sum
bank        see `workloads.bank`

Keys are spread over the shards, and begin with the workload's name and a number of their own for each run, so that runs
on one cluster do not meet.

    python -m workloads.invariants NAME TARGET [--seconds 10] [--clients 8] [--seed 1] [--timeout 10] [--history DIR]
    python -m spark_etl audit DIR

TARGET: a cluster's directory, or URLs with commas between them. Writes DIR/history/NAME.jsonl if asked; for the audit
DIR must be the cluster's directory. An operation that is not answered within the timeout has an unknown outcome, which
the audit looks up in the journals. Ctrl-C ends a run as its time does, a second one at once.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar

from client_sdk import AsyncClient, KvError, OutcomeUnknown, Result, ResultsForgotten
from client_sdk.keyspace import ALL_KEYS
from kvstore.api.model import Add, Append, Compare, Get, Put, Transaction
from kvstore.core import audit
from multicast.types import MessageId, new_message_id
from workloads import bank
from workloads.history import HistoryWriter

Values = dict[str, int]

TIMEOUT_SECONDS = 10.0
PROGRESS_SECONDS = 5.0
CLIENTS_MAX = 1000


class Workload:
    """One run. `open`, then `client` any number of times at once, then `close`.

    A workload gives `name`, `setup` and `step`, and `values`: what a reader's answer says, for the history.
    pause_seconds: how long a client thinks between two operations.
    """

    name: ClassVar[str]
    reader: ClassVar[str]
    """`f` of the operations that read everything."""

    def __init__(self, store: AsyncClient, history: HistoryWriter | None, seed: int = 1, run: str | None = None):
        self.store = store
        self.history = history
        self.seed = seed
        self.prefix = f"{self.name}/{time.time_ns() // 1000:x}" if run is None else f"{self.name}/{run}"
        self.counts: Counter[str] = Counter()
        self.pause_seconds = 0.0
        self._ids = random.Random(f"ids {seed} {time.time_ns()}")
        self._processes = 0

    @property
    def answered(self) -> int:
        """How many operations were."""
        return self.counts.total() - self.counts["unknown"] - self.counts["failed"]

    async def open(self, timeout: float = 30.0) -> None:
        """Write what has to be there at the beginning. KvError if that fails."""
        writes = self.setup()
        if writes:
            opened = await self.operate(self.process(), "open", success=writes, timeout=timeout)
            if not isinstance(opened, Result):
                raise opened or KvError("the outcome of the first transaction is unknown")

    async def client(self, number: int, stop: asyncio.Event) -> None:
        """Operate, one after the other, until `stop`. An operation of unknown outcome ends that process of the history
        and another begins."""
        rng = random.Random(f"client {self.seed} {number}")
        process = self.process()
        while not stop.is_set():
            if await self.step(rng, process) is None:
                process = self.process()
            await asyncio.sleep(self.pause_seconds)

    async def close(self, timeout: float = 30.0) -> bool:
        """A last read of everything; whether it was answered."""
        return isinstance(await self.read(self.process(), timeout), Result)

    def process(self) -> int:
        """A new process of the history."""
        self._processes += 1
        return self._processes - 1

    def new_id(self) -> MessageId:
        """Of an operation."""
        return new_message_id(time.time_ns() // 1000, self._ids.getrandbits(62))

    def setup(self) -> Sequence[Put]:
        """The first writes, one transaction."""
        return ()

    async def step(self, rng: random.Random, process: int) -> Result | KvError | None:
        """One operation of a client."""
        raise NotImplementedError

    async def read(self, process: int, timeout: float | None = None) -> Result | KvError | None:
        """Read everything."""
        raise NotImplementedError

    def values(self, f: str, result: Result, value: Values | None) -> Values | None:
        """What goes to the history with an answer. value: what was said at its invocation."""
        return _found(result) if f == self.reader else value

    async def operate(
        self,
        process: int,
        f: str,
        *,
        compare: Sequence[Compare] = (),
        success: Sequence[Get | Put | Add | Append] = (),
        value: Values | None = None,
        timeout: float | None = None,
    ) -> Result | KvError | None:
        """One operation, in the history from start to end. None: its outcome is unknown; an error: it has no effect."""
        message_id, history = self.new_id(), self.history
        if history:
            history.invoke(process, message_id, f, value, audit.asked(compare, success))
        try:
            transaction = Transaction(tuple(compare), tuple(success))
            result = await self.store.run(ALL_KEYS.transaction(transaction, message_id=message_id, timeout=timeout))
        except ResultsForgotten as error:
            if history:
                history.ok(process, message_id, f, error.version, succeeded=error.succeeded, value=value)
            return error
        except OutcomeUnknown as error:
            self.counts["unknown"] += 1
            if history:
                history.info(process, message_id, f, str(error))
            return None
        except KvError as error:
            self.counts["failed"] += 1
            if history:
                history.fail(process, message_id, f, str(error))
            return error
        except BaseException:
            if history:
                history.info(process, message_id, f, "interrupted")
            raise
        self.counts[f if result.succeeded else f"{f} (not done)"] += 1
        if history:
            seen = self.values(f, result, value)
            told = audit.told(success if result.succeeded else (), result.results)
            history.ok(
                process, message_id, f, result.version, succeeded=result.succeeded, value=seen, told=told
            )
        return result


class Cycle(Workload):
    """After FoundationDB's Cycle workload."""

    name = "cycle"
    reader = "cycle_read"
    SIZE = 12

    def __init__(self, store: AsyncClient, history: HistoryWriter | None, seed: int = 1, run: str | None = None):
        super().__init__(store, history, seed, run)
        self.keys = [f"{self.prefix}/{i:03}".encode() for i in range(self.SIZE)]
        self.known = [(i + 1) % self.SIZE for i in range(self.SIZE)]

    def setup(self) -> Sequence[Put]:
        return [Put(key, b"%d" % following) for key, following in zip(self.keys, self.known, strict=True)]

    async def step(self, rng: random.Random, process: int) -> Result | KvError | None:
        if rng.random() < 0.3:
            return await self.read(process)
        first = rng.randrange(self.SIZE)
        second = self.known[first]
        third = self.known[second]
        after = self.known[third]
        changes = ((first, second, third), (second, third, after), (third, after, second))
        result = await self.operate(
            process,
            "cycle_swap",
            compare=[Compare(self.keys[at], "value", "==", b"%d" % old) for at, old, _ in changes],
            success=[Put(self.keys[at], b"%d" % new) for at, _, new in changes],
        )
        if isinstance(result, Result) and not result.succeeded:
            return await self.read(process)
        if isinstance(result, Result):
            for at, _, new in changes:
                self.known[at] = new
        return result

    async def read(self, process: int, timeout: float | None = None) -> Result | KvError | None:
        result = await self.operate(process, self.reader, success=[Get(k) for k in self.keys], timeout=timeout)
        if isinstance(result, Result):
            pointers = list(_found(result).values())
            if len(pointers) == self.SIZE:
                self.known = pointers
        return result


class LongFork(Workload):
    """After Jepsen's long-fork workload: parallel snapshot isolation allows it, snapshot isolation does not."""

    name = "long_fork"
    reader = "fork_read"
    GROUP = 4
    READS = 24
    """Of a group, before its clients go on to the next one."""

    def __init__(self, store: AsyncClient, history: HistoryWriter | None, seed: int = 1, run: str | None = None):
        super().__init__(store, history, seed, run)
        self._group = 0
        self._left: list[int] = []
        self._reads = 0
        self._next()

    def _next(self) -> None:
        self._group += 1
        self._reads = 0
        self._left = list(range(self.GROUP))
        random.Random(f"group {self.seed} {self._group}").shuffle(self._left)

    def _keys(self) -> list[bytes]:
        return [f"{self.prefix}/{self._group:06}/{i}".encode() for i in range(self.GROUP)]

    async def step(self, rng: random.Random, process: int) -> Result | KvError | None:
        if self._left and rng.random() < 0.25:
            key = self._keys()[self._left.pop()]
            return await self.operate(process, "fork_write", success=[Put(key, b"1")], value={key.decode(): 1})
        if self._reads >= self.READS and not self._left:
            self._next()
        return await self.read(process)

    async def read(self, process: int, timeout: float | None = None) -> Result | KvError | None:
        self._reads += 1
        keys = self._keys()
        return await self.operate(
            process, self.reader, success=[Get(k) for k in keys], value={k.decode(): 0 for k in keys}, timeout=timeout
        )

    def values(self, f: str, result: Result, value: Values | None) -> Values | None:
        if f != self.reader or value is None:
            return value
        return {key: int(one.found is not None) for key, one in zip(value, result.results, strict=True)}


class Set(Workload):
    """After Jepsen's set workload. Elements are appended to one key per part, so that a read is small."""

    name = "set"
    reader = "set_read"
    PARTS = 4
    READ_SHARE = 0.03

    def __init__(self, store: AsyncClient, history: HistoryWriter | None, seed: int = 1, run: str | None = None):
        super().__init__(store, history, seed, run)
        self.keys = [f"{self.prefix}/{i}".encode() for i in range(self.PARTS)]
        self._added = 0

    async def step(self, rng: random.Random, process: int) -> Result | KvError | None:
        if rng.random() < self.READ_SHARE:
            return await self.read(process)
        self._added += 1
        element = f"{self.prefix.rpartition('/')[2]}.{self._added}"
        add = Append(rng.choice(self.keys), f"{element},".encode())
        return await self.operate(process, "set_add", success=[add], value={element: 1})

    async def read(self, process: int, timeout: float | None = None) -> Result | KvError | None:
        return await self.operate(process, self.reader, success=[Get(k) for k in self.keys], timeout=timeout)

    def values(self, f: str, result: Result, value: Values | None) -> Values | None:
        if f != self.reader:
            return value
        texts = (one.found.value.decode() for one in result.results if one.found)
        return dict(Counter(element for text in texts for element in text.split(",") if element))


class CounterWorkload(Workload):
    """After Jepsen's counter workload."""

    name = "counter"
    reader = "counter_read"
    COUNTERS = 4

    def __init__(self, store: AsyncClient, history: HistoryWriter | None, seed: int = 1, run: str | None = None):
        super().__init__(store, history, seed, run)
        self.keys = [f"{self.prefix}/{i}".encode() for i in range(self.COUNTERS)]

    def setup(self) -> Sequence[Put]:
        return [Put(key, b"0") for key in self.keys]

    async def step(self, rng: random.Random, process: int) -> Result | KvError | None:
        if rng.random() < 0.3:
            return await self.read(process)
        adds = {key: rng.randint(-2, 5) for key in rng.sample(self.keys, rng.choice((1, 2)))}
        value = {key.decode(): n for key, n in adds.items()}
        return await self.operate(process, "counter_add", success=[Add(k, n) for k, n in adds.items()], value=value)

    async def read(self, process: int, timeout: float | None = None) -> Result | KvError | None:
        return await self.operate(process, self.reader, success=[Get(k) for k in self.keys], timeout=timeout)


def _found(result: Result) -> Values:
    return {one.found.key.decode(): int(one.found.value) for one in result.results if one.found}


WORKLOADS: dict[str, type[Workload]] = {w.name: w for w in (Cycle, LongFork, Set, CounterWorkload)}


async def run(
    name: str,
    target: str | Path | Sequence[str],
    *,
    directory: Path | None = None,
    clients: int = 8,
    seconds: float = 10.0,
    seed: int = 1,
    timeout: float = TIMEOUT_SECONDS,
    stop: asyncio.Event | None = None,
    on_pause: Callable[[Counter[str]], None] | None = None,
) -> tuple[Counter[str], bool]:
    """Run one of WORKLOADS for `seconds`, or until `stop`: what its clients did, whether the last read was answered.

    directory: where `history/NAME.jsonl` goes; None: no history. timeout: of one operation, in seconds. on_pause: hears
    every PROGRESS_SECONDS what was done so far. KvError, too, if nothing but the first writes was answered.
    """
    stop = stop or asyncio.Event()
    history = HistoryWriter.create(directory, name) if directory else None
    try:
        async with AsyncClient(target, timeout=timeout) as store:
            workload = WORKLOADS[name](store, history, seed)
            await workload.open()
            first = workload.answered
            running = [asyncio.create_task(workload.client(i, stop)) for i in range(clients)]
            stopping = asyncio.create_task(stop.wait())
            try:
                end = time.monotonic() + seconds
                while (left := end - time.monotonic()) > 0:
                    pause = min(left, PROGRESS_SECONDS)
                    done, _ = await asyncio.wait(
                        [stopping, *running], timeout=pause, return_when=asyncio.FIRST_COMPLETED
                    )
                    if done:
                        break
                    if on_pause:
                        on_pause(workload.counts)
                stop.set()
                await asyncio.gather(*running)
            finally:
                for task in (stopping, *running):
                    task.cancel()
                await asyncio.gather(stopping, *running, return_exceptions=True)
            if workload.answered == first:
                raise KvError(f"no operation was answered: {dict(workload.counts)}")
            return workload.counts, await workload.close()
    finally:
        if history:
            history.close()


async def _command(options: argparse.Namespace) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def interrupted(number: signal.Signals) -> None:
        stop.set()
        loop.remove_signal_handler(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, interrupted, number)
    began = time.monotonic()

    def said(counts: Counter[str]) -> str:
        done = ", ".join(f"{what}: {n}" for what, n in sorted(counts.items()))
        seconds = time.monotonic() - began
        return f"{options.name}: {sum(counts.values())} operations in {seconds:.1f} s ({done})"

    common = {"directory": options.history, "seconds": options.seconds, "timeout": options.timeout}
    common |= {"clients": options.clients, "seed": options.seed}
    if options.name == "bank":
        totals, balances = await bank.run(options.target, stop=stop, **common)
        print(bank.describe(totals, time.monotonic() - began))
        good = bool(balances) and not totals.wrong_totals
    else:
        counts, good = await run(
            options.name, options.target, stop=stop,
            on_pause=lambda counts: print(said(counts), file=sys.stderr, flush=True), **common,
        )  # fmt: skip
        print(said(counts))
        if not good:
            print("the last read of everything was not answered", file=sys.stderr)
    if options.history:
        print(f"to judge it: python -m spark_etl audit {options.history}")
    return 0 if good else 1


def _positive(text: str) -> float:
    number = float(text)
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"a positive number, not {text}")
    return number


def _whole(text: str) -> int:
    number = int(text)
    if not 1 <= number <= CLIENTS_MAX:
        raise argparse.ArgumentTypeError(f"from 1 to {CLIENTS_MAX}, not {text}")
    return number


def main() -> int:
    """The command line. Exit status: 0; 1 if it failed, or the last read was not answered; 2 for bad usage."""
    description, _, _ = (__doc__ or "").partition("\n    python")
    parser = argparse.ArgumentParser(
        prog="python -m workloads.invariants", description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("name", choices=["bank", *sorted(WORKLOADS)])
    parser.add_argument("target", help="a cluster's directory, or URLs with commas between them")
    parser.add_argument("--seconds", type=_positive, default=10.0, help="how long (default: 10)")
    parser.add_argument("--clients", type=_whole, default=8, help="at once (default: 8)")
    parser.add_argument("--seed", type=int, default=1, help="of what the clients choose (default: 1)")
    parser.add_argument(
        "--timeout", type=_positive, default=TIMEOUT_SECONDS,
        help=f"of one operation; beyond it its outcome is unknown (default: {TIMEOUT_SECONDS:.0f} s)",
    )  # fmt: skip
    parser.add_argument(
        "--history", type=Path, metavar="DIR",
        help="write DIR/history/NAME.jsonl; for the audit: the cluster's directory",
    )  # fmt: skip
    options = parser.parse_args()
    try:
        return asyncio.run(_command(options))
    except KeyboardInterrupt:
        return 130
    except (KvError, ValueError, OSError) as error:
        print(f"invariants: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
