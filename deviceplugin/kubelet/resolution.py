"""Finds the container that a start in flight is of; anything unclear is rejected."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from deviceplugin.claims import (
    Claim,
    NodeClaims,
    PodKey,
    Rejected,
    RejectReason,
    SlotHolder,
    claim_of,
    id_list,
)
from fracgpu import names
from fracgpu.k8s.container import ContainerKind, ContainerSpec
from fracgpu.k8s.quantity import whole_amount
from fracgpu.state.allocation import Slice
from fracgpu.state.pod_info import PodInfo


def resolve(
    slot_ids: frozenset[str], holders: Sequence[SlotHolder], node_claims: NodeClaims
) -> Claim | Rejected:
    """Return the one container that *slot_ids* were allocated to, with its cards, or why not.

    =====================================  ==============================================
    kubelet lists as holder                result
    =====================================  ==============================================
    nobody, or only ended or unknown pods  the init container whose status carries our token;
                                           without one, UNLISTED if an init container of a
                                           live pod here wants as many slots, else NOBODY
    containers of several live or unknown  as below for the one pod that may call with exactly
                                           these ids and is not proven to be elsewhere;
                                           SEVERAL_PODS if there is not exactly one
    one container, with exactly these ids  that container, unless an init container could be
                                           meant: of the pod, assigned other cards, or of
                                           another pod, where the ids were allocated more often
                                           than this pod explains; then the one that carries
                                           our token, else AMBIGUOUS
    only other sets that share an id       the init container that passes them on, if there is
                                           exactly one with as many slots, or by the token
    =====================================  ==============================================

    Ended pods are passed over because a kubelet without kubernetes PR 132028 still lists them. One
    that the API server does not know was deleted by force, and may start until kubelet drops it:
    beside a live pod it counts as a second. Plain init containers are never listed: kubelet passes
    their ids on to app containers, or keeps them where no app container wants any. An unlisted one
    is never inferred, not even where only one could be meant: kubelet may know a deleted pod.
    """
    live = [
        holder
        for holder in holders
        if holder.slot_ids & slot_ids and _is_live(holder.key, node_claims)
    ]
    keys = _callers(slot_ids, holders, live, node_claims)
    if not keys:
        return _claim_unlisted(slot_ids, holders, live, node_claims)
    unknown = sorted(
        {holder.key for holder in holders if holder.slot_ids & slot_ids} - node_claims.pods.keys()
    )
    shared = len(keys) + len(unknown) > 1
    if shared:
        elsewhere = node_claims.elsewhere
        callers = [key for key in keys if node_claims.pods[key].record.uid not in elsewhere]
        if len(callers) != 1 or unknown:
            gone = f", though the API server does not know {_keys(unknown)}" if unknown else ""
            pods = f"{_keys((*keys, *unknown))}{gone} (kubernetes PR 137534)"
            text = f"kubelet has given {id_list(slot_ids)} to {pods}; waiting until it is clear "
            return _rejected(RejectReason.SEVERAL_PODS, text + "which of them wants to start")
        keys = callers
    pod = node_claims.pods[keys[0]]
    listed = [holder for holder in holders if holder.key == keys[0]]
    if listed_twice(listed):
        text = f"kubelet lists a container of {pod.record.key} twice"
        return _rejected(RejectReason.LISTED_TWICE, text)
    return _claim_listed(slot_ids, listed, pod, node_claims, shared=shared)


def listed_twice(listed: Sequence[SlotHolder]) -> bool:
    """Report whether kubelet lists an old and a new pod of one name: both are there yet."""
    return len({holder.container for holder in listed}) != len(listed)


def inits_with(pod: PodInfo, slots: int) -> list[str]:
    """Return the plain init containers that want *slots* slots, which kubelet never lists."""
    return [
        spec.name
        for spec in pod.record.containers
        if spec.kind is ContainerKind.INIT and _slots(spec) == slots
    ]


def _callers(
    slot_ids: frozenset[str],
    holders: Sequence[SlotHolder],
    live: Sequence[SlotHolder],
    node_claims: NodeClaims,
) -> list[PodKey]:
    """Return the pods of *live* that may call with exactly *slot_ids*.

    A start names all slots of its container. So a pod of which kubelet lists only other sets that
    share an id calls with these ids for an init container at most.
    """
    return [
        key
        for key in sorted({holder.key for holder in live})
        if any(holder.key == key and holder.slot_ids == slot_ids for holder in live)
        or inits_with(node_claims.pods[key], len(slot_ids))
        or listed_twice([holder for holder in holders if holder.key == key])
    ]


def _explained(slot_ids: frozenset[str], listed: Sequence[SlotHolder], pod: PodInfo) -> int:
    """Return how often kubelet may have allocated an id of *slot_ids* to this pod alone.

    Once to each container that has it: an init container beside those to which it passes it on.
    """
    inits = sum(
        spec.kind is ContainerKind.INIT and bool(_slots(spec)) for spec in pod.record.containers
    )
    return inits + sum(bool(holder.slot_ids & slot_ids) for holder in listed)


def _given_more_often(slot_ids: frozenset[str], most: int, node_claims: NodeClaims) -> bool:
    """Report whether kubelet allocated one of *slot_ids* more than *most* times to pods that live.

    What was allocated to nobody knows whom counts.
    """
    live = {pod.record.uid for pod in node_claims.pods.values() if pod.record.live}
    return any(
        sum(times for uid, times in takers.items() if not uid or uid in live) > most
        for slot_id, takers in node_claims.takers.items()
        if slot_id in slot_ids
    )


def _keys(keys: Iterable[PodKey]) -> str:
    return " and ".join("/".join(key) for key in keys)


def _unlisted(slot_ids: frozenset[str], node_claims: NodeClaims) -> list[tuple[PodInfo, str]]:
    """Return the plain init containers of this node that want as many slots and might start."""
    return [
        (pod, name)
        for _, pod in sorted(node_claims.pods.items())
        if pod.record.live and not pod.record.terminating and pod.record.node == node_claims.node
        for name in inits_with(pod, len(slot_ids))
    ]


def _claim_listed(
    slot_ids: frozenset[str],
    listed: Sequence[SlotHolder],
    pod: PodInfo,
    node_claims: NodeClaims,
    *,
    shared: bool,
) -> Claim | Rejected:
    """Return the claim of *pod*, or of an unlisted init container that was given the same ids."""
    most = _explained(slot_ids, listed, pod)
    unlisted = [found for found in _unlisted(slot_ids, node_claims) if found[0] is not pod]
    others = unlisted if _given_more_often(slot_ids, most, node_claims) else []
    found = _container(slot_ids, listed, pod, others, token=node_claims.token)
    if isinstance(found, Rejected):
        return found
    if shared or others:  # who was verified before says nothing: others hold the ids just as well
        node_claims = replace(node_claims, owner_uid="")
    claim = claim_of(found[1], slot_ids, found[0], node_claims)
    if isinstance(claim, Rejected):
        return claim
    alone = not shared and not unlisted
    return replace(claim, shared=shared or bool(others), most=most, alone=alone)


def _claim_unlisted(
    slot_ids: frozenset[str],
    holders: Sequence[SlotHolder],
    live: Sequence[SlotHolder],
    node_claims: NodeClaims,
) -> Claim | Rejected:
    """Return the init container that carries our token, where no pod listed may call."""
    unlisted = _unlisted(slot_ids, node_claims)
    carriers = _carriers(unlisted, node_claims.token)
    if len(carriers) == 1:
        ((pod, container),) = carriers
        claim = claim_of(container, slot_ids, pod, node_claims)
        return replace(claim, shared=bool(live)) if isinstance(claim, Claim) else claim
    ids = id_list(slot_ids)
    if unlisted:
        return _rejected(
            RejectReason.UNLISTED,
            f"kubelet lists no container that holds just {ids}, and it never lists init "
            "containers; waiting until kubelet names the starting container in the pod's status",
        )
    if live:
        held = "; ".join(
            f"{'/'.join(holder.key)}/{holder.container} holds {id_list(holder.slot_ids)}"
            for holder in live
        )
        return _rejected(RejectReason.PARTLY_HELD, f"nothing holds just {ids}: {held}")
    others = sorted(
        {f"{holder.namespace}/{holder.pod}" for holder in holders if holder.slot_ids & slot_ids}
    )
    dead = f"; kubelet lists {', '.join(others)}, ended or unknown" if others else ""
    return _rejected(RejectReason.NOBODY, f"no live pod holds {ids}{dead}")


def _carriers(candidates: Sequence[tuple[PodInfo, str]], token: str) -> list[tuple[PodInfo, str]]:
    return [(pod, name) for pod, name in candidates if _carries_token(pod, name, token)]


def _carries_token(pod: PodInfo, container: str, token: str) -> bool:
    """Report whether kubelet wrote our token on this container; nobody else knows the token."""
    return bool(token) and token in pod.waiting.get(container, "")


def _is_live(key: PodKey, node_claims: NodeClaims) -> bool:
    pod = node_claims.pods.get(key)
    return pod is not None and pod.record.live


def _container(
    slot_ids: frozenset[str],
    listed: Sequence[SlotHolder],
    pod: PodInfo,
    others: Sequence[tuple[PodInfo, str]],
    *,
    token: str,
) -> tuple[PodInfo, str] | Rejected:
    """Return the pod and the container: of *pod*, or of *others*, which may call just as well."""
    exact = [holder.container for holder in listed if holder.slot_ids == slot_ids]
    own = [(pod, name) for name in (*exact, *inits_with(pod, len(slot_ids)))]
    assignment = pod.record.assignment or {}
    if not others and len({_cards_of(assignment.get(name, ())) for _, name in own}) == 1:
        return own[0]
    carriers = _carriers((*own, *others), token)
    if len(carriers) == 1:
        return carriers[0]
    unclear = ", ".join(f"{name} of {found.record.key}" for found, name in (*own, *others))
    return _rejected(
        RejectReason.AMBIGUOUS,
        f"{id_list(slot_ids)} may belong to {unclear}, which may be assigned different slices; "
        "waiting until kubelet names the starting container in the pod's status",
    )


def _cards_of(slices: Sequence[Slice]) -> frozenset[Slice]:
    return frozenset(slices)


def _slots(spec: ContainerSpec) -> int | None:
    return whole_amount(spec.limits.get(names.GPU_SLOT, ""))


def _rejected(reason: RejectReason, text: str) -> Rejected:
    return Rejected(reason=reason, text=text)
