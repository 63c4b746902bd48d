"""Pods, reviews and clusters as the webhook's tests write them."""

import copy
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from fracgpu.cards.card_class import CardClass
from fracgpu.k8s.quantity import canonical
from fracgpu.units import Mib
from simulator.apiserver.apimachinery.patches import json_patch
from webhook.admission.context import DecisionContext
from webhook.admission.mutation import admit_create
from webhook.admission.review import Pod, read_pod, read_stored_pod
from webhook.admission.update import admit_update
from webhook.admission.verdict import AdmissionResult, Denied, Patched
from webhook.admission_config import AdmissionConfig

Json = dict[str, Any]

AGENT: Final = "system:serviceaccount:fracgpu-system:fracgpu-deviceplugin"
REBALANCER: Final = "system:serviceaccount:fracgpu-system:fracgpu-rebalancer"
RULES: Final = AdmissionConfig(
    agent_users=frozenset({AGENT}), rebalancer_users=frozenset({REBALANCER})
)

# The H100s are freer. 24000 is an amount that the API server writes as "24k".
A30S: Final = CardClass(
    capacity_mib=Mib(24000),
    models=frozenset({"NVIDIA-A30"}),
    most_per_node=2,
    cards=4,
    free_share=0.5,
)
H100S: Final = CardClass(
    capacity_mib=Mib(81920),
    models=frozenset({"NVIDIA-H100-80GB-HBM3"}),
    most_per_node=4,
    cards=8,
    free_share=0.9,
)
CLASSES: Final = (H100S, A30S)


def a_container(name: str = "train", **fields: Any) -> Json:
    return {"name": name, "image": "registry.example/app:1", **fields}


def a_pod(
    *containers: Json,
    init: Sequence[Json] = (),
    spec: Mapping[str, Any] | None = None,
    also: Mapping[str, str] | None = None,
    **asks: str,
) -> Json:
    """Return a pod as the API server sends it to a webhook.

    *asks*, and *also* for names that are Python keywords, are annotations without our prefix.
    """
    pod: Json = {
        "metadata": {"name": "job-1", "namespace": "ml"},
        "spec": {
            "schedulerName": "default-scheduler",
            "containers": list(containers) or [a_container()],
            **({"initContainers": list(init)} if init else {}),
            **(spec or {}),
        },
    }
    annotations = {f"fracgpu.io/{key}": value for key, value in {**asks, **(also or {})}.items()}
    if annotations:
        pod["metadata"]["annotations"] = annotations
    return pod


def parsed(pod: Json) -> Pod:
    return read_pod(json.dumps(pod).encode())


def as_sent(pod: Json) -> Json:
    """Return the pod with the fields listed that its author wrote, as the API server lists them."""
    keys = [f'k:{{"name":"{each["name"]}"}}' for each in pod["spec"]["containers"]]
    fields: Json = {"f:spec": {"f:containers": {key: {".": {}, "f:name": {}} for key in keys}}}
    manager = {"manager": "kubectl", "operation": "Update", "apiVersion": "v1"}
    managed = {**manager, "fieldsType": "FieldsV1", "fieldsV1": fields}
    return {**pod, "metadata": {**pod["metadata"], "managedFields": [managed]}}


def judged(
    pod: Json,
    classes: Sequence[CardClass] | None = CLASSES,
    *,
    rules: AdmissionConfig = RULES,
    labels: Mapping[str, str] | None = None,
    **context: Any,
) -> AdmissionResult:
    """Return the decision on a pod in a namespace with these *labels*."""
    known = DecisionContext(classes=classes, config=rules, namespace_labels=labels or {}, **context)
    return admit_create(parsed(pod), known)


def judged_change(old: Json, new: Json, *, user: str = "alice") -> AdmissionResult:
    """Return the decision on an update, with the stored pod read as the webhook reads it."""
    before = read_stored_pod(json.dumps(old).encode(), what="the stored pod")
    return admit_update(before, parsed(new), user=user, config=RULES)


def stored(pod: Json, outcome: AdmissionResult) -> Json:
    """The pod as the API server keeps it after *outcome*: patched, its amounts in short form."""
    result: Json = copy.deepcopy(pod)
    if isinstance(outcome, Patched):
        result = json_patch(result, list(msgspec.to_builtins(outcome.edits)))
    spec = result["spec"]
    for container in (*(spec.get("initContainers") or ()), *spec["containers"]):
        resources = container.get("resources") or {}
        for amounts in (resources.get("limits") or {}, resources.get("requests") or {}):
            for key in amounts:
                amounts[key] = canonical(amounts[key])
    return result


def patched(outcome: AdmissionResult | None) -> Patched:
    """Return the edits of a pod that was granted something; anything else fails."""
    assert isinstance(outcome, Patched), outcome
    return outcome


def denied(outcome: AdmissionResult | None) -> Denied:
    """Return a refusal; anything else fails."""
    assert isinstance(outcome, Denied), outcome
    return outcome


def worded(pod: Json) -> Json:
    """Return the pod with only the words of its grant."""
    annotations = pod["metadata"]["annotations"]
    words = annotations["fracgpu.io/granted"].partition("\n")[0]
    metadata = {**pod["metadata"], "annotations": {**annotations, "fracgpu.io/granted": words}}
    return {**pod, "metadata": metadata}


def a_review(pod: Json | None, **request: Any) -> Json:
    """Return an AdmissionReview as kube-apiserver sends it, with *request* replacing fields."""
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "9e8992f7-5761-4a27-a7b0-501b0d61c7f6",
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "requestKind": {"group": "", "version": "v1", "kind": "Pod"},
            "requestResource": {"group": "", "version": "v1", "resource": "pods"},
            "name": "job-1",
            "namespace": "ml",
            "operation": "CREATE",
            "userInfo": {"username": "alice", "groups": ["system:authenticated"]},
            "object": pod,
            "oldObject": None,
            "dryRun": False,
            "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"},
            **request,
        },
    }
