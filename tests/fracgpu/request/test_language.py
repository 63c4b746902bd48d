import contextlib
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fracgpu import names
from fracgpu.errors import RequestError
from fracgpu.k8s.container import ContainerKind, ContainerSpec
from fracgpu.request.language import (
    CHOICES,
    parse_gang,
    parse_request,
    requires_kernel,
    wanted_isolation,
)
from fracgpu.request.need import (
    Gang,
    Isolation,
    PodRequest,
    Rebalance,
    SliceRequest,
    Strategy,
    Topology,
)
from fracgpu.units import Mib

MEM, SLOT = names.GPU_MEM, names.GPU_SLOT


def a_spec(
    name: str = "train",
    *,
    kind: ContainerKind = ContainerKind.APP,
    requests: dict[str, str] | None = None,
    **limits: str,
) -> ContainerSpec:
    ours = {f"fracgpu.io/{key.replace('_', '-')}": amount for key, amount in limits.items()}
    return ContainerSpec(name=name, kind=kind, limits=ours, requests=requests or {})


def read(*specs: ContainerSpec, **asks: str) -> PodRequest | None:
    annotations = {f"fracgpu.io/{key}": text for key, text in asks.items()}
    return parse_request(annotations, specs or (a_spec(),))


def refusal(*specs: ContainerSpec, **asks: str) -> str:
    with pytest.raises(RequestError) as refused:
        read(*specs, **asks)
    return str(refused.value)


def slices(request: PodRequest | None) -> tuple[SliceRequest, ...]:
    assert request is not None
    return request.slices


def test_a_pod_that_says_nothing_asks_for_nothing() -> None:
    assert read() is None
    assert parse_request({"team": "x", "simulator.fracgpu.io/busy": "1"}, [a_spec()]) is None
    assert parse_request({}, []) is None


def test_one_fraction_is_for_the_first_app_container() -> None:
    init = a_spec("warm", kind=ContainerKind.INIT)

    assert read(init, a_spec("train"), a_spec("logs"), fraction="0.5") == PodRequest(
        slices=(SliceRequest(container="train", share=Fraction(1, 2)),)
    )


def test_pairs_name_their_containers_in_any_order_init_containers_too() -> None:
    init = a_spec("warm", kind=ContainerKind.INIT)

    request = read(
        init,
        a_spec("train"),
        a_spec("eval"),
        fraction=" eval = 25% ,warm=0.1",
        memory="train=8Gi",
        cores="train=30",
        cards="eval=2",
    )

    assert slices(request) == (
        SliceRequest(container="warm", kind=ContainerKind.INIT, share=Fraction(1, 10)),
        SliceRequest(container="train", mib=Mib(8192), cores=30),
        SliceRequest(container="eval", share=Fraction(1, 4), cards=2),
    )


def test_a_plain_limit_is_a_request_by_itself_spread_over_its_cards() -> None:
    assert slices(read(a_spec(gpu_mem="8k"))) == (
        SliceRequest(container="train", mib=Mib(8000), stated_mib=Mib(8000)),
    )
    assert slices(read(a_spec(gpu_mem="8k", gpu_slot="2"), cards="2")) == (
        SliceRequest(
            container="train", mib=Mib(4000), cards=2, stated_mib=Mib(8000), stated_slots=2
        ),
    )


def test_a_request_may_repeat_its_limit_in_either_spelling() -> None:
    for spelling in ("8000", "8k"):
        spec = a_spec(gpu_mem="8k", requests={MEM: spelling})

        assert slices(read(spec))[0].stated_mib == 8000


def test_an_admitted_pod_reads_as_what_it_asked() -> None:
    admitted = a_spec(gpu_mem="12k", gpu_slot="1", requests={MEM: "12k", SLOT: "1"})

    assert slices(read(admitted, fraction="0.5", granted="...", assignment="{}")) == (
        SliceRequest(
            container="train", share=Fraction(1, 2), stated_mib=Mib(12_000), stated_slots=1
        ),
    )


def test_what_holds_for_the_whole_pod_is_read_beside_the_slices() -> None:
    request = read(
        fraction="1",
        model="NVIDIA A100*, *H100*",
        placement="spread",
        rebalance="never",
        topology="any",
        isolation="none",
    )

    assert request == PodRequest(
        slices=(SliceRequest(container="train", share=Fraction(1)),),
        models=("NVIDIA-A100*", "*H100*"),
        strategy=Strategy.SPREAD,
        rebalance=Rebalance.NEVER,
        topology=Topology.ANY,
        isolation=(Isolation.NONE,),
    )


@pytest.mark.parametrize(
    ("text", "isolation", "kernel"),
    [
        ("kernel", (Isolation.KERNEL,), True),
        ("best", (Isolation.BEST,), False),
        ("none", (Isolation.NONE,), False),
        ("kernel, none", (Isolation.KERNEL, Isolation.NONE), False),
        ("kernel,kernel", (Isolation.KERNEL,), True),
        ("mps", (Isolation.MPS,), False),
        ("mps, interposer, best", (Isolation.MPS, Isolation.INTERPOSER, Isolation.BEST), False),
    ],
)
def test_what_may_enforce_a_share_is_read_in_order(
    text: str, isolation: tuple[Isolation, ...], kernel: bool
) -> None:
    request = read(fraction="1", isolation=text)

    assert request is not None
    assert request.isolation == isolation == wanted_isolation({names.ISOLATION: text})
    assert requires_kernel(isolation) is kernel


def test_without_a_word_the_best_is_wanted() -> None:
    assert wanted_isolation({}) == wanted_isolation({names.ISOLATION: "?"}) == (Isolation.BEST,)
    assert not requires_kernel(())


@pytest.mark.parametrize(
    ("text", "gang"),
    [("train-7/4", Gang("train-7", 4)), ("a/1", Gang("a", 1)), ("A_b.c/128", Gang("A_b.c", 128))],
)
def test_a_gang_has_a_name_and_a_size(text: str, gang: Gang) -> None:
    assert read(fraction="1", gang=text) is not None
    assert parse_gang({names.GANG: text}) == gang
    assert str(gang) == text


@pytest.mark.parametrize(
    "text",
    ["", "train", "/4", "train/", "train/0", "train/129", "train/04", "train/-1", "train/4/4",
     "-train/4", "train-/4", "a b/4", "x" * 64 + "/4", "train/four", "train/\u0664"],
)  # fmt: skip
def test_another_form_of_a_gang_is_refused_with_the_wanted_one(text: str) -> None:
    with pytest.raises(RequestError) as refused:
        read(fraction="1", gang=text)

    assert refused.value.field == names.GANG
    assert str(refused.value).partition("; it contains U+0664 ")[0] == (
        f"{names.GANG} is {text!r}; want NAME/SIZE, where SIZE is how many pods the gang has, "
        "from 1 to 128, e.g. 'train-7/4'"
    )


def test_a_gang_alone_asks_for_no_card() -> None:
    with pytest.raises(RequestError, match="a pod that asks for a share"):
        read(gang="train/4")


def test_how_much_a_container_may_use_is_said_beside_what_it_is_guaranteed() -> None:
    assert slices(read(fraction="0.25", **{"fraction-limit": "0.5"})) == (
        SliceRequest(container="train", share=Fraction(1, 4), limit_share=Fraction(1, 2)),
    )
    both = (a_spec("a"), a_spec("b"))
    found = slices(read(*both, memory="a=8Gi, b=1Gi", cards="a=2", **{"memory-limit": "a=16Gi"}))
    assert [(one.mib, one.limit_mib, one.cards) for one in found] == [
        (8192, 16384, 2),
        (1024, None, 1),
    ]
    (plain,) = slices(read(a_spec(gpu_mem="4096"), **{"memory-limit": "4Gi"}))
    assert (plain.mib, plain.limit_mib) == (4096, 4096)


ALL_KEYS = ", ".join(names.REQUEST_KEYS)
A, B = a_spec("a"), a_spec("b")
# What is asked, the refusal, and the containers if they are not just A.
REFUSED: dict[str, tuple[dict[str, str], str, *tuple[ContainerSpec, ...]]] = {
    "an unknown key": (
        {"fracton": "0.5"},
        f"annotation fracgpu.io/fracton is '0.5'; want one of {ALL_KEYS}; "
        "did you mean fracgpu.io/fraction?",
    ),
    "a key like none of ours": (
        {"zzz": "1"},
        f"annotation fracgpu.io/zzz is '1'; want one of {ALL_KEYS}",
    ),
    **{
        f"the resource {key} as an annotation, {text}": (
            {key: text},
            f"annotation fracgpu.io/{key} is '{text}'; want one of {ALL_KEYS}; it is a resource of "
            f'containers; write fracgpu.io/{meant}: "{value}"',
        )
        for key, text, meant, value in (
            ("gpu-mem", "8000", "memory", "8000Mi"),
            ("gpu-mem", "8k", "memory", "8000Mi"),
            ("gpu-mem", "8Gi", "memory", "8Gi"),
            ("gpu-count", "2", "cards", "2"),
        )
    },
    "fraction and memory of one container": (
        {"fraction": "0.5", "memory": "1Gi"},
        "fracgpu.io/fraction is '0.5'; want either fraction or memory for container 'a', not both",
    ),
    "fraction and memory of one container whose limit is written": (
        {"fraction": "0.5", "memory": "1Gi"},
        "fracgpu.io/fraction is '0.5'; want either fraction or memory for container 'a', not both",
        a_spec("a", gpu_mem="1024"),
    ),
    "a limit below what is guaranteed": (
        {"memory": "8Gi", "memory-limit": "4Gi"},
        "fracgpu.io/memory-limit of container 'a' is '4Gi'; "
        "want at least the 8192Mi that it requests",
    ),
    "a share below what is guaranteed": (
        {"fraction": "0.5", "fraction-limit": "0.25"},
        "fracgpu.io/fraction-limit of container 'a' is '0.25'; "
        "want at least the 0.5 that it requests",
    ),
    "more than a card": (
        {"fraction": "0.5", "fraction-limit": "1.5"},
        "fracgpu.io/fraction-limit is '1.5'; "
        "want a share of one card above 0 and at most 1, e.g. '0.5' or '50%'; "
        "write '1.5%' if percent was meant, or fracgpu.io/cards for several cards",
    ),
    "a limit in memory of a share": (
        {"fraction": "0.5", "memory-limit": "9Gi"},
        "fracgpu.io/memory-limit of container 'a' is '9Gi'; "
        "want fracgpu.io/fraction-limit, as it requests a fraction",
    ),
    "a limit as a share of memory": (
        {"memory": "8Gi", "fraction-limit": "1"},
        "fracgpu.io/fraction-limit of container 'a' is '1'; "
        "want fracgpu.io/memory-limit, as it requests memory",
    ),
    "both limits": (
        {"memory": "8Gi", "memory-limit": "9Gi", "fraction-limit": "1"},
        "fracgpu.io/fraction-limit of container 'a' is '1'; "
        "want no fracgpu.io/memory-limit as well",
    ),
    "a limit of nothing": (
        {"memory": "a=8Gi", "memory-limit": "b=9Gi"},
        "fracgpu.io/memory-limit is 'b=9Gi'; "
        "want a fracgpu.io/fraction or fracgpu.io/memory for container 'b' as well; "
        'add fracgpu.io/fraction: "1" for a whole card',
        A,
        B,
    ),
    "a limit with MPS": (
        {"memory": "8Gi", "memory-limit": "9Gi", "isolation": "mps"},
        "fracgpu.io/memory-limit is '9Gi'; want fracgpu.io/isolation: kernel, or best: "
        "what is borrowed is limited by driver or kernel alone",
    ),
    "a limit that nothing keeps": (
        {"fraction": "0.5", "fraction-limit": "1", "isolation": "none"},
        "fracgpu.io/fraction-limit is '1'; want fracgpu.io/isolation: kernel, or best: "
        "what is borrowed is limited by driver or kernel alone",
    ),
    "a container that is not there": (
        {"fraction": "aa=0.5"},
        "fracgpu.io/fraction is 'aa=0.5'; want names of this pod's containers: a, b; "
        "did you mean 'a'?",
        A,
        B,
    ),
    "a container twice": (
        {"fraction": "a=0.5,a=0.5"},
        "fracgpu.io/fraction is 'a=0.5,a=0.5'; want container 'a' only once",
        A,
        B,
    ),
    "a comma too many": (
        {"fraction": "a=0.5,"},
        "fracgpu.io/fraction is 'a=0.5,'; want one item, or pairs 'container=item, container=item'",
        A,
        B,
    ),
    "items without names": (
        {"fraction": "0.5,0.5"},
        "fracgpu.io/fraction is '0.5,0.5'; "
        "want one item, or pairs 'container=item, container=item'",
        A,
        B,
    ),
    "no item": (
        {"fraction": "a="},
        "fracgpu.io/fraction is 'a='; want one item, or pairs 'container=item, container=item'",
    ),
    "no share of that size": (
        {"cores": "0", "fraction": "1"},
        "fracgpu.io/cores is '0'; want percent of one card's compute, a whole number from 1 to "
        "100, e.g. '30'",
    ),
    "too many cards": (
        {"cards": "65", "fraction": "1"},
        "fracgpu.io/cards is '65'; want a whole number of cards from 1 to 64, e.g. '2'",
    ),
    "cores without memory": (
        {"cores": "b=30", "fraction": "1"},
        "fracgpu.io/cores is 'b=30'; want a fracgpu.io/fraction or fracgpu.io/memory for container "
        "'b' as well; add fracgpu.io/fraction: \"1\" for a whole card",
        A,
        B,
    ),
    "a model without a share": (
        {"model": "*A30*"},
        "fracgpu.io/model is '*A30*'; want a pod that asks for a share with fracgpu.io/fraction or "
        'fracgpu.io/memory; add fracgpu.io/fraction: "1" for a whole card',
    ),
    "an empty glob": (
        {"fraction": "1", "model": "*A30*,"},
        "fracgpu.io/model is '*A30*,'; want card models or globs, e.g. 'NVIDIA-A100*, *H100*'",
    ),
    "an unknown placement": (
        {"fraction": "1", "placement": "sprad"},
        "fracgpu.io/placement is 'sprad'; want one of pack, spread, least-waste, topology, "
        "load-aware; did you mean 'spread'?",
    ),
    "the word of another key": (
        {"fraction": "1", "topology": "none"},
        "fracgpu.io/topology is 'none'; want one of any, nvlink",
    ),
    "two that a node may each lack": (
        {"fraction": "1", "isolation": "kernel, mps"},
        "fracgpu.io/isolation is 'kernel, mps'; want one of these alone, or best or none at the "
        "end",
    ),
    "MPS for several cards": (
        {"fraction": "1", "cards": "2", "isolation": "mps"},
        "fracgpu.io/isolation is 'mps'; want one card for container 'a': MPS knows only one",
    ),
    "one isolation of two misspelt": (
        {"fraction": "1", "isolation": "kernel, non"},
        "fracgpu.io/isolation is 'kernel, non'; want one of best, kernel, mps, interposer, none; "
        "did you mean 'none'?",
    ),
    "another resource of ours": (
        {},
        "limits['fracgpu.io/gpu-count'] of container 'a' is '1'; want fracgpu.io/gpu-mem in whole "
        "MiB; use the annotation fracgpu.io/cards for several cards",
        a_spec("a", gpu_count="1"),
    ),
    "an annotation among the resources": (
        {},
        "limits['fracgpu.io/fraction'] of container 'a' is '500m'; want fracgpu.io/gpu-mem in "
        "whole MiB; fracgpu.io/fraction is an annotation of the pod",
        a_spec("a", fraction="500m"),
    ),
    "a slot without memory": (
        {},
        "limits['fracgpu.io/gpu-slot'] of container 'a' is '1'; want no slot without memory: the "
        "webhook writes it beside fracgpu.io/gpu-mem; ask with fracgpu.io/fraction or "
        "fracgpu.io/memory instead",
        a_spec("a", gpu_slot="1"),
    ),
    "no slot at all": (
        {},
        "limits['fracgpu.io/gpu-slot'] of container 'a' is '0'; want what the webhook writes; "
        "set fracgpu.io/gpu-mem instead",
        a_spec("a", gpu_mem="512", gpu_slot="0"),
    ),
    "a request without a limit": (
        {},
        "requests['fracgpu.io/gpu-mem'] of container 'a' is '512'; want the same amount in limits; "
        "set fracgpu.io/gpu-mem in limits alone",
        a_spec("a", requests={MEM: "512"}),
    ),
    "a request that is not its limit": (
        {},
        "requests['fracgpu.io/gpu-mem'] of container 'a' is '500'; want what its limits say, 512; "
        "leave the request out; Kubernetes copies the limit",
        a_spec("a", gpu_mem="512", requests={MEM: "500"}),
    ),
    "a limit in GiB": (
        {},
        "limits['fracgpu.io/gpu-mem'] of container 'a' is '8Gi'; want whole MiB above 0, e.g. "
        "'512'; the resource counts MiB, so write '8192'",
        a_spec("a", gpu_mem="8Gi"),
    ),
    "a limit that its cards cannot share evenly": (
        {"cards": "2"},
        "limits['fracgpu.io/gpu-mem'] of container 'a' is '1001'; want a number of MiB that "
        "divides evenly over its 2 cards; '1000' would do",
        a_spec("a", gpu_mem="1001"),
    ),
    "a limit that is less than a MiB on each of its cards": (
        {"cards": "3"},
        "limits['fracgpu.io/gpu-mem'] of container 'a' is '2'; want a number of MiB that divides "
        "evenly over its 3 cards; '3' would do",
        a_spec("a", gpu_mem="2"),
    ),
}


WORDS = [(key, word) for key, choice in CHOICES.items() for word in choice.language]


@pytest.mark.parametrize(("key", "word"), WORDS)
def test_each_word_of_the_language_is_honoured_or_refused_but_never_ignored(
    key: str, word: str
) -> None:
    offered = [choice.value for choice in CHOICES[key].offered]
    asks = {"fraction": "1", key.removeprefix("fracgpu.io/"): word}

    if word in offered:
        assert read(**asks) is not None
    else:
        wanted = f"one of {', '.join(offered)}" if len(offered) > 1 else f"'{offered[0]}'"
        assert refusal(**asks) == (
            f"{key} is '{word}'; want {wanted}; this release does not support it yet"
        )


@pytest.mark.parametrize("key", names.REQUEST_KEYS)
def test_every_key_is_read(key: str) -> None:
    with pytest.raises(RequestError):
        parse_request({names.FRACTION: "1", key: ""}, [a_spec("a")])


def test_nothing_is_offered_that_the_language_does_not_have() -> None:
    for choice in CHOICES.values():
        assert {word.value for word in choice.offered} <= set(choice.language)


@pytest.mark.parametrize("row", REFUSED.values(), ids=REFUSED.keys())
def test_nonsense_is_refused_in_these_words(
    row: tuple[dict[str, str], str, *tuple[ContainerSpec, ...]],
) -> None:
    asks, words, *specs = row

    assert refusal(*(specs or [A]), **asks) == words


def test_a_fraction_is_refused_without_a_container() -> None:
    with pytest.raises(RequestError, match="want a pod with at least one container"):
        parse_request({names.FRACTION: "0.5"}, [])


def test_reserved_keys_are_not_judged_here() -> None:
    assert read(granted="x", assignment="y", wired="z") is None


KEYS = st.sampled_from([*names.REQUEST_KEYS, *names.RESERVED_KEYS, "fracgpu.io/x", "fracgpu.io/"])
VALUES = st.one_of(
    st.text(),
    st.text(alphabet="abc=,.%0123456789 kMGi"),
    st.sampled_from(
        ["0.5", "a=0.5", "a=1,b=0.5", "8Gi", "b=8Gi", "30", "2", "any", "none", "pack"]
    ),
)
AMOUNTS = st.dictionaries(
    st.sampled_from([MEM, SLOT, names.GPU_COUNT, "cpu"]),
    st.sampled_from(["1", "2", "8k", "4096", "0", "8Gi", "x", ""]),
)
SPECS = st.lists(
    st.builds(
        ContainerSpec,
        name=st.sampled_from(["a", "b", "c"]),
        kind=st.sampled_from(ContainerKind),
        limits=AMOUNTS,
        requests=AMOUNTS,
    ),
    max_size=3,
    unique_by=lambda container: container.name,
)


@given(st.dictionaries(KEYS, VALUES), SPECS)
def test_whatever_stands_there_the_answer_is_a_sound_request_or_a_request_error(
    annotations: dict[str, str], specs: list[ContainerSpec]
) -> None:
    with contextlib.suppress(RequestError):
        request = parse_request(annotations, specs)
        if request is None:
            return
        assert request.slices
        for part in request.slices:
            assert (part.share is None) != (part.mib is None)
            assert 1 <= part.cards <= 64
            assert 0 <= part.cores <= 100
            assert part.container in {spec.name for spec in specs}


@given(st.dictionaries(KEYS, VALUES), SPECS)
def test_a_container_that_names_our_resources_never_passes_as_asking_for_nothing(
    annotations: dict[str, str], specs: list[ContainerSpec]
) -> None:
    named = {
        spec.name
        for spec in specs
        if any(key.startswith("fracgpu.io/") for key in (*spec.limits, *spec.requests))
    }
    with contextlib.suppress(RequestError):
        request = parse_request(annotations, specs)
        assert named <= {part.container for part in (request.slices if request else ())}
