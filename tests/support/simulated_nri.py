"""The simulator's NRI as the contract's tests use a runtime."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from deviceplugin.nri.interface import Container, ContainerState, Mount, PodSandbox
from simulator.kubelet.container_runtime import RuntimeFailedError
from simulator.kubelet.nri import AdjustedContainer, NriServer
from tests.support.node import short_folder
from tests.support.nri import AnyRuntime, MadePod, Sight, StartFailed

# More than a runtime's 2 s, for machines on which many tests run at once.
_TIMEOUT_S: Final = 5.0


class SimulatedRuntime(AnyRuntime):
    """Pods and containers that exist on the wire alone."""

    def __init__(self, root: Path, server: NriServer) -> None:
        self.root = root
        self.socket = root / "nri.sock"
        self.server = server
        self._serving = AsyncExitStack()
        self._cdi: dict[str, Sequence[Mount]] = {}
        self._made: dict[str, AdjustedContainer] = {}

    def write_cdi_spec(self, device: str, *, mounts: Mapping[str, Path]) -> None:
        self._cdi[f"fracgpu.io/slot={device}"] = _mounts(mounts)

    async def start(self) -> None:
        await self._serving.enter_async_context(self.server.serving())

    async def stop(self) -> None:
        await self._serving.aclose()

    async def run_pod(self, name: str, *, uid: str, annotations: Mapping[str, str]) -> MadePod:
        pod = PodSandbox(
            id=f"sandbox-{uid}",
            uid=uid,
            name=name,
            namespace="team",
            labels={"app": name},
            annotations=annotations,
            cgroup_parent=f"/kubepods/pod{uid}",
        )
        self.server.pods[pod.id] = pod
        return MadePod(id=pod.id, uid=uid)

    async def create(
        self,
        pod: MadePod,
        name: str,
        *,
        env: Mapping[str, str] | None = None,
        mounts: Mapping[str, Path] | None = None,
        cdi_devices: Sequence[str] = (),
    ) -> str:
        sandbox = self.server.pods[pod.id]
        container = Container(
            id=f"{name}-{len(self._made)}",
            sandbox_id=pod.id,
            name=name,
            labels={"io.kubernetes.container.name": name},
            env=[f"{key}={value}" for key, value in (env or {}).items()],
            mounts=[
                *_mounts(mounts or {}),
                *(mount for device in cdi_devices for mount in self._cdi[device]),
            ],
            cdi_devices=cdi_devices,
        )
        container = replace(container, cgroups_path=f"{sandbox.cgroup_parent}/{container.id}")
        try:
            self._made[container.id] = await self.server.create_container(sandbox, container)
        except RuntimeFailedError as error:
            raise StartFailed(str(error)) from error
        return container.id

    async def start_container(self, container: str) -> None:
        made = self._made[container].container
        if missing := [mount.source for mount in made.mounts if not _exists(mount)]:
            raise StartFailed(f"error mounting: no such file or directory: {missing}")
        try:
            await self.server.start_container(self.server.pods[made.sandbox_id], made)
        except RuntimeFailedError as error:
            raise StartFailed(str(error)) from error

    async def remove(self, container: str) -> None:
        made = self._made.pop(container).container
        if self.running(container):
            await self.server.stop_container(self.server.pods[made.sandbox_id], made)
        await self.server.remove_container(self.server.pods[made.sandbox_id], made)

    def sight(self, container: str) -> Sight:
        made = self._made[container]
        return Sight(
            env=dict(line.partition("=")[::2] for line in made.container.env),
            mounts={mount.destination: mount.source for mount in made.container.mounts},
            devices=frozenset(device.path for device in made.container.devices),
            unified=made.unified,
            hooks=tuple(hook.path for hook in made.hooks.create_runtime),
        )

    def running(self, container: str) -> bool:
        return self.server.containers[container].state is ContainerState.RUNNING


def _exists(mount: Mount) -> bool:
    return Path(mount.source).exists()


def _mounts(mounts: Mapping[str, Path]) -> Sequence[Mount]:
    return [Mount(destination=at, source=str(path)) for at, path in mounts.items()]


@asynccontextmanager
async def a_simulated_runtime(*, nri: tuple[int, int] = (0, 12)) -> AsyncIterator[SimulatedRuntime]:
    """Run a simulated runtime with NRI in its version *nri*."""
    with short_folder() as root:
        server = NriServer(root / "nri.sock", nri=nri, timeout_s=_TIMEOUT_S)
        runtime = SimulatedRuntime(root, server)
        await runtime.start()
        try:
            yield runtime
        finally:
            await runtime.stop()
