"""Who may do what: tokens, roles and their permissions, as requests say them and shards keep them. Pure data.

A *token* names its holder to the HTTP interface: `kv-ID-SECRET`. Only a digest of it is kept. It has *roles*, and a
role has *permissions*: to read or to write the keys of a range. `lease` is the permission to grant leases, and to
renew, look at and revoke any of which one knows the id, with the keys that are attached to it; `admin` is the
permission to change the cluster and the rights themselves, `monitor` that to see metrics. The *root* token, whose
digest stands in `cluster.json`, may do everything.
"""

from __future__ import annotations

import base64
import hmac
import re
from hashlib import sha256
from typing import Annotated, Literal

import msgspec

from kvstore.api.codec import bytes_of
from kvstore.api.model import KEY_BYTES_MAX, InvalidTransaction, Range, bounds

NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
"""Of roles and tokens."""
Name = Annotated[str, msgspec.Meta(extra_json_schema={"pattern": f"^{NAME.pattern}$"})]
Access = Literal["read", "write", "lease", "admin", "monitor"]
ROOT = "root"
"""The id of the token that is made with the cluster."""
PERMISSIONS_MAX, ROLES_MAX = 100, 100
_TOKEN = re.compile(r"kv-([a-z0-9]{4,32})-([A-Za-z0-9_-]{43})")


class Permission(msgspec.Struct, array_like=True, frozen=True):
    """To do this with the keys first <= key < end (b"": no end)."""

    access: str
    first: bytes = b""
    end: bytes = b""


class Role(msgspec.Struct, array_like=True, frozen=True):
    """As shards keep it."""

    permissions: tuple[Permission, ...]


class Token(msgspec.Struct, array_like=True, frozen=True):
    """As shards keep it. name: whose it is, for people. digest: see `digest_of`."""

    name: str
    digest: bytes
    roles: tuple[str, ...]


class PermissionJson(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What `access` allows: on one `key`, or on what begins with `prefix`, is not less than `start` and less than
    `end`. lease, admin and monitor take none of these."""

    access: list[Access]
    key: str | None = None
    key_b64: bytes | None = None
    prefix: str | None = None
    prefix_b64: bytes | None = None
    start: str | None = None
    start_b64: bytes | None = None
    end: str | None = None
    end_b64: bytes | None = None


class RoleJson(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The body of `PUT /v1/admin/roles/{name}`."""

    permissions: list[PermissionJson]


class TokenJson(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The body of `POST /v1/admin/tokens`: whose it is, and what roles it has. token: kv-ID-SECRET, drawn by whoever
    asks, who may then ask again under the same Idempotency-Key; absent: the replica draws one."""

    name: Name
    roles: list[Name]
    token: Annotated[str, msgspec.Meta(extra_json_schema={"pattern": f"^{_TOKEN.pattern}$"})] | None = None


class MadeToken(msgspec.Struct, kw_only=True):
    """The answer: the token is told here, and nowhere else."""

    id: str
    token: str


class ListedToken(msgspec.Struct, kw_only=True):
    """A token as it is listed."""

    id: str
    name: str
    roles: list[str]


class ListedPermission(msgspec.Struct, kw_only=True):
    """A permission as it is listed; keys with what is no UTF-8 in them replaced."""

    access: str
    first: str
    end: str


class RightsJson(msgspec.Struct, kw_only=True):
    """The answer to `GET /v1/admin/rights`."""

    roles: dict[str, list[ListedPermission]]
    tokens: list[ListedToken]


def token_of(token_id: str, secret: bytes) -> str:
    """The token with this id. secret: 32 random bytes."""
    return f"kv-{token_id}-{base64.urlsafe_b64encode(secret).decode().rstrip('=')}"


def digest_of(token: str) -> bytes:
    """What is kept of it. A token has 256 random bits, so nothing slower than SHA-256 is needed."""
    return sha256(token.encode()).digest()


def id_of(token: str) -> str:
    """Its id; empty if it is no token."""
    found = _TOKEN.fullmatch(token)
    return found[1] if found else ""


def is_token(token: str, digest: bytes) -> bool:
    """Whether this is the token with that digest, in a time that says nothing."""
    return hmac.compare_digest(digest_of(token), digest)


def checked_name(field: str, name: str) -> str:
    """InvalidTransaction, naming the field, if it is none."""
    if not NAME.fullmatch(name):
        raise InvalidTransaction(field, f"1 to 64 letters, digits, '_', '.' and '-', not {name[:70]!r}")
    return name


def role_of(asked: RoleJson) -> Role:
    """InvalidTransaction names the field that is wrong."""
    found: list[Permission] = []
    for i, permission in enumerate(asked.permissions):
        try:
            found += _permissions(permission)
        except InvalidTransaction as error:
            raise InvalidTransaction(f"permissions[{i}].{error.field}", error.problem) from None
    if len(found) > PERMISSIONS_MAX:
        raise InvalidTransaction("permissions", f"at most {PERMISSIONS_MAX}, not {len(found)}")
    return Role(tuple(found))


def _permissions(asked: PermissionJson) -> list[Permission]:
    given = {name: bytes_of(name, getattr(asked, name), getattr(asked, f"{name}_b64"), b"") for name in _BOUNDS}
    for name, bound in given.items():
        if len(bound) > KEY_BYTES_MAX:
            raise InvalidTransaction(name, f"at most {KEY_BYTES_MAX} bytes, not {len(bound)}")
    if not asked.access:
        raise InvalidTransaction("access", "some of read, write, lease, admin, monitor")
    if given["key"]:
        if given["prefix"] or given["start"] or given["end"]:
            raise InvalidTransaction("key", "give a key, or bounds, not both")
        first, end = given["key"], given["key"] + b"\0"
    else:
        first, end = bounds(Range(given["prefix"], 1, b"", given["start"], given["end"]))
    if end and first >= end:
        raise InvalidTransaction("end", "it is not above where the range begins: there are no keys in it")
    everywhere = not first and not end
    if not everywhere and not {"read", "write"}.issuperset(asked.access):
        raise InvalidTransaction("access", "lease, admin and monitor are not of keys")
    if everywhere and not {"read", "write"}.isdisjoint(asked.access) and asked.prefix is None:
        raise InvalidTransaction("prefix", "say of which keys; an empty prefix is all of them")
    return [Permission(access, first, end) for access in asked.access]


_BOUNDS = ("key", "prefix", "start", "end")
