"""Clients of a simulated cluster: a seeded workload, repetitions through other replicas, and the history.

Each client is sequential. Now and then a crowd comes at once, so that bundles carry several transactions; some ask a
second replica under the same id while the first is still at it; and some ids are used by somebody else, for something
else: then one of both takes effect.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from kvstore.api.model import (
    Add,
    Append,
    Compare,
    Consistency,
    Delete,
    Get,
    Operation,
    Put,
    Range,
    Result,
    Transaction,
    only_reads,
)
from kvstore.core import audit
from kvstore.core.audit import HistoryEvent
from kvstore.core.bundles import NO_ID
from kvstore.core.messages import Answered, Execute, Refused
from kvstore.simulated.cluster import SimulatedCluster
from multicast.types import ZERO, GroupId, MessageId, ProcessId, Timestamp, new_message_id

ACCOUNTS = 12
MINIMUM = 1_000_000
START = MINIMUM + 100
KEYS = 6
READERS, READERS_SHARE = 3, 0.3
"""So many clients that only read are added in this share of the runs, where a protocol has leader reads."""
TIMEOUT_US = 1_500_000
"""After this long without an answer the same id goes to another replica."""
ATTEMPTS = 5
LONGEST_US = 10_000_000
"""About how long a client tries before it gives up."""
REFUSALS = 30
"""So often a client tries when it is told that nothing was done and that it may try again."""
REFUSED_US = 100_000
"""After so long the accounts are opened again, if whoever was asked will not."""

SEVERAL = -1
"""In place of a shard."""
CROWDS = 0.1
"""With so many of its operations a client brings others along, who ask one replica at one instant."""
COMPANIONS_MAX = 12
IMPATIENT = 0.15
"""So many operations are asked of a second replica soon."""
CONTESTED = 0.05
"""So many ids are used for something else, too."""
_SOON_US = (0, 1_000, 5_000, 50_000, 300_000)

_MIX = (("transfer", 40), ("read_all", 8), ("read_pair", 12), ("put", 12), ("get", 16), ("append", 8), ("swap", 8),
        ("count", 12), ("delete", 2), ("scan", 2))  # fmt: skip


class Operated(msgspec.Struct):
    """One operation as its client saw it. result: None unless it was answered; failed: it certainly has no effect;
    impossible: the answer that said why; refused: the code with which it was finally refused. unnamed: it was asked for
    without an id, once, of this shard; the id here is that of the history alone; SEVERAL: of several. consistency,
    age_us: see `Execute`. places: of one that was not ordered shard -> with how many of its deliveries it was read;
    seen: else at which version. delivered: how much any replica of a shard had been delivered when it was asked, where
    that was looked at. impatient: asked of several replicas at a time; told: what the others answered. contested: the
    id was used for something else, too: rivals: that, and what it was answered."""

    id: MessageId
    f: str
    transaction: Transaction
    invoked_us: int
    completed_us: int | None = None
    result: Result | None = None
    failed: bool = False
    impossible: Result | None = None
    refused: str = ""
    results_omitted: bool = False
    unnamed: int | None = None
    impatient: bool = False
    told: list[Answered | Refused | None] = []
    contested: bool = False
    rivals: list[tuple[Transaction, Answered | Refused | None]] = []
    consistency: Consistency = "linearizable"
    age_us: int = 0
    places: dict[GroupId, int] = {}
    seen: Timestamp = ZERO
    delivered: dict[GroupId, int] = {}

    @property
    def unordered(self) -> bool:
        """Whether it was answered without being ordered."""
        if self.unnamed is None or self.result is None:
            return False
        return bool(self.places) or self.seen != ZERO or self.result.version == ZERO


class History:
    """What all clients did, as the audit's events and for the checks here."""

    def __init__(self) -> None:
        self.events: list[HistoryEvent] = []
        self.operations: dict[MessageId, Operated] = {}

    def invoke(self, process: int, at_us: int, operation: Operated) -> None:
        """`operation` is about to be sent."""
        self.operations[operation.id] = operation
        txn = operation.transaction
        asked = audit.asked(txn.compare, txn.success, txn.failure) if not operation.contested else None
        event = HistoryEvent(process, "invoke", at_us, _uuid(operation.id), operation.f, asked=asked)
        if operation.consistency != "linearizable":
            event.consistency, event.age_us = operation.consistency, operation.age_us
        self.events.append(event)

    def end(self, process: int, type_: str, at_us: int, operation: Operated, error: str = "") -> None:
        """type_: "ok", "fail" or "info"."""
        event = HistoryEvent(process, type_, at_us, _uuid(operation.id), operation.f, error=error)
        result = operation.result
        if type_ == "ok" and result is not None:
            operation.completed_us = at_us
            event.version = str(result.version)
            event.succeeded = result.succeeded
            _tell_where(event, operation)
            if not operation.results_omitted:
                txn = operation.transaction
                event.told = audit.told(txn.success if result.succeeded else txn.failure, result.results)
                event.reads = {key.decode(): str(version) for key, version in reads_of(operation).items()}
                if operation.f == "read_all":
                    event.value = {r.found.key.decode(): int(r.found.value) for r in result.results if r.found}
        self.events.append(event)

    def watch(self, number: int, at_us: int, f: str, version: Timestamp | None, **said: Any) -> None:
        """A line of a watch; number: which."""
        text = "" if version is None else str(version)
        self.events.append(HistoryEvent(0, "watch", at_us, _uuid(number.to_bytes(16, "big")), f, text, **said))

    def write(self, path: Path) -> None:
        """JSON lines."""
        path.parent.mkdir(parents=True, exist_ok=True)
        encode = msgspec.json.Encoder().encode
        path.write_bytes(b"".join(encode(event) + b"\n" for event in self.events))


def _tell_where(event: HistoryEvent, operation: Operated) -> None:
    """Where a read without an id saw its shards; one that was ordered is known by its version."""
    if operation.unnamed is None:
        return
    if not operation.unordered:
        event.shard = max(operation.unnamed, 0)
    elif operation.consistency == "linearizable" and len(operation.places) == 1:
        ((event.shard, event.position),) = operation.places.items()
    elif operation.places:
        event.places = operation.places
    else:
        event.at = str(operation.seen)


def reads_of(operation: Operated) -> dict[bytes, Timestamp]:
    """Key -> version, for the Gets of an answered operation that wrote nothing before them."""
    result = operation.result
    if result is None or operation.results_omitted:
        return {}
    branch = operation.transaction.success if result.succeeded else operation.transaction.failure
    if any(not isinstance(op, Get | Range) for op in branch):
        return {}
    seen: dict[bytes, Timestamp] = {}
    for op, one in zip(branch, result.results, strict=True):
        if isinstance(op, Get):
            seen[op.key] = one.found.version if one.found else ZERO
        seen.update((entry.key, entry.version) for entry in one.entries)
    return seen


def _uuid(message_id: MessageId) -> str:
    return str(uuid.UUID(bytes=message_id))


class Workload:
    """`clients` clients of a cluster until `stop_at`. The bank's accounts are opened first. probes: not answered yet;
    wide_probe_refused: whether the last one of several shards was. probed_us: when the last one was answered, at the
    first attempt; else 0. when_open, when_ruled: whoever is to hear that the accounts are open, or that rights have
    changed."""

    def __init__(self, cluster: SimulatedCluster, seed: int | str, clients: int, stop_at: int):
        self.cluster = cluster
        self.world = cluster.world
        self.history = History()
        self.stop_at = stop_at
        self.accounts = [b"account/%03d" % i for i in range(ACCOUNTS)]
        self.keys = [b"key/%d" % i for i in range(KEYS)]
        self.running = 0
        self.reads = False
        self.when_open: list[Callable[[], None]] = []
        self.when_ruled: list[Callable[[], None]] = []
        self.probes = 0
        self.wide_probe_refused = False
        self.probed_us = 0
        self.repetitions = 0
        self.moves = False
        self._clients = clients
        self._seed = seed
        self._processes = 0
        self._rng = random.Random(f"{seed}/ids")

    def start(self) -> None:
        """Open the accounts, then let everybody loose."""
        opening = Client(self, random.Random(f"{self._seed}/opening"))
        opening.operate("open", Transaction(success=tuple(Put(a, b"%d" % START) for a in self.accounts)), self._opened)

    def _opened(self, operation: Operated) -> None:
        if operation.refused:  # by a clock that is off, and it will be for a while
            self.world.after(REFUSED_US, self.start)
            return
        if operation.result is None:
            self.start()
            return
        for number in range(self._clients):
            client = self.make_client(number, random.Random(f"{self._seed}/client {number}"))
            self.running += 1
            client.go_on(None)
        own = random.Random(f"{self._seed}/readers")
        if self.cluster.protocol.specification.leader_reads and own.random() < READERS_SHARE:
            for _ in range(READERS):
                self.running += 1
                Reader(self, own).go_on(None)
        for begin in self.when_open:
            begin()

    def make_client(self, number: int, rng: random.Random) -> Client:
        """The number-th client."""
        return Client(self, rng)

    def crowd(self, replica: ProcessId, size: int) -> None:
        """So many clients with one operation each, all of this replica at this instant."""

        def done(operation: Operated) -> None:
            self.running -= 1

        for _ in range(size):
            self.running += 1
            client = Prober(self, random.Random(f"{self._seed}/companion {self._processes}"), replica)
            client.operate(*client.drawn(), done)

    def new_process(self) -> int:
        """A number for a client's sequence of operations in the history."""
        self._processes += 1
        return self._processes - 1

    def new_id(self) -> MessageId:
        """As the SDK makes them."""
        return new_message_id(self.world.now, self._rng.getrandbits(62))

    def read_everything(self, done: Callable[[Operated], None], give_up_at: int) -> None:
        """A last read of all accounts, by one client after the other until one is answered. A refusal is an answer:
        clocks may differ by more than the window for ids."""

        def read(operation: Operated) -> None:
            if operation.result is None and not operation.refused and self.world.now < give_up_at:
                self.read_everything(done, give_up_at)
            else:
                done(operation)

        client = Client(self, random.Random(f"{self._seed}/closing {self._processes}"))
        client.operate("read_all", Transaction(success=tuple(Get(a) for a in self.accounts)), read)

    def probe(self, replica: ProcessId, keys: Sequence[bytes]) -> None:
        """Write these keys, which nobody else uses, through this replica, or another one if it does not answer."""

        def done(operation: Operated) -> None:
            self.probes -= 1
            asked_once = operation.result is not None and self.repetitions == before
            self.probed_us = self.world.now if asked_once else 0
            if len(keys) > 1:
                self.wide_probe_refused = bool(operation.refused)

        self.probes += 1
        before = self.repetitions
        client = Prober(self, random.Random(f"{self._seed}/probe {self._processes}"), replica)
        client.operate("put", Transaction(success=tuple(Put(key, b"1") for key in keys)), done)


class Client:
    """One operation after the other. An operation of unknown outcome ends this process of the history."""

    def __init__(self, workload: Workload, rng: random.Random):
        self._workload = workload
        self._world = workload.world
        self._rng = rng
        self._process = workload.new_process()

    def go_on(self, last: Operated | None) -> None:
        """The next operation, after a little thought."""
        if self._world.now >= self._workload.stop_at:
            self._workload.running -= 1
            return
        self._world.after(self._rng.randint(0, 30_000), self._choose)

    def _choose(self) -> None:
        rng = self._rng
        if rng.random() < CROWDS:
            self._workload.crowd(rng.choice(self._world.topology.processes), rng.randint(2, COMPANIONS_MAX))
        self.operate(*self.drawn(), self.go_on, rng.random() < IMPATIENT, rng.random() < CONTESTED)

    def drawn(self) -> tuple[str, Transaction]:
        """What to do next, and its name."""
        f = self._rng.choices([name for name, _ in _MIX], [weight for _, weight in _MIX])[0]
        return f, getattr(self, f"_{f}")()

    def operate(
        self,
        f: str,
        transaction: Transaction,
        done: Callable[[Operated], None],
        impatient: bool = False,
        contested: bool = False,
        unnamed: bool = False,
        consistency: Consistency = "linearizable",
        age_us: int = 0,
    ) -> None:
        """Get it executed, by repeating it if need be; `done` in any case. unnamed: it is a read, and is asked once,
        without an id; so are half of those of one shard anyhow."""
        message_id = self._workload.new_id()
        operation = Operated(message_id, f, transaction, self._world.now, consistency=consistency, age_us=age_us)
        shards = self._workload.cluster.shard_map.shards_of(transaction)
        if unnamed and len(shards) > 1:
            operation.unnamed = SEVERAL
        elif unnamed or (only_reads(transaction) and len(shards) == 1 and message_id[-1] & 1):
            operation.unnamed = shards[0]
        else:
            # Where slots move, two uses of one id may have no shard in common, and nobody can tell.
            operation.impatient, operation.contested = impatient, contested and not self._workload.moves
        self._workload.history.invoke(self._process, self._world.now, operation)
        self._attempt(operation, 1, operation.impatient, done)
        if operation.impatient:
            self._ask_soon(operation, transaction)
        if operation.contested:
            self._ask_soon(operation, self._something_else(transaction))

    def _something_else(self, transaction: Transaction) -> Transaction:
        """Not this; some shard gets both, or nobody could tell."""
        shards_of = self._workload.cluster.shard_map.shards_of
        while True:
            other = self.drawn()[1]
            if other != transaction and not set(shards_of(other)).isdisjoint(shards_of(transaction)):
                return other

    def _ask_soon(self, operation: Operated, transaction: Transaction) -> None:
        """Ask any replica for this under the operation's id."""

        def answered(answer: Any) -> None:
            if transaction is operation.transaction:
                operation.told.append(answer)
            else:
                operation.rivals.append((transaction, answer))

        rng, world = self._rng, self._world
        replica = rng.choice(world.topology.processes)
        request = Execute(operation.id, transaction)
        world.after(rng.choice(_SOON_US), lambda: world.request(replica, request, answered))

    def entry(self, operation: Operated, attempt: int) -> ProcessId:
        """The replica to ask in the attempt-th attempt: any; for a read without an id mostly one that believes that it
        leads."""
        if operation.unnamed is not None and operation.id[-1] & 6:
            nodes = [self._world.node(pid) for pid in self._world.topology.groups[operation.unnamed]]
            leaders = [node.pid for node in nodes if node.up and node.protocol.role() == "leader"]
            if leaders:
                return self._rng.choice(leaders)
        return self._rng.choice(self._world.topology.processes)

    def _attempt(self, operation: Operated, attempt: int, uncertain: bool, done: Callable[[Operated], None]) -> None:
        world = self._world
        replica = self.entry(operation, attempt)
        state = {"open": True}
        if attempt > 1:
            self._workload.repetitions += 1

        def answered(answer: Any) -> None:
            if state["open"]:
                state["open"] = False
                self._answered(operation, attempt, uncertain, answer, done)

        message_id = operation.id if operation.unnamed is None else NO_ID
        request = Execute(message_id, operation.transaction, None, operation.consistency, operation.age_us)
        world.request(replica, request, answered)
        world.after(TIMEOUT_US, lambda: answered(None))

    def _answered(
        self, operation: Operated, attempt: int, uncertain: bool, answer: Any, done: Callable[[Operated], None]
    ) -> None:
        history, now = self._workload.history, self._world.now
        if isinstance(answer, Answered):
            if answer.result.failure:
                operation.failed, operation.impossible = True, answer.result
                history.end(self._process, "fail", now, operation, answer.result.failure)
            else:
                operation.result, operation.results_omitted = answer.result, answer.results_omitted
                operation.places, operation.seen = dict(answer.places), answer.seen
                if operation.unnamed is not None and answer.shard >= 0:
                    operation.unnamed = answer.shard
                    if answer.position or answer.result.version == ZERO:
                        operation.places = {answer.shard: answer.position}
                history.end(self._process, "ok", now, operation)
        elif isinstance(answer, Refused) and (
            answer.code in ("expired", "id_reused")
            or not (uncertain or operation.impatient or (answer.retryable and not self._believes(answer)))
        ):
            operation.failed, operation.refused = answer.outcome == "not_applied", answer.code
            operation.failed &= not operation.contested  # something has been done under this id, perhaps
            history.end(self._process, "fail" if operation.failed else "info", now, operation, answer.code)
        elif operation.unnamed is None and attempt < (REFUSALS if isinstance(answer, Refused) else ATTEMPTS):
            uncertain = uncertain or not isinstance(answer, Refused) or answer.outcome == "unknown"
            pause = self._rng.randint(1_000, 200_000)
            self._world.after(pause, lambda: self._attempt(operation, attempt + 1, uncertain, done))
            return
        else:
            history.end(self._process, "info", now, operation, "no answer")
            self._process = self._workload.new_process()
        done(operation)

    def _believes(self, refused: Refused) -> bool:
        """Whether it takes the word of who has done nothing, and might do so yet, for the last one."""
        return False

    # -- what clients do ----------------------------------------------------------------------------------------------

    def _transfer(self) -> Transaction:
        source, target = self._rng.sample(self._workload.accounts, 2)
        amount = self._rng.randint(1, 40)
        enough = Compare(source, "value", ">", b"%d" % (MINIMUM + amount - 1))
        return Transaction((enough,), (Add(source, -amount), Add(target, amount)))

    def _read_all(self) -> Transaction:
        return Transaction(success=tuple(Get(a) for a in self._workload.accounts))

    def _read_pair(self) -> Transaction:
        return Transaction(success=tuple(Get(k) for k in self._rng.sample(self._workload.keys, 2)))

    def _put(self) -> Transaction:
        keys = self._rng.sample(self._workload.keys, self._rng.choice((1, 1, 2, 3)))
        return Transaction(success=tuple(Put(k, b"%d" % self._rng.getrandbits(20)) for k in keys))

    def _get(self) -> Transaction:
        return Transaction(success=(Get(self._rng.choice(self._workload.keys)),))

    def _append(self) -> Transaction:
        branch: tuple[Operation, ...] = (Append(self._rng.choice(self._workload.keys), b"x"),)
        return Transaction(success=(*branch, Get(self._rng.choice(self._workload.keys))))

    def _swap(self) -> Transaction:
        """A comparison on one key decides what happens to another; sometimes an impossible Add fails it all."""
        a, b = self._rng.sample(self._workload.keys, 2)
        impossible: tuple[Operation, ...] = (Add(b, 1),) if self._rng.random() < 0.3 else ()
        return Transaction(
            (Compare(a, "value", "<", b"5"),), (Put(b, b"low"), Delete(a), *impossible), (Put(a, b"1"), Get(b))
        )

    def _count(self) -> Transaction:
        """An Add in either branch, impossible where the value is no number."""
        a, b = self._rng.sample(self._workload.keys, 2)
        return Transaction(
            (Compare(a, "value", "<", b"5"),), (Add(b, 1), Put(a, b"many")), (Add(a, 1), Put(b, b"7"), Get(a))
        )

    def _delete(self) -> Transaction:
        return Transaction(success=(Delete(self._rng.choice(self._workload.keys)),))

    def _scan(self) -> Transaction:
        return Transaction(success=(Range(b"key/", 4), Put(self._rng.choice(self._workload.keys), b"scanned")))


class Reader(Client):
    """A client that reads without a pause and without ids, at whoever believes that it leads."""

    def _choose(self) -> None:
        self.operate("get", self._get(), self.go_on, unnamed=True)


class Prober(Client):
    """A client that asks a certain replica first."""

    def __init__(self, workload: Workload, rng: random.Random, replica: ProcessId):
        super().__init__(workload, rng)
        self._replica = replica

    def entry(self, operation: Operated, attempt: int) -> ProcessId:
        return self._replica if attempt == 1 else super().entry(operation, attempt)
