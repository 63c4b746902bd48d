"""From a pid to a pod: every cgroup layout that nodes are known to have."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from deviceplugin.exporter.attribution import (
    Attribution,
    Owner,
    groups_of,
    known_owner_in_cgroup,
    owner_in_cgroup,
)
from tests.support.cgroups import a_group, a_sleeper, hierarchy, join, program
from tests.support.nvml import ROOT

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


def test_a_process_name_may_hold_spaces_and_brackets(tmp_path: Path) -> None:
    a_process(tmp_path, 7, cgroup=f"0::/kubepods/pod{UID}/{CID}\n", starttime=1, name="a) b (c")

    assert Attribution(tmp_path).owners([7]) == {7: OWNER}


def test_the_machines_own_proc_can_be_read() -> None:
    pid = os.getpid()

    assert set(Attribution(Path("/proc")).owners([pid])) == {pid}


PROC = Path("/proc")
_LIMIT_S = 60.0  # for what never comes, not for a machine that is busy
OTHER_UID = "11111111-2222-3333-4444-555555555555"

CGROUPFS = f"kubepods/burstable/pod{UID}/{CID}"
SYSTEMD = (
    "kubepods.slice/kubepods-burstable.slice/"
    f"kubepods-burstable-pod{SYSTEMD_UID}.slice/cri-containerd-{CID}.scope"
)
LAYOUTS = {
    "cgroupfs": CGROUPFS,
    "systemd": SYSTEMD,
    "nested": f"kubepods/pod{OTHER_UID}/{'d' * 64}/kubelet/{CGROUPFS}",
    "inner-systemd": f"{SYSTEMD}/system.slice/cron.service",
}

both_versions = pytest.mark.parametrize("version", [1, 2])


@both_versions
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_process_in_a_pods_group_is_the_pods(version: int, layout: str) -> None:
    with a_group(hierarchy(version), LAYOUTS[layout]) as group, a_sleeper() as process:
        attribution = Attribution(PROC)
        before = attribution.owners([process.pid])
        join(group, process.pid)

        # Read too early, while a runtime starts it: that it had no owner is not cached.
        assert before == {process.pid: None}
        assert attribution.owners([process.pid]) == {process.pid: OWNER}


@both_versions
def test_a_child_of_a_container_is_the_containers(version: int) -> None:
    with a_group(hierarchy(version), SYSTEMD) as group, a_sleeper(program("setsid"), "-w") as shell:
        join(group, shell.pid)
        with a_sleeper() as outside:
            owners = Attribution(PROC).owners([shell.pid, outside.pid, os.getpid()])

    assert owners == {shell.pid: OWNER, outside.pid: None, os.getpid(): None}


@both_versions
def test_from_a_cgroup_namespace_of_ones_own_others_are_seen_and_oneself_is_nobody(
    version: int,
) -> None:
    unshare = program("unshare")
    agent = f"kubepods.slice/kubepods-pod{OTHER_UID.replace('-', '_')}.slice/agent.scope"
    script = (
        "import json, os, sys; from pathlib import Path;"
        "from deviceplugin.exporter.attribution import Attribution;"
        "pids = [int(sys.argv[1]), os.getpid()];"
        "owners = Attribution(Path('/proc')).owners(pids);"
        "text = Path(f'/proc/{pids[0]}/cgroup').read_text();"
        "print(json.dumps([[o and [o.pod_uid, o.container_id] for o in map(owners.get, pids)],"
        " '/../' in text]))"
    )
    root = hierarchy(version)
    with a_group(root, SYSTEMD) as group, a_group(root, agent) as own, a_sleeper() as process:
        join(group, process.pid)
        enter = f'echo $$ > "{own}/cgroup.procs" && exec "$@"'
        answer = subprocess.run(  # noqa: S603 - our own words
            ["/bin/sh", "-c", enter, "sh", unshare, "-C", sys.executable, "-c", script,
             str(process.pid)],
            capture_output=True, text=True, check=False, cwd=ROOT, env={**os.environ},
        )  # fmt: skip
        if "unshare" in answer.stderr:
            pytest.skip(f"no cgroup namespaces here: {answer.stderr.strip()}")

    assert answer.returncode == 0, answer.stderr
    owners, from_below = json.loads(answer.stdout)
    assert owners == [[UID, CID], None]
    assert from_below


@both_versions
def test_a_process_in_a_pid_namespace_is_found_by_its_pid_on_the_host(version: int) -> None:
    unshare = program("unshare")
    with (
        a_group(hierarchy(version), CGROUPFS) as group,
        a_sleeper(unshare, "--pid", "--fork", "--kill-child") as parent,
    ):
        inner = _only_child(parent.pid)
        join(group, inner)

        assert Attribution(PROC).owners([inner, 1]) == {inner: OWNER, 1: None}


@both_versions
def test_a_dead_process_that_nobody_waited_for_stays_the_pods_once_it_was_seen(
    version: int,
) -> None:
    with a_group(hierarchy(version), CGROUPFS) as group, a_sleeper() as process:
        join(group, process.pid)
        attribution = Attribution(PROC)
        attribution.owners([process.pid])
        process.kill()
        _wait_state(process.pid, "Z")

        assert attribution.owners([process.pid]) == {process.pid: OWNER}

        process.wait()
        assert attribution.owners([process.pid]) == {process.pid: None}


def test_a_pid_that_the_kernel_gives_again_is_not_mistaken_for_the_one_before() -> None:
    with a_group(hierarchy(2 if _has_v2() else 1), CGROUPFS) as group:
        attribution = Attribution(PROC)
        for _ in range(40):
            with a_sleeper() as first:
                join(group, first.pid)
                assert attribution.owners([first.pid]) == {first.pid: OWNER}
                _wait_tick(first.pid)
            _next_pid(first.pid)
            with a_sleeper() as second:
                if second.pid == first.pid:
                    assert attribution.owners([second.pid]) == {second.pid: None}
                    return
    pytest.skip("the kernel would not give the same pid again")


def _has_v2() -> bool:
    return "cgroup2" in Path("/proc/mounts").read_text()


def _only_child(pid: int) -> int:
    file = PROC / str(pid) / "task" / str(pid) / "children"
    until_s = time.monotonic() + _LIMIT_S
    while time.monotonic() < until_s:
        children = file.read_text().split()
        if children:
            return int(children[0])
        time.sleep(0.01)
    pytest.skip("no child in a pid namespace: are they forbidden here?")


def _wait_state(pid: int, state: str) -> None:
    until_s = time.monotonic() + _LIMIT_S
    while (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != state:
        assert time.monotonic() < until_s, f"{pid} is not in state {state}"
        time.sleep(0.01)


def _next_pid(pid: int) -> None:
    """Set the kernel's counter so that the next process gets *pid*."""
    try:
        Path("/proc/sys/kernel/ns_last_pid").write_text(str(pid - 1))
    except OSError as error:
        pytest.skip(f"cannot choose the next pid: {error}")


def _wait_tick(pid: int) -> None:
    """Wait until a process started now would have another start time than *pid* has."""
    started = int((PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[19])
    ticks_per_s = os.sysconf("SC_CLK_TCK")
    until_s = time.monotonic() + _LIMIT_S
    while float((PROC / "uptime").read_text().split()[0]) * ticks_per_s < started + 2:
        assert time.monotonic() < until_s
        time.sleep(0.01)


UID_A, UID_B = (f"8f3c1d2e-0a1b-4c5d-8e9f-00000000000{n}" for n in "ab")
CID_A, CID_B = "a" * 64, "b" * 64


def slice_of(uid: str) -> str:
    return f"kubepods-burstable-pod{uid.replace('-', '_')}.slice"


NAMED = {
    CID_A: (UID_A, f"/kubepods/burstable/pod{UID_A}/{CID_A}"),
    CID_B: (UID_B, f"/kubepods/burstable/pod{UID_B}/{CID_B}"),
}
NAMED_TO_SYSTEMD = {
    CID_A: (UID_A, f"{slice_of(UID_A)}:cri-containerd:{CID_A}"),
    CID_B: (UID_B, f"{slice_of(UID_B)}:crio:{CID_B}"),
}
OWNER_A, OWNER_B = (
    Owner(pod_uid=UID_A, container_id=CID_A),
    Owner(pod_uid=UID_B, container_id=CID_B),
)


@pytest.mark.parametrize(
    ("path", "known", "owner"),
    [
        (f"/kubepods/burstable/pod{UID_A}/{CID_A}", NAMED, OWNER_A),
        (f"/kubepods/burstable/pod{UID_A}/{CID_A} (deleted)", NAMED, OWNER_A),
        # The node runs in a container itself, as with kind.
        (f"/docker/{'c' * 64}/kubelet/kubepods/burstable/pod{UID_B}/{CID_B}", NAMED, OWNER_B),
        # The reader has a cgroup namespace of its own.
        (f"/../../pod{UID_B}/{CID_B}", NAMED, OWNER_B),
        (f"/../{CID_B}", NAMED, OWNER_B),
        (
            f"/kubepods.slice/kubepods-burstable.slice/{slice_of(UID_A)}/cri-containerd-{CID_A}.scope",
            NAMED_TO_SYSTEMD,
            OWNER_A,
        ),
        (f"/../../{slice_of(UID_B)}/crio-{CID_B}.scope/init", NAMED_TO_SYSTEMD, OWNER_B),
        # A runtime with cgroupfs below a kubelet with systemd.
        (f"/system.slice/{slice_of(UID_A)}:cri-containerd:{CID_A}", NAMED_TO_SYSTEMD, OWNER_A),
        # A container of which the runtime has not spoken is nobody's, whatever its path looks like.
        (f"/kubepods/burstable/pod{UID_A}/{'d' * 64}", NAMED, None),
        (f"/kubepods/burstable/podx/{CID_A}", NAMED, None),
        ("/user.slice/session-1.scope", NAMED, None),
        ("/", NAMED, None),
    ],
)
def test_a_process_is_of_the_container_that_the_runtime_named(
    path: str, known: dict[str, tuple[str, str]], owner: Owner | None
) -> None:
    assert known_owner_in_cgroup(f"0::{path}\n", groups_of(known)) == owner


@pytest.mark.parametrize("start", ["/kubepods/burstable", "/../.."])
@pytest.mark.parametrize(
    "forged", [f"kubepods/burstable/pod{UID_B}/{CID_B}", f"pod{UID_B}/{CID_B}", CID_B]
)
def test_a_pod_that_writes_cgroups_of_its_own_cannot_charge_a_neighbour(
    start: str, forged: str
) -> None:
    text = f"0::{start}/pod{UID_A}/{CID_A}/{forged}\n"

    assert known_owner_in_cgroup(text, groups_of(NAMED)) == OWNER_A


def test_processes_are_matched_by_what_the_runtime_named_only_where_it_names_any(
    tmp_path: Path,
) -> None:
    known: dict[str, tuple[str, str]] | None = None
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "stat").write_text("7 (x) S" + " 0" * 18 + " 5\n")
    (tmp_path / "7" / "cgroup").write_text(f"0::/kubepods/burstable/pod{UID_A}/{CID_A}\n")

    by_look = Attribution(tmp_path, lambda: known).owners([7])
    known = {}
    unnamed = Attribution(tmp_path, lambda: known).owners([7])

    assert (by_look, unnamed) == ({7: OWNER_A}, {7: None})
