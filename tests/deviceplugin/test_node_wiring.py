"""Which wiring an agent serves, and when it goes over to the other one."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace

import pytest

from component.wiring import Wiring, Wirings
from deviceplugin.node.capacity import NodeState, Sharing
from deviceplugin.node_wiring import NodeWiring, UsersClaims, served
from fracgpu import names
from fracgpu.state.pod_info import PodInfo
from process.lifecycle import EndProcess
from simulator.background import background
from tests.deviceplugin.builders import NODE, a_pod
from tests.deviceplugin.dra.builders import FakeApi, a_users_claim, info, pod_body
from tests.fakes.clock import VirtualClock

SLOTS, CLAIMS = Wiring.DEVICE_PLUGIN, Wiring.CLAIMS
BOTH = Wirings(both=True)


@pytest.mark.parametrize(
    ("wanted", "holders", "now", "expected"),
    [
        (SLOTS, set(), None, SLOTS),
        (CLAIMS, set(), None, CLAIMS),
        (CLAIMS, {SLOTS}, None, SLOTS),
        (CLAIMS, {SLOTS, CLAIMS}, None, SLOTS),
        (CLAIMS, {SLOTS}, SLOTS, SLOTS),
        (CLAIMS, set(), SLOTS, CLAIMS),
        (CLAIMS, {SLOTS}, CLAIMS, SLOTS),
        (CLAIMS, {SLOTS, CLAIMS}, CLAIMS, CLAIMS),
        (SLOTS, {CLAIMS}, SLOTS, CLAIMS),
    ],
)
def test_pods_keep_the_wiring_by_which_they_hold_cards(
    wanted: Wiring, holders: set[Wiring], now: Wiring | None, expected: Wiring
) -> None:
    assert served(wanted, holders, now=now) is expected


class Rig:
    """An agent that serves slots, with its node and pods."""

    def __init__(self, wirings: Wirings = BOTH, api: FakeApi | None = None) -> None:
        self.api = api or FakeApi()
        self.users = UsersClaims(self.api, node=NODE)
        self.clock = VirtualClock()
        self.node = NodeState(labels={names.SHARE_LABEL: "true"}, sharing=self.sharing(shared=True))
        self.pods: dict[str, PodInfo] | None = {}
        self.changes = 0
        self.ended: list[str] = []
        self.wiring = NodeWiring(
            wirings=wirings,
            serving=SLOTS,
            node=lambda: self.node,
            pods=lambda: self.pods,
            claims_held=self.claims_held,
            settle_s=3.0,
            clock=self.clock,
            on_change=self.changed,
        )

    async def run(self) -> None:
        """Follow the label until the agent is to end, and keep why."""
        try:
            await self.wiring.run()
        except EndProcess as end:
            self.ended.append(str(end))

    async def claims_held(self, pods: Mapping[str, PodInfo]) -> bool:
        return await self.users.any(pods)

    def sharing(self, *, shared: bool) -> Sharing:
        return Sharing(shared=shared, reason="", message="")

    def changed(self) -> None:
        self.changes += 1

    def label(self, wiring: str) -> None:
        labels = {**self.node.labels, names.WIRING_LABEL: wiring}
        self.node = replace(self.node, labels=labels)
        self.wiring.changed()

    async def say_so(self) -> None:
        """Write the condition, as the agent does."""
        self.node = replace(self.node, sharing=self.sharing(shared=False))
        self.wiring.changed()
        await self.clock.advance(0.0)


async def test_the_capacity_is_taken_back_only_once_the_condition_has_been_there_a_while() -> None:
    rig = Rig()
    holder = a_pod("holder", assigned={"train": [("GPU-a", 1000)]})
    rig.pods = {"uid": holder}
    async with background(rig.wiring.run()):
        await rig.clock.advance(0.0)
        rig.label("claims")
        await rig.clock.advance(10.0)
        switching = rig.wiring.switching
        assert switching is not None
        assert not switching.withdrawn
        assert "goes over to wiring claims; pods of wiring devicePlugin" in switching.problem

        await rig.say_so()
        await rig.clock.advance(4.0)
        switching = rig.wiring.switching
        assert switching is not None
        assert switching.withdrawn
        assert rig.changes == 1

        rig.label("devicePlugin")  # on second thoughts
        await rig.clock.advance(1.0)
        assert rig.wiring.switching is None


async def test_the_agent_ends_once_the_last_holder_is_gone() -> None:
    rig = Rig()
    rig.pods = {"uid": a_pod("holder", assigned={"train": [("GPU-a", 1000)]})}

    async with asyncio.TaskGroup() as group:
        group.create_task(rig.run())
        rig.label("claims")
        await rig.say_so()
        await rig.clock.advance(20.0)
        assert rig.ended == []
        rig.pods = None  # not known, so somebody may still hold a card
        rig.wiring.changed()
        await rig.clock.advance(0.0)
        assert rig.ended == []

        rig.pods = {}
        rig.wiring.changed()
        await rig.clock.advance(0.0)

        assert rig.ended == ["this node is served by wiring claims from now on"]


async def test_a_label_for_a_wiring_that_the_cluster_has_not_closes_the_node() -> None:
    rig = Rig(Wirings())
    rig.label("claims")

    switching = rig.wiring.switching

    assert switching is not None
    assert switching.problem == (
        "no card is shared: label fracgpu.io/wiring is 'claims'; want devicePlugin, as the key "
        "wiring of ConfigMap fracgpu-config says"
    )


@pytest.mark.parametrize("ours", [True, False])
async def test_a_late_pod_with_a_claim_of_its_users_holds_a_card_by_it(ours: bool) -> None:
    late = pod_body("late", need=None, claims={"gpu": "mine"})
    claim = a_users_claim(late)
    if not ours:
        for result in claim["status"]["allocation"]["devices"]["results"]:
            result["driver"] = "nic.example.com"
    rig = Rig(api=FakeApi(late, claims=[claim]))
    rig.api.down = True

    async with background(rig.run()):
        holder = a_pod("holder", assigned={"train": [("GPU-a", 1000)]})
        rig.pods = {"uid": holder, "uid-late": info(late)}
        await rig.clock.advance(2.0)
        rig.api.down = False
        await rig.clock.advance(2.0)
        assert rig.ended == [], "what slots hold is counted on"
        asked = len(rig.api.calls)

        rig.pods = {"uid-late": info(late)}
        await rig.clock.advance(2.0)

        assert len(rig.api.calls) == asked, "read once"
        text = "this node is served by wiring claims from now on"
        assert rig.ended == ([text] if ours else [])
