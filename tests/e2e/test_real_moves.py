"""A surge on a real control plane: kube-scheduler with our extender, kube-controller-manager.

Kubelets are played, and what is measured is said by the test; all else is real.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from fracgpu import names
from fracgpu.cards.card import CardUuid
from fracgpu.disruption.move import ENDED, Ending
from fracgpu.disruption.policy import Mode, RebalancerPolicy
from fracgpu.state.move_object import MovePhase
from fracgpu.state.pod_info import PodInfo, decode_pod_info
from kube.client import KubeClient
from kube.informer import Change, ChangeType, Informer
from kube.kinds import DEPLOYMENTS, NAMESPACES, PDBS, PODS
from process.clock import SystemClock
from rebalancer.moves.record import MoveRecord
from tests.fakes.clock import VirtualClock
from tests.support.gpu import a_gpu_pod, a_sharing_node, some_cards
from tests.support.moving import NAMESPACE, Rig, Usage, a_rig, play_kubelets
from tests.support.real_scheduler import real_scheduler
from tests.support.rebalancing import a_reading
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(540)]

MOVES_MADE: Final = 20
NODES: Final = ("gpu-1", "gpu-2", "gpu-3")
CARD_MIB: Final = 24_000
POLICY: Final = RebalancerPolicy(
    mode=Mode.ACTIVE,
    startup_grace_s=0,
    min_pod_age_s=0,
    settle_s=60,
    max_per_hour=1000,
    max_per_namespace_per_hour=1000,
    max_per_owner_per_hour=1000,
    max_per_owner_per_day=1000,
    max_per_pod_per_hour=1000,
    owner_cooldown_s=1,
    card_cooldown_s=1,
    return_cooldown_s=86400,
)


class Cluster:
    """One Deployment among companions that keep every card half full."""

    def __init__(self, kube: KubeClient) -> None:
        self.kube = kube
        self.ready: set[str] = set()
        self.fewest_ready: int | None = None

    def on_change(self, change: Change[PodInfo]) -> None:
        """Count the Deployment's Ready pods after every change, in the order of the changes."""
        pod = change.object
        if pod.labels.get("app") != "web":
            return
        ready = change.type is not ChangeType.DELETED and pod.ready and not pod.record.terminating
        (self.ready.add if ready else self.ready.discard)(change.uid)
        if self.fewest_ready is not None:
            self.fewest_ready = min(self.fewest_ready, len(self.ready))

    async def pods(self, app: str) -> list[PodInfo]:
        listed = await self.kube.list(PODS, namespace=NAMESPACE, label_selector=f"app={app}")
        return [decode_pod_info(bytes(raw)) for raw in listed.items]

    async def web(self) -> PodInfo:
        """Return the Deployment's only pod."""
        (pod,) = await self.pods("web")
        return pod

    async def running(self) -> list[PodInfo]:
        """Return the pods that the test made."""
        return [*await self.pods("web"), *await self.pods("companion")]

    async def fill(self) -> None:
        """Create the Deployment with its budget, and one companion on every card."""
        for index in range(8 * len(NODES)):
            body = a_gpu_pod(
                f"companion-{index}",
                mib=14_000,
                namespace=NAMESPACE,
                annotations={names.REBALANCE: "never"},
            )
            body["metadata"]["labels"] = {"app": "companion"}
            await self.kube.create(PODS, body)
        budget = {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}}
        await self.kube.create(
            PDBS, {"metadata": {"name": "web"}, "spec": budget}, namespace=NAMESPACE
        )
        await self.kube.create(DEPLOYMENTS, a_deployment(), namespace=NAMESPACE)

        async def all_ready() -> bool:
            pods = [*await self.pods("web"), *await self.pods("companion")]
            return len(pods) == 1 + 8 * len(NODES) and all(pod.ready for pod in pods)

        await until(all_ready, what="every pod is Ready", limit_s=120)

    async def heat(self, usage: Usage) -> None:
        """Let the card of the Deployment's pod be measured hot, and every other cool."""
        web = await self.web()
        uses: dict[CardUuid, dict[str, float]] = {}
        for pod in [web, *await self.pods("companion")]:
            uses.setdefault(card_of(pod), {})[pod.record.uid] = 0.45
        hot = card_of(web)
        usage.readings = {
            card: a_reading(0.9, pods=pods) if card == hot else a_reading(0.05)
            for card, pods in uses.items()
        }


def card_of(pod: PodInfo) -> CardUuid:
    assert pod.record.assignment is not None
    ((one,),) = pod.record.assignment.values()
    return one.card


def a_deployment() -> dict[str, Any]:
    template = a_gpu_pod("template", mib=4000, namespace=NAMESPACE)
    metadata = {"labels": {"app": "web"}, "annotations": template["metadata"]["annotations"]}
    return {
        "metadata": {"name": "web"},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {"metadata": metadata, "spec": template["spec"]},
        },
    }


@asynccontextmanager
async def a_cluster(workdir: Path) -> AsyncIterator[Cluster]:
    nodes = [a_sharing_node(name, cards=some_cards(name, count=8, mib=CARD_MIB)) for name in NODES]
    async with real_scheduler(workdir, nodes, controllers=True) as harness:
        await harness.client.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
        cluster = Cluster(harness.client)
        informer = Informer(
            harness.client, PODS, decode=decode_pod_info, on_change=cluster.on_change
        )
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(play_kubelets(harness.client, cluster.running)),
                group.create_task(informer.run()),
            ]
            await informer.wait_synced()
            try:
                await cluster.fill()
                yield cluster
            finally:
                for task in tasks:
                    task.cancel()


async def replaced(cluster: Cluster, record: MoveRecord) -> bool:
    """Report whether the pod that consumed the reservation is Ready."""
    pods = await cluster.pods("web")
    return any(pod.ready and pod.annotations.get(names.MOVE) == record.id for pod in pods)


async def alone(cluster: Cluster) -> bool:
    return len(await cluster.pods("web")) == 1


async def let_it_act(cluster: Cluster, rig: Rig, record: MoveRecord) -> None:
    """Wait for what the cluster has to do before the move can go on."""
    if record.phase is MovePhase.SURGING:
        await until(lambda: replaced(cluster, record), what="the replacement is Ready", limit_s=60)
    elif record.phase is MovePhase.VERIFYING:
        await until(lambda: alone(cluster), what="the old pod is gone", limit_s=60)
        rig.usage.readings = {card: a_reading(0.05) for card in rig.usage.readings}
        await rig.tick(61)
        await rig.tick(61)


async def move_once(cluster: Cluster, rig: Rig, *, known: set[str]) -> MoveRecord:
    """Let the rebalancer move the pod off its card; returns the move once it has ended."""
    await cluster.heat(rig.usage)
    found: MoveRecord | None = None
    for _ in range(40):
        await rig.tick()
        found = next((record for record in rig.store.records if record.id not in known), None)
        if found is not None and found.phase in ENDED:
            return found
        if found is not None:
            await let_it_act(cluster, rig, found)
    raise AssertionError(f"the move does not end: {found}")


def a_clock() -> VirtualClock:
    """Return a clock that begins now: the extender compares reservations with the real time."""
    now = SystemClock().now()
    return VirtualClock(now.replace(microsecond=0))


async def test_a_single_replica_under_a_budget_moves_to_the_reserved_card_without_a_gap(
    tmp_path: Path,
) -> None:
    async with a_cluster(tmp_path) as cluster:
        usage = Usage()
        await cluster.heat(usage)
        async with a_rig(cluster.kube, usage=usage, policy=POLICY, clock=a_clock()) as rig:
            cluster.fewest_ready = len(cluster.ready)
            known: set[str] = set()
            for _ in range(MOVES_MADE):
                source = card_of(await cluster.web())
                record = await move_once(cluster, rig, known=known)
                known.add(record.id)

                assert record.ending is Ending.RELIEVED, record.detail
                landed = await cluster.web()
                assert landed.annotations[names.MOVE] == record.id
                assert card_of(landed) == record.move.target == record.landed
                assert card_of(landed) != source == record.move.source

            assert len(known) == MOVES_MADE
            assert cluster.fewest_ready == 1
            assert rig.figure("misplaced_total") == 0
            assert rig.figure("lost_pods_total") == 0


async def test_a_surge_that_is_switched_off_leaves_the_old_pod_in_its_replicaset(
    tmp_path: Path,
) -> None:
    async with a_cluster(tmp_path) as cluster:
        before = await cluster.web()
        usage = Usage()
        await cluster.heat(usage)
        async with a_rig(cluster.kube, usage=usage, policy=POLICY, clock=a_clock()) as rig:
            cluster.fewest_ready = len(cluster.ready)
            planned = await rig.tick_until_planned()
            await rig.tick()
            await until(lambda: replaced(cluster, planned), what="the replacement is Ready")
            rig.config.value = replace(POLICY, mode=Mode.OFF)
            await rig.tick()
            await until(lambda: alone(cluster), what="the ReplicaSet deletes one", limit_s=60)
            await rig.tick()

            assert rig.record().ending is Ending.PAUSED
            assert cluster.fewest_ready == 1
        after = await cluster.web()
        assert after.record.uid == before.record.uid
        assert after.owner == before.owner
        assert after.labels == before.labels
        assert names.MOVED_BY not in after.annotations
