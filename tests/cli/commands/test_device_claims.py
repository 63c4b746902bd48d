"""What commands say where pods hold cards by claims, against a live API server."""

from typing import Any

import msgspec

from cli.commands.cards import main as cards
from cli.commands.explain import main as explain
from cli.main import DONE, FAILED
from cli.removal import find_holders
from fracgpu import names
from fracgpu.cards.card import CardUuid
from fracgpu.device_claims.claims import claim_of
from fracgpu.state.pod_info import PodInfo, decode_pod_info
from kube.client import KubeClient
from kube.kinds import NODES, PODS, RESOURCE_CLAIMS, RESOURCE_QUOTAS
from tests.cli.live_cluster import NODE, Cli, furnish, watched
from tests.support.claims import a_claiming_pod, allocated, claim_name
from tests.support.waiting import until_true

CARD = CardUuid(f"GPU-{NODE}-1")


async def claiming(client: KubeClient, name: str, mib: int, **spec: Any) -> PodInfo:
    pod = a_claiming_pod(name, mib, claim=claim_name(name), **spec)
    created = await client.create(PODS, pod, namespace="default")
    return decode_pod_info(msgspec.json.encode(created))


async def claim(client: KubeClient, pod: PodInfo, *, listed: bool = True) -> None:
    assert pod.need is not None
    cards = {"train": [CARD]} if listed else None
    body = claim_of(pod.record, pod.device_claim, pod.need, cards)
    await client.create(RESOURCE_CLAIMS, body, namespace="default")


async def allocate(client: KubeClient, pod: PodInfo) -> None:
    """Allocate the claim of a pod and bind it, as kube-scheduler does."""
    namespace, name = pod.record.namespace, pod.record.name
    made = await client.get_object(RESOURCE_CLAIMS, pod.device_claim, namespace=namespace)
    found = allocated(made, {"train": [CARD]}, node=NODE, pod=pod.record)
    await client.replace(RESOURCE_CLAIMS, found, subresource="status")
    target = {"kind": "Node", "name": NODE}
    binding = {"metadata": {"uid": pod.record.uid}, "target": target}
    await client.bind(binding, namespace=namespace, name=name)


async def offer_by_claims(client: KubeClient) -> None:
    await furnish(client)
    said = {"metadata": {"annotations": {names.NODE_IDENTITY: "claims"}}}
    await client.patch(NODES, NODE, said)


async def test_cards_are_held_by_claims(cli: Cli) -> None:
    await offer_by_claims(cli.kube)
    pod = await claiming(cli.kube, "chat", 9_000)
    await claim(cli.kube, pod)
    await allocate(cli.kube, pod)

    assert await cli.call(cards) == DONE

    _, first, second = cli.read().out.splitlines()
    assert "0/24000" in first
    assert second.split()[-1] == "default/chat=9000"
    assert await find_holders(cli.kube) == ["default/chat"]


async def test_watching_shows_what_is_allocated(kube: KubeClient) -> None:
    await offer_by_claims(kube)
    async with watched(kube) as shown:
        pod = await claiming(kube, "chat", 9_000)
        await claim(kube, pod)
        await allocate(kube, pod)
        await until_true(lambda: shown[-1].held_mib == 9_000, what="the new claim is shown")


async def test_a_running_pod_names_its_card(cli: Cli) -> None:
    await offer_by_claims(cli.kube)
    pod = await claiming(cli.kube, "chat", 9_000)
    await claim(cli.kube, pod)
    await allocate(cli.kube, pod)

    assert await cli.call(explain, "chat") == DONE

    assert "card 1" in cli.read().out


async def test_a_waiting_pod_says_how_far_its_claim_has_come(cli: Cli) -> None:
    await offer_by_claims(cli.kube)
    await claiming(cli.kube, "none", 9_000)
    await claim(cli.kube, await claiming(cli.kube, "listed", 9_000))
    await claim(cli.kube, await claiming(cli.kube, "open", 30_000), listed=False)

    assert await cli.call(explain, "none") == DONE
    assert f"claim {claim_name('none')} is not made yet" in cli.read().out
    quota = {
        "metadata": {"name": "cards"},
        "spec": {"hard": {"requests.fracgpu.io/gpu-mem": "10k"}},
    }
    await cli.kube.create(RESOURCE_QUOTAS, quota, namespace="default")
    await cli.call(explain, "none")
    of = "requests.fracgpu.io/gpu-mem"
    assert (
        f"claim {claim_name('none')} is not made: exceeded quota: cards, requested: {of}=9000, "
        f"used: {of}=39000, limited: {of}=10k"
    ) in " ".join(cli.read().out.split())
    assert await cli.call(explain, "listed") == DONE
    assert f"claim {claim_name('listed')} lists 1 card" in cli.read().out
    assert await cli.call(explain, "open") == FAILED
    out = cli.read().out
    assert f"claim {claim_name('open')} is open, because no card fitted when it was made" in out
    assert "schedulerName" not in out
    group = {"podGroupName": "g"}
    grouped = await claiming(cli.kube, "grouped", 9_000, schedulingGroup=group)
    await claim(cli.kube, grouped, listed=False)
    assert await cli.call(explain, "grouped") == DONE
    assert "open, so that kube-scheduler places all of PodGroup g at once" in cli.read().out
