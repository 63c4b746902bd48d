"""The results of Prometheus' queries: instant vectors, scalars and matrices, decoded.

Source: https://prometheus.io/docs/prometheus/latest/querying/api/#expression-query-result-formats
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

_VECTOR_PARTS: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One series of an instant vector; *value* may be NaN or infinite."""

    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One series of a matrix: pairs of Unix time and value, oldest first."""

    labels: Mapping[str, str]
    points: tuple[tuple[float, float], ...]


def samples_in(result: Any) -> tuple[Sample, ...]:
    """Return the samples of an instant query's result.

    Raises:
        TypeError, KeyError, ValueError, IndexError: it is not as the API specifies.
    """
    if not isinstance(result, list):
        raise TypeError(f"result is {type(result).__name__}")
    if len(result) == _VECTOR_PARTS and not isinstance(result[0], dict):
        return (Sample(labels={}, value=float(result[1])),)  # a scalar: [time, "value"]
    return tuple(
        Sample(
            labels={str(k): str(v) for k, v in series["metric"].items()},
            value=float(series["value"][1]),
        )
        for series in result
    )


def series_in(result: Any) -> tuple[Series, ...]:
    """Return the series of a range query's result.

    Raises:
        TypeError, KeyError, ValueError: it is not as the API specifies.
    """
    return tuple(_series(series) for series in result)


def _series(series: Any) -> Series:
    return Series(
        labels={str(k): str(v) for k, v in series["metric"].items()},
        points=tuple((float(at_s), float(value)) for at_s, value in series["values"]),
    )
