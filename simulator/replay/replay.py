"""One replay: pods arrive one by one, each is placed at once or turned away, and nobody leaves.

So the share of cards in use, at any amount of arrived demand, says what the policy made of it.
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
    """What one policy made of one order of arrivals.

    Attributes:
        curve: per cent of all card memory that is allocated once that many per cent of it were
            asked for: index 0 to 130.
        refused: pods that fitted nowhere.
    """

    policy: str
    seed: int
    arrived: int
    refused: int
    curve: tuple[float, ...]

    def allocated_percent(self, load_percent: int) -> float:
        """Tell how much is allocated at an amount of arrived load; the last known beyond it."""
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
        workload: what comes, and to which fleet.
        policy: one of ``simulator.replay.policies.POLICIES``.
        seed: of the order of arrivals and of nodes.
        load_ratio: when to stop, in demand over capacity.
        cpu_pods: who places the pods that ask for no card.
        tell: hears now and then how far it is, 0..1.
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
            chooser.took(place)
        if number % _TELL_EVERY == 0:
            tell(number / len(pods))
    curve.append(FULL_LOAD * state.used_mib / capacity)
    tell(1.0)
    return ReplayResult(
        policy=policy, seed=seed, arrived=len(pods), refused=refused, curve=tuple(curve)
    )


def _reach(curve: list[float], load_percent: float, *, before: float) -> None:
    """Fill in the whole per cents that this arrival goes beyond: there, it has not come yet."""
    while len(curve) < load_percent:
        curve.append(before)


def mean_curve(outcomes: Sequence[ReplayResult]) -> tuple[float, ...]:
    """Average several outcomes at each per cent of load, as far as all of them go."""
    length = min(len(result.curve) for result in outcomes)
    return tuple(
        sum(result.curve[at] for result in outcomes) / len(outcomes) for at in range(length)
    )
