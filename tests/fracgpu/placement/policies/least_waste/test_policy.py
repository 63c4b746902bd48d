"""The policy ranks nodes by expected waste, and the same calls give the same answers."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from fracgpu.placement.node_matrix import Demand, FreeResources
from fracgpu.placement.policies.least_waste.card_states import Allowance
from fracgpu.placement.policies.least_waste.policy import LeastWaste
from fracgpu.placement.policies.least_waste.ranking import Ranking
from fracgpu.placement.policies.least_waste.turnover import TURNING_OVER
from fracgpu.placement.policies.least_waste.workload_mix import PodClass, WorkloadMix
from tests.fracgpu.placement.policies.least_waste.demands import (
    EIGHT,
    EVERY,
    HALF,
    MODELS,
    ODD,
    PAIR,
    PICKY,
    PROCESSOR,
    WHOLE,
    mix,
    node,
)

FREE = st.builds(
    FreeResources,
    model=st.sampled_from(MODELS),
    cpu_milli=st.integers(0, 128_000),
    memory_mib=st.just(1_000_000),
    card_milli=st.lists(st.sampled_from([0, 190, 500, 690, 1000]), max_size=8).map(tuple),
)
DEMAND = st.sampled_from(EVERY)


def told(*nodes: FreeResources) -> LeastWaste:
    policy = LeastWaste(mix(), MODELS)
    for number, free in enumerate(nodes):
        policy.put(f"node-{number}", free)
    return policy


def simple(*nodes: FreeResources) -> LeastWaste:
    """Return a policy for a workload of halves and wholes."""
    policy = LeastWaste(WorkloadMix.fold([HALF, WHOLE]).classes(), MODELS)
    for number, free in enumerate(nodes):
        policy.put(f"node-{number}", free)
    return policy


def chosen(policy: LeastWaste, demand: Demand) -> tuple[int, tuple[int, ...]] | None:
    ranking = policy.rank(demand)
    best = ranking.best
    return None if best is None else (int(ranking.rows[best]), policy.cards(ranking, best, demand))


def as_lists(ranking: Ranking) -> tuple[list[int], list[float], list[int]]:
    return ranking.rows.tolist(), ranking.cost_milli.tolist(), ranking.card.tolist()


def test_a_share_completes_a_card_rather_than_open_another() -> None:
    policy = simple(node(1000, 1000), node(1000, 500), node(1000, 1000))

    assert chosen(policy, HALF) == (1, (1,))


def test_a_share_takes_the_card_on_which_it_leaves_no_remainder() -> None:
    assert chosen(simple(node(690, 500, 1000)), HALF) == (0, (1,))


@given(
    levels=st.lists(st.sampled_from([0, 190, 500, 690, 1000]), min_size=1, max_size=4),
    demand=st.sampled_from([HALF, ODD, WHOLE]),
)
def test_a_node_costs_what_the_best_of_its_cards_costs_that_are_not_closed_to_the_pod(
    levels: list[int], demand: Demand
) -> None:
    policy = told(node(1000), node(*levels))
    among = np.array([1])
    open_ = policy.rank(demand, among=among)
    alone = [
        policy.rank(
            demand, among=among, closed={1: frozenset(range(len(levels))) - frozenset({card})}
        )
        for card in range(len(levels))
    ]

    for card, ranking in enumerate(alone):
        assert ranking.card.tolist() == ([card] if levels[card] >= demand.share_milli else [])
    costs = [float(ranking.cost_milli[0]) for ranking in alone if len(ranking.rows)]
    assert open_.cost_milli.tolist() == ([min(costs)] if costs else [])
    assert as_lists(policy.rank(demand, among=among)) == as_lists(open_)


def test_a_pod_on_two_cards_gets_none_that_is_closed_to_it() -> None:
    policy = told(node(1000, 500, 1000, 1000))
    closed = {0: frozenset({2})}

    ranking = policy.rank(PAIR, closed=closed)

    assert ranking.rows.tolist() == [0]
    assert policy.cards(ranking, 0, PAIR, closed) == (0, 3)
    assert not len(policy.rank(PAIR, closed={0: frozenset({2, 3})}).rows)


def test_a_single_card_pod_spares_the_last_whole_node() -> None:
    whole, broken = node(*[1000] * 8), node(*[1000] * 3)

    assert chosen(told(whole, broken), WHOLE) == (1, (0,))


def after_turnover(*nodes: FreeResources) -> LeastWaste:
    policy = LeastWaste(mix(), MODELS, TURNING_OVER)
    for number, free in enumerate(nodes):
        policy.put(f"node-{number}", free)
    return policy


@settings(max_examples=50, deadline=None)
@given(idle=st.integers(4, 7))
def test_where_pods_leave_a_nearly_empty_node_is_left_to_become_empty(idle: int) -> None:
    nearly_empty, nearly_full = node(*[1000] * idle, *[0] * (8 - idle)), node(1000, *[0] * 7)
    for demand in (HALF, WHOLE):
        assert chosen(after_turnover(nearly_empty, nearly_full), demand) == (1, (0,))


@settings(max_examples=100, deadline=None)
@given(nodes=st.lists(FREE, min_size=1, max_size=6), demand=DEMAND)
def test_whatever_counts_a_pod_fits_on_the_same_nodes(
    nodes: list[FreeResources], demand: Demand
) -> None:
    filling, turning = told(*nodes).rank(demand), after_turnover(*nodes).rank(demand)

    assert turning.rows.tolist() == filling.rows.tolist()
    assert np.isfinite(turning.cost_milli).all()


def test_a_pod_that_takes_any_model_spares_the_one_that_others_name() -> None:
    policy = LeastWaste(WorkloadMix.fold([PICKY, WHOLE, WHOLE]).classes(), MODELS)
    policy.put("named", node(1000, model="A100"))
    policy.put("other", node(1000, model="T4"))

    assert chosen(policy, WHOLE) == (1, (0,))
    assert chosen(policy, PICKY) == (0, (0,))


def test_a_pod_without_cards_leaves_cpu_beside_idle_cards() -> None:
    full, idle = node(0, 0, cores=16), node(1000, 1000, cores=16)

    assert chosen(told(idle, full), PROCESSOR) == (1, ())


def test_a_pod_of_several_cards_gets_distinct_ones() -> None:
    assert chosen(told(node(500, 1000, 0, 1000)), PAIR) == (0, (1, 3))


def test_no_node_fits_where_cards_fit_only_in_sum() -> None:
    assert chosen(told(node(500, 500)), ODD) is None
    assert chosen(told(node(*[1000] * 7, 999)), EIGHT) is None


def test_equal_nodes_go_to_the_first() -> None:
    assert chosen(told(node(1000), node(1000), node(1000)), WHOLE) == (0, (0,))


def test_without_any_history_pods_fill_the_fuller_node_and_the_tighter_card() -> None:
    policy = LeastWaste()
    policy.put("empty", node(1000, 1000, 1000))
    policy.put("fuller", node(400, 1000, 600))

    assert chosen(policy, HALF) == (1, (2,))
    assert chosen(policy, WHOLE) == (1, (1,))


def test_a_dropped_node_is_not_ranked_and_dropping_it_twice_is_harmless() -> None:
    policy = told(node(1000), node(1000))
    policy.drop("node-0")
    policy.drop("node-0")

    assert policy.rank(WHOLE).rows.tolist() == [1]
    assert dict(policy.rows) == {"node-1": 1}


def test_only_the_named_nodes_are_judged_and_they_cost_the_same() -> None:
    policy = told(node(1000), node(1000, 500), node(500))
    every = policy.rank(HALF)
    some = policy.rank(HALF, among=np.array([0, 2]))

    assert some.rows.tolist() == [0, 2]
    assert some.cost_milli.tolist() == every.cost_milli[[0, 2]].tolist()


def test_a_model_never_seen_before_is_learnt() -> None:
    policy = told(node(1000))
    policy.put("new", node(1000, model="L40"))

    assert policy.rank(WHOLE).rows.tolist() == [0, 1]
    assert policy.rank(PICKY).rows.tolist() == [0]


def test_another_mix_changes_the_answer() -> None:
    nodes = [node(1000), node(690)]
    before = told(*nodes)
    after = told(*nodes)
    after.learn(WorkloadMix.fold([HALF, WHOLE, Demand(cards=1, share_milli=190)]).classes())

    assert after.classes != before.classes
    assert as_lists(after.rank(HALF)) != as_lists(before.rank(HALF))


def test_another_mix_is_learnt_a_model_at_a_time_and_counts_from_the_last_step_on() -> None:
    nodes = [node(1000), node(690), node(500, model="T4")]
    policy, fresh = told(*nodes), simple(*nodes)
    before = as_lists(policy.rank(HALF))
    steps = 0
    for _ in policy.learning(fresh.classes):
        steps += 1
        assert as_lists(policy.rank(HALF)) == before

    assert steps > len(MODELS)
    assert policy.classes == fresh.classes
    assert as_lists(policy.rank(HALF)) == as_lists(fresh.rank(HALF)) != before


def test_a_step_of_warming_evaluates_much_of_what_it_has_time_for() -> None:
    small = [Demand(cpu_milli=500 + 100 * share, cards=1, share_milli=share) for share in (40, 70)]
    policy = LeastWaste(WorkloadMix.fold(small).classes(), MODELS)
    for number in range(600):
        levels = [1000 - (number * 7 + card * 131) % 997 for card in range(8)]
        policy.put(f"node-{number}", node(*levels, cores=8 + number % 60))

    steps = sum(1 for _ in policy.warming(small))

    assert policy.evaluated > 5_000  # so that there are many steps
    assert steps * policy.evaluated_in(1) < 4 * policy.evaluated


def test_warming_goes_in_steps_and_then_leaves_nothing_to_evaluate() -> None:
    policy = told(*[node(*[1000] * (number % 8 + 1), cores=number) for number in range(300)])
    steps = list(policy.warming(EVERY))
    for demand in EVERY:
        policy.rank(demand)

    assert policy.evaluated == steps[-1] > 0
    at_most = policy.evaluated_in(2)
    assert all(after - before <= at_most for before, after in pairwise([0, *steps]))


def test_warming_again_looks_only_at_what_changed() -> None:
    policy = told(*[node(*[1000] * (number % 8 + 1), cores=number) for number in range(300)])
    for _ in policy.warming(EVERY):
        pass
    before = policy.evaluated
    assert list(policy.warming(())) == []

    policy.put("node-7", node(1000, 777, cores=40))
    for _ in policy.warming(()):
        pass
    assert before < policy.evaluated
    after = policy.evaluated
    for demand in EVERY:
        policy.rank(demand)
    assert policy.evaluated == after


@settings(max_examples=25, deadline=None)
@given(st.lists(FREE, max_size=8), DEMAND, st.integers(0, 40))
def test_within_an_allowance_a_cost_is_the_same_or_unknown(
    nodes: list[FreeResources], demand: Demand, most: int
) -> None:
    policy = told(*nodes)
    exact = told(*nodes).rank(demand)
    found = policy.rank(demand, allowance=Allowance(most))

    assert policy.evaluated <= most
    assert found.rows.tolist() == exact.rows.tolist()
    known = ~np.isnan(found.cost_milli)
    # Of a node of which some options are known, the best of these counts.
    assert (found.cost_milli[known] >= exact.cost_milli[known]).all()
    # Asking again gets on with it, and ends with what a ranking without limit says.
    for _ in range(200):
        found = policy.rank(demand, allowance=Allowance(max(most, 4)))
    assert as_lists(found) == as_lists(exact)


def test_what_is_not_known_is_never_the_best() -> None:
    policy = told(node(600), node(1000), node(700))
    found = policy.rank(HALF, allowance=Allowance(4))

    assert np.isnan(found.cost_milli).tolist() == [False, True, True]
    assert found.best == 0


def test_more_kinds_of_pods_than_there_is_room_for_leave_the_answers_as_they_are() -> None:
    nodes = [node(*[1000 - number] * 32) for number in range(2)]
    policy = told(*nodes)
    demands = [Demand(cpu_milli=cpu, cards=1, share_milli=500) for cpu in range(0, 60_000, 100)]
    for demand in demands:
        policy.rank(demand, allowance=Allowance(0))

    assert as_lists(policy.rank(demands[0])) == as_lists(told(*nodes).rank(demands[0]))


def test_warming_gives_the_answers_that_a_cold_policy_gives() -> None:
    nodes = [node(*[1000] * (number % 4), 500, cores=number) for number in range(200)]
    warm = told(*nodes)
    for step in warm.warming([HALF]):
        if step:
            warm.put("node-7", nodes[7])

    assert warm.rank(HALF).rows.tolist() == told(*nodes).rank(HALF).rows.tolist()
    assert chosen(warm, HALF) == chosen(told(*nodes), HALF)


@given(st.lists(FREE, max_size=6), DEMAND)
def test_no_card_is_taken_that_has_no_room(nodes: list[FreeResources], demand: Demand) -> None:
    policy = told(*nodes)
    ranking = policy.rank(demand)

    for position, row in enumerate(ranking.rows.tolist()):
        cards = policy.cards(ranking, position, demand)
        assert len(set(cards)) == demand.cards
        assert all(nodes[row].card_milli[card] >= demand.share_milli for card in cards)
        assert nodes[row].cpu_milli >= demand.cpu_milli
        assert demand.accepts(nodes[row].model)


@given(st.lists(FREE, max_size=6), DEMAND)
def test_no_node_is_left_out_on_which_the_pod_fits(
    nodes: list[FreeResources], demand: Demand
) -> None:
    fits = [
        row
        for row, free in enumerate(nodes)
        if free.cpu_milli >= demand.cpu_milli
        and demand.accepts(free.model)
        and sum(level >= demand.share_milli for level in free.card_milli if demand.cards)
        >= demand.cards
    ]

    assert told(*nodes).rank(demand).rows.tolist() == fits


@settings(max_examples=20, deadline=None)
@given(st.lists(FREE, max_size=6), DEMAND)
def test_the_same_question_gets_the_same_answer(nodes: list[FreeResources], demand: Demand) -> None:
    policy = told(*nodes)
    first = as_lists(policy.rank(demand))

    assert as_lists(policy.rank(demand)) == first
    assert as_lists(told(*nodes).rank(demand)) == first


class Changes(RuleBasedStateMachine):
    """Nodes are added, change and go; the policy equals one that was given only the end state."""

    def __init__(self) -> None:
        super().__init__()
        self.policy = LeastWaste(mix(), MODELS)
        self.now: dict[str, FreeResources] = {}

    @rule(name=st.sampled_from("abcdef"), free=FREE)
    def put(self, name: str, free: FreeResources) -> None:
        self.policy.put(name, free)
        self.now[name] = free

    @rule(name=st.sampled_from("abcdef"))
    def drop(self, name: str) -> None:
        self.policy.drop(name)
        self.now.pop(name, None)

    @rule(demand=DEMAND)
    def ask(self, demand: Demand) -> None:
        self.policy.rank(demand)

    @invariant()
    def it_knows_the_nodes_that_there_are(self) -> None:
        assert self.policy.rows.keys() == self.now.keys()

    def teardown(self) -> None:
        fresh = LeastWaste(mix(), MODELS)
        for name, free in self.now.items():
            fresh.put(name, free)
        for policy in (self.policy, fresh):
            policy.reprice()
        for demand in EVERY:
            assert self.costs(self.policy, demand) == pytest.approx(self.costs(fresh, demand))

    @staticmethod
    def costs(policy: LeastWaste, demand: Demand) -> dict[str, float]:
        ranking = policy.rank(demand)
        cost = dict(zip(ranking.rows.tolist(), ranking.cost_milli.tolist(), strict=True))
        return {name: cost[row] for name, row in policy.rows.items() if row in cost}


TestChanges = Changes.TestCase
TestChanges.settings = settings(max_examples=20, stateful_step_count=15, deadline=None)


def test_once_pods_leave_the_last_node_of_a_model_is_kept_for_rare_pods_of_eight_that_name_it() -> (
    None
):
    rare = replace(EIGHT, models=frozenset({"A100"}))
    classes = [
        PodClass(demand=WHOLE, frequency_ratio=0.9699),
        PodClass(demand=PAIR, frequency_ratio=0.03),
        PodClass(demand=rare, frequency_ratio=0.0001),
    ]
    policy = LeastWaste(classes, MODELS, TURNING_OVER)
    policy.put("last", node(*[1000] * 8, cores=96))
    for number in range(20):
        # After one pod these have too little CPU for a pair: that is worth a fifth of a card.
        policy.put(f"other-{number}", node(*[1000] * 8, model="T4", cores=20))

    best = chosen(policy, WHOLE)

    assert best is not None
    assert best[0] != policy.rows["last"]
