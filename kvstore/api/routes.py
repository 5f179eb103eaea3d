"""The routes of the HTTP interface: one table, by which requests are dispatched and the interface describes itself.

`GET` stands for `HEAD`, too, and every path answers `OPTIONS`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from kvstore.api import answers, codec, rights
from kvstore.api.cluster import ClusterJson, FoundingJson, LimitsJson, MembersJson, ShardsJson
from kvstore.api.forms import JSON, MSGPACK
from kvstore.api.model import AGE_MS_MAX, CONSISTENCIES, KEY_BYTES_MAX, SCAN_LIMIT_DEFAULT, SCAN_LIMIT_MAX
from kvstore.api.rights import NAME

BYTES = bytes
"""A body of any bytes: a value."""
HTML = "html"
"""A page."""
EVENTS = "events"
"""Server-sent events, see `kvstore.api.events`."""


class Parameter(NamedTuple):
    """place: "path", "query" or "header". schema: JSON Schema."""

    name: str
    place: str
    schema: dict[str, Any]
    text: str


class Route(NamedTuple):
    """name: of the operation. body, answer: a type of JSON, or several, BYTES, HTML, str for plain text, or None.
    statuses, problems: of success and of failure."""

    method: str
    path: str
    name: str
    text: str
    parameters: tuple[Parameter, ...] = ()
    body: Any = None
    answer: Any = None
    statuses: tuple[int, ...] = (200,)
    problems: tuple[int, ...] = ()

    @property
    def access(self) -> str:
        """Who may use it, where tokens are needed: "open" to all, any holder of a "token", "data" if he may do that
        with those keys, or those who may "monitor" or "admin"."""
        return _ACCESS.get(self.name, "admin")

    @property
    def media_types(self) -> tuple[str, ...]:
        """Of its bodies, if they are objects."""
        packed = self.access in ("data", "lease")
        return (JSON.media_type, MSGPACK.media_type) if packed else (JSON.media_type,)

    @property
    def place(self) -> str:
        """The path without what it names."""
        before, _, after = self.path.partition("{")
        return before + after.partition("}")[2]


_STRING = {"type": "string"}
_HEX = "[0-9A-Fa-f]"
_UUID7 = {
    "type": "string", "format": "uuid",
    "pattern": f"^{_HEX}{{8}}-{_HEX}{{4}}-7{_HEX}{{3}}-[89ABab]{_HEX}{{3}}-{_HEX}{{12}}$",
}  # fmt: skip
_HEX_KEY = {"type": "string", "pattern": f"^({_HEX}{{2}})*$"}
_WORD = "(0|[1-9a-f][0-9a-f]{0,15})"
_VERSION_TEXT = f"{_WORD}-{_WORD}"
_VERSION_SCHEMA = {"type": "string", "pattern": f"^{_VERSION_TEXT}$"}
_ETAG = f'"{_VERSION_TEXT}"'
_NAME_SCHEMA = {"type": "string", "pattern": f"^{NAME.pattern}$"}
_LIMIT = {"type": "integer", "minimum": 1, "maximum": SCAN_LIMIT_MAX, "default": SCAN_LIMIT_DEFAULT}
_FLAG = {"type": "boolean", "default": False}
_KEY = Parameter("key", "path", {"type": "string", "minLength": 1, "maxLength": KEY_BYTES_MAX}, "Any bytes, escaped.")
_ID_SCHEMA = {"type": "string", "format": "uuid"}
_ID = Parameter("Idempotency-Key", "header", _UUID7, "The write's id, a UUIDv7; repetitions have no effect.")
_NAME = Parameter("name", "path", _NAME_SCHEMA, "Of the role.")
_IF_MATCH = Parameter(
    "If-Match", "header", {"type": "string", "pattern": rf"^(\*|{_ETAG})$"}, "The ETag that the key must have, or *."
)
_IF_NONE_MATCH = Parameter(
    "If-None-Match", "header", {"type": "string", "pattern": rf"^(\*|{_ETAG}(, ?{_ETAG})*)$"},
    "ETags that the key must not have, or *.",
)  # fmt: skip
_LEASE = Parameter("Kv-Lease", "header", _ID_SCHEMA, "The id of a lease: the key goes when that goes.")
_LEASE_ID = Parameter("id", "path", _ID_SCHEMA, "Of a lease, as its grant told it.")
_TIMEOUT = Parameter(
    "X-Timeout-Ms", "header", {"type": "integer", "minimum": 1, "maximum": LimitsJson().timeout_max_ms},
    "Milliseconds until it is answered; the most is among the limits.",
)  # fmt: skip
OF_ALL = (
    Parameter("Kv-Cluster", "header", {"type": "string"}, "Of the cluster that it is for; others refuse."),
    Parameter("X-Request-Id", "header", {"type": "string"}, "What the log, and a problem, shall call it."),
)
"""Every route knows these."""
_BOUNDS = tuple(
    Parameter(name, "query", {"type": "string", "maxLength": KEY_BYTES_MAX}, text)
    for name, text in (
        ("prefix", "Keys that begin with this."),
        ("start", "Keys from this one on."),
        ("end", "Keys before this one."),
    )
)
_VERSION = Parameter("version", "query", _VERSION_SCHEMA, "What stood there then: a version, as ETags have it.")
_FRESHNESS = (
    Parameter(
        "consistency",
        "query",
        {"type": "string", "enum": list(CONSISTENCIES), "default": "linearizable"},
        "What it may miss: nothing that was answered before it was asked; anything, if it is one state; or what was "
        "answered less than max_age_ms before it was asked.",
    ),
    Parameter("max_age_ms", "query", {"type": "integer", "minimum": 0, "maximum": AGE_MS_MAX}, "Of a stale read."),
)
_SCAN = (
    *_BOUNDS,
    Parameter("reverse", "query", _FLAG, "From the last key to the first."),
    Parameter("keys_only", "query", _FLAG, "Without values."),
    Parameter("count_only", "query", _FLAG, "How many there are."),
    Parameter("limit", "query", _LIMIT, "Of one page."),
    Parameter("page_token", "query", _STRING, "The next_page_token of the page before, of the same range."),
    _VERSION,
    *_FRESHNESS,
)

_ACCESS = {
    **dict.fromkeys(("get", "put", "delete", "scan", "delete_range", "txn", "watch"), "data"),
    **dict.fromkeys(("grant_lease", "lease", "renew_lease", "revoke_lease"), "lease"),
    **dict.fromkeys(("outcome", "cluster", "members", "shards", "limits", "openapi"), "token"),
    **dict.fromkeys(("livez", "readyz", "founding", "docs"), "open"),
    "metrics": "monitor",
}

READ = (400, 500, 503, 504)
WRITE = (*READ, 408, 409, 413, 415, 422, 507)

ROUTES: tuple[Route, ...] = (
    Route("GET", "/v1/kv/{key}", "get", "A value; its version is the ETag.",
          (_KEY, _VERSION, *_FRESHNESS, _IF_MATCH, _IF_NONE_MATCH, _TIMEOUT),
          None, BYTES, (200, 304), (*READ, 404, 410, 412)),
    Route("PUT", "/v1/kv/{key}", "put", "Write a value.", (_KEY, _IF_MATCH, _IF_NONE_MATCH, _LEASE, _ID, _TIMEOUT),
          BYTES, answers.WriteAnswer, (200, 201), (*WRITE, 412)),
    Route("DELETE", "/v1/kv/{key}", "delete", "Delete a key.", (_KEY, _IF_MATCH, _IF_NONE_MATCH, _ID, _TIMEOUT),
          None, answers.WriteAnswer, (200,), (*WRITE, 412)),
    Route("GET", "/v1/kv", "scan", "A page of a range, or how many keys it has.", (*_SCAN, _TIMEOUT),
          None, (answers.PageAnswer, answers.CountAnswer), (200,), (*READ, 410)),
    Route("DELETE", "/v1/kv", "delete_range", "Delete a range at one instant.", (*_BOUNDS, _ID, _TIMEOUT),
          None, answers.WriteAnswer, (200,), WRITE),
    Route("POST", "/v1/txn", "txn", "Compare, then success or failure, atomically.", (*_FRESHNESS, _ID, _TIMEOUT),
          codec.TransactionJson, answers.TransactionAnswer, (200,), WRITE),
    Route("GET", "/v1/txn/{id}", "outcome", "What became of a write, while it is remembered.",
          (Parameter("id", "path", _UUID7, "Of the write."), _TIMEOUT), None, answers.Outcome, (200,), (*READ, 404)),
    Route("GET", "/v1/watch", "watch", "Every change from now on, or after a version, in the order of versions.",
          (*_BOUNDS, Parameter("from", "query", _VERSION_SCHEMA, "What follows this version; absent: from now on."),
           Parameter("Last-Event-ID", "header", _VERSION_SCHEMA, "The same, of who connects again; it counts.")),
          None, EVENTS, (200,), (*READ, 410)),
    Route("POST", "/v1/leases", "grant_lease", "A lease: keys that are attached to it go when it expires.",
          (_ID, _TIMEOUT), codec.LeaseJson, answers.LeaseAnswer, (201,), WRITE),
    Route("GET", "/v1/leases", "list_leases", "All leases, in the order of their ids, which is that of their grants.",
          (Parameter("limit", "query", _LIMIT, "Of one answer."),
           Parameter("after", "query", _ID_SCHEMA, "The last id of the answer before."), _TIMEOUT),
          None, answers.LeasesAnswer, (200,), READ),
    Route("GET", "/v1/leases/{id}", "lease", "A lease, and how long it lives yet.",
          (_LEASE_ID, Parameter("keys", "query", _FLAG, "Also the first thousand keys attached to it."), _TIMEOUT),
          None, answers.LeaseAnswer, (200,), (*READ, 404)),
    Route("POST", "/v1/leases/{id}/renew", "renew_lease", "The lease begins anew.", (_LEASE_ID, _ID, _TIMEOUT),
          None, answers.LeaseAnswer, (200,), (*WRITE, 404)),
    Route("DELETE", "/v1/leases/{id}", "revoke_lease", "The lease goes, and with it all keys that are attached to it.",
          (_LEASE_ID, _TIMEOUT), None, answers.WriteAnswer, (200,), (*WRITE, 404)),
    Route("POST", "/v1/backups", "make_cut", "A cut for a backup.", (_ID, _TIMEOUT),
          None, answers.CutAnswer, (200,), WRITE),
    Route("GET", "/v1/backups/{version}", "cut_rows", "Rows of this shard at a cut, framed.",
          (Parameter("version", "path", _VERSION_SCHEMA, "Of the cut."),
           Parameter("after", "query", _HEX_KEY, "A key in hexadecimal, the last of the rows before."),
           Parameter("at", "query", _VERSION_SCHEMA, "An earlier version: the rows as they were then.")),
          None, BYTES, (200,), (*READ, 404, 410)),
    Route("POST", "/v1/moves", "move", "A step of moving slots to another shard.", (_ID, _TIMEOUT),
          codec.MoveJson, answers.MoveAnswer, (200,), WRITE),
    Route("POST", "/v1/replaced", "replaced", "A replica that takes the place of the one with its id.", (_TIMEOUT,),
          dict[str, Any], dict[str, Any], (200,), WRITE),
    Route("GET", "/v1/admin/rights", "list_rights", "All roles and tokens.", (), None, rights.RightsJson, (200,),
          (503, 504)),
    Route("PUT", "/v1/admin/roles/{name}", "put_role", "What the holders of a role may do.", (_NAME, _ID, _TIMEOUT),
          rights.RoleJson, dict[str, str], (200,), WRITE),
    Route("DELETE", "/v1/admin/roles/{name}", "delete_role", "Take a role from all.", (_NAME, _ID, _TIMEOUT),
          None, dict[str, str], (200,), (*WRITE, 404)),
    Route("POST", "/v1/admin/tokens", "make_token", "A token, which is told once.", (_ID, _TIMEOUT),
          rights.TokenJson, rights.MadeToken, (200,), WRITE),
    Route("DELETE", "/v1/admin/tokens/{id}", "delete_token", "Take a token back.",
          (Parameter("id", "path", _NAME_SCHEMA, "Of the token."), _ID, _TIMEOUT), None, dict[str, str], (200,),
          (*WRITE, 404)),
    Route("GET", "/v1/cluster", "cluster", "The cluster, and this replica.", (), None, ClusterJson),
    Route("GET", "/v1/cluster/members", "members", "The replicas.", (), None, MembersJson),
    Route("POST", "/v1/cluster/members", "change_members", "A replica that shall belong to this one's shard, or not.",
          (_TIMEOUT,), dict[str, Any], dict[str, bool], (200,), WRITE),
    Route("GET", "/v1/cluster/shards", "shards", "The shards, their leaders, and which keys are whose.", (), None,
          ShardsJson),
    Route("GET", "/v1/limits", "limits", "Of requests.", (), None, LimitsJson),
    Route("GET", "/v1/openapi.json", "openapi", "This document.", (), None, dict[str, Any]),
    Route("GET", "/v1/docs", "docs", "This document as a page for people.", (), None, HTML),
    Route("GET", "/v1/founding", "founding", "Whether this replica has begun, for those that begin.", (), None,
          FoundingJson),
    Route("GET", "/livez", "livez", "Whether this replica lives.", (), None, str, (200,), (503,)),
    Route("GET", "/readyz", "readyz", "Whether it serves.", (), None, str, (200,), (503,)),
    Route("GET", "/metrics", "metrics", "Prometheus.", (), None, str),
)  # fmt: skip
