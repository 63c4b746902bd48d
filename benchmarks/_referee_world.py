"""The placement referee's cluster and pods, told to the extender as by the API server."""

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from fracgpu import names
from fracgpu.cards.card import Card, CardUuid, NodeCards
from fracgpu.k8s.resources import Host, requested
from fracgpu.placement.node_matrix import WHOLE_CARD_MILLI
from fracgpu.placement.outcome import Placement
from fracgpu.request.need import Strategy
from fracgpu.state.pod_info import PodView, read_pod
from fracgpu.units import Mib
from kube.informer import Change, ChangeType
from kube.objects import ObjectKey
from process.clock import SystemClock
from scheduler.cache.event_handlers import AnyPod, decode_any_pod
from scheduler.core import Core

# The referee counts in thousandths of a card; each stands for so many MiB, so none is rounded.
_MIB_PER_MILLI: Final = 80
_CONTAINER: Final = "main"
_MOST_PODS: Final = 1_000  # of a node; the referee knows no such limit


class Pod(Protocol):
    """The referee's pod: CPU in thousandths, memory in MiB, thousandths of each card."""

    @property
    def cpu(self) -> int: ...
    @property
    def mem(self) -> int: ...
    @property
    def cards(self) -> int: ...
    @property
    def milli(self) -> int: ...
    @property
    def models(self) -> frozenset[str] | None: ...


class Cluster(Protocol):
    """The referee's cluster: arrays over nodes, and a log of nodes that changed."""

    n: int
    model: NDArray[np.int64]
    model_names: list[str]
    cards: NDArray[np.int64]
    cpu_free: NDArray[np.int64]
    mem_free: NDArray[np.int64]
    card_free: NDArray[np.int64]
    touched: list[int]


def pod_body(pod: Pod, name: str, *, node: str = "", cards: Iterable[str] = ()) -> bytes:
    """Write a pod as it is after admission; with a node and cards, as it is once bound."""
    mib = pod.milli * _MIB_PER_MILLI
    limits: dict[str, str] = {}
    notes: dict[str, str] = {}
    if pod.cards:
        limits = {names.GPU_MEM: str(mib * pod.cards), names.GPU_SLOT: str(pod.cards)}
        notes = {names.MEMORY: f"{mib}Mi", names.CARDS: str(pod.cards)}
        if pod.models:
            notes[names.MODEL] = ",".join(sorted(pod.models))
        if node:
            slices = [{"card": card, "mib": mib} for card in cards]
            notes[names.ASSIGNMENT] = json.dumps({_CONTAINER: slices})
    amounts = {"cpu": f"{pod.cpu}m", "memory": f"{pod.mem}Mi"}
    container = {"name": _CONTAINER, "resources": {"limits": limits, "requests": amounts | limits}}
    spec: dict[str, Any] = {"containers": [container]}
    if node:
        spec["nodeName"] = node
    meta = {"name": name, "namespace": "default", "uid": name, "annotations": notes}
    return json.dumps({"metadata": meta, "spec": spec}).encode()


class RefereeWorld:
    """The extender's deciding part over the referee's cluster."""

    def __init__(self, cluster: Cluster) -> None:
        # In the referee's order, so that the node it knows first wins among equals, here as there.
        self.names = [f"n{number:06}" for number in range(cluster.n)]
        self.numbers = {name: number for number, name in enumerate(self.names)}
        self.core = Core(strategy=lambda: Strategy.LEAST_WASTE, clock=SystemClock())
        self._clock = SystemClock()
        self._cluster = cluster
        self._read = len(cluster.touched)
        self._asked = 0
        self._tell(range(cluster.n))

    def remember(self, history: Iterable[Pod]) -> None:
        """Let pods of the past run while the mix is learnt, and then go."""
        bodies = [
            pod_body(pod, f"past-{number}", node=self.names[node], cards=self._uuids(node, pod))
            for number, pod in enumerate(history)
            if (node := self._any_node(pod)) is not None
        ]
        changes = list(_changes(bodies, decode_any_pod))
        for change in changes:
            self.core.book.pod_changed(change(ChangeType.ADDED))
        self.core.waste.learn_now()
        for change in changes:
            self.core.book.pod_changed(change(ChangeType.DELETED))

    def read(self, pod: Pod) -> PodView:
        """Take news from the cluster, and read a pod that waits."""
        self._tell(sorted(set(self._cluster.touched[self._read :])))
        self._read = len(self._cluster.touched)
        self._asked += 1
        return read_pod(pod_body(pod, f"pod-{self._asked}"))

    def best_node(self, view: PodView, nodes: NDArray[np.int64]) -> int | None:
        """Return the extender's best node; a pod that asks nothing of it goes by its policy."""
        if not len(nodes):
            return None
        if view.need is not None:
            best = self.core.best_node(view, [self.names[node] for node in nodes.tolist()])
            return None if best is None else self.numbers[best]
        self.core.board.refresh(now=self._clock.now())
        rows = self.core.board.rows_of([self.names[node] for node in nodes.tolist()])
        quality = self.core.waste.quality(None, requested(view.record.containers), rows)
        return int(nodes[0 if quality is None else quality.argmax()])

    def cards_on(self, view: PodView, node: int) -> tuple[int, ...]:
        """Return the cards that a Binding to a node would name, by their numbers on it."""
        answer = self.core.cards_on(view, self.names[node])
        if not isinstance(answer, Placement):
            return ()  # right for a pod without cards; any other one the referee refuses
        slices = answer.assignment[_CONTAINER]
        return tuple(sorted(int(it.card.rpartition("/")[2]) for it in slices))

    def _any_node(self, pod: Pod) -> int | None:
        """Find a node that a pod of the past may have been on."""
        cluster = self._cluster
        fits = cluster.cards >= pod.cards
        if pod.cards and pod.models is not None:
            fits &= np.array([it in pod.models for it in cluster.model_names])[cluster.model]
        return int(fits.argmax()) if fits.any() else None

    def _uuids(self, node: int, pod: Pod) -> list[str]:
        return [f"{self.names[node]}/{card}" for card in range(pod.cards)]

    def _tell(self, nodes: Iterable[int]) -> None:
        """Tell the books what is left of nodes, whoever took the rest."""
        cluster = self._cluster
        for number in nodes:
            name = self.names[number]
            free = cluster.card_free[number, : cluster.cards[number]].tolist()
            cards = tuple(
                Card(
                    uuid=CardUuid(f"{name}/{index}"),
                    index=index,
                    model=cluster.model_names[cluster.model[number]],
                    total_mib=Mib(WHOLE_CARD_MILLI * _MIB_PER_MILLI),
                )
                for index in range(len(free))
            )
            taken = {
                card.uuid: Mib((WHOLE_CARD_MILLI - milli) * _MIB_PER_MILLI)
                for card, milli in zip(cards, free, strict=True)
                if milli < WHOLE_CARD_MILLI
            }
            host = Host(
                cpu_milli=int(cluster.cpu_free[number]),
                memory_mib=int(cluster.mem_free[number]),
                pods=_MOST_PODS,
            )
            self.core.ledger.set_node(NodeCards(node=name, cards=cards, foreign=taken, host=host))


def _changes(
    bodies: Iterable[bytes], decode: Callable[[bytes], AnyPod]
) -> Iterator[Callable[[ChangeType], Change[AnyPod]]]:
    """Make of each pod what an informer says of it."""
    for body in bodies:
        pod = decode(body)
        name = read_pod(body).record.name

        def change(type_: ChangeType, pod: AnyPod = pod, name: str = name) -> Change[AnyPod]:
            key = ObjectKey("default", name)
            return Change(type=type_, key=key, uid=name, resource_version="1", object=pod)

        yield change
