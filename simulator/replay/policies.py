"""The policies that can be compared: the product's own, and first fit to measure them by."""

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import partial
from typing import Final, Protocol

import numpy as np

from fracgpu.allocation import Assignment, Slice
from fracgpu.card import model_key
from fracgpu.placement import Placement, place
from fracgpu.policies.least_waste import LeastWaste
from fracgpu.policies.node_table import NodeFree
from fracgpu.policies.workload_mix import WHOLE_CARD_MILLI, WorkloadMix
from fracgpu.request import FULL_CORES, Strategy
from fracgpu.snapshot import CardLoad, NodeLoads
from simulator.replay.state import FleetState
from simulator.replay.workload import ReplayPod, Workload


class CpuPods(Enum):
    """Who chooses the node of a pod that asks for no card."""

    KUBE_SCHEDULER = "kube-scheduler"  # by its own default; such pods never reach the extender
    POLICY = "policy"  # the policy, where it has an opinion: what the literature assumes


class Policy(Protocol):
    """What chooses a node and its cards."""

    def choose(self, pod: ReplayPod) -> tuple[int, Assignment] | None:
        """Give the node's place in the fleet and the cards, or None where nothing fits."""
        ...

    def took(self, place: int) -> None:
        """Hear that the node at *place* has just taken a pod."""
        ...


class FirstFit:
    """The first node that fits, the tightest cards on it: what every other policy has to beat."""

    def __init__(self, state: FleetState, cpu_pods: CpuPods) -> None:
        self._state = state
        self._cpu_pods = cpu_pods

    def choose(self, pod: ReplayPod) -> tuple[int, Assignment] | None:
        places = self._state.feasible(pod, strategy=Strategy.PACK)
        if not len(places):
            return None
        if pod.need is None and self._cpu_pods is CpuPods.KUBE_SCHEDULER:
            return most_cpu_left(self._state, places.tolist()), {}
        first = int(places[0])
        return first, _cards(self._state.loads(first), pod, Strategy.PACK)

    def took(self, place: int) -> None:
        pass


class ByScore:
    """A strategy that judges card by card: the node with the highest score, as the extender does.

    It has nothing to say about pods without cards.
    """

    def __init__(self, state: FleetState, strategy: Strategy) -> None:
        self._state = state
        self._strategy = strategy

    def choose(self, pod: ReplayPod) -> tuple[int, Assignment] | None:
        state = self._state
        places = state.feasible(pod, strategy=self._strategy)
        if not len(places):
            return None
        if pod.need is None:
            return most_cpu_left(state, places.tolist()), {}
        score = state.ask(pod.need, strategy=self._strategy).score[state.rows[places]]
        best = int(places[int(score.argmax())])
        return best, _cards(state.loads(best), pod, self._strategy)

    def took(self, place: int) -> None:
        pass


class ByWaste:
    """``least-waste``: where the fleet is expected to lose least; it knows the workload's mix."""

    def __init__(self, state: FleetState, workload: Workload, cpu_pods: CpuPods) -> None:
        self._state = state
        self._cpu_pods = cpu_pods
        models = sorted({_model(state.loads(at)) for at in range(len(state.names))})
        mix = WorkloadMix.fold(pod.want for pod in workload.pods)
        self._policy = LeastWaste(mix.classes(), models)
        for at in range(len(state.names)):
            self.took(at)

    def choose(self, pod: ReplayPod) -> tuple[int, Assignment] | None:
        state = self._state
        places = state.feasible(pod, strategy=Strategy.LEAST_WASTE)
        if not len(places):
            return None
        if pod.need is None and self._cpu_pods is CpuPods.KUBE_SCHEDULER:
            return most_cpu_left(state, places.tolist()), {}
        ranking = self._policy.rank(pod.want, among=places)
        best = ranking.best
        if best is None:  # thousandths are coarser than MiB: a card may fit that looks too small
            best_place = int(places[0])
            return best_place, _cards(state.loads(best_place), pod, Strategy.LEAST_WASTE)
        chosen = int(ranking.rows[best])
        if pod.need is None:
            return chosen, {}
        loads = state.loads(chosen)
        named = self._policy.cards(ranking, best, pod.want)
        return chosen, _named_cards(loads, pod, named) or _cards(loads, pod, Strategy.LEAST_WASTE)

    def took(self, place: int) -> None:
        # Told in order from the start, so that the policy's row is the node's place.
        loads = self._state.loads(place)
        free = NodeFree(
            model=_model(loads),
            cpu_milli=int(self._state.cpu_milli[place]),
            memory_mib=int(self._state.memory_mib[place]),
            card_milli=tuple(_free_milli(load) for load in loads.cards.values()),
        )
        self._policy.put(self._state.names[place], free)


def most_cpu_left(state: FleetState, places: Sequence[int]) -> int:
    """Choose as kube-scheduler does by default: the node that has most of its CPU left."""
    left = state.cpu_milli[places] / np.maximum(state.cpu_capacity[places], 1)
    return places[int(left.argmax())]


def _model(loads: NodeLoads) -> str:
    return next((model_key(load.card.model) for load in loads.cards.values()), "")


def _free_milli(load: CardLoad) -> int:
    return max(0, load.free_mib) * WHOLE_CARD_MILLI // max(1, load.card.capacity_mib)


def _cards(loads: NodeLoads, pod: ReplayPod, strategy: Strategy) -> Assignment:
    if pod.need is None:
        return {}
    answer = place(loads, pod.need, strategy=strategy)
    if not isinstance(answer, Placement):
        raise TypeError(f"the survey said that {pod.name} fits, the placement: {answer.text}")
    return answer.assignment


def _named_cards(loads: NodeLoads, pod: ReplayPod, indexes: Sequence[int]) -> Assignment | None:
    """Put a pod of one container on cards named by their place; None where that does not fit."""
    cards = list(loads.cards.values())
    if pod.need is None or len(pod.need.containers) > 1:
        return None
    (need,) = pod.need.containers
    chosen = [cards[index] for index in indexes]
    if any(
        it.free_mib < need.mib or it.held_cores + need.cores > FULL_CORES or it.free_slots < 1
        for it in chosen
    ):
        return None
    return {
        need.name: tuple(Slice(card=it.card.uuid, mib=need.mib, cores=need.cores) for it in chosen)
    }


Maker = Callable[[FleetState, Workload, CpuPods], Policy]


def _by_score(state: FleetState, _: Workload, __: CpuPods, *, strategy: Strategy) -> Policy:
    return ByScore(state, strategy)


def _first_fit(state: FleetState, _: Workload, cpu_pods: CpuPods) -> Policy:
    return FirstFit(state, cpu_pods)


POLICIES: Final[Mapping[str, Maker]] = {
    **{it.value: partial(_by_score, strategy=it) for it in Strategy},
    Strategy.LEAST_WASTE.value: ByWaste,
    "first-fit": _first_fit,
}
"""Every policy by the name that annotations and the ConfigMap use; what can be built is here."""

COMPARED: Final = (
    Strategy.PACK.value,
    Strategy.SPREAD.value,
    "first-fit",
    Strategy.LEAST_WASTE.value,
)
