"""Why a pod waits, asked by a browser."""

import asyncio

import pytest

from fracgpu.explain.answers import NO_FITTING_CARDS, PodVerdict, SuggestionKind
from kube.informer import ChangeType
from scheduler.page.explainer import TooManyQuestionsError
from tests.support.gpu import refused_status, some_cards
from tests.support.page import PageCluster


async def test_what_would_help_is_told_but_not_that_nothing_would() -> None:
    cluster = PageCluster()
    cluster.node("n", cards=some_cards("n", count=1, mib=24_000))
    cluster.pod("holder", on="n", mib=12_000)
    cluster.pod("waits", mib=20_000)
    cluster.pod("large", mib=90_000)

    waits = await cluster.explainer.explain("default", "waits")
    large = await cluster.explainer.explain("default", "large")

    assert waits is not None
    assert large is not None
    kinds = [each.kind for each in waits.suggestions]
    assert SuggestionKind.PODS_GO in kinds
    assert SuggestionKind.LARGER_NODE not in [each.kind for each in large.suggestions]


async def test_only_pods_that_wait_are_read_from_the_api_server() -> None:
    cluster = PageCluster()
    cluster.node("n")
    cluster.pod("running", on="n")

    assert await cluster.explainer.explain("default", "running") is None
    assert await cluster.explainer.explain("default", "unknown") is None
    assert cluster.shelf.gets == 0


async def test_a_pod_that_went_meanwhile_is_not_there() -> None:
    cluster = PageCluster()
    cluster.pod("p")
    cluster.shelf.pods.clear()

    assert await cluster.explainer.explain("default", "p") is None


async def test_a_node_affinity_is_evaluated_although_the_cache_has_none() -> None:
    cluster = PageCluster()
    cluster.node("n")
    cluster.pod("p", nodeSelector={"zone": "a"})

    found = await cluster.explainer.explain("default", "p")

    assert found is not None
    (objection,) = found.explanation.nodes[0].objections
    assert objection.text == "the pod's nodeSelector wants zone=a"


async def test_where_only_cards_are_known_no_pod_is_said_to_fit() -> None:
    cluster = PageCluster()
    cluster.node("n")
    cluster.pod("p")
    message = "0/1 nodes are available: 1 Insufficient cpu."
    cluster.shelf.pods["default/p"]["status"] = refused_status(message)

    found = await cluster.explainer.explain("default", "p")

    assert found is not None
    explanation = found.explanation
    assert explanation.verdict is PodVerdict.CARDS_FIT
    assert [(node.cards_fit, node.fits) for node in explanation.nodes] == [(True, False)]
    assert explanation.choice == NO_FITTING_CARDS
    assert explanation.notes == (
        "taints, CPU, host memory and volumes are not evaluated here",
        f"kube-scheduler said last: {message}",
    )


async def test_one_question_is_answered_at_a_time_and_a_few_wait() -> None:
    cluster = PageCluster()
    cluster.node("n")
    cluster.pod("p")
    cluster.shelf.held = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        asked = [group.create_task(cluster.explainer.explain("default", "p")) for _ in range(4)]
        await asyncio.sleep(0)
        assert cluster.shelf.gets == 1

        with pytest.raises(TooManyQuestionsError, match="too many questions"):
            await cluster.explainer.explain("default", "p")
        cluster.shelf.held.set()

    assert all(task.result() is not None for task in asked)


async def test_a_deleted_pod_does_not_wait() -> None:
    cluster = PageCluster()
    cluster.pod("p")
    cluster.pod("p", what=ChangeType.DELETED)

    assert await cluster.explainer.explain("default", "p") is None
