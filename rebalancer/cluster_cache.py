"""Pods and nodes, kept current by informers, and the ledger of who holds what."""

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Any

from fracgpu.cards.card import CardUuid, NodeCards
from fracgpu.k8s.node_affinity import Taint, taints_of
from fracgpu.k8s.scheduling.constraints import scheduling_constraints_of
from fracgpu.state.cluster_state import PlacedPod
from fracgpu.state.ledger import Ledger
from fracgpu.state.node_info import read_node
from fracgpu.state.pod_info import decode_pod_info
from fracgpu.state.snapshot import Snapshot
from kube.client import KubeClient
from kube.informer import Change, ChangeType, Informer
from kube.kinds import NODES, PODS


@dataclass(frozen=True, slots=True, kw_only=True)
class _Node:
    cards: NodeCards
    taints: tuple[Taint, ...]


class ClusterCache:
    """The cluster state as of the last watch events."""

    def __init__(self, client: KubeClient) -> None:
        self._ledger = Ledger()
        self._placed_pods: dict[str, PlacedPod] = {}
        self._nodes: dict[str, _Node] = {}
        self._pod_informer = Informer(client, PODS, decode=_read_placed_pod, on_change=self._pod)
        self._node_informer = Informer(client, NODES, decode=_read_node, on_change=self._node)

    def tasks(self) -> Mapping[str, Callable[[], Coroutine[Any, Any, None]]]:
        """Return the loops that keep the cache current."""
        return {"pods": self._pod_informer.run, "nodes": self._node_informer.run}

    async def wait_synced(self) -> None:
        """Wait until pods and nodes have been listed once."""
        await self._pod_informer.wait_synced()
        await self._node_informer.wait_synced()

    @property
    def synced(self) -> bool:
        return self._pod_informer.synced and self._node_informer.synced

    @property
    def nodes(self) -> Mapping[str, NodeCards]:
        return {name: node.cards for name, node in self._nodes.items()}

    @property
    def taints(self) -> Mapping[str, tuple[Taint, ...]]:
        return {name: node.taints for name, node in self._nodes.items()}

    @property
    def placed_pods(self) -> Mapping[str, PlacedPod]:
        """Live pods that hold or ask for a share of a card, by UID."""
        return MappingProxyType(dict(self._placed_pods))

    def cards(self) -> dict[CardUuid, str]:
        """Return the node's name of each card of the shared nodes."""
        return {
            card.uuid: name
            for name, node in self._nodes.items()
            if node.cards.shared
            for card in node.cards.cards
        }

    def snapshot(self, *, now: datetime) -> Snapshot:
        return self._ledger.snapshot(now=now)

    def _pod(self, change: Change[PlacedPod]) -> None:
        record = change.object.info.record
        if change.type is ChangeType.DELETED:
            self._ledger.remove_pod(change.uid)
            self._placed_pods.pop(change.uid, None)
            return
        self._ledger.set_pod(record)
        view = change.object.info
        concerned = (
            view.need is not None or view.need_problem or record.assignment or record.problem
        )
        if record.live and concerned:
            self._placed_pods[change.uid] = change.object
        else:
            self._placed_pods.pop(change.uid, None)

    def _node(self, change: Change[_Node]) -> None:
        name = change.key.name
        if change.type is ChangeType.DELETED:
            self._ledger.remove_node(name)
            self._nodes.pop(name, None)
            return
        self._ledger.set_node(change.object.cards)
        self._nodes[name] = change.object


def _read_placed_pod(body: bytes) -> PlacedPod:
    return PlacedPod(
        info=decode_pod_info(body), scheduling_constraints=scheduling_constraints_of(body)
    )


def _read_node(body: bytes) -> _Node:
    return _Node(cards=read_node(body), taints=taints_of(body))
