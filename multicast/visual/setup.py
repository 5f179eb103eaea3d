"""What a live world is made of, and what is done in it: setup, actions, and the text in an address that holds both."""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec

from multicast import registry
from multicast.protocol import MulticastProtocol, Options
from multicast.simulation.drawing import protocol_options
from multicast.simulation.mutants import BadPackage, Bug, load
from multicast.simulation.runner import Settings
from multicast.types import GroupId, ProcessId, Topology

BUGS = "tests.planted"
"""The package of planted bugs that a setup may name, where it is importable."""
PROCESSES_MAX = 24
ACTIONS_MAX = 2_000
SCRIPT_BYTES_MAX = 1_000_000
DELAY_US_MAX = 3_600_000_000

Action = tuple[Any, ...]
"""("multicast", process, [groups]), (kind, process), (kind, from, to) or ("wait", microseconds)."""
ON_PROCESSES = ("crash", "restart", "lose_disk", "pause", "resume", "timer", "sync")
ON_LINKS = ("arrive", "cut", "mend")

_Us = Annotated[int, msgspec.Meta(ge=0, le=DELAY_US_MAX)]
_Process = Annotated[int, msgspec.Meta(ge=0, lt=1 << 16)]


class Problem(ValueError):
    """One sentence for the page. Nothing was changed."""


class Fixed(msgspec.Struct, frozen=True, tag="fixed", tag_field="kind", forbid_unknown_fields=True):
    """Every message takes so long."""

    us: _Us = 1_000


class Drawn(msgspec.Struct, frozen=True, tag="drawn", tag_field="kind", forbid_unknown_fields=True):
    """Evenly, from the setup's seed."""

    low_us: _Us
    high_us: _Us


class Links(msgspec.Struct, frozen=True, tag="links", tag_field="kind", forbid_unknown_fields=True):
    """us: but for these links: (from, to, microseconds)."""

    us: _Us
    links: tuple[tuple[ProcessId, ProcessId, _Us], ...] = ()


class Setup(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Protocol, processes, clocks and delays. options: values as in JSON. senders: processes outside all groups; each
    is a group of its own, with its number, to which nobody sends. clock: None: as in the options. clock_offsets_us: how
    far wall clocks are ahead. fsync_us: how long a disk takes to sync. bug: the name of a planted bug of the
    protocol."""

    protocol: str
    options: dict[str, Any] = {}
    groups: dict[GroupId, tuple[_Process, ...]]
    senders: tuple[_Process, ...] = ()
    clock: Literal["logical", "hybrid"] | None = None
    clock_offsets_us: dict[ProcessId, Annotated[int, msgspec.Meta(ge=-DELAY_US_MAX, le=DELAY_US_MAX)]] = {}
    delays: Fixed | Drawn | Links = Fixed()
    fsync_us: _Us = 0
    seed: int = 0
    bug: str | None = None

    def topology(self) -> Topology:
        """Groups and senders. Problem."""
        count = sum(map(len, self.groups.values())) + len(self.senders)
        if not self.groups:
            raise Problem("There is no group; add one, with at least one process.")
        if count > PROCESSES_MAX:
            raise Problem(f"There are {count} processes; at most {PROCESSES_MAX} can be shown.")
        groups: dict[GroupId, Sequence[ProcessId]] = dict(self.groups)
        for sender in self.senders:
            if sender in groups:
                raise Problem(f"{sender} is a group; an outside sender needs a number that no group has.")
            groups[sender] = (sender,)
        try:
            return Topology(groups)
        except ValueError as error:
            raise Problem(f"These groups cannot be: {error}.") from None

    def kind(self) -> type[MulticastProtocol]:
        """The protocol's class, with the planted bug if one is named. Problem."""
        return protocol_class(self.protocol, self.bug)

    def made_options(self, protocol: type[MulticastProtocol]) -> Options:
        """The protocol's options. With the hybrid clock every wall clock is believed unless the options say something
        else: processes that compare their clocks would fill the picture. Problem."""
        values = {name: option_text(value) for name, value in self.options.items()}
        if self.clock is not None:
            values.setdefault("clock", self.clock)
        if values.get("clock") == "hybrid":
            values.setdefault("clock_skew_us_max", "0")
        try:
            return protocol_options(protocol, values)
        except ValueError as error:
            raise Problem(f"{str(error)[0].upper()}{str(error)[1:]}.") from None


class Script(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything that a run of a live world depends on."""

    setup: Setup
    actions: tuple[Action, ...] = ()

    def fragment(self) -> str:
        """As it stands in an address, behind the #."""
        data = zlib.compress(msgspec.json.encode([self.setup, self.actions]), 9)
        return f"script={base64.urlsafe_b64encode(data).rstrip(b'=').decode()}"


def read_script(text: str) -> Script:
    """Of what `Script.fragment` wrote behind "script=". Problem."""
    try:
        data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        unpacker = zlib.decompressobj()
        plain = unpacker.decompress(data, SCRIPT_BYTES_MAX)
        if unpacker.unconsumed_tail:
            raise Problem("The script in the address is too long.")
        setup, actions = msgspec.json.decode(plain, type=tuple[Setup, tuple[Action, ...]])
    except (binascii.Error, zlib.error, UnicodeError) as error:
        raise Problem(f"The script in the address is damaged or cut off: {error}.") from None
    except msgspec.ValidationError as error:
        raise Problem(f"The script in the address does not fit: {error}.") from None
    except msgspec.DecodeError:
        raise Problem("The script in the address is damaged or cut off.") from None
    return Script(setup, actions)


def read_setup(content: Any) -> Setup:
    """From JSON. Problem."""
    try:
        return msgspec.convert(content, Setup, strict=False)
    except msgspec.ValidationError as error:
        raise Problem(f"This setup cannot be: {error}.") from None


def read_actions(content: Any, topology: Topology) -> list[Action]:
    """From JSON; whether their processes and groups exist. Problem."""
    if not isinstance(content, list | tuple) or len(content) > ACTIONS_MAX:
        raise Problem(f"A script is a list of at most {ACTIONS_MAX} actions.")
    return [_action(one, topology) for one in content]


def _action(one: Any, topology: Topology) -> Action:
    match one:
        case [str(kind), int(process)] if kind in ON_PROCESSES:
            named: Sequence[int] = (process,)
        case [str(kind), int(a), int(b)] if kind in ON_LINKS:
            named = (a, b)
        case ["wait", int(us)] if 0 < us <= DELAY_US_MAX:
            return ("wait", us)
        case ["multicast", int(process), [*groups]] if groups and all(type(g) is int for g in groups):
            for group in groups:
                if group not in topology.groups:
                    raise Problem(f"There is no group {group}.")
            return ("multicast", process, sorted(set(groups))) if _known((process,), topology) else ()
        case _:
            raise Problem(f"This is no action: {msgspec.json.encode(one).decode()[:80]}.")
    return (kind, *named) if _known(named, topology) else ()


def _known(processes: Sequence[ProcessId], topology: Topology) -> bool:
    for process in processes:
        if process not in topology.group_of:
            raise Problem(f"There is no process {process}.")
    return True


def protocol_class(name: str, bug: str | None) -> type[MulticastProtocol]:
    """The protocol of this name, with this planted bug. Problem."""
    try:
        protocol = registry.load(name)
    except registry.UnknownProtocol as error:
        raise Problem(f"{str(error)[0].upper()}{str(error)[1:]}.") from None
    return protocol if bug is None else _bug(name, bug).protocol


def planted_settings(protocol: str, name: str) -> Settings:
    """Of the runs that shall show this planted bug. Problem."""
    return _bug(protocol, name).settings


def _bug(protocol: str, name: str) -> Bug:
    try:
        bugs = load(BUGS)
    except BadPackage as error:
        raise Problem(f"Planted bugs are only there where the tests are: {error}.") from None
    for bug in (bug for some in bugs.values() for bug in some):
        if bug.protocol.__name__ == name and bug.protocol.specification.name == protocol:
            return bug
    raise Problem(f"There is no planted bug {name!r} of {protocol}.")


def default_setup(protocol: type[MulticastProtocol]) -> Setup:
    """Two groups of three, or of one where a group is one process."""
    size = 3 if protocol.specification.fault_tolerant else 1
    return Setup(protocol=protocol.specification.name, groups=Topology.grid(2, size).groups)


def option_text(value: Any) -> str:
    """An option's value as on a command line."""
    return ("false", "true")[value] if isinstance(value, bool) else str(value)


def plain(setup: Setup) -> Mapping[str, Any]:
    """As JSON."""
    built: dict[str, Any] = msgspec.to_builtins(setup, str_keys=True)
    return built
