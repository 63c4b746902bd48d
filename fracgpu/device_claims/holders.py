"""Whose a claim is, and so what pods hold by their claims.

A claim that FracGPU made is that of the pod that controls it; one that users made, that of the
first pod that it is reserved for. A claim can say so of a pod that it is not of: then it counts by
itself, so that nothing that kube-scheduler has allocated is left out, whoever made the claim.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import cache
from operator import attrgetter

from fracgpu.cards.card import CardUuid, NodeCards
from fracgpu.device_claims.claim import (
    DeviceClaim,
    assignment_of,
    held_of_cards,
    held_together,
)
from fracgpu.device_claims.devices import cards_by_device
from fracgpu.errors import WireError, counted
from fracgpu.state.allocation import Assignment, CardAllocation
from fracgpu.state.ledger import discard
from fracgpu.state.pod_info import PodInfo
from fracgpu.state.snapshot import PodAllocation

CardsOf = Callable[[str], Mapping[str, CardUuid]]
"""Returns the cards of a node, by the names of their devices."""


class ClaimHolders:
    """The claims that were allocated cards of ours, by the UID under which each counts.

    That of its pod, or its own, where the pod is of another namespace, or has cards of another node
    already. Pods, claims and nodes may be observed in any order.

    Args:
        namespace_of: returns the namespace of the pod with a UID; None for one that is not known.
        user_of: returns the UID of the pod that a claim says it is of, or the claim's own.
    """

    def __init__(
        self,
        namespace_of: Callable[[str], str | None],
        user_of: Callable[[DeviceClaim], str] = attrgetter("user"),
    ) -> None:
        self._namespace_of = namespace_of
        self._user_of = user_of
        self._by_user: dict[str, dict[str, DeviceClaim]] = {}  # then by the claim's key
        self._observed: dict[str, tuple[DeviceClaim, str]] = {}  # with the user, by key
        self._users: dict[str, str] = {}  # by the claim's UID
        self._on_node: dict[str, set[str]] = {}  # users

    def observe(self, claim: DeviceClaim, *, gone: bool = False) -> AbstractSet[str]:
        """Record a claim; return the UIDs under which claims count now, or did before."""
        touched: set[str] = set()
        before = self._observed.pop(claim.key, None)
        if before is not None:
            touched.update(self._divided(before[1]))
            self._remove(*before)
            touched.update(self._divided(before[1]))
        if not gone and claim.devices:
            user = self._user_of(claim)
            self._observed[claim.key] = claim, user
            self._users[claim.uid] = user
            self._by_user.setdefault(user, {})[claim.key] = claim
            self._on_node.setdefault(claim.node, set()).add(user)
            touched.update(self._divided(user))
        return touched

    def _remove(self, claim: DeviceClaim, user: str) -> None:
        self._users.pop(claim.uid, None)
        del self._by_user[user][claim.key]
        if all(other.node != claim.node for other in self._by_user[user].values()):
            discard(self._on_node, claim.node, user)
        if not self._by_user[user]:
            del self._by_user[user]

    def touched(self, user: str) -> frozenset[str]:
        """Return the UIDs under which claims may count that say they are of a pod."""
        claims = self._by_user.get(user, {}).values()
        return frozenset((user, *(claim.uid for claim in claims))) if claims else frozenset()

    def on_node(self, node: str) -> AbstractSet[str]:
        """Return the UIDs under which claims count that have cards of a node."""
        return frozenset().union(*map(self._divided, self._on_node.get(node, ())))

    def counted(self) -> Iterable[tuple[str, Sequence[DeviceClaim]]]:
        """Yield each UID under which claims count, with these."""
        for user in tuple(self._by_user):
            yield from self._divided(user).items()

    def of(self, uid: str, *, namespace: str | None = None) -> Sequence[DeviceClaim]:
        """Return the claims that count under a UID.

        Args:
            uid: of a pod or a claim.
            namespace: that of a pod which is only being observed.
        """
        return self._divided(self._users.get(uid, uid), namespace).get(uid, ())

    def _divided(
        self, user: str, namespace: str | None = None
    ) -> Mapping[str, Sequence[DeviceClaim]]:
        """Return by UID the claims that say they are of one pod."""
        claims = self._by_user.get(user, {}).values()
        if claims and namespace is None:
            namespace = self._namespace_of(user)
        found: dict[str, list[DeviceClaim]] = {}
        for claim in claims:
            own = found.get(user)
            is_its = namespace in (None, claim.namespace) and (
                own is None or own[0].node == claim.node
            )
            found.setdefault(user if is_its else claim.uid, []).append(claim)
        return found

    def allocation(
        self, uid: str, cards_of: CardsOf, *, node: str = "", namespace: str | None = None
    ) -> PodAllocation:
        """Return what claims hold that count under a UID; on *node* if that is nothing."""
        claims = self.of(uid, namespace=namespace)
        by_card: dict[CardUuid, CardAllocation] = {}
        for claim in claims:
            for card, held in held_of_cards(claim, cards_of(claim.node)).items():
                by_card[card] = held_together(by_card[card], held) if card in by_card else held
        return PodAllocation(
            pod_uid=uid,
            node=next((claim.node for claim in claims), node),
            by_card=by_card,
            move=next((claim.move for claim in claims if claim.move), ""),
        )

    def join(self, pod: PodInfo, cards_of: CardsOf) -> PodInfo:
        """Return a pod with what its claims were allocated in its assignment."""
        claims = self.of(pod.record.uid)
        return _with(pod, claims, cards_of) if claims else pod


def with_claims(
    pods: Iterable[PodInfo], claims: Iterable[DeviceClaim], nodes: Iterable[NodeCards]
) -> tuple[PodInfo, ...]:
    """Return pods with what their claims were allocated in their assignment."""
    listed = tuple(pods)
    namespaces = {pod.record.uid: pod.record.namespace for pod in listed}
    cards = {node.node: node.cards for node in nodes}
    holders = ClaimHolders(namespaces.get)
    for claim in claims:
        holders.observe(claim)

    @cache
    def cards_of(node: str) -> Mapping[str, CardUuid]:
        return cards_by_device(card.uuid for card in cards.get(node, ()))

    return tuple(holders.join(pod, cards_of) for pod in listed)


def _with(pod: PodInfo, claims: Iterable[DeviceClaim], cards_of: CardsOf) -> PodInfo:
    assignment: dict[str, Assignment] = {}
    problem, move = pod.record.problem, pod.record.move
    for claim in claims:
        move = claim.move or move
        try:
            assignment[claim.name] = assignment_of(claim, cards_of(claim.node))
        except WireError as error:
            problem = str(error)
    all_of_them = {
        # What a Binding assigned counts beside them; no request has such a name.
        **{f"/{name}": slices for name, slices in (pod.record.assignment or {}).items()},
        # Requests of users' claims are not named after containers.
        **{
            request if name == pod.device_claim else f"{name}/{request}": slices
            for name, found in assignment.items()
            for request, slices in found.items()
        },
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
    return _describe_own(pod, claim)


def _describe_own(pod: PodInfo, claim: DeviceClaim) -> str:
    if claim.devices:
        return f"claim {claim.name} is allocated on {claim.node}"
    if claim.terminating:
        return f"claim {claim.name} is being deleted; it is made anew once its finalizers are gone"
    if claim.open and pod.pod_group:
        group = f"PodGroup {pod.pod_group}"
        return f"claim {claim.name} is open, so that kube-scheduler places all of {group} at once"
    if claim.open:
        return f"claim {claim.name} is open, because no card fitted when it was made"
    listed = counted(len(claim.cards), "card")
    return f"claim {claim.name} lists {listed}, of which kube-scheduler has taken none yet"
