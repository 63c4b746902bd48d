"""What the rebalancer may do by deploy/ is what it does, by the audit log of a real API server."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from component.config_watcher import ConfigWatcher
from fracgpu import names
from fracgpu.state.move_object import OwnerReference
from kube.access import connect_to
from kube.client import KubeClient
from kube.event_correlator import EventCorrelator
from kube.events import EventRecorder, Regarding
from kube.kinds import (
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    CONFIGMAPS,
    LEASES,
    NAMESPACES,
    NODES,
    REPLICASETS,
    ROLE_BINDINGS,
    ROLES,
    SERVICE_ACCOUNTS,
)
from kube.leader_election import LeaderElector
from process.clock import SystemClock
from rebalancer.moves.observer import Owners
from rebalancer.moves.record import OWNER_KINDS
from rebalancer.moves.steps import EvictionOutcome, OwnerFacts
from simulator.demo.service_accounts import deployed, issue_token
from tests.support.moving import NAMESPACE, SurgeCluster, a_surge_cluster
from tests.support.permissions import audit_flags, calls, missing, permissions, spare
from tests.support.real_apiserver import real_api_server
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

ACCOUNT: Final = "fracgpu-rebalancer"
SYSTEM: Final = names.SYSTEM_NAMESPACE
CLOCK: Final = SystemClock()


async def install_account(admin: KubeClient) -> None:
    """Create the account that deploy/ gives the rebalancer, with its rights and no others."""
    await admin.create(NAMESPACES, {"metadata": {"name": SYSTEM}})
    for kind in (SERVICE_ACCOUNTS, CLUSTER_ROLES, CLUSTER_ROLE_BINDINGS, ROLES, ROLE_BINDINGS):
        for body in deployed(kind.kind):
            if body["metadata"]["name"] == ACCOUNT:
                await admin.create(kind, body)


@asynccontextmanager
async def running(work: Callable[[], Coroutine[Any, Any, None]]) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as group:
        task = group.create_task(work())
        yield
        task.cancel()


async def lead(client: KubeClient) -> None:
    """Take the Lease, and renew it once."""
    election = LeaderElector(client, CLOCK, name=ACCOUNT, namespace=SYSTEM, identity="one")

    async def renewed() -> bool:
        spec = (await client.get_object(LEASES, ACCOUNT, namespace=SYSTEM))["spec"]
        return bool(spec["renewTime"] != spec["acquireTime"])

    async with running(election.run):
        await election.wait_leading()
        await until(renewed, what="the Lease is renewed", limit_s=30)


async def follow_config(admin: KubeClient, client: KubeClient) -> None:
    """See an edit of the ConfigMap."""
    changes: list[str] = []
    watcher = ConfigWatcher(
        client,
        name=names.CONFIG_MAP,
        namespace=SYSTEM,
        key="rebalancer",
        parse=str,
        default="",
        on_change=changes.append,
    )
    async with running(watcher.run):
        await watcher.wait_synced()
        body = {"metadata": {"name": names.CONFIG_MAP}, "data": {"rebalancer": "mode: off"}}
        await admin.create(CONFIGMAPS, body, namespace=SYSTEM)

        async def edited() -> bool:
            return bool(changes)

        await until(edited, what="the edit is seen", limit_s=30)


async def tell_twice(client: KubeClient) -> None:
    """Write an Event, and count it up."""
    recorder = EventRecorder(client, "rebalancer", CLOCK, correlator=EventCorrelator())
    for _ in range(2):
        await recorder.emit(
            Regarding(kind=NODES, name="n1", namespace=""), reason="HotCardDetected", note="n1/0"
        )
    assert recorder.failed == 0


async def read_controllers(client: KubeClient) -> None:
    """Ask for a controller of each kind whose pods may be moved."""
    for kind in OWNER_KINDS:
        reference = OwnerReference(api_version="v1", kind=kind, name="gone", uid="u")
        found = await Owners(client).read(reference, namespace=NAMESPACE)
        assert found == OwnerFacts(there=False)
    above = {"kind": "Deployment", "name": "gone", "uid": "u", "controller": True}
    metadata = {"name": "gone", "namespace": NAMESPACE, "ownerReferences": [above]}
    await Owners(client).facts({"metadata": metadata, "spec": {}}, kind=REPLICASETS.kind)


async def move(cluster: SurgeCluster) -> None:
    """Give a surge up without a trace, so that the janitor restores the pod, and evict it then.

    Every method and mode of a move makes these calls and no others.
    """
    await cluster.surge()
    planned = cluster.rig.record().move
    await cluster.rig.store.forget(cluster.rig.record())
    await cluster.rig.tick(60)
    await cluster.wait_owned()
    assert (await cluster.rig.evictor.evict(planned)).outcome is EvictionOutcome.ALLOWED
    await cluster.wait_gone("pod-a")


async def test_the_rebalancer_may_do_what_it_does_and_nothing_else(tmp_path: Path) -> None:
    async with (
        real_api_server(tmp_path, flags=audit_flags(tmp_path)) as api,
        connect_to(api.url, token=api.token, ca_file=api.ca_file) as admin,
    ):
        await install_account(admin)
        token = await issue_token(admin, namespace=SYSTEM, account=ACCOUNT)
        async with connect_to(api.url, token=token, ca_file=api.ca_file) as client:
            await lead(client)
            await follow_config(admin, client)
            async with a_surge_cluster(admin, account=client) as cluster:
                await move(cluster)
            await tell_twice(client)
            await read_controllers(client)
    made = calls(tmp_path)

    assert missing(made) == set(), "deploy/ lacks a permission"
    granted = {each for each in permissions() if each.role == "rebalancer"}
    assert sorted(map(str, spare(granted, made))) == [], "deploy/ grants what is not used"
