"""What NVML answered on an H100, through the stand-in: driver 580.159.04, in a virtual machine.

The raw answers were read with pynvml itself; ``tests/card`` asks the same of a card at hand.
"""

from tests.support.nvml import Standin, a_card

# Two programs side by side. "used" is without the driver's part, as version 2 of the call has it.
H100 = {
    "name": "NVIDIA H100 80GB HBM3",
    "architecture": 9,
    "brand": 14,
    "virtualization": 1,
    "pci": "00000000:00:06.0",
    "total": 85520809984,
    "reserved": 503316480,
    "used": 8508538880 - 503316480,
    "gpu": 75,
    "copy": 4,
    "encoder": 0,
    "decoder": 0,
    "power_mw": 518817,
    "energy_mj": 11762382,
    "replays": 0,
    "temperature.0": 59,
    "clock.1": 1980,
    "clock.2": 2619,
    "field.82": 48,
    "rows": "0 0 0 0",
    "ecc.0": 0,
    "violation.0": 0,
    "violation.1": 0,
    "gpm": 1,
    "gpm.1": 75.35065,
    "gpm.2": 70.09176,
    "compute": "573:5043650560 572:2946498560",
    "samples": "573:1000:30 572:2000:45",
}


async def test_an_h100_is_shared_less_what_its_driver_keeps(standin: Standin) -> None:
    standin.say(a_card(0, **H100))

    cards = await standin.list_cards()

    found = cards["cards"][0]
    assert found["card"]["model"] == "NVIDIA H100 80GB HBM3"
    assert (found["card"]["total_mib"], found["card"]["reserved_mib"]) == (81559, 480)
    assert (found["family"], found["brand"]) == ("hopper", "nvidia")


async def test_each_process_of_an_h100_has_its_memory_and_its_part_of_the_time(
    standin: Standin,
) -> None:
    standin.say(a_card(0, **H100))
    await standin.list_cards()

    assert await standin.processes() == [(572, 2810, 45.0), (573, 4810, 30.0)]
