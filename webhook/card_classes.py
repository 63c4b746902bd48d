"""The cluster's card classes, kept current by watching nodes and pods."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from typing import Any, Final

from fracgpu.cards.card import NodeCards
from fracgpu.cards.card_class import CardClass, CardClassCounts, SelectedNodes
from fracgpu.cards.node_labels import cards_from_labels
from fracgpu.cards.pool_catalogue import NO_CATALOGUE, PoolCatalogue, supposed_cards
from fracgpu.k8s.node_affinity import NodeRules
from fracgpu.k8s.pod import LIVE_PODS
from fracgpu.state.bound_pod import decode_bound_pod
from fracgpu.state.ledger import Ledger
from fracgpu.state.node_info import read_node
from fracgpu.state.snapshot import PodAllocation
from fracgpu.units import Mib
from kube.client import KubeClient
from kube.informer import Change, ChangeType, Informer
from kube.kinds import NODES, PODS
from process.clock import Clock, wait_at_most

# The age at which what pods changed is counted. Free shares only rank the classes.
_FREE_AGE_S: Final = 1.0
_NODES_AT_ONCE: Final = 16  # counted without a turn for reviews; some 2 ms


class CardClassIndex:
    """Watches nodes and pods, and lists the card classes with their free share.

    Free is capacity minus what live pods hold. The webhook makes no assumptions: between an
    admission and its Binding a class looks freer than it is. That can affect which class is
    chosen, but never allocates memory twice.

    Nodes are counted by a task, a few at a time, so that no review waits for it.
    """

    def __init__(
        self,
        client: KubeClient,
        clock: Clock,
        *,
        label_reserved_mib: Callable[[], Mib] = lambda: Mib(0),
        pools: Callable[[], PoolCatalogue] = lambda: NO_CATALOGUE,
        on_counted: Callable[[], None] = lambda: None,
    ) -> None:
        self._clock = clock
        self._label_reserved_mib = label_reserved_mib
        self._pools = pools
        self._on_counted = on_counted
        self._ledger = Ledger()
        self._counts = CardClassCounts()
        self._nodes_known: set[str] = set()
        self._outdated: set[str] = set()
        self._node_changed = asyncio.Event()
        self._classes: tuple[CardClass, ...] | None = None
        self._nodes = Informer(client, NODES, decode=read_node, on_change=self._on_node)
        self._pods = Informer(
            client,
            PODS,
            decode=_allocation,
            # None of the others holds a card, and a new pod costs the API server no event for us.
            field_selector=f"{LIVE_PODS},spec.nodeName!=",
            on_change=self._on_pod,
        )

    @property
    def tasks(self) -> Mapping[str, Callable[[], Coroutine[Any, Any, None]]]:
        """The loops that keep the classes current."""
        return {
            "follow_nodes": self._nodes.run,
            "follow_pods": self._pods.run,
            "count_cards": self._count,
        }

    @property
    def age_s(self) -> float:
        """Seconds since the API server was last heard about nodes or pods, whichever is longer."""
        return max(self._nodes.last_contact_age_s, self._pods.last_contact_age_s)

    def problem(self) -> str | None:
        """Return why the classes are not known yet, or None; a later outage changes nothing."""
        uncounted = "the cards are not counted yet" if self._classes is None else None
        return self._nodes.problem or self._pods.problem or uncounted

    def classes(self) -> tuple[CardClass, ...] | None:
        """Return the card classes, largest free share first; None until they are counted.

        Changes of nodes are counted as they come, changes of pods within a second.
        """
        return self._classes

    def select(self, rules: NodeRules) -> SelectedNodes:
        """Return the nodes that a pod's selectors allow, with the classes of their cards."""
        return self._counts.select(rules)

    def declared(self, rules: NodeRules) -> tuple[CardClass, ...]:
        """Return the classes of the pool catalogue that a pod's selectors allow."""
        catalogue = self._pools()
        return catalogue.declared(rules, self._counts.smallest_by_name()) if catalogue else ()

    def smallest_by_model(self) -> Mapping[str, Mib] | None:
        """Return the smallest shareable MiB measured of each model; None until it is known."""
        return None if self._classes is None else self._counts.smallest_by_model()

    def refresh(self) -> None:
        """Count all nodes again: the pool catalogue, or what is reserved on cards, has changed."""
        self._outdated |= self._nodes_known
        self._node_changed.set()

    async def _count(self) -> None:
        """Count what changes, until cancelled."""
        await self._nodes.wait_synced()
        await self._pods.wait_synced()
        while True:
            self._node_changed.clear()
            await self._count_changed()
            await wait_at_most(self._clock, self._node_changed, limit_s=_FREE_AGE_S)

    async def _count_changed(self) -> None:
        changed = self._outdated | self._ledger.take_changed(now=self._clock.now())
        self._outdated = set()
        for at, name in enumerate(changed):
            if at % _NODES_AT_ONCE == _NODES_AT_ONCE - 1:
                await asyncio.sleep(0)
            self._count_node(name)
        if changed or self._classes is None:
            self._classes = self._counts.classes()
            self._on_counted()

    def _count_node(self, name: str) -> None:
        node_info = self._ledger.node(name, now=self._clock.now())
        if node_info is None:
            self._counts.remove(name)
            return
        node = node_info.node
        class_name = self._pools().class_of_node(node.labels, node.cards)
        if node.cards:
            free_mib = {uuid: card.free_mib for uuid, card in node_info.cards.items()}
            self._counts.put(node, free_mib=free_mib, name=class_name)
        else:
            self._counts.suppose(self._supposed(node, class_name), name=class_name)

    def _supposed(self, node: NodeCards, class_name: str) -> NodeCards:
        pool_class = self._pools().by_name.get(class_name)
        if pool_class is not None:
            return replace(node, cards=supposed_cards(pool_class, node.node, node.labels))
        cards = cards_from_labels(node.node, node.labels, reserved_mib=self._label_reserved_mib())
        return replace(node, cards=cards)

    def _on_node(self, change: Change[NodeCards]) -> None:
        name, node = change.key.name, change.object
        if change.type is ChangeType.DELETED:
            self._nodes_known.discard(name)
            self._ledger.remove_node(name)
        else:
            self._nodes_known.add(name)
            self._ledger.set_node(node)
        self._node_changed.set()

    def _on_pod(self, change: Change[PodAllocation | None]) -> None:
        if change.type is ChangeType.DELETED or change.object is None:
            self._ledger.remove_pod(change.uid)
        else:
            self._ledger.observe(change.object)


def _allocation(body: bytes) -> PodAllocation | None:
    """Return what a pod holds, or None for one without a node.

    Raises:
        WireError: *body* is not a pod.
    """
    bound = decode_bound_pod(body)
    return None if bound is None else bound.allocation
