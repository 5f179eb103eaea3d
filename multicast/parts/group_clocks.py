"""What a process may conclude from the clocks that the members of its group tell (PrimCast, Algorithm 1, lines 15-18).

`leader_clock` is `min-clock` of the leader of the current epoch: it proposes nothing at or below it any more.
`quorum_clock` is what f + 1 clocks have reached: a later leader begins with the greatest clock of a quorum, so at or
above it. Reports made in an epoch count once the process has joined that epoch.

The paper's channels lose nothing; ours may be reset. So a report tells the length of the teller's sequence of
proposals, too, and a leader's clock counts once the own sequence has that length.

A member that lost its disk has forgotten what its clock was, and returns with a lower one, perhaps: what it told before
must not be counted together with what others tell afterwards (`forget`, when it asks its way back: links are FIFO, so
nothing older comes after that). `quorum_clock` itself stays: a quorum had reached it, and the epoch with which the
member returns begins with a quorum of those who remember, so above it.
"""

from __future__ import annotations

from multicast.membership import Views
from multicast.types import Ballot, ProcessId, reached_by_majority

_FUTURE_MAX = 16


class GroupClocks:
    """At one process. views: of its group. epoch: the current one. length: of its own sequence of proposals. Every
    operation costs O(1), one that raises `quorum_clock` O(n log n) for n members."""

    __slots__ = ("_clocks", "_future", "_report", "_views", "epoch", "leader_clock", "length", "quorum_clock")

    def __init__(self, views: Views, epoch: Ballot):
        self.epoch = epoch
        self.length = 0
        self.leader_clock = 0
        self.quorum_clock = 0
        self._report = (0, 0)
        self._views = views
        self._clocks: dict[ProcessId, int] = dict.fromkeys(views.of[epoch.view], 0)
        self._future: dict[ProcessId, list[tuple[Ballot, int, int]]] = {}

    @property
    def horizon(self) -> int:
        """Lines 28 and 29: no message will be proposed with a stamp up to here any more."""
        return min(self.leader_clock, self.quorum_clock)

    def report(self, sender: ProcessId, epoch: Ballot, clock: int, length: int) -> None:
        """Line 51: a member, promised to `epoch`, has this clock; its sequence has this length."""
        if epoch > self.epoch:
            later = self._future.setdefault(sender, [])
            later.append((epoch, clock, length))
            if len(later) > 1 and later[-2][0] == epoch:
                del later[-2]
            del later[:-_FUTURE_MAX]
            return
        if epoch == self.epoch and sender == epoch.leader:
            if length <= self.length:
                self.leader_clock = max(self.leader_clock, clock)
            elif clock > self._report[0]:
                self._report = (clock, length)
        known = self._clocks.get(sender)
        if known is not None and clock > known:
            self._clocks[sender] = clock
            if clock > self.quorum_clock:
                self._reckon()

    def _reckon(self) -> None:
        self.quorum_clock = max(self.quorum_clock, reached_by_majority(self._clocks.values()))

    def extend(self, length: int, clock: int) -> None:
        """The own sequence has this length, and everything that the leader proposed up to `clock`."""
        self.length = max(self.length, length)
        self.leader_clock = max(self.leader_clock, clock)
        if self._report[1] <= self.length:
            self.leader_clock = max(self.leader_clock, self._report[0])

    def begin(self, epoch: Ballot, length: int, leader_clock: int) -> None:
        """The process joins this epoch: what was told in it, by the members of its view, counts from now on."""
        self.epoch, self.length = epoch, length
        self._clocks = {p: self._clocks.get(p, 0) for p in self._views.of[epoch.view]}
        self._reckon()  # without those who are removed it may be higher, and no clock need rise any more
        self.leader_clock, self._report = leader_clock, (0, 0)
        future, self._future = self._future, {}
        for process, later in future.items():
            for of, clock, told_length in later:
                self.report(process, of, clock, told_length)

    def forget(self, member: ProcessId) -> None:
        """This member lost its disk."""
        if member in self._clocks:
            self._clocks[member] = 0
        self._future.pop(member, None)
