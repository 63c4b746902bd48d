"""The CEL conditions of deploy/webhook.yaml: which objects reach which webhook."""

from pathlib import Path
from typing import Any

import cel
import pytest

from fracgpu import names
from fracgpu.request.dialects.registry import DIALECTS
from simulator.apiserver.admission.match_conditions import context
from tests.support.yaml_files import read_documents
from tests.webhook.builders import a_container, judged, stored
from tests.webhook.builders import a_pod as admitted_pod
from webhook.admission_config import BUILT_IN_WORKLOADS

Json = dict[str, Any]

KEY = "fracgpu.io/fraction"

DEPLOY = Path(__file__).parents[2] / "deploy"


def entries(kind: str) -> dict[str, Json]:
    documents = read_documents((DEPLOY / "webhook.yaml").read_text())
    (found,) = [document for document in documents if document["kind"] == kind]
    return {webhook["name"]: webhook for webhook in found["webhooks"]}


MUTATING = entries("MutatingWebhookConfiguration")
VALIDATING = entries("ValidatingWebhookConfiguration")
PODS = {name: entry for name, entry in MUTATING.items() if "pods." in name}
WORKLOADS = {name: entry for name, entry in VALIDATING.items() if not name.startswith("other.")}
TEMPLATES = {name: entry for name, entry in MUTATING.items() if name.startswith("templates.")}
OTHERS = {
    name: entry for name, entry in {**MUTATING, **VALIDATING}.items() if name.startswith("other.")
}


def asked(entry: Json, new: Json, old: Json | None = None) -> bool:
    variables = context({"object": new, "oldObject": old})
    return all(
        cel.evaluate(condition["expression"], variables) for condition in entry["matchConditions"]
    )


def who(entries_: dict[str, Json], new: Json, old: Json | None = None) -> list[str]:
    """Return the first words of the webhooks that an object reaches, in any namespace."""
    return [name.split(".")[0] for name, webhook in entries_.items() if asked(webhook, new, old)]


def a_pod(
    *limits: str, init: str = "", notes: tuple[str, ...] = (), labels: tuple[str, ...] = ()
) -> Json:
    pod: Json = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c"}]}}
    if labels:
        pod["metadata"]["labels"] = dict.fromkeys(labels, "1")
    if notes:
        pod["metadata"]["annotations"] = dict.fromkeys(notes, "1")
    if limits:
        pod["spec"]["containers"][0]["resources"] = {"limits": dict.fromkeys(limits, "1")}
    if init:
        pod["spec"]["initContainers"] = [{"name": "i", "resources": {"limits": {init: "1"}}}]
    return pod


def a_workload(pod: Json, *, cron: bool = False, notes: tuple[str, ...] = ()) -> Json:
    spec: Json = {"template": {"spec": pod["spec"]}}
    metadata = {key: value for key, value in pod["metadata"].items() if key != "name"}
    if metadata:
        spec["template"]["metadata"] = metadata
    body: Json = {"metadata": {"name": "w"}, "spec": {"jobTemplate": {"spec": spec}}}
    body["spec"] = body["spec"] if cron else spec
    if notes:
        body["metadata"]["annotations"] = dict.fromkeys(notes, "1")
    return body


FOREIGN = sorted(
    {(key, key in dialect.quiet) for dialect in DIALECTS for key in dialect.limits.exact}
    | {("nvidia.com/gpu-10gb", False)}
)
FOREIGN_NOTES = sorted(
    {key for dialect in DIALECTS for key in dialect.annotations.exact - dialect.quiet}
    | {
        "nvidia.cdi.k8s.io/train.gpu-memory.request",
        "kai.scheduler/container.train.gpu-memory.portion.limit",
        "elasticgpu.io/egpuc-train",
        "egpuc.elasticgpu.io/train",
    }
)


@pytest.mark.parametrize("cron", [False, True])
@pytest.mark.parametrize(
    ("pod", "first_words"),
    [
        (a_pod(), []),
        (a_pod("cpu", notes=("team", "nvidia.com.example/gpu")), []),
        (a_pod("amd.com/gpu", "nvidia.com/mig-1g.5gb"), []),
        (a_pod(notes=("fracgpu.io/fraction",)), [""]),
        (a_pod("fracgpu.io/gpu-mem"), [""]),
        (a_pod(init="fracgpu.io/gpu-mem"), [""]),
        (a_pod("nvidia.com/gpu"), ["dialects"]),
        (a_pod("aliyun.com/gpu-mem"), ["dialects", "hints"]),
        (a_pod(init="aliyun.com/gpu-mem"), ["dialects", "hints"]),
        (a_pod(notes=("gpu-fraction",)), ["dialects", "hints"]),
        (a_pod("aliyun.com/gpu-mem", notes=("fracgpu.io/model",)), [""]),
        (a_pod(notes=("FracGPU.io/Fraction",)), [""]),
        (a_pod(notes=("xfracgpu.io/fraction", "fluid.io/memory", "fragpu.io/team")), []),
        (a_pod(notes=("fracgpu/fraction",)), [""]),
        (a_pod(notes=("team", "fragpu.io/fraction")), [""]),
        (a_pod(notes=("Frac-GPU/memory", "team")), [""]),
        (a_pod(labels=("fracgpu.io/fraction",)), [""]),
        (a_pod(labels=("app", "fracgpu.com/fraction")), [""]),
        (a_pod(labels=("fracgpu.io.fraction",)), [""]),
        (a_pod(labels=("fragpu.io/memory",)), [""]),
        (a_pod(labels=("fracgpu-team", "fraction", "fluid.io/memory", "x/fracgpu.io")), []),
        (a_pod("aliyun.com/gpu-mem", labels=("fracgpu.io/fraction",)), [""]),
    ],
)
def test_who_is_asked_about_depends_on_the_keys_alone_and_nobody_is_asked_about_twice(
    pod: Json, first_words: list[str], *, cron: bool
) -> None:
    assert who(PODS, pod) == [word or "pods" for word in first_words]
    assert who(WORKLOADS, a_workload(pod, cron=cron)) == [
        word or "workloads" for word in first_words
    ]


@pytest.mark.parametrize(("key", "quiet"), FOREIGN)
def test_every_resource_of_every_dialect_is_asked_about(key: str, *, quiet: bool) -> None:
    # Plain nvidia.com/gpu means whole cards in a cluster without dialects.
    wanted = ["dialects"] if key in ("nvidia.com/gpu", "nvidia.com/gpu.shared") else None
    assert who(PODS, a_pod(key)) == (wanted or ["dialects", "hints"])
    assert who(PODS, a_pod(notes=(key,)))[:1] == ["dialects"]


@pytest.mark.parametrize("key", FOREIGN_NOTES)
def test_every_annotation_of_every_dialect_is_asked_about(key: str) -> None:
    assert who(PODS, a_pod(notes=(key,))) == ["dialects", "hints"]


@pytest.mark.parametrize("cron", [False, True])
def test_an_update_that_leaves_the_template_is_not_asked_about(*, cron: bool) -> None:
    workload = a_workload(a_pod(notes=("fracgpu.io/fraction",)), cron=cron)
    scaled = {**workload, "spec": {**workload["spec"], "replicas": 9}}
    other = a_workload(a_pod(notes=("fracgpu.io/memory",)), cron=cron)

    assert who(WORKLOADS, scaled, workload) == []
    assert who(WORKLOADS, other, workload) == ["workloads"]


@pytest.mark.parametrize("part", ["annotations", "labels"])
def test_an_update_of_a_pod_is_asked_about_where_it_changes_what_is_read(part: str) -> None:
    """What ends a pod is not: a Job's controller takes its finalizer off while we are down."""
    pod = a_pod(notes=(KEY, "team"))
    ended = {**pod, "metadata": {**pod["metadata"], "finalizers": [], "ownerReferences": []}}
    ended["metadata"][part] = {**pod["metadata"].get(part, {}), "team": "other"}
    gated = {**pod, "spec": {**pod["spec"], "nodeSelector": {"zone": "a"}}}
    assert who(PODS, ended, pod) == []
    assert who(PODS, gated, pod) == ["pods"]
    slips = ("FracGPU.io/fraction", "fracgpu/fraction", "fragpu.io/fraction")
    for key in (KEY, "fracgpu.io/fractoin", *slips):
        noted = {**pod, "metadata": {**pod["metadata"], part: {KEY: "1", key: "0.5"}}}
        if part == "annotations" or key.startswith("f"):
            assert who(PODS, noted, a_pod()) == who(PODS, noted, pod) == ["pods"], key
    bare = {**pod, "metadata": {"name": "p", "annotations": {"fracgpu.io/rebalance": "never"}}}
    assert who(PODS, bare, pod) == ["pods"], "a key that is removed"


def test_a_request_on_the_workload_itself_is_asked_about_so_that_its_author_is_warned() -> None:
    plain = a_workload(a_pod(), notes=("team",))
    for part in ("annotations", "labels"):
        workload = a_workload(a_pod(), notes=("team",))
        workload["metadata"].setdefault(part, {})["fracgpu.io/fraction"] = "1"

        assert who(WORKLOADS, workload) == ["workloads"]
        # Also by kubectl annotate, on a workload that is there already.
        assert who(WORKLOADS, workload, plain) == ["workloads"]
        assert who(WORKLOADS, workload, workload) == []
        assert who(TEMPLATES, workload, plain) == []
        assert who(WORKLOADS, plain, workload) == []


@pytest.mark.parametrize("part", ["annotations", "labels"])
def test_a_request_on_the_jobs_of_a_cron_job_is_asked_about_too(part: str) -> None:
    workload = a_workload(a_pod(), cron=True)
    workload["spec"]["jobTemplate"]["metadata"] = {part: {"fracgpu.io/fraction": "1"}}
    other = a_workload(a_pod(), cron=True)
    other["spec"]["jobTemplate"]["metadata"] = {part: {"app": "1"}}

    assert who(WORKLOADS, workload) == ["workloads"]
    assert who(WORKLOADS, other) == []


def test_who_translated_a_pod_is_asked_again_when_another_webhook_has_changed_it() -> None:
    """The API server repeats only calls that it made: of those the entry for ours is none."""
    limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "50"}
    foreign = granted(admitted_pod(a_container(resources={"limits": limits})))
    ours = granted(admitted_pod(fraction="0.5"))

    own_keys = {"key": names.GRANTED, "operator": "NotIn", "values": ["true"]}
    selectors = {"dialects": {"matchExpressions": [own_keys]}}
    selectors["hints"] = selectors["dialects"]

    assert who(PODS, foreign) == ["pods", "dialects", "hints"]
    assert foreign["metadata"]["labels"] == {names.GRANTED: "translated"}
    assert who(PODS, ours) == ["pods"]
    assert ours["metadata"]["labels"] == {names.GRANTED: "true"}
    assert {
        name.split(".")[0]: entry["objectSelector"]
        for name, entry in PODS.items()
        if "objectSelector" in entry
    } == selectors


def granted(pod: Json) -> Json:
    """Return the pod as it is stored where HAMi's dialect is on."""
    return stored(pod, judged(pod, labels={names.DIALECTS_LABEL: "hami"}))


@pytest.mark.parametrize(
    "entry", [*MUTATING.values(), *VALIDATING.values()], ids=lambda webhook: webhook["name"]
)
def test_each_entry_fails_as_it_should_and_leaves_the_systems_namespaces_alone(
    entry: Json,
) -> None:
    selector = entry["namespaceSelector"]["matchExpressions"]
    assert selector[0]["values"] == ["fracgpu-system", "kube-system"]
    hints = entry["name"].startswith("hints")
    assert entry["failurePolicy"] == ("Ignore" if hints else "Fail")
    assert entry["timeoutSeconds"] == (2 if hints else 5)
    labelled = [
        requirement["operator"]
        for requirement in selector
        if requirement["key"] == names.DIALECTS_LABEL
    ]
    if hints:
        assert labelled == ["DoesNotExist"]
    elif entry["name"].startswith("dialects"):
        assert labelled == ["Exists", "NotIn"]
    else:
        assert labelled == []


def test_every_built_in_workload_is_asked_about() -> None:
    own = {(kind.group, f"{kind.kind.lower()}s") for kind in BUILT_IN_WORKLOADS}
    others = {(group, plural) for group, plural in own if "." in group}
    for entry in (*WORKLOADS.values(), TEMPLATES["templates.fracgpu.io"]):
        assert ruled(entry) == own - others
    assert len(OTHERS) == 2
    for entry in OTHERS.values():
        assert ruled(entry) == others


def ruled(entry: Json) -> set[tuple[str, str]]:
    return {
        (group, resource)
        for rule in entry["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }


def nested(path: str, template: Json) -> Json:
    """Return an object with *template* at *path*, beside another item of each list."""
    step, _, rest = path.partition(".")
    inside = nested(rest, template) if rest else template
    return [{}, inside] if step == "*" else {step: inside}  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("kind", "path"),
    [(kind, path) for kind in BUILT_IN_WORKLOADS for path in kind.templates],
    ids=str,
)
def test_a_template_is_found_at_each_place_of_a_built_in_kind(kind: Any, path: str) -> None:
    other = "." in kind.group
    entries_ = OTHERS if other else TEMPLATES | WORKLOADS
    for words in ("metadata", "resources"):
        template = a_pod("fracgpu.io/gpu-mem") if words == "resources" else a_pod(notes=(KEY,))
        body = {"metadata": {"name": "w"}, **nested(path, template)}
        wanted = ["other", "other"] if other else ["templates", "workloads"]
        assert who(entries_, body) == wanted
        changed = {"metadata": {"name": "w"}, **nested(path, a_pod(notes=(KEY, "team")))}
        assert who(entries_, changed, body) == wanted
        assert who(entries_, {**body, "status": {}}, body) == []
    plain = {"metadata": {"name": "w"}, **nested(path, a_pod())}
    assert who(entries_, plain) == []


@pytest.mark.parametrize("spec", [{}, {"replicatedJobs": [{}]}, {"headGroupSpec": {}}])
def test_what_another_systems_object_lacks_is_no_error(spec: Json) -> None:
    for entry in OTHERS.values():
        assert not asked(entry, {"metadata": {"name": "w"}, "spec": spec})


def test_the_templates_of_what_a_controller_made_are_left_alone() -> None:
    workload = a_workload(a_pod(notes=(KEY,)))
    for controller, wanted in ((True, []), (False, ["templates"])):
        owner = {"kind": "Deployment", "name": "w", "controller": controller}
        workload["metadata"]["ownerReferences"] = [owner]
        assert who(TEMPLATES, workload) == wanted
