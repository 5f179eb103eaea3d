"""What all tests share: a clean environment, repeatable Hypothesis runs, and no process left behind."""

from __future__ import annotations

import ast
import gc
import os
import signal
import sys
import uuid
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from hypothesis import HealthCheck, settings

from tests import amounts
from tests.house import ROOT

FULL_HELP = "also run what is marked `full`: the same kinds of tests, longer and wider"
SPARK = "spark: Any"
"""A fixture or a test that says so has the session; so has who has such a fixture of the same file."""
DEAR = (
    "tests/conformance/", "tests/simulation/test_latency", "tests/simulation/test_mutants",
    "tests/kvstore/test_simulated_strictness",
)  # fmt: skip
LONG = ("tests/simulation/test_explore", "tests/test_house")
"""Files of which each is one unit, and takes a while."""
MARK = "KVSTORE_TEST_RUN"
INHERITED = ("KVSTORE_", "SPARK_", "PYSPARK_", "http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")

gc.set_threshold(50_000, 20, 50)
"""As in a replica: here, too, much is made and soon gone, and what stays is all that the tests import. That cyclic
garbage was looked for as often as Python does by itself was a tenth of the processor time of a simulated run."""

settings.register_profile(
    "project", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
settings.load_profile("project")

for name in [name for name in os.environ if name.startswith(INHERITED)]:
    del os.environ[name]
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # so it is in the background of a script; processes inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)
os.environ[MARK] = uuid.uuid4().hex


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help=FULL_HELP)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "full: runs with --full only")
    amounts.full = config.getoption("--full")
    config.option.loadscopereorder = False  # workers begin units in the order of the tests


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if alone := apart(items):
        raise pytest.UsageError(f"a worker of its own would start Spark, say `{SPARK}`: {', '.join(alone)}")
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: order(item.nodeid))
    if config.getoption("--full"):
        return
    left_out = [item for item in items if item.get_closest_marker("full")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("full")]


def pytest_collection_finish() -> None:
    gc.freeze()  # what the tests import stays; who looks for garbage need not look there


@cache
def unit(test: str) -> str:
    """Tests of the same unit run in the same worker: all that use a Spark session, as it is dear to start and to warm
    up; otherwise those of a file, which may share a cluster. Where each is dear, the tests of one function whose first
    parameters are the same: the bugs of a module share runs without them."""
    path, _, name = test.partition("[")[0].partition("::")
    if name.rpartition("::")[2] in having_spark(path):
        return SPARK
    return test.partition("-")[0] if path.startswith(DEAR) else path


@cache
def having_spark(path: str) -> frozenset[str]:
    """The functions of a file that have Spark's session: all, if a fixture has it that all have."""
    text = (ROOT / path).read_text()
    if SPARK not in text:
        return frozenset()
    functions = [one for one in ast.walk(ast.parse(text)) if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
    asked = {one.name: {argument.arg for argument in (*one.args.args, *one.args.kwonlyargs)} for one in functions}
    found, more = set[str](), {"spark"}
    while more:
        found |= more
        more = {name for name, arguments in asked.items() if arguments & found} - found
    for_all = {one.name for one in functions if any("autouse" in ast.unparse(by) for by in one.decorator_list)}
    return frozenset(asked if for_all & found else found)


def apart(items: Iterable[pytest.Item]) -> list[str]:
    """The tests that have Spark's session, though `unit` does not see that they do."""
    return [i.nodeid for i in items if "spark" in getattr(i, "fixturenames", ()) and unit(i.nodeid) != SPARK]


def order(test: str) -> tuple[int, int]:
    """The longest first, so that no worker is left with something long when the others are done: Spark's tests, then
    what is dear or long, then the other files. Otherwise mixed, so that what computes runs beside what waits."""
    rank = 0 if unit(test) == SPARK else 1 if test.startswith((*DEAR, *LONG)) else 2
    return rank, crc32(unit(test).encode())


@cache
def make_way() -> None:
    """There are more workers than cores, as many tests wait: the one with Spark's tests, which take longest, goes
    before the others and the processes that they start."""
    os.nice(5)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if hasattr(item.config, "workerinput") and unit(item.nodeid) != SPARK:
        make_way()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return unit(nodeid)

    return Scheduling(config, log)


def left_behind(mark: str) -> dict[int, str]:
    """Processes, this one excepted, that carry the mark of this test run: pid -> command line."""
    wanted = f"{MARK}={mark}".encode()
    found = {}
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            if int(directory.name) == os.getpid() or wanted not in (directory / "environ").read_bytes().split(b"\0"):
                continue
            line = (directory / "cmdline").read_bytes().replace(b"\0", b" ")
            found[int(directory.name)] = line.decode(errors="replace").strip()
        except OSError:
            continue  # it ended meanwhile, or is not ours to read
    return found


class OpenedCount:
    """How many processes this one has started with `subprocess`, and how many sockets it has made, as each event loop
    does; once made, it cannot be taken away (PEP 578)."""

    def __init__(self) -> None:
        self.value = 0
        sys.addaudithook(self)

    def __call__(self, event: str, _: tuple[object, ...]) -> None:
        self.value += event in ("subprocess.Popen", "socket.__new__")

    def closed(self) -> Iterator[None]:
        """A fixture: what was opened meanwhile, and that nobody has closed, is told when it ends."""
        before = self.value
        yield
        if self.value > before:
            gc.collect()


@pytest.fixture(scope="session")
def opened_count() -> OpenedCount:
    return OpenedCount()


@pytest.fixture(scope="module", autouse=True)
def what_the_tests_of_a_file_share_is_closed(opened_count: OpenedCount) -> Iterator[None]:
    """See below: what the fixtures of a file leave is told with the last of its tests."""
    yield from opened_count.closed()


@pytest.fixture(autouse=True)
def who_opens_something_closes_it(opened_count: OpenedCount) -> Iterator[None]:
    """A process that nobody has waited for, a socket that nobody has closed or a coroutine that nobody has awaited is
    told when its object goes: here, in the test that made it. One in a cycle, as a traceback makes them, goes when
    Python looks for such; that failed whichever test was next."""
    yield from opened_count.closed()


@pytest.fixture(scope="session", autouse=True)
def nothing_is_left_running() -> Iterator[None]:
    """Fail the run if a replica that a test started outlives the tests, and end it. Spark's Java ends with us. Each
    worker looks for its own: the mark is made anew in each."""
    yield
    replicas = {pid: line for pid, line in left_behind(os.environ[MARK]).items() if "kvstore" in line}
    for pid in replicas:
        os.kill(pid, signal.SIGKILL)
    assert not replicas, f"still running after the tests: {replicas}"
