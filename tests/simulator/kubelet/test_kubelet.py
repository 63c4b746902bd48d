"""Simulated kubelets as a whole: several in one process, and what their containers got."""

import asyncio
from pathlib import Path

from kube.client import KubeClient
from process.clock import SystemClock
from simulator.apiserver.server import ApiServer
from simulator.kubelet.kubelet import Kubelet, KubeletConfig, KubeletFolders
from tests.support.node import a_node, short_folder


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
