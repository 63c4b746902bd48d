"""``python -m benchmarks.soak``: 50,000 pods come and go, and leaders change; what is left of it?

Two replicas of the extender, each a process of its own, follow the simulated API server, which runs
in this one. Pods of mixed sizes are filtered and bound over mutual TLS,
as by kube-scheduler, and deleted again; in the first tenth the leader is ended twice, so that the
standby takes over. Who leads then leads to the end. A fifth of the pods is warm-up, and 90 s at
least. It exits with 1 if the memory of that leader at the end is more than a tenth above what it
was after warm-up.
"""

import argparse
import asyncio
import os
import random
import ssl
import sys
import tempfile
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from benchmarks.figure import Figure
from benchmarks.fixtures.live_extender import SECRET, LiveExtender, extender_process
from benchmarks.fixtures.objects import a_node, a_pending_pod, a_pod, node_name
from fracgpu import names
from fracgpu.doctor.scheduling import EXTENDER_LEASE
from kube.access import connect_to
from kube.client import KubeClient
from kube.kinds import NAMESPACES, NODES, PODS
from simulator.apiserver.apimachinery.storage import Key
from simulator.apiserver.server import ApiServer
from simulator.demo.client_certificate import client_context
from simulator.envtest.extender_certificates import issue_extender_certificates
from simulator.scheduler.extender_client import ExtenderClient, ExtenderError

_PODS: Final = 50_000
_MINUTES: Final = 30.0
_NODES: Final = 100
_STAYING: Final = 10  # pods of each node that stay
_LIVING: Final = 500  # pods that are there at once beside them
_SIZES_MIB: Final = tuple(range(2_000, 42_000, 2_000))
_WARM_UP: Final = 0.1
_WARM_UP_S: Final = 90.0  # at least: the mix of pods is learnt once a minute
_CHANGES: Final = (0.03, 0.06)
_MOST_GROWTH: Final = 1.1
_LEASE: Final = Key("leases.coordination.k8s.io", names.SYSTEM_NAMESPACE, EXTENDER_LEASE)
_PAUSE_S: Final = 0.25
_RETRIES: Final = 400


@dataclass(slots=True)
class _Replica:
    name: str
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    live: LiveExtender | None = None


@dataclass(slots=True)
class _Rig:
    api: ApiServer
    kube: KubeClient
    kubeconfig: Path
    replicas: Sequence[_Replica]
    trust: ssl.SSLContext
    logs: Path

    def leader(self) -> LiveExtender:
        """Return the replica that leads; the first that runs while none does.

        Raises:
            RuntimeError: it does not run.
        """
        lease = self.api.store.get(_LEASE)
        holder = lease.object["spec"].get("holderIdentity", "") if lease else ""
        running = {one.name: one.live for one in self.replicas if one.live is not None}
        found = running.get(holder) or next(iter(running.values()))
        if found.process.returncode is not None:
            raise RuntimeError(f"a replica ended by itself; see {self.logs}")
        return found

    async def start(self, replica: _Replica) -> None:
        folder = self.logs / replica.name
        folder.mkdir(exist_ok=True)
        flags = ("--identity", replica.name, "--narrow-filter")
        replica.live = await replica.stack.enter_async_context(
            extender_process(folder, self.kubeconfig, flags, trust=self.trust)
        )

    async def end(self, replica: _Replica) -> None:
        replica.live = None
        await replica.stack.aclose()


def soak(*, pods: int, minutes: float, warm_up_s: float = _WARM_UP_S) -> Iterator[Figure]:
    """Yield the figures of one soak.

    Raises:
        RuntimeError: a pod could not be placed, a replica ended by itself, or all pods had come and
            gone before the end of the warm-up.
    """
    first, last, bound, took_s = asyncio.run(_soak(pods, minutes * 60, warm_up_s))
    note = (
        f"{bound} pods on {_NODES} nodes of 8 cards in {took_s / 60:.1f} min, "
        f"{len(_CHANGES)} leader changes; {os.cpu_count()} cores, "
        f"load average {os.getloadavg()[0]:.1f}"
    )
    yield _figure("rss_after_warm_up", first, "MiB", note)
    yield _figure("rss_at_end", last, "MiB", note)
    yield _figure("rate", bound / took_s, "1/s", note)
    yield _figure("rss_growth", last / first, "ratio", note)


def main(argv: Sequence[str]) -> int:
    """Soak and print a line of JSON for each figure; return 1 if memory grew by over a tenth."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    parser.add_argument("--pods", type=int, help=f"default {_PODS} in {_MINUTES:g} minutes")
    parser.add_argument("--minutes", type=float, default=_MINUTES, help=f"default {_MINUTES:g}")
    options = parser.parse_args(argv)
    pods = options.pods or round(_PODS * options.minutes / _MINUTES)
    found: list[Figure] = []
    for figure in soak(pods=pods, minutes=options.minutes):
        sys.stdout.write(figure.line() + "\n")
        found.append(figure)
    fault = fault_of(found)
    if fault:
        sys.stderr.write(f"soak: {fault}\n")
    return 1 if fault else 0


def fault_of(figures: Iterable[Figure]) -> str:
    """Return what is wrong with the figures of a soak; empty if nothing is."""
    growth = next(figure.value for figure in figures if figure.name == "soak.rss_growth")
    if growth > _MOST_GROWTH:
        return (
            f"memory grew to {growth:.2f} times that after warm-up; want {_MOST_GROWTH:g} at most"
        )
    return ""


async def _soak(pods: int, limit_s: float, warm_up_s: float) -> tuple[float, float, int, float]:
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fg-soak-")))
        rig = await stack.enter_async_context(_rig(folder))
        began = time.monotonic()
        first, last = await _run(rig, pods, limit_s, warm_up_s)
        return first, last, pods, time.monotonic() - began


async def _run(rig: _Rig, pods: int, limit_s: float, warm_up_s: float) -> tuple[float, float]:
    """Let *pods* come and go; return the leader's MiB after warm-up and at the end."""
    chosen = random.Random(1)  # noqa: S311 - sizes of pods, no secret
    changes = {round(pods * share) for share in _CHANGES}
    living: deque[dict[str, Any]] = deque()
    first: float | None = None
    started = 0
    began = time.monotonic()
    async with _Placer(rig) as placer:
        for number in range(pods):
            await asyncio.sleep(max(0.0, began + number * limit_s / pods - time.monotonic()))
            if number in changes:
                leader = rig.leader()
                replica = next(one for one in rig.replicas if one.live is leader)
                await rig.end(replica)
                await rig.start(replica)
            pod = a_pending_pod(number, mib=chosen.choice(_SIZES_MIB))
            living.append(await placer.place(await _create(rig.kube, pod)))
            if len(living) > _LIVING:
                gone = living.popleft()["metadata"]
                await rig.kube.delete(PODS, gone["name"], namespace=gone["namespace"], grace_s=0)
            warm = number >= pods * _WARM_UP and time.monotonic() - began >= warm_up_s
            if warm and not started:
                started = number
            if first is None and started and number >= started + pods * _WARM_UP:
                first = rig.leader().rss_mib
    last = rig.leader().rss_mib
    if first is None:
        raise RuntimeError(f"it was over before the warm-up of {warm_up_s:g} s was")
    return first, last


class _Placer:
    """Has pods filtered and bound by whoever leads."""

    def __init__(self, rig: _Rig) -> None:
        self._rig = rig
        self._names = [node_name(number) for number in range(_NODES)]
        self._connection = AsyncExitStack()
        self._extender: ExtenderClient | None = None

    async def __aenter__(self) -> "_Placer":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._close()

    async def place(self, pod: dict[str, Any]) -> dict[str, Any]:
        """Place a pod and return it; tried again while no replica answers for it.

        Raises:
            RuntimeError: it was never placed.
        """
        meta = pod["metadata"]
        problem = ""
        for _ in range(_RETRIES):
            try:
                await self._try(pod)
            except ExtenderError as error:
                problem = str(error)
                await self._close()  # another replica may lead
                await asyncio.sleep(_PAUSE_S)
                continue
            stored = await self._rig.kube.get_object(
                PODS, meta["name"], namespace=meta["namespace"]
            )
            if not stored["spec"].get("nodeName"):
                raise RuntimeError(f"{meta['name']} is said to be bound, and is not")
            return stored
        raise RuntimeError(f"{meta['name']} was not placed: {problem}; see {self._rig.logs}")

    async def _try(self, pod: dict[str, Any]) -> None:
        if self._extender is None:
            url = f"https://127.0.0.1:{self._rig.leader().port}"
            opened = ExtenderClient.open(url, tls=self._rig.trust)
            self._extender = await self._connection.enter_async_context(opened)
        found = await self._extender.filter(pod, self._names)
        if not found.passed:
            raise ExtenderError(f"no node fits: {found.refused}")
        await self._extender.bind(pod, found.passed[0])

    async def _close(self) -> None:
        self._extender = None
        await self._connection.aclose()


async def _create(kube: KubeClient, pod: dict[str, Any]) -> dict[str, Any]:
    return await kube.create(PODS, pod, namespace=pod["metadata"]["namespace"])


@asynccontextmanager
async def _rig(folder: Path) -> AsyncIterator[_Rig]:
    """Run the API server and two replicas until the block ends; one leads when it begins."""
    async with AsyncExitStack() as stack:
        api = await stack.enter_async_context(ApiServer.start())
        kube = await stack.enter_async_context(connect_to(api.url))
        staying = [a_pod(node, number) for node in range(_NODES) for number in range(_STAYING)]
        for name in sorted({pod["metadata"]["namespace"] for pod in staying}):
            await kube.create(NAMESPACES, {"metadata": {"name": name}})
        await kube.create(NAMESPACES, {"metadata": {"name": names.SYSTEM_NAMESPACE}})
        for number in range(_NODES):
            await kube.create(NODES, a_node(number))
        for pod in staying:
            await _create(kube, pod)
        tls = await issue_extender_certificates(kube, folder, secret=SECRET)
        rig = _Rig(
            api=api,
            kube=kube,
            kubeconfig=api.kubeconfig(folder / "kubeconfig"),
            replicas=[_Replica(name=f"soak-{number}") for number in range(2)],
            trust=client_context(tls),
            logs=folder,
        )
        for replica in rig.replicas:
            stack.push_async_callback(rig.end, replica)
            await rig.start(replica)
        yield rig


def _figure(name: str, value: float, unit: str, note: str) -> Figure:
    return Figure(name=f"soak.{name}", value=round(value, 3), unit=unit, note=note)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
