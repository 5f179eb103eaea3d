"""Histories on Spark: DataFrames in and out. A history is judged whole, by one worker; different ones side by side."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
from pyspark.sql import DataFrame

from spark_etl.blackbox.compare import Comparison, Expected, compare, public_name
from spark_etl.blackbox.history import LINE_BYTES_MAX, BadHistory, check_file, check_start, parse
from spark_etl.blackbox.judge import Judgement, judge, strictly_serializable
from spark_etl.blackbox.linearize import CONFIGURATIONS_MAX
from spark_etl.blackbox.lists import certified
from spark_etl.blackbox.models import Limits

FILES = "history string, path string"
LINES = "history string, line bigint, text binary"
"""A line of a history: its name; the line's number from 0; text, the JSON of one transaction."""

VERDICTS = (
    "history string, error string, transactions bigint, asked string, verdict string, strongest array<string>, "
    "models map<string, string>, anomalies array<string>, comparison string, details binary"
)
"""One row per history. error: why it could not be judged, or empty. asked: the strongest model that its information
allows to ask for; verdict: on that one. models: name -> verdict. anomalies: names. comparison: with what was expected,
or empty. details: a `Details` as JSON."""


class Details(msgspec.Struct):
    """All that is known of one history."""

    judgement: Judgement | None = None
    comparison: Comparison | None = None


class Context(msgspec.Struct, frozen=True):
    """What is known of a history besides its lines. seconds: of its searches together."""

    expected: Expected = msgspec.field(default_factory=Expected)
    compared: bool = False
    seconds: float = Limits().seconds
    configurations: int = CONFIGURATIONS_MAX


class _Lines:
    """Of a file, as often as they are gone through; an empty one has one empty line. Of a line that is too long the
    beginning, whatever memory all of it would take."""

    def __init__(self, path: Path):
        self._path = path

    def __iter__(self) -> Iterator[bytes]:
        empty = True
        with self._path.open("rb") as file:
            while text := file.readline(LINE_BYTES_MAX + 1):
                empty = False
                yield text
                while len(text) > LINE_BYTES_MAX and not text.endswith(b"\n"):
                    text = file.readline(LINE_BYTES_MAX + 1)
        if empty:
            yield b""


def judge_files(files: DataFrame, contexts: Mapping[str, Context]) -> DataFrame:
    """FILES -> VERDICTS. The paths must be there for the workers. contexts: as in `judge_histories`."""

    def judged(batches: Iterator[Any]) -> Iterator[Any]:
        import pandas as pd

        for batch in batches:
            for history, path in zip(batch["history"], batch["path"], strict=True):
                row = judge_file(Path(path), contexts.get(history, Context()))
                yield pd.DataFrame([{"history": history, **row}])

    return files.mapInPandas(judged, VERDICTS)


def judge_file(path: Path, context: Context) -> dict[str, Any]:
    """As `judge_lines`. What cannot be read is an error of this file alone."""
    try:
        check_file(path)
        return judge_lines(_Lines(path), context)
    except OSError as error:
        return _row(_unreadable(error))


def _unreadable(error: OSError) -> str:
    return f"it cannot be read: {error.strerror or error}"


def refusal(path: Path) -> str:
    """What `judge_file` would say of it if its beginning is no history; else empty. Spark need not be started for it.
    """
    try:
        check_file(path)
        check_start(_Lines(path))
    except BadHistory as error:
        return str(error)
    except OSError as error:
        return _unreadable(error)
    return ""


def judge_histories(lines: DataFrame, contexts: Mapping[str, Context] | None = None) -> DataFrame:
    """LINES -> VERDICTS. contexts: history -> what is known of it besides."""
    given = dict(contexts or {})

    def one(group: Any) -> Any:
        import pandas as pd

        ordered = group.sort_values("line")
        history = str(ordered["history"].iloc[0])
        row = judge_lines(list(ordered["text"]), given.get(history, Context()))
        return pd.DataFrame([{"history": history, **row}])

    return lines.groupBy("history").applyInPandas(one, VERDICTS)


def judge_lines(texts: Iterable[bytes], context: Context) -> dict[str, Any]:
    """The columns of VERDICTS, without the name, for one history. texts: its lines, gone through twice."""
    expected = context.expected
    plain = not (expected.ordered or expected.no_sessions or expected.no_realtime)
    proved = certified(texts) if plain else None
    if proved:
        judgement = strictly_serializable(proved)
        return _row("", judgement, compare(judgement, expected) if context.compared else None)
    try:
        history = parse(bytes(text) for text in texts)
        judgement = judge(
            history,
            expected.orders(history),
            Limits(seconds=context.seconds),
            context.configurations,
            sessions=not expected.no_sessions,
            realtime=not expected.no_realtime,
        )
    except BadHistory as error:
        return _row(str(error))
    except (MemoryError, RecursionError) as error:
        return _row(f"too large to be judged here ({type(error).__name__})")
    comparison = compare(judgement, expected) if context.compared else None
    return _row("", judgement, comparison)


def _row(error: str, judgement: Judgement | None = None, comparison: Comparison | None = None) -> dict[str, Any]:
    known = judgement is not None
    return {
        "error": error,
        "transactions": judgement.transactions if judgement else 0,
        "asked": public_name(judgement.asked) if judgement else "",
        "verdict": judgement.models[judgement.asked].verdict if judgement else "",
        "strongest": [public_name(model) for model in judgement.strongest] if judgement else [],
        "models": {public_name(m): v.verdict for m, v in judgement.models.items()} if judgement else {},
        "anomalies": list(dict.fromkeys(a.name for a in judgement.anomalies)) if judgement else [],
        "comparison": comparison.result if comparison else "",
        "details": msgspec.json.encode(Details(judgement, comparison)) if known else b"{}",
    }
