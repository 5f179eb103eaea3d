"""What atomic multicast alone, or signals sent too early, do not promise: exact schedules and random searches."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from kvstore.simulated import schedules, strictness
from kvstore.simulated.__main__ import app
from kvstore.simulated.checks import STRICTNESS
from kvstore.simulated.runner import run_seed
from kvstore.simulated.settings import Settings
from multicast import registry


@pytest.mark.parametrize("protocol", registry.names())
def test_every_schedule_shows_what_the_protocol_says_of_itself(protocol: str) -> None:
    shown = list(strictness.play_all([protocol]))
    assert len(shown) == 9 * (1 + (protocol in strictness.ALTERNATIVES))
    assert [one for one in shown if not one.match] == []
    assert not any(one.seen for one in shown if one.signals == "rule")


@pytest.mark.parametrize(
    ("protocol", "options", "limit"),
    [
        ("skeen", {}, 1),
        ("white_box", {}, 1),
        ("white_box", {"leaders_in_quorum": "true"}, 2),
        ("primcast", {}, 1),
        ("quasi_genuine", {}, None),
        ("quasi_genuine", {"senders": "0<2 1<2"}, 1),
        ("sequencer", {}, None),
    ],
)
def test_the_schedules_of_the_notes(protocol: str, options: dict[str, str], limit: int | None) -> None:
    """Said once more by hand, so that a protocol that changes its claim does not change what is demanded of it."""
    assert strictness.strict_groups_max(protocol, options, 3) == limit
    senders = {"senders": "1<0"} if "senders" in options else options
    for name, given, groups in (("two-groups", senders, 2), ("three-groups", options, 3)):
        played = schedules.play(name, protocol, "off", options=given)
        assert len(played.lines) == len(schedules.SCHEDULES[name].background) + 2
        assert [v.partition(":")[0] for v in played.violations] == [STRICTNESS] * (limit is not None and groups > limit)
    for signals, violated in (("delivery", limit == 1), ("rule", False)):
        assert bool(schedules.play("three-groups", protocol, signals, options=options).violations) == violated
        assert schedules.play("two-groups", protocol, signals, options=senders).violations == []


@pytest.mark.parametrize(
    ("variant", "groups", "first"),
    [
        (strictness.Variant("skeen"), 2, 2),
        (strictness.Variant("white_box"), 2, 0),
        (strictness.Variant("white_box", True), 3, 0),
        (strictness.Variant("primcast"), 2, 2),
        (strictness.Variant("quasi_genuine", True), 2, 0),
    ],
    ids=lambda value: value.name(2) if isinstance(value, strictness.Variant) else str(value),
)
def test_one_group_more_than_claimed_is_too_many(variant: strictness.Variant, groups: int, first: int) -> None:
    """first: a seed that found it when this was written."""
    shown = strictness.search(variant, groups, range(first, 60))
    assert shown.expected and shown.seen and shown.match, shown
    assert "--profile chase" in shown.replay


@pytest.mark.parametrize(
    ("variant", "groups"),
    [
        (strictness.Variant("white_box", True), 2),
        (strictness.Variant("quasi_genuine"), 3),
        (strictness.Variant("sequencer"), 3),
        pytest.param(strictness.Variant("primcast"), 1, marks=pytest.mark.full),
    ],
    ids=lambda value: value.name(2) if isinstance(value, strictness.Variant) else str(value),
)
@pytest.mark.parametrize("seeds", [1, pytest.param(8, marks=pytest.mark.full)])
def test_as_many_groups_as_claimed_are_not_too_many(variant: strictness.Variant, groups: int, seeds: int) -> None:
    shown = strictness.search(variant, groups, range(seeds))
    assert not shown.expected and shown.match, shown


@pytest.mark.parametrize("seeds", [1, pytest.param(8, marks=pytest.mark.full)])
@pytest.mark.parametrize("protocol", ["skeen", "white_box", pytest.param("primcast", marks=pytest.mark.full)])
def test_the_rule_of_the_store_withstands_the_search(protocol: str, seeds: int) -> None:
    for seed in range(seeds):
        outcome = run_seed(Settings(protocol=protocol, profile="chase", shards=3), seed)
        assert outcome.violations == [], seed
        assert outcome.answered > 50


def test_commands(tmp_path) -> None:
    runner, summary = CliRunner(), tmp_path / "shown.json"
    done = runner.invoke(app, ["schedules", "--protocol", "skeen", "--json", str(summary)])
    assert done.exit_code == 0, done.output
    assert "9 of 9 as expected" in done.output
    assert {one["where"] for one in json.loads(summary.read_bytes())} == set(schedules.SCHEDULES)

    played = ["schedule", "two-groups", "--signals", "off", "--protocol", "white_box"]
    done = runner.invoke(app, [*played, "--expect", "violation", "--out", str(tmp_path / "two")])
    assert done.exit_code == 0 and "violation: strict serializability" in done.output
    assert (tmp_path / "two" / "history" / "clients.jsonl").exists()
    done = runner.invoke(app, [*played, "--option", "leaders_in_quorum=true", "--expect", "violation"])
    assert done.exit_code == 1 and "no violation" in done.output


def test_a_claim_that_does_not_hold_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strictness, "strict_groups_max", lambda protocol, options, groups: 2)
    monkeypatch.setattr(strictness, "GROUPS_TRIED", 2)
    monkeypatch.setattr(schedules, "SCHEDULES", {"two-groups": schedules.SCHEDULES["two-groups"]})
    done = CliRunner().invoke(app, ["strictness", "--protocol", "skeen", "--seeds", "2:3"])
    assert done.exit_code == 1 and "DIFFERS" in done.output and "replay: python -m kvstore.simulated run" in done.output
    done = CliRunner().invoke(app, ["schedules", "--protocol", "skeen"])
    assert done.exit_code == 1 and "differs: skeen, 2 groups, signals off" in done.output
