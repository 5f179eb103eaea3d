"""One live replica: protocol, transactions, journal and LMDB joined over the asyncio host.

Theory of operation. `multicast.runtime.Host` drives the protocol and `kvstore.core.replica.Replica` and journals what
they do. The replica writes into the store's write buffer, which `kvstore.committing` moves to LMDB. LMDB always holds a
prefix of what the journal holds, so recovery is LMDB plus what the journal has delivered after that position.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from functools import partial, reduce
from pathlib import Path
from typing import Any

import msgspec

from kvstore import changing, identity
from kvstore.api.cluster import FETCHES, ClusterJson, LimitsJson
from kvstore.committing import Committer, when_there_is_room
from kvstore.config import NO_ARCHIVE, ClusterConfig, ConfigError, ReplicaConfig, check
from kvstore.core.messages import Answered, Execute, Follow, Followed, Lookup, Refused, Told
from kvstore.core.replica import Replica
from kvstore.core.rights import Rights
from kvstore.core.signals import signals_for
from kvstore.disk import free_bytes, open_disk
from kvstore.leaders import Leaders
from kvstore.members import Wanted, ask_for, decode_note, note, shards_json, with_new
from kvstore.storage.cut import Cut
from kvstore.storage.snapshot import Snapshots
from kvstore.storage.store import Store, owner_of
from multicast import registry
from multicast.batch import Batch
from multicast.logs import structlog
from multicast.membership import Membership
from multicast.parts.ballots import REMOVED
from multicast.protocol import MulticastProtocol, Overloaded
from multicast.retention import Retention
from multicast.runtime.aside import pause
from multicast.runtime.clock import wall_us
from multicast.runtime.disk import FileDisk
from multicast.runtime.failpoints import SENT, Failpoints
from multicast.runtime.fence import Places
from multicast.runtime.host import Host, HostStopped
from multicast.runtime.tls import Tls
from multicast.segments import segment_name
from multicast.types import MessageId, ProcessId, Timestamp, new_message_id
from multicast.wire import SnapshotChunk

SWEEP_SECONDS = 15.0
"""A snapshot that a peer has not asked for since so long is given up."""
ROOM_SECONDS = 0.1
"""So often a replica looks how much room is left on its disk."""

MET_MAX = 64
"""Of so many replicas that nobody has told of the greetings are taken, in one life of the process."""
NOT_TAKEN = -1
"""Stands for the token of a request that was answered at once."""

_log = structlog.get_logger("kvstore.host")


class LiveReplica:
    """Replica `replica_id` of the cluster in `directory`.

    Opening reads and checks everything on disk and changes nothing but an unfinished journal tail. It raises
    ConfigError, JournalError, StorageError or OSError: one line each. It blocks; `start` then runs on the loop.
    failpoints: what is to go wrong, for tests. tls: of the links to peers.

    failed: done when our own bug or a disk error has stopped this replica; `failure` says which. removed: done when it
    was removed from its shard, and has nothing more to do. From `start` on.
    """

    failed: asyncio.Future[None]
    removed: asyncio.Future[None]

    def __init__(
        self, directory: Path, config: ClusterConfig, replica_id: ProcessId, failpoints: Failpoints | None = None,
        tls: Tls | None = None,
    ):  # fmt: skip
        self.config = config
        self.me = config.replica(replica_id)
        self._random = random.Random(random.SystemRandom().getrandbits(256))
        self._directory = directory
        self._home = identity.claim(directory, config, replica_id)
        self._failpoints, self._tls = failpoints, tls
        self._addresses = {r.id: r.peer_address for r in config.replicas if not (r.added and r.removed)}
        self._addresses[replica_id] = (self.me.host, self.me.peer_port)
        self._met_since: list[ReplicaConfig] = []
        self._failure = ""
        self._leaders = Leaders()
        self._looking: asyncio.TimerHandle | None = None
        self._sweeping: asyncio.TimerHandle | None = None
        self._renewal: asyncio.Task[None] | None = None
        self._closed, self._stopping = True, False
        self._open()

    def _open(self) -> None:
        """What a life begins with: what is on disk, and nothing else."""
        config, home, replica_id = self.config, self._home, self.me.id
        topology, options = config.topology(replica_id), config.options()
        protocol_class = registry.load(config.protocol)

        def new_protocol() -> MulticastProtocol:
            return protocol_class(replica_id, topology, options, random.Random(self._random.getrandbits(64)))

        self._protocol = new_protocol()
        added = [r for r in config.replicas if r.added and not r.removed and r != self.me]
        named = [r for r in added if r.shard in topology.groups]
        for replica in (*named, *self._met_since):
            self._meet(replica)
        with contextlib.ExitStack() as opened:  # a directory that cannot be used is given back
            self._disk, self._journal, backend = open_disk(config, self.me, home, opened, self._failpoints)
            begun, known = self._journal.end or segment_name(0) in self._disk.list(), identity.read(home)
            self._lost_disk = known.lost_disk
            self._snapshots = Snapshots(backend)
            owner = owner_of(config.cluster, replica_id)
            if begun:  # else whoever has lost its disk would be taken for one that has not
                self._snapshots.install(self._journal, new_protocol(), owner, (wall_us(), config.durability), wall_us())
            life = self._journal.life()
            if life is not None and life < self.me.since:
                raise ConfigError(f"{home} is of the replica {replica_id} in whose place another one was put")
            self._store = Store.open(
                backend, config.cluster, replica_id, config.limits.history_ms * 1000, config.limits.history_bytes_max
            )
            if known.started and not known.lost_disk and not begun:
                remedy = identity.lost_disk_remedy(self._directory, config, replica_id)
                raise ConfigError(f"{home / 'journal'} is empty: {remedy}")
            opened.pop_all()
            self._closed = False
        self._replica = Replica(
            replica_id,
            self._protocol.topology,
            config.map(),
            self._store,
            signals=signals_for(self._protocol.strict_groups_max()),
            dedup_window_us=options.dedup_window_us,
            leader_of=self._protocol.leader_of,
            real_clock=self._protocol.real_clock,
            leader_reads=protocol_class.specification.leader_reads,
            has_majority=self._protocol.has_majority,
            waits_for=self._protocol.waits_for,
            full=lambda: bool(self.full()),
            rng=random.Random(self._random.getrandbits(64)),
        )
        self._replica.watches.buffer_bytes_max = config.limits.watch_buffer_bytes_max
        self._host: Host | None = None
        self._absent: str | None = None
        self._suspended = False
        self._committer = Committer(self._store, config.limits, self._is_stopping, self._on_ended)
        self._room = free_bytes(self._disk, self._home)

    # -- life ---------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Recover and join the others. OSError or PortBusy if the peer port cannot be had."""
        if not self._journal.end:  # its file is to be there, should this life end before anything is written
            self._journal.append(b"")
        identity.mark_started(self._home)
        self.failed = asyncio.get_running_loop().create_future()
        self.removed = asyncio.get_running_loop().create_future()
        await self._begin()

    async def _begin(self) -> None:
        """A life."""
        self._host = Host(
            protocol=self._protocol,
            application=self._replica,
            journal=self._journal,
            addresses=self._addresses,
            address_of=lambda _, note: decode_note(note).peer_address,
            on_members=self._on_members,
            cluster=self.config.cluster,
            durability=self.config.durability,
            on_batch=self._on_batch,
            on_flushed=self._on_flushed,
            lost=self._lost_disk,
            keeper=self._snapshots if self._protocol.history is not None else None,
            on_snapshot=self._on_snapshot,
            wall=self._failpoints.wall if self._failpoints else wall_us,
            retention=self._retention(),
            places=self._places(),
            tls=self._tls,
            incarnation=max(wall_us(), self.me.since) if self.me.since and not self._journal.end else None,
        )
        self._committer.follow(self._host)
        await self._host.start()
        self._host.failed.add_done_callback(self._on_ended)
        self._committer.wait_for_next()
        self._look_for_room()
        self._sweep()
        position, cut_bytes = self._host.engine.position, self._journal.cut_bytes
        _log.info("recovered", position=position, from_lmdb=self._replica.position, cut_bytes=cut_bytes)

    async def stop(self) -> None:
        """Flush, write the record of a good end, and bring LMDB up to date. Does what it can after a failure."""
        self._stopping = True
        if self._renewal is not None:
            await asyncio.wait([self._renewal])
        self._cancel_timers()
        if self._host is not None:
            await self._host.stop()
            if not self._failure:
                await self._committer.commit_rest()
        if not self._closed:
            self._store.close()
            self._journal.close()

    def _is_stopping(self) -> bool:
        return self._stopping

    def _cancel_timers(self) -> None:
        self._committer.cancel_timer()
        for timer in filter(None, (self._looking, self._sweeping)):
            timer.cancel()

    def _retention(self) -> Retention | None:
        """How much of the journal stays: all of it where nobody can be brought up to date without."""
        if not self.config.archive or self._protocol.history is None:
            return None
        archives = self.config.archive != NO_ARCHIVE
        keep_bytes = self.config.limits.journal_keep_bytes
        return Retention(self._journal, keep_bytes, self._open_archive if archives else None, pause)

    def _open_archive(self) -> FileDisk:
        assert self._host is not None
        life = self._journal.life() or self._host.engine.incarnation  # a replica whose disk was lost begins another
        return FileDisk(self._directory / self.config.archive / "replicas" / str(self.me.id) / f"journal-{life}")

    def put_in_place(self, replica: ReplicaConfig) -> None:
        """This replica takes the place of the one with its id, from now on and after every restart. ConfigError."""

        def placed(stored: ClusterConfig) -> ClusterConfig:
            whole = reduce(ClusterConfig.with_replica, stored.replicas, self.config)  # it knows who was added, too
            known = whole.replica(replica.id)
            if replica.id == self.me.id or replica.shard != known.shard or replica.since < known.since:
                raise ConfigError(f"replica {replica.id}: it cannot be put in the place of the one that is known here")
            return stored.with_replica(replica)

        changing.update(self._directory, placed)
        self.config = self.config.with_replica(replica)
        self._addresses[replica.id] = replica.peer_address
        if self._host is not None:
            self._host.move(replica.id, self._addresses[replica.id], replica.since)

    def _places(self) -> Places:
        since = {replica.id: replica.since for replica in self.config.replicas}
        mine = note(self.me) if self.me.since or self.me.added else b""
        return Places(since, mine, self._told_of_place, self._met)

    def _met(self, replica_id: ProcessId, place: bytes) -> None:
        """A replica greets that is not known here: perhaps it was added to its shard after this configuration was
        written, and those whom that names were gone before they could tell. What the shard says of it is learned from
        it, as from any other; here it gets links, no more."""
        try:
            replica = decode_note(place)
            check(reduce(ClusterConfig.with_replica, (*self._met_since, replica), self.config), "its greeting")
        except (msgspec.MsgspecError, UnicodeDecodeError, ConfigError) as error:
            _log.warning("a replica greets that is not known here", replica=replica_id, reason=str(error))
            return
        shards = self._protocol.topology.groups
        fits = replica.id == replica_id and replica.shard in shards and replica.added and not replica.removed
        if not fits or replica.id in self._addresses or len(self._met_since) >= MET_MAX:
            return
        self._met_since.append(replica)
        self._meet(replica)
        if self._host is not None:
            self._host.move(replica.id, replica.peer_address, replica.since)
            _log.info("a replica is new here", replica=replica_id, shard=replica.shard, at=replica.url)

    def _meet(self, replica: ReplicaConfig) -> None:
        topology = self._protocol.topology
        if isinstance(topology, Membership):
            topology.meet(replica.id, replica.shard)
            self._addresses[replica.id] = replica.peer_address

    def _told_of_place(self, replica_id: ProcessId, place: bytes) -> None:
        """A replica greets that took the place of another machine; this one may have been away when all were told."""
        try:
            replica = decode_note(place)
            known = next((r.since for r in self.config.replicas if r.id == replica_id == replica.id), replica.since)
            if replica.since > known:
                self.put_in_place(replica)
                _log.info("another machine has taken the place of a replica", replica=replica_id, at=replica.url)
        except (msgspec.MsgspecError, UnicodeDecodeError, ConfigError, OSError) as error:
            _log.warning("where a replica is now could not be noted", replica=replica_id, reason=str(error))

    # -- snapshots ----------------------------------------------------------------------------------------------------

    def _on_snapshot(self, chunk: SnapshotChunk) -> None:
        """All of one is staged."""
        self._renewal = asyncio.get_running_loop().create_task(self._renew(chunk))
        self._renewal.add_done_callback(self._on_ended)

    async def _renew(self, chunk: SnapshotChunk) -> None:
        """End this life, and begin the next one with the snapshot, unless the replica has come further without it."""
        host, self._host = self._host, None
        assert host is not None
        self._cancel_timers()
        self._committer.unfollow()
        await host.stop()
        await self._committer.finish()
        if self._failure:  # nobody knows what is on the disk: not even a life of this process begins with that
            return
        source = host.engine.snapshots.source
        if source is not None and host.engine.completed < chunk.position:
            seal = partial(self._snapshots.seal, source, chunk.position, chunk.timestamp)
            whole = await when_there_is_room(seal, self._is_stopping)
            what = "a snapshot is complete" if whole else "a snapshot is not what its digest says: dropped"
            _log.info(what, source=source, position=chunk.position, had=host.engine.completed)
        self._closed = True
        self._store.close()
        await when_there_is_room(self._open, self._is_stopping)
        await self._begin()

    def _sweep(self) -> None:
        """Nobody reads a snapshot for ever, or a backup."""
        self._sweeping = asyncio.get_running_loop().call_later(SWEEP_SECONDS, self._sweep)  # whatever comes of it now
        self._snapshots.sweep()
        self._store.cuts.sweep()
        if self._suspended and self._host is not None:  # nothing else looks, as nothing is written
            self._host.retain()

    def _on_ended(self, work: asyncio.Future[None]) -> None:
        """What never ends well if it ends with an error: the host, a commit."""
        error = None if work.cancelled() else work.exception()
        if error is not None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """The end."""
        if self._failure:
            return
        self._failure = f"{type(error).__name__}: {error}"
        if not self.failed.done():
            self.failed.set_result(None)
        _log.critical("failed", error=self._failure, exc_info=error)

    # -- what the HTTP interface needs (kvstore.http.app.Node) --------------------------------------------------------

    def request(self, asked: Execute | Lookup | Follow, answer: Told) -> int:
        try:
            if self._host is None:
                raise HostStopped("this replica is recovering")
            return self._host.request(asked, partial(_told, answer))
        except Overloaded as error:
            answer(Refused("overloaded", str(error), retryable=True, outcome="not_applied"))
        except HostStopped as error:
            answer(_stopped(error))
        return NOT_TAKEN

    def forget(self, token: int) -> None:
        if self._host is not None:
            self._host.forget(token)
            self._replica.forget(token)

    def new_message_id(self) -> MessageId:
        if self._host is None:
            return bytes(16)  # nothing is ordered before the start: see `unready`
        return new_message_id(self._host.real_time(), self._random.getrandbits(62))

    def change_members(self, wanted: Wanted) -> bool:
        assert self._host is not None
        return ask_for(wanted, self._protocol, self._host.now(), self.new_message_id(), self._host.submit)

    def _on_members(self) -> None:
        """The members of a shard have changed: some may be new."""
        self.config = with_new(self.config, self._protocol.topology)
        if self._protocol.role() == REMOVED and not self.removed.done():
            self.removed.set_result(None)

    def rights(self) -> Rights:
        return self._replica.rights

    def unready(self) -> str:
        if self._host is None:
            return "this replica is recovering"
        if self.removed.done():
            return "this replica was removed from its shard"
        if self._failure:
            return "this replica has failed"
        if self._suspended:
            return f"this replica stands still: its disk is full, {self._room} bytes are left"
        if not self._committer.flushed:  # nothing on its disk says yet that it has begun
            return "this replica is recovering"
        if self._absent is None:
            self._absent = self._absence(self._host)
        return self._absent

    def _absence(self, host: Host) -> str:
        """Why it takes no part in serving, as of the last batch, for only a batch changes that; empty if it does."""
        if host.disk_hangs:
            return "the disk of this replica hangs: a write to its journal does not return"
        if (fetched := host.engine.snapshots.status()) is not None:
            rows = f"{fetched['rows']} of {fetched['rows_total']} rows"
            return f"this replica {FETCHES} a snapshot from replica {fetched['peer']}: {rows}"
        if not self._protocol.is_member() and self.me.added and not self._lost_disk:
            return f"this replica is new and {FETCHES} what its shard has: {host.engine.position} deliveries so far"
        if not self._protocol.is_member():
            so_far = f"{host.engine.position} deliveries so far"
            return f"this replica has lost its disk and is being readmitted, which takes all others: {so_far}"
        if self._protocol.role() == "recovering":
            return "this replica is recovering: a leader is being agreed on"
        if self._protocol.leader_of(self.me.shard) is None:
            return f"no leader of shard {self.me.shard} is known"
        if self._protocol.leader_of(self.me.shard) == self.me.id and not self._protocol.has_majority():
            return f"this replica leads shard {self.me.shard}, but a majority of its replicas does not answer"
        return self._replica.trouble(self.me.shard)

    def overload(self) -> str:
        pending, limit = self._store.pending_bytes, self.config.limits.buffer_bytes_max
        return f"the write buffer is full: {pending} bytes, buffer_bytes_max is {limit}" if pending > limit else ""

    def full(self) -> str:
        room, limit = self._room, self.config.limits.disk_full_bytes
        return f"the disk is full: {room} bytes are left, disk_full_bytes is {limit}" if room < limit else ""

    def cut(self, version: Timestamp) -> Cut | None:
        found = None if self._host is None else self._store.cuts.find(version)
        if found is not None:
            loop = asyncio.get_running_loop()
            found.on_damage = lambda error: loop.call_soon_threadsafe(self._fail, error)
        return found

    def failure(self) -> str:
        return self._failure

    def status(self) -> dict[str, Any]:
        """Numbers and words for status pages and metrics."""
        status: dict[str, Any] = {"id": self.me.id, "shard": self.me.shard, "ready": not self.unready()}
        if self._host is None:
            return {**status, "role": "starting", "position": 0, "completed": 0}
        status |= self._host.status()
        status["leader_changes"], status["leaderless_seconds"] = self._leaders.changes, self._leaders.seconds_without()
        status["disk_free_bytes"] = self._room
        status["write_buffer_bytes"] = self._store.pending_bytes
        status["store"] = self._replica.status()
        return status

    def describe_cluster(self) -> ClusterJson:
        config, leader_of = self.config, self._protocol.leader_of if self._host is not None else lambda _: None
        limits = LimitsJson(body_bytes_max=config.limits.body_bytes_max, timeout_max_ms=config.limits.timeout_max_ms)
        return ClusterJson(
            cluster_id=config.cluster_id,
            protocol=config.protocol,
            durability=config.durability,
            self_id=self.me.id,
            shard_map=self._replica.moves.map.to_json(),
            dedup_window_ms=config.dedup_window_ms,
            limits=limits,
            shards=shards_json(config, self._protocol.topology, self._replica.moves.map.shards, leader_of),
            replica=self.status(),
        )

    # -- room on the disk ---------------------------------------------------------------------------------------------

    def _look_for_room(self) -> None:
        """Without room to write in nothing is computed, as if the process stood still, so that others take over. The
        room between the two marks is for what was begun, for deletions, and for the log. Where the directory is gone it
        fails: what it would still acknowledge is on no disk."""
        assert self._host is not None
        try:
            self._room = free_bytes(self._disk, self._home)
        except OSError as error:
            self._fail(error)
            return
        self._looking = asyncio.get_running_loop().call_later(ROOM_SECONDS, self._look_for_room)
        suspended = self._room < self.config.limits.disk_stop_bytes or self._host.disk_is_full
        if suspended != self._suspended:
            self._suspended = suspended
            self._host.suspend(suspended)
            what = "the disk is full: standing still" if suspended else "there is room on the disk again: going on"
            _log.warning(what, free_bytes=self._room)

    # -- batches ------------------------------------------------------------------------------------------------------

    def _on_batch(self, batch: Batch) -> None:
        self._leaders.look(self._protocol)
        self._absent = None
        self._committer.on_batch(batch)

    def _on_flushed(self, number: int) -> None:
        if self._failpoints:
            self._failpoints.reached(SENT)
        self._committer.on_flushed(number)


def _told(answer: Told, result: Answered | Followed | Refused | HostStopped) -> None:
    answer(_stopped(result) if isinstance(result, HostStopped) else result)


def _stopped(error: HostStopped) -> Refused:
    return Refused("stopping", str(error), retryable=True, outcome="unknown")
