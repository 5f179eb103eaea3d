"""Bugs planted in Skeen's protocol: what is saved too little, taken too early, forgotten."""

from __future__ import annotations

from multicast.protocols.skeen import Skeen
from tests.planted import Planted, small
from tests.planted.rewriting import rewrite


@rewrite("_on_final", "self._save(entry, out)", "pass")
class FinalNotSaved(Skeen):
    """The coordinator's final timestamp is only in memory."""


@rewrite("_on_propose", "else: self._save(entry, out)", "else: pass")
class OthersStampsNotSaved(Skeen):
    """The stamps of others are only in memory."""


@rewrite("on_start", "self._clock.advance(stamp.time)", "pass")
class ClockForgotten(Skeen):
    """After a restart the clock goes on from the last delivery, whatever was stamped."""


@rewrite("on_start", "entry.told = True", "entry.told = False")
class NotToldAfterRestart(Skeen):
    """After a restart the own stamp does not count until it is told again."""


@rewrite("on_start", "self._retries.add(message_id, now)", "pass")
class NotRepeatedAfterRestart(Skeen):
    """After a restart nobody repeats what waits for stamps."""


@rewrite("on_start", "entry.stamps[self.group] <= known[0]", "entry.stamps[self.group] < known[0]")
class DeliveredIsPending(Skeen):
    """After a restart what was delivered at the own stamp is pending again."""


@rewrite("_commit_if_complete", "entry.final is None and entry.told and", "entry.final is None and")
class OwnStampNotWaitedFor(Skeen):
    """The own stamp counts before it is on disk."""


@rewrite("_commit_if_complete", "self._clock.advance(entry.final.time)", "self._clock.advance(entry.final.time - 1)")
class ClockOneShort(Skeen):
    """Having computed a final timestamp, a process may stamp at it."""


@rewrite("_on_propose", "if propose.again and sender != self.self_id:", "if False:")
class NeverToldAgain(Skeen):
    """Who asks for a stamp once more hears nothing."""


@rewrite("_stamp", "if entry is not None or self._log.known(message.id):", "if entry is not None:")
class StampedAgain(Skeen):
    """A message that is settled is stamped again."""


@rewrite("_on_known", "self._drop([known.id], out)", "pass")
class DroppedCopyStays(Skeen):
    """A late copy that others have delivered long ago is dropped from the queue only."""


@rewrite("_destinations", "and entry.stamps[self.group] <= delivered_at", "")
class LaterCopyIsTheFirst(Skeen):
    """After a restart a later copy is taken for the one that was delivered, and goes when that is settled."""


@rewrite("_on_known", "and known.final <= self._log.timestamp", "")
class DroppedOnWord(Skeen):
    """What another process has delivered is dropped, though this one has not come so far."""


@rewrite("_drop", "out.delete(_ENTRY_PREFIX + message_id)", "pass")
class SettledNotDeleted(Skeen):
    """What is settled is there again after a restart."""


@rewrite("_settle", "reached = min(self._group_watermarks[g] for g in groups)",
         "reached = self._group_watermarks[group]", part="_log")  # fmt: skip
class SettledInOneGroup(Skeen):
    """A message is settled when one destination has it."""


@rewrite(
    "_forget",
    "if self._known.pop(message_id, None) is not None:",
    "if self._known.pop(message_id, None) is None:",
    part="_log",
)
class KnownNotDeleted(Skeen):
    """Ids that are forgotten are known again after a restart."""


COORDINATED = (FinalNotSaved,)
WINDOW = (KnownNotDeleted,)
PLANTED = (
    *map(
        Planted,
        (
            OthersStampsNotSaved, ClockForgotten, NotToldAfterRestart, NotRepeatedAfterRestart, DeliveredIsPending,
            OwnStampNotWaitedFor, ClockOneShort, NeverToldAgain, StampedAgain, DroppedOnWord,
            SettledNotDeleted, SettledInOneGroup, DroppedCopyStays, LaterCopyIsTheFirst,
        ),
    ),
    *(Planted(kind, small(coordinator="true")) for kind in COORDINATED),
    *(Planted(kind, small(clock="hybrid", dedup_window_us="300000")) for kind in WINDOW),
)  # fmt: skip
