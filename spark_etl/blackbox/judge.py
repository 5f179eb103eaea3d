"""The judgement of one history: anomalies, a verdict per consistency model, linearizability per key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from spark_etl.blackbox import cycles, linearize
from spark_etl.blackbox.history import Transaction
from spark_etl.blackbox.models import HOLDS, MODELS, UNDETERMINED, VIOLATED, Judge, Limits, Verdict, weaker
from spark_etl.blackbox.resolve import Anomaly, Key, resolve

STRICT = "strong-serializable"
LINEARIZABLE = "linearizable"
"""Every key by itself."""


class Judgement(msgspec.Struct, kw_only=True):
    """transactions: in the history. models: name -> verdict, from weak to strong, and `linearizable`. strongest: those
    that hold and are implied by no other that holds."""

    transactions: int
    anomalies: list[Anomaly]
    models: dict[str, Verdict]
    strongest: list[str]

    @property
    def exit_code(self) -> int:
        """Of the whole: 1 if strict serializability (or, without real time, the strongest that could be asked) is
        violated, 2 if it is not determined, 0 if it holds."""
        asked = self.models[STRICT]
        if asked.verdict == UNDETERMINED and "no real time" in asked.why:
            asked = self.models["strong-session-serializable"]
        return {HOLDS: 0, VIOLATED: 1, UNDETERMINED: 2}[asked.verdict]


def judge(
    history: Sequence[Transaction],
    orders: Mapping[Key, Sequence[Any]] | None = None,
    limits: Limits | None = None,
    configurations_max: int = linearize.CONFIGURATIONS_MAX,
) -> Judgement:
    """orders: the order of versions per key, if the source gives it (values)."""
    facts = resolve(history, orders)
    anomalies = list(facts.anomalies)
    judged = Judge(facts, history, limits)
    models = judged.verdicts()
    if not facts.repeated:
        anomalies += cycles.find(judged)
    searched = linearize.linearize(history, configurations_max)
    models[LINEARIZABLE] = _linearizable(searched)
    broken = [part for part in searched if part.verdict == linearize.NOT_LINEARIZABLE]
    anomalies += [Anomaly("not-linearizable", part.stuck, part.why) for part in broken]
    _combine(models, history)
    holding = [m for m in MODELS if models[m].verdict == HOLDS]
    strongest = [m for m in holding if not any(m in weaker(other) for other in holding)]
    return Judgement(transactions=len(history), anomalies=anomalies, models=models, strongest=strongest)


def _linearizable(searched: Sequence[linearize.Searched]) -> Verdict:
    for verdict, found in ((VIOLATED, linearize.NOT_LINEARIZABLE), (UNDETERMINED, linearize.UNDETERMINED)):
        for one in searched:
            if one.verdict == found:
                return Verdict(verdict, one.why)
    return Verdict(HOLDS)


def _combine(models: dict[str, Verdict], history: Sequence[Transaction]) -> None:
    """Strict serializability implies linearizable keys, and follows from them if no transaction spans two keys."""
    keys, strict = models[LINEARIZABLE], models[STRICT]
    if keys.verdict == VIOLATED and strict.verdict == UNDETERMINED:
        models[STRICT] = keys
    single = all(len({op.key for op in t.ops}) <= 1 for t in history)
    if single and keys.verdict == HOLDS and strict.verdict == UNDETERMINED:
        models[STRICT] = strict = Verdict(HOLDS)
    if strict.verdict == HOLDS:
        for model in weaker(STRICT):
            models[model] = Verdict(HOLDS)
        if keys.verdict == UNDETERMINED:
            models[LINEARIZABLE] = Verdict(HOLDS)
