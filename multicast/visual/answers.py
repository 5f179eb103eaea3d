"""What one user asks of the server, and the answers: the operations of the page's WebSocket. No IO."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from multicast.visual.recorded import Run, first_violation, play, read, read_run
from multicast.visual.scenario import described, find, record, stage
from multicast.visual.session import STEPS_MAX, LiveSession
from multicast.visual.setup import ACTIONS_MAX, Problem, Script, read_actions, read_script, read_setup

Request = Mapping[str, Any]
Answer = dict[str, Any]


class User:
    """One page. What is open stays until something else has been opened. files: traces that it may open by name."""

    def __init__(self, files: Mapping[str, Path] | None = None):
        self._open: LiveSession | None = None
        self._files = files or {}

    def answer(self, request: Request) -> Answer:
        """Problem for what cannot be."""
        op = request.get("op")
        found = _OPERATIONS.get(op) if isinstance(op, str) else None
        if found is None:
            raise Problem(f"There is no operation {op!r}; there are {', '.join(_OPERATIONS)}.")
        return found(self, request)

    def _on_open(self, request: Request) -> Answer:
        if "setup" in request:
            actions = request.get("actions", ())
            return self._opened(LiveSession(Script(read_setup(request["setup"]), actions)))
        if "trace" in request:
            return self._recorded(read(str(request["trace"])), "")
        if "run" in request:
            return self._run(read_run(request["run"]))
        if "scenario" in request:
            return self._scenario(str(request["scenario"]))
        if "fragment" in request:
            return self._open_fragment(str(request["fragment"]))
        raise Problem("What is to be opened? A setup, fragment, scenario, trace or run.")

    def _open_fragment(self, fragment: str) -> Answer:
        kind, _, text = fragment.removeprefix("#").partition("=")
        if kind == "script":
            return self._opened(LiveSession(read_script(text)))
        if kind == "run":
            return self._run(read_run(text))
        if kind == "scenario":
            return self._scenario(text)
        if kind == "file":
            return self._file(unquote(text))
        raise Problem(f"The address ends with #{kind[:40]}, which means nothing here.")

    def _scenario(self, name: str) -> Answer:
        scenario, fragment = find(name), f"scenario={name}"
        live = scenario.setup is not None
        answer = self._opened(stage(scenario)) if live else self._recorded(record(scenario), fragment)
        return {**answer, "fragment": fragment, "at": scenario.at, "scenario": described(name)}

    def _run(self, run: Run) -> Answer:
        return self._recorded(play(run), run.fragment())

    def _file(self, name: str) -> Answer:
        if name not in self._files:
            raise Problem("This server was not started with that file; start it again, or open the file here.")
        try:
            return self._recorded(read(self._files[name].read_text(encoding="utf-8")), f"file={name}")
        except (OSError, UnicodeError) as error:
            raise Problem(f"{self._files[name]} cannot be read: {error}.") from None

    def _recorded(self, recording: Answer, fragment: str) -> Answer:
        self._open = None
        at = first_violation(recording)
        return {"kind": "opened", "recording": recording, "live": False, "at": at, "fragment": fragment}

    def _opened(self, session: LiveSession) -> Answer:
        self._open = session
        return session.opened()

    def _on_do(self, request: Request) -> Answer:
        at, live = _step(request), self._live()
        actions = read_actions(request.get("actions"), live.world.topology)
        session = live.at(at, anew=len(actions) > 1)
        session.do(actions)
        return self._gone_on(session, at)

    def _on_run(self, request: Request) -> Answer:
        at, steps_max = _step(request), request.get("steps_max", STEPS_MAX)
        if type(steps_max) is not int:
            raise Problem("The most steps to run, steps_max, is a number.")
        session = self._live().at(at)
        session.run(str(request.get("until", "step")), min(steps_max, STEPS_MAX, ACTIONS_MAX - at))
        return self._gone_on(session, at)

    def _gone_on(self, session: LiveSession, at: int) -> Answer:
        self._open = session
        return session.grown(at)

    def _on_look(self, request: Request) -> Answer:
        return {"kind": "here", **self._live().at(_step(request)).possible()}

    def _live(self) -> LiveSession:
        if self._open is None:
            raise Problem("Nothing is open that could go on; open a setup or a scenario.")
        return self._open


_OPERATIONS: dict[str, Callable[[User, Request], Answer]] = {
    "open": User._on_open, "do": User._on_do, "run": User._on_run, "look": User._on_look,
}  # fmt: skip


def _step(request: Request) -> int:
    at = request.get("at")
    if type(at) is not int:
        raise Problem("A request says after which step it is meant: at.")
    return at
