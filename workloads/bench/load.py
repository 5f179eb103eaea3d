"""The load: clients that each have at most one operation under way, in closed or in open loop.

Closed loop: a client begins its next operation when the last is answered. Open loop: operations fall due at random
instants with a given mean rate (a Poisson process), whether or not earlier ones are answered; a latency counts from the
instant at which its operation fell due, also when no client was free then, so that a server that stands still is not
asked for fewer (no "coordinated omission": Tene 2013; Schroeder et al., Open Versus Closed, NSDI 2006).

One thread, one epoll, plain sockets.
"""

from __future__ import annotations

import random
import resource
import select
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from workloads.bench.connection import LOST, Connection

DRAIN_SECONDS = 6.0
PAUSE_AFTER_ERROR_NS = 20_000_000
REFUSED = (429, 503, 507)
"""Statuses that say that the server has too much to do; its connection is as good as before."""
_POLL_SECONDS = 0.1
_DESCRIPTORS_OF_OTHERS = 128

Request = tuple[int, bytes]
"""(which server, by its place among the store's, and the request as it goes over the wire)"""


class Operation(NamedTuple):
    """What one client does and how it is called in the report: requests one after the other, each once the one before
    it has succeeded. acknowledged: called when all have."""

    name: str
    requests: tuple[Request, ...]
    acknowledged: Callable[[], None] | None = None


class Tally:
    """What came of it. Within the measured time: latencies by name of the operation, nanoseconds, of successes only;
    errors: status -> count ("lost": the connection broke; "unanswered": at the end); refused: latencies of what was
    refused, which counts as an error as well. succeeded: successes from the begin to the end, for costs; cpu_ns: what
    the generator took for all of it, processor time."""

    def __init__(self) -> None:
        self.latencies: dict[str, list[int]] = {}
        self.errors: Counter[str] = Counter()
        self.refused: list[int] = []
        self.succeeded = 0
        self.cpu_ns = 0
        self.ran_ns = 0


class _Client:
    __slots__ = ("began", "connections", "operation", "step")

    def __init__(self, connections: list[Connection]):
        self.connections = connections
        self.operation: Operation | None = None
        self.step = 0
        self.began = 0


class Load:
    """`run` blocks until the load is over; `stop`, from another thread, ends it soon.

    urls: the servers; every client keeps a connection to each. make: the next operation. rate: operations per second
    in open loop; 0: closed loop. connect: opens a connection to a URL.
    """

    def __init__(
        self,
        urls: Sequence[str],
        clients: int,
        make: Callable[[], Operation],
        seconds: float,
        warmup: float,
        rate: float = 0.0,
        seed: int = 1,
        connect: Callable[[str], Connection] = Connection.open,
    ):
        self.urls = urls
        self.tally = Tally()
        self._clients_wanted = clients
        self._make = make
        self._open = connect
        self.seconds, self._warmup = seconds, warmup
        self._gap_ns = 1e9 / rate if rate else 0.0
        self._rng = random.Random(seed)
        self._clients: list[_Client] = []
        self._by_socket: dict[int, tuple[_Client, Connection]] = {}
        self._idle: deque[_Client] = deque()
        self._paused: deque[tuple[int, _Client, bool]] = deque()
        self._due: deque[int] = deque()
        self._next_due = 0.0
        self._from = self._until = 0
        self._stopped = False

    def stop(self) -> None:
        """Have `run` return."""
        self._stopped = True

    def run(self) -> Tally:
        """Connect, warm up, measure, let what is under way finish. OSError if a server cannot be reached."""
        _allow_descriptors(self._clients_wanted * len(self.urls))
        # The first descriptor of all is a small one, as `select` needs it.
        self._poll = select.epoll()
        try:
            for _ in range(self._clients_wanted):
                self._clients.append(_Client([]))
                self._connect(self._clients[-1])
            self._run()
        finally:
            for client in self._clients:
                for connection in client.connections:
                    connection.close()
            self._poll.close()
        return self.tally

    def _connect(self, client: _Client) -> None:
        for connection in client.connections:
            self._by_socket.pop(connection.socket.fileno(), None)
            connection.close()
        client.connections = []
        for url in self.urls:
            connection = self._open(url)
            client.connections.append(connection)
            self._by_socket[connection.socket.fileno()] = (client, connection)
            self._poll.register(connection.socket, select.EPOLLIN)

    def _run(self) -> None:
        began, cpu = time.monotonic_ns(), time.thread_time_ns()
        self._from = began + int(self._warmup * 1e9)
        self._until = self._from + int(self.seconds * 1e9)
        self._next_due = began + self._rng.random() * self._gap_ns
        for client in self._clients:
            self._rest(client, began)
        now = began
        while not self._stopped:
            for descriptor, _ in self._ready(now):
                found = self._by_socket.get(descriptor)
                if found is not None:
                    self._on_ready(*found)
            now = time.monotonic_ns()
            if self._paused:
                self._resume(now)
            if self._gap_ns:
                self._begin_due(now)
            if now >= self._until:
                unanswered = len(self._due) + sum(client.operation is not None for client in self._clients)
                if not unanswered:
                    break
                if now >= self._until + int(DRAIN_SECONDS * 1e9):
                    self.tally.errors["unanswered"] += unanswered
                    break
        self.tally.cpu_ns = time.thread_time_ns() - cpu
        self.tally.ran_ns = now - began

    def _ready(self, now: int) -> list[tuple[int, int]]:
        """Wait for an answer, at most until the next operation is due."""
        if not self._gap_ns or now >= self._until or self._paused:
            return self._poll.poll(0.001 if self._paused else _POLL_SECONDS)
        # An epoll's own timeout is in whole milliseconds.
        wait = (self._next_due - now) / 1e9
        readable, _, _ = select.select([self._poll], (), (), min(max(wait, 0.0), _POLL_SECONDS))
        return self._poll.poll(0) if readable else []

    def _begin_due(self, now: int) -> None:
        while self._next_due <= now and self._next_due < self._until:
            self._due.append(int(self._next_due))
            self._next_due += self._rng.expovariate(1.0) * self._gap_ns
        while self._due and self._idle:
            self._begin(self._idle.popleft(), self._due.popleft())

    def _begin(self, client: _Client, began: int) -> None:
        operation = client.operation = self._make()
        client.step, client.began = 0, began
        server, data = operation.requests[0]
        if not client.connections[server].send(data):
            self._finish(client, LOST)

    def _on_ready(self, client: _Client, connection: Connection) -> None:
        status = connection.receive()
        if status is None:
            return
        operation = client.operation
        if operation is None:  # a server has closed an idle connection
            if client in self._idle:
                self._idle.remove(client)
                self._pause(client, time.monotonic_ns())
            return
        client.step += 1
        if 200 <= status < 300 and client.step < len(operation.requests):
            server, data = operation.requests[client.step]
            if client.connections[server].send(data):
                return
            status = LOST
        self._finish(client, status)

    def _finish(self, client: _Client, status: int) -> None:
        now, operation, tally = time.monotonic_ns(), client.operation, self.tally
        assert operation is not None
        client.operation = None
        counts = self._from <= (client.began if self._gap_ns else now) < self._until
        if 200 <= status < 300:
            if operation.acknowledged is not None:
                operation.acknowledged()
            tally.succeeded += 1
            if counts:
                latencies = tally.latencies.get(operation.name)
                if latencies is None:
                    latencies = tally.latencies[operation.name] = []
                latencies.append(now - client.began)
            self._rest(client, now)
        else:
            if counts:
                tally.errors["lost" if status == LOST else str(status)] += 1
            refused = status in REFUSED
            if refused and counts:
                tally.refused.append(now - client.began)
            if refused and self._gap_ns:
                self._rest(client, now)
            else:
                self._pause(client, now, lost=not refused)

    def _rest(self, client: _Client, now: int) -> None:
        """This client is free."""
        if self._gap_ns or now >= self._until:
            self._idle.append(client)
        else:
            self._begin(client, now)

    def _pause(self, client: _Client, now: int, lost: bool = True) -> None:
        """This client has failed: it goes on in a moment, with new connections if these are lost."""
        self._paused.append((now + PAUSE_AFTER_ERROR_NS, client, lost))

    def _resume(self, now: int) -> None:
        while self._paused and self._paused[0][0] <= now:
            _, client, lost = self._paused.popleft()
            try:
                if lost:
                    self._connect(client)
            except OSError:
                if self._from <= now < self._until:
                    self.tally.errors["lost"] += 1
                self._pause(client, now)
            else:
                self._rest(client, now)


def _allow_descriptors(connections: int) -> None:
    """As far as this process may: shells often start with 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + _DESCRIPTORS_OF_OTHERS
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
