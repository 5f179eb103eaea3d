"""Tables of a long run bit by bit, each in the order in which it stands."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heappop, heappush

import numpy as np
import pyarrow as pa

from spark_etl.certify import slices
from spark_etl.certify.arrays import NOTHING, halves, index_in, numbers, trust
from spark_etl.certify.source import Source

POSITIONS = 1 << 16
"""Positions of a log that are looked at together."""
SENT = ("id", "at", "destinations")
_FIRST = NOTHING


class Rows:
    """The rows of a replica, by their positions. Suspect if they do not stand in that order, or a journal's offset
    falls behind what was taken before. Each row is given once."""

    def __init__(self, source: Source, table: str, columns: Sequence[str], replica: int, coded: Sequence[str] = ()):
        self._columns = list(columns)
        wanted = list(dict.fromkeys([*columns, "position", "offset"]))
        self._batches = source.batches(table, wanted, replica, coded)
        self._ahead: list[pa.Table] = []
        self._reached = self._offset = -1
        self._none = source.read(table, columns, [], coded)

    def upto(self, position: int) -> pa.Table:
        """Those that are not behind this one."""
        taken = [self._none]
        while self._reached <= position and (batch := next(self._batches, None)) is not None:
            if batch.num_rows:
                places = numbers(batch["position"])
                trust(places[0] >= self._reached and np.all(places[1:] >= places[:-1]), "positions out of order")
                self._reached = int(places[-1])
                self._ahead.append(batch)
        while self._ahead:
            first = self._ahead.pop(0)
            count = int(np.searchsorted(numbers(first["position"]), position, side="right"))
            if count:
                mine = first.slice(0, count)
                offsets = numbers(mine["offset"])
                trust(offsets.min() >= self._offset, "offsets out of order")
                self._offset = int(offsets.max())
                taken.append(mine.select(self._columns))
            if count < first.num_rows:
                self._ahead.insert(0, first.slice(count))
                break
        return pa.concat_tables(taken, promote_options="default").combine_chunks()

    @property
    def over(self) -> bool:
        """Whether there is none left."""
        while not self._ahead and (batch := next(self._batches, None)) is not None:
            if batch.num_rows:
                self._ahead.append(batch)
                self._reached = max(self._reached, int(numbers(batch["position"])[-1]))
        return not self._ahead


class Sent:
    """Who has multicast what: id, at and destinations, read as far as is asked for. Rows are given once."""

    def __init__(self, source: Source, shard: int | None = None):
        """shard: only what is addressed to it."""
        self._shard = shard
        self._pool = source.read("submitted", SENT, [])
        files = sorted(source.files["submitted"])
        self._streams = [(_FIRST, n, source.batches("submitted", SENT, one)) for n, one in enumerate(files)]

    def of(self, ids: np.ndarray) -> pa.Table:
        """Those of messages, as pairs of numbers that differ, as far as there are any."""
        found, missing = [], np.ones(len(ids), bool)
        rows: pa.Table | None = self._pool
        kept = []
        while rows is not None:
            place = index_in(halves(rows["id"]), ids)
            found.append(rows.filter(pa.array(place >= 0)))
            kept.append(rows.filter(pa.array(place < 0)))
            missing[place[place >= 0]] = False
            rows = self._more() if missing.any() else None
        self._pool = pa.concat_tables(kept).combine_chunks()
        return pa.concat_tables(found)

    def _more(self) -> pa.Table | None:
        """From whoever is behind the others."""
        while self._streams:
            _, number, batches = heappop(self._streams)
            if (batch := next(batches, None)) is None:
                continue
            if self._shard is not None:
                batch = slices.addressed(batch, self._shard)
            last = int(numbers(batch["at"])[-1]) if batch.num_rows else _FIRST
            heappush(self._streams, (last, number, batches))
            return batch
        return None

    def rest(self, ids: Iterable[np.ndarray]) -> None:
        """Suspect if what is left, when all are asked for, is of one of these messages."""
        while (rows := self._more()) is not None:
            self._pool = pa.concat_tables([self._pool, rows])
        if self._pool.num_rows:
            left = halves(self._pool["id"])
            trust(all((index_in(part, left) < 0).all() for part in ids), "a message that was multicast again, later")
