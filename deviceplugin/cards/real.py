"""Opens the readers of real cards: here a vendor's folder is named, and nowhere above."""

import functools
from pathlib import Path
from typing import Final, Protocol

from deviceplugin.cards.amd import sysfs as amdgpu
from deviceplugin.cards.amd.reader import AmdReader
from deviceplugin.cards.interface import Cards
from deviceplugin.cards.joined import JoinedCards, VendorReader, has_pci_card
from deviceplugin.cards.nvml.reader import NvmlReader

NVML: Final = "nvml"
AMD: Final = "amd"
# In the configuration space of PCI devices.
_NVIDIA_ON_PCI: Final = 0x10DE


class CardSettings(Protocol):
    """What of the agent's settings concerns the cards."""

    @property
    def cards(self) -> str: ...
    @property
    def nvml_timeout_s(self) -> float: ...
    @property
    def survey_period_s(self) -> float: ...
    @property
    def dev_root(self) -> Path: ...
    @property
    def sys_root(self) -> Path: ...
    @property
    def proc_root(self) -> Path: ...

    def standstill_s(self, *, period_s: float) -> float:
        """Return after how many seconds a loop over the cards counts as stuck."""
        ...


def open_cards(settings: CardSettings) -> Cards:
    """Return the cards of one vendor, or with ``auto`` those of each that the node has.

    NVIDIA's reader is also asked where there is no card of another vendor: it says what is missing,
    and finds cards that are no PCI devices.
    """
    sys_root, timeout_s = settings.sys_root, settings.nvml_timeout_s
    nvml = NvmlReader(
        timeout_s=timeout_s,
        hang_limit_s=settings.standstill_s(period_s=settings.survey_period_s),
        dev_root=settings.dev_root,
        sys_root=sys_root,
    )
    amd = AmdReader(
        timeout_s=timeout_s,
        dev_root=settings.dev_root,
        sys_root=sys_root,
        proc_root=settings.proc_root,
    )
    if settings.cards in (NVML, AMD):
        return nvml if settings.cards == NVML else amd
    by_nvml = VendorReader(
        cards=nvml,
        present=functools.partial(has_pci_card, sys_root, vendor=_NVIDIA_ON_PCI),
        name="NVIDIA",
    )
    by_amd = VendorReader(cards=amd, present=lambda: bool(amdgpu.devices(sys_root)), name="AMD")
    return JoinedCards((by_nvml, by_amd), fallback=by_nvml, timeout_s=timeout_s)
