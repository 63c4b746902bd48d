"""Published example pods with keys that no row of a dialect has: each has a known fate.

What a row of tests/fracgpu/request/dialects has is compared there, to the letter. The shapes are
written from facts that the systems publish (*source* of each one); its *fates* name every foreign
key of the pod, and what must have become of it.
"""

from dataclasses import dataclass, field, replace

import pytest

from fracgpu.request.dialects import DialectSettings, Options
from fracgpu.request.dialects.registry import DIALECTS
from tests.webhook.builders import RULES, Json, a_container, a_pod, judged, stored
from webhook.admission.verdict import AdmissionResult, Denied, Patched

SCHEDULER = "schedulerName"
REMOVED, WARNED, REFUSED = "removed", "warned", "refused"
GRANTED = "granted"  # fracgpu.io/granted repeats it
LABEL = "label"  # a label that the dialect reads, and that says nothing more
# Anything else is the annotation that says the same in our language, without our prefix.

OPTIONS = Options(nvidia_replicas=4, kai_runs=False)
ALL = {"fracgpu.io/dialects": "all"}


@dataclass(frozen=True, kw_only=True)
class Shape:
    """One published example."""

    name: str
    source: str
    limits: dict[str, str] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    scheduler: str = "default-scheduler"
    fates: dict[str, str]

    def pod(self) -> Json:
        resources = {"limits": dict(self.limits), "requests": dict(self.limits)}
        pod = a_pod(
            a_container(resources=resources) if self.limits else a_container(),
            spec={SCHEDULER: self.scheduler},
        )
        pod["metadata"] |= {"annotations": dict(self.notes), "labels": dict(self.labels)}
        return pod

    @property
    def words(self) -> set[str]:
        """Return every foreign key of the pod."""
        foreign = self.scheduler != "default-scheduler"
        return {*self.limits, *self.notes, *self.labels, *([SCHEDULER] if foreign else [])}


SHAPES = [
    Shape(
        name="ACK with cores",
        source="Alibaba Cloud ACK, nodes labelled ack.node.gpu.schedule=core_mem",
        limits={"aliyun.com/gpu-mem": "8", "aliyun.com/gpu-core.percentage": "30"},
        fates={"aliyun.com/gpu-mem": REMOVED, "aliyun.com/gpu-core.percentage": "cores=30"},
    ),
    Shape(
        name="ACK with cores alone",
        source="Alibaba Cloud ACK, nodes labelled ack.node.gpu.schedule=core_mem",
        limits={"aliyun.com/gpu-core.percentage": "30"},
        fates={"aliyun.com/gpu-core.percentage": REFUSED},
    ),
    Shape(
        name="ACK with TFLOPS",
        source="kubeflow/arena: the resource names of ACK",
        limits={"aliyun.com/gpu-mem": "8", "aliyun.com/gpu-core.tflops": "3"},
        fates={"aliyun.com/gpu-mem": "", "aliyun.com/gpu-core.tflops": REFUSED},
    ),
    Shape(
        name="HAMi by model",
        source="HAMi, examples/nvidia: specify card type",
        limits={"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "50"},
        notes={
            "nvidia.com/use-gputype": "H100",
            "nvidia.com/vgpu-mode": "hami-core",
            "hami.io/gpu-scheduler-policy": "spread",
            "hami.io/resource-pool": "a",
        },
        fates={
            "nvidia.com/gpu": REMOVED,
            "nvidia.com/gpumem-percentage": "fraction=0.5",
            "nvidia.com/use-gputype": "model=*H100*",
            "nvidia.com/vgpu-mode": WARNED,
            "hami.io/gpu-scheduler-policy": "placement=spread",
            "hami.io/resource-pool": WARNED,
        },
    ),
    Shape(
        name="KAI by memory in a pod group",
        source="KAI-Scheduler, docs/gpu-sharing and pod groups",
        notes={
            "gpu-memory": "2000",
            "gpu-fraction-num-devices": "2",
            "gpu-fraction-container-name": "train",
            "pod-group-name": "gang",
        },
        fates={
            "gpu-memory": "memory=2000Mi",
            "gpu-fraction-num-devices": "cards=2",
            "gpu-fraction-container-name": GRANTED,
            "pod-group-name": WARNED,
        },
    ),
    Shape(
        name="KAI beside no whole card",
        source="a template whose switch is off",
        limits={"nvidia.com/gpu": "0"},
        notes={"gpu-fraction": "0.5"},
        fates={"nvidia.com/gpu": "none", "gpu-fraction": "fraction=0.5"},
    ),
    Shape(
        name="Volcano by virtual GPU",
        source="volcano.sh, user guide: how to use vGPU, with HAMi-core",
        limits={
            "volcano.sh/vgpu-number": "1",
            "volcano.sh/vgpu-cores": "50",
            "volcano.sh/vgpu-memory": "3000",
        },
        notes={
            "volcano.sh/vgpu-mode": "hami-core",
            "scheduling.volcano.sh/queue-name": "research",
            "scheduling.k8s.io/group-name": "gang",
        },
        scheduler="volcano",
        fates={
            "volcano.sh/vgpu-number": REMOVED,
            "volcano.sh/vgpu-cores": "cores=50",
            "volcano.sh/vgpu-memory": "memory=3000Mi",
            "volcano.sh/vgpu-mode": WARNED,
            "scheduling.volcano.sh/queue-name": WARNED,
            "scheduling.k8s.io/group-name": WARNED,
            SCHEDULER: WARNED,
        },
    ),
    Shape(
        name="Volcano by percentage",
        source="Project-HAMi/volcano-vgpu-device-plugin, configuration",
        limits={"volcano.sh/vgpu-number": "2", "volcano.sh/vgpu-memory-percentage": "50"},
        fates={
            "volcano.sh/vgpu-number": "cards=2",
            "volcano.sh/vgpu-memory-percentage": "fraction=0.5",
        },
    ),
    Shape(
        name="Volcano with MIG",
        source="volcano.sh, user guide: how to use vGPU, with dynamic MIG",
        limits={"volcano.sh/vgpu-number": "1", "volcano.sh/vgpu-memory": "3000"},
        notes={"volcano.sh/vgpu-mode": "mig"},
        scheduler="volcano",
        fates={
            "volcano.sh/vgpu-number": "",
            "volcano.sh/vgpu-memory": "",
            "volcano.sh/vgpu-mode": REFUSED,
            SCHEDULER: "",
        },
    ),
    Shape(
        name="vgpu-manager",
        source="coldzerofear/vgpu-manager, README",
        limits={
            "nvidia.com/vgpu-number": "1",
            "nvidia.com/vgpu-cores": "10",
            "nvidia.com/vgpu-memory": "1024",
        },
        notes={"nvidia.com/device-topology-mode": "numa", "nvidia.com/vgpu-access-mode": "remote"},
        scheduler="vgpu-scheduler",
        fates={
            "nvidia.com/vgpu-number": REMOVED,
            "nvidia.com/vgpu-cores": "cores=10",
            "nvidia.com/vgpu-memory": "memory=1024Mi",
            "nvidia.com/device-topology-mode": WARNED,
            "nvidia.com/vgpu-access-mode": WARNED,
            SCHEDULER: WARNED,
        },
    ),
    Shape(
        name="TensorFusion",
        source="tensor-fusion.ai, reference: workload configuration",
        notes={
            "tensor-fusion.ai/inject-container": "train",
            "tensor-fusion.ai/tflops-limit": "20",
            "tensor-fusion.ai/tflops-request": "10",
            "tensor-fusion.ai/vram-limit": "4Gi",
            "tensor-fusion.ai/vram-request": "4Gi",
            "tensor-fusion.ai/qos": "medium",
            "tensor-fusion.ai/workload-profile": "default-profile",
            "tensor-fusion.ai/is-local-gpu": "true",
            "tensor-fusion.ai/gpu-count": "1",
            "tensor-fusion.ai/vendor": "NVIDIA",
        },
        labels={"tensor-fusion.ai/enabled": "true"},
        scheduler="tensor-fusion-scheduler",
        fates={
            "tensor-fusion.ai/inject-container": GRANTED,
            "tensor-fusion.ai/tflops-limit": WARNED,
            "tensor-fusion.ai/tflops-request": WARNED,
            "tensor-fusion.ai/vram-limit": "memory=4096Mi",
            "tensor-fusion.ai/vram-request": "memory=4096Mi",
            "tensor-fusion.ai/qos": WARNED,
            "tensor-fusion.ai/workload-profile": WARNED,
            "tensor-fusion.ai/is-local-gpu": WARNED,
            "tensor-fusion.ai/gpu-count": GRANTED,
            "tensor-fusion.ai/vendor": GRANTED,
            "tensor-fusion.ai/enabled": LABEL,
            SCHEDULER: WARNED,
        },
    ),
    Shape(
        name="TensorFusion's whole cards",
        source="tensor-fusion.ai, reference: workload configuration",
        notes={
            "tensor-fusion.ai/dedicated-gpu": "true",
            "tensor-fusion.ai/gpu-count": "2",
            "tensor-fusion.ai/gpu-model": "H100",
            "tensor-fusion.ai/vram-request": "4Gi",
        },
        fates={
            "tensor-fusion.ai/dedicated-gpu": "fraction=1",
            "tensor-fusion.ai/gpu-count": "cards=2",
            "tensor-fusion.ai/gpu-model": "model=*H100*",
            "tensor-fusion.ai/vram-request": WARNED,
        },
    ),
    Shape(
        name="TensorFusion on AMD",
        source="tensor-fusion.ai, annotations: vendor",
        notes={"tensor-fusion.ai/vram-request": "4Gi", "tensor-fusion.ai/vendor": "AMD"},
        fates={"tensor-fusion.ai/vram-request": "", "tensor-fusion.ai/vendor": REFUSED},
    ),
    Shape(
        name="TensorFusion by profile alone",
        source="tensor-fusion.ai, reference: workload configuration",
        notes={"tensor-fusion.ai/workload-profile": "example-workload-profile"},
        labels={"tensor-fusion.ai/enabled": "true"},
        fates={"tensor-fusion.ai/workload-profile": REFUSED, "tensor-fusion.ai/enabled": ""},
    ),
    Shape(
        name="TensorFusion by container",
        source="tensor-fusion.ai, annotations: several containers",
        notes={
            "tensor-fusion.ai/vram-request": "4Gi",
            "tensor-fusion.ai/container-gpu-count": '{"train": 1}',
        },
        fates={
            "tensor-fusion.ai/vram-request": "",
            "tensor-fusion.ai/container-gpu-count": REFUSED,
        },
    ),
    Shape(
        name="Koordinator",
        source="koordinator.sh, user manual: device scheduling",
        limits={"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory-ratio": "50"},
        notes={"scheduling.koordinator.sh/device-allocate-hint": "{}"},
        labels={"quota.scheduling.koordinator.sh/name": "research"},
        scheduler="koord-scheduler",
        fates={
            "koordinator.sh/gpu-core": "cores=50",
            "koordinator.sh/gpu-memory-ratio": "fraction=0.5",
            "scheduling.koordinator.sh/device-allocate-hint": WARNED,
            "quota.scheduling.koordinator.sh/name": WARNED,
            SCHEDULER: WARNED,
        },
    ),
]


def taken(shape: Shape) -> AdmissionResult:
    settings = DialectSettings(options=OPTIONS)
    return judged(shape.pod(), labels=ALL, rules=replace(RULES, dialects=settings))


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_no_foreign_key_resource_or_scheduler_is_left_behind_without_a_word(shape: Shape) -> None:
    assert shape.fates.keys() == shape.words, "each foreign word of a shape has its fate"
    outcome = taken(shape)

    refused = [word for word, fate in shape.fates.items() if fate == REFUSED]
    if refused:
        assert isinstance(outcome, Denied)
        assert all(word in outcome.message for word in refused), outcome.message
        return
    assert isinstance(outcome, Patched), outcome
    after = stored(shape.pod(), outcome)
    assert [
        (word, fate) for word, fate in shape.fates.items() if not holds(word, fate, outcome, after)
    ] == []


def holds(word: str, fate: str, outcome: Patched, after: Json) -> bool:
    """Report whether *fate* is what became of *word*; a resource is always removed."""
    amounts = after["spec"]["containers"][0]["resources"]
    if fate == "none":
        return bool(amounts["limits"][word] == "0")
    if word in amounts["limits"] or word in amounts["requests"]:
        return False
    if word == SCHEDULER and after["spec"][SCHEDULER] != RULES.scheduler_name:
        return False
    if fate == REMOVED:
        return word in outcome.granted
    if fate == WARNED:
        return any(word in warning for warning in outcome.warnings)
    if fate == GRANTED:
        return word in outcome.granted
    if fate == LABEL:
        return any(word in dialect.labels for dialect in DIALECTS)
    key, _, text = fate.partition("=")
    return bool(after["metadata"]["annotations"].get(f"fracgpu.io/{key}") == text)
