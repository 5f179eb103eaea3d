"""Who may lead a group: ballots, elections, and how a process comes back that has lost its disk.

Theory of operation. A ballot has one leader and one set of members; any two quorums of them have a member in common. A
process that has not heard its leader for too long first asks whether the others miss theirs, too, which changes nothing
(pre-vote: Ongaro's thesis on Raft, 9.6). If a quorum does, it promises itself a higher ballot, and asks the others for
their promises. Who promises takes no part any more in lower ballots, and says what it holds (its *vote*), in portions.
With the votes of a quorum, its own among them, and having caught up with what any of these voters does not tell any
more, the candidate has won. What follows is its user's: consensus (parts.paxos), or one state for all (leadership).

That a leader lives is told by its `Pulse`s, which overtake what waits for the disk, and by whatever else it says. A
leader whose pulses a quorum has not answered for long has no majority: it says so, and is missed as if it were silent,
whatever else it says; so is one whose disk hangs. That there is no connection to a leader is a hint: it shortens
patience; a wrong one costs a question.

    message     from -> to                    durable before it leaves
    Pulse       leader -> others              -  (answered by Echo)
    Doubt       member -> others              -  (answered by Agreed, or not)
    NewLeader   candidate -> others           its own promise
    (a vote)    member -> candidate           the promised ballot, and what the vote vouches for
    Nack        member -> candidate, leader   -  (it has promised a higher ballot)
    Returned    who lost its disk -> others   -  (parts.rejoin; answered by Highest)

The first ballot belongs to the first member. A restarted process never leads in a ballot from before. A leader that
hears of a higher ballot, and sees no new leader soon, stands again, without asking: some member will never follow it.
The states of a process, and what may happen to it in each, are `TRANSITIONS` of parts.ballots.

Lost disk. Who has no memory (`REJOINING`) promises nothing and votes for nothing. When all others have answered it,
whoever leads a ballot for which it may have voted stands for a higher one, and who leads a higher one readmits it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from multicast.membership import Views
from multicast.parts.ballots import (
    CANDIDATE,
    FIRST_NUMBER,
    FOLLOWER,
    LEADER,
    PROMISED,
    REJOINING,
    REMOVED,
    TRANSITIONS,
    Agreed,
    Doubt,
    Echo,
    Nack,
    NewLeader,
    Pulse,
)
from multicast.parts.deadlines import Deadlines
from multicast.parts.options import GroupOptions
from multicast.parts.portions import Assembly, split
from multicast.parts.rejoin import Highest, Rejoin, Returned
from multicast.parts.timer import LeaderTimer
from multicast.protocol import Handler, Outbox, PeerError, Saved
from multicast.types import VIEW_BITS, Ballot, ProcessId, quorum_of

_NACKED = 0.3
"""Patience with a higher ballot that one has only heard of, as a share of the usual one."""
_RESTARTED = 0.1
"""Patience of a restarted leader, before it asks whether it may stand again."""

MESSAGES = (NewLeader, Nack, Returned, Highest, Pulse, Echo, Doubt, Agreed)
VOUCHING = (NewLeader,)


class Vote(Protocol):
    """A vote as the election sees it, a `Portion`. position: what the candidate must have before it may win."""

    ballot: Ballot
    position: int
    entries: list[Any]
    part: int
    parts: int


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
        """This candidate lacks something up to there, and this voter has it."""

    def won(self, votes: dict[ProcessId, V], now: int, out: Outbox) -> None:
        """With the votes of a quorum, and nothing lacking: `go` on."""

    def late(self, voter: ProcessId, out: Outbox) -> None:
        """A vote for this process's ballot, which needs no more."""

    def beat(self, now: int, out: Outbox) -> None:
        """At the leader: send a heartbeat to the others."""

    def readmit(self, returned: ProcessId, out: Outbox) -> None:
        """At the leader of a ballot above all in which this member, whose disk was lost, may have voted: it may join
        this ballot."""


class Election(Generic[V]):
    """One process's part in who leads its group.

    views: of the group; see multicast.membership. members, others: of the views that count. quorum: of the first view.
    state: one of parts.ballots. takes_part: leads or follows in a ballot that has begun. has_majority: of a leader: a
    quorum has answered one of its latest pulses; it leads the first ballot before it has ever been answered.
    promised: the highest ballot promised. highest: the highest heard of, promised or not. disk_hangs: see `on_disk`.
    deadlines: the user's; this part adds its timers, the user one more: "return", for who has lost its disk.
    position(): how much of the group's history is here. bytes_of(entry): of a vote.
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
    ):
        self.views, self._self_id = views, self_id
        self.follow_views()
        self.quorum = quorum_of(len(self.members))
        self.state = PROMISED
        self.takes_part = self.has_majority = self.disk_hangs = False
        self.promised = self.highest = Ballot(FIRST_NUMBER, self.members[0])
        self.rejoin = Rejoin(views, self_id, options.retry_us, rng)
        self._voter, self._position, self._bytes_of = voter, position, bytes_of
        self._asks_first, self._heartbeat_us = options.ask_first, options.heartbeat_us
        self._portion_bytes = options.portion_bytes
        self._timer = LeaderTimer(options.election_timeout_us, rng, options.heartbeat_us)
        self._away: set[ProcessId] = set()
        self._question = self._unanswered = 0
        self._unanswered_max = options.election_timeout_us // options.heartbeat_us
        self._echoed: set[ProcessId] = set()
        self._answered: dict[ProcessId, int] = {}
        self._agreed: dict[ProcessId, int] = {}
        self._unobeyed: Ballot | None = None
        self._votes: dict[ProcessId, V] = {}
        self._asked: tuple[ProcessId, NewLeader] | None = None
        self._assembly: Assembly[Any] = Assembly()
        self._deadlines = deadlines
        deadlines.add("beat", self._beat)
        deadlines.add("campaign", self._campaign_if_due)
        deadlines.add("choose", self.choose)
        deadlines.add("view", self._take_view)

    def handlers(self, vote: type[V]) -> dict[type, Handler]:
        """For the user's table, given its type of vote."""
        return {
            NewLeader: Handler(self._on_new_leader, own_group=True), vote: Handler(self._on_vote, own_group=True),
            Nack: Handler(self._on_nack, own_group=True), Returned: Handler(self.on_returned, own_group=True),
            Highest: Handler(self.on_highest, own_group=True), Pulse: Handler(self._on_pulse, own_group=True),
            Echo: Handler(self._on_echo, own_group=True), Doubt: Handler(self._on_doubt, own_group=True),
            Agreed: Handler(self._on_agreed, own_group=True),
        }  # fmt: skip

    def follow_views(self) -> None:
        """They have changed."""
        self.members = self.views.everybody
        self.others = tuple(p for p in self.members if p != self._self_id)

    def go(self, what: str) -> None:
        """See `TRANSITIONS`."""
        after = TRANSITIONS[what].get(self.state)
        if after is None:
            raise AssertionError(f"process {self._self_id} is {self.state}: it cannot {what}")
        self.state = after
        self.takes_part = after is LEADER or after is FOLLOWER
        self.has_majority = after is LEADER and (self.promised.number > FIRST_NUMBER or not self.others)
        self._question = self._unanswered = 0
        self._echoed.clear()

    @property
    def is_member(self) -> bool:
        """Not so from the loss of its disk until it has come back, before it is added, and once it is removed."""
        return self.state is not REJOINING and self.state is not REMOVED

    @property
    def promises(self) -> bool:
        """Whether it may promise: as a member, or as one that is new and has nothing yet (parts.rejoin)."""
        return self.is_member or (self.state is REJOINING and self.rejoin.is_new)

    @property
    def resigning(self) -> bool:
        """This process should not lead (`MulticastProtocol.on_clock`)."""
        return self._timer.reluctant

    def restore(self, promised: Ballot, highest: Ballot, now: int, led: bool) -> None:
        """What was on disk. led: this process was the leader, perhaps: it need not wait for itself."""
        self.promised, self.highest = promised, max(promised, highest)
        self.wait(now, _RESTARTED if led else 1.0)

    # -- candidates and voters ----------------------------------------------------------------------------------------

    def campaign(self, now: int, out: Outbox) -> None:
        """Try to lead, whoever leads now. The own promise is on disk before anybody is asked (see parts.rejoin)."""
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
        """A view was made: bring it about, or wait for who does. Somebody was asked to promise too early."""
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
        """Who was about to lead, or else the first member if the leader is removed."""
        members = self.views.of[self.views.latest]
        if self._self_id not in members or self.promised.view == self.views.latest:
            return False
        leader = self.promised.leader
        return leader == self._self_id or (leader not in members and self._self_id == members[0])

    def tell_view(self, to: tuple[ProcessId, ...], out: Outbox) -> None:
        """The last view, if it has begun and is not the first."""
        if self.views.latest and len(self.views.counting) == 1 and to:
            out.send(to, self.views.told(self.views.latest))

    def step_down(self, now: int) -> None:
        """The group has gone on without this leader: wait for whoever leads a later ballot, or campaign again."""
        self.go("step down")
        self.wait(now)

    def promise(self, what: str, ballot: Ballot, now: int, out: Outbox) -> None:
        """A higher ballot than any before. what: "promise" or "campaign"."""
        self.go(what)
        self.promised, self.highest = ballot, max(self.highest, ballot)
        self._votes = {}
        self.wait(now)
        self._voter.ended(now, out)
        self._voter.keep(out)

    def send_vote(self, vote: V, out: Outbox) -> None:
        """To the leader of the promised ballot, once the promise is on disk."""
        for portion in self.portions(vote):
            out.send_durable((self.promised.leader,), portion)

    def portions(self, whole: Any) -> list[Any]:
        """A vote, or something like it, as it travels."""
        return split(whole, self._bytes_of, self._portion_bytes)

    def assemble(self, sender: ProcessId, portion: Any) -> bool:
        """Whether this is the last portion; then it has all entries."""
        entries = self._assembly.add(sender, portion.part, portion.parts, portion.entries)
        if entries is not None:
            portion.entries = entries
        return entries is not None

    def _on_vote(self, sender: ProcessId, vote: V, now: int, out: Outbox) -> None:
        """A quorum of votes is acted on once."""
        if vote.ballot != self.promised or vote.ballot.leader != self._self_id:
            return
        if not self.assemble(sender, vote):
            return
        if self.state is CANDIDATE:
            self._votes[sender] = vote
            self.choose(now, out)
        elif sender != self._self_id:
            self._voter.late(sender, out)

    def choose(self, now: int, out: Outbox) -> None:
        """Win, once there are enough votes and nothing lacks."""
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
        """Wait a little for the process of that ballot to lead; then campaign against it."""
        if nack.ballot > self.highest and self.knows_view(sender, nack.ballot, out):
            self.highest = nack.ballot
            self.wait(now, _NACKED)

    def wait(self, now: int, share: float = 1.0) -> None:
        """For a leader, from now on; share: of the usual patience."""
        self._timer.restart(now, share)
        self._timer.cut_off = self.promised.leader in self._away
        self._question = 0
        self._deadlines.by("campaign", self._timer.deadline)

    def heard(self, now: int, resigning: bool = False) -> None:
        """The leader lives, unless it has said that it is as good as silent. resigning: see `LeaderTimer.heard`."""
        if self._unobeyed == self.promised:
            return
        self._timer.heard(now, resigning)
        self._question = 0
        if resigning:
            self._deadlines.by("campaign", self._timer.deadline)

    def obey(self, sender: ProcessId, ballot: Ballot, now: int, out: Outbox, resigning: bool = False) -> bool:
        """A leader of this ballot speaks, to whom it is enough that no higher one is promised. Whether it is."""
        if ballot < self.promised:
            out.send((sender,), Nack(self.promised))
            return False
        if ballot > self.promised and self.state is REJOINING:
            self.promised, self.highest = ballot, max(self.highest, ballot)
            self._voter.keep(out)
        elif ballot > self.promised:
            self.promise("promise", ballot, now, out)
        if sender != self._self_id:  # a leader that has heard of a higher ballot must not reassure itself
            self.heard(now, resigning)
        return True

    # -- whether the leader is missed ----------------------------------------------------------------------------------

    def _on_pulse(self, sender: ProcessId, pulse: Pulse, now: int, out: Outbox) -> None:
        if pulse.ballot.leader != sender:
            raise PeerError("a pulse of somebody else's ballot")
        if pulse.ballot < self.promised and self.promises:
            out.send((sender,), Nack(self.promised))
        elif pulse.ballot == self.promised and self.promises:
            out.send((sender,), Echo(pulse.ballot))
            self._unobeyed = None if pulse.obeyed else pulse.ballot
            self.heard(now)

    def _on_echo(self, sender: ProcessId, echo: Echo, now: int, out: Outbox) -> None:
        if echo.ballot == self.promised and self.state is LEADER:
            self._answered[sender] = now
            self._echoed.add(sender)
            if self.views.can_elect(self._echoed | {self._self_id}):
                self._echoed.clear()
                self._unanswered = 0
                self.has_majority = not self.disk_hangs

    def answering(self, now: int) -> set[ProcessId]:
        """Of a leader: itself, and who has answered one of its latest pulses and is connected."""
        return {self._self_id, *(p for p, t in self._answered.items() if t > now - self._timer.timeout_us)} - self._away

    def _ask(self, now: int, out: Outbox) -> None:
        """Patience has ended: do others miss the leader, too? Until it is heard, the question stays the same."""
        if not self._question:
            self._question = now + 1
            self._agreed.clear()
        self._timer.asked(now)
        out.send(self.others, Doubt(self.promised, self._question))

    def _on_doubt(self, sender: ProcessId, doubt: Doubt, now: int, out: Outbox) -> None:
        """The leader whom this member waits for does not lead if it asks itself."""
        if sender not in self.members:
            self.tell_view((sender,), out)
            return
        if self.state is LEADER:
            misses = not self.has_majority or self.resigning
        else:
            misses = sender == self.promised.leader or self._timer.misses(now)
        if misses and self.promises:
            out.send((sender,), Agreed(self.highest, doubt.question))
        elif doubt.ballot < self.promised and self.promises:
            out.send((sender,), Nack(self.promised))

    def _on_agreed(self, sender: ProcessId, agreed: Agreed, now: int, out: Outbox) -> None:
        if agreed.question != self._question or self.disk_hangs or not self.knows_view(sender, agreed.ballot, out):
            return
        self.highest = max(self.highest, agreed.ballot)
        self._agreed[sender] = now
        recent = {p for p, at in self._agreed.items() if at > now - self._timer.timeout_us}
        if self.views.can_elect(recent | {self._self_id}):
            self.campaign(now, out)

    def on_connected(self, peer: ProcessId, up: bool, now: int) -> None:
        """As the protocol is told."""
        (self._away.discard if up else self._away.add)(peer)
        if peer == self.promised.leader:
            self._timer.cut_off = not up
            self._deadlines.by("campaign", max(now, self._timer.deadline))

    # -- after the loss of a disk -------------------------------------------------------------------------------------

    def lose_disk(self, saved: Saved, now: int, out: Outbox) -> bool:
        """Whether this process has lost its disk, now or in an earlier life, and has not come back since."""
        if not self.rejoin.restore(saved, now, out):
            return False
        self.go("lose the disk")
        self._deadlines.by("return", now)
        return True

    def on_returned(self, sender: ProcessId, returned: Returned, now: int, out: Outbox) -> None:
        """A member has lost its disk. The user has forgotten what it had told. It may not know who leads."""
        self.tell_view((sender,), out)
        if sender not in self.members:  # it was removed, and nobody stands again on its account
            return
        bound = self.rejoin.on_returned(sender, returned, self.highest, self._position(), out)
        if bound is None:
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
        """Nothing depends on what this member has forgotten in this ballot and later ones. Durable with this batch."""
        self.go("return")
        self.promised = max(self.promised, ballot)
        self.highest = max(self.highest, self.promised)
        self.rejoin.finish(out)

    # -- timers -------------------------------------------------------------------------------------------------------

    def on_peer_reset(self, peer: ProcessId, now: int) -> None:
        """What was under way to or from this peer may be lost."""
        self._assembly.forget(peer)
        if peer in self.others:
            self._deadlines.by("beat", now)

    def on_clock(self, off: bool, now: int) -> None:
        """As the protocol is told."""
        self._timer.reluctant = off
        self._deadlines.by("beat", now)
        self._deadlines.by("campaign", now)

    def on_disk(self, hangs: bool, now: int) -> None:
        """As the engine is told. Who leads says that it should be missed; who could not promise does not stand."""
        self.disk_hangs = hangs
        self._deadlines.by("beat", now)
        self._deadlines.by("campaign", now)

    def _beat(self, now: int, out: Outbox) -> int | None:
        if self.state is not LEADER or not self.others:
            return None
        self._unanswered += 1
        obeyed = self._unanswered <= self._unanswered_max and not self.disk_hangs
        self.has_majority = self.has_majority and obeyed
        out.send(self.others, Pulse(self.promised, obeyed))
        if obeyed:
            self._voter.beat(now, out)
        return now + self._heartbeat_us

    def _campaign_if_due(self, now: int, out: Outbox) -> int | None:
        """A leader stands again if it has heard of a higher ballot, and still leads. Others ask first."""
        if not self.is_member or self.disk_hangs or (self.state is LEADER and self.highest <= self.promised):
            return None
        if self._timer.due(now):
            unasked = self.state is LEADER or self.views.can_elect((self._self_id,)) or not self._asks_first
            if unasked and self._self_id in self.views.of[self.views.latest]:
                self.campaign(now, out)
            else:  # who may not lead is told that it is removed
                self._ask(now, out)
        return self._timer.deadline
