"""A disk that hangs: its process vouches for nothing meanwhile, and leads nobody. One that is slow is borne."""

from __future__ import annotations

import pytest

from multicast import registry
from multicast.types import AppMessage, MessageId, ProcessId, new_message_id
from tests.simulation.test_latency_after_faults import PROTOCOLS, SECOND, Quiet


def send(quiet: Quiet, sender: ProcessId) -> MessageId:
    """To both groups."""
    quiet.number += 1
    message = AppMessage(new_message_id(quiet.world.now, quiet.number), (0, 1), b"", sender)
    assert quiet.world.submit(sender, message)
    return message.id


def delivered(quiet: Quiet, sender: ProcessId, receivers: set[ProcessId], within_us: int = 10 * SECOND) -> bool:
    """Whether these deliver within so long what this process sends now."""
    message, at = send(quiet, sender), quiet.clocked.at
    return quiet.world.run_while(lambda: any((message, p) not in at for p in receivers), within_us)


@pytest.mark.parametrize("name", PROTOCOLS)
def test_a_shard_whose_leaders_disk_hangs_goes_on_with_another_leader(name: str) -> None:
    quiet = Quiet(registry.load(name))
    world, everybody = quiet.world, set(quiet.topology.processes)
    hung = quiet.leader()
    world.slow_disk(hung, 300_000)
    assert delivered(quiet, 1, everybody) and quiet.leader() == hung
    world.slow_disk(hung, 60 * SECOND)
    for _ in range(80):  # it goes on with all that needs no disk, and nobody takes that for a sign of life
        send(quiet, 1)
        world.run_for(50_000)
    assert delivered(quiet, 4, everybody - {hung}, SECOND)
    world.run_for(5 * SECOND)  # some protocols need the leader's disk for nothing, and deliver before it is replaced
    assert world.node(hung).engine.disk_hangs
    assert hung not in {world.node(p).protocol.leader_of(0) for p in (1, 2)}
    world.slow_disk(hung, 0)
    world.run_for(60 * SECOND)
    assert not world.node(hung).engine.disk_hangs
    assert delivered(quiet, hung, everybody)
    assert world.violations == []
