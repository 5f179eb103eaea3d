"""The stages of an audit: extract, check, report. Each leaves files that the next begins with."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from itertools import count
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from spark_etl.audit.runner import Audit
from spark_etl.ingest.extraction import SMALL_EXTRACTION_BYTES, Extraction, extract, sources, total_bytes
from spark_etl.ingest.sources import Unreadable
from spark_etl.ingest.tables import alone, check_tables, load_manifest
from spark_etl.page import run as run_page
from spark_etl.report import Report, from_json, to_json
from spark_etl.session import check_java, sessions, spark_session
from spark_etl.watch import Round, Watch

Progress = Callable[[str], None]

REPORT, PAGE = "report.json", "report.html"


class Stages:
    """One run, and where its tables and reports are. All of it may raise sources.Unreadable, session.CannotStart."""

    def __init__(self, run: Path, out: Path | None, master: str, memory: str, progress: Progress):
        self.run = run
        self.out = out or run / "audit"
        self.master = master
        self.memory = memory
        self.progress = progress
        self._began = time.monotonic()

    def audit(self, *, expect_history: bool) -> Report:
        """Extract and check. A small run is extracted while Spark starts."""
        check_java()
        size = self._size()
        with alone(self.run, self.out):
            if size > SMALL_EXTRACTION_BYTES:
                return self._audit_in_spark(expect_history)
            return self._audit(expect_history)

    def watch(self, *, expect_history: bool, every: float, rounds: int, told: Callable[[Round], None]) -> Report | None:
        """Follow a run that goes on, until interrupted or for so many rounds (0: for ever), which begin at least so
        many seconds after one another, and rest. Returns what was found last."""
        check_java()
        self._exists()
        with alone(self.run, self.out), spark_session(self.out, self.master, self.memory, lasting=True) as spark:
            watch = Watch(spark, self.run, self.out, expect_history=expect_history, progress=self.progress)
            with suppress(KeyboardInterrupt):
                for number in count(1):
                    began = time.monotonic()
                    told(found := watch.round())
                    if number == rounds:
                        break
                    time.sleep(max(found.rest, every - (time.monotonic() - began)))
            return watch.report

    def _audit(self, expect_history: bool) -> Report:
        self.progress("extracting, and starting Spark")
        with ThreadPoolExecutor(1) as aside:
            extraction: Future[Extraction] = aside.submit(extract, self.run, self.out)
            with self._sessions(self._size()) as (spark, heavier):
                self.progress(_said(extraction.result()))
                return self._check(spark, heavier, expect_history)

    def _audit_in_spark(self, expect_history: bool) -> Report:
        self.progress("starting Spark")
        with self._sessions(self._size()) as (spark, heavier):
            self.progress("extracting")
            self.progress(_said(extract(self.run, self.out, spark)))
            return self._check(spark, heavier, expect_history)

    def _sessions(self, size: int) -> AbstractContextManager[tuple[Any, Callable[[], Any] | None]]:
        return sessions(self.out, self.master, self.memory, size)

    def _check(self, spark: SparkSession, heavier: Callable[[], SparkSession] | None, expect_history: bool) -> Report:
        audit = Audit(
            spark, self.run, self.out, expect_history=expect_history, progress=self.progress, heavier=heavier
        )  # fmt: skip
        return audit.check_all(self._began)

    def extract(self) -> str:
        """Bring the tables up to date; a sentence about it."""
        size = self._size()
        with alone(self.run, self.out):
            if size > SMALL_EXTRACTION_BYTES:
                return self._extract_in_spark()
            return _said(extract(self.run, self.out))

    def _extract_in_spark(self) -> str:
        check_java()
        self.progress("starting Spark")
        with spark_session(self.out, self.master, self.memory) as spark:
            self.progress("extracting")
            return _said(extract(self.run, self.out, spark))

    def check(self, *, expect_history: bool) -> Report:
        """Check what is in the tables."""
        self._exists()
        if (of := check_tables(self.out).run) != str(self.run.resolve()):
            raise Unreadable(f"{self.out}: its tables are of {of}, not of {self.run}; extract again")
        check_java()
        size = sum(path.stat().st_size for path in self.out.glob("journal/**/*.parquet"))
        self.progress("starting Spark")
        with alone(self.run, self.out), self._sessions(size) as (spark, heavier):
            return self._check(spark, heavier, expect_history)

    def last(self) -> Report:
        """What the last check found."""
        self._exists()
        path = self.out / REPORT
        if not path.is_file():
            raise Unreadable(f"{path}: there is no check's result; run `python -m spark_etl check RUN_DIR` first")
        try:
            report = from_json(path.read_bytes(), str(path))
        except ValueError as error:
            raise Unreadable(str(error)) from None
        run, tables = str(self.run.resolve()), load_manifest(self.out)
        said = [tables.run] if tables is not None else []
        said += [str(Path(report.run).resolve())] if Path(report.run).is_absolute() else []
        if others := [one for one in said if one != run]:
            raise Unreadable(f"{path}: it is of {others[0]}, not of {self.run}; check that again")
        return report

    def publish(self, report: Report, json: Path | None, page_at: Path | None, *, page: bool = True) -> None:
        """Write the JSON beside the tables, and where it is wanted too; and the page."""
        for path in {self.out / REPORT, json or self.out / REPORT}:
            write(path, to_json(report))
        if page:
            write(self.page(page_at), run_page.page(report).encode())

    def page(self, wanted: Path | None) -> Path:
        """Where the page is."""
        return wanted or self.out / PAGE

    def _size(self) -> int:
        """Bytes of journals. Unreadable before anything is started, if there is nothing to read."""
        segments, _ = sources(self.run)
        load_manifest(self.out)
        return total_bytes(segments)

    def _exists(self) -> None:
        if not self.run.is_dir():
            raise Unreadable(f"{self.run}: there is no such directory")


def _said(extraction: Extraction) -> str:
    rows = extraction.manifest.rows()
    new, known = extraction.bytes_read / 1e6, extraction.bytes_known / 1e6
    files = len(extraction.manifest.segments) + len(extraction.manifest.histories)
    found = f"{files} files: {new:.1f} MB new, {known:.1f} MB known already; {sum(rows.values()):,} rows in all"
    if lost := extraction.damaged:
        more = f" and {len(lost) - 1} more" if lost[1:] else ""
        found += f"; {lost[0]}{more} had been damaged, made anew"
    return found


def write(path: Path, data: bytes) -> None:
    """Whole or not at all."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "it is a directory, and no file can be written there", str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.new")
    try:
        temporary.write_bytes(data)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
