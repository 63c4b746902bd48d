"""The fleet never allocates more than there is."""

import pytest

from fracgpu.cards.card import CardUuid, NodeCards
from fracgpu.request.need import Strategy
from fracgpu.state.allocation import Slice
from fracgpu.units import Mib
from simulator.replay.fleet import FleetState
from simulator.replay.workload import ReplayPod
from tests.simulator.replay.trace import a_trace
from tests.support.core import a_card

PODS = {pod.name: pod for pod in a_trace().pods}


def on(card: str, pod: ReplayPod) -> dict[str, tuple[Slice, ...]]:
    return {"main": (Slice(card=CardUuid(card), mib=Mib(pod.mib)),)}


def test_what_is_taken_is_gone() -> None:
    state = FleetState(a_trace().nodes)
    before = state.feasible(PODS["whole"], strategy=Strategy.PACK)[0].tolist()

    for card in range(4):
        state.take(PODS["whole"], 2, on(f"large-0/{card}", PODS["whole"]))

    assert before == [2]  # the only H100s
    assert state.feasible(PODS["whole"], strategy=Strategy.PACK)[0].tolist() == []
    assert state.used_mib == 4 * 80_000


def test_cpu_and_memory_keep_pods_away_as_well() -> None:
    hungry = a_trace(pods=PODS_CSV.format(cpu=40_000, memory=1)).pods[0]
    greedy = a_trace(pods=PODS_CSV.format(cpu=1, memory=150_000)).pods[0]
    state = FleetState(a_trace().nodes)

    assert state.feasible(hungry, strategy=Strategy.PACK)[0].tolist() == [2]
    assert state.feasible(greedy, strategy=Strategy.PACK)[0].tolist() == [2]


def test_a_node_that_does_not_say_what_it_has_lacks_nothing() -> None:
    state = FleetState([NodeCards(node="n", cards=(a_card("GPU-a", mib=80_000),))])

    assert state.feasible(PODS["half-0"], strategy=Strategy.PACK)[0].tolist() == [0]


def test_nodes_are_preferred_in_the_order_given_whatever_their_names() -> None:
    nodes = a_trace().nodes
    state = FleetState(tuple(reversed(nodes)))

    assert state.names == [node.node for node in reversed(nodes)]
    assert state.node_info(1).node.node == "large-0"
    assert state.feasible(PODS["whole"], strategy=Strategy.PACK)[0].tolist() == [1]


def test_a_policy_that_overbooks_a_card_is_caught() -> None:
    state = FleetState(a_trace().nodes)
    state.take(PODS["half-0"], 0, on("small-0/0", PODS["half-0"]))
    state.take(PODS["half-0"], 0, on("small-0/0", PODS["half-0"]))

    with pytest.raises(ValueError, match="no room"):
        state.take(PODS["third"], 0, on("small-0/0", PODS["third"]))


def test_a_policy_that_overbooks_a_node_is_caught() -> None:
    hungry = a_trace(pods=PODS_CSV.format(cpu=40_000, memory=1)).pods[0]

    with pytest.raises(ValueError, match="no CPU or memory left"):
        FleetState(a_trace().nodes).take(hungry, 0, on("small-0/0", hungry))


PODS_CSV = "name,cpu_milli,memory_mib,num_gpu,gpu_milli\np,{cpu},{memory},1,500\n"
