"""The chart on a real kubelet: pods run, and are placed, across an upgrade; none is disturbed."""

from pathlib import Path
from typing import Any, Final

import pytest

from fracgpu import names
from tests.support.documented import documented, run
from tests.support.helm import helm_or_skip
from tests.support.real_cluster import NODE, RealCluster
from tests.support.shipped import (
    AGENT,
    ROLES,
    SYSTEM,
    a_cluster_with_our_images,
    a_long_half,
    wait_counted,
)

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1800)]

GUIDE: Final = "docs/install.md"
# As simulatedCards.cards in the chart.
ALL_MIB: Final = 2 * 40_960


def a_half(name: str) -> dict[str, Any]:
    body = a_long_half()
    return {**body, "metadata": {**body["metadata"], "name": name}}


async def wait_ready(cluster: RealCluster) -> None:
    for what in (*ROLES, AGENT):
        await cluster.wait_ready(what, namespace=SYSTEM)


async def test_pods_run_and_are_placed_before_during_and_after_an_upgrade(tmp_path: Path) -> None:
    helm_or_skip()
    async with a_cluster_with_our_images(tmp_path) as cluster:
        admin = cluster.kubectl.kubeconfig
        install, label = documented(GUIDE, "helm-install")
        # The node has the image by its plain name.
        local = install.replace("image.registry=registry.example.com/team", "image.registry=")
        await run(f"{local} --set simulatedCards.enabled=true", kubeconfig=admin)
        await run(label, kubeconfig=admin, words={"NAME": NODE})
        await wait_ready(cluster)
        await wait_counted(cluster, mib=ALL_MIB)
        await cluster.kubectl("apply", "-f", "-", stdin=a_half("before"))
        running = await cluster.wait_pod("before")

        (upgrade,) = documented(GUIDE, "helm-upgrade")
        # New pods of every role: as with a new version's image.
        roles = ("webhook", "certs", "scheduler", "deviceplugin", "rebalancer")
        notes = ",".join(f"{role}.podAnnotations.version=next" for role in roles)
        await run(f"{upgrade} --set {notes}", kubeconfig=admin)
        await cluster.kubectl("apply", "-f", "-", stdin=a_half("during"))
        await cluster.wait_pod("during")
        await wait_ready(cluster)
        await cluster.kubectl("apply", "-f", "-", stdin=a_half("after"))
        await cluster.wait_pod("after")

        still = await cluster.wait_pod("before", limit_s=5)
        told = await cluster.kubectl(
            "-n", SYSTEM, "exec", "deployment/fracgpu-webhook", "--", "fracgpu", "cards"
        )

    assert still["metadata"]["uid"] == running["metadata"]["uid"]
    assert [status["restartCount"] for status in still["status"]["containerStatuses"]] == [0]
    assert names.ASSIGNMENT in still["metadata"]["annotations"]
    # As the notes of the chart say.
    assert "default/before" in told
