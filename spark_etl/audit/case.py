"""One run under audit: what was extracted of it, frames that several checks use, and the properties found so far."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_etl.audit import course
from spark_etl.audit.ahead import Ahead, Found
from spark_etl.certify.proof import CLIENTS, LOGS, READS, VALUES, Proof
from spark_etl.certify.proving import prove
from spark_etl.certify.source import Source, source
from spark_etl.certify.tasks import work
from spark_etl.checks import positions, sessions, transactions, workloads
from spark_etl.checks.ranges import FIRST_KEY
from spark_etl.frames import edges, relations
from spark_etl.frames.columns import absent
from spark_etl.ingest import base, tables
from spark_etl.ingest.inputs import Inputs, Top, understand
from spark_etl.ingest.journals import MOVED_TO
from spark_etl.report import NOT_APPLICABLE, UNDETERMINED, VALID, VIOLATED, Course, Property, Violation
from spark_etl.session import PLANNED_ROWS, of_rows

Progress = Callable[[str], None]

NO_HISTORY = "there is no client history (RUN_DIR/history/*.jsonl), or it is empty"
NEAR = "near"
"""Where the tables of what is near suspects are, in the directory of all."""

IN_FLIGHT = 12
"""So many deliveries of before a replica was removed may come when those who stay know that."""

_LARGE = ("submitted", "deliveries", "outcomes", "reads", "writes")
_FOUNDATIONS = (
    "integrity", "agreement in a shard", "prefix order", "one order across shards", "results complete and equal",
    "exactly once", CLIENTS, VALUES,
)  # fmt: skip
"""Properties without which nothing is said to hold of transactions."""


class Case:
    """See `runner.Audit`, which is one. Properties are found in turn; some rest on what was found before.

    manifest: which tables; if it is not given, all that the extraction left. heavier: see `session.sessions`. excused:
    how many answers to clients the journals lack, for a reason.
    """

    def __init__(
        self,
        spark: SparkSession,
        out: Path,
        *,
        expect_history: bool,
        progress: Progress | None,
        manifest: tables.Manifest | None = None,
        heavier: Callable[[], SparkSession] | None = None,
    ):
        self.spark = spark
        self._heavier = heavier
        self.out = out
        self.manifest = manifest
        self.expect_history = expect_history
        self.progress = progress or (lambda text: None)
        self.properties: list[Property] = []
        self.notes: list[str] = []
        self.counts: dict[str, int] = {}
        self.excused = 0
        self.foreign_histories: list[str] = []
        self.source: Source | None = None
        self.width = 0
        self.leased = self.restored = False
        self.wants_course = True
        self._graph: DataFrame | None = None
        self._cached: list[DataFrame] = []
        self.ahead = Ahead()
        self._meanwhile = ExitStack()

    # -- input --------------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        out, manifest, self.base = base.above(self.out, self.manifest or tables.check_tables(self.out, own=True))
        self.notes += self.base.sentences() if self.base else []
        self.opened = self._near = opened = tables.Tables(self.spark, out, manifest)
        self.counts = {"history": 0, **opened.counts}
        self.small = opened.small()
        self.source = source(out, manifest.files())
        begins = self.base.begins if self.base else {}
        self.inputs: Inputs = understand(self.small, sorted(manifest.marks), manifest.marks, manifest.floors, begins)
        self.has_history = self.counts["history"] > 0
        self.span = opened.span("deliveries", "at")
        positions_, versions = opened.span("history", "position"), opened.span("history", "version")
        self.has_positions = bool(positions_ and positions_[1]) or bool(versions and versions[0] == bytes(16))
        self.has_promised = opened.span("history", "seen") is not None
        keys, first = opened.span("writes", "key"), opened.span("writes", "position")
        self.restored = bool(first and first[0] == 0)
        self.leased = bool(keys and keys[0] < FIRST_KEY)
        self.course = Course()
        self.width = course.slice_width(self.small, self.span) if self.wants_course else 0

    def _prepare(self) -> None:
        """What was proved, and how far every replica got."""
        self.shards = list(self.inputs.shards)[: relations.SHARDS_MAX]
        self.progress("certifying")
        self.proof = self._certify()
        if self._heavier and self.proof.queried(self.counts) > PLANNED_ROWS:
            self.progress("starting Spark anew, for many rows")
            self.spark = self.opened.spark = self._heavier()
        if self.proof.near:  # the frames are of what is near suspects, nothing else being suspect
            self._near = self.opened.cut_out(NEAR, self.proof.near)
        self._meanwhile.enter_context(of_rows(self.spark, self.rows))
        agreed = self.proof.holds(*LOGS)
        if not agreed:
            self.progress("putting deliveries and outcomes side by side")
        self.left_out = 0 if agreed else self.outvoted.count()
        covered = set(self.inputs.shards)
        self.tops = {top.replica: top for top in self.proof.tops}
        if not agreed:
            self.tops, covered = self._tops()
        unsure = set(self.inputs.unsure)
        self.unsure_shards = [
            shard for shard, members in self.inputs.shards.items() if unsure & set(members) and shard not in covered
        ]
        self.has_outcomes = self.counts.get("outcomes", 0) > 0 or self.counts.get("deliveries", 0) == 0

    def _certify(self) -> Proof:
        """By two jobs of vectorised tasks."""
        context = self.spark.sparkContext

        def workers(told: list[bytes]) -> list[bytes]:
            return context.parallelize(told, len(told)).map(work).collect()

        if self.source is None:
            return Proof()
        into = self.out / NEAR
        shutil.rmtree(into, ignore_errors=True)
        whole = {name for name, _ in workloads.INVARIANTS.values()}
        may = None if self.counts.get("frames", 0) else into
        return prove(
            workers, self.source, self.inputs, has_history=self.has_history, width=self.width, into=may, whole=whole
        )

    # -- frames, made when a check needs them -------------------------------------------------------------------------

    @cached_property
    def tables(self) -> dict[str, DataFrame]:
        """The large tables of the journals, without what is foreign."""
        found = {table: self._near.frame(table) for table in _LARGE}
        if not self.inputs.foreign:
            return found
        ours = ~F.col("replica").isin(self.inputs.foreign)
        return {table: frame.where(ours) for table, frame in found.items()}

    @cached_property
    def history(self) -> DataFrame:
        """`schemas.HISTORY`."""
        return self._near.frame("history")

    @cached_property
    def trace(self) -> DataFrame:
        """`schemas.FRAMES`."""
        return self.opened.frame("frames")

    @cached_property
    def log(self) -> DataFrame:
        """`relations.replica_log`."""
        return self.keep(relations.replica_log(self.tables["deliveries"], self.tables["outcomes"]))

    @cached_property
    def slots_moved(self) -> bool:
        """Whether any slot has gone from one shard to another, or there is a new shard, which copies go to, too."""
        moved = F.col("reason").startswith(MOVED_TO)
        return bool(self.inputs.added or self.tables["outcomes"].where(moved).take(1))

    @cached_property
    def bundles(self) -> DataFrame:
        """`relations.bundles`."""
        return relations.bundles(self.log)

    @cached_property
    def disputed(self) -> DataFrame:
        """`relations.disputed`."""
        return self.keep(relations.disputed(self.bundles))

    @cached_property
    def outvoted(self) -> DataFrame:
        """`relations.outvoted`, and who began otherwise."""
        found = relations.outvoted(self.disputed)
        if self.restored:
            found = found.unionByName(relations.outvoted_beginnings(self.beginnings))
        return self.keep(found)

    @cached_property
    def beginnings(self) -> DataFrame:
        """`relations.beginnings`, of a run that was restored from a backup."""
        return self.keep(relations.beginnings(self.tables["writes"], self.tables["deliveries"], self.inputs.unsure))

    def judged_rows(self, frame: DataFrame) -> DataFrame:
        """Without what is outvoted."""
        return relations.judged(frame, self.outvoted) if self.left_out else frame

    @cached_property
    def judged(self) -> DataFrame:
        """`log` without what is outvoted."""
        return self.judged_rows(self.log)

    @cached_property
    def messages(self) -> DataFrame:
        """`relations.messages`."""
        return self.keep(relations.messages(relations.bundles(self.judged), self.shards))

    @cached_property
    def transactions(self) -> DataFrame:
        """`relations.transactions`."""
        return self.keep(relations.transactions(self.judged, self.messages, self.shards))

    @cached_property
    def writes(self) -> DataFrame:
        """`relations.key_writes`."""
        return self.keep(relations.key_writes(self.judged_rows(self.tables["writes"])))

    @cached_property
    def operations(self) -> DataFrame:
        """`relations.operations`, without what is `promised`."""
        found = relations.operations(self.history)
        return self.keep(found.where(~relations.promised()) if self.has_promised else found)

    @cached_property
    def promised(self) -> DataFrame:
        """`relations.operations`, of what is `relations.promised`."""
        return self.keep(relations.operations(self.history).where(relations.promised()))

    @cached_property
    def top_frame(self) -> DataFrame:
        """How far every replica got: replica, shard, top, top_completed, top_gts."""
        return self.spark.createDataFrame(
            [(t.replica, t.shard, t.delivered, t.completed, t.gts) for t in self.tops.values()],
            "replica int, shard int, top bigint, top_completed bigint, top_gts binary",
        )

    @cached_property
    def stop_frame(self) -> DataFrame:
        """What replicas said at their last clean stop."""
        return self.spark.createDataFrame(
            self.inputs.stops, "replica int, shard int, delivered bigint, completed bigint"
        )

    @cached_property
    def install_frame(self) -> DataFrame:
        """`Inputs.installed`."""
        return self.spark.createDataFrame(
            self.inputs.installed, "replica int, installed bigint, installed_offset bigint"
        )

    @cached_property
    def snapshot_frame(self) -> DataFrame:
        """`Inputs.snapshots`."""
        return self.spark.createDataFrame(
            self.inputs.snapshots, "shard int, replica int, position bigint, digest binary"
        )

    @cached_property
    def steps(self) -> DataFrame:
        """`sessions.steps`, of what stands in journals."""
        return self.keep(sessions.steps(self.operations, self.transactions))

    @cached_property
    def at_positions(self) -> DataFrame:
        """`positions.placed`: reads that stand in no journal."""
        places = positions.places(relations.bundles(self.judged))
        return self.keep(positions.placed(self.operations, self.steps, places, self.shards))

    @cached_property
    def placed(self) -> DataFrame:
        """`transactions`, and the reads at positions among them."""
        if not self.has_positions:
            return self.transactions
        known = self.at_positions.where(F.col("gts").isNotNull())
        columns = [name for name in self.transactions.columns if name in known.columns]
        return self.transactions.unionByName(known.select(*columns), allowMissingColumns=True)

    @cached_property
    def reads(self) -> DataFrame:
        """`relations.key_reads`, and those of reads at positions."""
        found = relations.key_reads(self.judged_rows(self.tables["reads"]))
        if self.has_positions:
            found = found.unionByName(positions.key_reads(self.at_positions.where(F.col("gts").isNotNull())))
        return self.keep(found)

    @cached_property
    def ordered(self) -> DataFrame:
        """`edges.reads_in_order`."""
        return self.keep(edges.reads_in_order(self.reads, self.writes))

    def _tops(self) -> tuple[dict[int, Top], set[int]]:
        """How far each replica got, and the shards whose every position up to the last is known from some replica; one
        of which, at least, lacks nothing at its end."""
        delivered, done = F.col("id").isNotNull(), F.col("status").isNotNull()
        rows = (
            self.log.groupBy("replica", "shard")
            .agg(
                F.max(F.when(delivered, F.col("position"))).alias("delivered"),
                F.max(F.when(done, F.col("position"))).alias("completed"),
                F.max(F.when(F.col("live"), F.struct("gts", "version"))).alias("last"),
            )
            .collect()
        )
        tops = {r.replica: Top(r.replica, r.shard, r.delivered or 0, r.completed or 0) for r in rows}
        if self.left_out:
            last = F.max(F.struct("gts", "version")).alias("last")
            rows = self.judged.where("live").groupBy("replica").agg(last).collect()
        for row in (row for row in rows if row.last):
            tops[row.replica].gts, tops[row.replica].version = bytes(row.last.gts), bytes(row.last.version)
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

    @property
    def history_unsure(self) -> bool:
        """A part of what the clients noted is missing, or cannot be what they noted."""
        return any(problem.startswith("history/") for problem in self.inputs.problems)

    @property
    def rows(self) -> int:
        """How many are queried."""
        whole = self.counts.get("moves") or not self.proof.near
        return sum((self.counts if whole else self.proof.near).values())

    def keep(self, frame: DataFrame) -> DataFrame:
        """Computed once. Of few rows it also forgets how it was made: what is made of it is planned without that; more
        of them are smaller if they are cached."""
        if self.rows <= PLANNED_ROWS:
            return frame.localCheckpoint(eager=False)
        self._cached.append(frame.cache())
        return self._cached[-1]

    @cached_property
    def timeline(self) -> DataFrame:
        """`sessions.steps`."""
        return self.keep(sessions.steps(self.operations, self.placed))

    @cached_property
    def applied_reads(self) -> DataFrame:
        """`edges.reads_in_order`, of the transactions that were applied."""
        applied = self.placed.where(F.col("applied") != 0).select("id")
        return self.keep(self.ordered.join(applied, "id", "left_semi"))

    def dependencies(self) -> DataFrame:
        """`edges.dependencies`, of the whole run; of contradictory journals, between the transactions of `names`."""
        if self._graph is None:
            unseen = F.col("shard").isin(self.unsure_shards) & (F.col("version") == absent())  # of which deletion?
            graph = edges.dependencies(self.applied_reads.where(~unseen), self.writes)
            if self.contradiction():
                for end in ("source", "target"):
                    graph = graph.join(self.names().select(F.col("gts").alias(end)), end, "left_semi")
            self._graph = self.keep(graph)
        return self._graph

    @cached_property
    def in_time(self) -> DataFrame:
        """`timeline`; of contradictory journals, of the transactions of `names`."""
        return self.timeline.join(self.names(), "gts", "left_semi") if self.contradiction() else self.timeline

    def invented(self) -> list[Violation]:
        """Some reads of what nobody wrote."""
        return [v for p in self.properties if p.name == READS for v in p.examples if v.name == "unwritten-version"]

    def found(self, name: str) -> int:
        """How many violations a property had."""
        return sum(p.violations for p in self.properties if p.name == name)

    def contradiction(self) -> str:
        """Why nothing can be said to hold of transactions, or empty."""
        return next((f"{name} is violated" for name in _FOUNDATIONS if self.found(name)), "")

    def unfounded(self) -> str:
        """The same, or what clients know and the journals do not."""
        lost = f"{self.excused} answers to clients are not in the journals" if self.excused else ""
        return self.contradiction() or lost

    def verdict(self, name: str) -> str:
        """A property's verdict; empty if it was not checked."""
        return next((p.verdict for p in self.properties if p.name == name), "")

    def check(
        self, name: str, frame: Callable[[], DataFrame] | None, rows: int, *, blind: bool = False, skip: str = ""
    ) -> Property:
        """Run one check, unless it is proved that it finds nothing. blind: a part of the input that it needs is
        missing. skip: why it does not apply."""
        began = time.monotonic()
        self.progress(f"checking {name}")
        found = Found([], 0)
        if frame is not None and not skip and not self.proof.holds(name):
            found = self.ahead.look(name, frame)
        count = found.number
        examples = [
            Violation(r.name, r.sentence, list(r.transactions), list(r.keys), list(r.replicas), list(r.positions))
            for r in found.rows
        ]
        verdict = VIOLATED if count else NOT_APPLICABLE if skip else UNDETERMINED if blind else VALID
        note = skip or ("nothing is wrong in what could be read." if verdict == UNDETERMINED else "")
        prop = Property(name, verdict, rows, round(time.monotonic() - began, 3), count, examples, note)
        self.properties.append(prop)
        return prop

    def without_history(self, prop: Property) -> None:
        """This property needs a client history, and there is none."""
        if prop.verdict in (UNDETERMINED, VALID):
            prop.note = NO_HISTORY
            prop.verdict = UNDETERMINED if self.expect_history else NOT_APPLICABLE

    def whole(self) -> Column:
        """`relations.applied_everywhere`."""
        return relations.applied_everywhere(self.shards, self.unsure_shards)

    @property
    def down(self) -> list[int]:
        """The replicas that were down at the end, but for those that had been removed from shards that have gone on:
        what such a one had answered was before that."""
        return [r for r in self.inputs.down if not self._gone_on_without(r)]

    def _gone_on_without(self, replica: int) -> bool:
        at, shard = self.inputs.removed_at.get(replica), self.inputs.shard_of(replica)
        if at is None or shard is None:
            return False
        return any(self.tops[r].delivered > at + IN_FLIGHT for r in self.inputs.staying(shard) if r in self.tops)

    def open_ends(self, down: Sequence[int] | None = None) -> dict[int, bytes]:
        """Of the shards with replicas that were `down` at the end, or of which something is unknown: the version up to
        which their journals go; beyond that something may be missing that was not yet written."""
        inputs = self.inputs
        open_ = {*(self.down if down is None else down), *inputs.unsure}
        ends = {
            shard: max((self.tops[r].version for r in members if r in self.tops), default=bytes(16))
            for shard, members in inputs.shards.items()
            if open_ & set(members)
        }
        lost = {s for s, members in inputs.shards.items() if set(members) & set(inputs.volatile)}
        return ends | dict.fromkeys(lost.union(self.unsure_shards), bytes(16))

    def complete_before(self, ends: Mapping[int, bytes]) -> bytes | None:
        """See `clients.lost`: the least of the ends of shards, None if there is none."""
        return min(ends.values(), default=None)

    def founded(self, prop: Property) -> None:
        """Nothing holds that rests on contradictory journals; the first property that does says why."""
        if not (why := self.unfounded()):
            return
        note = f"nothing is wrong with the order, but {why}"
        told = [p.name for p in self.properties if p is not prop and p.note.startswith(note)]
        prop.verdict, prop.note = UNDETERMINED, f"see {told[0]}" if told else note

    def names(self) -> DataFrame:
        """gts, id and f of the transactions that took effect; without those whose version is not theirs alone."""
        named = self.placed.where(F.col("applied") != 0).select("id", "gts", "message")
        names = named.join(self.operations.select("id", "f").distinct(), "id", "left")
        if not self.contradiction():
            return names.drop("message")
        other = self.judged.where(transactions.of_another_delivery()).select(F.col("id").alias("message"), "version")
        two = self.transactions.where(F.col("gts") != F.col("gts_max"))
        two = two.select(F.explode(F.array("gts", "gts_max")).alias("gts"))
        shared = self.transactions.groupBy("gts").agg(F.count("*").alias("n")).where(F.col("n") > 1).select("gts")
        unclear = other.select(F.col("version").alias("gts")).unionByName(two).unionByName(shared)
        return names.join(unclear, "gts", "left_anti").join(other, "message", "left_anti").drop("message")
