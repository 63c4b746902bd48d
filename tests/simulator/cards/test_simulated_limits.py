"""What a simulated driver keeps per cgroup, and what it refuses."""

from pathlib import Path

import pytest

from deviceplugin.cards.interface import CardLimitsError, GroupLimits
from fracgpu.cards.card import CardUuid
from fracgpu.units import Mib
from simulator.cards.processes import ProcessFolder, SimulatedProcess
from simulator.cards.simulated_limits import SimulatedLimits, capped

A, B = CardUuid("GPU-a"), CardUuid("GPU-b")


def of(mib: int, *, used: int = 0) -> GroupLimits:
    return GroupLimits(guaranteed_mib=Mib(mib), limit_mib=Mib(mib), used_mib=Mib(used))


@pytest.fixture
def processes(tmp_path: Path) -> ProcessFolder:
    return ProcessFolder(tmp_path / "processes")


@pytest.fixture
def limits(processes: ProcessFolder) -> SimulatedLimits:
    return SimulatedLimits(processes)


def a_group(root: Path, name: str) -> str:
    (root / "pods" / name).mkdir(parents=True)
    return str(root / "pods" / name)


def run(processes: ProcessFolder, group: str, *, wants: int) -> SimulatedProcess:
    process = SimulatedProcess(pid=1, cards=(A,), used_mib=wants, busy_ratio=0.0, cgroup=group)
    processes.write(process)
    return process


def test_each_card_of_a_cgroup_has_its_limit(limits: SimulatedLimits, tmp_path: Path) -> None:
    group = a_group(tmp_path, "one")
    assert limits.read(A, group) == GroupLimits(guaranteed_mib=Mib(0), limit_mib=None)

    limits.set(A, group, of(1000))
    limits.set(B, group, of(200))

    assert (limits.read(A, group), limits.read(B, group)) == (of(1000), of(200))


def test_those_above_keep_what_is_kept_in_them(limits: SimulatedLimits, tmp_path: Path) -> None:
    for name, mib in {"one": 1000, "two": 500}.items():
        limits.set(A, a_group(tmp_path, name), of(mib))

    assert limits.read(A, str(tmp_path / "pods")).guaranteed_mib == 1500
    assert limits.read(B, str(tmp_path / "pods")).guaranteed_mib == 0


def test_a_process_holds_no_more_than_its_limit(
    limits: SimulatedLimits, processes: ProcessFolder, tmp_path: Path
) -> None:
    group = a_group(tmp_path, "one")
    process = run(processes, group, wants=900)
    assert limits.read(A, group).used_mib == 900

    with pytest.raises(CardLimitsError, match="more than that is in use"):
        limits.set(A, group, of(400))
    limits.set(A, group, of(2000))
    run(processes, group, wants=3000)

    assert limits.read(A, group) == of(2000, used=2000)
    assert [each.used_mib for each in capped([process], A)] == [900]
    assert [each.used_mib for each in capped(processes.read(), B)] == [3000]


def test_a_cgroup_that_is_gone_is_not_known(limits: SimulatedLimits, tmp_path: Path) -> None:
    gone = str(tmp_path / "gone")

    with pytest.raises(CardLimitsError, match="does not know the cgroup"):
        limits.read(A, gone)
    with pytest.raises(CardLimitsError, match="does not know the cgroup"):
        limits.set(A, gone, of(1))
