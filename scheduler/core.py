"""The part of the extender that decides: told of nodes and pods, asked where a pod goes.

No request and no API server is in it. Whoever wants the extender's own answer without running one
(``fracgpu explain``, a benchmark) builds a `SchedulerCore`, tells it what an informer would, and
asks.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from fracgpu.k8s.resources import pod_requests
from fracgpu.placement.card_choice import CardChooser, choose_cards
from fracgpu.placement.fit_index import FitIndex
from fracgpu.placement.node_matrix import NodeMatrix
from fracgpu.placement.outcome import NoPlacement, Placement
from fracgpu.placement.placement import MAX_SCORE
from fracgpu.placement.policies.least_waste.order import LeastWasteOrder
from fracgpu.request.need import Strategy
from fracgpu.state.bound_pod_index import BoundPodIndex
from fracgpu.state.ledger import Ledger
from fracgpu.state.pod_info import PodInfo
from process.clock import Clock
from scheduler.cache.change_signal import ChangeSignal
from scheduler.cache.event_handlers import ClusterEventHandlers
from scheduler.extender.api import ExtenderArgs
from scheduler.extender.filter import Extender


class SchedulerCore:
    """The books, and the policies over them.

    Args:
        strategy: gives the cluster's default at the moment of asking.
        clock: tells which cordons and assumptions still hold.
        on_unreadable: told of an annotation, and how many pods or nodes have an unreadable one.
    """

    def __init__(
        self,
        *,
        strategy: Callable[[], Strategy],
        clock: Clock,
        on_unreadable: Callable[[str, int], None] = lambda *_: None,
    ) -> None:
        self._strategy = strategy
        self._clock = clock
        self.ledger = Ledger()
        self.changes = ChangeSignal()
        self.bound_pods = BoundPodIndex()
        self.matrix = NodeMatrix(self.ledger)
        self.least_waste = LeastWasteOrder(self.matrix, self.bound_pods, now=clock.now)
        self.handlers = ClusterEventHandlers(
            self.ledger,
            self.changes,
            self.bound_pods,
            on_new=self.least_waste.observe,
            on_unreadable=on_unreadable,
        )
        self.choosers: Mapping[Strategy, CardChooser] = MappingProxyType(
            {Strategy.LEAST_WASTE: self.least_waste}
        )
        self.fit_index = FitIndex(self.matrix)
        self.extender = Extender(
            self.fit_index,
            strategy=strategy,
            clock=clock,
            orders={Strategy.LEAST_WASTE: self.least_waste},
        )

    def best_node(self, pod: PodInfo, candidates: Sequence[str]) -> str | None:
        """Name the node that gets all ten points of those *candidates* on which the pod fits.

        None where it fits on none, or asks nothing of us.
        """
        asked = ExtenderArgs(pod=pod, node_names=tuple(candidates))
        fitting = self.extender.filter(asked).passed
        if not fitting:
            return None
        scores = self.extender.prioritize(ExtenderArgs(pod=pod, node_names=tuple(fitting)))
        best = int(scores.argmax())
        return fitting[best] if scores[best] == MAX_SCORE else None

    def cards_on(self, pod: PodInfo, node: str) -> Placement | NoPlacement | None:
        """Choose the cards that a Binding to a node would name.

        None where the pod asks nothing of us, or the node is not known.
        """
        node_info = self.ledger.node(node, now=self._clock.now())
        if pod.need is None or node_info is None:
            return None
        return choose_cards(
            node_info,
            pod.need,
            pod_requests(pod.record.containers),
            strategy=self._strategy(),
            choosers=self.choosers,
        )
