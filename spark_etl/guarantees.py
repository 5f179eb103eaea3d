"""What clients may rely on: session guarantees, linearizability per key, and the table of consistency models.

If reads are certified in the order of versions, and that order runs against no session, every session guarantee holds,
and nothing is scanned; likewise linearizability per key, if it does not run against real time either.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import DataFrame

from spark_etl import consistency, serialization
from spark_etl.blackbox.models import MODELS, PLAIN, REALTIME, SESSION
from spark_etl.blackbox.solver import HOLDS
from spark_etl.blackbox.solver import UNDETERMINED as OPEN
from spark_etl.blackbox.solver import VIOLATED as BROKEN
from spark_etl.checks import sessions
from spark_etl.report import NOT_APPLICABLE, UNDETERMINED, VALID, VIOLATED, ModelVerdict, Property

if TYPE_CHECKING:
    from spark_etl.audit import Audit

SESSIONS = ("monotonic reads", "monotonic writes", "read your writes", "writes follow reads")
PER_KEY = "linearizability per key"

_FOUNDATIONS = (
    "integrity", "agreement in a shard", "prefix order", "one order across shards", "results complete and equal",
    "exactly once", "clients saw what the journals say",
)  # fmt: skip


class Guarantees:
    """The checks of one audit; made after those that the certificates rest on.

    skip: why nothing of this applies. blind: a part of the journals that it needs is missing. late: how many operations
    the order of versions runs against in real time; None: not counted.
    """

    def __init__(self, audit: Audit, skip: str, blind: bool, certified: bool, late: int | None):
        self.audit = audit
        self.skip = skip
        self.blind = blind
        self.certified = certified
        self.late = late
        self.no_sessions = ""
        self.inverted: int | None = None
        self._accesses: DataFrame | None = None
        self._seen: DataFrame | None = None

    def check(self) -> None:
        """All properties of this module."""
        audit = self.audit
        if self.skip or not audit.has_history:
            for name in (*SESSIONS, PER_KEY):
                prop = audit.check(name, None, 0, blind=audit.expect_history, skip=self.skip)
                if not self.skip:
                    audit.without_history(prop)
            return
        self._sessions()
        self._per_key()

    def _sessions(self) -> None:
        audit = self.audit
        overlapping = sessions.overlapping(audit.operations)
        found = overlapping.limit(1).collect()
        if found:
            more = overlapping.count() - 1
            self.no_sessions = f"process {found[0].process} of {found[0].file} runs several operations at once" + (
                f", and {more} more do" if more else ""
            )
        steps = audit.timeline
        sequential = steps.join(overlapping, ["file", "process"], "left_anti") if found else steps
        self.inverted = sessions.against_versions(sequential).count()
        rows = audit.counts["history"]
        if self.certified and not self.inverted:
            for name in SESSIONS:
                self._note(audit.check(name, None, rows, blind=self.blind), "no session runs against the versions")
            return
        touched, seen = self._frames(sequential)
        views = sessions.views(seen, sequential)
        for name, frame in zip(
            SESSIONS,
            (
                sessions.monotonic_reads(touched),
                sessions.monotonic_writes(touched, views),
                sessions.read_your_writes(touched),
                sessions.writes_follow_reads(touched, views),
            ),
            strict=True,
        ):
            note = f"{self.inverted:,} operations are ordered before an earlier one of their session"
            self._note(audit.check(name, frame, rows, blind=self.blind), note if self.inverted else "")

    def _note(self, prop: Property, note: str) -> None:
        if prop.verdict == VALID and self.no_sessions:
            prop.verdict, note = UNDETERMINED, f"nothing is wrong in what could be read. {self.no_sessions}"
        prop.note = prop.note or note

    def _frames(self, steps: DataFrame) -> tuple[DataFrame, DataFrame]:
        """(accesses, seen) of these operations."""
        audit = self.audit
        told = audit.operations if audit.found("clients saw what the journals say") else None
        seen = audit.keep(sessions.seen(audit.ordered, told, audit.unsure_shards))
        return audit.keep(sessions.accesses(steps, seen, audit.writes)), seen

    def _per_key(self) -> None:
        audit, rows = self.audit, self.audit.counts["history"]
        if self.certified and self.late == 0:
            prop = audit.check(PER_KEY, None, rows, blind=self.blind)
            prop.note = prop.note or "the order of versions never runs against real time"
            return
        touched, _ = self._frames(audit.timeline)
        frame = sessions.linearizable(touched, audit.ordered, audit.writes, audit.unsure_shards)
        prop = audit.check(PER_KEY, frame, rows, blind=self.blind)
        invented = [v for v in audit.reads_property.examples if v.name == "unwritten-version"]
        if invented:
            prop.verdict, prop.violations = VIOLATED, prop.violations + len(invented)
            prop.examples += invented

    # -- models -------------------------------------------------------------------------------------------------------

    def models(self) -> list[ModelVerdict]:
        """The table; empty if nothing of it applies."""
        audit = self.audit
        if self.skip:
            return []
        audit.progress("deciding on consistency models")
        unfounded = next((f"{name} is violated" for name in _FOUNDATIONS if audit.found(name)), "")
        if not unfounded and self.blind:
            unfounded = "a part of the journals is missing"
        found = {model: (OPEN, self._why_not(model)) for model in MODELS}
        plain, strict = audit.verdict("serializability"), audit.verdict("strict serializability")
        invented = [v for v in audit.reads_property.examples if v.name == "unwritten-version"]
        if invented:
            found[PLAIN + "read-uncommitted"] = (BROKEN, invented[0].sentence)
        elif VIOLATED in (plain, strict) or (self.inverted and strict != NOT_APPLICABLE):
            self._residue(found)
        if plain == VALID:
            found[PLAIN + "serializable"] = (HOLDS, "see serializability")
        if strict == VALID and audit.has_history:
            found[REALTIME + "serializable"] = (HOLDS, "see strict serializability")
            if not self.inverted and self.certified and not self.no_sessions:
                found[SESSION + "serializable"] = (HOLDS, "no session runs against the order of versions")
        per_key = audit.verdict(PER_KEY)
        if per_key in (VALID, VIOLATED) and audit.has_history:
            found[consistency.LINEARIZABLE] = (HOLDS if per_key == VALID else BROKEN, f"see {PER_KEY}")
        return consistency.table(found, unfounded)

    def _why_not(self, model: str) -> str:
        if not self.audit.has_history and model.startswith("strong-"):
            return "there is no client history"
        return self.no_sessions if model.startswith(SESSION) else ""

    def _residue(self, found: dict[str, tuple[str, str]]) -> None:
        """Judge what is on cycles."""
        audit = self.audit
        graph = audit.dependencies()
        steps = audit.timeline if audit.has_history else None
        in_session = sessions.edges(steps) if steps is not None and not self.no_sessions else None
        hashes = serialization.residue(graph, in_session, steps)
        judged: dict[str, str] = dict.fromkeys(MODELS, HOLDS)
        if hashes:
            part = consistency.collect(hashes, graph, steps)
            if part is None:
                why = f"{len(hashes):,} transactions are on cycles, more than are judged model by model"
                found.update({m: (OPEN, why) for m in MODELS if not found[m][1]})
                return
            judged = consistency.judge(*part)
        for model, verdict in judged.items():
            if found[model][1] or verdict == OPEN:
                continue  # without a history, or without sessions, only the plain ones can be told
            found[model] = (verdict, f"judged by the {len(hashes):,} transactions that are on cycles")
