"""Whether a claim may be prepared on a node: it is the pod's own, and grants no more than that.

kube-scheduler has allocated the claim, but whoever may create claims may have made it, and whoever
may write their status may have allocated it.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import chain

from fracgpu import names
from fracgpu.cards.card import FULL_CORES, Card
from fracgpu.device_claims.claim import DeviceClaim, DeviceRequest
from fracgpu.device_claims.devices import device_name
from fracgpu.request.grant_note import GrantedAmounts, granted_amounts, read_grant_note
from fracgpu.state.pod_info import PodInfo


def why_not_prepared(
    claim: DeviceClaim,
    pod: PodInfo | None,
    *,
    node: str,
    cards: Iterable[Card],
    prepared: Iterable[DeviceClaim],
) -> str:
    """Return why a claim may not be prepared, in a sentence; empty if it may.

    Args:
        claim: as the API server has it now.
        pod: the pod that it is reserved for, as the API server has it now; None if there is none.
        node: the name of this node.
        cards: of this node.
        prepared: the claims that are prepared on this node.
    """
    why = _why_not_ours(claim, node) or _why_not_of(claim, pod)
    if why or pod is None:
        return why
    here = {device_name(one.uuid): one for one in cards}
    why = _why_not_granted(claim, pod) if pod.device_claim else ""
    return why or _why_not_here(claim, here, prepared) or _why_not_lent(claim, pod, here)


def _why_not_ours(claim: DeviceClaim, node: str) -> str:
    # One that is being deleted is counted until its finalizer goes, which is after its pods.
    if not claim.devices:
        return f"claim {claim.name} has no card allocated"
    elsewhere = next((one.node for one in claim.devices if one.node != node), "")
    return f"claim {claim.name} has a card of node {elsewhere}" if elsewhere else ""


def _why_not_of(claim: DeviceClaim, pod: PodInfo | None) -> str:
    """Return why the claim is not the pod's own, and only its own."""
    if not claim.reserved_for:
        return f"claim {claim.name} is reserved for no pod"
    user = claim.reserved_for[0]
    if pod is None or pod.record.uid not in {one.uid for one in claim.reserved_for}:
        return f"pod {user.name}, which claim {claim.name} is reserved for, is gone"
    if len(claim.reserved_for) > 1:
        count = len(claim.reserved_for)
        return f"claim {claim.name} is reserved for {count} pods; a share of a card is of one pod"
    return why_not_its(claim, pod)


def why_not_its(claim: DeviceClaim, pod: PodInfo) -> str:
    """Return why a pod may not have the cards of a claim that it names; empty if it may."""
    ours = names.is_made_for_a_pod(claim.name)
    if not pod.device_claim:
        why = "has a name that only FracGPU gives, and its pod has no grant"
        if ours:
            return f"claim {claim.name} {why}"
        first = claim.user == pod.record.uid
        return "" if first else f"claim {claim.name} is reserved for another pod first"
    if claim.name != pod.device_claim:
        return f"pod {pod.record.name} was granted claim {pod.device_claim}, not {claim.name}"
    if claim.owner is None or claim.owner.uid != pod.record.uid:
        why = "someone made it under that name before; delete claim and pod"
        return f"claim {claim.name} was not made for pod {pod.record.name} by FracGPU: {why}"
    return ""


def _why_not_granted(claim: DeviceClaim, pod: PodInfo) -> str:
    """Return in what the claim differs from the grant."""
    note = read_grant_note(pod.annotations.get(names.GRANTED, ""))
    if note is None:
        return f"pod {pod.record.name} has no grant that can be read"
    granted = note.data.containers
    if {one.name for one in claim.requests} != granted.keys():
        return f"claim {claim.name} has requests for other containers than the grant"
    for request in claim.requests:
        if not _equals(request, granted[request.name]):
            amounts = granted[request.name]
            return (
                f"claim {claim.name} requests something else for container '{request.name}' than "
                f"it was granted: {amounts.mib} MiB and {amounts.cores}% of the compute on "
                f"{amounts.cards} card(s)"
            )
    counted = Counter(one.request for one in claim.devices)
    for request in claim.requests:
        if counted[request.name] != request.cards_wanted:
            return (
                f"claim {claim.name} has {counted[request.name]} card(s) for container "
                f"'{request.name}', which was granted {request.cards_wanted}"
            )
    asked = {one.name: one.amounts for one in claim.requests}
    if any(one.amounts != asked[one.request] for one in claim.devices):
        return f"claim {claim.name} was allocated other amounts than it requests"
    return ""


def _why_not_lent(claim: DeviceClaim, pod: PodInfo, cards: Mapping[str, Card]) -> str:
    """Return on which card a container may use more than it was granted."""
    granted = granted_amounts(pod.annotations.get(names.GRANTED, ""))
    for one in claim.devices:
        if one.amounts.borrow_mib:
            most_mib = granted[one.request].limit_on(cards[one.device].capacity_mib)
            if one.amounts.limit_mib > most_mib:
                return (
                    f"claim {claim.name} lets container '{one.request}' use "
                    f"{one.amounts.limit_mib} MiB, and it was granted at most {most_mib}"
                )
    return ""


def _equals(request: DeviceRequest, granted: GrantedAmounts) -> bool:
    amounts = request.amounts
    return (
        request.plain
        and amounts is not None
        and (request.cards_wanted, amounts.mib, amounts.cores, amounts.slots)
        == (granted.cards, granted.mib, granted.cores, 1)
    )


def _why_not_here(
    claim: DeviceClaim, cards: Mapping[str, Card], prepared: Iterable[DeviceClaim]
) -> str:
    """Return which card is missing, or holds too much together with what is prepared."""
    unknown = next((one.device for one in claim.devices if one.device not in cards), "")
    if unknown:
        return f"claim {claim.name} has device {unknown}, which is no card of this node now"
    pairs = [(one.request, one.device) for one in claim.devices]
    if len(set(pairs)) != len(pairs):
        return f"claim {claim.name} has one card twice for a container"
    others = (one for one in prepared if one.uid != claim.uid)
    held = Counter[tuple[str, str]]()
    for one in chain(claim.devices, *(other.devices for other in others)):
        held[one.device, "MiB"] += one.amounts.limit_mib
        held[one.device, "% of the compute"] += one.amounts.cores
        held[one.device, "slots"] += one.amounts.slots
    for device in dict.fromkeys(one.device for one in claim.devices):
        card = cards[device]
        most = {"MiB": card.capacity_mib, "% of the compute": FULL_CORES, "slots": card.slots}
        for unit, limit in most.items():
            if held[device, unit] > limit:
                return (
                    f"card {card.uuid} would hold {held[device, unit]} {unit} with claim "
                    f"{claim.name}, and has {limit}"
                )
    return ""
