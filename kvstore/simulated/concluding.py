"""Moves that are not over when all else is: in a world in which all is well each of them ends, or can be given up, and
nothing is kept for it then."""

from __future__ import annotations

import random
from typing import Any

from kvstore.api.model import Move, Transaction
from kvstore.core.messages import Answered, Execute
from kvstore.core.moves import DIRTY, DIRTY_ID, GIVEN, LEAVING, OLD, STAGED
from kvstore.core.replica import Replica
from kvstore.core.shards import TELL_US
from kvstore.simulated.clients import Workload
from kvstore.simulated.narrow import reads_all
from kvstore.simulated.shown import all_of
from multicast.simulation.endings import LIVENESS_LIMIT_US
from multicast.types import GroupId, ProcessId, new_message_id

STEPS_MAX = 200
"""What may take more is left as it is: simulating it would take long."""
_OF_MOVES = (LEAVING, OLD, GIVEN, DIRTY, DIRTY_ID, STAGED)
"""So begin the keys of notes that are kept until a move is over."""


class Conclusion:
    """Of what was begun some goes on, as drawn from the seed, the rest is given up."""

    def __init__(self, workload: Workload, seed: str):
        self._workload = workload
        self._world = workload.world
        self._rng = random.Random(f"{seed}/concluding")
        self._complete = True

    def judge(self) -> None:
        """Report in the world what does not end, and what is left."""
        shards = [shard for shard in self._workload.cluster.shards if self._up(shard)]
        for source in shards:
            leaving = self._replica(source).moves.leaving
            if leaving is not None and self._rng.random() < 0.5:
                self._repeat(Move(source, leaving.target, leaving.slots))
        for source in shards:
            for target in shards:
                if source != target and self._keeps(source, target):
                    self._repeat(Move(source, target, ()))
        if self._complete and not self._world.violations:
            self._look(shards)

    def _up(self, shard: GroupId) -> list[ProcessId]:
        world = self._world
        return [pid for pid in world.topology.groups[shard] if world.node(pid).up and world.belongs(pid)]

    def _replica(self, shard: GroupId) -> Replica:
        """Whoever of the shard has come furthest."""
        return max([self._workload.cluster.replicas[pid] for pid in self._up(shard)], key=lambda r: r.log.completed)

    def _keeps(self, source: GroupId, target: GroupId) -> bool:
        """Whether they keep something for a move, or for one that was given up."""
        own = self._replica(source).moves.status()
        begun = own["old"] or (own["leaving"] or {}).get("target") == target
        return bool(begun) or source in self._replica(target).moves.status()["staged_from"]

    def _steps(self, move: Move) -> int:
        """So many suffice: each looks at a portion of everything, and leaves one id."""
        replica = self._replica(move.source)
        store, portion = replica.store, replica.moves.portion if reads_all() else 2
        rows = len(all_of(store)) + len(self._replica(move.target).store.notes(b""))
        much = rows + len(store.remembered_after(b"", 10**6)) + len(store.notes(b""))
        return 10 + len(move.slots) + 2 * much // (portion - 1)

    def _repeat(self, move: Move) -> None:
        """Step by step, as long as there is more to do."""
        most = self._steps(move)
        if most > STEPS_MAX:
            self._complete = False
            return
        for _ in range(most):
            answer = self._ask(Transaction(success=(move,)))
            if getattr(answer, "code", "") == "id_expired" and self._time_is_ahead():
                self._complete = False
                return
            if not isinstance(answer, Answered) or answer.result.failure:
                self._world.report("moves", f"a step of {move} is answered {answer}, when all is over")
                return
            if move.slots and not answer.results_omitted and not answer.result.results[0].more:
                self._is_over(move)
                return
            if not move.slots and not self._keeps(move.source, move.target):
                return
        self._world.report("moves", f"{move} has not ended after {most} steps, when all is over")

    def _time_is_ahead(self) -> bool:
        """Whether versions, which have followed wrong clocks, are so far ahead that what is new is too old."""
        cluster, window_us = self._workload.cluster, self._workload.cluster.options.dedup_window_us
        newest = max(store.complete_to.time for store in cluster.stores.values())
        return 0 < window_us < newest - self._world.now

    def _is_over(self, move: Move) -> None:
        """Both shards know that, soon."""

        def kept() -> bool:
            leaving = self._replica(move.source).moves.leaving
            return leaving is not None or move.source in self._replica(move.target).moves.status()["staged_from"]

        self._world.run_while(kept, LIVENESS_LIMIT_US)
        if kept():
            self._world.report("moves", f"{move} is over, and its source or its target does not say so")

    def _ask(self, transaction: Transaction) -> Any:
        world, rng, answers = self._world, self._rng, list[Any]()
        identity = new_message_id(world.now, rng.getrandbits(62))
        replica = rng.choice([pid for pid in world.topology.processes if world.node(pid).up and world.belongs(pid)])

        def answered(answer: Any) -> None:
            if getattr(answer, "retryable", False):
                world.after(TELL_US, ask)
            else:
                answers.append(answer)

        def ask() -> None:
            world.request(replica, Execute(identity, transaction), answered)

        ask()
        world.run_while(lambda: not answers, LIVENESS_LIMIT_US)
        return answers[0] if answers else None

    def _look(self, shards: list[GroupId]) -> None:
        """What no move needs any more is not kept, by those either that come to the last step later than others."""
        stores, processes = self._workload.cluster.stores, [pid for shard in shards for pid in self._up(shard)]

        def kept(pid: ProcessId) -> list[bytes]:
            return [key for key, _ in stores[pid].notes(b"") if key.startswith(_OF_MOVES)]

        self._world.run_while(lambda: any(map(kept, processes)), LIVENESS_LIMIT_US)
        for pid in processes:
            if notes := kept(pid):
                self._world.report("moves", f"process {pid} keeps {notes[:3]} of moves that are over")
