"""`python -m multicast.simulation`, and the figures that it measures."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from multicast.simulation import worlds
from multicast.simulation.runner import Outcome, Settings, Summary
from tests.multicast.live import eventually
from tests.simulation.conftest import Done

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-m", "multicast.simulation"]


def _simulate(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=60)


def test_run_reports_what_it_did(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    done = _simulate("run", "--protocol", "skeen", "--seeds", "0:5", "--profile", "faults", "--json", str(path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "5 seeds" in done.stdout
    assert "violations: none" in done.stdout
    result = json.loads(path.read_text())
    assert result["seeds"] == 5
    assert result["violations"] == []
    assert result["protocol_events_per_second"] > 0
    assert sum(result["faults"].values()) > 0


def test_planted_bugs_are_counted(simulate: Callable[..., Done], tmp_path: Path) -> None:
    path = tmp_path / "found.json"
    done = simulate("mutants", "--protocol", "sequencer", "--json", str(path))
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(path.read_text())
    assert len(found) >= 3
    assert all(1 <= one["seeds"] <= 2_000 and one["checker"] for one in found)
    assert f"{len(found)} of {len(found)} bugs found" in done.stdout


def test_bugs_that_are_too_few_or_not_found_are_a_failure(tmp_path: Path) -> None:
    package = tmp_path / "planted_elsewhere"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "sequencer.py").write_text(
        "from multicast.protocols.sequencer import Sequencer\n"
        "from tests.planted import Planted\n"
        "class NoBug(Sequencer):\n    known = 1\n"
        "PLANTED = (Planted(NoBug),)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    arguments = ["mutants", "--bugs", "planted_elsewhere", "--protocol", "sequencer", "--seeds", "0:3"]
    done = subprocess.run(
        [*COMMAND, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "NOT FOUND" in done.stdout
    assert "sequencer has 1 planted bugs" in done.stdout


def test_what_a_world_shows_is_reported_with_its_options_and_a_replay_that_names_it() -> None:
    outcome = Outcome(
        protocol="skeen", seed=7, topology="2x1", digest="", simulated_us=1, wall_s=1.0, messages=1, deliveries=1,
        events=1, foreign=0, faults={}, violations=[("exactly once", "it was twice")], options={"retry_us": 5},
    )  # fmt: skip
    summary = Summary("skeen", Settings(store=True, options={"clock": "hybrid"}))
    summary.add(outcome)
    result = summary.to_json()
    assert result["foreign_per_message"] is None, "not measured"
    (violation,) = result["violations"]
    assert violation["options"] == {"retry_us": 5}
    assert violation["replay"].endswith("--seeds 7:8 --profile faults --store --option clock=hybrid")


def test_a_world_that_is_not_installed_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worlds, "entry_points", lambda **_: ())
    with pytest.raises(worlds.NoWorld, match="pip install"):
        worlds.load("store")


def test_one_seed_prints_the_digest_of_its_trace() -> None:
    command = ("run", "--protocol", "white_box", "--size", "small", "--seeds", "3:4")
    first, second = (_simulate(*command).stdout for _ in range(2))
    digest = [line for line in first.splitlines() if "trace digest" in line]
    assert digest
    assert digest == [line for line in second.splitlines() if "trace digest" in line]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("run", "--protocol", "whitebox"), "white_box"),
        (("run", "--protocol", "skeen", "--seeds", "7:7"), "holds no seed"),
        (("run", "--protocol", "skeen", "--seeds", "a:b"), "FROM:TO"),
        (("run", "--protocol", "skeen", "--profile", "rough"), "calm, faults"),
        (("run", "--protocol", "skeen", "--replicas", "3"), "one process per group"),
        (("run", "--protocol", "skeen", "--groups", "0"), "from 1 to"),
        (("run", "--protocol", "skeen", "--option", "patience=3"), "has no option 'patience'"),
        (("run", "--protocol", "skeen", "--option", "retry_us"), "NAME=VALUE"),
        (("run", "--protocol", "skeen", "--json", "/no/such/place", "--seeds", "0:1"), "/no/such/place"),
        (("run",), "--protocol"),
        (("walk",), "walk"),
        (("mutants", "--bugs", "no.such.package"), "cannot import 'no.such.package'"),
        (("mutants", "--bugs", "json.decoder"), "not a package"),
        (("mutants", "--bugs", "multicast.parts"), "has PLANTED"),
        (("mutants", "--protocol", "nobody"), "no bugs of 'nobody'"),
        (("mutants", "--seeds", "7:7"), "holds no seed"),
        (("mutants", "--bug", "Nobody"), "no planted bug 'Nobody'"),
        (("mutants", "--resume"), "--json"),
        (("run", "--protocol", "skeen", "--size", "medium"), "small, large"),
        (("run", "--protocol", "skeen", "--jobs", "0"), "from 1 to"),
        (("latency", "--protocol", "skeen", "--option", "retry_us=soon"), "retry_us"),
    ],
)
def test_bad_usage_is_one_clear_line(simulate: Callable[..., Done], arguments: tuple[str, ...], text: str) -> None:
    done = simulate(*arguments)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert text in done.stderr


async def test_an_interrupted_run_prints_what_it_has(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*COMMAND, "run", "--protocol", "skeen", "--seeds", "0:1000000", "--coverage", "--size", "small"],
        cwd=ROOT,
        env=os.environ | {"TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        await eventually(lambda: list(tmp_path.glob("*/reached.*")), "what its first seeds have reached is known")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "so far" in out
    assert "seeds" in out
    assert "Traceback" not in err
