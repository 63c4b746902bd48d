import asyncio
from contextlib import AsyncExitStack

import pytest
import structlog

from kube.access import connect_to
from kube.client import KubeClient
from kube.kinds import NAMESPACES, Kind
from kube.retry import RetryPolicy
from simulator.apiserver.server import ApiServer
from tests.fakes.clock import VirtualClock
from tests.support.waiting import until_true
from webhook.namespaces import NamespaceLabels, NamespaceUnreadError


async def test_labels_follow_their_namespace(kube: KubeClient) -> None:
    namespaces = NamespaceLabels(kube, VirtualClock())
    assert namespaces.problem() == "the API server has not listed namespaces yet"
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(run()) for run in namespaces.tasks.values()]
        await until_true(lambda: namespaces.problem() is None, what="namespaces are listed")
        assert namespaces.of("ml") is None

        body = {"metadata": {"name": "ml", "labels": {"fracgpu.io/dialects": "kai"}}}
        await kube.create(NAMESPACES, body)
        await until_true(
            lambda: (namespaces.of("ml") or {}).get("fracgpu.io/dialects") == "kai", what="labels"
        )

        for task in tasks:
            task.cancel()


async def test_a_namespace_too_young_for_the_copy_is_asked_for(kube: KubeClient) -> None:
    namespaces = NamespaceLabels(kube, VirtualClock())
    labels = {"fracgpu.io/dialects": "kai"}
    await kube.create(NAMESPACES, {"metadata": {"name": "young", "labels": labels}})

    found = await namespaces.fetch("young")

    assert found is not None
    assert labels.items() <= found.items()


@pytest.mark.parametrize("name", ["none-such", "a/../b", "x" * 300])
async def test_a_namespace_that_does_not_exist_has_no_answer(kube: KubeClient, name: str) -> None:
    with structlog.testing.capture_logs() as lines:
        assert await NamespaceLabels(kube, VirtualClock()).fetch(name) is None

    assert lines == []


async def test_a_cluster_scoped_object_has_no_labels_of_a_namespace(kube: KubeClient) -> None:
    assert await NamespaceLabels(kube, VirtualClock()).fetch("") == {}


async def test_a_no_is_remembered_for_a_second_and_few_are_asked_at_once() -> None:
    async with AsyncExitStack() as stack:
        api = await stack.enter_async_context(ApiServer.start())
        client = await stack.enter_async_context(connect_to(api.url))
        counting, clock = _Counting(client), VirtualClock()
        namespaces = NamespaceLabels(counting, clock)  # type: ignore[arg-type]  # get alone is used

        async with asyncio.TaskGroup() as group:
            for number in range(200):
                group.create_task(namespaces.fetch(f"none-{number % 20}"))
        assert (counting.asked, counting.most_at_once) == (20, 4)

        await client.create(NAMESPACES, {"metadata": {"name": "none-3"}})
        assert await namespaces.fetch("none-3") is None
        await clock.advance(1)
        assert await namespaces.fetch("none-3") is not None


async def test_without_an_answer_labels_are_unknown_and_a_line_says_why() -> None:
    async with connect_to("http://127.0.0.1:1") as client:
        namespaces = NamespaceLabels(client.with_retry(RetryPolicy(attempts=1)), VirtualClock())
        unread = pytest.raises(NamespaceUnreadError, match="namespace ml: no answer from kube-api")
        with structlog.testing.capture_logs() as lines, unread:
            await namespaces.fetch("ml")

    assert [(line["event"], line["namespace"]) for line in lines] == [("namespace_not_read", "ml")]


class _Counting:
    """Counts how many objects are asked for, and how many at once at most."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self._now = self.asked = self.most_at_once = 0

    async def get(self, kind: Kind, name: str) -> bytes:
        self.asked += 1
        self._now += 1
        self.most_at_once = max(self.most_at_once, self._now)
        try:
            return await self._client.get(kind, name)
        finally:
            self._now -= 1
