"""Every planted bug is found, and nothing is found where none is planted. See tests/planted."""

from __future__ import annotations

import random
import subprocess
import sys
from importlib import import_module

import pytest

from multicast import registry
from multicast.protocols.white_box import WhiteBox
from multicast.simulation.disk import SimulatedDisk
from multicast.simulation.mutants import Bug, load, search
from multicast.simulation.runner import Settings, run_seed
from multicast.types import Topology
from tests.house import ROOT
from tests.planted import FAULTS, FIRST_SEEDS, LIKE, Planted
from tests.planted.__main__ import finds, kind, modules
from tests.planted.white_box import SlowOwnDeliver

pytestmark = pytest.mark.timeout(600)
"""Some bugs need a minute of simulation; a busy machine makes ten of it."""

LOOK = "`python -m tests.planted --stale` looks for another, in"
SEEDS_TRIED = 200
PLANTED: dict[str, tuple[Planted, ...]] = load("tests.planted")  # type: ignore[assignment]
BUGS = [(module, bug) for module, bugs in PLANTED.items() for bug in bugs if not bug.elusive]
HARMLESS = [bug for module in PLANTED for bug in getattr(import_module(f"tests.planted.{module}"), "HARMLESS", ())]
EVERY = {bug.key: bug for _, bugs in modules() for bug in bugs}
CORRECT = [
    *((name, {}) for name in registry.names()),
    ("quasi_genuine", {"liveness": "periodic"}),
    ("quasi_genuine", {"instances_max": "4"}),
]


OF_BUGS = pytest.mark.parametrize(
    ("module", "bug"),
    [
        pytest.param(module, bug, id=f"{module}-{bug.name}", marks=[pytest.mark.full] * (bug.key in LIKE))
        for module, bug in BUGS
    ],
)


@OF_BUGS
def test_a_planted_bug_is_found(module: str, bug: Bug) -> None:
    """By the seed that is known, at which nothing was found without it. Others are not tried here: a stale seed would
    cost minutes each time, and nobody would know."""
    assert bug.run(bug.first_seed).violations, f"seed {bug.first_seed} is stale: {LOOK} {module}"


@pytest.mark.full
@OF_BUGS
def test_what_finds_a_planted_bug_finds_nothing_without_it(
    module: str, bug: Bug, capsys: pytest.CaptureFixture[str]
) -> None:
    found = search(module, bug, dict.fromkeys([bug.first_seed, *range(SEEDS_TRIED)]))
    assert found.seeds, f"{found.bug} survived {SEEDS_TRIED} seeds; `python -m tests.planted` tries more"
    with capsys.disabled():
        print(f"\n{module} {found.bug}: found by seed {found.seed}, {found.checker}", end=" ")


@pytest.mark.parametrize("seeds", [1, pytest.param(60, marks=pytest.mark.full)])
@pytest.mark.parametrize(
    "bug", [pytest.param(bug, id=bug.key, marks=[] if bug is HARMLESS[0] else pytest.mark.full) for bug in HARMLESS]
)
def test_what_does_no_harm_is_not_found(bug: Planted, seeds: int) -> None:
    """By default one of them: that nothing is found where nothing is planted is asserted below."""
    assert "(" in bug.about, "the docstring says why"
    assert not any(bug.run(seed).violations for seed in range(1, seeds + 1))


def test_what_is_left_to_the_full_run_is_like_what_is_not() -> None:
    for one, other in ((EVERY[key], EVERY[like]) for key, like in LIKE.items()):
        assert kind(one, "") == kind(other, "") and not one.elusive and not other.elusive, one.key
        assert other.key not in LIKE, one.key


@pytest.mark.full
@pytest.mark.parametrize("key", sorted(LIKE))
def test_the_same_check_finds_both(key: str) -> None:
    checks = {finds(bug, bug.first_seed) for bug in (EVERY[key], EVERY[LIKE[key]])}
    assert len(checks) == 1 and all(checks), f"{checks}: `python -m tests.planted` looks for others"


def test_all_bugs_have_been_looked_for() -> None:
    assert not [bug.key for bugs in PLANTED.values() for bug in bugs if bug.key not in FIRST_SEEDS]


@pytest.mark.full
def test_what_no_seed_finds_a_test_does() -> None:
    command = [sys.executable, "-m", "tests.planted.in_place"]
    found = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert found.returncode == 0, found.stdout + found.stderr


@pytest.mark.parametrize("module", sorted(PLANTED))
def test_every_bug_can_be_planted(module: str) -> None:
    """Those that no seed finds, too: words that are no longer in the protocol would be no bug."""
    for bug in (*PLANTED[module], *getattr(import_module(f"tests.planted.{module}"), "HARMLESS", ())):
        protocol = bug.protocol
        topology = Topology.grid(2, 3 if protocol.specification.fault_tolerant else 1)
        protocol(0, topology, protocol.specification.options(), random.Random(1))
        assert not hasattr(bug.kind, "misplaced"), f"{bug.key}: {bug.kind.misplaced}"


def test_a_seed_at_which_the_protocol_itself_fails_shows_no_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    bug = PLANTED["sequencer"][0]
    monkeypatch.setattr(registry, "load", lambda name: bug.protocol)
    found = search("sequencer", bug, range(5))
    assert found.seeds is None
    assert found.without


@pytest.mark.parametrize("module", sorted({*registry.names(), "paxos"}))
def test_every_protocol_has_planted_bugs(module: str) -> None:
    assert len(PLANTED[module]) >= 3
    assert len({bug.name for bug in PLANTED[module]}) == len(PLANTED[module])


@pytest.mark.parametrize("seeds", [1, pytest.param(60, marks=pytest.mark.full)])
@pytest.mark.parametrize(
    ("name", "options"), CORRECT, ids=["-".join([name, *options.values()]) for name, options in CORRECT]
)
def test_without_a_planted_bug_nothing_is_found(name: str, options: dict[str, str], seeds: int) -> None:
    """In the full run at each seed that finds a bug, too: see `search`."""
    settings = Settings(profile="faults", options=options)
    failed = {seed: run_seed(registry.load(name), seed, settings).violations for seed in range(seeds)}
    assert not any(failed.values()), failed


@pytest.mark.parametrize("seeds", [1, pytest.param(6, marks=pytest.mark.full)])
def test_a_slow_delivery_to_oneself_is_no_bug(seeds: int) -> None:
    failed = {seed: run_seed(SlowOwnDeliver, seed, FAULTS).violations for seed in range(40, 40 + seeds)}
    assert not any(failed.values()), failed


def test_a_disk_that_does_not_sync_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SimulatedDisk, "sync", lambda self, name: None)
    assert any(run_seed(WhiteBox, seed, FAULTS).violations for seed in range(20))
