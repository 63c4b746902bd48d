"""What a dashboard shows, independently of Grafana's JSON."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final


class Kind(Enum):
    """How a panel draws its queries."""

    STAT = "stat"
    LINES = "lines"
    STACKED = "stacked"
    BARS = "bars"
    TABLE = "table"
    HISTORY = "history"  # a coloured cell for each value
    STATES = "states"  # a bar for each series, coloured by its state


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """One query.

    Attributes:
        expr: in PromQL, with Grafana's variables.
        legend: the name of a series, or of a table's column.
        unit: of that column, where it is not the panel's.
        states: the text and the colour of each value of that column.
    """

    expr: str
    legend: str = ""
    unit: str = ""
    states: Mapping[str, tuple[str, str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One panel.

    Attributes:
        unit: an identifier of Grafana.
        steps: the value from which each colour is used; None stands for the lowest.
        states: the text and the colour of each value.
        width: of the 24 columns of a screen.
        card_links: link the column UUID of a table to the dashboard of that card.
        no_value: shown instead of an empty answer.
    """

    title: str
    kind: Kind
    queries: tuple[Query, ...]
    description: str = ""
    unit: str = "short"
    steps: tuple[tuple[float | None, str], ...] = ()
    states: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    maximum: float | None = None
    width: int = 8
    height: int = 8
    card_links: bool = False
    no_value: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Panels under a heading."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """A choice at the top of a dashboard, of the values of a label; several, or all."""

    name: str
    title: str
    series: str
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Dashboard:
    """One dashboard; *uid* is part of its address and never changes."""

    uid: str
    title: str
    description: str
    variables: tuple[Variable, ...]
    rows: tuple[Row, ...]

    @property
    def file(self) -> str:
        """The name of its file."""
        return f"{self.uid}.json"


GREEN: Final = "green"
YELLOW: Final = "yellow"
ORANGE: Final = "orange"
RED: Final = "red"
BLUE: Final = "blue"

# As the rebalancer's defaults for calm and hot.
HEAT: Final = ((None, GREEN), (65.0, YELLOW), (80.0, RED))
FULLNESS: Final = ((None, BLUE), (80.0, YELLOW), (97.0, RED))
GOOD_IF_ZERO: Final = ((None, GREEN), (1.0, RED))
GOOD_IF_ONE: Final = ((None, RED), (1.0, GREEN))


def stat(  # noqa: PLR0913 - one line for each panel
    title: str,
    expr: str,
    *,
    legend: str = "",
    unit: str = "short",
    steps: tuple[tuple[float | None, str], ...] = (),
    description: str = "",
    width: int = 4,
) -> Panel:
    """Return a panel with the newest value of a query, or of each of its series."""
    return Panel(
        title=title,
        kind=Kind.STAT,
        queries=(Query(expr=expr, legend=legend),),
        unit=unit,
        steps=steps,
        description=description,
        width=width,
        height=4,
    )


def graph(  # noqa: PLR0913 - one line for each panel
    title: str,
    *queries: tuple[str, str],
    unit: str = "short",
    kind: Kind = Kind.LINES,
    description: str = "",
    maximum: float | None = None,
    steps: tuple[tuple[float | None, str], ...] = (),
    width: int = 8,
) -> Panel:
    """Return a panel over time; each query is given with its legend."""
    return Panel(
        title=title,
        kind=kind,
        queries=tuple(Query(expr=expr, legend=legend) for expr, legend in queries),
        unit=unit,
        description=description,
        maximum=maximum,
        steps=steps,
        width=width,
    )
