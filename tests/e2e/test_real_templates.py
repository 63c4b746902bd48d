"""Grants in pod templates on the real control plane: who counts them, and that they stay."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from fracgpu import names
from fracgpu.k8s.container import ContainerKind, init_container_kind, pod_resource_sum
from fracgpu.units import parse_amount
from kube.kinds import RESOURCE_QUOTAS
from simulator.envtest.control_plane import ControlPlane
from tests.support.gpu import a_sharing_node, a_workload, register, some_cards
from tests.support.kubectl import Kubectl
from tests.support.real_apiserver import real_api_server
from tests.support.waiting import until
from tests.webhook.builders import Json, a_container, a_pod
from tests.webhook.cluster import Harness, a_harness, in_force

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

# Where Kueue's integration of each kind finds pod sets: the template, and how many pods it makes.
# https://kueue.sigs.k8s.io/docs/concepts/workload/#pod-sets
POD_SETS: dict[str, Any] = {
    "Job": lambda spec: [
        (spec["template"], min(spec.get(key, 1) for key in ("parallelism", "completions")))
    ],
    "RayCluster": lambda spec: [
        (spec["headGroupSpec"]["template"], 1),
        *((group["template"], group["replicas"]) for group in spec["workerGroupSpecs"]),
    ],
}


def counted(body: Json) -> int:
    """Return the MiB that a queue reads in a workload: of templates, times their pods.

    As Kueue does it: a limit without a request counts as one, and annotations count nothing.
    """
    return sum(
        pods
        * pod_resource_sum(
            [
                (kind, _mib(container))
                for kind, container in (
                    *(
                        (init_container_kind(each.get("restartPolicy")), each)
                        for each in template["spec"].get("initContainers", ())
                    ),
                    *((ContainerKind.APP, each) for each in template["spec"]["containers"]),
                )
            ]
        )
        for template, pods in POD_SETS[body["kind"]](body["spec"])
    )


def _mib(container: Json) -> int:
    resources = container.get("resources") or {}
    amounts = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return parse_amount(amounts.get(names.GPU_MEM, "0")) or 0


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[ControlPlane]:
    async with real_api_server(tmp_path) as api:
        await api.start_controller_manager()
        yield api


@pytest.fixture
async def harness(api: ControlPlane, tmp_path: Path) -> AsyncIterator[Harness]:
    """A webhook in a cluster with a node of 24,000 MiB cards, in a namespace that opts in."""
    async with a_harness(api.kubeconfig(tmp_path / "admin.kubeconfig")) as harness:
        await register(harness.client, a_sharing_node("small"))
        yield harness


@asynccontextmanager
async def granting(harness: Harness) -> AsyncIterator[Kubectl]:
    """Run the webhook in force, for a namespace whose templates it grants."""
    async with in_force(harness) as kubectl:
        await kubectl("label", "namespace", "default", f"{names.GRANT_TEMPLATES_LABEL}=true")

        async def granted() -> bool:
            probe = a_workload("Deployment", "probe", a_pod(fraction="0.5"), replicas=0)
            return names.TEMPLATE_GRANT in await kubectl(
                "create", "--dry-run=server", "-ojson", "-f-", stdin=probe
            )

        await until(granted, what="the webhook has seen the namespace's label")
        yield kubectl


def a_job(name: str, template: Json, **spec: Any) -> Json:
    metadata = {"annotations": template["metadata"].get("annotations", {})}
    pod = {**template["spec"], "restartPolicy": "Never"}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"template": {"metadata": metadata, "spec": pod}, **spec},
    }


async def the(kubectl: Kubectl, what: str) -> Json:
    found: Json = json.loads(await kubectl("get", what, "-ojson"))
    return found


async def test_a_quota_and_a_reader_of_templates_count_the_same(
    harness: Harness,
) -> None:
    quota: Json = {
        "metadata": {"name": "cards", "namespace": "default"},
        "spec": {"hard": {f"requests.{names.GPU_MEM}": "100k"}},
    }

    async def used() -> int:
        found = await harness.client.get_object(RESOURCE_QUOTAS, "cards", namespace="default")
        amounts = found.get("status", {}).get("used", {})
        return parse_amount(amounts.get(f"requests.{names.GPU_MEM}", "")) or 0

    async with granting(harness) as kubectl:
        await harness.client.create(RESOURCE_QUOTAS, quota)
        web = a_workload("Deployment", "web", a_pod(fraction="0.5"), replicas=2)
        warm = a_container("warm")
        train = a_job(
            "train",
            a_pod(a_container("a"), a_container("b"), init=[warm], fraction="warm=1,a=0.25,b=0.25"),
            parallelism=2,
            completions=2,
        )
        for body in (web, train):
            await kubectl("apply", "-f-", stdin=body)

        job = await the(kubectl, "job/train")
        deployment = await the(kubectl, "deployment/web")
        assert counted(job) == 2 * 24_000
        assert counted({**deployment, "kind": "Job"}) == 12_000  # of one pod
        assert "fracgpu.io/gpu-mem:  12k" in await kubectl("describe", "deployment", "web")

        async def all_counted() -> bool:
            return await used() == 2 * 12_000 + 2 * 24_000

        await until(all_counted, what="the quota counts the pods of both", limit_s=60)
        found = await the(kubectl, "pods")
        assert len(found["items"]) == 4
        for pod in found["items"]:
            assert names.GRANTED in pod["metadata"]["annotations"]
            assert names.TEMPLATE_GRANT not in pod["metadata"]["annotations"]
        # One ReplicaSet: what a Deployment makes is left as it is, so it finds it again.
        assert len((await the(kubectl, "replicasets"))["items"]) == 1


def state(body: Json) -> tuple[Any, ...]:
    metadata = body["metadata"]
    return metadata["resourceVersion"], metadata["generation"], body["spec"]


async def test_applying_again_comes_to_rest_also_after_the_cluster_has_changed(
    harness: Harness,
) -> None:
    web = a_workload("Deployment", "web", a_pod(fraction="0.5"), replicas=0)
    async with granting(harness) as kubectl:
        for apply in (
            ("apply", "-f-"),
            ("apply", "--server-side", "--field-manager=gitops", "-f-"),
        ):
            await kubectl(*apply, stdin=web)
            before = await the(kubectl, "deployment/web")
            assert before["spec"]["template"]["metadata"]["annotations"][names.TEMPLATE_GRANT] == (
                "train=12000"
            )
            for _ in range(2):
                await kubectl(*apply, stdin=web)
                assert state(await the(kubectl, "deployment/web")) == state(before)
            # A GitOps controller compares so: what is live, with what applying would make of it.
            assert (await kubectl.ask("diff", *apply[1:], stdin=web)).ok
            await kubectl("delete", "deployment", "web", "--wait")

        await kubectl("apply", "-f-", stdin=web)
        before = await the(kubectl, "deployment/web")
        # A new share would be one of other cards.
        cards = some_cards("large", count=8, mib=81_920)
        await register(harness.client, a_sharing_node("large", cards=cards))
        await kubectl("delete", "node", "small")

        async def larger() -> bool:
            probe = a_workload("Deployment", "probe", a_pod(fraction="0.5"), replicas=0)
            text = await kubectl("create", "--dry-run=server", "-ojson", "-f-", stdin=probe)
            return "train=40960" in text

        await until(larger, what="the webhook knows the other cards")
        await kubectl("apply", "-f-", stdin=web)
        after = await the(kubectl, "deployment/web")
        assert after["spec"] == before["spec"]
        assert after["metadata"]["generation"] == before["metadata"]["generation"]
        # A replacement drops what was written, and it is written again: no new ReplicaSet.
        await kubectl("replace", "-f-", stdin=web)
        assert (await the(kubectl, "deployment/web"))["spec"] == before["spec"]
        assert len((await the(kubectl, "replicasets"))["items"]) == 1

        # A removed request takes with it what was written for it.
        await kubectl("apply", "-f-", stdin=web)  # so that kubectl knows again what it applied
        plain = a_workload("Deployment", "web", {**a_pod(), "metadata": {"annotations": {}}})
        plain["spec"]["replicas"] = 0
        await kubectl("apply", "-f-", stdin=plain)
        template = (await the(kubectl, "deployment/web"))["spec"]["template"]
        assert "annotations" not in template["metadata"]
        assert template["spec"]["containers"][0]["resources"] == {}


async def test_a_suspended_job_is_released_with_selectors_as_a_queue_does_it(
    harness: Harness,
) -> None:
    async with granting(harness) as kubectl:
        await kubectl("apply", "-f-", stdin=a_job("j", a_pod(fraction="0.5"), suspend=True))
        # By now a share is one of other cards, and the Job's resources may not be changed.
        cards = some_cards("large", count=8, mib=81_920)
        large = a_sharing_node("large", cards=cards)
        large["metadata"]["labels"]["pool"] = "large"
        await register(harness.client, large)
        selecting = {"template": {"spec": {"nodeSelector": {"pool": "large"}}}}
        patch = json.dumps({"spec": {"suspend": False, **selecting}})

        async def released() -> bool:
            return (await kubectl.ask("patch", "job", "j", "-p", patch)).ok

        # Until the webhook knows these nodes, the template selects none.
        await until(released, what="the job is released", limit_s=60)
        job = await the(kubectl, "job/j")
        assert counted(job) == 12_000

        async def made() -> bool:
            return bool((await the(kubectl, "pods"))["items"])

        await until(made, what="its pod is made", limit_s=60)
        (pod,) = (await the(kubectl, "pods"))["items"]
        # The pod's own admission decides.
        assert pod["spec"]["containers"][0]["resources"]["limits"][names.GPU_MEM] == "40960"


def a_ray_cluster(name: str, pod: Json) -> Json:
    head = {"template": {"spec": {"containers": [a_container("head")]}}}
    workers = {"groupName": "w", "replicas": 6, "template": pod}
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"headGroupSpec": head, "workerGroupSpecs": [workers]},
    }


def the_definition() -> Json:
    """Return a definition of RayCluster; its own is of another project, and stricter."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "rayclusters.ray.io"},
        "spec": {
            "group": "ray.io",
            "scope": "Namespaced",
            "names": {"kind": "RayCluster", "plural": "rayclusters"},
            "versions": [version],
        },
    }


async def test_another_systems_workload_is_granted_checked_and_comes_to_rest(
    harness: Harness,
) -> None:
    """Each kind's templates are found as tests/deploy/test_webhook_conditions.py says."""
    pod = {
        "metadata": {"annotations": {names.FRACTION: "0.5"}},
        "spec": {"containers": [a_container()]},
    }
    async with granting(harness) as kubectl:
        await kubectl("create", "-f-", stdin=the_definition())
        crd = "crd/rayclusters.ray.io"
        await kubectl("wait", "--for=condition=Established", crd, "--timeout=60s")
        bad = {**pod, "metadata": {"annotations": {names.FRACTION: "2"}}}
        said = await kubectl.refused("apply", "-f-", stdin=a_ray_cluster("w", bad))
        assert "fracgpu.io/fraction is '2'; want a share of one card" in said
        body = a_ray_cluster("w", pod)
        await kubectl("apply", "-f-", stdin=body)
        before = await the(kubectl, "raycluster/w")
        assert counted(before) == 6 * 12_000
        for words in (("apply",), ("apply", "--server-side", "--force-conflicts"), ("apply",)):
            await kubectl(*words, "-f-", stdin=body)
            assert state(await the(kubectl, "raycluster/w"))[1:] == state(before)[1:]
        assert (await kubectl.ask("diff", "-f-", stdin=body)).ok
    # Without the webhook: one that asks for nothing is made and changed all the same.
    body = a_ray_cluster("plain", {**pod, "metadata": {}})
    assert "created" in await kubectl("apply", "-f-", stdin=body)
    body["spec"] = {"suspend": True}
    assert "configured" in await kubectl("apply", "-f-", stdin=body)
    await kubectl("delete", "raycluster/plain")
    await kubectl("label", "raycluster/w", "a=b")
