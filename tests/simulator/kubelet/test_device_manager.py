"""The simulated device manager against a plugin on a real socket."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest

from deviceplugin.sockets import SocketError
from simulator.background import background
from simulator.kubelet.device_manager import ContainerKey, DeviceError, DeviceManager
from tests.fakes.plugin import RESOURCE, FakePlugin
from tests.support.node import short_folder
from tests.support.waiting import until_true


def a_key(pod: str = "one", container: str = "train") -> ContainerKey:
    return ContainerKey(pod_uid=f"uid-{pod}", namespace="ml", pod=pod, container=container)


@asynccontextmanager
async def a_manager() -> AsyncIterator[tuple[DeviceManager, Path]]:
    with short_folder() as folder:
        (folder / "leftover").write_text("no socket: stays")
        manager = DeviceManager(folder, on_change=lambda: None, seed="s")
        async with background(manager.run()):
            # Starting empties the folder: a plugin that serves earlier would lose its socket.
            await until_true((folder / "kubelet.sock").is_socket, what="kubelet serves")
            yield manager, folder


@asynccontextmanager
async def a_plugin(**devices: str) -> AsyncIterator[tuple[DeviceManager, FakePlugin]]:
    async with a_manager() as (manager, folder):
        plugin = FakePlugin(folder, **devices)
        async with plugin.serving():
            await plugin.register()
            await until_true(
                lambda: manager.amounts().get(RESOURCE, (0, 0))[0] == len(devices),
                what="the plugin's devices are known",
            )
            yield manager, plugin


async def test_a_registered_plugin_is_dialled_back_and_its_devices_are_counted() -> None:
    async with a_plugin(a="Healthy", b="Healthy", c="Unhealthy") as (manager, _):
        assert manager.amounts() == {RESOURCE: (3, 2)}
        assert manager.manages(RESOURCE)
        assert not manager.manages("example.com/other")


async def test_a_plugin_that_is_gone_leaves_its_devices_unhealthy() -> None:
    async with a_manager() as (manager, folder):
        plugin = FakePlugin(folder, a="Healthy")
        async with plugin.serving():
            await plugin.register()
            await until_true(lambda: manager.amounts() == {RESOURCE: (1, 1)}, what="one device")
            grant = await manager.allocate(a_key(), resource=RESOURCE, count=1, reusable=set())

        await until_true(lambda: manager.amounts() == {RESOURCE: (1, 0)}, what="no healthy device")
        with pytest.raises(DeviceError, match="has been stopped"):
            await manager.pre_start(grant)

        async with plugin.serving():
            await plugin.register()
            await until_true(lambda: manager.amounts() == {RESOURCE: (1, 1)}, what="well again")
            await manager.pre_start(grant)


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [({"version": "v1alpha"}, "supported is v1beta1"), ({"resource": "thing"}, "is invalid")],
)
async def test_a_registration_that_makes_no_sense_is_refused(
    fields: dict[str, str], complaint: str
) -> None:
    async with a_manager() as (manager, folder):
        with pytest.raises(grpc.aio.AioRpcError, match=complaint):
            await FakePlugin(folder).register(**fields)  # type: ignore[arg-type]

        assert manager.amounts() == {}


async def test_nobody_gets_a_device_that_is_held_or_sick() -> None:
    async with a_plugin(a="Healthy", b="Unhealthy", c="Healthy") as (manager, _):
        first = await manager.allocate(a_key("one"), resource=RESOURCE, count=1, reusable=set())
        second = await manager.allocate(a_key("two"), resource=RESOURCE, count=1, reusable=set())
        with pytest.raises(DeviceError, match=r"Requested: 1, Available: 0, which is unexpected"):
            await manager.allocate(a_key("three"), resource=RESOURCE, count=1, reusable=set())

        assert first.ids | second.ids == {"a", "c"}
        manager.release("uid-one")
        third = await manager.allocate(a_key("three"), resource=RESOURCE, count=1, reusable=set())
        assert third.ids == first.ids


async def test_what_an_init_container_held_is_used_first() -> None:
    async with a_plugin(**dict.fromkeys("abcdefgh", "Healthy")) as (manager, _):
        init = await manager.allocate(
            a_key(container="prepare"), resource=RESOURCE, count=2, reusable=set()
        )
        app = await manager.allocate(a_key(), resource=RESOURCE, count=3, reusable=set(init.ids))

        assert init.ids < app.ids


async def test_an_ended_pod_stays_listed_while_others_have_its_devices() -> None:
    async with a_plugin(a="Healthy") as (manager, _):
        await manager.allocate(a_key("ended"), resource=RESOURCE, count=1, reusable=set())
        manager.retire("uid-ended")

        grant = await manager.allocate(a_key("next"), resource=RESOURCE, count=1, reusable=set())

        held = {
            key.pod: [grant.ids for grant in grants]
            for key, grants in manager.allocations().items()
        }
        assert held == {"ended": [grant.ids], "next": [grant.ids]}


async def test_a_forgotten_pod_keeps_its_devices_and_others_get_them_until_a_pod_has_ended() -> (
    None
):
    async with a_plugin(a="Healthy") as (manager, _):
        first = await manager.allocate(a_key("one"), resource=RESOURCE, count=1, reusable=set())
        manager.forget("uid-one")

        second = await manager.allocate(a_key("two"), resource=RESOURCE, count=1, reusable=set())

        assert manager.allocations() == {a_key("one"): [first], a_key("two"): [second]}
        assert first.ids == second.ids
        manager.release("uid-two")
        with pytest.raises(DeviceError, match="Available: 0"):
            await manager.allocate(a_key("three"), resource=RESOURCE, count=1, reusable=set())


async def test_a_refused_allocation_holds_nothing() -> None:
    async with a_plugin(a="Healthy") as (manager, plugin):
        plugin.allocate_refusal = "no"
        with pytest.raises(DeviceError, match="code = INTERNAL desc = no"):
            await manager.allocate(a_key(), resource=RESOURCE, count=1, reusable=set())
        plugin.allocate_refusal = ""

        grant = await manager.allocate(a_key("two"), resource=RESOURCE, count=1, reusable=set())
        assert grant.ids == {"a"}


@pytest.mark.parametrize("call", ["Allocate", "PreStartContainer"])
async def test_a_call_that_the_plugins_death_cuts_short_is_refused(call: str) -> None:
    """Kubelet closes the connection when the stream ends, and with it every call on it."""
    async with a_plugin(a="Healthy", b="Healthy") as (manager, plugin):
        grant = await manager.allocate(a_key(), resource=RESOURCE, count=1, reusable=set())
        plugin.answering.clear()

        async def ask() -> None:
            if call == "Allocate":
                await manager.allocate(a_key("two"), resource=RESOURCE, count=1, reusable=set())
            else:
                await manager.pre_start(grant)

        async with asyncio.TaskGroup() as group:
            asking = group.create_task(_refusal_of(ask()))
            await until_true(lambda: plugin.calls == 2, what="the plugin is asked")
            plugin.end_listing()

        assert call in asking.result()
        assert "connection is closing" in asking.result()


async def _refusal_of(call: Awaitable[None]) -> str:
    with pytest.raises(DeviceError) as caught:
        await call
    return str(caught.value)


async def test_a_call_whose_pod_is_deleted_ends_with_it() -> None:
    async with a_plugin(a="Healthy") as (manager, plugin):
        plugin.answering.clear()
        async with asyncio.TaskGroup() as group:
            asking = group.create_task(
                manager.allocate(a_key(), resource=RESOURCE, count=1, reusable=set())
            )
            await until_true(lambda: plugin.calls == 1, what="the plugin is asked")
            asking.cancel()

        assert asking.cancelled()


async def test_starting_empties_the_folder_of_sockets_and_of_nothing_else() -> None:
    async with a_manager() as (_, folder):
        plugin = FakePlugin(folder)
        async with plugin.serving("old.sock"):
            manager = DeviceManager(folder, on_change=lambda: None, seed="s")
            async with background(manager.run()):
                await until_true(
                    lambda: not (folder / "old.sock").exists(), what="the old socket is gone"
                )
            assert (folder / "leftover").exists()


async def test_a_folder_too_deep_for_a_socket_is_refused_with_the_reason() -> None:
    manager = DeviceManager(Path("/tmp") / ("d" * 100), on_change=lambda: None, seed="s")  # noqa: S108 - never made

    with pytest.raises(SocketError, match="want at most 107: use a folder with a shorter path"):
        await manager.run()
