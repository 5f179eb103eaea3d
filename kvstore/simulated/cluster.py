"""Replicas in a simulated world: each a protocol, a `Replica` and a `Store`; commits survive crashes, layers do not."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, NamedTuple

import msgspec

from kvstore.api.model import KeyValue, Transaction
from kvstore.api.shard_map import ShardMap
from kvstore.core.audit import Outcome, decode_outcomes
from kvstore.core.bundler import UNDER_WAY
from kvstore.core.bundles import NO_ID, decode_bundle, decode_transaction, unnamed_id, version_of
from kvstore.core.leases import PORTION as PORTION_LEASES
from kvstore.core.moves import PORTION
from kvstore.core.replica import Replica
from kvstore.core.rights import RULES
from kvstore.core.shards import SILENT_US
from kvstore.core.signals import SignalRule, signals_for
from kvstore.core.watches import BUFFER_BYTES_MAX
from kvstore.simulated import asking, turns, votes
from kvstore.simulated.given import Given
from kvstore.simulated.settling import Settling
from kvstore.simulated.spinning import Spinning
from kvstore.storage.backend import PROTOCOL, MemoryBackend
from kvstore.storage.cut import Cut, Cuts
from kvstore.storage.history import HISTORY_BYTES_MAX, HISTORY_US, LOOKED_MAX, PORTION_CHANGES
from kvstore.storage.snapshot import Snapshots
from kvstore.storage.store import Store, owner_of
from multicast import registry
from multicast.application import Application
from multicast.batch import Batch
from multicast.journal import Journal
from multicast.parts.ballots import REMOVED
from multicast.protocol import MulticastProtocol
from multicast.records import SEGMENT_BYTES_MAX, Completed, Delivered, Installed
from multicast.simulation import drawing
from multicast.simulation.disk import SimulatedDisk
from multicast.simulation.dropping import Dropping
from multicast.simulation.growing import topology_of
from multicast.simulation.memory import snapshot_faults
from multicast.simulation.network import Conditions, Script
from multicast.simulation.recovery import RecoveryCheck
from multicast.simulation.scene import Node
from multicast.simulation.world import World
from multicast.snapshot import CHUNK_BYTES
from multicast.types import FINAL, GroupId, MessageId, ProcessId, Timestamp, Topology, created_us
from multicast.wire import SnapshotChunk

DEDUP_WINDOW_US = 20_000_000
COMMIT_CHANCE = 0.02
"""A batch is followed by the commit of everything completed so far with this chance."""
BUNDLES_AT_ONCE = (2, 2, 2, 1, UNDER_WAY)
SILENCES_US = (300_000, 1_000_000, SILENT_US)
"""After so long a shard is taken for dead."""
"""Of one flow: the fewer, the larger they are."""
CHUNKS_BYTES = (300, 3_000, CHUNK_BYTES)
"""Of a snapshot's rows."""
LAGS_MAX = (3, 10, 30)
"""A member that is up and lacks no more deliveries than this will still find them."""
DROP_CHANCES = (0.0, 0.0, 0.1, 0.5, 1.0)
"""After a commit what it covers is gone from the journal, for whoever asks, with one of these chances."""
SEGMENT_BYTES = (SEGMENT_BYTES_MAX, 16_384, 4_096, 1_024)
"""Of journals."""
CHECKPOINT_CHANCE = 0.02
"""A batch is followed by a checkpoint of the protocol's state with this chance."""
ASKING_EVERY = 4
"""Batches: after so many there is a look whether each client is known that waits."""
HISTORIES = ((HISTORY_US, HISTORY_BYTES_MAX), (400_000, HISTORY_BYTES_MAX), (2_000_000, 1_000))
"""For how long, and how many bytes, what was overwritten is kept."""


class Executed(msgspec.Struct, frozen=True):
    """One transaction in a replica's journal, or a read at a leader as if it stood there. id: by which its client knows
    it (`unnamed_id` if it has none). expired: it came too late for its id. outcome: None while it is not completed."""

    position: int
    version: Timestamp
    expired: bool
    id: MessageId
    destinations: tuple[GroupId, ...]
    transaction: Transaction
    outcome: Outcome | None


class Moved(msgspec.Struct, frozen=True):
    """The last step of a move. rows: key -> version, of all that was given."""

    source: GroupId
    target: GroupId
    slots: frozenset[int]
    rows: dict[bytes, Timestamp]


class Logged(msgspec.Struct, frozen=True):
    """One delivery in a replica's journal, a bundle. record: of its outcomes, empty while it is not completed."""

    position: int
    timestamp: Timestamp
    id: MessageId
    record: bytes
    transactions: list[Executed]


class Kept(NamedTuple):
    """What a replica of this shard kept for the cut with this version."""

    shard: GroupId
    version: Timestamp
    cut: Cut


class _RecordedCuts(Cuts):
    """Of one replica: all that it ever kept goes to `kept`, too."""

    def __init__(self, shard: GroupId, kept: list[Kept]):
        super().__init__()
        self._shard = shard
        self._record = kept

    def keep(self, version: Timestamp, cut: Cut) -> None:
        self._record.append(Kept(self._shard, version, cut))
        super().keep(version, cut)


class SimulatedCluster:
    """`shards` groups of `replicas` replicas of a protocol, or its name, in a world of their own; or of so many each.

    options: the protocol's, as text, over clock "hybrid" and the deduplication window. signals: see `Replica`;
    None: as the live store decides it (`signals_for`).
    replica, store: classes, for planted bugs. installations: of snapshots, so far. name: see `World`. spares: replicas
    that may be added to shards. later: those of one more shard, which may be added.
    shared_reads: see `Replica`. drops: old segments of journals may go. kept: whatever was kept for cuts. ruled_us:
    when a replica has last executed a change of rights, or begun a life. deleted_at: at which position of its log a
    replica has last deleted anything, in whichever life.
    """

    def __init__(
        self,
        protocol: str | type[MulticastProtocol],
        shards: int,
        replicas: int | Sequence[int],
        seed: int | str,
        *,
        signals: SignalRule | None = None,
        options: Mapping[str, Any] | None = None,
        conditions: Conditions | None = None,
        script: Script | None = None,
        replica: type[Replica] = Replica,
        store: type[Store] = Store,
        name: str = "",
        drops: bool = False,
        spares: Mapping[GroupId, Sequence[ProcessId]] | None = None,
        shared_reads: bool = False,
        later: Sequence[ProcessId] = (),
    ):
        self.protocol = registry.load(protocol) if isinstance(protocol, str) else protocol
        more = {shards: tuple(later)} if later else {}
        sizes = [replicas] * shards if isinstance(replicas, int) else replicas
        self.topology = Topology(drawing.groups_of(sizes), {**(spares or {}), **more})
        self.shard_map = ShardMap.even(list(self.topology.groups))
        self.signals = signals
        self._shared_reads = shared_reads
        values = {"clock": "hybrid", **(options or {})}
        if values["clock"] == "hybrid":
            values.setdefault("dedup_window_us", DEDUP_WINDOW_US)
        self.options = drawing.protocol_options(self.protocol, {name: str(value) for name, value in values.items()})
        self._replica_class, self._store_class = replica, store
        self.backends = {pid: MemoryBackend() for pid in self.topology.group_of}
        self.stores: dict[ProcessId, Store] = {}
        self.replicas: dict[ProcessId, Replica] = {}
        self.commits = 0
        self.kept: list[Kept] = []
        self.ruled_us: dict[ProcessId, int] = {}
        self.deleted_at: dict[ProcessId, int] = {}
        self.portion = self.handed = PORTION
        self._frozen_at: dict[ProcessId, int] = {}
        self._rng = random.Random(f"{seed}/commits")
        self._bundles_at_once = random.Random(f"{seed}/bundles").choice(BUNDLES_AT_ONCE)
        self._leases_portion = random.Random(f"{seed}/portions of leases").choice((1, 2, PORTION_LEASES))
        self._silent_us = random.Random(f"{seed}/silence").choice(SILENCES_US)
        self._checkpoint_rng = random.Random(f"{seed}/checkpoints")
        self._drop_rng = random.Random(f"{seed}/drops")
        self._drop_chance = self._drop_rng.choice(DROP_CHANCES)
        self._chunk_bytes = self._drop_rng.choice(CHUNKS_BYTES)
        self._lag_max = self._drop_rng.choice(LAGS_MAX)
        own = random.Random(f"{seed}/history")
        self._history, self._looked_max = own.choice(HISTORIES), own.choice((2, 5, LOOKED_MAX))
        self._changes = own.choice((1, 5, PORTION_CHANGES))
        self._buffer_bytes = own.choice((1_000, 16_000, BUFFER_BYTES_MAX))
        self.installations = 0
        self._given = Given(self.options.dedup_window_us)
        self._settling = Settling(self.options.dedup_window_us, lambda text: self.world.report("memory", text))
        self._spinning = Spinning()
        self.world = World(
            self.topology,
            self._make_process,
            seed,
            conditions,
            script=script,
            on_batch=self._on_batch,
            on_flushed=self._on_flushed,
            on_lost_disk=self._on_lost_disk,
            installer=self,
            segment_bytes_max=random.Random(f"{seed}/segments").choice(SEGMENT_BYTES if drops else SEGMENT_BYTES[:1]),
            name=name,
        )
        self.world.recovery = RecoveryCheck(self._spare, seed)
        self.dropping = Dropping(seed, self._held, archives=True)

    @property
    def keeps_history(self) -> bool:
        """Whether every replica knows everything that was ever overwritten."""
        return self._history == HISTORIES[0] and not self.installations

    @property
    def shards(self) -> dict[GroupId, tuple[ProcessId, ...]]:
        """All that have begun, with their first replicas."""
        first, begun = self.topology.groups, self.world.topology.groups
        return {**{g: some for g, some in self.topology.spares.items() if g in begun}, **first}

    def _make_process(
        self, pid: ProcessId, rng: random.Random, disk: SimulatedDisk
    ) -> tuple[MulticastProtocol, Replica]:
        store = self.stores[pid] = self._store_class.open(self.backends[pid], self.world.cluster, pid, *self._history)
        store.cuts = _RecordedCuts(self.topology.group_of[pid], self.kept)
        store.looked_max, store.portion = self._looked_max, self._changes
        self._frozen_at.pop(pid, None)
        self._watch(pid, store)
        self._settling.watch(pid, store)
        protocol = self._protocol(pid, rng)
        replica = self.replicas[pid] = self._replica_class(
            pid,
            protocol.topology,
            self.shard_map,
            store,
            signals=self.signals or signals_for(protocol.strict_groups_max()),
            dedup_window_us=self.options.dedup_window_us,
            leader_of=protocol.leader_of,
            real_clock=protocol.real_clock,
            leader_reads=protocol.specification.leader_reads,
            shared_reads=self._shared_reads,
            has_majority=protocol.has_majority,
            waits_for=protocol.waits_for,
            silent_us=self._silent_us,
            digest_every=1,
            rng=random.Random(rng.getrandbits(64)),
        )
        votes.watch(replica, lambda text: self.world.report("votes", text))
        turns.watch(replica, lambda text: self.world.report("asked", text))
        replica.clients.bundler.at_once = self._bundles_at_once
        replica.moves.portion, replica.moves.handed = self.portion, self.handed
        replica.watches.buffer_bytes_max = self._buffer_bytes
        replica.leases.portion = self._leases_portion
        return protocol, replica

    def _watch(self, pid: ProcessId, store: Store) -> None:
        """See `ruled_us` and `deleted_at`."""
        set_note, write, place = store.set_note, store.write, store.place

        def noted(key: bytes, value: bytes | None) -> None:
            if key.startswith(RULES):
                self.ruled_us[pid] = self.world.now
            set_note(key, value)

        def wrote(key: bytes, value: bytes | None, *others: Any) -> None:
            if value is None:
                self.deleted_at[pid] = self.replicas[pid].log.completed + 1
            write(key, value, *others)

        def placed(key: bytes, row: KeyValue | None, at: Timestamp) -> None:
            if row is None:
                self.deleted_at[pid] = self.replicas[pid].log.completed + 1
            place(key, row, at)

        self.ruled_us[pid] = self.world.now
        self.deleted_at.setdefault(pid, 0)
        own: Any = store
        own.set_note, own.write, own.place = noted, wrote, placed

    def hand_over(self, rows: int) -> None:
        """About so many with a step of a move."""
        self.handed = rows
        for replica in self.replicas.values():
            replica.moves.handed = rows

    def _protocol(self, pid: ProcessId, rng: random.Random) -> MulticastProtocol:
        return self.protocol(pid, topology_of(self.topology, pid), self.options, rng)

    def _spare(self, pid: ProcessId, rng: random.Random) -> tuple[MulticastProtocol, Application]:
        """For `RecoveryCheck`: only what the protocol needs."""
        application = Application()
        application.position = self._store_class.open(self.backends[pid], self.world.cluster, pid).position
        return self._protocol(pid, rng), application

    def _held(self, pid: ProcessId) -> int:
        """The position that this replica's store has reached; who has not begun its first life has none."""
        return self.stores[pid].position if pid in self.stores else 0

    def _on_lost_disk(self, node: Node) -> None:
        backend = self.backends[node.pid] = MemoryBackend()
        self.stores[node.pid] = self._store_class.open(backend, self.world.cluster, node.pid)

    def before_life(self, node: Node) -> None:
        """See `multicast.simulation.catching_up.Installer`."""
        keeper = Snapshots(self.backends[node.pid], self._chunk_bytes)
        protocol = self._protocol(node.pid, random.Random(0))
        owner = owner_of(self.world.cluster, node.pid)
        if keeper.install(node.journal, protocol, owner, (node.life, "fsync"), node.clock()) is not None:
            self.installations += 1
            node.life += 1
        node.keeper = keeper if protocol.history is not None else None

    def seal(self, node: Node, chunk: SnapshotChunk) -> None:
        """See `multicast.simulation.catching_up.Installer`."""
        source = node.engine.snapshots.source
        assert isinstance(node.keeper, Snapshots) and source is not None
        giver = self.world.node(source)
        if giver.up and giver.engine.position >= chunk.position:
            rows = dict(self.backends[node.pid].staged(PROTOCOL))
            for text in islice(snapshot_faults(giver.protocol, chunk.position, rows), 1):
                self.world.report("snapshot", f"of process {source}, position {chunk.position}: {text}")
        if not node.keeper.seal(source, chunk.position, chunk.timestamp):
            self.world.report("snapshot", f"process {node.pid} was given one that is not what its digest says")

    def _on_batch(self, node: Node, batch: Batch) -> None:
        for text in self._given.after_batch(node.pid, self.replicas[node.pid]):
            self.world.report("memory", text)
        self._settling.after_batch(node.pid, self.replicas[node.pid])
        if self._spinning.after_batch(node.pid, batch, node.clock()):
            self.world.report("idle", f"replica {node.pid} is woken again and again, and does nothing")
        for shard in asking.accused(self.replicas[node.pid]):
            self.world.report("asked", f"replica {node.pid} says that its shard waits for shard {shard}, which is well")
        if node.tokens and not batch.number % ASKING_EVERY and node.engine.idle:
            lost = sorted(node.tokens.keys() - set(asking.waiting(self.replicas[node.pid])))
            if lost:
                text = f"replica {node.pid} has forgotten {len(lost)} requests, and has not answered them"
                self.world.report("asked", text)
        if self._rng.random() < COMMIT_CHANCE and self.stores[node.pid].freeze(node.engine.completed):
            self._frozen_at[node.pid] = batch.number
        if self._checkpoint_rng.random() < CHECKPOINT_CHANCE:
            with suppress(OSError):  # it dies of the disk soon
                before = node.checkpoints.latest()
                if node.checkpoints.advance().file == before.file and before.offset:
                    self.world.report("recovery", f"process {node.pid} writes over the checkpoint that counts")
        if node.protocol.role() == REMOVED:
            self.world.schedule(self.world.now, self._end, node, node.life)

    def _end(self, node: Node, life: int) -> None:
        """It was removed, as it has been told: as `kvstore.host` ends it, and whenever it begins again."""
        if node.life == life:
            self.world.crash(node.pid, power=False)

    def _on_flushed(self, node: Node, number: int) -> None:
        self.dropping.at_flush(node)
        frozen_at = self._frozen_at.get(node.pid)
        if frozen_at is not None and frozen_at <= number:
            del self._frozen_at[node.pid]
            self.stores[node.pid].commit()
            self.stores[node.pid].thawed()
            self.commits += 1
            if node.keeper is not None and self._drop_rng.random() < self._drop_chance:
                self._drop(node)

    def _drop(self, node: Node) -> None:
        """What is committed goes, unless a member that is up needs it and is not far behind."""
        position = self.stores[node.pid].position
        mates = [self.world.node(pid) for pid in self.world.topology.groups[self.topology.group_of[node.pid]]]
        if all(position - mate.engine.completed not in range(1, self._lag_max + 1) for mate in mates if mate.up):
            node.floor = position

    def log(self, pid: ProcessId) -> list[Logged]:
        """What a replica's journal says, in order; what a snapshot stood for is not in it."""
        node = self.world.node(pid)
        return self._read_log(self.dropping.whole(node, node.disk))

    def lost_logs(self, pid: ProcessId) -> list[list[Logged]]:
        """What those of its disks that were lost had said."""
        node = self.world.node(pid)
        return [self._read_log(self.dropping.whole(node, disk)) for disk in node.lost_disks]

    def installed(self, pid: ProcessId) -> dict[int, bytes]:
        """The positions of the snapshots that a replica has installed, by its journal, with the state's digests."""
        node = self.world.node(pid)
        journal = self.dropping.whole(node, node.disk)
        found = (record for _, record in journal.tail(journal.begin) if type(record) is Installed)
        return {record.position: record.digest for record in found}

    def _read_log(self, journal: Journal) -> list[Logged]:
        delivered: list[Delivered] = []
        records: dict[int, bytes] = {}
        for _, record in journal.tail(journal.begin):
            if type(record) is Delivered and record.stage == FINAL:
                delivered.append(record)
            elif type(record) is Completed:
                records[record.position] = record.record
        return [_logged(d, records.get(d.position, b""), self.options.dedup_window_us) for d in delivered]

    def unfinished(self, dead: Collection[ProcessId] = ()) -> bool:
        """Whether some replica, but for the dead, is down, behind another of its shard, or not readmitted after the
        loss of its disk, or has something delivered and not completed."""
        for group in self.shards:
            members = [pid for pid in self.world.topology.groups[group] if self.world.belongs(pid)]
            longest = max(self.world.node(pid).engine.position for pid in members)
            for pid in members:
                node = self.world.node(pid)
                if pid not in dead and not (node.up and node.protocol.is_member() and node.engine.completed == longest):
                    return True
        return False


def _logged(d: Delivered, record: bytes, window_us: int) -> Logged:
    outcomes = decode_outcomes(record).outcomes if record else None
    found = []
    for index, bundled in enumerate(decode_bundle(d.message)):
        message_id = bundled.id or unnamed_id(d.message.id, index)
        outcome = outcomes[index] if outcomes is not None else None
        version = version_of(d.timestamp, index)
        expired = d.expired or (bundled.id != NO_ID and 0 < window_us < d.timestamp.time - created_us(bundled.id))
        transaction = decode_transaction(bundled)
        found.append(Executed(d.position, version, expired, message_id, d.message.destinations, transaction, outcome))
    return Logged(d.position, d.timestamp, d.message.id, record, found)
