"""Assumed placements, which no informer has shown yet."""

import asyncio
from collections.abc import Callable

import pytest

from kube.errors import Conflict, KubeError
from tests.scheduler.harness import Harness, refusal, silence
from tests.support.gpu import a_gpu_pod


async def unconfirmed(*, answer_lost: bool = True, mib: int = 1000) -> Harness:
    """Return a cluster in which one Binding was sent and no answer came."""
    cluster = Harness()
    cluster.create(mib=mib)
    if answer_lost:
        cluster.api.answer_lost = True
    else:
        cluster.api.bind_raises = silence()
    await cluster.bind()
    cluster.api.answer_lost, cluster.api.bind_raises = False, None
    cluster.api.gets = 0
    return cluster


async def settle_after(cluster: Harness, seconds: float) -> None:
    await cluster.clock.advance(seconds)
    await cluster.assumptions.settle()


async def test_nothing_is_looked_up_before_its_time() -> None:
    cluster = await unconfirmed()
    await settle_after(cluster, 9)

    assert cluster.api.gets == 0


async def test_a_pod_found_bound_goes_on_counting_however_late_the_informer_is() -> None:
    cluster = await unconfirmed()
    for _ in range(30):
        await settle_after(cluster, 11)
        assert cluster.held() == 1000

    cluster.see("p")
    assert cluster.held() == 1000
    assert cluster.ledger.assumed == {}


async def test_a_pod_found_bound_goes_on_counting_with_its_cpu() -> None:
    cluster = Harness()
    body = a_gpu_pod("p")
    body["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "4"
    cluster.api.put(body)
    cluster.see("p")
    cluster.api.answer_lost = True
    await cluster.bind()
    cluster.api.answer_lost = False

    def cpu_milli() -> list[int]:
        return [one.host.cpu_milli for one in cluster.ledger.assumed_on("n", but="")]

    before = cpu_milli()
    await settle_after(cluster, 11)

    assert (before, cpu_milli()) == ([4000], [4000])


async def test_a_pod_found_unbound_is_marked_so_that_its_binding_cannot_land_and_is_free() -> None:
    cluster = await unconfirmed(answer_lost=False)
    (lost,) = cluster.api.bindings
    await settle_after(cluster, 11)

    assert (cluster.held(), cluster.api.patches) == (0, ["p"])
    with pytest.raises(Conflict, match="resourceVersion"):
        await cluster.api.bind(lost, namespace="default", name="p")
    assert cluster.count("fracgpu_scheduler_assumptions_lapsed_total") == 0


async def test_a_pod_that_is_bound_while_it_is_marked_goes_on_counting() -> None:
    cluster = await unconfirmed(answer_lost=False)
    (lost,) = cluster.api.bindings
    cluster.api.after_get = lambda: cluster.api.land(lost, "p")
    await settle_after(cluster, 11)

    assert (cluster.held(), cluster.api.patches) == (1000, ["p"])


async def test_a_pod_found_unbound_that_cannot_be_marked_lapses_in_the_end() -> None:
    cluster = await unconfirmed(answer_lost=False)
    cluster.api.patch_raises = refusal()
    await settle_after(cluster, 11)
    assert cluster.held() == 1000  # the write may still be in flight

    await settle_after(cluster, 1)
    assert cluster.api.gets == 1, "it is asked again only after the whole wait"
    await settle_after(cluster, 49)
    assert cluster.held() == 0
    assert cluster.count("fracgpu_scheduler_assumptions_lapsed_total") == 1


@pytest.mark.parametrize("error", [silence(), TimeoutError()])
async def test_while_the_api_server_is_silent_nothing_lapses(
    error: KubeError | TimeoutError,
) -> None:
    cluster = await unconfirmed()
    cluster.api.get_raises = error
    for _ in range(20):
        await settle_after(cluster, 30)
        assert cluster.held() == 1000


def is_gone(cluster: Harness) -> None:
    cluster.delete(observed=False)


def is_replaced(cluster: Harness) -> None:
    cluster.delete(observed=False)
    cluster.create(mib=7)


def has_ended(cluster: Harness) -> None:
    cluster.api.pods["p"]["status"] = {"phase": "Failed"}


@pytest.mark.parametrize("change", [is_gone, is_replaced, has_ended])
async def test_a_pod_found_not_to_need_its_card_any_more_is_free(
    change: Callable[[Harness], None],
) -> None:
    cluster = await unconfirmed()
    change(cluster)
    await settle_after(cluster, 11)

    assert (cluster.held(), cluster.ledger.assumed) == (0, {})


async def test_what_the_informer_confirmed_is_not_looked_up() -> None:
    cluster = await unconfirmed()
    cluster.see("p")
    await settle_after(cluster, 11)

    assert cluster.api.gets == 0
    assert cluster.held() == 1000


async def test_the_loop_settles_about_once_a_second() -> None:
    cluster = await unconfirmed()
    cluster.delete(observed=False)

    async with asyncio.TaskGroup() as group:
        loop = group.create_task(cluster.assumptions.expire(), name="look after")
        await cluster.clock.advance(12)
        loop.cancel()

    assert cluster.held() == 0
