"""A replica killed at any point comes back with the same state: LMDB, the checkpoint and the journal behind them."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from kvstore.api.model import Add, Append, Delete, Get, Put, Transaction
from kvstore.api.shard_map import ShardMap
from kvstore.core.messages import Answered, Execute
from kvstore.core.replica import Replica
from kvstore.storage.lmdb_backend import LmdbBackend
from kvstore.storage.store import Store
from multicast import registry
from multicast.checkpoint import Checkpoints
from multicast.engine import Engine
from multicast.journal import Journal
from multicast.runtime.disk import FileDisk
from multicast.types import Topology, new_message_id
from tests.amounts import examples

CLUSTER = b"recovery cluster"
START_US = 1_700_000_000_000_000


class SingleReplica:
    """One replica on real files, driven by hand: one shard, so nothing comes from others."""

    def __init__(self, path):
        self.path = path
        self.now = START_US
        self.requests = 0
        self.answers = {}
        self.open()

    def open(self) -> None:
        topology = Topology.grid(1, 1)
        self.store = Store.open(LmdbBackend(self.path / "data", durability="os"), CLUSTER, 0)
        protocol_class = registry.load("skeen")
        options = protocol_class.specification.options(clock="hybrid", dedup_window_us=10_000_000)
        protocol = protocol_class(0, topology, options, random.Random(1))
        self.replica = Replica(
            0,
            topology,
            ShardMap.even([0]),
            self.store,
            dedup_window_us=10_000_000,
            leader_of=protocol.leader_of,
            digest_every=1,
            rng=random.Random(self.now),
        )
        self.disk = FileDisk(self.path / "journal")
        self.journal = Journal(self.disk, CLUSTER, 0, 0)
        self.engine = Engine(protocol, self.replica, incarnation=self.now)
        written = Checkpoints(self.journal).latest().recovery(self.journal, self.replica.position)
        self.carry_out(self.engine.recover(written, self.now))

    def carry_out(self, batch) -> None:
        self.answers.update(batch.answers)
        if batch.journal:
            self.journal.append(batch.journal)
            self.journal.sync()
        self.engine.flushed(batch.number)

    def run(self) -> None:
        while not self.engine.idle:
            self.carry_out(self.engine.run(self.now))

    def execute(self, message_id, transaction) -> Answered:
        self.requests += 1
        self.now += 1_000
        self.engine.request(self.requests, Execute(message_id, transaction))
        self.run()
        return self.answers[self.requests]

    def freeze(self) -> bool:
        return self.store.freeze(self.engine.completed)

    def kill_and_reopen(self) -> None:
        """Nothing is flushed or committed; the layers are gone."""
        self.close()
        self.open()
        self.run()

    def close(self) -> None:
        self.store.close()
        self.disk.close()

    def contents(self):
        return self.store.scan(b"", b"", 1000), self.store.state_digest(), self.engine.completed


transactions = st.sampled_from(
    [
        Transaction(success=(Put(b"a", b"1"), Put(b"b", b"x"))),
        Transaction(success=(Add(b"a", 3), Get(b"a"))),
        Transaction(success=(Append(b"b", b"!"),)),
        Transaction(success=(Delete(b"a"),)),
        Transaction(success=(Add(b"b", 1),)),
    ]
)


@examples(40)
@given(plan=st.lists(st.one_of(transactions, st.sampled_from(["freeze", "commit", "checkpoint", "kill"])), max_size=25))
def test_a_replay_gives_the_same_state_and_answers(plan, tmp_path_factory):
    replica = SingleReplica(tmp_path_factory.mktemp("replica"))
    frozen, given_answers, bits = False, {}, 0
    for step in plan:
        if step == "freeze":
            frozen = replica.freeze() or frozen
        elif step == "commit" and frozen:
            replica.store.commit()
            replica.store.thawed()
            frozen = False
        elif step == "checkpoint":
            Checkpoints(replica.journal).advance()
        elif step == "kill":
            before = replica.contents()
            replica.kill_and_reopen()
            frozen = False
            assert replica.contents() == before
        elif isinstance(step, Transaction):
            bits += 1
            message_id = new_message_id(replica.now, bits)
            given_answers[message_id] = (step, replica.execute(message_id, step))
    replica.kill_and_reopen()
    before = replica.contents()
    for message_id, (transaction, answer) in given_answers.items():
        again = replica.execute(message_id, transaction)
        assert isinstance(again, Answered) and again.repeated
        assert again.result == answer.result
    assert replica.contents() == before
    replica.close()


def test_a_kill_between_commit_and_the_next_batch_loses_nothing(tmp_path):
    replica = SingleReplica(tmp_path)
    replica.execute(new_message_id(replica.now, 1), Transaction(success=(Put(b"k", b"1"),)))
    assert replica.freeze()
    replica.execute(new_message_id(replica.now, 2), Transaction(success=(Append(b"k", b"2"),)))
    replica.store.commit()
    before = replica.contents()
    replica.kill_and_reopen()
    assert replica.contents() == before and replica.store.get(b"k").value == b"12"
    assert replica.replica.position == 1
    replica.close()
