"""What a replica is asked, what it answers, and what replicas of different shards tell one another. Pure data."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

import msgspec

from kvstore.api.model import RESULT_BYTES_MAX, Consistency, Get, OperationResult, Range, Result, Transaction
from kvstore.api.shard_map import PlacedRun
from kvstore.core.audit import Given
from kvstore.core.state import Changed
from multicast.types import ZERO, GroupId, MessageId, Timestamp

T = TypeVar("T")

# -- a client's request and its answer --------------------------------------------------------------------------------


class Execute(msgspec.Struct, gc=False):
    """Execute this transaction exactly once under this id, a UUIDv7. Repetitions get the first result. NO_ID: it only
    reads, and nobody can repeat it. at: then it may be of the state at this version; else it is as `consistency` says.
    paged: if it is not all that there is, the rest will be read at the version of this one."""

    message_id: MessageId
    transaction: Transaction
    at: Timestamp | None = None
    consistency: Consistency = "linearizable"
    age_us: int = 0
    paged: bool = False


class Lookup(msgspec.Struct, gc=False):
    """What became of the transaction of this id? Answered with `Answered`, without what it read, or `Refused`."""

    message_id: MessageId


class Follow(msgspec.Struct, gc=False):
    """What has changed after this version with first <= key < end (b"": no end)? None: from now on. live: whoever asks
    goes on from what he was told of last. by: see `Transaction`. Answered with `Followed` or `Refused`."""

    after: Timestamp | None
    first: bytes = b""
    end: bytes = b""
    live: bool = False
    by: str = ""


class Followed(msgspec.Struct):
    """What transactions have changed, in their order, perhaps nothing; and up to which version that is all."""

    transactions: list[Changed]
    upto: Timestamp


class Answered(msgspec.Struct):
    """The transaction was executed; `result.failure` says if it was impossible and had no effect.

    repeated: this is the remembered result of an earlier request with the id. results_omitted: what it read was too
    large to be remembered and `result.results` is empty; ask again under a new id if it is needed.
    shard, position: of a read of one shard that had no id: it saw the first `position` deliveries of that shard, and
    `result.version` is that of the last transaction among them (ZERO: not known). 0: it was ordered; the version is its
    own. seen: a version at which the state is what it saw; ZERO: `result.version` is that. places: of a read of several
    shards that was not ordered: (shard, position) of each; then all that is below `result.version` was seen.
    """

    result: Result
    repeated: bool = False
    results_omitted: bool = False
    shard: GroupId = -1
    position: int = 0
    seen: Timestamp = ZERO
    places: tuple[tuple[GroupId, int], ...] = ()


class Refused(msgspec.Struct):
    """No result. `outcome` "not_applied": what was asked in this request has no effect, now or later; "unknown": the
    transaction of this id may have had an effect, or may still have one.

    code: "invalid" (a limit is broken; the message names the field), "id_reused" (the id belongs to another body),
    "id_expired" (older than the window; if it was tried before, the result is no longer certain), "id_in_future",
    "overloaded", "expired" (it was ordered too late and had no effect; so late that an earlier result may have been
    forgotten, it is "id_expired" again), "timeout" (no answer in WAIT_US_MAX), "no_majority" (one of its shards cannot
    take anything now; the message names the shard that is waited for), "full", "compacted" (what stood at that version
    is no longer known; the message names the oldest version of which it is), "future" (no version is that great yet),
    "lagged" (who watches is too slow), "not_ready" (this replica does not know the time yet, by which the id could be
    judged); of a Lookup "unknown_or_forgotten".
    """

    code: str
    message: str
    retryable: bool
    outcome: str


Told = Callable[[Answered | Followed | Refused], None]
"""The callback for a request's answer, called once."""


# -- between replicas -------------------------------------------------------------------------------------------------


class NestedVote(msgspec.Struct, array_like=True, gc=False):
    """The same of nested transactions. truths: see `kvstore.api.nesting`. impossible: (way, why, key) of those ways in
    which the transaction cannot end here."""

    truths: bytes
    impossible: list[tuple[tuple[bool, bytes], str, bytes]] = []


class Vote(msgspec.Struct, array_like=True, gc=False):
    """What a shard knows that decides the fate of a transaction everywhere.

    holds: all its comparisons hold. failure, failure_key: why the branch cannot run here, if it cannot (success branch,
    then failure branch); empty otherwise. reused: its id belongs to another body here. repeated: it was delivered here
    before. places: of those slots of its keys that this shard has given or taken. given: what the source of a move
    gives. nested: where there are nested transactions; then the failures are there.
    """

    holds: bool = True
    success_failure: str = ""
    success_key: bytes = b""
    failure_failure: str = ""
    failure_key: bytes = b""
    reused: bool = False
    repeated: bool = False
    places: list[PlacedRun] = []
    given: Given | None = None
    nested: NestedVote | None = None


class Part(msgspec.Struct, array_like=True, gc=False):
    """A shard's contribution to a multi-shard bundle: its execution signal, and its votes.

    id, timestamp: the message's. votes: of its transactions in their order, None where the shard has no objection; none
    at all if it has none to any.
    """

    id: MessageId
    timestamp: Timestamp
    votes: list[Vote | None]

    def vote(self, index: int) -> Vote | None:
        """The vote on one transaction."""
        return self.votes[index] if self.votes else None


class Retained(Part, array_like=True, gc=False):
    """A part that somebody may still ask for, as a store keeps it. moved: a transaction of its bundle ended so. format:
    so that these are not five fields, which is format 1."""

    destinations: tuple[GroupId, ...] = ()
    moved: bool = False
    format: int = 2

    def part(self) -> Part:
        """The part as it is told."""
        return Part(self.id, self.timestamp, self.votes)


class _RetainedSingle(msgspec.Struct, array_like=True, gc=False):
    """Format 1: of a message that was one transaction."""

    id: MessageId
    digest: bytes
    vote: Vote
    timestamp: Timestamp
    destinations: tuple[GroupId, ...]


class Parts(msgspec.Struct, array_like=True, tag=1):
    """Parts of one shard, pushed or pulled."""

    shard: GroupId
    parts: list[Part]


class Wanted(msgspec.Struct, array_like=True, gc=False):
    """A bundle whose part somebody lacks. id, timestamp: the message's. ids: of its transactions, see `Bundled`."""

    id: MessageId
    timestamp: Timestamp
    ids: list[MessageId]


class PartRequest(msgspec.Struct, array_like=True, tag=2):
    """Send me your shard's parts of these bundles, or how their transactions ended where the parts are forgotten."""

    wanted: list[Wanted]


class Decided(msgspec.Struct, array_like=True, gc=False):
    """How a transaction ended in a shard that has completed it. digest: of what that shard knows by its id. truths: see
    `kvstore.api.nesting`."""

    status: int
    succeeded: bool
    failure: str
    failure_key: bytes
    digest: bytes
    truths: bytes = b""


class Decisions(msgspec.Struct, array_like=True, tag=5):
    """In place of a part that is forgotten. id: the message's. decided: of its transactions in their order; None for
    one without an id that was applied: it only reads."""

    shard: GroupId
    id: MessageId
    decided: list[Decided | None]


class ShardResult(msgspec.Struct, array_like=True, gc=False):
    """How a completed transaction ended, and what one shard read. id: its client's, or `bundles.unnamed_id`.
    timestamp: its version. status: of `kvstore.core.audit`.

    truths: see `kvstore.api.nesting`. results: (index of the operation in the course, result), None if too large to be
    remembered. shards: to which it was sent, if it has a range or the like and these are not the first ones: each has a
    part of the results.
    """

    id: MessageId
    digest: bytes
    timestamp: Timestamp
    status: int
    succeeded: bool
    failure: str
    failure_key: bytes
    results: list[tuple[int, OperationResult]] | None
    truths: bytes = b""
    shards: tuple[GroupId, ...] = ()


class Remembered(msgspec.Struct, array_like=True, gc=False):
    """What stands in the store beside a remembered id. slots: see `ShardMap.homes_of`. failed: failure and its key. The
    rest: see `ShardResult`. The last three are there where there are truths or shards; format: so that they are not
    eight fields, which is format 1."""

    slots: bytes | None
    digest: bytes
    timestamp: Timestamp
    status: int
    succeeded: bool
    failed: tuple[str, bytes] | None
    results: list[tuple[int, OperationResult]] | None
    truths: bytes = b""
    format: int = 3
    shards: tuple[GroupId, ...] = ()

    def encoded(self) -> bytes:
        """The bytes that are kept."""
        known = self.slots, self.digest, self.timestamp, self.status, self.succeeded, self.failed, self.results
        return _encode_remembered(self if self.truths or self.shards else known)

    def result(self, message_id: MessageId) -> ShardResult:
        """The result that is remembered under this id."""
        failure, key = self.failed or ("", b"")
        return ShardResult(
            message_id, self.digest, self.timestamp, self.status, self.succeeded, failure, key, self.results,
            self.truths, self.shards,
        )  # fmt: skip


class ShardResults(msgspec.Struct, array_like=True, tag=3):
    """For the entry replica of these transactions. unknown: ids of which this replica knows nothing, to who asks that.
    forgotten: ids that are so old that nobody may know anything of them any more, and this replica does not. complete:
    with these two, the version up to which it is complete; None: an older release does not say."""

    shard: GroupId
    results: list[ShardResult]
    unknown: list[MessageId] = []
    forgotten: list[MessageId] = []
    complete: Timestamp | None = None


class ResultRequest(msgspec.Struct, array_like=True, tag=4):
    """Send me your shard's results of these transactions, those that are completed and remembered. whether: and say of
    which you know none."""

    ids: list[MessageId]
    whether: bool = False


class ShardState(msgspec.Struct, array_like=True, tag=6):
    """A leader that a majority follows tells everybody. full: nothing that needs room can be taken. waits_for: shards
    that hold up this one, and are not heard of. places: of the slots that this shard gave or took."""

    shard: GroupId
    full: bool
    waits_for: list[GroupId]
    places: list[PlacedRun] = []


class ReadAt(msgspec.Struct, array_like=True, tag=10):
    """What does this read at that version, in your shard? number: of the answer. shards: that are asked, of a Range."""

    number: int
    version: Timestamp
    operation: Get | Range
    shards: tuple[GroupId, ...] = ()


class ReadAtTold(msgspec.Struct, array_like=True, tag=11):
    """result: None if `oldest` is the oldest version of which the replica knows everything."""

    shard: GroupId
    number: int
    result: OperationResult | None
    oldest: Timestamp


class ChangesAfter(msgspec.Struct, array_like=True, tag=20):
    """What did transactions of your shard change after this version, with first <= key < end (b"": no end)? number: of
    the answer, which is due when everything up to `wanted` is complete. news: and when there is anything."""

    number: int
    after: Timestamp
    wanted: Timestamp
    news: bool
    first: bytes
    end: bytes


class ChangesTold(msgspec.Struct, array_like=True, tag=21):
    """upto: up to there that is all; transactions: None if the replica only knows what came after `upto`. complete: the
    greatest version of what is complete."""

    shard: GroupId
    number: int
    transactions: list[Changed] | None
    upto: Timestamp
    complete: Timestamp


class ReadNow(msgspec.Struct, array_like=True, tag=12, gc=False):
    """What does this read in your shard? number: of the answer. age_us: it sees all that was answered so long before,
    0: before it was asked; None: it does not matter what. known: the digest of what the asker has, and known_at the
    position of what that was read from. whence: tell only of what state the answer would be."""

    number: int
    transaction: Transaction
    age_us: int | None
    known: bytes = b""
    whence: bool = False
    known_at: int = 0


class ReadNowTold(msgspec.Struct, array_like=True, tag=13, gc=False):
    """results: as in `ShardResult`; None: they are too large, or `known`. position, version, seen: as in `Answered`.
    oldest: the first version of which everything is known. deleted_at: the last position that deleted anything, or a
    later one. places: of those slots of its keys that the shard has given or taken."""

    shard: GroupId
    number: int
    position: int
    version: Timestamp
    seen: Timestamp
    oldest: Timestamp
    deleted_at: int
    digest: bytes
    results: list[tuple[int, OperationResult]] | None
    places: list[PlacedRun] = []


class PositionRequest(msgspec.Struct, array_like=True, tag=14, gc=False):
    """From which position on is the state of our shard fresh now? To the leader. number: of the answer."""

    number: int


class PositionTold(msgspec.Struct, array_like=True, tag=15, gc=False):
    """As `Application.on_readable`."""

    number: int
    position: int | None


MESSAGES = (
    Parts, PartRequest, ShardResults, ResultRequest, Decisions, ShardState, ReadAt, ReadAtTold, ReadNow, ReadNowTold,
    PositionRequest, PositionTold, ChangesAfter, ChangesTold,
)  # fmt: skip
_encode_remembered = msgspec.msgpack.Encoder().encode
_decode_remembered = msgspec.msgpack.Decoder(Remembered).decode
_decode_shard_result = msgspec.msgpack.Decoder(ShardResult).decode
encode_retained = msgspec.msgpack.Encoder().encode
_decode_retained = msgspec.msgpack.Decoder(Retained).decode
_decode_retained_single = msgspec.msgpack.Decoder(_RetainedSingle).decode


def in_messages(items: Iterable[T], bytes_of: Callable[[T], int]) -> list[list[T]]:
    """These in lists for one message each, of about RESULT_BYTES_MAX."""
    found: list[list[T]] = []
    size = 0
    for item in items:
        more = bytes_of(item)
        if not found or size + more > RESULT_BYTES_MAX:
            found.append([])
            size = 0
        found[-1].append(item)
        size += more
    return found


def encode_remembered(result: ShardResult, slots: bytes | None) -> bytes:
    """What is kept beside the id of `result`."""
    r = result
    failed = (r.failure, r.failure_key) if r.failure else None
    if r.truths or r.shards:
        known = r.digest, r.timestamp, r.status, r.succeeded, failed, r.results, r.truths
        return _encode_remembered(Remembered(slots, *known, shards=r.shards))
    return _encode_remembered((slots, r.digest, r.timestamp, r.status, r.succeeded, failed, r.results))


def decode_remembered(record: bytes) -> Remembered:
    """The inverse of `encode_remembered`; also of format 1, a `ShardResult`, which does not tell slots."""
    if record[:1] != b"\x98":
        return _decode_remembered(record)
    r = _decode_shard_result(record)
    failed = (r.failure, r.failure_key) if r.failure else None
    return Remembered(None, r.digest, r.timestamp, r.status, r.succeeded, failed, r.results)


def decode_retained(record: bytes) -> Retained:
    """The inverse of `encode_retained`; also of format 1, which has five fields."""
    if record[:1] != b"\x95":
        return _decode_retained(record)
    single = _decode_retained_single(record)
    return Retained(single.id, single.timestamp, [single.vote], single.destinations)
