"""Multi-Paxos for one group: a log of instances, each a batch of opaque values, decided in order (Lamport 1998).

Theory of operation. One process leads a ballot. It gives every batch the next instance and sends Accept to all
members; each, unless it has promised a higher ballot, keeps the batch on disk and tells *all* members (Accepted), so
every member learns by itself, two message delays after the leader's proposal, that a quorum has accepted it. A process
that hears nothing from the leader for too long promises itself a higher ballot (Prepare); members answer with what they
accepted (Promise). With a quorum of promises, its own among them, it leads: it proposes again, in its ballot, for every
instance that is not decided, what was accepted in the highest ballot, an empty batch where nothing was.

    message    from -> to               durable before it leaves
    Prepare    candidate -> members     the ballot for which it stands
    Promise    member -> candidate      the promised ballot (accepted batches are on disk already)
    Accept     leader -> members        -  (the leader's own promise is on disk: it led only after that came back)
    Accepted   member -> members        the accepted batches (and to `learners`, if there are any)
    Nack       member -> candidate      -  (a higher ballot exists)
    Heartbeat  leader -> members        -
    Fetch      member -> member         -
    Chosen     member -> member         -  (what is decided is on a quorum's disks)
    Returned   member without memory -> members, Highest back    (parts.rejoin)
    Begun      leader -> member without memory                   -  (its ballot began with promises of a quorum)

Use. Forward `MESSAGES` to `on_message`; call `end_batch` and `tick` with the protocol's own; after any of these calls
`take` what was decided. `propose` queues a value at a leader, and a deposed leader forgets its queue: whoever wants a
value decided repeats it until he sees it decided. `truncate` drops instances that the user needs no longer; a member
that asks for dropped ones learns so (`stranded_below`), and must be given the user's state by other means and then
`jump`. The first ballot belongs to the first member and needs no promises: nothing can have been accepted below it.

Durable: `x` + instance -> ballot and batch; `xp` -> the promised ballot; `xs` -> the ballot for which this process
stood; `xd` -> up to where all is decided, and the lowest instance that is kept. Not every decision is durable where it
was learned: what is lost is learned again.

Lost disk. A member whose disk is gone (`amnesiac`, parts.rejoin) learns decisions and keeps what leaders send, but
sends no Promise and no Accepted, and does not stand. When it knows a bound for what it may have promised, whoever leads
a ballot up to the bound begins a higher one, and tells (Begun) the last instance that this began with. Once the
amnesiac knows the decisions up to there, it is a member again: every batch that was chosen in a ballot up to the bound,
with its vote perhaps, was among the promises of the quorum of others with which the new ballot began, so it is decided
up to there or known as decided; now this process has it too, as if it had never lost it. Above the bound it promised
nothing. A user with obligations of its own sets `held` and calls `finish_return` when it has met them, too
(`may_return`).

Orderings relied on: none for safety. FIFO links make a missing Accept rare; it is fetched.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Mapping
from typing import Any

import msgspec

from multicast.parts import rejoin
from multicast.parts.portions import Assembly, portions
from multicast.parts.rejoin import Highest, Rejoin, Returned
from multicast.parts.timer import LeaderTimer
from multicast.protocol import Outbox, PeerError, Saved
from multicast.types import Ballot, ProcessId

PREFIX = b"x"
_PROMISED_KEY = b"xp"
_STOOD_KEY = b"xs"
_DECIDED_KEY = b"xd"
_FIRST_NUMBER = 1
_BATCH_BYTES = 1024 * 1024
_ACCEPT_BYTES = 64
_RESENT_MIN = 8
_RESENT_MAX = 64

FOLLOWER, CANDIDATE, LEADER = "follower", "candidate", "leader"

Values = list[bytes]


class Prepare(msgspec.Struct, array_like=True, tag=110, gc=False):
    """Promise me this ballot; tell me what you accepted from instance `first` on."""

    ballot: Ballot
    first: int


class Promise(msgspec.Struct, array_like=True, tag=111, gc=False):
    """I do. accepted: (instance, ballot, values), in portions: number `part` of `parts`. low: below it all is decided
    and dropped here."""

    ballot: Ballot
    low: int
    accepted: list[tuple[int, Ballot, Values]]
    part: int
    parts: int


class Accept(msgspec.Struct, array_like=True, tag=112, gc=False):
    """Accept these values. decided: up to where the leader knows all decisions."""

    ballot: Ballot
    instance: int
    values: Values
    decided: int


class Accepted(msgspec.Struct, array_like=True, tag=113, gc=False):
    """I have, in these instances."""

    ballot: Ballot
    instances: list[int]


class Nack(msgspec.Struct, array_like=True, tag=114, gc=False):
    """I have promised this higher ballot."""

    ballot: Ballot


class Heartbeat(msgspec.Struct, array_like=True, tag=115, gc=False):
    """The leader lives, and knows all decisions up to `decided`. resigning: its clock is off, who can should lead."""

    ballot: Ballot
    decided: int
    resigning: bool = False


class Fetch(msgspec.Struct, array_like=True, tag=116, gc=False):
    """Tell me decisions from this instance on."""

    first: int


class Chosen(msgspec.Struct, array_like=True, tag=117, gc=False):
    """Decisions, instance after instance from `first` on; I know them up to `decided` and keep them from `low` on."""

    first: int
    batches: list[Values]
    decided: int
    low: int


class Begun(msgspec.Struct, array_like=True, tag=118, gc=False):
    """I lead this ballot; it began with proposals up to instance `upto`, or all up to there was decided."""

    ballot: Ballot
    upto: int


MESSAGES = (Prepare, Promise, Accept, Accepted, Nack, Heartbeat, Fetch, Chosen, Begun, *rejoin.MESSAGES)
HOUSEKEEPING = (Prepare, Promise, Nack, Heartbeat, Fetch, Chosen, Begun, *rejoin.MESSAGES)

_encode = msgspec.msgpack.Encoder().encode
_decode_entry = msgspec.msgpack.Decoder(tuple[Ballot, Values]).decode
_decode_ballot = msgspec.msgpack.Decoder(Ballot).decode
_decode_marks = msgspec.msgpack.Decoder(tuple[int, int]).decode


def _key(instance: int) -> bytes:
    return PREFIX + instance.to_bytes(8, "big")


class Paxos:
    """One member.

    instances_max: how many instances a leader keeps under way at once (1: the next begins when the last is decided).
    values_max: how many values it puts into one; 0: all that wait.
    portion_bytes, early_max: see `Options`; of look_ahead: how far beyond `decided` instances are taken.
    promised: the highest ballot promised; its leader is whom this member follows.
    decided: all instances up to here are decided and were or will be taken. low: the lowest instance that is kept.
    stranded_below: 0, or some member has dropped all instances below this one and this process lacks some of them.
    stranded_at: that member.
    held: the user's own state is not complete yet: see "Lost disk" in the module.
    learners: processes outside the group that hear of acceptances, too.
    proposals: None, or a list to which a leader adds each (instance, values) that it proposes, in order; emptied when
    it is deposed.
    """

    def __init__(
        self,
        self_id: ProcessId,
        members: tuple[ProcessId, ...],
        rng: random.Random,
        heartbeat_us: int = 100_000,
        election_timeout_us: int = 1_000_000,
        instances_max: int = 1,
        values_max: int = 0,
        portion_bytes: int = 4 * 1024 * 1024,
        early_max: int = 100_000,
    ):
        self.self_id = self_id
        self.members = members
        self.heartbeat_us = heartbeat_us
        self.instances_max = instances_max
        self.values_max = values_max
        self.portion_bytes = portion_bytes
        self.look_ahead = early_max + instances_max  # the leader knows decisions before its members do
        self._batch_bytes = min(_BATCH_BYTES, portion_bytes)
        self.quorum = len(members) // 2 + 1
        self.status = FOLLOWER
        self.promised = Ballot(_FIRST_NUMBER, members[0])
        self.decided = 0
        self.low = 1
        self.stranded_below = 0
        self.stranded_at = self_id
        self.learners: tuple[ProcessId, ...] = ()
        self.proposals: list[tuple[int, Values]] | None = None
        self.held = False
        self.rejoin = Rejoin(self_id, members, 2 * heartbeat_us, rng)
        self._begun: tuple[Ballot, int] = (self.promised, 0)
        self._others = tuple(p for p in members if p != self_id)
        self._entries: dict[int, tuple[Ballot, Values]] = {}
        self._taken: list[tuple[int, Values]] = []
        self._queue: deque[bytes] = deque()
        self._next = 1
        self._acks: dict[int, dict[Ballot, set[ProcessId]]] = {}
        self._chosen: dict[int, Ballot] = {}
        self._accepting: dict[Ballot, list[int]] = {}
        self._votes: dict[ProcessId, Promise] = {}
        self._assembly: Assembly[tuple[int, Ballot, Values]] = Assembly()
        self._highest = self.promised
        self._timer = LeaderTimer(election_timeout_us, rng)
        self._next_heartbeat = 0
        self._seen = 0
        self._fetch_at = 0
        self._fetch_target = 0
        self._fetch_turn = 0
        self._marks_dirty = False
        self._beaten = (0, 0)
        self._resend_at = self._resent = self._lost_below = 0
        self._resend_max = _RESENT_MIN
        self._wake = 0

    # -- life ---------------------------------------------------------------------------------------------------------

    def on_start(self, values: Mapping[bytes, bytes], now: int, out: Outbox, lost: bool = False) -> None:
        """Decisions that were known before are given to `take` again, from `low` on. lost: `Saved.lost`."""
        self.rejoin.restore(Saved(dict(values), lost=lost), now, out)
        for key, value in values.items():
            if key[:1] == PREFIX and len(key) == 9:
                self._entries[int.from_bytes(key[1:], "big")] = _decode_entry(value)
        if _DECIDED_KEY in values:
            self.decided, self.low = _decode_marks(values[_DECIDED_KEY])
        self._taken = [(k, self._entries[k][1]) for k in range(self.low, self.decided + 1)]
        self._seen = self.decided
        if _PROMISED_KEY in values:
            self.promised = self._highest = _decode_ballot(values[_PROMISED_KEY])
            if _STOOD_KEY in values:
                self._highest = max(self._highest, _decode_ballot(values[_STOOD_KEY]))
            self._timer.restart(now, 0.1 if self.promised.leader == self.self_id else 1.0)
            return
        self._save_promise(out)
        self._timer.restart(now)
        if self.promised.leader == self.self_id and not self.amnesiac:
            self.status = CANDIDATE
            self._send_promise(self.promised, 1, out)

    def _save_promise(self, out: Outbox) -> None:
        out.put(_PROMISED_KEY, _encode(self.promised))

    def _save_entry(self, instance: int, out: Outbox) -> None:
        out.put(_key(instance), _encode(self._entries[instance]))

    # -- lost disk ----------------------------------------------------------------------------------------------------

    @property
    def amnesiac(self) -> bool:
        """Whether this process lost its disk and is not yet a member again: it must not vouch for anything."""
        return self.rejoin.amnesiac

    @property
    def may_return(self) -> bool:
        """Whether it could be a member again, as far as this part is concerned."""
        ballot, upto = self._begun
        return self.amnesiac and self.rejoin.may_join(ballot) and self.decided >= max(upto, self.rejoin.reach)

    def finish_return(self, now: int, out: Outbox) -> None:
        """A member again; what the user puts in this batch becomes durable with it."""
        if not self.may_return:
            raise AssertionError("too early for a member without memory to return")
        self.promised = max(self.promised, self._begun[0])
        self._highest = max(self._highest, self.promised)
        self._save_promise(out)
        self.rejoin.finish(out)
        self._timer.restart(now)

    def _on_returned(self, sender: ProcessId, message: Returned, now: int, out: Outbox) -> None:
        highest = max(self.promised, self._highest)
        bound = self.rejoin.on_returned(sender, message, highest, self.decided, out)
        if bound is None:
            return
        self._highest = max(self._highest, bound)
        if self.status is LEADER and self.promised > bound:
            out.send((sender,), Begun(*self._begun))
        elif self.status is LEADER:
            self.stand(now, out)

    def _on_begun(self, sender: ProcessId, begun: Begun) -> None:
        if begun.ballot.leader != sender:
            raise PeerError("somebody else's ballot begun")
        if self.amnesiac and self.rejoin.may_join(begun.ballot) and begun.ballot > self._begun[0]:
            self._begun = (begun.ballot, begun.upto)

    def _return_if_due(self, now: int, out: Outbox) -> int:
        """For the amnesiac's timer: asks; returns if nothing is missing. The next instant that it wants."""
        if self.may_return and not self.held:
            self.finish_return(now, out)
            return self._timer.deadline
        rejoin = self.rejoin
        if rejoin.bound is None or (self.decided >= rejoin.reach and not rejoin.may_join(self._begun[0])):
            return rejoin.tick(now, out) or now
        return now + self.heartbeat_us

    # -- for the user -------------------------------------------------------------------------------------------------

    @property
    def leading(self) -> bool:
        return self.status is LEADER

    @property
    def idle(self) -> bool:
        """Whether nothing that this process proposed waits for its decision."""
        return not self._queue and self._next == self.decided + 1

    def propose(self, value: bytes) -> None:
        """At a leader: have this value decided, in this order; lost if the leader is deposed or dies first."""
        if self.status is not LEADER:
            raise AssertionError("only a leader proposes")
        self._queue.append(value)

    def take(self) -> list[tuple[int, Values]]:
        """What was decided since the last call: (instance, values), in order, without gaps."""
        taken = self._taken
        if taken:
            self._taken = []
        return taken

    def truncate(self, instance: int, out: Outbox) -> None:
        """Drop the decided instances up to this one."""
        if instance > self.decided:
            raise AssertionError(f"instance {instance} is not decided, the last one is {self.decided}")
        for k in range(self.low, instance + 1):
            if self._entries.pop(k, None) is not None:
                out.delete(_key(k))
        self.low = max(self.low, instance + 1)
        self._marks_dirty = True

    def jump(self, instance: int, now: int, out: Outbox) -> None:
        """The user's state now contains all instances up to this one."""
        if instance <= self.decided:
            return
        for k in [k for k in self._entries if k <= instance]:
            del self._entries[k]
            out.delete(_key(k))
        self._acks = {k: v for k, v in self._acks.items() if k > instance}
        self._chosen = {k: v for k, v in self._chosen.items() if k > instance}
        self._taken.clear()
        self.decided = instance
        self.low = instance + 1
        self._next = max(self._next, self.low)
        self._marks_dirty = True
        self._decide_next()
        self._lead_if_complete(now, out)

    # -- messages -----------------------------------------------------------------------------------------------------

    def on_message(self, sender: ProcessId, message: Any, now: int, out: Outbox) -> None:
        """One of `MESSAGES`."""
        if sender not in self.members:
            raise PeerError(f"{type(message).__name__} from outside the group")
        kind = type(message)
        if kind is Accept:
            self._on_accept(sender, message, now, out)
        elif kind is Accepted:
            self._on_accepted(sender, message)
        elif kind is Heartbeat:
            self._on_heartbeat(sender, message, now, out)
        elif kind is Prepare:
            self._on_prepare(sender, message, now, out)
        elif kind is Promise:
            self._on_promise(sender, message, now, out)
        elif kind is Nack:
            self._on_nack(message.ballot, now)
        elif kind is Fetch:
            self._on_fetch(sender, message.first, out)
        elif kind is Chosen:
            self._on_chosen(sender, message, now, out)
        elif kind is Returned:
            self._on_returned(sender, message, now, out)
        elif kind is Highest:
            if self.rejoin.on_highest(sender, message, now):
                self._wake = now
            self._see(message.reached, now)
        else:
            self._on_begun(sender, message)
            self._wake = now

    # -- deciding -----------------------------------------------------------------------------------------------------

    def end_batch(self, now: int, out: Outbox) -> None:
        """Start instances, acknowledge the batch's Accepts, keep the decided mark."""
        while self._queue and self._next - self.decided <= self.instances_max:
            values: Values = []
            size = 0
            while self._queue and (
                not values or (len(values) != self.values_max and size + len(self._queue[0]) <= self._batch_bytes)
            ):
                size += len(self._queue[0])
                values.append(self._queue.popleft())
            self._send_accept(self._next, values, out)
            self._next += 1
        if self._accepting:
            for ballot, instances in self._accepting.items():
                if not self.amnesiac:
                    self._send_accepted(Accepted(ballot, instances), out)
            self._accepting.clear()
        if self._marks_dirty:
            self._marks_dirty = False
            out.put(_DECIDED_KEY, _encode((self.decided, self.low)))

    def _send_accept(self, instance: int, values: Values, out: Outbox) -> None:
        out.send(self.members, Accept(self.promised, instance, values, self.decided))
        if self.proposals is not None:
            self.proposals.append((instance, values))

    def _send_accepted(self, message: Accepted, out: Outbox) -> None:
        out.send_durable(self.members + self.learners, message)

    def _on_accept(self, sender: ProcessId, accept: Accept, now: int, out: Outbox) -> None:
        """Phase 2a arrives at an acceptor."""
        if accept.ballot.leader != sender:
            raise PeerError("an Accept of somebody else's ballot")
        if not self._follow(sender, accept.ballot, now, out):
            return
        if accept.instance < self.low:
            self._on_fetch(sender, accept.instance, out)
            return
        if self._takes(sender, accept.instance):
            self._entries[accept.instance] = (accept.ballot, accept.values)
            self._save_entry(accept.instance, out)
            self._accepting.setdefault(accept.ballot, []).append(accept.instance)
            self._decide_next()
        self._see(accept.decided, now)

    def _takes(self, sender: ProcessId, instance: int) -> bool:
        """Whether this instance is not too far ahead. What a leader accepts of its own nobody sends it again."""
        return instance <= self.decided + self.look_ahead or sender == self.self_id

    def _follow(
        self, sender: ProcessId, ballot: Ballot, now: int, out: Outbox, resigning: bool = False
    ) -> bool:
        """Whether a leader with this ballot is to be obeyed; one with a higher ballot than promised always is."""
        if ballot < self.promised:
            out.send((sender,), Nack(self.promised))
            return False
        if ballot > self.promised:
            self._promise(ballot, now, out)
        self._timer.heard(now, resigning)
        if resigning:
            self._wake = min(self._wake, self._timer.deadline)
        return True

    def _on_accepted(self, sender: ProcessId, accepted: Accepted) -> None:
        """Phase 2b arrives at a learner."""
        for instance in accepted.instances:
            if instance <= self.decided or not self._takes(sender, instance):
                continue
            ballots = self._acks.setdefault(instance, {})
            voters = ballots.setdefault(accepted.ballot, set())
            voters.add(sender)
            if self._is_chosen(voters):
                self._chosen[instance] = max(accepted.ballot, self._chosen.get(instance, accepted.ballot))
                self._seen = max(self._seen, instance)
        self._decide_next()

    def _is_chosen(self, voters: set[ProcessId]) -> bool:
        return len(voters) >= self.quorum

    def _decide_next(self) -> None:
        """A batch accepted here in the chosen ballot or a later one is the chosen one."""
        while (ballot := self._chosen.get(self.decided + 1)) is not None:
            entry = self._entries.get(self.decided + 1)
            if entry is None or entry[0] < ballot:
                return
            self._decide(entry[1])

    def _decide(self, values: Values) -> None:
        self.decided += 1
        self._acks.pop(self.decided, None)
        self._chosen.pop(self.decided, None)
        self._taken.append((self.decided, values))
        self._next = max(self._next, self.decided + 1)
        self._marks_dirty = True
        if self.decided == self._resent < self._lost_below - 1:
            self._next_heartbeat = self._resend_at = self._wake = 0  # the next of what was lost

    # -- catching up --------------------------------------------------------------------------------------------------

    def _see(self, decided: int, now: int) -> None:
        """Somebody knows decisions up to here. If this process does not soon, it fetches them."""
        self._seen = max(self._seen, decided)
        if self._seen > self.decided and not self._fetch_at:
            self._fetch_later(now)

    def _fetch_later(self, now: int) -> None:
        self._fetch_at = now + self.heartbeat_us
        self._fetch_target = self._seen
        self._wake = min(self._wake, self._fetch_at)

    def _fetch_if_due(self, now: int, out: Outbox) -> None:
        if not self._fetch_at:
            if self._seen > self.decided:
                self._fetch_later(now)
        elif now >= self._fetch_at:
            if self.decided < self._fetch_target and self._others:
                self._fetch_turn += 1
                leader = self.promised.leader
                turn = leader != self.self_id and self._fetch_turn % 2
                peer = leader if turn else self._others[self._fetch_turn // 2 % len(self._others)]
                out.send((peer,), Fetch(self.decided + 1))
            self._fetch_at = 0
            if self._seen > self.decided:
                self._fetch_later(now)

    def _on_fetch(self, sender: ProcessId, first: int, out: Outbox) -> None:
        first = max(first, self.low)
        batches: list[Values] = []
        size = 0
        for k in range(first, self.decided + 1):
            values = self._entries[k][1]
            size += sum(map(len, values))
            if batches and size > self.portion_bytes:
                break
            batches.append(values)
        out.send((sender,), Chosen(first, batches, self.decided, self.low))

    def _on_chosen(self, sender: ProcessId, chosen: Chosen, now: int, out: Outbox) -> None:
        before = self.decided
        for k, values in enumerate(chosen.batches, chosen.first):
            if k == self.decided + 1:
                held = self._entries.get(k)
                self._entries[k] = (self.promised if held is None else held[0], values)
                self._save_entry(k, out)
                self._decide(values)
        if chosen.low > self.decided + 1:
            self.stranded_below, self.stranded_at = chosen.low, sender
        elif before < self.decided < chosen.decided:
            out.send((sender,), Fetch(self.decided + 1))
        self._decide_next()
        self._see(chosen.decided, now)
        self._lead_if_complete(now, out)

    @property
    def stranded(self) -> bool:
        """Whether this process needs the user's state from somebody: see `jump`."""
        return self.stranded_below > self.decided + 1

    # -- leader change ------------------------------------------------------------------------------------------------

    def stand(self, now: int, out: Outbox) -> None:
        """Try to lead, in a new ballot, whoever leads now."""
        ballot = Ballot(max(self.promised.number, self._highest.number) + 1, self.self_id)
        self._timer.restart(now)
        out.put(_STOOD_KEY, _encode(ballot))
        out.send_durable(self.members, Prepare(ballot, self.decided + 1))

    def _on_prepare(self, sender: ProcessId, prepare: Prepare, now: int, out: Outbox) -> None:
        """Phase 1a arrives at an acceptor."""
        if prepare.ballot.leader != sender:
            raise PeerError("a Prepare of somebody else's ballot")
        if self.amnesiac:
            return
        if prepare.ballot <= self.promised:
            if prepare.ballot != self.promised:
                out.send((sender,), Nack(self.promised))
            return
        self._promise(prepare.ballot, now, out)
        if sender == self.self_id:
            self.status = CANDIDATE
        self._send_promise(prepare.ballot, prepare.first, out)

    def _promise(self, ballot: Ballot, now: int, out: Outbox) -> None:
        self.promised = ballot
        self._highest = max(self._highest, ballot)
        self.status = FOLLOWER
        self._queue.clear()
        if self.proposals:
            self.proposals.clear()
        self._votes.clear()
        self._assembly.clear()
        self._timer.restart(now)
        self._save_promise(out)

    def _send_promise(self, ballot: Ballot, first: int, out: Outbox) -> None:
        accepted = [(k, *self._entries[k]) for k in sorted(self._entries) if k >= first]
        parts = portions(accepted, lambda entry: sum(map(len, entry[2])), self.portion_bytes)
        for part, some in enumerate(parts):
            out.send_durable((ballot.leader,), Promise(ballot, self.low, some, part, len(parts)))

    def _on_promise(self, sender: ProcessId, promise: Promise, now: int, out: Outbox) -> None:
        """Phase 1b arrives at the candidate."""
        if self.status is not CANDIDATE or promise.ballot != self.promised:
            return
        accepted = self._assembly.add(sender, promise.part, promise.parts, promise.accepted)
        if accepted is None:
            return
        promise.accepted = accepted
        self._votes[sender] = promise
        self._lead_if_complete(now, out)

    def _lead_if_complete(self, now: int, out: Outbox) -> None:
        """With a quorum of promises, the own one durable: lead, unless a voter has dropped what this process lacks."""
        if self.status is not CANDIDATE or self.self_id not in self._votes:
            return
        needed = 1 if self.promised.number == _FIRST_NUMBER else self.quorum
        if len(self._votes) < needed:
            return
        ahead = max(self._votes, key=lambda p: self._votes[p].low)
        if self._votes[ahead].low > self.decided + 1:
            self.stranded_below, self.stranded_at = self._votes[ahead].low, ahead
            return
        self.status = LEADER
        self._next_heartbeat = self._wake = now
        best = self._choose(list(self._votes.values()))
        self._votes.clear()
        self._next = max(best, default=self.decided) + 1
        self._next = max(self._next, self.decided + 1)
        self._begun = (self.promised, self._next - 1)
        for instance in range(self.decided + 1, self._next):
            self._send_accept(instance, best.get(instance, (self.promised, []))[1], out)

    def _choose(self, votes: list[Promise]) -> dict[int, tuple[Ballot, Values]]:
        """For every instance the batch that was accepted in the highest ballot."""
        best: dict[int, tuple[Ballot, Values]] = {}
        for vote in votes:
            for instance, ballot, values in vote.accepted:
                if instance not in best or ballot > best[instance][0]:
                    best[instance] = (ballot, values)
        return best

    def _on_nack(self, ballot: Ballot, now: int) -> None:
        """Wait a little for the process of that ballot to lead; then stand against it."""
        if ballot > self._highest:
            self._highest = ballot
            self._timer.restart(now, 0.3)
            self._wake = min(self._wake, self._timer.deadline)

    def _on_heartbeat(self, sender: ProcessId, heartbeat: Heartbeat, now: int, out: Outbox) -> None:
        if heartbeat.ballot.leader != sender:
            raise PeerError("a heartbeat of somebody else's ballot")
        if self._follow(sender, heartbeat.ballot, now, out, heartbeat.resigning):
            self._see(heartbeat.decided, now)

    # -- timers -------------------------------------------------------------------------------------------------------

    def on_peer_reset(self, peer: ProcessId, now: int) -> None:
        """What was under way to or from this member may be lost."""
        self._assembly.forget(peer)
        if self.status is LEADER:
            self._next_heartbeat = self._wake = now

    def on_clock(self, off: bool, now: int) -> None:
        """See `MulticastProtocol.on_clock`."""
        self._timer.reluctant = off
        self._next_heartbeat = self._wake = now

    def tick(self, now: int, out: Outbox) -> int:
        """Heartbeats, elections, fetches, and Accepts that may have been lost. Returns when to be called again."""
        if now < self._wake:
            return self._wake
        if self.status is LEADER:
            if now >= self._next_heartbeat:
                self._beat(now, out)
            self._wake = self._next_heartbeat
            if self._highest > self.promised:
                if self._timer.due(now):
                    self.stand(now, out)
                self._wake = min(self._wake, self._timer.deadline)
        elif self.amnesiac:
            self._wake = self._return_if_due(now, out)
        else:
            if self._timer.due(now):
                self.stand(now, out)
            self._wake = self._timer.deadline
        self._fetch_if_due(now, out)
        if self._fetch_at:
            self._wake = min(self._wake, self._fetch_at)
        return self._wake

    def _beat(self, now: int, out: Outbox) -> None:
        """A heartbeat; and if nothing was decided since the last one, the first of what was undecided then is sent
        again, to those who have not acknowledged it; not more than a batch's bytes at once, and few instances, so that
        no link's queue overflows with them. When all of these are decided, the next and twice as many follow."""
        self._next_heartbeat = now + self.heartbeat_us
        if self._others:
            out.send(self._others, Heartbeat(self.promised, self.decided, self._timer.reluctant))
        if now < self._resend_at:
            return  # a heartbeat for who has just come back
        self._resend_at = self._next_heartbeat
        decided, proposed = self._beaten
        self._beaten = (self.decided, self._next)
        if decided == self.decided:
            self._lost_below, self._resend_max = proposed, _RESENT_MIN
        else:
            self._resend_max = min(2 * self._resend_max, _RESENT_MAX)
        size = 0
        for instance in range(self.decided + 1, min(self._lost_below, self.decided + 1 + self._resend_max)):
            self._resent = instance
            entry = self._entries.get(instance)
            if entry is not None and entry[0] == self.promised and size < self._batch_bytes:
                heard = self._acks.get(instance, {}).get(self.promised, ())
                silent = tuple(p for p in self._others if p not in heard)
                out.send(silent, Accept(self.promised, instance, entry[1], self.decided))
                size += _ACCEPT_BYTES + sum(map(len, entry[1]))

    # -- for people ---------------------------------------------------------------------------------------------------

    def describe(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "ballot": f"{self.promised.number}/{self.promised.leader}",
            "decided": self.decided,
            "kept": self.decided + 1 - self.low,
            "queued": len(self._queue),
        }

    def inspect(self) -> dict[str, Any]:
        """JSON-ready. accepted: instance -> the ballot in which this process has accepted what it holds there."""
        return {"accepted": {str(k): list(ballot) for k, (ballot, _) in sorted(self._entries.items())}}
