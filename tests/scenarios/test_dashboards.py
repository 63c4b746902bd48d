"""Every query of every dashboard, answered by a real Prometheus that scrapes the real roles."""

import json
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

from process.clock import SystemClock
from simulator.cards.simulated_cards import write_cards_file
from simulator.demo.rig import Rig, RigSettings, open_rig
from simulator.demo.script import Progress, Script, play_within
from tests.support.dashboards import ALL, Answers, Asked, dashboards, filled, queries
from tests.support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

LIMIT_S: Final = 200.0
# An error of a program: it is shown, and says nothing about the card.
XID: Final = 13


async def test_no_query_of_any_dashboard_is_answered_with_nothing_and_no_role_restarts() -> None:
    began_s = SystemClock().now().timestamp()
    with tempfile.TemporaryDirectory(prefix="fg-", dir="/tmp") as folder:
        async with open_rig(
            RigSettings(nodes=2, cards_per_node=6), Path(folder), SystemClock()
        ) as rig:
            _show_every_figure_of_cards(Path(folder))
            script = Script(rig, SystemClock(), Progress())
            trouble = await play_within(script, LIMIT_S)
            assert not trouble, trouble
            answers = Answers(rig.prometheus, began_s)

            await _nothing_is_empty(answers, ALL)
            await _nothing_is_empty(answers, await _one_card(answers))
            await _every_variable_has_values(answers)
            await _the_rules_are_evaluated_and_nothing_is_critical(answers, rig)
            assert {rig.supervisor.starts(name) for name in rig.supervisor.names()} == {1}


def _show_every_figure_of_cards(folder: Path) -> None:
    """Give the cards a profile, as since Hopper, and each of them an XID error."""
    for file in folder.glob("n*/cards.json"):
        document = json.loads(file.read_text())
        for card in document["cards"]:
            card["xids"] = [XID]
        write_cards_file(file, {**document, "family": "hopper"})


async def _nothing_is_empty(answers: Answers, chosen: Mapping[str, str]) -> None:
    waiting = queries()
    assert len(waiting) > 100
    told: list[str] = []

    async def none_is_left() -> bool:
        waiting[:] = await answers.empty(waiting, chosen)
        told[:] = [f"{asked.panel}: {filled(asked.expr, chosen)}" for asked in waiting]
        return not waiting

    try:
        # A counter that has just appeared has no rate yet.
        await until(none_is_left, what="", limit_s=40)
    except AssertionError:
        pytest.fail("answered with nothing:\n" + "\n".join(told))


async def _one_card(answers: Answers) -> Mapping[str, str]:
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


async def _every_variable_has_values(answers: Answers) -> None:
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


async def _the_rules_are_evaluated_and_nothing_is_critical(answers: Answers, rig: Rig) -> None:
    groups = (await rig.prometheus.get("/api/v1/rules"))["data"]["groups"]
    rules = [rule for group in groups for rule in group["rules"]]

    assert len(rules) > 40
    assert [rule["lastError"] for rule in rules if rule["health"] != "ok"] == []
    critical = Asked("alerts", 'ALERTS{severity="critical"}', over_time=True)
    assert await answers.of(critical, ALL) == []
