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

    def name_of(self, token_id: str) -> str:
        """Whose token it is, or its id, if it was taken back meanwhile."""
        known = None if token_id in ("", ROOT) else self._rights().token(token_id)
        return known.name if known else token_id

    def holder(self, fields: Mapping[str, str]) -> str:
        """The id of the token. Problem: there is no such token."""
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
        return token_id

    def check(self, token_id: str, needed: str) -> None:
        """needed: see `Route.access`. Problem: its holder may not use such a route at all."""
        if token_id != ROOT and needed not in ("data", "token") and not self._rights().allows(token_id, needed):
            raise Problem(403, "forbidden", f"this is for those who may {needed}")
