"""Moves of slots (`kvstore.core.moves`): their steps follow one another as they must, the target gets what the source
had, and keys are read and written in the shard that has their slot.

The steps of a move are a *course*: from the one that is the first on, up to the last or to the first of another move of
that source. What a course gave of a key last is what the target has once a step of it hands over the key's slot.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from kvstore.core.audit import SLOTS
from spark_etl.frames.columns import absent, id_text, key_text, text, union, version_text, violations

Ranges = Sequence[tuple[int, int]]


class Step(NamedTuple):
    """Of the table "moves", as `replica` accounts for it. known: so does its source, of which all that came before is
    known, too."""

    gts: bytes
    id: bytes
    replica: int
    source: int
    target: int
    first: bool
    last: bool
    asked: Ranges
    slots: Ranges
    known: bool = True


class Taken(NamedTuple):
    """Slots that a step handed over. course: the version of the first step of its course; None: it is not known.
    closed: all that was written to keys of these slots before is known, in whatever shard they were."""

    first: int
    last: int
    gts: bytes
    course: bytes | None
    closed: bool
    step: Step


class Wrong(NamedTuple):
    """Why a step cannot be: the end of a sentence."""

    step: Step
    why: str


class _Course:
    """What one source is giving to one target. left: the slots that are still to be handed over, rising."""

    def __init__(self, step: Step):
        self.begun = step.gts
        self.target = step.target
        self.asked, self.left = step.asked, _expanded(step.asked)
        self._handed_to = -1

    def goes_on(self, step: Step) -> bool:
        """Whether this step can be of it: it asks for the same slots, or for those that are left."""
        return step.target == self.target and (step.asked == self.asked or _expanded(step.asked) == self.left)

    def hand_over(self, step: Step, slots: list[int]) -> bool:
        """Whether all of these slots were left."""
        if step.asked != self.asked:
            self.asked, self.left = step.asked, _expanded(step.asked)
        known = all(self.left[at : at + 1] == [slot] for slot in slots for at in [bisect_left(self.left, slot)])
        self._handed_to = max(slots, default=self._handed_to)
        self.left = self.left[bisect_right(self.left, self._handed_to) :]
        return known


class Followed:
    """What the steps of a run say, in the order of versions. courses: of each step whose course is known: its version,
    and that of the course's first step."""

    def __init__(self, steps: Iterable[Step], complete: bool):
        """complete: nothing is missing before the first step."""
        self.steps = sorted(steps)
        self.taken: list[Taken] = []
        self.wrong: list[Wrong] = []
        self.courses: list[tuple[bytes, bytes]] = []
        self._complete = complete
        self._under_way: dict[int, _Course] = {}
        self._known: set[int] = set()
        self._owners: dict[int, int] = {}
        self._open: set[int] = set()
        for step in self.steps:
            for why in self._follow(step):
                self.wrong.append(Wrong(step, why))

    def _follow(self, step: Step) -> Iterator[str]:
        course, slots = self._course(step), _expanded(step.slots)
        if step.source == step.target:
            yield "its source is its target"
        if course is None and (self._complete or step.source in self._known):
            yield "it goes on with a move that its shard is not in"
        elif course is not None:
            self._known.add(step.source)
            self.courses.append((step.gts, course.begun))
            if not course.hand_over(step, slots):
                yield "it hands over what the move is not of, or has handed over"
            if step.asked and step.last != (not course.left):
                yield f"slots are left, and it is called the last: {step.last}"
        others = {self._owners.get(slot, step.source) for slot in slots} - {step.source}
        if others:
            yield f"it hands over what shard {min(others)} has"
        for slot in slots:
            self._owners[slot] = step.target
        begun = None if course is None else course.begun
        self._open.update(() if step.known else slots)
        self.taken += [Taken(*some, step.gts, begun, closed, step) for some, closed in self._parts(step.slots)]
        if step.last:
            self._under_way.pop(step.source, None)

    def _parts(self, ranges: Ranges) -> Iterator[tuple[tuple[int, int], bool]]:
        """Of these slots those, and those not, that a step whose source does not account for it handed over."""
        for first, last in ranges:
            if not self._open:
                yield (first, last), True
                continue
            for open_, slots in groupby(range(first, last + 1), self._open.__contains__):
                some = [*slots]
                yield (some[0], some[-1]), not open_

    def _course(self, step: Step) -> _Course | None:
        """That the step is of; None if it goes on with one that is not known."""
        if step.first:
            self._under_way[step.source] = _Course(step)
        course = self._under_way.get(step.source)
        return course if course is not None and course.goes_on(step) else None


def _expanded(ranges: Ranges) -> list[int]:
    return [slot for first, last in ranges for slot in range(first, last + 1)]


def slot_of(key: Column) -> Column:
    """`kvstore.api.shard_map.slot_of`."""
    tag = F.regexp_extract(F.decode(key, "ISO-8859-1"), r"(?s)^[^{]*\{([^}]+)\}", 1)
    return F.crc32(F.when(tag == "", key).otherwise(F.encode(tag, "ISO-8859-1"))) % SLOTS


def check(
    followed: Followed, given: DataFrame, reads: DataFrame, writes: DataFrame, key_writes: DataFrame, floor: bytes
) -> DataFrame:
    """Names: step-out-of-turn, left-behind, given-otherwise, served-elsewhere.

    given, reads, writes: the tables. key_writes: `relations.key_writes`. floor: nothing is known of who wrote versions
    up to this one.
    """
    spark = given.sparkSession
    wrong = spark.createDataFrame(
        [(w.step.gts, w.step.id, w.step.replica, w.step.source, w.step.target, w.why) for w in followed.wrong],
        "gts binary, id binary, replica int, source int, target int, why string",
    )
    out_of_turn = violations(
        wrong,
        "step-out-of-turn",
        text(
            "transaction {} (version {}) is a step of a move from shard {} to shard {}, but {}",
            id_text(F.col("id")), version_text(F.col("gts")), F.col("source"), F.col("target"), F.col("why"),
        ),
        [F.col("id")],
        replicas=[F.col("replica")],
    )  # fmt: skip
    courses = F.broadcast(spark.createDataFrame(followed.courses, "gts binary, course binary"))
    steps = F.broadcast(spark.createDataFrame([(step.gts,) for step in followed.steps], "gts binary"))
    rows = [
        (t.first, t.last, t.gts, t.course, t.closed, t.step.id, t.step.replica, t.step.source, t.step.target)
        for t in followed.taken
    ]
    taken = spark.createDataFrame(
        rows,
        "first int, last int, taken binary, course binary, closed boolean, step binary, by int, source int, target int",
    ).withColumn("slot", F.explode(F.sequence("first", "last")))
    written = key_writes.select("key", "gts", "deleted", "value", "digested").withColumn("slot", slot_of(F.col("key")))
    given = given.groupBy("gts", "key").agg(F.min(F.struct("version", "deleted", "value", "digested")).alias("row"))
    given = given.select("gts", "key", "row.*")
    return union(
        [
            out_of_turn,
            _left_behind(taken, given.join(courses, "gts"), written, floor),
            _given_otherwise(given, key_writes),
            _served_elsewhere(taken, steps, reads, writes),
        ]
    )


def _left_behind(taken: DataFrame, given: DataFrame, written: DataFrame, floor: bytes) -> DataFrame:
    """Of every key whose slot was handed over: what it had, and what was given of it last."""
    known = F.broadcast(taken.where(F.col("closed") & F.col("course").isNotNull()).drop("first", "last"))
    had = written.join(known, "slot").where(F.col("gts") < F.col("taken")).groupBy("key", "taken")
    had = had.agg(
        F.max(F.struct("gts", "deleted")).alias("had"), F.first("step").alias("step"), F.first("by").alias("by")
    )
    told = given.withColumn("slot", slot_of(F.col("key"))).join(known, ["slot", "course"])
    told = told.where(F.col("gts") <= F.col("taken")).groupBy("key", "taken").agg(
        F.max(F.struct("gts", "deleted", "version")).alias("told"), F.first("step").alias("step_"),
        F.first("by").alias("by_"),
    )  # fmt: skip
    both = had.join(told, ["key", "taken"], "full_outer")
    both = both.withColumn("step", F.coalesce("step", "step_")).withColumn("by", F.coalesce("by", "by_"))
    expected = F.when(F.coalesce("had.deleted", F.lit(True)), absent()).otherwise(F.col("had.gts"))
    got = F.when(F.coalesce("told.deleted", F.lit(True)), absent()).otherwise(F.col("told.version"))
    both = both.withColumn("expected", expected).withColumn("got", got)
    unknown = (F.col("expected") == absent()) & (F.col("got") <= F.lit(floor))
    return violations(
        both.where((F.col("expected") != F.col("got")) & ~unknown),
        F.when(F.col("expected") == absent(), "given-otherwise").otherwise("left-behind"),
        text(
            "step {} (version {}) handed over the slot of key {}, whose last version was {}; what it got of it is {}",
            id_text(F.col("step")), version_text(F.col("taken")), key_text(F.col("key")),
            version_text(F.col("expected")), version_text(F.col("got")),
        ),
        [F.col("step")],
        [F.col("key")],
        [F.col("by")],
    )  # fmt: skip


def _given_otherwise(given: DataFrame, key_writes: DataFrame) -> DataFrame:
    """A row that has another value than was written."""
    was = key_writes.where(F.col("value").isNotNull()).select(
        "key", F.col("gts").alias("version"), F.col("value").alias("was"), F.col("digested").alias("was_digested"),
        F.col("id").alias("writer"), "replica",
    )  # fmt: skip
    both = given.where(~F.col("deleted")).join(was, ["key", "version"])
    other = (F.col("value") != F.col("was")) | (F.col("digested") != F.col("was_digested"))
    return violations(
        both.where(other),
        "given-otherwise",
        text(
            "a step of a move (version {}) gave key {} at version {} with another value than was written",
            version_text(F.col("gts")), key_text(F.col("key")), version_text(F.col("version")),
        ),
        [F.col("writer")],
        [F.col("key")],
        [F.col("replica")],
    )  # fmt: skip


def _served_elsewhere(taken: DataFrame, steps: DataFrame, reads: DataFrame, writes: DataFrame) -> DataFrame:
    """Of keys whose slots were ever moved."""
    moves = F.sort_array(F.collect_list(F.struct("taken", "source", "target")))
    owners = F.broadcast(taken.groupBy("slot").agg(moves.alias("moves")))
    columns = ("key", "gts", "id", "shard", "replica", "position")
    rows = reads.select(*columns).unionByName(writes.select(*columns)).where(F.col("position") > 0)
    rows = rows.join(steps, "gts", "left_anti").withColumn("slot", slot_of(F.col("key")))
    rows = rows.join(owners, "slot").withColumn("before", F.filter("moves", lambda one: one["taken"] < F.col("gts")))
    first = F.col("moves")[0]["source"]
    owner = F.when(F.size("before") == 0, first).otherwise(F.element_at("before", -1)["target"])
    found = rows.withColumn("owner", owner).where(F.col("shard") != F.col("owner"))
    found = found.groupBy("key", "gts", "id", "shard", "owner").agg(F.min("replica").alias("replica"))
    return violations(
        found,
        "served-elsewhere",
        text(
            "transaction {} (version {}) read or wrote key {} in shard {}, when shard {} had its slot",
            id_text(F.col("id")), version_text(F.col("gts")), key_text(F.col("key")), F.col("shard"), F.col("owner"),
        ),
        [F.col("id")],
        [F.col("key")],
        [F.col("replica")],
    )  # fmt: skip
