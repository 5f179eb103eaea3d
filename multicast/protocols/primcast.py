"""PrimCast atomic multicast (Pacheco, Coelho, Pedone, Middleware 2023; Algorithms 1-3), with the printed errors mended.

Theory of operation. The sender gives m to every process of its destination groups. In each of these groups the primary
of the current epoch appends m with a stamp of its clock to the group's sequence T and acknowledges; its followers
append the same and acknowledge, all of them to every process of every destination. So each process sees for itself when
a quorum of a group, in one epoch, holds the same stamp: that stamp is decided (`local-ts`), and the maximum over the
destinations is m's final timestamp. Clocks need no agreement: whoever raises its clock tells its group, and m may be
delivered when its final timestamp is below every proposal still to come, from this primary (`min-clock` of the leader)
or from a later one (`quorum-clock`: what f + 1 clocks have reached; a new primary begins above a quorum's clocks), and
below the possible final timestamps of all else in T. Every process delivers by itself; the order is the same.

    message      from -> to                                      durable before it leaves
    Start        sender -> all processes of the destinations     -
    Ack          process -> all processes of the destinations    its T up to there, the clock
    Bump         process -> own group                            the clock
    Want         process -> who acknowledged m                   -  (parts.payloads; the answer is Copies)
    Asked        sender, follower -> destinations, primary       -  (parts.submissions: Lacked, Copies, Relay)
    Copies       sender -> all processes of the destinations     -  (the same: many STARTs of one batch, or lost ones)
    Accept       process -> own group                            the epoch that it joined, its T, the clock
    Beat         primary -> own group                            the clock
    Fetch, Refill  follower <-> primary                          the clock  (parts.sequence: T was lost on the way)
    Known        primary -> sender; process -> who asks          -  (m was delivered, at this timestamp)
    Watermark    process -> destination groups                   -  (parts.delivered)
    NewLeader (NEW-EPOCH), Promise, NewState, LeaderIs and the rest: parts.leadership; reads: parts.epoch_reads

Acks carry the clock, so a Bump leaves only if no Ack of the same batch tells its group. All that one batch acknowledges
to one set of destinations is one message. Without merging, k groups of n exchange kn + k^2 n^2 + bumps messages.

Deviations from the algorithms, with reasons:
1. Line 42 demands state FOLLOWER. A PROMISED process that has joined the epoch must take the primary's proposals too,
   or its T gets a hole and "longest T" may choose it. Here a proposal proves that a quorum has accepted the epoch (only
   a PRIMARY proposes), so the process becomes FOLLOWER by it. A heartbeat proves it as well.
2. Line 73 raises the clock without a word, and nobody may ever learn of it. Here every raise is told at once.
3. m counts as proposed only where its payload is; a process that hears of m and gets no START asks for it. A proposal
   carries a digest: all replicas of a group use the primary's copy of m, should copies with one id differ.
4. T has absolute places (parts.sequence), and whatever tells a primary's clock tells T's length with it. A clock counts
   for `min-clock` of the leader once T has reached that length: the paper relies on FIFO channels that lose nothing,
   ours may be reset. A follower that finds its T short fetches the rest.
5. Lines 28-30 are kept by two numbers and two heaps. Given lines 28 and 29, line 30 asks only whether some other
   message of T is below: an undecided one with its highest stamp known so far, a decided one with its final timestamp.
6. A timestamp is (time, group that gave the maximum) instead of (time, id): see parts.stamps.
7. Positions are dense and equal in a group. Who missed deliveries gets them from a peer's journal; a candidate delivers
   all that any of its quorum has delivered before it computes T.
8. Garbage collection. m is settled when a quorum of each destination group durably holds its outcome (parts.delivered);
   then it leaves T. Safe, because by 7 every later primary of any of these groups has delivered it. A process whose T
   was replaced or refilled by one without m must not deliver beyond m's position on its own: states carry the `reach`
   of T (parts.sequence), and up to that it installs.
9. Late copies of messages whose ids were forgotten: parts.stamps, parts.known_copies.
10. Crash-recovery: what a process acknowledges, promises, accepts or tells of its clock is on disk before; it counts
   its own word when it comes back through that lane. A restarted process is PROMISED until a primary or a quorum of
   ACCEPTs proves its epoch, and never leads in an epoch from before.
11. Repair. A process with an undelivered message of T tells its acknowledgement again to those whose own it lacks, and
   they answer, at the beginning of an epoch and now and then (parts.retries); a follower asks its primary about a START
   that nobody proposed, and the sender asks the destinations until it knows of the delivery (parts.submissions).
12. Lost disk: parts.rejoin. What others have concluded from a process p that then loses its disk stays true. A stamp
   decided, or an epoch accepted, with p's word is in the T of a quorum but for p, so in that of every later epoch, and
   p returns with such a T. Clocks: parts.group_clocks; p proposes nothing in its old epochs any more. Settled: p may
   have been the first of its group to deliver m, and have said so; m is in p's T again then, or below its `reach`. Who
   tells another group of m has delivered it, and tells p so, or knows of a quorum without p's old word
   (parts.delivered, by_quorum).

Orderings relied on: none for safety; FIFO makes repairs rare. What is lost or late is found by place, position or time.
"""

from __future__ import annotations

import random
from typing import Any

import msgspec

from multicast.parts import election, leadership, reads, submissions
from multicast.parts.ballots import FOLLOWER, LEADER, REMOVED, Heartbeat, Joined, LeaderIs, State, Vote
from multicast.parts.behind import Behind
from multicast.parts.clock import Clock
from multicast.parts.deadlines import Deadlines, earliest
from multicast.parts.delivered import DeliveredLog, Known, Watermark
from multicast.parts.epoch_reads import EpochReads
from multicast.parts.group_clocks import GroupClocks
from multicast.parts.known_copies import KnownCopies
from multicast.parts.leadership import Leadership
from multicast.parts.options import GroupOptions
from multicast.parts.payloads import Payloads, Want
from multicast.parts.pending import PendingQueue
from multicast.parts.rejoin import Returned
from multicast.parts.retries import Retries, in_questions
from multicast.parts.sequence import STATE_KEY, Fetch, Refill, Sequence, SequenceHistory, decode_state
from multicast.parts.stamps import Entry, EntryState, Stamp
from multicast.parts.submissions import Asked, Copies, Lacked, Submissions
from multicast.parts.window import Window
from multicast.protocol import Handler, MulticastProtocol, Options, Outbox, PeerError, Saved, Specification
from multicast.types import ZERO, AppMessage, Ballot, GroupId, MessageId, ProcessId, Timestamp, Topology

_ABANDONED_RETRIES = 20


class Start(msgspec.Struct, array_like=True, tag=1, gc=False):
    """Please order this message; or: the payload that you want."""

    message: AppMessage


class Ack(msgspec.Struct, array_like=True, tag=2, gc=False):
    """ACKs of lines 39, 45 and 81. epoch: promised by the sender, its current one if there are stamps. clock: told to
    the own group. length: of the sender's T. position: its last delivery. again: tell me yours, and your clock."""

    epoch: Ballot
    clock: int
    length: int
    position: int
    stamps: list[Stamp]
    again: bool = False


class Bump(msgspec.Struct, array_like=True, tag=3, gc=False):
    """Line 50: promised to `epoch`, my clock is `clock`. length: of the sender's T."""

    epoch: Ballot
    clock: int
    length: int


class Promise(Vote, array_like=True, tag=6, gc=False):
    """Line 64. entries: its T, of this length. reach: up to this position T lacks what is settled."""

    entries: list[EntryState]
    clock: int
    length: int
    reach: int


class NewState(State, array_like=True, tag=7, gc=False):
    """Line 69. entries: T of this epoch, of this length."""

    entries: list[EntryState]
    clock: int
    length: int


class Accept(Joined, array_like=True, tag=8, gc=False):
    """Line 74. clock: perhaps raised by joining (deviation 2). length: of T."""

    clock: int
    length: int


class Beat(Heartbeat, array_like=True, tag=10, gc=False):
    """clock, length: as in Ack."""

    clock: int
    length: int


class PrimCastOptions(GroupOptions, kw_only=True, forbid_unknown_fields=True):
    """See GroupOptions. heartbeat_us is also how long a payload may be late before it is asked for."""


_HOUSEKEEPING = (
    Promise, NewState, Accept, LeaderIs, Beat, Fetch, Refill, Known, Watermark, *leadership.MESSAGES,
    *submissions.MESSAGES, *reads.MESSAGES,
)  # fmt: skip
_FOR_AMNESIACS = (Start, Copies, Lacked, Known, Watermark, Beat, NewState, *leadership.MESSAGES)
_encode = msgspec.msgpack.Encoder().encode
_decode_note = msgspec.msgpack.Decoder(tuple[Ballot, int]).decode


class PrimCast(MulticastProtocol):
    """One process. Names follow Algorithm 1. An epoch is a ballot: `leadership.joined` is E_cur, `election.promised`
    E_prom.

    clock: its own. log: its deliveries. t: its T; entries: all messages that are not settled, in T or only heard of.
    copies: what it knows of a message by its id. clocks: what its group's clocks allow to conclude.
    """

    specification = Specification(
        name="primcast",
        summary="PrimCast: every replica delivers after three message delays, survives a minority of every group",
        paper="Pacheco, Coelho, Pedone, PrimCast: A Latency-Efficient Atomic Multicast, Middleware 2023",
        options=PrimCastOptions,
        messages=(Start, Ack, Bump, Want, *_HOUSEKEEPING),
        housekeeping=_HOUSEKEEPING,
        vouching=(Ack, Bump, Promise, Accept, Beat, Refill, *leadership.VOUCHING),
        fault_tolerant=True,
        survives_lost_disk=True,
        changes_members=True,
        leader_reads=True,
        genuine=True,
        strict_groups_max=1,
        latency=(3, 3),
    )

    def __init__(self, self_id: ProcessId, topology: Topology, options: Options, rng: random.Random):
        super().__init__(self_id, topology, options, rng)
        self.clock = Clock(self.options.clock)
        self.log = DeliveredLog(self_id, self.topology, self.options.stability_us, self.options.dedup_window_us, True)
        self.leadership: Leadership[Promise, NewState] = Leadership(
            self, self.log, self_id, self.topology, self.options, rng, to_all=True
        )
        self.election: election.Election[Promise] = self.leadership.election
        self.leaders = self.leadership.leaders
        self.election.detector.reach.need_quorums(self.topology)
        self.window = Window(self.options.dedup_window_us)
        self.t = Sequence(self.group, self.topology.has_quorum, self.options.early_max)
        self.history = SequenceHistory(self.log, self.t, self.window, self.leadership.views_given)
        self.entries = self.t.entries
        self.copies = KnownCopies(self.group, self.entries, self.log, self.window)
        self._queue = PendingQueue()
        self._proposable: list[MessageId] = []
        self._acks: dict[tuple[GroupId, ...], dict[tuple[MessageId, Ballot, int], Stamp]] = {}
        self._replies: dict[ProcessId, dict[MessageId, Stamp]] = {}
        self._told_clock = self._primarys_position = self._turn = 0
        self._saved_state = (0, 0, 0)
        self.clocks = GroupClocks(self.election.views, self.leadership.joined)
        self._stuck = False
        self._payloads = Payloads(
            self.options.heartbeat_us, rng, payload=self.copies.payload, lacks=self.copies.lacks_payload,
            settled_at=self.copies.settled_at,
        )  # fmt: skip
        self._retries: Retries[MessageId] = Retries(self.options.retry_us, rng)
        self._submissions = Submissions(
            self.topology, self._entry_points, self.options.retry_us, rng, delivered_at=self.copies.delivered_at,
            lacks=self.copies.lacks_start, take=self._take_start, on_known=self._on_known,
            payload=self.copies.payload, resent=self._on_resent, reach=self.election.detector.reach,
            submit=self.on_submit,
        )  # fmt: skip
        self._deadlines = Deadlines({
            "payloads": self._payloads.tick, "retry": self._retry, "submissions": self._submissions.tick,
            "sweep": self._sweep,
        })  # fmt: skip
        self._behind = Behind(self_id, self.topology, self.log, self.options.retry_us, rng, self._deadlines)
        self._reads = EpochReads(self.leadership, self.t, self.log, self.options, self._deadlines, lambda: self._queue)
        self.handlers = {
            **self.leadership.handlers(Promise, NewState, Accept, Beat), **self._submissions.handlers,
            **self._payloads.handlers, **self._reads.handlers,
            Start: Handler(self._on_start_message), Ack: Handler(self._on_ack), Bump: Handler(self._on_bump, True),
            Accept: Handler(self._on_accept, True), Fetch: Handler(self._on_fetch, True),
            Refill: Handler(self._on_refill, True), Known: Handler(self._on_known),
            Watermark: Handler(self._on_watermark), Returned: Handler(self._on_returned, True),
        }  # fmt: skip

    # -- life ---------------------------------------------------------------------------------------------------------

    def on_start(self, saved: Saved, now: int, out: Outbox) -> None:
        """Line 1; or what was on disk."""
        values = saved.values
        self.t.restore(values, now)
        self.log.restore(values, saved.position, self.copies.destinations)
        if STATE_KEY in values:
            self._saved_state = decode_state(values[STATE_KEY])
            clock, self.t.length, self.t.reach = self._saved_state
            self.clock.advance(clock)
        self.clock.advance(self.log.timestamp.time)
        self._deadlines.by("sweep", now)
        self.leadership.start(saved, now, out)
        self.clocks.begin(self.leadership.joined, self.t.length, 0)
        for entry in self.entries.values():
            known = self.log.known(entry.id)
            if known is not None and entry.ts <= known[0].time:
                entry.final, entry.position = known
            else:
                self._refresh(entry, now)

    def _save_state(self, out: Outbox) -> None:
        """Put clock, T's length and reach, before anything of this batch is told."""
        state = (self.clock.value, self.t.length, self.t.reach)
        if state != self._saved_state:
            self._saved_state = state
            out.put(STATE_KEY, _encode(state))

    def on_message(self, sender: ProcessId, message: Any, now: int, out: Outbox) -> None:
        if self.is_member() or type(message) in _FOR_AMNESIACS:
            super().on_message(sender, message, now, out)
        elif self.election.state is REMOVED and type(message) is Asked and sender in self.topology.group_of:
            self.election.tell_view((sender,), out)

    # -- START (lines 31-34) ------------------------------------------------------------------------------------------

    def on_submit(self, message: AppMessage, now: int, out: Outbox) -> None:
        """Line 31."""
        self.refuse_beyond_limit(max(len(self._queue), len(self._submissions)))
        if not self.log.known(message.id):
            self._submissions.submit(message, now)
            self._deadlines.by("submissions", now + self.options.retry_us)

    def _entry_points(self, message: AppMessage) -> tuple[ProcessId, ...]:
        return self.topology.members(message.destinations)

    def _on_start_message(self, sender: ProcessId, start: Start, now: int, out: Outbox) -> None:
        """Line 33."""
        self._take_start(sender, start.message, now, out)

    def _take_start(self, sender: ProcessId, message: AppMessage, now: int, out: Outbox) -> None:
        groups = message.destinations
        if self.group not in groups:
            raise PeerError(f"a message for groups {groups} at group {self.group}")
        entry = self.entries.get(message.id)
        known = self.log.known(message.id)
        wanted = entry is not None and entry.message is None  # perhaps for a later copy, which T has
        if (known is not None and not wanted) or (entry is not None and entry.position):
            if known is not None and self.election.state is LEADER and sender != self.self_id:
                out.send((sender,), Known(message.id, known[0]))
            return
        entry = self.t.pending(message.id, now)
        if entry.message is None:
            entry.take(message)
            if self.election.state is LEADER:
                self._proposable.append(message.id)
            self._refresh(entry, now)
            self._retry_later(entry, now)

    def on_read(self, token: int, now: int, out: Outbox) -> None:
        self._reads.read(token, out)

    def _on_resent(self, sender: ProcessId, copies: list[AppMessage], out: Outbox) -> None:
        for message in copies:
            self._retries.answered(message.id)

    # -- proposals and acknowledgements (lines 35-52) -----------------------------------------------------------------

    def _propose(self, now: int, out: Outbox) -> None:
        """Lines 35-39."""
        ids, self._proposable = self._proposable, []
        for message_id in ids:
            entry = self.entries.get(message_id)
            if entry is None or entry.message is None or entry.epoch is not None:
                continue
            if self.log.known(message_id) is not None or not self.leadership.may_order(entry.message):
                continue  # what is known as delivered is never stamped (deviation 9)
            ts = self.clock.stamp(self.real_clock(now))
            self._append(entry, Stamp(message_id, self.t.length, ts, self.leadership.joined), now, out)

    def _append(self, entry: Entry, stamp: Stamp, now: int, out: Outbox) -> None:
        """Lines 38, 39 and 43 to 45."""
        self._place(entry, stamp, now, out)
        self.clock.advance(stamp.ts)
        self._extend(stamp.place + 1, stamp.ts)
        self._acknowledge(entry)

    def _place(self, entry: Entry, stamp: Stamp, now: int, out: Outbox) -> None:
        self._queue.remove(entry.id)
        self.t.place(entry, stamp, out)
        self._refresh(entry, now)

    def _extend(self, length: int, ts: int) -> None:
        """T has become longer. Its last stamp was the primary's clock."""
        self.t.extend(length)
        self.clocks.extend(self.t.length, ts)

    def _acknowledge(self, entry: Entry) -> None:
        assert entry.message is not None
        stamp = self._stamp(entry)
        self._acks.setdefault(entry.message.destinations, {})[stamp.id, stamp.epoch, stamp.ts] = stamp

    def _stamp(self, entry: Entry) -> Stamp:
        return entry.stamp(with_digest=self.election.state is LEADER)

    def _on_ack(self, sender: ProcessId, ack: Ack, now: int, out: Outbox) -> None:
        """Lines 40-50."""
        group = self.topology.group_of[sender]
        own = group == self.group
        if not own and (sender == ack.epoch.leader or ack.epoch > self.leaders[group]):
            self.leadership.learn_leader(group, ack.epoch, now, out)
        proposing = own and sender == ack.epoch.leader and self.leadership.is_current(ack.epoch)
        for stamp in ack.stamps:
            if proposing and stamp.digest:
                self.t.expect(stamp)
            if not own:
                self.clock.advance(stamp.ts)
            self._on_stamp(sender, group, stamp, now)
        if own:
            self.clocks.report(sender, ack.epoch, ack.clock, ack.length)
            if self._stuck and ack.position > self.log.position:
                out.catch_up(sender)
        if ack.again:
            self.election.tell_view((sender,), out)
            self._reply(sender, ack.stamps, out)

    def _on_stamp(self, sender: ProcessId, group: GroupId, stamp: Stamp, now: int) -> None:
        """Line 9, incrementally."""
        own = group == self.group
        if self.copies.delivered_as(stamp.id, stamp.ts) or (not own and self.log.known(stamp.id) is not None):
            return
        entry = self.t.pending(stamp.id, now)
        if entry.message is None:
            self._lack(entry, sender, now)
        elif group not in entry.message.destinations:
            return
        if entry.is_decided(group, stamp.ts):
            return
        self._retries.answered(stamp.id)
        if entry.acknowledge(sender, group, stamp, self.topology.has_quorum):
            self._refresh(entry, now)

    def _refresh(self, entry: Entry, now: int) -> None:
        """What is known of m's final timestamp has changed: keep m's place in the queue up to date."""
        if entry.position or entry.message is None or entry.epoch is None:
            return
        timestamp = entry.decide(self.window)
        if entry.final is not None:
            self._queue.commit(entry.id, timestamp)
        else:
            self._queue.propose(entry.id, timestamp)
            self._retry_later(entry, now)

    def _reply(self, sender: ProcessId, stamps: list[Stamp], out: Outbox) -> None:
        """Deviation 11: tell a process that asks what this one has acknowledged, once more."""
        replies = self._replies.setdefault(sender, {})
        for stamp in stamps:
            entry, known = self.entries.get(stamp.id), self.log.known(stamp.id)
            if entry is None or entry.is_delivered_before(self.leadership.joined.view):
                if known is not None:
                    out.send((sender,), Known(stamp.id, known[0]))
            elif entry.epoch is not None and (self.election.takes_part or entry.position):
                replies[entry.id] = self._stamp(entry)

    def _append_proposals(self, now: int, out: Outbox) -> None:
        """Lines 42-45, in the order of T."""
        while (proposal := self.t.next()) is not None:
            if self.copies.delivered_as(proposal.id, proposal.ts) or self.copies.is_forgotten(proposal.id, proposal.ts):
                self.clock.advance(proposal.ts)
                self._extend(proposal.place + 1, proposal.ts)
                continue
            entry = self.t.pending(proposal.id, now)
            if entry.epoch is not None:
                out.catch_up(self.leadership.joined.leader)
                return
            if entry.message is not None and entry.digest != proposal.digest:
                entry.message = None
            if entry.message is None:
                self._lack(entry, self.leadership.joined.leader, now)
                return
            self.leadership.confirm(now, out)
            self._append(entry, proposal, now, out)

    def _on_bump(self, sender: ProcessId, bump: Bump, now: int, out: Outbox) -> None:
        self.clocks.report(sender, bump.epoch, bump.clock, bump.length)

    # -- the end of a batch -------------------------------------------------------------------------------------------

    def end_batch(self, now: int, out: Outbox) -> None:
        """Propose, append, and send the batch's acknowledgements and at most one bump; then deliver."""
        self._submissions.end_batch(Start, now, out)
        if self.t.waiting:
            self._append_proposals(now, out)
        if self._proposable and self.election.state is LEADER:
            self._propose(now, out)
        self._deliver_ready(now, out)
        self._reads.end_batch(now, out)
        self.log.end_batch(out)
        self._save_state(out)
        if not self.is_member():
            return
        self.t.fetch_dropped(self.leadership.joined.leader, self.leadership.joined, out)
        raised = self.clock.value > self._told_clock
        self._told_clock = self.clock.value
        for groups, acks in self._acks.items():
            stamps = [*acks.values()]
            out.send_durable(self.topology.members(groups), self._ack(stamps))
        if raised and not self._acks:
            out.send_durable(self.election.members, Bump(self.election.promised, self._told_clock, self.t.length))
        self._acks.clear()
        for peer, replies in self._replies.items():
            if (stamps := [*replies.values()]) or self.topology.group_of[peer] == self.group:
                out.send_durable((peer,), self._ack(stamps))
        self._replies.clear()

    def _ack(self, stamps: list[Stamp], again: bool = False) -> Ack:
        return Ack(self.election.promised, self._told_clock, self.t.length, self.log.position, stamps, again)

    # -- delivery (lines 26-30, 53-56) --------------------------------------------------------------------------------

    def _deliver_ready(self, now: int, out: Outbox) -> None:
        if not self.election.takes_part or self.log.position < self.t.reach:
            return
        horizon = self.clocks.horizon  # lines 28 and 29: nothing new will be stamped up to here
        while (due := self._queue.pop_up_to(horizon)) is not None:
            final, message_id = due
            entry = self.entries[message_id]
            if self.options.dedup_window_us and final <= self.log.timestamp:
                self._forget(entry, out)  # this process has delivered it and forgotten that
                continue
            message = entry.message
            if entry.epoch is None or message is None or entry.ts != entry.locals[self.group]:
                raise AssertionError(f"{message_id.hex()} is decided at {final}, but T has it at {entry.ts}")
            self.clock.advance(final.time)
            out.deliver(message, final, note=_encode((entry.epoch, entry.ts)))
            self._delivered(entry, message, final, out)

    def _delivered(self, entry: Entry, message: AppMessage, final: Timestamp, out: Outbox) -> None:
        """Common to a delivery and an installation."""
        groups = self.window.needs(message, final.time, self.group)
        entry.delivered(final, self.log.add(entry.id, groups, final, out))
        self._stuck = False
        self._submissions.remove(entry.id)
        self._retries.discard(entry.id)
        self.leadership.delivered(message, out)
        outside = self.topology.group_of.get(message.origin, self.group) not in message.destinations
        if outside and self.election.state is LEADER and self.group == message.destinations[0]:
            out.send((message.origin,), Known(entry.id, final))

    def on_install(
        self, position: int, message: AppMessage, timestamp: Timestamp, note: bytes, now: int, out: Outbox
    ) -> None:
        entry = self.entries.get(message.id)
        self.clock.advance(timestamp.time)
        if entry is not None and not entry.position and self.window.is_new_copy(entry.id, entry.ts, timestamp):
            groups = self.window.needs(message, timestamp.time, self.group)
            self.log.add(message.id, groups, timestamp, out)  # T has a later copy
            self.leadership.delivered(message, out)
            self.t.reach = max(self.t.reach, position)
        else:
            self._queue.remove(message.id)
            entry = self.t.install(message, *_decode_note(note), now, out)
            self._delivered(entry, message, timestamp, out)
        if self.log.position != position:
            raise AssertionError(f"installed delivery {position} as {self.log.position}")
        self.leadership.installed(now, out)

    # -- what others have delivered, and what is lost ------------------------------------------------------------------

    def _on_known(self, sender: ProcessId, known: Known, now: int, out: Outbox) -> None:
        """The sender's group has delivered the message, so nobody need repeat it. If it is undelivered here, this
        process is behind, or has forgotten its delivery; or that other group has decided it late."""
        entry = self.entries.get(known.id)
        if known.final == ZERO:  # it does not know the message any more (parts.payloads)
            if entry is not None and entry.message is None and entry.epoch is None:
                self._forget(entry, out)
            return
        self._submissions.known(known, out)
        group = self.topology.group_of[sender]
        if entry is None or entry.position or self.window.is_new_copy(entry.id, entry.ts, known.final):
            return
        if group != self.group and entry.message is not None and known.final > self.log.timestamp:
            self.clock.advance(known.final.time)
            entry.learn_final(group, known.final, self.window)
            self._refresh(entry, now)
        if known.final.time > self.window.limit(known.id) and group != self.group:
            if entry.message is None and entry.epoch is None:
                self._forget(entry, out)  # the payload was dropped there; if somebody here has it, it begins anew
            return
        if entry.epoch is None or known.final <= self.log.timestamp:
            self._forget(entry, out)
        elif group == self.group:
            out.catch_up(sender)
        elif others := self.election.others:
            self._turn = (self._turn + 1) % len(others)  # one of them has delivered it, too
            out.catch_up(others[self._turn])

    def _forget(self, entry: Entry, out: Outbox) -> None:
        """Nobody needs this undelivered message here: it was delivered in another copy, or dropped."""
        self._queue.remove(entry.id)
        self.t.forget(entry, out)

    def _lack(self, entry: Entry, holder: ProcessId, now: int) -> None:
        """Deviation 3: ask for the payload, if it does not come soon."""
        if self._payloads.lack(entry.id, holder, now):
            self._deadlines.by("payloads", now + self.options.heartbeat_us)

    def _retry_later(self, entry: Entry, now: int) -> None:
        if self._retries.add(entry.id, now):
            self._deadlines.by("retry", now + self.options.retry_us)

    # -- primary change (lines 57-81): what parts.leadership asks for -------------------------------------------------

    def ended(self, now: int, out: Outbox) -> None:
        """Line 62: nothing is proposed or appended in the epoch before any more."""
        self.t.forget_proposals()
        self._proposable.clear()
        self._save_state(out)

    def vote(self) -> Promise:
        """Line 64."""
        epochs = self.election.promised, self.leadership.joined
        return Promise(*epochs, self.log.position, self.t.states(), self.clock.value, self.t.length, self.t.reach)

    def state(self) -> NewState:
        """Line 69; also for a process that promises late."""
        return NewState(self.leadership.joined, self.t.reach, self.t.states(), self.clock.value, self.t.length)

    def choose(self, votes: dict[ProcessId, Promise]) -> NewState:
        """Lines 66 and 67: the longest T of the highest current epoch. Since it was told, this process may have
        delivered much of it."""
        latest = max(votes.values(), key=lambda vote: (vote.joined, vote.length))
        epoch = self.election.promised
        copies = self.copies
        kept = [s for s in latest.entries if not copies.is_void(s.message.id, s.ts)]
        states = [s.in_view_of(epoch, s.position or copies.delivered_as(s.message.id, s.ts)) for s in kept]
        reach = max(vote.reach for vote in votes.values())
        clock = max(vote.clock for vote in votes.values())
        return NewState(epoch, reach, states, clock, latest.length)

    def adopt(self, state: NewState, now: int, out: Outbox) -> None:
        """Lines 71 to 73: this T, but what was delivered here stays."""
        self.clock.advance(state.clock)
        taken = [s for s in state.entries if not self._is_behind(s)]
        self.t.begin((s.message.id for s in taken), state.length, state.reach, out)
        self._queue = PendingQueue()
        for one in taken:
            self._take(one, now, out)
        self.clocks.begin(state.ballot, self.t.length, state.clock)
        self._primarys_position = 0

    def _take(self, state: EntryState, now: int, out: Outbox) -> None:
        """Take a message of another process's T into T, at its place, unless this process has delivered it."""
        if self._is_behind(state):
            return
        entry = self.t.pending(state.message.id, now)
        entry.take(state.message)
        self._place(entry, Stamp(entry.id, state.place, state.ts, state.epoch), now, out)

    def _is_behind(self, state: EntryState) -> bool:
        """Whether this process has delivered this message of a T, though it may have forgotten that."""
        copies = self.copies
        if copies.delivered_as(state.message.id, state.ts) or 0 < state.position <= self.log.position:
            return True
        return copies.is_past(state)

    def accepted(self, out: Outbox) -> Accept:
        """Line 74, and the clock of line 73 (deviation 2)."""
        self._save_state(out)
        self._told_clock = self.clock.value
        return Accept(self.leadership.joined, self._told_clock, self.t.length)

    def _on_accept(self, sender: ProcessId, accept: Accept, now: int, out: Outbox) -> None:
        """Lines 75 and 76."""
        self.clocks.report(sender, accept.ballot, accept.clock, accept.length)
        self.leadership.on_joined(sender, accept, now, out)

    def confirmed(self, now: int, out: Outbox) -> None:
        """Lines 77-81: a quorum has accepted the epoch."""
        if self.election.state is LEADER:
            self._proposable = [e.id for e in self.entries.values() if e.epoch is None and e.message is not None]
        for entry in self.entries.values():
            if entry.epoch is not None and not entry.position and not entry.is_acknowledged_by(self.self_id):
                self._acknowledge(entry)
        self._told_clock = 0
        self._retries.hurry()
        self._deadlines.by("retry", now)

    def leaders_changed(self, now: int) -> None:
        """Ask again about what waits. Acknowledgements of an epoch may count now."""
        for entry in self.entries.values():
            if entry.recount(self.topology.has_quorum):
                self._refresh(entry, now)
        self._submissions.hurry()
        self._deadlines.by("submissions", now)

    def beat(self, out: Outbox) -> None:
        beat = Beat(self.leadership.joined, self.log.position, self.election.resigning, self._told_clock, self.t.length)
        out.send_durable(self.election.others, beat)

    def heard(self, heartbeat: Beat, out: Outbox) -> None:
        """Deviations 4 and 7: what was there one heartbeat ago should be here by now."""
        leader = heartbeat.ballot.leader
        self.clocks.report(leader, heartbeat.ballot, heartbeat.clock, heartbeat.length)
        self.t.compare(leader, heartbeat.ballot, heartbeat.length, out)
        if max(self._primarys_position, self.t.reach) > self.log.position:
            out.catch_up(leader)
        self._primarys_position = heartbeat.position

    def _on_returned(self, sender: ProcessId, returned: Returned, now: int, out: Outbox) -> None:
        """Deviation 12: what a member had told before it lost its disk does not count any more."""
        self.clocks.forget(sender)
        self.log.forget_watermark(sender)
        self.election.on_returned(sender, returned, now, out)

    def _on_fetch(self, sender: ProcessId, fetch: Fetch, now: int, out: Outbox) -> None:
        """Deviation 4: at the primary, send what the follower's T lacks."""
        if self.election.state is LEADER and fetch.epoch == self.leadership.joined:
            for refill in self.t.refill(fetch, self._told_clock, self.options.portion_bytes):
                out.send_durable((sender,), refill)

    def _on_refill(self, sender: ProcessId, refill: Refill, now: int, out: Outbox) -> None:
        """Deviation 4: at a follower, take what T lacked."""
        if not self.leadership.is_current(refill.epoch) or sender != refill.epoch.leader:
            return
        missing = self.t.missing(sender, refill)
        if missing is None:
            return
        self.leadership.confirm(now, out)
        for state in missing:
            self._take(state, now, out)
            entry = self.entries.get(state.message.id)
            if entry is not None and entry.epoch is not None and not entry.position:
                self._acknowledge(entry)
            self.clock.advance(state.ts)
        self._extend(refill.length, refill.clock)

    # -- garbage, timers ----------------------------------------------------------------------------------------------

    def on_durable(self, position: int, now: int, out: Outbox) -> None:
        self._drop(self.log.durable(position, out), out)

    def _on_watermark(self, sender: ProcessId, told: Watermark, now: int, out: Outbox) -> None:
        told.ask = told.ask and self.is_member()
        self._drop(self.log.on_watermark(sender, told, out), out)
        if self.is_member():
            self._behind.notice(sender, told.watermark, now)

    def _drop(self, settled: list[MessageId], out: Outbox) -> None:
        """Deviation 8: settled messages leave T."""
        for message_id in settled:
            entry = self.entries.get(message_id)
            if entry is not None and entry.position and self.copies.is_settled(entry):
                self.t.forget(entry, out)
            elif entry is not None and not entry.position:
                self.t.forget_earlier(entry, out)

    def on_peer_reset(self, peer: ProcessId, now: int, out: Outbox) -> None:
        self.log.forget_reports(peer)
        self.t.on_peer_reset(peer)
        self.leadership.link_reset(peer, now, out)

    def on_tick(self, now: int, out: Outbox) -> int | None:
        self._drop(self.log.recount(out), out)
        told = self.log.tick(now, out) if self.is_member() else None
        return earliest(self.leadership.tick(now, out), self._deadlines.run(now, out), told)

    def _retry(self, now: int, out: Outbox) -> int:
        """Deviation 11: ask about what is undelivered for long: other processes for their acknowledgements, the primary
        about a START that it did not propose. A primary with a void message begins a new epoch (parts.stamps, b)."""
        asked: dict[tuple[ProcessId, ...], list[Stamp]] = {}
        unproposed: list[MessageId] = []
        void = False
        for message_id in self._retries.due(now):
            entry = self.entries.get(message_id)
            if entry is None or entry.message is None or entry.position:
                self._retries.discard(message_id)
                continue
            void = void or (entry.epoch is not None and self.copies.is_void(message_id, entry.ts))
            missing = self._missing(entry) if entry.epoch is not None and self.election.takes_part else ()
            if missing:
                asked.setdefault(missing, []).append(self._stamp(entry))
            elif entry.epoch is None and self.election.state is FOLLOWER:
                unproposed.append(message_id)
            else:
                self._retries.answered(message_id)
        self._stuck = self._stuck or bool(asked)
        for to, stamps in asked.items():
            for some in in_questions(stamps):
                out.send_durable(to, self._ack(some, again=True))
        for ids in in_questions(unproposed):
            out.send((self.leadership.joined.leader,), Asked(ids))
        if void and self.election.state is LEADER:
            self.election.campaign(now, out)
        return self._retries.wake(now)

    def _missing(self, entry: Entry) -> tuple[ProcessId, ...]:
        """The processes whose acknowledgements, or clocks, this process lacks to deliver the message; none if it waits
        for another message."""
        assert entry.message is not None
        missing: list[ProcessId] = []
        for group in self.window.needs(entry.message, entry.ts, self.group):
            missing += entry.silent(group, self.topology.groups[group])
        if entry.final is not None and entry.final.time > self.clocks.horizon:
            missing += self.election.others
        return tuple(missing)

    def _sweep(self, now: int, out: Outbox) -> int:
        """Forget messages that were only ever heard of. (Whoever wants them delivered tells them again.)"""
        period: int = _ABANDONED_RETRIES * self.options.retry_us
        for entry in [e for e in self.entries.values() if e.seen_at < now - period]:
            if entry.epoch is None and (entry.message is None or self.log.known(entry.id) is not None):
                self._forget(entry, out)
        return now + period

    # -- for people ---------------------------------------------------------------------------------------------------

    def waits_for(self) -> tuple[GroupId, ...]:
        lowest = self._queue.lowest_proposed()
        entry = self.entries.get(lowest[1]) if lowest is not None else None
        if entry is None or entry.message is None:
            return ()
        return tuple(g for g in entry.message.destinations if g not in entry.locals)

    def role(self) -> str:
        return self.leadership.role()

    def describe(self) -> dict[str, Any]:
        return {
            "epoch": self.leadership.joined.text,
            "clock": self.clock.value,
            "quorum_clock": self.clocks.quorum_clock,
            "leader_clock": self.clocks.leader_clock,
            "pending": len(self._queue),
            "submitted": len(self._submissions),
            "entries": len(self.entries),
            "unsettled": self.log.unsettled,
        }

    def inspect(self) -> dict[str, Any]:
        why = self._queue.blockers({"leader": self.clocks.leader_clock, "quorum": self.clocks.quorum_clock})
        messages = {i.hex(): entry.seen(why.get(i, ())) for i, entry in self.entries.items()}
        promised, length = list(self.election.promised), self.t.length
        return {**super().inspect(), "promised": promised, "length": length, "messages": messages}
