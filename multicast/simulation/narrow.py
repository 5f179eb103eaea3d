"""Limits that few small messages never meet, at their least for a run: how much is asked for at once, told in one
answer, sent again, kept of what comes too early or is counted. What is done at them takes place in no other run. All
processes of a run have the same ones. (Options and what the network allows are a matter of `drawing`.)"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from types import ModuleType

from multicast.parts import barriers, casts, group_clocks, learner, paxos, retries, submissions
from multicast.simulation import drawing

_SHARE = 0.06
"""Of the runs in small worlds."""

Places = tuple[tuple[ModuleType, str], ...]
"""Where one limit stands: modules, and its name there."""
Limit = tuple[Places, tuple[int, ...]]
"""Where it stands, and what it may be."""


def places(name: str, *modules: ModuleType) -> Places:
    """One limit that stands under this name in these modules."""
    return tuple((module, name) for module in modules)


_LIMITS: tuple[Limit, ...] = (
    (places("IDS_MAX", retries, submissions), (1, 3)),
    (places("RESENT_BYTES", retries, submissions), (1, 100)),
    (places("WINDOW_MIN", retries), (1, 3)),
    (places("WINDOW_MAX", retries), (3, 8)),
    (places("_RESENT_MIN", paxos), (1, 2)),
    (places("_RESENT_MAX", paxos), (2, 4)),
    (places("_BATCH_BYTES", paxos), (1, 100)),
    (places("_WANTS_MAX", barriers), (1, 2)),
    (places("_WINDOW_MIN", casts), (1,)),
    (places("_WINDOW_MAX", casts), (1, 3)),
    (places("_INSTANCES_MAX", learner), (2, 6)),
    (places("_FUTURE_MAX", group_clocks), (1, 2)),
)


@contextmanager
def narrowed(limits: Sequence[Limit], lot: random.Random) -> Iterator[None]:
    """Half of these limits are at their least, as drawn. Within it a world is made, and runs."""
    with ExitStack() as stack:
        for where, least in limits:
            drawn, value = lot.random() < 0.5, lot.choice(least)
            for module, name in where if drawn else ():
                stack.callback(setattr, module, name, getattr(module, name))
                setattr(module, name, value)
        yield


def of_seed(protocol: str, seed: int, profile: str, size: str | None) -> AbstractContextManager[None]:
    """In what the run of this seed is made. profile, size: see `runner.Settings`."""
    lot = random.Random(f"{protocol}/{seed}/narrow")
    if profile != "faults" or drawing.size(protocol, seed, size) is drawing.LARGE or lot.random() >= _SHARE:
        return nullcontext()
    return narrowed(_LIMITS, lot)
