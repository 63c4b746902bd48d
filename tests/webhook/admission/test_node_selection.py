"""The card class follows the pod's own selectors."""

import copy
import json
from collections.abc import Sequence
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fracgpu import names
from fracgpu.cards.card import Card, CardUuid, NodeCards
from fracgpu.cards.card_class import CardClassCounts
from fracgpu.k8s.node_affinity import read_node_rules
from fracgpu.request.grant import ClassRule
from fracgpu.request.grant_note import Seal, read_grant_note
from fracgpu.units import Mib
from tests.webhook.builders import RULES, Json, a_pod, denied, parsed, stored
from webhook.admission.context import DecisionContext
from webhook.admission.mutation import admit_create
from webhook.admission.review import read_review, read_stored_pod
from webhook.admission.update import admit_update
from webhook.admission.verdict import AdmissionResult, Allowed, Denied, Patched
from webhook.admission.workload import admit_workload
from webhook.admission_config import AdmissionConfig

REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
T4, A100 = ("Tesla-T4", 16_000), ("NVIDIA-A100-SXM4-40GB", 40_000)


def a_node(
    name: str, card: tuple[str, int] | None = None, *, cards: int = 1, **labels: str
) -> NodeCards:
    model, mib = card or ("", 0)
    shared = {names.SHARE_LABEL: "true", f"{names.CARD_CLASS_LABEL_PREFIX}{mib}": str(cards)}
    return NodeCards(
        node=name,
        cards=tuple(
            Card(uuid=CardUuid(f"GPU-{name}-{index}"), index=index, model=model, total_mib=Mib(mib))
            for index in range(cards if card else 0)
        ),
        shared=card is not None,
        labels={
            "kubernetes.io/hostname": name,
            **(shared | {"nvidia.com/gpu.product": model} if card else {}),
            **labels,
        },
    )


# The T4s are free, of the A100s a quarter: without selectors a share is one of a T4.
NODES: Final = (
    a_node("t4-1", T4, pool="t4", zone="a"),
    a_node("t4-2", T4, pool="t4", zone="b"),
    a_node("a100-1", A100, cards=2, pool="a100", zone="b"),
    a_node("cpu-1", pool="cpu", zone="a"),
    a_node("cpu-2", pool="cpu", zone="c"),
)


def a_context(
    *nodes: NodeCards,
    supposed: Sequence[NodeCards] = (),
    rules: AdmissionConfig = RULES,
    seal: Seal | None = None,
) -> DecisionContext:
    counts = CardClassCounts()
    for node in nodes:
        share = 4 if node.node.startswith("a100") else 1
        counts.put(
            node, free_mib={card.uuid: Mib(card.capacity_mib // share) for card in node.cards}
        )
    for node in supposed:
        counts.suppose(node)
    return DecisionContext(
        classes=counts.classes(), config=rules, select=counts.select, seal=seal or Seal(key=b"k")
    )


def decided(
    pod: Json, context: DecisionContext | None = None, *, rules: AdmissionConfig = RULES
) -> AdmissionResult:
    return admit_create(parsed(pod), context or a_context(*NODES, rules=rules))


def class_of(result: AdmissionResult) -> int | None:
    """Return the shareable MiB of the class that a pod was granted a share of."""
    assert isinstance(result, Patched), result
    (note,) = [
        edit.value[names.GRANTED] if isinstance(edit.value, dict) else edit.value
        for edit in result.edits
        if edit.path.startswith("/metadata/annotations")
    ]
    assert isinstance(note, str)
    read = read_grant_note(note)
    assert read is not None
    return read.data.class_mib


def on(expressions: Sequence[Json] = (), *, fields: Sequence[Json] = ()) -> Json:
    return {"matchExpressions": list(expressions), "matchFields": list(fields)}


def affinity(*terms: Json) -> Json:
    return {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": list(terms)}}}}


def within(key: str, *values: str, operator: str = "In") -> Json:
    return {"key": key, "operator": operator, "values": list(values)}


SELECTING_A100S: Final = {
    "host name": {"nodeSelector": {"kubernetes.io/hostname": "a100-1"}},
    "product": {"nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB"}},
    "pool": affinity(on([within("pool", "a100", "cpu")])),
    "not the others": affinity(on([within("pool", "t4", operator="NotIn")])),
    "node name": affinity(on(fields=[within("metadata.name", "a100-1")])),
    "one of two terms": affinity(on([within("pool", "cpu")]), on([within("pool", "a100")])),
    "both": {"nodeSelector": {"zone": "b"}, **affinity(on([within("pool", "a100", "cpu")]))},
}


@pytest.mark.parametrize("spec", SELECTING_A100S.values(), ids=SELECTING_A100S)
def test_a_share_is_a_share_of_a_card_that_the_selected_nodes_have(spec: Json) -> None:
    assert class_of(decided(a_pod(fraction="0.5"))) == 16_000
    assert class_of(decided(a_pod(fraction="0.5", spec=spec))) == 40_000


def nodes_for(pod: Json) -> list[str]:
    spec = pod["spec"]
    selector = tuple(spec.get("nodeSelector", {}).items())
    rules = read_node_rules(selector, json.dumps(spec["affinity"]).encode(), b"")
    return [node.node for node in NODES if rules.selects(node.labels, node=node.node)]


def later(pod: Json, spec: Json) -> Json:
    """Return a pod, as we patched it, to which a webhook that is called next adds selectors."""
    found = copy.deepcopy(pod)
    found["spec"]["nodeSelector"] = spec.get("nodeSelector", {})
    required = found["spec"]["affinity"]["nodeAffinity"][REQUIRED]
    (ours,) = required["nodeSelectorTerms"]
    added = (affinity(on()) | spec)["affinity"]["nodeAffinity"][REQUIRED]
    required["nodeSelectorTerms"] = [
        {
            "matchExpressions": [*ours["matchExpressions"], *term["matchExpressions"]],
            "matchFields": term["matchFields"],
        }
        for term in added["nodeSelectorTerms"]
    ]
    return found


@pytest.mark.parametrize("spec", SELECTING_A100S.values(), ids=SELECTING_A100S)
def test_selectors_that_a_later_webhook_adds_decide_on_the_share_as_if_it_had_come_first(
    spec: Json,
) -> None:
    """The API server asks us again then (reinvocationPolicy)."""
    asked = a_pod(fraction="0.5")
    once = stored(asked, decided(asked))

    outcome = decided(later(once, spec))

    assert class_of(outcome) == 40_000
    again = stored(later(once, spec), outcome)
    (container,) = again["spec"]["containers"]
    assert container["resources"]["limits"][names.GPU_MEM] == "20k"
    assert container["resources"]["requests"][names.GPU_MEM] == "20k"
    assert (nodes_for(later(once, spec)), nodes_for(again)) == ([], ["a100-1"])
    assert decided(again) == Allowed(dialect="fracgpu")


def test_of_the_selected_nodes_classes_the_freest_there_is_taken() -> None:
    spec = {"nodeSelector": {"zone": "b"}}
    busy = a_node("t4-3", T4, cards=8, zone="c")
    full = CardClassCounts()
    for node, free in ((NODES[1], 0), (NODES[2], 20_000), (busy, 16_000)):
        full.put(node, free_mib={card.uuid: Mib(free) for card in node.cards})
    context = DecisionContext(classes=full.classes(), config=RULES, select=full.select)

    assert class_of(decided(a_pod(fraction="0.5"), context)) == 16_000
    assert class_of(decided(a_pod(fraction="0.5", spec=spec), context)) == 40_000


@pytest.mark.parametrize(
    ("spec", "asks", "message"),
    [
        (
            {"nodeSelector": {"pool": "cpu"}},
            {"fraction": "0.5"},
            "spec.nodeSelector is 'pool=cpu'; want nodes with a shared, healthy card: it selects "
            "cpu-1, cpu-2, without one; the cluster's cards are Tesla-T4 (16000 MiB), "
            "NVIDIA-A100-SXM4-40GB (40000 MiB)",
        ),
        (
            {"nodeSelector": {"kubernetes.io/hostname": "gone"}},
            {"memory": "8Gi"},
            "spec.nodeSelector is 'kubernetes.io/hostname=gone'; want nodes with a shared, healthy "
            "card: it selects no node; the cluster's cards are Tesla-T4 (16000 MiB), "
            "NVIDIA-A100-SXM4-40GB (40000 MiB)",
        ),
        (
            affinity(on([within("pool", "cpu")])),
            {"fraction": "0.5"},
            "the required node affinity is 'pool=cpu'; want nodes with a shared, healthy card: it "
            "selects cpu-1, cpu-2, without one; the cluster's cards are Tesla-T4 (16000 MiB), "
            "NVIDIA-A100-SXM4-40GB (40000 MiB)",
        ),
        (
            {"nodeSelector": {"pool": "a100"}},
            {"fraction": "0.5", "model": "*T4*"},
            "fracgpu.io/model is '*T4*'; want globs that match a card model: "
            "NVIDIA-A100-SXM4-40GB, among the nodes that spec.nodeSelector 'pool=a100' selects",
        ),
        (
            {"nodeSelector": {"pool": "t4"}},
            {"memory": "20000Mi"},
            "fracgpu.io/memory of container 'train' is '20000Mi'; want at most what the largest "
            "card shares, 16000 MiB (15.6 GiB), among the nodes that spec.nodeSelector 'pool=t4' "
            "selects; '16000Mi' would fit",
        ),
        (
            {"nodeSelector": {"pool": "t4"}},
            {"fraction": "1", "cards": "2"},
            "fracgpu.io/cards of container 'train' is '2'; want at most 1: no node has more cards "
            "that are large enough, among the nodes that spec.nodeSelector 'pool=t4' selects",
        ),
    ],
    ids=["no card", "no node", "by affinity", "another model", "too large", "too many"],
)
def test_where_no_selected_node_will_do_the_refusal_names_both_sides(
    spec: Json, asks: dict[str, str], message: str
) -> None:
    assert denied(decided(a_pod(spec=spec, also=asks))).message == message


def applied(kind: str, **spec: Any) -> AdmissionResult:
    """Return the decision on a workload with a share in its template."""
    review = {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "u",
            "kind": {"group": "apps", "kind": kind},
            "operation": "CREATE",
            "object": {"spec": {"template": a_pod(fraction="0.5", spec=spec)}},
        },
    }
    return admit_workload(read_review(json.dumps(review).encode()), a_context(*NODES))


def test_a_workload_is_refused_by_its_templates_selectors() -> None:
    refused = denied(applied("Deployment", nodeSelector={"pool": "cpu"}))
    assert refused.message.startswith("in spec.template: spec.nodeSelector is 'pool=cpu'; want")
    assert isinstance(applied("Deployment", nodeSelector={"pool": "a100"}), Allowed)


def of_a_daemon_set(node: str, **asks: str) -> AdmissionResult:
    """Return the decision on the pod that a DaemonSet's controller makes for a node."""
    spec = affinity(on(fields=[within("metadata.name", node)]))
    return decided(a_pod(spec=spec, also={"fraction": "0.5", **asks}))


@pytest.mark.parametrize(
    ("asks", "node", "found"),
    [
        ({}, "cpu-1", "the required node affinity is 'metadata.name=cpu-1'"),
        ({"model": "*A100*"}, "t4-1", "fracgpu.io/model is '*A100*'"),
    ],
    ids=["no card", "another model"],
)
def test_a_daemon_sets_pod_waits_where_its_node_has_no_such_card_and_stops_no_other(
    asks: dict[str, str], node: str, found: str
) -> None:
    waits, runs = of_a_daemon_set(node, **asks), of_a_daemon_set("a100-1", **asks)

    assert isinstance(waits, Patched)
    (warning,) = waits.warnings
    assert warning.startswith(
        f"the pod waits for something that the cluster does not have now: {found}"
    )
    assert isinstance(runs, Patched)
    assert (class_of(runs), runs.warnings) == (40_000, ())


def test_a_daemon_sets_pod_that_no_card_of_the_cluster_would_do_for_is_refused() -> None:
    assert isinstance(of_a_daemon_set("cpu-1", model="H100"), Denied)


def updated(
    asks: dict[str, str], selector: dict[str, str], *, wait: bool = False, known: bool = True
) -> AdmissionResult:
    """Return the decision on the update by which a queue lets a gated pod go to certain nodes."""
    rules = AdmissionConfig(card_classes=ClassRule(wait=wait))
    gated = a_pod(spec={"schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]}, also=asks)
    old = stored(gated, decided(gated, rules=rules))
    new = copy.deepcopy(old)
    del new["spec"]["schedulingGates"]
    new["spec"]["nodeSelector"] = selector
    before = read_stored_pod(json.dumps(old).encode(), what="the stored pod")
    select = a_context(*NODES).select if known else None
    return admit_update(before, parsed(new), user="kueue", config=rules, select=select)


@pytest.mark.parametrize(
    ("asks", "pool", "size"),
    [
        ({"fraction": "0.5"}, "a100", "16000 MiB"),
        ({"memory": "20000Mi"}, "t4", "20000 MiB or more"),
    ],
)
def test_a_gated_pod_that_gets_selectors_of_nodes_without_its_class_is_refused_with_both_sides(
    asks: dict[str, str], pool: str, size: str
) -> None:
    assert denied(updated(asks, {"pool": pool})).message == (
        f"spec.nodeSelector is 'pool={pool}'; want nodes with a shared, healthy card of {size}, by "
        "which the pod's limits were set when it was created; create the pod with its selectors, "
        "so that they decide which card it gets a share of"
    )


def test_a_gated_pod_that_gets_selectors_of_nodes_that_suit_it_goes_there() -> None:
    assert updated({"fraction": "0.5"}, {"pool": "t4"}) == Allowed()
    assert updated({"memory": "8Gi"}, {"pool": "a100"}) == Allowed()
    assert updated({"fraction": "0.5"}, {"pool": "a100"}, known=False) == Allowed()
    # A pool that is scaled to zero, where the administrator lets pods wait for it.
    assert updated({"fraction": "0.5"}, {"pool": "later"}, wait=True) == Allowed()
    assert isinstance(updated({"fraction": "0.5"}, {"pool": "later"}), Denied)


def test_a_daemon_set_is_warned_of_the_nodes_where_its_pods_will_wait() -> None:
    warning = (
        "in spec.template: a DaemonSet makes a pod for each node that it selects, also for cpu-1, "
        "cpu-2 without a shared, healthy card: these pods wait until it has one; add the "
        'nodeSelector fracgpu.io/share: "true"'
    )

    assert applied("DaemonSet") == Allowed(warnings=(warning,), dialect="fracgpu")
    for kind, spec in (
        ("DaemonSet", {"nodeSelector": {names.SHARE_LABEL: "true"}}),
        ("Deployment", {}),
    ):
        assert applied(kind, **spec) == Allowed(dialect="fracgpu")


def with_default(**rule: Any) -> AdmissionConfig:
    return AdmissionConfig(card_classes=ClassRule(**rule))


def test_the_default_class_counts_where_a_selected_node_has_it() -> None:
    rules = with_default(default_models=("*A100*",))

    def granted(**selector: str) -> int | None:
        spec = {"nodeSelector": selector}
        return class_of(decided(a_pod(fraction="0.5", spec=spec), rules=rules))

    assert class_of(decided(a_pod(fraction="0.5"), rules=rules)) == 40_000
    assert granted(zone="b") == 40_000
    assert granted(zone="a") == 16_000


def test_a_pod_may_wait_for_a_pool_that_has_no_node_yet() -> None:
    rules = with_default(wait=True, default_mib=Mib(40_000))
    spec = {"nodeSelector": {"pool": "later"}}

    waiting = decided(a_pod(fraction="0.5", spec=spec), rules=rules)

    assert class_of(waiting) == 40_000
    assert waiting.warnings[0].startswith(  # type: ignore[union-attr]
        "the pod waits for something that the cluster does not have now: "
        "spec.nodeSelector is 'pool=later'; want"
    )


@pytest.mark.parametrize(
    "spec",
    [{}, *SELECTING_A100S.values(), affinity(on([within("pool", "a100")]), {})],
    ids=["none", *SELECTING_A100S, "an empty term"],
)
def test_deciding_on_the_patched_pod_changes_nothing(spec: Json) -> None:
    # Only labels speak of these cards, and none is a class's: what the webhook itself requires of
    # nodes must not count as the pod's own selectors.
    nodes = [
        NodeCards(
            node=node.node,
            cards=node.cards,
            shared=node.shared,
            labels={
                key: value for key, value in node.labels.items() if not key.startswith("fracgpu")
            },
        )
        for node in NODES
    ]
    context = a_context(supposed=nodes)
    pod = a_pod(fraction="0.5", spec=spec)

    patched = stored(pod, decided(pod, context))
    restored = decided(patched, a_context(supposed=nodes, seal=Seal(key=b"of a later day")))

    assert isinstance(decided(patched, context), Allowed)
    assert class_of(restored) == class_of(decided(pod, context))
    assert isinstance(restored, Patched)
    assert [edit.path for edit in restored.edits] == ["/metadata/annotations/fracgpu.io~1granted"]


node_labels = st.dictionaries(
    st.sampled_from(["pool", "zone", "memory"]), st.sampled_from(["a", "b", "5", "9"])
)
expressions = st.lists(
    st.builds(
        lambda key, operator, values: within(key, *values, operator=operator),
        st.sampled_from(["pool", "zone", "memory", "kubernetes.io/hostname"]),
        st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]),
        st.lists(st.sampled_from(["a", "b", "5", "9", "n0", "n1"]), min_size=1, max_size=2),
    ),
    max_size=2,
)
fields = st.lists(
    st.builds(
        lambda operator, name: within("metadata.name", name, operator=operator),
        st.sampled_from(["In", "NotIn"]),
        st.sampled_from(["n0", "n1", "n2"]),
    ),
    max_size=1,
)
terms = st.lists(st.builds(lambda one, two: on(one, fields=two), expressions, fields), max_size=3)
clusters = st.lists(
    st.tuples(st.sampled_from([None, T4, A100]), st.integers(1, 2), node_labels),
    min_size=1,
    max_size=5,
)


@given(
    clusters,
    node_labels,
    st.none() | terms,
    st.sampled_from([{"fraction": "0.5"}, {"fraction": "1", "cards": "2"}, {"memory": "20000Mi"}]),
    st.sampled_from([ClassRule(), ClassRule(default_models=("*T4*",))]),
)
def test_what_is_granted_fits_some_node_that_the_pod_selects(
    cluster: list[tuple[tuple[str, int] | None, int, dict[str, str]]],
    selector: dict[str, str],
    alternatives: list[Json] | None,
    asks: dict[str, str],
    rule: ClassRule,
) -> None:
    nodes = [
        a_node(f"n{number}", card, cards=count, **labels)
        for number, (card, count, labels) in enumerate(cluster)
    ]
    spec: Json = {"nodeSelector": selector}
    if alternatives is not None:
        spec |= affinity(*alternatives)
    context = a_context(*nodes, rules=AdmissionConfig(card_classes=rule))

    result = decided(a_pod(spec=spec, also=asks), context)

    rules = read_node_rules(tuple(selector.items()), json.dumps(spec.get("affinity")).encode(), b"")
    selected = [node for node in nodes if rules.selects(node.labels, node=node.node)]
    default = [node for node in selected if node.cards and node.cards[0].model == T4[0]]
    narrowed = rule.default_models and "memory" not in asks
    wanted = int(asks.get("cards", "1"))
    least = 20_000 if "memory" in asks else 1
    sizes = {
        node.cards[0].capacity_mib
        for node in (default if narrowed and default else selected)
        if len(node.cards) >= wanted and node.cards[0].capacity_mib >= least
    }
    if isinstance(result, Patched) and any("waits for" in said for said in result.warnings):
        assert alternatives is not None
        (term,) = alternatives
        assert not sizes or rule.default_models
        assert not term["matchExpressions"], "only the pod of a DaemonSet waits"
        assert [field["operator"] for field in term["matchFields"]] == ["In"]
    elif isinstance(result, Patched):
        assert sizes if "memory" in asks else class_of(result) in sizes
    elif sizes:  # the only other reason: the cluster has no card of the default class
        assert isinstance(result, Denied)
        assert result.message.startswith("the cluster's default card")


def test_a_windows_pod_is_refused_as_such() -> None:
    assert denied(decided(a_pod(fraction="0.5", spec={"os": {"name": "windows"}}))).message == (
        "spec.os.name is 'windows'; want linux: FracGPU shares the cards of Linux nodes only"
    )
    assert isinstance(decided(a_pod(spec={"os": {"name": "windows"}})), Allowed)
    assert isinstance(decided(a_pod(fraction="0.5", spec={"os": {"name": "linux"}})), Patched)
