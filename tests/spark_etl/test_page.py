"""The page and its drawings: complete, well-formed, and nothing of a run is taken for markup."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from spark_etl import drawing, html
from spark_etl.report import (
    Course,
    Edge,
    Evidence,
    Life,
    ModelVerdict,
    Operation,
    Point,
    Property,
    Report,
    Violation,
    from_json,
    to_json,
)

NASTY = "<script>alert(1)</script>\"'&\u202e\x00</svg>"
_VOID = {"meta", "link", "br"}


class Page(HTMLParser):
    """Every element must be closed; elements, attributes and text are counted."""

    def __init__(self, text: str):
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in _VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.text += data


def cycle(count: int, key: str = "k") -> Violation:
    operations = [Operation(f"id-{n}", "inc", f"{n}-1") for n in range(count)]
    edges = [Edge(n, (n + 1) % count, "rw", key, f"sentence {n}") for n in range(count)]
    steps = [edge.sentence for edge in edges]
    return Violation("G-single", "a circle", steps=steps, operations=operations, edges=edges)


def report(*violations: Violation, run: str = "run", verdict: str = "violated") -> Report:
    lives = [Life(3, 1, 0.0, 12.0, "crashed"), Life(3, 1, 22.0, 30.0, "stopped"), Life(0, 0, 0.0, 30.0, "stopped")]
    points = [Point(second / 2, 10 + second % 7, second % 2, 1.5, 20.0, 3000.0) for second in range(60)]
    course = Course(0.5, points, {0: points, 3: points[:20]}, lives)
    prop = Property("serializability", verdict, 1234, 0.5, len(violations), list(violations))
    models = [ModelVerdict(prefix + "serializable", "violated") for prefix in ("", "strong-session-", "strong-")]
    return Report(
        run, [prop, Property("integrity", "valid", 7, 0.1)], [], [], {"replicas": 6}, 1.5, course, models=models
    )


def test_the_page_needs_nothing_else():
    page = Page(html.page(report(cycle(3))))
    links = [value for name, value in page.attributes if name in ("src", "href") and value]
    assert links and all(link.startswith(("#", "data:")) for link in links)
    assert page.tags.count("style") == page.tags.count("script") == 1


def test_the_summary_says_it_all_and_every_property_has_its_section():
    whole = report(cycle(3))
    page = Page(html.page(whole))
    assert "✗ violated" in page.text and "1 found" in page.text
    for number, prop in enumerate(whole.properties):
        assert ("id", f"p{number}") in page.attributes and ("href", f"#p{number}") in page.attributes
        assert prop.name in page.text and html.GUARANTEES[prop.name] in page.text


def test_nothing_from_a_run_is_markup():
    good = cycle(2)
    good.evidence = [Evidence("a file", "a record", line=1)]
    plain = Page(html.page(report(good)))
    bad = cycle(2, NASTY)
    bad.name = bad.sentence = bad.steps[0] = bad.edges[0].sentence = NASTY
    bad.operations[0] = Operation(NASTY, NASTY, NASTY)
    bad.evidence = [Evidence(NASTY, NASTY, line=1)]
    whole = report(bad, run=NASTY)
    whole.problems, whole.notes, whole.input["protocol"] = [NASTY], [NASTY], NASTY
    whole.properties[0].note = NASTY
    page = Page(html.page(whole))
    assert page.tags.count("script") == plain.tags.count("script")
    assert {name for name, _ in page.attributes} == {name for name, _ in plain.attributes}
    assert "<script>alert(1)</script>\"'&\\u202e\\u0000</svg>" in page.text
    assert "\u202e" not in html.page(whole) and "\x00" not in html.page(whole)


@pytest.mark.parametrize("count", [2, 3, 4, 9, drawing.OPERATIONS_MAX])
def test_a_cycle_has_a_box_per_operation_and_an_arrow_per_edge(count: int):
    violation = cycle(count)
    svg = drawing.cycle(violation.operations, violation.edges)
    page = Page(svg)
    assert page.tags.count("rect") == count and svg.count("marker-end") == count
    wide, high = (float(n) for n in re.findall(r"viewBox=\"0 0 (\d+) (\d+)\"", svg)[0])
    for x, y, width, height in re.findall(r'x="([\d.-]+)" y="([\d.-]+)" width="(\d+)" height="(\d+)"', svg):
        assert float(x) >= 0 and float(x) + float(width) <= wide
        assert float(y) >= 0 and float(y) + float(height) <= high
    for n in range(count):
        assert f"{n + 1} rw k" in page.text and f"sentence {n}" in page.text


def test_a_cycle_too_long_to_draw_is_told():
    violation = cycle(drawing.OPERATIONS_MAX + 1)
    assert "25 operations, too many" in drawing.cycle(violation.operations, violation.edges)


def test_failures_are_marked_in_every_chart():
    charts = drawing.course(report().course)
    assert [title.split(":")[0].split(",")[0] for title, _ in charts] == [
        "Operations answered per second", "Latency of answers", "Delivery lag", "Lives of the replicas"
    ]  # fmt: skip
    for _, svg in charts[:3]:
        assert "3 gone" in svg and "3 back" in svg
    assert charts[3][1].count('class="bar"') == 3 and charts[3][1].count('class="gone"') == 1


def test_a_run_without_clients_or_without_anything_has_fewer_charts():
    course = report().course
    course.operations = []
    assert drawing.course(course)[0][0] == "Deliveries per second, all replicas"
    assert drawing.course(Course()) == []


def test_a_report_comes_back_as_it_was():
    whole = report(cycle(3))
    assert from_json(to_json(whole), "r") == whole
    for data in (b"{", b"[]", b'{"version":99}'):
        with pytest.raises(ValueError, match=r"^r: "):
            from_json(data, "r")
