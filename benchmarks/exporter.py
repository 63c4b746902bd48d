"""The node agent with 8 cards and 200 busy processes: cost of a scrape, memory and CPU time.

The agent runs in its own process with the flags of the DaemonSet, with an embedded API server, a
simulated kubelet and 200 pods. Its cards are simulated. The cost of our reader of real cards is
measured separately, over a library that answers at once: no figure includes the time of NVIDIA's
own library.
"""

import asyncio
import http.client
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from benchmarks.figure import Figure
from benchmarks.fixtures.instant_nvml import InstantNvml
from deviceplugin.cards.nvml.reader import NvmlReader
from fracgpu import names
from fracgpu.cards.card import Card, CardUuid
from fracgpu.state.allocation import Slice, write_assignment
from fracgpu.units import Mib
from kube.access import connect_to
from kube.client import KubeClient
from kube.kinds import NODES, PODS
from process.clock import SystemClock
from simulator.apiserver.server import ApiServer
from simulator.cards.simulated_cards import cards_document, write_cards_file
from simulator.envtest.ports import free_ports
from simulator.kubelet.kubelet import Kubelet, KubeletConfig, KubeletFolders
from simulator.kubelet.pod_worker import BUSY_KEY

CARDS: Final = 8
PROCESSES: Final = 200
PERIOD_S: Final = 15.0
_NODE: Final = "bench-1"
_CARD_MIB: Final = 81_920
_POD_MIB: Final = 3_000
_SCRAPES: Final = 60
_ROUNDS: Final = 20
_WINDOW_S: Final = 2 * PERIOD_S
_READY_LIMIT_S: Final = 180.0
_POLL_S: Final = 0.1
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_HEADERS: Final = {"Accept-Encoding": "gzip", "Accept": "text/plain;version=0.0.4;q=0.2,*/*;q=0.1"}


def figures() -> Iterator[Figure]:
    """Yield the figures after about a minute."""
    yield from asyncio.run(_measured())


async def _measured() -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="fg-") as folder:
        async with _agent(Path(folder)) as (process, port):
            cpu_s, began_s = _cpu_s(process.pid), time.monotonic()
            await asyncio.sleep(_WINDOW_S)
            core_percent = 100 * (_cpu_s(process.pid) - cpu_s) / (time.monotonic() - began_s)
            cpu_s = _cpu_s(process.pid)
            costs_ms, size, lines = await asyncio.to_thread(_scrapes, port)
            scrape_cpu_ms = 1000 * (_cpu_s(process.pid) - cpu_s) / _SCRAPES
            rss_mib, peak_mib = (_memory_mib(process.pid, field) for field in ("VmRSS", "VmHWM"))
    what = f"{CARDS} cards, {PROCESSES} processes"
    cores = f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.0f}"
    round_cpu_ms = await _nvml_round_cpu_ms()
    return [
        Figure(
            name="exporter.scrape_p50",
            value=round(statistics.median(costs_ms), 1),
            unit="ms",
            note=f"{what}; {_SCRAPES} scrapes, {lines} lines; {cores}",
        ),
        Figure(
            name="exporter.scrape_p95",
            value=round(statistics.quantiles(costs_ms, n=20)[-1], 1),
            unit="ms",
            note="want under 50",
        ),
        Figure(
            name="exporter.scrape_cpu",
            value=round(scrape_cpu_ms, 1),
            unit="ms",
            note="CPU time of the agent for one scrape",
        ),
        Figure(name="exporter.scrape_size", value=round(size / 1024, 1), unit="KiB", note="gzip"),
        Figure(name="exporter.rss", value=round(rss_mib, 1), unit="MiB", note="want under 80"),
        Figure(name="exporter.rss_peak", value=round(peak_mib, 1), unit="MiB"),
        Figure(
            name="exporter.cpu",
            value=round(core_percent, 2),
            unit="% of a core",
            note=f"want under 1; over {_WINDOW_S:g} s, collecting every {PERIOD_S:g} s",
        ),
        Figure(
            name="exporter.nvml_round_cpu",
            value=round(round_cpu_ms, 1),
            unit="ms",
            note=f"one reading of {what}, the library's own time apart; "
            f"{100 * round_cpu_ms / 1000 / PERIOD_S:.2f} % of a core every {PERIOD_S:g} s",
        ),
    ]


async def _nvml_round_cpu_ms() -> float:
    """Return the CPU time in ms of one reading of real cards, without the library's own."""
    library = InstantNvml(cards=CARDS, processes=PROCESSES // CARDS)
    reader = NvmlReader(library=library)
    await reader.list_cards()
    await reader.read()
    began_s = time.process_time()
    for _ in range(_ROUNDS):
        await reader.read()
    cost_ms = 1000 * (time.process_time() - began_s) / _ROUNDS
    await reader.close()
    return cost_ms


@asynccontextmanager
async def _agent(root: Path) -> AsyncIterator[tuple[asyncio.subprocess.Process, int]]:
    """Run an agent whose node has all its pods; yield its process and telemetry port."""
    cards = tuple(
        Card(
            uuid=CardUuid(f"GPU-{index:08d}-0000-4000-8000-000000000000"),
            index=index,
            model="NVIDIA H100 80GB HBM3",
            total_mib=Mib(_CARD_MIB),
        )
        for index in range(CARDS)
    )
    write_cards_file(root / "cards.json", cards_document(cards, family="hopper"))
    folders = KubeletFolders.under(root)
    (port,) = free_ports(1)
    async with (
        ApiServer.start() as api,
        connect_to(api.url) as client,
        asyncio.TaskGroup() as group,
    ):
        kubelet = Kubelet(client, SystemClock(), KubeletConfig(node=_NODE, folders=folders))
        running = group.create_task(kubelet.run())
        await kubelet.wait_ready()
        process = await _started(root, folders, api.kubeconfig(root / "kubeconfig"), port)
        try:
            await _until_counted(client)
            for number in range(PROCESSES):
                await _run_pod(client, number, cards[number % CARDS])
            await _until_lines(port, "fracgpu_pod_sm_util", PROCESSES)
            yield process, port
        finally:
            process.terminate()
            await process.wait()
            running.cancel()


async def _started(
    root: Path, folders: KubeletFolders, kubeconfig: Path, port: int
) -> asyncio.subprocess.Process:
    flags = {
        "kubeconfig": kubeconfig,
        "node-name": _NODE,
        "cards": f"simulated:{root / 'cards.json'}",
        "telemetry-host": "127.0.0.1",
        "telemetry-port": port,
        "device-plugins-dir": folders.device_plugins,
        "pod-resources-socket": folders.pod_resources_socket,
        "cdi-dir": folders.cdi,
        "proc-root": folders.proc,
        "injection": "cdi",
        "collect-period-s": PERIOD_S,
        "drain-wait-s": 0,
        "log-level": "warning",
    }
    words = [f"--{name}={value}" for name, value in flags.items()]
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "cli", "run", "deviceplugin", *words
    )


async def _run_pod(client: KubeClient, number: int, card: Card) -> None:
    name = f"pod-{number:03d}"
    limits = {names.GPU_MEM: str(_POD_MIB), names.GPU_SLOT: "1"}
    container = {"name": "train", "image": "app", "resources": {"limits": limits}}
    metadata = {"name": name, "namespace": "default", "annotations": {BUSY_KEY: "0.03"}}
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"schedulerName": "bench", "containers": [container]},
    }
    created: dict[str, Any] = await client.create(PODS, body)
    assignment = write_assignment({"train": (Slice(card=card.uuid, mib=Mib(_POD_MIB)),)})
    binding = {
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": created["metadata"]["uid"],
            "annotations": {names.ASSIGNMENT: assignment},
        },
        "target": {"kind": "Node", "name": _NODE},
    }
    await client.bind(binding, namespace="default", name=name)


async def _until_counted(client: KubeClient) -> None:
    """Wait until kubelet counts the slots; a pod bound earlier would run without a card."""
    async with asyncio.timeout(_READY_LIMIT_S):
        while True:
            node = await client.get_object(NODES, _NODE)
            if int(node.get("status", {}).get("allocatable", {}).get(names.GPU_SLOT, 0)) > 0:
                return
            await asyncio.sleep(_POLL_S)


async def _until_lines(port: int, family: str, wanted: int) -> None:
    """Wait until a scrape has *count* lines of *family* whose value is not 0."""
    async with asyncio.timeout(_READY_LIMIT_S):
        while True:
            try:
                text = (await asyncio.to_thread(_get, port, {})).decode()
            except OSError:
                text = ""
            found = [line for line in text.splitlines() if line.startswith(f"{family}{{")]
            if sum(float(line.rsplit(" ", 1)[1]) > 0 for line in found) >= wanted:
                return
            await asyncio.sleep(_POLL_S)


def _scrapes(port: int) -> tuple[list[float], int, int]:
    """Return the duration of each scrape in ms, the size of one in bytes and its lines."""
    costs_ms, size = [], 0
    for _ in range(_SCRAPES):
        began_s = time.monotonic()
        size = len(_get(port, _HEADERS))
        costs_ms.append(1000 * (time.monotonic() - began_s))
    return costs_ms, size, len(_get(port, {}).splitlines())


def _get(port: int, headers: dict[str, str]) -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", "/metrics", headers=headers)
        return connection.getresponse().read()
    finally:
        connection.close()


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S  # utime and stime; see proc(5)


def _memory_mib(pid: int, field: str) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1]) / 1024
