"""A real containerd with NRI, and pods made through its CRI as kubelet would, without kubelet."""

import json
import os
import subprocess
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

import grpc
import pytest

from tests.support.node import short_folder
from tests.support.nri import AnyRuntime, MadePod, Sight, StartFailed
from tests.support.processes import Child
from tests.support.real_runtime import (
    IMAGE,
    NoRuntimeError,
    Runtime,
    containerd_config,
    end_what_is_left,
    find_containerd2,
    find_runtime,
    import_image,
)

_CALLS: Final = "/runtime.v1.RuntimeService/"
_NODE_NETWORK: Final = 2
_LIMIT_S: Final = 60.0


def runtime_or_skip(major: int) -> Runtime:
    """Return the containerd of version 1 or 2, or skip the test with what is missing."""
    if os.geteuid() != 0:
        pytest.skip("containerd needs root")
    try:
        return find_containerd2() if major > 1 else find_runtime()
    except NoRuntimeError as error:
        pytest.skip(str(error))


class RealContainerd(AnyRuntime):
    """A containerd that a test started, with the pods that it made there."""

    def __init__(self, root: Path, runtime: Runtime) -> None:
        self.socket = root / "nri.sock"
        self.root = root
        self._runtime = runtime
        self._cri = root / "containerd.sock"
        self._messages: Any = grpc.protos("tests/support/cri_calls.proto")
        self._configs: dict[str, Any] = {}
        config = root / "containerd.toml"
        config.write_text(
            containerd_config(
                root, socket=self._cri, runc=runtime.runc, cdi_dir=root / "cdi", cdi=True, nri=True
            )
        )
        self._child = Child(
            [runtime.containerd, "-c", config],
            log=root / "containerd.log",
            env={"PATH": f"{runtime.folder}:{os.environ['PATH']}"},
        )

    def write_cdi_spec(self, device: str, *, mounts: Mapping[str, Path]) -> None:
        edits = [
            {"hostPath": str(path), "containerPath": at, "options": ["rbind", "ro"]}
            for at, path in mounts.items()
        ]
        spec = {
            "cdiVersion": "0.6.0",
            "kind": "fracgpu.io/slot",
            "devices": [{"name": device, "containerEdits": {"mounts": edits}}],
        }
        new = self.root / f"{device}.json"
        new.write_text(json.dumps(spec))
        (self.root / "cdi").mkdir(exist_ok=True)
        new.rename(self.root / "cdi" / new.name)

    async def start(self) -> None:
        await self._child.start()
        await self._child.wait_socket(self._cri)
        await self._child.wait_socket(self.socket)

    async def stop(self) -> None:
        await self._child.kill()
        self._cri.unlink(missing_ok=True)

    def import_image(self) -> None:
        import_image(self._runtime, socket=self._cri, workdir=self.root)

    async def run_pod(self, name: str, *, uid: str, annotations: Mapping[str, str]) -> MadePod:
        config = self._messages.PodSandboxConfig(
            metadata={"name": name, "uid": uid, "namespace": "team"},
            labels={"app": name},
            annotations=annotations,
            linux={
                "cgroup_parent": f"/{self.root.name}/pod{uid}",
                "security_context": {"namespace_options": {"network": _NODE_NETWORK}},
            },
        )
        request = self._messages.RunPodSandboxRequest(config=config)
        made = await self._call("RunPodSandbox", request, self._messages.PodSandbox)
        self._configs[made.pod_sandbox_id] = config
        return MadePod(id=made.pod_sandbox_id, uid=uid)

    async def create(
        self,
        pod: MadePod,
        name: str,
        *,
        env: Mapping[str, str] | None = None,
        mounts: Mapping[str, Path] | None = None,
        cdi_devices: Sequence[str] = (),
    ) -> str:
        config = self._messages.ContainerConfig(
            metadata={"name": name},
            image={"image": IMAGE},
            envs=[{"key": key, "value": value} for key, value in (env or {}).items()],
            mounts=[
                {"container_path": at, "host_path": str(path)}
                for at, path in (mounts or {}).items()
            ],
            labels={
                "io.kubernetes.pod.uid": pod.uid,
                "io.kubernetes.container.name": name,
            },
            cdi_devices=[{"name": device} for device in cdi_devices],
        )
        request = self._messages.CreateContainerRequest(
            pod_sandbox_id=pod.id, config=config, sandbox_config=self._configs[pod.id]
        )
        made = await self._call("CreateContainer", request, self._messages.Container)
        return str(made.container_id)

    async def start_container(self, container: str) -> None:
        request = self._messages.Container(container_id=container)
        await self._call("StartContainer", request, self._messages.Empty)

    async def remove(self, container: str) -> None:
        request = self._messages.Container(container_id=container)
        await self._call("StopContainer", request, self._messages.Empty)
        await self._call("RemoveContainer", request, self._messages.Empty)

    def sight(self, container: str) -> Sight:
        spec = json.loads(self._ctr("containers", "info", container))["Spec"]
        return Sight(
            env=dict(line.partition("=")[::2] for line in spec["process"]["env"]),
            mounts={mount["destination"]: mount["source"] for mount in spec["mounts"]},
            devices=frozenset(device["path"] for device in spec["linux"].get("devices") or ()),
            unified=spec["linux"]["resources"].get("unified") or {},
            hooks=tuple(
                hook["path"] for hook in (spec.get("hooks") or {}).get("createRuntime") or ()
            ),
        )

    def running(self, container: str) -> bool:
        tasks = self._ctr("tasks", "list").splitlines()
        return any(line.split()[0] == container and "RUNNING" in line for line in tasks)

    def _ctr(self, *words: str) -> str:
        command = [str(self._runtime.ctr), "-a", str(self._cri), "-n", "k8s.io", *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout  # noqa: S603

    async def _call(self, method: str, request: Any, kind: Any) -> Any:
        async with grpc.aio.insecure_channel(f"unix:{self._cri}") as channel:
            call: Any = channel.unary_unary(
                f"{_CALLS}{method}",
                request_serializer=lambda message: message.SerializeToString(),
                response_deserializer=kind.FromString,
            )
            try:
                return await call(request, timeout=_LIMIT_S, wait_for_ready=True)
            except grpc.aio.AioRpcError as error:
                raise StartFailed(error.details()) from error


@asynccontextmanager
async def a_containerd(major: int) -> AsyncIterator[RealContainerd]:
    """Run a containerd of version *major* with NRI switched on, and nothing of this machine's."""
    runtime = runtime_or_skip(major)
    with short_folder() as root:
        containerd = RealContainerd(root, runtime)
        try:
            await containerd.start()
            containerd.import_image()
            yield containerd
        finally:
            await containerd.stop()
            end_what_is_left(root, socket=root / "containerd.sock")
            _remove_groups(root.name)


def _remove_groups(name: str) -> None:
    for group in Path("/sys/fs/cgroup").glob(f"**/{name}"):
        for folder, _, _ in os.walk(group, topdown=False):
            with suppress(OSError):  # its last process may still be ending
                Path(folder).rmdir()
