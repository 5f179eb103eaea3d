"""What became of a transaction, by its id: asked of all replicas, for any one may be behind. Pure.

Who remembers the id decides it. That nobody does is known when all have said so, or, after a while, one of each shard:
then nothing was done under this id that any of them remembers, which does not say that nothing will be. Meanwhile those
who are silent are asked again: question and answer may be lost with a link.
"""

from __future__ import annotations

from kvstore.api.model import Result
from kvstore.core.audit import APPLIED, EXPIRED, FAILED, MISMATCH, MOVED, REPEATED
from kvstore.core.messages import Answered, Refused, ResultRequest, ShardResult, ShardResults, decode_remembered
from kvstore.core.peers import Peers
from kvstore.core.requests import RESULT_RETRY_US, unknown_or_forgotten
from kvstore.core.state import State
from multicast.application import ApplicationOutbox
from multicast.types import MessageId, ProcessId

LOOKUP_US = 1_000_000
"""How long replicas that do not answer are waited for."""


class _Asked:
    __slots__ = ("due", "silent", "tokens", "until")

    def __init__(self, silent: set[ProcessId], now: int):
        self.tokens: list[int] = []
        self.silent = silent
        self.due = now + RESULT_RETRY_US
        self.until = now + LOOKUP_US


class Lookups:
    """The lookups of one replica's clients."""

    def __init__(self, peers: Peers, store: State):
        self._peers = peers
        self._store = store
        self._asked: dict[MessageId, _Asked] = {}

    def __len__(self) -> int:
        return len(self._asked)

    def add(self, token: int, message_id: MessageId, now: int, out: ApplicationOutbox) -> None:
        """A lookup, answered with `Answered`, without what was read, or `Refused`."""
        record = self._store.remembered(message_id)
        known = None if record is None else decode_remembered(record).result(message_id)
        if known is not None and _decides(known):
            out.answer(token, _told(known))
            return
        asked = self._asked.get(message_id)
        if asked is None:
            others = {p for replicas in self._peers.replicas.values() for p in replicas} - {self._peers.self_id}
            asked = self._asked[message_id] = _Asked(others, now)
            if others:
                out.send(tuple(sorted(others)), ResultRequest([message_id], True))
        asked.tokens.append(token)
        if not asked.silent:
            self._finish(message_id, unknown_or_forgotten(), out)

    def on_results(self, sender: ProcessId, message: ShardResults, out: ApplicationOutbox) -> None:
        """What another replica knows of the id, or that it knows nothing."""
        told = [result for result in message.results if tells(result)]
        for result in filter(_decides, told):
            self._finish(result.id, _told(result), out)
        refused = [result.id for result in told if not _decides(result)]
        for message_id in (*message.unknown, *refused):
            asked = self._asked.get(message_id)
            if asked is not None:
                asked.silent.discard(sender)
                if not asked.silent:
                    self._finish(message_id, unknown_or_forgotten(), out)

    def on_tick(self, now: int, out: ApplicationOutbox) -> int | None:
        """Ask again, or wait no longer. Returns when there is something to do again."""
        if not self._asked:
            return None
        again: dict[ProcessId, list[MessageId]] = {}
        for message_id, asked in [(i, asked) for i, asked in self._asked.items() if asked.due <= now]:
            if now < asked.until:
                for pid in asked.silent:
                    again.setdefault(pid, []).append(message_id)
                asked.due = min(now + RESULT_RETRY_US, asked.until)
                continue
            silent = [g for g, replicas in self._peers.replicas.items() if asked.silent.issuperset(replicas)]
            answer = unknown_or_forgotten()
            if silent:
                answer = Refused("no_majority", f"no replica of shard {silent[0]} answers", True, "unknown")
            self._finish(message_id, answer, out)
        for pid, ids in sorted(again.items()):
            out.send((pid,), ResultRequest(ids, True))
        return min([asked.due for asked in self._asked.values()], default=None)

    def _finish(self, message_id: MessageId, answer: Answered | Refused, out: ApplicationOutbox) -> None:
        asked = self._asked.pop(message_id, None)
        for token in asked.tokens if asked is not None else ():
            out.answer(token, answer)


def tells(result: ShardResult) -> bool:
    """Whether this result says what became of the transaction. It does not if the transaction was moved, or if this
    shard knows nothing of its first time."""
    return result.status not in (MOVED, REPEATED)


def _decides(result: ShardResult) -> bool:
    """Whether it says what became of the id. Where a request was refused since the id is another one's, it does not:
    that one may have been applied, in other shards."""
    return tells(result) and result.status != MISMATCH


def _told(result: ShardResult) -> Answered | Refused:
    if result.status in (APPLIED, FAILED):
        told = Result(result.succeeded, result.timestamp, (), result.failure, result.failure_key)
        return Answered(told, repeated=True, results_omitted=True)
    assert result.status == EXPIRED
    return Refused("expired", "it was ordered later than its id allows and had no effect", False, "not_applied")
