"""`experiments`: the papers' figures on the simulator, and whether their claims hold here."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE
from rich.table import Table

from multicast.simulation.beside import JOBS_MAX, each
from multicast.simulation.cli import BadUsage, bounded, console, progress
from multicast.simulation.experiments import output
from multicast.simulation.experiments.calibrate import RECORDED, RECORDED_ON, calibrate, machine
from multicast.simulation.experiments.claims import CLAIMS, Judged, judge
from multicast.simulation.experiments.figures import Figure, Results, figures, names, points
from multicast.simulation.experiments.load import Measured, Point, measure
from multicast.simulation.experiments.recovery import Recovered, recover
from multicast.simulation.network import Cpu

SEED_MAX = 1 << 63
COST_MAX = 1_000_000.0
_WIDTH = 200


def command(
    quick: Annotated[bool, typer.Option("--quick", help="Fewer loads and samples: under two minutes.")] = False,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where CSV and PNG files go.")] = Path("experiments-out"),
    figure: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only this figure; may be repeated. See the table.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of delays, clocks and clients.")] = 1,
    jobs: Annotated[int, typer.Option(help="Processes that measure at once.")] = 1,
    cpu: Annotated[
        str | None,
        typer.Option(metavar="BATCH,INPUT,SEND", help="What computing costs, in microseconds; see --calibrate."),
    ] = None,
    calibrating: Annotated[
        bool, typer.Option("--calibrate", help="Measure what computing costs on this machine, print it, and end.")
    ] = False,
) -> None:
    """Run the papers' experiments: throughput and latency, latency distributions, the convoy effect, and a leader's
    crash, in a LAN and in WANs. Writes a CSV and a PNG per figure, and what the papers claim beside what is seen here;
    that a claim does not hold here is a result, not an error."""
    if calibrating:
        _print_cost("recorded", RECORDED, RECORDED_ON)
        _print_cost("here", calibrate(), machine())
        return
    chosen = _chosen(figure, quick)
    if not 0 <= seed <= SEED_MAX:
        raise BadUsage(f"--seed is from 0 to {SEED_MAX}, not {seed}")
    cost = _cost(cpu)
    _check_out(out)
    bounded("jobs", jobs, JOBS_MAX)
    session = _Session(chosen, cost, seed, jobs)
    interrupted = False
    try:
        session.run()
    except KeyboardInterrupt:
        interrupted = True
        console.print("interrupted; so far:")
    judged = session.write(out)
    _show(judged)
    console.print(f"CSV and PNG files are in {out}/", markup=False)
    if interrupted:
        raise typer.Exit(130)


class _Session:
    """The figures, and what was measured for them so far. A point is measured once."""

    def __init__(self, chosen: list[Figure], cpu: Cpu, seed: int, jobs: int):
        self.jobs = jobs
        self.chosen = chosen
        self.cpu = cpu
        self.seed = seed
        self.measured: dict[Point, Measured] = {}
        self.recovered: dict[Point, Recovered] = {}

    def run(self) -> None:
        """All of it, with a progress bar that counts multicasts."""
        todo: list[tuple[str, str, Point]] = []
        seen: set[tuple[bool, Point]] = set()
        for figure in self.chosen:
            for point in points(figure, self.cpu, self.seed):
                if (figure.kind == "recovery", point) not in seen:
                    seen.add((figure.kind == "recovery", point))
                    todo.append((figure.kind, figure.name, point))
        with progress() as bar:
            task = bar.add_task("", total=sum(_weight(point) for _, _, point in todo))
            if self.jobs > 1:
                self._run_beside(todo, lambda weight: bar.advance(task, weight))
                return
            done = 0
            for kind, name, point in todo:
                weight = _weight(point)
                what = f"{name}: {point.variant.title}, {point.destinations} destinations, load {point.outstanding}"
                bar.update(task, description=what)

                def advance(share: float, base: int = done, weight: int = weight) -> None:
                    bar.update(task, completed=base + int(share * weight))

                self._one(kind, point, advance)
                done += weight
                bar.update(task, completed=done)

    def _run_beside(self, todo: list[tuple[str, str, Point]], advance: Callable[[int], None]) -> None:
        """In `jobs` processes, the dearest points first."""
        dearest = sorted(((kind, point) for kind, _, point in todo), key=lambda one: -_weight(one[1]))
        for (_, point), found in each(_measured, dearest, self.jobs):
            if isinstance(found, Recovered):
                self.recovered[point] = found
            else:
                self.measured[point] = found
            advance(_weight(point))

    def _one(self, kind: str, point: Point, advance: Callable[[float], None]) -> None:
        if kind == "recovery":
            self.recovered[point] = recover(point, advance)
        else:
            self.measured[point] = measure(point, advance)

    def results(self, figure: Figure) -> Results:
        """What there is for this figure."""
        wanted = list(points(figure, self.cpu, self.seed))
        if figure.kind == "recovery":
            return Results([], [self.recovered[p] for p in wanted if p in self.recovered])
        return Results([self.measured[p] for p in wanted if p in self.measured])

    def write(self, out: Path) -> list[Judged]:
        """Every figure of which there is anything, and the claims. BadUsage if that fails."""
        judged: list[Judged] = []
        try:
            for figure in self.chosen:
                results = self.results(figure)
                here = [judge(claim, results) for claim in CLAIMS if claim.figure == figure.name]
                judged += here
                if results.measured or results.recovered:
                    output.write_csv(out / f"{figure.name}.csv", output.table(figure, results))
                    text = output.caption(figure, here, self.cpu, self.seed)
                    output.draw(figure, results, text, out / f"{figure.name}.png")
            output.write_csv(out / "claims.csv", output.claims_table(judged))
        except OSError as error:
            raise BadUsage(f"--out {out}: {error.strerror or error}") from None
        return judged


def _measured(what: tuple[str, Point]) -> Measured | Recovered:
    kind, point = what
    return recover(point) if kind == "recovery" else measure(point)


def _weight(point: Point) -> int:
    """About how many messages a point costs."""
    return (max(point.samples, 3 * point.in_flight) + point.warm_up) * point.destinations**2


def _chosen(wanted: list[str] | None, quick: bool) -> list[Figure]:
    available = figures(quick)
    for name in wanted or ():
        if name not in names():
            raise BadUsage(f"--figure: no figure {name!r}; there are {', '.join(names())}")
        if name not in [figure.name for figure in available]:
            raise BadUsage(f"--figure {name} takes too long for --quick")
    return [figure for figure in available if not wanted or figure.name in wanted]


def _cost(text: str | None) -> Cpu:
    if text is None:
        return RECORDED
    try:
        batch, each, send = (float(word) for word in text.split(","))
    except ValueError:
        raise BadUsage(f"--cpu is BATCH,INPUT,SEND in microseconds, like 7.5,1.8,1, not {text[:60]!r}") from None
    if not all(0 <= value <= COST_MAX for value in (batch, each, send)):
        raise BadUsage(f"--cpu: each from 0 to {COST_MAX:g} microseconds, not {text[:60]}")
    return Cpu(batch_us=batch, input_us=each, send_us=send)


def _check_out(out: Path) -> None:
    """Whether results can be written, before minutes of work for them."""
    try:
        out.mkdir(exist_ok=True)
    except FileExistsError:
        raise BadUsage(f"--out {out} is not a directory") from None
    except OSError as error:
        raise BadUsage(f"--out {out}: {error.strerror}") from None
    if not os.access(out, os.W_OK | os.X_OK):
        raise BadUsage(f"--out {out}: not writable")
    try:
        output.pyplot()
    except output.NoMatplotlib:
        remedy = "in a checkout of this project: pip install '.[figures]'"
        raise BadUsage(f"matplotlib is needed to draw; {remedy}") from None


# -- for people --------------------------------------------------------------------------------------------------------


def _print_cost(what: str, cpu: Cpu, where: str) -> None:
    console.print(
        f"{what}: {cpu.batch_us:g} µs a batch, {cpu.input_us:g} µs an input, {cpu.send_us:g} µs a message sent"
        f" ({where}); --cpu {cpu.batch_us:g},{cpu.input_us:g},{cpu.send_us:g}",
        markup=False,
    )


def _show(judged: list[Judged]) -> None:
    table = Table(box=SIMPLE, title="What the papers claim, and what is seen here", show_lines=False)
    table.add_column("figure", no_wrap=True)
    table.add_column("claim", ratio=2)
    table.add_column("ours", ratio=3)
    table.add_column("agrees", no_wrap=True)
    for one in judged:
        table.add_row(one.figure, f"{one.claim} ({one.source})", one.ours or "-", one.agrees)
    table.width = max(console.width, _WIDTH)
    console.print(table, width=table.width)
    for one in judged:
        if one.reason:
            console.print(f"{one.figure}: {one.claim}: does not agree: {one.reason}", markup=False)
    console.print(
        f"{sum(one.agrees == 'yes' for one in judged)} claims agree,"
        f" {sum(one.agrees == 'no' for one in judged)} do not,"
        f" {sum(one.agrees == 'not measured' for one in judged)} were not measured",
        markup=False,
    )
