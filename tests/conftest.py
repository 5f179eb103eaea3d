"""What all tests share: a clean environment, repeatable Hypothesis runs, and no process left behind."""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

FULL_HELP = "also run what is marked `full`: the same kinds of tests, longer and wider"
MARK = "KVSTORE_TEST_RUN"
INHERITED = ("KVSTORE_", "SPARK_", "PYSPARK_", "http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")

settings.register_profile(
    "project", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
settings.load_profile("project")

for name in [name for name in os.environ if name.startswith(INHERITED)]:
    del os.environ[name]
os.environ[MARK] = uuid.uuid4().hex


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help=FULL_HELP)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "full: runs with --full only")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--full"):
        return
    left_out = [item for item in items if item.get_closest_marker("full")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("full")]


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


@pytest.fixture(scope="session", autouse=True)
def nothing_is_left_running() -> Iterator[None]:
    """Fail the run if a replica that a test started outlives the tests, and end it. Spark's Java ends with us."""
    yield
    replicas = {pid: line for pid, line in left_behind(os.environ[MARK]).items() if "kvstore" in line}
    for pid in replicas:
        os.kill(pid, signal.SIGKILL)
    assert not replicas, f"still running after the tests: {replicas}"
