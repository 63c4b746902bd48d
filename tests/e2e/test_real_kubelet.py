"""A real kubelet and containerd: each container gets its assigned card, and no other."""

import pytest

from fracgpu import names
from kube.kinds import NODES
from tests.support.gpu import some_cards
from tests.support.real_node import NODE, a_real_node

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1500)]


async def test_eight_large_cards_are_counted_to_the_last_mib() -> None:
    cards = some_cards("real-1", count=8, mib=81_920)
    async with a_real_node(cards=cards) as node:
        await node.wait_counted(slots=8 * 32, mib=655_360)
        await node.restart_kubelet()
        await node.wait_counted(slots=8 * 32, mib=655_360)

        # A recreated node: kubelet sets all capacity it does not know to zero.
        await node.client.delete(NODES, NODE)
        await node.restart_kubelet()
        await node.wait_counted(slots=8 * 32, mib=655_360)
        conditions = (await node.node())["status"]["conditions"]
        (sharing,) = [
            condition for condition in conditions if condition["type"] == names.SHARING_CONDITION
        ]
        assert sharing["status"] == "True"
        assert "655360 MiB" in sharing["message"]
