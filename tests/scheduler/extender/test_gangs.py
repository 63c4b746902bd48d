"""A gang waits whole, gets its room whole and is bound whole."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fracgpu import names
from fracgpu.k8s.resources import HostResources
from scheduler.extender.api import FilterResult
from scheduler.extender.gangs import GATHER_S
from tests.scheduler.harness import Harness
from tests.support.examples import at_least
from tests.support.gpu import a_gpu_pod

CARD_MIB = 24_000


class Gang:
    """The pods of one gang in a small cluster, asked about as by kube-scheduler."""

    def __init__(
        self, cluster: Harness, *, size: int, name: str = "g", mib: int = CARD_MIB
    ) -> None:
        self.cluster = cluster
        self.size = size
        self.name = name
        self.mib = mib
        self.pods = [f"{name}{number}" for number in range(size)]

    def create(self, *pods: str) -> None:
        for pod in pods or self.pods:
            note = {names.GANG: f"{self.name}/{self.size}"}
            self.cluster.create(pod, mib=self.mib, annotations=note)

    async def ask(self, pod: str, *nodes: str) -> FilterResult:
        args = self.cluster.asking(pod, *(nodes or ("n",)))
        found = await self.cluster.gangs.filter(args)
        return self.cluster.extender.filter(args) if found is None else found

    async def ask_all(self, *nodes: str) -> list[bool]:
        return [bool((await self.ask(pod, *nodes)).passed) for pod in self.pods]

    async def bind(self, pod: str, *, node: str = "n") -> str:
        uid = self.cluster.api.pods[pod]["metadata"]["uid"]
        why_not = await self.cluster.gangs.gather(uid) or await self.cluster.bind(pod, node=node)
        if not why_not:
            self.cluster.see(pod)
        return why_not

    @property
    def bound(self) -> set[str]:
        pods = self.cluster.api.pods
        return {pod for pod in self.pods if pod in pods and pods[pod]["spec"].get("nodeName")}

    @property
    def held(self) -> int:
        """How many of its pods have room held for them."""
        assumed, pods = self.cluster.ledger.assumed, self.cluster.api.pods
        uids = [pods[pod]["metadata"]["uid"] for pod in self.pods if pod in pods]
        return sum(uid in assumed and assumed[uid].gang for uid in uids)


@asynccontextmanager
async def binding(gang: Gang, pods: Sequence[str]) -> AsyncIterator[list[asyncio.Task[str]]]:
    async with asyncio.TaskGroup() as group:
        yield [group.create_task(gang.bind(pod), name=pod) for pod in pods]


async def a_placed_gang(*, cards: int, size: int) -> Gang:
    """Return a gang on one node; each of its pods has been tried."""
    gang = Gang(Harness(cards=cards), size=size)
    gang.create()
    await gang.ask_all()
    return gang


async def a_bound_gang(*, cards: int, size: int) -> Gang:
    gang = await a_placed_gang(cards=cards, size=size)
    async with binding(gang, gang.pods):
        pass
    return gang


async def test_a_gang_waits_for_its_pods_and_says_how_many_there_are() -> None:
    gang = Gang(Harness(cards=4), size=3)
    gang.create("g0", "g1")

    answer = await gang.ask("g0")

    assert not answer.passed
    assert "gang g, which waits for its pods (2 of 3 exist)" in answer.reason
    assert not answer.failed, "preemption would make room for one pod alone"
    assert gang.held == 0


async def test_a_gated_pod_of_a_gang_does_not_count_and_is_named() -> None:
    gang = Gang(Harness(cards=4), size=3)
    gang.create()
    gang.cluster.api.pods["g2"]["spec"]["schedulingGates"] = [{"name": "queue"}]
    gang.cluster.see("g2")

    await gang.ask("g0")
    answer = await gang.ask("g1")

    assert "waits for its pods (2 of 3 exist, and 1 that are gated)" in answer.reason


async def test_the_last_pod_that_is_tried_gets_room_for_all_of_them() -> None:
    gang = Gang(Harness(cards=4), size=3)
    gang.create()

    assert await gang.ask_all() == [False, False, True]

    assert gang.held == 3
    assert await gang.ask_all() == [True, True, True]
    assert gang.held == 3, "each has its place, and no second one"


async def test_a_gang_for_part_of_which_there_is_room_holds_nothing() -> None:
    cluster = Harness(cards=4)
    gang = Gang(cluster, size=3)
    cluster.create("one", mib=CARD_MIB)
    cluster.create("two", mib=CARD_MIB)
    for pod in ("one", "two"):
        await cluster.bind(pod)
        cluster.see(pod)
    gang.create()

    assert await gang.ask_all() == [False, False, False]

    assert gang.held == 0
    assert "waits for room for all its 3 pods at once" in (await gang.ask("g0")).reason
    cluster.delete("one")
    assert await gang.ask_all() == [True, True, True]


async def test_nothing_is_bound_before_all_pods_are_to_be_and_then_all_are() -> None:
    gang = await a_placed_gang(cards=4, size=3)

    async with binding(gang, ["g0", "g1"]):
        await gang.cluster.clock.advance(GATHER_S / 2)
        assert gang.bound == set()
        assert await gang.bind("g2") == ""

    assert gang.bound == {"g0", "g1", "g2"}
    assert gang.held == 0


async def test_a_pod_that_does_not_come_lets_none_be_bound_and_the_room_is_given_up() -> None:
    gang = await a_placed_gang(cards=3, size=3)

    async with binding(gang, ["g0", "g1"]) as binds:
        await gang.cluster.clock.advance(GATHER_S + 1)

    assert all("not all 3 pods of gang g have a node yet" in bind.result() for bind in binds)
    assert gang.bound == set()
    assert gang.held == 3, "kube-scheduler tries them again"
    await gang.cluster.clock.advance(60)
    gang.cluster.gangs.expire()
    assert gang.held == 0
    # The room is not held again before the pod that did not come is tried.
    assert not (await gang.ask("g0")).passed
    assert gang.held == 0


async def test_of_two_gangs_that_both_fit_only_alone_one_has_all_and_the_other_nothing() -> None:
    cluster = Harness(cards=4)
    first, second = Gang(cluster, size=3, name="a"), Gang(cluster, size=3, name="b")
    first.create()
    second.create()
    for pods in zip(first.pods, second.pods, strict=True):
        await first.ask(pods[0])
        await second.ask(pods[1])

    assert (first.held, second.held) == (3, 0)
    assert not any(await second.ask_all())
    async with binding(first, first.pods):
        pass
    assert first.bound == set(first.pods)
    for pod in first.pods:
        cluster.delete(pod)
    assert await second.ask_all() == [True, True, True]


async def test_the_replacement_of_a_pod_that_died_is_placed_alone() -> None:
    gang = await a_bound_gang(cards=4, size=3)
    gang.cluster.delete("g1")

    gang.create("g1")

    assert (await gang.ask("g1")).passed == ("n",)
    assert await gang.bind("g1") == ""


async def test_a_gang_that_was_deleted_and_created_anew_is_placed_whole_again() -> None:
    gang = await a_bound_gang(cards=4, size=2)
    for pod in gang.pods:  # they terminate
        gang.cluster.api.pods[pod]["metadata"]["deletionTimestamp"] = "2026-01-05T12:00:00Z"
        gang.cluster.see(pod)
    gang.pods = ["n0", "n1"]

    gang.create("n0")

    assert not (await gang.ask("n0")).passed


async def test_a_pod_that_is_deleted_gives_up_the_room_of_all() -> None:
    gang = await a_placed_gang(cards=4, size=3)

    async with binding(gang, ["g0", "g1"]) as binds:
        await gang.cluster.clock.advance(0)
        gang.cluster.delete("g2")

    assert all("pod default/g2 is gone" in bind.result() for bind in binds)
    gang.pods = ["g0", "g1"]
    assert gang.held == 0


async def test_a_pod_that_may_not_go_to_its_node_gets_another_or_the_gang_waits() -> None:
    gang = Gang(Harness("a", "b", cards=2), size=2)
    gang.create()
    (node,) = [(await gang.ask(pod, "a", "b")).passed for pod in gang.pods][-1]
    other = "b" if node == "a" else "a"

    assert (await gang.ask("g0", other)).passed == (other,)
    assert gang.held == 2
    gang.cluster.create("full", mib=CARD_MIB, cards=2)
    await gang.cluster.bind("full", node=node)  # its card there is free again: both are not
    assert not (await gang.ask("g0", "elsewhere")).passed
    assert gang.held == 0


async def test_a_gang_larger_than_its_nodes_is_told_so() -> None:
    gang = Gang(Harness(cards=3), size=4, mib=16_000)
    gang.create()

    await gang.ask_all()

    answer = await gang.ask("g0")
    assert "too small for gang g: even empty they would take only 3 of 4" in answer.reason


async def test_a_gang_of_too_many_kinds_of_pods_is_told_so() -> None:
    cluster = Harness(cards=4)
    gang = Gang(cluster, size=9, mib=1000)
    for number, pod in enumerate(gang.pods):
        cluster.create(pod, mib=1000 + number, annotations={names.GANG: "g/9"})

    await gang.ask_all()

    assert "whose pods differ in more than 8 ways" in (await gang.ask("g0")).reason


async def test_a_change_while_room_is_looked_for_holds_nothing_and_has_the_pod_tried_again() -> (
    None
):
    cluster = Harness(cards=32)
    gang = Gang(cluster, size=20)
    gang.create()
    cluster.create("other", mib=CARD_MIB)
    for pod in gang.pods[:-1]:
        await gang.ask(pod)
    last = gang.pods[-1]
    looking = cluster.gangs.filter(cluster.asking(last))
    steps = looking.__await__()
    next(steps)  # before the pods are evaluated
    next(steps)  # after some of them were placed

    assert await cluster.bind("other") == ""

    with pytest.raises(StopIteration) as stopped:
        next(steps)
    assert not stopped.value.value.passed
    assert gang.held == 0
    async with asyncio.TaskGroup() as group:
        running = group.create_task(cluster.gangs.run(cluster.marker), name="gangs")
        await cluster.clock.advance(2)
        running.cancel()
    assert cluster.api.patches == [last]


async def test_gangs_of_other_namespaces_and_sizes_are_others() -> None:
    cluster = Harness(cards=4)
    two, three = Gang(cluster, size=2), Gang(cluster, size=3)
    two.create("g0")
    three.create("g1", "g2")

    assert "1 of 2 exist" in (await two.ask("g0")).reason
    assert "2 of 3 exist" in (await three.ask("g1")).reason


async def test_those_refused_before_are_marked_so_that_they_are_tried_again() -> None:
    gang = Gang(Harness(cards=4), size=3)
    cluster = gang.cluster
    gang.create()
    async with asyncio.TaskGroup() as group:
        running = group.create_task(cluster.gangs.run(cluster.marker), name="gangs")
        await gang.ask_all()
        await cluster.clock.advance(2)
        running.cancel()

    assert {"g0", "g1"} <= set(cluster.api.patches)


async def test_what_is_held_for_a_gang_is_nobody_elses() -> None:
    cluster = Harness(cards=3)
    gang = Gang(cluster, size=3)
    gang.create()
    await gang.ask_all()
    cluster.create("alone", mib=1000)

    assert not cluster.extender.filter(cluster.asking("alone")).passed


async def test_no_binding_is_under_way_of_a_pod_for_whose_gang_room_is_held() -> None:
    gang = await a_placed_gang(cards=3, size=3)

    assert set(gang.cluster.assumptions.under_way()) == set()


async def test_preemption_is_for_pods_of_no_gang_that_waits() -> None:
    gang = Gang(Harness(cards=4), size=2)
    gang.create()
    pods = [gang.cluster.asking(pod).pod for pod in gang.pods]
    assert [gang.cluster.gangs.waits(pod) for pod in pods] == [True, True]
    await gang.ask_all()
    async with binding(gang, gang.pods):
        pass
    gang.cluster.delete("g0")
    gang.create("g0")

    assert not gang.cluster.gangs.waits(gang.cluster.asking("g0").pod)


async def test_a_card_that_fails_while_the_others_come_lets_none_be_bound() -> None:
    gang = await a_placed_gang(cards=2, size=2)

    async with binding(gang, ["g0"]) as binds:
        await gang.cluster.clock.advance(0)
        gang.cluster.annotate_node({"cards": "not json"})
        assert "has no card any more" in await gang.bind("g1")

    assert "has no card any more" in binds[0].result()
    assert gang.bound == set()


async def test_cpu_counts_for_all_pods_of_a_gang_together() -> None:
    cluster = Harness(cards=4)
    cluster.host_left = HostResources(cpu_milli=1500, memory_mib=10_000)
    gang = Gang(cluster, size=2)
    gang.create()
    for pod in gang.pods:
        container = cluster.api.pods[pod]["spec"]["containers"][0]
        container["resources"]["requests"]["cpu"] = "1"
        cluster.see(pod)

    assert await gang.ask_all() == [False, False]


async def test_nothing_is_remembered_of_a_gang_without_pods() -> None:
    gang = await a_placed_gang(cards=4, size=2)
    assert gang.cluster.gangs._gangs

    for pod in gang.pods:
        gang.cluster.delete(pod)

    assert not gang.cluster.gangs._gangs
    assert not gang.cluster.gangs.of_pod


async def test_a_pod_asked_about_after_its_deletion_is_no_member() -> None:
    gang = Gang(Harness(cards=4), size=2)
    gang.create("g0")
    late = gang.cluster.asking("g0")
    gang.cluster.delete("g0")

    answer = await gang.cluster.gangs.filter(late)

    assert answer is not None
    assert not answer.passed
    assert not gang.cluster.gangs._gangs
    gang.create("g1")
    assert "(1 of 2 exist)" in (await gang.ask("g1")).unresolvable["n"]


async def test_a_pod_asked_about_before_it_is_observed_is_tried_again_then() -> None:
    gang = Gang(Harness(cards=4), size=2)
    cluster = gang.cluster
    gang.create("g0")
    await gang.ask("g0")
    cluster.api.put(a_gpu_pod("g1", mib=CARD_MIB, annotations={names.GANG: "g/2"}))
    assert not (await gang.ask("g1")).passed
    async with asyncio.TaskGroup() as group:
        running = group.create_task(cluster.gangs.run(cluster.marker), name="gangs")
        cluster.see("g1")
        await cluster.clock.advance(2)
        running.cancel()

    assert cluster.api.patches == ["g1"]
    assert (await gang.ask("g1")).passed


async def test_of_many_pods_asked_about_too_early_each_is_tried_again() -> None:
    cluster = Harness(cards=1)
    early = [f"early{number}" for number in range(1_200)]
    for pod in [*early, "gone"]:
        cluster.api.put(a_gpu_pod(pod, mib=100, annotations={names.GANG: "g/2"}))
        await cluster.gangs.filter(cluster.asking(pod))
    cluster.delete("gone", observed=False)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(cluster.gangs.run(cluster.marker), name="gangs")
        await cluster.clock.advance(300)
        for pod in early:
            cluster.see(pod)
        await cluster.clock.advance(2)
        assert set(cluster.api.patches) == set(early)
        assert len(cluster.gangs._early) == 1
        await cluster.clock.advance(300)
        assert not cluster.gangs._early, "kube-scheduler would have asked again"
        running.cancel()


SIZES = {"a": 2, "b": 3, "c": 4}
STEPS = st.tuples(
    st.sampled_from(["create", "ask", "delete", "bind", "time"]),
    st.sampled_from([f"{name}{number}" for name, size in SIZES.items() for number in range(size)]),
)


@settings(max_examples=at_least(100))
@given(st.integers(1, 5), st.lists(STEPS, max_size=60))
def test_whatever_happens_a_gang_holds_room_for_all_its_pods_or_for_none(
    cards: int, steps: list[tuple[str, str]]
) -> None:
    asyncio.run(walk(cards, steps))


async def walk(cards: int, steps: Sequence[tuple[str, str]]) -> None:
    cluster = Harness(cards=cards)
    gangs = {name: Gang(cluster, size=size, name=name) for name, size in SIZES.items()}
    async with asyncio.TaskGroup() as binds:
        for what, pod in steps:
            gang, there = gangs[pod[0]], pod in cluster.api.pods
            unbound = there and not cluster.api.pods[pod]["spec"].get("nodeName")
            if what == "create" and not there:
                gang.create(pod)
            elif what == "ask" and unbound:
                await gang.ask(pod)
            elif what == "delete" and there:
                cluster.delete(pod)
            elif what == "bind" and unbound and (await gang.ask(pod)).passed:
                binds.create_task(gang.bind(pod), name=pod)
                await cluster.clock.advance(0)
            elif what == "time":
                await cluster.clock.advance(GATHER_S)
                cluster.gangs.expire()
            for each in gangs.values():
                assert each.bound or each.held in (0, each.size)
            assert all(cluster.held(f"GPU-n-{card}") <= CARD_MIB for card in range(cards))
        await cluster.clock.advance(GATHER_S)
