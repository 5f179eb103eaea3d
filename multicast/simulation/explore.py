"""Bounded exhaustive exploration: every order in which the messages of a small run can arrive, on the real code.

Theory of operation. `model` says what a state is, and which actions are possible in it. States are visited breadth
first, so a counterexample is as short as any. A state is entered again by repeating the actions that led to it, which
costs no memory.

Two arrivals at different processes commute: neither can see the other, and links are FIFO. Of such permutations one is
enough. Sleep sets (Godefroid, Partial-Order Methods, 1996, Chapter 5) leave out the others, in the form for searches
that remember states: a state that is reached again with a smaller sleep set is expanded by the difference. Sleep sets
prune transitions, never states, so no counterexample is lost or made longer. Crashes, restarts and timers commute with
nothing here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import msgspec

from multicast.protocol import MulticastProtocol, Options
from multicast.simulation.model import Action, Bounds, Model
from multicast.types import Topology


class Explored(msgspec.Struct, kw_only=True):
    """exhausted: every state within the bounds was visited. depth: the longest shortest way to a state, in actions.
    ends: states in which nothing more can happen. violation, schedule: the first one found, and the way there, for
    people."""

    exhausted: bool
    states: int
    transitions: int
    depth: int
    ends: int
    violation: str = ""
    schedule: list[str] = []


class _Visit:
    """A state. parent, action: how it was first reached. sleep: which actions need not be tried from it. done: it was
    expanded. todo: actions still to be tried; None: all that are enabled and not asleep."""

    __slots__ = ("action", "depth", "done", "parent", "sleep", "todo")

    def __init__(self, parent: _Visit | None, action: Action | None, sleep: frozenset[Action], depth: int):
        self.parent = parent
        self.action = action
        self.sleep = sleep
        self.depth = depth
        self.done = False
        self.todo: set[Action] | None = None

    def path(self) -> list[Action]:
        actions = []
        visit: _Visit | None = self
        while visit is not None and visit.action is not None:
            actions.append(visit.action)
            visit = visit.parent
        return actions[::-1]


def explore(
    protocol: type[MulticastProtocol],
    topology: Topology,
    options: Options,
    bounds: Bounds,
    progress: Callable[[int, int], None] | None = None,
) -> Explored:
    """Visit every state within the bounds. progress: told (states, depth) now and then. Keyboard interrupts go
    through."""
    return _Search(protocol, topology, options, bounds, progress).run()


class _Search:
    def __init__(
        self,
        protocol: type[MulticastProtocol],
        topology: Topology,
        options: Options,
        bounds: Bounds,
        progress: Callable[[int, int], None] | None,
    ):
        self._arguments = (protocol, topology, options, bounds)
        self._bounds = bounds
        self._progress = progress
        self._known: dict[bytes, _Visit] = {}
        self._queue: deque[_Visit] = deque()
        self._found = Explored(exhausted=False, states=0, transitions=0, depth=0, ends=0)

    def run(self) -> Explored:
        found, model = self._found, Model(*self._arguments)
        root = _Visit(None, None, frozenset(), 0)
        self._known[model.fingerprint()] = root
        self._queue.append(root)
        found.states = 1
        while self._queue:
            if found.states >= self._bounds.states_max:
                return found
            visit = self._queue.popleft()
            if not self._expand(visit):
                return found
        found.exhausted = True
        return found

    def _replay(self, visit: _Visit) -> Model:
        model = Model(*self._arguments)
        for action in visit.path():
            model.do(action)
        return model

    def _expand(self, visit: _Visit) -> bool:
        """Try what is to be tried from a state. False: something was violated."""
        found, here = self._found, self._replay(visit)
        enabled = list(here.enabled())
        places = {action: here.place(action) for action in (*enabled, *visit.sleep)}
        if not visit.done and all(action.kind == "crash" for action in enabled):
            found.ends += 1
            if wrong := here.unfinished():
                return self._violated(visit, None, wrong)
        visit.done = True
        todo = set(enabled) - visit.sleep if visit.todo is None else visit.todo & set(enabled)
        visit.todo = set()
        asleep = set(visit.sleep) - todo
        for number, action in enumerate([a for a in enabled if a in todo]):
            model = self._replay(visit) if number else here
            try:
                model.do(action)
                wrong = model.wrong()
            except Exception as error:
                wrong = f"exception: {type(error).__name__}: {error}"
            found.transitions += 1
            if wrong:
                return self._violated(visit, action, wrong)
            place = places[action]
            sleep = frozenset(
                other for other in asleep if place is not None and places[other] is not None and places[other] != place
            )
            self._reach(model.fingerprint(), visit, action, sleep)
            asleep.add(action)
        return True

    def _reach(self, fingerprint: bytes, parent: _Visit, action: Action, sleep: frozenset[Action]) -> None:
        found = self._found
        visit = self._known.get(fingerprint)
        if visit is None:
            visit = self._known[fingerprint] = _Visit(parent, action, sleep, parent.depth + 1)
            self._queue.append(visit)
            found.states += 1
            found.depth = max(found.depth, visit.depth)
            if self._progress is not None and found.states % 500 == 0:
                self._progress(found.states, visit.depth)
            return
        awake = visit.sleep - sleep
        if not awake:
            return
        visit.sleep &= sleep
        if visit.done:
            if not visit.todo:
                self._queue.append(visit)
            visit.todo = (visit.todo or set()) | awake

    def _violated(self, visit: _Visit, action: Action | None, wrong: str) -> bool:
        found, model = self._found, Model(*self._arguments)
        found.violation = wrong
        found.schedule = []
        for step in [*visit.path(), *([action] if action is not None else [])]:
            line = model.describe(step)
            before = model.delivered()
            try:
                model.do(step)
            except Exception as error:
                line += f" -> {type(error).__name__}"
            for process, log in model.delivered().items():
                for text in log[len(before[process]) :]:
                    line += f"; process {process} delivers {text}"
            found.schedule.append(line)
        return False
