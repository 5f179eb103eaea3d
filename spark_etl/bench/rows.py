"""All rows of the table of the audit's speed, each in a process of its own, the best of several."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from spark_etl.bench.histories import write_lists
from spark_etl.bench.measure import ALL, SCAN, WARM, Result

Progress = Callable[[str], None]


class Row(msgspec.Struct):
    """cold, warm, scan: seconds by the clock, of the first and of the second audit of one session, and of reading the
    same tables; warm and scan -1: there is none. memory: MB at most, of Java and Python together; -1: not looked at."""

    name: str
    transactions: int
    cold: float
    warm: float = -1.0
    scan: float = -1.0
    memory: int = -1

    @property
    def per_second(self) -> int:
        """Transactions, of the quicker of the two."""
        return round(self.transactions / max(min(self.cold, self.warm if self.warm > 0 else self.cold), 1e-3))


class Rows(msgspec.Struct):
    """machine: as in `measure.Result`."""

    rows: list[Row]
    machine: dict[str, str]
    version: int = 1


def measure(transactions: int, large: int, best_of: int, run: Path | None, out: Path, progress: Progress) -> Rows:
    """transactions: of each row but that of many, which has `large`. run: the directory of a run, audited cold."""
    rows: list[Row] = []
    machine: dict[str, str] = {}
    inputs = {
        "versions against real time": (transactions, []),
        "one key with 30 % of all operations": (transactions, ["--hot", "0.3"]),
        "one stale read": (transactions, ["--stale"]),
        "many": (large, []),
    }
    for name, (count, options) in inputs.items():
        found = []
        for turn in range(best_of):
            progress(f"{name}, {turn + 1} of {best_of}")
            file = out / "one.json"
            kept = ("--dir", str(out / "input"), "--json", str(file))
            _command("bench", "--transactions", str(count), *options, *kept, "--quiet")
            found.append(msgspec.json.decode(file.read_bytes(), type=Result))
        shutil.rmtree(out / "input")
        rows.append(_best(name, found))
        machine = found[-1].machine
    rows += _others(transactions, best_of, run, out, progress)
    return Rows(rows, machine)


def _best(name: str, found: list[Result]) -> Row:
    def least(stage: str) -> float:
        return min(s.seconds for one in found for s in one.stages if s.name == stage)

    memory = min(sum(one.memory.values()) for one in found)
    return Row(name, found[0].transactions, least(ALL), least(WARM), least(SCAN), memory)


def _others(transactions: int, best_of: int, run: Path | None, out: Path, progress: Progress) -> Iterator[Row]:
    """Whole commands, with the start of Python and Java."""
    lists = out / "lists.jsonl"
    write_lists(lists, transactions)
    commands = {"a history of lists, from outside": (transactions, ["check-history", str(lists)])}
    if run is not None:
        commands["a run, from its journals"] = (0, ["audit", str(run), "--out", str(out / "tables")])
    for name, (count, command) in commands.items():
        seconds = []
        for turn in range(best_of):
            progress(f"{name}, {turn + 1} of {best_of}")
            for old in sorted((out / "tables").rglob("*"), reverse=True):
                old.unlink() if old.is_file() else old.rmdir()
            began = time.monotonic()
            _command(*command, "--quiet")
            seconds.append(time.monotonic() - began)
        yield Row(name, count, round(min(seconds), 2))


def _command(*arguments: str) -> None:
    """Of this program; it may accuse, and say so."""
    done = subprocess.run([sys.executable, "-m", "spark_etl", *arguments], stdout=subprocess.DEVNULL, check=False)
    if done.returncode not in (0, 1):
        raise OSError(f"python -m spark_etl {' '.join(arguments)}: status {done.returncode}")


def render(found: Rows, console: Console) -> None:
    """For people."""
    table = Table(show_edge=False, pad_edge=False)
    table.add_column("what")
    for name in ("transactions", "cold s", "warm s", "transactions/s", "plain scan s", "memory MB"):
        table.add_column(name, justify="right")
    for row in found.rows:
        speed = f"{row.per_second:,}" if row.transactions else ""
        seconds = [f"{one:.1f}" if one >= 0 else "" for one in (row.cold, row.warm)]
        scan, memory = (f"{row.scan:.1f}" if row.scan >= 0 else ""), (f"{row.memory:,}" if row.memory >= 0 else "")
        table.add_row(row.name, f"{row.transactions:,}" if row.transactions else "", *seconds, speed, scan, memory)
    console.print(table)
    for name, value in found.machine.items():
        console.print(f"{name}: {value}", highlight=False, soft_wrap=True)
