"""Who leads has been elected: a quorum, itself included, has sent it whole votes for just this ballot, and it has what
these voters have.

Of protocols with `MulticastProtocol.election`. Their votes come in portions (`number` of `count`), in order over one
link; if that loses its memory on the way, the vote is not whole. The first ballot needs no votes. A vote's `position`
(and `reach`, clock, length of T, and the last instance that it names) a leader has, too; so has, of a group that acts
as one process, who begins to act as its leader, of a quorum's `Position`s of just this ballot. Where who has won brings
the others into one state, majorities have said that they have taken over that of just this ballot: of the ballot's
view, and of the one before it unless another ballot of this view has begun (multicast.membership). There, who leads or
follows does so in the ballot that it has promised, and in no other. A leader takes itself for obeyed (parts.detector)
when a majority has answered since it last did so; who stands because others agree has their answers to its question.
Votes and states hold all that they are to hold.

Who comes back after the loss of its disk does so when it may: when all others have answered it, in a ballot above all
in which others may have its vote, with what its group and a quorum of every other one say that it must have
(parts.rejoin, parts.reminders). What it is told, and whereto it is readmitted, is judged where that is said.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from multicast.membership import Views
from multicast.parts.accepts import ACCEPTED
from multicast.simulation.checkers import Checker
from multicast.types import ZERO, Ballot, GroupId, ProcessId, Timestamp, is_majority, quorum_of

if TYPE_CHECKING:
    from multicast.simulation.scene import Node

_VOTES = ("NewLeaderAck", "Promise")
_WON = ("leader", "elect")
_FIRST_NUMBER = 1
_NO_PAST = Ballot(0, 0)
"""The bound of who was added, and has not been a member before: what it told it has on disk."""


Sends = list[tuple[tuple[ProcessId, ...], Any, bool]]


class _Votes:
    """What a candidate has been told for one ballot. portions: sender -> how many are there, -1 for all. The rest: the
    highest of whole votes."""

    def __init__(self) -> None:
        self.portions: dict[ProcessId, int] = {}
        self.told: dict[ProcessId, tuple[int, int, int, int]] = {}
        self.longest: tuple[Ballot, int] = (_NO_PAST, 0)

    def add(self, sender: ProcessId, vote: Any) -> None:
        if vote.number not in (0, self.portions.get(sender)):
            return
        self.portions[sender] = -1 if vote.number == vote.count - 1 else vote.number + 1
        last = max((e[0] for e in vote.entries if isinstance(e, tuple)), default=0)
        if vote.number:
            last = max(last, self.told[sender][2])
        self.told[sender] = vote.position, getattr(vote, "reach", 0), last, getattr(vote, "clock", 0)
        if hasattr(vote, "length") and self.portions[sender] < 0:
            self.longest = max(self.longest, (vote.joined, vote.length))

    @property
    def whole(self) -> list[ProcessId]:
        return sorted(sender for sender, portions in self.portions.items() if portions < 0)


class _Echoes:
    """Who has answered the pulses of a leader since it last was obeyed. pulses: how many it has sent since."""

    def __init__(self, ballot: Ballot = _NO_PAST, pulses: int = 0) -> None:
        self.ballot = ballot
        self.pulses = pulses
        self.senders: set[ProcessId] = set()


class Elections(Checker):
    """See the module's first paragraphs."""

    watches_protocol = True

    def __init__(self) -> None:
        super().__init__()
        self._votes: dict[ProcessId, dict[Ballot, _Votes]] = {}
        self._judged: dict[ProcessId, Ballot] = {}
        self._begun: dict[ProcessId, tuple[Ballot, int]] = {}
        self._positions: dict[ProcessId, dict[tuple[Ballot, ProcessId], tuple[int, int]]] = {}
        self._acting: dict[ProcessId, Ballot] = {}
        self._joiners: dict[ProcessId, dict[Ballot, set[ProcessId]]] = {}
        self._leading: dict[ProcessId, Ballot] = {}
        self._echoes: dict[ProcessId, _Echoes] = {}
        self._doubts: dict[ProcessId, tuple[int, Ballot, dict[ProcessId, int]]] = {}
        self._resigning: dict[ProcessId, Ballot] = {}

    def on_life(self, node: Node) -> None:
        """What was told in an earlier life does not count."""
        self._votes[node.pid] = {}
        self._echoes[node.pid] = _Echoes()
        self._joiners[node.pid] = {}
        self._positions[node.pid] = {}
        for known in (self._judged, self._begun, self._acting, self._leading, self._doubts, self._resigning):
            known.pop(node.pid, None)

    def on_handled(self, node: Node, handler: str, args: tuple[Any, ...], sends: Sends) -> None:
        election: Any = node.protocol.election
        if election is None:
            return
        votes = self._votes[node.pid]
        if handler == "on_message":
            kind = type(args[1]).__name__
            if kind in _VOTES:
                votes.setdefault(args[1].ballot, _Votes()).add(args[0], args[1])
            elif kind == "Position":
                self._positions[node.pid][args[1].ballot, args[0]] = args[1].position, node.clock()
            elif kind == "Joined" or (kind == "Accept" and hasattr(args[1], "length")):  # PrimCast's
                self._joiners[node.pid].setdefault(args[1].ballot, set()).add(args[0])
            elif kind == "Echo" and election.state == "leader" and args[1].ballot == election.promised:
                self._judge_echo(node, args[0], election)
            elif kind == "Doubt":
                self._judge_agreed(node, election, args[0], args[2], sends)
            elif getattr(args[1], "resigning", None) is not None and args[1].ballot == election.promised:
                self._resigning[node.pid] = args[1].ballot if args[1].resigning else _NO_PAST
        elif handler == "on_peer_reset":
            for some in votes.values():
                if some.portions.get(args[0], 0) > 0:
                    del some.portions[args[0]]
        self._judge_question(node, election, args if handler == "on_message" else ())
        ballot = election.promised
        if election.is_member and election.highest.view > (latest := election.views.latest):
            self._wrong(node, ballot, f"goes by {tuple(election.highest)}, of a view beyond {latest}, its last")
        leadership: Any = getattr(node.protocol, "leadership", None)
        if leadership is not None and election.takes_part and leadership.joined != ballot:
            self._wrong(node, ballot, f"takes part in {tuple(leadership.joined)}")
        if election.state in _WON:
            if self._judged.get(node.pid) != ballot and ballot.number > _FIRST_NUMBER:
                self._judged[node.pid] = ballot
                self._judge(node, ballot, votes.get(ballot, _Votes()))
                votes.clear()
            if election.state == "leader" and self._leading.get(node.pid) != ballot and leadership is not None:
                self._leading[node.pid] = ballot
                self._judge_begin(node, leadership.joined)
        self._judge_reign(node)
        if not sends:
            return
        self._judge_told(node, handler, args, sends)
        begun, least = self._begun.get(node.pid, (None, 0))
        for _, message, _ in sends:
            if type(message).__name__ == "Begun" and message.ballot == begun and message.upto < least:
                self._wrong(node, ballot, f"says that it began with instances up to {message.upto}, not {least}")
            elif type(message).__name__ == "Pulse":
                self._judge_pulse(node, election, message)

    def _judge_question(self, node: Node, election: Any, args: tuple[Any, ...]) -> None:
        """Who campaigns because others agree has been told so lately, by enough of them, in answer to its question."""
        pid, detector = node.pid, election.detector
        question, ballot, agreed = self._doubts.get(pid, (0, election.promised, {}))
        if args and type(args[1]).__name__ == "Agreed":
            if question and args[1].question == question:
                agreed[args[0]] = args[2]
            recent = {p for p, at in agreed.items() if at > args[2] - node.protocol.options.election_timeout_us}
            if election.promised != ballot and not election.views.can_elect(recent | {pid}):
                self._wrong(node, election.promised, f"campaigns when {sorted(recent)} have agreed")
        if detector._question != question or election.promised != ballot:
            self._doubts[pid] = detector._question, election.promised, {}

    def _judge_agreed(self, node: Node, election: Any, asker: ProcessId, now: int, sends: Sends) -> None:
        """Who agrees that the leader is missed misses it: it is silent, or has asked to be relieved in this ballot, or
        asks itself."""
        if not any(type(message).__name__ == "Agreed" for _, message, _ in sends):
            return
        if election.state == "leader":
            misses = not election.has_majority or election.resigning
        else:
            relieved = self._resigning.get(node.pid) == election.promised
            misses = relieved or asker == election.promised.leader or election.detector._timer.misses(now)
        if not misses:
            self._wrong(node, election.promised, f"agrees with process {asker}, and does not miss its leader")

    def _judge_told(self, node: Node, handler: str, args: tuple[Any, ...], sends: Sends) -> None:
        """A vote, and a leader's state, hold all that they are to hold; but for a late vote, which only asks."""
        asked = type(args[1]).__name__ if handler == "on_message" else handler
        told: dict[str, set[Any]] = {}
        for _, message, _ in sends:
            kind = type(message).__name__
            if kind == "NewState" or (kind in _VOTES and asked in ("NewLeader", "on_tick")):
                keys = (e[0] if isinstance(e, tuple) else e.message.id for e in message.entries)
                told.setdefault(kind, set()).update(keys)
        if not told or not node.protocol.is_member():
            return
        protocol: Any = node.protocol
        paxos = _paxos_of(protocol)
        if paxos is not None:
            after = args[1].position if asked == "NewLeader" else paxos.decided
            held = {k for k in paxos.instances.accepted if k > after}
        else:
            known = [e for e in protocol.entries.values() if e.message is not None]
            held = {e.id for e in known if (e.epoch is not None if hasattr(e, "epoch") else e.phase >= ACCEPTED)}
        for kind, some in told.items():
            if some != held:
                self._wrong(node, protocol.election.promised, f"tells {len(some)} in its {kind}, of {len(held)}")

    def _judge_echo(self, node: Node, sender: ProcessId, election: Any) -> None:
        """A leader takes itself for obeyed only when a majority has answered since it last did so."""
        echoes = self._echoes[node.pid]
        if echoes.ballot != election.promised:
            self._echoes[node.pid] = echoes = _Echoes(election.promised, echoes.pulses)
        echoes.senders.add(sender)
        if echoes.pulses and not election.detector._unanswered:
            if not election.views.can_elect(echoes.senders | {node.pid}):
                self._wrong(node, election.promised, f"is obeyed when {sorted(echoes.senders)} have answered")
            self._echoes[node.pid] = _Echoes(election.promised)

    def _judge_pulse(self, node: Node, election: Any, pulse: Any) -> None:
        """A leader that no majority answers for long says so."""
        echoes = self._echoes[node.pid]
        if echoes.ballot != pulse.ballot:
            self._echoes[node.pid] = echoes = _Echoes(pulse.ballot)
        echoes.pulses += 1
        if pulse.obeyed and echoes.pulses > election.detector._unanswered_max + 1:
            self._wrong(node, pulse.ballot, f"says that it is obeyed, and {echoes.pulses - 1} pulses have no answer")

    def _judge(self, node: Node, ballot: Ballot, votes: _Votes) -> None:
        topology, pid, voters = node.world.topology, node.pid, votes.whole
        protocol: Any = node.protocol
        group = topology.group_of[pid]
        begun = not ballot.view or (group, ballot.view) in node.world.led
        if len(topology.views[group].of) > 1:
            enough = _are_enough(topology.views[group], ballot, voters, begun)
        else:
            enough = is_majority(protocol.election.members, voters)  # of all processes, perhaps
        if ballot.leader != pid or pid not in voters or not enough:
            self._wrong(node, ballot, f"leads with the votes of {voters}")
            return
        if ballot.view < protocol.election.views.latest:
            self._wrong(node, ballot, f"leads in a view after which it knows of {protocol.election.views.latest}")
        paxos = _paxos_of(protocol)
        position, reach, last, clock = (max(votes.told[p][k] for p in voters) for k in range(4))
        if (paxos.decided if paxos is not None else protocol.log.position) < position:
            self._wrong(node, ballot, f"leads without what its voters have, up to {position}")
        if hasattr(protocol, "t") and protocol.t.reach < reach:
            self._wrong(node, ballot, f"does not know what is settled among its voters, up to {reach}")
        if clock and protocol.clock.value < clock:
            self._wrong(node, ballot, f"begins with clock {protocol.clock.value}, and a voter's is {clock}")
        if hasattr(protocol, "t") and protocol.t.length < votes.longest[1]:
            self._wrong(node, ballot, f"has a T of length {protocol.t.length}, the longest is {votes.longest}")
        self._begun[pid] = (ballot, last)

    def _judge_begin(self, node: Node, ballot: Ballot) -> None:
        group = node.world.topology.group_of[node.pid]
        views, joiners = node.world.topology.views[group], self._joiners[node.pid].pop(ballot, set())
        needed = [views.of[ballot.view]]
        if ballot.view and (group, ballot.view) not in node.world.led:
            needed.append(views.of[ballot.view - 1])
        if ballot.number > _FIRST_NUMBER and not all(is_majority(members, joiners) for members in needed):
            self._wrong(node, ballot, f"leads when {sorted(joiners)} have joined")

    def _judge_reign(self, node: Node) -> None:
        member: Any = getattr(node.protocol, "member", None)
        if member is None or not member.reign.acting or self._acting.get(node.pid) == member.reign.ballot:
            return
        ballot = self._acting[node.pid] = member.reign.ballot
        since = node.clock() - node.protocol.options.election_timeout_us  # who is dead may have delivered more
        positions = self._positions[node.pid].items()
        told = [at for (of, _), (at, when) in positions if of == ballot and when >= since]
        self._positions[node.pid].clear()
        if member.log.is_behind:
            self._wrong(node, ballot, "acts, and has delivered what comes later in the log")
        if ballot.number > _FIRST_NUMBER:
            enough = len(told) >= node.world.topology.quorum(member.group)
            if not enough or max(told) > member.deliveries.position:
                self._wrong(node, ballot, f"acts at delivery {member.deliveries.position}, others are at {told}")

    def _wrong(self, node: Node, ballot: Ballot, text: str) -> None:
        self.report("election", f"process {node.pid} in {tuple(ballot)} {text}")


def _are_enough(views: Views, ballot: Ballot, voters: Collection[ProcessId], has_begun: bool) -> bool:
    """For a ballot of a view that has not begun a majority of the one before it. The candidate may not know it has."""
    of = [views.of[max(0, ballot.view - 1)], *([views.of[ballot.view]] if has_begun else [])]
    return any(is_majority(members, voters) for members in of)


def _reached(protocol: Any) -> int:
    """How much of its group's history it has."""
    paxos = _paxos_of(protocol)
    return int(protocol.log.position if paxos is None else paxos.decided)


def _paxos_of(protocol: Any) -> Any:
    """Its part in a consensus, if it has one."""
    return protocol.member.paxos if hasattr(protocol, "member") else getattr(protocol, "paxos", None)


class _Life:
    """What a process without memory has been told in this life. forgetful: who had forgotten, too, as it knew when it
    asked its present question, and in which life."""

    def __init__(self) -> None:
        self.reminded: set[ProcessId] = set()
        self.watermark: Timestamp = ZERO
        self.numbers: dict[GroupId, int] = {}
        self.states: dict[Ballot, list[int]] = {}
        self.begun: dict[Ballot, int] = {}
        self.question = 0
        self.has_all = False
        self.answers: dict[ProcessId, tuple[Ballot | None, int, int]] = {}
        self.forgetful: dict[ProcessId, int] = {}

    def ask(self, question: int) -> None:
        """This is its question now; perhaps it was before."""
        if question != self.question:
            self.question = question
            self.forgetful = {p: of for p, (ballot, _, of) in self.answers.items() if ballot is None}
            self.answers.clear()


class Returns(Checker):
    """See the module's last paragraph."""

    watches_protocol = True

    def __init__(self) -> None:
        super().__init__()
        self._lives: dict[ProcessId, _Life | None] = {}
        self._numbers: dict[ProcessId, int] = {}
        self._asked: dict[ProcessId, dict[int, int]] = {}
        self._losses: dict[ProcessId, int] = {}
        self._promised: dict[ProcessId, dict[Ballot, int]] = {}
        self._named: dict[tuple[ProcessId, int], int] = {}

    def on_life(self, node: Node) -> None:
        self._lives[node.pid] = None
        self._numbers[node.pid] = self._numbers.get(node.pid, 0) + 1

    def on_handled(self, node: Node, handler: str, args: tuple[Any, ...], sends: Sends) -> None:
        pid, protocol = node.pid, node.protocol
        election: Any = protocol.election
        if election is None:
            return
        life = self._lives[pid]
        for to, message, _ in sends:
            self._judge_told(node, election, args[1] if handler == "on_message" else None, to, message)
        told: Any = args[1] if handler == "on_message" and type(args[1]).__name__ == "Returned" else None
        counts = told is not None and told.bound is not None and args[0] in election.members and protocol.is_member()
        if counts and election.highest < told.bound and told.bound.view <= election.views.latest:
            self.report("return", f"process {pid} may stand below {told.bound}, the bound of process {args[0]}")
        if not protocol.is_member():
            if life is None:
                life = self._lives[pid] = _Life()
                life.ask(election.rejoin._question)
                self._losses[pid] = self._losses.get(pid, 0) + 1
            if handler == "on_message":
                self._hear(life, election.rejoin, node.world.topology.group_of[args[0]], args[0], args[1])
            life.has_all = election.rejoin.bound is not None
            if election.rejoin.amnesiac and not life.has_all:
                self._judge_question(pid, election.rejoin._question)
            return
        if life is not None:
            if handler == "on_message":
                self._hear(life, election.rejoin, node.world.topology.group_of[args[0]], args[0], args[1])
            self._judge(node, election, life)
            self._lives[pid] = None
        ballot = election.promised
        promised = self._promised.setdefault(pid, {})
        if ballot not in promised:
            promised[ballot] = self._losses.get(ballot.leader, 0)

    def _judge_told(self, node: Node, election: Any, asked: Any, to: tuple[ProcessId, ...], message: Any) -> None:
        """To who has lost its disk: no ballot by who has forgotten its own, else the highest one, and all that is here;
        and what it comes back with is above its bound."""
        kind, known = type(message).__name__, max(election.promised, election.highest)
        if kind == "Highest":
            forgetful = election.rejoin.amnesiac and not election.rejoin.is_new
            if (message.ballot is None) != forgetful:
                self.report("return", f"process {node.pid} names {message.ballot}, forgetful: {forgetful}")
            elif message.ballot is not None and message.ballot < known:
                self.report("return", f"process {node.pid} names {message.ballot}, and knows of {known}")
            if message.ballot is None:
                number = self._numbers[node.pid]
                if self._named.setdefault((node.pid, message.life), number) != number or not message.life:
                    self.report("return", f"process {node.pid} names the life {message.life}, as in an earlier one")
            if message.reached < _reached(node.protocol):
                self.report("return", f"process {node.pid} says to have {message.reached}, and has more")
        elif kind == "Reminder":
            self._judge_reminder(node, to[0], message)
        bound = getattr(asked, "bound", None)
        if kind in ("NewState", "Begun") and bound is not None and message.ballot <= bound:
            self.report("return", f"process {node.pid} readmits {to} to {message.ballot}, and its bound is {bound}")

    def _judge_reminder(self, node: Node, to: ProcessId, reminder: Any) -> None:
        """Who is asked says all that it counts on, or has dropped."""
        protocol: Any = node.protocol
        group, log = node.world.topology.group_of[to], protocol.log
        told = max(log.watermark_of(to), log.watermark if group == protocol.group else ZERO)
        number, stream = 0, getattr(protocol, "stream", None)
        if stream is not None and group in stream._outgoing:
            number = max(stream._acks[to], stream.number(group) - len(stream._outgoing[group]))
        if reminder.watermark < told or reminder.number < number:
            text = f"{reminder.number} and {reminder.watermark}, not of {number} and {told}"
            self.report("return", f"process {node.pid} reminds process {to} of {text}")

    def _judge_question(self, pid: ProcessId, question: int) -> None:
        number = self._numbers[pid]
        if self._asked.setdefault(pid, {}).setdefault(question, number) != number:
            self.report("return", f"process {pid} asks under {question} again, as in an earlier life")

    @staticmethod
    def _hear(life: _Life, rejoin: Any, group: GroupId, sender: ProcessId, message: Any) -> None:
        kind = type(message).__name__
        if kind == "Reminder":
            life.reminded.add(sender)
            life.watermark = max(life.watermark, message.watermark)
            life.numbers[group] = max(life.numbers.get(group, 0), message.number)
        elif kind == "NewState":
            life.states.setdefault(message.ballot, []).append(message.reach)
        elif kind == "Begun":
            life.begun.setdefault(message.ballot, message.upto)
        elif kind == "Highest" and not life.has_all:
            if message.question == rejoin._question:
                life.ask(rejoin._question)
            if message.question == life.question:
                life.answers[sender] = (message.ballot, message.reached, message.life)
            life.ask(rejoin._question)  # the last answer may have led to the next question

    def _judge(self, node: Node, election: Any, life: _Life) -> None:
        """It is a member again."""
        topology, protocol = node.world.topology, node.protocol
        ballot, losses, log = election.promised, self._losses, protocol.log  # type: ignore[attr-defined]
        for promised, lost in self._promised.get(node.pid, {}).items():
            remembers = promised.leader != node.pid and losses.get(promised.leader, 0) == lost
            if promised >= ballot and remembers and election.rejoin.bound != _NO_PAST:
                self._wrong(node, f"in {tuple(ballot)}, and may have voted in {tuple(promised)}")
        if election.rejoin.bound != _NO_PAST:
            self._judge_answers(node, election, life)
        paxos = _paxos_of(protocol)
        joined = paxos._begun[0] if paxos is not None else protocol.leadership.joined  # type: ignore[attr-defined]
        if election.rejoin.bound is None or joined <= election.rejoin.bound:
            self._wrong(node, f"in {tuple(joined)}, and its bound is {election.rejoin.bound}")
        if election.promised < joined:
            self._wrong(node, f"in {tuple(joined)}, and has promised {tuple(election.promised)} only")
        has = _reached(protocol)
        needs = max(election.rejoin.reach, min(life.states.get(ballot, [0])), life.begun.get(ballot, 0))
        if has < needs:
            self._wrong(node, f"with {has}, but others had reached {needs}")
        if paxos is None:
            return
        if any(sum(p in life.reminded for p in m) < topology.quorum(g) for g, m in topology.groups.items()):
            self._wrong(node, f"reminded by {sorted(life.reminded)} only")
        if log.timestamp < life.watermark:
            self._wrong(node, f"at {log.timestamp}, and had delivered up to {life.watermark}")
        for group, channel in protocol.channels.of.items() if hasattr(protocol, "channels") else ():
            has = min(channel.received, channel.acked)
            if group != topology.group_of[node.pid] and has < life.numbers.get(group, 0):
                self._wrong(node, f"with {has} of group {group} on its disk, of which it had said to have more")

    def _judge_answers(self, node: Node, election: Any, life: _Life) -> None:
        """All others have answered its last question, and a quorum of the group remembers."""
        others = [p for p in election.views.everybody if p != node.pid]
        silent = [p for p in others if p not in life.answers]
        ballots = [ballot for ballot, *_ in life.answers.values() if ballot is not None]
        unknown = [p for p, (ballot, _, of) in life.answers.items() if ballot is None and life.forgetful.get(p) != of]
        if unknown:
            self._wrong(node, f"and had not known, when it asked, that {unknown} had forgotten theirs, in these lives")
        if silent or len(ballots) < quorum_of(len(others) + 1):
            self._wrong(node, f"when {len(ballots)} have named ballots, and {silent} have not answered")
            return
        if election.rejoin.bound < max(ballots):
            self._wrong(node, f"with bound {tuple(election.rejoin.bound)}, others had promised {tuple(max(ballots))}")
        if election.rejoin.reach < max(reached for _, reached, _ in life.answers.values()):
            self._wrong(node, f"with reach {election.rejoin.reach}, less than others had told")

    def _wrong(self, node: Node, text: str) -> None:
        self.report("return", f"process {node.pid} takes part again {text}")
