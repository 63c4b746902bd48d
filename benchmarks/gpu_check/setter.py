"""A process that sets a limit through the driver, says so, and waits to be killed."""

import asyncio
import json
import signal
import sys
from pathlib import Path

from deviceplugin.cards.nvml.reader import NvmlReader
from deviceplugin.enforcement.driver import DriverEnforcer
from deviceplugin.enforcement.interface import Limit
from fracgpu.units import Mib
from process import logs


async def main(root: str, card: str, group: str, mib: str) -> None:
    """Set the limit of the cgroup *group* below *root*."""
    reader = NvmlReader()
    found = (await reader.list_cards()).cards
    hardware = next(each for each in found if each.card.uuid == card)
    size = Mib(int(mib))
    limit = Limit(card=hardware.card.uuid, guaranteed_mib=size, limit_mib=size)
    DriverEnforcer(reader.limits, Path(root)).apply(group, hardware, limit)
    sys.stdout.write(f"{json.dumps({'set': True})}\n")
    sys.stdout.flush()
    signal.pause()


if __name__ == "__main__":
    logs.configure(level="warning")
    asyncio.run(main(*sys.argv[1:]))
