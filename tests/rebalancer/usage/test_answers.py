"""Results of Prometheus, decoded; what is not as the API specifies raises."""

import pytest

from rebalancer.usage.answers import Series, samples_in, series_in


def test_a_matrix_is_series() -> None:
    matrix = [{"metric": {"UUID": "GPU-1"}, "values": [[1, "0.5"], [2.5, "+Inf"]]}]

    assert series_in(matrix) == (
        Series(labels={"UUID": "GPU-1"}, points=((1.0, 0.5), (2.5, float("inf")))),
    )


@pytest.mark.parametrize("result", [None, {}, [{"metric": {}}], [{"values": 3}], ["x"], [{}]])
def test_anything_else_raises(result: object) -> None:
    for decode in (samples_in, series_in):
        if result == {} and decode is series_in:
            continue  # no series
        with pytest.raises((TypeError, KeyError, ValueError, IndexError)):
            decode(result)
