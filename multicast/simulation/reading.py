"""Reads in random runs (`MulticastProtocol.on_read`): who asks, and whether the answer was fresh.

An answer p is fresh if no process of the group, dead or alive, had more than p final deliveries when the process was
asked. Whether any had more is rare, so it is judged besides whether each who counts for a leader's round of reads has
confirmed just this round, or a later one of its ballot (parts.reads).
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from multicast.application import Application, ApplicationOutbox
from multicast.parts.reads import Confirmed
from multicast.simulation.checkers import Checker, Properties
from multicast.simulation.world import World
from multicast.types import AppMessage, Ballot, MessageId, ProcessId

if TYPE_CHECKING:
    from multicast.simulation.scene import Node

Sends = list[tuple[tuple[ProcessId, ...], Any, bool]]


class Reader(Application):
    """Asks its protocol for each request, and answers it with the position, or None. reads: where answers are judged.
    refused: where it notes what its protocol does not multicast."""

    def __init__(self, pid: ProcessId, reads: Reads, refused: set[MessageId]):
        self._pid = pid
        self._reads = reads
        self._refused = refused
        self._had: dict[int, int] = {}

    def on_request(self, token: int, request: Any, now: int, out: ApplicationOutbox) -> None:
        self._had[token] = self._reads.delivered(self._pid)
        out.read(token)

    def on_refused(self, message: AppMessage, reason: str, now: int, out: ApplicationOutbox) -> None:
        self._refused.add(message.id)

    def on_readable(self, token: int, position: int | None, now: int, out: ApplicationOutbox) -> None:
        self._reads.judge(self._pid, self._had.pop(token), position)
        out.answer(token, position)


class Reads(Checker):
    """properties: know what was delivered. open: reads without an answer. answered: with a position."""

    def __init__(self, properties: Properties):
        super().__init__()
        self.open = self.answered = 0
        self._properties = properties

    def delivered(self, pid: ProcessId) -> int:
        """How many deliveries any process of its group has had so far."""
        return len(self._properties.logs[self._properties.topology.group_of[pid]])

    def judge(self, pid: ProcessId, had: int, position: int | None) -> None:
        """had: what `delivered` was when the process was asked."""
        if position is None:
            return
        self.answered += 1
        if position < had:
            self.report("reads", f"process {pid} takes {position} deliveries for all that there were; there were {had}")

    def plan(self, rng: random.Random, world: World, span_us: int, count: int) -> None:
        """So many reads within the span, at whoever leads then or at anybody."""
        for _ in range(count):
            world.schedule(world.now + rng.randrange(span_us), self._read, world, rng.random())

    def _read(self, world: World, chance: float) -> None:
        leaders = [pid for pid, node in world.nodes.items() if node.up and node.protocol.role() == "leader"]
        asked = leaders if leaders and chance < 0.8 else list(world.nodes)
        self.open += 1
        world.request(asked[int(chance * 1_000_003) % len(asked)], None, self._told)

    def _told(self, position: int | None) -> None:
        self.open -= 1

    def finish(self) -> None:
        """Report what was not answered in a world that has healed."""
        if self.open:
            self.report("liveness", f"{self.open} reads have no answer")


class Confirmations(Checker):
    """Of protocols whose leaders answer reads. Like in `invariants`, variables are known by name only."""

    watches_protocol = True

    def __init__(self) -> None:
        super().__init__()
        self._sent: dict[tuple[ProcessId, Ballot], int] = {}
        self._rounds: dict[ProcessId, list[Any]] = {}
        self._looked: dict[ProcessId, tuple[int, int]] = {}

    def on_life(self, node: Node) -> None:
        self._rounds[node.pid] = []
        self._looked.pop(node.pid, None)

    def on_handled(self, node: Node, handler: str, args: tuple[Any, ...], sends: Sends) -> None:
        pid, reads = node.pid, node.protocol._reads  # type: ignore[attr-defined]
        for _, message, _ in sends:
            if type(message) is Confirmed and message.ballot is not None:
                self._sent[pid, message.ballot] = max(self._sent.get((pid, message.ballot), 0), message.number)
                self._judge_word(node, message.ballot)
        under_way, answered = reads._rounds, self._answered(node, args[-1].readable)
        if not under_way and not self._rounds[pid] and not answered:
            return
        for begun in under_way:
            if begun not in self._rounds[pid]:
                self._judge_begin(node, begun.ballot)
        for known in self._rounds[pid]:
            if known not in under_way:
                self._judge(pid, known)
                if not answered.isdisjoint(known.tokens):
                    self._judge_quorum(node, known.ballot, known.members)
                    answered.difference_update(known.tokens)
        if answered:  # as soon as they were asked
            self._judge_quorum(node, reads._leadership.joined, {pid})
        self._rounds[pid] = list(under_way)

    def _answered(self, node: Node, readable: list[tuple[int, int | None]]) -> set[int]:
        """What was answered with a position since the last look. readable: what was answered in this batch."""
        number = node.engine._batch.number
        batch, before = self._looked.get(node.pid, (number, 0))
        self._looked[node.pid] = number, len(readable)
        fresh = readable[before:] if batch == number else readable
        return {token for token, position in fresh if position is not None}

    def _judge_word(self, node: Node, ballot: Ballot) -> None:
        """Who confirms a ballot has promised none above it, and has not forgotten whether it has."""
        election: Any = node.protocol.election
        if not node.protocol.is_member() or election.promised != ballot:
            text = f"process {node.pid} ({election.state}) confirms {tuple(ballot)}, in {tuple(election.promised)}"
            self.report("reads", text)

    def _judge(self, pid: ProcessId, known: Any) -> None:
        """A round is over."""
        for member in known.members:
            if member != pid and self._sent.get((member, known.ballot), 0) < known.number:
                self.report("reads", f"process {pid} counts {member}, which has not confirmed round {known.number}")

    def _judge_quorum(self, node: Node, ballot: Ballot, members: set[ProcessId]) -> None:
        """A round was answered: by a majority of the ballot in which it began."""
        if not node.protocol.election.views.has_quorum(ballot, members):  # type: ignore[union-attr]
            text = f"process {node.pid} answers a round of {tuple(ballot)} that {sorted(members)} have confirmed"
            self.report("reads", text)

    def _judge_begin(self, node: Node, ballot: Ballot) -> None:
        """Its leader is the first for whom its ballot still stands."""
        promised = node.protocol.election.promised  # type: ignore[union-attr]
        if promised != ballot:
            text = f"process {node.pid} asks whether {tuple(ballot)} still stands, and has promised {tuple(promised)}"
            self.report("reads", text)
