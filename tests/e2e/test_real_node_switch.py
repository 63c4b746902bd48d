"""A real kubelet's node goes from one wiring to the other and back, with pods of both kinds."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest

from fracgpu import names
from fracgpu.k8s.quantity import integer_amount
from kube.client import KubeClient
from kube.kinds import NODES, RESOURCE_CLAIMS
from simulator.envtest.control_plane import ControlPlane
from tests.support.claimed_node import (
    a_claimed_pod,
    claim_for,
    slice_of,
    start_stock_scheduling,
    wait_runs,
    wait_slice,
)
from tests.support.core import a_need, a_pod_need
from tests.support.gpu import some_cards
from tests.support.real_node import NODE, RealNode, a_container, a_real_node, a_real_pod
from tests.support.waiting import until
from tests.support.wiring_timeline import wiring_timeline

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900)]

MIB: Final = 8000
NEED: Final = a_pod_need(a_need(1000, name="train"))


async def both_wirings(api: ControlPlane, client: KubeClient) -> None:
    await start_stock_scheduling(api, client, wiring="devicePlugin+claims")


@asynccontextmanager
async def kept_running(node: RealNode) -> AsyncIterator[None]:
    """Start the agent again whenever it has ended, as kubelet does."""

    async def again() -> None:
        while True:
            if not node.agent.alive:
                await node.agent.start()
            await asyncio.sleep(0.2)

    async with asyncio.TaskGroup() as group:
        task = group.create_task(again(), name="restarts")
        yield
        task.cancel()


async def label(node: RealNode, wiring: str | None) -> None:
    await node.client.patch(NODES, NODE, {"metadata": {"labels": {names.WIRING_LABEL: wiring}}})


async def wait_condition(node: RealNode, *wanted: str) -> None:
    found: dict[str, Any] = {}

    async def is_so() -> bool:
        found.update(await node.node())
        return any(
            (each["type"], each["status"], each["reason"]) == (names.SHARING_CONDITION, *wanted)
            for each in found["status"]["conditions"]
        )

    try:
        await until(is_so, what=f"the node says {wanted}", limit_s=90)
    except AssertionError as error:
        raise AssertionError(f"{error}; {node.agent.tail()}") from None


async def wait_capacity(node: RealNode, mib: int) -> None:
    async def is_so() -> bool:
        amount = (await node.node())["status"]["capacity"].get(names.GPU_MEM, "0")
        return integer_amount(amount) == mib

    await until(is_so, what=f"the node counts {mib} MiB", limit_s=90)


async def wait_no_slice(node: RealNode) -> None:
    async def none() -> bool:
        return await slice_of(node) is None

    await until(none, what="the node has no slice", limit_s=90)


async def test_a_node_is_switched_both_ways_and_running_pods_keep_their_cards() -> None:
    cards = some_cards(NODE, count=2, mib=MIB)
    flags = {"drain-wait-s": "1"}
    async with (
        a_real_node(cards=cards, flags=flags, before=both_wirings) as node,
        wiring_timeline(node.client, NODE) as timeline,
        kept_running(node),
    ):
        await node.wait_counted(slots=64, mib=2 * MIB)
        old = await node.bind_pod(0, mib=1000)
        await wait_runs(node, old)

        await label(node, "claims")
        late = await node.bind_pod(1, mib=1000)  # bound by an extender that had not seen the label
        claimed = await node.create(a_claimed_pod(node, NEED))
        await node.client.create(RESOURCE_CLAIMS, claim_for(claimed, NEED))
        await wait_condition(node, "False", names.SWITCHING)
        await wait_runs(node, late)
        await wait_capacity(node, 2 * 1000)
        assert await slice_of(node) is None
        assert not (await node.pods())[claimed["metadata"]["uid"]]["spec"].get("nodeName")
        await node.restart_kubelet()
        await node.wait_running([old["metadata"]["uid"], late["metadata"]["uid"]])

        await node.delete([old, late])
        await wait_runs(node, claimed)
        await wait_slice(node)
        await wait_condition(node, "True", "CardsShared")
        assert len(node.sights(claimed)) == 1

        await label(node, None)
        await wait_condition(node, "False", names.SWITCHING)
        waiting = await node.create(
            a_real_pod([a_container("train", mib=1000, slots=1)], reports=node.reports)
        )
        await wait_no_slice(node)
        await wait_capacity(node, 0)
        await node.delete([claimed])
        await wait_condition(node, "True", "CardsShared")
        await node.wait_counted(slots=64, mib=2 * MIB)
        await node.bind(waiting, train=[(cards[0].uuid, 1000)])
        await wait_runs(node, waiting)

        assert [state for state in timeline.states if state] == [
            ("devicePlugin",), ("claims",), ("devicePlugin",),
        ]  # fmt: skip
