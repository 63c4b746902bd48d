import json
from typing import Any

import pytest

from fracgpu.units import Mib
from tests.webhook.builders import CLASSES, RULES, Json, a_container, a_pod, a_review
from webhook.admission.context import DecisionContext
from webhook.admission.review import MalformedReviewError, read_review
from webhook.admission.verdict import OURS, AdmissionResult, Allowed, Denied
from webhook.admission.workload import admit_workload
from webhook.admission_config import AdmissionConfig, WorkloadKind

GROUPS = {
    "Deployment": "apps",
    "StatefulSet": "apps",
    "DaemonSet": "apps",
    "ReplicaSet": "apps",
    "Job": "batch",
    "CronJob": "batch",
}


def a_workload(kind: str = "Deployment", *, template: Json | None = None, **asks: str) -> Json:
    pod = a_pod(also=asks) if template is None else template
    pod["metadata"].pop("namespace", None)
    spec: Json = {"template": pod}
    if kind == "CronJob":
        spec = {"jobTemplate": {"spec": spec}}
    return {"metadata": {"name": "w"}, "spec": spec}


def judged(
    body: Any,
    kind: str = "Deployment",
    *,
    group: str | None = None,
    old: Json | None = None,
    classes: Any = CLASSES,
    rules: AdmissionConfig = RULES,
) -> AdmissionResult:
    request = {"kind": {"group": GROUPS.get(kind, "") if group is None else group, "kind": kind}}
    if old is not None:
        request |= {"operation": "UPDATE", "oldObject": old}  # type: ignore[dict-item]
    review = read_review(json.dumps(a_review(body, **request)).encode())
    return admit_workload(review, DecisionContext(classes=classes, config=rules))


WORDS = (
    "fracgpu.io/fraction is '2'; want a share of one card above 0 and at most 1, e.g. '0.5' or "
    "'50%'; write '2%' if percent was meant, or fracgpu.io/cards for several cards"
)


@pytest.mark.parametrize("kind", GROUPS)
def test_a_template_passes_or_is_refused_with_the_path_that_leads_to_it(kind: str) -> None:
    path = "spec.jobTemplate.spec.template" if kind == "CronJob" else "spec.template"

    assert judged(a_workload(kind, fraction="0.5"), kind) == Allowed(dialect=OURS)
    assert judged(a_workload(kind, fraction="2"), kind) == Denied(message=f"in {path}: {WORDS}")


def test_a_workload_that_asks_for_nothing_passes() -> None:
    assert judged(a_workload()) == Allowed()
    assert judged({"metadata": {"name": "w"}}) == Allowed()


REFUSED = {
    "a grant": (
        a_workload(fraction="0.5", granted="everything"),
        "in spec.template: fracgpu.io/granted is 'everything'; want no such annotation in a "
        "template: the webhook writes it on each pod; leave it out",
    ),
    "a template of another shape that names our keys": (
        a_workload(
            template={"metadata": {"annotations": {"fracgpu.io/fraction": 1}}, "spec": {"x": 1}}
        ),
        "in spec.template: the pod template cannot be read: Expected `str`, got `int` - at "
        "`$.metadata.annotations[...]`",
    ),
}


@pytest.mark.parametrize(("body", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_a_template_that_makes_no_sense_is_refused_in_these_words(body: Json, message: str) -> None:
    assert judged(body) == Denied(message=message)


def test_a_template_of_another_shape_that_does_not_ask_is_its_owners_business() -> None:
    assert judged(a_workload(template={"metadata": {}, "spec": {"x": 1}})) == Allowed()


def test_an_update_judges_only_what_it_changes() -> None:
    bad, good = a_workload(fraction="2"), a_workload(fraction="0.5")
    scaled = {**bad, "spec": {**bad["spec"], "replicas": 9}}

    assert judged(scaled, old=bad) == Allowed()
    assert isinstance(judged(bad, old=good), Denied)
    assert judged(good, old=bad) == Allowed(dialect=OURS)


def test_before_the_cluster_is_read_the_language_is_judged_alone() -> None:
    assert judged(a_workload(memory="100Gi"), classes=None) == Allowed(dialect=OURS)
    assert isinstance(judged(a_workload(fraction="2"), classes=None), Denied)


def test_a_request_on_the_workload_itself_is_warned_of() -> None:
    body = a_workload()
    body["metadata"]["annotations"] = {
        "fracgpu.io/fraction": "0.5",
        "fracgpu.io/gpu-mem": "8000",
        "fracgpu.io/move-requested": "now",
        "team": "x",
    }
    body["metadata"]["labels"] = {"fracgpu.io/Memory": "1Gi"}

    assert judged(body).warnings == (  # type: ignore[union-attr]
        "metadata.annotations['fracgpu.io/fraction'] has no effect on a Deployment: write "
        "fracgpu.io/fraction in spec.template.metadata.annotations",
        "metadata.annotations['fracgpu.io/gpu-mem'] has no effect on a Deployment: write "
        "fracgpu.io/memory in spec.template.metadata.annotations",
        "metadata.annotations['fracgpu.io/move-requested'] has no effect on a Deployment: FracGPU "
        "reads spec.template.metadata.annotations",
        "metadata.labels['fracgpu.io/Memory'] has no effect on a Deployment: write "
        "fracgpu.io/memory in spec.template.metadata.annotations",
    )


def test_a_request_on_the_jobs_of_a_cron_job_is_warned_of() -> None:
    """As found: it was neither read nor answered."""
    body = a_workload("CronJob")
    body["spec"]["jobTemplate"]["metadata"] = {"annotations": {"fracgpu.io/fraction": "0.5"}}

    assert judged(body, "CronJob").warnings == (  # type: ignore[union-attr]
        "spec.jobTemplate.metadata.annotations['fracgpu.io/fraction'] has no effect on a CronJob: "
        "write fracgpu.io/fraction in spec.jobTemplate.spec.template.metadata.annotations",
    )


def test_warnings_of_a_template_carry_its_path() -> None:
    template = a_pod(spec={"schedulerName": "batch"}, memory="1Gi")

    outcome = judged(a_workload(template=template))

    assert isinstance(outcome, Allowed)
    assert outcome.warnings[0].startswith("in spec.template: spec.schedulerName is 'batch'")


TORCH = WorkloadKind(
    group="kubeflow.org",
    kind="PyTorchJob",
    templates=("spec.pytorchReplicaSpecs.*.template", "spec.extra.*"),
)
CUSTOM = AdmissionConfig(workloads=(TORCH,), label_reserved_mib=Mib(0))


def a_torch_job(worker: Json, *extra: Json) -> Json:
    replicas = {"Master": {"template": a_pod()}, "Worker": {"template": worker}}
    return {"spec": {"pytorchReplicaSpecs": replicas, "extra": list(extra)}}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            a_torch_job(a_pod(fraction="2")),
            f"in spec.pytorchReplicaSpecs.Worker.template: {WORDS}",
        ),
        (a_torch_job(a_pod(), a_pod(), a_pod(fraction="2")), f"in spec.extra[1]: {WORDS}"),
    ],
)
def test_a_kind_that_the_administrator_lists_is_read_by_the_paths_of_its_templates(
    body: Json, message: str
) -> None:
    outcome = judged(body, "PyTorchJob", group="kubeflow.org", rules=CUSTOM)

    assert outcome == Denied(message=message)


@pytest.mark.parametrize("body", [{"spec": 1}, {"spec": {"pytorchReplicaSpecs": []}}, {}])
def test_where_a_path_ends_early_there_is_no_template(body: Json) -> None:
    assert judged(body, "PyTorchJob", group="kubeflow.org", rules=CUSTOM) == Allowed()


def test_another_kind_is_no_workload() -> None:
    with pytest.raises(MalformedReviewError) as refused:
        judged(a_workload(), "PyTorchJob", group="kubeflow.org")

    assert str(refused.value) == (
        "request.kind is kubeflow.org PyTorchJob; want a workload: Deployment, StatefulSet, "
        "DaemonSet, ReplicaSet, ReplicationController, PodTemplate, Job, CronJob, Rollout, Job, "
        "JobSet, LeaderWorkerSet, RayCluster, RayJob, RayService, or a kind that the key "
        "'admission' of the ConfigMap lists"
    )


def test_a_container_less_list_is_no_object() -> None:
    with pytest.raises(MalformedReviewError, match=r"request\.object cannot be read"):
        judged([a_container()])
