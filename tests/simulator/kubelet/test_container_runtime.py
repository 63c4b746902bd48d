"""The runtime: CDI names become what a container really gets."""

import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from deviceplugin.cards.interface import DeviceNode
from deviceplugin.container.cdi import CdiFolder, CdiSpec, closed_spec
from deviceplugin.container.verify_hook import VerifyHook
from deviceplugin.enforcement.gate import PROOF_PATH
from deviceplugin.nri.interface import Container, Mount, PodSandbox
from simulator.cards.processes import ProcessFolder
from simulator.kubelet.container_runtime import (
    ContainerLoad,
    ContainerRuntime,
    CreatedContainer,
    RuntimeFailedError,
)
from simulator.kubelet.device_manager import ContainerKey
from simulator.kubelet.nri import AdjustedContainer

UID = "8f3c1d2e-0a1b-4c5d-8e9f-0123456789ab"
KEY = ContainerKey(pod_uid=UID, namespace="ml", pod="train-0", container="train")


SANDBOX = PodSandbox(id="s", uid=UID, name="train-0", namespace="ml")


async def created(runtime: ContainerRuntime, **env: str) -> CreatedContainer:
    return await runtime.create(SANDBOX, "train", ["fracgpu.io/slot=a"], env=env)


@pytest.fixture
def runtime(tmp_path: Path) -> ContainerRuntime:
    return ContainerRuntime(
        cdi_dir=tmp_path / "cdi",
        proc_root=tmp_path / "proc",
        processes=ProcessFolder(tmp_path / "processes"),
    )


async def test_a_container_gets_what_the_specs_say(
    runtime: ContainerRuntime, tmp_path: Path
) -> None:
    nodes = (DeviceNode(path="/dev/nvidia0", host_path="/dev/fake"),)
    CdiFolder(tmp_path / "cdi").write(CdiSpec(name="a", env={"X": "1=2"}, device_nodes=nodes))

    got = await created(runtime, Y="3")

    assert dict(got.env) == {"X": "1=2", "Y": "3"}
    assert got.device_nodes == ("/dev/nvidia0",)


async def test_a_file_that_does_not_exist_is_not_mounted(
    runtime: ContainerRuntime, tmp_path: Path
) -> None:
    CdiFolder(tmp_path / "cdi").write(closed_spec("a"))

    with pytest.raises(RuntimeFailedError, match="no such file"):
        await created(runtime)


@pytest.mark.parametrize(("uid", "fails"), [(UID, False), ("uid-of-another", True)])
async def test_a_hook_may_fail_a_start(
    runtime: ContainerRuntime, tmp_path: Path, uid: str, fails: bool
) -> None:
    hook = VerifyHook(tmp_path / "bin")
    hook.install()
    spec = CdiSpec(name="a", hooks=(hook.edit(uid=uid, containers=["train"]),))
    CdiFolder(tmp_path / "cdi").write(spec)

    with pytest.raises(RuntimeFailedError, match="fracgpu: ") if fails else nullcontext():
        await created(runtime)


async def test_a_name_without_a_spec_cannot_be_resolved(runtime: ContainerRuntime) -> None:
    with pytest.raises(RuntimeFailedError, match=r"unresolvable CDI devices fracgpu\.io/slot=a"):
        await created(runtime)


async def test_a_name_in_two_specs_is_a_conflict(runtime: ContainerRuntime, tmp_path: Path) -> None:
    spec = CdiSpec(name="a")
    CdiFolder(tmp_path / "cdi").write(spec)
    (tmp_path / "cdi" / "other.json").write_text(json.dumps(spec.document()))

    with pytest.raises(RuntimeFailedError, match="conflicting"):
        await created(runtime)


async def test_half_a_file_is_passed_over(runtime: ContainerRuntime, tmp_path: Path) -> None:
    CdiFolder(tmp_path / "cdi").write(CdiSpec(name="a"))
    (tmp_path / "cdi" / "half.json").write_text('{"kind":')

    assert dict((await created(runtime)).env) == {}


class AskedPlugins:
    """Plugins that note what they are asked, and give each container a gate."""

    def __init__(self, gate: Path) -> None:
        self.pods: dict[str, PodSandbox] = {}
        self.asked: list[tuple[str, bool]] = []
        self._gate = gate

    async def create_container(self, pod: PodSandbox, container: Container) -> AdjustedContainer:
        self.asked.append(("create", False))
        mount = Mount(destination=PROOF_PATH, source=str(self._gate))
        return AdjustedContainer(container=replace(container, mounts=[mount]))

    async def start_container(self, pod: PodSandbox, container: Container) -> None:
        folder = self._gate.parent / "cgroup" / container.cgroups_path.lstrip("/")
        self.asked.append(("start", folder.is_dir()))


async def test_a_container_has_its_cgroup_when_plugins_are_asked_about_its_start(
    tmp_path: Path,
) -> None:
    CdiFolder(tmp_path / "cdi").write(CdiSpec(name="a", env={}, device_nodes=()))
    gate = tmp_path / "gate"
    gate.write_text("")
    plugins = AskedPlugins(gate)
    runtime = ContainerRuntime(
        cdi_dir=tmp_path / "cdi",
        proc_root=tmp_path / "proc",
        processes=ProcessFolder(tmp_path / "processes"),
        plugins=plugins,
        cgroup_root=tmp_path / "cgroup",
    )

    with pytest.raises(RuntimeFailedError, match="no limits stand"):
        await created(runtime)
    assert plugins.asked == [("create", False), ("start", True)]
    gate.write_text("they stand")
    got = await created(runtime)
    runtime.start(
        KEY, ContainerLoad(cards=("GPU-a",), used_mib=64, busy_ratio=0.5), cgroup=got.cgroup
    )

    (process,) = ProcessFolder(tmp_path / "processes").read()
    assert process.cgroup == got.cgroup
    groups = tmp_path / "cgroup" / "kubepods" / "burstable" / f"pod{UID}"
    assert str(groups) in got.cgroup
    left = {each.name for each in groups.iterdir()}
    runtime.stop(KEY)
    assert {each.name for each in groups.iterdir()} == left - {Path(got.cgroup).name}
