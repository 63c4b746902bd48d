"""A cgroup's limits through the real pynvml, kept by a stand-in with the driver's odd sides."""

from pathlib import Path
from typing import Any, Final

import pynvml
import pytest

from deviceplugin.cards.interface import GroupLimits
from fracgpu.cards.card import CardUuid
from fracgpu.units import Mib
from tests.fakes.driver_limits import DriverModel
from tests.support.nvml import MIB, Standin, a_standin, build

NONE: Final = {"guaranteed_mib": 0, "limit_mib": None, "used_mib": 0}


@pytest.fixture
async def root(standin: Standin, tmp_path: Path) -> Path:
    """The root of a tree of cgroups that the driver can limit on both cards."""
    cgroups = tmp_path / "cgroup"
    cgroups.mkdir()
    standin.say(limits=1, cgroups=cgroups)
    await standin.list_cards()
    return cgroups


async def limit(standin: Standin, group: Path, kept: int, most: int | None, card: int = 0) -> Any:
    words = f"{standin.uuid(card)} {group} {kept} {'none' if most is None else most}"
    return await standin.ask(f"limit {words}")


async def limits(standin: Standin, group: Path, card: int = 0) -> Any:
    return await standin.ask(f"limits {standin.uuid(card)} {group}")


async def test_limits_are_of_one_cgroup_and_one_card(standin: Standin, root: Path) -> None:
    group = root / "pods" / "pod1" / "c1"
    group.mkdir(parents=True)
    standin.say({f"used_by.{group}": 5 * MIB + 1})

    assert await limits(standin, group) == {**NONE, "used_mib": 6}
    await limit(standin, group, 700, 1000)
    await limit(standin, group, 30, 300, card=1)

    assert await limits(standin, group) == {"guaranteed_mib": 700, "limit_mib": 1000, "used_mib": 6}
    assert (await limits(standin, group, card=1))["limit_mib"] == 300


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (pynvml.NVML_ERROR_NO_PERMISSION, "lets only root"),
        (pynvml.NVML_ERROR_NOT_SUPPORTED, "does not limit cgroups on this card"),
        (pynvml.NVML_ERROR_GPU_IS_LOST, "GPU is lost"),
    ],
)
async def test_why_a_limit_cannot_be_set_is_said(
    standin: Standin, root: Path, error: int, why: str
) -> None:
    standin.say({"error.nvmlDeviceSetMemoryLimits_v1": error})

    assert why in (await limit(standin, root, 1, 1))["error"]


async def test_an_older_driver_says_which_one_can(tmp_path: Path) -> None:
    missing = {"nvmlDeviceSetMemoryLimits_v1", "nvmlDeviceGetMemoryLimits_v1"}
    library = build(tmp_path / "old", without=frozenset(missing))
    async with a_standin(tmp_path, library=library) as standin:
        await standin.list_cards()

        assert "r615 is the first that does" in (await limits(standin, tmp_path))["error"]


async def test_a_card_that_hangs_is_said_in_time(standin: Standin, root: Path) -> None:
    standin.say({"0.hang.nvmlDeviceGetMemoryLimits_v1": 1})

    assert "NVML hangs" in (await limits(standin, root))["error"]
    assert await limits(standin, root, card=1) == NONE


async def test_a_limit_below_present_use_is_not_set(standin: Standin, root: Path) -> None:
    group = root / "c1"
    group.mkdir()
    standin.say({f"used_by.{group}": 500 * MIB})

    assert "more than that is in use" in (await limit(standin, group, 1, 499))["error"]
    assert (await limits(standin, group))["limit_mib"] is None


async def test_the_model_of_the_driver_has_the_stand_ins_odd_sides(
    standin: Standin, root: Path
) -> None:
    """Each cgroup above counts what is kept below it, also for what is gone."""
    model, card = DriverModel(root=str(root)), CardUuid(standin.uuid(0))
    pod = root / "pods" / "pod1"
    first, second = pod / "c1", pod / "c2"
    for group in (first, second):
        model.make(str(group))

    async def both(group: Path, kept: int, most: int | None) -> None:
        await limit(standin, group, kept, most)
        wanted = GroupLimits(
            guaranteed_mib=Mib(kept), limit_mib=None if most is None else Mib(most)
        )
        model.set(card, str(group), wanted)

    async def kept() -> list[int]:
        found = []
        for group in (pod, pod.parent):
            theirs = await limits(standin, group)
            assert theirs["guaranteed_mib"] == model.read(card, str(group)).guaranteed_mib
            found.append(theirs["guaranteed_mib"])
        return found

    await both(first, 700, 700)
    await both(second, 200, 200)
    assert await kept() == [900, 900]
    await both(first, 500, 500)
    assert await kept() == [700, 700]
    model.remove(str(second))
    assert await kept() == [700, 700]
    assert "does not know the cgroup" in (await limits(standin, second))["error"]
    await both(pod, 500, None)
    assert await kept() == [500, 500]
    await both(first, 0, None)
    assert await kept() == [0, 0]
