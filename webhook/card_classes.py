"""The cluster's card classes, kept current by watching nodes and pods."""

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from typing import Any, Final

from fracgpu.cards.card import NodeCards
from fracgpu.cards.card_class import CardClass, card_classes
from fracgpu.cards.node_labels import cards_from_labels
from fracgpu.state.allocation import PodRecord
from fracgpu.state.ledger import Ledger
from fracgpu.state.node_info import read_node
from fracgpu.state.pod_info import decode_pod_info
from fracgpu.units import Mib
from kube.client import KubeClient
from kube.informer import Change, ChangeType, Informer
from kube.kinds import NODES, PODS
from process.clock import Clock

# The age at which free shares are counted again. They only rank the classes, and counting takes
# milliseconds in a large cluster, too long to repeat for every admission.
_FREE_AGE_S: Final = 1.0


class CardClassIndex:
    """Watches nodes and pods, and lists the card classes with their free share.

    Free is capacity minus what live pods hold. The webhook makes no assumptions: between an
    admission and its Binding a class looks freer than it is. That can affect which class is
    chosen, but never allocates memory twice.
    """

    def __init__(
        self,
        client: KubeClient,
        clock: Clock,
        *,
        label_reserved_mib: Callable[[], Mib] = lambda: Mib(0),
    ) -> None:
        self._clock = clock
        self._label_reserved_mib = label_reserved_mib
        self._ledger = Ledger()
        self._cards: dict[str, NodeCards] = {}
        self._unreported: dict[str, NodeCards] = {}
        self._classes: tuple[CardClass, ...] | None = None
        self._free_changed = False
        self._counted_at_s = 0.0
        self._nodes = Informer(client, NODES, decode=read_node, on_change=self._on_node)
        self._pods = Informer(client, PODS, decode=_record, on_change=self._on_pod)

    @property
    def tasks(self) -> Mapping[str, Callable[[], Coroutine[Any, Any, None]]]:
        """The loops that keep the classes current."""
        return {"follow_nodes": self._nodes.run, "follow_pods": self._pods.run}

    @property
    def age_s(self) -> float:
        """Seconds since the API server was last heard about nodes or pods, whichever is longer."""
        return max(self._nodes.last_contact_age_s, self._pods.last_contact_age_s)

    def problem(self) -> str | None:
        """Return why nodes and pods are not listed yet, or None; a later outage changes nothing."""
        waiting = [
            informer_name
            for informer_name, informer in (("nodes", self._nodes), ("pods", self._pods))
            if not informer.synced
        ]
        if not waiting:
            return None
        return f"the API server has not listed {' and '.join(waiting)} yet"

    def classes(self) -> tuple[CardClass, ...] | None:
        """Return the card classes, largest free share first; None until nodes and pods are listed.

        Changes of nodes count at once, changes of pods within a second.
        """
        if self._classes is not None and not self._free_changed:
            return self._classes  # once nodes and pods are listed, they stay so
        if self.problem() is not None:
            return None
        now_s = self._clock.monotonic()
        aged = self._free_changed and now_s - self._counted_at_s >= _FREE_AGE_S
        if self._classes is None or aged:
            self._free_changed, self._counted_at_s = False, now_s
            free_mib = self._ledger.free_mib(now=self._clock.now())
            self._classes = card_classes(
                self._cards.values(), free_mib=free_mib, supposed=self._supposed()
            )
        return self._classes

    def refresh(self) -> None:
        """Recompute the classes: the memory reserved on cards known only from labels changed."""
        self._classes = None

    def _supposed(self) -> tuple[NodeCards, ...]:
        reserved_mib = self._label_reserved_mib()
        return tuple(
            replace(
                node, cards=cards_from_labels(node.node, node.labels, reserved_mib=reserved_mib)
            )
            for node in self._unreported.values()
        )

    def _on_node(self, change: Change[NodeCards]) -> None:
        self._classes = None
        name, node = change.key.name, change.object
        self._cards.pop(name, None)
        self._unreported.pop(name, None)
        if change.type is ChangeType.DELETED:
            self._ledger.remove_node(name)
            return
        (self._cards if node.cards else self._unreported)[name] = node
        self._ledger.set_node(node)

    def _on_pod(self, change: Change[PodRecord]) -> None:
        self._free_changed = True
        if change.type is ChangeType.DELETED:
            self._ledger.remove_pod(change.uid)
        else:
            self._ledger.set_pod(change.object)


def _record(body: bytes) -> PodRecord:
    return decode_pod_info(body).record
