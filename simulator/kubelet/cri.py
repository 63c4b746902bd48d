"""The CRI socket of a simulated kubelet's container runtime: which containers run."""

# ruff: noqa: ARG002, N802 - names and arguments of the methods are the protocol's

from pathlib import Path

import grpc

from deviceplugin.proto import cri_pb2 as messages
from deviceplugin.proto import cri_pb2_grpc as services
from simulator.kubelet.container_runtime import ContainerRuntime
from simulator.kubelet.pod_resources import serve


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
        server = grpc.aio.server()
        services.add_RuntimeServiceServicer_to_server(self, server)  # type: ignore[no-untyped-call]
        await serve(server, self._socket)

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
