"""The properties of atomic multicast, judged from journals alone: those of the simulator, fed with what was written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

from multicast.journal import Journal
from multicast.records import Delivered, Started, Stopped
from multicast.runtime import FileDisk
from multicast.simulation.checkers import Properties
from multicast.types import FINAL, AppMessage, ProcessId, Topology


class Submission(NamedTuple):
    """A message was given to this life of this process, to multicast."""

    process: ProcessId
    life: int
    message: AppMessage


class History(NamedTuple):
    """One process: how many lives, whether the last one ended in good order, and all that it delivered finally. (What
    it delivers early is judged by lives and by time, in the simulator.)"""

    lives: int
    stopped: bool
    deliveries: list[Delivered]


class _Position(NamedTuple):
    """Of an engine, or of what an application held when its life began: nothing, for all is read from the journal."""

    position: int


class _Protocol:
    def is_member(self) -> bool:
        return True


class _Node(NamedTuple):
    """What `Properties` looks at in a process: one that is up, in the life that wrote the end of its journal."""

    pid: ProcessId
    life: int
    engine: _Position
    application: _Position = _Position(0)
    up: bool = True
    protocol: _Protocol = _Protocol()


class _World:
    """What `Properties` looks at in a world."""

    def __init__(self, nodes: dict[ProcessId, _Node]):
        self.nodes = nodes
        self.violations: list[str] = []

    def belongs(self, pid: ProcessId) -> bool:
        return True

    def report(self, checker: str, text: str) -> None:
        self.violations.append(f"{checker}: {text}")


def read(directory: Path, cluster: bytes, topology: Topology, process: ProcessId) -> History:
    """The journal in `directory`. JournalError if it is damaged or another's."""
    journal = Journal(FileDisk(directory), cluster, topology.group_of[process], process)
    try:
        records = [record for _, record in journal.tail(0)]
    finally:
        journal.close()
    lives = sum(type(record) is Started for record in records)
    stopped = any(type(record) is Stopped for record in records[-2:])
    return History(lives, stopped, [r for r in records if type(r) is Delivered and r.stage == FINAL])


def check(topology: Topology, histories: Mapping[ProcessId, History], submissions: Iterable[Submission]) -> list[str]:
    """Violations, as "property: what is wrong": validity, integrity, agreement, prefix order and dense positions,
    timestamps, one acyclic order over all groups, and that what had to be delivered was."""
    properties = Properties(topology)
    nodes = {
        process: _Node(process, history.lives, _Position(max([d.position for d in history.deliveries], default=0)))
        for process, history in histories.items()
    }
    world = _World(nodes)
    properties.world = cast(Any, world)
    for submission in submissions:
        node = nodes[submission.process]._replace(life=submission.life)
        properties.on_submit(cast(Any, node), submission.message)
    for process in sorted(histories):
        node = cast(Any, nodes[process])
        properties.on_life(node)
        for d in histories[process].deliveries:
            properties.on_deliver(node, d, False)
    properties.finish()
    return world.violations
