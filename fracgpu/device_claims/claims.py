"""From what a pod was granted to the ResourceClaim that kube-scheduler allocates."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from fracgpu import names
from fracgpu.cards.card import CardUuid
from fracgpu.device_claims import devices
from fracgpu.device_claims.selectors import MOST_SELECTORS, but, shortlist, suitable
from fracgpu.device_claims.taints import DeviceTaint
from fracgpu.errors import RequestError
from fracgpu.request.need import ContainerNeed, PodNeed
from fracgpu.state.allocation import Assignment, PodRecord
from fracgpu.units import Mib

# Limits of the API. Source: k8s.io/api resource/v1 types.go.
MOST_REQUESTS: Final = 32
MOST_CARDS: Final = 32  # AllocationResultsMaxSize

Shortlists = Mapping[str, Sequence[CardUuid]]
Borrow = Mapping[str, Mib]
"""By container, how much more than it is guaranteed it may use of each of its cards."""
NO_BORROW: Final[Borrow] = MappingProxyType({})


def shortlists(choices: Sequence[Assignment]) -> Shortlists:
    """Return the cards of each container on several nodes, in the order of the nodes."""
    found: dict[str, list[CardUuid]] = {}
    for assignment in choices:
        for container, slices in assignment.items():
            found.setdefault(container, []).extend(part.card for part in slices)
    return found


def borrow_in(choices: Iterable[Assignment]) -> Borrow:
    """Return how much more the containers may use on each of several nodes, if they may use more.

    A share of cards that differ a little in size is that of the smallest.
    """
    least: dict[str, Mib] = {}
    for assignment in choices:
        for container, slices in assignment.items():
            some = [Mib(part.limit_mib - part.mib) for part in slices]
            least[container] = min(*some, least.get(container, some[0]))
    return {container: mib for container, mib in least.items() if mib}


def refuse_too_large(need: PodNeed) -> None:
    """Raise if no claim could hold what a pod was granted.

    Raises:
        RequestError: it has too many requests or cards.
    """
    if len(need.containers) > MOST_REQUESTS:
        raise RequestError(
            field="the pod",
            found=f"{len(need.containers)} containers with a share",
            wanted=f"at most {MOST_REQUESTS}, as many requests as a ResourceClaim can have",
        )
    cards = sum(container.cards for container in need.containers)
    if cards > MOST_CARDS:
        raise RequestError(
            field="the pod",
            found=f"{cards} cards for all containers together",
            wanted=f"at most {MOST_CARDS}, as many devices as a ResourceClaim can have",
        )


def claim_of(  # noqa: PLR0913 - the parts of a claim
    pod: PodRecord,
    name: str,
    need: PodNeed,
    cards: Shortlists | None,
    *,
    borrow: Borrow = NO_BORROW,
    card_class: str = "",
    kept: Collection[CardUuid] = (),
    tolerated: Sequence[DeviceTaint] = (),
    freed_on: str = "",
) -> dict[str, Any]:
    """Return the ResourceClaim for a pod, ready to be created.

    Args:
        pod: the pod, which owns the claim.
        name: of the claim, as the pod says it.
        need: what the pod was granted.
        cards: the shortlist of each container; None where no card fits now: then the claim is left
            open, and says which cards would do.
        borrow: how much more than they are guaranteed its containers may use; none on cards that
            cannot be limited.
        card_class: the class of the pool catalogue that it was granted; empty without one.
        kept: cards that an open claim leaves out, because they are kept for another pod.
        tolerated: the taints of the cards that are held for the pod.
        freed_on: the node that other pods have to leave, or have left, for the pod.

    Raises:
        RequestError: the pod's models, or the cards that are kept, are too many for an open claim.
    """
    left_out = but(kept) if cards is None else ()
    if len(left_out) >= MOST_SELECTORS:
        raise RequestError(
            field="the claim",
            found=f"open without {len(kept)} cards that are kept for other pods",
            wanted="about 7,000 of them at most; it is made once they are fewer",
        )
    return {
        "metadata": {
            "name": name,
            "namespace": pod.namespace,
            "labels": {names.MANAGED_BY_LABEL: names.MANAGED_BY},
            **({"annotations": {names.FREED_ON: freed_on}} if freed_on else {}),
            "ownerReferences": [
                {
                    "apiVersion": "v1",
                    "kind": "Pod",
                    "name": pod.name,
                    "uid": pod.uid,
                    "controller": True,
                    "blockOwnerDeletion": False,
                }
            ],
        },
        "spec": {
            "devices": {
                "requests": [
                    _request(
                        one,
                        names.DEVICE_CLASS_PLACED,
                        (shortlist(cards[one.name]),),
                        borrow_mib=borrow.get(one.name, 0),
                        tolerated=tolerated,
                    )
                    if cards is not None
                    else _request(
                        one,
                        names.DEVICE_CLASS,
                        (suitable(need, one, card_class=card_class), *left_out),
                        borrow_mib=borrow.get(one.name, 0),
                    )
                    for one in need.containers
                ]
            }
        },
    }


def _request(
    container: ContainerNeed,
    device_class: str,
    selectors: Sequence[str],
    *,
    borrow_mib: int,
    tolerated: Sequence[DeviceTaint] = (),
) -> Mapping[str, Any]:
    # kube-scheduler counts what may be used, and gives it on no card that has nothing to lend.
    borrowed = {devices.BORROWED: f"{borrow_mib}Mi"} if borrow_mib else {}
    tolerations = [taint.toleration for taint in tolerated]
    return {
        "name": container.name,
        "exactly": {
            "deviceClassName": device_class,
            "allocationMode": "ExactCount",
            "count": container.cards,
            "capacity": {
                "requests": {
                    devices.MEMORY: f"{container.mib + borrow_mib}Mi",
                    **borrowed,
                    devices.CORES: str(container.cores),
                    devices.SLOTS: "1",
                }
            },
            "selectors": [{"cel": {"expression": one}} for one in selectors],
            **({"tolerations": tolerations} if tolerations else {}),
        },
    }
