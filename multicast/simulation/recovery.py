"""Would every process come back if the power failed now, and know what it knows? Asked at drawn flushes, of a copy.

Theory of operation. At a flush a part of what was written is durable, and the power may fail before the rest is. A copy
of the process's disk goes through that, and a throw-away process recovers from what it leaves: the production journal,
engine and protocol, as at a restart. It must not fail, and must have what was synced. Nobody else hears of it: the run
goes on as if nothing had been asked.

So a state on disk from which no process can recover is found when it is written, not only when a crash happens to hit
it. When nothing waits to be synced, the copy must also remember what the process vouches for (`memory`).
"""

from __future__ import annotations

import random
import traceback
from collections.abc import Callable

from multicast.application import Application
from multicast.checkpoint import Checkpoints
from multicast.engine import Engine
from multicast.protocol import MulticastProtocol
from multicast.simulation.disk import SimulatedDisk
from multicast.simulation.memory import forgotten, memory
from multicast.simulation.scene import Node
from multicast.types import ProcessId

Spare = Callable[[ProcessId, random.Random], tuple[MulticastProtocol, Application]]
"""A protocol as at the start of a life, and an application that would hold by now what the process's own would."""

BYTES_PER_FLUSH = 200
"""So much of a journal is read per flush, on the average: a recovery reads all of it."""
EAGER_RESTS = 4
"""Whether a process remembers is asked more often so soon after its role has changed: then most is saved at once."""


class RecoveryCheck:
    """Of one world; see `World.recovery`. chance: at how many of the flushes it asks, unless the journal is long; drawn
    if not given. bytes_per_flush: what that may cost.
    asked: how many recoveries were tried. failed: one of them was in vain; that is enough, the next ones would be."""

    def __init__(
        self, spare: Spare, seed: int | str, chance: float | None = None, bytes_per_flush: float = BYTES_PER_FLUSH
    ):
        self.asked = 0
        self.failed = False
        self._spare = spare
        self._rng = random.Random(f"{seed}/recovery")
        self._bytes = bytes_per_flush
        self._chance = self._rng.choice((0.0, 0.002, 0.02, 0.1)) if chance is None else chance
        self._eager = self._rng.choice((0.0, 0.0, 0.5)) if chance is None else chance
        self._roles: dict[ProcessId, tuple[str, int]] = {}

    def at_flush(self, node: Node) -> None:
        """This process's writes are about to be synced."""
        chance = min(self._chance, self._bytes / max(1, node.journal.end))
        if self.failed or self._rng.random() >= chance:
            return
        self.asked += 1
        failure = self._recover(node)
        if failure:
            self.failed = True
            node.world.report("recovery", f"process {node.pid} could not come back at {node.world.now}: {failure}")

    def at_rest(self, node: Node) -> None:
        """All that this process has put is on disk."""
        role, since = node.protocol.role(), self._roles.get(node.pid, ("", 0))
        rests = since[1] + 1 if since[0] == role else 0
        self._roles[node.pid] = (role, rests)
        eager = self._eager if rests < EAGER_RESTS else 0.0
        chance = max(eager, min(self._chance, self._bytes / max(1, node.journal.end)))
        if self.failed or self._rng.random() >= chance:
            return
        self.asked += 1
        spare = self._spare_of(node, node.disk.copy(), acts=False)
        if spare.position > node.engine.position:
            return  # it delivers what was about to be, and drops what that settles
        lost = forgotten(memory(node.protocol), memory(spare.protocol))
        if lost:
            self.failed = True
            node.world.report("memory", f"process {node.pid} at {node.world.now}: {lost}")

    def _recover(self, node: Node) -> str:
        """Why the process could not; empty if it could."""
        disk = node.disk.copy()
        disk.crash(self._rng, power=True)
        try:
            engine = self._spare_of(node, disk)
        except Exception as error:
            frame = traceback.extract_tb(error.__traceback__)[-1]
            return f"{type(error).__name__}: {error} ({frame.filename.rpartition('/')[2]}:{frame.lineno})"
        if engine.position < node.flushed_position:
            return f"it has {engine.position} deliveries; {node.flushed_position} were synced"
        return ""

    def _spare_of(self, node: Node, disk: SimulatedDisk, acts: bool = True) -> Engine:
        """Another one of this process, as it comes back from this disk. acts: on its timers, and on
        what is durable by now: alone in its group it drops what is settled by that."""
        journal = node.open_journal(disk)
        protocol, application = self._spare(node.pid, random.Random(self._rng.random()))
        if not acts:
            setattr(protocol, "on_tick", lambda now, out: None)  # noqa: B010
            setattr(protocol, "on_durable", lambda position, now, out: None)  # noqa: B010
        engine = Engine(protocol, application, node.life + 1)
        written = Checkpoints(journal).latest().recovery(journal, application.position)
        engine.recover(written, node.wall(), node.lost)
        return engine
