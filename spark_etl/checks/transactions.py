"""What the replicas say their transactions did: complete, alike everywhere, and as the order says."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark_etl.checks.delivery import dissent, replicas_text
from spark_etl.frames.columns import absent, id_text, key_text, text, union, version_text, violations
from spark_etl.frames.relations import TAKEN


def results(
    log: DataFrame,
    disputed: DataFrame,
    transactions: DataFrame,
    tops: DataFrame,
    stops: DataFrame,
    installs: DataFrame,
    snapshots: DataFrame,
    unsure: Sequence[int],
) -> DataFrame:
    """Every completed delivery has exactly one account, of that delivery; accounts and state digests at one position of
    a shard are equal; all shards of a transaction took it as new, or none; applied it, or none; and ran one branch.
    Names: outcome-missing, outcome-without-delivery, outcome-of-another-delivery, outcome-disagreement,
    state-digest-disagreement, branch-disagreement, fate-disagreement.

    log: `relations.bundles`. transactions: `relations.transactions`. disputed: `relations.disputed`. tops: replica,
    shard, top_completed. stops: replica, shard, completed. installs: replica, installed (up to there a snapshot stands
    for outcomes). snapshots: shard, replica, position, digest of the state that was installed. unsure: replicas of
    whose journals a part is missing.
    """
    return union(
        [
            _missing(log, tops, stops, installs, unsure),
            _other_delivery(log),
            _disagreement(disputed, "content", "outcome-disagreement", "outcome"),
            _disagreement(disputed, "state_digest", "state-digest-disagreement", "state"),
            of_another_state(log, snapshots),
            _branches(transactions),
        ]
    )


def of_another_state(log: DataFrame, snapshots: DataFrame) -> DataFrame:
    """Snapshots that are not what some replica held at their position, if it kept a digest there."""
    told = log.where(F.col("state_digest").isNotNull()).groupBy("shard", "position", "state_digest").agg(
        F.min("replica").alias("other")
    )
    found = snapshots.join(told, ["shard", "position"]).where(F.col("digest") != F.col("state_digest"))
    return violations(
        found,
        "state-digest-disagreement",
        text(
            "the snapshot that replica {} installed is not the state of replica {} at position {} of shard {}",
            F.col("replica"), F.col("other"), F.col("position"), F.col("shard"),
        ),
        replicas=[F.col("replica"), F.col("other")],
        positions=[F.col("position")],
    )  # fmt: skip


def of_another_beginning(beginnings: DataFrame) -> DataFrame:
    """Rows of a backup with which the replicas of a shard began otherwise. Name: state-digest-disagreement.
    beginnings: `relations.beginnings`."""
    return violations(
        dissent(beginnings, F.col("value")),
        "state-digest-disagreement",
        text(
            "of the state with which shard {} began, {} has key {} otherwise than {}, or has not",
            F.col("shard"), replicas_text("few.replicas"), key_text(F.col("position")), replicas_text("most.replicas"),
        ),
        [F.col("most.id")],
        [F.col("position")],
        [F.col("few.replicas")[0], F.col("most.replicas")[0]],
    )  # fmt: skip


def _missing(
    log: DataFrame, tops: DataFrame, stops: DataFrame, installs: DataFrame, unsure: Sequence[int]
) -> DataFrame:
    sure = log.where(~F.col("replica").isin(list(unsure))) if unsure else log
    ended = tops.join(stops.select("replica", "completed"), "replica", "left").select(
        "replica", F.greatest("top_completed", F.coalesce("completed", F.lit(0))).alias("reached")
    )
    missing = (
        sure.where(F.col("id").isNotNull() & F.col("status").isNull())
        .join(F.broadcast(ended), "replica")
        .where(F.col("position") <= F.col("reached"))
    )
    covered = installs.groupBy("replica").agg(F.max("installed").alias("installed"))
    missing = missing.join(F.broadcast(covered), "replica", "left")
    missing = missing.where(F.col("installed").isNull() | (F.col("position") > F.col("installed")))
    return union(
        [
            violations(
                missing,
                "outcome-missing",
                text(
                    "replica {} has no outcome of message {} at position {}, although it completed everything up to"
                    " position {}",
                    F.col("replica"), id_text(F.col("id")), F.col("position"), F.col("reached"),
                ),
                [F.col("id")],
                replicas=[F.col("replica")],
            ),
            violations(
                sure.where(F.col("id").isNull()),
                "outcome-without-delivery",
                text(
                    "replica {} has an outcome of transaction {} at position {}, but no delivery there",
                    F.col("replica"), id_text(F.col("transaction")), F.col("position"),
                ),
                [F.col("transaction")],
                replicas=[F.col("replica")],
            ),
        ]
    )  # fmt: skip


def _other_delivery(log: DataFrame) -> DataFrame:
    other = log.where(of_another_delivery())
    return violations(
        other,
        "outcome-of-another-delivery",
        text(
            "at position {} replica {} delivered message {} (version {}), but its outcome is that of a message with"
            " version {} and transaction {}",
            F.col("position"), F.col("replica"), id_text(F.col("id")), version_text(F.col("gts")),
            version_text(F.col("outcome_gts")), id_text(F.col("transaction")),
        ),
        [F.col("id"), F.col("transaction")],
        replicas=[F.col("replica")],
    )  # fmt: skip


def of_another_delivery() -> Column:
    """Of `relations.replica_log`: whether the account is not that of what was delivered at its position."""
    message = F.coalesce(F.col("outcome_message") != F.col("id"), F.lit(False))
    return message | (F.col("outcome_gts") != F.col("gts"))


def _disagreement(disputed: DataFrame, column: str, name: str, what: str) -> DataFrame:
    return violations(
        dissent(disputed, F.col(column)),
        name,
        text(
            f"at position {{}} of shard {{}} (message {{}}) the {what} of {{}} is not that of {{}}",
            F.col("position"), F.col("shard"), id_text(F.col("most.id")), replicas_text("few.replicas"),
            replicas_text("most.replicas"),
        ),
        [F.col("few.id"), F.col("most.id"), F.col("few.transaction"), F.col("most.transaction")],
        replicas=[F.col("few.replicas")[0], F.col("most.replicas")[0]],
    )  # fmt: skip


def _branches(transactions: DataFrame) -> DataFrame:
    status, branch = F.col("status") != F.col("status_max"), F.col("succeeded") != F.col("succeeded_max")
    branch |= F.col("truths") != F.col("truths_max")
    called = F.array_distinct(F.transform("fates", lambda one: one["version"]))
    apart = violations(
        transactions.where(F.size("fates") > F.size(called)),
        "fate-disagreement",
        text(
            "transaction {} (version {}) was new to one replica, and to another a repetition, too late or of a used"
            " id, in the same message",
            id_text(F.col("id")), version_text(F.col("gts")),
        ),
        [F.col("id")],
    )  # fmt: skip
    return apart.unionByName(_effects(transactions, status, branch))


def _effects(transactions: DataFrame, status: Column, branch: Column) -> DataFrame:
    return violations(
        transactions.where(status | branch),
        "branch-disagreement",
        F.when(
            status,
            text(
                "transaction {} (version {}) had its effect at one replica and not at another",
                id_text(F.col("id")), version_text(F.col("gts")),
            ),
        ).otherwise(
            text(
                "transaction {} (version {}), or what is nested in it, ran its success branch at one replica and its"
                " failure branch at another",
                id_text(F.col("id")), version_text(F.col("gts")),
            )
        ),
        [F.col("id")],
    )  # fmt: skip


def reads(ordered_reads: DataFrame, writes: DataFrame, unsure_shards: Sequence[int]) -> DataFrame:
    """Every read returned the last version of its key before the reader. Names: unwritten-version, stale-read,
    future-read. Together with `delivery.one_order` this certifies serializability in the order of versions.

    ordered_reads: `edges.reads_in_order`. unsure_shards: writes may be missing there; nothing is concluded.
    """
    wrong = ordered_reads.where(F.col("version") != F.col("expected"))
    if unsure_shards:
        wrong = wrong.where(~F.col("shard").isin(list(unsure_shards)))
    written = writes.where(~F.col("deleted")).select("key", F.col("gts").alias("version"), F.lit(True).alias("written"))
    wrong = wrong.join(written.distinct(), ["key", "version"], "left")
    unwritten = F.col("written").isNull() & (F.col("version") != absent())
    future = F.col("version") >= F.col("gts")
    name = F.when(unwritten, "unwritten-version").when(future, "future-read").otherwise("stale-read")
    why = (
        F.when(unwritten, "which nobody wrote")
        .when(future, "which is not before its own")
        .otherwise("which was not the last one before it")
    )
    return violations(
        wrong,
        name,
        text(
            "transaction {} (version {}) read key {} at version {}, {}; the order says {} ({})",
            id_text(F.col("id")), version_text(F.col("gts")), key_text(F.col("key")), version_text(F.col("version")),
            why, version_text(F.col("expected")),
            F.when(F.col("replica").isNull(), "as its client was told").otherwise(
                text("reported by replica {}", F.col("replica"))
            ),
        ),
        [F.col("id")],
        [F.col("key")],
        [F.col("replica")],
    )  # fmt: skip


def two_values(journal_writes: DataFrame) -> DataFrame:
    """A transaction leaves one value at a key, whichever shards say that they hold that key. Name: two-values.

    journal_writes: the writes as replicas report them. In what replicas of one shard differ is `results`' to find.
    """
    entry, other = F.struct("deleted", "value"), ~F.col("least").eqNullSafe(F.col("most"))
    told = journal_writes.groupBy("key", "gts", "id", "shard", "replica", "offset").agg(
        F.min(entry).alias("least"), F.max(entry).alias("most")
    )
    ends = told.groupBy("key", "gts", "id").agg(
        F.min(F.when(other, F.col("replica"))).alias("both"),
        F.min(F.struct("least", "shard", "replica")).alias("low"),
        F.max(F.struct("most", "shard", "replica")).alias("high"),
    )
    apart = (F.col("low.shard") != F.col("high.shard")) & ~F.col("low.least").eqNullSafe(F.col("high.most"))
    replicas = F.array_distinct(F.array(*(F.coalesce("both", F.col(f"{end}.replica")) for end in ("low", "high"))))
    found = ends.where(F.col("both").isNotNull() | apart).withColumn("replicas", F.array_sort(replicas))
    return violations(
        found,
        "two-values",
        text(
            "transaction {} (version {}) left two values at key {} (reported by {})",
            id_text(F.col("id")), version_text(F.col("gts")), key_text(F.col("key")), replicas_text("replicas"),
        ),
        [F.col("id")],
        [F.col("key")],
        [F.col("replicas")[0], F.get("replicas", F.lit(1))],
    )  # fmt: skip


def exactly_once(
    log: DataFrame,
    transactions: DataFrame,
    writes: DataFrame,
    unsure_shards: Sequence[int],
    slots_moved: bool = False,
    complete: bool = True,
) -> DataFrame:
    """An id has its effect once: its first delivery is taken as new, and none after it. A transaction is too late from
    some age on: none was called so that was not older than all that were not. Names: effect-twice, taken-twice,
    repeated-without-first, mismatch-without-first, expired-early. (Its absence after an acknowledgement is
    `clients.answers`' to find, different outcomes at different shards `results`'.)

    log: `relations.replica_log`. transactions: `relations.transactions`. writes: `relations.key_writes`. unsure_shards:
    a first delivery may be missing. slots_moved: ids went with them, so a shard may know one that was taken elsewhere.
    complete: nothing is missing at the beginning, where first deliveries may have been.
    """
    without_first = _without_first(transactions, unsure_shards, slots_moved, complete)
    return union([_twice(log), _twice_at_a_key(log, transactions, writes), without_first, too_early(transactions)])


def _twice(log: DataFrame) -> DataFrame:
    place = F.struct("position", "index", "outcome_offset")
    twice = (
        log.where(F.col("status").isin(*TAKEN))
        .groupBy("replica", F.col("transaction").alias("id"))
        .agg(
            F.min(place).alias("first"), F.max(place).alias("last"),
            F.min(F.when(F.col("effect"), place)).alias("begun"), F.max(F.when(F.col("effect"), place)).alias("again"),
        )
    )  # fmt: skip
    effects = F.coalesce(F.col("begun") != F.col("again"), F.lit(False))
    apart = (F.col("first.position") != F.col("last.position")) | (F.col("first.index") != F.col("last.index"))
    return violations(
        twice.where(effects | apart),
        F.when(effects, "effect-twice").otherwise("taken-twice"),
        text(
            "replica {} {} transaction {} more than once, first at position {} and last at position {}",
            F.col("replica"), F.when(effects, "applied").otherwise("took as new"), id_text(F.col("id")),
            F.col("first.position"), F.col("last.position"),
        ),
        [F.col("id")],
        replicas=[F.col("replica")],
    )  # fmt: skip


def _twice_at_a_key(log: DataFrame, transactions: DataFrame, writes: DataFrame) -> DataFrame:
    """The same of two shards, one of which had the key first and then the other. Of others nobody can tell: an id that
    is used for something else is known to who has heard of it."""
    places = log.where(F.col("status").isin(*TAKEN)).groupBy("shard", F.col("transaction").alias("id"))
    here = places.agg(F.countDistinct("position").alias("n")).where(F.col("n") > 1).select("id")
    again = transactions.where(F.col("live") & (F.col("message") != F.col("other"))).select("id")
    twice = writes.join(again.join(here, "id", "left_anti"), "id", "left_semi").groupBy("id", "key").agg(
        F.min("gts").alias("gts"), F.max("gts").alias("later")
    )
    return violations(
        twice.where(F.col("gts") != F.col("later")),
        "effect-twice",
        text(
            "transaction {} wrote key {} at version {}, and again, in another shard, at version {}",
            id_text(F.col("id")), key_text(F.col("key")), version_text(F.col("gts")), version_text(F.col("later")),
        ),
        [F.col("id")],
        [F.col("key")],
    )  # fmt: skip


def _without_first(
    transactions: DataFrame, unsure_shards: Sequence[int], slots_moved: bool, complete: bool
) -> DataFrame:
    sure = transactions
    if unsure_shards:
        unsure = F.array([F.lit(n) for n in unsure_shards]).cast("array<int>")
        sure = sure.where(~F.arrays_overlap("destinations", unsure))
    never = ~F.col("live") & F.lit(complete)
    nowhere = never & F.col("repeated").isNotNull() if slots_moved else (F.col("again") != 0) & F.lit(complete)
    repeated = nowhere | F.coalesce(F.col("repeated") < F.col("gts"), F.lit(False))
    mismatch = F.col("mismatch").isNotNull() & (never | (F.col("mismatch") < F.col("gts")))
    said = F.when(repeated, "a repetition").otherwise("another transaction's id, used again")
    return violations(
        sure.where(repeated | mismatch),
        F.when(repeated, "repeated-without-first").otherwise("mismatch-without-first"),
        text(
            "transaction {} was called {} at version {}, but nothing with its id was taken as new {}",
            id_text(F.col("id")), said, version_text(F.when(repeated, F.col("repeated")).otherwise(F.col("mismatch"))),
            F.when(never, "anywhere").otherwise("there before"),
        ),
        [F.col("id")],
    )  # fmt: skip


def too_early(transactions: DataFrame) -> DataFrame:
    """Transactions that were called too late at an age at which another one was not: there is one window for all. Ids
    that do not say when they were made are left out, and versions in the place of one. Name: expired-early."""
    dated = transactions.where(F.hex("id").rlike("^.{12}7.{3}[89AB]"))
    created = F.conv(F.hex(F.substring("id", 1, 6)), 16, 10).cast("double") * 1000

    def age(version: str) -> Column:
        return F.conv(F.hex(F.substring(version, 1, 8)), 16, 10).cast("double") - created

    oldest = dated.where(F.col("kept").isNotNull()).agg(
        F.max(F.struct(age("kept").alias("age"), "id", "kept")).alias("oldest")
    )
    early = dated.where(F.col("lapsed").isNotNull()).withColumn("age", age("lapsed"))
    early = early.crossJoin(F.broadcast(oldest)).where(F.col("age") <= F.col("oldest.age"))
    return violations(
        early,
        "expired-early",
        text(
            "transaction {} was called too late at version {}, {} s after its id was made, but transaction {} was not"
            " at version {}, {} s after its own",
            id_text(F.col("id")), version_text(F.col("lapsed")), F.col("age") / 1e6, id_text(F.col("oldest.id")),
            version_text(F.col("oldest.kept")), F.col("oldest.age") / 1e6,
        ),
        [F.col("id"), F.col("oldest.id")],
    )  # fmt: skip
