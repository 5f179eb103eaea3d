"""The judgement of one history: anomalies, a verdict per consistency model and per session guarantee, linearizability
per key."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from spark_etl.blackbox import cycles, linearize, repeats
from spark_etl.blackbox import sessions as guarantees
from spark_etl.blackbox.facts import Anomaly, Facts, Key
from spark_etl.blackbox.history import Transaction
from spark_etl.blackbox.models import MODELS, NO_REALTIME, SESSION, Judge, Limits, weaker
from spark_etl.blackbox.resolve import resolve
from spark_etl.blackbox.solver import HOLDS, UNDETERMINED, VIOLATED, Verdict

STRICT = "strong-serializable"
EXIT_CODES = {HOLDS: 0, VIOLATED: 1, UNDETERMINED: 2}
LINEARIZABLE = "linearizable"
"""Every key by itself."""
_WAYS_MAX = 128
"""In so many ways at most reads may name their writers; in fewer, if there are more than 30 transactions."""
_ORDERS_MAX = 10_000
"""Configurations of a search for an order of transactions without real time, ..."""
_ORDERED_MAX = 500
"""... and of how many transactions."""


class Judgement(msgspec.Struct, kw_only=True):
    """transactions: in the history. models: name -> verdict, from weak to strong, and `linearizable`. strongest: those
    that hold and are implied by no other that holds. sessions: session guarantee -> verdict."""

    transactions: int
    anomalies: list[Anomaly]
    models: dict[str, Verdict]
    strongest: list[str]
    sessions: dict[str, guarantees.Guarantee]

    @property
    def exit_code(self) -> int:
        """Of the whole: 1 if strict serializability (or, without real time, the strongest that could be asked) is
        violated, 2 if it is not determined, 0 if it holds."""
        return EXIT_CODES[self.models[self.asked].verdict]

    @property
    def asked(self) -> str:
        """The strongest model that the information in the history lets anybody ask for."""
        strict = self.models[STRICT]
        if strict.verdict != UNDETERMINED or strict.why != NO_REALTIME:
            return STRICT
        session = self.models[SESSION + "serializable"]
        return (
            "serializable" if session.verdict == UNDETERMINED and "session" in session.why else SESSION + "serializable"
        )


def judge(
    history: Sequence[Transaction],
    orders: Mapping[Key, Sequence[Any]] | None = None,
    limits: Limits | None = None,
    configurations_max: int = linearize.CONFIGURATIONS_MAX,
    sessions: bool = True,
    realtime: bool = True,
) -> Judgement:
    """orders: the order of versions per key, if the source gives it (values). sessions, realtime: False if the
    processes or the times of the history mean nothing."""
    if not sessions or not realtime:
        history = [_without(t, sessions, realtime) for t in history]
    facts = resolve(history, orders)
    anomalies = list(facts.anomalies)
    judged = Judge(facts, history, limits, sessions)
    models = judged.verdicts()
    if models[STRICT].verdict != HOLDS:
        anomalies += cycles.find(judged) + cycles.cyclic_versions(judged)
        anomalies += cycles.unnamed(judged, models, anomalies)
    if models[STRICT].verdict == HOLDS:
        models[LINEARIZABLE] = Verdict(HOLDS)
    else:
        searched = linearize.linearize(history, configurations_max, initial=facts.initial, deadline=judged.end)
        models[LINEARIZABLE] = _searched(searched)
        anomalies += _not_linearizable("not-linearizable", searched)
        spans = any(len({op.key for op in t.ops}) > 1 for t in history) or bool(linearize.tied(history))
        if models[STRICT].verdict == UNDETERMINED and models[LINEARIZABLE].verdict != VIOLATED and spans:
            searched = linearize.linearize(history, configurations_max, True, facts.initial, judged.end)
            anomalies += _not_linearizable("not-strict-serializable", searched)
        _combine(models, STRICT, _searched(searched))
    if facts.repeated:
        if not facts.repeated & {*(orders or {})}:
            _decide_ways(models, history, facts, orders, judged.end, sessions)
        for model in (SESSION + "serializable", "serializable") if len(history) <= _ORDERED_MAX else ():
            if models[model].verdict == UNDETERMINED and not (model != "serializable" and judged.no_sessions):
                found = linearize.serialize(history, model != "serializable", _ORDERS_MAX, facts.initial, judged.end)
                _combine(models, model, _searched(found))
    if models[SESSION + "causal"].verdict == HOLDS:
        of_sessions = {name: guarantees.Guarantee(HOLDS) for name in guarantees.NAMES}
    else:
        of_sessions = guarantees.judge(facts, judged.no_sessions)
    return Judgement(
        transactions=len(history), anomalies=anomalies, models=models, strongest=_strongest(models),
        sessions=of_sessions,
    )  # fmt: skip


def strictly_serializable(transactions: int) -> Judgement:
    """Of a history of which that is proved."""
    models = {model: Verdict(HOLDS) for model in (*MODELS, LINEARIZABLE)}
    sessions = {name: guarantees.Guarantee(HOLDS) for name in guarantees.NAMES}
    return Judgement(
        transactions=transactions, anomalies=[], models=models, strongest=_strongest(models), sessions=sessions
    )


def _strongest(models: Mapping[str, Verdict]) -> list[str]:
    holding = [m for m in MODELS if models[m].verdict == HOLDS]
    return [m for m in holding if not any(m in weaker(other) for other in holding)]


def _without(transaction: Transaction, sessions: bool, realtime: bool) -> Transaction:
    """Every transaction is its own session; times are left out."""
    times = (transaction.invoke, transaction.complete) if realtime else (None, None)
    process = transaction.process if sessions else transaction.index
    return Transaction(transaction.index, process, transaction.type, *times, transaction.ops)


def _not_linearizable(name: str, searched: Sequence[linearize.Searched]) -> list[Anomaly]:
    return [Anomaly(name, one.stuck, one.why) for one in searched if one.verdict == linearize.NOT_LINEARIZABLE]


def _searched(searched: Sequence[linearize.Searched]) -> Verdict:
    for verdict, found in ((VIOLATED, linearize.NOT_LINEARIZABLE), (UNDETERMINED, linearize.UNDETERMINED)):
        for one in searched:
            if one.verdict == found:
                return Verdict(verdict, one.why)
    return Verdict(HOLDS)


def _combine(models: dict[str, Verdict], model: str, searched: Verdict) -> None:
    """searched: whether an order of all transactions was found that this model allows; or, for strict serializability,
    if one key is not linearizable, that."""
    if models[model].verdict == UNDETERMINED and searched.verdict != UNDETERMINED:
        models[model] = searched
    if models[model].verdict == HOLDS:
        for implied in weaker(model):
            models[implied] = Verdict(HOLDS)
        if model == STRICT:
            models[LINEARIZABLE] = Verdict(HOLDS)
    if models[model].verdict == VIOLATED:
        for stronger in MODELS:
            if model in weaker(stronger) and models[stronger].verdict == UNDETERMINED:
                models[stronger] = models[model]


def _decide_ways(
    models: dict[str, Verdict],
    history: Sequence[Transaction],
    facts: Facts,
    orders: Mapping[Key, Sequence[Any]] | None,
    end: float,
    sessions: bool,
) -> None:
    """What is not determined because values repeat, if there are few ways in which each read names its writer: it holds
    if it does in one of them. No way has what was aborted read, or what its reader writes later, as who reads
    uncommitted writes may."""
    unknown = [m for m in MODELS if models[m].verdict == UNDETERMINED]
    ways = repeats.ways(history, facts, min(_WAYS_MAX, _WAYS_MAX * 30 // len(history)))
    open_ = {model for model in unknown if not model.endswith("read-uncommitted")}
    last: dict[str, Verdict] = {}
    for way in ways or ():
        limits = Limits(max(0.0, end - time.monotonic()))
        last = Judge(resolve(way, orders, facts.initial), way, limits, sessions).verdicts()
        for model in unknown:
            if last[model].verdict == HOLDS:
                models[model] = Verdict(HOLDS)
            if last[model].verdict != VIOLATED:
                open_.discard(model)
        if all(models[model].verdict == HOLDS for model in unknown):
            break
    for model in open_ if last else ():
        why = last[model].why
        models[model] = Verdict(VIOLATED, f"whichever write of a repeated value each read saw; e.g. {why}")
