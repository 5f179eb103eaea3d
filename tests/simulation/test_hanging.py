"""A disk that hangs: its process vouches for nothing meanwhile, and leads nobody. One that is slow is borne."""

from __future__ import annotations

import pytest

from multicast import registry
from multicast.types import AppMessage, ProcessId, new_message_id
from tests.simulation.test_latency_after_faults import PROTOCOLS, SECOND, Quiet


def delivered(quiet: Quiet, sender: ProcessId, receivers: set[ProcessId]) -> bool:
    """Whether these deliver, within ten seconds, what this process sends to both groups."""
    quiet.number += 1
    world, message = quiet.world, AppMessage(new_message_id(quiet.world.now, quiet.number), (0, 1), b"", sender)
    assert world.submit(sender, message)
    return world.run_while(lambda: any((message.id, p) not in quiet.clocked.at for p in receivers), 10 * SECOND)


@pytest.mark.parametrize("name", PROTOCOLS)
def test_a_shard_whose_leaders_disk_hangs_goes_on_with_another_leader(name: str) -> None:
    quiet = Quiet(registry.load(name))
    world, everybody = quiet.world, set(quiet.topology.processes)
    hung = quiet.leader()
    world.slow_disk(hung, 300_000)
    assert delivered(quiet, 1, everybody) and quiet.leader() == hung
    world.slow_disk(hung, 60 * SECOND)
    world.submit(1, AppMessage(new_message_id(world.now, 99), (0, 1), b"", 1))  # something that it has to sync
    assert delivered(quiet, 4, everybody - {hung})
    world.run_for(5 * SECOND)  # some protocols need the leader's disk for nothing, and deliver before it is replaced
    assert world.node(hung).engine.disk_hangs
    assert hung not in {world.node(p).protocol.leader_of(0) for p in (1, 2)}
    world.slow_disk(hung, 0)
    world.run_for(60 * SECOND)
    assert not world.node(hung).engine.disk_hangs
    assert delivered(quiet, hung, everybody)
    assert world.violations == []
