"""The HTTP face of one replica.

Theory of operation. A connection (`kvstore.http.connection`) reads requests and makes a `Call` of each. The handler of
its route checks it, has its body read (`Call.read_body`), has the transaction ordered and executed (`Node.request`) and
renders the result. Each step is a function that is called when the step before is done; there are no coroutines, since
a request should cost little beside what ordering it costs. There is no router: keys are bytes that stand
percent-encoded in the raw path. Whatever goes wrong is raised as `Problem` and rendered in one place (`Call.step`).
Nothing is ordered before the whole request has been read and checked. `kvstore.api.routes` has the table of routes; the
handler of a route has its name.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

import msgspec

from kvstore.api import answers, codec, forms
from kvstore.api.forms import Form
from kvstore.api.model import (
    CUT,
    VALUE_BYTES_MAX,
    Delete,
    DeleteRange,
    Get,
    LeasedPut,
    Operation,
    Put,
    Range,
    Transaction,
    adds,
    only_reads,
    operations_of,
)
from kvstore.api.problem import APPLIED, NOT_APPLIED, UNKNOWN
from kvstore.api.routes import ROUTES
from kvstore.config import ConfigError, LogSettings, ReplicaConfig
from kvstore.core.bundles import NO_ID
from kvstore.core.messages import Answered, Execute, Lookup, Refused
from kvstore.core.rights import DENIED
from kvstore.core.versions import compacted
from kvstore.http import errors, request
from kvstore.http.about import About
from kvstore.http.access import AccessControl
from kvstore.http.admin import ROLES, TOKENS, Admin
from kvstore.http.answers import JSON, OCTETS, TEXT, Response, origin_lines, read_at, read_at_line, write_headers
from kvstore.http.calls import Call, Calls
from kvstore.http.errors import Problem
from kvstore.http.latest import Latest
from kvstore.http.leases import LEASES, RENEWALS, LeaseCalls
from kvstore.http.metrics import Metrics
from kvstore.http.node import Node
from kvstore.http.record import Record
from kvstore.http.watching import Watching
from kvstore.limits import Limits
from kvstore.members import TooFew, Unfit, decode_wanted
from kvstore.storage.backend import ViewGone
from kvstore.storage.cut import Compacted, CutRows, encode_cut_rows
from multicast.types import ZERO, Timestamp

KV = "/v1/kv/"
TXN = "/v1/txn/"
BACKUPS = "/v1/backups/"
PLACES = (TXN, BACKUPS, LEASES, ROLES, TOKENS)
DATA = (KV, "/v1/kv", "/v1/txn")
"""The routes of which no more requests are taken than can be served in time."""

_CORS_HEADERS = (
    b"Access-Control-Allow-Headers: Authorization, Content-Type, If-Match, If-None-Match, Idempotency-Key, "
    b"Kv-Cluster, Kv-Lease, Last-Event-ID, X-Request-Id, X-Timeout-Ms\r\n"
)


class _Method(NamedTuple):
    """A method of a route. needed: see `Route.access`. recorded: see `Record.kind`. limited: it is one of `DATA`."""

    handler: Callable[[Call], None]
    needed: str
    recorded: str
    limited: bool


Render = Callable[[Call, Answered], None]
"""Answers a call whose transaction was executed."""


class HttpApi:
    """Answers the calls of all connections, for `node`. root: see `AccessControl`. log: which calls it logs."""

    def __init__(
        self, node: Node, limits: Limits, metrics: Metrics, cors_origins: Sequence[str] = (), root: bytes = b"",
        log: LogSettings | None = None,
    ):  # fmt: skip
        self.node = node
        self.limits = limits
        self.metrics = metrics
        self._access = AccessControl(root, lambda: node.rights(), lambda: node.describe_cluster())
        record = Record(log or LogSettings(), self._access.name_of)
        self.calls = Calls(limits, metrics, node.forget, record, cors_origins)
        self._latest = Latest(node)
        self._watch = Watching(node, limits, self.calls, self._check_ready, self._latest).begin
        leases = LeaseCalls(self._open, self._execute, self._write)
        self._grant_lease, self._list_leases, self._lease = leases.grant, leases.list, leases.look
        self._renew_lease, self._revoke_lease = leases.renew, leases.revoke
        self._routes: dict[str, dict[str, _Method]] = {}
        about = About(node, self._access)
        order = partial(self._write, writes=True)
        admin = Admin(self._open, order, lambda: node.rights(), self._latest, limits.body_bytes_max)
        for route in ROUTES:
            methods = self._routes.setdefault(route.place, {"OPTIONS": _Method(self._options, "open", "", False)})
            others = getattr(admin, route.name, None) or getattr(about, route.name, None)
            handler = others or getattr(self, f"_{route.name}")
            methods[route.method] = _Method(handler, route.access, record.kind(route), route.place in DATA)
            if route.method == "GET":
                methods["HEAD"] = methods["GET"]

    def begin(self, call: Call) -> None:
        """The head of a request has come; perhaps nothing of its body."""
        path, method = call.path, call.head.method
        if path.startswith(KV):
            call.route = KV
        else:
            for place in PLACES:
                if path.startswith(place):
                    call.route = place
            if call.route == LEASES and path.endswith("/renew"):
                call.route = RENEWALS
        methods = self._routes.get(call.route)
        if methods is None:
            raise Problem(404, "unknown_path", "nothing is here; /v1/openapi.json tells what is known")
        known = methods.get(method)
        if known is None:
            allow = _allowed(methods)
            detail = f"{method[:20]} is not possible here, only {allow}"
            raise Problem(405, "method_not_allowed", detail, headers={"Allow": allow})
        call.recorded = known.recorded
        if method == "POST":  # the only one of ours that a browser sends for any page, unasked
            self.calls.check_page(call)
        if not self._access.root or known.needed == "open" or self._access.admits(call, known.needed):
            self._handle(known, call)
        else:
            call.undecided = True
            self._latest.wait(partial(call.step, self._admit, known))

    def _admit(self, call: Call, method: _Method, problem: Problem | None) -> None:
        """Judge it once more, by the rights that were ordered meanwhile."""
        call.undecided = False
        if problem is not None:
            raise problem
        self._access.admits(call, method.needed, last=True)
        self._handle(method, call)
        call.caller.go_on()

    def _handle(self, method: _Method, call: Call) -> None:
        self._access.check_cluster(call)
        if not method.limited or not self.calls.refuses(call):
            method.handler(call)

    def _options(self, call: Call) -> None:
        allow = _allowed(self._routes[call.route]).encode()
        headers = b"Allow: %b\r\n" % allow
        if self.calls.origin_of(call):
            headers += b"Access-Control-Allow-Methods: %b\r\n%b" % (allow, _CORS_HEADERS)
        call.answer(Response(204, headers))

    def _open(self, call: Call) -> None:
        """From here on the call's time runs, and it may wait."""
        default_ms, max_ms = self.limits.timeout_default_ms, self.limits.timeout_max_ms
        self.calls.open(call, request.timeout_ms_of(call.head.fields.values, default_ms, max_ms))

    # -- single keys --------------------------------------------------------------------------------------------------

    def _get(self, call: Call) -> None:
        if call.query:
            parameters = request.query_of(call.query, ("version", *request.FRESHNESS))
            call.at = request.version_of(parameters)
            call.freshness = request.freshness_of(parameters, "version" in parameters)
        self._read(call, Get(request.key_of(call.path, "", KV)), self._got)

    def _got(self, call: Call, answered: Answered) -> None:
        found, fields = answered.result.results[0].found, call.head.fields.values
        seen_at = read_at(answered)
        if found is None:
            raise Problem(404, "not_found", "no such key", headers={"Kv-Read-At": seen_at} if seen_at else None)
        etag = f'"{found.version}"'
        match, none_match = fields.get("if-match"), fields.get("if-none-match")
        if match is not None and not request.names_etag(match, etag):
            raise Problem(412, "precondition_failed", "If-Match: the key has another version", headers={"ETag": etag})
        line = b"ETag: %b\r\n%b%b" % (etag.encode(), origin_lines(found), read_at_line(seen_at))
        if none_match is not None and request.names_etag(none_match, etag):
            call.answer(Response(304, line))
        else:
            call.answer(Response(200, OCTETS + line, found.value))

    def _put(self, call: Call) -> None:
        self._begin_write(call)
        call.read_body("a value", min(VALUE_BYTES_MAX, self.limits.body_bytes_max), self._put_value)

    def _put_value(self, call: Call, value: bytes) -> None:
        lease = request.lease_of(call.head.fields.values)
        self._write_key(call, LeasedPut(call.key, value, lease) if lease else Put(call.key, value), self._did_put)

    def _did_put(self, call: Call, answered: Answered) -> None:
        self._check_conditions(call, answered)
        version, text_id, form = str(answered.result.version).encode(), call.text_id.encode(), call.form
        created = call.conditions and any(c.target == "exists" and c.operand is False for c in call.conditions)
        headers = b'%bETag: "%b"\r\nIdempotency-Key: %b\r\n' % (form.header, version, text_id)
        call.answer(Response(201 if created else 200, headers, answers.put_answer(version, text_id, form)))

    def _delete(self, call: Call) -> None:
        self._begin_write(call)
        call.read_body("the body of a DELETE", 0, self._delete_key)

    def _delete_key(self, call: Call, nothing: bytes) -> None:
        self._write_key(call, Delete(call.key), self._did_delete)

    def _did_delete(self, call: Call, answered: Answered) -> None:
        self._check_conditions(call, answered)
        version, found = str(answered.result.version), errors.first_result(answered)
        body = answers.delete_answer(version, found.deleted, call.text_id, call.form)
        call.answer(Response(200, write_headers(call.text_id, call.form), body))

    def _begin_write(self, call: Call) -> None:
        fields = call.head.fields.values
        call.key = request.key_of(call.path, call.query, KV)
        call.conditions = request.conditions_of(fields, call.key)
        call.message_id = request.message_id_of(fields) or NO_ID
        self._open(call)

    def _write_key(self, call: Call, operation: Operation, render: Render) -> None:
        """If its conditions do not hold, the key's present version is read."""
        failure = (Get(call.key),) if call.conditions else ()
        self._write(call, Transaction(call.conditions, (operation,), failure), render, True)

    def _check_conditions(self, call: Call, answered: Answered) -> None:
        """412 with the present version unless they hold."""
        if answered.result.succeeded:
            return
        headers = {}
        given = [header for header in ("If-Match", "If-None-Match") if header.lower() in call.head.fields.values]
        detail = f"{' or '.join(given)} does not hold"
        if not answered.results_omitted:
            found = answered.result.results[0].found
            detail += f": the key has version {found.version}" if found else ": there is no such key"
            if found:
                headers["ETag"] = f'"{found.version}"'
        raise Problem(412, "precondition_failed", detail, field=given[0] if len(given) == 1 else "", headers=headers)

    # -- several keys -------------------------------------------------------------------------------------------------

    def _scan(self, call: Call) -> None:
        wanted, call.at, call.freshness = request.scan_of(call.query)
        call.paged = self.limits.history_ms > 0 and not wanted.count_only
        self._read(call, wanted, self._scanned)

    def _scanned(self, call: Call, answered: Answered) -> None:
        """The next page is of the version that this one is of."""
        (scan,), (result,) = call.transaction.success, answered.result.results
        version = answered.result.version if answered.seen == ZERO else answered.seen
        assert isinstance(scan, Range)
        if scan.count_only:
            body = answers.count_answer(version, result.value, result.more, call.form)
        else:
            goes_on = result.more and result.entries
            token = request.page_token(result.entries[-1].key, version if call.paged else None) if goes_on else None
            body = answers.page_answer(answers.Page(version, result.entries, token), scan.keys_only, call.form)
        call.answer_large(call.form.header + read_at_line(read_at(answered)), body)

    def _delete_range(self, call: Call) -> None:
        fields = call.head.fields.values
        if "if-match" in fields or "if-none-match" in fields:
            raise errors.invalid("If-Match", "a range has no one version; compare in a transaction")
        call.message_id = request.message_id_of(fields) or NO_ID
        deletion = request.deletion_of(call.query)
        self._open(call)
        call.read_body("the body of a DELETE", 0, partial(self._delete_found, deletion))

    def _delete_found(self, deletion: DeleteRange, call: Call, nothing: bytes) -> None:
        self._write(call, Transaction((), (deletion,)), self._did_delete_range, True)

    def _did_delete_range(self, call: Call, answered: Answered) -> None:
        version, found = str(answered.result.version), errors.first_result(answered)
        body = answers.delete_answer(version, found.value, call.text_id, call.form)
        call.answer(Response(200, write_headers(call.text_id, call.form), body))

    def _txn(self, call: Call) -> None:
        fields = call.head.fields.values
        if call.query:
            call.freshness = request.freshness_of(request.query_of(call.query, request.FRESHNESS))
        form = request.form_of(fields)
        call.message_id = request.message_id_of(fields) or NO_ID
        self._open(call)
        call.read_body("the body", self.limits.body_bytes_max, partial(self._txn_body, form))

    def _txn_body(self, form: Form, call: Call, body: bytes) -> None:
        transaction = request.valid(partial(codec.parse_transaction, form=form), body)
        if not call.message_id and only_reads(transaction):
            self._execute(call, transaction, self._did_txn)
        elif call.query:
            raise errors.invalid("query.consistency", "of what only reads, and has no Idempotency-Key")
        else:
            self._write(call, transaction, self._did_txn, _writes(transaction))

    def _did_txn(self, call: Call, answered: Answered) -> None:
        form, result, omitted = call.form, answered.result, answered.results_omitted
        if omitted and not call.text_id:
            raise errors.too_much_read()
        body = answers.transaction_answer(call.transaction, result, omitted, call.text_id, form)
        read_line = read_at_line(read_at(answered))
        headers = write_headers(call.text_id, form) if call.text_id else form.header + read_line
        call.answer_large(headers, body)

    def _outcome(self, call: Call) -> None:
        if call.query:
            raise errors.invalid("query", "an outcome takes none")
        message_id = request.parse_id("id", call.path[len(TXN) :])
        self._open(call)
        call.text_id, call.ordered = codec.id_text(message_id), True
        self._check_ready(UNKNOWN)
        call.token = self.node.request(Lookup(message_id), partial(call.step, self._did_look_up))

    def _did_look_up(self, call: Call, answer: Answered | Refused) -> None:
        if isinstance(answer, Answered):
            found = answer.result
            if found.failure:
                told = answers.Outcome(call.text_id, NOT_APPLIED, code="failed", detail=found.failure)
            else:
                told = answers.Outcome(call.text_id, APPLIED, found.succeeded, str(found.version))
        elif answer.code in errors.DECIDED:
            told = answers.Outcome(call.text_id, NOT_APPLIED, code=answer.code, detail=answer.message)
        else:
            raise errors.refused(answer, in_doubt=True)
        call.answer(Response(200, call.form.header, call.form.encode(told)))

    # -- backups ------------------------------------------------------------------------------------------------------

    def _make_cut(self, call: Call) -> None:
        call.message_id = request.message_id_of(call.head.fields.values) or NO_ID
        self._open(call)
        call.read_body("the body", 0, lambda call, nothing: self._write(call, CUT, self._did_cut, True))

    def _did_cut(self, call: Call, answered: Answered) -> None:
        body = answers.cut_answer(str(answered.result.version), call.text_id)
        call.answer(Response(200, write_headers(call.text_id), body))

    def _cut_rows(self, call: Call) -> None:
        """Read in a thread: pages may have to come from the disk."""
        version, after, at = request.cut_of(call.path, call.query, BACKUPS)
        cut = self.node.cut(version)
        if cut is None:
            raise Problem(404, "not_found", "this replica keeps no rows for this backup, or no longer")
        self._open(call)
        work = asyncio.get_running_loop().run_in_executor(None, cut.read, after, at)
        work.add_done_callback(lambda _: call.step(self._did_read, at, work))

    def _did_read(self, call: Call, at: Timestamp | None, work: asyncio.Future[CutRows]) -> None:
        try:
            rows = work.result()
        except ViewGone:
            raise Problem(404, "not_found", "this replica keeps the rows for this backup no longer") from None
        except Compacted as gone:
            raise errors.refused(compacted(at or gone.oldest, gone.oldest)) from None
        call.answer(Response(200, OCTETS, encode_cut_rows(rows)))

    # -- replicas that are replaced -----------------------------------------------------------------------------------

    def _replaced(self, call: Call) -> None:
        self._open(call)
        call.read_body("the body", self.limits.body_bytes_max, self._put_in_place)

    def _put_in_place(self, call: Call, body: bytes) -> None:
        try:
            self.node.put_in_place(msgspec.json.decode(body, type=ReplicaConfig))
        except (*request.UNREADABLE, ConfigError) as error:
            raise errors.invalid("body", str(error)) from None
        call.answer(Response(200, JSON, b"{}"))

    # -- slots that move ----------------------------------------------------------------------------------------------

    def _move(self, call: Call) -> None:
        """One step: whoever moves slots asks for further ones as long as there are more."""
        call.message_id = request.message_id_of(call.head.fields.values) or NO_ID
        self._open(call)
        call.read_body("the body", self.limits.body_bytes_max, self._order_step)

    def _order_step(self, call: Call, body: bytes) -> None:
        self._write(call, request.valid(codec.parse_move, body), self._did_move, True)

    def _did_move(self, call: Call, answered: Answered) -> None:
        more = answered.results_omitted or answered.result.results[0].more
        call.answer(Response(200, write_headers(call.text_id), codec.encode(answers.MoveAnswer(more, call.text_id))))

    # -- ordering -----------------------------------------------------------------------------------------------------

    def _read(self, call: Call, operation: Operation, render: Render) -> None:
        self._open(call)
        self._execute(call, Transaction((), (operation,)), render)

    def _write(self, call: Call, transaction: Transaction, render: Render, writes: bool) -> None:
        """Execute a write. Its id goes out with every answer, good or bad."""
        message_id = call.message_id = call.message_id or self.node.new_message_id()
        call.text_id = codec.id_text(message_id)
        self._execute(call, transaction, render, writes)

    def _execute(self, call: Call, transaction: Transaction, render: Render, writes: bool = False) -> None:
        self._check_ready()
        overload = self.node.overload()
        if overload:
            raise errors.unavailable("overloaded", overload)
        full = self.node.full()
        if full and writes and adds(transaction):
            raise errors.full(full)
        call.under_way()
        if call.by:
            transaction = msgspec.structs.replace(transaction, by=call.by)  # a cut is everybody's, see `CUT`
        call.transaction = transaction
        call.ordered = writes
        answer = partial(call.step, self._executed, render)
        asked = Execute(call.message_id, transaction, call.at, *call.freshness, call.paged)
        call.token = self.node.request(asked, answer)

    def _check_ready(self, outcome: str = NOT_APPLIED) -> None:
        if self.calls.stopping:
            raise errors.unavailable("stopping", "this replica is stopping", outcome)
        unready = self.node.unready()
        if unready:
            raise errors.unavailable("not_ready", unready, outcome)

    def _executed(self, call: Call, render: Render, answer: Answered | Refused) -> None:
        if isinstance(answer, Refused):
            if not call.may_be_old(answer):
                raise errors.refused(answer, call.ordered and not call.message_id, call.head.fields.values)
            self._latest.wait(partial(call.step, self._execute_again, render))
            return
        failure = answer.result.failure
        if failure:
            code, status = ("forbidden", 403) if failure.startswith(DENIED) else ("failed", 422)
            [(name, text)] = msgspec.to_builtins(forms.text_or_b64("key", answer.result.failure_key)).items()
            raise Problem(status, code, f"{failure} ({name} {text!r})" if text else failure)
        if answer.results_omitted and call.message_id == NO_ID and len(call.transaction.success) == 1:
            # A read of a size that fits, and what another shard read for it was lost on its way: it is read again.
            self._execute(call, call.transaction, render)
        else:
            render(call, answer)

    def _execute_again(self, call: Call, render: Render, problem: Problem | None) -> None:
        """Judge it once more, by the rights that were ordered meanwhile."""
        if problem is not None:
            raise problem
        self._execute(call, call.transaction, render, call.ordered)

    # -- replicas that come and go ------------------------------------------------------------------------------------

    def _change_members(self, call: Call) -> None:
        request.json_only(call.head.fields.values)
        self._open(call)
        call.read_body("the body", self.limits.body_bytes_max, self._change_members_body)

    def _change_members_body(self, call: Call, body: bytes) -> None:
        unready = self.node.unready()
        if unready:
            raise errors.unavailable("not_ready", unready)
        try:
            done = self.node.change_members(decode_wanted(body))
        except request.UNREADABLE as error:
            raise errors.invalid("", str(error)) from None
        except Unfit as error:
            raise Problem(409, "members", str(error)) from None
        except TooFew as error:
            raise errors.unavailable("no_majority", str(error)) from None
        call.answer(Response(200, JSON, codec.encode({"done": done})))

    # -- machines who watch -------------------------------------------------------------------------------------------

    def _livez(self, call: Call) -> None:
        if failure := self.node.failure():
            raise Problem(503, "failed", failure, outcome=UNKNOWN)
        call.answer(Response(200, TEXT, b"ok\n"))

    def _readyz(self, call: Call) -> None:
        unready = "this replica is stopping" if self.calls.stopping else self.node.unready()
        if unready:
            raise errors.unavailable("not_ready", unready)
        call.answer(Response(200, TEXT, b"ok\n"))

    def _metrics(self, call: Call) -> None:
        body, content_type = self.metrics.render()
        call.answer_large(b"Content-Type: %b\r\n" % content_type.encode(), body)


def _allowed(methods: Iterable[str]) -> str:
    return ", ".join(sorted(methods))


def _writes(transaction: Transaction) -> bool:
    """Whether the transaction can change anything; if not, its outcome is never in doubt."""
    return any([type(o) not in (Get, Range) for o in operations_of(transaction)])
