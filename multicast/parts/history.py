"""What a snapshot holds of a protocol's state: delivered ids, the group's views, and what was delivered and is not
settled.

`multicast.snapshot` says why this is all of it. Nothing here is known to one process alone: no promise, no ballot, no
stamp of what is not delivered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Generic, Protocol, TypeVar

from multicast.parts.delivered import KNOWN_PREFIX, LAST_KEY, DeliveredLog, delivered_at
from multicast.types import MessageId, Timestamp


class Entry(Protocol):
    """A message that is not settled. position: of its delivery here, 0 before."""

    position: int


E = TypeVar("E", bound=Entry)
Views = Callable[[int], Iterable[tuple[bytes, bytes]]]


class History(Generic[E]):
    """See `multicast.protocol.History`. entries: all that are not settled, kept under `prefix` + id. encode(entry): the
    value under which a process puts one that was delivered, alike at all. views(position): what was put of the group's
    views up to that delivery. is_later(value, delivered): whether an entry that was put is a copy which was stamped
    when that delivery was forgotten (parts.delivered)."""

    def __init__(
        self,
        log: DeliveredLog,
        entries: Mapping[MessageId, E],
        prefix: bytes,
        encode: Callable[[E], bytes],
        views: Views,
        is_later: Callable[[bytes, Timestamp], bool],
    ):
        self._log = log
        self._views = views
        self._entries = entries
        self._prefix = prefix
        self._encode = encode
        self._is_later = is_later

    def given(self, position: int, timestamp: Timestamp) -> Iterable[tuple[bytes, bytes]]:
        views, entries = list(self._views(position)), list(self._entries.items())
        yield from self._log.given(position, timestamp)
        yield from views
        for message_id, entry in entries:
            if 0 < entry.position <= position:
                yield self._prefix + message_id, self._encode(entry)

    def taken(
        self, own: Mapping[bytes, bytes], given: Mapping[bytes, bytes], position: int, timestamp: Timestamp
    ) -> Mapping[bytes, bytes | None]:
        """The values of this process when it takes a snapshot: a message that was accepted here and delivered there is
        as it is there; a later start sees by its id that it was delivered. What was delivered here after `position`
        stays, and so does a later copy."""
        later = {
            key for key, value in own.items()
            if key[:1] in (KNOWN_PREFIX, LAST_KEY) and delivered_at(value)[1] > position
        }  # fmt: skip
        taken = {k: value for k, value in given.items() if k not in later and KNOWN_PREFIX + k[1:] not in later}
        for key in [key for key in taken if key[:1] == self._prefix and key in own]:
            known = given.get(KNOWN_PREFIX + key[1:])
            if known is not None and self._is_later(own[key], delivered_at(known)[0]):
                del taken[key]
        return taken
