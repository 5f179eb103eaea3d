"""What waits for somebody else has a timer, and is asked for again; the host knows when the timer acts, and nobody puts
it off, or is woken for nothing.

A question that is never repeated does harm only if it was lost, and a leader that is not missed only if it dies just
then; that no timer is set, or a message is not among those that are asked for, shows it at once. Like in `invariants`,
variables of protocols are known by name only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from multicast.parts.accepts import ACCEPTED, PROPOSED
from multicast.parts.ballots import CANDIDATE, LEADER, PROMISED, REJOINING
from multicast.parts.reign import PREPARING
from multicast.simulation.checkers import Checker
from multicast.types import Ballot, ProcessId, Topology

if TYPE_CHECKING:
    from multicast.simulation.scene import Node

Sends = list[tuple[tuple[ProcessId, ...], Any, bool]]
Timer = tuple[Any, str]
"""Of these deadlines the timer of this name."""

_LOOK_EVERY = 16
"""Batches: what is not asked for stays so."""
_AT_ONCE_US, _TICKS_MAX = 10, 3_000
"""Who is woken so soon, so often, and nothing comes of it, is woken for nothing. (What stands on a protocol may look
through a portion of what it has in each of many batches.)"""
_FEW, _MANY = 1, 6
"""Ballots, of which more than one may be promised in the same breath. Elections that take longer than patience follow
one another for ever, unless it grows after some of them."""
_PAUSE_MAX = 4
"""Periods: up to there the pause between two questions doubles (parts.retries)."""


class Timers(Checker):
    """Of every protocol with `parts.deadlines`: judged when a process comes to rest."""

    watches_protocol = True
    watches_idle = True

    def __init__(self, topology: Topology):
        super().__init__()
        self._first: dict[ProcessId, tuple[int, int]] = {}
        self._blocked: dict[ProcessId, tuple[Any, int]] = {}
        self._ticks: dict[ProcessId, tuple[int, int]] = {}
        """When it was woken last, and how often at once before that."""
        self._asked: dict[tuple[ProcessId, int], dict[Any, tuple[int, int]]] = {}
        """What is asked for -> how often by now, and when last."""
        self._installed: dict[ProcessId, Ballot] = {}
        """In this ballot it had what others have decided: if it led that, it is deposed and does not know it yet."""

    def on_life(self, node: Node) -> None:
        self._first.pop(node.pid, None)
        self._blocked.pop(node.pid, None)
        self._ticks.pop(node.pid, None)
        self._asked = {of: known for of, known in self._asked.items() if of[0] != node.pid}

    def on_handled(self, node: Node, handler: str, args: tuple[Any, ...], sends: Sends) -> None:
        batch, election = node.engine._batch.number, node.protocol.election
        if sends or handler not in ("on_tick", "end_batch"):
            self._ticks.pop(node.pid, None)
        if handler == "on_install" and election is not None:
            self._installed[node.pid] = election.promised
        ended, first = self._first.get(node.pid, (batch, 0))
        if ended < batch:
            del self._first[node.pid]
            if node.wake_at is None or node.wake_at > first:
                self.report("timers", f"process {node.pid} is to be woken at {node.wake_at}, its next timer is {first}")
        if handler != "on_tick":
            return
        self._check_awake(node, args[-2])
        protocol: Any = node.protocol
        firsts = [deadlines.wake_at for deadlines in _deadlines(protocol) if deadlines.wake_at is not None]
        firsts += _by_the_clock(protocol, args[-2])
        if firsts:
            self._first[node.pid] = batch, min(firsts)
        else:
            self._first.pop(node.pid, None)
        self._check_pauses(node, protocol, args[-2])
        if hasattr(protocol, "channels"):
            self._check_blocked(node, protocol, args[-2])
        for deadlines, name in _needed(protocol):
            deposed = name == "hint" and election is not None and self._installed.get(node.pid) == election.promised
            if not deadlines.is_set(name) and not deposed:
                self.report("timers", f"process {node.pid} ({protocol.role()}) waits, and its timer {name} is not set")
        if batch % _LOOK_EVERY == 0:
            for what in _unasked(protocol):
                self.report("timers", f"process {node.pid} ({protocol.role()}) waits for {what}, and does not ask")

    def _check_awake(self, node: Node, now: int) -> None:
        """In life it would take a processor for as long as that goes on, and nobody else would notice."""
        last, many = self._ticks.get(node.pid, (now, 0))
        many = many + 1 if now - last <= _AT_ONCE_US else 0
        self._ticks[node.pid] = now, many
        if many == _TICKS_MAX:
            self.report("timers", f"process {node.pid} ({node.protocol.role()}) is woken again and again, for nothing")

    def _check_pauses(self, node: Node, protocol: Any, now: int) -> None:
        """Who asks again and again makes all that is late later still."""
        parts = protocol, getattr(protocol, "_submissions", None), getattr(protocol, "_payloads", None)
        for number, part in enumerate(parts):
            if (retries := getattr(part, "_retries", None)) is None:
                continue
            known = self._asked.setdefault((node.pid, number), {})
            for key in [key for key, expiry in retries._asked.items() if expiry == now + retries.period_us]:
                many, at = known.get(key, (0, now))
                known[key] = retries.times(key), now
                pause = min(2 ** max(many - 1, 0), _PAUSE_MAX) * retries.period_us
                if many and many + 1 == known[key][0] and now - at < pause:
                    text = f"asks for the {many + 1}th time after {now - at} us, not {pause}"
                    self.report("timers", f"process {node.pid} ({protocol.role()}) {text}")

    def _check_blocked(self, node: Node, protocol: Any, now: int) -> None:
        """Who is blocked by one message asks in time, however often something else comes meanwhile: a timer that is put
        off again and again never acts."""
        head, at = protocol.channels._head, protocol._deadlines._at["blocked"]
        before, due = self._blocked.get(node.pid, (None, 0))
        self._blocked[node.pid] = head, at
        if head is not None and head == before and now < due < at:
            text = f"puts its timer blocked off, from {due} to {at}"
            self.report("timers", f"process {node.pid} ({protocol.role()}) {text}")


class Portions(Checker):
    """Of consensus, and of what comes from other groups: who is given a portion of what it lacks, and not the last one,
    asks for the next at once; with each it would wait for its timer else. So does who is asked for a barrier, and does
    not lead: it tells its leader."""

    watches_protocol = True

    def __init__(self, topology: Topology):
        super().__init__()
        self._group_of = topology.group_of
        self._had: dict[ProcessId, tuple[int, dict[int, int]]] = {}

    def on_life(self, node: Node) -> None:
        self._had.pop(node.pid, None)

    def on_handled(self, node: Node, handler: str, args: tuple[Any, ...], sends: Sends) -> None:
        protocol: Any = node.protocol
        paxos = getattr(protocol, "paxos", None) or protocol.member.paxos
        channels = protocol.channels.of if hasattr(protocol, "channels") else {}
        before = self._had.get(node.pid)
        now = self._had[node.pid] = paxos.decided, {group: channel.received for group, channel in channels.items()}
        if handler != "on_message" or before is None:
            return
        (sender, message), wanted = args[:2], ""
        kind = type(message).__name__
        if kind == "Chosen" and before[0] < now[0] < message.decided and not paxos.stranded:
            wanted = "Fetch"
        elif kind == "Repair":
            group = self._group_of[sender]
            of_use = before[1][group] < now[1][group] and not channels[group].is_cut_off
            wanted = "Ask" if message.more and of_use else ""
        elif kind == "Ask" and channels and message.stamp > protocol.stream.base.last:
            sender = paxos.promised.leader
            wanted = "Want" if sender != node.pid and not paxos.leading else ""
        if wanted and not any(type(sent).__name__ == wanted and sender in to for to, sent, _ in sends):
            text = f"has {kind} and sends no {wanted} to process {sender}"
            self.report("timers", f"process {node.pid} ({protocol.role()}) {text}")


class Patience(Checker):
    """Of every protocol that elects leaders: who waits for one has new patience only when somebody who leads a ballot
    that counts has said something, not its own word to itself, or somebody votes for it; or when there is something
    else to wait for. After many ballots of which none has begun it has more of it, once one has begun no more than
    usual."""

    watches_protocol = True

    def __init__(self, topology: Topology):
        super().__init__()
        self._seen: dict[ProcessId, tuple[tuple[Any, ...], int]] = {}
        self._barren: Counter[ProcessId] = Counter()
        """Ballots promised since one has begun."""

    def on_life(self, node: Node) -> None:
        self._seen.pop(node.pid, None)
        self._barren.pop(node.pid, None)

    def on_handled(self, node: Node, handler: str, args: tuple[Any, ...], sends: Sends) -> None:
        election: Any = node.protocol.election
        if election is None:
            return
        waits_for, since = (election.state, election.promised, election.highest), election.detector._timer._last
        before, self._seen[node.pid] = self._seen.get(node.pid), (waits_for, since)
        sender, message = args[:2] if handler == "on_message" else (node.pid, None)
        unobeyed = type(message).__name__ == "Pulse" and not message.obeyed and message.ballot == election.promised
        if unobeyed and election.promises and election.detector._unobeyed != election.promised:
            self.report("patience", f"process {node.pid} has heard that its leader is not obeyed, and goes on with it")
        self._check_share(node.pid, election, before, message)
        if getattr(message, "count", 1) > 1 and getattr(message, "ballot", None) == election.promised:
            voted = election.state is CANDIDATE and sender != node.pid
            given = election.state is PROMISED and sender == election.promised.leader
            counts = election.detector._unobeyed != election.promised and not election.detector._timer._relieving
            if counts and (voted or given) and since < args[2]:
                self.report("patience", f"process {node.pid} ({election.state}) loses patience while portions come")
        if before is None or since <= before[1] or waits_for != before[0]:
            return
        ballot = getattr(message, "ballot", None)
        if sender != node.pid and election.state is CANDIDATE and hasattr(message, "entries"):
            return  # a vote for it
        if sender == node.pid or ballot is None or ballot.leader != sender or ballot < election.promised:
            what = handler if message is None else f"{type(message).__name__} of process {sender}"
            self.report("patience", f"process {node.pid} ({election.state}) waits anew for its leader after {what}")


    def _check_share(self, pid: ProcessId, election: Any, before: Any, message: Any) -> None:
        """Patience, as a share of the usual one."""
        share, barren = election.detector._timer._share, self._barren
        hears = type(message).__name__ == "Pulse" and message.ballot == election.promised and election.promises
        if hears or election.state is LEADER:
            barren[pid] = 0
        elif before is not None and before[0][1] < election.promised:
            barren[pid] += 1
        if hears and share > 1.0:
            text = f"hears its leader, and has {share:g} times the usual patience with it from now on"
            self.report("patience", f"process {pid} ({election.state}) {text}")
        elif before is not None and election.is_member:
            many = barren[pid]
            if (many > _MANY and share == 1.0) or (many <= _FEW and share > 1.0):
                text = f"has promised {many} ballots since one has begun, and has {share:g} times the usual patience"
                self.report("patience", f"process {pid} ({election.state}) {text}")


def _deadlines(protocol: Any) -> list[Any]:
    of_election = [protocol.election._deadlines] if protocol.election is not None else []
    return [protocol._deadlines, *of_election]


def _by_the_clock(protocol: Any, now: int) -> list[int]:
    """When what an optimistic quasi-genuine process delivers early, or its leader holds back, will be due."""
    real = protocol.real_clock(now) if protocol.specification.name == "quasi_genuine" else 0
    leader = protocol._leading() if real else None
    instants = (protocol.early.wake_at, leader.due_at if leader is not None else None) if real else ()
    return [now + max(1, at - real) for at in instants if at is not None]


def _needed(protocol: Any) -> Iterator[Timer]:
    """Those that are to be set."""
    name, own = protocol.specification.name, protocol._deadlines
    if protocol.election is not None:
        yield from _of_election(protocol.election)
    if name == "toto":
        yield own, "beat"
        if protocol._is_busy():
            yield own, "retry"
        view = protocol.view
        if view.me is not None and not protocol.record.stopped and view.held != view.base:
            yield own, "drop"
    elif name == "quasi_genuine":
        yield from _of_barriers(own, protocol)
        yield from _of_transfer(own, protocol)
    else:
        yield from _of_questions(protocol)
    paxos = getattr(protocol, "paxos", None) or getattr(getattr(protocol, "member", None), "paxos", None)
    if paxos is not None and paxos._seen > paxos.decided and paxos.election.others:
        yield paxos._deadlines, "fetch"


def _of_barriers(own: Any, protocol: Any) -> Iterator[Timer]:
    """The quasi-genuine protocol's own."""
    options, stream, channels = protocol.options, protocol.stream, protocol.channels
    if len(protocol._casts):
        yield own, "casts"
    if channels._head is not None:
        yield own, "blocked"
    if protocol._behind.wake_at:
        yield own, "behind"
    if options.optimistic:
        yield own, "early"
    if protocol._ahead_wants:
        yield own, "ahead_wants"
    if protocol._leading() is not None:
        if options.liveness == "periodic":
            yield own, "nulls"
        if any(stream.quorum_has(group) < stream.number(group) for group in protocol._receivers):
            yield own, "hint"


def _of_leadership(leadership: Any) -> Iterator[Timer]:
    """Views of other groups, and of whom nobody has told."""
    own, membership, group = leadership._deadlines, leadership.membership, leadership.group
    known = leadership.leaders.items()
    if any(g != group and ballot.view not in membership.views[g].of for g, ballot in known):
        yield own, "views"
    if membership.strangers(group):
        yield own, "strangers"


def _of_election(election: Any) -> Iterator[Timer]:
    deadlines = election._deadlines
    if election.state is REJOINING:
        yield deadlines, "return"
    elif election.state is not LEADER and election.is_member:
        yield deadlines, "campaign"
    elif election.state is LEADER and election.others:
        yield deadlines, "beat"
        if election.highest > election.promised:
            yield deadlines, "campaign"
        if election.promised.view < election.views.latest:
            yield deadlines, "view"


def _of_questions(protocol: Any) -> Iterator[Timer]:
    """parts.retries, and what is built on it."""
    name, own, member = protocol.specification.name, protocol._deadlines, getattr(protocol, "member", None)
    if len(protocol._retries):
        yield own, "stamps" if member is not None or protocol.election is None else "retry"
    if len(protocol._submissions._retries):
        yield own, "submissions"
    payloads = getattr(protocol, "_payloads", None)
    if payloads is not None and len(payloads._retries):
        yield own, "payloads"
    if protocol.election is not None and protocol._reads._rounds:
        yield own, "reads"
    if name in ("white_box", "primcast"):
        if protocol._behind.wake_at:
            yield own, "behind"
        yield own, "sweep"
        yield from _of_leadership(protocol.leadership)
    if member is not None:
        if member._behind.wake_at:
            yield own, "behind"
        if (applied := member._truncation._applied()) is not None and applied.instance > member._truncation._told:
            yield own, "applied"
        if protocol._strays:
            yield own, "strays"
        if member.reign.state is PREPARING:
            yield own, "positions"
        yield from _of_transfer(own, member)


def _of_transfer(own: Any, user: Any) -> Iterator[Timer]:
    """A member that comes too late, or has lost its disk."""
    if user._transfer._waiting is not None or (user.paxos.stranded and user._transfer.peers):
        yield own, "state"
    if user.paxos.amnesiac:
        yield own, "return"


def _unasked(protocol: Any) -> Iterator[str]:
    """What should be among the keys of `parts.retries`, and is not."""
    name = protocol.specification.name
    if name in ("toto", "quasi_genuine"):
        return
    retries, submissions = protocol._retries, protocol._submissions
    for message_id in submissions._messages:
        if message_id not in submissions._retries:
            yield f"the delivery of {message_id.hex()}"
    if name == "white_box":
        leads = protocol.election.state is LEADER
        waiting = [e for e in protocol.entries.values() if leads and e.phase in (PROPOSED, ACCEPTED)]
        yield from (f"acknowledgements of {e.id.hex()}" for e in waiting if e.id not in retries)
    elif name == "primcast":
        for e in protocol.entries.values():
            if e.message is None and e.id not in protocol._payloads._retries:
                yield f"the payload of {e.id.hex()}"
            elif e.message is not None and e.epoch is not None and e.final is None and e.id not in retries:
                yield f"acknowledgements of {e.id.hex()}"
    elif name == "skeen":
        unstamped = [i for i, e in protocol._entries.items() if e.final is None and not e.delivered]
        yield from (f"stamps of {message_id.hex()}" for message_id in unstamped if message_id not in retries)
    elif protocol.member.acting:
        for entry in protocol.member.log.undelivered():
            held = protocol.stamps.get(entry.message.id, {})
            lacks = any(group not in held for group in entry.message.destinations)
            if lacks and entry.final is None and entry.local not in retries:
                yield f"stamps of {entry.message.id.hex()}"
