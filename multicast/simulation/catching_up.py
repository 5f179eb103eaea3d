"""What a process of a simulated world reads and keeps for itself or a peer that is behind: journals and snapshots."""

from __future__ import annotations

from typing import Protocol

from multicast import wire
from multicast.batch import Batch
from multicast.journal import Gone
from multicast.simulation.scene import Node
from multicast.types import ProcessId


class Installer(Protocol):
    """Of a world whose processes take snapshots."""

    def before_life(self, node: Node) -> None:
        """A life is about to begin, its journal is open: set the keeper, and install what is sealed."""

    def seal(self, node: Node, chunk: wire.SnapshotChunk) -> None:
        """All of a snapshot is staged, this being its last chunk: it is to be installed before the next life."""


def carry_out(node: Node, batch: Batch, bytes_max: int) -> wire.SnapshotChunk | None:
    """What this batch asks for, at once. bytes_max: of one answer with deliveries. The last chunk of a snapshot, if all
    of it is staged now."""
    for peer, position in batch.reads:
        _read(node, peer, position, bytes_max)
    for peer, request in batch.rows:
        if node.keeper is not None and (chunk := node.keeper.read(peer, request)) is not None:
            node.engine.found(peer, chunk)
    for chunk in batch.staging:
        assert node.keeper is not None
        kept = node.keeper.stage(chunk)
        node.engine.staged(chunk, kept)
        if kept and not chunk.next:
            return chunk
    return None


def _read(node: Node, peer: ProcessId, position: int, bytes_max: int) -> None:
    """Deliveries for a peer."""
    try:
        if position <= node.floor:
            raise Gone(node.floor)
        node.engine.found(peer, wire.CatchUpReply(*node.journal.read_deliveries(position, bytes_max)))
    except Gone as gone:
        node.engine.found(peer, wire.Gone(gone.floor))
