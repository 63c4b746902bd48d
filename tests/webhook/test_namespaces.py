import asyncio

import pytest

from kube.client import KubeClient
from kube.kinds import NAMESPACES
from tests.support.waiting import until_true
from webhook.namespaces import NamespaceLabels


async def test_labels_follow_their_namespace(kube: KubeClient) -> None:
    namespaces = NamespaceLabels(kube)
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
    namespaces = NamespaceLabels(kube)
    labels = {"fracgpu.io/dialects": "kai"}
    await kube.create(NAMESPACES, {"metadata": {"name": "young", "labels": labels}})

    assert labels.items() <= (await namespaces.fetch("young")).items()


@pytest.mark.parametrize("name", ["none-such", "", "a/../b", "x" * 300])
async def test_a_namespace_that_nobody_knows_has_no_labels(kube: KubeClient, name: str) -> None:
    assert await NamespaceLabels(kube).fetch(name) == {}
