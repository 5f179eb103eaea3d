"""The report of an audit: as data (JSON), and as a table for people."""

from __future__ import annotations

from typing import IO, Any

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from spark_etl import names

REPORT_VERSION = 2

VALID, VIOLATED, UNDETERMINED, PENDING, NOT_APPLICABLE = (
    "valid",
    "violated",
    "not determined",
    "pending",
    "not applicable",
)

_STYLES = {VALID: "green", VIOLATED: "bold red", UNDETERMINED: "yellow", PENDING: "cyan", NOT_APPLICABLE: "dim"}

_MODEL_STYLES = {"holds": "green", "violated": "bold red", "not determined": "yellow"}

COLUMNS_MIN = 120
"""Width of the report where there is no terminal to ask: rich's 80 columns would cut the table."""

EXAMPLES = 20
"""Violations of one property that are shown; the report counts all."""


class Operation(msgspec.Struct):
    """A transaction or message in a drawing. f: what it was, in the client history's words. version: or empty."""

    id: str
    f: str = ""
    version: str = ""


class Edge(msgspec.Struct):
    """From one operation of a cycle to another, by their numbers from 0. kind: ww, wr, rw, rt (real time) or order (of
    deliveries). key: or empty. sentence: why the one must precede the other."""

    source: int
    target: int
    kind: str
    key: str
    sentence: str


class Evidence(msgspec.Struct):
    """What stands in the logs. byte: where the record begins in a journal segment; line: of a history."""

    file: str
    text: str
    byte: int | None = None
    line: int | None = None

    @property
    def place(self) -> str:
        return f"{self.file}, " + (f"byte {self.byte}" if self.byte is not None else f"line {self.line}")


class Violation(msgspec.Struct):
    """name: of `names.VIOLATIONS` or `names.CYCLES`. sentence: why. steps: the edges of a cycle, a sentence each;
    operations, edges: the same to be drawn. positions: of deliveries at `replicas`. evidence: some log lines that
    prove it."""

    name: str
    sentence: str
    transactions: list[str] = []
    keys: list[str] = []
    replicas: list[int] = []
    positions: list[int] = []
    steps: list[str] = []
    operations: list[Operation] = []
    edges: list[Edge] = []
    evidence: list[Evidence] = []


class Property(msgspec.Struct):
    """verdict: "valid", "violated", "not determined", "pending" (nothing is wrong so far, and something is still under
    way) or "not applicable". rows: how many rows were examined. violations: how many; `examples` are some of them."""

    name: str
    verdict: str
    rows: int
    seconds: float
    violations: int = 0
    examples: list[Violation] = []
    note: str = ""


class ModelVerdict(msgspec.Struct):
    """A consistency model, by its name in `spark_etl.blackbox.models`, or "linearizable-per-key". verdict: "holds",
    "violated" or "not determined". why: in words."""

    name: str
    verdict: str
    why: str = ""


class Point(msgspec.Struct):
    """A slice of time. second: its beginning. count: operations answered, or messages delivered, in it; unknown:
    operations without an answer. Milliseconds: latencies of answers, or how long after its multicast a message was
    delivered; null if nothing is known."""

    second: float
    count: int
    unknown: int = 0
    median_ms: float | None = None
    p99_ms: float | None = None
    max_ms: float | None = None


class Life(msgspec.Struct):
    """One life of a replica. ended: the second of its last sign of life; how: "stopped" in good order, or "crashed"
    (no word of a stop, another life followed or not)."""

    replica: int
    shard: int
    began: float
    ended: float
    how: str


class Course(msgspec.Struct):
    """What happened when. Seconds count from the first life, began_us: microseconds since 1970 by that replica's clock
    (since the beginning, if simulated). operations: of all clients; deliveries: by replica."""

    slice_seconds: float = 1.0
    operations: list[Point] = []
    deliveries: dict[int, list[Point]] = {}
    lives: list[Life] = []
    began_us: int = 0


class Report(msgspec.Struct):
    """The whole audit. problems: what is missing or damaged in the input, with file and byte. notes: what is normal and
    worth knowing. seconds: all of it, with Spark's start. models: each consistency model's verdict (empty: not asked).
    strongest: those that hold and that no other one implies that holds."""

    run: str
    properties: list[Property]
    problems: list[str]
    notes: list[str]
    input: dict[str, int | str]
    seconds: float
    course: Course = msgspec.field(default_factory=Course)
    version: int = REPORT_VERSION
    verdict: str = ""
    models: list[ModelVerdict] = []
    strongest: list[str] = []

    def __post_init__(self) -> None:
        verdicts = [p.verdict for p in self.properties]
        if VIOLATED in verdicts:
            self.verdict = VIOLATED
        elif self.problems or UNDETERMINED in verdicts:
            self.verdict = UNDETERMINED
        else:
            self.verdict = VALID

    @property
    def exit_code(self) -> int:
        """0 valid, 1 violated, 2 could not decide."""
        return {VALID: 0, VIOLATED: 1, UNDETERMINED: 2}[self.verdict]


PLACES_SHOWN = 4
"""Log lines of one violation that a terminal shows."""
STEPS_SHOWN = 24
"""Steps of a cycle that a terminal shows: of a longer one the beginning and the end."""
TEXT_MAX = 2_000
"""Characters of one text that are shown; the JSON has it whole."""


def visible(text: object) -> str:
    """Text of a run for people: what nobody can see, or would steer a terminal, as its code point; cut if long."""
    whole = str(text)
    plain = "".join(c if c.isprintable() or c in "\n\t" else f"\\u{ord(c):04x}" for c in whole[:TEXT_MAX])
    return plain if len(whole) <= TEXT_MAX else f"{plain}… ({len(whole):,} characters)"


def to_json(report: Report) -> bytes:
    """Indented, with a line end."""
    return msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n"


def from_json(data: bytes, name: str) -> Report:
    """A report as `to_json` writes it. ValueError, a sentence, if it is none, or a newer program's."""
    try:
        version = msgspec.json.decode(data, type=dict[str, Any]).get("version")
        if isinstance(version, int) and version > REPORT_VERSION:
            raise ValueError(f"{name}: report version {version} is newer than this program's {REPORT_VERSION}")
        return msgspec.json.decode(data, type=Report)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(f"{name}: not the report of a check: {error}") from None


def console(file: IO[str] | None = None) -> Console:
    """Standard output, or `file`, as wide as the terminal; else at least COLUMNS_MIN wide."""
    made = Console(file=file)
    return made if made.is_terminal else Console(file=file, width=max(made.width, COLUMNS_MIN))


def render(report: Report, console: Console) -> None:
    """Print the report for people."""
    _line(console, Text(visible(f"Audit of {report.run}"), "bold"))
    _line(console, Text(", ".join(f"{name} {value}" for name, value in report.input.items())))
    table = Table(show_edge=False, pad_edge=False)
    table.add_column("property", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for name in ("found", "rows", "seconds"):
        table.add_column(name, justify="right", no_wrap=True)
    for p in report.properties:
        found = str(p.violations) if p.violations else ""
        table.add_row(p.name, Text(p.verdict, _STYLES[p.verdict]), found, f"{p.rows:,}", f"{p.seconds:.1f}")
    console.print(table)
    _render_models(report, console)
    shown: set[str] = set()
    for p in report.properties:
        for violation in p.examples:
            if not violation.steps and violation.sentence in shown:
                continue  # a read of what nobody wrote counts against several properties
            shown.add(violation.sentence)
            render_violation(violation, console)
        if p.violations > len(p.examples) > 0:
            _line(console, Text(f"    and {p.violations - len(p.examples)} more against {p.name}"))
    for p in report.properties:
        if p.note:
            _line(console, Text(f"{p.name}: {p.note}", "dim"))
    for problem in report.problems:
        _line(console, Text.assemble(("input: ", "yellow"), visible(problem)))
    for note in report.notes:
        _line(console, Text(visible(f"note: {note}"), "dim"))
    _line(console, Text.assemble("verdict: ", (report.verdict, _STYLES[report.verdict]), f" ({report.seconds:.1f} s)"))


def render_violation(violation: Violation, console: Console) -> None:
    """Its sentence, of a cycle one per edge, and where the log lines are."""
    _line(console, Text.assemble((violation.name, "bold red"), f": {visible(violation.sentence)}"))
    more, half = len(violation.steps) - STEPS_SHOWN, STEPS_SHOWN // 2
    for at, step in enumerate(violation.steps):
        if more <= 0 or at < half or at >= half + more:
            _line(console, Text(visible(f"    {step}")))
        elif at == half:
            _line(console, Text(f"    … and {more:,} more steps, in the JSON"))
    if violation.evidence:
        _line(console, Text(visible(f"    log lines: {_places(violation.evidence)}"), "dim"))


def _places(found: list[Evidence]) -> str:
    """Some of them; the page has all."""
    more = len(found) - PLACES_SHOWN
    return "; ".join(one.place for one in found[:PLACES_SHOWN]) + (f"; and {more} more" if more > 0 else "")


def _render_models(report: Report, console: Console) -> None:
    """Rows: models from weak to strong; columns: plain, with sessions, with real time."""
    if not report.models:
        return
    verdicts = {m.name: m.verdict for m in report.models}
    table = Table(show_edge=False, pad_edge=False)
    for name in ("consistency model", "plain", "strong session", "strong (real time)"):
        table.add_column(name, no_wrap=True)
    for name in verdicts:
        if not name.startswith("strong-") and f"strong-{name}" in verdicts:
            cells = [verdicts[variant + name] for variant in ("", "strong-session-", "strong-")]
            table.add_row(name.replace("-", " "), *(Text(cell, _MODEL_STYLES[cell]) for cell in cells))
    per_key = verdicts["linearizable-per-key"]
    table.add_row("linearizable per key", "", "", Text(per_key, _MODEL_STYLES[per_key]))
    console.print(table)
    for line in names.definitions():
        _line(console, Text(line, "dim"))
    holding = ["strict serializable" if n == "strong-serializable" else n.replace("-", " ") for n in report.strongest]
    _line(console, Text.assemble("strongest that holds: ", (", ".join(holding) or "none for certain", "bold")))


def _line(console: Console, text: Text) -> None:
    """One line, however long: to be read on a terminal and searched in a log."""
    console.print(text, soft_wrap=True)
