"""The webhook on a real kube-apiserver: what a user applies, and the result."""

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from fracgpu import names
from kube.kinds import CONFIGMAPS, MUTATING_WEBHOOKS, NAMESPACES, PODS
from simulator.envtest.control_plane import ControlPlane
from simulator.envtest.prometheus import RealPrometheus
from tests.support.gpu import a_sharing_node, register, some_cards
from tests.support.policed import workloads as annotated_workloads
from tests.support.promtool import RULES
from tests.support.real_apiserver import real_api_server
from tests.support.waiting import until
from tests.support.webhook import an_admission_webhook, patching
from tests.webhook.builders import Json, a_container, a_pod
from tests.webhook.cluster import Harness, a_harness, in_force, running, says

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[ControlPlane]:
    async with real_api_server(tmp_path) as api:
        yield api


@pytest.fixture
async def harness(api: ControlPlane, tmp_path: Path) -> AsyncIterator[Harness]:
    async with a_harness(api.kubeconfig(tmp_path / "admin.kubeconfig")) as harness:
        node = a_sharing_node("gpu-1")
        node["metadata"]["labels"]["zone"] = "a"
        await register(harness.client, node)
        yield harness


def named(pod: Json, name: str) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        **pod,
        "metadata": {**pod["metadata"], "name": name, "namespace": "default"},
    }


def workloads(**asks: str) -> dict[str, Json]:
    """Return a workload of each kind whose pods ask so."""
    notes = {f"{names.PREFIX}{key}": value for key, value in asks.items()}
    return {
        kind.kind: {"apiVersion": kind.group_version, "kind": kind.kind, **body}
        for kind, body in annotated_workloads(notes)
    }


async def test_workloads_are_refused_where_their_author_types_them(
    harness: Harness,
) -> None:
    async with in_force(harness) as kubectl:
        for kind, body in workloads(fraction="2").items():
            said = await kubectl.refused("apply", "-f-", stdin=body)
            path = "spec.jobTemplate.spec.template" if kind == "CronJob" else "spec.template"
            assert f"in {path}: fracgpu.io/fraction is '2'; want a share of one card" in said, kind
        for kind, body in workloads(fraction="0.5").items():
            assert "created" in await kubectl("apply", "-f-", stdin=body), kind

        # A request in the wrong place is admitted with a warning that kubectl shows.
        misplaced = workloads()["CronJob"]
        misplaced["metadata"] = {"name": "m"}
        misplaced["spec"]["jobTemplate"]["metadata"] = {"annotations": {names.FRACTION: "0.5"}}
        answer = await kubectl.ask("apply", "-f-", stdin=misplaced)
        assert answer.ok
        assert "Warning: spec.jobTemplate.metadata.annotations['fracgpu.io/fr" in answer.error
        for key in ("fracgpu.io/memory", "fracgpu/fraction"):
            answer = await kubectl.ask("annotate", "cronjob", "m", f"{key}=8Gi")
            assert answer.ok
            assert f"Warning: metadata.annotations['{key}'] has no effect" in answer.error

        pod = named(a_pod(fraction="0.5"), "of-a-job")
        pod["metadata"]["finalizers"] = ["batch.kubernetes.io/job-tracking"]
        await kubectl("create", "-f-", stdin=pod)
        said = await kubectl.refused("label", "pod", "of-a-job", "fracgpu.io/fraction=0.5")
        assert "write the annotation fracgpu.io/fraction" in said
    # Without the webhook: objects without requests, and unchanged templates, are admitted.
    bare = workloads()["Deployment"] | {"metadata": {"name": "bare"}}
    assert "created" in await kubectl("apply", "-f-", stdin=bare)
    await kubectl("scale", "deployment/w", "--replicas=0")
    patch = '{"spec": {"replicas": 1}}'
    await kubectl("patch", "deployment", "w", "-p", patch)
    change = workloads(fraction="0.25")["Deployment"]
    assert "failed calling webhook" in await kubectl.refused("apply", "-f-", stdin=change)
    await kubectl("patch", "pod", "of-a-job", "-p", '{"metadata": {"finalizers": null}}')
    said = await kubectl.refused("annotate", "pod", "of-a-job", "fracgpu.io/rebalance=never")
    assert "failed calling webhook" in said


async def test_an_alert_tells_of_calls_that_kube_apiserver_could_not_make(
    api: ControlPlane, harness: Harness, tmp_path: Path
) -> None:
    """kube-apiserver counts them itself; the webhook never hears of them."""
    job = {
        "job_name": "apiserver",
        "scheme": "https",
        "authorization": {"credentials": api.token},
        "tls_config": {"ca_file": str(api.ca_file)},
        "static_configs": [{"targets": [urlsplit(api.url).netloc]}],
    }
    async with in_force(harness) as kubectl:
        said = await kubectl.refused("create", "-f-", stdin=named(a_pod(fraction="2"), "bad"))
        assert "want a share of one card" in said
    for _ in range(4):
        said = await kubectl.refused("create", "-f-", stdin=named(a_pod(fraction="0.5"), "late"))
        assert "failed calling webhook" in said
        foreign = a_container(resources={"limits": {"aliyun.com/gpu-mem": "4"}})
        await kubectl("create", "--dry-run=server", "-f-", stdin=named(a_pod(foreign), "foreign"))

    (tmp_path / "prometheus").mkdir()
    async with RealPrometheus.start(
        tmp_path / "prometheus", {}, scrape_configs=[job], rule_files=[RULES]
    ) as prometheus:

        async def fires() -> bool:
            alerts = (await prometheus.get("/api/v1/alerts"))["data"]["alerts"]
            fails = [it for it in alerts if it["labels"]["alertname"] == "FracGPUWebhookFails"]
            found = {(it["labels"]["name"], it["state"], float(it["value"])) for it in fails}
            return found == {
                ("pods.fracgpu.io", "firing", 4.0),
                ("hints.pods.fracgpu.io", "firing", 4.0),
            }

        await until(fires, what="the alert fires for both, and not for refusals", limit_s=60)


@asynccontextmanager
async def a_mesh(
    harness: Harness, *, selector: dict[str, str], name: str = "zz-mesh"
) -> AsyncIterator[None]:
    """Serve a webhook that puts its proxy first and chooses the nodes.

    Webhooks are called in the order of the names of their configurations.
    """
    async with an_admission_webhook() as webhook:
        webhook.answer = patching(
            {"op": "add", "path": "/spec/containers/0", "value": a_container("proxy")},
            {"op": "add", "path": "/spec/nodeSelector", "value": selector},
        )
        await harness.client.create(MUTATING_WEBHOOKS, webhook.configuration(name, "pods"))

        async def called() -> bool:
            pod = named(a_pod(a_container("plain")), "probe")
            stored: dict[str, Any] = await harness.client.create(PODS, pod, dry_run=True)
            return len(stored["spec"]["containers"]) == 2

        await until(called, what="the mesh's webhook is called")
        yield


def halves() -> dict[str, Json]:
    """Return pods that ask for half a card, in our words, in others', and in both."""
    kai = a_pod()
    kai["metadata"]["annotations"] = {"gpu-fraction": "0.5"}
    both = a_pod(fraction="0.5")
    both["metadata"]["annotations"]["gpu-fraction"] = "0.5"
    limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "50"}
    hami = a_pod(a_container(resources={"limits": limits}))
    return {"ours": a_pod(fraction="0.5"), "kai": kai, "both": both, "hami": hami}


async def test_pod_security_restricted_admits_whatever_is_written_into_a_pod(
    harness: Harness,
) -> None:
    """For a pod that would be admitted without its request."""
    container = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    labels = {"pod-security.kubernetes.io/enforce": "restricted", names.DIALECTS_LABEL: "all"}
    await harness.client.create(NAMESPACES, {"metadata": {"name": "locked", "labels": labels}})
    async with in_force(harness) as kubectl:
        for name, body in {"bare": a_pod(fraction="0.5"), **halves()}.items():
            pod = named(body, name)
            pod["metadata"]["namespace"] = "locked"
            if name != "bare":
                for each in pod["spec"]["containers"]:
                    each["securityContext"] = container
            answer = await kubectl.ask("create", "--dry-run=server", "-f-", "-o=json", stdin=pod)
            if name == "bare":
                assert 'violates PodSecurity "restricted:latest"' in answer.error
            else:
                assert answer.ok, answer.error
                stored = json.loads(answer.out)
                assert names.GRANTED in stored["metadata"]["annotations"], name


@pytest.mark.parametrize("mesh", ["aa-mesh", "zz-mesh"], ids=["before-ours", "after-ours"])
@pytest.mark.parametrize("of_namespace", [True, False], ids=["label", "configmap"])
async def test_another_webhook_may_add_a_container_and_choose_the_nodes(
    harness: Harness, *, mesh: str, of_namespace: bool
) -> None:
    small = some_cards("gpu-2", count=4, mib=8_000)
    await register(harness.client, a_sharing_node("gpu-2", cards=small))
    if of_namespace:
        label = {"metadata": {"labels": {names.DIALECTS_LABEL: "kai.hami"}}}
        await harness.client.patch(NAMESPACES, "default", label)
    else:
        body = {"data": {"admission": "dialects: [kai, hami]"}}
        meta = {"name": "fracgpu-config", "namespace": harness.settings.namespace}
        await harness.client.create(CONFIGMAPS, {"metadata": meta, **body})

    async def created(pod: Json, name: str) -> dict[str, dict[str, Any]]:
        """Return the stored pod's containers by name."""
        stored: dict[str, Any] = await harness.client.create(PODS, named(pod, name))
        return {each["name"]: each for each in stored["spec"]["containers"]}

    async with AsyncExitStack() as stack:
        await stack.enter_async_context(running(harness))
        await harness.give_certificate()
        await says(harness, "200")
        await harness.register()
        first = await created(a_pod(fraction="0.5"), "first")
        assert first["train"]["resources"]["limits"][names.GPU_MEM] == "4k", "of the other node"
        selector = {"kubernetes.io/hostname": "gpu-1"}
        await stack.enter_async_context(a_mesh(harness, selector=selector, name=mesh))
        for name, pod in halves().items():
            found = await created(pod, name)
            assert found["proxy"]["env"] == [{"name": names.ENV_VISIBLE_DEVICES, "value": "void"}]
            assert found["proxy"]["resources"] == {}, name
            assert found["train"]["resources"]["limits"][names.GPU_MEM] == "12k", name


ZONE: Json = {"key": "zone", "operator": "In", "values": ["a"]}
OWN_AFFINITY: Json = {
    "nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchExpressions": [ZONE]}]
        }
    }
}


@pytest.mark.parametrize("server_side", [False, True], ids=["client-side", "server-side"])
async def test_the_same_bare_pod_applied_twice_with_its_own_affinity_is_accepted(
    harness: Harness, *, server_side: bool
) -> None:
    ours = named(a_pod(fraction="0.5", spec={"affinity": OWN_AFFINITY}), "ours")
    limits = {"nvidia.com/gpumem": "3000"}
    asks = a_container(resources={"limits": limits})
    spec = {"affinity": OWN_AFFINITY, "schedulerName": "hami-scheduler"}
    foreign = named(a_pod(asks, spec=spec), "foreign")
    label = {"metadata": {"labels": {names.DIALECTS_LABEL: "hami"}}}
    await harness.client.patch(NAMESPACES, "default", label)
    words = ("apply", *(["--server-side"] if server_side else []), "-f-")
    async with in_force(harness) as kubectl:
        for pod in (ours, foreign):
            name = pod["metadata"]["name"]
            await kubectl(*words, stdin=pod)
            before = await harness.client.get_object(PODS, name, namespace="default")
            pod["metadata"]["labels"] = {"edited": "yes"}
            await kubectl(*words, stdin=pod)
            after = await harness.client.get_object(PODS, name, namespace="default")

            assert after["spec"] == before["spec"], name
            granted = "translated" if pod is foreign else "true"
            assert after["metadata"]["labels"] == {"edited": "yes", names.GRANTED: granted}
            assert before["spec"]["schedulerName"] == names.SCHEDULER_NAME
