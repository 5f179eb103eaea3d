"""One shard's journals against one another: the *log* kernel.

It proves that each replica has a beginning of one and the same log, with accounts for a beginning of that, in which
nothing is out of place (*id* looks for what is there twice); but for what a replica holds by a snapshot, and lacks for
that. Then the longest journals stand for all, which lack nothing: what later kernels read is theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kvstore.core.audit import APPLIED, FAILED
from kvstore.core.bundles import version_of
from multicast.types import FINAL, OPTIMISTIC, Timestamp
from spark_etl.certify.arrays import halves, in_order, numbers, rise, trust, valid, whole
from spark_etl.ingest.inputs import Top

DELIVERIES = ("replica", "segment", "offset", "position", "gts", "id", "stage", "expired", "destinations", "origin",
              "payload_crc", "single", "installed_from")  # fmt: skip
OUTCOMES = ("replica", "offset", "position", "index", "content", "state_digest")
BASES = ("key", "gts", "value", "digested")
DETAILS = ("replica", "offset", "position", "index", "id", "gts", "message", "timestamp", "status")

TAKEN = (APPLIED, FAILED)
_NO_STAGE = -1

Installs = Mapping[int, list[tuple[int, int]]]
"""replica -> (position, journal offset) of each snapshot that it installed."""


class ShardLog(msgspec.Struct):
    """What is proved of a shard. tops: how far each replica's journal goes. longest: the replica whose deliveries, and
    the one whose accounts, stand for all; -1: nobody has any. renewed: replicas that began with another's journal, or
    snapshot.
    optimistic: early deliveries: all, mistaken, and not yet final. marks: of a long log, some of its timestamps, as
    many deliveries from one another."""

    tops: list[Top]
    longest: tuple[int, int]
    renewed: list[int]
    optimistic: tuple[int, int, int]
    marks: list[bytes] = []


def certify(
    shard: int,
    deliveries: pa.Table,
    outcomes: pa.Table,
    stops: Mapping[int, tuple[int, int, bool]],
    installs: Installs,
    snapshots: Sequence[tuple[int, bytes]],
    details: Callable[[int], pa.Table],
) -> ShardLog:
    """The journals of a shard's replicas: DELIVERIES and OUTCOMES. stops: replica -> (delivered, completed) as it said
    at its last clean stop, and whether it ended with that. snapshots: (position, digest) of those in `installs`.
    details: DETAILS of a replica's outcomes. Suspect."""
    deliveries = by_replica_and(deliveries, "offset")
    outcomes = by_replica_and(outcomes, "offset", "index")
    final = _where(deliveries, is_final(deliveries))
    logs, accounts = _by_replica(final), _by_replica(outcomes)
    for replica, log in logs.items():
        _in_places(log, installs.get(replica, ()))
    longest = _longest(logs)
    if longest >= 0:
        _is_sound(shard, logs[longest])
        for log in logs.values():
            _is_beginning(log, logs[longest], ("id", "gts", "destinations", "expired", "origin", "payload_crc"))
    firsts = {replica: _bundles(account) for replica, account in accounts.items()}
    for replica, told in firsts.items():
        _in_places(told, installs.get(replica, ()))
        trust(replica in logs and _last(told) <= _last(logs[replica]), "an outcome without a delivery")
    fullest = _longest(firsts)
    for told in firsts.values():
        _is_beginning(told, firsts[fullest], ("content",))
        _same_digests(told, firsts[fullest])
    for position, digest in snapshots:
        trust(fullest >= 0 and position <= _last(firsts[fullest]), "a snapshot of what nobody has")
        known = firsts[fullest]["state_digest"][position - 1].as_py()
        trust(known is None or known == digest, "a snapshot of another state")
    account = pa.table({name: [] for name in DETAILS})
    if fullest >= 0:
        account = by_replica_and(details(fullest), "offset", "index")
        _are_of(account, logs[longest])
    tops = []
    for replica in sorted({*logs, *(r for r, found in installs.items() if found)}):
        held = max((position for position, _ in installs.get(replica, ())), default=0)
        delivered = max(held, _last(logs[replica]) if replica in logs else 0)
        completed = max(held, _last(firsts[replica]) if replica in firsts else 0)
        tops.append(_top(shard, replica, logs[longest].slice(0, delivered), account, completed))
    as_stopped(tops, stops)
    beginnings = final.filter(pc.equal(final["position"], 1))
    renewed = beginnings.filter(pc.is_valid(beginnings["installed_from"]))["replica"].to_pylist()
    began = set(beginnings["replica"].to_pylist())
    renewed += [replica for replica, found in installs.items() if found and replica not in began]
    return ShardLog(tops, (longest, fullest), sorted({*renewed}), _guesses(deliveries, logs))


def began_alike(bases: Mapping[int, pa.Table], began: Collection[int]) -> None:
    """What replicas were restored with from a backup is the same: BASES of each. began: those that were there from the
    beginning. Suspect."""
    given = {replica: rows for replica, rows in bases.items() if rows.num_rows or replica in began}
    if not any(rows.num_rows for rows in given.values()):
        return
    first, *others = (rows.sort_by([("key", "ascending"), ("gts", "ascending")]) for rows in given.values())
    trust(all(rows.equals(first) for rows in others), "replicas began with different rows")


def by_replica_and(table: pa.Table, *columns: str) -> pa.Table:
    """In this order."""
    order = in_order(*(numbers(table[c]) for c in (*columns[::-1], "replica")))
    return (table if np.all(order[1:] > order[:-1]) else table.take(order)).combine_chunks()


def _where(table: pa.Table, rows: np.ndarray) -> pa.Table:
    return table if rows.all() else table.filter(pa.array(rows))


def is_final(deliveries: pa.Table) -> np.ndarray:
    """Which of them are, by their stage."""
    return numbers(deliveries["stage"], _NO_STAGE) == FINAL


def _by_replica(table: pa.Table) -> dict[int, pa.Table]:
    replicas, starts = np.unique(numbers(table["replica"]), return_index=True)
    ends = [*starts[1:], table.num_rows][: len(starts)]
    return {int(r): table.slice(a, b - a) for r, a, b in zip(replicas, starts, ends, strict=True)}


def _in_places(log: pa.Table, installs: Sequence[tuple[int, int]]) -> None:
    """Positions 1, 2, 3, ..., as they stand in the journal; where a snapshot was installed it goes on behind that."""
    position = np.concatenate(([0], numbers(log["position"])))
    offset = np.concatenate(([-1], numbers(log["offset"])))
    follows = position[1:] == position[:-1] + 1
    for held, at in installs:
        follows |= (position[1:] == held + 1) & (position[:-1] < held) & (offset[:-1] < at) & (at < offset[1:])
    trust(follows, "positions are not 1, 2, 3, ...")


def _last(log: pa.Table) -> int:
    return int(log["position"][-1].as_py())


def _longest(logs: Mapping[int, pa.Table]) -> int:
    """Whose goes furthest, and lacks nothing; -1: nobody has any. Suspect if it is not so of one and the same."""
    furthest = max(logs, key=lambda replica: (_last(logs[replica]), logs[replica].num_rows, -replica), default=-1)
    trust(furthest < 0 or _last(logs[furthest]) == logs[furthest].num_rows, "whoever is furthest lacks something")
    return furthest


def _is_beginning(part: pa.Table, log: pa.Table, columns: tuple[str, ...]) -> None:
    rows = numbers(part["position"]) - 1
    for name in columns:
        trust(not whole(part[name]).null_count, f"no {name}")
        if part is not log:
            trust(whole(part[name]).equals(_at(log[name], rows)), f"replicas differ in {name}")


def _at(column: pa.ChunkedArray, rows: np.ndarray) -> pa.Array:
    """These rows, which rise; most often they follow one another."""
    if len(rows) and rows[0] >= 0 and rows[-1] - rows[0] == len(rows) - 1 and rows[-1] < len(column):
        return whole(column).slice(rows[0], len(rows))
    return whole(column).take(pa.array(rows))


def _same_digests(part: pa.Table, log: pa.Table) -> None:
    """A digest is not kept at every position, nor by every replica at the same ones."""
    mine, theirs = whole(part["state_digest"]), _at(log["state_digest"], numbers(part["position"]) - 1)
    trust(not pc.any(pc.not_equal(mine, theirs), min_count=0).as_py(), "replicas hold different states")


def _is_sound(shard: int, log: pa.Table) -> None:
    trust(not pc.any(pc.fill_null(log["single"], False), min_count=0).as_py(), "journals of format 1")
    trust(rise(halves(log["gts"])), "timestamps do not rise")
    there = np.zeros(log.num_rows, bool)
    destinations = whole(log["destinations"])
    flat = numbers(pc.list_flatten(destinations))
    there[numbers(pc.list_parent_indices(destinations))[flat == shard]] = True
    trust(there, "a delivery that is addressed to others")


def _bundles(account: pa.Table) -> pa.Table:
    """The first row of each bundle of a replica's. Suspect unless each is whole."""
    index, offset = numbers(account["index"]), numbers(account["offset"])
    trust(not len(index) or index[0] == 0, "no first outcome")
    follows = (index[1:] == index[:-1] + 1) & (offset[1:] == offset[:-1])
    trust((index[1:] == 0) & (offset[1:] != offset[:-1]) | follows, "a bundle with a hole")
    return _where(account, index == 0)


def _are_of(account: pa.Table, log: pa.Table) -> None:
    """The accounts are of these deliveries."""
    trust(not valid(account["message"]).any(), "outcomes of format 1")
    firsts = _bundles(account)
    _is_beginning(pa.table({"gts": firsts["timestamp"], "position": firsts["position"]}), log, ("gts",))
    status, position = numbers(account["status"]), numbers(account["position"])
    expired = numbers(log["expired"])[position - 1]
    trust(~(expired & (status == APPLIED)), "expired with effect")


def _top(shard: int, replica: int, log: pa.Table, account: pa.Table, completed: int) -> Top:
    """log: what is delivered; completed: up to which position there are outcomes, of which `account` tells."""
    top = Top(replica, shard, log.num_rows, completed)
    live = np.flatnonzero(~numbers(log["expired"]))
    if not len(live):
        return top
    last = int(live[-1])
    top.gts = log["gts"][last].as_py()
    top.version = version_of(Timestamp.decode(top.gts), 0).encode()
    if last < completed:
        told = np.flatnonzero(numbers(account["position"]) == last + 1)
        top.version = account["gts"][int(told[-1])].as_py()
    return top


def as_stopped(tops: list[Top], stops: Mapping[int, tuple[int, int, bool]]) -> None:
    """Nobody lacks what it said it had, or has more if it did not start again; what it has completed has outcomes."""
    reached = {top.replica: (top.delivered, top.completed) for top in tops}
    for replica, (delivered, completed, ended) in stops.items():
        had, told = reached.get(replica, (0, 0))
        trust(had >= delivered and told >= min(had, completed), f"replica {replica} lacks what it said it had")
        trust(not ended or had == delivered, f"replica {replica} has more than it said it had")


def _guesses(deliveries: pa.Table, logs: Mapping[int, pa.Table]) -> tuple[int, int, int]:
    """`checks.delivery.optimistic`."""
    early = deliveries.filter(pc.equal(deliveries["stage"], OPTIMISTIC))
    total = mistaken = open_ = 0
    for replica, found in _by_replica(early).items():
        order = np.lexsort((numbers(found["offset"]), numbers(found["segment"])))
        ids = pc.unique(found["id"].take(pa.array(order)))
        log = logs.get(replica, deliveries.slice(0, 0))
        final = log.filter(pc.invert(log["expired"]))
        at = numbers(pc.index_in(ids, value_set=whole(final["id"])), -1)
        before = np.maximum.accumulate(np.concatenate(([-1], at)))[:-1]
        total, open_ = total + len(at), open_ + int(np.sum(at < 0))
        mistaken += int(np.sum((at >= 0) & (at < before)))
    return total, mistaken, open_


def entries(deliveries: pa.Table) -> pa.Table:
    """The final deliveries of one journal, at their positions."""
    trust(valid(deliveries["stage"]), "no stage")
    return by_replica_and(_where(deliveries, is_final(deliveries)), "position")
