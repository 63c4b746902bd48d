"""The webhook on a real kube-apiserver: what a user applies, and the result."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from fracgpu import names
from kube.kinds import PODS, RESOURCE_QUOTAS
from simulator.envtest.control_plane import ControlPlane
from simulator.envtest.prometheus import RealPrometheus
from tests.support.gpu import a_sharing_node, register
from tests.support.kubectl import Kubectl
from tests.support.policed import workloads as annotated_workloads
from tests.support.promtool import RULES
from tests.support.real_apiserver import real_api_server
from tests.support.waiting import until
from tests.webhook.builders import Json, a_container, a_pod
from tests.webhook.cluster import Harness, a_harness, running, says

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


@pytest.fixture
def kubectl(harness: Harness) -> Kubectl:
    assert harness.settings.kubeconfig is not None
    return Kubectl.find(Path(harness.settings.kubeconfig))


@asynccontextmanager
async def in_force(harness: Harness, kubectl: Kubectl) -> AsyncIterator[None]:
    """Run the webhook, with its configurations applied as an administrator does."""
    async with running(harness):
        await harness.give_certificate()
        await says(harness, "200")
        for body in harness.configurations():
            await kubectl("apply", "-f-", stdin=body)
        await harness.until_asked()
        yield


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
    harness: Harness, kubectl: Kubectl
) -> None:
    async with in_force(harness, kubectl):
        for kind, body in workloads(fraction="2").items():
            said = await kubectl.refused("apply", "-f-", stdin=body)
            path = "spec.jobTemplate.spec.template" if kind == "CronJob" else "spec.template"
            assert f"in {path}: fracgpu.io/fraction is '2'; want a share of one card" in said, kind
        for kind, body in workloads(fraction="0.5").items():
            assert "created" in await kubectl("apply", "-f-", stdin=body), kind

        # A request in the wrong place is admitted with a warning that kubectl shows.
        misplaced = workloads()["Deployment"]
        misplaced["metadata"] = {"name": "m", "annotations": {names.FRACTION: "0.5"}}
        answer = await kubectl.ask("apply", "-f-", stdin=misplaced)
        assert answer.ok
        assert (
            "Warning: metadata.annotations['fracgpu.io/fraction'] has no effect on a Deployment"
            in answer.error
        )
        misplaced = workloads()["CronJob"]
        misplaced["metadata"] = {"name": "m"}
        misplaced["spec"]["jobTemplate"]["metadata"] = {"annotations": {names.FRACTION: "0.5"}}
        answer = await kubectl.ask("apply", "-f-", stdin=misplaced)
        assert answer.ok
        assert "Warning: spec.jobTemplate.metadata.annotations['fracgpu.io/fr" in answer.error
    # Without the webhook: objects without requests, and unchanged templates, are admitted.
    bare = workloads()["Deployment"] | {"metadata": {"name": "bare"}}
    assert "created" in await kubectl("apply", "-f-", stdin=bare)
    await kubectl("scale", "deployment/w", "--replicas=0")
    patch = '{"spec": {"replicas": 1}}'
    await kubectl("patch", "deployment", "w", "-p", patch)
    change = workloads(fraction="0.25")["Deployment"]
    assert "failed calling webhook" in await kubectl.refused("apply", "-f-", stdin=change)


async def test_a_quota_counts_fractions_and_the_author_hears_of_it(
    api: ControlPlane, harness: Harness, kubectl: Kubectl
) -> None:
    await api.start_controller_manager()
    quota: Json = {
        "metadata": {"name": "cards", "namespace": "default"},
        "spec": {"hard": {f"requests.{names.GPU_MEM}": "30000"}},
    }
    async with in_force(harness, kubectl):
        await harness.client.create(RESOURCE_QUOTAS, quota)

        async def counted() -> bool:
            found = await harness.client.get_object(RESOURCE_QUOTAS, "cards", namespace="default")
            return bool(found.get("status", {}).get("hard"))

        await until(counted, what="the quota is counted", limit_s=60)
        for name in ("a", "b"):
            await kubectl("create", "-f-", stdin=named(a_pod(fraction="0.5"), name))
        said = await kubectl.refused("create", "-f-", stdin=named(a_pod(memory="8Gi"), "c"))
        assert (
            "exceeded quota: cards, requested: requests.fracgpu.io/gpu-mem=8192, "
            "used: requests.fracgpu.io/gpu-mem=24k, limited: requests.fracgpu.io/gpu-mem=30k"
        ) in said
        await kubectl("create", "-f-", stdin=named(a_pod(memory="4Gi"), "c"))


async def test_pods_live_on_with_the_webhook_down_unless_they_ask(
    harness: Harness, kubectl: Kubectl
) -> None:
    async with in_force(harness, kubectl):
        await kubectl("create", "-f-", stdin=named(a_pod(fraction="0.5"), "asks"))
        said = await kubectl.refused(
            "create",
            "-f-",
            stdin=named(a_pod(fraction="0.5", assignment="{}"), "forged"),
        )
        assert "fracgpu.io/assignment is '{}'; want no such annotation" in said
    foreign = a_container(resources={"limits": {"aliyun.com/gpu-mem": "4"}})
    for name, pod in (("plain", a_pod()), ("foreign", a_pod(foreign))):
        assert "created" in await kubectl("create", "-f-", stdin=named(pod, name))
    said = await kubectl.refused("create", "-f-", stdin=named(a_pod(fraction="0.5"), "late"))
    assert "failed calling webhook" in said


async def test_an_alert_tells_of_calls_that_kube_apiserver_could_not_make(
    api: ControlPlane, harness: Harness, kubectl: Kubectl, tmp_path: Path
) -> None:
    """kube-apiserver counts them itself; the webhook never hears of them."""
    job = {
        "job_name": "apiserver",
        "scheme": "https",
        "authorization": {"credentials": api.token},
        "tls_config": {"ca_file": str(api.ca_file)},
        "static_configs": [{"targets": [urlsplit(api.url).netloc]}],
    }
    async with in_force(harness, kubectl):
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
    harness: Harness, kubectl: Kubectl, *, server_side: bool
) -> None:
    ours = named(a_pod(fraction="0.5", spec={"affinity": OWN_AFFINITY}), "ours")
    limits = {"nvidia.com/gpumem": "3000"}
    asks = a_container(resources={"limits": limits})
    spec = {"affinity": OWN_AFFINITY, "schedulerName": "hami-scheduler"}
    foreign = named(a_pod(asks, spec=spec), "foreign")
    await kubectl("label", "namespace", "default", f"{names.DIALECTS_LABEL}=hami")
    words = ("apply", *(["--server-side"] if server_side else []), "-f-")
    async with in_force(harness, kubectl):
        for pod in (ours, foreign):
            name = pod["metadata"]["name"]
            await kubectl(*words, stdin=pod)
            before = await harness.client.get_object(PODS, name, namespace="default")
            pod["metadata"]["labels"] = {"edited": "yes"}
            await kubectl(*words, stdin=pod)
            after = await harness.client.get_object(PODS, name, namespace="default")

            assert after["spec"] == before["spec"], name
            assert after["metadata"]["labels"] == {"edited": "yes", names.GRANTED: "true"}
            assert before["spec"]["schedulerName"] == names.SCHEDULER_NAME
