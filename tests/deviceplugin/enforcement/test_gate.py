"""The gate of a container: its hook fails the start until the agent has opened it."""

import subprocess
from pathlib import Path

import pytest

from deviceplugin.container.verify_hook import VerifyHook
from deviceplugin.enforcement.gate import Gate, GateError
from deviceplugin.nri.interface import Adjustment, Hook, HookKind, Mount

OTHER = Hook(path="/bin/other")


@pytest.fixture(scope="module")
def hook(tmp_path_factory: pytest.TempPathFactory) -> VerifyHook:
    installed = VerifyHook(tmp_path_factory.mktemp("bin"))
    installed.install()
    assert installed.problem is None
    return installed


@pytest.fixture
def gate(hook: VerifyHook, tmp_path: Path) -> Gate:
    return Gate(hook.file, tmp_path / "limits", problem=lambda: hook.problem)


def start(adjustment: Adjustment) -> str:
    """Run the hook as runc does in a container; return why it fails the start."""
    sources = {mount.destination: mount.source for mount in adjustment.mounts}
    hook = adjustment.hooks[HookKind.START_CONTAINER][-1]
    ran = subprocess.run(  # noqa: S603 - our own program
        [sources.get(word, word) for word in hook.args],
        executable=sources[hook.path],
        input="{}",
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode == 0) == (not ran.stderr)
    return ran.stderr


def test_a_container_starts_only_after_the_gate_was_opened(gate: Gate) -> None:
    first, second = gate.shut("c1", Adjustment()), gate.shut("c2", Adjustment())
    assert "were not proved" in start(first)

    gate.open("c1")

    assert start(first) == ""
    assert "were not proved" in start(second)
    assert all("ro" in mount.options for mount in first.mounts)


def test_what_the_container_gets_besides_stays(gate: Gate) -> None:
    mine = Mount(destination="/lib", source="/host/lib")
    before = Adjustment(mounts=(mine,), env={"A": "b"}, hooks={HookKind.START_CONTAINER: (OTHER,)})

    after = gate.shut("c1", before)

    assert after.mounts[0] == mine
    assert after.env == before.env
    assert after.hooks[HookKind.START_CONTAINER][0] == OTHER


def test_a_container_made_again_starts_behind_a_shut_gate(gate: Gate) -> None:
    gate.shut("c1", Adjustment())
    gate.open("c1")

    assert "were not proved" in start(gate.shut("c1", Adjustment()))


def test_a_container_without_a_gate_is_opened_without_a_file(gate: Gate, tmp_path: Path) -> None:
    gate.shut("c1", Adjustment())
    gate.open("c0")

    assert [file.name for file in (tmp_path / "limits").iterdir()] == ["c1"]


def test_files_of_containers_that_are_gone_are_removed(gate: Gate, tmp_path: Path) -> None:
    for name in ("c1", "c2", "c3"):
        gate.shut(name, Adjustment())
    gate.forget("c1")
    gate.keep_only({"c3"})
    gate.forget("c9")

    assert [file.name for file in (tmp_path / "limits").iterdir()] == ["c3"]


@pytest.mark.parametrize("name", ["", "../c1", "a/b", ".hidden"])
def test_a_name_that_leads_elsewhere_is_none(gate: Gate, name: str) -> None:
    with pytest.raises(GateError, match="no name of a container"):
        gate.shut(name, Adjustment())


def test_a_folder_that_cannot_be_written_is_said(hook: VerifyHook, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    gate = Gate(hook.file, tmp_path / "file" / "limits", problem=lambda: None)

    with pytest.raises(GateError, match="cannot write"):
        gate.shut("c1", Adjustment())


def test_a_program_that_does_not_run_is_a_problem(tmp_path: Path) -> None:
    hook = VerifyHook(tmp_path / "bin", built=tmp_path / "nothing")
    hook.install()

    assert "this FracGPU has no verify-" in str(
        Gate(hook.file, tmp_path, problem=lambda: hook.problem).problem
    )
