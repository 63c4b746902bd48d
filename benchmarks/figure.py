"""One measured figure, and what a benchmark module has to offer."""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """What was measured.

    Attributes:
        name: dotted, the benchmark's own name first: ``extender.filter_1000_nodes_p50``.
        unit: such as ``ms``, ``MiB``, ``1/s``, ``ratio``.
        note: what a reader must know to compare it, such as the machine or the repetitions.
    """

    name: str
    value: float
    unit: str
    note: str = ""

    def __post_init__(self) -> None:
        if not math.isfinite(self.value):
            raise ValueError(f"figure {self.name} is {self.value}; want a finite number")

    def line(self) -> str:
        """Write it as one line of JSON; the note stands there only where there is one."""
        fields: dict[str, str | float] = {
            "name": self.name,
            "value": self.value,
            "unit": self.unit,
        }
        if self.note:
            fields["note"] = self.note
        return json.dumps(fields)


class Benchmark(Protocol):
    """A module of this package that measures something.

    ``figures`` yields each figure as soon as it is known. A module that also says ``SLOW = True``
    runs only when somebody names it.
    """

    def figures(self) -> Iterator[Figure]: ...
