"""A bench for tests: one replica alone. The deliveries, and what other replicas say, are the test's."""

from __future__ import annotations

import random
from typing import Any

from kvstore.api.model import OperationResult, Put, Transaction
from kvstore.api.shard_map import ShardMap
from kvstore.core.audit import APPLIED, Outcome, decode_outcomes
from kvstore.core.bundles import encode_bundle, encode_transaction, format_for, request_digest
from kvstore.core.messages import Answered, Execute, Part, Parts, Refused, ShardResult, Vote
from kvstore.core.replica import Replica
from kvstore.storage.backend import MemoryBackend
from kvstore.storage.store import Store
from multicast.application import ApplicationOutbox
from multicast.records import Delivered
from multicast.types import FINAL, AppMessage, Timestamp, Topology, new_message_id

NOW = 1_700_000_000_000_000
WINDOW = 10_000_000
TOPOLOGY = Topology.grid(3, 3)
SHARDS = ShardMap.even([0, 1, 2])


def key(shard: int, number: int = 0) -> bytes:
    """The number-th key of a shard."""
    return [k for k in (b"k%d" % i for i in range(400)) if SHARDS.shard_of(k) == shard][number]


def write(*keys: bytes, value: bytes = b"v") -> Transaction:
    return Transaction(success=tuple(Put(k, value) for k in keys))


def result_of(
    transaction: Transaction,
    message_id: bytes,
    stamp: Timestamp,
    results: list[tuple[int, OperationResult]] | None,
    status: int = APPLIED,
) -> ShardResult:
    """What another shard says of a transaction."""
    digest = request_digest(encode_transaction(transaction), SHARDS.shards_of(transaction))
    return ShardResult(message_id, digest, stamp, status, True, "", b"", results)


_NEVER = 1 << 62


class Bench:
    """Replica 0, leader of shard 0 of three. It tells nothing of its shard, and takes the others for alive."""

    def __init__(self, self_id: int = 0, topology: Topology = TOPOLOGY, **options: Any):
        self.store = Store.open(MemoryBackend())
        self.options = {"dedup_window_us": WINDOW, "digest_every": 1, **options}
        self.self_id = self_id
        self.topology = topology
        self.now = NOW
        self.ids = 0
        self.tokens = 0
        self.completed = 0
        self.delivered: list[tuple[Delivered, bytes | None]] = []
        self.out = ApplicationOutbox()
        self.restart_replica()

    def restart_replica(self) -> None:
        """A new replica on the same store; what was not complete is delivered again."""
        self.completed += len(self.out.completions)
        self.replica = Replica(
            self.self_id,
            self.topology,
            SHARDS,
            self.store,
            leader_of=lambda g: self.topology.groups[g][0],
            rng=random.Random(self.completed),
            silent_us=_NEVER,
            **self.options,
        )
        setattr(self.replica.shards, "on_tick", lambda now, out: _NEVER)  # noqa: B010
        self.out = ApplicationOutbox()
        for arguments in self.delivered[self.completed :]:
            self.replica.on_deliver(*arguments, self.now, self.out)
        self.replica.on_start(self.now, self.out)

    # -- what comes ---------------------------------------------------------------------------------------------------

    def new_id(self) -> bytes:
        self.ids += 1
        return new_message_id(self.now, self.ids << 20)

    def request(self, transaction: Transaction, message_id: bytes | None = None, **how: Any) -> bytes:
        """Of a client, under this id or a fresh one, which is returned. how: see `Execute`."""
        message_id = self.new_id() if message_id is None else message_id
        self.tokens += 1
        self.replica.on_request(self.tokens, Execute(message_id, transaction, **how), self.now, self.out)
        return message_id

    def deliver(
        self,
        transaction: Transaction,
        message_id: bytes | None = None,
        *,
        origin: int = 0,
        outcome: bytes | None = None,
    ) -> Delivered:
        """A bundle of one transaction, under this id or a fresh one, with which it entered at replica `origin`."""
        message_id = self.new_id() if message_id is None else message_id
        return self.deliver_bundle((message_id, transaction), origin=origin, outcome=outcome)

    def deliver_bundle(
        self, *transactions: tuple[bytes, Transaction], origin: int = 0, outcome: bytes | None = None
    ) -> Delivered:
        """A bundle of (id, transaction), all for the same shards."""
        (destinations,) = {SHARDS.shards_of(transaction) for _, transaction in transactions}
        version = format_for([transaction for _, transaction in transactions])
        payload = encode_bundle([(i, encode_transaction(transaction)) for i, transaction in transactions], version)
        return self.order(AppMessage(self.new_id(), destinations, payload, origin), outcome=outcome)

    def order(
        self, message: AppMessage, *, at: int = 0, expired: bool = False, outcome: bytes | None = None
    ) -> Delivered:
        """Deliver it next, with this time or the present one in its timestamp. expired: the protocol calls the message
        itself too late."""
        position = len(self.delivered) + 1
        timestamp = Timestamp(at or self.now + position, 0)
        delivery = Delivered(position, timestamp, FINAL, expired, message, self.now)
        self.delivered.append((delivery, outcome))
        self.replica.on_deliver(delivery, outcome, self.now, self.out)
        return delivery

    def hear(self, sender: int, message: Any) -> None:
        self.replica.on_message(sender, message, self.now, self.out)

    def part(self, shard: int, of: Delivered, *votes: Vote | None) -> None:
        """The part of another shard comes, from its leader."""
        self.hear(self.topology.groups[shard][0], Parts(shard, [Part(of.message.id, of.timestamp, list(votes))]))

    def settle(self, delivery: Delivered) -> None:
        """The protocol says that this delivery is settled."""
        message = delivery.message
        self.replica.on_settled(message.id, delivery.timestamp, message.destinations, self.now, self.out)

    def tick(self, us: int = 0) -> int | None:
        self.now += us
        wake = self.replica.on_tick(self.now, self.out)
        self.replica.end_batch(self.now, self.out)
        return None if wake == _NEVER else wake

    # -- what leaves --------------------------------------------------------------------------------------------------

    def multicast(self) -> list[AppMessage]:
        """The bundles that have left since this was asked last."""
        self.replica.end_batch(self.now, self.out)
        found, self.out.submissions = self.out.submissions, []
        return found

    def sent(self, kind: type) -> list[tuple[tuple[int, ...], Any]]:
        """(receivers, message) of the messages of a kind that have left since this was asked last."""
        self.replica.end_batch(self.now, self.out)
        found = [(to, m) for to, m in self.out.sends if type(m) is kind]
        self.out.sends = [(to, m) for to, m in self.out.sends if type(m) is not kind]
        return found

    def outcomes(self) -> list[Outcome]:
        """Of all transactions that are complete in this life, in their order."""
        return [outcome for _, record in self.out.completions for outcome in decode_outcomes(record).outcomes]

    def statuses(self) -> list[int]:
        return [outcome.status for outcome in self.outcomes()]

    def answers(self) -> list[Answered | Refused]:
        """Those given since this was asked last."""
        answers, self.out.answers = [answer for _, answer in self.out.answers], []
        return answers
