"""Who leads a group: ballots, elections, and how a new leader brings its group into one state.

Theory of operation. A ballot has one leader and one set of members; any two quorums of them have a member in common. A
process that has not heard its leader for too long promises itself a higher ballot, and asks the others for theirs. Who
promises takes no part any more in lower ballots, and says what it holds (its *vote*), in portions. With the votes of a
quorum, and having caught up with all that any of these voters has delivered, the candidate chooses a state, takes it
over, and sends it, in portions, to the others, who *join* the ballot by taking it over, too. The ballot has begun once
a quorum has joined it. Who comes late votes without its own state and gets the leader's present one.

    message     from -> to                    durable before it leaves
    NewLeader   candidate -> others           its own promise
    Vote        member -> candidate           the promised ballot, and what the vote vouches for
    State       new leader -> others          -
    Joined      member -> leader or members   the state, and the ballot that it joined
    Nack        member -> candidate, leader   -  (it has promised a higher ballot)
    Heartbeat   leader -> others              as its protocol demands
    Returned    who lost its disk -> others   -  (parts.rejoin; answered by Highest)

What a protocol supplies is `Led`: what a vote and a state hold (its own subclasses of `Vote` and `State`), which
state the votes of a quorum amount to (`choose`), how a process takes one over (`adopt`), what it says then
(`accepted`), and what it does when a ballot begins (`confirmed`) or ends (`ended`) for it.

Use. Merge `handlers(...)` into the protocol's own; call `start` once what is on disk has been restored, `installed`
after each delivery that came from a peer's journal, `tick`, `on_peer_reset` and `on_clock` with the protocol's own.
Durable, under one key: the promised and the joined ballot. The first ballot belongs to the first member, and its state
is the empty one: its leader leads when its own Joined comes back from the disk. A restarted process never leads in a
ballot from before. A leader or candidate that hears of a higher ballot, and sees no new leader soon, stands again.

The states of a process, and what may happen to it in each, are `TRANSITIONS` of parts.ballots.

Lost disk. Who has no memory (`rejoining`) promises nothing and votes for nothing. It keeps the state of a ballot above
all for which it may have voted until it has the group's deliveries up to what that leaves out, and then joins it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from multicast.parts.ballots import (
    CANDIDATE,
    ELECT,
    FIRST_NUMBER,
    FOLLOWER,
    JOINED,
    LEADER,
    PROMISED,
    REJOINING,
    TRANSITIONS,
    Heartbeat,
    Joined,
    Nack,
    NewLeader,
    State,
    Vote,
)
from multicast.parts.deadlines import Deadlines
from multicast.parts.options import GroupOptions
from multicast.parts.portions import Assembly, split
from multicast.parts.rejoin import Highest, Rejoin, Returned
from multicast.parts.timer import LeaderTimer
from multicast.protocol import Handler, Outbox, PeerError, Saved
from multicast.types import Ballot, GroupId, ProcessId, Topology

_BALLOTS_KEY = b"b"
_NACKED = 0.3
"""Patience with a higher ballot that one has only heard of, as a share of the usual one."""
_RESTARTED = 0.1
"""Patience of a restarted leader, before it stands again."""
_VOTE_AGAIN_RETRIES = 20


V = TypeVar("V", bound=Vote)
S = TypeVar("S", bound=State)


class Led(Protocol[V, S]):
    """What a protocol supplies."""

    def vote(self) -> V:
        """For `promised`: this process's state as a whole."""

    def state(self) -> S:
        """Of `joined`: this leader's present state as a whole."""

    def choose(self, votes: dict[ProcessId, V]) -> S:
        """The state in which `promised` begins, given the votes of a quorum."""

    def adopt(self, state: S, now: int, out: Outbox) -> None:
        """Take over the state of `joined`, which is new; keep it."""

    def accepted(self, out: Outbox) -> Joined:
        """What this process says when it has joined `joined`. Leaves it when all that was put is on disk."""

    def confirmed(self, now: int, out: Outbox) -> None:
        """`joined` has begun: this process leads or follows."""

    def ended(self, now: int, out: Outbox) -> None:
        """This process has just promised a higher ballot; keep what its vote will vouch for."""

    def beat(self, out: Outbox) -> None:
        """Send a heartbeat to the others."""

    def heard(self, heartbeat: Any, out: Outbox) -> None:
        """One of the leader that this process follows."""


class Deliveries(Protocol):
    """position: of the last one."""

    position: int


class Leadership(Generic[V, S]):
    """One process's part in who leads its group.

    to_all: who joins a ballot tells all members, and each waits for a quorum of them before it follows. Otherwise it
    tells the leader alone, and follows at once.
    state: one of parts.ballots. takes_part: leads or follows in a ballot that has begun.
    members, others, quorum: of the present ballot, and of every other so far.
    promised: the highest ballot promised. joined: the one whose state this process has.
    leaders: group -> the latest ballot heard of.
    """

    def __init__(
        self,
        led: Led[V, S],
        deliveries: Deliveries,
        self_id: ProcessId,
        topology: Topology,
        options: GroupOptions,
        rng: random.Random,
        to_all: bool = False,
    ):
        self.group: GroupId = topology.group_of[self_id]
        self.members = topology.groups[self.group]
        self.others = tuple(p for p in self.members if p != self_id)
        self.quorum = topology.quorum(self.group)
        self.state = PROMISED
        self.takes_part = False
        self.promised = self.joined = Ballot(FIRST_NUMBER, self.members[0])
        self.leaders = {g: Ballot(FIRST_NUMBER, members[0]) for g, members in topology.groups.items()}
        self.rejoin = Rejoin(self_id, self.members, options.retry_us, rng)
        self._led = led
        self._deliveries = deliveries
        self._self_id = self_id
        self._topology = topology
        self._options = options
        self._rng = rng
        self._to_all = to_all
        self._highest = self.promised
        self._timer = LeaderTimer(options.election_timeout_us, rng)
        self._votes: dict[ProcessId, V] = {}
        self._assembly: Assembly[Any] = Assembly()
        self._held: S | None = None
        self._counted = self.promised
        self._joiners: set[ProcessId] = set()
        self._vote_again_at = 0
        timers = {"beat": self._beat, "stand": self._stand_if_due, "choose": self._choose, "return": self._return}
        self._deadlines = Deadlines(timers)

    def handlers(
        self, vote: type[V], state: type[S], joined: type = Joined, heartbeat: type = Heartbeat
    ) -> dict[type, Handler]:
        """For the protocol's table, given its types of these messages."""
        calls: dict[type, Callable[[ProcessId, Any, int, Outbox], None]] = {
            NewLeader: self._on_new_leader, vote: self._on_vote, state: self._on_new_state, joined: self.on_joined,
            Nack: self._on_nack, heartbeat: self._on_heartbeat, Returned: self.on_returned, Highest: self._on_highest,
        }  # fmt: skip
        return {kind: Handler(call, own_group=True) for kind, call in calls.items()}

    def _go(self, what: str) -> None:
        after = TRANSITIONS[what].get(self.state)
        if after is None:
            raise AssertionError(f"process {self._self_id} is {self.state}: it cannot {what}")
        self.state = after
        self.takes_part = after is LEADER or after is FOLLOWER

    # -- for the protocol ---------------------------------------------------------------------------------------------

    @property
    def resigning(self) -> bool:
        """This process should not lead (`MulticastProtocol.on_clock`)."""
        return self._timer.reluctant

    def role(self) -> str:
        """See `MulticastProtocol.role`."""
        return self.state if self.state in (LEADER, FOLLOWER, REJOINING) else "recovering"

    def start(self, saved: Saved, now: int, out: Outbox) -> None:
        """A life begins."""
        self._wait(now)
        if self.rejoin.restore(saved, now, out):
            self._go("lose the disk")
            self._deadlines.by("return", now)
            self.promised = self.joined = self._highest = Ballot(0, self.members[0])
        elif _BALLOTS_KEY in saved.values:
            self.promised, self.joined = _decode_ballots(saved.values[_BALLOTS_KEY])
            self._highest = self._counted = self.leaders[self.group] = self.promised
            if self.joined.leader == self._self_id:
                self._wait(now, _RESTARTED)
            elif self.joined == self.promised:
                self._go("join")
                if not self._to_all:
                    self._go("confirm")
        else:
            self._save(out)
            if self.joined.leader == self._self_id:
                self._go("stand")
                self._go("choose")
                out.send_durable((self._self_id,), self._led.accepted(out))
            else:
                self._go("join")
                self._go("confirm")

    def learn(self, group: GroupId, ballot: Ballot) -> bool:
        """Somebody says that this ballot's leader leads that group. Whether this is new."""
        if ballot.leader not in self._topology.groups[group]:
            raise PeerError(f"process {ballot.leader} does not belong to group {group}")
        if ballot <= self.leaders[group]:
            return False
        self.leaders[group] = ballot
        return True

    def hear(self, sender: ProcessId, ballot: Ballot, now: int, out: Outbox) -> None:
        """A message of this ballot's leader: it lives, or is told that it is deposed."""
        if ballot < self.promised:
            out.send((sender,), Nack(self.promised))
        elif ballot == self.joined and sender != self._self_id:
            self._timer.heard(now)  # a leader that has heard of a higher ballot must not reassure itself

    def is_current(self, ballot: Ballot) -> bool:
        """Whether this process has joined this ballot, and has promised none above it."""
        return ballot == self.joined == self.promised

    def confirm(self, now: int, out: Outbox) -> None:
        """A message proves that the joined ballot has begun."""
        if self.state is JOINED:
            self._confirm(now, out)

    def step_down(self, now: int) -> None:
        """The group has gone on without this leader: wait for whoever leads a later ballot, or stand again."""
        self._go("step down")
        self._wait(now)

    def installed(self, now: int, out: Outbox) -> None:
        """A delivery came from a peer's journal."""
        if self.state is CANDIDATE:
            self._choose(now, out)
        elif self.state is REJOINING:
            self._return_if_caught_up(now, out)

    # -- candidates and voters ----------------------------------------------------------------------------------------

    def stand(self, now: int, out: Outbox) -> None:
        """Try to lead, whoever leads now. The own promise is on disk before anybody is asked, for those who lose their
        disks (parts.rejoin)."""
        number = max(self.promised.number, self._highest.number) + 1
        self._promise("stand", Ballot(number, self._self_id), now, out)
        if self.others:
            out.send_durable(self.others, NewLeader(self.promised))

    def _on_new_leader(self, sender: ProcessId, asked: NewLeader, now: int, out: Outbox) -> None:
        if asked.ballot.leader != sender:
            raise PeerError("NewLeader of somebody else's ballot")
        if self.state is REJOINING:
            return
        if asked.ballot <= self.promised:
            out.send((sender,), Nack(self.promised))
            return
        self._promise("promise", asked.ballot, now, out)

    def _promise(self, what: str, ballot: Ballot, now: int, out: Outbox, late: bool = False) -> None:
        """late: the ballot has begun, so that this vote only asks for its state. It is repeated if the link has lost
        its memory, or after a very long time."""
        self._go(what)
        self.promised = ballot
        self._highest = max(self._highest, ballot)
        self._vote_again_at = now + _VOTE_AGAIN_RETRIES * self._options.retry_us
        self._votes = {}
        self._assembly.clear()
        self._wait(now)
        self._led.ended(now, out)
        self._save(out)
        vote = self._led.vote()
        if late:
            vote.entries = []
        for portion in self._portions(vote):
            out.send_durable((ballot.leader,), portion)

    def _on_vote(self, sender: ProcessId, vote: V, now: int, out: Outbox) -> None:
        """A quorum of votes is acted on once; later ones ask for the present state."""
        if vote.ballot != self.promised or vote.ballot.leader != self._self_id:
            return
        if not self._assemble(sender, vote):
            return
        if self.state is CANDIDATE:
            self._votes[sender] = vote
            self._choose(now, out)
        elif sender != self._self_id and self.joined == self.promised:
            self.send_state((sender,), out)

    def _choose(self, now: int, out: Outbox) -> None:
        """Once there are enough votes, and their deliveries here."""
        votes = self._votes
        if self.state is not CANDIDATE or len(votes) < self.quorum:
            return
        ahead = max(votes, key=lambda p: votes[p].position)
        if votes[ahead].position > self._deliveries.position:
            out.catch_up(ahead)
            self._deadlines.by("choose", now + self._options.heartbeat_us)
            return
        self._votes = {}
        self._go("choose")
        self._take_over(self._led.choose(votes), now, out)
        self.send_state(self.others, out)
        self._tell_joined(now, out)

    def _save(self, out: Outbox) -> None:
        out.put(_BALLOTS_KEY, _encode((self.promised, self.joined)))

    # -- states -------------------------------------------------------------------------------------------------------

    def send_state(self, to: tuple[ProcessId, ...], out: Outbox) -> None:
        """The leader's present one."""
        for portion in self._portions(self._led.state()):
            out.send(to, portion)

    def _portions(self, whole: Any) -> list[Any]:
        return split(whole, lambda entry: len(entry.message.payload), self._options.portion_bytes)

    def _assemble(self, sender: ProcessId, portion: V | S) -> bool:
        """Whether this is the last portion; then it has all entries."""
        entries = self._assembly.add(sender, portion.part, portion.parts, portion.entries)
        if entries is not None:
            portion.entries = entries
        return entries is not None

    def _on_new_state(self, sender: ProcessId, state: S, now: int, out: Outbox) -> None:
        ballot = state.ballot
        if sender != ballot.leader:
            raise PeerError("the state of somebody else's ballot")
        if self.state is REJOINING:
            if self.rejoin.may_join(ballot) and self._assemble(sender, state):
                if self._held is None or ballot >= self._held.ballot:
                    self._held = state
                out.catch_up(sender)
                self._return_if_caught_up(now, out)
        elif self.state is PROMISED and ballot == self.promised != self.joined and self._assemble(sender, state):
            self._join(state, now, out)

    def _join(self, state: S, now: int, out: Outbox) -> None:
        self._go("join")
        self._wait(now)
        self._take_over(state, now, out)
        self._tell_joined(now, out)
        if not self._to_all:
            self._confirm(now, out)

    def _take_over(self, state: S, now: int, out: Outbox) -> None:
        self.joined = state.ballot
        self.learn(self.group, state.ballot)
        self._led.adopt(state, now, out)
        self._save(out)

    def _tell_joined(self, now: int, out: Outbox) -> None:
        out.send_durable(self.members if self._to_all else (self.joined.leader,), self._led.accepted(out))
        self._confirm_by_quorum(now, out)

    def on_joined(self, sender: ProcessId, joined: Joined, now: int, out: Outbox) -> None:
        """Also of a ballot that this process will join."""
        if joined.ballot > self._counted:
            self._counted = joined.ballot
            self._joiners = set()
        if joined.ballot == self._counted:
            self._joiners.add(sender)
            self._confirm_by_quorum(now, out)

    def _confirm_by_quorum(self, now: int, out: Outbox) -> None:
        """A leader is itself among those who have joined: what it has taken over is on its own disk."""
        if self._counted != self.joined:
            return
        enough = len(self._joiners) >= self.quorum
        if self.state is ELECT:
            enough = self._self_id in self._joiners and (enough or self.joined.number == FIRST_NUMBER)
        if enough and self.state in (ELECT, JOINED):
            self._confirm(now, out)

    def _confirm(self, now: int, out: Outbox) -> None:
        self._go("confirm")
        self._deadlines.by("beat", now)
        self._led.confirmed(now, out)

    # -- leaders and followers ----------------------------------------------------------------------------------------

    def _on_nack(self, sender: ProcessId, nack: Nack, now: int, out: Outbox) -> None:
        """Wait a little for the process of that ballot to lead; then stand against it."""
        if nack.ballot > self._highest:
            self._highest = nack.ballot
            self._wait(now, _NACKED)

    def _wait(self, now: int, share: float = 1.0) -> None:
        """For a leader, from now on."""
        self._timer.restart(now, share)
        self._deadlines.by("stand", self._timer.deadline)

    def _on_heartbeat(self, sender: ProcessId, heartbeat: Heartbeat, now: int, out: Outbox) -> None:
        ballot = heartbeat.ballot
        if ballot.leader != sender:
            raise PeerError("a heartbeat of somebody else's ballot")
        if self.state is REJOINING:
            self.learn(self.group, ballot)
            if heartbeat.position > self._deliveries.position:
                out.catch_up(sender)
        elif ballot < self.promised:
            out.send((sender,), Nack(self.promised))
        elif ballot == self.joined:
            self._timer.heard(now, heartbeat.resigning)
            self._deadlines.by("stand", self._timer.deadline)
            self.confirm(now, out)
            self._led.heard(heartbeat, out)
        else:  # this process missed the election, or the new state was lost
            self._timer.heard(now)
            if ballot > self.promised or now >= self._vote_again_at:
                self._promise("promise", ballot, now, out, late=True)

    # -- after the loss of a disk -------------------------------------------------------------------------------------

    def on_returned(self, sender: ProcessId, returned: Returned, now: int, out: Outbox) -> None:
        """A member has lost its disk. The protocol has forgotten what that member had told."""
        highest = max(self.promised, self._highest)
        bound = self.rejoin.on_returned(sender, returned, highest, self._deliveries.position, out)
        if bound is None:
            return
        self._highest = max(self._highest, bound)
        if self.state is not LEADER:
            return
        if self.joined > bound:
            self.send_state((sender,), out)
        else:
            self.stand(now, out)

    def _on_highest(self, sender: ProcessId, answer: Highest, now: int, out: Outbox) -> None:
        if answer.reached > self._deliveries.position and self.state is REJOINING:
            out.catch_up(sender)
        if self.rejoin.on_highest(sender, answer, now):
            self._deadlines.by("return", now)

    def _return(self, now: int, out: Outbox) -> int | None:
        """Ask the others again, unless only deliveries are missing."""
        if self.state is not REJOINING:
            return None
        later: int = now + self._options.retry_us
        if self._deliveries.position < self.rejoin.reach or self._held is not None:
            out.catch_up(self._rng.choice(self.others))
            return later
        return self.rejoin.tick(now, out) or later

    def _return_if_caught_up(self, now: int, out: Outbox) -> None:
        state = self._held
        if state is None or self._deliveries.position < max(state.reach, self.rejoin.reach):
            return
        self._held = None
        self.promised = state.ballot
        self._highest = max(self._highest, state.ballot)
        self.rejoin.finish(out)
        self._join(state, now, out)

    # -- timers -------------------------------------------------------------------------------------------------------

    def on_peer_reset(self, peer: ProcessId, now: int) -> None:
        """What was under way to or from this peer may be lost."""
        self._assembly.forget(peer)
        if peer == self.promised.leader:
            self._vote_again_at = now
        if peer in self.others:
            self._deadlines.by("beat", now)

    def on_clock(self, off: bool, now: int) -> None:
        """See `MulticastProtocol.on_clock`."""
        self._timer.reluctant = off
        self._deadlines.by("beat", now)
        self._deadlines.by("stand", now)

    def tick(self, now: int, out: Outbox) -> int | None:
        """The next instant that it wants."""
        return self._deadlines.run(now, out)

    def _beat(self, now: int, out: Outbox) -> int | None:
        if self.state is not LEADER or not self.others:
            return None
        self._led.beat(out)
        return now + self._options.heartbeat_us

    def _stand_if_due(self, now: int, out: Outbox) -> int | None:
        """A leader stands again if it has heard of a higher ballot, and still leads."""
        if self.state is REJOINING or (self.state is LEADER and self._highest <= self.promised):
            return None
        if self._timer.due(now):
            self.stand(now, out)
        return self._timer.deadline


_encode = msgspec.msgpack.Encoder().encode
_decode_ballots = msgspec.msgpack.Decoder(tuple[Ballot, Ballot]).decode
