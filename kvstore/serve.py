"""The process of one replica: lock, HTTP, the live replica, signals, and an end in good order."""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import os
import signal
import sys
from pathlib import Path

import structlog

from kvstore.config import ClusterConfig, ConfigError, claim, load
from kvstore.host import LiveReplica
from kvstore.http.app import HttpApi
from kvstore.http.connection import ApiServer
from kvstore.http.metrics import Metrics
from kvstore.process import PortBusy, ReplicaLock, check_port, port_user
from multicast.types import ProcessId

BACKLOG = 1024
HTTP_CLOSE_SECONDS = 1.0
"""For answers that are on their way out."""

_log = structlog.get_logger("kvstore")


class ServeError(Exception):
    """The replica cannot start, or ended badly; one line."""


def set_up_logging() -> None:
    """JSON lines on standard error. Values of keys and requests are never logged."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    line = '{"level": "%(levelname)s", "logger": "%(name)s", "event": %(message)r}'
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format=line)


def serve(directory: Path, replica_id: ProcessId, lost_disk: bool = False) -> None:
    """Run one replica until SIGTERM or SIGINT. ServeError if it cannot start or fails. lost_disk: see `claim`."""
    config = load(directory)
    me = config.replica(replica_id)
    lock = ReplicaLock(claim(directory, config, replica_id, lost_disk))
    try:
        set_up_logging()
        structlog.contextvars.clear_contextvars()
        check_port(me.host, me.peer_port, "peer port")
        check_port(me.host, me.http_port, "HTTP port")
        asyncio.run(_serve(directory, config, replica_id))
    finally:
        lock.release()


async def _serve(directory: Path, config: ClusterConfig, replica_id: ProcessId) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    _log.info("starting", replica=replica_id, pid=os.getpid(), cluster=config.cluster_id, protocol=config.protocol)
    replica = LiveReplica(directory, config, replica_id)
    api = HttpApi(replica, config.limits, Metrics(replica.status))
    factory = ApiServer(api)
    server = await _listen(factory, config, replica_id)
    try:
        await replica.start()
        gc.collect()
        gc.freeze()
        gc.set_threshold(20_000, 20, 50)
        _log.info("serving", replica=replica_id, url=config.replica(replica_id).url)
        replica.failed.add_done_callback(lambda _: stop.set())
        await stop.wait()
        if not replica.failed.done():
            _log.info("stopping", replica=replica_id)
            server.close()
            left = await api.calls.drain(config.limits.stop_deadline_ms / 1000)
            if left:
                _log.warning("answered unknown: open at the deadline", requests=left)
    finally:
        api.calls.stopping = True
        server.close()
        await factory.close(HTTP_CLOSE_SECONDS)
        await replica.stop()
    if replica.failure():
        raise ServeError(replica.failure())
    _log.info("stopped", replica=replica_id)


async def _listen(factory: ApiServer, config: ClusterConfig, replica_id: ProcessId) -> asyncio.Server:
    me = config.replica(replica_id)
    try:
        return await asyncio.get_running_loop().create_server(factory, me.host, me.http_port, backlog=BACKLOG)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            user = port_user(me.host, me.http_port)
            raise PortBusy(f"HTTP port {me.http_port} on {me.host} is in use by {user}") from None
        raise ConfigError(f"HTTP port {me.http_port} on {me.host}: {error.strerror}") from None
