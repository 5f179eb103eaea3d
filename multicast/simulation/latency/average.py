"""Delivery latency when consensus is always busy, averaged over the phases of the groups' consensus instances.

The quasi-genuine paper's average: a message waits half an instance on average until its own group's consensus is free,
and then for the slowest of its blockers', each in an instance of its own. So every group is kept busy with messages of
its own, instance after instance, each group at its own phase. Phases and m's sending are sampled evenly, every
stratum of each once (a Latin hypercube), so that few samples suffice.

The blockers' clocks are far behind: the paper counts no barrier that happens to have been passed by traffic.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from multicast.simulation.latency.schedule import DELTA_US, Model
from multicast.simulation.latency.stage import EPOCH_US, Stage
from multicast.types import AppMessage, new_message_id

SAMPLES = 60
_BUSY_US = 5 * DELTA_US
_START_US = 20 * DELTA_US
_LIMIT_US = 60 * DELTA_US
_BEHIND_US = 80 * DELTA_US


def average(
    model: Model, consensus: float, seed: int, samples: int = SAMPLES, progress: Callable[[float], None] | None = None
) -> float:
    """Mean latency, in δ, until all members of group 0 have a message to it that a follower of it multicasts; all other
    groups of the topology are its blockers. consensus: T_cons in δ. Infinite if one is not delivered."""
    rng = random.Random(f"{model.protocol.specification.name}/{len(model.topology.groups)}/{seed}")
    groups = tuple(model.topology.groups)
    strata = [list(range(samples)) for _ in groups]
    for column in strata:
        rng.shuffle(column)
    total = 0.0
    period = round(consensus * DELTA_US)
    for sample in range(samples):
        phases = [int((column[sample] + rng.random()) / samples * period) for column in strata]
        total += _one(model, phases, period)
        if progress is not None:
            progress((sample + 1) / samples)
    return total / samples


def _one(model: Model, phases: list[int], period: int) -> float:
    """One message, with the groups' instances at these phases against its multicast."""
    topology = model.topology
    skew = {p: -_BEHIND_US for g in topology.groups if g != 0 for p in topology.groups[g]}
    stage = Stage(model.protocol, topology, model.options, lambda *_: DELTA_US, skew)
    number = 0
    for group, phase in zip(topology.groups, phases, strict=True):
        leader = topology.groups[group][0]
        for at in range(_BUSY_US + phase, _LIMIT_US, period):
            number += 1
            message = AppMessage(new_message_id(EPOCH_US, number), (group,), b"", leader)
            stage.submit(EPOCH_US + at, leader, message)
    start = EPOCH_US + _START_US
    members = topology.groups[0]
    message = AppMessage(new_message_id(EPOCH_US, number + 1), (0,), b"", members[-1])
    stage.submit(start, members[-1], message)
    stage.run_while(
        lambda: any((p, message.id) not in stage.delivered for p in members), EPOCH_US + _LIMIT_US, DELTA_US
    )
    return max((stage.delivered.get((p, message.id), float("inf")) - start) / DELTA_US for p in members)
