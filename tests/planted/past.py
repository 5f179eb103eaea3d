"""Bugs planted in the history of overwritten rows and in reads at versions."""

from __future__ import annotations

from kvstore.core.replica import Replica
from kvstore.core.versions import Versions
from kvstore.simulated.settings import Settings
from kvstore.storage.history import Past
from kvstore.storage.snapshot import Snapshots
from kvstore.storage.store import Store
from tests.planted.rewriting import rewrite
from tests.planted.store import Planted

CHECK = "reads at versions"
SMALL = Settings(protocol="white_box", size="small", past=True)
MOVING = Settings(protocol="white_box", size="small", past=True, moves=True, grows=True, profile="calm")


@rewrite("floor", "self._backend.get(META, FLOOR) or", "bytes(16) or")
class FloorNotMoved(Store):
    """What was dropped because it was too much is read as if it were there."""


@rewrite("_kept", "max(0, upto.time - self._history_us)", "max(0, upto.time - self._history_us // 8)")
@rewrite("floor", "self._backend.get(META, FLOOR) or", "bytes(16) or")
class DroppedEarly(Store):
    """What the window still has is dropped, and read as if it were there."""


@rewrite("__init__", "real and max(real, store.complete_to.time)", "real")
class OnlyByTheClock(Replica):
    """What was written while most clocks were ahead is refused as in the future, also where it is known."""


@rewrite("_wait", "if self._store.complete_to < waiting.version:", "if False:")
class ReadBeforeComplete(Versions):
    """A shard is read at a version before it has completed everything up to that."""


@rewrite("_kept", "layer.since,", "{k: at if layer.data[k] else bytes(16) for k, at in layer.since.items()},")
class DeletedNotKept(Store):
    """What is overwritten by a deletion is not kept."""


@rewrite("_put", "elif self._history_us:", "elif False:")
class OnlyTheFirstOverwriteKept(Store):
    """What is overwritten twice between two commits is kept once."""


@rewrite("_take_over", "meta | anew(last_version(sealed.timestamp))", "meta")
class OldFloorAfterSnapshot(Snapshots):
    """Who was given a snapshot answers as if it had what was overwritten before that."""


@rewrite("newest", "since <= version", "since < version")
class WriteSeenLate(Past):
    """In the write buffer a write is not seen at its own version."""


@rewrite("_kept", "until > self._version", "until >= self._version")
class OverwriteSeenLate(Past):
    """On disk what an overwrite has replaced is still seen at the version of that."""


@rewrite("_kept", "found.setdefault(key, row)", "found[key] = row")
class NewestOverwriteSeen(Past):
    """Of what several commits have overwritten under a key the newest is seen, whatever the version."""


@rewrite("_row", 'return row if version_bytes(row) <= self._version else b""', "return row")
class LaterSeen(Past):
    """What did not stand there yet is seen."""


@rewrite("_read", "waiting.bounds = rest", "return self._found(waiting, operation, more=False)")
class FirstLookOnly(Versions):
    """Of a range that takes more than one look the rest is left out."""


@rewrite("on_found", "if message.oldest <= asked.version and not asked.chosen:", "if False:")
class ElsewhereIsCompacted(Versions):
    """What a slot has is called compacted while it is not known where the slot has gone."""


def _planted(*kinds: type, settings: Settings = SMALL) -> list[Planted]:
    return [
        Planted(kind.__name__, CHECK, store=kind, settings=settings) if issubclass(kind, Store)
        else Planted(kind.__name__, CHECK, core=kind, settings=settings) for kind in kinds
    ]  # fmt: skip


PLANTED_IN_STORE = (
    *_planted(
        FloorNotMoved, DroppedEarly, ReadBeforeComplete, DeletedNotKept, OnlyTheFirstOverwriteKept,
        OldFloorAfterSnapshot, WriteSeenLate, OverwriteSeenLate, NewestOverwriteSeen, LaterSeen,
        FirstLookOnly,
    ),
    *_planted(ElsewhereIsCompacted, settings=MOVING),
    Planted(OnlyByTheClock.__name__, "", core=OnlyByTheClock, settings=SMALL),
)  # fmt: skip
