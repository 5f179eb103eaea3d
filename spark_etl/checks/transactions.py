"""What the replicas say their transactions did: complete, alike everywhere, and as the order says."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_etl.checks.delivery import dissent, replicas_text
from spark_etl.columns import absent, id_text, key_text, text, union, version_text, violations


def results(
    log: DataFrame,
    disputed: DataFrame,
    messages: DataFrame,
    tops: DataFrame,
    stops: DataFrame,
    unsure: Sequence[int],
) -> DataFrame:
    """Every completed delivery has exactly one account, of that delivery; accounts and state digests at one position of
    a shard are equal; all shards of a transaction applied it, or none, and ran the same branch.
    Names: outcome-missing, outcome-without-delivery, outcome-of-another-delivery, outcome-disagreement,
    state-digest-disagreement, branch-disagreement.

    disputed: `frames.disputed`. tops: replica, shard, top_completed. stops: replica, shard, completed. unsure: replicas
    of whose journals a part is missing.
    """
    return union(
        [
            _missing(log, tops, stops, unsure),
            _other_delivery(log),
            _disagreement(disputed, "content", "outcome-disagreement", "outcome"),
            _disagreement(disputed, "state_digest", "state-digest-disagreement", "state"),
            _branches(messages),
        ]
    )


def _missing(log: DataFrame, tops: DataFrame, stops: DataFrame, unsure: Sequence[int]) -> DataFrame:
    sure = log.where(~F.col("replica").isin(list(unsure))) if unsure else log
    ended = tops.join(stops.select("replica", "completed"), "replica", "left").select(
        "replica", F.greatest("top_completed", F.coalesce("completed", F.lit(0))).alias("reached")
    )
    missing = (
        sure.where(F.col("id").isNotNull() & F.col("status").isNull())
        .join(F.broadcast(ended), "replica")
        .where(F.col("position") <= F.col("reached"))
    )
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
                    "replica {} has an outcome of message {} at position {}, but no delivery there",
                    F.col("replica"), id_text(F.col("outcome_id")), F.col("position"),
                ),
                [F.col("outcome_id")],
                replicas=[F.col("replica")],
            ),
        ]
    )  # fmt: skip


def _other_delivery(log: DataFrame) -> DataFrame:
    other = log.where((F.col("outcome_id") != F.col("id")) | (F.col("outcome_gts") != F.col("gts")))
    return violations(
        other,
        "outcome-of-another-delivery",
        text(
            "at position {} replica {} delivered message {} (version {}), but its outcome is that of message {}"
            " (version {})",
            F.col("position"), F.col("replica"), id_text(F.col("id")), version_text(F.col("gts")),
            id_text(F.col("outcome_id")), version_text(F.col("outcome_gts")),
        ),
        [F.col("id"), F.col("outcome_id")],
        replicas=[F.col("replica")],
    )  # fmt: skip


def _disagreement(disputed: DataFrame, column: str, name: str, what: str) -> DataFrame:
    named = disputed.withColumn("id", F.col("outcome_id"))
    return violations(
        dissent(named, F.col(column)),
        name,
        text(
            f"at position {{}} of shard {{}} (message {{}}) the {what} of {{}} is not that of {{}}",
            F.col("position"), F.col("shard"), id_text(F.col("most.id")), replicas_text("few.replicas"),
            replicas_text("most.replicas"),
        ),
        [F.col("few.id"), F.col("most.id")],
        replicas=[F.col("few.replicas")[0], F.col("most.replicas")[0]],
    )  # fmt: skip


def _branches(messages: DataFrame) -> DataFrame:
    status, branch = F.col("status") != F.col("status_max"), F.col("succeeded") != F.col("succeeded_max")
    return violations(
        messages.where(status | branch),
        "branch-disagreement",
        F.when(
            status,
            text(
                "transaction {} (version {}) had its effect at one replica and not at another",
                id_text(F.col("id")), version_text(F.col("gts")),
            ),
        ).otherwise(
            text(
                "transaction {} (version {}) ran its success branch at one replica and its failure branch at another",
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
            "transaction {} (version {}) read key {} at version {}, {}; the order says {} (reported by replica {})",
            id_text(F.col("id")), version_text(F.col("gts")), key_text(F.col("key")), version_text(F.col("version")),
            why, version_text(F.col("expected")), F.col("replica"),
        ),
        [F.col("id")],
        [F.col("key")],
        [F.col("replica")],
    )  # fmt: skip


def exactly_once(log: DataFrame) -> DataFrame:
    """No id has its effect twice at a replica. Name: effect-twice. (Its absence after an acknowledgement is
    `clients.answers`' to find, different outcomes at different shards `results`'.)"""
    place = F.struct("position", "outcome_offset")
    twice = (
        log.where(F.col("effect"))
        .groupBy("replica", F.col("outcome_id").alias("id"))
        .agg(F.min(place).alias("first"), F.max(place).alias("last"))
        .where(F.col("first.outcome_offset") != F.col("last.outcome_offset"))
    )
    return violations(
        twice,
        "effect-twice",
        text(
            "replica {} applied transaction {} more than once, first at position {} and last at position {}",
            F.col("replica"), id_text(F.col("id")), F.col("first.position"), F.col("last.position"),
        ),
        [F.col("id")],
        replicas=[F.col("replica")],
    )  # fmt: skip
