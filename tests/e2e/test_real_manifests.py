"""``deploy/`` and the image as shipped: on a real kubelet every pod runs."""

import re
from pathlib import Path
from typing import Any, Final

import pytest

from fracgpu import names
from fracgpu.state.allocation import read_assignment
from tests.support.kubectl import DEPLOY
from tests.support.real_cluster import (
    AGENT,
    NODE,
    ROLES,
    SIMULATED,
    SYSTEM,
    RealCluster,
    a_cluster_with_our_images,
    wait_counted,
)
from tests.support.real_runtime import IMAGE
from tests.support.waiting import until_true

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1800)]

# As in overlays/simulated-cards: the device file of a card, and its device number.
CARD_MIB: Final = 40_960
DEVICES: Final = {
    f"GPU-{NODE}-0": "device /dev/nvidia0 1:3",
    f"GPU-{NODE}-1": "device /dev/nvidia1 1:5",
}
_TELL: Final = "for it in /dev/nvidia*; do stat -c 'device %n %t:%T' $it; done; env"
_WHO: Final = "import os; print(os.getuid(), os.getgid(), os.access('/', os.W_OK))"
_REFUSED: Final = re.compile(r"answered 403|permission denied|forbidden|read-only file", re.I)


def a_half() -> dict[str, Any]:
    """Return the pod of the README: half a card, in one line, and an end."""
    container = {
        "name": "train",
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "command": ["/bin/sh", "-c", _TELL],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "half",
            "namespace": "default",
            "annotations": {names.FRACTION: "0.5"},
        },
        "spec": {"restartPolicy": "Never", "containers": [container]},
    }


async def complaints(cluster: RealCluster) -> list[str]:
    """Return which container of ours was restarted, and which requests were refused."""
    found = []
    for pod in await cluster.pods(SYSTEM):
        name = pod["metadata"]["name"]
        found += [
            f"{name}: {status['name']} was started again: {status['lastState']}"
            for status in pod["status"]["containerStatuses"]
            if status["restartCount"]
        ]
        for container, text in cluster.logs(SYSTEM, name).items():
            lines = [line for line in text.splitlines() if _REFUSED.search(line)]
            found += [f"{name}: {container}: {line}" for line in lines]
    return found


async def users(cluster: RealCluster) -> dict[str, set[str]]:
    """Return the user of each pod of ours, by its name in ``deploy/``."""
    found: dict[str, set[str]] = {}
    for pod in await cluster.pods(SYSTEM):
        metadata = pod["metadata"]
        words = ("exec", metadata["name"], "-n", SYSTEM, "--", "python", "-c", _WHO)
        user = (await cluster.kubectl(*words)).strip()
        found.setdefault(metadata["labels"]["app.kubernetes.io/name"], set()).add(user)
    return found


async def test_the_manifests_pods_really_run(tmp_path: Path) -> None:
    async with a_cluster_with_our_images(tmp_path) as cluster:
        await cluster.apply(DEPLOY)
        await cluster.kubectl("label", "node", NODE, f"{names.SHARE_LABEL}=true")
        for role in ROLES:
            await cluster.wait_ready(role, namespace=SYSTEM)
        # The node has no driver: its agent runs, and reports that.
        (agent,) = await cluster.pods(SYSTEM, app="fracgpu-deviceplugin")
        name = agent["metadata"]["name"]
        await until_true(
            lambda: "NVML Shared Library Not Found" in str(cluster.logs(SYSTEM, name)),
            what="the agent says that there is no driver",
        )
        assert await complaints(cluster) == []

        await cluster.apply(SIMULATED)
        await cluster.wait_ready(AGENT, namespace=SYSTEM)
        await wait_counted(cluster, mib=len(DEVICES) * CARD_MIB)
        await cluster.kubectl("apply", "-f", "-", stdin=a_half())
        pod = await cluster.wait_pod("half", phase="Succeeded")
        said = cluster.logs("default", "half")["train"]
        troubles = await complaints(cluster)
        whose = await users(cluster)

    assert pod["spec"]["schedulerName"] == names.SCHEDULER_NAME
    ((assigned,),) = read_assignment(pod["metadata"]["annotations"][names.ASSIGNMENT]).values()
    assert assigned.mib == CARD_MIB // 2
    assert re.findall(r"device \S+ \S+", said) == [DEVICES[assigned.card]]
    assert f"{names.ENV_VISIBLE_DEVICES}={assigned.card}\n" in said
    assert f"{names.ENV_MEM_MIB}={assigned.mib}\n" in said
    assert troubles == []
    # As whom, in which group, and whether it could write to its root file system.
    assert whose == {
        "fracgpu-certs": {"65532 65532 False"},
        "fracgpu-webhook": {"65532 65532 False"},
        "fracgpu-scheduler": {"65532 65532 False"},
        "fracgpu-rebalancer": {"65532 65532 False"},
        "fracgpu-deviceplugin": {"0 0 False"},
    }
