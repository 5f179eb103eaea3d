"""Changes of leader that slow disks bring are counted."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from workloads.failover import SLOW_CHANGES_MAX, SlowDisks


class Leader:
    """What a replica tells of itself, as a leader does."""

    def __init__(self, id: int, ballot: str):
        self.id = id
        self._facts = {"role": "leader", "details": {"ballot": ballot}}

    async def facts(self) -> dict[str, Any]:
        return self._facts


class Led:
    """Shards with these leaders; None: nobody says that he leads."""

    def __init__(self) -> None:
        self.leaders: dict[int, Leader | None] = {0: Leader(0, "1.0"), 1: Leader(3, "1.3")}

    async def leader(self, shard: int) -> Leader | None:
        return self.leaders[shard]


async def test_another_leader_and_another_ballot_are_changes_and_silence_is_none() -> None:
    led = Led()
    disks = SlowDisks(led, sync_ms=300)  # type: ignore[arg-type]
    await disks.look()
    await disks.look()
    led.leaders[1] = None
    await disks.look()
    assert disks.changed == 0
    led.leaders[1] = Leader(4, "2.4")
    await disks.look()
    assert disks.changed == SLOW_CHANGES_MAX
    led.leaders[0] = Leader(0, "3.0")  # The same one, after an election that nobody saw.
    await disks.look()
    assert disks.changed == SLOW_CHANGES_MAX + 1


@pytest.mark.full
@pytest.mark.parametrize("protocol", ["white_box", "primcast"])
def test_slow_disks_change_no_leader(protocol: str) -> None:
    command = [sys.executable, "-m", "workloads.failover", "--protocol", protocol, "--kills", "0", "--restarts", "0"]
    done = subprocess.run([*command, "--slow-minutes", "0.5"], capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "64 clients" in done.stdout and ", 0 failed, " in done.stdout
