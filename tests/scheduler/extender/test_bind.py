"""Bind: choose the card, count it, and write node and card in one Binding."""

import asyncio
from dataclasses import replace

import pytest

from fracgpu import names
from fracgpu.cards.card import CardUuid
from fracgpu.k8s.resources import HostResources
from fracgpu.request.need import PodNeed, Strategy
from kube.errors import Conflict, Forbidden, Invalid, KubeError
from scheduler.extender.api import BindingArgs
from tests.scheduler.world import PATH, World, refusal, silence
from tests.support.gpu import a_gpu_pod, some_cards
from tests.support.objects import a_pod


def outcomes(world: World, outcome: str) -> float:
    return world.count("fracgpu_scheduler_binds_total", outcome=outcome)


async def test_node_and_cards_are_one_write_with_uid_and_version() -> None:
    world = World()
    pod = world.create(mib=1000, cards=2)

    assert await world.bind() == ""

    (binding,) = world.api.bindings
    assert binding == {
        "metadata": {
            "uid": pod.record.uid,
            "resourceVersion": pod.record.resource_version,
            "annotations": {
                names.ASSIGNMENT: '{"train":[{"card":"GPU-n-0","mib":1000},'
                '{"card":"GPU-n-1","mib":1000}]}',
                names.TERM: "lease/1",
            },
            "labels": {names.ASSIGNED_LABEL: "true"},
        },
        "target": {"apiVersion": "v1", "kind": "Node", "name": "n"},
    }
    assert outcomes(world, "bound") == 1


async def test_a_placement_counts_before_the_informer_shows_it_and_once_after() -> None:
    world = World()
    world.create(mib=1000)
    await world.bind()
    assert world.held() == 1000

    world.see("p")
    assert world.held() == 1000
    assert world.ledger.assumed == {}


async def test_two_binds_at_once_do_not_choose_the_same_mib() -> None:
    world = World(cards=1)
    world.api.held = asyncio.Event()
    for name in ("p", "q"):
        world.create(name, mib=13_000)

    async with asyncio.TaskGroup() as group:
        first = group.create_task(world.bind("p"), name="first")
        second = group.create_task(world.bind("q"), name="second")
        await asyncio.sleep(0)
        world.api.held.set()

    assert first.result() == ""
    assert "no room on node n any more" in second.result()
    assert world.held() == 13_000


async def test_a_card_with_all_slots_taken_is_refused_by_filter_and_bind_and_says_so() -> None:
    world = World(cards=1)
    (card,) = some_cards("n", count=1)
    world.add_node("n", (replace(card, slots=2),))
    world.api.held = asyncio.Event()
    for name in ("p", "q", "r"):
        world.create(name, mib=80)

    async with asyncio.TaskGroup() as group:
        # All three have passed the filter; the third meets the two others' assumptions.
        binds = [group.create_task(world.bind(name), name=name) for name in ("p", "q", "r")]
        await asyncio.sleep(0)
        world.api.held.set()
    world.create("late", mib=80)
    filtered = world.extender.filter(world.asking("late", "n"))

    assert [it.result() for it in binds[:2]] == ["", ""]
    assert "1 of 1 cards: all its slots are taken" in binds[2].result()
    assert filtered.passed == ()
    assert "no free slot" in filtered.failed["n"]
    assert len(world.api.bindings) == 2


async def test_one_pod_is_bound_by_one_request_at_a_time() -> None:
    world = World()
    world.api.held = asyncio.Event()
    world.create()

    async with asyncio.TaskGroup() as group:
        first = group.create_task(world.bind(), name="first")
        await asyncio.sleep(0)
        second = await world.bind()
        world.api.held.set()

    assert (first.result(), len(world.api.bindings)) == ("", 1)
    assert "under way already" in second


async def test_the_pods_status_written_in_between_is_answered_by_reading_again() -> None:
    world = World()
    world.create(mib=1000)
    world.api.touch("p")  # the informer has not heard of it

    assert await world.bind() == ""

    assert world.api.gets == 1
    assert len(world.api.bindings) == 2
    assert world.held() == 1000


async def test_a_pod_that_keeps_changing_is_given_up() -> None:
    world = World()
    world.create()
    world.api.before_bind = lambda: world.api.touch("p")

    assert "keeps changing" in await world.bind()

    assert outcomes(world, "conflict") == 1
    assert world.ledger.assumed == {}


async def test_a_pod_that_asks_for_something_else_now_is_not_bound() -> None:
    world = World()
    world.create(mib=1000)
    changed = a_gpu_pod("p", mib=2000)
    changed["metadata"]["uid"] = world.args().uid
    world.api.put(changed)

    assert "asks for something else" in await world.bind()
    assert world.ledger.assumed == {}


async def test_a_deleted_pod_leaves_nothing_behind() -> None:
    world = World()
    world.create()
    args = world.args()
    world.delete(seen=False)

    assert "is gone" in await world.binder.bind(args)
    assert world.ledger.assumed == {}

    world.api.gets = 0
    unseen = BindingArgs(namespace="default", name="never", uid="u", node="n")
    assert "is gone" in await world.binder.bind(unseen)


async def test_a_pod_deleted_after_a_conflict_is_gone() -> None:
    world = World()
    world.create()
    args = world.args()
    world.api.touch("p")
    conflicts = iter([None])

    def vanish() -> None:
        if next(conflicts, "later") is None:
            return
        world.api.pods.clear()

    world.api.before_bind = vanish

    assert "is gone" in await world.binder.bind(args)
    assert world.ledger.assumed == {}


async def test_a_terminating_pod_is_not_bound() -> None:
    world = World()
    world.create()
    pod = world.copy_of()
    pod["metadata"]["deletionTimestamp"] = "2026-01-05T12:00:00Z"
    world.api.put(pod)

    assert "is being deleted" in await world.bind()

    world.see("p")
    assert "is being deleted" in await world.bind()
    assert world.ledger.assumed == {}


async def test_a_pod_of_the_same_name_is_another_pod() -> None:
    world = World()
    world.create()
    old = world.args()
    world.delete()
    world.create()

    assert "replaced by another" in await world.binder.bind(old)
    assert world.api.bindings == []


async def test_a_pod_bound_elsewhere_is_an_error_and_counts_where_it_is() -> None:
    world = World("n", "m")
    world.create(mib=1000)
    pod = world.copy_of()
    pod["spec"]["nodeName"] = "m"
    pod["metadata"]["annotations"][names.ASSIGNMENT] = '{"train":[{"card":"GPU-m-0","mib":1000}]}'
    world.api.put(pod)

    assert "bound to node m already" in await world.bind()

    assert (world.held("GPU-n-0"), world.held("GPU-m-0")) == (0, 1000)


async def test_an_unknown_outcome_keeps_counting() -> None:
    world = World()
    world.create(mib=1000)
    world.api.bind_raises = silence()

    assert "did not say" in await world.bind()

    assert world.held() == 1000
    assert outcomes(world, "unknown") == 1


async def test_a_binding_whose_answer_was_lost_is_found_by_the_next_request() -> None:
    world = World()
    world.create(mib=1000)
    world.api.answer_lost = True
    assert "did not say" in await world.bind()
    world.api.answer_lost = False

    assert await world.bind() == ""  # kube-scheduler tries again; the informer still lags

    assert world.held() == 1000
    assert len(world.api.bindings) == 1
    world.see("p")
    assert world.held() == 1000


async def test_a_pod_is_bound_anew_only_once_its_earlier_binding_cannot_land_any_more() -> None:
    world = World("n", "m", cards=1)
    world.create(mib=20_000)
    world.api.bind_raises = silence()
    assert "did not say" in await world.bind()
    (lost,) = world.api.bindings
    world.api.bind_raises = None

    assert await world.bind(node="m") == ""

    assert (world.held("GPU-n-0"), world.held("GPU-m-0")) == (0, 20_000)
    with pytest.raises(Conflict, match="resourceVersion"):
        await world.api.bind(lost, namespace="default", name="p")


async def test_while_nobody_says_whether_an_earlier_binding_may_land_there_is_no_other() -> None:
    world = World()
    world.create(mib=1000)
    world.api.bind_raises = silence()
    await world.bind()
    world.api.bind_raises, world.api.patch_raises = None, silence()

    assert "cannot tell whether an earlier Binding" in await world.bind()

    assert len(world.api.bindings) == 1
    assert world.held() == 1000


def of_another_term() -> Forbidden:
    message = "ValidatingAdmissionPolicy 'fracgpu-lease-term' with binding 'fracgpu-lease-term' no"
    return Forbidden(verb="POST", path=PATH, status=403, reason="Forbidden", message=message)


def of_no_lease() -> Invalid:
    """What a real kube-apiserver answers where the policy finds no Lease."""
    message = (
        "ValidatingAdmissionPolicy 'fracgpu-lease-term' with binding 'fracgpu-lease-term' denied "
        "request: failed to configure binding: no params found for policy binding with `Deny` "
        "parameterNotFoundAction"
    )
    return Invalid(verb="POST", path=PATH, status=422, reason="Invalid", message=message)


@pytest.mark.parametrize("denial", [of_another_term(), of_no_lease()], ids=["term", "no Lease"])
async def test_a_denial_because_the_api_server_lags_behind_the_lease_is_retried(
    denial: Exception,
) -> None:
    world = World()
    world.create(mib=1000)
    world.api.bind_raises = denial
    async with asyncio.TaskGroup() as group:
        binding = group.create_task(world.bind())
        await world.clock.wait_for_sleepers(1)
        world.api.bind_raises = None
        await world.clock.advance(0.05)

    assert binding.result() == ""
    assert len(world.api.bindings) == 2


async def test_the_retries_of_a_denied_binding_have_an_end_and_free_the_card() -> None:
    world = World()
    world.create(mib=1000)
    world.api.bind_raises = of_another_term()
    async with asyncio.TaskGroup() as group:
        binding = group.create_task(world.bind())
        while not binding.done():
            await world.clock.advance(0.5)

    assert "fracgpu-lease-term" in binding.result()
    assert (len(world.api.bindings), world.held()) == (7, 0)
    assert outcomes(world, "fenced") == 1


async def test_a_denied_binding_is_not_sent_again_by_who_no_longer_leads() -> None:
    world = World()
    world.create(mib=1000)
    world.api.bind_raises = of_another_term()
    async with asyncio.TaskGroup() as group:
        binding = group.create_task(world.bind())
        await world.clock.wait_for_sleepers(1)
        world.leads = False
        await world.clock.advance(0.05)

    assert binding.result() == "this replica no longer leads"
    assert (len(world.api.bindings), world.held()) == (1, 0)


async def test_a_binding_that_hangs_is_an_unknown_outcome() -> None:
    world = World()
    world.create(mib=1000)
    world.api.bind_raises = TimeoutError()

    assert "no answer within 4.0 s" in await world.bind()
    assert world.held() == 1000


async def test_a_refused_write_is_an_error_and_frees_the_card() -> None:
    world = World()
    world.create(mib=1000)
    world.api.bind_raises = refusal()

    assert "not yours" in await world.bind()

    assert world.held() == 0
    assert outcomes(world, "failed") == 1


async def test_whoever_lost_the_lease_does_not_write() -> None:
    world = World()
    world.create()
    world.leads = False

    assert "no longer leads" in await world.bind()

    assert world.api.bindings == []
    assert world.ledger.assumed == {}


async def test_the_lease_is_checked_before_each_write() -> None:
    world = World()
    world.create()
    world.api.touch("p")

    def lose() -> None:
        world.leads = False

    world.api.before_bind = lose

    assert "no longer leads" in await world.bind()
    assert len(world.api.bindings) == 1


async def test_a_pod_the_informer_has_not_seen_is_read() -> None:
    world = World()
    world.api.put(a_gpu_pod("p", mib=1000))

    assert await world.bind() == ""
    assert world.held() == 1000


@pytest.mark.parametrize("error", [silence(), TimeoutError(), refusal()])
async def test_a_pod_that_cannot_be_read_is_not_bound(error: KubeError | TimeoutError) -> None:
    world = World()
    world.api.put(a_gpu_pod("p"))
    world.api.get_raises = error

    assert "cannot read pod default/p" in await world.bind()
    assert world.api.bindings == []


async def test_a_node_that_is_not_known_is_an_error() -> None:
    world = World()
    world.create()

    assert "node nowhere is not known" in await world.bind(node="nowhere")


async def test_a_node_that_filled_up_meanwhile_is_an_error_with_the_reason() -> None:
    world = World(cards=1)
    world.create("first", mib=20_000)
    world.create(mib=20_000)
    await world.bind("first")

    assert await world.bind() == (
        "no room on node n any more: 1 of 1 cards: too little free memory"
    )
    assert outcomes(world, "refused") == 1


async def test_a_pod_that_slipped_past_the_webhook_is_not_bound() -> None:
    world = World()
    pod = a_gpu_pod("p")
    del pod["spec"]["containers"][0]["resources"]
    world.api.put(pod)
    world.see("p")

    assert "webhook" in await world.bind()
    assert world.api.bindings == []


async def test_a_pod_that_asks_nothing_of_us_is_simply_bound() -> None:
    world = World()
    plain = a_pod("p", namespace="default")
    world.api.put(plain)
    world.see("p")

    assert await world.bind() == ""

    assert world.api.bindings[0]["metadata"] == {"uid": world.args().uid}
    assert world.ledger.assumed == {}


async def test_the_clusters_strategy_chooses_the_card() -> None:
    world = World()
    world.create("first", mib=1000)
    world.create("second", mib=1000)
    await world.bind("first")
    world.strategy = Strategy.SPREAD
    await world.bind("second")

    assert (world.held("GPU-n-0"), world.held("GPU-n-1")) == (1000, 1000)


class Stubborn:
    """A policy that always wants the same card, full or not."""

    def prefer(self, need: PodNeed, host: HostResources, node: str) -> frozenset[CardUuid]:
        return frozenset({CardUuid(f"GPU-{node}-0")})


async def test_a_policy_that_prefers_a_full_card_cannot_book_it_twice() -> None:
    world = World()
    world.choosers[Strategy.PACK] = Stubborn()
    for name in ("p0", "p1", "p2"):
        world.create(name, mib=20_000)

    answers = [await world.bind(name) for name in ("p0", "p1", "p2")]

    assert answers[:2] == ["", ""]
    assert "no room" in answers[2]
    loads = world.ledger.node("n", now=world.clock.now())
    assert loads is not None
    assert [load.held_mib for load in loads.cards.values()] == [20_000, 20_000]
