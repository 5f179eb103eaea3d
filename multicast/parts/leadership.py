"""Leading by states: how a new leader brings its group into one state.

Theory of operation. Elections, and what a ballot and a vote are, is parts.election. A candidate that has won chooses a
state by the votes, takes it over, and sends it, in portions, to the others, who *join* the ballot by taking it over,
too. The ballot has begun once a quorum has joined it. Who comes late votes without its own state and gets the leader's
present one. What is fetched before a candidate wins are the deliveries that any of its voters has.

    message     from -> to                    durable before it leaves
    NewLeader, Vote, Nack, Pulse, Doubt, ...  (parts.election)
    State       new leader -> others          -
    Joined      member -> leader or members   the state, and the ballot that it joined
    Heartbeat   leader -> others              as its protocol demands
    LeaderIs    new leader -> everybody       -  (who waits for an answer of this group asks again)

What a protocol supplies is `Led`: what a vote and a state hold (its own subclasses of `Vote` and `State`), which
state the votes of a quorum amount to (`choose`), how a process takes one over (`adopt`), what it says then
(`accepted`), and what it does when a ballot begins (`confirmed`) or ends (`ended`) for it.

Use. Merge `handlers(...)` into the protocol's own; call `start` once what is on disk has been restored, `installed`
after each delivery that came from a peer's journal, `tick` and `on_peer_reset` with the protocol's own; be the
protocol's `election`. Durable, under one key: the promised and the joined ballot. The state of the first ballot is the
empty one: its leader leads when its own Joined comes back from the disk.

Lost disk. Who has no memory (`REJOINING`) keeps the state of a ballot above all for which it may have voted until it
has the group's deliveries up to what that leaves out, and then joins it.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from multicast import membership
from multicast.membership import Membership, ViewAsk, ViewIs, change_of, view_key
from multicast.parts import election
from multicast.parts.ballots import (
    ELECT,
    FIRST_NUMBER,
    FOLLOWER,
    JOINED,
    LEADER,
    PROMISED,
    REJOINING,
    REMOVED,
    Heartbeat,
    Joined,
    KnownLeaders,
    LeaderIs,
    Nack,
    State,
    Vote,
)
from multicast.parts.deadlines import Deadlines
from multicast.parts.founding import FoundedGroups
from multicast.parts.options import GroupOptions
from multicast.parts.rejoin import Highest
from multicast.protocol import Handler, Outbox, PeerError, Saved
from multicast.types import AppMessage, Ballot, GroupId, ProcessId

_BALLOTS_KEY = b"b"
_BEGUN_KEY = b"B"
_REMOVED_KEY = b"X"
_VOTE_AGAIN_RETRIES = 20

MESSAGES = (*election.MESSAGES, *membership.MESSAGES)
"""Without LeaderIs, and without those of which each protocol has its own kind."""
VOUCHING = election.VOUCHING

V = TypeVar("V", bound=Vote)
S = TypeVar("S", bound=State)


class Led(Protocol[V, S]):
    """What a protocol supplies."""

    def vote(self) -> V:
        """This process's state as a whole, for the ballot `promised`."""

    def state(self) -> S:
        """This leader's present state as a whole, of the ballot `joined`."""

    def choose(self, votes: dict[ProcessId, V]) -> S:
        """The state in which `promised` begins, given the votes of a quorum."""

    def adopt(self, state: S, now: int, out: Outbox) -> None:
        """Take over the state of the ballot `joined`, which is new, and keep it."""

    def accepted(self, out: Outbox) -> Joined:
        """What this process tells when it has joined `joined`. It is sent when everything that was put is on disk."""

    def confirmed(self, now: int, out: Outbox) -> None:
        """`joined` has begun: this process leads or follows."""

    def ended(self, now: int, out: Outbox) -> None:
        """This process has just promised a higher ballot; keep what its vote will vouch for."""

    def beat(self, out: Outbox) -> None:
        """Send a heartbeat to the others."""

    def heard(self, heartbeat: Any, out: Outbox) -> None:
        """A heartbeat of the leader that this process follows."""

    def leaders_changed(self, now: int) -> None:
        """Another process leads a group, or it is known only now who belongs to a ballot: what waits may be answered by
        another process, and what was told before may count."""


class Deliveries(Protocol):
    """position: of the last one."""

    position: int


class Leadership(Generic[V, S]):
    """One process's part in bringing its group into the state of whoever is elected: the `Voter` of its election.

    election: of this group's leader: which ballot is promised, and what this process is in it.
    to_all: who joins a ballot tells all members, and each waits for a quorum of them before it follows. Otherwise it
    tells the leader alone, and follows at once.
    joined: the ballot whose state this process has. leaders: group -> the latest ballot heard of.
    """

    def __init__(
        self,
        led: Led[V, S],
        deliveries: Deliveries,
        self_id: ProcessId,
        membership: Membership,
        options: GroupOptions,
        rng: random.Random,
        to_all: bool = False,
    ):
        self.group: GroupId = membership.group_of[self_id]
        self.membership = membership
        self._deadlines = Deadlines({"return": self._return, "views": self._ask_for_views})
        self.election: election.Election[V] = election.Election(
            self, self_id, membership.views[self.group], options, rng, self._deadlines, view_begun=self._view_begun,
            position=lambda: deliveries.position, bytes_of=lambda entry: len(entry.message.payload),
        )  # fmt: skip
        self.joined = self.election.promised
        self.leaders = KnownLeaders(membership)
        self._founded = FoundedGroups(membership, self_id, self.election.tell_view, self._deadlines, options.retry_us)
        self._led, self._self_id, self._deliveries = led, self_id, deliveries
        self._retry_us = options.retry_us
        self._rng = rng
        self._to_all = to_all
        self._held: S | None = None
        self._joiners: set[ProcessId] = set()
        self._counted, self._vote_again_at = self.joined, 0

    def handlers(
        self, vote: type[V], state: type[S], joined: type = Joined, heartbeat: type = Heartbeat
    ) -> dict[type, Handler]:
        """For the protocol's table, given its types of these messages."""
        return {
            **self.election.handlers(vote), **self._founded.handlers, ViewIs: Handler(self._on_view_is),
            ViewAsk: Handler(self._on_view_ask), LeaderIs: Handler(self._on_leader_is),
            Highest: Handler(self.on_highest, True),
            state: Handler(self._on_new_state, True), joined: Handler(self.on_joined, True),
            heartbeat: Handler(self._on_heartbeat, True),
        }  # fmt: skip

    # -- for the protocol ---------------------------------------------------------------------------------------------

    def role(self) -> str:
        """See `MulticastProtocol.role`."""
        return self.election.state if self.election.state in (LEADER, FOLLOWER, REJOINING, REMOVED) else "recovering"

    def start(self, saved: Saved, now: int, out: Outbox) -> None:
        """A life begins."""
        self._founded.restore(saved.values)
        self._restore_views(saved.values)
        self._follow_views()
        self._founded.start(out)
        if self.election.lose_disk(saved, now, out):
            self.election.promised = self.joined = self.election.highest = Ballot(0, self.election.views.of[0][0])
            if self.election.rejoin.is_new and _BALLOTS_KEY in saved.values:
                self.election.promised = self.election.highest = _decode_ballots(saved.values[_BALLOTS_KEY])[0]
        elif _BALLOTS_KEY in saved.values:
            promised, self.joined = _decode_ballots(saved.values[_BALLOTS_KEY])
            self._counted = self.leaders[self.group] = promised
            self.election.restore(promised, now, self.joined.leader == self._self_id)
            if self.joined.leader != self._self_id and self.joined == self.election.promised:
                self.election.go("join")
                if not self._to_all:
                    self.election.go("confirm")
        else:
            self.keep(out)
            self.election.detector.wait(now)
            if self.joined.leader == self._self_id:
                self.election.go("campaign")
                self.election.go("choose")
                out.send_durable((self._self_id,), self._led.accepted(out))
            else:
                self.election.go("join")
                self.election.go("confirm")
        if _REMOVED_KEY in saved.values:
            self.election.go("leave")

    def hear(self, sender: ProcessId, ballot: Ballot, now: int, out: Outbox) -> bool:
        """This ballot's leader has sent something: it leads, or is told that it does not. Returns whether it does."""
        if ballot < self.election.promised:
            out.send((sender,), Nack(self.election.promised))
        elif ballot == self.joined and sender != self._self_id:
            self.election.detector.heard(now)  # a leader that has heard of a higher ballot must not reassure itself
        return ballot >= self.election.promised

    def is_current(self, ballot: Ballot) -> bool:
        """Whether this process, a member, has joined this ballot, and has promised none above it."""
        return self.election.is_member and ballot == self.joined == self.election.promised

    def confirm(self, now: int, out: Outbox) -> None:
        """A message proves that the joined ballot has begun."""
        if self.election.state is JOINED:
            self._confirm(now, out)

    def installed(self, now: int, out: Outbox) -> None:
        """A delivery came from a peer's journal."""
        self.election.choose(now, out)
        self._return_if_caught_up(now, out)

    # -- views (multicast.membership) ---------------------------------------------------------------------------------

    def may_order(self, message: AppMessage) -> bool:
        """Whether this leader may order the message. It may not if that changes a view of which no ballot has begun."""
        change = change_of(message)
        return change is None or change.view <= self.joined.view

    def delivered(self, message: AppMessage, out: Outbox) -> None:
        """The group's next delivery: it may change the group, or found one."""
        self._founded.delivered(message, out)
        change = change_of(message) if self.election.state is not REMOVED else None
        if change is not None and self.election.views.change(change, self._deliveries.position):
            self._put_view(self.group, self.election.views.latest, out)
            self._follow_views()
            self.election.rejoin.ask_more()
            self._deadlines.by("view", 0)

    def _put_view(self, group: GroupId, number: int, out: Outbox) -> None:
        out.put(view_key(group, number), self.membership.views[group].encode(number))

    def views_given(self, position: int) -> Iterable[tuple[bytes, bytes]]:
        """For a snapshot: what was put of views up to this delivery."""
        return ((view_key(self.group, n), self.election.views.encode(n)) for n in self.election.views.given(position))

    def _restore_views(self, values: Mapping[bytes, bytes]) -> None:
        self.membership.restore(values, self.group, int.from_bytes(values.get(_BEGUN_KEY, b""), "big"))

    def _follow_views(self) -> None:
        self.membership.follow(self.group)
        self.election.follow_views()

    def _view_begun(self, number: int, out: Outbox) -> None:
        """This view has begun: a ballot of it has."""
        if self.election.views.begin(number):
            out.put(_BEGUN_KEY, number.to_bytes(4, "big"))
            self._follow_views()

    def _on_view_ask(self, sender: ProcessId, asked: ViewAsk, now: int, out: Outbox) -> None:
        self.election.tell_view((sender,), out)

    def _on_view_is(self, sender: ProcessId, view: ViewIs, now: int, out: Outbox) -> None:
        group = self._founded.group_of(sender, view)
        views = self.membership.views[group]
        removed = group == self.group and self.election.state is REMOVED
        if group != self.group or (removed and view.number > views.latest):
            if views.learn(view):
                self._put_view(group, view.number, out)
                if removed:
                    out.put(_BEGUN_KEY, view.number.to_bytes(4, "big"))
                self.membership.follow(group)
                self._led.leaders_changed(now)
        elif view.number > views.latest:
            out.catch_up(sender)
        else:
            self._view_begun(view.number, out)  # else nobody tells it
            if not removed and self._self_id not in view.members and views.had(self._self_id, view.number):
                self.election.go("leave")
                self._held = None
                self._follow_views()  # whoever watches the members sees it
                out.put(_REMOVED_KEY, b"")

    # -- as the election's voter ---------------------------------------------------------------------------------------

    def vote(self, after: int) -> V:
        return self._led.vote() if self.election.is_member else self._empty_vote()

    def keep(self, out: Outbox) -> None:
        out.put(_BALLOTS_KEY, _encode((self.election.promised, self.joined)))

    def ended(self, now: int, out: Outbox) -> None:
        self._vote_again_at = now + _VOTE_AGAIN_RETRIES * self._retry_us
        self._held = None  # who is new has promised a higher one
        self._led.ended(now, out)

    def fetch(self, ahead: ProcessId, position: int, out: Outbox) -> None:
        out.catch_up(ahead)

    def won(self, votes: dict[ProcessId, V], now: int, out: Outbox) -> None:
        self.election.go("choose")
        self.election.detector.heard(now)  # so far it has come
        self._take_over(self._led.choose(votes), now, out)
        self.send_state(self.election.others, out)
        self._tell_joined(now, out)

    def late(self, voter: ProcessId, out: Outbox) -> None:
        """Whoever votes late is sent the present state."""
        if self.joined == self.election.promised:
            self.send_state((voter,), out)

    def beat(self, now: int, out: Outbox) -> None:
        self._led.beat(out)

    def readmit(self, returned: ProcessId, out: Outbox) -> None:
        if returned in self.election.members:
            self.send_state((returned,), out)

    # -- states -------------------------------------------------------------------------------------------------------

    def send_state(self, to: tuple[ProcessId, ...], out: Outbox) -> None:
        """The leader's present one."""
        for portion in self.election.portions(self._led.state()):
            out.send(to, portion)

    def _on_new_state(self, sender: ProcessId, state: S, now: int, out: Outbox) -> None:
        own, ballot = self.election, state.ballot
        if sender != ballot.leader:
            raise PeerError("the state of somebody else's ballot")
        if own.state is REJOINING:
            if own.assemble(sender, state, ballot >= own.promised and own.rejoin.may_join(ballot)):
                self._held = state
                out.catch_up(sender)
                self._return_if_caught_up(now, out)
        elif own.state is PROMISED and ballot == own.promised:
            own.detector.heard(now)
            if own.assemble(sender, state):
                self._join(state, now, out)

    def _join(self, state: S, now: int, out: Outbox) -> None:
        self.election.go("join")
        self.election.wait(now)
        self._take_over(state, now, out)
        self._tell_joined(now, out)
        if not self._to_all:
            self._confirm(now, out)

    def _take_over(self, state: S, now: int, out: Outbox) -> None:
        self.joined = state.ballot
        self.leaders.learn(self.group, state.ballot)
        self._led.adopt(state, now, out)
        self.keep(out)

    def _tell_joined(self, now: int, out: Outbox) -> None:
        out.send_durable(self.election.members if self._to_all else (self.joined.leader,), self._led.accepted(out))
        self._confirm_by_quorum(now, out)

    def on_joined(self, sender: ProcessId, joined: Joined, now: int, out: Outbox) -> None:
        """A process has joined a ballot, perhaps one that this process has yet to join."""
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
        enough = self.election.views.can_begin(self.joined, self._joiners)
        if self.election.state is ELECT:
            enough = self._self_id in self._joiners and (enough or self.joined.number == FIRST_NUMBER)
        if enough and self.election.state in (ELECT, JOINED):
            self._confirm(now, out)

    def _confirm(self, now: int, out: Outbox) -> None:
        self.election.go("confirm")
        self._deadlines.by("beat", now)
        if self.election.state is LEADER:
            others = self.membership.others(self._self_id)
            self._view_begun(self.joined.view, out)
            self.election.tell_begun(others, out)
        self._led.confirmed(now, out)
        if self.election.state is LEADER:
            self.learn_leader(self.group, self.joined, now, out, self._self_id)
            out.send_durable(others, LeaderIs(self.joined))  # behind its view
            if self.joined.view < self.election.views.latest:
                self._deadlines.by("view", now)

    # -- leaders and followers ----------------------------------------------------------------------------------------

    def learn_leader(self, group: GroupId, ballot: Ballot, now: int, out: Outbox, by: ProcessId | None = None) -> None:
        """See `KnownLeaders.learn`. Of an added leader, unheard of here, nothing is learned before its view."""
        lacks = ballot.view not in self.membership.views[group].of
        unheard = lacks and ballot.leader not in self.membership.group_of
        if lacks and not (unheard and self._deadlines.is_set("views")):
            out.send(self.membership.groups[group] if unheard else (ballot.leader,), ViewAsk())
            self._deadlines.by("views", now + self._retry_us)
        if not unheard and self.leaders.learn(group, ballot, by):
            self._led.leaders_changed(now)

    def _ask_for_views(self, now: int, out: Outbox) -> int | None:
        """Ask again, anyone who may know: whoever was asked has died, or did not know it, or something was lost."""
        known = self.membership.views
        lacking = [g for g, ballot in self.leaders.items() if g != self.group and ballot.view not in known[g].of]
        for group in lacking:
            out.send(tuple({self.leaders[group].leader, *self.membership.groups[group]}), ViewAsk())
        return now + self._retry_us if lacking else None

    def _on_leader_is(self, sender: ProcessId, message: LeaderIs, now: int, out: Outbox) -> None:
        self.learn_leader(self.membership.group_of[sender], message.ballot, now, out, sender)

    def _on_heartbeat(self, sender: ProcessId, heartbeat: Heartbeat, now: int, out: Outbox) -> None:
        ballot = heartbeat.ballot
        if ballot.leader != sender:
            raise PeerError("a heartbeat of somebody else's ballot")
        if self.election.state is REMOVED:
            return
        if ballot < self.election.promised:
            out.send((sender,), Nack(self.election.promised))
        elif self.election.state is REJOINING:
            self.election.detector.heard(now)
            self.leaders.learn(self.group, ballot)
            self._view_begun(ballot.view, out)  # who was removed need not answer
            if heartbeat.position > self._deliveries.position:
                out.catch_up(sender)
        elif ballot == self.joined:
            self.election.detector.heard(now, heartbeat.resigning)
            self._view_begun(ballot.view, out)
            self.confirm(now, out)
            self._led.heard(heartbeat, out)
        else:  # this process missed the election, or the new state was lost
            self.election.detector.heard(now)
            if not self.election.knows_view(sender, ballot, out):
                return
            if ballot > self.election.promised or now >= self._vote_again_at:
                self._vote_late(ballot, now, out)

    def _vote_late(self, ballot: Ballot, now: int, out: Outbox) -> None:
        """The ballot has begun: this vote only asks for its state, again after a reset, or a very long time."""
        self.election.promise("promise", ballot, now, out)
        self.election.send_vote(self._empty_vote(), out)

    def _empty_vote(self) -> V:
        vote = self._led.vote()
        vote.entries = []
        return vote

    # -- after the loss of a disk -------------------------------------------------------------------------------------

    def on_highest(self, sender: ProcessId, answer: Highest, now: int, out: Outbox) -> None:
        if answer.reached > self._deliveries.position and self.election.state is REJOINING:
            out.catch_up(sender)
        self.election.on_highest(sender, answer, now, out)

    def _return(self, now: int, out: Outbox) -> int | None:
        """Ask the others again, unless only deliveries are missing."""
        if self.election.state is not REJOINING:
            return None
        later = now + self._retry_us
        if self._held is not None and not self.election.rejoin.may_join(self._held.ballot):
            self._held = None  # more members have answered since
        lacks = self._deliveries.position < self.election.rejoin.reach or self._held is not None
        if lacks and self.election.rejoin.bound is not None:
            out.catch_up(self._rng.choice(self.election.others))
            return later
        return self.election.rejoin.tick(now, out) or later

    def _return_if_caught_up(self, now: int, out: Outbox) -> None:
        state = self._held
        if state is None or self._deliveries.position < max(state.reach, self.election.rejoin.reach):
            return
        if state.ballot.view > self.election.views.latest or not self.election.rejoin.may_join(state.ballot):
            return
        self._held = None
        if self.election.rejoin.is_new:
            out.send(tuple(p for p in self.membership.processes if p not in self.election.members), ViewAsk())
        self.election.come_back(state.ballot, out)
        self._join(state, now, out)

    # -- timers -------------------------------------------------------------------------------------------------------

    def link_reset(self, peer: ProcessId, now: int, out: Outbox) -> None:
        """What was under way to or from this peer may be lost, also the word of who belongs to which group."""
        self.election.on_peer_reset(peer, now)
        if peer == self.election.promised.leader:
            self._vote_again_at = now
        self._founded.on_peer_reset(peer, out)

    def tick(self, now: int, out: Outbox) -> int | None:
        """Returns the next instant at which to be called."""
        self._founded.tick(out)
        return self._deadlines.run(now, out)


_encode = msgspec.msgpack.Encoder().encode
_decode_ballots = msgspec.msgpack.Decoder(tuple[Ballot, Ballot]).decode
