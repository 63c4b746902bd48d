"""What becomes of pods with claims, in the simulated cluster and in a real one."""

from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from kube.access import connect
from kube.client import KubeClient
from kube.errors import AlreadyExists, NotFound
from kube.kinds import DEVICE_CLASSES, EVENTS, NAMESPACES, NODES, PODS
from kube.kinds import RESOURCE_CLAIMS as CLAIMS
from kube.kinds import RESOURCE_SLICES as SLICES
from kube.objects import decode_object
from tests.contracts.clusters import simulated
from tests.support.device_claims import (
    CLASS,
    a_device,
    a_device_claim,
    a_device_slice,
    a_pod_with_claim,
    a_request,
    shortlist,
)
from tests.support.gpu import a_sharing_node, register
from tests.support.objects import Json
from tests.support.real_apiserver import WITHOUT_NODES, real_api_server, start_stock_scheduler
from tests.support.waiting import until

pytestmark = pytest.mark.timeout(240)

FINALIZER = "resource.kubernetes.io/delete-protection"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def real_cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Path]:
    """A real control plane with a stock scheduler."""
    workdir = tmp_path_factory.mktemp("real-claims")
    async with real_api_server(workdir) as api:
        kubeconfig = api.kubeconfig(workdir / "kubeconfig")
        await api.start_controller_manager(WITHOUT_NODES)
        await start_stock_scheduler(api, kubeconfig)
        yield kubeconfig


@dataclass(frozen=True)
class Cluster:
    """A namespace and a node of the test's own; its pods can run nowhere else."""

    kube: KubeClient
    namespace: str

    @property
    def node(self) -> str:
        return f"node-of-{self.namespace}"

    async def publish(self, *devices: Json) -> None:
        await self.kube.create(SLICES, a_device_slice(self.node, *devices))

    async def claim(self, name: str, *requests: Json) -> Json:
        return await self.kube.create(
            CLAIMS, a_device_claim(name, *requests), namespace=self.namespace
        )

    async def pod(self, name: str, claim: str, *containers: str) -> Json:
        body = a_pod_with_claim(
            name, claim, *containers, nodeSelector={"kubernetes.io/hostname": self.node}
        )
        return await self.kube.create(PODS, body, namespace=self.namespace)

    async def allocated(self, claim: str) -> list[Json]:
        """Return what a claim was allocated, once its pod is bound."""
        found = await self.kube.get_object(CLAIMS, claim, namespace=self.namespace)
        results: list[Json] = found["status"]["allocation"]["devices"]["results"]
        return results

    async def found(self, pod: str) -> Json:
        return await self.kube.get_object(PODS, pod, namespace=self.namespace)

    async def bound(self, pod: str) -> None:
        async def is_bound() -> bool:
            return "nodeName" in (await self.found(pod))["spec"]

        await until(is_bound, what=f"{pod} is bound")

    async def refused(self, pod: str) -> Json:
        """Return a pod's condition once it is known not to be schedulable."""

        async def is_refused() -> bool:
            return "conditions" in (await self.found(pod))["status"]

        await until(is_refused, what=f"{pod} is refused")
        condition: Json = (await self.found(pod))["status"]["conditions"][0]
        return condition

    async def gone(self, pod: str) -> None:
        await self.kube.delete(PODS, pod, namespace=self.namespace, grace_s=0)


@pytest.fixture
async def cluster(where: Path | None, tmp_path: Path) -> AsyncIterator[Cluster]:
    opened = simulated(tmp_path, scheduler=True) if where is None else connect(where)
    async with opened as kube:
        made = await kube.create(NAMESPACES, {"metadata": {"generateName": "claims-"}})
        with suppress(AlreadyExists):  # by an earlier test on the same cluster
            await kube.create(DEVICE_CLASSES, {"metadata": {"name": CLASS}, "spec": {}})
        cluster = Cluster(kube, made["metadata"]["name"])
        await register(kube, a_sharing_node(cluster.node, cards=()))
        yield cluster
        await kube.delete(NODES, cluster.node)
        await kube.delete(SLICES, a_device_slice(cluster.node)["metadata"]["name"])


async def test_a_pod_waits_without_a_condition_until_its_claim_exists(cluster: Cluster) -> None:
    await cluster.publish(a_device("gpu-a"), a_device("gpu-b"))
    pod = await cluster.pod("p", "later")
    await cluster.claim("other", a_request())
    await cluster.pod("q", "other")
    await cluster.bound("q")  # the scheduler has been busy since, but not with the first

    found = await cluster.found("p")
    assert "conditions" not in found["status"]
    events = await cluster.kube.list(EVENTS, namespace=cluster.namespace)
    about = [decode_object(bytes(raw))["involvedObject"]["name"] for raw in events.items]
    assert "p" not in about

    await cluster.claim("later", a_request(cards=["GPU-B"]))
    await cluster.bound("p")

    claim = await cluster.kube.get_object(CLAIMS, "later", namespace=cluster.namespace)
    consumer = {"resource": "pods", "name": "p", "uid": pod["metadata"]["uid"]}
    assert claim["status"]["reservedFor"] == [consumer]
    assert claim["metadata"]["finalizers"] == [FINALIZER]
    allocation = claim["status"]["allocation"]
    term = {"key": "metadata.name", "operator": "In", "values": [cluster.node]}
    assert allocation["nodeSelector"] == {"nodeSelectorTerms": [{"matchFields": [term]}]}
    assert allocation["allocationTimestamp"]
    (result,) = allocation["devices"]["results"]
    assert result.pop("shareID")
    assert result == {
        "request": "main",
        "driver": "gpu.fracgpu.io",
        "pool": cluster.node,
        "device": "gpu-b",
        "consumedCapacity": {"cores": "0", "memory": "8000Mi", "slots": "1"},
    }


async def test_the_first_device_that_fits_is_taken_whatever_the_order_of_the_shortlist(
    cluster: Cluster,
) -> None:
    await cluster.publish(*(a_device(f"gpu-{name}") for name in "abc"))
    await cluster.claim("c", a_request(cards=["GPU-C", "GPU-B"]))
    await cluster.pod("p", "c")
    await cluster.bound("p")

    assert [result["device"] for result in await cluster.allocated("c")] == ["gpu-b"]


async def test_requests_share_a_device_and_one_request_gets_each_device_once(
    cluster: Cluster,
) -> None:
    await cluster.publish(a_device("gpu-a"), a_device("gpu-b"))
    await cluster.claim(
        "c", a_request("one"), a_request("two", "4000Mi"), a_request("both", "1500500Ki", count=2)
    )
    await cluster.pod("p", "c", "one", "two", "both")
    await cluster.bound("p")

    found = [
        (result["request"], result["device"], result["consumedCapacity"]["memory"])
        for result in await cluster.allocated("c")
    ]
    assert found == [
        ("one", "gpu-a", "8000Mi"),
        ("two", "gpu-a", "4000Mi"),
        ("both", "gpu-a", "1466Mi"),  # in whole steps
        ("both", "gpu-b", "1466Mi"),
    ]


async def test_what_is_not_requested_is_consumed_by_default(cluster: Cluster) -> None:
    await cluster.publish(a_device("gpu-a"))
    await cluster.claim("c", a_request(capacity={"requests": {"cores": "30"}}))
    await cluster.pod("p", "c")
    await cluster.bound("p")

    (result,) = await cluster.allocated("c")
    assert result["consumedCapacity"] == {"cores": "30", "memory": "24000Mi", "slots": "1"}


async def test_a_device_is_for_no_request_of_a_capacity_that_it_lacks(cluster: Cluster) -> None:
    await cluster.publish(a_device("gpu-a"))
    amounts = {"memory": "80Mi", "borrowed": "80Mi"}
    await cluster.claim("c", a_request(capacity={"requests": amounts}))
    await cluster.pod("p", "c")

    assert "cannot allocate all claims" in (await cluster.refused("p"))["message"]


async def test_a_device_never_gives_more_than_it_has_and_a_pod_that_goes_gives_it_back(
    cluster: Cluster,
) -> None:
    await cluster.publish(a_device("gpu-a", mib=10_000))
    await cluster.claim("first", a_request())
    await cluster.pod("p", "first")
    await cluster.bound("p")
    await cluster.claim("second", a_request("main", "2001Mi"))
    await cluster.pod("q", "second")
    condition = await cluster.refused("q")
    assert (condition["status"], condition["reason"]) == ("False", "Unschedulable")
    assert "1 cannot allocate all claims" in condition["message"]

    await cluster.gone("p")
    await cluster.bound("q")

    async def is_free() -> bool:
        freed = await cluster.kube.get_object(CLAIMS, "first", namespace=cluster.namespace)
        return not freed.get("status") and "finalizers" not in freed["metadata"]

    await until(is_free, what="the first claim is free")


async def test_a_claim_in_use_is_deleted_when_its_pod_has_gone(cluster: Cluster) -> None:
    await cluster.publish(a_device("gpu-a"))
    pod = await cluster.pod("p", "c")
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": pod["metadata"]["uid"]}
    body = a_device_claim("c", a_request(), ownerReferences=[{**owner, "controller": True}])
    await cluster.kube.create(CLAIMS, body, namespace=cluster.namespace)
    await cluster.bound("p")
    await cluster.kube.delete(CLAIMS, "c", namespace=cluster.namespace)
    found = await cluster.kube.get_object(CLAIMS, "c", namespace=cluster.namespace)
    assert "deletionTimestamp" in found["metadata"]
    assert found["status"]["allocation"]

    await cluster.gone("p")

    await until(lambda: is_gone(cluster, "c"), what="the claim is gone")


async def test_a_pod_that_names_one_claim_twice_is_never_bound(cluster: Cluster) -> None:
    await cluster.publish(a_device("gpu-a"))
    await cluster.claim("c", a_request())
    body = a_pod_with_claim("p", "c", nodeSelector={"kubernetes.io/hostname": cluster.node})
    body["spec"]["resourceClaims"].append({"name": "again", "resourceClaimName": "c"})
    await cluster.kube.create(PODS, body, namespace=cluster.namespace)

    async def reserved_twice() -> bool:
        return "Duplicate value" in (await cluster.refused("p")).get("message", "")

    await until(reserved_twice, what="it cannot be reserved for the pod twice")
    assert (await cluster.refused("p"))["reason"] == "SchedulerError"
    assert "nodeName" not in (await cluster.found("p"))["spec"]


async def test_a_claim_goes_with_the_pod_that_owns_it(cluster: Cluster) -> None:
    await cluster.publish(a_device("gpu-a"))
    pod = await cluster.pod("p", "c")
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": pod["metadata"]["uid"]}
    body = a_device_claim("c", a_request(), ownerReferences=[{**owner, "controller": True}])
    await cluster.kube.create(CLAIMS, body, namespace=cluster.namespace)
    await cluster.bound("p")

    await cluster.gone("p")

    await until(lambda: is_gone(cluster, "c"), what="the claim is gone")


async def is_gone(cluster: Cluster, claim: str) -> bool:
    try:
        await cluster.kube.get_object(CLAIMS, claim, namespace=cluster.namespace)
    except NotFound:
        return True
    return False


@pytest.mark.parametrize(
    ("expression", "device"),
    [
        (shortlist("GPU-B"), "gpu-b"),
        (shortlist(), None),
        ('device.driver == "other.example.org"', None),
        ("device.driver == 'gpu.fracgpu.io' && {at}.uuid in ['GPU-B', \"GPU-X\"]", "gpu-b"),
        (f'{shortlist("GPU-A", "GPU-B")} && {{at}}.vendor == "amd"', None),
        ('{at}.vendor.lowerAscii().matches("^nv.*$") && {at}.uuid.contains("-B")', "gpu-b"),
        ('!{at}.uuid.lowerAscii().matches("a$")', "gpu-b"),
        ('"isolation" in {at} && {at}.isolation.contains("kernel")', None),
        ('{at}.uuid.contains("-A")', "gpu-a"),
        ('device.capacity["gpu.fracgpu.io"].memory.compareTo(quantity("24000Mi")) > 0', "gpu-b"),
        ('device.capacity["gpu.fracgpu.io"].memory.compareTo(quantity("24000Mi")) <= 0', "gpu-a"),
        ('device.driver == "x" && {at}.missing == "y"', None),
    ],
)  # fmt: skip
async def test_a_selector_means_what_it_means_in_cel(
    cluster: Cluster, expression: str, device: str | None
) -> None:
    await cluster.publish(a_device("gpu-a"), a_device("gpu-b", mib=48_000))
    written = expression.replace("{at}", 'device.attributes["gpu.fracgpu.io"]')
    await cluster.claim("c", a_request(expression=written))
    await cluster.pod("p", "c")

    if device is None:
        assert "cannot allocate all claims" in (await cluster.refused("p"))["message"]
    else:
        await cluster.bound("p")
        assert [result["device"] for result in await cluster.allocated("c")] == [device]


async def test_an_attribute_that_is_missing_is_an_error_of_the_whole_attempt(
    cluster: Cluster,
) -> None:
    await cluster.publish(a_device("gpu-a"))
    expression = 'device.attributes["gpu.fracgpu.io"].missing == "x"'
    await cluster.claim("c", a_request(expression=expression))
    await cluster.pod("p", "c")

    condition = await cluster.refused("p")
    assert condition["reason"] == "SchedulerError"
    assert "CEL runtime error: no such key: missing" in condition["message"]


async def test_a_class_selects_devices_too_and_one_that_is_missing_stops_the_pod(
    cluster: Cluster,
) -> None:
    selecting = [{"cel": {"expression": 'device.driver == "other.example.org"'}}]
    await cluster.publish(a_device("gpu-a"))
    await cluster.kube.create(
        DEVICE_CLASSES,
        {"metadata": {"name": cluster.namespace}, "spec": {"selectors": selecting}},
    )
    await cluster.claim("none", a_request(device_class=cluster.namespace))
    await cluster.pod("p", "none")
    await cluster.claim("missing", a_request(device_class=f"not-{cluster.namespace}"))
    await cluster.pod("q", "missing")

    assert "cannot allocate all claims" in (await cluster.refused("p"))["message"]
    text = f"request main: device class not-{cluster.namespace} does not exist"
    assert text in (await cluster.refused("q"))["message"]


async def test_a_tainted_device_is_for_requests_that_tolerate_it(cluster: Cluster) -> None:
    taint = {"key": "fracgpu.io/reserved", "effect": "NoSchedule"}
    await cluster.publish(a_device("gpu-a", taints=[taint]))
    await cluster.claim("c", a_request())
    await cluster.pod("p", "c")
    await cluster.refused("p")
    tolerating = [{"key": "fracgpu.io/reserved", "operator": "Exists"}]
    await cluster.claim("d", a_request(tolerations=tolerating))
    await cluster.pod("q", "d")
    await cluster.bound("q")

    found = await cluster.found("p")
    assert "nodeName" not in found["spec"]


async def test_a_pod_that_finds_no_room_is_bound_when_a_slice_appears(cluster: Cluster) -> None:
    await cluster.claim("c", a_request())
    await cluster.pod("p", "c")
    await cluster.refused("p")

    await cluster.publish(a_device("gpu-a"))

    await cluster.bound("p")
