"""Which cards of one node a pod gets: those that a policy prefers, if the pod fits on them."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Final, Protocol

from fracgpu.cards.card import CardUuid
from fracgpu.k8s.resources import HostResources, pod_requests
from fracgpu.placement.outcome import NoPlacement, Placement
from fracgpu.placement.placement import place
from fracgpu.placement.reserved import denied_cards, place_kept, place_reserved
from fracgpu.request.need import PodNeed, Strategy
from fracgpu.state.ledger import Ledger
from fracgpu.state.pod_info import PodInfo
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


@dataclass(frozen=True, slots=True, kw_only=True)
class CardsOnNode:
    """The cards that a pod gets on a node.

    Attributes:
        placement: the cards.
        held: a Move holds them for the pod.
        move: the Move whose reservation the pod consumes; empty if it consumes none.
    """

    placement: Placement
    held: bool = False
    move: str = ""


def cards_on_node(
    ledger: Ledger,
    pod: PodInfo,
    node: str,
    *,
    strategy: Strategy,
    choosers: Choosers,
    now: datetime,
) -> CardsOnNode | NoPlacement | None:
    """Return the cards for a pod on one node of the ledger, or why it does not fit.

    What is assumed for the pod itself does not count against it. None if the pod requests no card,
    or the node is not known.

    Args:
        ledger: who holds what, and what Moves claim.
        pod: the pod to place.
        node: the name of the node.
        strategy: the cluster's default.
        choosers: the strategies that choose cards themselves.
        now: the time.
    """
    node_info = ledger.node_but(node, pod.record.uid, now=now)
    if pod.need is None or node_info is None:
        return None
    reserved = place_reserved(ledger, pod, strategy=strategy, now=now, nodes=(node,))
    if reserved is not None:
        return CardsOnNode(placement=reserved.placement, held=True, move=reserved.reservation.move)
    kept = place_kept(ledger, pod, strategy=strategy, now=now, nodes=(node,))
    if kept is not None:
        return CardsOnNode(placement=kept.placement, held=True)
    answer = choose_cards(
        node_info.with_cordoned(denied_cards(ledger, pod, now=now)),
        pod.need,
        pod_requests(pod.record.containers),
        strategy=strategy,
        choosers=choosers,
    )
    return answer if isinstance(answer, NoPlacement) else CardsOnNode(placement=answer)
