"""What is attached to a lease goes with it, and nothing else does; who ended it too early is asked for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kvstore.api.model import lease_key
from multicast.types import ZERO
from spark_etl.audit.runner import Audit
from spark_etl.checks.leases import attached
from spark_etl.report import Property
from tests.spark_etl.runs import MEMBERS, Run, shard_of

PARTS = ("delivery", "transactions", "clients")
ONE, OTHER = (lease_key(bytes([number]) * 16).decode() for number in (1, 2))
Asked = list[list[Any]]


def step(
    run: Run, asked: Asked, reads: str, writes: dict[str, int | None], known: bool = True, told: int | None = None
) -> None:
    """A transaction; None deletes. known: a client's. told: of each operation."""
    run.transaction(reads, {key: value or 0 for key, value in writes.items()})
    run.events[-2]["asked"], run.events[-1]["told"] = {"success": asked}, [told] * len(asked)
    for shard, replicas in MEMBERS.items():
        mine = [value for key, value in writes.items() if shard_of(key) == shard]
        for replica in replicas if None in mine else ():
            for n in [n for n, value in enumerate(mine) if value is None]:
                run.change(replica, run.positions[shard], lambda o, n=n: setattr(o.writes[n], "value", None))
    run.state |= {key: (0, ZERO) for key, value in writes.items() if value is None}
    if not known:
        del run.events[-2:]


def leased(run: Run, lease: str, first: str) -> None:
    """Keys 1, 2 and 4 of these are attached, 3 is no more, and nobody knows of 5."""
    step(run, [["put", lease, "=1000"]], "", {lease: 1000})
    for number in (1, 2, 3, 4, 5):
        key = f"{first}{number}"
        step(run, [["put", key, "=7", lease]], lease, {key: 7}, known=number != 5)
    step(run, [["put", f"{first}3", "=8"]], "", {f"{first}3": 8})
    step(run, [["add", f"{first}4", 1]], f"{first}4", {f"{first}4": 8}, told=8)


def judged(spark: Any, run: Run, directory: Path) -> Property:
    run.stop()
    report = Audit(spark, run.write(directory / "run"), directory / "out", parts=PARTS).run()
    assert not [p.name for p in report.properties if p.violations and p.name != "leases"], report.properties
    return next(p for p in report.properties if p.name == "leases")


def test_what_outlives_its_lease_or_goes_with_another_one_is_found(spark: Any, tmp_path: Path):
    run = Run()
    leased(run, ONE, "a")
    leased(run, OTHER, "b")
    step(run, [["revoke", ONE]], f"a1 a3 a4 {ONE}", {"a1": None, "a3": None, "a4": None, ONE: None})
    step(run, [["revoke", OTHER]], f"b1 b2 b4 b5 {OTHER}", {f"b{n}": None for n in (1, 2, 4, 5)} | {OTHER: None})
    found = judged(spark, run, tmp_path)
    assert (found.verdict, found.rows) == ("violated", 2)
    assert sorted((v.name, *v.keys) for v in found.examples) == [("outlived-its-lease", "a2"), ("taken-along", "a3")]
    assert all(one.evidence and one.transactions for one in found.examples)


def test_a_lease_that_nobody_revoked_may_have_ended_too_early(spark: Any, tmp_path: Path):
    """It lives for a second, and was gone in some microseconds."""
    run = Run()
    leased(run, ONE, "a")
    step(run, [], f"a1 a2 a4 {ONE}", {"a1": None, "a2": None, "a4": None, ONE: None}, known=False)
    step(run, [["get", ONE]], ONE, {})
    found = judged(spark, run, tmp_path)
    assert (found.verdict, found.examples) == ("not determined", [])
    assert "that was too early" in found.note


def test_to_which_lease_a_key_is_attached_is_what_was_said_last_of_the_branch_that_ran() -> None:
    nested = {"success": [["put", "a", "=1", ONE]], "failure": [["put", "b", "=1", ONE], ["append", "a", "=1"]]}
    asked = {"success": [["put", "a", "=1", OTHER], ["txn", nested], ["add", "c", 1], ["delete", "d"], ["add", "d", 1]]}
    assert attached(json.dumps(asked), True, b"\0") == {"a": OTHER, "b": ONE, "c": None, "d": ""}
    assert attached(json.dumps(asked), False, b"\0") == {}
