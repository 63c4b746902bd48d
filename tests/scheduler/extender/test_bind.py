"""Bind: choose the cards, assume them, and write node and cards in one Binding."""

import asyncio
from dataclasses import replace

import pytest

from fracgpu import names
from fracgpu.request.need import Strategy
from fracgpu.state.allocation import read_assignment
from fracgpu.units import Mib
from kube.errors import Conflict, Forbidden, Invalid, KubeError
from kube.leader_election import LeaseLost
from scheduler.extender.api import BindingArgs
from tests.scheduler.harness import PATH, Harness, refusal, silence
from tests.support.gpu import a_gpu_pod, some_cards
from tests.support.objects import a_pod


@pytest.fixture
def cluster() -> Harness:
    """Return a node and pod ``p``, which waits for 1,000 MiB."""
    cluster = Harness()
    cluster.create(mib=1000)
    return cluster


def outcomes(cluster: Harness, outcome: str) -> float:
    return cluster.count("fracgpu_scheduler_binds_total", outcome=outcome)


async def test_node_and_cards_are_one_write_with_uid_and_version() -> None:
    cluster = Harness()
    pod = cluster.create(mib=1000, cards=2)

    assert await cluster.bind() == ""

    (binding,) = cluster.api.bindings
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
    assert outcomes(cluster, "bound") == 1


async def test_the_lease_names_a_pod_before_each_attempt_to_bind_it() -> None:
    cluster = Harness()
    uid = cluster.create().record.uid
    recorded_before: list[int] = []

    def change() -> None:
        recorded_before.append(len(cluster.recorded))
        if len(recorded_before) == 1:
            cluster.api.touch("p")  # by another, so that the first attempt gets 409

    cluster.api.before_bind = change

    assert await cluster.bind() == ""
    assert recorded_before == [1, 2]
    assert cluster.recorded == [{uid}, {uid}]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (silence(), "the Lease could not be written, so pod default/p is not bound: no answer"),
        (LeaseLost("another"), "this replica no longer leads"),
    ],
    ids=["no answer", "lost"],
)
async def test_a_pod_that_the_lease_does_not_name_is_not_bound_and_its_cards_are_free(
    error: Exception, reason: str
) -> None:
    cluster = Harness()
    cluster.create(mib=1000)
    cluster.record_raises = error

    assert (await cluster.bind()).startswith(reason)
    assert cluster.api.bindings == []
    assert cluster.held() == 0


async def test_a_placement_counts_before_the_informer_shows_it_and_once_after() -> None:
    cluster = Harness()
    cluster.create(mib=1000)
    await cluster.bind()
    assert cluster.held() == 1000

    cluster.see("p")
    assert cluster.held() == 1000
    assert cluster.ledger.assumed == {}


async def test_two_binds_at_once_do_not_choose_the_same_mib() -> None:
    cluster = Harness(cards=1)
    cluster.api.held = asyncio.Event()
    for name in ("p", "q"):
        cluster.create(name, mib=13_000)

    async with asyncio.TaskGroup() as group:
        first = group.create_task(cluster.bind("p"), name="first")
        second = group.create_task(cluster.bind("q"), name="second")
        await asyncio.sleep(0)
        cluster.api.held.set()

    assert first.result() == ""
    assert "no room on node n any more" in second.result()
    assert cluster.held() == 13_000


async def test_one_pod_is_bound_by_one_request_at_a_time() -> None:
    cluster = Harness()
    cluster.api.held = asyncio.Event()
    cluster.create()

    async with asyncio.TaskGroup() as group:
        first = group.create_task(cluster.bind(), name="first")
        await asyncio.sleep(0)
        second = await cluster.bind()
        cluster.api.held.set()

    assert (first.result(), len(cluster.api.bindings)) == ("", 1)
    assert "is in progress" in second


async def test_the_pods_status_written_in_between_is_answered_by_reading_again() -> None:
    cluster = Harness()
    cluster.create(mib=1000)
    cluster.api.touch("p")  # the informer has not seen it
    held: list[int] = []
    cluster.api.after_get = lambda: held.append(cluster.held())

    assert await cluster.bind() == ""

    assert held == [1000]  # meanwhile its cards are nobody else's
    assert cluster.api.gets == 1
    assert len(cluster.api.bindings) == 2
    assert cluster.held() == 1000


async def test_a_changed_pod_that_cannot_be_read_holds_nothing(cluster: Harness) -> None:
    cluster.api.touch("p")
    cluster.api.get_raises = silence()

    assert "cannot read pod" in await cluster.bind()

    assert cluster.ledger.assumed == {}


async def test_a_pod_that_keeps_changing_is_given_up(cluster: Harness) -> None:
    cluster.api.before_bind = lambda: cluster.api.touch("p")

    assert "keeps changing" in await cluster.bind()

    assert outcomes(cluster, "conflict") == 1
    assert cluster.ledger.assumed == {}


async def test_a_pod_that_asks_for_something_else_now_is_not_bound(cluster: Harness) -> None:
    changed = a_gpu_pod("p", mib=2000)
    changed["metadata"]["uid"] = cluster.args().uid
    cluster.api.put(changed)

    assert "has changed since it was filtered" in await cluster.bind()
    assert cluster.ledger.assumed == {}


async def test_a_deleted_pod_leaves_nothing_behind(cluster: Harness) -> None:
    args = cluster.args()
    cluster.delete(observed=False)

    assert "is gone" in await cluster.binder.bind(args)
    assert cluster.ledger.assumed == {}

    cluster.api.gets = 0
    unseen = BindingArgs(namespace="default", name="never", uid="u", node="n")
    assert "is gone" in await cluster.binder.bind(unseen)


async def test_a_pod_deleted_after_a_conflict_is_gone(cluster: Harness) -> None:
    args = cluster.args()
    cluster.api.touch("p")
    conflicts = iter([None])

    def vanish() -> None:
        if next(conflicts, "later") is None:
            return
        cluster.api.pods.clear()

    cluster.api.before_bind = vanish

    assert "is gone" in await cluster.binder.bind(args)
    assert cluster.ledger.assumed == {}


async def test_a_terminating_pod_is_not_bound(cluster: Harness) -> None:
    pod = cluster.copy_of()
    pod["metadata"]["deletionTimestamp"] = "2026-01-05T12:00:00Z"
    cluster.api.put(pod)

    assert "is being deleted" in await cluster.bind()

    cluster.see("p")
    assert "is being deleted" in await cluster.bind()
    assert cluster.ledger.assumed == {}


async def test_a_pod_of_the_same_name_is_another_pod(cluster: Harness) -> None:
    old = cluster.args()
    cluster.delete()
    cluster.create()

    assert "replaced by another" in await cluster.binder.bind(old)
    assert cluster.api.bindings == []


async def test_a_pod_bound_elsewhere_is_an_error_and_counts_where_it_is() -> None:
    cluster = Harness("n", "m")
    cluster.create(mib=1000)
    pod = cluster.copy_of()
    pod["spec"]["nodeName"] = "m"
    pod["metadata"]["annotations"][names.ASSIGNMENT] = '{"train":[{"card":"GPU-m-0","mib":1000}]}'
    cluster.api.put(pod)

    assert "bound to node m already" in await cluster.bind()

    assert (cluster.held("GPU-n-0"), cluster.held("GPU-m-0")) == (0, 1000)


@pytest.mark.parametrize(
    ("error", "said", "held", "outcome"),
    [
        (silence(), "did not say", 1000, "unknown"),
        (TimeoutError(), "no answer within 4.0 s", 1000, "unknown"),
        (refusal(), "not yours", 0, "failed"),
    ],
)
async def test_a_failed_write_frees_the_card_unless_its_outcome_is_unknown(
    error: Exception, said: str, held: int, outcome: str
) -> None:
    cluster = Harness()
    cluster.create(mib=1000)
    cluster.api.bind_raises = error

    assert said in await cluster.bind()

    assert cluster.held() == held
    assert outcomes(cluster, outcome) == 1


async def test_a_binding_whose_answer_was_lost_is_found_by_the_next_request() -> None:
    cluster = Harness()
    cluster.create(mib=1000)
    cluster.api.answer_lost = True
    assert "did not say" in await cluster.bind()
    cluster.api.answer_lost = False

    assert await cluster.bind() == ""  # kube-scheduler tries again; the informer still lags

    assert cluster.held() == 1000
    assert len(cluster.api.bindings) == 1
    cluster.see("p")
    assert cluster.held() == 1000


async def test_a_pod_is_bound_anew_only_once_its_earlier_binding_cannot_land_any_more() -> None:
    cluster = Harness("n", "m", cards=1)
    cluster.create(mib=20_000)
    cluster.api.bind_raises = silence()
    assert "did not say" in await cluster.bind()
    (lost,) = cluster.api.bindings
    cluster.api.bind_raises = None

    assert await cluster.bind(node="m") == ""

    assert (cluster.held("GPU-n-0"), cluster.held("GPU-m-0")) == (0, 20_000)
    with pytest.raises(Conflict, match="resourceVersion"):
        await cluster.api.bind(lost, namespace="default", name="p")


async def test_while_nobody_says_whether_an_earlier_binding_may_land_there_is_no_other() -> None:
    cluster = Harness()
    cluster.create(mib=1000)
    cluster.api.bind_raises = silence()
    await cluster.bind()
    cluster.api.bind_raises, cluster.api.patch_raises = None, silence()

    assert "cannot tell if an earlier Binding" in await cluster.bind()

    assert len(cluster.api.bindings) == 1
    assert cluster.held() == 1000


def of_another_term() -> Forbidden:
    message = "ValidatingAdmissionPolicy 'fracgpu-lease-term' with binding 'fracgpu-lease-term' no"
    return Forbidden(verb="POST", path=PATH, status=403, reason="Forbidden", message=message)


def of_no_lease() -> Invalid:
    """Return what a real kube-apiserver answers where the policy finds no Lease."""
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
    cluster = Harness()
    cluster.create(mib=1000)
    cluster.api.bind_raises = denial
    async with asyncio.TaskGroup() as group:
        binding = group.create_task(cluster.bind())
        await cluster.clock.wait_for_sleepers(1)
        cluster.api.bind_raises = None
        await cluster.clock.advance(0.05)

    assert binding.result() == ""
    assert len(cluster.api.bindings) == 2


async def test_the_retries_of_a_denied_binding_have_an_end_and_free_the_card() -> None:
    cluster = Harness()
    cluster.create(mib=1000)
    cluster.api.bind_raises = of_another_term()
    async with asyncio.TaskGroup() as group:
        binding = group.create_task(cluster.bind())
        while not binding.done():
            await cluster.clock.advance(0.5)

    assert "fracgpu-lease-term" in binding.result()
    assert (len(cluster.api.bindings), cluster.held()) == (7, 0)
    assert outcomes(cluster, "fenced") == 1


async def test_a_denied_binding_is_not_sent_again_by_who_no_longer_leads(cluster: Harness) -> None:
    cluster.api.bind_raises = of_another_term()
    async with asyncio.TaskGroup() as group:
        binding = group.create_task(cluster.bind())
        await cluster.clock.wait_for_sleepers(1)
        cluster.leads = False
        await cluster.clock.advance(0.05)

    assert binding.result() == "this replica no longer leads"
    assert (len(cluster.api.bindings), cluster.held()) == (1, 0)


async def test_whoever_lost_the_lease_does_not_write(cluster: Harness) -> None:
    cluster.leads = False

    assert "no longer leads" in await cluster.bind()

    assert cluster.api.bindings == []
    assert cluster.ledger.assumed == {}


async def test_the_lease_is_checked_before_each_write(cluster: Harness) -> None:
    cluster.api.touch("p")

    def lose() -> None:
        cluster.leads = False

    cluster.api.before_bind = lose

    assert "no longer leads" in await cluster.bind()
    assert len(cluster.api.bindings) == 1


async def test_a_pod_the_informer_has_not_seen_is_read() -> None:
    cluster = Harness()
    cluster.api.put(a_gpu_pod("p", mib=1000))

    assert await cluster.bind() == ""
    assert cluster.held() == 1000


@pytest.mark.parametrize("error", [silence(), TimeoutError(), refusal()])
async def test_a_pod_that_cannot_be_read_is_not_bound(error: KubeError | TimeoutError) -> None:
    cluster = Harness()
    cluster.api.put(a_gpu_pod("p"))
    cluster.api.get_raises = error

    assert "cannot read pod default/p" in await cluster.bind()
    assert cluster.api.bindings == []


async def test_a_node_that_is_not_known_is_an_error(cluster: Harness) -> None:
    assert "node nowhere is not known" in await cluster.bind(node="nowhere")


async def test_a_node_that_filled_up_meanwhile_is_an_error_with_the_reason() -> None:
    cluster = Harness(cards=1)
    cluster.create("first", mib=20_000)
    cluster.create(mib=20_000)
    await cluster.bind("first")

    assert await cluster.bind() == (
        "no room on node n any more: 1 of 1 cards: too little free memory"
    )
    assert outcomes(cluster, "refused") == 1


async def test_a_pod_that_slipped_past_the_webhook_is_not_bound() -> None:
    cluster = Harness()
    pod = a_gpu_pod("p")
    del pod["spec"]["containers"][0]["resources"]
    cluster.api.put(pod)
    cluster.see("p")

    assert "webhook" in await cluster.bind()
    assert cluster.api.bindings == []


async def test_a_pod_that_asks_nothing_of_us_is_simply_bound() -> None:
    cluster = Harness()
    plain = a_pod("p", namespace="default")
    cluster.api.put(plain)
    cluster.see("p")

    assert await cluster.bind() == ""

    assert cluster.api.bindings[0]["metadata"] == {"uid": cluster.args().uid}
    assert cluster.recorded == []
    assert cluster.ledger.assumed == {}


async def test_the_clusters_strategy_chooses_the_card() -> None:
    cluster = Harness()
    cluster.create("first", mib=1000)
    cluster.create("second", mib=1000)
    await cluster.bind("first")
    cluster.strategy = Strategy.SPREAD
    await cluster.bind("second")

    assert (cluster.held("GPU-n-0"), cluster.held("GPU-n-1")) == (1000, 1000)


BURST = ("a", "b", "c", "d", "e")  # as many as are written at once


async def test_bindings_of_a_burst_are_written_together_and_counted_at_once() -> None:
    cluster = Harness(bind_pause_s=0.1)
    late = ("x", "y", "z")
    for name in (*BURST, *late):
        cluster.create(name, mib=2000)
    for name in BURST:
        assert await cluster.bind(name) == ""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(cluster.bind(name)) for name in late]
        await cluster.clock.advance(0.01)
        assert len(cluster.api.bindings) == 5
        assert cluster.held() == 16_000  # no other pod gets the memory meanwhile
        await cluster.clock.advance(0.01)
        assert len(cluster.api.bindings) == 8

    assert [task.result() for task in tasks] == ["", "", ""]


async def test_who_lost_the_lease_while_a_binding_waited_for_its_group_writes_nothing() -> None:
    cluster = Harness(bind_pause_s=0.1)
    for name in (*BURST, "late"):
        cluster.create(name, mib=2000)
    for name in BURST:
        assert await cluster.bind(name) == ""
    async with asyncio.TaskGroup() as group:
        late = group.create_task(cluster.bind("late"))
        await cluster.clock.advance(0.01)
        cluster.leads = False
        await cluster.clock.advance(0.01)

    assert late.result() == "this replica no longer leads"
    assert (len(cluster.api.bindings), cluster.held()) == (5, 10_000)


async def test_what_pods_may_use_counts_against_the_limits_of_a_card() -> None:
    cluster = Harness(cards=1, mib=8000)
    (card,) = some_cards("n", count=1, mib=8000)
    cluster.add_node("n", (replace(card, limits_mib=Mib(12_000)),))
    may_borrow = {names.MEMORY_LIMIT: "7000Mi"}
    cluster.create("a", mib=2000, annotations=may_borrow)
    cluster.create("b", mib=2000, annotations=may_borrow)
    cluster.create("c", mib=5000)

    assert await cluster.bind("a") == ""
    assert "the limits of its pods would be too large together" in await cluster.bind("b")
    assert await cluster.bind("c") == ""

    (part,) = read_assignment(cluster.api.pods["a"]["metadata"]["annotations"][names.ASSIGNMENT])[
        "train"
    ]
    assert (part.mib, part.limit_mib) == (2000, 7000)


async def test_where_nothing_limits_a_pod_gets_what_it_is_guaranteed() -> None:
    cluster = Harness(cards=1, mib=8000)
    for name in ("a", "b"):
        cluster.create(name, mib=4000, annotations={names.MEMORY_LIMIT: "8000Mi"})
        assert await cluster.bind(name) == ""

    text = cluster.api.pods["b"]["metadata"]["annotations"][names.ASSIGNMENT]
    assert read_assignment(text)["train"][0].limit_mib == 4000
