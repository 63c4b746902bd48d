"""Who holds what, over time."""

from dataclasses import replace
from datetime import datetime, timedelta

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


def test_an_observed_pod_holds_what_its_assignment_says() -> None:
    ledger = a_ledger()
    ledger.set_pod(bound("p", 1000))

    assert held(ledger) == 1000
    assert ledger.free_mib(now=NOON) == {"GPU-a": 23_000}


def test_the_same_news_twice_counts_once() -> None:
    ledger = a_ledger()
    ledger.set_pod(bound("p", 1000))
    ledger.set_pod(bound("p", 1000))

    assert held(ledger) == 1000


def test_a_terminating_pod_holds_until_it_is_gone() -> None:
    ledger = a_ledger()
    ledger.set_pod(replace(bound("p", 1000), terminating=True))
    assert held(ledger) == 1000

    ledger.remove_pod("p")
    assert held(ledger) == 0


def test_an_ended_pod_holds_nothing() -> None:
    ledger = a_ledger()
    ledger.set_pod(bound("p", 1000))
    ledger.set_pod(bound("p", 1000, live=False))

    assert held(ledger) == 0


def test_a_pod_without_an_assignment_holds_nothing_that_we_know() -> None:
    ledger = a_ledger()
    ledger.set_pod(a_record("p", node="n"))

    assert held(ledger) == 0


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


def test_older_news_of_the_unbound_pod_leaves_the_assumption() -> None:
    ledger = a_ledger()
    assume(ledger, "p", 1000)
    ledger.set_pod(a_record("p"))

    assert held(ledger) == 1000


def test_an_assumption_about_a_pod_seen_bound_counts_once() -> None:
    ledger = a_ledger()
    ledger.set_pod(bound("p", 1000))
    assume(ledger, "p", 1000)

    assert held(ledger) == 1000
    ledger.remove_pod("p")
    assert held(ledger) == 0


def test_a_forgotten_assumption_is_free_again() -> None:
    ledger = a_ledger()
    assume(ledger, "p", 1000)
    ledger.forget("p")
    ledger.forget("nobody")

    assert held(ledger) == 0


def test_a_deleted_pod_leaves_no_assumption() -> None:
    ledger = a_ledger()
    assume(ledger, "p", 1000)
    ledger.remove_pod("p")

    assert held(ledger) == 0


def test_a_node_that_comes_back_still_has_its_pods() -> None:
    ledger = a_ledger()
    ledger.set_pod(bound("p", 1000))
    ledger.remove_node("n")
    assert ledger.node("n", now=NOON) is None
    assert ledger.snapshot(now=NOON).nodes == {}

    ledger.set_node(NodeCards(node="n", cards=(a_card("GPU-a"),)))
    assert held(ledger) == 1000


def test_a_cordon_lapses_by_its_own_time() -> None:
    ledger = a_ledger(cordons=(Cordon(card=CardUuid("GPU-a"), until=LATER, reason="hot"),))

    before, after = ledger.node("n", now=NOON), ledger.node("n", now=LATER)

    assert before is not None
    assert after is not None
    assert before.cards[CardUuid("GPU-a")].cordoned
    assert not after.cards[CardUuid("GPU-a")].cordoned


# -- any sequence of events ------------------------------------------------------------------------


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
