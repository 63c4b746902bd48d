import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from component.pool_config import parse_pools
from fracgpu import names
from fracgpu.cards.annotations import write_cards
from fracgpu.k8s.node_affinity import ANY_NODE
from fracgpu.units import Mib
from kube.access import connect_to
from kube.client import KubeClient
from kube.errors import KubeError
from kube.kinds import NODES, PODS
from kube.retry import RetryPolicy
from process.clock import SystemClock
from simulator.apiserver.server import ApiServer
from tests.fakes.clock import VirtualClock
from tests.support.gpu import a_gpu_pod, a_sharing_node, register, some_cards
from tests.support.waiting import until_true
from webhook.card_classes import CardClassIndex


@asynccontextmanager
async def following(client: KubeClient) -> AsyncIterator[CardClassIndex]:
    index = CardClassIndex(client, SystemClock())
    async with followed(index):
        yield index


@asynccontextmanager
async def followed(index: CardClassIndex) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(run(), name=name) for name, run in index.tasks.items()]
        try:
            await until_true(lambda: index.problem() is None, what="nodes and pods are listed")
            yield
        finally:
            for task in tasks:
                task.cancel()


async def becomes(index: CardClassIndex, *classes: tuple[int, int, float]) -> None:
    """Wait until the classes are these: MiB, cards, free share."""
    wanted = list(classes)

    def found() -> list[tuple[int, int, float]]:
        return [
            (card_class.capacity_mib, card_class.cards, round(card_class.free_share, 3))
            for card_class in index.classes() or ()
        ]

    await until_true(lambda: found() == wanted, what=f"classes are {wanted}, not {found()}")


async def test_nothing_is_known_before_nodes_and_pods_are_listed(kube: KubeClient) -> None:
    index = CardClassIndex(kube, SystemClock())

    assert index.classes() is None
    assert index.problem() == "the API server has not listed nodes yet"


async def test_an_empty_cluster_has_no_class_which_is_known(kube: KubeClient) -> None:
    async with following(kube) as index:
        assert index.classes() == ()
        assert index.age_s < 60


async def test_classes_follow_nodes_as_they_come_change_and_go(kube: KubeClient) -> None:
    await register(kube, a_sharing_node("a"))
    async with following(kube) as index:
        await becomes(index, (24_000, 4, 1.0))

        await register(kube, a_sharing_node("b", cards=some_cards("b", count=2, mib=40_960)))
        await becomes(index, (24_000, 4, 1.0), (40_960, 2, 1.0))

        annotations = {names.NODE_CARDS: write_cards(some_cards("b", count=1, mib=40_960))}
        await kube.patch(NODES, "b", {"metadata": {"annotations": annotations}})
        await becomes(index, (24_000, 4, 1.0), (40_960, 1, 1.0))

        await kube.patch(NODES, "b", {"metadata": {"labels": {names.SHARE_LABEL: None}}})
        await becomes(index, (24_000, 4, 1.0))

        await kube.delete(NODES, "a")
        await becomes(index)


async def test_what_live_pods_hold_is_not_free_and_what_dead_ones_held_is(kube: KubeClient) -> None:
    await register(kube, a_sharing_node("a", cards=some_cards("a", count=2)))
    async with following(kube) as index:
        await becomes(index, (24_000, 2, 1.0))

        assignment = '{"train":[{"card":"GPU-a-0","mib":12000}]}'
        for name in ("p1", "p2"):
            pod = a_gpu_pod(
                name, mib=12_000, annotations={names.ASSIGNMENT: assignment}, nodeName="a"
            )
            await kube.create(PODS, pod)
        await becomes(index, (24_000, 2, 0.5))

        status = {"status": {"phase": "Succeeded"}}
        await kube.patch(PODS, "p1", status, namespace="default", subresource="status")
        await becomes(index, (24_000, 2, 0.75))

        await kube.delete(PODS, "p2", namespace="default", grace_s=0)
        await becomes(index, (24_000, 2, 1.0))


async def test_a_node_whose_inventory_is_spoilt_offers_no_card(kube: KubeClient) -> None:
    node = a_sharing_node("a")
    node["metadata"]["annotations"][names.NODE_CARDS] = "{"
    await register(kube, node)
    async with following(kube) as index:
        assert index.classes() == ()


async def test_the_card_classes_outlive_the_api_server() -> None:
    async with AsyncExitStack() as server:
        api = await server.enter_async_context(ApiServer.start())
        async with connect_to(api.url) as client:
            await register(client, a_sharing_node("a"))
            async with following(client) as index:
                await becomes(index, (24_000, 4, 1.0))

                await server.aclose()
                with pytest.raises(KubeError):
                    await client.with_retry(RetryPolicy(attempts=1)).list(NODES)

                await becomes(index, (24_000, 4, 1.0))
                assert index.problem() is None


async def test_cards_that_only_labels_speak_of_are_supposed_until_an_agent_reports(
    kube: KubeClient,
) -> None:
    node = a_sharing_node("a")
    reported = node["metadata"].pop("annotations")
    node["metadata"]["labels"] |= {
        "nvidia.com/gpu.product": "NVIDIA-A30",
        "nvidia.com/gpu.memory": "24576",
        "nvidia.com/gpu.count": "4",
    }
    await register(kube, node)
    reserved = Mib(576)
    index = CardClassIndex(kube, SystemClock(), label_reserved_mib=lambda: reserved)
    async with followed(index):
        await becomes(index, (24_000, 4, 0.0))
        assert [card_class.measured for card_class in index.classes() or ()] == [False]

        reserved = Mib(0)
        index.refresh()
        await becomes(index, (24_560, 4, 0.0))

        await kube.patch(NODES, "a", {"metadata": {"annotations": reported}})
        await becomes(index, (24_000, 4, 1.0))
        assert [card_class.measured for card_class in index.classes() or ()] == [True]


async def test_what_pods_change_is_counted_once_a_second_at_most(kube: KubeClient) -> None:
    await register(kube, a_sharing_node("a", cards=some_cards("a", count=2)))
    clock = VirtualClock()
    slow = CardClassIndex(kube, clock)
    async with followed(slow), following(kube) as live:
        await becomes(slow, (24_000, 2, 1.0))
        assignment = {names.ASSIGNMENT: '{"train":[{"card":"GPU-a-0","mib":12000}]}'}
        await kube.create(PODS, a_gpu_pod("p", mib=12_000, annotations=assignment, nodeName="a"))
        await becomes(live, (24_000, 2, 0.75))

        assert [card_class.free_share for card_class in slow.classes() or ()] == [1.0]
        await clock.advance(1)
        await becomes(slow, (24_000, 2, 0.75))


TEXT = (
    "a30: {models: 'NVIDIA-A30*', mib: 23920, pools: [{name: a30-4, cards: 4, labels: {zone: a}}]}"
)


async def test_cards_of_a_class_of_the_catalogue_count_by_its_name(kube: KubeClient) -> None:
    catalogue = parse_pools("")
    index = CardClassIndex(kube, SystemClock(), pools=lambda: catalogue)
    old, new = a_sharing_node("old"), a_sharing_node("new", cards=())
    for node in (old, new):
        node["metadata"]["labels"][names.CARD_CLASS_LABEL] = "a30"
    new["metadata"]["labels"][names.CARD_COUNT_LABEL] = "4"
    del new["metadata"]["annotations"]
    await register(kube, new)

    def names_of() -> list[tuple[str, int, int]]:
        return [(each.name, each.capacity_mib, each.cards) for each in index.classes() or ()]

    async with followed(index):
        await becomes(index)
        assert index.declared(ANY_NODE) == ()

        catalogue = parse_pools(TEXT)
        index.refresh()
        # What its labels promise, until the agent reports.
        await until_true(lambda: names_of() == [("a30", 23_920, 4)], what="supposed cards count")
        assert [each.capacity_mib for each in index.declared(ANY_NODE)] == [23_920]

        await register(kube, old)
        await until_true(lambda: names_of() == [("a30", 24_000, 8)], what="measured cards count")
        assert index.smallest_by_model() == {"NVIDIA-A30": 24_000}
        assert [each.capacity_mib for each in index.declared(ANY_NODE)] == [24_000]
