"""The host's side of the protocol contract, without IO: batches, lanes, numbering, journal records, catch-up.

Theory of operation. A host (TCP or simulated) puts inputs in (`receive`, `submit`, `request`, ...), and calls `run`,
which drains them through the protocol and the application and returns a `Batch`: journal bytes to append and sync as
one, messages that may leave at once, answers for clients, and when to wake up. The batch's flush is an input, too
(`flushed`): what waited for it leaves with the next run, or before, in a batch of its own (`released`). Nothing leaves
but in a `Batch`. While a flush is under way further batches may be run; flushes complete in order. A message behind a
waiting one to the same peer waits too: one FIFO per link.

Final deliveries are numbered here, go to the application and into the journal. `recover` brings back what a journal
holds. A process that missed deliveries fetches them from a peer's journal (`CatchUpRequest`, `CatchUpReply`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from multicast import records, wire
from multicast.application import Application, ApplicationOutbox
from multicast.batch import Batch
from multicast.catch_up import CatchUp
from multicast.lanes import Lanes
from multicast.protocol import Bulk, MulticastProtocol, Outbox, Overloaded, PeerError, Saved
from multicast.recorder import Recorder
from multicast.snapshot import Snapshots
from multicast.types import FINAL, AppMessage, ProcessId, Timestamp, created_us

_ROUNDS_MAX = 1_000

_MESSAGE, _SUBMIT, _REQUEST, _RESET, _CONNECTED, _STAGED = range(6)


class Engine:
    """One process: a protocol and an application, driven by a host.

    incarnation: differs from that of every other life of this process. durability: for the journal's `Started`.
    copy_to_self: encode and decode messages to oneself too (the simulator does, to catch aliasing).
    discipline: of the wall clock; None where nothing is stamped with it. disk_hangs: the host's, to be heeded in the
    next `run`: a write has been under way for longer than `multicast.disk.HANGS_US`.
    """

    def __init__(
        self,
        protocol: MulticastProtocol,
        application: Application,
        incarnation: int,
        durability: str = "fsync",
        copy_to_self: bool = False,
    ):
        self.protocol = protocol
        self.application = application
        self.self_id = protocol.self_id
        self.incarnation = incarnation
        self.durability = durability
        self.codec = wire.Codec(protocol.specification.messages, application.messages)
        self.position = self.completed = 0
        self.disk_hangs = False
        self.recorder = Recorder()
        self.discipline = protocol.new_discipline()
        self._window = protocol.options.dedup_window_us
        self._copy_to_self = copy_to_self
        self._inputs: deque[tuple[int, Any, Any, Any]] = deque()
        self._out = Outbox()
        self._app_out = ApplicationOutbox()
        self._ended = True
        self._batch = Batch(1)
        self._lanes = Lanes()
        self._held_to_self: deque[tuple[int, int, Any]] = deque()
        self._ahead_us = self._last_journaled = self._flushed = 0
        self._flush_positions: deque[tuple[int, int]] = deque()
        self._durable = self._durable_told = self._journaled_completed = 0
        self._asked_from = 0
        self._catch_up = CatchUp(self.self_id, lambda: protocol.topology.groups[protocol.group])
        self.snapshots = Snapshots(protocol, self._catch_up.away, lambda: self.completed, self._tell)

    # -- life ---------------------------------------------------------------------------------------------------------

    def recover(
        self, written: Iterable[tuple[int, Any]], now: int, lost: bool = False, clock: Callable[[], int] | None = None
    ) -> Batch:
        """The first call. written: (journal offset at its end, record) of the whole journal, up to the last BatchEnd,
        or of what stands for it (`Checkpoint.recovery`). lost: this process took part before, and its disk is gone;
        ignored if there is something on the disk. clock(): what `now` is by when all that is replayed, which may take
        long: timers start then. Returns the first batch. JournalError if deliveries do not follow one another.
        """
        values: dict[bytes, bytes] = {}
        held = self.application.position
        deliveries: list[records.Delivered] = []
        outcomes: dict[int, bytes] = {}
        for offset, record in written:
            kind = type(record)
            if kind is records.Put:
                values[record.key] = record.value
            elif kind is records.Delete:
                values.pop(record.key, None)
            elif kind is records.Delivered:
                if record.position > held:
                    deliveries.append(record)
            elif kind is records.Completed:
                outcomes[record.position] = record.record
            self.recorder.offset = max(self.recorder.offset, offset)
        self.position = self.completed = self._durable = held
        self._journaled_completed = max(outcomes, default=held)
        for d in deliveries:
            if d.position != self.position + 1:
                raise records.JournalError(f"delivery {d.position} follows delivery {self.position} in the journal")
            self.position = d.position
            if not self.application.completes:
                self.completed = d.position
            self.application.on_deliver(d, outcomes.get(d.position), now, self._app_out)
            self._drain(now)
        if clock is not None:
            now = clock()
        first = not self.recorder.offset
        self.recorder.processes = self.protocol.topology.processes
        self.recorder.record(
            records.Started(
                self.incarnation,
                self.self_id,
                self.protocol.group,
                dict(self.protocol.topology.groups),
                self.protocol.specification.name,
                self.durability,
                now,
            )
        )
        self._read_clock(now, 0)
        self.protocol.on_start(Saved(values, self.position, first and not lost, first and lost), now, self._out)
        self._drain(now)
        self.application.on_start(now, self._app_out)
        self._drain(now)
        return self.run(now)

    def stop(self, now: int) -> Batch:
        """The last batch of a life that ends in good order."""
        self.recorder.record(records.Stopped(self.position, self.completed, now))
        self._collect_sends()
        return self._close()

    # -- inputs -------------------------------------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """Whether nothing waits for `run`, neither an input nor a message that may leave."""
        return not self._inputs and not self._batch.sends

    def receive(self, peer: ProcessId, data: bytes) -> bool:
        """An encoded message of a peer, new and in order: whether to `run` for it. PeerError: close the link."""
        return self._put_in(peer, *self.codec.decode(data))

    def _put_in(self, sender: ProcessId, channel: int, message: Any) -> bool:
        """Whether to `run` for it: two that can wait may be what something waits for together."""
        waits = not self._inputs and self.protocol.can_wait(message)
        self._inputs.append((_MESSAGE, sender, channel, message))
        return not waits

    def submit(self, message: AppMessage) -> None:
        """multicast(m). A refusal reaches `Application.on_refused`."""
        self._inputs.append((_SUBMIT, message, None, None))

    def request(self, token: int, request: Any) -> None:
        """A client's request for the application."""
        self._inputs.append((_REQUEST, token, request, None))

    def peer_reset(self, peer: ProcessId) -> None:
        """See `MulticastProtocol.on_peer_reset`."""
        self._inputs.append((_RESET, peer, None, None))

    def connected(self, peer: ProcessId, up: bool) -> bool:
        """Whether there is a connection to this peer; if not, what is sent to it waits. Returns whether that is a
        reason to `run`."""
        if up != (peer in self._catch_up.away):
            return False
        self._inputs.append((_CONNECTED, peer, up, self._catch_up.connected(peer, up)))
        return True

    def found(self, peer: ProcessId, what: wire.CatchUpReply | wire.Gone | wire.SnapshotChunk) -> None:
        """What a read of `Batch.reads` or of `Batch.rows` has found: it leaves for this peer with the next run."""
        self._tell(peer, what)

    def staged(self, chunk: wire.SnapshotChunk, kept: bool) -> None:
        """One of `Batch.staging` is, or could not be kept."""
        self._inputs.append((_STAGED, chunk, kept, None))

    def flushed(self, number: int) -> bool:
        """Batch `number` and all before it are on disk: what waited for that leaves with the next run, or with
        `released`. Returns whether to `run` for what this process has told itself."""
        self._flushed = number
        while self._flush_positions and self._flush_positions[0][0] <= number:
            self._durable = self._flush_positions.popleft()[1]
        own, hurried = self._held_to_self, False
        while own and own[0][0] <= number:
            _, channel, message = own.popleft()
            hurried = self._put_in(self.self_id, channel, message) or hurried
        if released := self._lanes.release(number):
            self._batch.sends += released
            self._batch.hurried = True
        return hurried

    def released(self) -> Batch:
        """A batch of nothing but what may leave by now: somebody waits for it, and there may be nothing to run for."""
        batch = Batch(self._batch.number - 1)
        batch.sends, self._batch.sends = self._batch.sends, []
        batch.hurried, self._batch.hurried = self._batch.hurried, False
        return batch

    # -- batches ------------------------------------------------------------------------------------------------------

    def run(self, now: int, wall: int | None = None) -> Batch:
        """Drain all inputs through protocol and application. now: runs steadily in a life, from what the wall clock
        showed at its begin. wall: what it shows; by default `now`, plus what it was ahead of that before.

        Whatever the protocol does after its `end_batch`, on a timer or for the application, is followed by another one
        in this batch: what `end_batch` saves agrees with everything else that the batch writes.
        """
        out, app_out, inputs = self._out, self._app_out, self._inputs
        protocol, application = self.protocol, self.application
        self._read_clock(now, self._ahead_us if wall is None else wall - now)
        if self._durable > self._durable_told:
            self._durable_told = self._durable
            protocol.on_durable(self._durable, now, out)
            self._drain(now)
        if protocol.election is not None and protocol.election.disk_hangs != self.disk_hangs:
            protocol.election.on_disk(self.disk_hangs, now)
        rounds = 0
        while True:
            while inputs:
                self._take(*inputs.popleft(), now)
                if out.asks or app_out.asks:
                    self._drain(now)
            if self.discipline is not None:
                self._use_clock(now)
            self._ended = True
            protocol.end_batch(now, out)
            if out.asks:
                self._drain(now)
            application.end_batch(now, app_out)
            if app_out.asks:
                self._drain(now)
            if out.sends or out.changes or app_out.sends:
                self._collect_sends()
            wake_protocol = protocol.on_tick(now, out)
            if out.sends or out.changes or out.asks:
                self._ended = False
                self._drain(now)
            wake_application = application.on_tick(now, app_out)
            if app_out.asks:
                self._drain(now)
            if out.sends or out.changes or app_out.sends:
                self._collect_sends()
            if inputs:
                continue
            if self._ended:
                break
            rounds += 1
            if rounds > _ROUNDS_MAX:
                raise AssertionError(f"process {self.self_id} does not come to rest in batch {self._batch.number}")
        self.recorder.members(protocol.topology, self.position, now)
        wake_clock = self.discipline.wake_at if self.discipline is not None else None
        times = wake_protocol, wake_application, wake_clock, self.snapshots.tick(now)
        wakes = [wake for wake in times if wake is not None]
        batch = self._close()
        batch.wake_at = min(wakes, default=None)
        return batch

    # -- inside -------------------------------------------------------------------------------------------------------

    def _take(self, kind: int, a: Any, b: Any, c: Any, now: int) -> None:
        """One input."""
        if kind == _MESSAGE:
            try:
                if b == wire.PROTOCOL:
                    self.protocol.on_message(a, c, now, self._out)
                elif b == wire.APPLICATION:
                    self.application.on_message(a, c, now, self._app_out)
                else:
                    self._on_host_message(a, c, now)
            except PeerError as error:
                self._batch.faulty.append((a, error))
        elif kind == _REQUEST:
            self.application.on_request(a, b, now, self._app_out)
        elif kind == _SUBMIT:
            self._app_out.submit(a)
        elif kind == _CONNECTED:
            self.protocol.on_connected(a, b, now)
            if c and not self._catch_up.alone_with(a):
                self._ask_for_deliveries(self._catch_up.ask_instead_of(a, now))
        elif kind == _STAGED:
            self.snapshots.staged(a, b, now)
        else:
            if self.discipline is not None:
                self.discipline.on_peer_reset(a)
            self.protocol.on_peer_reset(a, now, self._out)
            self.application.on_peer_reset(a, now, self._app_out)
            self._ask_for_deliveries(self._catch_up.ask_instead_of(a, now))

    def _read_clock(self, now: int, ahead_us: int) -> None:
        self._ahead_us = ahead_us
        if self.discipline is None:
            self.protocol.clock_correction = ahead_us
        else:
            self.discipline.read(now, ahead_us)
            self._use_clock(now)

    def _use_clock(self, now: int) -> None:
        """Ask what the peers' clocks show, if it is time, and tell the protocol what they have said."""
        clock = self.discipline
        if clock is None:
            return
        clock.follow(self.protocol.topology.processes)
        if peers := clock.probe(now):
            self._send(peers, wire.HOST, wire.ClockProbe(now), False)
        self.protocol.clock_correction = clock.correction
        if clock.off != self.protocol.clock_off:
            self.protocol.on_clock(clock.off, now)

    def _drain(self, now: int) -> None:
        """Carry out what handlers asked for, and what that leads to; except sends and changes."""
        out, app_out = self._out, self._app_out
        while out.asks or app_out.asks:
            out.asks = app_out.asks = False
            if out.deliveries:
                self._record_changes()
                deliveries, out.deliveries = out.deliveries, []
                for message, timestamp, stage, note in deliveries:
                    self._deliver(message, timestamp, stage, note, None, None, now)
            if out.settlements:
                settlements, out.settlements = out.settlements, []
                for message_id, timestamp, groups in settlements:
                    self.application.on_settled(message_id, timestamp, groups, now, app_out)
            if out.catch_ups:
                catch_ups, out.catch_ups = out.catch_ups, []
                for peer in catch_ups:
                    self._ask_for_deliveries(self._catch_up.ask(peer, now))
            if out.readable:
                readable, out.readable = out.readable, []
                for token, fresh_from in readable:
                    self.application.on_readable(token, fresh_from, now, app_out)
            if app_out.fetches:
                fetches, app_out.fetches = app_out.fetches, []
                for peer in fetches:
                    self._tell(peer, wire.CatchUpRequest(self.completed + 1))
            if app_out.completions:
                completions, app_out.completions = app_out.completions, []
                for position, outcome in completions:
                    self._complete(position, outcome, now)
            if app_out.submissions:
                submissions, app_out.submissions = app_out.submissions, []
                self._ended = False
                for message in submissions:
                    self._submit(message, now)
            if app_out.reads:
                reads, app_out.reads = app_out.reads, []
                self._ended = False
                for token in reads:
                    self.protocol.on_read(token, now, self._out)
            if app_out.answers:
                self._batch.answers += app_out.answers
                app_out.answers.clear()

    def _complete(self, position: int, record: bytes, now: int) -> None:
        if position != self.completed + 1 or position > self.position:
            raise AssertionError(f"completed {position} after {self.completed}, delivered {self.position}")
        self.completed = position
        if position > self._journaled_completed:
            self.recorder.record(records.Completed(position, record, now))

    def _submit(self, message: AppMessage, now: int) -> None:
        try:
            self.protocol.on_submit(message, now, self._out)
        except Overloaded as error:
            self.application.on_refused(message, str(error), now, self._app_out)
        else:
            self.recorder.record(records.Submitted(message.id, message.destinations, now))

    def _deliver(
        self,
        message: AppMessage,
        timestamp: Timestamp,
        stage: int,
        note: bytes,
        outcome: bytes | None,
        installed_from: ProcessId | None,
        now: int,
    ) -> None:
        position = 0
        expired = False
        if stage == FINAL:
            position = self.position = self.position + 1
            expired = self._window > 0 and timestamp.time > created_us(message.id) + self._window
            if not self.application.completes:
                self.completed = position
        delivery = records.Delivered(position, timestamp, stage, expired, message, now, installed_from, note)
        self.recorder.deliver(delivery)
        self.application.on_deliver(delivery, outcome, now, self._app_out)

    def _record_changes(self) -> None:
        self.recorder.change(self._out.changes)
        self._out.changes.clear()

    def _collect_sends(self) -> None:
        """Encode and sort out what was sent so far: now, held, or to oneself."""
        out, app_out = self._out, self._app_out
        if out.changes:
            self._record_changes()
        for to, message, durable in out.sends:
            self._send(to, wire.PROTOCOL, message, durable)
        out.sends.clear()
        for to, message in app_out.sends:
            self._send(to, wire.APPLICATION, message, False)
        app_out.sends.clear()

    def _send(self, to: tuple[ProcessId, ...], channel: int, message: Any, durable: bool) -> None:
        ticket = 0
        if durable:
            ticket = self._last_journaled if self.recorder.empty else self._batch.number
            if ticket <= self._flushed:
                ticket = 0
            else:
                self._batch.urgent = True
        if self.self_id in to:
            self._send_to_self(channel, message, ticket)
            to = tuple([peer for peer in to if peer != self.self_id])
            if not to:
                return
        data = self.codec.encode(channel, message)
        if getattr(message, "bulk", False):
            data = Bulk(data)
        if not getattr(message, "overtakes", False):
            to = self._lanes.enter(to, data, ticket)
        if to:
            self._batch.sends.append((to, data))
            if channel != wire.PROTOCOL or not self.protocol.can_ride(message):
                self._batch.hurried = True

    def _tell(self, peer: ProcessId, message: Any) -> None:
        """A message of the host's own."""
        self._send((peer,), wire.HOST, message, False)

    def _send_to_self(self, channel: int, message: Any, ticket: int) -> None:
        """Only what waits for the disk waits: the rest is an input of this turn."""
        if self._copy_to_self:
            message = self.codec.decode(self.codec.encode(channel, message))[1]
        if ticket:
            self._held_to_self.append((ticket, channel, message))
        else:
            self._inputs.append((_MESSAGE, self.self_id, channel, message))

    def _close(self) -> Batch:
        batch = self._batch
        if not self.recorder.empty:
            batch.journal = self.recorder.take(batch.number)
            self._last_journaled = batch.number
            self._flush_positions.append((batch.number, self.completed))
        self._batch = Batch(batch.number + 1)
        return batch

    # -- catching up --------------------------------------------------------------------------------------------------

    def _ask_for_deliveries(self, peer: ProcessId | None) -> None:
        if peer is not None:
            self._asked_from = self.position + 1
            self._tell(peer, wire.CatchUpRequest(self._asked_from))

    def _on_host_message(self, peer: ProcessId, message: Any, now: int) -> None:
        if type(message) is wire.ClockProbe:
            self._tell(peer, wire.ClockReading(message.sent, now + self._ahead_us))
            return
        if type(message) is wire.ClockReading:
            if self.discipline is not None:
                self.discipline.on_reading(peer, message.sent, message.wall, now)
            return
        if self.protocol.topology.group_of.get(peer) != self.protocol.group:
            raise PeerError("catch-up is a matter inside a group")
        if type(message) is wire.CatchUpRequest:
            self._batch.reads.append((peer, max(1, message.position)))
            return
        if type(message) is not wire.CatchUpReply:
            self.snapshots.on_message(peer, message, now, self._batch)
            return
        known, found = (self.completed, self.position), message.deliveries
        news = any([d.position > known[outcome is None] for d, outcome in found])
        if found and not news and found[0][0].position != self._asked_from:
            return  # this was asked for again, and came: who asks on for each answer has ever more under way
        self._catch_up.answered()
        for delivered, outcome in message.deliveries:
            if self.completed < delivered.position <= self.position and outcome is not None:
                self.application.on_outcome(delivered.position, outcome, now, self._app_out)
                self._drain(now)
            if delivered.position != self.position + 1:
                continue
            note = delivered.note
            self._deliver(delivered.message, delivered.timestamp, FINAL, note, outcome, peer, now)
            self.protocol.on_install(self.position, delivered.message, delivered.timestamp, note, now, self._out)
            self._drain(now)
        if message.more:
            self._ask_for_deliveries(self._catch_up.ask(peer, now))
