"""Other systems' pods where their dialect is enabled: what our own words for them would become."""

import copy
import json
from dataclasses import replace
from typing import Final

import pytest

from fracgpu.request.dialects import NAMES, DialectSettings, MemoryUnit, Options
from fracgpu.request.need import PodNeed
from fracgpu.state.pod_info import decode_pod_info
from tests.fracgpu.request.dialects.pods import Row
from tests.fracgpu.request.dialects.rows import EVERY_ROW, ROWS
from tests.fracgpu.request.dialects.systems import test_gpushare as gpushare
from tests.webhook.builders import (
    CLASSES,
    H100S,
    RULES,
    Json,
    a_container,
    a_pod,
    as_sent,
    denied,
    judged,
    patched,
    stored,
    worded,
)
from webhook.admission.verdict import Allowed, Denied, Patched

# With these no row asks for a model that the cluster lacks, so none may be refused.
_ROWS_MODELS: Final = frozenset({"NVIDIA-A10", "NVIDIA-A100-SXM4-80GB", "Tesla-V100-SXM2-32GB"})
EVERY_MODEL: Final = tuple(
    replace(kind, models=kind.models | _ROWS_MODELS) if kind is H100S else kind for kind in CLASSES
)

ONE_OF_EACH: Final = pytest.mark.parametrize(
    ("dialect", "row"),
    [
        pytest.param(dialect, next(iter(rows.values())), id=dialect)
        for dialect, rows in ROWS.items()
    ],
)


def of(row: Row) -> Json:
    """Return the pod as the other system's user writes it."""
    resources = {"limits": dict(row.limits), "requests": dict(row.limits)}
    pod = a_pod(a_container(resources=resources) if row.limits else a_container())
    for field, found in (("annotations", row.annotations), ("labels", row.labels)):
        if found:
            pod["metadata"][field] = dict(found)
    return pod


def in_our_words(row: Row) -> Json:
    """Return a pod that asks the same of us, beside what the other system still reads."""
    pod = a_pod(also=row.written)
    pod["metadata"]["annotations"] |= row.annotations
    if row.labels:
        pod["metadata"]["labels"] = dict(row.labels)
    return pod


def on(dialect: str) -> dict[str, str]:
    return {"fracgpu.io/dialects": dialect}


def test_there_is_a_row_for_every_dialect() -> None:
    assert set(ROWS) == set(NAMES)


@EVERY_ROW
def test_a_foreign_pod_becomes_what_our_own_words_become(dialect: str, row: Row) -> None:
    rules = replace(RULES, dialects=DialectSettings(options=row.options))
    ours = judged(in_our_words(row), EVERY_MODEL)

    outcome = judged(of(row), EVERY_MODEL, labels=on(dialect), rules=rules)

    assert isinstance(ours, Patched)
    assert isinstance(outcome, Patched)
    assert outcome.dialect == dialect
    found, wanted = (
        worded(stored(pod, made)) for pod, made in ((of(row), outcome), (in_our_words(row), ours))
    )
    wanted["metadata"]["annotations"]["fracgpu.io/granted"] += (
        f"; in other words: train from {dialect}: {row.raw}"
    )
    wanted["metadata"]["labels"]["fracgpu.io/granted"] = "translated"
    assert found == wanted
    again = judged(stored(of(row), outcome), EVERY_MODEL, labels=on(dialect), rules=rules)
    assert isinstance(again, Allowed)
    # Limits are taken away, and with them all that makes it another system's pod. Where only
    # annotations do, they stay, and so does what is said of those that mean nothing here.
    assert again.warnings == (() if row.limits else row.warnings)


def with_proxy(pod: Json, place: int, **notes: str) -> Json:
    """Return the pod with a container that a service mesh's webhook has put there."""
    found = copy.deepcopy(pod)
    found["spec"]["containers"].insert(place, a_container("proxy"))
    annotations = {f"kubectl.kubernetes.io/{key}": text for key, text in notes.items()}
    found["metadata"]["annotations"] = {**found["metadata"].get("annotations", {}), **annotations}
    return found


def need_of(pod: Json) -> PodNeed | None:
    return decode_pod_info(json.dumps(pod).encode()).need


@pytest.mark.parametrize("place", [0, 1])
@EVERY_ROW
def test_a_service_mesh_may_be_called_before_us_or_after_us(
    dialect: str, row: Row, place: int
) -> None:
    """Called first, it may name the pod's own container as the default, for kubectl."""
    rules = replace(RULES, dialects=DialectSettings(options=row.options))

    def admitted(pod: Json) -> Json:
        outcome = judged(pod, EVERY_MODEL, labels=on(dialect), rules=rules)
        assert not isinstance(outcome, Denied)
        return stored(pod, outcome)

    alone = admitted(of(row))
    after_us = admitted(with_proxy(alone, place))
    before_us = admitted(with_proxy(of(row), place, **{"default-container": "train"}))
    not_named = admitted(with_proxy(as_sent(of(row)), place))

    assert need_of(alone) is not None
    for meshed in (after_us, before_us, not_named):
        assert need_of(meshed) == need_of(alone)
        assert admitted(meshed) == meshed


@ONE_OF_EACH
def test_of_each_dialect_a_pod_is_taken_over_by_a_namespace_or_by_the_cluster(
    dialect: str, row: Row
) -> None:
    settings = DialectSettings(dialects=frozenset({dialect}), options=row.options)

    by_cluster = judged(of(row), rules=replace(RULES, dialects=settings))
    by_namespace = judged(of(row), labels=on(dialect))

    assert isinstance(by_cluster, Patched)
    assert isinstance(by_namespace, Patched)
    assert stored(of(row), by_cluster) == stored(of(row), by_namespace)


@ONE_OF_EACH
def test_elsewhere_the_pod_passes_as_it_is(dialect: str, row: Row) -> None:
    outcome = judged(of(row))

    assert isinstance(outcome, Allowed)
    plain = row.limits.keys() == {"nvidia.com/gpu"}
    assert len(outcome.warnings) == (0 if plain else 1)


def test_the_unit_of_gpushare_is_the_administrators() -> None:
    settings = DialectSettings(
        dialects=frozenset({"gpushare"}), options=Options(gpushare_unit=MemoryUnit.MIB)
    )

    outcome = patched(
        judged(of(gpushare.ROWS["gib by default"]), rules=replace(RULES, dialects=settings))
    )

    assert outcome.granted.startswith("train: 3 MiB on 1 card; in other words: ")


def test_a_label_that_names_no_dialect_is_warned_of() -> None:
    outcome = patched(judged(a_pod(memory="1Gi"), labels=on("gpushar")))

    assert "did you mean 'gpushare'?" in outcome.warnings[0]


def test_a_grant_that_only_pretends_to_come_from_a_dialect_still_has_to_be_true() -> None:
    forged = "train: 1 MiB on 1 card; in other words: train from gpushare: aliyun.com/gpu-mem=4"

    outcome = denied(judged(a_pod(memory="1Gi", granted=forged)))

    assert outcome.message.startswith(f"fracgpu.io/granted is '{forged[:60]}")


def kais_own() -> Json:
    pod = a_pod(spec={"schedulerName": "kai-scheduler"})
    pod["metadata"]["annotations"] = {"gpu-fraction": "0.5"}
    return pod


def test_kais_own_pods_are_taken_over_where_a_setting_says_so() -> None:
    settings = DialectSettings(options=Options(kai_runs=False))
    rules = replace(RULES, dialects=settings)

    outcome = patched(judged(kais_own(), labels=on("kai"), rules=rules))

    assert stored(kais_own(), outcome)["spec"]["schedulerName"] == "fracgpu-scheduler"
    assert outcome.warnings == (
        "spec.schedulerName was 'kai-scheduler', which does not know FracGPU's cards; it is "
        "fracgpu-scheduler now, so that scheduler's queues and groups do not apply",
    )


@pytest.mark.parametrize(("scheduler", "dialect"), [("hami-scheduler", "hami"), ("volcano", "all")])
def test_a_pod_that_is_taken_over_loses_the_foreign_scheduler_or_is_refused(
    scheduler: str, dialect: str
) -> None:
    asks = a_container(resources={"limits": {"nvidia.com/gpumem": "3000"}})
    pod = a_pod(asks, spec={"schedulerName": scheduler})

    outcome = judged(pod, labels=on(dialect))
    kept = judged(pod, labels=on(dialect), rules=replace(RULES, scheduler_name=""))

    assert isinstance(outcome, Patched)
    assert stored(pod, outcome)["spec"]["schedulerName"] == "fracgpu-scheduler"
    assert isinstance(kept, Denied)
    assert kept.message.startswith(f"spec.schedulerName is '{scheduler}'; want a scheduler that")


def test_a_refusal_names_the_key_that_its_author_wrote() -> None:
    limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "90000"}

    outcome = denied(judged(a_pod(a_container(resources={"limits": limits})), labels=on("all")))

    assert outcome.message.startswith(
        "nvidia.com/gpu, nvidia.com/gpumem of container 'train' is '1, 90000'; want at most what "
        "the largest card shares, 81920 MiB (80 GiB); FracGPU reads it as fracgpu.io/memory of "
        "container 'train' '90000Mi'"
    )


def test_no_whole_card_is_none() -> None:
    none = a_container("web", resources={"limits": {"nvidia.com/gpu": "0"}})
    alone = judged(a_pod(none), labels=on("all"))
    beside = judged(a_pod(none, a_container(), fraction="train=0.5"), labels=on("all"))

    assert alone == Allowed()
    assert isinstance(beside, Patched)


def test_a_whole_card_on_another_container_of_a_pod_that_asks_is_refused() -> None:
    whole_card = a_container("web", resources={"limits": {"nvidia.com/gpu": "1"}})

    outcome = denied(judged(a_pod(whole_card, a_container(), fraction="train=0.5")))

    assert outcome.message.startswith("limits['nvidia.com/gpu'] of container 'web' is '1'; want it")
