import contextlib
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from fracgpu import names
from fracgpu.errors import RequestError
from fracgpu.k8s.container import ContainerKind, ContainerSpec
from fracgpu.request.dialects import NAMES, Options, PodForDialects, Translation, translate_request
from fracgpu.request.dialects.registry import DIALECTS, annotation_owners, limit_owners
from fracgpu.request.need import PodRequest, SliceRequest
from fracgpu.units import Mib
from tests.fracgpu.request.dialects.pods import Row, a_pod, a_spec, check, places, read, refusal
from tests.fracgpu.request.dialects.rows import EVERY_ROW
from tests.support.examples import at_least

ALL = frozenset(NAMES)
GPUSHARE = {"aliyun.com/gpu-mem": "3"}


def edited(pod: PodForDialects, result: Translation) -> PodForDialects:
    """Return the pod after the changes, with the limits that the webhook writes for a grant."""
    containers = []
    for spec in pod.containers:
        gone = result.removals.get(spec.name, ())
        kept = {key: text for key, text in spec.limits.items() if key not in gone}
        containers.append(structs.replace(spec, limits=kept, requests=kept))
    annotations = {**pod.annotations, **result.annotations}
    return structs.replace(pod, containers=tuple(containers), annotations=annotations)


def test_a_pod_without_foreign_keys_is_read_in_our_language_without_a_word() -> None:
    asking = a_pod(annotations={"fracgpu.io/memory": "8Gi", "team": "x"})

    assert read(a_pod({"cpu": "1"}), *NAMES) == Translation()
    assert read(PodForDialects(), *NAMES) == Translation()
    assert read(asking, *NAMES) == Translation(
        request=PodRequest(slices=(SliceRequest(container="train", mib=Mib(8192)),))
    )


def test_our_own_mistakes_are_refused_as_ever() -> None:
    assert refusal(a_pod(annotations={"fracgpu.io/fraction": "2"})).startswith(
        "fracgpu.io/fraction is '2'; want a share of one card"
    )


@EVERY_ROW
def test_every_form_is_understood(dialect: str, row: Row) -> None:
    check(dialect, row)


@EVERY_ROW
def test_what_was_taken_over_is_taken_over_again_without_an_edit(dialect: str, row: Row) -> None:
    pod = a_pod(row.limits, annotations=row.annotations, labels=row.labels)
    first = read(pod, dialect, options=row.options)

    second = read(edited(pod, first), dialect, options=row.options)

    assert second.request == first.request
    assert second.annotations == {}
    assert second.removals == {}


@EVERY_ROW
def test_an_amount_that_is_no_number_is_refused_or_ignored_by_the_name_of_its_key(
    dialect: str, row: Row
) -> None:
    for key in [key for key, text in row.limits.items() if text[0].isdigit()]:
        pod = a_pod({**row.limits, key: "NaN"}, annotations=row.annotations, labels=row.labels)

        said = refusal(pod, dialect, options=row.options)

        assert said.startswith(places(f"L({key}) is 'NaN'; want "))
    for key in [key for key, text in row.annotations.items() if text[0].isdigit()]:
        pod = a_pod(row.limits, annotations={**row.annotations, key: "NaN"}, labels=row.labels)
        named = f"annotation {key} is 'NaN'"

        if any(warning.startswith(f"annotation {key} is ") for warning in row.warnings):
            with contextlib.suppress(RequestError):
                warnings = read(pod, dialect, options=row.options).warnings
                assert [one for one in warnings if one.startswith(f"{named}, which is ignored")]
        else:
            said = refusal(pod, dialect, options=row.options)
            assert said.startswith(f"{named}; want ")


def test_the_limits_that_a_grant_writes_do_not_contradict_the_dialect() -> None:
    granted = a_pod(
        {names.GPU_MEM: "12000", names.GPU_SLOT: "1"},
        annotations={"gpu-fraction": "0.5", "fracgpu.io/fraction": "0.5"},
    )

    result = read(granted, "kai")

    assert result.annotations == {}
    assert result.request is not None
    assert result.request.slices[0].stated_mib == 12000


def test_our_keys_for_the_pod_stand_beside_a_dialect() -> None:
    pod = a_pod(
        GPUSHARE, annotations={"fracgpu.io/rebalance": "never", "fracgpu.io/model": "*A100*"}
    )

    result = read(pod, "gpushare")

    assert result.annotations == {"fracgpu.io/memory": "3072Mi"}
    assert result.request is not None
    assert result.request.models == ("*A100*",)
    assert result.request.rebalance is not None


def test_our_keys_for_another_container_are_kept_and_joined() -> None:
    pod = a_pod(
        {},
        a_spec(GPUSHARE, name="eval"),
        annotations={"fracgpu.io/memory": "8Gi", "fracgpu.io/cores": "train=30"},
    )

    result = read(pod, "gpushare")

    assert result.annotations == {"fracgpu.io/memory": "train=8Gi, eval=3072Mi"}
    assert result.request is not None
    assert result.request.slices == (
        SliceRequest(container="train", mib=Mib(8192), cores=30),
        SliceRequest(container="eval", mib=Mib(3072)),
    )


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("fracgpu.io/fraction", "0.5"),
        ("fracgpu.io/memory", "train=8Gi"),
        ("fracgpu.io/cores", "30"),
        ("fracgpu.io/cards", "2"),
    ],
)
def test_our_keys_beside_a_dialect_on_one_container_are_refused_by_name(
    key: str, text: str
) -> None:
    pod = a_pod(GPUSHARE, ContainerSpec(name="side"), annotations={key: text})

    assert refusal(pod, "gpushare") == (
        f"{key} is '{text}'; want no request for container 'train' beside gpushare: "
        "aliyun.com/gpu-mem=3; keep one of the two"
    )


def test_our_limit_beside_a_dialect_on_one_container_is_refused_by_name() -> None:
    pod = a_pod({**GPUSHARE, names.GPU_MEM: "3072"})

    assert refusal(pod, "gpushare") == places(
        "L(fracgpu.io/gpu-mem) is '3072'; want no request of our own beside gpushare: "
        "aliyun.com/gpu-mem=3; keep one of the two"
    )


@pytest.mark.parametrize(
    ("key", "own", "said"),
    [
        ("fracgpu.io/model", "*H100*", "*A100*"),
        ("fracgpu.io/placement", "pack", "spread"),
    ],
)
def test_our_key_for_the_pod_may_only_say_what_the_dialect_says(
    key: str, own: str, said: str
) -> None:
    foreign = {
        "nvidia.com/use-gputype": "A100",
        "hami.io/gpu-scheduler-policy": "spread",
    }
    pod = a_pod({"nvidia.com/gpumem": "10"}, annotations={**foreign, key: own})

    assert refusal(pod, "hami") == (
        f"{key} is '{own}'; want '{said}', as hami's annotations say; keep one of the two"
    )
    agreeing = structs.replace(pod, annotations={**foreign, key: said})
    assert key not in read(agreeing, "hami").annotations


@pytest.mark.parametrize("text", ["train=1Gi,,", "trian=1Gi", "eval=1Gi, eval=2Gi", "1Gi, 2Gi"])
def test_our_annotation_that_cannot_be_split_is_refused(text: str) -> None:
    pod = a_pod(GPUSHARE, ContainerSpec(name="eval"), annotations={"fracgpu.io/memory": text})

    assert refusal(pod, "gpushare") == (
        f"fracgpu.io/memory is '{text}'; want one item, or pairs 'container=item, container=item' "
        "of this pod's containers, each once"
    )


@pytest.mark.parametrize(
    "key",
    ["nvidia.com/gpu", "amd.com/gpu", "nvidia.com/mig-1g.5gb", "nvidia.com/gpumem"],
)
@pytest.mark.parametrize(
    ("own", "annotations", "limits"),
    [
        ("fracgpu.io/fraction", {"fracgpu.io/fraction": "0.5"}, {}),
        ("fracgpu.io/memory", {"fracgpu.io/memory": "8Gi"}, {}),
        ("fracgpu.io/gpu-mem", {}, {"fracgpu.io/gpu-mem": "8192"}),
    ],
)
def test_what_no_shared_node_offers_is_refused_beside_a_share(
    key: str, own: str, annotations: dict[str, str], limits: dict[str, str]
) -> None:
    pod = a_pod({**limits, key: "1"}, annotations=annotations)

    assert refusal(pod) == places(
        f"L({key}) is '1'; want it left out: {own} asks for a share of a card, and no node with "
        'shared cards offers both; write fracgpu.io/fraction: "1" for a whole card'
    )


def test_other_resources_stand_beside_a_share() -> None:
    pod = a_pod({"cpu": "1", "vendor.io/nic": "1"}, annotations={"fracgpu.io/fraction": "0.5"})

    assert read(pod).request is not None


ORDERS = ["nvidia.cdi.k8s.io/container.train", "nvidia.cdi.k8s.io/train.gpus.devices"]


@pytest.mark.parametrize("key", ORDERS)
def test_an_order_to_the_runtime_beside_a_request_is_refused(key: str) -> None:
    for annotations in ({"fracgpu.io/fraction": "0.5"}, {"gpu-fraction": "0.5"}):
        pod = a_pod(annotations={**annotations, key: "nvidia.com/gpu=0"})

        assert refusal(pod, "kai") == (
            f"annotation {key} is 'nvidia.com/gpu=0'; want no card injected by the "
            "container runtime beside a request: FracGPU chooses the card; leave it out"
        )


@pytest.mark.parametrize("key", ORDERS)
def test_an_order_to_the_runtime_alone_is_warned_of(key: str) -> None:
    assert read(a_pod(annotations={key: "nvidia.com/gpu=0"})) == Translation(
        warnings=(
            f"annotation {key} injects cards that FracGPU does not account for; write "
            "fracgpu.io/fraction or fracgpu.io/memory instead",
        )
    )


OURS = (*names.REQUEST_KEYS, names.GPU_MEM, names.GPU_SLOT)
LIMITS = {dialect.name: sorted(dialect.limits.exact) for dialect in DIALECTS} | {
    "nos": ["nvidia.com/gpu-10gb"]
}
ANNOTATIONS = {dialect.name: sorted(dialect.annotations.exact) for dialect in DIALECTS}
ANNOTATIONS["kai"] += [f"nvidia.cdi.k8s.io/a.gpu-memory.{end}" for end in ("request", "limit")]
ANNOTATIONS["elastic-gpu"] += ["elasticgpu.io/egpuc-a"]
TEXTS = st.sampled_from(
    [*["1", "2", "4", "50", "100", "8k"] * 3, "0.5", "4Gi", "8Gi", "a", "a=1", "b=0.5", "spread"]
)
KINDS = st.sampled_from([*[ContainerKind.APP] * 3, *ContainerKind])


def _few(keys: Sequence[str]) -> st.SearchStrategy[dict[str, str]]:
    return st.dictionaries(st.sampled_from(sorted(keys)), TEXTS, min_size=1, max_size=2)


@st.composite
def pods(draw: st.DrawFn) -> PodForDialects:
    """Return pods that mostly have keys of one dialect in the right place, some of them valid."""
    rows = draw(
        st.sampled_from([*([dialect] for dialect in DIALECTS), [*DIALECTS[1:3]], [*DIALECTS[:2]]])
    )
    limits = [key for dialect in rows for key in LIMITS[dialect.name]]
    annotations = [key for dialect in rows for key in ANNOTATIONS[dialect.name]] or limits
    stray = draw(st.sampled_from([[], [], limits, list(OURS)]))
    specs = []
    for name in draw(st.sampled_from(["", "a", "a", "a", "ab"])):
        mine = draw(_few(limits or annotations))
        requests = draw(st.sampled_from([mine, mine, {}]))
        specs.append(ContainerSpec(name=name, kind=draw(KINDS), limits=mine, requests=requests))
    drawn = draw(_few([*annotations, *stray]) if limits == [] or stray else st.just({}))
    labels = draw(st.sampled_from([{}, {"aliyun.com/gpu-count": "2"}]))
    return PodForDialects(containers=tuple(specs), annotations=drawn, labels=labels)


@settings(max_examples=at_least(100))
@given(pods(), st.sampled_from([ALL, ALL, ALL, frozenset[str](), frozenset({"kai"})]))
def test_no_pod_gets_anything_but_an_understanding_or_a_refusal(
    pod: PodForDialects, enabled: frozenset[str]
) -> None:
    with contextlib.suppress(RequestError):
        first = translate_request(pod, enabled=enabled, options=Options())
        second = translate_request(edited(pod, first), enabled=enabled, options=Options())
        assert (second.request, second.annotations) == (first.request, {})


KEYS = sorted({key for table in (LIMITS, ANNOTATIONS) for own in table.values() for key in own})


@given(st.sampled_from(KEYS), st.text(), st.booleans())
def test_no_text_raises_anything_but_a_refusal(key: str, text: str, limit: bool) -> None:
    pod = a_pod({key: text}) if limit else a_pod(annotations={key: text})

    with contextlib.suppress(RequestError):
        read(pod, *NAMES)
    assert read(pod).request is None


def nobodys(key: str) -> bool:
    """Report whether no dialect owns a generated key; some generators know our constants."""
    return not (limit_owners(key) or annotation_owners(key) or key.startswith(names.PREFIX))


UNKNOWN = st.dictionaries(st.text().filter(nobodys), st.text())


@given(UNKNOWN, UNKNOWN)
def test_keys_that_nobody_knows_ask_for_nothing(
    limits: dict[str, str], annotations: dict[str, str]
) -> None:
    assert read(a_pod(limits, annotations=annotations), *NAMES) == Translation()
