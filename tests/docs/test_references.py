"""Every setting of the ConfigMap, every strategy and every metric stands in a reference.

The rebalancer's settings and metrics are in tests/rebalancer.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import pytest
from prometheus_client import CollectorRegistry

from certs.metrics import CertsMetrics
from component.placement_config import placement_schema
from deviceplugin.metrics import DevicePluginMetrics
from scheduler.metrics import SchedulerMetrics
from tests.fakes.clock import VirtualClock
from tests.support.helm import ROOT
from webhook.admission_config import schema as admission_schema
from webhook.metrics import WebhookMetrics


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


ROLES: Final[Mapping[str, tuple[str, Callable[[CollectorRegistry], object]]]] = {
    "webhook": ("docs/webhook.md", WebhookMetrics),
    "scheduler": ("docs/scheduler-reference.md", SchedulerMetrics),
    "deviceplugin": ("docs/metrics.md", DevicePluginMetrics),
    "certs": ("docs/certificates.md", lambda registry: CertsMetrics(registry, VirtualClock())),
}


@pytest.mark.parametrize("role", ROLES)
def test_every_metric_of_a_role_stands_on_its_page(role: str) -> None:
    document, metrics_in = ROLES[role]
    registry = CollectorRegistry()
    metrics_in(registry)

    names = {name.removeprefix(f"fracgpu_{role}_") for name in names_of(registry)}

    # What every role that follows the ConfigMap has is described once, in docs/metrics.md.
    own = {name for name in names if not name.startswith("config_")}
    documented = set(
        re.findall(r"\w+", (ROOT / document).read_text().replace(f"fracgpu_{role}_", ""))
    )
    assert own
    assert own - documented == set()
