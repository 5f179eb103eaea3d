"""Verdict files beside histories, and whether a judgement agrees with them.

`NAME.verdict.json` beside `NAME.jsonl`: `valid_under`, `invalid_under`: names of models; `anomalies`: must be found;
`absent`: must not be found; `session_order`: the names of models count the order within sessions; `no_sessions`,
`no_realtime`: processes, times mean nothing; `version_order`: key -> values; `invalid_given_order`: violated if such
an order is given. Other fields, and models that are not judged here, are passed over.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from spark_etl.blackbox.history import BadHistory, Transaction, as_value, check_file
from spark_etl.blackbox.judge import LINEARIZABLE, STRICT, Judgement
from spark_etl.blackbox.solver import HOLDS, UNDETERMINED, VIOLATED

SUFFIX = ".verdict.json"
AGREE, DISAGREE = "agree", "disagree"
STRICT_NAME = "strict-serializable"
"""What people call "strong-serializable"."""

Orders = dict[Any, list[Any]]


class _Options(msgspec.Struct, rename={"transaction_order": "transaction-order"}):
    transaction_order: dict[str, int] = {}


class _Assertion(msgspec.Struct):
    opts: _Options = msgspec.field(default_factory=_Options)


class Expected(msgspec.Struct):
    """What a verdict file says, as far as it is used here."""

    anomalies: list[str] = []
    absent: list[str] = []
    valid_under: list[str] = []
    invalid_under: list[str] = []
    invalid_given_order: list[str] = []
    session_order: bool = False
    no_sessions: bool = False
    no_realtime: bool = False
    version_order: Orders = {}
    assertions: list[_Assertion] = []

    def orders(self, history: list[Transaction]) -> Orders:
        """The order of versions, given as such or as an order of transactions. BadHistory."""
        ranks = next((a.opts.transaction_order for a in self.assertions if a.opts.transaction_order), None)
        if self.version_order or not ranks:
            try:
                return {key: [*map(as_value, values)] for key, values in self.version_order.items()}
            except ValueError as error:
                raise BadHistory(f"the order of versions: {error}") from None
        orders: Orders = {}
        for transaction in sorted(history, key=lambda t: ranks.get(str(t.index), len(history))):
            for op in transaction.ops:
                if op.kind == "w":
                    orders.setdefault(op.key, []).append(op.value)
        return orders

    @property
    def ordered(self) -> bool:
        """Whether it gives an order of versions."""
        return bool(self.version_order) or any(a.opts.transaction_order for a in self.assertions)


class Comparison(msgspec.Struct):
    """result: "agree", "disagree" or "not determined". details: a sentence for each expectation that was not met.
    counts: of expectations, by result."""

    result: str
    details: list[str] = []
    counts: dict[str, int] = {}


def read_expected(path: Path) -> Expected:
    """BadHistory names the file."""
    try:
        check_file(path)
        return msgspec.json.decode(path.read_bytes(), type=Expected)
    except (msgspec.DecodeError, RecursionError, OSError) as error:
        raise BadHistory(f"{path}: not a verdict file: {error}") from None


def verdict_file(history: Path) -> Path:
    """Where the verdict on a history lies, if there is one."""
    return history.with_name(history.name.removesuffix(".jsonl") + SUFFIX)


def internal_name(model: str, session_order: bool = False) -> str:
    """The name that `models.MODELS` has for a model."""
    model = model.replace(" ", "-")
    if model in (STRICT_NAME, "linearizable-per-key", LINEARIZABLE):
        return STRICT if model == STRICT_NAME else LINEARIZABLE
    return "strong-session-" + model if session_order and not model.startswith("strong-") else model


def public_name(model: str) -> str:
    """The name that people see."""
    return STRICT_NAME if model == STRICT else model


def compare(judgement: Judgement, expected: Expected) -> Comparison:
    """Expectation by expectation."""
    counts = {AGREE: 0, DISAGREE: 0, UNDETERMINED: 0}
    details: list[str] = []

    def count(result: str, text: str) -> None:
        counts[result] += 1
        if result != AGREE:
            details.append(f"{result}: {text}")

    invalid = expected.invalid_under + (expected.invalid_given_order if expected.ordered else [])
    for wanted, models in ((HOLDS, expected.valid_under), (VIOLATED, invalid)):
        for model in models:
            name = internal_name(model, expected.session_order)
            if name not in judgement.models or (wanted == HOLDS and _unasked(name, expected)):
                continue
            found = judgement.models[name]
            result = AGREE if found.verdict == wanted else UNDETERMINED if found.verdict == UNDETERMINED else DISAGREE
            reason = f" ({found.why})" if found.why else ""
            count(result, f"{public_name(name)} {found.verdict}{reason}, the source says: {wanted}")
    names = {anomaly.name for anomaly in judgement.anomalies}
    for anomaly in expected.anomalies:
        if _is_named(anomaly, names):
            count(AGREE, "")
        elif expected.invalid_given_order and not expected.ordered:
            count(UNDETERMINED, f"{anomaly} needs an order of versions that is not given")
        elif anomaly == "not-linearizable" and judgement.models[LINEARIZABLE].verdict == UNDETERMINED:
            count(UNDETERMINED, f"{anomaly}: {judgement.models[LINEARIZABLE].why}")
        else:
            count(DISAGREE, f"{anomaly} is not found")
    for anomaly in expected.absent:
        count(DISAGREE if _short(anomaly) in names else AGREE, f"{anomaly} is found, and should not be")
    result = next((r for r in (DISAGREE, UNDETERMINED) if counts[r]), AGREE)
    return Comparison(result, details, counts)


def _unasked(model: str, expected: Expected) -> bool:
    """Nothing can be said of sessions or real time where there are none."""
    if model.startswith("strong-session-"):
        return expected.no_sessions
    return expected.no_realtime and (model.startswith("strong-") or model == LINEARIZABLE)


def _short(anomaly: str) -> str:
    """Elle's "G-single-item" is "G-single" here: all reads are of items. "G2-item" keeps its name."""
    return anomaly if anomaly.startswith("G2") else anomaly.replace("-item", "")


def _is_named(anomaly: str, names: set[str]) -> bool:
    short = _short(anomaly)
    return any(name in names for name in (short, f"{short}-process", f"{short}-realtime"))
