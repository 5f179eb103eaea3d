"""Bugs planted in the protocols and what they stand on: each a small, named class whose docstring says what is wrong.

One module per protocol (or per part that protocols share, like `paxos`, or for the `host`); its `PLANTED` lists the
bugs. Two ways to plant one: override a method, or `rewrite` a few words of it:

    @rewrite("send_vote", "out.send_durable(", "out.send(", part="election")
    class VoteBeforeSync(WhiteBox):
        \"\"\"A vote leaves before the promise is on disk.\"\"\"

The simulator must find each within `SEEDS_MAX` seeds: `python -m multicast.simulation mutants` counts them, and
tests/simulation/test_mutants.py demands it. That begins with the cheapest seed that is known, from `first_seeds.json`;
when draws or protocols have changed, `python -m tests.planted` looks for them anew. A `null` there is a bug that no
search has found yet: the test bed lacks eyes for it. A name there is that of a test which finds it
(`tests.planted.in_place`): of a rule of one part, whose harm takes an unlikely schedule. What was planted and does no
harm is no bug: `HARMLESS` in its module lists it, and its docstring says why. A bug that needs a staged schedule is a
test in tests/multicast.

`dear.json` lists the bugs that only the full run looks for, as they take long to find, each with a cheaper one of the
same protocol that the same check finds: by default that shows that the check sees.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import msgspec

import multicast.checkpoint
import multicast.engine
import multicast.journal
import multicast.simulation.dropping
from multicast.protocol import MulticastProtocol
from multicast.simulation import scene, world
from multicast.simulation.runner import Outcome, Settings
from multicast.simulation.worlds import run_seed

SEEDS_MAX = 2_000
SEEDS_FILE = Path(__file__).with_name("first_seeds.json")
FAULTS = Settings(profile="faults")


def small(**options: str) -> Settings:
    """A small world with faults, and these options of the protocol."""
    return Settings(profile="faults", size="small", options=options)


SMALL = small()

LIKE_FILE = Path(__file__).with_name("dear.json")
LIKE: dict[str, str] = json.loads(LIKE_FILE.read_text()) if LIKE_FILE.exists() else {}
"""Bugs that take long to find -> a cheap one of the same protocol, which the same check finds."""
FIRST_SEEDS: dict[str, int | str | None] = json.loads(SEEDS_FILE.read_text()) if SEEDS_FILE.exists() else {}
_MODULES = {
    "CatchUp": multicast.engine, "Recorder": multicast.engine, "Lanes": multicast.engine, "Engine": world,
    "Journal": scene, "Sender": scene, "Receiver": scene, "Reader": multicast.journal,
    "Retention": multicast.simulation.dropping, "Survey": multicast.journal, "Checkpoints": world,
    "Checkpoint": multicast.checkpoint,
}  # fmt: skip


def known_seed(key: str) -> int | None:
    """One that finds the bug of this key, or 0 if none was looked for; None if none was found."""
    seed = FIRST_SEEDS.get(key, 0)
    return seed if isinstance(seed, int) else None


def planted_in(module: str, harmless: Sequence[Planted] = ()) -> tuple[Planted, ...]:
    """All protocols that this module defines, in small worlds, but for those that do no harm."""
    kinds = [k for k in vars(sys.modules[module]).values() if isinstance(k, type) and k.__module__ == module]
    known = {one.protocol for one in harmless}
    return tuple(Planted(k) for k in kinds if issubclass(k, MulticastProtocol) and k not in known)


class _Found(Exception):
    """Enough is known."""


def _report_and_stop(self: world.World, checker: str, text: str) -> None:
    self.violations.append((checker, text))
    if len(self.violations) == 1 and checker != "exception":
        raise _Found


class Planted(NamedTuple):
    """A bug. shows: which line or erratum of the paper it stands for, if any. host: classes that take the place of the
    host's of which they are subclasses: engine, journal, ends of links."""

    protocol: type[MulticastProtocol]
    settings: Settings = SMALL
    shows: str = ""
    host: tuple[type, ...] = ()

    @property
    def kind(self) -> type:
        """The class that the bug is in."""
        return (self.host or (self.protocol,))[0]

    @property
    def name(self) -> str:
        return self.kind.__name__

    @property
    def about(self) -> str:
        """What it does."""
        return self.kind.__doc__ or ""

    @property
    def key(self) -> str:
        """By what `first_seeds.json` knows it."""
        return f"{self.kind.__module__.rpartition('.')[2]}.{self.name}"

    @property
    def first_seed(self) -> int:
        """One that found it when that was last counted; tests begin there, to be quick."""
        return known_seed(self.key) or 0

    @property
    def elusive(self) -> bool:
        """Whether no search has found it yet."""
        return known_seed(self.key) is None

    def run(self, seed: int, size: str | None = None) -> Outcome:
        """One seed, with the bug, up to the first violation. size: of the run, if not what the settings say."""
        settings = self.settings if size is None else msgspec.structs.replace(self.settings, size=size)
        misplaced = getattr(self.kind, "misplaced", None)
        if misplaced is not None:
            raise AssertionError(f"{self.key}: {misplaced}")
        with ExitStack() as stack:
            stack.enter_context(mock.patch.object(world.World, "report", _report_and_stop))
            for kind in self.host:
                replaced = kind.__mro__[1].__name__
                stack.enter_context(mock.patch.object(_MODULES[replaced], replaced, kind))
            return run_seed(self.protocol, seed, settings)
