"""What the input is and is not: which replicas there are, how their lives ended, what is missing or damaged. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import msgspec

from multicast.records import HEADER_BYTES
from spark_etl.frames.relations import SHARDS_MAX

NOTHING_LIVE = bytes(16)
"""The version of the last live delivery where there is none."""


class Top(msgspec.Struct):
    """How far a replica's journal goes. gts: of its last live delivery; version: of the last transaction there."""

    replica: int
    shard: int
    delivered: int
    completed: int
    gts: bytes = NOTHING_LIVE
    version: bytes = NOTHING_LIVE


class Inputs(msgspec.Struct):
    """shards: shard -> its replicas. problems: sentences about what is missing or damaged, with file and byte.
    unsure: replicas of whose journals a part is missing; holed: those of them that lack more than the end. crashed:
    replicas that did not end every life in good order; down: those whose last life did not; volatile: those that
    crashed and left their journals to the operating system, so that a loss of power may have cost them anything.
    stops: (replica, shard, delivered, completed) as said at the last clean stop. unfinished: ends of killed replicas.
    installed: (replica, position, journal offset) of snapshots: what stands in no journal before them up to that
    position, or has no outcome there, is no loss. snapshots: (shard, replica, position, digest of the state) of these.
    foreign: replicas whose journals are of another cluster; nothing of them counts. removed: replicas that belonged to
    their shards and do so no more; what they had need not be there. added: shards that were not there at first.
    durabilities: what replicas waited for before they answered. removed_at: see `_removed`.
    begun: where in its journal each replica's last life begins. cluster: whose journals count.
    """

    shards: dict[int, list[int]]
    problems: list[str]
    unsure: list[int]
    holed: list[int]
    crashed: list[int]
    down: list[int]
    volatile: list[int]
    stops: list[tuple[int, int, int, int]]
    unfinished: list[str]
    lives: int
    protocols: list[str]
    installed: list[tuple[int, int, int]] = []
    snapshots: list[tuple[int, int, int, bytes]] = []
    foreign: list[int] = []
    removed: list[int] = []
    added: list[int] = []
    durabilities: list[str] = []
    removed_at: dict[int, int] = {}
    begun: dict[int, int] = {}
    cluster: str = ""

    @property
    def replicas(self) -> list[int]:
        return sorted(r for members in self.shards.values() for r in members)

    @property
    def gone(self) -> list[int]:
        """The replicas that were removed and have left no journal."""
        return [replica for replica in self.removed if self.shard_of(replica) is None]

    def staying(self, shard: int) -> list[int]:
        """The replicas that belong to this shard at the end."""
        return [replica for replica in self.shards[shard] if replica not in self.removed]

    def volatile_of(self, shard: int) -> list[int]:
        """The replicas of this shard that are `volatile`."""
        return [replica for replica in self.shards[shard] if replica in self.volatile]

    def shard_of(self, replica: int) -> int | None:
        return next((s for s, members in self.shards.items() if replica in members), None)


Floors = Mapping[int, tuple[int, int, int]]


def understand(
    rows: Iterable[Any],
    present: Iterable[int],
    marks: Mapping[int, int | None],
    floors: Floors | None = None,
    begins: Mapping[int, tuple[int, int]] | None = None,
) -> Inputs:
    """rows: of the tables lives, segments and damage. present: replicas with a journal directory. marks: replica -> the
    journal offset up to which it vouched. floors: see `sources.find_floors`. begins: replica -> (segment, journal
    offset) with which its journal may begin, see `base`."""
    begins = begins or {}
    by_table: dict[str, list[Any]] = defaultdict(list)
    for row in rows:
        by_table[row.table].append(row)
    problems, holed, unfinished = _damage(by_table["damage"])
    cluster, foreign = _foreign(by_table["segments"], problems)
    holed |= foreign
    holed |= _dropped(by_table["segments"], floors or {}, problems)
    short = _continuity(by_table["segments"], marks, begins, problems, holed)
    by_table["lives"] = [row for row in by_table["lives"] if row.replica not in foreign]
    unsure = holed | short
    shards = _members(by_table["lives"], by_table["segments"])
    removed = _removed(shards, by_table["lives"])
    gone = removed.keys() - set(present)
    shards = {shard: [r for r in members if r not in gone] for shard, members in shards.items()}
    known = {r for members in shards.values() for r in members}
    for replica in sorted(known - set(present)):
        shard = next(s for s, members in shards.items() if replica in members)
        problems.append(f"replicas/{replica}/journal: the journal of replica {replica} of shard {shard} is missing")
        unsure.add(replica)
    for replica in sorted(set(present) - known - unsure - _newcomers(by_table["lives"])):
        problems.append(f"replicas/{replica}/journal: no other replica of this run knows replica {replica}")
    silent = known - unsure - {row.replica for row in by_table["lives"] if row.event == "started"}
    crashed, down, stops = _ends(by_table["lives"], {*begins, *silent})
    if not shards and not problems:
        problems.append("replicas: no journal says that its replica ever started")
    if len(shards) > SHARDS_MAX:
        problems.append(f"there are {len(shards)} shards; this audit can tell apart {SHARDS_MAX}")
    started = [row for row in by_table["lives"] if row.event == "started"]
    protocols = sorted({row.protocol for row in started})
    if len(protocols) > 1:
        problems.append(f"the replicas ran different protocols: {', '.join(protocols)}")
    found = [row for row in by_table["lives"] if row.event == "installed"]
    installed = sorted((row.replica, row.delivered, row.offset) for row in found)
    snapshots = sorted((row.shard, row.replica, row.delivered, row.state_digest) for row in found)
    in_memory = {row.replica for row in by_table["lives"] if row.durability == "os"}
    return Inputs(
        shards, problems, sorted(unsure), sorted(unsure - short), crashed, down, sorted(set(crashed) & in_memory),
        stops, unfinished, len(started), protocols, installed, snapshots, sorted(foreign), sorted(removed),
        _added(by_table["lives"]), sorted({row.durability for row in started if row.durability}), removed,
        {row.replica: row.offset for row in sorted(started, key=lambda row: row.offset)}, cluster,
    )  # fmt: skip


def _damage(rows: list[Any]) -> tuple[list[str], set[int], list[str]]:
    problems, unsure, unfinished = [], set(), []
    for row in sorted(rows, key=lambda row: (row.file, row.byte)):
        sentence = f"{row.file}, byte {row.byte}: {row.reason}"
        if row.event == "unfinished":
            unfinished.append(sentence)
        else:
            problems.append(sentence)
            unsure.add(row.replica)
    return problems, unsure, unfinished


def _dropped(segments: list[Any], floors: Floors, problems: list[str]) -> set[int]:
    """The replicas whose journals have let go what nobody has kept."""
    dropped = set()
    for replica, (number, _, position) in sorted(floors.items()):
        there = {row.segment for row in segments if row.replica == replica}
        if missing := sorted(set(range(number)) - there):
            dropped.add(replica)
            problems.append(
                f"replicas/{replica}/journal: it begins with journal-{number:08d}.seg; what was before went, and no"
                f" archive has journal-{missing[0]:08d}.seg: of its deliveries up to number {position} nothing is"
                " determined"
            )
    return dropped


def _continuity(
    segments: list[Any],
    marks: Mapping[int, int | None],
    begins: Mapping[int, tuple[int, int]],
    problems: list[str],
    holed: set[int],
) -> set[int]:
    """Each replica's segments follow one another without a gap, up to what it vouched for. Returns
    the replicas that lack only what came after the end of their journals."""
    short: set[int] = set()
    by_replica: dict[int, list[Any]] = defaultdict(list)
    for row in sorted(segments, key=lambda row: (row.replica, row.segment)):
        by_replica[row.replica].append(row)
    for replica in sorted({*marks, *by_replica} - holed):
        rows, mark = by_replica[replica], marks.get(replica)
        number, end = begins.get(replica, (0, 0))
        for row in rows:
            if (row.segment, row.offset) != (number, end):
                missing = f"replicas/{replica}/journal/journal-{number:08d}.seg"
                what = "is missing" if row.segment != number else f"ends at offset {end}, {row.offset} was expected"
                problems.append(f"{missing if row.segment != number else row.file}: {what}")
                holed.add(replica)
                break
            number, end = number + 1, row.end
        if replica not in holed and mark is not None and end < mark:
            where = f"{rows[-1].file}, byte {_size(rows[-1])}" if rows else f"replicas/{replica}/journal"
            problems.append(f"{where}: the journal ends {mark - end} bytes before what this replica vouched for")
            short.add(replica)
    return short - holed


def _foreign(segments: list[Any], problems: list[str]) -> tuple[str, set[int]]:
    """The cluster of most journals, or of the first; the replicas whose journals are of another one."""
    files: dict[str, list[str]] = defaultdict(list)
    replicas: dict[str, set[int]] = defaultdict(set)
    for row in sorted(segments, key=lambda row: (row.replica, row.segment)):
        files[row.cluster].append(row.file)
        replicas[row.cluster].add(row.replica)
    if not files:
        return "", set()
    ours = max(files, key=lambda cluster: (len(replicas[cluster]), -min(replicas[cluster])))
    for cluster in sorted(files.keys() - {ours}):
        problems.append(f"{files[cluster][0]}: it belongs to another cluster, {cluster} and not {ours}")
    return ours, set().union(*(replicas[cluster] for cluster in files.keys() - {ours}))


def _size(segment: Any) -> int:
    """Where the usable part of a segment ends in its file."""
    return HEADER_BYTES + int(segment.end - segment.offset)


def _members(lives: list[Any], segments: list[Any]) -> dict[int, list[int]]:
    members: dict[int, set[int]] = defaultdict(set)
    for row in lives:
        if row.event in ("started", "members"):
            for shard, replicas in msgspec.json.decode(row.members).items():
                members[int(shard)].update(replicas)
    if not members:
        for row in segments:
            members[row.shard].add(row.replica)
    return {shard: sorted(members[shard]) for shard in sorted(members)}


def _added(lives: list[Any]) -> list[int]:
    """The shards that some replica has not known when it began."""
    told = [set(msgspec.json.decode(row.members)) for row in lives if row.event in ("started", "members")]
    return sorted(int(shard) for shard in set().union(*told) - set.intersection(*told)) if told else []


def _newcomers(lives: list[Any]) -> set[int]:
    """The replicas that were to be added and, as they say themselves, never were: they have delivered nothing."""
    known = {row.replica: False for row in lives if row.event == "started"}
    for row in lives:
        if row.event in ("started", "members") and row.replica in known:
            known[row.replica] |= any(row.replica in members for members in msgspec.json.decode(row.members).values())
    return {replica for replica, belongs in known.items() if not belongs}


def _removed(shards: Mapping[int, list[int]], lives: list[Any]) -> dict[int, int]:
    """Of each shard whose members have changed those who are not in the newest list of its own, by the last word of
    most of those who are and have a journal. Of each: how many deliveries these had when the last of them heard that.
    """
    words: dict[int, list[tuple[int, list[int]]]] = defaultdict(list)
    newest: dict[int, tuple[int, int, list[int]]] = {}
    for row in sorted(lives, key=lambda row: (row.replica, row.offset)):
        if row.event == "members":
            own = msgspec.json.decode(row.members).get(str(row.shard), [])
            words[row.replica].append((row.delivered, own))
            newest[row.shard] = max(newest.get(row.shard, (-1, 0, [])), (row.delivered, row.at, own))
    heard = {row.replica for row in lives}
    removed = {}
    for shard, (_, _, own) in newest.items():
        for replica in (r for r in shards.get(shard, ()) if r not in own):
            told = [words[r] for r in own if words[r] and replica not in words[r][-1][1]]
            if 2 * len(told) > len(heard & {*own}):
                removed[replica] = max(_since(replica, word) for word in told)
    return removed


def _since(replica: int, words: list[tuple[int, list[int]]]) -> int:
    """From how many deliveries on this replica is no member, by these lists."""
    listed = [at for at, (_, own) in enumerate(words) if replica in own]
    return words[max(listed, default=-1) + 1][0]


def _ends(lives: list[Any], unknown: Collection[int]) -> tuple[list[int], list[int], list[tuple[int, int, int, int]]]:
    """(replicas with a life that did not end in good order, those whose last one did not, what the others said at their
    last clean stop). unknown: those of whose lives some are not known, and count as if one had ended badly."""
    crashed = set(unknown)
    stops: dict[int, tuple[int, int, int, int]] = {}
    running = dict.fromkeys(unknown, True)
    for row in sorted(lives, key=lambda row: (row.replica, row.offset)):
        if row.event == "started":
            if running.get(row.replica):
                crashed.add(row.replica)
            running[row.replica] = True
        elif row.event == "stopped":
            running[row.replica] = False
            stops[row.replica] = (row.replica, row.shard, row.delivered, row.completed)
    down = {replica for replica, alive in running.items() if alive}
    return sorted(crashed | down), sorted(down), [stops[replica] for replica in sorted(stops)]


def behind(inputs: Inputs, tops: Mapping[int, Top]) -> list[str]:
    """Which replicas are behind the furthest one of their shard. That is no violation: they might still catch up."""
    out = []
    stopped = {stop[0] for stop in inputs.stops}
    for shard in inputs.shards:
        members = inputs.staying(shard)
        furthest = max((tops[r].delivered for r in members if r in tops), default=0)
        for replica in members:
            position = max((p for r, p, _ in inputs.installed if r == replica), default=0)
            position = max(position, tops[replica].delivered if replica in tops else 0)
            if position < furthest and replica not in inputs.unsure:
                clean = replica in stopped and replica not in inputs.crashed
                how = "it had stopped in good order" if clean else "it had crashed at some time, or still ran"
                out.append(
                    f"replica {replica} of shard {shard} ends at position {position} of {furthest},"
                    f" {furthest - position} behind; {how}"
                )
    return out
