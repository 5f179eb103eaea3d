"""What the user of a simulated store fixes; the rest is drawn from the seed."""

from __future__ import annotations

import random
import shlex

import msgspec

from kvstore.core.signals import SignalRule
from multicast.simulation.runner import fixed_words

PROFILES = ("faults", "calm", "chase")
"""calm: no faults. chase: no faults, but slow links, clocks that differ, and clients after anomalies."""

_SHARES = {
    "backups": 0.2, "ranges": 0.3, "leases": 0.2, "rights": 0.2, "reads": 0.3, "grows": 0.15, "late": 0.3,
    "bounds": 0.3, "nested": 0.3, "stragglers": 0.15,
    "piecemeal": 0.3, "edges": 0.3, "narrow": 0.2,
}  # fmt: skip
"""Of the runs: so many have this where it is drawn."""
DRAWN = (*_SHARES, "past", "watch", "moves")
"""What may be drawn of what clients do."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What the user fixes; None: drawn from the seed. backups: whether cuts are made. ranges: whether some clients read
    and delete ranges. leases: whether some hold leases. rights: whether some have tokens, whose rights change. reads:
    whether some read in every way, and replicas share what they must know for that. past, watch: whether there are
    reads at versions, and watches. moves: whether slots move. grows: whether a shard is added, to which slots move.
    late: whether late copies of requests come, and slots wander there and back. bounds: whether some bound numbers, and
    write if nothing in a range is newer. nested: whether transactions of some have others in them. stragglers: whether
    messages come again when all but one replica have forgotten them, in a run of several short windows. piecemeal:
    whether steps of moves hand over few rows each. edges: whether some compare versions, count to the limits, and read
    page by page. narrow: whether limits of the store are at their least (`narrow`). size: one of `drawing.SIZES`.
    options: the protocol's. signals: see `SimulatedCluster`."""

    protocol: str
    signals: SignalRule | None = None
    profile: str = "faults"
    options: dict[str, str] = {}
    size: str | None = None
    shards: int | None = None
    replicas: int | None = None
    clients: int | None = None
    backups: bool | None = False
    ranges: bool | None = False
    leases: bool | None = False
    rights: bool | None = False
    reads: bool | None = False
    grows: bool | None = False
    late: bool | None = False
    bounds: bool | None = False
    nested: bool | None = False
    stragglers: bool | None = False
    piecemeal: bool | None = False
    edges: bool | None = False
    narrow: bool | None = False
    past: bool | None = False
    watch: bool | None = False
    moves: bool | None = False
    seconds: float | None = None

    def replay(self, seed: int) -> str:
        """The command that runs this seed again."""
        words = ["python", "-m", "kvstore.simulated", "run", "--protocol", self.protocol]
        words += ["--seeds", f"{seed}:{seed + 1}", "--profile", self.profile]
        names = ("signals", "size", "shards", "replicas", "clients", *DRAWN, "seconds")
        return shlex.join(words + fixed_words(self, names))

    def drawn(self, seed: int) -> Settings:
        """With what of `_SHARES` there is in the run of this seed."""
        chosen: dict[str, bool] = {}
        for name, share in _SHARES.items():
            if getattr(self, name) is None:
                lot = random.Random(f"{self.protocol}/{seed}/store {name}").random()
                chosen[name] = self.profile != "chase" and lot < share
        return msgspec.structs.replace(self, **chosen)
