"""What to ask instead: each remedy, written on a new pod, really fits."""

from fractions import Fraction

from hypothesis import given

from fracgpu import names
from fracgpu.explain.answers import Suggestion, SuggestionKind
from fracgpu.explain.explanation import explain, find_fitting_cards
from fracgpu.explain.suggestions import suggest
from fracgpu.k8s.container import ContainerSpec
from fracgpu.placement.outcome import Placement
from fracgpu.placement.placement import place
from fracgpu.request.language import parse_request
from fracgpu.request.need import PodNeed, Strategy
from fracgpu.state.cluster_state import ClusterState, ExplainedPod
from fracgpu.state.snapshot import NodeInfo
from tests.support.core import a_card, a_need, a_pod_need, small_needs, small_nodes
from tests.support.explaining import Cluster, a_waiting_pod


def cure(subject: ExplainedPod, world: ClusterState) -> dict[SuggestionKind, Suggestion]:
    return {it.kind: it for it in suggest(subject, world, explain(subject, world))}


def test_the_largest_share_that_fits_now_is_told() -> None:
    cluster = Cluster().node("n", a_card("GPU-a", mib=24_000))
    world = cluster.holder("p", "n", "GPU-a", 15_000).world()
    half = a_pod_need(a_need(12_000, share=Fraction(1, 2)))

    smaller = cure(a_waiting_pod(half, annotations={names.FRACTION: "0.5"}), world)[
        SuggestionKind.SMALLER
    ]

    assert smaller.annotations == {names.FRACTION: "0.375"}  # 9,000 of 24,000
    assert smaller.home.node == "n"
    assert 'at most fracgpu.io/fraction: "0.375" fits now (9000 MiB): n, card 0' in smaller.text


def test_memory_is_told_to_the_last_mib() -> None:
    cluster = Cluster().node("n", a_card("GPU-a", mib=24_000))
    world = cluster.holder("p", "n", "GPU-a", 15_001).world()
    asked = a_waiting_pod(a_pod_need(a_need(12_000)), annotations={names.MEMORY: "12000Mi"})

    assert cure(asked, world)[SuggestionKind.SMALLER].annotations == {names.MEMORY: "8999Mi"}


def test_a_plain_limit_is_answered_with_a_plain_limit() -> None:
    cluster = Cluster().node("n", a_card("GPU-a", mib=24_000))
    world = cluster.holder("p", "n", "GPU-a", 15_000).world()

    smaller = cure(a_waiting_pod(a_pod_need(a_need(12_000))), world)[SuggestionKind.SMALLER]

    assert smaller.annotations == {f"limits {names.GPU_MEM}": "9000"}


def test_fewer_cards_are_told_where_there_are_fewer() -> None:
    world = Cluster().node("n", a_card("GPU-a"), a_card("GPU-b", index=1)).world()

    fewer = cure(a_waiting_pod(a_pod_need(a_need(100, cards=4))), world)[SuggestionKind.FEWER_CARDS]

    assert fewer.annotations == {names.CARDS: "2"}
    assert fewer.home.cards == (0, 1)


def test_less_compute_is_told_where_compute_is_short() -> None:
    cluster = Cluster().node("n", a_card("GPU-a")).holder("p", "n", "GPU-a", 100, cores=60)

    less = cure(a_waiting_pod(a_pod_need(a_need(100, cores=50))), cluster.world())

    assert less[SuggestionKind.LESS_COMPUTE].annotations == {names.CORES: "40"}
    assert SuggestionKind.SMALLER not in less


def test_compute_that_is_all_reserved_is_shared_by_asking_for_none() -> None:
    cluster = Cluster().node("n", a_card("GPU-a")).holder("p", "n", "GPU-a", 100, cores=100)

    less = cure(a_waiting_pod(a_pod_need(a_need(100, cores=50))), cluster.world())

    assert less[SuggestionKind.LESS_COMPUTE].annotations == {}
    assert less[SuggestionKind.LESS_COMPUTE].text.startswith(f"without {names.CORES}")


def test_another_model_is_told_with_what_the_share_is_there() -> None:
    cluster = Cluster().node("full", a_card("GPU-a", mib=40_000, model="NVIDIA A100"))
    cluster.node("free", a_card("GPU-b", mib=24_000, model="NVIDIA A30"))
    world = cluster.holder("p", "full", "GPU-a", 40_000).world()
    half = a_pod_need(a_need(20_000, share=Fraction(1, 2)), models=("*A100*",))

    other = cure(a_waiting_pod(half), world)[SuggestionKind.OTHER_MODEL]

    assert other.annotations == {names.MODEL: "NVIDIA-A30"}
    assert "(11.7 GiB): free, card 0" in other.text


def test_what_no_node_could_ever_hold_is_said_plainly() -> None:
    world = Cluster().node("n", a_card("GPU-a", model="NVIDIA T4")).world()
    need = a_pod_need(a_need(100), a_need(90_000, name="big"), models=("*H100*",))

    found = cure(a_waiting_pod(need), world)

    assert set(found) == {SuggestionKind.LARGER_NODE}
    assert "even if nothing else ran there" in found[SuggestionKind.LARGER_NODE].text


def test_a_pod_with_room_needs_no_remedy() -> None:
    world = Cluster().node("n", a_card("GPU-a")).world()
    subject = a_waiting_pod(a_pod_need(a_need(100)))

    assert suggest(subject, world, explain(subject, world)) == ()


@given(small_nodes(), small_needs())
def test_every_smaller_request_that_is_told_can_be_read_and_fits(
    loads: NodeInfo, need: PodNeed
) -> None:
    empty = Cluster().node("n", *(load.card for load in loads.cards.values())).world()
    (site,) = empty.snapshot.nodes.values()
    subject = a_waiting_pod(need, annotations={names.MEMORY: "1Mi"})
    found = cure(subject, empty)

    smaller = found.get(SuggestionKind.SMALLER)
    if smaller is not None:
        specs = [ContainerSpec(name=it.name, kind=it.kind) for it in need.containers]
        cards = ", ".join(f"{it.name}={it.cards}" for it in need.containers)
        request = parse_request({**smaller.annotations, names.CARDS: cards}, specs)
        assert request is not None
        asked = PodNeed(
            containers=tuple(
                a_need(
                    part.mib or 0,
                    name=part.container,
                    kind=part.kind,
                    cards=part.cards,
                    cores=it.cores,
                )
                for part, it in zip(request.slices, need.containers, strict=True)
            )
        )
        assert find_fitting_cards(asked, [site]) == smaller.home
        assert not isinstance(place(site, need, strategy=Strategy.PACK), Placement)
