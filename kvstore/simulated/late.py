"""Late copies of requests in a simulated cluster: what some replica took when it knew an older map of slots, and what
only now gets through, wherever the slots have gone meanwhile, and back.

A replica that takes a request multicasts it to the shards that own its keys by the map that it knows; what it has
multicast may be delivered after any time, and may be the first copy that is. So of what clients ask for, copies are
multicast all the while by any map that some replica has ever known. Clients ask the same replica at that instant, for
the old shards answer them, too; and the old shards themselves soon after. Slots wander there and back under this.

When all is over, what clients were told (`Operated.told`) and what the logs say must fit together, as for any other
repetition (`kvstore.simulated.checks`).
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

from kvstore.api.shard_map import ShardMap, slot_of, slots_of
from kvstore.core.bundles import encode_bundle, encode_transaction, format_for
from kvstore.core.messages import Execute
from kvstore.simulated.clients import Operated, Workload
from kvstore.simulated.moving import STEPS_MAX, Mover, prepare
from multicast.types import AppMessage, GroupId, ProcessId, created_us, new_message_id

WANDERERS = 2
KEYS = (2, 6, 12)
"""So many keys' slots wander together."""
PAUSE_US_MAX = 40_000
"""Between two copies."""
LATE_US = (0, 0, 20_000, 200_000, 1_000_000)
"""So long after it was drawn, at most, a copy is multicast."""
RECENT = 20
"""Of so many last operations every other copy is."""
OF_KEYS = 2
"""Copies of operations on keys whose slots have just arrived."""
ASKED_AT_ONCE, ASKED_THEN, THEN_US_MAX = 0.4, 0.5, 50_000
"""With so many copies a client asks the same replica; after so many one of those to whom the copy has gone, soon."""
THROUGH_US = 500_000
"""In a world in which all is well, copies are executed within this."""
STAYS_US_MAX = 60_000
"""So long, at most, slots stay where they were moved to."""


class Copies:
    """Of what the clients of one workload ask for."""

    def __init__(self, workload: Workload, rng: random.Random):
        self._workload = workload
        self._rng = rng
        self._maps: dict[int, ShardMap] = {}
        self._stopped = False

    def begin(self) -> None:
        """From now on, until `stop`."""
        self._look()
        self._workload.world.after(self._rng.randint(0, PAUSE_US_MAX), self._go_on)

    def stop(self) -> None:
        """What has not left yet does not leave any more."""
        self._stopped = True

    def of_keys(self, keys: Sequence[bytes]) -> None:
        """Of a few operations on any of these."""
        slots = {slot_of(key) for key in keys}
        seen = [one for one in self._found() if not slots.isdisjoint(slots_of(one.transaction))]
        for operation in self._rng.sample(seen, min(OF_KEYS, len(seen))):
            self._make(operation)

    def send_all(self, operations: Iterable[Operated]) -> None:
        """Now, of each one to whoever was asked for it by any map; until they are through."""
        for operation in operations:
            self._look()
            for shards in sorted({one.shards_of(operation.transaction) for one in self._maps.values()}):
                self._send(operation, shards)
        self._workload.world.run_for(THROUGH_US)

    def went_elsewhere(self, operation: Operated) -> bool:
        """Whether other shards would be asked for it by one map than by another."""
        return len({one.shards_of(operation.transaction) for one in self._maps.values()}) > 1

    def _send(self, operation: Operated, shards: tuple[GroupId, ...]) -> None:
        rng, world, identity = self._rng, self._workload.world, operation.id
        origin = rng.choice(world.topology.processes)
        transaction = operation.transaction
        payload = encode_bundle([(identity, encode_transaction(transaction))], format_for([transaction]))
        if rng.random() < ASKED_AT_ONCE:
            self._ask(operation, origin)
        message_id = new_message_id(max(world.now, created_us(identity)), rng.getrandbits(62))
        world.submit(origin, AppMessage(message_id, shards, payload, origin))
        if rng.random() < ASKED_THEN:
            asked = rng.choice(world.topology.groups[rng.choice(shards)])
            world.after(rng.randint(0, THEN_US_MAX), lambda: self._ask(operation, asked))

    def _ask(self, operation: Operated, replica: ProcessId) -> None:
        self._workload.world.request(replica, Execute(operation.id, operation.transaction), operation.told.append)

    def _look(self) -> None:
        for replica in self._workload.cluster.replicas.values():
            self._maps.setdefault(replica.moves.map.version, replica.moves.map)

    def _found(self) -> list[Operated]:
        """Those of which copies may be under way: nobody refused to multicast them, and their ids are theirs alone."""
        known = self._workload.history.operations.values()
        return [one for one in known if one.unnamed is None and not one.contested and not one.refused]

    def _go_on(self) -> None:
        if self._stopped:
            return
        found = self._found()
        if found:
            self._make(self._rng.choice(found[-RECENT:] if self._rng.random() < 0.5 else found))
        self.begin()

    def _make(self, operation: Operated) -> None:
        """One that leaves some time later. Whoever waits for the operation may not conclude from one refusal any more
        that nothing was done."""
        operation.impatient = True

        def leave() -> None:
            if not self._stopped:
                self._look()
                some = self._rng.choice(list(self._maps.values()))
                self._send(operation, some.shards_of(operation.transaction))

        self._workload.world.after(self._rng.randint(0, self._rng.choice(LATE_US)), leave)


class Wanderer(Mover):
    """Some slots that go to another shard, and soon back, or on. When they arrive, what has seen them is copied."""

    def __init__(self, workload: Workload, rng: random.Random, copies: Copies):
        super().__init__(workload, rng)
        self._copies = copies
        self._keys = rng.sample([*workload.accounts, *workload.keys], rng.choice(KEYS))

    def begin(self) -> None:
        self._steps = STEPS_MAX
        self.move(lambda: self._keys)

    def over(self) -> None:
        self._copies.of_keys(self._keys)
        if self._world.now >= self._workload.stop_at:
            super().over()
        else:
            self._world.after(self._rng.randint(0, STAYS_US_MAX), self.begin)


def start(workload: Workload, seed: str, wander: bool) -> Copies:
    """They begin at once. wander: whether slots may move."""
    rng = random.Random(f"{seed}/late")
    copies = Copies(workload, rng)
    copies.begin()
    if wander and len(workload.cluster.topology.groups) > 1:
        if not workload.moves:
            prepare(workload, rng)
        for _ in range(WANDERERS):
            Wanderer(workload, rng, copies).begin()
    return copies
