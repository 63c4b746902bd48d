"""The property of limits: what may happen on a node, in any order, and what holds nevertheless."""

import random
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.deviceplugin.enforcement.runtime import (
    CARD_MIB,
    CARDS,
    HARDWARE,
    MEMORY,
    LimitedRuntime,
    ModelWorld,
    StandinWorld,
    TreeWorld,
    World,
    a_runtime,
    pod_of,
)

SIZES = st.lists(st.sampled_from([100, 700, 2500]), min_size=1, max_size=2)
BORROWED = st.sampled_from([0, 400])
ANY = st.integers(min_value=0, max_value=99)


class LimitsHold(RuleBasedStateMachine):
    """Starts, ends, restarts, crashes, lost calls and interference, in any order."""

    world: ClassVar[type[World]]

    def __init__(self) -> None:
        super().__init__()
        self.folder = TemporaryDirectory(prefix="limits-", dir=MEMORY)
        self.node = LimitedRuntime(Path(self.folder.name), self.world)

    def teardown(self) -> None:
        self.folder.cleanup()

    def one(self, which: int) -> str | None:
        running = sorted(self.node.running)
        return running[which % len(running)] if running else None

    def group(self, container: str) -> str:
        return self.node.running[container][1].cgroups_path

    @rule(sizes=SIZES, borrow_mib=BORROWED, dies=st.booleans(), lost=st.booleans())
    def start(self, sizes: list[int], borrow_mib: int, dies: bool, lost: bool) -> None:
        pod = pod_of(self.node.began, sizes, borrow_mib=borrow_mib)
        fits = all(
            self.node.held_mib(part.card) + part.mib <= CARD_MIB
            for part in (pod.record.assignment or {})["train"]
        )
        if fits:
            self.node.world.lose(int(lost))
            started = self.node.start(pod, dies=dies)
            self.node.world.lose(0)
            assert started == (not dies and not lost)

    @rule(which=ANY, told=st.booleans(), removed_before=st.booleans())
    def end(self, which: int, told: bool, removed_before: bool) -> None:
        if (container := self.one(which)) is not None:
            self.node.end(container, told=told, removed_before=removed_before)

    @rule(which=ANY, told=st.booleans(), removed_before=st.booleans())
    def restart(self, which: int, told: bool, removed_before: bool) -> None:
        if (container := self.one(which)) is not None:
            pod = self.node.end(container, told=told, removed_before=removed_before)
            assert pod is not None
            assert self.node.start(pod)

    @rule(which=ANY)
    def forget_the_pod(self, which: int) -> None:
        """Delete a pod without waiting for its container, which ends after it."""
        if (container := self.one(which)) is not None:
            del self.node.pods[self.node.running[container][0]]
            self.node.end(container, told=True)

    @rule()
    def replace_agent(self) -> None:
        self.node.start_agent()

    @rule(which=ANY, mib=st.sampled_from([None, 1, 9000]))
    def interfere(self, which: int, mib: int | None) -> None:
        if (container := self.one(which)) is not None:
            self.node.world.interfere(self.group(container), which % 2, mib)

    @rule(which=ANY, mib=st.sampled_from([0, 50, 20_000]))
    def interfere_above(self, which: int, mib: int) -> None:
        container = self.one(which)
        if container is not None and self.node.enforcer.kept("/", HARDWARE[0]) is not None:
            above = self.group(container).rpartition("/")[0]
            self.node.world.interfere(above, which % 2, mib)

    @rule(which=ANY)
    def outgrow(self, which: int) -> None:
        """Take a limit away and use more: it cannot be set again."""
        if (container := self.one(which)) is not None:
            for card in range(2):
                self.node.world.interfere(self.group(container), card, None)
                self.node.world.use(self.group(container), card, 9000)
            self.node.audit()
            assert container in self.node.unlimited
            self.node.audit()
            assert container not in self.node.running

    @invariant()
    def hold_after_an_audit(self) -> None:
        found = self.node.audit()
        assert found.unproven == {}
        assert self.node.without_limit() == []
        assert self.node.drift_mib() == 0
        assert all(self.node.held_mib(card) <= CARD_MIB for card in CARDS)


class HoldsOnTheModel(LimitsHold):
    """By the driver, as modelled."""

    world = ModelWorld


class HoldsOnTheTree(LimitsHold):
    """By the kernel."""

    world = TreeWorld


class HoldsOnTheStandin(LimitsHold):
    """By the stand-in for NVIDIA's library."""

    world = StandinWorld


def restart_often(world: type[World], *, restarts: int) -> None:
    """Restart containers, a fifth of them without the agent's knowledge: nothing drifts."""
    dice = random.Random(7)  # noqa: S311 - the same in every run
    with a_runtime(world) as node:
        for number in range(6):
            assert node.start(pod_of(number, [700, 100]))
        for number in range(restarts):
            container = dice.choice(sorted(node.running))
            told, late = dice.random() < 0.8, dice.random() < 0.2
            pod = node.end(container, told=told, removed_before=late)
            assert pod is not None
            if number % 1000 == 999:
                node.start_agent()
            assert pod is not None
            assert node.start(pod), node.refused
            if number % 500 == 499:
                assert node.audit().unproven == {}
        node.audit()
        assert node.drift_mib() == 0
        assert node.without_limit() == []
        for container in sorted(node.running):
            node.end(container, told=False)
        node.audit()
        assert node.drift_mib() == 0
