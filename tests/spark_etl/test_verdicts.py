"""What properties and the table of models say where not all is known: the certificates hold, so Spark is not needed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spark_etl.audit.guarantees import MODEL_OF, SESSIONS, Guarantees
from spark_etl.audit.runner import Audit
from spark_etl.blackbox.models import BASES, MODELS, PLAIN
from spark_etl.blackbox.solver import HOLDS
from spark_etl.certify.proof import READS
from spark_etl.report import UNDETERMINED, VALID, VIOLATED, Course, Report

OPEN = (UNDETERMINED,) * 3


class Told(Audit):
    """An audit that is told what its first checks found. violated: one of them. in_part: a shard's journals are not all
    there. history_in_part: the clients' are not."""

    def __init__(self, violated: str = "", in_part: bool = False, history_in_part: bool = False):
        nowhere: Any = None
        super().__init__(nowhere, Path(), Path(), parts=("serializability", "sessions"))
        self.violated = violated
        self.in_part = in_part
        self.problems = ["history/clients.jsonl, line 3: damaged"] * history_in_part

    def _open(self) -> None:
        self.counts = {"history": 9}
        self.has_history = self.has_outcomes = True
        self.inputs: Any = SimpleNamespace(
            shards=(0,), replicas=(0,), protocols=(), durabilities=(), lives=1, problems=self.problems
        )
        self.course = Course()

    def _prepare(self) -> None:
        self.proof: Any = SimpleNamespace(holds=lambda *names: True, late=0, inverted=0, untimed=0, near={})
        self.unsure_shards = [0] * self.in_part
        self.certified = True
        for name in {self.violated: 0, READS: 0} if self.violated else (READS,):
            self.reads_property = self.check(name, None, 9, blind=self.in_part)
            if name == self.violated:
                self.reads_property.verdict, self.reads_property.violations = VIOLATED, 1


def verdicts(report: Report) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Of the properties that are models, and of those models."""
    found = {prop.name: prop.verdict for prop in report.properties}
    models = {row.name: VALID if row.verdict == HOLDS else row.verdict for row in report.models}
    return tuple(found[name] for name in MODEL_OF), tuple(models[model] for model in MODEL_OF.values())


@pytest.mark.parametrize(
    ("case", "expected", "sessions"),
    [
        (Told(), (VALID,) * 3, VALID),
        (Told(history_in_part=True), (VALID, UNDETERMINED, UNDETERMINED), UNDETERMINED),
        (Told(in_part=True), OPEN, UNDETERMINED),
        (Told(violated="agreement in a shard"), OPEN, UNDETERMINED),
        (Told(violated="exactly once"), OPEN, UNDETERMINED),
    ],
    ids=["all is known", "a history in part", "a journal in part", "contradictory journals", "effects twice"],
)
def test_properties_and_models_say_the_same(case: Told, expected: tuple[str, ...], sessions: str) -> None:
    report = case.check_all()
    assert verdicts(report) == (expected, expected)
    assert {prop.verdict for prop in report.properties if prop.name in SESSIONS} == {sessions}


@pytest.mark.parametrize(
    ("case", "holding"),
    [
        (Told(), set(MODELS)),
        (Told(history_in_part=True), {PLAIN + base for base in BASES}),
        (Told(in_part=True), set()),
        (Told(violated="exactly once"), set()),
    ],
    ids=["all is known", "a history in part", "a journal in part", "effects twice"],
)
def test_what_cycles_leave_possible_holds_only_where_all_is_known(
    monkeypatch: pytest.MonkeyPatch, case: Told, holding: set[str]
) -> None:
    """Sessions run against the order of versions, and no cycle speaks against any model."""
    monkeypatch.setattr(Guarantees, "_sessions", lambda self: None)
    judged = dict.fromkeys(MODELS, (HOLDS, "judged"))
    monkeypatch.setattr(Guarantees, "_residue", lambda self, found: found.update(judged))
    models = {row.name: row.verdict for row in case.check_all().models}
    assert {model for model in MODELS if models[model] == HOLDS} == holding
