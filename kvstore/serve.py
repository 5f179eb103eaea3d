"""The process of one replica: lock, HTTP, the live replica, signals, and an end in good order."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import faulthandler
import gc
import os
import resource
import signal
import socket
import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from kvstore.certificates import Certificates
from kvstore.config import ClusterConfig, ConfigError, ReplicaConfig, check_exposure, load, replica_directory
from kvstore.founding import adopt, wait_to_begin
from kvstore.host import LiveReplica
from kvstore.http.app import HttpApi
from kvstore.http.connection import ApiServer
from kvstore.http.metrics import Metrics
from kvstore.identity import REMOVED, claim
from kvstore.logs import STANDARD_ERROR, set_up_logging
from kvstore.process import PortBusy, ReplicaLock, check_port, is_loopback, keep_heap_compact, port_user
from kvstore.settings import resolved
from multicast.disk import NO_ROOM
from multicast.logs import structlog
from multicast.runtime.failpoints import Failpoints
from multicast.runtime.tls import Handshakes
from multicast.types import ProcessId

BACKLOG = 1024
OPEN_FILES = 256
"""For all but clients: the journal, the state, the archive, strangers at the port for peers, before and after they have
shaken hands."""
HTTP_CLOSE_SECONDS = 1.0
"""For answers that are on their way out."""
END_SECONDS = 10.0
"""A replica that has failed is gone by then, whatever still hangs: a thread in a sync, a log that nobody reads."""

_log = structlog.get_logger("kvstore")


class ServeError(Exception):
    """The replica cannot start, or ended badly; one line."""


def serve(
    directory: Path,
    replica: str,
    lost_disk: bool = False,
    failpoints: Path | None = None,
    insecure: bool = False,
    bootstrap: Path | None = None,
    flags: Sequence[str] = (),
) -> None:
    """Run one replica (`ClusterConfig.named`) until SIGTERM or SIGINT, the second of which kills.
    ServeError if it cannot start or fails.
    lost_disk: see `identity.claim`. failpoints: see `Failpoints`; ConfigError unless the whole cluster is on loopback.
    insecure: without it, ConfigError unless this replica is. bootstrap: see `kvstore.founding`. flags: see `settings`.
    """
    config = load(directory) if bootstrap is None else adopt(directory, bootstrap)
    me = config.named(replica)
    replica_id = me.id
    if me.removed:
        print(REMOVED.format(replica_id))
        return
    if not insecure:
        check_exposure(config, me)
    if failpoints and not all(is_loopback(replica.host) for replica in config.replicas):
        raise ConfigError("--failpoints is for tests: every replica of the cluster must be on a loopback address")
    certificates = Certificates(directory, config, me) if config.tls else None
    own = resolved(config, os.environ, flags)
    set_up_logging()
    if bootstrap is not None:
        lost_disk = asyncio.run(_wait_to_begin(directory, config, me, certificates)) or lost_disk
    try:
        lock = ReplicaLock(claim(directory, config, replica_id, lost_disk))
    except OSError as error:
        raise _without_room(error, directory, replica_id) from None
    try:
        _, files_max = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (files_max, files_max))
        own, at_once = within(own, files_max)
        keep_heap_compact()
        faulthandler.enable(STANDARD_ERROR)  # a memory map on a failing disk ends a process by a signal
        structlog.contextvars.clear_contextvars()
        check_port(me.host, me.peer_port, "peer port")
        check_port(me.host, me.http_port, "HTTP port")
        faults = Failpoints(failpoints) if failpoints else None
        asyncio.run(_serve(directory, own, replica_id, faults, certificates, at_once))
    except OSError as error:
        raise _without_room(error, directory, replica_id) from None
    finally:
        lock.release()


def within(config: ClusterConfig, files_max: int) -> tuple[ClusterConfig, int]:
    """The configuration with no more connections than a process may have that may open so many files, and how many of
    those that wait at the port it may take at once: the event loop takes them before the limit sees one, and where no
    file can be opened any more neither peers nor the disk are reached."""
    if files_max == resource.RLIM_INFINITY:
        return config, BACKLOG
    at_once = min(BACKLOG, files_max // 8)
    room = max(files_max - 3 * at_once - OPEN_FILES - 2 * len(config.replicas), at_once)
    if room >= config.limits.connections_max:
        return config, at_once
    _log.warning("fewer connections than connections_max: few files may be open", connections=room, files=files_max)
    limits = msgspec.structs.replace(config.limits, connections_max=room)
    return msgspec.structs.replace(config, limits=limits), at_once


def _without_room(error: OSError, directory: Path, replica_id: ProcessId) -> Exception:
    """At a start, before there is anybody who could wait for room: with a sentence."""
    if error.errno not in NO_ROOM:
        return error
    home = replica_directory(directory, replica_id)
    return ConfigError(f"{home}: no room is left on its disk, and to begin takes some: make room, then start it again")


async def _wait_to_begin(
    directory: Path, config: ClusterConfig, me: ReplicaConfig, certificates: Certificates | None
) -> bool:
    """See `founding.wait_to_begin`. SIGTERM ends the waiting as Ctrl-C does, and SIGHUP does not."""
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None
    loop.add_signal_handler(signal.SIGTERM, task.cancel)
    loop.add_signal_handler(signal.SIGHUP, _renew, certificates)
    try:
        return await wait_to_begin(directory, config, me, certificates.clients if certificates else None)
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


async def _serve(
    directory: Path, config: ClusterConfig, replica_id: ProcessId, failpoints: Failpoints | None,
    certificates: Certificates | None, at_once: int,
) -> None:  # fmt: skip
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _asked_to_stop, stop, number)
    loop.add_signal_handler(signal.SIGHUP, _renew, certificates)
    _log.info("starting", replica=replica_id, pid=os.getpid(), cluster=config.cluster_id, protocol=config.protocol)
    replica = LiveReplica(directory, config, replica_id, failpoints, certificates.peers if certificates else None)
    metrics = Metrics(replica.status)
    if certificates is not None:
        metrics.certificate_expires = lambda: certificates.expires
    api = HttpApi(replica, config.limits, metrics, config.cors_origins, bytes.fromhex(config.root), config.log)
    factory = ApiServer(api)
    server = await _listen(factory, config, replica_id, certificates, at_once)
    try:
        await replica.start()
        gc.collect()
        gc.freeze()
        gc.set_threshold(20_000, 20, 50)
        _notify("READY=1")
        _log.info("serving", replica=replica_id, url=config.replica(replica_id).url)
        replica.failed.add_done_callback(lambda _: _end(stop))
        replica.removed.add_done_callback(lambda _: stop.set())
        await stop.wait()
        if not replica.failed.done():
            _log.info("stopping", replica=replica_id)
            server.close()
            left = await api.calls.drain(config.limits.stop_deadline_ms / 1000)
            if left:
                _log.warning("answered unknown: open at the deadline", requests=left)
    finally:
        _notify("STOPPING=1")
        api.calls.stopping = True
        server.close()
        await factory.close(HTTP_CLOSE_SECONDS)
        await replica.stop()
    if replica.failure():
        raise ServeError(replica.failure())
    if replica.removed.done():
        _log.info(REMOVED.format(replica_id))
    _log.info("stopped", replica=replica_id)


def _asked_to_stop(stop: asyncio.Event, number: int) -> None:
    """In good order. Whoever says it again, as a disk that hangs makes it last, need not wait: a killed replica loses
    nothing."""
    stop.set()
    asyncio.get_running_loop().remove_signal_handler(number)
    signal.signal(number, signal.SIG_DFL)


def _notify(state: str) -> None:
    """To a service manager that wants to know (systemd's sd_notify(3)): a datagram to the socket that it names."""
    where = os.environ.get("NOTIFY_SOCKET", "")
    if where:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.connect("\0" + where[1:] if where[0] == "@" else where)
            manager.send(state.encode())


def _end(stop: asyncio.Event) -> None:
    """It has failed."""
    stop.set()
    killing = threading.Timer(END_SECONDS, os._exit, [1])
    killing.daemon = True
    killing.start()


def _renew(certificates: Certificates | None) -> None:
    if certificates is None:
        _log.info("asked to read certificates again: this cluster has none, and nothing else is read again")
    elif problem := certificates.renew():
        _log.error("certificates could not be read again, and those before stay in use", problem=problem)
    else:
        until = datetime.fromtimestamp(certificates.expires, UTC)
        _log.info("certificates are read again", until=until.isoformat())


async def _listen(
    factory: ApiServer, config: ClusterConfig, replica_id: ProcessId, certificates: Certificates | None, at_once: int
) -> asyncio.Server:
    me = config.replica(replica_id)
    made: Callable[[], asyncio.BaseProtocol] = factory
    if certificates is not None and certificates.clients is not None:
        shown = certificates.clients
        handshakes = Handshakes(lambda: certificates.clients or shown, at_once)
        made, factory.shaken = handshakes.before(factory), handshakes.over
    try:
        server = await asyncio.get_running_loop().create_server(made, me.host, me.http_port, backlog=at_once)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            user = port_user(me.host, me.http_port)
            raise PortBusy(f"HTTP port {me.http_port} on {me.host} is in use by {user}") from None
        raise ConfigError(f"HTTP port {me.http_port} on {me.host}: {error.strerror}") from None
    for listening in server.sockets:
        with socket.socket(fileno=os.dup(listening.fileno())) as same:
            same.listen(BACKLOG)
    return server
