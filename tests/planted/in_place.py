"""`python -m tests.planted.in_place [KEY ...]`: planted bugs that no seed finds, and the tests that find them.

`first_seeds.json` names the test. The bug is planted in the very class that it rewrites, in a process of its own, and
there the test must fail. Prints what survives, and exits with 1 if anything does.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
from typing import Any

import pytest
from hypothesis import Phase, settings

from multicast.parts.barrier_leader import BarrierLeader
from multicast.parts.learner import RemoteLearner
from multicast.parts.stamps import Entry
from multicast.types import Topology
from tests.planted import FIRST_SEEDS, Planted, store
from tests.planted.__main__ import modules
from tests.planted.rewriting import Rewrite, rewritten

NOT_YET = {"leader": BarrierLeader, "learners": RemoteLearner, "t.entries": Entry}
"""Parts that are not there when a protocol is made."""

FINDERS = {key: value for key, value in FIRST_SEEDS.items() if isinstance(value, str)}
"""Key of a bug -> id of the test that finds it."""


class Hasty:
    """A pytest plugin: that a property does not hold is enough, be the example ever so large."""

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        for item in items:
            test = item.obj
            if hasattr(test, "hypothesis"):
                known = getattr(test, "_hypothesis_internal_use_settings", None) or settings.default
                test._hypothesis_internal_use_settings = settings(known, phases=[Phase.explicit, Phase.generate])


def plant(bug: Planted | store.Planted) -> None:
    """In this process, for good. LookupError for a bug that is not a rewriting."""
    rewrites: list[Rewrite] = vars(bug.kind).get("rewrites", [])
    if not rewrites:
        raise LookupError(f"{bug.key} rewrites nothing")
    for one in rewrites:
        kind = _class_of(bug.kind.__mro__[1], one)
        owner = next(c for c in kind.__mro__ if one.method in vars(c))
        setattr(owner, one.method, rewritten(owner, one.method, one.old, one.new))


def _class_of(kind: Any, one: Rewrite) -> type[Any]:
    if isinstance(one.part, type) or one.part in NOT_YET:
        return one.part if isinstance(one.part, type) else NOT_YET[one.part]
    value: Any = None
    if one.part:
        topology = Topology.grid(2, 3 if kind.specification.fault_tolerant else 1)
        value = kind(0, topology, kind.specification.options(), random.Random(1))
        for name in one.part.split("."):
            value = getattr(value, name)
    return type(value) if one.part else kind


def is_found(bug: Planted | store.Planted, test: str) -> bool:
    """Whether this test fails with it."""
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == int(pytest.ExitCode.TESTS_FAILED)
    code = 99
    try:
        for descriptor in (1, 2):
            os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
        plant(bug)
        ignored = ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
        code = int(pytest.main(["-q", "-n0", "-x", "-p", "no:cacheprovider", *ignored, test], plugins=[Hasty()]))
    finally:
        os._exit(code)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.planted.in_place", description=__doc__)
    parser.add_argument("keys", nargs="*", metavar="KEY", help="of planted bugs that tests find; none: all")
    keys = parser.parse_args().keys
    if unknown := sorted(set(keys) - FINDERS.keys()):
        parser.error(f"no test is known to find {', '.join(unknown)}")
    bugs = {bug.key: bug for _, some in modules() for bug in some}
    survivors = [key for key, test in FINDERS.items() if key in (keys or [key]) and not is_found(bugs[key], test)]
    for key in survivors:
        print(f"{key} is not found by {FINDERS[key]}")
    return bool(survivors)


if __name__ == "__main__":
    sys.exit(main())
