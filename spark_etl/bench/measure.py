"""`python -m spark_etl bench`: how fast the checks are, stage by stage, on an input that makes them work."""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import msgspec
import pyarrow
import pyspark
from rich.console import Console
from rich.table import Table

from spark_etl.audit.runner import Audit
from spark_etl.bench.inputs import Shape, generate
from spark_etl.ingest.tables import Tables
from spark_etl.report import VIOLATED
from spark_etl.session import check_java, sessions

Progress = Callable[[str], None]

BEFORE = ("generating", "starting Spark")
ALL, WARM, SCAN = "all checks", "all checks again, warm", "a plain scan of the same tables"


class Stage(msgspec.Struct):
    """seconds it took; processor: seconds that all processors together spent on it; transactions_per_second: of the
    whole input, by the clock."""

    name: str
    seconds: float
    processor: float
    transactions_per_second: int


class Result(msgspec.Struct):
    """late: operations that fail the certificate of real time. memory: at most while checks went on, MB, of Java, of
    Python with its workers, and of both together; what processes share counts once. disk: MB, of the tables, and at
    most of what Spark put aside. verdict: of the audit, which must be "valid"."""

    transactions: int
    shards: int
    replicas: int
    rows: dict[str, int]
    verdict: str
    late: int
    stages: list[Stage]
    memory: dict[str, int]
    disk: dict[str, int]
    machine: dict[str, str]
    version: int = 2


class _Stopwatch:
    def __init__(self, progress: Progress):
        self._progress = progress
        self._name = ""
        self._since = (0.0, 0.0)
        self.spent: dict[str, tuple[float, float]] = {}

    def next(self, name: str) -> None:
        """The stage before ends here."""
        now = time.monotonic(), sum(process.processor for process in _processes())
        if self._name:
            before = self.spent.get(self._name, (0.0, 0.0))
            self.spent[self._name] = before[0] + now[0] - self._since[0], before[1] + now[1] - self._since[1]
        self._name, self._since = name, now
        if name:
            self._progress(name)


def run(shape: Shape, directory: Path | None, master: str, memory: str, progress: Progress) -> Result:
    """Generate, check, measure. directory: the tables stay there; None: they go."""
    check_java()
    load = " ".join(f"{value:.1f}" for value in os.getloadavg())
    watch = _Stopwatch(progress)
    with _place(directory) as out:
        watch.next("generating")
        with ProcessPoolExecutor(1, get_context("spawn")) as aside:  # whose memory is none of the audit's
            manifest = aside.submit(generate, shape, out).result()
        watch.next("starting Spark")
        large = 2**40 if shape.transactions > 20_000 else 0
        with _watch(out / "tmp") as peak, sessions(out, master, memory, large) as (spark, heavier):
            audit = Audit(spark, out, out, progress=watch.next, heavier=heavier)
            watch.next("opening")
            report = audit.check_all()
            watch.next("")
            checks = [value for name, value in watch.spent.items() if name not in BEFORE]
            watch.spent[ALL] = sum(seconds for seconds, _ in checks), sum(processor for _, processor in checks)
            watch.next(WARM)
            Audit(audit.spark, out, out).check_all()
            peaks = {name: value // 1_000_000 for name, value in peak.items()}
            watch.next("")
            fast = heavier() if heavier is not None else audit.spark
            watch.next(SCAN)
            _scan(Tables(fast, out, manifest))
            watch.next("")
        tables = _size(out)
    spent = watch.spent
    stages = [
        Stage(name, round(seconds, 2), round(processor, 2), round(shape.transactions / max(seconds, 1e-3)))
        for name, (seconds, processor) in spent.items()
    ]
    return Result(
        shape.transactions, shape.shards, shape.replicas, manifest.rows(), report.verdict, audit.late or 0, stages,
        {name: peaks[name] for name in ("java", "python", "together")},
        {"tables": tables // 1_000_000, "put aside": peaks["disk"]},
        {"load before": load} | _machine(master, memory),
    )  # fmt: skip


def _scan(tables: Tables) -> None:
    """Every column of every table is read, and forgotten."""
    for table, rows in tables.counts.items():
        if rows:
            tables.frame(table).write.format("noop").mode("overwrite").save()


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
def _watch(temporary: Path) -> Iterator[dict[str, int]]:
    """The greatest memory, bytes, of this process's Java and Python, and the greatest size of a directory, looked at
    twice a second, and at once."""
    peak = {"java": 0, "python": 0, "together": 0, "disk": 0}
    done = threading.Event()

    def look() -> None:
        ended = False
        while not ended:
            now = {"java": 0, "python": 0, "disk": _size(temporary)}
            for process in _processes():
                now["java" if process.name == "java" else "python"] += _share(process.number)
            now["together"] = now["java"] + now["python"]
            for name, size in now.items():
                peak[name] = max(peak[name], size)
            ended = done.wait(0.5)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        done.set()
        thread.join()


def _size(directory: Path) -> int:
    """Bytes of all files in there."""
    total = 0
    for parent, _, names in os.walk(directory):
        for name in names:
            with contextlib.suppress(OSError):  # it has just gone
                total += os.stat(os.path.join(parent, name)).st_size
    return total


def _share(process: int) -> int:
    """Bytes of a process, those that it shares with others in equal shares. 0: it has gone, or this is not Linux."""
    with contextlib.suppress(OSError):
        rows = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
        return next((int(row.split()[1]) * 1024 for row in rows if row.startswith("Pss:")), 0)
    return 0


class _Process(NamedTuple):
    """processor: seconds, with those of its children that have ended."""

    number: int
    parent: int
    name: str
    processor: float


def _processes() -> list[_Process]:
    """This process and its descendants. Empty off Linux."""
    every: dict[int, _Process] = {}
    tick = os.sysconf("SC_CLK_TCK")
    for entry in Path("/proc").glob("[0-9]*") if Path("/proc").is_dir() else ():
        try:
            name, _, rest = (entry / "stat").read_text().partition("(")[2].rpartition(")")
            fields = rest.split()
            times = sum(map(int, fields[11:15]))  # utime, stime, cutime, cstime: proc(5)
            every[int(entry.name)] = _Process(int(entry.name), int(fields[1]), name, times / tick)
        except (OSError, ValueError, IndexError):
            continue  # it has just ended
    ours = []
    for number, process in every.items():
        at = number
        while at in every and at != os.getpid():
            at = every[at].parent
        if at == os.getpid():
            ours.append(process)
    return ours


def _machine(master: str, memory: str) -> dict[str, str]:
    model = ""
    if (path := Path("/proc/cpuinfo")).is_file():
        model = next((line.split(":")[1].strip() for line in path.read_text().splitlines() if "model name" in line), "")
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "processor": f"{os.cpu_count()} x {model or platform.machine()}",
        "memory": f"{pages / 2**30:.1f} GiB",
        "load after": " ".join(f"{value:.1f}" for value in os.getloadavg()),
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
    for name in ("seconds", "processor s", "transactions/s"):
        table.add_column(name, justify="right")
    for stage in result.stages:
        speed = f"{stage.transactions_per_second:,}" if stage.seconds >= 0.05 else ""
        table.add_row(stage.name, f"{stage.seconds:.1f}", f"{stage.processor:.1f}", speed)
    console.print(table)
    lines = [
        f"{result.late:,} operations ({share:.0f} %) fail the certificate of real time; verdict: {result.verdict}",
        "memory at most: " + ", ".join(f"{name} {size:,} MB" for name, size in result.memory.items()),
        "disk: " + ", ".join(f"{name} {size:,} MB" for name, size in result.disk.items()),
        *(f"{name}: {value}" for name, value in result.machine.items()),
    ]
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True)


def exit_code(result: Result) -> int:
    """1 if the audit accuses the run, which is correct unless a stale read was asked for."""
    return 1 if result.verdict == VIOLATED else 0 if result.verdict == "valid" else 2
