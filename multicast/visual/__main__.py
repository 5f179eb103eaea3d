"""Command line: `python -m multicast.visual`. The page's address goes to standard output; Ctrl-C ends it."""

from __future__ import annotations

import asyncio
import contextlib
import webbrowser
from typing import Annotated

import typer

from multicast.simulation.cli import BadUsage, console, execute
from multicast.visual.server import Server, serve

app = typer.Typer(add_completion=False, help="See atomic multicast in the browser, step by step, on the real code.")


@app.callback(invoke_without_command=True)
def main(
    context: typer.Context,
    port: Annotated[int, typer.Option(help="On 127.0.0.1; 0: any that is free.")] = 8765,
    browser: Annotated[bool, typer.Option(help="Open a browser.")] = True,
) -> None:
    """Serve the page on this machine, and open it."""
    if context.invoked_subcommand is None:
        run("", port, browser)


def run(fragment: str, port: int, browser: bool) -> None:
    """Serve until interrupted; the page opens what the fragment says."""

    def started(actual: int) -> None:
        address = f"http://127.0.0.1:{actual}/{fragment and '#'}{fragment}"
        console.print(f"the page is at {address} (Ctrl-C ends it)", markup=False)
        if browser:
            webbrowser.open(address)

    try:
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(serve(Server(), port, started))
    except OSError as error:
        raise BadUsage(f"--port {port}: {error.strerror or error}") from None


if __name__ == "__main__":
    execute(app)
