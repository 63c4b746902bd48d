"""What the node agent may delete on a real kube-apiserver."""

from typing import Any

import pytest

from fracgpu import names
from kube.client import KubeClient
from kube.kinds import PODS
from tests.e2e.test_real_policies import harness  # noqa: F401 - a fixture
from tests.support.policed import Harness, a_pod, refusal

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

OWNER = {
    "apiVersion": "apps/v1",
    "kind": "ReplicaSet",
    "name": "train",
    "uid": "0f7d1b0a-0000-4000-8000-000000000000",
    "controller": True,
}
LIMITS = {names.GPU_SLOT: "1", names.GPU_MEM: "80"}


async def an_ended_pod(
    harness: Harness,  # noqa: F811
    name: str,
    *,
    node: str = "n1",
    owner: bool = True,
    reason: str = "UnexpectedAdmissionError",
    started_by: KubeClient | None = None,
) -> None:
    body: dict[str, Any] = a_pod(name, node=node)
    body["spec"]["containers"][0]["resources"] = {"limits": LIMITS}
    if owner:
        body["metadata"]["ownerReferences"] = [OWNER]
    # Nothing of deploy/ runs here, so the webhook does not see this namespace.
    await harness.admin.create(PODS, body, namespace="kube-system")
    if started_by is not None:
        wired = {"metadata": {"annotations": {names.WIRED: '{"main":["GPU-a"]}'}}}
        await started_by.patch(PODS, name, wired, namespace="kube-system")
    status = {"status": {"phase": "Failed", "reason": reason}}
    await harness.admin.patch(PODS, name, status, namespace="kube-system", subresource="status")


async def test_the_agent_deletes_rejected_pods_of_its_own_node_that_have_an_owner_and_no_other(
    harness: Harness,  # noqa: F811
) -> None:
    agent, stranger = await harness.agent_of("n1"), await harness.agent_of("n2")
    await an_ended_pod(harness, "refused")
    await an_ended_pod(harness, "bare", owner=False)
    await an_ended_pod(harness, "evicted", reason="Evicted")
    await an_ended_pod(harness, "elsewhere", node="n2")
    await an_ended_pod(harness, "ran", started_by=agent)

    only = "may delete only pods of the node it runs on that ask for a card"
    for client, name in (
        (agent, "bare"),
        (agent, "evicted"),
        (agent, "elsewhere"),
        (agent, "ran"),
        (stranger, "refused"),
    ):
        assert only in await refusal(client.delete(PODS, name, namespace="kube-system"))
    assert only in await refusal(agent.delete(PODS, "agent-n2", namespace=names.SYSTEM_NAMESPACE))
    await agent.delete(PODS, "refused", namespace="kube-system")

    left = {b"refused" in bytes(pod) for pod in (await harness.admin.list(PODS)).items}
    assert left == {False}
    await harness.admin.delete(
        PODS, "bare", namespace="kube-system"
    )  # others with the permission still may
