"""What a request says in its path, query and headers: parsed strictly, each mistake a `Problem` that names the part.

fields: header fields by name in lower case."""

from __future__ import annotations

import base64
import binascii
import re
import secrets
import time
from collections.abc import Callable, Mapping
from typing import Any, cast
from urllib.parse import unquote_to_bytes

import msgspec

from kvstore.api.codec import id_text
from kvstore.api.codec import lease_of as codec_lease_of
from kvstore.api.forms import JSON, Form, of_body
from kvstore.api.model import (
    AGE_MS_MAX,
    CONSISTENCIES,
    FIRST_KEY,
    KEY_BYTES_MAX,
    NO_LEASE,
    RANGES,
    SCAN_LIMIT_DEFAULT,
    SCAN_LIMIT_MAX,
    Compare,
    Consistency,
    DeleteRange,
    InvalidTransaction,
    Range,
    Transaction,
    Txn,
    between,
    each,
)
from kvstore.api.model import bounds as range_bounds
from kvstore.api.validation import validate
from kvstore.fields import nearest
from kvstore.http.errors import Problem, invalid
from multicast.types import MessageId, Timestamp, is_uuid7, new_message_id

UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What reading JSON raises."""
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_UUID = re.compile(r"[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}")
_STRONG_ETAG = re.compile(r'"([^"]*)"')
_BOUNDS = ("prefix", "start", "end")
_NOT_A_CLIENTS = "what is one zero byte, or begins with two, is the store's own"
_LATER_PAGE, _SAME_VERSION = b"\x01", b"\x02"
"""With what a page token begins: the next page is of a later version; or of this one, which follows in 16 bytes."""


def percent_decoded(text: str, field: str) -> bytes:
    """The bytes that a part of a path or query stands for. 400 for a `%` that begins no escape."""
    if "%" not in text:
        return text.encode()
    bad = _BAD_ESCAPE.search(text)
    if bad:
        raise invalid(field, f"% is not followed by two hexadecimal digits: {text[bad.start() : bad.start() + 3]!r}")
    return unquote_to_bytes(text)


def key_of(path: str, query: str, prefix: str) -> bytes:
    """The key in a raw path: everything after `prefix`, `/` included."""
    if query:
        raise invalid("query", "a write of a single key takes none; a '?' in a key is written %3F")
    key = percent_decoded(path[len(prefix) :], "key")
    if not 1 <= len(key) <= KEY_BYTES_MAX:
        raise invalid("key", f"a key has 1 to {KEY_BYTES_MAX} bytes, this one {len(key)}")
    if key < FIRST_KEY:
        raise invalid("key", _NOT_A_CLIENTS)
    return key


def version_of(parameters: Mapping[str, bytes], name: str = "version") -> Timestamp | None:
    """The version at which is to be read."""
    text = parameters.get(name)
    if text is None:
        return None
    told = text.decode("latin-1")
    try:
        return Timestamp.parse(told)
    except ValueError:
        raise invalid(f"query.{name}", f"a version, as ETags and answers have it, not {told[:40]!r}") from None


FRESHNESS = ("consistency", "max_age_ms")


def freshness_of(parameters: Mapping[str, bytes], of_version: bool = False) -> tuple[Consistency, int]:
    """How fresh a read must be, and the age, microseconds, of a stale one. of_version: its version is given."""
    text, age = parameters.get("consistency", b"linearizable").decode("latin-1"), parameters.get("max_age_ms")
    if of_version and ("consistency" in parameters or age is not None):
        raise invalid("query.consistency", "the version says what is read; leave one of them out")
    if text not in CONSISTENCIES:
        raise invalid("query.consistency", f"one of {', '.join(CONSISTENCIES)}, not {text[:30]!r}")
    if (text == "stale") != (age is not None):
        raise invalid("query.max_age_ms", "a stale read has one, and no other")
    if age is not None and (not age.isdigit() or len(age) > 9 or int(age) > AGE_MS_MAX):
        raise invalid("query.max_age_ms", f"a whole number from 0 to {AGE_MS_MAX}, not {age[:30].decode('latin-1')!r}")
    return cast(Consistency, text), int(age or 0) * 1000


def message_id_of(fields: Mapping[str, str]) -> MessageId | None:
    """The `Idempotency-Key`; None without one."""
    text = fields.get("idempotency-key")
    return None if text is None else parse_id("Idempotency-Key", text)


def lease_of(fields: Mapping[str, str]) -> bytes:
    """The lease to which a key is to be attached; empty: to none."""
    text = fields.get("kv-lease")
    try:
        return NO_LEASE if text is None else codec_lease_of(text)
    except InvalidTransaction as error:
        raise invalid("Kv-Lease", error.problem) from None


def new_id() -> MessageId:
    """A UUIDv7 by this machine's clock."""
    return new_message_id(time.time_ns() // 1000, secrets.randbits(62))


def parse_id(field: str, text: str) -> MessageId:
    """The id of a write in a part of the request of this name."""
    if len(text) > 2 and text[0] == text[-1] == '"':  # a structured-field string, as the header's draft writes it
        text = text[1:-1]
    if _UUID.fullmatch(text):
        message_id = bytes.fromhex(text.replace("-", ""))
        if is_uuid7(message_id):
            return message_id
    example = id_text(new_id())
    raise invalid(field, f"a UUIDv7 is needed, now for example {example}, not {text[:60]!r}")


def timeout_ms_of(fields: Mapping[str, str], default_ms: int, max_ms: int) -> int:
    """The `X-Timeout-Ms` of a request."""
    text = fields.get("x-timeout-ms")
    if text is None:
        return default_ms
    if not (text.isascii() and text.isdigit()) or len(text) > 9 or not 1 <= int(text) <= max_ms:
        raise invalid("X-Timeout-Ms", f"a whole number from 1 to {max_ms}, not {text[:30]!r}")
    return int(text)


def conditions_of(fields: Mapping[str, str], key: bytes) -> tuple[Compare, ...]:
    """`If-Match` and `If-None-Match` of a write, as comparisons that must all hold."""
    compares: list[Compare] = []
    match = fields.get("if-match")
    if match is not None:
        if match.strip() == "*":
            compares.append(Compare(key, "exists", "==", True))
        else:
            versions = _versions("If-Match", match)
            if len(versions) != 1:
                raise invalid("If-Match", "one ETag or *; several would be alternatives")
            compares.append(Compare(key, "version", "==", versions[0]))
    none_match = fields.get("if-none-match")
    if none_match is not None:
        if none_match.strip() == "*":
            compares.append(Compare(key, "exists", "==", False))
        else:
            compares += [Compare(key, "version", "!=", v) for v in _versions("If-None-Match", none_match)]
    return tuple(compares)


def _versions(header: str, text: str) -> list[Timestamp]:
    versions = []
    for item in text.split(","):
        item = item.strip()
        if item.startswith("W/"):
            raise invalid(header, "a weak ETag (W/...) cannot guard a write; send the ETag as this server gave it")
        quoted = _STRONG_ETAG.fullmatch(item)
        if not quoted:
            raise invalid(header, f'an ETag in double quotes, such as "6423f1a2b3c4d-1", or *, not {item[:40]!r}')
        try:
            versions.append(Timestamp.parse(quoted[1]))
        except ValueError:
            raise invalid(header, f"no ETag of this server: {item[:40]}") from None
    return versions


def names_etag(header: str, etag: str) -> bool:
    """Whether a GET's `If-Match` or `If-None-Match` names this ETag. Weakness does not matter: bytes are bytes."""
    return any(item.strip().removeprefix("W/") in ("*", etag) for item in header.split(","))


def query_of(query: str, known: tuple[str, ...]) -> dict[str, bytes]:
    """The parameters of a query string. 400 for an unknown or repeated one. `+` is a space, as in forms."""
    parameters: dict[str, bytes] = {}
    for part in query.split("&") if query else ():
        name, _, value = part.partition("=")
        if name not in known:
            near = nearest(name, known)
            hint = f"did you mean {near!r}?" if near else f"known here: {', '.join(known)}"
            raise invalid(f"query.{name[:40]}", f"unknown parameter; {hint}")
        if name in parameters:
            raise invalid(f"query.{name}", "given twice")
        parameters[name] = percent_decoded(value.replace("+", " "), f"query.{name}")
    return parameters


def cut_of(path: str, query: str, prefix: str) -> tuple[Timestamp, bytes, Timestamp | None]:
    """The version of a cut in a raw path, after `prefix`, the key after which its rows are asked for, and at which
    version; None: at the cut."""
    parameters = query_of(query, ("after", "at"))
    at = version_of(parameters, "at")
    try:
        version, after = Timestamp.parse(path[len(prefix) :]), bytes.fromhex(parameters.get("after", b"").decode())
    except ValueError as error:
        raise invalid("version or after", str(error)) from None
    if at is not None and at > version:
        raise invalid("query.at", f"the cut, {version}, is before that version")
    return version, after, at


def scan_of(query: str) -> tuple[Range, Timestamp | None, tuple[Consistency, int]]:
    """The range that `GET /v1/kv` asks for, and at which version; None: now, and how fresh."""
    flags = ("reverse", "keys_only", "count_only")
    parameters = query_of(query, (*_BOUNDS, *flags, "limit", "version", "page_token", *FRESHNESS))
    bounds = _bounds_of(parameters)
    limit = _limit(parameters)
    reverse, keys_only, count_only = [_flag(parameters, name) for name in flags]
    if keys_only and count_only:
        raise invalid("query.count_only", "give keys_only or count_only, not both")
    scan = Range(bounds["prefix"], limit, b"", bounds["start"], bounds["end"], reverse, keys_only, count_only)
    token = parameters.get("page_token", b"")
    version = version_of(parameters)
    if token:
        last, of_token = _last_key(token)
        if version and of_token and version != of_token:
            raise invalid("query.version", "the page token is of another version; leave one of them out")
        version = version or of_token
        if not last or not between(last, *range_bounds(scan)):
            raise invalid("query.page_token", "not a next_page_token of a scan with these bounds")
        scan.after, scan.end = (b"", last) if reverse else (last, scan.end)
    return scan, version, freshness_of(parameters, "version" in parameters)


def watch_of(query: str, fields: Mapping[str, str]) -> tuple[Timestamp | None, bytes, bytes]:
    """After which version `GET /v1/watch` asks for changes, None: from now on; and in which keys, as `model.bounds`."""
    parameters = query_of(query, (*_BOUNDS, "from"))
    wanted = DeleteRange(**_bounds_of(parameters))
    last = fields.get("last-event-id", "")
    name, text = ("Last-Event-ID", last) if last else ("query.from", parameters.get("from", b"").decode("latin-1"))
    try:
        return (Timestamp.parse(text) if text else None), *range_bounds(wanted)
    except ValueError:
        raise invalid(name, f"a version, as events have it, not {text[:40]!r}") from None


def deletion_of(query: str) -> DeleteRange:
    """The range that `DELETE /v1/kv` asks for. Who means everything says `prefix=`."""
    parameters = query_of(query, _BOUNDS)
    if not parameters:
        raise invalid("query", "say what to delete by prefix, start or end; an empty prefix is everything")
    return DeleteRange(**_bounds_of(parameters))


def _bounds_of(parameters: Mapping[str, bytes]) -> dict[str, bytes]:
    bounds = {name: parameters.get(name, b"") for name in _BOUNDS}
    bounds["start"] = max(bounds["start"], FIRST_KEY)
    for name, bound in bounds.items():
        if len(bound) > KEY_BYTES_MAX:
            raise invalid(f"query.{name}", f"at most {KEY_BYTES_MAX} bytes, not {len(bound)}")
    return bounds


def _limit(parameters: Mapping[str, bytes]) -> int:
    limit = parameters.get("limit", str(SCAN_LIMIT_DEFAULT).encode())
    if not limit.isdigit() or len(limit) > 9 or not 1 <= int(limit) <= SCAN_LIMIT_MAX:
        raise invalid("query.limit", f"a whole number from 1 to {SCAN_LIMIT_MAX}, not {limit[:30].decode('latin-1')!r}")
    return int(limit)


def _flag(parameters: Mapping[str, bytes], name: str) -> bool:
    text = parameters.get(name, b"false")
    if text not in (b"true", b"false"):
        raise invalid(f"query.{name}", f"true or false, not {text[:30].decode('latin-1')!r}")
    return text == b"true"


def lease_page_of(query: str) -> tuple[bytes, int]:
    """After which lease `GET /v1/leases` lists, empty: from the first one on; and how many."""
    parameters = query_of(query, ("after", "limit"))
    after = parameters.get("after", b"").decode("latin-1")
    try:
        return (codec_lease_of(after) if after else NO_LEASE), _limit(parameters)
    except InvalidTransaction as error:
        raise invalid("query.after", error.problem) from None


def flag_of(query: str, name: str) -> bool:
    """The one parameter that there may be."""
    return _flag(query_of(query, (name,)), name)


def page_token(last_key: bytes, version: Timestamp | None) -> str:
    """Where the page after the one that ends with `last_key` begins, and at which version it is read; None: at a later
    one."""
    token = _LATER_PAGE + last_key if version is None else _SAME_VERSION + version.encode() + last_key
    return base64.urlsafe_b64encode(token).decode().rstrip("=")


def _last_key(token: bytes) -> tuple[bytes, Timestamp | None]:
    """The inverse of `page_token`; an empty key for anything else."""
    try:
        data = base64.b64decode(token + b"=" * (-len(token) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return b"", None
    last, version = data[1:], None
    if data[:1] == _SAME_VERSION and len(last) > 16:
        version, last = Timestamp.decode(last[:16]), last[16:]
    elif data[:1] != _LATER_PAGE:
        return b"", None
    return (last if len(last) <= KEY_BYTES_MAX else b""), version


def form_of(fields: Mapping[str, str]) -> Form:
    """The form of a body that may have any. 415 for another one."""
    form = of_body(fields.get("content-type", ""))
    if form is None:
        raise _unsupported("application/json or application/msgpack", fields)
    return form


def json_only(fields: Mapping[str, str]) -> None:
    """415 for a body of another form."""
    if of_body(fields.get("content-type", "")) is not JSON:
        raise _unsupported("application/json", fields)


def _unsupported(needed: str, fields: Mapping[str, str]) -> Problem:
    told = fields.get("content-type", "")[:60] or "none"
    detail = f"Content-Type: {needed} is needed, not {told!r}"
    return Problem(415, "unsupported_type", detail, field="Content-Type")


def valid(parse: Callable[[bytes], Transaction], body: bytes) -> Transaction:
    """What `parse` makes of the body, within all limits."""
    try:
        transaction = parse(body)
        validate(transaction)
        _check_own(transaction)
    except InvalidTransaction as error:
        raise invalid(error.field, error.problem) from None
    return transaction


def _check_own(part: Any) -> None:
    """Clients name no keys of the store's own, and their ranges begin behind them."""
    if isinstance(part, Transaction | Txn):
        for name in ("compare", "success", "failure"):
            each(name, _check_own, getattr(part, name))
    elif isinstance(part, RANGES):
        part.start = max(part.start, FIRST_KEY)
    elif b"" < getattr(part, "key", b"") < FIRST_KEY:
        raise InvalidTransaction("key", _NOT_A_CLIENTS)
