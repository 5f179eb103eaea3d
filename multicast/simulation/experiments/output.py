"""Tables of a figure's points, and the figure itself. matplotlib is imported only to draw."""

from __future__ import annotations

import csv
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from multicast.simulation.experiments.claims import Judged
from multicast.simulation.experiments.figures import HYBRID, PRIMCAST, WHITE_BOX, Figure, Results
from multicast.simulation.experiments.load import ALONE, Measured, Variant, quantile
from multicast.simulation.network import Cpu

Table = tuple[list[str], list[list[object]]]

_COLOURS = {
    "PrimCast": "#1f77b4", "PrimCast HC": "#17becf", "White-Box": "#d62728", "FastCast": "#2ca02c",
    "FastCast, early clock": "#98df8a", "fault-tolerant Skeen": "#9467bd",
    "FastCast, not merged": "#006400", "fault-tolerant Skeen, not merged": "#4b0082",
}  # fmt: skip
_MARKERS = "osDv^x"


class NoMatplotlib(Exception):
    """It is not installed."""


def pyplot() -> Any:
    """matplotlib, drawing to files. NoMatplotlib."""
    try:
        import matplotlib
    except ImportError:
        raise NoMatplotlib from None
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    return plt


# -- CSV ---------------------------------------------------------------------------------------------------------------


def table(figure: Figure, results: Results) -> Table:
    """Headings and rows. Latencies in milliseconds; `outstanding` is per client, 0: one message in the whole system."""
    return {"cdf": _cdf_table, "recovery": _recovery_table}.get(figure.kind, _points_table)(results)


def _points_table(results: Results) -> Table:
    headings = [
        "deployment", "groups", "destinations", "protocol", "outstanding", "messages", "throughput_per_s", "mean_ms",
        "p50_ms", "p95_ms", "p99_ms", "leaders_p50_ms", "followers_p50_ms", "sent_per_multicast",
        "batch_us", "input_us", "send_us",
    ]  # fmt: skip
    rows: list[list[object]] = []
    for one in results.measured:
        p, everybody = one.point, one.all
        rows.append([
            p.deployment.name, p.groups, p.destinations, p.variant.title, p.outstanding, len(everybody),
            round(one.throughput, 1), round(one.mean_us / 1e3, 4), *(_ms(everybody, q) for q in (0.5, 0.95, 0.99)),
            _ms(sorted(one.leaders), 0.5), _ms(sorted(one.followers), 0.5), round(one.sent, 1),
            p.cpu.batch_us, p.cpu.input_us, p.cpu.send_us,
        ])  # fmt: skip
    return headings, rows


def _ms(values: list[int], share: float) -> object:
    return round(quantile(values, share) / 1e3, 4) if values else ""


def _cdf_table(results: Results) -> Table:
    rows: list[list[object]] = []
    for one in results.measured:
        if one.point.outstanding == ALONE:
            continue
        for who, values in _curves(one):
            for percent in range(1, 101):
                rows.append([
                    one.point.variant.title, who, one.point.outstanding, percent,
                    round(quantile(values, percent / 100) / 1e3, 4),
                ])  # fmt: skip
    return ["protocol", "clients", "outstanding", "percent", "latency_ms"], rows


def _curves(one: Measured) -> list[tuple[str, list[int]]]:
    """White-Box's leaders apart, as in the paper."""
    curves = [("all", one.all)]
    if one.point.variant == WHITE_BOX:
        curves.append(("leaders", sorted(one.leaders)))
    return [(who, values) for who, values in curves if values]


def _recovery_table(results: Results) -> Table:
    rows: list[list[object]] = []
    for one in results.recovered:
        for (at, affected), (_, others) in zip(one.affected, one.others, strict=True):
            rows.append([one.point.variant.title, at / 1e6, round(affected, 1), round(others, 1)])
    return ["protocol", "seconds_after_crash", "deliveries_per_s_group_0", "deliveries_per_s_other_groups"], rows


def claims_table(judged: Sequence[Judged]) -> Table:
    """Every claim with its verdict."""
    rows: list[list[object]] = [
        [j.figure, j.source, j.claim, j.criterion, j.ours, j.agrees, j.reason] for j in judged
    ]
    return ["figure", "source", "claim", "criterion", "ours", "agrees", "reason"], rows


def write_csv(path: Path, content: Table) -> None:
    """OSError."""
    headings, rows = content
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(headings)
        writer.writerows(rows)


# -- PNG ---------------------------------------------------------------------------------------------------------------


def caption(figure: Figure, judged: Sequence[Judged], cpu: Cpu, seed: int) -> str:
    """What the paper says, and whether it is so here."""
    lines = []
    for one in judged:
        line = f"{one.source}: {one.claim}. Agrees: {one.agrees}"
        line += f" ({one.criterion}). Ours: {one.ours}." if one.ours else "."
        if one.reason:
            line += f" Why: {one.reason}."
        lines += textwrap.wrap(line, 165 if _columns(figure) > 1 else 130, subsequent_indent="    ")
    lines.append(
        f"After {figure.source}. Simulated, seed {seed}; processor: {cpu.batch_us:g} µs a batch, {cpu.input_us:g} an"
        f" input, {cpu.send_us:g} a message sent."
    )
    return "\n".join(lines)


def draw(figure: Figure, results: Results, text: str, path: Path) -> None:
    """The PNG. NoMatplotlib, OSError."""
    plt = pyplot()
    painter: Callable[[Any, Figure, Results], Any] = {
        "curves": _draw_curves, "cdf": _draw_cdf, "convoy": _draw_convoy, "recovery": _draw_recovery,
    }[figure.kind]  # fmt: skip
    picture = painter(plt, figure, results)
    try:
        lines = text.count("\n") + 1
        width, height = picture.get_size_inches()
        below = 0.14 * lines + 0.2
        picture.set_size_inches(width, height + below)
        picture.suptitle(figure.title, fontsize=12)
        picture.tight_layout(rect=(0, below / (height + below), 1, 1))
        picture.text(0.01, 0.01, text, fontsize=8, va="bottom", ha="left")
        picture.savefig(path, dpi=110)
    finally:
        plt.close(picture)


def _variants(results: Results) -> list[Variant]:
    seen = [one.point.variant for one in results.measured]
    return sorted(set(seen), key=seen.index)


def _style(variant: Variant, number: int) -> dict[str, Any]:
    return {"color": _COLOURS.get(variant.title), "marker": _MARKERS[number % len(_MARKERS)], "label": variant.title}


def _columns(figure: Figure) -> int:
    return 2 if figure.kind in ("cdf", "convoy") or len(figure.panels) > 1 else 1


def _rates(axis: Any) -> None:
    """Throughputs, from few to many."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_xlabel("multicasts per second")
    axis.set_xscale("log")
    axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axis.xaxis.set_minor_formatter(NullFormatter())


def _panels(plt: Any, count: int) -> tuple[Any, list[Any]]:
    columns = max(1, min(2, count))
    rows = max(1, -(-count // columns))
    width = 11.0 if columns > 1 else 9.0
    picture, axes = plt.subplots(rows, columns, figsize=(width, 4.0 * rows), squeeze=False)
    flat = [axis for row in axes for axis in row]
    for axis in flat[count:]:
        axis.set_visible(False)
    return picture, flat


def _draw_curves(plt: Any, figure: Figure, results: Results) -> Any:
    destinations = results.destinations()
    picture, axes = _panels(plt, len(destinations))
    what = {"p95": "95th percentile", "mean": "mean"}[figure.latency]
    for axis, k in zip(axes, destinations, strict=False):
        for number, variant in enumerate(_variants(results)):
            points = [results.get(variant, k, load) for load in results.loads(k, variant)]
            xs = [one.throughput for one in points if one is not None]
            ys = [
                (quantile(one.all, 0.95) if figure.latency == "p95" else one.mean_us) / 1e3
                for one in points
                if one is not None
            ]
            axis.plot(xs, ys, **_style(variant, number))
        axis.set_title(f"{k} destination{'s' if k > 1 else ''}", fontsize=10)
        _rates(axis)
        axis.set_ylabel(f"latency, {what}, ms")
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.3, which="both")
        axis.legend(fontsize=8)
    return picture


def _draw_cdf(plt: Any, figure: Figure, results: Results) -> Any:
    loads = sorted({one.point.outstanding for one in results.measured} - {ALONE})
    picture, axes = _panels(plt, len(loads))
    for axis, load in zip(axes, loads, strict=False):
        for one in results.measured:
            if one.point.outstanding != load:
                continue
            for who, values in _curves(one):
                title = one.point.variant.title
                share = [(i + 1) / len(values) for i in range(len(values))]
                axis.plot(
                    [value / 1e3 for value in values], share, color=_COLOURS.get(title),
                    linestyle="-" if who == "all" else ":", label=title if who == "all" else f"{title}, leaders",
                )  # fmt: skip
        axis.set_title(f"{load} outstanding per client", fontsize=10)
        axis.set_xlabel("latency, ms")
        axis.set_ylabel("share of messages")
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
    return picture


def _draw_convoy(plt: Any, figure: Figure, results: Results) -> Any:
    picture, axes = _panels(plt, 2)
    (k,) = results.destinations() or [0]
    measures: tuple[tuple[str, Callable[[Measured], float]], ...] = (
        ("mean", lambda one: one.mean_us),
        ("95th percentile", lambda one: quantile(one.all, 0.95)),
    )
    for axis, (what, of) in zip(axes, measures, strict=True):
        for number, variant in enumerate(_variants(results)):
            alone = results.get(variant, k, ALONE)
            points = [results.get(variant, k, load) for load in results.loads(k, variant)]
            if alone is not None:
                xs = [one.throughput for one in points if one is not None]
                ys = [(of(one) - of(alone)) / 1e3 for one in points if one is not None]
                axis.plot(xs, ys, **_style(variant, number), linewidth=2.5 if variant in (PRIMCAST, HYBRID) else 1)
        _rates(axis)
        axis.set_ylabel(f"{what} above that alone, ms")
        axis.grid(alpha=0.3, which="both")
        axis.legend(fontsize=8)
    return picture


def _draw_recovery(plt: Any, figure: Figure, results: Results) -> Any:
    picture, axes = _panels(plt, max(1, len(results.recovered)))
    for axis, one in zip(axes, results.recovered, strict=False):
        curves = (("the leader's group", one.affected, "C3"), ("other groups, mean", one.others, "C0"))
        for label, series, colour in curves:
            axis.plot([at / 1e6 for at, _ in series], [rate for _, rate in series], color=colour, label=label)
        axis.axvline(0, color="black", linewidth=1)
        for label, at, style in (("new leader", one.leader_us, "--"), ("cleared", one.cleared_us, ":")):
            if at is not None:
                axis.axvline(at / 1e6, color="grey", linestyle=style, label=f"{label}: {at / 1e6:.2f} s")
        axis.set_title(f"{one.point.variant.title}, {one.point.in_flight} clients' messages outstanding", fontsize=10)
        axis.set_xlabel("seconds after the crash")
        axis.set_ylabel("deliveries per second and group")
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
    return picture
