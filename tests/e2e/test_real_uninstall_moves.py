"""Uninstalled amid a surge, on a real control plane: no pod is left without its owner."""

import asyncio
import signal
import sys
from pathlib import Path

import pytest

from fracgpu import names
from kube.kinds import DEPLOYMENTS
from tests.support.processes import output_of
from tests.support.real_moves import MovingCluster, a_moving_cluster, a_workload
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]


async def test_uninstalled_amid_a_surge_the_released_pod_is_its_replicasets_again(
    tmp_path: Path,
) -> None:
    async with a_moving_cluster(tmp_path) as cluster:
        rebalancer = await cluster.leading()
        app = await cluster.add(DEPLOYMENTS, a_workload("surging"))
        victim = await cluster.heat(app)
        cluster.unready = lambda pod: pod.record.uid != victim.record.uid
        await cluster.wait_move(
            app,
            lambda move: move.status.replacement is not None and bool(move.status.replacement.node),
            what="the replacement is bound",
        )
        rebalancer.send(signal.SIGKILL)  # as its namespace's deletion ends it
        assert await rebalancer.process.wait_end() == -signal.SIGKILL
        assert await released(cluster, app) == [victim.record.name]

        lines = await uninstall(tmp_path / "admin.kubeconfig")

        assert f"pod {victim.record.key}: given back to its ReplicaSet" in lines
        await until(lambda: alone(cluster, app), what="one pod is left, with its owner", limit_s=60)
        (pod,) = await cluster.pods(app)
        assert pod.record.uid == victim.record.uid
        assert pod.labels == victim.labels
        assert names.MOVED_BY not in pod.annotations
        assert cluster.fewest_ready[app] == 1


async def released(cluster: MovingCluster, app: str) -> list[str]:
    return [pod.record.name for pod in await cluster.pods(app) if not pod.owner]


async def alone(cluster: MovingCluster, app: str) -> bool:
    return [bool(pod.owner) for pod in await cluster.pods(app)] == [True]


async def uninstall(kubeconfig: Path) -> str:
    """Run the command as an administrator does; returns what it tells.

    It waits for the namespace first. Nobody takes back what these nodes' kubelets counted, so that
    it waits for that until its time is over.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "cli", "uninstall", "--kubeconfig", str(kubeconfig)),
        *("--yes", "--wait-s", "45"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    out, _ = await output_of(process, limit_s=120)
    return out.decode()
