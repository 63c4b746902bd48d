"""Pods of lower priority leave for one that fits nowhere, and nobody else takes what they leave."""

import contextlib
import itertools
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fracgpu.device_claims.devices import device_name
from fracgpu.k8s.disruption_budget import PodDisruptionBudget
from kube.errors import Unavailable
from tests.scheduler.claims.harness import (
    ClaimsApi,
    ClaimsHarness,
    Fault,
    Killed,
    a_pod,
    an_api,
    busy,
    claim_of,
    fine,
    is_bound,
    killed_after,
    killed_before,
    unanswered,
)
from tests.support.claims import allocated, claim_name
from tests.support.examples import at_least
from tests.support.gpu import Json, some_cards

LOW, HIGH = 0, 1_000


def a_labelled_pod(name: str, app: str, **more: Any) -> Json:
    pod = a_pod(name, **more)
    pod["metadata"]["labels"] = {"app": app}
    return pod


def evicted(api: ClaimsApi) -> list[str]:
    return [what.removeprefix("evict ") for what in api.writes if what.startswith("evict ")]


async def a_full_cluster(nodes: int = 1, *, app: str = "low") -> tuple[ClaimsApi, ClaimsHarness]:
    """Return nodes of one card, each of which a pod of low priority holds."""
    api = an_api(nodes=nodes)
    harness = ClaimsHarness(api)
    for at in range(1, nodes + 1):
        api.put_pod(a_labelled_pod(f"low-{at}", app, priority=LOW))
        await harness.settle()
        api.schedule()
    assert all(map(is_bound, api.pods.values()))
    return api, harness


async def test_a_pod_of_lower_priority_leaves_and_the_other_gets_its_card() -> None:
    api, harness = await a_full_cluster()
    api.writes.clear()

    api.put_pod(a_pod("high", priority=HIGH))
    await harness.settle()
    await harness.look()
    assert api.writes == [f"create {claim_name('high')}", "may evict low-1", "evict low-1"]
    api.schedule()  # it still holds its card
    await harness.look()
    api.end_leaving()
    api.schedule()

    assert is_bound(api.pods["high"])
    assert set(api.pods) == {"high"}
    assert evicted(api) == ["low-1"]
    assert harness.free_mib("n1") == [2_000]


async def test_both_pods_are_told() -> None:
    api, harness = await a_full_cluster()
    api.put_pod(a_pod("high", priority=HIGH))

    async with harness.running():
        await harness.clock.advance(0.9)

    assert harness.recorder.events == [
        (
            "Pod/high",
            "WaitingForCard",
            "waiting for a card: 1 pod of lower priority must leave n1 first",
        ),
        ("Pod/low-1", "Preempted", "Preempted by pod uid-high on node n1"),
    ]


@pytest.mark.parametrize(
    "spec", [{"priority": LOW}, {"priority": HIGH, "preemptionPolicy": "Never"}]
)
async def test_a_pod_that_may_not_preempt_waits(spec: dict[str, Any]) -> None:
    api, harness = await a_full_cluster()

    api.put_pod(a_pod("p", **spec))
    await harness.settle()
    api.schedule()
    await harness.look()

    assert claim_of(api, "p").open
    assert evicted(api) == []


def a_budget(app: str, allowed: int = 0) -> PodDisruptionBudget:
    return PodDisruptionBudget(namespace="default", name=app, allowed=allowed, labels={"app": app})


async def test_a_pod_that_a_budget_protects_stays() -> None:
    api, harness = await a_full_cluster(2)
    api.put_pod(api.pods["low-1"] | {"metadata": {**api.pods["low-1"]["metadata"], "labels": {}}})
    api.budgets = [a_budget("low")]

    for name in ("high", "higher"):
        api.put_pod(a_pod(name, priority=HIGH))
        await harness.settle()
        await harness.look()

    assert evicted(api) in (["low-1"], ["low-2"])
    protected = {name for name, pod in api.pods.items() if pod["metadata"].get("labels")}
    assert protected.isdisjoint(evicted(api))
    assert claim_of(api, "higher").open


async def refused(call: Callable[[], Awaitable[Json]]) -> Json:
    why = "it has two budgets"
    raise Unavailable(verb="POST", path="/eviction", status=500, reason="", message=why)


async def test_nobody_is_evicted_unless_all_victims_may_be_and_then_others_are() -> None:
    api = an_api(nodes=2, mib=8_000)
    harness = ClaimsHarness(api)
    for at in range(4):
        api.put_pod(a_pod(f"low-{at}", 4_000, priority=LOW))
        await harness.settle()
        api.schedule()
    api.put_pod(a_pod("high", 8_000, priority=HIGH))

    api.faults = [fine, fine, refused]  # the claim, the first victim, the second
    await harness.settle()

    tried = [what for what in api.writes if "evict" in what]
    assert tried[0].startswith("may evict")
    assert tried[1].startswith("may evict")
    spared = tried[1].removeprefix("may evict ")
    assert len(evicted(api)) == 2
    assert spared not in evicted(api)
    api.end_leaving()
    api.schedule()
    assert is_bound(api.pods["high"])


@pytest.mark.parametrize("fault", [busy, unanswered])
async def test_an_eviction_that_is_not_answered_is_tried_again(fault: Fault) -> None:
    api, harness = await a_full_cluster()
    api.put_pod(a_pod("high", priority=HIGH))

    api.faults = [fine, fault, fine, fault]
    for _ in range(4):
        await harness.look()

    assert evicted(api)[-1:] == ["low-1"]
    assert len(api.claims) == 2


async def test_what_gets_free_is_kept_from_whoever_waits_with_no_higher_priority() -> None:
    api, harness = await a_full_cluster()
    for name in ("waits", "waits-too"):
        api.put_pod(a_pod(name, priority=LOW))
    await harness.settle()
    api.schedule()
    assert claim_of(api, "waits").open

    api.put_pod(a_pod("high", priority=HIGH))
    await harness.settle()
    assert evicted(api) == []  # before what the others wait with is replaced
    for _ in range(3):
        await harness.look()
    assert evicted(api) == ["low-1"]
    api.end_leaving()
    api.schedule(lowest_first=True)
    assert [name for name, pod in api.pods.items() if is_bound(pod)] == ["high"]

    await harness.look()  # nothing is kept any more
    harness.see_node("n2", some_cards("n2", count=1, mib=8_000))
    assert not any(one.excluded for one in claim_of(api, "waits").requests)
    assert claim_of(api, "waits").open


async def test_a_pod_of_higher_priority_yet_may_take_it() -> None:
    api, harness = await a_full_cluster()
    api.put_pod(a_pod("high", priority=HIGH))
    await harness.settle()
    api.put_pod(a_pod("highest", priority=HIGH + 1))
    await harness.settle()

    api.end_leaving()
    api.schedule()
    for _ in range(3):
        await harness.look()

    assert is_bound(api.pods["highest"])
    assert not is_bound(api.pods["high"])
    assert evicted(api) == ["low-1"]


async def test_room_elsewhere_ends_the_wait_for_those_who_leave() -> None:
    api, harness = await a_full_cluster()
    api.put_pod(a_pod("high", priority=HIGH))
    await harness.settle()
    api.schedule()

    api.cards["n2"] = some_cards("n2", count=1, mib=8_000)
    harness.see_node("n2", api.cards["n2"])
    await harness.look()
    api.schedule()

    assert api.pods["high"]["spec"]["nodeName"] == "n2"


@pytest.mark.parametrize("faults", [[], [fine, busy]])
async def test_a_node_that_takes_no_more_pods_is_not_waited_for(faults: list[Fault]) -> None:
    """Such as one that dies: whoever was evicted from it, or is to be, may never end."""
    api, harness = await a_full_cluster(2)
    api.faults = list(faults)
    api.put_pod(a_pod("high", priority=HIGH))
    await harness.settle()
    if not faults:
        await harness.look()
    first = evicted(api)
    assert len(first) == (0 if faults else 1)
    (card,) = claim_of(api, "high").cards
    node = "n1" if card == "GPU-n1-0" else "n2"
    unreachable = {"key": "node.kubernetes.io/unreachable", "effect": "NoSchedule"}

    harness.see_node(node, api.cards[node], gone=False, taints=[unreachable])
    for _ in range(3):
        await harness.look()

    (other,) = {"n1", "n2"} - {node}
    assert claim_of(api, "high").cards == {f"GPU-{other}-0"}
    (last,) = [name for name, pod in api.pods.items() if pod["spec"].get("nodeName") == other]
    assert evicted(api) == [*first, last]


async def test_cards_that_kube_scheduler_does_not_take_are_not_kept_for_ever() -> None:
    api, harness = await a_full_cluster()
    api.put_pod(a_pod("high", priority=HIGH))
    await harness.settle()
    api.end_leaving()
    api.put_pod(a_pod("next", priority=LOW))
    await harness.settle()
    api.schedule(refuse=("n1",))  # for what we do not know

    for _ in range(3):
        await harness.clock.advance(20.0)
        await harness.look()
    api.schedule(lowest_first=True)

    assert is_bound(api.pods["next"])


async def _refuse_all_nodes(
    api: ClaimsApi, harness: ClaimsHarness, *, rounds: int = 60
) -> dict[str, set[str]]:
    """Let kube-scheduler refuse pod high on all nodes, for what we do not know, for 10 minutes.

    Returns:
        The nodes that its claims listed, by the UID of the claim.
    """
    listed: dict[str, set[str]] = {}
    for _ in range(rounds):
        claim = claim_of(api, "high")
        listed[claim.uid] = harness.cache.nodes_of(claim)
        await harness.look()
        api.end_leaving()
        await harness.settle()
        api.schedule(refuse=tuple(api.cards))
        await harness.clock.advance(10.0)
    return listed


async def test_for_a_pod_that_fits_nowhere_others_leave_one_node_at_most() -> None:
    api, harness = await a_full_cluster(6)
    api.put_pod(a_pod("high", priority=HIGH))
    await harness.settle()

    await _refuse_all_nodes(api, harness)

    assert len(evicted(api)) == 1
    assert claim_of(api, "high").open  # what is free it may have
    why = harness.waiting.by_uid["uid-high"].unschedulable_why
    (left,) = api.cards.keys() - {pod["spec"].get("nodeName") for pod in api.pods.values()}
    assert f"nobody else is preempted: the cards freed on {left} were not taken" in why


@pytest.mark.parametrize("rounds", [1, 2, 3, 5, 8, 13])
async def test_nor_do_they_if_another_leads_meanwhile(rounds: int) -> None:
    api, harness = await a_full_cluster(6)
    api.put_pod(a_pod("high", priority=HIGH))
    await harness.settle()
    await harness.look()
    assert len(evicted(api)) == 1
    api.end_leaving()
    await harness.settle()

    await _refuse_all_nodes(api, harness, rounds=rounds)
    harness.end()
    after = ClaimsHarness(api)
    after.preemptions.adopt()
    await _refuse_all_nodes(api, after)

    assert len(evicted(api)) == 1
    assert claim_of(api, "high").open


async def test_whoever_leads_next_keeps_what_is_free_already_for_whom_it_was_freed() -> None:
    api, harness = await a_full_cluster(1)
    api.put_pod(a_pod("high", priority=HIGH))
    await harness.settle()
    await harness.look()
    harness.end()
    api.end_leaving()
    api.put_pod(a_pod("next", priority=LOW))

    after = ClaimsHarness(api)
    after.preemptions.adopt()
    await after.look()
    api.schedule(lowest_first=True)

    assert is_bound(api.pods["high"])
    assert not is_bound(api.pods["next"])


async def test_it_does_not_matter_how_many_nodes_are_free_that_it_is_refused_as_well() -> None:
    api, harness = await a_full_cluster(6)
    api.put_pod(a_pod("high", priority=HIGH))
    await harness.settle()
    await harness.look()
    (freed,) = harness.cache.nodes_of(claim_of(api, "high"))
    api.end_leaving()
    await harness.settle()
    for at in range(7, 13):
        api.cards[f"n{at}"] = some_cards(f"n{at}", count=1, mib=6_000)  # a better fit
        harness.see_node(f"n{at}", api.cards[f"n{at}"])

    listed = await _refuse_all_nodes(api, harness)

    assert len(evicted(api)) == 1
    assert [nodes for nodes in listed.values() if freed in nodes] == [{freed}]
    assert len(set().union(*listed.values())) > 4


async def test_others_are_preempted_again_once_a_pod_was_allocated_cards() -> None:
    api, harness = await a_full_cluster(2)
    api.put_pod(a_pod("high", priority=HIGH))
    await harness.settle()
    await _refuse_all_nodes(api, harness)
    (first,) = evicted(api)
    claim = api.claims[claim_name("high")]

    node = next(node for node in api.cards if first == f"low-{node[1:]}")
    card = api.cards[node][0].uuid
    api.put_claim(allocated(claim, {"train": [card]}, node=node))
    await harness.settle()
    api.put_claim(claim)  # taken back, and somebody else has the card
    api.put_pod(a_pod("next", priority=HIGH + 1))
    await harness.settle()
    api.schedule()
    for _ in range(3):
        await harness.clock.advance(31.0)
        await harness.look()

    assert sorted(evicted(api)) == ["low-1", "low-2"]


async def test_cards_that_a_higher_priority_took_do_not_end_preemption() -> None:
    api, harness = await a_full_cluster(2)
    api.put_pod(a_pod("highest", priority=HIGH + 1, preemptionPolicy="Never"))
    await harness.settle()
    api.schedule()
    api.put_pod(a_pod("high", priority=HIGH))
    await harness.settle()
    api.end_leaving()
    await harness.settle()
    api.schedule()
    assert is_bound(api.pods["highest"])

    for _ in range(4):
        await harness.look()
        api.end_leaving()
        await harness.settle()
        api.schedule()
        await harness.clock.advance(10.0)

    assert is_bound(api.pods["high"])
    assert sorted(evicted(api)) == ["low-1", "low-2"]


async def test_many_cards_kept_for_lower_priorities_do_not_stop_a_higher_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("scheduler.claims.preemption._MOST_KEPT", 2)
    api, harness = await a_full_cluster(4)
    for name in ("high-1", "high-2", "high-3"):
        api.put_pod(a_pod(name, priority=HIGH))
        await harness.settle()
        await harness.look()
    assert len(evicted(api)) == 2
    api.schedule()
    why = harness.waiting.by_uid["uid-high-3"].unschedulable_why
    assert "others are preempted for first, 2 cards of theirs" in why

    api.put_pod(a_pod("highest", priority=HIGH + 1))
    await harness.settle()
    for _ in range(3):
        await harness.look()
    assert len(evicted(api)) == 3
    api.end_leaving()
    api.schedule()

    assert is_bound(api.pods["highest"])


@pytest.mark.parametrize("evictions", range(2))
async def test_whoever_leads_no_more_evicts_nobody(evictions: int) -> None:
    api = an_api(nodes=1)
    harness = ClaimsHarness(api)
    for at in range(2):
        api.put_pod(a_pod(f"low-{at}", 4_000, priority=LOW))
        await harness.settle()
        api.schedule()

    async def lease_lost(call: Callable[[], Awaitable[Json]]) -> Json:
        harness.leads = False
        return await call()

    # The claim, the dry run of both victims, and the evictions.
    api.faults = [*[fine] * (2 + evictions), lease_lost]
    api.put_pod(a_pod("high", 8_000, priority=HIGH))
    for _ in range(3):
        await harness.look()

    assert len(evicted(api)) == evictions


@pytest.mark.parametrize("written", ["", "delete"])
async def test_whoever_leads_no_more_replaces_no_open_claim(
    written: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    api, harness = await a_full_cluster()
    monkeypatch.setattr("scheduler.claims.controller.ClaimPlanner.candidates", lambda *_, **__: ())
    api.put_pod(a_pod("high", priority=HIGH))
    await harness.settle()
    monkeypatch.undo()
    api.schedule()
    assert claim_of(api, "high").open
    await harness.clock.advance(31.0)
    api.writes.clear()

    find = harness.preemptions.find

    async def lease_lost(*args: Any) -> Any:
        found = await find(*args)
        harness.leads = False
        return found

    async def lost_while_deleted(call: Callable[[], Awaitable[Json]]) -> Json:
        harness.leads = False
        return await call()

    if written:
        api.faults = [lost_while_deleted]
    else:
        monkeypatch.setattr(harness.preemptions, "find", lease_lost)
    for _ in range(3):
        await harness.look()

    assert api.writes == ([f"delete {claim_name('high')}"] if written else [])


@pytest.mark.parametrize("at", range(6))
@pytest.mark.parametrize("kill", [killed_before, killed_after])
async def test_whoever_leads_next_goes_on(at: int, kill: Fault) -> None:
    api, first = await a_full_cluster(2)
    api.put_pod(a_pod("waits", priority=LOW))
    await first.settle()
    api.schedule()
    api.faults = [*[fine] * at, kill]
    api.put_pod(a_pod("high", priority=HIGH))
    with contextlib.suppress(Killed):
        for _ in range(3):
            await first.look()
    first.end()
    api.faults = []

    second = ClaimsHarness(api)
    for uid in second.cache.pods:
        second.cache.count_first_choice(uid)
    second.preemptions.adopt()
    for _ in range(6):
        await second.look()
        api.schedule(lowest_first=True)
        await second.clock.advance(2.0)
        second.preemptions.adopt()
    api.end_leaving()
    api.schedule(lowest_first=True)

    assert is_bound(api.pods["high"])
    assert not is_bound(api.pods["waits"])
    assert len(set(evicted(api))) == 1
    assert max(api.held().values()) <= 8_000


async def test_searches_in_vain_leave_time_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    api, harness = await a_full_cluster()
    began_s: list[float] = []

    async def in_vain(*_: Any, **__: Any) -> None:
        began_s.append(harness.clock.monotonic())
        await harness.clock.advance(1.0)

    monkeypatch.setattr(harness.finder, "room", in_vain)
    for at in range(10):
        api.put_pod(a_pod(f"high-{at}", priority=HIGH))
    await harness.settle()
    api.schedule()
    for _ in range(20):
        await harness.clock.advance(1.0)
        await harness.look()

    assert len(began_s) >= 3
    assert min(later - at for at, later in itertools.pairwise(began_s)) >= 5.0


_PODS = st.tuples(st.sampled_from([2_000, 3_000, 5_000, 8_000]), st.integers(0, 3))
_STEPS = st.one_of(_PODS, st.sampled_from(["look", "schedule", "schedule contrary", "end", "wait"]))


@settings(max_examples=at_least(60))
@given(st.lists(_STEPS, max_size=40))
async def test_no_card_is_overbooked_and_no_priority_inverted(
    steps: list[tuple[int, int] | str],
) -> None:
    api = an_api(nodes=2)
    harness = ClaimsHarness(api)
    for at, step in enumerate(steps):
        if isinstance(step, tuple):
            mib, priority = step
            api.put_pod(a_pod(f"p{at}", mib, priority=priority))
            await harness.settle()
        else:
            await _do(step, api, harness)
    for _ in range(12):
        for step in ("look", "schedule contrary", "end", "wait"):
            await _do(step, api, harness)

    for pod in harness.cache.pods.values():
        nodes = tuple(api.cards)
        assert await harness.finder.room(pod.info, nodes) is None


async def _do(step: str, api: ClaimsApi, harness: ClaimsHarness) -> None:
    match step:
        case "look":
            await harness.look()
        case "wait":  # kube-scheduler does not: it tries the lists that replaced others meanwhile
            await _do("schedule contrary", api, harness)
            await harness.settle()
            await _do("schedule contrary", api, harness)
            await harness.clock.advance(31.0)
        case "end":
            api.end_leaving()
            await harness.settle()
        case _:
            await _kube_scheduler_acts(api, harness, lowest_first="contrary" in step)


async def _kube_scheduler_acts(
    api: ClaimsApi, harness: ClaimsHarness, *, lowest_first: bool
) -> None:
    """Place pods; if one is not for which others left, one above it got its cards."""
    free = [
        one
        for one in harness.preemptions._active()
        if one.evicted and not harness.core.ledger.observed.keys() & {v.uid for v in one.victims}
    ]
    waiting = {name for name, pod in api.pods.items() if not is_bound(pod)}
    api.schedule(lowest_first=lowest_first)
    placed = {name for name in waiting if is_bound(api.pods[name])}
    for one in free:
        if one.pod.removeprefix("uid-") in placed:
            continue
        cards = {device_name(card) for card in one.cards}
        takers = [name for name in placed if claim_of(api, name).devices[0].device in cards]
        # Together with it another, for which there was room beside, may leave too little.
        above = any(api.pods[name]["spec"]["priority"] > one.priority for name in takers)
        assert above or not takers
    assert max(api.held().values(), default=0) <= 8_000
