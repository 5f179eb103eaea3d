"""What is staged of one snapshot, and what follows of another."""

from __future__ import annotations

import random

from kvstore.storage.backend import DATA, MemoryBackend
from kvstore.storage.snapshot import Snapshots
from kvstore.storage.store import Store
from multicast import snapshot
from multicast.batch import Batch
from multicast.protocols.white_box import WhiteBox
from multicast.types import Topology
from multicast.wire import Gone, SnapshotChunk, SnapshotRequest
from tests.kvstore.test_snapshot import commit


def test_what_is_staged_of_one_snapshot_is_not_sealed_as_another() -> None:
    """Its giver dies after all rows of position 2; the next one is behind, at 1, and there is no room for its first."""
    givers, asked, away = {}, [], set()
    for peer, position in ((0, 2), (1, 1)):
        backend = MemoryBackend()
        store, givers[peer] = Store.open(backend), Snapshots(backend)
        for at in range(1, position + 1):
            commit(store, at, b"%d" % at)
    backend = MemoryBackend()
    taker = Snapshots(backend)
    protocol = WhiteBox(2, Topology.grid(1, 3), WhiteBox.specification.options(), random.Random(1))
    part = snapshot.Snapshots(protocol, away, lambda: 0, lambda *one: asked.append(one))
    part.enabled = True
    part.on_message(0, Gone(1), 0, Batch(1))
    no_room = True
    for now in range(0, 30_000_000, 100_000):
        if asked:
            peer, request = asked.pop(0)
            assert type(request) is SnapshotRequest
            batch = Batch(1)
            if peer == 0 and request.after:
                away.add(0)
                continue
            if request.after.startswith(snapshot.OF_PROTOCOL) and (1, 2)[peer == 0] >= request.position:
                chunk = SnapshotChunk(request.position, request.timestamp, request.after, [], b"", 0)
            else:
                chunk = givers[peer].read(2, request)
            part.on_message(peer, chunk, now, batch)
            for one in batch.staging:
                kept = not (no_room and peer == 1) and taker.stage(one)
                no_room = no_room and peer == 0
                part.staged(one, kept, now)
        part.tick(now)
    assert part.source == 1
    assert taker.seal(1, part._position, part._timestamp)
    assert part._position == 1 and dict(backend.staged(DATA))[b"k"][-1:] == b"1"
