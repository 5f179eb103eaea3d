"""Small runs, made record by record with the project's own encoders, to be damaged and audited.

Two shards of three replicas (0-2 and 3-5). Keys "a..." live on shard 0, "b..." on shard 1. Transaction n is ordered at
time 1000 + 10 n, was invoked 4 before and answered 4 after.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kvstore.core.audit import APPLIED, AUDIT_VERSION, Outcome, Read, Write, encode_outcome
from multicast.records import (
    BatchEnd,
    Completed,
    Delivered,
    SegmentHeader,
    Started,
    Stopped,
    Submitted,
    encode_record,
)
from multicast.types import FINAL, ZERO, AppMessage, Timestamp, new_message_id

MEMBERS = {0: (0, 1, 2), 1: (3, 4, 5)}
CLUSTER = b"c" * 16
SEGMENT = "journal-00000000.seg"


def message_id(number: int) -> bytes:
    return new_message_id(1_700_000_000_000_000 + number * 1000, number)


def gts(number: int) -> Timestamp:
    return Timestamp(1000 + 10 * number, 1)


def shard_of(key: str) -> int:
    return 0 if key.startswith("a") else 1


class Run:
    """Records per replica, and history events. `transaction` appends one in order; then change what you like."""

    def __init__(self) -> None:
        self.records: dict[int, list[Any]] = {}
        self.events: list[dict[str, Any]] = []
        self.state: dict[str, tuple[int, Timestamp]] = {}
        self.positions = dict.fromkeys(MEMBERS, 0)
        self.numbers = 0
        for shard, replicas in MEMBERS.items():
            for replica in replicas:
                self.records[replica] = [Started(100 + replica, replica, shard, MEMBERS, "white_box", "fsync", 1)]

    def transaction(
        self,
        reads: str = "",
        writes: dict[str, int] | None = None,
        f: str = "txn",
        invoke: int | None = None,
        complete: int | None = None,
        answer: str = "ok",
    ) -> int:
        """Order one more: `reads` are keys with spaces between them. Returns its number."""
        number, writes, keys = self.numbers, writes or {}, reads.split()
        self.numbers += 1
        shards = tuple(sorted({shard_of(key) for key in [*keys, *writes]}))
        seen = {key: self.state.get(key, (0, ZERO)) for key in keys}
        message = AppMessage(message_id(number), shards, b"body", MEMBERS[shards[0]][0])
        self.records[message.origin].append(Submitted(message.id, shards, number))
        for shard in shards:
            self.positions[shard] += 1
            position = self.positions[shard]
            outcome = Outcome(
                AUDIT_VERSION,
                message.id,
                gts(number),
                APPLIED,
                True,
                tuple(Read(k.encode(), v) for k, (_, v) in seen.items() if shard_of(k) == shard),
                tuple(Write(k.encode(), b"%d" % v) for k, v in writes.items() if shard_of(k) == shard),
                b"digest %d" % position if position % 2 == 0 else None,
            )
            for replica in MEMBERS[shard]:
                self.records[replica] += [
                    Delivered(position, gts(number), FINAL, False, message, number),
                    Completed(position, encode_outcome(outcome), number),
                ]
        for key, value in writes.items():
            self.state[key] = (value, gts(number))
        self._tell(number, f, seen, invoke, complete, answer)
        return number

    def _tell(
        self, number: int, f: str, seen: dict[str, Any], invoke: int | None, complete: int | None, answer: str
    ) -> None:
        base = {"process": number, "id": str(uuid.UUID(bytes=message_id(number))), "f": f}
        began = 1000 + 10 * number - 4 if invoke is None else invoke
        ended = 1000 + 10 * number + 4 if complete is None else complete
        self.events.append({**base, "type": "invoke", "at_us": began})
        end: dict[str, Any] = {**base, "type": answer, "at_us": ended}
        if answer == "ok":
            end |= {"version": str(gts(number)), "succeeded": True, "reads": {k: str(v) for k, (_, v) in seen.items()}}
            if f == "read_all":
                end["value"] = {k: v for k, (v, _) in seen.items()}
        self.events.append(end)

    def stop(self) -> None:
        """Every replica stops in good order."""
        for shard, replicas in MEMBERS.items():
            for replica in replicas:
                self.records[replica].append(Stopped(self.positions[shard], self.positions[shard], 9))

    def find(self, replica: int, kind: type, position: int) -> int:
        """Where in a replica's records that of this kind and position stands."""
        return next(i for i, r in enumerate(self.records[replica]) if type(r) is kind and r.position == position)

    def change(self, replica: int, position: int, change: Callable[[Outcome], None]) -> None:
        """Change a replica's account of the transaction at a position."""
        from kvstore.core.audit import decode_outcome

        at = self.find(replica, Completed, position)
        outcome = decode_outcome(self.records[replica][at].record)
        change(outcome)
        self.records[replica][at] = Completed(position, encode_outcome(outcome), 0)

    def write(self, directory: Path, history: bool = True, mark: bool = True) -> Path:
        """The run directory, three records to a batch."""
        for replica, records in self.records.items():
            shard = next(s for s, members in MEMBERS.items() if replica in members)
            body = b""
            for at in range(0, len(records), 3):
                body += b"".join(map(encode_record, records[at : at + 3])) + encode_record(BatchEnd(at))
            journal = directory / "replicas" / str(replica) / "journal"
            journal.mkdir(parents=True)
            (journal / SEGMENT).write_bytes(SegmentHeader(CLUSTER, shard, replica, 0, 0).encode() + body)
            if mark:
                write_mark(journal, len(body))
        if history:
            (directory / "history").mkdir()
            lines = "".join(json.dumps(event) + "\n" for event in self.events)
            (directory / "history" / "clients.jsonl").write_text(lines)
        return directory


def write_mark(journal: Path, offset: int) -> None:
    import zlib

    data = offset.to_bytes(8, "big")
    (journal / "mark").write_bytes(data + zlib.crc32(data).to_bytes(4, "big"))


def bank_run() -> Run:
    """A correct run: four accounts on two shards, transfers between them, reads of all; stopped in good order."""
    run = Run()
    run.transaction(writes={"a1": 100, "a2": 100, "b1": 100, "b2": 100}, f="open")
    everything = "a1 a2 b1 b2"
    for number in range(4):
        source, target = ("a1", "b1") if number % 2 else ("b2", "a2")
        money = run.state[source][0] - 10, run.state[target][0] + 10
        run.transaction(f"{source} {target}", {source: money[0], target: money[1]}, f="transfer")
        run.transaction("a1", {"a1": run.state["a1"][0]}, f="touch")
        run.transaction(everything, f="read_all")
    run.stop()
    return run
