"""Watches: every change of all shards, once, in the order of versions, for the clients of one replica. Pure.

Theory of operation. A client asks, again and again, what follows a version (`Follow`), and is told of transactions, and
up to which version that is all (`Followed`): there it goes on, here or at any other replica. Nothing is kept of a
client between two questions.

An answer comes of a *round*: one replica of every shard is asked for its changes after a version
(`kvstore.core.changes`). What they tell is put together by versions, and released up to the version that all of them
have passed: a transaction has one version in all its shards, so all that it changed is there by then, and nothing
earlier can follow. The rest is asked for again with the next round. Who does not answer, or has compacted what is asked
for, is followed by the next replica, until most replicas of a shard have compacted it.

Rounds over everything follow one another as long as anybody watches: the *feed*. What it releases is kept for a while
(`_Feed.released`): one buffer for all clients, of `buffer_bytes_max`. Who asks for what follows a version in there is
answered from it: if he goes on from an answer, when something comes that lies in his bounds, or after PROGRESS_US
without that; else at once. What is older costs a round of its own, over the client's bounds. Whoever was in the buffer
and has fallen behind it is told "lagged": he is too slow, and may begin again.

Whoever has a token is judged with every answer by the rights that this replica has then, and it has executed what its
shard has told it: so nobody is told what was ordered after he has lost his rights. Where another replica spoke for a
shard in which this one is behind, it may learn of that a moment later.

Who names no version begins where a round that began after his question found the shards: all are moved on to there
before he is answered. So whatever begins after the answer is told.
"""

from __future__ import annotations

import random
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from operator import itemgetter

from kvstore.api.model import between
from kvstore.core.changes import CHANGED_BYTES_MAX, Changes, before_large
from kvstore.core.messages import ChangesAfter, ChangesTold, Follow, Followed, Refused
from kvstore.core.peers import Peers
from kvstore.core.rights import Rights, forbidden
from kvstore.core.state import Changed, State
from multicast.application import ApplicationOutbox
from multicast.types import ZERO, GroupId, ProcessId, Timestamp, quorum_of

BUFFER_BYTES_MAX = 16 * 1024 * 1024
"""What is too large to be told does not stay in it."""
ANSWER_BYTES = 256 * 1024
"""An answer ends with the transaction with which it reaches this size."""
PACE_US = 20_000
"""Between the beginnings of two rounds of the feed."""
RETRY_US = 1_000_000
"""After so long without an answer another replica is asked."""
PROGRESS_US = 2_000_000
"""After so long a client is answered although nothing has come."""
LINGER_US = 10_000_000
"""How long the feed goes on when nobody asks."""
WAIT_US_MAX = 10_000_000
"""How long a client waits for what is older than the buffer."""
_TRANSACTION_BYTES, _CHANGE_BYTES = 300, 130
"""About how much memory a transaction takes, and each of its changes besides key and value."""

_LOOKED_MAX = 10_000
"""How many transactions of the buffer one answer looks at."""

assert BUFFER_BYTES_MAX <= CHANGED_BYTES_MAX
_version = itemgetter(0)

_Known = dict[tuple[Timestamp, bytes, bytes], tuple[list[Changed], Timestamp | None]]
"""What was found for a question, for others that have the same: hundreds may watch one range."""


class _Client:
    """A question that waits. at: up to there nothing in its bounds was found. starts: it has named no version, and is
    answered with one. done: it was answered."""

    def __init__(self, token: int, asked: Follow, now: int):
        self.token = token
        self.after = self.at = asked.after or ZERO
        self.first = asked.first
        self.end = asked.end
        self.by = asked.by
        self.starts = asked.after is None
        self.versioned = not self.starts
        self.since = now
        self.due = now + PROGRESS_US if asked.live else now
        self.done = False


class _Round:
    """after: what is asked for follows this. wanted, news: see `ChangesAfter`. client: None: it is the feed's.
    shards: that were asked. missing: those that have not answered, with how many replicas were asked before. upto: to
    where all others have told everything. complete: the greatest version of what is complete in one of them. compacted:
    the replicas that no longer know, with the version after which each knows. starting: the clients that get their
    version from it."""

    def __init__(self, number: int, after: Timestamp, wanted: Timestamp, client: _Client | None, now: int):
        self.number = number
        self.after = after
        self.wanted = wanted
        self.news = False
        self.client = client
        self.shards: list[GroupId] = []
        self.missing: dict[GroupId, int] = {}
        self.told: list[Changed] = []
        self.upto: Timestamp | None = None
        self.complete = ZERO
        self.compacted: dict[ProcessId, Timestamp] = {}
        self.starting: list[_Client] = []
        self.since = now
        self.due = now + RETRY_US

    def question(self) -> ChangesAfter:
        client = self.client
        first, end = (client.first, client.end) if client is not None else (b"", b"")
        return ChangesAfter(self.number, self.after, self.wanted, self.news, first, end)


class _Feed:
    """begin: what is in the buffer follows this. upto: everything up to there was released. asked: the present round;
    None between two, and the next one begins at `next_at`. attempts: see `_Round.missing`: who answers is asked
    again."""

    def __init__(self, begin: Timestamp, next_at: int):
        self.begin = self.upto = begin
        self.released: list[Changed] = []
        self.bytes = 0
        self.asked: _Round | None = None
        self.next_at = next_at
        self.attempts: dict[GroupId, int] = {}


class Watches:
    """The watches of one replica's clients. clock, ahead_us_max: see `Versions`. released: how many transactions.
    lagged: how many clients were told that."""

    def __init__(
        self,
        peers: Peers,
        changes: Changes,
        store: State,
        clock: Callable[[int], int],
        ahead_us_max: int,
        rng: random.Random,
    ):
        self.buffer_bytes_max = BUFFER_BYTES_MAX
        self.lagged = self.released = 0
        self._peers = peers
        self._changes = changes
        self._store = store
        self._rights = Rights(store)
        self._clock = clock
        self._ahead_us_max = ahead_us_max
        self._rng = rng
        self._number: int | None = None
        self._feed: _Feed | None = None
        self._clients: dict[_Client, None] = {}
        self._dues: deque[_Client] = deque()
        self._rounds: dict[int, _Round] = {}
        self._asked_at = 0

    def __len__(self) -> int:
        """How many clients wait."""
        return len(self._clients) + sum([asked.client is not None for asked in self._rounds.values()])

    @property
    def buffer_bytes(self) -> int:
        """How much the buffer holds."""
        return self._feed.bytes if self._feed is not None else 0

    # -- for clients here ---------------------------------------------------------------------------------------------

    def add(self, token: int, asked: Follow, now: int, out: ApplicationOutbox) -> None:
        """A question, answered with `Followed` or `Refused`."""
        real = self._clock(now)
        if asked.after is not None and real and asked.after.time > real + self._ahead_us_max:
            text = f"{asked.after} is later than anything by this server's clock"
            out.answer(token, Refused("future", text, False, "not_applied"))
            return
        denied = self._rights.denied_range(asked.by, asked.first, asked.end)
        if denied is not None:
            out.answer(token, forbidden(denied))
            return
        self._asked_at = now
        self._feed = self._feed or _Feed(self._store.complete_to, now)
        self._take(_Client(token, asked, now), asked.live, now, out)

    def _take(self, client: _Client, live: bool, now: int, out: ApplicationOutbox) -> None:
        feed = self._feed
        assert feed is not None
        if client.starts or client.after >= feed.begin:
            if client.starts or client.after >= feed.upto or not self._answer(client, feed, {}, out):
                self._clients[client] = None
                (self._dues.append if live else self._dues.appendleft)(client)
            if client.starts or client.after > feed.upto:
                self._hurry(feed, now, out)
        elif live:
            self._lag(client, out)
        else:
            asked = self._new_round(client.after, feed.begin, client, now)
            self._ask_all(asked, {}, now, out)

    def _answer(self, client: _Client, feed: _Feed, known: _Known, out: ApplicationOutbox) -> bool:
        """Answer with what was released after `client.at` in its bounds. Returns whether there was anything."""
        if client.at < feed.begin:
            self._lag(client, out)
            return True
        question = client.at, client.first, client.end
        if question not in known:
            known[question] = within(feed.released, *question)
        found, upto = known[question]
        if found or upto is not None:
            self._finish(client, Followed(found, upto or feed.upto), out)
            return True
        client.at = max(client.at, feed.upto)
        return False

    def _lag(self, client: _Client, out: ApplicationOutbox) -> None:
        self.lagged += 1
        text = f"what follows {client.after} has left the buffer, for changes are taken too slowly: begin again there"
        self._finish(client, Refused("lagged", text, True, "not_applied"), out)

    def _finish(self, client: _Client, answer: Followed | Refused, out: ApplicationOutbox) -> None:
        client.done = True
        self._clients.pop(client, None)
        denied = self._rights.denied_range(client.by, client.first, client.end)
        out.answer(client.token, answer if denied is None else forbidden(denied))

    # -- the feed -----------------------------------------------------------------------------------------------------

    def _hurry(self, feed: _Feed, now: int, out: ApplicationOutbox) -> None:
        """Somebody waits for more than news: begin a round now, also in place of one that only waits for news."""
        if feed.asked is not None and feed.asked.news:
            self._end(feed.asked)
            feed.asked = None
        if feed.asked is None:
            self._go_on(feed, now, out)

    def _go_on(self, feed: _Feed, now: int, out: ApplicationOutbox) -> None:
        """Begin the next round."""
        starting = [client for client in self._clients if not client.versioned]
        wanted = max([client.after for client in self._clients], default=ZERO)
        asked = feed.asked = self._new_round(feed.upto, max(wanted, feed.upto), None, now)
        asked.starting = starting
        asked.news = not starting and wanted <= feed.upto
        feed.next_at = now + PACE_US
        self._ask_all(asked, feed.attempts, now, out)

    def _release(self, feed: _Feed, asked: _Round, out: ApplicationOutbox) -> None:
        """A round of the feed is over."""
        feed.asked, new = None, []
        if asked.upto is not None and asked.upto > feed.upto:
            new, feed.upto = merged(asked.told, asked.upto), asked.upto
            feed.released += new
            feed.bytes += sum([_size(changes) for _, changes in new])
            self.released += len(new)
            self._trim(feed)
        for client in asked.starting:
            client.after = client.at = asked.complete
            client.versioned = True
        keys = sorted([key for _, changes in new for key, _ in changes])
        known: _Known = {}
        for client in list(self._clients):
            if client.versioned and client.after <= feed.upto:
                at = bisect_left(keys, client.first)
                if client.starts:
                    self._finish(client, Followed([], client.after), out)
                elif at < len(keys) and between(keys[at], client.first, client.end):
                    self._answer(client, feed, known, out)
                else:
                    client.at = feed.upto

    def _trim(self, feed: _Feed) -> None:
        """Drop the oldest transactions while the buffer is too large."""
        many = 0
        while feed.bytes > self.buffer_bytes_max and many < len(feed.released):
            feed.begin, changes = feed.released[many]
            feed.bytes -= _size(changes)
            many += 1
        del feed.released[:many]

    def _begin_anew(self, known: Timestamp, now: int, out: ApplicationOutbox) -> None:
        """What follows the feed's last release is no longer known: each client goes on from where it is. known: from
        there on another shard knows everything; this one may have stood still since long before that."""
        waiting, self._clients = sorted(self._clients, key=lambda client: client.due, reverse=True), {}
        self._dues.clear()
        self._feed = _Feed(max(self._store.complete_to, known), now + PACE_US)
        for client in waiting:
            self._take(client, False, now, out)

    # -- rounds -------------------------------------------------------------------------------------------------------

    def _new_round(self, after: Timestamp, wanted: Timestamp, client: _Client | None, now: int) -> _Round:
        if self._number is None:  # answers to an earlier life must not be taken for answers to this one
            self._number = self._rng.getrandbits(48)
        self._number += 1
        asked = self._rounds[self._number] = _Round(self._number, after, wanted, client, now)
        return asked

    def _ask_all(self, asked: _Round, attempts: dict[GroupId, int], now: int, out: ApplicationOutbox) -> None:
        new = [shard for shard in self._peers.replicas if shard not in asked.shards]
        asked.shards += new
        asked.missing = {shard: attempts.get(shard, 0) for shard in new}
        for shard in new:
            if shard in asked.missing:
                self._ask(shard, asked, now, out)

    def _ask(self, shard: GroupId, asked: _Round, now: int, out: ApplicationOutbox) -> None:
        """Ask one replica of a shard; of this replica's shard this process before all others."""
        attempt, question = asked.missing[shard], asked.question()
        replicas = self._peers.replicas[shard]
        if self._peers.self_id in replicas:  # not so of one that was removed, or is not in its group yet
            attempt %= len(replicas)
            if not attempt:
                told = self._changes.ask(self._peers.self_id, question, now, out)
                if told is not None:
                    self.on_told(self._peers.self_id, told, now, out)
                return
            attempt -= 1
        peer = self._peers.to_ask(shard, attempt)
        if peer is not None:
            out.send((peer,), question)

    def on_told(self, sender: ProcessId, told: ChangesTold, now: int, out: ApplicationOutbox) -> None:
        """What a replica of a shard says."""
        asked = self._rounds.get(told.number)
        if asked is None or told.shard not in asked.missing:
            return
        if told.transactions is None:
            self._on_compacted(sender, told, asked, now, out)
            return
        attempts = asked.missing.pop(told.shard)
        asked.told += told.transactions
        asked.upto = told.upto if asked.upto is None else min(asked.upto, told.upto)
        asked.complete = max(asked.complete, told.complete)
        if asked.client is None and self._feed is not None:
            behind = not told.transactions and told.upto < asked.wanted
            self._feed.attempts[told.shard] = attempts + behind
            self._raise(asked, told.transactions[-1][0] if told.transactions else ZERO, now, out)
        if not asked.missing and asked.number in self._rounds:
            if len(asked.shards) < len(self._peers.replicas):  # what was told may go on in a shard that was added
                asked.wanted, asked.news = max(asked.wanted, asked.upto), False
                self._ask_all(asked, {}, now, out)
            else:
                self._over(asked, out)

    def _raise(self, asked: _Round, version: Timestamp, now: int, out: ApplicationOutbox) -> None:
        """The shards that have not answered are to come up to there."""
        if asked.missing and version > asked.wanted:
            asked.wanted, asked.news = version, False
            for shard in list(asked.missing):
                if shard in asked.missing:
                    self._ask(shard, asked, now, out)

    def _on_compacted(
        self, sender: ProcessId, told: ChangesTold, asked: _Round, now: int, out: ApplicationOutbox
    ) -> None:
        asked.compacted[sender] = told.upto
        replicas = self._peers.replicas[told.shard]
        known = [asked.compacted[replica] for replica in replicas if replica in asked.compacted]
        if len(known) < quorum_of(len(replicas)):
            if len(known) == 1:  # one after the other would take long where some of them are dead
                out.send(tuple([p for p in replicas if p not in (sender, self._peers.self_id)]), asked.question())
            return
        self._end(asked)
        if asked.client is None:
            self._begin_anew(max(known), now, out)
        else:
            self._finish(asked.client, _compacted(asked.after, min(known)), out)

    def _over(self, asked: _Round, out: ApplicationOutbox) -> None:
        """All have answered."""
        self._end(asked)
        client, upto = asked.client, asked.upto
        assert upto is not None
        if client is None:
            assert self._feed is not None
            self._release(self._feed, asked, out)
        else:
            found, large = before_large(merged(asked.told, upto))
            if large is None:
                self._finish(client, Followed(found, max(upto, client.after)), out)
            elif found:
                self._finish(client, Followed(found, found[-1][0]), out)
            else:
                self._finish(client, _compacted(asked.after, large), out)

    def _end(self, asked: _Round) -> None:
        del self._rounds[asked.number]
        asked.missing.clear()
        self._changes.forget(asked.number)

    # -- batches and time ---------------------------------------------------------------------------------------------

    def advance(self, now: int, out: ApplicationOutbox) -> None:
        """Something has completed."""
        for told in self._changes.advance(now, out):
            self.on_told(self._peers.self_id, told, now, out)

    def on_tick(self, now: int, out: ApplicationOutbox) -> int | None:
        """Ask others, go on, give up. Returns when to do so again."""
        if self._feed is None and not self._rounds and not self._dues and self._changes.due() is None:
            return None
        for asked in list(self._rounds.values()):
            if asked.client is not None and now - asked.since >= WAIT_US_MAX:
                self._end(asked)
                self._finish(asked.client, _timeout(), out)
            elif now >= asked.due and asked.number in self._rounds:
                asked.due = now + RETRY_US
                for shard in list(asked.missing):
                    if shard in asked.missing:
                        asked.missing[shard] += 1
                        self._ask(shard, asked, now, out)
        self.advance(now, out)
        self._tell_progress(now, out)
        feed = self._feed
        if feed is not None and feed.asked is None and now >= feed.next_at:
            self._go_on(feed, now, out)
        if feed is not None and not len(self) and now >= self._asked_at + LINGER_US:
            if feed.asked is not None:
                self._end(feed.asked)
            self._feed = feed = None
        wakes = [asked.due for asked in self._rounds.values()]
        wakes += [client.due for client in islice(self._dues, 1)]
        if feed is not None:
            wakes.append(self._asked_at + LINGER_US if feed.asked is not None else feed.next_at)
        due = self._changes.due()
        return min(wakes + ([due] if due is not None else []), default=None)

    def _tell_progress(self, now: int, out: ApplicationOutbox) -> None:
        dues = self._dues
        while dues and (dues[0].done or dues[0].due <= now):
            client = dues.popleft()
            if client.done or client not in self._clients:
                continue
            if not client.starts:
                self._finish(client, Followed([], client.at), out)
            elif now - client.since >= WAIT_US_MAX:
                self._finish(client, _timeout(), out)
            else:
                client.due = now + PROGRESS_US
                dues.append(client)


def merged(told: list[Changed], upto: Timestamp) -> list[Changed]:
    """What shards tell, up to this version, in order: a transaction's changes together, by their keys."""
    found: dict[Timestamp, list[tuple[bytes, bytes | None]]] = {}
    for version, changes in told:
        if version <= upto:
            found.setdefault(version, []).extend(changes)
    return [(version, sorted(found[version], key=_key)) for version in sorted(found)]


def within(
    released: Sequence[Changed], after: Timestamp, first: bytes, end: bytes
) -> tuple[list[Changed], Timestamp | None]:
    """What follows this version with first <= key < end (b"": no end); and up to which version that is all, None: up to
    the last one. released: as `merged` has it. A transaction of which everything is within is told with the list that
    it has there: who writes it for many writes it once."""
    found: list[Changed] = []
    size, begin = 0, bisect_right(released, after, key=_version)
    for index in range(begin, min(begin + _LOOKED_MAX, len(released))):  # what is before may be very much
        version, changes = released[index]
        low = bisect_left(changes, first, key=_key)
        high = bisect_left(changes, end, low, key=_key) if end else len(changes)
        if low < high:
            some = changes if high - low == len(changes) else changes[low:high]
            found.append((version, some))
            size += _size(some)
            if size >= ANSWER_BYTES:
                return found, version
    if begin + _LOOKED_MAX < len(released):
        return found, released[begin + _LOOKED_MAX - 1][0]
    return found, None


def _size(changes: list[tuple[bytes, bytes | None]]) -> int:
    """About what a transaction with these changes takes in memory."""
    return _TRANSACTION_BYTES + sum([_CHANGE_BYTES + len(key) + len(value or b"") for key, value in changes])


def _key(change: tuple[bytes, bytes | None]) -> bytes:
    return change[0]


def _compacted(after: Timestamp, known: Timestamp) -> Refused:
    text = f"the changes after {after} are no longer known, or too large; the oldest to begin after is {known}"
    return Refused("compacted", text, False, "not_applied")


def _timeout() -> Refused:
    return Refused("timeout", "no answer in time", True, "not_applied")
