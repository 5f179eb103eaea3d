"""A sync of a simulated process takes so long that its disk hangs: it is told, as by the live host."""

from __future__ import annotations

from collections.abc import Callable

from multicast.disk import HANGS_US
from multicast.simulation.scene import Node, Scene


def watch(world: Scene, node: Node, duration_us: int, due: Callable[[Node], None]) -> None:
    """A sync of this process begins, and takes so long. due: the process has something to do."""

    def tell(life: int, hangs: bool) -> None:
        if node.life == life and node.up:
            node.engine.disk_hangs = hangs
            due(node)

    if duration_us > HANGS_US:
        world.schedule(world.now + HANGS_US, tell, node.life, True)
        world.schedule(world.now + duration_us, tell, node.life, False)
