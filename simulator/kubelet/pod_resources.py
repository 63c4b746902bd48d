"""The PodResources socket of a simulated kubelet: the devices of each container."""

# ruff: noqa: ARG002, N802 - names and arguments of the methods are the protocol's

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import grpc

from deviceplugin.kubelet.device_plugin import check_socket_path
from deviceplugin.proto import podresources_pb2 as messages
from deviceplugin.proto import podresources_pb2_grpc as services
from simulator.kubelet.device_manager import ContainerKey, DeviceManager


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedPod:
    """One pod as PodResources lists it: app containers and sidecars, no init containers."""

    uid: str
    namespace: str
    name: str
    containers: Sequence[str]


class PodResourcesServer(services.PodResourcesListerServicer):
    """Serves ``List`` of the v1 protocol.

    Args:
        socket: path to serve on.
        pods: returns the pods that kubelet knows now.
        devices: returns what their containers hold.
    """

    def __init__(
        self, socket: Path, *, pods: Callable[[], Sequence[ListedPod]], devices: DeviceManager
    ) -> None:
        self._socket = socket
        self._pods = pods
        self._devices = devices

    async def run(self) -> None:
        """Serve until cancelled.

        Raises:
            deviceplugin.kubelet.device_plugin.SocketError: the path is too long for a socket.
        """
        server = grpc.aio.server()
        services.add_PodResourcesListerServicer_to_server(self, server)  # type: ignore[no-untyped-call]
        await serve(server, self._socket)

    async def List(
        self,
        request: messages.ListPodResourcesRequest,
        context: grpc.aio.ServicerContext[
            messages.ListPodResourcesRequest, messages.ListPodResourcesResponse
        ],
    ) -> messages.ListPodResourcesResponse:
        """List all pods, those without devices as well, as kubelet does."""
        return messages.ListPodResourcesResponse(
            pod_resources=[
                messages.PodResources(
                    name=pod.name,
                    namespace=pod.namespace,
                    containers=[self._container(pod, name) for name in pod.containers],
                )
                for pod in self._pods()
            ]
        )

    def _container(self, pod: ListedPod, name: str) -> messages.ContainerResources:
        key = ContainerKey(pod_uid=pod.uid, namespace=pod.namespace, pod=pod.name, container=name)
        return messages.ContainerResources(
            name=name,
            devices=[
                messages.ContainerDevices(
                    resource_name=grant.resource, device_ids=sorted(grant.ids)
                )
                for grant in self._devices.allocations().get(key, ())
            ],
        )


async def serve(server: grpc.aio.Server, socket: Path) -> None:
    """Serve on *socket* until cancelled; a socket that an earlier process left is replaced.

    Raises:
        deviceplugin.kubelet.device_plugin.SocketError: the path is too long for a socket.
    """
    _make_room(socket)
    server.add_insecure_port(f"unix:{socket}")
    await server.start()
    try:
        await asyncio.Event().wait()
    finally:
        await server.stop(None)


def _make_room(socket: Path) -> None:
    check_socket_path(socket)
    socket.parent.mkdir(parents=True, exist_ok=True)
    socket.unlink(missing_ok=True)
