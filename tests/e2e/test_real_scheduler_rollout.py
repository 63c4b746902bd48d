"""Pods are placed on and on: through an update of the scheduler, and through a new authority.

Everything is as shipped and real but the nodes: ``tests/support/scheduler_pods.py`` says
what stands in for kubelet and kube-proxy.
"""

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from certs.authority import read
from certs.store import CertStore
from cli.certs import main as fracgpu_certs
from fracgpu import names
from kube.access import connect_to
from kube.client import KubeClient
from kube.errors import NotFound
from kube.kinds import MUTATING_WEBHOOKS, PDBS, PODS, VALIDATING_WEBHOOKS
from kube.objects import decode_object
from simulator.demo.accounts import token_of, write_kubeconfig
from simulator.realapi import RealApiServer
from tests.support.gpu import a_gpu_pod, a_sharing_node, register, some_cards
from tests.support.kubectl import DEPLOY, Kubectl
from tests.support.real_apiserver import real_api_server
from tests.support.roles import running_roles
from tests.support.scheduler_pods import SYSTEM, SchedulerPods, scheduler_pods
from tests.support.waiting import until, until_true

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(420)]

PAUSE_S = 0.5
PATIENCE_S = 60.0  # the promise: no pod waits longer
WITHOUT_NODES = "--controllers=*,-node-lifecycle-controller"  # nobody renews their leases here


@dataclass
class Users:
    """Create a pod now and then, look how long it waits for its card, and delete it."""

    client: KubeClient
    waited_s: dict[str, float] = field(default_factory=dict)
    stopped: asyncio.Event = field(default_factory=asyncio.Event)
    _created_s: dict[str, float] = field(default_factory=dict)

    @property
    def waiting(self) -> dict[str, float]:
        return {name: time.monotonic() - at for name, at in self._created_s.items()}

    async def create(self) -> None:
        for number in range(10_000):
            if self.stopped.is_set():
                return
            name = f"user-{number}"
            await self.client.create(PODS, a_gpu_pod(name, mib=1_000))
            self._created_s[name] = time.monotonic()
            await asyncio.sleep(PAUSE_S)

    async def look(self) -> None:
        while not (self.stopped.is_set() and not self._created_s):
            listed = await self.client.list(PODS, namespace="default")
            for body in map(decode_object, listed.items):
                name = body["metadata"]["name"]
                if not body["spec"].get("nodeName") or name not in self._created_s:
                    continue
                assert names.ASSIGNMENT in body["metadata"]["annotations"], name
                self.waited_s[name] = time.monotonic() - self._created_s.pop(name)
                await self.client.delete(PODS, name, namespace="default", grace_s=0)
            await asyncio.sleep(0.1)

    async def finish(self) -> None:
        """Create no more, and wait for those that still wait."""
        self.stopped.set()
        await until_true(
            lambda: not self._created_s, what="every pod has its card", limit_s=2 * PATIENCE_S
        )

    @property
    def figures(self) -> str:
        return f"{len(self.waited_s)} pods placed, the longest waited {self.longest_s:.1f} s"

    @property
    def longest_s(self) -> float:
        return max(self.waited_s.values())


@asynccontextmanager
async def users(client: KubeClient) -> AsyncIterator[Users]:
    applicants = Users(client=client)
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(applicants.create(), name="create"),
            group.create_task(applicants.look(), name="look"),
        ]
        try:
            yield applicants
        finally:
            for task in tasks:
                task.cancel()


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """A cluster with deploy/ in it."""

    client: KubeClient
    kubectl: Kubectl
    kubeconfig: Path
    pods: SchedulerPods


async def install(api: RealApiServer, client: KubeClient, kubectl: Kubectl) -> None:
    for number in range(2):
        name = f"gpu-{number}"
        await register(client, a_sharing_node(name, cards=some_cards(name, mib=80_000)))
    # A new API server may have no schemas for kubectl yet; it checks the fields itself.
    await kubectl("apply", "--server-side", "--validate=false", "-k", str(DEPLOY))
    # Its pods are not run here, and nobody may be asked for what is not there.
    for kind in (MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS):
        await client.delete(kind, "fracgpu-webhook")
    await api.start_controller_manager(WITHOUT_NODES)


def certs_flags() -> tuple[str, ...]:
    """The shipped flags, and a shorter overlap: a single API server reads at once."""
    (container,) = [
        it
        for it in (DEPLOY / "certs.yaml").read_text().splitlines()
        if it.strip().startswith("args: [run, certs")
    ]
    words = container.strip().removeprefix("args: [run, certs, ").removesuffix("]").split(", ")
    return (*words, "--overlap-s=2")


@asynccontextmanager
async def installed(folder: Path) -> AsyncIterator[World]:
    async with (
        real_api_server(folder) as api,
        connect_to(api.url, token=api.token, ca_file=api.ca_file) as client,
    ):
        kubeconfig = api.kubeconfig(folder / "admin.kubeconfig")
        kubectl = Kubectl.find(kubeconfig)
        await install(api, client, kubectl)
        own = write_kubeconfig(
            folder / "certs.kubeconfig",
            server=api.url,
            token=await token_of(client, "certs"),
            ca_file=api.ca_file,
        )
        async with (
            running_roles({"certs": certs_flags()}, kubeconfig=own, log_dir=folder),
            scheduler_pods(api, client, folder) as pods,
        ):
            world = World(client=client, kubectl=kubectl, kubeconfig=kubeconfig, pods=pods)
            await until(lambda: settled(world), what="certificates and scheduler", limit_s=150)
            yield world


async def settled(world: World) -> bool:
    """Whether both replicas are ready, of the newest template, and a budget says so."""
    try:
        budget = await world.client.get_object(PDBS, "fracgpu-scheduler", namespace=SYSTEM)
    except NotFound:
        return False
    status = budget.get("status", {})
    if (status.get("currentHealthy"), status.get("expectedPods")) != (2, 2):
        return False
    said = await world.kubectl.ask(
        *("-n", SYSTEM, "rollout", "status", "deployment/fracgpu-scheduler", "--watch=false")
    )
    return said.ok and "successfully rolled out" in said.out


async def issuers(client: KubeClient) -> set[str]:
    store = CertStore(client, namespace=SYSTEM)
    found = [
        await store.read(name) for name in ("fracgpu-scheduler-tls", "fracgpu-scheduler-client")
    ]
    return {read(it.data["tls.crt"]).issuer_key_id for it in found if it is not None}


async def test_a_new_authority_and_a_rolling_update_never_stop_placing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with installed(tmp_path) as world:
        before = set(world.pods.kubelet.started)
        async with users(world.client) as applicants:
            await until_true(
                lambda: len(applicants.waited_s) >= 5, what="pods are placed", limit_s=90
            )
            first = await issuers(world.client)
            argv = ["rotate", "--ca", "--limit-s=240", f"--kubeconfig={world.kubeconfig}"]
            argv += ["--webhook-configurations="]  # none is here
            assert await asyncio.to_thread(fracgpu_certs, argv) == 0
            after_rotation = set(world.pods.kubelet.started)
            second = await issuers(world.client)
            placed = len(applicants.waited_s)
            # What trusts the authority before alone would ask nobody any more.
            await until_true(
                lambda: len(applicants.waited_s) >= placed + 10, what="pods go on", limit_s=90
            )
            rotated = applicants.figures

            await world.kubectl("-n", SYSTEM, "rollout", "restart", "deployment/fracgpu-scheduler")
            await until(lambda: settled(world), what="the update ends", limit_s=120)
            await applicants.finish()
        with capsys.disabled():
            sys.stdout.write(f"\na new authority: {rotated}; and an update: {applicants.figures}\n")

    assert applicants.longest_s < PATIENCE_S
    assert not first & second
    # Two more pods for the authority, two more for the update.
    assert len(after_rotation - before) == 2
    assert len(set(world.pods.kubelet.started) - after_rotation) == 2
    # Never two to ask.
    assert max(map(len, world.pods.proxy.seen)) == 1
