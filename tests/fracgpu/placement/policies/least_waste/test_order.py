"""No request evaluates more than its allowance, whatever the cluster and the pods are."""

import json
from dataclasses import replace
from typing import Final

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from numpy.typing import NDArray

from fracgpu.cards.card import NodeCards
from fracgpu.k8s.resources import HostResources
from fracgpu.placement.node_matrix import NodeMatrix
from fracgpu.placement.policies.least_waste.mix import Demand
from fracgpu.placement.policies.least_waste.order import LeastWasteOrder
from fracgpu.request.need import PodNeed
from fracgpu.state.bound_pod import BoundPod, decode_bound_pod
from fracgpu.state.bound_pod_index import BoundPodIndex
from fracgpu.state.ledger import Ledger
from fracgpu.state.pod_info import decode_pod_info
from tests.fakes.clock import NOON
from tests.scheduler.harness import Harness
from tests.support.gpu import a_bound_gpu_pod, a_gpu_pod, some_cards

HOST: Final = HostResources(cpu_milli=500, pods=1)
CARD_MIB: Final = 24_000
# What is taken of each of the two cards of each node.
TAKEN = st.lists(
    st.tuples(st.integers(1, CARD_MIB - 1), st.integers(1, CARD_MIB - 1)), min_size=1, max_size=24
)


class Different:
    """A cluster of nodes of two cards each, of which different parts are taken."""

    def __init__(self, taken: list[tuple[int, int]]) -> None:
        self.nodes = [f"n{number}" for number in range(len(taken))]
        self.cluster = Harness(*self.nodes, cards=2)
        for node, of_cards in zip(self.nodes, taken, strict=True):
            for card, mib in enumerate(of_cards):
                self.cluster.run(f"{node}-{card}", node=node, card=card, mib=mib)
        self.matrix = self.cluster.matrix
        self.order = LeastWasteOrder(
            self.matrix, self.cluster.bound_pods, now=self.cluster.clock.now, request_ms=1
        )
        self.order.learn_now(ahead=False)

    def score(
        self, mib: int, by_cards: NDArray[np.float64] | None = None
    ) -> tuple[NDArray[np.float64] | None, int]:
        """Return the scores of the nodes with room, and how many states that evaluated."""
        before = self.order.states
        rows = self.with_room(mib)
        found = self.order.score(need(mib), HOST, rows, by_cards=by_cards)
        return found, self.order.states - before

    def with_room(self, mib: int) -> NDArray[np.int64]:
        rows = self.matrix.rows_of(self.nodes)
        found: NDArray[np.int64] = rows[(self.matrix.free_mib[rows] >= mib).any(1)]
        return found


def need(mib: int) -> PodNeed:
    found = decode_pod_info(json.dumps(a_gpu_pod("p", mib=mib)).encode()).need
    assert found is not None
    return found


def test_a_cluster_without_a_card_is_learnt_and_then_the_first_card_that_comes() -> None:
    ledger = Ledger()
    matrix = NodeMatrix(ledger)
    order = LeastWasteOrder(matrix, BoundPodIndex(), now=lambda: NOON)
    order.expect([Demand(cards=1, share_milli=100)])
    order.learn_now()
    assert order.learnt
    assert order.score(None, HOST, matrix.rows_of(["gone"])) is not None

    ledger.set_node(NodeCards(node="n1", cards=some_cards("n1", count=1), shared=True))
    order.learn_now()
    found = order.score(need(100), HOST, matrix.rows_of(["n1"]))
    assert found is not None
    assert found.tolist() == [1.0]


def test_from_no_pod_nothing_is_learnt_and_the_first_one_is_learnt_at_once() -> None:
    cluster = Harness("a", "b", cards=2)
    order = LeastWasteOrder(cluster.matrix, cluster.bound_pods, now=cluster.clock.now)
    grown = []
    order.learn_now()
    before = order.learnt

    for number in range(1, 9):
        order.expect([Demand(cards=1, share_milli=100 * number)])
        grown.append(order.grown)
        if order.grown:
            order.learn_now()

    assert (before, order.learnt) == (False, True)
    assert grown == [True, True, False, True, False, False, False, True]


@settings(max_examples=15, deadline=None)
@given(TAKEN, st.lists(st.integers(1, CARD_MIB), min_size=1, max_size=6))
def test_no_state_class_or_mix_makes_one_request_evaluate_more_than_its_allowance(
    taken: list[tuple[int, int]], asked: list[int]
) -> None:
    different = Different(taken)

    for mib in asked:
        if len(different.with_room(mib)):
            assert different.score(mib)[1] <= different.order.evaluated_per_request


def many() -> Different:
    return Different([(100 + 391 * n % 23_000, 200 + 307 * n % 23_000) for n in range(150)])


def test_what_is_not_known_within_a_request_is_scored_by_the_cards_after_all_that_is() -> None:
    different = many()
    by_cards = np.linspace(0.0, 1.0, len(different.with_room(1_000)))
    found, evaluated = different.score(1_000, by_cards)

    assert evaluated == different.order.evaluated_per_request
    assert found is not None
    known = found > 0.09
    assert 0 < known.sum() < len(found)
    assert found.max() == 1.0
    unknown = found[~known]
    assert (np.diff(unknown) > 0).all(), "by their cards' own scores"


def test_what_a_request_left_unknown_is_evaluated_in_idle_time_and_then_known() -> None:
    different, exact = many(), many()
    different.score(1_000)
    steps, before = 0, different.order.states
    for _ in different.order.catching_up():
        steps += 1
        assert different.order.states - before <= 2 * different.order.evaluated_per_request
        before = different.order.states

    assert steps > 1
    assert list(different.order.catching_up()) == []
    found, evaluated = different.score(1_000)
    assert evaluated == 0
    for _ in range(50):
        exact.score(1_000)
    wanted, _ = exact.score(1_000)
    assert found is not None
    assert wanted is not None
    assert found.tolist() == wanted.tolist()


def test_a_list_of_changed_nodes_is_taken_over_in_steps() -> None:
    different = many()
    for name in different.nodes:
        different.cluster.add_node(name, some_cards(name, count=3))
    matrix = different.matrix
    moments = [matrix.now, *(matrix.now for _ in different.order.catching_up())]

    assert moments[-1] == moments[0] + len(different.nodes)
    assert max(np.diff(moments)) <= 32


def test_a_request_in_which_nothing_is_known_leaves_it_to_the_cards() -> None:
    different = many()
    rows = different.matrix.rows_of(["nobody"])

    assert different.order.score(need(1_000), HOST, rows, by_cards=np.ones(1)) is None


def test_nodes_of_a_model_that_came_after_the_mix_was_learnt_come_last_until_it_is_again() -> None:
    different = Different([(1_000, 2_000)])
    cards = tuple(replace(card, model="NVIDIA L4") for card in some_cards("new", count=2))
    different.cluster.add_node("new", cards)
    different.matrix.refresh(now=different.cluster.clock.now())
    rows = different.matrix.rows_of(["n0", "new"])

    def scores() -> list[float]:
        found = different.order.score(need(1_000), HOST, rows, by_cards=np.ones(2))
        assert found is not None
        return [float(score) for score in found]

    assert scores() == [1.0, 0.09]
    different.order.learn_now()
    assert min(scores()) > 0.09
    assert different.order.times_learnt == 2


def a_bound_pod(name: str, *, mib: int = CARD_MIB) -> BoundPod:
    found = decode_bound_pod(json.dumps(a_bound_gpu_pod(name, node="n0", mib=mib)).encode())
    assert found is not None
    return found


def test_once_pods_end_as_fast_as_they_start_scores_count_that_and_they_are_learnt_anew() -> None:
    order = Different([(1_000, 2_000)]).order
    order.expect([Demand(cards=1, share_milli=500)])
    pods = [a_bound_pod(f"p{number}") for number in range(100)]
    states = []

    def look() -> None:
        before = order.outdated
        order.learn_now()
        states.append((before, order.outdated, order.times_learnt))

    for pod in pods:
        order.observe(pod)
    look()
    for pod in pods:
        order.forget(pod)
    look()

    (_, _, learnt), _ = states
    assert states == [(False, False, learnt), (True, False, learnt + 1)]


def test_a_pod_without_cards_or_of_an_unknown_node_is_no_turnover() -> None:
    order = Different([(1_000, 2_000)]).order
    elsewhere = structs.replace(
        a_bound_pod("p"), allocation=structs.replace(a_bound_pod("p").allocation, node="gone")
    )
    without = structs.replace(
        a_bound_pod("q"), allocation=structs.replace(elsewhere.allocation, by_card={})
    )

    for _ in range(1000):
        order.forget(elsewhere)
        order.forget(without)
    assert not order.outdated
