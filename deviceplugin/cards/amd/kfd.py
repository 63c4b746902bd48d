"""What ROCm's driver says of the cards: in which order it counts them, and their compute units.

Source: ``node_show`` in the kernel's ``drivers/gpu/drm/amd/amdkfd/kfd_topology.c``, which writes
``/sys/class/kfd/kfd/topology/nodes/<N>/properties`` as lines of a name and a number. A node with
``simd_count`` above 0 is a card, ``drm_render_minor`` is the number of its ``renderD`` file, and a
compute unit has ``simd_per_cu`` of its ``simd_count``. ``gfx_target_version`` 90402 is gfx942.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from deviceplugin.cards.amd.sysfs import read_text

_MAJOR, _MINOR = 10_000, 100
# Names are of this length and shorter; a node is a processor or a card.
_MOST_NODES: Final = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeNode:
    """One card.

    Attributes:
        number: its node's. Programs number the cards that they can open in this order.
        compute_units: how many it has; 0 where that is not known.
        family: its architecture, such as ``gfx942``, or empty.
    """

    number: int
    compute_units: int
    family: str


def compute_nodes(sys_root: Path) -> Mapping[int, ComputeNode]:
    """Return the cards by the number of their ``renderD`` file; what cannot be read is left out."""
    folder = sys_root / "class/kfd/kfd/topology/nodes"
    try:
        numbers = sorted(int(entry.name) for entry in folder.iterdir() if entry.name.isdecimal())
    except OSError:
        return {}
    found: dict[int, ComputeNode] = {}
    for number in numbers[:_MOST_NODES]:
        try:
            properties = _properties(read_text(folder / str(number) / "properties"))
        except OSError:
            continue
        render, simds = properties.get("drm_render_minor", 0), properties.get("simd_count", 0)
        if render and simds:
            per_unit = properties.get("simd_per_cu", 0)
            found[render] = ComputeNode(
                number=number,
                compute_units=simds // per_unit if per_unit else 0,
                family=_family(properties.get("gfx_target_version", 0)),
            )
    return found


def _properties(text: str) -> Mapping[str, int]:
    pairs = (line.split() for line in text.splitlines())
    return {
        pair[0]: int(pair[1])
        for pair in pairs
        if len(pair) == 2 and pair[1].isascii() and pair[1].isdecimal()  # noqa: PLR2004 - a pair
    }


def _family(version: int) -> str:
    major, rest = divmod(version, _MAJOR)
    minor, step = divmod(rest, _MINOR)
    return f"gfx{major}{minor:x}{step:x}" if version else ""
