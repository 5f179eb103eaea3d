"""What operators do with the cluster meanwhile: slots move, backups are made and verified, members come and go, and
once a shard is added, to which slots move, too, and whose replicas get other disks.

What fails under faults is counted, for it may be asked for again; a backup that says it was made must be whole.
Who is added to a shard is removed from it soon after, an added shard stays; no fault meets those, and nothing stands
between them and the others.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import time
from collections import Counter
from collections.abc import Awaitable, Callable

from kvstore import config
from kvstore.api.model import SLOTS
from kvstore.process import Handle
from multicast import registry
from multicast.types import GroupId
from workloads.nemesis.cluster import Cluster, execute

MOVES, BACKUPS, MEMBERS, GROWTH, DISKS = "moves", "backups", "members", "growth", "disks"
KINDS = (MOVES, BACKUPS, MEMBERS, GROWTH, DISKS)
MOVED_SLOTS_MAX = 3_000
PAUSE_SECONDS = {
    MOVES: (0.5, 3.0), BACKUPS: (2.0, 10.0), MEMBERS: (1.0, 8.0), GROWTH: (5.0, 20.0), DISKS: (1.0, 15.0)
}  # fmt: skip
FOUNDERS = (1, 3)
"""An added shard begins with so many replicas."""
STAY_SECONDS = (0.5, 8.0)
END_SECONDS = 10.0


class Operations:
    """Of one run. kinds: which of KINDS there are, if the protocol has them. say: hears a line of progress. complain:
    hears what is wrong. outcomes: what was done, with how often it was ok and how often it failed."""

    def __init__(
        self, cluster: Cluster, seed: int, kinds: tuple[str, ...], say: Callable[[str], None],
        complain: Callable[[str], None],
    ):  # fmt: skip
        self._cluster = cluster
        self._seed = seed
        self._say = say
        self._complain = complain
        self._grown: tuple[GroupId, ...] = ()
        self._changing = asyncio.Lock()
        specification = registry.load(cluster.protocol).specification
        possible: dict[str, tuple[str, Callable[[random.Random], Awaitable[bool | None]], bool]] = {
            MOVES: ("moves of slots", self._move, cluster.shards > 1),
            BACKUPS: ("backups", self._back_up, True),
            MEMBERS: ("members added and removed", self._come_and_go, specification.changes_members),
            GROWTH: ("shards added", self._grow, specification.changes_members),
            DISKS: ("replicas replaced", self._replace, specification.changes_members),
        }
        self._chosen = {kind: possible[kind] for kind in kinds if possible[kind][2]}
        self.outcomes = {name: Counter(ok=0, failed=0, unknown=0) for name, _, _ in self._chosen.values()}

    def tasks(self, end: float) -> list[asyncio.Task[None]]:
        """Until this instant of `time.monotonic`, and what was begun then."""
        return [asyncio.create_task(self._repeat(kind, end)) for kind in self._chosen]

    async def _repeat(self, kind: str, end: float) -> None:
        rng, (name, operate, _) = random.Random(f"{self._seed} {kind}"), self._chosen[kind]
        while time.monotonic() < end:
            await asyncio.sleep(rng.uniform(*PAUSE_SECONDS[kind]))
            if (done := await operate(rng)) is not None:
                self.outcomes[name]["ok" if done else "failed"] += 1

    async def _move(self, rng: random.Random) -> bool | None:
        """Some slots that stand together; None: nobody says where they are."""
        first, many = rng.randrange(SLOTS), rng.randint(1, MOVED_SLOTS_MAX)
        shard_map = await self._cluster.shard_map()
        if shard_map is None:
            return None
        source = shard_map.slots[first]
        target = rng.choice([shard for shard in (*range(self._cluster.shards), *self._grown) if shard != source])
        last = first
        while last + 1 < SLOTS and last < first + many and shard_map.slots[last + 1] == source:
            last += 1
        self._say(f"slots {first}-{last} move from shard {source} to shard {target}")
        ends = ("--from", str(source), "--to", str(target))
        return await self._execute("cluster", "move-slots", *ends, "--slots", f"{first}-{last}")

    async def _back_up(self, rng: random.Random) -> bool:
        """Kept as long as it takes to verify it."""
        target = self._cluster.directory / "backup"
        self._say("a backup is made")
        try:
            if await execute("kvstore", "backup", str(self._cluster.directory), str(target)):
                return False
            if await execute("kvstore", "backup", "verify", str(target)):
                self._complain("a backup that was made is not whole")
            return True
        finally:
            shutil.rmtree(target, ignore_errors=True)

    async def _come_and_go(self, rng: random.Random) -> bool:
        shard = rng.randrange(self._cluster.shards)
        self._say(f"a replica is added to shard {shard}")
        added = await self._change("add-replica", str(shard))
        guests = self._guests(shard)
        if not guests:
            return False
        await asyncio.sleep(rng.uniform(*STAY_SECONDS))
        self._say(f"replica {guests[-1]} is removed from shard {shard}")
        return await self._change("remove-replica", str(guests[-1])) and added

    async def _grow(self, rng: random.Random) -> bool | None:
        """Once."""
        if self._grown:
            return None
        many = rng.choice(FOUNDERS)
        self._say(f"a shard of {many} replicas is added")
        if not await self._change("add-shard", "--replicas", str(many)):
            return False
        self._grown = config.load(self._cluster.directory).added_shards
        return True

    async def _replace(self, rng: random.Random) -> bool | None:
        """One of the added shard, by one with an empty disk; None: there is none that the others could do without."""
        founders = self._founders()
        if len(founders) < max(FOUNDERS):
            return None
        chosen = rng.choice(founders)
        self._say(f"replica {chosen} gets an empty disk")
        return await self._change("replace-replica", str(chosen))

    def _founders(self) -> list[int]:
        """Who is of an added shard since its beginning."""
        known = config.load(self._cluster.directory)
        return [replica.id for replica in known.present if replica.shard in known.added_shards and not replica.added]

    def _guests(self, shard: GroupId | None = None) -> list[int]:
        """Who was added to this shard, or to any, and not removed."""
        present = config.load(self._cluster.directory).present
        return [replica.id for replica in present if replica.added and shard in (None, replica.shard)]

    async def _change(self, command: str, *arguments: str) -> bool:
        """Of the members or shards, which stand in one file: one at a time."""
        async with self._changing:
            return await self._execute("cluster", command, *arguments)

    async def _execute(self, group: str, command: str, *arguments: str) -> bool:
        return not await execute("kvstore", group, command, str(self._cluster.directory), *arguments)

    def close(self) -> None:
        """No process is left of those who were added, to a shard or with one: they stop in good order, so that what
        was answered at the very end stands in their journals, and the audit can say so."""
        for guest in dict.fromkeys([*self._guests(), *self._founders()]):
            handle = Handle.of(config.replica_directory(self._cluster.directory, guest))
            if handle is not None:
                handle.end(END_SECONDS)
                handle.close()
