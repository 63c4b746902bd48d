"""Grants in pod templates: who gets one, when it changes, and that pods do not suffer from it."""

import copy
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fracgpu.cards.card_class import CardClass
from fracgpu.k8s.quantity import canonical
from fracgpu.request.grant import ClassRule
from fracgpu.state.pod_info import decode_pod_info
from simulator.apiserver.apimachinery.patches import json_patch
from tests.webhook.admission.test_mutation import classes_st, pods
from tests.webhook.builders import (
    A30S,
    CLASSES,
    H100S,
    RULES,
    Json,
    a_container,
    a_pod,
    a_review,
    judged,
    parsed,
    patched,
    stored,
)
from webhook.admission.context import DecisionContext
from webhook.admission.review import read_review
from webhook.admission.template_grant import read_template_grant, write_template_grant
from webhook.admission.verdict import AdmissionResult, Allowed, Denied, Patched
from webhook.admission.workload import admit_workload, grant_templates
from webhook.admission_config import BUILT_IN_WORKLOADS, AdmissionConfig, WorkloadKind

ON = {"fracgpu.io/grant-templates": "true"}
KEY = "fracgpu.io/template-grant"
MEM = "fracgpu.io/gpu-mem"
DEPLOYMENT = BUILT_IN_WORKLOADS[0]


def reviewed(  # noqa: PLR0913 - what a test varies
    body: Json,
    old: Json | None = None,
    *,
    kind: WorkloadKind = DEPLOYMENT,
    classes: Sequence[CardClass] | None = CLASSES,
    rules: AdmissionConfig = RULES,
    labels: dict[str, str] | None = None,
    judge: Any = grant_templates,
) -> AdmissionResult:
    request: Json = {"kind": {"group": kind.group, "kind": kind.kind}}
    if old is not None:
        request |= {"operation": "UPDATE", "oldObject": old}
    review = read_review(json.dumps(a_review(body, **request)).encode())
    context = DecisionContext(
        classes=classes, config=rules, namespace_labels=ON if labels is None else labels
    )
    result: AdmissionResult = judge(review, context)
    return result


def granted(body: Json, old: Json | None = None, **changes: Any) -> Json:
    """Return the object as the API server has it after our review, its amounts in short form."""
    outcome = reviewed(body, old, **changes)
    result = copy.deepcopy(body)
    if isinstance(outcome, Patched):
        result = json_patch(result, list(msgspec.to_builtins(outcome.edits)))
    assert not isinstance(outcome, Denied)
    found: Json = shortened(result)
    return found


def shortened(value: Any) -> Any:
    if isinstance(value, list):
        return [shortened(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: canonical(inside) if key == MEM else shortened(inside) for key, inside in value.items()
    }


def a_deployment(*containers: Json, template: Json | None = None, **asks: str) -> Json:
    pod = template or a_pod(*containers, also=asks)
    return {"metadata": {"name": "w"}, "spec": {"template": pod}}


def amounts(body: Json) -> dict[str, Any]:
    pod = body["spec"]["template"]
    containers = (*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"])
    return {each["name"]: each.get("resources") for each in containers}


def record(body: Json) -> str | None:
    found: str | None = body["spec"]["template"]["metadata"].get("annotations", {}).get(KEY)
    return found


def a_pod_of(body: Json) -> Json:
    template = body["spec"]["template"]
    metadata = {**template["metadata"], "name": "w-1", "namespace": "ml"}
    return copy.deepcopy({**template, "metadata": metadata})


HALF = {"limits": {MEM: "40960"}, "requests": {MEM: "40960"}}


def test_a_template_gets_the_mib_of_its_request_and_nothing_else() -> None:
    asked = a_deployment(
        a_container("train", resources={"limits": {"cpu": "2"}}),
        a_container("eval"),
        a_container("log"),
        fraction="train=0.5, eval=0.25",
        cards="eval=2",
    )

    body = granted(asked)

    assert amounts(body) == {
        "train": {"limits": {"cpu": "2", MEM: "40960"}, "requests": {MEM: "40960"}},
        "eval": {"limits": {MEM: "40960"}, "requests": {MEM: "40960"}},
        "log": None,
    }
    assert record(body) == "train=40960, eval=40960"
    without = copy.deepcopy(body)
    del without["spec"]["template"]["metadata"]["annotations"][KEY]
    for container in without["spec"]["template"]["spec"]["containers"]:
        container.pop("resources", None)
    plain = copy.deepcopy(asked)
    for container in plain["spec"]["template"]["spec"]["containers"]:
        container.pop("resources", None)
    assert without == plain


@pytest.mark.parametrize(
    ("labels", "cluster", "wanted"),
    [
        ({}, False, None),
        ({}, True, "train=40960"),
        (ON, False, "train=40960"),
        ({"fracgpu.io/grant-templates": "false"}, True, None),
        ({"fracgpu.io/grant-templates": "yes"}, True, None),
    ],
)
def test_the_namespaces_label_goes_before_what_the_cluster_says(
    labels: dict[str, str], wanted: str | None, *, cluster: bool
) -> None:
    rules = replace(RULES, grant_templates=cluster)

    assert record(granted(a_deployment(fraction="0.5"), labels=labels, rules=rules)) == wanted


@pytest.mark.parametrize("kind", BUILT_IN_WORKLOADS, ids=lambda kind: kind.kind)
def test_every_template_of_every_built_in_kind_is_granted(kind: WorkloadKind) -> None:
    body: Json = {"metadata": {"name": "w"}}
    for path in kind.templates:
        place = body
        *steps, last = path.replace(".*.", ".0.").split(".")
        for step, after in zip(steps, [*steps, last][1:], strict=True):
            if step == "0":
                continue
            place = place.setdefault(step, [{}] if after == "0" else {})
            place = place[0] if after == "0" else place
        place[last] = a_pod(fraction="0.5")

    outcome = reviewed(body, kind=kind)

    assert isinstance(outcome, Patched)
    text = json.dumps(granted(body, kind=kind))
    assert text.count(f'"{KEY}": "train=40960"') == len(kind.templates)
    assert isinstance(reviewed(granted(body, kind=kind), kind=kind), Allowed)
    assert not isinstance(
        reviewed(granted(body, kind=kind), kind=kind, judge=admit_workload), Denied
    )


def test_what_the_author_states_is_not_ours() -> None:
    for resources in ({"limits": {MEM: "40960"}}, HALF):
        body = a_deployment(a_container(resources=copy.deepcopy(resources)), fraction="0.5")
        assert granted(body) == body
    plain = a_deployment(a_container(resources=copy.deepcopy(HALF)))
    assert granted(plain) == plain


def test_requests_in_other_systems_words_are_left_to_the_pods() -> None:
    labels = {**ON, "fracgpu.io/dialects": "gpushare"}
    foreign = a_deployment(a_container(resources={"limits": {"aliyun.com/gpu-mem": "4"}}))

    assert granted(foreign, labels=labels) == foreign


def test_a_template_that_is_refused_is_left_to_the_check_that_says_why() -> None:
    bad = a_deployment(fraction="2")
    odd = a_deployment(template={"metadata": {"annotations": {"fracgpu.io/fraction": 1}}})

    assert (granted(bad), granted(odd)) == (bad, odd)
    assert isinstance(reviewed(granted(bad), judge=admit_workload), Denied)


def test_while_the_cluster_is_not_read_nothing_changes() -> None:
    body = granted(a_deployment(fraction="0.5"))
    body["spec"]["template"]["spec"]["nodeName"] = "x"

    assert granted(body, classes=None) == body


def test_what_a_controller_made_is_left_as_it_is() -> None:
    """A ReplicaSet that differs from its Deployment is not found again, and another is made."""
    body = a_deployment(fraction="0.5")
    body["metadata"]["ownerReferences"] = [{"kind": "Deployment", "name": "w", "controller": True}]

    assert granted(body) == body


OTHER_ORDER = (A30S, H100S)


def test_the_same_manifest_again_changes_nothing_whatever_the_cluster_has() -> None:
    manifest = a_deployment(fraction="0.5")
    live = granted(manifest)

    # A replacement of the whole, as of a list in a custom resource, and a merge of annotations.
    merged = copy.deepcopy(manifest)
    merged["spec"]["template"]["metadata"]["annotations"][KEY] = record(live)
    for classes in (CLASSES, OTHER_ORDER, (A30S,)):
        for sent in (manifest, merged, live):
            assert granted(sent, live, classes=classes) == live


def test_a_container_put_before_the_one_of_the_templates_grant_takes_no_share() -> None:
    pod = a_pod_of(granted(a_deployment(fraction="0.5")))
    pod["spec"]["containers"].insert(0, a_container("proxy"))

    again = stored(pod, judged(pod))

    need = decode_pod_info(json.dumps(again).encode()).need
    assert need is not None
    assert [(each.name, each.mib) for each in need.containers] == [("train", 40960)]


def test_another_default_container_gets_what_the_first_one_had() -> None:
    live = granted(a_deployment(a_container("web"), a_container(), fraction="0.5"))
    changed = copy.deepcopy(live)
    notes = changed["spec"]["template"]["metadata"]["annotations"]
    notes["kubectl.kubernetes.io/default-container"] = "train"

    assert record(granted(changed, live)) == "train=40960"


def test_a_new_image_keeps_what_was_written_and_a_new_request_does_not() -> None:
    live = granted(a_deployment(fraction="0.5"))
    image = copy.deepcopy(live)
    image["spec"]["template"]["spec"]["containers"][0]["image"] = "registry.example/app:2"
    smaller = copy.deepcopy(live)
    smaller["spec"]["template"]["metadata"]["annotations"]["fracgpu.io/fraction"] = "0.25"

    assert granted(image, live, classes=OTHER_ORDER) == image
    changed = granted(smaller, live)
    assert amounts(changed)["train"]["limits"] == {MEM: "20480"}
    assert record(changed) == "train=20480"


def test_new_selectors_are_judged_anew_but_for_a_suspended_job() -> None:
    """A queue adds selectors to a suspended Job, whose resources may be immutable."""
    live = granted(a_deployment(fraction="0.5"))
    moved = copy.deepcopy(live)
    moved["spec"]["template"]["spec"]["nodeSelector"] = {"pool": "a30"}
    assert record(granted(moved, live, classes=(A30S,))) == "train=12000"
    for suspended in ({"suspend": True}, {"runPolicy": {"suspend": True}}):
        held = copy.deepcopy(live)
        held["spec"] |= suspended
        assert granted(moved, held, classes=(A30S,)) == moved
        # A Job from before the namespace opted in.
        older = a_deployment(fraction="0.5")
        older["spec"] |= suspended
        admitted = copy.deepcopy(older)
        admitted["spec"]["template"]["spec"]["nodeSelector"] = {"pool": "a30"}
        assert granted(admitted, older) == admitted


def test_a_removed_request_takes_what_was_written_with_it() -> None:
    manifest = a_deployment(
        a_container("a", resources={"limits": {"cpu": "2"}}),
        a_container("b"),
        fraction="a=0.5,b=0.5",
    )
    live = granted(manifest)
    fewer = copy.deepcopy(live)
    fewer["spec"]["template"]["metadata"]["annotations"]["fracgpu.io/fraction"] = "b=0.5"
    none = copy.deepcopy(live)
    del none["spec"]["template"]["metadata"]["annotations"]["fracgpu.io/fraction"]

    left = granted(fewer, live)
    assert amounts(left) == {"a": {"limits": {"cpu": "2"}}, "b": HALF}
    assert record(left) == "b=40960"
    gone = granted(none, live)
    assert amounts(gone) == {"a": {"limits": {"cpu": "2"}}, "b": {}}
    assert record(gone) is None
    outcome = patched(reviewed(none, live))
    assert outcome.granted == "nothing"
    assert outcome.warnings == (
        "in spec.template: fracgpu.io/gpu-mem that FracGPU had written is removed; apply the "
        "manifest once more if it states that amount itself",
    )


def test_a_namespace_that_opts_out_loses_it_at_the_next_change_of_a_request() -> None:
    live = granted(a_deployment(fraction="0.5"))
    changed = copy.deepcopy(live)
    changed["spec"]["template"]["metadata"]["annotations"]["fracgpu.io/fraction"] = "0.25"

    assert granted(live, live, labels={}) == live
    left = granted(changed, live, labels={})
    assert record(left) is None
    assert amounts(left) == {"train": {}}


def test_a_record_without_a_request_says_nothing() -> None:
    """Whoever writes one while the webhook is away does not make it write amounts later."""
    odd = a_deployment()
    odd["spec"]["template"]["metadata"]["annotations"] = {KEY: "train=5"}
    bare = a_deployment()
    bare["spec"]["template"]["spec"]["nodeName"] = "x"

    assert granted(bare, odd) == bare
    gone = granted(odd)
    assert (record(gone), amounts(gone)) == (None, {"train": None})


def test_a_limit_of_the_author_replaces_what_was_written() -> None:
    live = granted(a_deployment(fraction="0.5"))
    own = copy.deepcopy(live)
    del own["spec"]["template"]["metadata"]["annotations"]["fracgpu.io/fraction"]
    own["spec"]["template"]["spec"]["containers"][0]["resources"] = {
        "limits": {MEM: "8k"},
        "requests": {MEM: "8k"},
    }

    assert amounts(granted(own, live)) == amounts(own)
    assert record(granted(own, live)) is None


def test_too_many_templates_and_too_large_objects_are_left_to_the_check() -> None:
    kind = next(kind for kind in BUILT_IN_WORKLOADS if kind.kind == "RayCluster")
    many = {"spec": {"workerGroupSpecs": [{"template": a_pod(fraction="0.5")}] * 65}}
    large = a_deployment(fraction="0.5", model="x" * 400 * 1024)

    assert granted(many, kind=kind) == many
    assert granted(large) == large


def test_a_pod_follows_its_template_to_a_class_that_is_not_the_most_free_any_more() -> None:
    body = granted(a_deployment(fraction="0.5"))

    pod = stored(a_pod_of(body), judged(a_pod_of(body), OTHER_ORDER))

    assert pod["spec"]["containers"][0]["resources"]["limits"][MEM] == "40960"
    assert KEY not in pod["metadata"]["annotations"]


@pytest.mark.parametrize("wait", [False, True])
def test_a_pod_whose_class_is_gone_is_granted_anew(*, wait: bool) -> None:
    body = granted(a_deployment(fraction="0.5"))
    rules = replace(RULES, card_classes=ClassRule(wait=wait))

    pod = stored(a_pod_of(body), judged(a_pod_of(body), (A30S,), rules=rules))

    wanted = {MEM: "12k", "fracgpu.io/gpu-slot": "1"}
    assert pod["spec"]["containers"][0]["resources"] == {"limits": wanted, "requests": wanted}
    assert isinstance(judged(pod, (A30S,)), Allowed)


def test_an_amount_that_we_did_not_write_contradicts_as_before() -> None:
    body = granted(a_deployment(fraction="0.5"))
    pod = a_pod_of(body)
    pod["spec"]["containers"][0]["resources"]["limits"][MEM] = "7"
    pod["spec"]["containers"][0]["resources"]["requests"][MEM] = "7"

    assert isinstance(judged(pod), Denied)


def test_an_annotation_that_cannot_be_read_says_nothing() -> None:
    for text in ("", "x", "a=0", "a=-1", "a=1e3", "A=1", "=1", f"a={'9' * 11}", "a=1,b=2"):
        assert read_template_grant({KEY: text}) == {}
    assert read_template_grant({KEY: "x, a=1"}) == {"a": 1}
    assert read_template_grant({}) == {}


@given(st.dictionaries(st.from_regex(r"[a-z0-9-]{1,63}", fullmatch=True), st.integers(1, 10**9)))
def test_what_is_written_is_read(written: dict[str, Any]) -> None:
    assert read_template_grant({KEY: write_template_grant(written)}) == written


@given(pods(), classes_st, classes_st, st.randoms())
def test_a_pod_gets_of_a_granted_template_what_it_gets_of_a_plain_one(
    template: Json, classes: list[CardClass], later: list[CardClass], order: Any
) -> None:
    plain = a_deployment(template=template)
    body = granted(plain, classes=classes)

    # The template is refused for the same reasons, and granting it again changes nothing.
    for judge in (admit_workload, grant_templates):
        first = reviewed(plain, classes=classes, judge=admit_workload)
        second = reviewed(body, classes=classes, judge=judge)
        if judge is admit_workload:
            assert second == first
        else:
            assert isinstance(second, Allowed)
    assert granted(plain, body, classes=later) == body or record(body) is None

    # Nor is a pod refused for it, whatever the cluster has by then.
    outcome, as_plain = (judged(a_pod_of(each), classes) for each in (body, plain))
    assert isinstance(outcome, Denied) == isinstance(as_plain, Denied)
    if not isinstance(outcome, Denied):
        assert stored(a_pod_of(body), outcome) == stored(a_pod_of(plain), as_plain)
    for cluster in (later, order.sample(classes, len(classes))):
        outcome, as_plain = (judged(a_pod_of(each), cluster) for each in (body, plain))
        if isinstance(as_plain, Denied):
            assert outcome == as_plain
            continue
        assert not isinstance(outcome, Denied)
        pod = stored(a_pod_of(body), outcome)
        assert judged(pod, cluster) == Allowed(warnings=outcome.warnings, dialect=outcome.dialect)
        assert read_template_grant(parsed(pod).annotations) == {}
