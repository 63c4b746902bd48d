"""Other systems' pods where their dialect is enabled: one row for each form of request."""

from dataclasses import dataclass, field, replace

import pytest

from fracgpu.request.dialects import NAMES, DialectSettings, MemoryUnit, Options
from tests.webhook.admission.test_mutation import admitted, amounts, has, more
from tests.webhook.builders import RULES, Json, a_container, a_pod, judged, stored, worded
from webhook.admission.verdict import OTHER, Allowed, Denied, Patched

CLASS = "of a card that shares 81920 MiB"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A pod's request in a dialect, and its translation.

    Attributes:
        limits: resources of the container, in limits and requests.
        notes: annotations of the pod.
        asks: our own annotations that are written.
        words: of the grant, without where it came from.
        source: where it came from.
        mib: total, as the API server writes it.
    """

    dialect: str
    limits: dict[str, str] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    asks: dict[str, str]
    words: str
    source: str
    mib: str
    cards: str = "1"

    def pod(self) -> Json:
        resources = {"limits": dict(self.limits), "requests": dict(self.limits)}
        pod = a_pod(a_container(resources=resources) if self.limits else a_container())
        if self.notes:
            pod["metadata"]["annotations"] = dict(self.notes)
        return pod

    def wanted(self) -> Json:
        share = "fraction" in self.asks
        key = "card-class-81920" if share else "card-memory"
        least = int(self.cards) - 1 if share else int(self.asks["memory"].removesuffix("Mi")) - 1
        granted = f"{self.words}; in other words: train from {self.dialect}: {self.source}"
        pod = admitted(
            a_container(resources=amounts(self.mib, self.cards)),
            granted=granted,
            requires=[more(key, least) if least else has(key)],
        )
        asks = {f"fracgpu.io/{key}": text for key, text in self.asks.items()}
        pod["metadata"]["annotations"] |= {**self.notes, **asks}
        return pod


ROWS = [
    Row(
        dialect="gpushare",
        limits={"aliyun.com/gpu-mem": "4"},
        asks={"memory": "4096Mi"},
        words="train: 4096 MiB on 1 card",
        source="aliyun.com/gpu-mem=4",
        mib="4096",
    ),
    Row(
        dialect="gpushare",
        limits={"aliyun.com/gpu-count": "2"},
        asks={"fraction": "1", "cards": "2"},
        words=f"train: 81920 MiB on each of 2 cards (1 {CLASS})",
        source="aliyun.com/gpu-count=2",
        mib="163840",
        cards="2",
    ),
    Row(
        dialect="hami",
        limits={"nvidia.com/gpu": "2", "nvidia.com/gpumem": "3000", "nvidia.com/gpucores": "30"},
        notes={"nvidia.com/use-gputype": "H100"},
        asks={"memory": "3000Mi", "cores": "30", "cards": "2", "model": "*H100*"},
        words="train: 3000 MiB on each of 2 cards, 30% of the compute",
        source="nvidia.com/gpu=2, nvidia.com/gpucores=30, nvidia.com/gpumem=3000",
        mib="6k",
        cards="2",
    ),
    Row(
        dialect="hami",
        limits={"nvidia.com/gpumem-percentage": "50"},
        asks={"fraction": "0.5"},
        words=f"train: 40960 MiB on 1 card (0.5 {CLASS})",
        source="nvidia.com/gpumem-percentage=50",
        mib="40960",
    ),
    Row(
        dialect="kai",
        notes={"gpu-fraction": "0.5"},
        asks={"fraction": "0.5"},
        words=f"train: 40960 MiB on 1 card (0.5 {CLASS})",
        source="gpu-fraction=0.5",
        mib="40960",
    ),
    Row(
        dialect="kai",
        notes={"gpu-memory": "2000", "gpu-fraction-num-devices": "2"},
        asks={"memory": "2000Mi", "cards": "2"},
        words="train: 2000 MiB on each of 2 cards",
        source="gpu-memory=2000, gpu-fraction-num-devices=2",
        mib="4k",
        cards="2",
    ),
    Row(
        dialect="kai",
        notes={"nvidia.cdi.k8s.io/train.gpu-memory.request": "8Gi"},
        asks={"memory": "8192Mi"},
        words="train: 8192 MiB on 1 card",
        source="nvidia.cdi.k8s.io/train.gpu-memory.request=8Gi",
        mib="8192",
    ),
    Row(
        dialect="vcuda",
        limits={"tencent.com/vcuda-core": "30", "tencent.com/vcuda-memory": "16"},
        asks={"memory": "4096Mi", "cores": "30"},
        words="train: 4096 MiB on 1 card, 30% of the compute",
        source="tencent.com/vcuda-core=30, tencent.com/vcuda-memory=16",
        mib="4096",
    ),
    Row(
        dialect="vcuda",
        limits={"tencent.com/vcuda-core": "200"},
        asks={"fraction": "1", "cards": "2"},
        words=f"train: 81920 MiB on each of 2 cards (1 {CLASS})",
        source="tencent.com/vcuda-core=200",
        mib="163840",
        cards="2",
    ),
    Row(
        dialect="qgpu",
        limits={"tke.cloud.tencent.com/qgpu-core": "20", "tke.cloud.tencent.com/qgpu-memory": "4"},
        asks={"memory": "4096Mi", "cores": "20"},
        words="train: 4096 MiB on 1 card, 20% of the compute",
        source="tke.cloud.tencent.com/qgpu-core=20, tke.cloud.tencent.com/qgpu-memory=4",
        mib="4096",
    ),
    Row(
        dialect="elastic-gpu",
        limits={"elasticgpu.io/gpu-core": "20", "elasticgpu.io/gpu-memory": "1024"},
        asks={"memory": "1024Mi", "cores": "20"},
        words="train: 1024 MiB on 1 card, 20% of the compute",
        source="elasticgpu.io/gpu-core=20, elasticgpu.io/gpu-memory=1024",
        mib="1024",
    ),
    Row(
        dialect="nos",
        limits={"nvidia.com/gpu-10gb": "1"},
        asks={"memory": "10240Mi"},
        words="train: 10240 MiB on 1 card",
        source="nvidia.com/gpu-10gb=1",
        mib="10240",
    ),
    Row(
        dialect="volcano",
        limits={"volcano.sh/gpu-memory": "1024"},
        asks={"memory": "1024Mi"},
        words="train: 1024 MiB on 1 card",
        source="volcano.sh/gpu-memory=1024",
        mib="1024",
    ),
    Row(
        dialect="cce",
        limits={"volcano.sh/gpu-mem.128Mi": "16", "volcano.sh/gpu-core.percentage": "10"},
        asks={"memory": "2048Mi", "cores": "10"},
        words="train: 2048 MiB on 1 card, 10% of the compute",
        source="volcano.sh/gpu-core.percentage=10, volcano.sh/gpu-mem.128Mi=16",
        mib="2048",
    ),
    Row(
        dialect="vgpu-manager",
        limits={
            "nvidia.com/vgpu-number": "1",
            "nvidia.com/vgpu-cores": "10",
            "nvidia.com/vgpu-memory": "2048",
        },
        asks={"memory": "2048Mi", "cores": "10"},
        words="train: 2048 MiB on 1 card, 10% of the compute",
        source="nvidia.com/vgpu-cores=10, nvidia.com/vgpu-memory=2048, nvidia.com/vgpu-number=1",
        mib="2048",
    ),
    Row(
        dialect="tensor-fusion",
        notes={
            "tensor-fusion.ai/vram-request": "4Gi",
            "tensor-fusion.ai/compute-percent-request": "30",
        },
        asks={"memory": "4096Mi", "cores": "30"},
        words="train: 4096 MiB on 1 card, 30% of the compute",
        source="tensor-fusion.ai/vram-request=4Gi, tensor-fusion.ai/compute-percent-request=30",
        mib="4096",
    ),
    Row(
        dialect="koordinator",
        limits={"koordinator.sh/gpu": "50"},
        asks={"fraction": "0.5", "cores": "50"},
        words=f"train: 40960 MiB on 1 card (0.5 {CLASS}), 50% of the compute",
        source="koordinator.sh/gpu=50",
        mib="40960",
    ),
    Row(
        dialect="koordinator",
        limits={"koordinator.sh/gpu-core": "30", "koordinator.sh/gpu-memory": "4Gi"},
        asks={"memory": "4096Mi", "cores": "30"},
        words="train: 4096 MiB on 1 card, 30% of the compute",
        source="koordinator.sh/gpu-core=30, koordinator.sh/gpu-memory=4Gi",
        mib="4096",
    ),
    Row(
        dialect="aws",
        limits={"k8s.amazonaws.com/vgpu": "3"},
        asks={"fraction": "0.3"},
        words=f"train: 24576 MiB on 1 card (0.3 {CLASS})",
        source="k8s.amazonaws.com/vgpu=3",
        mib="24576",
    ),
    Row(
        dialect="nvidia",
        limits={"nvidia.com/gpu": "1"},
        asks={"fraction": "1"},
        words=f"train: 81920 MiB on 1 card (1 {CLASS})",
        source="nvidia.com/gpu=1",
        mib="81920",
    ),
]
in_rows = pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.dialect}: {row.source[:40]}")


def on(dialect: str) -> dict[str, str]:
    return {"fracgpu.io/dialects": dialect}


def test_there_is_a_row_for_every_dialect() -> None:
    assert {row.dialect for row in ROWS} == set(NAMES)


@in_rows
def test_where_the_namespace_turns_it_on_a_foreign_pod_becomes_one_of_ours(row: Row) -> None:
    outcome = judged(row.pod(), labels=on(row.dialect))

    assert worded(stored(row.pod(), outcome)) == row.wanted()
    assert (outcome.dialect, isinstance(outcome, Patched)) == (row.dialect, True)


@in_rows
def test_where_the_cluster_turns_it_on_as_well(row: Row) -> None:
    rules = replace(RULES, dialects=DialectSettings(dialects=frozenset({row.dialect})))

    assert worded(stored(row.pod(), judged(row.pod(), rules=rules))) == row.wanted()


@in_rows
def test_what_was_taken_over_passes_a_second_look_untouched_and_in_silence(row: Row) -> None:
    once = stored(row.pod(), judged(row.pod(), labels=on(row.dialect)))

    outcome = judged(once, labels=on(row.dialect))

    assert isinstance(outcome, Allowed)
    assert outcome.warnings == ()


@in_rows
def test_elsewhere_the_pod_passes_as_it_is(row: Row) -> None:
    outcome = judged(row.pod())

    assert isinstance(outcome, Allowed)
    plain = row.limits.keys() == {"nvidia.com/gpu"}
    assert len(outcome.warnings) == (0 if plain else 1)


def test_the_unit_of_gpushare_is_the_administrators() -> None:
    settings = DialectSettings(
        dialects=frozenset({"gpushare"}), options=Options(gpushare_unit=MemoryUnit.MIB)
    )

    outcome = judged(ROWS[0].pod(), rules=replace(RULES, dialects=settings))

    assert isinstance(outcome, Patched)
    assert outcome.granted.startswith("train: 4 MiB on 1 card; in other words: ")


def test_a_label_that_names_no_dialect_is_warned_of() -> None:
    outcome = judged(a_pod(memory="1Gi"), labels=on("gpushar"))

    assert isinstance(outcome, Patched)
    assert "did you mean 'gpushare'?" in outcome.warnings[0]


def test_two_dialects_on_one_container_are_refused_as_nobodys() -> None:
    limits = {"aliyun.com/gpu-mem": "4", "volcano.sh/gpu-memory": "4096"}
    pod = a_pod(a_container(resources={"limits": limits}))

    outcome = judged(pod, labels=on("all"))

    assert isinstance(outcome, Denied)
    assert outcome.dialect == OTHER
    assert "aliyun.com/gpu-mem" in outcome.message
    assert "volcano.sh/gpu-memory" in outcome.message


def test_a_grant_that_only_pretends_to_come_from_a_dialect_still_has_to_be_true() -> None:
    forged = "train: 1 MiB on 1 card; in other words: train from gpushare: aliyun.com/gpu-mem=4"

    outcome = judged(a_pod(memory="1Gi", granted=forged))

    assert isinstance(outcome, Denied)
    assert outcome.message.startswith(f"fracgpu.io/granted is '{forged[:60]}")


def kais_own() -> Json:
    pod = a_pod(spec={"schedulerName": "kai-scheduler"})
    pod["metadata"]["annotations"] = {"gpu-fraction": "0.5"}
    return pod


def test_kais_own_pods_are_left_to_kai_and_warned_of() -> None:
    outcome = judged(kais_own(), labels=on("all"))

    assert isinstance(outcome, Allowed)
    assert "so the pod is left to KAI: FracGPU reads no gpu-fraction here" in outcome.warnings[0]


def test_kais_own_pods_are_taken_over_where_a_setting_says_so() -> None:
    settings = DialectSettings(options=Options(kai_runs=False))
    rules = replace(RULES, dialects=settings)

    outcome = judged(kais_own(), labels=on("kai"), rules=rules)

    assert isinstance(outcome, Patched)
    assert stored(kais_own(), outcome)["spec"]["schedulerName"] == "fracgpu-scheduler"
    assert outcome.warnings == (
        "spec.schedulerName was 'kai-scheduler', which does not know FracGPU's cards; it is "
        "fracgpu-scheduler now, so that scheduler's queues and groups do not hold",
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


@pytest.mark.parametrize(
    ("limits", "notes", "message"),
    [
        (
            {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "90000"},
            {},
            "nvidia.com/gpu, nvidia.com/gpumem of container 'train' is '1, 90000'; want at most "
            "what the largest card shares, 81920 MiB (80 GiB); FracGPU reads it as "
            "fracgpu.io/memory of container 'train' '90000Mi'",
        ),
        (
            {"nvidia.com/gpumem": "3000"},
            {"nvidia.com/use-gputype": "V100"},
            "nvidia.com/use-gputype is 'V100'; want globs that match a card model of this cluster",
        ),
        (
            {"nvidia.com/gpu": "9"},
            {},
            "nvidia.com/gpu of container 'train' is '9'; want at most 4: no node has more cards",
        ),
        ({}, {"gpu-memory": "90000"}, "gpu-memory of container 'train' is '90000'; want at most"),
    ],
)
def test_a_refusal_names_the_key_that_its_author_wrote(
    limits: dict[str, str], notes: dict[str, str], message: str
) -> None:
    pod = a_pod(a_container(resources={"limits": limits}))
    pod["metadata"]["annotations"] = notes

    outcome = judged(pod, labels=on("all"))

    assert isinstance(outcome, Denied)
    assert outcome.message.startswith(message)


def test_no_whole_card_is_none() -> None:
    none = a_container("web", resources={"limits": {"nvidia.com/gpu": "0"}})
    alone = judged(a_pod(none), labels=on("all"))
    beside = judged(a_pod(none, a_container(), fraction="train=0.5"), labels=on("all"))

    assert alone == Allowed()
    assert isinstance(beside, Patched)


def test_a_whole_card_on_another_container_of_a_pod_that_asks_is_refused() -> None:
    whole = a_container("web", resources={"limits": {"nvidia.com/gpu": "1"}})

    outcome = judged(a_pod(whole, a_container(), fraction="train=0.5"))

    assert isinstance(outcome, Denied)
    assert outcome.message.startswith("limits['nvidia.com/gpu'] of container 'web' is '1'; want it")
