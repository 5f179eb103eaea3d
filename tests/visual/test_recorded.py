"""Trace files and failing seeds: the same picture whatever the source, and the way to a violation."""

from __future__ import annotations

import cProfile
import json
import re
import sys
from itertools import cycle, islice
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from multicast import registry
from multicast.simulation.cli import BadUsage
from multicast.simulation.commands.run import _print_summary
from multicast.simulation.runner import Settings, Summary, run_seed
from multicast.simulation.trace import Trace, apply_patch
from multicast.visual import lines, pictures, recorded
from multicast.visual.__main__ import app
from multicast.visual.answers import User
from multicast.visual.catalogue import catalogue
from multicast.visual.pictures import PICTURES, is_current
from multicast.visual.recorded import Run, play, read
from multicast.visual.setup import Problem, default_setup, plain
from tests.planted import skeen as planted

ROOT = Path(__file__).resolve().parents[2]


def traced(protocol: str, seed: int, settings: Settings) -> str:
    """A trace file."""
    lines: list[str] = []
    trace = Trace(lines.append, protocol, seed, settings, "")
    trace.end(run_seed(registry.load(protocol), seed, settings, [trace]))
    return "".join(lines)


def test_a_file_and_the_seed_that_it_is_of_are_one_recording() -> None:
    settings = Settings(profile="faults", size="small", groups=2, messages=6)
    of_file = read(traced("white_box", 2, settings))
    of_seed = play(Run(protocol="white_box", seed=2, profile="faults", size="small", groups=2, messages=6))
    del of_file["header"]["replay"], of_seed["header"]["replay"]
    assert json.loads(json.dumps(of_seed)) == of_file
    assert of_file["complete"] and of_file["violations"] == []


def test_a_file_that_was_cut_off_shows_what_there_is() -> None:
    text = traced("skeen", 1, Settings(profile="calm", groups=2, messages=5))
    recording = read(text[: len(text) // 2])
    assert not recording["complete"] and len(recording["lines"]) > 10


def test_steps_arrivals_and_waits_of_a_recorded_run() -> None:
    recording = play(Run(protocol="skeen", seed=8, profile="calm", groups=2, messages=60))
    lines = {line["n"]: line for line in recording["lines"]}
    numbers = [line["s"] for line in lines.values()]
    assert numbers == sorted(numbers) and numbers[-1] == recording["steps"] and numbers[0] == 0
    arrivals = [line for line in lines.values() if line["event"] == "arrival" and line["from"] != line["process"]]
    assert sum("of" in line for line in arrivals) > 0.9 * len(arrivals)
    for line in arrivals:
        if "of" in line:
            left = lines[line["of"]]
            assert left["type"] == line["message"]["type"] and line["process"] in left["to"] and left["t"] <= line["t"]
    states: dict[int, Any] = {}
    said = set()
    for line in lines.values():
        if "changed" in line:
            state = states[line["process"]] = apply_patch(states.get(line["process"], {}), line["changed"])
            for message in state["messages"].values():
                assert ("why" in message) == ("blocked_by" in message)
                said.add(message.get("why", ""))
    assert any(re.match(r"waits for m\d+: its local timestamp \(\d+, g\d\) is lower", why) for why in said)


def test_a_failing_seed_of_a_planted_bug_opens_at_its_violation() -> None:
    bug = next(bug for bug in planted.PLANTED if bug.name == "ClockNotAdvanced")
    run = Run(protocol="skeen", seed=bug.first_seed, bug=bug.name)
    answer = User().answer({"op": "open", "fragment": f"#{run.fragment()}"})
    recording = answer["recording"]
    assert answer["fragment"] == run.fragment() and recording["violations"]
    assert bug.name in recording["header"]["title"]
    shown = next(line for line in recording["lines"] if line["event"] == "violation")
    assert answer["at"] == shown["s"] > 0
    assert not re.search(r"[0-9a-f]{32}", shown["text"])
    source = recording["handlers"]["arrival:Propose"]
    assert source["file"] == "multicast/protocols/skeen.py" and "Fig. 1" in source["paper"]


def test_a_run_that_is_too_long_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (lines, recorded):
        monkeypatch.setattr(module, "LINES_MAX", 100)
    with pytest.raises(Problem, match="longer than 100 lines"):
        play(Run(protocol="skeen", seed=1))
    with pytest.raises(Problem, match="at most 100 can be shown"):
        read("{}\n" * 101)


def test_a_failing_run_prints_the_command_that_shows_it(capsys: pytest.CaptureFixture[str]) -> None:
    """Words for words what `simulation run` prints, understood by the command line."""
    settings = Settings(profile="faults", size="small", groups=2, options={"retry_us": "20000"})
    summary = Summary("skeen", settings)
    outcome = run_seed(registry.load("skeen"), 7, settings)
    outcome.violations.append(("order", "planted here"))
    summary.add(outcome)
    _print_summary(summary)
    printed = re.findall(r"see: (python -m multicast\.visual .*)", capsys.readouterr().out)
    assert printed == [settings.see("skeen", 7)]
    shown: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("multicast.visual.__main__._serve", lambda fragment, *more: shown.append(fragment))
        app(printed[0].split()[3:], standalone_mode=False)
    run = Run(protocol="skeen", seed=7, profile="faults", size="small", groups=2, options={"retry_us": "20000"})
    assert shown == [run.fragment()] and run.settings(run.kind()) == settings


def test_whatever_is_wrong_with_a_field_of_a_line_is_one_sentence_or_does_no_harm() -> None:
    bug = next(bug for bug in planted.PLANTED if bug.name == "ClockNotAdvanced")
    recording = play(Run(protocol="skeen", seed=bug.first_seed, bug=bug.name))
    kinds = {line["event"]: line for line in reversed(recording["lines"])}
    assert {"life", "submit", "leave", "arrival", "delivery", "violation"} <= kinds.keys()
    header = {**recording["header"], "protocol": "one that is not known here"}
    events = [*kinds.values(), {"n": 9, "event": "violations", "violations": []}]
    refused = 0
    for number, event in enumerate(events):
        for field in event:
            for value in (..., None, [], {}, "x", -1, [[1]], {"messages": 1}, {"messages": {"m1": 1}}, True):
                changed = {name: was for name, was in event.items() if name != field}
                if value is not ...:
                    changed[field] = value
                try:
                    read("\n".join(map(json.dumps, [header, *events[:number], changed, *events[number + 1 :]])))
                except Problem as problem:
                    refused += 1
                    assert f"ine {number + 2}" in str(problem)
    assert refused > 100


def test_the_work_for_a_trace_grows_with_its_length_and_no_faster() -> None:
    header, *rows = traced("white_box", 7, Settings(profile="faults", size="small", groups=2)).splitlines()

    def calls(count: int) -> int:
        profile = cProfile.Profile()
        text = "\n".join([header, *islice(cycle(rows), count)])
        profile.runcall(User().answer, {"op": "open", "trace": text})
        return sum(entry.callcount for entry in profile.getstats())

    assert calls(4_000) < 2.5 * calls(2_000)


# -- a protocol that nobody has heard of -------------------------------------------------------------------------------


def test_a_protocol_that_is_one_more_file_is_shown_without_a_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tutorial's, under another name."""
    source = (ROOT / "multicast" / "protocols" / "sequencer.py").read_text()
    module = ModuleType("multicast.protocols.bellman")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(source.replace('name="sequencer"', 'name="bellman"'), "bellman.py", "exec"), vars(module))
    known, load = registry.names, registry.load
    monkeypatch.setattr(registry, "names", lambda: [*known(), "bellman"])
    monkeypatch.setattr(registry, "load", lambda name: module.Sequencer if name == "bellman" else load(name))
    assert catalogue()["protocols"][-1]["name"] == "bellman"
    user = User()
    user.answer({"op": "open", "setup": plain(default_setup(module.Sequencer))})
    user.answer({"op": "do", "at": 0, "actions": [["multicast", 1, [0, 1]]]})
    lines = user.answer({"op": "run", "at": 1, "until": "end"})["lines"]
    assert {line["process"] for line in lines if line["event"] == "delivery"} == {0, 1}


@pytest.mark.parametrize("name", registry.names())
def test_every_message_has_its_handler_and_every_handler_its_place(name: str) -> None:
    kind = registry.load(name)
    user = User()
    recording = user.answer({"op": "open", "setup": plain(default_setup(kind))})["recording"]
    for message in kind.specification.messages:
        shown = recording["handlers"][f"arrival:{message.__name__}"]
        text = (ROOT / shown["file"]).read_text().splitlines()
        assert shown["source"].splitlines()[0] in text[shown["line"] - 1].strip()
        assert shown["paper"].startswith(kind.specification.paper)


def test_without_the_extra_the_server_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "multicast.visual.server", raising=False)
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    with pytest.raises(BadUsage, match=r"needs aiohttp.* in a checkout.*: pip install '\.\[visual\]'"):
        app(["--port", "0"], standalone_mode=False)


# -- pictures ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", registry.names())
def test_the_picture_of_each_protocol_is_current_small_and_linked(name: str) -> None:
    assert is_current(name), "draw it anew: python -m multicast.visual pictures"
    assert (PICTURES / f"{name}.svg").stat().st_size < 300_000
    assert f"pictures/{name}.svg" in (PICTURES.parent / f"{name}.md").read_text()


def test_a_picture_of_another_run_is_not_current(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(pictures, "PICTURES", tmp_path)
    assert not is_current("skeen")
    (tmp_path / "skeen.svg").write_text(f"<!-- run: {'0' * 32} -->")
    assert not is_current("skeen")


def test_without_the_browser_drawing_is_one_sentence() -> None:
    with pytest.raises(Problem, match=r"cannot draw|needs playwright"):
        pictures.draw(["skeen"], "/nowhere/chromium")


def test_a_scenario_and_a_trace_are_exported_as_one_file(tmp_path: Path) -> None:
    trace, out = tmp_path / "trace.jsonl", tmp_path / "page.html"
    trace.write_text(traced("skeen", 1, Settings(profile="calm", groups=2, messages=5)))
    for what, title in (("01-skeen", "Skeen&#x27;s algorithm"), (str(trace), "skeen, seed 1")):
        app(["export", what, "-o", str(out)], standalone_mode=False)
        text = out.read_text()
        assert '<script type="application/json" id="recording">' in text and title in text
        assert not re.search(r'(src|href)="(?!#|data:)', text)


@pytest.mark.parametrize(
    ("content", "expected"), [("what", "Line 1 is not JSON"), (None, "there is no such file, and the scenarios are")]
)
def test_what_cannot_be_exported_is_one_sentence(content: str | None, expected: str, tmp_path: Path) -> None:
    trace, out = tmp_path / "trace.jsonl", tmp_path / "page.html"
    if content is not None:
        trace.write_text(content)
    with pytest.raises(BadUsage, match=expected):
        app(["export", str(trace), "-o", str(out)], standalone_mode=False)
    with pytest.raises(BadUsage, match="--out"):
        app(["export", "01-skeen", "-o", str(tmp_path / "no" / "page.html")], standalone_mode=False)
    assert not out.exists()
