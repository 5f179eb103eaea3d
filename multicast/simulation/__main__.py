"""Command line of the simulator: `python -m multicast.simulation COMMAND`. Commands: see `commands`."""

from __future__ import annotations

import importlib
import pkgutil

import typer

from multicast.simulation import commands
from multicast.simulation.cli import execute


def main() -> None:
    """Run the command that the arguments name."""
    app = typer.Typer(add_completion=False, help="Run protocols in a simulated, faulty world.")
    for info in pkgutil.iter_modules(commands.__path__):
        module = importlib.import_module(f"{commands.__name__}.{info.name}")
        app.command(info.name.replace("_", "-"))(module.command)
    execute(app)


if __name__ == "__main__":
    main()
