"""A real containerd for tests: found or unpacked from Debian's archive, with one tiny image."""

import os
import re
import shutil
import signal
import subprocess
import tarfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from simulator.envtest.ports import free_ports
from tests.support.images import (
    ImageConfig,
    add_folders,
    as_root,
    cache_dir,
    locked,
    write_archive,
)

IMAGE: Final = "test.local/busybox:1"
_APPLETS: Final = ("sh", "sleep", "cat", "ls", "env", "echo", "stat", "mv", "sort", "tr", "grep")
# CDI came with containerd 1.7.
_OLDEST: Final = (1, 7)
_SECOND: Final = (2, 0)
CONTAINERD2_ENV: Final = "CONTAINERD2_ASSETS"
_FETCH_LIMIT_S: Final = 240


class NoRuntimeError(Exception):
    """This machine cannot run containers; the text says why, and is a reason to skip."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """The paths of the programs."""

    folder: Path
    runc: Path

    @property
    def containerd(self) -> Path:
        return self.folder / "containerd"

    @property
    def ctr(self) -> Path:
        return self.folder / "ctr"


def find_runtime() -> Runtime:
    """Return a containerd that supports CDI, unpacking a newer Debian's if needed.

    Raises:
        NoRuntimeError: there is none and none can be fetched.
    """
    runc = shutil.which("runc")
    if runc is None:
        raise NoRuntimeError("runc is not installed")
    busybox()
    own = shutil.which("containerd")
    if own is not None and _version(Path(own)) >= _OLDEST:
        return Runtime(folder=Path(own).parent, runc=Path(runc))
    return Runtime(folder=_unpacked(), runc=Path(runc))


def find_containerd2() -> Runtime:
    """Return containerd 2, which no Debian has yet, from the folder that the environment names.

    Raises:
        NoRuntimeError: it is not there.
    """
    folder, runc = Path(os.environ.get(CONTAINERD2_ENV, "")), shutil.which("runc")
    if runc is None:
        raise NoRuntimeError("runc is not installed")
    busybox()
    if not os.environ.get(CONTAINERD2_ENV) or _version_in(folder) < _SECOND:
        raise NoRuntimeError(f"{CONTAINERD2_ENV} names no folder with a containerd 2")
    return Runtime(folder=folder, runc=Path(runc))


def busybox() -> Path:
    """Return the path of a static busybox, the only file of an image.

    Raises:
        NoRuntimeError: there is none.
    """
    found = shutil.which("busybox")
    if found is None:
        raise NoRuntimeError("busybox is not installed; want the static one (busybox-static)")
    if _run(["ldd", found], check=False).returncode == 0:
        raise NoRuntimeError(f"{found} needs libraries; want busybox-static")
    return Path(found)


def _version(containerd: Path) -> tuple[int, ...]:
    text = _run([str(containerd), "--version"], check=False).stdout
    match = re.search(r"\bv?(\d+)\.(\d+)\.\d+", text)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def _unpacked() -> Path:
    """Unpack a newer Debian's containerd into the user's cache, checked by apt's signatures."""
    root = cache_dir()
    bin_dir = root / "containerd" / "root" / "usr" / "bin"
    with locked(root / "lock"):
        if _version_in(bin_dir) < _OLDEST:
            _fetch(root / "containerd")
        if _version_in(bin_dir) < _OLDEST:
            raise NoRuntimeError("the containerd from Debian's archive does not run here")
    return bin_dir


def _version_in(bin_dir: Path) -> tuple[int, ...]:
    containerd = bin_dir / "containerd"
    return _version(containerd) if containerd.exists() else (0, 0)


def _fetch(home: Path) -> None:
    sources = Path("/etc/apt/sources.list.d/debian.sources")
    if not sources.exists() or shutil.which("dpkg") is None:
        raise NoRuntimeError("containerd 1.7 or newer is not installed, and this is no Debian")
    for folder in ("lists/partial", "cache/archives/partial", "debs", "parts", "root"):
        (home / folder).mkdir(parents=True, exist_ok=True)
    newer = re.sub(r"\bbookworm\b", "trixie", sources.read_text())
    (home / "parts" / "trixie.sources").write_text(newer)
    options = [
        *("-o", "Dir::Etc::sourcelist=/dev/null", "-o", f"Dir::Etc::sourceparts={home}/parts"),
        *("-o", f"Dir::State::Lists={home}/lists", "-o", f"Dir::Cache={home}/cache"),
    ]
    try:
        _run(["apt-get", *options, "update"])
        _run(["apt-get", *options, "download", "containerd"], cwd=home / "debs")
        for deb in (home / "debs").glob("containerd_*.deb"):
            _run(["dpkg", "-x", str(deb), str(home / "root")])
    except (OSError, subprocess.SubprocessError) as error:
        raise NoRuntimeError(f"containerd 1.7 cannot be fetched: {error}") from error


def _run(
    command: list[str], *, cwd: Path | None = None, check: bool = True
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # noqa: S603 - programs of this machine, arguments of this file
        command, cwd=cwd, check=check, capture_output=True, text=True, timeout=_FETCH_LIMIT_S
    )


def import_image(runtime: Runtime, *, socket: Path, workdir: Path) -> None:
    """Import the image :data:`IMAGE`, with busybox and nothing else, to containerd."""
    archive, layer = workdir / "busybox.tar", workdir / "busybox.layer"
    with tarfile.open(layer, "w") as tar:
        add_folders(tar, "bin", "tmp", "dev", "proc", "sys", "etc")
        tar.add(busybox().resolve(), "bin/busybox", filter=as_root)
        for applet in _APPLETS:
            link = tarfile.TarInfo(f"bin/{applet}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(link)
    config = ImageConfig(entrypoint=("/bin/sleep", "2147483647"), env=("PATH=/bin",))
    write_archive(archive, IMAGE, layer, config)
    import_archive(runtime, socket=socket, archive=archive)


def import_archive(runtime: Runtime, *, socket: Path, archive: Path) -> None:
    """Import the image of *archive* to containerd, where kubelet finds it."""
    _run([str(runtime.ctr), "-a", str(socket), "-n", "k8s.io", "image", "import", str(archive)])


def tag_image(runtime: Runtime, *, socket: Path, image: str, name: str) -> None:
    """Give an image of containerd a further name, as if kubelet had pulled it from there."""
    _run([str(runtime.ctr), "-a", str(socket), "-n", "k8s.io", "image", "tag", image, name])


def containerd_config(  # noqa: PLR0913 - each line of the file has one
    workdir: Path,
    *,
    socket: Path,
    runc: Path,
    cdi_dir: Path,
    cdi: bool,
    snapshotter: str = "native",
    handlers: Mapping[str, Path] | None = None,
    nri: bool = False,
) -> str:
    """Write a configuration that keeps everything below *workdir*.

    *handlers* are programs as runc, by the name that a RuntimeClass has for each. *nri* is said in
    any case, because containerd 2 has it on and 1.7 off.
    """
    runtimes = "".join(
        f"""
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.{name}]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.{name}.options]
        BinaryName = "{program}\""""
        for name, program in {"runc": runc, **(handlers or {})}.items()
    )
    return f"""version = 2
root = "{workdir}/containerd"
state = "{workdir}/containerd-state"
[grpc]
  address = "{socket}"
[ttrpc]
  address = "{socket}.ttrpc"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{IMAGE}"
  enable_cdi = {"true" if cdi else "false"}
  cdi_spec_dirs = ["{cdi_dir}"]
  disable_apparmor = true
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "{snapshotter}"
    default_runtime_name = "runc"{runtimes}
  [plugins."io.containerd.grpc.v1.cri".cni]
    conf_dir = "{workdir}/cni"
    bin_dir = "/usr/lib/cni"
[plugins."io.containerd.nri.v1.nri"]
  disable = {"false" if nri else "true"}
  socket_path = "{workdir}/nri.sock"
  plugin_path = "{workdir}/nri-plugins"
  plugin_config_path = "{workdir}/nri-conf"
"""


def kubelet_config(root: Path, socket: Path) -> dict[str, Any]:
    """Write a configuration that keeps everything below *root*."""
    (port,) = free_ports(1)
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": "127.0.0.1",
        "port": port,
        "healthzPort": 0,
        "authentication": {"anonymous": {"enabled": False}, "webhook": {"enabled": True}},
        "authorization": {"mode": "Webhook"},
        "cgroupDriver": "cgroupfs",
        "containerRuntimeEndpoint": f"unix://{socket}",
        "enforceNodeAllocatable": [],
        "evictionHard": {
            "imagefs.available": "0%",
            "nodefs.available": "0%",
            "memory.available": "50Mi",
        },
        "failCgroupV1": False,
        "failSwapOn": False,
        "localStorageCapacityIsolation": False,
        "nodeStatusUpdateFrequency": "2s",
        "podLogsDir": str(root / "logs"),
        "registryPullQPS": 0,
    }


def end_what_is_left(root: Path, *, socket: Path) -> None:
    """End the containers and shims of the containerd that served *socket*, and unmount theirs."""
    for pid in _shims(socket) | _first_processes(root):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    _unmount_below(root)


def _shims(socket: Path) -> set[int]:
    """Return our containerd's shims, which outlive it: their arguments name our socket."""
    ours = str(socket).encode()
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (process / "cmdline").read_bytes().split(b"\0")
            if b"containerd-shim" in words[0] and ours in words:
                found.add(int(process.name))
    return found


def _first_processes(root: Path) -> set[int]:
    """Return the first process of every container that is left."""
    found = set()
    for file in (root / "containerd-state").glob("*.task/k8s.io/*/init.pid"):
        with suppress(OSError, ValueError):
            found.add(int(file.read_text()))
    return found


def _unmount_below(root: Path) -> None:
    mounts = Path("/proc/self/mounts").read_text().splitlines()
    points = [line.split()[1] for line in mounts]
    below = [point for point in points if point.startswith(f"{root}/")]
    for point in sorted(below, reverse=True):
        _run(["umount", "-l", point], check=False)
