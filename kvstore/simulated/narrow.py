"""Limits of the store at their least, for a run. A few clients with small values never come to bundles that are full,
ranges that end early, results that are too large to be told or remembered, and turns that are over: what is done there
takes place in no other run. All replicas of a run have the same ones."""

from __future__ import annotations

import random
from contextlib import AbstractContextManager

from kvstore.core import (
    bundler,
    clients,
    collects,
    execution,
    leases,
    messages,
    moves,
    reads,
    replica,
    signals,
    versions,
    watches,
)
from kvstore.storage import history, store
from multicast.simulation.narrow import Limit, Places, narrowed, places

_SMALL = 1_000
"""Less than a limit usually is, and more than at its least."""
_RANGES = (*places("RANGE_BYTES_MAX", store, versions, moves), (history, "LOOKED_BYTES"))
_TOLD = places("RESULT_BYTES_MAX", execution, versions)
_KEPT = places("RESULT_BYTES_KEPT", clients, replica)
_LIMITS: tuple[Limit, ...] = (
    (_RANGES, (1, 30, 200)),
    (_TOLD, (1, 30, 200)),
    (_KEPT, (1, 100, 200)),
    (places("BUNDLE_RESULT_BYTES_MAX", replica), (1, 100)),
    (places("RESULT_BYTES_MAX", messages), (1, 200)),
    (places("READS_KEPT", clients), (1, 3)),
    (places("FULL_TRANSACTIONS", bundler), (1, 2, 5)),
    (places("FULL_BYTES", bundler), (1, 300)),
    (places("APPENDS_MAX", bundler), (1, 3)),
    (places("PASSED_MAX", bundler), (0, 1)),
    (places("EARLY_MANY", signals), (0, 3)),
    (places("EARLY_MAX", signals), (2, 10)),
    (places("PULL_MAX", signals), (1, 3)),
    (places("TURN_BYTES", reads), (1, 100)),
    (places("UNDER_WAY_MIN", collects), (1, 2)),
    (places("UNDER_WAY_BYTES", collects), (1, 300)),
    (places("ASKED_AT_ONCE", versions), (1, 2)),
    (places("LOOKS_MAX", versions), (1,)),
    (places("REVOKED_AT_ONCE", leases), (1, 2)),
    (places("_STALE_MAX", leases), (0, 2)),
    (places("ANSWER_BYTES", watches), (1, 500)),
    (places("_LOOKED_MAX", watches), (1, 4)),
    (places("DIRTY_PORTIONS", moves), (1, 2)),
)


def of_seed(protocol: str, seed: int) -> AbstractContextManager[None]:
    """In what the run of this seed is made."""
    return narrowed(_LIMITS, random.Random(f"{protocol}/{seed}/store limits"))


def tells_all() -> bool:
    """Whether replicas tell and remember all results of clients with small values, as they usually do."""
    return _are_usual(_KEPT, _TOLD)


def reads_all() -> bool:
    """Whether ranges of them are told as far as they were asked for."""
    return _are_usual(_RANGES)


def _are_usual(*limits: Places) -> bool:
    return all(getattr(module, name) > _SMALL for limit in limits for module, name in limit)
