"""What a transaction must have written and told, executed once more from what was asked: as the store does it."""

from __future__ import annotations

import json
from hashlib import blake2b
from random import Random
from typing import Any

import msgspec
import pytest

from kvstore.api.model import (
    Add,
    Append,
    Compare,
    Delete,
    DeleteRange,
    Get,
    KeyValue,
    Max,
    Min,
    Put,
    Range,
    Transaction,
    Txn,
)
from kvstore.api.nesting import in_their_places
from kvstore.core import audit
from kvstore.core.execution import Execution
from kvstore.core.plans import LocalPlan
from multicast.types import ZERO, Timestamp
from spark_etl.checks import replay

LONG = b"long" * 100
MIDDLE = b"middle" * 10
"""Whole in a history, a digest in a journal."""
KEYS = (b"a", b"b", b"n")


class Store:
    """Rows as the store's state gives them."""

    def __init__(self, rows: dict[bytes, KeyValue]):
        self.rows = rows

    def get(self, key: bytes) -> Any:
        return self.rows.get(key)

    def scan(self, first: bytes, end: bytes, limit: int, reverse: bool, keys_only: bool) -> Any:
        found = [self.rows[k] for k in sorted(self.rows, reverse=reverse) if first <= k and (not end or k < end)]
        return found[:limit], len(found) > limit


def random_transaction(rng: Random, depth: int = 0) -> Transaction:
    def operation() -> Any:
        key = rng.choice(KEYS[:2])
        return rng.choice([
            Get(key), Put(key, rng.choice((b"1", b"text", MIDDLE, LONG, b"\xff"))), Delete(key), Append(key, b"x"),
            Append(key, LONG), Get(b"n"),
            rng.choice((Add(b"n", 3), Min(b"n", 12), Max(b"n", 12))), Range(b"", 9),
            rng.choice((
                Range(b"", 9, b"", b"a", b"n", keys_only=True), Range(b"", 9, b"a", reverse=True),
                Range(b"", 1, count_only=True), DeleteRange(b"", b"b"), DeleteRange(b"a"),
            )),
        ])  # fmt: skip

    compare = tuple(
        rng.choice([
            Compare(b"a", "exists", "==", rng.random() < 0.5), Compare(b"n", "value", rng.choice("<>"), b"12"),
            Compare(b"b", "value", rng.choice(("==", "!=")), rng.choice((b"1", MIDDLE, LONG))),
            Compare(b"a", "version", rng.choice(("==", "!=")), Timestamp(1, 1)),
            Compare(b"a", "create_version", rng.choice(("==", "!=")), ZERO),
        ])
        for _ in range(rng.choice((0, 1, 2)))
    )  # fmt: skip
    branches = [tuple(operation() for _ in range(rng.randint(0, 4))) for _ in range(2)]
    if depth < 2 and rng.random() < 0.5:
        inner = random_transaction(rng, depth + 1)
        nested = Txn(inner.compare, inner.success, inner.failure)
        which, at = rng.randint(0, 1), rng.randint(0, 4)
        branches[which] = (*branches[which][:at], nested, *branches[which][at:])
    return Transaction(compare, *branches)


def executed(seed: int) -> dict[str, Any]:
    """Arguments of `replay.compare`, as journals and history say them of a transaction that the store executed."""
    rng = Random(seed)
    drawn = {key: rng.choice((None, b"1", b"y", MIDDLE, LONG)) for key in KEYS[:2]}
    rows = {key: KeyValue(key, value, Timestamp(1, 1), Timestamp(1, 1)) for key, value in drawn.items() if value}
    number = KeyValue(b"n", b"%d" % rng.randint(0, 30), Timestamp(2, 1), Timestamp(2, 1))
    rows |= {b"n": number} if rng.random() < 0.8 else {}
    transaction = random_transaction(rng)
    execution = Execution(Store(rows), Timestamp(9, 1))  # type: ignore[arg-type]
    plan = LocalPlan(transaction)
    succeeded, truths = execution.judge(plan)
    execution.run(plan.course(succeeded, truths))
    results = in_their_places(transaction, succeeded, truths, tuple([result for _, result in execution.results]))
    assert not execution.failure
    values = {key: journal_text(row.value) for key, row in rows.items()}
    branch = transaction.success if succeeded else transaction.failure
    return {
        "asked": _json(audit.asked(transaction.compare, transaction.success, transaction.failure)),
        "told": _json(audit.told(branch, results)),
        "read": None,
        "succeeded": succeeded,
        "truths": truths,
        "seen": {k.decode(): replay.Seen(None if v == ZERO else values[k], str(v)) for k, v in execution.reads},
        "writes": {k.decode(): None if v is None else journal_text(v) for k, v in execution.writes.items()},
    }


def journal_text(value: bytes) -> str:
    """As the audit has it from a journal."""
    if len(value) > audit.WRITTEN_BYTES_KEPT:
        return "#" + blake2b(value, digest_size=16).hexdigest()
    return audit.value_text(value)


def _json(one: Any) -> str:
    return msgspec.json.encode(one).decode()


def test_what_the_store_does_is_right():
    for seed in range(600):
        assert replay.compare(**executed(seed)) == [], seed


def test_what_it_does_not_do_is_wrong():
    """Any other value that was written or told, the other branch where its comparisons tell, also of what is nested in
    it, a write more or fewer."""
    found = dict.fromkeys(("write", "less", "told", "branch", "truth", "said"), 0)
    for seed in range(600):
        for what in found:
            one = executed(seed)
            told = json.loads(one["told"])
            texts = [at for at, value in enumerate(told) if isinstance(value, str)]
            if what == "write":
                one["writes"]["a"] = "=forged"
            elif what == "less" and one["writes"]:
                del one["writes"][min(one["writes"])]
            elif what == "told" and texts:
                told[texts[0]] = "=forged"
                one["told"] = json.dumps(told)
            elif what == "branch":
                one["succeeded"] = not one["succeeded"]
            elif what == "truth" and one["truths"]:
                one["truths"] = bytes([1 - one["truths"][0]]) + one["truths"][1:]
            elif what == "said" and any(isinstance(value, list) for value in told):
                inner = next(value for value in told if isinstance(value, list))
                inner[0] = not inner[0]
                one["told"] = json.dumps(told)
            else:
                continue
            found[what] += any(replay.compare(**one))
    assert min(found.values()) > 100, found


@pytest.mark.parametrize(("value", "text"), [(b"5", "=5"), (b"", "="), (b"\xff", "#"), (b"x" * 257, "#")])
def test_a_long_value_or_no_text_is_its_digest(value: bytes, text: str):
    assert audit.value_text(value).startswith(text) and len(audit.value_text(value)) in (len(text), 33)
