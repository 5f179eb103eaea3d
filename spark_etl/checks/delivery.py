"""The properties of atomic multicast, from what every replica delivered (`relations.bundles`)."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from kvstore.core.audit import APPLIED
from multicast.types import FINAL, OPTIMISTIC
from spark_etl.frames import relations
from spark_etl.frames.columns import id_text, text, union, version_text, violations


def _is_in(column: str, numbers: Sequence[int]) -> Column:
    return F.col(column).isin(list(numbers)) if numbers else F.lit(False)


def integrity(log: DataFrame) -> DataFrame:
    """No message is delivered twice at one replica (an expired repetition has no effect and does not count), and an
    expired delivery has no effect. Names: duplicate-delivery, expired-with-effect. log: `relations.replica_log`."""
    place = F.struct("position", "offset")
    twice = (
        relations.bundles(log)
        .where(F.col("live"))
        .groupBy("replica", "id")
        .agg(F.min(place).alias("first"), F.max(place).alias("last"))
        .where(F.col("first.offset") != F.col("last.offset"))
    )
    expired = log.where(F.col("expired") & (F.col("status") == APPLIED))
    return union(
        [
            violations(
                twice,
                "duplicate-delivery",
                text(
                    "replica {} delivered message {} more than once, first at position {} and last at position {}",
                    F.col("replica"), id_text(F.col("id")), F.col("first.position"), F.col("last.position"),
                ),
                [F.col("id")],
                replicas=[F.col("replica")],
            ),
            violations(
                expired,
                "expired-with-effect",
                text(
                    "replica {} applied transaction {} at position {}, although its message was delivered later than"
                    " the message's id allows",
                    F.col("replica"), id_text(F.col("transaction")), F.col("position"),
                ),
                [F.col("transaction")],
                replicas=[F.col("replica")],
            ),
        ]
    )  # fmt: skip


def unsubmitted(messages: DataFrame, submitted: DataFrame) -> DataFrame:
    """The delivered messages of which no journal says that somebody multicast them."""
    known = submitted.select("id").distinct()
    return messages.join(known, "id", "left_anti")


def sent_elsewhere(messages: DataFrame, submitted: DataFrame) -> DataFrame:
    """The delivered messages of which a journal says that they were multicast to other shards (`sent`) than those that
    they were delivered for."""
    sent = submitted.select("id", F.col("destinations").alias("sent"), F.col("replica").alias("sender")).distinct()
    return messages.join(sent, "id").where(F.col("sent") != F.col("destinations"))


def validity(
    log: DataFrame, missing: DataFrame, elsewhere: DataFrame, invoked: DataFrame | None, forgetful: Sequence[int]
) -> DataFrame:
    """What is delivered was multicast by somebody, to these shards, of which this is one. Names: never-submitted,
    wrong-destination, multicast-elsewhere.

    missing: from `unsubmitted`. elsewhere: from `sent_elsewhere`. A multicast leaves before its record must be durable,
    so it may be lost with a crash: messages whose origin is in `forgetful` are not accused; nor are those of format 1
    that a client says it invoked, maybe through several replicas.
    """
    accused = missing.where(~_is_in("origin", forgetful) & ~_is_in("origin_max", forgetful))
    if invoked is not None:
        accused = accused.join(invoked.select("id").distinct(), "id", "left_anti")
    astray = log.where(F.col("id").isNotNull() & ~F.array_contains("destinations", F.col("shard")))
    return union(
        [
            violations(
                accused,
                "never-submitted",
                text(
                    "message {} (version {}) was delivered, but no journal says that anybody multicast it; its origin"
                    " is said to be replica {}, which never crashed",
                    id_text(F.col("id")), version_text(F.col("gts")), F.col("origin"),
                ),
                [F.col("id")],
                replicas=[F.col("origin")],
            ),
            violations(
                astray,
                "wrong-destination",
                text(
                    "replica {} of shard {} delivered message {} at position {}, which is addressed to shards {} only",
                    F.col("replica"), F.col("shard"), id_text(F.col("id")), F.col("position"),
                    F.concat_ws(", ", F.col("destinations")),
                ),
                [F.col("id")],
                replicas=[F.col("replica")],
            ),
            violations(
                elsewhere,
                "multicast-elsewhere",
                text(
                    "message {} was multicast by replica {} to shards {}, and delivered as one for shards {}",
                    id_text(F.col("id")), F.col("sender"), F.concat_ws(", ", "sent"),
                    F.concat_ws(", ", "destinations"),
                ),
                [F.col("id")],
                replicas=[F.col("sender")],
            ),
        ]
    )  # fmt: skip


def agreement(
    log: DataFrame, disputed: DataFrame, tops: DataFrame, stops: DataFrame, installs: DataFrame, holed: Sequence[int],
    down: Sequence[int],
) -> DataFrame:  # fmt: skip
    """The replicas of a shard deliver the same message with the same timestamp at the same position, and none leaves
    one out. Names: position-disagreement, lost-delivery, stop-disagreement.

    A replica that is merely behind has not lost anything yet: only a later position of its own (`tops`: replica, shard,
    top) or its word at a clean stop (`stops`: replica, shard, delivered) proves a loss; nor does it have more than it
    said then, unless it started again (`down`). holed: replicas of whose journals more than the end is missing; what
    they lack is no evidence. disputed: `relations.disputed`. installs:
    replica, installed, installed_offset, of snapshots: what a replica skipped there up to that position is not lost.
    """
    few, most = F.col("few.value"), F.col("most.value")
    other = (few["id"] == most["id"]) & (few["payload"] != most["payload"])
    other = F.when(other, " with another payload").otherwise("")
    flag = F.when(F.col("few.value.expired"), " as expired").otherwise("")
    flag_most = F.when(F.col("most.value.expired"), " as expired").otherwise("")
    disagreements = violations(
        dissent(disputed, relations.entry()),
        "position-disagreement",
        text(
            "at position {} of shard {} {} delivered message {} (version {}, to shards {}{}), but {} message {}"
            " (version {}, to shards {}{}){}",
            F.col("position"), F.col("shard"),
            replicas_text("few.replicas"), id_text(F.col("few.value.id")), version_text(F.col("few.value.gts")),
            F.concat_ws(", ", "few.value.destinations"), flag,
            replicas_text("most.replicas"), id_text(F.col("most.value.id")), version_text(F.col("most.value.gts")),
            F.concat_ws(", ", "most.value.destinations"), flag_most, other,
        ),
        [F.col("few.value.id"), F.col("most.value.id")],
        replicas=[F.col("few.replicas")[0], F.col("most.replicas")[0]],
    )  # fmt: skip
    ends = stops.join(tops, ["replica", "shard"], "left").where(~_is_in("replica", holed))
    ends = ends.withColumn("top", F.coalesce("top", F.lit(0)))
    return union([disagreements, _lost(log, ends, installs, holed), _beyond(ends, installs, down)])


def dissent(disputed: DataFrame, value: Column) -> DataFrame:
    """The positions of a shard at which its replicas hold different values: shard, position, `few` and `most`, which
    are the values that the fewest and the most replicas hold (of as many: the lowest replica's counts as most), each
    with its `value`, `replicas` and, for names, the greatest `id` (of a message) and `transaction` (its first one)."""
    values = disputed.select("shard", "position", "replica", "id", "transaction", value.alias("value"))
    camps = (
        values.where(F.col("value").isNotNull())
        .groupBy("shard", "position", "value")
        .agg(
            F.array_sort(F.collect_set("replica")).alias("replicas"), F.max("id").alias("id"),
            F.max("transaction").alias("transaction"),
        )
        .withColumn("rank", F.struct(F.size("replicas").alias("n"), (-F.col("replicas")[0]).alias("first")))
    )
    camp = F.struct("value", "replicas", "id", "transaction")
    both = camps.groupBy("shard", "position").agg(
        F.min_by(camp, "rank").alias("few"), F.max_by(camp, "rank").alias("most"), F.count("*").alias("camps")
    )
    return both.where(F.col("camps") > 1)


def replicas_text(replicas: str) -> Column:
    """ "replica 2", or "replicas 0 and 1"."""
    names = F.transform(replicas, lambda r: r.cast("string"))
    many = F.concat_ws(" and ", F.concat_ws(", ", F.slice(names, 1, F.size(names) - 1)), F.element_at(names, -1))
    return F.when(F.size(names) == 1, F.concat(F.lit("replica "), names[0])).otherwise(
        F.concat(F.lit("replicas "), many)
    )


def _beyond(ends: DataFrame, installs: DataFrame, down: Sequence[int]) -> DataFrame:
    more = ends.where((F.col("top") > F.col("delivered")) & ~_is_in("replica", down))
    return violations(
        _without(more, installs, F.col("delivered") < F.col("installed")),
        "stop-disagreement",
        text(
            "replica {} of shard {} said at its last clean stop that it had delivered {} messages, but its journal"
            " holds them up to position {}",
            F.col("replica"), F.col("shard"), F.col("delivered"), F.col("top"),
        ),
        replicas=[F.col("replica")],
        positions=[F.col("top")],
    )  # fmt: skip


def _lost(log: DataFrame, ends: DataFrame, installs: DataFrame, holed: Sequence[int]) -> DataFrame:
    in_log = Window.partitionBy("replica").orderBy("position")
    gaps = (
        log.where(F.col("id").isNotNull() & ~_is_in("replica", holed))
        .groupBy("replica", "shard", "position")
        .agg(F.min("offset").alias("offset"))
        .withColumn("before", F.coalesce(F.lag("position").over(in_log), F.lit(0)))
        .withColumn("offset_before", F.coalesce(F.lag("offset").over(in_log), F.lit(-1)))
        .where(F.col("position") > F.col("before") + 1)
    )
    between = (F.col("installed_offset") > F.col("offset_before")) & (F.col("installed_offset") < F.col("offset"))
    skipped = between & (F.col("position") <= F.col("installed") + 1)
    gaps = _without(gaps, installs, skipped)
    ends = ends.where(F.col("top") < F.col("delivered"))
    ends = _without(ends, installs, F.col("delivered") <= F.col("installed"))
    return union(
        [
            violations(
                gaps,
                "lost-delivery",
                text(
                    "replica {} of shard {} has no delivery at position {} (up to {} are missing), although it has one"
                    " at position {}",
                    F.col("replica"), F.col("shard"), F.col("before") + 1, F.col("position") - 1, F.col("position"),
                ),
                replicas=[F.col("replica")],
                positions=[F.col("before"), F.col("position")],
            ),
            violations(
                ends,
                "lost-delivery",
                text(
                    "replica {} of shard {} said at its clean stop that it had delivered {} messages, but its journal"
                    " holds them only up to position {}",
                    F.col("replica"), F.col("shard"), F.col("delivered"), F.col("top"),
                ),
                replicas=[F.col("replica")],
                positions=[F.col("top")],
            ),
        ]
    )  # fmt: skip


def _without(rows: DataFrame, installs: DataFrame, excused: Column) -> DataFrame:
    """But those that a snapshot of the same replica excuses."""
    mine = installs.withColumnRenamed("replica", "installer")
    return rows.join(F.broadcast(mine), (F.col("replica") == F.col("installer")) & excused, "left_anti")


def prefix_order(log: DataFrame) -> DataFrame:
    """Each replica's deliveries stand in its journal in the order of their positions, one per position, and their
    timestamps rise. Names: position-repeated, delivered-out-of-order, timestamp-not-rising."""
    in_time = Window.partitionBy("replica").orderBy("offset")
    steps = (
        log.where(F.col("id").isNotNull())
        .select("replica", "shard", "position", "offset", "id", "gts", "expired")
        .withColumn("o", F.lag("offset").over(in_time))
        .withColumn("p", F.lag("position").over(in_time))
        .withColumn("g", F.lag("gts").over(in_time))
        .withColumn("i", F.lag("id").over(in_time))
    )
    who = [F.col("replica")]
    both = [F.col("i"), F.col("id")]
    same = (F.col("position") == F.col("p")) & (F.col("offset") != F.col("o"))
    back = F.col("position") < F.col("p")
    return union(
        [
            violations(
                steps.where(same | back),
                F.when(same, "position-repeated").otherwise("delivered-out-of-order"),
                text(
                    "replica {} of shard {} wrote its delivery at position {} (message {}) after the one at position {}"
                    " (message {})",
                    F.col("replica"), F.col("shard"), F.col("position"), id_text(F.col("id")), F.col("p"),
                    id_text(F.col("i")),
                ),
                both,
                replicas=who,
            ),
            violations(
                steps.where((F.col("gts") <= F.col("g")) & (F.col("position") > F.col("p"))),
                "timestamp-not-rising",
                text(
                    "replica {} of shard {} delivered message {} (version {}) at position {} and after it message {}"
                    " with the smaller or equal version {}",
                    F.col("replica"), F.col("shard"), id_text(F.col("i")), version_text(F.col("g")), F.col("p"),
                    id_text(F.col("id")), version_text(F.col("gts")),
                ),
                both,
                replicas=who,
            ),
        ]
    )  # fmt: skip


def one_order(messages: DataFrame, tops: DataFrame, shards: list[int], unsure_shards: Sequence[int]) -> DataFrame:
    """All shards give a message one timestamp, one payload and one set of destinations, and account for the same
    transactions in it, in the same order; no two messages share a timestamp, and no destination shard has gone past a
    message without delivering it. With rising timestamps (`prefix_order`) this certifies one acyclic order. Of a
    message with several timestamps only the smallest is compared with those of others. Names: timestamp-disagreement,
    destination-disagreement, payload-disagreement, bundle-disagreement, timestamp-shared, missed-delivery.

    tops: replica, shard, top_gts. unsure_shards: of these a part may be missing everywhere; what they lack is no
    evidence.
    """
    live = messages.where(F.col("live"))
    shared = (
        live.groupBy("gts")
        .agg(F.min("id").alias("id"), F.max("id").alias("other"))
        .where(F.col("id") != F.col("other"))
    )
    found = [
        violations(
            live.where(F.col("gts") != F.col("gts_max")),
            "timestamp-disagreement",
            text(
                "message {} has version {} at replica {} and version {} at replica {}",
                id_text(F.col("id")), version_text(F.col("gts")), F.col("replica"), version_text(F.col("gts_max")),
                F.col("replica_max"),
            ),
            [F.col("id")],
            replicas=[F.col("replica"), F.col("replica_max")],
        ),
        violations(
            live.where(F.col("destinations") != F.col("destinations_max")),
            "destination-disagreement",
            text(
                "message {} is addressed to shards {} at one replica and to shards {} at another",
                id_text(F.col("id")), F.concat_ws(", ", "destinations"), F.concat_ws(", ", "destinations_max"),
            ),
            [F.col("id")],
        ),
        violations(
            live.where((F.col("payload") != F.col("payload_max")) & ~F.col("single")),
            "payload-disagreement",
            text(
                "message {} (version {}) has another payload at replica {} than at replica {}",
                id_text(F.col("id")), version_text(F.col("gts")), F.col("holder"), F.col("holder_max"),
            ),
            [F.col("id")],
            replicas=[F.col("holder"), F.col("holder_max")],
        ),
        violations(
            live.where((F.col("carried") != F.col("carried_max")) | (F.col("bundle") != F.col("bundle_max"))),
            "bundle-disagreement",
            text(
                "message {} (version {}) has other transactions, in another order, or another step of a move, at one"
                " replica than at another",
                id_text(F.col("id")), version_text(F.col("gts")),
            ),
            [F.col("id")],
        ),
        violations(
            shared,
            "timestamp-shared",
            text(
                "messages {} and {} have the same version {}",
                id_text(F.col("id")), id_text(F.col("other")), version_text(F.col("gts")),
            ),
            [F.col("id"), F.col("other")],
        ),
    ]  # fmt: skip
    return union([*found, _missed(live, tops, shards, unsure_shards)])


def _missed(live: DataFrame, tops: DataFrame, shards: list[int], unsure_shards: Sequence[int]) -> DataFrame:
    """Messages that a destination never delivered although one of its replicas delivered something later."""
    passed = (
        tops.where(~_is_in("shard", unsure_shards))
        .groupBy("shard")
        .agg(F.max("top_gts").alias("top_gts"), F.max_by("replica", "top_gts").alias("passer"))
    )
    lacking = F.bitwise_not("delivered")
    missed = (
        live.where(F.col("expected").bitwiseAND(lacking) != 0)
        .withColumn("shard", F.explode("destinations"))
        .where(relations.shard_bit("shard", shards).bitwiseAND(lacking) != 0)
        .join(F.broadcast(passed), "shard")
        .where(F.col("gts") < F.col("top_gts"))
    )
    return violations(
        missed,
        "missed-delivery",
        text(
            "message {} (version {}) is addressed to shards {} and was delivered elsewhere, but no replica of shard {}"
            " delivered it, although replica {} went on to version {}",
            id_text(F.col("id")), version_text(F.col("gts")), F.concat_ws(", ", "destinations"), F.col("shard"),
            F.col("passer"), version_text(F.col("top_gts")),
        ),
        [F.col("id")],
        replicas=[F.col("passer")],
    )  # fmt: skip


def pending(messages: DataFrame) -> DataFrame:
    """Messages that not all their destination shards have delivered yet."""
    return messages.where(F.col("live") & (F.col("expected") != F.col("delivered").bitwiseAND(F.col("expected"))))


def optimistic(deliveries: DataFrame) -> DataFrame:
    """How good the guesses were, of protocols that deliver a message early, in an order that may turn out wrong: one
    row with the counts n, mistaken (delivered early after one that it finally precedes) and open (not yet delivered
    finally by that replica)."""
    first = (
        deliveries.where(F.col("stage") == OPTIMISTIC)
        .groupBy("replica", "id")
        .agg(F.min(F.struct("segment", "offset")).alias("at"))
    )
    final = deliveries.where((F.col("stage") == FINAL) & ~F.col("expired"))
    final = final.groupBy("replica", "id").agg(F.min("position").alias("position"))
    earlier = Window.partitionBy("replica").orderBy("at").rowsBetween(Window.unboundedPreceding, -1)
    guesses = first.join(final, ["replica", "id"], "left").withColumn("before", F.max("position").over(earlier))
    return guesses.agg(
        F.count("*").alias("n"),
        F.count(F.when(F.col("position") < F.col("before"), 1)).alias("mistaken"),
        F.count(F.when(F.col("position").isNull(), 1)).alias("open"),
    )
