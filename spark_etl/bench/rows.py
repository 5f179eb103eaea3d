"""All rows of the table of the audit's speed, each in a process of its own, the best of several turns.

What a turn measured is kept at once: whoever is interrupted loses that turn only, and goes on from what is known.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from spark_etl.bench.histories import write_lists
from spark_etl.bench.measure import ALL, SCAN, WARM, Result

Progress = Callable[[str], None]

_INPUT, _LISTS, _ONE = "input", "lists.jsonl", "one.json"


class Turn(msgspec.Struct):
    """cold, warm, scan: seconds by the clock, of the first and of the second audit of one session, and of reading the
    same tables; memory: MB at most, of Java and Python together; -1: there is none. failed: why it came to no end, or
    empty."""

    cold: float = -1.0
    warm: float = -1.0
    scan: float = -1.0
    memory: int = -1
    failed: str = ""


class Row(msgspec.Struct):
    """transactions: 0 if that is not the row's to say. options: of the command that is measured."""

    name: str
    transactions: int
    options: list[str]
    turns: list[Turn] = []

    def best(self, column: str) -> float:
        """The least of a column of turns; -1: there is none."""
        return min((value for turn in self.turns if (value := getattr(turn, column)) >= 0), default=-1)

    @property
    def per_second(self) -> int:
        """Transactions, of the quicker of the first and the second audit; 0: not known."""
        known = [seconds for seconds in (self.best("cold"), self.best("warm")) if seconds >= 0]
        return round(self.transactions / max(min(known), 1e-3)) if known else 0

    @property
    def failed(self) -> str:
        """Why there is no number, or empty."""
        return "" if self.best("cold") >= 0 else next((turn.failed for turn in self.turns if turn.failed), "")


class Rows(msgspec.Struct):
    """machine: as in `measure.Result`."""

    rows: list[Row]
    machine: dict[str, str] = {}
    version: int = 2


def wanted(transactions: int, large: int, run: Path | None) -> list[Row]:
    """transactions: of each row but that of many, which has `large`. run: the directory of a run, audited cold."""
    rows = [
        Row("versions against real time", transactions, ["bench"]),
        Row("one key with 30 % of all operations", transactions, ["bench", "--hot", "0.3"]),
        Row("one stale read", transactions, ["bench", "--stale"]),
        Row("a history of lists, from outside", transactions, ["check-history"]),
        Row("many", large, ["bench"]),
    ]
    if run is not None:
        rows.insert(0, Row("a run, from its journals", 0, ["audit", str(run.absolute())]))
    return rows


def read(path: Path) -> Rows:
    """What was kept; nothing, if there is no such file. ValueError: it holds something else."""
    return msgspec.json.decode(path.read_bytes(), type=Rows) if path.is_file() else Rows([])


def measure(
    rows: list[Row], best_of: int, out: Path, progress: Progress, keep: Callable[[Rows], None], known: Rows
) -> Rows:
    """Every row as often as wanted, but for the turns that are known. out: for inputs, which go. keep: is handed all
    that is known after each turn."""
    before = {(row.name, row.transactions, *row.options): row.turns for row in known.rows}
    for row in rows:
        row.turns = [turn for turn in before.get((row.name, row.transactions, *row.options), []) if not turn.failed]
    result = Rows(rows, known.machine)
    for row in rows:
        for number in range(len(row.turns) + 1, best_of + 1):
            progress(f"{row.name}, {row.transactions:,} transactions, {number} of {best_of}")
            turn = _turn(row, out, result)
            row.turns.append(turn)
            keep(result)
            progress(f"{row.name}: {turn.failed or _said(turn)}")
            if turn.failed:
                break
        for name in (_INPUT, _LISTS):
            _remove(out / name)
    return result


def _said(turn: Turn) -> str:
    parts = {"cold": turn.cold, "warm": turn.warm, "plain scan": turn.scan}
    seconds = ", ".join(f"{name} {value:.1f} s" for name, value in parts.items() if value >= 0)
    return f"{seconds}, {turn.memory:,} MB" if turn.memory >= 0 else seconds


def _remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def _turn(row: Row, out: Path, result: Rows) -> Turn:
    try:
        return _of_tables(row, out, result) if row.options[0] == "bench" else _of_command(row, out)
    except OSError as error:
        return Turn(failed=str(error))


def _of_tables(row: Row, out: Path, result: Rows) -> Turn:
    file = out / _ONE
    _remove(file)
    _command(*row.options, "--transactions", str(row.transactions), "--dir", str(out / _INPUT), "--json", str(file))
    found = msgspec.json.decode(file.read_bytes(), type=Result)
    result.machine = found.machine
    seconds = {stage.name: stage.seconds for stage in found.stages}
    return Turn(seconds[ALL], seconds[WARM], seconds[SCAN], found.memory["together"])


def _of_command(row: Row, out: Path) -> Turn:
    """A whole command, with the start of Python and Java."""
    options = ["--out", str(out / _INPUT)]
    if row.options[0] == "check-history":
        options = [str(out / _LISTS)]
        if not (out / _LISTS).is_file():
            write_lists(out / _LISTS, row.transactions)
    _remove(out / _INPUT)
    began = time.monotonic()
    _command(*row.options, *options)
    return Turn(round(time.monotonic() - began, 2))


def _command(*arguments: str) -> None:
    """Of this program; it may accuse, and say so. OSError if it comes to no end."""
    command = [sys.executable, "-m", "spark_etl", *arguments, "--quiet"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as child:
        try:
            status = child.wait()
        except BaseException:
            child.terminate()  # it ends its Java, too
            raise
    if status not in (0, 1):
        raise OSError(f"python -m spark_etl {' '.join(arguments)}: status {status}")


def render(found: Rows, console: Console) -> None:
    """For people."""
    table = Table(show_edge=False, pad_edge=False)
    table.add_column("what")
    for name in ("transactions", "cold s", "warm s", "transactions/s", "plain scan s", "memory MB"):
        table.add_column(name, justify="right")
    for row in found.rows:
        if not row.turns:
            continue
        size = f"{row.transactions:,}" if row.transactions else ""
        if row.failed:
            table.add_row(row.name, size, "failed")
            continue
        cold, warm, scan = (f"{one:.1f}" if (one := row.best(c)) >= 0 else "" for c in ("cold", "warm", "scan"))
        memory = f"{one:,.0f}" if (one := row.best("memory")) >= 0 else ""
        table.add_row(row.name, size, cold, warm, f"{row.per_second:,}" if size else "", scan, memory)
    console.print(table)
    for row in found.rows:
        if row.failed:
            console.print(f"{row.name}: {row.failed}", highlight=False, soft_wrap=True)
    for name, value in found.machine.items():
        console.print(f"{name}: {value}", highlight=False, soft_wrap=True)
