"""White-Box atomic multicast (Gotsman, Lefort, Chockler, DSN 2019; Figs. 3-6).

Theory of operation. Skeen's protocol between the leaders of the destination groups and Paxos inside each group, woven
together. The leader of each destination group stamps m with its clock and sends ACCEPT with its ballot and stamp to
*all* processes of all destination groups. A process that has the ACCEPTs of all groups, its own group's from the
leader that it follows, stores the stamp, moves its clock past the maximum of them (m's global timestamp) and
acknowledges to all these leaders, naming the vector of ballots. A leader with acknowledgements for one vector from a
quorum of every group, itself among them, knows that stamps and clocks are durable: m is committed. It delivers
committed messages in timestamp order, as Skeen's does, and its followers deliver on its word. A new leader first brings
a quorum of its group into one state: everything committed that any of a quorum knows, and what was accepted in the
latest ballot.

    message        from -> to                                   durable before it leaves
    Multicast      sender -> leaders of the destinations        -
    Accept         leader -> all processes of destinations      -  (a restarted leader never leads in that ballot again)
    AcceptAck      process -> leaders of destinations           the accepted message, its stamp, the clock
    Stamps         leader -> all processes of destinations      -  (many ACCEPTs again, without payloads)
    Asked          sender -> destinations                       -  (parts.submissions; answered by Lacked)
    Lacked, Copies  process <-> leader or sender                -  (what it should send again; Relay: broken links)
    Deliver        leader -> own group                          -  (a quorum's acknowledgements say it already)
    LeaderIs       process -> sender of a Multicast             -  (whom it should ask instead; and parts.leadership)
    Known          process -> who repeats m                     -  (m was delivered, at this timestamp)
    Watermark      process -> destination groups                -  (parts.delivered)
    NewLeader, NewLeaderAck, NewState, Joined (NEWSTATE_ACK), Heartbeat and the rest: parts.leadership
    Confirm, Confirmed: parts.reads

Deviations from the figures, with reasons:
1. `Delivered` (line 22) counts in one ballot only: a leader that gets a delivered message back as ACCEPTED must send it
   again.
2. A candidate acts on the first quorum of NEWLEADER_ACKs only; later ones get its present state (parts.leadership).
3. Phase and timestamps of a DELIVER are stored even if its delivery is filtered as a duplicate (line 25).
4. NEWLEADER, ACCEPT and heartbeats of a ballot below the promised one are answered with Nack.
5. Lines 32-34 have a leader repeat what stays uncommitted as a whole to everybody. Under load that repeats what merely
   waits, and makes it wait longer. Here a leader tells its stamps again, many in a message and not too often
   (parts.retries), to those whose acknowledgements it lacks and to the leaders, and asks for theirs; leaders answer
   with their own stamps to all who need them, and who lacks a payload asks for it. A leader that has the payload and
   no stamp gives it one when another leader asks: the sender may be gone, and all above the other's stamp waits. The
   sender asks too (parts.submissions), until it knows of the delivery. A Multicast that repeats what its leader holds
   changes nothing.
6. DELIVER and heartbeats carry the group's dense position. A process that finds a gap fetches the missing deliveries
   from a peer's journal (the host's catch-up) instead of skipping them, and a candidate delivers all that any of its
   quorum has delivered before it computes its state.
7. Garbage collection. m is settled when a quorum of each destination group durably holds its outcome (parts.delivered).
   Then m's entry goes; its id is remembered. Safe, because every later leader of any of these groups has, from its
   quorum, a voter that delivered m, and by 6 delivers m itself before it leads; it then recognises m by its id.
   Copies of m in ACCEPT_ACK, NEWLEADER_ACK and NEW_STATE are ignored; MULTICAST and ACCEPT are answered with Known. A
   leader that holds m as pending nevertheless is deposed and does not know it yet: then it must not act on the word of
   others about m's place, having missed what its group delivered since; or it drops m. What it drops its followers may
   still have as accepted; a later leader that gets it from them, and has delivered beyond the timestamp with which it
   is committed, drops it again. A copy that is stamped when m's id was forgotten is a message of its own, which nobody
   refuses (parts.entries): who knows m only as delivered would else take from its group what a leader has delivered.
8. The clock never goes down at one process, also where line 61 would allow it.
9. Only the own leader's ACCEPT carries the payload.
10. Crash-recovery: promises, states and acknowledgements are durable before they are told; a process counts its own
    only when they come back through that lane; a restarted process leads only in a new ballot.
11. A process whose disk was lost (parts.rejoin) abstains from elections, acknowledges nothing and leads nothing until
    it has the NEW_STATE of a ballot above all for which it may have voted, and has delivered, from its peers' journals,
    all that the sender of that state had: entries that are settled are not in it, and by 7 others count on every
    process of a quorum to have delivered those. What it alone had delivered the group may have to deliver anew: other
    groups hear of a delivery once the group cannot lose it (parts.delivered, by_quorum).

Easy to get wrong: line 11 compares the own group's ballot only; line 17 demands equal vectors, a quorum of every group
and the leader's own acknowledgement (it is part of every quorum that counts, since only then has its clock passed what
it commits); line 51 takes ACCEPTED states of the maximal cballot only. tests/planted/white_box.py has each of these
lines, and each of the deviations 1 to 5, 7 and 11 left out, as a bug that a random run or a staged schedule finds.

Orderings relied on: FIFO from a leader to its followers (ACCEPT before DELIVER; DELIVERs and heartbeats in order of
their positions); a loss is found by position. What overtakes a NEW_STATE counts when that is there, or is fetched.
"""

from __future__ import annotations

import random
from typing import Annotated, Any, ClassVar

import msgspec

from multicast.parts import accepts, election, leadership, reads, submissions
from multicast.parts.accepts import ACCEPTED, COMMITTED, PROPOSED, START, Entry, EntryState, Quorums, Vector
from multicast.parts.ballots import FOLLOWER, LEADER, REJOINING, Heartbeat, Joined, LeaderIs, State, Vote
from multicast.parts.behind import Behind
from multicast.parts.clock import Clock
from multicast.parts.deadlines import Deadlines, earliest
from multicast.parts.delivered import DeliveredLog, Known, Watermark
from multicast.parts.entries import Entries
from multicast.parts.history import History
from multicast.parts.leadership import Leadership
from multicast.parts.options import GroupOptions
from multicast.parts.pending import PendingQueue
from multicast.parts.rejoin import Returned
from multicast.parts.retries import AT_MOST_IDS, Retries, in_questions
from multicast.parts.submissions import Lacked, Submissions
from multicast.parts.window import Window
from multicast.protocol import Handler, MulticastProtocol, Options, Outbox, PeerError, Saved, Specification
from multicast.types import AppMessage, Ballot, GroupId, MessageId, ProcessId, Timestamp, Topology

_ENTRY_PREFIX = b"m"
_ABANDONED_RETRIES = 20


class Multicast(msgspec.Struct, array_like=True, tag=1, gc=False):
    """Please order this message."""

    message: AppMessage


class Accept(msgspec.Struct, array_like=True, tag=2, gc=False):
    """In `ballot`, the group's leader stamps m with `local`. message: the payload, for its own group only."""

    id: MessageId
    group: GroupId
    ballot: Ballot
    local: Timestamp
    message: AppMessage | None


class AcceptAck(msgspec.Struct, array_like=True, tag=3, gc=False):
    """The sender accepted these messages at the stamps of these ballots."""

    ballots: Vector
    ids: list[MessageId]


class Deliver(msgspec.Struct, array_like=True, tag=4, gc=False):
    """Delivery number `position` of the group."""

    id: MessageId
    ballot: Ballot
    local: Timestamp
    final: Timestamp
    position: int


class NewLeaderAck(Vote, array_like=True, tag=6, gc=False):
    """A vote. Its `joined` is the paper's cballot."""

    entries: list[EntryState]
    clock: int


class NewState(State, array_like=True, tag=7, gc=False):
    """The state that a new leader's group begins with. reach: the leader's last delivery."""

    entries: list[EntryState]
    clock: int


class Stamps(msgspec.Struct, array_like=True, tag=12, gc=False):
    """The stamps of many messages, told again without their payloads. ask: the sender waits for the receiver's stamps
    of them; a leader answers with its own."""

    group: GroupId
    ballot: Ballot
    stamps: Annotated[list[tuple[MessageId, Timestamp]], AT_MOST_IDS]
    ask: bool


class WhiteBoxOptions(GroupOptions, kw_only=True, forbid_unknown_fields=True):
    """leaders_in_quorum: the leader of every destination group must be among those that acknowledged, as line 17
    demands of the own leader; then delivery alone is strictly serializable with two groups. Same latency. The rest:
    `GroupOptions`."""

    leaders_in_quorum: bool = False

    drawn: ClassVar[dict[str, tuple[Any, ...]]] = {"leaders_in_quorum": (False, True)}


_HOUSEKEEPING = (
    LeaderIs, NewLeaderAck, NewState, Joined, Heartbeat, Known, Watermark, *leadership.MESSAGES, *submissions.MESSAGES,
    *reads.MESSAGES,
)  # fmt: skip


class WhiteBox(MulticastProtocol):
    """One process. Names follow Fig. 3; its cballot is `leadership.joined`, its ballot `election.promised`."""

    specification = Specification(
        name="white_box",
        summary="White-Box atomic multicast: three message delays, survives a minority of every group",
        paper="Gotsman, Lefort, Chockler, White-Box Atomic Multicast, DSN 2019",
        options=WhiteBoxOptions,
        messages=(Multicast, Accept, AcceptAck, Deliver, Stamps, *_HOUSEKEEPING),
        housekeeping=_HOUSEKEEPING,
        vouching=(AcceptAck, NewLeaderAck, Joined, *leadership.VOUCHING),
        fault_tolerant=True,
        survives_lost_disk=True,
        changes_members=True,
        genuine=True,
        leader_reads=True,
        strict_groups_max=1,
        latency=(3, 4),
    )

    def __init__(self, self_id: ProcessId, topology: Topology, options: Options, rng: random.Random):
        super().__init__(self_id, topology, options, rng)
        self.clock = Clock(self.options.clock)
        self.log = DeliveredLog(self_id, self.topology, self.options.stability_us, self.options.dedup_window_us, True)
        self.entries = Entries(self.log, Window(self.options.dedup_window_us))
        self.leadership: Leadership[NewLeaderAck, NewState] = Leadership(
            self, self.log, self_id, self.topology, self.options, rng
        )
        self.election: election.Election[NewLeaderAck] = self.leadership.election
        self.leaders = self.election.detector.reach.need_leaders(self.topology, self.leadership.leaders)
        self.history = History(
            self.log, self.entries, _ENTRY_PREFIX, Entry.encode, self.leadership.views_given, self.entries.put_later
        )
        self.quorums = Quorums(self_id, self.topology, self.options.leaders_in_quorum)
        self._queue = PendingQueue()
        self._announced = 0
        self._taken_over: list[MessageId] = []
        self._retries: Retries[MessageId] = Retries(self.options.retry_us, rng)
        self._submissions = Submissions(
            self.topology, self._entry_points, self.options.retry_us, rng, delivered_at=self.entries.delivered_at,
            lacks=self._is_unstamped, take=self._on_copy, on_known=self._on_known, payload=self._payload,
            refers=self._refers, resent=self._on_resent, reach=self.election.detector.reach, submit=self.on_submit,
        )  # fmt: skip
        timers = {"retry": self._retry, "submissions": self._submissions.tick, "sweep": self._sweep}
        self._deadlines = Deadlines(timers)
        self._behind = Behind(self_id, self.topology, self.log, self.options.retry_us, rng, self._deadlines)
        self._reads = reads.LeaderReads(self.leadership, self._fresh_from, self.options, self._deadlines)
        self.handlers = {
            **self.leadership.handlers(NewLeaderAck, NewState), **self._submissions.handlers, **self._reads.handlers,
            Multicast: Handler(self._on_multicast), Accept: Handler(self._on_accept),
            AcceptAck: Handler(self._on_accept_ack, can_wait=self._changes_nothing),
            Deliver: Handler(self._on_deliver, True, self._has_time_here, self._has_time_elsewhere),
            Stamps: Handler(self._on_stamps), Known: Handler(self._on_known), Watermark: Handler(self._on_watermark),
            Returned: Handler(self._on_returned, own_group=True),
        }  # fmt: skip
        self._acks: dict[tuple[tuple[ProcessId, ...], Vector], dict[MessageId, None]] = {}
        self._early: dict[int, Deliver] = {}

    # -- life ---------------------------------------------------------------------------------------------------------

    def on_start(self, saved: Saved, now: int, out: Outbox) -> None:
        values = saved.values
        for key, value in values.items():
            if key[:1] == _ENTRY_PREFIX:
                self.entries.load(accepts.decode_entry(value), now)
        self.log.restore(values, saved.position, self.entries.destinations)
        for entry in self.entries.values():
            known = self.log.known(entry.id)
            if known is not None and entry.local is not None and entry.local <= known[0]:
                entry.phase, entry.final, entry.position = COMMITTED, known[0], known[1]
        self.clock.restore(values)
        self.clock.advance(self.log.timestamp.time)
        self._deadlines.by("sweep", now)
        self.leadership.start(saved, now, out)

    def _save_entry(self, entry: Entry, out: Outbox) -> None:
        assert entry.message is not None
        out.put(_ENTRY_PREFIX + entry.id, entry.encode(), carries=(entry.message,))

    # -- normal operation (Fig. 4, lines 1-34) ------------------------------------------------------------------------

    def on_submit(self, message: AppMessage, now: int, out: Outbox) -> None:
        """Line 1: send m to the leaders of its destinations, as far as they are known."""
        self.refuse_beyond_limit(max(len(self._queue), len(self._submissions)))
        if not self.log.known(message.id):
            self._deadlines.by("submissions", now + self.options.retry_us)
            self._submissions.send(message, Multicast(message), now, out)

    def _entry_points(self, message: AppMessage) -> tuple[ProcessId, ...]:
        return tuple(map(self.leadership.leaders.whom, message.destinations))

    def _on_multicast(self, sender: ProcessId, multicast: Multicast, now: int, out: Outbox) -> None:
        """Lines 3-9: the leader stamps m and sends ACCEPT."""
        message = multicast.message
        groups = message.destinations
        if self.group not in groups:
            raise PeerError(f"a message for groups {groups} at group {self.group}")
        if self._refers(sender, out):
            return
        if (delivered := self.entries.delivered_at(message.id)) is not None:
            out.send((sender,), Known(message.id, delivered))
            return
        entry = self.entries.get(message.id)
        if (entry is not None and entry.phase != START) or not self.leadership.may_order(message):
            return
        if entry is None:
            entry = self.entries[message.id] = Entry(message.id, now)
        entry.message = message
        self.clock.advance(self.entries.known_until(message.id))
        entry.local = local = Timestamp(self.clock.stamp(self.real_clock(now)), self.group)
        entry.phase = PROPOSED
        self._queue.propose(message.id, local)
        self._retries.add(message.id, now)
        self._deadlines.by("retry", now + self.options.retry_us)
        out.send(self.election.members, Accept(message.id, self.group, self.leadership.joined, local, message))
        if others := [g for g in groups if g != self.group]:
            out.send(self.topology.members(others), Accept(message.id, self.group, self.leadership.joined, local, None))

    def _refers(self, sender: ProcessId, out: Outbox) -> bool:
        """Tell the sender who leads, if this process does not; returns whether it does not."""
        if self.election.state is LEADER:
            return False
        joined = self.leadership.joined
        if joined.leader != self.self_id and self.election.state is not REJOINING:
            self.election.tell_view((sender,), out)
            out.send_durable((sender,), LeaderIs(joined))  # behind its view
        return True

    def _on_accept(self, sender: ProcessId, accept: Accept, now: int, out: Outbox) -> None:
        """Lines 10-16: hold the stamp of one destination group."""
        if self.topology.group_of[sender] != accept.group or accept.ballot.leader != sender:
            raise PeerError(f"an ACCEPT for group {accept.group} from process {sender}")
        own = accept.group == self.group
        if own and not self.leadership.hear(sender, accept.ballot, now, out):
            return
        entry = self.entries.of_stamp(accept.id, accept.local, own, now)
        if not isinstance(entry, Entry):
            out.send((sender,), Known(accept.id, entry))
            return
        if own:
            if entry.message is None:
                if accept.message is None or self.group not in accept.message.destinations:
                    raise PeerError("an ACCEPT of the own group without the message")
                entry.message = accept.message
        else:
            self.leadership.learn_leader(accept.group, accept.ballot, now, out, sender)
            self._retries.answered(accept.id)
            if entry.message is None and self.election.state is LEADER and self.log.known(accept.id) is not None:
                out.send((sender,), Lacked([accept.id]))  # a later copy, which its sender has not sent here, or in vain
        if entry.hold(accept.group, accept.ballot, accept.local):
            self._accept_if_complete(entry, out)

    def _accept_if_complete(self, entry: Entry, out: Outbox) -> None:
        """Lines 11-16, once the ACCEPTs of all destination groups are there: store the stamp, advance the clock, and
        note that it is to be acknowledged."""
        vector = entry.vector
        if vector is None or not self.election.takes_part:
            return
        ballot, local = entry.accepts[self.group]
        if ballot != self.leadership.joined:
            return
        if entry.phase == COMMITTED:
            if not entry.position and self.entries.is_of_later(entry.id, local, entry.final):
                return  # of a later copy: what was committed comes first
            if entry.local != local:
                raise AssertionError(f"Invariant 3a: {entry.id.hex()} stamped {entry.local} and {local}")
        elif entry.phase != ACCEPTED or entry.local != local:
            entry.phase, entry.local = ACCEPTED, local
            self._save_entry(entry, out)
        self.clock.advance(entry.highest.time)
        leaders = tuple(b.leader for b in vector)
        self._acks.setdefault((leaders, vector), {})[entry.id] = None

    def end_batch(self, now: int, out: Outbox) -> None:
        """Send the batch's acknowledgements (line 16), one message per vector of ballots."""
        self.log.end_batch(out)
        self._reads.end_batch(now, out)
        if not self._acks or not self.is_member():
            return
        self.clock.save(out)
        for (leaders, vector), ids in self._acks.items():
            out.send_durable(leaders, AcceptAck(vector, [*ids]))
        self._acks.clear()

    def _on_accept_ack(self, sender: ProcessId, ack: AcceptAck, now: int, out: Outbox) -> None:
        """Lines 17-23: the leader counts acknowledgements, and commits what a quorum of every group has
        acknowledged."""
        if self.election.state is not LEADER or self.leadership.joined not in ack.ballots:
            return
        committed = False
        for message_id in ack.ids:
            entry = self.entries.get(message_id)
            if entry is None or entry.message is None or entry.phase not in (PROPOSED, ACCEPTED):
                continue
            if len(ack.ballots) != len(entry.message.destinations):
                raise PeerError(f"{len(ack.ballots)} ballots for {len(entry.message.destinations)} groups")
            if self.quorums.acknowledge(entry, sender, ack.ballots):
                entry.final = entry.highest
                entry.phase = COMMITTED
                entry.acks.clear()
                self._retries.discard(message_id)
                if self.entries.is_dropped_copy(entry):
                    self._drop_copy(message_id, entry.final, out)
                else:
                    self._queue.commit(message_id, entry.final)
                committed = True
        if committed:
            self._deliver_ready(out)

    def _changes_nothing(self, ack: AcceptAck) -> bool:
        """Whether this acknowledgement may come later: each of its messages is committed, or waits for others, too."""
        entries = [entry for message_id in ack.ids if (entry := self.entries.get(message_id)) is not None]
        return not any([e.phase != COMMITTED and self.quorums.lacks_one(e, ack.ballots) for e in entries])

    def _deliver_ready(self, out: Outbox) -> None:
        """Lines 21-23: the leader tells its group to deliver what is next in timestamp order."""
        while (due := self._queue.pop()) is not None:
            entry = self.entries[due[1]]
            if not entry.sent:
                self._announced += 1
                self._send_deliver(entry, self._announced, out)

    def _send_deliver(self, entry: Entry, position: int, out: Outbox) -> None:
        assert entry.local is not None and entry.final is not None
        entry.sent = True
        out.send(self.election.members, Deliver(entry.id, self.leadership.joined, entry.local, entry.final, position))

    def _on_deliver(self, sender: ProcessId, deliver: Deliver, now: int, out: Outbox) -> None:
        """Lines 24-31: deliver on the leader's word; if a delivery before this one is missing, fetch it first."""
        if not self.election.takes_part or self.leadership.joined != deliver.ballot:
            return
        if sender != self.leadership.joined.leader:
            raise PeerError("a DELIVER from a process that does not lead")
        self.leadership.hear(sender, deliver.ballot, now, out)
        if deliver.position <= self.log.position:
            self._on_duplicate_deliver(self.entries.get(deliver.id), deliver, out)
        elif not self._deliver_next(deliver, out):
            if len(self._early) < self.options.early_max:
                self._early[deliver.position] = deliver
            out.catch_up(sender)

    def _has_time_here(self, deliver: Deliver) -> bool:
        """Whether a DELIVER need not be handled at once. Only the process that multicast m waits for the delivery; the
        others have time until the next ACCEPT."""
        return (message := self._payload(deliver.id)) is None or message.origin != self.self_id

    def _has_time_elsewhere(self, deliver: Deliver) -> bool:
        return (message := self._payload(deliver.id)) is None or message.origin not in self.election.others

    def _deliver_next(self, deliver: Deliver, out: Outbox) -> bool:
        """Lines 26-31. Returns False if a delivery before this one, or its payload, is missing."""
        entry = self.entries.get(deliver.id)
        if deliver.position != self.log.position + 1 or entry is None or entry.message is None:
            return False
        if self.entries.is_copy_after(entry, deliver.final):
            return False
        saved = entry.phase >= ACCEPTED and entry.local == deliver.local
        entry.phase, entry.local, entry.final = COMMITTED, deliver.local, deliver.final
        if not saved:
            self._save_entry(entry, out)
        self.clock.advance(deliver.final.time)
        out.deliver(entry.message, deliver.final, note=deliver.local.encode())
        self._delivered(entry, out)
        return True

    def _on_duplicate_deliver(self, entry: Entry | None, deliver: Deliver, out: Outbox) -> None:
        """Deviation 3: store the phase and the timestamps of what was delivered already."""
        known = self.log.known(deliver.id)
        if known is not None and known[1] == deliver.position and known[0] != deliver.final:
            raise AssertionError(f"Invariant 3b: {deliver.id.hex()} delivered at {known} and {deliver}")
        if entry is None or entry.phase == COMMITTED or (entry.local is not None and entry.local > deliver.final):
            return
        if not entry.position:  # delivered, settled and dropped here, and begun again by somebody's late word
            self._drop([entry.id], out)
            return
        entry.phase, entry.local, entry.final = COMMITTED, deliver.local, deliver.final
        if entry.message is not None:
            self._save_entry(entry, out)

    def _delivered(self, entry: Entry, out: Outbox) -> None:
        """What a delivery and an installation have in common."""
        message, final = entry.message, entry.final
        assert message is not None and final is not None
        entry.position = self.log.add(entry.id, message.destinations, final, out)
        self._early.pop(entry.position, None)  # a word that came when the message was not here
        self.leadership.delivered(message, out)
        entry.accepts.clear()
        entry.acks.clear()
        self._submissions.remove(entry.id)
        self._retries.discard(entry.id)
        if self.election.state is LEADER and self.topology.group_of.get(message.origin) not in message.destinations:
            out.send((message.origin,), Known(entry.id, final))

    def on_install(
        self, position: int, message: AppMessage, timestamp: Timestamp, note: bytes, now: int, out: Outbox
    ) -> None:
        entry = self.entries.get(message.id)
        if entry is None:
            entry = self.entries[message.id] = Entry(message.id, now)
        local, copied = Timestamp.decode(note), self.entries.is_copy_after(entry, timestamp)
        if self.election.state is LEADER and entry.phase in (PROPOSED, ACCEPTED) and (copied or entry.local != local):
            self.election.step_down(now)  # somebody leads a later ballot
        self.clock.advance(timestamp.time)
        if copied:
            if not self.entries.is_of_later(entry.id, entry.local, timestamp):  # another group has stamped that
                entry.phase, entry.local, entry.final = START, None, None
            self._early.pop(self.log.add(message.id, message.destinations, timestamp, out), None)
            self.leadership.delivered(message, out)
        else:
            if entry.phase != COMMITTED or entry.final != timestamp:
                entry.begin_anew()  # should it hold an earlier copy
                entry.take(EntryState(message, COMMITTED, local, timestamp))
                self._save_entry(entry, out)
            self._queue.remove(message.id)
            self._delivered(entry, out)
        if self.log.position != position:
            raise AssertionError(f"installed delivery {position} as {self.log.position}")
        if self.election.state is LEADER and entry.position and not entry.sent:
            self._announced = position
            self._send_deliver(entry, position, out)
        while (early := self._early.pop(self.log.position + 1, None)) is not None:
            if not self._deliver_next(early, out):
                break
        if self.election.state is LEADER:
            self._deliver_ready(out)  # this message may have been what others waited for
        self.leadership.installed(now, out)

    # -- retries and late copies --------------------------------------------------------------------------------------

    def _retry(self, now: int, out: Outbox) -> int:
        """Deviation 5: a leader tells its stamps again, and asks for those it lacks."""
        asked: dict[tuple[ProcessId, ...], list[tuple[MessageId, Timestamp]]] = {}
        for message_id in self._retries.due(now):
            entry = self.entries.get(message_id)
            if self.election.state is LEADER and entry is not None and entry.phase in (PROPOSED, ACCEPTED):
                assert entry.local is not None
                to = self.quorums.silent(entry, self.leadership.leaders.whom, self._retries.times(message_id) > 1)
                asked.setdefault(to, []).append((message_id, entry.local))
            else:
                self._retries.discard(message_id)
        for to, stamps in asked.items():
            for some in in_questions(stamps):
                out.send(to, Stamps(self.group, self.leadership.joined, some, True))
        return self._retries.wake(now)

    def _on_stamps(self, sender: ProcessId, message: Stamps, now: int, out: Outbox) -> None:
        """Deviation 5: take each stamp as an ACCEPT, ask for payloads that are missing, and answer with the own
        stamps."""
        own = message.group == self.group
        if own and not self.leadership.hear(sender, message.ballot, now, out):
            return
        answer = Lacked([], [])
        answers: dict[tuple[GroupId, ...], list[tuple[MessageId, Timestamp]]] = {}
        for message_id, local in message.stamps:
            entry = self.entries.of_stamp(message_id, local, own, now)
            if not isinstance(entry, Entry):
                answer.known.append(Known(message_id, entry))
                continue
            if entry.message is None and (own or self.election.state is LEADER):
                answer.ids.append(message_id)
                if own:
                    continue
            if entry.message is not None and self.group not in entry.message.destinations:
                raise PeerError("a stamp of a message that is not for this group")
            self._on_accept(sender, Accept(message_id, message.group, message.ballot, local, None), now, out)
            if entry.message is None:
                continue
            if entry.phase == START and message.ask and self.election.state is LEADER:
                self._on_multicast(sender, Multicast(entry.message), now, out)  # its sender may be gone
            elif entry.phase != START and entry.local is not None:
                answers.setdefault(entry.message.destinations, []).append((message_id, entry.local))
        if answer.ids or answer.known:
            out.send((sender,), answer)
        if message.ask and not own and not self._refers(sender, out):
            self.election.tell_view((sender,), out)
            for groups, stamps in answers.items():
                out.send(self.topology.members(groups), Stamps(self.group, self.leadership.joined, stamps, False))

    def _is_unstamped(self, message_id: MessageId) -> bool:
        entry = self.entries.get(message_id)
        return entry is None or entry.phase == START

    def _on_resent(self, sender: ProcessId, copies: list[AppMessage], out: Outbox) -> None:
        """This process has sent copies of messages that the other lacked. A follower gets their stamps, too."""
        stamps = []
        for message in copies:
            self._retries.answered(message.id)
            entry = self.entries.get(message.id)
            if entry is not None and entry.phase != START and entry.local is not None:
                stamps.append((message.id, entry.local))
        if stamps and self.election.state is LEADER and sender in self.election.members:
            out.send((sender,), Stamps(self.group, self.leadership.joined, stamps, False))

    def _payload(self, message_id: MessageId) -> AppMessage | None:
        return entry.message if (entry := self.entries.get(message_id)) is not None else None

    def _on_copy(self, sender: ProcessId, message: AppMessage, now: int, out: Outbox) -> None:
        """A message that this process lacked. A leader stamps it; a follower waits for its leader's stamp."""
        if self.election.state is LEADER:
            self._on_multicast(sender, Multicast(message), now, out)
            return
        if self.group not in message.destinations:
            raise PeerError(f"a message for groups {message.destinations} at group {self.group}")
        entry = self.entries.get(message.id)
        if entry is None and self.log.known(message.id) is None:
            entry = self.entries[message.id] = Entry(message.id, now)
        if entry is not None and entry.message is None:
            entry.message = message

    def _on_known(self, sender: ProcessId, known: Known, now: int, out: Outbox) -> None:
        """Deviation 7: the sender of a message need not repeat it, and a leader that holds it as pending drops it. A
        leader that has not delivered so far yet asks its own group first: one that voted for it may have delivered m
        since, from a peer's journal, and other groups have settled m by now."""
        self._submissions.known(known, out)
        entry = self.entries.get(known.id)
        if self.election.state is not LEADER or entry is None or entry.phase not in (PROPOSED, ACCEPTED):
            return
        if self.entries.is_copy_after(entry, known.final):
            return
        if known.final > self.log.timestamp:
            if self.election.others:
                out.catch_up(self.rng.choice(self.election.others))
        else:
            self._drop_copy(known.id, known.final, out)
            self._deliver_ready(out)

    def _drop_copy(self, message_id: MessageId, final: Timestamp, out: Outbox) -> None:
        self._queue.remove(message_id)
        self._drop([message_id], out)
        self.log.recall(message_id, final, out)

    def leaders_changed(self, now: int) -> None:
        """Ask again about what waits."""
        self._retries.hurry()
        self._submissions.hurry()
        self._deadlines.by("retry", now)
        self._deadlines.by("submissions", now)

    # -- leader change (Fig. 4, lines 35-68): what parts.leadership asks for ------------------------------------------

    def vote(self) -> NewLeaderAck:
        """Line 41: what this process tells a candidate that it promises to follow."""
        ballots = self.election.promised, self.leadership.joined
        return NewLeaderAck(*ballots, self.log.position, self._states(), self.clock.value)

    def state(self) -> NewState:
        """Line 56, once more, for those who come late: the leader's present state."""
        return NewState(self.leadership.joined, self.log.position, self._states(), self.clock.value)

    def _states(self) -> list[EntryState]:
        return [e.state() for e in self.entries.values() if e.phase >= ACCEPTED and e.message is not None]

    def choose(self, votes: dict[ProcessId, NewLeaderAck]) -> NewState:
        """Lines 44-56: the state to begin with, from the votes of a quorum."""
        latest = max(vote.joined for vote in votes.values())
        chosen: dict[MessageId, EntryState] = {}
        for _, vote in sorted(votes.items()):
            for state in vote.entries:
                if state.phase == COMMITTED or vote.joined == latest:
                    other = chosen.get(state.message.id)
                    if other is None or self.entries.outranks(state, other):
                        chosen[state.message.id] = state
        clock = max(vote.clock for vote in votes.values())
        return NewState(self.election.promised, self.log.position, list(chosen.values()), clock)

    def adopt(self, state: NewState, now: int, out: Outbox) -> None:
        """Lines 44-56 and 60-61: take over a state, but for what was delivered or settled here already."""
        self.clock.advance(state.clock)
        given = {s.message.id: s for s in state.entries}
        for message_id, entry in list(self.entries.items()):
            taken = given.pop(message_id, None)
            entry.begin_anew()
            if entry.position and not self.entries.replaces(taken, entry):
                continue
            if taken is not None and not self.entries.is_past(taken):
                entry.take(taken)
                self._save_entry(entry, out)
            else:
                if entry.phase >= ACCEPTED:
                    out.delete(_ENTRY_PREFIX + message_id)
                entry.phase, entry.local, entry.final = START, None, None
        for taken in given.values():
            if not self.entries.is_past(taken):
                self._save_entry(self.entries.load(taken, now), out)
        self._queue = PendingQueue()
        self._retries.clear()
        self._early.clear()
        self.clock.save(out)

    def accepted(self, out: Outbox) -> Joined:
        """Line 62: the answer to NEW_STATE."""
        return Joined(self.leadership.joined)

    def confirmed(self, now: int, out: Outbox) -> None:
        """Lines 63-68 at a leader: a quorum has its state, so it begins to lead. A follower accepts what came in this
        ballot before its state did."""
        if self.election.state is LEADER:
            self._begin_to_lead(now, out)
            return
        for entry in list(self.entries.values()):
            if self.group in entry.accepts:
                self._accept_if_complete(entry, out)

    def _begin_to_lead(self, now: int, out: Outbox) -> None:
        self._announced = self.log.position
        for entry in sorted((e for e in self.entries.values() if e.position), key=lambda e: e.position):
            self._send_deliver(entry, entry.position, out)
        for entry in self.entries.values():
            if entry.phase == ACCEPTED:
                assert entry.local is not None
                self._queue.propose(entry.id, entry.local)
                self._retries.add(entry.id, now)
            elif entry.phase == COMMITTED and not entry.position:
                assert entry.final is not None
                self._queue.commit(entry.id, entry.final)
        self._taken_over = [e.id for e in self.entries.values() if e.phase >= ACCEPTED and not e.position]
        self._retries.hurry()
        self._deadlines.by("retry", now)
        self._deliver_ready(out)

    def on_read(self, token: int, now: int, out: Outbox) -> None:
        self._reads.read(token, out)

    def _fresh_from(self) -> int | None:
        """The position from which on a read is fresh: the last delivery announced. None until everything that this
        leader took over is announced or dropped."""
        taken_over = self._taken_over
        while taken_over:
            entry = self.entries.get(taken_over[-1])
            if entry is not None and entry.phase >= ACCEPTED and not entry.sent:
                return None
            taken_over.pop()
        return self._announced

    def ended(self, now: int, out: Outbox) -> None:
        """Lines 36 and 40. Nothing to do: a process that does not take part stamps, accepts and delivers nothing."""

    def beat(self, out: Outbox) -> None:
        out.send(self.election.others, Heartbeat(self.leadership.joined, self._announced, self.election.resigning))

    def heard(self, heartbeat: Heartbeat, out: Outbox) -> None:
        """Deviation 6: fetch the deliveries that the leader has announced and that have not come."""
        if heartbeat.position > self.log.position:
            out.catch_up(heartbeat.ballot.leader)

    def _on_returned(self, sender: ProcessId, returned: Returned, now: int, out: Outbox) -> None:
        """Deviation 11: a member that had lost its disk is back."""
        self.log.forget_watermark(sender)
        self.election.on_returned(sender, returned, now, out)

    # -- garbage, timers ----------------------------------------------------------------------------------------------

    def on_durable(self, position: int, now: int, out: Outbox) -> None:
        self._settled(self.log.durable(position, out), out)

    def _on_watermark(self, sender: ProcessId, told: Watermark, now: int, out: Outbox) -> None:
        told.ask = told.ask and self.is_member()
        self._settled(self.log.on_watermark(sender, told, out), out)
        if self.is_member():
            self._behind.notice(sender, told.watermark, now)

    def _settled(self, ids: list[MessageId], out: Outbox) -> None:
        """Drop messages that nobody needs any more. What is held under the id of one and is not delivered is a later
        copy: that stays, and takes the place on disk when it is accepted."""
        for message_id in ids:
            entry = self.entries.get(message_id)
            if entry is not None and entry.position:
                self._drop([message_id], out)
            elif entry is not None and entry.phase < ACCEPTED:
                out.delete(_ENTRY_PREFIX + message_id)

    def _drop(self, settled: list[MessageId], out: Outbox) -> None:
        for message_id in settled:
            if self.entries.pop(message_id, None) is not None:
                out.delete(_ENTRY_PREFIX + message_id)

    def on_peer_reset(self, peer: ProcessId, now: int, out: Outbox) -> None:
        self.log.forget_reports(peer)
        self.leadership.link_reset(peer, now, out)

    def on_tick(self, now: int, out: Outbox) -> int | None:
        self._settled(self.log.recount(out), out)
        told = self.log.tick(now, out) if self.is_member() else None
        return earliest(self.leadership.tick(now, out), self._deadlines.run(now, out), told)

    def _sweep(self, now: int, out: Outbox) -> int:
        """Forget remote ACCEPTs of messages that the own group never took up (their leaders send them again) and late
        copies that the own leader has dropped."""
        period: int = _ABANDONED_RETRIES * self.options.retry_us
        self._drop(self.entries.abandoned(now - period, self.election.state is FOLLOWER), out)
        return now + period

    # -- for people ---------------------------------------------------------------------------------------------------

    def strict_groups_max(self) -> int | None:
        return 2 if self.quorums.leaders else 1

    def waits_for(self) -> tuple[GroupId, ...]:
        lowest = self._queue.lowest_proposed()
        entry = self.entries.get(lowest[1]) if lowest is not None else None
        if entry is None or entry.message is None:
            return ()
        return tuple(g for g in entry.message.destinations if g not in entry.accepts) or entry.message.destinations

    def role(self) -> str:
        return self.leadership.role()

    def describe(self) -> dict[str, Any]:
        return {
            "ballot": self.leadership.joined.text,
            "clock": self.clock.value,
            "pending": len(self._queue),
            "submitted": len(self._submissions),
            "entries": len(self.entries),
            "unsettled": self.log.unsettled,
        }

    def inspect(self) -> dict[str, Any]:
        blocked = self._queue.blockers()
        messages = {}
        for message_id, entry in self.entries.items():
            why = blocked.get(message_id, [])
            if entry.phase == COMMITTED and not entry.position and self.election.state is not LEADER:
                why = [{"leader": self.leadership.joined.leader}]
            messages[message_id.hex()] = entry.seen(why)
        return {**super().inspect(), "promised": list(self.election.promised), "messages": messages}
