"""The fleet as it fills: the product's own ledger and node matrix, with CPU and host memory."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fracgpu.cards.card import NodeCards
from fracgpu.k8s.container import ContainerSpec
from fracgpu.k8s.resources import NO_HOST_RESOURCES
from fracgpu.placement.node_matrix import IntArray, NodeMatrix
from fracgpu.placement.placement import evaluate
from fracgpu.request.need import Strategy
from fracgpu.state.allocation import Assignment, allocations_by_card
from fracgpu.state.bound_pod import BoundPod
from fracgpu.state.bound_pod_index import BoundPodIndex
from fracgpu.state.ledger import Ledger
from fracgpu.state.snapshot import NodeInfo, PodAllocation
from simulator.replay.workload import ReplayPod

NOW: Final = datetime(2000, 1, 1, tzinfo=UTC)  # nothing here depends on the time
_PLENTY: Final = 2**62
_NEVER: Final = NOW.replace(year=9999)


class FleetState:
    """The allocations of each node.

    Args:
        nodes: in order of preference among equals.
    """

    def __init__(self, nodes: Sequence[NodeCards]) -> None:
        self._ledger = Ledger()
        for node in nodes:
            self._ledger.set_node(node)
        self.matrix = NodeMatrix(self._ledger)
        self.matrix.refresh(now=NOW)
        self.bound_pods = BoundPodIndex()
        # The node matrix sorts nodes by name; here they are preferred in the given order.
        self.rows: IntArray = self.matrix.rows_of([node.node for node in nodes])
        self.names = [node.node for node in nodes]
        self._nodes = tuple(nodes)
        # A node without CPU and memory figures is never short of them.
        self.cpu_milli = np.array([_room(node, node.host.cpu_milli) for node in nodes], np.int64)
        self.memory_mib = np.array([_room(node, node.host.memory_mib) for node in nodes], np.int64)
        self.cpu_capacity = self.cpu_milli.copy()
        self.used_mib = 0
        self._placed = 0

    def candidates(self, pod: ReplayPod) -> IntArray:
        """Return the places, ascending, of nodes with the CPU and host memory for a pod."""
        fits = (self.cpu_milli >= pod.host.cpu_milli) & (self.memory_mib >= pod.host.memory_mib)
        return np.flatnonzero(fits)

    def feasible(
        self, pod: ReplayPod, *, strategy: Strategy
    ) -> tuple[IntArray, NDArray[np.float64] | None]:
        """Return the places, ascending, of nodes that could take the pod now, and their scores.

        The scores are by the cards that the pod would get; None for a pod without cards.
        """
        places = self.candidates(pod)
        if pod.need is None:
            return places, None
        self.matrix.refresh(now=NOW)
        found = evaluate(self.matrix, pod.need, self.rows[places], strategy=strategy)
        return places[found.fits], found.score[found.fits]

    def node_info(self, place: int) -> NodeInfo:
        """Return one node's cards with their allocations."""
        node_info = self._ledger.node(self.names[place], now=NOW)
        if node_info is None:
            raise LookupError(f"{self.names[place]} is not in the ledger; no node leaves a replay")
        return node_info

    def take(self, pod: ReplayPod, place: int, assignment: Assignment) -> None:
        """Place a pod on a node's cards, for good.

        Raises:
            ValueError: a policy chose cards, CPU or memory without enough room.
        """
        name = self.names[place]
        if self.cpu_milli[place] < pod.host.cpu_milli or (
            self.memory_mib[place] < pod.host.memory_mib
        ):
            raise ValueError(f"{name} has no CPU or memory left for {pod.name}")
        self.cpu_milli[place] -= pod.host.cpu_milli
        self.memory_mib[place] -= pod.host.memory_mib
        needs = pod.need.containers if pod.need is not None else ()
        specs = [ContainerSpec(name=container.name, kind=container.kind) for container in needs]
        self._placed += 1
        holds = allocations_by_card(assignment, specs)
        bound = PodAllocation(pod_uid=str(self._placed), node=name, by_card=holds)
        self._ledger.observe(bound)
        self.bound_pods.put(BoundPod(namespace="", name=pod.name, host=pod.host, allocation=bound))
        self.used_mib += sum(card_slice.mib for card_slice in holds.values())
        over = [uuid for uuid in holds if self.node_info(place).cards[uuid].free_mib < 0]
        if over:
            raise ValueError(f"{pod.name} was put on card {over[0]}, which has no room for it")


def _room(node: NodeCards, amount: int) -> int:
    return _PLENTY if node.host == NO_HOST_RESOURCES else amount
