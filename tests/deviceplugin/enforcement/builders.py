"""Limiters over a model of the driver, and containers with cgroups in it."""

from dataclasses import dataclass
from pathlib import Path

from deviceplugin.enforcement.driver import DriverEnforcer
from deviceplugin.enforcement.gate import PROOF_PATH, Gate
from deviceplugin.enforcement.limiter import Limiter
from deviceplugin.nri.interface import Container, ContainerState, Mount
from fracgpu.state.pod_info import PodInfo
from tests.deviceplugin.builders import a_card, facts
from tests.fakes.driver_limits import DriverModel

TWO = (a_card("GPU-a"), a_card("GPU-b", index=1))


@dataclass(slots=True, kw_only=True)
class LimitedNode:
    """A node with a driver that limits, and the files of its gates."""

    driver: DriverModel
    limiter: Limiter
    gates: Path

    def group(self, path: str) -> str:
        """Return the full path of a cgroup."""
        return f"{self.driver.root}{path}"

    def opened(self) -> set[str]:
        """Return the containers whose gate is open."""
        return {file.name for file in self.gates.iterdir() if file.stat().st_size}


def a_limited_node(folder: Path) -> LimitedNode:
    """Return a node whose cgroups are version 2 at ``folder/cgroup``."""
    root, gates = folder / "cgroup", folder / "gates"
    root.mkdir()
    (root / "cgroup.controllers").touch()
    driver = DriverModel(root=str(root))
    limiter = Limiter(
        (DriverEnforcer(driver, root),),
        cards=lambda: {card.uuid: facts(card) for card in TWO},
        gate=Gate(folder / "fracgpu-verify", gates, problem=lambda: None),
        root=root,
    )
    return LimitedNode(driver=driver, limiter=limiter, gates=gates)


def a_limited_container(
    pod: PodInfo, *, container_id: str = "", held_back: bool = True
) -> Container:
    """Return the container of *pod* as it runs, its gate mounted, with a cgroup of its own."""
    uid = pod.record.uid
    container_id = container_id or f"{uid}-train"
    gate = [Mount(destination=PROOF_PATH, source="/host")] if held_back else []
    return Container(
        id=container_id,
        sandbox_id=f"sandbox-{uid}",
        name="train",
        state=ContainerState.RUNNING,
        mounts=gate,
        cgroups_path=f"/kubepods/burstable/pod{uid}/{container_id}",
    )
