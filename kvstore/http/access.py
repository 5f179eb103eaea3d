"""Who asks: the token of a request, and whether its holder may use the route at all (RFC 6750); and who is asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kvstore.api.cluster import ClusterJson
from kvstore.api.rights import ROOT, id_of, is_token
from kvstore.core.rights import Rights
from kvstore.http.calls import Call
from kvstore.http.errors import Problem, outcome_for

UNAUTHENTICATED = {"WWW-Authenticate": 'Bearer realm="kvstore"'}


class AccessControl:
    """root: the digest of root's token; empty: nobody needs a token, and everybody may do everything. rights: those
    that this replica knows now. describe: see `Node.describe_cluster`."""

    def __init__(self, root: bytes, rights: Callable[[], Rights], describe: Callable[[], ClusterJson]):
        self.root = root
        self._rights = rights
        self._describe = describe
        self._cluster_id = ""

    def check_cluster(self, call: Call) -> None:
        """Problem: the request is for another cluster, `Kv-Cluster`, which was at this address once."""
        asked = call.head.fields.values.get("kv-cluster")
        if asked is not None and asked != self._cluster_id:
            self._cluster_id = self._cluster_id or self._describe().cluster_id  # once: it says much more
            if asked != self._cluster_id:
                detail = f"Kv-Cluster: this is a replica of cluster {self._cluster_id}, not of {asked[:40]}"
                raise Problem(421, "other_cluster", detail, retryable=True, field="Kv-Cluster")

    def name_of(self, token_id: str) -> str:
        """The name of the token's holder, or the token's id, if it was deleted meanwhile."""
        known = None if token_id in ("", ROOT) else self._rights().token(token_id)
        return known.name if known else token_id

    def admits(self, call: Call, needed: str, last: bool = False) -> bool:
        """Whether the holder of the call's token may use a route that needs this right (`Route.access`). False: not by
        what this replica knows, which may be old. Problem: he may not. last: what the replica knows is new enough."""
        token_id, token = _token_of(call.head.fields.values)
        rights = self._rights()
        known = None if token_id == ROOT else rights.token(token_id)
        if known is None and token_id != ROOT and not last:
            return False
        if not is_token(token, self.root if token_id == ROOT else known.digest if known else bytes(32)):
            raise _unauthenticated("this token is not known, or no longer", call.head.fields.values)
        call.holder, call.by = token_id, "" if token_id == ROOT else token_id
        if not call.by or needed in ("data", "token") or rights.allows(token_id, needed):
            return True
        if last:
            outcome = outcome_for(call.head.fields.values)
            raise Problem(403, "forbidden", f"this is for those who may {needed}", outcome=outcome)
        return False

    def observes(self, token_id: str) -> bool:
        """Whether the holder is told how the replica is. Empty id: no tokens are wanted, and everybody is told."""
        return not token_id or any([self._rights().allows(token_id, access) for access in ("monitor", "admin")])


def _token_of(fields: Mapping[str, str]) -> tuple[str, str]:
    """The token's id, and the token. Problem: there is none."""
    scheme, _, token = fields.get("authorization", "").partition(" ")
    token_id = id_of(token.strip()) if scheme.lower() == "bearer" else ""
    if not token_id:
        raise _unauthenticated("a token is needed: Bearer kv-...", fields)
    return token_id, token.strip()


def _unauthenticated(why: str, fields: Mapping[str, str]) -> Problem:
    detail, outcome = f"Authorization: {why}", outcome_for(fields)
    return Problem(
        401, "unauthenticated", detail, field="Authorization", headers=UNAUTHENTICATED, outcome=outcome
    )  # fmt: skip
