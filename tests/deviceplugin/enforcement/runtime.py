"""A runtime with its agent, over whatever limits its containers."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, Protocol

import pynvml

from deviceplugin.cards.interface import CardHardware, GroupLimits
from deviceplugin.cards.nvml.limits import NvmlLimits
from deviceplugin.enforcement.audit import Findings, inspect
from deviceplugin.enforcement.driver import DriverEnforcer
from deviceplugin.enforcement.gate import Gate
from deviceplugin.enforcement.interface import EnforcementError, Enforcer
from deviceplugin.enforcement.kernel import KernelEnforcer
from deviceplugin.enforcement.limiter import Limiter
from deviceplugin.nri.interface import Adjustment, Container
from fracgpu import names
from fracgpu.state.allocation import Slice, write_assignment
from fracgpu.state.pod_info import PodInfo
from fracgpu.units import Mib
from tests.deviceplugin.builders import a_card, a_pod, facts
from tests.deviceplugin.enforcement.builders import a_limited_container
from tests.fakes.dmem_tree import DmemTree
from tests.fakes.driver_limits import DriverModel
from tests.support.nvml import a_card as nvml_values
from tests.support.nvml import write_values

CARD_MIB: Final = 8000
HARDWARE: Final = [
    facts(a_card(str(nvml_values(index)[f"{index}.uuid"]), index=index)) for index in range(2)
]
CARDS: Final = [each.card.uuid for each in HARDWARE]
# Where folders are made and removed in microseconds, as the kernel does with cgroups.
MEMORY: Final = "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108 - only the folder


class World(Protocol):
    """What limits, and the cgroups that it knows; *group* is a path below the root."""

    enforcer: Enforcer

    def make(self, group: str) -> None: ...
    def remove(self, group: str) -> None: ...
    def lose(self, settings: int) -> None:
        """Let as many settings from now on have no effect, although they are taken."""

    def use(self, group: str, card: int, mib: int) -> None:
        """Let the processes of a cgroup use memory."""

    def interfere(self, group: str, card: int, mib: int | None) -> None:
        """Set another limit, or none, as somebody else might."""


class ModelWorld(World):
    """The model of driver r615."""

    def __init__(self, root: Path) -> None:
        self._root = root
        (root / "cgroup.controllers").touch()
        self.model = DriverModel(root=str(root))
        self.enforcer = DriverEnforcer(self.model, root)

    def make(self, group: str) -> None:
        self.model.make(f"{self._root}{group}")

    def remove(self, group: str) -> None:
        (self._root / group.lstrip("/") / "cgroup.kill").unlink(missing_ok=True)
        self.model.remove(f"{self._root}{group}")

    def lose(self, settings: int) -> None:
        self.model.lost = settings

    def use(self, group: str, card: int, mib: int) -> None:
        self.model.used_mib[CARDS[card], f"{self._root}{group}"] = mib

    def interfere(self, group: str, card: int, mib: int | None) -> None:
        self.model.set(CARDS[card], f"{self._root}{group}", stranger(mib))


class TreeWorld(World):
    """A tree of files like cgroup v2 with the kernel's controller dmem."""

    def __init__(self, root: Path) -> None:
        self._regions = [f"drm/0000:{index:02x}:00.0/vram0" for index in range(2)]
        self._tree = DmemTree(root, regions=self._regions)
        self.enforcer = KernelEnforcer(root, write=self._tree.write)

    def make(self, group: str) -> None:
        self._tree.make(group)

    def remove(self, group: str) -> None:
        self._tree.remove(group)

    def lose(self, settings: int) -> None:
        self._tree.lost = settings

    def use(self, group: str, card: int, mib: int) -> None:
        self._tree.use(group, self._regions[card], mib)

    def interfere(self, group: str, card: int, mib: int | None) -> None:
        value = "max" if mib is None else mib << 20
        file = self._tree.root / group.lstrip("/") / "dmem.max"
        self._tree.write(file, f"{self._regions[card]} {value}\n")


class StandinWorld(World):
    """The stand-in for NVIDIA's library, through the real pynvml, which has loaded it."""

    def __init__(self, root: Path) -> None:
        self._root = root
        (root / "cgroup.controllers").touch()
        self._values: dict[str, object] = {"driver": "615.30", "cards": 2, "limits": 1}
        self._values |= {**nvml_values(0), **nvml_values(1), "cgroups": root}
        self.lose(0)
        pynvml.nvmlInit()
        self._limits = NvmlLimits(pynvml, timeout_s=20)
        self.enforcer = DriverEnforcer(self._limits, root)

    def make(self, group: str) -> None:
        (self._root / group.lstrip("/")).mkdir(parents=True)

    def remove(self, group: str) -> None:
        folder = self._root / group.lstrip("/")
        (folder / "cgroup.kill").unlink(missing_ok=True)
        folder.rmdir()

    def lose(self, settings: int) -> None:
        self._say({"lost.nvmlDeviceSetMemoryLimits_v1": settings})

    def use(self, group: str, card: int, mib: int) -> None:
        self._say({f"{card}.used_by.{self._root}{group}": mib << 20})

    def interfere(self, group: str, card: int, mib: int | None) -> None:
        self._limits.set(CARDS[card], f"{self._root}{group}", stranger(mib))

    def _say(self, values: dict[str, object]) -> None:
        self._values |= values
        write_values(Path(os.environ["NVML_STANDIN"]), self._values)


def stranger(mib: int | None) -> GroupLimits:
    limit = None if mib is None else Mib(mib)
    return GroupLimits(guaranteed_mib=Mib(mib or 0), limit_mib=limit)


class LimitedRuntime:
    """Starts containers, whether or not the agent answers.

    Like a real one it lets a container start where the agent is gone, but for the gate.
    """

    def __init__(self, folder: Path, world: type[World]) -> None:
        self.folder = folder
        self.root = folder / "cgroup"
        self.root.mkdir()
        self.world = world(self.root)  # type: ignore[call-arg] # each of them has a root
        self.enforcer = self.world.enforcer
        self.pods: dict[str, PodInfo] = {}
        self.running: dict[str, tuple[str, Container]] = {}
        self.began = 0
        self.refused = ""  # why the last container was that was not started
        self.unlimited: set[str] = set()
        self.start_agent()

    def start_agent(self) -> None:
        """Start a new agent, which remembers nothing."""
        self.limiter = Limiter(
            (self.enforcer,),
            cards=lambda: {each.card.uuid: each for each in HARDWARE},
            gate=Gate(self.folder / "verify", self.folder / "gates", problem=lambda: None),
            root=self.root,
        )
        self.limiter.keep_only(self.running)
        self.limiter.refresh()
        self.unlimited.clear()

    def start(self, pod: PodInfo, *, dies: bool = False) -> bool:
        """Start a pod's container; *dies* ends the agent before it has answered."""
        self.began += 1
        self.pods[pod.record.uid] = pod
        container = a_limited_container(pod, container_id=f"c{self.began}")
        # Made with the cards that this agent can limit, as all of them could be once.
        self.limiter.hold_back(container, Adjustment())
        self.world.make(container.cgroups_path)
        try:
            limits = self.limiter.limits_of(container, pod)
            if dies:
                for limit in limits[:1]:
                    self.enforcer.apply(container.cgroups_path, hardware(limit.card), limit)
            else:
                self.limiter.prove(container, limits)
        except EnforcementError as error:
            self.refused = str(error)
            self.limiter.release(container)
        starts = bool((self.folder / "gates" / container.id).read_text())
        if starts:
            self.running[container.id] = (pod.record.uid, container)
        else:
            self.world.remove(container.cgroups_path)
            self.limiter.forget(container.id)
        if dies:
            self.start_agent()
        return starts

    def end(self, container_id: str, *, told: bool, removed_before: bool = False) -> PodInfo | None:
        """End a container; the agent is told of it or not, while its cgroup is there or not."""
        uid, container = self.running.pop(container_id)
        if removed_before:
            self.world.remove(container.cgroups_path)
        if told:
            self.limiter.release(container)
        if not removed_before:
            self.world.remove(container.cgroups_path)
        self.limiter.forget(container_id)
        return self.pods.get(uid)

    def audit(self) -> Findings:
        """Audit once; end what two audits in a row found without the limit that it wants."""
        changes = self.limiter.changes
        found = inspect(self.running, self.pods, self.limiter)
        containers = [container for _, container in self.running.values()]
        for card in CARDS:
            found.drifted += self.limiter.repair_above(card, containers, changes=changes)
        for container_id in found.unlimited & self.unlimited:
            container = self.running[container_id][1]
            kill = self.root / container.cgroups_path.lstrip("/") / "cgroup.kill"
            kill.touch()
            self.limiter.stop(container)
            self.end(container_id, told=True)
        self.unlimited = set(found.unlimited)
        return found

    def without_limit(self) -> list[str]:
        """Return the running containers that lack a limit of theirs."""
        return [
            container_id
            for container_id, (uid, container) in self.running.items()
            for part in (self.pods[uid].record.assignment or {})["train"]
            if self.enforcer.read(container.cgroups_path, hardware(part.card)).limit_mib
            != part.limit_mib
        ]

    def drift_mib(self) -> int:
        """Return by how much the cgroups above containers keep more or less than those."""
        drift = 0
        groups = {container.cgroups_path for _, container in self.running.values()}
        above = [
            f"/{folder.relative_to(self.root)}"
            for folder in self.root.rglob("*")
            if folder.is_dir()
        ]
        for each in HARDWARE:
            kept = {group: self.enforcer.kept(group, each) or 0 for group in groups}
            for folder in set(above) - groups:
                inside = sum(mib for group, mib in kept.items() if group.startswith(f"{folder}/"))
                drift += abs(self.enforcer.read(folder, each).guaranteed_mib - inside)
        return drift

    def held_mib(self, which: str) -> int:
        return sum(
            part.mib
            for uid, _ in self.running.values()
            for part in (self.pods[uid].record.assignment or {})["train"]
            if part.card == which
        )


def hardware(uuid: str) -> CardHardware:
    return next(each for each in HARDWARE if each.card.uuid == uuid)


@contextmanager
def a_runtime(world: type[World]) -> Iterator[LimitedRuntime]:
    with TemporaryDirectory(prefix="limits-", dir=MEMORY) as folder:
        yield LimitedRuntime(Path(folder), world)


def pod_of(number: int, sizes: list[int], *, borrow_mib: int = 0) -> PodInfo:
    """Return a pod that runs only with its limits, which are *borrow_mib* above its sizes."""
    slices = tuple(
        Slice(card=card, mib=Mib(mib), own_limit_mib=Mib(mib + borrow_mib))
        for card, mib in zip(CARDS, sizes, strict=False)
    )
    notes = {
        names.ISOLATION: "kernel",
        names.ASSIGNMENT: write_assignment({"train": slices}),
    }
    return a_pod(f"p{number}", assigned={}, annotations=notes)
