"""What a surge expects of controllers: of the simulator's and of kube-controller-manager's.

A pod whose label no longer matches is released and replaced. It counts for its disruption budget
all the same. Once it matches again it is adopted, and the pod that costs least goes.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio

from fracgpu.disruption.candidates import HASH_LABEL, released_value
from kube.access import connect
from kube.client import KubeClient
from kube.errors import TooManyRequests, Unavailable
from kube.kinds import DEPLOYMENTS, NAMESPACES, PDBS, PODS, REPLICASETS
from rebalancer.moves.steps import DELETION_COST, LOWEST_COST
from simulator.objects import Json
from tests.contracts.clusters import simulated
from tests.simulator.controllers.harness import READY, Harness, an_owner
from tests.support.real_apiserver import WITHOUT_NODES, real_api_server
from tests.support.waiting import until

pytestmark = pytest.mark.timeout(240)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def real_cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Path]:
    """A real API server with the real controllers."""
    workdir = tmp_path_factory.mktemp("real-controllers")
    async with real_api_server(workdir) as api:
        await api.start_controller_manager(WITHOUT_NODES)
        yield api.kubeconfig(workdir / "kubeconfig")


@asynccontextmanager
async def a_namespace(kube: KubeClient) -> AsyncIterator[Harness]:
    made = await kube.create(NAMESPACES, {"metadata": {"generateName": "controllers-"}})
    yield Harness(kube, made["metadata"]["name"])


@pytest.fixture
async def harness(where: Path | None, tmp_path: Path) -> AsyncIterator[Harness]:
    opened = simulated(tmp_path) if where is None else connect(where)
    async with opened as kube, a_namespace(kube) as harness:
        yield harness


async def a_deployment(harness: Harness, *, replicas: int = 1) -> list[Json]:
    """Create one with Ready pods, and return these."""
    body = an_owner("web", replicas=replicas)
    await harness.kube.create(DEPLOYMENTS, body, namespace=harness.namespace)
    return await harness.ready_all(replicas)


async def label(harness: Harness, pod: Json, value: str) -> None:
    patch = {"metadata": {"labels": {HASH_LABEL: value}}}
    name = pod["metadata"]["name"]
    await harness.kube.patch(PODS, name, patch, namespace=harness.namespace)


def hash_of(pod: Json) -> str:
    return str(pod["metadata"]["labels"][HASH_LABEL])


def owned(pod: Json) -> bool:
    return bool(pod["metadata"].get("ownerReferences"))


async def release(harness: Harness, pod: Json) -> Json:
    """Release a pod as a surge does; returns its replacement."""
    known = await harness.names()
    await label(harness, pod, released_value(hash_of(pod)))
    pods = await harness.wait_pods(
        lambda found: len(found) == len(known) + 1 and sum(map(owned, found)) == len(known),
        what="the pod is released and replaced",
    )
    (made,) = [pod for pod in pods if pod["metadata"]["name"] not in known]
    return made


async def cheapen(harness: Harness, pod: Json) -> None:
    patch = {"metadata": {"annotations": {DELETION_COST: LOWEST_COST}}}
    await harness.kube.patch(PODS, pod["metadata"]["name"], patch, namespace=harness.namespace)


async def test_a_released_pod_keeps_running_without_an_owner_beside_its_replacement(
    harness: Harness,
) -> None:
    (old,) = await a_deployment(harness)

    new = await release(harness, old)

    assert hash_of(new) == hash_of(old)
    (kept,) = [pod for pod in await harness.pods() if not owned(pod)]
    assert kept["metadata"]["uid"] == old["metadata"]["uid"]
    assert "deletionTimestamp" not in kept["metadata"]
    await harness.set_status(new["metadata"]["name"])
    owner = new["metadata"]["ownerReferences"][0]["name"]
    await harness.wait_status(REPLICASETS, owner, replicas=1, readyReplicas=1)


@pytest.mark.parametrize(
    ("old_ready", "new_ready", "cheap", "goes"),
    [
        (True, True, "new", "new"),
        (True, True, "old", "old"),
        (True, True, "", "new"),  # it has been Ready for the shorter time
        (False, True, "new", "old"),  # whether it is Ready counts more than what it costs
        (True, False, "old", "new"),
    ],
)
async def test_a_pod_that_matches_again_is_adopted_and_the_one_that_costs_least_goes(
    harness: Harness, old_ready: bool, new_ready: bool, cheap: str, goes: str
) -> None:
    (old,) = await a_deployment(harness)
    original = hash_of(old)
    new = await release(harness, old)
    by_name = {"old": old, "new": new}
    for name, ready in (("old", old_ready), ("new", new_ready)):
        # Times of which one is more than twice as long ago: a ReplicaSet compares their logarithms.
        # Source: getPodsRankedByRelatedPodsOnSameNode and ActivePodsWithRanks in pkg/controller.
        status = ready_since("2000-01-01" if name == "old" else "2026-01-02") if ready else UNREADY
        await harness.set_status(by_name[name]["metadata"]["name"], status)
    if cheap:
        await cheapen(harness, by_name[cheap])

    await label(harness, old, original)

    (left,) = await harness.wait_pods(
        lambda pods: len(pods) == 1 and all(map(owned, pods)), what="one pod is left, and owned"
    )
    stays = by_name["new" if goes == "old" else "old"]
    assert left["metadata"]["uid"] == stays["metadata"]["uid"]


UNREADY = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "False"}]}}


def ready_since(day: str) -> Json:
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": f"{day}T00:00:00Z"}
    return {"status": {"phase": "Running", "conditions": [ready]}}


async def test_a_pod_that_matches_again_after_a_scale_to_nothing_goes_too(harness: Harness) -> None:
    (old,) = await a_deployment(harness)
    original = hash_of(old)
    await release(harness, old)
    none = {"spec": {"replicas": 0}}
    await harness.kube.patch(DEPLOYMENTS, "web", none, namespace=harness.namespace)
    await harness.wait_pods(
        lambda pods: len(pods) == 1 and not any(map(owned, pods)), what="only the released pod"
    )

    await label(harness, old, original)

    await harness.wait_count(0)


async def test_a_released_pod_stays_when_its_owner_is_deleted(harness: Harness) -> None:
    (old,) = await a_deployment(harness)
    await release(harness, old)

    await harness.kube.delete(DEPLOYMENTS, "web", namespace=harness.namespace)

    (left,) = await harness.wait_count(1)
    assert left["metadata"]["uid"] == old["metadata"]["uid"]


@pytest.mark.parametrize("spec", [{"minAvailable": 1}, {"maxUnavailable": 0}])
async def test_a_released_pod_counts_as_healthy_but_not_as_expected(
    harness: Harness, spec: Json
) -> None:
    await a_budget(harness, "web", **spec)
    (old,) = await a_deployment(harness)
    await harness.wait_status(PDBS, "web", currentHealthy=1, disruptionsAllowed=0)
    with pytest.raises(TooManyRequests) as refused:
        await evict(harness, old)
    assert refused.value.by_disruption_budget

    new = await release(harness, old)
    await harness.wait_status(PDBS, "web", currentHealthy=1, disruptionsAllowed=0)
    await harness.set_status(new["metadata"]["name"], READY)
    await harness.wait_status(PDBS, "web", currentHealthy=2, desiredHealthy=1, disruptionsAllowed=1)
    await evict(harness, old)

    (left,) = await harness.wait_count(1)
    assert left["metadata"]["uid"] == new["metadata"]["uid"]
    await harness.wait_status(PDBS, "web", currentHealthy=1, disruptionsAllowed=0)


async def test_two_budgets_refuse_an_eviction_and_a_dry_run_uses_up_nothing_of_one(
    harness: Harness,
) -> None:
    (pod,) = await a_deployment(harness)
    name = pod["metadata"]["name"]
    for budget in ("one", "two"):
        await a_budget(harness, budget, maxUnavailable=1)
        await harness.wait_status(PDBS, budget, disruptionsAllowed=1)
    with pytest.raises(Unavailable, match="more than one PodDisruptionBudget"):
        await evict(harness, pod)
    await harness.kube.delete(PDBS, "two", namespace=harness.namespace)

    await evict(harness, pod, dry_run=True)
    assert name in await harness.names()
    await harness.wait_status(PDBS, "one", disruptionsAllowed=1)
    await evict(harness, pod)

    await harness.wait_pods(
        lambda pods: name not in {pod["metadata"]["name"] for pod in pods}, what="the pod is gone"
    )


async def test_a_pending_pod_is_evicted_whatever_its_budget_says(harness: Harness) -> None:
    await a_budget(harness, "web", minAvailable=1)
    body = an_owner("web", replicas=1)
    await harness.kube.create(DEPLOYMENTS, body, namespace=harness.namespace)
    (pending,) = await harness.wait_count(1)
    await harness.wait_status(PDBS, "web", currentHealthy=0, disruptionsAllowed=0)

    await evict(harness, pending)

    await harness.wait_pods(
        lambda pods: [pod["metadata"]["uid"] for pod in pods] != [pending["metadata"]["uid"]],
        what="the pending pod is gone",
    )


async def a_budget(harness: Harness, name: str, **spec: int) -> None:
    selector = {"selector": {"matchLabels": {"app": "a"}}}
    body = {"metadata": {"name": name}, "spec": {**selector, **spec}}
    await harness.kube.create(PDBS, body, namespace=harness.namespace)


async def evict(harness: Harness, pod: Json, *, dry_run: bool = False) -> None:
    """Evict; retry after the Retry-After of a budget that is still being counted."""
    meta = pod["metadata"]

    async def answered() -> bool:
        try:
            await harness.kube.evict(
                namespace=harness.namespace, name=meta["name"], uid=meta["uid"], dry_run=dry_run
            )
        except TooManyRequests as error:
            if error.retry_after_s is None:
                raise
            return False
        return True

    await until(answered, what="an answer to the eviction")
