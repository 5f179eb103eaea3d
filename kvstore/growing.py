"""A running cluster changes: replicas and shards are added, replicas removed, slots move between shards."""

from __future__ import annotations

import contextlib
import itertools
import secrets
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from kvstore import certificates, changing
from kvstore.api.cluster import ClusterJson, decode_cluster
from kvstore.api.codec import id_text
from kvstore.api.model import SLOTS
from kvstore.api.shard_map import ShardMap, ranges_of
from kvstore.cluster import (
    KILL_GRACE_SECONDS,
    POLL_SECONDS,
    READY_SECONDS,
    ClusterError,
    Started,
    fetch,
    open_cluster,
    start,
    stop_started,
    wait_ready,
)
from kvstore.config import ClusterConfig, ConfigError, ReplicaConfig, check, check_exposure, replica_directory
from kvstore.identity import has_data, prepare
from kvstore.process import Handle, is_here, running
from kvstore.status import described, foreign
from multicast import registry
from multicast.types import GroupId, ProcessId, new_message_id

CHANGE_SECONDS = 60.0
CHANGE_POLL_SECONDS = 0.2
KNOWN_SECONDS = 10.0
"""How long the replicas that run are waited for, until they know a new shard."""
MOVE_STEP_SECONDS = 30.0
"""How long one step of a move is tried, at one replica after the other."""


class Unchanged(ClusterError):
    """Nothing was changed, certainly."""


def add_replica(
    directory: Path, shard: GroupId, host: str, advertise: str, ports: tuple[int, int] | None,
    say: Callable[[str], None], insecure: bool = False,
) -> Started:
    """Make a new replica of the shard, start it on this machine, and have it taken in; returns when it is ready.

    ports: for its peers and for HTTP; None: the next ones. ClusterError, ConfigError: why it cannot be; then nothing
    has changed, or the same command may be given again for another one.
    """
    with changing.alone(directory):
        return _add_replica(directory, shard, host, advertise, ports, say, insecure)


def _add_replica(
    directory: Path, shard: GroupId, host: str, advertise: str, ports: tuple[int, int] | None,
    say: Callable[[str], None], insecure: bool,
) -> Started:
    config = open_cluster(directory)
    _check_change(config, shard)
    peer_port, http_port = ports or _next_ports(config, 1)
    replica = ReplicaConfig(
        id=_next_id(config, _told_by(config, shard)), shard=shard, host=host, advertise=advertise,
        peer_port=peer_port, http_port=http_port, https=config.replicas[0].https, added=True,
    )  # fmt: skip
    if not insecure:
        check_exposure(config, replica)
    after = msgspec.structs.replace(config, epoch=config.epoch + 1, replicas=(*config.replicas, replica))
    check(after, f"with replica {replica.id}")
    _make_room(directory, after, [replica], say)
    prepare(directory, after, [replica])
    changing.replace(directory, config, after)
    started: list[Started] = []
    asked = False
    try:
        started.append(start(directory, after, replica, insecure=insecure))
        _wait_alive(started[0])
        asked = True
        _have_changed(after, shard, {"add": replica}, replica.id)
    except BaseException as error:
        if not asked or isinstance(error, Unchanged):
            stop_started(directory, started, say)
            changing.replace(directory, after, config)
            shutil.rmtree(replica_directory(directory, replica.id))  # another shard's may have this id next
        raise
    problems: list[str] = []
    wait_ready(directory, msgspec.structs.replace(after, replicas=(replica,)), started, problems, say)
    if problems:
        raise ClusterError(problems[0])
    return started[0]


def _wait_alive(started: Started) -> None:
    """Until it answers: a shard is not to wait for a process that begins. Unchanged."""
    deadline = time.monotonic() + READY_SECONDS
    while True:
        with contextlib.suppress(OSError):
            fetch(f"{started.replica.url}/livez")
            return
        if started.process.poll() is not None:
            raise Unchanged(f"replica {started.replica.id} ended while starting: {started.last_words()}")
        if time.monotonic() > deadline:
            raise Unchanged(f"replica {started.replica.id} does not answer after {READY_SECONDS:g} s")
        time.sleep(POLL_SECONDS)


def add_shard(
    directory: Path, replicas: int, host: str, advertise: str, ports: tuple[int, int] | None,
    say: Callable[[str], None], insecure: bool = False, even: bool = False,
) -> tuple[GroupId, list[Started]]:
    """Make a new shard of so many replicas, start them on this machine, and make it known to all others; returns when
    all that run know it. It begins with a move of no slots, which brings it the rights of the others.

    ports: of the first, for its peers and for HTTP; the others get the following ones. None: the next ones. even: it
    gets its share of the slots, too (`rebalance`). ClusterError, ConfigError: why it cannot be; the same command given
    again goes on with the same shard.
    """
    with changing.alone(directory):
        shard, started = _add_shard(directory, replicas, host, advertise, ports, say, insecure, even)
        if even:
            rebalance(directory, shard, say)
        return shard, started


def _add_shard(
    directory: Path, replicas: int, host: str, advertise: str, ports: tuple[int, int] | None,
    say: Callable[[str], None], insecure: bool, even: bool,
) -> tuple[GroupId, list[Started]]:
    config = open_cluster(directory)
    first = min(config.shards)
    _check_change(config, first)
    if replicas < 1:
        raise ConfigError(f"a shard has at least one replica, not {replicas}")
    told = _told_by(config, first)
    before, shard = config, _unfinished(config, told, even)
    if shard is None:
        config, shard = _with_shard(directory, config, told, replicas, host, advertise, ports, say, insecure)
    else:
        say(f"shard {shard} was begun before: this goes on with it")
    founders = tuple(replica for replica in config.present if replica.shard == shard)
    started: list[Started] = []
    try:
        for replica in founders:
            if running(replica_directory(directory, replica.id)) is None and is_here(replica.host):
                started.append(start(directory, config, replica, insecure=insecure))
        problems: list[str] = []
        wait_ready(directory, msgspec.structs.replace(config, replicas=founders), started, problems, say)
        if problems:
            raise ClusterError("; ".join(problems))
    except BaseException:
        stop_started(directory, started, say)
        if before != config:  # nobody has been told of it
            changing.replace(directory, config, before)
            for replica in founders:
                shutil.rmtree(replica_directory(directory, replica.id))
        raise
    if shard not in [known.id for known in told.shards]:
        _have_changed(config, first, {"found": founders})
        _move(config, first, shard, (), lambda: _has_begun(config, shard))
    _wait_known(config, shard, say)
    return shard, started


def _unfinished(config: ClusterConfig, told: ClusterJson, even: bool) -> GroupId | None:
    """The shard that a command before this one has begun to add: one that nobody knows yet, or the newest one if it
    has no slots, or with `even` less than its share. A shard stays for ever, so two are made only if that is sure."""
    known = [shard.id for shard in told.shards]
    for shard in config.added_shards:
        if shard not in known:
            return shard
    if not config.added_shards:
        return None
    newest = max(config.added_shards)
    with contextlib.suppress(ClusterError):  # it knows first what it was given; but perhaps none of it runs
        told = _told_by(config, newest)
    wanted = SLOTS // len(known) if even else 1
    return newest if ShardMap.from_json(told.shard_map).slots.count(newest) < wanted else None


def _with_shard(
    directory: Path, config: ClusterConfig, told: ClusterJson, replicas: int, host: str, advertise: str,
    ports: tuple[int, int] | None, say: Callable[[str], None], insecure: bool,
) -> tuple[ClusterConfig, GroupId]:
    """The configuration with one more shard, saved."""
    shard = max([*(replica.shard for replica in config.replicas), *(known.id for known in told.shards)]) + 1
    peer_port, http_port = ports or _next_ports(config, replicas)
    first_id = _next_id(config, told)
    new = [
        ReplicaConfig(
            id=first_id + i, shard=shard, host=host, advertise=advertise, peer_port=peer_port + i,
            http_port=http_port + i, https=config.replicas[0].https,
        )
        for i in range(replicas)
    ]  # fmt: skip
    after = msgspec.structs.replace(
        config, epoch=config.epoch + 1, replicas=(*config.replicas, *new), added_shards=(*config.added_shards, shard)
    )
    for replica in new if not insecure else ():
        check_exposure(config, replica)
    check(after, f"with shard {shard}")
    _make_room(directory, after, new, say)
    prepare(directory, after, new)
    changing.replace(directory, config, after)
    return after, shard


def _make_room(
    directory: Path, after: ClusterConfig, new: Sequence[ReplicaConfig], say: Callable[[str], None]
) -> None:
    """What new replicas find where they begin: their certificates, and no data of others. ConfigError."""
    for replica in new:
        home = replica_directory(directory, replica.id)
        if has_data(home):
            raise ConfigError(f"{home} has data, and a new replica would begin there: move it; nothing was changed")
    for replica in new if after.tls else ():
        certificates.bring(directory, directory, after, replica, say)


def _next_id(config: ClusterConfig, told: ClusterJson) -> ProcessId:
    """Above all that are in `cluster.json` and all that run, of which those are not that another machine has added."""
    others = [replica.id for shard in told.shards for replica in shard.replicas]
    return max([*others, *(replica.id for replica in config.replicas)]) + 1


def _next_ports(config: ClusterConfig, count: int) -> tuple[int, int]:
    """For peers and for HTTP, each the first of so many, above all that are used for that."""
    used = [(replica.peer_port, replica.http_port) for replica in config.replicas]
    peer_port = max(peer for peer, _ in used) + 1
    while any(peer_port <= port < peer_port + count for _, port in used):
        peer_port += 1
    return peer_port, max(peer_port + used[0][1] - used[0][0], *(port + 1 for _, port in used))


def _told_by(config: ClusterConfig, shard: GroupId) -> ClusterJson:
    """What the replica of this shard says of the cluster that has come furthest of those that answer: one that was just
    started may not know the latest moves. ClusterError if none answers."""
    urls = [replica.url for replica in config.present if replica.shard == shard]
    told: list[ClusterJson] = []
    for url in urls:
        with contextlib.suppress(ClusterError):
            told.append(described([url], config.cluster_id))
    try:
        return max(told, key=_position) if told else described(urls, config.cluster_id)
    except ClusterError as error:
        raise ClusterError(f"shard {shard}: {error}") from None


def _position(told: ClusterJson) -> int:
    """How far the replica is that has told it, if it says so to who asks."""
    return int(told.replica.get("store", {}).get("position", -1))


def _own(config: ClusterConfig) -> list[ReplicaConfig]:
    """The replicas but for those in whose place another cluster's answers, which would do as it is told."""
    return [replica for replica in config.present if not foreign(config.cluster_id, replica.url)]


def _wait_known(config: ClusterConfig, shard: GroupId, say: Callable[[str], None]) -> None:
    """Until all replicas that answer know this shard."""
    waiting = {replica.id: replica for replica in config.present if replica.shard != shard}
    deadline = time.monotonic() + KNOWN_SECONDS
    while waiting and time.monotonic() < deadline:
        for replica in list(waiting.values()):
            with contextlib.suppress(OSError, ValueError, msgspec.DecodeError):
                told = decode_cluster(fetch(f"{replica.url}/v1/cluster")[1])
                if shard in [known.id for known in told.shards]:
                    del waiting[replica.id]
        if waiting:
            time.sleep(CHANGE_POLL_SECONDS)
    for replica_id in waiting:
        say(f"replica {replica_id} does not answer, or does not know shard {shard} yet: it is told when it is back")


def remove_replica(directory: Path, replica_id: ProcessId, say: Callable[[str], None]) -> None:
    """Have a replica removed from its shard; it ends by itself. ClusterError, ConfigError: why it cannot be."""
    with changing.alone(directory):
        replica = _remove_replica(directory, replica_id)
    say(f"replica {replica_id} belongs to shard {replica.shard} no more")
    handle = Handle.of(replica_directory(directory, replica_id))
    if handle is not None:
        if not handle.wait(KILL_GRACE_SECONDS):  # it has not been told: it may be cut off
            handle.end(KILL_GRACE_SECONDS)
        handle.close()
        say(f"replica {replica_id} (process {handle.pid}) stopped")


def _remove_replica(directory: Path, replica_id: ProcessId) -> ReplicaConfig:
    """As it was."""

    def without(now: ClusterConfig) -> ClusterConfig:
        replicas = [msgspec.structs.replace(r, removed=True) if r.id == replica_id else r for r in now.replicas]
        return msgspec.structs.replace(now, epoch=now.epoch + 1, replicas=tuple(replicas))

    config = open_cluster(directory)
    replica = config.replica(replica_id)
    if not replica.removed:
        _check_change(config, replica.shard)
        _told_by(config, replica.shard)
        _have_changed(config, replica.shard, {"remove": replica_id})
        changing.update(directory, without)
    return replica


def _check_change(config: ClusterConfig, shard: GroupId) -> None:
    if not registry.load(config.protocol).specification.changes_members:
        raise ConfigError(f"the protocol {config.protocol} does not change the members of a shard")
    if shard not in config.shards:
        raise ConfigError(f"there is no shard {shard}: they are {', '.join(map(str, config.shards))}")


def _have_changed(
    config: ClusterConfig, shard: GroupId, wanted: dict[str, Any], new: ProcessId | None = None
) -> None:
    """Ask the shard's replicas, one after the other, until it is so: its leader decides, which may be the one that is
    to be removed. new: is not asked. ClusterError; Unchanged if all refused."""
    members = [replica for replica in _own(config) if replica.shard == shard and replica.id != new]
    body, headers = msgspec.json.encode(wanted), {"Content-Type": "application/json"}
    deadline = time.monotonic() + CHANGE_SECONDS
    problems: dict[ProcessId, str] = {}
    begun = False
    for replica in itertools.cycle(members):
        try:
            status, answer = fetch(f"{replica.url}/v1/cluster/members", body=body, headers=headers)
            told = msgspec.json.decode(answer)
        except (OSError, msgspec.DecodeError) as error:
            status, told = 503, {"detail": str(error)}
            begun = begun or not isinstance(getattr(error, "reason", error), ConnectionRefusedError)
        if status == 200 and told["done"]:
            return
        begun = begun or status == 200
        problems[replica.id] = "" if status == 200 else f"replica {replica.id}: {told.get('detail')}"
        if status not in (200, 503) or (time.monotonic() > deadline and len(problems) == len(members)):
            break
        time.sleep(CHANGE_POLL_SECONDS)
    problem = "; ".join(filter(None, problems.values())) or "nobody says why"
    if begun:
        raise ClusterError(f"shard {shard} may have been changed, `kvstore cluster status` shows it: {problem}")
    raise Unchanged(f"shard {shard} was not changed: {problem}")


def move_slots(
    directory: Path, source: int, target: int, slots: Sequence[tuple[int, int]], say: Callable[[str], None]
) -> None:
    """Move these slots, ranges of first and last, from one shard to the other. ClusterError says what went wrong; then
    it may be asked for again, and goes on. What the source has begun to move, and is not this, is given up.
    ConfigError: another command moves slots."""
    with changing.alone(directory, changing.MOVE_LOCK):
        config = open_cluster(directory)
        _check_shards(config, source, target)
        for first, last in slots:
            if not 0 <= first <= last < SLOTS:
                raise ClusterError(f"nothing was moved: slots are from 0 to {SLOTS - 1}, and rise: not {first}-{last}")
        owners = ShardMap.from_json(_told_by(config, source).shard_map).slots
        left = ranges_of(sorted([slot for slot in _expanded(slots) if owners[slot] != target]))
        if left:
            _give_up_others(config, source, target, left, say)
        if left and (steps := _move(config, source, target, left, lambda: _has(config, target, slots))):
            say(f"moved from shard {source} to shard {target}, in {steps} step(s)")
        else:
            say(f"shard {target} has these slots already")


def give_up(directory: Path, source: int, target: int, say: Callable[[str], None]) -> None:
    """A move from one shard to the other was begun and is not to go on: what both keep for it goes. Slots that have
    changed their shard stay where they are. ClusterError; then it may be asked for again. ConfigError as above."""
    with changing.alone(directory, changing.MOVE_LOCK):
        config = open_cluster(directory)
        _check_shards(config, source, target)
        leaving = _moves_of(config, source).get("leaving")
        if leaving and leaving["target"] != target:
            begun = f"shard {source} has begun a move to shard {leaving['target']} since"
            raise ClusterError(f"nothing was given up: {begun}")
        steps = _give_up(config, source, target)
    say(f"the move from shard {source} to shard {target} is given up" if steps else "no such move was begun")


def _give_up(config: ClusterConfig, source: int, target: int) -> int:
    """In how many steps; each takes a portion of the rows away that the target has for it, and the source's notes."""
    steps = 0
    while _keeps(config, source, target):
        steps += _move(config, source, target, (), lambda: False)
    return steps


def _keeps(config: ClusterConfig, source: int, target: int) -> bool:
    """Whether they keep something for a move, or for one that was given up."""
    own = _moves_of(config, source)
    begun = bool(own.get("old")) or (own.get("leaving") or {}).get("target") == target
    return begun or source in _moves_of(config, target).get("staged_from", ())


def _give_up_others(
    config: ClusterConfig, source: int, target: int, slots: Sequence[tuple[int, int]], say: Callable[[str], None]
) -> None:
    """Before a move begins anew, for that would take all of it away in one step."""
    leaving = _moves_of(config, source).get("leaving")
    if leaving is not None:
        wanted, begun = _expanded(slots), _expanded(leaving["slots"])
        if leaving["target"] == target and wanted in (begun, {slot for slot in begun if slot > leaving["slots_to"]}):
            return
        say(f"what shard {source} has begun to move to shard {leaving['target']} is given up")
        _give_up(config, source, leaving["target"])
    _give_up(config, source, target)


def _expanded(slots: Sequence[Sequence[int]]) -> set[int]:
    return {slot for first, last in slots for slot in range(first, last + 1)}


def _moves_of(config: ClusterConfig, shard: GroupId) -> dict[str, Any]:
    """What this shard says of its moves (`Moves.status`); nothing, if it is of an older release. ClusterError."""
    return _told_by(config, shard).replica.get("store", {}).get("moves") or {}


def _check_shards(config: ClusterConfig, source: GroupId, target: GroupId) -> None:
    for shard in (source, target):
        if shard not in config.shards:
            raise ClusterError(f"nothing was moved: there is no shard {shard}")
    if source == target:
        raise ClusterError(f"nothing was moved: slots move from one shard to another, not from {source} to {target}")


def _move(
    config: ClusterConfig, source: int, target: int, slots: Sequence[tuple[int, int]], is_done: Callable[[], bool]
) -> int:
    """Step by step, each under an id that it keeps, through any replica that answers. How many steps; 0 if `is_done`
    says that it was so before. ClusterError says what is not known."""
    urls = itertools.cycle([replica.url for replica in _own(config)])
    url = next(urls)
    body = msgspec.json.encode({"source": source, "target": target, "slots": slots})
    steps, more = 0, True
    while more:
        message_id = id_text(new_message_id(time.time_ns() // 1000, secrets.randbits(62)))
        headers = {"Content-Type": "application/json", "Idempotency-Key": message_id}
        give_up_at = time.monotonic() + MOVE_STEP_SECONDS
        while True:
            try:
                status, answer = fetch(f"{url}/v1/moves", MOVE_STEP_SECONDS / 3, body, headers)
                told = msgspec.json.decode(answer)
            except (OSError, msgspec.DecodeError) as error:
                status, told = 0, {"detail": str(error), "retryable": True}
            if status == 200:
                break
            url = next(urls)
            another = told.get("retryable") or told.get("code") in ("id_expired", "id_in_future")  # its clock is off
            if not another or time.monotonic() > give_up_at:
                if is_done():  # perhaps by a step whose answer was lost
                    return steps
                done = f"after {steps} step(s) that are known: {told.get('detail')}"
                if status == 422:  # and it will be
                    raise ClusterError(f"refused, {done}")
                raise ClusterError(f"not known to be moved, {done}; the same command goes on")
            time.sleep(POLL_SECONDS)
        steps, more = steps + 1, told["more"]
    return steps


def rebalance(directory: Path, target: GroupId, say: Callable[[str], None]) -> None:
    """Move slots to this shard, of those that have more than an even share, until it has one. ClusterError."""
    told = _told_by(open_cluster(directory), target)
    owners = ShardMap.from_json(told.shard_map).slots
    share = SLOTS // len(told.shards)
    lacks = share - owners.count(target)
    for source in sorted({*owners} - {target}, key=lambda shard: -owners.count(shard)):
        spare = min(lacks, owners.count(source) - share)
        if spare > 0:
            chosen = [slot for slot, owner in enumerate(owners) if owner == source][-spare:]
            move_slots(directory, source, target, ranges_of(chosen), say)
            lacks -= spare


def _has_begun(config: ClusterConfig, shard: GroupId) -> bool:
    """Whether one of its replicas says so."""
    return shard in [known.id for known in _told_by(config, shard).shards]


def _has(config: ClusterConfig, shard: int, slots: Sequence[tuple[int, int]]) -> bool:
    """Whether the shard says that it has all of these slots."""
    with contextlib.suppress(ClusterError):
        owners = ShardMap.from_json(_told_by(config, shard).shard_map).slots
        return all(set(owners[first : last + 1]) == {shard} for first, last in slots)
    return False
