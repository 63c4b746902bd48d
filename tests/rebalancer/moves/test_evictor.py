"""What each answer of the Eviction API means, and that only the requested pod is evicted."""

import pytest

from fracgpu.state.move_object import MoveSpec
from kube.client import KubeClient
from kube.errors import (
    Cause,
    Conflict,
    Forbidden,
    Invalid,
    KubeError,
    NotFound,
    TooManyRequests,
    Unavailable,
    error_from_status,
)
from kube.kinds import PODS
from rebalancer.moves.side_effects import SideEffects, judge
from rebalancer.moves.steps import EvictionOutcome
from tests.support.moving import (
    NAMESPACE,
    add_budget,
    add_pod,
    end_pod,
    make_cluster,
)
from tests.support.rebalancing import a_move


async def a_pod_to_move(kube: KubeClient) -> MoveSpec:
    await make_cluster(kube)
    uid = (await kube.get_object(PODS, "pod-a", namespace=NAMESPACE))["metadata"]["uid"]
    return a_move(pod_uid=uid, namespace=NAMESPACE, name="pod-a")


async def is_there(kube: KubeClient) -> bool:
    pod = await kube.get_object(PODS, "pod-a", namespace=NAMESPACE)
    return "deletionTimestamp" not in pod["metadata"]


async def test_a_dry_run_is_judged_like_an_eviction_and_does_nothing(kube: KubeClient) -> None:
    move = await a_pod_to_move(kube)
    effects = SideEffects(kube)

    assert (await effects.evict(move.pod, dry_run=True)).outcome is EvictionOutcome.ALLOWED
    assert await is_there(kube)
    await add_budget(kube, allowed=0)
    assert (await effects.evict(move.pod, dry_run=True)).outcome is EvictionOutcome.BLOCKED


async def test_an_eviction_takes_the_pod_with_its_own_grace(kube: KubeClient) -> None:
    move = await a_pod_to_move(kube)

    verdict = await SideEffects(kube).evict(move.pod)

    assert verdict.outcome is EvictionOutcome.ALLOWED
    pod = await kube.get_object(PODS, "pod-a", namespace=NAMESPACE)
    assert pod["metadata"]["deletionGracePeriodSeconds"] == 30


async def test_a_second_eviction_finds_it_gone(kube: KubeClient) -> None:
    move = await a_pod_to_move(kube)
    effects = SideEffects(kube)
    await effects.evict(move.pod)

    assert (await effects.evict(move.pod)).outcome is EvictionOutcome.GONE
    await end_pod(kube, "pod-a")
    assert (await effects.evict(move.pod)).outcome is EvictionOutcome.GONE


async def test_a_pod_that_took_the_name_is_not_touched(kube: KubeClient) -> None:
    move = await a_pod_to_move(kube)
    await end_pod(kube, "pod-a")
    await add_pod(kube, "pod-a")

    verdict = await SideEffects(kube).evict(move.pod)

    assert verdict.outcome is EvictionOutcome.OTHER_POD
    assert move.pod.uid in verdict.detail
    assert await is_there(kube)


async def test_the_uid_is_a_precondition_of_the_write_itself(kube: KubeClient) -> None:
    """Between our read and our write another pod may get the name."""
    await a_pod_to_move(kube)

    with pytest.raises(Conflict) as caught:
        await kube.evict(namespace=NAMESPACE, name="pod-a", uid="another")

    assert judge(caught.value).outcome is EvictionOutcome.CHANGED
    assert await is_there(kube)


async def test_a_pending_pod_bypasses_budgets_and_is_therefore_refused(kube: KubeClient) -> None:
    move = await a_pod_to_move(kube)
    pending = {"status": {"phase": "Pending"}}
    await kube.patch(PODS, "pod-a", pending, namespace=NAMESPACE, subresource="status")

    verdict = await SideEffects(kube).evict(move.pod)

    assert (verdict.outcome, verdict.detail) == (EvictionOutcome.REFUSED, "it is Pending")
    assert await is_there(kube)


def an_error(status: int, message: str = "", causes: list[Cause] | None = None) -> KubeError:
    return error_from_status(
        verb="POST", path="/x", status=status, reason="", message=message, causes=causes or []
    )


def no_answer() -> KubeError:
    return Unavailable(verb="POST", path="/x", status=None, reason="Timeout", message="")


TWO = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not"
BUDGET = [Cause(type="DisruptionBudget")]


@pytest.mark.parametrize(
    ("error", "kind", "outcome"),
    [
        (an_error(404), NotFound, EvictionOutcome.GONE),
        (an_error(409), Conflict, EvictionOutcome.CHANGED),
        (an_error(429, causes=BUDGET), TooManyRequests, EvictionOutcome.BLOCKED),
        (an_error(429), TooManyRequests, EvictionOutcome.BUSY),
        (an_error(500, TWO), Unavailable, EvictionOutcome.REFUSED),
        (an_error(500, "etcd is slow"), Unavailable, EvictionOutcome.UNCLEAR),
        (an_error(503), Unavailable, EvictionOutcome.UNCLEAR),
        (no_answer(), Unavailable, EvictionOutcome.UNCLEAR),
        (an_error(403), Forbidden, EvictionOutcome.REFUSED),
        (an_error(422), Invalid, EvictionOutcome.REFUSED),
    ],
)
def test_each_answer_has_its_meaning(
    error: KubeError, kind: type[KubeError], outcome: EvictionOutcome
) -> None:
    assert isinstance(error, kind)
    assert judge(error).outcome is outcome


def test_the_servers_wish_to_wait_is_kept() -> None:
    error = error_from_status(
        verb="POST", path="/x", status=429, reason="", message="", retry_after_s=7
    )

    assert judge(error).retry_after_s == 7
