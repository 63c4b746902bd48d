"""One replay: pods arrive one by one, each is placed at once or refused, and none leaves.

So the allocated share of the cards, at any amount of arrived demand, measures the policy.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from simulator.replay.fleet import FleetState
from simulator.replay.policies import POLICIES, CpuPods
from simulator.replay.workload import ReplayWorkload, arrivals, node_order

LOAD_RATIO: Final = 1.3
FULL_LOAD: Final = 100
_TELL_EVERY: Final = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayResult:
    """The result of one policy with one order of arrivals.

    Attributes:
        curve: percentage of all card memory that is allocated, by the percentage that was
            requested: index 0 to 130.
        refused: pods that fitted nowhere.
    """

    policy: str
    seed: int
    arrived: int
    refused: int
    curve: tuple[float, ...]

    def allocated_percent(self, load_percent: int) -> float:
        """Return the percentage allocated at a load; the last known beyond the curve's end."""
        return self.curve[min(load_percent, len(self.curve) - 1)]


def replay(
    workload: ReplayWorkload,
    policy: str,
    *,
    seed: int,
    load_ratio: float = LOAD_RATIO,
    cpu_pods: CpuPods = CpuPods.KUBE_SCHEDULER,
    tell: Callable[[float], None] = lambda _: None,
) -> ReplayResult:
    """Replay a workload once; the same arguments always give the same outcome.

    Args:
        workload: the pods and the fleet.
        policy: one of ``simulator.replay.policies.POLICIES``.
        seed: of the order of arrivals and of nodes.
        load_ratio: demand over capacity at which the replay ends.
        cpu_pods: who places the pods that request no card.
        tell: called from time to time with the progress, 0..1.
    """
    pods = arrivals(workload, load_ratio=load_ratio, seed=seed)
    state = FleetState(node_order(workload, seed=seed))
    chooser = POLICIES[policy](state, workload, cpu_pods)
    capacity = workload.capacity_mib
    curve = [0.0]
    asked = refused = 0
    for number, pod in enumerate(pods):
        asked += pod.mib
        _reach(curve, FULL_LOAD * asked / capacity, before=FULL_LOAD * state.used_mib / capacity)
        choice = chooser.choose(pod)
        if choice is None:
            refused += 1
        else:
            place, assignment = choice
            state.take(pod, place, assignment)
        if number % _TELL_EVERY == 0:
            tell(number / len(pods))
    curve.append(FULL_LOAD * state.used_mib / capacity)
    tell(1.0)
    return ReplayResult(
        policy=policy, seed=seed, arrived=len(pods), refused=refused, curve=tuple(curve)
    )


def _reach(curve: list[float], load_percent: float, *, before: float) -> None:
    """Extend the curve by the whole percentages below this arrival: there, it counts *before*."""
    while len(curve) < load_percent:
        curve.append(before)


def mean_curve(outcomes: Sequence[ReplayResult]) -> tuple[float, ...]:
    """Return the mean of several results at each percentage of load that all of them reach."""
    length = min(len(result.curve) for result in outcomes)
    return tuple(
        sum(result.curve[at] for result in outcomes) / len(outcomes) for at in range(length)
    )
