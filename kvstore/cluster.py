"""All replicas of a cluster as processes on this machine: start, status, stop.

A replica is started as `python -m kvstore serve`, in its own session, so that Ctrl-C in a terminal reaches only the
command that started it; its output is appended to `DIR/replicas/<id>/log`, which is put aside when it is large.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cache
from pathlib import Path

import msgspec

from kvstore import certificates, changing
from kvstore.api.cluster import FETCHES
from kvstore.api.problem import parse_problem
from kvstore.api.rights import id_of
from kvstore.config import (
    CLUSTER_FILE,
    ClusterConfig,
    ConfigError,
    ReplicaConfig,
    check_exposure,
    load,
    replica_directory,
)
from kvstore.console import ERROR_PREFIX
from kvstore.identity import REMOVED, claim
from kvstore.limits import Limits
from kvstore.process import Handle, PortBusy, check_port, is_here, running
from kvstore.settings import resolved
from multicast.types import ProcessId

LOG_FILE = "log"
LOG_BYTES_MAX = 16 * 1024 * 1024
READY_SECONDS = 60.0
POLL_SECONDS = 0.05
KILL_GRACE_SECONDS = 10.0
HTTP_SECONDS = 2.0
COMES_UP_SECONDS = 2.0


CERTIFICATE_EXPIRED = 10
"""X509_V_ERR_CERT_HAS_EXPIRED of OpenSSL."""
TRUSTING = "its authority: KVSTORE_CA, or --ca FILE before the command"
RENEWING = "`kvstore certs DIR --renew` makes another one, where ca.key lies, and SIGHUP makes the replica read it"


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
        try:
            with open(self.log, "rb") as file:
                file.seek(self.log_start)
                lines = [line for line in file.read().decode("utf-8", "replace").splitlines() if line.strip()]
        except OSError as error:  # its directory is gone, perhaps
            return f"exit status {self.process.returncode}, and no log: {error}"
        told = [line.removeprefix(ERROR_PREFIX) for line in lines if line.startswith(ERROR_PREFIX)]
        removed = REMOVED.format(self.replica.id)
        if not told and any(removed in line for line in lines):
            return f"{removed}; `kvstore cluster remove-replica` writes that into {CLUSTER_FILE}"
        return told[-1] if told else (lines[-1][:300] if lines else f"exit status {self.process.returncode}")


def fetch(
    url: str, seconds: float = HTTP_SECONDS, body: bytes | None = None, headers: Mapping[str, str] | None = None
) -> tuple[int, bytes]:
    """(status, body) of a GET, or of a POST of `body`, past any proxy. OSError if nobody answers, or not to the end, or
    not in HTTP. For certificates it trusts whom `open_cluster` has told, else the file that the environment names in
    KVSTORE_CA, else the system. It shows the token that the environment has in KVSTORE_TOKEN; ClusterError if that is
    none."""
    token = os.environ.get("KVSTORE_TOKEN", "")
    if token and not id_of(token):
        raise ClusterError("token: not a token, as `kvstore token create` prints one")
    try:
        named = {"Authorization": f"Bearer {token}"} if token else {}
        asked = urllib.request.Request(url, body, {**named, **(headers or {})})
        with _whole(asked.type), _opener(asked.type).open(asked, timeout=seconds) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error, _whole(asked.type):
            return error.code, error.read()
    except urllib.error.URLError as error:  # it says <urlopen error ...> of what it wraps
        if isinstance(error.reason, ssl.SSLCertVerificationError):
            problem = f"its certificate is not trusted: {error.reason.verify_message}"
            expired = error.reason.verify_code == CERTIFICATE_EXPIRED
            raise OSError(f"{problem}; {RENEWING if expired else TRUSTING}") from None
        raise error.reason if isinstance(error.reason, OSError) else error from None
    except UnicodeError:
        raise OSError(f"{asked.host}: no host has such a name") from None


def said(answer: bytes) -> str:
    """Why, of an answer other than success."""
    told = parse_problem(answer)
    return told.detail if told is not None else answer.decode(errors="replace")[:300]


@contextlib.contextmanager
def _whole(scheme: str) -> Iterator[None]:
    """What http.client raises of half an answer, or of one that is not HTTP, is no OSError."""
    try:
        yield
    except http.client.RemoteDisconnected:
        hint = "; if it speaks TLS, its address begins with https://" if scheme == "http" else ""
        raise ConnectionResetError(f"the connection was closed without an answer{hint}") from None
    except http.client.IncompleteRead:
        raise ConnectionResetError("the answer broke off") from None
    except http.client.HTTPException as error:
        raise OSError(f"no answer in HTTP: {error}") from None


@cache
def _trusted() -> ssl.SSLContext:
    named = os.environ.get("KVSTORE_CA")
    try:
        return ssl.create_default_context(cafile=named)
    except OSError as error:  # ssl.SSLError, too
        raise ConfigError(f"ca: {named}: {error}") from None


@cache
def _opener(scheme: str) -> urllib.request.OpenerDirector:
    secure = [urllib.request.HTTPSHandler(context=_trusted())] if scheme == "https" else []
    return urllib.request.build_opener(urllib.request.ProxyHandler({}), *secure)


def open_cluster(directory: Path) -> ClusterConfig:
    """`load` the configuration; from now on `fetch` trusts the cluster's certificates."""
    config = load(directory)
    if config.tls:
        authority, trusted = directory / config.tls / certificates.AUTHORITY, _trusted()
        try:
            trusted.load_verify_locations(authority)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"{authority}: {error}") from None
    return config


def is_ready(replica: ReplicaConfig) -> bool:
    """Whether it answers that it serves requests."""
    return not why_not_ready(replica)


def why_not_ready(replica: ReplicaConfig) -> str:
    """As it says itself, or why it cannot be heard; empty if it is ready."""
    try:
        status, body = fetch(f"{replica.url}/readyz")
    except OSError as error:
        return str(error)
    return "" if status == 200 else said(body)


def start(
    directory: Path, config: ClusterConfig, replica: ReplicaConfig, lost_disk: bool = False, insecure: bool = False
) -> Started:
    """Start one replica as a process. ClusterError for a busy port, ConfigError for a directory that is another
    cluster's or is gone (lost_disk: see `kvstore.identity.claim`; insecure: see `check_exposure`)."""
    home = claim(directory, config, replica.id, lost_disk)
    check_ports(replica)
    path = home / LOG_FILE
    command = [sys.executable, "-m", "kvstore", "serve", "--dir", str(directory), "--replica", str(replica.id)]
    command += ["--insecure"] if insecure else []
    package_root = str(Path(__file__).resolve().parent.parent)
    paths = [package_root, *filter(None, [os.environ.get("PYTHONPATH")])]
    with contextlib.suppress(FileNotFoundError):
        if path.stat().st_size > LOG_BYTES_MAX:
            path.replace(home / f"{LOG_FILE}.1")
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


def check_ports(replica: ReplicaConfig, own: Collection[int] = ()) -> None:
    """ClusterError if one of its ports cannot be bound now. own: those that it has now."""
    try:
        for port, what in ((replica.peer_port, "peer port"), (replica.http_port, "HTTP port")):
            if port not in own:
                check_port(replica.host, port, what)
    except (PortBusy, OSError) as error:
        raise ClusterError(f"replica {replica.id}: {error}") from None


def up(directory: Path, say: Callable[[str], None], insecure: bool = False) -> list[Started]:
    """Start every replica of this machine that is down, and wait until all are ready; those that this call started.

    NotAll, once all others are ready: some cannot be started, or do not become ready. Whatever runs goes on. insecure:
    see `check_exposure`.
    """
    config = open_cluster(directory)
    here = [replica for replica in config.present if is_here(replica.host)]
    for replica in here if not insecure else ():
        check_exposure(config, replica)
    away = ", ".join(f"replica {r.id} ({r.address})" for r in config.present if r not in here)
    if not here:
        raise ClusterError(f"all replicas are of other machines: {away}")
    if away:
        say(f"of other machines: {away}")
    started: list[Started] = []
    problems: list[str] = []
    try:
        for replica in here:
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
    """Until every replica of this machine is ready that can be; adds why one is not. Returns those that have ended
    meanwhile. Those of other machines may run. One that fetches what its shard has is waited for as long as that
    grows: who took it for a failure, and gave the command again, would have it begin anew. (Not one that has lost its
    disk: if another one is down, it is given deliveries under load, and never comes back.)"""
    alive = {r.id for r in config.present if running(replica_directory(directory, r.id))} | {
        one.replica.id for one in started
    }
    waiting = [replica for replica in config.present if replica.id in alive]
    alive |= {replica.id for replica in config.present if not is_here(replica.host)}
    ended: list[Started] = []
    fetched: dict[ProcessId, str] = {}
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
            elif not (said_why := why_not_ready(replica)):
                waiting.remove(replica)
                say(f"replica {replica.id} of shard {replica.shard} is ready at {replica.url}")
            elif FETCHES in said_why and said_why != fetched.get(replica.id):
                fetched[replica.id], deadline = said_why, time.monotonic() + READY_SECONDS
            elif late or (holds and 2 * len(alive.intersection(members)) <= len(members)):
                waiting.remove(replica)
                why = f"no majority of shard {replica.shard} runs"
                if late:
                    why = f"after {READY_SECONDS:.0f} s: {why_not_ready(replica) or 'now it is'}"
                log = Path("replicas") / str(replica.id) / LOG_FILE
                problems.append(f"replica {replica.id} runs and is not ready ({why}; {log})")
        if waiting:
            time.sleep(POLL_SECONDS)
    return ended


def down(directory: Path, say: Callable[[str], None], only: Collection[ProcessId] = ()) -> bool:
    """Stop every replica that runs in this directory, or only these: SIGTERM to all, then wait. False if one had to be
    killed. Also who was removed and has not been told, and where `cluster.json` cannot be read, which is said.
    ConfigError: it cannot, and none runs."""
    limits, problem = Limits(), None
    try:
        limits = load(directory).limits
    except ConfigError as error:
        problem = error
    handles = []
    for replica_id in sorted({int(home.name) for home in directory.glob("replicas/*") if home.name.isdecimal()}):
        handle = Handle.of(replica_directory(directory, replica_id)) if not only or replica_id in only else None
        if handle is not None:
            handles.append((replica_id, handle))
    if problem is not None:
        if not handles:
            raise problem
        say(f"{problem}; stopping what runs there")
    deadline = time.monotonic() + limits.stop_deadline_ms / 1000 * 3 + KILL_GRACE_SECONDS
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


def restart(
    directory: Path, say: Callable[[str], None], insecure: bool = False, only: Collection[ProcessId] = ()
) -> list[Started]:
    """Restart the replicas that run here, or only these, one after the other, while the shards go on; those that were.
    ClusterError: another one is not ready, or one does not come back: then the rest stays as it is. ConfigError:
    another command changes the cluster, and together they might have two replicas of a shard down."""
    with changing.alone(directory):
        return _restart(directory, say, insecure, only)


def _restart(
    directory: Path, say: Callable[[str], None], insecure: bool, only: Collection[ProcessId]
) -> list[Started]:
    config = open_cluster(directory)
    if not insecure:
        for replica in config.present:
            check_exposure(config, replica)
    wanted = [config.member(one) for one in only] or [
        r for r in config.present if running(replica_directory(directory, r.id)) is not None
    ]
    done: list[Started] = []
    for replica in wanted:
        if not is_here(replica.host):
            raise ClusterError(f"replica {replica.id} is of another machine ({replica.address}): restart it there")
        others = [r for r in config.present if r.shard == replica.shard and r.id != replica.id]
        late = [r.id for r in others if not _becomes_ready(r)]
        if late:
            raise ClusterError(f"replica {replica.id} stays as it is: replica {late[0]} of its shard is not ready")
        _check_own(directory, config, replica)
        try:
            down(directory, say, [replica.id])
            done.append(start(directory, config, replica, insecure=insecure))
        except KeyboardInterrupt:  # it ran before, so it runs afterwards
            down(directory, lambda _: None, [replica.id])
            if not _comes_up(directory, replica):
                start(directory, config, replica, insecure=insecure)
            raise
        problems: list[str] = []
        wait_ready(directory, msgspec.structs.replace(config, replicas=(replica,)), done[-1:], problems, say)
        if problems:
            raise ClusterError(problems[0])
    return done


def _check_own(directory: Path, config: ClusterConfig, replica: ReplicaConfig) -> None:
    """ConfigError if it would refuse to start again with its settings and certificates: then it is not to be ended."""
    try:
        resolved(config, os.environ, ())
        if config.tls:
            certificates.Certificates(directory, config, replica)
    except ConfigError as error:
        raise ConfigError(f"replica {replica.id} stays as it is: {error}") from None


def _comes_up(directory: Path, replica: ReplicaConfig) -> bool:
    """Whether a process that was just started for it has taken its directory."""
    deadline = time.monotonic() + COMES_UP_SECONDS
    while (up := running(replica_directory(directory, replica.id))) is None and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    return up is not None


def _becomes_ready(replica: ReplicaConfig) -> bool:
    deadline = time.monotonic() + HTTP_SECONDS
    while not (ready := is_ready(replica)) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    return ready


def stop_started(directory: Path, started: list[Started], say: Callable[[str], None]) -> None:
    """Stop the processes that `up` started, and collect them."""
    for one in started:
        with contextlib.suppress(ProcessLookupError):
            one.process.terminate()
    try:
        limits = load(directory).limits
    except ConfigError:  # the directory is gone, perhaps
        limits = Limits()
    for one in started:
        try:
            one.process.wait(KILL_GRACE_SECONDS + limits.stop_deadline_ms / 1000 * 3)
        except subprocess.TimeoutExpired:
            one.process.kill()
            one.process.wait()
            say(f"replica {one.replica.id} did not stop in time and was killed")


def watch(directory: Path, started: list[Started], say: Callable[[str], None]) -> None:
    """Until Ctrl-C: say when a replica that we started ends. Then stop them all."""
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
