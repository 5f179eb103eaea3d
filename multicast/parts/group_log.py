"""A group that acts as one process of Skeen's protocol: a log of stamps by consensus, and what is delivered by it.

Theory of operation. The log (parts.paxos) holds commands. *Assign*(m, lts) gives m the group's local timestamp,
*Advance*(m, gts) moves the group's clock to a global timestamp. The group's state (clock, assigned messages, certain
global timestamps) is a function of the log alone, so that any member can go on from it. Only the leader proposes. It
stamps from a clock of its own, which starts at the log's and is always above every stamp in the log. A message with a
known global timestamp is delivered when the log's clock has reached it, and no message with a lower local timestamp
lacks its global one (parts.pending).

Who may deliver. Let m have global timestamp 6, and let the leader's stamping clock move to 6 when the Advance to it is
decided. m' arrives between proposal and decision, is stamped 2, and comes *later* in the log than the Advance. The
leader knows of m' and delivers it first; whoever applies the log by itself would deliver m first. So one of two rules:
- early_clock: the clock moves when the Advance is *proposed*. Then local timestamps rise in the order of the log, and
  after an Advance to 6 nothing below 6 can follow: all members deliver by the log alone.
- otherwise only the leader delivers by the log and by what it has in flight, and the others on its word (`Deliver`). A
  deposed leader that does not know it yet may go on doing so: what it delivers at t has raised the log's clock to t in
  a decided instance, which every later leader applies before it stamps anything. It stops when it sees a command of a
  higher ballot in the log, since its knowledge of what is in flight ends there.

Reigns. Consensus on single instances does not keep a deposed leader's commands out of the log: one that was accepted by
few may be unknown to the next leader and be found, and proposed again, by the one after that. So every command names
the ballot of the leader that made it, a command below the highest ballot seen so far in the log is void, and a new
leader's first command, *Begin*, does nothing else than to make it so. When that is applied, what precedes it is fixed
and known, and the reign begins, once this process has delivered what any of a quorum of its group has delivered.

    message        from -> to                                   durable before it leaves
    Paxos*         inside the group (parts.paxos)               see there
    Deliver        leader -> others of the group                -  (the decisions that it rests on are)
    Applied        member -> members                            the state after that instance
    StateAsk       member -> member                             -
    State          member -> who asked                          -
    Forgot         process without memory -> everybody          -  (parts.reminders)
    Reminder       process -> who has forgotten                 -  (parts.reminders)

Garbage. An entry goes when its message is settled (parts.delivered): a quorum of each destination group has delivered
it, so by the rule above every later leader has. An instance is dropped by a member that has applied it, durably, when
all have (or a quorum has, and the others lack more than `_KEPT` instances). A member that needs dropped ones gets the
present state of a peer, after the host's catch-up of the deliveries that it supposes. It may lead by then: if its reign
is being prepared it goes on; if it reigns (it did not hear that its proposals were decided) it begins a new ballot, as
it does not know any more what is in flight. A member that sees by the watermarks of its group that it is behind gets
the deliveries from a peer's journal (parts.behind); it may have them before it has the log (`Entry.logged`).

Entries are kept by local timestamp, not by id: with a deduplication window ids are forgotten after two windows, so a
copy that comes later is assigned anew, and delivered expired, maybe while the first one is not settled everywhere.

Durable: the state is saved with each instance, in the batch that applies it: `g` -> instance, clock, highest ballot;
`m` + local timestamp -> an entry. Deliveries: the journal and parts.delivered; their note is the local timestamp.

Lost disk. A process whose disk is gone comes back as its group's consensus says (parts.paxos): what was decided with
its vote is safe by that, and with it the stamps that it told and the reigns that it began. What others count on besides
is what it had delivered (parts.delivered): it must have that again, too (parts.reminders), and until then tells no
watermark and no position, and gives its state to nobody.

Orderings relied on: none for safety; FIFO from a leader to its members makes gaps in positions rare.
"""

from __future__ import annotations

import random
from heapq import heappop, heappush

import msgspec

from multicast.parts.behind import Behind
from multicast.parts.delivered import DeliveredLog
from multicast.parts.paxos import Paxos
from multicast.parts.pending import PendingQueue
from multicast.parts.portions import Assembly, portions
from multicast.parts.reminders import Forgot, Reminder, Reminders
from multicast.protocol import MulticastProtocol, Options, Outbox, Saved
from multicast.types import AppMessage, Ballot, GroupId, MessageId, ProcessId, Timestamp, Topology, created_us

_BASE_KEY = b"g"
_ENTRY_PREFIX = b"m"
_KEPT = 64


class Deliver(msgspec.Struct, array_like=True, tag=4, gc=False):
    """Deliveries of the group: (position, local, final)."""

    items: list[tuple[int, Timestamp, Timestamp]]


class Applied(msgspec.Struct, array_like=True, tag=5, gc=False):
    """I have durably applied the log up to this instance, and delivered up to this timestamp."""

    instance: int
    delivered: Timestamp


class StateAsk(msgspec.Struct, array_like=True, tag=8, gc=False):
    """The instances that I lack are dropped: tell me the state."""


class Begin(msgspec.Struct, array_like=True, tag=0, gc=False):
    """Command: from here on nothing of a lower ballot counts."""

    ballot: Ballot


class Assign(msgspec.Struct, array_like=True, tag=1, gc=False):
    """Command: m has this local timestamp. ballot: of the leader that proposed it."""

    ballot: Ballot
    local: Timestamp
    message: AppMessage


class Advance(msgspec.Struct, array_like=True, tag=2, gc=False):
    """Command: move the clock to `final`. certain: it is the global timestamp of the message assigned `local`."""

    ballot: Ballot
    local: Timestamp
    final: Timestamp
    certain: bool


class SavedEntry(msgspec.Struct, array_like=True, gc=False):
    """An assigned message. final: if it is certain. logged: its Assign was applied here; False: installed before."""

    message: AppMessage
    local: Timestamp
    final: Timestamp | None
    logged: bool


class State(msgspec.Struct, array_like=True, tag=9, gc=False):
    """The log up to `instance` amounts to this clock, this highest ballot and these entries, but for what is delivered
    up to `position`. unlogged: local timestamps of such deliveries whose Assigns come after that instance. In portions:
    number `part` of `parts`."""

    position: int
    instance: int
    clock: int
    seen: Ballot
    unlogged: list[Timestamp]
    entries: list[SavedEntry]
    part: int
    parts: int


class Entry:
    """A message with a local timestamp that is not settled.

    final: its global timestamp, if it is known. position: of its delivery here, 0 before. logged: see `SavedEntry`.
    settled: it goes once it is logged. raised, concluded: an Advance for it was proposed in this reign, to an estimate
    or to the certain timestamp.
    """

    __slots__ = ("concluded", "final", "local", "logged", "message", "position", "raised", "settled")

    def __init__(self, message: AppMessage, local: Timestamp, logged: bool):
        self.message = message
        self.local = local
        self.final: Timestamp | None = None
        self.position = 0
        self.logged = logged
        self.settled = False
        self.raised = False
        self.concluded = False


encode_command = _encode = msgspec.msgpack.Encoder().encode
_decode_command = msgspec.msgpack.Decoder(Begin | Assign | Advance).decode
_decode_entry = msgspec.msgpack.Decoder(SavedEntry).decode
_decode_base = msgspec.msgpack.Decoder(tuple[int, int, Ballot]).decode


class GroupLog(MulticastProtocol):
    """A member of a group, without the exchange with other groups: that is parts.replicated.

    clock, instance, seen: of the log as applied here; seen is the highest ballot. entries: by local timestamp. reign:
    the ballot in which this process acts as the leader, if it does.
    """

    paxos_class = Paxos

    def __init__(self, self_id: ProcessId, topology: Topology, options: Options, rng: random.Random):
        super().__init__(self_id, topology, options, rng)
        o = self.options
        self.members = topology.groups[self.group]
        self.others = tuple(p for p in self.members if p != self_id)
        self.log = DeliveredLog(self_id, topology, o.stability_us, o.dedup_window_us)
        self.paxos = self.paxos_class(
            self_id, self.members, rng, o.heartbeat_us, o.election_timeout_us, o.instances_max, o.values_max,
            o.portion_bytes, o.early_max,
        )  # fmt: skip
        self.clock = 0
        self.instance = 0
        self.seen = Ballot(0, 0)
        self.entries: dict[Timestamp, Entry] = {}
        self.reign: Ballot | None = None
        self._locals: dict[MessageId, list[Timestamp]] = {}
        self._queue = PendingQueue()
        self._uncovered: list[tuple[Timestamp, Timestamp]] = []
        self._words: list[tuple[int, Timestamp, Timestamp]] = []
        self._early: dict[int, tuple[Timestamp, Timestamp]] = {}
        self._behind = Behind(o.retry_us, rng)
        self._applied: dict[ProcessId, int] = dict.fromkeys(self.members, 0)
        self._told = self._tell_at = 0
        self._base_dirty = False
        self._assembly: Assembly[SavedEntry] = Assembly()
        self._state: tuple[ProcessId, State] | None = None
        self._state_at = self._state_turn = 0
        self._reminders = Reminders(self_id, topology, o.retry_us)
        self._wake = 0

    # -- what the exchange with other groups adds ---------------------------------------------------------------------

    def _on_assigned(self, entry: Entry, now: int, out: Outbox) -> None:
        """The stamp of this message is decided."""
        raise NotImplementedError

    def _proposed(self, message_id: MessageId) -> Entry | None:
        """At the leader: its Assign of this message, which is decided now."""
        raise NotImplementedError

    def _is_in_flight(self, message_id: MessageId, local: Timestamp) -> bool:
        """At the leader: whether it has proposed this Assign and waits for the decision."""
        raise NotImplementedError

    def _on_advanced(self, to: int) -> None:
        """An Advance is decided."""
        raise NotImplementedError

    def _on_delivered(self, entry: Entry, out: Outbox) -> None:
        """This process has delivered the message."""
        raise NotImplementedError

    def _begin_if_ready(self, now: int, out: Outbox) -> None:
        """The log or the deliveries have moved: the reign may begin."""
        raise NotImplementedError

    def _end_reign(self) -> None:
        """This process does not lead (any more)."""
        raise NotImplementedError

    def _after_paxos(self, now: int, out: Outbox) -> None:
        """Take what was decided; notice a new leader."""
        raise NotImplementedError

    def _wake_by(self, at: int) -> None:
        if at < self._wake:
            self._wake = at

    # -- life ---------------------------------------------------------------------------------------------------------

    def on_start(self, saved: Saved, now: int, out: Outbox) -> None:
        values = saved.values
        for key, value in values.items():
            if key[:1] == _ENTRY_PREFIX and len(key) == 17:
                state = _decode_entry(value)
                self._add_entry(Entry(state.message, state.local, state.logged)).final = state.final
        self.log.restore(values, saved.position, self._destinations)
        if _BASE_KEY in values:
            self.instance, self.clock, self.seen = _decode_base(values[_BASE_KEY])
        for entry in self.entries.values():
            known = self.log.known(entry.message.id)
            if known is not None and entry.local <= known[0]:
                entry.final, entry.position = known
            elif not entry.logged:  # installed, settled and forgotten
                entry.position, entry.settled = saved.position, True
        self.paxos.on_start(values, now, out, saved.lost)
        self.paxos.held = self.paxos.amnesiac
        if self.paxos.amnesiac:
            self._reminders.begin(now, self.rng)
        self._rebuild_queue()
        self._after_paxos(now, out)
        if not saved.first:
            self._tell_later(now)

    def _destinations(self, message_id: MessageId, delivered_at: Timestamp) -> tuple[GroupId, ...] | None:
        for local in self._locals.get(message_id, ()):
            if local <= delivered_at:
                return self.entries[local].message.destinations
        return None

    def _add_entry(self, entry: Entry) -> Entry:
        self.entries[entry.local] = entry
        self._locals.setdefault(entry.message.id, []).append(entry.local)
        return entry

    def _remove_entry(self, entry: Entry, out: Outbox) -> None:
        del self.entries[entry.local]
        kept = self._locals[entry.message.id]
        kept.remove(entry.local)
        if not kept:
            del self._locals[entry.message.id]
        self._queue.remove(entry.local.encode())
        out.delete(_ENTRY_PREFIX + entry.local.encode())

    def _save_entry(self, entry: Entry, out: Outbox) -> None:
        state = SavedEntry(entry.message, entry.local, entry.final, entry.logged)
        out.put(_ENTRY_PREFIX + entry.local.encode(), _encode(state))

    # -- the log ------------------------------------------------------------------------------------------------------

    def _apply(self, instance: int, values: list[bytes], now: int, out: Outbox) -> None:
        """The same at every member, but for what the leader sends."""
        if instance != self.instance + 1:
            raise AssertionError(f"instance {instance} after {self.instance}")
        self.instance = instance
        self._base_dirty = True
        for value in values:
            command = _decode_command(value)
            if self._is_void(command.ballot):
                continue
            self.seen = max(self.seen, command.ballot)
            if self.reign is not None and self.seen > self.reign:
                self._end_reign()
            if type(command) is Assign:
                self._apply_assign(command, now, out)
            elif type(command) is Advance:
                self._apply_advance(command, out)
        self._tell_later(now)
        self._deliver_ready(now, out)

    def _is_void(self, ballot: Ballot) -> bool:
        """A command of this ballot comes after one of a later leader."""
        return ballot < self.seen

    def _apply_assign(self, command: Assign, now: int, out: Outbox) -> None:
        if self.options.early_clock and command.local.time <= self.clock:
            raise AssertionError(f"assigned {command.local} when the clock was {self.clock}")
        proposed = self._proposed(command.message.id)
        entry = self.entries.get(command.local)
        if entry is not None:  # it was installed from a peer's journal
            entry.logged = True
            if entry.settled:
                self._remove_entry(entry, out)
            else:
                self._save_entry(entry, out)
            self._queue.remove(command.local.encode())
        else:
            entry = self._add_entry(proposed or Entry(command.message, command.local, True))
            if entry.local != command.local:
                raise AssertionError(f"proposed {entry.local}, decided {command.local}")
            self._queue.propose(entry.local.encode(), entry.local)
            self._save_entry(entry, out)
            self._on_assigned(entry, now, out)
        self._raise_clock(command.local.time)

    def _apply_advance(self, command: Advance, out: Outbox) -> None:
        entry = self.entries.get(command.local) if command.certain else None
        if entry is not None and not entry.position:
            if entry.final is None:
                self._set_final(entry, command.final)
            elif entry.final != command.final and not self._is_late(entry.message.id, command.final):
                raise AssertionError(f"{entry.message.id.hex()} has timestamps {entry.final} and {command.final}")
            self._save_entry(entry, out)
        self._raise_clock(command.final.time)
        self._on_advanced(command.final.time)

    def _is_late(self, message_id: MessageId, timestamp: Timestamp) -> bool:
        """Whether a delivery at this timestamp is expired."""
        window: int = self.options.dedup_window_us
        return window > 0 and timestamp.time > created_us(message_id) + window

    def _raise_clock(self, to: int) -> None:
        """The log's clock: no message of a later leader is stamped up to it (early_clock: none later in the log)."""
        self.clock = max(self.clock, to)
        waiting = self._uncovered
        while waiting and self._is_covered(waiting[0][0]):
            final, local = heappop(waiting)
            entry = self.entries.get(local)
            if entry is not None and not entry.position:
                self._queue.commit(local.encode(), final)

    def _is_covered(self, final: Timestamp) -> bool:
        return final.time <= self.clock

    def _set_final(self, entry: Entry, final: Timestamp) -> None:
        """Its global timestamp is known."""
        entry.final = final
        if self._is_covered(final):
            self._queue.commit(entry.local.encode(), final)
        else:
            heappush(self._uncovered, (final, entry.local))

    def _rebuild_queue(self) -> None:
        """What is pending by the log."""
        self._queue = PendingQueue()
        self._uncovered.clear()
        for entry in self.entries.values():
            if not entry.position:
                self._queue.propose(entry.local.encode(), entry.local)
                if entry.final is not None:
                    self._set_final(entry, entry.final)

    # -- delivery -----------------------------------------------------------------------------------------------------

    def _may_deliver(self) -> bool:
        """Whether what is due by this process's queue is due: see the module."""
        return self.options.early_clock or self.reign is not None

    def _deliver_ready(self, now: int, out: Outbox) -> None:
        while self._may_deliver() and (due := self._queue.pop()) is not None:
            entry = self.entries[Timestamp.decode(due[1])]
            self._deliver(entry, due[0], out)
            if not self.options.early_clock:
                self._words.append((entry.position, entry.local, due[0]))
        self._follow_words(out)

    def _deliver(self, entry: Entry, final: Timestamp, out: Outbox) -> None:
        entry.final = final
        out.deliver(entry.message, final, note=entry.local.encode())
        self._delivered(entry, out)

    def _delivered(self, entry: Entry, out: Outbox) -> None:
        """Common to a delivery and an installation."""
        message = entry.message
        assert entry.final is not None
        entry.position = self.log.add(message.id, message.destinations, entry.final, out)
        self._early.pop(entry.position, None)
        self._queue.remove(entry.local.encode())
        self._on_delivered(entry, out)

    def _on_deliver(self, sender: ProcessId, deliver: Deliver, now: int, out: Outbox) -> None:
        """The leader's word."""
        for position, local, final in deliver.items:
            if position > self.log.position and len(self._early) < self.options.early_max:
                self._early[position] = (local, final)
        self._follow_words(out)
        if self._early and self.log.position + 1 not in self._early:
            out.catch_up(sender)

    def _follow_words(self, out: Outbox) -> None:
        early = self._early
        while early:
            position = self.log.position + 1
            word = early.get(position)
            entry = self.entries.get(word[0]) if word is not None else None
            if word is None or entry is None:
                break
            self._deliver(entry, word[1], out)

    def on_install(
        self, position: int, message: AppMessage, timestamp: Timestamp, note: bytes, now: int, out: Outbox
    ) -> None:
        local = Timestamp.decode(note)
        entry = self.entries.get(local)
        if entry is None:
            if self.reign is not None and not self._is_in_flight(message.id, local):
                self._end_reign()  # its group delivers what this leader has not stamped: there is another one
            entry = self._add_entry(Entry(message, local, False))
            self._save_entry(entry, out)
        entry.final = timestamp
        self._delivered(entry, out)
        if entry.position != position:
            raise AssertionError(f"installed delivery {position} as {entry.position}")
        self._deliver_ready(now, out)
        self._adopt_if_due(now, out)
        self._begin_if_ready(now, out)

    # -- a process that is behind -------------------------------------------------------------------------------------

    def _notice_ahead(self, sender: ProcessId, watermark: Timestamp, now: int) -> None:
        if self.topology.group_of[sender] == self.group:
            self._behind.notice(sender, watermark, self.log.timestamp, now)
            self._wake_by(self._behind.wake_at or self._wake)

    def _need_state(self, now: int, out: Outbox) -> None:
        """The log that this process lacks is dropped: ask members for their state, in turn and not too often."""
        if not self.others or now < self._state_at:
            return
        self._state_at = now + self.options.retry_us
        self._wake_by(self._state_at)
        out.send((self._next_peer(),), StateAsk())

    def _next_peer(self) -> ProcessId:
        """Another member of the group, each in turn."""
        self._state_turn += 1
        return self.others[self._state_turn % len(self.others)]

    def _send_state(self, to: ProcessId, out: Outbox) -> None:
        if self.paxos.amnesiac:
            return
        pending = [SavedEntry(e.message, e.local, e.final, True) for e in self.entries.values() if not e.position]
        unlogged = [e.local for e in self.entries.values() if not e.logged]
        parts = portions(pending, lambda entry: len(entry.message.payload), self.options.portion_bytes)
        for part, some in enumerate(parts):
            marks = (self.log.position, self.instance, self.clock, self.seen, unlogged)
            out.send((to,), State(*marks, some, part, len(parts)))

    def _on_state(self, sender: ProcessId, state: State, now: int, out: Outbox) -> None:
        entries = self._assembly.add(sender, state.part, state.parts, state.entries)
        if entries is not None:
            state.entries = entries
            self._state = (sender, state)
            self._adopt_if_due(now, out)

    def _adopt_if_due(self, now: int, out: Outbox) -> None:
        """Everything that the state's owner had delivered comes first, from its journal."""
        if self._state is None:
            return
        peer, state = self._state
        if self.log.position < state.position:
            out.catch_up(peer)
            return
        self._state = None
        if state.instance <= self.instance:
            return
        again = self.reign is not None
        if again:  # it no longer knows what it has in flight; while a reign is prepared, there is nothing
            self._end_reign()
        given, unlogged = {entry.local: entry for entry in state.entries}, set(state.unlogged)
        for entry in list(self.entries.values()):
            passed = entry.position <= state.position and entry.local not in unlogged
            if entry.position and (passed or entry.local in given):
                self._mark_logged(entry, out)
            elif not entry.position and entry.local not in given:
                self._remove_entry(entry, out)
        for local, told in given.items():
            known = self.log.known(told.message.id)
            if local not in self.entries and (known is None or known[0] < local):
                entry = self._add_entry(Entry(told.message, local, True))
                entry.final = told.final
                self._save_entry(entry, out)
                self._on_assigned(entry, now, out)
        self.instance, self.clock, self.seen = state.instance, state.clock, state.seen
        self._base_dirty = True
        self._rebuild_queue()
        self.paxos.jump(state.instance, now, out)
        if again:
            self.paxos.stand(now, out)
        self._deliver_ready(now, out)
        self._after_paxos(now, out)
        self._tell_later(now)

    def _mark_logged(self, entry: Entry, out: Outbox) -> None:
        if not entry.logged:
            entry.logged = True
            if entry.settled:
                self._remove_entry(entry, out)
            else:
                self._save_entry(entry, out)

    # -- a process that has lost its disk -----------------------------------------------------------------------------

    def on_clock(self, off: bool, now: int) -> None:
        super().on_clock(off, now)
        self.paxos.on_clock(off, now)

    def is_member(self) -> bool:
        return not self.paxos.amnesiac

    def _on_forgot(self, sender: ProcessId, forgot: Forgot, out: Outbox) -> None:
        if not self.paxos.amnesiac:
            watermark = self.log.mark_of(sender)
            if sender in self.members:
                watermark = max(watermark, self.log.watermark)
            out.send((sender,), Reminder(forgot.question, 0, watermark))

    def _recollect(self, now: int, out: Outbox) -> int | None:
        """Ask for what is missing, or become a member again. Returns when to look again."""
        told = self._reminders
        behind = told.watermark > self.log.timestamp
        if told.complete and not behind and self.paxos.may_return:
            self.paxos.finish_return(now, out)
            self._tell_applied(out)
            return None
        if told.tick(now, out) and behind:
            out.catch_up(self._next_peer())
        return told.wake_at

    # -- garbage ------------------------------------------------------------------------------------------------------

    def on_stable(self, position: int, now: int, out: Outbox) -> None:
        self._drop(self.log.stable(position, out), out)

    def _drop(self, settled: list[MessageId], out: Outbox) -> None:
        for message_id in settled:
            for local in list(self._locals.get(message_id, ())):
                entry = self.entries[local]
                if entry.position and entry.logged:
                    self._remove_entry(entry, out)
                elif entry.position:
                    entry.settled = True

    def _tell_later(self, now: int) -> None:
        if not self._tell_at:
            self._tell_at = now + self.options.stability_us
            self._wake_by(self._tell_at)

    def _tell_applied(self, out: Outbox) -> None:
        if self.paxos.amnesiac:
            return
        self._told = self.instance
        out.send_durable(self.members, Applied(self.instance, self.log.timestamp))

    def _on_applied(self, sender: ProcessId, instance: int, out: Outbox) -> None:
        """Drop the instances that nobody needs any more."""
        applied = self._applied
        applied[sender] = max(applied[sender], instance)
        quorum = sorted(applied.values(), reverse=True)[self.topology.quorum(self.group) - 1]
        spare = max(min(applied.values()), self.instance - _KEPT)
        drop = min(quorum, spare, applied[self.self_id])
        if drop >= self.paxos.low:
            self.paxos.truncate(drop, out)

    def end_batch(self, now: int, out: Outbox) -> None:
        self.paxos.end_batch(now, out)
        self.log.end_batch(out)
        if self._base_dirty:
            self._base_dirty = False
            out.put(_BASE_KEY, _encode((self.instance, self.clock, self.seen)))
        if self._words:
            if self.others:
                out.send(self.others, Deliver(self._words))
            self._words = []
