"""What the demo submits is what it says it submits."""

import pytest

from fracgpu.cards.card import NodeCards
from fracgpu.cards.card_class import card_classes
from fracgpu.errors import RequestError
from fracgpu.k8s.container import ContainerSpec
from fracgpu.request.grant import grant
from fracgpu.request.language import parse_request
from simulator.cards.models import plan_nodes
from simulator.demo.workload import (
    BadRequest,
    DemoWorkload,
    bad_requests,
    heating_workload,
    steady_workloads,
)

PARK = [NodeCards(node=plan.name, cards=plan.cards) for plan in plan_nodes(4, 4)]
CLASSES = card_classes(
    PARK, free_mib={card.uuid: card.capacity_mib for node in PARK for card in node.cards}
)


def annotations_and_specs(body: object) -> tuple[dict[str, str], list[ContainerSpec]]:
    assert isinstance(body, dict)
    pod = body["spec"].get("template", body)
    specs = [
        ContainerSpec(name=container["name"], limits=container["resources"].get("limits", {}))
        for container in pod["spec"]["containers"]
    ]
    annotations = {
        key: value
        for key, value in pod["metadata"]["annotations"].items()
        if key.startswith("fracgpu.io/")
    }
    return annotations, specs


@pytest.mark.parametrize(
    "workload", [*steady_workloads(), heating_workload()], ids=lambda workload: workload.name
)
def test_every_workload_can_be_granted_on_the_default_park(workload: DemoWorkload) -> None:
    request = parse_request(*annotations_and_specs(workload.body))

    assert request is not None
    assert grant(request, CLASSES).need.containers


def read_and_grant(bad: BadRequest) -> None:
    request = parse_request(*annotations_and_specs(bad.body))
    assert request is not None
    grant(request, CLASSES)


@pytest.mark.parametrize("bad", bad_requests()[:2], ids=lambda bad: bad.name)
def test_a_bad_request_is_refused_by_the_core_with_what_it_should_mention(bad: BadRequest) -> None:
    with pytest.raises(RequestError) as refused:
        read_and_grant(bad)

    assert all(mention in str(refused.value) for mention in bad.mentions)


def test_the_heating_pods_are_hot_together_and_cool_apart() -> None:
    body = heating_workload().body
    busy = float(body["spec"]["template"]["metadata"]["annotations"]["simulator.fracgpu.io/busy"])

    assert 2 * busy > 0.8
    assert busy <= 0.6
