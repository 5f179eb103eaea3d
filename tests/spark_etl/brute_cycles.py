"""Cycles by their definitions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def closure(pairs: Iterable[tuple[Any, Any]]) -> set[tuple[Any, Any]]:
    """Transitive, by Warshall."""
    reach = set(pairs)
    nodes = {n for pair in reach for n in pair}
    for k in nodes:
        into, out = [a for a, b in reach if b == k], [b for a, b in reach if a == k]
        reach |= {(a, b) for a in into for b in out}
    return reach


def cyclic(pairs: Iterable[tuple[Any, Any]]) -> bool:
    return any(a == b for a, b in closure(pairs))


def adya(kinds: list[str]) -> str:
    """The name of a cycle of these kinds of edges, one after the other; "rt": real time."""
    around = list(zip(kinds, kinds[1:] + kinds[:1], strict=True))
    if "rw" not in kinds:
        name = "G1c" if "wr" in kinds else "G0"
    elif kinds.count("rw") == 1:
        name = "G-single"
    else:
        name = "G2-item" if ("rw", "rw") in around else "G-nonadjacent"
    return name + "-realtime" * ("rt" in kinds)


def shortest_cycle(pairs: set[tuple[int, int]], near: int) -> int:
    """The length of a shortest cycle among the nodes that are on a cycle with this one."""
    reach = closure(pairs)
    together = {n for n, _ in pairs if (n, near) in reach and (near, n) in reach}
    lengths = []
    for start in together:
        layer, steps = {start}, 0
        while steps <= len(together):
            layer, steps = {b for a, b in pairs if a in layer and b in together}, steps + 1
            if start in layer:
                lengths.append(steps)
                break
    return min(lengths)
