"""Small random runs: correct ones, and what damages them. All from one `random.Random`."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from random import Random
from typing import Any

from tests.spark_etl.brute_run import (
    APPLIED,
    EXPIRED,
    FAILED,
    MISMATCH,
    REPEATED,
    TAKEN,
    Account,
    Delivery,
    Op,
    Run,
    Started,
    Stopped,
    Submitted,
)

CLOCK = 20
"""Microseconds between two transactions of a run without jitter."""


MESSAGES = 500
"""From here on numbers are ids of messages."""


def correct_run(rng: Random) -> Run:
    """Up to three shards of up to three replicas and seven transactions on up to four keys, in the order of versions,
    some in one message with others: expired, failed and repeated ones, deletions, unknown outcomes, early deliveries,
    replicas that lag or crash."""
    shards: dict[int, list[int]] = {}
    for shard in range(rng.choice((1, 2, 2, 3))):
        start = sum(map(len, shards.values()))
        shards[shard] = list(range(start, start + rng.choice((1, 2, 2, 3))))
    places = {key: ord(key[0]) - ord("a") for key in ("a1", "a2", "b1", "c1") if ord(key[0]) - ord("a") in shards}
    run = Run(shards, {r: [Started()] for members in shards.values() for r in members}, [])
    state: dict[str, tuple[int, Any]] = dict.fromkeys(places, (0, None))
    position = dict.fromkeys(shards, 0)
    count = rng.randint(3, 7)
    deletes, empty, company = rng.choice((0.0, 0.0, 0.3)), rng.random() < 0.3, rng.choice((0.0, 0.4, 0.7))
    ids = rng.sample(range(1, count + 1), count)
    used: list[tuple[int, tuple[int, ...]]] = []
    time = index = 0
    last: tuple[int, ...] = ()
    for one in ids:
        names = rng.sample(sorted(places), rng.randint(1, min(3, len(places))))
        kind = rng.choices((APPLIED, EXPIRED, FAILED, MISMATCH, REPEATED), (14, 1, 1, 1, 2))[0]
        destinations = tuple(sorted({places[k] for k in names}))
        if kind in (MISMATCH, REPEATED) and used:
            one, destinations = rng.choice(used)
        elif kind in (MISMATCH, REPEATED):
            kind = APPLIED
        used += [(one, destinations)] if kind in TAKEN else []
        first = destinations != last or rng.random() >= company
        time, index = (time + 1, 0) if first else (time, index + 1)
        late = first and kind == EXPIRED and rng.random() < 0.5
        last = () if late else destinations
        reads = [k for k in names if rng.random() < 0.6]
        writes = [k for k in names if k not in reads or rng.random() < 0.4]
        version, message, origin = 10 * time + index, MESSAGES + time, rng.choice(sorted(run.journals))
        values = {k: None if rng.random() < deletes else version for k in writes} if kind == APPLIED else {}
        seen = {k: 0 if state[k][1] is None else state[k][0] for k in reads} if kind in TAKEN else {}
        if first:
            run.journals[origin].append(Submitted(message, destinations))
        succeeded = rng.random() < 0.8 and kind == APPLIED
        truths = (b"", b"\1", b"\0\1")[version % 3] if kind == APPLIED else b""
        for shard in destinations:
            position[shard] += first
            for replica in shards[shard]:
                at = position[shard]
                if first and rng.random() < 0.1:
                    run.journals[replica].append(Delivery(0, time, message, destinations, origin))
                if first:
                    run.journals[replica].append(Delivery(at, time, message, destinations, origin, late))
                run.journals[replica].append(
                    Account(at, time, one, kind, succeeded, {k: v for k, v in seen.items() if places[k] == shard},
                            {k: v for k, v in values.items() if places[k] == shard},
                            at if first and at % 2 == 0 else None, first, index, truths)
                )  # fmt: skip
        for k, v in values.items():
            state[k] = (version, v)
        if kind not in (MISMATCH, REPEATED):
            answer = "ok" if kind == APPLIED else "fail"
            run.ops.append(_op(rng, one, version, answer, seen if not empty else {}, succeeded))
    if rng.random() < 0.2:
        run.ops.append(_op(rng, 50, 10 * rng.randint(1, time), rng.choice(("fail", "info", "")), {}, True))
    _processes(rng, run)
    _ends(rng, run)
    run.number()
    return run


def _op(rng: Random, one: int, version: int, answer: str, seen: dict[str, int], succeeded: bool) -> Op:
    middle = 1000 + CLOCK * version // 10
    invoke, complete = middle - rng.randint(1, 12), middle + rng.randint(1, 12)
    if answer == "ok" and rng.random() < 0.1:
        answer = rng.choice(("info", ""))
    if answer != "ok":
        return Op("", 0, one, "txn", invoke, answer, complete)
    return Op("", 0, one, "txn", invoke, answer, complete, version, succeeded, dict(seen))


def _processes(rng: Random, run: Run) -> None:
    """Who did what: every process one after the other. Some runs have clocks that do not follow the versions. Some
    operations are invoked at the very time at which the one before them was answered."""
    spread = rng.choice((0, 0, 30, 80))
    files = rng.choice((["h"], ["h"], ["g", "h"]))
    free: dict[tuple[str, int], float] = {}
    for op in run.ops:
        shift = rng.randint(-spread, spread)
        op.invoke, op.complete = op.invoke + shift, op.complete + shift + rng.randint(0, spread // 2)
    for op in sorted(run.ops, key=lambda op: op.invoke):
        op.file = rng.choice(files)
        fitting = [p for p in range(4) if free.get((op.file, p), -1) < op.invoke]
        op.process = rng.choice(fitting or [100 + op.id])
        if (op.file, op.process) in free and op.id % 3 == 0:
            op.invoke = int(free[op.file, op.process])
        free[op.file, op.process] = op.complete if op.type in ("ok", "fail") else float("inf")


def _ends(rng: Random, run: Run) -> None:
    """How the replicas' lives end."""
    lag = rng.choice((0.0, 0.0, 0.4))
    crashes = rng.choice((0.0, 0.0, 0.3))
    for members in run.shards.values():
        keeper = rng.choice(members)
        for replica in members:
            records = run.journals[replica]
            crashed = rng.random() < crashes
            if rng.random() < lag and (replica != keeper or crashed) and len(records) > 1:
                _cut(records, _whole(records, rng.randint(1, len(records))))
            if crashed and rng.random() < 0.5:
                records.insert(_whole(records, rng.randint(1, len(records))), Started())
                crashed = False
            elif rng.random() < 0.2:
                at = _whole(records, rng.randint(1, len(records)))
                records[at:at] = [_stopped(records[:at]), Started()]
            if not crashed:
                records.append(_stopped(records))


def _whole(records: list[Any], at: int) -> int:
    """This place, or the next one that is not within the account of a bundle."""
    while at < len(records) and isinstance(records[at], Account) and not records[at].first:
        at += 1
    return at


def _cut(records: list[Any], at: int) -> None:
    """A journal that ends here, but for what it says it multicast."""
    records[at:] = [r for r in records[at:] if isinstance(r, Submitted)]


def _stopped(records: list[Any]) -> Stopped:
    return Stopped(
        max((r.position for r in records if isinstance(r, Delivery)), default=0),
        max((r.position for r in records if isinstance(r, Account)), default=0),
    )


def tiny(text: str, *mutations: Callable[[Run], None]) -> Run:
    """A run of one replica, transactions in the order of their versions and of real time: "wa | ra=1 db | failed ra=0",
    then changed. wa: writes a; db: deletes b; ra=1: reads a as the first one wrote it (ra=9 of fewer: as
    nobody did). "+" for "|": in one message with the one before; "again 1": the first one's id once more."""
    records: list[Any] = [Started()]
    ops = []
    versions = [0]
    time = index = 0
    for number, words in enumerate(re.split(r"(?=[|+])", text), 1):
        first = words[0] != "+"
        time, index = (time + 1, 0) if first else (time, index + 1)
        account = Account(time, time, number, first=first, index=index)
        versions.append(account.version)
        for word in words.strip("|+ ").split():
            if word == "failed":
                account.status = FAILED
            elif word == "again":
                account.status = REPEATED
            elif word.isdecimal():
                account.id = int(word)
            elif word[0] == "r":
                account.reads[word[1]] = int(word.partition("=")[2])
            else:
                account.writes[word[1]] = account.version if word[0] == "w" else None
        message = MESSAGES + time
        records += [Submitted(message, (0,)), Delivery(time, time, message, (0,), 0)] if first else []
        records.append(account)
        answer = "ok" if account.status == APPLIED else "fail"
        version = account.version if answer == "ok" else None
        if account.status != REPEATED:
            ops.append(Op("h", 0, number, "txn", 1000 + 10 * number, answer, 1005 + 10 * number, version))
    for account in (r for r in records if isinstance(r, Account)):
        account.reads = {k: versions[n] if n < len(versions) else 10 * n for k, n in account.reads.items()}
    records.append(_stopped(records))
    run = Run({0: [0]}, {0: records}, ops)
    for mutation in mutations:
        mutation(run)
    run.number()
    return run


def twice(kind: type) -> Callable[[Run], None]:
    """The last record of this kind stands twice."""

    def mutate(run: Run) -> None:
        records = run.journals[0]
        at = max(i for i, r in enumerate(records) if isinstance(r, kind))
        records.insert(at, copy.deepcopy(records[at]))

    return mutate


def second(**changes: Any) -> Callable[[Run], None]:
    """The second delivery, and its account, are changed. id: of the transaction; its message is the same, too."""

    def mutate(run: Run) -> None:
        for record in (run.deliveries(0)[1], run.accounts(0)[1]):
            for name, value in changes.items():
                if hasattr(record, name):
                    message = name == "id" and isinstance(record, Delivery)
                    setattr(record, name, MESSAGES + value if message else value)

    return mutate


def backwards(run: Run) -> None:
    """By the clock the operations took place in the opposite order."""
    for op in run.ops:
        op.invoke, op.complete = 5000 - op.complete, 5000 - op.invoke


def at_one_time(run: Run) -> None:
    """By the clock the last operation was first, and when it was answered its process invoked the first one."""
    first, *_, last = run.ops
    last.invoke, last.complete, first.invoke, first.complete = 1000, 1010, 1010, 1020


def last_unknown(run: Run) -> None:
    """Nobody was told what became of the last transaction."""
    op = run.ops[-1]
    op.type, op.version = "info", None


def cut(run: Run) -> None:
    """Only its beginning is there; the same goes for the one replica of another shard, which is whole."""
    another_shard(run)
    run.lost[0] = (4, len(run.journals[0]))


def second_message(run: Run) -> None:
    """The second message has the first one's id."""
    second(id=1)(run)
    run.accounts(0)[1].status, run.accounts(0)[1].writes = MISMATCH, {}
    run.ops.pop()


def hole(run: Run) -> None:
    """Of the second replica's journal the second account is missing."""
    at = run.journals[1].index(run.accounts(1)[1])
    run.lost[1] = (at, at + 1)


def last_refused(run: Run) -> None:
    """The client of the last transaction was told that it has no effect."""
    last_unknown(run)
    run.ops[-1].type = "fail"


def another_status(run: Run) -> None:
    """The second replica says that the second transaction failed."""
    run.accounts(1)[1].status, run.accounts(1)[1].writes = FAILED, {}


def unsent(run: Run) -> None:
    """Nobody multicast the second message."""
    run.journals[0] = [r for r in run.journals[0] if not (isinstance(r, Submitted) and r.id == MESSAGES + 2)]
    run.ops.pop()


def without(kind: type) -> Callable[[Run], None]:
    """The second record of this kind is not there."""

    def mutate(run: Run) -> None:
        run.journals[0].remove([r for r in run.journals[0] if isinstance(r, kind)][1])

    return mutate


def passed(run: Run) -> None:
    """Another shard delivers the third message and not the second, which are for both."""
    for d in run.deliveries(0)[1:]:
        d.destinations = (0, 1)
    third, account = copy.deepcopy((run.deliveries(0)[2], run.accounts(0)[2]))
    third.position = account.position = 1
    run.shards[1], run.journals[1] = [1], [Started(), third, account, Stopped(1, 1)]


def passed_and_late(run: Run) -> None:
    """And then both deliver a fourth one that comes too late."""
    passed(run)
    last_refused(run)
    late, account = run.deliveries(0)[3], run.accounts(0)[3]
    late.expired, account.status, account.writes = True, EXPIRED, {}
    late, account = copy.deepcopy((late, account))
    late.position = account.position = 2
    run.journals[1][-1:] = [late, account, Stopped(2, 2)]


def called(name: str) -> Callable[[Run], None]:
    """Key a has this name."""

    def mutate(run: Run) -> None:
        for account in run.accounts(0):
            for had in (account.reads, account.writes):
                if "a" in had:
                    had[name] = had.pop("a")

    return mutate


def another_shard(run: Run) -> None:
    """It delivers nothing."""
    run.shards[1], run.journals[1] = [1], [Started(), Stopped(0, 0)]


def another_state(run: Run) -> None:
    """A second replica does the same and comes to another state."""
    run.shards[0], run.journals[1] = [0, 1], copy.deepcopy(run.journals[0])
    for replica in run.journals:
        run.accounts(replica)[0].digest = replica


def one_fewer(run: Run) -> None:
    """The second replica's account of the first message lacks the second transaction."""
    run.journals[1].remove(run.accounts(1)[1])


def repeated_elsewhere(run: Run) -> None:
    """The second replica calls the second transaction a repetition."""
    run.accounts(1)[1].status, run.accounts(1)[1].writes = REPEATED, {}


def sent_elsewhere(run: Run) -> None:
    """The first message was multicast to another shard, too."""
    sent = next(r for r in run.journals[0] if isinstance(r, Submitted))
    sent.destinations = (0, 1)


def stopped_earlier(run: Run) -> None:
    """The replica has a delivery more than it said when it stopped."""
    run.journals[0][-1] = Stopped(1, 1)


def another_fate(run: Run) -> None:
    """The last one's id was used before, it says."""
    run.accounts(0)[-1].status = MISMATCH


def undelivered(run: Run) -> None:
    """The second replica has accounts of what it has not delivered."""
    run.journals[1] = [r for r in run.journals[1] if not isinstance(r, Delivery)]


def unaccounted(run: Run) -> None:
    """The replica was killed before it wrote what became of the last message, and stopped when it was back."""
    run.journals[0].remove(run.accounts(0)[-1])
    run.journals[0][-1:] = [Started(), Stopped(2, 1)]


KNOWN = {
    "a delivery at another shard": tiny("wa | wb", another_shard, second(destinations=(1,))),
    "a message that nobody sent": tiny("wa | wb", unsent),
    "a message that was sent elsewhere": tiny("wa | wb", sent_elsewhere),
    "more than was there when it stopped": tiny("wa | wb", stopped_earlier),
    "refused and done": tiny("wa | wb", last_refused),
    "applied by one of two replicas": tiny("wa | wb", another_state, another_status),
    "two states": tiny("wa | wb", another_state),
    "right": tiny("wa | ra=1 wb | ra=1 da | ra=0"),
    "one version of two messages": tiny("wa | wb", second(time=1)),
    "two sets of destinations": tiny("wa | wb", second(id=1, destinations=(0, 1))),
    "two payloads": tiny("wa | wb", second(id=1, payload=1)),
    "versions against real time": tiny("wa | wa", backwards),
    "an unknown outcome binds nobody": tiny("wa | wa", backwards, last_unknown),
    "a long fork": tiny("wa | wb | ra=1 rb=0 | ra=0 rb=2"),
    "everybody reads from the next": tiny("ra=2 wb | rb=1 wa"),
    "an outcome twice": tiny("wa | wa", twice(Account)),
    "an outcome without effect twice": tiny("wa | ra=1", twice(Account)),
    "a delivery twice": tiny("wa | wa", twice(Delivery)),
    "absent before a deletion": tiny("wa | ra=0 | da"),
    "absent by one of two deletions": tiny("da | wa | da rb=6 | wa | ra=0 | wb"),
    "absent, deleted and present again": tiny("da | wa | ra=0 | ra=2"),
    "a read of its own write": tiny("wa | ra=2 wa"),
    "a read of its own write after a later one": tiny("ra=3 | ra=2 wa | wa"),
    "a cut journal of the only replica": tiny("wa | wa", backwards, cut),
    "an account lost of a second message under a used id": tiny("wa | wa", second_message, another_state, hole),
    "a read of what another transaction wrote elsewhere": tiny("wa | ra=4 wb | wb | wc"),
    "a stale read of a transaction that failed": tiny("wa wb | failed ra=0 rb=1 | wa"),
    "a failed transaction is no observer": tiny("wa | wb | failed ra=0 rb=2"),
    "a lost update": tiny("wa | wa | ra=1 wa"),
    "a read of a deletion as if it were a value": tiny("wa | da | ra=2"),
    "write skew": tiny("wa wb | ra=1 wb | rb=1 wa"),
    "a bundle": tiny("wa + ra=1 wa | ra=2 wb + ra=2 rb=3"),
    "a read of what the next one of its bundle writes": tiny("ra=2 + wa"),
    "a bundle without one, at another replica": tiny("wa + wb | wa", another_state, one_fewer),
    "a repetition": tiny("wa | again 1 + ra=1"),
    "a repetition in the same bundle": tiny("wa + again 1"),
    "a repetition of nothing": tiny("wa | again 7"),
    "a repetition before the first": tiny("again 2 | 2 wa"),
    "taken as new twice": tiny("ra=0 | 1 ra=0"),
    "applied twice in one bundle": tiny("wa + 1 wa"),
    "a used id that nobody used": tiny("wa | again 7", another_fate),
    "an outcome without a delivery": tiny("wa | wb | wa", without(Delivery)),
    "a delivery without an outcome": tiny("wa | wb | wa", without(Account)),
    "a message that another shard has passed": tiny("wa | wb | wc", passed),
    "a message that another shard has passed before one came too late": tiny("wa | wb | wc | wd", passed_and_late),
    "a stale read of a key with the name of no version": tiny("wa | wa | ra=1", called("version 00-1")),
    "an own write missed at one time by the clock": tiny("ra=0 | wa", at_one_time),
    "a repetition at one of two replicas": tiny("wa | wb", another_state, repeated_elsewhere),
    "a transaction of an unaccounted message": tiny("wa | wb", unaccounted),
    "another account of what was not delivered": tiny("wa | wb", another_state, another_status, undelivered),
}
"""Runs that once were judged wrongly, and such as show that they are judged at all."""

# -- damage ------------------------------------------------------------------------------------------------------------


def _some(rng: Random, run: Run, kind: type, everywhere: bool) -> list[tuple[list[Any], int]]:
    """The same record at one replica, or at all replicas of the shard: (journal, index) of each."""
    replica = rng.choice(sorted(run.journals))
    records = run.journals[replica]
    places = [i for i, r in enumerate(records) if isinstance(r, kind) and getattr(r, "position", 1)]
    if not places:
        return []
    one = records[rng.choice(places)]
    index = getattr(one, "index", 0)
    if not everywhere or kind not in (Delivery, Account):
        return [(records, next(i for i, r in enumerate(records) if r is one))]
    members = run.shards[run.shard_of(replica)]
    return [
        (run.journals[m], i)
        for m in members
        for i, r in enumerate(run.journals[m])
        if isinstance(r, kind) and r.position == one.position and getattr(r, "index", 0) == index
    ]


def _change(
    kind: type, change: Callable[[Random, Run, Any], None], everywhere: float = 0.6
) -> Callable[[Random, Run], None]:
    def mutate(rng: Random, run: Run) -> None:
        seed = rng.random()
        for records, i in _some(rng, run, kind, rng.random() < everywhere):
            change(Random(seed), run, records[i])

    return mutate


def _forge_read(rng: Random, run: Run, account: Account) -> None:
    times = sorted({a.version for r in run.journals for a in run.accounts(r)})
    if account.reads:
        account.reads[rng.choice(sorted(account.reads))] = rng.choice([0, *times, *times, 990])


def _stale_read(rng: Random, run: Run, account: Account) -> None:
    """An older version of the key, or one yet to come; the client was told the same."""
    if account.reads:
        key = rng.choice(sorted(account.reads))
        times = [a.version for r in run.journals for a in run.accounts(r) if key in a.writes]
        account.reads[key] = rng.choice([0, *times])
        for op in run.ops:
            if op.id == account.id and key in op.reads:
                op.reads[key] = account.reads[key]


def _forge_write(rng: Random, run: Run, account: Account) -> None:
    if account.writes:
        key = rng.choice(sorted(account.writes))
        if rng.random() < 0.5:
            del account.writes[key]
        else:
            account.writes[key] = None if account.writes[key] is not None else 7


def _forge_account(rng: Random, run: Run, account: Account) -> None:
    what = rng.choice(("status", "succeeded", "truths", "digest", "time", "id"))
    if what == "status":
        account.status = rng.choice((APPLIED, EXPIRED, FAILED, MISMATCH, REPEATED, REPEATED))
    elif what == "succeeded":
        account.succeeded = not account.succeeded
    elif what == "truths":
        account.truths = bytes([1 - truth for truth in account.truths]) or b"\1"
    elif what == "digest":
        account.digest = 77 if account.first else None
    elif what == "time":  # a bundle's account has one
        time = rng.randint(1, 9)
        bundles = [bundle for replica in run.journals for bundle in run.bundles(replica)]
        for one in next(bundle for bundle in bundles if any(one is account for one in bundle)):
            one.time = time
    else:
        account.id = rng.randint(1, 9)


def _forge_delivery(rng: Random, run: Run, d: Delivery) -> None:
    what = rng.choice(("time", "id", "destinations", "expired"))
    if what == "time":
        d.time = rng.randint(1, 9)
    elif what == "id":
        d.id = MESSAGES + rng.randint(1, 9)
    elif what == "destinations":
        d.destinations = tuple(sorted(rng.sample(sorted(run.shards), rng.randint(1, len(run.shards)))))
    else:
        d.expired = not d.expired


def _swap(rng: Random, run: Run) -> None:
    """Two neighbours change places, with their accounts; timestamps too, or only where they stand in the file."""
    whole = rng.random() < 0.4
    replica = rng.choice(sorted(run.journals))
    members = run.shards[run.shard_of(replica)] if whole else [replica]
    ds = run.deliveries(replica)
    if len(ds) < 2:
        return
    at = ds[rng.randrange(len(ds) - 1)].position
    how = rng.choice(("positions", "contents", "records"))
    for member in members:
        records = run.journals[member]
        for kind in (Delivery, Account):
            pair = [i for i, r in enumerate(records) if isinstance(r, kind) and r.position in (at, at + 1)]
            if len(pair) != 2:
                continue
            i, j = pair
            if how != "positions":
                records[i], records[j] = records[j], records[i]
            if how != "records":
                records[i].position, records[j].position = records[j].position, records[i].position


def _drop(rng: Random, run: Run) -> None:
    kind = rng.choice((Delivery, Account, Submitted, Stopped, (Delivery, Account)))
    if isinstance(kind, tuple):
        for records, i in _some(rng, run, Delivery, rng.random() < 0.5):
            gone = records[i].position
            records[:] = [r for r in records if not (isinstance(r, kind) and r.position == gone)]
        return
    for records, i in sorted(_some(rng, run, kind, rng.random() < 0.5), key=lambda place: -place[1]):
        del records[i]


def _repeat(rng: Random, run: Run) -> None:
    """A record again where it stands, or a delivery with its account at the next free position."""
    again = rng.random() < 0.5
    kind = rng.choice((Delivery, Account))
    for records, i in sorted(_some(rng, run, kind, rng.random() < 0.5), key=lambda place: -place[1]):
        if again:
            records.insert(i + 1, copy.deepcopy(records[i]))
            continue
        end = max(r.position for r in records if isinstance(r, (Delivery, Account)))
        position = records[i].position
        for r in [copy.deepcopy(r) for r in records if isinstance(r, (Delivery, Account)) and r.position == position]:
            r.position = end + 1
            records.append(r)


def _stop(rng: Random, run: Run) -> None:
    for records, i in _some(rng, run, Stopped, False):
        records[i].delivered += rng.choice((0, 1))
        records[i].completed += rng.choice((-1, 1))


def _client(rng: Random, run: Run) -> None:
    if not run.ops:
        return
    op = rng.choice(run.ops)
    what = rng.choice(("type", "version", "succeeded", "reads", "shift", "process", "drop", "id", "file", "shift"))
    if what == "type":
        op.type = rng.choice(("ok", "fail", "info", ""))
        if op.type != "ok":
            op.version, op.succeeded, op.reads = None, None, {}
    elif what == "version" and op.type == "ok":
        op.version = 10 * rng.randint(1, 9) + rng.choice((0, 0, 1))
    elif what == "succeeded" and op.succeeded is not None:
        op.succeeded = not op.succeeded
    elif what == "reads" and op.type == "ok":
        op.reads[rng.choice(sorted(op.reads) or ["a1"])] = 10 * rng.randint(0, 9)
    elif what == "shift":
        by = rng.randint(-100, 100)
        op.invoke, op.complete = op.invoke + by, op.complete + by
    elif what == "process":
        op.process = rng.randint(0, 3)
    elif what == "drop":
        run.ops.remove(op)
    elif what == "id":
        op.id = 60
    elif what == "file":
        op.file = "h" if op.file == "g" else "g"


def lose(rng: Random, run: Run) -> Run:
    """Of one journal or two a part is missing, or everything; of one at least something is left."""
    for replica in rng.sample(sorted(run.journals), min(rng.choice((1, 1, 2)), len(run.journals) - 1)):
        size = len(run.journals[replica])
        records = run.journals[replica]
        start = _whole(records, rng.randint(1, size))
        end = _whole(records, rng.randint(start, size))
        run.lost[replica] = rng.choice((None, (start, size), (start, end)))
    return run


def _reorder(rng: Random, run: Run) -> None:
    """Two transactions of a bundle change places, at one replica or at all of its shard."""
    seed, everywhere = rng.random(), rng.random() < 0.6
    replica = rng.choice(sorted(run.journals))
    for member in run.shards[run.shard_of(replica)] if everywhere else [replica]:
        bundles = [bundle for bundle in run.bundles(member) if len(bundle) > 1]
        if bundles:
            one, other, *_ = Random(seed).choice(bundles)
            for name in ("id", "status", "succeeded", "truths", "reads", "writes"):
                mine, others = getattr(one, name), getattr(other, name)
                setattr(one, name, others), setattr(other, name, mine)


MUTATIONS: tuple[Callable[[Random, Run], None], ...] = (
    _swap, _drop, _repeat, _stop, _client, _client, _change(Account, _forge_read), _change(Account, _stale_read),
    _change(Account, _stale_read), _change(Account, _forge_write), _change(Account, _forge_account),
    _change(Delivery, _forge_delivery), _reorder,
)  # fmt: skip

TRANSACTIONAL = (_change(Account, _stale_read), _change(Account, _stale_read), _client)
STALE = (_change(Account, _stale_read, 1.0),)
"""Damage that leaves the multicast as it is; that leaves all accounts alike."""


def random_run(rng: Random) -> tuple[Run, int]:
    """A correct run, and how often it was damaged after that."""
    run = correct_run(rng)
    kinds = rng.choice((MUTATIONS, MUTATIONS, TRANSACTIONAL, STALE, STALE))
    times = rng.choice((0, 1, 2, 4))
    for _ in range(times):
        rng.choice(kinds)(rng, run)
        run.number()
    return run, times
