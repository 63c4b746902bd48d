"""The files that Grafana imports: complete, consistent, and of series that there are."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from tests.support.metric_names import exported
from tests.support.promtool import RULES
from tests.support.yaml_files import read_yaml

ROOT: Final = Path(__file__).parents[2]
FILES: Final = sorted((ROOT / "charts/fracgpu/files/dashboards").glob("*.json"))
SERIES: Final = re.compile(r"(?:\bfracgpu_|\bDCGM_|\bcard:)[\w:]+")
COLUMNS: Final = 24


def read(file: Path) -> Any:
    return json.loads(file.read_text())


def expressions(dashboard: Any) -> Iterator[str]:
    for panel in dashboard["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))
    yield from (query["expr"] for query in dashboard["annotations"]["list"])
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["query"]["query"]


def test_there_is_one_each_for_the_cluster_cards_pods_and_the_rebalancer() -> None:
    assert [file.stem for file in FILES] == [
        "fracgpu-card",
        "fracgpu-cluster",
        "fracgpu-pod",
        "fracgpu-rebalancer",
    ]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_grafanas_own_types_know_everything_in_a_dashboard(file: Path) -> None:
    register_default_plugins()

    again = json.loads(json.dumps(Dashboard.from_json(read(file)), cls=JSONEncoder))

    assert list(lost(read(file), again)) == []


def lost(before: Any, after: Any, path: str = "") -> Iterator[str]:
    """Yield what of *before* is not in *after*, which may have defaults beside it."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key, value in before.items():
            yield from lost(value, after.get(key), f"{path}.{key}")
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for at, (value, other) in enumerate(zip(before, after, strict=True)):
            yield from lost(value, other, f"{path}[{at}]")
    elif before != after:
        yield path


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_dashboard_can_be_imported_as_it_is(file: Path) -> None:
    dashboard = read(file)

    assert dashboard["uid"] == file.stem
    assert "id" not in dashboard  # Grafana's own, another in each installation
    assert dashboard["tags"] == ["fracgpu"]
    assert dashboard["links"][0]["tags"] == ["fracgpu"]
    source, *others = dashboard["templating"]["list"]
    assert (source["name"], source["type"], source["query"]) == (
        "datasource",
        "datasource",
        "prometheus",
    )
    asked = [
        *others,
        *dashboard["annotations"]["list"],
        *(panel for panel in dashboard["panels"] if panel["type"] != "row"),
    ]
    asked += [target for panel in dashboard["panels"] for target in panel.get("targets", ())]
    for each in asked:
        assert each["datasource"] == {"type": "prometheus", "uid": "${datasource}"}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_variable_that_is_used_can_be_chosen_and_every_choice_is_used(file: Path) -> None:
    dashboard = read(file)
    offered = {variable["name"] for variable in dashboard["templating"]["list"]}

    used = {name for expr in expressions(dashboard) for name in re.findall(r"\$(\w+)", expr)}

    assert used - {"__rate_interval", "__range"} == offered - {"datasource"}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_dashboard_asks_for_series_that_there_are(file: Path) -> None:
    recorded = {
        rule["record"]
        for group in read_yaml(RULES.read_text())["groups"]
        for rule in group["rules"]
        if "record" in rule
    }

    asked = {name for expr in expressions(read(file)) for name in SERIES.findall(expr)}

    assert asked
    assert asked <= exported() | recorded


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_panels_have_their_own_number_and_place(file: Path) -> None:
    panels = read(file)["panels"]
    taken: dict[tuple[int, int], str] = {}

    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= COLUMNS, panel["title"]
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert taken.setdefault((x, y), panel["title"]) == panel["title"]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_rows_of_a_table_are_those_of_all_its_columns(file: Path) -> None:
    """A series that is only selected keeps its name, which Grafana shows as a label."""
    for panel in read(file)["panels"]:
        if panel["type"] == "table":
            for target in panel["targets"]:
                assert not re.match(r"(card:|fracgpu_|DCGM_)", target["expr"]), panel["title"]


def test_heat_decision_and_effect_are_on_one_screen() -> None:
    (cluster,) = [read(file) for file in FILES if file.stem == "fracgpu-cluster"]
    titles = [panel["title"] for panel in cluster["panels"]]
    row = titles.index("Heat, decision, effect")
    panels = [
        panel
        for panel in cluster["panels"][row + 1 : titles.index("Every card")]
        if re.match(r"Heat|Decision|Effect", panel["title"])
    ]

    assert {panel["title"].partition(":")[0] for panel in panels} == {"Heat", "Decision", "Effect"}
    # A unit is 30 pixels high with the space below it 38; a common screen shows about 900 pixels.
    top = min(panel["gridPos"]["y"] for panel in panels)
    assert max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in panels) - top <= 20
