"""A tree of files as the kernel's driver ``amdgpu`` has them, with processes that use the cards.

The files, their units and their form are from the kernel's documentation: see
`deviceplugin/cards/amd/sysfs.py`, `kfd.py` and `fdinfo.py`, which name the source of each.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

MIB: Final = 1024 * 1024
_FIRST_RENDER: Final = 128


class AmdgpuTree:
    """A node's ``/sys``, ``/proc`` and ``/dev`` below *root*, at first without a card.

    Args:
        root: an empty folder.
        make_device: makes a device file; a plain file where nobody opens it.
    """

    def __init__(self, root: Path, *, make_device: Callable[[Path], None] = Path.touch) -> None:
        self._make_device = make_device
        self.sys, self.proc, self.dev = root / "sys", root / "proc", root / "dev"
        for folder in (self.sys / "class/drm", self.sys / "bus/pci/devices", self.proc, self.dev):
            folder.mkdir(parents=True)
        make_device(self.dev / "kfd")
        self._driver = self.driver("amdgpu")

    def driver(self, name: str) -> Path:
        folder = self.sys / "bus/pci/drivers" / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def card(  # noqa: PLR0913 - what a card has, all by keyword
        self,
        index: int = 0,
        *,
        address: str = "",
        unique_id: str | None = None,
        mib: int = 196_592,
        used_mib: int = 283,
        compute_units: int = 304,
        kfd_node: int | None = None,
        files: Mapping[str, str | None] | None = None,
    ) -> Path:
        """Add a card and return its folder; None among *files* leaves one out."""
        address = address or f"0000:{0x0C + 0x10 * index:02x}:00.0"
        folder = self.sys / "devices/pci0000:00" / address
        render = _FIRST_RENDER + index
        written: dict[str, str | None] = {
            "vendor": "0x1002",
            "device": "0x74a1",
            "class": "0x120000",
            "numa_node": "0",
            "unique_id": unique_id
            if unique_id is not None
            else f"{0xA1B2C3D4E5F60000 + index:016x}",
            "product_name": "AMD Instinct MI300X OAM",
            "mem_info_vram_total": str(mib * MIB),
            "mem_info_vram_used": str(used_mib * MIB),
            "gpu_busy_percent": "37",
            "mem_busy_percent": "12",
            "pcie_replay_count": "0",
            "current_compute_partition": "SPX",
            "current_memory_partition": "NPS1",
            "ras/umc_err_count": "ue: 0\nce: 3",
            "hwmon/hwmon4/temp1_label": "edge",
            "hwmon/hwmon4/temp1_input": "41000",
            "hwmon/hwmon4/temp2_label": "junction",
            "hwmon/hwmon4/temp2_input": "52000",
            "hwmon/hwmon4/temp3_label": "mem",
            "hwmon/hwmon4/temp3_input": "46000",
            "hwmon/hwmon4/power1_average": "141500000",
            "hwmon/hwmon4/freq1_label": "sclk",
            "hwmon/hwmon4/freq1_input": "2100000000",
            "hwmon/hwmon4/freq2_label": "mclk",
            "hwmon/hwmon4/freq2_input": "1300000000",
            f"drm/renderD{render}/dev": f"226:{render}",
            **(files or {}),
        }
        for name, text in written.items():
            if text is not None:
                self.write(folder, name, text)
        (folder / "driver").symlink_to(self._driver)
        (self.sys / "bus/pci/devices" / address).symlink_to(folder)
        number = index + 1
        shown = self.sys / "class/drm" / f"card{number}"
        shown.mkdir()
        (shown / "device").symlink_to(folder)
        (self.sys / "class/drm" / f"card{number}-DP-1").mkdir()
        (self.dev / "dri").mkdir(exist_ok=True)
        self._make_device(self.dev / f"dri/renderD{render}")
        self.compute_node(kfd_node if kfd_node is not None else index + 2, render, compute_units)
        return folder

    def nvidia(self, *, kind: str = "0x030200") -> None:
        """Add a card of NVIDIA's, as PCI shows it."""
        folder = self.sys / "bus/pci/devices/0000:17:00.0"
        folder.mkdir()
        (folder / "vendor").write_text("0x10de\n")
        (folder / "class").write_text(f"{kind}\n")

    def compute_node(self, number: int, render: int, compute_units: int) -> None:
        properties = {
            "cpu_cores_count": 0,
            "simd_count": 4 * compute_units,
            "simd_per_cu": 4,
            "gfx_target_version": 90402,
            "drm_render_minor": render,
        }
        text = "".join(f"{key} {value}\n" for key, value in properties.items())
        self.write(self.sys / f"class/kfd/kfd/topology/nodes/{number}", "properties", text)

    def link(self, one: int, other: int, *, kind: int = 11, weight: int = 15) -> None:
        """Link two of ROCm's nodes, in one direction."""
        folder = self.sys / f"class/kfd/kfd/topology/nodes/{one}/io_links/{other}"
        text = f"type {kind}\nnode_from {one}\nnode_to {other}\nweight {weight}"
        self.write(folder, "properties", text)

    def write(self, folder: Path, name: str, text: str) -> None:
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")

    def break_file(self, file: Path) -> None:
        """Let a file answer with an error, as EIO does: a folder cannot be read as a file."""
        file.unlink()
        file.mkdir()

    def remove(self, folder: Path) -> None:
        """Take a card off the bus: its folder is gone, and what pointed to it."""
        for link in (self.sys / "class/drm").iterdir():
            if (link / "device").resolve() == folder.resolve():
                (link / "device").unlink()
                link.rmdir()
        folder.rename(folder.with_name(f"removed-{folder.name}"))

    def put_back(self, folder: Path, index: int) -> None:
        """Undo :meth:`remove` of the card *index*."""
        folder.with_name(f"removed-{folder.name}").rename(folder)
        shown = self.sys / "class/drm" / f"card{index + 1}"
        shown.mkdir()
        (shown / "device").symlink_to(folder)

    def process(
        self, pid: int, *files: tuple[str, str], kfd: bool = False, cgroup: str = ""
    ) -> Path:
        """Add or replace a process with open files: what each is, and its fdinfo."""
        folder = self.proc / str(pid)
        for part in ("fd", "fdinfo"):
            (folder / part).mkdir(parents=True, exist_ok=True)
            for old in (folder / part).iterdir():
                old.unlink()
        opened = [("/dev/null", ""), *files, *([("/dev/kfd", "")] if kfd else [])]
        for number, (path, text) in enumerate(opened):
            (folder / "fd" / str(number)).symlink_to(path)
            (folder / "fdinfo" / str(number)).write_text(f"pos:\t0\nflags:\t02100002\n{text}")
        (folder / "stat").write_text(f"{pid} (a b) S {' '.join(['0'] * 18)} 4711 0")
        (folder / "cgroup").write_text(f"0::{cgroup or '/system.slice'}\n")
        return folder


def open_card(
    index: int = 0,
    *,
    client: int,
    mib: int | None = 0,
    gfx_ns: int | None = None,
    compute_ns: int | None = None,
) -> tuple[str, str]:
    """Return an open file of a card, with its fdinfo as the driver writes it."""
    lines = {
        "drm-driver": "amdgpu",
        "drm-pdev": f"0000:{0x0C + 0x10 * index:02x}:00.0",
        "drm-client-id": str(client),
        "drm-memory-vram": None if mib is None else f"{1024 * mib} KiB",
        "drm-memory-gtt": "2048 KiB",
        "amd-requested-vram": f"{1024 * (mib or 0)} KiB",
        "drm-engine-gfx": None if gfx_ns is None else f"{gfx_ns} ns",
        "drm-engine-compute": None if compute_ns is None else f"{compute_ns} ns",
        "drm-engine-dma": "999999999999 ns",
    }
    text = "".join(f"{key}:\t{value}\n" for key, value in lines.items() if value is not None)
    return f"/dev/dri/renderD{_FIRST_RENDER + index}", text
