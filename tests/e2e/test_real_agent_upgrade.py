"""An upgrade of the node agent, as its DaemonSet does it, while pods with shares come and go.

The control plane, kube-scheduler, kubelet and containerd are real, the cards simulated; each role
is a pod of our image under its own account.
"""

import asyncio
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

import pytest

from fracgpu import names
from kube.kinds import PODS
from tests.support.kubectl import DEPLOY
from tests.support.real_cluster import (
    AGENT,
    SYSTEM,
    RealCluster,
    a_cluster_with_our_images,
    a_long_half,
    install,
    wait_counted,
)
from tests.support.real_node import state_of
from tests.support.waiting import until
from tests.support.yaml_files import read_documents

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1200)]

Json = dict[str, Any]

# As in overlays/simulated-cards.
ALL_MIB: Final = 2 * 40_960
OVERLAYS: Final = DEPLOY.parent / "overlays"
UPGRADES: Final = 3
LEAST_PODS: Final = 100
# Pods that have not ended yet: kubelet runs at most 110 pods, the cards take 64 containers.
MOST_AT_ONCE: Final = 30
PACE_S: Final = 0.3


def a_short_pod(number: int) -> Json:
    """Return a pod with a small share that ends soon, and that nobody replaces or deletes."""
    body = a_long_half()
    body["metadata"] |= {"name": f"short-{number}", "annotations": {names.FRACTION: "0.02"}}
    (container,) = body["spec"]["containers"]
    container["command"] = ["/bin/sh", "-c", "sleep 1"]
    body["spec"]["restartPolicy"] = "Never"
    return body


async def pods_of(cluster: RealCluster) -> dict[str, Json]:
    """Return the pods of the test by name."""
    pods = await cluster.pods("default")
    return {pod["metadata"]["name"]: pod for pod in pods}


async def bound_pods(cluster: RealCluster) -> set[str]:
    """Return the names of the pods that have a node."""
    return {name for name, pod in (await pods_of(cluster)).items() if pod["spec"].get("nodeName")}


async def keep_creating(cluster: RealCluster, done: asyncio.Event) -> int:
    """Create one pod after the other until all upgrades are done; return how many."""
    count = 0
    while not done.is_set() or count < LEAST_PODS:
        found = Counter(pod["status"]["phase"] for pod in (await pods_of(cluster)).values())
        if found["Pending"] + found["Running"] < MOST_AT_ONCE:
            await cluster.client.create(PODS, a_short_pod(count))
            count += 1
        await asyncio.sleep(PACE_S)  # the pace of the users, not a wait for anything
    return count


async def upgrade(cluster: RealCluster, *, last: bool) -> None:
    """Replace the agent as an upgrade does: its pod template changes.

    From the *last* upgrade on it reads pods as its node: what overlays/read-as-node changes.
    """
    if last:
        (role, _) = read_documents((OVERLAYS / "read-as-node" / "deviceplugin.yaml").read_text())
        await cluster.kubectl("apply", "-f", "-", stdin=role)
        setting = "FRACGPU_DEVICEPLUGIN_READ_PODS_AS_NODE=true"
        await cluster.kubectl("set", "env", AGENT, "-n", SYSTEM, setting)
    else:
        await cluster.kubectl("rollout", "restart", AGENT, "-n", SYSTEM)
    await cluster.kubectl("rollout", "status", AGENT, "-n", SYSTEM, "--timeout=180s")


async def test_three_upgrades_of_the_agent_fail_none_of_a_hundred_pods(tmp_path: Path) -> None:
    async with a_cluster_with_our_images(tmp_path) as cluster:
        await install(cluster)
        await wait_counted(cluster, mib=ALL_MIB)
        done, agents, took, bound = asyncio.Event(), set[str](), [], []
        async with asyncio.TaskGroup() as group:
            creating = group.create_task(keep_creating(cluster, done))
            for number in range(UPGRADES):
                began_s, before = time.monotonic(), await bound_pods(cluster)
                await upgrade(cluster, last=number == UPGRADES - 1)
                took.append(round(time.monotonic() - began_s, 1))
                bound.append(len(await bound_pods(cluster) - before))
                (agent,) = [
                    pod["metadata"]["uid"]
                    for pod in await cluster.pods(SYSTEM, app="fracgpu-deviceplugin")
                    if "deletionTimestamp" not in pod["metadata"]
                ]
                agents.add(agent)
            done.set()
        count = creating.result()

        async def ended() -> bool:
            found = Counter(pod["status"]["phase"] for pod in (await pods_of(cluster)).values())
            return found["Succeeded"] + found["Failed"] == count

        await until(ended, what=f"{count} pods have ended", limit_s=300)
        failed = {
            name: f"{pod['status'].get('reason')} {state_of(pod)}"
            for name, pod in (await pods_of(cluster)).items()
            if pod["status"]["phase"] == "Failed"
        }
        print(f"{len(failed)} of {count} pods failed; upgrades took {took} s,", end=" ")  # noqa: T201
        print(f"in which {bound} pods were bound")  # noqa: T201
        assert failed == {}
        assert count >= LEAST_PODS
        assert min(bound) > 0
        assert len(agents) == UPGRADES
