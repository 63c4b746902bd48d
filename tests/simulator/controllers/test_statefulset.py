from __future__ import annotations

from kube.kinds import PODS, STATEFULSETS
from tests.simulator.controllers.harness import Harness, an_owner


async def test_pods_come_one_after_the_other_by_ordinal(harness: Harness) -> None:
    await harness.kube.create(STATEFULSETS, an_owner("db", replicas=2), namespace=harness.namespace)

    (first,) = await harness.wait_count(1)
    assert first["metadata"]["name"] == "db-0"
    assert first["spec"]["hostname"] == "db-0"
    await harness.set_status("db-0")
    await harness.wait_count(2)

    assert await harness.names() == {"db-0", "db-1"}


async def test_a_deleted_pod_comes_back_by_its_name(harness: Harness) -> None:
    await harness.kube.create(STATEFULSETS, an_owner("db", replicas=1), namespace=harness.namespace)
    (first,) = await harness.ready_all(1)

    await harness.kube.delete(PODS, "db-0", namespace=harness.namespace)

    await harness.wait_pods(
        lambda pods: len(pods) == 1 and pods[0]["metadata"]["uid"] != first["metadata"]["uid"],
        what="another db-0",
    )
    assert await harness.names() == {"db-0"}


async def test_the_new_one_waits_until_the_old_one_is_gone(harness: Harness) -> None:
    await harness.kube.create(STATEFULSETS, an_owner("db", replicas=1), namespace=harness.namespace)
    await harness.wait_count(1)
    await harness.kube.bind({"target": {"name": "n1"}}, namespace=harness.namespace, name="db-0")
    await harness.kube.delete(PODS, "db-0", namespace=harness.namespace)
    await harness.wait_status(STATEFULSETS, "db", replicas=0)
    assert len(await harness.pods()) == 1

    await harness.kube.delete(PODS, "db-0", namespace=harness.namespace, grace_s=0)

    await harness.wait_pods(
        lambda pods: len(pods) == 1 and "nodeName" not in pods[0]["spec"], what="another db-0"
    )


async def test_the_highest_ordinal_goes_first(harness: Harness) -> None:
    owner = an_owner("db", replicas=3, podManagementPolicy="Parallel")
    await harness.kube.create(STATEFULSETS, owner, namespace=harness.namespace)
    await harness.ready_all(3)

    await harness.kube.patch(
        STATEFULSETS, "db", {"spec": {"replicas": 2}}, namespace=harness.namespace
    )

    await harness.wait_count(2)
    assert await harness.names() == {"db-0", "db-1"}


async def test_a_failed_pod_is_made_anew(harness: Harness) -> None:
    await harness.kube.create(STATEFULSETS, an_owner("db", replicas=1), namespace=harness.namespace)
    (first,) = await harness.wait_count(1)

    await harness.set_status("db-0", {"status": {"phase": "Failed"}})

    await harness.wait_pods(
        lambda pods: len(pods) == 1 and pods[0]["metadata"]["uid"] != first["metadata"]["uid"],
        what="another db-0",
    )


async def test_a_new_template_is_rolled_from_the_highest(harness: Harness) -> None:
    await harness.kube.create(STATEFULSETS, an_owner("db", replicas=2), namespace=harness.namespace)
    await harness.ready_all(1)
    await harness.ready_all(2)
    template = {"metadata": {"annotations": {"version": "2"}}}

    await harness.kube.patch(
        STATEFULSETS, "db", {"spec": {"template": template}}, namespace=harness.namespace
    )

    found = await harness.wait_object(
        PODS, "db-1", lambda pod: "annotations" in pod["metadata"], what="a new db-1"
    )
    assert found["metadata"]["annotations"] == {"version": "2"}
    lowest = await harness.get(PODS, "db-0")
    assert lowest is not None
    assert "annotations" not in lowest["metadata"]
