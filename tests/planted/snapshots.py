"""Bugs planted in snapshots: what they lack, what they should not hold, and when they are installed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from kvstore.simulated.settings import Settings
from kvstore.storage import snapshot
from kvstore.storage.backend import IDS, NOTES, PARTS, TABLES
from multicast import snapshot as transfer
from multicast.batch import Batch
from multicast.parts.delivered import DeliveredLog
from multicast.parts.history import History
from multicast.protocol import Outbox
from multicast.types import ProcessId, Timestamp
from multicast.wire import SnapshotChunk, SnapshotRequest
from tests.planted.rewriting import rewrite
from tests.planted.store import Planted

SMALL = Settings(protocol="white_box", size="small")
MOVING = Settings(protocol="white_box", size="small", shards=2, moves=True)


class WithoutResults(snapshot.Snapshots):
    """A snapshot holds no remembered results: a repetition takes effect once more."""

    def stage(self, chunk: SnapshotChunk) -> bool:
        return super().stage(_without(IDS, chunk))


class WithoutNotes(snapshot.Snapshots):
    """A snapshot does not tell which slots the shard has given and taken."""

    def stage(self, chunk: SnapshotChunk) -> bool:
        return super().stage(_without(NOTES, chunk))


class WithoutParts(snapshot.Snapshots):
    """A snapshot does not hold what the shard has given to others."""

    def stage(self, chunk: SnapshotChunk) -> bool:
        return super().stage(_without(PARTS, chunk))


def _without(table: str, chunk: SnapshotChunk) -> SnapshotChunk:
    tag = bytes([TABLES.index(table)])
    return msgspec.structs.replace(chunk, rows=[row for row in chunk.rows if row[0][:1] != tag])


@rewrite("given", "if 0 < number <= position:", "if False:")
class WithoutDeliveredIds(DeliveredLog):
    """A snapshot does not say which messages were delivered: they may be ordered again."""


@rewrite("given", "if 0 < entry.position <= position:", "if False:")
class WithoutUnsettled(History):
    """What was delivered and is not settled is not in a snapshot, though others have forgotten it."""


@rewrite("given", "if 0 < number <= position:", "if 0 < number:")
class IdsAhead(DeliveredLog):
    """A snapshot says of later messages, too, that they were delivered."""


@rewrite("given", "if 0 < entry.position <= position:", "if 0 < entry.position:")
class UnsettledAhead(History):
    """A snapshot holds later deliveries, too."""


class SendersPromises(transfer.Snapshots):
    """Who takes a snapshot has promised what its giver has."""

    def _on_request(self, peer: ProcessId, request: SnapshotRequest, now: int, batch: Batch) -> None:
        history, out = self._protocol.history, Outbox()
        leadership: Any = self._protocol.leadership  # type: ignore[attr-defined]
        leadership.keep(out)
        self._protocol.history = _AndMore(history, [(key, value) for key, value, _ in out.changes if value is not None])
        super()._on_request(peer, request, now, batch)
        self._protocol.history = history


class _AndMore:
    def __init__(self, history: Any, more: list[tuple[bytes, bytes]]):
        self._history, self._more = history, more

    def given(self, position: int, timestamp: Timestamp) -> Iterable[tuple[bytes, bytes]]:
        return [*self._history.given(position, timestamp), *self._more]

    def taken(
        self, own: Mapping[bytes, bytes], given: Mapping[bytes, bytes], position: int, timestamp: Timestamp
    ) -> Mapping[bytes, bytes | None]:
        raise AssertionError("it only gives")


@rewrite("read", "SnapshotChunk(_position(view), ", "SnapshotChunk(max(1, _position(view) - 1), ")
class AheadOfItsPosition(snapshot.Snapshots):
    """The rows of a snapshot are of one delivery more than it says."""


@rewrite("_fetch", "self._patience = min(2 * self._patience, RETRY_US_MAX)", "pass")
class NeverPatient(transfer.Snapshots):
    """Where every answer takes long each comes from somebody who was given up."""


@rewrite("_on_gone", "not (self.source is not None and self._completed() < self._position)", "True")
class StagedOver(transfer.Snapshots):
    """Before a whole snapshot is sealed the first chunk of another one may be staged over it."""


@rewrite("install", "self._backend.unstage()", "pass")
class StagedForGood(snapshot.Snapshots):
    """What was fetched in part takes room until another snapshot is fetched."""


@rewrite("stage", "not 1 < len(key) <= _KEY_BYTES_MAX", "False")
class AnyKeyIsStaged(snapshot.Snapshots):
    """Of a row that cannot be kept, and no correct peer sends, the replica dies."""


PLANTED_IN_STORE = (
    Planted("without_results", "", core=WithoutResults, settings=SMALL),
    Planted("without_notes", "memory", core=WithoutNotes, settings=MOVING),
    Planted("without_parts", "memory", core=WithoutParts, settings=MOVING),
    Planted("without_delivered_ids", "", core=WithoutDeliveredIds, settings=SMALL),
    Planted("without_unsettled", "", core=WithoutUnsettled, settings=SMALL),
    Planted("ids_ahead", "", core=IdsAhead, settings=SMALL),
    Planted("unsettled_ahead", "", core=UnsettledAhead, settings=SMALL),
    Planted("senders_promises", "", core=SendersPromises, settings=SMALL),
    Planted("ahead_of_its_position", "", core=AheadOfItsPosition, settings=SMALL),
    Planted("never_patient", "", core=NeverPatient, settings=SMALL),
    Planted("staged_over", "", core=StagedOver, settings=SMALL),
    Planted("staged_for_good", "", core=StagedForGood, settings=SMALL),
    Planted("any_key_is_staged", "", core=AnyKeyIsStaged, settings=SMALL),
)
