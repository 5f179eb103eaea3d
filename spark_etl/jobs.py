"""The command line: `python -m spark_etl --help`. Each command loads what it needs: Spark takes a second."""

from __future__ import annotations

import logging
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.console import Console

from spark_etl.report import Report, console, render, render_violation, to_json, visible

if TYPE_CHECKING:
    from spark_etl.bench.rows import Rows
    from spark_etl.stages import Progress, Stages
    from spark_etl.watch import Round

app = typer.Typer(
    add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None,
    epilog="Exit status: 0 valid, 1 violated, 2 could not decide (input is missing or damaged, or is none).",
)  # fmt: skip


@app.callback()
def main() -> None:
    """Check what replicas did, from their own journals and the clients' histories, with Spark."""


class What(StrEnum):
    """Commands whose report is JSON."""

    audit = "audit"
    check_history = "check-history"


RunDir = Annotated[Path, typer.Argument(help="directory of a cluster or of a simulated run")]
Out = Annotated[Path | None, typer.Option(help="Parquet tables and reports go there; default RUN_DIR/audit")]
Json = Annotated[Path | None, typer.Option(help="write the report there too, as JSON; - is standard output")]
Html = Annotated[Path | None, typer.Option(help="write the page there; default OUT/report.html")]
Master = Annotated[str, typer.Option(help="Spark master; its workers must see the same files")]
Memory = Annotated[str, typer.Option(help="memory of Spark's driver, e.g. 2g")]
HistoryExpected = Annotated[
    bool, typer.Option("--history/--no-history", help="whether the run should have a client history")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="no progress lines")]


@app.command()
def audit(
    run_dir: RunDir,
    json: Json = None,
    html: Html = None,
    out: Out = None,
    master: Master = "local[*]",
    memory: Memory = "2g",
    history: HistoryExpected = True,
    quiet: Quiet = False,
) -> None:
    """Extract, check and report.

    Says which guarantees a run kept, and proves which it did not.

    Exit status: 0 valid; 1 something is violated; 2 it could not decide, because input is missing or damaged.

    \b
    python -m spark_etl audit run/first
    python -m spark_etl audit run/first --html page.html --quiet
    python -m spark_etl audit run/first --quiet --json - | jq .verdict
    """
    with _stage("audit", quiet) as progress:
        stages = _stages(run_dir, out, master, memory, progress)
        report = stages.audit(expect_history=history)
        stages.publish(report, _file(json), html)
        terminal = _console(json, to_json(report))
        render(report, terminal)
        print(f"page: {stages.page(html)}", file=terminal.file)
    raise typer.Exit(report.exit_code)


@app.command()
def watch(
    run_dir: RunDir,
    every: Annotated[float, typer.Option(help="seconds from one round to the next", min=0.0, max=1e6)] = 2.0,
    rounds: Annotated[int, typer.Option(help="end after so many; 0: when interrupted", min=0)] = 0,
    json: Json = None,
    html: Html = None,
    out: Out = None,
    master: Master = "local[*]",
    memory: Memory = "2g",
    history: HistoryExpected = True,
    quiet: Quiet = False,
) -> None:
    """Follow a run that goes on.

    A line with the verdict every few seconds; what is violated at once, with the reason. Interrupted (Ctrl-C), it
    prints the last report. It can be started again, and goes on where it was.

    Exit status: that of the last report: 0 valid; 1 something is violated; 2 it could not decide.

    \b
    python -m spark_etl watch run/first
    python -m spark_etl watch run/first --every 10 --out tables
    """
    terminal = console(sys.stderr if json == STANDARD_OUTPUT else None)

    def told(found: Round) -> None:
        if not quiet:
            print(time.strftime("%H:%M:%S"), found.line(), file=terminal.file, flush=True)
        for problem in found.problems:
            print(f"PROBLEM: {visible(problem)}", file=terminal.file, flush=True)
        for name, violation in found.alarms:
            print(f"ALARM: {name} is violated", file=terminal.file)
            render_violation(violation, terminal)
        if found.alarms and found.report is not None:
            stages.publish(found.report, _file(json), html)

    with _stage("watch", quiet) as progress:
        stages = _stages(run_dir, out, master, memory, progress)
        report = stages.watch(expect_history=history, every=every, rounds=rounds, told=told)
        if report is None:
            print("watch: it ended before anything was judged", file=sys.stderr)
            raise typer.Exit(2)
        stages.publish(report, _file(json), html)
        render(report, _console(json, to_json(report)))
        print(f"page: {stages.page(html)}", file=terminal.file)
    raise typer.Exit(report.exit_code)


@app.command()
def extract(
    run_dir: RunDir, out: Out = None, master: Master = "local[*]", memory: Memory = "2g", quiet: Quiet = False
) -> None:
    """Journals and histories to Parquet.

    Only what is new is parsed.

    Exit status: 0, or 2 if there is no run.

    \b
    python -m spark_etl extract run/first --out tables
    """
    with _stage("extract", quiet) as progress:
        print(_stages(run_dir, out, master, memory, progress).extract())


@app.command()
def check(
    run_dir: RunDir,
    json: Json = None,
    out: Out = None,
    master: Master = "local[*]",
    memory: Memory = "2g",
    history: HistoryExpected = True,
    quiet: Quiet = False,
) -> None:
    """Check what was extracted.

    From the Parquet alone; the result is in OUT/report.json.

    Exit status: 0 valid; 1 something is violated; 2 it could not decide.

    \b
    python -m spark_etl check run/first --out tables
    """
    with _stage("check", quiet) as progress:
        stages = _stages(run_dir, out, master, memory, progress)
        result = stages.check(expect_history=history)
        stages.publish(result, _file(json), None, page=False)
        render(result, _console(json, to_json(result)))
    raise typer.Exit(result.exit_code)


@app.command()
def report(run_dir: RunDir, json: Json = None, html: Html = None, out: Out = None, quiet: Quiet = False) -> None:
    """Write the page of the last check.

    Exit status: that of the check: 0 valid; 1 something is violated; 2 it could not decide.

    \b
    python -m spark_etl report run/first --out tables --html page.html
    """
    with _stage("report", quiet) as progress:
        stages = _stages(run_dir, out, "", "", progress)
        result = stages.last()
        stages.publish(result, _file(json), html)
        print(f"page: {stages.page(html)}\nverdict: {result.verdict}", file=_console(json, to_json(result)).file)
    raise typer.Exit(result.exit_code)


@app.command("check-history")
def check_history(
    path: Annotated[Path, typer.Argument(help="a history (JSON lines), or a directory of them")],
    json: Annotated[Path | None, typer.Option(help="write the report there, as JSON; - is standard output")] = None,
    html: Annotated[Path | None, typer.Option(help="write a page there, with every cycle drawn")] = None,
    version_orders: Annotated[Path | None, typer.Option(help="JSON: key -> its values in their order")] = None,
    model: Annotated[str, typer.Option(help="that decides on the exit status, e.g. snapshot-isolation")] = "",
    seconds: Annotated[float, typer.Option(help="of a history's searches; beyond, not determined", min=0.0)] = 300.0,
    configurations: Annotated[int, typer.Option(help="of one search for linearizability", min=1)] = 2_000_000,
    master: Annotated[str, typer.Option(help="Spark master")] = "local[*]",
    memory: Annotated[str, typer.Option(help="memory of Spark's driver, e.g. 2g")] = "2g",
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="no progress lines")] = False,
) -> None:
    """Judge histories of any database.

    Says which consistency models hold, and names every anomaly with its reason.

    Exit status: 0 the model holds; 1 it is violated; 2 it is not determined, or the input is bad. The worst history
    counts. Beside verdict files (NAME.verdict.json): 1 if one disagrees.

    \b
    python -m spark_etl check-history history.jsonl --html page.html
    python -m spark_etl check-history history.jsonl --model snapshot-isolation
    python -m spark_etl check-history directory --quiet --json - | jq .summary
    """
    began = time.monotonic()
    with _stage("check-history", quiet) as progress:
        from spark_etl.blackbox import report as histories
        from spark_etl.blackbox.command import Request
        from spark_etl.blackbox.command import report as judge_files
        from spark_etl.page import histories as histories_page
        from spark_etl.stages import write

        request = Request(
            path=path, version_orders=version_orders, model=model, seconds=seconds, configurations=configurations,
            master=master, memory=memory,
        )  # fmt: skip
        report = judge_files(request, progress, lambda: time.monotonic() - began)
        if (file := _file(json)) is not None:
            write(file, histories.to_json(report))
        if html is not None:
            write(html, histories_page.page(report, request.files).encode())
    terminal = _console(json, histories.to_json(report))
    if path.is_file():
        histories.render_one(report.histories[0], terminal)
    else:
        histories.render_many(report, terminal)
    raise typer.Exit(report.exit_code)


@app.command()
def prepare(quiet: Quiet = False) -> None:
    """Make audits start sooner, once per installation.

    Keeps Spark's classes beside the installed packages as Java has loaded them. `make` does it. Another version of
    Java or of Spark does without, until this is said again.

    Exit status: 0; 2 if it could not.

    \b
    python -m spark_etl prepare
    """
    with _stage("prepare", quiet) as progress:
        from spark_etl.prepare import prepare as keep_classes

        print(keep_classes(progress))


def _a_number_of_shards(number: int) -> int:
    from spark_etl.frames.relations import SHARDS_MAX

    if number > SHARDS_MAX:
        raise typer.BadParameter(f"at most {SHARDS_MAX}")
    return number


@app.command()
def bench(
    transactions: Annotated[int, typer.Option(help="how many", min=1)] = 100_000,
    shards: Annotated[int, typer.Option(help="each with a clock of its own", min=1, callback=_a_number_of_shards)] = 8,
    replicas: Annotated[int, typer.Option(help="of each shard", min=1, max=9)] = 3,
    seed: Annotated[int, typer.Option(help="another one, another run")] = 1,
    hot: Annotated[float, typer.Option(help="the share of all operations that is on one key", min=0.0, max=1.0)] = 0.0,
    stale: Annotated[bool, typer.Option("--stale", help="one read is stale: the run is violated")] = False,
    directory: Annotated[Path | None, typer.Option("--dir", help="keep the tables there")] = None,
    json: Annotated[Path | None, typer.Option(help="write the numbers there, as JSON")] = None,
    master: Master = "local[*]",
    memory: Memory = "2g",
    quiet: Quiet = False,
) -> None:
    """Measure how fast the checks are.

    On a large, correct run whose versions run against real time.

    \b
    python -m spark_etl bench --transactions 1000000 --json bench.json
    python -m spark_etl bench --transactions 1000000 --stale
    """
    with _stage("bench", quiet) as progress:
        from spark_etl.bench import measure as benchmark
        from spark_etl.bench.inputs import Shape

        shape = Shape(transactions, shards, replicas, seed, hot, stale)
        result = benchmark.run(shape, directory, master, memory, progress)
        if json is not None:
            json.parent.mkdir(parents=True, exist_ok=True)
            json.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=2) + b"\n")
        benchmark.render(result, console())
    raise typer.Exit(benchmark.exit_code(result))


@app.command("bench-table")
def bench_table(
    transactions: Annotated[int, typer.Option(help="of each row", min=1000)] = 50_000,
    large: Annotated[int, typer.Option(help="of the row of many", min=1000)] = 200_000,
    best_of: Annotated[int, typer.Option(help="how often each row is measured", min=1)] = 1,
    run: Annotated[Path | None, typer.Option(help="the directory of a run: its audit is a row, too")] = None,
    json: Annotated[Path | None, typer.Option(help="keep the numbers there, and go on from those that are")] = None,
    quiet: Quiet = False,
) -> None:
    """Measure how fast the checks are, on several inputs.

    Each in a new process: the first audit of a session (cold), the second one (warm), and a plain scan of its tables.
    With --json each number is kept as soon as it is known: said again, the same command measures what is missing.

    Exit status: 0; 2 if a row failed.

    \b
    python -m spark_etl bench-table --run run/first
    python -m spark_etl bench-table --transactions 5000000 --large 20000000 --best-of 3 --json bench.json
    """
    with _stage("bench-table", quiet) as progress, tempfile.TemporaryDirectory(prefix="audit-bench-") as out:
        from spark_etl.bench import rows
        from spark_etl.stages import write

        def keep(found: Rows) -> None:
            if json is not None:
                write(json, msgspec.json.format(msgspec.json.encode(found), indent=2) + b"\n")

        try:
            known = rows.Rows([]) if json is None else rows.read(json)
        except ValueError as error:
            raise OSError(f"{json}: it is no table of this version ({error}); remove it") from None
        wanted = rows.wanted(transactions, large, run)
        result = rows.measure(wanted, best_of, Path(out), progress, keep, known)
        rows.render(result, console())
    raise typer.Exit(2 if any(row.failed for row in result.rows) else 0)


@app.command()
def show(
    file: Annotated[Path, typer.Argument(help="journal segment, or history")],
    place: Annotated[int, typer.Argument(help="byte at which the record begins, or line of a history, from 1")],
) -> None:
    """Print what stands at a place in a log.

    One record of a journal, checked against its checksum, or one line of a history, as JSON.

    Exit status: 0, or 2 if nothing good begins there.

    \b
    python -m spark_etl show run/first/replicas/3/journal/journal-00000000.seg 144
    python -m spark_etl show run/first/history/bank.jsonl 7
    """
    with _stage("show", True):
        from spark_etl.ingest.show import show as record_at

        _print_json(msgspec.json.encode(record_at(file, place)))


@app.command("schema")
def json_schema(
    what: Annotated[What, typer.Argument(help="whose report")] = What.audit,
) -> None:
    """Print the JSON Schema of a report.

    \b
    python -m spark_etl schema check-history
    """
    kind: Any = Report
    if what is What.check_history:
        from spark_etl.blackbox.report import HistoriesReport as kind
    _print_json(msgspec.json.encode(msgspec.json.schema(kind)))


STANDARD_OUTPUT = Path("-")


def _stages(*arguments: Any) -> Stages:
    from spark_etl.stages import Stages

    return Stages(*arguments)


def _file(json: Path | None) -> Path | None:
    return None if json == STANDARD_OUTPUT else json


def _console(json: Path | None, report: bytes) -> Console:
    """Where the table goes: standard error, if the JSON goes to standard output; then it is written here."""
    if json != STANDARD_OUTPUT:
        return console()
    sys.stdout.buffer.write(report)
    sys.stdout.flush()
    return console(sys.stderr)


def _print_json(data: bytes) -> None:
    print(msgspec.json.format(data, indent=2).decode())


@contextmanager
def _stage(name: str, quiet: bool) -> Iterator[Progress]:
    """Progress lines, and one line for whatever goes wrong."""
    began = time.monotonic()
    signal.signal(signal.SIGTERM, _terminate)
    logging.basicConfig(level=logging.CRITICAL)  # py4j would print a stack trace when it is interrupted

    def progress(text: str) -> None:
        if not quiet:
            print(f"{time.monotonic() - began:6.1f} s  {text}", file=sys.stderr, flush=True)

    try:
        yield progress
    except KeyboardInterrupt:
        print(f"{name}: interrupted", file=sys.stderr)
        raise typer.Exit(130) from None
    except _sentences() as error:
        print(f"{name}: {visible(error)}", file=sys.stderr)
        raise typer.Exit(2) from None
    except _failures_of_spark() as error:
        print(f"{name}: Spark failed: {_cause(str(error))}", file=sys.stderr)
        raise typer.Exit(2) from None


def _sentences() -> tuple[type[Exception], ...]:
    """Whose text is for people."""
    from spark_etl.blackbox.history import BadHistory
    from spark_etl.ingest.sources import Unreadable
    from spark_etl.session import CannotStart

    return CannotStart, Unreadable, BadHistory, OSError


def _failures_of_spark() -> tuple[type[Exception], ...]:
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    return Py4JError, PySparkException


def _cause(text: str) -> str:
    """The line that says why, of a failure of Spark's."""
    first, *others = text.strip().splitlines() or [""]
    if "exception was thrown from the Python worker" in first:  # and its stack trace follows
        return next((line for line in others if line[:1].strip() and not line.startswith("Traceback ")), first)
    return others[0].lstrip(": ") if others and first.startswith("An error occurred while calling") else first


def _terminate(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
