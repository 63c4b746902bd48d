"""deploy/policies-hints.yaml: whoever writes what FracGPU does not read is warned."""

from typing import Any

import pytest

from fracgpu import names
from fracgpu.disruption.candidates import ALLOWED
from fracgpu.request.dialects.registry import NAMES
from tests.support.kubectl import DEPLOY
from tests.support.policies import actions, documents, policy, refusals
from tests.support.yaml_files import read_documents

Json = dict[str, Any]

MISPLACED, QUOTAS = "fracgpu-misplaced-requests", "fracgpu-quotas"
KINDS = {"Namespace": "namespaces", "Service": "services", "ServiceAccount": "serviceaccounts"}
IN_A_POD = "in the annotations of a pod, or of the pod template of a Deployment or Job."


def an_object(kind: str = "Namespace", **metadata: Any) -> Json:
    return {"kind": kind, "metadata": {"name": "ml", **metadata}}


def said(new: Json, *, old: Json | None = None) -> list[str]:
    return refusals(MISPLACED, new, old=old, resource=KINDS[new["kind"]])


def test_they_warn_and_deny_nothing() -> None:
    assert actions(MISPLACED, labels={}) == actions(QUOTAS, labels={}) == ["Warn"]


REQUESTS = [
    (kind, part, key)
    for kind in KINDS
    for part in ("annotations", "labels")
    for key in (*names.REQUEST_KEYS, "fracgpu/fraction")
    # As a label of a namespace it says whether its pods may be moved.
    if (kind, part, key) != ("Namespace", "labels", names.REBALANCE)
]


@pytest.mark.parametrize(("kind", "part", "key"), REQUESTS)
def test_a_request_that_no_pod_makes_is_answered_with_where_it_belongs(
    kind: str, part: str, key: str
) -> None:
    meant = key.replace("fracgpu/", names.PREFIX)
    (message,) = said(an_object(kind, **{part: {"app": "x", key: "0.5"}}))

    assert message == f"{key} has no effect on a {kind}: write {meant} {IN_A_POD}"


def read_of_namespaces() -> set[str]:
    """Return the labels of namespaces by which something of deploy/ or of ours decides."""
    selectors: list[Json] = []

    def gather(part: Any) -> None:
        if isinstance(part, dict):
            if "namespaceSelector" in part:
                selectors.append(part["namespaceSelector"])
            part = list(part.values())
        for each in part if isinstance(part, list) else ():
            gather(each)

    for file in DEPLOY.rglob("*.yaml"):
        gather(list(read_documents(file.read_text())))
    keys = {key for each in selectors for key in each.get("matchLabels", {})}
    keys |= {rule["key"] for each in selectors for rule in each.get("matchExpressions", ())}
    ours = {
        *(names.DIALECTS_LABEL, names.GRANT_TEMPLATES_LABEL, names.WIRING_LABEL),
        names.REBALANCE,  # of the pods of a namespace: candidates.py
    }
    return ours | {key for key in keys if key.startswith(names.PREFIX)}


def test_labels_that_are_read_of_a_namespace_are_no_mistake() -> None:
    read = read_of_namespaces()

    assert {"fracgpu.io/devices", "fracgpu.io/foreign-assignments"} < read
    assert said(an_object(labels={key: WORDS.get(key, ("kai",))[0] for key in read})) == []
    (message,) = said(an_object(labels={"fracgpu.io/dialect": "kai"}))
    assert message.startswith("fracgpu.io/dialect has no effect: FracGPU reads of a namespace only")
    assert all(key in message for key in read)


WORDS = {
    names.GRANT_TEMPLATES_LABEL: ("true", "false"),
    names.REBALANCE: ("never", ALLOWED),
    names.WIRING_LABEL: ("claims", "devicePlugin"),
    "fracgpu.io/foreign-assignments": ("deny",),
    "fracgpu.io/devices": ("deny", "warn", "allow"),
}


@pytest.mark.parametrize("key", WORDS)
def test_a_value_of_a_label_that_means_nothing_is_answered_with_those_that_do(key: str) -> None:
    odd, words = an_object(labels={key: "yes"}), WORDS[key]

    assert said(odd) == [f'label {key} is "yes"; want {" or ".join(words)}.']
    assert said(odd, old=odd) == []
    for word in words:
        assert said(an_object(labels={key: word})) == []


def test_a_dialect_that_does_not_exist_is_named_where_it_is_turned_on() -> None:
    odd = an_object(labels={names.DIALECTS_LABEL: "kai.hamii"})
    (message,) = said(odd)

    assert message == (
        'label fracgpu.io/dialects names "hamii"; want all, none, or some of '
        f"{', '.join(NAMES)}, joined by dots."
    )
    assert said(odd, old=odd) == []
    for word in (*NAMES, "all", "none", "hami.kai"):
        assert said(an_object(labels={names.DIALECTS_LABEL: word})) == []


def test_a_label_of_a_namespace_that_was_written_as_an_annotation_is_a_mistake() -> None:
    (message,) = said(an_object(annotations={names.DIALECTS_LABEL: "kai"}))

    assert "reads of a namespace only the labels" in message


def test_what_was_there_before_is_not_said_again() -> None:
    before = an_object(annotations={names.FRACTION: "0.5"}, labels={"fracgpu.io/x": "y"})
    after = an_object(**{**before["metadata"], "annotations": {names.FRACTION: "0.7"}})

    assert said(before, old=before) == []
    assert len(said(after, old=before)) == 1
    assert said(an_object(), old=before) == []


@pytest.mark.parametrize("kind", KINDS)
def test_keys_of_others_are_not_spoken_of(kind: str) -> None:
    assert said(an_object(kind, annotations={"a": "b"}, labels={"fraction": "0.5"})) == []
    assert said(an_object(kind)) == []


@pytest.mark.parametrize(
    ("key", "counted"),
    [
        ("requests.fracgpu.io/gpu-mem", True),
        ("requests.fracgpu.io/gpu-slot", True),
        ("pods", True),
        ("fracgpu.deviceclass.resource.k8s.io/devices", True),
        ("fracgpu.io/gpu-mem", False),
        ("limits.fracgpu.io/gpu-mem", False),
        ("requests.fracgpu.io/fraction", False),
    ],
)
def test_a_quota_that_limits_nothing_is_answered_with_what_does(key: str, *, counted: bool) -> None:
    quota = {"metadata": {"name": "q"}, "spec": {"hard": {key: "1"}}}
    answer = [each.partition(":")[0] for each in refusals(QUOTAS, quota)]

    assert answer == ([] if counted else [f"{key} limits nothing"])


def test_a_quota_may_have_no_amounts() -> None:
    assert refusals(QUOTAS, {"metadata": {"name": "q"}, "spec": {}}) == []


def test_a_label_by_which_no_node_shares_is_answered_and_no_other_node_is_read_for_it() -> None:
    """As found: `kubectl label node NAME fracgpu.io/share=yes` was silent."""

    def a_node(word: str) -> Json:
        return {"metadata": {"name": "n", "labels": {names.SHARE_LABEL: word}}}

    def warned(new: Json, *, old: Json | None = None) -> list[str]:
        return refusals("fracgpu-share-labels", new, old=old, resource="nodes")

    odd, bare = a_node("yes"), {"metadata": {"name": "n"}}
    assert warned(odd) == warned(odd, old=a_node("true"))
    assert warned(odd) == [
        'label fracgpu.io/share is "yes", so the node shares no card; want true.'
    ]
    assert warned(odd, old=odd) == warned(bare, old=odd) == warned(a_node("true"), old=odd) == []
    assert actions("fracgpu-share-labels", labels={}) == ["Warn"]
    constraints = policy("fracgpu-share-labels")["matchConstraints"]
    assert constraints["objectSelector"]["matchExpressions"] == [
        {"key": names.SHARE_LABEL, "operator": "Exists"},
        {"key": names.SHARE_LABEL, "operator": "NotIn", "values": ["true", "false"]},
    ]


def test_nobody_pays_for_them_when_a_pod_is_created() -> None:
    """docs/decisions/0069: policies on pods are few."""
    matched = {
        resource
        for body in documents()
        if body["metadata"]["name"] in (MISPLACED, QUOTAS) and "matchConstraints" in body["spec"]
        for rule in body["spec"]["matchConstraints"]["resourceRules"]
        for resource in rule["resources"]
    }

    assert matched == {*KINDS.values(), "resourcequotas"}
