"""Who coordinates the changes of views: sees who must leave and who may come, flushes the view, proposes the next one.

Every process has a coordinator; it acts while its process leads the consensus on views. What a flush is, and why
nothing is lost in it: parts.views.

A process lives if it says so, by way of its disk, and has echoed a pulse of the consensus's leader (parts.election).
Who is heard but does not hear, or writes nothing any more, would never answer a flush; nobody may have to wait for it.
It comes back when it does both again.

    message    from -> to                      durable before it leaves
    Alive      process -> coordinator          whatever it has written
    Flush      coordinator -> process          -
    Flushed    process -> coordinator          that it stopped, and what it holds (parts.views)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

import msgspec

from multicast.parts.views import Cast, Flushed, Gathering, NewView, Span, ViewRecord
from multicast.protocol import Outbox
from multicast.types import ProcessId, Topology

WATCHING, FLUSHING, PROPOSED = "watching", "flushing", "proposed"

TRANSITIONS: dict[str, dict[str, str]] = {
    "lead": dict.fromkeys((WATCHING, FLUSHING, PROPOSED), WATCHING),
    "flush": {WATCHING: FLUSHING},
    "propose": {FLUSHING: PROPOSED},
    "enter": dict.fromkeys((WATCHING, FLUSHING, PROPOSED), WATCHING),
}
"""What happens -> state before -> state after; nothing else may happen. "lead": a ballot begins, and nothing of an
earlier one counts. FLUSHING: collects answers, and what not all have, and hands that out. PROPOSED: waits for the
decision."""


class Flush(msgspec.Struct, array_like=True, tag=3, gc=False):
    """This view ends: stop, and tell me what you hold."""

    view: int


class Alive(msgspec.Struct, array_like=True, tag=7, gc=False):
    """I know this view, and my disk works. stopped: somebody has begun to flush it."""

    view: int
    stopped: bool


class Coordinator:
    """At one process; it acts only while that leads the consensus on views.

    timeout_us: silence after which a process does not count as living. may_propose(): it leads, and nothing waits for a
    decision. propose(new): have the consensus decide it. ask(holder, spans, now, out): have these casts sent.
    portion_bytes: about how much a proposal carries. state: see `TRANSITIONS`. heard: when each process was heard last.
    reached: when each last answered this one. gathering: the answers to the flush. handed: the casts of this view that
    were handed out, by whichever coordinator.
    """

    def __init__(
        self,
        self_id: ProcessId,
        topology: Topology,
        timeout_us: int,
        portion_bytes: int,
        *,
        may_propose: Callable[[], bool],
        propose: Callable[[NewView], None],
        ask: Callable[[ProcessId, list[Span], int, Outbox], None],
    ):
        self.state = WATCHING
        self.heard: dict[ProcessId, int] = {}
        self.reached: dict[ProcessId, int] = {}
        self.gathering: Gathering | None = None
        self.handed: dict[tuple[ProcessId, int], Cast] = {}
        self._self_id = self_id
        self._topology = topology
        self._timeout_us = timeout_us
        self._portion_bytes = portion_bytes
        self._may_propose, self._propose, self._ask = may_propose, propose, ask
        self._stop_seen = False
        self._new_gathering = Gathering

    def _move(self, what: str) -> None:
        after = TRANSITIONS[what].get(self.state)
        if after is None:
            raise AssertionError(f"a coordinator that is {self.state} does not {what}")
        self.state = after

    # -- what happens -------------------------------------------------------------------------------------------------

    def lead(self, members: Iterable[ProcessId], now: int) -> None:
        """This process leads a new ballot. Every member is given the time to be heard."""
        self._move("lead")
        self.gathering = None
        self.heard = dict.fromkeys(members, now)
        self.reached = dict(self.heard)

    def enter(self, before: Collection[ProcessId], members: Sequence[ProcessId], now: int) -> None:
        """Another view has begun, whoever proposed it. Who has left it must be heard before it may come again."""
        self._move("enter")
        self.gathering = None
        self.handed.clear()
        self._stop_seen = False
        for p in before:
            if p not in members:
                self.heard.pop(p, None)
        self.heard.update(dict.fromkeys(members, now))
        self.reached.update(dict.fromkeys(members, now))

    def hear(self, sender: ProcessId, alive: Alive, now: int) -> None:
        """A process lives, and knows the present view."""
        self.heard[sender] = now
        self._stop_seen = self._stop_seen or alive.stopped

    def reach(self, sender: ProcessId, now: int) -> None:
        """A process has answered this one: it hears it."""
        self.reached[sender] = now

    def answer(self, sender: ProcessId, flushed: Flushed, now: int, out: Outbox) -> None:
        """A process has answered the flush."""
        if self.gathering is not None:
            self.gathering.add(sender, flushed)
            self.propose_if_ready(now, out)

    def keep(self, casts: Iterable[Cast], now: int, out: Outbox) -> None:
        """Copies of casts have come, perhaps of those that not all have."""
        if self.gathering is not None:
            self.gathering.keep(casts)
            self.propose_if_ready(now, out)

    def hand_out(self, casts: Iterable[Cast]) -> None:
        """It is decided that these casts belong to the view; everybody takes them with the decision."""
        self.handed.update({(cast.author, cast.number): cast for cast in casts})
        if self.gathering is not None:
            self.gathering.keep(self.handed.values())

    # -- what it does -------------------------------------------------------------------------------------------------

    def _responsive(self, now: int) -> list[ProcessId]:
        """The processes that were heard, and have answered, lately; in the topology's order."""
        since, heard, reached = now - self._timeout_us, self.heard, self.reached
        both = (p for p in heard if min(heard[p], reached.get(p, since)) > since)
        lately = {self._self_id, *both}
        return [p for p in self._topology.processes if p in lately]

    def coordinate(self, record: ViewRecord, now: int, out: Outbox) -> None:
        """To be called at every heartbeat while this process may propose: begin a flush, or go on with it."""
        members = record.members
        alive = self._responsive(now)
        if self.state is WATCHING:
            if alive == members and not self._stop_seen and not record.stopped:
                return
            gathering = self._new_gathering(record.number, members, self._topology)
            if not gathering.is_quorum(alive):
                return
            self._move("flush")
            self.gathering = gathering
            gathering.keep(self.handed.values())
        if self.state is FLUSHING and self.gathering is not None:
            answered = self.gathering.among(alive)
            asked = dict.fromkeys((*members, *alive))
            silent = [p for p in asked if p not in answered.replies or not answered.suffices]
            if silent:
                out.send(silent, Flush(record.number))
            self.propose_if_ready(now, out)

    def propose_if_ready(self, now: int, out: Outbox) -> None:
        """Once everybody who lives has answered, a quorum of every group among them (`Gathering.suffices`), and has
        given what is needed. To be called when what was proposed is decided, too."""
        if self.gathering is None or self.state is not FLUSHING or not self._may_propose():
            return
        alive = self._responsive(now)
        gathering = self.gathering.among(alive)
        if not gathering.suffices or any(p in gathering.members and p not in gathering.replies for p in alive):
            return
        asks = gathering.lacking()
        for holder, spans in asks.items():
            self._ask(holder, spans, now, out)
        if not asks:
            new = gathering.result(alive, self.handed, self._portion_bytes)
            if new.members:
                self._move("propose")
            self._propose(new)
