"""A container's cgroup, by the path that the runtime says."""

from pathlib import Path

import pytest

from deviceplugin.enforcement.cgroups import ancestors, group_of, version_problem


@pytest.mark.parametrize(
    ("said", "group"),
    [
        ("/kubepods/burstable/pod1/c1", "/kubepods/burstable/pod1/c1"),
        ("/kubepods/pod1/c1/", "/kubepods/pod1/c1"),
        (
            "kubepods-burstable-pod1_2.slice:cri-containerd:c1",
            "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1_2.slice"
            "/cri-containerd-c1.scope",
        ),
        ("kubepods.slice:crio:c1", "/kubepods.slice/crio-c1.scope"),
        # A path of systemd's driver where the runtime uses cgroupfs.
        ("/system.slice/a:b:c1", "/system.slice/a:b:c1"),
    ],
)
def test_a_path_of_either_driver(said: str, group: str) -> None:
    assert group_of(said) == group


@pytest.mark.parametrize(
    "said", ["", "/", "kubepods/pod1", "/kubepods//c1", "/kubepods/../c1", "a:b:c", "-.slice:a:b"]
)
def test_what_is_no_path(said: str) -> None:
    with pytest.raises(ValueError, match="is no"):
        group_of(said)


def test_the_cgroups_above_from_the_nearest_up() -> None:
    assert ancestors("/a/b/c/d") == ("/a/b/c", "/a/b", "/a")
    assert ancestors("/a") == ()


def test_version_1_has_no_limits_to_set(tmp_path: Path) -> None:
    assert version_problem(tmp_path) == f"this node has no cgroup v2 at {tmp_path}"
    (tmp_path / "cgroup.controllers").touch()
    assert version_problem(tmp_path) is None
