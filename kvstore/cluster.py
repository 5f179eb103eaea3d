"""All replicas of a cluster as processes on this machine: start, status, stop; replicas that are added and removed;
slots that move between shards.

A replica is started as `python -m kvstore serve`, in its own session, so that Ctrl-C in a terminal reaches only the
command that started it; its output is appended to `DIR/replicas/<id>/log`.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import signal
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from kvstore import certificates
from kvstore.api.cluster import decode_cluster
from kvstore.api.codec import id_text
from kvstore.api.shard_map import ShardMap
from kvstore.config import (
    ClusterConfig,
    ConfigError,
    ReplicaConfig,
    check,
    check_exposure,
    claim,
    create,
    load,
    replica_directory,
    save,
)
from kvstore.console import ERROR_PREFIX
from kvstore.process import Handle, PortBusy, check_port, running
from multicast import registry
from multicast.types import GroupId, ProcessId, new_message_id

LOG_FILE = "log"
READY_SECONDS = 60.0
POLL_SECONDS = 0.05
KILL_GRACE_SECONDS = 10.0
HTTP_SECONDS = 2.0
CHANGE_SECONDS = 60.0
CHANGE_POLL_SECONDS = 0.2
MOVE_STEP_SECONDS = 30.0
"""For so long one step of a move is tried, at one replica after the other."""



class ClusterError(Exception):
    """A replica cannot be started or stopped; one line."""


class NotAll(ClusterError):
    """Some replicas could not be started, or are not ready; the text names each and why. started: those that run."""

    def __init__(self, problems: list[str], started: list[Started]):
        super().__init__("; ".join(problems))
        self.started = started


class Started(msgspec.Struct):
    """A replica process that this process started."""

    replica: ReplicaConfig
    process: subprocess.Popen[bytes]
    log: Path
    log_start: int

    def last_words(self) -> str:
        """Why it ended: the error line in its log, else the last line there."""
        with open(self.log, "rb") as file:
            file.seek(self.log_start)
            lines = [line for line in file.read().decode("utf-8", "replace").splitlines() if line.strip()]
        told = [line.removeprefix(ERROR_PREFIX) for line in lines if line.startswith(ERROR_PREFIX)]
        return told[-1] if told else (lines[-1][:300] if lines else f"exit status {self.process.returncode}")


class ReplicaStatus(msgspec.Struct):
    """One line of `kvstore cluster status`. state: "ready", "not ready", "not answering" or "down"."""

    id: int
    shard: int
    url: str
    pid: int | None
    state: str
    role: str
    position: int | None
    details: dict[str, Any] = {}


def fetch(
    url: str, seconds: float = HTTP_SECONDS, body: bytes | None = None, headers: Mapping[str, str] | None = None
) -> tuple[int, bytes]:
    """(status, body) of a GET, or of a POST of `body`, past any proxy. OSError if nobody answers. For certificates it
    trusts whom `open_cluster` has told, else the file that the environment names in KVSTORE_CA, else the system."""
    try:
        asked = urllib.request.Request(url, body, dict(headers or {}))
        with _opener(asked.type).open(asked, timeout=seconds) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


@cache
def _trusted() -> ssl.SSLContext:
    return ssl.create_default_context(cafile=os.environ.get("KVSTORE_CA"))


@cache
def _opener(scheme: str) -> urllib.request.OpenerDirector:
    secure = [urllib.request.HTTPSHandler(context=_trusted())] if scheme == "https" else []
    return urllib.request.build_opener(urllib.request.ProxyHandler({}), *secure)


def open_cluster(directory: Path) -> ClusterConfig:
    """`load`, and `fetch` trusts its certificates from now on."""
    config = load(directory)
    if config.tls:
        authority = directory / config.tls / certificates.AUTHORITY
        try:
            _trusted().load_verify_locations(authority)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"{authority}: {error}") from None
    return config


def is_ready(replica: ReplicaConfig) -> bool:
    """Whether it answers that it serves requests."""
    try:
        return fetch(f"{replica.url}/readyz")[0] == 200
    except OSError:
        return False


def start(
    directory: Path, config: ClusterConfig, replica: ReplicaConfig, lost_disk: bool = False, insecure: bool = False
) -> Started:
    """Start one replica as a process. ClusterError for a busy port, ConfigError for a directory that is another
    cluster's or is gone (lost_disk: see `claim`; insecure: see `check_exposure`)."""
    home = claim(directory, config, replica.id, lost_disk)
    try:
        check_port(replica.host, replica.peer_port, "peer port")
        check_port(replica.host, replica.http_port, "HTTP port")
    except (PortBusy, OSError) as error:
        raise ClusterError(f"replica {replica.id}: {error}") from None
    path = home / LOG_FILE
    command = [sys.executable, "-m", "kvstore", "serve", "--dir", str(directory), "--replica", str(replica.id)]
    command += ["--insecure"] if insecure else []
    package_root = str(Path(__file__).resolve().parent.parent)
    paths = [package_root, *filter(None, [os.environ.get("PYTHONPATH")])]
    with open(path, "ab") as log:
        begin = log.tell()
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        )
    return Started(replica, process, path, begin)


def up(directory: Path, say: Callable[[str], None], insecure: bool = False) -> list[Started]:
    """Start every replica that is down, and wait until all are ready; those that this call started.

    NotAll, once all others are ready: some cannot be started, or do not become ready. Whatever runs goes on. insecure:
    see `check_exposure`.
    """
    config = open_cluster(directory)
    if not insecure:
        for replica in config.present:
            check_exposure(config, replica)
    started: list[Started] = []
    problems: list[str] = []
    try:
        for replica in config.present:
            if running(replica_directory(directory, replica.id)) is None:
                try:
                    started.append(start(directory, config, replica, insecure=insecure))
                except (ClusterError, ConfigError, OSError) as error:
                    name = f"replica {replica.id}: "
                    problems.append(name + str(error).removeprefix(name))
        ended = wait_ready(directory, config, started, problems, say)
    except BaseException:
        stop_started(directory, started, say)
        raise
    if problems:
        raise NotAll(problems, [one for one in started if one not in ended])
    return started


def wait_ready(
    directory: Path, config: ClusterConfig, started: list[Started], problems: list[str], say: Callable[[str], None]
) -> list[Started]:
    """Until every replica is ready that can be; adds why one is not. Returns those that have ended meanwhile."""
    alive = {r.id for r in config.present if running(replica_directory(directory, r.id))} | {
        one.replica.id for one in started
    }
    waiting = [replica for replica in config.present if replica.id in alive]
    ended: list[Started] = []
    deadline = time.monotonic() + READY_SECONDS
    while waiting:
        for one in started:
            if one not in ended and one.process.poll() is not None:
                ended.append(one)
                alive.discard(one.replica.id)
                problems.append(f"replica {one.replica.id} ended while starting: {one.last_words()}")
        for replica in list(waiting):
            members = config.shards[replica.shard]
            late = time.monotonic() > deadline
            holds = running(replica_directory(directory, replica.id)) is not None  # from then on nobody starts another
            if replica.id not in alive:
                waiting.remove(replica)
            elif is_ready(replica):
                waiting.remove(replica)
                say(f"replica {replica.id} of shard {replica.shard} is ready at {replica.url}")
            elif late or (holds and 2 * len(alive.intersection(members)) <= len(members)):
                waiting.remove(replica)
                why = f"after {READY_SECONDS:.0f} s" if late else f"no majority of shard {replica.shard} runs"
                log = Path("replicas") / str(replica.id) / LOG_FILE
                problems.append(f"replica {replica.id} runs and is not ready ({why}; {log})")
        if waiting:
            time.sleep(POLL_SECONDS)
    return ended


def add_replica(
    directory: Path, shard: GroupId, host: str, advertise: str, ports: tuple[int, int] | None,
    say: Callable[[str], None], insecure: bool = False,
) -> Started:
    """Make a new replica of the shard, start it on this machine, and have it taken in; returns when it is ready.

    ports: for its peers and for HTTP; None: the next ones. ClusterError, ConfigError: why it cannot be; then nothing
    has changed, or the same command may be given again for another one.
    """
    config = open_cluster(directory)
    _check_change(config, shard)
    used = [(replica.peer_port, replica.http_port) for replica in config.replicas]
    first = used[0][1] - used[0][0]
    peer_port = max(peer for peer, _ in used) + 1
    peer_port, http_port = ports or (peer_port, max(peer_port + first, *(port + 1 for _, port in used)))
    replica = ReplicaConfig(
        id=max(replica.id for replica in config.replicas) + 1, shard=shard, host=host, advertise=advertise,
        peer_port=peer_port, http_port=http_port, https=config.replicas[0].https, added=True,
    )  # fmt: skip
    if not insecure:
        check_exposure(config, replica)
    after = msgspec.structs.replace(config, epoch=config.epoch + 1, replicas=(*config.replicas, replica))
    check(after, f"with replica {replica.id}")
    if config.tls:
        certificates.make(directory, after, say)
    create(directory, after)
    try:
        started = start(directory, after, replica, insecure=insecure)
    except BaseException:
        save(directory, config)
        raise
    _have_changed(after, shard, {"add": replica}, replica.id)
    problems: list[str] = []
    wait_ready(directory, msgspec.structs.replace(after, replicas=(replica,)), [started], problems, say)
    if problems:
        raise ClusterError(problems[0])
    return started


def remove_replica(directory: Path, replica_id: ProcessId, say: Callable[[str], None]) -> None:
    """Have a replica removed from its shard; it ends by itself. ClusterError, ConfigError: why it cannot be."""
    config = open_cluster(directory)
    replica = config.replica(replica_id)
    if not replica.removed:
        _check_change(config, replica.shard)
        _have_changed(config, replica.shard, {"remove": replica_id}, replica_id)
        replicas = [msgspec.structs.replace(r, removed=True) if r.id == replica_id else r for r in config.replicas]
        save(directory, msgspec.structs.replace(config, epoch=config.epoch + 1, replicas=tuple(replicas)))
    say(f"replica {replica_id} belongs to shard {replica.shard} no more")
    handle = Handle.of(replica_directory(directory, replica_id))
    if handle is not None:
        if not handle.wait(KILL_GRACE_SECONDS):  # it has not been told: it may be cut off
            handle.send(signal.SIGTERM)
            handle.wait(KILL_GRACE_SECONDS)
        handle.close()
        say(f"replica {replica_id} (process {handle.pid}) stopped")


def _check_change(config: ClusterConfig, shard: GroupId) -> None:
    if not registry.load(config.protocol).specification.changes_members:
        raise ConfigError(f"the protocol {config.protocol} does not change the members of a shard")
    if shard not in config.shards:
        raise ConfigError(f"there is no shard {shard}: they are {', '.join(map(str, config.shards))}")


def _have_changed(config: ClusterConfig, shard: GroupId, wanted: dict[str, Any], about: ProcessId) -> None:
    """Ask the shard's other replicas, one after the other, until it is so. ClusterError."""
    others = [replica for replica in config.present if replica.shard == shard and replica.id != about]
    body, headers = msgspec.json.encode(wanted), {"Content-Type": "application/json"}
    deadline = time.monotonic() + CHANGE_SECONDS
    problem = "the shard has no other replica"
    for replica in itertools.cycle(others):
        try:
            status, answer = fetch(f"{replica.url}/v1/cluster/members", body=body, headers=headers)
            told = msgspec.json.decode(answer)
        except (OSError, msgspec.DecodeError) as error:
            status, told = 503, {"detail": str(error)}
        if status == 200 and told["done"]:
            return
        if status != 200:
            problem = f"replica {replica.id}: {told.get('detail')}"
        if status not in (200, 503) or time.monotonic() > deadline:
            break
        time.sleep(CHANGE_POLL_SECONDS)
    raise ClusterError(f"shard {shard} was not changed: {problem}")


def move_slots(
    directory: Path, source: int, target: int, slots: Sequence[tuple[int, int]], say: Callable[[str], None]
) -> None:
    """Move these slots, ranges of first and last, from one shard to the other: step by step, each under an id that it
    keeps, through any replica that answers. ClusterError says why nothing moves; then it may be asked for again."""
    urls = itertools.cycle([replica.url for replica in open_cluster(directory).present])
    body = msgspec.json.encode({"source": source, "target": target, "slots": slots})
    steps, more = 0, True
    while more:
        message_id = id_text(new_message_id(time.time_ns() // 1000, secrets.randbits(62)))
        headers = {"Content-Type": "application/json", "Idempotency-Key": message_id}
        give_up_at = time.monotonic() + MOVE_STEP_SECONDS
        while True:
            try:
                status, answer = fetch(f"{next(urls)}/v1/moves", MOVE_STEP_SECONDS, body, headers)
                told = msgspec.json.decode(answer)
            except (OSError, msgspec.DecodeError) as error:
                status, told = 0, {"detail": str(error), "retryable": True}
            if status == 200:
                break
            another = told.get("retryable") or told.get("code") in ("id_expired", "id_in_future")  # its clock is off
            if not another and _has(directory, target, slots):
                say(f"shard {target} has these slots already")
                return
            if not another or time.monotonic() > give_up_at:
                raise ClusterError(f"nothing was moved, after {steps} step(s): {told.get('detail')}")
            time.sleep(POLL_SECONDS)
        steps, more = steps + 1, told["more"]
    say(f"moved from shard {source} to shard {target}, in {steps} step(s)")


def _has(directory: Path, shard: int, slots: Sequence[tuple[int, int]]) -> bool:
    """Whether one of its replicas says that it has all of these slots."""
    for replica in open_cluster(directory).present:
        with contextlib.suppress(OSError, ValueError, msgspec.DecodeError):
            if replica.shard == shard:
                told = decode_cluster(fetch(f"{replica.url}/v1/cluster")[1])
                owners = ShardMap.from_json(told.shard_map).slots
                return all(set(owners[first : last + 1]) == {shard} for first, last in slots)
    return False


def down(directory: Path, say: Callable[[str], None]) -> bool:
    """Stop every running replica: SIGTERM to all, then wait. False if one had to be killed."""
    config = open_cluster(directory)
    handles = []
    for replica in config.present:
        handle = Handle.of(replica_directory(directory, replica.id))
        if handle is not None:
            handles.append((replica.id, handle))
    deadline = time.monotonic() + config.limits.stop_deadline_ms / 1000 * 3 + KILL_GRACE_SECONDS
    for _, handle in handles:
        handle.send(signal.SIGTERM)
    clean = True
    for replica_id, handle in handles:
        if handle.wait(deadline - time.monotonic()):
            say(f"replica {replica_id} (process {handle.pid}) stopped")
        else:
            handle.send(signal.SIGKILL)
            handle.wait(KILL_GRACE_SECONDS)
            say(f"replica {replica_id} (process {handle.pid}) did not stop in time and was killed")
            clean = False
        handle.close()
    if not handles:
        say("no replica is running")
    return clean


def stop_started(directory: Path, started: list[Started], say: Callable[[str], None]) -> None:
    """Stop the processes that `up` started, and collect them."""
    for one in started:
        with contextlib.suppress(ProcessLookupError):
            one.process.terminate()
    for one in started:
        try:
            one.process.wait(KILL_GRACE_SECONDS + open_cluster(directory).limits.stop_deadline_ms / 1000 * 3)
        except subprocess.TimeoutExpired:
            one.process.kill()
            one.process.wait()
            say(f"replica {one.replica.id} did not stop in time and was killed")


def watch(directory: Path, started: list[Started], say: Callable[[str], None]) -> None:
    """Until Ctrl-C (or SIGTERM within `terminable`): say when a replica that we started ends. Then stop them all."""
    ended: set[int] = set()
    try:
        say("running; Ctrl-C stops the replicas started here")
        while len(ended) < len(started):
            for one in started:
                if one.replica.id not in ended and one.process.poll() is not None:
                    ended.add(one.replica.id)
                    say(f"replica {one.replica.id} ended with status {one.process.returncode}: {one.last_words()}")
            time.sleep(POLL_SECONDS * 4)
        say("no replica is left")
    except KeyboardInterrupt:
        say("stopping")
    finally:
        stop_started(directory, started, say)


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM is as good as Ctrl-C here: whatever was started is stopped."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def status(directory: Path) -> list[ReplicaStatus]:
    """Every replica of the cluster, whether it runs or not."""
    config = open_cluster(directory)
    return [_status(directory, config, replica) for replica in config.present]


def _status(directory: Path, config: ClusterConfig, replica: ReplicaConfig) -> ReplicaStatus:
    pid = running(replica_directory(directory, replica.id))
    line = ReplicaStatus(replica.id, replica.shard, replica.url, pid, "down", "", None)
    if pid is None:
        return line
    line.state = "not answering"
    with contextlib.suppress(OSError, msgspec.DecodeError, KeyError):
        answer = msgspec.json.decode(fetch(f"{replica.url}/v1/cluster")[1])
        if answer["cluster_id"] == config.cluster_id:
            line.details = answer["replica"]
            line.state = "ready" if line.details["ready"] else "not ready"
            line.role, line.position = line.details["role"], line.details["position"]
    return line
