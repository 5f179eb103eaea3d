"""One member of a group that acts as one process of Skeen's protocol: everything that goes on inside the group.

Theory of operation. The group's consensus (parts.paxos) decides a log of stamps; what that amounts to, and who may
deliver by it, is parts.group_log; who leads, and from when on, is parts.reign. Here they are brought together. What a
stamp is told to, and what follows from the stamps of other groups, is the owner's: `Exchange`.

    message        from -> to                                   durable before it leaves
    Paxos*         inside the group (parts.paxos)               see there
    Deliver        leader -> others of the group                -  (the decisions that it rests on are)
    PositionAsk, Position                                       (parts.reign)
    Applied        member -> members                            (parts.truncation)
    StateAsk, State  between members                            -  (parts.transfer)
    Watermark      process -> destination groups                -  (parts.delivered)
    Forgot         process without memory -> everybody          -  (parts.reminders)
    Reminder       process -> who has forgotten                 -  (parts.reminders)

Garbage. When an instance of the log is dropped is parts.truncation. A member that needs dropped ones gets the present
state of a peer (parts.transfer), after the host's catch-up of the deliveries that it supposes. It may lead by then: if
its reign is being prepared it goes on; if it reigns (it did not hear that its proposals were decided) it begins a new
ballot, as it does not know any more what is in flight. A member that sees by the watermarks of its group that it is
behind gets the deliveries from a peer's journal (parts.behind); it may have them before it has the log
(`Entry.logged`).

Lost disk. A process whose disk is gone comes back as its group's consensus says (parts.paxos): what was decided with
its vote is safe by that, and with it the stamps that it told and the reigns that it began. What others count on besides
is what it had delivered (parts.delivered): it must have that again, too (parts.reminders), and until then tells no
watermark and no position, and gives its state to nobody.

Orderings relied on: none for safety; FIFO from a leader to its members makes gaps in positions rare.
"""

from __future__ import annotations

import random
from typing import Any, Protocol

from multicast.parts import group_log, paxos, reminders
from multicast.parts.ballots import FIRST_NUMBER
from multicast.parts.behind import Behind
from multicast.parts.deadlines import Deadlines, earliest
from multicast.parts.delivered import DeliveredLog, Watermark
from multicast.parts.group_log import (
    Advance,
    Assign,
    Begin,
    Command,
    Deliver,
    Entry,
    GroupLog,
    LeadersWord,
    State,
    encode_command,
)
from multicast.parts.options import GroupOptions
from multicast.parts.paxos import Paxos
from multicast.parts.reign import FOLLOWING, PREPARING, Position, PositionAsk, Reign
from multicast.parts.reminders import Forgot, Reminder, Reminders
from multicast.parts.transfer import StateAsk, StateTransfer
from multicast.parts.truncation import Applied, Truncation
from multicast.parts.window import Window
from multicast.protocol import Handler, Outbox, Saved
from multicast.types import AppMessage, Ballot, MessageId, ProcessId, Timestamp, Topology

HOUSEKEEPING = (Applied, PositionAsk, Position, StateAsk, State, Watermark, *reminders.MESSAGES)
VOUCHING = (Applied, Position)


class MemberOptions(GroupOptions, kw_only=True, forbid_unknown_fields=True):
    """See GroupOptions.

    early_clock: the leader's stamping clock moves when an Advance is proposed, not when it is decided; then followers
    need no word of the leader. instances_max: consensus instances under way at once in a group. values_max: commands in
    one instance; 0: all that wait (1: as published, with a large instances_max).
    """

    early_clock: bool = False
    instances_max: int = 100
    values_max: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.instances_max < 1:
            raise ValueError("instances_max must be at least 1")
        if self.values_max < 0:
            raise ValueError("values_max must be at least 0")


class Exchange(Protocol):
    """What the owner of a member does about what goes on in the group."""

    def on_promised(self, ballot: Ballot, now: int) -> None:
        """Somebody campaigns for, or leads, a new ballot of the group."""

    def on_assigned(self, entry: Entry, now: int, out: Outbox) -> None:
        """The group's stamp of this message is decided."""

    def on_delivered(self, entry: Entry, out: Outbox) -> None:
        """This process has delivered the message."""

    def on_reign(self, held: list[tuple[ProcessId, AppMessage]], now: int, out: Outbox) -> None:
        """From now on this process acts as the group's leader. held: messages that came for it before: (sender,
        message)."""

    def on_reign_over(self) -> None:
        """This process does not act as the group's leader any more."""


class GroupMember:
    """One process as a member of its group.

    deliveries: this process's. deadlines: the owner's; this part adds its timers. log: what the group's log amounts to
    here. reign: this process's leading of the group. handlers: for Paxos' messages, `HOUSEKEEPING` and Deliver; the
    owner takes them into its own.
    """

    def __init__(
        self,
        owner: Exchange,
        deliveries: DeliveredLog,
        deadlines: Deadlines,
        self_id: ProcessId,
        topology: Topology,
        options: MemberOptions,
        rng: random.Random,
    ):
        o = options
        self.group = topology.group_of[self_id]
        self.members = topology.groups[self.group]
        self.others = tuple(p for p in self.members if p != self_id)
        self.deliveries = deliveries
        self.paxos = Paxos(self_id, self.members, o, rng, o.instances_max, o.values_max)
        self.paxos.instances.carried = group_log.carried
        self.log = GroupLog(deliveries, o.early_clock, Window(o.dedup_window_us))
        self.reign = Reign(o.clock, topology.quorum(self.group), o.election_timeout_us)
        self._owner = owner
        self._self_id = self_id
        self._topology = topology
        self._options = options
        self._rng = rng
        self._words = LeadersWord(o.early_max)
        self._deadlines = deadlines
        self._behind = Behind(self_id, topology, deliveries, o.retry_us, rng, deadlines)
        deadlines.add("positions", self._ask_positions)
        deadlines.add("return", self._return_if_due)
        self._transfer = StateTransfer(
            self_id, self.members, o.retry_us, deadlines, State, position=lambda: deliveries.position,
            is_needed=lambda: self.paxos.stranded, give=self._give_state, adopt=self._adopt,
        )  # fmt: skip
        self._reminders = Reminders(self_id, topology, o.retry_us)
        self._truncation = Truncation(self_id, self.members, o.stability_us, deadlines, self._say_applied)
        self.handlers: dict[type, Handler] = {
            **dict.fromkeys(paxos.MESSAGES, Handler(self._on_paxos, own_group=True)),
            Deliver: Handler(self._on_deliver, own_group=True), Applied: Handler(self._on_applied, own_group=True),
            PositionAsk: Handler(self._on_position_ask, own_group=True),
            Position: Handler(self._on_position, own_group=True),
            **self._transfer.handlers,
            Forgot: Handler(self._on_forgot), Reminder: Handler(self._on_reminder),
            Watermark: Handler(self._on_watermark),
        }  # fmt: skip

    def start(self, saved: Saved, now: int, out: Outbox) -> None:
        """A life begins."""
        self.log.restore(saved)
        self.paxos.on_start(saved.values, now, out, saved.lost)
        self.paxos.held = self.paxos.amnesiac
        if self.paxos.amnesiac:
            self._reminders.begin(now, self._rng)
            self._deadlines.by("return", now)
        self._after_paxos(now, out)
        if not saved.first:
            self._truncation.tell_later(now)

    # -- for the owner ------------------------------------------------------------------------------------------------

    @property
    def acting(self) -> bool:
        """Whether this process acts as the group's leader."""
        return self.reign.acting

    @property
    def leader(self) -> ProcessId:
        """Who leads the group, or campaigns, as far as is known here."""
        return self.paxos.promised.leader

    def hold(self, sender: ProcessId, message: AppMessage) -> None:
        """Keep a message for the group's leader until this process, which is perhaps about to lead, does."""
        if self.leader == self._self_id and len(self.reign.held) < self._options.early_max:
            self.reign.held.append((sender, message))

    def stamp(self, message: AppMessage, real: int) -> Entry:
        """At the leader: give it the group's next stamp, and have that decided. real: see `Clock.stamp`."""
        entry = Entry(message, Timestamp(self.reign.clock.stamp(real), self.group), True)
        self.reign.in_flight[message.id] = entry
        self.log.block(entry)
        self._propose(Assign(self.reign.ballot, entry.local, message))
        return entry

    def advance(self, entry: Entry, final: Timestamp, certain: bool) -> None:
        """At the leader: have the group's clock moved to `final`. certain: that is the message's global timestamp."""
        reign = self.reign
        self._propose(Advance(reign.ballot, entry.local, final, certain))
        reign.raised_to = max(reign.raised_to, final.time)
        if self._options.early_clock:
            reign.clock.advance(final.time)

    def lead_anew(self, now: int, out: Outbox) -> None:
        """If this process acts as the leader: stand for election again, to act once it has what a quorum has."""
        if self.acting:
            self._end_reign()
            self.paxos.election.campaign(now, out)

    def entry_of(self, message_id: MessageId) -> Entry | None:
        """The latest one of this message, in flight or assigned."""
        return self.reign.in_flight.get(message_id) or self.log.latest(message_id)

    def is_decided(self, entry: Entry) -> bool:
        return self.log.entries.get(entry.local) is entry

    def delivered_at(self, message_id: MessageId) -> Timestamp | None:
        """When this process delivered a message of which it has no later copy."""
        entry, known = self.entry_of(message_id), self.deliveries.known(message_id)
        return known[0] if known is not None and (entry is None or entry.position) else None

    # -- the log ------------------------------------------------------------------------------------------------------

    def _propose(self, command: Command) -> None:
        self.paxos.propose(encode_command(command))

    def _on_paxos(self, sender: ProcessId, message: Any, now: int, out: Outbox) -> None:
        self.paxos.on_message(sender, message, now, out)
        self._after_paxos(now, out)

    def _after_paxos(self, now: int, out: Outbox) -> None:
        """Take what was decided; notice a new leader."""
        part, reign = self.paxos, self.reign
        if part.promised != reign.ballot:
            self._owner.on_promised(part.promised, now)
            acted = reign.acting
            reign.promise(part.promised)
            if acted:
                self._stop_acting()
        for instance, values in part.instances.take():
            if instance > self.log.instance:
                self._apply(instance, values, now, out)
        if part.leading and reign.state is FOLLOWING:
            reign.lead()
            self._propose(Begin(reign.ballot))
            self._deadlines.by("positions", now)
        self._reign_if_ready(now, out)
        if part.stranded:
            self._transfer.ask(now, out)

    def _apply(self, instance: int, values: list[bytes], now: int, out: Outbox) -> None:
        """Apply a decided instance. All members do the same; the leader sends something besides."""
        for command in self.log.read(instance, values):
            if self.reign.acting and command.ballot > self.reign.ballot:
                self._end_reign()
            if type(command) is Assign:
                proposed = self.reign.in_flight.pop(command.message.id, None)
                entry = self.log.assign(command, proposed, out)
                if entry is not None:
                    self._owner.on_assigned(entry, now, out)
                self.log.raise_clock(command.local.time)
            elif type(command) is Advance:
                self.log.advance(command, out)
                if self.reign.acting:
                    self.reign.clock.advance(command.final.time)
        self._truncation.tell_later(now)
        self.deliver_ready(now, out)

    # -- delivery -----------------------------------------------------------------------------------------------------

    def _delivers_by_log(self) -> bool:
        """Whether this process may deliver what is due by the log, as far as it knows the log: see parts.group_log."""
        return self._options.early_clock or self.reign.acting

    def deliver_ready(self, now: int, out: Outbox) -> None:
        while self._delivers_by_log() and (entry := self.log.pop_due()) is not None:
            self._deliver(entry, out)
            if not self._options.early_clock:
                self._words.say(entry)
        self._follow_words(out)

    def _on_deliver(self, sender: ProcessId, deliver: Deliver, now: int, out: Outbox) -> None:
        self._words.hear(deliver, self.deliveries.position)
        self._follow_words(out)
        if self._words.lacks(self.deliveries.position + 1):
            out.catch_up(sender)

    def _follow_words(self, out: Outbox) -> None:
        while (word := self._words.at(self.deliveries.position + 1)) is not None:
            entry = self.log.entries.get(word[0])
            if entry is None:
                break
            entry.final = word[1]
            self._deliver(entry, out)

    def _deliver(self, entry: Entry, out: Outbox) -> None:
        assert entry.final is not None
        out.deliver(entry.message, entry.final, note=entry.local.encode())
        self._on_delivered(entry, out)

    def _on_delivered(self, entry: Entry, out: Outbox) -> None:
        """Common to a delivery and an installation."""
        self.log.delivered(entry, out)
        self._words.forget(entry.position)
        self._owner.on_delivered(entry, out)

    def install(
        self, position: int, message: AppMessage, timestamp: Timestamp, note: bytes, now: int, out: Outbox
    ) -> None:
        """A delivery came from a peer's journal."""
        local = Timestamp.decode(note)
        if local not in self.log.entries and self.reign.acting:
            mine = self.reign.in_flight.get(message.id)
            if mine is None or mine.local != local:
                self._end_reign()  # its group delivers what this leader has not stamped: there is another one
        entry = self.log.install(message, local, timestamp, out)
        self._on_delivered(entry, out)
        if entry.position != position:
            raise AssertionError(f"installed delivery {position} as {entry.position}")
        self.deliver_ready(now, out)
        self._transfer.adopt_if_due(now, out)
        self._reign_if_ready(now, out)
        if self.paxos.amnesiac:
            self._deadlines.by("return", now)

    # -- leading ------------------------------------------------------------------------------------------------------

    def _on_position_ask(self, sender: ProcessId, ask: PositionAsk, now: int, out: Outbox) -> None:
        if not self.paxos.amnesiac:
            out.send_durable((sender,), Position(ask.ballot, self.deliveries.position))

    def _ask_positions(self, now: int, out: Outbox) -> int | None:
        if self.reign.state is not PREPARING:
            return None
        out.send(self.members, PositionAsk(self.reign.ballot))
        return now + self._options.heartbeat_us

    def _on_position(self, sender: ProcessId, position: Position, now: int, out: Outbox) -> None:
        self.reign.told(sender, position, now)
        self._reign_if_ready(now, out)

    def _reign_if_ready(self, now: int, out: Outbox) -> None:
        """Begin to act as the leader once (1) the own Begin is applied, and no other after it, and (2) what any of a
        quorum has delivered is delivered here. If some of that was stamped later in the log, by somebody else, this
        process does not reign."""
        reign = self.reign
        if reign.state is not PREPARING or self.log.seen != reign.ballot or self.log.is_behind:
            return
        if reign.ballot.number > FIRST_NUMBER:
            furthest = reign.furthest(now)
            if furthest is None:
                return
            position, peer = furthest
            if position > self.deliveries.position:
                out.catch_up(peer)
                return
        self._begin_reign(now, out)

    def _begin_reign(self, now: int, out: Outbox) -> None:
        held = self.reign.reign(self.log.clock)
        for entry in self.log.undelivered():
            entry.raised = entry.concluded = False
        self._owner.on_reign(held, now, out)
        self.deliver_ready(now, out)

    def _end_reign(self) -> None:
        self.reign.end()
        self._stop_acting()

    def _stop_acting(self) -> None:
        """From now on this process does not know what is in flight."""
        self._owner.on_reign_over()
        self.log.rebuild_queue()

    # -- a member that is behind --------------------------------------------------------------------------------------

    def _give_state(self) -> list[State]:
        return [] if self.paxos.amnesiac else self.log.state(self._options.portion_bytes)

    def _adopt(self, state: State, now: int, out: Outbox) -> None:
        """Go on from a peer's state; as a leader in a new ballot, as it no longer knows what it has in flight. (While a
        reign is prepared, there is nothing.)"""
        if state.instance <= self.log.instance:
            return
        again = self.reign.acting
        if again:
            self._end_reign()
        for entry in self.log.adopt(state, out):
            self._owner.on_assigned(entry, now, out)
        self.paxos.jump(state.instance, now, out)
        if again:
            self.paxos.election.campaign(now, out)
        self.deliver_ready(now, out)
        self._after_paxos(now, out)
        self._truncation.tell_later(now)

    # -- a process that has lost its disk -----------------------------------------------------------------------------

    def _on_forgot(self, sender: ProcessId, forgot: Forgot, now: int, out: Outbox) -> None:
        if not self.paxos.amnesiac:
            watermark = self.deliveries.watermark_of(sender)
            if sender in self.members:
                watermark = max(watermark, self.deliveries.watermark)
            out.send((sender,), Reminder(forgot.question, 0, watermark))

    def _on_reminder(self, sender: ProcessId, reminder: Reminder, now: int, out: Outbox) -> None:
        self._reminders.add(sender, reminder)
        self._deadlines.by("return", now)

    def _return_if_due(self, now: int, out: Outbox) -> int | None:
        """Ask for what is missing, or become a member again."""
        if not self.paxos.amnesiac:
            return None
        told = self._reminders
        behind = told.watermark > self.deliveries.timestamp
        if told.complete and not behind and self.paxos.may_return:
            self.paxos.finish_return(now, out)
            self._truncation.tell(out)
            return None
        if told.tick(now, out) and behind:
            out.catch_up(self._transfer.next_peer())
        return told.wake_at

    # -- garbage ------------------------------------------------------------------------------------------------------

    def on_durable(self, position: int, out: Outbox) -> None:
        """See `MulticastProtocol.on_durable`."""
        self.log.drop(self.deliveries.durable(position, out), out)

    def _on_watermark(self, sender: ProcessId, told: Watermark, now: int, out: Outbox) -> None:
        self.log.drop(self.deliveries.on_watermark(sender, told, out), out)
        self._behind.notice(sender, told.watermark, now)

    def _say_applied(self) -> Applied | None:
        return None if self.paxos.amnesiac else Applied(self.log.instance, self.deliveries.timestamp)

    def _on_applied(self, sender: ProcessId, applied: Applied, now: int, out: Outbox) -> None:
        instance = self._truncation.heard(sender, applied, self.log.instance)
        if instance >= self.paxos.instances.low:
            self.paxos.instances.truncate(instance, out)
        self.paxos.see(applied.instance, now)
        self._behind.notice(sender, applied.delivered, now)

    # -- timers -------------------------------------------------------------------------------------------------------

    def end_batch(self, now: int, out: Outbox) -> None:
        self.paxos.end_batch(now, out)
        self.deliveries.end_batch(out)
        self.log.end_batch(out)
        self._words.end_batch(self.others, out)

    def on_peer_reset(self, peer: ProcessId, now: int) -> None:
        self.deliveries.forget_reports(peer)
        self._transfer.forget(peer)
        if peer in self.others:
            self.paxos.on_peer_reset(peer, now)
            self._truncation.tell_later(now, again=True)

    def tick(self, now: int, out: Outbox) -> int | None:
        """Consensus and watermarks; the rest is in the owner's deadlines. Returns when to do so again."""
        wake = self.paxos.tick(now, out)
        if self.paxos.promised != self.reign.ballot:
            self._after_paxos(now, out)
        return wake if self.paxos.amnesiac else earliest(wake, self.deliveries.tick(now, out))

    # -- for people ---------------------------------------------------------------------------------------------------

    def role(self) -> str:
        """See `MulticastProtocol.role`."""
        if self.paxos.amnesiac or (self.paxos.leading and not self.acting):
            return "recovering"
        return self.paxos.role()

    def describe(self) -> dict[str, Any]:
        return {
            **self.paxos.describe(),
            "clock": self.log.clock,
            "pending": len(self.log),
            "entries": len(self.log.entries),
            "unsettled": self.deliveries.unsettled,
        }

    def blockers(self, entry: Entry) -> list[dict[str, Any]]:
        """What, besides other messages, keeps a message whose global timestamp is known from being delivered."""
        why: list[dict[str, Any]] = []
        if entry.final is not None and not entry.position:
            if not self.log.covers(entry.final):
                why.append({"clock": "group", "at": self.log.clock})
            if not self._delivers_by_log():
                why.append({"leader": self.reign.ballot.leader})
        return why
