"""The interface to the node's cards; each vendor's folder and the simulator implement it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from fracgpu.cards.card import Card, CardUuid, Health
from fracgpu.cards.card_class import Vendor, vendor_of
from fracgpu.units import Mib


class CardsUnavailableError(Exception):
    """The cards cannot be read now: no driver, driver lost, or no answer in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceNode:
    """A device file that a container needs; *host_path* where the node has it elsewhere."""

    path: str
    host_path: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CardHardware:
    """One card as it is installed: what the cluster shows of it, and what a container needs.

    Attributes:
        device_nodes: its own device files.
        common_nodes: device files that every container with a card of its kind needs.
        driver: the version of its driver, or empty.
        family: its architecture, such as ``hopper``, or empty.
        brand: the product line, such as ``tesla`` or ``geforce``, or empty.
        compute_units: how many of them a mask can name; 0 where containers cannot be masked.
    """

    card: Card
    pci_bus_id: str = ""
    device_nodes: tuple[DeviceNode, ...] = ()
    common_nodes: tuple[DeviceNode, ...] = ()
    driver: str = ""
    family: str = ""
    brand: str = ""
    compute_units: int = 0

    @property
    def vendor(self) -> Vendor:
        """Whose card it is: what only the containers of one vendor get goes by it."""
        return vendor_of(self.card.model)


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedCard:
    """A card of the node that cannot be shared, and why."""

    uuid: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CardList:
    """All cards of the node at one moment.

    Attributes:
        cards: those that can be shared, healthy or not, by index.
        left_out: those that cannot be shared.
    """

    cards: tuple[CardHardware, ...] = ()
    left_out: tuple[SkippedCard, ...] = ()

    @property
    def driver(self) -> str:
        """The version of the driver of all cards; empty where it is not known, or they differ."""
        return _only(hardware.driver for hardware in self.cards)

    @property
    def family(self) -> str:
        """The architecture of all cards; empty where it is not known, or they differ."""
        return _only(hardware.family for hardware in self.cards)


def _only(texts: Iterable[str]) -> str:
    found = set(texts)
    return found.pop() if len(found) == 1 else ""


def all_unhealthy(listed: CardList, *, reason: str) -> CardList:
    """Return the cards, all unhealthy for *reason*."""
    return replace(listed, cards=tuple(unhealthy(each, reason) for each in listed.cards))


def unhealthy(hardware: CardHardware, reason: str) -> CardHardware:
    """Return a card that is unhealthy for *reason*."""
    card = replace(hardware.card, health=Health.UNHEALTHY, health_reason=reason)
    return replace(hardware, card=card)


@dataclass(frozen=True, slots=True, kw_only=True)
class CardMetrics:
    """What one card measured; None where the card does not have the metric.

    Percentages are 0..100.

    Attributes:
        gpu_percent: share of the last period with at least one kernel running.
        memory_copy_percent: share of the last period in which memory was read or written.
        energy_mj: millijoules since the driver was loaded.
        xid: code of the last error that the driver reported (NVIDIA: XID), 0 where there was none.
        power_violation_ns: time that the card was slowed down to keep to its power limit.
        thermal_violation_ns: time that the card was slowed down to stay cool.
        vgpu_license: 1 where a virtual card has its license; 0 where the card is not virtual.
        ecc_uncorrected: memory errors that could not be corrected since the driver was loaded.
        gr_engine_ratio: share of time, 0..1, with the graphics or compute engine busy. This and
            the following are measured by the card itself, since Hopper.
        sm_active_ratio: share of SM cycles with a warp assigned.
        sm_occupancy_ratio: resident warps, as a share of the most that fit.
        tensor_ratio: share of cycles with a tensor pipe busy.
        dram_ratio: share of the memory's bandwidth in use.
        fp64_ratio: share of cycles with an FP64 pipe busy.
        fp32_ratio: share of cycles with an FP32 pipe busy.
        fp16_ratio: share of cycles with an FP16 pipe busy.
        pcie_tx_bytes_per_s: sent over PCIe; older cards have this as well.
        pcie_rx_bytes_per_s: received over PCIe; older cards have this as well.
    """

    gpu_percent: float | None = None
    memory_copy_percent: float | None = None
    encoder_percent: float | None = None
    decoder_percent: float | None = None
    total_mib: float | None = None
    used_mib: float | None = None
    free_mib: float | None = None
    reserved_mib: float | None = None
    temperature_c: float | None = None
    memory_temperature_c: float | None = None
    power_w: float | None = None
    energy_mj: float | None = None
    sm_clock_mhz: float | None = None
    memory_clock_mhz: float | None = None
    pcie_replays: float | None = None
    power_violation_ns: float | None = None
    thermal_violation_ns: float | None = None
    vgpu_license: float | None = None
    xid: float | None = None
    remapped_rows_correctable: float | None = None
    remapped_rows_uncorrectable: float | None = None
    row_remap_failed: float | None = None
    ecc_uncorrected: float | None = None
    gr_engine_ratio: float | None = None
    sm_active_ratio: float | None = None
    sm_occupancy_ratio: float | None = None
    tensor_ratio: float | None = None
    dram_ratio: float | None = None
    fp64_ratio: float | None = None
    fp32_ratio: float | None = None
    fp16_ratio: float | None = None
    pcie_tx_bytes_per_s: float | None = None
    pcie_rx_bytes_per_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CardProcess:
    """One process on a card, by its pid on the host.

    Attributes:
        used_mib: memory it holds on this card, or None where the driver does not report it.
        sm_percent: its share of the card's time, 0..100; 0 for an idle one. None where the driver
            counts it for another process or not at all.
    """

    pid: int
    used_mib: Mib | None = None
    sm_percent: float | None = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CardSample:
    """One card's metrics and processes at one moment.

    Attributes:
        processes_known: False where the driver would not list processes, so that an empty list
            does not mean an idle card.
        xids: how often each error of the driver occurred since the agent started, by code.
    """

    figures: CardMetrics = CardMetrics()
    processes: tuple[CardProcess, ...] = ()
    processes_known: bool = True
    xids: Mapping[int, int] = field(default_factory=dict)


def kernel_address(bus_id: str) -> str:
    """Return a PCI address as the kernel writes it, ``0000:17:00.0``.

    Args:
        bus_id: in any spelling: some have eight digits for the domain, and capitals.

    Raises:
        ValueError: it is none.
    """
    domain, _, rest = bus_id.lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}"


SamplesByCard = Mapping[CardUuid, CardSample]


@dataclass(frozen=True, slots=True, kw_only=True)
class CardSamples:
    """One sample of each card that answered, and the error of each that did not."""

    samples: SamplesByCard = field(default_factory=dict)
    errors: Mapping[CardUuid, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLimits:
    """What stands for one cgroup on one card.

    Attributes:
        guaranteed_mib: what is kept for it; of a cgroup above others, for all of them together.
        limit_mib: the most that it may use, or None where there is no limit.
        used_mib: what its processes use.
    """

    guaranteed_mib: Mib
    limit_mib: Mib | None
    used_mib: Mib = Mib(0)


class CardLimitsError(Exception):
    """The driver cannot set or read a cgroup's limits; the text says why."""


class CardLimits(Protocol):
    """Limits for all processes of a cgroup together, which the driver enforces.

    Callable in any thread; each call blocks, at most as long as the implementation sets.
    """

    def set(self, card: CardUuid, group: str, limits: GroupLimits) -> None:
        """Set the limits of the cgroup at the full path *group*; ``used_mib`` is ignored.

        Raises:
            CardLimitsError: they are not set.
        """
        ...

    def read(self, card: CardUuid, group: str) -> GroupLimits:
        """Return the limits of a cgroup.

        Raises:
            CardLimitsError: they cannot be read.
        """
        ...


class Cards(Protocol):
    """The node's cards. Every call returns within a time limit that the implementation sets."""

    @property
    def limits(self) -> CardLimits | None:
        """Limits that the driver enforces; None where it has none whatever its version."""
        return None

    async def list_cards(self) -> CardList:
        """Return the cards of the node and their health.

        Raises:
            CardsUnavailableError: the cards cannot be listed.
        """
        ...

    async def read(self) -> CardSamples:
        """Measure every card that :meth:`list_cards` returned last.

        Raises:
            CardsUnavailableError: no card can be read.
        """
        ...

    async def close(self) -> None:
        """Release the driver."""
        ...
