"""Leases over HTTP: the handlers of `/v1/leases`, by the transactions of `kvstore.api.leases`."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import msgspec

from kvstore.api import codec, leases
from kvstore.api.answers import LeaseAnswer, LeasesAnswer, entry_json
from kvstore.api.forms import Form
from kvstore.api.model import InvalidTransaction, KeyValue, OperationResult, Put, Transaction
from kvstore.core.bundles import NO_ID
from kvstore.core.messages import Answered
from kvstore.http import request
from kvstore.http.answers import Response, write_headers
from kvstore.http.calls import Call
from kvstore.http.errors import Problem, invalid

LEASES = "/v1/leases/"
_RENEW = "/renew"
RENEWALS = LEASES + _RENEW
"""Of which route a path is that begins with LEASES and ends so."""
_BODY_BYTES_MAX = 1024

Render = Callable[[Call, Answered], None]


class LeaseCalls:
    """open, execute, write: of `HttpApi`."""

    def __init__(
        self,
        open_: Callable[[Call], None],
        execute: Callable[[Call, Transaction, Render, bool], None],
        write: Callable[[Call, Transaction, Render, bool], None],
    ):
        self._open = open_
        self._execute = execute
        self._write = write

    def _read(self, call: Call, transaction: Transaction, render: Render) -> None:
        self._execute(call, transaction, render, False)

    def grant(self, call: Call) -> None:
        """The id of the transaction is the lease's."""
        call.message_id = request.message_id_of(call.head.fields.values) or NO_ID
        form = request.form_of(call.head.fields.values)
        self._open(call)
        call.read_body("the body", _BODY_BYTES_MAX, partial(self._grant, form))

    def _grant(self, form: Form, call: Call, body: bytes) -> None:
        try:
            ttl_ms = codec.parse_ttl_ms(body, form)
            leases.check_ttl(ttl_ms)
        except InvalidTransaction as error:
            raise invalid(error.field, error.problem) from None
        if not call.message_id:
            call.message_id = request.new_id()
        call.key = call.message_id
        self._write(call, leases.grant(call.message_id, ttl_ms), self._granted, True)

    def _granted(self, call: Call, answered: Answered) -> None:
        row = call.transaction.success[0]
        version = str(answered.result.version)
        assert isinstance(row, Put)
        ttl_ms = leases.decode_lease(row.value).ttl_ms
        body = call.form.encode(LeaseAnswer(call.text_id, ttl_ms, version, ttl_ms))
        call.answer(Response(201, write_headers(call.text_id, call.form), body))

    def list(self, call: Call) -> None:
        """How long each lives yet is by this replica's clock."""
        after, limit = request.lease_page_of(call.query)
        call.query = ""
        self._open(call)
        self._read(call, leases.list_after(after, limit), self._listed)

    def _listed(self, call: Call, answered: Answered) -> None:
        result = answered.result.results[0]
        found = [self._of_row(leases.id_of(row.key), row, self._left_ms(row)) for row in result.entries]
        body = call.form.encode(msgspec.to_builtins(LeasesAnswer(found, result.more)))
        call.answer(Response(200, call.form.header, body))

    def look(self, call: Call) -> None:
        """How long it lives yet is by this replica's clock, and no promise."""
        keys = request.flag_of(call.query, "keys")
        call.query = ""
        self._name(call, "")
        self._open(call)
        self._read(call, leases.look(call.key, keys), self._looked)

    def _looked(self, call: Call, answered: Answered) -> None:
        if answered.results_omitted:  # they are not too large: they were lost on their way
            self._read(call, call.transaction, self._looked)
            return
        row = self._row(answered)
        attached = answered.result.results[0] if len(answered.result.results) > 1 else None
        self._tell(call, row, self._left_ms(row), call.form.header, attached)

    def _left_ms(self, row: KeyValue) -> int:
        return leases.decode_lease(row.value).ttl_ms - (time.time_ns() // 1000 - row.version.time) // 1000

    def _of_row(self, lease: bytes, row: KeyValue, left_ms: int) -> LeaseAnswer:
        ttl_ms = leases.decode_lease(row.value).ttl_ms
        return LeaseAnswer(codec.id_text(lease), ttl_ms, str(row.version), max(0, min(left_ms, ttl_ms)))

    def renew(self, call: Call) -> None:
        """It begins anew."""
        self._name(call, _RENEW)
        call.message_id = request.message_id_of(call.head.fields.values) or NO_ID
        self._open(call)
        call.read_body("the body", 0, lambda call, _: self._write(call, leases.renew(call.key), self._renewed, True))

    def _renewed(self, call: Call, answered: Answered) -> None:
        """What a repetition read the first time may have been too large to be remembered: the row of a lease with many
        keys. Then it is read again."""
        if answered.results_omitted and answered.result.succeeded:
            self._look_again(call, self._renewed_before)
            return
        row = self._row(answered)
        self._tell(call, row, leases.decode_lease(row.value).ttl_ms, write_headers(call.text_id, call.form))

    def _renewed_before(self, call: Call, answered: Answered) -> None:
        row = self._row(answered)
        self._tell(call, row, self._left_ms(row), write_headers(call.text_id, call.form))

    def revoke(self, call: Call) -> None:
        """It is looked at, and revoked if it is still as it was; else once more."""
        self._name(call, "")
        self._open(call)
        call.read_body("the body", 0, lambda call, _: self._read(call, leases.look(call.key), self._revoke))

    def _revoke(self, call: Call, answered: Answered) -> None:
        row = self._row(answered)
        call.message_id = NO_ID  # a further try is another transaction
        self._write(call, leases.revoke(row, call.key), self._revoked, True)

    def _revoked(self, call: Call, answered: Answered) -> None:
        if not answered.result.succeeded and answered.results_omitted:
            self._look_again(call, self._revoke)
            return
        if not answered.result.succeeded:
            self._revoke(call, answered)
            return
        body = call.form.encode({"version": str(answered.result.version), "id": call.text_id})
        call.answer(Response(200, write_headers(call.text_id, call.form), body))

    def _look_again(self, call: Call, render: Render) -> None:
        """Of a write that was ordered: whatever comes of this, that may have been done."""
        call.message_id = NO_ID
        self._execute(call, leases.look(call.key), render, True)

    def _name(self, call: Call, end: str) -> None:
        """Which lease it is about."""
        if call.query:
            raise invalid("query", "a lease takes none")
        text = call.path[len(LEASES) :]
        if not text.endswith(end) or "/" in text.removesuffix(end):
            raise Problem(404, "unknown_path", "nothing is here; /v1/openapi.json tells what is known")
        try:
            call.key = codec.lease_of(text.removesuffix(end))
        except InvalidTransaction as error:
            raise invalid("id", error.problem) from None

    def _row(self, answered: Answered) -> KeyValue:
        row = leases.row_of(answered.result.results)
        if row is None:
            raise Problem(404, "not_found", "no such lease, or no longer")
        return row

    def _tell(
        self, call: Call, row: KeyValue, left_ms: int, headers: bytes, attached: OperationResult | None = None
    ) -> None:
        body = msgspec.to_builtins(self._of_row(call.key, row, left_ms))
        if attached is not None:
            keys = [entry_json(entry, True, call.form.member) for entry in attached.entries]
            body |= {"keys": keys, "more": attached.more}
        call.answer(Response(200, headers, call.form.encode(body)))
