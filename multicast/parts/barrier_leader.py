"""What the leader of a group with barriers knows in its ballot; it goes with that, and the next one begins anew.

Casts. A leader proposes each sender's casts in their order, each after the one that it proposed last, or that the log
has come to, if that is further: with what an earlier leader proposed, and this one again. A gap is left to the sender,
who repeats. The log takes casts in the order of stamps, so those of one sender never get lower ones, wherever the
leader's clock goes: the log would drop what comes too early, and the leader wait for what follows that.

Nulls. Who wants a barrier that the log has not reached, nor any null that was proposed, makes the leader propose a null
message with its stamp. It has no contents but that; so those of all who want it are one, and once the log has come so
far, nothing needs deciding.

Waiting (quasi-genuine draft, Sections 3.2 and 3.3). With w > 0 a value is proposed when the clock has passed its stamp
plus w, in the order of stamps: if no message takes longer than that, and no clock is off, everything with a lower stamp
is here by then, and no stamp changes. The log may be ahead of the clock, if that was once; what has a lower stamp gets
another one then in any case, and a null of the time of the log's last stamp does not wait.

Announcements (Section 3.4). What an instance will mean depends on those before it. The leader tells it with the
proposal, from the log as it will be by then (`ahead`), as long as it has proposed all that is under way itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush

import msgspec

from multicast.parts.barriers import NEVER, Stamp, Wants
from multicast.parts.stream import Base, Cast, Null, Sent, Stream
from multicast.types import GroupId, ProcessId

_Due = tuple[Stamp, int, ProcessId, int, int, bytes]
"""A value that waits to be proposed, in the order of stamps, and of the casts that share one."""

_CAST, _NULL = 0, 1

_NONE = (0, 0)
"""(life, number) of who has cast nothing."""

_encode = msgspec.msgpack.Encoder().encode


class BarrierLeader:
    """At the leader of a group, for one ballot.

    wait_us: w, 0 for none. ahead_max_us: how far a stamp may be ahead of the leader's clock. propose(value): have the
    consensus decide it. announces: with Section 3.4. wanted: which groups wait for the own group's barrier. told: group
    -> the time of the last barrier that it was told.
    """

    def __init__(
        self, stream: Stream, wait_us: int, ahead_max_us: int, propose: Callable[[bytes], None], announces: bool
    ):
        self.wanted = Wants()
        self.told: dict[GroupId, int] = {}
        self._numbers: dict[GroupId, int] = {}
        self._stream = stream
        self._wait_us = wait_us
        self._ahead_max_us = ahead_max_us
        self._to_consensus = propose
        self._expected: dict[ProcessId, tuple[int, int]] = {}
        self._rtc: dict[ProcessId, int] = {}
        self._null = NEVER
        self._due: list[_Due] = []
        self._due_nulls: set[Stamp] = set()
        self._ahead: Base | None = stream.base.copy() if announces else None
        self._announced: deque[tuple[int, list[bytes]]] = deque()

    # -- proposals ----------------------------------------------------------------------------------------------------

    def take_cast(self, cast: Cast, real_clock: int) -> None:
        """Lines 9-10."""
        sender, casts = cast.sender, self._stream.base.casts
        if self._stream.follows(max(self._expected.get(sender, _NONE), casts.get(sender, _NONE)), cast):
            self._expected[sender] = (cast.life, cast.number)
            most = max(real_clock + self._ahead_max_us, self._rtc.get(sender, 0))
            rtc = self._rtc[sender] = min(cast.rtc, most) if real_clock else cast.rtc
            value = _encode(Cast(sender, cast.life, cast.number, rtc, cast.message))
            self._propose(((rtc, 0), _CAST, sender, cast.life, cast.number, value))

    def want(self, group: GroupId, stamp: Stamp) -> None:
        """Lines 15-20: a group waits for the barrier to reach this stamp."""
        self.wanted.add(group, stamp)
        if stamp > max(self._stream.base.last, self._null) and stamp not in self._due_nulls:
            if self._wait_us:
                self._due_nulls.add(stamp)
            else:
                self._null = stamp
            self._propose((stamp, _NULL, 0, 0, 0, _encode(Null(stamp))))

    def break_silence(self, real_clock: int, threshold_us: int) -> int:
        """Algorithm 2, lines 6-11: whoever was told no barrier for a while wants one. Returns after how many
        microseconds to look again. A null is never older than one threshold: after a pause one suffices."""
        wait = threshold_us
        for group, told in list(self.told.items()):
            if group == self._stream.group:
                told = max(told, self._stream.base.last[0])
            if group in self.wanted:
                continue
            if real_clock - told >= threshold_us:
                self.want(group, (max(told + threshold_us, real_clock - threshold_us), 0))
            else:
                wait = min(wait, told + threshold_us - real_clock)
        return wait

    def answers(self, group: GroupId) -> bool:
        """Whether the present barrier is what this group has waited for; it is then to be told."""
        waited = self.wanted.drop(group, self._stream.base.last)
        if waited:
            self.tells(group, self._stream.base.last)
        return waited

    def tells(self, group: GroupId, barrier: Stamp) -> None:
        """This group is being told this barrier."""
        self.wanted.drop(group, barrier)
        self.told[group] = max(self.told.get(group, 0), barrier[0])

    def overdue(self, group: GroupId) -> bool:
        """To be asked once in a period. Returns whether a quorum of this group still lacks something that was decided
        for it before the last time this was asked."""
        overdue = self._stream.quorum_has(group) < self._numbers.get(group, 0)
        self._numbers[group] = self._stream.number(group)
        return overdue

    def _propose(self, due: _Due) -> None:
        """Line 25; with w, later, as a cast with a lower stamp may still be on its way."""
        if self._wait_us:
            heappush(self._due, due)
        else:
            self._to_consensus(due[-1])

    @property
    def due_at(self) -> int | None:
        """The instant from which on the clock lets the first waiting value be proposed."""
        return self._due[0][0][0] + self._wait_us if self._due else None

    def propose_due(self, real_clock: int) -> None:
        """Propose the values for which the clock has gone far enough; all of them if the clock is not known, or a value
        is further ahead of it than may be."""
        due = self._due
        while due and self._may_go(due[0], real_clock):
            stamp, kind, *_, value = heappop(due)
            if kind == _NULL:
                self._due_nulls.discard(stamp)
                self._null = max(self._null, stamp)
            self._to_consensus(value)

    def _may_go(self, due: _Due, real_clock: int) -> bool:
        (time, _), kind, *_ = due
        waits_us = time + self._wait_us - real_clock
        if not real_clock or waits_us <= 0 or waits_us > self._wait_us + self._ahead_max_us:
            return True
        return kind == _NULL and time <= self._stream.base.last[0]

    # -- announcements ------------------------------------------------------------------------------------------------

    def announce(self, instance: int, values: list[bytes]) -> tuple[Base, Sent, dict[GroupId, Stamp]] | None:
        """This was just proposed: the log after it, and what it means, as `Stream.apply`. None if that is not known,
        because somebody else's proposals are under way."""
        base = self._ahead
        if base is None or base.instance + 1 != instance:
            self._ahead = None
            return None
        self._announced.append((instance, values))
        base.instance = instance
        return (base, *self._stream.apply(base, values))

    def was_announced(self, instance: int, values: list[bytes]) -> bool:
        """Whether this decision is what this leader announced. Once it is not, a higher ballot has begun."""
        announced = self._announced
        while announced and announced[0][0] < instance:
            announced.popleft()
        same = self._ahead is not None and bool(announced) and announced.popleft() == (instance, values)
        if not same:
            self._ahead = None
        return same
