"""The card that a Move has reserved for a pod, and the cards that Moves keep the pod off."""

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from fracgpu.cards.card import CardUuid
from fracgpu.k8s.resources import HostResources, pod_requests
from fracgpu.placement.outcome import Placement
from fracgpu.placement.placement import allocation_on_one_card, place
from fracgpu.request.need import Strategy
from fracgpu.state.card_hold import CardHold
from fracgpu.state.ledger import Ledger
from fracgpu.state.pod_info import PodInfo
from fracgpu.state.reservation import Reservation


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
