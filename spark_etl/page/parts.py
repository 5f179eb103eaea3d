"""What every page is made of: a document that needs nothing else, verdicts, the table of models, violations with their
drawings and log lines. Whatever comes from a run is escaped."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape

import msgspec

from spark_etl import names
from spark_etl.page import drawing
from spark_etl.page.style import SCRIPT, STYLE
from spark_etl.report import NOT_APPLICABLE, PENDING, UNDETERMINED, VALID, VIOLATED, Evidence, Violation, visible

SIGNS = {VALID: "✓", VIOLATED: "✗", UNDETERMINED: "?", PENDING: "…", NOT_APPLICABLE: "–", "holds": "✓"}
KINDS = {
    VALID: "valid", VIOLATED: "violated", UNDETERMINED: "open", PENDING: "pending", NOT_APPLICABLE: "none",
    "holds": "valid",
}  # fmt: skip
"""Classes of the style sheet. A verdict has a sign and a word besides its colour."""

_SECONDS = re.compile(r"\b(was (?:answered|invoked) at )(\d+\.\d{6}) s\b")
_RIGHT_TO_LEFT = re.compile("[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]+")


def esc(text: object) -> str:
    """Text for the page: markup is escaped, what no one can see is made visible, and words that are written from right
    to left do not turn round what stands beside them."""
    return _RIGHT_TO_LEFT.sub(lambda found: f"<bdi>{found[0]}</bdi>", attribute(text))


def attribute(text: object) -> str:
    """The same for an attribute or the title."""
    return escape(visible(text), quote=True)


def document(title: str, body: Iterable[str]) -> str:
    """The whole page."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline';"
        " script-src 'unsafe-inline'; img-src data:\">"
        f'<link rel="icon" href="data:,"><title>{attribute(title)}</title><style>{STYLE}</style></head>\n'
        f"<body>{drawing.MARKERS}<main>\n" + "\n".join(body) + f"\n</main><script>{SCRIPT}</script></body></html>\n"
    )


def pill(verdict: str) -> str:
    """A verdict with its sign and colour."""
    return f'<span class="pill {KINDS[verdict]}">{SIGNS[verdict]} {esc(verdict)}</span>'


def numbers(values: Mapping[str, int | str]) -> str:
    """Names and values; those without a value are left out."""
    shown = "".join(
        f"<div><dd>{f'{value:,}' if isinstance(value, int) else esc(value)}</dd><dt>{esc(name)}</dt></div>"
        for name, value in values.items()
        if value != ""
    )
    return f'<dl class="numbers">{shown}</dl>'


def listed(title: str, lines: Iterable[str], kind: str) -> str:
    """A heading and a list; empty if there is nothing in it."""
    items = "".join(f"<li>{esc(line)}</li>" for line in lines)
    return f'<h2>{title}</h2><ul class="{kind}">{items}</ul>' if items else ""


def spoken(model: str) -> str:
    """A model's name in words."""
    if model in ("strong-serializable", "strict-serializable"):
        return "strict serializable"
    return model.replace("strong-session-", "strong session ").replace("-", " ")


def models(verdicts: Mapping[str, tuple[str, str]], per_key: str, columns: tuple[str, str, str]) -> str:
    """verdicts: model -> (verdict, why), plain names before those with a prefix. Rows: from weak to strong."""
    rows = []
    for name in verdicts:
        strong = "strict-serializable" if f"strong-{name}" not in verdicts else f"strong-{name}"
        if name != per_key and f"strong-session-{name}" in verdicts and strong in verdicts:
            cells = (pill(verdicts[one][0]) for one in (name, f"strong-session-{name}", strong))
            rows.append(_row(name, cells))
    if not rows:
        return ""
    if per_key in verdicts:
        rows.append(_row("linearizable-per-key", ("", "", pill(verdicts[per_key][0]))))
    head = "".join(f'<th scope="col">{title}</th>' for title in ("model", *columns))
    return (
        '<div class="wide" tabindex="0"><table class="models"><thead><tr>'
        f"{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>{_definitions()}{_reasons(verdicts)}"
    )


def _definitions() -> str:
    items = "".join(f"<li>{esc(line)}</li>" for line in names.definitions())
    return f"<details><summary>Definitions</summary><ul>{items}</ul></details>"


def _row(name: str, cells: Iterable[str]) -> str:
    return f'<tr><th scope="row">{esc(spoken(name))}</th>' + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


def _reasons(verdicts: Mapping[str, tuple[str, str]]) -> str:
    """Why, for what does not hold; one reason for many models once."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for name, (verdict, why) in verdicts.items():
        if why and verdict != "holds":
            reasons.setdefault((verdict, why), []).append(spoken(name))
    if not reasons:
        return ""
    items = "".join(
        f"<li>{pill(verdict)} {esc(why)}: {esc(', '.join(of) if len(of) < len(verdicts) else 'all models')}</li>"
        for (verdict, why), of in sorted(reasons.items(), key=lambda item: item[0][0] != VIOLATED)
    )
    return f"<details><summary>Why</summary><ul>{items}</ul></details>"


STEPS_MAX = 24
"""Of a longer cycle the beginning and the end are shown; the JSON has all of it."""


def violation(one: Violation, meaning: str) -> str:
    """Name, sentence, drawing, a sentence per edge, log lines. Times in the sentences of a cycle count from the first
    of them: a history's clock may begin anywhere."""
    about = f' <span class="small">{esc(meaning)}</span>' if meaning else ""
    parts = [f"<h3><code>{esc(one.name)}</code>{about}</h3><p>{esc(one.sentence)}</p>"]
    one = _shortened(one)
    if one.edges:
        picture = drawing.cycle(one.operations, one.edges)
        parts.append(f'<figure class="cycle" tabindex="0">{picture}</figure>')
        parts.append(f'<p class="small">{esc(drawing.legend(one.edges))}</p>')
    if one.steps:
        parts.append(f"<ol>{''.join(_steps(one.steps))}</ol>")
    if one.evidence:
        parts.append(_evidence(one.evidence))
    return f'<article>{"".join(parts)}</article>'


def _shortened(one: Violation) -> Violation:
    """The same with T1, T2, ... for the transactions of its cycle, which the boxes of the drawing name in full."""
    if not one.edges or not any(operation.version for operation in one.operations):
        return one
    operations, steps = [], _relative(one)
    for number, operation in enumerate(one.operations, 1):
        whole = f"{operation.f} {operation.id} (version {operation.version})"
        steps = [step.replace(whole, f"T{number}") for step in steps]
        operations.append(msgspec.structs.replace(operation, f=f"T{number}: {operation.f or 'transaction'}"))
    if len(operations) > drawing.OPERATIONS_MAX:  # there is no drawing
        steps = one.steps
    return msgspec.structs.replace(one, operations=operations, steps=steps)


def _relative(one: Violation) -> list[str]:
    """Its steps. Times of several histories, each with a clock of its own, stay as they are."""
    if len({line.file for line in one.evidence if line.line is not None}) > 1:
        return one.steps
    first = min((float(at) for step in one.steps for _, at in _SECONDS.findall(step)), default=0.0)
    return [_SECONDS.sub(lambda found: f"{found[1]}{float(found[2]) - first:+.6f} s", step) for step in one.steps]


def _steps(steps: Sequence[str]) -> Iterable[str]:
    more = len(steps) - STEPS_MAX
    for number, step in enumerate(steps, 1):
        if more <= 0 or number <= STEPS_MAX // 2 or number > len(steps) - STEPS_MAX // 2:
            yield f'<li value="{number}">{esc(step)}</li>' if more > 0 else f"<li>{esc(step)}</li>"
        elif number == STEPS_MAX // 2 + 1:
            yield f'<li value="{number}">… and {more:,} more, in the JSON</li>'


def _evidence(found: Sequence[Evidence]) -> str:
    lines = "".join(f"<tr><td><code>{esc(one.place)}</code></td><td>{esc(one.text)}</td></tr>" for one in found)
    count = f"{len(found)} log line{'s' * (len(found) > 1)}"
    return (
        f'<details open><summary>{count}</summary><table class="proof"><thead><tr><th scope="col">where</th>'
        f'<th scope="col">what stands there</th></tr></thead><tbody>{lines}</tbody></table></details>'
    )
