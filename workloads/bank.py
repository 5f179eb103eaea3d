"""A bank: transfers between accounts on all shards, and reads of all accounts at once. The total never changes.

Every operation is one one-shot transaction. A transfer succeeds if the source keeps its minimum: it compares the source
and then adds -n to it and +n to the target, usually on another shard. Comparisons of values are bytewise, so every
account holds between 1,000,000 and 9,999,999: with seven digits the order of the texts is that of the numbers.
Accounts start just above the minimum, so that some transfers fail for lack of money, at the source's shard only: the
other shard has to follow its vote. Some transfers name another account, which pays if the source cannot: a transaction
nested in the failure branch of one that is nested, too.

    python -m workloads.bank TARGET [--seconds 10] [--clients 8] [--accounts 24] [--seed 1] [--history DIR]

writes DIR/history/bank.jsonl if asked; exits 0, or 1 if a read of all accounts saw another total.
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

import msgspec

from client_sdk import AsyncClient, KvError, OutcomeUnknown, Result, ResultsForgotten
from client_sdk.keyspace import ALL_KEYS
from kvstore.api.model import Add, Compare, Get, Operation, OperationResult, Put, Transaction, Txn, TxnResult
from kvstore.core import audit
from multicast.types import ZERO, MessageId, Timestamp, new_message_id
from workloads.history import HistoryWriter

MINIMUM = 1_000_000
START = MINIMUM + 200
TRANSFER_MAX = 50
ACCOUNTS = 24
PREFIX = "account/"

READ_ALL_SHARE = 0.05
READ_PAIR_SHARE = 0.15
NESTED_SHARE = 0.1
"""Of the transfers: with another account to pay."""


class Totals(msgspec.Struct):
    """What a bank's clients have done so far.

    transfers: that moved money. refused: too little money. reads: of one pair or of all accounts. failed: certainly
    without effect. unknown: outcome unknown. wrong_totals: reads of all accounts that saw another total.
    """

    transfers: int = 0
    refused: int = 0
    reads: int = 0
    failed: int = 0
    unknown: int = 0
    wrong_totals: int = 0
    errors: Counter[str] = msgspec.field(default_factory=Counter)

    @property
    def answered(self) -> int:
        """Operations that were applied."""
        return self.transfers + self.refused + self.reads


class Bank:
    """The workload. `open`, then `client` any number of times at once, then `read_all` for the last word.

    Two banks with the same seed make the same choices (which client gets how far is up to the cluster). pause_seconds:
    how long a client thinks between two operations.
    """

    def __init__(self, store: AsyncClient, history: HistoryWriter | None, *, accounts: int = ACCOUNTS, seed: int = 1):
        if not 2 <= accounts <= 256:
            raise ValueError(f"accounts: from 2 to 256, not {accounts}")
        self.store = store
        self.history = history
        self.accounts = [f"{PREFIX}{i:03}" for i in range(accounts)]
        self.total = accounts * START
        self.totals = Totals()
        self.pause_seconds = 0.0
        self._seed = seed
        self._ids = random.Random(f"ids {seed} {time.time_ns()}")
        self._processes = 0

    async def open(self, timeout: float = 30.0) -> None:
        """Create the accounts, all in one transaction, unless they exist."""
        keys = [a.encode() for a in self.accounts]
        compare = [Compare(k, "exists", "==", False) for k in keys]
        writes = [Put(k, b"%d" % START) for k in keys]
        opened = await self._operate(self._process(), "open", compare, writes, (), timeout)
        if isinstance(opened, KvError):
            raise opened
        values = await self.read_all(timeout=timeout)
        self.totals = Totals()
        beyond = await self.store.get(f"{PREFIX}{len(self.accounts):03}", timeout=timeout)
        if set(values) != set(self.accounts) or beyond is not None:
            raise ValueError("the store holds accounts of a bank of another size; use a fresh cluster, or as many")
        self.total = sum(values.values())

    async def client(self, number: int, stop: asyncio.Event) -> None:
        """Operate, one after the other, until `stop`. An operation of unknown outcome ends that process of the history
        and another begins, as its end is still open."""
        rng = random.Random(f"client {self._seed} {number}")
        process = self._process()
        while not stop.is_set():
            if await self._choose(rng, process) is None:
                process = self._process()
            await asyncio.sleep(self.pause_seconds)

    async def read_all(self, *, timeout: float | None = None) -> dict[str, int]:
        """Every account's balance, at one point of the order; empty if that failed."""
        reads = [Get(a.encode()) for a in self.accounts]
        result = await self._operate(self._process(), "read_all", (), reads, (), timeout)
        return _balances(result) if isinstance(result, Result) else {}

    async def _choose(self, rng: random.Random, process: int) -> Result | KvError | None:
        draw = rng.random()
        source, target, *others = (a.encode() for a in rng.sample(self.accounts, min(3, len(self.accounts))))
        if draw < READ_ALL_SHARE:
            return await self._operate(process, "read_all", (), [Get(a.encode()) for a in self.accounts], ())
        if draw < READ_ALL_SHARE + READ_PAIR_SHARE:
            return await self._operate(process, "read_pair", (), [Get(source), Get(target)], ())
        amount = rng.randint(1, TRANSFER_MAX)
        enough, moved = _payment(source, target, amount)
        if rng.random() >= NESTED_SHARE:
            return await self._operate(process, "transfer", enough, moved, ())
        instead = Txn(*_payment(others[0] if others else source, target, amount))
        return await self._operate(process, "transfer", (), [Txn(enough, moved, (instead,))], ())

    async def _operate(
        self,
        process: int,
        f: str,
        compare: Sequence[Compare],
        success: Sequence[Operation],
        failure: Sequence[Operation],
        timeout: float | None = None,
    ) -> Result | KvError | None:
        """One operation, in the history from start to end. None: its outcome is unknown; an error: it has no effect."""
        message_id: MessageId = new_message_id(time.time_ns() // 1000, self._ids.getrandbits(62))
        if self.history:
            self.history.invoke(process, message_id, f, asked=audit.asked(compare, success, failure))
        try:
            transaction = Transaction(tuple(compare), tuple(success), tuple(failure))
            result = await self.store.run(ALL_KEYS.transaction(transaction, message_id=message_id, timeout=timeout))
        except KvError as error:
            return self._lost(process, message_id, f, error)
        except BaseException:
            if self.history:
                self.history.info(process, message_id, f, "interrupted")
            raise
        seen: dict[str, Timestamp] = {}
        if f.startswith("read"):
            for get, one in zip(success, result.results, strict=True):
                assert isinstance(get, Get)
                seen[get.key.decode()] = one.found.version if one.found else ZERO
        if self.history:
            value = _balances(result) if f == "read_all" else None
            told = audit.told(success if result.succeeded else failure, result.results)
            done = result.succeeded
            self.history.ok(process, message_id, f, result.version, succeeded=done, reads=seen, value=value, told=told)
        self._count(f, result)
        return result

    def _lost(self, process: int, message_id: MessageId, f: str, error: KvError) -> KvError | None:
        self.totals.errors[error.code or type(error).__name__] += 1
        if isinstance(error, ResultsForgotten):
            if self.history:
                self.history.ok(process, message_id, f, error.version, succeeded=error.succeeded)
            return error
        if isinstance(error, OutcomeUnknown):
            self.totals.unknown += 1
            if self.history:
                self.history.info(process, message_id, f, str(error))
            return None
        self.totals.failed += 1
        if self.history:
            self.history.fail(process, message_id, f, str(error))
        return error

    def _count(self, f: str, result: Result) -> None:
        if f == "transfer":
            if _moved(result.succeeded, result.results):
                self.totals.transfers += 1
            else:
                self.totals.refused += 1
        elif f.startswith("read"):
            self.totals.reads += 1
            if f == "read_all" and sum(_balances(result).values()) != self.total:
                self.totals.wrong_totals += 1

    def _process(self) -> int:
        self._processes += 1
        return self._processes - 1


def _payment(source: bytes, target: bytes, amount: int) -> tuple[tuple[Compare, ...], tuple[Operation, ...]]:
    """What must hold, and what is done then."""
    enough = Compare(source, "value", ">", b"%d" % (MINIMUM + amount - 1))
    return (enough,), (Add(source, -amount), Add(target, amount))


def _moved(succeeded: bool, results: Sequence[OperationResult]) -> bool:
    """Whether money moved; `results` are of the branch that ran."""
    nested = [one for one in results if isinstance(one, TxnResult)]
    return any([_moved(one.succeeded, one.results) for one in nested]) if nested else succeeded


def _balances(result: Result) -> dict[str, int]:
    found = [one.found for one in result.results]
    return {f.key.decode(): int(f.value) for f in found if f is not None}


async def run(
    target: str | Path | Sequence[str],
    *,
    directory: Path | None = None,
    clients: int = 8,
    accounts: int = ACCOUNTS,
    seconds: float = 10.0,
    seed: int = 1,
    timeout: float = 10.0,
    stop: asyncio.Event | None = None,
    on_second: Callable[[float, Totals], None] | None = None,
) -> tuple[Totals, dict[str, int]]:
    """Run a bank for `seconds`, or until `stop`; what its clients did, and the balances at the end.

    directory: where `history/bank.jsonl` goes; None: no history. timeout: of one operation, in seconds.
    on_second(elapsed seconds, totals) is called each second. KvError, too, if nothing was answered.
    """
    stop = stop or asyncio.Event()
    history = HistoryWriter.create(directory, "bank") if directory else None
    try:
        async with AsyncClient(target, timeout=timeout) as store:
            bank = Bank(store, history, accounts=accounts, seed=seed)
            await bank.open()
            running = [asyncio.create_task(bank.client(i, stop)) for i in range(clients)]
            try:
                await _watch(seconds, stop, running, bank.totals, on_second)
                stop.set()
                await asyncio.gather(*running)
            finally:
                for task in running:
                    task.cancel()
                await asyncio.gather(*running, return_exceptions=True)
            if not bank.totals.answered:
                raise KvError(f"no operation was answered, {bank.totals.failed} failed, {bank.totals.unknown} unknown")
            return bank.totals, await bank.read_all(timeout=30.0)
    finally:
        if history:
            history.close()


async def _watch(
    seconds: float,
    stop: asyncio.Event,
    running: list[asyncio.Task[None]],
    totals: Totals,
    on_second: Callable[[float, Totals], None] | None,
) -> None:
    """Until `seconds` have passed, `stop` is set, or a client has failed."""
    began = time.monotonic()
    stopping = asyncio.create_task(stop.wait())
    try:
        while (elapsed := time.monotonic() - began) < seconds:
            pause = min(1.0, seconds - elapsed)
            done, _ = await asyncio.wait([stopping, *running], timeout=pause, return_when=asyncio.FIRST_COMPLETED)
            if on_second:
                on_second(time.monotonic() - began, totals)
            if done:
                return
    finally:
        stopping.cancel()


def describe(totals: Totals, seconds: float) -> str:
    """One line for people."""
    text = (
        f"{totals.answered} transactions in {seconds:.1f} s ({totals.answered / max(seconds, 1e-9):.0f}/s): "
        f"{totals.transfers} transfers, {totals.refused} refused for lack of money, {totals.reads} reads; "
        f"{totals.failed} without effect, {totals.unknown} of unknown outcome"
    )
    if totals.errors:
        text += " (" + ", ".join(f"{code}: {n}" for code, n in sorted(totals.errors.items())) + ")"
    return text


async def _command(options: argparse.Namespace) -> int:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    began = time.monotonic()
    totals, balances = await run(
        options.target,
        directory=options.history,
        clients=options.clients,
        accounts=options.accounts,
        seconds=options.seconds,
        seed=options.seed,
        stop=stop,
        on_second=lambda elapsed, t: print(f"{elapsed:5.0f} s  {describe(t, elapsed)}", flush=True),
    )
    print(describe(totals, time.monotonic() - began))
    print(f"total of {len(balances)} accounts: {sum(balances.values())}; wrong totals seen: {totals.wrong_totals}")
    return 1 if totals.wrong_totals or not balances else 0


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m workloads.bank", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("target", help="a cluster's directory, or URLs with commas between them")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--accounts", type=int, default=ACCOUNTS)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--history", type=Path, default=None, help="write the client history under this directory")
    try:
        return asyncio.run(_command(parser.parse_args()))
    except (KvError, ValueError, OSError) as error:
        print(f"bank: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
