"""A real node whose cards are claimed: the stock kube-scheduler places pods, and kubelet prepares.

The pods are as the webhook admits them, and their claims as the claims controller creates them.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from fracgpu import names
from fracgpu.cards.card import Card
from fracgpu.device_claims.claims import Shortlists, claim_of
from fracgpu.device_claims.devices import is_offered
from fracgpu.request.need import PodNeed
from fracgpu.state.pod_info import decode_pod_info
from kube.client import KubeClient
from kube.kinds import RESOURCE_CLAIMS, RESOURCE_SLICES
from kube.objects import decode_object
from simulator.envtest.control_plane import ControlPlane
from tests.support.claims import a_claim_entry, granted
from tests.support.claims_wiring import install_claims
from tests.support.node import messages, until_an_event_says
from tests.support.real_apiserver import WITHOUT_NODES, start_stock_scheduler
from tests.support.real_node import RealNode, a_container, a_real_node, a_real_pod
from tests.support.waiting import until

Json = dict[str, Any]


async def start_stock_scheduling(
    api: ControlPlane, client: KubeClient, *, wiring: str = "claims"
) -> None:
    """Start the stock kube-scheduler and controllers, with what the chart installs for claims."""
    await install_claims(client, wiring)
    await api.start_controller_manager(WITHOUT_NODES)
    await start_stock_scheduler(api, api.kubeconfig(api.workdir / "stock.kubeconfig"))


@asynccontextmanager
async def a_claimed_node(*, cards: Sequence[Card]) -> AsyncIterator[RealNode]:
    """Start a control plane and a node in the wiring by claims, once its slice has the cards."""
    async with a_real_node(cards=cards, before=start_stock_scheduling) as node:
        await wait_slice(node, limit_s=90)
        yield node


async def slice_of(node: RealNode) -> Json | None:
    """Return the node's only slice."""
    listed = await node.client.list(RESOURCE_SLICES)
    found: list[Json] = [decode_object(raw) for raw in listed.items]
    assert len(found) <= 1, found
    return found[0] if found else None


async def wait_slice(
    node: RealNode, *, cards: Sequence[str] | None = None, limit_s: float = 30
) -> Json:
    """Wait until the slice has *cards*, by default all; return it."""
    wanted = {card.uuid for card in node.cards if is_offered(card)} if cards is None else set(cards)
    found: Json = {}

    async def there() -> bool:
        assert node.agent.alive or not wanted, node.agent.tail()
        found.clear()
        found.update(await slice_of(node) or {})
        devices = found.get("spec", {}).get("devices") or ()
        return {each["attributes"]["uuid"]["string"] for each in devices} == wanted

    try:
        await until(there, what=f"a slice of {len(wanted)} cards", limit_s=limit_s)
    except AssertionError as error:
        raise AssertionError(f"{error}: {found}; {node.agent.tail()}") from None
    return found


def a_claimed_pod(
    node: RealNode, need: PodNeed, *, inits: Sequence[str] = (), stay: bool = True
) -> Json:
    """Return a pod as the webhook admits one: a claim's name, requests by container, the grant."""
    containers = {
        one.name: {
            **a_container(one.name, mib=one.mib, slots=0, stay=stay and one.name not in inits),
            "resources": {"claims": [{"name": names.POD_CLAIM, "request": one.name}]},
        }
        for one in need.containers
    }
    body = a_real_pod(
        [spec for name, spec in containers.items() if name not in inits],
        inits=[containers[name] for name in inits],
        reports=node.reports,
    )
    body["metadata"]["annotations"] = {names.GRANTED: granted(need)}
    del body["spec"]["schedulerName"]
    body["spec"]["resourceClaims"] = [a_claim_entry()]
    return body


def claim_name(pod: Json) -> str:
    name: str = pod["spec"]["resourceClaims"][0]["resourceClaimName"]
    return name


def claim_for(pod: Json, need: PodNeed, cards: Shortlists | None = None) -> Json:
    """Return the claim that the controller creates for a pod; an open one without *cards*."""
    info = decode_pod_info(msgspec.json.encode(pod))
    return claim_of(info.record, claim_name(pod), need, cards)


async def run(
    node: RealNode, need: PodNeed, cards: Shortlists | None = None, **options: Any
) -> Json:
    """Create a pod and its claim, and wait until it runs."""
    pod = await node.create(a_claimed_pod(node, need, **options))
    await node.client.create(RESOURCE_CLAIMS, claim_for(pod, need, cards))
    await wait_runs(node, pod)
    return pod


async def wait_runs(node: RealNode, pod: Json) -> None:
    uid = pod["metadata"]["uid"]
    try:
        await node.wait_running([uid], limit_s=120)
    except AssertionError as error:
        raise AssertionError(f"{error}; events: {await messages(node.client, pod)}") from None


async def wait_message(node: RealNode, pod: Json, text: str) -> None:
    """Wait until an Event of a pod says *text*."""
    try:
        await until_an_event_says(node.client, pod, text, limit_s=90)
    except AssertionError as error:
        raise AssertionError(f"{error}; {node.agent.tail()}") from None


async def listed_cards(node: RealNode, pod: Json) -> Mapping[str, frozenset[str]]:
    """Return the devices that kubelet's PodResources lists for the containers of a pod."""
    name = pod["metadata"]["name"]
    holders = await node.pod_resources.holders()
    return {each.container: each.slot_ids for each in holders if each.pod == name}


async def wait_bound(node: RealNode, pods: Sequence[Json]) -> None:
    """Wait until kube-scheduler has bound all of *pods*."""
    wanted = {pod["metadata"]["uid"] for pod in pods}

    async def bound() -> bool:
        found = await node.pods()
        return all(found[uid]["spec"].get("nodeName") for uid in wanted)

    await until(bound, what=f"{len(wanted)} pods are bound", limit_s=30)
