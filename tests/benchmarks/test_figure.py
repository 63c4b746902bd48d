"""A figure is one line of JSON that a program can compare."""

import json
import math

import pytest

from benchmarks.figure import Figure, percentile


def test_a_figure_is_one_line_with_name_value_unit_and_note() -> None:
    line = Figure(name="a.b", value=1.5, unit="ms", note="to an echo\nof the same bodies").line()

    note = "to an echo\nof the same bodies"
    assert json.loads(line) == {"name": "a.b", "value": 1.5, "unit": "ms", "note": note}
    assert "\n" not in line


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_figure_that_json_cannot_write_is_our_mistake(value: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        Figure(name="a.b", value=value, unit="ms")


@pytest.mark.parametrize(("share", "value"), [(50, 2), (51, 3), (99, 4), (100, 4), (0, 1)])
def test_a_percentile_is_one_of_the_values(share: int, value: float) -> None:
    assert percentile([4, 1, 3, 2], share) == value
