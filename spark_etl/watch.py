"""Following a run that goes on: round after round, what is new is extracted, and the run is judged as far as it goes.

A round reads the histories, and then the journals up to the last flushed batch; of both only what is new is parsed.
Clients may know more than is in the journals yet, so a round judges what the histories said when the one before it
began, and all of the journals: every answer has had a round's time to be written everywhere. What is judged is the
whole run, by kernels first: only for what they suspect checks are planned, and these explain as they do in an audit.
Nothing but the tables is needed from round to round, so one that was killed goes on where it was.

Where nothing can be certified, as long as a journal is missing or damaged, all checks are planned in every round, on
the whole run. That takes the longer, the longer the run is: such rounds say how far they are, and rest afterwards.

Of a run that is violated the checks are planned again when something new concerns them: when the kernels suspect
something else, or what is near their suspects has changed. If it is not known what is near, they are planned again for
other reasons of the kernels, and else after so many times as long as they took.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
from pyspark.sql import SparkSession

from spark_etl.audit.case import NEAR
from spark_etl.audit.runner import Audit
from spark_etl.certify.proof import Proof
from spark_etl.checks.workloads import INVARIANTS
from spark_etl.ingest import parquet
from spark_etl.ingest.extraction import SMALL_EXTRACTION_BYTES, extract, total_bytes
from spark_etl.ingest.sources import Unreadable, find_segments
from spark_etl.ingest.tables import Manifest, load_manifest
from spark_etl.report import VALID, VIOLATED, Report, Violation

Clock = Callable[[], float]
Progress = Callable[[str], None]

REST = 4
"""A round in which nothing was certified is followed by a rest of so many times as long; and checks of a violated run
that may concern anything are not made again before that time."""
SILENT_SECONDS = 10.0
"""So long a round says nothing of how far it is, and between two lines about that."""


class Round(msgspec.Struct):
    """What one round found. alarms: violations that no earlier round had, each with its property. lag: seconds since
    that up to which all is judged. waiting: why there is nothing to judge yet, or empty. problems: sentences about what
    is missing or damaged that no earlier round had. checked: how many seconds it took, if nothing could be certified.
    seen: rows by table, of the run; the report may be of an earlier round, if nothing new concerns it.
    """

    report: Report | None
    alarms: list[tuple[str, Violation]]
    lag: float
    waiting: str = ""
    problems: list[str] = []
    checked: float = 0.0
    seen: dict[str, int] = {}

    @property
    def rest(self) -> float:
        """So many seconds before the next one."""
        return REST * self.checked

    def line(self) -> str:
        """For people."""
        if self.report is None:
            return f"waiting: {self.waiting}"
        report = self.report
        what = f"{self.seen.get('deliveries', 0):,} deliveries, {self.seen.get('history', 0):,} lines of clients"
        open_ = [p.name for p in report.properties if p.verdict not in (VALID, "not applicable")]
        rest = f" ({', '.join(open_)})" if open_ and report.verdict != VALID else ""
        line = f"{report.verdict}{rest}: {what}; judged up to {self.lag:.1f} s ago"
        if self.checked:
            line += f"; nothing could be certified, and all checks took {self.checked:.0f} s: next in {self.rest:.0f} s"
        return line


class _Settled(Exception):
    """Nothing new concerns what was found."""


class Watched(Audit):
    """The audit of a round. It ends with _Settled when the kernels have judged, if `settled` says so of what they
    suspect: their reasons, with what is damaged; what is near, or None, if that is not known."""

    def __init__(self, *arguments: Any, settled: Callable[[object, object], bool], **options: Any):
        super().__init__(*arguments, **options)
        self._settled = settled

    def _certify(self) -> Proof:
        proof = super()._certify()
        if self._settled((proof.why, self.inputs.problems), self._near_suspects(proof)):
            raise _Settled
        return proof

    def _near_suspects(self, proof: Proof) -> object:
        """All that the checks are about: what is cut out, and what no kernel judges."""
        if not proof.near:
            return None
        cut = {name: parquet.seal(self.out / NEAR / name) for name in sorted(proof.near)}
        lives = [str(row) for row in self.small if row.table != "segments"]
        always = ["watched", "frames"]
        always += ["history"] if {f for f, _ in INVARIANTS.values()} & proof.functions.keys() else []
        return cut, lives, [self.counts.get(table, 0) for table in always]


class Watch:
    """One run, followed in one session of Spark. clock: seconds, as `time.monotonic`."""

    def __init__(
        self, spark: SparkSession, run: Path, out: Path, *, expect_history: bool = True, clock: Clock = time.monotonic,
        progress: Progress = lambda _: None,
    ):  # fmt: skip
        self._spark = spark
        self._run = run
        self._out = out
        self._expect_history = expect_history
        self._clock = clock
        self._progress = progress
        self._known: set[tuple[object, ...]] = set()
        self._problems: set[str] = set()
        self._since = clock()
        self._judged: Manifest | None = None
        self._suspected: tuple[object, object] | None = None
        self._again = self._up_to = 0.0
        self.report: Report | None = None

    def round(self) -> Round:
        """What is new since the last one."""
        began, before = self._clock(), load_manifest(self._out) if self._judged else None
        try:
            now = self._extract()
        except Unreadable as why:
            return Round(None, [], 0.0, str(why))
        to_judge = _as_known_before(now, before)
        up_to = self._since if to_judge.histories != now.histories else began
        checked = 0.0
        if to_judge != self._judged:
            audit = Watched(
                self._spark, self._run, self._out, expect_history=self._expect_history, manifest=to_judge,
                progress=self._patient(began), settled=self._settled,
            )  # fmt: skip
            try:
                self.report, self._judged = audit.check_all(), to_judge
                took, self._up_to = self._clock() - began, up_to
                self._again = began + (1 + REST) * took
                checked = 0.0 if audit.proof.proved else took
            except _Settled:
                self._judged = to_judge
                up_to = up_to if self._suspected and self._suspected[1] is not None else self._up_to
        self._since = began
        assert self.report is not None
        problems = [one for one in self.report.problems if one not in self._problems]
        self._problems.update(problems)
        alarms = list(self._new(self.report))
        lag, seen = self._clock() - up_to, to_judge.rows()
        return Round(self.report, alarms, lag, problems=problems, checked=checked, seen=seen)

    def _settled(self, why: object, near: object) -> bool:
        """Whether what is suspect now was judged before."""
        before, self._suspected = self._suspected, (why, near)
        if self.report is None or self.report.verdict != VIOLATED or before != self._suspected:
            return False
        return near is not None or self._clock() < self._again

    def _patient(self, since: float) -> Progress:
        """Of a round that takes long it is said how far it is."""

        def told(text: str) -> None:
            nonlocal since
            if self._clock() - since >= SILENT_SECONDS:
                since = self._clock()
                self._progress(text)

        return told

    def _extract(self) -> Manifest:
        large = self.report is None and total_bytes(find_segments(self._run)) > SMALL_EXTRACTION_BYTES
        return extract(self._run, self._out, self._spark if large else None, own=self.report is not None).manifest

    def _new(self, report: Report) -> Iterator[tuple[str, Violation]]:
        for prop in report.properties:
            for violation in prop.examples:
                # the sentences of two cycles of one kind are the same
                found = (prop.name, violation.name, violation.sentence, *sorted(violation.transactions))
                if found not in self._known:
                    self._known.add(found)
                    yield prop.name, violation


def _as_known_before(now: Manifest, before: Manifest | None) -> Manifest:
    """The journals as they are, the histories as they were; as they are, if they do not go on from what they were."""
    if before is None or before.run != now.run:
        return now
    histories = {
        name: old if (old := before.histories.get(name)) and old.files.keys() <= state.files.keys() else state
        for name, state in now.histories.items()
    }
    return msgspec.structs.replace(now, histories=histories)
