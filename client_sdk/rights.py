"""Requests about tokens and roles (`kvstore.api.rights`), for those who may `admin`. As `client_sdk.requests`."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from client_sdk.errors import InvalidRequest
from client_sdk.requests import Answer, Request
from kvstore.api import codec, rights
from kvstore.api.model import InvalidTransaction
from kvstore.api.rights import MadeToken, PermissionJson, RightsJson, RoleJson, TokenJson
from multicast.types import MessageId


def put_role(
    name: str,
    permissions: Sequence[PermissionJson],
    *,
    message_id: MessageId | None = None,
    timeout: float | None = None,
) -> Request[None]:
    """What the holders of this role may do from now on: that, and nothing else. InvalidRequest names what is wrong."""
    asked = RoleJson(permissions=list(permissions))
    try:
        rights.checked_name("name", name)
        rights.role_of(asked)
    except InvalidTransaction as error:
        raise InvalidRequest(str(error), code="invalid", field=error.field) from None
    return _change("PUT", f"/v1/admin/roles/{name}", codec.encode(asked), message_id, timeout)


def delete_role(name: str, *, message_id: MessageId | None = None, timeout: float | None = None) -> Request[None]:
    """Take this role from all who have it."""
    return _change("DELETE", f"/v1/admin/roles/{_checked(name)}", None, message_id, timeout)


def make_token(
    name: str, roles: Sequence[str], *, message_id: MessageId | None = None, timeout: float | None = None
) -> Request[MadeToken]:
    """A new token for somebody of this name, with these roles. It is told here, and nowhere else: only a digest of it
    is kept. A repetition under the same id is refused: nobody knows the token of the first."""
    body = codec.encode(TokenJson(name=_checked(name), roles=[_checked(role) for role in roles]))

    def parse(answer: Answer) -> MadeToken:
        return msgspec.json.decode(answer.body, type=MadeToken)

    return Request("POST", "/v1/admin/tokens", parse, None, timeout, fields=_JSON, body=body).under(message_id)


def delete_token(token_id: str, *, message_id: MessageId | None = None, timeout: float | None = None) -> Request[None]:
    """Take the token of this id back: whatever is ordered from now on, its holder may do nothing."""
    return _change("DELETE", f"/v1/admin/tokens/{_checked(token_id)}", None, message_id, timeout)


def list_rights(*, timeout: float | None = None) -> Request[RightsJson]:
    """All roles, and all tokens by id, as the replica that answers knows them."""

    def parse(answer: Answer) -> RightsJson:
        return msgspec.json.decode(answer.body, type=RightsJson)

    return Request("GET", "/v1/admin/rights", parse, None, timeout)


_JSON = "Content-Type: application/json\r\n"


def _change(
    method: str, path: str, body: bytes | None, message_id: MessageId | None, timeout: float | None
) -> Request[None]:
    fields = "" if body is None else _JSON
    return Request(method, path, lambda _: None, None, timeout, fields=fields, body=body).under(message_id)


def _checked(name: str) -> str:
    try:
        return rights.checked_name("name", name)
    except InvalidTransaction as error:
        raise InvalidRequest(str(error), code="invalid", field=error.field) from None
