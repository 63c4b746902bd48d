"""The runtime asks about a container whose cards came with its claim: it gets its limits."""

from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from deviceplugin.cards.interface import CardList, DeviceNode
from deviceplugin.container.cdi import ABSENT, MARK_PATH
from deviceplugin.dra.starts import ClaimedStarts
from deviceplugin.enforcement.gate import PROOF_PATH
from deviceplugin.enforcement.limiter import Limiter
from deviceplugin.metrics import DevicePluginMetrics
from deviceplugin.nri.interface import Adjustment, Container, Mount, PodSandbox, Refused
from fracgpu import names
from fracgpu.cards.card import CardUuid
from fracgpu.state.allocation import Slice
from fracgpu.state.pod_info import PodInfo
from fracgpu.units import Mib
from tests.deviceplugin.builders import (
    NODE,
    FakeCards,
    a_card,
    a_spec_builder,
    a_tracker,
    facts,
)
from tests.deviceplugin.dra.builders import info, pod_body
from tests.deviceplugin.enforcement.builders import a_limited_container, a_limited_node
from tests.deviceplugin.identity.test_starts import no_limits
from tests.fakes.clock import VirtualClock

HELD = {"train": (Slice(card=CardUuid("GPU-a"), mib=Mib(1000)),)}


def a_pod(*, known: bool = True) -> PodInfo:
    found = info(pod_body())
    record = replace(found.record, assignment=HELD if known else None)
    return replace(found, record=record)


async def starts(limiter: Limiter, *pods: PodInfo, unhealthy: str = "") -> ClaimedStarts:
    clock = VirtualClock()
    cards = FakeCards()
    card = a_card("GPU-a", unhealthy=unhealthy)
    file = DeviceNode(path="/dev/nvidia0", host_path="/dev/null")
    cards.answer = CardList(cards=(replace(facts(card), device_nodes=(file,)),))
    tracker = a_tracker(cards, clock)
    await tracker.refresh()
    return ClaimedStarts(
        node=NODE,
        tracker=tracker,
        pods=lambda: {pod.record.uid: pod for pod in pods},
        builder=a_spec_builder(),
        limiter=limiter,
        clock=clock,
        metrics=DevicePluginMetrics(CollectorRegistry()),
        on_started=lambda _claim, _by: None,
    )


def asked(pod: PodInfo, *, held_back: bool = True) -> tuple[PodSandbox, Container]:
    record = pod.record
    sandbox = PodSandbox(id="s", uid=record.uid, name=record.name, namespace=record.namespace)
    mounts = [Mount(destination=MARK_PATH, source=ABSENT)] if held_back else []
    return sandbox, replace(a_limited_container(pod, held_back=False), mounts=mounts)


async def test_a_container_without_promised_limits_is_left_as_it_is(tmp_path: Path) -> None:
    pod = a_pod()

    answer = (await starts(a_limited_node(tmp_path).limiter, pod)).create_container(
        *asked(pod, held_back=False)
    )

    assert answer == Adjustment()


async def test_a_container_that_was_promised_limits_is_held_back_until_they_stand(
    tmp_path: Path,
) -> None:
    pod = a_pod()

    answer = (await starts(a_limited_node(tmp_path).limiter, pod)).create_container(*asked(pod))

    mounts = {mount.destination: mount.source for mount in answer.mounts}
    assert mounts[MARK_PATH] == "/dev/null"
    assert PROOF_PATH in mounts
    assert [device.path for device in answer.devices] == ["/dev/nvidia0"]
    assert answer.env[names.ENV_VISIBLE_DEVICES] == "GPU-a"


async def test_a_container_does_not_restart_on_an_unhealthy_card(tmp_path: Path) -> None:
    pod = a_pod()
    node = await starts(a_limited_node(tmp_path).limiter, pod, unhealthy="XID 79")

    with pytest.raises(Refused, match="its card GPU-a is unhealthy: XID 79"):
        node.create_container(*asked(pod))


async def test_a_container_is_refused_whose_cards_are_not_known(tmp_path: Path) -> None:
    pod = a_pod(known=False)
    limiter = a_limited_node(tmp_path).limiter

    for known in ([pod], []):
        with pytest.raises(Refused, match="does not know the cards of ml/train-0 yet"):
            (await starts(limiter, *known)).create_container(*asked(pod))


async def test_a_second_pod_on_a_claim_does_not_start_with_the_first_ones_card(
    tmp_path: Path,
) -> None:
    thief = a_pod(known=False)
    sandbox, container = asked(thief, held_back=False)
    given = replace(container, env=[f"{names.ENV_CARDS}=GPU-a"])
    node = await starts(a_limited_node(tmp_path).limiter, thief)

    with pytest.raises(Refused, match="has the card of another pod, whose claim it names"):
        node.create_container(sandbox, given)

    assert node.create_container(sandbox, container) == Adjustment()


async def test_a_container_is_refused_whose_limits_cannot_be_set_any_more() -> None:
    pod = a_pod()

    with pytest.raises(Refused, match="promised limits"):
        (await starts(no_limits(), pod)).create_container(*asked(pod))
