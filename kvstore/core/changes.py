"""What changed in this shard after a version, for those who watch: asked by the replicas where they do. Pure.

Who asks is told of whole transactions, in their order, and up to which version that is all: nothing that this shard
completes later is of a lesser one. A question that wants news waits until there are some, every other one until the
shard has completed what it wants; for that the shard is moved on, if nothing happens in it (`kvstore.core.versions`).
Nobody waits longer than HOLD_US.

A transaction of a few kilobytes may append to a thousand large values. One that has changed more than CHANGED_BYTES_MAX
in the bounds of a question is told to nobody: what follows the one before it is as good as forgotten.
"""

from __future__ import annotations

from kvstore.core.messages import ChangesAfter, ChangesTold
from kvstore.core.peers import Peers
from kvstore.core.state import Changed, State
from multicast.application import ApplicationOutbox
from multicast.types import ZERO, ProcessId, Timestamp

HOLD_US = 500_000
CHANGED_BYTES_MAX = 16 * 1024 * 1024
"""Keys and values that are told of one transaction: then it is one message, and one event for clients."""


class _Waiting:
    """A question that waits. at: up to this version nothing was found."""

    def __init__(self, asked: ChangesAfter, now: int):
        self.asked = asked
        self.at = asked.after
        self.since = now


class Changes:
    """The changes of one replica's shard. told: how many transactions."""

    def __init__(self, peers: Peers, store: State):
        self.told = 0
        self._peers = peers
        self._store = store
        self._waiting: dict[tuple[ProcessId, int], _Waiting] = {}
        self._looked_to = ZERO

    def ask(self, asker: ProcessId, asked: ChangesAfter, now: int, out: ApplicationOutbox) -> ChangesTold | None:
        """Another replica is answered, now or later. Returns what this one is answered now, if it is."""
        self._waiting[asker, asked.number] = _Waiting(asked, now)
        return self._serve(asker, asked.number, now, out)

    def forget(self, number: int) -> None:
        """This replica does not wait for that any longer."""
        self._waiting.pop((self._peers.self_id, number), None)

    def advance(self, now: int, out: ApplicationOutbox) -> list[ChangesTold]:
        """Something has completed, or there is time to look further. Returns what is answered to this replica
        itself."""
        due = self.due()
        if due is None or (now < due and self._store.complete_to == self._looked_to):
            return []
        self._looked_to = self._store.complete_to
        served = [self._serve(asker, number, now, out) for asker, number in list(self._waiting)]
        return [told for told in served if told is not None]

    def wanted(self) -> Timestamp:
        """The version up to which the shard is to be moved on."""
        if not self._waiting:
            return ZERO
        return max([waiting.asked.wanted for waiting in self._waiting.values()])

    def due(self) -> int | None:
        """When somebody has waited for long enough."""
        if not self._waiting:
            return None
        return min([waiting.since + HOLD_US for waiting in self._waiting.values()])

    def _serve(self, asker: ProcessId, number: int, now: int, out: ApplicationOutbox) -> ChangesTold | None:
        waiting = self._waiting[asker, number]
        told = self._answer(waiting, now)
        if told is None:
            return None
        del self._waiting[asker, number]
        self.told += len(told.transactions or ())
        if asker == self._peers.self_id:
            return told
        out.send((asker,), told)
        return None

    def _answer(self, waiting: _Waiting, now: int) -> ChangesTold | None:
        """The answer; None if it has to wait."""
        store, asked, shard = self._store, waiting.asked, self._peers.shard
        complete_to, oldest = store.complete_to, store.changes_from
        if waiting.at < oldest:
            return ChangesTold(shard, asked.number, None, oldest, complete_to)
        held = now - waiting.since >= HOLD_US
        if complete_to < asked.wanted and not held:
            return None
        transactions, upto = store.changes(waiting.at, asked.first, asked.end)
        transactions, large = before_large(transactions)
        if large is not None:
            if not transactions:
                return ChangesTold(shard, asked.number, None, large, complete_to)
            upto = transactions[-1][0]
        if asked.news and not transactions and not held:
            waiting.at = upto
            return None
        return ChangesTold(shard, asked.number, transactions, upto, complete_to)


def before_large(told: list[Changed]) -> tuple[list[Changed], Timestamp | None]:
    """The transactions before the first one that has changed more than is told, and its version; None: none has."""
    for index, (version, changes) in enumerate(told):
        if sum([len(key) + len(value or b"") for key, value in changes]) > CHANGED_BYTES_MAX:
            return told[:index], version
    return told, None
