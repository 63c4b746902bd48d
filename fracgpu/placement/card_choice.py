"""Which cards of one node a pod gets: those that a policy prefers, if the pod fits on them."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Protocol

from fracgpu.cards.card import CardUuid
from fracgpu.k8s.resources import HostResources
from fracgpu.placement.outcome import NoPlacement, Placement
from fracgpu.placement.placement import place
from fracgpu.request.need import PodNeed, Strategy
from fracgpu.state.snapshot import NodeInfo


class CardChooser(Protocol):
    """A policy that chooses cards itself rather than scoring them one by one."""

    def prefer(
        self,
        need: PodNeed,
        host: HostResources,
        node: str,
        *,
        closed: Mapping[CardUuid, str],
    ) -> frozenset[CardUuid] | None:
        """Return the cards to take if the pod fits on them, or None for no preference.

        Args:
            need: what the pod requests of cards.
            host: what it requests of the node besides cards.
            node: the node.
            closed: cards that the pod does not get, each with its node.
        """


Choosers = Mapping[Strategy, CardChooser]
NO_CHOOSERS: Final[Choosers] = MappingProxyType({})


def choose_cards(
    node_info: NodeInfo,
    need: PodNeed,
    host: HostResources,
    *,
    strategy: Strategy,
    choosers: Choosers,
) -> Placement | NoPlacement:
    """Return the cards for a pod on one node, or why it does not fit.

    Args:
        node_info: the node, as the ledger has it now.
        need: what the pod requests of cards.
        host: what it requests of the node besides cards.
        strategy: the cluster's default; a pod's own strategy overrides it.
        choosers: the strategies that choose cards themselves.
    """
    chooser = choosers.get(need.strategy or strategy)
    name = node_info.node.node
    closed = {uuid: name for uuid, card_info in node_info.cards.items() if card_info.cordoned}
    preferred = None if chooser is None else chooser.prefer(need, host, name, closed=closed)
    # A preference may be older than the ledger: place checks it, so that no MiB is given twice.
    others = frozenset(node_info.cards) - (preferred or node_info.cards.keys())
    answer = place(node_info, need, strategy=strategy, exclude=others)
    if isinstance(answer, NoPlacement) and others:
        return place(node_info, need, strategy=strategy)
    return answer
