"""The command line: `python -m spark_etl audit RUN_DIR`."""

from __future__ import annotations

import logging
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from spark_etl.audit import Audit, Progress, Unreadable
from spark_etl.blackbox import report as histories
from spark_etl.blackbox.command import Request
from spark_etl.blackbox.command import report as judge_files
from spark_etl.blackbox.history import BadHistory
from spark_etl.extract import find_segments
from spark_etl.report import console, render, to_json
from spark_etl.session import CannotStart, check_java, spark_session

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)


@app.callback()
def main() -> None:
    """Check what replicas did, from their own journals and the clients' histories, with Spark."""


@app.command()
def audit(
    run_dir: Annotated[Path, typer.Argument(help="directory of a cluster or of a simulated run")],
    json: Annotated[Path | None, typer.Option(help="write the report there, as JSON")] = None,
    out: Annotated[Path | None, typer.Option(help="Parquet tables go there; default RUN_DIR/audit")] = None,
    master: Annotated[str, typer.Option(help="Spark master")] = "local[2]",
    memory: Annotated[str, typer.Option(help="memory of Spark's driver, e.g. 2g")] = "2g",
    history: Annotated[
        bool, typer.Option("--history/--no-history", help="whether the run should have a client history")
    ] = True,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="no progress lines")] = False,
) -> None:
    """Audit a run. Exit status: 0 valid, 1 violated, 2 could not decide (input missing or damaged)."""
    began = time.monotonic()
    signal.signal(signal.SIGTERM, _terminate)
    logging.basicConfig(level=logging.CRITICAL)  # py4j would print a stack trace when it is interrupted

    def progress(text: str) -> None:
        if not quiet:
            print(f"{time.monotonic() - began:6.1f} s  {text}", file=sys.stderr, flush=True)

    try:
        report = _audit(run_dir, out or run_dir / "audit", json, master, memory, history, progress, began)
    except (CannotStart, Unreadable, OSError) as error:
        print(f"audit: {error}", file=sys.stderr)
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        print("audit: interrupted", file=sys.stderr)
        raise typer.Exit(130) from None
    raise typer.Exit(report)


@app.command("check-history")
def check_history(
    path: Annotated[Path, typer.Argument(help="a history (JSON lines), or a directory of them")],
    json: Annotated[Path | None, typer.Option(help="write the report there, as JSON")] = None,
    version_orders: Annotated[Path | None, typer.Option(help="JSON: key -> its values in their order")] = None,
    model: Annotated[str, typer.Option(help="that decides on the exit status, e.g. snapshot-isolation")] = "",
    seconds: Annotated[float, typer.Option(help="of one search; beyond it, not determined", min=0.0)] = 60.0,
    configurations: Annotated[int, typer.Option(help="of one search for linearizability", min=1)] = 2_000_000,
    master: Annotated[str, typer.Option(help="Spark master")] = "local[*]",
    memory: Annotated[str, typer.Option(help="memory of Spark's driver, e.g. 2g")] = "2g",
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="no progress lines")] = False,
) -> None:
    """Judge histories of any database. Exit status: 0 the model holds, 1 violated, 2 not determined or bad input.
    Beside verdict files: 1 if one disagrees."""
    began = time.monotonic()
    signal.signal(signal.SIGTERM, _terminate)
    logging.basicConfig(level=logging.CRITICAL)  # py4j would print a stack trace when it is interrupted

    def progress(text: str) -> None:
        if not quiet:
            print(f"{time.monotonic() - began:6.1f} s  {text}", file=sys.stderr, flush=True)

    request = Request(
        path=path, version_orders=version_orders, model=model, seconds=seconds, configurations=configurations,
        master=master, memory=memory,
    )  # fmt: skip
    try:
        report = judge_files(request, progress, lambda: time.monotonic() - began)
        if json is not None:
            json.parent.mkdir(parents=True, exist_ok=True)
            json.write_bytes(histories.to_json(report))
    except (CannotStart, BadHistory, OSError) as error:
        print(f"check-history: {error}", file=sys.stderr)
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        print("check-history: interrupted", file=sys.stderr)
        raise typer.Exit(130) from None
    if path.is_file():
        histories.render_one(report.histories[0], console())
    else:
        histories.render_many(report, console())
    raise typer.Exit(report.exit_code)


def _audit(
    run_dir: Path,
    out: Path,
    json: Path | None,
    master: str,
    memory: str,
    history: bool,
    progress: Progress,
    began: float,
) -> int:
    """The exit status."""
    if not run_dir.is_dir():
        raise Unreadable(f"{run_dir}: there is no such directory")
    segments = find_segments(run_dir)
    if not segments:
        raise Unreadable(f"{run_dir}: it holds no journal (replicas/*/journal/journal-*.seg); is it a run's directory?")
    check_java()
    progress("starting Spark")
    size = sum(Path(segment.path).stat().st_size for segment in segments)
    with spark_session(out, master, memory, size) as spark:
        report = Audit(spark, run_dir, out, expect_history=history, progress=progress).run(began)
    render(report, console())
    if json is not None:
        json.parent.mkdir(parents=True, exist_ok=True)
        json.write_bytes(to_json(report))
    return report.exit_code


def _terminate(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
