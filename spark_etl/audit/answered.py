"""What clients were told, held against the journals: what is lost, and what a crash may have kept from the disk."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from spark_etl.audit.case import Case
from spark_etl.certify.client import Thin
from spark_etl.certify.proof import CLIENTS, PROMISES, VALUES
from spark_etl.checks import clients, leases, moves, positions, promises, replay, values, watches
from spark_etl.frames import relations
from spark_etl.report import PENDING, UNDETERMINED, VALID, VIOLATED, Property
from spark_etl.search import serialization

_NO_VALUES = "the client history says neither what was asked nor which values were read: not compared"

LAST_TURNS = 12
"""An answer does not wait for the journal of the replica that gives it, but for most disks of each shard to have the
message itself. So a replica that is killed may have answered for what it had not written. Not for long: what is asked
for after that answer must be on most disks, too, before it is answered, and what stands there before it is with it. So
many operations of a shard, each asked for after the one before was answered, may be lost with a batch that was never
written; one or two are, and up to ten were where a disk was slow."""


def check(case: Case, skip: str) -> int:
    """The property `CLIENTS` of an audit with a history. Returns how many answers are for what was perhaps not
    written."""
    rows, blind = case.counts["history"], bool(case.inputs.unsure or case.inputs.problems)
    if skip or case.proof.holds(CLIENTS):
        prop = case.check(CLIENTS, None, rows, blind=blind, skip=skip)
        if not skip:
            _note_thin(case, prop, case.proof.thin)
        return 0
    ends = case.open_ends()
    open_ends = case.spark.createDataFrame(sorted(ends.items()), "shard int, end binary")
    lost = case.keep(
        clients.lost(
            case.operations, case.transactions, case.messages, case.shards, open_ends, case.complete_before(ends),
            case.unsure_shards, _owners(case) if ends else None,
        )
    )  # fmt: skip
    excused = F.col("excused") & ~_of_shards(_beyond_a_batch(case, lost))
    lost = case.keep(_none_later(case, lost.withColumn("excused", excused), ends))
    gone = lost.where(~F.col("excused"))
    frame = clients.answers(case.operations, case.transactions, case.reads, case.writes, case.whole())
    prop = case.check(CLIENTS, lambda: frame.unionByName(clients.absent(gone)), rows, blind=blind)
    _note_thin(case, prop, _thin(case))
    return _count_excused(case, prop, lost)


def _none_later(case: Case, lost: DataFrame, ends: Iterable[int]) -> DataFrame:
    """With no excuse for what was asked for when all that has crashed was back, as its file tells: the power took
    nothing that came later. So it was, if a client had been answered with what each of these replicas multicast in its
    last life."""
    inputs = case.inputs
    open_ = {*case.down, *inputs.unsure}
    back = {shard: inputs.volatile_of(shard) for shard in ends if not open_ & {*inputs.shards[shard]}}
    begun = [(replica, shard, inputs.begun[replica]) for shard, replicas in back.items() for replica in replicas]
    if not begun:
        return lost
    sent = case.tables["submitted"].groupBy("replica", F.col("id").alias("message")).agg(F.min("offset").alias("sent"))
    starts = case.spark.createDataFrame(begun, "replica int, back int, begun bigint")
    sent = sent.join(F.broadcast(starts), "replica").where(F.col("sent") > F.col("begun"))
    told = case.operations.where((F.col("type") == "ok") & F.col("complete_us").isNotNull())
    told = told.join(case.transactions.select("id", "message"), "id").join(sent, "message")
    each = told.groupBy("file", "back", "replica").agg(F.min("complete_us").alias("at"))
    shards = each.groupBy("file", "back").agg(F.max("at").alias("since"), F.count("*").alias("n"))
    many = case.spark.createDataFrame([(shard, len(mine)) for shard, mine in back.items()], "back int, n bigint")
    shards = shards.join(F.broadcast(many), ["back", "n"]).select("file", "back", "since")
    some = lost.select("file", "id", "invoke_us", "lacks").join(F.broadcast(shards), "file")
    some = some.where(F.col("invoke_us") > F.col("since"))
    mine = F.array_contains("lacks", F.col("back"))
    all_ = F.col("lacks").isNull() & (F.count("*").over(Window.partitionBy("file", "id")) == len([*ends]))
    later = some.withColumn("all", all_).where(mine | F.col("all")).select("file", "id", F.lit(True).alias("later"))
    lost = lost.join(later.distinct(), ["file", "id"], "left")
    return lost.withColumn("excused", F.col("excused") & F.col("later").isNull()).drop("later")


def _owners(case: Case) -> DataFrame:
    """See `clients.lost`: keys whose slots were never handed over."""
    touched = case.tables["reads"].select("key", "shard").unionByName(case.tables["writes"].select("key", "shard"))
    owners = touched.groupBy("key").agg(F.min("shard").alias("shard"), F.max("shard").alias("other"))
    owners = owners.where(F.col("shard") == F.col("other")).drop("other")
    if not case.counts.get("moves"):
        return owners
    ranges = F.explode(F.from_json("slots", "array<array<int>>")).alias("range")
    handed = case.opened.frame("moves").select(ranges)
    handed = handed.select(F.explode(F.sequence(F.col("range")[0], F.col("range")[1])).alias("slot")).distinct()
    return owners.withColumn("slot", moves.slot_of(F.col("key"))).join(handed, "slot", "left_anti").drop("slot")


def settled(case: Case) -> DataFrame:
    """The keys that one shard has had all the time, as far as that is known: key, shard, a row or several."""
    if not case.slots_moved:
        return case.tables["writes"].select("key", "shard")
    return _owners(case).where(F.lit(not case.inputs.unsure))


def check_values(case: Case, skip: str) -> None:
    """The property `VALUES` of an audit with a history."""
    wrong: Callable[[], DataFrame] | None = None
    compared: DataFrame | None = None
    rows, answered = case.proof.compared, case.proof.answered
    if not skip and not case.proof.holds(VALUES):
        writes = case.writes if case.proof.near else values.since(case.writes, case.base is None)
        compared = values.compare(case.operations, case.placed, case.reads, writes, case.whole())
        if not case.proof.near:
            outcomes = case.judged_rows(case.tables["outcomes"])
            compared = compared.unionByName(
                values.refused(case.operations, case.transactions, outcomes, case.reads, writes)
            )
        if case.has_promised:
            compared = compared.unionByName(values.compare_promised(case.promised, case.writes))
        compared = case.keep(compared)
        if not case.proof.near:
            rows = compared.where(F.col("name") == "").count() or compared.count()
            answered = case.operations.where(F.col("type") == "ok").count()
            answered += case.promised.count() if case.has_promised else 0
        wrong = partial(_other_values, case, compared)
    skip = skip or ("" if rows else _NO_VALUES)
    prop = case.check(VALUES, wrong, 0 if skip else rows, blind=bool(case.unsure_shards), skip=skip)
    if prop.verdict == VALID:
        left = f", {answered - rows:,} not" if answered > rows else ""
        prop.note = f"{rows:,} operations were compared{left}"
        if compared is not None and (anew := compared.where(F.col("name") == replay.CREATED_ANEW).count()):
            prop.verdict = UNDETERMINED
            prop.note += f"; {anew:,} comparisons of create versions came out as if old releases had overwritten keys"


def _other_values(case: Case, compared: DataFrame) -> DataFrame:
    """Ranges are looked at in whole runs only: beside a suspect they are proved."""
    found = values.wrong(compared, case.writes)
    if case.proof.near:
        return found
    placed = case.placed.where(case.whole())
    if case.slots_moved:
        placed = placed.where(F.col("message").isNotNull())
    return found.unionByName(_incomplete(case, *promises.of_ordered(case.operations, placed)))


def _incomplete(case: Case, reads: DataFrame, looks: DataFrame) -> DataFrame:
    return promises.incomplete(
        reads, looks, case.tables["writes"], case.writes, case.unsure_shards, case.open_ends(), case.base is not None
    )


def check_promises(case: Case, skip: str) -> int:
    """The property `PROMISES` of an audit whose history has such reads. Returns how many of them were answered from
    what had perhaps not been written."""
    if case.proof.holds(PROMISES):
        counts = case.proof.promises
        prop = case.check(PROMISES, None, sum(counts.values()), blind=bool(case.unsure_shards), skip=skip)
        _name_promises(prop, counts)
        return 0
    rows = case.promised.groupBy(F.coalesce("consistency", F.lit("linearizable")).alias("kind")).count().collect()
    counts = {row.kind: row["count"] for row in rows}
    open_ends = case.open_ends()
    looks = case.keep(promises.looks(case.promised, positions.places(relations.bundles(case.judged))))
    told = case.keep(promises.told(case.promised, looks, case.tables["writes"], case.writes))
    torn = case.keep(promises.torn(told))
    doubtful = case.keep(promises.not_excluded(torn, case.steps))
    visits = positions.visits(case.at_positions, case.steps, case.judged)

    def wrong() -> DataFrame:
        found = promises.check(case.promised, looks, told, torn, visits, case.steps, case.unsure_shards, open_ends)
        at = F.when(F.size("places") == 0, F.col("seen"))
        reads = case.promised.withColumn("seen", at)
        found = found.unionByName(promises.nowhere(case.promised, settled(case)))
        reads = reads.where("seen IS NOT NULL") if case.slots_moved else reads
        return found.unionByName(_incomplete(case, reads, looks))

    prop = case.check(
        PROMISES, wrong,
        sum(counts.values()), blind=bool(case.unsure_shards), skip=skip,
    )  # fmt: skip
    if skip:
        return 0
    lost = looks.where(F.col("at").isNull() & F.col("shard").isin(list(open_ends))).count() if open_ends else 0
    _name_promises(prop, counts)
    if prop.verdict == VALID and lost:
        prop.verdict = UNDETERMINED
        prop.note += f"; {lost} places had perhaps not been written at the end"
    if count := doubtful.select("file", "id").distinct().count():
        _search_instant(case, prop, doubtful, *promises.among_others(told, case.promised))
        if prop.verdict == VALID:
            prop.note += f"; {count} of no instant in the order of versions, but on no cycle"
    return lost


def check_watches(case: Case, skip: str) -> int:
    """The property "watches", of an audit whose history has some: of the whole run, whatever is near suspects. Returns
    of how many changes they were told that had perhaps not been written."""
    watched = case.keep(case.opened.frame("watched").where(~F.col("file").isin(case.foreign_histories)))
    writes = relations.key_writes(case.opened.frame("writes")) if case.proof.near else case.writes
    odd = watches.odd(watched).limit(3).collect()
    case.inputs.problems += [
        f"{row.file}: watch {row.id.lower()} "
        + (f"has {row.begins} beginnings" if row.begins != 1 else f"goes on after its end, for {row.after} lines")
        for row in odd
    ]
    spans = case.keep(watches.spans(watched, case.base.version if case.base else None))
    under_way = case.complete_before(case.open_ends())
    compared = case.keep(watches.compare(spans, watched, writes, case.base is not None, under_way))
    steps = case.steps if case.has_history else None
    prop = case.check(
        "watches", lambda: watches.check(spans, watched, compared, steps), case.counts["watched"],
        blind=bool(case.unsure_shards or odd or case.foreign_histories), skip=skip,
    )  # fmt: skip
    if prop.verdict != VALID:
        return 0
    counts = watches.counts(spans, compared)
    prop.note = f"{counts.watches:,} watches were told of {counts.told:,} transactions, and missed none"
    if counts.open:
        prop.verdict = UNDETERMINED
        prop.note += f"; {counts.open:,} changes had perhaps not been written at the end"
    return counts.open


def check_leases(case: Case, skip: str) -> None:
    """The property "leases", of an audit with a history whose run has some: of the whole run, or not at all."""
    ended = F.col("deleted") & leases.is_lease(F.col("key"))
    if not skip and not case.proof.near and not case.tables["writes"].where(ended).limit(1).collect():
        skip = "no lease has ended"
    if skip or case.proof.near:
        prop = case.check("leases", None, 0, blind=True, skip=skip)
        prop.note = prop.note if skip else "they are looked at when nothing is wrong with reads"
        return
    known = case.transactions.where(case.whole())
    ends = case.keep(leases.ends(case.writes, known, case.operations))
    holdings = case.keep(leases.holdings(case.operations, known, case.writes, case.base is None))
    rows, open_ends = ends.count(), case.open_ends()
    prop = case.check(
        "leases", lambda: leases.check(holdings, ends, case.tables["writes"], open_ends), rows,
        blind=bool(case.unsure_shards),
    )  # fmt: skip
    if prop.verdict != VALID:
        return
    prop.note = f"{rows:,} leases ended, with all that was attached to them"
    early = leases.ended_early(case.writes, case.reads, case.operations, ends)
    if one := early.orderBy("lived").first():
        prop.verdict = UNDETERMINED
        prop.note += (
            f"; {one.f} {uuid.UUID(bytes=bytes(one.id))} saw one gone {one.lived:,} us after its last renewal was asked"
            f" for, which lives for {one.ttl:,} us: unless somebody without a history revoked it, that was too early"
        )


def _search_instant(
    case: Case, prop: Property, doubtful: DataFrame, edges: DataFrame, names: DataFrame, steps: DataFrame
) -> None:
    """Cycles of dependencies and real time through the doubtful of these reads, whatever else is wrong."""
    found = serialization.search(
        case.dependencies().unionByName(edges), case.names().unionByName(names), case.in_time.unionByName(steps),
        doubtful.select(promises.instant().alias("gts")),
    )  # fmt: skip
    for cycle in found.cycles:
        said = cycle.violation(f"{len(cycle.sentences)} operations must each precede the next, in a circle")
        said.name = "no-one-instant"
        prop.examples.append(said)
    if found.components > found.unexplained:
        prop.verdict, prop.violations = VIOLATED, prop.violations + found.components - found.unexplained
    elif found.components and prop.verdict == VALID:
        prop.verdict = UNDETERMINED


def _name_promises(prop: Property, counts: Mapping[str, int]) -> None:
    if prop.verdict == VALID:
        prop.note = ", ".join(f"{counts[kind]:,} {kind}" for kind in sorted(counts))


NOWHERE = -1
"""In place of the shard of what stands in no journal: nobody knows of which it was."""


def _beyond_a_batch(case: Case, lost: DataFrame) -> set[int]:
    """The shards that lack more than a crash can have kept from their disks, by what their replicas may not have
    written any more."""
    inputs, ends = case.inputs, case.open_ends()
    if not ends:
        return set()
    doubtful = {*inputs.unsure, *inputs.volatile}
    unclear = [NOWHERE, *(shard for shard, members in inputs.shards.items() if doubtful & {*members})]
    shard = F.explode(F.coalesce("lacks", F.array(F.lit(NOWHERE)))).alias("shard")
    rows = lost.where(F.col("excused") & F.col("complete_us").isNotNull())
    rows = rows.select(shard, "file", F.coalesce("invoke_us", "complete_us").alias("invoke_us"), "complete_us")
    rows = rows.where(~F.col("shard").isin(unclear)) if doubtful else rows
    return _in_turns(rows.orderBy("shard", "file", "complete_us").toLocalIterator(), {NOWHERE: len(ends)})


def _of_shards(shards: Iterable[int]) -> Column:
    """Of `clients.lost`: whether one of these lacks it."""
    lacks = F.coalesce("lacks", F.array(F.lit(NOWHERE)))
    return F.arrays_overlap(lacks, F.array([F.lit(shard) for shard in shards]).cast("array<int>"))


def _in_turns(rows: Iterable[Any], ends: Mapping[int, int]) -> set[int]:
    """The shards of which more than LAST_TURNS operations were asked for one after the other was answered. rows: shard,
    file, invoke_us, complete_us, in the order of shards, files (each has a clock of its own) and answers. ends: what
    stands for several shards -> how many."""
    beyond: set[int] = set()
    turns, last = Counter[tuple[int, str]](), -1
    for row in rows:
        one = row.shard, row.file
        if turns[one] and row.invoke_us <= last:
            continue
        last = row.complete_us
        turns[one] += 1
        if turns[one] > LAST_TURNS * ends.get(row.shard, 1):
            beyond.add(row.shard)
    return beyond


def _count_excused(case: Case, prop: Property, lost: DataFrame) -> int:
    """Answers for what may have been on its way to the disk of replicas that were down at the end."""
    excused = lost.where("excused")
    count = excused.count()
    if not count:
        return 0
    shown = excused.orderBy("file", "complete_us").limit(3).collect()
    names = [f"{row.f} {uuid.UUID(bytes=bytes(row.id))}" for row in shown]
    more = f" and {count - len(names)} more" if count > len(names) else ""
    what = f"{count} acknowledged operation{'s are' if count > 1 else ' is'} not in the journals"
    who = sorted({*case.down, *case.inputs.unsure, *case.inputs.volatile})
    whose = f"replica{'s' * (len(who) > 1)} {', '.join(map(str, who))}"
    case.notes.append(f"{what}: {', '.join(names)}{more}; what {whose} had not yet written at the end is not known")
    if prop.verdict == VALID:
        prop.verdict, prop.note = UNDETERMINED, what
    return count


def _thin(case: Case) -> Thin | None:
    held = []
    for shard in case.inputs.shards:
        members = case.inputs.staying(shard)
        ends = sorted((case.tops[r].delivered if r in case.tops else 0 for r in members), reverse=True)
        sure = not set(members) & set(case.inputs.unsure)
        held += [(shard, ends[len(ends) // 2])] if sure and ends and ends[0] > ends[len(ends) // 2] else []
    if not held:
        return None
    frame = case.spark.createDataFrame(held, "shard int, most bigint")
    rows = clients.thin(case.operations, case.log, frame).orderBy("shard", "position").collect()
    if not rows:
        return None
    first = rows[0]
    return Thin(len({row.id for row in rows}), first.shard, first.position, first.f, bytes(first.id))


def _note_thin(case: Case, prop: Property, thin: Thin | None) -> None:
    """Answers for what only a minority of a shard's replicas holds: their loss would be the operation's."""
    if thin is None:
        return
    what = f"{thin.count} acknowledged operations stand in the journals of a minority of a shard"
    case.notes.append(
        f"{what}: the first is {thin.f} {uuid.UUID(bytes=thin.id)} at position {thin.position} of shard {thin.shard}"
    )
    if prop.verdict == VALID:
        prop.verdict, prop.note = PENDING, what
