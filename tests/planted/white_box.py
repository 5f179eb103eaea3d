"""Bugs planted in White-Box. Lines are those of its Fig. 4.

Staged in tests/multicast/test_white_box.py, because random runs do not show them: errata 4 (`NoNegativeAnswer`) and 5
(`ClientRetryOnly`), line 17 (`WithoutOwnAcknowledgement`); in test_white_box_lost_disk.py: `AmnesiacWaitsForOne`,
`AmnesiacJoinsBehind`, `MarksToldAlone` and `MarksKept`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from multicast.protocol import Outbox, Saved
from multicast.protocols.white_box import ACCEPTED, WhiteBox
from multicast.simulation.runner import Settings
from multicast.types import ProcessId
from tests.planted import Planted
from tests.planted.rewriting import rewrite

ELECTIONS = Settings(
    groups=2,
    replicas=3,
    messages=60,
    options={"heartbeat_us": "20000", "election_timeout_us": "100000", "retry_us": "100000"},
)
"""Leaders change faster than a message to oneself takes to come back from the disk."""


def _swap_lanes(out: Outbox) -> None:
    out.sends[:] = [(to, message, not durable) for to, message, durable in out.sends]


@rewrite("_accept_if_complete", "self.clock.advance(entry.highest.time)", "pass")
@rewrite("_deliver_next", "self.clock.advance(deliver.final.time)", "pass")
@rewrite("on_install", "self.clock.advance(timestamp.time)", "pass")
class ClockNotAdvanced(WhiteBox):
    """Line 14 left out: a leader stamps later messages below what its group has agreed on."""


@rewrite("acknowledge", "entry.acks.setdefault(vector, set())", "entry.acks.setdefault((), set())", part="quorums")
@rewrite(
    "silent", "entry.acks.get(vector, set()) if vector is not None", "entry.acks.get((), set()) if vector", "quorums"
)
class VectorsMixed(WhiteBox):
    """Line 17 without "matching": acknowledgements of different ballot vectors count together."""


class SlowOwnDeliver(WhiteBox):
    """No bug: a leader's own DELIVER takes as long as anybody's, so it may be deposed before it arrives."""

    def _send_deliver(self, entry: Any, position: int, out: Outbox) -> None:
        before = len(out.sends)
        super()._send_deliver(entry, position, out)
        ((to, deliver, _),) = out.sends[before:]
        others = tuple(p for p in to if p != self.self_id)
        out.sends[before:] = [(others, deliver, False), ((self.self_id,), deliver, True)]


@rewrite("adopt", "entry.begin_anew()", "entry.acks.clear()")
class DeliveredKept(SlowOwnDeliver):
    """Line 44 as printed: `Delivered` survives a leader change. (With a DELIVER that comes back at once, as ours does,
    whatever was sent is also delivered, and the bug cannot show.)"""


@rewrite("end_batch", "out.send_durable(", "out.send(")
class AcknowledgedBeforeSync(WhiteBox):
    """An ACCEPT_ACK leaves before what it vouches for is on disk."""


class LanesSwapped(WhiteBox):
    """What should wait for the disk does not, and the other way round."""

    def end_batch(self, now: int, out: Outbox) -> None:
        super().end_batch(now, out)
        _swap_lanes(out)


@rewrite("choose", "if state.phase == COMMITTED or vote.joined == latest:", "if True:")
class EveryBallotCounts(WhiteBox):
    """Line 45 left out: ACCEPTED states of lower ballots contribute too."""


@rewrite("keep", "out.put(_BALLOTS_KEY, _encode((self.election.promised, self.joined)))", "pass", part="leadership")
class BallotsNotSaved(WhiteBox):
    """A promise is given, and forgotten at a crash."""


@rewrite("_save_entry", "out.put(_ENTRY_PREFIX + entry.id, entry.encode(), carries=(entry.message,))",
         "pass")  # fmt: skip
class EntriesNotSaved(WhiteBox):
    """Acceptances are only in memory."""


@rewrite("_is_committed", "if not all(self._has_quorum(", "if False and not all(self._has_quorum(", part="quorums")
class RemoteVoteEnough(WhiteBox):
    """Line 17 without quorums: the leader's own acknowledgement is enough for its group and for all others."""


class AmnesiacVotes(WhiteBox):
    """A lost disk is taken for a new one: the process votes and acknowledges at once."""

    def on_start(self, saved: Saved, now: int, out: Outbox) -> None:
        super().on_start(msgspec.structs.replace(saved, lost=False, first=saved.first or saved.lost), now, out)


@rewrite("_conclude", "if any(p not in self._answers for p in self._others):", "if not self._answers:",
         part="election.rejoin")  # fmt: skip
@rewrite("_conclude", "or len(ballots) < quorum_of(len(self._others) + 1):", "or not ballots:",
         part="election.rejoin")  # fmt: skip
class AmnesiacWaitsForOne(WhiteBox):
    """An amnesiac takes the first answer for the bound, without hearing all others. (Random runs do not find it: the
    one that is silent must be the candidate with the forgotten vote. See the staged schedule in tests/multicast.)"""


@rewrite("on_returned", "bound is None or not self.knows_view(sender, bound, out)", "False", part="election")
@rewrite("on_returned", "self.highest = max(self.highest, bound)", "pass", part="election")
@rewrite("on_returned", "self.promised > bound:", "True:", part="election")
@rewrite("may_join", "(self.bound is not None and ballot > self.bound)", "True", part="election.rejoin")
class AmnesiacJoinsAnyBallot(WhiteBox):
    """An amnesiac takes the present state of its leader at once, in the ballot in which it may have voted before."""


@rewrite(
    "_return_if_caught_up", "or self._deliveries.position < max(state.reach, self.election.rejoin.reach)", "",
    part="leadership",
)
@rewrite("_return", "self._deliveries.position < self.election.rejoin.reach or", "", part="leadership")
class AmnesiacJoinsBehind(WhiteBox):
    """An amnesiac acknowledges the new state before it has caught up with what that state leaves out."""


class MarksToldAlone(WhiteBox):
    """A process tells other groups its own watermark at once, though its group may lose what it alone has. (Staged.)"""

    def __init__(self, *args: Any):
        super().__init__(*args)
        self.log._by_quorum = False


@rewrite("_on_returned", "self.log.forget_watermark(sender)", "pass")
class MarksKept(WhiteBox):
    """What a process told its group before it lost its disk counts for the group's watermark. (Staged.)"""


@rewrite("choose", "self._votes = {}", "pass", part="election")
@rewrite("_on_vote", "if self.state is CANDIDATE:", "if self._votes:", part="election")
@rewrite("won", 'self.election.go("choose")', 'self.election.state = "elect"', part="leadership")
class StateActedOnTwice(WhiteBox):
    """Line 42 as printed: the condition holds again with every later NEWLEADER_ACK, and the state is computed anew."""


@rewrite("choose", "clock = max(vote.clock for vote in votes.values())", "clock = 0")
class StaleClock(WhiteBox):
    """A new leader goes on with its own clock instead of the highest of its voters'."""


@rewrite("_deliver_next", "self.clock.advance(deliver.final.time)", "pass")
class OwnAcceptHeld(WhiteBox):
    """No bug: a leader's own ACCEPTs take as long as a staged schedule wants, and a delivery does not move the clock.
    (With ours, which come back at once, a leader that knows all stamps has moved its clock, and a delivery moves it
    again: the next bug cannot show.)"""

    def __init__(self, *args: Any):
        super().__init__(*args)
        self.own_accepts: list[Any] = []

    def _on_multicast(self, sender: ProcessId, multicast: Any, now: int, out: Outbox) -> None:
        before = len(out.sends)
        super()._on_multicast(sender, multicast, now, out)
        sends, out.sends[before:] = out.sends[before:], []
        for to, sent, durable in sends:
            out.sends.append((tuple(p for p in to if p != self.self_id), sent, durable))
            if self.self_id in to:
                self.own_accepts.append(sent)


@rewrite("_is_committed", "message is None or self._self_id not in acknowledged", "message is None", part="quorums")
@rewrite(
    "_is_committed",
    "held = entry.accepts.get(group)",
    "if group == self._group:\n            entry.accepts.setdefault(group, (ballot, entry.local))\n"
    "        held = entry.accepts.get(group)",
    part="quorums",
)
class WithoutOwnAcknowledgement(OwnAcceptHeld):
    """Line 17 without "itself among them": the leader's clock may be behind what it commits. (Staged.)"""


@rewrite(
    "acknowledge",
    "entry.acks.setdefault(vector,",
    "entry.acks.setdefault(next(b for b in vector if b.leader in self._topology.groups[self._group]),",
    part="quorums",
)
@rewrite(
    "silent",
    "entry.acks.get(vector,",
    "entry.acks.get(next(b for b in vector if b.leader in self._topology.groups[self._group]),",
    part="quorums",
)
@rewrite("_is_committed", "if held is None or held[0] != ballot:", "if held is None:", part="quorums")
class OwnBallotOnly(WhiteBox):
    """Line 17 with the own group's ballot compared only: stamps of other groups' deposed leaders count."""


@rewrite("_accept_if_complete", "if ballot != self.leadership.joined:", "if False:")
class AnyBallotAccepted(WhiteBox):
    """Line 11 without its condition: an ACCEPT of a ballot of the own group that was deposed is accepted, too."""


class DuplicateFiltered(WhiteBox):
    """Line 25 as printed: a DELIVER that is filtered as a duplicate leaves phase and timestamps as they were. (A state
    that is taken over, line 60, gives back as ACCEPTED what was delivered; ours leaves alone what was delivered.)"""

    def adopt(self, state: Any, now: int, out: Outbox) -> None:
        super().adopt(state, now, out)
        for taken in state.entries:
            entry = self.entries.get(taken.message.id)
            if entry is not None and entry.position and taken.phase == ACCEPTED:
                entry.phase, entry.final = ACCEPTED, None

    def _on_duplicate_deliver(self, entry: Any, deliver: Any, out: Outbox) -> None:
        pass


@rewrite(
    "_campaign_if_due",
    "self._ask(now, out)",
    "self.wait(now) if election.state == 'promised' else self._ask(now, out)",
    part="election.detector",
)
class WaitsForItsCandidate(WhiteBox):
    """No bug where leaders are chosen by an oracle, as in the paper: who has promised a ballot waits for its candidate.
    (With ours, it stands itself when it has waited too long, and the next bug only costs time.)"""


@rewrite("_on_nack", "if nack.ballot > self.highest and", "if False and", part="election")
class NoNegativeAnswer(WaitsForItsCandidate):
    """Lines 37 and 11 as printed: who asks in a low ballot hears nothing. (Staged.)"""


@rewrite("_on_multicast", "self._retries.add(message.id, now)", "pass")
class ClientRetryOnly(WhiteBox):
    """Lines 32-34 left out: only the sender repeats a message, and it may have crashed. (Staged.)"""


class FreedAtDelivery(WhiteBox):
    """Garbage collection as soon as the own group has delivered."""

    def on_durable(self, position: int, now: int, out: Outbox) -> None:
        super().on_durable(position, now, out)
        self._drop([e.id for e in self.entries.values() if 0 < e.position <= position], out)


PLANTED = (
    Planted(ClockNotAdvanced, shows="line 14"),
    Planted(VectorsMixed, shows="line 17"),
    Planted(DeliveredKept, ELECTIONS, shows="erratum 1, line 44"),
    Planted(AcknowledgedBeforeSync),
    Planted(LanesSwapped, ELECTIONS),
    Planted(EveryBallotCounts, shows="lines 45, 51"),
    Planted(BallotsNotSaved),
    Planted(EntriesNotSaved),
    Planted(RemoteVoteEnough, shows="line 17"),
    Planted(AmnesiacVotes),
    Planted(AmnesiacJoinsAnyBallot),
    Planted(StateActedOnTwice, shows="erratum 2, line 42"),
    Planted(StaleClock, shows="line 56"),
    Planted(DuplicateFiltered, ELECTIONS, shows="erratum 3, line 25"),
    Planted(FreedAtDelivery, shows="erratum 6"),
    Planted(OwnBallotOnly, shows="line 17"),
    Planted(AnyBallotAccepted, shows="line 11"),
)
