"""deploy/policies.yaml: who may write what, evaluated rule by rule."""

from typing import Any

import pytest

from fracgpu import names
from scheduler.settings import SchedulerSettings
from tests.support.policies import (
    ADMIN,
    REBALANCER,
    SCHEDULER,
    SYSTEM,
    Sender,
    actions,
    agent_of,
    documents,
    kubelet_of,
    policy,
    refusals,
)

Json = dict[str, Any]

ASSIGNMENT, GRANTED, WIRED = "fracgpu.io/assignment", "fracgpu.io/granted", "fracgpu.io/wired"
TERM = "fracgpu.io/term"
MOVE, MOVED_BY, NOTICE = "fracgpu.io/move", "fracgpu.io/moved-by", "fracgpu.io/move-notice"
ONLY_BINDING_MOVE = (
    "The annotation fracgpu.io/move comes only with the pod's Binding; nobody may set, change or "
    "remove it."
)
TOGETHER = (
    "A Binding carries fracgpu.io/term and fracgpu.io/move only together with "
    "fracgpu.io/assignment."
)
ONLY_REBALANCER = (
    "The annotations fracgpu.io/moved-by and fracgpu.io/move-notice are written only by the "
    "FracGPU rebalancer's service account."
)
ONLY_SCHEDULER = (
    "The annotations fracgpu.io/term and fracgpu.io/resized are written only by the FracGPU "
    "scheduler's service account."
)
ONLY_BINDING = (
    "The annotation fracgpu.io/assignment comes only with the pod's Binding; nobody may set, change"
    " or remove it."
)
ONLY_WEBHOOK = (
    "The annotation fracgpu.io/granted is written only by the FracGPU webhook when the pod is "
    "created; nobody may set, change or remove it."
)
NOT_READ = (
    "A pod of the namespace kube-system or fracgpu-system cannot request a card, because the "
    "FracGPU webhook does not read it; create it in another namespace."
)
ONLY_AGENT = (
    "The annotations fracgpu.io/wired and fracgpu.io/applied are written only by the FracGPU agent "
    "of the pod's own node."
)
OWN_PODS = (
    "The FracGPU node agent may change only pods of the node it runs on, and its token must say "
    "which node that is."
)
ONLY_STATUS = (
    "The FracGPU scheduler may change only a pod's status and its annotations fracgpu.io/term and "
    "fracgpu.io/resized."
)
TEMPLATE = (
    "The annotations fracgpu.io/assignment, fracgpu.io/granted, fracgpu.io/wired, fracgpu.io/term, "
    "fracgpu.io/move, fracgpu.io/moved-by, fracgpu.io/move-notice, fracgpu.io/resized and "
    "fracgpu.io/applied are written only by FracGPU on each pod; leave them out of the pod "
    "template."
)


def and_its_own(sender: Sender, said: list[str]) -> list[str]:
    """Return *said*, with the sentence that the scheduler gets for every change but a status."""
    return [*said, ONLY_STATUS] if sender == SCHEDULER else said


def a_pod(notes: Json | None = None, *, node: str = "", namespace: str = "ml", **spec: Any) -> Json:
    body = {"containers": [{"name": "c"}], **spec} | ({"nodeName": node} if node else {})
    metadata = {"name": "p", "namespace": namespace} | ({"annotations": notes} if notes else {})
    return {"metadata": metadata, "spec": body}


STORED = {ASSIGNMENT: "{}", GRANTED: "1 card", WIRED: "{}", MOVE: "m", "app": "x"}


def test_every_policy_is_bound_denies_or_says_that_it_warns_and_fails_closed() -> None:
    kinds = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
    policies, bindings = (
        [document for document in documents() if document["kind"] == kind] for kind in kinds
    )

    assert {policy["metadata"]["name"] for policy in policies} == {
        binding["spec"]["policyName"] for binding in bindings
    }
    assert {policy["spec"]["failurePolicy"] for policy in policies} == {"Fail"}
    for binding in bindings:
        name = binding["metadata"]["name"]
        hints = name in ("fracgpu-misplaced-requests", "fracgpu-quotas", "fracgpu-share-labels")
        warns = hints or (name.startswith("fracgpu-device") and not name.endswith("-deny"))
        assert binding["spec"]["validationActions"] == (["Warn"] if warns else ["Deny"])


def test_every_refusal_is_a_sentence_and_forbidden() -> None:
    rules = [
        rule
        for document in documents()
        if document["kind"] == "ValidatingAdmissionPolicy"
        for rule in document["spec"]["validations"]
    ]

    assert len(rules) >= 14
    for rule in rules:
        message = rule["message"]
        assert message[0].isupper()
        assert message.endswith(".")
        assert "\n" not in message
        assert len(message) > 40
        assert rule["reason"] == "Forbidden"


def test_the_subresources_that_carry_a_pods_annotations_are_looked_at_but_not_its_binding() -> None:
    (rule,) = policy("fracgpu-pods")["matchConstraints"]["resourceRules"]

    assert rule["resources"] == ["pods", "pods/status", "pods/ephemeralcontainers", "pods/resize"]


@pytest.mark.parametrize(
    ("notes", "said"),
    [
        ({}, []),
        ({"fracgpu.io/fraction": "0.5", "app": "x"}, []),
        ({GRANTED: "what the webhook wrote a moment ago"}, []),
        ({ASSIGNMENT: "{}"}, [ONLY_BINDING]),
        ({WIRED: "{}"}, [ONLY_AGENT]),
        ({ASSIGNMENT: "", WIRED: ""}, [ONLY_BINDING, ONLY_AGENT]),
        ({MOVE: "m"}, [ONLY_BINDING_MOVE]),
        ({MOVED_BY: "m"}, [ONLY_REBALANCER]),
        ({NOTICE: "now", MOVED_BY: ""}, [ONLY_REBALANCER]),
    ],
)
@pytest.mark.parametrize(
    "sender", [ADMIN, SCHEDULER, kubelet_of("n1")], ids=lambda sender: sender.username
)
def test_a_new_pod_carries_no_assignment_and_no_acknowledgement(
    notes: Json, said: list[str], sender: Sender
) -> None:
    assert refusals("fracgpu-pods", a_pod(notes), sender=sender) == and_its_own(sender, said)


@pytest.mark.parametrize("namespace", ["kube-system", "fracgpu-system"])
def test_where_the_webhook_does_not_look_nobody_can_have_been_granted_anything(
    namespace: str,
) -> None:
    pod = a_pod({GRANTED: "all of it"}, namespace=namespace)

    assert refusals("fracgpu-pods", pod) == [ONLY_WEBHOOK]


@pytest.mark.parametrize("key", names.REQUEST_KEYS)
def test_a_pod_cannot_request_a_card_where_the_webhook_does_not_read_it(key: str) -> None:
    for namespace in ("kube-system", SYSTEM.rpartition(":")[2]):
        asks, plain = (a_pod(notes, namespace=namespace) for notes in ({key: "1"}, {"app": "x"}))

        assert refusals("fracgpu-pods", asks) == [NOT_READ]
        assert refusals("fracgpu-pods", plain) == []
        # Those that were there before can still be updated.
        assert refusals("fracgpu-pods", a_pod({key: "1", "app": "y"}), old=asks) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, []),
        ({"app": "y"}, []),
        ({"fracgpu.io/rebalance": "never"}, []),
        ({ASSIGNMENT: '{"c":[]}'}, [ONLY_BINDING]),
        ({ASSIGNMENT: None}, [ONLY_BINDING]),
        ({GRANTED: "8 cards"}, [ONLY_WEBHOOK]),
        ({GRANTED: None}, [ONLY_WEBHOOK]),
        ({WIRED: '{"c":["GPU-x"]}'}, [ONLY_AGENT]),
        ({WIRED: None}, [ONLY_AGENT]),
        ({MOVE: "another"}, [ONLY_BINDING_MOVE]),
        ({MOVE: None}, [ONLY_BINDING_MOVE]),
    ],
)
@pytest.mark.parametrize(
    "sender", [ADMIN, SCHEDULER, REBALANCER, kubelet_of("n1")], ids=lambda sender: sender.username
)
def test_what_stands_on_a_pod_is_changed_by_nobody(
    change: Json, said: list[str], sender: Sender
) -> None:
    after = {key: value for key, value in {**STORED, **change}.items() if value is not None}
    old, new = a_pod(STORED, node="n1"), a_pod(after, node="n1")

    found = refusals("fracgpu-pods", new, old=old, sender=sender)
    assert found == and_its_own(sender, said)


@pytest.mark.parametrize(
    ("sender", "said"),
    [
        (agent_of("n1"), []),
        (agent_of("n2"), [ONLY_AGENT, OWN_PODS]),
        (agent_of(""), [ONLY_AGENT, OWN_PODS]),
        (Sender(username=f"{SYSTEM}:fracgpu-webhook", node="n1"), [ONLY_AGENT]),
    ],
    ids=["own", "other", "unbound", "not-the-agent"],
)
def test_the_acknowledgement_comes_from_the_agent_of_the_pods_node(
    sender: Sender, said: list[str]
) -> None:
    old, new = a_pod(node="n1"), a_pod({WIRED: "{}"}, node="n1")

    assert refusals("fracgpu-pods", new, old=old, sender=sender) == said


def test_the_agent_changes_nothing_of_a_pod_elsewhere_and_creates_none() -> None:
    old, new = a_pod(node="n1"), a_pod({"app": "x"}, node="n1")

    assert refusals("fracgpu-pods", new, old=old, sender=agent_of("n2")) == [OWN_PODS]
    assert refusals("fracgpu-pods", a_pod(), sender=agent_of("n1")) == [OWN_PODS]
    assert refusals("fracgpu-pods", a_pod(), old=a_pod(), sender=agent_of("")) == [OWN_PODS]


def a_binding(notes: Json, *, assigned: str = "") -> Json:
    metadata = {"name": "p", "namespace": "ml", "annotations": notes}
    if assigned:
        metadata["labels"] = {"fracgpu.io/assigned": assigned}
    return {"metadata": metadata, "target": {}}


def test_only_the_scheduler_marks_pods_that_are_there() -> None:
    for sender, said in (
        (SCHEDULER, []),
        (ADMIN, [ONLY_SCHEDULER]),
        (REBALANCER, [ONLY_SCHEDULER]),
    ):
        old, new = a_pod({TERM: "l/1"}), a_pod({TERM: "l/2"})

        def by(new: Json, old: Json | None, sender: Sender = sender) -> list[str]:
            return refusals("fracgpu-pods", new, old=old, sender=sender, resource="pods/status")

        assert by(new, old) == said
        assert by(a_pod(), old) == said
        assert by(old, old) == []
        found = refusals("fracgpu-pods", new, sender=sender)
        assert found == and_its_own(sender, [ONLY_SCHEDULER])


def test_the_scheduler_changes_nothing_of_a_pod_but_its_status_and_its_mark() -> None:
    said = [ONLY_STATUS]

    def judged(new: Json, *, old: Json | None, resource: str = "pods/status") -> list[str]:
        return refusals("fracgpu-pods", new, old=old, sender=SCHEDULER, resource=resource)

    old = a_pod({"app": "x", TERM: "l/1"})
    assert judged(a_pod({"app": "x", TERM: "l/2"}), old=old) == []
    assert judged({**old, "status": {"phase": "Pending"}}, old=old) == []
    assert judged(a_pod({"app": "x"}), old=old) == []
    assert judged(a_pod({"app": "y", TERM: "l/1"}), old=old) == said
    assert judged(a_pod({TERM: "l/1"}), old=old) == said
    for key, value in (("labels", {"a": "b"}), ("finalizers", ["x"])):
        changed = {**old, "metadata": {**old["metadata"], key: value}}
        assert judged(changed, old=old) == said
        assert judged(old, old=changed) == said
    assert judged(a_pod({"app": "x", TERM: "l/2"}), old=old, resource="pods") == said
    assert judged(old, old=None) == [ONLY_SCHEDULER, *said]


def test_an_order_is_of_the_term_that_the_lease_names() -> None:
    lease = {"metadata": {"uid": "l"}, "spec": {"leaseTransitions": 7}}
    name = "fracgpu-lease-term"
    late = [
        "The term of the Binding is not the one in the Lease fracgpu-scheduler-extender: another "
        "FracGPU scheduler is the leader now."
    ]

    assert refusals(name, a_binding({TERM: "l/7"}, assigned="true"), params=lease) == []
    for term in ("l/6", "l/77", "m/7", "7", ""):
        assert refusals(name, a_binding({TERM: term}, assigned="true"), params=lease) == late
    assert refusals(name, a_binding({"a": "b"}, assigned="true"), params=lease) == late
    nobody = {"metadata": {"uid": "l"}, "spec": {"holderIdentity": ""}}
    assert refusals(name, a_binding({TERM: "l/0"}, assigned="true"), params=nobody) == late


def test_the_term_is_looked_up_only_for_orders_and_a_missing_lease_denies_them() -> None:
    """Otherwise no scheduler of the cluster could bind any pod before there is a first leader."""
    constraints = policy("fracgpu-lease-term")["matchConstraints"]
    (binding,) = [
        document["spec"]
        for document in documents()
        if document["kind"] == "ValidatingAdmissionPolicyBinding"
        and document["metadata"]["name"] == "fracgpu-lease-term"
    ]  # fmt: skip

    assert constraints["objectSelector"] == {"matchLabels": {names.ASSIGNED_LABEL: "true"}}
    assert binding["paramRef"] == {
        "name": SchedulerSettings().lease,
        "namespace": names.SYSTEM_NAMESPACE,
        "parameterNotFoundAction": "Deny",
    }


def test_only_our_scheduler_binds_with_an_assignment_and_any_other_without() -> None:
    plain = {"metadata": {"name": "p"}, "target": {}}
    with_order = a_binding({ASSIGNMENT: "{}", TERM: "l/1", MOVE: "m"}, assigned="true")
    other = Sender(username="system:kube-scheduler")

    assert refusals("fracgpu-bindings", with_order, sender=SCHEDULER) == []
    assert refusals("fracgpu-bindings", plain, sender=other) == []
    assert refusals("fracgpu-bindings", with_order, sender=other) == [
        "A Binding that carries fracgpu.io/assignment comes only from the FracGPU scheduler's "
        "service account."
    ]
    for key in (TERM, MOVE):
        assert refusals("fracgpu-bindings", a_binding({key: "x"}), sender=SCHEDULER) == [TOGETHER]
    for wrong in ("", "yes"):
        order = a_binding({ASSIGNMENT: "{}"}, assigned=wrong)
        assert refusals("fracgpu-bindings", order, sender=SCHEDULER) == [
            "A Binding that carries fracgpu.io/assignment has the label fracgpu.io/assigned=true."
        ]
    for key in (GRANTED, WIRED, MOVED_BY, NOTICE, *names.REQUEST_KEYS):
        assert refusals("fracgpu-bindings", a_binding({key: "x"}), sender=SCHEDULER) == [
            "Of FracGPU's annotations a Binding carries only fracgpu.io/assignment, "
            "fracgpu.io/term and fracgpu.io/move: the scheduler writes no others."
        ]


def test_the_rebalancer_alone_says_on_a_pod_that_it_is_moved() -> None:
    old = a_pod(STORED)
    for key in (MOVED_BY, NOTICE):
        new = a_pod({**STORED, key: "m"})
        assert refusals("fracgpu-pods", new, old=old, sender=REBALANCER) == []
        assert refusals("fracgpu-pods", old, old=new, sender=REBALANCER) == []
        for sender in (ADMIN, SCHEDULER, kubelet_of("n1")):
            said = and_its_own(sender, [ONLY_REBALANCER])
            assert refusals("fracgpu-pods", new, old=old, sender=sender) == said
            assert refusals("fracgpu-pods", old, old=new, sender=sender) == said
            assert refusals("fracgpu-pods", new, old=new, sender=sender) == and_its_own(sender, [])


def a_workload(notes: Json | None) -> Json:
    template = {"metadata": {"annotations": notes} if notes is not None else {}}
    return {"metadata": {"name": "w", "namespace": "ml"}, "spec": {"template": template}}


def a_cron_job(notes: Json | None) -> Json:
    inner = {"spec": a_workload(notes)["spec"]}
    return {"metadata": {"name": "w", "namespace": "ml"}, "spec": {"jobTemplate": inner}}


TEMPLATED = [("fracgpu-workloads", a_workload), ("fracgpu-cronjobs", a_cron_job)]


@pytest.mark.parametrize(("name", "make"), TEMPLATED, ids=lambda value: str(value)[:17])
def test_no_pod_template_carries_what_only_we_write(name: str, make: Any) -> None:
    for key in (ASSIGNMENT, GRANTED, WIRED, TERM, MOVE, MOVED_BY, NOTICE):
        assert refusals(name, make({key: "x"})) == [TEMPLATE]
        assert refusals(name, make({key: "x"}), old=make({"app": "x"})) == [TEMPLATE]
        assert refusals(name, make({key: "y"}), old=make({key: "x"})) == [TEMPLATE]
    assert refusals(name, make({"fracgpu.io/fraction": "0.5"})) == []
    assert refusals(name, make(None)) == []


@pytest.mark.parametrize(("name", "make"), TEMPLATED, ids=lambda value: str(value)[:17])
def test_a_workload_older_than_the_policy_can_still_be_scaled_and_deleted(
    name: str, make: Any
) -> None:
    assert refusals(name, make({GRANTED: "x"}), old=make({GRANTED: "x"})) == []
    assert refusals(name, make({}), old=make({GRANTED: "x"})) == []


def test_a_replica_set_may_come_without_a_template() -> None:
    bare = {"metadata": {"name": "w", "namespace": "ml"}, "spec": {"replicas": 1}}

    assert refusals("fracgpu-workloads", bare, old=bare) == []


ORDERS = [
    "nvidia.cdi.k8s.io/container.c",
    "nvidia.cdi.k8s.io/c.gpus.devices",
    "cdi.k8s.io/x",
    "ALIYUN_COM_GPU_MEM_IDX",
    "scheduler.framework.gpushare.allocation",
    "hami.io/vgpu-devices-to-allocate",
    "hami.io/vgpu-devices-allocated",
    "hami.io/bind-phase",
    "tencent.com/predicate-gpu-idx-0",
    "elasticgpu.io/container-c",
    "volcano.sh/gpu-index",
    "nvidia.com/pre-allocated",
    "runai/shared-gpu-configmap",
    "scheduling.koordinator.sh/device-allocated",
    "tensor-fusion.ai/gpu-ids",
    "nvidia.com/container.c.gpus.devices",
    "io.kubernetes.cri-o.Devices",
    "devices.crio.io",
    "cdi.nri.io/container.c",
]


def order_refused(key: str) -> list[str]:
    return [
        f"The annotation {key} is an order to another system that hands out GPUs; a pod must not "
        "carry it where FracGPU shares cards."
    ]


ASKS: Json = {"containers": [{"name": "c", "resources": {"limits": {"fracgpu.io/gpu-mem": "9"}}}]}


@pytest.mark.parametrize("key", ORDERS)
def test_a_pod_that_shares_a_card_carries_no_order_to_another_system(key: str) -> None:
    annotated = a_pod({key: "x", "fracgpu.io/fraction": "0.5"})

    assert refusals("fracgpu-pods", annotated) == order_refused(key)
    assert refusals("fracgpu-pods", a_pod({key: "x"}, **ASKS)) == order_refused(key)
    before = a_pod({"app": "x"}, **ASKS)
    for resource in ("pods", "pods/status"):
        said = refusals("fracgpu-pods", a_pod({key: "x"}, **ASKS), old=before, resource=resource)
        assert said == order_refused(key)
    assert refusals("fracgpu-pods", a_pod({key: "x"}, initContainers=ASKS["containers"])) != []


@pytest.mark.parametrize("key", ORDERS)
def test_a_pod_of_another_system_is_left_alone_except_where_a_namespace_wants_none(
    key: str,
) -> None:
    name, pod = "fracgpu-foreign-assignments", a_pod({key: "x"})

    assert refusals("fracgpu-pods", pod) == []
    assert len(refusals(name, pod)) == 1
    assert actions(name, labels={}) == []
    assert actions(name, labels={"fracgpu.io/foreign-assignments": "deny"}) == ["Deny"]


def test_both_policies_know_the_same_orders() -> None:
    variables = [
        {each["name"]: each["expression"] for each in policy(name)["variables"]}
        for name in ("fracgpu-pods", "fracgpu-foreign-assignments")
    ]

    assert variables[1].items() <= variables[0].items()


@pytest.mark.parametrize(
    "key",
    [
        "nvidia.cdi.k8s.io/c.gpu-memory.request",
        "nvidia.cdi.k8s.io/c.gpu-memory.limit",
        "nvidia.com/container.c.gpu-memory.request",
        "nvidia.com/container.c.gpu-memory.limit",
        "nvidia.com/container.c.gpu-compute.mode",
        "gpu-fraction",
        "hami.io/gpu-scheduler-policy",
        "nvidia.com/use-gputype",
        "tensor-fusion.ai/vram-request",
    ],
)
def test_another_systems_request_is_no_order(key: str) -> None:
    assert refusals("fracgpu-pods", a_pod({key: "1Gi"}, **ASKS)) == []
    assert refusals("fracgpu-foreign-assignments", a_pod({key: "1Gi"})) == []


def test_a_device_under_the_key_of_a_request_is_an_order() -> None:
    notes = {"nvidia.cdi.k8s.io/c.gpu-memory.request": "nvidia.com/gpu=all"}

    assert len(refusals("fracgpu-pods", a_pod(notes, **ASKS))) == 1
    assert len(refusals("fracgpu-foreign-assignments", a_pod(notes))) == 1


def test_a_pod_older_than_the_policy_can_still_be_updated() -> None:
    old = a_pod({"hami.io/bind-phase": "success"}, **ASKS)
    new = a_pod({"hami.io/bind-phase": "success", "app": "x"}, **ASKS)

    assert refusals("fracgpu-pods", new, old=old) == []


@pytest.mark.parametrize("resource", ["pods/status", "pods/resize", "pods/ephemeralcontainers"])
@pytest.mark.parametrize("key", names.REQUEST_KEYS)
def test_a_request_is_not_changed_through_a_subresource(key: str, resource: str) -> None:
    said = [
        "What a pod asks for (fracgpu.io/fraction and the like) cannot be changed through the "
        "pod's subresources; create a new pod."
    ]
    old, new = a_pod({"app": "x"}), a_pod({"app": "x", key: "1"})
    kubelet = kubelet_of("n1")

    assert refusals("fracgpu-pods", new, old=old, sender=kubelet, resource=resource) == said
    assert refusals("fracgpu-pods", old, old=new, sender=kubelet, resource=resource) == said
    assert refusals("fracgpu-pods", new, old=new, sender=kubelet, resource=resource) == []
    assert refusals("fracgpu-pods", new, old=old, resource="pods") == [], "the webhook judges it"
