"""Slots that move while the clients of a simulated cluster work: whoever moves them repeats steps, or gives up."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from kvstore.api.model import Delete, Move, Transaction
from kvstore.api.shard_map import slot_of
from kvstore.core.messages import Answered, Execute, Refused
from kvstore.core.moves import PORTION
from kvstore.simulated.clients import COMPANIONS_MAX, Operated, Prober, Workload
from multicast.types import GroupId, new_message_id

SHARE = 0.4
"""Of the runs with several shards: so many have moves."""
MOVES_MAX = 4
PORTIONS = (2, 3, 10, 10, PORTION)
"""How much one step looks at: the less, the more happens between steps. With 1 no move ends: each step leaves an id."""
ABANDONED = 0.15
"""Of the moves: so many are given up at some step."""
STEPS_MAX = 60
PAUSE_US_MAX, PATIENCE_US, ATTEMPTS_MAX = 20_000, 200_000, 12
"""Before a step is asked for again; after so long elsewhere; so often, then there is another one."""
CROWDS = 0.3
"""At so many steps many clients come at once."""
DELETIONS = 0.3
"""At so many steps a key is deleted."""


class Mover:
    """One move, drawn when it begins: of some keys' slots. target: None: drawn, too."""

    def __init__(self, workload: Workload, rng: random.Random, target: GroupId | None = None):
        self._target = target
        self._workload = workload
        self._cluster = workload.cluster
        self._world = workload.world
        self._rng = rng
        self._steps = rng.randint(0, 3) if rng.random() < ABANDONED else STEPS_MAX
        workload.running += 1

    def begin(self) -> None:
        """Choose what to move, by what some replica knows, and where."""
        keys = [*self._workload.accounts, *self._workload.keys]
        self.move(lambda: self._rng.sample(keys, self._rng.choice((1, 2, 4, 9))))

    def move(self, choose: Callable[[], Sequence[bytes]]) -> None:
        """Those of some keys' slots that are where the first one is."""
        rng = self._rng
        replica = self._cluster.replicas[rng.choice(self._world.topology.processes)]
        shard_of, keys = replica.moves.map.shard_of, choose()
        source, target = shard_of(keys[0]), self._target
        if target is None or target == source:
            target = rng.choice([shard for shard in self._cluster.shards if shard != source])
        slots = sorted({slot_of(key) for key in keys if shard_of(key) == source})
        self._transaction = Transaction(success=(Move(source, target, tuple((slot, slot) for slot in slots)),))
        self._step()

    def over(self) -> None:
        """The move is complete, or given up."""
        self._workload.running -= 1

    def _step(self) -> None:
        if not self._steps or self._world.now > self._workload.stop_at:
            self.over()
            return
        self._steps -= 1
        if self._rng.random() < DELETIONS:
            self._delete()
        if self._rng.random() < CROWDS:
            self._workload.crowd(self._rng.choice(self._world.topology.processes), self._rng.randint(2, COMPANIONS_MAX))
        self._ask(new_message_id(self._world.now, self._rng.getrandbits(62)), 0)

    def _delete(self) -> None:
        """Some client deletes a key that may have been given already."""

        def done(operation: Operated) -> None:
            workload.running -= 1

        rng, workload = self._rng, self._workload
        workload.running += 1
        client = Prober(workload, random.Random(rng.getrandbits(64)), rng.choice(self._world.topology.processes))
        client.operate("delete", Transaction(success=(Delete(rng.choice(workload.keys)),)), done)

    def _ask(self, message_id: bytes, attempt: int) -> None:
        open_ = [True]

        def answered(answer: Any) -> None:
            if not open_[0]:
                return
            open_[0] = False
            if isinstance(answer, Answered):
                if answer.result.failure or not (answer.results_omitted or answer.result.results[0].more):
                    self.over()
                else:
                    self._step()
            elif (isinstance(answer, Refused) and not answer.retryable) or attempt > ATTEMPTS_MAX:
                self._step()
            else:
                self._world.after(self._rng.randint(1_000, PAUSE_US_MAX), lambda: self._ask(message_id, attempt + 1))

        replica = self._rng.choice(self._world.topology.processes)
        self._world.request(replica, Execute(message_id, self._transaction), answered)
        self._world.after(PATIENCE_US, lambda: answered(None))


def start(workload: Workload, seed: str, span_us: int, wanted: bool | None) -> None:
    """Draw moves for a run of `span_us`. wanted: None: whether there are any is drawn, too."""
    rng = random.Random(f"{seed}/moves")
    cluster = workload.cluster
    if len(cluster.topology.groups) < 2 or not (rng.random() < SHARE if wanted is None else wanted):
        return
    prepare(workload, rng)
    for _ in range(rng.randint(1, MOVES_MAX)):
        mover = Mover(workload, rng)
        cluster.world.after(rng.randint(0, span_us // 3), mover.begin)


def start_to(target: GroupId, workload: Workload, seed: str, span_us: int) -> None:
    """Draw moves to a shard that is added in a run of `span_us`; some come before that is known everywhere."""
    rng = random.Random(f"{seed}/moves to {target}")
    if not workload.moves:
        prepare(workload, rng)
    for _ in range(rng.randint(1, MOVES_MAX)):
        mover = Mover(workload, rng, target)
        workload.world.after(rng.randint(0, span_us // 3), mover.begin)


def prepare(workload: Workload, rng: random.Random) -> None:
    """There will be moves."""
    workload.moves = True
    cluster = workload.cluster
    cluster.portion = rng.choice(PORTIONS)
    for replica in cluster.replicas.values():
        replica.moves.portion = cluster.portion
