"""Suggestions that leave the pod as it is: other pods end, cordons expire, nodes open."""

from dataclasses import replace
from datetime import timedelta

from msgspec import structs

from fracgpu.explain.answers import SuggestionKind
from fracgpu.explain.explanation import explain
from fracgpu.explain.suggestions import lapsing_cordons, leaving_pods, opened_nodes
from fracgpu.request.need import PodNeed
from fracgpu.state.cluster_state import ClusterState, ExplainedPod, NodeConstraints
from fracgpu.units import Mib
from tests.support.core import a_card, a_need, a_pod_need
from tests.support.explaining import NOON, Cluster, a_waiting_pod

LARGE = a_pod_need(a_need(20_000))


def nodes_of(state: ClusterState) -> tuple:  # type: ignore[type-arg]
    return tuple(state.snapshot.nodes.values())


def test_the_first_cordon_that_is_enough_is_told_with_its_time() -> None:
    state = (
        Cluster()
        .node("n", a_card("GPU-a"), a_card("GPU-b", index=1), cordons={"GPU-a": 60, "GPU-b": 90})
        .state()
    )

    (suggestion,) = lapsing_cordons(LARGE, nodes_of(state))

    assert (suggestion.kind, suggestion.home.node) == (SuggestionKind.CORDON_ENDS, "n")
    assert suggestion.at == NOON + timedelta(seconds=60)
    assert "when the cordon lapses at 12:01:00 UTC" in suggestion.text


def test_a_cordon_is_no_suggestion_where_the_card_is_full_as_well() -> None:
    cluster = Cluster().node("n", a_card("GPU-a"), cordons={"GPU-a": 60})
    state = cluster.holder("p", "n", "GPU-a", 20_000).state()

    assert list(lapsing_cordons(LARGE, nodes_of(state))) == []


def test_the_fewest_pods_that_make_room_are_named() -> None:
    cluster = Cluster().node("n", a_card("GPU-a"), a_card("GPU-b", index=1))
    for number in range(4):
        cluster.holder(f"small-{number}", "n", "GPU-a", 5_000)
    state = cluster.holder("large", "n", "GPU-b", 21_000).state()

    (suggestion,) = leaving_pods(LARGE, nodes_of(state), state)

    assert suggestion.pods == ("default/large",)
    assert suggestion.home.cards == (1,)
    assert suggestion.text == "it fits on n, card 1 once default/large (20.5 GiB) is gone"


def test_a_pod_no_larger_than_needed_is_chosen() -> None:
    cluster = Cluster().node("n", a_card("GPU-a"))
    cluster.holder("huge", "n", "GPU-a", 17_000).holder("enough", "n", "GPU-a", 6_000)
    state = cluster.state()

    (suggestion,) = leaving_pods(a_pod_need(a_need(6_500)), nodes_of(state), state)

    assert suggestion.pods == ("default/enough",)


def test_a_borrower_whose_limit_is_in_the_way_ends_rather_than_many_plain_pods() -> None:
    cluster = Cluster().node("n", replace(a_card("GPU-a", mib=24_000), limits_mib=Mib(24_000)))
    for number in range(4):
        cluster.holder(f"plain{number}", "n", "GPU-a", 1_000)
    state = cluster.holder("borrower", "n", "GPU-a", 4_000, borrow_mib=16_000).state()

    plain = a_pod_need(a_need(4_000))
    limited = a_pod_need(
        a_need(2_000), structs.replace(a_need(500, name="b"), limit_mib=Mib(2_000))
    )
    for need in (plain, limited):
        (suggestion,) = leaving_pods(need, nodes_of(state), state)
        assert suggestion.pods == ("default/borrower",)


def test_pods_that_are_going_already_are_said_to() -> None:
    cluster = Cluster().node("n", a_card("GPU-a"))
    state = cluster.holder("old", "n", "GPU-a", 20_000, leaving=True).state()

    (suggestion,) = leaving_pods(LARGE, nodes_of(state), state)

    assert suggestion.text.endswith("is gone, which is under way")


def test_compute_is_freed_by_those_who_reserve_it() -> None:
    cluster = Cluster().node("n", a_card("GPU-a"))
    cluster.holder("memory", "n", "GPU-a", 9_000).holder("compute", "n", "GPU-a", 100, cores=90)
    state = cluster.state()

    (suggestion,) = leaving_pods(a_pod_need(a_need(100, cores=50)), nodes_of(state), state)

    assert suggestion.pods == ("default/compute",)


def test_pods_on_several_cards_go_together() -> None:
    cluster = Cluster().node("n", *(a_card(f"GPU-{n}", index=n) for n in range(3)))
    for number in range(3):
        cluster.holder(f"p{number}", "n", f"GPU-{number}", 23_000)
    state = cluster.state()

    (suggestion,) = leaving_pods(a_pod_need(a_need(20_000, cards=2)), nodes_of(state), state)

    assert len(suggestion.pods) == 2


def test_nobody_is_asked_to_go_from_a_card_that_would_not_do_anyway() -> None:
    cluster = Cluster().node("n", a_card("GPU-a", model="NVIDIA T4"))
    state = cluster.holder("p", "n", "GPU-a", 20_000).state()
    need: PodNeed = a_pod_need(a_need(20_000), models=("*H100*",))

    assert list(leaving_pods(need, nodes_of(state), state)) == []


def test_a_closed_node_with_the_cards_is_named_with_the_command() -> None:
    state = Cluster().node("n", a_card("GPU-a"), site=NodeConstraints(cordoned=True)).state()
    pod: ExplainedPod = a_waiting_pod(LARGE)

    (suggestion,) = opened_nodes(explain(pod, state))

    assert (
        suggestion.text
        == "n has the cards, but the node is cordoned; to open it: kubectl uncordon n"
    )
    assert suggestion.home.cards == (0,)
