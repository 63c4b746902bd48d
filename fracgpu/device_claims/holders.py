"""What pods hold by their claims, for those who list pods."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace

from fracgpu.cards.card import CardUuid, NodeCards
from fracgpu.device_claims.claim import DeviceClaim, assignment_of
from fracgpu.device_claims.devices import cards_by_device
from fracgpu.errors import WireError, counted
from fracgpu.state.allocation import Assignment
from fracgpu.state.pod_info import PodInfo


def with_claims(
    pods: Iterable[PodInfo], claims: Iterable[DeviceClaim], nodes: Iterable[NodeCards]
) -> tuple[PodInfo, ...]:
    """Return pods with what their claims were allocated as their assignment.

    A claim that users made is counted for the first pod that it is reserved for.
    """
    by_pod = defaultdict[tuple[str, str], list[DeviceClaim]](list)
    for claim in claims:
        if claim.devices:
            by_pod[claim.namespace, claim.user].append(claim)
    if not by_pod:
        return tuple(pods)
    cards = {node.node: cards_by_device(card.uuid for card in node.cards) for node in nodes}
    keys = ((pod, (pod.record.namespace, pod.record.uid)) for pod in pods)
    return tuple(_with(pod, by_pod.get(key, ()), cards) for pod, key in keys)


def _with(
    pod: PodInfo, claims: Iterable[DeviceClaim], cards: Mapping[str, Mapping[str, CardUuid]]
) -> PodInfo:
    assignment: dict[str, Assignment] = {}
    problem = move = ""
    for claim in claims:
        move = claim.move or move
        try:
            assignment[claim.name] = assignment_of(claim, cards.get(claim.node, {}))
        except WireError as error:
            problem = str(error)
    if not assignment and not problem:
        return pod
    all_of_them = {
        # Requests of users' claims are not named after containers.
        request if name == pod.device_claim else f"{name}/{request}": slices
        for name, found in assignment.items()
        for request, slices in found.items()
    }
    record = replace(pod.record, assignment=all_of_them, problem=problem, by_claim=True, move=move)
    return replace(pod, record=record)


def describe_claim(pod: PodInfo, claim: DeviceClaim | None, *, withheld: str = "") -> str:
    """Return in words how far the claim of a waiting pod has come; empty for a pod without one.

    Args:
        pod: the pod.
        claim: the claim that it names; None if there is none yet.
        withheld: why it is not made for now; empty if it is.
    """
    if not pod.device_claim:
        return ""
    if claim is None and withheld:
        return f"claim {pod.device_claim} is not made: {withheld}"
    if claim is None:
        return f"claim {pod.device_claim} is not made yet; the leading scheduler makes it"
    if claim.holder != pod.record.uid:
        return f"claim {claim.name} was made by somebody else: delete claim and pod"
    if claim.devices:
        return f"claim {claim.name} is allocated on {claim.node}"
    if claim.open and pod.pod_group:
        group = f"PodGroup {pod.pod_group}"
        return f"claim {claim.name} is open, so that kube-scheduler places all of {group} at once"
    if claim.open:
        return f"claim {claim.name} is open, because no card fitted when it was made"
    listed = counted(len(claim.cards), "card")
    return f"claim {claim.name} lists {listed}, of which kube-scheduler has taken none yet"
