"""A move by eviction, from plan to verification against an API server, also across crashes."""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from fracgpu import names
from fracgpu.disruption.move import HoldReason
from fracgpu.disruption.policy import Mode, RebalancerPolicy
from fracgpu.state.move_object import Ending, Move, MovePhase
from kube.client import KubeClient, Transport
from kube.errors import Conflict, Forbidden, Unavailable
from kube.kinds import NODES, PODS
from rebalancer.config import parse_policy
from tests.fakes.clock import VirtualClock
from tests.support.moving import (
    NAMESPACE,
    Rig,
    a_rig,
    add_budget,
    add_pod,
    cordons_of,
    end_pod,
    events,
    make_cluster,
    scale,
    set_owner_ready,
    set_ready,
)
from tests.support.rebalancing import COOL_CARD, HOT_CARD, a_reading

EVICT = {names.REBALANCE: "evict"}
ALWAYS_FROZEN = "changeFreezes: [{schedule: '* * * * *', duration: 1h}]"


async def terminating(kube: KubeClient, name: str = "pod-a") -> bool:
    pod = await kube.get_object(PODS, name, namespace=NAMESPACE)
    return "deletionTimestamp" in pod["metadata"]


class DelayingTransport:
    """Keeps evictions back: the last one reaches the API server when the test calls *delayed*."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self.delayed: Callable[[], Awaitable[bytes]] | None = None

    async def request(self, verb: str, path: str, **more: Any) -> bytes:
        if path.endswith("/eviction") and not more.get("query"):
            self.delayed = partial(self._transport.request, verb, path, **more)
            raise Unavailable(verb=verb, path=path, status=None, reason="", message="no answer")
        return await self._transport.request(verb, path, **more)

    def stream_lines(
        self, path: str, *, query: Mapping[str, str], inactivity_s: float
    ) -> AsyncGenerator[bytes, None]:
        return self._transport.stream_lines(path, query=query, inactivity_s=inactivity_s)


def begin(planned: Move, clock: VirtualClock) -> Move:
    """Return the record as it is when the eviction may have happened."""
    for phase in (MovePhase.RESERVED, MovePhase.NOTICED, MovePhase.EVICTING):
        planned = planned.to(phase, now=clock.now())
    return planned


async def replace_pod(rig: Rig, *, ready: bool = True) -> None:
    """Do what kubelet, ReplicaSet and scheduler do after the eviction of pod-a."""
    await end_pod(rig.kube, "pod-a")
    move = rig.store.moves[-1].name
    await add_pod(
        rig.kube,
        "pod-c",
        card=COOL_CARD,
        node="n2",
        ready=ready,
        annotations=EVICT,
        move=move,
    )


@pytest.fixture
async def rig(kube: KubeClient, clock: VirtualClock) -> AsyncIterator[Rig]:
    """A rebalancer of a cluster whose pods are evicted."""
    await make_cluster(kube, annotations=EVICT)
    async with a_rig(kube, clock=clock) as rig:
        yield rig


async def test_a_move_runs_from_plan_to_proof(kube: KubeClient, clock: VirtualClock) -> None:
    await make_cluster(kube, annotations=EVICT)
    await add_budget(kube, allowed=1)
    async with a_rig(kube, clock=clock) as rig:
        planned = await rig.tick_until_planned()
        assert planned.phase is MovePhase.PLANNED
        assert (planned.spec.pod.key, planned.spec.target.card) == ("ml/pod-a", COOL_CARD)
        assert await cordons_of(kube, "n1") == {HOT_CARD: "hot"}
        assert not await terminating(kube)  # cordon one cycle before the eviction

        await rig.tick()
        assert rig.record().phase is MovePhase.EVICTED
        assert await terminating(kube)
        assert not await terminating(kube, "pod-b")
        assert rig.figure("moves_in_flight") == 1

        await replace_pod(rig, ready=False)
        await rig.tick()
        assert rig.record().phase is MovePhase.EVICTED
        await set_ready(kube, "pod-c", ready=True)
        await rig.tick()
        assert rig.record().phase is MovePhase.VERIFYING
        assert (rig.record().landed, rig.record().replacement) == (COOL_CARD, "ml/pod-c")
        assert rig.figure("moves_in_flight") == 0
        assert await cordons_of(kube, "n1") == {HOT_CARD: "hot"}  # while it settles

        rig.usage.readings[HOT_CARD] = a_reading(0.45)
        for _ in range(45):
            await rig.tick()
        assert rig.record().phase is MovePhase.DONE
        assert rig.record().ending is Ending.RELIEVED
        assert await cordons_of(kube, "n1") == {HOT_CARD: "warm"}  # avoided: others are cooler
        assert rig.figure("moves_total", mode="evict", result="done", reason="relieved") == 1
        assert rig.figure("relief_points_total") == pytest.approx(45)
        assert rig.figure("misplaced_total") == 0
        assert rig.figure("evictions_total", code="allowed") == 1
        assert rig.figure("pod_unavailable_seconds_count") == 1

    assert await events(kube) == ["HotCardDetected", "MovePlanned", "Evicted", "MoveCompleted"]


async def test_no_eviction_before_the_cordon_is_visible(rig: Rig, kube: KubeClient) -> None:
    await rig.tick_until_planned()
    await kube.patch(
        NODES,
        "n1",
        {"metadata": {"annotations": {"fracgpu.io/cordons": None}}},
    )

    await rig.tick()

    assert rig.record().phase is MovePhase.PLANNED
    assert rig.record().status.message == "the cordon of its card"
    assert not await terminating(kube)
    await rig.tick()  # the cordon was written again in the previous cycle
    assert rig.record().phase is MovePhase.EVICTED


@pytest.mark.parametrize(
    ("budgets", "why"),
    [({"web": 0}, HoldReason.BUDGET), ({"web": 1, "another": 1}, HoldReason.SEVERAL_BUDGETS)],
)
async def test_a_budget_that_allows_nothing_or_two_of_them_end_the_plan_undisturbed(
    rig: Rig, kube: KubeClient, budgets: Mapping[str, int], why: HoldReason
) -> None:
    await rig.tick_until_planned()
    for name, allowed in budgets.items():
        await add_budget(kube, allowed=allowed, name=name)
    await rig.tick()

    assert rig.record().phase is MovePhase.ABORTED
    assert rig.record().ending is Ending.OUTDATED
    assert why.value in rig.record().status.message
    assert not rig.record().disturbed
    assert not await terminating(kube)
    assert rig.figure("evictions_total", code="blocked") == 0
    assert (await events(kube))[-1] == "MoveAborted"


async def test_a_plan_waits_while_the_cycle_is_blind(rig: Rig, kube: KubeClient) -> None:
    await rig.tick_until_planned()
    rig.usage.trouble = "unreachable: refused"
    await rig.tick()
    assert rig.record().phase is MovePhase.PLANNED
    assert not await terminating(kube)

    rig.usage.trouble = ""
    await rig.tick()

    assert rig.record().phase is MovePhase.EVICTED


@pytest.mark.parametrize(
    "changes",
    [
        {"mode": Mode.OFF},
        {"mode": Mode.DRY_RUN},
        {"paused": True},
        {"change_freezes": parse_policy(ALWAYS_FROZEN).change_freezes},
    ],
)
async def test_switching_off_pausing_or_a_change_freeze_stops_a_plan(
    rig: Rig, kube: KubeClient, changes: dict[str, Any]
) -> None:
    await rig.tick_until_planned()
    rig.config.value = replace(rig.config.value, **changes)

    await rig.tick()

    assert rig.record().ending is Ending.PAUSED
    assert not await terminating(kube)


async def test_switching_off_does_not_forget_a_pod_that_is_evicted(rig: Rig) -> None:
    await rig.tick_until_planned()
    await rig.tick()
    rig.config.value = replace(rig.config.value, mode=Mode.OFF)
    await replace_pod(rig)

    await rig.tick()

    assert rig.record().phase is MovePhase.VERIFYING


@pytest.mark.parametrize(("missed", "ending"), [(True, Ending.LOST), (False, Ending.SCALED_DOWN)])
async def test_a_pod_without_a_replacement_is_lost_if_its_owner_misses_it(
    kube: KubeClient, clock: VirtualClock, *, missed: bool, ending: Ending
) -> None:
    """Where somebody scaled the owner down meanwhile, nobody will ever see a replacement."""
    await make_cluster(kube, annotations=EVICT)
    policy = RebalancerPolicy(mode=Mode.ACTIVE, startup_grace_s=0, replacement_ttl_s=30)
    async with a_rig(kube, policy=policy, clock=clock) as rig:
        await rig.tick_until_planned()
        await rig.tick()
        if not missed:
            await scale(kube, 1)
        await set_owner_ready(kube, 1)
        await end_pod(kube, "pod-a")
        for _ in range(3):
            await rig.tick()

        assert rig.record().ending is ending
        assert rig.figure("lost_pods_total") == int(missed)


async def test_a_move_that_changed_nothing_is_useless(
    kube: KubeClient, clock: VirtualClock
) -> None:
    await make_cluster(kube, annotations=EVICT)
    async with a_rig(kube, clock=clock) as rig:
        await rig.tick_until_planned()
        await rig.tick()
        await replace_pod(rig)
        for _ in range(42):
            await rig.tick()

        assert rig.record().ending is Ending.USELESS
        assert rig.figure("ineffective_moves_total") == 1
    assert "MoveIneffective" in await events(kube)


async def test_a_move_whose_source_is_not_measured_afterwards_is_unverified(rig: Rig) -> None:
    await rig.tick_until_planned()
    await rig.tick()
    await replace_pod(rig)
    await rig.tick()
    rig.usage.readings[HOT_CARD] = None
    await rig.tick(seconds=601)

    assert rig.record().ending is Ending.UNVERIFIED


async def test_a_replacement_elsewhere_is_accepted_and_counted(rig: Rig, kube: KubeClient) -> None:
    await rig.tick_until_planned()
    await rig.tick()
    await end_pod(kube, "pod-a")
    await add_pod(kube, "pod-c", card=HOT_CARD, node="n1")
    await rig.tick()

    assert rig.record().phase is MovePhase.VERIFYING
    assert rig.figure("misplaced_total") == 1
    assert rig.figure("ping_pongs_total") == 1


async def test_a_stateful_pod_that_came_back_under_its_name_is_the_replacement(
    rig: Rig, kube: KubeClient
) -> None:
    await rig.tick_until_planned()
    await rig.tick()
    await end_pod(kube, "pod-a")
    await add_pod(kube, "pod-a", card=COOL_CARD, node="n2")
    await rig.tick()

    assert rig.record().phase is MovePhase.VERIFYING
    assert rig.record().replacement == "ml/pod-a"
    assert rig.figure("evictions_total", code="allowed") == 1


async def test_an_eviction_that_is_delayed_beyond_the_end_of_its_move_evicts_nobody(
    kube: KubeClient, clock: VirtualClock
) -> None:
    """It was sent by a leader that is dead by now, and was held up on its way."""
    await make_cluster(kube, annotations=EVICT)
    transport = DelayingTransport(kube.transport)
    async with a_rig(KubeClient(transport), clock=clock) as rig:
        await rig.tick_until_planned()
        await rig.tick()
        assert rig.record().phase is MovePhase.EVICTING
        assert transport.delayed is not None

    async with a_rig(kube, clock=clock) as heir:
        heir.config.value = replace(heir.config.value, mode=Mode.RECOMMEND)
        await heir.tick()
        assert heir.record().ending is Ending.PAUSED

        with pytest.raises(Conflict):
            await transport.delayed()

        assert not await terminating(kube)
        pod = await kube.get_object(PODS, "pod-a", namespace=NAMESPACE)
        assert pod["metadata"]["annotations"][names.NOTICE] == names.NOTICE_WITHDRAWN
        await heir.tick(seconds=61)
        pod = await kube.get_object(PODS, "pod-a", namespace=NAMESPACE)
        assert names.NOTICE not in pod["metadata"]["annotations"]


async def test_a_pod_that_cannot_be_changed_keeps_its_target_as_long_again_as_it_was_evicted(
    kube: KubeClient, clock: VirtualClock
) -> None:
    class Unchanging(DelayingTransport):
        async def request(self, verb: str, path: str, **more: Any) -> bytes:
            if verb == "PATCH" and path.endswith("/pods/pod-a"):
                raise Forbidden(verb=verb, path=path, status=403, reason="Forbidden", message="no")
            return await super().request(verb, path, **more)

    await make_cluster(kube, annotations=EVICT)
    async with a_rig(KubeClient(Unchanging(kube.transport)), clock=clock) as rig:
        await rig.tick_until_planned()
        await rig.tick()
        rig.config.value = replace(rig.config.value, mode=Mode.RECOMMEND)
        for seconds in (15, 600, 500):
            await rig.tick(seconds=seconds)
            assert rig.record().phase is MovePhase.EVICTING
        await rig.tick(seconds=100)

        assert rig.record().ending is Ending.PAUSED


async def test_budgets_survive_a_crash(kube: KubeClient, clock: VirtualClock) -> None:
    await make_cluster(kube, annotations=EVICT)
    async with a_rig(kube, clock=clock) as rig:
        await rig.tick_until_planned()
        await rig.tick()
        await replace_pod(rig)
        await rig.tick()

    async with a_rig(kube, clock=clock) as second:
        second.usage.readings[HOT_CARD] = a_reading(0.9, pods={"x": 0.45, "y": 0.45})
        for _ in range(8):
            await second.tick()

        assert len(second.store.moves) == 1
        assert second.figure("budget_remaining", scope="hour") == 11


async def test_an_eviction_blocked_half_way_is_tried_again_later_and_given_up_in_the_end(
    rig: Rig, kube: KubeClient, clock: VirtualClock
) -> None:
    planned = await rig.tick_until_planned()
    await add_budget(kube, allowed=0)
    await rig.store.put(begin(planned, clock))

    await rig.tick()
    assert rig.record().phase is MovePhase.EVICTING
    assert rig.record().status.attempts == 1
    retry_at = rig.record().status.retry_at
    assert retry_at is not None
    assert retry_at - rig.clock.now() >= timedelta(seconds=5)
    asked = rig.figure("evictions_total", code="blocked")
    await rig.tick(seconds=1)
    assert rig.figure("evictions_total", code="blocked") == asked  # it waits
    await rig.tick(seconds=601)

    assert rig.record().ending is Ending.BLOCKED
    assert not await terminating(kube)
    assert [record for record in rig.store.moves if record.under_way] == []


async def test_whoever_is_not_the_leader_any_more_evicts_nobody(rig: Rig, kube: KubeClient) -> None:
    await rig.tick_until_planned()
    rig.may_write = False

    with pytest.raises(PermissionError):
        await rig.tick()

    assert not await terminating(kube)
