"""Every setting of the ConfigMap and every metric of the extender has its row in a reference.

The rebalancer's settings, which are a table made from the code, are in tests/rebalancer.
"""

import re
from collections.abc import Iterable

import pytest
from prometheus_client import CollectorRegistry

from component.config_keys import placement_schema
from scheduler.metrics import SchedulerMetrics
from tests.support.helm import ROOT
from webhook.admission_config import schema as admission_schema


def named_in_rows(document: str) -> set[str]:
    """Return what stands in code in the first cell of the rows of a document's tables."""
    rows = (line for line in (ROOT / document).read_text().splitlines() if line.startswith("| `"))
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row.split(" | ")[0])}


@pytest.mark.parametrize("key", sorted(admission_schema()["properties"]))
def test_every_key_of_admission_has_its_row(key: str) -> None:
    assert key in named_in_rows("docs/webhook.md")


@pytest.mark.parametrize("strategy", placement_schema()["properties"]["strategy"]["enum"])
def test_every_strategy_has_its_row(strategy: str) -> None:
    assert strategy in named_in_rows("docs/scheduler.md")


def names_of(registry: CollectorRegistry) -> Iterable[str]:
    for family in registry.collect():
        yield family.name + ("_total" if family.type == "counter" else "")


def test_every_metric_of_the_extender_has_its_row() -> None:
    registry = CollectorRegistry()
    SchedulerMetrics(registry)

    ours = {name.removeprefix("fracgpu_scheduler_") for name in names_of(registry)}

    # What all roles that follow the ConfigMap have is described once, in docs/metrics.md.
    own = {name for name in ours if not name.startswith("config_")}
    assert own - named_in_rows("docs/scheduler-reference.md") == set()
