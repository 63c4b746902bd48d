"""Claims, their pods and an API server with both, as the agent sees them."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from fracgpu import names
from fracgpu.cards.card import CardUuid
from fracgpu.device_claims.claims import claim_of
from fracgpu.request.need import PodNeed
from fracgpu.state.allocation import PodRecord
from fracgpu.state.pod_info import PodInfo, decode_pod_info
from fracgpu.units import Mib
from kube.client import KubeClient
from kube.errors import NotFound, Unavailable
from kube.kinds import Kind
from tests.deviceplugin.builders import NODE
from tests.support.claims import allocated, granted, stored
from tests.support.core import a_need, a_pod_need

Json = dict[str, Any]

CLAIM: Final = "fracgpu-0123456789"
UID: Final = "11111111-2222-3333-4444-555555555555"
NEED: Final = a_pod_need(a_need(1000, name="train"))


def pod_body(
    name: str = "train-0",
    *,
    need: PodNeed | None = NEED,
    claims: Mapping[str, str] | None = None,
    uses: Sequence[tuple[str, str, str]] | None = None,
    annotations: Mapping[str, str] | None = None,
    phase: str = "Pending",
) -> Json:
    """A pod with our claim, or without a grant with a user's own.

    Args:
        name: of the pod; its UID is made of it.
        need: what it was granted.
        claims: its claims by what the pod calls them.
        uses: container, claim and request.
        annotations: beside the grant.
        phase: of the pod.
    """
    containers = [(one.name, names.POD_CLAIM, one.name) for one in need.containers] if need else []
    notes = dict(annotations or {})
    if need is not None:
        notes[names.GRANTED] = granted(need)
    return {
        "metadata": {"name": name, "namespace": "ml", "uid": f"uid-{name}", "annotations": notes},
        "spec": {
            "nodeName": NODE,
            "containers": [
                {
                    "name": container,
                    "resources": {
                        "claims": [{"name": claim} | ({"request": request} if request else {})]
                    },
                }
                for container, claim, request in (containers if uses is None else uses)
            ],
            "resourceClaims": [
                {"name": key, "resourceClaimName": claim}
                for key, claim in (claims or {names.POD_CLAIM: CLAIM}).items()
            ],
        },
        "status": {"phase": phase},
    }


def info(body: Json) -> PodInfo:
    return decode_pod_info(json.dumps(body).encode())


def a_claim(
    pod: Json,
    cards: Mapping[str, Sequence[str]] | None = None,
    *,
    need: PodNeed = NEED,
    uid: str = UID,
    name: str = CLAIM,
) -> Json:
    """Return our claim for a pod, allocated and reserved for it."""
    chosen = {"train": ["GPU-a"]} if cards is None else cards
    listed = {container: [CardUuid(card) for card in some] for container, some in chosen.items()}
    borrow = {
        one.name: Mib(one.limit_mib - one.mib)
        for one in need.containers
        if one.limit_mib is not None
    }
    body = stored(claim_of(record(pod), name, need, listed, borrow=borrow), uid=uid)
    return allocated(body, chosen, node=NODE, pod=record(pod))


def a_users_claim(pod: Json, *, name: str = "mine", uid: str = UID) -> Json:
    """Return a claim that a user made for a class of ours, with two requests of one card each."""
    request = {"deviceClassName": names.DEVICE_CLASS}
    device = {"driver": names.DRA_DRIVER, "pool": NODE, "consumedCapacity": {"memory": "3000Mi"}}
    user = {"resource": "pods", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
    return {
        "metadata": {"name": name, "namespace": "ml", "uid": uid},
        "spec": {
            "devices": {
                "requests": [
                    {"name": "first", "exactly": request},
                    {"name": "second", "firstAvailable": [{"name": "any", **request}]},
                ]
            }
        },
        "status": {
            "allocation": {
                "devices": {
                    "results": [
                        {**device, "request": "first", "device": "gpu-a"},
                        {**device, "request": "second/any", "device": "gpu-b"},
                    ]
                }
            },
            "reservedFor": [user],
        },
    }


def record(pod: Json) -> PodRecord:
    return info(pod).record


class FakeApi(KubeClient):
    """Objects by kind and name; *down* makes it answer nothing.

    Without *consumable* it drops what a slice says of shares, as with that feature gate off.
    """

    def __init__(self, *pods: Json, claims: Sequence[Json] = ()) -> None:
        self.objects: dict[tuple[str, str], Json] = {}
        self.down = False
        self.consumable = True
        self.calls: list[str] = []
        self.put("Node", {"metadata": {"name": NODE, "uid": "uid-of-the-node"}})
        for pod in pods:
            self.put("Pod", pod)
        for claim in claims:
            self.put("ResourceClaim", claim)

    def put(self, kind: str, body: Json) -> None:
        self.objects[kind, body["metadata"]["name"]] = body

    def slices(self) -> list[Json]:
        return [body for (kind, _), body in self.objects.items() if kind == "ResourceSlice"]

    async def get_object(self, kind: Kind, name: str, **_: Any) -> Json:
        self._call("GET", kind, name)
        found = self.objects.get((kind.kind, name))
        if found is None:
            raise NotFound(verb="GET", path="/", status=404, reason="NotFound", message=name)
        return found

    async def get(self, kind: Kind, name: str, **_: Any) -> bytes:
        return json.dumps(await self.get_object(kind, name)).encode()

    async def create(self, kind: Kind, body: Mapping[str, Any], **_: Any) -> Json:
        self._call("POST", kind, body["metadata"]["name"])
        return self._stored(kind, body)

    async def replace(self, kind: Kind, body: Mapping[str, Any], **_: Any) -> Json:
        self._call("PUT", kind, body["metadata"]["name"])
        return self._stored(kind, body)

    def _stored(self, kind: Kind, body: Mapping[str, Any]) -> Json:
        stored: Json = json.loads(json.dumps(body))
        if kind.kind == "ResourceSlice" and not self.consumable:
            for device in stored["spec"]["devices"]:
                device.pop("allowMultipleAllocations")
                for capacity in device["capacity"].values():
                    capacity.pop("requestPolicy", None)
        self.put(kind.kind, stored)
        return stored

    async def delete(self, kind: Kind, name: str, **_: Any) -> None:
        self._call("DELETE", kind, name)
        if self.objects.pop((kind.kind, name), None) is None:
            raise NotFound(verb="DELETE", path="/", status=404, reason="NotFound", message=name)

    def _call(self, verb: str, kind: Kind, name: str) -> None:
        self.calls.append(f"{verb} {kind.kind} {name}")
        if self.down:
            raise Unavailable(verb=verb, path="/", status=None, reason="NoAnswer", message="gone")
