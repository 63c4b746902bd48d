"""The audit log: what was seen, what was decided and why not; once, in bounded lines."""

import json
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import structlog

from fracgpu.disruption.disruption_state import DisruptionState
from fracgpu.disruption.move import HeldBack, HoldReason, Plan
from fracgpu.disruption.planner import plan_moves
from fracgpu.disruption.policy import Mode
from fracgpu.k8s.scheduling.cluster import SchedulingCluster
from rebalancer.audit import AuditLog, cycle_entry, decision_entries, inputs_hash
from rebalancer.usage.measured import Measured
from tests.fakes.clock import NOON
from tests.support.rebalancing import (
    ACTIVE,
    COOL_CARD,
    HOT_CARD,
    a_disruption_state,
    a_placed_pod,
    a_reading,
)


class Written:
    """An audit log in a file."""

    def __init__(self, file: Path, audit: AuditLog) -> None:
        self.file = file
        self.audit = audit

    def cycle(
        self, state: DisruptionState, plan: Plan | None = None, *, later_s: float = 0
    ) -> list[Mapping[str, Any]]:
        """Write one cycle; return its lines."""
        before = len(self.lines())
        now = NOON + timedelta(seconds=later_s)
        found = plan if plan is not None else plan_moves(state, policy=ACTIVE, now=now)
        measured = Measured(usage=state.usage, at_s=1234.5)
        self.audit.write(state, found, measured, policy=ACTIVE, mode=Mode.ACTIVE, now=now)
        return self.lines()[before:]

    def lines(self) -> list[Mapping[str, Any]]:
        if not self.file.exists():
            return []
        return [json.loads(line) for line in self.file.read_text().splitlines()]


@contextmanager
def a_log(file: Path, **options: Any) -> Iterator[Written]:
    with closing(AuditLog(str(file), **options)) as audit:
        yield Written(file, audit)


def test_a_cycle_says_when_it_asked_by_which_policy_and_what_it_saw(tmp_path: Path) -> None:
    state = a_disruption_state()

    with a_log(tmp_path / "audit") as written:
        cycle, *_ = written.cycle(state)

    assert cycle == {
        "audit": "cycle",
        "at": "2026-01-05T12:00:00+00:00",
        "query_at_s": 1234.5,
        "config": ACTIVE.digest,
        "mode": "active",
        "inputs": inputs_hash(state),
        "blind": "",
        "cards": 2,
        "trusted_ratio": 1.0,
        "hot": 1,
        "moves": 1,
        "under_way": 0,
        "held": cycle["held"],
    }


def test_a_decision_to_move_has_the_score_and_every_other_candidate(tmp_path: Path) -> None:
    state = a_disruption_state()
    plan = plan_moves(state, policy=ACTIVE, now=NOON)
    rule = HoldReason.OUTSCORED
    other = HeldBack(
        subject="ml/pod-b", reason=rule, detail="3.5 points", card=HOT_CARD, gain_points=3.5
    )

    with a_log(tmp_path / "audit") as written:
        _, decision = written.cycle(state, replace(plan, held=(other,)))

    assert decision["card"] == "n1/0"
    assert decision["outcome"] == "move"
    assert decision["target"] == "n2/0"
    chosen, held = decision["candidates"]
    assert chosen["subject"] == "ml/pod-a"
    assert chosen["gain_points"] == plan.moves[0].gain_points
    assert held == {
        "subject": "ml/pod-b",
        "refused_by": "outscored",
        "gain_points": 3.5,
        "detail": "3.5 points",
    }


def test_a_decision_says_which_targets_lack_history_and_how_long_they_will(tmp_path: Path) -> None:
    new = replace(a_reading(0.05), history_ratio=0.3)

    with a_log(tmp_path / "audit") as written:
        _, decision = written.cycle(a_disruption_state(readings={COOL_CARD: new}))

    assert {(part["refused_by"], part["detail"]) for part in decision["candidates"]} == {
        (
            "no_target",
            "1 cool card with room lacks history; the first can be a target in 30 min",
        )
    }


def test_a_card_that_keeps_its_pods_has_the_first_rule_that_refused_each(tmp_path: Path) -> None:
    state = a_disruption_state()
    held = (
        HeldBack(subject="ml/pod-a", card=HOT_CARD, reason=HoldReason.NEVER),
        HeldBack(subject="ml/pod-b", card=HOT_CARD, reason=HoldReason.NO_TARGET),
        HeldBack(subject=COOL_CARD, reason=HoldReason.ONE_POD_ALONE),
        HeldBack(subject="cluster", reason=HoldReason.HOURLY_BUDGET),
    )

    with a_log(tmp_path / "audit") as written:
        _, *decisions = written.cycle(state, Plan(held=held))

    assert {
        entry["card"]: [(part["subject"], part["refused_by"]) for part in entry["candidates"]]
        for entry in decisions
    } == {
        "n1/0": [("ml/pod-a", "never"), ("ml/pod-b", "no_target")],
        "n2/0": [(COOL_CARD, "one_pod_alone")],
        "cluster": [("cluster", "hourly_budget")],
    }
    assert {entry["outcome"] for entry in decisions} == {"held"}


def test_a_decision_is_written_when_it_changes_and_every_ten_minutes(tmp_path: Path) -> None:
    state = a_disruption_state()
    young = Plan(
        held=(
            HeldBack(subject="ml/pod-a", card=HOT_CARD, reason=HoldReason.TOO_YOUNG, detail="1 s"),
        )
    )
    older = Plan(
        held=(
            HeldBack(subject="ml/pod-a", card=HOT_CARD, reason=HoldReason.TOO_YOUNG, detail="2 s"),
        )
    )
    never = Plan(held=(HeldBack(subject="ml/pod-a", card=HOT_CARD, reason=HoldReason.NEVER),))

    with a_log(tmp_path / "audit") as written:
        counts = [
            len(written.cycle(state, plan, later_s=later_s))
            for later_s, plan in ((0, young), (15, older), (30, never), (45, never), (631, never))
        ]
        assert counts == [2, 1, 2, 1, 2]
        assert len(written.cycle(state, Plan(), later_s=640)) == 1
        assert len(written.cycle(state, never, later_s=650)) == 2  # it had ended meanwhile


def test_a_decision_for_another_target_is_another_decision(tmp_path: Path) -> None:
    state = a_disruption_state()
    plan = plan_moves(state, policy=ACTIVE, now=NOON)
    other = replace(plan, moves=(replace(plan.moves[0], target=HOT_CARD),))

    with a_log(tmp_path / "audit") as written:
        counts = [len(written.cycle(state, each)) for each in (plan, plan, other)]

    assert counts == [2, 1, 2]


def test_equal_inputs_have_equal_hashes_and_others_have_not() -> None:
    state = a_disruption_state()

    assert inputs_hash(state) == inputs_hash(a_disruption_state())
    for other in (
        a_disruption_state(readings={COOL_CARD: a_reading(0.06)}),
        a_disruption_state(pods=[a_placed_pod("pod-a")]),
        replace(state, scheduling=SchedulingCluster([], [])),
    ):
        assert inputs_hash(other) != inputs_hash(state)


def test_a_line_is_bounded_whatever_the_names_and_how_many_there_are(tmp_path: Path) -> None:
    pods = [a_placed_pod(f"{'p' * 240}-{number}") for number in range(300)]
    state = a_disruption_state(pods=pods)
    long = "é" * 5000
    held = tuple(
        HeldBack(
            subject=f"ml/{pod.info.record.name}",
            reason=HoldReason.NO_TARGET,
            detail=long,
            card=HOT_CARD,
        )
        for pod in pods
    )

    with a_log(tmp_path / "audit") as written:
        _, decision = written.cycle(state, Plan(held=held))

    assert len(decision["candidates"]) == 50
    assert decision["more"] == 250
    longest = max(len(line) for line in (tmp_path / "audit").read_text().splitlines())
    assert longest < 64 * 1024
    cards = tuple(HeldBack(subject=f"GPU-{n}", reason=HoldReason.NO_TARGET) for n in range(300))
    with a_log(tmp_path / "cards") as written:
        assert len(written.cycle(state, Plan(held=cards))) == 1 + 100


def test_the_file_is_replaced_when_it_is_full(tmp_path: Path) -> None:
    state = a_disruption_state()
    held = tuple(
        HeldBack(subject=f"GPU-{n}", reason=HoldReason.NO_TARGET, detail="x" * 120)
        for n in range(100)
    )
    with a_log(tmp_path / "audit", limit_mib=1) as written:
        for cycle in range(60):
            now, measured = NOON + timedelta(minutes=11 * cycle), Measured(usage=state.usage)
            written.audit.write(
                state, Plan(held=held), measured, policy=ACTIVE, mode=Mode.ACTIVE, now=now
            )

    sizes = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    assert sizes.keys() == {"audit", "audit.1"}
    assert max(sizes.values()) <= 1024 * 1024


def test_a_file_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    file = tmp_path / "no" / "such" / "folder"
    with structlog.testing.capture_logs() as logs, a_log(file) as written:
        written.cycle(a_disruption_state())

    assert {line["event"] for line in logs} == {"audit_not_written"}
    assert "No such file or directory" in logs[0]["error"]


def test_standard_output_takes_it_too(capsys: pytest.CaptureFixture[str]) -> None:
    state = a_disruption_state()
    AuditLog("-").write(
        state, Plan(), Measured(usage=state.usage), policy=ACTIVE, mode=Mode.ACTIVE, now=NOON
    )

    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["audit"] == "cycle"


def test_without_a_file_nothing_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    state = a_disruption_state()
    AuditLog().write(
        state, Plan(), Measured(usage=state.usage), policy=ACTIVE, mode=Mode.ACTIVE, now=NOON
    )

    assert capsys.readouterr().out == ""


def test_a_blind_cycle_says_why_in_few_words() -> None:
    state = a_disruption_state()
    measured = Measured(usage={}, trouble="unreachable: " + "x" * 1000)

    assert len(cycle_entry(state, Plan(), measured, ACTIVE)["blind"]) == 120
    assert decision_entries(state, Plan()) == []
    assert HOT_CARD in state.heat
