"""Drawings of the page, as SVG text: cycles, and what happened when. Every text in them is escaped."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from html import escape
from itertools import pairwise
from statistics import median

import msgspec

from spark_etl.names import EDGES
from spark_etl.report import Course, Edge, Operation, Point, visible

WIDTH, HEIGHT = 520, 190
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 14, 16, 24

OPERATIONS_MAX = 24
"""Longer cycles are told, not drawn."""
REPLICAS_MAX = 64
_BOX, _BETWEEN = (264, 58), (230, 46)

MARKERS = (
    '<svg width="0" height="0" aria-hidden="true" class="markers"><defs>'
    + "".join(
        f'<marker id="end-{kind}" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7"'
        f' orient="auto-start-reverse"><path d="M1 1 9 5 1 9" class="edge {kind}"/></marker>'
        for kind in EDGES
    )
    + "</defs></svg>"
)
"""Arrow heads; once in a page that draws cycles."""


def _text(x: float, y: float, content: str, anchor: str = "start", kind: str = "") -> str:
    name = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{name}>{_clean(content)}</text>'


def _clean(content: str) -> str:
    return escape(visible(content).replace("\n", " "), quote=True)


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _svg(width: float, height: float, body: str, label: str) -> str:
    return (
        f'<svg viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}" role="img"'
        f' aria-label="{_clean(label)}" xmlns="http://www.w3.org/2000/svg">{body}</svg>'
    )


# -- cycles -----------------------------------------------------------------------------------------------------------


def cycle(operations: Sequence[Operation], edges: Sequence[Edge]) -> str:
    """Operations as boxes, down one column and up another, an arrow per edge with its kind, its key and the number of
    its sentence."""
    count = len(operations)
    if not 1 < count <= OPERATIONS_MAX:
        return f"<p>{count} operations, too many to be drawn.</p>"
    wide, high = _BOX
    width, rows = 2 * wide + _BETWEEN[0] + 20.0, (count + 1) // 2
    down = (rows - 1) * (high + _BETWEEN[1])
    top = (116.0 if count == 2 else high + 30.0) / 2
    left = [(10 + wide / 2, y) for y in _spread(rows, top, down)]
    right = [(width - 10 - wide / 2, y) for y in reversed(_spread(count - rows, top, down))]
    places = left + right
    drawn = "".join(_edge(n, edge, places, count) for n, edge in enumerate(edges, 1))
    boxes = "".join(_box(operation, place) for operation, place in zip(operations, places, strict=True))
    told = f"A cycle of {count} operations; its edges in words follow: " + ", ".join(edge.kind for edge in edges)
    return _svg(width, down + 2 * top, drawn + boxes, told)


def _spread(count: int, top: float, down: float) -> list[float]:
    """So many heights from `top` on, evenly; one alone in the middle."""
    return [top + down * n / (count - 1) for n in range(count)] if count > 1 else [top + down / 2]


def legend(edges: Sequence[Edge]) -> str:
    """What the kinds of these edges mean."""
    kinds = dict.fromkeys(edge.kind for edge in edges if edge.kind in EDGES)
    return "An arrow's head, of its tail: " + "; ".join(f"{kind}: {EDGES[kind]}" for kind in kinds) + "."


def _box(operation: Operation, place: tuple[float, float]) -> str:
    (x, y), (wide, high) = place, _BOX
    left, top = x - wide / 2, y - high / 2
    lines = [_short(operation.f or "transaction", 34), _short(operation.id, 37)]
    if operation.version:
        lines.append(f"version {_short(operation.version, 28)}")
    at = top + 19 if len(lines) == 3 else top + 26
    kinds = ("kind", "mono", "mono dim")
    written = "".join(_text(x, at + 16 * n, line, "middle", kinds[n]) for n, line in enumerate(lines))
    whole = f"{operation.f} {operation.id} {operation.version}"
    return (
        f'<g><title>{_clean(whole)}</title><rect class="node" x="{left:.1f}" y="{top:.1f}" width="{wide}"'
        f' height="{high}" rx="7"/>{written}</g>'
    )


def _edge(number: int, edge: Edge, places: Sequence[tuple[float, float]], count: int) -> str:
    start, end = places[edge.source], places[edge.target]
    (x1, y1), (x2, y2) = start, end
    if count == 2:
        bow = -46 if edge.source < edge.target else 46
        x1, x2 = (x + math.copysign(_BOX[0] / 2, o - x) for x, o in ((x1, x2), (x2, x1)))
        y1, y2 = y1 + bow / 4, y2 + bow / 4
        middle = (x1 + x2) / 2, (y1 + y2) / 2 + bow
        label, anchor = (middle[0], middle[1] - bow / 2 + (-7 if bow < 0 else 17)), "middle"
    else:
        x1, y1 = _border(start, end)
        x2, y2 = _border(end, start)
        middle = (x1 + x2) / 2, (y1 + y2) / 2
        upright = abs(x2 - x1) < 1
        label = (middle[0] + 8, middle[1] + 4) if upright else (middle[0], middle[1] - 6)
        anchor = "start" if upright else "middle"
    kind = edge.kind if edge.kind in EDGES else ""
    what = f"{number} {edge.kind}" + (f" {_short(edge.key, 18)}" if edge.key else "")
    return (
        f'<g><title>{_clean(edge.sentence)}</title><path class="edge {kind}" marker-end="url(#end-{kind})"'
        f' d="M{x1:.1f} {y1:.1f} Q{middle[0]:.1f} {middle[1]:.1f} {x2:.1f} {y2:.1f}"/>'
        f"{_text(*label, what, anchor, 'kind halo')}</g>"
    )


def _border(inside: tuple[float, float], towards: tuple[float, float]) -> tuple[float, float]:
    """Where the line from the middle of a box to some other point leaves the box."""
    dx, dy = towards[0] - inside[0], towards[1] - inside[1]
    scale = min(
        (_BOX[0] / 2 + 3) / abs(dx) if dx else math.inf, (_BOX[1] / 2 + 3) / abs(dy) if dy else math.inf
    )
    return inside[0] + dx * min(scale, 0.49), inside[1] + dy * min(scale, 0.49)


# -- over time --------------------------------------------------------------------------------------------------------


def course(course: Course) -> list[tuple[str, str]]:
    """(title, SVG) of every chart for which there is something to show."""
    last = span(course)
    if last <= 0:
        return []
    course = _centred(course)
    points = [point for series in course.deliveries.values() for point in series]
    charts: list[tuple[str, str]] = []
    per_second = 1 / course.slice_seconds
    if course.operations:
        answered = _filled(course.operations, course.slice_seconds, lambda p: p.count * per_second)
        lost = [(p.second, p.unknown * per_second) for p in course.operations if p.unknown]
        title = "Operations answered per second" + ("; orange bars: without a certain answer" if lost else "")
        charts.append((title, _chart(title, answered, lost, course, last, log=False, bars=True)))
        title = "Latency of answers: median; dashed: 99th percentile"
        charts.append((title, _latency(title, course, last)))
    if points:
        total: dict[float, int] = {}
        for point in points:
            total[point.second] = total.get(point.second, 0) + point.count
        if not course.operations:
            rate = [(second, count * per_second) for second, count in sorted(total.items())]
            title = "Deliveries per second, all replicas"
            charts.append((title, _chart(title, rate, [], course, last, log=False)))
        title = "Delivery lag: median of the replicas; dashed: the worst one's 99th percentile"
        charts.append((title, _lag(title, course, last)))
    if course.lives:
        title = "Lives of the replicas, as shard: replica"
        charts.append((title, _lives(title, course, last)))
    return charts


def _centred(course: Course) -> Course:
    """Every slice at its middle."""

    def moved(points: Sequence[Point]) -> list[Point]:
        return [msgspec.structs.replace(p, second=p.second + course.slice_seconds / 2) for p in points]

    deliveries = {replica: moved(points) for replica, points in course.deliveries.items()}
    return msgspec.structs.replace(course, operations=moved(course.operations), deliveries=deliveries)


def span(course: Course) -> float:
    """Seconds from the first sign of life to the last."""
    points = [point for series in course.deliveries.values() for point in series]
    return max([life.ended for life in course.lives] + [p.second for p in (*points, *course.operations)], default=0.0)


def failures(course: Course) -> list[tuple[float, str, str]]:
    """(second, "died" or "born", what in words) where lives ended in disorder, and where later ones began."""
    seen: set[int] = set()
    events: list[tuple[float, str, str]] = []
    for life in course.lives:
        if life.replica in seen:
            events.append((life.began, "born", f"{life.replica} back"))
        seen.add(life.replica)
        if life.how == "crashed":
            events.append((life.ended, "died", f"{life.replica} gone"))
    return sorted(events)


def moment(seconds: float, of: float) -> str:
    """A time or a tick within a span of so many seconds, in its unit."""
    size, unit = _unit(of)
    return f"{seconds / size:,.4g} {unit}"


def _unit(of: float) -> tuple[float, str]:
    units = ((1e-6, "µs"), (1e-3, "ms"), (1.0, "s"), (60.0, "min"), (3600.0, "h"))
    return next(((size, unit) for size, unit in reversed(units) if of >= 3 * size), units[0])


def _filled(points: Sequence[Point], width: float, value: Callable[[Point], float]) -> list[tuple[float, float]]:
    """The series with zeros where nothing happened: where that begins and where it ends, for a clock may be far off."""
    first = min(p.second for p in points)
    by_slice = {round((p.second - first) / width): value(p) for p in points}
    zeros = {n for a, b in pairwise(sorted(by_slice)) if b > a + 1 for n in (a + 1, b - 1)}
    return [(first + n * width, by_slice.get(n, 0.0)) for n in sorted(by_slice.keys() | zeros)]


def _known(points: Iterable[tuple[float, float | None]]) -> list[tuple[float, float]]:
    return [(second, value) for second, value in points if value is not None]


def _latency(title: str, course: Course, last: float) -> str:
    middle = _known((p.second, p.median_ms) for p in course.operations)
    worst = _known((p.second, p.p99_ms) for p in course.operations)
    return _chart(title, middle, worst, course, last, log=True)


def _lag(title: str, course: Course, last: float) -> str:
    middle: dict[float, list[float]] = {}
    worst: dict[float, list[float]] = {}
    for point in (p for series in course.deliveries.values() for p in series):
        if point.median_ms is not None and point.p99_ms is not None:
            middle.setdefault(point.second, []).append(point.median_ms)
            worst.setdefault(point.second, []).append(point.p99_ms)
    medians = sorted((second, median(values)) for second, values in middle.items())
    return _chart(title, medians, sorted((s, max(v)) for s, v in worst.items()), course, last, log=True)


def _chart(
    title: str, one: Sequence[tuple[float, float]], two: Sequence[tuple[float, float]], course: Course, last: float, *,
    log: bool, bars: bool = False,
) -> str:  # fmt: skip
    """Values over seconds. log: milliseconds, on a logarithmic axis."""
    values = [value for _, value in (*one, *two)]
    high = max(values, default=1.0) or 1.0
    low = max(min((v for v in values if v > 0), default=0.1), 0.001) if log else 0.0
    if log:
        low, high = 10 ** math.floor(math.log10(low)), 10 ** math.ceil(math.log10(max(high, low * 1.01)))
        ticks = [10.0**n for n in range(round(math.log10(low)), round(math.log10(high)) + 1)]
    else:
        high, ticks = _nice(high)

    def x(second: float) -> float:
        return _LEFT + min(max(second, 0.0), last) / last * (WIDTH - _LEFT - _RIGHT)

    def y(value: float) -> float:
        part = math.log(max(value, low) / low) / math.log(high / low) if log else value / high
        return HEIGHT - _BOTTOM - part * (HEIGHT - _TOP - _BOTTOM)

    body = "".join(
        f'<path class="axis" d="M{_LEFT} {y(tick):.1f}H{WIDTH - _RIGHT}"/>'
        + _text(_LEFT - 6, y(tick) + 4, _duration(tick) if log else _count(tick), "end", "dim")
        for tick in ticks
    )
    body += _seconds(last, x, HEIGHT)
    if not log and one:
        line = _points(one, x, y)
        body += f'<polygon class="area" points="{x(one[0][0]):.1f},{y(0):.1f} {line} {x(one[-1][0]):.1f},{y(0):.1f}"/>'
    body += _line(one, x, y, "one")
    if bars:
        body += "".join(f'<path class="two" d="M{x(s):.1f} {y(0):.1f}V{y(v):.1f}"/>' for s, v in two)
    else:
        body += _line(two, x, y, "two dashed")
    return _svg(WIDTH, HEIGHT, body + _marks(course, x), _told(title, one, log, last, course))


def _points(series: Sequence[tuple[float, float]], x: Callable[[float], float], y: Callable[[float], float]) -> str:
    return " ".join(f"{x(s):.1f},{y(v):.1f}" for s, v in series)


def _line(
    series: Sequence[tuple[float, float]], x: Callable[[float], float], y: Callable[[float], float], kind: str
) -> str:
    """A single value is a dot."""
    if len(series) == 1:
        ((second, value),) = series
        return f'<circle class="{kind}" cx="{x(second):.1f}" cy="{y(value):.1f}" r="2.5"/>'
    return f'<polyline class="{kind}" points="{_points(series, x, y)}"/>' if series else ""


def _told(title: str, series: Sequence[tuple[float, float]], log: bool, last: float, course: Course) -> str:
    """The chart for who cannot see it."""
    values = [value for _, value in series]
    if not values:
        return f"{title}: nothing is known"
    least, most = (_duration(v) if log else _count(v) for v in (min(values), max(values)))
    marks = ", ".join(f"replica {what} at {moment(second, last)}" for second, _, what in failures(course)[:10])
    return f"{title}, over {moment(last, last)}: between {least} and {most}" + (f". {marks}" if marks else "")


def _duration(milliseconds: float) -> str:
    return moment(milliseconds / 1000, min(milliseconds / 300, 100))


def _count(value: float) -> str:
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= size:
            return f"{value / (1e3 if unit == 'k' else size):.4g} {unit}"
    return f"{value:,.4g}"


def _nice(high: float) -> tuple[float, list[float]]:
    """A round top of the axis, and where its marks are."""
    step = 10 ** math.floor(math.log10(high))
    step = next(step * part for part in (0.2, 0.5, 1, 2) if high / (step * part) <= 5)
    top = math.ceil(high / step) * step
    return top, [step * n for n in range(round(top / step) + 1)]


def _seconds(last: float, x: Callable[[float], float], height: float) -> str:
    size, unit = _unit(last)
    _, ticks = _nice(last / size)
    return "".join(
        _text(x(tick * size), height - 7, f"{tick:,.4g} {unit}", "middle", "dim")
        for tick in ticks
        if tick * size <= last * 1.001
    )


def _marks(course: Course, x: Callable[[float], float]) -> str:
    """A line where a life ended in disorder, and where a later one began; named where there is room."""
    lines, free = "", 0.0
    for second, kind, what in failures(course)[:400]:
        at = x(second)
        lines += (
            f'<path class="{kind}" d="M{at:.1f} {_TOP - 4}V{HEIGHT - _BOTTOM}"><title>replica {what}</title></path>'
        )
        wide = 7 * len(what)
        if at >= free:
            left = min(at + 3, WIDTH - wide)
            lines += _text(left, _TOP - 5, what, "start", f"{kind}text")
            free = left + wide + 4
    return lines


def _lives(title: str, course: Course, last: float) -> str:
    everyone = sorted({(life.shard, life.replica) for life in course.lives})
    replicas = everyone[:REPLICAS_MAX]
    rows = {replica: n for n, (_, replica) in enumerate(replicas)}
    height = 18 * len(replicas) + (48 if len(everyone) > len(replicas) else 30)

    def x(second: float) -> float:
        return _LEFT + second / last * (WIDTH - _LEFT - _RIGHT)

    body = "".join(
        _text(_LEFT - 6, 18 * n + 17, f"{shard}: {replica}", "end", "dim")
        for n, (shard, replica) in enumerate(replicas)
    )
    for life in course.lives:
        if life.replica in rows:
            top, wide = 18 * rows[life.replica] + 6, max(x(life.ended) - x(life.began), 1.5)
            told = f"replica {life.replica}: {moment(life.began, last)} to {moment(life.ended, last)}, {life.how}"
            body += f'<rect class="bar" x="{x(life.began):.1f}" y="{top}" width="{wide:.1f}" height="12" rx="2">'
            body += f"<title>{_clean(told)}</title></rect>"
            if life.how == "crashed":
                body += f'<rect class="gone" x="{x(life.ended) - 2:.1f}" y="{top - 2}" width="4" height="16"/>'
    if len(everyone) > len(replicas):
        body += _text(_LEFT, height - 27, f"and {len(everyone) - len(replicas)} more replicas", "start", "dim")
    told = f"{title}: {len(everyone)} replicas, {len(course.lives)} lives"
    return _svg(WIDTH, height, body + _seconds(last, x, height), told)
