"""Backups while the clients of a simulated cluster work: cuts are made, and what replicas keep for them is checked."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from hashlib import blake2b

from kvstore.api.model import CUT, SLOTS
from kvstore.api.shard_map import decode_places, places_of
from kvstore.core.audit import APPLIED, Write
from kvstore.core.bundles import BUNDLE_TRANSACTIONS_MAX, version_of
from kvstore.core.rows import decode_row
from kvstore.simulated.clients import COMPANIONS_MAX, Operated, Prober, Workload
from kvstore.simulated.cluster import Executed, Kept, Moved
from kvstore.storage.cut import Compacted
from kvstore.storage.history import HISTORY_US, LOOKED_MAX
from kvstore.storage.store import row_digest
from multicast.types import GroupId, Timestamp

CUTS_MAX = 6
CROWDS = 0.5
"""With so many cuts many clients come at once."""
VERSIONS_TRIED = 3
"""Of each cut the rows at so many earlier versions are looked at, in looks of so many rows:"""
LOOKED = (2, 5, LOOKED_MAX)

_DIGEST_MASK = (1 << 128) - 1


def start(workload: Workload, seed: str, span_us: int) -> None:
    """Draw cuts for a run of `span_us`."""
    rng = random.Random(f"{seed}/backups")
    world = workload.world

    def make() -> None:
        def done(operation: Operated) -> None:
            workload.running -= 1

        replica = rng.choice(world.topology.processes)
        if rng.random() < CROWDS:
            workload.crowd(replica, rng.randint(2, COMPANIONS_MAX))
        Prober(workload, random.Random(rng.getrandbits(64)), replica).operate("cut", CUT, done)

    for _ in range(rng.randint(1, CUTS_MAX)):
        workload.running += 1
        world.after(rng.randint(0, span_us), make)


def check(
    logs: Mapping[GroupId, list[Executed]], kept: Iterable[Kept], moved: Mapping[Timestamp, Moved],
    first: Iterable[GroupId], keeps_history: bool,
) -> list[str]:  # fmt: skip
    """Each cut is one point of the order: every shard keeps what all below it have left there, and nothing else; and
    what stood there at earlier versions, if it says so. first: the shards that were not added. keeps_history: all that
    was overwritten is known, but for moves."""
    violations: list[str] = []
    found: dict[Timestamp, set[GroupId]] = {}
    for one in kept:
        found.setdefault(one.version, set()).add(one.shard)
        violations += _differences(one, logs, moved)
        violations += _differences_before(one, logs, moved, keeps_history and not moved)
    for log in logs.values():
        for executed in log:
            if executed.transaction == CUT and executed.outcome is not None and executed.outcome.status == APPLIED:
                grown = {move.target for version, move in moved.items() if version < executed.version}
                lacking = {*first, *grown, *executed.destinations} - found.get(executed.version, set())
                violations += [f"shard {shard} keeps nothing for the cut at {executed.version}" for shard in lacking]
    return violations


def _differences(
    kept: Kept, logs: Mapping[GroupId, list[Executed]], moved: Mapping[Timestamp, Moved]
) -> list[str]:
    cut, name = kept.cut, f"shard {kept.shard}, cut at {kept.version}"
    if not version_of(cut.timestamp, 0) <= kept.version < version_of(cut.timestamp, BUNDLE_TRANSACTIONS_MAX):
        return [f"{name}: it was made at {cut.timestamp}"]
    below = [
        e for e in logs[kept.shard]
        if e.outcome is not None and e.version < version_of(cut.timestamp, BUNDLE_TRANSACTIONS_MAX)
    ]  # fmt: skip
    rows = dict(cut.rows(b""))
    violations = _compared(name, rows, _left(kept.shard, below, logs, moved))
    places = places_of(decode_places(cut.places)) if cut.places else {}
    told = {slot: place.shard for slot, place in places.items() if slot < SLOTS}
    if told != {slot: moved[e.version].target for e in below if e.version in moved for slot in moved[e.version].slots}:
        violations.append(f"{name}: it says that slots are at {told}")
    digest = sum(row_digest(key, row) for key, row in rows.items()) & _DIGEST_MASK
    if not violations and digest.to_bytes(16, "big") != cut.digest:
        violations.append(f"{name}: the digest is of other rows")
    return violations


def _differences_before(
    kept: Kept, logs: Mapping[GroupId, list[Executed]], moved: Mapping[Timestamp, Moved], knows_all: bool
) -> list[str]:
    """Of versions before the cut."""
    violations: list[str] = []
    rng = random.Random(str(kept.version))
    complete = [e for e in logs[kept.shard] if e.outcome is not None and e.version <= kept.version]
    for version in rng.sample([e.version for e in complete], min(VERSIONS_TRIED, len(complete))):
        name = f"shard {kept.shard}, cut at {kept.version}, of version {version}"
        try:
            rows = dict(kept.cut.rows_at(version, b"", rng.choice(LOOKED)))
        except Compacted as gone:
            dropped = kept.version.time - version.time >= HISTORY_US or not knows_all
            if not dropped or gone.oldest > version_of(kept.cut.timestamp, BUNDLE_TRANSACTIONS_MAX):
                violations.append(f"{name}: it says that the oldest one is {gone.oldest}")
            continue
        below = [e for e in complete if e.version <= version]
        violations += _compared(name, rows, _left(kept.shard, below, logs, moved))
    return violations


def _left(
    shard: GroupId, below: list[Executed], logs: Mapping[GroupId, list[Executed]], moved: Mapping[Timestamp, Moved]
) -> dict[bytes, tuple[Timestamp, Write]]:
    """What these, all up to a point, have left at their shard."""
    written = {(w.key, e.version): w for log in logs.values() for e in log if e.outcome for w in e.outcome.writes}
    state: dict[bytes, tuple[Timestamp, Write]] = {}
    for executed in below:
        for write in executed.outcome.writes if executed.outcome is not None else ():
            state[write.key] = (executed.version, write)
        move = moved.get(executed.version)
        for key, version in move.rows.items() if move is not None else ():
            if move is not None and shard == move.target:
                state[key] = (version, written[key, version])
            else:
                state.pop(key, None)
    return {key: (version, write) for key, (version, write) in state.items() if write.value is not None}


def _compared(name: str, rows: dict[bytes, bytes], present: dict[bytes, tuple[Timestamp, Write]]) -> list[str]:
    violations = [f"{name}: {key!r} is there, or not, as it was not" for key in rows.keys() ^ present.keys()]
    for key in rows.keys() & present.keys():
        version, write = present[key]
        row = decode_row(key, rows[key])
        said = blake2b(row.value, digest_size=16).digest() if write.digest else row.value
        if (row.version, said) != (version, write.value):
            violations.append(f"{name}: {key!r} is not as it was")
    return violations
