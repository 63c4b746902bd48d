"""Published example pods with keys that no row of a dialect has: each has a known fate.

What a row of tests/fracgpu/request/dialects has is compared there, to the letter. The shapes are
written from facts that the systems publish (*source* of each one); beside the value of every
foreign key stands its fate, what must have become of it.
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
    limits: dict[str, tuple[str, str]] = field(default_factory=dict)
    notes: dict[str, tuple[str, str]] = field(default_factory=dict)
    labels: dict[str, tuple[str, str]] = field(default_factory=dict)
    scheduler: tuple[str, str] | None = None

    def pod(self) -> Json:
        limits, notes, labels = (
            {key: text for key, (text, _) in said.items()}
            for said in (self.limits, self.notes, self.labels)
        )
        resources = {"limits": limits, "requests": dict(limits)}
        pod = a_pod(
            a_container(resources=resources) if limits else a_container(),
            spec={SCHEDULER: self.scheduler[0] if self.scheduler else "default-scheduler"},
        )
        pod["metadata"] |= {"annotations": notes, "labels": labels}
        return pod

    @property
    def fates(self) -> dict[str, str]:
        """Return what must become of every foreign key of the pod."""
        said = {**self.limits, **self.notes, **self.labels}
        if self.scheduler:
            said[SCHEDULER] = self.scheduler
        return {key: fate for key, (_, fate) in said.items()}


SHAPES = [
    Shape(
        name="ACK with cores",
        source="Alibaba Cloud ACK, nodes labelled ack.node.gpu.schedule=core_mem",
        limits={
            "aliyun.com/gpu-mem": ("8", REMOVED),
            "aliyun.com/gpu-core.percentage": ("30", "cores=30"),
        },
    ),
    Shape(
        name="ACK with cores alone",
        source="Alibaba Cloud ACK, nodes labelled ack.node.gpu.schedule=core_mem",
        limits={"aliyun.com/gpu-core.percentage": ("30", REFUSED)},
    ),
    Shape(
        name="ACK with TFLOPS",
        source="kubeflow/arena: the resource names of ACK",
        limits={"aliyun.com/gpu-mem": ("8", ""), "aliyun.com/gpu-core.tflops": ("3", REFUSED)},
    ),
    Shape(
        name="HAMi by model",
        source="HAMi, examples/nvidia: specify card type",
        limits={
            "nvidia.com/gpu": ("1", REMOVED),
            "nvidia.com/gpumem-percentage": ("50", "fraction=0.5"),
        },
        notes={
            "nvidia.com/use-gputype": ("H100", "model=*H100*"),
            "nvidia.com/vgpu-mode": ("hami-core", WARNED),
            "hami.io/gpu-scheduler-policy": ("spread", "placement=spread"),
            "hami.io/resource-pool": ("a", WARNED),
        },
    ),
    Shape(
        name="KAI by memory in a pod group",
        source="KAI-Scheduler, docs/gpu-sharing and pod groups",
        notes={
            "gpu-memory": ("2000", "memory=2000Mi"),
            "gpu-fraction-num-devices": ("2", "cards=2"),
            "gpu-fraction-container-name": ("train", GRANTED),
            "pod-group-name": ("gang", WARNED),
        },
    ),
    Shape(
        name="KAI beside no whole card",
        source="a template whose switch is off",
        limits={"nvidia.com/gpu": ("0", "none")},
        notes={"gpu-fraction": ("0.5", "fraction=0.5")},
    ),
    Shape(
        name="Volcano by virtual GPU",
        source="volcano.sh, user guide: how to use vGPU, with HAMi-core",
        limits={
            "volcano.sh/vgpu-number": ("1", REMOVED),
            "volcano.sh/vgpu-cores": ("50", "cores=50"),
            "volcano.sh/vgpu-memory": ("3000", "memory=3000Mi"),
        },
        notes={
            "volcano.sh/vgpu-mode": ("hami-core", WARNED),
            "scheduling.volcano.sh/queue-name": ("research", WARNED),
            "scheduling.k8s.io/group-name": ("gang", WARNED),
        },
        scheduler=("volcano", WARNED),
    ),
    Shape(
        name="Volcano by percentage",
        source="Project-HAMi/volcano-vgpu-device-plugin, configuration",
        limits={
            "volcano.sh/vgpu-number": ("2", "cards=2"),
            "volcano.sh/vgpu-memory-percentage": ("50", "fraction=0.5"),
        },
    ),
    Shape(
        name="Volcano with MIG",
        source="volcano.sh, user guide: how to use vGPU, with dynamic MIG",
        limits={"volcano.sh/vgpu-number": ("1", ""), "volcano.sh/vgpu-memory": ("3000", "")},
        notes={"volcano.sh/vgpu-mode": ("mig", REFUSED)},
        scheduler=("volcano", ""),
    ),
    Shape(
        name="vgpu-manager",
        source="coldzerofear/vgpu-manager, README",
        limits={
            "nvidia.com/vgpu-number": ("1", REMOVED),
            "nvidia.com/vgpu-cores": ("10", "cores=10"),
            "nvidia.com/vgpu-memory": ("1024", "memory=1024Mi"),
        },
        notes={
            "nvidia.com/device-topology-mode": ("numa", WARNED),
            "nvidia.com/vgpu-access-mode": ("remote", WARNED),
        },
        scheduler=("vgpu-scheduler", WARNED),
    ),
    Shape(
        name="TensorFusion",
        source="tensor-fusion.ai, reference: workload configuration",
        notes={
            "tensor-fusion.ai/inject-container": ("train", GRANTED),
            "tensor-fusion.ai/tflops-limit": ("20", WARNED),
            "tensor-fusion.ai/tflops-request": ("10", WARNED),
            "tensor-fusion.ai/vram-limit": ("4Gi", "memory=4096Mi"),
            "tensor-fusion.ai/vram-request": ("4Gi", "memory=4096Mi"),
            "tensor-fusion.ai/qos": ("medium", WARNED),
            "tensor-fusion.ai/workload-profile": ("default-profile", WARNED),
            "tensor-fusion.ai/is-local-gpu": ("true", WARNED),
            "tensor-fusion.ai/gpu-count": ("1", GRANTED),
            "tensor-fusion.ai/vendor": ("NVIDIA", GRANTED),
        },
        labels={"tensor-fusion.ai/enabled": ("true", LABEL)},
        scheduler=("tensor-fusion-scheduler", WARNED),
    ),
    Shape(
        name="TensorFusion's whole cards",
        source="tensor-fusion.ai, reference: workload configuration",
        notes={
            "tensor-fusion.ai/dedicated-gpu": ("true", "fraction=1"),
            "tensor-fusion.ai/gpu-count": ("2", "cards=2"),
            "tensor-fusion.ai/gpu-model": ("H100", "model=*H100*"),
            "tensor-fusion.ai/vram-request": ("4Gi", WARNED),
        },
    ),
    Shape(
        name="TensorFusion on AMD",
        source="tensor-fusion.ai, annotations: vendor",
        notes={
            "tensor-fusion.ai/vram-request": ("4Gi", ""),
            "tensor-fusion.ai/vendor": ("AMD", REFUSED),
        },
    ),
    Shape(
        name="TensorFusion by profile alone",
        source="tensor-fusion.ai, reference: workload configuration",
        notes={"tensor-fusion.ai/workload-profile": ("example-workload-profile", REFUSED)},
        labels={"tensor-fusion.ai/enabled": ("true", "")},
    ),
    Shape(
        name="TensorFusion by container",
        source="tensor-fusion.ai, annotations: several containers",
        notes={
            "tensor-fusion.ai/vram-request": ("4Gi", ""),
            "tensor-fusion.ai/container-gpu-count": ('{"train": 1}', REFUSED),
        },
    ),
    Shape(
        name="Koordinator",
        source="koordinator.sh, user manual: device scheduling",
        limits={
            "koordinator.sh/gpu-core": ("50", "cores=50"),
            "koordinator.sh/gpu-memory-ratio": ("50", "fraction=0.5"),
        },
        notes={"scheduling.koordinator.sh/device-allocate-hint": ("{}", WARNED)},
        labels={"quota.scheduling.koordinator.sh/name": ("research", WARNED)},
        scheduler=("koord-scheduler", WARNED),
    ),
]


def taken(shape: Shape) -> AdmissionResult:
    settings = DialectSettings(options=OPTIONS)
    return judged(shape.pod(), labels=ALL, rules=replace(RULES, dialects=settings))


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_no_foreign_key_resource_or_scheduler_is_left_behind_without_a_word(shape: Shape) -> None:
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
