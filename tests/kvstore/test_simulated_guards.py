"""Writers that have looked at a range, and write if nothing has come into it since: whole replicas under faults."""

from __future__ import annotations

from collections.abc import Iterable
from unittest.mock import patch

import pytest

from kvstore.api.model import NoneNewer, Operation, OperationResult, Put, Range, Transaction
from kvstore.core import execution, plans
from kvstore.core.execution import Execution
from kvstore.simulated import ranging
from kvstore.simulated.clients import Operated
from kvstore.simulated.ranging import Ranger
from kvstore.simulated.runner import run_seed
from kvstore.simulated.settings import Settings

SEEDS = (0, 4)
"""Of the first six those in which somebody wrote on such a condition."""


class Guard(Ranger):
    """Looks at all keys, or at one, and then writes one on that condition."""

    judged: dict[str, int]

    def _choose(self) -> None:
        rng, keys = self._rng, self._workload.keys
        if rng.random() < 0.4:
            super()._choose()
            return
        prefix = rng.choice((b"key/", b"key/", rng.choice(keys)))
        others: tuple[Operation, ...] = (Range(prefix, 100), Put(b"key/looked", b"%d" % rng.getrandbits(20)))
        if rng.random() < 0.7:
            self.operate("look", Transaction(success=others[:1]), lambda told: self._enter(prefix, told))
        else:
            self.operate("look", Transaction(success=others), lambda told: self._enter(prefix, told))

    def _enter(self, prefix: bytes, told: Operated) -> None:
        result = told.result
        if result is None or told.results_omitted:
            self.go_on(told)
            return
        entries = [entry.version for entry in result.results[0].entries]
        version = max([result.version, *entries])
        guard, put = NoneNewer(prefix, version), Put(self._rng.choice(self._workload.keys), b"entered")
        branch = (guard, put) if self._rng.random() < 0.5 else (put, guard)
        self.operate("enter", Transaction(success=branch), self._judged)

    def _judged(self, told: Operated) -> None:
        self.judged["failed" if told.failed else "held" if told.result else "unknown"] += 1
        self.go_on(told)


def violations(seeds: Iterable[int]) -> tuple[list[str], dict[str, int]]:
    Guard.judged = {"failed": 0, "held": 0, "unknown": 0}
    with patch.object(ranging, "Ranger", Guard):
        found = [
            violation
            for seed in seeds
            for violation in run_seed(
                Settings(protocol="white_box", size="small", shards=2, replicas=3, ranges=True), seed
            ).violations
        ]
    return found, Guard.judged


def test_what_comes_into_a_range_fails_whoever_wrote_on_that_condition_and_nothing_else_does() -> None:
    found, judged = violations(SEEDS)
    assert not found
    assert judged["failed"] > 0 < judged["held"], judged


def blind(self: Execution, operation: NoneNewer) -> OperationResult:
    """Looks at nothing."""
    return OperationResult()


@pytest.mark.parametrize(
    ("planted", "first"), [("nobody looks", 0), ("it is judged before what stands before it is complete", 11)]
)
def test_a_planted_omission_is_found(planted: str, first: int) -> None:
    """first: a seed that has found it, which is tried before all others."""
    blinded = patch.dict(execution._RUN, {NoneNewer: blind})
    early = patch.object(plans, "_REACHING", tuple(k for k in plans._REACHING if k is not NoneNewer))
    with blinded if planted == "nobody looks" else early:
        assert any(violations(range(seed, seed + 1))[0] for seed in (first, *range(100)))
