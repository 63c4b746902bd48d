"""The soak, in short: real replicas over a stand-in API server whose pods come and go."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from benchmarks.figure import Figure
from benchmarks.fixtures.canned_api import a_node, a_pending_pod, node_name
from benchmarks.fixtures.living_api import LivingApi
from benchmarks.soak import fault_of, soak
from fracgpu.state.pod_info import PodInfo, decode_pod_info
from kube.access import connect_to
from kube.client import KubeClient
from kube.errors import Conflict, NotFound
from kube.informer import Change, Informer
from kube.kinds import LEASES, PODS
from simulator.envtest.ports import free_ports
from tests.support.waiting import until_true


@asynccontextmanager
async def serving() -> AsyncIterator[tuple[LivingApi, KubeClient]]:
    api = LivingApi([a_node(0)], {})
    (port,) = free_ports(1)
    runner = web.AppRunner(api.app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", port).start()
        async with connect_to(f"http://127.0.0.1:{port}") as client:
            yield api, client
    finally:
        await runner.cleanup()


def a_binding(pod: PodInfo) -> dict[str, object]:
    record = pod.record
    return {
        "metadata": {"uid": record.uid, "resourceVersion": record.resource_version},
        "target": {"name": node_name(0)},
    }


async def test_who_follows_the_pods_sees_them_come_bound_and_gone() -> None:
    changes: list[Change[PodInfo]] = []
    async with serving() as (api, client), asyncio.TaskGroup() as group:
        informer = Informer(client, PODS, decode=decode_pod_info, on_change=changes.append)
        following = group.create_task(informer.run(), name="pods")
        await informer.wait_synced()

        api.create(a_pending_pod(1))
        await until_true(lambda: len(changes) == 1, what="the new pod")
        stale = changes[0].object
        await client.patch(
            PODS,
            "pending-1",
            {"metadata": {"annotations": {"a": "b"}}},
            namespace="default",
            subresource="status",
        )
        with pytest.raises(Conflict):  # the mark has changed the resourceVersion
            await client.bind(a_binding(stale), namespace="default", name="pending-1")
        await until_true(lambda: len(changes) == 2, what="the mark")
        marked = changes[1].object
        await client.bind(a_binding(marked), namespace="default", name="pending-1")
        api.delete(api.pod("default", "pending-1"))

        await until_true(lambda: len(changes) == 4, what="the Binding and the end")
        following.cancel()
    assert [change.type.value for change in changes] == ["ADDED", "MODIFIED", "MODIFIED", "DELETED"]
    assert changes[2].object.record.node == node_name(0)
    assert api.bound == 1


async def test_a_lease_has_one_holder() -> None:
    lease = {"metadata": {"name": "l", "namespace": "n"}, "spec": {"holderIdentity": "first"}}
    async with serving() as (api, client):
        with pytest.raises(NotFound):
            await client.get(LEASES, "l", namespace="n")
        stored = await client.create(LEASES, lease)
        taken = {**stored, "spec": {"holderIdentity": "second"}}
        await client.replace(LEASES, taken)
        with pytest.raises(Conflict):
            await client.replace(LEASES, {**stored, "spec": {"holderIdentity": "third"}})

        assert api.holder("l") == "second"


@pytest.mark.slow
def test_every_pod_is_placed_although_the_leader_changes_twice() -> None:
    figures = {figure.name: figure for figure in soak(pods=40, minutes=0.05, warm_up_s=0)}

    assert figures["soak.rate"].note.startswith("40 pods")
    assert figures["soak.rss_at_end"].value > 0
    assert figures["soak.longest_answer_at_end"].value > 0


@pytest.mark.parametrize(("growth", "wrong"), [(0.98, False), (1.1, False), (1.11, True)])
def test_memory_that_grew_by_more_than_a_tenth_is_a_fault(growth: float, wrong: bool) -> None:
    figure = Figure(name="soak.rss_growth", value=growth, unit="ratio")

    assert bool(fault_of([figure])) is wrong
