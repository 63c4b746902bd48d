"""A move by surge against an API server whose ReplicaSet and budget controllers run."""

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from fracgpu import names
from fracgpu.cards.card import CardUuid
from fracgpu.disruption.move import HoldReason
from fracgpu.disruption.policy import Mode, RebalancerPolicy
from fracgpu.state.move_object import Ending, MovePhase
from kube.client import KubeClient
from kube.kinds import NODES, PDBS, PODS, REPLICASETS, SERVICES, VALIDATING_WEBHOOKS
from rebalancer.moves.steps import (
    DELETION_COST,
    Enter,
    MoveFacts,
    OwnerFacts,
    StepContext,
    VictimFacts,
    Wait,
    surging,
)
from tests.fakes.clock import NOON, VirtualClock
from tests.support.core import a_card
from tests.support.gpu import a_sharing_node, register
from tests.support.moving import (
    HASH,
    NAMESPACE,
    OWNER,
    SurgeCluster,
    a_surge_cluster,
    add_budget,
    end_pod,
    events,
    scale,
    schedule,
)
from tests.support.rebalancing import COOL_CARD, HOT_CARD, a_disruption_state, a_reading
from tests.support.records import a_record
from tests.support.waiting import until

ACTIVE = RebalancerPolicy(mode=Mode.ACTIVE, startup_grace_s=0)
THIRD_CARD = CardUuid("GPU-third")


async def rolled_back(cluster: SurgeCluster, ending: Ending, *, ticks: int = 4) -> None:
    """Check that the move ends with the old pod in its ReplicaSet and without a mark."""
    for _ in range(ticks):
        await cluster.rig.tick()
        if cluster.rig.record().phase is MovePhase.ABORTED:
            break
    record = cluster.rig.record()
    assert (record.phase, record.ending) == (MovePhase.ABORTED, ending), record.status.message
    pod = await cluster.pod()
    assert pod.labels["pod-template-hash"] == HASH
    assert names.MOVED_BY not in pod.annotations
    assert not pod.record.terminating
    assert cluster.rig.figure("evictions_total", code="allowed") == 0
    await cluster.wait_owned()


@pytest.fixture
async def cluster(kube: KubeClient, clock: VirtualClock) -> AsyncIterator[SurgeCluster]:
    async with a_surge_cluster(kube, clock=clock) as cluster:
        yield cluster


async def test_a_surge_replaces_the_pod_before_it_is_evicted(
    kube: KubeClient, cluster: SurgeCluster
) -> None:
    rig = cluster.rig
    replacement = await cluster.surge()
    assert rig.record().phase is MovePhase.SURGING
    assert rig.record().status.released_hash == HASH
    pod = await cluster.pod()
    assert pod.labels["pod-template-hash"] == f"{HASH}.moved"
    assert pod.annotations[names.MOVED_BY] == rig.record().name
    assert not pod.record.terminating

    await rig.tick()
    assert rig.record().phase is MovePhase.SURGING
    await schedule(kube, ready=False)
    await rig.tick()
    assert rig.record().phase is MovePhase.SURGING
    assert rig.record().landed == COOL_CARD
    await cluster.ready(replacement, ready=True)
    await rig.tick()
    assert rig.record().phase is MovePhase.REPLACEMENT_READY
    await rig.tick()
    assert not (await cluster.pod()).record.terminating  # readyS is not over
    await rig.tick()
    assert rig.record().phase is MovePhase.VERIFYING
    assert rig.record().replacement == f"{NAMESPACE}/{replacement}"
    await cluster.wait_gone("pod-a")

    rig.usage.readings[HOT_CARD] = a_reading(0.45)
    await rig.tick(601)
    assert rig.record().ending is Ending.RELIEVED
    assert rig.figure("misplaced_total") == 0
    assert rig.figure("evictions_total", code="allowed") == 1

    phases = [passed.phase for passed in rig.record().status.transitions]
    assert phases == [
        MovePhase.PLANNED,
        MovePhase.RESERVED,
        MovePhase.NOTICED,
        MovePhase.SURGING,
        MovePhase.REPLACEMENT_READY,
        MovePhase.EVICTING,
        MovePhase.EVICTED,
        MovePhase.VERIFYING,
        MovePhase.DONE,
    ]
    assert await events(kube) == [
        "HotCardDetected",
        "MovePlanned",
        "SurgeStarted",
        "ReplacementReady",
        "Evicted",
        "MoveCompleted",
    ]


async def test_a_budget_that_allows_nothing_allows_the_eviction_after_the_surge(
    kube: KubeClient, cluster: SurgeCluster
) -> None:
    await add_budget(kube, allowed=0)
    await kube.patch(PDBS, "web", {"spec": {"minAvailable": 2}}, namespace=NAMESPACE)
    await until(lambda: allows(kube, 0), what="the budget allows nothing")
    await cluster.surge_until_ready()
    await until(lambda: allows(kube, 1), what="the replacement makes room in the budget")

    await cluster.rig.tick(31)

    assert cluster.rig.record().phase is MovePhase.VERIFYING
    assert (await cluster.pod()).record.terminating
    assert cluster.rig.figure("rehearsals_total", code="blocked") == 1


async def test_a_budget_that_never_allows_it_rolls_the_surge_back(
    kube: KubeClient, cluster: SurgeCluster
) -> None:
    await cluster.surge()
    await add_budget(kube, allowed=0)
    await kube.patch(PDBS, "web", {"spec": {"minAvailable": 3}}, namespace=NAMESPACE)
    await until(lambda: allows(kube, 0), what="the budget allows nothing")
    await schedule(kube)
    await cluster.rig.tick()
    await cluster.rig.tick(31)
    assert cluster.rig.record().phase is MovePhase.EVICTING
    assert cluster.rig.record().status.attempts == 1
    assert cluster.rig.figure("evictions_total", code="blocked") == 1
    await cluster.rig.tick(601)

    await rolled_back(cluster, Ending.BLOCKED)


async def test_a_replacement_that_is_not_ready_in_time_is_rolled_back(
    kube: KubeClient, clock: VirtualClock
) -> None:
    policy = replace(ACTIVE, replacement_ttl_s=60)
    async with a_surge_cluster(kube, clock=clock, policy=policy) as cluster:
        replacement = await cluster.surge()
        await schedule(kube, ready=False)

        await rolled_back(cluster, Ending.NOT_READY, ticks=8)

        await cluster.wait_gone(replacement)
        assert (await cluster.pods()).keys() == {"pod-a", "pod-b"}
    assert (await events(kube))[-2:] == ["RolledBack", "MoveAborted"]


async def test_an_image_that_cannot_be_pulled_is_rolled_back_at_once(
    kube: KubeClient, cluster: SurgeCluster
) -> None:
    replacement = await cluster.surge()
    await schedule(kube, ready=False)
    waiting = {"reason": "ImagePullBackOff", "message": "Back-off pulling image"}
    await set_container_state(kube, replacement, {"waiting": waiting})

    await rolled_back(cluster, Ending.NOT_READY)

    assert cluster.rig.record().status.message.startswith("container train: ImagePullBackOff")


async def test_a_replacement_that_a_webhook_or_quota_refuses_is_rolled_back(
    kube: KubeClient, cluster: SurgeCluster
) -> None:
    await cluster.rig.tick_until_planned()
    await forbid_pods(kube)
    await cluster.rig.tick()
    await cluster.wait_owned(owned=False)

    await until(lambda: has_failed(kube), what="the ReplicaSet reports its failure")

    await rolled_back(cluster, Ending.NOT_CREATED)


@pytest.mark.parametrize("measured", [False, True])
async def test_a_replacement_on_another_cool_card_is_accepted_and_counted(
    kube: KubeClient, cluster: SurgeCluster, *, measured: bool
) -> None:
    """What it uses there already, once that is measured, does not count twice."""
    rig = cluster.rig
    await another_card(kube)
    rig.usage.readings[THIRD_CARD] = a_reading(0.1)
    name = await cluster.surge_until_ready(card=THIRD_CARD, node="n3")
    assert rig.record().phase is MovePhase.REPLACEMENT_READY
    if measured:
        uid = (await cluster.pod(name)).record.uid
        rig.usage.readings[THIRD_CARD] = a_reading(0.55, pods={uid: 0.45})

    await rig.tick(31)

    assert rig.record().phase is MovePhase.VERIFYING
    assert rig.record().landed == THIRD_CARD
    assert rig.figure("misplaced_total") == 1


@pytest.mark.parametrize("mode", [Mode.OFF, Mode.DRY_RUN])
async def test_switching_off_rolls_a_surge_back(mode: Mode, cluster: SurgeCluster) -> None:
    replacement = await cluster.surge_until_ready()
    assert cluster.rig.record().phase is MovePhase.REPLACEMENT_READY
    cluster.rig.config.value = replace(cluster.rig.config.value, mode=mode)
    await cluster.rig.tick()
    # Its ReplicaSet deletes it first.
    assert (await cluster.pod(replacement)).annotations[DELETION_COST] == "-2147483648"

    await rolled_back(cluster, Ending.PAUSED)

    await cluster.wait_gone(replacement)


async def test_a_scale_down_during_a_surge_ends_it(kube: KubeClient, cluster: SurgeCluster) -> None:
    replacement = await cluster.surge()
    await scale(kube, 1)
    await cluster.wait_gone(replacement)
    await cluster.rig.tick(61)

    record = cluster.rig.record()
    assert record.ending is Ending.SCALED_DOWN, record.status.message
    await cluster.rig.tick()
    assert cluster.rig.record().phase is MovePhase.ABORTED
    assert cluster.rig.figure("evictions_total", code="allowed") == 0


@pytest.mark.parametrize(
    ("leading_s", "ending"), [(30, None), (61, Ending.SCALED_DOWN), (900, Ending.SCALED_DOWN)]
)
def test_a_new_leader_that_has_just_released_the_pod_waits_for_its_replacement(
    leading_s: float, ending: Ending | None
) -> None:
    """Its predecessor announced the surge long ago; the owner's status is still of before."""
    now = NOON + timedelta(seconds=100)
    state = replace(a_disruption_state(), leading_since=now - timedelta(seconds=leading_s))
    context = StepContext(state=state, nodes={}, policy=ACTIVE, now=now)
    facts = MoveFacts(
        victim=VictimFacts(there=True, running=True, hash_label=f"{HASH}.moved", moved_by="m"),
        owner=OwnerFacts(there=True, observed=True, desired=2, ready=2, others=2),
    )

    step = surging(a_record(MovePhase.SURGING), facts, context)

    assert (step.move.ending if isinstance(step, Enter) else None) is ending


@pytest.mark.parametrize("released", [True, False])
def test_a_status_of_before_an_outage_does_not_end_a_surge(*, released: bool) -> None:
    """The ReplicaSet's status says 2 of 2, and one of them is the pod that it should replace."""
    now = NOON + timedelta(seconds=100)
    state = replace(a_disruption_state(), leading_since=NOON)
    context = StepContext(state=state, nodes={}, policy=ACTIVE, now=now)
    record = a_record(MovePhase.SURGING)
    facts = MoveFacts(
        victim=VictimFacts(
            there=True,
            running=True,
            hash_label=f"{HASH}.moved",
            moved_by="m",
            controller_uid="" if released else record.spec.owner.uid,
        ),
        owner=OwnerFacts(there=True, observed=True, desired=2, ready=2, others=1),
    )

    assert isinstance(surging(record, facts, context), Wait)
    late = replace(context, now=now + timedelta(hours=1))
    step = surging(record, facts, late)
    assert isinstance(step, Enter)
    assert step.move.ending is (Ending.LAPSED if released else Ending.EXPIRED)
    ended = step.move.ended(step.move.ending, now=late.now)
    # What its controller never knew of has disturbed nobody: its owner need not rest.
    assert ended.disturbed is released


async def test_a_scale_to_nothing_during_a_surge_ends_it_at_once(
    kube: KubeClient, cluster: SurgeCluster
) -> None:
    """An owner that wants no pod makes none, so nothing has to be waited for."""
    replacement = await cluster.surge()
    await scale(kube, 0)
    for name in (replacement, "pod-b"):
        await cluster.wait_gone(name)
    await cluster.rig.tick(1)

    assert cluster.rig.record().phase is MovePhase.ROLLING_BACK
    assert cluster.rig.record().ending is Ending.SCALED_DOWN
    await cluster.wait_gone("pod-a")
    await cluster.rig.tick(1)
    assert cluster.rig.record().phase is MovePhase.ABORTED


async def test_a_scale_up_during_a_surge_does_not_stop_it(
    kube: KubeClient, cluster: SurgeCluster
) -> None:
    await cluster.surge()
    await scale(kube, 3)
    await until(lambda: count_pods(cluster, 4), what="two pods more")
    await schedule(kube)
    await cluster.rig.tick()
    await cluster.rig.tick(31)

    assert cluster.rig.record().phase is MovePhase.VERIFYING
    assert cluster.rig.record().landed == COOL_CARD
    assert cluster.rig.figure("misplaced_total") == 0


async def test_a_pod_that_ends_by_itself_during_a_surge_is_replaced_all_the_same(
    kube: KubeClient, cluster: SurgeCluster
) -> None:
    await cluster.surge()
    await end_pod(kube, "pod-a")
    await cluster.rig.tick()
    assert cluster.rig.record().phase is MovePhase.EVICTED
    await schedule(kube)

    await cluster.rig.tick()

    assert cluster.rig.record().phase is MovePhase.VERIFYING
    assert cluster.rig.figure("evictions_total", code="allowed") == 0


def a_condition(**condition: str) -> dict[str, Any]:
    return {"status": {"conditions": [condition]}}


@pytest.mark.parametrize(
    ("change", "subresource", "why"),
    [
        ({"spec": {"unschedulable": True}}, None, "node n2 is cordoned"),
        (None, None, "node n2 was deleted"),
        (a_condition(type="Ready", status="Unknown"), "status", "node n2 is not Ready"),
        (
            a_condition(
                type=names.SHARING_CONDITION, status="False", reason=names.AGENT_NOT_REGISTERED
            ),
            "status",
            "kubelet on node n2 does not know the node agent",
        ),
    ],
)
async def test_a_target_node_on_which_no_pod_starts_any_more_rolls_the_surge_back(
    kube: KubeClient, change: Any, subresource: str | None, why: str, cluster: SurgeCluster
) -> None:
    await cluster.surge()
    if change is None:
        await kube.delete(NODES, "n2")
    else:
        await kube.patch(NODES, "n2", change, subresource=subresource)

    await rolled_back(cluster, Ending.TARGET_LOST)

    assert cluster.rig.record().status.message == why


async def test_a_service_that_selects_by_the_hash_forbids_the_surge(
    kube: KubeClient, cluster: SurgeCluster
) -> None:
    """Argo Rollouts does so: the released pod would be out of its Service."""
    service = {
        "metadata": {"name": "stable", "namespace": NAMESPACE},
        "spec": {"selector": {"pod-template-hash": HASH}, "ports": [{"port": 80}]},
    }
    await cluster.rig.tick_until_planned()
    await kube.create(SERVICES, service)

    await cluster.rig.tick()

    record = cluster.rig.record()
    assert record.ending is Ending.OUTDATED
    assert HoldReason.SERVICE_BY_HASH.value in record.status.message
    assert not record.disturbed
    assert not await cluster.released()


async def test_a_pod_is_told_before_it_is_disturbed(kube: KubeClient, clock: VirtualClock) -> None:
    policy = replace(ACTIVE, notice_s=60)
    async with a_surge_cluster(kube, clock=clock, policy=policy) as cluster:
        await cluster.rig.tick_until_planned()
        await cluster.rig.tick()
        assert cluster.rig.record().phase is MovePhase.NOTICED
        at = cluster.rig.record().phase_since + timedelta(seconds=60)
        assert (await cluster.pod()).annotations[names.NOTICE] == f"{at:%Y-%m-%dT%H:%M:%SZ}"
        await cluster.rig.tick(30)
        assert not await cluster.released()

        await cluster.rig.tick(31)

        assert cluster.rig.record().phase is MovePhase.SURGING
        assert await cluster.released()
    assert "MoveNoticed" in await events(kube)


async def test_a_card_that_cools_during_the_notice_disturbs_nobody(
    kube: KubeClient, clock: VirtualClock
) -> None:
    policy = replace(ACTIVE, notice_s=60)
    async with a_surge_cluster(kube, clock=clock, policy=policy) as cluster:
        await cluster.rig.tick_until_planned()
        await cluster.rig.tick()
        cluster.rig.usage.readings[HOT_CARD] = a_reading(0.3)

        await cluster.rig.tick(61)

        assert cluster.rig.record().ending is Ending.OUTDATED
        assert not cluster.rig.record().disturbed
        await cluster.rig.tick(61)  # the notice is taken back
        assert names.NOTICE not in (await cluster.pod()).annotations


async def test_a_replacement_that_becomes_unready_again_keeps_the_old_pod(
    cluster: SurgeCluster,
) -> None:
    replacement = await cluster.surge_until_ready()
    assert cluster.rig.record().phase is MovePhase.REPLACEMENT_READY
    await cluster.ready(replacement, ready=False)

    await cluster.rig.tick(31)

    assert cluster.rig.record().phase is MovePhase.SURGING
    assert not (await cluster.pod()).record.terminating
    await cluster.ready(replacement, ready=True)
    await cluster.rig.tick()
    await cluster.rig.tick(31)
    assert cluster.rig.record().phase is MovePhase.VERIFYING


async def test_a_deleted_owner_takes_the_released_pod_along(
    kube: KubeClient, cluster: SurgeCluster
) -> None:
    """Nothing else would ever delete it."""
    await cluster.surge()
    await kube.delete(REPLICASETS, OWNER, namespace=NAMESPACE)
    await cluster.rig.tick()
    assert cluster.rig.record().phase is MovePhase.ROLLING_BACK
    assert not (await cluster.pod()).record.terminating

    await cluster.rig.tick(61)

    assert (await cluster.pod()).record.terminating
    await cluster.rig.tick()
    assert cluster.rig.record().ending is Ending.OWNER_GONE
    assert cluster.rig.figure("lost_pods_total") == 0


async def test_a_leftover_of_a_forgotten_move_goes_back_to_its_replicaset(
    cluster: SurgeCluster,
) -> None:
    replacement = await cluster.surge()
    await cluster.rig.store.forget(cluster.rig.record())  # by an administrator

    await cluster.rig.tick(61)

    await cluster.wait_owned()
    assert (await cluster.pod()).labels["pod-template-hash"] == HASH
    await cluster.wait_gone(replacement)
    await cluster.rig.tick(61)
    assert names.MOVED_BY not in (await cluster.pod()).annotations


async def test_a_leftover_that_nobody_misses_is_evicted(
    kube: KubeClient, cluster: SurgeCluster
) -> None:
    await cluster.surge_until_ready()
    await until(lambda: is_satisfied(kube), what="the owner has all its pods")
    await cluster.rig.store.forget(cluster.rig.record())

    await cluster.rig.tick(61)

    assert (await cluster.pod()).record.terminating


async def allows(kube: KubeClient, disruptions: int) -> bool:
    budget = await kube.get_object(PDBS, "web", namespace=NAMESPACE)
    status = budget.get("status") or {}
    observed = status.get("observedGeneration") == budget["metadata"]["generation"]
    return bool(observed and status.get("disruptionsAllowed", 0) == disruptions)


async def count_pods(cluster: SurgeCluster, count: int) -> bool:
    return len(await cluster.pods()) == count


async def another_card(kube: KubeClient) -> None:
    await register(kube, a_sharing_node("n3", cards=[a_card(THIRD_CARD)]))


async def set_container_state(kube: KubeClient, name: str, state: dict[str, Any]) -> None:
    statuses = [{"name": "train", "ready": False, "restartCount": 0, "image": "", "imageID": ""}]
    status = {"containerStatuses": [statuses[0] | {"state": state}]}
    await kube.patch(PODS, name, {"status": status}, namespace=NAMESPACE, subresource="status")


async def forbid_pods(kube: KubeClient) -> None:
    """Let a webhook that nobody serves decide on every new pod, as a full quota would refuse it."""
    webhook = {
        "name": "nobody.example.org",
        "clientConfig": {"url": "https://127.0.0.1:9/"},
        "rules": [
            {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"],
             "resources": ["pods"]},
        ],
        "failurePolicy": "Fail",
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }  # fmt: skip
    await kube.create(VALIDATING_WEBHOOKS, {"metadata": {"name": "no"}, "webhooks": [webhook]})


async def has_failed(kube: KubeClient) -> bool:
    owner = await kube.get_object(REPLICASETS, OWNER, namespace=NAMESPACE)
    conditions = (owner.get("status") or {}).get("conditions") or ()
    return any(condition["type"] == "ReplicaFailure" for condition in conditions)


async def is_satisfied(kube: KubeClient) -> bool:
    owner = await kube.get_object(REPLICASETS, OWNER, namespace=NAMESPACE)
    return bool((owner.get("status") or {}).get("readyReplicas", 0) == 2)
