"""Whatever happens in whatever order: no gap without a Ready pod, an end, and no orphan.

A model of the cluster answers the executor: a ReplicaSet that releases, adopts, creates and deletes
as kube-controller-manager does, and an API server that may apply a write and lose the answer. The
process may die at every write.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from fracgpu.cards.card import CardUuid, Cordon
from fracgpu.disruption.candidates import original_value, released_value
from fracgpu.disruption.policy import Mode, RebalancerPolicy
from fracgpu.state.move_object import ENDED, Move, MoveMode, MovePhase
from rebalancer.moves.executor import MoveExecutor
from rebalancer.moves.janitor import Remedy, what_to_do
from rebalancer.moves.observer import Observer
from rebalancer.moves.side_effects import SideEffects
from rebalancer.moves.steps import (
    Action,
    EvictionOutcome,
    EvictionResult,
    MoveFacts,
    OwnerFacts,
    ReplacementFacts,
    StepContext,
    VictimFacts,
)
from tests.fakes.clock import NOON
from tests.support.examples import at_least
from tests.support.rebalancing import (
    COOL_CARD,
    HOT_CARD,
    a_disruption_state,
    a_move,
    a_node,
    a_placed_pod,
    a_reading,
)
from tests.support.records import a_record

HASH, OWNER_UID = "5d4f8c", "owner-1"
POLICY = RebalancerPolicy(mode=Mode.ACTIVE, startup_grace_s=0, owner_cooldown_s=1)
PODS = (
    a_placed_pod("pod-a", labels={"pod-template-hash": HASH}),
    a_placed_pod("pod-b", labels={"pod-template-hash": HASH}),
)
BUSY = {"pod-a": 0.45, "pod-b": 0.45}
CORDONED = replace(
    a_node("n1", HOT_CARD),
    cordons=(Cordon(card=HOT_CARD, until=NOON + timedelta(days=9), reason="hot"),),
)


_ON_THE_POD = (Action.RELEASE, Action.RESTORE, Action.UNMARK, Action.WITHDRAW)


class Died(Exception):  # noqa: N818 - what happened to the process
    """The process ended between two of its steps."""


@dataclass
class Model(Observer, SideEffects):
    """The cluster, as far as one move concerns it, and what went wrong in it."""

    mode: MoveMode
    now: datetime = NOON
    policy: RebalancerPolicy = POLICY
    label: str = HASH
    owned: bool = True
    there: bool = True
    moved_by: str = ""
    version: int = 1
    owner: bool = True
    current: bool = True
    desired: int = 2
    siblings: int = 1
    failure: str = ""
    target_problem: str = ""
    replacement: ReplacementFacts | None = None
    made: int = 0
    stored: Move | None = None
    dies_at: int = -1
    outcome: EvictionOutcome = EvictionOutcome.ALLOWED
    applied: bool = True
    delayed: int = 0  # the version in the precondition of an eviction that is still on its way
    unchanging: bool = False  # the API server refused to change the pod
    violations: list[str] = field(default_factory=list)

    # -- what the executor needs ---------------------------------------------------------------

    async def observe(self, record: Move, context: StepContext) -> MoveFacts:
        del record, context
        victim = VictimFacts(
            there=self.there,
            why_gone="" if self.there else "there is no such pod",
            running=True,
            controller_uid=OWNER_UID if self.owned and self.owner else "",
            hash_label=self.label,
            moved_by=self.moved_by,
            version=str(self.version),
        )
        return MoveFacts(
            victim=victim,
            owner=self.owner_facts(),
            replacement=self.replacement,
            target_problem=self.target_problem,
        )

    async def perform(
        self, action: Action, record: Move, facts: MoveFacts, context: StepContext
    ) -> EvictionResult:
        del context
        self.die_maybe()
        outcome, applied = self.outcome, self.applied
        self.outcome, self.applied = EvictionOutcome.ALLOWED, True
        if outcome is EvictionOutcome.ALLOWED or (outcome is EvictionOutcome.UNCLEAR and applied):
            self.apply(action, record, facts)
        elif action is Action.EVICT and outcome is EvictionOutcome.UNCLEAR:
            self.delayed = self.version
        elif action is Action.WITHDRAW:
            self.unchanging = True
        self.die_maybe()
        return EvictionResult(outcome=outcome, detail=outcome.value)

    async def persist(self, record: Move) -> Move:
        self.die_maybe()
        self.stored = record
        self.die_maybe()
        return record

    def owner_facts(self) -> OwnerFacts:
        return OwnerFacts(
            there=self.owner,
            observed=True,
            desired=self.desired,
            ready=self.ready(),
            others=self.siblings + (self.replacement is not None and self.replacement.ready),
            current=self.current,
            failure=self.failure,
            selects_by=HASH if self.mode is MoveMode.SURGE else "",
        )

    # -- what happens --------------------------------------------------------------------------

    def die_maybe(self) -> None:
        self.dies_at -= 1
        if self.dies_at == 0:
            raise Died

    def apply(self, action: Action, record: Move, facts: MoveFacts) -> None:
        if action in _ON_THE_POD and facts.victim.version != str(self.version):
            return
        match action:
            case Action.RELEASE if self.there:
                self.announced(record, MovePhase.SURGING)
                self.label, self.moved_by = released_value(self.label), record.name
                self.version += 1
            case Action.RESTORE if self.there:
                self.label = original_value(self.label)
                self.version += 1
            case Action.WITHDRAW if self.there:
                self.version += 1
            case Action.UNMARK if self.there:
                self.moved_by = ""
                self.version += 1
            case Action.EVICT if self.there:
                self.evicted(record)
            case Action.DEMOTE if self.replacement is not None:
                self.replacement = replace(self.replacement, demoted=True)
            case _:
                pass

    def evicted(self, record: Move) -> None:
        self.announced(record, MovePhase.EVICTING, MovePhase.ROLLING_BACK)
        surge = self.mode is MoveMode.SURGE and self.owner
        if surge and not (self.replacement is not None and self.replacement.ready):
            self.violations.append("evicted without a Ready replacement")
        self.there = False

    def arrive(self) -> None:
        """Let an eviction arrive that was sent long ago; who sent it may be dead."""
        version, self.delayed = self.delayed, 0
        if not self.there or version != self.version:
            return
        assert self.stored is not None
        if self.stored.phase is MovePhase.EVICTING or self.unchanging:
            self.there = False
        else:
            self.violations.append(f"evicted by a request of before, in {self.stored.phase.value}")

    def announced(self, record: Move, *phases: MovePhase) -> None:
        if (
            self.stored is None
            or self.stored.phase not in phases
            or record.name != self.stored.name
        ):
            self.violations.append("not on record before it was done")

    def ready(self) -> int:
        replaced = self.replacement is not None and self.replacement.ready
        mine = self.there and self.owned and self.label == HASH
        return self.siblings + replaced + mine

    def controllers(self) -> None:
        """Do what the controllers of Kubernetes would do now."""
        if not self.owner:
            self.replacement, self.siblings = None, 0  # the garbage collector
            self.there = self.there and not self.owned
            return
        if self.there:
            self.owned = self.label == HASH
        counted = self.siblings + (self.replacement is not None) + (self.there and self.owned)
        if counted < self.desired and not self.failure:
            if self.replacement is None:
                self.made += 1
                self.replacement = ReplacementFacts(name=f"r{self.made}", uid=f"r{self.made}")
            else:
                self.siblings += 1
        elif counted > self.desired:
            self.delete_one()

    def delete_one(self) -> None:
        found = self.replacement
        if found is not None and (not found.ready or found.demoted):
            self.replacement = None
        elif self.siblings:
            self.siblings -= 1
        elif self.there and self.owned:
            self.there = False
        else:
            self.replacement = None

    def happen(self, what: str, value: Any) -> None:
        found = self.replacement
        match what:
            case "controllers":
                self.controllers()
            case "replacement" if found is not None:
                changes = value(found)
                self.replacement = replace(found, **changes)
            case "arrive" if self.delayed:
                self.arrive()
            case "set":
                for name, changed in value.items():
                    setattr(self, name, changed)
            case _:
                pass

    async def sweep(self) -> None:
        """Do what the janitor does to a pod that an ended move left with its mark."""
        if not (self.there and self.moved_by):
            return
        assert self.stored is not None
        assert self.stored.phase in ENDED
        released = self.label != HASH
        if released or not self.owned:
            what = what_to_do(self.owner_facts(), released=released, orphaned=False)
            if what is Remedy.EVICT:
                self.there = False
            if what is not Remedy.RESTORE:
                return
        if released:
            self.label = HASH
        else:
            self.moved_by = ""

    async def tick(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)
        if self.stored is None or self.stored.phase in ENDED:
            return
        state = a_disruption_state(
            pods=[pod for pod in PODS if self.there or pod.uid != "pod-a"],
            past=[self.stored],
            readings={HOT_CARD: a_reading(0.9, pods=BUSY), COOL_CARD: a_reading(0.05)},
        )
        context = StepContext(
            state=state,
            nodes={"n1": CORDONED, "n2": a_node("n2", COOL_CARD)},
            policy=self.policy,
            now=self.now,
        )
        executor = MoveExecutor(self, self, Silent(), self.persist, jitter=lambda: 0.5)
        try:
            await executor.step(self.stored, context)
        except Died:
            self.dies_at = -1


class Silent:
    """Reports nothing."""

    async def done(self, *_: Any) -> None: ...
    async def entered(self, *_: Any) -> None: ...


def bound(card: CardUuid | None) -> Callable[[ReplacementFacts], dict[str, Any]]:
    def change(found: ReplacementFacts) -> dict[str, Any]:
        first = {"node": "n2", "card": card}
        return {} if found.node else first

    return change


def becomes(*, ready: bool) -> Callable[[ReplacementFacts], dict[str, Any]]:
    return lambda found: {"ready": ready} if found.node else {}


def is_stuck(_: ReplacementFacts) -> dict[str, Any]:
    return {"stuck": "its image cannot be pulled", "ready": False}


def said(what: str, *values: Any) -> st.SearchStrategy[tuple[str, Any]]:
    return st.tuples(st.just(what), st.sampled_from(values))


ANSWERS = st.builds(
    lambda outcome, applied: ("set", {"outcome": outcome, "applied": applied}),
    st.sampled_from(EvictionOutcome),
    st.booleans(),
)
DEATHS = st.integers(1, 12).map(lambda writes: ("set", {"dies_at": writes}))
EVENTS = st.one_of(
    said("tick", 15.0),
    said("tick", 1.0, 15.0, 61.0, 700.0),
    said("controllers", None),
    said("arrive", None),
    said("replacement", bound(COOL_CARD), becomes(ready=True)),
    said("replacement", becomes(ready=False), is_stuck),
    said("replacement", bound(HOT_CARD), bound(CardUuid("GPU-other")), bound(None)),
    ANSWERS,
    DEATHS,
    said("set", {"desired": 1}, {"desired": 3}, {"current": False}, {"owner": False}),
    said("set", {"failure": "exceeded quota"}, {"failure": ""}, {"there": False}),
    said("set", {"target_problem": "node n2 is cordoned"}, {"target_problem": ""}),
    said("set", *({"policy": replace(POLICY, mode=mode)} for mode in Mode)),
)
CALM = {"outcome": EvictionOutcome.ALLOWED, "applied": True, "failure": "", "dies_at": -1}


REPLACED = (
    ("tick", 15.0),
    ("controllers", None),
    ("replacement", bound(COOL_CARD)),
    ("replacement", becomes(ready=True)),
    ("tick", 15.0),
)
BLOCKED = (
    *REPLACED,
    ("set", {"outcome": EvictionOutcome.BLOCKED}),
    ("tick", 31.0),
)


DELAYED = (
    *REPLACED,
    ("set", {"outcome": EvictionOutcome.UNCLEAR, "applied": False}),
    ("tick", 31.0),
)


def begun(events: Sequence[tuple[str, Any]]) -> Sequence[tuple[str, Any]]:
    """Return events after which the move has begun: a plan would expire before long."""
    return (*events, ("tick", 15.0))


async def run(
    mode: MoveMode,
    events: Sequence[tuple[str, Any]],
    before: Sequence[tuple[str, Any]] = (),
) -> Model:
    model = Model(mode)
    move = a_move(pod_uid="pod-a", name="pod-a", owner_uid=OWNER_UID, mode=mode, gain_points=20.0)
    model.stored = a_record(move=move)
    for what, value in (*before, *events):
        if what == "tick":
            await model.tick(value)
        else:
            model.happen(what, value)
    model.happen("set", CALM)  # from here on nothing unexpected happens any more
    for _ in range(24):
        model.controllers()
        model.happen("replacement", bound(COOL_CARD))
        model.happen("replacement", becomes(ready=True))
        await model.tick(151)
    for _ in range(2):
        await model.sweep()
        model.controllers()
    await model.sweep()
    return model


# An eviction is delayed until its move was given up, or until the replacement is gone.
@example(
    MoveMode.EVICT,
    [("set", {"target_problem": "node n2 is cordoned"}), ("tick", 15.0), ("arrive", None)],
    [("set", {"outcome": EvictionOutcome.UNCLEAR, "applied": False}), ("tick", 15.0)],
)
@example(
    MoveMode.SURGE,
    [("replacement", becomes(ready=False)), ("tick", 15.0), ("arrive", None)],
    DELAYED,
)
# The controllers do nothing for so long that the move ends, and then the owner is deleted.
@example(
    MoveMode.SURGE,
    [("controllers", None), ("tick", 700.0), ("tick", 700.0), ("set", {"owner": False})],
    [("tick", 15.0)],
)
@settings(max_examples=at_least(150))
@given(
    st.sampled_from(MoveMode),
    st.lists(EVENTS, max_size=30),
    st.lists(EVENTS, max_size=3).map(begun) | st.sampled_from([REPLACED, BLOCKED, DELAYED]),
)
def test_every_move_ends_without_a_gap_and_without_an_orphan(
    mode: MoveMode, events: list[tuple[str, Any]], before: Sequence[tuple[str, Any]]
) -> None:
    model = asyncio.run(run(mode, events, before))

    assert model.stored is not None
    assert model.stored.phase in ENDED
    assert model.violations == []
    # Either the pod is gone, or it belongs to its controller and nothing marks it.
    assert not model.there or (model.owned and model.label == HASH and not model.moved_by)
    assert not model.owner or model.ready() >= min(model.desired, 2)


def test_the_model_lets_an_undisturbed_move_succeed() -> None:
    surge = asyncio.run(run(MoveMode.SURGE, [], REPLACED))
    evict = asyncio.run(run(MoveMode.EVICT, [], begun([])))

    for model in (surge, evict):
        assert model.stored is not None
        assert model.stored.phase is MovePhase.DONE
        assert not model.there
        assert model.replacement is not None
