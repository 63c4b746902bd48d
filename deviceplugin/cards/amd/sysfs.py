"""One card of the driver ``amdgpu``: what its files in sysfs say, and whether it can be shared.

Sources, all of them in the kernel's tree:

- ``Documentation/gpu/amdgpu/driver-misc.rst``, and what it includes of ``amdgpu_pm.c``,
  ``amdgpu_vram_mgr.c`` and ``amdgpu_fru_eeprom.c``: ``unique_id`` ("GFX9 and newer", absent on
  others), ``product_name`` ("certain server cards"), ``mem_info_vram_total`` and
  ``mem_info_vram_used`` in bytes, ``pcie_replay_count``;
- ``Documentation/gpu/amdgpu/thermal.rst``: ``gpu_busy_percent``, ``mem_busy_percent``, and what
  hwmon has, in millidegrees, microwatts and Hz;
- ``Documentation/gpu/amdgpu/ras.rst``: ``ras/umc_err_count``, lines ``ue: N`` and ``ce: N``;
- ``amdgpu_gfx.c`` and ``amdgpu_gmc.c``: ``current_compute_partition`` (``SPX`` is one) and
  ``current_memory_partition`` (``NPS1`` is one), absent on cards that cannot be partitioned;
- ``Documentation/ABI/testing/sysfs-bus-pci``: ``numa_node``, -1 without NUMA.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from deviceplugin.cards.amd.models import model_name
from deviceplugin.cards.interface import CardMetrics
from fracgpu.units import BYTES_PER_MIB, MAX_MIB

_DRIVER: Final = "amdgpu"
_CARD: Final = re.compile(r"card(\d+)")
_RENDER: Final = re.compile(r"renderD(\d+)")
_ADDRESS: Final = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_UNIQUE_ID: Final = re.compile(r"[0-9a-f]{1,16}")
_UNCORRECTED: Final = re.compile(r"^ue:\s*(\d+)\s*$", re.MULTILINE)
# sysfs has no larger file: one page.
_MAX_CHARS: Final = 4096
_MAX_NAME_CHARS: Final = 64
_MAKER: Final = "AMD"
_FULL_PERCENT: Final = 100
_UNPARTITIONED: Final = {"current_compute_partition": "SPX", "current_memory_partition": "NPS1"}
# A card has at most this many sensors of a kind.
_MOST_SENSORS: Final = 8
_MILLI, _MICRO, _MEGA = 1e-3, 1e-6, 1e6


class UnreadableError(Exception):
    """A file without which the card cannot be shared cannot be read; the text says which."""


class NotShareableError(Exception):
    """The card cannot be shared; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A PCI device of the driver.

    Attributes:
        folder: its own folder in sysfs.
        address: its PCI address, as the kernel writes it.
        card: the number of ``/dev/dri/card<N>``.
    """

    folder: Path
    address: str
    card: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a card's files say; *render* is the number of its ``/dev/dri/renderD<N>``."""

    model: str
    total_bytes: int
    used_bytes: int
    render: int
    numa_node: int | None


def devices(sys_root: Path) -> tuple[Device, ...]:
    """Return the devices of the driver, by their PCI address; none without the driver.

    Further partitions of a card are devices of the driver ``amdgpu_xcp``, and no PCI devices.

    Raises:
        OSError: the folder of cards cannot be listed.
    """
    found = []
    try:
        entries = sorted((sys_root / "class/drm").iterdir())
    except FileNotFoundError:
        return ()
    for entry in entries:
        match = _CARD.fullmatch(entry.name)
        if match is None:
            continue
        try:
            folder = (entry / "device").resolve(strict=True)
            driver = (folder / "driver").resolve(strict=True).name
        except OSError:  # it went while we looked, or it has no driver
            continue
        if driver == _DRIVER and _ADDRESS.fullmatch(folder.name):
            found.append(Device(folder=folder, address=folder.name, card=int(match[1])))
    return tuple(sorted(found, key=lambda device: device.address))


def unique_id(device: Device) -> str:
    """Return what names a card.

    Raises:
        NotShareableError: it has no such name.
        UnreadableError: it does not answer.
    """
    found = _if_there(device.folder / "unique_id") or ""
    if not _UNIQUE_ID.fullmatch(found) or not int(found, 16):
        reason = "the driver knows no unique_id of it, as of integrated graphics and older cards"
        raise NotShareableError(reason)
    return found


def inspect(device: Device) -> Found:
    """Return what a card is.

    Raises:
        NotShareableError: it cannot be shared.
        UnreadableError: it does not answer.
    """
    for file, wanted in _UNPARTITIONED.items():
        mode = _if_there(device.folder / file)
        if mode is not None and mode != wanted:
            reason = f"it is partitioned ({file} is {mode or 'empty'}, not {wanted}), "
            raise NotShareableError(f"{reason}and FracGPU does not share partitions")
    total_bytes = _required(device.folder / "mem_info_vram_total")
    if not total_bytes:
        raise NotShareableError("it reports no memory of its own")
    return Found(
        model=_model(device.folder),
        total_bytes=total_bytes,
        used_bytes=_required(device.folder / "mem_info_vram_used"),
        render=_render(device),
        numa_node=_numa_node(device.folder),
    )


def memory(device: Device) -> tuple[int, int]:
    """Return the bytes of a card's memory in total and in use.

    Raises:
        UnreadableError: it does not answer.
    """
    folder = device.folder
    return _required(folder / "mem_info_vram_total"), _required(folder / "mem_info_vram_used")


def metrics(device: Device) -> CardMetrics:
    """Return what a card measures beside its memory; what cannot be read is None."""
    folder = device.folder
    sensors = _sensors(folder)
    temperatures = _labelled(sensors, "temp")
    clocks = _labelled(sensors, "freq")
    power = _number(sensors / "power1_average")
    if power is None:
        power = _number(sensors / "power1_input")
    # Cards for servers measure only the hottest place.
    celsius = temperatures.get("edge", temperatures.get("junction"))
    return CardMetrics(
        gpu_percent=_percent(folder / "gpu_busy_percent"),
        memory_copy_percent=_percent(folder / "mem_busy_percent"),
        temperature_c=_times(celsius, _MILLI),
        memory_temperature_c=_times(temperatures.get("mem"), _MILLI),
        power_w=_times(power, _MICRO),
        sm_clock_mhz=_times(clocks.get("sclk"), 1 / _MEGA),
        memory_clock_mhz=_times(clocks.get("mclk"), 1 / _MEGA),
        pcie_replays=_number(folder / "pcie_replay_count"),
        ecc_uncorrected=_uncorrected(folder),
    )


def driver_version(sys_root: Path) -> str:
    """Return the driver's version; empty where it is a part of the kernel."""
    return _text(sys_root / "module" / _DRIVER / "version") or ""


# -- files -------------------------------------------------------------------------------------


def read_text(file: Path) -> str:
    """Return a file's text, as much as a file of sysfs can have.

    Raises:
        OSError: it cannot be read.
    """
    with file.open(errors="replace") as opened:
        return opened.read(_MAX_CHARS).strip()


def _text(file: Path) -> str | None:
    try:
        return read_text(file)
    except OSError:
        return None


def _if_there(file: Path) -> str | None:
    """Return a file's text; None where there is none.

    Raises:
        UnreadableError: there is one that cannot be read.
    """
    try:
        return read_text(file)
    except FileNotFoundError as error:
        if not file.parent.is_dir():
            raise UnreadableError(f"{file.parent.name} is gone") from error
        return None
    except OSError as error:
        raise UnreadableError(f"{file.name}: {error.strerror or error}") from error


def _required(file: Path) -> int:
    """Return an amount of memory.

    Raises:
        UnreadableError: there is none, or no card has as much.
    """
    try:
        found = _natural(read_text(file))
    except OSError as error:
        raise UnreadableError(f"{file.name}: {error.strerror or error}") from error
    except ValueError as error:
        raise UnreadableError(f"{file.name} has no number") from error
    if found > MAX_MIB * BYTES_PER_MIB:
        raise UnreadableError(f"{file.name} is {found}; want {MAX_MIB} MiB at most")
    return found


def _natural(text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise ValueError(text)
    return int(text)


def _number(file: Path) -> float | None:
    text = _text(file)
    try:
        return None if text is None else float(_natural(text))
    except ValueError:
        return None


def _percent(file: Path) -> float | None:
    value = _number(file)
    return value if value is not None and value <= _FULL_PERCENT else None


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else round(value * factor, 3)


def _model(folder: Path) -> str:
    """Return the board's own name, or else one by its device number; each begins with ``AMD``.

    By that word others know whose card it is.
    """
    name = _text(folder / "product_name") or ""
    if name and name.isprintable():
        return (name if name.startswith(_MAKER) else f"{_MAKER} {name}")[:_MAX_NAME_CHARS]
    return model_name(_text(folder / "device") or "")


def _render(device: Device) -> int:
    try:
        names = [entry.name for entry in (device.folder / "drm").iterdir()]
    except OSError as error:
        raise UnreadableError(f"drm: {error.strerror or error}") from error
    found = [match for name in names if (match := _RENDER.fullmatch(name)) is not None]
    if not found:
        raise UnreadableError("it has no render node")
    return min(int(match[1]) for match in found)


def _numa_node(folder: Path) -> int | None:
    text = _text(folder / "numa_node") or ""
    return int(text) if text.isascii() and text.isdecimal() else None


def _uncorrected(folder: Path) -> float | None:
    match = _UNCORRECTED.search(_text(folder / "ras" / "umc_err_count") or "")
    return None if match is None else float(match[1])


def _sensors(folder: Path) -> Path:
    """Return the card's folder of hwmon; one that is not there has no files."""
    parent = folder / "hwmon"
    try:
        return min(entry for entry in parent.iterdir() if entry.name.startswith("hwmon"))
    except (OSError, ValueError):
        return parent / "none"


def _labelled(sensors: Path, kind: str) -> Mapping[str, float]:
    return dict(_labelled_pairs(sensors, kind))


def _labelled_pairs(sensors: Path, kind: str) -> Iterator[tuple[str, float]]:
    for number in range(1, _MOST_SENSORS + 1):
        label = _text(sensors / f"{kind}{number}_label")
        value = _number(sensors / f"{kind}{number}_input") if label else None
        if label and value is not None:
            yield label, value
