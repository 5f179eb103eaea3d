"""When a member may drop what its group's log has decided: once it has applied it, durably, and nobody needs it.

Members tell one another, durably and not more often than once in a period, up to where each has applied the log
(`Applied`). An instance is dropped by a member that has applied it when all have, or when a quorum has and the others
lack more than `_KEPT` instances: they are given a state instead (parts.transfer).

    message    from -> to            durable before it leaves
    Applied    member -> members     the state after that instance
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from multicast.parts.deadlines import Deadlines
from multicast.protocol import Outbox
from multicast.types import ProcessId, Timestamp, reached_by_majority

_KEPT = 64


class Applied(msgspec.Struct, array_like=True, tag=5, gc=False):
    """I have durably applied the log up to this instance, and delivered up to this timestamp."""

    instance: int
    delivered: Timestamp


class Truncation:
    """At one member. kept: who lacks no more instances than this is not left behind. deadlines: the user's; this part
    adds a timer, "applied". applied(): what there is to tell; None if this process must not vouch for anything."""

    def __init__(
        self,
        self_id: ProcessId,
        members: tuple[ProcessId, ...],
        period_us: int,
        deadlines: Deadlines,
        applied: Callable[[], Applied | None],
    ):
        self.kept = _KEPT
        self._self_id = self_id
        self._members = members
        self._period_us = period_us
        self._deadlines = deadlines
        self._applied = applied
        self._reached: dict[ProcessId, int] = dict.fromkeys(members, 0)
        self._told = 0
        deadlines.add("applied", self._tell_if_new)

    def tell_later(self, now: int, again: bool = False) -> None:
        """There is more to tell. again: somebody may have missed what was told."""
        if again:
            self._told = 0
        self._deadlines.by("applied", now + self._period_us)

    def _tell_if_new(self, now: int, out: Outbox) -> None:
        applied = self._applied()
        if applied is not None and applied.instance > self._told:
            self.tell(out)

    def tell(self, out: Outbox) -> None:
        applied = self._applied()
        if applied is not None:
            self._told = applied.instance
            out.send_durable(self._members, applied)

    def heard(self, sender: ProcessId, applied: Applied, instance: int) -> int:
        """A member has told; this one has applied up to `instance`. Returns up to where instances may be dropped
        now."""
        reached = self._reached
        reached[sender] = max(reached[sender], applied.instance)
        quorum = reached_by_majority(reached.values())
        spare = max(min(reached.values()), instance - self.kept)
        return min(quorum, spare, reached[self._self_id])
