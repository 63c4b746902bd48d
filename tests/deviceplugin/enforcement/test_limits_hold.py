"""Whatever happens on a node, a promised limit stands after the next audit, and nothing drifts."""

import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from deviceplugin.cards.interface import CardLimitsError, GroupLimits
from deviceplugin.enforcement.audit import Findings, inspect
from deviceplugin.enforcement.driver import DriverEnforcer
from deviceplugin.enforcement.gate import Gate
from deviceplugin.enforcement.interface import EnforcementError
from deviceplugin.enforcement.limiter import Limiter
from deviceplugin.nri.interface import Adjustment, Container
from fracgpu.cards.card import CardUuid
from fracgpu.state.pod_info import PodInfo
from fracgpu.units import Mib
from tests.deviceplugin.builders import a_pod, facts
from tests.deviceplugin.enforcement.builders import TWO, a_limited_container
from tests.fakes.driver_limits import DriverModel

CARDS: Final = [card.uuid for card in TWO]
CARD_MIB: Final = 8000
# Where folders are made and removed in microseconds, as the kernel does with cgroups.
MEMORY: Final = "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108 - only the folder
RESTARTS: Final = 10_000
SIZES: Final = st.lists(st.sampled_from([100, 700, 2500]), min_size=1, max_size=2)
AGENT: Final = Container(
    id="agent", sandbox_id="s", name="agent", cgroups_path="/kubepods/burstable/podx/agent"
)
ANY: Final = st.integers(min_value=0, max_value=99)


class LimitedRuntime:
    """A runtime with its agent: it starts containers, whether or not the agent answers.

    Like a real one it lets a container start where the agent is gone, but for the gate.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = folder / "cgroup"
        self.root.mkdir()
        (self.root / "cgroup.controllers").touch()
        self.driver = DriverModel(root=str(self.root))
        self.pods: dict[str, PodInfo] = {}
        self.running: dict[str, tuple[str, Container]] = {}
        self.began = 0
        self.driver.make(self.group(AGENT))
        self.start_agent()

    def start_agent(self) -> None:
        """Start a new agent, which remembers nothing."""
        self.limiter = Limiter(
            (DriverEnforcer(self.driver, self.root),),
            cards=lambda: {card.uuid: facts(card) for card in TWO},
            gate=Gate(self.folder / "verify", self.folder / "gates", problem=lambda: None),
            root=self.root,
        )
        self.limiter.keep_only(self.running)
        self.limiter.refresh()

    def start(self, pod: PodInfo, *, dies: bool = False) -> bool:
        """Start a pod's container; *dies* ends the agent before it has answered."""
        self.began += 1
        self.pods[pod.record.uid] = pod
        container = a_limited_container(pod, container_id=f"c{self.began}")
        # Made with the cards that this agent can limit, as all of them could be once.
        self.limiter.hold_back(container, Adjustment())
        self.driver.make(self.group(container))
        try:
            limits = self.limiter.limits_of(container, pod)
            if dies:
                for limit in limits[:1]:
                    wanted = GroupLimits(
                        guaranteed_mib=limit.guaranteed_mib, limit_mib=limit.limit_mib
                    )
                    self.driver.set(limit.card, self.group(container), wanted)
            else:
                self.limiter.prove(container, limits)
        except (EnforcementError, CardLimitsError):
            pass
        starts = bool((self.folder / "gates" / container.id).read_text())
        if starts:
            self.running[container.id] = (pod.record.uid, container)
        else:
            self.driver.remove(self.group(container))
            self.limiter.forget(container.id)
        if dies:
            self.start_agent()
        return starts

    def end(self, container_id: str, *, told: bool) -> PodInfo:
        """End a container; the agent is told of it or not."""
        uid, container = self.running.pop(container_id)
        pod = self.pods[uid]
        if told:
            self.limiter.release(container, self.limiter.limits_of(container, pod))
        self.driver.remove(self.group(container))
        self.limiter.forget(container_id)
        return pod

    def audit(self) -> Findings:
        changes = self.limiter.changes
        found = inspect(self.running, self.pods, self.limiter)
        containers = [AGENT, *(container for _, container in self.running.values())]
        for card in CARDS:
            found.drifted += self.limiter.repair_above(card, containers, changes=changes)
        return found

    def group(self, container: Container) -> str:
        return f"{self.root}{container.cgroups_path}"

    def without_limit(self) -> list[str]:
        """Return the running containers that lack a limit of theirs."""
        return [
            container_id
            for container_id, (uid, container) in self.running.items()
            for part in (self.pods[uid].record.assignment or {})["train"]
            if self.driver.read(part.card, self.group(container)).limit_mib != part.mib
        ]

    def drift_mib(self) -> int:
        """Return by how much the cgroups above containers keep more or less than those."""
        drift = 0
        groups = {self.group(container) for _, container in self.running.values()}
        folders = [str(path) for path in self.root.rglob("*") if path.is_dir()]
        for card in CARDS:
            kept = {group: self.driver.read(card, group).guaranteed_mib for group in groups}
            for folder in folders:
                if folder not in groups:
                    inside = sum(m for group, m in kept.items() if group.startswith(f"{folder}/"))
                    drift += abs(self.driver.read(card, folder).guaranteed_mib - inside)
        return drift

    def held_mib(self, card: CardUuid) -> int:
        return sum(
            part.mib
            for uid, _ in self.running.values()
            for part in (self.pods[uid].record.assignment or {})["train"]
            if part.card == card
        )


@contextmanager
def a_runtime() -> Iterator[LimitedRuntime]:
    with tempfile.TemporaryDirectory(prefix="limits-", dir=MEMORY) as folder:
        yield LimitedRuntime(Path(folder))


def pod_of(number: int, sizes: list[int]) -> PodInfo:
    assigned = list(zip(map(str, CARDS), sizes, strict=False))
    return a_pod(f"p{number}", assigned={"train": assigned})


class LimitsHold(RuleBasedStateMachine):
    """Starts, ends, restarts, crashes, lost calls and interference, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory(prefix="limits-", dir=MEMORY)
        self.node = LimitedRuntime(Path(self.folder.name))

    def teardown(self) -> None:
        self.folder.cleanup()

    def one(self, which: int) -> str | None:
        running = sorted(self.node.running)
        return running[which % len(running)] if running else None

    @rule(sizes=SIZES, dies=st.booleans(), lost=st.booleans())
    def start(self, sizes: list[int], dies: bool, lost: bool) -> None:
        pod = pod_of(self.node.began, sizes)
        fits = all(
            self.node.held_mib(part.card) + part.mib <= CARD_MIB
            for part in (pod.record.assignment or {})["train"]
        )
        if fits:
            self.node.driver.lost = int(lost)
            started = self.node.start(pod, dies=dies)
            self.node.driver.lost = 0
            assert started == (not dies and not lost)

    @rule(which=ANY, told=st.booleans())
    def end(self, which: int, told: bool) -> None:
        if (container := self.one(which)) is not None:
            self.node.end(container, told=told)

    @rule(which=ANY, told=st.booleans())
    def restart(self, which: int, told: bool) -> None:
        if (container := self.one(which)) is not None:
            assert self.node.start(self.node.end(container, told=told))

    @rule()
    def replace_agent(self) -> None:
        self.node.start_agent()

    @rule(which=ANY, mib=st.sampled_from([None, 1, 9000]))
    def interfere(self, which: int, mib: int | None) -> None:
        if (container := self.one(which)) is not None:
            group = self.node.group(self.node.running[container][1])
            limit = None if mib is None else Mib(mib)
            wanted = GroupLimits(guaranteed_mib=Mib(mib or 0), limit_mib=limit)
            self.node.driver.set(CARDS[which % 2], group, wanted)

    @rule(which=ANY, mib=st.sampled_from([0, 50, 20_000]))
    def interfere_above(self, which: int, mib: int) -> None:
        if (container := self.one(which)) is not None:
            group = self.node.group(self.node.running[container][1]).rpartition("/")[0]
            wanted = GroupLimits(guaranteed_mib=Mib(mib), limit_mib=None)
            self.node.driver.set(CARDS[which % 2], group, wanted)

    @invariant()
    def hold_after_an_audit(self) -> None:
        found = self.node.audit()
        assert found.unproven == {}
        assert self.node.without_limit() == []
        assert self.node.drift_mib() == 0
        assert all(self.node.held_mib(card) <= CARD_MIB for card in CARDS)


LimitsHold.TestCase.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)
TestLimitsHold = LimitsHold.TestCase


def test_after_ten_thousand_restarts_the_cgroups_above_have_drifted_by_nothing() -> None:
    dice = random.Random(7)  # noqa: S311 - the same in every run
    with a_runtime() as node:
        for number in range(6):
            assert node.start(pod_of(number, [700, 100]))
        for number in range(RESTARTS):
            container = dice.choice(sorted(node.running))
            pod = node.end(container, told=dice.random() < 0.8)
            if number % 1000 == 999:
                node.start_agent()
            assert node.start(pod)
            if number % 500 == 499:
                assert node.audit().unproven == {}
        drifted = node.drift_mib()
        node.audit()

        assert node.drift_mib() == 0
        assert drifted > 0 or node.audit().drifted == 0
        assert node.without_limit() == []
        for container in sorted(node.running):
            node.end(container, told=False)
        node.audit()
        assert node.drift_mib() == 0
