"""The node object as the simulated kubelet keeps it."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from kube.client import KubeClient
from kube.kinds import NODES, Kind
from process.clock import SystemClock
from simulator.background import background
from simulator.kubelet.node_status import NodeStatus
from tests.support.waiting import until


class Rig:
    def __init__(self, kube: KubeClient) -> None:
        self.kube = kube
        self.amounts: dict[str, tuple[int, int]] = {}
        self.status = NodeStatus(
            kube,
            SystemClock(),
            name="gpu-1",
            labels={"fracgpu.io/share": "true"},
            amounts=lambda: self.amounts,
            sync_s=60.0,
        )

    async def node(self) -> dict[str, Any]:
        return await self.kube.get_object(NODES, "gpu-1")


@pytest.fixture
async def rig(kube: KubeClient) -> AsyncIterator[Rig]:
    made = Rig(kube)
    async with background(made.status.run()):
        async with asyncio.timeout(60):
            await made.status.ready.wait()
        yield made


class RemovedMeanwhile(KubeClient):
    """Somebody removes a resource after kubelet has read its node and before it writes."""

    async def get_object(
        self, kind: Kind, name: str, *, namespace: str | None = None
    ) -> dict[str, Any]:
        read = await super().get_object(kind, name, namespace=namespace)
        gone = {"fracgpu.io/gpu-mem": None}
        status = {"status": {"capacity": gone, "allocatable": gone}}
        await self.patch(NODES, "gpu-1", status, subresource="status")
        return read


async def test_what_another_removes_during_a_sync_stays_removed(kube: KubeClient) -> None:
    amounts = {"pods": "110", "fracgpu.io/gpu-mem": "655360"}
    status = {"capacity": amounts, "allocatable": amounts}
    await kube.create(NODES, {"metadata": {"name": "gpu-1"}, "status": status})
    client = RemovedMeanwhile(kube.transport)
    kubelet = NodeStatus(client, SystemClock(), name="gpu-1", labels={}, amounts=dict, sync_s=60.0)

    async with background(kubelet.run()):
        async with asyncio.timeout(60):
            await kubelet.ready.wait()

    left = (await kube.get_object(NODES, "gpu-1"))["status"]
    assert "fracgpu.io/gpu-mem" not in left["capacity"] | left["allocatable"]


async def test_its_own_writing_does_not_wake_it(rig: Rig) -> None:
    version = (await rig.node())["metadata"]["resourceVersion"]

    for _ in range(5):
        rig.status.observe((await rig.node())["status"]["capacity"])
        await asyncio.sleep(0.02)

    assert (await rig.node())["metadata"]["resourceVersion"] == version


async def test_kubelets_own_labels_come_back_at_the_next_sync_and_an_administrators_do_not(
    rig: Rig,
) -> None:
    gone = {"fracgpu.io/share": None, "kubernetes.io/os": None}
    await rig.kube.patch(NODES, "gpu-1", {"metadata": {"labels": gone}})
    rig.status.wake()

    async def back() -> bool:
        labels = (await rig.node())["metadata"]["labels"]
        return bool(labels.get("kubernetes.io/os") == "linux")

    await until(back, what="kubelet's own label is back")
    assert "fracgpu.io/share" not in (await rig.node())["metadata"]["labels"]
