"""A process keeps no more of what came before its turn, or waits, than its options say, and tells nobody the same thing
twice in one message: what others send or clients ask must not fill its memory, or its frames.

Without its bound a rule does the same in every run, but for the memory. Looked at whenever a process has done
something. Like in `invariants`, variables are known by name only.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Any, get_origin

import msgspec

from multicast.simulation.checkers import Checker
from multicast.simulation.leftovers import consists_of
from multicast.types import ProcessId, Topology

if TYPE_CHECKING:
    from multicast.simulation.scene import Node

Sends = list[tuple[tuple[int, ...], Any, bool]]

_EARLY, _PENDING = "early_max", "pending_max"
BOUNDS: dict[str, dict[str, tuple[str, int]]] = {
    "Casts": {"_ids": (_PENDING, 0)},
    "EarlyDeliveries": {"_heap": (_PENDING, 0)},
    "LeaderReads": {"_waiting": (_PENDING, 0)},
    "LeadersWord": {"_heard": (_EARLY, 0)},
    "QuasiGenuine": {"_ahead_wants": (_EARLY, 0), "_held": (_EARLY, 0)},
    "Reign": {"held": (_EARLY, 0)},
    "Sequence": {"_expected": (_EARLY, 1)},
    "Submissions": {"_messages": (_PENDING, 0)},
    "Toto": {"_early": (_EARLY, 0), "_mine": (_PENDING, 0)},
    "WhiteBox": {"_early": (_EARLY, 0)},
}
"""Class -> variable -> the option that says how many there may be at most, and how many more: what is next never comes
too early."""

_OF_EACH = ("base", "batches", "cut", "held", "past")


class Bounds(Checker):
    """Of every protocol."""

    watches_protocol = True

    def __init__(self, topology: Topology):
        super().__init__()
        self._bounded: dict[ProcessId, tuple[Any, list[tuple[Any, str, int]]]] = {}

    def on_handled(self, node: Node, handler: str, args: tuple[Any, ...], sends: Sends) -> None:
        protocol, bounded = self._bounded.get(node.pid, (None, []))
        if protocol is not node.protocol:
            bounded = list(_bounded(node.protocol))
            self._bounded[node.pid] = (node.protocol, bounded)
        for one, name, most in bounded:
            if (many := len(getattr(one, name))) > most:
                what = f"{type(one).__name__}.{name}"
                self.report("bounds", f"process {node.pid} ({node.protocol.role()}) keeps {many} in {what}, not {most}")


class Repetitions(Checker):
    """Of every protocol's messages: of their lists."""

    watches_protocol = True
    watches_sends = True

    def __init__(self, topology: Topology):
        super().__init__()

    def on_handled(self, node: Node, handler: str, args: tuple[Any, ...], sends: Sends) -> None:
        for _, message, _ in sends:
            kind: Any = type(message)
            for name in _lists(kind):
                told = getattr(message, name)
                if len(told) > 1 and len({*map(msgspec.msgpack.encode, told)}) < len(told):
                    what = f"{kind.__name__}.{name}"
                    self.report("repetition", f"process {node.pid} sends twice the same in {what}")


@cache
def _lists(kind: Any) -> tuple[str, ...]:
    """The fields of a message that are lists, not with one item of each process or instance."""
    fields = msgspec.structs.fields(kind)
    return tuple(field.name for field in fields if get_origin(field.type) is list and field.name not in _OF_EACH)


def _bounded(protocol: Any) -> Iterator[tuple[Any, str, int]]:
    """What is bounded, with its name and how many there may be."""
    for one, _ in consists_of(protocol):
        for kind in type(one).__mro__:
            for name, (option, more) in BOUNDS.get(kind.__name__, {}).items():
                yield one, name, getattr(protocol.options, option) + more
