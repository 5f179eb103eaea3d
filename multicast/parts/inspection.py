"""What `MulticastProtocol.inspect` says of a message, in the same words for every protocol. JSON-ready, no nulls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from multicast.types import Timestamp

SUBMITTED, DELIVERED = "submitted", "delivered"
"""Phases that every protocol has: multicast by this process, and not known to be delivered; delivered here."""


def seen(
    phase: str,
    local: Timestamp | None = None,
    final: Timestamp | None = None,
    blocked_by: Iterable[Mapping[str, Any]] = (),
    stamps: Mapping[Any, Any] | None = None,
    **more: Any,
) -> dict[str, Any]:
    """One message. local: the own group's stamp. stamps: those of all groups, as known here. What is None or empty is
    left out.

    blocked_by: what must happen first, each in one of these forms: {"message": id, "at": timestamp}: this message,
    proposed or committed at that timestamp, must be delivered, or committed above; {"clock": which, "at": time}: that
    clock, now at `at`, must reach the final timestamp; {"group": g, "barrier": stamp}: group g has promised up to there
    only; {"process": p}: p must be heard; {"leader": p}: p must say so.
    """
    found: dict[str, Any] = {"phase": phase}
    if local is not None:
        found["local"] = list(local)
    if final is not None:
        found["final"] = list(final)
    if blocked_by:
        found["blocked_by"] = list(blocked_by)
    if stamps:
        found["stamps"] = {str(g): list(t) if isinstance(t, tuple) else t for g, t in sorted(stamps.items())}
    for key, value in more.items():
        if value is not None and value != []:
            found[key] = value
    return found
