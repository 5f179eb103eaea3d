"""Sentences for edges: which transaction precedes which, and what in the history says so."""

from __future__ import annotations

from spark_etl.blackbox.facts import INIT, Facts, Key, show
from spark_etl.blackbox.graphs import Edge
from spark_etl.blackbox.history import Op


def explain(edge: Edge, facts: Facts) -> str:
    """Why the source of this edge precedes its target."""
    source, target, kind, key = edge
    if kind == "realtime":
        return _in_time(facts, source, target)
    if kind == "session":
        return f"T{source} comes before T{target} in the session of process {facts.committed[source].process}"
    if kind == "ww":
        return f"T{source} wrote {key!r} before T{target} did: {_order(facts, source, target, key)}"
    if kind == "wr":
        read = _read(facts, target, key, source)
        return f"T{target} read what T{source} wrote at {key!r}: {read} shows {_write(facts, source, key)}"
    return f"T{source} read {key!r} as it was before T{target} wrote it: {_missed(facts, source, target, key)}"


def _in_time(facts: Facts, source: int, target: int) -> str:
    a, b = facts.committed[source], facts.committed[target]
    return f"T{source} completed at {a.complete}, before T{target} was invoked at {b.invoke}"


def _write(facts: Facts, writer: int, key: Key) -> str:
    """Its last one."""
    ops = [op for op in facts.committed[writer].ops if op.key == key and op.kind in ("w", "append")]
    return show(ops[-1]) if ops else f"its write of {key!r}"


def _read(facts: Facts, reader: int, key: Key, writer: int) -> str:
    """The first that saw this version; if none did, the first of this key."""
    at = min(
        (r.ordinal for r in facts.reads if r.reader == reader and r.key == key and r.writer == writer), default=None
    )
    ops = facts.committed[reader].ops
    op = ops[at] if at is not None else next((op for op in ops if op.kind == "r" and op.key == key), None)
    return show(op) if op else f"its read of {key!r}"


def _missed(facts: Facts, reader: int, writer: int, key: Key) -> str:
    if key in facts.list_keys:
        wrote = {op.value for op in facts.committed[writer].ops if op.kind == "append" and op.key == key}
        reads = [op for op in facts.committed[reader].ops if op.kind == "r" and op.key == key]
        without = next((op for op in reads if not wrote <= set(op.value or ())), None)
        return f"{show(without)} is without {_write(facts, writer, key)}" if without else "its read is without that"
    versions = [r.writer for r in facts.reads if r.reader == reader and r.key == key]
    seen = next((w for w in versions if w == INIT or (w, writer, key) in facts.ww), versions[0] if versions else INIT)
    read = _read(facts, reader, key, seen)
    if seen == INIT:
        return f"{read} is the initial version, T{writer} did {_write(facts, writer, key)}"
    return f"{read} is T{seen}'s version, and T{writer}'s is later: {_order(facts, seen, writer, key)}"


def _order(facts: Facts, first: int, second: int, key: Key) -> str:
    if key in facts.list_keys:
        return _in_list(facts, first, second, key)
    if any(r.reader == second and r.writer == first and r.key == key for r in facts.reads):
        return f"T{second} did {_read(facts, second, key, first)} and then {_write(facts, second, key)}"
    if (first, second, key) in facts.ww:
        return "so says the order of versions that was given"
    a, b = facts.committed[first], facts.committed[second]
    if a.process == b.process and first < second:
        return f"process {a.process} did it in this order"
    if a.complete is not None and b.invoke is not None and a.type == "ok" and a.complete < b.invoke:
        return _in_time(facts, first, second)
    reader = next((r.reader for r in facts.reads if r.writer == second and r.key == key and r.reader != first), None)
    if reader is None:
        return "any other order has a cycle too"
    return f"T{reader} depends on T{first}, and {_read(facts, reader, key, second)} is T{second}'s version"


def _in_list(facts: Facts, first: int, second: int, key: Key) -> str:
    mine, later = (
        [op.value for op in facts.committed[i].ops if op.kind == "append" and op.key == key] for i in (first, second)
    )
    shown: tuple[int, Op] | None = None
    for read in facts.reads:
        op = facts.committed[read.reader].ops[read.ordinal] if read.key == key else None
        if op is not None and isinstance(op.value, tuple) and set(mine) & set(op.value):
            if set(later) & set(op.value):
                return f"T{read.reader} did {show(op)}"
            if shown is None or len(op.value) > len(shown[1].value):
                shown = (read.reader, op)
    if shown is None:
        return f"no read shows {_write(facts, second, key)}"
    return f"no read shows {_write(facts, second, key)}, and T{shown[0]} did {show(shown[1])}"
