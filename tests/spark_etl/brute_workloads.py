"""The invariants of workloads by their definitions, in plain loops, and random histories of them."""

from __future__ import annotations

from itertools import product
from random import Random

Operation = tuple[str, str, int, int, dict[str, int]]
"""f, type, invocation and end, value."""


def broken(operations: list[Operation]) -> set[str]:
    """Names of the violations in one history file."""
    found = set()
    ok = [o for o in operations if o[1] == "ok"]
    for _, _, _, _, value in (o for o in ok if o[0] == "cycle_read" and o[4]):
        pointers = [value[key] for key in sorted(value)]
        seen, at = set(), 0
        while 0 <= at < len(pointers) and at not in seen:
            seen.add(at)
            at = pointers[at]
        if at != 0 or len(seen) < len(pointers):
            found.add("ring-broken")
    forks = [o[4] for o in ok if o[0] == "fork_read" and o[4]]
    for a, b in product(forks, forks):
        one, other = ({key for key, there in v.items() if there} for v in (a, b))
        if a.keys() == b.keys() and one - other and other - one:
            found.add("long-fork")
    return found | _set(operations) | _counter(operations)


def _set(operations: list[Operation]) -> set[str]:
    found = set()
    adds = [(e, type_, began, ended) for f, type_, began, ended, v in operations if f == "set_add" for e in v]
    for f, type_, began, ended, value in operations:
        if (f, type_) != ("set_read", "ok"):
            continue
        for element, how, _, answered in adds:
            if how == "ok" and answered < began and element not in value:
                found.add("lost-element")
        for element, times in value.items():
            if times > 1:
                found.add("repeated-element")
            if not any(e == element and how != "fail" and start <= ended for e, how, start, _ in adds):
                found.add("unexpected-element")
    return found


def _counter(operations: list[Operation]) -> set[str]:
    adds = [(k, n, t, a, b) for f, t, a, b, v in operations if f == "counter_add" and t != "fail" for k, n in v.items()]
    for f, type_, began, ended, value in operations:
        if (f, type_) != ("counter_read", "ok"):
            continue
        for key, n in value.items():
            sure = [m for k, m, t, _, b in adds if k == key and t == "ok" and b < began]
            perhaps = [m for k, m, t, a, b in adds if k == key and a <= ended and not (t == "ok" and b < began)]
            low = sum(sure) + sum(m for m in perhaps if m < 0)
            high = sum(sure) + sum(m for m in perhaps if m > 0)
            if not low <= n <= high:
                return {"counter-out-of-bounds"}
    return set()


LARGE = ((1 << 63) - 1, 1 << 62, 1 << 40, 1 << 32, -(1 << 63))


def random_operations(rng: Random) -> list[Operation]:
    """A few operations of one workload; elements are added again, and numbers may be as large as 64 bits are."""
    kind = rng.choice(("cycle", "fork", "set", "counter"))
    made: list[Operation] = []
    elements, large = rng.choice(("a", "abc")), rng.random() < 0.3
    for _ in range(rng.randint(1, 8)):
        began = rng.randint(1, 12)
        at = rng.choices(("ok", "info", "fail"), (8, 1, 1))[0], began, began + rng.randint(1, 6)
        if kind == "cycle":
            size = rng.randint(1, 4)
            pointers = rng.sample(range(size), size)
            if rng.random() < 0.2:
                pointers[0] = rng.choice(LARGE) if large else rng.randint(-1, size)
            made.append(("cycle_read", *at, {f"k{i}": p for i, p in enumerate(pointers)}))
        elif kind == "fork":
            group = rng.choice("gh")
            made.append(("fork_read", *at, {f"{group}{i}": int(rng.random() < 0.5) for i in range(rng.choice((2, 3)))}))
        elif kind == "set" and rng.random() < 0.5:
            made.append(("set_add", *at, {rng.choice(elements): 1}))
        elif kind == "set":
            made.append(("set_read", *at, {e: rng.choice((1, 1, 1, 2)) for e in elements if rng.random() < 0.6}))
        elif rng.random() < 0.6:
            made.append(("counter_add", *at, {rng.choice("nm"): rng.choice(LARGE if large else (1, 1, 2, -1))}))
        else:
            made.append(("counter_read", *at, {rng.choice("nm"): rng.choice(LARGE) if large else rng.randint(-1, 4)}))
    return made
