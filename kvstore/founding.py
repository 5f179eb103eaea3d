"""How a replica begins whose directory may be empty because nothing has run yet, or because its disk is gone.

Theory of operation. Only the others know which it is, so they are asked (`GET /v1/founding`). A replica is *empty*;
*claimed*: its directory says whose it is, and it has not run; or *begun*. It claims its directory when every other
founder answers and none has begun, and it begins when every other has claimed or begun. So whoever begins knows that
all have claimed: who is empty while another has begun has lost what it had, and comes back as a replica whose disk was
lost (`multicast.parts.rejoin`). And who finds all others not begun has told nobody anything, whatever it had, for they
listen to their peers only from then on. Every step is on disk before it is told, and may be repeated. Where all disks
are lost, nobody knows better, and all begin anew: restore a backup instead.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import msgspec

from kvstore import changing, identity
from kvstore.api.cluster import BEGUN, CLAIMED, EMPTY, FoundingJson
from kvstore.cluster import fetch, open_cluster
from kvstore.config import ClusterConfig, ConfigError, ReplicaConfig, parse, replica_directory
from multicast.logs import structlog

ASK_SECONDS = 0.5
"""Between two rounds of questions."""
HEAD_SECONDS = 5.0
HEAD_BYTES_MAX = 65_536

_decode = msgspec.json.Decoder(FoundingJson).decode
_log = structlog.get_logger("kvstore")


def adopt(directory: Path, given: Path) -> ClusterConfig:
    """The configuration with which this directory goes on, and which it keeps: the given one, but who belongs to the
    cluster its own says, if it has one. ConfigError: that is of another cluster."""
    wanted = parse(given.read_bytes(), str(given))
    directory.mkdir(parents=True, exist_ok=True)

    def merged(own: ClusterConfig) -> ClusterConfig:
        if own.cluster_id != wanted.cluster_id:
            raise ConfigError(f"{directory} is of cluster {own.cluster_id}, and {given} of {wanted.cluster_id}")
        known = {name: getattr(own, name) for name in ("epoch", "replicas", "added_shards", "shard_map")}
        return msgspec.structs.replace(wanted, **known)

    changing.update(directory, merged, wanted)
    return open_cluster(directory)


async def wait_to_begin(directory: Path, config: ClusterConfig, me: ReplicaConfig, tls: ssl.SSLContext | None) -> bool:
    """Wait until this replica may begin. Returns whether it has lost its disk. tls: of its HTTP interface, which tells
    the others meanwhile how far it is."""
    founders = [r for r in config.present if not r.added and r.shard not in config.added_shards]
    others = [r for r in founders if r.id != me.id]
    if me not in founders or state_of(directory, me) == BEGUN:
        return False
    answers, loop = _Answers(directory, config, me), asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Asked(answers), me.host, me.http_port, ssl=tls)
    async with AsyncExitStack() as ending:
        ending.push_async_callback(answers.end)
        await ending.enter_async_context(server)
        waited: list[int] = []
        while True:
            told = await asyncio.gather(*(asyncio.to_thread(_ask, config, other) for other in others))
            step = next_step(state_of(directory, me), told)
            if step in (BEGUN, EMPTY):
                return step == EMPTY
            if step == CLAIMED:
                identity.prepare(directory, config, [me])
                _log.info("the directory is claimed: all begin together", replica=me.id)
                continue
            missing = [other.id for other, state in zip(others, told, strict=True) if state in (None, EMPTY)]
            if missing != waited:
                _log.info("waiting for others to begin with", replica=me.id, others=missing)
            waited = missing
            await asyncio.sleep(ASK_SECONDS)


def next_step(own: str, told: Sequence[str | None]) -> str:
    """What to do: CLAIMED: claim the directory; BEGUN: begin; EMPTY: come back without what was there; empty text:
    wait. told: how far each other founder is; None: it does not answer."""
    if own == EMPTY and BEGUN in told:
        return EMPTY
    if None in told or (own == CLAIMED and EMPTY in told):
        return ""
    return CLAIMED if own == EMPTY else BEGUN


def state_of(directory: Path, me: ReplicaConfig) -> str:
    """How far this replica is."""
    home = replica_directory(directory, me.id)
    if identity.has_data(home):
        return BEGUN
    if not (home / identity.IDENTITY_FILE).exists():
        return EMPTY
    return BEGUN if identity.read(home).started else CLAIMED


def _ask(config: ClusterConfig, other: ReplicaConfig) -> str | None:
    try:
        status, body = fetch(f"{other.url}/v1/founding")
        told = _decode(body) if status == 200 else None
    except (OSError, ValueError, msgspec.DecodeError):
        return None
    return told.state if told and (told.cluster_id, told.replica) == (config.cluster_id, other.id) else None


class _Answers:
    """All that is served before a replica has begun: how far it is, and that it lives and is not ready. open: its
    connections. over: no more of them."""

    def __init__(self, directory: Path, config: ClusterConfig, me: ReplicaConfig):
        self._directory, self._config, self._me = directory, config, me
        self.open: set[asyncio.Transport] = set()
        self.over = False

    async def end(self) -> None:
        """Close what has not been answered: whoever asks again finds the replica, or nobody."""
        self.over = True
        for transport in [transport for transport in self.open if not transport.is_closing()]:
            transport.abort()
        await asyncio.sleep(0)

    def to(self, path: bytes) -> bytes:
        """The answer to who asks for this."""
        status, body = "503 Service Unavailable", b"this replica waits for others to begin with\n"
        if path == b"/livez":
            status, body = "200 OK", b"ok\n"
        elif path == b"/v1/founding":
            state = state_of(self._directory, self._me)
            status = "200 OK"
            body = msgspec.json.encode(FoundingJson(self._config.cluster_id, self._me.id, state))
        return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body


class _Asked(asyncio.Protocol):
    """One connection, for one answer."""

    def __init__(self, answers: _Answers):
        self._answers = answers
        self._head = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._answers.open.add(transport)
        self._timer = asyncio.get_running_loop().call_later(HEAD_SECONDS, transport.abort)
        if self._answers.over:
            transport.abort()

    def data_received(self, data: bytes) -> None:
        self._head += data
        line, end, _ = self._head.partition(b"\n")
        if end:
            _, _, target = line.partition(b" ")
            with suppress(OSError, ValueError):  # of what lies in the directory: it says itself what is wrong there
                self._transport.write(self._answers.to(target.split(b" ")[0].partition(b"?")[0]))
        if end or len(self._head) > HEAD_BYTES_MAX:
            self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        self._timer.cancel()
        self._answers.open.discard(self._transport)
