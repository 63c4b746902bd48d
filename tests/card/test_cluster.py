"""Our image with NVIDIA's runtime class on a real cluster, and two halves of a physical card."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from prometheus_client.parser import text_string_to_metric_families

from fracgpu import names
from fracgpu.cards.annotations import read_cards
from fracgpu.state.allocation import read_assignment
from kube.kinds import PODS
from tests.support.cuda_load import Load, read_line
from tests.support.kubectl import DEPLOY
from tests.support.physical_card import LIBRARIES, write_driver_spec_or_skip
from tests.support.real_cluster import (
    AGENT,
    NODE,
    ROLES,
    SYSTEM,
    RealCluster,
    a_cluster_with_our_images,
)
from tests.support.real_runtime import IMAGE
from tests.support.waiting import until

pytestmark = [pytest.mark.card, pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1200)]

Json = dict[str, Any]

_CLASS: Final = {
    "apiVersion": "node.k8s.io/v1",
    "kind": "RuntimeClass",
    "metadata": {"name": "nvidia"},
    "handler": "nvidia",
}


@pytest.fixture(scope="module")
def handlers() -> Mapping[str, Path]:
    """Return NVIDIA's runtime, by the name of its handler."""
    runtime = shutil.which("nvidia-container-runtime")
    if runtime is None:
        pytest.skip("no nvidia-container-runtime (NVIDIA's container toolkit)")
    return {"nvidia": Path(runtime)}


def a_half(name: str, program: Path) -> Json:
    """Return a pod with half a card, whose container runs the program."""
    volumes = {"program": (str(program.parent), "/program"), **LIBRARIES}
    words = " ".join(Load(mib=1000, busy_ms=10, idle_ms=40).words())
    container = {
        "name": "train",
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "command": ["/bin/sh", "-c", f"exec /program/cuda_load {words}"],
        "volumeMounts": [
            {"name": volume, "mountPath": inside, "readOnly": True}
            for volume, (_, inside) in volumes.items()
        ],
    }
    hosts = [{"name": volume, "hostPath": {"path": host}} for volume, (host, _) in volumes.items()]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "default",
            "annotations": {names.FRACTION: "0.5"},
        },
        "spec": {"terminationGracePeriodSeconds": 1, "volumes": hosts, "containers": [container]},
    }


async def ready_line(cluster: RealCluster, pod: str) -> Mapping[str, Any]:
    """Return what the pod's program saw, once it has said so."""
    found: list[Mapping[str, Any]] = []

    async def said() -> bool:
        lines = cluster.logs("default", pod).get("train", "").splitlines()
        # A log of the runtime has the time, the stream and a tag before what was written.
        texts = [line.split(" ", 3)[3] for line in lines]
        found[:] = [read_line(text)["ready"] for text in texts if text.startswith("{")]
        return bool(found)

    await until(said, what=f"the first line of {pod}", limit_s=120)
    return found[0]


async def memory_mib(cluster: RealCluster) -> dict[str, float]:
    """Return how much of the card each pod uses, as the agent's pod tells Prometheus."""
    (agent,) = await cluster.pods(SYSTEM, app="fracgpu-deviceplugin")
    path = f"/api/v1/namespaces/{SYSTEM}/pods/{agent['metadata']['name']}:9400/proxy/metrics"
    return {
        sample.labels["pod"]: sample.value
        for family in text_string_to_metric_families(await cluster.kubectl("get", "--raw", path))
        for sample in family.samples
        if sample.name == "fracgpu_pod_gpu_memory_used_mib"
    }


async def test_two_halves_are_scheduled_onto_the_card_and_compute_and_a_third_waits(
    tmp_path: Path, handlers: Mapping[str, Path], uuid: str, program: Path
) -> None:
    program.parent.chmod(0o755)
    async with a_cluster_with_our_images(tmp_path, handlers=handlers) as cluster:
        specs = cluster.mounts.path("/etc/cdi")
        specs.mkdir(exist_ok=True)
        write_driver_spec_or_skip(specs / "nvidia.yaml")
        await cluster.kubectl("apply", "-f", "-", stdin=_CLASS)
        await cluster.apply(DEPLOY.parent / "overlays" / "nvidia-runtime-class")
        await cluster.kubectl("label", "node", NODE, f"{names.SHARE_LABEL}=true")
        for what in (*ROLES, AGENT):
            await cluster.wait_ready(what, namespace=SYSTEM)

        halves = ("half-a", "half-b")
        for name in halves:
            await cluster.kubectl("apply", "-f", "-", stdin=a_half(name, program))
            await cluster.wait_pod(name)
        saw = [await ready_line(cluster, name) for name in halves]
        pods = [await cluster.client.get_object(PODS, name, namespace="default") for name in halves]
        node = await cluster.node()
        await cluster.kubectl("apply", "-f", "-", stdin=a_half("third", program))
        why: list[str] = []

        async def refused() -> bool:
            third = await cluster.client.get_object(PODS, "third", namespace="default")
            why[:] = [
                condition.get("message", "")
                for condition in third["status"].get("conditions", ())
                if condition["type"] == "PodScheduled" and condition["status"] == "False"
            ]
            return bool(why)

        await until(refused, what="the third half is told that it does not fit", limit_s=60)
        used: dict[str, float] = {}

        async def measured() -> bool:
            used.clear()
            used.update(await memory_mib(cluster))
            return all(used.get(name, 0) >= 1000 for name in halves)

        await until(measured, what="both pods' use of the card", limit_s=60)

    (card,) = [
        card
        for card in read_cards(node["metadata"]["annotations"][names.NODE_CARDS])
        if card.uuid == uuid
    ]
    for pod in pods:
        ((assigned,),) = read_assignment(pod["metadata"]["annotations"][names.ASSIGNMENT]).values()
        assert assigned.card == uuid
        assert assigned.mib == card.capacity_mib // 2
    assert [(it["cards"], it["uuid"]) for it in saw] == [(1, uuid)] * 2
    assert all(used[name] <= card.capacity_mib // 2 for name in halves)
    assert "third" not in used
