"""What a process keeps though everything has long been done: what nobody may need any more, and what it still asks for.

A leak does no harm in a short run. So what has no reason to hold anything by then is looked at wherever it is, on a
process's disk (`_ON_DISK`) and in the process: `GOES`, by classes and names of their variables (like in `invariants`,
known by name only). What stays for a reason is not in there: memory of ids, watermarks, who leads, and heaps from which
things are taken late.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from multicast.checkpoint import Checkpoints
from multicast.protocol import MulticastProtocol
from multicast.types import ProcessId

if TYPE_CHECKING:
    from multicast.simulation.scene import Node
    from multicast.simulation.world import World

_ON_DISK = {"received on disk": (b"i", 11), "messages on disk": (b"m", 17)}
"""What a protocol deletes once nobody needs it: how its keys begin, and how long they are. (Of ToTo's casts those stay
that are not followed.)"""

Left = Callable[[ProcessId], dict[str, int]]
"""How much a process keeps: name -> number."""

_LEFT = ("pending", "submitted", "entries", "outgoing", "unsettled")
"""Of `MulticastProtocol.describe`: what a process keeps only as long as somebody may need it."""
_ASKS = ("_retries", "_payloads")
_PERIOD_US = 200_000
"""At least: a store's feed goes on for ten seconds when nobody watches any more."""
_ASKED_PERIODS, _HELD_PERIODS, _SYNC_PERIODS = 100, 20, 4
"""So many of a protocol's longest timers the last message may be kept for: what was lost is asked for more and more
rarely. And what nobody asks for, afterwards; and its deletion, until it is on disk."""
_CONTAINERS = (dict, list, set, deque)
_WITHIN = ("multicast.", "kvstore.core.")

GOES: dict[str, tuple[str, ...]] = {
    "Assembly": ("_lists",),
    "Behind": ("_told",),
    "Casts": ("_ids", "_queue"),
    "CausalView": ("_waiting",),
    "Channel": ("unsaved",),
    "Coordinator": ("gathering", "handed"),
    "DeliveredLog": ("_not_durable", "_overdue", "_unsettled"),
    "Election": ("_asked", "_votes"),
    "FastCast": ("doubts", "softs"),
    "GroupClocks": ("_future",),
    "GroupLog": ("_locals", "_uncovered", "entries"),
    "Instances": ("_chosen", "_taken"),
    "LeaderReads": ("_rounds", "_waiting"),
    "LeadersWord": ("_heard", "_said"),
    "Leadership": ("_held",),
    "Paxos": ("_accepting", "_queue", "proposals"),
    "Payloads": ("_holders",),
    "PendingQueue": ("_committed", "_proposed"),
    "PrimCast": ("_acks", "_proposable", "_replies", "entries"),
    "QuasiGenuine": ("_ahead_wants", "_held"),
    "Reign": ("_positions", "held", "in_flight"),
    "Rejoin": ("_answers",),
    "ReplicatedSkeen": ("stamps",),
    "Retries": ("_asked", "_since", "_times", "_waiting"),
    "Sequence": ("_expected", "_places"),
    "Sequencer": ("_unplaced",),
    "Skeen": ("_above", "_entries"),
    "StateTransfer": ("_waiting",),
    "Stream": ("_outgoing",),
    "Submissions": ("_asking", "_fresh", "_messages"),
    "Toto": ("_asking", "_early", "_mine", "_queue", "_target"),
    "WaitingMessages": ("_copies", "_heap", "items"),
    "WhiteBox": ("_acks", "_early", "entries"),
}  # fmt: skip


def wait(world: World, left: Left, period_us: int) -> dict[ProcessId, dict[str, int]]:
    """Let the world run until nobody keeps anything that he should not. Returns who does in the end, and what. left: of
    what runs on the protocols. Whoever is removed does nothing more, and may."""

    def asked() -> dict[ProcessId, dict[str, int]]:
        there = [p for p in world.nodes if world.belongs(p)]
        found = {p: kept(world.nodes[p].protocol) | {k: n for k, n in left(p).items() if n} for p in there}
        return {p: much for p, much in found.items() if much}

    def anywhere() -> dict[ProcessId, dict[str, int]]:
        found = {p: held(node.protocol, GOES) for p, node in world.nodes.items() if world.belongs(p)}
        return {p: much for p, much in found.items() if much}

    def on_disks() -> dict[ProcessId, dict[str, int]]:
        found = {p: on_disk(node) for p, node in world.nodes.items() if world.belongs(p)}
        return {p: much for p, much in found.items() if much}

    period_us = max(period_us, _PERIOD_US)
    for keep, periods in ((asked, _ASKED_PERIODS), (anywhere, _HELD_PERIODS), (on_disks, _SYNC_PERIODS)):
        if not world.run_while(lambda keep=keep: bool(keep()), periods * period_us, period_us // 4):  # type: ignore[misc]
            return keep()
    return {}


def kept(protocol: MulticastProtocol) -> dict[str, int]:
    """How much of what -> number, where it is not 0. questions: keys of `parts.retries` that wait for an answer."""
    told, parts = protocol.describe(), vars(protocol)
    found = {name: told.get(name, 0) for name in _LEFT}
    found["questions"] = sum(len(getattr(parts[name], "_retries", parts[name])) for name in _ASKS if name in parts)
    if "member" in parts:
        found["instances"] = told["kept"]
    if "early" in parts:
        early = parts["early"]
        found["early"] = len(early._delivered) + len(early._heap) + len(early._pending)
    return {name: number for name, number in found.items() if number}


def on_disk(node: Node) -> dict[str, int]:
    """How much is left of that on its disk: name -> number, where it is not 0."""
    keys = Checkpoints(node.journal).saved()
    found = {name: sum(k[:1] == prefix and len(k) == size for k in keys) for name, (prefix, size) in _ON_DISK.items()}
    return {name: number for name, number in found.items() if number}


def held(root: Any, goes: Mapping[str, tuple[str, ...]]) -> dict[str, int]:
    """What is not empty, not None and not 0 of these variables, of this object and of all that it consists of: class
    and name -> how much."""
    found: dict[str, int] = {}
    for one, variables in consists_of(root):
        names = {name for kind in type(one).__mro__ for name in goes.get(kind.__name__, ())}
        for name, value in variables:
            many = _size(value) if name in names else 0
            if many:
                found[f"{type(one).__name__}.{name}"] = many
    return found


def consists_of(root: Any) -> Iterator[tuple[Any, list[tuple[str, Any]]]]:
    """This object and all that it consists of, each once, with its variables: name and value."""
    seen, todo = {id(root)}, [root]
    while todo:
        one = todo.pop()
        variables = list(_variables(one))
        yield one, variables
        for _, value in variables:
            for part in _parts(value):
                if id(part) not in seen:
                    seen.add(id(part))
                    todo.append(part)


Thing = tuple[int, str, Any]
"""Of which object, class and name of the variable, and what is in there."""


def things(root: Any, goes: Mapping[str, tuple[str, ...]]) -> dict[Thing, Any]:
    """What these variables hold (see `held`), one by one; with each whatever must live for it to be known again."""
    found: dict[Thing, Any] = {}
    for one, variables in consists_of(root):
        names = {name for kind in type(one).__mro__ for name in goes.get(kind.__name__, ())}
        for name, value in variables:
            if name in names:
                where = id(one), f"{type(one).__name__}.{name}"
                found.update({(*where, key): (one, thing) for key, thing in _inside(value)})
    return found


def _inside(value: Any) -> Iterator[tuple[Any, Any]]:
    """What is in there, as `_size` counts it, each with what it is known by."""
    if not isinstance(value, _CONTAINERS):
        yield from [(id(value), value)] if value else []
    elif isinstance(value, dict):
        nested = all(isinstance(inner, _CONTAINERS) for inner in value.values())
        for key, inner in value.items():
            yield from [((key, place), thing) for place, thing in _inside(inner)] if nested else [(key, inner)]
    else:
        yield from [(thing if isinstance(value, set) else id(thing), thing) for thing in value]


def _size(value: Any) -> int:
    """How many things are in it; of containers in it, what is in these. Of no container: whether there is anything."""
    if not isinstance(value, _CONTAINERS):
        return int(bool(value))
    inner = list(value.values() if isinstance(value, dict) else value)
    if inner and all(isinstance(one, _CONTAINERS) for one in inner):
        return sum(map(len, inner))
    return len(inner)


def _variables(one: Any) -> Iterator[tuple[str, Any]]:
    for kind in type(one).__mro__:
        slots = vars(kind).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if hasattr(one, name):
                yield name, getattr(one, name)
    yield from getattr(one, "__dict__", {}).items()


def _parts(value: Any) -> Iterator[Any]:
    """The objects that this is, or has in it, if it is a container."""
    if isinstance(value, _CONTAINERS):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _parts(inner)
    elif not isinstance(value, type) and any(kind.__module__.startswith(_WITHIN) for kind in type(value).__mro__):
        yield value
