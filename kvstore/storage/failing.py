"""A backend whose commits are slow, fail, or end the process, as failpoints say."""

from __future__ import annotations

from kvstore.storage.backend import Backend, Changes, NoSpace, StorageError
from multicast.disk import NO_ROOM
from multicast.runtime.failpoints import COMMITTED, COMMITTING, Failpoints

_PAGE_BYTES = 4096


class FailingBackend:
    """`backend` with these faults."""

    def __init__(self, backend: Backend, failpoints: Failpoints):
        self._backend = backend
        self._failpoints = failpoints
        self.name = backend.name
        self.get, self.scan, self.keys, self.last = backend.get, backend.scan, backend.keys, backend.last
        self.refresh, self.upgrade, self.close = backend.refresh, backend.upgrade, backend.close
        self.view, self.stage, self.staged = backend.view, backend.stage, backend.staged
        self.unstage, self.seal, self.swap = backend.unstage, backend.seal, backend.swap

    def apply(self, changes: Changes) -> None:
        faults = self._failpoints.faults
        self._failpoints.reached(COMMITTING)
        try:
            self._failpoints.write(_PAGE_BYTES * sum(map(len, changes.tables.values())))
            self._failpoints.wait(faults.commit_ms, faults.commit_fails)
        except OSError as error:
            kind = NoSpace if error.errno in NO_ROOM else StorageError
            raise kind(f"{self.name}: the commit failed, nothing was changed: {error.strerror}") from None
        self._backend.apply(changes)
        self._failpoints.reached(COMMITTED)
