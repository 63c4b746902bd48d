"""Charts show the curves they are given."""

import xml.etree.ElementTree as ET

from cli.printers.chart import svg_chart, text_chart

SVG = "{http://www.w3.org/2000/svg}"
LOW = [float(min(load, 80)) for load in range(131)]
HIGH = [float(min(load, 95)) for load in range(131)]


def test_the_better_curve_is_drawn_above() -> None:
    lines = list(text_chart({"low": LOW, "high": HIGH}))

    rows = {mark: [at for at, line in enumerate(lines[:16]) if mark in line] for mark in "*o"}
    assert rows["o"][0] == 0
    assert rows["*"][0] > 0
    assert lines[0].lstrip().startswith("95.0 %")
    assert lines[-1].split() == ["*", "low", "o", "high"]


def test_lines_that_do_not_move_are_drawn_all_the_same() -> None:
    flat = [50.0] * 131

    assert any("*" in line for line in text_chart({"flat": flat}))


def test_a_curve_that_ends_early_is_drawn_to_its_end() -> None:
    assert list(text_chart({"short": [0.0, 1.0], "long": HIGH}))


def test_an_svg_holds_one_line_and_one_name_for_each_policy() -> None:
    root = ET.fromstring(svg_chart({"low": LOW, "a<b": HIGH}, title="8 cards & 6 pods"))  # noqa: S314

    assert len(root.findall(f"{SVG}polyline")) == 2
    words = [element.text for element in root.findall(f"{SVG}text")]
    assert {"low", "a<b", "8 cards & 6 pods", "100"} <= set(words)


def test_an_svg_stays_inside_its_frame() -> None:
    root = ET.fromstring(svg_chart({"low": LOW, "high": HIGH}, title="t"))  # noqa: S314

    for line in root.findall(f"{SVG}polyline"):
        for point in (line.get("points") or "").split():
            across, down = map(float, point.split(","))
            assert 60 <= across <= 660
            assert 60 <= down <= 360
