"""The terms of inter-pod affinity and of topology spread, as a pod's spec has them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from fracgpu.caching import cached
from fracgpu.k8s.affinity import PodAffinityJson, PodTermJson, read_affinity
from fracgpu.k8s.selectors import (
    LabelSelector,
    LabelSelectorJson,
    Requirement,
    label_selector,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodQuery:
    """Which pods a term counts: those of some namespaces whose labels match.

    Attributes:
        namespaces: None for all.
        selector: None selects nothing, an empty one everything.
    """

    namespaces: frozenset[str] | None
    selector: LabelSelector | None

    def matches(self, namespace: str, labels: Mapping[str, str]) -> bool:
        return (
            (self.namespaces is None or namespace in self.namespaces)
            and self.selector is not None
            and self.selector.matches(labels)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PodTerm:
    """One required term of ``podAffinity`` or ``podAntiAffinity``.

    Attributes:
        namespaces: by name; the pod's own if the term names none and selects none.
        namespace_selector: those with these labels as well; None selects none.
    """

    topology_key: str
    selector: LabelSelector | None
    namespaces: frozenset[str]
    namespace_selector: LabelSelector | None = None

    def query(self, namespaces: Mapping[str, Mapping[str, str]]) -> PodQuery:
        """Return which pods the term counts, given the labels of each namespace."""
        chosen = self.namespace_selector
        if chosen is None:
            return PodQuery(namespaces=self.namespaces, selector=self.selector)
        if not chosen.requirements:  # an empty selector: every namespace, known or not
            return PodQuery(namespaces=None, selector=self.selector)
        named = {name for name, labels in namespaces.items() if chosen.matches(labels)}
        return PodQuery(namespaces=self.namespaces | named, selector=self.selector)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpreadConstraint:
    """One of the ``topologySpreadConstraints`` with ``whenUnsatisfiable: DoNotSchedule``.

    Attributes:
        selector: None selects nothing, an empty one everything.
        match_label_keys: labels whose value on the pod itself is selected as well.
        honors_affinity: only nodes that the pod's node affinity allows are counted.
        honors_taints: only nodes whose taints the pod tolerates are counted.
    """

    max_skew: int
    topology_key: str
    selector: LabelSelector | None
    min_domains: int = 1
    match_label_keys: tuple[str, ...] = ()
    honors_affinity: bool = True
    honors_taints: bool = False

    def selector_for(self, labels: Mapping[str, str]) -> LabelSelector | None:
        """Return the selector with the labels that `match_label_keys` takes from the pod."""
        if self.selector is None:
            return None
        merged = tuple(
            Requirement(key=key, operator="In", values=(labels[key],))
            for key in self.match_label_keys
            if key in labels
        )
        return LabelSelector((*merged, *self.selector.requirements)) if merged else self.selector


class SpreadJson(msgspec.Struct, frozen=True, rename="camel"):
    """The JSON of one of a pod's ``topologySpreadConstraints``."""

    max_skew: int = 1
    topology_key: str = ""
    when_unsatisfiable: str = ""
    label_selector: LabelSelectorJson | None = None
    min_domains: int | None = None
    match_label_keys: tuple[str, ...] | None = None
    node_affinity_policy: str | None = None
    node_taints_policy: str | None = None


_spread_decoder: Final = msgspec.json.Decoder(tuple[SpreadJson, ...] | None)


@cached(entries=4096)
def read_pod_terms(
    affinity: bytes, namespace: str
) -> tuple[tuple[PodTerm, ...], tuple[PodTerm, ...]]:
    """Return the required terms of ``podAffinity`` and of ``podAntiAffinity``.

    Args:
        affinity: the JSON of a pod's ``spec.affinity``.
        namespace: the pod's own.

    Raises:
        ValueError: it is no affinity.
    """
    found = read_affinity(affinity)
    return _pod_terms(found.pod_affinity, namespace), _pod_terms(found.pod_anti_affinity, namespace)


@cached(entries=1024)
def decode_spread(constraints: bytes) -> tuple[SpreadJson, ...]:
    """Return the ``topologySpreadConstraints`` of a pod's spec; none if empty or ``null``.

    Raises:
        ValueError: they are no constraints.
        RecursionError: they are nested too deeply.
    """
    return (_spread_decoder.decode(constraints) if constraints else None) or ()


@cached(entries=4096)
def read_spread(constraints: bytes) -> tuple[SpreadConstraint, ...]:
    """Return the constraints that can refuse a node, from ``spec.topologySpreadConstraints``.

    Source of the defaults: pkg/scheduler/framework/plugins/podtopologyspread/common.go.

    Raises:
        ValueError: they are no constraints.
    """
    return tuple(
        SpreadConstraint(
            max_skew=found.max_skew,
            topology_key=found.topology_key,
            selector=_selector(found.label_selector),
            min_domains=found.min_domains or 1,
            match_label_keys=found.match_label_keys or (),
            honors_affinity=found.node_affinity_policy in (None, "Honor"),
            honors_taints=found.node_taints_policy == "Honor",
        )
        for found in decode_spread(constraints)
        if found.when_unsatisfiable == "DoNotSchedule"
    )


def _pod_terms(found: PodAffinityJson | None, namespace: str) -> tuple[PodTerm, ...]:
    terms: Sequence[PodTermJson] = (found.required if found else None) or ()
    return tuple(
        PodTerm(
            topology_key=term.topology_key,
            selector=_selector(term.label_selector),
            namespaces=_namespaces(term, namespace),
            namespace_selector=_selector(term.namespace_selector),
        )
        for term in terms
    )


def _namespaces(term: PodTermJson, own: str) -> frozenset[str]:
    if not term.namespaces and term.namespace_selector is None:
        return frozenset((own,))
    return frozenset(term.namespaces or ())


def _selector(found: LabelSelectorJson | None) -> LabelSelector | None:
    return None if found is None else label_selector(msgspec.to_builtins(found))
