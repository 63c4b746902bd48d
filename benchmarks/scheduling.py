"""Pods per second of a real kube-scheduler, with our extender (all verbs, mutual TLS) and without.

The pods are pending before kube-scheduler starts. All figures are of the time from the first pod
that is seen bound to the last one. A later beginning would flatter: kube-scheduler alone schedules
faster than it binds, and may have done a third of its work by the time that a tenth is bound.
Two runs of one kind may differ by half, so all kinds take turns several times; a figure is the
median, and its note has the least and the greatest.
Without KUBEBUILDER_ASSETS it only says that it needs them.
"""

import asyncio
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

from benchmarks.figure import Figure
from benchmarks.fixtures.live_extender import SECRET, extender_process
from benchmarks.fixtures.objects import a_node, a_pending_pod
from fracgpu import names
from fracgpu.state.pod_info import PodInfo, decode_pod_info
from kube.access import connect_to
from kube.client import KubeClient
from kube.informer import Change, Informer
from kube.kinds import NAMESPACES, NODES, PODS
from simulator.demo.client_certificate import client_context
from simulator.envtest.control_plane import ASSETS_ENV, ControlPlane, find_assets
from simulator.envtest.extender_certificates import issue_extender_certificates
from simulator.envtest.scheduler_configuration import scheduler_configuration

SLOW: Final = True  # some minutes with a real control plane

_NODES: Final = 100
_PODS: Final = 600
_ALONE: Final = "alone"
# As deploy/ has the extender, and as it is beside a kube-scheduler that calls others as well.
_FLAGS: Final = {"extender": ("--narrow-filter",), "extender_every_node": ()}
_KINDS: Final = (_ALONE, *_FLAGS)
_TURNS: Final = 3
_LIMIT_S: Final = 300.0
# With kube-scheduler's default of 50 requests a second, only that limit would be measured.
_QPS: Final = {"qps": 2000, "burst": 2000}


def figures() -> Iterator[Figure]:
    """Yield the figures; see ``benchmarks.figure.Benchmark``."""
    value = os.environ.get(ASSETS_ENV)
    if not value:
        sys.stderr.write(f"bench: scheduling needs {ASSETS_ENV}; not measured\n")
        return
    assets = find_assets(value)
    turns = [
        {kind: asyncio.run(_run(assets, _FLAGS.get(kind))) for kind in _KINDS}
        for _ in range(_TURNS)
    ]
    note = (
        f"{_PODS} pods, {_NODES} nodes of 8 cards, real control plane on the same "
        f"{os.cpu_count()} cores, Python {platform.python_version()}, "
        f"load average {os.getloadavg()[0]:.1f}"
    )
    for kind in _KINDS:
        yield _figure(f"rate_{kind}", [turn[kind] for turn in turns], "1/s", note)
    for kind in _FLAGS:
        ratios = [turn[kind] / turn[_ALONE] for turn in turns]
        yield _figure(f"rate_{kind}_to_alone", ratios, "ratio", note)


async def _run(assets: Path, flags: Sequence[str] | None) -> float:
    """Return how many pods are bound in a second; *flags* None: by kube-scheduler alone."""
    with_extender = flags is not None
    async with AsyncExitStack() as stack:
        workdir = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        api = await stack.enter_async_context(ControlPlane.start(assets, workdir))
        client = await stack.enter_async_context(
            connect_to(api.url, token=api.token, ca_file=api.ca_file)
        )
        await _prepare(client)
        kubeconfig = api.kubeconfig(workdir / "kubeconfig")
        tls = await issue_extender_certificates(client, workdir, secret=SECRET)
        extender = await stack.enter_async_context(
            extender_process(workdir, kubeconfig, flags or (), trust=client_context(tls))
        )
        written = scheduler_configuration(
            extender_url=f"https://127.0.0.1:{extender.port}", kubeconfig=kubeconfig, tls=tls
        )
        written["clientConnection"] |= _QPS
        if not with_extender:
            del written["extenders"]
        config = workdir / "kube-scheduler.json"
        config.write_text(json.dumps(written))
        watcher = await stack.enter_async_context(_watching(client, with_extender=with_extender))
        await api.start_scheduler(config)
        async with asyncio.timeout(_LIMIT_S):
            await watcher.done.wait()
        return watcher.rate


async def _prepare(client: KubeClient) -> None:
    await client.create(NAMESPACES, {"metadata": {"name": names.SYSTEM_NAMESPACE}})
    for number in range(_NODES):
        node = a_node(number)
        for key in ("uid", "resourceVersion"):
            del node["metadata"][key]
        await client.create(NODES, node)
        await client.patch(
            NODES, node["metadata"]["name"], {"status": node["status"]}, subresource="status"
        )
    for number in range(_PODS):
        await client.create(PODS, _pod(number))


def _pod(number: int) -> dict[str, Any]:
    pod = a_pending_pod(number)
    for key in ("uid", "resourceVersion", "managedFields"):
        del pod["metadata"][key]
    del pod["status"]
    return pod


class _Watcher:
    """Notes when the first and the last pod are seen bound.

    Args:
        with_extender: whether each pod has to be bound with a card.
    """

    def __init__(self, *, with_extender: bool) -> None:
        self._with_extender = with_extender
        self._bound: set[str] = set()
        self._marks_s: list[float] = []
        self.done = asyncio.Event()

    def take(self, change: Change[PodInfo]) -> None:
        pod = change.object.record
        if not pod.node or pod.name in self._bound:
            return
        if self._with_extender and pod.assignment is None:
            raise RuntimeError(f"{pod.name} was bound without a card")
        self._bound.add(pod.name)
        if len(self._bound) in (1, _PODS):
            self._marks_s.append(time.perf_counter())
        if len(self._bound) == _PODS:
            self.done.set()

    @property
    def rate(self) -> float:
        """Pods a second between the first pod and the last one."""
        began_s, ended_s = self._marks_s
        return (_PODS - 1) / (ended_s - began_s)


@asynccontextmanager
async def _watching(client: KubeClient, *, with_extender: bool) -> AsyncIterator[_Watcher]:
    watcher = _Watcher(with_extender=with_extender)
    informer = Informer(client, PODS, decode=decode_pod_info, on_change=watcher.take)
    async with asyncio.TaskGroup() as group:
        following = group.create_task(informer.run(), name="pods")
        await informer.wait_synced()
        yield watcher
        following.cancel()


def _figure(name: str, values: Sequence[float], unit: str, note: str) -> Figure:
    """Return the median of the runs' *values*; the note says how far they are apart."""
    spread = f"median of {len(values)}, {min(values):.2f} to {max(values):.2f}"
    return Figure(
        name=f"scheduling.{name}",
        value=round(statistics.median(values), 2),
        unit=unit,
        note=f"{spread}; {note}",
    )
