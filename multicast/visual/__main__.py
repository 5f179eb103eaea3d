"""Command line: `python -m multicast.visual`. The page's address goes to standard output; Ctrl-C ends it."""

from __future__ import annotations

import asyncio
import contextlib
import webbrowser
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import typer

from multicast import registry
from multicast.simulation.cli import BadUsage, OptionOption, SizeOption, console, execute, option_pairs
from multicast.visual.inline import single_page
from multicast.visual.pictures import draw, is_current
from multicast.visual.recorded import Run, first_violation, read
from multicast.visual.scenario import described, record, scenarios
from multicast.visual.setup import Problem

PORT = 8765

PortOption = Annotated[int, typer.Option(help="On 127.0.0.1; 0: any that is free.", min=0, max=65_535)]
BrowserOption = Annotated[bool, typer.Option(help="Open a browser.")]

app = typer.Typer(add_completion=False, help="See atomic multicast in the browser, step by step, on the real code.")


@app.callback(invoke_without_command=True)
def page(context: typer.Context, port: PortOption = PORT, browser: BrowserOption = True) -> None:
    """Serve the page on this machine, and open it."""
    if context.invoked_subcommand is None:
        _serve("", port, browser)


@app.command()
def run(
    protocol: Annotated[str, typer.Option(help="A protocol's name.")],
    seed: Annotated[int, typer.Option(help="Which seed.")],
    profile: Annotated[str | None, typer.Option(help="calm: no faults; faults: drawn from the seed.")] = None,
    size: SizeOption = None,
    groups: Annotated[int | None, typer.Option(help="How many groups; else drawn.")] = None,
    replicas: Annotated[int | None, typer.Option(help="Processes per group; else drawn.")] = None,
    messages: Annotated[int | None, typer.Option(help="Messages; else drawn.")] = None,
    option: OptionOption = None,
    store: Annotated[bool, typer.Option("--store", help="Run the replicas of the store on the protocol.")] = False,
    bug: Annotated[str | None, typer.Option(help="A planted bug of this name.")] = None,
    port: PortOption = PORT,
    browser: BrowserOption = True,
) -> None:
    """Show a seed of `python -m multicast.simulation run`, at its violation if there is one."""
    chosen = Run(
        protocol=protocol, seed=seed, profile=profile, size=size, groups=groups, replicas=replicas, messages=messages,
        options=option_pairs(option), store=store, bug=bug,
    )  # fmt: skip
    try:
        chosen.settings(chosen.kind())
    except Problem as problem:
        raise BadUsage(str(problem)) from None
    _serve(chosen.fragment(), port, browser)


@app.command()
def trace(file: Path, port: PortOption = PORT, browser: BrowserOption = True) -> None:
    """Show a file that `python -m multicast.simulation trace` has written."""
    try:
        read(_text(file, "there is no such file"))
    except Problem as problem:
        raise BadUsage(f"{file}: {problem}") from None
    _serve(f"file={quote(file.name)}", port, browser, {file.name: file})


@app.command()
def export(
    what: Annotated[str, typer.Argument(metavar="SCENARIO|TRACE", help="A scenario's id, or a trace file.")],
    out: Annotated[Path, typer.Option("-o", "--out", metavar="FILE", help="Where to write.")],
) -> None:
    """Write a run as one HTML file that steps and scrubs without a server."""
    try:
        if what in scenarios():
            chosen = scenarios()[what]
            recorded = {**record(chosen), "scenario": described(what), "at": chosen.at}
        else:
            recorded = read(_text(Path(what), f"there is no such file, and the scenarios are {', '.join(scenarios())}"))
            recorded["at"] = first_violation(recorded)
        out.write_text(single_page(recorded, recorded["header"]["title"]), encoding="utf-8")
    except Problem as problem:
        raise BadUsage(f"{what}: {problem}") from None
    except OSError as error:
        raise BadUsage(f"--out {out}: {error.strerror}") from None
    console.print(f"{recorded['steps']} steps in {out}, {out.stat().st_size // 1000} kB", markup=False)


@app.command()
def pictures(
    protocol: Annotated[str, typer.Option(help="A protocol's name, or all whose picture is not current.")] = "all",
    chromium: Annotated[str, typer.Option(help="The browser that draws.")] = "/usr/bin/chromium",
) -> None:
    """Draw a typical run of each protocol for its page in multicast/docs."""
    names = [name for name in registry.names() if not is_current(name)] if protocol == "all" else [protocol]
    try:
        draw(names, chromium)
    except (Problem, registry.UnknownProtocol) as problem:
        raise BadUsage(str(problem)) from None
    console.print(f"drawn: {', '.join(names) or 'nothing, all are current'}", markup=False)


def _text(file: Path, missing: str) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise BadUsage(f"{file}: {missing}") from None
    except (OSError, UnicodeError) as error:
        raise BadUsage(f"{file}: {error}") from None


def _serve(fragment: str, port: int, browser: bool, files: Mapping[str, Path] | None = None) -> None:
    """Until interrupted; the page opens what the fragment says."""
    try:
        from multicast.visual.server import Server, serve
    except ModuleNotFoundError as error:
        remedy = "in a checkout of this project: pip install '.[visual]'"
        raise BadUsage(f"this needs {error.name}, which is not installed; {remedy}") from None

    def started(actual: int) -> None:
        address = f"http://127.0.0.1:{actual}/{fragment and '#'}{fragment}"
        console.print(f"the page is at {address} (Ctrl-C ends it)", markup=False)
        if browser:
            webbrowser.open(address)

    try:
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(serve(Server(files=files), port, started))
    except OSError as error:
        raise BadUsage(f"--port {port}: {error.strerror or error}") from None


if __name__ == "__main__":
    execute(app)
