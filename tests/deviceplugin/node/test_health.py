"""A health reason lasts as long as its cause, and no longer."""

import pytest

from deviceplugin.cards.interface import CardMetrics, CardSample, CardSamples, SkippedCard
from deviceplugin.cards.xid import xid_text
from deviceplugin.node.health import HealthWatch
from deviceplugin.node.health_events import HealthEvents
from deviceplugin.node.inventory import Inventory, Judgement, judged
from fracgpu.cards.annotations import read_cards, read_uuids, write_cards
from fracgpu.cards.card import CardUuid
from simulator.background import background
from tests.deviceplugin.builders import NODE, FakeCards, a_card, a_card_list, a_pod, a_tracker
from tests.fakes.clock import VirtualClock
from tests.fakes.events import RecordedEvents

A, B = CardUuid("GPU-a"), CardUuid("GPU-b")


def readings(**by_card: CardSample) -> CardSamples:
    return CardSamples(samples={CardUuid(f"GPU-{key}"): value for key, value in by_card.items()})


def with_xid(**counts: int) -> CardSample:
    return CardSample(xids={int(key.removeprefix("xid")): count for key, count in counts.items()})


@pytest.mark.parametrize("xid", [13, 31, 32, 43, 45, 63, 68, 69, 94, 109])
def test_an_error_that_a_tenant_can_cause_closes_no_card(xid: int) -> None:
    watch = HealthWatch(hold_s=600)
    watch.observe(readings(a=CardSample(xids={xid: 3})), now_s=0)

    assert watch.health_reasons(now_s=1) == {}


@pytest.mark.parametrize("xid", [46, 48, 62, 64, 74, 79, 95, 119, 140, 999])
def test_every_other_error_speaks_against_the_card_known_or_not(xid: int) -> None:
    watch = HealthWatch(hold_s=600)
    watch.observe(readings(a=CardSample(xids={xid: 1}), b=CardSample()), now_s=0)

    assert watch.health_reasons(now_s=1) == {A: xid_text(xid)}


def test_an_error_is_forgiven_after_a_while_and_a_new_one_begins_it_anew() -> None:
    watch = HealthWatch(hold_s=600)
    watch.observe(readings(a=with_xid(xid48=1)), now_s=0)
    watch.observe(readings(a=with_xid(xid48=1)), now_s=300)
    assert watch.health_reasons(now_s=599)
    assert watch.health_reasons(now_s=601) == {}

    watch.observe(readings(a=with_xid(xid48=2)), now_s=700)
    assert watch.health_reasons(now_s=1299)
    assert watch.health_reasons(now_s=1301) == {}


def test_a_card_that_does_not_answer_three_times_is_ill_until_it_answers() -> None:
    watch = HealthWatch(hold_s=600)
    for moment in range(3):
        assert watch.health_reasons(now_s=moment) == {}
        watch.observe(CardSamples(errors={A: "GPU is lost"}), now_s=moment)

    assert "GPU is lost" in watch.health_reasons(now_s=3)[A]
    watch.observe(readings(a=CardSample()), now_s=4)
    assert watch.health_reasons(now_s=4) == {}


def test_a_failed_row_remapping_lasts_until_a_reading_is_without_it() -> None:
    watch = HealthWatch(hold_s=600)
    watch.observe(readings(a=CardSample(figures=CardMetrics(row_remap_failed=1))), now_s=0)
    assert "remapping" in watch.health_reasons(now_s=10_000)[A]

    watch.observe(
        readings(a=CardSample(figures=CardMetrics())), now_s=10_000
    )  # it could not be asked
    assert "remapping" in watch.health_reasons(now_s=10_000)[A]

    watch.observe(readings(a=CardSample(figures=CardMetrics(row_remap_failed=0))), now_s=10_001)
    assert watch.health_reasons(now_s=10_001) == {}


def test_old_memory_errors_are_history_and_new_ones_are_not() -> None:
    watch = HealthWatch(hold_s=600)
    watch.observe(readings(a=CardSample(figures=CardMetrics(ecc_uncorrected=5))), now_s=0)
    assert watch.health_reasons(now_s=1) == {}

    watch.observe(readings(a=CardSample(figures=CardMetrics(ecc_uncorrected=6))), now_s=10)
    assert "uncorrectable" in watch.health_reasons(now_s=11)[A]
    watch.observe(
        readings(a=CardSample(figures=CardMetrics())), now_s=20
    )  # the figure went missing
    watch.observe(readings(a=CardSample(figures=CardMetrics(ecc_uncorrected=6))), now_s=30)
    assert watch.health_reasons(now_s=611) == {}


def test_the_next_agent_holds_the_errors_that_the_node_says_and_no_other_reason() -> None:
    first, following = HealthWatch(hold_s=600), HealthWatch(hold_s=600)
    first.observe(readings(a=with_xid(xid79=1)), now_s=0)
    for _ in range(3):
        first.observe(CardSamples(errors={B: "GPU is lost"}), now_s=1)
    assert set(first.health_reasons(now_s=2)) == {A, B}
    listed = a_card_list(a_card("GPU-a"), a_card("GPU-b", index=1))
    judgement = Judgement(reasons=first.health_reasons(now_s=2), errors=first.errors(now_s=2))
    said = write_cards(Inventory(card_list=judged(listed, judgement)).cards)

    following.restore(read_cards(said), now_s=5000)
    following.observe(readings(a=CardSample(), b=CardSample()), now_s=5001)

    assert following.health_reasons(now_s=5599) == {A: xid_text(79)}
    assert following.health_reasons(now_s=5601) == {}
    assert following.errors(now_s=5601) == {A: (), B: ()}


def test_an_operator_takes_a_card_out_and_puts_it_back() -> None:
    watch = HealthWatch(hold_s=600)
    watch.observe(readings(b=with_xid(xid79=1)), now_s=0)

    watch.take_out(read_uuids("GPU-a, GPU-b ,"))
    both = watch.health_reasons(now_s=1)
    watch.take_out(read_uuids(""))

    assert set(both) == {A, B}
    assert "operator" in both[A]
    assert "XID 79" in both[B]
    assert set(watch.health_reasons(now_s=1)) == {B}


async def test_an_unhealthy_card_names_its_pods_once_and_its_recovery_is_reported() -> None:
    cards, clock, recorder = FakeCards(a_card("GPU-a")), VirtualClock(), RecordedEvents()
    tracker = a_tracker(cards, clock)
    pods = [
        a_pod("here"),
        a_pod("elsewhere", assigned={"train": [("GPU-b", 1000)]}),
        a_pod("ended", phase="Succeeded"),
    ]
    events = HealthEvents(node=NODE, tracker=tracker, pods=lambda: pods, recorder=recorder)
    async with background(tracker.run(), events.run()):
        await clock.advance(1)
        assert recorder.events == []
        cards.answer = a_card_list(a_card("GPU-a", unhealthy="XID 79"))
        await clock.advance(30)
        ill = list(recorder.events)
        cards.answer = a_card_list(a_card("GPU-a"))
        await clock.advance(30)
        well = recorder.events[len(ill) :]
        cards.answer = a_card_list()
        await clock.advance(30)
        gone = recorder.events[len(ill) + len(well) :]
        cards.answer = a_card_list(a_card("GPU-a"))
        await clock.advance(30)
        mig = SkippedCard(uuid="GPU-a", reason="MIG is on")
        cards.answer = a_card_list(left_out=[mig])
        await clock.advance(30)

    assert [event[:2] for event in ill] == [
        (f"Node/{NODE}", "CardUnhealthy"),
        ("Pod/here", "CardUnhealthy"),
    ]
    assert "XID 79; pods on it: ml/here" in ill[0][2]
    assert "elsewhere" not in ill[0][2]
    assert [event[:2] for event in well] == [(f"Node/{NODE}", "CardRecovered")]
    assert "vanished" in gone[0][2]
    whose, _, text = recorder.events[-1]
    assert (whose, text) == ("Pod/here", f"its card GPU-a on {NODE} is unhealthy: MIG is on")


async def test_more_pods_than_a_text_can_name_are_counted() -> None:
    cards, clock, recorder = (
        FakeCards(a_card("GPU-a", unhealthy="hot")),
        VirtualClock(),
        RecordedEvents(),
    )
    tracker = a_tracker(cards, clock)
    pods = [a_pod(f"pod-{number:02}") for number in range(13)]
    events = HealthEvents(node=NODE, tracker=tracker, pods=lambda: pods, recorder=recorder)
    async with background(tracker.run(), events.run()):
        await clock.advance(1)

    assert recorder.events[0][2].endswith("ml/pod-09 and 3 more")
