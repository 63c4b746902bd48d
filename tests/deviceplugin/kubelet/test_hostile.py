"""Hostile or broken peers on real sockets: nothing starts on a wrong card, and the agent lives."""

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
from tests.deviceplugin.builders import NODE, FakeCards, OnePlace, a_board, a_card
from tests.support.gpu import a_gpu_pod
from tests.support.node import short_folder

Json = dict[str, Any]
IDS = ["slot-0001"]
CARD = "GPU-a"
SERVICE = "v1.PodResourcesLister"


class BrokenKubelet(grpc.GenericRpcHandler):
    """Answers PodResources with whatever bytes a test wants, or not at all."""

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
    """Kubelet's list: (pod, container, ids)."""
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
class World:
    """A plugin between broken peers, all of them on sockets."""

    root: Path
    api: ApiServer
    client: KubeClient
    kubelet: BrokenKubelet
    kubelet_server: grpc.aio.Server
    wiring: PreStartHandler
    stub: services.DevicePluginStub
    pods: dict[PodKey, PodInfo] = field(default_factory=dict)

    @property
    def cdi(self) -> Path:
        return self.root / "cdi"

    async def bound_pod(self, *, assignment: str | None = None, name: str = "train-0") -> Json:
        """A pod of this node with one slice, or with whatever stands for its assignment."""
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
        """Ask for a start as kubelet does; return why not, or an empty text."""
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
async def world() -> AsyncIterator[World]:
    async with ApiServer.start() as api, a_world(api) as here:
        yield here


@asynccontextmanager
async def a_world(api: ApiServer) -> AsyncIterator[World]:
    with short_folder() as root:
        async with connect_to(api.url) as patient:
            client = patient.with_retry(RetryPolicy(attempts=1))
            kubelet, server = BrokenKubelet(), grpc.aio.server()
            server.add_generic_rpc_handlers((kubelet,))
            server.add_insecure_port(f"unix:{root / 'pr.sock'}")
            await server.start()
            pods: dict[PodKey, PodInfo] = {}
            board = a_board(FakeCards(a_card(CARD), a_card("GPU-b", index=1)), SystemClock())
            await board.survey()
            wiring = PreStartHandler(
                node=NODE,
                tracker=board,
                pod_resources=PodResourcesClient(root / "pr.sock", timeout_s=2.5),
                reader=client,
                pods=lambda: pods,
                builder=ContainerSpecBuilder(NvidiaCdiSpecs([])),
                places=OnePlace(CdiFolder(root / "cdi")),
                clock=SystemClock(),
                pod_lookup_timeout_s=1.0,
                metrics=DevicePluginMetrics(CollectorRegistry()),
                on_wired=lambda _: None,
            )
            plugin = DevicePlugin(board, wiring)
            ours = PluginServer(plugin, root / "dp.sock")
            await ours.start()
            try:
                async with grpc.aio.insecure_channel(f"unix:{root / 'dp.sock'}") as channel:
                    yield World(
                        root=root,
                        api=api,
                        client=client,
                        kubelet=kubelet,
                        kubelet_server=server,
                        wiring=wiring,
                        stub=services.DevicePluginStub(channel),  # type: ignore[no-untyped-call]
                        pods=pods,
                    )
            finally:
                await ours.stop(0.1)
                await server.stop(None)


async def kubelet_gone(world: World) -> None:
    await world.kubelet_server.stop(None)


GOOD = a_listing(("train-0", "train", IDS))


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (a_listing(), "no live pod holds"),
        (b"", "no live pod holds"),
        (a_listing(("other", "train", ["slot-0002"])), "no live pod holds"),
        (a_listing(("ghost", "train", IDS)), "ghost"),
        (a_listing(("train-0", "train", [*IDS, "slot-0002"])), "nothing in default/train-0 holds"),
        (a_listing(("train-0", "train", IDS), ("train-0", "train", ["slot-7"])), "twice"),
        (a_listing(("train-0", "stranger", IDS)), "has no cards"),
        (b"\xff\xff\xff\xff not a message", "answered"),
        (GOOD[:-3], "answered"),
        (bytes(17 * 1024 * 1024), "answered"),
    ],
    ids=[
        "empty", "no bytes", "partial", "of an unknown pod", "with more ids", "listed twice",
        "of an unknown container", "no message", "cut short", "too large",
    ],
)  # fmt: skip
async def test_a_list_that_is_wrong_lets_nothing_start_and_a_right_one_does(
    world: World, answer: bytes, reason: str
) -> None:
    await world.bound_pod()
    world.kubelet.answer = says(answer)

    assert reason in await world.start()
    assert world.specs() == []

    world.kubelet.answer = says(GOOD)
    assert await world.start() == ""


async def test_a_kubelet_that_never_answers_holds_a_start_up_for_no_longer_than_its_limit(
    world: World,
) -> None:
    await world.bound_pod()
    async with asyncio.timeout(8):
        assert "no answer in 2.5 s" in await world.start()


async def test_a_kubelet_that_is_gone_is_named(world: World) -> None:
    await world.bound_pod()
    await kubelet_gone(world)

    assert "pr.sock" in await world.start()
    assert world.specs() == []


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
        ('{"train":[{"card":"GPU-a","mib":500},{"card":"GPU-b","mib":500}]}', "1 slots"),
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
    world: World, assignment: str, reason: str
) -> None:
    await world.bound_pod(assignment=assignment)
    world.kubelet.answer = says(GOOD)

    assert reason in await world.start()
    assert world.specs() == []


async def test_a_pod_re_created_under_its_name_is_read_anew(world: World) -> None:
    old = await world.bound_pod()
    world.kubelet.answer = says(GOOD)
    await world.client.delete(PODS, "train-0", namespace="default", grace_s=0)
    stale = dict(world.pods)
    new = await world.bound_pod(assignment='{"train":[{"card":"GPU-b","mib":1000}]}')
    world.pods.update(stale)  # the informer has not heard of the new one yet

    assert await world.start() == ""

    assert old["metadata"]["uid"] != new["metadata"]["uid"]
    assert "GPU-b" in world.specs()[0].read_text()


async def test_the_ids_of_a_verified_pod_do_not_pass_to_a_new_pod_of_its_name_by_themselves(
    world: World,
) -> None:
    await world.bound_pod()
    world.kubelet.answer = says(GOOD)
    assert await world.start() == ""
    await world.client.delete(PODS, "train-0", namespace="default", grace_s=0)
    await world.bound_pod(assignment='{"train":[{"card":"GPU-b","mib":1000}]}')

    assert "has not handed them out since" in await world.start()  # the old pod's last breath
    ask = messages.AllocateRequest(
        container_requests=[messages.ContainerAllocateRequest(devices_ids=IDS)]
    )
    await world.stub.Allocate(ask)
    assert await world.start() == ""
    assert "GPU-b" in world.specs()[0].read_text()


async def test_while_the_api_server_is_away_only_a_verified_container_starts(world: World) -> None:
    await world.bound_pod()
    world.kubelet.answer = says(GOOD)
    assert await world.start() == ""
    await world.bound_pod(name="new")
    (spec,) = world.specs()
    before = spec.read_text()

    await world.api.stop()

    assert await world.start() == ""
    assert spec.read_text() == before
    world.kubelet.answer = says(a_listing(("new", "train", IDS)))
    world.wiring.allocated(frozenset(IDS))
    assert "waits for the API server" in await world.start()


def not_a_folder(cdi: Path) -> None:
    cdi.write_text("a file where the folder should be")


def no_room(cdi: Path) -> None:
    cdi.mkdir()
    kind = names.CDI_KIND.replace("/", "-")
    (cdi / f"{kind}_{device_name(IDS)}.new").symlink_to("/dev/full")


@pytest.mark.parametrize("spoil", [not_a_folder, no_room])
async def test_a_cdi_folder_that_takes_no_spec_lets_nothing_start(
    world: World, spoil: Callable[[Path], None]
) -> None:
    await world.bound_pod()
    world.kubelet.answer = says(GOOD)
    spoil(world.cdi)

    assert "cannot" in await world.start()
    assert world.specs() == []


async def test_a_spec_that_cannot_be_renewed_is_not_left_with_another_pods_card(
    world: World,
) -> None:
    await world.bound_pod()
    world.kubelet.answer = says(GOOD)
    assert await world.start() == ""
    (spec,) = world.specs()
    spec.with_suffix(".new").symlink_to("/dev/full")

    # The refusal, and not the file, is what keeps the container from starting.
    assert "No space left" in await world.start()
    assert await world.start() == ""  # what was in the way is gone
