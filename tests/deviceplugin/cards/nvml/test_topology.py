"""Distances between cards through the real pynvml: smaller is faster."""

from typing import Any

import pynvml
import pytest

from tests.support.nvml import Standin, a_card

Links = dict[tuple[int, int], int]


async def distances(standin: Standin) -> Links:
    listed = await standin.list_cards()
    index = {hardware["card"]["uuid"]: hardware["card"]["index"] for hardware in listed["cards"]}
    return {
        (index[hardware["card"]["uuid"]], index[other]): distance
        for hardware in listed["cards"]
        for other, distance in hardware["card"]["links"].items()
    }


def both(one: int, other: int, distance: int) -> Links:
    return {(one, other): distance, (other, one): distance}


@pytest.mark.parametrize(
    ("zero", "one", "distance"),
    [
        pytest.param({}, {}, 40, id="pcie-level"),
        pytest.param({"nvlink": "down down"}, {"nvlink": "down"}, 40, id="links-down"),
        pytest.param({"nvlink": "1 down 1"}, {"nvlink": "0 0"}, 8, id="two-links"),
        pytest.param({"nvlink": " ".join("1" * 12)}, {}, 1, id="twelve-links"),
        pytest.param({"nvlink": " ".join(["switch"] * 18)}, {"nvlink": "switch"}, 9, id="switch"),
        pytest.param({"nvlink": "switch switch"}, {"nvlink": "down"}, 40, id="one-on-the-switch"),
    ],
)
async def test_nvlink_is_nearer_than_pcie_and_more_links_are_nearer(
    standin: Standin, zero: dict[str, Any], one: dict[str, Any], distance: int
) -> None:
    standin.say(a_card(0, **{"ancestor.1": 40, **zero}), a_card(1, **one))

    assert await distances(standin) == both(0, 1, distance)


async def test_cards_on_one_board_are_no_nearer_than_pcie_allows(standin: Standin) -> None:
    standin.say(a_card(0, **{"ancestor.1": pynvml.NVML_TOPOLOGY_INTERNAL}))

    assert await distances(standin) == both(0, 1, 10)


async def test_a_distance_that_nobody_can_tell_is_left_out(standin: Standin) -> None:
    assert await distances(standin) == {}


async def test_distances_are_measured_once_for_each_set_of_cards(standin: Standin) -> None:
    standin.say(a_card(0, **{"ancestor.1": 20, "ancestor.2": 50}))
    first = await distances(standin)
    again = await distances(standin)
    calls = await standin.calls("nvmlDeviceGetTopologyCommonAncestor")
    standin.say({"cards": 3}, a_card(2), {"1.ancestor.2": 30})

    third = await distances(standin)

    assert first == again == both(0, 1, 20)
    assert calls == 1
    assert third == {**both(0, 1, 20), **both(0, 2, 50), **both(1, 2, 30)}


async def test_a_card_that_cannot_be_reached_keeps_the_distances_it_had(standin: Standin) -> None:
    standin.say(a_card(0, **{"ancestor.1": 20}))
    before = await distances(standin)
    standin.say({"1.error.nvmlDeviceGetHandleByIndex_v2": pynvml.NVML_ERROR_GPU_IS_LOST})

    after = await distances(standin)

    assert before == both(0, 1, 20)
    assert after == {(1, 0): 20}  # the card that answers has nobody left to be near to
