"""What ROCm's driver says of the cards: their order, their compute units, and links among them.

Source: ``node_show`` in the kernel's ``drivers/gpu/drm/amd/amdkfd/kfd_topology.c``, which writes
``/sys/class/kfd/kfd/topology/nodes/<N>/properties`` as lines of a name and a number. A node with
``simd_count`` above 0 is a card, ``drm_render_minor`` is the number of its ``renderD`` file, and a
compute unit has ``simd_per_cu`` of its ``simd_count``. ``gfx_target_version`` 90402 is gfx942.
``io_links/<M>/properties`` of a node has ``type`` 11 for XGMI, AMD's link between cards, with a
``weight`` of 15 for each hop (``kfd_parse_subtype_iolink`` in ``kfd_crat.c``), and ``node_to``.

The kernel shows a process the nodes that its device cgroup allows, so a container sees its own.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from deviceplugin.cards.amd.sysfs import read_text

_MAJOR, _MINOR = 10_000, 100
_XGMI: Final = 11
_WEIGHT_OF_A_HOP: Final = 15
# Names are of this length and shorter; a node is a processor or a card.
_MOST_NODES: Final = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeNode:
    """One card.

    Attributes:
        number: its node's. Programs number the cards that they can open in this order.
        compute_units: how many it has; 0 where that is not known.
        family: its architecture, such as ``gfx942``, or empty.
        hops: how many links away other nodes are, by their number.
    """

    number: int
    compute_units: int
    family: str
    hops: Mapping[int, int] = field(default_factory=dict)


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
                hops=dict(_hops(folder / str(number) / "io_links")),
            )
    return found


def _hops(folder: Path) -> Iterator[tuple[int, int]]:
    try:
        files = [link / "properties" for link in folder.iterdir()]
    except OSError:
        return
    for file in files[:_MOST_NODES]:
        try:
            link = _properties(read_text(file))
        except OSError:
            continue
        if link.get("type") == _XGMI and "node_to" in link:
            yield link["node_to"], max(1, link.get("weight", 0) // _WEIGHT_OF_A_HOP)


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
