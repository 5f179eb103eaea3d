"""Whether the leader of a group is missed: a failure detector, as one member has it and as the leader itself has it.

Theory of operation. That a leader lives is told by its `Pulse`s, which overtake what waits for the disk, and by
whatever else it says. Members answer pulses (`Echo`). A leader whose pulses a quorum has not answered for long has no
majority: its pulses say so, and members then miss it as if it were silent, whatever else it says. So they do if its
disk hangs.

A member that has not heard its leader for too long (parts.timer) does not campaign yet. It first asks the
others whether they miss their leader, too (`Doubt`, answered by `Agreed` or not at all); that changes nothing in
anybody (pre-vote: Ongaro's thesis on Raft, 9.6). Only if a quorum agrees does it campaign. So one member whose own
links are bad does not depose a leader whom the others hear; one that asks to be relieved is missed by all of them
who could do better (parts.reach). A broken connection to the leader is a hint: it shortens the wait, and where the hint
was wrong, that costs a question.

    message     from -> to                    durable before it leaves
    Pulse       leader -> others              -  (answered by Echo; by Nack, if a higher ballot is promised)
    Doubt       member -> others              -  (answered by Agreed, or not)

A leader asks nobody. If it hears of a higher ballot, and of no leader that acts in it, it campaigns at once: some
member has promised that ballot, and will never follow a lower one.
"""

from __future__ import annotations

import random
from typing import Protocol

from multicast.membership import Views
from multicast.parts.ballots import LEADER, REMOVED, Agreed, Doubt, Echo, Nack, Pulse
from multicast.parts.deadlines import Deadlines
from multicast.parts.options import GroupOptions
from multicast.parts.reach import Reach
from multicast.parts.timer import LeaderTimer
from multicast.protocol import Handler, Outbox, PeerError
from multicast.types import Ballot, ProcessId

MESSAGES = (Pulse, Echo, Doubt, Agreed)


class Elector(Protocol):
    """Whose detector it is: see `parts.election.Election`."""

    views: Views
    members: tuple[ProcessId, ...]
    others: tuple[ProcessId, ...]
    state: str
    promised: Ballot
    highest: Ballot

    @property
    def is_member(self) -> bool: ...

    @property
    def promises(self) -> bool: ...

    def knows_view(self, sender: ProcessId, ballot: Ballot, out: Outbox) -> bool: ...

    def tell_view(self, to: tuple[ProcessId, ...], out: Outbox) -> None: ...

    def begun(self, ballot: Ballot, out: Outbox) -> None:
        """This ballot has begun: its leader says that it lives."""

    def tell_removed(self, out: Outbox) -> None:
        """A majority knows that this leader's ballot has begun."""

    def campaign(self, now: int, out: Outbox) -> None:
        """The leader is missed, by a quorum."""


class FailureDetector:
    """One process's. deadlines: the user's; this part adds the timer "campaign".

    has_majority: of a leader: a quorum has answered one of its latest pulses. disk_hangs: see `on_disk`.
    """

    def __init__(
        self, election: Elector, self_id: ProcessId, options: GroupOptions, rng: random.Random, deadlines: Deadlines
    ):
        self._election, self._self_id = election, self_id
        self._asks_first = options.ask_first
        self._timer = LeaderTimer(options.election_timeout_us, rng, options.heartbeat_us)
        self.reach = Reach(self_id, options.election_timeout_us)
        # of a leader
        self.has_majority = self.disk_hangs = False
        self._unanswered = 0  # pulses since a quorum has answered one
        self._unanswered_max = options.election_timeout_us // options.heartbeat_us
        self._echoed: set[ProcessId] = set()  # who has answered since then
        self._answered: dict[ProcessId, int] = {}  # when each last answered
        # of another member
        self._unobeyed: Ballot | None = None  # the leader of this ballot has said that it has no majority
        self._resigning: Ballot | None = None  # the leader of this ballot has asked to be relieved
        self._question = 0  # the number of the present Doubt; 0: none is asked
        self._agreed: dict[ProcessId, int] = {}  # when each last agreed
        self._deadlines = deadlines
        deadlines.add("campaign", self._campaign_if_due)
        self.handlers: dict[type, Handler] = {
            Pulse: Handler(self._on_pulse, own_group=True), Echo: Handler(self._on_echo, own_group=True),
            Doubt: Handler(self._on_doubt, own_group=True), Agreed: Handler(self._on_agreed, own_group=True),
        }  # fmt: skip

    # -- what happens to the process ----------------------------------------------------------------------------------

    @property
    def resigning(self) -> bool:
        """This process should not lead (`MulticastProtocol.on_clock`, parts.reach)."""
        return self._timer.reluctant or self.reach.parted

    def begin(self, has_majority: bool) -> None:
        """The process is in another state (`parts.ballots.TRANSITIONS`). has_majority: it leads, and is obeyed until
        its pulses are found to be unanswered."""
        self.has_majority = has_majority
        self._question = self._unanswered = 0
        self._echoed.clear()

    def on_connected(self, peer: ProcessId, up: bool, now: int) -> None:
        """As the protocol is told."""
        self.reach.connected(peer, up, now)
        if peer == self._election.promised.leader:
            self._timer.cut_off = not up
            self._deadlines.by("campaign", max(now, self._timer.deadline))

    def on_clock(self, off: bool, now: int) -> None:
        """As the protocol is told."""
        self._timer.reluctant = off
        self._deadlines.by("beat", now)
        self._deadlines.by("campaign", now)

    def on_disk(self, hangs: bool, now: int) -> None:
        """As the engine is told. A leader whose disk hangs says that it should be missed; another member could not
        promise anything, so it does not campaign."""
        self.disk_hangs = hangs
        self._deadlines.by("beat", now)
        self._deadlines.by("campaign", now)

    # -- the leader ---------------------------------------------------------------------------------------------------

    def pulse(self, now: int, out: Outbox) -> bool:
        """At a leader, at each heartbeat: tell the others that it lives. Returns whether it is obeyed."""
        self.reach.look(now)
        self._unanswered += 1
        obeyed = self._unanswered <= self._unanswered_max and not self.disk_hangs
        self.has_majority = self.has_majority and obeyed
        out.send(self._election.others, Pulse(self._election.promised, obeyed))
        return obeyed

    def _on_echo(self, sender: ProcessId, echo: Echo, now: int, out: Outbox) -> None:
        if echo.ballot == self._election.promised and self._election.state is LEADER:
            self._answered[sender] = now
            self._echoed.add(sender)
            if self._election.views.can_elect(self._echoed | {self._self_id}):
                self._echoed.clear()
                self._unanswered = 0
                self.has_majority = not self.disk_hangs
                self._election.tell_removed(out)

    def answering(self, now: int) -> set[ProcessId]:
        """Of a leader: itself, and who has answered one of its latest pulses and is connected."""
        recent = {p for p, at in self._answered.items() if at > now - self._timer.timeout_us}
        return {self._self_id, *recent} - self.reach.lost.keys()

    # -- another member -----------------------------------------------------------------------------------------------

    def wait(self, now: int, share: float = 1.0) -> None:
        """Wait for a leader, from now on. share: of the usual patience."""
        self._timer.restart(now, share)
        self._timer.cut_off = self._election.promised.leader in self.reach.lost
        self._question = 0
        self._deadlines.by("campaign", self._timer.deadline)

    def settle(self) -> None:
        """Somebody leads: be no more patient than usual."""
        self._timer.settle()

    def heard(self, now: int, resigning: bool | None = None) -> None:
        """The leader has said something: it lives, unless it has said that it has no majority. resigning: see
        `LeaderTimer.heard`."""
        if resigning and not self.reach.is_whole():
            self._resigning = resigning = None  # this process could do no better; if nobody can, nothing changes
        elif resigning is not None:
            self._resigning = self._election.promised if resigning else None
        if self._unobeyed == self._election.promised:
            return
        self._timer.heard(now, resigning)
        self._question = 0
        if resigning:
            self._deadlines.by("campaign", self._timer.deadline)

    def _on_pulse(self, sender: ProcessId, pulse: Pulse, now: int, out: Outbox) -> None:
        if pulse.ballot.leader != sender:
            raise PeerError("a pulse of somebody else's ballot")
        promised, promises = self._election.promised, self._election.promises
        if pulse.ballot < promised and promises:
            out.send((sender,), Nack(promised))
        elif pulse.ballot == promised and promises:
            out.send((sender,), Echo(pulse.ballot))
            self._election.begun(pulse.ballot, out)
            self._unobeyed = None if pulse.obeyed else pulse.ballot
            self.heard(now)

    def _campaign_if_due(self, now: int, out: Outbox) -> int | None:
        election = self._election
        leads = election.state is LEADER
        if not election.is_member or self.disk_hangs or (leads and election.highest <= election.promised):
            return None
        if self._timer.due(now):
            unasked = leads or election.views.can_elect((self._self_id,)) or not self._asks_first
            if unasked and self._self_id in election.views.of[election.views.latest]:
                election.campaign(now, out)
            else:  # one that was removed without knowing it is told so in answer to its question
                self._ask(now, out)
        return self._timer.deadline

    def _ask(self, now: int, out: Outbox) -> None:
        """Do others miss the leader, too? The question keeps its number until the leader is heard."""
        if not self._question:
            self._question = now + 1
            self._agreed.clear()
        self._timer.asked(now)
        out.send(self._election.others, Doubt(self._election.promised, self._question))

    def _on_doubt(self, sender: ProcessId, doubt: Doubt, now: int, out: Outbox) -> None:
        election = self._election
        if sender not in election.members or election.state is REMOVED:
            election.tell_view((sender,), out)  # to one who was removed, or by one: perhaps nobody else is left to tell
            return
        if election.state is LEADER:
            misses = not self.has_majority or self.resigning
        elif self._resigning == election.promised:  # though its own clock may be off
            misses = True
        else:  # a leader that asks does not lead
            misses = sender == election.promised.leader or self._timer.misses(now)
        if misses and election.promises:
            out.send((sender,), Agreed(election.highest, doubt.question))
        elif doubt.ballot < election.promised and election.promises:
            out.send((sender,), Nack(election.promised))

    def _on_agreed(self, sender: ProcessId, agreed: Agreed, now: int, out: Outbox) -> None:
        election = self._election
        if agreed.question != self._question or self.disk_hangs:
            return
        if not election.knows_view(sender, agreed.ballot, out):
            return
        election.highest = max(election.highest, agreed.ballot)
        self._agreed[sender] = now
        recent = {p for p, at in self._agreed.items() if at > now - self._timer.timeout_us}
        if election.views.can_elect(recent | {self._self_id}):
            election.campaign(now, out)
