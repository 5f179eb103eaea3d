"""What a shard of a simulated cluster has voted is still so when the transaction takes effect: nothing that the vote
depends on was written in between. A vote that was read too early does harm only where it would be another one by then,
and so in a rare schedule; here it is read once more each time. (Variables of replicas are known by name only.)"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from kvstore.core.execution import vote
from kvstore.core.log import Entry
from kvstore.core.messages import Vote
from kvstore.core.replica import Replica


def watch(replica: Replica, report: Callable[[str], None]) -> None:
    """From now on, until it dies."""
    own: Any = replica
    complete = own._complete

    def completed(entry: Entry, *others: Any) -> None:
        for text in _changed(entry, replica):
            report(f"replica {replica.peers.self_id}: {text}")
        complete(entry, *others)

    own._complete = completed


def _changed(entry: Entry, replica: Replica) -> Iterator[str]:
    """Of the bundle at the head, which is about to take effect."""
    part = entry.own_part
    for index, item in enumerate(entry.items):
        if part is None or item.compared is None:
            continue
        found, compared = vote(item.plan, replica.store)
        found.places = item.places
        said = part.vote(index) or Vote()
        if (found, compared) != (said, item.compared):
            yield (
                f"{item.id.hex()} takes effect at {item.version}, by a vote {said} on {item.compared}, which would now "
                f"be {found} on {compared}"
            )
