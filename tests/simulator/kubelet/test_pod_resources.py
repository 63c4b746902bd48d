"""The simulated PodResources socket, called by the agent's own client."""

from deviceplugin.claims import SlotHolder
from deviceplugin.kubelet.pod_resources import PodResourcesClient
from fracgpu import names
from kube.client import KubeClient
from process.clock import SystemClock
from simulator.background import background
from simulator.kubelet.claim_manager import ClaimManager
from simulator.kubelet.device_manager import ContainerKey, DeviceManager
from simulator.kubelet.pod_resources import PodResourcesServer
from simulator.kubelet.pod_status import ContainerPlan, KubeletPod
from tests.fakes.plugin import FakePlugin
from tests.support.node import short_folder
from tests.support.waiting import until_true


async def test_holders_are_listed_container_by_container(kube: KubeClient) -> None:
    containers = (ContainerPlan(name="train"), ContainerPlan(name="log"))
    pods = [KubeletPod(uid="u", namespace="ml", name="one", containers=containers)]
    with short_folder() as folder:
        manager = DeviceManager(folder / "dp", on_change=lambda: None, seed="s")
        socket = folder / "pr" / "kubelet.sock"
        server = PodResourcesServer(
            socket,
            pods=lambda: pods,
            devices=manager,
            claims=ClaimManager(kube, SystemClock(), node="n", registry=folder / "reg"),
        )
        plugin = FakePlugin(folder / "dp", a="Healthy")
        async with background(manager.run(), server.run()):
            await until_true((folder / "dp" / "kubelet.sock").is_socket, what="kubelet serves")
            async with plugin.serving():
                await plugin.register(resource=names.GPU_SLOT)
                await until_true(
                    lambda: bool(manager.amounts().get(names.GPU_SLOT, (0,))[0]), what="a device"
                )
                key = ContainerKey(pod_uid="u", namespace="ml", pod="one", container="train")
                await manager.allocate(key, resource=names.GPU_SLOT, count=1, reusable=set())
                client = PodResourcesClient(socket, timeout_s=5)
                holders = await client.holders()
                pods.clear()
                after = await client.holders()

    holder = SlotHolder(namespace="ml", pod="one", container="train", slot_ids=frozenset({"a"}))
    assert holders == (holder,)
    assert after == ()
