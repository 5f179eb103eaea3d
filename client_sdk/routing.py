"""Which replica to ask: the shard map, the leaders, and whom not to trust at the moment. No IO.

Any replica accepts any request, so a wrong guess costs time and never correctness. A request goes to the leader of a
shard that it involves; if that fails, to the other replicas of those shards, and at last to anyone known. A watch goes
to anyone: so those of many clients are spread over all replicas.
"""

from __future__ import annotations

import os
import random
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from kvstore.api.answers import MalformedAnswer
from kvstore.api.cluster import decode_cluster
from kvstore.api.shard_map import ShardMap
from multicast.types import GroupId

CLUSTER_FILE = "cluster.json"
SUSPECT_SECONDS = 1.0
"""For how long a replica that failed comes last."""


class ClusterView(msgspec.Struct, frozen=True):
    """What one replica told of the cluster.

    urls: shard -> its replicas' base URLs, the leader's (if known) first. timeout_max_ms: what a request may ask for.
    """

    cluster_id: str
    shard_map: ShardMap
    urls: dict[GroupId, tuple[str, ...]]
    leaders: dict[GroupId, str]
    timeout_max_ms: int

    @classmethod
    def parse(cls, body: bytes) -> ClusterView:
        """From the answer to `GET /v1/cluster`. MalformedAnswer if it is not one."""
        try:
            answer = decode_cluster(body)
            shard_map = ShardMap.from_json(answer.shard_map)
        except (ValueError, TypeError, KeyError) as error:
            raise MalformedAnswer(f"answer to /v1/cluster: {error}") from error
        urls, leaders = {}, {}
        for shard in answer.shards:
            in_order = sorted(shard.replicas, key=lambda r: (r.id != shard.leader, r.id))
            urls[shard.id] = tuple(r.url.rstrip("/") for r in in_order)
            if in_order and in_order[0].id == shard.leader:
                leaders[shard.id] = urls[shard.id][0]
        return cls(answer.cluster_id, shard_map, urls, leaders, answer.limits.timeout_max_ms)


class Router:
    """Chooses replicas. `seeds`: the base URLs that the user gave; they stay the last resort. cluster_id: whose they
    have to be; empty: anyone's."""

    def __init__(self, seeds: Sequence[str], rng: random.Random, cluster_id: str = ""):
        self.seeds = tuple(seeds)
        if not re.fullmatch(r"\w*", cluster_id, re.ASCII):
            raise ValueError(f"cluster_id: not the id of a cluster: {cluster_id[:40]!r}")
        self.cluster_id = cluster_id
        self.view: ClusterView | None = None
        self._rng = rng
        self._suspect_until: dict[str, float] = {}
        self._usual: dict[GroupId, list[str]] = {}
        """Candidates for one shard, by the present view, while nobody is suspect."""

    def shards_of(self, keys: Iterable[bytes], everything: bool = False) -> tuple[GroupId, ...]:
        """The shards that own `keys`, or all of them; none while no view is known."""
        if self.view is None:
            return ()
        if everything:
            return tuple(self.view.urls)
        shard_of = self.view.shard_map.shard_of
        return tuple(sorted({shard_of(key) for key in keys}))

    def candidates(self, shards: Sequence[GroupId], now: float) -> list[str]:
        """Every known replica, best first: leaders of `shards`, their other replicas, the rest; suspects after all."""
        usual = len(shards) == 1 and not self._suspect_until
        if usual and shards[0] in self._usual:
            return self._usual[shards[0]]
        urls: dict[str, None] = {}
        if self.view is not None:
            involved = list(shards)
            if len(involved) > 1:
                self._rng.shuffle(involved)
            for shard in involved:
                leader = self.view.leaders.get(shard)
                if leader is not None:
                    urls[leader] = None
            for shard in involved:
                urls.update(dict.fromkeys(self.view.urls.get(shard, ())))
            for others in self.view.urls.values():
                urls.update(dict.fromkeys(others))
        urls.update(dict.fromkeys(self.seeds))
        found = sorted(urls, key=lambda url: self._suspect_until.get(url, 0.0) > now)
        if usual:
            self._usual[shards[0]] = found
        return found

    def anybody(self, now: float) -> list[str]:
        """Every known replica, for what all of them do alike, such as watches: in random order, but leaders, which have
        most to do already, after the others, and suspects last."""
        urls = self.candidates((), 0.0)
        self._rng.shuffle(urls)
        leaders = set(self.view.leaders.values()) if self.view is not None else set()
        return sorted(urls, key=lambda url: (self._suspect_until.get(url, 0.0) > now, url in leaders))

    def suspect(self, url: str, now: float) -> None:
        """`url` did not answer, or is not ready."""
        self._suspect_until[url] = now + SUSPECT_SECONDS

    def trust(self, url: str) -> None:
        """`url` answered."""
        self._suspect_until.pop(url, None)

    def learn(self, view: ClusterView) -> None:
        """Take a new view, unless its shard map is an older one. ValueError if it is another cluster's."""
        known = self.view.cluster_id if self.view is not None else self.cluster_id
        if known not in ("", view.cluster_id):
            raise ValueError(f"a replica of cluster {view.cluster_id}, not of {known}")
        if self.view is not None and view.shard_map.version < self.view.shard_map.version:
            return
        self.view = view
        self._usual.clear()


class _Replica(msgspec.Struct):
    host: str
    http_port: int
    https: bool = False
    advertise: str = ""
    removed: bool = False

    @property
    def url(self) -> str:
        address = self.advertise or self.host
        scheme = "https" if self.https else "http"
        return f"{scheme}://{f'[{address}]' if ':' in address else address}:{self.http_port}"


class _ClusterFile(msgspec.Struct):
    replicas: list[_Replica]
    tls: str = ""
    cluster_id: str = ""


class Place(msgspec.Struct, frozen=True):
    """Where a cluster is, as a user names it. urls: see `find_urls`. authority: the certificate authority that a client
    trusts if it is told of no other. cluster_id: of a cluster that a directory names; else empty."""

    urls: tuple[str, ...]
    authority: Path | None
    cluster_id: str


_HOST_AND_PORT = re.compile(r" *([\w.-]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5} *")


def _url(text: str) -> str:
    url = f"http://{text}" if _HOST_AND_PORT.fullmatch(text) else text.rstrip("/")
    parts = urlsplit(url)
    try:
        good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        good = False
    if not good:
        raise ValueError(f"not an http:// or https:// URL: {text}")
    if "@" in parts.netloc:
        raise ValueError(f"no user or password stands in a URL: who asks shows a token: {parts.scheme}://{parts.hostname}")
    if parts.path or parts.query or parts.fragment:
        raise ValueError(f"a replica's URL ends with its host and port: {text}")
    return url


def find_urls(target: str | Path | Sequence[str]) -> tuple[str, ...]:
    """Base URLs from what a user gives: a cluster's directory (its cluster.json), URLs or host:port with commas, or a
    list of those.

    ValueError, in one line, for anything else.
    """
    if not isinstance(target, str | Path):
        if not isinstance(target, Sequence):
            raise TypeError(f"target: a URL, a cluster's directory, or a list of URLs, not {type(target).__name__}")
        if not target:
            raise ValueError("a list of no URLs")
        return tuple(url for one in target for url in find_urls(one))
    text = str(target)
    if "://" in text or all(map(_HOST_AND_PORT.fullmatch, text.split(","))):
        return tuple(_url(part.strip()) for part in text.split(",") if part.strip())
    file = Path(text) / CLUSTER_FILE
    if not file.is_file():
        raise ValueError(f"{text!r} is neither a URL, nor host:port, nor the directory of a cluster (no {file})")
    return tuple(replica.url for replica in _read(file).replicas if not replica.removed)


def find_place(target: str | Path | Sequence[str]) -> Place:
    """What `target` names. The authority is that of the cluster in a directory, else the file that the environment has
    in KVSTORE_CA, else the system's (None). ValueError as of `find_urls`."""
    urls, named = find_urls(target), os.environ.get("KVSTORE_CA")
    authority, cluster_id = Path(named) if named else None, ""
    if isinstance(target, str | Path) and (Path(target) / CLUSTER_FILE).is_file():
        file = _read(Path(target) / CLUSTER_FILE)
        authority, cluster_id = Path(target) / file.tls / "ca.pem" if file.tls else authority, file.cluster_id
    return Place(urls, authority, cluster_id)


def _read(file: Path) -> _ClusterFile:
    try:
        return msgspec.json.decode(file.read_bytes(), type=_ClusterFile)
    except msgspec.DecodeError as error:
        raise ValueError(f"{file}: {error}") from error
