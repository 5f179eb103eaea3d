"""`python -m spark_etl bench`: how fast the checks are, stage by stage, on an input that makes them work."""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pyarrow
import pyspark
from rich.console import Console
from rich.table import Table

from spark_etl.audit import Audit
from spark_etl.bench_input import Shape, generate
from spark_etl.report import VIOLATED
from spark_etl.session import check_java, spark_session

Progress = Callable[[str], None]


class Stage(msgspec.Struct):
    """seconds it took; transactions_per_second: of the whole input."""

    name: str
    seconds: float
    transactions_per_second: int


class Result(msgspec.Struct):
    """late: operations that fail the certificate of real time. memory: greatest resident size, MB, of Java, and of
    Python with its workers. verdict: of the audit, which must be "valid"."""

    transactions: int
    shards: int
    replicas: int
    rows: dict[str, int]
    verdict: str
    late: int
    stages: list[Stage]
    memory: dict[str, int]
    machine: dict[str, str]
    version: int = 1


class _Stopwatch:
    def __init__(self, progress: Progress):
        self._progress = progress
        self._name = ""
        self._since = time.monotonic()
        self.seconds: dict[str, float] = {}

    def next(self, name: str) -> None:
        """The stage before ends here."""
        now = time.monotonic()
        if self._name:
            self.seconds[self._name] = self.seconds.get(self._name, 0.0) + now - self._since
        self._name, self._since = name, now
        if name:
            self._progress(name)


def run(shape: Shape, directory: Path | None, master: str, memory: str, progress: Progress) -> Result:
    """Generate, check, measure. directory: the tables stay there; None: they go."""
    check_java()
    with _place(directory) as out, _watch_memory() as peak:
        progress("starting Spark")
        watch = _Stopwatch(progress)
        with spark_session(out, master, memory, 2**40 if shape.transactions > 20_000 else 0) as spark:
            watch.next("generating")
            manifest = generate(spark, shape, out)
            audit = Audit(spark, out, out, progress=watch.next)
            watch.next("opening")
            report = audit.check_all()
            watch.next("")
    checked = sum(seconds for name, seconds in watch.seconds.items() if name != "generating")
    stages = [
        Stage(name, round(seconds, 2), round(shape.transactions / max(seconds, 1e-3)))
        for name, seconds in (*watch.seconds.items(), ("all checks", checked))
    ]
    return Result(
        shape.transactions, shape.shards, shape.replicas, manifest.rows(), report.verdict, audit.late or 0, stages,
        {name: value // 1_000_000 for name, value in peak.items()}, _machine(master, memory),
    )  # fmt: skip


@contextmanager
def _place(directory: Path | None) -> Iterator[Path]:
    if directory is not None:
        directory.mkdir(parents=True, exist_ok=True)
        yield directory
        return
    made = Path(tempfile.mkdtemp(prefix="audit-bench-"))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


@contextmanager
def _watch_memory() -> Iterator[dict[str, int]]:
    """The greatest resident memory, bytes, of this process's Java and Python, looked at twice a second."""
    peak = {"java": 0, "python": 0}
    done = threading.Event()

    def look() -> None:
        while not done.wait(0.5):
            for name, size in _resident().items():
                peak[name] = max(peak[name], size)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        done.set()
        thread.join()


def _resident() -> dict[str, int]:
    """Resident bytes of this process and its descendants: of those called java, and of the others. Empty off Linux."""
    parents: dict[int, tuple[int, str, int]] = {}
    for entry in Path("/proc").glob("[0-9]*") if Path("/proc").is_dir() else ():
        try:
            name, _, rest = (entry / "stat").read_text().partition("(")[2].rpartition(")")
            fields = rest.split()
            parents[int(entry.name)] = (int(fields[1]), name, int(fields[21]) * os.sysconf("SC_PAGE_SIZE"))
        except (OSError, ValueError, IndexError):
            continue  # it has just ended
    sizes = {"java": 0, "python": 0}
    for process, (_, name, size) in parents.items():
        at = process
        while at in parents and at != os.getpid():
            at = parents[at][0]
        if at == os.getpid():
            sizes["java" if name == "java" else "python"] += size
    return sizes


def _machine(master: str, memory: str) -> dict[str, str]:
    model = ""
    if (path := Path("/proc/cpuinfo")).is_file():
        model = next((line.split(":")[1].strip() for line in path.read_text().splitlines() if "model name" in line), "")
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "processor": f"{os.cpu_count()} x {model or platform.machine()}",
        "memory": f"{pages / 2**30:.1f} GiB",
        "load": " ".join(f"{value:.1f}" for value in os.getloadavg()),
        "system": platform.platform(),
        "python": platform.python_version(),
        "pyspark": pyspark.__version__,
        "pyarrow": pyarrow.__version__,
        "spark": f"{master}, driver memory {memory}",
    }


def render(result: Result, console: Console) -> None:
    """For people."""
    share = 100 * result.late / max(result.transactions, 1)
    console.print(
        f"{result.transactions:,} transactions, {result.shards} shards of {result.replicas}: "
        + ", ".join(f"{name} {count:,}" for name, count in result.rows.items()),
        highlight=False,
        soft_wrap=True,
    )
    table = Table(show_edge=False, pad_edge=False)
    table.add_column("stage")
    for name in ("seconds", "transactions/s"):
        table.add_column(name, justify="right")
    for stage in result.stages:
        table.add_row(stage.name, f"{stage.seconds:.1f}", f"{stage.transactions_per_second:,}")
    console.print(table)
    lines = [
        f"{result.late:,} operations ({share:.0f} %) fail the certificate of real time; verdict: {result.verdict}",
        "memory at most: " + ", ".join(f"{name} {size:,} MB" for name, size in result.memory.items()),
        *(f"{name}: {value}" for name, value in result.machine.items()),
    ]
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True)


def exit_code(result: Result) -> int:
    """1 if the audit accuses the run, which is correct."""
    return 1 if result.verdict == VIOLATED else 0 if result.verdict == "valid" else 2
