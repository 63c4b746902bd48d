"""ResourceClaims as the API server and kube-scheduler have them, for tests."""

import copy
import hashlib
import secrets
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from fracgpu import names
from fracgpu.cards.card import Card, CardUuid
from fracgpu.device_claims.claim import DeviceClaim, decode_claim
from fracgpu.device_claims.claims import borrow_in, claim_of
from fracgpu.device_claims.devices import device_name, pool_spec
from fracgpu.k8s.quantity import canonical
from fracgpu.request.grant import Grant
from fracgpu.request.grant_note import Seal, describe_grant
from fracgpu.request.need import ContainerNeed, PodNeed
from fracgpu.state.allocation import Assignment, PodRecord
from fracgpu.units import Mib
from kube.client import KubeClient
from kube.kinds import EVENTS, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from kube.objects import decode_object
from tests.support.gpu import Json, a_sharing_node, register
from tests.support.waiting import until

_SEAL: Final = Seal(key=b"of the tests")


def claim_name(pod: str) -> str:
    """Return a name of a claim of ours that follows from a pod's."""
    return names.CLAIM_PREFIX + hashlib.sha256(pod.encode()).hexdigest()[:10]


def granted(need: PodNeed) -> str:
    """Return the webhook's note of what it granted."""
    return _SEAL.write(describe_grant(Grant(need=need, card_class=None)))


def a_claim_entry(claim: str = "") -> Json:
    """Return the entry of a pod's spec that names its claim, by default one of a new name."""
    name = claim or names.CLAIM_PREFIX + secrets.token_hex(5)
    return {"name": names.POD_CLAIM, "resourceClaimName": name}


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
    pod: PodRecord,
    need: PodNeed,
    assignment: Assignment,
    *,
    node: str,
    name: str = "fracgpu-0000000000",
) -> Json:
    """Return our claim for a pod, with the cards of an assignment allocated."""
    cards: dict[str, list[CardUuid]] = {
        container: [part.card for part in slices] for container, slices in assignment.items()
    }
    body = stored(claim_of(pod, name, need, cards, borrow=borrow_in((assignment,))))
    return allocated(body, cards, node=node, pod=pod)


def a_claiming_node(name: str, cards: Sequence[Card]) -> Json:
    """Return a node whose cards no kubelet counts, as the agent leaves it in this wiring."""
    node = a_sharing_node(name, cards=cards)
    amounts = node["status"]["allocatable"]
    left = {key: value for key, value in amounts.items() if not key.startswith(names.PREFIX)}
    node["status"] |= {"capacity": left, "allocatable": left}
    node["metadata"]["annotations"][names.NODE_IDENTITY] = names.IDENTITY_CLAIMS
    return node


async def publish(client: KubeClient, node: Json, cards: Sequence[Card]) -> None:
    """Register a node and its slice."""
    await register(client, node)
    name = node["metadata"]["name"]
    await client.create(RESOURCE_SLICES, a_slice(name, cards))


def a_slice(node: str, cards: Sequence[Card]) -> Json:
    """Return the slice of a node, by whose driver either all containers are limited or none."""
    isolation = ("kernel",) if any(card.limits_mib for card in cards) else ()
    spec = pool_spec(node, cards, generation=1, isolation=isolation)
    return {"metadata": {"name": f"{node}-fracgpu"}, "spec": spec}


def sizes(cards: Mapping[str, Sequence[Card]]) -> dict[tuple[str, str], int]:
    """Return the MiB of each device, by node and name."""
    return {
        (node, device_name(card.uuid)): card.capacity_mib
        for node, here in cards.items()
        for card in here
    }


def held_mib(claims: Iterable[DeviceClaim]) -> Counter[tuple[str, str]]:
    """Return the MiB that may be used of each device, by node and name."""
    held = Counter[tuple[str, str]]()
    for claim in claims:
        for one in claim.devices:
            held[one.node, one.device] += one.amounts.limit_mib
    return held


def overbooked(claims: Iterable[DeviceClaim], mib: Mapping[tuple[str, str], int]) -> list[str]:
    """Return the devices of which more is allocated than there is."""
    return [f"{device}: {held}" for device, held in held_mib(claims).items() if held > mib[device]]


@dataclass(slots=True, kw_only=True)
class ClaimingCluster:
    """A cluster whose own kube-scheduler allocates cards, real or simulated.

    Attributes:
        cards: those of each node.
    """

    client: KubeClient
    cards: dict[str, Sequence[Card]] = field(default_factory=dict)

    async def claims(self) -> list[DeviceClaim]:
        listed = await self.client.list(RESOURCE_CLAIMS)
        return [decode_claim(bytes(raw)) for raw in listed.items]

    async def pods(self) -> list[Json]:
        return [decode_object(raw) for raw in (await self.client.list(PODS)).items]

    async def bound(self) -> dict[str, str]:
        """Return the node of each bound pod."""
        pods = await self.pods()
        found = {pod["metadata"]["name"]: pod["spec"].get("nodeName") for pod in pods}
        return {name: node for name, node in found.items() if node}

    async def events(self, reason: str, *, pod: str = "") -> list[Json]:
        """Return the Events of that reason, on one pod if it is named."""
        listed = await self.client.list(EVENTS, namespace="default")
        return [
            event
            for event in map(decode_object, listed.items)
            if event["reason"] == reason and (not pod or event["involvedObject"].get("name") == pod)
        ]

    async def overbooked(self) -> list[str]:
        """Return the devices of which more is allocated than there is."""
        return overbooked(await self.claims(), sizes(self.cards))

    async def until_bound(self, pods: int, *, limit_s: float = 60) -> None:
        async def all_are() -> bool:
            return len(await self.bound()) == pods

        await until(all_are, what=f"{pods} pods bound", limit_s=limit_s)


def a_granted_pod(
    name: str,
    need: PodNeed,
    *,
    inits: Sequence[str] = (),
    annotations: Mapping[str, str] | None = None,
    claim: str = "",
    cpu: str = "",
    **spec: Any,
) -> Json:
    """Return a pod as the webhook leaves one that was granted *need* in this wiring."""
    requests = {"requests": {"cpu": cpu}} if cpu else {}

    def container(one: str) -> Json:
        claims = [{"name": names.POD_CLAIM, "request": one}]
        return {
            "name": one,
            "image": "registry.example/train:1",
            "resources": {"claims": claims, **requests},
        }

    cores = ", ".join(f"{one.name}={one.cores}" for one in need.containers if one.cores)
    return {
        "metadata": {
            "name": name,
            "namespace": "default",
            "annotations": {
                **({names.CORES: cores} if cores else {}),
                **(annotations or {}),
                names.GRANTED: granted(need),
            },
        },
        "spec": {
            "containers": [container(one.name) for one in need.containers if one.name not in inits],
            **({"initContainers": [container(one) for one in inits]} if inits else {}),
            "resourceClaims": [a_claim_entry(claim)],
            **spec,
        },
    }


def a_claiming_pod(  # noqa: PLR0913 - what a test may choose, each with a default
    name: str,
    mib: int = 1000,
    *,
    cards: int = 1,
    cores: int = 0,
    limit_mib: int = 0,
    annotations: Mapping[str, str] | None = None,
    claim: str = "",
    cpu: str = "10m",
    **spec: Any,
) -> Json:
    """Return a pod of one container as the webhook leaves it in this wiring."""
    need = ContainerNeed(
        name="train", cards=cards, mib=Mib(mib), cores=cores, limit_mib=Mib(limit_mib) or None
    )
    asked = {
        names.MEMORY: f"{mib}Mi",
        names.CARDS: str(cards),
        **({names.CORES: str(cores)} if cores else {}),
        **({names.MEMORY_LIMIT: f"{limit_mib}Mi"} if limit_mib else {}),
    }
    return a_granted_pod(
        name,
        PodNeed(containers=(need,)),
        annotations={**asked, **(annotations or {})},
        claim=claim,
        cpu=cpu,
        **spec,
    )
