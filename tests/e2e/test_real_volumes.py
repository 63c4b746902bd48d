"""A pod keeps its card while kube-scheduler waits for its volume to be made."""

from pathlib import Path
from typing import Any, Final

import pytest

from kube.kinds import PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES, PODS, Kind
from kube.objects import decode_object
from tests.support.gpu import Json, a_gpu_pod, a_sharing_node, some_cards
from tests.support.real_scheduler import Harness, assert_cards_hold, real_scheduler
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

STORAGE_CLASSES = Kind("storage.k8s.io/v1", "storageclasses", "StorageClass", namespaced=False)
SLOW: Final = "slow"
SELECTED = "volume.kubernetes.io/selected-node"
CARD_MIB = 24_000
# Two of these fit on a node by its total, and one on a card.
MIB = 16_000


async def create_claimant(harness: Harness, name: str, **spec: Any) -> None:
    """Create a pod whose volume is made once kube-scheduler has chosen its node."""
    await harness.client.create(
        PERSISTENT_VOLUME_CLAIMS,
        {
            "metadata": {"name": name, "namespace": "default"},
            "spec": {
                "storageClassName": SLOW,
                "accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": "1Gi"}},
            },
        },
    )
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": name}}]
    await harness.client.create(PODS, a_gpu_pod(name, mib=MIB, volumes=volumes, **spec))


async def claim_of(harness: Harness, name: str) -> Json:
    found = await harness.client.get(PERSISTENT_VOLUME_CLAIMS, name, namespace="default")
    claim: Json = decode_object(found)
    return claim


async def selected_node(harness: Harness, name: str) -> str:
    """Return the node for which the volume of a pod is to be made; empty if there is none yet."""
    claim = await claim_of(harness, name)
    return str(claim["metadata"].get("annotations", {}).get(SELECTED, ""))


async def make_volume(harness: Harness, name: str) -> None:
    """Do what a provisioner and kube-controller-manager do: make the volume on its node."""
    claim, node = await claim_of(harness, name), await selected_node(harness, name)
    volume = f"volume-{name}"
    hostname = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
    reference = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "namespace": "default",
        "name": name,
        "uid": claim["metadata"]["uid"],
    }
    await harness.client.create(
        PERSISTENT_VOLUMES,
        {
            "metadata": {"name": volume},
            "spec": {
                "storageClassName": SLOW,
                "accessModes": ["ReadWriteOnce"],
                "capacity": {"storage": "1Gi"},
                "claimRef": reference,
                "hostPath": {"path": "/data"},
                "nodeAffinity": {
                    "required": {"nodeSelectorTerms": [{"matchExpressions": [hostname]}]}
                },
            },
        },
    )
    bound = {"metadata": {"annotations": {"pv.kubernetes.io/bind-completed": "yes"}}}
    for change, subresource in (
        (bound | {"spec": {"volumeName": volume}}, None),
        ({"status": {"phase": "Bound"}}, "status"),
    ):
        await harness.client.patch(
            PERSISTENT_VOLUME_CLAIMS, name, change, namespace="default", subresource=subresource
        )


async def slow_volumes(harness: Harness) -> None:
    await harness.client.create(
        STORAGE_CLASSES,
        {
            "metadata": {"name": SLOW},
            "provisioner": "example.com/slow",
            "volumeBindingMode": "WaitForFirstConsumer",
        },
    )


def nodes(*names_of_nodes: str) -> list[Json]:
    return [
        a_sharing_node(name, cards=some_cards(name, count=2, mib=CARD_MIB))
        for name in names_of_nodes
    ]


async def test_pods_that_come_while_a_volume_is_made_do_not_take_its_pods_card(
    tmp_path: Path,
) -> None:
    others = [f"other-{index}" for index in range(6)]
    claimants = ["claimant-0", "claimant-1"]

    async with real_scheduler(tmp_path, nodes("a", "b")) as harness:
        await slow_volumes(harness)
        # All at once: the next pod is filtered before a nomination can have reached the extender.
        for name in (claimants[0], *others[:2], claimants[1], *others[2:]):
            if name in claimants:
                await create_claimant(harness, name)
            else:
                await harness.client.create(PODS, a_gpu_pod(name, mib=MIB))

        async def selected() -> bool:
            return all([await selected_node(harness, name) for name in claimants])

        await until(selected, what="kube-scheduler has chosen nodes for both volumes", limit_s=60)

        async def two_bound() -> bool:
            return len((await harness.bound()).keys() & set(others)) == 2

        await until(two_bound, what="the two cards that are left are taken", limit_s=60)
        for name in claimants:
            await make_volume(harness, name)
        every = await harness.until_bound(claimants)
        for name in claimants:
            assert every[name].record.node == await selected_node(harness, name)

    assert len(every) == 4
    assert_cards_hold(every, dict.fromkeys(every, (MIB, 1)), card_mib=CARD_MIB)
