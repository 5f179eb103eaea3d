"""Reading journals and histories: what is there, what is torn, what is damaged. No Spark needed."""

from __future__ import annotations

import json
import shutil
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from kvstore.core.audit import MOVE_VERSION, Given, MovedRow, MoveOutcome, Outcome, Outcomes, encode_outcomes
from multicast.records import (
    HEADER_BYTES,
    BatchEnd,
    Completed,
    Delivered,
    DeliveredReference,
    Installed,
    Members,
    SegmentHeader,
    Started,
    Stopped,
    Submitted,
    encode_record,
)
from multicast.types import AppMessage, Timestamp
from spark_etl.ingest import histories, journals, sources
from spark_etl.ingest.inputs import Inputs, Top, behind, understand
from tests.spark_etl.runs import CLUSTER, MEMBERS, SEGMENT, bank_run, message_id, write_mark


class Row(dict[str, Any]):
    def __getattr__(self, name: str) -> Any:
        return self[name]


class Extracted(NamedTuple):
    inputs: Inputs
    rows: list[Row]

    def count(self, table: str, replica: int) -> int:
        return sum(row.table == table and row.replica == replica for row in self.rows)


def read(run: Path) -> Extracted:
    segments = sources.find_segments(run)
    rows = [
        Row(row, table=table)
        for segment in segments
        for batches in journals.parse_segment(segment, Path(segment.path).read_bytes())
        for table, batch in batches.items()
        for row in batch.to_pylist()
    ]
    return Extracted(understand(rows, {s.replica for s in segments}, {s.replica: s.mark for s in segments}), rows)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return bank_run().write(tmp_path)


def segment(run: Path, replica: int) -> Path:
    return run / "replicas" / str(replica) / "journal" / SEGMENT


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x40
    path.write_bytes(data)


def test_a_whole_run_has_no_problem(run: Path):
    found = read(run)
    assert (found.inputs.problems, found.inputs.unsure, found.inputs.crashed) == ([], [], [])
    assert found.inputs.shards == {0: [0, 1, 2], 1: [3, 4, 5]}
    assert [stop[0] for stop in found.inputs.stops] == [0, 1, 2, 3, 4, 5]
    assert found.count("deliveries", 0) == found.count("outcomes", 0) == 13


@pytest.mark.parametrize("joining", [True, False])
def test_who_was_to_be_added_and_never_was_is_no_stranger(run: Path, joining: bool):
    journal = run / "replicas" / "9" / "journal"
    journal.mkdir(parents=True)
    body = encode_record(Started(109, 9, 0, MEMBERS, "white_box", "fsync", 1)) + encode_record(BatchEnd(1))
    (journal / SEGMENT).write_bytes(SegmentHeader(CLUSTER, 0, 9, 0, 0).encode() + body if joining else b"")
    found = read(run).inputs
    said = "replicas/9/journal: no other replica of this run knows replica 9"
    assert found.problems == ([] if joining else [said]) and 9 not in found.replicas


def test_an_installed_snapshot_stands_for_deliveries(run: Path):
    """Between two lives; who has it is not behind."""
    path, before = segment(run, 1), read(run)
    started = next(
        journals.records.decode_body(kind, body)
        for _, kind, body in journals.records.scan(path.read_bytes())
        if kind == journals.records.STARTED
    )
    installed = Installed(20, Timestamp(10**9, 0), bytes(16), 0, 5)
    batch = [started, installed, Stopped(20, 20, 5), BatchEnd(1)]
    path.write_bytes(path.read_bytes() + b"".join(map(encode_record, batch)))
    after = read(run).inputs
    assert [(r, position) for r, position, _ in after.installed] == [(1, 20)]
    assert after.lives == before.inputs.lives + 1 and after.crashed == after.problems == []
    assert behind(after, {0: Top(0, 0, 20, 20), 1: Top(1, 0, 13, 13), 2: Top(2, 0, 20, 20)}) == []


def test_who_is_removed_owes_no_journal_and_who_is_added_does(run: Path):
    top = {r: Top(r, 0, 20 if r != 1 else 13, 13) for r in (0, 1, 2)}
    assert any("replica 1 " in text for text in behind(read(run).inputs, top))
    for replica in (0, 2):
        path = segment(run, replica)
        life = [Started(9, replica, 0, {0: (0, 1, 2)}, "white_box", "fsync", 5), Members({0: (0, 1, 2, 9)}, 13, 5)]
        life += [Members({0: (0, 2)}, 15, 6), Stopped(13, 13, 7), BatchEnd(1)]
        path.write_bytes(path.read_bytes() + b"".join(map(encode_record, life)))
    after = read(run).inputs
    assert after.removed_at == {1: 15, 9: 15}
    assert after.removed == [1, 9] and after.staying(0) == [0, 2] and after.shards[0] == [0, 1, 2]
    assert not after.problems and not any("replica 1 " in text for text in behind(after, top))
    shutil.rmtree(run / "replicas" / "1")
    assert read(run).inputs.shards[0] == [0, 2] and not read(run).inputs.problems
    shutil.rmtree(run / "replicas" / "2")
    assert ["replica 2" in text for text in read(run).inputs.problems] == [True]


def test_who_is_removed_by_the_word_of_few_owes_a_journal(run: Path):
    """Most of those who stay say nothing of it."""
    path = segment(run, 2)
    life = [Started(9, 2, 0, MEMBERS, "white_box", "fsync", 5), Members({**MEMBERS, 0: (0, 2)}, 13, 6)]
    path.write_bytes(path.read_bytes() + b"".join(map(encode_record, [*life, Stopped(13, 13, 7), BatchEnd(1)])))
    shutil.rmtree(run / "replicas/1")
    found = read(run).inputs
    assert found.removed == [] and found.problems == [
        "replicas/1/journal: the journal of replica 1 of shard 0 is missing"
    ]


def test_a_shard_that_not_all_knew_at_first_was_added(run: Path):
    assert read(run).inputs.added == []
    path = segment(run, 0)
    life = [Started(9, 0, 0, {**MEMBERS, 2: (6,)}, "white_box", "fsync", 5), Stopped(13, 13, 7), BatchEnd(1)]
    path.write_bytes(path.read_bytes() + b"".join(map(encode_record, life)))
    assert read(run).inputs.added == [2]


def test_an_unfinished_batch_beyond_the_mark_is_ignored(run: Path):
    path, whole = segment(run, 1), read(run)
    path.write_bytes(path.read_bytes() + encode_record(BatchEnd(9))[:5])
    torn = read(run)
    assert torn.inputs.problems == [] and len(torn.inputs.unfinished) == 1
    assert torn.count("deliveries", 1) == whole.count("deliveries", 1)


def test_zeros_behind_the_last_batch_are_room_that_was_made(run: Path):
    path, whole = segment(run, 1), read(run)
    path.write_bytes(path.read_bytes() + bytes(5000))
    roomy = read(run)
    assert (roomy.inputs.problems, roomy.inputs.unfinished, roomy.inputs.unsure) == ([], [], [])
    assert roomy.count("deliveries", 1) == whole.count("deliveries", 1)


def test_zeros_in_place_of_what_a_replica_vouched_for_are_damage(run: Path):
    path = segment(run, 1)
    data = path.read_bytes()
    end = next(at for at, kind, _ in journals.records.scan(data) if kind == journals.records.BATCH_END)
    keep = end + len(encode_record(BatchEnd(0)))
    path.write_bytes(data[:keep] + bytes(len(data) - keep))
    inputs = read(run).inputs
    assert inputs.unsure == [1]
    assert f"byte {keep}: impossible record length 0" in inputs.problems[0]


def test_a_delivery_without_its_payload_says_what_one_with_it_does(run: Path):
    segments = sources.find_segments(run)

    def deliveries(data: bytes) -> list[dict[str, Any]]:
        batches = journals.parse_segment(segments[0], data)
        rows = [row for found in batches if "deliveries" in found for row in found["deliveries"].to_pylist()]
        return [{name: value for name, value in row.items() if name != "offset"} for row in rows]

    data = Path(segments[0].path).read_bytes()
    body = b""
    for found in journals.records.scan(data):
        record = journals.records.decode_body(found[1], found[2])
        if type(record) is Delivered:
            m = record.message
            record = DeliveredReference(
                record.position, record.timestamp, record.stage, record.expired, m.id, m.destinations, m.origin, 17,
                len(m.payload), zlib.crc32(m.payload), record.at, record.installed_from,
            )  # fmt: skip
        body += encode_record(record)
    assert deliveries(data[:HEADER_BYTES] + body) == deliveries(data) != []


def test_a_journal_cut_below_its_mark_is_damaged(run: Path):
    path = segment(run, 1)
    path.write_bytes(path.read_bytes()[:-40])
    inputs = read(run).inputs
    assert inputs.unsure == [1]
    assert inputs.problems[0].startswith(f"replicas/1/journal/{SEGMENT}, byte ")


def test_a_journal_cut_between_batches_is_damaged_too(run: Path):
    """Nothing in the file itself says that something is missing; the mark does."""
    path = segment(run, 1)
    data = path.read_bytes()
    ends = [at for at, kind, _ in journals.records.scan(data) if kind == journals.records.BATCH_END]
    size = ends[-2] + len(encode_record(BatchEnd(30)))
    path.write_bytes(data[:size])
    inputs = read(run).inputs
    assert inputs.unsure == [1]
    assert inputs.holed == []
    assert f"byte {size}: the journal ends" in inputs.problems[0] and "vouched" in inputs.problems[0]


def test_without_a_mark_a_cut_journal_is_that_of_a_killed_replica(run: Path):
    path = segment(run, 1)
    path.write_bytes(path.read_bytes()[:-40])
    (path.parent / "mark").unlink()
    inputs = read(run).inputs
    assert (inputs.problems, inputs.crashed) == ([], [1])


@pytest.mark.parametrize("mark", [True, False])
def test_a_flipped_byte_is_named_and_the_rest_is_read(run: Path, mark: bool):
    path = segment(run, 4)
    data = path.read_bytes()
    at = [at for at, kind, _ in journals.records.scan(data) if kind == journals.records.DELIVERED][3]
    flip(path, at + 20)
    if not mark:
        (path.parent / "mark").unlink()
    found = read(run)
    assert found.inputs.problems == [f"replicas/4/journal/{SEGMENT}, byte {at}: a record's checksum does not match"]
    assert found.inputs.unsure == found.inputs.holed == [4]
    assert found.count("deliveries", 4) == found.count("deliveries", 3) - 1


def test_a_damaged_header_is_named(run: Path):
    flip(segment(run, 2), 12)
    inputs = read(run).inputs
    assert inputs.unsure == [2] and f"replicas/2/journal/{SEGMENT}, byte 0" in inputs.problems[0]


def test_a_missing_replica_is_named(run: Path):
    segment(run, 5).unlink()
    inputs = read(run).inputs
    assert inputs.unsure == [5]
    assert inputs.problems == ["replicas/5/journal: the journal of replica 5 of shard 1 is missing"]


def test_a_journal_of_another_replica_is_named(run: Path):
    segment(run, 1).write_bytes(segment(run, 0).read_bytes())
    assert "says that it is segment 0 of replica 0" in read(run).inputs.problems[0]


def test_a_journal_of_another_cluster_is_named(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tests.spark_etl.runs.CLUSTER", b"x" * 16)
    other = bank_run().write(tmp_path / "other")
    segment(run, 1).write_bytes(segment(other, 1).read_bytes())
    inputs = read(run).inputs
    assert inputs.unsure == [1] and "another cluster" in inputs.problems[0]


def test_a_newer_format_is_refused_in_a_sentence(run: Path):
    path = segment(run, 0)
    data = bytearray(path.read_bytes())
    data[9] = 99
    path.write_bytes(data)
    assert "newer" in read(run).inputs.problems[0]


def test_a_missing_segment_is_named(run: Path):
    path = segment(run, 0)
    path.rename(path.with_name("journal-00000001.seg"))
    assert read(run).inputs.problems


def test_a_step_of_a_move_is_the_same_in_both_shards_if_both_say_what_was_handed_over():
    def step(row: MovedRow | None) -> bytes:
        given = Given([row], [], b"", b"", True, True, slots=((0, 5),)) if row is not None else None
        outcome = MoveOutcome(message_id(1), 1, True, source=0, target=1, slots=((0, 5),), given=given)
        record = Completed(1, encode_outcomes(Outcomes(MOVE_VERSION, Timestamp(5, 0), [outcome])), 1)
        rows = journals._Rows()
        journals._add_record(rows, (0, 0, 0, 0), record)
        (table,) = [batch.to_pylist() for name, batch in rows.take().items() if name == "outcomes"]
        return bytes(table[0]["bundle"])

    row = MovedRow(b"a", Timestamp(1, 0), b"1")
    assert step(row) == step(row)
    assert step(row) != step(None) and step(row)[8:] == step(None)[8:], "a late copy of it hands over nothing"
    others = MovedRow(b"a", Timestamp(2, 0), b"1"), MovedRow(b"a", Timestamp(1, 0), None)
    assert len({step(one) for one in (row, *others)}) == 3


def test_rows_are_cut_into_batches(run: Path, monkeypatch: pytest.MonkeyPatch):
    whole = read(run).rows
    monkeypatch.setattr(journals, "BATCH_ROWS", 10)
    assert sorted(map(str, read(run).rows)) == sorted(map(str, whole))


def test_a_line_that_is_no_event_is_damage_and_an_unfinished_last_one_is_not():
    good = b'{"process":0,"type":"invoke","at_us":1,"id":"018bcfe5-6800-7000-8000-000000000000"}\n'
    bad = b'{"process":0,"type":"perhaps","at_us":1,"id":"018bcfe5-6800-7000-8000-000000000000"}\n'
    lines = good + bad + b"{\n" + b'{"proc'
    rows = [row for found in histories.parse_history("h", lines) for row in found["history"].to_pylist()]
    assert [row["line"] for row in rows] == [1, 2, 3]
    assert rows[0]["damage"] is None and "perhaps" in rows[1]["damage"] and rows[2]["damage"]


def test_a_mark_that_does_not_check_is_unknown(run: Path):
    path = segment(run, 0).parent
    write_mark(path, 10**9)
    assert read(run).inputs.unsure == [0]
    (path / "mark").write_bytes(b"\0" * 12)
    assert read(run).inputs.unsure == []


def test_positions_in_the_file_are_those_of_the_records(run: Path):
    found = read(run)
    data = segment(run, 3).read_bytes()
    for row in found.rows:
        if row.table == "deliveries" and row.replica == 3:
            at = HEADER_BYTES + row.offset
            scanned = next(journals.records.scan(data, at))
            record = journals.records.decode_body(scanned[1], scanned[2])
            assert type(record) is Delivered and record.position == row.position


def test_who_has_an_empty_journal_was_killed_before_it_said_anything(run: Path):
    """So is a replica that lost its disk, and was killed while it began anew."""
    segment(run, 2).write_bytes(segment(run, 2).read_bytes()[:HEADER_BYTES])
    write_mark(segment(run, 2).parent, 0)
    inputs = read(run).inputs
    assert inputs.problems == [] and inputs.crashed == inputs.down == [2]


@pytest.mark.parametrize("keep", [0, 10])
@pytest.mark.parametrize("zeros", [False, True])
def test_a_segment_that_lost_everything_it_vouched_for_is_damage(run: Path, keep: int, zeros: bool):
    path = segment(run, 2)
    data = path.read_bytes()
    path.write_bytes(data[:keep] + (bytes(len(data) - keep) if zeros else b""))
    inputs = read(run).inputs
    assert inputs.unsure == [2] and len(inputs.problems) == 1
    assert inputs.problems[0].startswith("replicas/2/journal")


def test_a_header_of_zeros_before_records_is_damage(run: Path):
    path = segment(run, 2)
    path.write_bytes(bytes(HEADER_BYTES) + path.read_bytes()[HEADER_BYTES:])
    (path.parent / "mark").unlink()
    assert read(run).inputs.problems == [f"replicas/2/journal/{SEGMENT}, byte 0: not a journal segment"]


def test_a_directory_that_is_no_replicas_number_is_passed_over(run: Path):
    (run / "replicas/0").rename(run / "replicas/00")
    assert read(run).inputs.problems == ["replicas/0/journal: the journal of replica 0 of shard 0 is missing"]


def test_a_forgers_numbers_are_damage_of_that_record(run: Path):
    """They fit into a record, whose checksum is right, and into no column, or the difference of two does not."""
    path = segment(run, 3)
    message = AppMessage(message_id(99), (1,), b"", 3)
    record = Delivered(9, Timestamp(9, 9), 0, False, message, 9)
    outcomes = Completed(9, encode_outcomes(Outcomes(2, Timestamp(-9, 0), [Outcome(message.id, 1, True)])), 9)
    nothing = Completed(9, encode_outcomes(Outcomes(2, Timestamp(9, 0), [])), 9)
    forged: list[Any] = [
        msgspec.structs.replace(record, at=2**62),
        msgspec.structs.replace(record, position=2**63),
        msgspec.structs.replace(record, position=-(2**62) - 1),
        msgspec.structs.replace(record, timestamp=Timestamp(-1, 0)),
        msgspec.structs.replace(record, message=msgspec.structs.replace(message, destinations=(2**31,))),
        msgspec.structs.replace(record, message=msgspec.structs.replace(message, id=b"short")),
        Submitted(message.id, (2**40,), 1),
        outcomes,
        nothing,
        Stopped(2**62, 0, 0),
        Started(1, 3, 1, {1: (2**31,)}, "white_box", "fsync", 1),
    ]
    data = path.read_bytes()
    whole = read(run)
    body = b"".join(map(encode_record, [*forged, BatchEnd(99)]))
    path.write_bytes(data + body)
    write_mark(path.parent, len(data + body) - HEADER_BYTES)
    found = read(run)
    assert len(found.inputs.problems) == len(forged) and found.inputs.unsure == [3]
    assert all(problem.startswith(f"replicas/3/journal/{SEGMENT}, byte ") for problem in found.inputs.problems)
    for table in ("deliveries", "outcomes", "submitted", "lives"):
        assert found.count(table, 3) == whole.count(table, 3)


@pytest.mark.parametrize(
    "change",
    [{"at_us": 2**63}, {"at_us": -(2**62) - 1}, {"age_us": 2**62}, {"position": 2**62}, {"places": {"0": 2**62}},
     {"type": "watch", "f": "progress", "at_us": 2**62},
     {"process": -(2**63) - 1}, {"value": {"a": 2**63}}, {"id": "no"}, {"version": "-1-1"},
     {"version": "1--1"}, {"at": "1--1"}, {"at": "7-1", "version": "7-2"},
     {"consistency": "strong"}],
)
def test_an_event_that_no_column_holds_is_damage_of_its_line(change: dict[str, Any]):
    event = {"process": 0, "type": "ok", "at_us": 1, "id": "018bcfe5-6800-7000-8000-000000000000"}
    lines = msgspec.json.encode(event) + b"\n" + json.dumps(event | change).encode() + b"\n"
    rows = [row for found in histories.parse_history("h", lines) for row in found["history"].to_pylist()]
    assert [row["damage"] is None for row in rows] == [True, False]


@pytest.mark.parametrize("told", [None, [], ["=1"], [{"a": "=1"}, {"b": "=2"}]])
def test_a_change_of_no_keys_or_of_several_lists_of_them_is_damage_of_its_line(told: Any):
    event = {"process": 0, "type": "watch", "at_us": 1, "id": "018bcfe5-6800-7000-8000-000000000000", "f": "change"}
    line = json.dumps(event | {"version": "1-1", "told": told}) + "\n"
    (found,) = histories.parse_history("h", line.encode())
    assert [row["damage"] for row in found["history"].to_pylist()] == ["a change is of a version, and tells of keys"]


@pytest.mark.parametrize(
    "words",
    [[], ["count"], ["range", "a", "b", 7], ["keys", {"success": []}], ["get", 5], ["put", "a"], ["add", "a", "=1"],
     ["txn", "a"], ["txn", {"success": [["range"]]}], ["none_newer", "a"], ["none_newer", "a", "b"]],
)  # fmt: skip
def test_words_that_are_no_operation_are_damage_of_their_line(words: list[Any]):
    event = {"process": 0, "type": "invoke", "at_us": 1, "id": "018bcfe5-6800-7000-8000-000000000000"}
    asked = [[["get", "a"], words], [["get", "a"], ["a kind of the future"]]]
    lines = [json.dumps(event | {"asked": {"failure": each}}) + "\n" for each in asked]
    lines.append(json.dumps(event | {"asked": {"compare": [["a", "value", "=="]]}}) + "\n")
    found = histories.parse_history("h", "".join(lines).encode())
    wrong, right, compared = [row["damage"] for rows in found for row in rows["history"].to_pylist()]
    assert right is None and wrong.startswith("asked: ") and compared.startswith("asked.compare: ")


@pytest.mark.parametrize(("said", "kept"), [("linearizable", None), ("stale", "stale")])
def test_a_read_that_calls_itself_linearizable_is_as_good_as_one_that_says_nothing(said: str, kept: str | None):
    """Else it would have promised nothing."""
    event = {"process": 0, "type": "invoke", "at_us": 1, "id": "018bcfe5-6800-7000-8000-000000000000"}
    line = json.dumps({**event, "consistency": said, "age_us": 5}).encode() + b"\n"
    (row,) = (row for found in histories.parse_history("h", line) for row in found["history"].to_pylist())
    assert (row["damage"], row["consistency"], row["age_us"]) == (None, kept, kept and 5)


def test_a_line_nested_too_deeply_is_damage_of_its_line():
    (found,) = histories.parse_history("h", b'{"x":' + b"[" * 10**6 + b"\n")
    assert found["history"].to_pylist()[0]["damage"] == "it is nested too deeply"
