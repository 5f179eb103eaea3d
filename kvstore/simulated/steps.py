"""Steps of moves that are refused: only if the source does not own what is still to be handed over.

Who moves slots is told of a refusal, and gives up: a move that is refused without reason does no other harm.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from kvstore.api.model import Move, move_of
from kvstore.core.audit import APPLIED, FAILED, MoveOutcome
from kvstore.core.signals import NOT_THE_OWNER
from kvstore.simulated.cluster import Executed
from multicast.types import GroupId, Timestamp


class Steps:
    """In the order of their versions. slots_to: of each source's move that is under way, with its target and slots, the
    last slot that was handed over."""

    def __init__(self) -> None:
        self._under_way: dict[GroupId, tuple[GroupId, frozenset[int], int]] = {}

    def judge(self, shard: GroupId, executed: Executed, owner: Mapping[int, GroupId]) -> Iterator[str]:
        """What a shard has executed; the source's part tells all. owner: of each slot, before it."""
        move, outcome = move_of(executed.transaction), executed.outcome
        if move is None or move.source != shard or not isinstance(outcome, MoveOutcome):
            return
        left = self._left(move)
        if outcome.status == FAILED and outcome.reason == NOT_THE_OWNER:
            if all([owner[slot] == shard for slot in left]):
                yield self._unfounded(executed.version, move, len(left))
        elif outcome.status == APPLIED and outcome.given is not None:
            given = outcome.given
            before = min(left, default=0) - 1 if not given.first else -1
            slots_to = given.slots[-1][1] if given.slots else before
            self._under_way[shard] = (move.target, _slots(move), slots_to)
            if given.last:
                del self._under_way[shard]

    def _left(self, move: Move) -> frozenset[int]:
        """Of its slots, those that are still to be handed over."""
        slots = _slots(move)
        target, begun, slots_to = self._under_way.get(move.source, (None, slots, -1))
        left = frozenset([slot for slot in begun if slot > slots_to])
        return left if target == move.target and slots in (begun, left) else slots

    @staticmethod
    def _unfounded(version: Timestamp, move: Move, many: int) -> str:
        return f"the step at {version} of {many} slots is refused, and shard {move.source} owns all of them"


def _slots(move: Move) -> frozenset[int]:
    return frozenset([slot for first, last in move.slots for slot in range(first, last + 1)])
