"""What the node agent's own token may change on a real kube-apiserver: what the agent does."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest
from prometheus_client import CollectorRegistry

from component.pool_config import parse_pools
from deviceplugin.metrics import DevicePluginMetrics
from deviceplugin.node.capacity import NodeState, read_node_state
from deviceplugin.node.node_status import NodeStatusUpdater, take_back
from fracgpu import names
from fracgpu.cards.node_marks import marks_of
from fracgpu.state.pod_info import decode_pod_info
from kube.client import KubeClient
from kube.errors import Forbidden
from kube.informer import Informer
from kube.kinds import NODES, PODS, SECRETS
from process.clock import SystemClock
from tests.deviceplugin.builders import FakeCards, a_card, a_tracker
from tests.support.kubectl import DEPLOY
from tests.support.policed import DENIED, Harness, a_pod, annotated, policed_harness, refusal
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

Json = dict[str, Any]

READY: Final = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
# As kubelet reports it.
STATUS: Final[Json] = {
    "capacity": {"cpu": "8", "memory": "32Gi", "pods": "110", names.GPU_SLOT: "64"},
    "allocatable": {"cpu": "7", "memory": "30Gi", "pods": "110", names.GPU_SLOT: "64"},
    "conditions": [READY, {"type": "DiskPressure", "status": "False", "reason": "Enough"}],
    "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
    "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
    "images": [{"names": ["example.com/a:1"], "sizeBytes": 5}],
}


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[Harness]:
    async with policed_harness(tmp_path) as harness:
        await harness.admin.patch(NODES, "n1", {"status": STATUS}, subresource="status")
        await harness.admin.patch(NODES, "n1", annotated(names.NODE_OUT_OF_SERVICE, "GPU-x"))
        yield harness


async def test_the_agents_token_changes_nothing_of_a_pod_but_which_cards_it_got(
    harness: Harness,
) -> None:
    agent = await harness.agent_of("n1")
    await harness.admin.create(PODS, a_pod("here", node="n1"), namespace="kube-system")

    label = {"metadata": {"labels": {"app": "other"}}}
    said = await refusal(agent.patch(PODS, "here", label, namespace="kube-system"))
    assert "may change only the annotations fracgpu.io/wired and fracgpu.io/applied" in said
    for part in ("status", "ephemeralcontainers", "resize"):
        with pytest.raises(Forbidden, match="cannot patch resource"):
            await agent.patch(PODS, "here", {}, namespace="kube-system", subresource=part)
    await agent.patch(PODS, "here", annotated(names.WIRED, "{}"), namespace="kube-system")


async def test_all_that_the_agent_writes_on_its_node_is_allowed(harness: Harness) -> None:
    agent, clock = await harness.agent_of("n1"), SystemClock()
    cards = FakeCards(a_card())
    tracker = a_tracker(cards, clock)
    await tracker.refresh()
    state = await observed(harness.admin)
    registered = ["kubelet does not watch the slots yet"]
    updater = NodeStatusUpdater(
        node="n1",
        tracker=tracker,
        current=lambda: state,
        writer=agent,
        clock=clock,
        metrics=DevicePluginMetrics(CollectorRegistry()),
        unregistered=lambda: registered[0] if registered else None,
    )

    async def write() -> str:
        nonlocal state
        assert await updater.sync(), updater.problem
        state = await observed(harness.admin)
        return state.sharing.reason if state.sharing is not None else ""

    reasons = [await write()]
    registered.clear()
    reasons.append(await write())
    for key, text in (
        (names.NODE_HEAT, '{"GPU-a":0.1}'),
        (names.NODE_FOREIGN, "{}"),
        (names.NODE_LOAD_TIME, "2026-01-05T12:00:00Z"),
    ):
        await agent.patch(NODES, "n1", annotated(key, text))

    assert reasons == [names.AGENT_NOT_REGISTERED, "CardsShared"]
    await harness.admin.patch(NODES, "n1", {"metadata": {"labels": {names.SHARE_LABEL: None}}})
    zero = {"capacity": {names.GPU_SLOT: "0"}, "allocatable": {names.GPU_SLOT: "0"}}
    await harness.admin.patch(NODES, "n1", {"status": zero}, subresource="status")
    await take_back(agent, "n1", marks_of(await harness.admin.get_object(NODES, "n1")))
    assert not marks_of(await harness.admin.get_object(NODES, "n1"))


async def test_the_agent_takes_the_startup_taint_off_a_new_node_and_no_other(
    harness: Harness,
) -> None:
    agent, admin, clock = await harness.agent_of("n1"), harness.admin, SystemClock()
    # What a pool's template or kubelet's flags say of a new node is not the agent's to say.
    pool = {
        names.CARD_CLASS_LABEL: "a100",
        names.CARD_MEMORY_LABEL: "1",
        names.CARD_COUNT_LABEL: "1",
    }
    await admin.patch(NODES, "n1", {"metadata": {"labels": pool}})
    other = {"key": "example.com/other", "value": "x", "effect": "NoSchedule"}
    starts = {"key": names.STARTUP_TAINT, "effect": "NoSchedule"}
    await admin.patch(NODES, "n1", {"spec": {"taints": [other, starts]}})
    cards = FakeCards(a_card())
    tracker = a_tracker(cards, clock)
    await tracker.refresh()
    state = await observed(admin)
    catalogue = parse_pools("mine: {models: 'NVIDIA*', mib: 80, pools: [{name: p, cards: 1}]}")
    updater = NodeStatusUpdater(
        node="n1",
        tracker=tracker,
        current=lambda: state,
        writer=agent,
        clock=clock,
        metrics=DevicePluginMetrics(CollectorRegistry()),
        pools=lambda: catalogue,
    )

    assert await updater.sync(), updater.problem
    node = await admin.get_object(NODES, "n1")
    assert [taint["key"] for taint in node["spec"]["taints"]] == [other["key"], starts["key"]]
    assert node["metadata"]["labels"][names.CARD_CLASS_LABEL] == "mine"

    # As kubelet does.
    status = {"allocatable": {names.GPU_MEM: node["status"]["capacity"][names.GPU_MEM]}}
    await admin.patch(NODES, "n1", {"status": status}, subresource="status")
    state = await observed(admin)
    assert await updater.sync(), updater.problem

    taints = (await admin.get_object(NODES, "n1"))["spec"]["taints"]
    assert [taint["key"] for taint in taints] == [other["key"]]
    for change in ([], [other, starts], [{**other, "value": "y"}]):
        said = await refusal(agent.patch(NODES, "n1", {"spec": {"taints": change}}))
        assert DENIED in said, change


async def test_with_the_overlay_the_agents_token_reads_the_pods_of_its_own_node_alone(
    tmp_path: Path,
) -> None:
    flags = {"authorization-mode": "Node,RBAC"}
    async with policed_harness(tmp_path, flags=flags) as harness:
        await harness.kubectl("apply", "-k", str(DEPLOY.parent / "overlays" / "read-as-node"))
        plain = await harness.agent_of("n1")
        for name, node in (("here", "n1"), ("elsewhere", "n2")):
            await harness.admin.create(PODS, a_pod(name, node=node), namespace="kube-system")

        async def client(node: str) -> KubeClient:
            user = f"system:node:{node}"
            return await harness.as_account("fracgpu-deviceplugin", pod="agent-n1", as_user=user)

        own, other = await client("n1"), await client("n2")
        pods = Informer(own, PODS, decode=decode_pod_info, field_selector="spec.nodeName=n1")
        async with asyncio.TaskGroup() as group:
            following = group.create_task(pods.run())

            async def followed() -> bool:
                return pods.get("kube-system", "here") is not None

            await until(followed, what="the agent follows the pods of its node", limit_s=60)
            following.cancel()
        await plain.patch(PODS, "here", annotated(names.WIRED, "{}"), namespace="kube-system")

        here, there = "spec.nodeName=n1", "spec.nodeName=n2"
        for what, request in (
            ("all pods", own.list(PODS)),
            ("those of a namespace", own.list(PODS, namespace="kube-system")),
            ("those of another node", own.list(PODS, field_selector=there)),
            ("one by its name", own.get(PODS, "here", namespace="kube-system")),
            ("one of another node", own.get(PODS, "elsewhere", namespace="kube-system")),
            ("as another node", other.list(PODS, field_selector=there)),
            ("as itself", plain.list(PODS, field_selector=here)),
            ("as itself by name", plain.get(PODS, "here", namespace="kube-system")),
            ("a Secret as the node", own.list(SECRETS, namespace="kube-system")),
            ("a write as the node", own.patch(NODES, "n1", annotated("a", "b"))),
        ):
            assert "answered 403" in await refusal(request), what


async def observed(admin: KubeClient) -> NodeState:
    return read_node_state(await admin.get(NODES, "n1"))
