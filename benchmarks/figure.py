"""One measured figure, and the interface of a benchmark module."""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measured value.

    Attributes:
        name: dotted, beginning with the benchmark's name: ``extender.filter_1000_nodes_p50``.
        unit: such as ``ms``, ``MiB``, ``1/s``, ``ratio``.
        note: what is needed to compare it, such as the machine or the repetitions.
    """

    name: str
    value: float
    unit: str
    note: str = ""

    def __post_init__(self) -> None:
        if not math.isfinite(self.value):
            raise ValueError(f"figure {self.name} is {self.value}; want a finite number")

    def line(self) -> str:
        """Return the figure as one line of JSON, with its note if there is one."""
        fields: dict[str, str | float] = {
            "name": self.name,
            "value": self.value,
            "unit": self.unit,
        }
        if self.note:
            fields["note"] = self.note
        return json.dumps(fields)


def percentile(values: Sequence[float], share: int) -> float:
    """Return the least of *values* that *share* per cent of them do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * share / 100) - 1)]


class Benchmark(Protocol):
    """The interface of a benchmark module.

    ``figures`` yields each figure as soon as it is known. A module that also says ``SLOW = True``
    runs only when it is named.
    """

    def figures(self) -> Iterator[Figure]: ...
