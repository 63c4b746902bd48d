"""Suggestions that change the request: each, written on a new pod, fits."""

from dataclasses import replace
from fractions import Fraction

from hypothesis import given
from msgspec import structs

from fracgpu import names
from fracgpu.cards.card import CardUuid, CordonEffect
from fracgpu.explain.answers import Suggestion, SuggestionKind
from fracgpu.explain.explanation import explain, find_fitting_cards
from fracgpu.explain.suggestions import lapsing_cordons, suggest
from fracgpu.k8s.container import ContainerSpec
from fracgpu.placement.outcome import Placement
from fracgpu.placement.placement import place
from fracgpu.request.language import parse_request
from fracgpu.request.need import PodNeed, Strategy
from fracgpu.state.cluster_state import ClusterState, ExplainedPod
from fracgpu.state.snapshot import NodeInfo
from fracgpu.units import Mib
from tests.support.core import a_card, a_need, a_pod_need, small_needs, small_nodes
from tests.support.explaining import Cluster, a_waiting_pod


def suggestions_by_kind(pod: ExplainedPod, state: ClusterState) -> dict[SuggestionKind, Suggestion]:
    return {suggestion.kind: suggestion for suggestion in suggest(pod, state, explain(pod, state))}


def test_the_largest_share_that_fits_now_is_told() -> None:
    cluster = Cluster().node("n", a_card("GPU-a", mib=24_000))
    state = cluster.holder("p", "n", "GPU-a", 15_000).state()
    half = a_pod_need(a_need(12_000, share=Fraction(1, 2)))

    smaller = suggestions_by_kind(a_waiting_pod(half, annotations={names.FRACTION: "0.5"}), state)[
        SuggestionKind.SMALLER
    ]

    assert smaller.annotations == {names.FRACTION: "0.375"}  # 9,000 of 24,000
    assert smaller.home.node == "n"
    assert 'at most fracgpu.io/fraction: "0.375" fits now (9000 MiB): n, card 0' in smaller.text


def test_memory_is_told_to_the_last_mib() -> None:
    cluster = Cluster().node("n", a_card("GPU-a", mib=24_000))
    state = cluster.holder("p", "n", "GPU-a", 15_001).state()
    asked = a_waiting_pod(a_pod_need(a_need(12_000)), annotations={names.MEMORY: "12000Mi"})

    assert suggestions_by_kind(asked, state)[SuggestionKind.SMALLER].annotations == {
        names.MEMORY: "8999Mi"
    }


def test_a_plain_limit_is_answered_with_a_plain_limit() -> None:
    cluster = Cluster().node("n", a_card("GPU-a", mib=24_000))
    state = cluster.holder("p", "n", "GPU-a", 15_000).state()

    smaller = suggestions_by_kind(a_waiting_pod(a_pod_need(a_need(12_000))), state)[
        SuggestionKind.SMALLER
    ]

    assert smaller.annotations == {f"limits {names.GPU_MEM}": "9000"}


def test_fewer_cards_are_told_where_there_are_fewer() -> None:
    state = Cluster().node("n", a_card("GPU-a"), a_card("GPU-b", index=1)).state()

    fewer = suggestions_by_kind(a_waiting_pod(a_pod_need(a_need(100, cards=4))), state)[
        SuggestionKind.FEWER_CARDS
    ]

    assert fewer.annotations == {names.CARDS: "2"}
    assert fewer.home.cards == (0, 1)


def test_less_compute_is_told_where_compute_is_short() -> None:
    cluster = Cluster().node("n", a_card("GPU-a")).holder("p", "n", "GPU-a", 100, cores=60)

    less = suggestions_by_kind(a_waiting_pod(a_pod_need(a_need(100, cores=50))), cluster.state())

    assert less[SuggestionKind.LESS_COMPUTE].annotations == {names.CORES: "40"}
    assert SuggestionKind.SMALLER not in less


def test_compute_that_is_all_reserved_is_shared_by_asking_for_none() -> None:
    cluster = Cluster().node("n", a_card("GPU-a")).holder("p", "n", "GPU-a", 100, cores=100)

    less = suggestions_by_kind(a_waiting_pod(a_pod_need(a_need(100, cores=50))), cluster.state())

    assert less[SuggestionKind.LESS_COMPUTE].annotations == {}
    assert less[SuggestionKind.LESS_COMPUTE].text.startswith(f"without {names.CORES}")


def test_a_limit_is_to_be_left_out_where_the_pod_fits_without_it() -> None:
    card = replace(a_card("GPU-a", mib=24_000), limits_mib=Mib(24_000))
    state = Cluster().node("n", card).holder("p", "n", "GPU-a", 10_000).state()
    mib = structs.replace(a_need(8_000), limit_mib=Mib(20_000))
    share = structs.replace(a_need(12_000, share=Fraction(1, 2)), limit_share=Fraction(1))

    for key, part in ((names.MEMORY_LIMIT, mib), (names.FRACTION_LIMIT, share)):
        found = suggestions_by_kind(a_waiting_pod(a_pod_need(part)), state)
        assert found[SuggestionKind.NO_LIMIT].text == f"without {key} it fits now: n, card 0"
    large = structs.replace(a_need(16_000), limit_mib=Mib(20_000))
    found = suggestions_by_kind(a_waiting_pod(a_pod_need(large)), state)
    assert SuggestionKind.NO_LIMIT not in found


def test_another_model_is_told_with_what_the_share_is_there() -> None:
    cluster = Cluster().node("full", a_card("GPU-a", mib=40_000, model="NVIDIA A100"))
    cluster.node("free", a_card("GPU-b", mib=24_000, model="NVIDIA A30"))
    state = cluster.holder("p", "full", "GPU-a", 40_000).state()
    half = a_pod_need(a_need(20_000, share=Fraction(1, 2)), models=("*A100*",))

    other = suggestions_by_kind(a_waiting_pod(half), state)[SuggestionKind.OTHER_MODEL]

    assert other.annotations == {names.MODEL: "NVIDIA-A30"}
    assert "(11.7 GiB): free, card 0" in other.text


def test_what_no_node_could_ever_hold_is_said_plainly() -> None:
    state = Cluster().node("n", a_card("GPU-a", model="NVIDIA T4")).state()
    need = a_pod_need(a_need(100), a_need(90_000, name="big"), models=("*H100*",))

    found = suggestions_by_kind(a_waiting_pod(need), state)

    assert set(found) == {SuggestionKind.LARGER_NODE}
    assert "even if nothing else ran there" in found[SuggestionKind.LARGER_NODE].text


def test_a_pod_with_room_needs_no_suggestion() -> None:
    state = Cluster().node("n", a_card("GPU-a")).state()
    pod = a_waiting_pod(a_pod_need(a_need(100)))

    assert suggest(pod, state, explain(pod, state)) == ()


@given(small_nodes(), small_needs())
def test_every_smaller_request_that_is_told_can_be_read_and_fits(
    node_info: NodeInfo, need: PodNeed
) -> None:
    empty = Cluster().node("n", *(card_info.card for card_info in node_info.cards.values())).state()
    (empty_node,) = empty.snapshot.nodes.values()
    pod = a_waiting_pod(need, annotations={names.MEMORY: "1Mi"})
    found = suggestions_by_kind(pod, empty)

    smaller = found.get(SuggestionKind.SMALLER)
    if smaller is not None:
        specs = [
            ContainerSpec(name=container.name, kind=container.kind) for container in need.containers
        ]
        cards = ", ".join(f"{container.name}={container.cards}" for container in need.containers)
        request = parse_request({**smaller.annotations, names.CARDS: cards}, specs)
        assert request is not None
        asked = PodNeed(
            containers=tuple(
                structs.replace(
                    a_need(
                        part.mib or 0,
                        name=part.container,
                        kind=part.kind,
                        cards=part.cards,
                        cores=container.cores,
                    ),
                    limit_mib=container.limit_mib,
                )
                for part, container in zip(request.slices, need.containers, strict=True)
            )
        )
        assert find_fitting_cards(asked, [empty_node]) == smaller.home
        assert not isinstance(place(empty_node, need, strategy=Strategy.PACK), Placement)


def test_the_end_of_a_cordon_that_closes_nothing_is_no_advice() -> None:
    need = a_pod_need(a_need(1_000))
    kept_off = {}
    for effect in CordonEffect:
        cluster = Cluster().node("n", a_card("GPU-a"), cordons={"GPU-a": 60}, effect=effect)
        node_info = cluster.state().snapshot.nodes["n"].with_cordoned({CardUuid("GPU-a")})
        kept_off[effect] = [found.kind for found in lapsing_cordons(need, [node_info])]

    assert kept_off == {
        CordonEffect.NO_SCHEDULE: [SuggestionKind.CORDON_ENDS],
        CordonEffect.PREFER_NO_SCHEDULE: [],
    }
