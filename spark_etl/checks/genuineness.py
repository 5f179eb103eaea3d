"""Genuineness, from the trace of a simulated run: only the sender and the destinations of a message take part in it.

Its participants are the processes that multicast it and the members of its destination groups. Destinations are those
that the journals know, where they know the message. Then

1. a frame about messages (it contains their ids) passes only between participants of all of them;
2. a frame between two groups that is about none passes only if some message so far has both ends as participants:
   what it says may still order something (a clock, a promise, a ballot).

Who takes part may ask another one of its group to pass the message on, where links are broken: that one takes part from
then on.

What the protocol calls housekeeping (heartbeats, garbage collection) is exempt from 2, and so are links inside a group.
"""

from __future__ import annotations

import uuid

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from spark_etl.report import Evidence, Violation

_RELAYS = ("Asked", "Relay")
"""Frames that ask somebody to pass messages on (multicast.parts.submissions)."""
NO_TRACE = "there is no trace of frames (RUN_DIR/trace/*.jsonl); a simulated run can write one"


def participants(frames: DataFrame, messages: DataFrame, submitted: DataFrame, members: DataFrame) -> DataFrame:
    """One row per message and participant: id, process, since (the line from which on it takes part; 0 for what the
    trace does not say), destinations.

    messages: `relations.messages`. submitted: the journals' table. members: shard, process.
    """
    told = frames.where(F.col("event") == "submit").select(
        F.get("ids", F.lit(0)).alias("id"), "process", F.col("line").alias("since"), "destinations"
    )
    journals = submitted.select("id", F.col("replica").alias("process"), F.lit(0).alias("since"), "destinations")
    said = told.unionByName(journals.join(told.select("id", "process"), ["id", "process"], "left_anti"))
    known = messages.select("id", F.col("destinations").alias("known"))
    said = said.join(known, "id", "left").withColumn("destinations", F.coalesce("known", "destinations"))
    shards = said.groupBy("id").agg(F.min("since").alias("since"), F.min("destinations").alias("destinations"))
    addressed = (
        shards.select("id", "since", "destinations", F.explode("destinations").alias("shard"))
        .join(F.broadcast(members), "shard")
        .drop("shard")
    )
    both = said.drop("known").unionByName(addressed)
    home = F.broadcast(members)
    asked = (
        copies(frames.where(F.col("kind").isin(*_RELAYS)))
        .join(home.select(F.col("process").alias("sender"), "shard"), "sender")
        .join(home.select(F.col("process").alias("receiver"), "shard"), ["receiver", "shard"])
        .select(F.explode("ids").alias("id"), F.col("sender").alias("process"), "receiver", "line")
        .join(both.select("id", "process", "since", "destinations"), ["id", "process"])
        .where(F.col("line") >= F.col("since"))
    )
    relays = asked.select("id", F.col("receiver").alias("process"), F.col("line").alias("since"), "destinations")
    both = both.unionByName(relays)
    return both.groupBy("id", "process").agg(F.min("since").alias("since"), F.min("destinations").alias("destinations"))


def copies(frames: DataFrame) -> DataFrame:
    """The protocol's own frames, one row per receiver: file, line, sender, receiver, kind, housekeeping, ids."""
    return frames.where((F.col("event") == "leave") & (F.col("channel") == "")).select(
        "file", "line", F.col("process").alias("sender"), F.explode("to").alias("receiver"), "kind", "housekeeping",
        "ids",
    )  # fmt: skip


def foreign(frames: DataFrame, taking_part: DataFrame, members: DataFrame) -> DataFrame:
    """The copies of frames that break a rule of the module: file, line, sender, receiver, kind, housekeeping, id (a
    message that it is about; null by rule 2), destinations (of it), stranger (who takes no part in it)."""
    sent = copies(frames)
    return _about_others(sent, taking_part).unionByName(_between_strangers(sent, taking_part, members))


def _about_others(sent: DataFrame, taking_part: DataFrame) -> DataFrame:
    who = taking_part.groupBy("id").agg(
        F.map_from_entries(F.collect_list(F.struct("process", "since"))).alias("who"),
        F.min("destinations").alias("destinations"),
    )
    about = sent.withColumn("id", F.explode("ids")).join(who, "id")
    sends, receives = (
        F.coalesce(F.try_element_at("who", F.col(end)) <= F.col("line"), F.lit(False)) for end in ("sender", "receiver")
    )
    wrong = about.where(~receives | ~sends)
    stranger = F.when(receives, F.col("sender")).otherwise(F.col("receiver"))
    one = F.min(F.struct("id", "destinations", stranger.alias("stranger"))).alias("one")
    keys = ("file", "line", "sender", "receiver", "kind", "housekeeping")
    return wrong.groupBy(*keys).agg(one).select(*keys, "one.*")


def _between_strangers(sent: DataFrame, taking_part: DataFrame, members: DataFrame) -> DataFrame:
    home = F.broadcast(members)
    silent = (
        sent.where((F.size("ids") == 0) & ~F.col("housekeeping"))
        .join(home.select(F.col("process").alias("sender"), F.col("shard").alias("from")), "sender")
        .join(home.select(F.col("process").alias("receiver"), F.col("shard").alias("into")), "receiver")
        .where(F.col("from") != F.col("into"))
    )
    a = taking_part.select("id", F.col("process").alias("sender"), F.col("since").alias("a"))
    b = taking_part.select("id", F.col("process").alias("receiver"), F.col("since").alias("b"))
    links = silent.select("sender", "receiver").distinct()
    shared = a.join(b, "id").groupBy("sender", "receiver").agg(F.min(F.greatest("a", "b")).alias("since"))
    met = links.join(shared, ["sender", "receiver"], "left")
    none = F.lit(None)
    return (
        silent.join(F.broadcast(met), ["sender", "receiver"])
        .where(F.col("since").isNull() | (F.col("line") < F.col("since")))
        .select(
            "file", "line", "sender", "receiver", "kind", "housekeeping", none.cast("binary").alias("id"),
            none.cast("array<int>").alias("destinations"), none.cast("int").alias("stranger"),
        )
    )  # fmt: skip


def summary(frames: DataFrame, strangers: DataFrame) -> DataFrame:
    """One row: genuine (what the protocol claims), whole (every trace has its end), damaged (lines that could not be
    read) and damage (the first of them); sent (copies of frames that order something), of so many kinds; strange
    (those of them that break a rule), and accused (all that do)."""
    claims = frames.agg(
        F.min("genuine").alias("genuine"),
        (F.count(F.when(F.col("event") == "end", 1)) == F.countDistinct("file")).alias("whole"),
        F.count("damage").alias("damaged"),
        F.min(F.when(F.col("damage").isNotNull(), F.struct("file", "line", "damage"))).alias("damage"),
    )
    ordering = ~F.col("housekeeping")
    sent = copies(frames).where(ordering).agg(F.count("*").alias("sent"), F.countDistinct("kind").alias("kinds"))
    wrong = strangers.agg(F.count(F.when(ordering, 1)).alias("strange"), F.count("*").alias("accused"))
    return claims.crossJoin(sent).crossJoin(wrong)


def accusation(row: Row) -> Violation:
    """A row of `foreign`, of a protocol that claims to be genuine. Name: foreign-frame."""
    went = f"a frame {row.kind} went from process {row.sender} to process {row.receiver}"
    if row.id is None:
        why = f"{went}, which are of different shards, although no message so far concerned both"
        transactions = []
    else:
        transactions = [str(uuid.UUID(bytes=bytes(row.id)))]
        shards = ", ".join(map(str, row.destinations))
        why = (
            f"{went} about message {transactions[0]}, which is addressed to shards {shards}: process {row.stranger}"
            " neither multicast it nor is one of its destinations"
        )
    left = Evidence(row.file, f"{row.kind} leaves process {row.sender} for process {row.receiver}", line=row.line)
    return Violation("foreign-frame", why, transactions, replicas=[row.sender, row.receiver], evidence=[left])
