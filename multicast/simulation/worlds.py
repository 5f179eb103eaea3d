"""Other worlds than that of bare protocols: found by name among what is installed, so that this package needs none.

A package that runs something on top of a protocol declares an entry point of the group `GROUP`; "store" is what
`run --store` asks for:

    [project.entry-points."multicast.simulation.worlds"]
    store = "kvstore.simulated.adapter:store"
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import entry_points
from typing import Protocol

from multicast.protocol import MulticastProtocol
from multicast.simulation import runner
from multicast.simulation.observe import Observer
from multicast.simulation.runner import Outcome, Settings

GROUP = "multicast.simulation.worlds"


class NoWorld(ValueError):
    """Nothing that is installed has this world; the text says what to do."""


class SeedRunner(Protocol):
    """What an entry point names.

    profiles: of `Settings.profile`, the first is the default.
    """

    profiles: tuple[str, ...]

    def check(self, protocol: type[MulticastProtocol], settings: Settings) -> None:
        """ValueError, with a sentence for people, if this world cannot be run with these settings."""

    def run_seed(
        self, protocol: type[MulticastProtocol], seed: int, settings: Settings, observers: Sequence[Observer] = ()
    ) -> Outcome:
        """Run one seed. Everything about it comes from the first three arguments. Exceptions are violations."""

    def play(
        self, schedule: str, variant: str, protocol: type[MulticastProtocol], observers: Sequence[Observer]
    ) -> list[str]:
        """Play a scripted schedule of this world in one of its variants. What is wrong then, "checker: text".
        ValueError if there is none of these names."""


def load(name: str) -> SeedRunner:
    """The world of this name. NoWorld."""
    for found in entry_points(group=GROUP, name=name):
        try:
            world: SeedRunner = found.load()
        except (ImportError, AttributeError) as error:
            raise NoWorld(f"the world {name!r} ({found.value}) cannot be loaded: {error}") from None
        return world
    raise NoWorld(
        f"no installed package has the world {name!r}; install this project into the environment"
        " (pip install -e .), or again if that was before it had this command"
    )


def run_seed(
    protocol: type[MulticastProtocol], seed: int, settings: Settings, observers: Sequence[Observer] = ()
) -> Outcome:
    """Run one seed, in the world that the settings name."""
    if settings.store:
        return load("store").run_seed(protocol, seed, settings, observers)
    return runner.run_seed(protocol, seed, settings, observers)
