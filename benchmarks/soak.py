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
import json
import os
import random
import ssl
import sys
import tempfile
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from benchmarks.figure import Figure
from benchmarks.fixtures.http_caller import Caller, request_bytes
from benchmarks.fixtures.live_extender import SECRET, LiveExtender, extender_process
from benchmarks.fixtures.live_process import fetch
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
_POLL_S: Final = 0.05
_RETRIES: Final = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The leader at one moment.

    Attributes:
        rss_mib: resident memory.
        pause_s: the longest time that its event loop stood still in the last minute or two, as it
            says itself.
        answer_s: the longest time that it took to answer a probe since the last sample.
    """

    rss_mib: float
    pause_s: float
    answer_s: float


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
    answers_s: list[float] = field(default_factory=list)

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

    async def sample(self) -> Sample:
        leader = self.leader()
        answers, self.answers_s = self.answers_s, []
        return Sample(
            rss_mib=leader.rss_mib,
            pause_s=await leader.longest_pause_s(),
            answer_s=max(answers, default=0.0),
        )

    async def probe(self) -> None:
        """Ask the leader for a probe now and then, and note how long each answer took."""
        while True:
            began = time.perf_counter()
            with suppress(OSError):  # between two leaders
                await asyncio.to_thread(fetch, self.leader().telemetry_port, "livez")
                self.answers_s.append(time.perf_counter() - began)
            await asyncio.sleep(_POLL_S)


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
    for when, sample in (("after_warm_up", first), ("at_end", last)):
        yield _figure(f"rss_{when}", sample.rss_mib, "MiB", note)
        yield _figure(f"longest_answer_{when}", 1000 * sample.answer_s, "ms", note)
        yield _figure(f"longest_pause_{when}", 1000 * sample.pause_s, "ms", note)
    yield _figure("rate", bound / took_s, "1/s", note)
    yield _figure("rss_growth", last.rss_mib / first.rss_mib, "ratio", note)


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


async def _soak(pods: int, limit_s: float, warm_up_s: float) -> tuple[Sample, Sample, int, float]:
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fg-soak-")))
        rig = await stack.enter_async_context(_rig(folder))
        group = await stack.enter_async_context(asyncio.TaskGroup())
        probing = group.create_task(rig.probe(), name="probe")
        began = time.monotonic()
        try:
            first, last = await _run(rig, pods, limit_s, warm_up_s)
        finally:
            probing.cancel()
        return first, last, pods, time.monotonic() - began


async def _run(rig: _Rig, pods: int, limit_s: float, warm_up_s: float) -> tuple[Sample, Sample]:
    """Let *pods* come and go within *limit_s*; return the leader after warm-up and at the end."""
    chosen = random.Random(1)  # noqa: S311 - sizes of pods, no secret
    changes = {round(pods * share) for share in _CHANGES}
    living: deque[dict[str, Any]] = deque()
    first: Sample | None = None
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
                await rig.sample()  # what came before is not part of the longest answer
                started = number
            if first is None and started and number >= started + pods * _WARM_UP:
                first = await rig.sample()
    last = await rig.sample()
    if first is None:
        raise RuntimeError(f"it was over before the warm-up of {warm_up_s:g} s was")
    return first, last


class _Placer:
    """Has pods filtered and bound by whoever leads."""

    def __init__(self, rig: _Rig) -> None:
        self._rig = rig
        self._names = [node_name(number) for number in range(_NODES)]
        self._caller: Caller | None = None

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
                problem = await self._try(pod)
            except OSError as error:
                await self._close()
                problem = str(error) or type(error).__name__
            if not problem:
                stored = await self._rig.kube.get_object(
                    PODS, meta["name"], namespace=meta["namespace"]
                )
                if not stored["spec"].get("nodeName"):
                    raise RuntimeError(f"{meta['name']} is said to be bound, and is not")
                return stored
            await asyncio.sleep(_POLL_S * 5)
        raise RuntimeError(f"{meta['name']} was not placed: {problem}; see {self._rig.logs}")

    async def _try(self, pod: dict[str, Any]) -> str:
        args = {"Pod": pod, "Nodes": None, "NodeNames": self._names}
        found = await self._ask("filter", args)
        if found["Error"] or not found["NodeNames"]:
            return str(found["Error"] or found["FailedNodes"])
        meta = pod["metadata"]
        binding = {
            "PodName": meta["name"],
            "PodNamespace": meta["namespace"],
            "PodUID": meta["uid"],
            "Node": found["NodeNames"][0],
        }
        return str((await self._ask("bind", binding))["Error"])

    async def _ask(self, verb: str, args: dict[str, Any]) -> dict[str, Any]:
        if self._caller is None:
            self._caller = Caller(self._rig.leader().port, self._rig.trust)
            await self._caller.connect()
        body = request_bytes(f"/{verb}", json.dumps(args).encode())
        status, answer = await self._caller.post(body)
        if status != 200:  # noqa: PLR2004 - HTTP
            raise OSError(f"{verb} was answered with {status}")
        found: dict[str, Any] = json.loads(answer)
        if found["Error"]:
            await self._close()  # another replica may lead
        return found

    async def _close(self) -> None:
        caller, self._caller = self._caller, None
        if caller is not None:
            await caller.close()


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
