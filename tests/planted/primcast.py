"""Bugs planted in PrimCast. Lines are those of its Algorithms 1 to 3."""

from __future__ import annotations

from typing import Any

import msgspec

from multicast.protocol import Outbox, Saved
from multicast.protocols.primcast import Accept, Ack, PrimCast
from multicast.simulation.runner import Settings
from tests.planted import Planted
from tests.planted.rewriting import rewrite

SPARSE = Settings(
    profile="faults",
    groups=4,
    replicas=3,
    messages=8,
    options={"clock": "logical", "election_timeout_us": "100000", "heartbeat_us": "50000"},
)
"""Few messages and many elections: what blocks one message shows only if no later one frees it."""
ALONE = Settings(
    profile="faults",
    groups=1,
    replicas=3,
    options={"clock": "logical", "election_timeout_us": "100000", "heartbeat_us": "50000"},
)
"""All faults meet the same three processes."""
FORGETFUL = Settings(profile="faults", options={"clock": "hybrid", "dedup_window_us": "1000000"})
"""Ids are forgotten after two seconds: late copies come in time to be ordered again."""


class PrintedLine42(PrimCast):
    """Line 42 as printed: a process that is PROMISED, though it has joined the epoch, ignores its primary's ACKs."""

    def _append_proposals(self, now: int, out: Outbox) -> None:
        if self.election.takes_part:
            super()._append_proposals(now, out)
            return
        while (proposal := self.t.next()) is not None:
            self._extend(self.t.length + 1, proposal.ts)


@rewrite("end_batch", "self.clock.value > self._told_clock", "self.clock.value > max(self._told_clock, self.quiet)")
@rewrite(
    "end_batch",
    "self._told_clock = self.clock.value",
    "self._told_clock = self.clock.value if self.clock.value > self.quiet else self._told_clock",
)
class PrintedLine73(PrimCast):
    """Line 73 as printed: the clock that a new epoch begins with is not announced."""

    quiet = 0

    def accepted(self, out: Outbox) -> Accept:
        told = self._told_clock
        accept = super().accepted(out)
        accept.clock = self._told_clock = told
        self.quiet = self.clock.value
        return accept

    def adopt(self, state: Any, now: int, out: Outbox) -> None:
        super().adopt(state, now, out)
        self.clocks.leader_clock = max((entry.ts for entry in self.t.states()), default=0)

    def _ack(self, stamps: list[Any], again: bool = False) -> Ack:
        ack = super()._ack(stamps, again)
        ack.clock = max(ack.clock, *(stamp.ts for stamp in stamps)) if stamps else ack.clock
        return ack


class AcknowledgedWithoutPayload(PrimCast):
    """A process acknowledges what it holds no payload of, and takes it for appended."""

    def _append_proposals(self, now: int, out: Outbox) -> None:
        while (proposal := self.t.next()) is not None:
            entry = self.entries.get(proposal.id)
            if entry is not None and entry.message is None and entry.epoch is None:
                self._extend(proposal.place + 1, proposal.ts)
                clock, length = proposal.ts, self.t.length
                ack = Ack(self.election.promised, clock, length, self.log.position, [proposal])
                out.send_durable(self.election.members, ack)
                continue
            before = self.t.length
            super()._append_proposals(now, out)
            if self.t.length == before:
                return


@rewrite(
    "end_batch",
    "out.send_durable(self.topology.members(groups), self._ack(stamps))",
    "out.send(self.topology.members(groups), self._ack(stamps))",
)
@rewrite("end_batch", "out.send_durable((peer,), self._ack(stamps))", "out.send((peer,), self._ack(stamps))")
@rewrite("_retry", "out.send_durable(to, self._ack(some, again=True))", "out.send(to, self._ack(some, again=True))")
class AcknowledgedBeforeSync(PrimCast):
    """An ACK leaves before what it vouches for is on disk."""


@rewrite("_deliver_ready", "horizon = self.clocks.horizon", "horizon = self.clocks.leader_clock")
class WithoutQuorumClock(PrimCast):
    """Line 29 left out: a later primary may stamp below what was delivered. (Random runs rarely find it: the clocks of
    the others must be low when the primary dies. See the staged schedule in tests/multicast.)"""


@rewrite("_deliver_ready", "horizon = self.clocks.horizon", "horizon = self.clocks.quorum_clock")
class WithoutLeaderClock(PrimCast):
    """Line 28 left out: this primary may stamp below what was delivered."""


@rewrite("choose", "key=lambda vote: (vote.joined, vote.length)", "key=lambda vote: vote.length")
class LongestOfAnyEpoch(PrimCast):
    """Line 66 left out: the longest T wins, whatever its epoch."""


@rewrite("choose", "(vote.joined, vote.length)", "(vote.joined, -vote.length)")
class ShortestState(PrimCast):
    """Line 67 turned round."""


@rewrite(
    "acknowledge", "(group, stamp.epoch, stamp.ts)", "(group, Ballot(0, 0), 0)", part="t.entries", after="_take_start"
)
@rewrite(
    "put", "(self.group, stamp.epoch, stamp.ts)", "(self.group, Ballot(0, 0), 0)", part="t.entries", after="_take_start"
)
class EpochsMixed(PrimCast):
    """Line 10 without "one epoch": acknowledgements of a stamp in different epochs count together, and it is the first
    that counts."""


@rewrite("advance", "if to > self.value:", "if False:", part="clock")
class ClockNotRaised(PrimCast):
    """Lines 44 and 49 left out: clocks count only what their own process has stamped."""


@rewrite("report", "if length <= self.length:", "if True:", part="clocks")
class LengthIgnored(PrimCast):
    """A primary's clock counts though a part of its T was lost on the way."""


@rewrite("keep", "out.put(_BALLOTS_KEY, _encode((self.election.promised, self.joined)))", "pass", part="leadership")
class PromisesNotSaved(PrimCast):
    """A promise is given, and forgotten at a crash."""


@rewrite(
    "_save",
    "out.put(_ENTRY_PREFIX + entry.id, _encode(state := entry.state()), carries=(state.message,))",
    "pass",
    part="t",
)
class EntriesNotSaved(PrimCast):
    """T is only in memory."""


@rewrite("_deliver_ready", "or self.log.position < self.t.reach", "")
class ReachIgnored(PrimCast):
    """A process delivers on its own though its T lacks what others have settled."""


@rewrite("limit", "created_us(message_id) + self.us if self.us else NEVER - 1", "1 << 62", part="window")
class CopiesMixed(PrimCast):
    """Stamps of a forgotten copy of a message and of a late one make one final timestamp (deviation 9)."""


class AmnesiacVotes(PrimCast):
    """A lost disk is taken for a new one: the process promises and acknowledges at once (deviation 12)."""

    def on_start(self, saved: Saved, now: int, out: Outbox) -> None:
        super().on_start(msgspec.structs.replace(saved, lost=False, first=saved.first or saved.lost), now, out)


@rewrite("begin", "self.reach = max(self.reach, reach)", "pass", part="t")
@rewrite("choose", "reach = max(vote.reach for vote in votes.values())", "reach = 0")
@rewrite(
    "_return_if_caught_up", "or self._deliveries.position < max(state.reach, self.election.rejoin.reach)", "",
    part="leadership",
)
class AmnesiacBehind(PrimCast):
    """Who lost its disk joins without the history that the new state leaves out, and delivers on its own."""


PLANTED = (
    Planted(PrintedLine42, shows="line 42"),
    Planted(PrintedLine73, SPARSE, shows="line 73"),
    Planted(AcknowledgedWithoutPayload),
    Planted(AcknowledgedBeforeSync),
    Planted(WithoutLeaderClock, shows="line 28"),
    Planted(LongestOfAnyEpoch, shows="line 66"),
    Planted(ShortestState, shows="line 67"),
    Planted(EpochsMixed, shows="line 10"),
    Planted(ClockNotRaised, shows="lines 44 and 49"),
    Planted(LengthIgnored),
    Planted(PromisesNotSaved),
    Planted(EntriesNotSaved),
    Planted(ReachIgnored),
    Planted(AmnesiacVotes, ALONE),
    Planted(AmnesiacBehind),
    Planted(CopiesMixed, FORGETFUL),
)
