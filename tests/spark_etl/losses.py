"""Losses that journals do not tell of, since they fit one another: for the audit of `forged`, each in its own copy."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, NamedTuple

from kvstore.core.audit import APPLIED, EXPIRED, MISMATCH, Write, decode_outcomes, encode_outcomes
from multicast.records import BatchEnd, Completed, Delivered, Members, Started, Stopped
from tests.spark_etl.forged import Forgery, Records, alone_here, deliveries

EVERYWHERE = (0, 1, 2, 3, 4, 5)


def restarted(records: Records) -> Records:
    """The replica was killed in the middle and came back: its batches' numbers begin anew behind its second start."""
    ends = [at for at, r in enumerate(records) if type(r) is BatchEnd]
    middle = ends[len(ends) // 2] + 1
    again = copy.deepcopy(next(r for r in records if type(r) is Started))
    again.incarnation += 1
    later, number = [again, *records[middle:]], 0
    for record in later:
        if type(record) is BatchEnd:
            number += 1
            record.batch = number
    return records[:middle] + later


def crashed_and(*changes: Forgery) -> Forgery:
    """To a replica that was killed and came back."""

    def forgery(records: Records) -> Records:
        records = restarted(records)
        for change in changes:
            records = change(records) or records
        return records

    return forgery


def rolled_back(records: Records) -> Records:
    """To 60 %, at the end of a batch."""
    ends = [at for at, r in enumerate(records) if type(r) is BatchEnd]
    return records[: next(at for at in ends if at >= 0.6 * len(records)) + 1]


def cut(positions: int) -> Forgery:
    """The last ones never were, and the replica stopped in good order."""

    return lambda records: _kept_to(deliveries(records)[-1].position - positions, records)


def _kept_to(end: int, records: Records) -> Records:
    kept = [r for r in records if not (type(r) in (Delivered, Completed) and r.position > end)]
    for record in kept:
        if type(record) is Stopped:
            record.delivered, record.completed = min(record.delivered, end), min(record.completed, end)
    return kept


def last_operation_dropped(records: Records) -> Records:
    """With what follows it: repetitions, and reads that no client noted."""

    def noted(record: Completed) -> bool:
        return any(o.status == APPLIED and o.id for o in decode_outcomes(record.record).outcomes)

    last = next(r for r in reversed(records) if type(r) is Completed and noted(r))
    return _kept_to(last.position - 1, records)


def without_start(records: Records) -> Records:
    """The second life's record that it started is gone."""
    at = max(i for i, r in enumerate(records) if type(r) is Started)
    return records[:at] + records[at + 1 :]


def _one(account: Any) -> bool:
    (one, *others) = account.outcomes
    return bool(not others and one.id and one.status == APPLIED)


def _at_all(status: int) -> Forgery:
    """A transaction on this shard alone, of keys that nobody read later, expired or had a used id: so every journal
    says."""

    def forgery(records: Records) -> None:
        here = {d.position: d for d in deliveries(records) if alone_here(d)}
        read: set[bytes] = set()
        for done in (r for r in reversed(records) if type(r) is Completed):
            account = decode_outcomes(done.record)
            outcome = account.outcomes[0]
            if done.position in here and _one(account) and read.isdisjoint(w.key for w in outcome.writes):
                outcome.status, outcome.reads, outcome.writes = status, (), ()
                done.record = encode_outcomes(account)
                here[done.position].expired = status == EXPIRED
                return
            read |= {r.key for o in account.outcomes for r in o.reads}
        raise LookupError("no such account")

    return forgery


def _nobody(records: Records) -> Records:
    """At its end the replica knows of a shard without replicas."""
    stop = next(r for r in records if type(r) is Stopped)
    shard = next(r for r in records if type(r) is Started).group
    return [*records[: records.index(stop)], Members({shard: ()}, stop.delivered, 1), *records[records.index(stop) :]]


def _two_owners(records: Records) -> None:
    """Each shard of a transaction writes a key that it has for its own."""
    shard = next(r for r in records if type(r) is Started).group
    for done in (r for r in records if type(r) is Completed):
        account = decode_outcomes(done.record)
        two = len(next(d for d in deliveries(records) if d.position == done.position).message.destinations) == 2
        if two and done.position > 1 and _one(account):
            (outcome,) = account.outcomes
            outcome.writes = (*outcome.writes, Write(b"key/of both", b"%d" % shard))
            done.record = encode_outcomes(account)
            return
    raise LookupError("no such account")


def _of_another(records: Records) -> None:
    """The header was changed to fit; what the record of its start says was not."""
    next(r for r in records if type(r) is Started).process = 1


class Loss(NamedTuple):
    """What is done to the journals of these replicas, and what is found."""

    forge: Forgery
    replicas: Sequence[int]
    found: str


CUT_AWAY = "acknowledged-but-absent"
LOSSES = {
    "a replica that was killed and came back": Loss(restarted, (1,), ""),
    "the last positions cut everywhere": Loss(crashed_and(cut(20)), EVERYWHERE, CUT_AWAY),
    "the last positions cut at one shard": Loss(crashed_and(cut(20)), (0, 1, 2), CUT_AWAY),
    "the last positions cut at most of a shard": Loss(crashed_and(cut(20)), (1, 2), ""),
    "the last operation dropped": Loss(crashed_and(last_operation_dropped), EVERYWHERE, "acknowledged-but-absent"),
    "no second start": Loss(crashed_and(without_start), (1,), "damage"),
    "no start": Loss(without_start, (1,), "damage"),
    "nobody belongs to the shard": Loss(_nobody, (1,), ""),
    "the journal of another replica": Loss(_of_another, (2,), "damage"),
    "expired in every journal": Loss(_at_all(EXPIRED), (0, 1, 2), "acknowledged-but-absent"),
    "a key that two shards have": Loss(_two_owners, EVERYWHERE, "not-as-asked two-values"),
    "a used id in every journal": Loss(_at_all(MISMATCH), (0, 1, 2), "acknowledged-but-absent mismatch-without-first"),
}
"""Of journals that fit one another. What replicas that were down at the end may not have written is counted only."""
