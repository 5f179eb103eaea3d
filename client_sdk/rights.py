"""Requests about tokens and roles (`kvstore.api.rights`), for those who may `admin`. As `client_sdk.requests`."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

import msgspec

from client_sdk.errors import InvalidRequest
from client_sdk.requests import JSON_BODY, Answer, Request
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
    """Make a role, or change it: from now on its holders may do this, and nothing else. InvalidRequest names what is
    wrong."""
    asked = RoleJson(permissions=list(permissions))
    try:
        rights.checked_name("name", name)
        rights.role_of(asked)
    except InvalidTransaction as error:
        raise InvalidRequest(str(error), code="invalid", field=error.field) from None
    path, body = f"/v1/admin/roles/{name}", codec.encode(asked)
    return Request("PUT", path, lambda _: None, None, timeout, fields=JSON_BODY, body=body).under(message_id)


def delete_role(name: str, *, message_id: MessageId | None = None, timeout: float | None = None) -> Request[bool]:
    """Delete this role, and take it from all who have it. Returns whether it was there; a repetition after an attempt
    of unknown outcome may say that it was not."""
    return _deletion(f"/v1/admin/roles/{_checked(name)}", message_id, timeout)


def make_token(
    name: str,
    roles: Sequence[str],
    *,
    token: str | None = None,
    message_id: MessageId | None = None,
    timeout: float | None = None,
) -> Request[MadeToken]:
    """Make a token for somebody of this name, with these roles. It is drawn here, and told nowhere else: the cluster
    keeps a digest of it. To repeat this under the same `message_id` give the `token` of the first time, too."""
    drawn = rights.token_of(secrets.token_hex(8), secrets.token_bytes(32)) if token is None else token
    if not rights.id_of(drawn):
        raise InvalidRequest("token: not a token, as `make_token` draws one", code="invalid", field="token")
    body = codec.encode(TokenJson(name=_checked(name), roles=[_checked(role) for role in roles], token=drawn))

    def parse(answer: Answer) -> MadeToken:
        return msgspec.json.decode(answer.body, type=MadeToken)

    return Request("POST", "/v1/admin/tokens", parse, None, timeout, fields=JSON_BODY, body=body).under(message_id)


def delete_token(token: str, *, message_id: MessageId | None = None, timeout: float | None = None) -> Request[bool]:
    """Delete a token, given by its id or by itself: of whatever is ordered from now on, its holder may do nothing.
    Returns whether it was known, as `delete_role`. Its secret is not sent."""
    return _deletion(f"/v1/admin/tokens/{_checked(rights.id_of(token) or token)}", message_id, timeout)


def _deletion(path: str, message_id: MessageId | None, timeout: float | None) -> Request[bool]:
    found: Request[bool] = Request(
        "DELETE", path, lambda answer: answer.status == 200, None, timeout, accepts=(200, 404)
    )  # fmt: skip
    return found.under(message_id)


def list_rights(*, timeout: float | None = None) -> Request[RightsJson]:
    """All roles, and all tokens by id."""

    def parse(answer: Answer) -> RightsJson:
        return msgspec.json.decode(answer.body, type=RightsJson)

    return Request("GET", "/v1/admin/rights", parse, None, timeout)


def _checked(name: str) -> str:
    try:
        return rights.checked_name("name", name)
    except InvalidTransaction as error:
        raise InvalidRequest(str(error), code="invalid", field=error.field) from None
