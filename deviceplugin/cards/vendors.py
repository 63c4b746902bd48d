"""The names of vendors, where something is for the cards of one only."""

from typing import Final

NVIDIA: Final = "nvidia"
AMD: Final = "amd"

# In the configuration space of PCI devices.
NVIDIA_ON_PCI: Final = 0x10DE
