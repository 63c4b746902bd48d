"""The runtime is asked on a real socket whether it knows CDI; silence is not an answer."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from deviceplugin.proto import cri_pb2 as messages
from deviceplugin.proto import cri_pb2_grpc as services
from deviceplugin.runtime import RuntimeUnknownError, knows_cdi
from tests.support.node import short_folder


class FakeRuntime(services.RuntimeServiceServicer):
    def __init__(self, info: dict[str, str]) -> None:
        self.info = info
        self.verbose: list[bool] = []

    async def Status(  # noqa: N802 - the protocol's name
        self,
        request: messages.StatusRequest,
        context: grpc.aio.ServicerContext[messages.StatusRequest, messages.StatusResponse],
    ) -> messages.StatusResponse:
        self.verbose.append(request.verbose)
        return messages.StatusResponse(info=self.info)


@asynccontextmanager
async def a_runtime(info: dict[str, str]) -> AsyncIterator[tuple[Path, FakeRuntime]]:
    with short_folder() as root:
        runtime, server = FakeRuntime(info), grpc.aio.server()
        services.add_RuntimeServiceServicer_to_server(runtime, server)  # type: ignore[no-untyped-call]
        server.add_insecure_port(f"unix:{root / 'cri.sock'}")
        await server.start()
        try:
            yield root / "cri.sock", runtime
        finally:
            await server.stop(None)


def config(value: Any) -> dict[str, str]:
    return {"config": json.dumps(value)}


@pytest.mark.parametrize(
    ("info", "known"),
    [
        (config({"enableCDI": True, "cdiSpecDirs": ["/etc/cdi"]}), True),
        (config({"enableCDI": False}), False),
        (config({}), None),
        (config({"enableCDI": "yes"}), None),
        (config(["enableCDI"]), None),
        ({"config": "{"}, None),
        ({}, None),
    ],
)
async def test_containerd_tells_its_switch_and_whoever_has_none_tells_nothing(
    info: dict[str, str], known: bool | None
) -> None:
    async with a_runtime(info) as (socket, runtime):
        assert await knows_cdi(socket) is known
        assert runtime.verbose == [True]


async def test_a_runtime_that_is_not_there_is_unknown(tmp_path: Path) -> None:
    with pytest.raises(RuntimeUnknownError, match="answered UNAVAILABLE"):
        await knows_cdi(tmp_path / "none.sock")
