"""A real kubelet and the stock kube-scheduler: each container gets the card its claim was given."""

from typing import Any, Final

import pytest

from fracgpu import names
from fracgpu.device_claims.devices import device_name
from kube.kinds import NODES, RESOURCE_CLAIMS
from tests.support.claimed_node import (
    a_claimed_node,
    a_claimed_pod,
    claim_for,
    claim_name,
    listed_cards,
    run,
    wait_message,
    wait_runs,
    wait_slice,
)
from tests.support.core import a_need, a_pod_need
from tests.support.gpu import some_cards
from tests.support.real_node import NODE

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900)]

Json = dict[str, Any]

MIB: Final = 8000


async def test_half_a_card_runs_on_a_stock_control_plane() -> None:
    cards = some_cards(NODE, count=2, mib=MIB)
    need = a_pod_need(a_need(MIB // 2, name="train"))
    async with a_claimed_node(cards=cards) as node:
        wanted = cards[1].uuid

        pod = await run(node, need, {"train": [wanted]})

        (sight,) = node.sights(pod)
        assert sight.devices == node.expected([(wanted, MIB // 2)])
        assert sight.env[names.ENV_VISIBLE_DEVICES] == wanted
        assert sight.env[names.ENV_MEM_MIB] == str(MIB // 2)
        assert await listed_cards(node, pod) == {"train": frozenset({device_name(wanted)})}
        capacity = (await node.client.get_object(NODES, NODE))["status"]["capacity"]
        assert not {names.GPU_MEM, names.GPU_SLOT} & capacity.keys()
