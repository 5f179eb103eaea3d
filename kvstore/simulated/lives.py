"""No question of a replica has a number that one had in an earlier life of it: the answer to that may still be on its
way, and would be taken for one to this. Nor is what comes too late for one question about positions the answer to the
next one. (Variables of replicas are known by name only.)"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kvstore.core.messages import PositionTold
from kvstore.core.replica import Replica
from multicast.application import ApplicationOutbox
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
        self._watched: dict[ProcessId, Replica] = {}

    def on_handled(self, node: Node, handler: str, args: tuple[Any, ...], sends: Sends) -> None:
        replica = self._replicas.get(node.pid)
        if handler == "end_batch" and replica is not None and replica is node.application:
            if self._watched.get(node.pid) is not replica:
                self._watched[node.pid] = replica
                self._watch_answers(node.pid, replica)
            parts: tuple[Any, ...] = replica.watches, replica.versions, replica.collects, replica.reads.positions
            for name, part in zip(_WHO_ASKS, parts, strict=True):
                number: int | None = part._number
                if number is not None:
                    self._judge(node.pid, name, replica, number)

    def _watch_answers(self, pid: ProcessId, replica: Replica) -> None:
        positions, told = replica.reads.positions, replica._handlers[PositionTold]

        def watched(sender: ProcessId, message: PositionTold, now: int, out: ApplicationOutbox) -> None:
            asked = positions._open
            told(sender, message, now, out)
            if asked is not None and asked is not positions._open and asked.number != message.number:
                self.report("lives", f"replica {pid} takes the answer to {message.number} for one to {asked.number}")

        replica._handlers[PositionTold] = watched

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
