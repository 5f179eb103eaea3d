"""Planted bugs: finding them on disk, and after how many seeds the checkers find them in a run.

A package of bugs (`tests.planted` here) has a module per protocol, or per part that protocols share. Its `PLANTED` is a
sequence of objects with the attributes of `Bug`.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
import time
from collections.abc import Iterable
from functools import cache
from typing import Any, NamedTuple, Protocol

import msgspec

from multicast import registry
from multicast.protocol import MulticastProtocol
from multicast.simulation.runner import Outcome, Settings
from multicast.simulation.worlds import run_seed

SEEDS_MAX = 2_000
"""Within how many seeds a bug must be found."""


class Search(NamedTuple):
    """A bug of a module, and with which seeds to look for it. size: see `search`."""

    module: str
    bug: Bug
    seeds: range
    size: str | None = None


class BadPackage(ValueError):
    """There are no bugs in this package; the text says why."""


class Bug(Protocol):
    """about: what it does. protocol: with the bug, if it is in there. settings: of the runs that shall show it.
    first_seed: one that found it some time. shows: the line or erratum of the paper that it stands for."""

    @property
    def name(self) -> str: ...
    @property
    def about(self) -> str: ...
    @property
    def protocol(self) -> type[MulticastProtocol]: ...
    @property
    def settings(self) -> Settings: ...
    @property
    def first_seed(self) -> int: ...
    @property
    def shows(self) -> str: ...

    def run(self, seed: int, size: str | None = None) -> Outcome:
        """One seed, with the bug. size: of the run, if not what the settings say."""


class Found(msgspec.Struct, kw_only=True):
    """seeds: how many were needed, None if none of them showed it. seed, checker: the one that did, and which checker.
    wall_s: processor time. about: first sentence of the bug's docstring. without: seeds at which the protocol fails
    without the bug, too; they show nothing."""

    module: str
    bug: str
    about: str
    shows: str
    seeds: int | None
    seed: int | None
    checker: str
    wall_s: float
    without: list[int] = []


def load(package: str) -> dict[str, tuple[Bug, ...]]:
    """module name -> its bugs. BadPackage if it cannot be imported or is none."""
    try:
        root = importlib.import_module(package)
    except ImportError as error:
        raise BadPackage(f"cannot import {package!r}: {error}; run it where that package is importable") from None
    if not hasattr(root, "__path__"):
        raise BadPackage(f"{package!r} is a module, not a package of modules with PLANTED")
    bugs: dict[str, tuple[Bug, ...]] = {}
    for info in pkgutil.iter_modules(root.__path__):
        try:
            module = importlib.import_module(f"{package}.{info.name}")
        except ImportError as error:
            raise BadPackage(f"cannot import {package}.{info.name}: {error}") from None
        if hasattr(module, "PLANTED"):
            bugs[info.name] = tuple(module.PLANTED)
    if not bugs:
        raise BadPackage(f"no module of {package!r} has PLANTED")
    return bugs


def run(wanted: Search) -> Found:
    """`search`, for another process."""
    return search(wanted.module, wanted.bug, wanted.seeds, wanted.size)


@cache
def _fails_by_itself(protocol: type[MulticastProtocol], seed: int, settings: bytes) -> bool:
    """Whether a protocol (its class) without a planted bug has violations in this run; many bugs ask for the same.
    settings: as JSON."""
    return bool(run_seed(protocol, seed, msgspec.json.decode(settings, type=Settings)).violations)


def search(module: str, bug: Bug, seeds: Iterable[int], size: str | None = None) -> Found:
    """Run seeds until one shows the bug: what is registered under its protocol's name passes there. size: of the runs,
    if not what the bug's settings say."""
    settings = bug.settings if size is None else msgspec.structs.replace(bug.settings, size=size)
    started = time.process_time()
    about = re.split(r"(?<!Fig)\. ", " ".join(bug.about.split()))[0].rstrip(".")
    found = Found(
        module=module, bug=bug.name, about=about, shows=bug.shows, seeds=None, seed=None, checker="",
        wall_s=0.0,
    )  # fmt: skip
    for count, seed in enumerate(seeds, 1):
        outcome = bug.run(seed, size)
        if outcome.violations:
            correct: Any = registry.load(bug.protocol.specification.name)
            if _fails_by_itself(correct, seed, msgspec.json.encode(settings)):
                found.without.append(seed)
                continue
            found.seeds, found.seed, found.checker = count, seed, outcome.violations[0][0]
            break
    found.wall_s = round(time.process_time() - started, 3)
    return found
