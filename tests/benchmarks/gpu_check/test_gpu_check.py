"""``make gpu-check`` over stand-ins for NVML and CUDA: it finds each way in which a limit fails."""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.nvml import ROOT, a_card, build, write_values

CUDA = ROOT / "tests" / "fakes" / "cuda_standin" / "standin.c"
QUESTIONS = 7


@dataclass
class Machine:
    """A node with one card, or none, whose cgroups are in a folder."""

    folder: Path
    values: dict[str, object]

    def check(self, **env: str) -> tuple[int, str]:
        """Run the check; return its exit code and report."""
        write_values(self.folder / "values", self.values)
        command = [sys.executable, "-m", "tests.support.gpu_check_child"]
        done = subprocess.run(  # noqa: S603 - our own
            [*command, "--cgroup-root", str(self.folder / "cgroup"), "--mib", "1000"],
            cwd=ROOT,
            env={
                **os.environ,
                "LD_LIBRARY_PATH": str(self.folder),
                "NVML_STANDIN": str(self.folder / "values"),
                **env,
            },
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert not list((self.folder / "cgroup").glob("fracgpu-check-*")), done.stderr
        return done.returncode, done.stdout


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("libraries")
    build(folder)
    compiler = shutil.which("cc") or "gcc"  # build() has skipped without one
    flags = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared"]
    command = [compiler, *flags, "-o", str(folder / "libcuda.so.1"), str(CUDA)]
    subprocess.run(command, check=True)  # noqa: S603 - our own
    return folder


@pytest.fixture
def machine(libraries: Path, tmp_path: Path) -> Machine:
    for library in libraries.glob("*.so.1"):
        (tmp_path / library.name).symlink_to(library)
    cgroups = tmp_path / "cgroup"
    cgroups.mkdir()
    (cgroups / "cgroup.controllers").touch()
    values = {"driver": "615.30", "cards": 1, "limits": 1, "cgroups": cgroups, **a_card(0)}
    if os.geteuid() != 0:
        pytest.skip("only root may run the check")
    return Machine(tmp_path, values)


def test_where_everything_holds_the_report_says_so(machine: Machine) -> None:
    code, report = machine.check()

    assert f"{QUESTIONS} holds, 0 FAILS, 0 not known" in report
    assert code == 0
    assert "driver     can limit it" in report
    assert "kernel     the kernel does not limit the memory of cards" in report
    assert "1000 MiB with a limit of 1000 MiB" in report
    assert "640 MiB and 640 MiB, each with a limit of 1000 MiB" in report
    assert "1000 MiB were left above it, 0 MiB after the repair" in report


@pytest.mark.parametrize(
    ("odd", "failing"),
    [
        ("unlimited", ["a hard limit holds", "two containers that fight", "a limit outlives"]),
        ("card", ["a program is told its limit"]),
    ],
)
def test_what_does_not_hold_is_named(machine: Machine, odd: str, failing: list[str]) -> None:
    code, report = machine.check(CUDA_STANDIN=odd)

    assert code == 1
    named = [line.strip() for line in report.splitlines() if line.strip().startswith("FAILS")]
    assert len(named) == len(failing)
    assert all(text in line for text, line in zip(failing, named, strict=True))


def test_a_setting_that_has_no_effect_is_named(machine: Machine) -> None:
    machine.values["lost.nvmlDeviceSetMemoryLimits_v1"] = 1

    code, report = machine.check()

    assert code == 1
    assert "FAILS      a limit is read back" in report
    assert "has no limit, not of 1000 MiB" in report


def test_a_card_that_cuda_refuses_proves_nothing(machine: Machine) -> None:
    code, report = machine.check(CUDA_STANDIN="refuses")

    assert code == 1
    assert "not known  one container: CUDA's cuInit" in report


def test_without_a_driver_that_limits_there_is_nothing_to_check(machine: Machine) -> None:
    machine.values["limits"] = 0

    code, report = machine.check()

    assert code == 3
    assert "driver     GPU-00000000-0000-4000-8000-000000000000: the driver does not" in report


def test_everything_that_is_missing_is_said_at_once(machine: Machine) -> None:
    (machine.folder / "cgroup" / "cgroup.controllers").unlink()
    machine.values["0.mig"] = 1

    code, report = machine.check()

    assert code == 3
    assert "make gpu-check needs cgroup v2: this node has no cgroup v2 at" in report
    assert "make gpu-check needs a card: GPU-00000000-0000-4000-8000-000000000000: " in report
