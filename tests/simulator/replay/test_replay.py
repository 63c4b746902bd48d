"""A replay is repeatable, its curve is exact, and it shows what the policies are known for."""

from pathlib import Path

import pytest

from simulator.replay.policies import POLICIES, CpuPods
from simulator.replay.replay import ReplayResult, mean_curve, replay
from simulator.replay.workload import read_trace
from tests.simulator.replay.trace import a_trace

OPENB = Path(__file__).parents[4] / "shared" / "openb"


@pytest.mark.parametrize("policy", POLICIES)
def test_the_same_seed_gives_the_same_outcome(policy: str) -> None:
    assert replay(a_trace(), policy, seed=3) == replay(a_trace(), policy, seed=3)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_curve_never_falls_and_never_exceeds_what_arrived_or_what_there_is(policy: str) -> None:
    for seed in range(5):
        curve = replay(a_trace(), policy, seed=seed).curve

        assert list(curve) == sorted(curve)
        assert all(value <= load + 1e-9 for load, value in enumerate(curve[:-1]))
        assert curve[-1] <= 100


def test_what_fits_nowhere_is_counted() -> None:
    outcome = replay(a_trace(), "pack", seed=1, load_ratio=3.0)

    assert outcome.refused > 0
    assert outcome.refused < outcome.arrived


def test_progress_is_told_up_to_the_end() -> None:
    progress: list[float] = []

    replay(a_trace(), "pack", seed=1, tell=progress.append)

    assert progress == sorted(progress)
    assert progress[-1] == 1.0


def some_lines(file: Path, each: int) -> list[str]:
    """Return the header and each so-many-th line after it."""
    header, *rows = file.read_text().splitlines(keepends=True)
    return [header, *rows[::each]]


def test_a_mean_goes_as_far_as_all_of_its_curves() -> None:
    def outcome(*curve: float) -> ReplayResult:
        return ReplayResult(policy="p", seed=1, arrived=1, refused=0, curve=curve)

    assert mean_curve([outcome(0, 2, 4), outcome(0, 4)]) == (0, 3)
    assert outcome(0, 2, 4).allocated_percent(100) == 4


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("each", [6, pytest.param(1, marks=pytest.mark.e2e)])
def test_a_production_trace_is_used_better_by_least_waste_than_by_first_fit(each: int) -> None:
    """Every sixth node and pod, or with `make e2e` all of them."""
    nodes, pods = OPENB / "openb_node_list_gpu_node.csv", OPENB / "openb_pod_list_default.csv"
    if not pods.exists():
        pytest.skip(f"the openb trace is not at {OPENB.name}/ beside the repository")
    workload = read_trace(nodes=some_lines(nodes, each), pods=some_lines(pods, each))

    def used(policy: str, cpu_pods: CpuPods) -> float:
        outcome = replay(workload, policy, seed=42, load_ratio=1.02, cpu_pods=cpu_pods)
        return outcome.allocated_percent(100)

    first_fit = used("first-fit", CpuPods.POLICY)
    assert first_fit > 93.5  # the reference simulator, other random numbers: 94.35 over ten seeds
    assert used("least-waste", CpuPods.POLICY) > first_fit + 0.8
    # Keeping some of each model for pods that may name it costs up to 0.9 here (decision 70).
    assert used("least-waste", CpuPods.KUBE_SCHEDULER) > 94.5
