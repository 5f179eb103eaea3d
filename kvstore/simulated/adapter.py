"""`python -m multicast.simulation run --store`: this package as that command's other world (an entry point)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

from kvstore.core.signals import SignalRule
from kvstore.simulated import runner, schedules
from kvstore.simulated import settings as store_settings
from multicast.protocol import MulticastProtocol
from multicast.simulation.observe import Observer
from multicast.simulation.runner import Outcome, Settings


class StoreWorld:
    """See `multicast.simulation.worlds.SeedRunner`."""

    profiles = store_settings.PROFILES

    def check(self, protocol: type[MulticastProtocol], settings: Settings) -> None:
        """ValueError for settings that mean nothing here."""
        if settings.messages is not None:
            raise ValueError("the clients of the store decide how many messages there are; leave out --messages")

    def run_seed(
        self, protocol: type[MulticastProtocol], seed: int, settings: Settings, observers: Sequence[Observer] = ()
    ) -> Outcome:
        """The same seed as in `python -m kvstore.simulated run`, with the store's own signals."""
        name = protocol.specification.name
        chosen = store_settings.Settings(
            protocol=name,
            profile=settings.profile,
            size=settings.size,
            shards=settings.groups,
            replicas=settings.replicas,
            options=settings.options,
            **dict.fromkeys(store_settings.DRAWN),
        )
        run = runner.run_seed(chosen, seed, protocol=protocol, observers=observers)
        return Outcome(
            protocol=name,
            seed=seed,
            topology=run.topology,
            digest=run.digest,
            simulated_us=run.simulated_us,
            wall_s=run.wall_s,
            messages=run.operations,
            deliveries=run.deliveries,
            events=run.events,
            foreign=0,
            faults=run.faults,
            violations=[(v.partition(": ")[0], v.partition(": ")[2]) for v in run.violations],
            options=run.options,
        )

    def play(
        self, schedule: str, variant: str, protocol: type[MulticastProtocol], observers: Sequence[Observer]
    ) -> list[str]:
        """One of `schedules.SCHEDULES`, with this way to signal executions (`core.signals`)."""
        if schedule not in schedules.SCHEDULES or variant not in get_args(SignalRule):
            raise ValueError(f"the store has no schedule {schedule!r} with signals {variant!r}")
        rule: SignalRule = variant  # type: ignore[assignment]
        return schedules.play(schedule, protocol.specification.name, rule, observers=observers).violations


store = StoreWorld()
