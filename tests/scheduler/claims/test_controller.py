"""What becomes of claims when everything goes as it should, and when it does not."""

import asyncio
import contextlib
import itertools
from collections.abc import Awaitable, Callable, Coroutine
from datetime import timedelta
from typing import Any

import pytest

from fracgpu.device_claims.taints import kept_for, reserved_by
from fracgpu.state.ledger import ReservationState
from scheduler.metrics import ClaimOutcome, WaitReason
from tests.scheduler.claims.harness import (
    ClaimsApi,
    ClaimsHarness,
    Fault,
    Killed,
    a_pod,
    an_api,
    answer_lost,
    busy,
    claim_of,
    fine,
    killed_after,
    killed_before,
    owned,
    silent,
    unanswered,
)
from tests.support.claims import a_claiming_pod, claim_name
from tests.support.gpu import Json, some_cards
from tests.support.moves import a_beneficiary, move_of


def listed(api: ClaimsApi, pod: str) -> list[str]:
    (request,) = claim_of(api, pod).requests
    return list(request.cards)


async def test_a_pod_gets_a_claim_of_the_best_cards_on_four_nodes() -> None:
    api = an_api()
    harness = ClaimsHarness(api)

    api.put_pod(a_pod("p"))
    await harness.settle()

    assert listed(api, "p") == ["GPU-n1-0", "GPU-n2-0", "GPU-n3-0", "GPU-n4-0"]
    assert harness.outcomes == {ClaimOutcome.LISTED: 1}
    assert harness.recorder.events == []


async def test_nodes_that_have_all_changed_are_taken_over_a_few_at_a_time() -> None:
    api = an_api(100)
    harness = ClaimsHarness(api)
    observed: list[int] = []

    async def others() -> None:
        while True:
            observed.append(harness.core.matrix.now)
            await asyncio.sleep(0)

    api.put_pod(a_pod("p"))
    async with asyncio.TaskGroup() as group:
        watching = group.create_task(others())
        async with harness.running():
            await harness.clock.advance(1.0)
        watching.cancel()

    assert listed(api, "p")
    steps = [later - earlier for earlier, later in itertools.pairwise(observed)]
    assert sum(steps) >= 100
    assert max(steps) <= 32


async def test_the_first_card_counts_until_the_claim_is_allocated_and_then_that_one() -> None:
    api = an_api()
    harness = ClaimsHarness(api)

    api.put_pod(a_pod("p"))
    await harness.settle()
    assert harness.free_mib("n1") == [2_000]
    api.put_pod(a_pod("q"))
    await harness.settle()
    assert listed(api, "q")[0] == "GPU-n2-0"

    api.schedule()

    free = {node: harness.free_mib(node)[0] for node in api.cards}
    assert sorted(free.values()) == [2_000, 2_000, 8_000, 8_000, 8_000]
    assert free["n1"] == 8_000  # the first card of the list, which was not taken


async def test_where_nothing_fits_the_claim_is_open_and_an_event_says_why() -> None:
    api = an_api()
    harness = ClaimsHarness(api)

    api.put_pod(a_pod("p", 9_000))
    async with harness.running():
        await harness.clock.advance(0.9)

    assert claim_of(api, "p").open
    assert harness.outcomes == {ClaimOutcome.OPEN: 1}
    assert harness.recorder.events == [
        (
            "Pod/p",
            "WaitingForCard",
            "waiting for a card: node(s) without a fitting card (5 too little free memory; "
            "fracgpu explain says more)",
        )
    ]


async def test_what_a_waiting_pod_lacks_is_counted_whoever_leads() -> None:
    api = an_api()
    for harness in (ClaimsHarness(api), ClaimsHarness(api)):
        if not api.pods:
            api.put_pod(a_pod("p", 9_000))
            await harness.settle()
            api.schedule()
        await harness.settle()
        harness.end()

        waiting = harness.waiting.by_reason()

        assert {reason: found.pods for reason, found in waiting.items()} == {WaitReason.MEMORY: 1}


async def test_an_open_claim_is_left_to_kube_scheduler() -> None:
    api = an_api()
    harness = ClaimsHarness(api)
    api.put_pod(a_pod("p", 9_000))
    await harness.settle()
    api.schedule()

    harness.see_node("large", some_cards("large", mib=16_000))
    await harness.look()

    assert api.writes == [f"create {claim_name('p')}"]


async def test_a_list_that_kube_scheduler_cannot_follow_is_replaced() -> None:
    api = an_api(nodes=5)
    harness = ClaimsHarness(api)
    api.put_pod(a_pod("p"))
    await harness.settle()

    api.schedule(refuse=("n1", "n2", "n3", "n4"))  # for what we do not know
    await harness.settle()

    assert listed(api, "p") == ["GPU-n5-0"]
    assert harness.outcomes == {ClaimOutcome.LISTED: 2, ClaimOutcome.REPLACED: 1}
    assert harness.free_mib("n5") == [2_000]
    api.schedule(refuse=("n1", "n2", "n3", "n4"))
    assert api.pods["p"]["spec"]["nodeName"] == "n5"


async def test_the_next_list_is_given_time_and_then_the_claim_is_open() -> None:
    api = an_api(nodes=1)
    harness = ClaimsHarness(api)
    api.put_pod(a_pod("p"))
    await harness.settle()
    api.schedule(refuse=("n1",))
    await harness.settle()
    assert claim_of(api, "p").open

    api.schedule()

    assert api.pods["p"]["spec"]["nodeName"] == "n1"


async def test_a_claim_that_is_allocated_in_the_meantime_is_not_replaced() -> None:
    api = an_api()
    harness = ClaimsHarness(api)
    api.put_pod(a_pod("p"))
    await harness.settle()
    api.schedule(refuse=tuple(api.cards))
    api.watchers.clear()  # the allocation is not observed yet
    api.schedule()
    api.watchers.append(harness)

    await harness.settle()

    assert harness.outcomes == {ClaimOutcome.LISTED: 1}
    assert claim_of(api, "p").allocated


async def test_a_claim_of_somebody_else_is_reported_and_left_alone() -> None:
    api = an_api()
    harness = ClaimsHarness(api)
    api.put_pod(a_pod("other"))
    await harness.settle()
    thief = dict(api.claims[claim_name("other")])
    thief["metadata"] = {"name": claim_name("p"), "namespace": "default", "uid": "thief"}
    api.put_claim(thief)
    api.put_pod(a_pod("p"))

    async with harness.running():
        await harness.clock.advance(0.9)

    ((pod, reason, note),) = harness.recorder.events
    assert (pod, reason) == ("Pod/p", "NoClaim")
    assert "made by somebody else" in note
    assert api.claims[claim_name("p")]["metadata"]["uid"] == "thief"


async def test_all_of_many_pods_are_told_why_they_wait_before_any_claim_is_written() -> None:
    api = an_api()
    harness = ClaimsHarness(api, limit_s=60)
    answered = asyncio.Event()

    async def late(call: Callable[[], Awaitable[Json]]) -> Json:
        await answered.wait()
        return await call()

    api.faults = [late] * 50
    async with harness.running():
        for number in range(50):
            api.put_pod(a_pod(f"p{number}", 40_000))
        for _ in range(5):  # turns of the event loop, one for each pod
            await harness.clock.advance(0.0)

        assert {reason for _, reason, _ in harness.recorder.events} == {"WaitingForCard"}
        assert len({pod for pod, _, _ in harness.recorder.events}) == 50
        assert api.claims == {}
        assert len(api.writes) == 32  # at once, and no more

        answered.set()
        while len(api.claims) < 50:
            await harness.clock.advance(0.1)
    assert len(harness.recorder.events) == 50


async def test_the_page_says_why_a_pod_has_no_claim_or_an_open_one_and_then_what_it_lists() -> None:
    api = an_api(nodes=1)
    harness = ClaimsHarness(api)
    api.put_pod(a_pod("p", 7_000))
    pod = harness.cache.pods["uid-p"].info
    name = claim_name("p")
    harness.see_node("n1", api.cards["n1"], unschedulable=True)
    assert harness.controller.status_of(pod) == (
        f"claim {name} is not made yet; the leading scheduler makes it"
    )

    await harness.settle()
    assert harness.controller.status_of(pod).startswith("waiting for a card: no node that the pod")

    api.remove_claim(name)
    harness.see_node("n1", api.cards["n1"])
    await harness.clock.advance(10.0)
    await harness.look()
    assert harness.controller.status_of(pod) == (
        f"claim {name} lists 1 card, of which kube-scheduler has taken none yet"
    )


async def test_a_claim_that_cannot_be_written_is_told_although_the_pod_waits_as_well() -> None:
    api = an_api()
    harness = ClaimsHarness(api)
    api.faults = [unanswered] * 9

    async with harness.running():
        api.put_pod(a_pod("p", 40_000))
        await harness.clock.advance(30.0)

    assert [reason for _, reason, _ in harness.recorder.events] == ["WaitingForCard", "NoClaim"]


async def test_a_new_pod_is_looked_at_before_those_that_wait_with_a_claim() -> None:
    api = an_api(nodes=1)
    harness = ClaimsHarness(api)
    old = {"creationTimestamp": "2026-01-05T11:00:00Z"}
    names = [f"old{number}" for number in range(5)]
    pods = [*(a_pod(name, 40_000) for name in names), a_pod("new", 40_000)]
    for pod in pods[:-1]:
        pod["metadata"] |= old
    pods[-1]["metadata"]["creationTimestamp"] = "2026-01-05T12:00:00Z"
    looked: list[str] = []
    async with harness.running():
        for pod in pods[:-1]:
            api.put_pod(pod)
        await harness.clock.advance(0.1)
        harness.controller.handle = _noted(looked)  # type: ignore[method-assign, assignment]
        for name in names:
            harness.controller.note(f"uid-{name}")
        api.put_pod(pods[-1])
        await harness.clock.advance(0.1)

    assert looked[0] == "uid-new"
    assert set(looked[1:]) == {f"uid-{name}" for name in names}


def _noted(looked: list[str]) -> Callable[[str], Coroutine[Any, Any, None]]:
    async def handle(uid: str) -> None:
        looked.append(uid)

    return handle


@pytest.mark.parametrize(
    ("pod", "why"),
    [
        (a_pod("p", annotations={"fracgpu.io/placement": "tight"}), "fracgpu.io/placement"),
        (a_pod("p", 1, cards=33), "want at most 32, as many devices as a ResourceClaim can have"),
    ],
)
async def test_a_pod_that_can_have_no_claim_is_told_why(pod: dict[str, Any], why: str) -> None:
    api = an_api()
    harness = ClaimsHarness(api)

    api.put_pod(pod)
    async with harness.running():
        await harness.clock.advance(30.0)

    ((_, reason, note),) = harness.recorder.events
    assert reason == "NoClaim"
    assert why in note
    assert harness.outcomes == {ClaimOutcome.REFUSED: 1}
    assert api.claims == {}


async def test_pods_of_a_pod_group_hold_nothing_and_nobody_leaves_for_them() -> None:
    """kube-scheduler may wait for others of the group, of which it says nothing."""
    api = an_api(nodes=1)
    harness = ClaimsHarness(api)
    group = {"podGroupName": "g"}
    api.put_pod(a_pod("first", schedulingGroup=group))
    await harness.settle()
    assert claim_of(api, "first").open
    assert harness.free_mib("n1") == [8_000]

    api.schedule()
    api.put_pod(a_pod("second", priority=10, schedulingGroup=group))
    await harness.settle()
    api.schedule()
    await harness.look()

    assert claim_of(api, "second").open
    assert not [write for write in api.writes if "evict" in write]


async def test_a_pod_gets_no_claim_while_it_is_gated() -> None:
    api = an_api()
    harness = ClaimsHarness(api)

    api.put_pod(a_pod("p", schedulingGates=[{"name": "quota"}]))
    await harness.settle()

    assert api.claims == {}


async def test_a_replica_that_does_not_lead_writes_nothing() -> None:
    api = an_api()
    harness = ClaimsHarness(api)
    harness.leads = False

    api.put_pod(a_pod("p"))
    await harness.settle()

    assert api.writes == []


@pytest.mark.parametrize("fault", [busy, unanswered, answer_lost, silent])
@pytest.mark.parametrize("many", [1, 3])
async def test_a_write_that_fails_is_tried_again(fault: Fault, many: int) -> None:
    api = an_api()
    harness = ClaimsHarness(api, limit_s=0.2)
    api.faults = [fault] * many

    async with harness.running():
        api.put_pod(a_pod("p"))
        for _ in range(many + 1):
            await asyncio.sleep(0.25)  # the timeout of a request is in real time
            await harness.clock.advance(10.0)

    assert listed(api, "p")[0] == "GPU-n1-0"
    assert sum(harness.free_mib("n1")) == 2_000


@pytest.mark.parametrize("replaces", [False, True])
async def test_a_server_that_is_busy_is_not_asked_more_often(replaces: bool) -> None:
    api = an_api()
    harness = ClaimsHarness(api)
    if replaces:
        api.put_pod(a_pod("p"))
        await harness.settle()
        api.writes.clear()
    api.faults = [busy] * 100

    async with harness.running():
        api.put_pod(a_pod("p"))
        if replaces:
            api.schedule(refuse=tuple(api.cards))
        await harness.clock.advance(1.1)
        early = len(api.writes)
        await harness.clock.advance(60.0)

    # Pauses grow to ten seconds, and each answer asks for one more.
    assert early <= 1
    assert 5 <= len(api.writes) <= 20


async def test_a_pod_that_goes_while_its_list_is_replaced_leaves_nothing() -> None:
    api = an_api()
    harness = ClaimsHarness(api)
    api.put_pod(a_pod("p"))
    await harness.settle()

    async def and_goes(call: Callable[[], Awaitable[Json]]) -> Json:
        api.remove_pod("p")
        return await call()

    api.faults = [and_goes]
    api.schedule(refuse=("n1", "n2", "n3", "n4"))
    await harness.settle()

    assert api.claims == {}
    assert harness.core.ledger.assumed == {}


@pytest.mark.parametrize("at", range(4))
@pytest.mark.parametrize("kill", [killed_before, killed_after])
async def test_whoever_leads_next_ends_what_was_begun(at: int, kill: Fault) -> None:
    api = an_api(nodes=3)

    api.faults = [*[fine] * at, kill]
    first = ClaimsHarness(api)
    for name in ("a", "b"):
        api.put_pod(a_pod(name))
    with contextlib.suppress(Killed):
        await first.settle()
        api.schedule(refuse=("n1", "n2"))
        await first.settle()
        api.put_pod(a_pod("c"))
        await first.settle()
    first.end()
    api.faults = []

    second = ClaimsHarness(api)
    if "c" not in api.pods:
        api.put_pod(a_pod("c"))
    for _ in range(4):
        await second.look()
        api.schedule()
        await second.clock.advance(30.0)

    assert set(api.claims) == {claim_name("a"), claim_name("b"), claim_name("c")}
    assert all(pod["spec"].get("nodeName") for pod in api.pods.values())
    assert max(api.held().values()) <= 8_000
    assert [second.free_mib(node) for node in api.cards] == [[2_000]] * 3


async def test_two_controllers_make_one_claim_for_each_pod() -> None:
    api = an_api(nodes=8)
    both = [ClaimsHarness(api), ClaimsHarness(api)]
    for at in range(8):
        api.put_pod(a_pod(f"p{at}"))

    async with both[0].running(), both[1].running():
        for _ in range(4):
            await both[0].clock.advance(1.0)
            await both[1].clock.advance(1.0)
            api.schedule()
            await both[0].clock.advance(1.0)
            await both[1].clock.advance(1.0)

    assert len(api.claims) == 8
    assert set(api.held().values()) == {6_000}
    assert len(api.held()) == 8


async def test_claims_of_pods_that_are_gone_are_removed() -> None:
    api = an_api()
    harness = ClaimsHarness(api)
    for name in ("gone", "here"):
        api.put_pod(a_pod(name))
    await harness.settle()
    again = a_claiming_pod("gone", claim=claim_name("again"))
    again["metadata"]["uid"] = "another"
    api.remove_pod("gone")
    api.put_pod(again)
    await harness.settle()
    api.claims["mine"] = {"metadata": {"name": "mine", "namespace": "default"}}

    await harness.controller.sweep()
    assert claim_name("gone") in api.claims  # the garbage collector has had no time yet
    await harness.controller.sweep()

    assert set(api.claims) == {claim_name("again"), claim_name("here"), "mine"}
    assert harness.outcomes[ClaimOutcome.REMOVED] == 1


async def test_a_burst_gets_all_its_claims_and_others_have_their_turns() -> None:
    api = an_api(nodes=20, cards=4)
    harness = ClaimsHarness(api)
    between_turns = [0]

    async def others() -> None:
        while True:
            between_turns.append(len(api.writes))
            await asyncio.sleep(0)

    async with harness.running(), asyncio.TaskGroup() as group:
        for at in range(200):
            api.put_pod(a_pod(f"p{at}", 3_000))
        turns = group.create_task(others(), name="others")
        for _ in range(10):
            await harness.clock.advance(0.25)
        turns.cancel()

    assert len(api.claims) == 200
    assert sum(claim_of(api, f"p{at}").open for at in range(200)) == 40
    assert max(later - at for at, later in itertools.pairwise(between_turns)) <= 32


def reservations(harness: ClaimsHarness) -> list[ReservationState]:
    states = harness.core.ledger.reservations.states(now=harness.clock.now())
    return [state for state, count in states.items() if count]


async def test_the_claim_of_a_replacement_consumes_the_reservation_whoever_leads() -> None:
    api = an_api(nodes=2)
    harness = ClaimsHarness(api)
    later = harness.clock.now() + timedelta(hours=1)
    move = move_of(
        owner_uid="rs",
        mib=6_000,
        source=("n1", "GPU-n1-0"),
        target=("n2", "GPU-n2-0"),
        reserved_until=later,
    )
    harness.see_move(move)
    assert reservations(harness) == [ReservationState.HELD]

    api.put_pod(owned(a_pod("p")))
    await harness.settle()
    assert listed(api, "p") == ["GPU-n2-0"]
    assert claim_of(api, "p").tolerated == {reserved_by("move-1")}
    assert reservations(harness) == [ReservationState.CONSUMED]

    harness.end()
    following = ClaimsHarness(api)
    following.see_move(move)
    following.cache.count_first_choice("uid-p")
    assert reservations(following) == [ReservationState.CONSUMED]
    api.schedule()
    assert following.cache.claims["default/" + claim_name("p")].move == "move-1"
    assert reservations(following) == [ReservationState.CONSUMED]
    assert following.free_mib("n2") == [2_000]

    api.remove_pod("p")
    api.remove_claim(claim_name("p"))
    assert reservations(following) == [ReservationState.HELD]


@pytest.mark.parametrize("mib", [6_000, 9_000])
async def test_a_claim_is_replaced_once_a_move_keeps_cards_for_its_pod(mib: int) -> None:
    """Listed or open, the claim does not tolerate their taints."""
    api = an_api(nodes=2)
    harness = ClaimsHarness(api)
    api.put_pod(a_pod("p", mib))
    await harness.settle()
    before = claim_of(api, "p").uid
    big = some_cards("n2", count=1, mib=16_000)
    api.cards["n2"] = big
    harness.see_node("n2", big)
    later = harness.clock.now() + timedelta(hours=1)
    room = a_beneficiary("GPU-n2-0", uid="uid-p", held_until=later)

    harness.see_move(move_of(source=("n2", "GPU-n2-0"), owner_uid="other", beneficiary=room))
    await harness.settle()

    assert listed(api, "p") == ["GPU-n2-0"]
    assert claim_of(api, "p").uid != before
    assert claim_of(api, "p").tolerated == {kept_for("uid-p")}
    writes = len(api.writes)
    await harness.look()
    assert len(api.writes) == writes


async def test_an_open_claim_leaves_out_cards_of_a_node_whose_cpu_is_kept_for_a_waiting_pod() -> (
    None
):
    """kube-scheduler would allocate such a card, and the waiting pod would lack the CPU."""
    api = an_api(nodes=1, cards=2)
    harness = ClaimsHarness(api)
    api.put_pod(a_pod("early", 9_000))
    await harness.settle()
    assert claim_of(api, "early").excluded == frozenset()
    later = harness.clock.now() + timedelta(hours=1)
    room = a_beneficiary("GPU-n1-0", uid="uid-waits", held_until=later, cpu_milli=60_000)
    move = move_of(source=("n1", "GPU-n1-0"), owner_uid="other", beneficiary=room)

    harness.see_move(move)
    api.put_pod(a_pod("cpu", 2_000, cpu="8"))
    api.put_pod(a_pod("small", 2_000, cpu="1"))
    await harness.look()

    assert claim_of(api, "cpu").open
    assert claim_of(api, "cpu").excluded == {"GPU-n1-0", "GPU-n1-1"}
    assert claim_of(api, "early").excluded == frozenset()  # there is CPU for it
    assert listed(api, "small") == ["GPU-n1-1"]
    writes = len(api.writes)
    await harness.look()
    assert len(api.writes) == writes

    harness.see_move(move, gone=True)
    await harness.look()
    assert not claim_of(api, "cpu").open


@pytest.mark.parametrize("mib", [2_000, 9_000])
async def test_a_claim_of_before_cpu_is_kept_is_replaced(mib: int) -> None:
    """Listed or open, kube-scheduler would follow it onto the node."""
    api = an_api(nodes=1, cards=2)
    harness = ClaimsHarness(api)
    api.put_pod(a_pod("early", mib, cpu="8"))
    await harness.settle()
    later = harness.clock.now() + timedelta(hours=1)
    room = a_beneficiary("GPU-n1-0", uid="uid-waits", held_until=later, cpu_milli=60_000)

    harness.see_move(move_of(source=("n1", "GPU-n1-0"), owner_uid="other", beneficiary=room))
    await harness.look()

    assert claim_of(api, "early").excluded == {"GPU-n1-0", "GPU-n1-1"}
