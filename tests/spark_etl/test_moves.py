"""Runs in which slots moved: nobody is accused who is right, and what a move loses, changes or invents is found, though
all replicas of both shards say the same."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import pytest
from pyspark.sql import functions as F

import kvstore.core.replica
from kvstore.api.shard_map import slot_of
from kvstore.core.audit import APPLIED, Given, MovedRow, MoveOutcome, Write, decode_outcomes, encode_outcomes
from kvstore.core.moves import Moves
from kvstore.simulated.runner import run_seed
from multicast.records import Completed, Started
from multicast.types import Timestamp
from spark_etl.audit import moved
from spark_etl.audit.runner import Audit
from spark_etl.checks import moves
from spark_etl.checks.moves import Followed, Step
from spark_etl.ingest import extraction
from spark_etl.ingest.tables import check_tables
from spark_etl.report import Property
from tests.planted.moves import CALM, DirtyRowsForgotten
from tests.spark_etl.forged import Forgery, Records, deliveries, forge, records_of
from tests.spark_etl.losses import restarted
from tests.spark_etl.promised import at, written
from tests.spark_etl.runs import MEMBERS, SEGMENT
from tests.spark_etl.test_archive import rewritten
from tests.spark_etl.test_simulated import rows

SEED = 13
MANY = msgspec.structs.replace(CALM, seconds=0.5)


@pytest.mark.parametrize(("kind", "violated"), [(Moves, False), (DirtyRowsForgotten, True)], ids=["right", "lost"])
def test_rows_are_followed_from_shard_to_shard(
    spark: Any, tmp_path: Path, kind: type[Moves], violated: bool
) -> None:
    with mock.patch.object(kvstore.core.replica, "Moves", kind):
        run = run_seed(MANY, SEED, tmp_path / "run")
    assert run.moves and bool(run.violations) == violated
    report = Audit(spark, tmp_path / "run", tmp_path / "out", parts=("delivery", "transactions")).run()
    named = {p.name for p in report.properties if p.verdict == "violated"}
    assert named == ({"reads return what the order says", moved.MOVES} if violated else set()), named
    assert report.problems == []


def test_where_a_shard_was_added_keys_that_stayed_are_still_read_in_theirs(spark: Any, tmp_path: Path) -> None:
    run = written()
    run.records[0][0].members = {0: MEMBERS[0]}  # the other shard is new to this replica
    run.look(at(run, a1=2, b1=2), (1100, 1110), places={0: 3})
    run.read("b1", 0, 3, (1120, 1130), version=at(run, b1=2)["b1"])
    report = Audit(spark, run.write(tmp_path / "run"), tmp_path / "out", parts=("delivery", "transactions", "clients"))
    named = {p.name: {one.name for one in p.examples} for p in report.run().properties if p.verdict == "violated"}
    assert {"leader reads", "reads as promised"} <= named.keys()
    assert {name for names in named.values() for name in names} == {"unknown-place"}, named


# -- what is handed over, forged alike in all journals ----------------------------------------------------------------

Change = Callable[[MovedRow], list[MovedRow]]
EARLY = Timestamp(1, 1)


def another(**values: Any) -> Change:
    return lambda row: [msgspec.structs.replace(row, **values)]


CHANGES: dict[str, tuple[Change, str]] = {
    "left out": (lambda row: [], "left-behind"),
    "an older version": (another(version=EARLY), "left-behind"),
    "deleted": (another(value=None), "left-behind"),
    "another value": (another(value=b"x" * 100), "given-otherwise"),
    "invented": (
        lambda row: [row, msgspec.structs.replace(row, key=_beside(row.key), version=EARLY)], "given-otherwise"
    ),
}  # fmt: skip


def _beside(key: bytes) -> bytes:
    """Another one of its slot."""
    return b"{%b}" % key


def _handed(given: Given) -> set[int]:
    return {slot for first, last in given.slots for slot in range(first, last + 1)}


class Forger:
    """Changes rows that a step gives and hands over, the last of their keys, each in another way. named: these keys,
    and what is found."""

    def __init__(self) -> None:
        self.named: dict[str, str] = {}

    def __call__(self, records: Records) -> None:
        self.named, seen = {}, set[bytes]()
        changes = iter(CHANGES.items())
        for record in reversed(records):
            account = decode_outcomes(record.record) if type(record) is Completed else None
            one = account.outcomes[0] if account is not None else None
            if account is None or not isinstance(one, MoveOutcome) or one.given is None:
                continue
            rows: list[MovedRow] = []
            for row in one.given.rows:
                new = row.value is not None and row.key not in seen and slot_of(row.key) in _handed(one.given)
                name, (change, named) = next(changes, ("", (None, ""))) if new else ("", (None, ""))
                if change is not None:
                    self.named[(_beside(row.key) if name == "invented" else row.key).decode()] = named
                rows += [row] if change is None else change(row)
            seen.update(row.key for row in one.given.rows)
            one.given.rows = rows
            record.record = encode_outcomes(account)
        assert len(self.named) == len(CHANGES), "too few rows are given"


def served_by_the_source(records: Records) -> None:
    """A transaction of the shard that gave a key's slot writes the key later."""
    own, key = next(r.group for r in records if type(r) is Started), b""
    for record in records:
        account = decode_outcomes(record.record) if type(record) is Completed else None
        one = account.outcomes[0] if account is not None else None
        if isinstance(one, MoveOutcome) and one.source == own and one.given is not None and one.given.slots:
            key = next((row.key for row in one.given.rows if slot_of(row.key) in _handed(one.given)), b"") or key
        elif key and account is not None and one is not None and one.status == APPLIED:
            one.writes = (*one.writes, Write(key, b"late"))
            record.record = encode_outcomes(account)
            return


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("moved")
    assert run_seed(MANY, 14, path).moves
    return path


def judged(spark: Any, directory: Path) -> Property:
    audit = Audit(spark, directory, directory / "out")
    extraction.extract(directory, audit.out)
    audit._open()
    audit._prepare()
    moved.check_moves(audit, "")
    audit._meanwhile.close()
    for frame in audit._cached:
        frame.unpersist()
    return audit.properties[-1]


def forged(run: Path, into: Path, forgery: Forgery) -> Path:
    shutil.copytree(run, into, ignore=shutil.ignore_patterns("mark", "checkpoint-*", "out"))
    for path in into.glob("replicas/*/journal/*.seg"):
        path.write_bytes(forge(path.read_bytes(), forgery))
    return into


def killed(records: Records) -> Records:
    """A journal that was left to the operating system, of a replica that was killed and came back."""
    for record in records:
        if type(record) is Started:
            record.durability = "os"
    return restarted(records)


def test_a_crash_excuses_no_step_that_stands_in_the_journals_of_its_source(
    spark: Any, run: Path, tmp_path: Path
) -> None:
    found = judged(spark, forged(run, tmp_path / "run", killed))
    assert found.verdict == "valid" and "perhaps" not in found.note, found


def test_what_a_move_hands_over_otherwise_is_found(spark: Any, run: Path, tmp_path: Path) -> None:
    """Though a loss of power may have cost its replicas anything."""
    forger = Forger()

    def forgery(records: Records) -> Records:
        forger(records)
        return killed(records)

    found = judged(spark, forged(run, tmp_path / "run", forgery))
    assert {v.keys[0]: v.name for v in found.examples} == forger.named
    assert all(one.transactions and one.replicas for one in found.examples)


def test_a_shard_that_serves_what_it_has_given_is_found(spark: Any, run: Path, tmp_path: Path) -> None:
    found = judged(spark, forged(run, tmp_path / "run", served_by_the_source))
    assert found.examples and {one.name for one in found.examples} == {"served-elsewhere"}


def test_a_step_has_an_effect_though_it_writes_nothing(run: Path) -> None:
    """So whoever takes it twice is accused."""
    steps = {row["id"] for row in rows(run, "moves")}
    found = [row["effect"] for row in rows(run, "outcomes") if row["id"] in steps]
    assert len(found) >= len(steps) > 0 and all(found)


def test_a_last_step_of_an_earlier_release_hands_over_all_slots(spark: Any, run: Path, tmp_path: Path) -> None:
    def forgery(records: Records) -> None:
        for record in records:
            account = decode_outcomes(record.record) if type(record) is Completed else None
            one = account.outcomes[0] if account is not None else None
            if account is None or not isinstance(one, MoveOutcome) or one.given is None or not one.given.last:
                continue
            if one.given.slots == one.slots:
                one.given.slots = ()
                record.record = encode_outcomes(account)

    as_it_is = judged(spark, forged(run, tmp_path / "run", lambda records: None))
    earlier = judged(spark, forged(run, tmp_path / "earlier", forgery))
    assert (earlier.verdict, earlier.note) == ("valid", as_it_is.note) and " handed over 7 slots" in earlier.note


def test_a_move_that_was_under_way_where_the_run_is_cut_is_judged_from_there_on(
    spark: Any, run: Path, tmp_path: Path
) -> None:
    directory = forged(run, tmp_path / "run", lambda records: None)
    for path in sorted(directory.glob("replicas/*/journal")):
        found = deliveries(records_of((path / SEGMENT).read_bytes()))
        rewritten(directory, int(path.parent.name), 3 * found[-1].position // 10)
    shutil.rmtree(directory / "archive")
    (directory / "cluster.json").write_text('{"archive": "none"}')
    found = judged(spark, directory)
    assert found.verdict == "valid" and found.note.endswith(" steps handed over 1 slots, with their rows"), found


# -- steps ------------------------------------------------------------------------------------------------------------

BOTH = ((1, 2), (9, 9))


def step(number: int, source: int = 0, target: int = 1, **values: Any) -> Step:
    values = {"first": False, "last": False, "asked": BOTH, "slots": (), **values}
    return Step(bytes([number]), b"", 0, source, target, **values)


BEGIN, SOME, REST = step(1, first=True), step(2, slots=((1, 1),)), step(3, slots=((2, 2), (9, 9)), last=True)
RIGHT: dict[str, list[Step]] = {
    "a move": [BEGIN, SOME, REST],
    "in one step": [step(1, first=True, last=True, slots=BOTH)],
    "asked for what is left": [BEGIN, SOME, step(3, asked=((2, 2), (9, 9)), slots=((2, 2), (9, 9)), last=True)],
    "begun anew": [BEGIN, SOME, step(3, first=True, asked=((2, 2), (9, 9)), slots=((2, 2), (9, 9)), last=True)],
    "another move between": [BEGIN, step(2, first=True, target=2, asked=((5, 5),), slots=((5, 5),), last=True)],
    "there and back": [BEGIN, SOME, REST, step(4, 1, 0, first=True, last=True, slots=BOTH)],
    "given up": [BEGIN, SOME, step(3, first=True, asked=()), step(4, asked=(), last=True)],
    "of two sources": [BEGIN, step(2, 3, 1, first=True, asked=((7, 7),)), step(3, slots=BOTH, last=True)],
}
def test_what_a_source_does_not_account_for_leaves_the_slots_open_in_whatever_shard_they_are() -> None:
    lost = step(1, first=True, last=True, asked=((1, 3),), slots=((1, 3),))._replace(known=False)
    on = step(2, 1, 2, first=True, last=True, asked=((2, 5),), slots=((2, 5),))
    taken = Followed([lost, on], complete=True).taken
    assert [(t.first, t.last, t.closed) for t in taken] == [(1, 3, False), (2, 3, False), (4, 5, True)]


WRONG: dict[str, tuple[list[Step], str]] = {
    "without its first": ([SOME], "is not in"),
    "after its last": ([BEGIN, SOME, REST, step(4, slots=((9, 9),))], "is not in"),
    "of another move": ([BEGIN, step(2, asked=((1, 2),))], "is not in"),
    "of another target": ([BEGIN, step(2, target=2)], "is not in"),
    "slots of no move": ([BEGIN, step(2, slots=((3, 3),))], "not of"),
    "slots twice": ([BEGIN, SOME, step(3, slots=((1, 2), (9, 9)), last=True)], "has handed over"),
    "no last": ([BEGIN, SOME, REST._replace(last=False)], "called the last: False"),
    "the last too early": ([BEGIN, SOME._replace(last=True)], "called the last: True"),
    "to itself": ([step(1, 0, 0, first=True)], "its source is its target"),
    "what was given away": ([BEGIN, SOME, REST, step(4, first=True, last=True, slots=BOTH)], "what shard 1 has"),
}


@pytest.mark.parametrize("name", RIGHT)
def test_steps_that_follow_one_another(name: str) -> None:
    followed = Followed(RIGHT[name], complete=True)
    assert followed.wrong == [] and len(followed.courses) == len(RIGHT[name])
    assert [(t.first, t.last) for t in followed.taken] == [some for step in RIGHT[name] for some in step.slots]


@pytest.mark.parametrize("name", WRONG)
def test_steps_that_do_not(name: str) -> None:
    steps, why = WRONG[name]
    assert why in " ".join(wrong.why for wrong in Followed(steps, complete=True).wrong)


def test_who_does_not_know_the_beginning_accuses_nobody() -> None:
    followed = Followed([SOME, REST, BEGIN._replace(gts=b"\4", asked=((4, 4),))], complete=False)
    assert followed.wrong == [] and [t.course for t in followed.taken] == [None] * 3


@pytest.mark.parametrize("slots", [((5, 3),), ((0, 99_999),), ((3, 5), (5, 9)), ((-1, 2),), ((0, 9),) * 1000])
def test_slots_that_there_are_not_are_damage(run: Path, tmp_path: Path, slots: tuple[tuple[int, int], ...]) -> None:
    def forgery(records: Records) -> None:
        for record in records:
            account = decode_outcomes(record.record) if type(record) is Completed else None
            if account is not None and isinstance(one := account.outcomes[0], MoveOutcome) and one.given is not None:
                one.given.slots = slots
                record.record = encode_outcomes(account)

    directory = forged(run, tmp_path / "run", forgery)
    extraction.extract(directory, tmp_path / "out")
    rows = [state.rows | state.rest_rows for state in check_tables(tmp_path / "out", own=True).segments.values()]
    assert rows and all(row["damage"] and not row.get("moves") for row in rows)


def test_slots_are_those_of_the_store(spark: Any) -> None:
    keys = [b"a", b"{a}b", b"x{a}", b"{}{a}", b"{{a}}", b"}{", b"{a", b"\xc3\xa9{\xc3\xa9}", b"\n{\n}", b"\xff{\xfe}"]
    rows = spark.createDataFrame([(key,) for key in keys], "key binary").select(moves.slot_of(F.col("key")))
    assert [row[0] for row in rows.collect()] == [slot_of(key) for key in keys]
