"""ResourceClaims as the API server and kube-scheduler have them, for tests."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from fracgpu import names
from fracgpu.cards.card import CardUuid
from fracgpu.device_claims.claim import DeviceClaim, decode_claim
from fracgpu.device_claims.claims import claim_of
from fracgpu.device_claims.devices import device_name
from fracgpu.k8s.quantity import canonical
from fracgpu.request.need import PodNeed
from fracgpu.state.allocation import Assignment, PodRecord

Json = dict[str, Any]


def stored(body: Mapping[str, Any], *, uid: str = "claim-uid", version: str = "7") -> Json:
    """Return a claim as the API server returns it once it is created."""
    found: Json = copy.deepcopy(dict(body))
    found["metadata"] |= {"uid": uid, "resourceVersion": version}
    for request in found["spec"]["devices"]["requests"]:
        amounts = request["exactly"]["capacity"]["requests"]
        amounts.update({key: canonical(value) for key, value in amounts.items()})
    return found


def allocated(
    claim: Json, choice: Mapping[str, Sequence[str]], *, node: str, pod: PodRecord | None = None
) -> Json:
    """Return a claim as kube-scheduler leaves it: each request gets the cards of *choice*."""
    found: Json = copy.deepcopy(claim)
    results = [
        {
            "request": request["name"],
            "driver": names.DRA_DRIVER,
            "pool": node,
            "device": device_name(card),
            "shareID": f"share-{at}",
            "consumedCapacity": dict(request["exactly"]["capacity"]["requests"]),
        }
        for request in found["spec"]["devices"]["requests"]
        for at, card in enumerate(choice[request["name"]])
    ]
    found["status"] = {"allocation": {"devices": {"results": results}}}
    if pod is not None:
        found["status"]["reservedFor"] = [{"resource": "pods", "name": pod.name, "uid": pod.uid}]
    return found


def decoded(claim: Json) -> DeviceClaim:
    return decode_claim(msgspec.json.encode(claim))


def an_allocated_claim(
    pod: PodRecord, need: PodNeed, assignment: Assignment, *, node: str, name: str = "fracgpu-0"
) -> Json:
    """Return our claim for a pod, with the cards of an assignment allocated."""
    cards: dict[str, list[CardUuid]] = {
        container: [part.card for part in slices] for container, slices in assignment.items()
    }
    body = stored(claim_of(pod, name, need, cards))
    return allocated(body, cards, node=node, pod=pod)
