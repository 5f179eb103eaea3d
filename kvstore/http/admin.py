"""The handlers of `/v1/admin`: roles and tokens, whose changes are ordered as transactions are."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import msgspec

from kvstore.api import codec, rights
from kvstore.api.model import InvalidTransaction, Rule, Transaction
from kvstore.core.messages import Answered
from kvstore.core.rights import ROLE, TOKEN, Rights, encode
from kvstore.http import errors, request
from kvstore.http.answers import JSON, Response
from kvstore.http.calls import Call
from kvstore.http.errors import Problem
from kvstore.http.latest import Latest

ROLES = "/v1/admin/roles/"
TOKENS = "/v1/admin/tokens/"

T = TypeVar("T")
Order = Callable[[Call, Transaction, Callable[[Call, Answered], None]], None]


class Admin:
    """open: begins a call. order(call, transaction, then): has it ordered as a write. known: the rights that this
    replica knows. latest: for those that it does not."""

    def __init__(
        self,
        open_: Callable[[Call], None],
        order: Order,
        known: Callable[[], Rights],
        latest: Latest,
        body_bytes_max: int,
    ):
        self._latest = latest
        self._open = open_
        self._order = order
        self._known = known
        self._body_bytes_max = body_bytes_max

    def put_role(self, call: Call) -> None:
        name = _checked("name", call.path[len(ROLES) :])
        request.json_only(call.head.fields.values)
        self._with_body(call, partial(self._put_role, name))

    def _put_role(self, name: str, call: Call, body: bytes) -> None:
        try:
            role = rights.role_of(_parsed(body, rights.RoleJson))
        except InvalidTransaction as error:
            raise errors.invalid(error.field, error.problem) from None
        self._change(call, ROLE + name.encode(), encode(role))

    def delete_role(self, call: Call) -> None:
        name = _checked("name", call.path[len(ROLES) :])
        self._delete(call, ROLE + name.encode(), lambda: name in self._known().roles(), f"no role {name!r}")

    def make_token(self, call: Call) -> None:
        request.json_only(call.head.fields.values)
        self._with_body(call, self._make_token)

    def _make_token(self, call: Call, body: bytes) -> None:
        asked = _parsed(body, rights.TokenJson)
        name = _checked("name", asked.name)
        if len(asked.roles) > rights.ROLES_MAX:
            raise errors.invalid("roles", f"at most {rights.ROLES_MAX}, not {len(asked.roles)}")
        roles = tuple([_checked(f"roles[{i}]", role) for i, role in enumerate(asked.roles)])
        token = asked.token or rights.token_of(secrets.token_hex(8), secrets.token_bytes(32))
        token_id, digest = rights.id_of(token), rights.digest_of(token)
        if token_id in ("", rights.ROOT):
            raise errors.invalid("token", "kv-ID-SECRET: an id of 4 to 32 letters and digits, a secret of 32 bytes")

        def order(call: Call) -> None:
            unknown = [i for i, role in enumerate(roles) if role not in self._known().roles()]
            if unknown:
                raise errors.invalid(f"roles[{unknown[0]}]", f"there is no role {roles[unknown[0]]!r}")
            taken = self._known().token(token_id)
            if taken is not None and taken.digest != digest:
                raise errors.invalid("token", "there is another one with its id")
            told = rights.MadeToken(id=token_id, token=token)
            self._change(call, TOKEN + token_id.encode(), encode(rights.Token(name, digest, roles)), told)

        self._once_known(call, lambda: set(roles) <= self._known().roles().keys(), order)

    def delete_token(self, call: Call) -> None:
        text = call.path[len(TOKENS) :]
        token_id = _checked("id", rights.id_of(text) or text)
        if token_id == rights.ROOT:
            raise errors.invalid("id", "root's token stands in cluster.json: `kvstore auth root` makes another one")
        there = partial(self._has_token, token_id)
        self._delete(call, TOKEN + token_id.encode(), there, "no token of this id, or no longer")

    def _has_token(self, token_id: str) -> bool:
        return self._known().token(token_id) is not None

    def _delete(self, call: Call, name: bytes, there: Callable[[], bool], absent: str) -> None:
        """404 if it is not there."""

        def order(call: Call) -> None:
            if not there():
                raise Problem(404, "not_found", absent)
            self._change(call, name, b"")

        self._with_body(call, lambda call, _: self._once_known(call, there, order))

    def _once_known(self, call: Call, known: Callable[[], bool], then: Callable[[Call], None]) -> None:
        """Go on with this role or token, once it is known; what this replica does not know may be new."""

        def later(call: Call, problem: Problem | None) -> None:
            if problem is not None:
                raise problem
            then(call)

        if known():
            then(call)
        else:
            self._latest.wait(partial(call.step, later))

    def list_rights(self, call: Call) -> None:
        """All rights that were answered before, by whichever replica."""
        self._latest.wait(partial(call.step, self._list))

    def _list(self, call: Call, problem: Problem | None) -> None:
        if problem is not None:
            raise problem
        known = self._known()
        tokens = [
            rights.ListedToken(id=token_id, name=token.name, roles=list(token.roles))
            for token_id, token in known.tokens().items()
        ]
        roles = {name: [_listed(p) for p in role.permissions] for name, role in known.roles().items()}
        call.answer(Response(200, JSON, codec.encode(rights.RightsJson(roles=roles, tokens=tokens))))

    def _with_body(self, call: Call, then: Callable[[Call, bytes], None]) -> None:
        call.message_id = request.message_id_of(call.head.fields.values) or call.message_id
        self._open(call)
        call.read_body("the body", self._body_bytes_max, then)

    def _change(self, call: Call, name: bytes, record: bytes, told: Any = None) -> None:
        def done(call: Call, answered: Answered) -> None:
            headers = JSON + b"Idempotency-Key: %b\r\n" % call.text_id.encode()
            call.answer(Response(200, headers, codec.encode({} if told is None else told)))

        self._order(call, Transaction(success=(Rule(name, record),)), done)


def _listed(permission: rights.Permission) -> rights.ListedPermission:
    first, end = (bound.decode("utf-8", "replace") for bound in (permission.first, permission.end))
    return rights.ListedPermission(access=permission.access, first=first, end=end)


def _checked(field: str, name: str) -> str:
    try:
        return rights.checked_name(field, name)
    except InvalidTransaction as error:
        raise errors.invalid(error.field, error.problem) from None


def _parsed(body: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=kind)
    except request.UNREADABLE as error:
        text, _, place = str(error).partition(" - at `$")
        raise errors.invalid(place.strip("`").lstrip(".") or "body", text) from None
