"""Who holds what, over time."""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    consumes,
    invariant,
    multiple,
    rule,
)

from fracgpu.cards.card import FULL_CORES, CardUuid, Cordon, NodeCards
from fracgpu.placement.node_matrix import NodeMatrix
from fracgpu.placement.outcome import Placement
from fracgpu.placement.placement import place
from fracgpu.request.need import PodNeed, Strategy
from fracgpu.state.allocation import Assignment, PodRecord
from fracgpu.state.ledger import Ledger
from tests.fakes.clock import NOON
from tests.support.core import a_card, a_need, a_pod_need, a_record, on
from tests.support.examples import at_least

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

NODES = tuple(
    NodeCards(
        node=node,
        cards=tuple(a_card(f"GPU-{node}-{n}", mib=80 * (n + 2), index=n) for n in range(2)),
    )
    for node in ("n1", "n2")
)


def test_a_node_that_was_read_after_a_lapse_still_counts_as_changed() -> None:
    ledger = a_ledger(cordons=(Cordon(card=CardUuid("GPU-a"), until=LATER, reason="hot"),))
    ledger.node("n", now=NOON)
    assume(ledger, "p", 1000, until=LATER + timedelta(minutes=1))
    ledger.node("n", now=NOON)
    ledger.take_changed(now=NOON)

    ledger.node("n", now=LATER)

    assert ledger.take_changed(now=LATER) == {"n"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """A Binding the API server has taken."""

    record: PodRecord
    assignment: Assignment
    node: str

    @property
    def observed(self) -> PodRecord:
        return replace(self.record, node=self.node, assignment=self.assignment)


class AnyOrder(RuleBasedStateMachine):
    """Pods are created, placed, bound, observed (repeatedly), end and go, in any order of events.

    The model keeps what the API server truly has and what we were last told of each pod.
    """

    under_way: Bundle[Bound] = Bundle("under_way")
    taken: Bundle[Bound] = Bundle("taken")

    def __init__(self) -> None:
        super().__init__()
        self.now = NOON
        self.count = 0
        self.ledger = Ledger()
        self.matrix = NodeMatrix(self.ledger)
        self.known: dict[str, PodRecord] = {}
        self.truth: dict[str, Bound] = {}
        self.bound_as: dict[str, tuple[PodRecord, str, Assignment, datetime]] = {}
        for node in NODES:
            self.ledger.set_node(node)

    @rule(
        target=under_way,
        node=st.sampled_from([node.node for node in NODES]),
        mib=st.integers(1, 240),
        cores=st.sampled_from([0, 0, 40, 100]),
        cards=st.integers(1, 2),
        strategy=st.sampled_from(Strategy),
    )
    def decide(
        self, node: str, mib: int, cores: int, cards: int, strategy: Strategy
    ) -> Bound | MultipleResults[Bound]:
        need: PodNeed = a_pod_need(a_need(mib, cores=cores, cards=cards))
        node_info = self.ledger.node(node, now=self.now)
        if node_info is None:
            return multiple()
        answer = place(node_info, need, strategy=strategy)
        if not isinstance(answer, Placement):
            return multiple()
        self.count += 1
        bound = Bound(record=a_record(f"u{self.count}"), assignment=answer.assignment, node=node)
        until = self.now + timedelta(seconds=60)
        self.ledger.assume(bound.record, node=node, assignment=answer.assignment, until=until)
        self.bound_as[bound.record.uid] = (bound.record, node, answer.assignment, until)
        return bound

    @rule(target=taken, bound=consumes(under_way))
    def the_api_server_takes_it(self, bound: Bound) -> Bound | MultipleResults[Bound]:
        # Past its time an assumption no longer counts, so by then the write must be known dead.
        if bound.record.uid not in self.ledger.assumed:
            return multiple()
        self.truth[bound.record.uid] = bound
        return bound

    @rule(bound=consumes(under_way))
    def the_api_server_refuses_it(self, bound: Bound) -> None:
        self.ledger.forget(bound.record.uid)

    @rule(bound=taken)
    def we_see_it_bound(self, bound: Bound) -> None:
        if bound.record.uid in self.truth:
            self.known[bound.record.uid] = bound.observed
            self.ledger.set_pod(bound.observed)

    @rule(bound=taken)
    def we_hear_older_news_of_it(self, bound: Bound) -> None:
        if bound.record.uid not in self.known:
            self.ledger.set_pod(bound.record)

    @rule(bound=taken, gone=st.booleans())
    def it_ends(self, bound: Bound, gone: bool) -> None:
        if bound.record.uid not in self.truth:
            return
        uid = bound.record.uid
        del self.truth[uid]
        self.known.pop(uid, None)
        if gone:
            self.ledger.remove_pod(uid)
        else:
            self.ledger.set_pod(replace(bound.observed, live=False))

    @rule()
    def the_process_starts_again(self) -> None:
        """Everything in memory is lost; the lists of a new leader hold all that was ever bound."""
        self.ledger = Ledger()
        self.matrix = NodeMatrix(self.ledger)
        for node in NODES:
            self.ledger.set_node(node)
        for uid, bound in self.truth.items():
            self.known[uid] = bound.observed
            self.ledger.set_pod(bound.observed)

    @rule(node=st.sampled_from(NODES), cordoned=st.booleans())
    def a_node_changes(self, node: NodeCards, cordoned: bool) -> None:
        cordon = Cordon(
            card=node.cards[0].uuid, until=self.now + timedelta(seconds=30), reason="hot"
        )
        self.ledger.set_node(replace(node, cordons=(cordon,) if cordoned else ()))
        self.ledger.set_node(node)

    @rule(node=st.sampled_from(NODES))
    def a_node_goes_and_comes(self, node: NodeCards) -> None:
        self.ledger.remove_node(node.node)
        self.ledger.set_node(node)

    @rule(seconds=st.integers(1, 90))
    def time_passes(self, seconds: int) -> None:
        # What the API server has taken is looked up before it lapses, so it is seen by then.
        for uid, bound in self.truth.items():
            if uid not in self.known:
                self.known[uid] = bound.observed
                self.ledger.set_pod(bound.observed)
        self.now += timedelta(seconds=seconds)
        self.ledger.lapse(now=self.now)

    @invariant()
    def no_card_is_over_committed(self) -> None:
        for node_info in self.ledger.snapshot(now=self.now).nodes.values():
            for card_info in node_info.cards.values():
                assert card_info.held_mib <= card_info.card.capacity_mib
                assert card_info.held_cores <= FULL_CORES
                assert card_info.held_slots <= card_info.card.slots

    @invariant()
    def nothing_true_is_missing(self) -> None:
        pods = self.ledger.snapshot(now=self.now).pods
        assert set(self.truth) <= set(pods)

    @invariant()
    def it_equals_the_fold_from_scratch(self) -> None:
        fresh = Ledger()
        for record in reversed(self.known.values()):
            fresh.set_pod(record)
        for node in reversed(NODES):
            fresh.set_node(node)
        snapshot = self.ledger.snapshot(now=self.now)
        assumed = self.ledger.assumed
        observed = {uid: holds for uid, holds in snapshot.pods.items() if uid not in assumed}
        expected = fresh.snapshot(now=self.now)
        assert observed == dict(expected.pods)
        for uid in assumed:
            snapshot = snapshot.without(uid)
        assert snapshot == expected

    @invariant()
    def one_node_looks_the_same_in_the_whole_picture(self) -> None:
        snapshot = self.ledger.snapshot(now=self.now)
        for node in NODES:
            assert self.ledger.node(node.node, now=self.now) == snapshot.nodes[node.node]

    @invariant()
    def what_is_kept_of_a_node_is_what_a_new_fold_would_be(self) -> None:
        fresh = Ledger()
        for record in self.known.values():
            fresh.set_pod(record)
        for known in self.ledger.nodes.values():
            fresh.set_node(known)
        for uid in self.ledger.assumed:
            record, node, assignment, until = self.bound_as[uid]
            fresh.assume(record, node=node, assignment=assignment, until=until)
        for name in self.ledger.nodes:
            assert self.ledger.node(name, now=self.now) == fresh.node(name, now=self.now)

    @invariant()
    def what_requests_are_answered_from_is_the_ledger(self) -> None:
        self.matrix.refresh(now=self.now)
        for node in NODES:
            node_info = self.ledger.node(node.node, now=self.now)
            row = self.matrix.rows[node.node]
            assert node_info is not None
            assert self.matrix.infos[row] == node_info
            assert self.matrix.free_mib[row].tolist() == [
                card.free_mib for card in node_info.cards.values()
            ]


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=at_least(60), stateful_step_count=40)
