"""What clients know and journals do not: what a crash may have kept from the disks is not determined, and what it
cannot have kept is a loss."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from multicast.records import Delivered
from multicast.types import ZERO
from spark_etl.audit import answered
from spark_etl.audit.answered import LAST_TURNS, NOWHERE
from spark_etl.audit.runner import PARTS, Audit
from spark_etl.report import UNDETERMINED, VIOLATED, Report
from tests.spark_etl.forged import Forged
from tests.spark_etl.losses import EVERYWHERE, crashed_and, rolled_back
from tests.spark_etl.runs import MEMBERS, Run
from tests.spark_etl.test_audit import names, prop
from tests.spark_etl.test_forgeries import simulated

CLIENTS = "clients saw"
OF_ANSWERS = ("delivery", "transactions", "clients")


def answers(*times: tuple[int, int], shard: int = 0, file: str = "a") -> list[Any]:
    """Of operations that a shard lacks: when they were asked for and answered."""
    times_of = ({"invoke_us": invoke, "complete_us": complete} for invoke, complete in times)
    return [SimpleNamespace(shard=shard, file=file, **one) for one in times_of]


def in_turn(count: int, **where: Any) -> list[Any]:
    return answers(*((2 * n, 2 * n + 1) for n in range(count)), **where)


@pytest.mark.parametrize(
    ("rows", "beyond"),
    [
        ([], set()),
        (in_turn(LAST_TURNS), set()),
        (in_turn(LAST_TURNS + 1), {0}),
        (in_turn(LAST_TURNS, file="a") + in_turn(LAST_TURNS, file="b"), set()),
        (in_turn(LAST_TURNS + 1) + in_turn(LAST_TURNS, shard=1), {0}),
        (answers(*((n, 900 + n) for n in range(500))), set()),  # nobody was answered before another one asked
        (answers(*((0, 1_000 * n) for n in range(500))), set()),
        (in_turn(2 * LAST_TURNS, shard=NOWHERE), set()),
        (in_turn(2 * LAST_TURNS + 1, shard=NOWHERE), {NOWHERE}),
    ],
)  # fmt: skip
def test_more_than_some_operations_one_after_the_other_are_beyond_a_last_batch(rows: list[Any], beyond: set[int]):
    """However long they took, and however many there were at a time."""
    assert answered._in_turns(rows, {NOWHERE: 2}) == beyond


def killed(lost: int) -> Run:
    """The replicas of a shard have been killed before they wrote its last operations, some of them of another, too,
    which has them."""
    run = Run()
    run.transaction(writes={"a1": 0, "b1": 0})
    for number in range(lost):
        run.transaction(writes={"a1": number, "b1": number} if number % 2 else {"a1": number})
    for replica in MEMBERS[0]:
        del run.records[replica][run.find(replica, Delivered, 2) :]
    return run


def audited(spark: Any, run: Run, path: Path, parts: Sequence[str] = PARTS) -> Report:
    return Audit(spark, run.write(path / "run"), path / "out", parts=parts).run()


def test_an_answer_that_a_killed_shard_had_perhaps_not_written_leaves_the_run_undecided(spark: Any, tmp_path: Path):
    report = audited(spark, killed(2), tmp_path)
    assert (report.verdict, report.exit_code, names(report)) == (UNDETERMINED, 2, set())
    told = prop(report, CLIENTS)
    assert (told.verdict, told.note) == (UNDETERMINED, "2 acknowledged operations are not in the journals")
    assert prop(report, "serializability").verdict == prop(report, "strict").verdict == UNDETERMINED
    assert not report.strongest and {model.verdict for model in report.models} == {UNDETERMINED}


def test_so_does_a_change_that_a_watch_alone_was_told_of(spark: Any, tmp_path: Path):
    run = Run()
    one, two = (run.version(run.transaction(writes={"a1": n})) for n in range(2))
    for replica in MEMBERS[0]:
        del run.records[replica][run.find(replica, Delivered, 2) :]
    del run.events[-2:]
    run.watch((one, {"a1": 0}), (two, {"a1": 1}), after=ZERO)
    report = audited(spark, run, tmp_path)
    assert (report.verdict, report.exit_code, names(report)) == (UNDETERMINED, 2, set())
    assert prop(report, "watches").note.endswith("1 changes had perhaps not been written at the end")
    assert prop(report, "strict").verdict == UNDETERMINED


def test_more_than_a_crash_keeps_from_the_disks_is_lost(spark: Any, tmp_path: Path):
    """Of the shard that lacks so much: what stands in no journal may be of either."""
    report = audited(spark, killed(2 * LAST_TURNS + 4), tmp_path, OF_ANSWERS)
    told = prop(report, CLIENTS)
    assert (report.verdict, told.verdict, told.violations) == (VIOLATED, VIOLATED, LAST_TURNS + 2)
    assert all("is in no journal of shard 0" in violation.sentence for violation in told.examples)


@pytest.mark.full
def test_so_is_what_all_journals_lack_though_each_fits_the_others(spark: Any, tmp_path: Path):
    """They were rolled back, with their marks, behind a crash. By default their last positions are cut: `losses`."""
    forgery = crashed_and(rolled_back)
    run = simulated(tmp_path / "run", seconds=2.5)
    fold = Forged(spark, run, [(forgery, EVERYWHERE)], {}, tmp_path / "out", ("clients",))
    report = fold.check_all()
    assert names(report) == {"acknowledged-but-absent"} and report.exit_code == 1


def test_of_a_shard_whose_crashed_replicas_leave_their_journals_to_the_system_nothing_is_lost_for_certain(
    spark: Any, tmp_path: Path
) -> None:
    run = killed(2 * LAST_TURNS + 4)
    run.records[0][0].durability = "os"
    report = audited(spark, run, tmp_path, OF_ANSWERS)
    assert (report.verdict, names(report)) == (UNDETERMINED, set())
