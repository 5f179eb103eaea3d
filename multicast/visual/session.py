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
"""Of one `run`, unless somebody says less."""


class LiveSession:
    """A script and the world at its end."""

    def __init__(self, script: Script, title: str = ""):
        self.title = title
        self.setup: Setup = script.setup
        self.actions: list[Action] = []
        self.world = LiveWorld(self.setup)
        self._waits = Waits(self.world.lines[0]["groups"])
        self._counts: list[int] = []
        self._number(0)
        self.do(read_actions(script.actions, self.world.topology))

    @property
    def steps(self) -> int:
        return len(self.actions)

    def fragment(self) -> str:
        """The script, as it stands in an address."""
        return Script(self.setup, tuple(self.actions)).fragment()

    # -- going on -----------------------------------------------------------------------------------------------------

    def at(self, step: int, anew: bool = False) -> LiveSession:
        """One that has gone so far only: this, if it has and need not stay as it is (anew). Problem."""
        if not 0 <= step <= self.steps:
            raise Problem(f"There is no step {step}; there are {self.steps}.")
        if step == self.steps and not anew:
            return self
        return LiveSession(Script(self.setup, tuple(self.actions[:step])), self.title)

    def do(self, actions: Iterable[Action]) -> None:
        """Go on. Problem if one of them is not possible; those before it are done."""
        for action in actions:
            if self.steps >= ACTIONS_MAX:
                raise Problem(f"A live run has at most {ACTIONS_MAX} steps; open a new one, or go back.")
            self.world.act(action)
            self.actions.append(action)
            self._number(self.steps)

    def run(self, until: str, steps_max: int = STEPS_MAX) -> None:
        """Let time run: one step, to the next delivery, or until everything is delivered and nothing of it is under
        way. Problem."""
        if until not in ("step", "delivery", "end"):
            raise Problem(f"Time runs until step, delivery or end, not {until!r}.")
        before = len(self.world.lines)
        for _ in range(1 if until == "step" else steps_max):
            action = self.world.earliest()
            if action is None or (until == "end" and self.world.at_rest()):
                return
            self.do([action])
            if until == "delivery" and any(map(is_delivery, self.world.lines[before:])):
                return

    def _number(self, step: int) -> None:
        """The lines that are new are this step's."""
        new = self.world.lines[self._counts[-1] if self._counts else 0 :]
        for line in new:
            line["s"] = step
        self._waits.explain(new)
        self._counts.append(len(self.world.lines))

    # -- what is seen -------------------------------------------------------------------------------------------------

    def opened(self) -> dict[str, Any]:
        """The answer to whoever opens it."""
        return {
            "kind": "opened", "recording": self.recording(), "live": True, "at": self.steps,
            "fragment": self.fragment(), **self.possible(),
        }  # fmt: skip

    def grown(self, at: int) -> dict[str, Any]:
        """The answer to whoever knows what was up to step `at`."""
        return {
            "kind": "grown", "from": at + 1, "lines": self.world.lines[self._counts[at] :], "steps": self.steps,
            "fragment": self.fragment(), "violations": self._violations(), **self.possible(),
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

    def possible(self) -> dict[str, Any]:
        """What may happen now, and what is under way."""
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
