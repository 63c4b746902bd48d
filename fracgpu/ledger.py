"""Who holds what, over time: a fold over observed pods and nodes plus what we assumed ourselves."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType

from fracgpu.allocation import Allocation, Assignment, Phase, PodRecord, holds_by_card
from fracgpu.card import CardUuid, NodeCards
from fracgpu.snapshot import NodeLoads, PodHolds, Snapshot, node_loads
from fracgpu.units import Mib


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumption:
    """A placement whose Binding is under way; it lapses if no observation ever confirms it."""

    allocation: Allocation
    until: datetime


class Ledger:
    """The book of holds. It is told every fact and asked for pictures; it does nothing by itself.

    An observation of a pod always wins over an assumption about it, and a pod holds its cards until
    it is terminal or gone, not until its deletion timestamp.
    """

    def __init__(self) -> None:
        self._nodes: dict[str, NodeCards] = {}
        self._observed: dict[str, PodHolds] = {}
        self._assumed: dict[str, Assumption] = {}
        self._on_node: dict[str, set[str]] = {}

    def set_node(self, node: NodeCards) -> None:
        self._nodes[node.node] = node

    def remove_node(self, name: str) -> None:
        self._nodes.pop(name, None)

    def set_pod(self, pod: PodRecord) -> None:
        """Observe a pod as the API server shows it now."""
        self._unobserve(pod.uid)
        if pod.node:
            self.forget(pod.uid)
        if not (pod.live and pod.node and pod.assignment):
            return
        holds = holds_by_card(pod.assignment, pod.containers)
        self._observed[pod.uid] = PodHolds(pod_uid=pod.uid, node=pod.node, holds=holds)
        self._on_node.setdefault(pod.node, set()).add(pod.uid)

    def remove_pod(self, uid: str) -> None:
        """Observe that a pod is gone."""
        self._unobserve(uid)
        self.forget(uid)

    def assume(
        self, pod: PodRecord, *, node: str, assignment: Assignment, until: datetime
    ) -> Assumption:
        """Count a placement before its Binding is confirmed.

        A pod that was observed bound already is not counted a second time.
        """
        holds = holds_by_card(assignment, pod.containers)
        assumption = Assumption(
            allocation=Allocation(pod_uid=pod.uid, node=node, phase=Phase.ASSUMED, holds=holds),
            until=until,
        )
        if pod.uid not in self._observed:
            self._assumed[pod.uid] = assumption
        return assumption

    def forget(self, uid: str) -> None:
        """Drop an assumption: its Binding failed, or an observation took its place."""
        self._assumed.pop(uid, None)

    def lapse(self, *, now: datetime) -> tuple[str, ...]:
        """Drop assumptions that nothing ever confirmed, and name their pods."""
        lapsed = tuple(uid for uid, it in self._assumed.items() if it.until <= now)
        for uid in lapsed:
            self.forget(uid)
        return lapsed

    @property
    def assumed(self) -> Mapping[str, Assumption]:
        """Assumptions by pod UID, read only."""
        return MappingProxyType(self._assumed)

    def node(self, name: str, *, now: datetime) -> NodeLoads | None:
        """Picture one node, without copying the rest of the cluster."""
        node = self._nodes.get(name)
        if node is None:
            return None
        pods = [self._observed[uid] for uid in sorted(self._on_node.get(name, ()))]
        pods += [
            PodHolds(pod_uid=uid, node=name, holds=it.allocation.holds)
            for uid, it in sorted(self._assumed.items())
            if it.allocation.node == name and it.until > now
        ]
        return node_loads(node, pods, cordoned=node.cordoned(now=now))

    def snapshot(self, *, now: datetime) -> Snapshot:
        """Picture everything, assumptions that have not lapsed included."""
        nodes = {}
        for name in sorted(self._nodes):
            loads = self.node(name, now=now)
            assert loads is not None, "the node was listed a line above"
            nodes[name] = loads
        pods = dict(self._observed)
        for uid, it in self._assumed.items():
            if it.until > now:
                allocation = it.allocation
                pods[uid] = PodHolds(pod_uid=uid, node=allocation.node, holds=allocation.holds)
        return Snapshot(nodes=MappingProxyType(nodes), pods=MappingProxyType(pods))

    def free_mib(self, *, now: datetime) -> dict[CardUuid, Mib]:
        """Free MiB by card of every known node."""
        return {
            uuid: load.free_mib
            for loads in self.snapshot(now=now).nodes.values()
            for uuid, load in loads.cards.items()
        }

    def _unobserve(self, uid: str) -> None:
        holds = self._observed.pop(uid, None)
        if holds is not None:
            on_node = self._on_node[holds.node]
            on_node.discard(uid)
            if not on_node:
                del self._on_node[holds.node]
