"""The policies of overlays/claims on a real kube-apiserver: claims and slices are not forged."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from fracgpu import names
from fracgpu.device_claims.devices import pool_spec
from kube.errors import Forbidden
from kube.kinds import (
    MUTATING_WEBHOOKS,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    VALIDATING_WEBHOOKS,
    Kind,
)
from tests.support.core import a_card
from tests.support.policed import DENIED, Harness, a_pod, policed_harness, refusal
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

Json = dict[str, Any]
OVERLAY = Path(__file__).parents[2] / "overlays" / "claims"
OURS = "fracgpu-0123456789"
TEMPLATES = Kind("resource.k8s.io/v1", "resourceclaimtemplates", "ResourceClaimTemplate", True)


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[Harness]:
    async with policed_harness(tmp_path, folder=OVERLAY) as harness:
        for kind in (MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS):  # nobody answers them
            await harness.admin.delete(kind, "fracgpu-webhook")

        async def all_in_force() -> bool:
            try:
                await harness.admin.create(
                    RESOURCE_CLAIMS, a_claim(OURS), namespace="default", dry_run=True
                )
            except Forbidden:
                return True
            return False

        await until(all_in_force, what="the policies in force", limit_s=60)
        yield harness


def a_claim(name: str, *, device_class: str = "fracgpu") -> Json:
    return {"metadata": {"name": name}, "spec": a_spec(device_class)}


def a_spec(device_class: str) -> Json:
    exactly = {"deviceClassName": device_class, "allocationMode": "ExactCount", "count": 1}
    return {"devices": {"requests": [{"name": "train", "exactly": exactly}]}}


def a_slice(node: str, *, name: str = "", driver: str = names.DRA_DRIVER) -> Json:
    spec = pool_spec(node, [a_card(f"GPU-{node}")], generation=1)
    return {"metadata": {"name": name or f"{node}-{driver}"}, "spec": {**spec, "driver": driver}}


async def test_only_the_scheduler_makes_claims_under_our_name_and_nothing_else(
    harness: Harness,
) -> None:
    admin = harness.admin
    scheduler = await harness.as_account("fracgpu-scheduler")

    async def refused(client: Any, body: Json, *, kind: Kind = RESOURCE_CLAIMS) -> str:
        said = await refusal(client.create(kind, body, namespace="default"))
        assert DENIED in said
        return said

    assert "that begin with fracgpu-" in await refused(admin, a_claim(OURS))
    placed = a_claim("mine", device_class="fracgpu-placed")
    assert "Only FracGPU makes claims" in await refused(admin, placed)
    template = {"metadata": {"name": "mine"}, "spec": {"spec": a_spec("fracgpu-placed")}}
    assert "Only FracGPU makes claims" in await refused(admin, template, kind=TEMPLATES)
    listed = {"name": "a", "deviceClassName": "fracgpu-placed"}
    either = {
        "metadata": {"name": "mine"},
        "spec": {"devices": {"requests": [{"name": "train", "firstAvailable": [listed]}]}},
    }
    assert "Only FracGPU makes claims" in await refused(admin, either)
    await admin.create(RESOURCE_CLAIMS, a_claim("mine"), namespace="default")
    await admin.create(
        TEMPLATES, {"metadata": {"name": "t"}, "spec": {"spec": a_spec("fracgpu")}},
        namespace="default",
    )  # fmt: skip

    for name, device_class in (("other", "fracgpu"), (OURS, "gpu.example.com")):
        body = a_claim(name, device_class=device_class)
        assert "may make only claims of FracGPU's" in await refused(scheduler, body)
    await scheduler.create(
        RESOURCE_CLAIMS, a_claim(OURS, device_class="fracgpu-placed"), namespace="default"
    )
    said = await refusal(scheduler.delete(RESOURCE_CLAIMS, "mine", namespace="default"))
    assert "may delete only claims whose names begin with fracgpu-" in said
    await scheduler.delete(RESOURCE_CLAIMS, OURS, namespace="default")
    said = await refusal(
        scheduler.patch(
            RESOURCE_CLAIMS, "mine", {"status": {}}, namespace="default", subresource="status"
        )
    )
    assert "cannot patch resource" in said


async def test_a_pod_without_a_grant_names_no_claim_of_ours(harness: Harness) -> None:
    admin = harness.admin
    for entry in (
        {"name": "fracgpu", "resourceClaimTemplateName": "t"},
        {"name": "mine", "resourceClaimName": OURS},
    ):
        said = await refusal(
            admin.create(PODS, a_pod("thief", resourceClaims=[entry]), namespace="default")
        )
        assert 'Only the FracGPU webhook gives a pod the claim "fracgpu"' in said
    own = [{"name": "mine", "resourceClaimName": "mine"}]
    await admin.create(PODS, a_pod("own", resourceClaims=own), namespace="default")
    # As the webhook leaves it.
    ours = [{"name": "fracgpu", "resourceClaimName": OURS}]
    granted = a_pod("granted", notes={names.GRANTED: "c: 1 MiB"}, resourceClaims=ours)
    await admin.create(PODS, granted, namespace="default")


async def test_devices_of_ours_are_published_by_the_agent_of_their_node(harness: Harness) -> None:
    admin, agent = harness.admin, await harness.agent_of("n1")

    async def refused(client: Any, body: Json) -> str:
        said = await refusal(client.create(RESOURCE_SLICES, body))
        assert DENIED in said
        return said

    assert "Only the FracGPU node agent publishes" in await refused(admin, a_slice("n1"))
    assert "only slices of its own driver" in await refused(agent, a_slice("n2"))
    other = a_slice("n1", driver="gpu.example.com")
    assert "only slices of its own driver" in await refused(agent, other)
    foreign_pool = a_slice("n1", name="x")
    foreign_pool["spec"]["pool"]["name"] = "n2"
    assert "only slices of its own driver" in await refused(agent, foreign_pool)
    without_pod = await harness.as_account("fracgpu-deviceplugin")
    assert "its token must say" in await refused(without_pod, a_slice("n1"))

    mine = await agent.create(RESOURCE_SLICES, a_slice("n1"))
    mine["spec"]["pool"]["generation"] = 2
    await agent.replace(RESOURCE_SLICES, mine)
    other_agent = await harness.agent_of("n2")
    theirs = mine["metadata"]["name"]
    said = await refusal(other_agent.delete(RESOURCE_SLICES, theirs))
    assert "only slices of its own driver" in said
    # kubelet deletes those of its node when it starts, and administrators may.
    await agent.delete(RESOURCE_SLICES, theirs)
    await agent.create(RESOURCE_SLICES, a_slice("n1"))
    await admin.delete(RESOURCE_SLICES, theirs)
