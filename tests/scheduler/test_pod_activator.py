"""Pods that fit because a cordon or an assumption has expired are marked."""

import json
from datetime import timedelta

from tests.scheduler.harness import Harness, silence
from tests.support.gpu import a_bound_gpu_pod, refused_status


def cordon(cluster: Harness, *cards: str, seconds: float) -> None:
    until = (cluster.clock.now() + timedelta(seconds=seconds)).isoformat()
    entries = {card: {"until": until, "reason": "hot"} for card in cards}
    cluster.annotate_node({"cordons": json.dumps(entries)})


def refused(cluster: Harness, name: str) -> None:
    """Let kube-scheduler have found no node for a pod."""
    cluster.api.pods[name]["status"] = refused_status()
    cluster.see(name)


async def woken(cluster: Harness, *, after: float = 0) -> list[str]:
    """Return the pods that are marked after this time."""
    before = len(cluster.api.patches)
    await cluster.clock.advance(after)
    await cluster.waker.once()
    return cluster.api.patches[before:]


async def test_a_cordon_that_lapses_wakes_the_pods_that_fit_by_then_and_no_others() -> None:
    cluster = Harness(cards=1)
    cordon(cluster, "GPU-n-0", seconds=60)
    cluster.create("fits", mib=24_000)
    cluster.create("too-large", mib=25_000)
    assert await woken(cluster) == []
    assert await woken(cluster, after=59) == []

    assert await woken(cluster, after=2) == ["fits"]
    assert await woken(cluster, after=60) == []


async def test_a_new_leader_wakes_the_pods_that_fit_as_something_ended_while_nobody_led() -> None:
    cluster = Harness(cards=1)
    for name, mib in (("fits", 4_000), ("too-large", 25_000), ("being-bound", 20_000)):
        cluster.create(name, mib=mib)
        refused(cluster, name)
    cluster.create("not-tried-yet", mib=4_000)
    cluster.api.bind_raises = silence()
    await cluster.bind("being-bound")

    assert await woken(cluster) == ["fits"]
    assert await woken(cluster) == []


async def test_an_assumption_that_is_dropped_wakes_the_pods_that_waited_for_its_room() -> None:
    cluster = Harness(cards=1)
    cluster.create("lost", mib=20_000)
    cluster.create("other", mib=20_000)
    cluster.api.bind_raises = silence()
    await cluster.bind("lost")
    assert await woken(cluster) == []
    cluster.delete("lost", observed=False)

    await cluster.clock.advance(11)
    await cluster.assumptions.settle()

    # The informer has not seen yet that the first is gone; marking it changes nothing.
    assert await woken(cluster) == ["lost", "other"]


async def test_a_binding_that_is_seen_to_have_taken_effect_wakes_nobody() -> None:
    cluster = Harness(cards=1)
    assert await woken(cluster) == []
    cluster.create("placed", mib=8_000)
    cluster.create("waiting", mib=8_000)
    await cluster.bind("placed")
    assert await woken(cluster) == []

    cluster.see("placed")

    assert await woken(cluster) == []


async def test_a_binding_to_other_cards_than_assumed_wakes_those_that_waited_for_these() -> None:
    cluster = Harness(cards=2)
    assert await woken(cluster) == []
    cluster.create("placed", mib=20_000)
    cluster.create("waiting", mib=20_000)
    cluster.api.bind_raises = silence()
    await cluster.bind("placed")
    assert await woken(cluster) == []
    uid = cluster.args("placed").uid
    pod = a_bound_gpu_pod("placed", node="n", card=1, mib=20_000)
    pod["metadata"]["uid"] = uid
    cluster.api.put(pod)

    cluster.see("placed")

    assert await woken(cluster) == ["waiting"]


async def test_what_lapses_where_no_waiting_pod_fits_wakes_nobody() -> None:
    cluster = Harness("n", "m", cards=1)
    cordon(cluster, "GPU-n-0", seconds=10)
    cluster.create("filler", mib=24_000)
    await cluster.bind("filler", node="m")
    cluster.see("filler")
    cluster.create("large", mib=24_001)
    await woken(cluster)

    assert await woken(cluster, after=11) == []


async def test_of_many_pods_some_are_looked_at_in_each_tick_the_important_first() -> None:
    cluster = Harness(cards=1)
    cordon(cluster, "GPU-n-0", seconds=10)
    for number in range(60):
        cluster.create(f"p{number}", mib=1000, priority=number)
    await woken(cluster)

    first = await woken(cluster, after=11)
    second = await woken(cluster)

    assert first == [f"p{number}" for number in range(59, 9, -1)]
    assert sorted(second) == sorted(f"p{number}" for number in range(10))


async def test_who_no_longer_leads_or_is_not_heard_wakes_nobody() -> None:
    cluster = Harness(cards=1)
    cordon(cluster, "GPU-n-0", seconds=10)
    cluster.create("p")
    await woken(cluster)
    cluster.leads = False
    assert await woken(cluster, after=11) == []

    cluster.leads = True
    cordon(cluster, "GPU-n-0", seconds=10)
    await woken(cluster)
    cluster.api.patch_raises = silence()
    assert await woken(cluster, after=11) == ["p"]
    assert cluster.count("fracgpu_scheduler_pods_marked_total") == 0
