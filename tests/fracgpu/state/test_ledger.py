"""Who holds what, over time."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from fracgpu.cards.card import CardUuid, Cordon, NodeCards
from fracgpu.state.allocation import PodRecord
from fracgpu.state.ledger import Ledger
from tests.fakes.clock import NOON
from tests.support.core import a_card, a_record, on

LATER = NOON + timedelta(minutes=1)


def a_ledger(*, cordons: tuple[Cordon, ...] = ()) -> Ledger:
    ledger = Ledger()
    ledger.set_node(NodeCards(node="n", cards=(a_card("GPU-a"),), cordons=cordons))
    return ledger


def held(ledger: Ledger, *, now: datetime = NOON, card: str = "GPU-a") -> int:
    card_info = ledger.snapshot(now=now).card(CardUuid(card))
    assert card_info is not None
    return card_info.held_mib


def assume(ledger: Ledger, uid: str, mib: int, *, until: datetime = LATER) -> None:
    ledger.assume(a_record(uid), node="n", assignment=on("GPU-a", mib), until=until)


def bound(uid: str, mib: int, *, live: bool = True) -> PodRecord:
    return a_record(uid, node="n", assignment=on("GPU-a", mib), live=live)


def observed(ledger: Ledger) -> None:
    ledger.set_pod(bound("p", 1000))


def leaving(ledger: Ledger) -> None:
    ledger.set_pod(replace(bound("p", 1000), terminating=True))


def ended(ledger: Ledger) -> None:
    ledger.set_pod(bound("p", 1000, live=False))


def gone(ledger: Ledger) -> None:
    ledger.remove_pod("p")


def unassigned(ledger: Ledger) -> None:
    ledger.set_pod(a_record("p", node="n"))


def unbound(ledger: Ledger) -> None:
    ledger.set_pod(a_record("p"))


def assumed(ledger: Ledger) -> None:
    assume(ledger, "p", 1000)


def forgotten(ledger: Ledger) -> None:
    ledger.forget("p")
    ledger.forget("nobody")


@pytest.mark.parametrize(
    ("news", "mib"),
    [
        ([observed], 1000),
        ([observed, observed], 1000),  # the same news twice
        ([leaving], 1000),
        ([leaving, gone], 0),
        ([observed, ended], 0),
        ([unassigned], 0),  # nothing that we know
        ([assumed, unbound], 1000),  # older news
        ([observed, assumed], 1000),
        ([observed, assumed, gone], 0),
        ([assumed, forgotten], 0),
        ([assumed, gone], 0),
    ],
)
def test_what_a_pod_holds_after_news_and_assumptions(
    news: Sequence[Callable[[Ledger], None]], mib: int
) -> None:
    ledger = a_ledger()
    for each in news:
        each(ledger)

    assert held(ledger) == mib
    assert ledger.free_mib(now=NOON) == {"GPU-a": 24_000 - mib}


def test_an_assumption_counts_until_it_lapses() -> None:
    ledger = a_ledger()
    assume(ledger, "p", 1000)

    assert held(ledger) == 1000
    assert held(ledger, now=LATER) == 0
    assert ledger.lapse(now=NOON) == ()
    assert ledger.lapse(now=LATER) == ("p",)
    assert ledger.assumed == {}


def test_of_several_assumptions_each_ends_by_itself() -> None:
    ledger = a_ledger()
    assert held(ledger) == 0
    assume(ledger, "long", 1000)
    assume(ledger, "short", 2000, until=NOON + timedelta(seconds=30))
    assume(ledger, "over", 4000, until=NOON - timedelta(seconds=30))

    assert held(ledger) == 3000
    assert held(ledger, now=NOON + timedelta(seconds=30)) == 1000
    assert held(ledger, now=LATER) == 0


def test_an_observation_takes_the_place_of_the_assumption() -> None:
    ledger = a_ledger()
    assume(ledger, "p", 1000)
    ledger.set_pod(bound("p", 1000))

    assert held(ledger) == 1000
    assert ledger.lapse(now=LATER) == ()
    assert held(ledger, now=LATER) == 1000


def test_the_event_of_our_own_write_changes_nothing_that_decisions_read() -> None:
    end = LATER + timedelta(minutes=1)
    ledger = a_ledger(cordons=(Cordon(card=CardUuid("GPU-a"), until=end, reason="hot"),))
    assume(ledger, "p", 1000)
    before = ledger.node("n", now=NOON)

    ledger.set_pod(bound("p", 1000))

    assert ledger.node("n", now=NOON) == before
    # Nor does the node change when the assumption would have lapsed.
    assert ledger.node("n", now=LATER) == before
    ledger.take_changed(now=LATER)
    assert ledger.take_changed(now=end) == {"n"}
    after = ledger.node("n", now=end)
    assert after is not None
    assert not after.cards[CardUuid("GPU-a")].cordoned
    ledger.remove_pod("p")
    assert held(ledger, now=LATER) == 0


def test_an_observation_after_the_assumption_lapsed_counts_again() -> None:
    ledger = a_ledger()
    assume(ledger, "p", 1000)
    assert held(ledger, now=LATER) == 0  # read after it lapsed, and before anybody dropped it

    ledger.set_pod(bound("p", 1000))

    assert held(ledger, now=LATER) == 1000


def test_a_node_that_comes_back_still_has_its_pods() -> None:
    ledger = a_ledger()
    ledger.set_pod(bound("p", 1000))
    ledger.remove_node("n")
    assert ledger.node("n", now=NOON) is None
    assert ledger.snapshot(now=NOON).nodes == {}

    ledger.set_node(NodeCards(node="n", cards=(a_card("GPU-a"),)))
    assert held(ledger) == 1000


def test_a_node_that_was_read_after_a_lapse_still_counts_as_changed() -> None:
    ledger = a_ledger(cordons=(Cordon(card=CardUuid("GPU-a"), until=LATER, reason="hot"),))
    ledger.node("n", now=NOON)
    assume(ledger, "p", 1000, until=LATER + timedelta(minutes=1))
    ledger.node("n", now=NOON)
    ledger.take_changed(now=NOON)

    ledger.node("n", now=LATER)

    assert ledger.take_changed(now=LATER) == {"n"}


def test_a_node_counts_as_changed_once_a_pod_is_observed_on_it() -> None:
    ledger = a_ledger()
    ledger.take_changed(now=NOON)
    before = held(ledger)

    ledger.set_pod(bound("p", 1000))

    assert (before, held(ledger)) == (0, 1000)
    assert ledger.take_changed(now=NOON) == {"n"}
