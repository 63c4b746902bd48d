"""What a cluster in which pods are moved has where its own kube-scheduler allocates the cards.

The webhook is played: pods of :func:`tests.support.gpu.a_gpu_pod` become pods with a claim. So are
the agents, but for what publishes their slices and taints.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from fracgpu import names
from fracgpu.cards.card import Card, NodeCards
from fracgpu.device_claims.claim import DeviceClaim, decode_claim
from fracgpu.device_claims.holders import with_claims
from fracgpu.k8s.quantity import parse
from fracgpu.request.need import ContainerNeed, PodNeed
from fracgpu.state.pod_info import PodInfo
from fracgpu.units import Mib
from kube.client import KubeClient
from kube.kinds import MUTATING_WEBHOOKS, RESOURCE_CLAIMS
from simulator.demo.definitions import install_definitions
from tests.support.claims import a_claim_entry, granted
from tests.support.claims_agent import claims_agent
from tests.support.objects import Json
from tests.support.real_claims import real_claims
from tests.support.real_scheduler import Harness
from tests.support.webhook import allow, an_admission_webhook, patching


@asynccontextmanager
async def moving_claims(
    workdir: Path, fleet: Mapping[str, Sequence[Card]]
) -> AsyncIterator[Harness]:
    """Start a control plane, our scheduler role, and an agent for each node; or skip the test."""
    async with (
        real_claims(workdir, fleet) as cluster,
        an_admission_webhook() as webhook,
        AsyncExitStack() as agents,
    ):
        client = cluster.client
        await install_definitions(client)
        for node, cards in fleet.items():
            await agents.enter_async_context(claims_agent(client, node, cards))
        webhook.answer = _as_claim
        await client.create(MUTATING_WEBHOOKS, webhook.configuration("claims", "pods"))
        async with cluster.controller() as roles:
            yield Harness(
                api=cluster.api,
                client=client,
                roles=roles.supervisor,
                telemetry_port=roles.telemetry["scheduler"],
                extender_port=0,
            )


def _as_claim(request: Json) -> Json:
    """Answer as our webhook does in this wiring."""
    pod = request["object"]
    (container,) = pod["spec"]["containers"]
    resources = container.get("resources") or {}
    mib = resources.get("limits", {}).get(names.GPU_MEM)
    if mib is None:
        return allow(request)
    name, cards = container["name"], int(resources["limits"][names.GPU_SLOT])
    of_each = Mib(int(parse(mib)) // cards)
    need = PodNeed(containers=(ContainerNeed(name=name, cards=cards, mib=of_each),))
    others = {
        key: amount
        for key, amount in resources.get("requests", {}).items()
        if not key.startswith(names.PREFIX)
    }
    claims = {"claims": [{"name": names.POD_CLAIM, "request": name}], "requests": others}
    note = names.GRANTED.replace("/", "~1")
    steps: list[Json] = [
        {"op": "replace", "path": "/spec/containers/0/resources", "value": claims},
        {"op": "add", "path": "/spec/resourceClaims", "value": [a_claim_entry()]},
        {"op": "add", "path": f"/metadata/annotations/{note}", "value": granted(need)},
        {"op": "replace", "path": "/spec/schedulerName", "value": "default-scheduler"},
    ]
    return patching(*steps)(request)


class ClaimedCards:
    """Says which cards pods hold by their claims."""

    def __init__(self, fleet: Mapping[str, Sequence[Card]]) -> None:
        self._nodes = [NodeCards(node=name, cards=tuple(cards)) for name, cards in fleet.items()]

    async def of(self, client: KubeClient, pods: Sequence[PodInfo]) -> list[PodInfo]:
        listed = await client.list(RESOURCE_CLAIMS)
        return self.join(pods, [decode_claim(bytes(raw)) for raw in listed.items])

    def join(self, pods: Sequence[PodInfo], claims: Sequence[DeviceClaim]) -> list[PodInfo]:
        return list(with_claims(pods, claims, self._nodes))
