"""The report on a plan: what blocks everything, and every hot card as if nothing did."""

from dataclasses import replace

from cli.plan_report import report_json, report_on
from cli.printers.plan_lines import plan_lines
from fracgpu.disruption.brakes import OpenBreaker, open_breakers
from fracgpu.disruption.disruption_state import DisruptionState
from fracgpu.disruption.heat import CardReading, Heat
from fracgpu.disruption.move import HoldReason
from fracgpu.disruption.policy import Mode, RebalancerPolicy
from fracgpu.state.move_object import Ending
from tests.fakes.clock import NOON
from tests.support.rebalancing import (
    ACTIVE,
    COOL_CARD,
    HOT_CARD,
    a_disruption_state,
    a_past_move,
    a_reading,
)


def text_of(
    state: DisruptionState, policy: RebalancerPolicy = ACTIVE, *breakers: OpenBreaker
) -> list[str]:
    report = report_on(state, policy=policy, breakers=breakers, now=NOON)
    return [line.text for line in plan_lines(report)]


def test_a_card_has_its_move_and_every_other_pod_its_reason() -> None:
    report = report_on(a_disruption_state(), policy=ACTIVE, breakers=(), now=NOON)

    (card,) = report.cards
    assert (card.card, card.name, card.blocked) == (HOT_CARD, "n1/0", None)
    assert [move.pod.key for move in card.moves] == ["ml/pod-a"]
    assert [(held.subject, held.reason) for held in card.held] == [
        ("ml/pod-b", HoldReason.OUTSCORED)
    ]
    assert report.would_move == card.moves
    answer = report_json(report)
    assert answer["moves"][0]["to"] == "n2/0"
    assert answer["hotCards"][0]["held"][0]["gainPoints"] > 0


def test_a_report_may_be_restricted_to_the_pods_of_one_namespace() -> None:
    report = report_on(a_disruption_state(), policy=ACTIVE, breakers=(), now=NOON)

    assert report.of_namespace("ml") == report
    (card,) = report.of_namespace("elsewhere").cards
    assert (card.card, card.moves, card.held) == (HOT_CARD, (), ())


def test_switched_off_it_still_shows_what_there_would_be_to_do() -> None:
    report = report_on(
        a_disruption_state(), policy=replace(ACTIVE, mode=Mode.OFF), breakers=(), now=NOON
    )

    (card,) = report.cards
    assert card.blocked is not None
    assert card.blocked.reason is HoldReason.OFF
    assert len(card.moves) == 1
    assert report.would_move == ()


def test_an_open_breaker_is_shown_with_the_mode_that_it_leaves() -> None:
    lost = a_past_move(
        minutes_ago=100, owner_uid="other", namespace="other", ended_at=NOON, ending=Ending.LOST
    )
    breakers = open_breakers([lost], policy=ACTIVE, now=NOON)

    lines = text_of(a_disruption_state(past=[lost]), ACTIVE, *breakers)

    assert lines[0].startswith("mode dryRun (moves are only reported), aggressiveness 3")
    assert lines[1].startswith("circuit breaker open: lost_pod: a pod was lost; until ")


def test_a_card_that_no_pod_can_leave_says_so_itself() -> None:
    readings: dict[str, CardReading | None] = {
        HOT_CARD: a_reading(0.95, pods={"pod-a": 0.95}),
        COOL_CARD: a_reading(0.05),
    }

    lines = text_of(a_disruption_state(readings=readings))

    assert f"  stay no pod: {HoldReason.ONE_POD_ALONE.value}" in lines
    assert lines[-2:] == ["held back:", f"  1 x {HoldReason.ONE_POD_ALONE.value}"]


def test_without_hot_cards_it_says_so_and_names_those_that_warm_up() -> None:
    state = a_disruption_state(heat={HOT_CARD: Heat.COOL, COOL_CARD: Heat.WARMING})

    assert text_of(state)[1:] == ["no card is hot", "", "warming up: n2/0"]
