"""A real kubelet and containerd, the agent with a physical card, and CUDA in the containers."""

import asyncio
import shutil
import subprocess
import tempfile
import urllib.request
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from prometheus_client.parser import text_string_to_metric_families

from fracgpu import names
from fracgpu.cards.annotations import read_cards
from fracgpu.cards.card import Card, CardUuid
from simulator.envtest.ports import free_ports
from tests.support.cuda_load import OUT_OF_MEMORY, CudaError, Load, read_line
from tests.support.mps import answering, mps_daemons
from tests.support.physical_card import LIBRARIES, write_driver_spec_or_skip
from tests.support.real_node import RealNode, a_container, a_real_node, a_real_pod, state_of
from tests.support.waiting import until

pytestmark = [pytest.mark.card, pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]

Json = dict[str, Any]

_SAID: Final = "said"


@dataclass(frozen=True, slots=True, kw_only=True)
class CardNode:
    """A real node whose agent reads the physical cards."""

    node: RealNode
    card: Card
    telemetry_port: int
    program: Path
    cdi: bool

    async def run(self, load: Load, *, mib: int, isolation: str = "best") -> Json:
        """Start a pod that is assigned *mib* of the card and runs the program."""
        container = a_container("train", mib=mib, slots=1)
        said = f"/seen/$POD_UID.{_SAID}"
        words = " ".join(load.words())
        container["command"] = ["/bin/sh", "-c", f"exec /program/cuda_load {words} >{said} 2>&1"]
        pod = a_real_pod([container], reports=self.node.reports)
        volumes = {"program": (str(self.program.parent), "/program"), **LIBRARIES}
        if not self.cdi:  # then an image brings the driver's library
            volumes["driver"] = (str(_driver_folder()), "/driver")
            container["env"].append({"name": "LD_LIBRARY_PATH", "value": "/driver"})
        for name, (host, inside) in volumes.items():
            pod["spec"]["volumes"].append({"name": name, "hostPath": {"path": host}})
            container["volumeMounts"].append({"name": name, "mountPath": inside, "readOnly": True})
        pod["metadata"]["annotations"] = {names.ISOLATION: isolation}
        created = await self.node.create(pod)
        await self.node.bind(created, train=[(self.card.uuid, mib)])
        return created

    async def sees(self, pod: Json) -> Mapping[str, Any]:
        """Return what the pod's program saw, once it has said so.

        Raises:
            CudaError: CUDA refused.
        """
        file = self.node.reports / f"{pod['metadata']['uid']}.{_SAID}"

        async def said() -> bool:
            state = state_of((await self.node.pods()).get(pod["metadata"]["uid"]))
            assert not state.startswith("Failed") or file.exists(), (state, self.node.agent.tail())
            return file.exists() and file.read_text().endswith("\n")

        await until(said, what="the program's first line", limit_s=120)
        found: Mapping[str, Any] = read_line(file.read_text().splitlines()[0])["ready"]
        return found

    async def samples(self) -> dict[tuple[str, str], float]:
        """Return the agent's samples by family and pod; of cards, the pod is empty."""
        text = await asyncio.to_thread(self._scrape)
        return {
            (sample.name, sample.labels.get("pod", "")): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def _scrape(self) -> str:
        address = f"http://127.0.0.1:{self.telemetry_port}/metrics"
        with urllib.request.urlopen(address, timeout=10) as answer:
            body: bytes = answer.read()
        return body.decode()


@asynccontextmanager
async def a_card_node(
    root: Path,
    uuid: str,
    program: Path,
    *,
    cdi: bool = True,
    flags: Mapping[str, str] | None = None,
) -> AsyncIterator[CardNode]:
    """Start a node whose agent reads the physical cards, and wait until it offers *uuid*."""
    vendor = root / "vendor"
    vendor.mkdir()
    write_driver_spec_or_skip(vendor / "nvidia.yaml")
    (port,) = free_ports(1)
    settings = {
        "cards": "nvml",
        "vendor-cdi-dirs": str(vendor),
        "collect-period-s": "1",
        "telemetry-port": str(port),
        **(flags or {}),
    }
    async with a_real_node(cards=(), cdi=cdi, flags=settings) as node:
        cards: list[Card] = []

        async def offered() -> bool:
            assert node.agent.alive, node.agent.tail()
            body = await node.node()
            text = body.get("metadata", {}).get("annotations", {}).get(names.NODE_CARDS)
            cards[:] = read_cards(text) if text else ()
            slots = body.get("status", {}).get("allocatable", {}).get(names.GPU_SLOT, "0")
            return bool(cards) and slots != "0"

        await until(offered, what="the node offers its card", limit_s=90)
        card = next(card for card in cards if card.uuid == uuid)
        yield CardNode(node=node, card=card, telemetry_port=port, program=program, cdi=cdi)


def _driver_folder() -> Path:
    """Return the host's folder of the driver's library."""
    listed = subprocess.run(
        ["/sbin/ldconfig", "-p"], check=True, capture_output=True, text=True, timeout=30
    )
    lines = [line for line in listed.stdout.splitlines() if "libcuda.so.1 " in line]
    return Path(lines[0].rpartition("=> ")[2]).parent


@pytest.mark.parametrize("cdi", [True, False], ids=["CDI", "device files"])
async def test_two_containers_compute_on_the_card_and_the_exporter_says_who_uses_what(
    tmp_path: Path, uuid: str, program: Path, *, cdi: bool
) -> None:
    async with a_card_node(tmp_path, uuid, program, cdi=cdi) as here:
        small = await here.run(Load(mib=1000, busy_ms=10, idle_ms=90), mib=2000)
        large = await here.run(Load(mib=3000, busy_ms=30, idle_ms=20), mib=4000)
        for pod in (small, large):
            sees = await here.sees(pod)
            assert (sees["cards"], sees["uuid"]) == (1, uuid)
        found: dict[tuple[str, str], float] = {}

        async def measured() -> bool:
            found.clear()
            found.update(await here.samples())
            return all(
                found.get((names.METRIC_POD_BUSY, pod["metadata"]["name"]), 0) > 0
                for pod in (small, large)
            )

        await until(measured, what="both pods are seen at work", limit_s=60)
        used = [
            found["fracgpu_pod_gpu_memory_used_mib", pod["metadata"]["name"]]
            for pod in (small, large)
        ]

    assert 1000 <= used[0] <= 2000
    assert used[1] - used[0] == 2000
    assert found["DCGM_FI_DEV_GPU_UTIL", ""] > 0


@pytest.fixture(params=["the container's", "the daemon's"])
def folder(request: pytest.FixtureRequest) -> Iterator[Path]:
    """The folder for MPS, with a short path, as sockets need; and whose /dev/shm a client has."""
    with tempfile.TemporaryDirectory(prefix="fg-", ignore_cleanup_errors=True) as name:
        if request.param == "the container's":
            yield Path(name)
            return
        shm = Path(name, "shm")
        shm.mkdir()
        _run("mount", "--bind", "/dev/shm", str(shm))  # noqa: S108 - as the agent has it
        try:
            yield Path(name)
        finally:
            _run("umount", "-l", str(shm))


async def test_mps_limits_a_container_to_its_share(
    tmp_path: Path, folder: Path, uuid: str, program: Path
) -> None:
    if shutil.which("nvidia-cuda-mps-control") is None:
        pytest.skip("no nvidia-cuda-mps-control")
    card = CardUuid(uuid)
    flags = {"mps-dir": str(folder), "headroom-mib": "128"}
    async with (
        mps_daemons(folder, "nvidia-cuda-mps-control", card),
        a_card_node(tmp_path, uuid, program, flags=flags) as here,
    ):
        await answering(folder, card)
        modest = await here.run(Load(mib=1000), mib=2000, isolation="mps")
        sees = await here.sees(modest)
        greedy = await here.run(Load(mib=4000), mib=2000, isolation="mps")
        with pytest.raises(CudaError) as refused:
            await here.sees(greedy)
        name = modest["metadata"]["name"]
        found: dict[tuple[str, str], float] = {}

        async def measured() -> bool:
            found.clear()
            found.update(await here.samples())
            used = found.get(("fracgpu_pod_gpu_memory_used_mib", name), 0) > 0
            busy = found.get(("DCGM_FI_DEV_GPU_UTIL", ""), 0) > 0
            return used and busy and (names.METRIC_POD_BUSY, name) not in found

        # The driver counts what a client uses for the MPS server.
        await until(measured, what="a busy card, and no figure of the pod's use", limit_s=60)

    assert sees["uuid"] == uuid
    assert sees["free_mib"] <= 1000
    assert refused.value.code == OUT_OF_MEMORY
    # What is kept back for the MPS server is enough: nothing of it counts as foreign.
    rest_mib = found["DCGM_FI_DEV_FB_USED", ""] - found["fracgpu_pod_gpu_memory_used_mib", name]
    assert 0 < found["fracgpu_unattributed_memory_mib", ""] <= rest_mib <= 128


def _run(*words: str) -> None:
    subprocess.run(words, check=True, timeout=30)  # noqa: S603 - our own words
