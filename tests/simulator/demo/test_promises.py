"""Each promise of the demo can be broken, and then the judgement says so."""

from dataclasses import replace
from typing import Any

import pytest

from fracgpu.cards.card import CardUuid
from fracgpu.state.allocation import Slice
from fracgpu.units import Mib
from simulator.demo.promises import (
    CardPeak,
    DemoFacts,
    HeatFact,
    LimitFact,
    PodFact,
    Promise,
    RefusalFact,
    judge,
)

A, B = CardUuid("GPU-a"), CardUuid("GPU-b")

GOOD_POD = PodFact(
    key="demo/chat-1",
    owner="chat",
    running=True,
    assignment={"main": (Slice(card=A, mib=Mib(10)), Slice(card=B, mib=Mib(10)))},
    wired={"main": (B, A)},
)
LIMIT = LimitFact(wanted_mib=90, mib=40, used_mib=40, resized_mib=60, resized_used_mib=60)
GOOD = DemoFacts(
    expected_pods={"chat": 1},
    pods=(GOOD_POD,),
    refusals=(RefusalFact(name="bad", mentions=("fraction",), message="fraction is wrong"),),
    peaks=(CardPeak(card=A, capacity_mib=100, peak_mib=100),),
    heat=HeatFact(
        card=A,
        peak_busy=0.95,
        last_busy=0.5,
        hot_line=0.8,
        moved_pods=("burner-1",),
        hot_after_s=10.0,
        relieved_after_s=20.0,
    ),
    scrape_targets={"webhook": True},
    limit=LIMIT,
)


def broken(facts: DemoFacts) -> list[str]:
    return [promise.name for promise in judge(facts) if not promise.held]


def test_everything_as_promised_is_kept() -> None:
    assert broken(GOOD) == []


def test_the_relief_is_told_with_the_pod_and_both_cards_by_name() -> None:
    heat = replace(
        GOOD.heat, card_name="n1/0", replacement="burner-2", new_card_name="n2/1", last_busy=0.47
    )

    (relieved,) = [one for one in judge(replace(GOOD, heat=heat)) if "relieved" in one.name]

    assert relieved.detail == (
        "card n1/0 peaked at 95%, now 47% after 20 s of heat; "
        "burner-1 left card n1/0; burner-2 runs in its place on card n2/1"
    )


EXACT = "every admitted pod runs on exactly the cards its assignment names"
REFUSED = "bad requests are refused with a reason"
HELD = "a pod is held to its share, and to the one to which it is resized"
RELIEVED = "the hot card was relieved"


@pytest.mark.parametrize(
    ("what", "seen"),
    [
        (EXACT, {"pods": (replace(GOOD_POD, wired={"main": (A,)}),)}),
        (EXACT, {"pods": (replace(GOOD_POD, assignment=None),)}),
        *((REFUSED, {"refusals": (replace(GOOD.refusals[0], message=m),)}) for m in (None, "no")),
        ("no card was ever above its MiB", {"peaks": (replace(GOOD.peaks[0], peak_mib=101),)}),
        *((HELD, {"limit": replace(LIMIT, used_mib=mib)}) for mib in (90, 0)),
        *((HELD, {"limit": replace(LIMIT, resized_used_mib=mib)}) for mib in (90, 40)),
        (RELIEVED, {"heat": replace(GOOD.heat, peak_busy=0.7)}),
        (RELIEVED, {"heat": replace(GOOD.heat, last_busy=0.9)}),
        (RELIEVED, {"heat": replace(GOOD.heat, moved_pods=())}),
        *(("no pod was lost", {"expected_pods": {"chat": count}}) for count in (2, 0)),
        ("Prometheus scrapes every role", {"scrape_targets": {"webhook": False}}),
    ],
)
def test_a_broken_promise_is_named(what: str, seen: dict[str, Any]) -> None:
    assert broken(replace(GOOD, **seen)) == [what]


def test_with_the_wiring_by_claims_it_is_not_judged_what_is_left_out() -> None:
    limit = replace(LIMIT, resized_mib=0, resized_used_mib=0)
    facts = replace(GOOD, by_claims=True, limit=limit)

    names = [promise.name for promise in judge(facts)]

    assert broken(facts) == []
    assert "a pod is held to its share" in names
    assert "the hot card was relieved" in names
    assert broken(replace(facts, limit=replace(limit, used_mib=80))) == [
        "a pod is held to its share"
    ]


def test_having_seen_nothing_keeps_no_promise() -> None:
    nothing = DemoFacts(expected_pods={}, pods=(), refusals=(), peaks=(), heat=HeatFact())

    assert broken(nothing) == [promise.name for promise in judge(nothing)]


def test_a_pod_that_does_not_run_counts_as_lost_and_as_wrong() -> None:
    facts = replace(GOOD, pods=(replace(GOOD_POD, running=False),))

    assert broken(facts) == [EXACT, "no pod was lost"]


def test_the_figures_stand_beside_the_promise() -> None:
    lost = next(promise for promise in judge(GOOD) if promise.name == "no pod was lost")

    assert lost == Promise(name="no pod was lost", held=True, detail="1 of 1 running; short: none")
