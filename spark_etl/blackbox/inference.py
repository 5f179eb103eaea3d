"""What the order that transactions have anyway leaves no choice about in the order of versions.

r reads the version of u, and v writes the same key:

    v precedes r  =>  v's version comes before u's: r would have missed it otherwise
    u precedes v  =>  r precedes v, which overwrites what r read
    u begins before v ends  =>  u ends before v begins (snapshot isolation: who writes one key excludes others)

Of the v of each chain only the nearest one matters, so that it takes reads times chains, not pairs of writers.
After Biswas and Enea 2019, Section 4; Cobra, OSDI 2020, Section 4.3.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from spark_etl.blackbox.facts import INIT, Key, Read
from spark_etl.blackbox.graphs import NEVER, Chains, Edge

_PAIRS = 1 << 22
"""So many pairs of a read and a chain are looked at at once."""


class Missed(NamedTuple):
    """The first rule applies: the reader of this writer's version (or INIT) has seen another one's."""

    reader: int
    writer: int
    other: int
    key: Key

    @property
    def edge(self) -> Edge:
        """What follows. Nothing precedes the initial version; then, what contradicts it."""
        if self.writer == INIT:
            return Edge(self.reader, self.other, "rw", self.key)
        return Edge(self.other, self.writer, "ww", self.key)


class Events(NamedTuple):
    """Which nodes a transaction t is. step: 2 if 2t is its beginning and 2t + 1 its end, else 1, and both are t.
    exclusive: who writes a key excludes others from its beginning to its end. weak: a later version's writer only ends
    later."""

    step: int = 1
    exclusive: bool = False
    weak: bool = False

    def begin(self, t: np.ndarray) -> np.ndarray:
        return t * self.step

    def end(self, t: np.ndarray) -> np.ndarray:
        return t * self.step + (self.step - 1)

    def later(self, t: np.ndarray) -> np.ndarray:
        """What the end of the writer of an earlier version precedes."""
        return self.end(t) if self.weak else self.begin(t)


class Versions:
    """Writers and reads of keys as arrays. places: key -> writer -> its place in the order, where one is known."""

    def __init__(
        self,
        writers: Mapping[Key, Sequence[int]],
        reads: Iterable[Read],
        places: Mapping[Key, Mapping[int, int]] | None = None,
    ):
        self.keys = list(writers)
        number = {key: i for i, key in enumerate(self.keys)}
        self.write_key = np.array([number[key] for key in self.keys for _ in writers[key]], np.int64)
        self.writer = np.array([w for key in self.keys for w in writers[key]], np.int64)
        mine = list(dict.fromkeys((number[r.key], r.reader, r.writer) for r in reads if r.key in number))
        self.read_key, self.reader, self.source = np.array(mine, np.int64).reshape(-1, 3).T
        self._places = places or {}

    def known(self, key: Key, earlier: int, later: int) -> bool:
        """Whether the order of these two is known anyway."""
        place = self._places.get(key)
        return place is not None and place.get(earlier, NEVER) <= place.get(later, -1)


class _Groups:
    """Writers by key and chain, by their places in it."""

    def __init__(self, versions: Versions, chains: Chains, events: Events, low: int, high: int):
        rows = chains.row[events.end(versions.writer)]
        chain = chains.chain[rows]
        mine = np.flatnonzero((rows >= 0) & (chain >= low) & (chain < high))
        key, chain, place = versions.write_key[mine], chain[mine], chains.place[rows[mine]].astype(np.int64)
        by = np.lexsort((place, chain, key))
        self.writer, self.place, self.row = versions.writer[mine][by], place[by], rows[mine][by]
        key, chain = key[by], chain[by]
        new = np.flatnonzero(np.diff(key, prepend=-1) | np.diff(chain, prepend=-1))
        self.start, self.end = new, np.append(new[1:], len(key))
        self.chain = chain[new] - low
        group = np.repeat(np.arange(len(new)), self.end - self.start)
        self._code = group * (NEVER + 1) + self.place
        self._first = np.searchsorted(key[new], np.arange(len(versions.keys) + 1))

    def pairs(self, key: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Of items with these keys: (items, groups of their keys), some at a time."""
        counts = self._first[key + 1] - self._first[key]
        ends = np.cumsum(counts)
        low = 0
        while low < len(key):
            done = ends[low - 1] if low else 0
            high = max(low + 1, int(np.searchsorted(ends, done + _PAIRS, "right")))
            items = np.repeat(np.arange(low, high), counts[low:high])
            within = np.arange(len(items)) - np.repeat(ends[low:high] - counts[low:high] - done, counts[low:high])
            yield items, self._first[key[items]] + within
            low = high

    def last(self, group: np.ndarray, place: np.ndarray, but: np.ndarray) -> np.ndarray:
        """The last writer up to this place, other than `but`: its position here, or -1."""
        at = np.searchsorted(self._code, group * (NEVER + 1) + place, "right") - 1
        at -= (at >= self.start[group]) & (self.writer[at] == but)
        return np.where(at >= self.start[group], at, -1)

    def first(self, group: np.ndarray, place: np.ndarray, but: np.ndarray) -> np.ndarray:
        """The first writer from this place on, other than `but`: its position here, or -1."""
        at = np.searchsorted(self._code, group * (NEVER + 1) + place, "left")
        at += (at < self.end[group]) & (self.writer[np.minimum(at, len(self.writer) - 1)] == but)
        return np.where(at < self.end[group], at, -1)


def _best(of: np.ufunc, items: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The greatest or smallest value of each item, at all its places; they stand together."""
    new = np.flatnonzero(np.diff(items, prepend=-1))
    return np.repeat(of.reduceat(values, new), np.diff(np.append(new, len(items)))) if len(items) else values


def seen(chains: Chains, versions: Versions, events: Events, deadline: float) -> Iterator[Missed]:
    """The first rule, one reader for each two writers. TimeoutError."""
    for low, high in chains.blocks():
        groups = _Groups(versions, chains, events, low, high)
        if len(groups.writer):
            yield from _seen(chains, versions, events, groups, chains.past(low, high, deadline))


def _seen(chains: Chains, versions: Versions, events: Events, groups: _Groups, past: np.ndarray) -> Iterator[Missed]:
    for read, group in groups.pairs(versions.read_key):
        r, u, chain = versions.reader[read], versions.source[read], groups.chain[group]
        at = groups.last(group, past[chains.row[events.begin(r)], chain], r)
        known = (u != INIT) & (past[chains.row[events.later(u)], chain] >= groups.place[at])
        new = (at >= 0) & (groups.writer[at] != u) & ~known
        read, group, at, chain, r, u = (one[new] for one in (read, group, at, chain, r, u))
        latest = _best(np.maximum, read, groups.row[at])
        new = (groups.row[at] == latest) | (past[latest, chain] < groups.place[at])
        r, u, v, key = r[new], u[new], groups.writer[at[new]], versions.read_key[read[new]]
        _, first = np.unique(np.stack((u, v, key)), axis=1, return_index=True)
        for reader, writer, other, number in zip(*(one[first].tolist() for one in (r, u, v, key)), strict=True):
            if not versions.known(versions.keys[number], other, writer):
                yield Missed(reader, writer, other, versions.keys[number])


def forced(chains: Chains, versions: Versions, events: Events, deadline: float) -> Iterator[Edge]:
    """ww and rw edges of all rules, those of snapshot isolation only if `events.exclusive`. TimeoutError."""
    for low, high in chains.blocks():
        groups = _Groups(versions, chains, events, low, high)
        if not len(groups.writer):
            continue
        past = chains.past(low, high, deadline)
        yield from (missed.edge for missed in _seen(chains, versions, events, groups, past))
        del past
        future = chains.future(low, high, deadline)
        begun = events.begin if events.exclusive else events.end
        for read, group in groups.pairs(versions.read_key):
            r, u, chain = versions.reader[read], versions.source[read], groups.chain[group]
            at = groups.first(group, future[chains.row[begun(u)], chain], u)
            new = (at >= 0) & (u != INIT) & (groups.writer[at] != r)
            new &= future[chains.row[events.begin(r)], chain] > groups.place[at]
            read, at, chain, r = (one[new] for one in (read, at, chain, r))
            earliest = _best(np.minimum, read, groups.row[at])
            new = (groups.row[at] == earliest) | (future[earliest, chain] > groups.place[at])
            yield from _edges("rw", r[new], groups.writer[at[new]], versions.read_key[read[new]], versions)
        if events.exclusive:
            for write, group in groups.pairs(versions.write_key):
                u, chain = versions.writer[write], groups.chain[group]
                at = groups.first(group, future[chains.row[begun(u)], chain], u)
                new = (at >= 0) & (future[chains.row[events.end(u)], chain] > groups.place[at] - 1)
                yield from _edges("ww", u[new], groups.writer[at[new]], versions.write_key[write[new]], versions)


def _edges(kind: str, sources: np.ndarray, targets: np.ndarray, keys: np.ndarray, versions: Versions) -> Iterator[Edge]:
    for source, target, key in np.unique(np.stack((sources, targets, keys)), axis=1).T.tolist():
        yield Edge(source, target, kind, versions.keys[key])
