"""The report as one page that needs nothing else. Whatever comes from a run is escaped."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape as _escape

from spark_etl import drawing
from spark_etl.html_style import SCRIPT, STYLE
from spark_etl.report import (
    NOT_APPLICABLE,
    PENDING,
    UNDETERMINED,
    VALID,
    VIOLATED,
    Evidence,
    ModelVerdict,
    Property,
    Report,
    Violation,
)

_SIGNS = {VALID: "✓", VIOLATED: "✗", UNDETERMINED: "?", PENDING: "…", NOT_APPLICABLE: "–"}
_CLASSES = {VALID: "valid", VIOLATED: "violated", UNDETERMINED: "open", PENDING: "pending", NOT_APPLICABLE: "none"}

GUARANTEES = {
    "integrity": "Nothing is delivered twice, and nothing expired has an effect.",
    "validity": "What is delivered was multicast by somebody, to that shard.",
    "agreement in a shard": "The replicas of a shard deliver the same messages at the same positions.",
    "prefix order": "Each replica delivers in the order of positions and of timestamps.",
    "one order across shards": "All shards deliver in one order without a circle, and none leaves a message out.",
    "results complete and equal": "Every delivery has one outcome, equal at all replicas; so are state digests.",
    "reads return what the order says": "Every read returned the last version before it.",
    "exactly once": "No transaction has its effect twice.",
    "clients saw what the journals say": "What was acknowledged is there, with the answer that the client was given.",
    "serializability": "Some order of all transactions, one at a time, explains every read.",
    "strict serializability": "Such an order also respects who was answered before whom was invoked.",
    "optimistic deliveries": "How often an early delivery was in another order than the final one.",
    "unknown outcomes resolved": "What became of operations whose outcome no client knows.",
    "monotonic reads": "Within a session, no read goes back behind an earlier one.",
    "monotonic writes": "Within a session, writes take effect in their order.",
    "read your writes": "A session's reads see its own earlier writes.",
    "writes follow reads": "A session's writes come after what it has read.",
    "linearizability per key": "Each key for itself behaves as one copy, at one moment between call and answer.",
    "conservation of the bank's total": "Transfers neither make nor lose money.",
}
"""What a property means, for people."""


def esc(text: object) -> str:
    """Text as it is, for the page: markup is escaped, and what no one can see is made visible."""
    plain = "".join(c if c.isprintable() or c in "\n\t" else f"\\u{ord(c):04x}" for c in str(text))
    return _escape(plain, quote=True)


def page(report: Report) -> str:
    """The whole page."""
    title = f"Audit of {report.run}: {report.verdict}"
    sections = [_section(number, prop) for number, prop in enumerate(report.properties)]
    body = "\n".join([_summary(report), _models(report), _course(report), *sections])
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline';"
        " script-src 'unsafe-inline'; img-src data:\">"
        f'<link rel="icon" href="data:,"><title>{esc(title)}</title><style>{STYLE}</style></head>\n'
        f"<body><main>\n{body}\n"
        f"</main><script>{SCRIPT}</script></body></html>\n"
    )


def _pill(verdict: str) -> str:
    return f'<span class="pill {_CLASSES[verdict]}">{_SIGNS[verdict]} {esc(verdict)}</span>'


def _summary(report: Report) -> str:
    sentence = {
        VALID: "Every guarantee that could be checked held.",
        VIOLATED: "At least one guarantee did not hold; the proof is below.",
        UNDETERMINED: "Nothing wrong was found, but part of the input is missing or damaged.",
    }[report.verdict]
    numbers = "".join(
        f"<div><b>{f'{value:,}' if isinstance(value, int) else esc(value)}</b><span>{esc(name)}</span></div>"
        for name, value in report.input.items()
        if value != ""
    )
    cards = "".join(
        f'<a class="card {_CLASSES[p.verdict]}" href="#p{n}"><b>{_SIGNS[p.verdict]}</b> {esc(p.name)}'
        + (f"<span>{p.violations:,} found</span>" if p.violations else "")
        + "</a>"
        for n, p in enumerate(report.properties)
    )
    remarks = _list("Input", report.problems, "problem") + _list("Notes", report.notes, "note")
    strongest = ""
    if report.strongest:
        strongest = f"<p>Strongest consistency that holds: <b>{esc(', '.join(map(_model, report.strongest)))}</b></p>"
    return (
        f'<header class="{_CLASSES[report.verdict]}"><p class="run">{esc(report.run)}</p>'
        f"<h1>{_SIGNS[report.verdict]} {esc(report.verdict)}</h1><p>{sentence}</p>{strongest}</header>"
        f'<section><div class="numbers">{numbers}<div><b>{report.seconds:.1f} s</b><span>audited in</span></div></div>'
        f'<div class="cards">{cards}</div>{remarks}</section>'
    )


def _model(name: str) -> str:
    return "strict serializable" if name == "strong-serializable" else name.replace("-", " ")


def _models(report: Report) -> str:
    """Rows: models from weak to strong; columns: plain, with sessions, with real time."""
    verdicts = {model.name: model for model in report.models}
    rows = []
    for name in verdicts:
        variants = [verdicts.get(variant + name) for variant in ("", "strong-session-", "strong-")]
        if not name.startswith("strong-") and variants[2] is not None:
            rows.append(f"<tr><th>{esc(_model(name))}</th>{''.join(map(_cell, variants))}</tr>")
        elif not name.startswith("strong-"):
            rows.append(f"<tr><th>{esc(_model(name))}</th><td></td><td></td>{_cell(verdicts[name])}</tr>")
    if not rows:
        return ""
    head = "<tr><th>model</th><th>plain</th><th>strong session</th><th>strong (real time)</th></tr>"
    return f'<section><h2>Consistency models</h2><table class="models">{head}{"".join(rows)}</table></section>'


def _cell(model: ModelVerdict | None) -> str:
    if model is None:
        return "<td></td>"
    kind = {"holds": "valid", "violated": "violated"}.get(model.verdict, "open")
    sign = {"valid": "✓", "violated": "✗", "open": "?"}[kind]
    return f'<td title="{esc(model.why)}"><span class="pill {kind}">{sign} {esc(model.verdict)}</span></td>'


def _list(title: str, lines: Iterable[str], kind: str) -> str:
    items = "".join(f"<li>{esc(line)}</li>" for line in lines)
    return f'<h3>{title}</h3><ul class="{kind}">{items}</ul>' if items else ""


def _course(report: Report) -> str:
    charts = drawing.course(report.course)
    if not charts:
        return ""
    parts = "".join(f"<figure><figcaption>{esc(title)}</figcaption>{svg}</figure>" for title, svg in charts)
    key = (
        '<p class="small">Slices of '
        f"{report.course.slice_seconds:g} s; seconds count from the first replica's start. A red line: a replica's life"
        " ended without a stop in good order; a green one: a later life began. Lag: from the record that a message was"
        " multicast to its delivery, each by its own host's clock.</p>"
    )
    return f'<section><h2>Over time</h2><div class="charts">{parts}</div>{key}</section>'


def _section(number: int, prop: Property) -> str:
    about = GUARANTEES.get(prop.name, "")
    rows = f"{prop.rows:,} rows, {prop.seconds:.1f} s" if prop.rows else f"{prop.seconds:.1f} s"
    note = f"<p>{esc(prop.note)}</p>" if prop.note else ""
    violations = "".join(_violation(one) for one in prop.examples)
    more = prop.violations - len(prop.examples)
    rest = f"<p>And {more:,} more that are not shown.</p>" if more > 0 and prop.examples else ""
    return (
        f'<section id="p{number}" class="{_CLASSES[prop.verdict]}"><h2>{esc(prop.name)} {_pill(prop.verdict)}'
        f'<span class="small">{rows}</span></h2><p class="about">{esc(about)}</p>{note}{violations}{rest}</section>'
    )


def _violation(violation: Violation) -> str:
    parts = [f"<h3><code>{esc(violation.name)}</code></h3><p>{esc(violation.sentence)}</p>"]
    if violation.edges:
        parts.append(f"<figure>{drawing.cycle(violation.operations, violation.edges)}</figure>")
    if violation.steps:
        parts.append("<ol>" + "".join(f"<li>{esc(step)}</li>" for step in violation.steps) + "</ol>")
    if violation.evidence:
        lines = "".join(_line(one) for one in violation.evidence)
        summary = f"<summary>{len(violation.evidence)} log lines</summary>"
        parts.append(f"<details open>{summary}<table>{lines}</table></details>")
    return f'<article>{"".join(parts)}</article>'


def _line(evidence: Evidence) -> str:
    return f"<tr><td><code>{esc(evidence.place)}</code></td><td>{esc(evidence.text)}</td></tr>"
