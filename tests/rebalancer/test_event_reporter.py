"""What people read about a move: Events on the objects concerned."""

from dataclasses import dataclass, field, replace
from datetime import timedelta

from prometheus_client import CollectorRegistry

from fracgpu.cards.card import CardUuid
from fracgpu.disruption.move import Ending
from fracgpu.state.move_object import MovePhase
from kube.events import EventLevel, Regarding
from rebalancer.event_reporter import EventReporter
from rebalancer.metrics import RebalancerMetrics, move_labels
from rebalancer.moves.evictor import EvictionOutcome, EvictionResult
from rebalancer.moves.record import a_replacement
from tests.fakes.clock import NOON
from tests.support.rebalancing import (
    ACTIVE,
    COOL_CARD,
    HOT_CARD,
    a_disruption_state,
    a_reading,
)
from tests.support.records import a_record

RECORD = a_record()


@dataclass
class Written:
    """Stands in for the recorder of Events."""

    events: list[tuple[str, str, str, EventLevel]] = field(default_factory=list)

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


def a_journal() -> tuple[EventReporter, Written, CollectorRegistry]:
    registry, written = CollectorRegistry(), Written()
    return EventReporter(written, RebalancerMetrics(registry), namespace="sys"), written, registry


async def test_a_hot_card_is_told_on_its_node_with_the_reason_not_to_move() -> None:
    reporter, written, _ = a_journal()
    relievable = a_reading(0.9, pods={"a": 0.45, "b": 0.45})

    await reporter.hot_card(HOT_CARD, node="n1", reading=relievable, policy=ACTIVE)
    await reporter.hot_card(HOT_CARD, node="n1", reading=a_reading(0.9), policy=ACTIVE)

    assert written.events[0] == (
        "Node /n1",
        "HotCardDetected",
        "card GPU-hot is busy 90% of the time",
        EventLevel.WARNING,
    )
    assert written.events[1][2].endswith("its pods account for too little of its use")


async def test_a_plan_says_will_and_a_dry_run_would() -> None:
    reporter, written, _ = a_journal()

    await reporter.planned(RECORD)
    await reporter.planned(replace(RECORD, dry_run=True))

    where, reason, note, _ = written.events[0]
    assert (where, reason) == ("Pod ml/pod-x", "MovePlanned")
    assert note == (
        "will move it off card GPU-hot, which is busy 90% of the time; card GPU-cool on n2 has room"
    )
    assert written.events[1][2].startswith("would move it off card GPU-hot")


async def test_a_completed_move_counts_the_gap_and_where_it_landed() -> None:
    reporter, written, registry = a_journal()
    evicted = a_record(MovePhase.EVICTED)
    there = evicted.to(
        MovePhase.VERIFYING,
        now=NOON + timedelta(seconds=8),
        replacement=a_replacement("pod-y", "uid-y", node="n2", card=COOL_CARD),
    )

    await reporter.completed(there, evicted, a_disruption_state(), policy=ACTIVE)
    other = a_replacement("pod-y", "uid-y", node="n3", card=CardUuid("GPU-other"))
    elsewhere = there.with_status(replacement=other)
    await reporter.completed(elsewhere, evicted, a_disruption_state(), policy=ACTIVE)

    assert written.events[0][2] == "ml/pod-y runs on card GPU-cool instead of GPU-hot"
    value = registry.get_sample_value
    assert value("fracgpu_rebalancer_pod_unavailable_seconds_sum") == 16
    assert value("fracgpu_rebalancer_misplaced_total") == 1
    assert value("fracgpu_rebalancer_ping_pongs_total") == 0


async def test_each_ending_is_counted_and_only_bad_news_is_an_event() -> None:
    reporter, written, registry = a_journal()
    for ending in Ending:
        verifying = (Ending.RELIEVED, Ending.USELESS, Ending.UNVERIFIED)
        phase = MovePhase.VERIFYING if ending in verifying else MovePhase.PLANNED
        await reporter.ended(a_record(phase).ended(ending, now=NOON, detail="why"))

    for ending in Ending:
        labels = dict(zip(("mode", "result", "reason"), move_labels("surge", ending), strict=True))
        assert registry.get_sample_value("fracgpu_rebalancer_moves_total", labels) == 1
    told = {(reason, note) for _, reason, note, _ in written.events}
    quiet = {Ending.RELIEVED, Ending.UNVERIFIED, Ending.DRY_RUN, Ending.USELESS}
    assert told == {("MoveIneffective", "why")} | {
        ("MoveAborted", f"{ending.value}: why") for ending in Ending if ending not in quiet
    }
    assert {level for *_, level in written.events} == {EventLevel.WARNING}
    assert registry.get_sample_value("fracgpu_rebalancer_lost_pods_total") == 1
    assert registry.get_sample_value("fracgpu_rebalancer_misplaced_total") == 1
    assert registry.get_sample_value("fracgpu_rebalancer_ineffective_moves_total") == 1


async def test_a_refused_configuration_is_told_on_the_config_map() -> None:
    reporter, written, _ = a_journal()

    await reporter.config_refused("hotRatio is 80")

    where, reason, note, level = written.events[0]
    assert (where, reason, level) == (
        "ConfigMap sys/fracgpu-config",
        "ConfigRefused",
        EventLevel.WARNING,
    )
    assert "hotRatio is 80" in note


def test_answers_and_phases_are_counted() -> None:
    reporter, _, registry = a_journal()

    reporter.asked(RECORD, EvictionResult(outcome=EvictionOutcome.BLOCKED))
    reporter.dry_run_answered(RECORD, EvictionResult(outcome=EvictionOutcome.ALLOWED))
    reporter.verified(relief_ratio=0.25)
    reporter.verified(relief_ratio=-0.25)
    reporter.left_phase(RECORD, now=NOON + timedelta(seconds=9))

    value = registry.get_sample_value
    assert value("fracgpu_rebalancer_evictions_total", {"code": "blocked"}) == 1
    assert value("fracgpu_rebalancer_rehearsals_total", {"code": "allowed"}) == 1
    assert value("fracgpu_rebalancer_relief_points_total") == 25
    assert value("fracgpu_rebalancer_move_phase_seconds_sum", {"phase": "planned"}) == 9


async def test_each_step_of_a_surge_is_told_on_the_pod() -> None:
    reporter, written, _ = a_journal()
    there = a_replacement("pod-y", "uid-y", node="n2", card=COOL_CARD)
    record = a_record(MovePhase.SURGING, replacement=there, message="node n2 is cordoned")

    await reporter.noticed(record, policy=replace(ACTIVE, notice_s=90))
    await reporter.surge_started(record)
    await reporter.replacement_ready(record)
    await reporter.rolled_back(record)

    assert [(reason, note) for _, reason, note, _ in written.events] == [
        ("MoveNoticed", "it is moved off card n1/0 at 12:01:30 UTC"),
        ("SurgeStarted", "its ReplicaSet makes a replacement, for card n2/0"),
        ("ReplacementReady", "ml/pod-y is Ready in its place"),
        ("MoveRolledBack", "it stays, and goes back to its ReplicaSet: node n2 is cordoned"),
    ]
    assert {where for where, *_ in written.events} == {"Pod ml/pod-x"}
