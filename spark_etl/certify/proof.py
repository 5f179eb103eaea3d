"""What the kernels prove of a run: which checks would find nothing, and the numbers that they would have counted.

| property | kernel | left to the checks, if |
|---|---|---|
| integrity, agreement in a shard, prefix order | log | replicas differ, skip or repeat something; damage, format 1 |
| validity | log, id | a message that nobody sent, from where nothing crashed; one that is for other shards |
| one order across shards | id | a message has two timestamps, or shares one; a shard went past it |
| results complete and equal, exactly once | log, id | accounts lack or differ; an id taken twice, or wrongly refused |
| reads return what the order says | key | a read of another version; a key in two shards |
| clients saw what the journals say | client, seen | an answer that is not in every journal of its shards, or not so |
| unknown outcomes resolved | client | - |
| values as asked and as written | value, promise | anything else comes out; a range with another number of keys |
| leader reads | time, key | a position that nobody has, or behind a known one |
| reads as promised | promise, key | a place that nobody has; another version than stood there, an older one |
| | | than promised; several shards' that never stood at one version |
| serializability | log, id, key | one of these is not proved |
| strict serializability, linearizability per key | time | the order of versions runs against real time, |
| | precedence | and something is invoked after the answer of what it precedes; several histories |
| session guarantees | time | a session runs against the order, or does two things at once |
| conservation of the bank's total | bank | another total; accounts that are no numbers; several banks |
| optimistic deliveries | log | - |
| course | slices | - |
| genuineness, moves, watches, leases, ring, long fork, set, counter | none | always, if the run has them |

What is left to the checks is judged on the whole run; if it is nothing but reads of another version in some keys,
values of some operations, positions behind known ones, or real time, on what is near them (`near`).

Every kernel rests on *log*: if that proves nothing, nothing is proved. Those about clients rest on *id* and on
histories each line of which could be read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from spark_etl.certify.arrays import DOUBTS
from spark_etl.certify.client import Thin, Unknown
from spark_etl.certify.slices import Slice
from spark_etl.ingest.inputs import Top

LOGS = ("integrity", "agreement in a shard", "prefix order")
VALIDITY, ORDER = "validity", "one order across shards"
ACCOUNTS = ("results complete and equal", "exactly once")
READS = "reads return what the order says"
HISTORY = "the lines of the histories"
CLIENTS = "clients saw what the journals say"
TOLD = "the reads that clients were told of"
VALUES = "values as asked and as written"
POSITIONS = "leader reads"
PROMISES = "reads as promised"
TIME, SESSIONS, PRECEDENCE = "real time", "sessions", "no cycle with real time"
BANK = "conservation of the bank's total"
COURSE = "the course of the run"

T = TypeVar("T")


class Reached(msgspec.Struct):
    """At the end of a window: its greatest version, and of each log how many positions precede that, and the greatest e
    of these."""

    upto: bytes
    positions: list[int]
    latest: list[int]


class Proof(msgspec.Struct):
    """proved: names of properties, and HISTORY, TOLD, TIME, SESSIONS, PRECEDENCE, COURSE. why: not proved -> why.
    Numbers are those of the checks, and of use where what they belong to is proved: unsubmitted, waiting: messages of
    VALIDITY and ORDER; unknown, functions (kinds), thin: operations, of HISTORY with ACCOUNTS; compared, answered:
    operations, of VALUES; at_positions: reads, of POSITIONS; promises: reads, by consistency, of PROMISES; late:
    operations, of TIME; inverted, untimed: of SESSIONS. twice: `id.there_twice`; then nothing is proved. What is
    suspect, if that is known: other, whether a read at a position is of another version; values, places: see
    `near.Suspects`. near: files, with rows, of what that has to do with, if nothing else is suspect; circling: how many
    transactions are on cycles, if these are not all there. reached: of a long run, window by window, if real time and
    sessions follow an order of `precedence`."""

    proved: set[str] = msgspec.field(default_factory=set)
    why: dict[str, str] = msgspec.field(default_factory=dict)
    tops: list[Top] = []
    optimistic: tuple[int, int, int] = (0, 0, 0)
    slices: list[Slice] = []
    unsubmitted: int = 0
    waiting: int = 0
    unknown: Unknown | None = None
    thin: Thin | None = None
    functions: dict[str, int] = {}
    compared: int = 0
    answered: int = 0
    at_positions: int = 0
    promises: dict[str, int] = {}
    twice: bool = False
    late: int = 0
    inverted: int = 0
    untimed: int = 0
    other: bool = False
    values: list[tuple[int, list[bytes]]] = []
    places: list[int] = []
    near: dict[str, int] = {}
    circling: int = 0
    reached: list[Reached] = []

    def attempt(self, names: Sequence[str], kernel: Callable[..., T], *arguments: Any) -> T | None:
        """These are proved, if the kernel finds nothing to suspect."""
        try:
            found = kernel(*arguments)
        except DOUBTS as doubt:
            self.why |= dict.fromkeys(names, str(doubt))
            return None
        self.proved |= set(names)
        return found

    def refute(self, name: str, why: str) -> None:
        """It is not proved."""
        self.proved.discard(name)
        self.why[name] = why

    def queried(self, rows: Mapping[str, int]) -> int:
        """Of how many rows Spark is asked what is wrong: where slots have moved, of all. rows: of each table."""
        if rows.get("moves"):
            return sum(rows.values())
        return sum(self.near.values()) or (sum(rows.values()) if self.why else 0)

    def holds(self, *names: str) -> bool:
        """Whether all of these are proved."""
        return self.proved.issuperset(names)
