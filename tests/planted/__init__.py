"""Bugs planted in the protocols, each a small, named class that overrides a method or two.

One module per protocol (or per part that protocols share, like `paxos`); its `PLANTED` lists the bugs. The simulator
must find each within `SEEDS_MAX` seeds: `python -m multicast.simulation mutants` counts them, and
tests/simulation/test_mutants.py demands it. A bug that needs a staged schedule is a test in tests/multicast.
"""

from __future__ import annotations

from typing import NamedTuple

from multicast.protocol import MulticastProtocol
from multicast.simulation.runner import Settings

SEEDS_MAX = 200
FAULTS = Settings(profile="faults")


class Planted(NamedTuple):
    """A bug. first_seed: a seed that found it when that was last counted; tests begin there, to be quick. shows: which
    line or erratum of the paper it stands for, if any."""

    protocol: type[MulticastProtocol]
    settings: Settings = FAULTS
    first_seed: int = 0
    shows: str = ""
