"""Installed on a stock cluster, without any scheduler of ours, to half a card: as documented.

The control plane, kubelet and containerd are real, the cards simulated; each role is a pod of our
image under its own account.
"""

import json
from pathlib import Path
from typing import Any, Final

import pytest

from fracgpu import names
from fracgpu.device_claims.claim import decode_claim
from fracgpu.device_claims.devices import device_name
from kube.kinds import RESOURCE_CLAIMS, RESOURCE_SLICES
from kube.objects import decode_object
from tests.support.documented import documented, run
from tests.support.helm import helm_or_skip
from tests.support.real_cluster import (
    AGENT,
    NODE,
    SYSTEM,
    RealCluster,
    a_cluster_with_our_images,
    a_long_half,
)
from tests.support.snapshot import wait_for_controllers
from tests.support.timed import Steps

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1200)]

Json = dict[str, Any]

GUIDE: Final = "docs/device-claims.md"
ROLES: Final = tuple(f"deployment/fracgpu-{role}" for role in ("certs", "webhook", "scheduler"))
CARD_MIB: Final = 40_960  # as the chart simulates them, two on each node
PUSHED: Final = "registry.example.com/team/fracgpu:0.1.0"


def claim_named_by(pod: Json) -> str:
    """Return the claim that a pod names in the place of limits."""
    (entry,) = pod["spec"]["resourceClaims"]
    assert entry["name"] == names.POD_CLAIM
    assert pod["spec"]["schedulerName"] == "default-scheduler"
    assert "affinity" not in pod["spec"]
    (container,) = pod["spec"]["containers"]
    assert container["resources"]["claims"] == [{"name": "fracgpu", "request": "train"}]
    assert not {names.GPU_MEM, names.GPU_SLOT} & container["resources"].get("limits", {}).keys()
    found: str = entry["resourceClaimName"]
    return found


async def check_card(cluster: RealCluster, pod: Json) -> None:
    """Check that the container has the card that kube-scheduler allocated."""
    name, mib = pod["metadata"]["name"], CARD_MIB // 2
    body = await cluster.client.get(RESOURCE_CLAIMS, claim_named_by(pod), namespace="default")
    (device,) = decode_claim(body).devices
    assert (device.node, device.request, device.amounts.mib) == (NODE, "train", mib)
    variables = (await cluster.kubectl("exec", name, "--", "env")).splitlines()
    assert f"{names.ENV_MEM_MIB}={mib}" in variables
    start = f"{names.ENV_VISIBLE_DEVICES}="
    (card,) = [line.removeprefix(start) for line in variables if line.startswith(start)]
    assert device.device == device_name(card)
    shown = await cluster.kubectl("exec", name, "--", "sh", "-c", "echo /dev/nvidia*")
    assert shown.split() == [f"/dev/nvidia{card.rpartition('-')[2]}"]


async def install(cluster: RealCluster, steps: Steps) -> None:
    await wait_for_controllers(cluster.client)
    ours = "docker.io/library/fracgpu:0.1.0"
    cluster.name_image(ours, PUSHED)
    command, label, _ = documented(GUIDE, "claims-install")
    admin = cluster.kubectl.kubeconfig
    with steps.step("helm install"):
        # --wait would wait for the node agent too, whose node is labelled next.
        await run(f"{command} --set simulatedCards.enabled=true", kubeconfig=admin)
    with steps.step("label, until the node shares its cards"):
        await run(label, kubeconfig=admin, words={"NAME": NODE})
    for what in (*ROLES, AGENT):
        await cluster.wait_ready(what, namespace=SYSTEM)


async def check_that_no_scheduler_of_ours_is_there(cluster: RealCluster) -> None:
    containers = {
        container["name"]: container["image"]
        for pod in await cluster.pods(SYSTEM)
        for container in pod["spec"]["containers"]
    }
    assert set(containers.values()) == {PUSHED}
    assert "kube-scheduler" not in containers
    node = await cluster.node()
    amounts = node["status"]["capacity"]
    assert {amounts.get(names.GPU_MEM, "0"), amounts.get(names.GPU_SLOT, "0")} == {"0"}
    (raw,) = (await cluster.client.list(RESOURCE_SLICES)).items
    spec = decode_object(raw)["spec"]
    assert (spec["driver"], spec["nodeName"], len(spec["devices"])) == ("gpu.fracgpu.io", NODE, 2)


async def test_half_a_card_runs_on_a_stock_cluster_after_the_commands_of_the_guide(
    tmp_path: Path,
) -> None:
    helm_or_skip()
    steps = Steps("claims")
    async with a_cluster_with_our_images(tmp_path) as cluster:
        with steps.step("all of it, from the first command to the first pod Running"):
            await install(cluster, steps)
            with steps.step("first pod with a share, from kubectl apply to Running"):
                await cluster.kubectl("apply", "-f", "-", stdin=a_long_half())
                half = await cluster.wait_pod("half")
        await check_that_no_scheduler_of_ours_is_there(cluster)
        await check_card(cluster, half)
        slices, claims, results = documented(GUIDE, "look")
        admin = cluster.kubectl.kubeconfig
        claim = claim_named_by(half)
        assert NODE in await run(slices, kubeconfig=admin)
        assert claim in await run(claims, kubeconfig=admin)
        (result,) = json.loads(await run(results, kubeconfig=admin, words={"NAME": claim}))
        assert (result["request"], result["consumedCapacity"]["slots"]) == ("train", "1")
        for command in documented(GUIDE, "switch-wiring"):
            await run(command, kubeconfig=admin, words={"TEAM": "default", "NAME": NODE})
        with steps.step("both wirings, until the node shares its cards again"):
            (_, share, _) = documented(GUIDE, "claims-install")
            await run(share, kubeconfig=admin, words={"NAME": NODE})
        again = {**a_long_half(), "metadata": {**a_long_half()["metadata"], "name": "again"}}
        await cluster.kubectl("apply", "-f", "-", stdin=again)
        claim_named_by(await cluster.wait_pod("again"))
