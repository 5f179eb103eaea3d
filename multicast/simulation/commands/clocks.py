"""`clocks`: what wall clocks that jump do to a protocol, disciplined and believed."""

from __future__ import annotations

from multicast.simulation.cli import BadUsage, ProtocolOption, console, protocols
from multicast.simulation.clocks import table


def command(protocol: ProtocolOption) -> None:
    """Wall clocks jump by a second, five minutes and a day: at one process, a minority, the leader of each group."""
    for cls in protocols(protocol):
        if not cls.specification.fault_tolerant:
            raise BadUsage(f"{cls.specification.name} has one process per group; the table is about groups of three")
        console.print(table(cls), markup=False, soft_wrap=True)
