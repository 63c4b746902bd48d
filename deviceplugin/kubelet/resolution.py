"""Finds the container that a start in flight is of; anything unclear is rejected."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

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
from fracgpu.k8s.quantity import integer_amount
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
    one container, with exactly these ids  that container, unless an init container of the
                                           pod could be meant and is assigned other cards:
                                           then the one that carries our token, else AMBIGUOUS
    only other sets that share an id       the init container that passes them on, if there is
                                           exactly one with as many slots, or by the token
    =====================================  ==============================================

    Ended pods are passed over because a kubelet without kubernetes PR 132028 still lists them. One
    that the API server does not know was deleted by force, and may start until kubelet drops it:
    beside a live pod it counts as a second. Plain init containers are never listed: kubelet passes
    their ids on to app containers, or keeps them where no app container wants any. An unlisted one
    is never inferred, not even where only one could be meant: kubelet may know a deleted pod. Where
    an id was allocated more often than one pod explains, every pod with such an init container
    counts as a holder.
    """
    overlapping = [holder for holder in holders if holder.slot_ids & slot_ids]
    live = [holder for holder in overlapping if _is_live(holder.key, node_claims)]
    unknown = {holder.key for holder in overlapping} - node_claims.pods.keys()
    found = _candidates(slot_ids, holders, live, node_claims)
    keys = found.keys
    shared = found.doubted or (bool(found.listed) and len(found.listed) + len(unknown) > 1)
    if shared:
        elsewhere = node_claims.elsewhere
        keys = frozenset(key for key in keys if node_claims.pods[key].record.uid not in elsewhere)
        if len(keys) != 1 or unknown:
            gone = f", though the API server does not know {_keys(unknown)}" if unknown else ""
            text = f"kubelet has given {id_list(slot_ids)} to {_keys(found.keys | unknown)}{gone} "
            text += "(kubernetes PR 137534); waiting until it is clear which of them wants to start"
            return _rejected(RejectReason.SEVERAL_PODS, text)
        # Who was verified before says nothing: the others hold the ids just as well.
        node_claims = replace(node_claims, owner_uid="")
    if keys & found.listed:
        (key,) = keys
        listed = [holder for holder in holders if holder.key == key]
        claim = _claim_listed(slot_ids, listed, node_claims.pods[key], node_claims)
    else:
        claim = _claim_unlisted(slot_ids, keys, overlapping, node_claims)
    if isinstance(claim, Rejected):
        return claim
    alone = not shared and not unknown and len(found.listed | found.unlisted) == 1
    return replace(claim, shared=shared, most=found.most, alone=alone)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Candidates:
    """The live pods that may call with some slot ids.

    Attributes:
        listed: kubelet lists them as holders.
        unlisted: others, with an init container that wants as many slots.
        most: how often kubelet may have allocated one of the ids to one of them alone.
        doubted: one of the ids was allocated more often, and there is more than one of them.
    """

    listed: frozenset[PodKey]
    unlisted: frozenset[PodKey]
    most: int
    doubted: bool

    @property
    def keys(self) -> frozenset[PodKey]:
        """Those that have to be told apart."""
        return self.listed | self.unlisted if self.doubted else self.listed or self.unlisted


def _candidates(
    slot_ids: frozenset[str],
    holders: Sequence[SlotHolder],
    live: Sequence[SlotHolder],
    node_claims: NodeClaims,
) -> _Candidates:
    """Return the pods that may call with exactly *slot_ids*.

    A start names all slots of its container. So a pod of which kubelet lists only other sets that
    share an id calls with these ids for an init container at most.
    """
    pods = node_claims.pods
    inits = {
        key
        for key, pod in pods.items()
        if pod.record.live
        and pod.record.node == node_claims.node
        and inits_with(pod, len(slot_ids))
    }
    listed = frozenset(
        holder.key
        for holder in live
        if holder.slot_ids == slot_ids
        or holder.key in inits
        or listed_twice([other for other in holders if other.key == holder.key])
    )
    unlisted = frozenset(
        key for key in inits - listed if not _has_others(pods[key], slot_ids, node_claims)
    )
    most = max(
        (_explained(pods[key], [one for one in live if one.key == key]) for key in listed or inits),
        default=1,
    )
    more = _given_more_often(slot_ids, most, node_claims)
    doubted = more and len(listed | unlisted) > 1
    return _Candidates(listed=listed, unlisted=unlisted, most=most, doubted=doubted)


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


def _has_others(pod: PodInfo, slot_ids: frozenset[str], node_claims: NodeClaims) -> bool:
    """Report whether each init container that could call with *slot_ids* has others.

    A container keeps its ids as long as its pod lives.
    """
    return all(
        node_claims.started.get((pod.record.uid, name), slot_ids) != slot_ids
        for name in inits_with(pod, len(slot_ids))
    )


def _explained(pod: PodInfo, listed: Sequence[SlotHolder]) -> int:
    """Return how often kubelet may have allocated one id to a pod alone.

    Once to each container that has it: an init container beside those to which it passes it on.

    Args:
        pod: the pod.
        listed: its containers with the id.
    """
    inits = sum(
        spec.kind is ContainerKind.INIT and bool(_slots(spec)) for spec in pod.record.containers
    )
    return inits + len(listed)


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
    return " and ".join("/".join(key) for key in sorted(keys))


def _claim_listed(
    slot_ids: frozenset[str],
    listed: Sequence[SlotHolder],
    pod: PodInfo,
    node_claims: NodeClaims,
) -> Claim | Rejected:
    if listed_twice(listed):
        text = f"kubelet lists a container of {pod.record.key} twice"
        return _rejected(RejectReason.LISTED_TWICE, text)
    container = _container(slot_ids, listed, pod, token=node_claims.token)
    if isinstance(container, Rejected):
        return container
    return claim_of(container, slot_ids, pod, node_claims)


def _claim_unlisted(
    slot_ids: frozenset[str],
    keys: Iterable[PodKey],
    overlapping: Sequence[SlotHolder],
    node_claims: NodeClaims,
) -> Claim | Rejected:
    """Return the init container of *keys* that carries our token."""
    pods = [node_claims.pods[key] for key in sorted(keys)]
    unlisted = [
        (pod, name)
        for pod in pods
        if not pod.record.terminating
        for name in inits_with(pod, len(slot_ids))
    ]
    carriers = _carriers(unlisted, node_claims.token)
    if len(carriers) == 1:
        ((pod, container),) = carriers
        return claim_of(container, slot_ids, pod, node_claims)
    ids = id_list(slot_ids)
    if unlisted:
        return _rejected(
            RejectReason.UNLISTED,
            f"kubelet lists no container that holds just {ids}, and it never lists init "
            "containers; waiting until kubelet names the starting container in the pod's status",
        )
    held = [
        f"{'/'.join(holder.key)}/{holder.container} holds {id_list(holder.slot_ids)}"
        for holder in overlapping
        if _is_live(holder.key, node_claims)
    ]
    if held:
        return _rejected(RejectReason.PARTLY_HELD, f"nothing holds just {ids}: {'; '.join(held)}")
    others = sorted({"/".join(holder.key) for holder in overlapping})
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
    slot_ids: frozenset[str], listed: Sequence[SlotHolder], pod: PodInfo, *, token: str
) -> str | Rejected:
    record = pod.record
    exact = [holder.container for holder in listed if holder.slot_ids == slot_ids]
    candidates = exact + inits_with(pod, len(slot_ids))
    assignment = record.assignment or {}
    if len({_cards_of(assignment.get(name, ())) for name in candidates}) == 1:
        return candidates[0]
    carriers = _carriers([(pod, name) for name in candidates], token)
    if len(carriers) == 1:
        return carriers[0][1]
    unclear = ", ".join(candidates)
    return _rejected(
        RejectReason.AMBIGUOUS,
        f"{id_list(slot_ids)} may belong to {unclear} in {record.key}, which are assigned "
        "different slices; waiting until kubelet names the starting container in the pod's status",
    )


def _cards_of(slices: Sequence[Slice]) -> frozenset[Slice]:
    return frozenset(slices)


def _slots(spec: ContainerSpec) -> int | None:
    return integer_amount(spec.limits.get(names.GPU_SLOT, ""))


def _rejected(reason: RejectReason, text: str) -> Rejected:
    return Rejected(reason=reason, text=text)
