"""The whole role with the embedded API server."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from fracgpu import names
from kube.client import KubeClient
from kube.kinds import CONFIGMAPS, ENDPOINT_SLICES, EVENTS, MOVES, NAMESPACES, PODS
from kube.objects import decode_object
from process.clock import SystemClock
from process.lifecycle import run_until_stopped
from scheduler.service import build
from scheduler.settings import SchedulerSettings
from simulator.demo.definitions import install_definitions
from simulator.envtest.ports import free_ports
from tests.support.gpu import a_gpu_pod, a_sharing_node, register
from tests.support.moves import move_body, move_of
from tests.support.waiting import until


class Replica:
    """One running extender."""

    def __init__(self, kubeconfig: Path, identity: str) -> None:
        listen, telemetry = free_ports(2)
        self.stop = asyncio.Event()
        self.url = f"http://127.0.0.1:{listen}"
        self.telemetry = f"http://127.0.0.1:{telemetry}"
        self.settings = SchedulerSettings(
            kubeconfig=str(kubeconfig),
            identity=identity,
            listen_port=listen,
            telemetry_host="127.0.0.1",
            telemetry_port=telemetry,
            drain_wait_s=0.0,
            log_level="warning",
        )

    def announced(self, address: str) -> "Replica":
        """Return the same replica, publishing its address as the Service's endpoint."""
        self.settings = replace(
            self.settings, announce_service="fracgpu-scheduler-leader", announce_address=address
        )
        return self

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        service = build(self.settings)
        async with asyncio.TaskGroup() as group:
            task = group.create_task(
                run_until_stopped(service, SystemClock(), stop=self.stop), name="service"
            )
            try:
                yield
            finally:
                self.stop.set()
        assert task.result() == 0

    def with_page(self) -> "Replica":
        """Return the same replica with a page."""
        (port,) = free_ports(1)
        self.settings = replace(self.settings, page_port=port)
        return self

    async def page(self, path: str = "/") -> tuple[int, str]:
        url = f"http://127.0.0.1:{self.settings.page_port}{path}"
        async with aiohttp.ClientSession() as http, http.get(url) as answer:
            return answer.status, await answer.text()

    async def events_until(self, text: str) -> None:
        """Read the page's stream until it has a text."""
        url = f"http://127.0.0.1:{self.settings.page_port}/events"
        read = b""
        async with aiohttp.ClientSession() as http, http.get(url) as answer:
            async with asyncio.timeout(20):
                while text.encode() not in read:
                    chunk = await answer.content.readany()
                    assert chunk, "the stream ended"
                    read += chunk

    async def readiness(self) -> tuple[int, str]:
        try:
            async with (
                aiohttp.ClientSession() as http,
                http.get(f"{self.telemetry}/readyz") as answer,
            ):
                return answer.status, await answer.text()
        except aiohttp.ClientError:
            return 0, ""

    async def until_ready(self) -> None:
        async def ready() -> bool:
            return (await self.readiness())[0] == 200

        await until(ready, what=f"{self.settings.identity} is ready")

    async def ask(self, verb: str, args: object) -> Any:
        async with (
            aiohttp.ClientSession() as http,
            http.post(f"{self.url}/{verb}", data=json.dumps(args)) as answer,
        ):
            assert answer.status == 200
            return await answer.json()


@pytest.fixture
async def client(kube: KubeClient) -> KubeClient:
    await kube.create(NAMESPACES, {"metadata": {"name": names.SYSTEM_NAMESPACE}})
    await register(kube, a_sharing_node("n"))
    return kube


async def a_pod(client: KubeClient, name: str, *, mib: int) -> dict[str, Any]:
    return await client.create(PODS, a_gpu_pod(name, mib=mib))


def binding(pod: dict[str, Any]) -> dict[str, str]:
    meta = pod["metadata"]
    return {
        "PodName": meta["name"],
        "PodNamespace": meta["namespace"],
        "PodUID": meta["uid"],
        "Node": "n",
    }


async def assignment(client: KubeClient, name: str) -> Any:
    pod = await client.get_object(PODS, name, namespace="default")
    return json.loads(pod["metadata"]["annotations"][names.ASSIGNMENT])


async def test_the_next_leader_lists_afresh_and_knows_what_the_last_one_bound(
    kubeconfig: Path, client: KubeClient
) -> None:
    first, second = Replica(kubeconfig, "a"), Replica(kubeconfig, "b")
    async with first.running():
        await first.until_ready()
        async with second.running():
            await second.until_ready()
            pod = await a_pod(client, "p", mib=20_000)
            refused = await second.ask("bind", binding(pod))
            assert refused == {"Error": "another replica leads"}
            assert await first.ask("bind", binding(pod)) == {"Error": ""}

            first.stop.set()
            later = binding(await a_pod(client, "q", mib=20_000))

            async def bound() -> bool:
                return bool(await second.ask("bind", later) == {"Error": ""})

            await until(bound, what="the second leads and binds")

    stored = await client.get_object(PODS, "p", namespace="default")
    assert stored["spec"]["nodeName"] == "n"
    assert await assignment(client, "p") == {"train": [{"card": "GPU-n-0", "mib": 20_000}]}
    assert await assignment(client, "q") == {"train": [{"card": "GPU-n-1", "mib": 20_000}]}


async def test_the_strategy_follows_the_config_map_and_a_bad_edit_keeps_the_last_good_one(
    kubeconfig: Path, client: KubeClient
) -> None:
    where = {"name": names.CONFIG_MAP, "namespace": names.SYSTEM_NAMESPACE}
    await client.create(CONFIGMAPS, {"metadata": where, "data": {"placement": "strategy: spread"}})
    replica = Replica(kubeconfig, "a")
    async with replica.running():
        await replica.until_ready()
        for name in ("p", "q"):
            pod = await a_pod(client, name, mib=1000)
            assert await replica.ask("bind", binding(pod)) == {"Error": ""}
        assert await assignment(client, "q") == {"train": [{"card": "GPU-n-1", "mib": 1000}]}

        await client.patch(
            CONFIGMAPS,
            where["name"],
            {"data": {"placement": "strategy: sideways"}},
            namespace=where["namespace"],
        )

        async def refused() -> bool:
            async with (
                aiohttp.ClientSession() as http,
                http.get(f"{replica.telemetry}/metrics") as answer,
            ):
                return "fracgpu_scheduler_config_valid 0.0" in await answer.text()

        await until(refused, what="the bad edit is noticed")

        async def reported() -> bool:
            listing = await client.list(EVENTS, namespace=where["namespace"])
            return [decode_object(raw)["message"] for raw in listing.items] == [
                "key placement is not in use, the last good one is: strategy is sideways; want "
                "one of pack, spread, least-waste, topology, load-aware"
            ]

        await until(reported, what="an event on the ConfigMap tells of it")
        pod = await a_pod(client, "r", mib=1000)
        assert await replica.ask("bind", binding(pod)) == {"Error": ""}
    assert await assignment(client, "r") == {"train": [{"card": "GPU-n-2", "mib": 1000}]}


async def leader_addresses(client: KubeClient) -> list[str]:
    """Return the addresses that kube-proxy would forward to."""
    listed = await client.list(
        ENDPOINT_SLICES,
        namespace=names.SYSTEM_NAMESPACE,
        label_selector="kubernetes.io/service-name=fracgpu-scheduler-leader",
    )
    slices = [json.loads(bytes(raw)) for raw in listed.items]
    return [
        address for found in slices for end in found["endpoints"] for address in end["addresses"]
    ]


async def test_both_replicas_are_ready_and_only_the_leader_is_asked(
    kubeconfig: Path, client: KubeClient
) -> None:
    first = Replica(kubeconfig, "a").announced("192.0.2.1")
    second = Replica(kubeconfig, "b").announced("192.0.2.2")

    def leads_to(addresses: list[str]) -> Callable[[], Awaitable[bool]]:
        async def holds() -> bool:
            return await leader_addresses(client) == addresses

        return holds

    async with second_after(first, second):
        await until(leads_to(["192.0.2.1"]), what="the first is announced")
        assert [(await replica.readiness())[0] for replica in (first, second)] == [200, 200]
        first.stop.set()
        await until(leads_to(["192.0.2.2"]), what="the second is announced", limit_s=40)
    assert await leader_addresses(client) == []


@asynccontextmanager
async def second_after(first: Replica, second: Replica) -> AsyncIterator[None]:
    async with first.running():
        await first.until_ready()
        async with second.running():
            await second.until_ready()
            yield


async def test_the_leader_serves_the_page_and_the_other_replica_says_where_it_is(
    kubeconfig: Path, client: KubeClient
) -> None:
    leader, standby = Replica(kubeconfig, "a").with_page(), Replica(kubeconfig, "b").with_page()
    async with leader.running():
        await leader.until_ready()
        async with standby.running():
            await standby.until_ready()
            assert (await leader.page())[0] == 200
            status, text = await standby.page()

    assert status == 503
    assert "another replica leads, and the page is there" in text
    assert "Lease fracgpu-scheduler-extender in fracgpu-system" in text


async def test_the_page_shows_who_holds_a_card_and_why_another_pod_waits(
    kubeconfig: Path, client: KubeClient
) -> None:
    replica = Replica(kubeconfig, "a").with_page()
    async with replica.running():
        await replica.until_ready()
        bound = await a_pod(client, "p", mib=20_000)
        assert await replica.ask("bind", binding(bound)) == {"Error": ""}
        waiting = await a_pod(client, "q", mib=30_000)
        refused = await replica.ask("filter", {"Pod": waiting, "NodeNames": ["n"]})
        assert refused["NodeNames"] == []

        await replica.events_until('"pod":"default/p","mib":20000')
        await replica.events_until("1 too little free memory; fracgpu explain says more")
        status, text = await replica.page("/explain?namespace=default&pod=q")

    assert status == 200
    assert "too little free memory for 30000 MiB" in text


async def test_the_page_shows_a_move_and_the_rebalancers_line_for_heat(
    kubeconfig: Path, client: KubeClient
) -> None:
    where = {"name": names.CONFIG_MAP, "namespace": names.SYSTEM_NAMESPACE}
    await client.create(CONFIGMAPS, {"metadata": where, "data": {"rebalancer": "hotRatio: 0.73"}})
    await install_definitions(client)
    await client.create(MOVES, move_body(move_of("m1")))
    replica = Replica(kubeconfig, "a").with_page()
    async with replica.running():
        await replica.until_ready()
        await replica.events_until('"hotRatio":0.73')
        await replica.events_until('"key":"move/m1"')
