"""Filter and prioritize over the same cluster state."""

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta

import pytest

from fracgpu import names
from fracgpu.cards.card import Health, NodeCards
from fracgpu.placement.fit import Obstacle, refusal
from fracgpu.request.need import Strategy
from fracgpu.units import Mib
from scheduler.extender.api import FilterResult
from tests.scheduler.harness import Harness, silence
from tests.support.core import on
from tests.support.gpu import a_gpu_pod, some_cards
from tests.support.objects import a_pod


def scores(cluster: Harness, *nodes: str) -> dict[str, int]:
    return dict(zip(nodes, cluster.extender.prioritize(cluster.asking("p", *nodes)), strict=True))


def test_nodes_are_sorted_by_whether_and_why() -> None:
    cluster = Harness("roomy", "full", cards=1)
    cluster.ledger.set_node(NodeCards(node="whole", cards=some_cards("whole"), shared=False))
    cluster.create("filler", mib=24_000)
    assert cluster.extender.filter(cluster.asking("filler", "full")).passed == ("full",)
    cluster.ledger.assume(
        cluster.see("filler").record,
        node="full",
        assignment=on("GPU-full-0", 24_000, container="train"),
        until=cluster.clock.now() + timedelta(hours=1),
    )
    cluster.create(mib=1000)

    result = cluster.extender.filter(cluster.asking("p", "whole", "full", "unseen", "roomy"))

    text = (
        "node(s) without a fitting card (2 no shared cards known, 1 too little free memory; "
        "fracgpu explain says more)"
    )
    assert (result.refused, result.reason) == (3, text)
    assert result == FilterResult(
        passed=("roomy",), failed={"full": text, "unseen": text}, unresolvable={"whole": text}
    )
    assert (result.refused, result.reason) == (3, text), "the same once each has been read"


def fit_error(reasons: Mapping[str, str]) -> str:
    """Return the Event's message as kube-scheduler writes it.

    Source: pkg/scheduler/framework/types.go FitError.Error, 1.36: equal reasons are counted, and
    "count reason" is sorted as text.
    """
    counted = Counter(reasons.values())
    parts = sorted(f"{count} {reason}" for reason, count in counted.items())
    return f"0/{len(reasons)} nodes are available: {', '.join(parts)}."


# What kube-scheduler adds when preemption found no victim either.
PREEMPTION = (
    " preemption: 0/5000 nodes are available: 2500 No preemption victims found for incoming pod, "
    "2500 Preemption is not helpful for scheduling."
)


def test_an_event_at_5000_nodes_has_six_coarse_reasons_the_commonest_first_within_1_kb() -> None:
    nodes = [f"gpu-node-{n}.eu-central-1.compute.internal" for n in range(5_000)]
    cluster = Harness("first")
    for n, name in enumerate(nodes[:4_990]):
        # Cards of many states side by side, in numbers that differ from node to node.
        cards = tuple(
            replace(
                card,
                health=Health.UNHEALTHY if (n + card.index) % 5 == 0 else Health.HEALTHY,
                model="NVIDIA H100" if (n // 7 + card.index) % 3 == 0 else card.model,
                total_mib=Mib(80 * (1 + (n * 7 + card.index) % 40)),
            )
            for card in some_cards(name, count=n % 9)
        )
        cluster.ledger.set_node(
            NodeCards(node=name, cards=cards, shared=n % 11 > 0, schedulable=n % 13 > 0)
        )
    cluster.create(mib=3_000, cards=2, annotations={names.MODEL: "*A30*", names.CORES: "30"})

    result = cluster.extender.filter(cluster.asking("p", *nodes))

    refused = {**result.failed, **result.unresolvable}
    event = fit_error(refused) + PREEMPTION
    counts = [
        int(number) for number in re.findall(r"(\d+) (?:too|wrong|unhealthy|no shared)", event)
    ]
    assert len(refused) + len(result.passed) == 5_000
    assert len(refused) > 4_000
    assert 4 <= len(counts) <= 6
    assert counts == sorted(counts, reverse=True)
    assert sum(counts) == len(refused)
    assert len(event.encode()) <= 1_024


def test_all_seven_reasons_with_every_count_at_its_longest_are_within_1_kb() -> None:
    event = fit_error({f"n{n}": refusal(dict.fromkeys(Obstacle, 99_999)) for n in range(3)})

    assert len((event + PREEMPTION).encode()) <= 1_024


def test_a_pod_that_asks_nothing_of_us_passes_everywhere() -> None:
    cluster = Harness()
    cluster.api.put(a_pod("p", namespace="default"))

    assert cluster.extender.filter(cluster.asking("p", "n", "any")).passed == ("n", "any")
    assert scores(cluster, "n", "any") == {"n": 0, "any": 0}


def test_a_request_that_cannot_be_read_passes_nowhere_and_says_why() -> None:
    cluster = Harness()
    cluster.create(annotations={names.FRACTION: "half"})

    result = cluster.extender.filter(cluster.asking())

    assert result.passed == ()
    assert names.FRACTION in result.unresolvable["n"]
    assert scores(cluster, "n") == {"n": 0}


def test_filter_and_prioritize_change_nothing() -> None:
    cluster = Harness()
    cluster.create(mib=1000)
    before = cluster.ledger.snapshot(now=cluster.clock.now())

    cluster.extender.filter(cluster.asking())
    cluster.extender.prioritize(cluster.asking())

    assert cluster.ledger.snapshot(now=cluster.clock.now()) == before
    assert cluster.ledger.assumed == {}
    assert (cluster.api.gets, cluster.api.bindings) == (0, [])


async def test_pack_prefers_the_node_whose_card_it_fills_and_spread_the_other() -> None:
    cluster = Harness("n", "m", cards=1)
    cluster.create("first", mib=12_000)
    await cluster.bind("first", node="n")
    cluster.create(mib=12_000)

    assert scores(cluster, "n", "m") == {"n": 10, "m": 4}
    cluster.strategy = Strategy.SPREAD
    assert scores(cluster, "n", "m") == {"n": 0, "m": 10}


@pytest.mark.parametrize("strategy", Strategy)
def test_the_best_node_is_the_only_best_one_whatever_the_order(strategy: Strategy) -> None:
    names = [f"n{number}" for number in range(12)]
    cluster = Harness(*names)
    cluster.strategy = strategy
    cluster.create(mib=8000)

    asked = scores(cluster, *names)
    reversed_ = scores(cluster, *reversed(names))

    assert asked == reversed_
    assert sorted(asked.values())[-1] == 10
    assert sorted(asked.values())[-2] <= 7


def test_a_node_that_does_not_fit_or_is_unknown_scores_nothing() -> None:
    cluster = Harness("small", cards=1, mib=800)
    cluster.create(mib=1000)

    assert scores(cluster, "small", "unseen") == {"small": 0, "unseen": 0}


def test_nodes_that_passed_are_scored_as_they_are_when_one_is_replaced_meanwhile() -> None:
    cluster = Harness("a", "b", "c", cards=1)
    cluster.create(mib=24_000)
    passed = cluster.extender.filter(cluster.asking("p", "a", "b", "c")).passed
    asked = replace(cluster.asking("p"), node_names=passed)
    before = cluster.extender.prioritize(asked).tolist()

    cluster.ledger.remove_node("a")
    cluster.add_node("d", some_cards("d", count=1))  # takes the place of the other in the arrays
    after = cluster.extender.prioritize(asked).tolist()

    assert before == [10, 7, 7]
    assert after == [0, 10, 7]


def test_nodes_that_passed_are_scored_by_the_strategy_of_now() -> None:
    cluster = Harness("n", "m", cards=1)
    hold(cluster, "n", 8000)
    cluster.create(mib=8000)
    passed = cluster.extender.filter(cluster.asking("p", "n", "m")).passed
    asked = replace(cluster.asking("p"), node_names=passed)
    packed = cluster.extender.prioritize(asked).tolist()

    cluster.strategy = Strategy.SPREAD

    assert packed.index(10) == 0
    assert cluster.extender.prioritize(asked).tolist().index(10) == 1


def test_a_node_that_passed_for_the_pod_that_holds_it_does_not_pass_for_one_like_it() -> None:
    cluster = Harness("n", cards=1)
    cluster.create("first", mib=24_000)
    cluster.create("second", mib=24_000)
    hold(cluster, "n", 24_000, pod="first")
    passed = cluster.extender.filter(cluster.asking("first", "n")).passed
    assert passed == ("n",)

    asked = replace(cluster.asking("second"), node_names=passed)

    assert cluster.extender.prioritize(asked).tolist() == [0]


def hold(cluster: Harness, node: str, mib: int, pod: str = "filler") -> None:
    """Assume that a pod is on the first card of a node."""
    if pod == "filler":
        cluster.create(pod, mib=mib)
    cluster.ledger.assume(
        cluster.see(pod).record,
        node=node,
        assignment=on(f"GPU-{node}-0", mib, container="train"),
        until=cluster.clock.now() + timedelta(hours=1),
    )


def test_preemption_helps_only_where_pods_are_in_the_way() -> None:
    cluster = Harness()
    args = cluster.asking
    cluster.api.put(a_gpu_pod("p", mib=1000, annotations={names.MODEL: "*H100*"}))

    other_model = cluster.extender.filter(args())
    assert list(other_model.unresolvable) == ["n"]

    pod = cluster.create("q", mib=1000, cards=3)
    too_few_cards = cluster.extender.filter(replace(args("q"), pod=pod))
    assert list(too_few_cards.unresolvable) == ["n"]


async def test_a_pods_own_lost_binding_does_not_stand_in_its_way() -> None:
    cluster = Harness("n", "m", cards=1, mib=24_000)
    cluster.create("p", mib=20_000)
    cluster.create("other", mib=20_000)
    cluster.api.bind_raises = silence()
    await cluster.bind("p")
    cluster.create("filler", mib=20_000)
    cluster.api.bind_raises = None
    assert await cluster.bind("filler", node="m") == ""

    # No other pod may get the card while the Binding may take effect, but the pod itself may.
    assert cluster.extender.filter(cluster.asking("p", "n", "m")).passed == ("n",)
    assert cluster.extender.prioritize(cluster.asking("p", "n", "m")).tolist() == [10, 0]
    assert cluster.extender.filter(cluster.asking("other", "n", "m")).passed == ()
    assert await cluster.bind("p") == ""
    assert cluster.held("GPU-n-0") == 20_000


@pytest.mark.parametrize("strategy", Strategy)
async def test_a_node_with_nothing_but_an_avoided_card_gets_no_point_while_another_fits(
    strategy: Strategy,
) -> None:
    cluster = Harness("hot", "warm", "cool", cards=1)
    cluster.strategy = strategy
    until = (cluster.clock.now() + timedelta(minutes=5)).isoformat()
    for node, effect in (("hot", "NoSchedule"), ("warm", "PreferNoSchedule")):
        entry = {f"GPU-{node}-0": {"until": until, "reason": "hot", "effect": effect}}
        cluster.annotate_node({"cordons": json.dumps(entry)}, node=node)
    cluster.create("first", mib=20_000)
    cluster.create("second", mib=20_000)

    passed = cluster.extender.filter(cluster.asking("first", "hot", "warm", "cool")).passed
    assert passed == ("warm", "cool")
    first = cluster.extender.prioritize(cluster.asking("first", "hot", "warm", "cool"))
    assert first.tolist() == [0, 0, 10]
    assert await cluster.bind("first", node="cool") == ""

    passed = cluster.extender.filter(cluster.asking("second", "hot", "warm", "cool")).passed
    assert passed == ("warm",)  # it does not wait
    second = cluster.extender.prioritize(cluster.asking("second", "hot", "warm", "cool"))
    assert second.tolist() == [0, 10, 0]
    assert await cluster.bind("second", node="warm") == ""
