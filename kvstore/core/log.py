"""The log of delivered, uncompleted bundles of a replica, and when each may be signalled. Pure.

A replica sends its part of a multi-shard bundle m as soon as (1) every earlier uncompleted bundle in its log is
addressed to a subset of m's shards and (2) no earlier uncompleted transaction writes a key that m's votes depend on, or
has an id of m's. Who deletes a range may write any key, and his own vote depends on all that are written. A step of a
move waits for all.
Bundles complete in log order, so both come true when the last one that stands in the way completes: the *blocker*, one
position, known at delivery. To find it the log keeps the last position per set of shards and per written key. (Inside
a multi-shard bundle no transaction writes what another's vote depends on: `kvstore.core.bundler`.)
"""

from __future__ import annotations

from collections import deque

from kvstore.api.model import move_of
from kvstore.api.shard_map import PlacedRun
from kvstore.core.audit import MISMATCH, MOVED, REPEATED
from kvstore.core.messages import Decided, Part, Remembered, Vote, decode_remembered
from kvstore.core.plans import LocalPlan
from multicast.records import Delivered
from multicast.types import ZERO, AppMessage, GroupId, MessageId, Timestamp


class Item:
    """One transaction of a delivered bundle.

    id: its client's, or NO_ID. version: of what it writes. expired: delivered later than its id allows. slots: see
    `ShardMap.homes_of`. places: of those slots of its keys that this shard has given or taken. earlier: of what was
    delivered before with this id, what counts here; None if there is nothing. after: the position of the copy before
    it, 0 if there is none in the log: until that is complete `earlier` is open. later: the next copy in the log.
    create_version: of all that it writes; None: as `State.write` has it. compared: what the vote on it has read, if
    this shard has voted: nothing writes that before the transaction itself takes effect.
    """

    __slots__ = (
        "after", "compared", "create_version", "digest", "earlier", "expired", "id", "later", "places", "plan",
        "position", "slots", "version",
    )  # fmt: skip

    def __init__(
        self,
        message_id: MessageId,
        plan: LocalPlan,
        digest: bytes,
        version: Timestamp,
        expired: bool,
        position: int,
        slots: bytes | None = None,
    ):
        self.id = message_id
        self.plan = plan
        self.digest = digest
        self.version = version
        self.expired = expired
        self.position = position
        self.slots = slots
        self.places: list[PlacedRun] = []
        self.earlier: Remembered | None = None
        self.after = 0
        self.later: Item | None = None
        self.create_version: Timestamp | None = None
        self.compared: dict[bytes, Timestamp] | None = None

    @property
    def takes_effect(self) -> bool:
        """Whether it does, as far as this shard knows."""
        return not self.expired and self.earlier is None

    @property
    def reused(self) -> bool:
        """Whether its id belongs to another body, by what came before it."""
        earlier = self.earlier
        return earlier is not None and (earlier.digest != self.digest or earlier.status == MISMATCH)

    def follow(self, first: Item) -> None:
        """`first` has the same id, and is in the log."""
        while first.later is not None:
            first = first.later
        first.later = self
        if first.position < self.position:
            self.after = first.position
        else:  # in one bundle: whatever becomes of the first, this one has no effect
            self.earlier = Remembered(None, first.digest, first.version, REPEATED, False, None, None)

    def look_back(self, record: bytes | None) -> None:
        """What is remembered of its id, now that every copy before it is complete."""
        self.after = 0
        if record is not None:
            earlier = decode_remembered(record)
            self.earlier = None if earlier.status == MOVED else earlier


class Entry:
    """A delivered bundle.

    needed: the shards whose parts it waits for. expired: all its transactions are. blocker: the position that must
    complete before this shard's own part may be sent. move: it is a step of that, and nothing else. outcome: the record
    of its outcomes, if the journal or a peer knows it. decided: how its transactions ended in another shard, if one has
    told that. settled: a quorum of every shard has completed it; nobody will ask for the part. pulls: how often parts
    were asked for in vain while it was the head.
    """

    __slots__ = (
        "blocker", "decided", "delivered_at", "expired", "items", "message", "move", "needed", "outcome", "own_part",
        "parts", "position", "pulls", "settled", "timestamp", "written_keys",
    )  # fmt: skip

    def __init__(
        self,
        position: int,
        message: AppMessage,
        timestamp: Timestamp,
        items: list[Item],
        needed: tuple[GroupId, ...],
        outcome: bytes | None,
        now: int,
    ):
        self.position = position
        self.message = message
        self.timestamp = timestamp
        self.items = items
        self.expired = all([item.expired for item in items])
        self.needed = needed
        self.outcome = outcome
        self.delivered_at = now
        self.parts: dict[GroupId, Part] = {}
        self.own_part: Part | None = None
        self.decided: list[Decided | None] | None = None
        self.settled = False
        self.blocker = 0
        self.pulls = 0
        self.written_keys: set[bytes] = set()
        self.move = move_of(items[0].plan.transaction)

    @property
    def ready(self) -> bool:
        """Whether nothing is missing for its completion but its turn."""
        if self.outcome is not None or self.decided is not None or self.expired:
            return True
        return len(self.parts) == len(self.needed)

    def votes(self, index: int, shard: GroupId) -> list[Vote]:
        """Of those of its shards that object to something in that transaction. shard: one's own."""
        parts = [self.own_part if one == shard else self.parts.get(one) for one in self.message.destinations]
        votes = [part.vote(index) for part in parts if part is not None]  # without signals, some send none
        return [vote for vote in votes if vote is not None]

    def missing(self) -> list[GroupId]:
        """The shards it waits for."""
        return [] if self.ready else [shard for shard in self.needed if shard not in self.parts]


class Held:
    """A delivery that is not looked at yet, because a step of a move before it is not complete. outcome, settled: as in
    `Entry`. at: when it was delivered."""

    __slots__ = ("at", "delivery", "outcome", "settled")

    def __init__(self, delivery: Delivered, outcome: bytes | None, at: int):
        self.delivery = delivery
        self.outcome = outcome
        self.at = at
        self.settled = False


class Log:
    """Entries in delivery order; by_id: by their messages' ids. completed: the last position that is; version: of its
    last transaction, ZERO if nothing completed in this life. items: their transactions by their clients' ids, the
    first of each that did not expire and is open. deleted_at: the last completed position that deleted anything; that
    at which this life began, if there was none since. signal_at_delivery: leave out rule (1)."""

    def __init__(self, completed: int = 0, signal_at_delivery: bool = False):
        self.entries: deque[Entry] = deque()
        self.by_id: dict[MessageId, Entry] = {}
        self.items: dict[MessageId, Item] = {}
        self.completed = self.deleted_at = completed
        self.version = ZERO
        self._signal_at_delivery = signal_at_delivery
        self._last_of_shards: dict[tuple[GroupId, ...], int] = {}
        self._last_writer: dict[bytes, int] = {}
        self._last_deleter = 0
        self._blocked: dict[int, list[Entry]] = {}

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def moving(self) -> bool:
        """Whether the last one is a step of a move: what follows is looked at when that is complete."""
        return bool(self.entries) and self.entries[-1].move is not None

    def append(self, entry: Entry) -> list[Entry]:
        """The next delivery, whose transactions `items` knows already. Returns it if this shard's part of it may be
        sent at once. Otherwise returns nothing: `complete` returns it when its part may be sent, if it has one."""
        self.by_id.setdefault(entry.message.id, entry)  # a late copy, expired, may overtake the first's completion
        has_part = len(entry.message.destinations) > 1 and not entry.expired
        if has_part:
            entry.blocker = self._blocker(entry)
        if self.entries or not entry.ready:  # else it completes before anything depends on it
            for item in entry.items:
                if item.takes_effect:
                    entry.written_keys |= item.plan.written_keys()
                    if item.plan.reaches_unnamed():
                        self._last_deleter = entry.position
            for key in entry.written_keys:
                self._last_writer[key] = entry.position
        self._last_of_shards[entry.message.destinations] = entry.position
        self.entries.append(entry)
        if has_part:
            if entry.blocker <= self.completed:
                return [entry]
            self._blocked.setdefault(entry.blocker, []).append(entry)
        return []

    def complete(self) -> list[Entry]:
        """The head is complete and leaves. Returns the entries whose parts may be sent now, in order."""
        entry = self.entries.popleft()
        position = self.completed = entry.position
        self.version = entry.items[-1].version
        if self.by_id.get(entry.message.id) is entry:
            del self.by_id[entry.message.id]
        for item in entry.items:
            if item.id and self.items.get(item.id) is item:
                if item.later is None:
                    del self.items[item.id]
                else:
                    self.items[item.id] = item.later
        if self._last_of_shards.get(entry.message.destinations) == position:
            del self._last_of_shards[entry.message.destinations]
        for key in entry.written_keys:
            if self._last_writer.get(key) == position:
                del self._last_writer[key]
        return self._blocked.pop(position, [])

    def _blocker(self, entry: Entry) -> int:
        if entry.move is not None:
            return entry.position - 1
        blocker = 0
        for item in entry.items:
            if item.after > blocker:
                blocker = item.after
        if not self._signal_at_delivery and self._last_of_shards:
            own = set(entry.message.destinations)
            for shards, position in self._last_of_shards.items():
                if position > blocker and not own.issuperset(shards):
                    blocker = position
        if self.entries:
            for item in entry.items:
                if not item.takes_effect:
                    continue
                if item.plan.reaches_unnamed():
                    return self.entries[-1].position
                for key in item.plan.condition_keys():
                    blocker = max(blocker, self._last_deleter, self._last_writer.get(key, 0))
        return blocker
