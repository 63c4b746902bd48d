"""A real kube-scheduler with two profiles: ours, which asks the extender, and the cluster's own."""

from collections import Counter
from pathlib import Path
from typing import Final

import pytest

from fracgpu.device_claims.claim import decode_claim
from fracgpu.state.allocation import sizes as sizes_of
from kube.client import KubeClient
from kube.kinds import (
    DEVICE_CLASSES,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    VALIDATING_POLICIES,
    VALIDATING_POLICY_BINDINGS,
)
from kube.objects import decode_object
from tests.support.claims import a_claiming_node, a_claiming_pod, overbooked, publish, sizes
from tests.support.claims_wiring import install_claims
from tests.support.gpu import Json, a_gpu_pod, a_sharing_node, some_cards
from tests.support.helm import rendered
from tests.support.policed import is_refused
from tests.support.policies import SCHEDULER
from tests.support.real_scheduler import real_scheduler
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

MIB: Final = 8_000
CARDS: Final = {name: some_cards(name, count=4, mib=24_000) for name in ("slots", "claims")}
ROOM: Final = 12  # pods of a node
WIRING: Final = "devicePlugin+claims"
NIC: Final = "nic.example.com"


def a_nic_claim(name: str) -> Json:
    requests = [{"name": "nic", "exactly": {"deviceClassName": NIC}}]
    return {"metadata": {"name": name}, "spec": {"devices": {"requests": requests}}}


async def install(client: KubeClient) -> None:
    await install_claims(client, WIRING)
    await publish(client, a_claiming_node("claims", CARDS["claims"]), CARDS["claims"])


async def install_with_nics(client: KubeClient) -> None:
    """Install the chart's policy on claims as well, and another driver's device on our node."""
    await install_claims(client, WIRING)
    kinds = {kind.kind: kind for kind in (VALIDATING_POLICIES, VALIDATING_POLICY_BINDINGS)}
    for body in rendered({"wiring": WIRING}):
        if body["kind"] in kinds and body["metadata"]["name"] == "fracgpu-claims":
            await client.create(kinds[body["kind"]], body)

    async def in_force() -> bool:
        claim = a_nic_claim("fracgpu-0123456789")
        return await is_refused(
            client.create(RESOURCE_CLAIMS, claim, namespace="default", dry_run=True)
        )

    await until(in_force, what="the policy on claims in force", limit_s=60)
    selector = {"cel": {"expression": f"device.driver == '{NIC}'"}}
    nics = {"metadata": {"name": NIC}, "spec": {"selectors": [selector]}}
    await client.create(DEVICE_CLASSES, nics)
    pool = {"name": "slots", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": NIC, "nodeName": "slots", "pool": pool, "devices": [{"name": "nic-0"}]}
    await client.create(RESOURCE_SLICES, {"metadata": {"name": "nics"}, "spec": spec})
    await client.create(RESOURCE_CLAIMS, a_nic_claim("nic"), namespace="default")


def with_the_clusters_profile(written: Json) -> None:
    written["profiles"].append({"schedulerName": "default-scheduler"})


async def test_pods_of_both_wirings_are_placed_at_once_each_on_nodes_of_its_own(
    tmp_path: Path,
) -> None:
    async with real_scheduler(
        tmp_path,
        [a_sharing_node("slots", cards=CARDS["slots"])],
        configure=with_the_clusters_profile,
        before=install,
    ) as cluster:
        client = cluster.client
        for number in range(ROOM + 2):
            await client.create(PODS, a_gpu_pod(f"slot-{number}", mib=MIB))
            claiming = a_claiming_pod(f"claim-{number}", MIB)
            await client.create(PODS, claiming, namespace="default")

        bound = await cluster.until_bound(2 * ROOM)
        assert {(name.split("-")[0], pod.record.node) for name, pod in bound.items()} == {
            ("claim", "claims"),
            ("slot", "slots"),
        }
        claims = [decode_claim(bytes(raw)) for raw in (await client.list(RESOURCE_CLAIMS)).items]
        assert overbooked(claims, sizes(CARDS)) == []
        held = Counter[str]()
        for pod in bound.values():
            parts = sizes_of(pod.record.assignment or {})
            held.update({card: mib for (_, card), mib in parts.items()})
        assert held == dict.fromkeys([card.uuid for card in CARDS["slots"]], 24_000)


async def test_our_kube_scheduler_gives_a_slot_pod_another_drivers_device_too(
    tmp_path: Path,
) -> None:
    """Its account is that of the extender, which the policy on claims is strict with."""
    async with real_scheduler(
        tmp_path,
        [a_sharing_node("slots", cards=CARDS["slots"])],
        before=install_with_nics,
        user=SCHEDULER.username,
    ) as cluster:
        pod = a_gpu_pod("slot-nic", mib=MIB)
        pod["spec"]["resourceClaims"] = [{"name": "nic", "resourceClaimName": "nic"}]
        await cluster.client.create(PODS, pod, namespace="default")

        await cluster.until_bound(["slot-nic"])
        claim: Json = decode_object(
            await cluster.client.get(RESOURCE_CLAIMS, "nic", namespace="default")
        )
        assert claim["metadata"]["finalizers"] == ["resource.kubernetes.io/delete-protection"]
        assert claim["status"]["reservedFor"][0]["name"] == "slot-nic"
