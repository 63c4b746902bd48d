"""What people read about a move: Events on the objects concerned."""

from dataclasses import dataclass, field, replace
from datetime import timedelta

import pytest
from msgspec import structs
from prometheus_client import CollectorRegistry

from fracgpu.cards.card import CardUuid
from fracgpu.disruption.disruption_state import DisruptionState
from fracgpu.state.move_object import Ending, Move, MovePhase, OwnerReference
from kube.events import EventLevel, Regarding
from rebalancer.event_reporter import EventReporter
from rebalancer.metrics import RebalancerMetrics, move_labels
from rebalancer.moves.steps import Action, EvictionOutcome, EvictionResult, StepContext
from tests.fakes.clock import NOON
from tests.support.rebalancing import (
    ACTIVE,
    COOL_CARD,
    HOT_CARD,
    a_disruption_state,
    a_past_move,
    a_reading,
)
from tests.support.records import a_record, a_replacement

RECORD = a_record()


@dataclass
class Written:
    """Stands in for the recorder of Events."""

    events: list[tuple[str, str, str, EventLevel]] = field(default_factory=list)
    regarding: list[Regarding] = field(default_factory=list)

    def notes(self) -> list[str]:
        """Return each note once, in order."""
        return list(dict.fromkeys(note for _, _, note, _ in self.events))

    async def emit(
        self,
        regarding: Regarding,
        *,
        reason: str,
        note: str,
        level: EventLevel = EventLevel.NORMAL,
    ) -> None:
        where = f"{regarding.kind.kind} {regarding.namespace}/{regarding.name}"
        self.events.append((where, reason, note, level))
        self.regarding.append(regarding)


ALLOWED = EvictionResult(outcome=EvictionOutcome.ALLOWED)


def a_context(state: DisruptionState | None = None) -> StepContext:
    return StepContext(state=state or a_disruption_state(), nodes={}, policy=ACTIVE, now=NOON)


def a_journal() -> tuple[EventReporter, Written, CollectorRegistry]:
    registry, written = CollectorRegistry(), Written()
    return EventReporter(written, RebalancerMetrics(registry), namespace="sys"), written, registry


async def test_a_hot_card_is_told_on_its_node_with_the_reason_not_to_move() -> None:
    reporter, written, _ = a_journal()
    relievable = a_reading(0.9, pods={"a": 0.45, "b": 0.45})

    for reading in (relievable, a_reading(0.9)):
        await reporter.hot_card(HOT_CARD, node="n1", display="n1/0", reading=reading, policy=ACTIVE)

    assert written.events[0] == (
        "Node /n1",
        "HotCardDetected",
        "card n1/0 (GPU-hot) is busy 90% of the time",
        EventLevel.WARNING,
    )
    assert written.events[1][2].endswith("its pods account for too little of its use")


async def test_a_plan_says_will_and_a_dry_run_would() -> None:
    reporter, written, _ = a_journal()

    await reporter.planned(RECORD)
    await reporter.planned(RECORD, dry_run=True)

    where, reason, note, _ = written.events[0]
    assert (where, reason) == ("Pod ml/pod-x", "MovePlanned")
    assert note == (
        "pod ml/pod-x will be moved off card n1/0, which is busy 90% of the time; "
        "card n2/0 has room"
    )
    assert written.notes()[1].startswith("pod ml/pod-x would be moved off card n1/0")


async def test_an_event_about_a_move_is_on_the_pod_its_controller_and_the_node_it_leaves() -> None:
    reporter, written, _ = a_journal()
    owner = OwnerReference(api_version="apps/v1", kind="ReplicaSet", name="web-1", uid="rs")
    record = structs.replace(RECORD, spec=structs.replace(RECORD.spec, owner=owner))

    after = record.with_status(phase=MovePhase.EVICTED)
    await reporter.entered(after, a_record(MovePhase.EVICTING), a_context())

    assert {(where, reason) for where, reason, *_ in written.events} == {
        ("Pod ml/pod-x", "Evicted"),
        ("ReplicaSet ml/web-1", "Evicted"),
        ("Node /n1", "Evicted"),
    }
    assert written.notes() == ["pod ml/pod-x was evicted to relieve card n1/0"]
    references = [regarding.reference() for regarding in written.regarding]
    assert references[1]["apiVersion"] == "apps/v1"
    # "kubectl describe node" finds the Events whose UID is the name of the node.
    assert references[2] == {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "n1"}


async def test_a_completed_move_counts_the_gap_and_where_it_landed() -> None:
    reporter, written, registry = a_journal()
    evicted = a_record(MovePhase.EVICTED)
    there = evicted.to(
        MovePhase.VERIFYING,
        now=NOON + timedelta(seconds=8),
        replacement=a_replacement("pod-y", "uid-y", node="n2", card=COOL_CARD),
    )

    await reporter.entered(there, evicted, a_context())
    other = a_replacement("pod-y", "uid-y", node="n3", card=CardUuid("GPU-other"))
    elsewhere = there.with_status(replacement=other)
    await reporter.entered(elsewhere, evicted, a_context())

    assert written.notes() == [
        "ml/pod-y runs on card n2/0 in the place of pod ml/pod-x, which was on card n1/0",
        "ml/pod-y runs on card GPU-other in the place of pod ml/pod-x, which was on card n1/0",
    ]
    value = registry.get_sample_value
    assert value("fracgpu_rebalancer_pod_unavailable_seconds_sum") == 16
    assert value("fracgpu_rebalancer_misplaced_total") == 1
    assert value("fracgpu_rebalancer_ping_pongs_total") == 0


async def test_a_return_is_counted_unless_it_takes_a_useless_move_back() -> None:
    reporter, _, registry = a_journal()
    evicted = a_record(MovePhase.EVICTED)
    back = evicted.to(
        MovePhase.VERIFYING,
        now=NOON,
        replacement=a_replacement("pod-y", "uid-y", node="n2", card=COOL_CARD),
    )

    def past_move(ending: Ending, replacement: str) -> Move:
        return a_past_move(
            minutes_ago=0,
            source=COOL_CARD,
            target=HOT_CARD,
            pod_uid="pod-w",
            ending=ending,
            replacement_uid=replacement,
        )

    counts = []
    for past in (
        past_move(Ending.USELESS, "pod-x"),
        past_move(Ending.RELIEVED, "pod-x"),
        past_move(Ending.USELESS, "pod-v"),
    ):
        await reporter.entered(back, evicted, a_context(a_disruption_state(past=[past])))
        counts.append(registry.get_sample_value("fracgpu_rebalancer_ping_pongs_total"))

    assert counts == [0, 1, 2]


async def test_each_ending_is_counted_and_only_bad_news_is_an_event() -> None:
    reporter, written, registry = a_journal()
    for ending in Ending:
        verifying = (Ending.RELIEVED, Ending.USELESS, Ending.UNVERIFIED)
        phase = MovePhase.VERIFYING if ending in verifying else MovePhase.PLANNED
        await reporter.ended(a_record(phase).ended(ending, now=NOON, detail="why"))

    for ending in Ending:
        mode = "dryRun" if ending is Ending.DRY_RUN else "surge"
        labels = dict(zip(("mode", "result", "reason"), move_labels(mode, ending), strict=True))
        assert registry.get_sample_value("fracgpu_rebalancer_moves_total", labels) == 1
    reported = {(reason, note) for _, reason, note, _ in written.events}
    quiet = {Ending.RELIEVED, Ending.UNVERIFIED, Ending.DRY_RUN, Ending.USELESS}
    move = "moving pod ml/pod-x off card n1/0"
    assert reported == {("MoveIneffective", f"{move} relieved nothing: why")} | {
        ("MoveAborted", f"{move} was given up ({ending.value}): why")
        for ending in Ending
        if ending not in quiet
    }
    assert {level for *_, level in written.events} == {EventLevel.WARNING}
    assert registry.get_sample_value("fracgpu_rebalancer_lost_pods_total") == 1
    assert registry.get_sample_value("fracgpu_rebalancer_misplaced_total") == 1
    assert registry.get_sample_value("fracgpu_rebalancer_ineffective_moves_total") == 1


async def test_what_is_wrong_with_the_policy_is_told_on_the_config_map() -> None:
    reporter, written, _ = a_journal()

    await reporter.config_refused("hotRatio is 80")
    await reporter.settings_ignored(("settleS", "tickS"))

    assert [(where, reason, level) for where, reason, _, level in written.events] == [
        ("ConfigMap sys/fracgpu-config", reason, EventLevel.WARNING)
        for reason in ("ConfigRefused", "SettingsIgnored")
    ]
    refused, ignored = written.notes()
    assert "hotRatio is 80" in refused
    assert "settleS, tickS" in ignored


async def test_answers_and_phases_are_counted() -> None:
    reporter, _, registry = a_journal()
    landed = a_replacement("pod-y", "uid-y", node="n2", card=COOL_CARD)
    verifying = a_record(MovePhase.VERIFYING, replacement=landed)

    for action, outcome in (
        (Action.EVICT, EvictionOutcome.BLOCKED),
        (Action.PREFLIGHT, EvictionOutcome.ALLOWED),
    ):
        await reporter.done(action, RECORD, EvictionResult(outcome=outcome), ACTIVE)
    for source in (0.65, 0.95):  # it was 90 % busy
        state = a_disruption_state(readings={HOT_CARD: a_reading(source)})
        late = NOON + timedelta(seconds=9)
        context = StepContext(state=state, nodes={}, policy=ACTIVE, now=late)
        ended = verifying.ended(Ending.RELIEVED, now=late)
        await reporter.entered(ended, verifying, context)

    value = registry.get_sample_value
    assert value("fracgpu_rebalancer_evictions_total", {"code": "blocked"}) == 1
    assert value("fracgpu_rebalancer_rehearsals_total", {"code": "allowed"}) == 1
    assert value("fracgpu_rebalancer_relief_points_total") == pytest.approx(25)
    assert value("fracgpu_rebalancer_move_phase_seconds_sum", {"phase": "verifying"}) == 18


async def test_each_step_of_a_surge_is_told_on_the_pod() -> None:
    reporter, written, registry = a_journal()
    there = a_replacement("pod-y", "uid-y", node="n2", card=COOL_CARD)
    record = a_record(MovePhase.SURGING, replacement=there, message="node n2 is cordoned")

    await reporter.done(Action.NOTICE, record, ALLOWED, replace(ACTIVE, notice_s=90))
    await reporter.done(Action.RELEASE, record, ALLOWED, ACTIVE)
    ready = record.with_status(phase=MovePhase.REPLACEMENT_READY)
    await reporter.entered(ready, record, a_context())
    await reporter.done(Action.RESTORE, record, ALLOWED, ACTIVE)

    moved = "pod ml/pod-x is moved off card n1/0"
    on_pod = [
        (reason, note) for where, reason, note, _ in written.events if where == "Pod ml/pod-x"
    ]
    assert on_pod == [
        ("MoveNoticed", f"{moved} at 12:01:30 UTC"),
        ("SurgeStarted", f"{moved}: its ReplicaSet makes a replacement, for card n2/0"),
        ("ReplacementReady", f"ml/pod-y is Ready on card n2/0; {moved}"),
        (
            "RolledBack",
            "pod ml/pod-x stays on card n1/0, and goes back to its ReplicaSet: node n2 is cordoned",
        ),
    ]
    levels = {reason: level for _, reason, _, level in written.events}
    assert levels.pop("RolledBack") is EventLevel.WARNING
    assert set(levels.values()) == {EventLevel.NORMAL}
    assert registry.get_sample_value("fracgpu_rebalancer_reverts_total") == 1
