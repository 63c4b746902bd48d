"""What would free cards for a pod as it stands: every remedy told has been tried."""

from datetime import timedelta

from fracgpu.explain.answers import SuggestionKind
from fracgpu.explain.explanation import explain
from fracgpu.explain.suggestions import lapsing_cordons, leaving_pods, opened_nodes
from fracgpu.request.need import PodNeed
from fracgpu.state.cluster_state import ClusterState, ExplainedPod, NodeConstraints
from tests.support.core import a_card, a_need, a_pod_need
from tests.support.explaining import NOON, Cluster, a_waiting_pod

LARGE = a_pod_need(a_need(20_000))


def sites(world: ClusterState) -> tuple:  # type: ignore[type-arg]
    return tuple(world.snapshot.nodes.values())


def test_the_first_cordon_that_is_enough_is_told_with_its_time() -> None:
    world = (
        Cluster()
        .node("n", a_card("GPU-a"), a_card("GPU-b", index=1), cordons={"GPU-a": 60, "GPU-b": 90})
        .world()
    )

    (remedy,) = lapsing_cordons(LARGE, sites(world))

    assert (remedy.kind, remedy.home.node) == (SuggestionKind.CORDON_ENDS, "n")
    assert remedy.at == NOON + timedelta(seconds=60)
    assert "when the cordon lapses at 12:01:00 UTC" in remedy.text


def test_a_cordon_is_no_remedy_where_the_card_is_full_as_well() -> None:
    cluster = Cluster().node("n", a_card("GPU-a"), cordons={"GPU-a": 60})
    world = cluster.holder("p", "n", "GPU-a", 20_000).world()

    assert list(lapsing_cordons(LARGE, sites(world))) == []


def test_the_fewest_pods_that_make_room_are_named() -> None:
    cluster = Cluster().node("n", a_card("GPU-a"), a_card("GPU-b", index=1))
    for number in range(4):
        cluster.holder(f"small-{number}", "n", "GPU-a", 5_000)
    world = cluster.holder("large", "n", "GPU-b", 21_000).world()

    (remedy,) = leaving_pods(LARGE, sites(world), world)

    assert remedy.pods == ("default/large",)
    assert remedy.home.cards == (1,)
    assert remedy.text == "it fits on n, card 1 once default/large (20.5 GiB) is gone"


def test_a_pod_no_larger_than_needed_is_chosen() -> None:
    cluster = Cluster().node("n", a_card("GPU-a"))
    cluster.holder("huge", "n", "GPU-a", 17_000).holder("enough", "n", "GPU-a", 6_000)
    world = cluster.world()

    (remedy,) = leaving_pods(a_pod_need(a_need(6_500)), sites(world), world)

    assert remedy.pods == ("default/enough",)


def test_pods_that_are_going_already_are_said_to() -> None:
    cluster = Cluster().node("n", a_card("GPU-a"))
    world = cluster.holder("old", "n", "GPU-a", 20_000, leaving=True).world()

    (remedy,) = leaving_pods(LARGE, sites(world), world)

    assert remedy.text.endswith("is gone, which is under way")


def test_compute_is_freed_by_those_who_reserve_it() -> None:
    cluster = Cluster().node("n", a_card("GPU-a"))
    cluster.holder("memory", "n", "GPU-a", 9_000).holder("compute", "n", "GPU-a", 100, cores=90)
    world = cluster.world()

    (remedy,) = leaving_pods(a_pod_need(a_need(100, cores=50)), sites(world), world)

    assert remedy.pods == ("default/compute",)


def test_pods_on_several_cards_go_together() -> None:
    cluster = Cluster().node("n", *(a_card(f"GPU-{n}", index=n) for n in range(3)))
    for number in range(3):
        cluster.holder(f"p{number}", "n", f"GPU-{number}", 23_000)
    world = cluster.world()

    (remedy,) = leaving_pods(a_pod_need(a_need(20_000, cards=2)), sites(world), world)

    assert len(remedy.pods) == 2


def test_nobody_is_asked_to_go_from_a_card_that_would_not_do_anyway() -> None:
    cluster = Cluster().node("n", a_card("GPU-a", model="NVIDIA T4"))
    world = cluster.holder("p", "n", "GPU-a", 20_000).world()
    need: PodNeed = a_pod_need(a_need(20_000), models=("*H100*",))

    assert list(leaving_pods(need, sites(world), world)) == []


def test_a_closed_node_with_the_cards_is_named_with_the_command() -> None:
    world = Cluster().node("n", a_card("GPU-a"), site=NodeConstraints(cordoned=True)).world()
    subject: ExplainedPod = a_waiting_pod(LARGE)

    (remedy,) = opened_nodes(explain(subject, world))

    assert (
        remedy.text == "n has the cards, but the node is cordoned; to open it: kubectl uncordon n"
    )
    assert remedy.home.cards == (0,)
