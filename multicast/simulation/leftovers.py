"""What a process keeps though everything has long been done: what nobody may need any more, and what it still asks for.

A leak does no harm in a short run. Like in `invariants`, variables of protocols are known by name only.
"""

from __future__ import annotations

from multicast.protocol import MulticastProtocol

_LEFT = ("pending", "submitted", "entries", "outgoing", "unsettled")
"""Of `MulticastProtocol.describe`: what a process keeps only as long as somebody may need it."""
_ASKS = ("_retries", "_payloads")


def kept(protocol: MulticastProtocol) -> dict[str, int]:
    """How much of what -> number, where it is not 0. questions: keys of `parts.retries` that wait for an answer."""
    told, parts = protocol.describe(), vars(protocol)
    found = {name: told.get(name, 0) for name in _LEFT}
    found["questions"] = sum(len(getattr(parts[name], "_retries", parts[name])) for name in _ASKS if name in parts)
    return {name: number for name, number in found.items() if number}
