"""Skeen's protocol with a group in the place of each process: what the protocols over black-box consensus share.

Theory of operation. Each group keeps a log by consensus (parts.paxos). It holds two kinds of commands: *Assign*(m, lts)
gives m the group's local timestamp, *Advance*(m, gts) moves the group's clock to a global timestamp. The group's state
(clock, assigned messages, certain global timestamps) is a function of the log alone, so that any member can go on from
it. Only the leader proposes. It stamps from a clock of its own, which starts at the log's and is always above every
stamp in the log; and it tells the stamps to the other destinations (`Stamp`) once they are decided: then no leader
change can take them back. The maximum of the stamps of all destination groups is the global timestamp. A message with a
known global timestamp is delivered when the log's clock has reached it, and no message with a lower local timestamp
lacks its global one (PendingQueue). Which stamp the leader's clock moves past, and when, is what the protocols differ
in: see `early_clock`.

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
    Multicast      sender -> see the protocol                   -
    Stamp          leader -> see the protocol                   -  (it is decided: on a quorum's disks)
    Paxos*         inside a group (parts.paxos)                 see there
    Deliver        leader -> others of its group                -  (the decisions that it rests on are)
    Applied        member -> members                            the state after that instance
    PositionAsk    new leader -> members                        -
    Position       member -> new leader                         its deliveries up to that position
    StateAsk       member -> member                             -
    State          member -> who asked                          -
    LeaderIs       member -> sender of a Multicast              -
    Known          leader -> who repeats m                      -  (m was delivered, at this timestamp)
    Stable         process -> destination groups                -  (parts.delivered)

Retries. A leader repeats a message that waits for stamps to all processes of the groups whose stamps it lacks, with its
own stamp and the request for theirs. A sender repeats its message to all processes of all destinations until it knows
of the delivery. A member that sees by the watermarks of its group that it is behind gets the deliveries from a peer's
journal.

Copies. A leader does not assign a message that it knows. With a deduplication window ids are forgotten after two
windows (parts.delivered), so a copy that comes later is assigned anew, under another local timestamp, and delivered
expired; entries are therefore kept by local timestamp, not by id. The stamps of other groups are kept by id: those of
different copies may be confused, but then their maximum is beyond the window, and such a global timestamp counts only
once it is in the log.

Garbage. An entry goes when its message is settled (parts.delivered): a quorum of each destination group has delivered
it, so by the rule above every later leader has. An instance is dropped by a member that has applied it, durably, when
all have (or a quorum has, and the others lack more than `_KEPT` instances). A member that needs dropped ones gets the
present state of a peer, after the host's catch-up of the deliveries that it supposes.

Durable: the state is saved with each instance, in the batch that applies it: `g` -> instance and clock; `m` + local
timestamp -> an entry. Deliveries: the journal and parts.delivered. The note of a delivery is the local timestamp.

Orderings relied on: none for safety; FIFO from a leader to its members makes gaps in positions rare.
"""

from __future__ import annotations

import random
from collections import deque
from heapq import heappop, heappush
from typing import Any, ClassVar

import msgspec

from multicast.parts import paxos
from multicast.parts.clock import Clock
from multicast.parts.delivered import DeliveredLog, Known, Stable
from multicast.parts.paxos import Paxos
from multicast.parts.pending import PendingQueue
from multicast.parts.portions import Assembly, portions
from multicast.protocol import MulticastProtocol, Options, Outbox, Overloaded, PeerError, Saved
from multicast.types import AppMessage, Ballot, GroupId, MessageId, ProcessId, Timestamp, Topology, created_us

_BASE_KEY = b"g"
_ENTRY_PREFIX = b"m"
_FIRST_NUMBER = 1
_KEPT = 64
_HELD_MAX = 10_000
_EARLY_MAX = 100_000
_STRAY_RETRIES = 20


class Multicast(msgspec.Struct, array_like=True, tag=1, gc=False):
    """Please order this message."""

    message: AppMessage


class Stamp(msgspec.Struct, array_like=True, tag=2, gc=False):
    """My group's local timestamp of m, decided. ballot: in which I lead. again: I lack yours; tell me."""

    id: MessageId
    ballot: Ballot
    local: Timestamp
    again: bool


class LeaderIs(msgspec.Struct, array_like=True, tag=3, gc=False):
    """Not me: the leader of this ballot leads my group."""

    ballot: Ballot


class Deliver(msgspec.Struct, array_like=True, tag=4, gc=False):
    """Deliveries of the group: (position, local, final)."""

    items: list[tuple[int, Timestamp, Timestamp]]


class Applied(msgspec.Struct, array_like=True, tag=5, gc=False):
    """I have durably applied the log up to this instance."""

    instance: int


class PositionAsk(msgspec.Struct, array_like=True, tag=6, gc=False):
    """I lead this ballot: how far have you delivered?"""

    ballot: Ballot


class Position(msgspec.Struct, array_like=True, tag=7, gc=False):
    """So far."""

    ballot: Ballot
    position: int


class StateAsk(msgspec.Struct, array_like=True, tag=8, gc=False):
    """The instances that I lack are dropped: tell me the state."""


class SavedEntry(msgspec.Struct, array_like=True, gc=False):
    """An assigned message. final: if it is certain. logged: its Assign was applied here; False: installed before."""

    message: AppMessage
    local: Timestamp
    final: Timestamp | None
    logged: bool


class State(msgspec.Struct, array_like=True, tag=9, gc=False):
    """The log up to `instance` amounts to this clock, this highest ballot and these entries, but for what is delivered
    up to `position`. In portions: number `part` of `parts`."""

    position: int
    instance: int
    clock: int
    seen: Ballot
    entries: list[SavedEntry]
    part: int
    parts: int


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


ORDERING = (Multicast, Stamp, Deliver)
HOUSEKEEPING = (LeaderIs, Applied, PositionAsk, Position, StateAsk, State, Known, Stable)
PAXOS = paxos.MESSAGES


class ReplicatedOptions(Options, kw_only=True, forbid_unknown_fields=True):
    """Times in microseconds.

    early_clock: the leader's stamping clock moves when an Advance is proposed, not when it is decided; then followers
    need no word of the leader. instances_max: consensus instances under way at once in a group. heartbeat_us: between a
    leader's heartbeats. election_timeout_us: silence after which a member stands for election, up to twice that.
    retry_us: after which time what seems lost is repeated. stability_us: how often watermarks are told.
    """

    drawn: ClassVar[dict[str, tuple[Any, ...]]] = {"early_clock": (False, True)}

    early_clock: bool = False
    instances_max: int = 100
    heartbeat_us: int = 100_000
    election_timeout_us: int = 1_000_000
    retry_us: int = 500_000
    stability_us: int = 100_000

    def __post_init__(self) -> None:
        super().__post_init__()
        if min(self.heartbeat_us, self.retry_us, self.stability_us, self.instances_max) < 1:
            raise ValueError("heartbeat_us, retry_us, stability_us and instances_max must be at least 1")
        if self.election_timeout_us < 2 * self.heartbeat_us:
            raise ValueError("election_timeout_us must be at least twice heartbeat_us")


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


_encode = msgspec.msgpack.Encoder().encode
_decode_command = msgspec.msgpack.Decoder(Begin | Assign | Advance).decode
_decode_entry = msgspec.msgpack.Decoder(SavedEntry).decode
_decode_base = msgspec.msgpack.Decoder(tuple[int, int, Ballot]).decode


class ReplicatedSkeen(MulticastProtocol):
    """One process. Protocols say to whom stamps go and what follows from them: `_tell_stamp`, `_conclude`.

    clock, instance, seen: of the log as applied here; seen is the highest ballot. stamps: id -> group -> decided local timestamp, as heard. reign: the
    ballot in which this process acts as the leader.
    """

    paxos_class = Paxos

    def __init__(self, self_id: ProcessId, topology: Topology, options: Options, rng: random.Random):
        super().__init__(self_id, topology, options, rng)
        o = self.options
        self.members = topology.groups[self.group]
        self.others = tuple(p for p in self.members if p != self_id)
        self.log = DeliveredLog(self_id, topology, o.stability_us, o.dedup_window_us)
        self.paxos = self.paxos_class(
            self_id, self.members, rng, o.heartbeat_us, o.election_timeout_us, o.instances_max
        )
        self.clock = 0
        self.instance = 0
        self.seen = Ballot(0, 0)
        self.entries: dict[Timestamp, Entry] = {}
        self.stamps: dict[MessageId, dict[GroupId, Timestamp]] = {}
        self.leaders = {g: Ballot(_FIRST_NUMBER, members[0]) for g, members in topology.groups.items()}
        self.reign: Ballot | None = None
        self.stamping = Clock(o.clock)
        self.in_flight: dict[MessageId, Entry] = {}
        self._locals: dict[MessageId, list[Timestamp]] = {}
        self._queue = PendingQueue()
        self._uncovered: list[tuple[Timestamp, Timestamp]] = []
        self._raised_to = 0
        self._ballot = Ballot(0, 0)
        self._led: Ballot | None = None
        self._positions: dict[ProcessId, int] | None = None
        self._ask_at = 0
        self._held: list[tuple[ProcessId, AppMessage]] = []
        self._retries: deque[tuple[int, Timestamp]] = deque()
        self._strays: deque[tuple[int, MessageId]] = deque()
        self._submitted: dict[MessageId, AppMessage] = {}
        self._submission_retries: deque[tuple[int, MessageId]] = deque()
        self._words: list[tuple[int, Timestamp, Timestamp]] = []
        self._early: dict[int, tuple[Timestamp, Timestamp]] = {}
        self._ahead: tuple[Timestamp, ProcessId, int] | None = None
        self._applied: dict[ProcessId, int] = dict.fromkeys(self.members, 0)
        self._told = self._tell_at = 0
        self._base_dirty = False
        self._assembly: Assembly[SavedEntry] = Assembly()
        self._state: tuple[ProcessId, State] | None = None
        self._state_at = self._state_turn = 0
        self._wake = 0

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
            else:
                self.stamps.setdefault(entry.message.id, {})[self.group] = entry.local
        self.paxos.on_start(values, now, out)
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

    def _entry_of(self, message_id: MessageId) -> Entry | None:
        """The latest one of this message, in flight or assigned."""
        entry = self.in_flight.get(message_id)
        if entry is None and message_id in self._locals:
            entry = self.entries[self._locals[message_id][-1]]
        return entry

    # -- dispatch -----------------------------------------------------------------------------------------------------

    def on_message(self, sender: ProcessId, message: Any, now: int, out: Outbox) -> None:
        kind = type(message)
        if kind in PAXOS:
            self.paxos.on_message(sender, message, now, out)
            self._after_paxos(now, out)
        elif kind is Stamp:
            self._on_stamp(sender, message, now, out)
        elif kind is Multicast:
            self._on_multicast(sender, message.message, now, out)
        elif kind is Stable:
            self._drop(self.log.on_stable_message(sender, message, out), out)
            self._notice_ahead(sender, message.watermark, now)
        elif kind is Known:
            self._on_known(message, now, out)
        elif kind is LeaderIs:
            self._on_leader_is(self.topology.group_of[sender], message.ballot, out)
        elif self.topology.group_of[sender] != self.group:
            raise PeerError(f"{kind.__name__} from group {self.topology.group_of[sender]}")
        elif kind is Deliver:
            self._on_deliver(sender, message, now, out)
        elif kind is Applied:
            self._on_applied(sender, message.instance, out)
        elif kind is PositionAsk:
            out.send_durable((sender,), Position(message.ballot, self.log.position))
        elif kind is Position:
            if self._positions is not None and message.ballot == self._ballot:
                self._positions[sender] = message.position
                self._begin_if_ready(now, out)
        elif kind is StateAsk:
            self._send_state(sender, out)
        else:
            self._on_state(sender, message, now, out)

    # -- multicast ----------------------------------------------------------------------------------------------------

    def on_submit(self, message: AppMessage, now: int, out: Outbox) -> None:
        pending = max(len(self._queue), len(self._submitted))
        if pending >= self.options.pending_max:
            raise Overloaded(f"{pending} messages are pending, the limit is {self.options.pending_max}")
        if self.log.known(message.id):
            return
        if message.id not in self._submitted:
            self._submitted[message.id] = message
            self._submission_retries.append((now, message.id))
            self._wake_by(now + self.options.retry_us)
        out.send(self._entry_points(message), Multicast(message))

    def _entry_points(self, message: AppMessage) -> tuple[ProcessId, ...]:
        """To whom a sender sends its message first."""
        return tuple(self.leaders[g].leader for g in message.destinations)

    def _on_multicast(self, sender: ProcessId, message: AppMessage, now: int, out: Outbox) -> None:
        """At the leader: assign it, once."""
        groups = message.destinations
        if self.group not in groups or any(g not in self.topology.groups for g in groups):
            raise PeerError(f"a message for groups {groups} at group {self.group}")
        if self.reign is None:
            if self.paxos.promised.leader != self.self_id:
                self._refer(sender, out)
            elif len(self._held) < _HELD_MAX:
                self._held.append((sender, message))
            return
        entry, known = self._entry_of(message.id), self.log.known(message.id)
        if known is not None and (entry is None or entry.position):
            out.send((sender,), Known(message.id, known[0]))
        elif entry is None:
            entry = Entry(message, Timestamp(self.stamping.stamp(now), self.group), True)
            self.in_flight[message.id] = entry
            self._block(entry)
            self._propose(Assign(self.reign, entry.local, message))
            self._on_proposed(entry, out)

    def _refer(self, sender: ProcessId, out: Outbox) -> None:
        out.send((sender,), LeaderIs(self.paxos.promised))

    def _block(self, entry: Entry) -> None:
        """Nothing above this stamp is delivered here, although it is not in the log yet."""
        self._queue.propose(entry.local.encode(), entry.local)

    def _on_proposed(self, entry: Entry, out: Outbox) -> None:
        """This leader has just stamped the message; the stamp is not decided."""

    def _propose(self, command: Begin | Assign | Advance) -> None:
        self.paxos.propose(_encode(command))

    def _propose_advance(self, entry: Entry, final: Timestamp, certain: bool) -> None:
        assert self.reign is not None
        self._propose(Advance(self.reign, entry.local, final, certain))
        self._raised_to = max(self._raised_to, final.time)
        if self.options.early_clock:
            self._advance_stamping(final.time)

    def _advance_stamping(self, to: int) -> None:
        self.stamping.advance(to)

    # -- the log ------------------------------------------------------------------------------------------------------

    def _after_paxos(self, now: int, out: Outbox) -> None:
        """Take what was decided; notice a new leader."""
        part = self.paxos
        if part.promised != self._ballot:
            self._ballot = part.promised
            self._learn_leader(self.group, part.promised)
            self._end_reign()
        for instance, values in part.take():
            if instance > self.instance:
                self._apply(instance, values, now, out)
        if part.leading and self._led != part.promised:
            self._led = part.promised
            self._positions = {}
            self._ask_at = now
            self._propose(Begin(part.promised))
            self._wake_by(now)
        if self._positions is not None:
            self._begin_if_ready(now, out)
        if part.stranded:
            self._need_state(now, out)

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
        proposed = self.in_flight.pop(command.message.id, None)
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
            self._hold_stamp(command.message.id, self.group, command.local, now)
            if self.reign is not None:
                self._tell_stamp(entry, out)
                self._retry_later(entry, now)
            self._consider(entry)
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
        if self.reign is not None:
            self._advance_stamping(command.final.time)

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

    # -- stamps -------------------------------------------------------------------------------------------------------

    def _tell_stamp(self, entry: Entry, out: Outbox) -> None:
        """At the leader: the stamp is decided; tell it."""
        raise NotImplementedError

    def _conclude(self, entry: Entry, final: Timestamp) -> None:
        """The stamps of all destination groups are known; `final` is their maximum."""
        raise NotImplementedError

    def _stamp_of(self, entry: Entry, again: bool) -> Stamp:
        return Stamp(entry.message.id, self._ballot, entry.local, again)

    def _on_stamp(self, sender: ProcessId, stamp: Stamp, now: int, out: Outbox) -> None:
        group = self.topology.group_of[sender]
        if stamp.ballot.leader != sender:
            raise PeerError("a stamp of somebody else's ballot")
        self._learn_leader(group, stamp.ballot)
        entry, known = self._entry_of(stamp.id), self.log.known(stamp.id)
        if stamp.again and self.reign is not None and sender != self.self_id:
            if entry is not None and entry.local in self.entries:
                out.send((sender,), self._stamp_of(entry, False))
            elif entry is None and known is not None:
                out.send((sender,), Known(stamp.id, known[0]))
        if group == self.group or (known is not None and (entry is None or entry.position)):
            return
        if entry is not None and group not in entry.message.destinations:
            raise PeerError(f"group {group} stamps a message that is not for it")
        self._hold_stamp(stamp.id, group, stamp.local, now)
        if entry is not None:
            self._consider(entry)
            self._deliver_ready(now, out)

    def _hold_stamp(self, message_id: MessageId, group: GroupId, local: Timestamp, now: int) -> None:
        held = self.stamps.get(message_id)
        if held is None:
            held = self.stamps[message_id] = {}
            self._expect(message_id, now)
        if held.setdefault(group, local) != local:
            if not self.options.dedup_window_us:
                raise PeerError(f"group {group} has stamped a message {held[group]} and {local}")
            held[group] = max(local, held[group])

    def _expect(self, message_id: MessageId, now: int) -> None:
        """Something is held of this message, which may never come."""
        self._strays.append((now, message_id))

    def _forget(self, message_id: MessageId) -> None:
        """Nothing more needs to be held of this message."""
        self.stamps.pop(message_id, None)

    def _consider(self, entry: Entry) -> None:
        stamps = self.stamps.get(entry.message.id, {})
        if not entry.position and len(stamps) == len(entry.message.destinations):
            self._conclude(entry, max(*stamps.values(), entry.local))

    def _is_late(self, message_id: MessageId, timestamp: Timestamp) -> bool:
        """Whether a delivery at this timestamp is expired."""
        window: int = self.options.dedup_window_us
        return window > 0 and timestamp.time > created_us(message_id) + window

    def _on_known(self, known: Known, now: int, out: Outbox) -> None:
        """A group has delivered the message; to a leader that still waits for its stamp that is as good as the stamp.
        (If this process had forgotten the message and assigned a late copy, that copy is delivered expired.)"""
        self._submitted.pop(known.id, None)
        entry = self._entry_of(known.id)
        if self.reign is not None and entry is not None and entry.local in self.entries and not entry.position:
            self._conclude(entry, max(known.final, entry.local))
            self._deliver_ready(now, out)

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
        self._queue.remove(entry.local.encode())
        self._forget(message.id)
        self._submitted.pop(message.id, None)
        if self.reign is not None and self.topology.group_of.get(message.origin) not in message.destinations:
            out.send((message.origin,), Known(message.id, entry.final))

    def _on_deliver(self, sender: ProcessId, deliver: Deliver, now: int, out: Outbox) -> None:
        """The leader's word."""
        for position, local, final in deliver.items:
            if position > self.log.position and len(self._early) < _EARLY_MAX:
                self._early[position] = (local, final)
        self._follow_words(out)
        if self._early and min(self._early) > self.log.position + 1:
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
            del early[position]

    def on_install(
        self, position: int, message: AppMessage, timestamp: Timestamp, note: bytes, now: int, out: Outbox
    ) -> None:
        local = Timestamp.decode(note)
        entry = self.entries.get(local)
        if entry is None:
            entry = self._add_entry(Entry(message, local, False))
            self._save_entry(entry, out)
        entry.final = timestamp
        self._delivered(entry, out)
        if entry.position != position:
            raise AssertionError(f"installed delivery {position} as {entry.position}")
        for past in [p for p in self._early if p <= position]:
            del self._early[past]
        self._deliver_ready(now, out)
        self._adopt_if_due(now, out)
        if self._positions is not None:
            self._begin_if_ready(now, out)

    # -- leading ------------------------------------------------------------------------------------------------------

    def _learn_leader(self, group: GroupId, ballot: Ballot) -> None:
        if ballot.leader not in self.topology.groups[group]:
            raise PeerError(f"process {ballot.leader} does not belong to group {group}")
        if ballot > self.leaders[group]:
            self.leaders[group] = ballot

    def _on_leader_is(self, group: GroupId, ballot: Ballot, out: Outbox) -> None:
        known = self.leaders[group]
        self._learn_leader(group, ballot)
        if self.leaders[group] != known:
            for message in self._submitted.values():
                if group in message.destinations:
                    out.send((ballot.leader,), Multicast(message))

    def _begin_if_ready(self, now: int, out: Outbox) -> None:
        """Act as the leader once the log is known, and with it what the group has delivered. (Before the first ballot
        there was nothing to deliver.)"""
        if self._positions is None or not self._is_recovered():
            return
        if self._ballot.number > _FIRST_NUMBER:
            told = self._positions
            if len(told) < self.topology.quorum(self.group):
                return
            furthest = max(told, key=lambda p: told[p])
            if told[furthest] > self.log.position:
                out.catch_up(furthest)
                return
        self._positions = None
        self._begin_reign(now, out)

    def _is_recovered(self) -> bool:
        """Whether the own Begin is applied, and no other after it."""
        return self.seen == self._ballot

    def _begin_reign(self, now: int, out: Outbox) -> None:
        self.reign = self._ballot
        self.stamping.advance(self.clock)
        self._raised_to = self.clock
        self._rebuild_queue()
        for local in sorted(self.entries):
            entry = self.entries[local]
            if not entry.position:
                entry.raised = entry.concluded = False
                groups = tuple(g for g in entry.message.destinations if g != self.group)
                out.send(self.topology.members(groups), self._stamp_of(entry, True))
                self._retry_later(entry, now)
                self._consider(entry)
        held, self._held = self._held, []
        for sender, message in held:
            self._on_multicast(sender, message, now, out)
        self._deliver_ready(now, out)

    def _end_reign(self) -> None:
        self._positions = None
        self._held.clear()
        if self.reign is not None:
            self.reign = None
            self.in_flight.clear()
            self._retries.clear()
            self._rebuild_queue()

    def _retry_later(self, entry: Entry, now: int) -> None:
        self._retries.append((now, entry.local))
        self._wake_by(now + self.options.retry_us)

    def _repeat(self, entry: Entry, out: Outbox) -> None:
        """To all processes of the groups whose stamps are missing, since who leads may be what is wrong."""
        held = self.stamps.get(entry.message.id, {})
        missing = self.topology.members(tuple(g for g in entry.message.destinations if g not in held))
        out.send(missing, Multicast(entry.message))
        out.send(missing, self._stamp_of(entry, True))

    # -- a process that is behind -------------------------------------------------------------------------------------

    def _notice_ahead(self, sender: ProcessId, watermark: Timestamp, now: int) -> None:
        """A member of the own group has delivered more than this process."""
        if self.topology.group_of[sender] == self.group and watermark > self.log.timestamp:
            if self._ahead is None:
                self._ahead = (watermark, sender, now)
                self._wake_by(now + self.options.retry_us)
            elif watermark > self._ahead[0]:
                self._ahead = (watermark, sender, self._ahead[2])

    def _catch_up_if_behind(self, now: int, out: Outbox) -> int | None:
        if self._ahead is None or self.log.timestamp >= self._ahead[0]:
            self._ahead = None
            return None
        watermark, peer, since = self._ahead
        if now - since >= self.options.retry_us:
            out.catch_up(peer)
            self._ahead = (watermark, peer, now)
        return int(self._ahead[2] + self.options.retry_us)

    def _need_state(self, now: int, out: Outbox) -> None:
        """The log that this process lacks is dropped: ask members for their state, in turn and not too often."""
        if not self.others or now < self._state_at:
            return
        peer = self.others[self._state_turn % len(self.others)]
        self._state_turn += 1
        self._state_at = now + self.options.retry_us
        self._wake_by(self._state_at)
        out.send((peer,), StateAsk())

    def _send_state(self, to: ProcessId, out: Outbox) -> None:
        pending = [SavedEntry(e.message, e.local, e.final, True) for e in self.entries.values() if not e.position]
        parts = portions(pending, lambda entry: len(entry.message.payload))
        for part, some in enumerate(parts):
            out.send((to,), State(self.log.position, self.instance, self.clock, self.seen, some, part, len(parts)))

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
        self._end_reign()
        given = {entry.local: entry for entry in state.entries}
        for entry in list(self.entries.values()):
            if entry.position and (entry.position <= state.position or entry.local in given):
                self._mark_logged(entry, out)
            elif not entry.position and entry.local not in given:
                self._remove_entry(entry, out)
        for local, told in given.items():
            known = self.log.known(told.message.id)
            if local not in self.entries and (known is None or known[0] < local):
                entry = self._add_entry(Entry(told.message, local, True))
                entry.final = told.final
                self._save_entry(entry, out)
                self._hold_stamp(told.message.id, self.group, local, now)
        self.instance, self.clock, self.seen = state.instance, state.clock, state.seen
        self._base_dirty = True
        self._rebuild_queue()
        self.paxos.jump(state.instance, now, out)
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
        self._told = self.instance
        out.send_durable(self.members, Applied(self.instance))

    def _on_applied(self, sender: ProcessId, instance: int, out: Outbox) -> None:
        """Drop the instances that nobody needs any more."""
        applied = self._applied
        applied[sender] = max(applied[sender], instance)
        quorum = sorted(applied.values(), reverse=True)[self.topology.quorum(self.group) - 1]
        spare = max(min(applied.values()), self.instance - _KEPT)
        drop = min(quorum, spare, applied[self.self_id])
        if drop >= self.paxos.low:
            self.paxos.truncate(drop, out)

    # -- timers -------------------------------------------------------------------------------------------------------

    def on_peer_reset(self, peer: ProcessId, now: int, out: Outbox) -> None:
        self.log.forget_reports(peer)
        self._assembly.forget(peer)
        if peer in self.others:
            self.paxos.on_peer_reset(peer, now)
            self._told = 0
            self._tell_later(now)
            self._wake_by(now)

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

    def _wake_by(self, at: int) -> None:
        if at < self._wake:
            self._wake = at

    def on_tick(self, now: int, out: Outbox) -> int | None:
        wakes = [self.paxos.tick(now, out)]
        log_wake = self.log.tick(now, out)
        if log_wake is not None:
            wakes.append(log_wake)
        if now >= self._wake:
            self._wake = self._run_timers(now, out)
            self.end_batch(now, out)
        return min(*wakes, self._wake)

    def _run_timers(self, now: int, out: Outbox) -> int:
        period: int = self.options.retry_us
        wakes = [now + 20 * period, self._retry_due(now, out), self._catch_up_if_behind(now, out)]
        if self._tell_at:
            if now >= self._tell_at:
                self._tell_at = 0
                if self.instance > self._told:
                    self._tell_applied(out)
            wakes.append(self._tell_at or None)
        if self._positions is not None:
            if now >= self._ask_at:
                self._ask_at = now + self.options.heartbeat_us
                out.send(self.members, PositionAsk(self._ballot))
                self._begin_if_ready(now, out)
            wakes.append(self._ask_at)
        if self.paxos.stranded or self._state is not None:
            self._need_state(now, out)
            self._adopt_if_due(now, out)
            wakes.append(max(self._state_at, now + 1))
        while self._strays and self._strays[0][0] <= now - _STRAY_RETRIES * period:
            message_id = self._strays.popleft()[1]
            if self._entry_of(message_id) is None:
                self._forget(message_id)
        return min(w for w in wakes if w is not None)

    def _retry_due(self, now: int, out: Outbox) -> int | None:
        period: int = self.options.retry_us
        retries = self._retries
        while retries and retries[0][0] <= now - period:
            entry = self.entries.get(retries.popleft()[1])
            if self.reign is not None and entry is not None and not entry.position and entry.final is None:
                self._repeat(entry, out)
                retries.append((now, entry.local))
        submissions = self._submission_retries
        while submissions and submissions[0][0] <= now - period:
            message = self._submitted.get(submissions.popleft()[1])
            if message is not None:
                out.send(self.topology.members(message.destinations), Multicast(message))
                submissions.append((now, message.id))
        return min((queue[0][0] + period for queue in (retries, submissions) if queue), default=None)

    # -- for people ---------------------------------------------------------------------------------------------------

    def leader_of(self, group: GroupId) -> ProcessId | None:
        return self.leaders[group].leader

    def role(self) -> str:
        return self.paxos.status if self.reign is not None or not self.paxos.leading else "recovering"

    def describe(self) -> dict[str, Any]:
        return {
            **self.paxos.describe(),
            "clock": self.clock,
            "pending": len(self._queue),
            "submitted": len(self._submitted),
            "entries": len(self.entries),
            "unsettled": self.log.unsettled,
        }

    def fingerprint(self) -> object:
        entries = tuple(
            (e.local, e.message.id, e.final, e.position, e.logged, e.raised, e.concluded)
            for e in sorted((*self.entries.values(), *self.in_flight.values()), key=lambda e: e.local)
        )
        stamps = tuple((i, tuple(sorted(s.items()))) for i, s in sorted(self.stamps.items()))
        words = (tuple(self._words), tuple(sorted(self._early.items())))
        return (
            self.paxos.fingerprint(), self.reign, self.stamping.value, self.clock, self.instance, self.log.position,
            entries, stamps, words,
        )  # fmt: skip
