"""Cards that Moves free for a waiting pod: closed to everybody else, and its own in time."""

import json
from datetime import timedelta
from typing import Any

import pytest

from fracgpu import names
from fracgpu.k8s.resources import HostResources
from fracgpu.placement.placement import MAX_SCORE
from fracgpu.request.need import Strategy
from fracgpu.state.move_object import Move, MovePhase
from tests.fakes.clock import NOON
from tests.scheduler.harness import Harness
from tests.support.gpu import a_gpu_pod
from tests.support.moves import a_beneficiary, move_of

UNTIL = NOON + timedelta(minutes=10)
CARD_MIB = 24_000
STRATEGIES = pytest.mark.parametrize("strategy", Strategy)


def a_cluster(*nodes: str, strategy: Strategy = Strategy.PACK) -> Harness:
    cluster = Harness(*nodes)
    cluster.strategy = strategy
    cluster.create("big", mib=CARD_MIB)
    return cluster


def keeping(cluster: Harness, *cards: str, **changes: Any) -> Move:
    """Return a Move from the first card of *n* to a node elsewhere that keeps cards for ``big``."""
    uid = cluster.api.pods["big"]["metadata"]["uid"]
    kept = a_beneficiary(*(cards or ("GPU-n-0",)), uid=uid, held_until=UNTIL)
    wanted: dict[str, Any] = {
        "source": ("n", "GPU-n-0"),
        "target": ("x", "GPU-x"),
        "reserved_until": NOON,
        "phase": MovePhase.VERIFYING,
        "beneficiary": kept,
    }
    return move_of(**(wanted | changes))


def card(cluster: Harness, name: str) -> str:
    uid = cluster.api.pods[name]["metadata"]["uid"]
    (binding,) = [one for one in cluster.api.bindings if one["metadata"]["uid"] == uid]
    annotations = binding["metadata"]["annotations"]
    assert names.MOVE not in annotations  # it is nobody's replacement
    found: str = json.loads(annotations[names.ASSIGNMENT])["train"][0]["card"]
    return found


def passed(cluster: Harness, name: str, *nodes: str) -> tuple[str, ...]:
    return tuple(cluster.extender.filter(cluster.asking(name, *nodes)).passed)


@STRATEGIES
async def test_a_kept_card_is_closed_to_every_other_pod(strategy: Strategy) -> None:
    cluster = a_cluster("n", strategy=strategy)
    cluster.see_move(keeping(cluster))
    for number in range(3):
        cluster.create(f"other-{number}", mib=8000)
        assert await cluster.bind(f"other-{number}", node="n") == ""
        assert card(cluster, f"other-{number}") == "GPU-n-1"

    cluster.create("last", mib=8000)
    assert passed(cluster, "last", "n") == ()
    assert "no room on node n any more" in await cluster.bind("last", node="n")


async def test_a_pod_is_not_bound_where_the_last_cpu_has_been_kept_since_it_was_filtered() -> None:
    cluster = a_cluster("n")
    cluster.see_move(keeping(cluster))
    container = a_gpu_pod("other", mib=8000)["spec"]["containers"][0]
    container["resources"]["requests"]["cpu"] = "1"
    cluster.create("other", mib=8000, containers=[container])
    assert passed(cluster, "other", "n") == ("n",)

    cluster.host_left = HostResources(cpu_milli=0, memory_mib=0)
    refusal = await cluster.bind("other", node="n")

    assert refusal == "CPU or memory of node n is kept for a pod that waits for it"
    assert cluster.ledger.assumed == {}


@STRATEGIES
async def test_the_pod_that_waits_gets_the_kept_card(strategy: Strategy) -> None:
    cluster = a_cluster("n", "m", strategy=strategy)
    cluster.see_move(keeping(cluster))

    assert passed(cluster, "big", "n", "m") == ("n",)
    scores = cluster.extender.prioritize(cluster.asking("big", "n", "m")).tolist()
    assert scores == [MAX_SCORE, 0]
    assert await cluster.bind("big", node="n") == ""
    assert card(cluster, "big") == "GPU-n-0"


async def test_until_the_card_is_free_the_pod_is_placed_like_any_other() -> None:
    cluster = a_cluster("n", "m")
    cluster.create("small", mib=8000)
    await cluster.bind("small", node="n")  # on GPU-n-0, and still there
    cluster.see_move(keeping(cluster))

    assert passed(cluster, "big", "n", "m") == ("n", "m")
    assert await cluster.bind("big", node="m") == ""
    cluster.create("other", mib=8000)
    assert passed(cluster, "other", "n") == ("n",)
    assert await cluster.bind("other", node="n") == ""
    assert card(cluster, "other") == "GPU-n-0"  # nothing is kept for a pod that has got in
