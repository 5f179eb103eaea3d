"""The entry side: requests of this replica's clients that wait for results, one per message id. Pure."""

from __future__ import annotations

from collections import deque

import msgspec

from kvstore.api.model import EVERYWHERE, RANGES, SILENT, Cut, Result, Rule, Transaction
from kvstore.api.nesting import course, in_their_places
from kvstore.api.shard_map import ShardMap
from kvstore.core.audit import APPLIED, EXPIRED, FAILED, MISMATCH
from kvstore.core.bundles import request_digest
from kvstore.core.execution import merge_results
from kvstore.core.messages import Answered, Refused, ShardResult
from multicast.types import ZERO, GroupId, MessageId, ProcessId, Timestamp, created_us

RESULT_RETRY_US = 500_000
"""How long results are waited for before the shards are asked for them, and between two such questions."""

REMEMBERED_WINDOWS = 3
"""For so many deduplication windows after its creation an id's result is kept. Who is delivered with effect is
delivered within the first; from there the protocols know the id for another two, so a result is never gone before
that. And a delivery within these three finds the result of an earlier one, if there was one."""


def forgotten_before(timestamp: Timestamp, window_us: int) -> MessageId:
    """The first id that is still remembered when what is complete has come to `timestamp`: of those created more than
    REMEMBERED_WINDOWS before, nobody may use one any more."""
    milliseconds = max(0, timestamp.time - REMEMBERED_WINDOWS * window_us) // 1000
    return milliseconds.to_bytes(6, "big") + bytes(10)


_TOLD_BY_ALL = (*RANGES, Cut, Rule)
WAIT_US_MAX = 60_000_000
"""After so long nobody waits for an answer any more: clients' timeouts are shorter."""


Touches = tuple[bool, set[bytes], set[bytes]]
"""Of a transaction: whether it reaches keys that it does not name, on which keys its votes depend, and which it may
write."""


class Flight:
    """A bundle under way. waiting: its requests, in their order. open: how many of them are not answered."""

    __slots__ = ("destinations", "id", "left_at", "open", "waiting")

    def __init__(self, message_id: MessageId, destinations: tuple[GroupId, ...], waiting: list[Waiting], now: int):
        self.id = message_id
        self.destinations = destinations
        self.waiting = waiting
        self.open = len(waiting)
        self.left_at = now


class Waiting:
    """Clients that wait for one transaction.

    unnamed: it has no id of its own. shard_map: by which its destinations were found. astray: its shards have said that
    they are not the right ones, at moved_at, and nobody has said yet which are. without: shards that took part and have
    nothing of the first time. body: as it is multicast. queued: the destinations for whose next bundle it waits;
    flight: the bundle with which it is under way. results: what shards have reported so far. repeated: it was complete
    before this request came; unknown: then, the replicas that remember nothing of it. forgotten: the shards of which
    most replicas do not, or where it is too old to be remembered. asked: when others were asked for it last. window_us:
    the deduplication window. touches: once somebody has looked.
    """

    __slots__ = (
        "asked", "astray", "attempt", "body", "bundles", "destinations", "digest", "due", "flight", "forgotten", "id",
        "moved_at", "queued", "repeated", "results", "shard_map", "since", "tokens", "touches", "transaction",
        "unknown", "unnamed", "window_us", "without",
    )  # fmt: skip

    def __init__(
        self,
        message_id: MessageId,
        transaction: Transaction,
        body: bytes,
        shard_map: ShardMap,
        destinations: tuple[GroupId, ...],
        digest: bytes,
        now: int,
        window_us: int,
    ):
        self.window_us = window_us
        self.id = message_id
        self.unnamed = not message_id
        self.transaction = transaction
        self.body = body
        self.queued: tuple[GroupId, ...] | None = None
        self.flight: Flight | None = None
        self.bundles = 0
        self.shard_map = shard_map
        self.destinations = destinations
        self.astray = False
        self.moved_at = ZERO
        self.digest = digest
        self.tokens: list[int] = []
        self.touches: Touches | None = None
        self.results: dict[GroupId, ShardResult] = {}
        self.without: set[GroupId] = set()
        self.repeated = False
        self.unknown: set[ProcessId] = set()
        self.forgotten: set[GroupId] = set()
        self.since = now
        self.due = now
        self.asked = 0
        self.attempt = 0

    def is_another(self, shard: GroupId, result: ShardResult) -> bool:
        """Whether this result is of a request with another body, in a shard that has nothing to do with this one."""
        return result.digest != self.digest and shard not in self.destinations

    def served_at(self) -> Timestamp:
        """Its version, as far as somebody has told it; else ZERO."""
        return max([result.timestamp for result in self.results.values()], default=ZERO)

    def missing(self, shard_map: ShardMap) -> list[GroupId]:
        """The shards whose results the answer needs, as far as is known: those that own what the transaction reads, by
        the map of then and by the present one, since it may have been served by either; if it reads nothing, any of its
        shards."""
        some, maps = next(iter(self.results.values()), None), [self.shard_map]
        if shard_map is not self.shard_map:
            maps.append(shard_map)
        candidates = [self._asked() | {*shard_map.shards_of(self.transaction)}]
        if some is not None:
            if self._told_all(some):
                return []
            how = self.transaction, some.status, some.succeeded, some.truths
            candidates.insert(0, {shard for one in maps for shard in reporting_shards(*how, one)})
        for shards in candidates:
            missing = shards - self.results.keys() - self.without - self.forgotten
            if missing:
                return sorted(missing)
        return []

    def conclusion(self) -> Answered | Refused:
        """The answer when nobody is left who could tell more."""
        for result in self.results.values():
            return Answered(Result(result.succeeded, result.timestamp), self.repeated, results_omitted=True)
        return unknown_or_forgotten()

    def _asked(self) -> set[GroupId]:
        """The shards that may have a part of the results: what was applied may have been another replica's copy, sent
        to more shards than this one knew."""
        return {*self.destinations}.union(*[result.shards for result in self.results.values()])

    def _told_all(self, some: ShardResult) -> bool:
        if some.status != APPLIED or any([result.results is None for result in self.results.values()]):
            return True
        ran = course(self.transaction, some.succeeded, some.truths)
        needed = [(index, op) for index, op in enumerate(ran) if type(op) not in SILENT]
        if not needed:
            return True
        told = {index for result in self.results.values() for index, _ in result.results or ()}
        everywhere = self.results.keys() | self.without >= self._asked()
        return all([index in told and (everywhere or type(op) not in _TOLD_BY_ALL) for index, op in needed])

    def answer(self) -> Answered | Refused | None:
        """The answer, None while something is missing."""
        for result in self.results.values():
            if result.digest != self.digest or result.status == MISMATCH:
                return id_reused()
            if result.status == EXPIRED:
                return self._expired(result.timestamp)
            if result.status == FAILED:
                failed = Result(result.succeeded, result.timestamp, (), result.failure, result.failure_key)
                return Answered(failed, self.repeated)
        if not self.results:
            return None
        result = next(iter(self.results.values()))
        how = self.transaction, result.succeeded, result.truths
        ran = course(*how)
        alone = len(self._asked()) == 1 and len(result.results or ()) == len(ran)
        if not alone and not self._told_all(result):
            return None
        pieces = [r.results for r in self.results.values() if r.results is not None]
        if len(pieces) < len(self.results):
            return Answered(Result(result.succeeded, result.timestamp), self.repeated, results_omitted=True)
        whole = Result(result.succeeded, result.timestamp, in_their_places(*how, merge_results(ran, pieces)))
        shard = self.destinations[0] if self.unnamed and len(self.destinations) == 1 else -1
        return Answered(whole, self.repeated, shard=shard)

    def _expired(self, timestamp: Timestamp) -> Refused:
        """The answer to a transaction that was ordered too late. The result of an earlier copy would be known, unless
        this one is later still."""
        if timestamp.time <= created_us(self.id) + REMEMBERED_WINDOWS * self.window_us:
            return Refused("expired", "it was ordered later than its id allows and had no effect", False, "not_applied")
        return Refused(
            "id_expired",
            "it was ordered when an earlier result of this id, if there was one, was forgotten already",
            False,
            "unknown",
        )


def unknown_or_forgotten() -> Refused:
    """The answer when nobody remembers an id: whether something was done under it, or will be, it does not say."""
    return Refused("unknown_or_forgotten", "nothing is remembered under this id", False, "unknown")


def id_reused() -> Refused:
    """The answer to a request whose id belongs to another body."""
    return Refused("id_reused", "this id belongs to a request with another body", False, "not_applied")


def reporting_shards(
    transaction: Transaction, status: int, succeeded: bool, truths: bytes, shard_map: ShardMap
) -> tuple[GroupId, ...]:
    """The shards without whose reports there is no answer: those that have read something."""
    if status != APPLIED:
        return ()
    found = set()
    for operation in course(transaction, succeeded, truths):
        if isinstance(operation, EVERYWHERE):
            return shard_map.shards_of(transaction)
        if not isinstance(operation, SILENT):
            found.add(shard_map.shard_of(operation.key))
    return tuple(sorted(found))


class Requests:
    """All requests that wait for results, and when to ask for these."""

    def __init__(self) -> None:
        self.by_id: dict[MessageId, Waiting] = {}
        self._due: deque[tuple[int, MessageId]] = deque()
        self._unnamed = 0

    def __len__(self) -> int:
        return len(self.by_id)

    def add(self, waiting: Waiting) -> None:
        """This one waits, until `remove`."""
        if waiting.unnamed:
            self._unnamed += 1
            waiting.id = self._unnamed.to_bytes(16, "big")
        self.by_id[waiting.id] = waiting
        self.schedule(waiting, waiting.since)

    def digest_of(self, message_id: MessageId, body: msgspec.Raw, homes: tuple[GroupId, ...]) -> bytes:
        """See `request_digest`; of a request that waits here it is known already."""
        waiting = self.by_id.get(message_id)
        if waiting is not None and waiting.body == bytes(body):
            return waiting.digest
        return request_digest(body, homes)

    def rename(self, waiting: Waiting, message_id: MessageId, now: int) -> None:
        """This request has no id of its own, and is known by this one from now on."""
        del self.by_id[waiting.id]
        waiting.id = message_id
        self.by_id[message_id] = waiting
        self.schedule(waiting, now)

    def remove(self, message_id: MessageId) -> Waiting | None:
        """Nobody waits for this id any more."""
        return self.by_id.pop(message_id, None)

    def schedule(self, waiting: Waiting, now: int) -> None:
        """Have `due` return it RESULT_RETRY_US from now."""
        waiting.due = now + RESULT_RETRY_US
        self._due.append((waiting.due, waiting.id))

    def due(self, now: int) -> list[Waiting]:
        """The requests that have waited long enough for their results."""
        found = []
        while (next_due := self.next_due()) is not None and next_due <= now:
            found.append(self.by_id[self._due.popleft()[1]])
        return found

    def next_due(self) -> int | None:
        """The next instant at which `due` returns something."""
        due = self._due
        while due:
            at, message_id = due[0]
            waiting = self.by_id.get(message_id)
            if waiting is not None and waiting.due == at:
                return at
            due.popleft()
        return None
