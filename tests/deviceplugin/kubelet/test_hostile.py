"""Hostile or broken peers on real sockets: nothing starts on a wrong card; the agent survives."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest
from prometheus_client import CollectorRegistry

from deviceplugin.claims import PodKey
from deviceplugin.container.cdi import CdiFolder, device_name
from deviceplugin.container.nvidia_cdi import NvidiaCdiSpecs
from deviceplugin.container.spec_builder import ContainerSpecBuilder
from deviceplugin.kubelet.device_plugin import DevicePlugin, PluginServer
from deviceplugin.kubelet.pod_lookup import PodLookup
from deviceplugin.kubelet.pod_resources import PodResourcesClient
from deviceplugin.kubelet.pre_start import PreStartHandler
from deviceplugin.metrics import DevicePluginMetrics
from deviceplugin.proto import deviceplugin_pb2 as messages
from deviceplugin.proto import deviceplugin_pb2_grpc as services
from deviceplugin.proto import podresources_pb2 as listed
from fracgpu import names
from fracgpu.state.pod_info import PodInfo, decode_pod_info
from kube.access import connect_to
from kube.client import KubeClient
from kube.kinds import PODS
from kube.retry import RetryPolicy
from process.clock import SystemClock
from simulator.apiserver.server import ApiServer
from tests.deviceplugin.builders import (
    NODE,
    FakeCards,
    OneLocation,
    a_card,
    a_tracker,
    no_containers,
)
from tests.support.gpu import a_gpu_pod
from tests.support.node import short_folder

Json = dict[str, Any]
IDS = ["slot-0001"]
CARD = "GPU-a"
SERVICE = "v1.PodResourcesLister"


class BrokenKubelet(grpc.GenericRpcHandler):
    """Answers PodResources with the bytes that a test sets, or not at all."""

    def __init__(self) -> None:
        self.answer: Callable[[], Awaitable[bytes]] = self.silent

    async def silent(self) -> bytes:
        await asyncio.Event().wait()
        return b""

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        async def reply(request: bytes, context: object) -> bytes:
            return await self.answer()

        if handler_call_details.method == f"/{SERVICE}/List":
            return grpc.unary_unary_rpc_method_handler(reply)
        return None


def says(body: bytes) -> Callable[[], Awaitable[bytes]]:
    async def answer() -> bytes:
        return body

    return answer


def a_listing(*pods: tuple[str, str, list[str]]) -> bytes:
    """Return kubelet's list of *holders*: (pod, container, ids)."""
    return listed.ListPodResourcesResponse(
        pod_resources=[
            listed.PodResources(
                name=pod,
                namespace="default",
                containers=[
                    listed.ContainerResources(
                        name=container,
                        devices=[
                            listed.ContainerDevices(resource_name=names.GPU_SLOT, device_ids=ids)
                        ],
                    )
                ],
            )
            for pod, container, ids in pods
        ]
    ).SerializeToString()


@dataclass(slots=True, kw_only=True)
class Rig:
    """A plugin between broken peers, all of them on sockets."""

    root: Path
    api: ApiServer
    client: KubeClient
    kubelet: BrokenKubelet
    kubelet_server: grpc.aio.Server
    pre_start: PreStartHandler
    stub: services.DevicePluginStub
    pods: dict[PodKey, PodInfo] = field(default_factory=dict)

    @property
    def cdi(self) -> Path:
        return self.root / "cdi"

    async def bound_pod(self, *, assignment: str | None = None, name: str = "train-0") -> Json:
        """Add a pod of this node with one slice, or with *assignment* in its place."""
        good = f'{{"train":[{{"card":"{CARD}","mib":1000}}]}}'
        pod = await self.client.create(PODS, a_gpu_pod(name))
        notes = {names.ASSIGNMENT: good if assignment is None else assignment}
        metadata = {"name": name, "namespace": "default", "uid": pod["metadata"]["uid"]}
        await self.client.bind(
            {
                "metadata": {**metadata, "annotations": notes},
                "target": {"kind": "Node", "name": NODE},
            },
            namespace="default",
            name=name,
        )
        body = await self.client.get(PODS, name, namespace="default")
        self.pods["default", name] = decode_pod_info(body)
        return pod

    async def start(self) -> str:
        """Start a container as kubelet does; return the error, or an empty text."""
        request = messages.PreStartContainerRequest(devices_ids=IDS)
        try:
            await self.stub.PreStartContainer(request, timeout=10)
        except grpc.aio.AioRpcError as error:
            refused = error.code() is grpc.StatusCode.FAILED_PRECONDITION
            return (error.details() or "no reason given") if refused else f"broke: {error.code()}"
        return ""

    def specs(self) -> list[Path]:
        return sorted(self.cdi.glob("*.json")) if self.cdi.is_dir() else []


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with ApiServer.start() as api, a_rig(api) as here:
        yield here


@asynccontextmanager
async def a_rig(api: ApiServer) -> AsyncIterator[Rig]:
    with short_folder() as root:
        async with connect_to(api.url) as api_client:
            client = api_client.with_retry(RetryPolicy(attempts=1))
            kubelet, server = BrokenKubelet(), grpc.aio.server()
            server.add_generic_rpc_handlers((kubelet,))
            server.add_insecure_port(f"unix:{root / 'pr.sock'}")
            await server.start()
            pods: dict[PodKey, PodInfo] = {}
            tracker = a_tracker(FakeCards(a_card(CARD), a_card("GPU-b", index=1)), SystemClock())
            await tracker.refresh()
            pre_start = PreStartHandler(
                node=NODE,
                tracker=tracker,
                pod_resources=PodResourcesClient(root / "pr.sock", timeout_s=2.5),
                lookup=PodLookup(client, lambda: pods, timeout_s=1.0),
                containers=no_containers,
                builder=ContainerSpecBuilder(NvidiaCdiSpecs([])),
                locations=OneLocation(CdiFolder(root / "cdi")),
                clock=SystemClock(),
                metrics=DevicePluginMetrics(CollectorRegistry()),
                on_prepared=lambda _: None,
            )
            plugin = DevicePlugin(tracker, pre_start)
            ours = PluginServer(plugin, root / "dp.sock")
            await ours.start()
            try:
                async with grpc.aio.insecure_channel(f"unix:{root / 'dp.sock'}") as channel:
                    yield Rig(
                        root=root,
                        api=api,
                        client=client,
                        kubelet=kubelet,
                        kubelet_server=server,
                        pre_start=pre_start,
                        stub=services.DevicePluginStub(channel),  # type: ignore[no-untyped-call]
                        pods=pods,
                    )
            finally:
                await ours.stop(0.1)
                await server.stop(None)


async def kubelet_gone(rig: Rig) -> None:
    await rig.kubelet_server.stop(None)


GOOD = a_listing(("train-0", "train", IDS))


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (a_listing(), "no live pod holds"),
        (b"", "no live pod holds"),
        (a_listing(("other", "train", ["slot-0002"])), "no live pod holds"),
        (a_listing(("ghost", "train", IDS)), "ghost"),
        (a_listing(("train-0", "train", [*IDS, "slot-0002"])), "nothing holds just"),
        (a_listing(("train-0", "train", IDS), ("train-0", "train", ["slot-7"])), "twice"),
        (a_listing(("train-0", "stranger", IDS)), "has no cards"),
        (b"\xff\xff\xff\xff not a message", "is not a ListPodResourcesResponse"),
        (GOOD[:-3], "is not a ListPodResourcesResponse"),
        (bytes(17 * 1024 * 1024), "answered"),
    ],
    ids=[
        "empty", "no bytes", "partial", "of an unknown pod", "with more ids", "listed twice",
        "of an unknown container", "no message", "cut short", "too large",
    ],
)  # fmt: skip
async def test_a_list_that_is_wrong_lets_nothing_start_and_a_right_one_does(
    rig: Rig, answer: bytes, reason: str
) -> None:
    await rig.bound_pod()
    rig.kubelet.answer = says(answer)

    assert reason in await rig.start()
    assert rig.specs() == []

    rig.kubelet.answer = says(GOOD)
    assert await rig.start() == ""


async def test_a_kubelet_that_never_answers_holds_a_start_up_for_no_longer_than_its_limit(
    rig: Rig,
) -> None:
    await rig.bound_pod()
    async with asyncio.timeout(8):
        assert "no answer in 2.5 s" in await rig.start()


async def test_a_kubelet_that_is_gone_is_named(rig: Rig) -> None:
    await rig.bound_pod()
    await kubelet_gone(rig)

    assert "pr.sock" in await rig.start()
    assert rig.specs() == []


@pytest.mark.parametrize(
    ("assignment", "reason"),
    [
        ("", "assignment"),
        ("{", "assignment"),
        ("[]", "assignment"),
        ("null", "assignment"),
        ('{"train":[]}', "no slice"),
        ('{"train":[{"card":"GPU-a","mib":-1}]}', "-1 MiB"),
        ('{"train":[{"card":"GPU-a","mib":1e3}]}', "assignment"),
        ('{"train":[{"card":"GPU-a","mib":"1000"}]}', "assignment"),
        ('{"train":[{"card":"GPU-a","mib":99999999999999999999}]}', "assignment"),
        ('{"train":[{"card":"GPU-a","mib":500},{"card":"GPU-a","mib":500}]}', "one card twice"),
        ('{"train":[{"card":"GPU-a","mib":500},{"card":"GPU-b","mib":500}]}', "1 slot "),
        ('{"train":[{"card":"GPU-a","mib":8001}]}', "8001"),
        ('{"train":[{"card":"GPU-z","mib":1000}]}', "GPU-z"),
        ('{"train":[{"card":"../../etc","mib":1000}]}', "../../etc"),
        ('{"train":[{"card":"GPU-a","mib":999}]}', "999 MiB"),
        ('{"other":[{"card":"GPU-a","mib":1000}]}', "has no cards"),
        ('{"train":[{"card":"GPU-a","mib":1000}],"x":[{"card":"GPU-a","mib":8000}]}', "9000"),
        ('{"a":' * 3000, "assignment"),
        ('{"train":[{"card":"GPU-a","mib":1000}]}' + " " * 70_000, "characters"),
    ],
    ids=[
        "empty", "cut short", "list", "null", "no slice", "negative", "float", "text",
        "beyond numbers", "card twice", "two cards", "more than a card", "unknown card",
        "path as card", "other size", "other container", "hidden container", "nested", "oversized",
    ],
)  # fmt: skip
async def test_an_assignment_that_is_malformed_or_forged_starts_nothing(
    rig: Rig, assignment: str, reason: str
) -> None:
    await rig.bound_pod(assignment=assignment)
    rig.kubelet.answer = says(GOOD)

    assert reason in await rig.start()
    assert rig.specs() == []


async def test_a_pod_re_created_under_its_name_is_read_anew(rig: Rig) -> None:
    old = await rig.bound_pod()
    rig.kubelet.answer = says(GOOD)
    await rig.client.delete(PODS, "train-0", namespace="default", grace_s=0)
    stale = dict(rig.pods)
    new = await rig.bound_pod(assignment='{"train":[{"card":"GPU-b","mib":1000}]}')
    rig.pods.update(stale)  # the informer has not heard of the new one yet

    assert await rig.start() == ""

    assert old["metadata"]["uid"] != new["metadata"]["uid"]
    assert "GPU-b" in rig.specs()[0].read_text()


async def test_the_ids_of_a_verified_pod_do_not_pass_to_a_new_pod_of_its_name_by_themselves(
    rig: Rig,
) -> None:
    await rig.bound_pod()
    rig.kubelet.answer = says(GOOD)
    assert await rig.start() == ""
    await rig.client.delete(PODS, "train-0", namespace="default", grace_s=0)
    await rig.bound_pod(assignment='{"train":[{"card":"GPU-b","mib":1000}]}')

    assert "has not allocated them since" in await rig.start()  # that was the old pod's
    ask = messages.AllocateRequest(
        container_requests=[messages.ContainerAllocateRequest(devices_ids=IDS)]
    )
    await rig.stub.Allocate(ask)
    assert await rig.start() == ""
    assert "GPU-b" in rig.specs()[0].read_text()


async def test_while_the_api_server_is_away_only_a_verified_container_starts(rig: Rig) -> None:
    await rig.bound_pod()
    rig.kubelet.answer = says(GOOD)
    assert await rig.start() == ""
    await rig.bound_pod(name="new")
    (spec,) = rig.specs()
    before = spec.read_text()

    await rig.api.stop()

    assert await rig.start() == ""
    assert spec.read_text() == before
    rig.kubelet.answer = says(a_listing(("new", "train", IDS)))
    rig.pre_start.allocated(frozenset(IDS))
    assert "must wait for the API server" in await rig.start()


def not_a_folder(cdi: Path) -> None:
    cdi.write_text("a file where the folder should be")


def no_room(cdi: Path) -> None:
    cdi.mkdir()
    kind = names.CDI_KIND.replace("/", "-")
    (cdi / f"{kind}_{device_name(IDS)}.new").symlink_to("/dev/full")


@pytest.mark.parametrize("spoil", [not_a_folder, no_room])
async def test_a_cdi_folder_that_takes_no_spec_lets_nothing_start(
    rig: Rig, spoil: Callable[[Path], None]
) -> None:
    await rig.bound_pod()
    rig.kubelet.answer = says(GOOD)
    spoil(rig.cdi)

    assert "cannot" in await rig.start()
    assert rig.specs() == []


async def test_a_spec_that_cannot_be_renewed_is_not_left_with_another_pods_card(
    rig: Rig,
) -> None:
    await rig.bound_pod()
    rig.kubelet.answer = says(GOOD)
    assert await rig.start() == ""
    (spec,) = rig.specs()
    spec.with_suffix(".new").symlink_to("/dev/full")

    # The refusal, and not the file, is what keeps the container from starting.
    assert "No space left" in await rig.start()
    assert await rig.start() == ""  # what was in the way is gone
