"""What a spec gives, said to the runtime by NRI."""

import os
from pathlib import Path

import pytest

from deviceplugin.cards.interface import DeviceNode
from deviceplugin.container.adjustment import adjustment_of, host_file
from deviceplugin.container.cdi import MARK_PATH, CdiSpec, Mount
from deviceplugin.container.spec_builder import SpecBuildError
from deviceplugin.nri.interface import Hook, HookKind

NULL = DeviceNode(path="/dev/nvidia0", host_path="/dev/null")


def test_everything_in_a_spec_is_in_the_adjustment() -> None:
    hook = {
        "hookName": "createContainer",
        "path": "/usr/bin/nvidia-cdi-hook",
        "args": ["nvidia-cdi-hook", "update-ldcache"],
        "env": ["A=1"],
        "timeout": 5,
    }
    spec = CdiSpec(
        name="train",
        env={"A": "ours"},
        foreign_env=("A=theirs", "B=1=2"),
        device_nodes=(NULL,),
        foreign_nodes=({"path": "/dev/nvidiactl", "hostPath": "/dev/zero", "uid": 7},),
        mounts=(Mount(host_path="/run/mps", path="/mps"),),
        foreign_mounts=({"hostPath": "/lib/a.so", "containerPath": "/lib/b.so"},),
        hooks=(hook,),
    )

    answer = adjustment_of(spec)

    assert dict(answer.env) == {"A": "ours", "B": "1=2"}
    assert [(d.path, d.type, d.major, d.minor, d.mode, d.uid) for d in answer.devices] == [
        ("/dev/nvidia0", "c", 1, 3, 0o666, None),
        ("/dev/nvidiactl", "c", 1, 5, 0o666, 7),
    ]
    assert [(m.destination, m.source, m.type, m.options) for m in answer.mounts] == [
        (MARK_PATH, "/dev/null", "bind", ("bind", "ro", "nosuid", "noexec")),
        ("/mps", "/run/mps", "bind", ("rw", "nosuid", "nodev", "rbind")),
        ("/lib/b.so", "/lib/a.so", "bind", ("ro", "nosuid", "nodev", "bind")),
    ]
    assert answer.hooks == {
        HookKind.CREATE_CONTAINER: [
            Hook(
                path="/usr/bin/nvidia-cdi-hook",
                args=("nvidia-cdi-hook", "update-ldcache"),
                env=("A=1",),
                timeout_s=5,
            )
        ]
    }


def test_a_device_file_of_the_host_is_looked_for_where_the_host_has_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "nvidia0")
    node = DeviceNode(path="/dev/nvidia0")

    assert host_file(node, dev_root=tmp_path) == tmp_path / "nvidia0"
    assert host_file(NULL, dev_root=tmp_path) == tmp_path / "null"
    assert host_file(DeviceNode(path="/dev/x", host_path="/srv/x"), dev_root=tmp_path) == Path(
        "/srv/x"
    )
    with pytest.raises(SpecBuildError, match="is not a character device"):
        adjustment_of(CdiSpec(name="a", device_nodes=(node,)), dev_root=tmp_path)
    with pytest.raises(SpecBuildError, match="cannot read"):
        adjustment_of(CdiSpec(name="a", device_nodes=(NULL,)), dev_root=tmp_path)


@pytest.mark.parametrize(
    "hook", [{"hookName": "later", "path": "/x"}, {"hookName": "prestart"}, {"path": "/x"}]
)
def test_a_hook_that_nobody_knows_is_a_refusal(hook: dict[str, str]) -> None:
    with pytest.raises(SpecBuildError, match="driver's CDI spec"):
        adjustment_of(CdiSpec(name="a", hooks=(hook,)))
