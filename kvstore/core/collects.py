"""Reads of several shards, or of another one, where they enter: neither ordered nor journaled. Pure.

Theory of operation. The replica asks one replica of each shard (`ReadNow`), and makes one answer of theirs. What is of
one shard is what that replica says (`kvstore.core.reads`). Of several:
- *linearizable*: a double collect (Afek et al., Atomic snapshots of shared memory, 1993). Each shard is asked, and when
  all have answered each is asked again. If every one has found the same keys at the same versions, and has deleted
  nothing since if it might have stood where nothing stands now, all of it held at the instant T between the two
  rounds. After COLLECTS_MAX differences the read is ordered as any transaction.
    Why: let E be all that has taken effect anywhere by T, and everything below that. It is delivered by T (see
    `reads`), so in each shard the second answer has seen E, for it sees what was delivered before it was asked; and
    what the first has seen took effect by T, and belongs to E. Nothing of what was read changed between the two. So
    all of it is as E left it, which has, with each transaction, all that is below. What was answered before the read
    began is in E; what begins after its answer can be below nothing of E.
    The answer's version is the least that the shards had completed in the first round: all up to it is in the answer,
    and who watches from it on misses nothing. Where another shard has forgotten that version, for one has stood still
    for so long, the read is ordered, too, which moves that one on; and a page that has others after it is, since all of
    them are of its version.
- *snapshot*: at the least of the versions that the asked replicas have completed, freshly or not, unless somebody has
  forgotten that (`kvstore.core.versions`).
- *stale*: each shard by itself; with a Range all at the greatest of the versions that they have completed.
Where slots have moved to a shard that was not asked the read is ordered.

As many are under way at once as have about UNDER_WAY_BYTES to be told, by the answers that came of late; others wait.
All at once, of large values, would take a shard longer than it may stand still, and what is asked for again because it
has not come in time would take as long again. For the same reason the pauses before others are asked double, and for
whom nobody waits nobody is asked again.
"""

from __future__ import annotations

import random
from collections import Counter, deque

from kvstore.api.model import Result, has_range
from kvstore.core.execution import merge_results, result_bytes
from kvstore.core.messages import Answered, Execute, ReadNow, ReadNowTold, Refused
from kvstore.core.moves import Moves, moved
from kvstore.core.peers import Peers
from kvstore.core.positions import WAIT_US_MAX
from kvstore.core.reads import Unread
from kvstore.core.versions import RETRY_US, Versions
from multicast.application import ApplicationOutbox
from multicast.types import GroupId, Timestamp

COLLECTS_MAX = 3
"""After so many rounds that differed from the one before, a read is ordered."""
UNDER_WAY_BYTES = 32 * 1024 * 1024
UNDER_WAY_MIN = 4
FIRST_BYTES = 256 * 1024
"""An answer has so many before there was one."""
SMOOTHING = 1 / 8
"""The weight of the last one."""


class _Collect:
    """A client's read. before, found: what the shards said in the last round and say in this one. missing: the shards
    that have not said anything in this round, with how often they were asked. gone: nobody waits for it."""

    def __init__(self, token: int, request: Execute, shards: tuple[GroupId, ...], now: int):
        self.token = token
        self.request = request
        self.shards = shards
        self.several = len(shards) > 1
        self.whence = self.several and (
            request.consistency == "snapshot" or (request.consistency == "stale" and has_range(request.transaction))
        )
        self.before: dict[GroupId, ReadNowTold] = {}
        self.found: dict[GroupId, ReadNowTold] = {}
        self.missing: dict[GroupId, int] = {}
        self.differences = 0
        self.gone = False
        self.since = now
        self.due = now + RETRY_US

    def held(self) -> bool:
        """Whether all that was found held at an instant between the two rounds."""
        if not self.before:
            return False
        for shard, found in self.found.items():
            before = self.before[shard]
            if found.digest != before.digest or found.deleted_at > before.position:
                return False
        return True

    def version(self) -> Timestamp:
        """Everything up to it is in the answer."""
        return min([one.seen for one in (self.before or self.found).values()])

    def forgotten(self) -> bool:
        """Whether a shard that keeps history knows this version no more."""
        kept = [one.oldest for one in self.found.values() if one.oldest < one.seen]
        return bool(kept) and self.version() < max(kept)

    def answer(self) -> Answered | None:
        """What was found; None if it cannot be told: a slot was moving, an answer was too large, or it is a page of
        several shards, with more to follow."""
        found = list(self.found.values())
        pieces = [one.results for one in found if one.results is not None]
        told = {index for results in pieces for index, _ in results}
        if len(pieces) < len(found) or len(told) < len(self.request.transaction.success):
            return None
        results = merge_results(self.request.transaction.success, pieces)
        if not self.several:
            (one,) = found
            return Answered(Result(True, one.version, results), False, False, one.shard, one.position, one.seen)
        if self.request.paged and any([result.more for result in results]):
            return None
        places = tuple([(one.shard, one.position) for one in (self.before or self.found).values()])
        return Answered(Result(True, self.version(), results), places=places)


class Collects:
    """The reads of several shards at one replica. Arguments are those of `Replica`. unread: see `Reads`."""

    def __init__(self, peers: Peers, moves: Moves, versions: Versions, rng: random.Random, unread: Unread):
        self._peers = peers
        self._moves = moves
        self._versions = versions
        self._rng = rng
        self._unread = unread
        self._collects: dict[int, _Collect] = {}
        self._look_at = 0
        self._under_way: Counter[tuple[GroupId, ...]] = Counter()
        """How many, by their shards: one that answers nobody holds up no other."""
        self._waiting: dict[tuple[GroupId, ...], deque[_Collect]] = {}
        self._in_line: dict[int, _Collect] = {}
        """Those of `_waiting` for which a client waits, by their tokens."""
        self._begun: dict[int, _Collect] = {}
        """The same of those under way."""
        self._bytes: float = FIRST_BYTES
        self._number: int | None = None

    def __len__(self) -> int:
        """How many clients wait."""
        return len(self._collects) + len(self._in_line)

    def add(self, token: int, request: Execute, now: int, out: ApplicationOutbox) -> None:
        """Answer this read, or put it among the unread."""
        shards = self._moves.map.shards_of(request.transaction)
        self._in_line[token] = collect = _Collect(token, request, shards, now)
        self._waiting.setdefault(shards, deque()).append(collect)
        self._begin_more(shards, now, out)

    def forget(self, token: int) -> None:
        """Nobody waits for this any longer: nobody is asked any more."""
        collect = self._in_line.pop(token, None) or self._begun.pop(token, None)
        if collect is not None:
            collect.gone = True

    def _begin_more(self, shards: tuple[GroupId, ...], now: int, out: ApplicationOutbox) -> None:
        """Begin those of these shards for which there is room."""
        room, waiting = max(UNDER_WAY_MIN, int(UNDER_WAY_BYTES / max(self._bytes, 1.0))), self._waiting.get(shards)
        while waiting and self._under_way[shards] < room:
            collect = waiting.popleft()
            if not collect.gone:
                self._begun[collect.token] = self._in_line.pop(collect.token)
                self._under_way[shards] += 1
                self._begin(collect, now, out)
        if not waiting:
            self._waiting.pop(shards, None)

    def _over(self, collect: _Collect, now: int, out: ApplicationOutbox) -> None:
        """It is under way no longer."""
        shards = collect.shards
        self._begun.pop(collect.token, None)
        self._under_way[shards] -= 1
        if not self._under_way[shards]:
            del self._under_way[shards]
        self._begin_more(shards, now, out)

    def _begin(self, collect: _Collect, now: int, out: ApplicationOutbox) -> None:
        """Begin a round. Answers to an earlier one, or to an earlier life, have other numbers."""
        if self._number is None:
            self._number = self._rng.getrandbits(48)
        self._number += 1
        self._collects[self._number] = collect
        collect.before, collect.found = collect.found, {}
        collect.missing = dict.fromkeys(collect.shards, 0)
        collect.due = now + RETRY_US
        self._look_at = min(self._look_at, collect.due)
        for shard in collect.shards:
            self._ask(shard, self._number, collect, out)

    def _ask(self, shard: GroupId, number: int, collect: _Collect, out: ApplicationOutbox) -> None:
        """Ask the next replica of this shard; this process before all others."""
        request, attempt = collect.request, collect.missing[shard]
        collect.missing[shard] += 1
        age_us = None if request.consistency == "snapshot" else request.age_us
        before = collect.before.get(shard)
        known, known_at = (before.digest, before.position) if before is not None else (b"", 0)
        asked = ReadNow(number, request.transaction, age_us, known, collect.whence, known_at)
        if shard == self._peers.shard:
            attempt -= 1
        peer = self._peers.self_id if attempt < 0 else self._peers.to_ask(shard, attempt)
        if peer is not None:
            out.send((peer,), asked)

    def on_found(self, message: ReadNowTold, now: int, out: ApplicationOutbox) -> None:
        """What a replica of a shard says."""
        collect = self._collects.get(message.number)
        if collect is None or message.shard not in collect.missing:
            return
        before = collect.before.get(message.shard)
        if message.results is None and before is not None and before.digest == message.digest:
            message.results = before.results
        elif message.results is not None:
            self._bytes += (result_bytes(message.results) - self._bytes) * SMOOTHING
        del collect.missing[message.shard]
        collect.found[message.shard] = message
        if not collect.missing:
            del self._collects[message.number]
            if not collect.gone:
                self._judge(collect, now, out)
            if self._number is None or self._collects.get(self._number) is not collect:  # there is no further round
                self._over(collect, now, out)

    def _judge(self, collect: _Collect, now: int, out: ApplicationOutbox) -> None:
        """All shards have answered: this round is the answer, or another one follows, or the read is ordered."""
        found, request = list(collect.found.values()), collect.request
        if moved([one.places for one in found], collect.shards):
            self._unread.append((collect.token, request))
        elif collect.whence:
            versions = [one.seen for one in found]
            at = max(versions)
            if request.consistency == "snapshot":
                at = max(min(versions), *[one.oldest for one in found])
            self._versions.read(collect.token, request, at, now, out)
        elif (answer := collect.answer()) is None:
            self._unread.append((collect.token, request))
        elif not collect.several or request.consistency == "stale":
            out.answer(collect.token, answer)
        elif collect.forgotten():
            self._unread.append((collect.token, request))
        elif collect.held():
            out.answer(collect.token, answer)
        else:
            collect.differences += bool(collect.before)
            if collect.differences == COLLECTS_MAX:
                self._unread.append((collect.token, request))
            else:
                self._begin(collect, now, out)

    def on_tick(self, now: int, out: ApplicationOutbox) -> int | None:
        """Ask others, give up. Returns when to do so again."""
        if not self._collects and not self._waiting:
            return None
        if now < self._look_at:  # no look at each of them in every batch
            return self._look_at
        for waiting in self._waiting.values():
            while waiting and now - waiting[0].since >= WAIT_US_MAX:
                if not (collect := waiting.popleft()).gone:
                    del self._in_line[collect.token]
                    out.answer(collect.token, _timeout())
        for number, collect in list(self._collects.items()):
            if collect.gone or now - collect.since >= WAIT_US_MAX:
                if not collect.gone:
                    out.answer(collect.token, _timeout())
                del self._collects[number]
                self._over(collect, now, out)
            elif now >= collect.due:
                collect.due = now + (RETRY_US << max(collect.missing.values()))
                for shard in collect.missing:
                    self._ask(shard, number, collect, out)
        self._waiting = {shards: waiting for shards, waiting in self._waiting.items() if waiting}
        wakes = [min(c.due, c.since + WAIT_US_MAX) for c in self._collects.values()]
        wakes += [waiting[0].since + WAIT_US_MAX for waiting in self._waiting.values()]
        self._look_at = min(wakes, default=now)
        return self._look_at if wakes else None


def _timeout() -> Refused:
    return Refused("timeout", "no answer in time", True, "not_applied")
