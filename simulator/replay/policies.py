"""The policies that can be compared: the product's own, and first fit as a baseline."""

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import partial
from typing import Final, Protocol

import numpy as np

from fracgpu.placement.outcome import Placement
from fracgpu.placement.placement import NO_CHOOSERS, Choosers, choose_cards
from fracgpu.placement.policies.least_waste.order import LeastWasteOrder
from fracgpu.request.need import Strategy
from fracgpu.state.allocation import Assignment
from fracgpu.state.snapshot import NodeInfo
from simulator.replay.fleet import NOW, FleetState
from simulator.replay.workload import ReplayPod, ReplayWorkload


class CpuPods(Enum):
    """Who chooses the node of a pod that requests no card."""

    KUBE_SCHEDULER = "kube-scheduler"  # by its defaults; such pods never reach the extender
    POLICY = "policy"  # the policy, if it scores such pods: what the literature assumes


class ReplayPolicy(Protocol):
    """Chooses a node and its cards."""

    def choose(self, pod: ReplayPod) -> tuple[int, Assignment] | None:
        """Return the node's place in the fleet and the cards, or None if nothing fits."""
        ...


class FirstFit:
    """The first node that fits, and its tightest cards: the baseline of the other policies."""

    def __init__(self, state: FleetState, cpu_pods: CpuPods) -> None:
        self._state = state
        self._cpu_pods = cpu_pods

    def choose(self, pod: ReplayPod) -> tuple[int, Assignment] | None:
        places, _ = self._state.feasible(pod, strategy=Strategy.PACK)
        if not len(places):
            return None
        if pod.need is None and self._cpu_pods is CpuPods.KUBE_SCHEDULER:
            return most_cpu_left(self._state, places.tolist()), {}
        first = int(places[0])
        return first, _cards(self._state.node_info(first), pod, Strategy.PACK)


class ByScore:
    """A strategy that scores card by card: the node with the highest score, as in the extender.

    It does not score pods without cards.
    """

    def __init__(self, state: FleetState, strategy: Strategy) -> None:
        self._state = state
        self._strategy = strategy

    def choose(self, pod: ReplayPod) -> tuple[int, Assignment] | None:
        state = self._state
        places, score = state.feasible(pod, strategy=self._strategy)
        if not len(places):
            return None
        if score is None:
            return most_cpu_left(state, places.tolist()), {}
        best = int(places[int(score.argmax())])
        return best, _cards(state.node_info(best), pod, self._strategy)


class ByLeastWaste:
    """``least-waste`` as in the extender, with the workload's mix known beforehand."""

    def __init__(self, state: FleetState, workload: ReplayWorkload, cpu_pods: CpuPods) -> None:
        self._state = state
        self._cpu_pods = cpu_pods
        self._order = LeastWasteOrder(state.matrix, state.bound_pods, now=lambda: NOW)
        self._order.expect(pod.demand for pod in workload.pods)
        self._order.learn_now()
        self._choosers = {Strategy.LEAST_WASTE: self._order}

    def choose(self, pod: ReplayPod) -> tuple[int, Assignment] | None:
        state = self._state
        state.matrix.refresh(now=NOW)
        if self._order.outdated:  # a server looks every minute
            self._order.learn_now()
        places, by_cards = state.feasible(pod, strategy=Strategy.LEAST_WASTE)
        if not len(places):
            return None
        if pod.need is None and self._cpu_pods is CpuPods.KUBE_SCHEDULER:
            return most_cpu_left(state, places.tolist()), {}
        quality = self._order.score(pod.need, pod.host, state.rows[places], by_cards=by_cards)
        if quality is None:  # a pod of several containers, or of a kind that is not known yet
            quality = by_cards
        best = 0 if quality is None else int(quality.argmax())
        place_ = int(places[best])
        return place_, _cards(state.node_info(place_), pod, Strategy.LEAST_WASTE, self._choosers)


def most_cpu_left(state: FleetState, places: Sequence[int]) -> int:
    """Return the node with the largest share of free CPU, as kube-scheduler prefers by default."""
    left = state.cpu_milli[places] / np.maximum(state.cpu_capacity[places], 1)
    return places[int(left.argmax())]


def _cards(
    node_info: NodeInfo, pod: ReplayPod, strategy: Strategy, choosers: Choosers = NO_CHOOSERS
) -> Assignment:
    if pod.need is None:
        return {}
    answer = choose_cards(node_info, pod.need, pod.host, strategy=strategy, choosers=choosers)
    if not isinstance(answer, Placement):
        raise TypeError(f"the cards fit {pod.name}, but placement says: {answer.text}")
    return answer.assignment


Maker = Callable[[FleetState, ReplayWorkload, CpuPods], ReplayPolicy]


def _by_score(
    state: FleetState, _: ReplayWorkload, __: CpuPods, *, strategy: Strategy
) -> ReplayPolicy:
    return ByScore(state, strategy)


def _first_fit(state: FleetState, _: ReplayWorkload, cpu_pods: CpuPods) -> ReplayPolicy:
    return FirstFit(state, cpu_pods)


POLICIES: Final[Mapping[str, Maker]] = {
    **{strategy.value: partial(_by_score, strategy=strategy) for strategy in Strategy},
    Strategy.LEAST_WASTE.value: ByLeastWaste,
    "first-fit": _first_fit,
}
"""Every policy by the name that annotations and the ConfigMap use; what can be built is here."""

COMPARED: Final = (
    Strategy.PACK.value,
    Strategy.SPREAD.value,
    "first-fit",
    Strategy.LEAST_WASTE.value,
)
