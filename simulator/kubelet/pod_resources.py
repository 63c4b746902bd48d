"""The PodResources socket of a simulated kubelet: the devices of each container."""

# ruff: noqa: ARG002, N802 - names and arguments of the methods are the protocol's

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import grpc

from deviceplugin.proto import podresources_pb2 as messages
from deviceplugin.proto import podresources_pb2_grpc as services
from deviceplugin.sockets import SocketServer
from simulator.kubelet.claim_manager import ClaimManager, PreparedDevice
from simulator.kubelet.device_manager import DeviceManager
from simulator.kubelet.pod_status import KubeletPod


class PodResourcesServer(services.PodResourcesListerServicer):
    """Serves ``List`` of the v1 protocol.

    Args:
        socket: path to serve on.
        pods: returns the pods that kubelet knows now.
        devices: returns what their containers hold.
        claims: returns what they have of claims.
    """

    def __init__(
        self,
        socket: Path,
        *,
        pods: Callable[[], Sequence[KubeletPod]],
        devices: DeviceManager,
        claims: ClaimManager,
    ) -> None:
        self._socket = socket
        self._pods = pods
        self._devices = devices
        self._claims = claims

    async def run(self) -> None:
        """Serve until cancelled.

        Raises:
            deviceplugin.sockets.SocketError: the path is too long for a socket.
        """
        sockets = SocketServer(
            self._socket,
            register=lambda server: services.add_PodResourcesListerServicer_to_server(self, server),  # type: ignore[no-untyped-call]
        )
        await sockets.start()
        try:
            await asyncio.Event().wait()
        finally:
            await sockets.stop(0)

    async def List(
        self,
        request: messages.ListPodResourcesRequest,
        context: grpc.aio.ServicerContext[
            messages.ListPodResourcesRequest, messages.ListPodResourcesResponse
        ],
    ) -> messages.ListPodResourcesResponse:
        """List all pods, those without devices as well, as kubelet does; no init containers."""
        return messages.ListPodResourcesResponse(
            pod_resources=[
                messages.PodResources(
                    name=pod.name,
                    namespace=pod.namespace,
                    containers=[self._container(pod, name) for name in pod.listed_containers],
                )
                for pod in self._pods()
            ]
        )

    def _container(self, pod: KubeletPod, name: str) -> messages.ContainerResources:
        return messages.ContainerResources(
            name=name,
            devices=[
                messages.ContainerDevices(
                    resource_name=grant.resource, device_ids=sorted(grant.ids)
                )
                for grant in self._devices.allocations().get(pod.key(name), ())
            ],
            dynamic_resources=[
                messages.DynamicResource(
                    claim_name=claim.name,
                    claim_namespace=claim.namespace,
                    claim_resources=[_claimed(device) for device in devices],
                )
                for claim, devices in self._claims.of(pod, name)
            ],
        )


def _claimed(device: PreparedDevice) -> messages.ClaimResource:
    return messages.ClaimResource(
        cdi_devices=[messages.CDIDevice(name=name) for name in device.cdi_devices],
        driver_name=device.driver,
        pool_name=device.pool,
        device_name=device.device,
    )
