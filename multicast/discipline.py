"""How far a process believes its own wall clock. Pure: part of the host's side, alike in the simulator and live.

Theory of operation. A process has two readings. `now`, by which all timers go, is *steady*: it begins a life at what
the wall clock shows, runs at real rate, and never jumps. The wall clock is read beside it, and only stamps of the
hybrid clock (and identifiers of messages) want it; it may be wrong, and may jump. Processes ask each other what their
wall clocks show (`ClockProbe`, `ClockReading`): an answer says that the peer's clock was between `wall - t4` and `wall
- t1` ahead of the own steady one; t1 and t4 are when the probe left and the answer came (Marzullo and Owicki 1983;
NTP, RFC 5905, Section 8). Each answer narrows what was known; one that contradicts it replaces it: that clock has been
set. The middle is the peer's *vote*. It stays one for as long as this process runs without a lapse, also while the
peer is away: steady clocks of two machines drift by less than a millisecond in ten seconds.

*Agreed time.* Of n processes f = (n - 1) // 2, the largest minority, may have wrong clocks. Once h > n / 2 votes are
there, the own one among them, the agreed time is the vote of rank min(h - f, ceil(h / 2)) from below. Rank h - f or
lower: among the f + 1 votes from it upwards is one of a right clock, so *the agreed time is never ahead of every right
clock*, whoever was heard (the plain median of 3 votes of 5 may be a wrong one). From h = 2f + 1 votes on it is the
lower median, and neither behind all right ones. All processes count, not the own group's: links join all to all, and
so many clocks are harder to spoil than three. Of two which disagree the earlier one is believed: a stamp that is too
low harms nobody (it becomes "the last one + 1"), one that is too high pushes everybody's clocks.

*Stamps* take the own wall clock while it is within `skew_us_max` of the agreed time, the agreed time otherwise, and
nothing as long as there is none, as after a restart, until a majority has answered, which takes one round trip: then
each is the one before it + 1. A process that was stopped for several periods begins anew, too: what it had heard may
have changed. One that was only cut off goes on with the votes it has.

Why no minority moves time. A stamp is max(clock + 1, what it takes), and a clock is only ever raised by a stamp (its
own or, as Lamport's rule demands, one that it hears). What any stamp takes is at most `skew_us_max` ahead of a right
clock, and half a round trip, of at most `skew_us_max`, for the error of a vote. So, by induction over the stamps in
the order in which they are made, whoever made them and whoever heard of them: each is at most that far ahead of the
right clocks, plus one microsecond for each stamp there is. Final timestamps are stamps. Whether a message is expired
follows from its final timestamp and its identifier alone, so a fresh one cannot be made to expire by a minority;
nothing persists after a clock is right again, since nothing was raised. What counts is what a process has heard last:
two minorities that are wrong one after the other, so soon that it has not heard of the first ones' return, are wrong
together. If a majority is wrong, time is what it shows, and stays above what it has once been: order never depended on
it.

*Leading.* A process whose clock is off is not prevented from anything that it needs to do, since its stamps are right;
but what is known to be broken should not lead. So it says so (`off`): a leader asks in its heartbeats to be relieved,
followers whose clocks are right then campaign at once, others only if nobody has led for several time-outs. It
goes on leading until somebody else does: a shard whose clocks are all off, or whose others are away, keeps working.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from multicast.types import ProcessId, quorum_of

_LAPSE_PERIODS = 3
"""A process that ran nothing for so many periods was stopped."""
_NOTICED_US = 1_000
"""A change of the own wall clock by less does not begin a new comparison."""


class Discipline:
    """One life of a process.

    skew_us_max: how far the own clock may be off and be believed. period_us: between two probes of a peer.
    correction: what to add to `now` for a stamp; None: no time is agreed on. off: the own clock is not believed.
    """

    def __init__(self, self_id: ProcessId, processes: Sequence[ProcessId], skew_us_max: int, period_us: int):
        self.skew_us_max = skew_us_max
        self.period_us = period_us
        self.correction: int | None = None
        self.off = False
        self._self_id = self_id
        self._known: dict[ProcessId, tuple[int, int]] = {}
        self._follow(processes)
        self._asked: dict[ProcessId, int] = {}
        self._again: set[ProcessId] = set()
        self._own = self._compared = 0
        self._agreed: int | None = None
        self._dirty = True
        self._read_at: int | None = None
        self._probe_at = 0

    def follow(self, processes: Sequence[ProcessId]) -> None:
        """These are the processes now; there may be new ones."""
        if processes is not self._processes:
            self._follow(processes)

    def _follow(self, processes: Sequence[ProcessId]) -> None:
        self._processes = processes
        self._peers = tuple(p for p in processes if p != self._self_id)
        self._wrong_max = (len(processes) - 1) // 2
        self._needed = quorum_of(len(processes))
        self._known = {p: known for p, known in self._known.items() if p in self._peers}
        self._dirty = True

    def read(self, now: int, ahead_us: int) -> None:
        """At the begin of every batch: the own wall clock is so far ahead of `now`."""
        if self._read_at is not None and now - self._read_at > _LAPSE_PERIODS * self.period_us:
            self._known.clear()
            self._dirty = True
        if abs(ahead_us - self._own) > self.skew_us_max:
            self._probe_at = now
        self._read_at, self._own = now, ahead_us
        self._decide()

    def probe(self, now: int) -> tuple[ProcessId, ...]:
        """The processes to which to send a ClockProbe with this `now`: every period those that owe no answer, and as
        long as no time is agreed on those whose answer may be lost."""
        due = now >= self._probe_at
        if not due and not self._again:
            return ()
        if due:
            self._probe_at = now + self.period_us
        asked = tuple(p for p in self._peers if p not in self._asked and (due or p in self._again))
        self._again.clear()
        self._asked.update(dict.fromkeys(asked, now))
        return asked

    @property
    def wake_at(self) -> int | None:
        """When `probe` has something to do."""
        if not self._peers:
            return None
        return 0 if self._again else self._probe_at

    def on_reading(self, peer: ProcessId, sent: int, wall: int, now: int) -> bool:
        """A peer's answer to the probe that was sent at `sent`. Returns whether it counts: one that took too long says
        too little, and the peer is asked again."""
        if self._asked.get(peer) != sent:
            return False
        del self._asked[peer]
        if not 0 <= now - sent <= self.skew_us_max:
            self._probe_at = now
            return False
        low, high = wall - now, wall - sent
        before = self._known.get(peer)
        if before is not None and max(low, before[0]) <= min(high, before[1]):
            low, high = max(low, before[0]), min(high, before[1])
        self._known[peer] = (low, high)
        self._dirty = True
        self._decide()
        return True

    def on_peer_reset(self, peer: ProcessId) -> None:
        """A probe to this peer, or its answer, may be lost: so are those that leave when a life begins, as links begin
        then, too."""
        if self._asked.pop(peer, None) is not None and self._agreed is None:
            self._again.add(peer)

    def _decide(self) -> None:
        if self._dirty or abs(self._own - self._compared) > _NOTICED_US:
            self._dirty, self._compared = False, self._own
            self._agreed = self._agree()
        if self._agreed is None:
            self.correction, self.off = None, False
            return
        limit = self.skew_us_max // 2 if self.off else self.skew_us_max  # at the limit it does not go to and fro
        self.off = abs(self._own - self._agreed) > limit
        self.correction = self._agreed if self.off else self._own

    def _votes(self) -> list[int]:
        """How far each clock is ahead of `now`, from below."""
        return sorted([self._own, *((low + high) // 2 for low, high in self._known.values())])

    def _agree(self) -> int | None:
        """How far the agreed time is ahead of `now`; None: none is agreed on."""
        votes = self._votes()
        if len(votes) < self._needed:
            return None
        return votes[min(len(votes) - self._wrong_max, (len(votes) + 1) // 2) - 1]

    def status(self) -> dict[str, Any]:
        """JSON-ready. ahead_us: how far the own wall clock is ahead of the agreed time; None: none is agreed on. heard:
        how many votes of others there are."""
        ahead = None if self._agreed is None else self._own - self._agreed
        return {"off": self.off, "ahead_us": ahead, "heard": len(self._known)}
