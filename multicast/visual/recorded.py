"""Recorded runs: a trace file that somebody opens, or a seed of the simulator that is run again for its trace."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, urlencode

import msgspec

from multicast import registry
from multicast.protocol import MulticastProtocol
from multicast.simulation.drawing import SIZES, protocol_options
from multicast.simulation.runner import PROFILES, Settings
from multicast.simulation.trace import VERSION
from multicast.simulation.worlds import NoWorld, load, run_seed
from multicast.types import GroupId, ProcessId, Topology
from multicast.visual.handlers import handlers
from multicast.visual.lines import LINES_MAX, KeptTrace, Line, TooLong, Waits, match_arrivals, number_steps
from multicast.visual.published import figures
from multicast.visual.setup import Problem, option_text, planted_settings, protocol_class

_ID = re.compile(r"\b[0-9a-f]{32}\b")
SEED_MAX = 1 << 53
GROUPS_MAX, REPLICAS_MAX, MESSAGES_MAX = 16, 9, 2_000


class _Header(msgspec.Struct):
    trace: int
    groups: dict[GroupId, list[ProcessId]]
    protocol: str = ""
    options: dict[str, Any] = {}


class _Changed(msgspec.Struct):
    messages: dict[str, dict[str, Any] | None] | None = None


class _Violation(msgspec.Struct):
    checker: str
    text: str


class _Line(msgspec.Struct, rename={"sender": "from"}):
    """What this package and the page count on; everything else is only shown."""

    n: int
    event: str
    t: int = 0
    process: int | None = None
    sender: int | None = None
    to: list[int] | int | None = None
    type: str | None = None
    message: dict[str, Any] | str | None = None
    about: list[str] = []
    changed: _Changed | None = None
    sends: list[dict[str, Any]] = []
    id: str | None = None
    checker: str | None = None
    text: str | None = None
    violations: list[_Violation] | None = None


_NEEDS = {
    "life": ("process",),
    "submit": ("process", "message", "id"),
    "leave": ("process", "to", "type"),
    "arrival": ("process", "from", "message"),
    "violation": ("checker", "text"),
    "violations": ("violations",),
}
"""What a line of an event cannot do without."""


def read(text: str) -> dict[str, Any]:
    """A recording of a trace file. What was cut off in its last line is left out. Problem."""
    rows = text.splitlines()
    if len(rows) > LINES_MAX:
        raise Problem(f"This trace has {len(rows)} lines; at most {LINES_MAX} can be shown.")
    lines: list[Line] = []
    header: _Header | None = None
    for number, row in enumerate(rows, 1):
        try:
            line = msgspec.json.decode(row)
            if header is None:
                header = msgspec.convert(line, _Header, strict=False)
            else:
                _check(msgspec.convert(line, _Line), header, number)
        except msgspec.ValidationError as error:
            raise Problem(f"Line {number} is no line of a trace: {error}.") from None
        except (msgspec.DecodeError, UnicodeError):
            if number == len(rows) and number > 1:
                break  # the run was interrupted while it was written
            raise Problem(f"Line {number} is not JSON; is this a file of `simulation trace`?") from None
        if number == 1 and header is not None and header.trace > VERSION:
            raise Problem(f"This trace has format {header.trace}, and this version reads format {VERSION} at most.")
        lines.append(line)
    if header is None:
        raise Problem("This file is empty; a trace has one line of JSON per event.")
    return recording(lines, _protocol(header))


def _check(line: _Line, header: _Header, number: int) -> None:
    known = {p for members in header.groups.values() for p in members}
    to = line.to if isinstance(line.to, list) else []
    for process in (line.process, line.sender, *to):
        if process is not None and process not in known:
            raise Problem(f"Line {number} names process {process}, and the trace has no such process.")
    for field in _NEEDS.get(line.event, ("process",) if line.changed is not None else ()):
        if getattr(line, "sender" if field == "from" else field) is None:
            raise Problem(f"Line {number} is no line of a trace: `{line.event}` has {field}.")
    if isinstance(line.message, dict) and not isinstance(line.message.get("type"), str):
        raise Problem(f"Line {number} is no line of a trace: the message has no type.")
    if line.event == "leave" and not isinstance(line.to, list):
        raise Problem(f"Line {number} is no line of a trace: `leave` goes to a list of processes.")
    if line.event == "arrival" and not isinstance(line.message, dict):
        raise Problem(f"Line {number} is no line of a trace: the message that arrives has no fields.")
    if line.event == "submit" and not isinstance(line.message, str):
        raise Problem(f"Line {number} is no line of a trace: the message that is multicast has no name.")


def _protocol(header: _Header) -> MulticastProtocol | None:
    """One process of the run's, if the protocol is known here."""
    try:
        return _process(registry.load(header.protocol), header)
    except ValueError:
        return None


def _process(protocol: type[MulticastProtocol], header: _Header) -> MulticastProtocol:
    """One of the run's processes, to look at."""
    options = protocol_options(protocol, {name: option_text(value) for name, value in header.options.items()})
    topology = Topology(header.groups)
    return protocol(topology.processes[0], topology, options, random.Random(0))


def recording(lines: list[Line], protocol: MulticastProtocol | None) -> dict[str, Any]:
    """What the page shows of a trace's lines; they get what it wants beside."""
    header, events = lines[0], lines[1:]
    told = next((line["violations"] for line in reversed(events) if line.get("event") == "violations"), None)
    _name_messages(events, told or [])
    found = [{"checker": e["checker"], "text": e["text"]} for e in events if e.get("event") == "violation"]
    steps = number_steps(events)
    match_arrivals(events)
    Waits(header["groups"]).explain(events)
    more: dict[str, Any] = {"clock": header.get("options", {}).get("clock", "logical"), "senders": []}
    if protocol is not None:
        more |= figures(protocol, protocol.topology.groups)
    title = f"{header.get('protocol', '')}, seed {header.get('seed', '')}"
    return {
        "header": {"title": title, **header, **more}, "lines": events,
        "handlers": {} if protocol is None else handlers(protocol), "steps": steps,
        "violations": found if told is None else told, "complete": told is not None,
    }  # fmt: skip


def _name_messages(events: list[Line], told: list[dict[str, str]]) -> None:
    """In what checkers say: names for ids."""
    names = {event["id"]: event["message"] for event in events if event.get("event") == "submit" and "id" in event}
    for one in (*told, *(event for event in events if event.get("event") == "violation")):
        one["text"] = _ID.sub(lambda found: names.get(found[0], found[0]), one["text"])


def first_violation(recorded: Mapping[str, Any]) -> int:
    """The step that shows it; without any, the first."""
    return next((line["s"] for line in recorded["lines"] if line.get("event") == "violation"), 0)


# -- runs -------------------------------------------------------------------------------------------------------------


class Run(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A seed of `simulation run`. With a bug and nothing else: as the bug's settings say."""

    protocol: str
    seed: int
    profile: str | None = None
    size: str | None = None
    groups: int | None = None
    replicas: int | None = None
    messages: int | None = None
    options: dict[str, str] = {}
    store: bool = False
    bug: str | None = None

    def fragment(self) -> str:
        """As it stands in an address, behind the #."""
        words = [(name, value) for name in _WORDS if (value := getattr(self, name)) is not None]
        words += [(f"option.{name}", value) for name, value in sorted(self.options.items())]
        return f"run={urlencode(words + [('store', '1')] * self.store)}"

    def kind(self) -> type[MulticastProtocol]:
        """The protocol's class, with the bug. Problem."""
        return protocol_class(self.protocol, self.bug)

    def settings(self, protocol: type[MulticastProtocol]) -> Settings:
        """Problem for what cannot be."""
        given = {name: getattr(self, name) for name in _FIXED if getattr(self, name) is not None}
        if self.bug is not None and not given and not self.options:
            return planted_settings(self.protocol, self.bug)
        for name, most in (("groups", GROUPS_MAX), ("replicas", REPLICAS_MAX), ("messages", MESSAGES_MAX)):
            if not 1 <= given.get(name, 1) <= most:
                raise Problem(f"The number of {name} is from 1 to {most}, not {given[name]}.")
        if not 0 <= self.seed <= SEED_MAX:
            raise Problem(f"A seed is from 0 to {SEED_MAX}, not {self.seed}.")
        if given.get("size", SIZES[0]) not in SIZES:
            raise Problem(f"The size is {' or '.join(SIZES)}, not {self.size!r}.")
        if given.get("replicas", 1) != 1 and not protocol.specification.fault_tolerant:
            raise Problem(f"With {self.protocol} every group is one process.")
        settings = Settings(**given, options=self.options, store=self.store)
        try:
            protocol_options(protocol, self.options)
            world = load("store") if self.store else None
            if world is not None:
                world.check(protocol, settings)
        except (ValueError, NoWorld) as error:
            raise Problem(f"This run cannot be: {error}.") from None
        profiles = PROFILES if world is None else world.profiles
        if settings.profile not in profiles:
            raise Problem(f"The profile is {' or '.join(profiles)}, not {settings.profile!r}.")
        return settings


_FIXED = ("profile", "size", "groups", "replicas", "messages")
_WORDS = ("protocol", "seed", *_FIXED, "bug")


def read_run(content: Any) -> Run:
    """From JSON, or from what `Run.fragment` wrote behind "run=". Problem."""
    if isinstance(content, str):
        pairs = dict(parse_qsl(content, keep_blank_values=True))
        options = {name.removeprefix("option."): pairs.pop(name) for name in list(pairs) if name.startswith("option.")}
        content = {**pairs, "options": options}
    try:
        return msgspec.convert(content, Run, strict=False)
    except msgspec.ValidationError as error:
        raise Problem(f"This run cannot be: {error}.") from None


def play(run: Run) -> dict[str, Any]:
    """Run the seed, and record it. Problem."""
    protocol = run.kind()
    settings = run.settings(protocol)
    trace = KeptTrace(run.protocol, run.seed, settings, settings.replay(run.protocol, run.seed))
    try:
        trace.end(run_seed(protocol, run.seed, settings, [trace]))
    except TooLong:
        raise Problem(f"This run is longer than {LINES_MAX} lines, which is the most that can be shown.") from None
    recorded = _whole(trace, protocol)
    if run.bug is not None:
        recorded["header"]["title"] += f", with the planted bug {run.bug}"
    return recorded


class Schedule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A scripted schedule of a world on top of the protocols (`multicast.simulation.worlds`), in one variant."""

    world: str
    name: str
    variant: str
    protocol: str


def play_schedule(schedule: Schedule) -> dict[str, Any]:
    """Play the schedule, and record it. Problem."""
    protocol = protocol_class(schedule.protocol, None)
    trace = KeptTrace(schedule.protocol, 0, schedule, "")
    try:
        trace.conclude(load(schedule.world).play(schedule.name, schedule.variant, protocol, [trace]))
    except (ValueError, NoWorld) as error:
        raise Problem(f"This schedule cannot be played: {error}.") from None
    return _whole(trace, protocol)


def _whole(trace: KeptTrace, protocol: type[MulticastProtocol]) -> dict[str, Any]:
    header = msgspec.convert(trace.kept[0], _Header, strict=False)
    return recording(trace.kept, _process(protocol, header))
