"""Filter waits until it is known where a pod with a claim goes."""

import asyncio
from collections.abc import Awaitable

import pytest

from scheduler.extender.api import FilterResult
from tests.scheduler.harness import Harness
from tests.support.gpu import refused_status

CLAIM = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
FITS = FilterResult(passed=("n",))
UNSCHEDULABLE = refused_status()


def passed(cluster: Harness, name: str) -> None:
    cluster.cycles.filtered(cluster.asking(name).pod, FITS)


def waits(cluster: Harness, name: str) -> Awaitable[None] | None:
    return cluster.cycles.begin(cluster.asking(name).pod)


def wait_in(group: asyncio.TaskGroup, cluster: Harness, name: str) -> asyncio.Task[None]:
    """Let a pod wait as the extender's server does."""
    waiting = waits(cluster, name)
    assert waiting is not None

    async def wait() -> None:
        await waiting

    return group.create_task(wait())


def two_pods(**first: object) -> Harness:
    cluster = Harness(cards=1)
    cluster.create("p", mib=20_000, **first)
    cluster.create("q", mib=20_000)
    return cluster


def test_without_claims_nobody_waits() -> None:
    cluster = two_pods()
    passed(cluster, "p")

    assert waits(cluster, "q") is None


def test_a_pod_does_not_wait_for_itself() -> None:
    cluster = two_pods(volumes=CLAIM)
    passed(cluster, "p")

    assert waits(cluster, "p") is None


@pytest.mark.parametrize("what", ["bound", "nominated", "unschedulable", "deleted"])
async def test_the_next_pod_waits_until_something_is_heard_of_the_one_before(what: str) -> None:
    cluster = two_pods(volumes=CLAIM)
    passed(cluster, "p")
    async with asyncio.TaskGroup() as group:
        task = wait_in(group, cluster, "q")
        await asyncio.sleep(0)
        assert not task.done()
        if what == "bound":
            assert await cluster.bind() == ""
        elif what == "deleted":
            cluster.delete("p")
        else:
            pod = cluster.copy_of()
            pod["status"] = {"nominatedNodeName": "n"} if what == "nominated" else UNSCHEDULABLE
            cluster.api.put(pod)
            cluster.see("p")

    free = bool(cluster.extender.filter(cluster.asking("q")).passed)
    assert free is (what in ("unschedulable", "deleted"))


@pytest.mark.parametrize("before", [{}, UNSCHEDULABLE])
async def test_an_event_that_says_nothing_of_where_a_pod_goes_lets_nobody_pass(
    before: dict[str, object],
) -> None:
    cluster = two_pods(volumes=CLAIM)
    pod = cluster.copy_of()
    pod["status"] = before
    cluster.api.put(pod)
    passed(cluster, "p")

    cluster.see("p")  # the informer's own copy was late
    cluster.api.touch("p")
    cluster.see("p")

    waiting = waits(cluster, "q")
    assert waiting is not None
    cluster.delete("p")
    await waiting


async def test_a_pod_with_a_claim_waits_for_the_bindings_before_it() -> None:
    cluster = two_pods()
    cluster.create("r", mib=1000, volumes=CLAIM)
    passed(cluster, "p")

    async with asyncio.TaskGroup() as group:
        task = wait_in(group, cluster, "r")
        await asyncio.sleep(0)
        assert not task.done()
        assert await cluster.bind() == ""


async def test_nobody_waits_for_long() -> None:
    cluster = two_pods(volumes=CLAIM)
    passed(cluster, "p")

    async with asyncio.TaskGroup() as group:
        task = wait_in(group, cluster, "q")
        await cluster.clock.wait_for_sleepers(1)
        assert not task.done()
        await cluster.clock.advance(1.0)

    assert waits(cluster, "q") is None


def test_a_pod_that_fits_nowhere_is_not_waited_for() -> None:
    cluster = two_pods(volumes=CLAIM)
    cluster.cycles.filtered(cluster.asking("p").pod, FilterResult(failed={"n": "full"}))

    assert waits(cluster, "q") is None
