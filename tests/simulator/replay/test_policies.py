"""Each policy chooses by its own rule, and only where the pod fits."""

import pytest

from fracgpu.request.need import Strategy
from simulator.replay.fleet import FleetState
from simulator.replay.policies import COMPARED, POLICIES, CpuPods, ReplayPolicy
from simulator.replay.workload import ReplayPod, ReplayWorkload
from tests.simulator.replay.trace import a_trace

TRACE = a_trace()
PODS = {pod.name: pod for pod in TRACE.pods}


def a_policy(
    name: str,
    workload: ReplayWorkload = TRACE,
    *,
    cpu_pods: CpuPods = CpuPods.KUBE_SCHEDULER,
) -> tuple[FleetState, ReplayPolicy]:
    state = FleetState(workload.nodes)
    return state, POLICIES[name](state, workload, cpu_pods)


def put(state: FleetState, policy: ReplayPolicy, pod: ReplayPod) -> tuple[int, set[str]]:
    choice = policy.choose(pod)
    assert choice is not None
    place, assignment = choice
    state.take(pod, place, assignment)
    return place, {part.card for parts in assignment.values() for part in parts}


def test_every_strategy_of_the_language_can_be_compared() -> None:
    assert {strategy.value for strategy in Strategy} | {"first-fit"} == set(POLICIES)
    assert set(COMPARED) <= set(POLICIES)


def test_first_fit_takes_the_first_node_and_pack_the_fullest_card() -> None:
    for name in ("first-fit", "pack"):
        state, policy = a_policy(name)
        first = put(state, policy, PODS["half-0"])

        assert put(state, policy, PODS["third"]) == first


def test_spread_takes_another_card() -> None:
    state, policy = a_policy("spread")
    _, first = put(state, policy, PODS["half-0"])

    _, second = put(state, policy, PODS["half-0"])

    assert first != second


def test_least_waste_does_not_take_the_model_that_others_insist_on() -> None:
    state, policy = a_policy("least-waste")

    place, _ = put(state, policy, PODS["half-0"])

    assert state.names[place] != "large-0"


@pytest.mark.parametrize("name", POLICIES)
def test_a_pod_is_placed_as_long_as_it_fits_somewhere_and_never_afterwards(name: str) -> None:
    state, policy = a_policy(name)
    for _ in range(4):
        put(state, policy, PODS["whole"])

    assert policy.choose(PODS["whole"]) is None
    assert len(put(state, policy, PODS["pair"])[1]) == 2


@pytest.mark.parametrize("name", POLICIES)
def test_pods_without_cards_go_where_most_cpu_is_left(name: str) -> None:
    state, policy = a_policy(name)
    state.cpu_milli[3] = 0
    state.cpu_milli[2] //= 2

    place, cards = put(state, policy, PODS["cpu"])

    assert (place, cards) == (0, set())


def test_a_policy_may_place_pods_without_cards_itself() -> None:
    first_fit, first = a_policy("first-fit", cpu_pods=CpuPods.POLICY)
    waste, least = a_policy("least-waste", cpu_pods=CpuPods.POLICY)
    first_fit.cpu_milli[0] = 3_000

    assert put(first_fit, first, PODS["cpu"]) == (0, set())
    place, _ = put(waste, least, PODS["cpu"])
    assert waste.names[place] == "cpu-0"  # where no card loses its CPU


def test_a_node_of_odd_sizes_is_not_refused_for_the_sake_of_thousandths() -> None:
    # 26,401 MiB of 80,000 are 331 thousandths rounded up; two such and one of 27,198 fill the card.
    state, policy = a_policy("least-waste", a_trace(nodes=ONE_CARD, pods=THIRDS))
    for pod in a_trace(nodes=ONE_CARD, pods=THIRDS).pods:
        put(state, policy, pod)

    assert state.used_mib == 80_000


ONE_CARD = "sn,cpu_milli,memory_mib,gpu,model\nn,9000,9000,1,A10\n"
THIRDS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli\na,1,1,1,330\nb,1,1,1,330\nc,1,1,1,340\n"
