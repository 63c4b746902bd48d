"""Compiled prices of idle cards are those of NumPy, to the bit."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fracgpu.placement.node_matrix import MAX_CARDS, Demand
from fracgpu.placement.policies.least_waste.scarcity import Scarcity
from fracgpu.placement.policies.least_waste.turnover import FILLING, TURNING_OVER, Weights
from fracgpu.placement.policies.least_waste.workload_mix import WorkloadMix
from tests.fracgpu.placement.policies.least_waste.demands import EVERY, MODELS, WHOLE

DEMANDS = st.sampled_from(EVERY) | st.builds(
    Demand,
    cpu_milli=st.integers(0, 20_000),
    cards=st.integers(1, 9),
    share_milli=st.just(1000),
    models=st.sampled_from([None, frozenset({"T4"}), frozenset({"gone"})]),
)
NODES = st.tuples(
    st.integers(0, len(MODELS) - 1), st.integers(-1_000, 30_000), st.integers(0, MAX_CARDS)
)


@settings(max_examples=200, deadline=None)
@given(
    demands=st.lists(DEMANDS, min_size=1, max_size=12),
    rounds=st.lists(st.lists(NODES, max_size=12), min_size=1, max_size=3),
    weights=st.sampled_from([FILLING, TURNING_OVER]),
)
def test_any_mix_on_any_nodes_has_the_same_prices(
    demands: list[Demand], rounds: list[list[tuple[int, int, int]]], weights: Weights
) -> None:
    classes = WorkloadMix.fold(demands).classes()
    compiled, plain = (
        Scarcity(classes, MODELS, weights, compiled=which) for which in (True, False)
    )
    for nodes in rounds:
        model, cpu, idle = np.array(nodes, np.int64).reshape(-1, 3).T.copy()
        for scarcity in (compiled, plain):
            scarcity.refresh(model=model, cpu_milli=cpu, idle_cards=idle)
        assert compiled.worth.tobytes() == plain.worth.tobytes()


@pytest.mark.parametrize(("model", "idle"), [(-1, 1), (2, 1), (0, -1), (0, MAX_CARDS + 1)])
def test_a_node_out_of_range_is_refused(model: int, idle: int) -> None:
    scarcity = Scarcity(WorkloadMix.fold([WHOLE]).classes(), MODELS, FILLING, compiled=True)

    with pytest.raises(AssertionError):
        scarcity.refresh(
            model=np.array([model]), cpu_milli=np.array([9_000]), idle_cards=np.array([idle])
        )
