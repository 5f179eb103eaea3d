"""The audit as a job of a cluster of Spark: submitted with its packages in one archive, which is all that the workers
know of it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark
import pytest

from spark_etl.report import from_json
from tests.spark_etl.runs import bank_run

BIN = Path(pyspark.__file__).parent / "bin"
ROOT = Path(__file__).parent.parent.parent


@contextmanager
def running(environment: dict[str, str], *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A part of the cluster."""
    with subprocess.Popen(
        [str(BIN / "spark-class"), *arguments], env=environment, text=True, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            process.terminate()


def said(process: subprocess.Popen[str], pattern: str) -> str:
    """What its log says first."""
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        if found := re.search(pattern, line):
            return found[0]
        lines.append(line)
    raise AssertionError("".join(lines))


def archive(path: Path) -> Path:
    """The packages that the audit needs."""
    with zipfile.ZipFile(path, "w") as packed:
        for package in ("spark_etl", "multicast", "kvstore"):
            for file in sorted((ROOT / package).rglob("*.py")):
                packed.write(file, file.relative_to(ROOT))
    return path


@pytest.mark.full
@pytest.mark.timeout(900)
def test_it_is_submitted_to_a_cluster_of_two_workers(tmp_path: Path) -> None:
    run = bank_run().write(tmp_path / "run")
    job = Path(shutil.copy(ROOT / "spark_etl/__main__.py", tmp_path / "audit.py"))
    packed = archive(tmp_path / "packages.zip")
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment = {**kept, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable, "SPARK_NO_DAEMONIZE": "1"}
    with ExitStack() as cluster:
        names = ["org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
        first = cluster.enter_context(running(environment, *names))
        master = said(first, r"spark://127\.0\.0\.1:\d+")
        for number in range(2):
            names = ["org.apache.spark.deploy.worker.Worker", "--host", "127.0.0.1", "--webui-port", "0", "--cores",
                     "1", "--memory", "1g", "--work-dir", str(tmp_path / f"worker-{number}"), master]  # fmt: skip
            said(cluster.enter_context(running(environment, *names)), "Successfully registered")
        command: list[str | Path] = [BIN / "spark-submit", "--master", master, "--py-files", packed, job]
        command += ["audit", run, "--master", master]
        done = subprocess.run(
            [*map(str, command), "--quiet"], env=environment, cwd=tmp_path, capture_output=True, text=True, check=False,
            timeout=600,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
    report = from_json((run / "audit/report.json").read_bytes(), "report")
    assert report.verdict == "valid"
    assert all(list((tmp_path / f"worker-{number}").glob("app-*/*/stdout")) for number in range(2))
