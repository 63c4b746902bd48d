"""A card that a Move holds: nobody else gets it, and the pod that it is for gets just it."""

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from msgspec import structs

from fracgpu import names
from fracgpu.placement.placement import MAX_SCORE
from fracgpu.request.need import Strategy
from fracgpu.state.allocation import read_assignment
from fracgpu.state.move_object import Move, MovePhase
from fracgpu.state.pod_info import decode_pod_info
from fracgpu.units import Mib
from scheduler.extender.api import PreemptionArgs
from tests.fakes.clock import NOON
from tests.scheduler.harness import Harness, silence
from tests.support.gpu import a_gpu_pod, some_cards
from tests.support.moves import move_of

UNTIL = NOON + timedelta(minutes=10)
OWNER = "uid-web"
STRATEGIES = pytest.mark.parametrize("strategy", Strategy)


def a_move(name: str = "move-1", **changes: Any) -> Move:
    """Return a Move of 8,000 MiB from GPU-n-0 to GPU-m-1, for the next pod of OWNER."""
    wanted: dict[str, Any] = {
        "source": ("n", "GPU-n-0"),
        "target": ("m", "GPU-m-1"),
        "mib": 8000,
        "owner_uid": OWNER,
        "reserved_until": UNTIL,
        "source_denied_until": UNTIL,
    }
    return move_of(name, **(wanted | changes))


def a_cluster(*nodes: str, strategy: Strategy = Strategy.PACK) -> Harness:
    cluster = Harness(*(nodes or ("n", "m")))
    cluster.strategy = strategy
    return cluster


def cards_of(cluster: Harness, name: str = "p") -> dict[str, Any]:
    """Return the cards and annotations of the pod's Binding."""
    uid = cluster.api.pods[name]["metadata"]["uid"]
    (binding,) = [one for one in cluster.api.bindings if one["metadata"]["uid"] == uid]
    annotations: dict[str, Any] = binding["metadata"]["annotations"]
    return annotations


def card(cluster: Harness, name: str = "p") -> str:
    found: str = json.loads(cards_of(cluster, name)[names.ASSIGNMENT])["train"][0]["card"]
    return found


@STRATEGIES
async def test_the_pod_that_it_is_for_gets_just_that_node_and_card(strategy: Strategy) -> None:
    cluster = a_cluster("n", "m", "o", strategy=strategy)
    cluster.see_move(a_move())
    cluster.create("p", mib=8000, owner=OWNER)

    result = cluster.extender.filter(cluster.asking("p", "n", "m", "o"))

    assert result.passed == ("m",)
    assert set(result.failed) == {"n", "o"}
    scores = cluster.extender.prioritize(cluster.asking("p", "n", "m", "o")).tolist()
    assert scores == [0, MAX_SCORE, 0]
    assert await cluster.bind("p", node="m") == ""
    assert card(cluster) == "GPU-m-1"
    assert cards_of(cluster)[names.MOVE] == "move-1"


async def test_what_the_replacement_may_use_is_reserved_with_what_it_is_guaranteed() -> None:
    cluster = a_cluster("m")
    cards = tuple(replace(card, limits_mib=Mib(24_000)) for card in some_cards("m", count=2))
    cluster.add_node("m", cards)
    move = a_move()
    request = structs.replace(move.spec.request, limit_mib=20_000)
    cluster.see_move(structs.replace(move, spec=structs.replace(move.spec, request=request)))
    cluster.create("large", mib=24_000)
    assert await cluster.bind("large", node="m") == ""
    cluster.create("other", mib=4001)
    assert "the limits of its pods" in await cluster.bind("other", node="m")
    cluster.create("p", mib=8000, owner=OWNER, annotations={names.MEMORY_LIMIT: "20000Mi"})

    assert await cluster.bind("p", node="m") == ""
    assert (card(cluster), cards_of(cluster)[names.MOVE]) == ("GPU-m-1", "move-1")
    (part,) = read_assignment(cards_of(cluster)[names.ASSIGNMENT])["train"]
    assert (part.mib, part.limit_mib) == (8000, 20_000)
    cluster.create("small", mib=4000)
    assert await cluster.bind("small", node="m") == ""


async def test_a_target_that_is_no_candidate_is_given_up_and_the_source_stays_denied() -> None:
    cluster = a_cluster()
    cluster.see_move(a_move())
    cluster.create("p", mib=8000, owner=OWNER)

    assert cluster.extender.filter(cluster.asking("p", "n")).passed == ("n",)
    assert await cluster.bind("p", node="n") == ""

    assert card(cluster) == "GPU-n-1"
    assert names.MOVE not in cards_of(cluster)
    assert cluster.held("GPU-m-1") == 8000
    assert cluster.count("fracgpu_scheduler_reservations_given_up_total") == 1


@STRATEGIES
async def test_a_controllers_pods_are_kept_off_the_card_that_they_left(strategy: Strategy) -> None:
    cluster = a_cluster("n", strategy=strategy)
    cluster.see_move(a_move(phase=MovePhase.DONE))
    for number in range(3):
        cluster.create(f"p{number}", mib=8000, owner=OWNER)
        assert await cluster.bind(f"p{number}") == ""

    assert cluster.held("GPU-n-0") == 0
    cluster.create("last", mib=8000, owner=OWNER)
    assert cluster.extender.filter(cluster.asking("last")).passed == ()
    assert cluster.extender.prioritize(cluster.asking("last")).tolist() == [0]
    assert "no room on node n any more" in await cluster.bind("last")
    cluster.create("another", mib=8000)
    assert await cluster.bind("another") == ""
    await cluster.clock.advance(601)
    assert cluster.extender.filter(cluster.asking("last")).passed == ("n",)


async def test_pods_that_waited_for_a_reserved_card_are_retried_when_it_is_released() -> None:
    cluster = Harness("m", cards=1)
    cluster.see_move(a_move(target=("m", "GPU-m-0"), mib=24_000))
    cluster.create("other", mib=8000)
    await cluster.waker.once()
    assert cluster.api.patches == []

    cluster.see_move(gone="move-1")
    await cluster.waker.once()

    assert cluster.api.patches == ["other"]


async def test_a_binding_without_an_answer_keeps_the_card_for_its_pod() -> None:
    cluster = a_cluster()
    cluster.see_move(a_move())
    for name in ("p", "q"):
        cluster.create(name, mib=8000, owner=OWNER)
    cluster.api.bind_raises = silence()

    await cluster.bind("p", node="m")

    assert cluster.held("GPU-m-1") == 8000
    assert cluster.extender.filter(cluster.asking("p", "n", "m")).passed == ("m",)
    assert cluster.extender.filter(cluster.asking("q", "n", "m")).passed == ("n", "m")
    cluster.api.bind_raises = None
    assert await cluster.bind("p", node="m") == ""
    assert card_of_last(cluster) == "GPU-m-1"


def card_of_last(cluster: Harness) -> str:
    annotations = cluster.api.bindings[-1]["metadata"]["annotations"]
    found: str = json.loads(annotations[names.ASSIGNMENT])["train"][0]["card"]
    return found


async def test_a_reservation_is_not_preempted() -> None:
    cluster = Harness("m", cards=1)
    cluster.see_move(a_move(target=("m", "GPU-m-0"), mib=16_000))
    uid = cluster.run("low", node="m", mib=8000, priority=0).record.uid

    async def victims(mib: int) -> set[str]:
        body = json.dumps(a_gpu_pod("high", mib=mib, priority=10)).encode()
        args = PreemptionArgs(pod=decode_pod_info(body), proposed={"m": frozenset({uid})})
        answer = await cluster.preemptor.preempt(args)
        return {one for found in answer.values() for one in found.uids}

    assert await victims(8000) == {uid}
    assert await victims(8001) == set()


async def test_a_card_is_not_preempted_for_a_controller_that_is_kept_off_it() -> None:
    cluster = Harness("n", cards=1)
    cluster.see_move(a_move(phase=MovePhase.DONE))
    uid = cluster.run("low", node="n", mib=24_000, priority=0).record.uid

    def asked(owner: str) -> PreemptionArgs:
        body = json.dumps(a_gpu_pod("high", mib=8000, priority=10, owner=owner)).encode()
        return PreemptionArgs(pod=decode_pod_info(body), proposed={"n": frozenset({uid})})

    assert await cluster.preemptor.preempt(asked("other"))
    assert await cluster.preemptor.preempt(asked(OWNER)) == {}
