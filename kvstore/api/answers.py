"""The bodies that answer requests: what the server writes, and what clients read of it. Pure. See `codec`, `forms`.

A transaction is answered by `transaction_answer` -> `parse_transaction_answer`, a scan by `page_answer` -> `parse_page`
or, if it counts, `count_answer` -> `parse_count`, a put or delete by `put_answer`, `delete_answer` -> `parse_write`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from kvstore.api.codec import bytes_of, encode, id_text
from kvstore.api.forms import JSON, Form, Member
from kvstore.api.model import (
    NUMBERS,
    Append,
    Delete,
    DeleteRange,
    Get,
    KeyValue,
    Operation,
    OperationResult,
    Range,
    Result,
    Transaction,
    Txn,
    TxnResult,
)
from multicast.types import ZERO, Timestamp


class MalformedAnswer(ValueError):
    """Not what a replica answers: it cannot be taken as success, nor as failure."""


def cut_answer(version: str, message_id: str) -> bytes:
    """The body that answers `POST /v1/backups`: under `version` the rows of every shard can be fetched."""
    return encode({"version": version, "id": message_id})


class Page(msgspec.Struct, frozen=True):
    """Some entries of a scan, in key order: all as they were at one point of the order. Everything up to `version` is
    in it; of several shards, where no page follows, it may have later things, too. Who watches after `version` misses
    nothing that is not in it.

    next_page_token: where the next page begins; None after the last. It is of the same version, unless the cluster
    keeps no history.
    """

    version: Timestamp
    entries: tuple[KeyValue, ...]
    next_page_token: str | None


class Outcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """What became of the transaction of an id: the body that answers `GET /v1/txn/ID`.

    outcome: "applied", with the branch that ran and its version; or "not_applied", with the problem's code and detail.
    """

    id: str
    outcome: str
    succeeded: bool | None = None
    version: str = ""
    code: str = ""
    detail: str = ""


class EntryAnswer(msgspec.Struct):
    """lease: that the key is attached to, if it is."""

    key: str | None = None
    key_b64: bytes | None = None
    value: str | None = None
    value_b64: bytes | None = None
    version: str = ""
    create_version: str = ""
    lease: str = ""


class ResultAnswer(msgspec.Struct):
    """One operation's result; `value` is a string after a get and an integer after an add, `deleted` a number after a
    delete_range. succeeded, results: of a nested transaction."""

    value: str | int | None = None
    value_b64: bytes | None = None
    version: str = ""
    create_version: str = ""
    lease: str = ""
    deleted: bool | int = False
    length: int = 0
    entries: list[EntryAnswer] = []
    more: bool = False
    count: int = 0
    succeeded: bool | None = None
    results: list[ResultAnswer] = []


class TransactionAnswer(msgspec.Struct):
    succeeded: bool
    version: str
    results: list[ResultAnswer]
    results_omitted: bool = False
    id: str = ""


class PageAnswer(msgspec.Struct):
    version: str
    entries: list[EntryAnswer]
    next_page_token: str | None = None


class CountAnswer(msgspec.Struct):
    version: str
    count: int
    more: bool


class WriteAnswer(msgspec.Struct):
    version: str
    deleted: bool | int = True
    id: str = ""


class LeaseAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """version: of its last renewal. left_ms: until it may expire, about. keys: where they were asked for, the first
    that are attached to it; more: there are further ones."""

    id: str
    ttl_ms: int
    version: str
    left_ms: int
    keys: list[EntryAnswer] | None = None
    more: bool = False

    def attached(self) -> tuple[bytes, ...] | None:
        """The keys. MalformedAnswer."""
        if self.keys is None:
            return None
        try:
            return tuple([bytes_of("key", entry.key, entry.key_b64) for entry in self.keys])
        except ValueError as error:
            raise MalformedAnswer(f"answer about a lease: {error}") from error


class LeasesAnswer(msgspec.Struct, omit_defaults=True):
    """Leases in the order of their ids. more: there are further ones."""

    leases: list[LeaseAnswer]
    more: bool = False


class MoveAnswer(msgspec.Struct):
    """more: a further step is needed."""

    more: bool
    id: str


class CutAnswer(msgspec.Struct):
    version: str
    id: str


def put_answer(version: bytes, message_id: bytes, form: Form = JSON) -> bytes:
    """The body that answers `PUT /v1/kv/KEY`."""
    if form is not JSON:
        return form.encode({"version": version.decode(), "id": message_id.decode()})
    return b'{"version":"%b","id":"%b"}' % (version, message_id)


def delete_answer(version: str, deleted: bool | int, message_id: str, form: Form = JSON) -> bytes:
    """The body that answers `DELETE /v1/kv/KEY`, and `DELETE /v1/kv`. deleted: whether it was there; how many were."""
    return form.encode({"version": version, "deleted": deleted, "id": message_id})


def parse_write(body: bytes, form: Form = JSON) -> tuple[Timestamp, bool | int]:
    """The answer to a put or delete: its version, and of a delete whether the key was there before, or how many were.
    MalformedAnswer."""
    try:
        answer = form.decode(body, WriteAnswer)
        return Timestamp.parse(answer.version), answer.deleted
    except ValueError as error:
        raise MalformedAnswer(f"answer to a write: {error}") from error


def parse_leases(body: bytes) -> LeasesAnswer:
    """The answer with leases. MalformedAnswer."""
    try:
        answer: LeasesAnswer = JSON.decode(body, LeasesAnswer)
        return answer
    except ValueError as error:
        raise MalformedAnswer(f"answer about leases: {error}") from error


def parse_lease(body: bytes) -> LeaseAnswer:
    """The answer about a lease. MalformedAnswer."""
    try:
        answer: LeaseAnswer = JSON.decode(body, LeaseAnswer)
        return answer
    except ValueError as error:
        raise MalformedAnswer(f"answer about a lease: {error}") from error


def parse_outcome(body: bytes) -> Outcome:
    """What became of a transaction. MalformedAnswer."""
    try:
        answer: Outcome = JSON.decode(body, Outcome)
        return answer
    except ValueError as error:
        raise MalformedAnswer(f"answer to a question for an outcome: {error}") from error


def parse_value(key: bytes, value: bytes, etag: str | None, create_version: str, lease: str) -> KeyValue:
    """The answer to a get: its body and the headers that say the rest. MalformedAnswer."""
    try:
        return KeyValue(key, value, *_origin((etag or "").strip('"'), create_version, lease))
    except ValueError as error:
        raise MalformedAnswer(f"ETag, Kv-Create-Version, Kv-Lease: {error}") from error


def entry_json(found: KeyValue, keys_only: bool = False, member: Member = JSON.member) -> dict[str, Any]:
    """A key with its value, its versions, and the lease that it is attached to, if it is."""
    value = {} if keys_only else member("value", found.value)
    entry: dict[str, Any] = {**member("key", found.key), **value, "version": str(found.version)}
    if found.create_version != ZERO:
        entry["create_version"] = str(found.create_version)
    if found.lease:
        entry["lease"] = id_text(found.lease)
    return entry


def _origin(version: str, create_version: str, lease: str) -> tuple[Timestamp, Timestamp, bytes]:
    return Timestamp.parse(version), Timestamp.parse(create_version or version), bytes.fromhex(lease.replace("-", ""))


def _entries(answers: list[EntryAnswer], keys_only: bool) -> tuple[KeyValue, ...]:
    default = b"" if keys_only else None
    return tuple(
        [
            KeyValue(
                bytes_of("key", answer.key, answer.key_b64),
                bytes_of("value", answer.value, answer.value_b64, default),
                *_origin(answer.version, answer.create_version, answer.lease),
            )
            for answer in answers
        ]
    )


def page_answer(page: Page, keys_only: bool = False, form: Form = JSON) -> bytes:
    """The body that answers `GET /v1/kv`."""
    entries = [entry_json(found, keys_only, form.member) for found in page.entries]
    return form.encode({"version": str(page.version), "entries": entries, "next_page_token": page.next_page_token})


def parse_page(body: bytes, keys_only: bool = False, form: Form = JSON) -> Page:
    """The answer to a scan. MalformedAnswer."""
    try:
        answer = form.decode(body, PageAnswer)
        entries = _entries(answer.entries, keys_only)
        return Page(Timestamp.parse(answer.version), entries, answer.next_page_token)
    except ValueError as error:
        raise MalformedAnswer(f"answer to a scan: {error}") from error


def count_answer(version: Timestamp, count: int, more: bool, form: Form = JSON) -> bytes:
    """The body that answers `GET /v1/kv?count_only=true`. more: there are more than were counted."""
    return form.encode({"version": str(version), "count": count, "more": more})


def parse_count(body: bytes) -> tuple[int, bool]:
    """How many there are, and whether there are more. MalformedAnswer."""
    try:
        answer = JSON.decode(body, CountAnswer)
    except ValueError as error:
        raise MalformedAnswer(f"answer to a count: {error}") from error
    return answer.count, answer.more


def result_json(
    operation: Operation, result: OperationResult, version: str, member: Member = JSON.member
) -> dict[str, Any]:
    """The result of one operation, as it stands in `results`. version: the transaction's."""
    if isinstance(operation, Txn):
        assert isinstance(result, TxnResult)
        branch = operation.success if result.succeeded else operation.failure
        inner = [result_json(o, r, version, member) for o, r in zip(branch, result.results, strict=True)]
        return {"succeeded": result.succeeded, "results": inner}
    if isinstance(operation, Get):
        if result.found is None:
            return {**member("key", operation.key), "value": None}
        return entry_json(result.found, member=member)
    if isinstance(operation, Range):
        if operation.count_only:
            return {"count": result.value, "more": result.more}
        return {"entries": [entry_json(f, operation.keys_only, member) for f in result.entries], "more": result.more}
    written: dict[str, Any] = {}
    if isinstance(operation, Delete):
        written["deleted"] = result.deleted
    elif isinstance(operation, NUMBERS):
        written["value"] = result.value
    elif isinstance(operation, Append):
        written["length"] = result.length
    elif isinstance(operation, DeleteRange):
        written["deleted"] = result.value
    return written | {"version": version}


def _results(
    operation: Transaction | Txn, succeeded: bool, results: list[ResultAnswer]
) -> tuple[OperationResult, ...]:
    branch = operation.success if succeeded else operation.failure
    if len(branch) != len(results):
        raise MalformedAnswer(f"{len(branch)} operations, {len(results)} results")
    return tuple([_result(o, r) for o, r in zip(branch, results, strict=True)])


def _result(operation: Operation, answer: ResultAnswer) -> OperationResult:
    if isinstance(operation, Txn):
        if answer.succeeded is None:
            raise MalformedAnswer("of a nested transaction it is not said whether it succeeded")
        results = _results(operation, answer.succeeded, answer.results)
        return TxnResult(succeeded=answer.succeeded, results=results)
    if isinstance(operation, Get):
        if isinstance(answer.value, int):
            raise MalformedAnswer("a get answered with an integer")
        if answer.value is None and answer.value_b64 is None:
            return OperationResult()
        value = bytes_of("value", answer.value, answer.value_b64)
        origin = _origin(answer.version, answer.create_version, answer.lease)
        return OperationResult(found=KeyValue(operation.key, value, *origin))
    if isinstance(operation, NUMBERS):
        if not isinstance(answer.value, int):
            raise MalformedAnswer("an integer is missing")
        return OperationResult(value=answer.value)
    if isinstance(operation, Range):
        entries = _entries(answer.entries, operation.keys_only)
        return OperationResult(entries=entries, more=answer.more, value=answer.count)
    if isinstance(operation, DeleteRange):
        return OperationResult(value=int(answer.deleted))
    return OperationResult(deleted=bool(answer.deleted), length=answer.length)


def transaction_answer(
    transaction: Transaction, result: Result, omitted: bool, message_id: str, form: Form = JSON
) -> bytes:
    """The body that answers `POST /v1/txn`. omitted: the results of the operations are no longer known. message_id:
    empty for a read that has none."""
    branch: Sequence[Operation] = transaction.success if result.succeeded else transaction.failure
    version = str(result.version)
    answer: dict[str, Any] = {"succeeded": result.succeeded, "version": version}
    if message_id:
        answer["id"] = message_id
    if omitted:
        answer["results_omitted"] = True
    results = () if omitted else zip(branch, result.results, strict=True)
    answer["results"] = [result_json(o, r, version, form.member) for o, r in results]
    return form.encode(answer)


def parse_transaction_answer(body: bytes, transaction: Transaction, form: Form = JSON) -> tuple[Result, bool]:
    """What answers `transaction`, and whether the results of its operations are left out. MalformedAnswer."""
    try:
        answer = form.decode(body, TransactionAnswer)
        version = Timestamp.parse(answer.version)
        if answer.results_omitted:
            return Result(answer.succeeded, version), True
        return Result(answer.succeeded, version, _results(transaction, answer.succeeded, answer.results)), False
    except ValueError as error:
        raise MalformedAnswer(f"answer to a transaction: {error}") from error
