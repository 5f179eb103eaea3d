"""The report of an audit as one page."""

from __future__ import annotations

from datetime import UTC, datetime

from spark_etl.names import GUARANTEES, VIOLATIONS, meaning
from spark_etl.page import drawing, summary
from spark_etl.page.parts import KINDS, SIGNS, document, esc, listed, models, numbers, pill, spoken, violation
from spark_etl.report import NOT_APPLICABLE, PENDING, UNDETERMINED, VALID, VIOLATED, Course, Property, Report

_GRAVITY = (VIOLATED, UNDETERMINED, PENDING, VALID, NOT_APPLICABLE)
_SIMULATED_US = 10**15
"""Clocks before this moment (2001) are a simulation's."""

_EVENTS_SHOWN = 20

_SENTENCES = {
    VALID: "Every guarantee that could be checked held.",
    VIOLATED: "At least one guarantee did not hold; the proof is below.",
    UNDETERMINED: "Nothing wrong was found, but part of the input is missing or damaged.",
}
_NEXT = {
    VALID: "",
    VIOLATED: "Keep the run's directory as it is: it is the proof. Begin with the first of these; the later ones rest"
    " on what the earlier ones say, and often follow from them."
    " <code>python -m spark_etl show RUN_DIR/FILE PLACE</code> prints what stands at the byte or line of a proof.",
    UNDETERMINED: "Bring back what is missing, or look at what is damaged, and audit again.",
}


def page(report: Report) -> str:
    """The whole page. Sections: first what is violated."""
    numbered = sorted(enumerate(report.properties), key=lambda item: _GRAVITY.index(item[1].verdict))
    sections = [_section(number, prop) for number, prop in numbered]
    body = [_header(report), _overview(report), _models(report), _course(report.course), *sections]
    return document(f"{report.verdict}: audit of {report.run}", body)


def _header(report: Report) -> str:
    parts = [f'<p class="run">{esc(report.run)}</p><h1>{SIGNS[report.verdict]} {esc(report.verdict)}</h1>']
    parts.append(f"<p>{_SENTENCES[report.verdict]}</p><p>{esc(summary.judged(report))}.</p>")
    for verdict in (VIOLATED, UNDETERMINED, PENDING):
        these = [(n, p) for n, p in enumerate(report.properties) if p.verdict == verdict]
        if these:
            links = ", ".join(f'<a href="#p{n}">{esc(p.name)}</a>' + _found(p) for n, p in these)
            count = f"{len(these)} of {len(report.properties)} properties {verdict}"
            parts.append(f"<p>{SIGNS[verdict]} <b>{count}:</b> {links}</p>")
    if report.problems:
        more = f", and {len(report.problems) - 1} more" if len(report.problems) > 1 else ""
        parts.append(f"<p>? <b>Input:</b> {esc(report.problems[0])}{more}</p>")
    if report.models:
        names = ", ".join(map(spoken, report.strongest)) or "none for certain"
        parts.append(f"<p>Strongest consistency that holds: <b>{esc(names)}</b></p>")
    if _NEXT[report.verdict]:
        parts.append(f'<p class="next">{_NEXT[report.verdict]}</p>')
    return f'<header class="{KINDS[report.verdict]}">{"".join(parts)}</header>'


def _found(prop: Property) -> str:
    return f" ({prop.violations:,})" if prop.violations else ""


def _overview(report: Report) -> str:
    span = drawing.span(report.course)
    began = report.course.began_us
    values: dict[str, int | str] = {}
    if began > _SIMULATED_US:
        values["began, by its clocks (UTC)"] = f"{datetime.fromtimestamp(began / 1e6, UTC):%Y-%m-%d %H:%M:%S}"
    values |= {"lasted": drawing.moment(span, span)} if span else {}
    values |= {**report.input, "audited in": f"{report.seconds:.1f} s"}
    cards = "".join(
        f'<li><a class="card {KINDS[p.verdict]}" href="#p{n}"><b aria-hidden="true">{SIGNS[p.verdict]}</b>'
        f' <span>{esc(p.name)}<span class="hidden">: {esc(p.verdict)}</span></span>'
        + f"<span>{_why(p)}</span>"
        + "</a></li>"
        for n, p in enumerate(report.properties)
    )
    return (
        f'<section>{numbers(values)}<h2 class="hidden">Properties</h2><ul class="cards">{cards}</ul>'
        f"{listed('Input', report.problems, 'problem')}{listed('Notes', report.notes, 'note')}</section>"
    )


def _why(prop: Property) -> str:
    """What a tile says beside the name: how many, or why it is grey."""
    if prop.violations:
        return f"{prop.violations:,} found"
    return esc(prop.note) if prop.verdict == NOT_APPLICABLE else ""


def _models(report: Report) -> str:
    verdicts = {model.name: (model.verdict, model.why) for model in report.models}
    table = models(verdicts, "linearizable-per-key", ("plain", "strong session", "strong (real time)"))
    return f"<section><h2>Consistency models</h2>{table}</section>" if table else ""


def _course(course: Course) -> str:
    charts = drawing.course(course)
    if not charts:
        return ""
    parts = "".join(f"<figure><figcaption>{esc(title)}</figcaption>{svg}</figure>" for title, svg in charts)
    span = drawing.span(course)
    events = [f"replica {what} at {drawing.moment(second, span)}" for second, _, what in drawing.failures(course)]
    more = f"; and {len(events) - _EVENTS_SHOWN} more" if len(events) > _EVENTS_SHOWN else ""
    told = f"<p>Failures: {esc('; '.join(events[:_EVENTS_SHOWN]))}{more}.</p>" if events else ""
    width = drawing.moment(course.slice_seconds, 3 * course.slice_seconds)
    key = (
        f'<p class="small">Slices of {esc(width)}; time counts from the first sign of a replica. Gone, a red line:'
        " a replica's journal goes no further and says nothing of a stop (it was killed, or still runs). Back, a green"
        " one: a later life began. Lag: from the record that a message was multicast to its delivery, each by its own"
        " host's clock.</p>"
    )
    asked = numbers(summary.operators(course))
    return f'<section><h2>Over time</h2>{asked}<div class="charts">{parts}</div>{told}{key}</section>'


def _section(number: int, prop: Property) -> str:
    """Folded, if there is nothing to look at."""
    rows = f"{prop.rows:,} rows, {prop.seconds:.1f} s" if prop.rows else f"{prop.seconds:.1f} s"
    note = f"<p>{esc(prop.note)}</p>" if prop.note else ""
    violations = "".join(violation(one, meaning(one.name, VIOLATIONS)) for one in prop.examples)
    more = prop.violations - len(prop.examples)
    rest = f"<p>And {more:,} more that are not shown.</p>" if more > 0 and prop.examples else ""
    title = f'<h2>{esc(prop.name)} {pill(prop.verdict)}<span class="small">{rows}</span></h2>'
    inside = f'<p class="about">{esc(GUARANTEES.get(prop.name, ""))}</p>{note}{violations}{rest}'
    if prop.verdict in (VALID, NOT_APPLICABLE):
        title, inside = f"<details><summary>{title}</summary>", f"{inside}</details>"
    return f'<section id="p{number}" class="{KINDS[prop.verdict]}">{title}{inside}</section>'
