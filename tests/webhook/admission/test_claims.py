"""Pods where kube-scheduler allocates the cards: they name a claim in the place of limits."""

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given

from fracgpu.cards.card_class import CardClass
from fracgpu.device_claims.claims import claim_of
from fracgpu.device_claims.preparation import why_not_prepared
from fracgpu.request.grant_note import Seal, as_granted, granted_amounts
from fracgpu.state.pod_info import PodInfo, decode_pod_info
from simulator.apiserver.apimachinery.patches import json_patch
from tests.support.claims import allocated, decoded
from tests.support.claims import stored as stored_claim
from tests.support.core import a_card
from tests.webhook.admission.test_mutation import classes_st, pods
from tests.webhook.admission.test_update import applied_again
from tests.webhook.builders import (
    CLASSES,
    RULES,
    Json,
    a_container,
    a_pod,
    a_review,
    denied,
    judged,
    judged_change,
    parsed,
    patched,
    stored,
    worded,
)
from webhook.admission.context import DecisionContext
from webhook.admission.mutation import admit_create, refuse_written_keys
from webhook.admission.review import read_review
from webhook.admission.verdict import AdmissionResult, Allowed, Denied, Patched
from webhook.admission.workload import admit_workload, grant_templates
from webhook.admission_config import BUILT_IN_WORKLOADS

CLAIM = "fracgpu-0123456789"
ENTRY = {"name": "fracgpu", "resourceClaimName": CLAIM}
SEAL = Seal(key=b"secret", scope="ml", now=datetime(2026, 1, 5, 12, tzinfo=UTC))
RULES_HERE = replace(RULES, scheduler_name="default-scheduler")
MEM = "fracgpu.io/gpu-mem"
HALF_H100 = "train: 40960 MiB on 1 card (0.5 of a card that shares 81920 MiB)"


def asked(
    pod: Json,
    classes: Sequence[CardClass] = CLASSES,
    *,
    claim: str = CLAIM,
    labels: Mapping[str, str] | None = None,
    seal: Seal = SEAL,
) -> AdmissionResult:
    context = DecisionContext(
        classes=classes, config=RULES_HERE, namespace_labels=labels or {}, seal=seal, claim=claim
    )
    return admit_create(parsed(pod), context)


def granted(pod: Json, **changes: Any) -> Json:
    """Return the pod as it is stored."""
    outcome = asked(pod, **changes)
    assert isinstance(outcome, Patched), outcome
    return stored(pod, outcome)


def request_of(container: str) -> Json:
    return {"name": "fracgpu", "request": container}


def info_of(pod: Json) -> PodInfo:
    body = {**pod, "metadata": {**pod["metadata"], "uid": "u1"}}
    return decode_pod_info(json.dumps(body).encode())


def test_a_share_is_a_request_of_a_claim_that_does_not_exist_yet() -> None:
    expected = a_pod(
        a_container(resources={"claims": [request_of("train")]}),
        spec={"resourceClaims": [ENTRY]},
        fraction="0.5",
        granted=HALF_H100,
    )
    expected["metadata"]["labels"] = {"fracgpu.io/granted": "true"}

    assert worded(granted(a_pod(fraction="0.5"))) == expected


def test_limits_of_ours_are_removed_and_the_others_stay() -> None:
    amounts = {MEM: "8k", "cpu": "2"}
    train = a_container(resources={"limits": dict(amounts), "requests": dict(amounts)})

    pod = granted(a_pod(train))

    assert pod["spec"]["containers"][0]["resources"] == {
        "limits": {"cpu": "2"},
        "requests": {"cpu": "2"},
        "claims": [request_of("train")],
    }
    need = info_of(pod).need
    assert need is not None
    assert [(each.name, each.mib, each.cards) for each in need.containers] == [("train", 8000, 1)]


def test_each_container_with_a_share_has_a_request_and_the_others_see_no_card() -> None:
    other = a_container("log", resources={"claims": [{"name": "nic"}]})
    own = {"name": "nic", "resourceClaimName": "my-nic"}
    pod = granted(
        a_pod(
            a_container("train"),
            a_container("eval", resources={"claims": [{"name": "nic"}]}),
            other,
            init=[a_container("load")],
            spec={"resourceClaims": [own]},
            also={
                "fraction": "train=1",
                "cards": "train=2,eval=1,load=1",
                "memory": "eval=8Gi,load=1Gi",
            },
        )
    )

    assert pod["spec"]["resourceClaims"] == [own, ENTRY]
    (load,), (train, evaluated, log) = pod["spec"]["initContainers"], pod["spec"]["containers"]
    assert load["resources"] == {"claims": [request_of("load")]}
    assert train["resources"] == {"claims": [request_of("train")]}
    assert evaluated["resources"] == {"claims": [{"name": "nic"}, request_of("eval")]}
    assert log["resources"] == {"claims": [{"name": "nic"}]}
    assert log["env"] == [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]
    need = info_of(pod).need
    assert need is not None
    assert {each.name: (each.cards, each.mib) for each in need.containers} == {
        "load": (1, 1024),
        "train": (2, 81920),
        "eval": (1, 8192),
    }


def test_a_request_of_another_system_is_a_claim_too() -> None:
    limits = {"nvidia.com/gpumem": "3000", "cpu": "1"}
    resources = {"limits": limits, "requests": dict(limits)}
    pod = a_pod(a_container(resources=resources), spec={"schedulerName": "hami-scheduler"})

    outcome = patched(asked(pod, labels={"fracgpu.io/dialects": "hami"}))

    once = stored(pod, outcome)
    assert once["spec"]["schedulerName"] == "default-scheduler"
    assert once["spec"]["containers"][0]["resources"] == {
        "limits": {"cpu": "1"},
        "requests": {"cpu": "1"},
        "claims": [request_of("train")],
    }
    assert once["metadata"]["annotations"]["fracgpu.io/memory"] == "3000Mi"


@pytest.mark.parametrize(
    ("scheduler", "stored_as", "warned"),
    [
        ("default-scheduler", "default-scheduler", ()),
        ("fracgpu-scheduler", "default-scheduler", ()),
        (
            "batch",
            "batch",
            (
                "spec.schedulerName is 'batch', which was left as it is: the pod gets its card "
                "only if that scheduler allocates ResourceClaims, as default-scheduler does",
            ),
        ),
    ],
)
def test_a_pod_keeps_its_scheduler_unless_there_is_none_of_that_name(
    scheduler: str, stored_as: str, warned: tuple[str, ...]
) -> None:
    pod = a_pod(fraction="0.5", spec={"schedulerName": scheduler})

    outcome = asked(pod)

    assert outcome.warnings == warned  # type: ignore[union-attr]
    assert stored(pod, outcome)["spec"]["schedulerName"] == stored_as


def test_what_a_later_webhook_took_away_is_written_again() -> None:
    once = granted(a_pod(fraction="0.5"))
    less = copy.deepcopy(once)
    del less["spec"]["resourceClaims"], less["spec"]["containers"][0]["resources"]

    assert granted(less, claim="fracgpu-ffffffffff") == once


@given(pods(), classes_st)
def test_admission_is_idempotent_and_the_grant_says_the_whole_need(
    pod: Json, classes: list[CardClass]
) -> None:
    outcome = asked(pod, classes)
    if isinstance(outcome, Denied):
        return
    once = stored(pod, outcome)
    again = asked(once, classes, claim="fracgpu-ffffffffff")
    assert again == Allowed(warnings=outcome.warnings, dialect=outcome.dialect)
    if isinstance(outcome, Allowed):
        return
    found = info_of(once)
    assert found.device_claim == CLAIM
    assert found.need is not None
    for container in (*once["spec"].get("initContainers", ()), *once["spec"]["containers"]):
        resources = container.get("resources") or {}
        for amounts in (resources.get("limits") or {}, resources.get("requests") or {}):
            assert not any(key.startswith("fracgpu.io/") for key in amounts)
    elsewhere = judged(pod, classes, rules=RULES)
    assert not isinstance(elsewhere, Denied)
    need = info_of(stored(pod, elsewhere)).need
    assert need is not None
    if not once["spec"].get("initContainers"):  # else another class may be the first that fits
        assert found.need == as_granted(
            need, granted_amounts(found.annotations["fracgpu.io/granted"])
        )


def test_the_claim_for_a_granted_pod_is_one_that_the_node_prepares() -> None:
    card = a_card("GPU-1", mib=81920)
    pod = granted(a_pod(fraction="0.5", cores="30"))
    info = info_of(pod)
    assert info.need is not None
    choice = {"train": [card.uuid]}
    body = claim_of(info.record, info.device_claim, info.need, choice)
    claim = decoded(allocated(stored_claim(body), choice, node="n1", pod=info.record))

    assert claim.name == CLAIM
    assert why_not_prepared(claim, info, node="n1", cards=[card], prepared=[]) == ""


REFUSED: dict[str, tuple[Json, str]] = {
    "an entry under our name": (
        a_pod(fraction="0.5", spec={"resourceClaims": [ENTRY]}),
        "spec.resourceClaims[].name is 'fracgpu'; want another name: FracGPU gives this one to the "
        "claim that it makes for a pod; leave it out, or rename it there and in the containers' "
        "resources.claims",
    ),
    "the same in a pod without a request": (
        a_pod(spec={"resourceClaims": [{"name": "fracgpu", "resourceClaimTemplateName": "t"}]}),
        "spec.resourceClaims[].name is 'fracgpu'; want another name: FracGPU gives this one to the "
        "claim that it makes for a pod; leave it out, or rename it there and in the containers' "
        "resources.claims",
    ),
    "the claim of another pod": (
        a_pod(spec={"resourceClaims": [{"name": "mine", "resourceClaimName": CLAIM}]}),
        f"resourceClaimName of spec.resourceClaims['mine'] is '{CLAIM}'; want a claim of your own: "
        "fracgpu- and ten hexadecimal digits is the name of a claim that FracGPU makes for one pod",
    ),
    "a container that uses the share of another": (
        a_pod(
            a_container(),
            a_container("thief", resources={"claims": [request_of("train")]}),
            fraction="train=0.5",
        ),
        "resources.claims of container 'thief' is 'fracgpu'; want no such claim: only the FracGPU "
        "webhook writes it; ask for a share with fracgpu.io/fraction or fracgpu.io/memory",
    ),
    "a resize": (
        a_pod(memory="8Gi", resize="9Gi"),
        "fracgpu.io/resize is '9Gi'; want no resize: with `wiring: claims` the amounts of a "
        "running pod cannot change; create the pod anew; with fracgpu.io/memory-limit it may use "
        "more while it runs",
    ),
    "more containers than requests": (
        a_pod(
            *(a_container(f"c{at}") for at in range(33)),
            memory=",".join(f"c{at}=1Mi" for at in range(33)),
        ),
        "the pod is '33 containers with a share'; want at most 32, as many requests as a "
        "ResourceClaim can have",
    ),
    "more cards than devices": (
        a_pod(
            *(a_container(f"c{at}") for at in range(9)),
            memory=",".join(f"c{at}=1Mi" for at in range(9)),
            cards=",".join(f"c{at}=4" for at in range(9)),
        ),
        "the pod is '36 cards for all containers together'; want at most 32, as many devices as a "
        "ResourceClaim can have",
    ),
    "init containers that only fit before the others": (
        a_pod(
            a_container("train"),
            init=[a_container("load")],
            fraction="train=1,load=1",
            cards="train=4,load=1",
        ),
        "fracgpu.io/fraction is 'load=1, train=1'; want at most what one node has, 4 cards, in one "
        "pod: with `wiring: claims` init containers hold their shares beside the other containers",
    ),
}


@pytest.mark.parametrize(("pod", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_what_no_claim_can_do_is_refused_in_these_words(pod: Json, message: str) -> None:
    assert denied(asked(pod)).message == message


@pytest.mark.parametrize(
    "pod",
    [
        REFUSED["more containers than requests"][0],
        REFUSED["init containers that only fit before the others"][0],
    ],
    ids=["containers", "init"],
)
def test_with_the_device_plugin_the_same_pods_are_granted(pod: Json) -> None:
    assert isinstance(judged(pod), Patched)


def test_an_init_container_that_fits_nowhere_is_refused_for_that() -> None:
    pod = a_pod(a_container("train"), init=[a_container("load")], memory="load=900Gi,train=1Gi")

    outcome, elsewhere = asked(pod), judged(pod)

    assert isinstance(outcome, Denied)
    assert isinstance(elsewhere, Denied)
    assert outcome.message == elsewhere.message


def test_users_own_claims_pass_untouched() -> None:
    own = {"name": "gpu", "resourceClaimName": "fracgpu-half"}
    template = {"name": "more", "resourceClaimTemplateName": "fracgpu-cards"}
    pod = a_pod(
        a_container(resources={"claims": [{"name": "gpu"}]}),
        spec={"resourceClaims": [own, template]},
    )

    assert asked(pod) == Allowed()


def test_someone_elses_grant_makes_no_claim_ones_own() -> None:
    """A copy of a granted pod is refused: its claim is of the first, and the seal is of old."""
    copied = granted(a_pod(fraction="0.5"), seal=Seal(key=b"guess", scope="ml", now=SEAL.now))

    assert denied(asked(copied)).message.startswith("spec.resourceClaims[].name is 'fracgpu'")


def test_where_requests_are_ignored_no_pod_names_our_claims_either() -> None:
    pod = parsed(REFUSED["the claim of another pod"][0])

    refused = refuse_written_keys(pod, with_claims=True)

    assert refused == Denied(message=REFUSED["the claim of another pod"][1])
    assert refuse_written_keys(pod, with_claims=False) is None


def test_a_pod_that_may_wait_is_told_what_counts_less() -> None:
    assert patched(asked(a_pod(fraction="1", cards="2", topology="nvlink"))).warnings == (
        "fracgpu.io/topology: if the pod has to wait for room, it may get cards of a node that are "
        "not the fastest-linked ones (with `wiring: claims` kube-scheduler takes the cards)",
    )


def test_the_same_pod_applied_twice_is_as_it_was() -> None:
    amounts = {MEM: "8k", "cpu": "2"}
    resources = {"limits": dict(amounts), "requests": dict(amounts)}
    pod = a_pod(a_container(resources=resources), cores="30")
    once = granted(pod)
    again = applied_again(pod, once)
    assert again["spec"]["containers"][0]["resources"]["limits"][MEM] == "8k"

    outcome = patched(judged_change(once, again))

    assert stored(again, outcome) == {**once, "spec": {**once["spec"], "affinity": None}}


def test_a_pod_that_is_replaced_by_its_manifest_names_its_claim_again() -> None:
    pod = a_pod(fraction="0.5")
    once = granted(pod)
    put = {**copy.deepcopy(pod), "metadata": once["metadata"]}

    assert stored(put, patched(judged_change(once, put))) == once


def test_an_annotation_that_may_change_does_though_the_limits_are_gone() -> None:
    amounts = {MEM: "8k"}
    once = granted(
        a_pod(a_container(resources={"limits": amounts, "requests": dict(amounts)}), cores="30")
    )
    never = copy.deepcopy(once)
    never["metadata"]["annotations"]["fracgpu.io/rebalance"] = "never"

    assert judged_change(once, never) == Allowed()


def test_what_nobody_here_would_do_cannot_be_asked_of_a_running_pod() -> None:
    pod = a_pod(memory="8Gi")
    once, limited = granted(pod), stored(pod, judged(pod))
    results = []
    for old in (once, limited):
        new = copy.deepcopy(old)
        new["metadata"]["annotations"]["fracgpu.io/resize"] = "9Gi"
        results.append(judged_change(old, new))

    assert isinstance(results[0], Denied)
    assert "fracgpu.io/resize is '9Gi'; want no" in results[0].message
    assert results[1] == Allowed()


def test_a_template_keeps_its_limits_and_the_pod_of_it_gets_a_claim() -> None:
    kind = BUILT_IN_WORKLOADS[0]
    body = {"metadata": {"name": "w"}, "spec": {"template": a_pod(fraction="0.5")}}
    review = read_review(
        json.dumps(a_review(body, kind={"group": kind.group, "kind": kind.kind})).encode()
    )
    context = DecisionContext(
        classes=CLASSES,
        config=RULES_HERE,
        namespace_labels={"fracgpu.io/grant-templates": "true"},
        claim=CLAIM,
    )

    outcome = patched(grant_templates(review, context))

    template = stored_template(body, outcome)
    half = {MEM: "40960"}
    assert template["spec"]["containers"][0]["resources"] == {"limits": half, "requests": half}
    assert "resourceClaims" not in template["spec"]
    pod = granted(
        {**template, "metadata": {**template["metadata"], "name": "w-1", "namespace": "ml"}}
    )
    assert pod["spec"]["containers"][0]["resources"] == {
        "limits": {},
        "requests": {},
        "claims": [request_of("train")],
    }
    assert "fracgpu.io/template-grant" not in pod["metadata"]["annotations"]


def stored_template(body: Json, outcome: Patched) -> Json:
    found = json_patch(copy.deepcopy(body), list(msgspec.to_builtins(outcome.edits)))
    template: Json = found["spec"]["template"]
    return template


def test_a_workload_whose_pods_would_be_refused_is_refused_when_it_is_applied() -> None:
    kind = BUILT_IN_WORKLOADS[0]
    body = {
        "metadata": {"name": "w"},
        "spec": {"template": a_pod(memory="8Gi", resize="9Gi")},
    }
    review = read_review(
        json.dumps(a_review(body, kind={"group": kind.group, "kind": kind.kind})).encode()
    )

    outcome = denied(
        admit_workload(review, DecisionContext(classes=CLASSES, config=RULES_HERE, claim=CLAIM))
    )

    assert outcome.message.startswith("in spec.template: fracgpu.io/resize is '9Gi'; want no")
