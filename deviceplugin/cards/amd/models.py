"""Names of cards that do not say theirs, by the device number in their PCI configuration space.

Source: the table ``amdgpu.ids`` of libdrm, for the cards that have a ``unique_id``; where the
revision makes the difference, the name is what they have in common.
"""

import re
from typing import Final

_NAMES: Final = {
    0x66A1: "AMD Instinct MI50",
    0x66AF: "AMD Radeon VII",
    0x7388: "AMD Instinct MI100",
    0x738C: "AMD Instinct MI100",
    0x738E: "AMD Instinct MI100",
    0x73A1: "AMD Radeon Pro V620",
    0x73A3: "AMD Radeon Pro W6800",
    0x73BF: "AMD Radeon RX 6800/6900",
    0x7408: "AMD Instinct MI250X",
    0x740C: "AMD Instinct MI250",
    0x740F: "AMD Instinct MI210",
    0x7448: "AMD Radeon Pro W7900",
    0x7449: "AMD Radeon Pro W7800 48GB",
    0x744A: "AMD Radeon Pro W7900 Dual Slot",
    0x744C: "AMD Radeon RX 7900",
    0x745E: "AMD Radeon Pro W7800",
    0x7460: "AMD Radeon Pro V710",
    0x7470: "AMD Radeon Pro W7700",
    0x747E: "AMD Radeon RX 7700/7800",
    0x7480: "AMD Radeon RX 7600",
    0x74A0: "AMD Instinct MI300A",
    0x74A1: "AMD Instinct MI300X",
    0x74A2: "AMD Instinct MI308X",
    0x74A5: "AMD Instinct MI325X",
    0x74A8: "AMD Instinct MI308X HF",
    0x74A9: "AMD Instinct MI300X HF",
    0x74B5: "AMD Instinct MI300X VF",
    0x7550: "AMD Radeon RX 9070",
    0x7551: "AMD Radeon AI PRO R9700",
    0x7590: "AMD Radeon RX 9060",
    0x75A0: "AMD Instinct MI350X",
    0x75A3: "AMD Instinct MI355X",
}
_HEX: Final = re.compile(r"0x[0-9a-f]{1,8}")


def model_name(device: str) -> str:
    """Return a card's name by its device number, such as ``0x74a1``."""
    if not _HEX.fullmatch(device):
        return "AMD card"
    return _NAMES.get(int(device, 16), f"AMD card {device}")
