"""Checkpoints: with the journal's rest they are the whole journal, whenever they were made and whatever crashed."""

from __future__ import annotations

import errno
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multicast import records
from multicast.checkpoint import Checkpoint, Checkpoints
from multicast.engine import Engine
from multicast.journal import Journal
from multicast.records import JournalError, encode_record
from multicast.simulation.disk import SimulatedDisk
from multicast.types import FINAL, AppMessage, Timestamp, Topology, new_message_id
from tests.multicast.scripted import Keeper, Scripted

NOW = 1_700_000_000_000_000
TOPOLOGY = Topology({0: (0, 1, 2)})
KEYS = [b"a", b"b", b"c"]


def opened(disk: SimulatedDisk, segment_bytes_max: int = 400) -> Journal:
    return Journal(disk, b"c" * 16, 0, 0, segment_bytes_max)


def delivery(position: int) -> records.Delivered:
    message = AppMessage(new_message_id(NOW, position), (0,), b"m%d" % position, 0)
    return records.Delivered(position, Timestamp(position, 0), FINAL, False, message, NOW)


def append(journal: Journal, *written: Any) -> None:
    journal.append(b"".join(map(encode_record, [*written, records.BatchEnd(1)])))


def found(journal: Journal, position: int) -> tuple[dict[bytes, bytes], list[int]]:
    """What a start finds: the saved values, and the deliveries after `position`."""
    values: dict[bytes, bytes] = {}
    positions: list[int] = []
    for _, record in Checkpoints(journal).latest().recovery(journal, position):
        if isinstance(record, records.Put):
            values[record.key] = record.value
        elif isinstance(record, records.Delete):
            values.pop(record.key, None)
        elif isinstance(record, records.Delivered) and record.position > position:
            positions.append(record.position)
    return values, positions


saved = st.one_of(
    st.builds(records.Put, st.sampled_from(KEYS), st.binary(max_size=3)),
    st.builds(records.Delete, st.sampled_from(KEYS)),
)
steps = st.one_of(
    st.lists(saved, min_size=1, max_size=4),
    st.sampled_from(["deliver", "checkpoint", "unfinished", "lose power", "reopen"]),
)


@given(st.lists(steps, max_size=30), st.integers(0, 20), st.randoms(use_true_random=False))
def test_a_checkpoint_and_the_journal_behind_it_are_the_whole_journal(
    plan: list[Any], held: int, rng: random.Random
) -> None:
    disk = SimulatedDisk()
    journal, values, deliveries = opened(disk), dict[bytes, bytes](), 0
    for step in plan:
        if isinstance(step, list):
            append(journal, *step)
            for record in step:
                if isinstance(record, records.Put):
                    values[record.key] = record.value
                else:
                    values.pop(record.key, None)
        elif step == "deliver":
            deliveries += 1
            append(journal, delivery(deliveries))
        journal.sync()
        if step == "checkpoint":
            assert Checkpoints(journal).advance().values == values
        elif step == "unfinished":
            disk.failing = True
            with pytest.raises(OSError, match="the disk fails"):
                Checkpoints(journal).advance()
            disk.failing = False
        if step in ("lose power", "reopen"):
            disk.crash(rng, power=step == "lose power")
            journal = opened(disk)
    held = min(held, deliveries)
    assert found(journal, held) == (values, list(range(held + 1, deliveries + 1)))


def test_what_is_not_synced_is_not_in_it() -> None:
    journal = opened(SimulatedDisk())
    append(journal, records.Put(b"a", b"1"))
    journal.sync()
    append(journal, records.Put(b"a", b"2"))
    assert Checkpoints(journal).advance().values == {b"a": b"1"}
    journal.sync()
    assert Checkpoints(journal).advance().values == {b"a": b"2"}


def test_a_start_reads_the_rest_of_the_journal_only() -> None:
    journal = opened(SimulatedDisk(), 4000)
    for number in range(1, 2001):
        append(journal, records.Put(b"last", b"%d" % number), delivery(number))
    journal.sync()
    checkpoint = Checkpoints(journal).advance()
    append(journal, records.Put(b"last", b"later"), delivery(2001))
    assert checkpoint.offset > 100_000
    rest = [record for _, record in Checkpoints(journal).latest().recovery(journal, 2000)]
    assert len(rest) < 2_000, "of 6,000: deliveries are found to 64 KiB"
    values, positions = found(journal, 2000)
    assert (values, positions) == ({b"last": b"later"}, [2001])


def test_checkpoints_cost_a_fixed_multiple_of_what_is_written() -> None:
    small, large = Checkpoint({}, 1000, 10, "checkpoint-0"), Checkpoint({}, 1000, 1 << 30, "checkpoint-0")
    assert small.next_offset == 1000 + (16 << 20)
    assert large.next_offset == 1000 + (2 << 30)


def test_a_checkpoint_of_more_than_the_journal_holds_is_refused() -> None:
    disk = SimulatedDisk()
    journal = opened(disk, 1 << 20)
    append(journal, records.Put(b"a", b"1"))
    journal.sync()
    before = journal.end
    append(journal, records.Put(b"a", b"2"))
    journal.sync()
    Checkpoints(journal).advance()
    name = "journal-00000000.seg"
    disk.truncate(name, disk.size(name) - (journal.end - before))
    disk.truncate("mark", 0)
    journal = opened(disk, 1 << 20)
    with pytest.raises(JournalError, match="before checkpoint-0's"):
        Checkpoints(journal).latest()


@pytest.mark.parametrize(
    ("cluster", "process", "text"),
    [(b"d" * 16, 0, "belongs to cluster"), (b"c" * 16, 1, "belongs to process 1 of group 0, not to process 0")],
)
def test_the_checkpoint_of_another_process_is_refused(cluster: bytes, process: int, text: str) -> None:
    disk, foreign = SimulatedDisk(), SimulatedDisk()
    for one, journal in ((disk, opened(disk)), (foreign, Journal(foreign, cluster, 0, process))):
        append(journal, records.Put(b"promised", b"by process %d" % process))
        journal.sync()
        if one is foreign:
            Checkpoints(journal).advance()
    disk.append("checkpoint-0", foreign.read("checkpoint-0"))
    with pytest.raises(JournalError, match=f"checkpoint-0 {text}"):
        Checkpoints(opened(disk)).latest()


def start(journal: Journal, held: int) -> tuple[Engine, Keeper]:
    keeper = Keeper()
    keeper.position = held
    engine = Engine(Scripted(0, TOPOLOGY), keeper, 2)
    engine.recover(Checkpoints(journal).latest().recovery(journal, held), NOW)
    return engine, keeper


@pytest.mark.parametrize("held", [0, 1, 3])
def test_an_application_gets_what_follows_what_it_holds(held: int) -> None:
    journal = opened(SimulatedDisk())
    append(journal, records.Put(b"last", b"x"), delivery(1), delivery(2))
    append(journal, records.Completed(1, b"one", NOW), records.Completed(2, b"two", NOW))
    journal.sync()
    Checkpoints(journal).advance()
    append(journal, delivery(3))
    engine, keeper = start(journal, held)
    assert [(p, outcome) for p, _, outcome in keeper.delivered] == [(1, b"one"), (2, b"two"), (3, None)][held:]
    assert (engine.position, engine.completed) == (3, 3)
    assert isinstance(engine.protocol, Scripted) and engine.protocol.saved is not None
    assert (engine.protocol.saved.values, engine.protocol.saved.first) == ({b"last": b"x"}, False)


def test_an_application_that_holds_more_than_the_journal_is_refused() -> None:
    journal = opened(SimulatedDisk())
    append(journal, delivery(1))
    with pytest.raises(JournalError, match="ends at delivery 1, and the application holds 2"):
        start(journal, 2)


def test_a_journal_that_begins_after_what_stands_for_its_beginning_is_refused() -> None:
    journal = opened(SimulatedDisk(), 100)
    append(journal, records.Started(1, 0, 0, {}, "p", "fsync", NOW), records.Put(b"last", b"x"))
    for position in range(1, 9):
        append(journal, delivery(position))
    journal.sync()
    Checkpoints(journal).advance()
    journal.seal()
    journal.drop(4, journal.end)
    start(journal, journal.floor)
    with pytest.raises(JournalError, match=f"only deliveries after {journal.floor}, and the application no more than"):
        start(journal, journal.floor - 1)
    with pytest.raises(JournalError, match="the journal ends at delivery 8, and the application holds 9"):
        start(journal, 9)
    for name in ("checkpoint-0", "checkpoint-1"):
        if name in journal.disk.list():
            journal.disk.truncate(name, 5)
    with pytest.raises(JournalError, match=f"neither of checkpoint-0 and .* dropped .* at offset {journal.begin}"):
        start(journal, journal.floor)


def test_one_that_could_not_be_synced_does_not_count_though_it_can_be_read() -> None:
    """So the one before is not overwritten, however often it is tried."""
    disk = SimulatedDisk()
    journal = opened(disk)
    append(journal, records.Put(b"a", b"1"))
    journal.sync()
    checkpoints = Checkpoints(journal)
    good = checkpoints.advance().offset
    append(journal, records.Put(b"a", b"2"))
    journal.sync()
    disk.failing = True
    for _ in range(2):
        with pytest.raises(OSError, match="the disk fails"):
            checkpoints.advance()
    assert checkpoints.latest().offset == good
    disk.crash(random.Random(1), power=True, keeps=False)
    assert Checkpoints(opened(disk)).latest().offset == good


def test_one_for_which_there_is_no_room_takes_none(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SimulatedDisk()
    journal = opened(disk)
    append(journal, records.Put(b"a", b"1"))
    journal.sync()
    append_whole, checkpoints = disk.append, Checkpoints(journal)

    def append_half(name: str, data: bytes) -> None:
        append_whole(name, data[: len(data) // 2])
        raise OSError(errno.ENOSPC, "no room")

    monkeypatch.setattr(disk, "append", append_half)
    with pytest.raises(OSError, match="no room"):
        checkpoints.advance()
    assert disk.size("checkpoint-0") == 0
    monkeypatch.setattr(disk, "append", append_whole)
    assert checkpoints.advance().values == {b"a": b"1"}
