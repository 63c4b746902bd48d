"""Simulated cards behind the same interface as NVML; their load is that of their containers."""

import asyncio
import json
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import msgspec

from deviceplugin.cards.interface import (
    CardHardware,
    CardLimits,
    CardList,
    CardMetrics,
    CardProcess,
    Cards,
    CardSample,
    CardSamples,
    CardsUnavailableError,
    DeviceNode,
)
from fracgpu.cards.card import Card, CardUuid, Health
from fracgpu.units import Mib
from kube.yaml_text import read_yaml
from process.clock import Clock, SystemClock
from simulator.cards.processes import ProcessFolder, SimulatedProcess
from simulator.cards.simulated_limits import SimulatedLimits, capped

DRIVER: Final = "580.65.06"

_NODE: Final = "{node}"

_FULL_PERCENT: Final = 100

_JITTER_PERCENT: Final = 1.5

# Plausible figures of a large card, idle and at full load; nothing depends on them.
_IDLE_C, _FULL_C = 34, 78

_IDLE_W, _FULL_W = 62.0, 395.0

_IDLE_MHZ, _FULL_MHZ, _MEMORY_MHZ = 210, 1410, 1593

_PCIE_BYTES_PER_S = 4e9

# Only these have profiling metrics (GPM) in NVML.
_PROFILED: Final = ("hopper", "blackwell", "rubin")


class _WireCard(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    uuid: str
    index: int
    model: str
    mib: int
    reserved_mib: int = 0
    numa: int | None = None
    health: str = Health.HEALTHY.value
    reason: str = ""
    device_nodes: list[str] = msgspec.field(default_factory=list)
    links: dict[str, int] = msgspec.field(default_factory=dict)
    xids: list[int] = msgspec.field(default_factory=list)


class _WireFile(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    cards: list[_WireCard]
    driver: str = DRIVER
    family: str = ""
    processes: str = "processes"
    seed: int = 0


class SimulatedCards(Cards):
    """Cards that a file lists; the file may be edited at run time, e.g. to make one unhealthy.

    The demands of the processes on a card add up. Above 1.0 the card is saturated, and each
    process gets its proportion, as with time-slicing.

    Args:
        file: JSON or YAML, in the form of :func:`cards_document`. ``{node}`` in it stands for the
            node's name, so that one file gives each node cards of its own.
        clock: for the energy counter.
        node: the node's name.
    """

    def __init__(self, file: Path, clock: Clock, *, node: str = "") -> None:
        self._file = file
        self._clock = clock
        self._node = node
        self._version: tuple[int, int] | None = None
        self._wire = _WireFile(cards=[])
        self._readings = 0
        self._energy_mj: dict[str, float] = {}
        self._read_at_s: float | None = None

    async def list_cards(self) -> CardList:
        await asyncio.to_thread(self._load)
        return CardList(
            cards=tuple(
                replace(_facts(card), driver=self._wire.driver, family=self._wire.family)
                for card in sorted(self._wire.cards, key=lambda listed: listed.index)
            )
        )

    async def read(self) -> CardSamples:
        await asyncio.to_thread(self._load)
        processes = await asyncio.to_thread(self.processes.read)
        now_s = self._clock.monotonic()
        elapsed_s = now_s - self._read_at_s if self._read_at_s is not None else 0.0
        self._read_at_s = now_s
        self._readings += 1
        return CardSamples(
            samples={
                CardUuid(card.uuid): self._reading(card, processes, elapsed_s)
                for card in self._wire.cards
            }
        )

    async def close(self) -> None:
        """Do nothing: there is no driver to close."""

    @property
    def limits(self) -> CardLimits:
        """Limits as a driver keeps them, for nodes whose agent sets any."""
        return SimulatedLimits(self.processes)

    @property
    def processes(self) -> ProcessFolder:
        """The processes on these cards."""
        return ProcessFolder(self._file.parent / self._wire.processes)

    def _load(self) -> None:
        try:
            stat = self._file.stat()
            version = (stat.st_mtime_ns, stat.st_size)
            if version == self._version:
                return
            document = read_yaml(self._file.read_text().replace(_NODE, self._node))
            wire = msgspec.convert(document, _WireFile)
            for card in wire.cards:
                Health(card.health)
        except OSError as error:
            raise CardsUnavailableError(f"simulated cards: {error}") from error
        except ValueError as error:
            raise CardsUnavailableError(f"simulated cards: {self._file}: {error}") from error
        self._wire, self._version = wire, version

    def _reading(
        self, card: _WireCard, processes: Sequence[SimulatedProcess], elapsed_s: float
    ) -> CardSample:
        here = [process for process in capped(processes, card.uuid) if card.uuid in process.cards]
        wanted = sum(process.busy_ratio for process in here)
        busy_percent = self._jittered(card.uuid, min(1.0, wanted) * _FULL_PERCENT)
        load = busy_percent / _FULL_PERCENT
        power_w = _IDLE_W + (_FULL_W - _IDLE_W) * load
        energy_mj = self._energy_mj.get(card.uuid, 0.0) + power_w * elapsed_s * 1000
        self._energy_mj[card.uuid] = energy_mj
        room_mib = card.mib - card.reserved_mib
        used_mib = min(room_mib, sum(process.used_mib for process in here))
        figures = CardMetrics(
            gpu_percent=round(busy_percent),
            memory_copy_percent=round(busy_percent * 0.4),
            encoder_percent=0,
            decoder_percent=0,
            total_mib=card.mib,
            used_mib=used_mib,
            free_mib=room_mib - used_mib,
            reserved_mib=card.reserved_mib,
            temperature_c=round(_IDLE_C + (_FULL_C - _IDLE_C) * load),
            memory_temperature_c=round(_IDLE_C + (_FULL_C - _IDLE_C) * load) + 4,
            power_w=round(power_w, 1),
            energy_mj=round(energy_mj),
            sm_clock_mhz=round(_IDLE_MHZ + (_FULL_MHZ - _IDLE_MHZ) * min(1.0, load * 4)),
            memory_clock_mhz=_MEMORY_MHZ,
            pcie_replays=0,
            power_violation_ns=0,
            thermal_violation_ns=0,
            vgpu_license=0,
            xid=card.xids[-1] if card.xids else 0,
            remapped_rows_correctable=0,
            remapped_rows_uncorrectable=0,
            row_remap_failed=0,
            ecc_uncorrected=0,
            **(_profile(load) if self._wire.family in _PROFILED else {}),
        )
        return CardSample(
            figures=figures,
            processes=tuple(
                CardProcess(
                    pid=process.pid,
                    used_mib=Mib(process.used_mib),
                    sm_percent=process.busy_ratio / wanted * busy_percent if wanted else 0.0,
                )
                for process in here
            ),
            xids=Counter(card.xids),
        )

    def _jittered(self, uuid: str, percent: float) -> float:
        """Return *percent* with the small noise of a real card, the same in every run of a seed."""
        if percent <= 0:
            return 0.0
        rng = random.Random(f"{self._wire.seed}/{uuid}/{self._readings}")  # noqa: S311 - noise
        noisy = percent + rng.uniform(-_JITTER_PERCENT, _JITTER_PERCENT)
        return min(float(_FULL_PERCENT), max(0.0, noisy))


def _profile(load: float) -> Mapping[str, float]:
    """Return the profile of a card that spends *load* of its time on medium-sized matrices."""
    return {
        "gr_engine_ratio": round(load, 3),
        "sm_active_ratio": round(load * 0.9, 3),
        "sm_occupancy_ratio": round(load * 0.4, 3),
        "tensor_ratio": round(load * 0.5, 3),
        "dram_ratio": round(load * 0.3, 3),
        "fp64_ratio": 0.0,
        "fp32_ratio": round(load * 0.2, 3),
        "fp16_ratio": round(load * 0.1, 3),
        "pcie_tx_bytes_per_s": round(load * _PCIE_BYTES_PER_S),
        "pcie_rx_bytes_per_s": round(load * _PCIE_BYTES_PER_S / 2),
    }


def open_cards(file: Path, *, node: str = "") -> SimulatedCards:
    """Return the cards that *file* lists for *node*; the file is read when they are listed."""
    return SimulatedCards(file, SystemClock(), node=node)


def cards_document(
    cards: Sequence[Card],
    *,
    device_nodes: Mapping[CardUuid, Sequence[str]] | None = None,
    processes: str = "processes",
    driver: str = DRIVER,
    family: str = "",
    seed: int = 0,
) -> dict[str, Any]:
    """Return the document that describes *cards*, in the form of the file.

    Args:
        cards: the cards of one node.
        device_nodes: device files for containers on a card; a real runtime requires them to exist.
        processes: folder of the processes, relative to the file's folder.
        driver: the driver's version.
        family: the cards' architecture; ``hopper`` and later have a profile.
        seed: of the noise.
    """
    nodes = device_nodes or {}
    return {
        "driver": driver,
        "family": family,
        "processes": processes,
        "seed": seed,
        "cards": [
            {
                "uuid": card.uuid,
                "index": card.index,
                "model": card.model,
                "mib": card.total_mib,
                "reservedMib": card.reserved_mib,
                "numa": card.numa_node,
                "health": card.health.value,
                "reason": card.health_reason,
                "links": dict(card.links),
                "deviceNodes": list(nodes.get(card.uuid, ())),
            }
            for card in cards
        ],
    }


def write_cards_file(file: Path, document: Mapping[str, Any]) -> None:
    """Replace *file* by *document* atomically."""
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_suffix(".new")
    temporary.write_text(json.dumps(document, indent=1))
    temporary.replace(file)


def _facts(wire: _WireCard) -> CardHardware:
    return CardHardware(
        card=Card(
            uuid=CardUuid(wire.uuid),
            index=wire.index,
            model=wire.model,
            total_mib=Mib(wire.mib),
            reserved_mib=Mib(wire.reserved_mib),
            health=Health(wire.health),
            health_reason=wire.reason,
            numa_node=wire.numa,
            links={CardUuid(uuid): distance for uuid, distance in wire.links.items()},
        ),
        pci_bus_id=f"00000000:{wire.index:02X}:00.0",
        device_nodes=tuple(_device_node(node) for node in wire.device_nodes),
    )


def _device_node(text: str) -> DeviceNode:
    """Parse ``/dev/nvidia0``, or ``/dev/nvidia0=/elsewhere`` where the path differs on the host."""
    path, _, host_path = text.partition("=")
    return DeviceNode(path=path, host_path=host_path)
