"""Bugs planted in replicas and stores are found by the checks that are there for them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from kvstore.simulated.runner import run_seed
from kvstore.simulated.settings import DRAWN, Settings
from tests.planted import LIKE
from tests.planted.backups import PLANTED_IN_STORE as IN_BACKUPS
from tests.planted.bounds import PLANTED_IN_STORE as BOUNDS
from tests.planted.edges import PLANTED_IN_STORE as EDGES
from tests.planted.leases import PLANTED_IN_STORE as LEASES
from tests.planted.moves import GROWING
from tests.planted.moves import PLANTED_IN_STORE as MOVES
from tests.planted.narrow import PLANTED_IN_STORE as NARROW
from tests.planted.nested import PLANTED_IN_STORE as NESTED
from tests.planted.overlooked import PLANTED_IN_STORE as OVERLOOKED
from tests.planted.past import PLANTED_IN_STORE as IN_THE_PAST
from tests.planted.reads_led import PLANTED_IN_STORE as READS_LED
from tests.planted.rights import PLANTED_IN_STORE as RIGHTS
from tests.planted.snapshots import PLANTED_IN_STORE as IN_SNAPSHOTS
from tests.planted.store import PLANTED_IN_STORE, Planted
from tests.planted.store_rules import PLANTED_IN_STORE as OF_RULES
from tests.planted.store_state import PLANTED_IN_STORE as MORE
from tests.planted.strangers import PLANTED_IN_STORE as STRANGERS
from tests.planted.told import PLANTED_IN_STORE as TOLD
from tests.planted.turns import PLANTED_IN_STORE as TURNS
from tests.planted.unordered import PLANTED_IN_STORE as UNORDERED
from tests.planted.watches import PLANTED_IN_STORE as WATCHES

CHECKS = {
    "agreement",
    "exactly once",
    "reads",
    "ages of reads",
    "answers",
    "reads at versions",
    "watches",
    "serial execution",
    "strict serializability",
    "conservation",
    "cuts",
    "final states",
    "lives",
    "memory",
    "moves",
    "left",
    "repetitions",
    "liveness",
    "leases",
    "books",
    "latency",
    "asked",
    "idle",
    "rights",
    "rows",
    "recovery",
    "votes",
    "exception",
}


ALL = (*PLANTED_IN_STORE, *MORE, *MOVES, *IN_SNAPSHOTS, *IN_BACKUPS, *IN_THE_PAST, *RIGHTS, *UNORDERED, *WATCHES,
       *LEASES, *READS_LED, *OF_RULES, *BOUNDS, *NESTED, *STRANGERS, *TOLD, *OVERLOOKED, *EDGES,
       *TURNS, *NARROW)  # fmt: skip
BUGS = [bug for bug in ALL if not bug.elusive]


def test_every_bug_can_be_planted() -> None:
    """Those that no seed finds, too: words that are no longer in the store would be no bug."""
    assert [f"{bug.key}: {bug.kind.misplaced}" for bug in ALL if hasattr(bug.kind, "misplaced")] == []


@pytest.mark.parametrize(
    "bug", [pytest.param(bug, id=bug.key, marks=[pytest.mark.full] * (bug.key in LIKE)) for bug in BUGS]
)
def test_a_planted_bug_is_found(bug: Planted) -> None:
    stale = f"seed {bug.first_seed} is stale: `python -m tests.planted --stale` looks for another"
    assert bug.finds(bug.run(bug.first_seed)), stale


def test_every_check_has_a_bug() -> None:
    assert {bug.checker for bug in ALL} - {""} == CHECKS


def test_without_a_bug_nothing_is_found() -> None:
    for settings, seed in {str(bug.settings): (bug.settings, bug.first_seed) for bug in PLANTED_IN_STORE}.values():
        assert run_seed(settings, seed).violations == [], (settings, seed)


def test_a_lease_that_comes_back_with_its_slot_as_it_had_gone_is_not_called_due_too_early() -> None:
    anything: dict[str, Any] = dict.fromkeys(DRAWN) | {"narrow": False}
    assert run_seed(Settings(protocol="white_box", size="small", **anything), 219).violations == []


@pytest.mark.parametrize(("protocol", "seed"), [("primcast", 6), ("white_box", 6)])
def test_a_shard_that_is_added_takes_slots_and_lost_disks_harm_nothing(protocol: str, seed: int) -> None:
    outcome = run_seed(msgspec.structs.replace(GROWING, protocol=protocol), seed)
    assert outcome.violations == [] and outcome.moves > 0 and outcome.faults["lost_disk"] > 0
