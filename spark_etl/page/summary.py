"""What a run was, in one line; and what its operators ask: gaps, recovery, latency, rates."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from spark_etl.page.drawing import moment, span
from spark_etl.report import UNDETERMINED, VALID, VIOLATED, Course, Life, Report

_NAMED = 6

_OUTCOMES = {
    VALID: "nothing wrong was found",
    VIOLATED: "something did not hold",
    UNDETERMINED: "not all could be determined",
}


def judged(report: Report) -> str:
    """One line."""
    course, told = report.course, report.input
    operations = sum(point.count + point.unknown for point in course.operations)
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
    if durability := told.get("durability"):
        parts.append(f"durability {durability}")
    parts += _ends(course.lives)
    if program := told.get("audited by"):
        parts.append(f"audited by {program}")
    return ", ".join([*parts, _OUTCOMES[report.verdict]])


def _ends(lives: list[Life]) -> list[str]:
    """Of lives that say nothing of a stop: another one followed, or none did."""
    last = {life.replica: life.began for life in sorted(lives, key=lambda life: life.began)}
    open_ = [life for life in lives if life.how == "crashed"]
    killed = [life.replica for life in open_ if life.began < last[life.replica]]
    running = [life.replica for life in open_ if life.began == last[life.replica]]
    return [f"{what} {_replicas(which)}" for what, which in (("killed", killed), ("not stopped", running)) if which]


def _replicas(which: list[int]) -> str:
    names = [f"{one} ({times} times)" if times > 1 else str(one) for one, times in sorted(Counter(which).items())]
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"replica{'s' * (len(names) > 1)} {' '.join(names[:_NAMED])}{more}"


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
