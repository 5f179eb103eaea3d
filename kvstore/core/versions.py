"""Reads at a version: of all shards at one point of the order, neither ordered nor journaled. Pure.

Theory of operation. Versions rise along the log of every shard, and the order of the versions of all shards is one that
they all agree with. So the state at version v, everything that transactions up to v wrote and nothing else, is the same
whoever tells it, and never changes: any replica may, that (1) has completed in its shard everything up to v and (2)
still keeps what was overwritten since (`kvstore.storage.history`). The replica where a read enters asks one of each
shard that it needs and answers with all that they say; who says nothing, or has compacted v, is followed by the next
one, until most replicas of a shard have compacted it. Whoever knows v, but not what is asked for, since a slot was not
its shard's then, is asked by an old map: the read begins anew with another one.

(1) holds once the last version of what is complete is not less than v, since what is delivered later is of a later
version. A shard in which nothing happens never gets there by itself: while somebody waits and nothing is delivered that
is late enough, the replica multicasts an *empty* transaction to its shard, one at a time for all who wait; to all
shards, if that does not help because its own clock is behind those of others. A version
beyond all clocks would make it do so for ever, so it is refused.

Whoever has a token is judged where he asks and once more where he is answered, by the rights that the replica where he
asks has then.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable

from kvstore.api.model import (
    RANGE_BYTES_MAX,
    RANGE_KEYS_MAX,
    RESULT_BYTES_MAX,
    Get,
    KeyValue,
    OperationResult,
    Range,
    Result,
    Transaction,
    bounds,
    only_reads,
)
from kvstore.api.shard_map import ShardMap
from kvstore.core.bundles import EMPTY, last_version
from kvstore.core.execution import merge_results, result_bytes
from kvstore.core.log import Log
from kvstore.core.messages import Answered, Execute, ReadAt, ReadAtTold, Refused
from kvstore.core.moves import Moves
from kvstore.core.peers import Peers
from kvstore.core.reads import Unread
from kvstore.core.rights import Rights, forbidden
from kvstore.core.shards import Shards
from kvstore.core.state import State
from multicast.application import ApplicationOutbox
from multicast.types import ZERO, AppMessage, GroupId, ProcessId, Timestamp, new_message_id, quorum_of

RETRY_US = 500_000
"""After so long without an answer another replica is asked, or another empty transaction leaves."""
IN_VAIN = 5
"""After so many empty transactions that have not moved the shard far enough, the next one is for all shards."""
PACE_US = 20_000
"""Between two empty transactions of one replica."""
ASKED_AT_ONCE = 16
"""How many operations of one read are asked for at once, in each shard: what they find is in memory, also at the
replica that is asked."""
LOOKS_MAX = 4
"""So many Ranges of which a first look was not all are looked on for in one batch: each look may take 10 ms."""
WAIT_US_MAX = 10_000_000
"""How long a replica waits for what it is asked to read, and the one that has asked for an answer."""


class _Asked:
    """A client's read, of operations that have the numbers from `number` on. shards: that each is asked of, by
    shard_map. missing: the operations and shards that have not answered, with how many replicas were asked, which is at
    least one but for those of `later`. bytes: of what each shard has found. chosen: the version was not the client's
    choice. compacted: the replicas that no longer know, with the oldest version that each knows."""

    def __init__(
        self, token: int, request: Execute, number: int, version: Timestamp, shard_map: ShardMap, since: int, now: int
    ):
        self.token = token
        self.request = request
        self.operations = request.transaction.success
        self.number = number
        self.version = version
        self.chosen = request.at is None
        self.shards: list[tuple[GroupId, ...]] = []
        self.missing: dict[tuple[int, GroupId], int] = {}
        self.later: list[tuple[int, GroupId]] = []
        self.asking = False
        self.bytes: dict[GroupId, int] = {}
        self.found: list[list[tuple[int, OperationResult]]] = []
        self.compacted: dict[ProcessId, Timestamp] = {}
        self.shard_map = shard_map
        self.since = since
        self.due = now + RETRY_US


class _Waiting:
    """What somebody asks of this replica. bounds: of what a Range has not looked at; entries: what it has found; count:
    how many of them."""

    def __init__(self, asker: ProcessId, asked: ReadAt, now: int):
        self.asker = asker
        self.number = asked.number
        self.version = asked.version
        self.operation = asked.operation
        self.shards = asked.shards
        self.since = now
        self.bounds = bounds(asked.operation) if isinstance(asked.operation, Range) else (b"", b"")
        self.entries: list[KeyValue] = []
        self.count = self.bytes = 0


class Versions:
    """Reads of one replica at versions, both sides; the rest as in `Replica`. clock: the time as versions tell it; 0:
    not known. unread: see `Reads`. served: how many reads of its shard. emptied: how many empty transactions it has
    multicast. also_wanted: up to where others want the shard moved on."""

    def __init__(
        self,
        peers: Peers,
        moves: Moves,
        store: State,
        log: Log,
        clock: Callable[[int], int],
        ahead_us_max: int,
        rng: random.Random,
        also_wanted: Callable[[], Timestamp],
        shards: Shards,
        unread: Unread,
    ):
        self.served = self.emptied = 0
        self._peers = peers
        self._moves = moves
        self._store = store
        self._rights = Rights(store)
        self._log = log
        self._clock = clock
        self._ahead_us_max = ahead_us_max
        self._rng = rng
        self._also_wanted = also_wanted
        self._shards = shards
        self._unread = unread
        self._asked: dict[int, _Asked] = {}
        self._waiting: list[_Waiting] = []
        """For a version that is not complete here."""
        self._looking: deque[_Waiting] = deque()
        """Ranges that are not looked at to their end."""
        self._advanced_to = ZERO
        self._look_at = 0
        self._number: int | None = None
        self._emptied_at = 0
        self._emptied_after = ZERO
        self._in_vain = 0

    def __len__(self) -> int:
        """How many reads wait."""
        return len(self._asked)

    # -- for clients here ---------------------------------------------------------------------------------------------

    def add(self, token: int, request: Execute, now: int, out: ApplicationOutbox) -> None:
        """A read at a version, answered with `Answered` or `Refused`."""
        version = request.at
        if version is None or not only_reads(request.transaction):
            out.answer(token, Refused("invalid", "version: of reads alone", False, "not_applied"))
            return
        real = self._clock(now)
        if real and version.time > real + self._ahead_us_max:
            text = f"{version} is later than anything by this server's clock"
            out.answer(token, Refused("future", text, False, "not_applied"))
            return
        self.read(token, request, version, now, out)

    def read(self, token: int, request: Execute, version: Timestamp, now: int, out: ApplicationOutbox) -> None:
        """At this version, which some shard has completed."""
        self._begin(token, request, version, now, now, out)

    def _begin(
        self, token: int, request: Execute, version: Timestamp, since: int, now: int, out: ApplicationOutbox
    ) -> None:
        if self._number is None:  # answers to an earlier life must not be taken for answers to this one
            self._number = self._rng.getrandbits(48)
        operations, shard_map = request.transaction.success, self._moves.map
        asked = _Asked(token, request, self._number + 1, version, shard_map, since, now)
        self._number += len(operations)
        for index, operation in enumerate(operations):
            self._asked[asked.number + index] = asked
            asked.shards.append(shard_map.shards_of(Transaction(success=(operation,))))
            for shard in asked.shards[index]:
                asked.missing[index, shard] = 0
        asked.later = list(reversed(asked.missing))
        self._look_at = min(self._look_at, asked.due)
        self._ask_more(asked, now, out)

    def _ask_more(self, asked: _Asked, now: int, out: ApplicationOutbox) -> None:
        """Ask for as many operations as may be asked for at once. What this replica answers itself it answers
        meanwhile."""
        asked.asking = True
        while asked.later and len(asked.missing) - len(asked.later) < ASKED_AT_ONCE:
            self._ask(*asked.later.pop(), asked, now, out)
        asked.asking = False

    def _ask(self, index: int, shard: GroupId, asked: _Asked, now: int, out: ApplicationOutbox) -> None:
        """Ask the next replica of this shard; this process before all others."""
        operation, attempt = asked.operations[index], asked.missing.get((index, shard), -1)
        if attempt < 0 or not isinstance(operation, Get | Range):
            return
        request = ReadAt(asked.number + index, asked.version, operation, asked.shards[index])
        asked.missing[index, shard] += 1
        if shard == self._peers.shard:
            if not attempt:
                self._wait(_Waiting(self._peers.self_id, request, now), now, out)
                return
            attempt -= 1
        peer = self._peers.to_ask(shard, attempt)
        if peer is not None:
            out.send((peer,), request)

    def on_found(self, sender: ProcessId, message: ReadAtTold, now: int, out: ApplicationOutbox) -> None:
        """What a replica of another shard says, or of this one."""
        asked = self._asked.get(message.number)
        if asked is None:
            return
        index = message.number - asked.number
        if (index, message.shard) not in asked.missing:
            return
        if message.result is None:
            if message.oldest <= asked.version and not asked.chosen:
                return  # see `on_tick`
            asked.compacted[sender] = message.oldest
            replicas = self._peers.replicas[message.shard]
            known = [asked.compacted[replica] for replica in replicas if replica in asked.compacted]
            if len(known) < quorum_of(len(replicas)):
                self._ask(index, message.shard, asked, now, out)
            elif asked.chosen:
                self._end(asked)
                self._unread.append((asked.token, asked.request))
            else:
                self._finish(asked, compacted(asked.version, min(known)), out)
            return
        del asked.missing[index, message.shard]
        asked.found.append([(index, message.result)])
        size = asked.bytes[message.shard] = asked.bytes.get(message.shard, 0) + result_bytes(asked.found[-1])
        if size > RESULT_BYTES_MAX:
            result = Result(True, asked.version)
            self._finish(asked, Answered(result, results_omitted=True, seen=asked.version), out)
        elif asked.missing:
            if not asked.asking:
                self._ask_more(asked, now, out)
        else:
            results = merge_results(asked.operations, asked.found)
            self._finish(asked, Answered(Result(True, asked.version, results), seen=asked.version), out)

    def _finish(self, asked: _Asked, answer: Answered | Refused, out: ApplicationOutbox) -> None:
        self._end(asked)
        denied = self._rights.denied(asked.request.transaction)
        out.answer(asked.token, answer if denied is None else forbidden(denied))

    def _end(self, asked: _Asked) -> None:
        asked.later = []
        for index in range(len(asked.operations)):
            del self._asked[asked.number + index]

    # -- of this shard ------------------------------------------------------------------------------------------------

    def on_read_at(self, sender: ProcessId, message: ReadAt, now: int, out: ApplicationOutbox) -> None:
        """Answer, now or later."""
        self._wait(_Waiting(sender, message, now), now, out)

    def _wait(self, waiting: _Waiting, now: int, out: ApplicationOutbox) -> None:
        if self._store.complete_to < waiting.version:
            self._look_at = min(self._look_at, waiting.since + WAIT_US_MAX)
            self._waiting.append(waiting)
        elif not self._serve(waiting, now, out):
            self._looking.append(waiting)

    def advance(self, now: int, out: ApplicationOutbox) -> None:
        """Something may have completed: only then is there a look at all that wait."""
        if self._store.complete_to == self._advanced_to:
            return
        self._advanced_to = self._store.complete_to
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            self._wait(one, now, out)

    def _look_on(self, now: int, out: ApplicationOutbox) -> None:
        for _ in range(min(len(self._looking), LOOKS_MAX)):
            one = self._looking.popleft()
            if now - one.since < WAIT_US_MAX and not self._serve(one, now, out):
                self._looking.append(one)

    def _serve(self, waiting: _Waiting, now: int, out: ApplicationOutbox) -> bool:
        """Look on for one question; returns whether it is answered."""
        store = self._store
        oldest, result, operation = store.floor, None, waiting.operation
        if isinstance(operation, Get):
            elsewhere = not self._moves.owns(operation.key)
        else:
            elsewhere = bool(waiting.shards) and self._moves.leads_beyond(waiting.shards)
        if waiting.version >= oldest and not elsewhere:
            result = self._read(waiting)
            if result is None:
                return False
        self.served += 1
        found = ReadAtTold(self._peers.shard, waiting.number, result, oldest)
        if waiting.asker == self._peers.self_id:
            self.on_found(waiting.asker, found, now, out)
        else:
            out.send((waiting.asker,), found)
        return True

    def _read(self, waiting: _Waiting) -> OperationResult | None:
        """What the operation finds; None: a Range that is not looked at to its end, of which the next call reads
        more."""
        operation, past = waiting.operation, self._store.at(waiting.version)
        if isinstance(operation, Get):
            row = past.get(operation.key)
            return OperationResult(found=row)
        found, rest = past.look(*waiting.bounds, operation.reverse)
        limit = RANGE_KEYS_MAX if operation.count_only else operation.limit
        for entry in found:
            if waiting.count == limit or waiting.bytes >= RANGE_BYTES_MAX:
                return self._found(waiting, operation, more=True)
            waiting.count += 1
            if not operation.count_only:
                if operation.keys_only:
                    entry.value = b""
                waiting.entries.append(entry)
                waiting.bytes += len(entry.key) + len(entry.value)
        if rest is None:
            return self._found(waiting, operation, more=False)
        waiting.bounds = rest
        return None

    def _found(self, waiting: _Waiting, operation: Range, more: bool) -> OperationResult:
        if operation.count_only:
            return OperationResult(value=waiting.count, more=more)
        return OperationResult(entries=tuple(waiting.entries), more=more)

    # -- batches and time ---------------------------------------------------------------------------------------------

    def end_batch(self, now: int, out: ApplicationOutbox) -> None:
        """Move the shard on if somebody waits for that. Where that is in vain, for its clock is behind, all shards: the
        message then has a timestamp above all of their clocks."""
        at = self._moves_on_at()
        if at is None:
            self._in_vain = 0
        elif at <= now:
            self._emptied_at, self._emptied_after = now, self._delivered_to()
            self.emptied += 1
            self._in_vain += 1
            shards = tuple(sorted(self._peers.replicas))
            alone = self._in_vain <= IN_VAIN or self._shards.refusal(shards, Transaction(), now) is not None
            message_id = new_message_id(self._clock(now) or now, self._rng.getrandbits(62))
            to = (self._peers.shard,) if alone else shards
            out.submit(AppMessage(message_id, to, EMPTY, self._peers.self_id))

    def _delivered_to(self) -> Timestamp:
        entries = self._log.entries
        return last_version(entries[-1].timestamp) if entries else self._store.complete_to

    def _moves_on_at(self) -> int | None:
        """When the next empty transaction leaves; None: none is needed."""
        wanted = self._also_wanted()
        if self._waiting:
            wanted = max(wanted, *[waiting.version for waiting in self._waiting])
        if wanted == ZERO:
            return None
        delivered_to = self._delivered_to()
        if wanted <= delivered_to:
            return None
        if not self._emptied_at:
            return 0
        return self._emptied_at + (PACE_US if delivered_to > self._emptied_after else RETRY_US)

    def on_tick(self, now: int, out: ApplicationOutbox) -> int | None:
        """Ask others, look on, give up. Returns when to do so again."""
        if not self._asked and not self._waiting and not self._looking and self._also_wanted() == ZERO:
            return None
        self._look_on(now, out)
        if now >= self._look_at:  # no look at each of them in every batch
            self._ask_again(now, out)
        wakes = [self._look_at] if self._asked or self._waiting else []
        if self._looking:
            wakes.append(now)
        moves_on_at = self._moves_on_at()
        if moves_on_at is not None:
            wakes.append(max(moves_on_at, now))
        return min(wakes, default=None)

    def _ask_again(self, now: int, out: ApplicationOutbox) -> None:
        """Look at all that wait, and see when to do so again."""
        for asked in [asked for number, asked in self._asked.items() if number == asked.number]:
            if now - asked.since >= WAIT_US_MAX:
                self._finish(asked, Refused("timeout", "no answer in time", True, "not_applied"), out)
            elif now >= asked.due and asked.shard_map is not self._moves.map:
                self._end(asked)
                self._begin(asked.token, asked.request, asked.version, asked.since, now, out)
            elif now >= asked.due:
                asked.due = now + RETRY_US
                later = set(asked.later)
                for one in [one for one in asked.missing if one not in later]:
                    self._ask(*one, asked, now, out)
        self._waiting = [waiting for waiting in self._waiting if now - waiting.since < WAIT_US_MAX]
        wakes = [asked.due for asked in self._asked.values()]
        wakes += [waiting.since + WAIT_US_MAX for waiting in self._waiting]
        self._look_at = min(wakes, default=now)


def compacted(version: Timestamp, oldest: Timestamp) -> Refused:
    """The refusal of a version. oldest: the oldest one of which everything is known."""
    text = f"what stood at {version} is no longer known; the oldest version of which everything is known is {oldest}"
    return Refused("compacted", text, False, "not_applied")
