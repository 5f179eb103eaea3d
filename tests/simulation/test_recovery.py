"""At drawn flushes a copy of the process must come back from what a power failure would leave."""

from __future__ import annotations

import random
from math import inf

import pytest

from multicast import registry
from multicast.application import Application
from multicast.parts.delivered import LAST_KEY
from multicast.protocol import MulticastProtocol, Outbox
from multicast.protocols.ft_skeen import FtSkeen
from multicast.simulation.memory import But, forgotten
from multicast.simulation.recovery import RecoveryCheck
from multicast.simulation.runner import Run, Settings
from multicast.types import ProcessId


class Careless(FtSkeen):
    """Its mark of the last delivery is saved one batch late."""

    late: tuple[tuple[bytes, bytes | None], ...] = ()

    def end_batch(self, now: int, out: Outbox) -> None:
        super().end_batch(now, out)
        kept = [change for change in out.changes if change[0] != LAST_KEY]
        marks = [change for change in out.changes if change[0] == LAST_KEY]
        out.changes[:] = [*kept, *self.late]
        self.late = tuple(marks)


def _run(protocol: type[MulticastProtocol], seed: int) -> Run:
    replicas = 3 if protocol.specification.fault_tolerant else 1
    return Run(protocol, seed, Settings(profile="calm", groups=2, replicas=replicas, messages=20))


def _asked(protocol: type[MulticastProtocol], seed: int, bytes_per_flush: float) -> Run:
    run = _run(protocol, seed)

    def spare(pid: ProcessId, rng: random.Random) -> tuple[MulticastProtocol, Application]:
        application = Application()
        application.position = run.dropping.held(pid)
        return protocol(pid, run.topology, run.options, rng), application

    run.world.recovery = RecoveryCheck(spare, seed, 1.0, bytes_per_flush)
    return run


def test_a_state_from_which_nobody_can_recover_is_found_though_nothing_crashes() -> None:
    outcome = _asked(Careless, 1, inf).execute()
    (found,) = outcome.violations
    assert found[0] == "recovery" and "but the journal ends at" in found[1]


@pytest.mark.parametrize("name", sorted(registry.names()))
def test_every_process_could_come_back_from_many_of_its_flushes_and_the_run_is_the_same(name: str) -> None:
    protocol = registry.load(name)
    asked, free = _asked(protocol, 4, 200), _run(protocol, 4)
    free.world.recovery = None
    outcome = asked.execute()
    assert outcome.violations == []
    assert asked.world.recovery is not None and asked.world.recovery.asked > 5
    assert outcome.digest == free.execute().digest


def test_what_a_later_copy_has_replaced_may_be_back_after_a_restart() -> None:
    replaced = But(kept=1)
    assert "gone" in forgotten({"accepted": replaced}, {"accepted": {"kept": 1, "gone": 2}})
    replaced.but = frozenset(["gone"])
    assert not forgotten({"accepted": replaced}, {"accepted": {"kept": 1, "gone": 2}})
    assert "kept" in forgotten({"accepted": replaced}, {"accepted": {"gone": 2}})
