"""Leases that are kept alive, and what is made of them: locks and elections.

Theory of operation, as in etcd's `concurrency` package. A *session* is a lease that a task renews three times in its
time to live. Whoever wants a lock writes a key of his own under its name, attached to his session, if it is absent. He
holds the lock when no key under that name has a lower `create_version`; until then he waits for the one before his to
go, which is when its owner releases it, or when the lease of that one expires. An election is the same, and the value
of the key is what the leader has to say.

All keys of a name are of one slot (`{tag}`, `kvstore.api.shard_map`), so they are created in the order of one log: who
finds his key to be the lowest, having written it before, stays the lowest. That is why a name is one slot: in different
shards a lower version may become visible after a higher one.

The token of who holds a lock is the create version of his key. Versions rise from one holder to the next, whatever
shards anything lies in, so whoever guards something by locks refuses tokens lower than the greatest that he has seen
(M. Kleppmann, How to do distributed locking, 2016). He should: a holder that stands still longer than its time to live
has lost its lock, and knows it only when it looks at the clock.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from urllib.parse import quote

from client_sdk import requests
from client_sdk.attempts import Attempts
from client_sdk.errors import InvalidRequest, KvError, Lost, ResultsForgotten, TransactionFailed, Unavailable
from client_sdk.keyspace import Keyspace
from client_sdk.operations import Compare, Get, Put, as_bytes, of_type
from kvstore.api.model import KEY_BYTES_MAX, KeyValue
from multicast.types import ZERO, Timestamp

RENEWALS = 3
"""How often a lease is renewed in a time to live."""
LEASE_HEX = 32
"""Characters of a lease's id, at the end of a key."""
END_SECONDS = 0.25
"""How long giving up its place may take at most, for a lock that was not to be had in time; after that the place goes
with its lease."""
POLL_SECONDS_MIN, POLL_SECONDS_MAX = 0.02, 0.5
"""The pause between two looks at the holder before this one, doubling from the first to the second."""


class Session:
    """A lease of this process. Made by `session` of the clients. lease: its id. ttl: seconds that it lives after a
    renewal."""

    def __init__(self, attempts: Attempts, lease: bytes, ttl: float, sent: float):
        self.attempts = attempts
        self.lease = lease
        self.ttl = ttl
        self.end_seconds = min(ttl, attempts.timeout)
        self._until = sent + ttl

    @property
    def lost(self) -> bool:
        """Whether it may have expired: its last renewal that was answered was sent a time to live ago."""
        return time.monotonic() >= self._until

    def check(self) -> None:
        """Lost if it may have expired."""
        if self.lost:
            raise Lost("the lease was not renewed in time")

    async def renew(self) -> None:
        """Once, now. Lost if it has expired."""
        sent = time.monotonic()
        if await self.attempts.run(requests.renew_lease(self.lease, timeout=max(self._until - sent, 0.001))) is None:
            self._until = sent
            raise Lost("the lease has expired, or was revoked")
        self._until = sent + self.ttl

    async def keep(self) -> None:
        """Renew the lease until it is lost."""
        while not self.lost:
            await asyncio.sleep(min(self.ttl / RENEWALS, max(self._until - time.monotonic(), 0)))
            try:
                await self.renew()
            except Lost:
                return
            except KvError:
                continue


@asynccontextmanager
async def session(attempts: Attempts, ttl: float, timeout: float | None) -> AsyncIterator[Session]:
    """A session that is kept alive until the block ends, and then revoked."""
    sent = time.monotonic()
    granted = await attempts.run(requests.grant_lease(ttl, timeout=timeout))
    made = Session(attempts, granted.id, granted.ttl, sent)
    keeper = asyncio.get_running_loop().create_task(made.keep())
    try:
        yield made
    finally:
        keeper.cancel()
        with suppress(KvError):  # then it expires
            await attempts.run(requests.revoke_lease(made.lease, timeout=made.end_seconds))


class Queue:
    """The sessions that have written a key under one name, in the order of the keys' create versions. kind: of the
    names."""

    def __init__(self, attempts: Attempts, keys: Keyspace, kind: str, name: str):
        if not as_bytes("name", of_type("name", name, str)):
            raise InvalidRequest("name: not empty", code="invalid", field="name")
        self._attempts = attempts
        self._keys = keys
        self._prefix = f"{kind}/{{{quote(name, safe='')}}}/".encode()
        room = KEY_BYTES_MAX - len(keys.prefix + self._prefix) - LEASE_HEX
        if room < 0:
            raise InvalidRequest(f"name: percent-encoded it is {-room} bytes too long", code="invalid", field="name")

    def _left(self, deadline: float) -> float:
        """Seconds for one more request. Unavailable if there are none."""
        left = deadline - time.monotonic()
        if left <= 0:
            raise Unavailable("its time was over before all of it was asked for")
        return min(left, self._attempts.timeout)

    async def enter(self, session: Session, value: bytes, deadline: float) -> Timestamp:
        """Write the key; returns its create version, which stays the same if this session has written it before. Lost
        if the session's lease is not there any more."""
        key = self.key_of(session)
        asked = self._keys.txn(
            [Compare(key, "create_version", "==", ZERO)], [Put(key, value, session.lease)], [Get(key)],
            timeout=self._left(deadline),
        )  # fmt: skip
        try:
            result = await self._attempts.run(asked)
        except ResultsForgotten:  # an answer was lost, and what stands there is large
            found = await self._attempts.run(self._keys.get(key, timeout=self._left(deadline)))
            if found is None:
                raise Lost("the lease has expired, or the key was deleted") from None
        except TransactionFailed as error:  # nothing else in it is ever impossible
            raise Lost("the lease has expired, or was revoked") from error
        else:
            if result.succeeded:
                return result.version
            found = result.results[0].found
            assert found is not None
        if found.value != value:
            await self.say(session, found.create_version, value, deadline)
        return found.create_version

    async def say(self, session: Session, created: Timestamp, value: bytes, deadline: float) -> None:
        """Write another value to the key with that create version. Lost if it is not there any more."""
        key = self.key_of(session)
        still = Compare(key, "create_version", "==", created)
        asked = self._keys.txn([still], [Put(key, value, session.lease)], timeout=self._left(deadline))
        if not (await self._attempts.run(asked)).succeeded:
            raise Lost("the lease has expired, or the key was deleted")

    async def wait(self, session: Session, created: Timestamp, deadline: float) -> None:
        """Wait until no key is before this session's. TimeoutError; Lost if the own key is not there any more."""
        while True:
            entries = await self.entries(deadline)
            if created not in [entry.create_version for entry in entries]:
                raise Lost("the lease has expired, or the key was deleted")
            before = [entry for entry in entries if entry.create_version < created]
            if not before:
                return
            await self._until_gone(session, before[-1], deadline)

    async def _until_gone(self, session: Session, entry: KeyValue, deadline: float) -> None:
        pause = POLL_SECONDS_MIN
        while True:
            session.check()
            try:
                await asyncio.sleep(min(pause, max(deadline - time.monotonic(), 0)))
                found = await self._attempts.run(self._keys.get(entry.key, timeout=self._left(deadline)))
            except Unavailable as error:
                if time.monotonic() < deadline:
                    raise
                raise TimeoutError("others were before for too long") from error
            if found is None or found.create_version != entry.create_version:
                return
            pause = min(2 * pause, POLL_SECONDS_MAX)

    async def entries(self, deadline: float) -> list[KeyValue]:
        """All keys of the name, by their create versions."""
        found: list[KeyValue] = []
        token: str | None = None
        while True:
            asked = self._keys.page(self._prefix, page_size=1000, token=token, timeout=self._left(deadline))
            page = await self._attempts.run(asked)
            found += page.entries
            token = page.next_page_token
            if token is None:
                return sorted(found, key=lambda entry: entry.create_version)

    async def leave(self, session: Session, timeout: float | None = None) -> None:
        """Delete the key."""
        await self._attempts.run(self._keys.delete(self.key_of(session), timeout=timeout))

    def key_of(self, session: Session) -> bytes:
        """The session's, under this name."""
        return self._prefix + session.lease.hex().encode()


class Lock:
    """A lock that is held. Made by `lock` of the clients.

    token: rises from one holder to the next; comparable across shards.
    """

    def __init__(self, session: Session, token: Timestamp):
        self._session = session
        self.token = token

    @property
    def lost(self) -> bool:
        """Whether it may be another's by now: it was not possible to renew it in time."""
        return self._session.lost

    def check(self) -> None:
        """Lost if it may be another's by now."""
        self._session.check()


@asynccontextmanager
async def lock(
    attempts: Attempts, keys: Keyspace, name: str, ttl: float, timeout: float | None
) -> AsyncIterator[Lock]:
    """The lock, held while the block runs."""
    queue, deadline = Queue(attempts, keys, "locks", name), _deadline(timeout)
    async with session(attempts, ttl, timeout) as own:
        try:
            token = await queue.enter(own, b"", deadline)
            await queue.wait(own, token, deadline)
        except BaseException:
            own.end_seconds = min(own.end_seconds, END_SECONDS)
            raise
        yield Lock(own, token)


def _deadline(timeout: float | None) -> float:
    """`time.monotonic` seconds."""
    return time.monotonic() + (float("inf") if timeout is None else requests.positive_seconds("timeout", timeout))


class Election:
    """The sessions that want to lead under a name. Made by `election` of the clients."""

    def __init__(self, attempts: Attempts, keys: Keyspace, name: str, own: Session):
        self._queue = Queue(attempts, keys, "elections", name)
        self._session = own
        self._token: Timestamp | None = None

    @property
    def lost(self) -> bool:
        """Whether this session may have expired: then somebody else may lead."""
        return self._session.lost

    async def campaign(self, value: bytes | str, timeout: float | None = None) -> Timestamp:
        """Wait until this session leads, and have it say this; returns the token of its leadership. TimeoutError if
        others lead for `timeout` seconds, Lost. A session that leads already keeps its token, and says this from now
        on."""
        said, deadline = as_bytes("value", value), _deadline(timeout)
        try:
            token = await self._queue.enter(self._session, said, deadline)
            await self._queue.wait(self._session, token, deadline)
        except BaseException:
            if self._token is None:  # else it leads, and goes on
                with suppress(KvError):
                    await self._queue.leave(self._session, END_SECONDS)
            raise
        self._token = token
        return token

    async def proclaim(self, value: bytes | str, *, timeout: float | None = None) -> None:
        """Say something else, and go on leading under the same token. Lost if this session does not lead. `timeout` is
        of the request, as for the next three; None: the client's own."""
        said = as_bytes("value", value)
        if self._token is None:
            raise Lost("this session does not lead: campaign first")
        await self._queue.say(self._session, self._token, said, _deadline(timeout))

    async def leader(self, *, timeout: float | None = None) -> KeyValue | None:
        """The leader's key: `value` is what it has said, `create_version` its token. None: nobody leads."""
        entries = await self._queue.entries(_deadline(timeout))
        return entries[0] if entries else None

    async def resign(self, *, timeout: float | None = None) -> None:
        """Lead no longer, or wait no longer."""
        self._token = None
        await self._queue.leave(self._session, timeout)

    async def observe(self, *, timeout: float | None = None) -> AsyncIterator[KeyValue]:
        """Each leader's key, and again whenever it says something else; what lasts less than half a second may be
        missed. `timeout` is for each look."""
        seen: Timestamp | None = None
        while True:
            leader = await self.leader(timeout=timeout)
            if leader is not None and leader.version != seen:
                seen = leader.version
                yield leader
            await asyncio.sleep(POLL_SECONDS_MAX)
