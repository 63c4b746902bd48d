"""The real kube-scheduler asks our extender, and every pod gets an exact card."""

import asyncio
import json
import os
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fracgpu import names
from fracgpu.views import PodView, read_pod
from kube.access import connect_to
from kube.client import KubeClient
from kube.kinds import CONFIGMAPS, EVENTS, NAMESPACES, PODS
from kube.objects import decode_object
from simulator.demo.supervisor import ProcessSpec, Supervisor
from simulator.realapi import RealApiServer, free_ports
from simulator.scheduler_profile import scheduler_configuration
from tests.support.gpu import a_gpu_pod, a_sharing_node, register, some_cards
from tests.support.real_apiserver import real_api_server
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

NODES = ("gpu-1", "gpu-2", "gpu-3")
CARD_MIB = 24_000


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """A real control plane with our extender beside its scheduler."""

    client: KubeClient
    roles: Supervisor

    async def pods(self) -> dict[str, PodView]:
        listing = await self.client.list(PODS)
        views = [read_pod(bytes(raw)) for raw in listing.items]
        return {view.record.name: view for view in views}

    async def bound(self) -> dict[str, PodView]:
        return {name: pod for name, pod in (await self.pods()).items() if pod.record.node}

    async def failures_of(self, pod: str) -> list[str]:
        listing = await self.client.list(EVENTS, namespace="default")
        events: list[dict[str, Any]] = [decode_object(raw) for raw in listing.items]
        return [
            event["message"]
            for event in events
            if event["involvedObject"].get("name") == pod and event["reason"] == "FailedScheduling"
        ]


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with (
        real_api_server(tmp_path) as api,
        connect_to(api.url, token=api.token, ca_file=api.ca_file) as client,
        extender(api, tmp_path, client) as roles,
    ):
        yield World(client=client, roles=roles)


@asynccontextmanager
async def extender(
    api: RealApiServer, workdir: Path, client: KubeClient
) -> AsyncIterator[Supervisor]:
    """Our extender as a process of its own, then the real kube-scheduler, told to ask it."""
    listen, telemetry = free_ports(2)
    kubeconfig = api.kubeconfig(workdir / "admin.kubeconfig")
    await client.create(NAMESPACES, {"metadata": {"name": names.SYSTEM_NAMESPACE}})
    for node in NODES:
        await register(client, a_sharing_node(node, cards=some_cards(node, mib=CARD_MIB)))
    flags = {
        "--kubeconfig": str(kubeconfig),
        "--listen-port": str(listen),
        "--telemetry-port": str(telemetry),
        "--drain-wait-s": "0",
    }
    argv = [sys.executable, "-m", "cli", "run", "scheduler"]
    argv += [word for flag in flags.items() for word in flag]
    spec = ProcessSpec(name="scheduler", argv=argv, env=dict(os.environ))
    roles = Supervisor([spec], log_dir=workdir)
    config = workdir / "kube-scheduler.json"
    url = f"http://127.0.0.1:{listen}"
    config.write_text(json.dumps(scheduler_configuration(extender_url=url, kubeconfig=kubeconfig)))
    async with asyncio.TaskGroup() as group:
        running = group.create_task(roles.run(), name="roles")
        try:
            await until(lambda: is_ready(telemetry), what="the extender is ready", limit_s=40)
            await api.start_scheduler(config)
            yield roles
        finally:
            running.cancel()


async def is_ready(port: int) -> bool:
    def ask() -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=2) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    return await asyncio.to_thread(ask)


def assert_cards_hold(pods: dict[str, PodView], wanted: dict[str, tuple[int, int]]) -> None:
    """Every pod has exactly what it asked on cards of its own node, and no card is over-full."""
    held: dict[str, int] = {}
    for name, pod in pods.items():
        mib, cards = wanted[name]
        assignment = pod.record.assignment
        assert assignment is not None, f"{name} is bound without an assignment"
        (slices,) = assignment.values()
        assert [it.mib for it in slices] == [mib] * cards, name
        assert all(it.card.startswith(f"GPU-{pod.record.node}-") for it in slices), name
        for it in slices:
            held[it.card] = held.get(it.card, 0) + it.mib
    assert max(held.values()) <= CARD_MIB


async def test_twenty_pods_are_bound_to_exact_cards(world: World) -> None:
    wanted = {f"p{n}": ((11_000, 8_000, 3_000)[n % 3], 1 + (n % 5 == 4)) for n in range(20)}

    for name, (mib, cards) in wanted.items():
        await world.client.create(PODS, a_gpu_pod(name, mib=mib, cards=cards))

    async def all_bound() -> bool:
        return len(await world.bound()) == len(wanted)

    await until(all_bound, what="20 pods bound", limit_s=60)
    assert_cards_hold(await world.bound(), wanted)


async def test_memory_free_on_several_cards_is_not_room_for_one_pod_and_the_event_says_so(
    world: World,
) -> None:
    fillers = {f"half-{n}": (13_000, 1) for n in range(12)}
    for name, (mib, cards) in fillers.items():
        await world.client.create(PODS, a_gpu_pod(name, mib=mib, cards=cards))

    async def filled() -> bool:
        return len(await world.bound()) == len(fillers)

    await until(filled, what="one pod on every card", limit_s=60)
    # Each node has 44,000 MiB free, but no card has more than 11,000.
    await world.client.create(PODS, a_gpu_pod("whole", mib=20_000))

    async def refused() -> bool:
        return any(
            "3 node(s) without a fitting card (4 of 4 cards: too little free memory)" in message
            for message in await world.failures_of("whole")
        )

    await until(refused, what="an event that says why", limit_s=60)
    assert "whole" not in await world.bound()
    # Room on one card, not only in sum: the pod goes there without further ado.
    gone = next(iter(fillers))
    await world.client.delete(PODS, gone, namespace="default", grace_s=0)

    async def placed() -> bool:
        return "whole" in await world.bound()

    await until(placed, what="the pod takes the card that was freed", limit_s=60)


async def test_the_extender_killed_in_the_middle_books_nothing_twice(world: World) -> None:
    wanted = {f"p{n}": (7_900, 1) for n in range(36)}  # three to a card: every card is filled
    for number, (name, (mib, cards)) in enumerate(wanted.items()):
        await world.client.create(PODS, a_gpu_pod(name, mib=mib, cards=cards))
        if number == 18:
            world.roles.kill("scheduler")

    async def all_bound() -> bool:
        return len(await world.bound()) == len(wanted)

    await until(all_bound, what="36 pods bound although the extender died", limit_s=120)
    assert_cards_hold(await world.bound(), wanted)
    assert world.roles.starts("scheduler") >= 2


async def test_the_strategy_follows_the_config_map_without_a_restart(world: World) -> None:
    system = names.SYSTEM_NAMESPACE
    await world.client.create(
        CONFIGMAPS,
        {
            "metadata": {"name": names.CONFIG_MAP, "namespace": system},
            "data": {"placement": "strategy: spread\n"},
        },
    )
    wanted = {f"p{n}": (4_000, 1) for n in range(12)}

    # The edit reaches the extender by a watch; the first pods may still be packed.
    async def spread() -> bool:
        for name in wanted:
            await world.client.create(PODS, a_gpu_pod(name, mib=4_000))

        async def all_bound() -> bool:
            return len(await world.bound()) == len(wanted)

        await until(all_bound, what="12 pods bound", limit_s=60)
        cards = {
            it.card
            for pod in (await world.bound()).values()
            for slices in (pod.record.assignment or {}).values()
            for it in slices
        }
        for name in wanted:
            await world.client.delete(PODS, name, namespace="default", grace_s=0)
        return len(cards) == 12

    await until(spread, what="12 pods on 12 cards", limit_s=100)
