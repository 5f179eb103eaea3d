"""Columns for people: versions, ids and keys as text, and the shape of a violation."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

SUM = "decimal(38,0)"
"""The type of a sum of 64-bit integers, which may be beyond these: Spark fails there."""


def absent() -> Column:
    """The version of an absent key."""
    return F.lit(bytes(16))


def version_text(gts: Column) -> Column:
    """A version as clients see it: `Timestamp.__str__`."""
    halves = (F.lower(F.conv(F.hex(F.substring(gts, at, 8)), 16, 16)) for at in (1, 9))
    return F.when(gts == absent(), "absent").otherwise(F.concat_ws("-", *halves))


def id_text(message_id: Column) -> Column:
    """A message id as a UUID string; null for null."""
    return F.lower(F.regexp_replace(F.hex(message_id), "(.{8})(.{4})(.{4})(.{4})(.{12})", "$1-$2-$3-$4-$5"))


def key_text(key: Column) -> Column:
    """A key for people: UTF-8, with a replacement for what is not."""
    return F.make_valid_utf8(key.cast("string"))


def text(template: str, *columns: Column) -> Column:
    """`template` with its {} replaced by the columns, "?" for a null."""
    pieces = template.split("{}")
    out: list[Column] = [F.lit(pieces[0])]
    for piece, column in zip(pieces[1:], columns, strict=True):
        out += [F.coalesce(column.cast("string"), F.lit("?")), F.lit(piece)]
    return F.concat(*out)


def violations(
    frame: DataFrame,
    name: str | Column,
    sentence: Column,
    transactions: Sequence[Column] = (),
    keys: Sequence[Column] = (),
    replicas: Sequence[Column] = (),
    positions: Sequence[Column] = (),
) -> DataFrame:
    """One violation per row of `frame`, as `schemas.VIOLATIONS`. transactions: message ids. keys: bytes.
    positions: at `replicas`, of deliveries that show it; needed where there are no transactions."""
    return frame.select(
        (F.lit(name) if isinstance(name, str) else name).alias("name"),
        sentence.alias("sentence"),
        _array([id_text(c) for c in transactions], "array<string>").alias("transactions"),
        _array([key_text(c) for c in keys], "array<string>").alias("keys"),
        _array(list(replicas), "array<int>").alias("replicas"),
        _array(list(positions), "array<bigint>").alias("positions"),
    )


def _array(columns: list[Column], kind: str) -> Column:
    full = F.array_distinct(F.filter(F.array(*columns), lambda c: c.isNotNull())) if columns else F.array()
    return full.cast(kind)


def union(frames: Sequence[DataFrame]) -> DataFrame:
    """All rows of frames with the same columns."""
    whole = frames[0]
    for frame in frames[1:]:
        whole = whole.unionByName(frame)
    return whole
