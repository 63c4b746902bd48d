"""Results of Prometheus, decoded; what is not as the API specifies raises."""

import pytest

from rebalancer.usage.prometheus import Sample, Series, samples_in, series_in


def test_a_vector_and_a_scalar_are_samples() -> None:
    vector = [{"metric": {"UUID": "GPU-1"}, "value": [1.5, "42"]}]

    assert samples_in(vector) == (Sample(labels={"UUID": "GPU-1"}, value=42.0),)
    assert samples_in([1.5, "42"]) == (Sample(labels={}, value=42.0),)
    assert samples_in([]) == ()


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
