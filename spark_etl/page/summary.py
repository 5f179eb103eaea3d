"""What a run was, in one line; and what its operators ask: gaps, recovery, latency, rates."""

from __future__ import annotations

from itertools import pairwise

from spark_etl.page.drawing import moment, span
from spark_etl.report import UNDETERMINED, VALID, VIOLATED, Course, Report

_OUTCOMES = {
    VALID: "nothing wrong was found",
    VIOLATED: "something did not hold",
    UNDETERMINED: "not all could be determined",
}


def judged(report: Report) -> str:
    """One line."""
    course, told = report.course, report.input
    operations = sum(point.count + point.unknown for point in course.operations)
    crashes = sum(life.how == "crashed" for life in course.lives)
    counts = ((operations, "operation", "of clients"), (_number(told, "deliveries"), "deliver", ""))
    parts = []
    for number, noun, of in counts:
        if number:
            plural = {"deliver": ("delivery", "deliveries")}.get(noun, (noun, f"{noun}s"))[number != 1]
            parts.append(" ".join(filter(None, (f"{number:,}", plural, of))))
    lasted = span(course)
    if lasted:
        parts.append(f"in {moment(lasted, lasted)}")
    replicas, shards = _number(told, "replicas"), _number(told, "shards")
    parts.append(f"{replicas} replica{'s' * (replicas != 1)} of {shards} shard{'s' * (shards != 1)}")
    if protocol := told.get("protocol"):
        parts.append(str(protocol))
    if crashes:
        parts.append(f"{crashes} {'lives' if crashes > 1 else 'life'} without a clean stop")
    return ", ".join([*parts, _OUTCOMES[report.verdict]])


def _number(told: dict[str, int | str], name: str) -> int:
    found = told.get(name, 0)
    return found if isinstance(found, int) else 0


def operators(course: Course) -> dict[str, int | str]:
    """Name -> value; as fine as the slices of the course are. Empty: nobody measured anything."""
    lasted = span(course)
    if not lasted:
        return {}
    found: dict[str, int | str] = {}
    answered = [point.second for point in course.operations if point.count]
    if answered:
        total = sum(point.count for point in course.operations)
        found["answers a second"] = f"{total / lasted:,.0f}"
        width = course.slice_seconds
        gap = max((b - a - width for a, b in pairwise(answered)), default=0.0)
        found["longest time without an answer"] = moment(gap, lasted) if gap > width / 2 else "less than a slice"
    medians = sorted((point.median_ms, point.count) for point in course.operations if point.median_ms is not None)
    worst = [point.p99_ms for point in course.operations if point.p99_ms is not None]
    if medians and worst:
        found["latency, median of slices"] = f"{medians[len(medians) // 2][0]:,.3g} ms"
        found["p99, median of slices"] = f"{sorted(worst)[len(worst) // 2]:,.3g} ms"
        found["p99, worst slice"] = f"{max(worst):,.3g} ms"
    shards = {life.replica: life.shard for life in course.lives}
    rates: dict[int, float] = {}
    for replica, points in course.deliveries.items():
        shard = shards.get(replica, 0)
        rates[shard] = max(rates.get(shard, 0.0), sum(point.count for point in points) / lasted)
    if rates:
        found["deliveries a second, by shard"] = ", ".join(f"{s}: {rate:,.0f}" for s, rate in sorted(rates.items()))
    return found | _recovery(course, answered, lasted)


def _recovery(course: Course, answered: list[float], lasted: float) -> dict[str, int | str]:
    """How long it took after crashes until clients were answered again, and until those who came back delivered."""
    found: dict[str, int | str] = {}
    again = [
        next((second for second in answered if second >= life.ended), None)
        for life in course.lives
        if life.how == "crashed"
    ]
    ends = [life.ended for life in course.lives if life.how == "crashed"]
    waits = [second - end for second, end in zip(again, ends, strict=True) if second is not None]
    if waits:
        found["answers after a crash, at most"] = moment(max(waits), lasted)
    first = {life.replica: min(o.began for o in course.lives if o.replica == life.replica) for life in course.lives}
    returns = []
    for life in course.lives:
        points = [p.second for p in course.deliveries.get(life.replica, ()) if p.count and p.second >= life.began]
        if life.began > first[life.replica] and points:
            returns.append(min(points) - life.began)
    if returns:
        found["deliveries after coming back, at most"] = moment(max(returns), lasted)
    return found
