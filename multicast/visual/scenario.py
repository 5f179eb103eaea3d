"""Scenarios: files that say what to look at, what happens, and how it must end (`scenarios/*.toml`).

A script has the actions of live worlds, and three words more. ["all", [from, ...], [to, ...]]: everything that is under
way on these links arrives. ["run", "step" | "delivery" | "end", at most so many steps]
lets time run; ["until", {...}] lets it run until a line of the trace has these fields ("type" is also that of an
arrival's message).

`end` says what holds when the script is over, one list each:
["delivers", process, ["m1", ...]]      its final deliveries, in this order; a new life after a lost disk begins anew
["latency", message, process, delta]    from its multicast to its delivery there, in δ, to a hundredth
["waits", process, message, "words"]    once it was said of this message that it waits, in a sentence with these words
["phase", process, message, phase]      what the process holds it for
["is", process, field, value]           a field of what the process tells of itself
["line", {...}]                         such a line is in the trace
["violation", "words"]                  a checker says so; without this there must be none
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from multicast.simulation.trace import apply_patch
from multicast.visual.lines import Line
from multicast.visual.recorded import Run, Schedule, play, play_schedule
from multicast.visual.session import LiveSession, is_delivery
from multicast.visual.setup import Fixed, Problem, Script, Setup, read_actions

FOLDER = Path(__file__).with_name("scenarios")
STEPS_MAX = 600
"""Of one ["run"] or ["until"]."""


class Scenario(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One file. chapter: of which scenario this is a part, 1 to 10. at: the step to begin with. setup and script, or
    run: a seed, or a schedule of another world. end: see the module."""

    chapter: int
    title: str
    text: str
    watch: str
    learned: str
    setup: Setup | None = None
    script: tuple[tuple[Any, ...], ...] = ()
    run: Run | None = None
    schedule: Schedule | None = None
    at: int = 0
    end: tuple[tuple[Any, ...], ...]


@cache
def scenarios() -> dict[str, Scenario]:
    """id -> scenario, in their order. The id is the file's name."""
    read = {}
    for file in sorted(FOLDER.glob("*.toml")):
        try:
            read[file.stem] = msgspec.convert(tomllib.loads(file.read_text(encoding="utf-8")), Scenario, strict=False)
        except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
            raise ValueError(f"{file.name}: {error}") from None
    return read


def find(name: str) -> Scenario:
    """Problem if there is none of this name."""
    if name not in scenarios():
        raise Problem(f"There is no scenario {name[:40]!r}; choose one from the list.")
    return scenarios()[name]


def described(name: str) -> dict[str, Any]:
    """For the page's list."""
    scenario = scenarios()[name]
    texts = {field: " ".join(getattr(scenario, field).split()) for field in ("title", "text", "watch", "learned")}
    return {"id": name, "chapter": scenario.chapter, **texts}


def stage(scenario: Scenario) -> LiveSession:
    """The live world at the script's end. Problem if a word of it cannot be done."""
    assert scenario.setup is not None
    session = LiveSession(Script(scenario.setup), scenario.title)
    for word in scenario.script:
        if word[0] == "run":
            session.run(word[1], *(word[2:] or (STEPS_MAX,)))
        elif word[0] == "until":
            _until(session, word[1])
        elif word[0] == "all":
            _all(session, word[1], word[2])
        else:
            session.do(read_actions([list(word)], session.world.topology))
    return session


def _all(session: LiveSession, senders: Iterable[int], receivers: Iterable[int]) -> None:
    links = [(a, b) for b in receivers for a in senders]
    session.do([("arrive", *link) for link in links for _ in session.world.links.get(link, ())])


def _until(session: LiveSession, wanted: Mapping[str, Any]) -> None:
    for _ in range(STEPS_MAX):
        begin = len(session.world.lines)
        session.run("step")
        if any(fits(line, wanted) for line in session.world.lines[begin:]):
            return
    raise Problem(f"Nothing like {dict(wanted)} has happened.")


def fits(line: Line, wanted: Mapping[str, Any]) -> bool:
    """Whether a line has these fields."""
    message = line.get("message")
    kind = line.get("type") or (message.get("type") if isinstance(message, dict) else None)
    return all((kind if key == "type" else line.get(key)) == value for key, value in wanted.items())


def record(scenario: Scenario) -> dict[str, Any]:
    """What happens, recorded. Problem."""
    if scenario.schedule is not None:
        recorded = play_schedule(scenario.schedule)
        recorded["header"]["title"] = scenario.title
        return recorded
    return play(scenario.run) if scenario.run is not None else stage(scenario).recording()


# -- how it ends ------------------------------------------------------------------------------------------------------


def missed(scenario: Scenario, recorded: Mapping[str, Any]) -> list[str]:
    """What of its stated end does not hold, one sentence each."""
    end = _End(recorded, scenario.setup)
    found = [f"{list(word)}: {why}" for word in scenario.end if (why := end.misses(word[0], *word[1:]))]
    if recorded["violations"] and not any(word[0] == "violation" for word in scenario.end):
        found.append(f"there is a violation: {recorded['violations'][0]}")
    return found


class _End:
    def __init__(self, recorded: Mapping[str, Any], setup: Setup | None):
        self.lines: list[Line] = recorded["lines"]
        self.violations = recorded["violations"]
        self.delta_us = setup.delays.us if setup is not None and isinstance(setup.delays, Fixed) else 1_000
        self.states: dict[int, dict[str, Any]] = {}
        for line in self.lines:
            if line.get("event") == "life":
                self.states[line["process"]] = {}
            if "changed" in line:
                self.states[line["process"]] = apply_patch(self.states[line["process"]], line["changed"])

    def misses(self, kind: str, *words: Any) -> str:
        """Why this does not hold; empty if it does."""
        found: str = getattr(self, f"_{kind}")(*words)
        return found

    def _delivers(self, process: int, messages: list[str]) -> str:
        log: list[str] = []
        for line in self._of(process):
            if is_delivery(line):
                log[line["position"] - 1 :] = [line["message"]]
        return "" if log == messages else f"it delivers {', '.join(log) or 'nothing'}"

    def _latency(self, message: str, process: int, delta: float) -> str:
        begin = next(line["t"] for line in self.lines if line.get("event") == "submit" and line["message"] == message)
        ends = [line["t"] for line in self._of(process) if is_delivery(line) and line["message"] == message]
        took = (ends[0] - begin) / self.delta_us if ends else None
        return "" if took is not None and abs(took - delta) < 0.01 else f"it takes {took} δ"

    def _waits(self, process: int, message: str, words: str) -> str:
        patches = [line.get("changed", {}).get("messages", {}).get(message) or {} for line in self._of(process)]
        said = [patch["why"] for patch in patches if patch.get("why")]
        return "" if any(words in why for why in said) else f"it is said: {said}"

    def _phase(self, process: int, message: str, phase: str) -> str:
        found = self.states[process].get("messages", {}).get(message, {}).get("phase")
        return "" if found == phase else f"it is {found}"

    def _is(self, process: int, field: str, value: Any) -> str:
        found = self.states[process].get(field)
        return "" if found == value else f"it is {found}"

    def _line(self, wanted: Mapping[str, Any]) -> str:
        return "" if any(fits(line, wanted) for line in self.lines) else "there is none"

    def _violation(self, words: str) -> str:
        found = [f"{v['checker']}: {v['text']}" for v in self.violations]
        return "" if any(words in text for text in found) else f"the checkers say {found}"

    def _of(self, process: int) -> Iterable[Line]:
        return (line for line in self.lines if line.get("process") == process)
