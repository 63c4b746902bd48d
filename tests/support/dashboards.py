"""The queries of our dashboards, asked as Grafana would ask them."""

import json
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

import pytest

from process.clock import SystemClock
from tests.support.waiting import until

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
        get: GETs a path of the API of the one that scrapes, and returns the decoded JSON.
        began_s: from when on queries over time are asked.
    """

    def __init__(self, get: Callable[[str], Awaitable[Any]], began_s: float) -> None:
        self._get = get
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
            answer = await self._get(f"/api/v1/{path}?{urlencode(words)}")
        except OSError as error:
            raise AssertionError(f"{asked.panel}: {error}: {words['query']}") from error
        return [series for series in answer["data"]["result"] if _has_value(series)]

    async def one(self, expr: str) -> Mapping[str, str]:
        """Return the labels of the first series that *expr* selects."""
        series = await self.of(Asked("", expr, over_time=False), ALL)
        labels: Mapping[str, str] = series[0]["metric"]
        return labels

    async def rules(self) -> list[Any]:
        """Return every rule, with its health."""
        groups = (await self._get("/api/v1/rules"))["data"]["groups"]
        return [rule for group in groups for rule in group["rules"]]

    async def empty(self, asked: Iterable[Asked], chosen: Mapping[str, str]) -> list[Asked]:
        """Return those queries that are answered with nothing."""
        return [one for one in asked if not await self.of(one, chosen)]


def _has_value(series: Any) -> bool:
    values = series.get("values") or [series["value"]]
    return any(value != "NaN" for _, value in values)


async def nothing_is_empty(answers: Answers, chosen: Mapping[str, str]) -> None:
    """Fail with the queries that are answered with nothing.

    What only NVIDIA's cards measure is not asked of an AMD card.
    """
    waiting = queries()
    assert len(waiting) > 100
    if chosen["pool"].startswith("AMD"):
        waiting = [asked for asked in waiting if not re.search("DCGM_|row_remap", asked.expr)]
        assert len(waiting) > 90
    unanswered: list[str] = []

    async def none_is_left() -> bool:
        waiting[:] = await answers.empty(waiting, chosen)
        unanswered[:] = [f"{asked.panel}: {filled(asked.expr, chosen)}" for asked in waiting]
        return not waiting

    try:
        # A counter that has just appeared has no rate yet.
        await until(none_is_left, what="", limit_s=40)
    except AssertionError:
        pytest.fail("answered with nothing:\n" + "\n".join(unanswered))


async def one_card(answers: Answers) -> Mapping[str, str]:
    """Return the values that stand for the card that was relieved, and for a pod that is on it."""
    card = await answers.one(
        "topk(1, max by (node, UUID, modelName) (max_over_time(card:gpu_busy:percent[10m])))"
    )
    pod = await answers.one(f'fracgpu_pod_card_info{{UUID="{card["UUID"]}"}}')
    return {
        "cluster": ".*",
        "pool": card["modelName"],
        "node": card["node"],
        "card": card["UUID"],
        "namespace": pod["namespace"],
        "pod": pod["pod"],
    }


async def every_variable_has_values(answers: Answers) -> None:
    """Fail where Grafana would have nothing to choose from."""
    for name, dashboard in dashboards():
        for variable in dashboard["templating"]["list"]:
            # Only a Prometheus for several clusters has that label.
            if variable["type"] != "query" or variable["name"] == "cluster":
                continue
            found = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]["query"])
            assert found, name
            expr = f"count by ({found[2]}) ({found[1]})"
            series = await answers.of(Asked(name, expr, over_time=False), ALL)
            assert series, f"{name}: {variable['name']}"
            assert all(series[found[2]] for series in (one["metric"] for one in series))


async def the_rules_are_evaluated_and_nothing_is_critical(answers: Answers) -> None:
    """Fail where a rule cannot be evaluated, or an alert says that something is broken."""
    rules = await answers.rules()

    assert len(rules) > 40
    assert [rule["lastError"] for rule in rules if rule["health"] != "ok"] == []
    critical = Asked("alerts", 'ALERTS{severity="critical",alertstate="firing"}', over_time=True)
    assert await answers.of(critical, ALL) == []
