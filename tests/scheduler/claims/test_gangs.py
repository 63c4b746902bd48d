"""The claims of a gang are made for all of its pods, or for none."""

import contextlib
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fracgpu import names
from fracgpu.device_claims.claim import DeviceClaim
from fracgpu.device_claims.quota import quota_problem
from fracgpu.k8s.workloads.quota import ResourceQuota
from scheduler.metrics import WaitReason
from tests.scheduler.claims.harness import (
    ClaimsApi,
    ClaimsHarness,
    Fault,
    Killed,
    a_pod,
    an_api,
    answer_lost,
    busy,
    fine,
    is_bound,
    killed_after,
    killed_before,
    unanswered,
)
from tests.support.claims import claim_name, decoded
from tests.support.examples import at_least
from tests.support.gpu import Json


def a_member(gang: str, number: int, *, size: int, mib: int = 6_000, **more: Any) -> Json:
    return a_pod(f"{gang}-{number}", mib, annotations={names.GANG: f"{gang}/{size}"}, **more)


def create(api: ClaimsApi, gang: str, *, size: int, mib: int = 6_000, **more: Any) -> None:
    for number in range(size):
        api.put_pod(a_member(gang, number, size=size, mib=mib, **more))


def claims_of(api: ClaimsApi, gang: str) -> list[DeviceClaim]:
    pods = [name for name in api.pods if name.startswith(f"{gang}-")]
    return [decoded(api.claims[claim_name(pod)]) for pod in pods if claim_name(pod) in api.claims]


def bound(api: ClaimsApi, gang: str) -> int:
    return sum(is_bound(pod) for name, pod in api.pods.items() if name.startswith(f"{gang}-"))


async def pass_time(harness: ClaimsHarness, seconds: float, *, schedule: bool = True) -> None:
    """Let the controller work, and kube-scheduler after each second."""
    for _ in range(int(seconds)):
        await harness.clock.advance(1.0)
        if schedule:
            harness.api.schedule()
        await harness.clock.advance(0.25)


async def test_no_claim_is_made_before_all_pods_exist_and_each_is_told_within_a_second() -> None:
    api = an_api()
    harness = ClaimsHarness(api)

    async with harness.running():
        for number in range(2):
            api.put_pod(a_member("g", number, size=3))
        await harness.clock.advance(0.9)

        assert api.writes == []
        waits = "waiting for a card: node(s) kept from gang g, which waits for its pods"
        assert sorted(harness.recorder.events) == [
            ("Pod/g-0", "WaitingForGang", f"{waits} (2 of 3 exist)"),
            ("Pod/g-1", "WaitingForGang", f"{waits} (2 of 3 exist)"),
        ]
        reasons = harness.waiting.by_reason()
        assert {reason: found.pods for reason, found in reasons.items()} == {WaitReason.GANG: 2}

        api.put_pod(a_member("g", 2, size=3))
        await harness.clock.advance(0.9)

    assert len(claims_of(api, "g")) == 3
    assert all(len(claim.cards) == 1 for claim in claims_of(api, "g"))
    api.schedule()
    assert bound(api, "g") == 3


async def test_a_gated_pod_does_not_count_until_it_is_let_go() -> None:
    api = an_api()
    harness = ClaimsHarness(api)

    async with harness.running():
        api.put_pod(a_member("g", 0, size=2))
        api.put_pod(a_member("g", 1, size=2, schedulingGates=[{"name": "queue"}]))
        await harness.clock.advance(0.9)
        ((_, _, note),) = harness.recorder.events
        assert "(1 of 2 exist, and 1 that are gated)" in note

        api.put_pod(a_member("g", 1, size=2))
        await harness.clock.advance(0.9)

    assert len(claims_of(api, "g")) == 2


async def test_a_gang_for_part_of_which_there_is_room_holds_nothing_and_is_told_so() -> None:
    api = an_api(nodes=3)
    harness = ClaimsHarness(api)

    async with harness.running():
        api.put_pod(a_pod("single"))
        await pass_time(harness, 1)
        create(api, "g", size=3)
        await harness.clock.advance(0.9)

        assert claims_of(api, "g") == []
        assert harness.core.ledger.assumed == {}
        notes = {pod: note for pod, _, note in harness.recorder.events}
        assert notes.keys() == {"Pod/g-0", "Pod/g-1", "Pod/g-2"}
        assert "waits for room for all its 3 pods at once" in notes["Pod/g-0"]

        api.remove_pod("single")
        api.remove_claim(claim_name("single"))
        await pass_time(harness, 5)

    assert bound(api, "g") == 3


async def test_a_gang_that_the_nodes_would_not_take_even_empty_is_told_so() -> None:
    api = an_api(nodes=2)
    harness = ClaimsHarness(api)

    async with harness.running():
        create(api, "g", size=3)
        await harness.clock.advance(0.9)

    (_, _, note), *_ = harness.recorder.events
    assert "too small for gang g: even empty they would take only 2 of 3" in note


async def test_of_two_gangs_for_the_room_of_one_one_has_all_and_the_other_nothing() -> None:
    api = an_api(nodes=4)
    harness = ClaimsHarness(api)

    async with harness.running():
        for number in range(3):
            api.put_pod(a_member("a", number, size=3))
            api.put_pod(a_member("b", number, size=3))
        await pass_time(harness, 40)

        first, second = sorted("ab", key=lambda gang: -bound(api, gang))
        assert (bound(api, first), bound(api, second)) == (3, 0)
        assert claims_of(api, second) == []

        for number in range(3):
            api.remove_pod(f"{first}-{number}")
            api.remove_claim(claim_name(f"{first}-{number}"))
        await pass_time(harness, 5)

    assert bound(api, second) == 3


@pytest.mark.parametrize("scheduled", [True, False])
@pytest.mark.parametrize("kill", [killed_before, killed_after])
@pytest.mark.parametrize("at", range(4))
async def test_whoever_leads_next_completes_a_gang(at: int, kill: Fault, scheduled: bool) -> None:
    api = an_api(nodes=4)

    api.faults = [*[fine] * at, kill]
    first = ClaimsHarness(api)
    create(api, "g", size=4)
    create(api, "other", size=4)  # for which there is no room beside it
    with contextlib.suppress(Killed):
        await first.settle()
    first.end()
    api.faults = []
    if scheduled:
        api.schedule()

    second = ClaimsHarness(api)
    api.put_pod(a_pod("single"))
    async with second.running():
        await pass_time(second, 10)

    placed, other = ("g", "other") if claims_of(api, "g") else ("other", "g")
    assert bound(api, placed) == 4
    assert claims_of(api, other) == []
    assert not is_bound(api.pods["single"])
    assert max(api.held().values()) <= 8_000


async def test_whoever_leads_next_gives_back_what_cannot_be_completed() -> None:
    api = an_api(nodes=3)
    first = ClaimsHarness(api)
    api.faults = [killed_after]
    create(api, "g", size=3)
    with contextlib.suppress(Killed):
        await first.settle()
    first.end()
    api.faults = []
    assert len(claims_of(api, "g")) == 1
    api.cards = {"n1": api.cards["n1"]}  # two nodes are gone

    second = ClaimsHarness(api)
    async with second.running():
        await pass_time(second, 3, schedule=False)
        assert claims_of(api, "g") == []
        assert second.core.ledger.assumed == {}
        api.put_pod(a_pod("single"))
        await pass_time(second, 2)

    assert is_bound(api.pods["single"])


async def test_while_room_is_held_open_claims_leave_its_cards_out() -> None:
    api = an_api(nodes=2)
    harness = ClaimsHarness(api)

    async with harness.running():
        create(api, "g", size=2)
        await harness.clock.advance(0.25)
        api.put_pod(a_pod("late"))
        await harness.clock.advance(0.25)
        late = decoded(api.claims[claim_name("late")])
        assert late.open
        assert late.excluded == {"GPU-n1-0", "GPU-n2-0"}
        (one,) = [name for name, pod in list(api.pods.items()) if name == "late"]
        api.pods = {one: api.pods.pop(one), **api.pods}  # kube-scheduler tries it first
        await pass_time(harness, 3)
        assert bound(api, "g") == 2

        # Once the room is used the claim leaves nothing out any more.
        await pass_time(harness, 5)
        assert not decoded(api.claims[claim_name("late")]).excluded


async def test_a_list_names_a_card_of_the_room_only_first_where_it_is_counted() -> None:
    api = an_api(nodes=3)
    harness = ClaimsHarness(api)

    async with harness.running():
        create(api, "g", size=2, mib=5_000)
        await harness.clock.advance(0.25)
        api.put_pod(a_pod("late", 2_000))
        await harness.clock.advance(0.25)

    (request,) = decoded(api.claims[claim_name("late")]).requests
    assert request.cards == ("GPU-n1-0", "GPU-n3-0")


async def test_claims_that_could_be_allocated_its_cards_are_replaced_first() -> None:
    api = an_api(nodes=4)
    harness = ClaimsHarness(api)
    api.put_pod(a_pod("single"))
    await harness.settle()  # it lists a card of each node
    create(api, "g", size=3)
    before = len(api.writes)

    async with harness.running():
        await harness.clock.advance(1.0)
        api.schedule()

    assert api.writes[before : before + 2] == [
        f"delete {claim_name('single')}",
        f"create {claim_name('single')}",
    ]
    assert bound(api, "g") == 3
    assert is_bound(api.pods["single"])


async def test_a_card_that_somebody_is_allocated_meanwhile_is_not_waited_for() -> None:
    api = an_api(nodes=4)
    harness = ClaimsHarness(api)
    api.put_pod(a_pod("single"))
    await harness.settle()
    create(api, "g", size=3)

    async def taken(call: Any) -> Any:
        api.schedule()  # just before its claim is deleted: the last of its list
        return await call()

    api.faults = [taken]
    async with harness.running():
        await pass_time(harness, 5)

    assert bound(api, "g") == 3
    replaced = {f"delete {claim_name(f'g-{number}')}" for number in range(3)}
    assert replaced.isdisjoint(api.writes), "its claims are planned anew before they are written"
    assert max(api.held().values()) <= 8_000


@pytest.mark.parametrize("fault", [busy, unanswered, answer_lost])
async def test_a_gang_is_completed_although_writes_fail(fault: Fault) -> None:
    api = an_api(nodes=3)
    harness = ClaimsHarness(api)

    api.faults = [fine, fault, fault]
    async with harness.running():
        create(api, "g", size=3)
        await pass_time(harness, 15)

    assert bound(api, "g") == 3


async def test_room_that_kube_scheduler_does_not_use_is_given_up() -> None:
    api = an_api(nodes=3)
    harness = ClaimsHarness(api)

    async with harness.running():
        create(api, "g", size=3)
        await pass_time(harness, 20, schedule=False)
        assert len(claims_of(api, "g")) == 3
        api.put_pod(a_pod("single"))
        await pass_time(harness, 14, schedule=False)
        assert claims_of(api, "g") == []
        await pass_time(harness, 5)
        assert is_bound(api.pods["single"])
        assert bound(api, "g") == 0


async def test_room_is_given_back_when_a_pod_goes_before_any_is_placed() -> None:
    api = an_api(nodes=3)
    harness = ClaimsHarness(api)

    async with harness.running():
        create(api, "g", size=3)
        await harness.clock.advance(0.5)
        api.remove_pod("g-1")
        api.remove_claim(claim_name("g-1"))
        await harness.clock.advance(1.0)
        assert claims_of(api, "g") == []
        assert harness.core.ledger.assumed == {}


async def test_a_pod_that_kube_scheduler_refuses_its_card_gets_another() -> None:
    api = an_api(nodes=4)
    harness = ClaimsHarness(api)

    async with harness.running():
        create(api, "g", size=3)
        await harness.clock.advance(0.5)
        api.schedule(refuse=("n1",))
        assert bound(api, "g") == 2
        await harness.clock.advance(0.5)
        api.schedule(refuse=("n1",))

    assert bound(api, "g") == 3


async def test_so_does_a_pod_of_whose_claim_nobody_was_told_that_it_was_written() -> None:
    api = an_api(nodes=4)
    harness = ClaimsHarness(api)
    api.faults = [answer_lost]

    async with harness.running():
        create(api, "g", size=3)
        await harness.clock.advance(0.5)
        for _ in range(3):
            api.schedule(refuse=("n1",))
            await harness.clock.advance(1.0)

    assert bound(api, "g") == 3


async def test_where_no_pod_can_use_its_card_none_gets_an_open_claim() -> None:
    api = an_api(nodes=3)
    harness = ClaimsHarness(api)

    async with harness.running():
        create(api, "g", size=3)
        await harness.clock.advance(0.5)
        for _ in range(8):
            api.schedule(refuse=tuple(api.cards))
            await harness.clock.advance(1.0)
            assert not any(claim.open for claim in claims_of(api, "g"))
        assert {reason for _, reason, _ in harness.recorder.events} == {"WaitingForCard"}


async def test_the_replacement_of_a_pod_that_failed_is_placed_by_itself() -> None:
    api = an_api(nodes=4)
    harness = ClaimsHarness(api)

    async with harness.running():
        create(api, "g", size=3)
        await pass_time(harness, 2)
        api.remove_pod("g-1")
        api.remove_claim(claim_name("g-1"))
        again = a_pod("g-again", annotations={names.GANG: "g/3"})
        api.put_pod(again)
        await pass_time(harness, 2)

    assert bound(api, "g") == 3


async def test_a_quota_holds_for_a_gang_as_a_whole() -> None:
    api = an_api(nodes=4)
    api.quotas = [_quota(17_000)]
    harness = ClaimsHarness(api)

    async with harness.running():
        create(api, "g", size=3)
        await harness.clock.advance(0.9)
        assert api.writes == []
        events = set(harness.recorder.events)
        assert {(pod, reason) for pod, reason, _ in events} == {
            (f"Pod/g-{number}", "ExceededQuota") for number in range(3)
        }
        note = next(iter(events))[2]
        assert "for the 3 pods of gang g together: exceeded quota: mem, requested:" in note
        assert "=18000, used:" in note
        infos = [pod.info for pod in harness.cache.pods.values()]
        why = quota_problem(infos[0], api.quotas, (), pods=infos)
        assert note.endswith(f"together: {why}"), "fracgpu explain says the same"

        api.put_pod(a_pod("single"))
        await pass_time(harness, 1)
        assert is_bound(api.pods["single"]), "what the gang does not get others may use"


def _quota(mib: int) -> ResourceQuota:
    key = f"requests.{names.GPU_MEM}"
    return ResourceQuota(
        namespace="default", name="mem", hard={key: str(mib)}, left={key: Fraction(mib)}
    )


async def test_a_replica_that_does_not_lead_any_more_holds_no_room() -> None:
    api = an_api(nodes=4)
    harness = ClaimsHarness(api)
    api.put_pod(a_pod("single"))
    await harness.settle()
    async with harness.running():
        create(api, "g", size=3)
        harness.leads = False
        await harness.clock.advance(1.0)

    assert harness.core.ledger.assumed.keys() == {"uid-single"}


_gangs = st.lists(st.tuples(st.integers(1, 4), st.sampled_from([2_000, 4_000, 6_000])), max_size=4)


@settings(max_examples=at_least(15), deadline=None)
@given(
    st.integers(1, 4),
    _gangs,
    st.lists(st.sampled_from([1_000, 3_000, 7_000]), max_size=4),
    st.randoms(use_true_random=False),
)
async def test_no_gang_is_ever_placed_in_part_and_no_card_overbooked(
    nodes: int, gangs: Sequence[tuple[int, int]], singles: Sequence[int], random: Any
) -> None:
    api = an_api(nodes=nodes)
    sizes = {f"g{at}": size for at, (size, _) in enumerate(gangs)}
    pods = [
        a_member(f"g{at}", number, size=size, mib=mib)
        for at, (size, mib) in enumerate(gangs)
        for number in range(size)
    ]
    pods += [a_pod(f"s{at}", mib) for at, mib in enumerate(singles)]
    random.shuffle(pods)
    harness = ClaimsHarness(api)

    async with harness.running():
        for pod in pods:
            api.put_pod(pod)
            if random.random() < 0.3:
                await pass_time(harness, 1, schedule=random.random() < 0.5)
        for _ in range(3):
            await pass_time(harness, 4)
            placed = {gang: bound(api, gang) for gang in sizes}
            assert all(placed[gang] in (0, size) for gang, size in sizes.items())
            assert all(held <= 8_000 for held in api.held().values())
            for gang, size in sizes.items():
                assert len(claims_of(api, gang)) in (0, size)
        waiting = Counter(name[:2] for name, pod in api.pods.items() if not is_bound(pod))
        for gang, size in sizes.items():
            if waiting[gang]:  # the others really leave no room for all of it
                need = gangs[int(gang[1:])][1]
                left = [8_000 - held for held in _held_by_card(api)]
                assert sum(free // need for free in left) < size


def _held_by_card(api: ClaimsApi) -> list[int]:
    held = api.held()
    return [held[node, card.uuid.lower()] for node, cards in api.cards.items() for card in cards]
