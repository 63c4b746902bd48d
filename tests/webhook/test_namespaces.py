import asyncio

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
        assert namespaces.of("ml") == {}

        body = {"metadata": {"name": "ml", "labels": {"fracgpu.io/dialects": "kai"}}}
        await kube.create(NAMESPACES, body)
        await until_true(
            lambda: namespaces.of("ml").get("fracgpu.io/dialects") == "kai", what="labels"
        )

        for task in tasks:
            task.cancel()
