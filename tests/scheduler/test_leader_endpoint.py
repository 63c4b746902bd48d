"""The leader's EndpointSlice: its own address, and never over a successor's."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kube.access import connect
from kube.client import KubeClient
from kube.errors import KubeError
from kube.kinds import ENDPOINT_SLICES, NAMESPACES
from scheduler.leader_endpoint import Endpoint, LeaderEndpoint
from simulator.apiserver.server import ApiServer
from tests.fakes.clock import VirtualClock
from tests.support.waiting import until

SYSTEM, SERVICE = "fracgpu-system", "fracgpu-scheduler-leader"


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[KubeClient]:
    async with ApiServer.start() as api, connect(api.kubeconfig(tmp_path / "config")) as client:
        await client.create(NAMESPACES, {"metadata": {"name": SYSTEM}})
        yield client


@dataclass
class Leadership:
    """Whether a replica leads."""

    held: bool = True


def an_announcement(
    client: KubeClient,
    address: str = "192.0.2.1",
    *,
    leadership: Leadership | None = None,
    clock: VirtualClock | None = None,
) -> LeaderEndpoint:
    leads = leadership or Leadership()
    return LeaderEndpoint(
        client,
        clock or VirtualClock(),
        service=SERVICE,
        namespace=SYSTEM,
        endpoint=Endpoint(address=address, port=9404, node="n1"),
        leads=lambda: leads.held,
    )


@asynccontextmanager
async def running(announcement: LeaderEndpoint) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as group:
        task = group.create_task(announcement.run(), name="announcement")
        try:
            yield
        finally:
            task.cancel()


async def stored(client: KubeClient) -> dict[str, Any]:
    try:
        return await client.get_object(ENDPOINT_SLICES, SERVICE, namespace=SYSTEM)
    except KubeError:
        return {"endpoints": None}


async def until_announced(client: KubeClient, *addresses: str) -> None:
    async def holds() -> bool:
        found = (await stored(client))["endpoints"]
        return found is not None and [endpoint["addresses"][0] for endpoint in found] == list(
            addresses
        )

    await until(holds, what=f"the slice has {addresses}")


async def test_the_slice_is_one_that_kube_proxy_reads_and_no_controller_minds(
    client: KubeClient,
) -> None:
    async with running(an_announcement(client)):
        await until_announced(client, "192.0.2.1")
        found = await stored(client)

    assert found["metadata"]["labels"] == {
        "kubernetes.io/service-name": SERVICE,
        "endpointslice.kubernetes.io/managed-by": "fracgpu-scheduler",
    }
    assert found["addressType"] == "IPv4"
    assert found["ports"] == [{"name": "extender", "port": 9404, "protocol": "TCP"}]
    assert found["endpoints"][0]["conditions"]["ready"] is True


async def test_what_a_dead_leader_left_is_replaced_and_the_own_taken_back(
    client: KubeClient,
) -> None:
    left: dict[str, Any] = {
        "metadata": {"name": SERVICE, "namespace": SYSTEM, "labels": {"somebody": "else"}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": ["192.0.2.9"]}],
        "ports": [],
    }
    await client.create(ENDPOINT_SLICES, left)

    async with running(an_announcement(client)):
        await until_announced(client, "192.0.2.1")
        assert (await stored(client))["metadata"]["labels"]["somebody"] == "else"
    await until_announced(client)


async def test_an_address_of_the_other_family_needs_a_new_slice(client: KubeClient) -> None:
    async with running(an_announcement(client, "192.0.2.1")):
        await until_announced(client, "192.0.2.1")
    async with running(an_announcement(client, "2001:db8::1")):
        await until_announced(client, "2001:db8::1")
        assert (await stored(client))["addressType"] == "IPv6"


async def test_an_edit_by_somebody_is_undone(client: KubeClient) -> None:
    clock = VirtualClock()
    async with running(an_announcement(client, clock=clock)):
        await until_announced(client, "192.0.2.1")
        found = await stored(client)
        await client.replace(ENDPOINT_SLICES, {**found, "endpoints": []})
        await clock.wait_for_sleepers(1)
        await clock.advance(5)
        await until_announced(client, "192.0.2.1")


async def test_who_lost_the_lease_writes_nothing_and_takes_nothing_of_its_successor_away(
    client: KubeClient,
) -> None:
    clock, leadership = VirtualClock(), Leadership()
    async with running(an_announcement(client, "192.0.2.1", leadership=leadership, clock=clock)):
        await until_announced(client, "192.0.2.1")
        leadership.held = False
        async with running(an_announcement(client, "192.0.2.2")):
            await until_announced(client, "192.0.2.2")
            await clock.wait_for_sleepers(1)
            await clock.advance(5)
            await clock.wait_for_sleepers(1)
            await until_announced(client, "192.0.2.2")
            found = await stored(client)
            # As a successor that is killed leaves it.
            await client.replace(
                ENDPOINT_SLICES, {**found, "metadata": {**found["metadata"], "labels": {}}}
            )
    await until_announced(client, "192.0.2.2")


async def test_an_api_server_that_refuses_is_asked_again(client: KubeClient) -> None:
    class Refusing:
        def __init__(self) -> None:
            self.asked = 0

        def __getattr__(self, verb: str) -> Any:
            return getattr(client, verb)

        async def get_object(self, *words: Any, **fields: Any) -> dict[str, Any]:
            self.asked += 1
            if self.asked == 1:
                raise KubeError(verb="GET", path="/x", status=403, reason="Forbidden", message="no")
            return await client.get_object(*words, **fields)

    clock = VirtualClock()
    announcement = an_announcement(Refusing(), clock=clock)  # type: ignore[arg-type]
    async with running(announcement):
        await clock.wait_for_sleepers(1)
        await clock.advance(1)
        await until_announced(client, "192.0.2.1")
