"""Small runs, made record by record with the project's own encoders, to be damaged and audited.

Two shards of three replicas (0-2 and 3-5). Keys "a..." live on shard 0, "b..." on shard 1. Transaction n is ordered at
time 1000 + 10 n, was invoked 4 before and answered 4 after. A message is a bundle of one transaction or several, or
in runs of format 1 (`single`) a transaction itself.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from kvstore.core.audit import (
    APPLIED,
    AUDIT_VERSION,
    Outcome,
    Outcomes,
    Read,
    Write,
    decode_outcomes,
    encode_outcomes,
)
from kvstore.core.bundles import version_of
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


def transaction_id(number: int) -> bytes:
    return new_message_id(1_700_000_000_000_000 + number * 1000, number + 2**32)


def gts(number: int) -> Timestamp:
    """Of message n."""
    return Timestamp(1000 + 10 * number, 1)


def single_account(message: AppMessage, account: Outcomes) -> bytes:
    """The record of format 1, of one outcome."""
    (o,) = account.outcomes
    return msgspec.msgpack.encode(
        [1, message.id, account.timestamp, o.status, o.succeeded, o.reads, o.writes, account.state_digest, o.reason,
         o.reason_key]
    )  # fmt: skip


def shard_of(key: str) -> int:
    return 0 if key.startswith("a") else 1


class Run:
    """Records per replica, and history events. `transaction` appends one in order; then change what you like."""

    def __init__(self, single: bool = False) -> None:
        self.single = single
        self.index = 0
        self.records: dict[int, list[Any]] = {}
        self.events: list[dict[str, Any]] = []
        self.state: dict[str, tuple[int, Timestamp]] = {}
        self.positions = dict.fromkeys(MEMBERS, 0)
        self.at: dict[tuple[int, int], Timestamp] = {}
        self.numbers = self.watches = 0
        for shard, replicas in MEMBERS.items():
            for replica in replicas:
                self.records[replica] = [Started(100 + replica, replica, shard, MEMBERS, "white_box", "fsync", 1)]

    def version(self, number: int, index: int = 0) -> Timestamp:
        """Of the transaction at this place in message n."""
        return gts(number) if self.single else version_of(gts(number), index)

    def id(self, number: int) -> bytes:
        """Of transaction n; in a message of its own it is the n-th, too."""
        return message_id(number) if self.single else transaction_id(number)

    def transaction(
        self,
        reads: str = "",
        writes: dict[str, int] | None = None,
        f: str = "txn",
        invoke: int | None = None,
        complete: int | None = None,
        answer: str = "ok",
        join: bool = False,
    ) -> int:
        """Order one more: `reads` are keys with spaces between them. join: in the last one's message, which has the
        same destinations. Returns its number."""
        number, writes, keys = self.numbers, writes or {}, reads.split()
        self.numbers += 1
        shards = tuple(sorted({shard_of(key) for key in [*keys, *writes]}))
        seen = {key: self.state.get(key, (0, ZERO)) for key in keys}
        self.index = self.index + 1 if join else 0
        outcomes = {
            shard: Outcome(
                self.id(number),
                APPLIED,
                True,
                tuple(Read(k.encode(), v) for k, (_, v) in seen.items() if shard_of(k) == shard),
                tuple(Write(k.encode(), b"%d" % v) for k, v in writes.items() if shard_of(k) == shard),
            )
            for shard in shards
        }
        if join:
            self._join(outcomes)
        else:
            self._deliver(number, outcomes)
        version = self.version(number - self.index, self.index)
        self._tell(number, version, f, seen, invoke, complete, answer)
        for key, value in writes.items():
            self.state[key] = (value, version)
        return number

    def again(self, number: int, status: int, shards: Sequence[int]) -> None:
        """Transaction `number` is delivered once more, in a message of its own, and that becomes of it."""
        one = self.numbers
        self.numbers += 1
        self._deliver(one, {shard: Outcome(self.id(number), status, True) for shard in shards})

    def read(
        self,
        key: str,
        shard: int,
        position: int,
        at: tuple[int, int],
        process: int = 99,
        version: Timestamp | None = None,
    ) -> None:
        """Somebody was answered by a leader, from a position of its shard's log: key at this version, or as it is."""
        version = version or self.state.get(key, (0, ZERO))[1]
        base = {"process": process, "id": str(uuid.UUID(bytes=transaction_id(500 + len(self.events)))), "f": "get"}
        asked = {"success": [["get", key]]}
        told = {"version": str(self.at.get((shard, position), ZERO)), "succeeded": True, "reads": {key: str(version)}}
        self.events.append({**base, "type": "invoke", "at_us": at[0], "asked": asked})
        self.events.append({**base, "type": "ok", "at_us": at[1], **told, "shard": shard, "position": position})

    def look(
        self,
        reads: dict[str, Timestamp | None],
        at: tuple[int, int],
        *,
        places: dict[int, int] | None = None,
        seen: Timestamp | None = None,
        consistency: str = "",
        age_us: int = 0,
        scan: tuple[list[str], Any] | None = None,
        version: Timestamp | None = None,
    ) -> None:
        """Somebody else read these keys, which stands in no journal: at places of several shards, or at one version.
        scan: by this operation, and what it was told."""
        number = 500 + len(self.events)
        base = {"process": number, "id": str(uuid.UUID(bytes=transaction_id(number))), "f": "look"}
        asked: dict[str, Any] = {"consistency": consistency, "age_us": age_us} if consistency else {}
        told = {key: str(version or ZERO) for key, version in reads.items()}
        where = {"places": places} if places else {"at": str(seen)}
        answer: dict[str, Any] = {"version": str(version or seen or ZERO), "reads": told}
        if scan is not None:
            asked["asked"], answer["told"] = {"success": [scan[0]]}, [scan[1]]
        self.events.append({**base, "type": "invoke", "at_us": at[0], **asked})
        self.events.append({**base, "type": "ok", "at_us": at[1], **answer, **where})

    def watch(
        self, *told: Timestamp | tuple[Timestamp, dict[str, int | None]], after: Timestamp | None = None,
        first: str = "", end: str = "", at_us: int = 900,
    ) -> None:  # fmt: skip
        """Somebody watched the keys first <= key < end (none: any), and was told this: of progress at this time, or a
        change later."""
        self.watches += 1
        base = {"process": 0, "type": "watch", "at_us": at_us, "id": str(uuid.UUID(int=self.watches))}
        begin = {"f": "begin", "asked": {"success": [["watch", first, end]]}}
        self.events.append(base | begin | ({"version": str(after)} if after is not None else {}))
        for one in told:
            if isinstance(one, Timestamp):
                self.events.append({**base, "f": "progress", "version": str(one)})
                continue
            version, changes = one
            said = {key: None if value is None else f"={value}" for key, value in changes.items()}
            later = {"at_us": at_us + 1000, "f": "change", "version": str(version), "told": [said]}
            self.events.append(base | later)

    def _deliver(self, number: int, outcomes: dict[int, Outcome]) -> None:
        shards = tuple(outcomes)
        message = AppMessage(message_id(number), shards, b"\x92\x01" if self.single else b"body", MEMBERS[shards[0]][0])
        self.records[message.origin].append(Submitted(message.id, shards, number))
        for shard in shards:
            self.positions[shard] += 1
            position = self.positions[shard]
            self.at[shard, position] = self.version(number)
            digest = b"digest %d" % position if position % 2 == 0 else None
            account = Outcomes(AUDIT_VERSION, gts(number), [outcomes[shard]], digest)
            record = single_account(message, account) if self.single else encode_outcomes(account)
            for replica in MEMBERS[shard]:
                self.records[replica] += [
                    Delivered(position, gts(number), FINAL, False, message, number),
                    Completed(position, record, number),
                ]

    def _join(self, outcomes: dict[int, Outcome]) -> None:
        for shard, outcome in outcomes.items():
            for replica in MEMBERS[shard]:
                self.change_account(replica, self.positions[shard], lambda a, o=outcome: a.outcomes.append(o))

    def _tell(
        self,
        number: int,
        version: Timestamp,
        f: str,
        seen: dict[str, Any],
        invoke: int | None,
        complete: int | None,
        answer: str,
    ) -> None:
        base = {"process": number, "id": str(uuid.UUID(bytes=self.id(number))), "f": f}
        began = 1000 + 10 * number - 4 if invoke is None else invoke
        ended = 1000 + 10 * number + 4 if complete is None else complete
        self.events.append({**base, "type": "invoke", "at_us": began})
        end: dict[str, Any] = {**base, "type": answer, "at_us": ended}
        if answer == "ok":
            end |= {"version": str(version), "succeeded": True, "reads": {k: str(v) for k, (_, v) in seen.items()}}
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

    def change(self, replica: int, position: int, change: Callable[[Outcome], None], index: int = 0) -> None:
        """Change a replica's account of a transaction at a position."""
        self.change_account(replica, position, lambda account: change(account.outcomes[index]))

    def change_account(self, replica: int, position: int, change: Callable[[Outcomes], None]) -> None:
        """Change a replica's account of all of them."""
        at = self.find(replica, Completed, position)
        account = decode_outcomes(self.records[replica][at].record)
        change(account)
        message = self.records[replica][self.find(replica, Delivered, position)].message
        record = single_account(message, account) if self.single else encode_outcomes(account)
        self.records[replica][at] = Completed(position, record, 0)

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


def bank_run(single: bool = False) -> Run:
    """A correct run: four accounts on two shards, transfers between them, reads of all; stopped in good order."""
    run = Run(single)
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
