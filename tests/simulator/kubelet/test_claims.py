"""Claims on the simulated kubelet, with a driver that speaks the real protocols."""

# ruff: noqa: N802 - the names of the methods are the protocol's

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest

from deviceplugin.proto import dra_pb2 as messages
from deviceplugin.proto import dra_pb2_grpc as services
from deviceplugin.proto import pluginregistration_pb2 as registration
from deviceplugin.proto import pluginregistration_pb2_grpc as registration_services
from deviceplugin.proto import podresources_pb2 as resources
from deviceplugin.proto import podresources_pb2_grpc as resources_services
from kube.client import KubeClient
from kube.kinds import EVENTS, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from kube.objects import decode_object
from process.clock import SystemClock
from simulator.background import background
from simulator.kubelet.claim_manager import ClaimManager
from simulator.kubelet.kubelet import Kubelet, KubeletConfig, KubeletFolders
from simulator.kubelet.pod_worker import PodTiming
from tests.support.device_claims import (
    DRIVER,
    a_device,
    a_device_claim,
    a_device_slice,
    a_pod_with_claim,
    a_request,
)
from tests.support.node import short_folder
from tests.support.objects import Json
from tests.support.waiting import until, until_true

QUICK = PodTiming(start_delay_s=0.01, grace_s=0.01, backoff_s=0.05, prepare_again_s=0.05)


@dataclass
class FakeDriver(services.DRAPluginServicer, registration_services.RegistrationServicer):
    """Prepares one CDI device for each request of a claim, or refuses."""

    folders: KubeletFolders
    version: str = "v1.DRAPlugin"
    refusal: str = ""
    prefix: str = ""
    registered: list[tuple[bool, str]] = field(default_factory=list)
    prepared: list[str] = field(default_factory=list)
    given_back: list[str] = field(default_factory=list)
    requests: tuple[str, ...] = ("main",)
    leave_socket: bool = False

    async def GetInfo(self, request: Any, context: Any) -> Any:
        return registration.PluginInfo(
            type="DRAPlugin",
            name=DRIVER,
            endpoint=str(self.folders.plugins / "dra.sock"),
            supported_versions=[self.version],
        )

    async def NotifyRegistrationStatus(self, request: Any, context: Any) -> Any:
        self.registered.append((request.plugin_registered, request.error))
        return registration.RegistrationStatusResponse()

    async def NodePrepareResources(self, request: Any, context: Any) -> Any:
        answer = messages.NodePrepareResourcesResponse()
        for claim in request.claims:
            self.prepared.append(claim.name)
            found = answer.claims[claim.uid]
            if self.refusal:
                found.error = self.refusal
                continue
            self._write_specs(claim.uid)
            for name in self.requests:
                device = found.devices.add(pool_name="n", device_name=f"gpu-{name}")
                device.request_names.append(f"{self.prefix}{name}")
                device.cdi_device_ids.append(f"example.org/card={claim.uid}_{name}")
        return answer

    def _write_specs(self, uid: str) -> None:
        self.folders.cdi.mkdir(exist_ok=True)
        edits = [
            {"name": f"{uid}_{name}", "containerEdits": {"env": [f"CARD=of-{name}"]}}
            for name in self.requests
        ]
        body = {"cdiVersion": "0.6.0", "kind": "example.org/card", "devices": edits}
        (self.folders.cdi / f"{uid}.json").write_text(json.dumps(body))

    async def NodeUnprepareResources(self, request: Any, context: Any) -> Any:
        answer = messages.NodeUnprepareResourcesResponse()
        for claim in request.claims:
            self.given_back.append(claim.uid)
            answer.claims[claim.uid].error = ""
        return answer

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        server = grpc.aio.server()
        services.add_DRAPluginServicer_to_server(self, server)  # type: ignore[no-untyped-call]
        registration_services.add_RegistrationServicer_to_server(self, server)  # type: ignore[no-untyped-call]
        for path in (self.folders.plugins / "dra.sock", self.socket):
            path.parent.mkdir(exist_ok=True)
            server.add_insecure_port(f"unix:{path}")
        await server.start()
        try:
            yield
        finally:
            await server.stop(None)
            if not self.leave_socket:
                self.socket.unlink(missing_ok=True)
            else:
                self.socket.touch()  # as a process that was killed leaves it

    @property
    def socket(self) -> Path:
        return self.folders.plugins_registry / f"{DRIVER}-reg.sock"


@dataclass(frozen=True)
class Rig:
    """A kubelet with a driver."""

    kube: KubeClient
    kubelet: Kubelet
    driver: FakeDriver

    async def run(self, name: str, *containers: str) -> Json:
        """Bind a pod to the node with a claim that is allocated and reserved for it."""
        containers = containers or ("main",)
        pod = await self.kube.create(
            PODS, a_pod_with_claim(name, "c", *containers), namespace="default"
        )
        made = await self.kube.create(
            RESOURCE_CLAIMS, a_device_claim("c", *map(a_request, containers)), namespace="default"
        )
        await self.reserve(made, pod)
        await self.bind(pod)
        return pod

    async def reserve(self, claim: Json, *pods: Json) -> None:
        results = [
            {"request": each["name"], "driver": DRIVER, "pool": "n", "device": "gpu-a"}
            for each in claim["spec"]["devices"]["requests"]
        ]
        reserved = [
            {"resource": "pods", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
            for pod in pods
        ]
        status = {"allocation": {"devices": {"results": results}}, "reservedFor": reserved}
        await self.kube.replace(RESOURCE_CLAIMS, {**claim, "status": status}, subresource="status")

    async def bind(self, pod: Json) -> None:
        target = {"apiVersion": "v1", "kind": "Node", "name": "n"}
        meta = pod["metadata"]
        await self.kube.bind(
            {"metadata": {"uid": meta["uid"]}, "target": target},
            namespace="default",
            name=meta["name"],
        )

    async def wait_running(self, pod: Json) -> None:
        async def runs() -> bool:
            found = await self.kube.get_object(PODS, pod["metadata"]["name"], namespace="default")
            return bool(found["status"]["phase"] == "Running")

        await until(runs, what=f"{pod['metadata']['name']} runs")

    async def wait_event(self, text: str) -> None:
        async def said() -> bool:
            events = await self.kube.list(EVENTS, namespace="default")
            return any(text in decode_object(bytes(raw))["message"] for raw in events.items)

        await until(said, what=f"an Event says {text!r}")

    def env(self, pod: Json) -> dict[str, str]:
        created = self.kubelet.created_containers()[pod["metadata"]["uid"]]
        return {name: container.env.get("CARD", "") for name, container in created.items()}


@asynccontextmanager
async def a_kubelet(kube: KubeClient) -> AsyncIterator[Rig]:
    """Run a kubelet; its driver is not started yet."""
    with short_folder() as root:
        folders = KubeletFolders.under(root)
        config = KubeletConfig(node="n", folders=folders, timing=QUICK, nri=False)
        kubelet = Kubelet(kube, SystemClock(), config)
        async with background(kubelet.run()):
            async with asyncio.timeout(60):
                await kubelet.wait_ready()
            yield Rig(kube, kubelet, FakeDriver(folders))


@pytest.fixture
async def rig(kube: KubeClient) -> AsyncIterator[Rig]:
    async with a_kubelet(kube) as rig, rig.driver.serving():
        await until_true(lambda: bool(rig.driver.registered), what="the driver is registered")
        yield rig


async def test_each_container_gets_what_was_prepared_for_its_request(rig: Rig) -> None:
    assert rig.driver.registered == [(True, "")]
    rig.driver.requests = ("one", "two")

    pod = await rig.run("p", "one", "two")
    await rig.wait_running(pod)

    assert rig.env(pod) == {"one": "of-one", "two": "of-two"}
    assert rig.driver.prepared == ["c"]
    found = (await listed(rig))[0].containers[1].dynamic_resources
    assert [(each.claim_namespace, each.claim_name) for each in found] == [("default", "c")]
    (device,) = found[0].claim_resources
    assert (device.driver_name, device.pool_name, device.device_name) == (DRIVER, "n", "gpu-two")

    claim = await rig.kube.get_object(RESOURCE_CLAIMS, "c", namespace="default")
    await rig.kube.delete(PODS, "p", namespace="default")
    uid = claim["metadata"]["uid"]
    await until_true(lambda: rig.driver.given_back == [uid], what="the claim is given back")


async def listed(rig: Rig) -> Any:
    socket = rig.driver.folders.pod_resources_socket
    async with grpc.aio.insecure_channel(f"unix:{socket}") as channel:
        stub = resources_services.PodResourcesListerStub(channel)  # type: ignore[no-untyped-call]
        return (await stub.List(resources.ListPodResourcesRequest())).pod_resources


async def test_a_refused_claim_is_said_and_asked_for_again(rig: Rig) -> None:
    rig.driver.refusal = "the card is on fire"
    pod = await rig.run("p")

    await rig.wait_event("Failed to prepare dynamic resources: NodePrepareResources failed for "
                         "claim default/c: the card is on fire")  # fmt: skip
    found = await rig.kube.get_object(PODS, "p", namespace="default")
    assert found["status"]["phase"] == "Pending"
    rig.driver.refusal = ""
    await rig.wait_running(pod)
    assert rig.env(pod) == {"main": "of-main"}


async def test_an_answer_by_another_name_starts_the_container_without_its_card(rig: Rig) -> None:
    rig.driver.prefix = "main/"  # as a subrequest is called
    pod = await rig.run("p")
    await rig.wait_running(pod)

    assert rig.env(pod) == {"main": ""}


async def test_a_second_pod_of_a_claim_is_not_asked_for_and_gets_the_same(rig: Rig) -> None:
    first = await rig.run("p")
    await rig.wait_running(first)
    second = await rig.kube.create(PODS, a_pod_with_claim("q", "c"), namespace="default")
    await rig.bind(second)
    await rig.wait_event("is not allowed to use ResourceClaim c")

    claim = await rig.kube.get_object(RESOURCE_CLAIMS, "c", namespace="default")
    await rig.reserve(claim, first, second)
    await rig.wait_running(second)
    assert rig.driver.prepared == ["c"]
    assert rig.env(second) == {"main": "of-main"}

    await rig.kube.delete(PODS, "p", namespace="default")
    await rig.kube.delete(PODS, "q", namespace="default")
    await until_true(lambda: bool(rig.driver.given_back), what="the claim is given back")
    assert len(rig.driver.given_back) == 1


async def test_without_its_driver_a_pod_waits(kube: KubeClient) -> None:
    async with a_kubelet(kube) as rig:
        pod = await rig.run("p")
        await rig.wait_event(f"DRA driver {DRIVER} is not registered")

        async with rig.driver.serving():
            await rig.wait_running(pod)


@pytest.mark.parametrize("leave_socket", [False, True])
async def test_slices_are_deleted_at_the_start_and_when_a_driver_stays_away(
    kube: KubeClient, leave_socket: bool
) -> None:
    await kube.create(RESOURCE_SLICES, a_device_slice("n", a_device("gpu-a")))
    await kube.create(RESOURCE_SLICES, a_device_slice("other", a_device("gpu-b")))
    with short_folder() as root:
        folders = KubeletFolders.under(root)
        manager = ClaimManager(
            kube, SystemClock(), node="n", registry=folders.plugins_registry, away_s=0.1
        )
        driver = FakeDriver(folders)
        async with background(manager.run()):
            await until(lambda: only_other(kube), what="the node's slice is gone")
            async with driver.serving():
                await until_true(lambda: bool(driver.registered), what="the driver is registered")
                await kube.create(RESOURCE_SLICES, a_device_slice("n", a_device("gpu-a")))
                driver.leave_socket = leave_socket
            await until(lambda: only_other(kube), what="the driver's slice is gone")


async def only_other(kube: KubeClient) -> bool:
    found = (await kube.list(RESOURCE_SLICES)).items
    nodes = [decode_object(bytes(raw))["spec"]["nodeName"] for raw in found]
    return nodes == ["other"]


async def test_a_driver_of_another_version_is_told_why_it_is_not_taken(kube: KubeClient) -> None:
    with short_folder() as root:
        folders = KubeletFolders.under(root)
        manager = ClaimManager(kube, SystemClock(), node="n", registry=folders.plugins_registry)
        driver = FakeDriver(folders, version="v1alpha3.DRAPlugin")
        async with driver.serving(), background(manager.run()):
            await until_true(lambda: bool(driver.registered), what="the driver has an answer")

        ((registered, why),) = driver.registered
        assert not registered
        assert "v1alpha3.DRAPlugin" in why
