"""Who asks: the token of a request, and whether its holder may use the route at all (RFC 6750)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kvstore.api.rights import ROOT, id_of, is_token
from kvstore.core.rights import Rights
from kvstore.http.errors import Problem

UNAUTHENTICATED = {"WWW-Authenticate": 'Bearer realm="kvstore"'}


class AccessControl:
    """root: the digest of root's token; empty: nobody needs a token, and everybody may do everything. rights: those
    that this replica knows now."""

    def __init__(self, root: bytes, rights: Callable[[], Rights]):
        self.root = root
        self._rights = rights

    def holder(self, needed: str, fields: Mapping[str, str]) -> str:
        """The id of the token, empty for root's. needed: see `Route.access`. Problem: there is no such token, or it
        may not."""
        if not self.root or needed == "open":
            return ""
        scheme, _, token = fields.get("authorization", "").partition(" ")
        token_id = id_of(token.strip()) if scheme.lower() == "bearer" else ""
        if not token_id:
            detail = "Authorization: a token is needed: Bearer kv-..."
            raise Problem(401, "unauthenticated", detail, field="Authorization", headers=UNAUTHENTICATED)
        rights = self._rights()
        known = None if token_id == ROOT else rights.token(token_id)
        digest = self.root if token_id == ROOT else known.digest if known else bytes(32)
        if not is_token(token, digest):
            detail = "Authorization: this token is not known, or no longer"
            raise Problem(401, "unauthenticated", detail, field="Authorization", headers=UNAUTHENTICATED)
        if token_id == ROOT:
            return ""
        if needed not in ("data", "token") and not rights.allows(token_id, needed):
            raise Problem(403, "forbidden", f"this is for those who may {needed}")
        return token_id
