"""A world without time or loss for scenario tests: engines joined by queues that a test empties as it likes."""

from __future__ import annotations

import random
from collections import deque
from typing import Any

from multicast import registry, wire
from multicast.application import Application, ApplicationOutbox
from multicast.engine import Engine
from multicast.protocol import MulticastProtocol
from multicast.records import DELIVERED, Delivered, decode_body, scan
from multicast.types import AppMessage, MessageId, ProcessId, Timestamp, Topology, new_message_id

START_US = 1_700_000_000_000_000


class Recorder(Application):
    """Keeps what is delivered: (position, id, timestamp). Every request is a read; fresh: the answers to these."""

    def __init__(self) -> None:
        self.delivered: list[tuple[int, MessageId, Timestamp]] = []
        self.fresh: list[int | None] = []

    def on_deliver(self, delivery: Delivered, outcome: bytes | None, now: int, out: ApplicationOutbox) -> None:
        self.delivered.append((delivery.position, delivery.message.id, delivery.timestamp))

    def on_request(self, token: int, request: Any, now: int, out: ApplicationOutbox) -> None:
        out.read(token)

    def on_readable(self, token: int, position: int | None, now: int, out: ApplicationOutbox) -> None:
        self.fresh.append(position)


class Lockstep:
    """Processes of one protocol. Nothing moves until `settle`, `advance` or `step` is called; flushes are immediate.

    down: processes that neither receive nor run. cut: (sender, receiver) pairs whose messages wait.
    journals: what each has delivered. reading: whether requests for it are answered.
    """

    def __init__(self, topology: Topology, protocol: str | type[MulticastProtocol], seed: int = 1, **options: Any):
        cls = registry.load(protocol) if isinstance(protocol, str) else protocol
        self.topology = topology
        self.protocol_class, self.options, self.seed = cls, options, seed
        self.journals: dict[ProcessId, list[Delivered]] = {p: [] for p in topology.processes}
        self.reading = True
        self.now = START_US
        self.rng = random.Random(seed)
        self.links: dict[tuple[ProcessId, ProcessId], deque[bytes]] = {}
        self.down: set[ProcessId] = set()
        self.cut: set[tuple[ProcessId, ProcessId]] = set()
        self.engines: dict[ProcessId, Engine] = {}
        self.wakes: dict[ProcessId, int | None] = {}
        for process in topology.processes:
            self.engines[process] = self._engine(process, 1)
        for process, engine in self.engines.items():
            self._carry_out(process, engine.recover((), self.now))

    def _engine(self, process: ProcessId, life: int) -> Engine:
        options = self.protocol_class.specification.options(**self.options)
        rng = random.Random(self.seed + process + 1000 * (life - 1))
        return Engine(self.protocol_class(process, self.topology, options, rng), Recorder(), life, copy_to_self=True)

    def protocol(self, process: ProcessId) -> Any:
        return self.engines[process].protocol

    def delivered(self, process: ProcessId) -> list[MessageId]:
        return [i for _, i, _ in self.engines[process].application.delivered]  # type: ignore[attr-defined]

    def message(self, *groups: int, origin: ProcessId = 0) -> AppMessage:
        return AppMessage(new_message_id(self.now, self.rng.getrandbits(62)), tuple(sorted(groups)), b"x", origin)

    def submit(self, process: ProcessId, *groups: int) -> MessageId:
        """multicast a new message from this process."""
        message = self.message(*groups, origin=process)
        self.engines[process].submit(message)
        self._run(process)
        return message.id

    def read(self, process: ProcessId) -> None:
        """Ask this process from which position on it is fresh."""
        self.engines[process].request(0, None)
        self._run(process)

    def fresh(self, process: ProcessId) -> list[int | None]:
        """The answers so far."""
        return self.engines[process].application.fresh  # type: ignore[attr-defined, no-any-return]

    def step(self, sender: ProcessId, receiver: ProcessId) -> bool:
        """Deliver the oldest message of a link."""
        queue = self.links.get((sender, receiver))
        if not queue or (sender, receiver) in self.cut or receiver in self.down:
            return False
        self.engines[receiver].receive(sender, queue.popleft())
        self._run(receiver)
        return True

    def settle(self) -> None:
        """Deliver everything that may move, in a fixed order, until nothing does."""
        moving = True
        while moving:
            moving = False
            for sender, receiver in list(self.links):
                while self.step(sender, receiver):
                    moving = True

    def advance(self, duration_us: int) -> None:
        """Let time pass, waking processes when they want it and delivering everything at once."""
        end = self.now + duration_us
        self.settle()
        while True:
            due = [(w, p) for p, w in self.wakes.items() if w is not None and w <= end and p not in self.down]
            if not due:
                break
            at, process = min(due)
            self.now = max(self.now, at)
            self._run(process)
            if self.wakes[process] is not None and self.wakes[process] <= self.now:  # type: ignore[operator]
                raise AssertionError(f"process {process} wants to be woken for ever")
            self.settle()
        self.now = end

    def stand(self, process: ProcessId) -> None:
        """It stands for election, whether anybody misses the leader or not."""
        election: Any = self.protocol(process).election
        election.campaign(self.now, self.engines[process]._out)
        self._run(process)

    def crash(self, process: ProcessId) -> None:
        """For good: its links lose what is under way."""
        self.down.add(process)
        for link in [link for link in self.links if process in link]:
            self.links[link].clear()

    def part(self, process: ProcessId, *others: ProcessId) -> None:
        """It has no connection to these any more, and all know."""
        for other in others:
            for a, b in ((process, other), (other, process)):
                self.cut.add((a, b))
                self.engines[a].connected(b, False)
                self._run(a)

    def lose_link(self, sender: ProcessId, receiver: ProcessId) -> None:
        """What is under way is lost, and both hear of it."""
        self.links.pop((sender, receiver), None)
        self.engines[sender].peer_reset(receiver)
        self.engines[receiver].peer_reset(sender)

    def lose_disk(self, process: ProcessId) -> None:
        """It dies, and comes back with nothing. What is under way to and from it is lost."""
        life = self.engines[process].incarnation + 1
        self.engines[process] = self._engine(process, life)
        self.journals[process] = []
        for peer in self.topology.processes:
            if peer != process:
                self.lose_link(process, peer)
                self.lose_link(peer, process)
        self._carry_out(process, self.engines[process].recover((), self.now, lost=True))

    def _run(self, process: ProcessId) -> None:
        self._carry_out(process, self.engines[process].run(self.now))

    def _carry_out(self, process: ProcessId, batch: Any) -> None:
        engine = self.engines[process]
        assert not batch.faulty, batch.faulty
        self.wakes[process] = batch.wake_at
        if batch.journal:
            engine.flushed(batch.number)
            for found in scan(batch.journal, 0):
                assert isinstance(found, tuple)
                if found[1] == DELIVERED:
                    self.journals[process].append(decode_body(DELIVERED, found[2]))
        for peer, position in batch.reads if self.reading else ():
            found = [(d, None) for d in self.journals[process][position - 1 :]]
            engine.found(peer, wire.CatchUpReply(found, False))
        for to, data in batch.sends:
            for peer in to:
                if peer not in self.down:
                    self.links.setdefault((process, peer), deque()).append(data)
        if not engine.idle:
            self._run(process)
