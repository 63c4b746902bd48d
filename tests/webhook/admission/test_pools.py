"""Grants by the pool catalogue: what a pod gets while no node has such a card, and afterwards."""

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from deviceplugin.node.capacity import NodeState, wanted_state, with_card_class
from fracgpu import names
from fracgpu.cards.card import Card, CardUuid, NodeCards
from fracgpu.cards.card_class import CardClassCounts
from fracgpu.cards.pool_catalogue import Pool, PoolCatalogue, PoolClass, template_labels
from fracgpu.k8s.node import Taint
from fracgpu.k8s.node_affinity import NodeRules, read_node_rules
from fracgpu.k8s.quantity import integer_amount
from fracgpu.placement.outcome import Placement
from fracgpu.placement.placement import place
from fracgpu.request.grant import ClassRule
from fracgpu.request.grant_note import Seal
from fracgpu.request.need import Strategy
from fracgpu.state.pod_info import decode_pod_info
from fracgpu.state.snapshot import CardInfo, NodeInfo
from fracgpu.units import Mib
from simulator.apiserver.apimachinery.patches import json_patch
from tests.deviceplugin.builders import an_inventory
from tests.webhook.builders import (
    H100S,
    RULES,
    Json,
    a_container,
    a_pod,
    a_review,
    judged,
    judged_change,
    parsed,
    patched,
    stored,
    worded,
)
from webhook.admission.context import DecisionContext
from webhook.admission.review import read_review
from webhook.admission.update import admit_update
from webhook.admission.verdict import Allowed, Denied, Patched
from webhook.admission.workload import grant_templates

A100, T4 = "NVIDIA-A100-SXM4-80GB", "Tesla-T4"
GPU = Taint(key="nvidia.com/gpu", value="present", effect="NoSchedule")
SPOT = Taint(key="spot", value="", effect="NoExecute")
A100S = PoolClass(
    name="a100-80gb",
    models=("NVIDIA-A100*80GB*",),
    nominal_mib=Mib(80_960),
    pools=(
        Pool(name="a100-8", cards=8, labels={"zone": "a"}, taints=(GPU,)),
        Pool(name="a100-1", cards=1, labels={"zone": "b"}, taints=(GPU, SPOT)),
    ),
)
T4S = PoolClass(
    name="t4",
    models=(T4,),
    nominal_mib=Mib(15_040),
    pools=(Pool(name="t4", cards=1, labels={"zone": "a"}),),
)
CATALOGUE = PoolCatalogue(classes=(A100S, T4S))
WAIT = replace(RULES, card_classes=ClassRule(wait=True))


class Cluster:
    """Nodes as the webhook counts them, labelled as their agents do."""

    def __init__(self, catalogue: PoolCatalogue = CATALOGUE) -> None:
        self.catalogue = catalogue
        self.nodes: dict[str, NodeCards] = {}
        self._counts = CardClassCounts()

    def add(
        self, name: str, *sizes: int, model: str = A100, labels: Mapping[str, str] | None = None
    ) -> NodeCards:
        cards = tuple(
            Card(uuid=CardUuid(f"GPU-{name}-{index}"), index=index, model=model, total_mib=Mib(mib))
            for index, mib in enumerate(sizes)
        )
        have = NodeState(labels={names.SHARE_LABEL: "true", **(labels or {})})
        want = wanted_state(an_inventory(*cards), have=have)
        want = with_card_class(want, have=have, cards=cards, pools=self.catalogue)
        node = NodeCards(node=name, shared=True, cards=cards, labels={**have.labels, **want.labels})
        self.nodes[name] = node
        self._counts.put(
            node,
            free_mib={card.uuid: card.capacity_mib for card in cards},
            name=self.catalogue.class_of_node(node.labels, cards),
        )
        return node

    def context(self) -> dict[str, Any]:
        return {
            "classes": self._counts.classes(),
            "select": self._counts.select,
            "pools": self.catalogue,
            "declared": self._declared,
        }

    def _declared(self, rules: NodeRules) -> Any:
        return self.catalogue.declared(rules, self._counts.smallest_by_name())

    def judged(self, pod: Json, **context: Any) -> Any:
        return judged(pod, **{**self.context(), "rules": WAIT, **context})

    def admitted(self, pod: Json) -> Json:
        outcome = self.judged(pod)
        assert isinstance(outcome, Patched), outcome
        return stored(pod, outcome)

    def takes(self, node: NodeCards, pod: Json, held: Mapping[CardUuid, int] | None = None) -> Any:
        """Return whether kube-scheduler lets a stored pod onto a node, and where the extender."""
        spec = pod["spec"]
        rules = read_node_rules(
            tuple(spec.get("nodeSelector", {}).items()),
            json.dumps(spec["affinity"]).encode(),
            json.dumps(spec.get("tolerations", [])).encode(),
        )
        if not rules.selects(node.labels, node=node.node):
            return None
        need = decode_pod_info(json.dumps(pod).encode()).need
        assert need is not None
        infos = {
            card.uuid: CardInfo(card=card, held_mib=Mib((held or {}).get(card.uuid, 0)))
            for card in node.cards
        }
        answer = place(NodeInfo(node=node, cards=infos), need, strategy=Strategy.PACK)
        return answer if isinstance(answer, Placement) else None


def required(pod: Json) -> Sequence[Json]:
    affinity = pod["spec"]["affinity"]["nodeAffinity"]
    (term,) = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    return [each for each in term["matchExpressions"] if each["key"] != names.SHARE_LABEL]


IN_A100 = {"key": names.CARD_CLASS_LABEL, "operator": "In", "values": ["a100-80gb"]}
TOLERATED = [
    {"key": "nvidia.com/gpu", "operator": "Equal", "value": "present", "effect": "NoSchedule"},
    {"key": "spot", "operator": "Exists", "effect": "NoExecute"},
]


def test_a_share_of_a_class_without_a_node_is_granted_by_its_nominal_size() -> None:
    pod = Cluster().admitted(a_pod(fraction="0.5", model="*A100*"))

    assert worded(pod)["metadata"]["annotations"][names.GRANTED] == (
        "train: 40480 MiB on 1 card (0.5 of a100-80gb, which shares 80960 MiB)"
    )
    assert required(pod) == [IN_A100]
    assert pod["spec"]["tolerations"] == TOLERATED


def test_the_author_is_told_for_what_the_pod_waits() -> None:
    assert patched(Cluster().judged(a_pod(fraction="0.5", model="*A100*"))).warnings == (
        "no node can hold the pod now, and it waits for one of a pool of the catalogue with "
        "a100-80gb: the request is 'a share of a card'; want a cluster with at least one shared, "
        "healthy card; no node labelled fracgpu.io/share=true has reported one yet; fracgpu doctor "
        "says why",
    )


def test_several_cards_are_granted_where_one_node_of_a_pool_has_as_many() -> None:
    pod = Cluster().admitted(a_pod(fraction="1", cards="8", model="*A100*"))

    assert required(pod) == [
        IN_A100,
        {"key": names.CARD_COUNT_LABEL, "operator": "Gt", "values": ["7"]},
    ]
    assert pod["spec"]["containers"][0]["resources"]["limits"][names.GPU_MEM] == "647680"


def test_an_amount_of_memory_keeps_off_pools_of_other_models_and_with_too_few_cards() -> None:
    pod = Cluster().admitted(a_pod(memory="8Gi", cards="2", cores="30", model="*A100*"))

    assert required(pod) == [
        {"key": names.CARD_MEMORY_LABEL, "operator": "Gt", "values": ["8191"]},
        {"key": names.CARD_COUNT_LABEL, "operator": "Gt", "values": ["1"]},
        {"key": names.CARD_CLASS_LABEL, "operator": "NotIn", "values": ["t4"]},
    ]
    assert pod["spec"]["tolerations"] == TOLERATED


def test_a_pod_keeps_off_the_pools_of_another_vendor() -> None:
    amd = PoolClass(
        name="mi300x",
        models=("AMD-Instinct-MI300X",),
        nominal_mib=Mib(196_560),
        pools=(Pool(name="mi300x", cards=8, taints=(SPOT,)),),
    )
    cluster = Cluster(PoolCatalogue(classes=(T4S, amd)))

    nvidia = cluster.admitted(a_pod(memory="8Gi"))
    assert {"key": names.CARD_CLASS_LABEL, "operator": "NotIn", "values": ["mi300x"]} in (
        required(nvidia)
    )
    assert "tolerations" not in nvidia["spec"]

    other = cluster.admitted(a_pod(memory="8Gi", vendor="amd"))
    assert {"key": names.CARD_CLASS_LABEL, "operator": "NotIn", "values": ["t4"]} in (
        required(other)
    )
    assert [each["key"] for each in other["spec"]["tolerations"]] == ["spot"]


def test_what_no_pool_could_hold_is_refused_as_ever() -> None:
    for pod, part in (
        (a_pod(fraction="0.5", model="*H100*"), "fracgpu.io/model is '*H100*'"),
        (a_pod(fraction="1", cards="9"), "fracgpu.io/cards of container 'train' is '9'"),
        (a_pod(memory="100Gi"), "at most what the largest card shares, 80960 MiB"),
        (a_pod(fraction="0.5", spec={"nodeSelector": {"zone": "c"}}), "it selects no node"),
        (
            a_pod(fraction="1", cards="2", spec={"nodeSelector": {"zone": "b"}}),
            "fracgpu.io/cards",
        ),
        # The pool may bring another card of the class.
        (a_pod(fraction="0.5", model="NVIDIA-A100-SXM4-80GB"), "fracgpu.io/model"),
    ):
        outcome = Cluster().judged(pod)
        assert isinstance(outcome, Denied), pod
        assert part in outcome.message


def test_the_pods_own_selectors_choose_the_pool() -> None:
    pod = Cluster().admitted(a_pod(fraction="1", spec={"nodeSelector": {"zone": "b"}}))

    assert required(pod) == [IN_A100]


def test_pods_wait_only_where_the_administrator_says_so() -> None:
    outcome = Cluster().judged(a_pod(fraction="0.5"), rules=RULES)

    assert isinstance(outcome, Denied)


def test_nodes_that_can_hold_the_pod_come_before_pools() -> None:
    cluster = Cluster()
    cluster.add("n1", 15_040, model=T4)
    pod = cluster.admitted(a_pod(fraction="0.5"))

    assert required(pod) == [{**IN_A100, "values": ["t4"]}]
    assert "tolerations" not in pod["spec"]


def test_a_pool_is_taken_where_the_nodes_of_its_class_have_too_few_cards() -> None:
    cluster = Cluster()
    cluster.add("n1", 81_040)
    pod = cluster.admitted(a_pod(fraction="0.5", cards="4"))

    # Half of the smallest card that was measured, not of the nominal one.
    assert pod["spec"]["containers"][0]["resources"]["limits"][names.GPU_MEM] == str(4 * 40_520)


def test_a_pod_without_a_share_gets_no_toleration() -> None:
    pod = a_pod(a_container(resources={"limits": {"nvidia.com/gpu": "1"}}))

    assert isinstance(Cluster().judged(pod), Allowed)


def test_a_pod_keeps_its_own_tolerations_and_gets_none_twice() -> None:
    own = [{"key": "mine", "operator": "Exists"}, TOLERATED[0]]
    pod = Cluster().admitted(a_pod(fraction="0.5", model="*A100*", spec={"tolerations": own}))

    assert pod["spec"]["tolerations"] == [*own, TOLERATED[1]]


def test_a_review_of_the_same_request_changes_nothing_more() -> None:
    cluster = Cluster()
    pod = a_pod(fraction="0.5", model="*A100*", spec={"nodeSelector": {"zone": "a"}})
    first = cluster.admitted(pod)

    again = cluster.judged(first, seal=Seal())

    assert isinstance(again, Allowed)


def test_a_manifest_that_is_applied_again_gets_its_tolerations_back() -> None:
    pod = Cluster().admitted(a_pod(fraction="0.5", model="*A100*"))
    applied = copy.deepcopy(pod)
    applied["spec"]["tolerations"] = [{"key": "mine", "operator": "Exists"}]

    assert stored(applied, patched(judged_change(pod, applied)))["spec"]["tolerations"] == [
        {"key": "mine", "operator": "Exists"},
        *TOLERATED,
    ]


@pytest.mark.parametrize(("zone", "taken"), [("a", True), ("c", False)])
def test_a_gated_pod_may_be_sent_to_a_pool_without_nodes_but_not_nowhere(
    zone: str, taken: bool
) -> None:
    """As Kueue does when it admits a workload to a flavor."""
    cluster = Cluster()
    pod = cluster.admitted(a_pod(fraction="0.5", model="*A100*"))
    sent = copy.deepcopy(pod)
    sent["spec"]["nodeSelector"] = {"zone": zone}
    context = cluster.context()

    outcome = admit_update(
        parsed(pod),
        parsed(sent),
        user="kueue",
        config=WAIT,
        select=context["select"],
        declared=context["declared"],
    )

    assert isinstance(outcome, Denied) is not taken
    if isinstance(outcome, Denied):
        assert "of the class a100-80gb" in outcome.message


def test_without_a_catalogue_all_is_as_before() -> None:
    pod = a_pod(fraction="0.5", spec={"nodeSelector": {"zone": "a"}})
    cluster = Cluster(PoolCatalogue())
    cluster.add("n1", 81_040, labels={"zone": "a"})

    admitted = cluster.admitted(pod)

    assert required(admitted) == [
        {"key": f"{names.CARD_CLASS_LABEL_PREFIX}81040", "operator": "Exists"}
    ]
    assert "cardClass" not in admitted["metadata"]["annotations"][names.GRANTED]


def test_nodes_outside_of_the_catalogue_are_granted_by_their_size() -> None:
    outcome = patched(
        judged(
            a_pod(fraction="0.5"),
            classes=(H100S,),
            rules=WAIT,
            pools=CATALOGUE,
            declared=lambda _: (),
        )
    )

    pod = stored(a_pod(fraction="0.5"), outcome)
    assert required(pod) == [{"key": "fracgpu.io/card-class-81920", "operator": "Exists"}]


def test_a_pod_granted_by_size_still_finds_its_node_once_there_is_a_catalogue() -> None:
    before, after = Cluster(PoolCatalogue()), Cluster()
    before.add("n1", 81_040)
    pod = before.admitted(a_pod(fraction="0.5"))

    assert after.takes(after.add("n1", 81_040), pod) is not None


SHARES = st.sampled_from(["1", "0.5", "0.25", "0.2", "33.3%", "0.7", "0.001", "99.9%"])


@given(
    nominal_mib=st.integers(800, 200_000),
    more=st.lists(st.integers(0, 2_000), min_size=1, max_size=8),
    share=SHARES,
    cards=st.integers(1, 8),
)
def test_a_grant_made_before_the_node_exists_fits_when_it_comes(
    nominal_mib: int, more: Sequence[int], share: str, cards: int
) -> None:
    assume(cards <= len(more))
    pool_class = replace(
        A100S, nominal_mib=Mib(nominal_mib), pools=(Pool(name="p", cards=len(more)),)
    )
    cluster = Cluster(PoolCatalogue(classes=(pool_class,)))
    assume(pool_class.mib >= 80)
    pod = cluster.admitted(a_pod(fraction=share, cards=str(cards)))
    template = template_labels(pool_class, pool_class.pools[0])

    node = cluster.add("n1", *(nominal_mib + extra for extra in more))

    assert cluster.takes(node, pod) is not None
    rules = read_node_rules((), json.dumps(pod["spec"]["affinity"]).encode(), b"")
    assert rules.selects(template)


@given(
    nominal_mib=st.integers(800, 200_000),
    first=st.integers(0, 500),
    second=st.integers(0, 500),
    shares=st.lists(st.sampled_from([1, 2, 4, 5, 8, 10, 16, 20]), min_size=1, max_size=20),
)
def test_shares_granted_at_any_time_that_make_up_one_card_fit_on_it_together(
    nominal_mib: int, first: int, second: int, shares: Sequence[int]
) -> None:
    """Granted before any node, with one, and with two nodes of another size."""
    pool_class = replace(A100S, nominal_mib=Mib(nominal_mib), pools=(Pool(name="p", cards=1),))
    cluster = Cluster(PoolCatalogue(classes=(pool_class,)))
    parts, left = [], 80
    for each in shares:
        if 80 // each <= left:
            parts.append(each)
            left -= 80 // each
    node, held = None, 0
    for number, each in enumerate(parts):
        if number == 1:
            cluster.add("n1", nominal_mib + first)
        if number == 2:
            cluster.add("n2", nominal_mib + second)
        pod = cluster.admitted(a_pod(fraction=str(1 / each)))
        node = cluster.nodes.get("n1") or cluster.add("n1", nominal_mib + first)
        taken = cluster.takes(node, pod, {node.cards[0].uuid: held})
        assert taken is not None
        limits = pod["spec"]["containers"][0]["resources"]["limits"]
        held += integer_amount(limits[names.GPU_MEM]) or 0


@pytest.mark.parametrize(("labelled", "wanted"), [("true", True), (None, False)])
def test_only_pools_that_limit_containers_are_taken_for_a_pod_that_wants_it(
    labelled: str | None, wanted: bool
) -> None:
    labels = {"fracgpu.io/isolation-kernel": labelled} if labelled else {}
    pool = Pool(name="t4", cards=1, labels=labels)
    cluster = Cluster(PoolCatalogue(classes=(replace(T4S, pools=(pool,)),)))

    outcome = cluster.judged(a_pod(fraction="0.5", isolation="kernel"))

    assert isinstance(outcome, Patched) is wanted


def test_a_context_without_pools_knows_no_class() -> None:
    context = DecisionContext(classes=(), config=RULES)

    assert context.declared(NodeRules()) == ()


def test_a_template_is_granted_before_there_is_a_node_and_its_pods_by_what_came() -> None:
    """A card that shares less than the catalogue says is no reason to refuse the pods."""
    cluster = Cluster()
    template = a_pod(fraction="0.5", model="*A100*")
    review = read_review(
        json.dumps(
            a_review(
                {"spec": {"template": template}},
                kind={"group": "apps", "version": "v1", "kind": "Deployment"},
            )
        ).encode()
    )
    context = DecisionContext(
        **cluster.context(),
        config=WAIT,
        namespace_labels={names.GRANT_TEMPLATES_LABEL: "true"},
    )
    outcome = patched(grant_templates(review, context))
    assert outcome.granted == "train=40480"

    pod = json_patch({"spec": {"template": template}}, list(msgspec.to_builtins(outcome.edits)))[
        "spec"
    ]["template"]
    assert mib_of(cluster.admitted(pod)) == "40480"
    cluster.add("n1", 80_000, 80_000)
    assert mib_of(cluster.admitted(pod)) == "40k"


def mib_of(pod: Json) -> str:
    limits = pod["spec"]["containers"][0]["resources"]["limits"]
    found: str = limits[names.GPU_MEM]
    return found
