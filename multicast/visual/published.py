"""What the papers say of the protocol that is shown: latencies and numbers of messages, for the page's figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from multicast.protocol import MulticastProtocol, Options
from multicast.simulation.drawing import protocol_options
from multicast.simulation.latency.published import Published, table
from multicast.types import GroupId, ProcessId

_LATENCIES = {
    "collision_free": "collision_free_first", "collision_free_all": "collision_free_all",
    "failure_free": "failure_free_first", "failure_free_all": "failure_free_all",
}  # fmt: skip


def figures(protocol: MulticastProtocol, groups: Mapping[GroupId, Sequence[ProcessId]]) -> dict[str, Any]:
    """latency_delta: in δ, or as text where a consensus takes a part. messages_formula and messages_expected, by number
    of destination groups, messages to oneself included. Only what is published of these options."""
    published = _published(protocol)
    found: dict[str, Any] = {}
    latency = {} if published is None else _latencies(published)
    if not latency and protocol.specification.latency is not None:
        latency = dict(zip(("collision_free", "collision_free_all"), protocol.specification.latency, strict=True))
    if latency:
        found["latency_delta"] = latency
    sizes = {len(members) for members in groups.values()}
    if published is not None and published.messages is not None and len(sizes) == 1:
        count, size = published.messages, sizes.pop()
        found["messages_formula"] = count.text
        found["messages_expected"] = {str(k): count.base(k, size) for k in range(1, len(groups) + 1)}
    return found


def _published(protocol: MulticastProtocol) -> Published | None:
    kind, name = type(protocol), protocol.specification.name
    of_it = [row for row in table(skews=(0.0,)) if row.protocol == name]
    return next((row for row in of_it if _same(protocol_options(kind, row.options), protocol.options)), None)


def _same(one: Options, other: Options) -> bool:
    """Whether they agree in everything that has no unit of time."""
    return all(
        getattr(one, field.name) == getattr(other, field.name)
        for field in msgspec.structs.fields(type(one))
        if not field.name.endswith(("_us", "_us_max", "_max", "_bytes"))
    )


def _latencies(row: Published) -> dict[str, float | str]:
    figures = {name: getattr(row, field) for name, field in _LATENCIES.items()}
    return {
        name: delays if not instances else f"{delays:g} + {instances:g} consensus"
        for name, figure in figures.items()
        if figure is not None
        for delays, instances in [figure]
    }
