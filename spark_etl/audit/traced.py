"""What the trace of a simulated run says: who had a part in which message."""

from __future__ import annotations

import time

from spark_etl.audit.case import Case
from spark_etl.checks import genuineness
from spark_etl.report import EXAMPLES, VIOLATED


def check_genuineness(case: Case) -> None:
    """From the trace of a simulated run; of a protocol that does not claim it, a number."""
    name, rows = "genuineness", case.counts.get("frames", 0)
    if not rows:
        case.check(name, None, 0, skip=genuineness.NO_TRACE)
        return
    began = time.monotonic()
    members = case.spark.createDataFrame(
        [(shard, process) for shard, members in case.inputs.shards.items() for process in members],
        "shard int, process int",
    )
    taking_part = case.keep(
        genuineness.participants(case.trace, case.messages, case.tables["submitted"], members)
    )
    strangers = case.keep(genuineness.foreign(case.trace, taking_part, members))
    row = genuineness.summary(case.trace, strangers).first()
    if row is None:
        raise AssertionError("an aggregate has one row")
    if row.damaged:
        more = f", and {row.damaged - 1} more such lines" if row.damaged > 1 else ""
        case.inputs.problems.append(f"{row.damage.file}, line {row.damage.line}: {row.damage.damage}{more}")
    if row.genuine is False:
        share = f"{row.strange:,} of {row.sent:,} ordering frames ({100 * row.strange / max(row.sent, 1):.1f} %)"
        skip = f"the protocol does not claim it: {share} involved a process that was no part of their message"
        case.check(name, None, rows, skip=skip)
        return
    prop = case.check(name, None, rows, blind=not row.whole or row.damaged > 0)
    if row.accused:
        first = strangers.orderBy("file", "line", "receiver").limit(EXAMPLES)
        prop.examples = [genuineness.accusation(one) for one in first.collect()]
        prop.violations, prop.verdict = row.accused, VIOLATED
    elif not row.whole:
        prop.note += " The trace has no end."
    else:
        prop.note = f"{row.sent:,} frames of {row.kinds} kinds went between participants only"
    prop.seconds = round(time.monotonic() - began, 3)
