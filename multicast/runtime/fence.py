"""What peers have vouched for, so that an old copy of a disk is told from the disk.

Theory of operation. A journal has a *life*, the incarnation of the first process that wrote it, and a length, up to
which it is synced. Both stand in every greeting, and the length in every acknowledgement; so a process knows of every
peer how far its journal goes at least. A peer that greets with less has forgotten promises that this process may have
counted, and with an earlier life it is a disk that was replaced: it is refused, and ends.

A process that was restarted is another *incarnation*, and the one before does not come back. If it greets nevertheless,
two run with copies of one journal: the first one is refused, and ends.

This is memory of the living only. What escapes: a copy as long as what was last heard, less than ACK_DELAY_S old; and a
copy that meets nobody who has heard more, for all those have been restarted since, or are away. So an old copy is never
something to start; a disk that was replaced by one counts as lost. What does not escape, for it is no memory: a machine
in whose place another one was put (`Places.since`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from multicast.records import REMEDY
from multicast.types import ProcessId


class Vouched(NamedTuple):
    """What a peer has said of its journal. incarnation: of the process that has said it last."""

    incarnation: int
    life: int
    length: int


def _unheard(peer: ProcessId, place: bytes) -> None:
    pass


class Places(NamedTuple):
    """Machines that have taken the places of others.

    since: peer -> the least life that its journal may have. mine: in whose greeting there is something, that process
    has taken another one's place, or was added, and says where it is reached: whoever was away then has the address of
    that one, or of nobody. told(peer, mine): of such a greeting, which was accepted. met(peer, mine): of one by a
    process that is not known here; it is accepted if there is a link to it afterwards."""

    since: Mapping[ProcessId, int] = {}
    mine: bytes = b""
    told: Callable[[ProcessId, bytes], None] = _unheard
    met: Callable[[ProcessId, bytes], None] = _unheard


NONE_TAKEN = Places()


class Fence:
    """life: of the own journal. length(): up to where it is synced, bytes. since: as in `places`, and since then."""

    def __init__(self, life: int, length: Callable[[], int], places: Places = NONE_TAKEN):
        self.life = life
        self.length = length
        self.places = places
        self.since = dict(places.since)
        self._heard: dict[ProcessId, Vouched] = {}
        self._past: dict[ProcessId, set[int]] = {}

    def refusal(self, peer: ProcessId, said: Vouched) -> str:
        """Why a peer that greets so is refused, and what to do; empty if it is not, and then this is remembered.

        What the same process says on two connections may come in any order: in one incarnation a journal only grows."""
        known, past = self._heard.get(peer), self._past.setdefault(peer, set())
        least = max(known.life if known else 0, self.since.get(peer, 0))
        if said.life < least:
            if said.life in past or (known and said.life == known.life):
                return (
                    f"the journal of process {peer} is of a disk that was lost, and another one has taken its place;"
                    " leave this one off: with --lost-disk it would drive out the other"
                )
            return (
                f"the journal of process {peer} began, by its clock, {(least - said.life) / 1e6:.1f} s before one that"
                " was in its place: if it was begun just now, with --lost-disk, its clock is behind: set that, move its"
                " directory away, and start it so again; else another one has taken its place: leave it off"
            )
        if known and known.life == said.life:
            if known.incarnation == said.incarnation:
                self.vouched(peer, said.length)
                return ""
            if said.incarnation in past:
                return f"two processes run as process {peer}, with copies of one journal: end both; {REMEDY}"
            if said.length < known.length:
                return (
                    f"the journal of process {peer} is an old copy: it has {said.length} bytes, and had vouched for"
                    f" {known.length}; {REMEDY}"
                )
        if known:
            past |= {known.incarnation, known.life}
        self._heard[peer] = said
        return ""

    def vouched(self, peer: ProcessId, length: int) -> None:
        """A peer that was not refused has acknowledged something."""
        known = self._heard[peer]
        if length > known.length:
            self._heard[peer] = known._replace(length=length)
