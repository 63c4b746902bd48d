from fractions import Fraction

from fracgpu.k8s.affinity import NodeExpressionJson as Present
from fracgpu.k8s.affinity import NodeSelectorJson, NodeTermJson
from fracgpu.request.grant import Grant
from fracgpu.request.grant_note import AddedRequirement
from fracgpu.request.need import ContainerNeed, PodNeed
from fracgpu.units import Mib
from tests.webhook.builders import H100S
from webhook.admission.pod_edits import node_edits, requirements
from webhook.admission.review import Affinity, NodeAffinity

SHARED = AddedRequirement(key="fracgpu.io/share", operator="In", values=("true",))
REQUIRED = "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution"


def a_grant(*needs: ContainerNeed) -> Grant:
    return Grant(need=PodNeed(containers=needs), card_class=H100S)


def with_terms(*terms: NodeTermJson) -> Affinity:
    required = NodeSelectorJson(node_selector_terms=terms)
    return Affinity(node_affinity=NodeAffinity(required=required))


def test_a_share_requires_a_card_of_its_class() -> None:
    need = ContainerNeed(name="a", mib=Mib(40960), share=Fraction(1, 2))

    assert requirements(a_grant(need)) == (
        SHARED,
        AddedRequirement(key="fracgpu.io/card-class-81920", operator="Exists"),
    )


def test_the_container_with_the_most_cards_decides_how_many_a_node_must_have() -> None:
    one = ContainerNeed(name="a", mib=Mib(40960), share=Fraction(1, 2))
    four = ContainerNeed(name="b", mib=Mib(40960), share=Fraction(1, 2), cards=4)

    assert requirements(a_grant(one, four))[1] == AddedRequirement(
        key="fracgpu.io/card-class-81920", operator="Gt", values=("3",)
    )


def test_the_largest_memory_decides_how_large_a_card_must_be() -> None:
    small, large = ContainerNeed(name="a", mib=Mib(1)), ContainerNeed(name="b", mib=Mib(9000))

    assert requirements(a_grant(small, large)) == (
        SHARED,
        AddedRequirement(key="fracgpu.io/card-memory", operator="Gt", values=("8999",)),
    )


def test_one_mib_only_requires_that_the_node_says_its_card_memory() -> None:
    need = ContainerNeed(name="a", mib=Mib(1))

    assert requirements(a_grant(need))[1] == AddedRequirement(
        key="fracgpu.io/card-memory", operator="Exists"
    )


def test_without_an_affinity_one_is_added_whole() -> None:
    for affinity, path in (
        (None, "/spec/affinity"),
        (Affinity(), "/spec/affinity/nodeAffinity"),
        (Affinity(node_affinity=NodeAffinity()), REQUIRED),
    ):
        edits = node_edits(affinity, [SHARED])

        assert [edit.path for edit in edits] == [path]


def test_what_a_term_requires_already_is_not_added_again() -> None:
    zone = Present(key="zone", operator="In", values=("a",))
    shared = Present(key="fracgpu.io/share", operator="In", values=("true",))

    edits = node_edits(
        with_terms(
            NodeTermJson(match_expressions=(shared,)), NodeTermJson(match_expressions=(zone,))
        ),
        [SHARED],
    )

    assert [edit.path for edit in edits] == [f"{REQUIRED}/nodeSelectorTerms/1/matchExpressions/-"]


def test_terms_that_match_nothing_stay_as_they_are() -> None:
    assert (
        node_edits(with_terms(NodeTermJson(), NodeTermJson(match_expressions=())), [SHARED]) == []
    )
    assert node_edits(with_terms(), [SHARED]) == []
    assert (
        node_edits(Affinity(node_affinity=NodeAffinity(required=NodeSelectorJson())), [SHARED])
        == []
    )
