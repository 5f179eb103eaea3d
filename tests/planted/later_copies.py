"""Bugs in what becomes of copies that come when only some still know a message (parts.entries)."""

from __future__ import annotations

from multicast.parts.entries import Entries
from multicast.parts.group_log import GroupLog
from multicast.protocols.fastcast import FastCast
from multicast.protocols.ft_skeen import FtSkeen
from multicast.protocols.primcast import PrimCast
from multicast.protocols.white_box import WhiteBox
from tests.planted import planted_in
from tests.planted.rewriting import rewrite


@rewrite("outranks", "if other.final is not None and self._is_later(state, other.final):", "if False:", part=Entries)
class DeliveredHidesLater(WhiteBox):
    """Who knows the first copy as delivered hides from a new leader a later one that was accepted."""


@rewrite("outranks", "return not self._is_later(other, state.final)", "return True", part=Entries)
class CommittedHidesLater(WhiteBox):
    """The same where who knows the first copy votes later."""


@rewrite("outranks", "other.final is None and state.local > other.local", "False", part=Entries)
class FirstStampCounts(WhiteBox):
    """Of two copies that were accepted in one ballot the one that was voted for first counts."""


@rewrite("replaces", "return state is not None and entry.final is not None and self._is_later(state, entry.final)",
         "return False", part=Entries)  # fmt: skip
class LaterNotTakenOver(WhiteBox):
    """Who has delivered the first copy takes over no later one."""


@rewrite("on_install", "if copied:", "if False:")
class InstallsOverLater(WhiteBox):
    """The first copy, fetched from a peer's journal, takes the place of a later one."""


@rewrite("_deliver_next", "if self.entries.is_copy_after(entry, deliver.final):", "if False:")
class DeliversOverLater(WhiteBox):
    """The first copy's DELIVER takes the place of a later copy."""


@rewrite("_on_known", "if self.entries.is_copy_after(entry, known.final):", "if False:")
class LaterDroppedOnWord(WhiteBox):
    """A leader drops a later copy because somebody knows the first one."""


@rewrite("of_stamp", "if entry is not None and not (own and entry.phase == COMMITTED",
         "if entry is not None and not (False and entry.phase == COMMITTED", part=Entries)  # fmt: skip
class LaterStampOfFirst(WhiteBox):
    """A later copy's stamp counts as one of the first copy, which was delivered."""


@rewrite("of_stamp", "if entry is not None and not (own and entry.phase == COMMITTED",
         "if entry is not None and not (entry.phase == COMMITTED", part=Entries)  # fmt: skip
class LaterBeforeSettled(WhiteBox):
    """Another group's stamp begins a later copy of what somebody may still ask for."""


@rewrite("_settled", "if entry is not None and entry.position:", "if entry is not None:")
class LaterSettled(WhiteBox):
    """When the first copy is settled the later one goes."""


@rewrite("delivered_at", "return None if entry is not None and self.is_copy_after(entry, known[0]) else known[0]",
         "return known[0]", part=Entries)  # fmt: skip
class LaterIsDone(WhiteBox):
    """A leader that knows the first copy takes no part in a later one of another group."""


@rewrite("put_later", "return self._is_later(decode_entry(value), delivered)", "return False", part=Entries)
class SnapshotOverLater(WhiteBox):
    """A snapshot's first copy takes the place of a later one."""


@rewrite("_on_stamps", "if entry.phase == START and message.ask and self.election.state is LEADER:", "if False:")
class WaitsForTheSender(WhiteBox):
    """A leader that holds a message stamps it only if its sender asks, who may be gone."""


@rewrite("on_delivered", "if later is not None and not later.position:", "if False:")
class OwnStampForgotten(FastCast):
    """Who delivers a first copy late forgets its group's stamp of the later one, and as leader never concludes it."""


@rewrite("_accept_if_complete", "self.entries.is_of_later(entry.id, local, entry.final)", "False")
class LaterOfCommitted(WhiteBox):
    """Who knows a copy as committed and hears of the next one takes that for a contradiction, and ends."""


@rewrite("_drop", "elif entry is not None and not entry.position:", "elif False:")
class EarlierCopyOnDisk(PrimCast):
    """Who has heard of a later copy keeps the settled one on disk, and takes it for undelivered after a restart."""


@rewrite("_settled", "elif entry is not None and entry.phase < ACCEPTED:", "elif False:")
class EarlierCopyOnWhiteBoxDisk(WhiteBox):
    """The same in White-Box."""


@rewrite("_on_accept", "if own and not self.leadership.hear(sender, accept.ballot, now, out):",
         "if own and self.leadership.hear(sender, accept.ballot, now, out) is None:")  # fmt: skip
class DeposedBeginsLater(WhiteBox):
    """A deposed leader's word of a later copy takes the place of what was delivered."""


@rewrite("_settled_by", "self.window.needs(entry.message, entry.local.time, entry.local.tiebreak)",
         "entry.message.destinations", part=GroupLog)  # fmt: skip
class LateCopyAwaited(FastCast):
    """A late copy is settled when groups have delivered it that know the message, and do not."""


@rewrite("_doubts", "if not self.member.acting or", "if True or")
class LateThoughInTime(FastCast):
    """A leader concludes a late timestamp of what the others of its group may have delivered in time."""


@rewrite("end_batch", "if self._in_doubt:", "if False:")
class InDoubtForEver(FastCast):
    """It neither concludes nor asks anybody."""


@rewrite("install", "entry.position = self._delivered.position + 1", "pass", part=GroupLog)
class InstalledSomewhere(FtSkeen):
    """Who restarts does not know which copy it had delivered where, before the log came: all were the last delivery."""


@rewrite("_on_multicast", "self.clock.advance(self.entries.known_until(message.id))", "pass")
class LaterStampedLow(WhiteBox):
    """A leader that takes part in a later copy stamps it by a clock that is behind: as if it was the first one."""


PLANTED = planted_in(__name__)
