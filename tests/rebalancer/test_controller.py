"""The controller with an embedded API server: what keeps it from moving, and what it reports."""

import asyncio
from collections.abc import AsyncIterator, Collection
from dataclasses import replace
from datetime import datetime, timedelta

import pytest
import structlog
from msgspec import structs

from fracgpu import names
from fracgpu.cards.card import CardUuid, CordonEffect
from fracgpu.disruption.policy import Mode, RebalancerPolicy
from fracgpu.request.need import Strategy
from fracgpu.state.move_object import Ending, MovePhase, object_of
from fracgpu.state.node_info import read_node
from fracgpu.state.snapshot import Snapshot
from kube.client import KubeClient
from kube.kinds import CUSTOM_RESOURCE_DEFINITIONS, MOVES, NODES, PODS
from rebalancer.controller import has_slot
from rebalancer.usage.measured import Measured
from simulator.apiserver.server import ApiServer
from tests.fakes.clock import NOON
from tests.support.core import a_card
from tests.support.gpu import a_gpu_pod, a_sharing_node, register
from tests.support.moving import (
    NAMESPACE,
    Rig,
    Usage,
    a_rig,
    add_pod,
    cordons_of,
    effects_of,
    events,
    hot_usage,
    make_cluster,
)
from tests.support.rebalancing import ACTIVE, COOL_CARD, HOT_CARD, a_move, a_reading
from tests.support.records import a_record
from tests.support.waiting import until_true

DRY_RUN = RebalancerPolicy(mode=Mode.DRY_RUN, startup_grace_s=0)


async def all_are_there(kube: KubeClient) -> bool:
    pods = [await kube.get_object(PODS, name, namespace=NAMESPACE) for name in ("pod-a", "pod-b")]
    return not any("deletionTimestamp" in pod["metadata"] for pod in pods)


@pytest.fixture
async def rig(kube: KubeClient) -> AsyncIterator[Rig]:
    await make_cluster(kube)
    async with a_rig(kube) as rig:
        yield rig


async def test_without_prometheus_nothing_moves_and_readiness_says_why(
    rig: Rig, kube: KubeClient
) -> None:
    await rig.tick_until_planned()
    rig.usage.trouble = "unreachable: connection refused"
    with structlog.testing.capture_logs() as logs:
        for _ in range(5):
            await rig.tick()

    assert [line["event"] for line in logs].count("moving_suspended") == 1
    assert rig.figure("blind", reason="unreachable") == 1
    assert rig.loop.trouble() == "blind, no pod is moved: unreachable: connection refused"
    assert await all_are_there(kube)
    assert rig.record().phase is MovePhase.PLANNED
    rig.usage.trouble = ""
    await rig.tick()
    assert rig.loop.trouble() is None


async def test_a_replica_that_stands_by_is_ready(rig: Rig) -> None:
    assert rig.loop.trouble() is None


async def test_the_leader_is_not_ready_before_its_first_cycle(kube: KubeClient) -> None:
    await make_cluster(kube)
    async with a_rig(kube) as rig, asyncio.TaskGroup() as group:
        running = group.create_task(rig.loop.run())
        await asyncio.sleep(0)
        assert rig.loop.trouble() == "no cycle yet"
        await rig.clock.wait_for_sleepers(1)
        assert rig.loop.trouble() is None
        running.cancel()


async def test_a_changed_policy_starts_the_next_cycle_at_once(kube: KubeClient) -> None:
    await make_cluster(kube)
    async with a_rig(kube, policy=replace(DRY_RUN, tick_s=300)) as rig:
        async with asyncio.TaskGroup() as group:
            running = group.create_task(rig.loop.run())
            await rig.clock.wait_for_sleepers(1)
            assert rig.figure("cycle_seconds_count") == 1
            rig.config.value = replace(rig.config.value, mode=Mode.OFF)
            rig.changed.set()
            async with asyncio.timeout(10):
                while rig.figure("cycle_seconds_count") < 2:  # noqa: ASYNC110 - a stranger's count
                    await asyncio.sleep(0.01)
            running.cancel()
        assert rig.registry.get_sample_value(
            "fracgpu_rebalancer_cards", {"state": "cool"}
        ) == pytest.approx(1)


async def test_a_dry_run_asks_the_api_server_and_changes_nothing(kube: KubeClient) -> None:
    await make_cluster(kube)
    async with a_rig(kube, policy=DRY_RUN) as rig:
        for _ in range(6):
            await rig.tick()

        assert rig.record().ending is Ending.DRY_RUN
        assert rig.record().status.message == "allowed"
        assert rig.figure("moves_total", mode="dryRun", result="done", reason="dry_run") == 1
        assert rig.figure("rehearsals_total", code="allowed") == 1
        assert await all_are_there(kube)
        assert await cordons_of(kube, "n1") == {}


async def test_a_cycle_folds_the_cluster_once_also_while_moves_are_under_way(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    await rig.tick_until_planned()
    snapshot, folded = rig.cache.snapshot, []

    def folding(*, now: datetime) -> Snapshot:
        folded.append(now)
        return snapshot(now=now)

    monkeypatch.setattr(rig.cache, "snapshot", folding)
    await rig.tick()

    assert len(folded) == 1
    assert rig.record().phase is not MovePhase.PLANNED


async def test_switched_off_it_measures_and_does_nothing_else(kube: KubeClient) -> None:
    await make_cluster(kube)
    async with a_rig(kube, policy=replace(DRY_RUN, mode=Mode.OFF)) as rig:
        for _ in range(5):
            await rig.tick()

        assert rig.store.moves == ()
        assert rig.figure("cards", state="hot") == 1
        assert rig.figure("decisions_total", outcome="held", reason="off") == 5
        assert rig.figure("cordoned_cards") == 0
        assert await cordons_of(kube, "n1") == {}


async def test_nothing_moves_during_the_grace_after_start(kube: KubeClient) -> None:
    await make_cluster(kube)
    policy = RebalancerPolicy(mode=Mode.ACTIVE, startup_grace_s=60, tick_s=15)
    async with a_rig(kube, policy=policy) as rig, asyncio.TaskGroup() as group:
        running = group.create_task(rig.loop.run())
        for _ in range(4):
            await rig.clock.wait_for_sleepers(1)
            await rig.clock.advance(14)
            assert rig.store.moves == ()
            await rig.clock.advance(1)
        await rig.clock.wait_for_sleepers(1)
        await rig.clock.advance(15)
        await rig.clock.wait_for_sleepers(1)
        running.cancel()

    assert len(rig.store.moves) == 1


async def test_without_the_definition_of_moves_nothing_is_moved(kube: KubeClient) -> None:
    """What is not known of past moves is not taken for none."""
    await make_cluster(kube)
    await kube.delete(CUSTOM_RESOURCE_DEFINITIONS, "moves.fracgpu.io")
    async with a_rig(kube) as rig:
        for _ in range(5):
            await rig.tick()

        assert str(rig.loop.trouble()).startswith("the record of past moves is unreadable: Custom")
        assert await all_are_there(kube)


async def test_an_api_server_that_is_gone_is_waited_out(rig: Rig, api: ApiServer) -> None:
    await rig.tick()
    await api.stop()

    await rig.loop.cycle()

    assert str(rig.loop.trouble()).startswith("a request to the API server failed: ")
    assert rig.figure("api_errors_total") == 1


async def test_a_move_that_cannot_be_read_on_holds_up_no_other(rig: Rig, kube: KubeClient) -> None:
    odd = a_gpu_pod("an-odd", mib=4000, namespace=NAMESPACE)
    odd["spec"]["priority"] = "high"  # as a later version of Kubernetes might say it
    await kube.create(PODS, odd)
    for name in ("an-odd", "gone"):
        move = a_move(pod_uid=name, name=name, namespace=NAMESPACE)
        await rig.store.put(a_record(MovePhase.PLANNED, move=move))

    await rig.loop.cycle()

    assert {record.spec.pod.name: record.phase for record in rig.store.moves} == {
        "an-odd": MovePhase.PLANNED,
        "gone": MovePhase.ABORTED,
    }
    assert str(rig.loop.trouble()).startswith("a request to the API server failed: ")


async def test_cordons_last_as_long_however_slowly_prometheus_answers(kube: KubeClient) -> None:
    class Slow(Usage):
        async def observe(self, cards: Collection[CardUuid], policy: RebalancerPolicy) -> Measured:
            await at_work.clock.advance(200)
            return await super().observe(cards, policy)

    await make_cluster(kube)
    async with a_rig(kube, usage=Slow((await hot_usage(kube)).readings)) as at_work:
        for _ in range(2):
            await at_work.tick()
        (cordon,) = read_node(await kube.get(NODES, "n1")).cordons

        lasts_s = (cordon.until - at_work.clock.now()).total_seconds()
        assert lasts_s == at_work.config.value.cordon_s


async def test_a_cycle_ends_whether_or_not_all_queries_together_end_in_time(
    kube: KubeClient,
) -> None:
    class Endless(Usage):
        async def observe(self, cards: Collection[CardUuid], policy: RebalancerPolicy) -> Measured:
            await self.answers.wait()
            return await super().observe(cards, policy)

        answers = asyncio.Event()

    await make_cluster(kube)
    usage = Endless((await hot_usage(kube)).readings)
    async with a_rig(kube, usage=usage, queries_limit_s=0.05) as rig:
        for _ in range(3):
            await rig.tick()

        why = "slow: a cycle's queries took more than 0.05 s together"
        assert rig.loop.trouble() == f"blind, no pod is moved: {why}"
        assert rig.figure("blind", reason="slow") == 1
        assert rig.figure("prometheus_query_errors_total", reason="slow") == 3
        assert not rig.store.moves
        usage.answers.set()
        await rig.tick()
        assert rig.loop.trouble() is None


async def test_a_bad_edit_is_told_once_and_the_last_good_policy_goes_on(kube: KubeClient) -> None:
    await make_cluster(kube)
    async with a_rig(kube) as rig:
        rig.config.problem = "hotRatio is 80"
        rig.config.value = replace(rig.config.value, ignored_keys=("tickS",))
        await rig.tick_until_planned()

    told = await events(kube)
    assert (told.count("ConfigRefused"), told.count("SettingsIgnored")) == (1, 1)


async def test_a_second_hot_card_waits_for_the_first(rig: Rig, kube: KubeClient) -> None:
    """Both cards are hot: one move at most, and no card is left to move to."""
    rig.usage.readings[COOL_CARD] = a_reading(0.95, pods={"x": 0.5, "y": 0.45})
    for _ in range(6):
        await rig.tick()

    assert rig.store.moves == ()
    assert rig.figure("cards", state="hot") == 2
    # A quarter of two cards, and at least one, is closed; the other is only taken last.
    closed, avoided = CordonEffect.NO_SCHEDULE, CordonEffect.PREFER_NO_SCHEDULE
    effects = {**await effects_of(kube, "n1"), **await effects_of(kube, "n2")}
    assert effects == {COOL_CARD: closed, HOT_CARD: avoided}
    assert rig.figure("decisions_total", outcome="held", reason="no_target") > 0


@pytest.mark.parametrize(
    ("strategy", "target"), [(Strategy.PACK, "GPU-half"), (Strategy.SPREAD, COOL_CARD)]
)
async def test_the_target_is_what_the_clusters_strategy_would_choose(
    kube: KubeClient, strategy: Strategy, target: CardUuid
) -> None:
    await make_cluster(kube)
    half = CardUuid("GPU-half")
    cards = [a_card(COOL_CARD), a_card(half, index=1)]
    await kube.delete(NODES, "n2")
    await register(kube, a_sharing_node("n2", cards=cards))
    await add_pod(kube, "pod-c", card=half, node="n2")
    async with a_rig(kube) as rig:
        rig.placement.value = strategy
        rig.usage.readings[half] = a_reading(0.05)

        record = await rig.tick_until_planned()

    assert record.spec.target.card == target


async def test_a_node_that_goes_while_prometheus_answers_ends_nothing(kube: KubeClient) -> None:
    await make_cluster(kube)

    class NodeGoes(Usage):
        """Removes the hot card's node in the cycle in which the card becomes hot, the second."""

        asked = 0

        async def observe(self, cards: Collection[CardUuid], policy: RebalancerPolicy) -> Measured:
            measured = await super().observe(cards, policy)
            self.asked += 1
            if self.asked == 2:
                await kube.delete(NODES, "n1")
                await until_true(lambda: "n1" not in at_work.cache.nodes, what="the node is gone")
            return measured

    usage = NodeGoes((await hot_usage(kube)).readings)
    async with a_rig(kube, usage=usage) as at_work:
        for _ in range(3):
            await at_work.tick()

        assert at_work.figure("cards", state="hot") == 0
        assert at_work.store.moves == ()


async def test_paused_it_begins_nothing_within_a_cycle_and_finishes_what_is_under_way(
    kube: KubeClient,
) -> None:
    await make_cluster(kube)
    async with a_rig(kube, policy=replace(DRY_RUN, mode=Mode.ACTIVE, paused=True)) as rig:
        for _ in range(4):
            await rig.tick()
        assert rig.store.moves == ()
        assert rig.figure("decisions_total", outcome="held", reason="paused") > 0

    async with a_rig(kube) as rig:
        await rig.tick_until_planned()
        for _ in range(5):
            if rig.record().disturbed:
                break
            await rig.tick()
        assert rig.record().disturbed
        rig.config.value = replace(rig.config.value, paused=True)
        for _ in range(3):
            await rig.tick()

        assert rig.record().ending is None


def breaker_is_open(rig: Rig, name: str) -> float | None:
    return rig.registry.get_sample_value("fracgpu_rebalancer_breaker_open", {"name": name})


async def test_with_an_open_breaker_moves_are_only_shown_and_everything_says_why(
    rig: Rig, kube: KubeClient
) -> None:
    other = a_move(pod_uid="other", owner_uid="other", source="GPU-x", target="GPU-y")
    lost = a_record(MovePhase.EVICTING, move=other).ended(Ending.LOST, now=NOON)
    await rig.store.put(lost)
    with structlog.testing.capture_logs() as logs:
        for _ in range(4):
            await rig.tick()

    assert breaker_is_open(rig, "lost_pod") == 1
    assert {record.ending: record.spec.config_hash for record in rig.store.moves} == {
        Ending.LOST: "",
        # The policy of the cycle, whose mode an open breaker changes for the planner alone.
        Ending.DRY_RUN: rig.config.value.digest,
    }
    assert str(rig.loop.trouble()).startswith(
        "a circuit breaker is open, moves are only shown: lost_pod: a pod was lost; until"
    )
    assert "moving_suspended" in [line["event"] for line in logs]
    assert (await events(kube)).count("BreakerOpened") == 1
    await rig.clock.advance(86_400)
    await rig.tick()
    assert breaker_is_open(rig, "lost_pod") == 0
    assert rig.loop.trouble() is None


async def test_what_was_only_to_be_shown_is_not_made_if_its_phase_was_not_written_any_more(
    rig: Rig, kube: KubeClient
) -> None:
    other = a_move(pod_uid="other", owner_uid="other", source="GPU-x", target="GPU-y")
    await rig.store.put(a_record(MovePhase.EVICTING, move=other).ended(Ending.LOST, now=NOON))
    for _ in range(4):
        await rig.tick()
    *_, shown = rig.store.moves
    await kube.delete(MOVES, shown.name)
    await kube.create(MOVES, {"metadata": {"name": shown.name}, "spec": object_of(shown)["spec"]})
    for _ in range(4):
        await rig.tick()

    assert [move.ending for move in rig.store.moves] == [Ending.LOST, Ending.DRY_RUN]


async def test_recommending_it_shows_a_move_once_as_an_object_and_changes_nothing(
    kube: KubeClient,
) -> None:
    await make_cluster(kube)
    async with a_rig(kube, policy=replace(DRY_RUN, mode=Mode.RECOMMEND)) as rig:
        await rig.tick_until_planned()
        for _ in range(4):
            await rig.tick()

        assert rig.record().phase is MovePhase.RECOMMENDED
        assert not rig.record().disturbed
        assert rig.figure("decisions_total", outcome="held", reason="shown") > 0
        assert await all_are_there(kube)
        assert await cordons_of(kube, "n1") == {}


async def test_what_people_approve_is_done_in_the_mode_recommend(kube: KubeClient) -> None:
    await make_cluster(kube)
    async with a_rig(kube, policy=replace(DRY_RUN, mode=Mode.RECOMMEND)) as rig:
        await rig.tick_until_planned()
        shown = rig.record().name
        approval = {"metadata": {"annotations": {names.APPROVED: "true"}}}
        await kube.patch(MOVES, shown, approval)
        await rig.tick()

        assert rig.record().phase is MovePhase.PLANNED
        assert rig.record().spec.approved
        assert rig.record().reserved_until > rig.clock.now()
        assert len((await kube.list(MOVES)).items) == 1
        await rig.tick()
        assert rig.record().phase is MovePhase.SURGING
        assert await cordons_of(kube, "n1") == {}
        # Recommended once more: nobody has approved that.
        rig.config.value = replace(rig.config.value, mode=Mode.DRY_RUN)
        await rig.tick()
        assert rig.record().ending is Ending.PAUSED


async def test_an_approval_counts_although_an_earlier_move_of_the_pod_was_approved_as_well(
    kube: KubeClient,
) -> None:
    await make_cluster(kube)
    async with a_rig(kube, policy=replace(DRY_RUN, mode=Mode.RECOMMEND)) as rig:
        shown = await rig.tick_until_planned()
        before, then = structs.replace(shown.spec, approved=True), rig.clock.now() - timedelta(1)
        await rig.store.put(a_record(move=before, now=then).ended(Ending.EXPIRED, now=then))
        approval = {"metadata": {"annotations": {names.APPROVED: "true"}}}
        await kube.patch(MOVES, shown.name, approval)
        await rig.tick()

        assert [move.phase for move in rig.store.moves] == [MovePhase.ABORTED, MovePhase.PLANNED]


@pytest.mark.parametrize(("plan", "under_way", "free"), [("", "", False), ("p", "p", True)])
def test_approved_moves_of_one_plan_are_under_way_together(
    plan: str, under_way: str, free: bool
) -> None:
    shown = a_record(MovePhase.RECOMMENDED, move=a_move(pod_uid="one", plan=plan))
    other = a_record(MovePhase.SURGING, move=a_move(pod_uid="two", plan=under_way))
    one = replace(ACTIVE, max_in_flight=1)

    assert has_slot(shown, [shown], policy=one)
    assert has_slot(shown, [shown, other], policy=one) == free


async def test_an_approval_that_comes_too_late_is_not_acted_on(kube: KubeClient) -> None:
    await make_cluster(kube)
    async with a_rig(kube, policy=replace(DRY_RUN, mode=Mode.RECOMMEND)) as rig:
        await rig.tick_until_planned()
        shown = rig.record().name
        rig.usage.trouble = "unreachable: gone"  # nothing else is recommended meanwhile
        await rig.tick(seconds=3601)
        approval = {"metadata": {"annotations": {names.APPROVED: "true"}}}
        await kube.patch(MOVES, shown, approval)
        await rig.tick()

        assert [record.phase for record in rig.store.moves] == [MovePhase.RECOMMENDED]


async def test_a_pod_that_people_want_moved_is_moved_though_its_card_is_cool(
    kube: KubeClient,
) -> None:
    await make_cluster(kube)
    async with a_rig(kube, policy=replace(DRY_RUN, mode=Mode.RECOMMEND)) as rig:
        rig.usage.readings[HOT_CARD] = a_reading(0.1)
        await kube.patch(
            PODS,
            "pod-b",
            {"metadata": {"annotations": {names.MOVE_REQUESTED: "now"}}},
            namespace=NAMESPACE,
        )
        await rig.tick_until_planned()

        assert rig.record().spec.pod.name == "pod-b"
        assert rig.record().phase is MovePhase.PLANNED
        assert rig.record().spec.reason.message.startswith("people want it off card n1/0")


async def test_a_card_is_avoided_before_it_is_closed_and_closed_before_anything_moves(
    rig: Rig, kube: KubeClient
) -> None:
    hot = rig.usage.readings[HOT_CARD]
    assert hot is not None
    rig.usage.readings[HOT_CARD] = replace(hot, slow_hot_ratio=0.0)  # only the short window
    await rig.tick()
    assert await effects_of(kube, "n1") == {HOT_CARD: CordonEffect.PREFER_NO_SCHEDULE}
    assert (rig.figure("avoided_cards"), rig.figure("cordoned_cards")) == (1, 0)

    rig.usage.readings[HOT_CARD] = hot
    history = await rig.tick_until_disturbed(kube)

    avoided, closed = CordonEffect.PREFER_NO_SCHEDULE, CordonEffect.NO_SCHEDULE
    assert history[0] == (avoided, [])
    first = next(at for at, (effect, _) in enumerate(history) if effect is closed)
    assert history[:first] == [(avoided, [])] * first  # no Move, however early
    assert history[first] == (closed, [MovePhase.PLANNED])
    assert {effect for effect, _ in history[first:]} == {closed}
    assert history[-1][1] == [MovePhase.SURGING]
