"""A cluster that began with a backup: its rows count as written before the first transaction."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from kvstore.api.model import Add, Compare, Delete, Get, Operation, Put, Transaction
from kvstore.api.shard_map import ShardMap
from kvstore.core import audit
from kvstore.core.messages import Answered
from kvstore.host import LiveReplica
from multicast import records
from multicast.records import HEADER_BYTES
from spark_etl.audit.runner import PARTS, Audit
from spark_etl.ingest.journals import SegmentParser
from spark_etl.ingest.sources import SegmentFile
from spark_etl.report import Report
from tests.kvstore import backups
from tests.kvstore.live import executed
from tests.kvstore.test_backup import restored
from tests.spark_etl.runs import SEGMENT, write_mark
from workloads.history import HistoryWriter

ACCOUNTS = [b"account/%d" % number for number in range(6)]


class Clerk:
    """A client of a bank that writes a history."""

    def __init__(self, replicas: list[LiveReplica], history: HistoryWriter):
        self._replicas = replicas
        self._history = history

    async def do(self, f: str, *operations: Operation, compare: tuple[Compare, ...] = ()) -> None:
        replica = self._replicas[0]
        message_id = replica.new_message_id()
        asked = audit.asked(compare, operations)
        self._history.invoke(0, message_id, f, asked=asked)
        answer = await executed(replica, message_id, Transaction(compare, operations))
        assert isinstance(answer, Answered) and answer.result.succeeded
        result = answer.result
        found = [one.found for one in result.results if one.found is not None]
        self._history.ok(
            0, message_id, f, result.version, succeeded=True,
            reads={one.key.decode(): one.version for one in found} if f == "read_all" else None,
            value={one.key.decode(): int(one.value) for one in found} if f == "read_all" else None,
            told=audit.told(operations, result.results),
        )  # fmt: skip


async def restored_run(tmp_path: Path, replicas: int = 1) -> Path:
    """A bank whose accounts are those of a backup, and are moved and read afterwards."""
    values = {**dict.fromkeys(ACCOUNTS, b"100"), b"long": bytes(range(65, 91)) * 2, b"other": b"x"}
    backups.make_backup(tmp_path / "backup", values, shards=2)
    run = tmp_path / "run"
    made = restored(tmp_path / "backup", run, replicas=replicas)
    with HistoryWriter.create(run, "clients") as history:
        async with backups.serving(run, made) as serving:
            clerk = Clerk(serving, history)
            for source, target in pairwise(ACCOUNTS):
                await clerk.do("transfer", Add(source, -10), Add(target, 10))
                await clerk.do("read_all", *map(Get, ACCOUNTS))
            exists = Compare(b"other", "version", "==", backups.version(sorted(values).index(b"other")))
            await clerk.do("swap", Put(b"other", b"y"), compare=(exists,))
            await clerk.do("get", Get(b"long"), Get(b"other"))
            await clerk.do("delete", Delete(b"long"))
            await clerk.do("get", Get(b"long"))
    return run


def judged(spark: Any, run: Path, *parts: str) -> tuple[Report, set[str], dict[str, str]]:
    """The report, the names of violations, and what could not be certified."""
    found = Audit(spark, run, run.parent / "tables", parts=parts)
    report = found.run()
    return report, {example.name for prop in report.properties for example in prop.examples}, found.proof.why


def without(path: Path, unwanted: bytes, other: bytes | None = None) -> None:
    """The journal as if this key had not been in its base, or had had another value."""
    data = path.read_bytes()
    kept = data[:HEADER_BYTES]
    for found in records.scan(data):
        assert not isinstance(found, records.Damage)
        _, kind, body = found
        record = records.decode_body(kind, body)
        if kind == records.BASE:
            base = audit.decode_base(record.record)
            rows = [row if row.key != unwanted else row._replace(value=other or b"") for row in base.rows]
            base.rows = [row for row in rows if row.key != unwanted or other is not None]
            record = records.Base(audit.encode_base(base))
        kept += records.encode_record(record)
    path.write_bytes(kept)
    write_mark(path.parent, len(kept) - HEADER_BYTES)


async def test_what_a_backup_held_was_written_before_the_first_transaction(spark: Any, tmp_path: Path) -> None:
    run = await restored_run(tmp_path)
    report, names, doubts = judged(spark, run, *PARTS)
    assert {p.verdict for p in report.properties} == {"valid", "not applicable"}
    assert (names, doubts, report.problems) == (set(), {}, [])
    for replica in ("0", "1"):
        without(run / "replicas" / replica / "journal" / SEGMENT, b"other")
    _, names, _ = judged(spark, run, "transactions")
    assert names == {"unwritten-version"}


async def test_who_began_otherwise_than_the_others_is_named(spark: Any, tmp_path: Path) -> None:
    run = await restored_run(tmp_path, replicas=3)
    shard = ShardMap.even(range(2)).shard_of(b"other")
    one, last = (run / "replicas" / str(3 * shard + place) / "journal" / SEGMENT for place in (1, 2))
    kept = last.read_bytes()
    for path, other in ((last, None), (last, b"y"), (one, b"z")):
        without(path, b"other", other)
        report, names, doubts = judged(spark, run, *PARTS)
        assert (names, doubts) == ({"state-digest-disagreement"}, {"all": "replicas began with different rows"})
        (found,) = (one for prop in report.properties for one in prop.examples)
        assert found.replicas[0] == int(path.parts[-3]) and found.keys == ["other"] and found.evidence
        path.write_bytes(kept if path == last else path.read_bytes())
        write_mark(path.parent, path.stat().st_size - HEADER_BYTES)


@pytest.mark.parametrize("what", ["garbage", "newer"])
def test_a_base_that_is_none_is_damage(what: str) -> None:
    told = b"\x93" if what == "garbage" else audit.encode_base(audit.Base(audit.BASE_VERSION + 1, []))
    data = records.SegmentHeader(bytes(16), 0, 0, 0, 0).encode()
    data += records.encode_record(records.Started(1, 0, 0, {0: (0,)}, "white_box", "os", 1))
    data += records.encode_record(records.Base(told)) + records.encode_record(records.BatchEnd(1))
    parser = SegmentParser(SegmentFile("", SEGMENT, 0, 0, True, len(data) - HEADER_BYTES), data)
    rows = [*parser.kept(), parser.rest()]
    said = [reason for found in rows for reason in found.get("damage", {"reason": []})["reason"]]
    assert "base" in str(said[0])
