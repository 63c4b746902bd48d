from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kube.kinds import JOBS, PODS
from tests.simulator.controllers.harness import Harness, a_template

if TYPE_CHECKING:
    from simulator.objects import Json


def a_job(name: str, **spec: Any) -> Json:
    template = a_template("job", restartPolicy="Never")
    return {"metadata": {"name": name}, "spec": {"template": template, **spec}}


def conditions(job: Json) -> set[str]:
    return {condition["type"] for condition in (job.get("status") or {}).get("conditions") or []}


async def test_it_runs_until_enough_pods_succeeded(harness: Harness) -> None:
    await harness.kube.create(
        JOBS, a_job("j", completions=2, parallelism=1), namespace=harness.namespace
    )
    (first,) = await harness.wait_count(1)
    await harness.set_status(first["metadata"]["name"], {"status": {"phase": "Succeeded"}})

    pods = await harness.wait_count(2)
    (second,) = [pod for pod in pods if pod["metadata"]["uid"] != first["metadata"]["uid"]]
    await harness.set_status(second["metadata"]["name"], {"status": {"phase": "Succeeded"}})

    job = await harness.wait_object(
        JOBS, "j", lambda job: "Complete" in conditions(job), what="a complete job"
    )
    assert job["status"]["succeeded"] == 2
    assert job["status"]["completionTime"] >= job["status"]["startTime"]


async def test_a_failed_pod_is_retried_up_to_the_limit(harness: Harness) -> None:
    await harness.kube.create(JOBS, a_job("j", backoffLimit=1), namespace=harness.namespace)
    for count in (1, 2):
        pods = await harness.wait_count(count)
        for pod in pods:
            await harness.set_status(pod["metadata"]["name"], {"status": {"phase": "Failed"}})

    job = await harness.wait_object(
        JOBS, "j", lambda job: "Failed" in conditions(job), what="a failed job"
    )
    assert job["status"]["failed"] == 2
    assert len(await harness.pods()) == 2


async def test_an_evicted_pod_is_made_again(harness: Harness) -> None:
    await harness.kube.create(JOBS, a_job("j"), namespace=harness.namespace)
    (first,) = await harness.wait_count(1)

    await harness.kube.delete(PODS, first["metadata"]["name"], namespace=harness.namespace)

    await harness.wait_pods(
        lambda pods: len(pods) == 1 and pods[0]["metadata"]["uid"] != first["metadata"]["uid"],
        what="another pod",
    )


async def test_a_suspended_job_has_no_pods(harness: Harness) -> None:
    await harness.kube.create(JOBS, a_job("j", parallelism=2), namespace=harness.namespace)
    await harness.wait_count(2)

    await harness.kube.patch(JOBS, "j", {"spec": {"suspend": True}}, namespace=harness.namespace)

    await harness.wait_count(0)
