"""An agent leaves its node to the next one: told first, served on, and only one acts at a time."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial

import pytest
from prometheus_client import CollectorRegistry

from deviceplugin.handover import ClaimsHandover, Handover, NodeLock
from deviceplugin.metrics import DevicePluginMetrics
from deviceplugin.node.node_status import NodeStatusUpdater
from fracgpu import names
from fracgpu.state.pod_info import PodInfo
from simulator.background import background
from tests.deviceplugin.builders import NODE, FakeCards, a_card, a_pod, a_tracker
from tests.deviceplugin.dra.test_server import a_rig as a_plugin
from tests.deviceplugin.kubelet.test_registration import Rig, a_rig, a_stream
from tests.deviceplugin.node.test_capacity import FakeNode
from tests.fakes.clock import NOON
from tests.support.node import short_folder
from tests.support.waiting import until, until_true

SETTLE_S = 3.0


@dataclass(slots=True)
class Parts:
    rig: Rig
    node: FakeNode
    pods: list[PodInfo]
    handover: Handover
    beats: list[None]
    unasked: list[str]

    @property
    def taking(self) -> bool:
        sharing = self.node.state.sharing
        return sharing is not None and sharing.shared


@asynccontextmanager
async def parts() -> AsyncIterator[Parts]:
    async with a_rig() as rig:
        tracker = a_tracker(FakeCards(a_card()), rig.clock)
        await tracker.refresh()
        node, pods, beats, unasked = FakeNode(), list[PodInfo](), list[None](), list[str]()
        updater = NodeStatusUpdater(
            node=NODE,
            tracker=tracker,
            current=node.current,
            writer=node,
            clock=rig.clock,
            metrics=DevicePluginMetrics(CollectorRegistry()),
            unregistered=lambda: rig.registration.problem,
        )
        handover = another(rig, updater, pods, beats, unasked)
        await rig.kubelet.start()
        await rig.server.start()
        try:
            async with background(handover.run()):
                await until_true(lambda: rig.count == 1, what="the agent has registered")
                async with a_stream(rig):
                    await updater.sync()
                    yield Parts(rig, node, pods, handover, beats, unasked)
        finally:
            handover.release()


def another(
    rig: Rig,
    updater: NodeStatusUpdater,
    pods: list[PodInfo],
    beats: list[None],
    unasked: list[str],
) -> Handover:
    return Handover(
        server=rig.server,
        registration=rig.registration,
        updater=updater,
        pods=lambda: pods,
        unasked=lambda: bool(unasked),
        old_folder=rig.server.socket.parent / "before",
        clock=rig.clock,
        settle_s=SETTLE_S,
        on_wait=lambda: beats.append(None),
    )


async def test_a_leaving_agent_tells_the_scheduler_first_and_serves_until_pods_are_admitted() -> (
    None
):
    async with parts() as there, asyncio.TaskGroup() as group:
        assert there.taking
        bound = replace(a_pod("bound"), started_at=None)
        there.pods.append(bound)

        leaving = group.create_task(there.handover.stop(60))
        await until_true(lambda: not there.taking, what="the node says that it takes no pods")
        await there.rig.clock.wait_for_sleepers(2)
        await there.rig.clock.advance(SETTLE_S + 10)
        served = there.rig.server.intact
        there.pods[:] = [replace(bound, started_at=NOON)]

        async def left() -> bool:
            # The server stops in real time, and what it waits for then is on our clock.
            await there.rig.clock.advance(1)
            return leaving.done()

        await until(left, what="the agent has left")

        assert served
        assert not there.rig.server.intact
        assert there.node.state.sharing is not None
        assert there.node.state.sharing.reason == names.AGENT_NOT_REGISTERED
        assert there.node.state.capacity[names.GPU_MEM] == "8000"


async def test_a_leaving_agent_waits_until_the_runtime_has_asked_for_what_kubelet_may_start() -> (
    None
):
    async with parts() as there, asyncio.TaskGroup() as group:
        there.unasked.append("train")
        leaving = group.create_task(there.handover.stop(60))
        await until_true(lambda: not there.taking, what="the node says that it takes no pods")

        async def stopped() -> bool:
            await there.rig.clock.advance(1)
            return not there.rig.server.intact

        await until(stopped, what="kubelet is answered no more")
        await there.rig.clock.advance(10)
        waited = not leaving.done()
        there.unasked.clear()

        async def left() -> bool:
            await there.rig.clock.advance(1)
            return leaving.done()

        await until(left, what="the agent has left")
        assert waited


async def test_a_pod_that_kubelet_never_admits_keeps_an_agent_no_longer_than_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with parts() as there:
        there.pods.append(replace(a_pod("bound"), started_at=None))
        stop, left_s = there.rig.server.stop, list[float]()

        async def stop_noted(limit_s: float) -> None:
            left_s.append(limit_s)
            await stop(limit_s)

        monkeypatch.setattr(there.rig.server, "stop", stop_noted)
        await there.handover.stop(0.1)

        assert not there.rig.server.intact
        assert left_s == [0.0], "of the one limit for both"


async def test_two_agents_never_act_at_once_and_the_next_follows_whatever_ended_the_first() -> None:
    async with parts() as there:
        acted: list[str] = []

        async def act() -> None:
            acted.append("second")
            await asyncio.Event().wait()

        async with (
            a_rig_beside(there) as second,
            background(second.run(), second.when_acting(act)()),
        ):
            await until_true(lambda: len(there.beats) > 0, what="the second one waits")
            early = (second.acts, list(acted))

            there.handover.release()  # as the kernel does at the end of a process
            await there.rig.clock.advance(1)
            await until_true(lambda: acted == ["second"], what="the second one acts")

        assert early == (False, [])


@asynccontextmanager
async def a_rig_beside(there: Parts) -> AsyncIterator[Handover]:
    updater = NodeStatusUpdater(
        node=NODE,
        tracker=a_tracker(FakeCards(a_card()), there.rig.clock),
        current=there.node.current,
        writer=there.node,
        clock=there.rig.clock,
        metrics=DevicePluginMetrics(CollectorRegistry()),
    )
    second = another(there.rig, updater, there.pods, there.beats, [])
    try:
        yield second
    finally:
        second.release()


async def test_with_claims_the_next_agent_serves_at_once_and_acts_after_the_first_one() -> None:
    with short_folder() as root:
        first, following = a_plugin(root), a_plugin(root)
        one, other = (
            ClaimsHandover(rig.server, root, clock=rig.clock, on_wait=lambda: None)
            for rig in (first, following)
        )
        async with asyncio.TaskGroup() as group:
            running = [group.create_task(one.run(), name="one")]
            await one.start()
            await until_true(lambda: one.acts, what="the first one acts")
            running.append(group.create_task(other.run(), name="other"))
            await other.start()
            await following.clock.wait_for_sleepers(1)

            assert len(first.registered()) == 2
            assert not other.acts

            await one.stop(0)
            assert len(first.registered()) == 1
            one.release()
            await following.clock.advance(0.1)
            await until_true(lambda: other.acts, what="the next one acts")

            for task in running:
                task.cancel()
        await other.stop(0)
        other.release()


async def test_an_agent_waits_also_for_one_of_before_that_locked_the_drivers_folder_alone() -> None:
    with short_folder() as root:
        first, following = a_plugin(root), a_plugin(root)
        before = NodeLock(
            first.server,
            first.server.folder,
            old_folder=root / "none",
            clock=first.clock,
            on_wait=lambda: None,
        )
        await first.server.start()
        await before.take()
        waits: list[None] = []
        claims = ClaimsHandover(
            following.server, root, clock=following.clock, on_wait=lambda: waits.append(None)
        )
        slots = NodeLock(
            following.server,
            root,
            old_folder=following.server.folder,
            clock=following.clock,
            on_wait=lambda: waits.append(None),
        )
        for agent in (claims, slots):
            waits.clear()
            async with asyncio.TaskGroup() as group:
                taking = group.create_task(agent.take(), name="take")
                await until_true(lambda: len(waits) > 0, what="the next one waits")
                assert not taking.done()

                before.release()
                await following.clock.advance(0.1)
                await until_true(taking.done, what="the next one has the node")
            late: list[None] = []
            third = NodeLock(
                first.server,
                root,
                old_folder=root / "none",
                clock=first.clock,
                on_wait=partial(late.append, None),
            )
            async with background(third.take()):
                await until_true(partial(bool, late), what="a third one waits")
            third.release()
            agent.release()
            await before.take()
        before.release()
        await first.server.stop(0)
