"""Who may lead a group: ballots, elections, and how a process comes back that has lost its disk.

Theory of operation. A ballot has one leader and one set of members; any two quorums of them have a member in common. A
process whose leader is missed (parts.detector) campaigns: it promises itself a higher ballot, and asks the others for
their promises. Who promises takes no part any more in lower ballots, and tells what it holds (its *vote*), in portions.
The candidate has won when it has the votes of a quorum, its own among them, and has caught up with the deliveries that
these voters have and it lacks. What follows is its user's: consensus (parts.paxos), or one state for all (leadership).

    message     from -> to                    durable before it leaves
    NewLeader   candidate -> others           its own promise
    (a vote)    member -> candidate           the promised ballot, and what the vote vouches for
    Nack        member -> candidate, leader   -  (it has promised a higher ballot)
    Returned    who lost its disk -> others   -  (parts.rejoin; answered by Highest)

The first ballot belongs to the first member. A restarted process never leads in a ballot from before. The states of a
process, and what may happen to it in each, are `TRANSITIONS` of parts.ballots.

Lost disk. A process without memory (`REJOINING`) promises nothing and votes for nothing. When all others have answered
it, the leader of a ballot for which it may have voted campaigns for a higher one, and the leader of a higher one
readmits it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from multicast.membership import Views
from multicast.parts import detector
from multicast.parts.ballots import (
    CANDIDATE,
    FIRST_NUMBER,
    FOLLOWER,
    LEADER,
    PROMISED,
    REJOINING,
    REMOVED,
    TRANSITIONS,
    Nack,
    NewLeader,
)
from multicast.parts.deadlines import Deadlines
from multicast.parts.detector import FailureDetector
from multicast.parts.options import GroupOptions
from multicast.parts.portions import Assembly, split
from multicast.parts.rejoin import Highest, Rejoin, Returned
from multicast.protocol import Handler, Outbox, PeerError, Saved
from multicast.types import VIEW_BITS, Ballot, ProcessId, quorum_of

_NACKED = 0.3
"""Patience with a higher ballot that was only heard of, as a share of the usual one."""
_RESTARTED = 0.1
"""Patience of a restarted leader, before it asks whether it is missed."""

_BARREN, _PATIENT = 4, 3
"""After so many ballots that came to nothing patience doubles with each, so often: a vote, or a state, may take longer
than it, on links and disks together. Who has joined a ballot does not know yet that it comes to something: its leader
says so."""
_BEATS_MAX = 10
"""In the time of one heartbeat, however many links break."""

MESSAGES = (NewLeader, Nack, Returned, Highest, *detector.MESSAGES)
VOUCHING = (NewLeader,)


class Vote(Protocol):
    """A vote as the election sees it, a `Portion`. position: what the candidate must have before it may win."""

    ballot: Ballot
    position: int
    entries: list[Any]
    number: int
    count: int


V = TypeVar("V", bound=Vote)


class Voter(Protocol[V]):
    """What the user of an election supplies."""

    def vote(self, after: int) -> V:
        """For `promised`: what this process holds, as a whole; the candidate has everything up to position `after`."""

    def keep(self, out: Outbox) -> None:
        """`promised` has changed: put it."""

    def ended(self, now: int, out: Outbox) -> None:
        """This process has just promised a higher ballot; keep what its vote will vouch for."""

    def fetch(self, ahead: ProcessId, position: int, out: Outbox) -> None:
        """This candidate lacks deliveries up to `position`, which `ahead`, one of its voters, has."""

    def won(self, votes: dict[ProcessId, V], now: int, out: Outbox) -> None:
        """The candidate has the votes of a quorum, and lacks nothing. The user says what follows: `go`."""

    def late(self, voter: ProcessId, out: Outbox) -> None:
        """A vote for this process's ballot has come that it needs no more."""

    def beat(self, now: int, out: Outbox) -> None:
        """At the leader: send a heartbeat to the others."""

    def readmit(self, returned: ProcessId, out: Outbox) -> None:
        """At a leader: this member, whose disk was lost, may join the leader's ballot, which is above all for which it
        may have voted."""


class Election(Generic[V]):
    """One process's part in who leads its group.

    views: of the group; see multicast.membership. members, others: of the views that count. quorum: of the first view.
    state: one of parts.ballots. takes_part: leads or follows in a ballot that has begun. promised: the highest ballot
    promised. highest: the highest heard of, promised or not. detector: whether the leader is missed. deadlines: the
    user's; this part adds its timers, the user one more: "return", for a process that has lost its disk. position():
    how much of the group's history is here. bytes_of(entry): of a vote. view_begun(number, out): a ballot of this view
    has begun.
    """

    def __init__(
        self,
        voter: Voter[V],
        self_id: ProcessId,
        views: Views,
        options: GroupOptions,
        rng: random.Random,
        deadlines: Deadlines,
        *,
        position: Callable[[], int],
        bytes_of: Callable[[Any], int],
        view_begun: Callable[[int, Outbox], None] = lambda number, out: None,
    ):
        self.views, self._self_id = views, self_id
        self._assembly: Assembly[Any] = Assembly()
        self.follow_views()
        self.quorum = quorum_of(len(self.members))
        self.state = PROMISED
        self.takes_part = False
        self.promised = self.highest = Ballot(FIRST_NUMBER, self.members[0])
        self.rejoin = Rejoin(views, self_id, options.retry_us, rng)
        self._voter, self._position, self._bytes_of = voter, position, bytes_of
        self._heartbeat_us, self._portion_bytes = options.heartbeat_us, options.portion_bytes
        self._view_begun = view_begun
        self._leaving: tuple[ProcessId, ...] = ()  # of a leader: see `tell_begun`
        self._beaten_at = 0
        self._votes: dict[ProcessId, V] = {}
        self._asked: tuple[ProcessId, NewLeader] | None = None
        self._barren = 0  # ballots promised since one has begun
        self._deadlines = deadlines
        deadlines.add("beat", self._beat)
        self.detector = FailureDetector(self, self_id, options, rng, deadlines)
        deadlines.add("choose", self.choose)
        deadlines.add("view", self._take_view)

    def handlers(self, vote: type[V]) -> dict[type, Handler]:
        """For the user's table, given its type of vote."""
        own: dict[type, Handler] = {
            NewLeader: Handler(self._on_new_leader, own_group=True), vote: Handler(self._on_vote, own_group=True),
            Nack: Handler(self._on_nack, own_group=True), Returned: Handler(self.on_returned, own_group=True),
            Highest: Handler(self.on_highest, own_group=True),
        }  # fmt: skip
        return {**own, **self.detector.handlers}

    def follow_views(self) -> None:
        """The views have changed."""
        self.members = self.views.everybody
        self.others = tuple(p for p in self.members if p != self._self_id)
        self._assembly.keep(self.members)

    def go(self, what: str) -> None:
        """Move to the next state: see `TRANSITIONS`."""
        after = TRANSITIONS[what].get(self.state)
        if after is None:
            raise AssertionError(f"process {self._self_id} is {self.state}: it cannot {what}")
        self.state = after
        self.takes_part = after is LEADER or after is FOLLOWER
        if after is LEADER:
            self.settle()
        self.detector.begin(after is LEADER and (self.promised.number > FIRST_NUMBER or not self.others))

    @property
    def is_member(self) -> bool:
        """False from the loss of its disk until it has come back, before it is added, and once it is removed."""
        return self.state is not REJOINING and self.state is not REMOVED

    @property
    def promises(self) -> bool:
        """Whether it may promise: as a member, or as one that is new and has nothing yet (parts.rejoin)."""
        return self.is_member or (self.state is REJOINING and self.rejoin.is_new)

    @property
    def resigning(self) -> bool:
        """This process should not lead (`MulticastProtocol.on_clock`, parts.reach)."""
        return self.detector.resigning

    @property
    def has_majority(self) -> bool:
        """Of a leader: a quorum has answered one of its latest pulses."""
        return self.detector.has_majority

    @property
    def disk_hangs(self) -> bool:
        """See `on_disk`."""
        return self.detector.disk_hangs

    def restore(self, promised: Ballot, now: int, led: bool) -> None:
        """What was on disk. led: this process perhaps was the leader, so it need not wait long for itself."""
        self.promised = self.highest = promised
        self.detector.wait(now, _RESTARTED if led else 1.0)

    # -- candidates and voters ----------------------------------------------------------------------------------------

    def campaign(self, now: int, out: Outbox) -> None:
        """Stand for election, whoever leads now. The own promise is on disk before anybody is asked (see
        parts.rejoin)."""
        if self._self_id not in self.views.of[self.views.latest]:
            return
        number = max(self.highest.number, self.views.latest << VIEW_BITS) + 1
        position = self._position()
        self.promise("campaign", Ballot(number, self._self_id), now, out)
        self.send_vote(self._voter.vote(position), out)
        if self.others:
            out.send_durable(self.others, NewLeader(self.promised, position))

    def _on_new_leader(self, sender: ProcessId, asked: NewLeader, now: int, out: Outbox) -> None:
        if asked.ballot.leader != sender:
            raise PeerError("NewLeader of somebody else's ballot")
        if self.state is REMOVED:
            self.tell_view((sender,), out)
        if not self.promises:
            return
        if asked.ballot <= self.promised:
            out.send((sender,), Nack(self.promised))
            return
        if not self.knows_view(sender, asked.ballot, out):
            self._asked = (sender, asked)
            return
        self.promise("promise", asked.ballot, now, out)
        self.send_vote(self._voter.vote(asked.position), out)

    def knows_view(self, sender: ProcessId, ballot: Ballot, out: Outbox) -> bool:
        """Whether this process has delivered what made the view of this ballot; if not, `sender` has."""
        if ballot.view > self.views.latest:
            out.catch_up(sender)
            return False
        return True

    def _take_view(self, now: int, out: Outbox) -> None:
        """The group has decided a new view: campaign for a ballot in it, or leave that to whoever should. Answer, too,
        the candidate who asked for a promise in this view before it was known here."""
        if not self.promises:
            return
        if self.is_member and self._leads_to_view():
            self.campaign(now, out)
        elif self.state is LEADER:
            self.step_down(now)
        if self._asked is not None:
            (sender, asked), self._asked = self._asked, None
            self._on_new_leader(sender, asked, now, out)

    def _leads_to_view(self) -> bool:
        """Whether this process should campaign for the first ballot of the latest view: the present leader does; if it
        was removed, the first member."""
        members = self.views.of[self.views.latest]
        if self._self_id not in members or self.promised.view == self.views.latest:
            return False
        leader = self.promised.leader
        return leader == self._self_id or (leader not in members and self._self_id == members[0])

    def tell_view(self, to: tuple[ProcessId, ...], out: Outbox) -> None:
        """Tell the latest view that has begun, if it is not the first. Whom it leaves out may end, and nobody else
        know it: so it is on disk before, and members leave it to their leader to tell that one (`tell_begun`)."""
        leaving = self._leaving if self.state is LEADER else () if self.state is REMOVED else self._left_out()
        to = tuple(p for p in to if p not in leaving)
        if self.views.begun and to:
            out.send_durable(to, self.views.told(self.views.begun))

    def tell_begun(self, others: tuple[ProcessId, ...], out: Outbox) -> None:
        """The leader's ballot has begun. Whom its view leaves out hears that last, when a majority of the others knows
        it: then it ends, and if it alone knew, and this leader died, they would wait for either."""
        self._leaving = self._left_out() if self.others else ()
        self.tell_view(others, out)

    def _left_out(self) -> tuple[ProcessId, ...]:
        """Who belonged to the view before the latest one that has begun, and does not any more."""
        before = self.views.of.get(self.views.begun - 1, ())
        return tuple(p for p in before if p not in self.members)

    def begun(self, ballot: Ballot, out: Outbox) -> None:
        """See `Elector`. Also one that has not joined it yet knows by that that its view has begun."""
        self.settle()
        self._view_begun(ballot.view, out)

    def tell_removed(self, out: Outbox) -> None:
        """See `Elector`."""
        leaving, self._leaving = self._leaving, ()
        self.tell_view(leaving, out)

    def step_down(self, now: int) -> None:
        """The group has gone on without this leader: wait for whoever leads a later ballot, or campaign again."""
        self.go("step down")
        self.detector.wait(now)

    def promise(self, what: str, ballot: Ballot, now: int, out: Outbox) -> None:
        """A higher ballot than any before. what: "promise" or "campaign"."""
        self.go(what)
        self.promised, self.highest = ballot, max(self.highest, ballot)
        self._votes = {}
        self._assembly.clear()
        self._barren += 1
        self.wait(now)
        self._voter.ended(now, out)
        self._voter.keep(out)

    def wait(self, now: int, share: float = 1.0) -> None:
        """Wait anew for a ballot to begin. share: of the patience that is due after so many that did not."""
        self.detector.wait(now, share * 2.0 ** min(max(self._barren - _BARREN, 0), _PATIENT))

    def settle(self) -> None:
        """A ballot has begun: from now on with the usual patience."""
        self._barren = 0
        self.detector.settle()

    def send_vote(self, vote: V, out: Outbox) -> None:
        """To the leader of the promised ballot, once the promise is on disk."""
        for portion in self.portions(vote):
            out.send_durable((self.promised.leader,), portion)

    def portions(self, whole: Any) -> list[Any]:
        """A vote, or something like it, as the messages in which it travels."""
        return split(whole, self._bytes_of, self._portion_bytes)

    def assemble(self, sender: ProcessId, portion: Any, counts: bool = True) -> bool:
        """A portion has come. Returns whether it is the last one; then it is given all entries. counts: if not, those
        before it do not, either, and what comes after it is not the rest of them."""
        if not counts:
            self._assembly.forget(sender)
            return False
        entries = self._assembly.add(sender, portion.number, portion.count, portion.entries)
        if entries is not None:
            portion.entries = entries
        return entries is not None

    def _on_vote(self, sender: ProcessId, vote: V, now: int, out: Outbox) -> None:
        """A quorum of votes is acted on once; later ones are late."""
        if vote.ballot != self.promised or vote.ballot.leader != self._self_id or sender not in self.members:
            return
        if sender != self._self_id and self.state is CANDIDATE:
            self.detector.heard(now)  # it will be here, however large it is
        if not self.assemble(sender, vote):
            return
        if self.state is CANDIDATE:
            self._votes[sender] = vote
            self.choose(now, out)
        elif sender != self._self_id:
            self._voter.late(sender, out)

    def choose(self, now: int, out: Outbox) -> None:
        """Win, once there are enough votes and nothing is lacking."""
        votes = self._votes
        if self.state is not CANDIDATE or self._self_id not in votes or self.promised.view < self.views.latest:
            return
        if self.promised.number > FIRST_NUMBER and not self.views.can_elect(votes):
            return
        ahead = max(votes, key=lambda p: votes[p].position)
        if votes[ahead].position > self._position():
            self._voter.fetch(ahead, votes[ahead].position, out)
            self._deadlines.by("choose", now + self._heartbeat_us)
            return
        self._votes = {}
        self._voter.won(votes, now, out)

    def _on_nack(self, sender: ProcessId, nack: Nack, now: int, out: Outbox) -> None:
        """Wait a little for the leader of that ballot to act; then campaign against it."""
        if nack.ballot > self.highest and self.knows_view(sender, nack.ballot, out):
            self.highest = nack.ballot
            self.wait(now, _NACKED)

    def obey(self, sender: ProcessId, ballot: Ballot, now: int, out: Outbox, resigning: bool | None = None) -> bool:
        """A leader of this ballot has said something that counts unless a higher ballot is promised. Returns whether it
        counts."""
        if ballot < self.promised:
            out.send((sender,), Nack(self.promised))
            return False
        if ballot > self.promised and self.state is REJOINING:
            self.promised, self.highest = ballot, max(self.highest, ballot)
            self._voter.keep(out)
        elif ballot > self.promised:
            self.promise("promise", ballot, now, out)
        if sender != self._self_id:  # a leader that has heard of a higher ballot must not reassure itself
            self.detector.heard(now, resigning)
        return True

    # -- after the loss of a disk -------------------------------------------------------------------------------------

    def lose_disk(self, saved: Saved, now: int, out: Outbox) -> bool:
        """Returns whether this process has lost its disk, now or in an earlier life, and has not come back since."""
        if not self.rejoin.restore(saved, now, out):
            return False
        self.go("lose the disk")
        self._deadlines.by("return", now)
        return True

    def on_returned(self, sender: ProcessId, returned: Returned, now: int, out: Outbox) -> None:
        """A member says that it has lost its disk. (The user has already forgotten what that member had told it.)
        Perhaps it does not know who leads."""
        self.tell_view((sender,), out)
        if sender not in self.members:  # it was removed, and nobody campaigns on its account
            return
        bound = self.rejoin.on_returned(sender, returned, self.highest, self._position(), out)
        if bound is None or not self.knows_view(sender, bound, out):  # it will repeat that
            return
        self.highest = max(self.highest, bound)
        if self.state is LEADER and self.promised > bound:
            self._voter.readmit(sender, out)
        elif self.state is LEADER:
            self.campaign(now, out)

    def on_highest(self, sender: ProcessId, answer: Highest, now: int, out: Outbox) -> None:
        if self.rejoin.on_highest(sender, answer, now):
            self._deadlines.by("return", now)

    def come_back(self, ballot: Ballot, out: Outbox) -> None:
        """Be a member again: nothing depends on what this process has forgotten, in this ballot and later ones. Durable
        with this batch. (What has come in part of a state that was sent once more is not wanted: it has one.)"""
        self.go("return")
        self._assembly.clear()
        self.promised = max(self.promised, ballot)
        self.highest = max(self.highest, self.promised)
        self.rejoin.finish(out)

    # -- timers -------------------------------------------------------------------------------------------------------

    def on_peer_reset(self, peer: ProcessId, now: int) -> None:
        """What was under way to or from this peer may be lost. A leader soon beats, once for all whose links break at a
        time: a beat goes to everybody, and one for each would make the next queues overflow, and count as unanswered
        before anybody can answer."""
        self._assembly.forget(peer)
        if peer in self.others:
            self._deadlines.by("beat", max(now, self._beaten_at + self._heartbeat_us // _BEATS_MAX))

    def on_clock(self, off: bool, now: int) -> None:
        """As the protocol is told."""
        self.detector.on_clock(off, now)

    def on_disk(self, hangs: bool, now: int) -> None:
        """As the engine is told."""
        self.detector.on_disk(hangs, now)

    def on_connected(self, peer: ProcessId, up: bool, now: int) -> None:
        """As the protocol is told."""
        self.detector.on_connected(peer, up, now)

    def in_turn(self, turn: int) -> ProcessId:
        """Whom to ask what anybody may know: every second time the leader, in between the others, each in turn."""
        leader = self.promised.leader
        if leader != self._self_id and turn % 2:
            return leader
        return self.others[turn // 2 % len(self.others)]

    def answering(self, now: int) -> set[ProcessId]:
        """Of a leader: itself, and who has answered one of its latest pulses and is connected."""
        return self.detector.answering(now)

    def _beat(self, now: int, out: Outbox) -> int | None:
        if self.state is not LEADER or not self.others:
            return None
        self._beaten_at = now
        if self.detector.pulse(now, out):
            self._voter.beat(now, out)
        return now + self._heartbeat_us
