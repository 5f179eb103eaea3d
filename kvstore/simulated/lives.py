"""No question of a replica has a number that one had in an earlier life of it: the answer to that may still be on its
way, and would be taken for one to this. (Variables of replicas are known by name only.)"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kvstore.core.replica import Replica
from multicast.simulation.checkers import Checker
from multicast.types import ProcessId

if TYPE_CHECKING:
    from multicast.simulation.scene import Node

Sends = list[tuple[tuple[ProcessId, ...], Any, bool]]

_WHO_ASKS = ("watches", "versions", "collects", "reads.positions")


class Lives(Checker):
    """Of every replica. spans: (process, who asks) -> the first and the last number of each life."""

    watches_protocol = True
    watches_idle = True

    def __init__(self, replicas: Mapping[ProcessId, Replica]):
        super().__init__()
        self._replicas = replicas
        self._spans: dict[tuple[ProcessId, str], list[tuple[int, int]]] = {}
        self._asked: dict[tuple[ProcessId, str], tuple[Replica, int]] = {}

    def on_handled(self, node: Node, handler: str, args: tuple[Any, ...], sends: Sends) -> None:
        replica = self._replicas.get(node.pid)
        if handler == "end_batch" and replica is not None and replica is node.application:
            parts: tuple[Any, ...] = replica.watches, replica.versions, replica.collects, replica.reads.positions
            for name, part in zip(_WHO_ASKS, parts, strict=True):
                number: int | None = part._number
                if number is not None:
                    self._judge(node.pid, name, replica, number)

    def _judge(self, pid: ProcessId, name: str, replica: Replica, number: int) -> None:
        life, last = self._asked.get((pid, name), (None, 0))
        if life is replica and last == number:
            return
        self._asked[pid, name] = replica, number
        spans = self._spans.setdefault((pid, name), [])
        if life is replica:
            spans[-1] = spans[-1][0], number
        else:
            spans.append((number, number))
        if any([first <= number <= last for first, last in spans[:-1]]):
            self.report("lives", f"replica {pid}: {name} asks number {number}, as in an earlier life")
