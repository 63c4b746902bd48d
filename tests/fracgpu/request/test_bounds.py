"""Keys, names and lists are bounded before they are parsed."""

import json

import pytest

from fracgpu import names
from fracgpu.errors import RequestError
from fracgpu.globs import MAX_GLOB_CHARS
from fracgpu.k8s.container import ContainerSpec
from fracgpu.request.bounds import MAX_CONTAINERS, MAX_GLOBS, MAX_VALUE_CHARS
from fracgpu.request.language import parse_request, refuse_beyond
from fracgpu.state.pod_info import decode_pod_info
from tests.support.work import counted_lines

TRAIN = ContainerSpec(name="train")


@pytest.mark.parametrize(
    ("annotations", "containers", "said"),
    [
        (
            {names.FRACTION: "0.5"},
            [ContainerSpec(name=f"c{n}") for n in range(MAX_CONTAINERS + 1)],
            "the pod is '129 containers'; want at most 128 containers in a pod that asks for a "
            "share of a card",
        ),
        (
            {names.FRACTION: "0.5"},
            [ContainerSpec(name="x" * 64)],
            f"the name of a container is '{'x' * 64}'; want at most 63 characters",
        ),
        (
            {names.CORES: "1" * (MAX_VALUE_CHARS + 1)},
            [TRAIN],
            f"fracgpu.io/cores is '{'1' * 71}…'; want at most 16384 characters",
        ),
        (
            {names.FRACTION: "0.5", names.MODEL: ",".join(["*"] * (MAX_GLOBS + 1))},
            [TRAIN],
            f"fracgpu.io/model is '{'*,' * 32}*'; want at most 32 models or globs of at most 96 "
            "characters",
        ),
        (
            {names.FRACTION: "0.5", names.MODEL: "[" * (MAX_GLOB_CHARS + 1)},
            [TRAIN],
            f"fracgpu.io/model is '{'[' * 71}…'; want at most 32 models or globs of at most 96 "
            "characters",
        ),
        (
            {names.FRACTION: "0.5", names.MODEL: ",".join(["B" * 96, *["*A" * 26] * 20])},
            [TRAIN],
            f"fracgpu.io/model is '{'B' * 71}…'; want globs of at most 1024 characters together, "
            "not 1040; models named in full do not count",
        ),
    ],
)
def test_what_is_too_much_is_refused_in_these_words(
    annotations: dict[str, str], containers: list[ContainerSpec], said: str
) -> None:
    with pytest.raises(RequestError) as refused:
        parse_request(annotations, containers)

    assert str(refused.value) == said


def test_a_pod_that_asks_for_nothing_may_have_as_much_as_it_likes() -> None:
    containers = [ContainerSpec(name="x" * 300)] * 1000

    assert parse_request({"other.example/key": "x" * 300_000}, containers) is None


def test_as_much_as_is_read_is_no_fault() -> None:
    containers = [ContainerSpec(name=f"{n:0>63}") for n in range(MAX_CONTAINERS)]

    refuse_beyond({names.MODEL: "x" * MAX_VALUE_CHARS}, containers)


@pytest.mark.parametrize("text", ["[" * 250_000, "*a," * 80_000, "9" * 250_000, "c=0.5," * 40_000])
@pytest.mark.parametrize("key", [names.MODEL, names.FRACTION])
def test_a_hostile_pod_that_went_past_the_webhook_holds_up_no_reader(key: str, text: str) -> None:
    """The scheduler parses every pod of the cluster, also in namespaces the webhook ignores."""
    metadata = {"name": "p", "annotations": {names.MEMORY: "1Gi", key: text}}
    body = json.dumps({"metadata": metadata, "spec": {"containers": [{"name": "c"}]}}).encode()

    with counted_lines() as lines:
        pod = decode_pod_info(body)

    assert lines.count < 1000
    assert pod.need is None
    assert pod.need_problem.startswith(f"{key} is ")
    assert pod.need_problem.endswith("want at most 16384 characters"), "it is not parsed at all"
    assert len(pod.need_problem.encode()) <= 1000
