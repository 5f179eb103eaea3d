"""Bugs planted in the reads of protocols in which members deliver by themselves, or a deposed leader may go on: each
lets a leader answer with a position that is too old."""

from __future__ import annotations

from kvstore.simulated.settings import Settings
from multicast.parts.epoch_reads import EpochReads
from multicast.parts.reign_reads import ReignReads
from multicast.protocols.fastcast import FastCast
from multicast.protocols.ft_skeen import FtSkeen
from multicast.protocols.primcast import PrimCast
from multicast.protocols.skeen import Skeen
from tests.planted import Planted, small
from tests.planted import store as planted_store
from tests.planted.rewriting import rewrite

_QUORUM = "has_quorum(rounds[0].ballot, rounds[0].members)"
_BACKLOG = "known = position if not backlog else None"


@rewrite("_answer", _QUORUM, "True", part="_reads")
class FastCastAsksNobody(FastCast):
    """A leader takes its own word for it that it leads."""


@rewrite("_last", "and not taken_over", "", part="_reads")
class FastCastTakesOverUnseen(FastCast):
    """A new leader answers before it has delivered what it took over, and what a deposed one may have delivered."""


@rewrite("_begin", _BACKLOG, "known = position", part="_reads")
class FastCastOwnPosition(FastCast):
    """Where members deliver by the log, a leader answers with what it has delivered itself."""


@rewrite("_answer", _QUORUM, "True", part="_reads")
class FtSkeenAsksNobody(FtSkeen):
    """A leader takes its own word for it that it leads."""


@rewrite("_begin", _BACKLOG, "known = position", part="_reads")
class FtSkeenOwnPosition(FtSkeen):
    """Where members deliver by the log, a leader answers with what it has delivered itself."""


@rewrite("_answer", _QUORUM, "True", part="_reads")
class PrimCastAsksNobody(PrimCast):
    """A primary takes its own word for it that it leads."""


@rewrite("_begin", _BACKLOG, "known = position", part="_reads")
class PrimCastOwnPosition(PrimCast):
    """A primary answers with what it has delivered itself, though others may have delivered more of its T."""


@rewrite("_last", "if self._delivered.position >= self._t.reach else None", "", part="_reads")
class PrimCastReachNotAwaited(PrimCast):
    """A primary answers before it has delivered what its T lacks, since it is settled. (It harms nobody: a candidate
    has all that any of its voters has delivered before it computes T.)"""


@rewrite("on_read", "if not restored else None", "")
class SkeenForgetsDeliveries(Skeen):
    """A process answers with what its disk says that it has delivered, though it may have delivered more in an earlier
    life."""


HARMLESS = (Planted(PrimCastReachNotAwaited),)
PLANTED = (
    *map(Planted, (FastCastAsksNobody, FastCastTakesOverUnseen, FtSkeenAsksNobody, PrimCastAsksNobody,
                   PrimCastOwnPosition, SkeenForgetsDeliveries)),
    *(Planted(bug, small(early_clock="true")) for bug in (FastCastOwnPosition, FtSkeenOwnPosition)),
)  # fmt: skip


# -- the same in the store --------------------------------------------------------------------------------------------


@rewrite("_begin", _BACKLOG, "known = position")
class ReignOwnPosition(ReignReads):
    """Where members deliver by the log, a leader answers with what it has delivered itself."""


@rewrite("_begin", _BACKLOG, "known = position")
class SequenceOwnPosition(EpochReads):
    """A primary answers with what it has delivered itself, though others may have delivered more of its T."""


def _settings(protocol: str, **options: str) -> Settings:
    return Settings(protocol=protocol, size="small", shards=2, reads=True, options=options)


PLANTED_IN_STORE = (
    planted_store.Planted(
        "fastcast_own_position", "", core=ReignOwnPosition, settings=_settings("fastcast", early_clock="true")
    ),
    planted_store.Planted("primcast_own_position", "", core=SequenceOwnPosition, settings=_settings("primcast")),
)
