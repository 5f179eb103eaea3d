"""Clients of a simulated cluster that ask for what others seldom do: that compare versions which they were told, look
at what they have written themselves, count to the limits of numbers, list the keys of a lease, take a refusal for the
last word, and read ranges page by page. What must come of that is a matter of `serial`; pages are all of one version
(`past`)."""

from __future__ import annotations

import random
from typing import Any

import msgspec

from kvstore.api import leases
from kvstore.api.model import (
    FIRST_KEY,
    INT64_MAX,
    INT64_MIN,
    Add,
    Append,
    Compare,
    Delete,
    DeleteRange,
    Get,
    KeyValue,
    LeasedPut,
    Max,
    Min,
    Operation,
    Put,
    Range,
    Transaction,
)
from kvstore.core.bundles import NO_ID
from kvstore.core.messages import Answered, Execute, Refused
from kvstore.simulated.clients import TIMEOUT_US, Client, Operated, Prober, Workload
from kvstore.simulated.past import AskedAt, PastReader
from kvstore.simulated.ruling import PROMOTED, Promoter
from multicast.types import ZERO, Timestamp

EDGERS, PAGERS = 2, 3
PAUSE_US_MAX = 5_000
"""Of those who read pages."""
ALL_AT_ONCE = 0.15
"""Of what they read so much is everything."""
ONE_PAGE = 0.7
"""So many read no further than the first."""
BELIEVES = 0.5
"""So many who are told that nothing was done, and that they may try again, do not."""
DUELS = 0.15
"""With so many of its operations a client lets two write one key at one instant."""
TTLS_MS = (300, 1000)
BESIDE = (b"key/2\0", b"key/22", b"key0")
"""Keys where ranges of others begin and end."""
_TARGETS = ("version", "version", "create_version")
_OPERATORS = ("==", "==", "!=", "<", ">")
_RECENT = 10


class Edger(Client):
    """It attaches keys to a lease, which it never renews. token: in whose name it asks, which is to be checked for all
    that it does."""

    def __init__(self, workload: Workload, rng: random.Random, token: str = ""):
        super().__init__(workload, rng)
        self._token = token
        self._keys = [*workload.keys, *BESIDE]
        self._rows: list[KeyValue] = []
        self._lease = b""

    def _choose(self) -> None:
        if self._token or self._rng.random() > DUELS:
            super()._choose()
        else:
            self._duel()

    def _duel(self) -> None:
        """Two write a key at one instant, mostly in one bundle. Then each writes it again if nobody else has since."""
        rng, workload = self._rng, self._workload
        key, replica = rng.choice(self._keys), rng.choice(self._world.topology.processes)
        workload.running += 2

        def done(operation: Operated) -> None:
            workload.running -= 1

        def write(value: bytes) -> None:
            def again(operation: Operated) -> None:
                if operation.result is None:
                    done(operation)
                    return
                unchanged = Compare(key, "version", "==", operation.result.version)
                client.operate("compare", Transaction((unchanged,), (Put(key, b"9"),), (Get(key),)), done)

            client = Prober(workload, random.Random(rng.getrandbits(64)), replica)
            client.operate("put", Transaction(success=(Put(key, value),)), again)

        write(b"1")
        write(b"2")
        self.go_on(None)

    def _believes(self, refused: Refused) -> bool:
        return refused.outcome == "not_applied" and self._rng.random() < BELIEVES

    def drawn(self) -> tuple[str, Transaction]:
        rng = self._rng
        ways = (("compare", self._compared()), ("mixed", self._mixed()), ("count", self._counted()))
        f, transaction = rng.choice(ways[1:2] if self._token else ways)
        if rng.random() < 0.3:
            f, transaction = "attach", self._attached()
        transaction.by = self._token
        return f, transaction

    def go_on(self, last: Operated | None) -> None:
        result = last.result if last is not None else None
        for one in result.results if result is not None else ():
            self._rows += [one.found] if one.found is not None else one.entries
        del self._rows[:-_RECENT]
        super().go_on(last)

    def _told(self) -> list[tuple[bytes, Timestamp, Timestamp]]:
        """Keys with the version and the create version that somebody was told: this client, or who has put them."""
        told = [(row.key, row.version, row.create_version) for row in self._rows]
        done = [op for op in self._workload.history.operations.values() if op.result is not None]
        for operation in done[-_RECENT:]:
            version = operation.result.version if operation.result is not None else None
            puts = [op.key for op in operation.transaction.success if isinstance(op, Put)]
            told += [(key, version, version) for key in puts if version is not None and key >= FIRST_KEY]
        return told

    def _compared(self) -> Transaction:
        """Who has read writes if nobody else has since; now and then he takes the version of another key."""
        rng, told = self._rng, self._told()
        if not told:
            return self._mixed()
        key, version, created = rng.choice(told)
        target = rng.choice(_TARGETS)
        operand = version if target == "version" else created
        if rng.random() < 0.2:
            key = rng.choice(self._keys)
        compare = Compare(key, target, rng.choice(_OPERATORS), operand)
        return Transaction((compare,), (Put(rng.choice(self._keys), b"8"), Get(key)), (Get(key),))

    def _mixed(self) -> Transaction:
        """Of few keys, so that most see what the ones before have done."""
        rng = self._rng
        keys = rng.sample(self._keys, 3)
        some = [self._one(rng.choice(keys)) for _ in range(1 if self._token else rng.randint(3, 8))]
        return Transaction(success=(*some, Put(keys[0], b"7")))  # who only reads may do so without an order

    def _one(self, key: bytes) -> Operation:
        rng = self._rng
        start, end = sorted([rng.choice((b"", *self._keys)), rng.choice((*self._keys, b"l"))])
        keys_only, count_only = rng.choice(((False, False), (True, False), (False, True)))
        after = rng.choice((b"", b"", *self._keys))
        draws: tuple[tuple[int, Operation], ...] = (
            (4, Put(key, b"%d" % rng.randint(0, 9))), (3, Delete(key)), (4, Get(key)), (2, Append(key, b"1")),
            (2, Add(key, 1)), (1, DeleteRange(b"key/", start, end)),
            (4, Range(b"key", rng.randint(1, 5), after, start, end, rng.random() < 0.5, keys_only, count_only)),
        )  # fmt: skip
        return rng.choices([operation for _, operation in draws], [weight for weight, _ in draws])[0]

    def _counted(self) -> Transaction:
        """To the least and the greatest numbers, and beyond."""
        rng, key = self._rng, self._rng.choice(self._keys)
        least, most = INT64_MIN + rng.randint(0, 3), INT64_MAX - rng.randint(0, 3)
        put = [Put(key, b"%d" % rng.choice((least, most)))] if rng.random() < 0.5 else []
        number = rng.choice(
            (Add(key, rng.randint(-3, 3)), Add(key, rng.choice((least, most))), Min(key, least), Max(key, most))
        )
        return Transaction(success=(*put, number, Get(key)))

    def _attached(self) -> Transaction:
        """Keys of a lease are attached, and listed; if it has gone all that is impossible, and there is a new one."""
        rng, keys = self._rng, self._keys
        if not self._lease or rng.random() < 0.2:
            self._lease = self._workload.new_id()
            return leases.grant(self._lease, rng.choice(TTLS_MS))
        attached = [LeasedPut(key, b"5", self._lease) for key in rng.sample(keys, rng.choice((0, 2, 3)))]
        freed: list[Operation] = [rng.choice((Put(rng.choice(keys), b"6"), Delete(rng.choice(keys))))]
        freed = freed[: rng.choice((0, 0, 1)) if attached else 1]  # who only reads may do so without an order
        start, end = sorted((rng.choice((FIRST_KEY, *keys)), rng.choice((*keys, b"l"))))
        if rng.random() < 0.5:
            start, end = FIRST_KEY, b""
        listing = Range(b"", rng.choice((1, 1, 2, 4)), start=start, end=end, keys_only=True, lease=self._lease)
        return Transaction(success=(*attached, *freed, listing))


class Pager(PastReader):
    """A client that reads pages of a range: the first one as fresh as may be asked, the others at its version; and all
    keys at a version at once."""

    def __init__(self, workload: Workload, rng: random.Random, asked: list[AskedAt]):
        super().__init__(workload, rng, asked)
        self._pause_us = PAUSE_US_MAX

    def _choose(self) -> None:
        if self._rng.random() < ALL_AT_ONCE:
            self._read_all()
        else:
            self._read_page()

    def _read_all(self) -> None:
        """More than one replica is asked for at once."""
        rng, workload = self._rng, self._workload
        told = [op.result.version for op in workload.history.operations.values() if op.result is not None]
        if not told:
            self.go_on()
            return
        version = rng.choice(told[-5:])
        gets = [Get(key) for key in (*workload.accounts, *workload.keys, *BESIDE)]
        wanted: list[Get | Range] = [*gets, Range(b"key/", rng.randint(1, 6)), Range(b"", 100, keys_only=True)]
        rng.shuffle(wanted)
        open_ = [True]

        def answered(answer: Any) -> None:
            if open_[0] and isinstance(answer, Answered) and not answer.results_omitted:
                results = zip(wanted, answer.result.results, strict=True)
                self._asked.extend([AskedAt(version, operation, result) for operation, result in results])
            if open_[0]:
                open_[0] = False
                self.go_on()

        asked = Execute(NO_ID, Transaction(success=tuple(wanted)), version)
        self._world.request(rng.choice(self._world.topology.processes), asked, answered)
        self._world.after(TIMEOUT_US, lambda: answered(None))

    def _read_page(self) -> None:
        rng = self._rng
        scan = Range(rng.choice((b"", b"account/", b"key/")), rng.choice((1, 3, 5)), reverse=rng.random() < 0.3)
        asked = Execute(NO_ID, Transaction(success=(scan,)), paged=True)
        asked.consistency = rng.choice(("linearizable", "linearizable", "snapshot", "stale"))
        asked.age_us = 20_000 if asked.consistency == "stale" else 0
        open_ = [True]

        def answered(answer: Any) -> None:
            if not open_[0]:
                return
            open_[0] = False
            if isinstance(answer, Answered) and answer.result.results and answer.result.results[0].more:
                self._turn(scan, answer)
            else:
                self.go_on()

        self._world.request(rng.choice(self._world.topology.processes), asked, answered)
        self._world.after(TIMEOUT_US, lambda: answered(None))

    def _turn(self, scan: Range, answer: Answered) -> None:
        """What is on the first page stands there at the version at which the next ones are read."""
        (page,) = answer.result.results
        version = answer.result.version if answer.seen == ZERO else answer.seen
        self._asked.append(AskedAt(version, scan, page))
        if self._rng.random() < ONE_PAGE:
            self.go_on()
            return
        last = page.entries[-1].key
        self._ask(version, msgspec.structs.replace(scan, **({"end": last} if scan.reverse else {"after": last})))


def start(workload: Workload, seed: str, asked: list[AskedAt], rights: bool) -> None:
    """They begin at once. asked: gets what is read at versions. rights: some have a token."""
    for number in range(EDGERS):
        workload.running += 1
        Edger(workload, random.Random(f"{seed}/edger {number}")).go_on(None)
    for number in range(PAGERS):
        Pager(workload, random.Random(f"{seed}/pager {number}"), asked).go_on()
    if rights:
        workload.running += 2
        Promoter(workload, random.Random(f"{seed}/promoter")).go_on(None)
        Edger(workload, random.Random(f"{seed}/edger with a token"), PROMOTED).go_on(None)
