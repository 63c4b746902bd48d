"""A pod's life on the simulated kubelet, with the real node agent."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from fracgpu import names
from kube.client import KubeClient
from kube.kinds import PODS
from simulator.cards.processes import ProcessFolder, SimulatedProcess
from simulator.kubelet.pod_worker import BUSY_KEY, DURATION_KEY, USED_KEY
from tests.support.gpu import a_gpu_pod
from tests.support.node import Node, a_node


@pytest.fixture
async def node(kubeconfig: Path, kube: KubeClient) -> AsyncIterator[Node]:
    async with a_node(kube, kubeconfig, slots_per_card=2) as running:
        yield running


def processes(node: Node) -> tuple[SimulatedProcess, ...]:
    return ProcessFolder(node.folders.processes).read()


async def test_a_running_pod_draws_the_load_it_names_on_the_card_it_was_given(node: Node) -> None:
    notes = {BUSY_KEY: "0.6", USED_KEY: "512"}
    pod = await node.run_pod("busy", card=3, mib=2000, notes=notes)

    await node.wait_phase(pod, "Running")

    (process,) = processes(node)
    assert process.cards == (node.uuid(3),)
    assert (process.used_mib, process.busy_ratio) == (512, 0.6)


async def test_a_pod_that_says_nothing_is_idle_and_uses_most_of_its_slice(node: Node) -> None:
    pod = await node.run_pod("quiet", card=0, mib=2000)

    await node.wait_phase(pod, "Running")

    (process,) = processes(node)
    assert (process.used_mib, process.busy_ratio) == (1800, 0.0)


async def test_a_pod_that_has_not_started_draws_nothing(node: Node) -> None:
    pod = await node.bind(a_gpu_pod("waiting", annotations={BUSY_KEY: "0.9"}))
    await node.wait_message(
        pod, "Error: rpc error: code = 2 desc = container train of default/waiting has no cards"
    )

    found = await node.client.get_object(PODS, "waiting", namespace="default")

    (container,) = found["status"]["containerStatuses"]
    assert container["state"]["waiting"]["reason"] == "CreateContainerError"
    assert found["status"]["phase"] == "Pending"
    assert processes(node) == ()


async def test_a_pod_that_finds_no_slot_has_failed_at_admission(node: Node) -> None:
    for number in range(8):
        pod = await node.run_pod(f"filler-{number}", card=number % 4)
        await node.wait_phase(pod, "Running")

    pod = await node.run_pod("late", card=0)
    found = await node.wait_phase(pod, "Failed")

    assert found["status"]["reason"] == "UnexpectedAdmissionError"
    assert "Requested: 1, Available: 0" in found["status"]["message"]
    await node.wait_message(pod, "Allocate failed due to requested number of devices")


async def test_a_job_ends_when_its_time_is_up_and_frees_its_slot(node: Node) -> None:
    pod = await node.run_pod("job", card=0, notes={DURATION_KEY: "0.05", BUSY_KEY: "1"})

    found = await node.wait_phase(pod, "Succeeded")

    (container,) = found["status"]["containerStatuses"]
    assert container["state"]["terminated"]["exitCode"] == 0
    assert processes(node) == ()


async def test_only_the_first_gpu_container_is_busy(node: Node) -> None:
    body: dict[str, Any] = a_gpu_pod("pair", mib=1000, annotations={BUSY_KEY: "0.7"})
    (app,) = body["spec"]["containers"]
    body["spec"]["containers"].append({**app, "name": "eval"})
    body["metadata"]["annotations"][names.MEMORY] = "train=1000Mi, eval=1000Mi"

    pod = await node.bind(body, train=[(0, 1000)], eval=[(1, 1000)])
    await node.wait_phase(pod, "Running")

    busy = {process.cards[0]: process.busy_ratio for process in processes(node)}
    assert busy == {node.uuid(0): 0.7, node.uuid(1): 0.0}
