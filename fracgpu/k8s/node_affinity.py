"""Node selectors, required node affinity, taints and tolerations, as in kube-scheduler."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from fracgpu.caching import cached
from fracgpu.k8s.affinity import NodeExpressionJson, NodeSelectorJson, read_affinity
from fracgpu.k8s.node import Node, Taint
from fracgpu.k8s.selectors import operator_holds

NAME_FIELD: Final = "metadata.name"
EXCLUDING_EFFECTS: Final = ("NoSchedule", "NoExecute")
SOFT_EFFECTS: Final = ("PreferNoSchedule",)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeExpression:
    """One requirement on a node's label, or on its name.

    Attributes:
        by_field: *key* is a field of the node rather than a label; there is only NAME_FIELD.
    """

    key: str
    operator: str
    values: tuple[str, ...] = ()
    by_field: bool = False

    def holds(self, value: str | None) -> bool:
        """Report whether a node with this value will do; None if it has none."""
        found = operator_holds(self.operator, value, self.values)
        # An operator of a later release: assume that the node does not match.
        return False if found is None else found

    def matches(self, labels: Mapping[str, str], *, node: str) -> bool:
        if self.by_field:
            return self.holds(node if self.key == NAME_FIELD else None)
        return self.holds(labels.get(self.key))

    @property
    def words(self) -> str:
        """The expression as ``kubectl describe`` writes it, or as a selector on a command line."""
        match self.operator:
            case "In" if len(self.values) == 1:
                return f"{self.key}={self.values[0]}"
            case "In" | "NotIn":
                return f"{self.key} {self.operator.lower()} ({', '.join(self.values)})"
            case "Exists":
                return self.key
            case "DoesNotExist":
                return f"!{self.key}"
            case _:
                sign = {"Gt": ">", "Lt": "<"}.get(self.operator, self.operator)
                return f"{self.key} {sign} {', '.join(self.values)}"


NodeTerms = tuple[tuple[NodeExpression, ...], ...]
"""Alternatives; the expressions of each must all hold, and one without any matches nothing.

Source: kubernetes.io, "Assigning Pods to Nodes".
"""


class Toleration(msgspec.Struct, frozen=True, kw_only=True):
    """A toleration of a pod; an empty effect or key stands for every one."""

    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""

    def tolerates(self, taint: Taint) -> bool:
        """Report whether a pod with this toleration ignores a taint.

        Operators that compare numbers are off by default, and then match nothing. Source:
        staging/src/k8s.io/api/core/v1/toleration.go.
        """
        if self.effect not in ("", taint.effect) or self.key not in ("", taint.key):
            return False
        if self.operator == "Exists":
            return True
        return self.operator in ("", "Equal") and self.value == taint.value


def untolerated(taints: Iterable[Taint], tolerations: Sequence[Toleration]) -> int:
    """Return how many of *taints* none of *tolerations* tolerates."""
    return sum(not any(one.tolerates(taint) for one in tolerations) for taint in taints)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRules:
    """Which nodes one pod selects and tolerates.

    Attributes:
        selector: the ``nodeSelector``, as expressions that must all hold.
        terms: the required node affinity; None if there is none.
    """

    selector: tuple[NodeExpression, ...] = ()
    terms: NodeTerms | None = None
    tolerations: tuple[Toleration, ...] = ()

    @property
    def words(self) -> str:
        """Selector and affinity as selectors on a command line; terms joined by "or"."""
        both = [", ".join(wanted.words for wanted in self.selector)] if self.selector else []
        if self.terms is not None:
            terms = [", ".join(wanted.words for wanted in term) for term in self.terms if term]
            both.append(" or ".join(terms) or "no term")
        return " and ".join(both)

    def selects(self, labels: Mapping[str, str], *, node: str = "") -> bool:
        """Report whether selector and affinity allow a node with these labels."""
        return all(wanted.matches(labels, node=node) for wanted in self.selector) and (
            self.terms is None or any_term_holds(self.terms, labels, node=node)
        )

    def tolerates(self, taints: Iterable[Taint]) -> bool:
        """Report whether each of the taints is tolerated."""
        return not untolerated(taints, self.tolerations)


ANY_NODE: Final = NodeRules()


def any_term_holds(terms: NodeTerms, labels: Mapping[str, str], *, node: str) -> bool:
    """Report whether one of the terms of a node selector matches a node."""
    return any(
        bool(term) and all(wanted.matches(labels, node=node) for wanted in term) for term in terms
    )


_tolerations_decoder: Final = msgspec.json.Decoder(tuple[Toleration, ...])


@cached(entries=4096)
def read_node_rules(
    selector: tuple[tuple[str, str], ...], affinity: bytes, tolerations: bytes
) -> NodeRules:
    """Return the node rules in three fields of a pod's spec; equal ones are one object.

    Args:
        selector: the labels of ``nodeSelector`` and their values.
        affinity: ``affinity`` as JSON; empty if absent.
        tolerations: ``tolerations``, likewise.

    Raises:
        ValueError: one of them is not what it should be.
    """
    found = read_affinity(affinity).node_affinity
    required = found.required if found else None
    return NodeRules(
        selector=selector_expressions(dict(selector)),
        terms=None if required is None else node_terms(required),
        tolerations=read_tolerations(tolerations),
    )


@cached(entries=1024)
def read_tolerations(tolerations: bytes) -> tuple[Toleration, ...]:
    """Return a pod's ``tolerations``; equal ones are one object.

    Args:
        tolerations: JSON; empty if absent.

    Raises:
        ValueError: they are not what they should be.
    """
    return _tolerations_decoder.decode(tolerations) if tolerations else ()


def selector_expressions(selector: Mapping[str, str]) -> tuple[NodeExpression, ...]:
    """Return a ``nodeSelector`` as expressions."""
    return tuple(
        NodeExpression(key=key, operator="In", values=(value,)) for key, value in selector.items()
    )


def node_terms(selector: NodeSelectorJson) -> NodeTerms:
    """Return the terms of a ``NodeSelector``."""
    return tuple(
        (
            *_expressions(term.match_expressions, by_field=False),
            *_expressions(term.match_fields, by_field=True),
        )
        for term in selector.node_selector_terms or ()
    )


def _expressions(
    found: Sequence[NodeExpressionJson] | None, *, by_field: bool
) -> tuple[NodeExpression, ...]:
    return tuple(
        NodeExpression(
            key=wanted.key,
            operator=wanted.operator,
            values=wanted.values or (),
            by_field=by_field,
        )
        for wanted in found or ()
    )


def taints_of(node: Node, *, effects: Collection[str] = EXCLUDING_EFFECTS) -> tuple[Taint, ...]:
    """Return the taints of a node that have one of *effects*."""
    return tuple(taint for taint in node.spec.taints or () if taint.effect in effects)
