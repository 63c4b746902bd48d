"""What users and controllers do to an owner in the middle of its pod's move, on a real cluster.

The rebalancer is a process, and so are kube-scheduler with our extender and
kube-controller-manager; kubelets and what is measured are played.
"""

from pathlib import Path
from typing import Any

import pytest

from fracgpu import names
from fracgpu.disruption.move import Ending
from fracgpu.state.move_object import MovePhase
from fracgpu.state.pod_info import PodInfo
from kube.client import PatchType
from kube.kinds import DEPLOYMENTS, JOBS, PDBS, PODS, STATEFULSETS
from tests.support.api_gate import entering, evicting
from tests.support.moving import NAMESPACE
from tests.support.objects import a_budget
from tests.support.real_moves import (
    EVICT,
    MovingCluster,
    a_job,
    a_moving_cluster,
    a_workload,
    card_of,
)
from tests.support.waiting import until

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


async def scale(cluster: MovingCluster, app: str, replicas: int) -> None:
    patch = {"spec": {"replicas": replicas}}
    await cluster.kube.patch(DEPLOYMENTS, app, patch, namespace=NAMESPACE)


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


async def test_scaled_up_and_down_in_the_middle_of_a_surge_as_many_stay_as_are_wanted(
    cluster: MovingCluster,
) -> None:
    """As a HorizontalPodAutoscaler does, which sees one pod more during a surge."""
    app = await cluster.add(DEPLOYMENTS, a_workload("scaled"))
    await surge(cluster, app)
    cluster.keep_load()

    await scale(cluster, app, 3)
    await until(lambda: has(cluster, app, 4), what="three pods beside the released one")
    await scale(cluster, app, 2)
    cluster.unready = lambda _: False

    (move,) = await cluster.settle(app, pods=2)
    assert move.status.result == Ending.RELIEVED.value
    assert cluster.fewest_ready[app] >= 1


async def has(cluster: MovingCluster, app: str, count: int) -> bool:
    return len(await cluster.pods(app)) == count


async def test_a_pod_of_a_statefulset_that_somebody_deletes_at_the_eviction_moves_all_the_same(
    cluster: MovingCluster,
) -> None:
    """Its name belongs to another pod then, which must not be evicted."""
    body = a_workload("renamed", annotations=EVICT, serviceName="renamed")
    app = await cluster.add(STATEFULSETS, body)
    leader = await cluster.leading()
    go_on = leader.hold_at(entering(MovePhase.EVICTING))
    victim = await cluster.heat(app)
    await cluster.wait_sprung(leader)

    await cluster.kube.delete(PODS, victim.record.name, namespace=NAMESPACE)
    await until(lambda: recreated(cluster, app, victim), what="it is created again", limit_s=60)
    go_on.set()

    (move,) = await cluster.settle(app)
    (pod,) = await cluster.pods(app)
    assert move.status.result == Ending.RELIEVED.value
    assert pod.record.uid != victim.record.uid
    evictions = [write for write in leader.gate.writes if evicting(write)]
    assert [str(write) for write in evictions if victim.record.name in write.target] == []


async def recreated(cluster: MovingCluster, app: str, victim: PodInfo) -> bool:
    pods = await cluster.pods(app)
    return [pod.ready for pod in pods if pod.record.uid != victim.record.uid] == [True]


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
