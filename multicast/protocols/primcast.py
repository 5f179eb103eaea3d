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
    Want         process -> who acknowledged m                   -  (the payload never came; the answer is Copies)
    Asked        sender, follower -> destinations, primary       -  (parts.submissions; the answer is Lacked)
    Copies       sender -> all processes of the destinations     -  (the same: many STARTs of one batch, or lost ones)
    NewEpoch     candidate -> own group                          -
    Promise      process -> candidate                            the promised epoch
    NewState     new primary -> own group                        -
    Accept       process -> own group                            the epoch that it joined, its T, the clock
    Nack         process -> candidate or primary                 -  (a higher epoch exists)
    Heartbeat    primary -> own group                            the clock
    Fetch        follower -> primary                             -  (part of T was lost on the way)
    Refill       primary -> follower                             the clock
    Known        primary -> sender; process -> who asks          -  (m was delivered, at this timestamp)
    Returned     who lost its disk -> own group                  -  (parts.rejoin; the answer is Highest)
    Stable       process -> destination groups                   -  (parts.delivered)

Acks carry the clock, so a Bump leaves only if no Ack of the same batch tells its group. All that one batch acknowledges
to one set of destinations is one message. Without merging, k groups of n exchange kn + k^2 n^2 + bumps messages.

Deviations from the algorithms, with reasons:
1. Line 42 demands state FOLLOWER. A PROMISED process that has joined the epoch must take the primary's proposals too,
   or its T gets a hole and "longest T" may choose it. Here a proposal proves that a quorum has accepted the epoch (only
   a PRIMARY proposes), so the process becomes FOLLOWER by it. A heartbeat proves it as well.
2. Line 73 raises the clock without a word, and nobody may ever learn of it. Here every raise is told, by ACCEPT, Ack or
   Bump, in the batch in which it happens.
3. m counts as proposed only where its payload is; a process that hears of m and gets no START asks for it. A proposal
   carries a digest: all replicas of a group use the primary's copy of m, should copies with one id differ.
4. T has absolute places, and whatever tells a primary's clock tells T's length with it. A clock counts for `min-clock`
   of the leader once T has reached that length: the paper relies on FIFO channels that lose nothing, ours may be reset.
   A follower that finds its T short fetches the rest.
5. Lines 28-30 are kept by two numbers and two heaps. Given lines 28 and 29, line 30 asks only whether some other
   message of T is below: an undecided one with its highest stamp known so far, a decided one with its final timestamp.
6. A timestamp is (time, group that gave the maximum) instead of (time, id): unique, since a group decides one message
   per stamp, and rising in every group.
7. Positions are dense and equal in a group. Who missed deliveries gets them from a peer's journal; a candidate delivers
   all that any of its quorum has delivered before it computes T.
8. Garbage collection. m is settled when a quorum of each destination group durably holds its outcome (parts.delivered);
   then it leaves T. Safe, because by 7 every later primary of any of these groups has delivered it. A process whose T
   was replaced or refilled by one without m must not deliver beyond m's position on its own: states carry the `reach`,
   the highest position of what was dropped, and up to that it installs.
9. Late copies. After m's id was forgotten a copy of it is stamped anew; stamps of different copies must not make one
   timestamp. A stamp later than m's creation plus the window is *late*: whatever the others say, m will have no effect.
   So a group delivers what it has stamped late at its own stamp, alone, and what it has stamped in time only with
   stamps in time. (a) A group decides m in time at most once, and never after it decided it late: it stamps nothing
   that it knows as delivered, forgets m when its deliveries (so its clock) are beyond "in time", and a later primary
   keeps what was decided. So stamps in time are all of one copy, and old acknowledgements do no harm. (b) Where one
   group stamped in time and another decided late, m is *void*: the group begins a new epoch, whose candidate, having
   caught up, leaves m out of T if it was not delivered, to be stamped anew, late. This is safe: were m decided in time
   in all groups, the first group that decided it late did so after it had forgotten it, so m was settled, and the
   candidate, who has all that a quorum delivered, has it. Until then a void stamp blocks what is above it.
10. Crash-recovery: what a process acknowledges, promises, accepts or tells of its clock is on disk before; it counts
   its own word when it comes back through that lane. A restarted process is PROMISED until a primary or a quorum of
   ACCEPTs proves its epoch, and never leads in an epoch from before.
11. Repair. A process with an undelivered message of T tells its acknowledgement again to those whose own it lacks, and
   they answer, at the beginning of an epoch and now and then (parts.retries); a follower asks its primary about a START
   that nobody proposed, and the sender asks the destinations until it knows of the delivery (parts.submissions).
12. Lost disk: parts.rejoin. What others have concluded from a process p that then loses its disk stays true. A stamp
   decided, or an epoch accepted, with p's word is in the T of a quorum but for p, so in that of every later epoch, and
   p returns with such a T. `quorum-clock`: the same holds of a quorum's clocks, and the clock with which p returns is
   not below. But a clock that p told alone may be above the one it returns with, and must not be counted with what
   others tell later: they forget p's clocks when p asks (links are FIFO, so nothing older comes after that).
   `min-clock(p)` as a leader's: p proposes nothing in its old epochs any more. Settled: p may have been the first of
   its group to deliver m, and have said so; m is in p's T again then, or below its `reach`. Who tells another group of
   m has delivered it, and tells p so, or knows of a quorum without p's old word (parts.delivered, by_quorum).

Orderings relied on: FIFO from a primary to a follower between NEW-STATE and proposals; whatever is lost with a link is
found by place, position or time.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable
from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec

from multicast.parts import submissions
from multicast.parts.clock import Clock
from multicast.parts.delivered import DeliveredLog, Known, Stable
from multicast.parts.group_clocks import GroupClocks
from multicast.parts.inspection import seen
from multicast.parts.options import GroupOptions
from multicast.parts.pending import PendingQueue
from multicast.parts.portions import Assembly, portions
from multicast.parts.rejoin import Highest, Rejoin, Returned
from multicast.parts.retries import Retries, chunks, resendable
from multicast.parts.submissions import Asked, Copies, Lacked, Submissions
from multicast.parts.timer import LeaderTimer
from multicast.protocol import MulticastProtocol, Options, Outbox, PeerError, Saved, Specification
from multicast.types import AppMessage, Ballot, GroupId, MessageId, ProcessId, Timestamp, Topology, created_us

PRIMARY, FOLLOWER, CANDIDATE, PROMISED = "primary", "follower", "candidate", "promised"

_ENTRY_PREFIX = b"m"
_EPOCHS_KEY = b"b"
_STATE_KEY = b"c"
_FIRST_EPOCH = 1
_ABANDONED_RETRIES = 20
_NEVER = 1 << 63


class Vote(NamedTuple):
    """The sender's T holds message `id` at `place` (-1: delivered, place unknown), stamped `ts` in `epoch`. digest: of
    the payload, from a primary; empty otherwise."""

    id: MessageId
    place: int
    ts: int
    epoch: Ballot
    digest: bytes = b""


class Start(msgspec.Struct, array_like=True, tag=1, gc=False):
    """Please order this message; or: the payload that you want."""

    message: AppMessage


class Ack(msgspec.Struct, array_like=True, tag=2, gc=False):
    """ACKs of lines 39, 45 and 81. epoch: promised by the sender, its current one whenever it votes. clock: told to
    the own group. length: of the sender's T. position: its last delivery. again: tell me yours, and your clock."""

    epoch: Ballot
    clock: int
    length: int
    position: int
    votes: list[Vote]
    again: bool = False


class Bump(msgspec.Struct, array_like=True, tag=3, gc=False):
    """Line 50: promised to `epoch`, my clock is `clock`. length: of the sender's T."""

    epoch: Ballot
    clock: int
    length: int


class Want(msgspec.Struct, array_like=True, tag=4, gc=False):
    """I lack the payloads of these messages, which you have acknowledged."""

    ids: list[MessageId]


class EntryState(msgspec.Struct, array_like=True, gc=False):
    """A message in somebody's T; also its saved form. See `Vote`."""

    message: AppMessage
    place: int
    epoch: Ballot
    ts: int


class NewEpoch(msgspec.Struct, array_like=True, tag=5, gc=False):
    """Line 60: follow me in this epoch."""

    epoch: Ballot


class Promise(msgspec.Struct, array_like=True, tag=6, gc=False):
    """Line 64. joined: the sender's current epoch. length: of its T. position: its last delivery. reach: up to where
    its T lacks what is settled. A large T comes in portions, number `part` of `parts`."""

    epoch: Ballot
    joined: Ballot
    clock: int
    length: int
    position: int
    reach: int
    entries: list[EntryState]
    part: int
    parts: int


class NewState(msgspec.Struct, array_like=True, tag=7, gc=False):
    """Line 69: T of this epoch (for one who comes late, the primary's present one), in portions."""

    epoch: Ballot
    clock: int
    length: int
    reach: int
    entries: list[EntryState]
    part: int
    parts: int


class Accept(msgspec.Struct, array_like=True, tag=8, gc=False):
    """Line 74: I have joined this epoch. clock: raised by it, perhaps (deviation 2). length: of T."""

    epoch: Ballot
    clock: int
    length: int


class Nack(msgspec.Struct, array_like=True, tag=9, gc=False):
    """I have promised this higher epoch."""

    epoch: Ballot


class Heartbeat(msgspec.Struct, array_like=True, tag=10, gc=False):
    """The primary lives. clock, length, position: as in Ack. resigning: its wall clock is off, who can should lead."""

    epoch: Ballot
    clock: int
    length: int
    position: int
    resigning: bool = False


class Fetch(msgspec.Struct, array_like=True, tag=11, gc=False):
    """My T ends before place `length`, yours does not."""

    epoch: Ballot
    length: int


class Refill(msgspec.Struct, array_like=True, tag=12, gc=False):
    """What T holds from place `first` to `length`; what is not there is settled, up to `reach`. In portions."""

    epoch: Ballot
    first: int
    clock: int
    length: int
    reach: int
    entries: list[EntryState]
    part: int
    parts: int


class PrimCastOptions(GroupOptions, kw_only=True, forbid_unknown_fields=True):
    """See GroupOptions. heartbeat_us is also how long a payload may be late before it is asked for."""


_FROM_ANYWHERE = (Ack, Start, Stable, Known, Want, *submissions.MESSAGES)
_FOR_AMNESIACS = (Start, Copies, Lacked, Known, Stable, Heartbeat, NewState, Returned, Highest)


class _Entry:
    """A message that is not settled.

    epoch, place, ts: as in T; None, -1 and 0 if it is not there. acks: (group, epoch, stamp) -> who acknowledged it.
    locals: group -> lowest decided stamp; of the own group that in T. final: once all that it needs are decided.
    heard: who acknowledged it last, to be asked for the payload. position: of its delivery here, 0 before.
    """

    __slots__ = (
        "acks", "digest", "epoch", "final", "heard", "id", "locals", "message", "place", "position", "seen_at", "ts",
    )  # fmt: skip

    def __init__(self, message_id: MessageId, now: int):
        self.id = message_id
        self.message: AppMessage | None = None
        self.digest = b""
        self.epoch: Ballot | None = None
        self.place = -1
        self.ts = 0
        self.acks: dict[tuple[GroupId, Ballot, int], set[ProcessId]] = {}
        self.locals: dict[GroupId, int] = {}
        self.final: Timestamp | None = None
        self.heard: ProcessId | None = None
        self.position = 0
        self.seen_at = now

    def take(self, message: AppMessage) -> None:
        self.message = message
        self.digest = _digest(message)

    def state(self) -> EntryState:
        assert self.message is not None and self.epoch is not None
        return EntryState(self.message, self.place, self.epoch, self.ts)


def _portions(entries: Iterable[_Entry], portion_bytes: int) -> list[list[EntryState]]:
    """Those of these entries that are in T."""
    states = (e.state() for e in entries if e.epoch is not None and e.message is not None)
    return portions(states, lambda state: len(state.message.payload), portion_bytes)


def _digest(message: AppMessage) -> bytes:
    groups = b"".join(g.to_bytes(2, "big") for g in message.destinations)
    return blake2b(message.payload + groups, digest_size=8).digest()


_encode = msgspec.msgpack.Encoder().encode
_decode_entry = msgspec.msgpack.Decoder(EntryState).decode
_decode_epochs = msgspec.msgpack.Decoder(tuple[Ballot, Ballot]).decode
_decode_state = msgspec.msgpack.Decoder(tuple[int, int, int]).decode
_decode_note = msgspec.msgpack.Decoder(tuple[Ballot, int]).decode


class PrimCast(MulticastProtocol):
    """One process. Names follow Algorithm 1; `joined` is its E_cur, `promised` its E_prom."""

    specification = Specification(
        name="primcast",
        summary="PrimCast: every replica delivers after three message delays, survives a minority of every group",
        paper="Pacheco, Coelho, Pedone, PrimCast: A Latency-Efficient Atomic Multicast, Middleware 2023",
        options=PrimCastOptions,
        messages=(
            Start, Ack, Bump, Want, NewEpoch, Promise, NewState, Accept, Nack, Heartbeat, Fetch, Refill, Known, Stable,
            Returned, Highest, *submissions.MESSAGES,
        ),
        housekeeping=(
            NewEpoch, Promise, NewState, Accept, Nack, Heartbeat, Fetch, Refill, Known, Stable, Returned, Highest,
            *submissions.MESSAGES,
        ),
        fault_tolerant=True,
        survives_lost_disk=True,
        genuine=True,
        strict_groups_max=1,
        latency=(3, 3),
    )  # fmt: skip

    def __init__(self, self_id: ProcessId, topology: Topology, options: Options, rng: random.Random):
        super().__init__(self_id, topology, options, rng)
        self.members = topology.groups[self.group]
        self.quorum = topology.quorum(self.group)
        self.status = PROMISED
        self.clock = Clock(self.options.clock)
        self.entries: dict[MessageId, _Entry] = {}
        self.log = DeliveredLog(self_id, topology, self.options.stability_us, self.options.dedup_window_us, True)
        self.joined = self.promised = Ballot(_FIRST_EPOCH, self.members[0])
        self.leaders: dict[GroupId, Ballot] = {g: Ballot(_FIRST_EPOCH, ps[0]) for g, ps in topology.groups.items()}
        self.length = 0
        self.reach = 0
        self._t: dict[int, _Entry] = {}
        self._queue = PendingQueue()
        self._proposals: dict[int, Vote] = {}
        self._proposable: list[MessageId] = []
        self._acks: dict[tuple[GroupId, ...], list[Vote]] = {}
        self._replies: dict[ProcessId, list[Vote]] = {}
        self._told_clock = 0
        self._saved_state = (0, 0, 0)
        self.clocks = GroupClocks(self.members, self.quorum, self.joined)
        self._leader_before = (0, 0)
        self._stuck = False
        self._peers = deque(p for p in self.members if p != self_id)
        self._highest = self.promised
        self.rejoin = Rejoin(self_id, self.members, self.options.retry_us, rng)
        self._held_state: NewState | None = None
        self._timer = LeaderTimer(self.options.election_timeout_us, rng)
        self._votes: dict[ProcessId, Promise] | None = None
        self._assembly: Assembly[EntryState] = Assembly()
        self._accepted: set[ProcessId] = set()
        self._accepted_epoch = self.promised
        self._promised_at = 0
        self._next_heartbeat = 0
        self._wanted: Retries[MessageId] = Retries(self.options.heartbeat_us, rng)
        self._retries: Retries[MessageId] = Retries(self.options.retry_us, rng)
        self._submissions = Submissions(
            topology, self._entry_points, self.options.retry_us, rng, delivered_at=self._known_delivered_at,
            lacks=self._lacks_start, take=self._take_start, payload=self._payload, resent=self._on_resent,
        )  # fmt: skip
        self.handlers = {**self._submissions.handlers}
        self._sweep_at = 0
        self._wake = 0
        self._handlers: dict[type, Callable[[ProcessId, Any, int, Outbox], None]] = {
            Start: self._on_start_message, Ack: self._on_ack, Bump: self._on_bump, Want: self._on_want,
            NewEpoch: self._on_new_epoch, Promise: self._on_promise, NewState: self._on_new_state,
            Accept: self._on_accept, Nack: self._on_nack, Heartbeat: self._on_heartbeat, Fetch: self._on_fetch,
            Refill: self._on_refill, Known: self._on_known, Stable: self._on_stable_message,
            Returned: self._on_returned, Highest: self._on_highest,
        }  # fmt: skip

    # -- life ---------------------------------------------------------------------------------------------------------

    def on_start(self, saved: Saved, now: int, out: Outbox) -> None:
        """Line 1; or what was on disk."""
        values = saved.values
        for key, value in values.items():
            if key[:1] == _ENTRY_PREFIX:
                self._load(_decode_entry(value), now)
        self.log.restore(values, saved.position, self._destinations)
        if _STATE_KEY in values:
            self._saved_state = _decode_state(values[_STATE_KEY])
            clock, self.length, self.reach = self._saved_state
            self.clock.advance(clock)
        self.clock.advance(self.log.timestamp.time)
        self._timer.restart(now)
        if self.rejoin.restore(saved, now, out):
            self.status = PROMISED
        elif _EPOCHS_KEY in values:
            self.promised, self.joined = _decode_epochs(values[_EPOCHS_KEY])
            self._highest = self.leaders[self.group] = self._accepted_epoch = self.promised
            if self.joined.leader == self.self_id:
                self._timer.restart(now, 0.1)
        else:
            self._save_epochs(out)
            self.status = PRIMARY if self.joined.leader == self.self_id else FOLLOWER
        self.clocks.begin(self.joined, self.length, 0)
        for entry in self.entries.values():
            self._restore(entry, now)

    def _load(self, state: EntryState, now: int) -> None:
        entry = self.entries[state.message.id] = _Entry(state.message.id, now)
        entry.take(state.message)
        entry.place, entry.epoch, entry.ts = state.place, state.epoch, state.ts
        if entry.place >= 0:
            self._t[entry.place] = entry

    def _restore(self, entry: _Entry, now: int) -> None:
        known = self.log.known(entry.id)
        if known is not None and entry.ts <= known[0].time:
            entry.final, entry.position = known
        else:
            self._refresh(entry, now)

    def _destinations(self, message_id: MessageId, delivered_at: Timestamp) -> tuple[GroupId, ...] | None:
        entry = self.entries.get(message_id)
        if entry is None or entry.message is None or entry.ts > delivered_at.time:
            return None
        return self._needs(entry.message, delivered_at.time)

    def _save_epochs(self, out: Outbox) -> None:
        out.put(_EPOCHS_KEY, _encode((self.promised, self.joined)))

    def _save_entry(self, entry: _Entry, out: Outbox) -> None:
        out.put(_ENTRY_PREFIX + entry.id, _encode(entry.state()))

    def _save_state(self, out: Outbox) -> None:
        """Clock, T's length and reach, before anything of this batch is told."""
        state = (self.clock.value, self.length, self.reach)
        if state != self._saved_state:
            self._saved_state = state
            out.put(_STATE_KEY, _encode(state))

    # -- dispatch -----------------------------------------------------------------------------------------------------

    def on_message(self, sender: ProcessId, message: Any, now: int, out: Outbox) -> None:
        kind = type(message)
        if self.rejoin.amnesiac and kind not in _FOR_AMNESIACS:
            return
        if kind not in _FROM_ANYWHERE and self.topology.group_of[sender] != self.group:
            raise PeerError(f"{kind.__name__} from group {self.topology.group_of[sender]}")
        if kind in self.handlers:
            super().on_message(sender, message, now, out)
        else:
            self._handlers[kind](sender, message, now, out)

    # -- START (lines 31-34) ------------------------------------------------------------------------------------------

    def on_submit(self, message: AppMessage, now: int, out: Outbox) -> None:
        """Line 31."""
        self.refuse_beyond_limit(max(len(self._queue), len(self._submissions)))
        if not self.log.known(message.id):
            self._submissions.submit(message, now)
            self._wake_by(now + self.options.retry_us)

    def _entry_points(self, message: AppMessage) -> tuple[ProcessId, ...]:
        return self.topology.members(message.destinations)

    def _on_start_message(self, sender: ProcessId, start: Start, now: int, out: Outbox) -> None:
        """Line 33."""
        self._take_start(sender, start.message, now, out)

    def _take_start(self, sender: ProcessId, message: AppMessage, now: int, out: Outbox) -> None:
        groups = message.destinations
        if self.group not in groups or any(g not in self.topology.groups for g in groups):
            raise PeerError(f"a message for groups {groups} at group {self.group}")
        entry = self.entries.get(message.id)
        known = self.log.known(message.id)
        wanted = entry is not None and entry.message is None  # perhaps for a later copy, which T has
        if (known is not None and not wanted) or (entry is not None and entry.position):
            if known is not None and self.status is PRIMARY and sender != self.self_id:
                out.send((sender,), Known(message.id, known[0]))
            return
        entry = self._pending(message.id, now)
        if entry.message is None:
            entry.take(message)
            self._wanted.discard(message.id)
            if self.status is PRIMARY:
                self._proposable.append(message.id)
            self._refresh(entry, now)
            self._retry_later(entry, now)

    def _on_want(self, sender: ProcessId, want: Want, now: int, out: Outbox) -> None:
        """Somebody heard of m and never got its START."""
        found = []
        for message_id in want.ids:
            message = self._payload(message_id)
            if message is not None:
                found.append(message)
            elif message_id not in self.entries and (known := self.log.known(message_id)) is not None:
                out.send((sender,), Known(message_id, known[0]))
        copies = resendable(found)
        if copies:
            out.send((sender,), Copies(copies))

    def _payload(self, message_id: MessageId) -> AppMessage | None:
        entry = self.entries.get(message_id)
        return entry.message if entry is not None else None

    def _known_delivered_at(self, message_id: MessageId) -> Timestamp | None:
        """At the primary: when it delivered a message of which it has no later copy."""
        entry, known = self.entries.get(message_id), self.log.known(message_id)
        delivered = self.status is PRIMARY and known is not None and (entry is None or entry.position)
        return known[0] if delivered and known is not None else None

    def _lacks_start(self, message_id: MessageId) -> bool:
        entry = self.entries.get(message_id)
        return self.log.known(message_id) is None if entry is None else not entry.position and entry.message is None

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
            if self.log.known(message_id) is not None:
                continue  # what is known as delivered is never stamped (deviation 9)
            vote = Vote(message_id, self.length, self.clock.stamp(self.real_clock(now)), self.joined)
            self._place(entry, vote, now, out)
            self._extend(self.length + 1, vote.ts)
            self._acknowledge(entry)

    def _place(self, entry: _Entry, vote: Vote, now: int, out: Outbox) -> None:
        """Put a message into T: lines 38 and 43. What T had of it before is settled, and will be installed."""
        if entry.epoch is not None:
            self._queue.remove(entry.id)
            self._t.pop(entry.place, None)
            entry.final = None
        entry.place, entry.epoch, entry.ts = vote.place, vote.epoch, vote.ts
        entry.locals.pop(self.group, None)
        if len(entry.acks.get(self._ack_key(self.group, vote.epoch, vote.ts), ())) >= self.quorum:
            entry.locals[self.group] = vote.ts
        if vote.place >= 0:
            self._t[vote.place] = entry
        self._save_entry(entry, out)
        self._refresh(entry, now)

    def _extend(self, length: int, ts: int) -> None:
        """T has become longer; its last stamp is a clock of the leader's."""
        self.length = max(self.length, length)
        self.clocks.extend(self.length, ts)

    def _acknowledge(self, entry: _Entry) -> None:
        assert entry.message is not None
        self._acks.setdefault(entry.message.destinations, []).append(self._vote(entry))

    def _vote(self, entry: _Entry) -> Vote:
        assert entry.epoch is not None
        digest = entry.digest if self.status is PRIMARY else b""
        return Vote(entry.id, entry.place, entry.ts, entry.epoch, digest)

    def _keep_proposal(self, vote: Vote) -> None:
        if len(self._proposals) < self.options.early_max:
            self._proposals[vote.place] = vote

    def _on_ack(self, sender: ProcessId, ack: Ack, now: int, out: Outbox) -> None:
        """Lines 40-50."""
        group = self.topology.group_of[sender]
        own = group == self.group
        if ack.epoch > self.leaders[group] and not own:
            self._learn_leader(group, ack.epoch)
        proposing = own and sender == ack.epoch.leader and ack.epoch == self.joined == self.promised
        for vote in ack.votes:
            if proposing and vote.digest and vote.place >= self.length:
                self._keep_proposal(vote)
            if not own:
                self._advance_clock(vote.ts)
            self._on_vote(sender, group, vote, now)
        if own:
            self._on_report(sender, ack.epoch, ack.clock, ack.length)
            if self._stuck and ack.position > self.log.position:
                out.catch_up(sender)
        if ack.again:
            self._reply(sender, ack.votes, out)

    def _on_vote(self, sender: ProcessId, group: GroupId, vote: Vote, now: int) -> None:
        """Line 9, incrementally."""
        own = group == self.group
        if self._is_past(vote.id, vote.ts) or (not own and self.log.known(vote.id) is not None):
            return
        entry = self._pending(vote.id, now)
        if entry.message is None:
            entry.heard = sender
            self._want_later(entry, now)
        elif group not in entry.message.destinations:
            return
        if entry.locals.get(group, _NEVER) <= vote.ts:
            return
        self._retries.answered(vote.id)
        key = self._ack_key(group, vote.epoch, vote.ts)
        held = entry.acks.get(key)
        if held is None:
            held = entry.acks[key] = set()
        held.add(sender)
        if len(held) >= self.topology.quorum(group) and (not own or entry.ts == vote.ts):
            entry.locals[group] = vote.ts
            self._refresh(entry, now)

    def _ack_key(self, group: GroupId, epoch: Ballot, ts: int) -> tuple[GroupId, Ballot, int]:
        """Line 10: acknowledgements count together if they are of one epoch."""
        return group, epoch, ts

    def _refresh(self, entry: _Entry, now: int) -> None:
        """Lines 12 and 19: what is known of m's final timestamp has changed."""
        if entry.position or entry.message is None or entry.epoch is None:
            return
        needs = self._needs(entry.message, entry.ts)
        limit = self._limit(entry.id) if len(needs) > 1 else _NEVER - 1
        known = [Timestamp(entry.locals[g], g) for g in needs if entry.locals.get(g, _NEVER) <= limit]
        if len(known) == len(needs):
            entry.final = max(known)
            self._queue.commit(entry.id, entry.final)
        else:
            self._queue.propose(entry.id, max([Timestamp(entry.ts, self.group), *known]))
            self._retry_later(entry, now)

    def _reply(self, sender: ProcessId, votes: list[Vote], out: Outbox) -> None:
        """Deviation 11: what this process has acknowledged, once more."""
        replies = self._replies.setdefault(sender, [])
        confirmed = self.status in (PRIMARY, FOLLOWER)
        for vote in votes:
            entry = self.entries.get(vote.id)
            if entry is None:
                known = self.log.known(vote.id)
                if known is not None:
                    out.send((sender,), Known(vote.id, known[0]))
            elif entry.epoch is not None and (confirmed or entry.position):
                replies.append(self._vote(entry))

    def _append_proposals(self, now: int, out: Outbox) -> None:
        """Lines 42-45, in the order of T."""
        while (vote := self._proposals.get(self.length)) is not None:
            if self._is_past(vote.id, vote.ts):
                self._skip_delivered(vote)
                continue
            entry = self._pending(vote.id, now)
            if entry.epoch is not None:
                out.catch_up(self.joined.leader)
                return
            if entry.message is not None and entry.digest != vote.digest:
                entry.message = None
            if entry.message is None:
                entry.heard = self.joined.leader
                self._want_later(entry, now)
                return
            self._confirm(now)
            del self._proposals[vote.place]
            self._place(entry, vote, now, out)
            self._advance_clock(vote.ts)
            self._extend(vote.place + 1, vote.ts)
            self._acknowledge(entry)

    def _skip_delivered(self, vote: Vote) -> None:
        """The next place of T holds what this process has delivered already."""
        del self._proposals[vote.place]
        self._replace(vote.id, vote.place)
        self._advance_clock(vote.ts)
        self._extend(vote.place + 1, vote.ts)

    def _advance_clock(self, to: int) -> None:
        """Lines 44, 49 and 73; `end_batch` tells of it."""
        self.clock.advance(to)

    def _on_bump(self, sender: ProcessId, bump: Bump, now: int, out: Outbox) -> None:
        self._on_report(sender, bump.epoch, bump.clock, bump.length)

    def _on_report(self, sender: ProcessId, epoch: Ballot, clock: int, length: int) -> None:
        """Line 51: a process of the own group, promised to `epoch`, has this clock."""
        self.clocks.report(sender, epoch, clock, length)

    # -- the end of a batch -------------------------------------------------------------------------------------------

    def end_batch(self, now: int, out: Outbox) -> None:
        """Propose, append, and send the batch's acknowledgements and at most one bump; then deliver."""
        self._submissions.end_batch(Start, out)
        if self._proposals:
            self._append_proposals(now, out)
        if self._proposable and self.status is PRIMARY:
            self._propose(now, out)
        self._deliver_ready(now, out)
        self.log.end_batch(out)
        self._save_state(out)
        if self.rejoin.amnesiac:
            return
        if self._acks:
            self._tell_clock()
            for groups, votes in self._acks.items():
                self._send_acks(self.topology.members(groups), self._ack(votes), out)
            self._acks.clear()
        elif self._must_tell_clock():
            self._tell_clock()
            out.send_durable(self.members, Bump(self.promised, self._told_clock, self.length))
        for peer, votes in self._replies.items():
            if votes or self.topology.group_of[peer] == self.group:
                self._send_acks((peer,), self._ack(votes), out)
        self._replies.clear()

    def _ack(self, votes: list[Vote], again: bool = False) -> Ack:
        return Ack(self.promised, self._told_clock, self.length, self.log.position, votes, again)

    def _send_acks(self, to: tuple[ProcessId, ...], ack: Ack, out: Outbox) -> None:
        out.send_durable(to, ack)

    def _must_tell_clock(self) -> bool:
        return self.clock.value > self._told_clock

    def _tell_clock(self) -> None:
        self._told_clock = self.clock.value

    # -- delivery (lines 26-30, 53-56) --------------------------------------------------------------------------------

    def _deliver_ready(self, now: int, out: Outbox) -> None:
        if self.status not in (PRIMARY, FOLLOWER) or self.log.position < self.reach:
            return
        horizon = self._horizon()
        while (due := self._queue.pop_up_to(horizon)) is not None:
            final, message_id = due
            entry = self.entries[message_id]
            if self.options.dedup_window_us and final <= self.log.timestamp:
                self._forget(entry, out)  # this process has delivered it and forgotten that
                continue
            message = entry.message
            if entry.epoch is None or message is None or entry.ts != entry.locals[self.group]:
                raise AssertionError(f"{message_id.hex()} is decided at {final}, but T has it at {entry.ts}")
            self._advance_clock(final.time)
            out.deliver(message, final, note=_encode((entry.epoch, entry.ts)))
            self._delivered(entry, message, final, out)

    def _horizon(self) -> int:
        """Lines 28 and 29: nothing new will be stamped up to here."""
        return self.clocks.horizon

    def _delivered(self, entry: _Entry, message: AppMessage, final: Timestamp, out: Outbox) -> None:
        """Common to a delivery and an installation."""
        entry.final = final
        entry.position = self.log.add(entry.id, self._needs(message, final.time), final, out)
        entry.acks.clear()
        entry.locals.clear()
        self._stuck = False
        self._submissions.remove(entry.id)
        self._retries.discard(entry.id)
        outside = self.topology.group_of.get(message.origin, self.group) not in message.destinations
        if outside and self.status is PRIMARY and self.group == message.destinations[0]:
            out.send((message.origin,), Known(entry.id, final))

    def on_install(
        self, position: int, message: AppMessage, timestamp: Timestamp, note: bytes, now: int, out: Outbox
    ) -> None:
        entry = self.entries.get(message.id)
        self._advance_clock(timestamp.time)
        if entry is not None and not entry.position and self._is_new_copy(entry.ts, timestamp):
            self.log.add(message.id, self._needs(message, timestamp.time), timestamp, out)  # T has a later copy
            self.reach = max(self.reach, position)
        else:
            entry = self._pending(message.id, now)
            self._queue.remove(message.id)
            entry.take(message)
            entry.epoch, entry.ts = _decode_note(note)
            self._save_entry(entry, out)
            self._delivered(entry, message, timestamp, out)
        if self.log.position != position:
            raise AssertionError(f"installed delivery {position} as {self.log.position}")
        if self._votes is not None:
            self._compute_state(now, out)
        self._rejoin_if_caught_up(now, out)

    # -- late copies, what is lost (deviation 9) ----------------------------------------------------------------------

    def _limit(self, message_id: MessageId) -> int:
        """The last stamp of this message that is not late."""
        window: int = self.options.dedup_window_us
        return created_us(message_id) + window if window else _NEVER - 1

    def _needs(self, message: AppMessage, ts: int) -> tuple[GroupId, ...]:
        """The groups whose stamps make the final timestamp where the own one is `ts`."""
        return message.destinations if ts <= self._limit(message.id) else (self.group,)

    def _is_void(self, message_id: MessageId, ts: int) -> bool:
        """Whether another group has decided the message late, while the own stamp was in time."""
        entry = self.entries.get(message_id)
        if entry is None or not self.options.dedup_window_us:
            return False
        limit = self._limit(message_id)
        return ts <= limit and any(other > limit for group, other in entry.locals.items() if group != self.group)

    def _is_new_copy(self, ts: int, final: Timestamp) -> bool:
        """Whether a stamp of the own group is from after it forgot the delivery at `final`."""
        window: int = self.options.dedup_window_us
        return window > 0 and ts > final.time + 2 * window

    def _is_past(self, message_id: MessageId, ts: int) -> bool:
        """Whether the message of this stamp was delivered here, as far as this process can still know."""
        known = self.log.known(message_id)
        return known is not None and not self._is_new_copy(ts, known[0])

    def _replace(self, message_id: MessageId, place: int) -> None:
        """A delivered message has this place in T."""
        entry = self.entries.get(message_id)
        if entry is not None and entry.position and place >= 0:
            entry.place = place
            self._t[place] = entry

    def _pending(self, message_id: MessageId, now: int) -> _Entry:
        """The entry of a message that is not delivered; a new one also if an earlier copy of it was. (Then that one is
        settled: the group stamps again only what it has forgotten.)"""
        old = self.entries.get(message_id)
        if old is not None and not old.position:
            return old
        entry = self.entries[message_id] = _Entry(message_id, now)
        if old is not None:
            self.reach = max(self.reach, old.position)
            self._t.pop(old.place, None)
            if old.message is not None:
                entry.take(old.message)
        return entry

    def _on_known(self, sender: ProcessId, known: Known, now: int, out: Outbox) -> None:
        """The sender of a message need not repeat it. Who holds it as undelivered is behind, or has forgotten it; or
        that other group has decided it late."""
        self._submissions.remove(known.id)
        entry = self.entries.get(known.id)
        group = self.topology.group_of[sender]
        if entry is None or entry.position or self._is_new_copy(entry.ts, known.final):
            return
        if group != self.group and entry.message is not None and known.final > self.log.timestamp:
            self._learn_final(entry, group, known.final)
            self._refresh(entry, now)
        if known.final.time > self._limit(known.id) and group != self.group:
            return
        if entry.epoch is None or known.final <= self.log.timestamp:
            self._forget(entry, out)
        elif group == self.group:
            out.catch_up(sender)
        elif len(self.members) > 1:
            self._peers.rotate(-1)  # one of them has delivered it, too
            out.catch_up(self._peers[0])

    def _learn_final(self, entry: _Entry, group: GroupId, final: Timestamp) -> None:
        """Another group has delivered this message: late, for itself, or at what all have decided."""
        assert entry.message is not None
        limit = self._limit(entry.id)
        self._advance_clock(final.time)
        if final.time > limit:
            entry.locals.setdefault(group, final.time)
            return
        for other in entry.message.destinations:
            if other != self.group and entry.locals.get(other, _NEVER) > limit:
                entry.locals[other] = final.time if other == final.tiebreak else 0

    def _forget(self, entry: _Entry, out: Outbox) -> None:
        """Whatever this undelivered message was, nobody needs it here."""
        self._queue.remove(entry.id)
        self._t.pop(entry.place, None)
        del self.entries[entry.id]
        out.delete(_ENTRY_PREFIX + entry.id)

    def _want_later(self, entry: _Entry, now: int) -> None:
        if self._wanted.add(entry.id, now):
            self._wake_by(now + self.options.heartbeat_us)

    def _retry_later(self, entry: _Entry, now: int) -> None:
        if self._retries.add(entry.id, now):
            self._wake_by(now + self.options.retry_us)

    # -- primary change (lines 57-81) ---------------------------------------------------------------------------------

    def _stand(self, now: int, out: Outbox) -> None:
        """Lines 57-60, with the own promise before anybody is asked."""
        self._promise(Ballot(max(self.promised.number, self._highest.number) + 1, self.self_id), now, out)
        if self._peers:
            out.send_durable(tuple(self._peers), NewEpoch(self.promised))

    def _on_new_epoch(self, sender: ProcessId, message: NewEpoch, now: int, out: Outbox) -> None:
        """Line 61."""
        epoch = message.epoch
        if epoch.leader != sender:
            raise PeerError("NEW-EPOCH of somebody else's epoch")
        if epoch <= self.promised:
            out.send((sender,), Nack(self.promised))
            return
        self._promise(epoch, now, out)

    def _promise(self, epoch: Ballot, now: int, out: Outbox) -> None:
        """Lines 62-64."""
        mine = epoch.leader == self.self_id
        self.status = CANDIDATE if mine else PROMISED
        self.promised = epoch
        self._highest = max(self._highest, epoch)
        self._promised_at = now
        self._timer.restart(now)
        self._votes = {} if mine else None
        self._assembly.clear()
        self._proposable.clear()
        self._proposals.clear()
        self._save_epochs(out)
        self._save_state(out)
        parts = _portions(self.entries.values(), self.options.portion_bytes)
        for part, entries in enumerate(parts):
            promise = Promise(
                epoch, self.joined, self.clock.value, self.length, self.log.position, self.reach, entries, part,
                len(parts),
            )  # fmt: skip
            out.send_durable((epoch.leader,), promise)

    def _on_promise(self, sender: ProcessId, promise: Promise, now: int, out: Outbox) -> None:
        """Line 65; a process that promises late gets the present state."""
        if promise.epoch != self.promised or self.status not in (CANDIDATE, PRIMARY):
            return
        entries = self._assembly.add(sender, promise.part, promise.parts, promise.entries)
        if entries is None:
            return
        promise.entries = entries
        if self._votes is not None:
            self._votes[sender] = promise
            self._compute_state(now, out)
        elif sender != self.self_id:
            self._send_new_state((sender,), out)

    def _compute_state(self, now: int, out: Outbox) -> None:
        """Lines 66-69, after catching up with everything that a voter has delivered (deviation 7)."""
        votes = self._votes
        if votes is None or len(votes) < self.quorum:
            return
        ahead = max(votes, key=lambda p: votes[p].position)
        if votes[ahead].position > self.log.position:
            out.catch_up(ahead)
            self._wake_by(now + self.options.heartbeat_us)
            return
        self._votes = None
        latest = self._choose(votes)
        self._advance_clock(max(vote.clock for vote in votes.values()))
        self.reach = max(self.reach, *(vote.reach for vote in votes.values()))
        states = [s for s in latest.entries if not self._is_void(s.message.id, s.ts)]
        self._adopt(states, latest.length, 0, now, out)
        self._send_new_state(tuple(p for p in self.members if p != self.self_id), out)
        self._send_accept(out)

    def _choose(self, votes: dict[ProcessId, Promise]) -> Promise:
        """Lines 66 and 67: the longest T of the highest current epoch."""
        return max(votes.values(), key=lambda vote: (vote.joined, vote.length))

    def _send_new_state(self, to: tuple[ProcessId, ...], out: Outbox) -> None:
        parts = _portions(self.entries.values(), self.options.portion_bytes)
        for part, entries in enumerate(parts):
            state = NewState(self.joined, self.clock.value, self.length, self.reach, entries, part, len(parts))
            out.send(to, state)

    def _adopt(self, states: list[EntryState], length: int, clock: int, now: int, out: Outbox) -> None:
        """Lines 71 and 72: this T, but what was delivered here stays."""
        self.joined = self.promised
        self.leaders[self.group] = self.joined
        self.length = length
        self._t.clear()
        self._queue = PendingQueue()
        self._proposals.clear()
        given = {s.message.id for s in states}
        for entry in list(self.entries.values()):
            entry.place = -1
            if not entry.position and entry.epoch is not None:
                entry.epoch, entry.ts, entry.final = None, 0, None
                entry.locals.pop(self.group, None)
                if entry.id not in given:
                    out.delete(_ENTRY_PREFIX + entry.id)
        for state in states:
            self._take(state, now, out)
        self.clocks.begin(self.joined, self.length, clock)
        self._leader_before = (0, 0)
        self._save_epochs(out)

    def _take(self, state: EntryState, now: int, out: Outbox) -> None:
        """A place of somebody else's T."""
        message_id = state.message.id
        if self._is_past(message_id, state.ts):
            self._replace(message_id, state.place)
            return
        entry = self._pending(message_id, now)
        entry.take(state.message)
        self._place(entry, Vote(message_id, state.place, state.ts, state.epoch), now, out)

    def _on_new_state(self, sender: ProcessId, state: NewState, now: int, out: Outbox) -> None:
        """Lines 70-74."""
        if self.rejoin.amnesiac:
            if not self.rejoin.may_join(state.epoch):
                return
        elif self.status is not PROMISED or self.promised != state.epoch or self.joined == state.epoch:
            return
        if sender != state.epoch.leader:
            raise PeerError("NEW-STATE of somebody else's epoch")
        entries = self._assembly.add(sender, state.part, state.parts, state.entries)
        if entries is None:
            return
        state.entries = entries
        if self.rejoin.amnesiac:
            self._held_state = state
            out.catch_up(sender)
            self._rejoin_if_caught_up(now, out)
        else:
            self._join(state, now, out)

    def _join(self, state: NewState, now: int, out: Outbox) -> None:
        """Lines 71-74."""
        self._advance_clock(state.clock)
        self.reach = max(self.reach, state.reach)
        self._adopt(state.entries, state.length, state.clock, now, out)
        self._timer.restart(now)
        self._wake_by(now)
        self._send_accept(out)
        self._confirm_by_quorum(now)

    def _send_accept(self, out: Outbox) -> None:
        """Line 74, and the clock of line 73 (deviation 2)."""
        self._save_state(out)
        self._tell_clock()
        out.send_durable(self.members, Accept(self.joined, self._told_clock, self.length))

    def _on_accept(self, sender: ProcessId, accept: Accept, now: int, out: Outbox) -> None:
        """Lines 75 and 76."""
        self._on_report(sender, accept.epoch, accept.clock, accept.length)
        if accept.epoch > self._accepted_epoch:
            self._accepted_epoch = accept.epoch
            self._accepted = set()
        if accept.epoch == self._accepted_epoch:
            self._accepted.add(sender)
            self._confirm_by_quorum(now)

    def _confirm_by_quorum(self, now: int) -> None:
        if self._accepted_epoch == self.joined and len(self._accepted) >= self.quorum:
            self._confirm(now)

    def _confirm(self, now: int) -> None:
        """Lines 77-81: a quorum has accepted the epoch."""
        if self.joined != self.promised or self.status in (PRIMARY, FOLLOWER):
            return
        if self.status is CANDIDATE:
            self.status = PRIMARY
            self._next_heartbeat = self._wake = now
            self._proposable = [e.id for e in self.entries.values() if e.epoch is None and e.message is not None]
        elif self.joined.leader != self.self_id:
            self.status = FOLLOWER
        else:
            return
        for entry in self.entries.values():
            if entry.epoch is None or entry.position:
                continue
            if self.self_id not in entry.acks.get((self.group, entry.epoch, entry.ts), ()):
                self._acknowledge(entry)
        self._told_clock = 0
        self._retries.hurry()
        self._wake = now

    def _learn_leader(self, group: GroupId, epoch: Ballot) -> None:
        if epoch.leader not in self.topology.groups[group]:
            raise PeerError(f"process {epoch.leader} does not belong to group {group}")
        self.leaders[group] = epoch

    def _on_nack(self, sender: ProcessId, nack: Nack, now: int, out: Outbox) -> None:
        """Wait a little for the process of that epoch to lead; then stand against it."""
        if nack.epoch > self._highest:
            self._highest = nack.epoch
            self._timer.restart(now, 0.3)
            self._wake_by(self._timer.deadline)

    def _on_heartbeat(self, sender: ProcessId, heartbeat: Heartbeat, now: int, out: Outbox) -> None:
        epoch = heartbeat.epoch
        if epoch.leader != sender:
            raise PeerError("a heartbeat of somebody else's epoch")
        if self.rejoin.amnesiac:
            self.leaders[self.group] = epoch
            if heartbeat.position > self.log.position:
                out.catch_up(sender)
        elif epoch < self.promised:
            out.send((sender,), Nack(self.promised))
        elif epoch == self.joined:
            self._timer.heard(now, heartbeat.resigning)
            if heartbeat.resigning:
                self._wake_by(self._timer.deadline)
            self._confirm(now)
            self._on_report(sender, epoch, heartbeat.clock, heartbeat.length)
            length, position = self._leader_before
            if length > self.length:
                out.send((sender,), Fetch(epoch, self.length))
            if max(position, self.reach) > self.log.position:
                out.catch_up(sender)
            self._leader_before = (heartbeat.length, heartbeat.position)
        elif epoch > self.promised or now >= self._promised_at + self.options.retry_us:
            # A primary that this process missed the election of, or whose NEW-STATE was lost: promise late, get its T.
            self._promise(epoch, now, out)

    def _on_returned(self, sender: ProcessId, message: Returned, now: int, out: Outbox) -> None:
        """Deviation 12."""
        self.clocks.forget(sender)
        self.log.forget_marks(sender)
        bound = self.rejoin.on_returned(sender, message, self.promised, self.log.position, out)
        if bound is not None and self.status is PRIMARY:
            if self.joined > bound:
                self._send_new_state((sender,), out)
            else:
                self._stand(now, out)

    def _on_highest(self, sender: ProcessId, answer: Highest, now: int, out: Outbox) -> None:
        self.rejoin.on_highest(sender, answer, now)

    def _rejoin_if_caught_up(self, now: int, out: Outbox) -> None:
        """Deviation 12: this process lost its disk, and has all that it may have had."""
        state = self._held_state
        if state is None or self.log.position < max(self.rejoin.reach, state.reach):
            return
        self._held_state = None
        self.promised = self._highest = state.epoch
        self.rejoin.finish(out)
        self._join(state, now, out)

    def _rejoin_due(self, now: int, out: Outbox) -> int:
        later: int = now + self.options.retry_us
        if self._held_state is not None or self.log.position < self.rejoin.reach:
            return later
        return self.rejoin.tick(now, out) or later

    def _on_fetch(self, sender: ProcessId, fetch: Fetch, now: int, out: Outbox) -> None:
        """Deviation 4."""
        if self.status is not PRIMARY or fetch.epoch != self.joined:
            return
        if self.length - fetch.length > len(self._t):
            chosen = sorted((e for i, e in self._t.items() if i >= fetch.length), key=lambda e: e.place)
        else:
            chosen = [self._t[i] for i in range(fetch.length, self.length) if i in self._t]
        parts = _portions(chosen, self.options.portion_bytes)
        for part, entries in enumerate(parts):
            refill = Refill(
                self.joined, fetch.length, self._told_clock, self.length, self.reach, entries, part, len(parts)
            )
            out.send_durable((sender,), refill)

    def _on_refill(self, sender: ProcessId, refill: Refill, now: int, out: Outbox) -> None:
        """Deviation 4."""
        if not refill.epoch == self.joined == self.promised or sender != refill.epoch.leader:
            return
        entries = self._assembly.add(sender, refill.part, refill.parts, refill.entries)
        if entries is None or refill.first > self.length or refill.length <= self.length:
            return
        self._confirm(now)
        for state in entries:
            if state.place >= self.length:
                self._take(state, now, out)
                entry = self.entries.get(state.message.id)
                if entry is not None and not entry.position:
                    self._acknowledge(entry)
                self._advance_clock(state.ts)
        self.reach = max(self.reach, refill.reach)
        self._extend(refill.length, refill.clock)
        for index in [i for i in self._proposals if i < self.length]:
            del self._proposals[index]

    # -- garbage, timers ----------------------------------------------------------------------------------------------

    def on_stable(self, position: int, now: int, out: Outbox) -> None:
        self._drop(self.log.stable(position, out), out)

    def _on_stable_message(self, sender: ProcessId, stable: Stable, now: int, out: Outbox) -> None:
        stable.ask = stable.ask and not self.rejoin.amnesiac
        self._drop(self.log.on_stable_message(sender, stable, out), out)

    def _drop(self, settled: list[MessageId], out: Outbox) -> None:
        """Deviation 8."""
        for message_id in settled:
            entry = self.entries.get(message_id)
            if entry is None:
                continue
            if entry.position and self._is_settled(entry):
                self.reach = max(self.reach, entry.position)
                self._t.pop(entry.place, None)
                del self.entries[message_id]
                out.delete(_ENTRY_PREFIX + message_id)

    def _is_settled(self, entry: _Entry) -> bool:
        assert entry.message is not None and entry.final is not None
        return self.log.is_settled(self._needs(entry.message, entry.final.time), entry.final)

    def on_peer_reset(self, peer: ProcessId, now: int, out: Outbox) -> None:
        self.log.forget_reports(peer)
        self._assembly.forget(peer)
        if self.status is PRIMARY:
            self._next_heartbeat = min(self._next_heartbeat, now)
            self._wake_by(now)

    def _wake_by(self, at: int) -> None:
        self._wake = min(self._wake, at)

    def on_clock(self, off: bool, now: int) -> None:
        super().on_clock(off, now)
        self._timer.reluctant = off
        self._next_heartbeat = self._wake = now

    def on_tick(self, now: int, out: Outbox) -> int | None:
        if self.rejoin.amnesiac:
            return min(self._rejoin_due(now, out), self._submissions.tick(now, out))
        wake_log = self.log.tick(now, out)
        if now >= self._wake:
            self._wake = self._run_timers(now, out)
        return self._wake if wake_log is None else min(self._wake, wake_log)

    def _run_timers(self, now: int, out: Outbox) -> int:
        wakes = [self._want_due(now, out), self._retry_due(now, out), self._submissions.tick(now, out)]
        if self.status is PRIMARY:
            if now >= self._next_heartbeat:
                self._next_heartbeat = now + self.options.heartbeat_us
                if self._peers:
                    beat = Heartbeat(self.joined, self._told_clock, self.length, self.log.position, self.clock_off)
                    out.send_durable(tuple(self._peers), beat)
            wakes.append(self._next_heartbeat)
        elif self._votes is not None:
            self._compute_state(now, out)
            wakes.append(now + self.options.heartbeat_us)
        if self.status is not PRIMARY or self._highest > self.promised:
            if self._timer.due(now):
                self._stand(now, out)
            wakes.append(self._timer.deadline)
        if now >= self._sweep_at:
            self._sweep_at = now + _ABANDONED_RETRIES * self.options.retry_us
            self._sweep(now, out)
        return min(wakes)

    def _want_due(self, now: int, out: Outbox) -> int:
        """Deviation 3: ask for payloads that do not come."""
        wanted: dict[ProcessId, list[MessageId]] = {}
        for message_id in self._wanted.due(now):
            entry = self.entries.get(message_id)
            if entry is not None and entry.message is None and entry.heard is not None:
                wanted.setdefault(entry.heard, []).append(message_id)
            else:
                self._wanted.discard(message_id)
        for peer, ids in wanted.items():
            for some in chunks(ids):
                out.send((peer,), Want(some))
        return self._wanted.wake(now)

    def _retry_due(self, now: int, out: Outbox) -> int:
        """Deviation 11."""
        asked: dict[tuple[ProcessId, ...], list[Vote]] = {}
        unproposed: list[MessageId] = []
        void = False
        for message_id in self._retries.due(now):
            entry = self.entries.get(message_id)
            if entry is None or entry.message is None or entry.position:
                self._retries.discard(message_id)
                continue
            void = void or (entry.epoch is not None and self._is_void(message_id, entry.ts))
            missing = self._missing(entry) if entry.epoch is not None and self.status in (PRIMARY, FOLLOWER) else ()
            if missing:
                asked.setdefault(missing, []).append(self._vote(entry))
            elif entry.epoch is None and self.status is FOLLOWER:
                unproposed.append(message_id)
            else:
                self._retries.answered(message_id)
        self._stuck = self._stuck or bool(asked)
        for to, votes in asked.items():
            for some in chunks(votes):
                self._send_acks(to, self._ack(some, again=True), out)
        for ids in chunks(unproposed):
            out.send((self.joined.leader,), Asked(ids))
        if void and self.status is PRIMARY:
            self._stand(now, out)
        return self._retries.wake(now)

    def _missing(self, entry: _Entry) -> tuple[ProcessId, ...]:
        """Whose acknowledgements, or clocks, this process lacks to deliver it; none if it waits for another message."""
        assert entry.message is not None
        missing: list[ProcessId] = []
        for group in self._needs(entry.message, entry.ts):
            if group not in entry.locals:
                has = {p for (g, *_), processes in entry.acks.items() if g == group for p in processes}
                missing += [p for p in self.topology.groups[group] if p not in has]
        if entry.final is not None and entry.final.time > self._horizon():
            missing += [p for p in self.members if p != self.self_id]
        return tuple(missing)

    def _sweep(self, now: int, out: Outbox) -> None:
        """Forget what was only ever heard of (those who want it delivered tell it again)."""
        before = now - _ABANDONED_RETRIES * self.options.retry_us
        for entry in [e for e in self.entries.values() if e.seen_at < before]:
            if entry.epoch is None and (entry.message is None or self.log.known(entry.id) is not None):
                self._forget(entry, out)

    # -- for people ---------------------------------------------------------------------------------------------------

    def leader_of(self, group: GroupId) -> ProcessId | None:
        return self.leaders[group].leader

    def role(self) -> str:
        return {PRIMARY: "leader", FOLLOWER: "follower"}.get(self.status, "recovering")

    def is_member(self) -> bool:
        return not self.rejoin.amnesiac

    def describe(self) -> dict[str, Any]:
        return {
            "epoch": f"{self.joined.number}/{self.joined.leader}",
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
        messages = {}
        for i, e in self.entries.items():
            known = (e.epoch is not None) + (e.final is not None) + (e.position > 0)
            phase, local = ("started", "proposed", "decided", "delivered")[known], Timestamp(e.ts, self.group)
            messages[i.hex()] = seen(phase, local if known else None, e.final, why.get(i, ()), e.locals, place=e.place)
        return {**super().inspect(), "promised": list(self.promised), "length": self.length, "messages": messages}
