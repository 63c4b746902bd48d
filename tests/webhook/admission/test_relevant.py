from collections.abc import Iterator
from itertools import product
from typing import Final

import pytest

from fracgpu.request.dialects.dialect import Dialect
from fracgpu.request.dialects.registry import DIALECTS
from fracgpu.request.grant_note import NO_SEAL
from tests.webhook.builders import CLASSES, RULES, Json, a_container, a_pod, parsed
from webhook.admission import relevant
from webhook.admission.context import DecisionContext
from webhook.admission.mutation import decide_create
from webhook.admission.relevant import relevant_labels, relevant_parts

KEYS: Final = sorted(
    {
        "cpu",
        "example.com/state",
        "kubernetes.io/limit-ranger",
        "fracgpu.io/memory",
        "fracgpu.io/gpu-mem",
        "fracgpu.io/granted",
        "fracgpu.io/wired",
        "fracgpu.io/nope",
        "Fracgpu.io/memory",
        "fracgpu.io/" + "x" * 400,
        "x" * 400,
        "nvidia.com/mig-1g.5gb",
        "amd.com/gpu",
        "nvidia.cdi.k8s.io/container.train",
        "nvidia.cdi.k8s.io/train.gpus.devices",
        "nvidia.cdi.k8s.io/train.gpu-memory.request",
        *(key for dialect in DIALECTS for key in (*dialect.limits.exact, *dialect.labels)),
        *(key for dialect in DIALECTS for key in dialect.annotations.exact),
        *(f"{prefix}x" for dialect in DIALECTS for prefix in dialect.family),
    }
)
ALL: Final = {"fracgpu.io/dialects": "all", "kubernetes.io/metadata.name": "ml"}

# Annotations, and limits of the container, with which other keys may or may not go together.
REQUESTS: Final[dict[str, tuple[Json, Json]]] = {
    "none": ({}, {}),
    "ours": ({"fracgpu.io/fraction": "0.5"}, {}),
    "kai": ({"gpu-fraction": "0.5"}, {}),
    "hami": ({}, {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "8000"}),
    "gpushare": ({}, {"aliyun.com/gpu-mem": "8"}),
    "koordinator": ({}, {"koordinator.sh/gpu": "50"}),
    "tensor-fusion": ({"tensor-fusion.ai/vram-request": "8Gi"}, {}),
}


def variants(annotations: Json, limits: Json) -> Iterator[Json]:
    """Yield pods with a request, and one more key in one place."""
    for key, (place, text) in product(
        KEYS, (("annotations", "1"), ("labels", "ignore"), ("limits", "1"))
    ):
        held = {"annotations": {**annotations}, "labels": {}, "limits": {**limits}}
        held[place][key] = text
        pod = a_pod(a_container(resources={"limits": held["limits"]}))
        pod["metadata"] |= {name: held[name] for name in ("annotations", "labels")}
        yield pod


@pytest.mark.parametrize("labels", [{}, ALL], ids=["no dialect", "all dialects"])
@pytest.mark.parametrize("request_of", REQUESTS)
def test_the_rules_say_the_same_of_the_whole_pod_as_of_its_relevant_parts(
    request_of: str, labels: dict[str, str]
) -> None:
    for body in variants(*REQUESTS[request_of]):
        pod = parsed(body)

        whole = decide_create(
            pod,
            DecisionContext(classes=CLASSES, config=RULES, namespace_labels=labels, seal=NO_SEAL),
        )

        assert whole == decide_create(
            relevant_parts(pod),
            DecisionContext(
                classes=CLASSES,
                config=RULES,
                namespace_labels=relevant_labels(labels),
                seal=NO_SEAL,
            ),
        ), body


@pytest.mark.parametrize("value", ["all", "void", None])
@pytest.mark.parametrize("name", ["NVIDIA_VISIBLE_DEVICES", "HOME"])
def test_the_rules_say_the_same_of_any_environment(name: str, value: str | None) -> None:
    variable = {"name": name, "value": value}
    for env in (None, [], [variable], [{"name": "A"}, variable]):
        pod = parsed(a_pod(a_container("a", env=env), a_container("b", env=env), fraction="a=0.5"))

        whole = decide_create(
            pod, DecisionContext(classes=CLASSES, config=RULES, namespace_labels={}, seal=NO_SEAL)
        )

        assert whole == decide_create(
            relevant_parts(pod),
            DecisionContext(classes=CLASSES, config=RULES, namespace_labels={}, seal=NO_SEAL),
        )


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
def test_every_key_of_a_dialect_is_relevant_where_the_dialect_reads_it(dialect: Dialect) -> None:
    read = (*dialect.limits.exact, *dialect.annotations.exact)
    noted, labels = dict.fromkeys(read, "1"), dict.fromkeys(dialect.labels, "1")
    pod = a_pod(a_container(resources={"limits": noted}))
    pod["metadata"] |= {"annotations": noted, "labels": labels}

    kept = relevant_parts(parsed(pod))

    assert kept.annotations == kept.containers[0].amounts[0] == noted
    assert kept.metadata.labels == labels


def test_a_pod_with_and_one_without_metadata_stay_apart() -> None:
    bare = {"spec": a_pod()["spec"]}

    assert relevant_parts(parsed(bare)).metadata is parsed(bare).metadata
    assert relevant_parts(parsed({**bare, "metadata": {}})).metadata is not parsed(bare).metadata


def test_ten_thousand_labels_are_looked_at_without_a_cache() -> None:
    body = a_pod()
    body["metadata"]["labels"] = {f"example.com/{number}": "" for number in range(10_000)}
    before = relevant._known.cache_info()

    assert relevant_parts(parsed(body)).metadata.labels == {}
    assert relevant._known.cache_info() == before
