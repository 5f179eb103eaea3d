"""`trace`: the lines say what happened, and do not change it."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from multicast import registry
from multicast.parts.pending import PendingQueue
from multicast.protocol import MulticastProtocol
from multicast.simulation import joins
from multicast.simulation.runner import Settings, run_seed
from multicast.simulation.trace import VERSION, Trace, apply_patch, merge_patch
from multicast.types import Timestamp
from tests.planted import skeen as planted
from tests.simulation.conftest import Done

SMALL = Settings(groups=2, messages=12, size="small")
BY_DEFAULT = ("sequencer", "skeen", "white_box")


def _traced(protocol: type[MulticastProtocol], seed: int, settings: Settings) -> tuple[str, list[dict[str, Any]]]:
    lines: list[str] = []
    trace = Trace(lines.append, protocol.specification.name, seed, settings, "")
    outcome = run_seed(protocol, seed, settings, [trace])
    trace.end(outcome)
    assert len(lines) == trace.lines
    return outcome.digest, [json.loads(line) for line in lines]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in BY_DEFAULT else pytest.mark.full) for name in registry.names()]
)
def test_a_traced_run_is_the_same_run_and_is_told_whole(name: str) -> None:
    protocol = registry.load(name)
    untraced = run_seed(protocol, 1, SMALL)
    digest, lines = _traced(protocol, 1, SMALL)
    assert digest == untraced.digest
    header, *events, end, last = lines
    assert (header["trace"], header["protocol"], header["seed"]) == (VERSION, name, 1)
    assert header["options"] == untraced.options
    assert len(header["groups"]) == 2
    assert (end["event"], end["digest"], end["faults"]) == ("end", digest, untraced.faults)
    assert last["violations"] == []
    assert [line["n"] for line in lines[1:]] == list(range(1, len(lines)))
    assert all(a["t"] <= b["t"] for a, b in pairwise(events))
    deliveries = [e for e in events if e["event"] == "delivery" and e["stage"] == 2]
    assert len(deliveries) == untraced.deliveries
    assert sum(e["event"] == "fault" and e["begins"] for e in events) == sum(untraced.faults.values())
    submitted = {e["message"]: e["id"] for e in events if e["event"] == "submit"}
    taken = {e["message"] for e in events if e["event"] == "submit" and "refused" not in e}
    assert len(taken) == untraced.messages
    assert {e["message"] for e in deliveries} <= submitted.keys()
    _check_states(events, submitted)


def test_the_header_names_those_who_may_be_added(monkeypatch: pytest.MonkeyPatch) -> None:
    planned = [joins.Planned(1_000, 1, True, False)]
    monkeypatch.setattr(joins, "draw", lambda *drawn: planned)
    settings = Settings(groups=2, replicas=1, messages=2, size="small")
    header, *events = _traced(registry.load("white_box"), 1, settings)[1]
    assert header["groups"] == {"0": [0], "1": [1, 2]}
    assert {event["process"] for event in events if event["event"] == "life"} == {0, 1, 2}


def _check_states(events: list[dict[str, Any]], submitted: dict[str, str]) -> None:
    """Every process has a role and a list of messages, under their names, at every step; and what it delivers was
    known to it or installed."""
    states: dict[int, dict[str, Any]] = {}
    seen: set[tuple[int, str]] = set()
    for event in events:
        process = event.get("process")
        if event["event"] == "life":
            states[process] = {}
        if "changed" in event:
            states[process] = apply_patch(states[process], event["changed"])
            assert states[process]["role"]
            messages = states[process]["messages"]
            assert messages.keys() <= submitted.keys()
            assert all(message["phase"] for message in messages.values())
            seen |= {(process, message) for message in messages}
            for message in messages.values():
                for blocker in message.get("blocked_by", ()):
                    assert blocker.get("message", "m1") in submitted
    assert seen, "no process ever knew of a message"


def test_a_violation_is_the_last_word() -> None:
    bug = planted.PLANTED[0]
    seed = next(s for s in range(200) if run_seed(bug.protocol, s, bug.settings).violations)
    _, lines = _traced(bug.protocol, seed, bug.settings)
    told = [(v["checker"], v["text"]) for v in lines[-1]["violations"]]
    assert told == run_seed(bug.protocol, seed, bug.settings).violations
    assert lines[-2]["event"] == "end"


def test_what_blocks_a_committed_message() -> None:
    queue = PendingQueue()
    low, high, other = (bytes([n]) * 16 for n in range(3))
    queue.propose(low, Timestamp(2, 0))
    queue.commit(high, Timestamp(5, 1))
    queue.commit(other, Timestamp(1, 1))
    assert queue.blockers() == {
        high: [{"message": other.hex(), "at": [1, 1]}, {"message": low.hex(), "at": [2, 0]}],
        other: [],
    }
    assert queue.blockers({"leader": 4, "quorum": 9})[high][2:] == [{"clock": "leader", "at": 4}]
    queue.commit(low, Timestamp(6, 0))
    assert queue.pop() == (Timestamp(1, 1), other)
    assert queue.blockers()[high] == []


def test_a_wait_for_a_lower_message_is_told() -> None:
    """A convoy: somewhere a committed message waits for one that is only proposed."""
    _, lines = _traced(registry.load("skeen"), 8, Settings(profile="calm", groups=2, messages=100))
    waits = [
        (message["final"], blocker["at"])
        for line in lines
        for message in line.get("changed", {}).get("messages", {}).values()
        if message and "final" in message
        for blocker in message.get("blocked_by") or ()
    ]
    assert waits
    assert all(at < final for final, at in waits)


def test_merge_patches() -> None:
    before = {"a": 1, "b": {"c": [1], "d": 2}, "e": {"f": 1}}
    after = {"a": 1, "b": {"c": [2], "g": {"h": 0}}, "i": {}}
    patch = merge_patch(before, after)
    assert patch == {"e": None, "b": {"d": None, "c": [2], "g": {"h": 0}}, "i": {}}
    assert apply_patch(before, patch) == after
    assert merge_patch(after, after) == {}


def test_the_command_writes_a_file(simulate: Callable[..., Done], tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    arguments = ("--protocol", "skeen", "--seed", "1", "--out", str(path), "--groups", "2", "--messages", "5")
    done = simulate("trace", *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = path.read_text().splitlines()
    assert f"{len(lines)} lines in {path}" in done.stdout
    assert json.loads(lines[-2])["digest"] in done.stdout


def test_a_run_directory_has_the_journals_and_a_trace_that_says_what_frames_are_about(
    simulate: Callable[..., Done], tmp_path: Path
) -> None:
    out = tmp_path / "run"
    arguments = ("--protocol", "skeen", "--seed", "1", "--out", str(out), "--groups", "2", "--messages", "5")
    arguments += ("--option", "coordinator=false")
    done = simulate("trace", *arguments, "--run-dir")
    assert done.returncode == 0, done.stdout + done.stderr
    assert len({path.parent for path in out.glob("replicas/*/journal/*.seg")}) == 2
    header, *events = map(json.loads, (out / "trace" / "trace.jsonl").read_text().splitlines())
    assert header["genuine"] is True
    left = [event for event in events if event.get("event") == "leave"]
    assert {event["type"] for event in left if not event.get("housekeeping")} == {"Multicast", "Propose"}
    assert all(len(event["about"]) == 1 for event in left if event["type"] == "Propose")
    again = simulate("trace", *arguments, "--run-dir")
    assert again.returncode == 2 and "is not an empty directory" in again.stderr


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--protocol", "skeen", "--seed", "-1", "--out", "x"), "--seed is from 0"),
        (("--protocol", "nosuch", "--seed", "1", "--out", "x"), "--protocol"),
        (("--protocol", "all", "--seed", "1", "--out", "x"), "one protocol at a time"),
        (("--protocol", "skeen", "--seed", "1", "--out", "/nowhere/x"), "--out /nowhere/x: No such file or directory"),
        (("--protocol", "skeen", "--seed", "1", "--out", "x", "--bug", "Nobody"), "no planted bug 'Nobody'"),
    ],
)
def test_bad_usage_is_one_sentence(simulate: Callable[..., Done], arguments: tuple[str, ...], text: str) -> None:
    done = simulate("trace", *arguments)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert text in done.stderr
    assert len(done.stderr.splitlines()) == 1
