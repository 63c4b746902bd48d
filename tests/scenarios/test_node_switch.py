"""A node goes from one wiring to the other and back, while pods of both kinds come and go.

API server, kube-schedulers, controllers and kubelet are simulated; ours are the scheduler role,
which serves both wirings at once, and the node's agent.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest

from fracgpu import names
from fracgpu.k8s.quantity import integer_amount
from kube.client import KubeClient
from kube.kinds import NODES, PODS
from simulator.background import background
from tests.support.claims import a_claiming_pod
from tests.support.gpu import a_gpu_pod, some_cards
from tests.support.node import Node, a_node
from tests.support.simulated_claims import SimulatedClaims, a_claims_world
from tests.support.waiting import until
from tests.support.wiring_timeline import wiring_timeline

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

MIB: Final = 2_000


@pytest.fixture
async def world(kubeconfig: Path, kube: KubeClient) -> AsyncIterator[SimulatedClaims]:
    async with a_claims_world(kube, kubeconfig, wiring="devicePlugin+claims") as world:
        world.start_leader("one", lease_s=15)  # no other one takes over on a loaded machine
        yield world


@asynccontextmanager
async def kept_running(node: Node) -> AsyncIterator[list[int]]:
    """Start the agent again whenever it ends, as kubelet does; yield the exit codes."""
    codes: list[int] = []

    async def again() -> None:
        while True:
            agent = node.agent
            assert agent is not None
            await asyncio.wait({agent})
            if not agent.cancelled():
                codes.append(agent.result())
            node.start_agent()

    async with background(again()):
        yield codes


async def label(world: SimulatedClaims, node: str, wiring: str | None) -> None:
    await world.client.patch(NODES, node, {"metadata": {"labels": {names.WIRING_LABEL: wiring}}})


async def condition(world: SimulatedClaims, node: str) -> tuple[str, str]:
    found = await world.client.get_object(NODES, node)
    for each in found["status"].get("conditions", ()):
        if each["type"] == names.SHARING_CONDITION:
            return each["status"], each["reason"]
    return "", ""


async def phases(world: SimulatedClaims, prefix: str) -> dict[str, str]:
    return {
        pod["metadata"]["name"]: pod.get("status", {}).get("phase", "")
        for pod in await world.pods()
        if pod["metadata"]["name"].startswith(prefix)
    }


async def until_running(world: SimulatedClaims, prefix: str, count: int) -> None:
    async def are() -> bool:
        return list((await phases(world, prefix)).values()).count("Running") == count

    await until(are, what=f"{count} pods called {prefix}* run", limit_s=120)


async def delete(world: SimulatedClaims, *pods: str) -> None:
    for name in pods:
        await world.client.delete(PODS, name, namespace="default")

    async def gone() -> bool:
        return not set(pods) & set(await phases(world, ""))

    await until(gone, what=f"{pods} are gone", limit_s=120)


async def until_withdrawn(world: SimulatedClaims, node: str) -> None:
    """Wait until the node counts no more than its pods hold."""

    async def is_so() -> bool:
        old = [name for name in await world.bound() if name.startswith(("slot-", "late-"))]
        found = (await world.client.get_object(NODES, node))["status"]["capacity"]
        return integer_amount(str(found[names.GPU_MEM])) == MIB * len(old)

    await until(is_so, what=f"{node} counts no more than what is held", limit_s=120)


async def until_condition(world: SimulatedClaims, node: str, *wanted: str) -> None:
    async def is_so() -> bool:
        return await condition(world, node) == wanted

    await until(is_so, what=f"{node} says {wanted}", limit_s=120)


async def test_a_node_is_switched_both_ways_under_load_and_never_offers_both(
    world: SimulatedClaims,
) -> None:
    cards = some_cards("gpu-1", count=2, mib=16_000)
    async with (
        wiring_timeline(world.client, "gpu-1") as timeline,
        a_node(world.client, world.kubeconfig, cards=cards, drain_wait_s=1.0) as node,
        kept_running(node) as codes,
    ):
        for number in range(4):
            await world.client.create(PODS, a_gpu_pod(f"slot-{number}", mib=MIB))
        await until_running(world, "slot-", 4)

        # Pods of both kinds arrive while the node goes over, and the agent is killed.
        await label(world, "gpu-1", "claims")
        for number in range(4):
            await world.client.create(PODS, a_claiming_pod(f"claim-{number}", MIB))
            await world.client.create(PODS, a_gpu_pod(f"late-{number}", mib=MIB))
        await until_condition(world, "gpu-1", "False", "Switching")
        await delete(world, "slot-0", "slot-1")
        assert node.agent is not None
        node.agent.cancel()
        await until_condition(world, "gpu-1", "False", "Switching")
        assert set((await phases(world, "claim-")).values()) == {"Pending"}
        # What was bound by the old wiring until then keeps the node, and nothing more comes.
        await until_withdrawn(world, "gpu-1")
        await world.client.create(PODS, a_gpu_pod("late-4", mib=MIB))
        deleted: set[str] = set()

        async def gone_over() -> bool:
            # The extender may have been slow to learn that the node takes no pods.
            old = {name for name in await world.bound() if name.startswith(("slot-", "late-"))}
            for name in old - deleted:
                await world.client.delete(PODS, name, namespace="default")
            deleted.update(old)
            return list((await phases(world, "claim-")).values()).count("Running") == 4

        await until(gone_over, what="the pods with claims run", limit_s=120)
        await until_condition(world, "gpu-1", "True", "CardsShared")

        await label(world, "gpu-1", None)
        await until_condition(world, "gpu-1", "False", "Switching")
        await delete(world, *(f"claim-{number}" for number in range(4)))
        await until_condition(world, "gpu-1", "True", "CardsShared")
        await until_running(world, "late-", 5 - len([one for one in deleted if "late" in one]))

        assert codes == [1, 1]
        assert ("claims", "devicePlugin") not in timeline.states
        assert [state for state in timeline.states if state] == [
            ("devicePlugin",), ("claims",), ("devicePlugin",),
        ]  # fmt: skip
    assert await world.overbooked() == []
    assert "Failed" not in (await phases(world, "")).values()


async def test_a_pod_whose_wiring_has_no_node_is_told_so(world: SimulatedClaims) -> None:
    await world.add_node("claims-only", some_cards("claims-only", count=1, mib=8_000))
    await world.client.create(PODS, a_gpu_pod("slot", mib=MIB))

    async def told() -> bool:
        events = await world.events("NoNodeOfWiring", pod="slot")
        return any("wiring devicePlugin" in event["message"] for event in events)

    await until(told, what="an Event says that no node has the pod's wiring", limit_s=120)
