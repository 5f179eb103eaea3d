"""The audit of one run: extraction, then every property in turn. Only this module runs Spark's actions."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_etl import answered, course, edges, evidence, frames, serialization, tables
from spark_etl.checks import bank, clients, delivery, genuineness, sessions, transactions, workloads
from spark_etl.columns import absent
from spark_etl.consistency import strongest
from spark_etl.guarantees import Guarantees
from spark_etl.inputs import Inputs, Top, behind, understand
from spark_etl.report import (
    EXAMPLES,
    NOT_APPLICABLE,
    PENDING,
    UNDETERMINED,
    VALID,
    VIOLATED,
    Course,
    ModelVerdict,
    Property,
    Report,
    Violation,
)

Progress = Callable[[str], None]

_NO_OUTCOMES = "the journals hold no outcomes: a run of the multicast library without the store"
_NO_HISTORY = "there is no client history (RUN_DIR/history/*.jsonl), or it is empty"
_CLIENTS = "clients saw what the journals say"
_BANK = ("transfer", "read_all")
_FOUNDATIONS = (
    "integrity", "agreement in a shard", "prefix order", "one order across shards", "results complete and equal",
    "exactly once", _CLIENTS, answered.VALUES,
)  # fmt: skip
"""Properties without which nothing is said to hold of transactions."""

PARTS = ("delivery", "transactions", "clients", "serializability", "sessions", "bank", "workloads", "course")
"""Groups of properties, and what happened when. "serializability" needs the first two, "sessions" that, too."""


class Audit:
    """One run under audit. `run` gives the report.

    run: the run's directory. out: where the Parquet tables go (`journal`, `history`); replaced if they exist.
    parts: which groups of properties to check.
    expect_history: without a client history some properties are "not determined"; False: "not applicable".
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
    ):
        self.spark = spark
        self.directory = run
        self.out = out
        self.parts = parts
        self.expect_history = expect_history
        self.progress = progress or (lambda text: None)
        self.properties: list[Property] = []
        self.notes: list[str] = []
        self.models: list[ModelVerdict] = []
        self.counts: dict[str, int] = {}
        self.excused = 0
        self._graph: DataFrame | None = None
        self._cached: list[DataFrame] = []

    def run(self, began: float | None = None) -> Report:
        """Extraction and checks. `began`: when the report's seconds start to count (`time.monotonic`)."""
        began = time.monotonic() if began is None else began
        self.progress("extracting")
        tables.extract(self.directory, self.out)
        return self.check_all(began)

    def check_all(self, began: float | None = None) -> Report:
        """The checks, of what was extracted. tables.Unreadable."""
        began = time.monotonic() if began is None else began
        try:
            self._open()
            self._prepare()
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
        inputs = self.inputs
        summary: dict[str, int | str] = {
            "shards": len(inputs.shards),
            "replicas": len(inputs.replicas),
            "protocol": ", ".join(inputs.protocols),
            "lives": inputs.lives,
            **{name: self.counts.get(name, 0) for name in ("submitted", "deliveries", "outcomes", "reads", "writes")},
            "client events": self.counts["history"],
        }
        seconds = round(time.monotonic() - began, 3)
        return Report(
            str(self.directory),
            self.properties,
            inputs.problems,
            self.notes,
            summary,
            seconds,
            course=self.course,
            models=self.models,
            strongest=strongest(self.models),
        )

    # -- input --------------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        manifest = tables.check_tables(self.out)
        opened = tables.Tables(self.spark, self.out, manifest)
        names = ("deliveries", "outcomes", "reads", "writes", "submitted")
        self.tables = {table: opened.frame(table) for table in names}
        self.history = opened.frame("history")
        self.trace = opened.frame("frames")
        self.counts = {"history": 0, **opened.counts}
        self.small = opened.small()
        self.inputs: Inputs = understand(self.small, sorted(manifest.marks), manifest.marks)
        if self.inputs.foreign:
            ours = ~F.col("replica").isin(self.inputs.foreign)
            self.tables = {table: frame.where(ours) for table, frame in self.tables.items()}
        self.has_history = self.counts["history"] > 0
        self.span = opened.span("deliveries", "at")
        self.course = Course()

    def _prepare(self) -> None:
        """Frames that several checks use, and how far every replica got."""
        self.progress("putting deliveries and outcomes side by side")
        self.shards = list(self.inputs.shards)[: frames.SHARDS_MAX]
        self.log = self.keep(frames.replica_log(self.tables["deliveries"], self.tables["outcomes"]))
        self.disputed = self.keep(frames.disputed(self.log))
        outvoted = self.keep(frames.outvoted(self.disputed))
        self.left_out = outvoted.count()

        def judged(frame: DataFrame) -> DataFrame:
            return frames.judged(frame, outvoted) if self.left_out else frame

        self.judged = judged(self.log)
        self.messages = self.keep(frames.messages(self.judged, self.shards))
        self.tops, covered = self._tops()
        self.top_frame = self.spark.createDataFrame(
            [(t.replica, t.shard, t.delivered, t.completed, t.gts) for t in self.tops.values()],
            "replica int, shard int, top bigint, top_completed bigint, top_gts binary",
        )
        self.stop_frame = self.spark.createDataFrame(
            self.inputs.stops, "replica int, shard int, delivered bigint, completed bigint"
        )
        unsure = set(self.inputs.unsure)
        self.unsure_shards = [
            shard for shard, members in self.inputs.shards.items() if unsure & set(members) and shard not in covered
        ]
        self.has_outcomes = self.counts.get("outcomes", 0) > 0 or self.counts.get("deliveries", 0) == 0
        self.reads = self.keep(frames.key_reads(judged(self.tables["reads"])))
        self.writes = self.keep(frames.key_writes(judged(self.tables["writes"])))
        self.ordered = self.keep(edges.reads_in_order(self.reads, self.writes))
        self.operations = self.keep(frames.operations(self.history))
        self._check_history()

    def _tops(self) -> tuple[dict[int, Top], set[int]]:
        """How far each replica got, and the shards whose every position up to the last is known from some replica; one
        of which, at least, lacks nothing at its end."""
        delivered, done = F.col("id").isNotNull(), F.col("status").isNotNull()
        rows = (
            self.log.groupBy("replica", "shard")
            .agg(
                F.max(F.when(delivered, F.col("position"))).alias("delivered"),
                F.max(F.when(done, F.col("position"))).alias("completed"),
                F.max(F.when(F.col("live"), F.col("gts"))).alias("gts"),
            )
            .collect()
        )
        tops = {
            r.replica: Top(r.replica, r.shard, r.delivered or 0, r.completed or 0, bytes(r.gts or bytes(16)))
            for r in rows
        }
        if self.left_out:
            last = self.judged.where("live").groupBy("replica").agg(F.max("gts").alias("gts")).collect()
            reached = {r.replica: bytes(r.gts) for r in last}
            for top in tops.values():
                top.gts = reached.get(top.replica, bytes(16))
        if not self.inputs.unsure:
            return tops, set(self.inputs.shards)
        union = (
            self.log.groupBy("shard", "position")
            .agg(F.max(delivered).alias("delivered"), F.max(done).alias("done"))
            .groupBy("shard")
            .agg(
                F.max("position").alias("top"),
                F.sum(F.col("delivered").cast("int")).alias("delivered"),
                F.max(F.when(F.col("done"), F.col("position"))).alias("top_done"),
                F.sum(F.col("done").cast("int")).alias("done"),
            )
            .collect()
        )
        whole = {shard for shard, members in self.inputs.shards.items() if set(members) - set(self.inputs.unsure)}
        return tops, {r.shard for r in union if r.top == r.delivered and (r.top_done or 0) == r.done} & whole

    def _check_history(self) -> None:
        if not self.has_history:
            return
        rows = self.history.groupBy(F.col("damage").isNotNull().alias("damaged")).agg(
            F.count("*").alias("n"), F.min(F.struct("file", "line", "damage")).alias("first")
        )
        for row in rows.collect():
            if row.damaged:
                first = f"{row.first.file}, line {row.first.line}: {row.first.damage}"
                self.inputs.problems.append(first + (f", and {row.n - 1} more such lines" if row.n > 1 else ""))
        backwards = (F.col("complete_us") < F.col("invoke_us")) | (F.col("end_line") < F.col("line"))
        for row in self.operations.where(backwards).select("file", F.hex("id").alias("id")).limit(3).collect():
            self.inputs.problems.append(f"{row.file}: operation {row.id.lower()} ends before it was invoked")
        odd = self.operations.where((F.col("invocations") != 1) | (F.col("ends") > 1))
        for row in odd.select("file", "invocations", "ends", F.hex("id").alias("id")).limit(3).collect():
            self.inputs.problems.append(
                f"{row.file}: operation {row.id.lower()} has {row.invocations} invocations and {row.ends} ends"
            )

        self._drop_foreign_histories()

    def _drop_foreign_histories(self) -> None:
        """A history whose acknowledged operations are one and all unknown to the journals is another run's."""
        known = self.messages.select("id").union(self.tables["submitted"].select("id")).distinct()
        found = self.operations.join(known.withColumn("known", F.lit(1)), "id", "left").groupBy("file")
        count = found.agg(F.count("known").alias("known"), F.count(F.when(F.col("type") == "ok", 1)).alias("ok"))
        for row in count.where((F.col("known") == 0) & (F.col("ok") > 0)).orderBy("file").collect():
            self.inputs.problems.append(
                f"{row.file}: none of its {row.ok} acknowledged operations is in any journal: a history of another run"
            )
            self.operations = self.operations.where(F.col("file") != row.file)

    @property
    def history_unsure(self) -> bool:
        """A part of what the clients noted is missing, or cannot be what they noted."""
        return any(problem.startswith("history/") for problem in self.inputs.problems)

    def keep(self, frame: DataFrame) -> DataFrame:
        """Cached until the audit is over."""
        self._cached.append(frame.cache())
        return self._cached[-1]

    @cached_property
    def timeline(self) -> DataFrame:
        """`sessions.steps`."""
        return self.keep(sessions.steps(self.operations, self.messages))

    @cached_property
    def applied_reads(self) -> DataFrame:
        """`edges.reads_in_order`, of the transactions that were applied."""
        applied = self.messages.where(F.col("applied") != 0).select("id")
        return self.keep(self.ordered.join(applied, "id", "left_semi"))

    def dependencies(self) -> DataFrame:
        """`edges.dependencies`, of the whole run; of contradictory journals, between the transactions of `_names`."""
        if self._graph is None:
            unseen = F.col("shard").isin(self.unsure_shards) & (F.col("version") == absent())  # of which deletion?
            graph = edges.dependencies(self.applied_reads.where(~unseen), self.writes)
            if self.contradiction():
                for end in ("source", "target"):
                    graph = graph.join(self._names().select(F.col("gts").alias(end)), end, "left_semi")
            self._graph = self.keep(graph)
        return self._graph

    @cached_property
    def in_time(self) -> DataFrame:
        """`timeline`; of contradictory journals, of the transactions of `_names`."""
        return self.timeline.join(self._names(), "gts", "left_semi") if self.contradiction() else self.timeline

    def invented(self) -> list[Violation]:
        """Some reads of what nobody wrote."""
        return [v for v in self.reads_property.examples if v.name == "unwritten-version"]

    def found(self, name: str) -> int:
        """How many violations a property had."""
        return sum(p.violations for p in self.properties if p.name == name)

    def contradiction(self) -> str:
        """Why nothing can be said to hold of transactions, or empty."""
        return next((f"{name} is violated" for name in _FOUNDATIONS if self.found(name)), "")

    def unfounded(self) -> str:
        """The same, or what clients know and the journals do not."""
        lost = f"{self.excused} acknowledged operations are not in the journals" if self.excused else ""
        return self.contradiction() or lost

    def verdict(self, name: str) -> str:
        """A property's verdict; empty if it was not checked."""
        return next((p.verdict for p in self.properties if p.name == name), "")

    def _prove(self) -> None:
        """The logs' lines behind every example."""
        examples = [violation for prop in self.properties for violation in prop.examples]
        if examples:
            self.progress("collecting the log lines that prove it")
            evidence.find({**self.tables, "history": self.history}, self.small, examples)

    def _follow(self) -> None:
        self.progress("following the course of the run")
        self.course = course.course(self.small, self.tables, self.operations, self.span)

    # -- properties ---------------------------------------------------------------------------------------------------

    def check(
        self, name: str, frame: DataFrame | None, rows: int, *, blind: bool = False, skip: str = "", note: str = ""
    ) -> Property:
        """Run one check. blind: a part of the input that it needs is missing. skip: why it does not apply."""
        began = time.monotonic()
        self.progress(f"checking {name}")
        count = frame.count() if frame is not None and not skip else 0
        found = frame.limit(EXAMPLES).collect() if frame is not None and count else []
        examples = [
            Violation(r.name, r.sentence, list(r.transactions), list(r.keys), list(r.replicas), list(r.positions))
            for r in found
        ]
        verdict = VIOLATED if count else NOT_APPLICABLE if skip else UNDETERMINED if blind else VALID
        if verdict == UNDETERMINED:
            note = f"nothing is wrong in what could be read. {note}".strip()
        prop = Property(name, verdict, rows, round(time.monotonic() - began, 3), count, examples, skip or note)
        self.properties.append(prop)
        return prop

    def _check_delivery(self) -> None:
        inputs, log, deliveries = self.inputs, self.log, self.counts.get("deliveries", 0)
        blind = bool(inputs.unsure)
        self.check("integrity", delivery.integrity(log), deliveries, blind=blind)
        self._check_validity(deliveries, blind)
        prop = self.check(
            "agreement in a shard",
            delivery.agreement(log, self.disputed, self.top_frame, self.stop_frame, inputs.holed),
            deliveries,
            blind=blind,
        )
        late = behind(inputs, self.tops)
        if late and prop.verdict == VALID:
            prop.verdict, prop.note = PENDING, f"{len(late)} of {len(inputs.replicas)} replicas are behind at the end"
        self.notes += late
        prefix = self.check("prefix order", delivery.prefix_order(log), deliveries, blind=blind)
        self._check_order(prop, prefix, deliveries)
        self._check_genuineness()
        self._check_optimistic()

    def _check_genuineness(self) -> None:
        """From the trace of a simulated run; of a protocol that does not claim it, a number."""
        name, rows = "genuineness", self.counts.get("frames", 0)
        if not rows:
            self.check(name, None, 0, skip=genuineness.NO_TRACE)
            return
        began = time.monotonic()
        members = self.spark.createDataFrame(
            [(shard, process) for shard, members in self.inputs.shards.items() for process in members],
            "shard int, process int",
        )
        taking_part = self.keep(
            genuineness.participants(self.trace, self.messages, self.tables["submitted"], members)
        )
        strangers = self.keep(genuineness.foreign(self.trace, taking_part, members))
        row = genuineness.summary(self.trace, strangers).first()
        if row is None:
            raise AssertionError("an aggregate has one row")
        if row.damaged:
            more = f", and {row.damaged - 1} more such lines" if row.damaged > 1 else ""
            self.inputs.problems.append(f"{row.damage.file}, line {row.damage.line}: {row.damage.damage}{more}")
        if row.genuine is False:
            share = f"{row.strange:,} of {row.sent:,} ordering frames ({100 * row.strange / max(row.sent, 1):.1f} %)"
            skip = f"the protocol does not claim it: {share} involved a process that was no part of their message"
            self.check(name, None, rows, skip=skip)
            return
        prop = self.check(name, None, rows, blind=not row.whole or row.damaged > 0)
        if row.accused:
            first = strangers.orderBy("file", "line", "receiver").limit(EXAMPLES)
            prop.examples = [genuineness.accusation(one) for one in first.collect()]
            prop.violations, prop.verdict = row.accused, VIOLATED
        elif not row.whole:
            prop.note += " The trace has no end."
        else:
            prop.note = f"{row.sent:,} frames of {row.kinds} kinds went between participants only"
        prop.seconds = round(time.monotonic() - began, 3)

    def _check_optimistic(self) -> None:
        """Not a matter of right and wrong: how often a protocol's early deliveries were in another order."""
        row = delivery.optimistic(self.tables["deliveries"]).first()
        skip = "" if row is not None and row.n else "the protocol delivers nothing early"
        prop = self.check("optimistic deliveries", None, row.n if row else 0, skip=skip)
        if row is not None and row.n:
            share = 100 * row.mistaken / row.n
            prop.note = f"{row.mistaken:,} of {row.n:,} were early in another order than finally ({share:.2f} %)"
            prop.note += f"; {row.open:,} are not final yet" if row.open else ""

    def _check_validity(self, deliveries: int, blind: bool) -> None:
        missing = self.keep(delivery.unsubmitted(self.messages, self.tables["submitted"]))
        renewed = self.tables["deliveries"].where((F.col("position") == 1) & F.col("installed_from").isNotNull())
        lost_disk = {row.replica for row in renewed.select("replica").distinct().collect()}
        forgetful = sorted({*self.inputs.crashed, *self.inputs.unsure, *lost_disk})
        invoked = self.operations if self.has_history else None
        prop = self.check(
            "validity", delivery.validity(self.log, missing, invoked, forgetful), deliveries, blind=blind
        )
        lost = 0 if prop.violations else missing.count()
        if lost:
            these = f"{lost} message{'s' * (lost > 1)}"
            self.notes.append(f"the record that it was multicast was lost in a crash for {these}")

    def _check_order(self, agreement: Property, prefix: Property, deliveries: int) -> None:
        frame = delivery.one_order(self.messages, self.top_frame, self.shards, self.unsure_shards)
        prop = self.check("one order across shards", frame, deliveries, blind=bool(self.unsure_shards))
        self.certified = not (prop.violations or prefix.violations or agreement.violations)
        if not self.certified:
            components, cycles = serialization.order_cycle(edges.delivery_edges(self.judged))
            for cycle in cycles:
                sentence = f"{len(cycle.sentences)} deliveries precede one another in a circle"
                prop.examples.append(cycle.violation(sentence))
            prop.violations += components
            prop.verdict = VIOLATED if prop.violations else prop.verdict
        waiting = delivery.pending(self.messages).count()
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
            transactions.results(self.log, self.disputed, self.messages, self.top_frame, self.stop_frame, unsure),
            outcomes,
            blind=bool(unsure),
            skip=skip,
        )
        self.reads_property = self.check(
            "reads return what the order says",
            transactions.reads(self.ordered, self.writes, self.unsure_shards).orderBy(F.desc("name")),  # see `invented`
            self.counts.get("reads", 0),
            blind=bool(self.unsure_shards),
            skip=skip,
        )
        self.check("exactly once", transactions.exactly_once(self.log), outcomes, blind=bool(unsure), skip=skip)
        if self.left_out:
            these = f"{self.left_out} position{'s' * (self.left_out > 1)}"
            self.notes.append(
                f"of {these} of a replica, what most replicas of its shard contradict was left out of all other checks"
            )

    def _check_clients(self) -> None:
        skip = "" if self.has_outcomes else _NO_OUTCOMES
        if not self.has_history:
            prop = self.check(_CLIENTS, None, 0, blind=self.expect_history, skip=skip)
            self.without_history(prop)
            return
        self.excused = answered.check(self, _CLIENTS, skip)
        answered.check_values(self, skip)
        self._resolve_unknown(skip)

    def _resolve_unknown(self, skip: str) -> None:
        """What became of operations whose outcome no client knows."""
        under_way = self.settled_before(self.open_ends(self.inputs.crashed))
        row = None if skip else clients.unknown(self.operations, self.messages, under_way).first()
        prop = self.check("unknown outcomes resolved", None, row.n if row else 0, skip=skip)
        if row is not None and not skip:
            found = f"of {row.n:,} operations {row.applied:,} were applied, {row.not_applied:,} were not"
            prop.note = found if row.n else "every operation was answered"
            if row.open:
                prop.verdict = PENDING
                prop.note += f", and {row.open:,} may still be under way"

    def without_history(self, prop: Property) -> None:
        """This property needs a client history, and there is none."""
        if prop.verdict in (UNDETERMINED, VALID):
            prop.note = _NO_HISTORY
            prop.verdict = UNDETERMINED if self.expect_history else NOT_APPLICABLE

    def whole(self) -> Column:
        """`frames.applied_everywhere`."""
        return frames.applied_everywhere(self.shards, self.unsure_shards)

    def open_ends(self, down: Sequence[int] | None = None) -> dict[int, bytes]:
        """Of the shards with replicas that were `down` at the end, or of which something is unknown: the version up to
        which their journals go; beyond that something may be missing that was not yet written."""
        inputs = self.inputs
        open_ = {*(inputs.down if down is None else down), *inputs.unsure}
        ends = {
            shard: max((self.tops[r].gts for r in members if r in self.tops), default=bytes(16))
            for shard, members in inputs.shards.items()
            if open_ & set(members)
        }
        lost = {s for s, members in inputs.shards.items() if set(members) & set(inputs.volatile)}
        return ends | dict.fromkeys(lost.union(self.unsure_shards), bytes(16))

    def settled_before(self, ends: Mapping[int, bytes]) -> bytes | None:
        """See `clients.lost`: the least of the ends of shards, None if there is none."""
        return min(ends.values(), default=None)

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
        late = self.late = clients.against_real_time(self.timeline).count()
        if late or not certified:
            if self._decide(prop, self.in_time):
                self.no_cycle = "there is no cycle of dependencies and real time"
            if prop.verdict == VALID:
                prop.note += f"; {late} operations ended before one that precedes them in the order was invoked"
        else:
            self.no_cycle = "the order of versions never runs against real time"
            if prop.verdict == VALID:
                prop.note = self.no_cycle
                self.founded(prop)
        prop.seconds = round(time.monotonic() - began, 3)

    def founded(self, prop: Property) -> None:
        """Nothing holds that rests on contradictory journals."""
        if why := self.unfounded():
            prop.verdict, prop.note = UNDETERMINED, f"nothing is wrong with the order, but {why}"

    def _decide(self, prop: Property, timeline: DataFrame | None) -> bool:
        """Search for cycles, the certificate having failed. Whether there are none."""
        began = time.monotonic()
        self.progress(f"searching for cycles ({prop.name})")
        graph, names = self.dependencies(), self._names()
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
        elif prop.verdict == VALID:
            prop.note = f"not in the order of versions, but without a cycle among {found.edges:,} edges"
            self.founded(prop)
        prop.seconds = round(prop.seconds + time.monotonic() - began, 3)
        return not doubtful

    def _names(self) -> DataFrame:
        """gts, id and f of the transactions that took effect; without those whose version is not theirs alone."""
        named = self.messages.where(F.col("applied") != 0).select("id", "gts")
        names = named.join(self.operations.select("id", "f").distinct(), "id", "left")
        if not self.contradiction():
            return names
        other = (F.col("outcome_id") != F.col("id")) | (F.col("outcome_gts") != F.col("gts"))
        other_gts = self.log.where(other).select(F.explode(F.array("gts", "outcome_gts")).alias("gts"))
        two = self.messages.where(F.col("gts") != F.col("gts_max"))
        two = two.select(F.explode(F.array("gts", "gts_max")).alias("gts"))
        shared = self.messages.groupBy("gts").agg(F.count("*").alias("n")).where(F.col("n") > 1).select("gts")
        return names.join(other_gts.unionByName(two).unionByName(shared), "gts", "left_anti")

    def _check_sessions(self) -> None:
        certified = self.certified and not self.reads_property.violations and not self.found(_CLIENTS)
        skip = "" if self.has_outcomes else _NO_OUTCOMES
        blind = bool(self.unsure_shards) or self.history_unsure
        guarantees = Guarantees(self, skip, blind, certified, self.no_cycle)
        guarantees.check()
        self.models = guarantees.models()

    def _check_bank(self) -> None:
        name = "conservation of the bank's total"
        skip = ""
        if not self.has_outcomes:
            skip = _NO_OUTCOMES
        elif not self.has_history:
            skip = _NO_HISTORY
        elif not self.operations.where(F.col("f").isin(*_BANK)).limit(1).collect():
            skip = "the client history has no bank operations"
        frame = None if skip else bank.conservation(self.operations, self.messages, self.writes, self.whole())
        self.check(name, frame, self.counts.get("writes", 0), blind=bool(self.unsure_shards), skip=skip)

    def _check_workloads(self) -> None:
        """Of the workloads that the client history tells of."""
        if not self.has_history:
            return
        ran = {row.f: row.n for row in self.operations.groupBy("f").agg(F.count("*").alias("n")).collect()}
        for name, (f, check) in workloads.INVARIANTS.items():
            if f in ran:
                self.check(name, check(self.operations), ran[f], blind=self.history_unsure)
