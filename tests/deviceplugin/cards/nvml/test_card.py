"""The NUMA node of a card, as the kernel has it; the card itself is in ``test_reader.py``."""

from pathlib import Path

import pytest

from deviceplugin.cards.nvml.card import numa_node


@pytest.mark.parametrize(
    ("bus_id", "folder", "text", "node"),
    [
        ("00000000:17:00.0", "0000:17:00.0", "1\n", 1),
        ("00000000:AF:00.0", "0000:af:00.0", "0\n", 0),  # the kernel writes small letters
        ("00010000:01:00.0", "10000:01:00.0", "3\n", 3),  # a domain beyond four digits
        ("0000:17:00.0", "0000:17:00.0", "2", 2),
        ("00000000:17:00.0", "0000:17:00.0", "-1\n", None),  # no NUMA nodes on this machine
        ("00000000:17:00.0", "0000:17:00.0", "what?", None),
        ("00000000:17:00.0", "0000:18:00.0", "1\n", None),
        ("", "0000:17:00.0", "1\n", None),
    ],
)
def test_the_numa_node_is_that_of_the_pci_device(
    tmp_path: Path, bus_id: str, folder: str, text: str, node: int | None
) -> None:
    device = tmp_path / "bus/pci/devices" / folder
    device.mkdir(parents=True)
    (device / "numa_node").write_text(text)

    assert numa_node(tmp_path, bus_id) == node
