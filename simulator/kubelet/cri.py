"""The CRI socket of a simulated kubelet's container runtime: which containers run."""

# ruff: noqa: ARG002, N802 - names and arguments of the methods are the protocol's

import asyncio
from pathlib import Path

import grpc

from deviceplugin.kubelet.device_plugin import check_socket_path
from deviceplugin.proto import cri_pb2 as messages
from deviceplugin.proto import cri_pb2_grpc as services
from simulator.kubelet.container_runtime import ContainerRuntime


class RuntimeServer(services.RuntimeServiceServicer):
    """Serves ``ListContainers`` of the v1 protocol; containers that do not run are not listed.

    Args:
        socket: path to serve on.
        runtime: whose containers are listed.
    """

    def __init__(self, socket: Path, runtime: ContainerRuntime) -> None:
        self._socket = socket
        self._runtime = runtime

    async def run(self) -> None:
        """Serve until cancelled.

        Raises:
            deviceplugin.kubelet.device_plugin.SocketError: the path is too long for a socket.
        """
        check_socket_path(self._socket)
        self._socket.unlink(missing_ok=True)
        server = grpc.aio.server()
        services.add_RuntimeServiceServicer_to_server(self, server)  # type: ignore[no-untyped-call]
        server.add_insecure_port(f"unix:{self._socket}")
        await server.start()
        try:
            await asyncio.Event().wait()
        finally:
            await server.stop(None)

    async def ListContainers(
        self,
        request: messages.ListContainersRequest,
        context: grpc.aio.ServicerContext[
            messages.ListContainersRequest, messages.ListContainersResponse
        ],
    ) -> messages.ListContainersResponse:
        """List what runs, with the labels that kubelet sets."""
        return messages.ListContainersResponse(
            containers=[
                messages.Container(
                    state=messages.CONTAINER_RUNNING,
                    labels={
                        "io.kubernetes.pod.uid": key.pod_uid,
                        "io.kubernetes.container.name": key.container,
                    },
                )
                for key in self._runtime.running
            ]
        )
