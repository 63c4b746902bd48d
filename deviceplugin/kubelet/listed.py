"""Whose slots these are where the runtime does not say: the one container that kubelet lists."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from deviceplugin.claims import (
    Claim,
    NodeClaims,
    Rejected,
    RejectReason,
    SlotHolder,
    claim_of,
    id_list,
    wanted_slots,
)
from fracgpu.k8s.container import ContainerKind
from fracgpu.state.pod_info import PodInfo

_CURE: Final = (
    "the container runtime could say which container starts: enable NRI in it "
    "(docs/install.md#the-container-runtime)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedClaim:
    """A claim by kubelet's list, which the hook in the CDI spec verifies.

    Attributes:
        containers: the names that the starting container of this pod may have: that in the list,
            and those of its init containers that pass on the slots and have the same cards.
    """

    claim: Claim
    containers: tuple[str, ...]


def listed_claim(
    slot_ids: frozenset[str], holders: Sequence[SlotHolder], node_claims: NodeClaims
) -> ListedClaim | Rejected:
    """Return the claim of the only container that can start with *slot_ids*, or why there is none.

    Kubelet never lists plain init containers. One of the same pod may start with the ids of the
    listed container, which it passes on. That one of another pod has been given them as well
    (kubernetes PR 137534) is not known here: the hook refuses it.

    Args:
        slot_ids: what the start names: all slots of its container.
        holders: kubelet's list.
        node_claims: what is known of the node.
    """
    ids = id_list(slot_ids)
    by_key = {(pod.record.namespace, pod.record.name): pod for pod in node_claims.pods.values()}
    found = [
        holder
        for holder in holders
        # Kubelets without kubernetes PR 132028 still list pods that have ended.
        if holder.slot_ids & slot_ids and _may_live(by_key.get(holder.key))
    ]
    if not found:
        text = f"kubelet lists no container with {ids}, and never lists init containers; {_CURE}"
        return Rejected(reason=RejectReason.NOBODY, text=text)
    (holder, *others) = found
    if others or holder.slot_ids != slot_ids:
        listed = [f"{'/'.join(each.key)}/{each.container}" for each in found]
        text = f"{ids} may be those of {' and '.join(sorted(listed))}; {_CURE}"
        return Rejected(reason=RejectReason.SEVERAL, text=text)
    pod = by_key.get(holder.key)
    if pod is None:
        text = f"the agent does not know pod {'/'.join(holder.key)} yet, which has {ids}"
        return Rejected(reason=RejectReason.UNKNOWN_POD, text=text)
    claim = claim_of(holder.container, pod, node_claims)
    if isinstance(claim, Rejected):
        return claim
    if len(claim.slices) != len(slot_ids):
        text = f"{holder.container} of {pod.record.key} has {len(claim.slices)} cards and not {ids}"
        return Rejected(reason=RejectReason.WRONG_COUNT, text=text)
    inits = [
        spec.name
        for spec in pod.record.containers
        if spec.kind is ContainerKind.INIT and wanted_slots(spec) == len(slot_ids)
    ]
    assignment = pod.record.assignment or {}
    if any(set(assignment.get(name, ())) != set(claim.slices) for name in inits):
        names = " or ".join((*inits, holder.container))
        text = f"{ids} may start {names} of {pod.record.key}, which have other cards; {_CURE}"
        return Rejected(reason=RejectReason.SEVERAL, text=text)
    return ListedClaim(claim=claim, containers=(holder.container, *inits))


def _may_live(pod: PodInfo | None) -> bool:
    """Report whether a pod that kubelet lists may start; one that is not known may."""
    return pod is None or pod.record.live
