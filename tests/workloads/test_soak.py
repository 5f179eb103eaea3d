"""What counts as flat, and a short run on real processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from workloads import directories, soak

MIB = 1 << 20


def samples(**rising: float) -> list[soak.Sample]:
    """Of two replicas; of the second one these grow by so much a sample."""
    found = []
    for number in range(40):
        for replica in range(2):
            journal = (5 + 3 * (number % 5)) * MIB
            values = {"memory": 60 * MIB, "files": 40, "journal": journal, "state": MIB, "archive": 0}
            values |= {name: int(values[name] + replica * number * more) for name, more in rising.items()}
            found.append(soak.Sample(seconds=10.0 * number, replica=replica, **values))
    return found


def test_what_goes_up_and_down_is_flat() -> None:
    assert soak.grown(samples()) == []


@pytest.mark.parametrize("name", list(soak.SLACK))
def test_what_grows_is_named_with_its_replica(name: str) -> None:
    (sentence,) = soak.grown(samples(**{name: soak.SLACK[name]}))
    assert sentence.startswith(f"replica 1: {name} has grown from ")


def test_a_short_run_samples_all_replicas_stops_them_and_says_that_it_was_short(tmp_path: Path) -> None:
    plan = soak.Plan(minutes=0.001, rate=50, protocol="white_box", directory=tmp_path / "soak", shards=1)
    said: list[str] = []
    assert soak.command(plan, tmp_path / "json", said.append) == 1
    assert "too few to tell" in said[-1] and "0 failed" in said[-2]
    assert b'"replica":2' in (tmp_path / "json").read_bytes()
    with pytest.raises(soak.SoakFailed, match="replica 2 has ended"):
        soak.sample(plan.directory, 2, 0.0)
    (tmp_path / "cluster.json").touch()
    with pytest.raises(soak.SoakFailed, match="was not made by such a run; nothing was changed"):
        soak.command(soak.Plan(minutes=1, rate=1, protocol="white_box", directory=tmp_path), None, said.append)
    assert plan.directory.is_dir() and directories.is_replaceable(plan.directory)


def test_who_was_not_loaded_is_not_called_flat() -> None:
    """Whoever refuses everything from the first second on grows by nothing."""
    assert soak.unanswered(300, 60, {"ok": 9_000, "failed": 9_000}) == []
    (sentence,) = soak.unanswered(300, 60, {"ok": 8_999, "failed": 12})
    assert sentence == "of 18000 puts and deletions 8999 were answered, and 12 failed"
    assert soak.unanswered(0.001, 1, {"ok": 0, "failed": 0})
