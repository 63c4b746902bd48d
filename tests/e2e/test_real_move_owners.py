"""What users and controllers do to an owner in the middle of its pod's move, on a real cluster.

The rebalancer is a process, and so are kube-scheduler with our extender and
kube-controller-manager; kubelets and what is measured are played.
"""

from pathlib import Path
from typing import Any

import pytest

from fracgpu import names
from fracgpu.state.move_object import Ending
from fracgpu.state.pod_info import PodInfo
from kube.client import PatchType
from kube.kinds import DEPLOYMENTS, JOBS, PDBS
from tests.support.moving import NAMESPACE
from tests.support.objects import a_budget
from tests.support.real_moves import (
    MovingCluster,
    a_job,
    a_moving_cluster,
    a_workload,
    card_of,
)

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(400),
    pytest.mark.asyncio(loop_scope="module"),
]


async def surge(cluster: MovingCluster, app: str) -> PodInfo:
    """Let a surge begin whose replacement is bound and never Ready; returns the pod that moves."""
    victim = await cluster.heat(app)
    hash_value = victim.labels["pod-template-hash"]
    cluster.unready = lambda pod: pod.labels.get("pod-template-hash") == hash_value
    await cluster.wait_move(
        app,
        lambda move: move.status.replacement is not None and bool(move.status.replacement.node),
        what="the replacement is bound",
    )
    return victim


async def test_an_only_replica_under_a_budget_moves_to_the_reserved_card_without_a_gap(
    tmp_path: Path,
) -> None:
    often = {"owner_cooldown_s": 1, "max_per_owner_per_day": 100}
    async with a_moving_cluster(tmp_path, times=often) as cluster:
        await cluster.leading()
        app = await cluster.add(DEPLOYMENTS, a_workload("guarded"))
        guard = a_budget(app, app=app, min_available=1)
        await cluster.kube.create(PDBS, guard, namespace=NAMESPACE)
        for number in range(1, 4):
            source = card_of(await cluster.heat(app))

            *_, move = await cluster.settle(app, moves=number)

            assert move.status.result == Ending.RELIEVED.value, move.status
            (landed,) = await cluster.pods(app)
            assert landed.annotations[names.MOVE] == move.name
            assert card_of(landed) == move.spec.target.card != source == move.spec.source.card
        assert cluster.fewest_ready[app] == 1


async def test_a_rollout_in_the_middle_of_a_surge_goes_through_and_the_move_is_rolled_back(
    cluster: MovingCluster,
) -> None:
    app = await cluster.add(DEPLOYMENTS, a_workload("rollout"))
    victim = await surge(cluster, app)

    image = {"name": "train", "image": "registry.example/train:2"}
    patch: dict[str, Any] = {"spec": {"template": {"spec": {"containers": [image]}}}}
    await cluster.kube.patch(DEPLOYMENTS, app, patch, namespace=NAMESPACE, how=PatchType.STRATEGIC)

    (move,) = await cluster.settle(app)
    assert move.status.result == Ending.ROLLOUT.value
    (pod,) = await cluster.pods(app)
    assert pod.labels["pod-template-hash"] != victim.labels["pod-template-hash"]
    assert cluster.fewest_ready[app] == 1


async def test_a_pod_of_a_job_moves_without_costing_the_job_a_retry(
    cluster: MovingCluster,
) -> None:
    app = await cluster.add(JOBS, a_job("job"))
    victim = await cluster.heat(app)

    (move,) = await cluster.settle(app)

    assert move.status.result == Ending.RELIEVED.value
    job = await cluster.kube.get_object(JOBS, app, namespace=NAMESPACE)
    assert job["status"].get("failed", 0) == 0
    (pod,) = await cluster.pods(app)
    assert card_of(pod) == move.spec.target.card != card_of(victim)
