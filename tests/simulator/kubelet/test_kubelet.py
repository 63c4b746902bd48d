"""The simulated kubelet as a whole."""

import asyncio

from kube.client import KubeClient
from process.clock import SystemClock
from simulator.background import background
from simulator.kubelet.kubelet import Kubelet, KubeletConfig, KubeletFolders
from tests.support.node import short_folder


async def test_a_kubelet_that_starts_clears_what_its_forerunner_left(kube: KubeClient) -> None:
    with short_folder() as root:
        folders = KubeletFolders.under(root)
        folders.processes.mkdir()
        (folders.processes / "1.json").write_text('{"pid": 1, "cards": ["GPU-a"]}')

        kubelet = Kubelet(kube, SystemClock(), KubeletConfig(node="gpu-1", folders=folders))
        async with background(kubelet.run()):
            async with asyncio.timeout(60):
                await kubelet.wait_ready()

        assert list(folders.processes.iterdir()) == []
