from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from fracgpu.k8s.node_affinity import NAME_FIELD, NodeExpression, NodeRules
from fracgpu.k8s.node_index import NodeIndex

KEYS = ("zone", "kubernetes.io/hostname", "memory")
VALUES = ("a", "b", "1", "2", "10", "-3", "+4", "1_0", "9" * 20, "")
NODES = ("n1", "n2", "n3", "n4", "n5")

labels = st.dictionaries(st.sampled_from(KEYS), st.sampled_from(VALUES))
on_labels = st.builds(
    NodeExpression,
    key=st.sampled_from(KEYS),
    operator=st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "Later"]),
    values=st.lists(st.sampled_from(VALUES), max_size=3).map(tuple),
)
on_names = st.builds(
    NodeExpression,
    key=st.sampled_from([NAME_FIELD, "metadata.uid"]),
    operator=st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist"]),
    values=st.lists(st.sampled_from(NODES), max_size=3).map(tuple),
    by_field=st.just(True),
)
expressions = st.lists(on_labels | on_names, max_size=3).map(tuple)
rules = st.builds(
    NodeRules,
    selector=expressions,
    terms=st.none() | st.lists(expressions, max_size=3).map(tuple),
)
changes = st.lists(st.tuples(st.sampled_from(NODES), st.none() | labels), max_size=20)


@given(changes, st.lists(rules, min_size=1, max_size=5))
def test_the_index_selects_the_nodes_that_the_rules_select_one_by_one(
    changed: list[tuple[str, Mapping[str, str] | None]], asked: list[NodeRules]
) -> None:
    index, left = NodeIndex(), dict[str, Mapping[str, str]]()
    for number, (node, now) in enumerate(changed):
        if now is None:
            index.remove(node)
            left.pop(node, None)
        else:
            index.put(node, now)
            left[node] = now
        each = asked[number % len(asked)]

        assert set(index.names(index.selected(each))) == {
            name for name, here in left.items() if each.selects(here, node=name)
        }


def test_a_node_keeps_its_position_and_another_takes_it_once_it_is_gone() -> None:
    index = NodeIndex()

    assert [index.put(node, {}) for node in ("a", "b", "a")] == [0, 1, 0]
    assert (index.remove("a"), index.remove("a")) == (0, None)
    assert index.put("c", {}) == 0
    assert set(index.names(index.nodes)) == {"b", "c"}


def test_a_number_is_one_that_the_api_server_would_compare() -> None:
    index = NodeIndex()
    for value in ("5", "+5", "1_0", " 7", "\u0667", "9" * 19, "8" * 63, ""):
        index.put(f"node {value}", {"memory": value})
    more = NodeRules(selector=(NodeExpression(key="memory", operator="Gt", values=("4",)),))

    assert set(index.names(index.selected(more))) == {"node 5", "node +5"}


def test_rules_are_written_as_selectors_on_a_command_line() -> None:
    zone = NodeExpression(key="zone", operator="In", values=("a", "b"))
    name = NodeExpression(key=NAME_FIELD, operator="In", values=("n1",), by_field=True)
    rest = tuple(
        NodeExpression(key="memory", operator=operator, values=values)
        for operator, values in (
            ("NotIn", ("1",)), ("Exists", ()), ("DoesNotExist", ()), ("Gt", ("4",)), ("Lt", ("9",))
        )
    )  # fmt: skip

    assert NodeRules(selector=(name,), terms=((zone,), (), rest)).words == (
        "metadata.name=n1 and zone in (a, b) or memory notin (1), memory, !memory, memory > 4, "
        "memory < 9"
    )
    assert NodeRules(terms=((),)).words == "no term"
