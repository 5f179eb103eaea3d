"""Messages and transactions across shards, by their ids: the *id* kernel."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kvstore.core.audit import APPLIED, EXPIRED, MISMATCH, REPEATED
from spark_etl.certify.arrays import all_differ, codes, halves, numbers, of_groups, ranks, same, trust, whole
from spark_etl.certify.log import TAKEN

ENTRIES = ("gts", "id", "expired", "destinations", "origin", "payload_crc")
OUTCOMES = ("position", "index", "id", "gts", "status", "succeeded", "truths", "effect", "bundle")

_NEVER = np.iinfo(np.int64).max


class AgreedLog(NamedTuple):
    """What the replicas of a shard agree on. entries: a row per position (ENTRIES). outcomes: of a beginning of these a
    row per transaction (OUTCOMES). top: the version of the last live delivery."""

    shard: int
    entries: pa.Table
    outcomes: pa.Table
    top: bytes


class Messages(NamedTuple):
    """A row per message. codes: of each entry of each shard, the row. ids, gts: pairs of numbers. waiting: not
    delivered by all that it is addressed to. destinations, delivered: shards, as bits."""

    codes: list[np.ndarray]
    ids: np.ndarray
    live: np.ndarray
    gts: np.ndarray
    destinations: np.ndarray
    delivered: np.ndarray
    waiting: int


class Transactions(NamedTuple):
    """A row per transaction, as `relations.transactions`. ids; gts, its version: pairs of numbers; message: a row of
    `Messages`; expected, delivered, applied, void: shards, as bits; accounts: of each outcome of each log, the row."""

    ids: np.ndarray
    gts: np.ndarray
    message: np.ndarray
    expected: np.ndarray
    delivered: np.ndarray
    applied: np.ndarray
    void: np.ndarray
    live: np.ndarray
    effect: np.ndarray
    succeeded: np.ndarray
    truths: pa.Array
    accounts: list[np.ndarray]


def messages(logs: Sequence[AgreedLog]) -> Messages:
    """All shards give a message one timestamp, one set of destinations, one payload and one bundle, no two messages
    share a timestamp, and none was left out. logs: by shard, in the order of their numbers. Suspect."""
    shards = [log.shard for log in logs]
    ids = [halves(log.entries["id"]) for log in logs]
    each = codes(*ids)
    code = np.concatenate(each)
    count = int(code.max(initial=-1)) + 1
    bits = np.concatenate([_destination_bits(log.entries["destinations"], shards) for log in logs])
    expired = np.concatenate([numbers(log.entries["expired"]) for log in logs]).astype(bool)
    values = np.concatenate([halves(log.entries["gts"]) for log in logs])
    first = of_groups(code, np.arange(len(code)), count, np.minimum, _NEVER)
    trust(same(values, values.take(first[code], axis=0)), "different timestamps of one id")
    gts = values.take(first, axis=0)
    time, tops = ranks(gts, halves(pa.array([log.top for log in logs])))
    one_bits = _same(code, bits, count, "destinations")
    _same(code, np.concatenate([numbers(log.entries["payload_crc"]) for log in logs]), count, "payloads")
    late = _same(code, expired.astype(np.int64), count, "fates")
    at = np.concatenate([np.full(log.entries.num_rows, 1 << n, np.int64) for n, log in enumerate(logs)])
    delivered = of_groups(code, at, count, np.bitwise_or, 0)
    live = late == 0
    trust(np.bincount(time[live]) < 2, "a shared timestamp")
    lacking = one_bits & ~delivered
    for n, top in enumerate(tops):
        trust(~live | (lacking >> n & 1 == 0) | (time >= top), f"shard {shards[n]} went past a message")
    _same_bundles(each, logs, count)
    lacking_live = int(np.sum(live & (lacking != 0)))
    return Messages(each, np.concatenate(ids).take(first, axis=0), live, gts, one_bits, delivered, lacking_live)


def there_twice(logs: Sequence[AgreedLog]) -> bool:
    """Whether a shard has delivered a live message twice, or taken a transaction twice as new: then neither `messages`
    nor `transactions` of these logs proves anything."""
    return not all(
        all_differ(halves(rows["id"])) for log in logs for rows in (
            log.entries.filter(pc.invert(log.entries["expired"])),
            log.outcomes.filter(pc.is_in(log.outcomes["status"], value_set=pa.array(TAKEN))),
        )
    )  # fmt: skip


def _same_bundles(each: Sequence[np.ndarray], logs: Sequence[AgreedLog], count: int) -> None:
    firsts = [log.outcomes.filter(pc.equal(log.outcomes["index"], 0)) for log in logs]
    carriers = np.concatenate([c[numbers(f["position"]) - 1] for c, f in zip(each, firsts, strict=True)])
    bundles = pa.concat_arrays([whole(f["bundle"]) for f in firsts])
    first = of_groups(carriers, np.arange(len(carriers)), count, np.minimum, _NEVER)
    trust(bundles.equals(bundles.take(pa.array(first[carriers]))), "different bundles of one id")


def _destination_bits(column: pa.ChunkedArray, shards: Sequence[int]) -> np.ndarray:
    """Suspect if there is one that is no shard, or twice, or not in order."""
    found = whole(column)
    rows, flat = numbers(pc.list_parent_indices(found)), numbers(pc.list_flatten(found))
    rising = (rows[1:] != rows[:-1]) | (flat[1:] > flat[:-1])
    trust(np.isin(flat, shards), "a destination that is no shard")
    trust(rising, "destinations out of order")
    bits = np.int64(1) << np.searchsorted(shards, flat)
    return of_groups(rows, bits, len(found), np.bitwise_or, 0)


def _same(groups: np.ndarray, values: np.ndarray, count: int, what: str) -> np.ndarray:
    """The one value that all rows of a group have."""
    least = of_groups(groups, values, count, np.minimum, _NEVER)
    trust(values == least[groups], f"different {what} of one id")
    return least


def unsubmitted(
    logs: Sequence[AgreedLog], found: Messages, place: np.ndarray, sent: pa.Table, forgetful: Collection[int]
) -> int:
    """How many messages nobody says that he has multicast; they came from replicas that may have forgotten. All others
    were multicast to the shards that they were delivered for. place: of each multicast the row of its message, or -1;
    sent: destinations. Suspect."""
    known = place >= 0
    bits = _destination_bits(sent["destinations"], [log.shard for log in logs])
    trust(bits[known] == found.destinations[place[known]], "a message that was multicast elsewhere")
    lost = np.ones(len(found.ids), bool)
    lost[place[known]] = False
    if lost.any():
        for log, mine in zip(logs, found.codes, strict=True):
            trust(np.isin(numbers(log.entries["origin"])[lost[mine]], list(forgetful)), "a message that nobody sent")
    return int(lost.sum())


def transactions(logs: Sequence[AgreedLog], found: Messages) -> Transactions:
    """All shards of a transaction took it as new at one version, or none; applied it, or none; and ran one branch; each
    id was taken as new before it was called anything else. Suspect."""
    table = pa.concat_tables([log.outcomes.select(OUTCOMES) for log in logs])
    ids, gts = halves(table["id"]), halves(table["gts"])
    (tid,) = codes(ids)
    count = int(tid.max(initial=-1)) + 1
    shard = np.repeat(np.arange(len(logs)), [log.outcomes.num_rows for log in logs])
    carrier = np.concatenate([c[numbers(log.outcomes["position"]) - 1] for c, log in
                              zip(found.codes, logs, strict=True)])  # fmt: skip
    status = numbers(table["status"])
    live, new = found.live[carrier], np.isin(status, TAKEN)
    for n in range(len(logs)):
        trust(np.bincount(tid[new & (shard == n)]) < 2, "a transaction twice")
    taken = live & new
    trust(~((status == APPLIED) & ~taken), "applied, and not taken")
    bit = np.int64(1) << shard
    _one_fate(tid, gts, np.where(new, 0, status))
    rows = np.arange(len(tid))
    first = of_groups(tid[taken], rows[taken], count, np.minimum, _NEVER)
    some = of_groups(tid, rows, count, np.minimum, _NEVER)
    is_live = first != _NEVER
    place = np.where(is_live, first, some)
    own = place[tid[taken]]
    trust(same(gts.compress(taken, axis=0), gts.take(own, axis=0)), "different versions of one transaction")
    for values, what in ((status, "statuses"), (carrier, "messages")):
        trust(values[taken] == values[own], f"different {what} of one transaction")
    applied_rows = taken & (status == APPLIED)
    succeeded, truths = numbers(table["succeeded"]).astype(bool), whole(table["truths"])
    trust(succeeded[applied_rows] == succeeded[place][tid[applied_rows]], "different branches")
    which = np.asarray(truths.dictionary_encode().indices)
    trust(which[applied_rows] == which[place][tid[applied_rows]], "different branches of nested transactions")
    accounted, alive, applied = (
        of_groups(tid[where], bit[where], count, np.bitwise_or, 0) for where in (slice(None), taken, applied_rows)
    )
    _in_turn(tid, gts, status, bit, place, is_live, alive)
    _in_time(ids, gts, status, found.live[carrier])
    expected = found.destinations[carrier[place]]
    trust(is_live[tid] | (carrier == carrier[place][tid]), "a refused transaction in two messages")
    effect = of_groups(tid[taken], numbers(table["effect"]).astype(np.int64)[taken], count, np.maximum, 0) > 0
    return Transactions(
        ids.take(place, axis=0), gts.take(place, axis=0), carrier[place], expected,
        found.delivered[carrier[place]] | accounted, applied, expected & accounted & ~alive, is_live, effect,
        succeeded[place], truths.take(pa.array(place)),
        np.split(tid, np.cumsum([log.outcomes.num_rows for log in logs])[:-1]),
    )  # fmt: skip


def _one_fate(tid: np.ndarray, gts: np.ndarray, fate: np.ndarray) -> None:
    """In one message a transaction is new everywhere or nowhere."""
    odd = np.zeros(int(tid.max(initial=-1)) + 1, bool)
    odd[tid[fate != 0]] = True
    mine = odd[tid]
    (moment,) = ranks(np.column_stack([tid[mine].astype(np.uint64), gts[mine]]))
    _same(moment, fate[mine], int(moment.max(initial=-1)) + 1, "fates")


def _in_turn(
    tid: np.ndarray, gts: np.ndarray, status: np.ndarray, bit: np.ndarray, place: np.ndarray, live: np.ndarray,
    alive: np.ndarray,
) -> None:  # fmt: skip
    """`checks.transactions.exactly_once`: what is called a repetition or a used id was there before."""
    odd = np.flatnonzero((status == REPEATED) | (status == MISMATCH))
    again, who = status[odd] == REPEATED, tid[odd]
    later, own = ranks(gts[odd], gts[place[who]])
    trust(~again | ((later >= own) & (alive[who] & bit[odd] != 0)), "a repetition of nothing")
    trust(again | (live[who] & (later >= own)), "a used id that nobody used")


def _in_time(ids: np.ndarray, gts: np.ndarray, status: np.ndarray, in_time: np.ndarray) -> None:
    """`checks.transactions.too_early`: nothing was called too late that is not older than all that was not."""
    lapsed = (status == EXPIRED) & in_time
    if not lapsed.any():
        return
    dated = ((ids[:, 0] >> np.uint64(12) & np.uint64(15)) == 7) & (ids[:, 1] >> np.uint64(62) == 2)
    created = (ids[:, 0] >> np.uint64(16)).astype(np.float64) * 1000
    age = gts[:, 0].astype(np.float64) - created
    kept, lapsed = dated & (status != EXPIRED), dated & lapsed
    if kept.any() and lapsed.any():
        trust(age[lapsed].min() > age[kept].max(), "called too late, and not the oldest")
