"""Kubelet's list of holders, over a real socket."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest

from deviceplugin.kubelet.pod_resources import PodResourcesClient, PodResourcesError, slot_holders
from deviceplugin.proto import podresources_pb2 as messages
from deviceplugin.proto import podresources_pb2_grpc as services
from tests.deviceplugin.builders import a_holder
from tests.support.node import short_folder

Answer = Callable[[], messages.ListPodResourcesResponse]


class FakeKubelet(services.PodResourcesListerServicer):
    def __init__(self, answer: Answer, *, delay: asyncio.Event | None = None) -> None:
        self._answer = answer
        self._delay = delay

    async def List(  # noqa: N802 - the protocol's name
        self,
        request: messages.ListPodResourcesRequest,
        context: grpc.aio.ServicerContext[
            messages.ListPodResourcesRequest, messages.ListPodResourcesResponse
        ],
    ) -> messages.ListPodResourcesResponse:
        if self._delay is not None:
            await self._delay.wait()
        return self._answer()


@asynccontextmanager
async def serving(socket: Path, kubelet: FakeKubelet) -> AsyncIterator[None]:
    server = grpc.aio.server()
    services.add_PodResourcesListerServicer_to_server(kubelet, server)  # type: ignore[no-untyped-call]
    server.add_insecure_port(f"unix:{socket}")
    await server.start()
    try:
        yield
    finally:
        await server.stop(None)


def listing(*devices: tuple[str, list[str]]) -> messages.ListPodResourcesResponse:
    """One pod with one container that holds *devices*: (resource, ids)."""
    return messages.ListPodResourcesResponse(
        pod_resources=[
            messages.PodResources(
                name="train-0",
                namespace="ml",
                containers=[
                    messages.ContainerResources(
                        name="train",
                        devices=[
                            messages.ContainerDevices(resource_name=resource, device_ids=ids)
                            for resource, ids in devices
                        ],
                    )
                ],
            )
        ]
    )


def test_ids_of_all_numa_nodes_belong_together() -> None:
    answer = listing(("fracgpu.io/gpu-slot", ["s1"]), ("fracgpu.io/gpu-slot", ["s2"]))

    assert slot_holders(answer) == (a_holder(ids="s1,s2"),)


def test_other_resources_and_containers_without_any_are_passed_over() -> None:
    assert slot_holders(listing(("nvidia.com/gpu", ["g"]), ("fracgpu.io/gpu-slot", []))) == ()


def test_a_card_of_a_claim_of_ours_is_held_as_a_slot_is() -> None:
    answer = listing()
    (container,) = answer.pod_resources[0].containers
    for driver, device in (("gpu.fracgpu.io", "gpu-a"), ("net.example.com", "eth1")):
        resource = messages.ClaimResource(driver_name=driver, device_name=device)
        container.dynamic_resources.append(messages.DynamicResource(claim_resources=[resource]))

    assert slot_holders(answer) == (a_holder(ids="gpu-a"),)


async def test_the_holders_come_over_the_socket() -> None:
    with short_folder() as folder:
        socket = folder / "kubelet.sock"
        kubelet = FakeKubelet(lambda: listing(("fracgpu.io/gpu-slot", ["s1"])))
        async with serving(socket, kubelet):
            holders = await PodResourcesClient(socket, timeout_s=5).holders()

    assert holders == (a_holder(),)


async def test_a_missing_socket_is_named() -> None:
    with short_folder() as folder, pytest.raises(PodResourcesError, match=r"none\.sock.*UNAVAIL"):
        await PodResourcesClient(folder / "none.sock", timeout_s=5).holders()


async def test_a_slow_kubelet_is_not_waited_for() -> None:
    never = asyncio.Event()
    with short_folder() as folder:
        socket = folder / "kubelet.sock"
        async with serving(socket, FakeKubelet(messages.ListPodResourcesResponse, delay=never)):
            with pytest.raises(PodResourcesError, match=r"no answer in 0\.1 s"):
                await PodResourcesClient(socket, timeout_s=0.1).holders()


async def test_a_kubelet_that_came_back_answers_at_once() -> None:
    with short_folder() as folder:
        socket = folder / "kubelet.sock"
        client = PodResourcesClient(socket, timeout_s=5)
        with pytest.raises(PodResourcesError):
            await client.holders()

        async with serving(socket, FakeKubelet(lambda: listing(("fracgpu.io/gpu-slot", ["s1"])))):
            assert await client.holders() == (a_holder(),)
