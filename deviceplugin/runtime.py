"""What the container runtime can do: whether it reads CDI specs."""

import asyncio
import json
from pathlib import Path
from typing import Any, Final

import grpc

from deviceplugin.proto import cri_pb2 as messages
from deviceplugin.proto import cri_pb2_grpc as services


class RuntimeUnknownError(Exception):
    """The runtime did not say what it can do."""


_TIMEOUT_S: Final = 3.0


async def knows_cdi(socket: Path) -> bool | None:
    """Ask the runtime on its CRI socket whether CDI is on; None where it has no such switch.

    containerd tells its configuration, in which CDI is off by default before version 2; CRI-O has
    had it always on since 1.23 and tells nothing.

    Raises:
        RuntimeUnknownError: there is no runtime, or no answer.
    """
    options = [("grpc.use_local_subchannel_pool", 1)]
    try:
        async with (
            asyncio.timeout(_TIMEOUT_S),
            grpc.aio.insecure_channel(f"unix:{socket}", options=options) as channel,
        ):
            stub = services.RuntimeServiceStub(channel)  # type: ignore[no-untyped-call]
            answer: messages.StatusResponse | None = await stub.Status(
                messages.StatusRequest(verbose=True)
            )
    except grpc.aio.AioRpcError as error:
        raise RuntimeUnknownError(f"{socket} answered {error.code().name}") from error
    except TimeoutError as error:
        raise RuntimeUnknownError(f"{socket} gave no answer in {_TIMEOUT_S:g} s") from error
    if answer is None:
        raise RuntimeUnknownError(f"{socket} answered what cannot be read")
    return _switch(answer.info.get("config", ""))


def _switch(config: str) -> bool | None:
    try:
        found: Any = json.loads(config)
    except ValueError:
        return None
    switch = found.get("enableCDI") if isinstance(found, dict) else None
    return switch if isinstance(switch, bool) else None
