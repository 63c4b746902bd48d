"""The runtime is asked on a real socket whether it reads CDI specs; silence is no answer."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from deviceplugin.container.cri import RuntimeUnknownError, RuntimeWatch, knows_cdi
from deviceplugin.proto import cri_pb2 as messages
from deviceplugin.proto import cri_pb2_grpc as services
from simulator.background import background
from tests.fakes.clock import VirtualClock
from tests.support.node import short_folder


class FakeRuntime(services.RuntimeServiceServicer):
    def __init__(self, info: dict[str, str], name: str = "", version: str = "") -> None:
        self.info = info
        self.name = name
        self.version = version
        self.verbose: list[bool] = []

    async def Status(  # noqa: N802 - the protocol's name
        self,
        request: messages.StatusRequest,
        context: grpc.aio.ServicerContext[messages.StatusRequest, messages.StatusResponse],
    ) -> messages.StatusResponse:
        self.verbose.append(request.verbose)
        return messages.StatusResponse(info=self.info)

    async def Version(  # noqa: N802 - the protocol's name
        self,
        request: messages.VersionRequest,
        context: grpc.aio.ServicerContext[messages.VersionRequest, messages.VersionResponse],
    ) -> messages.VersionResponse:
        return messages.VersionResponse(runtime_name=self.name, runtime_version=self.version)


@asynccontextmanager
async def serving(runtime: FakeRuntime, socket: Path) -> AsyncIterator[None]:
    server = grpc.aio.server()
    services.add_RuntimeServiceServicer_to_server(runtime, server)  # type: ignore[no-untyped-call]
    server.add_insecure_port(f"unix:{socket}")
    await server.start()
    try:
        yield
    finally:
        await server.stop(None)


@asynccontextmanager
async def a_runtime(
    info: dict[str, str], name: str = "", version: str = ""
) -> AsyncIterator[tuple[Path, FakeRuntime]]:
    runtime = FakeRuntime(info, name, version)
    with short_folder() as root:
        async with serving(runtime, root / "cri.sock"):
            yield root / "cri.sock", runtime


def config(value: Any) -> dict[str, str]:
    return {"config": json.dumps(value)}


CDI, NO_CDI = config({"enableCDI": True, "cdiSpecDirs": ["/etc/cdi"]}), config({"enableCDI": False})


@pytest.mark.parametrize(
    ("info", "name", "version", "known"),
    [
        (CDI, "containerd", "1.7.24", True),
        (NO_CDI, "containerd", "v2.1.0", False),
        ({}, "cri-o", "1.33.0", True),
        (config({}), "containerd", "1.6.36", False),
    ],
)
async def test_the_runtimes_switch_counts_and_else_what_it_is(
    info: dict[str, str], name: str, version: str, known: bool
) -> None:
    async with a_runtime(info, name, version) as (socket, runtime):
        assert await knows_cdi(socket) is known
        assert runtime.verbose == [True]


@pytest.mark.parametrize(
    "info",
    [
        config({"enableCDI": "yes"}),
        config(["enableCDI"]),
        {"config": "{"},
        {},
    ],
)
@pytest.mark.parametrize(
    ("name", "version"), [("docker", "28.0"), ("containerd", "v3.0"), ("", "")]
)
async def test_a_runtime_that_does_not_say_it_is_not_assumed_to_know_cdi(
    info: dict[str, str], name: str, version: str
) -> None:
    async with a_runtime(info, name, version) as (socket, _):
        with pytest.raises(RuntimeUnknownError, match="set --injection"):
            await knows_cdi(socket)


async def test_a_runtime_that_is_not_there_is_unknown(tmp_path: Path) -> None:
    with pytest.raises(RuntimeUnknownError, match="answered UNAVAILABLE"):
        await knows_cdi(tmp_path / "none.sock")


async def test_a_runtime_is_asked_until_it_answers_and_again_when_it_is_another_one() -> None:
    changes = []
    with short_folder() as root:
        socket = root / "cri.sock"
        watch = RuntimeWatch(
            socket,
            injection="auto",
            clock=VirtualClock(),
            period_s=30,
            on_change=lambda: changes.append(watch.problem),
        )
        assert await watch.check() == f"{socket} answered UNAVAILABLE"

        async with serving(FakeRuntime(CDI), socket):
            assert await watch.check() is None

        async with serving(FakeRuntime(NO_CDI), socket):  # restarted with CDI off
            found = await watch.check()

    assert found is not None
    assert "enable_cdi = true" in found
    assert changes == [f"{socket} answered UNAVAILABLE", None, found]


async def test_one_question_without_an_answer_may_meet_a_restart_and_three_do_not() -> None:
    with short_folder() as root:
        socket = root / "cri.sock"
        watch = RuntimeWatch(socket, injection="auto", clock=VirtualClock(), period_s=30)
        async with serving(FakeRuntime(CDI), socket):
            await watch.check()
        for problem in (None, None, f"{socket} answered UNAVAILABLE"):
            assert await watch.check() is not None  # no container starts on a guess
            assert watch.problem == problem


async def test_a_runtime_is_asked_after_each_period_and_sooner_where_it_did_not_answer() -> None:
    clock, runtime, asked = VirtualClock(), FakeRuntime(CDI), list[int]()
    with short_folder() as root:
        watch = RuntimeWatch(root / "cri.sock", injection="auto", clock=clock, period_s=30)
        async with background(watch.run()):
            await clock.wait_for_sleepers(1)
            async with serving(runtime, root / "cri.sock"):
                for pause_s in (2, 29, 1):
                    await clock.advance(pause_s)
                    await clock.wait_for_sleepers(1)
                    asked.append(len(runtime.verbose))

    assert asked == [1, 1, 2]


async def test_what_an_administrator_has_decided_is_not_asked(tmp_path: Path) -> None:
    watch = RuntimeWatch(tmp_path / "none.sock", injection="cdi", clock=VirtualClock(), period_s=30)

    assert await watch.check() is None
    assert watch.problem is None
