"""Requests about keys: those that begin with a prefix, which the program neither writes nor sees. No IO.

`client_sdk.requests` has the requests that concern no keys. Both kinds of clients have a method for each function here;
see there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote_from_bytes

from msgspec.structs import replace

from client_sdk import operations
from client_sdk.errors import InvalidRequest, ResultsForgotten, TransactionFailed
from client_sdk.operations import Compare, Operation, as_bytes, of_type
from client_sdk.requests import JSON_BODY, Answer, Lease, Request, lease_or_none, lease_path
from kvstore.api import answers, codec
from kvstore.api.answers import Page
from kvstore.api.events import Change, Event
from kvstore.api.model import (
    AGE_MS_MAX,
    CONSISTENCIES,
    EVERYWHERE,
    KEY_BYTES_MAX,
    RANGE_KEYS_MAX,
    RANGES,
    Consistency,
    InvalidTransaction,
    KeyValue,
    OperationResult,
    Result,
    Revoke,
    Transaction,
    Txn,
    TxnResult,
    compares_of,
    only_reads,
    operations_of,
)
from kvstore.api.validation import validate
from multicast.types import ZERO, MessageId, Timestamp


class Keyspace:
    """The keys that begin with `prefix`, by what follows it."""

    def __init__(self, prefix: bytes = b""):
        self.prefix = prefix

    def within(self, prefix: bytes | str) -> Keyspace:
        """Those of these keys that begin with `prefix`. ValueError if locks could not be in it: their keys must be of
        one slot, and an empty tag makes no slot (`kvstore.api.shard_map`)."""
        whole = self.prefix + as_bytes("prefix", prefix)
        if whole.partition(b"{")[2].startswith(b"}"):
            raise ValueError("prefix: not with {}, which is a tag without a name")
        return Keyspace(whole)

    def key(self, key: bytes | str) -> bytes:
        """The key as the store knows it."""
        return self.prefix + as_bytes("key", key)

    def bounds(self, prefix: bytes | str, start: bytes | str, end: bytes | str) -> str:
        """The part of a query that says which keys."""
        parts = [f"prefix={quote_from_bytes(self.prefix + as_bytes('prefix', prefix), safe='')}"]
        for name, bound in (("start", start), ("end", end)):
            if bound or not isinstance(bound, bytes | str):
                parts.append(f"{name}={quote_from_bytes(self.prefix + as_bytes(name, bound), safe='')}")
        return "&".join(parts)

    def watched(self, key: bytes | str | None, prefix: bytes | str, start: bytes | str, end: bytes | str) -> str:
        """The same of a watch, which may be of one key."""
        if key is None:
            return self.bounds(prefix, start, end)
        if prefix or start or end:
            raise InvalidRequest("key: give a key, or bounds, not both", code="invalid", field="key")
        whole = as_bytes("key", key)
        if not whole:
            raise InvalidRequest("key: not empty", code="invalid", field="key")
        # With the longest key nothing else begins, and an end would be too long.
        longest = len(self.prefix) + len(whole) >= KEY_BYTES_MAX
        return self.bounds(whole, b"", b"" if longest else whole + b"\0")

    def entry(self, found: KeyValue) -> KeyValue:
        """What was found, with its key as the program knows it."""
        return replace(found, key=found.key[len(self.prefix) :]) if self.prefix else found

    def event(self, told: Event) -> Event:
        """What was watched, with its keys as the program knows them."""
        if not self.prefix:
            return told
        changes = tuple([Change(change.key[len(self.prefix) :], change.value) for change in told.changes])
        return told._replace(changes=changes)

    def _asked(self, transaction: Transaction) -> Transaction:
        """The transaction as the store knows it."""
        if not self.prefix:
            return transaction
        return Transaction(*self._parts(transaction))

    def _parts(self, asked: Transaction | Txn) -> tuple[tuple[Any, ...], tuple[Any, ...], tuple[Any, ...]]:
        compare, success, failure = [tuple(map(self._part, p)) for p in (asked.compare, asked.success, asked.failure)]
        return compare, success, failure

    def _part(self, part: Any) -> Any:
        if isinstance(part, Txn):
            return Txn(*self._parts(part))
        if not isinstance(part, RANGES):
            return replace(part, key=self.prefix + part.key)
        named = {name: self.prefix + bound for name in ("start", "end", "after") if (bound := getattr(part, name, b""))}
        return replace(part, prefix=self.prefix + part.prefix, **named)

    def _told(self, result: Result) -> Result:
        """The result as the program knows it."""
        return replace(result, results=tuple(map(self._result, result.results))) if self.prefix else result

    def _result(self, result: OperationResult) -> OperationResult:
        if isinstance(result, TxnResult):
            return replace(result, results=tuple(map(self._result, result.results)))
        found = None if result.found is None else self.entry(result.found)
        return replace(result, found=found, entries=tuple(map(self.entry, result.entries)))

    def get(
        self,
        key: bytes | str,
        *,
        version: Timestamp | None = None,
        consistency: Consistency = "linearizable",
        max_age: float | None = None,
        timeout: float | None = None,
    ) -> Request[KeyValue | None]:
        """The key's value and version; None if it is absent. Where `version` is given, as it was when that was written,
        by whatever transaction: Compacted if that is too long ago.

        consistency: what it may miss. "linearizable": nothing that was answered before it was asked. "snapshot":
        anything; it costs no message. "stale": what was answered less than `max_age` seconds before it was asked."""
        name = self.key(key)
        asked, query = name[len(self.prefix) :], _freshness(version, consistency, max_age)
        path = _key_path(name) + ("?" + "&".join(query) if query else "")

        def parse(answer: Answer) -> KeyValue | None:
            if answer.status == 404:
                return None
            return answers.parse_value(asked, answer.body, answer.etag, answer.create_version, answer.lease)

        return Request("GET", path, parse, (name,), timeout, accepts=(200, 404))

    def put(
        self,
        key: bytes | str,
        value: bytes | str,
        *,
        if_version: Timestamp | None = None,
        if_absent: bool = False,
        lease: bytes | None = None,
        message_id: MessageId | None = None,
        timeout: float | None = None,
    ) -> Request[Timestamp]:
        """Write a key; returns the new version. ConditionFailed unless the key has version `if_version` (or is absent,
        for `if_absent`). `lease`: the id of a lease to which the key is attached: the key goes when the lease goes;
        TransactionFailed if that has gone already. Without it the key is attached to none. `message_id`: to repeat a
        request whose outcome is unknown."""
        name, data = self.key(key), as_bytes("value", value)
        fields = _conditions(if_version, if_absent)
        if lease is not None:
            fields += f"Kv-Lease: {codec.id_text(of_type('lease', lease, bytes))}\r\n"

        def parse(answer: Answer) -> Timestamp:
            return answers.parse_write(answer.body)[0]

        request = Request("PUT", _key_path(name), parse, (name,), timeout, fields=fields, body=data)
        return request.under(message_id)

    def delete(
        self,
        key: bytes | str,
        *,
        if_version: Timestamp | None = None,
        message_id: MessageId | None = None,
        timeout: float | None = None,
    ) -> Request[bool]:
        """Delete a key; returns whether it was there. ConditionFailed unless it has version `if_version`."""
        name, fields = self.key(key), _conditions(if_version, False)

        def parse(answer: Answer) -> bool:
            return bool(answers.parse_write(answer.body)[1])

        return Request("DELETE", _key_path(name), parse, (name,), timeout, fields=fields).under(message_id)

    def delete_range(
        self,
        prefix: bytes | str | None = None,
        *,
        start: bytes | str | None = None,
        end: bytes | str | None = None,
        message_id: MessageId | None = None,
        timeout: float | None = None,
    ) -> Request[int]:
        """Delete all keys that begin with `prefix`, are not less than `start` and less than `end`, at one instant;
        returns how many there were. One of these must be given: an empty prefix is everything. TransactionFailed, and
        nothing is deleted, if there are more than RANGE_KEYS_MAX in one shard."""
        if prefix is None and start is None and end is None:
            raise InvalidRequest("prefix, start, end: give one of them", code="invalid", field="prefix")

        def parse(answer: Answer) -> int:
            return int(answers.parse_write(answer.body)[1])

        path = "/v1/kv?" + self.bounds(prefix or b"", start or b"", end or b"")
        return Request("DELETE", path, parse, None, timeout).under(message_id)

    def count(
        self,
        prefix: bytes | str = b"",
        *,
        start: bytes | str = b"",
        end: bytes | str = b"",
        consistency: Consistency = "linearizable",
        max_age: float | None = None,
        timeout: float | None = None,
    ) -> Request[int]:
        """Count the keys that begin with `prefix`, are not less than `start` and less than `end`; `consistency` and
        `max_age` as in `get`. TransactionFailed if there are more than RANGE_KEYS_MAX in one shard: count the pages of
        a scan."""

        def parse(answer: Answer) -> int:
            found, more = answers.parse_count(answer.body)
            if more:
                raise TransactionFailed(f"more than {RANGE_KEYS_MAX} keys in a shard", code="failed")
            return found

        parts = [self.bounds(prefix, start, end), "count_only=true", *_freshness(None, consistency, max_age)]
        return Request("GET", "/v1/kv?" + "&".join(parts), parse, None, timeout)

    def txn(
        self,
        compare: Sequence[Compare] = (),
        success: Sequence[Operation] = (),
        failure: Sequence[Operation] = (),
        *,
        message_id: MessageId | None = None,
        consistency: Consistency = "linearizable",
        max_age: float | None = None,
        timeout: float | None = None,
    ) -> Request[Result]:
        """If every comparison holds, do all of `success`, else all of `failure`; atomically, over any number of shards.

        `Result.succeeded` says which branch ran. A transaction that only reads has no id unless one is given, and then
        need not be ordered; only for such a one `consistency` and `max_age` count, as in `get`: a snapshot is of one
        version in all shards, a stale read takes each shard by itself. InvalidRequest before anything is sent if a
        limit is broken.
        """
        asked = operations.transaction(compare, success, failure)
        return self.transaction(asked, message_id=message_id, consistency=consistency, max_age=max_age, timeout=timeout)

    def transaction(
        self,
        asked: Transaction,
        *,
        message_id: MessageId | None = None,
        consistency: Consistency = "linearizable",
        max_age: float | None = None,
        timeout: float | None = None,
    ) -> Request[Result]:
        """As `txn`, for a transaction as the server knows it."""
        sent = self._asked(asked)
        try:
            validate(sent)
        except InvalidTransaction as error:
            raise InvalidRequest(str(error), code="invalid", field=error.field) from None

        def parse(answer: Answer) -> Result:
            result, omitted = answers.parse_transaction_answer(answer.body, sent)
            if omitted:
                raise ResultsForgotten(result.succeeded, result.version)
            return self._told(result)

        query, reads = _freshness(None, consistency, max_age), message_id is None and only_reads(sent)
        if query and not reads:
            raise InvalidRequest("consistency: of what only reads, without an id", code="invalid", field="consistency")
        body, fields, keys = codec.transaction_body(sent), JSON_BODY, _keys(sent)
        path = "/v1/txn" + ("?" + "&".join(query) if query else "")
        request = Request("POST", path, parse, keys, timeout, fields=fields, body=body)
        return request if reads else request.under(message_id)

    def lease(self, lease_id: bytes, *, keys: bool = False, timeout: float | None = None) -> Request[Lease | None]:
        """What is known of a lease; None if it has gone. keys: tell the keys that are attached to it, too, as of the
        same instant."""

        def parse(answer: Answer) -> Lease | None:
            found, prefix = lease_or_none(answer), self.prefix
            if found is None or found.keys is None:
                return found
            return found._replace(keys=tuple([key[len(prefix) :] for key in found.keys if key.startswith(prefix)]))

        path = lease_path(lease_id) + ("?keys=true" if of_type("keys", keys, bool) else "")
        return Request("GET", path, parse, None, timeout, accepts=(200, 404))

    def page(
        self,
        prefix: bytes | str,
        *,
        start: bytes | str = b"",
        end: bytes | str = b"",
        reverse: bool = False,
        keys_only: bool = False,
        page_size: int,
        token: str | None,
        version: Timestamp | None = None,
        consistency: Consistency = "linearizable",
        max_age: float | None = None,
        timeout: float | None,
    ) -> Request[Page]:
        """The keys that begin with `prefix`, are not less than `start` and less than `end`, in order: the first so
        many, or those from where `token` says."""

        def parse(answer: Answer) -> Page:
            found = answers.parse_page(answer.body, keys_only)
            return replace(found, entries=tuple(map(self.entry, found.entries))) if self.prefix else found

        path = f"/v1/kv?{self.bounds(prefix, start, end)}&limit={of_type('page_size', page_size, int)}"
        for name, flag in (("reverse", reverse), ("keys_only", keys_only)):
            path += f"&{name}=true" if of_type(name, flag, bool) else ""
        if token is not None:
            path += f"&page_token={quote_from_bytes(token.encode(), safe='')}"
        path = "&".join([path, *_freshness(version, consistency, max_age)])
        return Request("GET", path, parse, None, timeout)


ALL_KEYS = Keyspace()


def _freshness(version: Timestamp | None, consistency: Consistency, max_age: float | None) -> list[str]:
    """The part of a query that says how fresh a read is to be. InvalidRequest if that makes no sense."""
    if of_type("consistency", consistency, str) not in CONSISTENCIES:
        text = f"consistency: one of {', '.join(CONSISTENCIES)}, not {consistency!r}"
        raise InvalidRequest(text, code="invalid", field="consistency")
    if (consistency == "stale") != (max_age is not None):
        raise InvalidRequest("max_age: a stale read has one, and no other", code="invalid", field="max_age")
    parts = [] if version is None else [f"version={of_type('version', version, Timestamp)}"]
    if consistency != "linearizable":
        parts.append(f"consistency={consistency}")
    if max_age is not None:
        age_ms = of_type("max_age", max_age, int, float) * 1000
        if not 0 <= age_ms <= AGE_MS_MAX:
            text = f"max_age: from 0 to {AGE_MS_MAX / 1000:g} seconds, not {max_age}"
            raise InvalidRequest(text, code="invalid", field="max_age")
        parts.append(f"max_age_ms={int(age_ms)}")
    return parts


def _key_path(key: bytes) -> str:
    # Dots too: "." and ".." as whole segments would be resolved away on the road.
    return "/v1/kv/" + quote_from_bytes(key, safe="/-_~" if b"." not in key else "").replace(".", "%2E")


def _conditions(if_version: Timestamp | None, if_absent: bool) -> str:
    if if_version is not None:
        of_type("if_version", if_version, Timestamp)
    if of_type("if_absent", if_absent, bool) and if_version is not None:
        raise InvalidRequest("if_version and if_absent: give one of them", code="invalid", field="if_absent")
    if if_absent or if_version == ZERO:
        return "If-None-Match: *\r\n"
    return "" if if_version is None else f'If-Match: "{if_version}"\r\n'


def _keys(transaction: Transaction) -> list[bytes] | None:
    """The keys that a transaction touches; None: it has a range, and may touch any."""
    keys = [compare.key for compare in compares_of(transaction)]
    for operation in operations_of(transaction):
        if isinstance(operation, (*EVERYWHERE, Revoke)):
            return None
        keys.append(operation.key)
    return keys
