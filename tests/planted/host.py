"""Bugs planted in what protocols stand on: the engine, the ends of links, the journal."""

from __future__ import annotations

from multicast.catch_up import CatchUp
from multicast.engine import Engine
from multicast.journal import Journal
from multicast.lanes import Lanes
from multicast.protocol import MulticastProtocol
from multicast.protocols.skeen import Skeen
from multicast.protocols.white_box import WhiteBox
from multicast.reader import Reader
from multicast.recorder import Recorder
from multicast.session import Receiver, Sender
from tests.planted import Planted
from tests.planted.rewriting import rewrite


@rewrite("enter", "if batch or queue:", "if batch:")
class OvertakesHeld(Lanes):
    """A message that need not wait for the disk overtakes one that does."""


@rewrite(
    "_send",
    "ticket = self._last_journaled if self.recorder.empty else self._batch.number",
    "ticket = 0 if self.recorder.empty else self._batch.number",
)
class EarlierBatchNotWaitedFor(Engine):
    """A durable message waits for the puts of its own batch only."""


@rewrite("_send", "if ticket <= self._flushed:", "if True:")
class NothingWaits(Engine):
    """Durable messages leave at once."""


@rewrite("release", "queue[0][0] <= number:", "queue[0][0] <= number + 1:")
class ReleasedOneFlushEarly(Lanes):
    """What waits for a batch leaves when the one before it is on disk."""


@rewrite("change", "self.record(records.Delete(key))", "pass")
class DeletesNotJournaled(Recorder):
    """What a protocol deletes is there again after a restart."""


@rewrite("_remember", "Place(start + at, ", "Place(start, ")
class RefersToWholeRecord(Recorder):
    """A delivery refers to the record that its payload is in, not to its place in it."""


@rewrite("_remember", "Place(start + at, ", "Place(start + at - self._batch_bytes(), ")
class RefersToBatchBefore(Recorder):
    """Places are counted from the begin of the batch: they are those of what stands before it."""

    def _batch_bytes(self) -> int:
        return sum(map(len, self._batch))


@rewrite("deliver", "place = self._place(message)", "place = self._place(message) or Place(0, 0, 0)")
class UnknownNotWritten(Recorder):
    """A delivery refers to nowhere if it is not known where its payload is."""


@rewrite("recover", "self.recorder.offset = max(self.recorder.offset, offset)", "self.recorder.offset = 1")
class OffsetNotRecovered(Engine):
    """After a restart deliveries refer to what stands at the journal's begin."""


@rewrite("_put", "pieces.append(value[begin:at])", "pieces.append(value[begin:at - 1])")
class PieceCutShort(Recorder):
    """What stands before a payload that was left out of a put lacks its last byte."""


@rewrite("_read", "if start <= offset and offset + length <= start + len(data):", "if start <= offset:")
class PieceTooShort(Reader):
    """A payload is looked for in what was read before, though that ends before it."""


@rewrite("_read", "return data[:length]", "return data[1:length + 1]")
class PayloadReadBeside(Reader):
    """The bytes beside a payload are read."""


@rewrite(
    "flushed", "while self._flush_positions and self._flush_positions[0][0] <= number:", "while self._flush_positions:"
)
class StableBeforeSync(Engine):
    """The protocol is told that deliveries are on disk that are not."""


@rewrite(
    "_close",
    "self._flush_positions.append((batch.number, self.completed))",
    "self._flush_positions.append((batch.number, self.completed + 1))",
)
class StableOneAhead(Engine):
    """The protocol is told that one delivery more is on disk."""


@rewrite("recover", "values.pop(record.key, None)", "pass")
class DeletesNotReplayed(Engine):
    """A replay does not delete."""


@rewrite("recover", "first and not lost, first and lost", "first, False")
class LossNotTold(Engine):
    """A protocol is not told that its disk was lost."""


@rewrite(
    "_on_host_message",
    "if delivered.position != self.position + 1: continue",
    "if delivered.position <= self.position: continue",
)
class InstallsWithGaps(Engine):
    """Catch-up passes over deliveries that it does not get."""


@rewrite("_take", "self.discipline.on_peer_reset(a)", "pass")
class ProbesLostUnnoticed(Engine):
    """A peer whose link was reset is never asked again what its clock shows."""


@rewrite("_ask_for_deliveries", "self._asked_from = self.position + 1", "self._asked_from = self.position + 2")
class CatchesUpOneLate(Engine):
    """Catch-up asks for what comes after the next delivery."""


@rewrite(
    "_on_host_message",
    "self._deliver(delivered.message, delivered.timestamp, FINAL, note, outcome, peer, now)",
    'self._deliver(delivered.message, delivered.timestamp, FINAL, b"", outcome, peer, now)',
)
class InstalledNoteLost(Engine):
    """What is installed is journaled without its note: who installs it from there has none."""


@rewrite(
    "_on_host_message", "if message.more: self._ask_for_deliveries(self._catch_up.ask(peer, now))", "pass"
)
class FirstPortionOnly(Engine):
    """Catch-up ends after its first portion."""


@rewrite("ask", "self._asked is not None and now - self._asked[1] < RETRY_US else", "self._asked is not None else")
@rewrite("ask_instead_of", "if self._asked is None or self._asked[0] != peer:", "if True:")
class CatchesUpOnce(CatchUp):
    """A lost request for deliveries is never repeated."""


@rewrite("greet", "return self.flushed, False", "return self.seen, False")
class SeenForFlushed(Receiver):
    """A receiver that is greeted again says what it has seen, not what is on its disk."""


@rewrite("accept", "if sequence <= self.seen: return False", "if sequence <= self.seen: return True")
class TakenTwice(Receiver):
    """Frames that were seen are taken again."""


@rewrite("greet", "lost = self.incarnation is not None", "lost = False")
class RestartNotNoticed(Receiver):
    """A receiver does not tell that the sender has lost its memory."""


@rewrite("greet", "or epoch > 0", "")
class OverflowBeforeGreeting(Receiver):
    """Who has restarted does not hear that what it was answered is gone with a queue that has overflowed."""


@rewrite("greet", "self.seen = self.flushed = first - 1", "self.seen = self.flushed = max(self.seen, first - 1)")
class OldNumbersKept(Receiver):
    """A receiver takes the frames of a sender's new life for those of the old one."""


@rewrite("greet", "(self.incarnation, self.epoch) == (incarnation, epoch)", "self.incarnation == incarnation")
class EpochNotNoticed(Receiver):
    """A receiver does not notice that the sender's queue has overflowed."""


@rewrite("resume", "self.peer_incarnation not in (None, peer_incarnation) or", "")
class ReceiversRestartNotNoticed(Sender):
    """A sender does not tell that the receiver has restarted."""


@rewrite("resume", "return list(self._unacknowledged), reset", "return list(self._unacknowledged)[1:], reset")
class FirstNotResent(Sender):
    """After a reconnection the first frame that was not acknowledged is not sent again."""


@rewrite("acknowledged", "queue[0][0] <= sequence:", "queue[0][0] <= sequence + 1:")
class OneMoreAcknowledged(Sender):
    """An acknowledgement drops one frame more."""


@rewrite("_overflow", "self.epoch += 1", "pass")
class OverflowUnnoticed(Sender):
    """After an overflow a sender goes on as if nothing were lost."""


@rewrite("_open", "if cut: self.disk.truncate(*cut)", "pass")
class TailNotCut(Journal):
    """An unfinished batch stays at the journal's end."""


@rewrite("_open_segment", "if at < good:", "if True:")
class UnfinishedIndexed(Journal):
    """Deliveries of an unfinished batch are found when a peer asks for them."""


@rewrite("_open_segment", "elif kind == records.BATCH_END: good = at", "if kind: good = at")
class UnfinishedBatchKept(Journal):
    """The whole records of an unfinished batch are kept."""


@rewrite("_roll", "if self._segments: self.disk.sync(segment_name(self._segments[-1].number))", "pass")
class RolledUnsynced(Journal):
    """A new segment is begun before the one before it is on disk."""


@rewrite("sync", "if to_disk:", "if to_disk and len(self._segments) < 2:")
class LaterSegmentsUnsynced(Journal):
    """From the second segment on nothing is synced."""


@rewrite("_read_deliveries", "if position_of(body) >= position:", "if position_of(body) > position:")
class OneDeliveryLate(Journal):
    """Who asks for deliveries gets those after the first one that it lacks."""


@rewrite("_read_deliveries", "if told >= READ_BYTES:", "if False:")
class AllOutcomesAtOnce(Journal):
    """Who asks for deliveries gets what is known of their outcomes, be it ever so large."""


@rewrite("_on_host_message", "if found and not news and", "if False and")
class AsksOnForEach(Engine):
    """Who has asked twice asks on for each answer: of a peer whose answers take long ever more are under way."""


@rewrite("_on_host_message", "found[0][0].position != self._asked_from", "found[0][0].position")
class OldNewsIsNoAnswer(Engine):
    """Who has got otherwise what it asked for does not ask on."""


def _host(protocol: type[MulticastProtocol], *kinds: type) -> list[Planted]:
    return [Planted(protocol, host=(kind,)) for kind in kinds]


PLANTED = (
    *_host(
        WhiteBox, OvertakesHeld, EarlierBatchNotWaitedFor, NothingWaits, ReleasedOneFlushEarly, DeletesNotJournaled,
        StableBeforeSync, StableOneAhead, DeletesNotReplayed, LossNotTold, InstallsWithGaps, CatchesUpOneLate,
        InstalledNoteLost, CatchesUpOnce, TakenTwice, RestartNotNoticed, OldNumbersKept, FirstNotResent,
        OneMoreAcknowledged, TailNotCut, UnfinishedIndexed, UnfinishedBatchKept, RolledUnsynced,
        LaterSegmentsUnsynced, OneDeliveryLate, ReceiversRestartNotNoticed, FirstPortionOnly, EpochNotNoticed,
        OverflowUnnoticed, RefersToWholeRecord, PieceCutShort, RefersToBatchBefore, UnknownNotWritten,
        OffsetNotRecovered, PieceTooShort, PayloadReadBeside, OverflowBeforeGreeting, AllOutcomesAtOnce,
        AsksOnForEach, OldNewsIsNoAnswer, ProbesLostUnnoticed,
    ),
    *_host(Skeen, SeenForFlushed),
)  # fmt: skip
