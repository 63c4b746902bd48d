"""The columns of each kind."""

from datetime import UTC, datetime
from typing import Any

import pytest

from simulator.apiserver.apimachinery.resources import ALL, Resource, find
from simulator.apiserver.endpoints.columns import printer_of
from simulator.apiserver.registry.custom_resources import defined_by
from simulator.demo.service_accounts import deployed

NOW = datetime(2026, 1, 1, 12, 0, 30, tzinfo=UTC)
META = {"name": "x", "creationTimestamp": "2026-01-01T12:00:00Z"}
TEMPLATE = {"spec": {"containers": [{"name": "a", "image": "i"}, {"name": "b", "image": "j"}]}}
SELECTOR = {"matchLabels": {"b": "2", "a": "1"}}


def row(group: str, plural: str, body: dict[str, Any]) -> dict[str, Any]:
    resource = find(group, "v1", plural)
    assert resource is not None
    printer = printer_of(resource)
    cells = printer.cells({"metadata": META, **body}, NOW)
    return dict(zip((column.name for column in printer.columns), cells, strict=True))


@pytest.mark.parametrize("resource", ALL, ids=lambda one: one.qualified)
def test_every_kind_has_as_many_cells_as_columns(resource: Resource) -> None:
    printer = printer_of(resource)

    spec = {"containers": [], "template": TEMPLATE}
    cells = printer.cells({"metadata": META, "spec": spec}, NOW)

    assert len(cells) == len(printer.columns)
    assert "x" in cells


def test_a_node_tells_whether_it_is_ready_and_its_roles() -> None:
    shown = row("", "nodes", {"status": {"conditions": [{"type": "Ready", "status": "True"}]}})
    assert (shown["Status"], shown["Roles"], shown["Age"]) == ("Ready", "<none>", "30s")

    shown = row("", "nodes", {"spec": {"unschedulable": True}})
    assert shown["Status"] == "Unknown,SchedulingDisabled"
    assert shown["OS-Image"] == "<unknown>"


def test_a_deployment_tells_its_replicas_and_its_template() -> None:
    body = {
        "spec": {"replicas": 3, "template": TEMPLATE, "selector": SELECTOR},
        "status": {"readyReplicas": 2, "updatedReplicas": 3, "availableReplicas": 1},
    }

    shown = row("apps", "deployments", body)

    assert (shown["Ready"], shown["Up-to-date"], shown["Available"]) == ("2/3", 3, 1)
    assert (shown["Containers"], shown["Images"]) == ("a,b", "i,j")
    assert shown["Selector"] == "a=1,b=2"


def test_a_job_tells_how_long_it_took() -> None:
    body = {
        "spec": {"completions": 2, "template": TEMPLATE},
        "status": {
            "succeeded": 2,
            "startTime": "2026-01-01T12:00:00Z",
            "completionTime": "2026-01-01T12:00:07Z",
            "conditions": [{"type": "Complete", "status": "True"}],
        },
    }

    shown = row("batch", "jobs", body)

    assert (shown["Status"], shown["Completions"], shown["Duration"]) == ("Complete", "2/2", "7s")


def test_an_event_tells_what_it_is_about() -> None:
    body = {
        "involvedObject": {"kind": "Pod", "name": "p"},
        "message": " said \n",
        "type": "Warning",
        "firstTimestamp": "2026-01-01T12:00:10Z",
        "lastTimestamp": "2026-01-01T12:00:20Z",
        "source": {"component": "kubelet", "host": "n1"},
        "count": 3,
    }

    shown = row("", "events", body)

    assert (shown["Object"], shown["Message"], shown["Count"]) == ("pod/p", "said", 3)
    assert (shown["Last Seen"], shown["First Seen"]) == ("10s", "20s")
    assert shown["Source"] == "kubelet, n1"


def test_a_custom_resource_has_the_columns_of_its_definition() -> None:
    (definition,) = deployed("CustomResourceDefinition")
    printer = printer_of(defined_by(definition))

    cells = printer.cells(
        {
            "metadata": META,
            "spec": {"pod": {"namespace": "demo", "name": "p"}, "source": {"display": "n1/0"}},
            "status": {"phase": "Planned"},
        },
        NOW,
    )

    shown = dict(zip((column.name for column in printer.columns), cells, strict=True))
    assert (shown["Namespace"], shown["Pod"], shown["From"]) == ("demo", "p", "n1/0")
    assert (shown["Phase"], shown["To"], shown["Age"]) == ("Planned", None, "30s")
    assert [column.name for column in printer.columns if column.priority] == ["Message"]
