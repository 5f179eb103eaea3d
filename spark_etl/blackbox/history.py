"""One history: transactions in the order of the file, as clients saw them.

A line is a transaction: {"process": int, "type": "ok" | "fail" | "info", "invoke": int | null, "complete": int | null,
"ops": [...]}. `fail` is known to be aborted; `info` may have happened or not. A null `invoke` means that the source
gives no real time. Operations, in program order: ["append", key, value], ["r", key, value | [...] | null],
["w", key, value], ["neq", key, value] (a failed compare-and-set: the register did not hold that value).
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

LINE_BYTES_MAX = 16 * 1024 * 1024
OPS_MAX = 100_000
KINDS = ("r", "w", "append", "neq")


class BadHistory(ValueError):
    """One sentence: which line, which field, and what is wrong."""


class Op(NamedTuple):
    """kind: see the module. value: a scalar, a tuple for a list, None for the initial state."""

    kind: str
    key: Any
    value: Any


class Transaction(msgspec.Struct, frozen=True):
    """index: of its line, from 0. invoke, complete: positions in real time, None where the source gives none."""

    index: int
    process: int
    type: str
    invoke: int | None
    complete: int | None
    ops: tuple[Op, ...]

    @property
    def timed(self) -> bool:
        """Whether real time is known of its beginning."""
        return self.invoke is not None


class _Line(msgspec.Struct, forbid_unknown_fields=True):
    process: int
    type: str
    ops: list[Any]
    invoke: int | None = None
    complete: int | None = None


_decode = msgspec.json.Decoder(_Line).decode


def parse_line(text: str | bytes, index: int) -> Transaction:
    """BadHistory names the line (from 1) and the field."""
    where = f"line {index + 1}"
    if len(text) > LINE_BYTES_MAX:
        raise BadHistory(f"{where}: longer than {LINE_BYTES_MAX} bytes")
    try:
        line = _decode(text)
    except msgspec.ValidationError as error:
        raise BadHistory(f"{where}: not a transaction: {error}") from None
    except msgspec.DecodeError as error:
        raise BadHistory(f"{where}: not JSON: {error}") from None
    if line.type not in ("ok", "fail", "info"):
        raise BadHistory(f"{where}, type: 'ok', 'fail' or 'info', not {line.type!r}")
    if len(line.ops) > OPS_MAX:
        raise BadHistory(f"{where}, ops: {len(line.ops)} operations; at most {OPS_MAX} are read")
    if line.invoke is not None and line.complete is not None and line.complete < line.invoke:
        raise BadHistory(f"{where}, complete: {line.complete} is before its invocation at {line.invoke}")
    ops = tuple(_op(op, f"{where}, ops[{i}]") for i, op in enumerate(line.ops))
    return Transaction(index, line.process, line.type, line.invoke, line.complete, ops)


def _op(op: Any, where: str) -> Op:
    if not isinstance(op, list) or len(op) != 3:
        raise BadHistory(f"{where}: an operation is [kind, key, value]")
    kind, key, value = op
    if kind not in KINDS:
        raise BadHistory(f"{where}: {kind!r} is none of {', '.join(KINDS)}")
    if not isinstance(key, int | str):
        raise BadHistory(f"{where}: a key is a string or an integer, not {key!r}")
    if isinstance(value, list):
        if kind not in ("r", "w") or not all(isinstance(v, int | str | float | bool) for v in value):
            raise BadHistory(f"{where}: {value!r} is no value for {kind!r}")
        return Op(kind, key, tuple(value))
    if isinstance(value, dict) or (value is None and kind in ("append", "neq")):
        raise BadHistory(f"{where}: {value!r} is no value for {kind!r}")
    return Op(kind, key, value)


def parse(lines: Iterable[str | bytes]) -> list[Transaction]:
    """A whole history. BadHistory also if it is empty."""
    transactions = [parse_line(line, i) for i, line in enumerate(lines) if line.strip()]
    if not transactions:
        raise BadHistory("no transaction in it")
    return transactions


def read(path: Path) -> list[Transaction]:
    """BadHistory names the file."""
    try:
        with path.open("rb") as file:
            return parse(file)
    except BadHistory as error:
        raise BadHistory(f"{path}: {error}") from None
