"""Skeen's protocol between groups, each of which plays one process by consensus: what such protocols share.

Theory of operation. How a group acts as one process, what its log holds, how that leads to deliveries, and who leads,
is parts.group_member. The leader of each destination group assigns a message its local timestamp; once that is decided
no leader change can take it back, and the leader tells it to the other destinations (`Stamp`). The maximum of the
stamps of all destination groups is the global timestamp. To whom stamps go, and what a leader proposes when, is what
the protocols differ in.

    message        from -> to                                   durable before it leaves
    Multicast      sender -> see the protocol                   -
    Stamp          leader -> see the protocol                   -  (it is decided: on a quorum's disks)
    LeaderIs       member -> sender of a Multicast              -  (whom it should ask instead)
                   new leader -> everybody                      -  (who waits for it asks again)
    Stamps         leader -> processes of a destination         -  (they are decided; tell me yours)
    Asked, Lacked, Copies  sender or leader <-> destinations    -  (parts.submissions; Relay, where links are broken)
    Known          leader -> who repeats m                      -  (m was delivered, at this timestamp)
    Confirm, Confirmed  leader <-> members                      -  (parts.reign_reads)
    the rest                                                    parts.group_member

Retries (parts.retries). A leader tells the leaders of groups whose stamps it lacks its own stamps again, many in one
message, and asks for theirs; later all processes of those groups, since who leads may be what is wrong. Who does not
have the messages says so (Lacked) and gets them. A sender asks until it knows of the delivery (parts.submissions).

Copies. A leader does not assign a message that it knows, but says so (Known), which is as good as a stamp. The stamps
of other groups are kept by id: those of a message and of a copy that came after the id was forgotten may be confused.
Of one group's the lowest counts. If that makes the maximum one within the deduplication window, all groups have stamped
the message in time, each once, so it is the message's own; if not, it counts only once it is in the log. Stamps of
messages that never come are forgotten after a while.
"""

from __future__ import annotations

import random
from collections import deque
from typing import Annotated, Any, ClassVar

import msgspec

from multicast.parts import group_member, reads, submissions
from multicast.parts.ballots import KnownLeaders, LeaderIs
from multicast.parts.deadlines import Deadlines, earliest
from multicast.parts.delivered import DeliveredLog, Known
from multicast.parts.group_log import Deliver, Entry
from multicast.parts.group_member import GroupMember, MemberOptions
from multicast.parts.inspection import DELIVERED, seen
from multicast.parts.reign_reads import ReignReads
from multicast.parts.retries import AT_MOST_IDS, Retries, in_questions
from multicast.parts.submissions import Lacked, Submissions
from multicast.protocol import Handler, MulticastProtocol, Options, Outbox, PeerError, Saved
from multicast.types import AppMessage, Ballot, GroupId, MessageId, ProcessId, Timestamp, Topology

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


ORDERING = (Multicast, Stamp, Deliver)
HOUSEKEEPING = (LeaderIs, Stamps, Known, *group_member.HOUSEKEEPING, *submissions.MESSAGES, *reads.MESSAGES)


class ReplicatedOptions(MemberOptions, kw_only=True, forbid_unknown_fields=True):
    """See MemberOptions."""

    drawn: ClassVar[dict[str, tuple[Any, ...]]] = {
        "early_clock": (False, True), "instances_max": (1, 4, 100), "values_max": (0, 0, 1, 3),
    }  # fmt: skip


class ReplicatedSkeen(MulticastProtocol):
    """At one process. Protocols add to whom stamps go and what follows from them: `_tell_stamp`, `_conclude`.

    log: this process's deliveries. member: its part in its group. stamps: id -> group -> decided local timestamp, as
    heard. leaders: group -> the latest ballot heard of.
    """

    def __init__(self, self_id: ProcessId, topology: Topology, options: Options, rng: random.Random):
        super().__init__(self_id, topology, options, rng)
        o = self.options
        self.log = DeliveredLog(self_id, topology, o.stability_us, o.dedup_window_us)
        self._deadlines = Deadlines({"stamps": self._ask_for_stamps, "strays": self._forget_strays})
        self.member = GroupMember(self, self.log, self._deadlines, self_id, topology, o, rng)
        self.election = self.member.paxos.election
        self.stamps: dict[MessageId, dict[GroupId, Timestamp]] = {}
        self.leaders: KnownLeaders = self.election.detector.reach.need_leaders(topology, KnownLeaders(topology))
        self._retries: Retries[Timestamp] = Retries(o.retry_us, rng)
        self._strays: deque[tuple[int, MessageId]] = deque()
        self._submissions = Submissions(
            topology, self._entry_points, o.retry_us, rng, delivered_at=self.member.delivered_at,
            lacks=lambda message_id: self.member.entry_of(message_id) is None, take=self._take,
            on_known=self._on_known, payload=self._payload, refers=self._refers,
            reach=self.election.detector.reach, submit=self.on_submit,
        )  # fmt: skip
        self._deadlines.add("submissions", self._submissions.tick)
        self._reads = ReignReads(self.member, o, self._deadlines)
        self.handlers = {
            Multicast: Handler(self._on_multicast), Stamp: Handler(self._on_stamp), Stamps: Handler(self._on_stamps),
            Known: Handler(self._on_known), LeaderIs: Handler(self._on_leader_is),
            **self._submissions.handlers, **self.member.handlers, **self._reads.handlers,
        }  # fmt: skip

    def on_start(self, saved: Saved, now: int, out: Outbox) -> None:
        self.member.start(saved, now, out)
        for entry in self.member.log.undelivered():
            self._hold_stamp(entry.message.id, self.group, entry.local, now)

    # -- multicast ----------------------------------------------------------------------------------------------------

    def on_submit(self, message: AppMessage, now: int, out: Outbox) -> None:
        self.refuse_beyond_limit(max(len(self.member.log), len(self._submissions)))
        if not self.log.known(message.id):
            self._deadlines.by("submissions", now + self.options.retry_us)
            self._submissions.send(message, Multicast(message), now, out)

    def _entry_points(self, message: AppMessage) -> tuple[ProcessId, ...]:
        """To whom a sender sends its message first."""
        return tuple(self.leaders[g].leader for g in message.destinations)

    def _on_multicast(self, sender: ProcessId, multicast: Multicast, now: int, out: Outbox) -> None:
        self._take(sender, multicast.message, now, out)

    def _take(self, sender: ProcessId, message: AppMessage, now: int, out: Outbox) -> None:
        """At the leader: have the message assigned, once."""
        self._check(message)
        if self._refers(sender, out):
            self.member.hold(sender, message)
            return
        if (delivered := self.member.delivered_at(message.id)) is not None:
            out.send((sender,), Known(message.id, delivered))
        elif self.member.entry_of(message.id) is None:
            self._on_proposed(self.member.stamp(message, self.real_clock(now)), out)
            if sender != message.origin and message.origin in self.topology.group_of:
                self._refer(message.origin, out)  # it may have asked a former leader, who is dead

    def _check(self, message: AppMessage) -> None:
        """PeerError if it is not for this group, or for one that is not there."""
        groups = message.destinations
        if self.group not in groups or any(g not in self.topology.groups for g in groups):
            raise PeerError(f"a message for groups {groups} at group {self.group}")

    def _refers(self, sender: ProcessId, out: Outbox) -> bool:
        """Whether this process leaves the message to somebody else, because it does not act as the leader; then it says
        who does, if it knows."""
        if self.member.acting:
            return False
        if self.member.leader != self.self_id:
            self._refer(sender, out)
        return True

    def _refer(self, sender: ProcessId, out: Outbox) -> None:
        out.send((sender,), LeaderIs(self.member.paxos.promised))

    def _payload(self, message_id: MessageId) -> AppMessage | None:
        """A message whose payload a leader of another group lacks, and of which this process has told its stamp."""
        entry = self.member.entry_of(message_id)
        if entry is None:
            return None
        self._retries.answered(entry.local)
        return entry.message

    def _on_proposed(self, entry: Entry, out: Outbox) -> None:
        """This leader has just stamped the message; the stamp is not decided."""

    # -- what goes on in the group ------------------------------------------------------------------------------------

    def on_promised(self, ballot: Ballot, now: int) -> None:
        self._learn_leader(self.group, ballot, now)

    def on_assigned(self, entry: Entry, now: int, out: Outbox) -> None:
        self._hold_stamp(entry.message.id, self.group, entry.local, now)
        if self.member.acting:
            self._tell_stamp(entry, out)
            self._retry_later(entry, now)
        self._consider(entry)

    def on_delivered(self, entry: Entry, out: Outbox) -> None:
        message = entry.message
        self._forget(message.id)
        later = self.member.log.latest(message.id)
        if later is not None and not later.position:  # nobody else tells the own group's stamp of a later copy again
            self.stamps[message.id] = {self.group: later.local}
        self._submissions.remove(message.id)
        self._retries.discard(entry.local)
        if self.member.acting and self.topology.group_of.get(message.origin) not in message.destinations:
            assert entry.final is not None
            out.send((message.origin,), Known(message.id, entry.final))

    def on_reign(self, held: list[tuple[ProcessId, AppMessage]], now: int, out: Outbox) -> None:
        for entry in sorted(self.member.log.undelivered(), key=lambda entry: entry.local):
            self._retry_later(entry, now)
            if entry.final is not None:
                self._conclude(entry, entry.final)
            else:
                self._consider(entry)
        self._reads.begin()
        self._retries.hurry()
        self._deadlines.by("stamps", now)
        self._learn_leader(self.group, self.member.reign.ballot, now, self.self_id)
        everybody = tuple(p for p in self.topology.processes if p != self.self_id)
        out.send(everybody, LeaderIs(self.member.reign.ballot))
        for sender, message in held:
            self._take(sender, message, now, out)

    def on_reign_over(self) -> None:
        self._retries.clear()

    # -- stamps -------------------------------------------------------------------------------------------------------

    def _tell_stamp(self, entry: Entry, out: Outbox) -> None:
        """At the leader, when the stamp is decided: tell it."""
        raise NotImplementedError

    def _conclude(self, entry: Entry, final: Timestamp) -> None:
        """The stamps of all destination groups are known; `final` is their maximum."""
        raise NotImplementedError

    def _stamp_of(self, entry: Entry) -> Stamp:
        return Stamp(entry.message.id, self.member.reign.ballot, entry.local)

    def _tell_stamps(self, to: tuple[ProcessId, ...], entries: list[Entry], ask: bool, out: Outbox) -> None:
        for some in in_questions(entries):
            out.send(to, Stamps(self.member.reign.ballot, [(entry.message.id, entry.local) for entry in some], ask))

    def _on_stamp(self, sender: ProcessId, stamp: Stamp, now: int, out: Outbox) -> None:
        self._hear_stamp(sender, stamp, now, out)

    def _hear_stamp(self, sender: ProcessId, stamp: Stamp, now: int, out: Outbox) -> None:
        """Told alone, or as one of many."""
        group = self.topology.group_of[sender]
        if stamp.ballot.leader != sender:
            raise PeerError("a stamp of somebody else's ballot")
        self._learn_leader(group, stamp.ballot, now, sender)
        entry, known = self.member.entry_of(stamp.id), self.log.known(stamp.id)
        if group == self.group or (known is not None and (entry is None or entry.position)):
            return
        if entry is not None and group not in entry.message.destinations:
            raise PeerError(f"group {group} stamps a message that is not for it")
        self._hold_stamp(stamp.id, group, stamp.local, now)
        if entry is not None:
            self._retries.answered(entry.local)
            self._consider(entry)
            self.member.deliver_ready(now, out)

    def _hold_stamp(self, message_id: MessageId, group: GroupId, local: Timestamp, now: int) -> None:
        held = self.stamps.get(message_id)
        if held is None:
            held = self.stamps[message_id] = {}
            self._expect(message_id, now)
        if held.setdefault(group, local) != local:
            if not self.options.dedup_window_us:
                raise PeerError(f"group {group} has stamped a message {held[group]} and {local}")
            held[group] = min(local, held[group])

    def _expect(self, message_id: MessageId, now: int) -> None:
        """Stamps are held of this message, which may never come; they are forgotten after a while."""
        self._strays.append((now, message_id))
        self._deadlines.by("strays", now + _STRAY_RETRIES * self.options.retry_us)

    def _forget_strays(self, now: int, out: Outbox) -> int | None:
        """Forget the stamps of messages that have not come for long."""
        strays, patience = self._strays, _STRAY_RETRIES * int(self.options.retry_us)
        while strays and strays[0][0] <= now - patience:
            message_id = strays.popleft()[1]
            if self.member.entry_of(message_id) is None:
                self._forget(message_id)
        return strays[0][0] + patience if strays else None

    def _forget(self, message_id: MessageId) -> None:
        """Nothing more needs to be held of this message."""
        self.stamps.pop(message_id, None)

    def _consider(self, entry: Entry) -> None:
        stamps = self.stamps.get(entry.message.id, {})
        if not entry.position and len(stamps) == len(entry.message.destinations):
            self._retries.discard(entry.local)
            self._conclude(entry, max(*stamps.values(), entry.local))

    def _on_known(self, sender: ProcessId, known: Known, now: int, out: Outbox) -> None:
        """A group has delivered the message; to a leader that still waits for its stamp that is as good as the stamp.
        (If this process had forgotten the message and assigned a late copy, that copy is delivered expired.)"""
        self._submissions.known(known, out)
        entry = self.member.entry_of(known.id)
        if self.member.acting and entry is not None and self.member.is_decided(entry) and not entry.position:
            self._conclude(entry, max(known.final, entry.local))
            self.member.deliver_ready(now, out)

    # -- leaders and retries ------------------------------------------------------------------------------------------

    def _on_leader_is(self, sender: ProcessId, message: LeaderIs, now: int, out: Outbox) -> None:
        self._learn_leader(self.topology.group_of[sender], message.ballot, now, sender)

    def _learn_leader(self, group: GroupId, ballot: Ballot, now: int, by: ProcessId | None = None) -> None:
        """Another process may lead this group: if so, ask it about what waits (`KnownLeaders.learn`)."""
        if self.leaders.learn(group, ballot, by):
            self._retries.hurry()
            self._submissions.hurry()
            self._deadlines.by("stamps", now)
            self._deadlines.by("submissions", now)

    def _retry_later(self, entry: Entry, now: int) -> None:
        self._retries.add(entry.local, now)
        self._deadlines.by("stamps", now + self.options.retry_us)

    def _ask_for_stamps(self, now: int, out: Outbox) -> int:
        """Ask for the stamps that are missing."""
        asked: dict[tuple[ProcessId, ...], list[Entry]] = {}
        for local in self._retries.due(now):
            entry = self.member.log.entries.get(local)
            if not self.member.acting or entry is None or entry.position or entry.final is not None:
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
        asked = message.ask and not self._refers(sender, out)
        answer = Lacked([], [])
        decided: list[Entry] = []
        for message_id, local in message.stamps:
            if asked:
                entry, known = self.member.entry_of(message_id), self.log.known(message_id)
                if entry is not None and self.member.is_decided(entry):
                    decided.append(entry)
                elif entry is None and known is not None:
                    answer.known.append(Known(message_id, known[0]))
                elif entry is None:
                    answer.ids.append(message_id)
            self._hear_stamp(sender, Stamp(message_id, message.ballot, local), now, out)
        self._tell_stamps((sender,), decided, False, out)
        if answer.ids or answer.known:
            out.send((sender,), answer)

    # -- the host -----------------------------------------------------------------------------------------------------

    def on_install(
        self, position: int, message: AppMessage, timestamp: Timestamp, note: bytes, now: int, out: Outbox
    ) -> None:
        self.member.install(position, message, timestamp, note, now, out)

    def on_durable(self, position: int, now: int, out: Outbox) -> None:
        self.member.on_durable(position, out)

    def on_peer_reset(self, peer: ProcessId, now: int, out: Outbox) -> None:
        self.member.on_peer_reset(peer, now)

    def end_batch(self, now: int, out: Outbox) -> None:
        self.member.end_batch(now, out)
        self._reads.end_batch(now, out)

    def on_read(self, token: int, now: int, out: Outbox) -> None:
        self._reads.read(token, out)

    def on_tick(self, now: int, out: Outbox) -> int | None:
        wake = self.member.tick(now, out)
        if self._deadlines.due(now):
            self._deadlines.run(now, out)
            self.end_batch(now, out)
        return earliest(wake, self._deadlines.wake_at)

    # -- for people ---------------------------------------------------------------------------------------------------

    def waits_for(self) -> tuple[GroupId, ...]:
        entry = self.member.log.lowest()
        held = self.stamps.get(entry.message.id, {}) if entry is not None else {}
        return tuple(g for g in entry.message.destinations if g not in held) if entry is not None else ()

    def role(self) -> str:
        return self.member.role()

    def describe(self) -> dict[str, Any]:
        return {**self.member.describe(), "submitted": len(self._submissions)}

    def inspect(self) -> dict[str, Any]:
        """Phases: proposed (the stamp is not decided), assigned, committed, delivered."""
        blocked = self.member.log.blockers()
        everything = {e.local: e for e in (*self.member.reign.in_flight.values(), *self.member.log.entries.values())}
        messages: dict[str, Any] = {}
        for local, entry in sorted(everything.items()):
            why = self._name_blockers(blocked.get(local.encode(), []), everything)
            why += self.member.blockers(entry)
            phase = "assigned" if self.member.is_decided(entry) else "proposed"
            phase = DELIVERED if entry.position else phase if entry.final is None else "committed"
            stamps = self.stamps.get(entry.message.id)
            messages[entry.message.id.hex()] = seen(phase, local, entry.final, why, stamps)
        return {
            **super().inspect(), **self.member.paxos.inspect(), "stamping": self.member.reign.clock.value,
            "instance": self.member.log.instance,
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
