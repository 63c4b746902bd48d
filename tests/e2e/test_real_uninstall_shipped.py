"""A real cluster with the shipped manifests: uninstalled, it is as before, object by object."""

from pathlib import Path
from typing import Final

import pytest

from fracgpu import names
from fracgpu.cards.node_marks import marks_of
from kube.errors import NotFound
from kube.kinds import EVENTS, LEASES, PODS
from kube.objects import decode_object
from tests.e2e.test_real_uninstall import settled, uninstall
from tests.support.real_cluster import NODE, RealCluster
from tests.support.shipped import a_cluster_with_our_images, a_long_half, install, wait_counted
from tests.support.snapshot import differences
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1800)]

# As in overlays/simulated-cards.
ALL_MIB: Final = 2 * 40_960
_CDI: Final = Path("/var/run/cdi")
_LINKS: Final = Path("/var/lib/fracgpu/links")


def our_files() -> list[str]:
    """Return our files on the host for container starts."""
    return sorted(path.name for path in (*_CDI.glob("fracgpu*"), *_LINKS.glob("*")))


async def node_has_its_lease(cluster: RealCluster) -> bool:
    try:
        return bool(await cluster.client.get(LEASES, NODE, namespace="kube-node-lease"))
    except NotFound:
        return False


async def unlabelled_node_is_clean(cluster: RealCluster) -> bool:
    agents = await cluster.pods(names.SYSTEM_NAMESPACE, app="fracgpu-deviceplugin")
    return not agents and not marks_of(await cluster.node())


async def test_installed_used_and_uninstalled_a_real_cluster_is_as_before_object_by_object(
    tmp_path: Path,
) -> None:
    async with a_cluster_with_our_images(tmp_path) as cluster:
        kubeconfig = cluster.kubectl.kubeconfig
        await until(
            lambda: node_has_its_lease(cluster), what="kubelet has made its own Lease", limit_s=90
        )
        before, files_before = await settled(cluster.client), our_files()
        await install(cluster)
        await wait_counted(cluster, mib=ALL_MIB)
        await cluster.kubectl("apply", "-f", "-", stdin=a_long_half())
        await cluster.wait_pod("half")

        # One node stops sharing: its agent cleans up, and its pods keep running.
        await cluster.kubectl("label", "node", NODE, f"{names.SHARE_LABEL}-")
        await until(
            lambda: unlabelled_node_is_clean(cluster),
            what="the agent has cleaned up and ended",
            limit_s=90,
        )
        await cluster.wait_pod("half", limit_s=5)
        events = [decode_object(raw) for raw in (await cluster.client.list(EVENTS)).items]
        (told,) = [event["message"] for event in events if event["reason"] == "SharingEnded"]
        assert "default/half" in told

        # It shares again.
        await cluster.kubectl("label", "node", NODE, f"{names.SHARE_LABEL}=true")
        await wait_counted(cluster, mib=ALL_MIB)
        await cluster.client.delete(PODS, "half", namespace="default")

        async def gone() -> bool:
            return not await cluster.pods("default")

        await until(gone, what="the user's pod is gone", limit_s=60)
        code, said = await uninstall(kubeconfig, "--yes")

        assert code == 0, said
        assert "no agent cleaned up" not in said
        assert our_files() == files_before
        left = differences(before, await settled(cluster.client))
        assert left == [], said
