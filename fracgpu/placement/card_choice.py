"""Which cards of one node a pod gets: what a policy prefers, if the ledger agrees."""

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
    """A policy that knows more of cards than each one's score."""

    def prefer(self, need: PodNeed, host: HostResources, node: str) -> frozenset[CardUuid] | None:
        """Name the cards to take, if the pod fits on them; None where it has nothing to say."""


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
    """Choose cards for a pod on one node.

    Args:
        node_info: the node, as the ledger has it now.
        need: what the pod asks of cards.
        host: what it asks of the node besides.
        strategy: the cluster's; the pod's own, where it names one, beats it.
        choosers: strategies that choose cards themselves.
    """
    chooser = choosers.get(need.strategy or strategy)
    preferred = None if chooser is None else chooser.prefer(need, host, node_info.node.node)
    # Whatever is preferred, the ledger as it is now has the last word: no MiB is booked twice.
    others = frozenset(node_info.cards) - (preferred or node_info.cards.keys())
    answer = place(node_info, need, strategy=strategy, exclude=others)
    if isinstance(answer, NoPlacement) and others:
        return place(node_info, need, strategy=strategy)
    return answer
