"""The session guarantees by enumeration of version orders, for histories of a few transactions: independent of
`spark_etl.blackbox`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

from spark_etl.blackbox.history import Transaction
from tests.spark_etl.brute_blackbox import World, happened, source_of, version_orders

Met = tuple[int, int, Any, int]
"""(transaction, ordinal of the operation, key, writer of the version)."""


def guarantees(history: Sequence[Transaction]) -> dict[str, bool] | None:
    """Guarantee -> whether some order of versions, that fits what was read, has it; None if none fits."""
    world = World(history, happened(history), set())
    if world.contradictory() or any(len(set(value)) < len(value) for _, value in world.wholes()):
        return None
    found: dict[str, bool] = {}
    for orders in version_orders(world):
        if (met := _reads(world, orders)) is not None:
            for name, pairs in CHECKS.items():
                broken = any(_older(orders[key], a, b) for key, a, b in pairs(world, met))
                found[name] = found.get(name, False) or not broken
    if found and any(_lost_own(world, *read) for read in world.reads):
        found["read your writes"] = False
    return found or None


def _older(order: Sequence[int], a: int, b: int) -> bool:
    return a != b and (a == -1 or (b != -1 and order.index(a) < order.index(b)))


def _reads(world: World, orders: dict[Any, tuple[int, ...]]) -> list[Met] | None:
    """What each read saw of others; None if it cannot be with these orders of versions."""
    by_index = {t.index: t for t in world.committed}
    finals = {key: tuple(v for i in orders[key] for v in world.writes[i, key]) for key in world.lists}
    if not all(world.fits_own(key, final) for key, final in finals.items()):
        return None
    found: list[Met] = []
    for t, n, key, value in world.reads:
        shown = world.external(t, n, key, value)
        if shown is ...:
            if value == world.own(t, n, key)[-1]:
                continue
            shown = value
        writer = source_of(world, tuple(by_index[i] for i in orders[key]), key, shown, finals)
        if writer is None or writer == t.index:
            return None
        found.append((t.index, n, key, writer))
        first = next(m for reader, m, k, _ in world.reads if reader.index == t.index and k == key)
        if (
            n == first
            and not world.own(t, n, key)
            and world.writes[t.index, key]
            and _older(orders[key], t.index, writer)
        ):
            return None
    return found


def _lost_own(world: World, t: Transaction, n: int, key: Any, value: Any) -> bool:
    return key in world.lists and not set(world.own(t, n, key)) <= set(value)


Pairs = Iterator[tuple[Any, int, int]]
"""(key, a, b): the version a must not be older than b."""


def _session(world: World, index: int) -> list[Transaction]:
    """The acknowledged transactions before this one in its session."""
    (own,) = (t for t in world.committed if t.index == index)
    return [t for t in world.committed if t.process == own.process and t.index < index and t.type == "ok"]


def _writes_before(world: World, index: int) -> list[tuple[Any, int]]:
    return [(key, t.index) for t in _session(world, index) for key in world.keys if world.writes[t.index, key]]


def _reads_before(world: World, index: int, reads: list[Met]) -> list[tuple[Any, int]]:
    session = [t.index for t in _session(world, index)]
    return [(key, writer) for reader, _, key, writer in reads if reader in session]


def monotonic_reads(world: World, reads: list[Met]) -> Pairs:
    for t, n, key, writer in reads:
        within = [(k, w) for u, m, k, w in reads if u == t and m < n]
        yield from ((key, writer, had) for k, had in (*_reads_before(world, t, reads), *within) if k == key)


def read_your_writes(world: World, reads: list[Met]) -> Pairs:
    for t, n, key, writer in reads:
        (reader,) = (u for u in world.committed if u.index == t)
        yield from ((key, writer, had) for k, had in _writes_before(world, t) if k == key)
        if key not in world.lists and world.own(reader, n, key):
            yield key, writer, t


def monotonic_writes(world: World, reads: list[Met]) -> Pairs:
    for t, key in product(world.committed, world.keys):
        if world.writes[t.index, key]:
            yield from ((key, t.index, had) for k, had in _writes_before(world, t.index) if k == key)
    for key, writer, seen in _observed(world, reads):
        yield from ((key, writer, had) for k, had in _writes_before(world, seen) if k == key)


def writes_follow_reads(world: World, reads: list[Met]) -> Pairs:
    for t, key in product(world.committed, world.keys):
        if world.writes[t.index, key]:
            yield from ((key, t.index, had) for k, had in _reads_before(world, t.index, reads) if k == key)
    for key, writer, seen in _observed(world, reads):
        yield from ((key, writer, had) for k, had in _reads_before(world, seen, reads) if k == key)


def _observed(world: World, reads: list[Met]) -> Pairs:
    """(key, the version that was read, a transaction of another session whose write the reader had seen)."""
    process = {t.index: t.process for t in world.committed}
    for t, n, key, writer in reads:
        for u, m, _, seen in reads:
            if process[u] == process[t] and (u, m) <= (t, n) and seen != -1 and process[seen] != process[t]:
                yield key, writer, seen


CHECKS = {
    "monotonic reads": monotonic_reads,
    "read your writes": read_your_writes,
    "monotonic writes": monotonic_writes,
    "writes follow reads": writes_follow_reads,
}
