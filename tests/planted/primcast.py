"""Bugs planted in PrimCast. Lines are those of its Algorithms 1 to 3."""

from __future__ import annotations

from typing import Any

import msgspec

from multicast.protocol import Outbox, Saved
from multicast.protocols.primcast import PROMISED, Ack, PrimCast
from multicast.simulation.runner import Settings
from multicast.types import Ballot, GroupId, MessageId, ProcessId
from tests.planted import Planted

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
        if self.status is not PROMISED:
            super()._append_proposals(now, out)
            return
        while (vote := self._proposals.pop(self.length, None)) is not None:
            self._extend(self.length + 1, vote.ts)


class PrintedLine73(PrimCast):
    """Line 73 as printed: the clock that a new epoch begins with is not announced."""

    quiet = 0

    def _send_accept(self, out: Outbox) -> None:
        told = self._told_clock
        super()._send_accept(out)
        _, accept, _ = out.sends[-1]
        accept.clock = self._told_clock = told
        self.quiet = self.clock.value

    def _on_new_state(self, sender: ProcessId, state: Any, now: int, out: Outbox) -> None:
        before = self.joined
        super()._on_new_state(sender, state, now, out)
        if self.joined != before:
            self.clocks.leader_clock = max((entry.ts for entry in self._t.values()), default=0)

    def _must_tell_clock(self) -> bool:
        return self.clock.value > max(self.quiet, self._told_clock)

    def _tell_clock(self) -> None:
        if self.clock.value > self.quiet:
            super()._tell_clock()

    def _ack(self, votes: list[Any], again: bool = False) -> Ack:
        ack = super()._ack(votes, again)
        ack.clock = max(ack.clock, *(vote.ts for vote in votes)) if votes else ack.clock
        return ack


class AcknowledgedWithoutPayload(PrimCast):
    """A process acknowledges what it holds no payload of, and takes it for appended."""

    def _append_proposals(self, now: int, out: Outbox) -> None:
        while (vote := self._proposals.get(self.length)) is not None:
            entry = self.entries.get(vote.id)
            if entry is not None and entry.message is None and entry.epoch is None:
                del self._proposals[vote.place]
                self._extend(vote.place + 1, vote.ts)
                group = self.topology.groups[self.group]
                out.send_durable(group, Ack(self.promised, vote.ts, self.length, self.log.position, [vote]))
                continue
            before = self.length
            super()._append_proposals(now, out)
            if self.length == before:
                return


class AcknowledgedBeforeSync(PrimCast):
    """An ACK leaves before what it vouches for is on disk."""

    def _send_acks(self, to: tuple[ProcessId, ...], ack: Ack, out: Outbox) -> None:
        out.send(to, ack)


class WithoutQuorumClock(PrimCast):
    """Line 29 left out: a later primary may stamp below what was delivered. (Random runs rarely find it: the clocks of
    the others must be low when the primary dies. See the staged schedule in tests/multicast.)"""

    def _horizon(self) -> int:
        return self.clocks.leader_clock


class WithoutLeaderClock(PrimCast):
    """Line 28 left out: this primary may stamp below what was delivered."""

    def _horizon(self) -> int:
        return self.clocks.quorum_clock


class LongestOfAnyEpoch(PrimCast):
    """Line 66 left out: the longest T wins, whatever its epoch."""

    def _choose(self, votes: dict[ProcessId, Any]) -> Any:
        return max(votes.values(), key=lambda vote: vote.length)


class ShortestState(PrimCast):
    """Line 67 turned round."""

    def _choose(self, votes: dict[ProcessId, Any]) -> Any:
        latest = max(vote.joined for vote in votes.values())
        return min((vote for vote in votes.values() if vote.joined == latest), key=lambda vote: vote.length)


class EpochsMixed(PrimCast):
    """Line 10 without "one epoch": acknowledgements of a stamp in different epochs count together, and it is the first
    that counts."""

    def _ack_key(self, group: GroupId, epoch: Ballot, ts: int) -> tuple[GroupId, Ballot, int]:
        return group, Ballot(0, 0), 0


class ClockNotRaised(PrimCast):
    """Lines 44 and 49 left out: clocks count only what their own process has stamped."""

    def _advance_clock(self, to: int) -> None:
        pass


class LengthIgnored(PrimCast):
    """A primary's clock counts though a part of its T was lost on the way."""

    def _on_report(self, sender: ProcessId, epoch: Ballot, clock: int, length: int) -> None:
        super()._on_report(sender, epoch, clock, 0)


class PromisesNotSaved(PrimCast):
    """A promise is given, and forgotten at a crash."""

    def _save_epochs(self, out: Outbox) -> None:
        pass


class EntriesNotSaved(PrimCast):
    """T is only in memory."""

    def _save_entry(self, entry: Any, out: Outbox) -> None:
        pass


class ReachIgnored(PrimCast):
    """A process delivers on its own though its T lacks what others have settled."""

    def _deliver_ready(self, now: int, out: Outbox) -> None:
        reach, self.reach = self.reach, 0
        super()._deliver_ready(now, out)
        self.reach = reach


class CopiesMixed(PrimCast):
    """Stamps of a forgotten copy of a message and of a late one make one final timestamp (deviation 9)."""

    def _limit(self, message_id: MessageId) -> int:
        return 1 << 62


class AmnesiacVotes(PrimCast):
    """A lost disk is taken for a new one: the process promises and acknowledges at once (deviation 12)."""

    def on_start(self, saved: Saved, now: int, out: Outbox) -> None:
        super().on_start(msgspec.structs.replace(saved, lost=False, first=saved.first or saved.lost), now, out)


class AmnesiacBehind(PrimCast):
    """Who lost its disk joins without the history that the new state leaves out, and delivers on its own."""

    def _join(self, state: Any, now: int, out: Outbox) -> None:
        state.reach = 0
        super()._join(state, now, out)

    def _rejoin_if_caught_up(self, now: int, out: Outbox) -> None:
        if self._held_state is not None:
            self.rejoin.reach = self._held_state.reach = 0
        super()._rejoin_if_caught_up(now, out)


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
