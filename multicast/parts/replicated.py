"""Skeen's protocol between groups, each of which plays one process by consensus: what such protocols share.

Theory of operation. What a group's log holds, how it leads to deliveries, and who may deliver, is parts.group_log. The
leader of each destination group assigns a message its local timestamp; once that is decided no leader change can take
it back, and the leader tells it to the other destinations (`Stamp`). The maximum of the stamps of all destination
groups is the global timestamp. To whom stamps go, and what a leader proposes when, is what the protocols differ in.

    message        from -> to                                   durable before it leaves
    Multicast      sender -> see the protocol                   -
    Stamp          leader -> see the protocol                   -  (it is decided: on a quorum's disks)
    PositionAsk    new leader -> members                        -
    Position       member -> new leader                         its deliveries up to that position
    LeaderIs       member -> sender of a Multicast              -
    Stamps         leader -> processes of a destination         -  (they are decided; tell me yours)
    Asked, Lacked, Copies  sender or leader <-> destinations    -  (parts.submissions)
    Known          leader -> who repeats m                      -  (m was delivered, at this timestamp)
    Stable         process -> destination groups                -  (parts.delivered)
    the rest                                                    parts.group_log

Retries (parts.retries). A leader tells the leaders of groups whose stamps it lacks its own stamps again, many in one
message, and asks for theirs; later all processes of those groups, since who leads may be what is wrong. Who does not
have the messages says so (Lacked) and gets them. A sender asks until it knows of the delivery (parts.submissions).

Copies. A leader does not assign a message that it knows, but says so (Known), which is as good as a stamp. The stamps
of other groups are kept by id: those of a message and of a copy that came after the id was forgotten may be confused,
but then their maximum is beyond the deduplication window, and such a global timestamp counts only once it is in the
log. Stamps of messages that never come are forgotten after a while.
"""

from __future__ import annotations

import random
from collections import deque
from typing import Annotated, Any, ClassVar

import msgspec

from multicast.parts import paxos, reminders, submissions
from multicast.parts.clock import Clock
from multicast.parts.delivered import Known, Stable
from multicast.parts.group_log import (
    Advance,
    Applied,
    Assign,
    Begin,
    Deliver,
    Entry,
    GroupLog,
    State,
    StateAsk,
    encode_command,
)
from multicast.parts.inspection import DELIVERED, seen
from multicast.parts.options import GroupOptions
from multicast.parts.reminders import Forgot, Reminder
from multicast.parts.retries import AT_MOST_IDS, IDLE_PERIODS, Retries, chunks
from multicast.parts.submissions import Lacked, Submissions
from multicast.protocol import Options, Outbox, PeerError, Saved
from multicast.types import AppMessage, Ballot, GroupId, MessageId, ProcessId, Timestamp, Topology

_FIRST_NUMBER = 1
_STRAY_RETRIES = 20


class Multicast(msgspec.Struct, array_like=True, tag=1, gc=False):
    """Please order this message."""

    message: AppMessage


class Stamp(msgspec.Struct, array_like=True, tag=2, gc=False):
    """My group's local timestamp of m, decided. ballot: in which I lead."""

    id: MessageId
    ballot: Ballot
    local: Timestamp


class Stamps(msgspec.Struct, array_like=True, tag=10, gc=False):
    """My group's local timestamps, decided. ballot: in which I lead. ask: I lack yours; tell me."""

    ballot: Ballot
    stamps: Annotated[list[tuple[MessageId, Timestamp]], AT_MOST_IDS]
    ask: bool


class LeaderIs(msgspec.Struct, array_like=True, tag=3, gc=False):
    """Not me: the leader of this ballot leads my group."""

    ballot: Ballot


class PositionAsk(msgspec.Struct, array_like=True, tag=6, gc=False):
    """I lead this ballot: how far have you delivered?"""

    ballot: Ballot


class Position(msgspec.Struct, array_like=True, tag=7, gc=False):
    """So far."""

    ballot: Ballot
    position: int


ORDERING = (Multicast, Stamp, Deliver)
HOUSEKEEPING = (
    LeaderIs, Stamps, Applied, PositionAsk, Position, StateAsk, State, Known, Stable, *submissions.MESSAGES,
    *reminders.MESSAGES,
)  # fmt: skip
PAXOS = paxos.MESSAGES


class ReplicatedOptions(GroupOptions, kw_only=True, forbid_unknown_fields=True):
    """See GroupOptions.

    early_clock: the leader's stamping clock moves when an Advance is proposed, not when it is decided; then followers
    need no word of the leader. instances_max: consensus instances under way at once in a group. values_max: commands in
    one instance; 0: all that wait (1: as published, with a large instances_max).
    """

    drawn: ClassVar[dict[str, tuple[Any, ...]]] = {
        "early_clock": (False, True), "instances_max": (1, 4, 100), "values_max": (0, 0, 1, 3),
    }  # fmt: skip

    early_clock: bool = False
    instances_max: int = 100
    values_max: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.instances_max < 1:
            raise ValueError("instances_max must be at least 1")
        if self.values_max < 0:
            raise ValueError("values_max must be at least 0")


class ReplicatedSkeen(GroupLog):
    """One process. Protocols say to whom stamps go and what follows from them: `_tell_stamp`, `_conclude`.

    stamps: id -> group -> decided local timestamp, as heard. in_flight: what this leader has stamped, undecided.
    stamping: the leader's clock.
    """

    def __init__(self, self_id: ProcessId, topology: Topology, options: Options, rng: random.Random):
        super().__init__(self_id, topology, options, rng)
        self.stamps: dict[MessageId, dict[GroupId, Timestamp]] = {}
        self.leaders = {g: Ballot(_FIRST_NUMBER, members[0]) for g, members in topology.groups.items()}
        self.stamping = Clock(self.options.clock)
        self.in_flight: dict[MessageId, Entry] = {}
        self._raised_to = 0
        self._ballot = Ballot(0, 0)
        self._led: Ballot | None = None
        self._positions: dict[ProcessId, tuple[int, int]] | None = None
        self._ask_at = 0
        self._held: list[tuple[ProcessId, AppMessage]] = []
        self._retries: Retries[Timestamp] = Retries(self.options.retry_us, rng)
        self._strays: deque[tuple[int, MessageId]] = deque()
        self._submissions = Submissions(
            topology, self._entry_points, self.options.retry_us, rng, delivered_at=self._delivered_at,
            lacks=lambda message_id: self._entry_of(message_id) is None, take=self._on_multicast,
            payload=self._payload, refers=self._refers,
        )  # fmt: skip
        self.handlers = {**self._submissions.handlers}

    def on_start(self, saved: Saved, now: int, out: Outbox) -> None:
        super().on_start(saved, now, out)
        for entry in self.entries.values():
            if not entry.position:
                self._hold_stamp(entry.message.id, self.group, entry.local, now)

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
            self._learn_leader(self.topology.group_of[sender], message.ballot, now)
        elif kind is Stamps:
            self._on_stamps(sender, message, now, out)
        elif kind in self.handlers:
            super().on_message(sender, message, now, out)
        elif kind is Forgot:
            self._on_forgot(sender, message, out)
        elif kind is Reminder:
            self._reminders.add(sender, message)
            self._wake_by(now)
        elif self.topology.group_of[sender] != self.group:
            raise PeerError(f"{kind.__name__} from group {self.topology.group_of[sender]}")
        elif kind is Deliver:
            self._on_deliver(sender, message, now, out)
        elif kind is Applied:
            self._on_applied(sender, message.instance, out)
            self._notice_ahead(sender, message.delivered, now)
        elif kind is PositionAsk:
            if not self.paxos.amnesiac:
                out.send_durable((sender,), Position(message.ballot, self.log.position))
        elif kind is Position:
            if self._positions is not None and message.ballot == self._ballot:
                self._positions[sender] = (message.position, now)
                self._begin_if_ready(now, out)
        elif kind is StateAsk:
            self._send_state(sender, out)
        else:
            self._on_state(sender, message, now, out)

    # -- multicast ----------------------------------------------------------------------------------------------------

    def on_submit(self, message: AppMessage, now: int, out: Outbox) -> None:
        self.refuse_beyond_limit(max(len(self._queue), len(self._submissions)))
        if not self.log.known(message.id):
            self._submissions.add(message, now)
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
            elif len(self._held) < self.options.early_max:
                self._held.append((sender, message))
            return
        if (delivered := self._delivered_at(message.id)) is not None:
            out.send((sender,), Known(message.id, delivered))
        elif self._entry_of(message.id) is None:
            entry = Entry(message, Timestamp(self.stamping.stamp(self.real_clock(now)), self.group), True)
            self.in_flight[message.id] = entry
            self._block(entry)
            self._propose(Assign(self.reign, entry.local, message))
            self._on_proposed(entry, out)
            if sender != message.origin and message.origin in self.topology.group_of:
                self._refer(message.origin, out)  # it may have asked a former leader, who is dead

    def _refer(self, sender: ProcessId, out: Outbox) -> None:
        out.send((sender,), LeaderIs(self.paxos.promised))

    def _refers(self, sender: ProcessId, out: Outbox) -> bool:
        """Whether this process does not act as the leader; then it says who does, if that is somebody else."""
        if self.reign is not None:
            return False
        if self.paxos.promised.leader != self.self_id:
            self._refer(sender, out)
        return True

    def _delivered_at(self, message_id: MessageId) -> Timestamp | None:
        """When this process delivered a message of which it has no later copy."""
        entry, known = self._entry_of(message_id), self.log.known(message_id)
        return known[0] if known is not None and (entry is None or entry.position) else None

    def _payload(self, message_id: MessageId) -> AppMessage | None:
        """Of a message that a leader lacks, to which this process has told its stamp."""
        entry = self._entry_of(message_id)
        if entry is None:
            return None
        self._retries.answered(entry.local)
        return entry.message

    def _block(self, entry: Entry) -> None:
        """Nothing above this stamp is delivered here, although it is not in the log yet."""
        self._queue.propose(entry.local.encode(), entry.local)

    def _on_proposed(self, entry: Entry, out: Outbox) -> None:
        """This leader has just stamped the message; the stamp is not decided."""

    def _propose(self, command: Begin | Assign | Advance) -> None:
        self.paxos.propose(encode_command(command))

    def _propose_advance(self, entry: Entry, final: Timestamp, certain: bool) -> None:
        assert self.reign is not None
        self._propose(Advance(self.reign, entry.local, final, certain))
        self._raised_to = max(self._raised_to, final.time)
        if self.options.early_clock:
            self._advance_stamping(final.time)

    def _advance_stamping(self, to: int) -> None:
        self.stamping.advance(to)

    def _on_advanced(self, to: int) -> None:
        if self.reign is not None:
            self._advance_stamping(to)

    def _entry_of(self, message_id: MessageId) -> Entry | None:
        """The latest one of this message, in flight or assigned."""
        entry = self.in_flight.get(message_id)
        if entry is None and message_id in self._locals:
            entry = self.entries[self._locals[message_id][-1]]
        return entry

    # -- the log ------------------------------------------------------------------------------------------------------

    def _after_paxos(self, now: int, out: Outbox) -> None:
        """Take what was decided; notice a new leader."""
        part = self.paxos
        if part.promised != self._ballot:
            self._ballot = part.promised
            self._learn_leader(self.group, part.promised, now)
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

    def _proposed(self, message_id: MessageId) -> Entry | None:
        return self.in_flight.pop(message_id, None)

    def _is_in_flight(self, message_id: MessageId, local: Timestamp) -> bool:
        entry = self.in_flight.get(message_id)
        return entry is not None and entry.local == local

    def _is_decided(self, entry: Entry) -> bool:
        return self.entries.get(entry.local) is entry

    def _on_assigned(self, entry: Entry, now: int, out: Outbox) -> None:
        self._hold_stamp(entry.message.id, self.group, entry.local, now)
        if self.reign is not None:
            self._tell_stamp(entry, out)
            self._retry_later(entry, now)
        self._consider(entry)

    def _on_delivered(self, entry: Entry, out: Outbox) -> None:
        message = entry.message
        self._forget(message.id)
        self._submissions.remove(message.id)
        self._retries.discard(entry.local)
        if self.reign is not None and self.topology.group_of.get(message.origin) not in message.destinations:
            assert entry.final is not None
            out.send((message.origin,), Known(message.id, entry.final))

    # -- stamps -------------------------------------------------------------------------------------------------------

    def _tell_stamp(self, entry: Entry, out: Outbox) -> None:
        """At the leader: the stamp is decided; tell it."""
        raise NotImplementedError

    def _conclude(self, entry: Entry, final: Timestamp) -> None:
        """The stamps of all destination groups are known; `final` is their maximum."""
        raise NotImplementedError

    def _stamp_of(self, entry: Entry) -> Stamp:
        return Stamp(entry.message.id, self._ballot, entry.local)

    def _tell_stamps(self, to: tuple[ProcessId, ...], entries: list[Entry], ask: bool, out: Outbox) -> None:
        for some in chunks(entries):
            out.send(to, Stamps(self._ballot, [(entry.message.id, entry.local) for entry in some], ask))

    def _on_stamp(self, sender: ProcessId, stamp: Stamp, now: int, out: Outbox) -> None:
        group = self.topology.group_of[sender]
        if stamp.ballot.leader != sender:
            raise PeerError("a stamp of somebody else's ballot")
        self._learn_leader(group, stamp.ballot, now)
        entry, known = self._entry_of(stamp.id), self.log.known(stamp.id)
        if group == self.group or (known is not None and (entry is None or entry.position)):
            return
        if entry is not None and group not in entry.message.destinations:
            raise PeerError(f"group {group} stamps a message that is not for it")
        self._hold_stamp(stamp.id, group, stamp.local, now)
        if entry is not None:
            self._retries.answered(entry.local)
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
            self._retries.discard(entry.local)
            self._conclude(entry, max(*stamps.values(), entry.local))

    def _on_known(self, known: Known, now: int, out: Outbox) -> None:
        """A group has delivered the message; to a leader that still waits for its stamp that is as good as the stamp.
        (If this process had forgotten the message and assigned a late copy, that copy is delivered expired.)"""
        self._submissions.remove(known.id)
        entry = self._entry_of(known.id)
        if self.reign is not None and entry is not None and self._is_decided(entry) and not entry.position:
            self._conclude(entry, max(known.final, entry.local))
            self._deliver_ready(now, out)

    # -- leading ------------------------------------------------------------------------------------------------------

    def _learn_leader(self, group: GroupId, ballot: Ballot, now: int) -> None:
        """Whom to ask about what waits for that group has changed."""
        if ballot.leader not in self.topology.groups[group]:
            raise PeerError(f"process {ballot.leader} does not belong to group {group}")
        if ballot > self.leaders[group]:
            self.leaders[group] = ballot
            self._retries.hurry()
            self._submissions.hurry()
            self._wake_by(now)

    def _begin_if_ready(self, now: int, out: Outbox) -> None:
        """Act as the leader once the log is known, and with it what any quorum of the group has delivered: of those who
        still answer, since who is dead may have delivered what nobody else has. (Before the first ballot there was
        nothing to deliver.)"""
        if self._positions is None or not self._is_recovered():
            return
        if self._ballot.number > _FIRST_NUMBER:
            recent = now - self.options.election_timeout_us
            told = {p: position for p, (position, at) in self._positions.items() if at >= recent}
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
                self._retry_later(entry, now)
                if entry.final is not None:
                    self._conclude(entry, entry.final)
                else:
                    self._consider(entry)
        self._retries.hurry()
        self._wake_by(now)
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
        self._retries.add(entry.local, now)
        self._wake_by(now + self.options.retry_us)

    def _retry_due(self, now: int, out: Outbox) -> int:
        """Ask for the stamps that are missing."""
        asked: dict[tuple[ProcessId, ...], list[Entry]] = {}
        for local in self._retries.due(now):
            entry = self.entries.get(local)
            if self.reign is None or entry is None or entry.position or entry.final is not None:
                self._retries.discard(local)
                continue
            held = self.stamps.get(entry.message.id, {})
            missing = tuple(g for g in entry.message.destinations if g not in held)
            if not missing:
                self._retries.discard(local)
                continue
            again = self._retries.times(local) > 1
            to = self.topology.members(missing) if again else tuple(self.leaders[g].leader for g in missing)
            asked.setdefault(to, []).append(entry)
        for to, entries in asked.items():
            self._tell_stamps(to, entries, True, out)
        return self._retries.wake(now)

    def _on_stamps(self, sender: ProcessId, message: Stamps, now: int, out: Outbox) -> None:
        """Stamps again, and perhaps the question for the own ones."""
        if message.ask and self.reign is None and self.paxos.promised.leader != self.self_id:
            self._refer(sender, out)
        lacked: list[MessageId] = []
        decided: list[Entry] = []
        for message_id, local in message.stamps:
            if message.ask and self.reign is not None:
                entry, known = self._entry_of(message_id), self.log.known(message_id)
                if entry is not None and self._is_decided(entry):
                    decided.append(entry)
                elif entry is None and known is not None:
                    out.send((sender,), Known(message_id, known[0]))
                elif entry is None:
                    lacked.append(message_id)
            self._on_stamp(sender, Stamp(message_id, message.ballot, local), now, out)
        self._tell_stamps((sender,), decided, False, out)
        if lacked:
            out.send((sender,), Lacked(lacked))

    # -- timers -------------------------------------------------------------------------------------------------------

    def on_peer_reset(self, peer: ProcessId, now: int, out: Outbox) -> None:
        self.log.forget_reports(peer)
        self._assembly.forget(peer)
        if peer in self.others:
            self.paxos.on_peer_reset(peer, now)
            self._told = 0
            self._tell_later(now)
            self._wake_by(now)

    def on_tick(self, now: int, out: Outbox) -> int | None:
        wake = self.paxos.tick(now, out)
        if not self.paxos.amnesiac and (log_wake := self.log.tick(now, out)) is not None:
            wake = min(wake, log_wake)
        if now >= self._wake:
            self._wake = self._run_timers(now, out)
            self.end_batch(now, out)
        return min(wake, self._wake)

    def _run_timers(self, now: int, out: Outbox) -> int:
        period: int = self.options.retry_us
        wakes: list[int | None] = [now + IDLE_PERIODS * period, self._behind.tick(self.log.timestamp, now, out)]
        wakes += [self._retry_due(now, out), self._submissions.tick(now, out)]
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
        if self.paxos.amnesiac:
            wakes.append(self._recollect(now, out))
        if self.paxos.stranded or self._state is not None:
            self._need_state(now, out)
            self._adopt_if_due(now, out)
            wakes.append(max(self._state_at, now + 1))
        while self._strays and self._strays[0][0] <= now - _STRAY_RETRIES * period:
            message_id = self._strays.popleft()[1]
            if self._entry_of(message_id) is None:
                self._forget(message_id)
        return min(w for w in wakes if w is not None)

    # -- for people ---------------------------------------------------------------------------------------------------

    def leader_of(self, group: GroupId) -> ProcessId | None:
        return self.leaders[group].leader

    def role(self) -> str:
        if self.paxos.amnesiac or (self.paxos.leading and self.reign is None):
            return "recovering"
        return self.paxos.status

    def describe(self) -> dict[str, Any]:
        return {
            **self.paxos.describe(),
            "clock": self.clock,
            "pending": len(self._queue),
            "submitted": len(self._submissions),
            "entries": len(self.entries),
            "unsettled": self.log.unsettled,
        }

    def inspect(self) -> dict[str, Any]:
        """Phases: proposed (the stamp is not decided), assigned, committed, delivered."""
        blocked = self._queue.blockers()
        everything = {e.local: e for e in (*self.in_flight.values(), *self.entries.values())}
        messages: dict[str, Any] = {}
        for local, entry in sorted(everything.items()):
            why = self._name_blockers(blocked.get(local.encode(), []), everything)
            if entry.final is not None and not entry.position:
                if not self._is_covered(entry.final):
                    why.append({"clock": "group", "at": self.clock})
                if not self._may_deliver():
                    why.append({"leader": self._ballot.leader})
            phase = "assigned" if self._is_decided(entry) else "proposed"
            phase = DELIVERED if entry.position else phase if entry.final is None else "committed"
            stamps = self.stamps.get(entry.message.id)
            messages[entry.message.id.hex()] = seen(phase, local, entry.final, why, stamps)
        return {
            **super().inspect(), **self.paxos.inspect(), "stamping": self.stamping.value, "instance": self.instance,
            "messages": messages,
        }  # fmt: skip

    @staticmethod
    def _name_blockers(blockers: list[dict[str, Any]], entries: dict[Timestamp, Entry]) -> list[dict[str, Any]]:
        """The queue knows messages by their local timestamps."""
        named = []
        for blocker in blockers:
            entry = entries.get(Timestamp.decode(bytes.fromhex(blocker["message"])))
            named.append(blocker if entry is None else {**blocker, "message": entry.message.id.hex()})
        return named
