"""One history: transactions in the order of the file, as clients saw them.

A line is a transaction: {"process": int, "type": "ok" | "fail" | "info", "invoke": int | null, "complete": int | null,
"ops": [...]}. `fail` is known to be aborted; `info` may have happened or not, and of its reads only that of a
compare-and-set (the same register is written after it) is taken for what it saw: nothing else was ever answered. A null
`invoke` means that the source gives no real time. Other fields are passed over. Operations, in program order:
["append", key, value], ["r", key, value | [...] | null], ["w", key, value], ["neq", key, value] (a failed
compare-and-set: the register did not hold that value). A key holds lists in all lines, or in none.
"""

from __future__ import annotations

import codecs
import errno
import stat
from collections.abc import Iterable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

LINE_BYTES_MAX = 16 * 1024 * 1024
OPS_MAX = 100_000
_EMPTY = "no transaction in it"
KINDS = ("r", "w", "append", "neq")


class BadHistory(ValueError):
    """One sentence: which line, which field, and what is wrong."""


def check_file(path: Path) -> None:
    """OSError if it is no file: reading a pipe might never end, and a directory says by itself why it cannot be read.
    """
    if path.is_dir():
        list(path.iterdir())
    elif not stat.S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, "it is not a file", str(path))


class Truth(Enum):
    """A truth value, which is no number: to Python, 1 is the same as True."""

    true = True
    false = False

    def __repr__(self) -> str:
        return self.name


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


class _Line(msgspec.Struct):
    process: int
    type: str
    ops: list[Any]
    invoke: int | None = None
    complete: int | None = None


_decode = msgspec.json.Decoder(_Line).decode


def parse_line(text: str | bytes, index: int) -> Transaction:
    """BadHistory names the line (from 1) and the field."""
    where = f"line {index + 1}"
    line = _decoded(text, where)
    if line.type not in ("ok", "fail", "info"):
        raise BadHistory(f"{where}, type: 'ok', 'fail' or 'info', not {line.type!r}")
    if len(line.ops) > OPS_MAX:
        raise BadHistory(f"{where}, ops: {len(line.ops)} operations; at most {OPS_MAX} are read")
    if line.invoke is not None and line.complete is not None and line.complete < line.invoke:
        raise BadHistory(f"{where}, complete: {line.complete} is before its invocation at {line.invoke}")
    ops = tuple(_op(op, f"{where}, ops[{i}]") for i, op in enumerate(line.ops))
    if line.type == "info":
        ops = seen_by_unknown(ops)
    return Transaction(index, line.process, line.type, line.invoke, line.complete, ops)


def _decoded(text: str | bytes, where: str) -> _Line:
    if len(text) > LINE_BYTES_MAX:
        raise BadHistory(f"{where}: longer than {LINE_BYTES_MAX} bytes")
    try:
        return _decode(text)
    except RecursionError:
        raise BadHistory(f"{where}: nested too deeply") from None
    except msgspec.ValidationError as error:
        raise BadHistory(f"{where}: not a transaction: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadHistory(f"{where}: {_what_instead(text)}: {error}") from None


def seen_by_unknown(ops: tuple[Op, ...]) -> tuple[Op, ...]:
    """The operations of a transaction of unknown outcome; what they read is null, unless they compared it: a read that
    is followed by a write of the same register is that of a compare-and-set."""
    written: set[Any] = set()
    seen = []
    for op in reversed(ops):
        if op.kind == "w":
            written.add(op.key)
        seen.append(op if op.kind != "r" or op.key in written else op._replace(value=None))
    return tuple(reversed(seen))


def _what_instead(text: str | bytes) -> str:
    """Of a line that is not JSON."""
    known = {b"\x1f\x8b": "compressed (gzip), not JSON", b"\x28\xb5\x2f\xfd": "compressed (zstd), not JSON"}
    known |= {b"\xff\xfe": "UTF-16, not UTF-8", b"\xfe\xff": "UTF-16, not UTF-8"}
    start = text.encode() if isinstance(text, str) else text
    return next((name for magic, name in known.items() if start.startswith(magic)), "not JSON")


def _op(op: Any, where: str) -> Op:
    if not isinstance(op, list) or len(op) != 3:
        raise BadHistory(f"{where}: an operation is [kind, key, value]")
    kind, key, value = op
    if kind not in KINDS:
        raise BadHistory(f"{where}: {kind!r} is none of {', '.join(KINDS)}")
    if not isinstance(key, int | str) or isinstance(key, bool):
        raise BadHistory(f"{where}: a key is a string or an integer, not {key!r}")
    try:
        found = as_value(value)
    except ValueError:
        raise BadHistory(f"{where}: {value!r} is no value for {kind!r}") from None
    if kind in ("append", "neq") and (found is None or isinstance(found, tuple)):
        raise BadHistory(f"{where}: {value!r} is no value for {kind!r}")
    return Op(kind, key, found)


def as_value(value: Any) -> Any:
    """What JSON says, as it stands in an `Op`. ValueError if a register or list cannot hold it."""
    if isinstance(value, list) and all(isinstance(v, int | str | float | bool) for v in value):
        return tuple(map(as_value, value))
    if isinstance(value, list | dict):
        raise ValueError(f"{value!r} is no value")
    return Truth(value) if isinstance(value, bool) else value


def _check_kinds(transactions: Iterable[Transaction]) -> None:
    """BadHistory if one key holds lists here and something else there."""
    first: dict[Any, tuple[bool, Transaction]] = {}
    for t in transactions:
        for number, op in enumerate(t.ops):
            if op.value is None:
                continue
            lists = op.kind == "append" or isinstance(op.value, tuple)
            known, at = first.setdefault(op.key, (lists, t))
            if known is not lists:
                here, there = ("a list", "a scalar") if lists else ("a scalar", "a list")
                where = f"line {t.index + 1}, ops[{number}]"
                raise BadHistory(f"{where}: {op.key!r} holds {here}, and {there} in line {at.index + 1}")


def parse(lines: Iterable[str | bytes]) -> list[Transaction]:
    """A whole history; a byte order mark before it is passed over. BadHistory also if it is empty."""
    transactions = [parse_line(text, number) for number, text in _texts(lines)]
    if not transactions:
        raise BadHistory(_EMPTY)
    _check_kinds(transactions)
    return transactions


def check_start(lines: Iterable[str | bytes]) -> None:
    """BadHistory, as of `parse`, if the lines are empty, or the first that is not is no JSON of a transaction."""
    for number, text in _texts(lines):
        _decoded(text, f"line {number + 1}")
        return
    raise BadHistory(_EMPTY)


def _texts(lines: Iterable[str | bytes]) -> Iterator[tuple[int, bytes]]:
    for number, line in enumerate(lines):
        text = line.encode() if isinstance(line, str) else line
        if text := (text.removeprefix(codecs.BOM_UTF8) if number == 0 else text).strip():
            yield number, text


def read(path: Path) -> list[Transaction]:
    """BadHistory names the file."""
    try:
        with path.open("rb") as file:
            return parse(file)
    except BadHistory as error:
        raise BadHistory(f"{path}: {error}") from None
