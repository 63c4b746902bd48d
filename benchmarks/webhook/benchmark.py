"""CPU time of a review beside an echo's, and of kube-apiserver with FracGPU and without.

A review is compared with a bare aiohttp handler that returns the body, in short blocks in turn.
Then two real control planes run side by side: one with the policies and webhook configurations of
``deploy/`` and the real webhook, one without any object of ours. Pods are created in each in turn,
in blocks, and only the CPU time that its kube-apiserver spends during its own blocks counts, less
what it spends in as long a time without requests; so other load on the machine changes the time
that a run takes, and hardly the ratio. Each figure is the sum over all blocks, which has the
garbage collections in it.
Without KUBEBUILDER_ASSETS it only says that it needs them.
"""

import asyncio
import base64
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.figure import Figure
from benchmarks.fixtures.http_caller import Caller, connects, request_bytes
from benchmarks.fixtures.live_process import cpu_s, running
from benchmarks.fixtures.live_webhook import PLAIN, create_objects, live_webhook, simulated_webhook
from benchmarks.fixtures.reviews import a_review
from certs.authority import Pair, make_ca, make_serving
from fracgpu import names
from kube.access import connect_to
from kube.client import KubeClient
from kube.errors import Forbidden
from kube.kinds import (
    CONFIGMAPS,
    MUTATING_WEBHOOKS,
    NAMESPACES,
    PODS,
    SERVICE_ACCOUNTS,
    VALIDATING_WEBHOOKS,
)
from process.clock import SystemClock
from simulator.demo.service_accounts import account_of, deployed, install_rights
from simulator.envtest.control_plane import ASSETS_ENV, ControlPlane, find_assets
from simulator.envtest.ports import free_ports

SLOW: Final = True  # a minute or two, with two real control planes

_CALLERS: Final = 4
_READY_LIMIT_S: Final = 60.0
_POLL_S: Final = 0.2
_IDLE_S: Final = 5.0  # before each row
_ECHO_BLOCKS, _ECHO_CALLS = 20, 200
# As kube-apiserver has it by default; ControlPlane turns off what needs a controller manager.
_FLAGS: Final = {"disable-admission-plugins": None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One kind of pod.

    Attributes:
        notes: annotations.
        creates: in each block.
        blocks: on each of the two control planes.
    """

    name: str
    notes: dict[str, str]
    creates: int
    blocks: int = 6


def ordinary_notes(count: int) -> dict[str, str]:
    """Return *count* annotations that mean nothing to FracGPU; of 4,000 of them 176 KiB.

    The API server takes 256 KiB of annotations, with their keys.
    """
    return {f"example.com/an-ordinary-annotation-{number:05}": "value" for number in range(count)}


ROWS: Final = (
    Row(name="asks_for_nothing", notes={}, creates=50, blocks=30),
    Row(name="with_a_share", notes={names.FRACTION: "0.5"}, creates=50, blocks=24),
    Row(name="4000_annotations", notes=ordinary_notes(4_000), creates=6),
)


@dataclass(slots=True, kw_only=True)
class _Spent:
    cpu_s: float = 0.0
    wall_s: float = 0.0
    creates: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cluster:
    api: ControlPlane
    client: KubeClient
    idle: _Spent = field(default_factory=_Spent)
    spent: dict[str, _Spent] = field(default_factory=dict)

    async def create(self, row: Row, *, block: int) -> None:
        """Create the pods of one block, and count the CPU time of kube-apiserver meanwhile."""
        spent = self.spent.setdefault(row.name, _Spent())
        pending = [_a_pod(row, f"{block}-{number}") for number in range(row.creates)]
        with self._counted(spent):
            async with asyncio.TaskGroup() as group:
                for _ in range(_CALLERS):
                    group.create_task(self._create_each(pending))
        spent.creates += row.creates

    async def rest(self) -> None:
        """Count the CPU time of kube-apiserver while nobody asks it for anything."""
        with self._counted(self.idle):
            await asyncio.sleep(_IDLE_S)

    def cpu_ms(self, row: Row) -> float:
        """Return the CPU time of one create, in milliseconds."""
        spent = self.spent[row.name]
        idle_s = spent.wall_s * self.idle.cpu_s / self.idle.wall_s
        return (spent.cpu_s - idle_s) * 1000 / spent.creates

    @contextmanager
    def _counted(self, spent: _Spent) -> Iterator[None]:
        cpu_before_s, began_s = self._cpu_s, time.monotonic()
        yield
        spent.cpu_s += self._cpu_s - cpu_before_s
        spent.wall_s += time.monotonic() - began_s

    async def _create_each(self, pending: list[dict[str, Any]]) -> None:
        while pending:
            await self.client.create(PODS, pending.pop(), namespace=PLAIN)

    @property
    def _cpu_s(self) -> float:
        return cpu_s(self.api.pids["kube-apiserver"])


def figures() -> Iterator[Figure]:
    """Yield the figures; see ``benchmarks.figure.Benchmark``."""
    yield asyncio.run(beside_echo(_ECHO_BLOCKS))
    value = os.environ.get(ASSETS_ENV)
    if not value:
        sys.stderr.write(f"bench: the rest needs {ASSETS_ENV}; not measured\n")
        return
    yield from asyncio.run(measured(find_assets(value), ROWS))


async def beside_echo(blocks: int) -> Figure:
    """Return how many times the CPU time of the echo a review takes."""
    request = request_bytes("/mutate", json.dumps(a_review()).encode())
    (port,) = free_ports(1)
    with tempfile.TemporaryDirectory() as folder:
        log, words = Path(folder, "echo.log"), (str(port), f"{folder}/serving.pem")
        async with (
            simulated_webhook(Path(folder)) as webhook,
            running(log, "benchmarks.webhook.echo", *words, ready=partial(connects, port)) as echo,
            Caller(webhook.port, webhook.trust) as first,
            Caller(port, webhook.trust) as second,
        ):
            ratios: list[float] = []
            for _ in range(blocks + 1):  # the first one warms up
                used_s: list[float] = []
                for caller, pid in ((first, webhook.process.pid), (second, echo.pid)):
                    before_s = cpu_s(pid)
                    for _ in range(_ECHO_CALLS):
                        await caller.timed_ms(request)
                    used_s.append(cpu_s(pid) - before_s)
                ratios.append(used_s[0] / used_s[1])
    note = (
        f"median of {blocks} blocks of {_ECHO_CALLS} reviews; want at most 2.5; "
        f"load average {os.getloadavg()[0]:.1f}"
    )
    ratio = round(statistics.median(ratios[1:]), 2)
    return Figure(name="webhook.echo_cpu", value=ratio, unit="ratio", note=note)


async def measured(assets: Path, rows: Sequence[Row]) -> list[Figure]:
    """Return the figures of *rows*, from pods that are created in both clusters in turn."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        bare = await stack.enter_async_context(_cluster(assets, folder / "bare"))
        ours = await stack.enter_async_context(_cluster(assets, folder / "ours"))
        await stack.enter_async_context(_fracgpu(ours, folder))
        await bare.client.create(NAMESPACES, {"metadata": {"name": PLAIN}})
        for cluster in (bare, ours):
            account = {"metadata": {"name": "default", "namespace": PLAIN}}
            await cluster.client.create(SERVICE_ACCOUNTS, account)
        await _until_in_force(ours.client)
        for row in rows:
            await bare.rest()
            await ours.rest()
            for block in range(row.blocks):
                for cluster in (bare, ours)[:: -1 if block % 2 else 1]:
                    await cluster.create(row, block=block)
    note = f"kube-apiserver, CPU time of a create; load average {os.getloadavg()[0]:.1f}"
    return [figure for row in rows for figure in _figures_of(row, bare, ours, note)]


def _figures_of(row: Row, bare: _Cluster, ours: _Cluster, note: str) -> Iterator[Figure]:
    without_ms, with_us_ms, spent = bare.cpu_ms(row), ours.cpu_ms(row), ours.spent[row.name]
    note = f"{spent.creates} pods on each; {note}"
    for name, value, unit in (
        ("bare_cpu", without_ms, "ms"),
        ("cpu", with_us_ms, "ms"),
        ("to_bare_cpu", with_us_ms / without_ms, "ratio"),
    ):
        yield Figure(name=f"webhook.{row.name}_{name}", value=round(value, 3), unit=unit, note=note)


@asynccontextmanager
async def _cluster(assets: Path, workdir: Path) -> AsyncIterator[_Cluster]:
    async with (
        ControlPlane.start(assets, workdir, flags=_FLAGS) as api,
        connect_to(api.url, token=api.token, ca_file=api.ca_file) as client,
    ):
        yield _Cluster(api=api, client=client)


@asynccontextmanager
async def _fracgpu(cluster: _Cluster, folder: Path) -> AsyncIterator[None]:
    """Install what of ``deploy/`` concerns admission, and run the webhook."""
    now = SystemClock().now()
    ca = make_ca(name="benchmark CA", now=now, life=timedelta(hours=6))
    called = ("127.0.0.1", f"fracgpu-webhook.{names.SYSTEM_NAMESPACE}.svc")
    leaf = make_serving(ca, names=called, now=now, life=timedelta(hours=3))
    client = cluster.client
    await client.create(NAMESPACES, {"metadata": {"name": names.SYSTEM_NAMESPACE}})
    await create_objects(client, leaf)
    for config in deployed("ConfigMap"):
        await client.create(CONFIGMAPS, config)
    kubeconfig = cluster.api.kubeconfig(folder / "kubeconfig")
    async with live_webhook(kubeconfig, folder / "webhook.log", ca) as webhook:
        await install_rights(client)
        for kind in (MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS):
            for configuration in deployed(kind.kind):
                for entry in configuration["webhooks"]:
                    path = entry["clientConfig"]["service"]["path"]
                    entry["clientConfig"] = _at(f"https://127.0.0.1:{webhook.port}{path}", ca)
                await client.create(kind, configuration)
        yield


def _at(url: str, ca: Pair) -> dict[str, str]:
    return {"url": url, "caBundle": base64.b64encode(ca.cert_pem).decode()}


async def _until_in_force(client: KubeClient) -> None:
    """Wait until the webhook grants a share, and until a policy denies what it must."""
    async with asyncio.timeout(_READY_LIMIT_S):
        while not await _granted(client) or not await _denied(client):  # noqa: ASYNC110
            await asyncio.sleep(_POLL_S)


async def _granted(client: KubeClient) -> bool:
    row = Row(name="probe", notes={names.FRACTION: "0.5"}, creates=1)
    made = await client.create(PODS, _a_pod(row, "0"), namespace=PLAIN, dry_run=True)
    return names.GRANTED in made["metadata"]["annotations"]


async def _denied(client: KubeClient) -> bool:
    row = Row(name="probe", notes={names.ASSIGNMENT: "{}"}, creates=1)
    pod = _a_pod(row, "0")
    pod["spec"]["serviceAccountName"] = account_of("webhook")
    try:  # in our own namespace the webhook is not asked, which would refuse it first
        await client.create(PODS, pod, namespace=names.SYSTEM_NAMESPACE, dry_run=True)
    except Forbidden as error:
        return "ValidatingAdmissionPolicy" in str(error)
    return False


def _a_pod(row: Row, number: str) -> dict[str, Any]:
    container = {
        "name": "app",
        "image": "registry.example/team/app:1.4.2",
        "command": ["python", "-m", "app", "--port", "8080"],
        "env": [{"name": "LOG_LEVEL", "value": "info"}, {"name": "REGION", "value": "eu-1"}],
        "ports": [{"name": "http", "containerPort": 8080}],
        "resources": {
            "requests": {"cpu": "250m", "memory": "256Mi"},
            "limits": {"memory": "512Mi"},
        },
        "readinessProbe": {"httpGet": {"path": "/readyz", "port": "http"}},
    }
    return {
        "metadata": {
            "name": f"{row.name.replace('_', '-')}-{number}",
            "labels": {"app.kubernetes.io/name": "app", "team": "vision"},
            "annotations": {"example.com/owner": "vision", **row.notes},
        },
        "spec": {"containers": [container]},
    }
