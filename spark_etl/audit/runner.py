"""The audit of one run: extraction, then every property in turn."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property, partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from spark_etl.audit import answered, course, evidence, moved, noted, traced
from spark_etl.audit.case import NO_HISTORY, Case, Progress
from spark_etl.audit.guarantees import Frames, Guarantees
from spark_etl.certify.proof import (
    ACCOUNTS,
    BANK,
    CLIENTS,
    COURSE,
    HISTORY,
    LOGS,
    ORDER,
    POSITIONS,
    PRECEDENCE,
    READS,
    TIME,
    VALIDITY,
)
from spark_etl.checks import bank, clients, delivery, positions, transactions, workloads
from spark_etl.frames import edges, relations
from spark_etl.ingest import extraction, tables
from spark_etl.ingest.inputs import behind
from spark_etl.report import (
    PENDING,
    UNDETERMINED,
    VALID,
    VIOLATED,
    ModelVerdict,
    Property,
    Report,
)
from spark_etl.search import serialization
from spark_etl.search.consistency import strongest

_NO_OUTCOMES = "the journals hold no outcomes: a run of the multicast library without the store"
_NO_CYCLE = "there is no cycle of dependencies and real time"
_BANK = ("transfer", "read_all")

PARTS = ("delivery", "transactions", "clients", "serializability", "sessions", "bank", "workloads", "course")
"""Groups of properties, and what happened when. "serializability" needs the first two, "sessions" that, too."""


_NAME = "multicast-kvstore"


def _program() -> str:
    """Its name and version; empty if it is not installed, as on a cluster's workers."""
    with suppress(PackageNotFoundError):
        return f"{_NAME} {version(_NAME)}"
    return ""


def _messages(count: int) -> str:
    return f"{count} message{'s' * (count > 1)}"


class Audit(Case):
    """One run under audit. `run` gives the report.

    run: the run's directory. out: where the Parquet tables go (`journal`, `history`); replaced if they exist.
    parts: which groups of properties to check.
    expect_history: without a client history some properties are "not determined"; False: "not applicable".
    manifest, heavier: see `Case`.
    """

    def __init__(
        self,
        spark: SparkSession,
        run: Path,
        out: Path,
        *,
        parts: Sequence[str] = PARTS,
        expect_history: bool = True,
        progress: Progress | None = None,
        manifest: tables.Manifest | None = None,
        heavier: Callable[[], SparkSession] | None = None,
    ):
        super().__init__(
            spark, out, expect_history=expect_history, progress=progress, manifest=manifest, heavier=heavier
        )  # fmt: skip
        self.directory = run
        self.parts = parts
        self.wants_course = "course" in parts
        self.models: list[ModelVerdict] = []

    def run(self, began: float | None = None) -> Report:
        """Extraction and checks. `began`: when the report's seconds start to count (`time.monotonic`)."""
        began = time.monotonic() if began is None else began
        self.progress("extracting")
        extraction.extract(self.directory, self.out)
        return self.check_all(began)

    def check_all(self, began: float | None = None) -> Report:
        """The checks, of what was extracted. sources.Unreadable."""
        began = time.monotonic() if began is None else began
        try:
            self._open()
            self._prepare()
            noted.check(self)
            self._look_ahead()
            checks = {
                "delivery": self._check_delivery,
                "transactions": self._check_transactions,
                "clients": self._check_clients,
                "serializability": self._check_serializability,
                "sessions": self._check_sessions,
                "bank": self._check_bank,
                "workloads": self._check_workloads,
                "course": self._follow,
            }
            for part in PARTS:
                if part in self.parts:
                    checks[part]()
            self._prove()
        finally:
            for frame in self._cached:
                frame.unpersist()
            self._meanwhile.close()
        inputs = self.inputs
        summary: dict[str, int | str] = {
            "shards": len(inputs.shards),
            "replicas": len(inputs.replicas),
            "protocol": ", ".join(inputs.protocols),
            "durability": ", ".join(inputs.durabilities),
            "audited by": _program(),
            "lives": inputs.lives,
            **{name: self.counts.get(name, 0) for name in ("submitted", "deliveries", "outcomes", "reads", "writes")},
            "client events": self.counts["history"],
        }
        seconds = round(time.monotonic() - began, 3)
        return Report(
            str(self.directory), self.properties, inputs.problems, self.notes, summary, seconds,
            course=self.course, models=self.models, strongest=strongest(self.models),
        )  # fmt: skip

    def _look_ahead(self) -> None:
        """Of few rows, at what does not rest on what is found before."""
        self.frames = Frames(self)
        if self.proof.near and self.has_history and "sessions" in self.parts:
            self._meanwhile.enter_context(self.ahead.looking(self.spark, self.frames.by_property()))

    def _prove(self) -> None:
        """The logs' lines behind every example."""
        examples = [violation for prop in self.properties for violation in prop.examples]
        if examples:
            self.progress("collecting the log lines that prove it")
            evidence.find({**self.tables, "history": self.history}, self.small, examples)

    def _follow(self) -> None:
        self.progress("following the course of the run")
        rows: Sequence[Any] = self.proof.slices if self.proof.holds(COURSE) else self._slices()
        self.course = course.course(self.small, rows, self.span, self.width)

    def _slices(self) -> list[Row]:
        if not self.width:
            return []
        carried = self.operations.join(self.transactions.select("id", "message"), "id", "left")
        return course.slices(self.tables["deliveries"], self.tables["submitted"], carried, self.width).collect()

    # -- properties ---------------------------------------------------------------------------------------------------

    def _check_delivery(self) -> None:
        inputs, deliveries = self.inputs, self.counts.get("deliveries", 0)
        blind = bool(inputs.unsure)
        self.check("integrity", lambda: delivery.integrity(self.log), deliveries, blind=blind)
        self._check_validity(deliveries, blind)
        prop = self.check(
            "agreement in a shard",
            lambda: delivery.agreement(
                self.bundles, self.disputed, self.top_frame, self.stop_frame, self.install_frame, inputs.holed,
                inputs.down,
            ),
            deliveries,
            blind=blind,
        )
        late = behind(inputs, self.tops)
        if late and prop.verdict == VALID:
            prop.verdict, prop.note = PENDING, f"{len(late)} of {len(inputs.replicas)} replicas are behind at the end"
        self.notes += late
        prefix = self.check("prefix order", lambda: delivery.prefix_order(self.bundles), deliveries, blind=blind)
        self._check_order(prop, prefix, deliveries)
        traced.check_genuineness(self)
        self._check_optimistic()

    def _check_optimistic(self) -> None:
        """Not a matter of right and wrong: how often a protocol's early deliveries were in another order."""
        total, mistaken, open_ = self.proof.optimistic if self.proof.holds(*LOGS) else self._guesses()
        skip = "" if total else "the protocol delivers nothing early"
        prop = self.check("optimistic deliveries", None, total, skip=skip)
        if total:
            share = 100 * mistaken / total
            prop.note = f"{mistaken:,} of {total:,} were early in another order than finally ({share:.2f} %)"
            prop.note += f"; {open_:,} are not final yet" if open_ else ""

    def _guesses(self) -> tuple[int, int, int]:
        row = delivery.optimistic(self.tables["deliveries"]).first()
        return (row.n, row.mistaken, row.open) if row is not None else (0, 0, 0)

    @cached_property
    def unsubmitted(self) -> DataFrame:
        """`delivery.unsubmitted`."""
        return self.keep(delivery.unsubmitted(self.messages, self.tables["submitted"]))

    def _check_validity(self, deliveries: int, blind: bool) -> None:
        prop = self.check(VALIDITY, self._invalid, deliveries, blind=blind)
        lost = self.proof.unsubmitted
        if not self.proof.holds(VALIDITY):
            lost = 0 if prop.violations else self.unsubmitted.count()
        gone = F.col("origin").isin(self.inputs.gone)
        without = self.unsubmitted.where(gone).count() if lost and self.inputs.gone else 0
        if without:
            what = f"whoever multicast {_messages(without)} was removed, and has left no journal"
            prop.verdict, prop.note = (UNDETERMINED, what) if prop.verdict == VALID else (prop.verdict, prop.note)
        if lost > without:
            self.notes.append(f"the record that it was multicast was lost in a crash for {_messages(lost - without)}")

    def _invalid(self) -> DataFrame:
        first = self.tables["deliveries"].where(F.col("position") == 1).select("replica", "installed_from")
        began = {row.replica: row.installed_from for row in first.distinct().collect()}
        lost_disk = {replica for replica, _, _ in self.inputs.installed if replica not in began}
        lost_disk |= {replica for replica, source in began.items() if source is not None}
        forgetful = sorted({*self.inputs.crashed, *self.inputs.unsure, *self.inputs.gone, *lost_disk})
        invoked = self.operations if self.has_history else None
        elsewhere = delivery.sent_elsewhere(self.messages, self.tables["submitted"])
        return delivery.validity(self.bundles, self.unsubmitted, elsewhere, invoked, forgetful)

    def _check_order(self, agreement: Property, prefix: Property, deliveries: int) -> None:
        prop = self.check(
            ORDER,
            lambda: delivery.one_order(self.messages, self.top_frame, self.shards, self.unsure_shards),
            deliveries,
            blind=bool(self.unsure_shards),
        )
        self.certified = not (prop.violations or prefix.violations or agreement.violations)
        if not self.certified:
            components, cycles = serialization.order_cycle(edges.delivery_edges(relations.bundles(self.judged)))
            for cycle in cycles:
                sentence = f"{len(cycle.sentences)} deliveries precede one another in a circle"
                prop.examples.append(cycle.violation(sentence))
            prop.violations += components
            prop.verdict = VIOLATED if prop.violations else prop.verdict
        waiting = self.proof.waiting if self.proof.holds(ORDER) else delivery.pending(self.messages).count()
        if waiting:
            note = f"{waiting} messages were not yet delivered by all the shards that they are addressed to"
            prop.note = f"{prop.note} {note}".strip()
            prop.verdict = PENDING if prop.verdict == VALID else prop.verdict

    def _check_transactions(self) -> None:
        skip = "" if self.has_outcomes else _NO_OUTCOMES
        outcomes = self.counts.get("outcomes", 0)
        unsure = self.inputs.unsure
        self.check(
            "results complete and equal",
            self._wrong_results,
            outcomes,
            blind=bool(unsure),
            skip=skip,
        )
        self.reads_property = self.check(
            READS, self._wrong_reads, self.counts.get("reads", 0), blind=bool(self.unsure_shards), skip=skip
        )
        self.check(
            "exactly once",
            lambda: transactions.exactly_once(
                self.log, self.transactions, self.writes, self.unsure_shards, self.slots_moved, self.base is None
            ),
            outcomes,
            blind=bool(unsure),
            skip=skip,
        )
        if self.counts.get("moves"):
            moved.check_moves(self, skip)
        if self.left_out:
            these = f"{self.left_out} position{'s' * (self.left_out > 1)}"
            self.notes.append(
                f"of {these} of a replica, what most replicas of its shard contradict was left out of all other checks"
            )

    def _wrong_results(self) -> DataFrame:
        found = transactions.results(
            self.bundles, self.disputed, self.transactions, self.top_frame, self.stop_frame, self.install_frame,
            self.snapshot_frame, self.inputs.unsure,
        )  # fmt: skip
        return found.unionByName(transactions.of_another_beginning(self.beginnings)) if self.restored else found

    def _wrong_reads(self) -> DataFrame:
        found = transactions.reads(self.ordered, self.writes, self.unsure_shards)
        found = found.unionByName(transactions.two_values(self.judged_rows(self.tables["writes"])))
        return found.orderBy(F.desc("name"))  # see `invented`

    def _check_clients(self) -> None:
        skip = "" if self.has_outcomes else _NO_OUTCOMES
        if not self.has_history:
            prop = self.check(CLIENTS, None, 0, blind=self.expect_history, skip=skip)
            self.without_history(prop)
        else:
            self._check_answers(skip)
        if self.counts.get("watched"):
            self.excused += answered.check_watches(self, skip)
        if self.leased and self.has_history:
            answered.check_leases(self, skip)

    def _check_answers(self, skip: str) -> None:
        self.excused = answered.check(self, skip)
        answered.check_values(self, skip)
        self._resolve_unknown(skip)
        if self.has_positions:
            self._check_positions(skip)
        if self.has_promised:
            self.excused += answered.check_promises(self, skip)

    def _check_positions(self, skip: str) -> None:
        """Of reads that stand in no journal."""
        proved, open_shards = self.proof.holds(POSITIONS), list(self.open_ends())
        rows = self.proof.at_positions if proved or self.proof.near else self.at_positions.count()
        prop = self.check(
            POSITIONS, lambda: self._stale(open_shards), rows, blind=bool(self.unsure_shards), skip=skip
        )
        beyond = F.col("gts").isNull() & F.col("shard").isin(open_shards)
        lost = self.at_positions.where(beyond).count() if open_shards and not (skip or proved) else 0
        if lost:
            self.excused += lost
            what = f"{lost} were answered from positions that had perhaps not been written at the end"
            prop.verdict, prop.note = (UNDETERMINED, what) if prop.verdict == VALID else (prop.verdict, prop.note)

    def _stale(self, open_shards: list[int]) -> DataFrame:
        visits = self.keep(positions.visits(self.at_positions, self.steps, self.judged))
        found = positions.stale(visits, self.at_positions, open_shards)
        return found.unionByName(positions.nowhere(self.at_positions, answered.settled(self)))

    def _resolve_unknown(self, skip: str) -> None:
        """What became of operations whose outcome no client knows."""
        under_way = self.complete_before(self.open_ends(self.inputs.crashed))
        known = self.proof.unknown if self.proof.holds(CLIENTS, *ACCOUNTS) else None
        total, applied, refused, open_ = (0, 0, 0, 0)
        if not skip and known is not None:
            total, applied, refused, open_ = known.counts(under_way is None)
        elif not skip and (row := clients.unknown(self.operations, self.transactions, under_way).first()):
            total, applied, refused, open_ = row.n, row.applied, row.not_applied, row.open
        prop = self.check("unknown outcomes resolved", None, total, skip=skip)
        if not skip:
            found = f"of {total:,} operations {applied:,} were applied, {refused:,} were not"
            prop.note = found if total else "every operation was answered"
            if open_:
                prop.verdict = PENDING
                prop.note += f", and {open_:,} may still be under way"

    # -- serializability ----------------------------------------------------------------------------------------------

    def _check_serializability(self) -> None:
        skip = "" if self.has_outcomes else _NO_OUTCOMES
        rows = self.counts.get("reads", 0) + self.counts.get("writes", 0)
        plain, strict = "serializability", "strict serializability"
        blind = bool(self.unsure_shards)
        certified = self.certified and not self.reads_property.violations
        self.late: int | None = None
        self.no_cycle = ""
        prop = self.check(plain, None, rows, blind=blind, skip=skip)
        if not skip and not certified:
            self._decide(prop, None)
        elif prop.verdict == VALID:
            prop.note = "every read returned the last version before it"
            self.founded(prop)
        prop = self.check(strict, None, self.counts["history"], blind=blind or self.history_unsure, skip=skip)
        if skip:
            return
        if not self.has_history:
            self.without_history(prop)
            return
        began = time.monotonic()
        proved = self.proof.holds(TIME)
        late = self.late = self.proof.late if proved else clients.against_real_time(self.timeline).count()
        if late and certified and self.proof.holds(PRECEDENCE):
            self.no_cycle = _NO_CYCLE
            self._without_cycle(prop)
            if prop.verdict == VALID:
                prop.note += f"; {late} operations ended before one that precedes them in the order was invoked"
        elif late or not certified:
            if self._decide(prop, self.in_time):
                self.no_cycle = _NO_CYCLE
            if prop.verdict == VALID:
                prop.note += f"; {late} operations ended before one that precedes them in the order was invoked"
        else:
            self.no_cycle = "the order of versions never runs against real time"
            if prop.verdict == VALID:
                prop.note = self.no_cycle
                self.founded(prop)
        if prop.verdict == VIOLATED and self.proof.circling:
            prop.note = f"{self.proof.circling:,} transactions are on cycles, of which shortest ones are shown"
        prop.seconds = round(time.monotonic() - began, 3)

    def _decide(self, prop: Property, timeline: DataFrame | None) -> bool:
        """Search for cycles, the certificate having failed. Whether there are none."""
        began = time.monotonic()
        self.progress(f"searching for cycles ({prop.name})")
        graph, names = self.dependencies(), self.names()
        found = serialization.search(graph, names, timeline)
        doubtful = found.components
        if doubtful and graph.where(~F.col("sure")).limit(1).collect():
            found = serialization.search(graph.where("sure"), names, timeline)
        for cycle in found.cycles:
            sentence = f"{len(cycle.sentences)} transactions must each precede the next, in a circle"
            prop.examples.append(cycle.violation(sentence))
        invented = self.invented()
        prop.examples += invented
        prop.violations = found.components - found.unexplained + len(invented)
        if prop.violations:
            prop.verdict = VIOLATED
        elif found.unexplained:
            prop.verdict, prop.note = UNDETERMINED, "a cycle was found, but could not be explained"
        elif doubtful > found.components:
            prop.verdict, prop.note = UNDETERMINED, serialization.IN_DOUBT
        else:
            self._without_cycle(prop)
        prop.seconds = round(prop.seconds + time.monotonic() - began, 3)
        return not doubtful

    def _without_cycle(self, prop: Property) -> None:
        if prop.verdict == VALID:
            prop.note = "not in the order of versions, but without a cycle"
            self.founded(prop)

    def _check_sessions(self) -> None:
        certified = self.certified and not self.reads_property.violations and not self.found(CLIENTS)
        skip = "" if self.has_outcomes else _NO_OUTCOMES
        blind = bool(self.unsure_shards) or self.history_unsure
        guarantees = Guarantees(self.frames, skip, blind, certified, self.no_cycle)
        guarantees.check()
        self.models = guarantees.models()

    def _check_bank(self) -> None:
        skip = ""
        if not self.has_outcomes:
            skip = _NO_OUTCOMES
        elif not self.has_history:
            skip = NO_HISTORY
        elif not set(self.functions) & set(_BANK):
            skip = "the client history has no bank operations"
        self.check(
            BANK,
            lambda: bank.conservation(self.operations, self.placed, self.writes, self.whole()),
            self.counts.get("writes", 0),
            blind=bool(self.unsure_shards),
            skip=skip,
        )

    @cached_property
    def functions(self) -> dict[str, int]:
        """How many operations of each kind there are."""
        if self.proof.holds(HISTORY, CLIENTS):
            return self.proof.functions
        return {row.f: row.n for row in self.operations.groupBy("f").agg(F.count("*").alias("n")).collect()}

    def _check_workloads(self) -> None:
        """Of the workloads that the client history tells of."""
        if not self.has_history:
            return
        for name, (f, check) in workloads.INVARIANTS.items():
            if f in self.functions:
                rows = self.functions[f]
                self.check(name, partial(self._broken, check), rows, blind=self.history_unsure)

    def _broken(self, check: Callable[[DataFrame], DataFrame]) -> DataFrame:
        found = check(self.operations)
        return workloads.of_a_part(found) if self.history_unsure else found
