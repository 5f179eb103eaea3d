"""A trace's lines, live or recorded, and what the page wants to know of them: their steps, what arrives where, why a
message waits."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from multicast.simulation.trace import Trace, apply_patch

Line = dict[str, Any]

LINES_MAX = 200_000

_STEPS = frozenset((
    "submit", "arrival", "timer", "batch end", "reset", "install", "stable", "life", "crash", "fault", "heal",
))  # fmt: skip
"""Lines that begin a step of a recorded run."""
_NAME = re.compile(r"m\d+")


class TooLong(BaseException):
    """The run has more lines than can be shown. No `Exception`: the simulator would take it for a bug of a protocol."""


class KeptTrace(Trace):
    """A trace that keeps its lines."""

    def __init__(self, protocol: str, seed: int, settings: msgspec.Struct, replay: str):
        super().__init__(str, protocol, seed, settings, replay)
        self.kept: list[Line] = []

    def _line(self, content: Mapping[str, Any]) -> None:
        if self.lines >= LINES_MAX:
            raise TooLong
        self.kept.append(dict(content))
        self.lines += 1


    def conclude(self, violations: Sequence[str]) -> None:
        """The last lines of a run that was judged from outside: "checker: text"."""
        told = [(checker, text) for one in violations for checker, _, text in [one.partition(": ")]]
        self._violations += told
        self.finish()
        self._line({"n": self.lines, "event": "violations", "violations": [{"checker": c, "text": t} for c, t in told]})


def number_steps(lines: Iterable[Line]) -> int:
    """Give every line of a recorded run its step; before anything is multicast or fails there is step 0. How many steps
    there are."""
    step, started = 0, False
    for line in lines:
        event = line.get("event")
        started = started or event in ("submit", "crash", "fault")
        if started and event in _STEPS:
            step += 1
        line["s"] = step
    return step


def match_arrivals(lines: Iterable[Line]) -> None:
    """Give every arrival of a recorded run the line that told that it left, where that is known: links are FIFO, and
    what was under way to or from a process that dies may be lost."""
    under_way: dict[tuple[int, int, str], deque[Line]] = {}
    for line in lines:
        event = line.get("event")
        if event == "leave":
            for receiver in line["to"]:
                under_way.setdefault((line["process"], receiver, line["type"]), deque()).append(line)
        elif event == "life":
            for key in [key for key in under_way if key[0] == line["process"]]:
                del under_way[key]
        elif event == "arrival" and line["from"] != line["process"]:
            queue = under_way.get((line["from"], line["process"], line["message"]["type"]), deque())
            about = set(names_in(line["message"]))
            skipped = 0
            for skipped, leave in enumerate(queue):  # noqa: B007 - how many were lost is needed below
                if set(leave.get("about", ())) <= about:
                    line["of"] = leave["n"]
                    break
            if "of" in line:
                for _ in range(skipped + 1):
                    queue.popleft()


def names_in(value: Any) -> Iterator[str]:
    """The messages that a message's fields name."""
    if isinstance(value, str):
        if _NAME.fullmatch(value):
            yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from names_in(key)
            yield from names_in(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from names_in(item)


class Waits:
    """Says in sentences why messages wait. Knows what every process was told to be, line by line.

    groups: of the topology; a timestamp's tie-break is one of them in most protocols.
    """

    def __init__(self, groups: Iterable[str]):
        self._groups = {int(group) for group in groups}
        self._states: dict[int, dict[str, Any]] = {}

    def explain(self, lines: Iterable[Line]) -> None:
        """Put `why` beside each `blocked_by` that changes, and beside those whose blockers have changed."""
        for line in lines:
            if line.get("event") == "life":
                self._states[line["process"]] = {}
            changed = line.get("changed")
            if changed is None:
                continue
            process = line["process"]
            state = self._states[process] = apply_patch(self._states.get(process, {}), changed)
            messages = state.get("messages", {})
            for name, patch in (changed.get("messages") or {}).items():
                if patch is not None and "blocked_by" in patch:
                    blockers = patch["blocked_by"]
                    patch["why"] = self.sentence(blockers, messages) if blockers else None
                    if name in messages:
                        messages[name] = apply_patch(messages[name], {"why": patch["why"]})

    def sentence(self, blockers: list[Mapping[str, Any]], messages: Mapping[str, Any]) -> str:
        """Of one message, for people."""
        silent = [str(blocker["process"]) for blocker in blockers if "process" in blocker]
        if len(silent) > 1 and len(silent) == len(blockers):
            names = f"{', '.join(silent[:-1])} and {silent[-1]}"
            return f"waits for processes {names}: nothing new was heard from them, and their words count"
        said = [self._one(blocker, messages) for blocker in blockers[:3]]
        more = len(blockers) - len(said)
        return "; ".join(said) + (f"; and {more} more" if more > 0 else "")

    def _one(self, blocker: Mapping[str, Any], messages: Mapping[str, Any]) -> str:
        for kind, say in _SENTENCES.items():
            if kind in blocker:
                return say(self, blocker, messages)
        return f"waits for {dict(blocker)}"

    def _message(self, blocker: Mapping[str, Any], messages: Mapping[str, Any]) -> str:
        name, at = blocker["message"], self.stamp(blocker.get("at"))
        if "final" in messages.get(name, {}):
            return f"waits for {name}: its place {at} comes first"
        return f"waits for {name}: its local timestamp {at} is lower and its final one is not known"

    def _clock(self, blocker: Mapping[str, Any], messages: Mapping[str, Any]) -> str:
        clocks = {"leader": "the leader's clock", "quorum": "the clocks of a quorum", "group": "the group's clock"}
        which = clocks.get(blocker["clock"], f"the clock {blocker['clock']!r}")
        return f"waits until {which}, now known up to {blocker.get('at')}, reaches its timestamp"

    def _barrier(self, blocker: Mapping[str, Any], messages: Mapping[str, Any]) -> str:
        barrier = self.stamp(blocker.get("barrier"))
        return f"waits for group {blocker['group']}, which has promised nothing lower up to {barrier} only"

    def _process(self, blocker: Mapping[str, Any], messages: Mapping[str, Any]) -> str:
        return f"waits for process {blocker['process']}: nothing new was heard from it, and its word counts"

    def _leader(self, blocker: Mapping[str, Any], messages: Mapping[str, Any]) -> str:
        return f"waits for its leader, process {blocker['leader']}, to say that it is to be delivered"

    def stamp(self, at: Any) -> str:
        """A timestamp, for people."""
        if isinstance(at, list) and len(at) == 2:
            return f"({at[0]}, {'g' * (at[1] in self._groups)}{at[1]})"
        return str(at)


_SENTENCES: dict[str, Callable[[Waits, Mapping[str, Any], Mapping[str, Any]], str]] = {
    "message": Waits._message, "clock": Waits._clock, "barrier": Waits._barrier, "process": Waits._process,
    "leader": Waits._leader,
}  # fmt: skip
