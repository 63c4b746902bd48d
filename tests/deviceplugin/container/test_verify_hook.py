"""The program that verifies on the host whose container starts."""

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from deviceplugin.container.verify_hook import VerifyHook

UID = "0f7d1b0a-0000-4000-8000-000000000000"
CONTAINERD = ("io.kubernetes.cri.sandbox-uid", "io.kubernetes.cri.container-name")
CRI_O = ("io.kubernetes.pod.uid", "io.kubernetes.container.name")


@pytest.fixture(scope="module")
def hook(tmp_path_factory: pytest.TempPathFactory) -> VerifyHook:
    installed = VerifyHook(tmp_path_factory.mktemp("bin"))
    installed.install()
    assert installed.problem is None
    return installed


def run(hook: VerifyHook, state: str, *containers: str) -> str:
    """Run the hook as runc does; return why it fails the start, or an empty text."""
    edit = hook.edit(uid=UID, containers=containers or ("train",))
    assert edit["hookName"] == "createRuntime"
    ran = subprocess.run(  # noqa: S603 - our own program
        edit["args"],
        executable=edit["path"],
        input=state,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode == 0) == (not ran.stderr)
    return ran.stderr


def a_state(annotations: Mapping[str, str], **more: Any) -> str:
    """Return the OCI state of a container, with *more* before the annotations."""
    state = {"ociVersion": "1.2.0", "id": "c", "status": "creating", "pid": 7, "bundle": "/b"}
    return json.dumps({**state, **more, "annotations": dict(annotations), "more": [1, {"a": None}]})


@pytest.mark.parametrize("keys", [CONTAINERD, CRI_O, (*CONTAINERD, *CRI_O)])
def test_the_container_that_the_spec_is_for_starts(hook: VerifyHook, keys: tuple[str, ...]) -> None:
    notes = dict(zip(keys, (UID, "train") * 2, strict=False)) | {"other": 'with "quotes" and \\'}

    assert run(hook, a_state(notes)) == ""
    assert run(hook, a_state(notes), "prepare", "train") == ""
    assert run(hook, json.dumps(json.loads(a_state(notes)), indent=2)) == ""


@pytest.mark.parametrize("keys", [CONTAINERD, CRI_O])
@pytest.mark.parametrize(
    ("uid", "name", "why"),
    [
        ("0f7d1b0a-0000-4000-8000-000000000001", "train", "container of another pod"),
        (UID[:-1], "train", "container of another pod"),
        (f"{UID}0", "train", "container of another pod"),
        (UID, "prepare", "another container of the pod"),
        (UID, "train2", "another container of the pod"),
        (UID, "", "another container of the pod"),
    ],
)
def test_any_other_container_does_not(
    hook: VerifyHook, keys: tuple[str, str], uid: str, name: str, why: str
) -> None:
    assert why in run(hook, a_state(dict(zip(keys, (uid, name), strict=True))))


@pytest.mark.parametrize(
    "notes",
    [
        {},
        {CONTAINERD[0]: UID},
        {CRI_O[1]: "train"},
        # One runtime's annotations may come from the pod: both have to agree.
        {CONTAINERD[0]: UID, CONTAINERD[1]: "train", CRI_O[0]: "uid-of-another"},
    ],
)
def test_what_the_runtime_does_not_say_in_full_starts_nothing(
    hook: VerifyHook, notes: dict[str, str]
) -> None:
    assert run(hook, a_state(notes))


@pytest.mark.parametrize(
    "state",
    [
        "",
        "{",
        "[]",
        '{"annotations": 7}',
        '{"annotations"}',
        '{"annotations": {"a": "b"',
        '{"annotations": {"a": "b\\',
        '{"id": ]}',
        "[" * 1000,
        '{"id": ' + "[" * 1000,
        '{"id": "' + "x" * (1 << 20) + '"}',
        # Not the container's own annotations.
        a_state({}, labels=dict(zip(CONTAINERD, (UID, "train"), strict=True))),
        a_state({}, inner={"annotations": dict(zip(CONTAINERD, (UID, "train"), strict=True))}),
    ],
)
def test_a_state_that_makes_no_sense_starts_nothing(hook: VerifyHook, state: str) -> None:
    assert run(hook, state).startswith("fracgpu: ")


def test_a_hook_without_arguments_starts_nothing(hook: VerifyHook) -> None:
    path = hook.edit(uid=UID, containers=["train"])["path"]
    for args in ([], ["uid"]):
        ran = subprocess.run([path, *args], input="{}", text=True, capture_output=True, check=False)  # noqa: S603
        assert ran.returncode == 1


def test_an_installed_hook_is_replaced_while_it_runs(tmp_path: Path) -> None:
    for _ in range(2):
        hook = VerifyHook(tmp_path / "bin")
        hook.install()
        assert hook.problem is None

    (file,) = (tmp_path / "bin").iterdir()
    assert os.access(file, os.X_OK)


def test_a_hook_that_was_not_built_or_cannot_run_says_what_helps(tmp_path: Path) -> None:
    missing = VerifyHook(tmp_path / "bin", built=tmp_path)
    (tmp_path / "built").mkdir()
    for machine in ("x86_64", "aarch64"):
        (tmp_path / "built" / f"verify-{machine}").write_bytes(b"\x7fELF, but nothing that runs")
    broken = VerifyHook(tmp_path / "bin", built=tmp_path / "built")
    nowhere = VerifyHook(tmp_path / "built" / "verify-x86_64" / "bin")

    for hook, why in ((missing, "take its image"), (broken, "noexec"), (nowhere, "does not run")):
        hook.install()
        assert hook.problem is not None
        assert why in hook.problem
        assert "enable NRI" in hook.problem
