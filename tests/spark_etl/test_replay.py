"""What a transaction must have written and told, executed once more from what was asked: as the store does it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from hashlib import blake2b
from random import Random
from typing import Any

import msgspec
import pytest

from kvstore.api import leases
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
    NoneNewer,
    Put,
    Range,
    Target,
    Transaction,
    Txn,
    lease_key,
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
VERSIONS: tuple[Target, ...] = ("version", "create_version")
LEASE = lease_key(bytes(16)).decode()


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
            Compare(b"a", rng.choice(VERSIONS), rng.choice(("==", "!=", "<", ">")), Timestamp(rng.randint(0, 4), 1)),
            Compare(b"a", "create_version", rng.choice(("==", "!=", "<", ">")), ZERO),
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
    created = Timestamp(rng.choice((1, 3)), 1)
    since = rng.choice((None, str(created)))
    rows = {key: KeyValue(key, value, Timestamp(3, 1), created) for key, value in drawn.items() if value}
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
        "seen": {k.decode(): replay.Seen(None if v == ZERO else values[k], str(v), since if k != b"n" else None)
                 for k, v in execution.reads},
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


@pytest.mark.parametrize(
    ("op", "operand", "holds"),
    [
        ("==", 2, False), ("==", 3, None), ("==", 4, None), ("==", 5, None), ("==", 6, False), ("!=", 6, True),
        ("<", 6, True), ("<", 5, None), ("<", 3, False), (">", 2, True), (">", 3, None), (">", 5, False),
    ],
)  # fmt: skip
def test_a_key_was_created_between_its_first_version_and_its_last(op: str, operand: int, holds: bool | None) -> None:
    asked = {"compare": [["a", "create_version", op, f"{operand}-0"]], "success": [], "failure": []}
    seen = {"a": replay.Seen("=1", "5-0", "3-0")}
    compared = [replay.compare(json.dumps(asked), "[]", None, ran, seen, {}) for ran in (True, False)]
    found = [{one.name for one in some} for some in compared]
    kept = {"==": operand == 3, "!=": operand != 3, "<": operand > 3, ">": operand < 3}[op]
    name = "not-as-asked" if holds is not None else replay.CREATED_ANEW
    assert found == [set() if kept else {name}, {name} if kept else set()]
    seen = {"a": replay.Seen("=1", "3-0", "3-0")}
    alone = {"==": operand == 3, "!=": operand != 3, "<": operand > 3, ">": operand < 3}[op]
    wrong = [bool(replay.compare(json.dumps(asked), "[]", None, ran, seen, {})) for ran in (True, False)]
    assert wrong == [not alone, alone]


def _fewer(told: list[Any]) -> Iterator[list[Any]]:
    if told:
        yield told[:-1]


def _one_more(told: list[Any]) -> Iterator[list[Any]]:
    yield [*told, None]


def _of_a_range(change: Callable[[dict[str, Any]], dict[str, Any] | None]) -> Callable[[list[Any]], Iterator[Any]]:
    def changed(told: list[Any]) -> Iterator[list[Any]]:
        for at, value in enumerate(told):
            if isinstance(value, dict) and (other := change(value)) is not None:
                yield [*told[:at], other, *told[at + 1 :]]

    return changed


def _without_a_key(told: dict[str, Any]) -> dict[str, Any] | None:
    return dict([*told.items()][1:]) if told else None


def _the_other_way_round(told: dict[str, Any]) -> dict[str, Any] | None:
    first, *rest = told.items() if len(told) > 2 else [()]
    return dict([*rest, first]) if first else None


WRONG: dict[str, Callable[[list[Any]], Iterator[list[Any]]]] = {
    "fewer answers": _fewer,
    "one answer more": _one_more,
    "a key left out of a range": _of_a_range(_without_a_key),
    "a key that was not read": _of_a_range(lambda told: {**told, "z": "=1"}),
    "keys in no order": _of_a_range(_the_other_way_round),
    "no range at all": _of_a_range(lambda told: []),  # type: ignore[arg-type,return-value]
}


@pytest.mark.parametrize("name", WRONG)
def test_nothing_but_what_was_asked_for_is_told(name: str):
    """Also where a transaction is nested in another one."""
    found = 0
    for seed in range(400):
        one = executed(seed)
        for told in _changed(json.loads(one["told"]), WRONG[name]):
            assert replay.compare(**{**one, "told": json.dumps(told)}), (seed, told)
            found += 1
    assert found > 20, found


def test_what_was_compared_or_changed_was_read():
    """Or nobody could say that the right branch ran, and that the right value was written."""
    found = 0
    for seed in range(400):
        one = executed(seed)
        asked = json.loads(one["asked"])
        compared = {words[0] for words in asked.get("compare", ())}
        first = next(iter(asked.get("success" if one["succeeded"] else "failure", ())), ("",))
        changed = {first[1]} if first[0] in ("add", "min", "max", "append") else set()
        for key in compared | changed:
            seen = {k: v for k, v in one["seen"].items() if k != key}
            why = [mismatch.why for mismatch in replay.compare(**{**one, "seen": seen})]
            assert any(f"asked for key {key}, and the journals do not say that it read that" in w for w in why), seed
            found += 1
    assert found > 100, found


def _changed(told: list[Any], change: Callable[[list[Any]], Iterator[list[Any]]]) -> Iterator[list[Any]]:
    yield from change(told)
    for at, value in enumerate(told):
        if isinstance(value, list):
            yield from ([*told[:at], [value[0], *inner], *told[at + 1 :]] for inner in _changed(value[1:], change))


@pytest.mark.parametrize(
    ("told", "right"),
    [
        ({"b": "=2", "": ""}, True),
        ({"b": "=2", "d": "=4", "": ""}, False),
        ({"d": "=4", "b": "=2", "": ""}, False),
        ({"b": "=2", "c": "=3", "": ""}, True),
        ({"d": "=4", "c": "=3", "": ""}, True),
        ({"c": "=3", "": ""}, False),
        ({"b": "=2", "c": "=3", "d": "=4"}, True),
        ({"b": "=2", "c": "=3"}, False),
        ({}, False),
        ({"": ""}, False),
    ],
)
@pytest.mark.parametrize("journaled", [True, False])
def test_of_a_range_that_ended_early_what_lies_before_its_last_key_is_told(
    told: dict[str, str], right: bool, journaled: bool
):
    seen = {key: replay.Seen(value, "1-1") for key, value in {"a": "=1", "b": "=2", "c": "=3", "d": "=4"}.items()}
    asked = {"success": [["range", "", "b"]]}
    found = replay.compare(json.dumps(asked), json.dumps([told]), None, True, seen, {}, journaled=journaled)
    assert (found == []) == right, found


@pytest.mark.parametrize(("what", "journaled", "right"), [
    ("count", True, {3}), ("delete_range", True, {3}), ("count", False, {3, 4}),
])  # fmt: skip
def test_as_many_keys_are_counted_as_were_read(what: str, journaled: bool, right: set[int]):
    """Of what no journal has those that were counted are not known."""
    seen = {key: replay.Seen(f"={key}", "1-1") for key in "abcd"} | {"c1": replay.Seen(None, str(ZERO))}
    writes = dict.fromkeys("bcd") if what == "delete_range" else {}
    asked = json.dumps({"success": [[what, "", "b"]]})
    told = (2, 3, 4, "3", True)
    found = [replay.compare(asked, f"[{json.dumps(n)}]", None, True, seen, writes, journaled=journaled) for n in told]
    assert {n for n, wrong in zip(told, found, strict=True) if not wrong} == right


def test_what_is_the_stores_own_is_in_no_range_of_a_client():
    """A simulated one, which is not asked over HTTP, finds it."""
    seen = {LEASE: replay.Seen("=row", "1-1"), "a": replay.Seen("=1", "1-1")}
    asked = {"success": [["put", "b", "=2", LEASE], ["count", ""], ["keys", ""], ["delete_range", ""]]}
    writes, keys = {"a": None, "b": None}, {"a": "1-1", "b": "9-1"}
    for told in ([None, 2, keys, 2], [None, 3, {LEASE: "9-1", **keys}, 3]):
        assert replay.compare(json.dumps(asked), json.dumps(told), None, True, seen, writes) == []


@pytest.mark.parametrize(("journaled", "found"), [(True, ["not-as-asked"]), (False, ["value-mismatch"])])
def test_a_key_that_was_asked_for_was_read(journaled: bool, found: list[str]):
    """So say the journals; of what stands in none its client must have been told the version, or nothing."""
    asked = json.dumps({"success": [["get", "a"], ["put", "b", "=2"], ["get", "b"], ["get", "c"]]})
    seen = {"a": replay.Seen("=1", "1-1"), "c1": replay.Seen("=3", "1-1")}
    told = json.dumps(["=1", None, "=2", "=3"])
    wrong = replay.compare(asked, told, None, True, seen, {"b": "=2"}, journaled=journaled)
    assert [one.name for one in wrong] == found
    wrong = replay.compare(asked, None, None, True, seen, {"b": "=2"}, journaled=journaled)
    assert [one.name for one in wrong] == (found if journaled else [])


def test_of_what_a_revoked_lease_took_with_it_nothing_is_said():
    """No journal tells what was attached to it. Its row is in no range, nor that of one that a put names."""
    seen = {LEASE: replay.Seen("=row", "1-1"), "a": replay.Seen("=1", "1-1")}
    asked = {"success": [["count", ""], ["put", "b", "=2", LEASE], ["range", ""], ["revoke", LEASE],
                         ["get", "a"], ["range", ""], ["count", ""]]}  # fmt: skip
    told = [1, None, {"a": "=1", "b": "=2"}, None, None, {}, 0]
    writes = {"a": None, "b": None, LEASE: None}
    assert replay.compare(json.dumps(asked), json.dumps(told), None, True, seen, writes) == []


@pytest.mark.parametrize(("value", "text"), [(b"5", "=5"), (b"", "="), (b"\xff", "#"), (b"x" * 257, "#")])
def test_a_long_value_or_no_text_is_its_digest(value: bytes, text: str):
    assert audit.value_text(value).startswith(text) and len(audit.value_text(value)) in (len(text), 33)


@pytest.mark.parametrize(
    ("words", "newer"),
    [
        (["", "5-0"], None), (["", "4-9"], "b"), (["a", "4-9"], None), (["", "3-0", "a", "b"], None),
        (["", "3-0", "b", "c"], "b"), (["", "2-9"], "a"), (["c", "0-0"], None),
    ],
)  # fmt: skip
def test_what_was_to_fail_if_a_key_is_newer_was_not_applied_though_one_was(words: list[str], newer: str | None):
    """Of c the transaction has read that it is not there, and it has written it itself by then."""
    seen = {"a": replay.Seen("=1", "3-0"), "b": replay.Seen("=1", "5-0"), "c": replay.Seen(None, "0-0")}
    asked = {"success": [["put", "c", "=2"], ["none_newer", *words], ["get", "a"]]}
    found = replay.compare(json.dumps(asked), json.dumps([None, None, "=1"]), None, True, seen, {"c": "=2"})
    assert [(one.name, one.key) for one in found] == ([("not-as-asked", newer)] if newer else [])
    wrong = replay.compare(json.dumps(asked), json.dumps([None, None, "=9"]), None, True, seen, {"c": "=2"})
    assert [one.name for one in wrong] == ["not-as-asked" if newer else "value-mismatch"]


def test_a_condition_on_a_range_is_noted_as_it_was_asked():
    version = Timestamp(5, 3)
    asked = audit.asked((), (NoneNewer(b"k", version), NoneNewer(b"", version, b"a", b"b"), Get(b"a")))
    assert asked is not None
    assert asked.success == [["none_newer", "k", "5-3"], ["none_newer", "", "5-3", "a", "b"], ["get", "a"]]


def test_what_is_attached_to_a_lease_no_journal_tells():
    """A list of a lease's keys is no range of all keys: nothing is said of what was asked."""
    listing = leases.look(bytes(16), keys=True).success
    assert audit.asked((), listing) is None
    assert audit.asked((), (Txn((), listing),)) is None
    assert audit.asked((), listing[1:]) is not None


@pytest.mark.parametrize(
    ("asked", "kind", "expected"),
    [
        ([["add", "n", 1]], "add", True),
        ([["add", "a", 1]], "add", False),
        ([["add", "n", 1], ["add", "unread", 1]], "add", None),
        ([["add", "a", 1], ["add", "unread", 1]], "add", False),
        ([["add", "m", 1]], "add", False),
        ([["add", "m", -1], ["add", "m", 1]], "add", True),
        ([["min", "d", 1]], "min", False),
        ([["append", "a", "=x"], ["add", "n", 1]], "append", True),
        ([["append", "d", "=x"]], "append", None),
        ([["append", "d", "=x"], ["add", "n", 1]], "add", None),
        ([["put", "a", "=1"], ["max", "a", 1]], "max", True),
        ([["delete", "a"], ["add", "a", 1]], "add", True),
        ([["add", "n", 1], ["delete_range", "x"]], "add", None),
        ([["txn", {}], ["add", "n", 1]], "add", None),
        ([["add", "n", 1], ["put", "a", "=1", LEASE]], "add", None),
        ([["get", "n"]], "add", True),
        ([["delete_range", "n"]], "add", True),
        ([["delete_range", "n"]], "delete_range", None),
        ([["put", "n", "=1"]], "put", True),
        ([["txn", {"success": [["get", "n"]]}], ["put", "n", "=1"]], "put", True),
        ([["txn", {"success": [["put", "n", "=1", LEASE]]}]], "put", None),
        ([["put", "n", "=1", LEASE]], "put", True),
        ([["put", "n", "=1", LEASE], ["put", "x", "=1", "gone"]], "put", False),
        ([["put", "n", "=1", LEASE], ["put", "x", "=1", "unread"]], "put", None),
        ([["put", "n", "=1", LEASE], ["revoke", LEASE]], "put", None),
        ([["put", "n", "=1", LEASE]], "put: more", None),
        ([["put", "n", "=1"]], "put: more", True),
        ([["get", "n"]], "none_newer", True),
        ([["none_newer", "n", "1-1"]], "none_newer", None),
        ([["none_newer", "n", "1-1"], ["add", "n", 1]], "add", None),
    ],
)
def test_what_was_possible_is_known_by_what_was_read(asked: list[Any], kind: str, expected: bool | None) -> None:
    texts = {"n": "=7", "a": "=text", "m": f"={2**63 - 1}", "d": "#" + "0" * 32}
    seen = {key: replay.Seen(value, "1-1") for key, value in (texts | {LEASE: "=200"}).items()}
    seen["gone"] = replay.Seen(None, "0-0")
    assert replay.possible(json.dumps({"success": asked}), seen, kind) is expected
    elsewhere = {"compare": [["n", "value", "==", "=8"]], "success": [["add", "a", 1]], "failure": asked}
    assert replay.possible(json.dumps(elsewhere), seen, kind) is expected


def test_what_the_store_calls_impossible_is() -> None:
    """By what it has read until then."""
    kinds = dict.fromkeys(replay.FALLIBLE, 0)
    for seed in range(300):
        rng = Random(seed)
        rows = {key: KeyValue(key, value, Timestamp(1, 1), Timestamp(1, 1))
                for key, value in zip(KEYS, (b"1", b"text", b"%d" % (2**63 - 1)), strict=True)}  # fmt: skip
        each = [Append(b"b", b"x" * 1024**2), Get(b"a"), Put(b"b", b"2"), Delete(b"n")]
        each += [kind(key, 1) for kind in (Add, Min, Max) for key in KEYS]
        transaction = Transaction(success=tuple(rng.sample(each, rng.randint(1, 4))))
        execution = Execution(Store(rows), Timestamp(9, 1))  # type: ignore[arg-type]
        plan = LocalPlan(transaction)
        succeeded, truths = execution.judge(plan)
        execution.run(plan.course(succeeded, truths))
        kind = execution.failure.partition(": ")[0]
        values = {key: journal_text(row.value) for key, row in rows.items()}
        seen = {k.decode(): replay.Seen(None if v == ZERO else values[k], str(v)) for k, v in execution.reads}
        asked = _json(audit.asked((), transaction.success, ()))
        if kind:
            kinds[kind] += 1
            assert replay.possible(asked, seen, kind) is not True, seed
    assert min(kinds.values()) > 5, kinds


@pytest.mark.parametrize("asked", [["add", "a", 1], ["add", "m", 1], ["min", "d", 1], ["max", "a", 1]])
def test_what_was_impossible_was_not_done(asked: list[Any]) -> None:
    texts = {"a": "=text", "m": f"={2**63 - 1}", "d": "#" + "0" * 32}
    seen = {key: replay.Seen(value, "1-1") for key, value in texts.items()}
    question = json.dumps({"success": [["put", "x", "=1"], asked]})
    (found,) = replay.compare(question, None, None, True, seen, {"x": "=1", asked[1]: "=2"})
    assert found.name == "not-as-asked" and "impossible" in found.why
