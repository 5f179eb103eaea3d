"""What clients may rely on: session guarantees, linearizability per key, and the table of consistency models.

If reads are certified in the order of versions, and that order runs against no session, every session guarantee holds,
and nothing is scanned; likewise linearizability per key, if it does not run against real time either. A cycle search
that found nothing is as good, for sessions whose operations follow one another in time.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property, partial

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_etl.audit.ahead import Frame
from spark_etl.audit.case import Case
from spark_etl.blackbox.models import BASES, MODELS, PLAIN, SESSION
from spark_etl.blackbox.solver import HOLDS
from spark_etl.blackbox.solver import UNDETERMINED as OPEN
from spark_etl.blackbox.solver import VIOLATED as BROKEN
from spark_etl.certify.proof import CLIENTS
from spark_etl.certify.proof import SESSIONS as TURNS
from spark_etl.checks import sessions
from spark_etl.report import UNDETERMINED, VALID, VIOLATED, ModelVerdict, Property
from spark_etl.search import consistency, serialization

SESSIONS = ("monotonic reads", "monotonic writes", "read your writes", "writes follow reads")
PER_KEY = "linearizability per key"

MODEL_OF = {
    "serializability": PLAIN + "serializable",
    "strict serializability": consistency.STRICT,
    PER_KEY: consistency.LINEARIZABLE,
}
_AT_ONE_TIME = (
    "no cycle of dependencies and real time, but one with the order within sessions, where an answer and the next"
    " invocation are at one time"
)
_WITHOUT_CLIENTS = {PLAIN + base for base in BASES}


class Frames:
    """What the checks of this module find, as frames that are made when they are needed."""

    def __init__(self, case: Case):
        self.case = case

    def by_property(self) -> dict[str, Frame]:
        """All that there are if nobody but readers is suspect."""
        frames: dict[str, Frame] = {name: partial(self.of_session, name) for name in SESSIONS}
        return frames | {PER_KEY: lambda: self.per_key}

    def of_session(self, name: str) -> DataFrame:
        return self.of_sessions[name]

    @cached_property
    def seen(self) -> DataFrame:
        """`sessions.seen`."""
        case = self.case
        told = case.operations if case.found(CLIENTS) else None
        return case.keep(sessions.seen(case.applied_reads, case.writes, told, case.unsure_shards))

    @cached_property
    def likely(self) -> DataFrame | None:
        """`sessions.as_likely`; None if there is no doubt."""
        doubtful = self.seen.where(F.col("low") != F.col("high")).limit(1).collect()
        return sessions.as_likely(self.seen) if doubtful else None

    @cached_property
    def sequential(self) -> tuple[DataFrame, str]:
        """`Case.timeline`, without the processes that are no sessions, and which these are, or empty."""
        case = self.case
        overlapping = sessions.overlapping(case.operations)
        found = overlapping.limit(1).collect()
        if not found:
            return case.timeline, ""
        more = overlapping.count() - 1
        why = f"process {found[0].process} of {found[0].file} runs several operations at once" + (
            f", and {more} more do" if more else ""
        )
        return case.timeline.join(overlapping, ["file", "process"], "left_anti"), why

    @cached_property
    def of_sessions(self) -> dict[str, DataFrame]:
        """By property."""
        return self._of_sessions(self.seen)

    @cached_property
    def likely_of_sessions(self) -> dict[str, DataFrame]:
        """The same, if everybody saw what he likely did; empty if there is no doubt."""
        return {} if self.likely is None else self._of_sessions(self.likely)

    def _of_sessions(self, seen: DataFrame) -> dict[str, DataFrame]:
        case = self.case
        steps = case.timeline if case.proof.holds(TURNS) else self.sequential[0]
        touched = case.keep(sessions.accesses(steps, seen, case.writes))
        views = sessions.views(seen, steps, case.writes)
        frames = (
            sessions.monotonic_reads(touched),
            sessions.monotonic_writes(touched, views),
            sessions.read_your_writes(touched),
            sessions.writes_follow_reads(touched, views),
        )
        return dict(zip(SESSIONS, frames, strict=True))

    @cached_property
    def per_key(self) -> DataFrame:
        """Of `PER_KEY`."""
        return self._per_key(self.seen)

    @cached_property
    def likely_per_key(self) -> DataFrame | None:
        """The same, if everybody saw what he likely did; None if there is no doubt."""
        return None if self.likely is None else self._per_key(self.likely)

    def _per_key(self, seen: DataFrame) -> DataFrame:
        case = self.case
        touched = case.keep(sessions.accesses(case.timeline, seen, case.writes))
        return sessions.linearizable(touched, case.ordered, case.writes, case.unsure_shards)


class Guarantees:
    """The checks of one audit; made after those that the certificates rest on.

    skip: why nothing of this applies. blind: a part of the journals or histories that it needs is missing. certified:
    every read returned what the order of versions says. no_cycle: why no cycle of dependencies and real time is left,
    or empty.
    """

    def __init__(self, frames: Frames, skip: str, blind: bool, certified: bool, no_cycle: str):
        self.case, self.frames = frames.case, frames
        self.skip = skip
        self.blind = blind
        self.certified = certified
        self.no_cycle = no_cycle
        self.no_sessions = ""
        self.in_sessions = ""

    def check(self) -> None:
        """All properties of this module."""
        case = self.case
        if self.skip or not case.has_history:
            for name in (*SESSIONS, PER_KEY):
                prop = case.check(name, None, 0, blind=case.expect_history, skip=self.skip)
                if not self.skip:
                    case.without_history(prop)
            return
        self._sessions()
        self._per_key()

    def _sessions(self) -> None:
        case, frames = self.case, self.frames
        if case.proof.holds(TURNS):
            inverted, untimed = case.proof.inverted, case.proof.untimed
        else:
            sequential, self.no_sessions = frames.sequential
            row = sessions.turns(sequential).collect()[0]
            inverted, untimed = row.inverted, row.untimed
        if self.certified and not inverted:
            self.in_sessions = "no session runs against the versions"
        elif self.certified and self.no_cycle and not untimed:
            self.in_sessions = f"the operations of a session follow one another in time, and {self.no_cycle}"
        rows = case.counts["history"]
        if self.in_sessions:
            for name in SESSIONS:
                self._note(case.check(name, None, rows, blind=self.blind), self.in_sessions)
            return
        note = f"{inverted:,} operations are ordered before an earlier one of their session"
        for name in SESSIONS:
            prop = case.check(name, partial(frames.of_session, name), rows, blind=self.blind)
            self._doubt(prop, frames.likely_of_sessions.get(name))
            self._note(prop, note if inverted else "")

    def _note(self, prop: Property, note: str) -> None:
        if prop.verdict == VALID and self.no_sessions:
            prop.verdict, note = UNDETERMINED, f"nothing is wrong in what could be read. {self.no_sessions}"
        elif prop.verdict == VALID:
            self.case.founded(prop)
        prop.note = prop.note or note

    def _doubt(self, prop: Property, likely: DataFrame | None) -> None:
        """What is not violated for certain holds if it does in one way in which it may have been."""
        if prop.verdict == VALID and likely is not None and likely.limit(1).collect():
            prop.verdict, prop.note = UNDETERMINED, serialization.IN_DOUBT

    def _per_key(self) -> None:
        case, rows = self.case, self.case.counts["history"]
        if self.certified and self.no_cycle:
            prop = case.check(PER_KEY, None, rows, blind=self.blind)
            if prop.verdict == VALID:
                prop.note = self.no_cycle
                case.founded(prop)
            return
        prop = case.check(PER_KEY, lambda: self.frames.per_key, rows, blind=self.blind)
        self._doubt(prop, self.frames.likely_per_key)
        if invented := case.invented():
            prop.verdict, prop.violations = VIOLATED, prop.violations + len(invented)
            prop.examples += invented
        if prop.verdict == VALID:
            case.founded(prop)

    # -- models -------------------------------------------------------------------------------------------------------

    def models(self) -> list[ModelVerdict]:
        """The table; empty if nothing of it applies. A property that is a model has the verdict of its row."""
        case = self.case
        if self.skip:
            return []
        case.progress("deciding on consistency models")
        unfounded = case.unfounded()
        if not unfounded and case.unsure_shards:
            unfounded = "a part of the journals is missing"
        found = {model: (OPEN, self._why_not(model)) for model in MODELS}
        plain, strict = case.verdict("serializability"), case.verdict("strict serializability")
        if invented := case.invented():
            found[PLAIN + "read-uncommitted"] = (BROKEN, invented[0].sentence)
        elif VIOLATED in (plain, strict) or (case.has_history and not self.in_sessions):
            self._residue(found)
        if strict == VALID and self.in_sessions and not self.no_sessions:
            found[SESSION + "serializable"] = (HOLDS, self.in_sessions)
        if found[consistency.STRICT][0] == BROKEN and strict == VALID:
            found[consistency.STRICT] = (BROKEN, _AT_ONE_TIME)
        for name, model in MODEL_OF.items():
            verdict = case.verdict(name)
            in_order = model != consistency.STRICT or self.in_sessions or self.no_sessions or found[model][0] == HOLDS
            if verdict == VIOLATED or (verdict == VALID and in_order):
                found[model] = (HOLDS if verdict == VALID else BROKEN, f"see {name}")
        if self.blind:
            lost = "a part of the client history is missing"
            found.update({m: (OPEN, lost) for m, v in found.items() if v[0] == HOLDS and m not in _WITHOUT_CLIENTS})
        rows = consistency.table(found, unfounded)
        self._agree({row.name: row for row in rows})
        return rows

    def _agree(self, rows: Mapping[str, ModelVerdict]) -> None:
        """What is not determined by itself may follow from another property. The models are of sessions, too, which
        real time may not put in order."""
        for prop in self.case.properties:
            row = rows.get(MODEL_OF.get(prop.name, ""))
            if row is None or row.verdict == OPEN:
                continue
            if prop.verdict == UNDETERMINED or (prop.verdict == VALID and row.verdict == BROKEN):
                prop.verdict, prop.note = VALID if row.verdict == HOLDS else VIOLATED, row.why

    def _why_not(self, model: str) -> str:
        if not self.case.has_history and model.startswith("strong-"):
            return "there is no client history"
        return self.no_sessions if model.startswith(SESSION) else ""

    def _residue(self, found: dict[str, tuple[str, str]]) -> None:
        """Judge what is on cycles."""
        case = self.case
        graph = case.dependencies()
        steps = case.in_time if case.has_history else None
        in_session = sessions.edges(steps) if steps is not None and not self.no_sessions else None
        hashes = serialization.residue(graph, in_session, steps)
        judged: dict[str, str] = dict.fromkeys(MODELS, HOLDS)
        circling = case.proof.circling
        if hashes:
            part = None if circling else consistency.collect(hashes, graph, steps)
            if part is None:
                why = f"{circling or len(hashes):,} transactions are on cycles, more than are judged model by model"
                found.update({m: (OPEN, why) for m in MODELS if not found[m][1]})
                return
            judged = consistency.judge(*part)
        for model, verdict in judged.items():
            if found[model][1] or verdict == OPEN:
                continue  # without a history, or without sessions, only the plain ones can be told
            found[model] = (verdict, f"judged by the {len(hashes):,} transactions that are on cycles")
