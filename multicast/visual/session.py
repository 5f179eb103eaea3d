"""One user's world: what is open, live or recorded, and how it goes on. No IO.

A live world is known by its script. To go back is to run the script up to there anew; the world at its end is kept, so
going on costs one action.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from multicast.simulation.scene import EPOCH_US
from multicast.types import FINAL
from multicast.visual.handlers import handlers
from multicast.visual.lines import Line, Waits
from multicast.visual.live import LiveWorld
from multicast.visual.published import figures
from multicast.visual.setup import ACTIONS_MAX, Action, Fixed, Problem, Script, Setup, read_actions

STEPS_MAX = 200
"""Of one `run`, unless the page says less."""


class LiveSession:
    """A script and the world at its end. Problem: nothing was changed."""

    def __init__(self, script: Script, title: str = ""):
        self.title = title
        self.setup: Setup = script.setup
        self.actions: list[Action] = []
        self.world = LiveWorld(self.setup)
        self._waits = Waits(self.world.lines[0]["groups"])
        self._told = self._step(0, 0)
        self._counts = [self._told]
        self._do(read_actions(script.actions, self.world.topology))

    @property
    def steps(self) -> int:
        return len(self.actions)

    def fragment(self) -> str:
        return Script(self.setup, tuple(self.actions)).fragment()

    # -- going on -----------------------------------------------------------------------------------------------------

    def do(self, at: int, actions: Any) -> dict[str, Any]:
        """Cut the script after step `at`, and do these. What has grown."""
        return self._grow(at, read_actions(actions, self.world.topology))

    def run(self, at: int, until: str, steps_max: int) -> dict[str, Any]:
        """Cut the script after step `at`, and let time run: one step, to the next delivery, or until everything is
        delivered and nothing of it is under way."""
        if until not in ("step", "delivery", "end"):
            raise Problem(f"Time runs until step, delivery or end, not {until!r}.")
        session = self._at(at)
        before = session._counts[-1]
        for _ in range(1 if until == "step" else min(steps_max, STEPS_MAX)):
            action = session.world.earliest()
            if action is None or (until == "end" and session.world.at_rest()):
                break
            session._do([action])
            if until == "delivery" and any(map(is_delivery, session.world.lines[before:])):
                break
        return self._take(session, at)

    def look(self, at: int) -> dict[str, Any]:
        """What may happen after step `at`."""
        return {"kind": "here", **self._at(at)._possible()}

    def _grow(self, at: int, actions: list[Action]) -> dict[str, Any]:
        session, done = self._at(at), self.steps
        try:
            session._do(actions)
        except Problem:
            if session is self and self.steps > done:
                self._become(LiveSession(Script(self.setup, tuple(self.actions[:done])), self.title))
            raise
        return self._take(session, at)

    def _at(self, at: int) -> LiveSession:
        """This session, or one that has gone so far only."""
        if not 0 <= at <= self.steps:
            raise Problem(f"There is no step {at}; there are {self.steps}.")
        return self if at == self.steps else LiveSession(Script(self.setup, tuple(self.actions[:at])), self.title)

    def _take(self, session: LiveSession, at: int) -> dict[str, Any]:
        if session is not self:
            self._become(session)
        return {
            "kind": "grown", "from": at + 1, "lines": self.world.lines[self._counts[at] :], "steps": self.steps,
            "fragment": self.fragment(), "violations": self._violations(), **self._possible(),
        }  # fmt: skip

    def _become(self, other: LiveSession) -> None:
        self.__dict__.update(other.__dict__)

    def _do(self, actions: Iterable[Action]) -> None:
        for action in actions:
            if self.steps >= ACTIONS_MAX:
                raise Problem(f"A live run has at most {ACTIONS_MAX} steps; open a new one, or go back.")
            self.world.act(action)
            self.actions.append(action)
            self._told = self._step(self._told, self.steps)
            self._counts.append(self._told)

    def _step(self, begin: int, step: int) -> int:
        """Number the new lines; how many there are now."""
        new = self.world.lines[begin:]
        for line in new:
            line["s"] = step
        self._waits.explain(new)
        return len(self.world.lines)

    # -- what is seen -------------------------------------------------------------------------------------------------

    def opened(self, at: int | None = None) -> dict[str, Any]:
        """The answer to whoever opens it."""
        return {
            "kind": "opened", "recording": self.recording(), "live": True, "at": self.steps if at is None else at,
            "fragment": self.fragment(), **self._possible(),
        }  # fmt: skip

    def recording(self) -> dict[str, Any]:
        """Everything that happened, as the page shows it."""
        return {
            "header": self._header(), "lines": self.world.lines[1:], "handlers": handlers(self.world.started),
            "steps": self.steps, "violations": self._violations(), "complete": True,
        }  # fmt: skip

    def _header(self) -> Line:
        world = self.world
        delays = self.setup.delays
        return {
            **world.header(), "title": self.title or world.started.specification.summary,
            "clock": world.started.options.clock, "senders": list(self.setup.senders),
            **({"delta_us": delays.us} if isinstance(delays, Fixed) else {}),
            **figures(world.started, self.setup.groups),
        }  # fmt: skip

    def _violations(self) -> list[dict[str, str]]:
        return [{"checker": checker, "text": text} for checker, text in self.world.scene.violations]

    def _possible(self) -> dict[str, Any]:
        world = self.world
        enabled = [
            {"action": list(action), "text": world.sentence(action), "at_us": instant - EPOCH_US}
            for instant, action in sorted(world.coming(), key=lambda one: (one[0], one[1][0], one[1][1:]))
        ]
        down = [p for p in world.topology.processes if p not in world.engines] if not world.broken else []
        enabled += [{"action": ["restart", p], "text": f"process {p} restarts"} for p in down]
        return {"enabled": enabled, "links": world.under_way()}


def is_delivery(line: Line) -> bool:
    """Of a message whose place is decided."""
    return line.get("event") == "delivery" and line.get("stage") == FINAL
