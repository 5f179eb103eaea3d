"""Bugs planted in White-Box. Lines are those of its Fig. 4."""

from __future__ import annotations

from typing import Any

from multicast.protocol import Outbox
from multicast.protocols.white_box import WhiteBox
from multicast.types import Ballot, ProcessId
from tests.planted import Planted


def _swap_lanes(out: Outbox) -> None:
    out.sends[:] = [(to, message, not durable) for to, message, durable in out.sends]


class ClockNotAdvanced(WhiteBox):
    """Line 14 left out: a leader stamps later messages below what its group has agreed on."""

    def _advance_clock(self, to: int) -> None:
        pass


class VectorsMixed(WhiteBox):
    """Line 17 without "matching": acknowledgements of different ballot vectors count together."""

    def _ack_key(self, vector: Any) -> Any:
        return None


class SlowOwnDeliver(WhiteBox):
    """No bug: a leader's own DELIVER takes as long as anybody's, so it may be deposed before it arrives."""

    def _send_deliver(self, entry: Any, position: int, out: Outbox) -> None:
        before = len(out.sends)
        super()._send_deliver(entry, position, out)
        ((to, deliver, _),) = out.sends[before:]
        others = tuple(p for p in to if p != self.self_id)
        out.sends[before:] = [(others, deliver, False), ((self.self_id,), deliver, True)]


class DeliveredKept(SlowOwnDeliver):
    """Line 44 as printed: `Delivered` survives a leader change. (With a DELIVER that comes back at once, as ours does,
    whatever was sent is also delivered, and the bug cannot show.)"""

    def _reset_delivered(self, entry: Any) -> None:
        entry.acks.clear()


class AcknowledgedBeforeSync(WhiteBox):
    """An ACCEPT_ACK leaves before what it vouches for is on disk."""

    def _send_acknowledgement(self, leaders: tuple[ProcessId, ...], message: Any, out: Outbox) -> None:
        out.send(leaders, message)


class LanesSwapped(WhiteBox):
    """What should wait for the disk does not, and the other way round."""

    def end_batch(self, now: int, out: Outbox) -> None:
        super().end_batch(now, out)
        _swap_lanes(out)


class EveryBallotCounts(WhiteBox):
    """Line 45 left out: ACCEPTED states of lower ballots contribute too."""

    def _on_new_leader_ack(self, sender: ProcessId, ack: Any, now: int, out: Outbox) -> None:
        ack.joined = Ballot(0, 0)
        super()._on_new_leader_ack(sender, ack, now, out)


class BallotsNotSaved(WhiteBox):
    """A promise is given, and forgotten at a crash."""

    def _save_ballots(self, out: Outbox) -> None:
        pass


class EntriesNotSaved(WhiteBox):
    """Acceptances are only in memory."""

    def _save_entry(self, entry: Any, out: Outbox) -> None:
        pass


class RemoteVoteEnough(WhiteBox):
    """Line 17 without quorums: the leader's own acknowledgement is enough for its group and for all others."""

    def _is_committed(self, entry: Any, vector: Any, acknowledged: set[ProcessId]) -> bool:
        held = [entry.accepts.get(g) for g in entry.message.destinations]
        return self.self_id in acknowledged and all(
            h is not None and h[0] == b for h, b in zip(held, vector, strict=True)
        )


PLANTED = (
    Planted(ClockNotAdvanced, first_seed=1, shows="line 14"),
    Planted(VectorsMixed, first_seed=6, shows="line 17"),
    Planted(DeliveredKept, first_seed=119, shows="line 44"),
    Planted(AcknowledgedBeforeSync, first_seed=6),
    Planted(LanesSwapped, first_seed=46),
    Planted(EveryBallotCounts, first_seed=43, shows="line 45"),
    Planted(BallotsNotSaved, first_seed=1),
    Planted(EntriesNotSaved, first_seed=1),
    Planted(RemoteVoteEnough, first_seed=1, shows="line 17"),
)
