"""Kubelet's list of the containers that hold slots, read over its PodResources socket."""

import asyncio
from pathlib import Path
from typing import Final, Protocol

import grpc

from deviceplugin.claims import SlotHolder
from deviceplugin.proto import podresources_pb2 as messages
from deviceplugin.proto import podresources_pb2_grpc as services
from fracgpu import names

# 110 pods are well under 1 MiB; no kubelet answers with more than this.
_MAX_MESSAGE_BYTES: Final = 16 * 1024 * 1024


class PodResourcesError(Exception):
    """Kubelet did not return who holds which slots."""


class PodResources(Protocol):
    """The part of kubelet's PodResources API that we need."""

    async def holders(self) -> tuple[SlotHolder, ...]:
        """Return every container that holds slots.

        Raises:
            PodResourcesError: kubelet did not answer, or with an error.
        """
        ...


class PodResourcesClient(PodResources):
    """Calls kubelet over a new connection each time, so that a kubelet restart does not matter."""

    def __init__(self, socket: Path, *, timeout_s: float) -> None:
        self._socket = socket
        self._timeout_s = timeout_s

    async def holders(self) -> tuple[SlotHolder, ...]:
        options = [
            ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
            # Without it, gRPC keeps backing off from a socket that was absent, on new channels too.
            ("grpc.use_local_subchannel_pool", 1),
        ]
        try:
            async with (
                asyncio.timeout(self._timeout_s),
                grpc.aio.insecure_channel(f"unix:{self._socket}", options=options) as channel,
            ):
                stub = services.PodResourcesListerStub(channel)  # type: ignore[no-untyped-call]
                # grpc returns None for bytes that are no such message, and only logs that.
                answer: messages.ListPodResourcesResponse | None = await stub.List(
                    messages.ListPodResourcesRequest()
                )
        except grpc.aio.AioRpcError as error:
            raise PodResourcesError(
                f"kubelet's {self._socket} answered {error.code().name}: {error.details()}"
            ) from error
        except TimeoutError as error:
            raise PodResourcesError(
                f"kubelet's {self._socket} gave no answer in {self._timeout_s:g} s"
            ) from error
        if answer is None:
            raise PodResourcesError(
                f"the answer of kubelet's {self._socket} is not a ListPodResourcesResponse"
            )
        # Of a thousand pods it takes longer than the event loop may be held.
        return await asyncio.to_thread(slot_holders, answer)


def slot_holders(answer: messages.ListPodResourcesResponse) -> tuple[SlotHolder, ...]:
    """Return the containers in *answer* that hold slots, the ids of all NUMA nodes together.

    A card of a claim is held as a slot is. For each container with a claim, kubelet lists all cards
    of the claim.
    """
    found = []
    for pod in answer.pod_resources:
        for container in pod.containers:
            slot_ids = frozenset(
                slot_id
                for devices in container.devices
                if devices.resource_name == names.GPU_SLOT
                for slot_id in devices.device_ids
            ) | frozenset(
                device.device_name
                for claim in container.dynamic_resources
                for device in claim.claim_resources
                if device.driver_name == names.DRA_DRIVER
            )
            if slot_ids:
                found.append(
                    SlotHolder(
                        namespace=pod.namespace,
                        pod=pod.name,
                        container=container.name,
                        slot_ids=slot_ids,
                    )
                )
    return tuple(found)
