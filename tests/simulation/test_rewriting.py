"""Planting by rewriting: words are found however they are spaced, exactly once; only the planted class has them."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import random
from collections.abc import Iterator
from typing import Any

import pytest

from multicast.protocol import Outbox
from multicast.protocols.primcast import PrimCast
from multicast.protocols.sequencer import Sequencer
from multicast.types import AppMessage, Topology
from tests import planted
from tests.planted import Planted
from tests.planted.rewriting import Misplaced, rewrite


class Base:
    def told(self) -> str:
        return "base"


class Middle(Base):
    def told(self) -> str:
        before = super().told()
        if before:
            return before + " middle"
        return ""


def test_words_are_rewritten_and_super_stays_what_it_was() -> None:
    @rewrite("told", 'if before: return before + " middle"', 'if before:\n        return before + " planted"')
    @rewrite("told", 'return ""', 'return "none"')
    class Bug(Middle):
        pass

    assert Bug().told() == "base planted"
    assert Middle().told() == "base middle"


@pytest.mark.parametrize("words", ["return", "nowhere"])
def test_words_that_are_not_there_once_fail_the_bugs_own_run_only(words: str) -> None:
    @rewrite("_on_please", words, "pass")
    class Bug(Sequencer):
        """Words that are not there."""

    with pytest.raises(AssertionError, match="times"):
        Planted(Bug).run(0)


def test_a_part_is_rewritten_in_the_planted_protocol_only() -> None:
    @rewrite("_conclude", "self.bound = max(ballots)", "self.bound = min(ballots)", part="election.rejoin")
    class Bug(PrimCast):
        """The lowest of all."""

    arguments = (0, Topology.grid(1, 3), PrimCast.specification.options(), random.Random(1))
    assert type(Bug(*arguments).election.rejoin).__name__ == "Bug"
    assert type(PrimCast(*arguments).election.rejoin).__name__ == "Rejoin"


def test_what_is_made_later_is_rewritten_once() -> None:
    @rewrite("take", "self.message = message", "pass", part="t.entries", after="_take_start")
    @rewrite("delivered", "self.acks.clear()", "pass", part="t.entries", after="_take_start")
    class Bug(PrimCast):
        """Two bugs in each entry."""

    protocol = Bug(0, Topology.grid(1, 3), PrimCast.specification.options(), random.Random(1))
    for number in (1, 2):
        protocol._take_start(1, AppMessage(bytes([number]) * 16, (0,), b"", 1), 0, Outbox())
    for entry in protocol.entries.values():
        assert [kind.__name__ for kind in type(entry).__mro__[:3]] == ["Bug", "Bug", "Entry"]


def test_a_part_without_the_words_is_no_violation() -> None:
    @rewrite("on_highest", "nowhere", "pass", part="election.rejoin")
    class Bug(PrimCast):
        """Words that are not there."""

    with pytest.raises(Misplaced):
        Planted(Bug).run(0)


def classes() -> Iterator[type]:
    """All that is planted, and what that is made of."""
    for module in pkgutil.iter_modules(planted.__path__, "tests.planted."):
        if not module.name.endswith("__main__"):
            mine = importlib.import_module(module.name)
            yield from (one for one in vars(mine).values() if inspect.isclass(one) and one.__module__ == module.name)


def test_a_planted_method_is_called_as_the_one_is_whose_place_it_takes() -> None:
    """Else every seed finds the bug, by the error of a call."""

    def shape(function: Any) -> list[Any]:
        return [one.kind for one in inspect.signature(function).parameters.values()]

    compared, other = 0, []
    for kind in classes():
        for name, mine in vars(kind).items():
            before = next((vars(base)[name] for base in kind.__mro__[1:] if name in vars(base)), None)
            if inspect.isfunction(mine) and inspect.isfunction(before) and not name.startswith("__"):
                compared += 1
                if shape(mine) != shape(before) and inspect.Parameter.VAR_POSITIONAL not in shape(mine):
                    other.append(f"{kind.__module__}.{kind.__qualname__}.{name}")
    assert compared > 100 and not other, other
