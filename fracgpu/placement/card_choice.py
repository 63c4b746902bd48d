"""Which cards of one node a pod gets: what Moves hold for it, else what a policy prefers.

Also the cards that Moves keep a pod off. Filter, bind and nominations all ask here.
"""

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Final, Protocol

from fracgpu.cards.card import CardUuid
from fracgpu.k8s.resources import HostResources, pod_requests
from fracgpu.placement.outcome import NoPlacement, Placement
from fracgpu.placement.placement import allocation_on_one_card, place
from fracgpu.request.need import PodNeed, Strategy
from fracgpu.state.card_hold import CardHold
from fracgpu.state.ledger import Ledger
from fracgpu.state.pod_info import PodInfo
from fracgpu.state.reservation import Reservation
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservedPlacement:
    """A placement on the card that *reservation* holds for the pod."""

    reservation: Reservation
    placement: Placement


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptPlacement:
    """A placement on cards that *hold* keeps for the pod."""

    hold: CardHold
    placement: Placement


def reservations_for(ledger: Ledger, pod: PodInfo, *, now: datetime) -> Sequence[Reservation]:
    """Return what is held for a pod: for its controller, and for just what it requests."""
    if pod.owner is None or pod.need is None:
        return ()
    found = ledger.reservations.for_pod(pod.owner[2], pod.record.uid, now=now)
    if not found:
        return ()
    containers = pod.need.containers
    if not containers or any(container.cards != 1 for container in containers):
        return []
    wanted = allocation_on_one_card(pod.need)
    return [one for one in found if one.allocation == wanted]


def place_reserved(
    ledger: Ledger, pod: PodInfo, *, strategy: Strategy, now: datetime, nodes: Container[str]
) -> ReservedPlacement | None:
    """Return the placement of a pod on a card that is held for it.

    None if nothing is held for it, or if no such card can take it any more.

    Args:
        ledger: who holds what, and what Moves claim.
        pod: the pod to place.
        strategy: the cluster's default.
        now: the time.
        nodes: the nodes that the pod may go to.
    """
    for reservation in reservations_for(ledger, pod, now=now):
        if reservation.node not in nodes:
            continue
        placement = _take(ledger, pod, reservation, strategy=strategy, now=now)
        if placement is not None:
            return ReservedPlacement(reservation=reservation, placement=placement)
    return None


def place_kept(
    ledger: Ledger, pod: PodInfo, *, strategy: Strategy, now: datetime, nodes: Container[str]
) -> KeptPlacement | None:
    """Return the placement of a waiting pod on the cards that Moves keep for it.

    None if none are kept, or if it does not fit on them: pods may have to leave them still.
    """
    for hold in ledger.reservations.holds_for(pod.record.uid):
        node_info = ledger.node_but(hold.node, pod.record.uid, now=now)
        if hold.node not in nodes or hold.until <= now or node_info is None or pod.need is None:
            continue
        others = frozenset(node_info.cards) - hold.cards
        opened = node_info.opened_for(pod.record.uid)
        answer = place(opened, pod.need, strategy=strategy, exclude=others)
        if isinstance(answer, Placement):
            return KeptPlacement(hold=hold, placement=answer)
    return None


def denied_cards(ledger: Ledger, pod: PodInfo, *, now: datetime) -> Mapping[CardUuid, str]:
    """Return the cards that Moves keep a pod off, and the node of each."""
    return {} if pod.owner is None else ledger.reservations.denied(pod.owner[2], now=now)


def cards_without_host(
    ledger: Ledger,
    pod: PodInfo,
    *,
    host_left: Callable[[str], HostResources | None],
    now: datetime,
) -> Mapping[CardUuid, str]:
    """Return the cards of nodes whose CPU or memory is kept for other pods, and the node of each.

    As long as pods have to leave such a node still, what gets free there is not for others.

    Args:
        ledger: what Moves keep.
        pod: the pod that asks.
        host_left: what no pod has requested of a node; None if that is not known.
        now: the time.
    """
    kept: dict[str, list[HostResources]] = {}
    for hold in ledger.holds_against(pod.record.uid, now=now):
        kept.setdefault(hold.node, []).append(hold.host)
    if not kept:
        return {}
    wanted = pod_requests(pod.record.containers)
    found: dict[CardUuid, str] = {}
    for node, hosts in kept.items():
        left, node_info = host_left(node), ledger.node(node, now=now)
        if left is None or node_info is None:
            continue
        cpu_milli = left.cpu_milli - sum(host.cpu_milli for host in hosts)
        memory_mib = left.memory_mib - sum(host.memory_mib for host in hosts)
        if wanted.cpu_milli > max(cpu_milli, 0) or wanted.memory_mib > max(memory_mib, 0):
            found |= dict.fromkeys(node_info.cards, node)
    return found


def _take(
    ledger: Ledger, pod: PodInfo, reservation: Reservation, *, strategy: Strategy, now: datetime
) -> Placement | None:
    node_info = ledger.node_but(reservation.node, pod.record.uid, now=now)
    if node_info is None or pod.need is None:
        return None
    opened = node_info.without_reservation(reservation)
    others = frozenset(opened.cards) - {reservation.card}
    answer = place(opened, pod.need, strategy=strategy, exclude=others)
    return answer if isinstance(answer, Placement) else None
