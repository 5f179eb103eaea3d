"""`python -m tests.planted [MODULE ...]`: find the cheapest seed for each planted bug anew; write `first_seeds.json`,
and in the end `dear.json`. With `--stale` only for those that their seed no longer finds; minutes, not hours.

After changes of protocols, faults or draws, when a test says that a seed is stale. A bug keeps its seed if that still
finds it at a low price. It can be interrupted: what is found is written at once.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Mapping

from kvstore.simulated import runner
from multicast import registry
from multicast.simulation.mutants import load
from multicast.simulation.worlds import run_seed
from tests.planted import (
    LIKE,
    LIKE_FILE,
    SEEDS_FILE,
    SEEDS_MAX,
    Planted,
    backups,
    bounds,
    edges,
    leases,
    moves,
    narrow,
    nested,
    overlooked,
    past,
    reads_led,
    rights,
    snapshots,
    store,
    store_rules,
    store_state,
    strangers,
    told,
    turns,
    unordered,
    watches,
)

CHEAP_S = 0.4
"""Processor time of a run that needs no better one."""
DEAR_S = 0.2
"""Processor time from which on a bug is left to the full run, if less of it finds another one of its kind."""
ENOUGH = 4
"""Of so many seeds that find a bug the cheapest is taken."""
PATIENCE_S = 60.0
"""After so much processor time the first seed that finds it is taken."""


def finds(bug: Planted | store.Planted, seed: int) -> str:
    """Which check finds the bug, unless the same is found without it."""
    if isinstance(bug, Planted):
        violations = bug.run(seed).violations
        spoiled = violations and run_seed(registry.load(bug.protocol.specification.name), seed, bug.settings).violations
        return violations[0][0] if violations and not spoiled else ""
    found = bug.finds(bug.run(seed))
    return found.partition(": ")[0] if found and not runner.run_seed(bug.settings, seed).violations else ""


def cheapest(bug: Planted | store.Planted, seeds: int) -> tuple[int, float, str] | None:
    """(seed, processor seconds, check); None if none of the seeds finds it."""
    found: list[tuple[float, int, str]] = []
    since = time.process_time()
    for seed in dict.fromkeys((bug.first_seed, *range(seeds))):
        begun = time.process_time()
        check = finds(bug, seed)
        if check:
            found.append((time.process_time() - begun, seed, check))
        if found and (min(found)[0] < CHEAP_S or len(found) == ENOUGH or time.process_time() > since + PATIENCE_S):
            break
    if not found:
        return None
    taken, seed, check = min(found)
    return seed, taken, check


def kind(bug: Planted | store.Planted, check: str) -> tuple[str, str, bool]:
    """What a bug is like: found by the same check, of the same protocol, in the same kind of world."""
    if isinstance(bug, Planted):
        return bug.protocol.specification.name, check, False
    return bug.settings.protocol, check, True


def write_dear(prices: Mapping[str, tuple[float, tuple[str, str, bool]]]) -> None:
    """prices: key -> processor seconds and `kind` of the bugs that were looked for; of the others the file keeps what
    it says."""
    like = {key: other for key, other in LIKE.items() if key not in prices and other not in prices}
    for key, (seconds, one) in prices.items():
        others = [(price, other) for other, (price, its) in prices.items() if its == one and price < seconds]
        if seconds > DEAR_S and others:
            like[key] = min(others)[1]
    LIKE_FILE.write_text(json.dumps(dict(sorted(like.items())), indent=2) + "\n")


def modules() -> Iterator[tuple[str, tuple[Planted | store.Planted, ...]]]:
    yield from sorted(load("tests.planted").items())  # type: ignore[misc]
    yield "store", store.PLANTED_IN_STORE
    yield "store_state", store_state.PLANTED_IN_STORE
    yield "store_rules", store_rules.PLANTED_IN_STORE
    yield "past", past.PLANTED_IN_STORE
    yield "unordered", unordered.PLANTED_IN_STORE
    yield "reads_led_store", reads_led.PLANTED_IN_STORE
    yield "snapshots", snapshots.PLANTED_IN_STORE
    yield "backups", backups.PLANTED_IN_STORE
    yield "moves", moves.PLANTED_IN_STORE
    yield "leases", leases.PLANTED_IN_STORE
    yield "rights", rights.PLANTED_IN_STORE
    yield "watches", watches.PLANTED_IN_STORE
    yield "bounds", bounds.PLANTED_IN_STORE
    yield "nested", nested.PLANTED_IN_STORE
    yield "strangers", strangers.PLANTED_IN_STORE
    yield "overlooked", overlooked.PLANTED_IN_STORE
    yield "told", told.PLANTED_IN_STORE
    yield "edges", edges.PLANTED_IN_STORE
    yield "turns_in_store", turns.PLANTED_IN_STORE
    yield "narrow_in_store", narrow.PLANTED_IN_STORE


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.planted", description=__doc__)
    parser.add_argument("modules", nargs="*", help="modules of tests.planted; none: all")
    parser.add_argument("--seeds", type=int, default=SEEDS_MAX, help="so many are tried per bug")
    parser.add_argument("--stale", action="store_true", help="only bugs that their seed no longer finds")
    given = parser.parse_args()
    known: dict[str, int | str | None] = json.loads(SEEDS_FILE.read_text()) if SEEDS_FILE.exists() else {}
    every = {bug.key for _, bugs in modules() for bug in bugs}
    total, prices = 0.0, {}
    for bug in [bug for module, bugs in modules() if module in (given.modules or [module]) for bug in bugs]:
        if given.stale and (bug.elusive or finds(bug, bug.first_seed)):
            continue
        best = cheapest(bug, given.seeds)
        if best or not isinstance(known.get(bug.key), str):
            known[bug.key] = best[0] if best else None
        print(f"{bug.key:56} {best or 'NOT FOUND'}", flush=True)
        if best:
            total += best[1]
            prices[bug.key] = (best[1], kind(bug, best[2]))
        lines = ",\n".join(f"  {json.dumps(key)}: {json.dumps(known[key])}" for key in sorted(every & known.keys()))
        SEEDS_FILE.write_text("{\n" + lines + "\n}\n")
    write_dear(prices)
    print(f"{total:.1f} s of processor time in all")


if __name__ == "__main__":
    main()
