"""Whoever asks a replica waits there, or has his answer: a request of which a replica knows nothing any more, and which
it has not answered, is lost, though its client may hear in time from another replica. And nobody is answered who does
not wait. Nor is anybody refused because a shard waits for another one that is well. (Variables of replicas are known by
name only.)"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kvstore.core.messages import Execute
from kvstore.core.replica import Replica
from kvstore.core.shards import TELL_US
from multicast.types import GroupId


def waiting(replica: Replica) -> Iterator[int]:
    """The tokens of all clients that wait at this replica, wherever that is noted."""
    of: Any = replica
    clients, watches = of.clients, of.watches
    for one in (*clients.requests.by_id.values(), *clients.lookups._asked.values()):
        yield from one.tokens
    for asked in _reads(of.reads):
        if type(asked.request) is Execute:
            yield asked.who
    yield from [token for token, _ in of._unread]
    yield from [collect.token for collect in of.collects._collects.values()]
    yield from of.collects._in_line
    yield from [asked.token for asked in of.versions._asked.values()]
    yield from [client.token for client in watches._clients]
    yield from [one.client.token for one in watches._rounds.values() if one.client is not None]


def accused(replica: Replica) -> list[GroupId]:
    """For which shards this replica, a leader, has just said that its own waits, though it has heard them lately."""
    of: Any = replica
    shards, now = of.shards, of._now
    if not shards._leads or shards._tell_at != now + TELL_US:
        return []
    return [shard for shard in shards._said[of.shard].waits_for if now - shards._heard[shard] <= shards._silent_us]


def _reads(reads: Any) -> Iterator[Any]:
    positions = reads.positions
    yield from reads._due.values()
    yield from positions._new
    yield from positions._unknown
    questions = [*positions._questions.values(), *[question for _, question in (*reads._readable, *reads._refused)]]
    for question in (*questions, *filter(None, [positions._open])):
        yield from question.waiting
