"""Drawings of the page, as SVG text: cycles, and what happened when. Every text in them is escaped."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from html import escape
from statistics import median

from spark_etl.report import Course, Edge, Life, Operation, Point

WIDTH, HEIGHT = 520, 190
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 10, 16, 24

OPERATIONS_MAX = 24
"""Longer cycles are told, not drawn."""
REPLICAS_MAX = 64
_BOX = (196, 58)


def _text(x: float, y: float, content: str, anchor: str = "start", kind: str = "") -> str:
    name = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{name}>{_clean(content)}</text>'


def _clean(content: str) -> str:
    return escape("".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in content), quote=True)


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _svg(width: float, height: float, body: str, label: str) -> str:
    return (
        f'<svg viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}" role="img"'
        f' aria-label="{_clean(label)}" xmlns="http://www.w3.org/2000/svg">{body}</svg>'
    )


# -- cycles -----------------------------------------------------------------------------------------------------------


def cycle(operations: Sequence[Operation], edges: Sequence[Edge]) -> str:
    """Operations as boxes in a circle, an arrow per edge with its kind, its key and the number of its sentence."""
    count = len(operations)
    if not 1 < count <= OPERATIONS_MAX:
        return f"<p>{count} operations, too many to be drawn.</p>"
    wide, high = _BOX
    if count == 2:
        across, down = 260.0, 0.0
    else:
        across, down = 270.0 + 14 * max(count - 6, 0), 46.0 * max(count, 3)
    width, height = 2 * across + wide + 40, 2 * down + high + (110 if count == 2 else 50)
    centre = width / 2, height / 2
    first = math.pi if count == 2 else -math.pi / 2
    angles = [first + 2 * math.pi * n / count for n in range(count)]
    places = [(centre[0] + across * math.cos(a), centre[1] + down * math.sin(a)) for a in angles]
    kinds = sorted({edge.kind for edge in edges})
    markers = "".join(
        f'<marker id="end-{_clean(kind)}" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7"'
        f' orient="auto-start-reverse"><path d="M1 1 9 5 1 9" class="edge {_clean(kind)}"/></marker>'
        for kind in kinds
    )
    drawn = "".join(_edge(n, edge, places, count) for n, edge in enumerate(edges, 1))
    boxes = "".join(_box(operation, place) for operation, place in zip(operations, places, strict=True))
    told = f"A cycle of {count} operations: " + ", ".join(edge.kind for edge in edges)
    return _svg(width, height, f"<defs>{markers}</defs>{drawn}{boxes}", told)


def _box(operation: Operation, place: tuple[float, float]) -> str:
    (x, y), (wide, high) = place, _BOX
    left, top = x - wide / 2, y - high / 2
    whole = f"{operation.f} {operation.id} {operation.version}"
    version = f"version {_short(operation.version, 20)}" if operation.version else ""
    return (
        f'<g><title>{_clean(whole)}</title><rect class="node" x="{left:.1f}" y="{top:.1f}" width="{wide}"'
        f' height="{high}" rx="7"/>{_text(x, top + 17, _short(operation.f or "transaction", 26), "middle", "kind")}'
        f"{_text(x, top + 34, _short(operation.id, 28), 'middle', 'mono')}"
        f"{_text(x, top + 50, version, 'middle', 'mono dim')}</g>"
    )


def _edge(number: int, edge: Edge, places: Sequence[tuple[float, float]], count: int) -> str:
    start, end = places[edge.source], places[edge.target]
    (x1, y1), (x2, y2) = start, end
    if count == 2:
        bow = -46 if edge.source < edge.target else 46
        x1, x2 = (x + math.copysign(_BOX[0] / 2, o - x) for x, o in ((x1, x2), (x2, x1)))
        y1, y2 = y1 + bow / 4, y2 + bow / 4
        middle = (x1 + x2) / 2, (y1 + y2) / 2 + bow
        label = middle[0], middle[1] - bow / 2 + (-7 if bow < 0 else 17)
    else:
        x1, y1 = _border(start, end)
        x2, y2 = _border(end, start)
        middle = label = (x1 + x2) / 2, (y1 + y2) / 2
    kind = _clean(edge.kind)
    what = f"{number} {edge.kind}" + (f" {_short(edge.key, 18)}" if edge.key else "")
    return (
        f'<g><title>{_clean(edge.sentence)}</title><path class="edge {kind}" marker-end="url(#end-{kind})"'
        f' d="M{x1:.1f} {y1:.1f} Q{middle[0]:.1f} {middle[1]:.1f} {x2:.1f} {y2:.1f}"/>'
        f"{_text(label[0], label[1] - (0 if count == 2 else 4), what, 'middle', 'kind')}</g>"
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
    points = [point for series in course.deliveries.values() for point in series]
    last = max([life.ended for life in course.lives] + [p.second for p in (*points, *course.operations)], default=0.0)
    if last <= 0:
        return []
    if last < 3 * course.slice_seconds:
        return [("Lives of the replicas", _lives(course, last))] if course.lives else []
    charts: list[tuple[str, str]] = []
    per_second = 1 / course.slice_seconds
    if course.operations:
        answered = _filled(course.operations, course.slice_seconds, lambda p: p.count * per_second)
        lost = [(p.second, p.unknown * per_second) for p in course.operations if p.unknown]
        title = "Operations answered per second" + (", and (orange) without a certain answer" if lost else "")
        charts.append((title, _chart(answered, lost, last, course.lives, log=False, unit="", second_bars=True)))
        title = "Latency of answers: median, and 99th percentile (orange)"
        charts.append((title, _latency(course.operations, last, course)))
    if points:
        total: dict[float, int] = {}
        for point in points:
            total[point.second] = total.get(point.second, 0) + point.count
        if not course.operations:
            rate = [(second, count * per_second) for second, count in sorted(total.items())]
            drawn = _chart(rate, [], last, course.lives, log=False, unit="")
            charts.append(("Deliveries per second, all replicas", drawn))
        charts.append(
            ("Delivery lag: median of the replicas, and the worst one's 99th percentile (orange)", _lag(course, last))
        )
    charts.append(("Lives of the replicas", _lives(course, last)))
    return charts


def _filled(points: Sequence[Point], width: float, value: Callable[[Point], float]) -> list[tuple[float, float]]:
    """The series with zeros where nothing happened."""
    by_slice = {round(p.second / width): value(p) for p in points}
    return [(n * width, by_slice.get(n, 0.0)) for n in range(min(by_slice), max(by_slice) + 1)]


def _known(points: Iterable[tuple[float, float | None]]) -> list[tuple[float, float]]:
    return [(second, value) for second, value in points if value is not None]


def _latency(points: Sequence[Point], last: float, course: Course) -> str:
    middle = _known((p.second, p.median_ms) for p in points)
    worst = _known((p.second, p.p99_ms) for p in points)
    return _chart(middle, worst, last, course.lives, log=True, unit="ms")


def _lag(course: Course, last: float) -> str:
    middle: dict[float, list[float]] = {}
    worst: dict[float, list[float]] = {}
    for point in (p for series in course.deliveries.values() for p in series):
        if point.median_ms is not None and point.p99_ms is not None:
            middle.setdefault(point.second, []).append(point.median_ms)
            worst.setdefault(point.second, []).append(point.p99_ms)
    medians = sorted((second, median(values)) for second, values in middle.items())
    return _chart(medians, sorted((s, max(v)) for s, v in worst.items()), last, course.lives, log=True, unit="ms")


def _chart(
    one: Sequence[tuple[float, float]], two: Sequence[tuple[float, float]], last: float, lives: Sequence[Life], *,
    log: bool, unit: str, second_bars: bool = False,
) -> str:  # fmt: skip
    values = [value for _, value in (*one, *two)]
    high = max(values, default=1.0) or 1.0
    low = max(min((v for v in values if v > 0), default=0.1), 0.001) if log else 0.0
    if log:
        low, high = 10 ** math.floor(math.log10(low)), 10 ** math.ceil(math.log10(max(high, low * 1.01)))
        ticks = [10.0**n for n in range(round(math.log10(low)), round(math.log10(high)) + 1)]
    else:
        high, ticks = _nice(high)

    def x(second: float) -> float:
        return _LEFT + second / last * (WIDTH - _LEFT - _RIGHT)

    def y(value: float) -> float:
        part = math.log(max(value, low) / low) / math.log(high / low) if log else value / high
        return HEIGHT - _BOTTOM - part * (HEIGHT - _TOP - _BOTTOM)

    body = "".join(
        f'<path class="axis" d="M{_LEFT} {y(tick):.1f}H{WIDTH - _RIGHT}"/>'
        + _text(_LEFT - 6, y(tick) + 4, _quantity(tick, unit), "end", "dim")
        for tick in ticks
    )
    body += _seconds(last, x, HEIGHT)
    line = " ".join(f"{x(s):.1f},{y(v):.1f}" for s, v in one)
    if not log and one:
        body += f'<polygon class="area" points="{x(one[0][0]):.1f},{y(0):.1f} {line} {x(one[-1][0]):.1f},{y(0):.1f}"/>'
    body += f'<polyline class="one" points="{line}"/>'
    if second_bars:
        body += "".join(f'<path class="two" d="M{x(s):.1f} {y(0):.1f}V{y(v):.1f}"/>' for s, v in two)
    else:
        body += f'<polyline class="two" points="{" ".join(f"{x(s):.1f},{y(v):.1f}" for s, v in two)}"/>'
    return _svg(WIDTH, HEIGHT, body + _failures(lives, x), "over time")


def _quantity(value: float, unit: str) -> str:
    if unit == "ms" and value >= 1000:
        value, unit = value / 1000, "s"
    return f"{value:,g} {unit}".strip()


def _nice(high: float) -> tuple[float, list[float]]:
    """A round top of the axis, and where its marks are."""
    step = 10 ** math.floor(math.log10(high))
    step = next(step * part for part in (0.2, 0.5, 1, 2) if high / (step * part) <= 5)
    top = math.ceil(high / step) * step
    return top, [step * n for n in range(round(top / step) + 1)]


def _seconds(last: float, x: Callable[[float], float], height: float) -> str:
    _, ticks = _nice(last)
    return "".join(
        _text(x(tick), height - 7, f"{tick:g} s", "middle", "dim") for tick in ticks if tick <= last * 1.001
    )


def _failures(lives: Sequence[Life], x: Callable[[float], float]) -> str:
    """Lines where lives ended in disorder, and where later ones began."""
    seen: set[int] = set()
    ends: list[tuple[float, str, str]] = []
    for life in lives:
        if life.replica in seen:
            ends.append((life.began, "born", f"{life.replica} back"))
        seen.add(life.replica)
        if life.how == "crashed":
            ends.append((life.ended, "died", f"{life.replica} gone"))
    lines = "".join(
        f'<path class="{kind}" d="M{x(s):.1f} {_TOP - 4}V{HEIGHT - _BOTTOM}"><title>replica {what}</title></path>'
        for s, kind, what in ends[:200]
    )
    if len(ends) <= 6:
        lines += "".join(_text(x(s) + 3, _TOP - 4, what, "start", f"{kind}text") for s, kind, what in ends)
    return lines


def _lives(course: Course, last: float) -> str:
    replicas = sorted({(life.shard, life.replica) for life in course.lives})[:REPLICAS_MAX]
    rows = {replica: n for n, (_, replica) in enumerate(replicas)}
    height = 18 * len(replicas) + 30

    def x(second: float) -> float:
        return _LEFT + second / last * (WIDTH - _LEFT - _RIGHT)

    body = "".join(
        _text(_LEFT - 6, 18 * n + 17, f"{shard}: {replica}", "end", "dim")
        for n, (shard, replica) in enumerate(replicas)
    )
    for life in course.lives:
        if life.replica in rows:
            top, wide = 18 * rows[life.replica] + 6, max(x(life.ended) - x(life.began), 1.5)
            told = f"replica {life.replica}: {life.began:.2f} s to {life.ended:.2f} s, {life.how}"
            body += f'<rect class="bar" x="{x(life.began):.1f}" y="{top}" width="{wide:.1f}" height="12" rx="2">'
            body += f"<title>{_clean(told)}</title></rect>"
            if life.how == "crashed":
                body += f'<rect class="gone" x="{x(life.ended) - 2:.1f}" y="{top - 2}" width="4" height="16"/>'
    return _svg(WIDTH, height, body + _seconds(last, x, height), "lives of the replicas, by shard")
