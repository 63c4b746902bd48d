from collections.abc import Sequence

import pytest

from fracgpu.k8s.container import ContainerKind, ContainerSpec
from fracgpu.request.dialects import Options, PodForDialects, Translation
from tests.fracgpu.request.dialects.pods import Row, a_pod, a_spec, places, read, refusal
from tests.fracgpu.request.dialects.rows import ROWS

TURN_ON = "or have the dialect turned on (namespace label fracgpu.io/dialects={})"


def warnings(pod: PodForDialects, *enabled: str) -> list[str]:
    """Return the warnings of a pod that asks for nothing."""
    result = read(pod, *enabled)
    assert result == Translation(warnings=result.warnings)
    return list(result.warnings)


ONE_KEY = [
    (dialect, row)
    for dialect, rows in ROWS.items()
    for row in rows.values()
    if len([*row.limits, *row.annotations]) == 1 and row.options == Options() and not row.labels
    if not {"nvidia.com/gpu"} & row.limits.keys()  # which anybody may mean
]


def test_most_dialects_have_a_row_of_one_key() -> None:
    assert len({dialect for dialect, _ in ONE_KEY}) >= len(ROWS) - 2


@pytest.mark.parametrize(("dialect", "row"), ONE_KEY)
def test_one_key_of_a_dialect_that_is_off_is_answered_with_what_to_write(
    dialect: str, row: Row
) -> None:
    (key,) = [*row.limits, *row.annotations]
    words = ", ".join(f'fracgpu.io/{name}: "{text}"' for name, text in row.written.items())

    for enabled in (set[str](), {"gpushare", "kai"} - {dialect}):
        assert warnings(a_pod(row.limits, annotations=row.annotations), *enabled) == [
            f"{key} is not read here and gives no share of a card; write {words} in place of "
            f"{key}, {TURN_ON.format(dialect)}"
        ]


def test_all_keys_of_a_dialect_that_is_off_are_answered_in_one_sentence() -> None:
    pod = a_pod(
        {"nvidia.com/gpu": "2", "nvidia.com/gpumem": "3000", "nvidia.com/gpucores": "30"},
        ContainerSpec(name="side"),
    )

    assert warnings(pod) == [
        "nvidia.com/gpu, nvidia.com/gpucores, nvidia.com/gpumem are not read here and give no "
        'share of a card; write fracgpu.io/memory: "train=3000Mi", fracgpu.io/cores: "train=30", '
        'fracgpu.io/cards: "train=2" in place of nvidia.com/gpu, nvidia.com/gpucores, '
        f"nvidia.com/gpumem, {TURN_ON.format('hami')}"
    ]


@pytest.mark.parametrize(
    ("pod", "dialect", "sentence"),
    [
        pytest.param(
            a_pod(annotations={"gpu-fraction": "NaN"}),
            "",
            "gpu-fraction is not read here and gives no share of a card; write "
            f"fracgpu.io/fraction or fracgpu.io/memory instead, {TURN_ON.format('kai')}",
            id="what cannot be read in a dialect that is off",
        ),
        pytest.param(
            a_pod(annotations={"nvidia.com/gpumem": "3000"}),
            "hami",
            "annotation nvidia.com/gpumem has no effect there: HAMi reads it in a container's "
            'limits; write fracgpu.io/memory: "3000Mi" in place of nvidia.com/gpumem',
            id="a resource among the annotations",
        ),
        pytest.param(
            a_pod(annotations={"nvidia.com/gpu": "1"}),
            "",
            "annotation nvidia.com/gpu has no effect there: NVIDIA device plugin reads it in a "
            'container\'s limits; write fracgpu.io/fraction: "1" in place of nvidia.com/gpu',
            id="a shared resource is the plain plugin's",
        ),
        pytest.param(
            a_pod({"tensor-fusion.ai/vram-request": "4Gi"}),
            "tensor-fusion",
            places(
                "L(tensor-fusion.ai/vram-request) has no effect there: TensorFusion reads it among "
                'the pod\'s annotations; write fracgpu.io/memory: "4096Mi" in place of '
                "tensor-fusion.ai/vram-request"
            ),
            id="an annotation among the limits",
        ),
        pytest.param(
            a_pod(annotations={"aliyun.com/gpu-mem": "3GiB"}),
            "",
            "annotation aliyun.com/gpu-mem has no effect there: Alibaba gpushare reads it in a "
            "container's limits; write fracgpu.io/fraction or fracgpu.io/memory instead",
            id="a stray key that cannot be read",
        ),
    ],
)
def test_a_key_that_has_no_effect_is_answered_with_what_to_write_and_never_refused(
    pod: PodForDialects, dialect: str, sentence: str
) -> None:
    assert warnings(pod) == [sentence]
    if dialect:
        assert warnings(pod, dialect) == [sentence]


def test_memory_written_beside_a_card_but_in_the_wrong_place_is_answered() -> None:
    pod = a_pod(
        {"nvidia.com/gpu": "1"},
        annotations={"nvidia.com/gpumem": "3000", "nvidia.com/gpucores": "30"},
    )
    sentence = (
        "annotation nvidia.com/gpucores, annotation nvidia.com/gpumem have no effect there: HAMi "
        'reads them in a container\'s limits; write fracgpu.io/memory: "3000Mi", '
        'fracgpu.io/cores: "30" in place of nvidia.com/gpu, nvidia.com/gpucores, nvidia.com/gpumem'
    )

    assert warnings(pod) == [sentence]
    on = read(pod, "hami")
    assert on.warnings == (sentence,)
    assert on.origin == "train from hami: nvidia.com/gpu=1"


def test_a_stray_key_in_a_pod_without_containers_is_answered_all_the_same() -> None:
    pod = PodForDialects(annotations={"aliyun.com/gpu-mem": "3"})

    assert len(warnings(pod)) == 1


@pytest.mark.parametrize(
    ("pod", "enabled", "sentence"),
    [
        *(
            (
                a_pod({"aliyun.com/gpu-mem": "3", "nvidia.com/gpumem": "3000"}),
                enabled,
                "L(aliyun.com/gpu-mem) is '3'; want one dialect on one container, and "
                "'nvidia.com/gpumem' is there too; keep one of the two",
            )
            for enabled in (("gpushare", "hami"), ("gpushare",), ("hami",))
        ),
        (
            a_pod({"aliyun.com/gpu-mem": "3", "nvidia.com/gpu": "1"}),
            ("gpushare",),
            "L(aliyun.com/gpu-mem) is '3'; want one dialect on one container, and 'nvidia.com/gpu' "
            "is there too; keep one of the two",
        ),
        (
            a_pod({"aliyun.com/gpu-mem": "3"}, annotations={"gpu-fraction": "0.5"}),
            ("gpushare", "kai"),
            "container 'train' is 'gpushare: aliyun.com/gpu-mem=3; kai: gpu-fraction=0.5'; want "
            "one dialect on one container; keep one of the two",
        ),
    ],
)
def test_two_dialects_on_one_container_are_refused_by_name(
    pod: PodForDialects, enabled: Sequence[str], sentence: str
) -> None:
    assert refusal(pod, *enabled) == places(sentence)


def test_two_dialects_that_are_off_are_both_answered() -> None:
    assert len(warnings(a_pod({"aliyun.com/gpu-mem": "3", "nvidia.com/gpumem": "3000"}))) == 2


def test_two_dialects_on_two_containers_are_both_understood() -> None:
    pod = a_pod(
        {"aliyun.com/gpu-mem": "3"},
        a_spec({"volcano.sh/vgpu-number": "1"}, name="eval"),
    )

    result = read(pod, "gpushare", "volcano")

    assert result.annotations == {
        "fracgpu.io/fraction": "eval=1",
        "fracgpu.io/memory": "train=3072Mi",
    }
    assert result.removals == {
        "train": ("aliyun.com/gpu-mem",),
        "eval": ("volcano.sh/vgpu-number",),
    }


@pytest.mark.parametrize(
    ("requests", "sentence"),
    [
        (
            {"aliyun.com/gpu-mem": "2"},
            "requests['aliyun.com/gpu-mem'] of container 'train' is '2'; want what its limits say, "
            "3; leave the request out; Kubernetes copies the limit",
        ),
        (
            {"aliyun.com/gpu-count": "1"},
            "requests['aliyun.com/gpu-count'] of container 'train' is '1'; want what its limits "
            "say; they lack it; leave the request out; Kubernetes copies the limit",
        ),
    ],
)
def test_a_request_that_is_not_its_limit_is_refused(
    requests: dict[str, str], sentence: str
) -> None:
    spec = ContainerSpec(name="train", limits={"aliyun.com/gpu-mem": "3"}, requests=requests)

    assert refusal(PodForDialects(containers=(spec,)), "gpushare") == sentence


def test_resources_without_requests_are_taken_out_of_the_limits_alone() -> None:
    spec = ContainerSpec(name="train", limits={"aliyun.com/gpu-mem": "3"})

    result = read(PodForDialects(containers=(spec,)), "gpushare")

    assert result.removals == {"train": ("aliyun.com/gpu-mem",)}


def test_containers_of_every_kind_are_read() -> None:
    specs = tuple(
        ContainerSpec(name=kind.value, kind=kind, limits={"aliyun.com/gpu-mem": "1"})
        for kind in (ContainerKind.INIT, ContainerKind.SIDECAR, ContainerKind.APP)
    )

    result = read(PodForDialects(containers=specs), "gpushare")

    assert result.request is not None
    assert [(part.container, part.kind) for part in result.request.slices] == [
        (kind.value, kind)
        for kind in (ContainerKind.INIT, ContainerKind.SIDECAR, ContainerKind.APP)
    ]


def test_a_hostile_value_does_not_flood_the_origin() -> None:
    pod = a_pod(
        annotations={"gpu-memory": "0" * 12 + "512", "gpu-fraction-num-devices": "0" * 14 + "1"}
    )
    assert read(pod, "kai").origin == (
        "train from kai: gpu-memory=000000000000512, gpu-fraction-num-devices=000000000000001"
    )
    long = a_pod(annotations={"nvidia.cdi.k8s.io/train.gpu-memory.request": "1" * 90})
    assert len(refusal(long, "kai")) < 400
