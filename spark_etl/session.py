"""Starting and stopping Spark: quiet, with everything temporary inside one directory; a local one on loopback only."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any
from zlib import crc32

JAVA_MAJOR_MIN = 17

SMALL_INPUT_BYTES = 512 * 1024 * 1024
"""Journals up to this size are audited without optimising queries at run time or compiling them all the way: for a run
of 100 records that was half of the processor time, and for a stale read of five million transactions it was a third.
Larger ones, too, until many of their rows must be queried."""
END_SECONDS = 30
"""For Java, when it has nothing more to do."""

_SMALL_JVM = " -XX:+UseSerialGC -XX:MetaspaceSize=256m"
_SOON_OVER = " -XX:TieredStopAtLevel=1"
"""Java's second compiler pays after some minutes: what it compiles takes half of the processor time."""
_LASTING = (
    " -XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000"
    " -XX:Tier4CompileThreshold=150000 -XX:Tier4BackEdgeThreshold=400000"
)
"""And then for what is called ten times as often as it would wait for: ten audits of a violated run, one after another,
took a fifth less processor time, and the last ones were the faster."""
_WARNINGS = " -Xlog:disable -Xlog:all=warning:stderr"
"""Java's own, as that kept classes do not fit; it would write them to standard output."""
_LOOPBACK = {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
_SMALL_SETTINGS = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.shuffle.partitions": "2",
    # Optimising for rows that are not there, and checking plans after each rule: a tenth of the processor time.
    "spark.sql.constraintPropagation.enabled": "false",
    "spark.sql.optimizer.dynamicPartitionPruning.enabled": "false",
    "spark.sql.optimizer.runtime.bloomFilter.enabled": "false",
    "spark.sql.lightweightPlanChangeValidation": "false",
    "spark.sql.limit.initialNumPartitions": "64",  # of what is found the first is looked for in all at once
}

_FEW_SETTINGS = {
    # Nor is anything compiled, or looked through for what comes twice: of ten thousand rows that was a third of the
    # time; of 200,000 it is as fast either way.
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.subexpressionElimination.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.leafNodeDefaultParallelism": "1",
    "spark.sql.files.openCostInBytes": "0",  # else some files of few rows are a task of their own
}
PLANNED_ROWS = 1_000_000
"""Queries of up to so many rows take most of their time to plan."""
FEW_ROWS = 100_000


class CannotStart(Exception):
    """Spark cannot run here; the text says why and what to do."""


def check_java() -> str:
    """What the Java says of itself that Spark is to run on. CannotStart unless Spark 4 does."""
    remedy = f"install Java {JAVA_MAJOR_MIN} or newer (Debian: apt install openjdk-17-jre-headless) or set JAVA_HOME"
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if java is None or shutil.which(java) is None:
        where = f"JAVA_HOME is {home}, which has none" if home else "there is none on the path"
        raise CannotStart(f"the audit runs on Spark, which needs Java, and {where}; {remedy}")
    answer = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    lines = (answer.stderr + answer.stdout).splitlines(keepends=True)
    said = "".join(line for line in lines if not line.startswith("Picked up "))  # options from the environment
    found = re.search(r'version "(\d+)(?:\.(\d+))?', said)
    major = int(found[2] or 0) if found and found[1] == "1" else int(found[1]) if found else 0
    if major < JAVA_MAJOR_MIN:
        raise CannotStart(f"Spark needs Java {JAVA_MAJOR_MIN} or newer, and {java} is version {major}; {remedy}")
    return said


def kept_classes(java: str) -> Path:
    """Where Spark's classes are kept as a Java has loaded them that says this of itself (`prepare.prepare`): any other
    could not read them. It maps them into its memory; to load and check them anew was a quarter of the processor time
    of a small audit."""
    return Path(sys.prefix, "var", "spark_etl", f"{version('pyspark')}-{crc32(java.encode()):08x}.jsa")


@contextmanager
def spark_session(
    directory: Path,
    master: str = "local[2]",
    memory: str = "2g",
    input_bytes: int = 0,
    lasting: bool = False,
    keep: Path | None = None,
) -> Iterator[Any]:
    """A Spark session fit for so much input. `directory` receives `spark.log` and, while it runs, `tmp`. lasting: it
    serves many audits, one after another. keep: when its Java ends, it writes there what classes it has loaded.
    CannotStart if it does not start."""
    classes = _classes(kept_classes(check_java()), keep)
    temporary = directory / "tmp"
    spark = None
    try:
        with _later():
            temporary.mkdir(parents=True, exist_ok=True)
            spark = _start(directory, temporary, master, memory, input_bytes <= SMALL_INPUT_BYTES, lasting, classes)
        yield spark
    except Exception as error:
        if _interrupted(error):
            raise KeyboardInterrupt from None
        raise
    finally:
        try:
            with suppress(Exception):  # Java may have gone, before this program noticed what ended both
                if spark is not None:
                    spark.stop()
        finally:
            with _later():
                shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def sessions(
    directory: Path, master: str, memory: str, input_bytes: int
) -> Iterator[tuple[Any, Callable[[], Any] | None]]:
    """A session that starts soon and plans soon, and, for much input, how to get one in its place in which queries of
    many rows are soon done. It is over with the block. CannotStart, also of the second."""
    with ExitStack() as stack:

        def heavier() -> Any:
            stack.close()
            _end_java()
            return stack.enter_context(spark_session(directory, master, memory, input_bytes))

        spark = stack.enter_context(spark_session(directory, master, memory))
        yield spark, heavier if input_bytes > SMALL_INPUT_BYTES else None


def _end_java() -> None:
    """What is started next has a Java of its own, with other options; under spark-submit there is one for all."""
    from pyspark import SparkContext

    gateway: Any = SparkContext._gateway
    java: subprocess.Popen[bytes] | None = getattr(gateway, "proc", None)
    if java is None or java.stdin is None:
        return
    gateway.shutdown()
    java.stdin.close()  # then it ends
    with suppress(subprocess.TimeoutExpired):
        java.wait(END_SECONDS)
    java.kill()
    java.wait()
    SparkContext._gateway = SparkContext._jvm = None


def _classes(kept: Path, keep: Path | None) -> str:
    """Java's options for classes that are kept, or to be kept."""
    if keep is not None:
        return f'{_WARNINGS} -XX:ArchiveClassesAtExit="{keep}"'
    return f'{_WARNINGS} -XX:SharedArchiveFile="{kept}"' if kept.is_file() else ""


def _start(
    directory: Path, temporary: Path, master: str, memory: str, small: bool, lasting: bool, classes: str
) -> Any:
    from pyspark.sql import SparkSession

    from spark_etl.gateway import remember

    os.environ["PYSPARK_PYTHON"] = sys.executable
    root = Path(__file__).resolve().parent.parent  # workers import these packages by name; it may be an archive
    if str(root) not in os.environ.get("PYTHONPATH", "").split(os.pathsep):
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH")]))
    if local := master.startswith("local"):
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    flags = (_SMALL_JVM + (_LASTING if lasting else _SOON_OVER)) if small else ""
    flags += classes
    settings = {
        **(_LOOPBACK if local else {"spark.executorEnv.PYTHONPATH": f"{root}{os.pathsep}{root.name}"}),
        "spark.driver.memory": memory,
        "spark.driver.extraJavaOptions": f'-Djava.io.tmpdir="{temporary}"{flags}',
        "spark.local.dir": str(temporary),
        "spark.sql.warehouse.dir": str(temporary / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.buffer.pageSize": "2m",  # each of a plan's dozens of aggregates asks for a page, however few its rows
        "spark.sql.shuffle.partitions": "4",
        "spark.sql.maxConcurrentOutputFileWriters": "16",  # the tables, without sorting the rows by table first
        "spark.sql.session.timeZone": "UTC",
        "spark.python.daemon.module": "spark_etl.certify.daemon",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "50000",
        "spark.python.sql.dataFrameDebugging.enabled": "false",  # asks Java for the line of every call on a column
        # What nobody looks at: a text of each plan, and counters of each task.
        "spark.sql.ui.explainMode": "simple",
        "spark.sql.debug.maxToStringFields": "0",
        "spark.ui.liveUpdate.period": "-1",
        "spark.sql.icu.caseMappings.enabled": "false",  # they need a table of all letters
        **(_SMALL_SETTINGS if small else {}),
    }
    builder = SparkSession.builder.appName("audit").master(master)
    for name, value in settings.items():
        builder = builder.config(name, value)
    log = directory / "spark.log"
    with _errors_to(log):
        try:
            with ThreadPoolExecutor(1) as aside:  # in the main thread PySpark would take interruptions for itself
                spark = aside.submit(builder.getOrCreate).result()
        except Exception as error:
            reason = str(error).strip().splitlines()
            raise CannotStart(f"Spark did not start: {reason[0] if reason else error!r}; its log is {log}") from None
    remember(spark.sparkContext._jvm)
    work_in_this_thread(spark)
    spark.sparkContext.setLogLevel("ERROR")
    # where Java tells it of counters: it would print a stack trace when that has gone
    spark.sparkContext._accumulatorServer.handle_error = lambda *_: None
    return spark


def work_in_this_thread(spark: Any) -> None:
    """Its queries are of this session, as those of the thread that began it."""
    spark._jvm.SparkSession.setActiveSession(spark._jsparkSession)
    for form in ("short", "long"):  # of where in this program a job begins: else Java looks for it in its own stack
        spark.sparkContext.setLocalProperty(f"callSite.{form}", "audit")


@contextmanager
def of_rows(spark: Any, rows: int) -> Iterator[None]:
    """Queries are planned meanwhile as is best for so many rows."""
    wanted = (_SMALL_SETTINGS if rows <= PLANNED_ROWS else {}) | (_FEW_SETTINGS if rows <= FEW_ROWS else {})
    before = {name: spark.conf.get(name, None) for name in wanted}
    try:
        for name, value in wanted.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, value in before.items():
            if value is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, value)


@contextmanager
def _later() -> Iterator[None]:
    """SIGINT and SIGTERM interrupt after the block: a Java that is half started would be nobody's, and stay. Not what
    the block raises then: Java was told, too, as everybody of a group or of a service is."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    noted: list[int] = []
    wanted = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, lambda number, frame: noted.append(number)) for number in wanted]
    try:
        yield
    finally:
        for number, handler in zip(wanted, before, strict=True):
            signal.signal(number, handler)
        if noted:
            raise KeyboardInterrupt from None


def _interrupted(error: BaseException | None) -> bool:
    """Py4J, when it is interrupted, closes its connections, and what fails of that is raised instead."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None


@contextmanager
def _errors_to(path: Path) -> Iterator[None]:
    """Processes started in here write their standard error to `path`."""
    saved = os.dup(2)
    target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        os.dup2(target, 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(target)
