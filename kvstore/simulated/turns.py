"""Who asks a shard again and again for the same, since no answer comes, asks another replica of it each time: the one
that was asked first may be dead for long. (Variables of replicas are known by name only.)"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from kvstore.core.messages import ChangesAfter, PartRequest, ReadAt, ReadNow, ResultRequest
from kvstore.core.replica import Replica
from kvstore.core.requests import Waiting
from multicast.application import ApplicationOutbox
from multicast.types import GroupId, MessageId, ProcessId

_TIMES = 3
"""So often in succession nobody asks the same one, while he takes the same one for the leader: turns begin there."""


def watch(replica: Replica, report: Callable[[str], None]) -> None:
    """From now on, until it dies."""
    own: Any = replica
    peers = replica.peers
    leader_of: Callable[[GroupId], ProcessId | None] = own.peers._leader_of
    asked: dict[tuple[Any, ...], tuple[tuple[ProcessId, ProcessId | None], int]] = {}

    def look(sends: list[tuple[tuple[ProcessId, ...], Any]]) -> None:
        for to, message in sends:
            shard = peers.shard_of.get(to[0]) if len(to) == 1 else None
            if shard is None:
                continue
            others = [pid for pid in peers.replicas[shard] if pid != peers.self_id]
            whom = to[0], leader_of(shard)
            for what in _wanted(message, own.clients.requests.by_id) if len(others) > 1 else ():
                last, times = asked.get((shard, *what), (whom, 0))
                times = times + 1 if last == whom else 1
                asked[(shard, *what)] = whom, times
                if times == _TIMES:
                    report(f"replica {peers.self_id} asks {whom[0]}, {times} times in succession, for {what}")

    def watched(handler: Callable[..., Any]) -> Callable[..., Any]:
        """Who is refused by one may ask the next at once, and not only when it is time to ask again."""

        def handled(*args: Any) -> Any:
            out: ApplicationOutbox = args[-1]
            before = len(out.sends)
            result = handler(*args)
            look(out.sends[before:])
            return result

        return handled

    for name in ("on_tick", "on_message", "end_batch"):
        setattr(own, name, watched(getattr(own, name)))


def _wanted(message: Any, by_id: Mapping[MessageId, Waiting]) -> Iterator[tuple[Any, ...]]:
    """What is asked for with it, one by one. by_id: the requests that wait; one that comes again begins anew."""
    kind = type(message)
    if kind is PartRequest:
        yield from [("part", one.id) for one in message.wanted]
    elif kind is ResultRequest and not message.whether:
        yield from [("result", one, by_id[one].since) for one in message.ids if one in by_id]
    elif kind is ChangesAfter:  # he who has not answered yet may be asked for more
        yield kind.__name__, message.number, message.wanted
    elif kind in (ReadAt, ReadNow):
        yield kind.__name__, message.number
