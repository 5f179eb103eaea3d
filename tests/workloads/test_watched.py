"""Watches under load: a short run on real processes, and what it says of what is wrong."""

from __future__ import annotations

from pathlib import Path

import msgspec

from workloads import watched


def test_a_short_run_tells_every_put_and_stops_its_replicas(tmp_path: Path) -> None:
    plan = watched.Plan(
        watches=3, keys=12, rate=50, seconds=0.5, protocol="white_box", directory=tmp_path / "run", shards=1
    )
    said: list[str] = []
    watched.command(plan, tmp_path / "json", said.append)
    report = msgspec.json.decode((tmp_path / "json").read_bytes())
    assert report["events"] >= report["outcomes"]["ok"] > 0 and set(report["memory"]) == {"0", "1", "2"}
    assert not [sentence for sentence in report["wrong"] if "told" in sentence], said
    assert any(line.startswith(f"{report['events']} events, late by ms: ") for line in said)


def test_what_is_wrong_is_said(tmp_path: Path) -> None:
    plan = watched.Plan(watches=1, keys=1, rate=1, seconds=1, protocol="white_box", directory=tmp_path)
    late = {"50": 1.0, "99": 300.0}
    report = watched.Report(plan, {"ok": 2, "failed": 0}, 1, late, {0: (1 << 20, 3 << 20, 2 << 20)}, ["it is late"])
    assert watched.table(report)[-2:] == ["replica 0: 1 MiB at first, 3 at most, 2 at last", "WRONG: it is late"]
