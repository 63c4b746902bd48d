import contextlib
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec import structs

from fracgpu.cards.card_class import CardClass, Vendor
from fracgpu.errors import RequestError
from fracgpu.k8s.container import ContainerKind, pod_resource_sum
from fracgpu.request.grant import ClassRule, Grant, describe, grant, need_from_limits
from fracgpu.request.grant_note import describe_grant
from fracgpu.request.need import (
    ContainerNeed,
    PodNeed,
    PodRequest,
    SliceRequest,
    Strategy,
    Topology,
)
from fracgpu.units import Mib, share_of


def a_class(
    capacity_mib: int,
    model: str = "NVIDIA-A30",
    *,
    per_node: int = 4,
    as_large: int = 0,
    free: float = 1.0,
) -> CardClass:
    return CardClass(
        capacity_mib=Mib(capacity_mib),
        models=frozenset({model}),
        most_per_node=per_node,
        as_large_per_node=as_large,
        cards=per_node,
        free_share=free,
    )


A30S = a_class(24_000)
H100S = a_class(81_920, "NVIDIA-H100-80GB-HBM3", per_node=2)
CLASSES = (A30S, H100S)
HALF = SliceRequest(container="train", share=Fraction(1, 2))


def memory(mib: int, *, container: str = "train", cards: int = 1) -> SliceRequest:
    return SliceRequest(container=container, mib=Mib(mib), cards=cards)


def a_limit(mib: int, *, cards: int = 1) -> SliceRequest:
    return SliceRequest(container="train", mib=Mib(mib // cards), cards=cards, stated_mib=Mib(mib))


def asks(*slices: SliceRequest, models: tuple[str, ...] = ()) -> PodRequest:
    return PodRequest(slices=slices, models=models)


def test_a_share_is_one_of_the_first_class_and_names_it() -> None:
    assert grant(asks(HALF), CLASSES) == Grant(
        need=PodNeed(
            containers=(ContainerNeed(name="train", mib=Mib(12_000), share=Fraction(1, 2)),)
        ),
        card_class=A30S,
    )


def test_a_class_that_could_never_hold_the_pod_is_passed_over() -> None:
    three_cards = SliceRequest(container="train", share=Fraction(1), cards=3)

    assert grant(asks(three_cards), (H100S, A30S)).card_class == A30S


MI300S = a_class(196_560, "AMD-Instinct-MI300X")
ON_MI300 = ("*MI300*",)


@pytest.mark.parametrize(
    ("classes", "models", "named", "wanted"),
    [
        ((MI300S, A30S), (), None, (None, A30S)),  # as if there were no others
        ((A30S, MI300S), ON_MI300, None, (Vendor.AMD, MI300S)),
        ((MI300S,), (), None, (Vendor.AMD, MI300S)),
        ((A30S, MI300S), (), Vendor.AMD, (Vendor.AMD, MI300S)),
        ((MI300S, A30S), ("*",), None, (None, A30S)),
        ((MI300S, A30S), ("*",), Vendor.NVIDIA, (Vendor.NVIDIA, A30S)),
    ],
)
def test_a_pod_gets_the_cards_of_one_vendor(
    classes: Sequence[CardClass],
    models: tuple[str, ...],
    named: Vendor | None,
    wanted: tuple[Vendor | None, CardClass],
) -> None:
    request = structs.replace(asks(HALF, models=models), vendor=named)

    granted = grant(request, classes)

    assert (granted.need.vendor, granted.card_class) == wanted


@pytest.mark.parametrize(
    ("classes", "vendor", "message"),
    [
        ((A30S,), Vendor.AMD, "fracgpu.io/vendor is 'amd'; want the vendor of a card model of"),
        ((MI300S,), Vendor.NVIDIA, "fracgpu.io/vendor is 'nvidia'; want the vendor of a card"),
    ],
)
def test_a_vendor_without_a_card_is_refused(
    classes: Sequence[CardClass], vendor: Vendor, message: str
) -> None:
    with pytest.raises(RequestError, match=message):
        grant(structs.replace(asks(memory(100)), vendor=vendor), classes)


def test_memory_belongs_to_no_class() -> None:
    granted = grant(asks(memory(50_000)), CLASSES)

    assert granted.card_class is None
    assert granted.need.containers == (ContainerNeed(name="train", mib=Mib(50_000)),)


def test_memory_on_several_cards_may_use_larger_ones_beside_small_ones() -> None:
    mixed = (a_class(24_000, per_node=2, as_large=4), a_class(81_920, "H100", per_node=2))

    assert grant(asks(memory(20_000, cards=4)), mixed).need.containers[0].cards == 4
    with pytest.raises(RequestError, match="at most 2"):
        grant(asks(memory(30_000, cards=4)), mixed)


def test_limits_that_are_there_already_decide_the_class() -> None:
    again = SliceRequest(
        container="train", share=Fraction(1, 2), stated_mib=Mib(40_960), stated_slots=1
    )

    assert grant(asks(again), CLASSES).card_class == H100S


def test_what_concerns_the_whole_pod_is_handed_on() -> None:
    wanted: dict[str, Any] = {
        "models": ("*",),
        "strategy": Strategy.SPREAD,
        "topology": Topology.NVLINK,
    }
    request = PodRequest(slices=(HALF,), **wanted)
    admitted = PodRequest(slices=(structs.replace(a_limit(4096), stated_slots=1),), **wanted)

    for need in (grant(request, CLASSES).need, need_from_limits(admitted)):
        found = {"models": need.models, "strategy": need.strategy, "topology": need.topology}
        assert found == wanted


DEFAULT_H100 = ClassRule(default_models=("*H100*",))


@pytest.mark.parametrize(
    ("request_", "rule", "capacity_mib"),
    [
        (asks(HALF), ClassRule(), 24_000),
        (asks(HALF), DEFAULT_H100, 81_920),
        (asks(HALF), ClassRule(default_mib=Mib(81_920)), 81_920),
        (asks(HALF, models=("*A30*",)), DEFAULT_H100, 24_000),
        (asks(HALF, models=("!*A30*",)), ClassRule(), 81_920),
    ],
)
def test_a_share_is_one_of_the_model_it_names_else_of_the_default_else_of_the_most_free(
    request_: PodRequest, rule: ClassRule, capacity_mib: int
) -> None:
    card_class = grant(request_, CLASSES, rule=rule).card_class

    assert card_class is not None
    assert card_class.capacity_mib == capacity_mib


def test_the_default_class_is_no_matter_to_who_asks_in_mib() -> None:
    rule = ClassRule(default_models=("none-such",))

    assert grant(asks(memory(30_000)), CLASSES, rule=rule).need.containers[0].mib == 30_000


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (
            ClassRule(default_models=("*A100*",), default_mib=Mib(40_000)),
            "*A100* that shares 40000 MiB",
        ),
        (ClassRule(default_models=("*A100*", "*B200*")), "*A100*, *B200*"),
        (ClassRule(default_mib=Mib(40_000)), "a card that shares 40000 MiB"),
    ],
)
def test_a_default_that_the_cluster_lacks_is_said(rule: ClassRule, words: str) -> None:
    with pytest.raises(RequestError) as refused:
        grant(asks(HALF), CLASSES, rule=rule)

    assert str(refused.value) == (
        f"the cluster's default card is '{words}'; want one that the cluster "
        "has: NVIDIA-A30 (24000 MiB), NVIDIA-H100-80GB-HBM3 (81920 MiB); "
        'name a model, e.g. fracgpu.io/model: "NVIDIA-A30"'
    )


WAIT = ClassRule(wait=True, default_mib=Mib(40_000))


@pytest.mark.parametrize(
    ("request_", "classes", "mib", "waits_for"),
    [
        (asks(memory(100_000)), CLASSES, 100_000, "fracgpu.io/memory of container 'train' is"),
        (asks(memory(4_000)), (), 4_000, "the request is 'a share of a card'"),
        (asks(HALF), (), 20_000, "the request is 'a share of a card'"),
        (asks(HALF), CLASSES, 20_000, "the cluster's default card is"),
        (
            asks(SliceRequest(container="train", share=Fraction(1), cards=9), models=("*A30",)),
            CLASSES,
            24_000,
            "fracgpu.io/cards of container 'train' is '9'",
        ),
    ],
)
def test_where_pods_may_wait_what_the_cluster_lacks_is_granted_and_said(
    request_: PodRequest, classes: Sequence[CardClass], mib: int, waits_for: str
) -> None:
    granted = grant(request_, classes, rule=WAIT)

    assert granted.need.containers[0].mib == mib
    assert granted.waits_for.startswith(waits_for)


def test_a_share_of_a_card_that_is_yet_to_come_is_one_of_the_default_models() -> None:
    rule = ClassRule(wait=True, default_mib=Mib(40_000), default_models=("*A100*",))

    supposed = grant(asks(HALF), (), rule=rule).card_class

    assert supposed is not None
    assert supposed.capacity_mib == 40_000
    assert supposed.models == frozenset({"*A100*"})
    assert not supposed.measured


@pytest.mark.parametrize(
    ("request_", "rule"),
    [
        (asks(HALF), ClassRule(wait=True)),
        (asks(HALF, models=("*X*",)), WAIT),
        (
            asks(SliceRequest(container="train", share=Fraction(1), stated_mib=Mib(7))),
            WAIT,
        ),
    ],
    ids=["no size known", "a model that nobody has", "a limit that says otherwise"],
)
def test_a_share_of_an_unknown_size_cannot_wait(request_: PodRequest, rule: ClassRule) -> None:
    with pytest.raises(RequestError):
        grant(request_, (), rule=rule)


REFUSED: dict[str, tuple[PodRequest, Sequence[CardClass], str]] = {
    "no card anywhere": (
        asks(HALF),
        (),
        "the request is 'a share of a card'; want a cluster with at least one shared, healthy "
        "card; no node labelled fracgpu.io/share=true has reported one yet; fracgpu doctor says "
        "why",
    ),
    "a model that lacks its stars": (
        asks(HALF, models=("h100",)),
        CLASSES,
        "fracgpu.io/model is 'h100'; want globs that match a card model of this cluster: "
        "NVIDIA-A30, NVIDIA-H100-80GB-HBM3; write '*h100*'",
    ),
    "a model that lacks a star": (
        asks(HALF, models=("*h100",)),
        CLASSES,
        "fracgpu.io/model is '*h100'; want globs that match a card model of this cluster: "
        "NVIDIA-A30, NVIDIA-H100-80GB-HBM3; write '*h100*'",
    ),
    "all models but those that there are": (
        asks(HALF, models=("!NVIDIA-*",)),
        CLASSES,
        "fracgpu.io/model is '!NVIDIA-*'; want globs that match a card model of this cluster: "
        "NVIDIA-A30, NVIDIA-H100-80GB-HBM3",
    ),
    "a model that is nearly right": (
        asks(HALF, models=("NVIDIA-A40", "V100")),
        CLASSES,
        "fracgpu.io/model is 'NVIDIA-A40, V100'; want globs that match a card model of this "
        "cluster: NVIDIA-A30, NVIDIA-H100-80GB-HBM3; did you mean 'NVIDIA-A30'?",
    ),
    "a model like none": (
        asks(HALF, models=("*zzzz*",)),
        CLASSES,
        "fracgpu.io/model is '*zzzz*'; want globs that match a card model of this cluster: "
        "NVIDIA-A30, NVIDIA-H100-80GB-HBM3",
    ),
    "memory that two cards would have": (
        asks(memory(100_000)),
        CLASSES,
        "fracgpu.io/memory of container 'train' is '100000Mi'; want at most what the largest card "
        "shares, 81920 MiB (80 GiB); '81920Mi' would fit, and so would fracgpu.io/cards: \"2\" "
        "with 50000 MiB on each",
    ),
    "memory that no node has": (
        asks(memory(900_000)),
        CLASSES,
        "fracgpu.io/memory of container 'train' is '900000Mi'; want at most what the largest card "
        "shares, 81920 MiB (80 GiB); '81920Mi' would fit",
    ),
    "memory larger than the model has": (
        asks(memory(30_000), models=("*A30",)),
        CLASSES,
        "fracgpu.io/memory of container 'train' is '30000Mi'; want at most what the largest card "
        "of that model shares, 24000 MiB (23.4 GiB); '24000Mi' would fit, and so would "
        'fracgpu.io/cards: "2" with 15000 MiB on each',
    ),
    "a limit that no card holds": (
        asks(a_limit(100_000)),
        CLASSES,
        "limits['fracgpu.io/gpu-mem'] of container 'train' is '100000'; want at most what the "
        "largest card shares, 81920 MiB (80 GiB); '81920' would fit, and so would "
        'fracgpu.io/cards: "2" with 50000 MiB on each',
    ),
    "a limit on several cards that no card holds": (
        asks(a_limit(200_000, cards=2)),
        CLASSES,
        "limits['fracgpu.io/gpu-mem'] of container 'train' is '200000 on 2 cards'; want at most "
        "what the largest card shares, 81920 MiB (80 GiB); '163840' would fit",
    ),
    "more cards for a share than any node has": (
        asks(SliceRequest(container="train", share=Fraction(1, 2), cards=5)),
        CLASSES,
        "fracgpu.io/cards of container 'train' is '5'; "
        "want at most 4: no node has more cards that are large enough",
    ),
    "more cards for memory than any node has": (
        asks(memory(50_000, cards=3)),
        CLASSES,
        "fracgpu.io/cards of container 'train' is '3'; "
        "want at most 2: no node has more cards that are large enough",
    ),
    "a limit that no card has": (
        asks(SliceRequest(container="train", mib=Mib(4096), limit_mib=Mib(90_000))),
        CLASSES,
        "fracgpu.io/memory-limit of container 'train' is '90000Mi'; want at most what the largest "
        "card shares, 81920 MiB (80 GiB); '81920Mi' would fit",
    ),
    "containers that together are more than a node": (
        asks(
            *(SliceRequest(container=name, share=Fraction(1)) for name in "abcd"),
            SliceRequest(container="e", share=Fraction(1, 3)),
        ),
        CLASSES,
        "fracgpu.io/fraction is 'a=1, b=1, c=1, d=1, e=0.3333'; "
        "want at most what one node has, 4 cards, in one pod",
    ),
    "a limit that is not what the annotation says": (
        asks(SliceRequest(container="train", share=Fraction(1, 2), stated_mib=Mib(4096))),
        CLASSES,
        "limits['fracgpu.io/gpu-mem'] of container 'train' is '4096'; want 12000, as its "
        "annotations say; leave the limit out; the webhook writes it",
    ),
    "slots that are not the cards": (
        asks(SliceRequest(container="train", mib=Mib(4096), stated_slots=2)),
        CLASSES,
        "limits['fracgpu.io/gpu-slot'] of container 'train' is '2'; want 1, one for each card; "
        "leave the limit out; the webhook writes it",
    ),
}


@pytest.mark.parametrize(("request_", "classes", "words"), REFUSED.values(), ids=REFUSED.keys())
def test_what_no_class_can_hold_is_refused_in_these_words(
    request_: PodRequest, classes: Sequence[CardClass], words: str
) -> None:
    with pytest.raises(RequestError) as refused:
        grant(request_, classes)

    assert str(refused.value) == words


def test_containers_that_run_one_after_the_other_need_not_fit_together() -> None:
    containers = [
        SliceRequest(container=name, kind=ContainerKind.INIT, share=Fraction(1)) for name in "abc"
    ]

    assert grant(asks(*containers), (a_class(24_000, per_node=1),)).card_class is not None


def test_an_admitted_pod_needs_what_its_limits_say() -> None:
    request = asks(
        SliceRequest(
            container="train",
            share=Fraction(1, 2),
            cores=30,
            cards=2,
            stated_mib=Mib(24_000),
            stated_slots=2,
        )
    )

    assert need_from_limits(request).containers == (
        ContainerNeed(name="train", cards=2, mib=Mib(12_000), cores=30, share=Fraction(1, 2)),
    )


@pytest.mark.parametrize(
    ("part", "words"),
    [
        (HALF, "limits of container 'train' is 'no fracgpu.io/gpu-mem'"),
        (a_limit(512), "limits of container 'train' is 'no fracgpu.io/gpu-slot'"),
    ],
)
def test_a_pod_that_admission_never_saw_is_refused(part: SliceRequest, words: str) -> None:
    with pytest.raises(RequestError) as refused:
        need_from_limits(asks(part))

    assert str(refused.value) == (
        f"{words}; want the limits that the FracGPU webhook writes; "
        "the pod was created while the webhook was down; create it again"
    )


@pytest.mark.parametrize(
    ("part", "words"),
    [
        (HALF, "train: 12000 MiB on 1 card (0.5 of a card that shares 24000 MiB)"),
        (memory(512), "train: 512 MiB on 1 card"),
        (memory(512, cards=2), "train: 512 MiB on each of 2 cards"),
        (
            SliceRequest(container="a", share=Fraction(1, 3), cores=30),
            "a: 8000 MiB on 1 card (0.3333 of a card that shares 24000 MiB), 30% of the compute",
        ),
    ],
)
def test_a_grant_is_described_in_plain_words(part: SliceRequest, words: str) -> None:
    assert describe(grant(asks(part), CLASSES)) == words


PARTS = st.one_of(
    st.builds(
        SliceRequest,
        container=st.sampled_from("abc"),
        kind=st.sampled_from(ContainerKind),
        share=st.fractions(min_value=0, max_value=1).filter(bool),
        cards=st.integers(1, 5),
    ),
    st.builds(
        SliceRequest,
        container=st.sampled_from("abc"),
        kind=st.sampled_from(ContainerKind),
        mib=st.integers(1, 100_000).map(Mib),
        cards=st.integers(1, 5),
    ),
)
REQUESTS = st.lists(PARTS, min_size=1, max_size=3, unique_by=lambda part: part.container).map(
    lambda parts: asks(*parts)
)
SOME_CLASSES = st.lists(
    st.builds(
        a_class,
        st.sampled_from([80, 24_000, 40_960, 81_920]),
        per_node=st.integers(1, 8),
    ),
    max_size=3,
    unique_by=lambda card_class: card_class.capacity_mib,
)


@given(REQUESTS, SOME_CLASSES)
def test_a_grant_fits_its_class_and_never_gives_less_than_was_asked(
    request: PodRequest, classes: list[CardClass]
) -> None:
    granted: Grant | None = None
    with contextlib.suppress(RequestError):
        granted = grant(request, classes)
    assume(granted is not None)
    assert granted is not None

    shares = []
    for part, need in zip(request.slices, granted.need.containers, strict=True):
        assert (need.name, need.kind, need.cards, need.share) == (
            part.container,
            part.kind,
            part.cards,
            part.share,
        )
        if part.share is None:
            assert need.mib == part.mib
            assert any(need.mib <= card_class.capacity_mib for card_class in classes)
            continue
        assert granted.card_class in classes
        assert need.mib == share_of(part.share, capacity_mib=granted.card_class.capacity_mib)
        assert part.share * granted.card_class.capacity_mib <= need.mib
        assert need.mib <= granted.card_class.capacity_mib
        assert need.cards <= granted.card_class.most_per_node
        shares.append((need.kind, int(need.total_mib)))
    if granted.card_class is not None:
        on_a_node = granted.card_class.capacity_mib * granted.card_class.most_per_node
        assert pod_resource_sum(shares) <= on_a_node


@given(REQUESTS, SOME_CLASSES)
def test_a_class_more_never_turns_a_yes_into_a_no(
    request: PodRequest, classes: list[CardClass]
) -> None:
    try:
        grant(request, classes[1:])
    except RequestError:
        return

    assert grant(request, classes).need.containers


def test_how_much_a_container_may_use_is_granted_said_and_read_again() -> None:
    parts = (
        SliceRequest(container="a", mib=Mib(4096), limit_mib=Mib(8192)),
        SliceRequest(container="b", share=Fraction(1, 4), limit_share=Fraction(1, 2)),
    )
    granted = grant(asks(*parts), CLASSES)

    assert describe(granted) == (
        "a: 4096 MiB (at most 8 GiB) on 1 card; "
        "b: 6000 MiB (at most 0.5 of the card) on 1 card (0.25 of a card that shares 24000 MiB)"
    )
    admitted = [
        structs.replace(part, stated_mib=need.total_mib, stated_slots=1)
        for part, need in zip(parts, granted.need.containers, strict=True)
    ]
    assert need_from_limits(asks(*admitted)) == granted.need
    note, other = describe_grant(granted), describe_grant(grant(asks(parts[0]), CLASSES))
    assert note.data.containers["a"].most == "8192Mi"
    less = structs.replace(parts[0], limit_mib=Mib(5000))
    assert not describe_grant(grant(asks(less), CLASSES)).repeats(other)
