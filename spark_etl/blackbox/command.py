"""`python -m spark_etl check-history FILE|DIR`: from files to a report."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from spark_etl.blackbox import jobs
from spark_etl.blackbox.compare import (
    Expected,
    Orders,
    internal_name,
    public_name,
    read_expected,
    verdict_file,
)
from spark_etl.blackbox.history import BadHistory
from spark_etl.blackbox.judge import LINEARIZABLE
from spark_etl.blackbox.models import MODELS
from spark_etl.blackbox.report import HistoriesReport, HistoryReport
from spark_etl.session import spark_session

Progress = Callable[[str], None]
_POLL_SECONDS = 5.0


class Request(msgspec.Struct, kw_only=True):
    """What was asked for. path: of a history or a directory of them. model: that decides on the exit status; empty: the
    strongest that the history's information allows. seconds: of the searches of one history; configurations: of one
    search."""

    path: Path
    version_orders: Path | None = None
    model: str = ""
    seconds: float = 300.0
    configurations: int = 2_000_000
    master: str = "local[*]"
    memory: str = "2g"

    @property
    def files(self) -> dict[str, Path]:
        """History -> its file. Of a directory also what cannot be read: a link to nowhere, a directory of which nobody
        knows what it holds. BadHistory if there is none."""
        if self.path.is_file():
            return {self.path.name: self.path}
        if not self.path.is_dir():
            raise BadHistory(f"{self.path}: there is no such file or directory")
        found: list[Path] = []
        closed: list[OSError] = []
        for directory, _, names in os.walk(self.path, onerror=closed.append):
            found += [Path(directory, name) for name in names if name.endswith(".jsonl")]
        found += [Path(error.filename) for error in closed]
        if not found:
            raise BadHistory(f"{self.path}: it holds no history (*.jsonl)")
        return {path.relative_to(self.path).as_posix(): path for path in sorted(found)}

    def check(self) -> None:
        """BadHistory if it cannot be fulfilled."""
        if self.model and internal_name(self.model) not in (*MODELS, LINEARIZABLE):
            raise BadHistory(f"{self.model!r} is no model; there are {', '.join(map(public_name, MODELS))}")
        if self.version_orders is not None and not self.path.is_file():
            raise BadHistory("an order of versions can be given for a single history only")


def _orders(path: Path) -> Orders:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Orders)
    except (msgspec.DecodeError, RecursionError, OSError) as error:
        raise BadHistory(f"{path}: not an order of versions, {{key: [values]}}: {error}") from None


def _expectations(files: dict[str, Path], orders: Path | None) -> dict[str, tuple[Expected, bool]]:
    """history -> (what its verdict file says, whether there is one)."""
    found = {}
    for name, path in files.items():
        beside = verdict_file(path)
        compared = os.path.lexists(beside)
        expected = read_expected(beside) if compared else Expected()
        if orders is not None:
            expected.version_order = _orders(orders)
        found[name] = (expected, compared)
    return found


def run(request: Request, progress: Progress) -> list[HistoryReport]:
    """Judge all of it, in the order of the names. BadHistory, session.CannotStart."""
    request.check()
    files = request.files
    known = _expectations(files, request.version_orders)
    errors = {name: jobs.refusal(path) for name, path in files.items()}
    rows = _judge(request, {name: path for name, path in files.items() if not errors[name]}, known, progress)
    return [
        _report(name, rows[name], request.model)
        if name in rows
        else HistoryReport(name, errors[name] or "it could not be read")
        for name in files
    ]


def _judge(
    request: Request, files: dict[str, Path], known: dict[str, tuple[Expected, bool]], progress: Progress
) -> dict[str, Any]:
    """history -> its row of `jobs.VERDICTS`."""
    if not files:
        return {}
    progress(f"{len(files)} histories; starting Spark")
    with _temporary() as directory, spark_session(directory, request.master, request.memory) as spark:
        contexts = {name: jobs.Context(*known[name], request.seconds, request.configurations) for name in files}
        tasks = max(1, min(len(files), 4 * spark.sparkContext.defaultParallelism))
        table = spark.createDataFrame([(name, str(path.absolute())) for name, path in files.items()], jobs.FILES)
        verdicts = jobs.judge_files(table.repartition(tasks), contexts)
        with _watch(spark.sparkContext, progress):
            return {row["history"]: row for row in verdicts.collect()}


def _report(name: str, row: Any, model: str) -> HistoryReport:
    if row["error"]:
        return HistoryReport(name, row["error"])
    details = msgspec.json.decode(row["details"], type=jobs.Details)
    judgement = details.judgement
    assert judgement is not None
    asked = internal_name(model) if model else judgement.asked
    return HistoryReport(
        history=name,
        transactions=judgement.transactions,
        asked=public_name(asked),
        verdict=judgement.models[asked].verdict,
        strongest=[public_name(m) for m in judgement.strongest],
        anomalies=judgement.anomalies,
        models={public_name(m): verdict for m, verdict in judgement.models.items()},
        sessions=judgement.sessions,
        comparison=details.comparison,
    )


@contextmanager
def _temporary() -> Iterator[Path]:
    """Removed afterwards, unless something went wrong: Spark's log is there."""
    directory = Path(tempfile.mkdtemp(prefix="check-history-"))
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def _watch(context: Any, progress: Progress) -> Iterator[None]:
    """Say now and then how far Spark is."""
    done = threading.Event()

    def look() -> None:
        told = ""
        while not done.wait(_POLL_SECONDS):
            tracker = context.statusTracker()
            stages = [info for i in tracker.getActiveStageIds() if (info := tracker.getStageInfo(i))]
            text = ", ".join(f"{s.numCompletedTasks} of {s.numTasks} parts" for s in stages)
            if text and text != told:
                progress(f"judging: {text} done")
                told = text

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def report(request: Request, progress: Progress, seconds: Callable[[], float]) -> HistoriesReport:
    """`run`, with counts. seconds: since the beginning."""
    histories = run(request, progress)
    return HistoriesReport(str(request.path), histories, round(seconds(), 1), request.path.is_dir())
