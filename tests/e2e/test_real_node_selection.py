"""A pod's own selectors decide what its share is a share of, on a real kube-scheduler."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fracgpu import names
from fracgpu.cards.card import Card, CardUuid
from fracgpu.units import Mib
from simulator.envtest.ports import free_ports
from tests.certs.tls_harness import a_ca
from tests.support.gpu import a_sharing_node, a_workload
from tests.support.kubectl import Kubectl
from tests.support.real_scheduler import Harness as Scheduler
from tests.support.real_scheduler import real_scheduler
from tests.webhook.builders import Json, a_pod
from tests.webhook.cluster import Harness as Webhook
from tests.webhook.cluster import running, says
from webhook.settings import WebhookSettings

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

T4, A100 = ("Tesla-T4", 16_000), ("NVIDIA-A100-SXM4-40GB", 40_000)


def a_node(name: str, model: str, mib: int, *, count: int = 1) -> Json:
    cards = [
        Card(uuid=CardUuid(f"GPU-{name}-{index}"), index=index, model=model, total_mib=Mib(mib))
        for index in range(count)
    ]
    node = a_sharing_node(name, cards=cards)
    node["metadata"]["labels"] |= {
        f"{names.CARD_CLASS_LABEL_PREFIX}{mib}": str(count),
        "nvidia.com/gpu.product": model,
        "cloud.google.com/gke-accelerator": model.lower(),
    }
    return node


def a_node_without_cards(name: str) -> Json:
    node = a_sharing_node(name, cards=())
    node["metadata"] |= {"labels": {"kubernetes.io/hostname": name}, "annotations": {}}
    return node


@dataclass(frozen=True, slots=True)
class Cluster:
    """A real control plane with the webhook and the extender."""

    scheduler: Scheduler
    kubectl: Kubectl

    async def until_bound(self, count: int) -> dict[str, tuple[str, int]]:
        """Wait until so many pods have nodes; return each one's node and MiB."""
        found = {}
        for name, pod in (await self.scheduler.until_bound(count)).items():
            assert pod.record.assignment is not None
            ((held,),) = pod.record.assignment.values()
            assert held.card.startswith(f"GPU-{pod.record.node}-")
            found[name] = (pod.record.node, int(held.mib))
        return found


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    # The T4s stay freest: without selectors a share is a share of one of them.
    nodes = [
        a_node("t4", *T4, count=8),
        a_node("a100", *A100, count=2),
        *(a_node_without_cards(f"cpu-{number}") for number in range(10)),
    ]
    async with real_scheduler(tmp_path, nodes, controllers=True) as scheduler:
        kubeconfig = tmp_path / "admin.kubeconfig"
        listen, telemetry = free_ports(2)
        settings = WebhookSettings(
            kubeconfig=str(kubeconfig),
            listen_host="127.0.0.1",
            listen_port=listen,
            telemetry_host="127.0.0.1",
            telemetry_port=telemetry,
            drain_wait_s=0,
        )
        webhook = Webhook(client=scheduler.client, ca=a_ca(), settings=settings)
        async with running(webhook):
            await webhook.give_certificate()
            await says(webhook, "200")
            await webhook.register()
            yield Cluster(scheduler, Kubectl.find(kubeconfig))


def half_of_a_card(kind: str, name: str, **spec: Any) -> Json:
    pod = a_pod(fraction="0.5", spec=spec)
    del pod["spec"]["schedulerName"]
    return a_workload(kind, name, pod)


async def test_each_pod_of_a_daemon_set_and_of_a_deployment_gets_a_share_of_its_own_nodes_cards(
    cluster: Cluster,
) -> None:
    shared = {"nodeSelector": {names.SHARE_LABEL: "true"}}
    await cluster.kubectl("create", "-f-", stdin=half_of_a_card("DaemonSet", "each", **shared))
    a100 = {"nodeSelector": {"kubernetes.io/hostname": "a100"}}
    await cluster.kubectl("create", "-f-", stdin=half_of_a_card("Deployment", "one", **a100))

    found = await cluster.until_bound(3)

    assert sorted(held for name, held in found.items() if name.startswith("each")) == [
        ("a100", 20_000),
        ("t4", 8_000),
    ]
    assert [held for name, held in found.items() if name.startswith("one")] == [("a100", 20_000)]
