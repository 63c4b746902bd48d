"""The extender's decisions, without HTTP and without an API server.

``fracgpu explain`` and the benchmarks build a `SchedulerCore`, feed it the events an informer
would, and get the same answers as from a running extender.
"""

from collections.abc import Callable, Sequence

from fracgpu.cards.card import CardUuid
from fracgpu.k8s.resources import NO_HOST_RESOURCES, HostResources
from fracgpu.placement.fit import Cards
from fracgpu.placement.node_matrix import NodeMatrix
from fracgpu.placement.outcome import NoPlacement, Placement
from fracgpu.placement.placement import (
    CardChooser,
    CardSelector,
    CardsOnNode,
    cards_without_host,
    place_held,
    reservations_for,
)
from fracgpu.placement.policies.least_waste.order import LeastWasteOrder
from fracgpu.request.need import Strategy
from fracgpu.state.bound_pod_index import BoundPodIndex
from fracgpu.state.ledger import Ledger
from fracgpu.state.pod_info import PodInfo
from fracgpu.state.snapshot import NodeInfo
from process.clock import Clock
from scheduler.cache.change_signal import ChangeSignal
from scheduler.cache.event_handlers import ClusterEventHandlers
from scheduler.cache.nominations import Nominations
from scheduler.extender.api import ExtenderArgs
from scheduler.extender.filter import Extender
from scheduler.extender.gang_room import GangRoom
from scheduler.extender.gangs import Gangs


class SchedulerCore:
    """The cache, and the placement policies on top of it.

    Args:
        strategy: returns the cluster's current default.
        clock: the time at which cordons and assumptions are evaluated.
        on_unreadable: called with an annotation and the number of pods or nodes on which it is
            unreadable.
    """

    def __init__(
        self,
        *,
        strategy: Callable[[], Strategy],
        clock: Clock,
        on_unreadable: Callable[[str, int], None] = lambda *_: None,
    ) -> None:
        self._clock = clock
        self.ledger = Ledger()
        self.changes = ChangeSignal()
        self.bound_pods = BoundPodIndex()
        self.matrix = NodeMatrix(self.ledger)
        self.least_waste = LeastWasteOrder(self.matrix, self.bound_pods, now=clock.now)
        choosers: dict[Strategy, CardChooser] = {Strategy.LEAST_WASTE: self.least_waste}
        self.cards = CardSelector(
            ledger=self.ledger, strategy=strategy, choosers=choosers, now=clock.now
        )
        self.nominations = Nominations(self.cards, clock)
        self.extender = Extender(
            self.matrix,
            strategy=strategy,
            clock=clock,
            orders={Strategy.LEAST_WASTE: self.least_waste},
            host_left=self.host_left,
        )
        self.gang_room = GangRoom(
            self.extender, self.matrix, cards=self.cards, host_left=self.host_left, clock=clock
        )
        self.gangs = Gangs(
            self.extender,
            self.ledger,
            self.gang_room,
            cards=self.cards,
            changes=self.changes,
            clock=clock,
        )
        self.handlers = ClusterEventHandlers(
            self.ledger,
            self.changes,
            self.bound_pods,
            nominations=self.nominations,
            on_new=self.least_waste.observe,
            on_gone=self.least_waste.forget,
            on_refused=self.least_waste.refused,
            on_gang_pod=self.gangs.pod_changed,
            in_gangs=self.gangs.pod_groups.of_pod,
            on_unreadable=on_unreadable,
        )

    def host_left(self, node: str, but: str) -> HostResources | None:
        """Return what no pod but that with UID *but* has requested of a node, or is about to.

        None if the node does not say what it has.
        """
        known = self.ledger.nodes.get(node)
        if known is None or known.host == NO_HOST_RESOURCES:
            return None
        # Bindings take effect one beside the other, and later than we are asked about the next pod.
        assumed = (assumption.host for assumption in self.ledger.assumed_on(node, but=but))
        return known.host - sum(assumed, self.bound_pods.used(node))

    def without_host(self, pod: PodInfo) -> frozenset[CardUuid]:
        """Return the cards of nodes whose CPU or memory Moves keep for other pods."""
        found = cards_without_host(
            self.ledger, pod, host_left=self.host_left, now=self._clock.now()
        )
        return frozenset(found)

    def best_node(self, pod: PodInfo, candidates: Sequence[str]) -> str | None:
        """Return the one of *candidates* that kube-scheduler should take.

        None if the pod fits on none, or requests no card.
        """
        asked = ExtenderArgs(pod=pod, node_names=tuple(candidates))
        result = self.extender.filter(asked)
        if len(result.passed) == 1 and pod.need is not None:
            return result.passed[0]
        return result.best()

    def node(self, name: str) -> NodeInfo | None:
        """Return a node as it is now: the same object for as long as nothing of it changes."""
        return self.ledger.node(name, now=self._clock.now())

    def cards_of(self, nodes: Sequence[str]) -> Cards:
        """Return the cards of nodes as they are now, [row, card]."""
        self.matrix.refresh(now=self._clock.now())
        return self.matrix.cards(self.matrix.rows_of(nodes))

    def cards_on(self, pod: PodInfo, node: str) -> Placement | NoPlacement | None:
        """Return the cards that a Binding of the pod to *node* would assign.

        None if the pod requests no card, or the node is not known.
        """
        answer = self.cards.on_node(pod, node)
        return answer.placement if isinstance(answer, CardsOnNode) else answer

    def held_for(self, pod: PodInfo, candidates: Sequence[str]) -> CardsOnNode | None:
        """Return the cards on one of *candidates* that Moves hold for a pod; None without any."""
        strategy, now = self.cards.strategy(), self._clock.now()
        return place_held(self.ledger, pod, strategy=strategy, now=now, nodes=candidates)

    def may_be_held_for(self, pod: PodInfo) -> bool:
        """Report whether Moves hold cards for a pod, wherever that is and whether it fits yet."""
        reservations = self.ledger.reservations
        found = reservations_for(self.ledger, pod, now=self._clock.now())
        return bool(found or reservations.holds_for(pod.record.uid))
