"""The tables of an audit, as code. Version of this schema: `SCHEMA_VERSION`.

Extraction (`tables`) writes one Parquet dataset per run, `journal/table=NAME/`, and `history/`; each table has the
columns listed for it here, without `table`; `watched/` has the lines of histories that are of watches, `trace/` the
frames of a simulated run.
A message is a bundle of transactions. In `deliveries` and `submitted` `id` is that of the message and `gts` its
timestamp; in `outcomes`, `reads`, `writes` and histories these are the transaction's id and version (format 1: the same
ones). What has no id of a client's is known by its version.
Ids are 16 bytes, and so are digests of accounts. A version (`gts`) is `Timestamp.encode`: 16 bytes that sort as the
timestamps do; sixteen zero bytes mean "absent". Times (`at`, `*_us`) are microseconds. `offset` is the journal offset
of a record, `segment` its file.
"""

from __future__ import annotations

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

SCHEMA_VERSION = 18
VERSION_KEY = "spark_etl.schema_version"
"""Under this name every Parquet file has the version among its metadata; so has `extract.json` beside the tables."""

VALUES_OF_16_BYTES = ("gts", "id", "timestamp", "content", "bundle", "version", "seen", "reads")
"""Columns whose values, or those of the entries of whose maps, have 16 bytes each. (`reads`: of histories.)"""

_COLUMN_TYPES: dict[str, DataType] = {
    "table": StringType(),
    "replica": IntegerType(),
    "shard": IntegerType(),
    "segment": IntegerType(),
    "offset": LongType(),
    "position": LongType(),
    "gts": BinaryType(),
    "id": BinaryType(),
    "stage": IntegerType(),
    "expired": BooleanType(),
    "destinations": ArrayType(IntegerType()),
    "origin": IntegerType(),
    "payload_bytes": IntegerType(),
    "payload_crc": LongType(),
    "single": BooleanType(),
    "at": LongType(),
    "installed_from": IntegerType(),
    "index": IntegerType(),
    "message": BinaryType(),
    "timestamp": BinaryType(),
    "status": IntegerType(),
    "succeeded": BooleanType(),
    "truths": BinaryType(),
    "effect": BooleanType(),
    "content": BinaryType(),
    "bundle": BinaryType(),
    "state_digest": BinaryType(),
    "reason": StringType(),
    "key": BinaryType(),
    "version": BinaryType(),
    "value": BinaryType(),
    "deleted": BooleanType(),
    "digested": BooleanType(),
    "source": IntegerType(),
    "target": IntegerType(),
    "first": BooleanType(),
    "last": BooleanType(),
    "asked": StringType(),
    "slots": StringType(),
    "event": StringType(),
    "incarnation": StringType(),
    "protocol": StringType(),
    "durability": StringType(),
    "members": StringType(),
    "delivered": LongType(),
    "completed": LongType(),
    "file": StringType(),
    "byte": LongType(),
    "end": LongType(),
    "records": LongType(),
    "cluster": StringType(),
}

_PLACE = ("replica", "shard", "segment", "offset")

TABLES: dict[str, tuple[str, ...]] = {
    # A delivery. position 0: optimistic. single: the message is a transaction of format 1, whose id and version are its
    # own. payload_crc: its CRC-32. installed_from: the peer whose journal it came from, or null.
    "deliveries": (
        *_PLACE,
        "position",
        "gts",
        "id",
        "stage",
        "expired",
        "destinations",
        "origin",
        "payload_bytes",
        "payload_crc",
        "single",
        "at",
        "installed_from",
    ),
    # A replica's account of one transaction on its shard. index: its place in its bundle; timestamp: the bundle's;
    # message: its id, of format 1, else null. truths: of nested transactions (`kvstore.api.nesting`), empty where there
    # are none. effect: applied, and something was written or moved. Of the whole bundle, at index 0 only: content, a
    # digest of all but the state digest, equal for equal accounts; bundle, one of the ids in order, and of what moves
    # hand over.
    "outcomes": (
        *_PLACE,
        "position",
        "gts",
        "id",
        "index",
        "message",
        "timestamp",
        "at",
        "status",
        "succeeded",
        "truths",
        "effect",
        "content",
        "bundle",
        "state_digest",
        "reason",
    ),
    # One per key that was read; version: what the replica says it saw.
    "reads": (*_PLACE, "position", "gts", "id", "key", "version"),
    # One per key that was written with effect. digested: value is a digest of the real one. position 0: a row of the
    # backup with which the shard began; its version is also the id of who wrote it.
    "writes": (*_PLACE, "position", "gts", "id", "key", "value", "deleted", "digested"),
    # Of a step of a move that was possible (`kvstore.core.moves`), by its source and by its target. asked: the slots of
    # the move; slots: those that this step handed over; JSON, ranges of first and last. first, last: see
    # `kvstore.core.audit.Given`.
    "moves": (*_PLACE, "position", "gts", "id", "source", "target", "first", "last", "asked", "slots"),
    # One per row that a step gave; value: as in `writes`, and deleted: since it was given.
    "given": (*_PLACE, "position", "gts", "id", "key", "version", "value", "deleted", "digested"),
    # A process multicast a message.
    "submitted": (*_PLACE, "id", "destinations", "at"),
    # event "started", "stopped", "installed": from there on the replica holds, by a snapshot, what its shard had after
    # that delivery, whose state has this digest, or "members": that have changed, after so many deliveries. members:
    # JSON, shard -> replicas.
    "lives": (
        *_PLACE,
        "at",
        "event",
        "incarnation",
        "protocol",
        "durability",
        "members",
        "delivered",
        "completed",
        "state_digest",
    ),
    # One per journal file with a header: the journal offsets at which it begins and at which what can be used of it
    # ends, and how many records were used.
    "segments": (*_PLACE, "file", "end", "records", "cluster"),
    # What could not be read, and where; event "damage", or "unfinished" for the torn tail of a killed replica.
    "damage": ("replica", "segment", "file", "byte", "event", "reason"),
}


def _struct(names: tuple[str, ...]) -> StructType:
    return StructType([StructField(name, _COLUMN_TYPES[name], True) for name in names])


JOURNAL = _struct(tuple(_COLUMN_TYPES))
"""Every column of every table: what the journal data source yields."""


def table_schema(table: str) -> StructType:
    """The columns of one table."""
    return _struct(TABLES[table])


HISTORY = StructType(
    [
        StructField("file", StringType()),
        StructField("line", LongType()),
        StructField("process", LongType()),
        StructField("type", StringType()),
        StructField("at_us", LongType()),
        StructField("id", BinaryType()),
        StructField("f", StringType()),
        StructField("version", BinaryType()),
        StructField("succeeded", BooleanType()),
        StructField("reads", MapType(StringType(), BinaryType())),
        StructField("value", MapType(StringType(), LongType())),
        StructField("error", StringType()),
        StructField("asked", StringType()),
        StructField("told", StringType()),
        StructField("shard", IntegerType()),
        StructField("position", LongType()),
        StructField("consistency", StringType()),
        StructField("age_us", LongType()),
        StructField("places", MapType(IntegerType(), LongType())),
        StructField("seen", BinaryType()),
        StructField("cluster", StringType()),
        StructField("damage", StringType()),
    ]
)
"""One row per line of a client history. asked, told: JSON, as there, or null. shard, position: of a read without an id
of its own, else null and 0 (`kvstore.core.audit.HistoryEvent`). consistency, age_us: null unless a read may miss
something. places: shard -> position. seen: not null of answers that have places, or instead of them a version at which
they were read: the answer's version; `version` is null then. cluster: which one was asked, by the line that tells; else
null. `damage`: null, or why the line could not be read."""

WATCHED = StructType(
    [
        StructField("file", StringType()),
        StructField("line", LongType()),
        StructField("at_us", LongType()),
        StructField("id", BinaryType()),
        StructField("f", StringType()),
        StructField("version", BinaryType()),
        StructField("first", BinaryType()),
        StructField("end", BinaryType()),
        StructField("changes", MapType(StringType(), StringType())),
    ]
)
"""One row per line of a client history that is of a watch (`kvstore.core.audit.WATCH_EVENTS`). first, end: of "begin",
its bounds. changes: of "change", key -> value as histories have it, null if it was deleted."""

FRAMES = StructType(
    [
        StructField("file", StringType()),
        StructField("line", LongType()),
        StructField("event", StringType()),
        StructField("at", LongType()),
        StructField("process", IntegerType()),
        StructField("to", ArrayType(IntegerType())),
        StructField("kind", StringType()),
        StructField("channel", StringType()),
        StructField("housekeeping", BooleanType()),
        StructField("ids", ArrayType(BinaryType())),
        StructField("destinations", ArrayType(IntegerType())),
        StructField("genuine", BooleanType()),
        StructField("damage", StringType()),
    ]
)
"""Of a simulated run's trace. One row per frame that left (event "leave": process -> to, about the messages `ids`), per
message multicast ("submit": the only id, its destinations), and for the first line ("trace": genuine, what the protocol
claims) and the last ("end"). channel: empty for the protocol's own. `damage`: null, or why a line could not be read."""

VIOLATIONS = StructType(
    [
        StructField("name", StringType(), False),
        StructField("sentence", StringType(), False),
        StructField("transactions", ArrayType(StringType()), False),
        StructField("keys", ArrayType(StringType()), False),
        StructField("replicas", ArrayType(IntegerType()), False),
        StructField("positions", ArrayType(LongType()), False),
    ]
)
"""What every check returns: a name of the list in `spark_etl`, why, and who is involved, where."""
