"""Bugs planted in what a journal keeps beside its segments, in checkpoints, and in what becomes of them."""

from __future__ import annotations

from multicast.checkpoint import Checkpoint, Checkpoints
from multicast.engine import Engine
from multicast.journal import Journal
from multicast.protocol import MulticastProtocol
from multicast.protocols.skeen import Skeen
from multicast.protocols.white_box import WhiteBox
from multicast.recorder import Recorder
from multicast.retention import Retention
from multicast.runtime.disk import FileDisk
from multicast.runtime.outgoing import Outgoing
from multicast.segments import Survey, segment_name
from multicast.session import Receiver, Sender
from multicast.wire import Codec
from tests.planted import Planted
from tests.planted.rewriting import rewrite

# -- journals ---------------------------------------------------------------------------------------------------------


class MarkBeforeData(Journal):
    """What the journal promises is written before that is on disk."""

    def sync(self, to_disk: bool = True) -> None:
        if not self._broken and self.end != self._synced and to_disk:
            super().sync(False)
            self.disk.sync(segment_name(self._segments[-1].number))
        else:
            super().sync(to_disk)


@rewrite("see", "self.last = max(self.last, position_of(body))", "self.last = self.last or position_of(body)")
class FirstDeliveryIsLast(Survey):
    """A summary says of a segment's last delivery what holds of its first."""


@rewrite("see", "self.put = end", "pass")
class PutsReferToNothing(Survey):
    """A summary does not say that a put refers to an earlier segment."""


@rewrite("see", "self.delivered = max(self.delivered, position_of(body))", "pass")
class DeliveriesReferToNothing(Survey):
    """A summary does not say that a delivery refers to an earlier segment."""


@rewrite("see", "self.refers = min(self.refers, lowest)", "pass")
class NothingRefers(Survey):
    """A summary does not say that something refers to an earlier segment."""


@rewrite("drop", "Floor(oldest.number, oldest.base, last, life)", "Floor(oldest.number, oldest.base, self.floor, life)")
class FloorsPositionNotRaised(Journal):
    """What was dropped is taken for what is there."""


@rewrite("read_deliveries", "if position <= self.floor:", "if position < self.floor:")
class FloorIsThere(Journal):
    """Who asks for the last delivery that was dropped gets what follows."""


@rewrite("_open_closed", "self.end = summary.end", "self.end = summary.end - 1")
class SegmentsBaseOneOff(Journal):
    """A closed segment ends one byte earlier than it does."""


@rewrite("_open_closed", "self._offsets += summary.offsets", "self._offsets += [o + 1 for o in summary.offsets]")
class SummarysOffsetsOff(Journal):
    """A delivery in a closed segment is looked for one byte behind its begin."""


@rewrite("offset_before", "bisect_right(self._positions, position)", "bisect_right(self._positions, position + 1)")
class LooksOneFurther(Journal):
    """The last delivery that an application holds is taken for one that it lacks."""


@rewrite("closed", "pairwise(self._segments)", "pairwise([*self._segments, *self._segments[-1:]])")
class OpenSegmentArchived(Journal):
    """The segment that is being written is archived."""


# -- checkpoints ------------------------------------------------------------------------------------------------------


@rewrite("advance", "values = self._go_on(offset)", "values = self._go_on(self.latest().offset)")
class OlderThanItSays(Checkpoints):
    """A checkpoint stands for less than it says."""


@rewrite("advance", "offset, name = self._journal.synced,", "offset, name = self._journal.end,")
class AheadOfTheDisk(Checkpoints):
    """A checkpoint stands for what is not on disk."""


@rewrite("_read_latest", "last = max(", "last = min(")
class OlderOneCounts(Checkpoints):
    """Of two checkpoints the older one counts."""


@rewrite("_write", "disk.sync(name)", "pass")
class CheckpointUnsynced(Checkpoints):
    """A checkpoint counts that is not on disk."""


@rewrite("_read", "finished = kind == records.BATCH_END", "finished = True")
class UnfinishedCounts(Checkpoints):
    """A checkpoint counts though its end is missing."""


@rewrite("recovery", "if end > self.offset or", "if end > self.offset + 64 or")
class RecordAfterItSkipped(Checkpoint):
    """Recovery reads one small record less behind a checkpoint."""


# -- records ----------------------------------------------------------------------------------------------------------


@rewrite("_place", "or place.offset < self.offset - self.reach", "")
class RefersTooFar(Recorder):
    """A record refers to what may have gone."""


@rewrite("_place", "if len(message.payload) != place.length or zlib.crc32(message.payload) != place.crc:", "if False:")
class RefersToCopy(Recorder):
    """A record refers to another payload that came under the same id."""


# -- the engine and its links -----------------------------------------------------------------------------------------


@rewrite("flushed", "own[0][0] <= number:", "own[0][0] <= number + 1:")
class OwnWordBeforeSync(Engine):
    """A process counts its own word one flush before it is on disk."""


@rewrite("_send", "self._send_to_self(channel, message, ticket)", "self._send_to_self(channel, message, 0)")
class OwnWordAtOnce(Engine):
    """A process counts its own word at once."""


@rewrite("recover", "self.position = self.completed = self._durable = held", "self.position = self.completed = held")
class HeldIsNotDurable(Engine):
    """What the application holds is not told to be durable at a restart. (The life's first batch says so, too.)"""


@rewrite("greet", "return self.flushed, False", "return min(self.seen, self.flushed + 1), False")
class OneMoreFlushed(Receiver):
    """A receiver that is greeted again says that it has flushed one frame more."""


@rewrite("acknowledged", "self._waiting.popleft()", "self._waiting.pop()")
class BulkBackwards(Sender):
    """What waits for room leaves in the wrong order."""


@rewrite("push", "self._waiting or not", "not")
class SmallBulkFirst(Sender):
    """Bulk that fits overtakes bulk that waits for room."""


@rewrite("resume", "self.losses = 0", "pass")
class LossesToldAgain(Sender):
    """An overflow is told at every reconnection."""


@rewrite("_overflow", "self._waiting.clear()", "pass")
class BulkSurvivesOverflow(Sender):
    """What waits for room stays when the queue is lost."""


@rewrite("_submit", "self.protocol.on_submit(message, now, self._out)", "pass")
class MulticastsLost(Engine):
    """What the application multicasts never reaches the protocol."""


@rewrite("_use_clock", "self.protocol.on_clock(clock.off, now)", "pass")
class ClockNotTold(Engine):
    """A protocol does not hear that its clock is off: its leader goes on."""


@rewrite("_make_room", "kept = {*self._unsynced, *self._in_use}", "kept = self._unsynced")
class ClosedInUse(FileDisk):
    """A file is closed while another thread writes to it."""


@rewrite("replace", "os.unlink(beside, dir_fd=self._directory)", "pass")
class LeftBeside(FileDisk):
    """What was written of a file for which there was no room stays."""


@rewrite("advance", "self._journal.disk.truncate(name, 0)", "pass")
class HalfACheckpoint(Checkpoints):
    """So does what was written of a checkpoint."""


@rewrite("list", "os.listdir(descriptor)", "os.listdir(self._directory)")
class ListedByTwo(FileDisk):
    """Who lists the files reads on from where another thread is."""


@rewrite("_give_up", "self._take_back(end)", "pass")
class ReadAndNotSynced(Journal):
    """What could not be synced is found by the next life."""


@rewrite("_give_up", "max(end, self._own)", "end")
class CutsWhatWasThere(Journal):
    """After an error of the device at its begin a life cuts the journal where the mark is, which is too low."""


@rewrite(
    "_open_segment", "records.batch_after(data, damage.at)", "bytes([records.BATCH_END, 0x91]) in data[damage.at :]"
)
class LooksLikeAnEnd(Journal):
    """A torn tail is damage if a value in it looks like the end of a batch."""


@rewrite(
    "_open_segment",
    'not SegmentHeader.is_whole(data) and not data[HEADER_BYTES:].strip(b"\\0")',
    'not data.strip(b"\\0")',
)
class TornHeaderRefused(Journal):
    """Of the header of a segment that is being created all is there, or nothing."""


@rewrite("decode", "except MALFORMED as error", "except (msgspec.MsgspecError, ValueError) as error")
class NestedTooDeep(Codec):
    """What a peer has nested too deep is taken for a bug of ours."""


@rewrite("run", "(OSError, TimeoutError, ValueError)", "(OSError, TimeoutError)")
class NoAddressNoLink(Outgoing):
    """Where a peer is said to be where nobody can be it is never dialled again."""


# -- what goes --------------------------------------------------------------------------------------------------------


@rewrite("_copy", "self._journal.closed():", "self._journal.closed()[1:]:")
class SecondNotArchived(Retention):
    """Segments are archived from the second one on."""


@rewrite("_copy", "if isinstance(error, OSError):", "if False:")
class NeverOpenedAnew(Retention):
    """An archive that was away stays away."""


@rewrite("advance", "limit = min(limit, self.archived)", "pass")
class GoesUnarchived(Retention):
    """A segment goes though the archive does not have it."""


@rewrite("_copy", "if self.ending: break", "pass")
class EndsWhenAllIsArchived(Retention):
    """Who ends waits for all that an archive lacks."""


def _host(protocol: type[MulticastProtocol], *kinds: type) -> list[Planted]:
    return [Planted(protocol, host=(kind,)) for kind in kinds]


HARMLESS = (*_host(WhiteBox, HeldIsNotDurable),)
PLANTED = (
    *_host(
        WhiteBox, MarkBeforeData, RefersToCopy, OwnWordBeforeSync, OwnWordAtOnce, OneMoreFlushed,
        BulkBackwards, SmallBulkFirst, LossesToldAgain, BulkSurvivesOverflow, MulticastsLost, ClockNotTold,
    ),
    *_host(
        Skeen, FirstDeliveryIsLast, PutsReferToNothing, DeliveriesReferToNothing, NothingRefers,
        FloorsPositionNotRaised, FloorIsThere, SegmentsBaseOneOff, SummarysOffsetsOff, LooksOneFurther,
        OpenSegmentArchived, OlderThanItSays, AheadOfTheDisk, OlderOneCounts, CheckpointUnsynced, UnfinishedCounts,
        RecordAfterItSkipped, RefersTooFar, SecondNotArchived, GoesUnarchived, ClosedInUse,
        NeverOpenedAnew,
        LeftBeside, HalfACheckpoint, LooksLikeAnEnd, TornHeaderRefused, NestedTooDeep, EndsWhenAllIsArchived,
        NoAddressNoLink, ListedByTwo, ReadAndNotSynced, CutsWhatWasThere,
    ),
)  # fmt: skip
