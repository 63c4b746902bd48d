"""The simulated NRI beyond what real runtimes are held to: lists in parts, and unknown events."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from deviceplugin.nri.interface import Container, PodSandbox
from simulator.kubelet.nri import NriServer
from tests.support.node import short_folder
from tests.support.nri import Recorder, connected
from tests.support.waiting import until_true

POD = PodSandbox(id="sandbox", uid="uid-1", name="train", namespace="team")


@pytest.fixture
async def folder() -> AsyncIterator[Path]:
    with short_folder() as made:
        yield made


def a_container(name: str) -> Container:
    return Container(id=f"id-{name}", sandbox_id=POD.id, name=name)


async def test_many_containers_are_listed_in_parts_and_arrive_whole(folder: Path) -> None:
    server = NriServer(folder / "nri.sock", objects_per_message=2)
    server.pods[POD.id] = POD
    server.containers = {name: a_container(name) for name in "abcde"}
    recorder = Recorder(update={"a": {"memory.high": "1"}})

    async with server.serving(), connected(folder / "nri.sock", recorder):
        ((pods, containers),) = recorder.listed
        # The plugin has answered; the runtime may have to read it yet.
        await until_true(lambda: bool(server.unified), what="the runtime applies the update")

    assert [pod.uid for pod in pods] == ["uid-1"]
    assert [container.name for container in containers] == list("abcde")
    assert server.unified == {"a": {"memory.high": "1"}}


async def test_an_event_that_nobody_asked_for_is_no_trouble(folder: Path) -> None:
    server = NriServer(folder / "nri.sock")
    async with server.serving(), connected(folder / "nri.sock", Recorder()) as running:
        await server.send_event(99, POD)
        await server.create_container(POD, a_container("main"))
        assert [status.problem for status in running.statuses][-1] is None
        assert server.plugins == ["10-fracgpu"]
