"""The bank's invariant: transfers move money, they neither make nor lose any."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from spark_etl.frames.columns import SUM, id_text, text, union, version_text, violations


def conservation(operations: DataFrame, transactions: DataFrame, writes: DataFrame, whole: Column) -> DataFrame:
    """Every complete read of the accounts sees one total, and no transfer changes it. Names: total-changed,
    money-made.

    A bank's accounts are the keys that the "read_all" operations of a history report; histories with the same accounts
    are of one bank. The total of a bank that shares accounts with others, and does not have all of theirs, may change:
    it is not judged. A transfer's effect on the total is the sum,
    over the accounts that it wrote, of the new balance minus the one before it in the order of versions; if one of
    these is not known, it is not judged.
    whole: `relations.applied_everywhere`; of other transfers only a part is known.
    """
    done = operations.where(F.col("type") == "ok").join(transactions.select("id", "gts"), "id")
    reads = done.where((F.col("f") == "read_all") & (F.size("value") > 0)).withColumn(
        "total", F.aggregate(F.map_values("value"), F.lit(0).cast(SUM), lambda a, b: (a + b).cast(SUM))
    )
    accounts = reads.select(F.explode(F.map_keys("value")).alias("name")).distinct()
    accounts = accounts.select(F.col("name").cast("binary").alias("key"))
    reads = reads.join(F.broadcast(_banks(reads)), "file")
    first = reads.groupBy("bank").agg(F.min_by("total", "gts").alias("expected"), F.min_by("id", "gts").alias("first"))
    changed = reads.join(F.broadcast(first), "bank").where(F.col("total") != F.col("expected"))
    complete = operations.join(transactions.where(whole).select("id"), "id")
    return union([_changed(changed), _made(complete, accounts, writes)])


def _banks(reads: DataFrame) -> DataFrame:
    """file, bank (its accounts, sorted), for histories whose bank is closed."""
    names = F.flatten(F.collect_set(F.map_keys("value")))
    banks = reads.groupBy("file").agg(F.array_sort(F.array_distinct(names)).alias("bank"))
    others = banks.select(F.col("bank").alias("other")).distinct()
    open_ = F.arrays_overlap("bank", "other") & (F.size(F.array_except("other", "bank")) > 0)
    return banks.join(F.broadcast(others), open_, "left_anti")


def _changed(changed: DataFrame) -> DataFrame:
    return violations(
        changed,
        "total-changed",
        text(
            "read_all {} (version {}) saw {} in all accounts together, the first one, {}, saw {}",
            id_text(F.col("id")), version_text(F.col("gts")), F.col("total"), id_text(F.col("first")),
            F.col("expected"),
        ),
        [F.col("id"), F.col("first")],
    )  # fmt: skip


def _made(operations: DataFrame, accounts: DataFrame, writes: DataFrame) -> DataFrame:
    by_version = Window.partitionBy("key").orderBy("gts")
    told = F.col("deleted") | F.col("value").isNotNull()
    balance = F.when(F.col("digested"), None).otherwise(F.col("value").cast("string").try_cast("bigint"))
    moved = (
        writes.join(F.broadcast(accounts), "key", "left_semi")
        .withColumn("balance", F.coalesce(balance, F.lit(0)).cast(SUM))
        .withColumn("change", F.col("balance") - F.coalesce(F.lag("balance").over(by_version), F.lit(0)))
        .withColumn("compared", F.coalesce(F.lag(told).over(by_version), F.lit(True)))
        .groupBy("id", "gts")
        .agg(F.sum("change").alias("change"), F.collect_set("key").alias("keys"), F.min("compared").alias("compared"))
        .where("compared and change != 0")
    )
    transfers = operations.where(F.col("f") == "transfer").select("id").distinct()
    made = moved.join(transfers, "id", "left_semi")
    return violations(
        made,
        "money-made",
        text(
            "transfer {} (version {}) changed the sum of all accounts by {}",
            id_text(F.col("id")), version_text(F.col("gts")), F.col("change"),
        ),
        [F.col("id")],
        [F.element_at("keys", 1), F.try_element_at("keys", F.lit(2))],
    )  # fmt: skip
