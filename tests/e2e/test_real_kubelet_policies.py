"""A real kubelet keeps working under the policies of deploy/."""

from datetime import datetime
from typing import Any

import pytest

from fracgpu import names
from kube.errors import Forbidden
from kube.kinds import NAMESPACES, NODES
from tests.support.gpu import some_cards
from tests.support.kubectl import DEPLOY, Kubectl
from tests.support.real_node import NODE, RealNode, a_real_node
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(400)]

CARD_MIB = 24_000
FORGED = {"status": {"capacity": {names.GPU_MEM: "999k"}}}


async def forging_is_refused(node: RealNode) -> bool:
    try:
        await node.client.patch(NODES, NODE, FORGED, subresource="status", dry_run=True)
    except Forbidden as error:
        return "is written only by the FracGPU agent of that node" in str(error)
    return False


async def heartbeat(node: RealNode) -> datetime:
    conditions = (await node.node())["status"]["conditions"]
    (ready,) = [condition for condition in conditions if condition["type"] == "Ready"]
    assert ready["status"] == "True"
    return datetime.fromisoformat(ready["lastHeartbeatTime"])


async def test_kubelet_registers_reports_and_ends_pods_while_nobody_can_forge_capacity() -> None:
    cards = some_cards(NODE, count=2, mib=CARD_MIB)
    async with a_real_node(cards=cards) as node:
        # A pod that kubelet admits before the agent has registered gets no slot, nor a card.
        await node.wait_counted(slots=64, mib=2 * CARD_MIB)
        # This kubelet, and here the agent too, are administrators: the policies apply to them too.
        pod = await node.bind_pod(0, mib=400)
        await node.wait_running([pod["metadata"]["uid"]])
        before: dict[str, Any] = (await node.node())["status"]
        kubectl = Kubectl.find(node.root / "kubeconfig")
        await node.client.create(NAMESPACES, {"metadata": {"name": names.SYSTEM_NAMESPACE}})
        await kubectl("apply", "-f", str(DEPLOY / "policies.yaml"))
        await until(lambda: forging_is_refused(node), what="the policies in force", limit_s=60)

        earlier = await heartbeat(node)
        await node.restart_kubelet()

        async def reported_again() -> bool:
            return await heartbeat(node) > earlier

        await until(reported_again, what="kubelet's status after its restart", limit_s=120)
        await node.wait_counted(slots=64, mib=2 * CARD_MIB)

        async def counted_as_before() -> bool:
            # kubelet's first report after its start leaves the amount out; the agent puts it back.
            capacity = (await node.node())["status"]["capacity"]
            return bool(capacity.get(names.GPU_MEM) == before["capacity"][names.GPU_MEM])

        await until(counted_as_before, what="the same gpu-mem as before the restart", limit_s=60)
        await node.delete([pod])
        await node.wait_gone([pod])
        assert "ValidatingAdmissionPolicy" not in node.kubelet.log.read_text()
