"""Multi-Paxos for one group: a log of instances, each a batch of opaque values, decided in order (Lamport 1998).

Theory of operation. One process leads a ballot. It gives every batch the next instance and sends Accept to all
members; each, unless it has promised a higher ballot, keeps the batch on disk and tells *all* members (Accepted), so
every member learns by itself, two message delays after the leader's proposal, that a quorum has accepted it. Who leads
is elected (parts.election): a vote is a promise, and says what the member has accepted. Who has won proposes again, in
its ballot, for every instance that is not decided, what was accepted in the highest ballot, an empty batch where
nothing was. A member that hears of a higher ballot from its leader has promised that, too. What a member has accepted,
and when that is decided, is parts.instances.

    message    from -> to               durable before it leaves
    NewLeader, Nack, Pulse, Doubt, ...  (parts.election, parts.rejoin)
    Promise    member -> candidate      the promised ballot (accepted batches are on disk already)
    Accept     leader -> members        -  (the leader's own promise is on disk: it has won only after that came back)
    Accepted   member -> members        the accepted batches (and to `learners`, if there are any)
    Heartbeat  leader -> others         -
    Fetch      member -> member         -
    Chosen     member -> member         -  (what is decided is on a quorum's disks)
    Begun      leader -> member without memory    -  (its ballot began with promises of a quorum)

Use. Forward `MESSAGES` to `on_message`; call `end_batch` and `tick` with the protocol's own; after any of these calls
`instances.take` what was decided. `propose` queues a value at a leader, and a deposed leader forgets its queue: whoever
wants a value decided repeats it until he sees it decided. `instances.truncate` drops those that the user needs no
longer; a member that asks for dropped ones learns so (`stranded_below`), and must be given the user's state by other
means and then `jump`.

Durable: `xp` -> the promised ballot; the rest is in parts.instances. (`xs`, in old journals, is read.)

Lost disk. A member whose disk is gone (`amnesiac`, parts.rejoin) learns decisions and keeps what leaders send, but
sends no Promise and no Accepted, and does not campaign. When it knows a bound for what it may have promised, who leads
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

from multicast.membership import Views
from multicast.parts import election
from multicast.parts.ballots import CANDIDATE, FOLLOWER, LEADER, Heartbeat
from multicast.parts.deadlines import Deadlines
from multicast.parts.election import Election
from multicast.parts.instances import Instances, Values
from multicast.parts.options import GroupOptions
from multicast.parts.patience import Patience
from multicast.parts.portions import Portion
from multicast.parts.rejoin import Highest
from multicast.protocol import Handler, Outbox, PeerError, Saved
from multicast.types import Ballot, ProcessId

_PROMISED_KEY = b"xp"
_BATCH_BYTES = 1024 * 1024
_ACCEPT_BYTES = 64
_RESENT_MIN = 8
_RESENT_MAX = 64


class Promise(Portion, array_like=True, tag=111, gc=False):
    """I promise this ballot. entries: what I have accepted, (instance, ballot, values), from where on the candidate
    does not know decisions. position: up to there I have dropped decided instances."""

    ballot: Ballot
    position: int
    entries: list[tuple[int, Ballot, Values]]


class Accept(msgspec.Struct, array_like=True, tag=112, gc=False):
    """Accept these values. decided: up to where the leader knows all decisions."""

    ballot: Ballot
    instance: int
    values: Values
    decided: int


class Accepted(msgspec.Struct, array_like=True, tag=113, gc=False):
    """I have accepted these instances."""

    ballot: Ballot
    instances: list[int]


class Fetch(msgspec.Struct, array_like=True, tag=116, gc=False):
    """Tell me the decisions from this instance on."""

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


MESSAGES = (Accept, Accepted, Promise, Heartbeat, Fetch, Chosen, Begun, *election.MESSAGES)
HOUSEKEEPING = (Promise, Heartbeat, Fetch, Chosen, Begun, *election.MESSAGES)
VOUCHING = (Promise, Accepted, *election.VOUCHING)

_encode = msgspec.msgpack.Encoder().encode
_decode_ballot = msgspec.msgpack.Decoder(Ballot).decode


class Paxos:
    """At one member.

    instances_max: how many instances a leader keeps under way at once (1: the next begins when the last is decided).
    values_max: how many values it puts into one; 0: all that wait. election: who leads. look_ahead: how far beyond
    `decided` instances are taken. instances: what is accepted and decided here. stranded_below: 0, or some member has
    dropped all instances below this one and this process lacks some of them. held: the user's own state is not complete
    yet: see "Lost disk" in the module. learners: processes outside the group that hear of acceptances, too. proposals:
    None, or a list to which a leader adds each (instance, values) that it proposes, in order; emptied when it is
    deposed.
    """

    def __init__(
        self,
        self_id: ProcessId,
        members: tuple[ProcessId, ...],
        options: GroupOptions,
        rng: random.Random,
        instances_max: int = 1,
        values_max: int = 0,
    ):
        self.self_id = self_id
        self.members = members
        self.heartbeat_us = options.heartbeat_us
        self.instances_max = instances_max
        self.values_max = values_max
        self.portion_bytes = options.portion_bytes
        self.look_ahead = max(options.early_max, _RESENT_MIN) + instances_max  # the leader is ahead of its members
        self._batch_bytes = min(_BATCH_BYTES, options.portion_bytes)
        self._deadlines = Deadlines({"fetch": self._fetch_if_behind, "return": self._return_if_due})
        self.election: Election[Promise] = Election(
            self, self_id, Views(members), options, rng, self._deadlines,
            position=lambda: self.decided, bytes_of=lambda entry: sum(map(len, entry[2])),
        )  # fmt: skip
        self.instances = Instances(self.election.quorum)
        self.stranded_below = 0
        self.learners: tuple[ProcessId, ...] = ()
        self.proposals: list[tuple[int, Values]] | None = None
        self.held = False
        self._begun: tuple[Ballot, int] = (self.promised, 0)
        self._queue: deque[bytes] = deque()
        self._next = 1
        self._accepting: dict[Ballot, dict[int, None]] = {}
        self._seen = self._fetch_target = self._fetch_turn = 0
        self._patience = Patience()
        self._beaten, self._resend_max = (0, 0), _RESENT_MIN
        self._resend_at = self._resent = self._lost_below = 0
        self.handlers: dict[type, Handler] = {
            **self.election.handlers(Promise),
            Accept: Handler(self._on_accept), Accepted: Handler(self._on_accepted),
            Heartbeat: Handler(self._on_heartbeat), Fetch: Handler(self._on_fetch), Chosen: Handler(self._on_chosen),
            Begun: Handler(self._on_begun), Highest: Handler(self._on_highest),
        }  # fmt: skip

    # -- life ---------------------------------------------------------------------------------------------------------

    def on_start(self, values: Mapping[bytes, bytes], now: int, out: Outbox, lost: bool = False) -> None:
        """Decisions that were known before are given to `take` again, from `low` on. lost: `Saved.lost`."""
        self.election.lose_disk(Saved(dict(values), lost=lost), now, out)
        self.instances.restore(values)
        self._seen = self.decided
        if _PROMISED_KEY in values:
            promised = _decode_ballot(values[_PROMISED_KEY])
            self.election.restore(promised, now, promised.leader == self.self_id)
            return
        self.keep(out)
        self.election.detector.wait(now)
        if self.promised.leader == self.self_id and not self.amnesiac:
            self.election.go("campaign")
            self.election.send_vote(self.vote(0), out)

    # -- lost disk ----------------------------------------------------------------------------------------------------

    @property
    def amnesiac(self) -> bool:
        """Whether this process lost its disk and is not yet a member again: it must not vouch for anything."""
        return not self.election.is_member

    @property
    def may_return(self) -> bool:
        """Whether this amnesiac could be a member again, as far as consensus is concerned."""
        ballot, upto = self._begun
        rejoin = self.election.rejoin
        return self.amnesiac and rejoin.may_join(ballot) and self.decided >= max(upto, rejoin.reach)

    def finish_return(self, now: int, out: Outbox) -> None:
        """Be a member again; what the user puts in this batch becomes durable with it."""
        if not self.may_return:
            raise AssertionError("too early for a member without memory to return")
        self.election.come_back(self._begun[0], out)
        self.keep(out)
        self.election.detector.wait(now)

    def _on_highest(self, sender: ProcessId, answer: Highest, now: int, out: Outbox) -> None:
        self.election.on_highest(sender, answer, now, out)
        self.see(answer.reached, now)

    def _on_begun(self, sender: ProcessId, begun: Begun, now: int, out: Outbox) -> None:
        if begun.ballot.leader != sender:
            raise PeerError("somebody else's ballot begun")
        if begun.ballot > self._begun[0]:  # a leader keeps what its own began with
            self._begun = (begun.ballot, begun.upto)
            self._deadlines.by("return", now)

    def _return_if_due(self, now: int, out: Outbox) -> int | None:
        """Ask for what is missing; if nothing is, return."""
        if not self.amnesiac:
            return None
        if self.may_return and not self.held:
            self.finish_return(now, out)
            return None
        rejoin = self.election.rejoin
        if rejoin.bound is None or (self.decided >= rejoin.reach and not rejoin.may_join(self._begun[0])):
            return rejoin.tick(now, out)
        return now + self.heartbeat_us

    # -- for the user -------------------------------------------------------------------------------------------------

    @property
    def decided(self) -> int:
        """All instances up to here are decided; they were given by `take`, or will be."""
        return self.instances.decided

    @property
    def promised(self) -> Ballot:
        """The highest ballot promised; its leader is whom this member follows."""
        return self.election.promised

    @property
    def leading(self) -> bool:
        return self.election.state is LEADER

    def role(self) -> str:
        """See `MulticastProtocol.role`."""
        return self.election.state if self.election.state in (LEADER, CANDIDATE) else FOLLOWER

    @property
    def idle(self) -> bool:
        """Whether nothing that this process proposed waits for its decision."""
        return not self._queue and self._next == self.decided + 1

    def propose(self, value: bytes) -> None:
        """At a leader: have this value decided, in this order; lost if the leader is deposed or dies first."""
        if not self.leading:
            raise AssertionError("only a leader proposes")
        self._queue.append(value)

    def jump(self, instance: int, now: int, out: Outbox) -> None:
        """The user's state now contains all instances up to this one. Fetch what follows, lest it is dropped, too."""
        if instance > self.decided:
            self.instances.jump(instance, out)
            self._decided_since(instance)
            self._patience.over()
            self._fetch_target = self.decided + 1
            self._deadlines.by("fetch", now)
            self.election.choose(now, out)

    # -- messages -----------------------------------------------------------------------------------------------------

    def on_message(self, sender: ProcessId, message: Any, now: int, out: Outbox) -> None:
        """One of `MESSAGES`."""
        if sender not in self.members:
            raise PeerError(f"{type(message).__name__} from outside the group")
        self.handlers[type(message)].call(sender, message, now, out)

    # -- deciding -----------------------------------------------------------------------------------------------------

    def end_batch(self, now: int, out: Outbox) -> None:
        """Start instances, acknowledge the batch's Accepts, note how far instances are decided."""
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
        for ballot, instances in self._accepting.items():
            if not self.amnesiac:
                out.send_durable(self.members + self.learners, Accepted(ballot, [*instances]))
        self._accepting.clear()
        self.instances.end_batch(out)

    def _send_accept(self, instance: int, values: Values, out: Outbox) -> None:
        out.send(self.members, Accept(self.promised, instance, values, self.decided))
        if self.proposals is not None:
            self.proposals.append((instance, values))

    def _on_accept(self, sender: ProcessId, accept: Accept, now: int, out: Outbox) -> None:
        """Phase 2a arrives at an acceptor."""
        if accept.ballot.leader != sender:
            raise PeerError("an Accept of somebody else's ballot")
        if not self.election.obey(sender, accept.ballot, now, out):
            return
        if accept.instance < self.instances.low:
            self._on_fetch(sender, Fetch(accept.instance), now, out)
            return
        if self._takes(sender, accept.instance):
            before = self.decided
            self.instances.accept(accept.instance, accept.ballot, accept.values, out)
            self._accepting.setdefault(accept.ballot, {})[accept.instance] = None
            self._decided_since(before)
        self.see(accept.decided, now)

    def _takes(self, sender: ProcessId, instance: int) -> bool:
        """Whether this instance is not too far ahead to be accepted. Of its own instances a leader accepts any: nobody
        would send it one again."""
        return instance <= self.decided + self.look_ahead or sender == self.self_id

    def _on_accepted(self, sender: ProcessId, accepted: Accepted, now: int, out: Outbox) -> None:
        """Phase 2b arrives at a learner."""
        before = self.decided
        for instance in accepted.instances:
            takes = instance > before and self._takes(sender, instance)
            if takes and self.instances.count(instance, accepted.ballot, sender):
                self._seen = max(self._seen, instance)
        self.instances.decide_next()
        self._decided_since(before)
        self.see(self._seen, now)

    def _decided_since(self, before: int) -> None:
        """To be called after something that may have decided more than `before`."""
        self._next = max(self._next, self.decided + 1)
        if before < self._resent <= self.decided and self._resent < self._lost_below - 1:
            self._resend_at = 0
            self._deadlines.by("beat", 0)  # the next of what was lost

    # -- catching up --------------------------------------------------------------------------------------------------

    def see(self, decided: int, now: int) -> None:
        """Somebody knows decisions up to here. If this process does not have them soon, it fetches them."""
        self._seen = max(self._seen, decided)
        if self._seen > self.decided and not self._deadlines.is_set("fetch"):
            self._fetch_target = self._seen
            self._deadlines.by("fetch", now + self.heartbeat_us)

    def _fetch_if_behind(self, now: int, out: Outbox) -> int | None:
        if self.decided < self._fetch_target and self.election.others and self._patience.asks():
            self._fetch_turn += 1
            out.send((self.election.in_turn(self._fetch_turn),), Fetch(self.decided + 1))
        if self._seen <= self.decided:
            self._patience.over()
            return None
        self._fetch_target = self._seen
        return now + self.heartbeat_us

    def _on_fetch(self, sender: ProcessId, fetch: Fetch, now: int, out: Outbox) -> None:
        known = self.instances
        first = max(fetch.first, known.low)
        out.send((sender,), Chosen(first, known.decisions(first, self.portion_bytes), known.decided, known.low))

    def _on_chosen(self, sender: ProcessId, chosen: Chosen, now: int, out: Outbox) -> None:
        before = self.decided
        self.instances.learn(chosen.first, chosen.batches, self.promised, out)
        self._decided_since(before)
        if chosen.low > self.decided + 1:
            self.stranded_below = chosen.low
        elif before < self.decided < chosen.decided:
            out.send((sender,), Fetch(self.decided + 1))
            self._patience.comes()
        elif before < self.decided:  # that was all
            self._patience.over()
        self.see(chosen.decided, now)
        self.election.choose(now, out)

    @property
    def stranded(self) -> bool:
        """Whether this process needs the user's state from somebody: see `jump`."""
        return self.stranded_below > self.decided + 1

    # -- as the election's voter ---------------------------------------------------------------------------------------

    def vote(self, after: int) -> Promise:
        entries = [(k, *held) for k, held in sorted(self.instances.accepted.items()) if k > after]
        return Promise(self.promised, self.instances.low - 1, entries)

    def keep(self, out: Outbox) -> None:
        out.put(_PROMISED_KEY, _encode(self.promised))

    def ended(self, now: int, out: Outbox) -> None:
        self._queue.clear()
        if self.proposals:
            self.proposals.clear()

    def fetch(self, ahead: ProcessId, position: int, out: Outbox) -> None:
        self.stranded_below = position + 1

    def won(self, votes: dict[ProcessId, Promise], now: int, out: Outbox) -> None:
        """Lead: propose again what may be decided."""
        self.election.go("lead")
        self._deadlines.by("beat", now)
        best = self._choose(list(votes.values()))
        self._next = max(self.decided, *best) + 1 if best else self.decided + 1
        self._begun = (self.promised, self._next - 1)
        self._lost_below = 0
        for instance in range(self.decided + 1, self._next):
            self._send_accept(instance, best.get(instance, (self.promised, []))[1], out)

    def late(self, voter: ProcessId, out: Outbox) -> None:
        """What this voter has accepted cannot be decided any more, or the others know it: its vote is not needed."""

    def readmit(self, returned: ProcessId, out: Outbox) -> None:
        out.send((returned,), Begun(*self._begun))

    def _choose(self, votes: list[Promise]) -> dict[int, tuple[Ballot, Values]]:
        """For every instance the batch that was accepted in the highest ballot."""
        best: dict[int, tuple[Ballot, Values]] = {}
        for vote in votes:
            for instance, ballot, values in vote.entries:
                if instance not in best or ballot > best[instance][0]:
                    best[instance] = (ballot, values)
        return best

    def _on_heartbeat(self, sender: ProcessId, heartbeat: Heartbeat, now: int, out: Outbox) -> None:
        if heartbeat.ballot.leader != sender:
            raise PeerError("a heartbeat of somebody else's ballot")
        if self.election.obey(sender, heartbeat.ballot, now, out, heartbeat.resigning):
            self.see(heartbeat.position, now)

    # -- timers -------------------------------------------------------------------------------------------------------

    def on_peer_reset(self, peer: ProcessId, now: int) -> None:
        """What was under way to or from this member may be lost: a leader sends again with its next heartbeat, and does
        not wait for one more to see that nothing was decided."""
        self.election.on_peer_reset(peer, now)
        self._patience.over()
        self._lost_below = self._next

    def tick(self, now: int, out: Outbox) -> int | None:
        """Heartbeats, elections, fetches, and Accepts that may have been lost. Returns when to call it again."""
        return self._deadlines.run(now, out)

    def beat(self, now: int, out: Outbox) -> None:
        """Send a heartbeat. If nothing was decided since the last one, or a link has lost something, send the first
        instances that were undecided then again, to the members that have not acknowledged them: not more than a
        batch's bytes at once, and few instances, so that no link's queue overflows. When all of these are decided,
        twice as many follow."""
        others = self.election.others
        out.send(others, Heartbeat(self.promised, self.decided, self.election.resigning))
        if now < self._resend_at:
            return  # a heartbeat for who has just come back
        self._resend_at = now + self.heartbeat_us
        (decided, proposed), self._beaten = self._beaten, (self.decided, self._next)
        if decided == self.decided:
            self._lost_below, self._resend_max = max(self._lost_below, proposed), _RESENT_MIN
        else:
            self._resend_max = min(2 * self._resend_max, _RESENT_MAX)
        size = 0
        for instance in range(self.decided + 1, min(self._lost_below, self.decided + 1 + self._resend_max)):
            if size >= self._batch_bytes:
                break
            self._resent = instance
            entry = self.instances.accepted.get(instance)
            if entry is not None and entry[0] == self.promised:
                silent = tuple(p for p in others if p not in self.instances.voters(instance, self.promised))
                out.send(silent, Accept(self.promised, instance, entry[1], self.decided))
                size += _ACCEPT_BYTES + sum(map(len, entry[1]))

    # -- for people ---------------------------------------------------------------------------------------------------

    def describe(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "ballot": self.promised.text,
            "decided": self.decided,
            "kept": self.decided + 1 - self.instances.low,
            "queued": len(self._queue),
        }

    def inspect(self) -> dict[str, Any]:
        """JSON-ready. accepted: instance -> the ballot in which this process has accepted what it holds there."""
        return {"accepted": {str(k): list(ballot) for k, (ballot, _) in sorted(self.instances.accepted.items())}}
