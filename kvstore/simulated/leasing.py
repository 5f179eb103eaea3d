"""Clients of a simulated cluster that hold leases: they attach keys, renew, revoke, and sometimes sleep for too long.

What they check themselves, by the true time: a lease that one of them finds gone, and has not revoked, was not renewed
for its time to live: no shorter ago than that it had *sent* the last renewal that was answered. And in the end every
lease goes, since nobody renews it. That what is attached goes with its lease, all of it at one point of the order and
nothing else, is a matter of `serial`. Where slots move, leases change their shards, too.
"""

from __future__ import annotations

import random
from typing import Any

from kvstore.api import leases
from kvstore.api.model import LeasedPut, Operation, Put, Transaction, lease_key
from kvstore.core.bundles import NO_ID
from kvstore.core.messages import Answered, Execute
from kvstore.simulated.clients import TIMEOUT_US, Client, Operated, Workload
from kvstore.simulated.moving import MOVES_MAX, Mover

HOLDERS, CROWD, CROWDED = 2, 8, 0.3
"""So many, or in a part of the runs a crowd: then a new leader does not find all leases at once."""
TTLS_MS = (100, 300, 1000)
ASLEEP = 0.08
REVOKED = 0.08
RENEWED = 0.45
LOOK_US = 100_000
"""Between two looks whether a lease has gone that nobody renews any more."""


class Holder(Client):
    """One lease after the other."""

    def __init__(self, workload: Workload, rng: random.Random, granted: list[bytes]):
        super().__init__(workload, rng)
        self._all_granted = granted
        self._lease = b""
        self._ttl_us = 0
        self._sent_us = 0
        self._revoked = False

    def _choose(self) -> None:
        rng, lease = self._rng, self._lease
        draw = rng.random()
        if not lease:
            self._grant()
        elif draw < ASLEEP:
            self._world.after(self._ttl_us + rng.randint(0, self._ttl_us), lambda: self.go_on(None))
        elif draw < ASLEEP + REVOKED:
            self.operate("look", leases.look(lease), self._looked)
        elif draw < ASLEEP + REVOKED + RENEWED:
            self.operate("renew", leases.renew(lease), self._renewed)
        else:
            self.operate("attach", self._attachment(), self._attached)

    def go_on(self, last: Operated | None) -> None:
        """When the time is up the lease is left alone, until it has gone."""
        if self._world.now < self._workload.stop_at or not self._lease:
            super().go_on(last)
        else:
            self._world.after(LOOK_US, self._look_on)

    def _look_on(self) -> None:
        """What is no operation of the history: it says nothing that others did not."""
        open_ = [True]

        def answered(answer: Any) -> None:
            if open_[0]:
                open_[0] = False
                found = isinstance(answer, Answered) and not answer.results_omitted
                if found and leases.row_of(answer.result.results) is None:
                    self._gone()
                self.go_on(None)

        replica = self._rng.choice(self._world.topology.processes)
        self._world.request(replica, Execute(NO_ID, leases.look(self._lease)), answered)
        self._world.after(TIMEOUT_US, lambda: answered(None))

    def _grant(self) -> None:
        ttl_ms = self._rng.choice(TTLS_MS)
        self._ttl_us, self._revoked = 1000 * ttl_ms, False
        lease = self._workload.new_id()
        self.operate("grant", leases.grant(lease, ttl_ms), lambda operation: self._granted(lease, operation))

    def _granted(self, lease: bytes, operation: Operated) -> None:
        if not operation.failed:  # what is unknown may have been granted
            self._lease = lease
            self._all_granted.append(lease)
            self._sent_us = operation.invoked_us if operation.result is not None else -self._ttl_us
        self.go_on(None)

    def _renewed(self, operation: Operated) -> None:
        if operation.result is not None and operation.result.succeeded:
            self._sent_us = operation.invoked_us
        elif operation.result is not None:
            self._gone()
        self.go_on(None)

    def _attachment(self) -> Transaction:
        rng, keys = self._rng, self._workload.keys
        chosen = rng.sample(keys, rng.choice((1, 1, 2, 4)))
        attached: list[Operation] = [LeasedPut(key, b"%d" % rng.getrandbits(9), self._lease) for key in chosen]
        others = [Put(rng.choice(keys), b"free")] if rng.random() < 0.2 else []
        return Transaction(success=(*attached, *others))

    def _attached(self, operation: Operated) -> None:
        if operation.failed and not operation.refused:
            self._gone()
        self.go_on(None)

    def _looked(self, operation: Operated) -> None:
        row = leases.row_of(operation.result.results) if operation.result is not None else None
        if row is None:
            if operation.result is not None and not operation.results_omitted:
                self._gone()
            self.go_on(None)
            return
        self._revoked = True
        self.operate("revoke", leases.revoke(row, self._lease), self.go_on)

    def _gone(self) -> None:
        lived_us = self._world.now - self._sent_us
        if lived_us < self._ttl_us and not self._revoked:
            name = lease_key(self._lease).decode()
            text = f"{name} has gone {lived_us} us after its renewal was sent, and lives for {self._ttl_us}"
            self._world.report("leases", text)
        self._lease = b""


class Carrier(Mover):
    """A move of some leases, if there were any by then: of the last ones, for the others will have gone."""

    def __init__(self, workload: Workload, rng: random.Random, granted: list[bytes]):
        super().__init__(workload, rng)
        self._granted = granted

    def begin(self) -> None:
        last = [lease_key(lease) for lease in self._granted[-2 * HOLDERS :]]
        if last:
            self.move(lambda: self._rng.sample(last, self._rng.randint(1, len(last))))
        else:
            self.over()


def start(workload: Workload, seed: str) -> list[bytes]:
    """Some holders. Returns the leases that they will have been granted."""
    granted: list[bytes] = []
    crowded = random.Random(f"{seed}/crowd of holders").random() < CROWDED
    for number in range(CROWD if crowded else HOLDERS):
        holder = Holder(workload, random.Random(f"{seed}/holder {number}"), granted)
        workload.running += 1
        holder.go_on(None)
    return granted


def start_moves(workload: Workload, seed: str, span_us: int, granted: list[bytes]) -> None:
    """Draw moves of leases for a run of `span_us` in which slots move."""
    rng = random.Random(f"{seed}/moves of leases")
    for _ in range(rng.randint(1, MOVES_MAX)):
        workload.world.after(rng.randint(0, span_us), Carrier(workload, rng, granted).begin)
