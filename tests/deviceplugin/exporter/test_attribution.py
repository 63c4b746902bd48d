"""From a pid to a pod: every cgroup layout that nodes are known to have."""

import os
from pathlib import Path

import pytest

from deviceplugin.exporter.attribution import Attribution, Owner, owner_in_cgroup

UID = "8f3c1d2e-0a1b-4c5d-8e9f-0123456789ab"
SYSTEMD_UID = UID.replace("-", "_")
STATIC_UID = "0123456789abcdef0123456789abcdef"
CID = "c" * 64
OWNER = Owner(pod_uid=UID, container_id=CID)


@pytest.mark.parametrize(
    ("text", "owner"),
    [
        pytest.param(f"0::/kubepods/burstable/pod{UID}/{CID}\n", OWNER, id="v2-cgroupfs"),
        pytest.param(f"0::/kubepods/pod{UID}/{CID}\n", OWNER, id="v2-cgroupfs-guaranteed"),
        pytest.param(
            f"12:memory:/kubepods/besteffort/pod{UID}/{CID}\n11:cpu:/kubepods/x\n",
            OWNER,
            id="v1-cgroupfs",
        ),
        pytest.param(f"11:cpu:/\n4:memory:/kubepods/pod{UID}/{CID}\n", OWNER, id="v1-second-line"),
        pytest.param(
            "0::/kubepods.slice/kubepods-burstable.slice/"
            f"kubepods-burstable-pod{SYSTEMD_UID}.slice/cri-containerd-{CID}.scope\n",
            OWNER,
            id="v2-systemd-containerd",
        ),
        pytest.param(
            f"0::/kubepods.slice/kubepods-pod{SYSTEMD_UID}.slice/crio-{CID}.scope/container\n",
            OWNER,
            id="v2-systemd-crio",
        ),
        pytest.param(
            f"5:devices:/kubepods.slice/kubepods-pod{SYSTEMD_UID}.slice/docker-{CID}.scope\n",
            OWNER,
            id="v1-systemd-docker",
        ),
        pytest.param(
            f"4:memory:/system.slice/kubepods-burstable-pod{SYSTEMD_UID}.slice:cri-containerd:{CID}\n",
            OWNER,
            id="systemd-path-under-cgroupfs",
        ),
        pytest.param(
            f"0::/../../../kubepods-burstable.slice/kubepods-burstable-pod{SYSTEMD_UID}.slice/"
            f"cri-containerd-{CID}.scope\n",
            OWNER,
            id="v2-private-namespace",
        ),
        pytest.param(
            f"0::/kubepods/pod11111111-2222-3333-4444-555555555555/{'d' * 64}"
            f"/kubelet/kubepods/burstable/pod{UID}/{CID}\n",
            OWNER,
            id="nested-innermost",
        ),
        pytest.param(
            f"0::/kubepods/burstable/pod{STATIC_UID}/{CID}\n",
            Owner(pod_uid=STATIC_UID, container_id=CID),
            id="static-pod",
        ),
        pytest.param(f"0::/kubepods/pod{UID}\n", Owner(pod_uid=UID), id="no-container"),
        pytest.param(f"0::/kubepods/pod{UID}/{CID} (deleted)\n", OWNER, id="removed-container"),
        pytest.param(f"0::/kubepods/pod{UID} (deleted)\n", Owner(pod_uid=UID), id="removed-pod"),
        pytest.param("0::/\n", None, id="own-namespace-root"),
        pytest.param("0::/user.slice/user-0.slice/session-3.scope\n", None, id="user-session"),
        pytest.param("0::/kubepods/burstable/podcast/x\n", None, id="no-uid"),
        pytest.param("", None, id="gone"),
    ],
)
def test_the_innermost_pod_of_a_cgroup_path_is_the_owner(text: str, owner: Owner | None) -> None:
    assert owner_in_cgroup(text) == owner


def a_process(root: Path, pid: int, *, cgroup: str, starttime: int, name: str = "python") -> None:
    folder = root / str(pid)
    folder.mkdir(exist_ok=True)
    (folder / "cgroup").write_text(cgroup)
    fields = " ".join(["0"] * 18)
    (folder / "stat").write_text(f"{pid} ({name}) S {fields} {starttime} 0 0\n")


def test_owners_are_found_by_pid(tmp_path: Path) -> None:
    a_process(tmp_path, 7, cgroup=f"0::/kubepods/pod{UID}/{CID}\n", starttime=1)
    a_process(tmp_path, 8, cgroup="0::/init.scope\n", starttime=1)

    assert Attribution(tmp_path).owners([7, 8, 9]) == {7: OWNER, 8: None, 9: None}


def test_a_known_process_is_not_read_again(tmp_path: Path) -> None:
    attribution = Attribution(tmp_path)
    a_process(tmp_path, 7, cgroup=f"0::/kubepods/pod{UID}/{CID}\n", starttime=1)
    attribution.owners([7])

    (tmp_path / "7" / "cgroup").unlink()

    assert attribution.owners([7]) == {7: OWNER}


def test_a_reused_pid_is_another_process(tmp_path: Path) -> None:
    attribution = Attribution(tmp_path)
    a_process(tmp_path, 7, cgroup=f"0::/kubepods/pod{UID}/{CID}\n", starttime=1)
    attribution.owners([7])

    a_process(tmp_path, 7, cgroup="0::/init.scope\n", starttime=2)

    assert attribution.owners([7]) == {7: None}


def test_a_process_name_may_hold_spaces_and_brackets(tmp_path: Path) -> None:
    a_process(tmp_path, 7, cgroup=f"0::/kubepods/pod{UID}/{CID}\n", starttime=1, name="a) b (c")

    assert Attribution(tmp_path).owners([7]) == {7: OWNER}


def test_the_machines_own_proc_can_be_read() -> None:
    pid = os.getpid()

    assert set(Attribution(Path("/proc")).owners([pid])) == {pid}
