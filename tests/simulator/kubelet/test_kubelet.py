"""Simulated kubelets as a whole: several in one process, and what their containers got."""

import asyncio
from pathlib import Path

from deviceplugin.nri.interface import PodSandbox
from fracgpu import names
from kube.client import KubeClient
from kube.kinds import NODES
from process.clock import SystemClock
from simulator.apiserver.server import ApiServer
from simulator.kubelet.kubelet import Kubelet, KubeletConfig, KubeletFolders
from simulator.kubelet.pod_worker import visible_cards
from tests.support.node import a_node, short_folder
from tests.support.waiting import until


async def test_four_nodes_in_one_process_each_serve_their_own_pods(
    api: ApiServer, kube: KubeClient, tmp_path: Path
) -> None:
    config = api.kubeconfig(tmp_path / "kubeconfig")
    async with (
        a_node(kube, config, name="gpu-1") as one,
        a_node(kube, config, name="gpu-2") as two,
        a_node(kube, config, name="gpu-3") as three,
        a_node(kube, config, name="gpu-4") as four,
    ):
        nodes = [one, two, three, four]
        pods = [await node.run_pod(f"on-{node.name}", card=1) for node in nodes]
        for node, pod in zip(nodes, pods, strict=True):
            await node.wait_phase(pod, "Running")

        observed = [node.cards_of(pod) for node, pod in zip(nodes, pods, strict=True)]

        assert observed == [(node.uuid(1),) for node in nodes]
        assert [len(node.kubelet.created_containers()) for node in nodes] == [1, 1, 1, 1]


async def test_a_container_shows_what_it_got_not_what_was_assigned(
    api: ApiServer, kube: KubeClient, tmp_path: Path
) -> None:
    async with a_node(kube, api.kubeconfig(tmp_path / "kubeconfig"), nri=False) as node:
        pod = await node.run_pod("one", card=1)
        await node.wait_phase(pod, "Running")
        (spec,) = node.folders.cdi.glob("*.json")
        spec.write_text(spec.read_text().replace(node.uuid(1), "GPU-forged"))
        # As if a start had bypassed the agent: the runtime reads the folder without any check.
        forged = node.kubelet.devices.allocations()
        ((grant,),) = forged.values()
        runtime = node.kubelet.runtime

        sandbox = PodSandbox(id="s", uid=pod["metadata"]["uid"], name="one", namespace="default")
        got = await runtime.create(sandbox, "train", grant.cdi_devices, env={})

        assert visible_cards(got) == ("GPU-forged",)
        assert node.cards_of(pod) == (node.uuid(1),)


async def test_without_an_agent_the_node_is_ready_and_has_no_slots(
    api: ApiServer, kube: KubeClient, tmp_path: Path
) -> None:
    async with a_node(kube, api.kubeconfig(tmp_path / "kubeconfig"), agent=False) as node:
        body = await kube.get_object(NODES, node.name)

    assert names.GPU_SLOT not in body["status"]["allocatable"]
    assert body["metadata"]["labels"][names.SHARE_LABEL] == "true"


async def test_an_agent_that_dies_takes_its_slots_out_of_allocatable(
    api: ApiServer, kube: KubeClient, tmp_path: Path
) -> None:
    async with a_node(kube, api.kubeconfig(tmp_path / "kubeconfig")) as node:
        await node.kill_agent()

        async def none_left() -> bool:
            status = (await kube.get_object(NODES, node.name))["status"]
            return bool(status["allocatable"][names.GPU_SLOT] == "0")

        await until(none_left, what="no slot is allocatable")
        status = (await kube.get_object(NODES, node.name))["status"]

    assert status["capacity"][names.GPU_SLOT] == "128"


async def test_a_kubelet_that_starts_clears_what_its_forerunner_left(kube: KubeClient) -> None:
    with short_folder() as root:
        folders = KubeletFolders.under(root)
        folders.processes.mkdir()
        (folders.processes / "1.json").write_text('{"pid": 1, "cards": ["GPU-a"]}')

        kubelet = Kubelet(kube, SystemClock(), KubeletConfig(node="gpu-1", folders=folders))
        async with asyncio.TaskGroup() as group:
            task = group.create_task(kubelet.run())
            async with asyncio.timeout(60):
                await kubelet.wait_ready()
            task.cancel()

        assert list(folders.processes.iterdir()) == []
