"""Durations as kubectl writes them."""

import pytest

from simulator.apiserver.endpoints.ages import human_duration

HOUR, DAY, YEAR = 3600, 86_400, 365 * 86_400


# The examples of k8s.io/apimachinery pkg/util/duration/duration_test.go.
@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (119, "119s"),
        (120, "2m"),
        (121, "2m1s"),
        (10 * 60 + 5, "10m"),
        (3 * HOUR - 1, "179m"),
        (3 * HOUR, "3h"),
        (3 * HOUR + 5 * 60, "3h5m"),
        (8 * HOUR + 5 * 60, "8h"),
        (47 * HOUR, "47h"),
        (49 * HOUR, "2d1h"),
        (8 * DAY, "8d"),
        (2 * YEAR - 1, "729d"),
        (2 * YEAR, "2y"),
        (3 * YEAR + 5 * DAY, "3y5d"),
        (9 * YEAR + 5 * DAY, "9y"),
        (-2, "<invalid>"),
    ],
)
def test_a_duration_has_two_units_at_most(seconds: int, text: str) -> None:
    assert human_duration(seconds) == text
