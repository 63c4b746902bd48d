"""Pods whose cards are those of their claims, joined as they change.

What a pod holds is what its claim was allocated, and nothing else of it says so. The events of a
pod, its claim and its node come in any order.
"""

from collections.abc import Iterable, Mapping

from fracgpu.cards.card import CardUuid, NodeCards
from fracgpu.device_claims.claim import DeviceClaim, held_of_cards, held_together
from fracgpu.device_claims.devices import cards_by_device
from fracgpu.device_claims.holders import with_claims
from fracgpu.state.allocation import CardAllocation
from fracgpu.state.pod_info import PodInfo
from fracgpu.state.snapshot import PodAllocation
from kube.informer import Change, ChangeType


class ClaimedPods:
    """Keeps the claims that were allocated cards of ours, by the pod that uses each."""

    def __init__(self) -> None:
        self._of_pod: dict[str, dict[str, DeviceClaim]] = {}
        self._user_of: dict[str, str] = {}  # by the claim's key

    def claim_changed(self, change: Change[DeviceClaim]) -> Iterable[str]:
        """Record a claim; return the UIDs of the pods that hold something else now."""
        claim, touched = change.object, set[str]()
        before = self._user_of.pop(claim.key, None)
        if before is not None:
            self._of_pod[before].pop(claim.key)
            touched.add(before)
        if change.type is not ChangeType.DELETED and claim.devices:
            self._user_of[claim.key] = claim.user
            self._of_pod.setdefault(claim.user, {})[claim.key] = claim
            touched.add(claim.user)
        for uid in touched:
            if not self._of_pod[uid]:
                del self._of_pod[uid]
        return touched

    def on_node(self, node: str) -> Iterable[str]:
        """Return the UIDs of those who use claims with cards of a node."""
        return [
            uid
            for uid, claims in self._of_pod.items()
            if any(claim.node == node for claim in claims.values())
        ]

    def join(self, pod: PodInfo, nodes: Mapping[str, NodeCards]) -> PodInfo:
        """Return a pod with what its claims were allocated."""
        claims = tuple(self._of_pod.get(pod.record.uid, {}).values())
        if not claims:
            return pod
        here = [nodes[claim.node] for claim in claims if claim.node in nodes]
        return with_claims((pod,), claims, here)[0]

    def alone(self, uid: str, nodes: Mapping[str, NodeCards]) -> PodAllocation:
        """Return what claims hold whose pod is not there (any more), or has no node yet."""
        claims = self._of_pod.get(uid, {}).values()
        by_card: dict[CardUuid, CardAllocation] = {}
        for claim in claims:
            for card, held in held_of_cards(claim, _cards(claim, nodes)).items():
                by_card[card] = held_together(by_card[card], held) if card in by_card else held
        node = next((claim.node for claim in claims), "")
        return PodAllocation(pod_uid=uid, node=node, by_card=by_card)


def _cards(claim: DeviceClaim, nodes: Mapping[str, NodeCards]) -> Mapping[str, CardUuid]:
    node = nodes.get(claim.node)
    return cards_by_device(card.uuid for card in node.cards) if node is not None else {}
