"""What the node agent may delete, and who may clean up a node, on a real kube-apiserver."""

from typing import Any

import pytest

from fracgpu import names
from fracgpu.cards.node_marks import marks_of
from kube.client import KubeClient, PatchType
from kube.kinds import NODES, PODS
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


async def test_policies_let_an_administrator_clean_up_a_node_that_shares_no_more_and_forge_nothing(
    harness: Harness,  # noqa: F811
) -> None:
    agent = await harness.agent_of("n1")
    notes = {"annotations": {names.NODE_CARDS: '{"cards":[]}'}}
    await agent.patch(NODES, "n1", {"metadata": {**notes, "labels": {names.DRIVER_LABEL: "570"}}})
    amounts = {"status": {"capacity": {names.GPU_MEM: "96000", names.GPU_COUNT: "4"}}}
    await agent.patch(NODES, "n1", amounts, subresource="status")
    rebalancer = await harness.as_account("fracgpu-rebalancer")
    cordons = {"metadata": {"annotations": {names.NODE_CORDONS: "{}"}}}
    await rebalancer.patch(NODES, "n1", cordons)
    marks = marks_of(await harness.admin.get_object(NODES, "n1"))

    removal = marks.metadata_patch()
    said = await refusal(harness.admin.patch(NODES, "n1", removal))
    assert "once the node does not carry fracgpu.io/share=true" in said

    await harness.admin.patch(NODES, "n1", {"metadata": {"labels": {names.SHARE_LABEL: None}}})
    forged = {"metadata": {"annotations": {names.NODE_CARDS: '{"cards":[1]}'}}}
    assert "written only by" in await refusal(harness.admin.patch(NODES, "n1", forged))
    await harness.admin.patch(NODES, "n1", removal)
    await harness.admin.patch(NODES, "n1", marks.status_patch(), subresource="status")
    await harness.admin.patch(
        NODES,
        "n1",
        {"status": {"conditions": [{"type": names.SHARING_CONDITION, "$patch": "delete"}]}},
        subresource="status",
        how=PatchType.STRATEGIC,
    )
    assert not marks_of(await harness.admin.get_object(NODES, "n1"))
