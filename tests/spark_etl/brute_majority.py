"""What a run's journals say where most replicas of a shard contradict the others, in plain loops."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from tests.spark_etl.brute_run import Run


def judged(run: Run) -> Run:
    """Without what a replica says of a position where most of its shard's replicas that hold it say something else, of
    the delivery or of its account."""
    gone: set[tuple[int, int]] = set()
    for members in run.shards.values():
        camps: dict[tuple[str, int], dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
        for r in members:
            for d in run.deliveries(r):
                camps["delivery", d.position][str((d.id, d.time, d.destinations, d.expired, d.payload))].add(r)
            for bundle in run.bundles(r):
                camps["account", bundle[0].position][str([a.content for a in bundle])].add(r)
        for (_, position), said in camps.items():
            half = len(set().union(*said.values())) / 2
            if max(map(len, said.values())) > half:
                gone |= {(r, position) for camp in said.values() if len(camp) <= half for r in camp}
    journals = {
        r: [x for x in records if (r, getattr(x, "position", 0)) not in gone] for r, records in run.journals.items()
    }
    return replace(run, journals=journals)
