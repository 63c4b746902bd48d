"""The queries of our dashboards, asked as Grafana would ask them."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

from process.clock import SystemClock
from simulator.envtest.prometheus import RealPrometheus

FOLDER: Final = Path(__file__).parents[2] / "deploy" / "grafana"
NAMES: Final = ("cluster", "pool", "node", "card", "namespace", "pod")
ALL: Final = dict.fromkeys(NAMES, ".*")
# What Grafana would choose for a scrape each second and the last quarter of an hour.
_ALWAYS: Final = {"__rate_interval": "30s", "__range": "15m"}


@dataclass(frozen=True, slots=True)
class Asked:
    """One query of a panel."""

    panel: str
    expr: str
    over_time: bool


def dashboards() -> Iterator[tuple[str, Any]]:
    """Return each dashboard by its name."""
    for file in sorted(FOLDER.glob("*.json")):
        yield file.stem, json.loads(file.read_text())


def queries() -> list[Asked]:
    """Return every query of every panel, and those of the annotations."""
    found = [
        Asked(f"{name}: {panel['title']} {target['refId']}", target["expr"], bool(target["range"]))
        for name, dashboard in dashboards()
        for panel in dashboard["panels"]
        for target in panel.get("targets", ())
    ]
    return found + [
        Asked(f"{name}: annotation {query['name']}", query["expr"], over_time=True)
        for name, dashboard in dashboards()
        for query in dashboard["annotations"]["list"]
    ]


def filled(expr: str, chosen: Mapping[str, str]) -> str:
    """Return *expr* with values in place of the variables, as Grafana would send it."""
    done = re.sub(r"\$(\w+)", lambda name: {**chosen, **_ALWAYS}[name[1]], expr)
    assert "$" not in done
    return done


class Answers:
    """Asks a Prometheus what Grafana would ask it.

    Args:
        prometheus: the one that scrapes.
        began_s: from when on queries over time are asked.
    """

    def __init__(self, prometheus: RealPrometheus, began_s: float) -> None:
        self._prometheus = prometheus
        self._began_s = began_s

    async def of(self, asked: Asked, chosen: Mapping[str, str]) -> list[Any]:
        """Return the series that have a value, at the end or over the time of the test."""
        words: dict[str, Any] = {"query": filled(asked.expr, chosen)}
        path = "query"
        if asked.over_time:
            now_s = SystemClock().now().timestamp()
            words |= {"start": self._began_s, "end": now_s, "step": 2}
            path = "query_range"
        try:
            answer = await self._prometheus.get(f"/api/v1/{path}?{urlencode(words)}")
        except OSError as error:
            raise AssertionError(f"{asked.panel}: {error}: {words['query']}") from error
        return [series for series in answer["data"]["result"] if _has_value(series)]

    async def one(self, expr: str) -> Mapping[str, str]:
        """Return the labels of the first series that *expr* selects."""
        series = await self.of(Asked("", expr, over_time=False), ALL)
        labels: Mapping[str, str] = series[0]["metric"]
        return labels

    async def empty(self, asked: Iterable[Asked], chosen: Mapping[str, str]) -> list[Asked]:
        """Return those queries that are answered with nothing."""
        return [one for one in asked if not await self.of(one, chosen)]


def _has_value(series: Any) -> bool:
    values = series.get("values") or [series["value"]]
    return any(value != "NaN" for _, value in values)
