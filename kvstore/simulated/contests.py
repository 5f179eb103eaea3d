"""Of two requests under one id at most one is done, and no other one is told that it was: it is told that the id is
another's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kvstore.core.audit import APPLIED
from kvstore.core.bundles import encode_transaction
from kvstore.core.messages import Answered
from kvstore.simulated.clients import Operated
from kvstore.simulated.cluster import Executed
from multicast.types import MessageId


def check(logs: Iterable[list[Executed]], operations: Iterable[Operated]) -> list[str]:
    """Who was told that he was done, and was not. logs: by shards; operations: of all clients."""
    done: dict[MessageId, bytes] = {}
    for log in logs:
        for executed in log:
            if executed.outcome is not None and executed.outcome.status == APPLIED:
                done[executed.id] = encode_transaction(executed.transaction)
    return [text for operation in operations if operation.contested for text in _of(operation, done.get(operation.id))]


def _of(operation: Operated, done: bytes | None) -> Iterator[str]:
    """done: the body that has taken effect under its id, if any has."""
    name = operation.id.hex()
    asked = [(operation.transaction, operation.result is not None, False)]
    for rival, answer in operation.rivals:
        if isinstance(answer, Answered):
            failed = bool(answer.result.failure)
            asked.append((rival, not failed, failed))
    for transaction, succeeded, failed in asked:
        if succeeded and encode_transaction(transaction) != done:
            yield f"{name} was answered to one who has asked for something else under this id: {transaction}"
        elif failed and done is not None:
            yield f"{name} has taken effect, and who has asked for {transaction} under this id is told that it failed"
