"""PodDisruptionBudgets, as far as preemption needs them to choose victims."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

import msgspec

from fracgpu.errors import decode_wire
from fracgpu.k8s.selectors import (
    LabelSelectorJson,
    SelectorExpressionJson,
    operator_holds,
)


class _Meta(msgspec.Struct):
    name: str = ""
    namespace: str = ""
    generation: int = 0


class _Spec(msgspec.Struct, rename="camel"):
    selector: LabelSelectorJson | None = None
    max_unavailable: int | str | None = None


class _Status(msgspec.Struct, rename="camel"):
    disruptions_allowed: int = 0
    current_healthy: int = 0
    desired_healthy: int = 0
    observed_generation: int = 0
    disrupted_pods: dict[str, msgspec.Raw] | None = None


class _Wire(msgspec.Struct):
    metadata: _Meta = msgspec.field(default_factory=_Meta)
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status = msgspec.field(default_factory=_Status)


NONE_AT_ALL: Final = (0, "0", "0%")
_decoder: Final = msgspec.json.Decoder(_Wire)
# A LabelSelector has no such operators yet, so what they would mean there is not known.
_OF_NODES: Final = frozenset({"Gt", "Lt"})


@dataclass(frozen=True, slots=True, kw_only=True)
class PodDisruptionBudget:
    """One PodDisruptionBudget.

    Attributes:
        allowed: how many of its pods may still be disrupted (``status.disruptionsAllowed``).
        disrupted: names of its pods whose eviction is already counted in *allowed*.
        healthy: how many of its pods are ready.
        desired_healthy: how many of them must stay so.
        observed: the disruption controller has seen the latest change of the budget.
        selects_all: its selector is empty.
        forbids: its ``maxUnavailable`` is 0: none of its pods may be disrupted, however many there
            are.
    """

    namespace: str
    name: str
    allowed: int
    disrupted: frozenset[str] = frozenset()
    labels: Mapping[str, str]
    expressions: tuple[SelectorExpressionJson, ...] = ()
    healthy: int = 0
    desired_healthy: int = 0
    observed: bool = True
    selects_all: bool = False
    forbids: bool = False

    def guards(self, namespace: str, labels: Mapping[str, str]) -> bool:
        """Report whether the Eviction API asks this budget about a pod with these labels.

        An empty selector selects every pod there. Source: getPodDisruptionBudgets in
        pkg/registry/core/pod/storage/eviction.go.
        """
        return (self.selects_all and namespace == self.namespace) or self.covers(namespace, labels)

    def covers(self, namespace: str, labels: Mapping[str, str]) -> bool:
        """Report whether the budget selects a pod with these labels.

        An empty selector selects nothing here, as in kube-scheduler's preemption.
        """
        return (
            namespace == self.namespace
            and bool(self.labels or self.expressions)
            and all(labels.get(key) == value for key, value in self.labels.items())
            and all(
                _holds(expression, labels.get(expression.key)) for expression in self.expressions
            )
        )


class BudgetedPod(Protocol):
    """A pod as budgets see it."""

    @property
    def namespace(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def labels(self) -> Mapping[str, str]: ...


def read_budget(body: bytes) -> PodDisruptionBudget:
    """Parse a PodDisruptionBudget from its JSON.

    Raises:
        WireError: *body* is not a PodDisruptionBudget.
    """
    wire = decode_wire(_decoder.decode, body, what="poddisruptionbudget")
    selector = wire.spec.selector or LabelSelectorJson()
    return PodDisruptionBudget(
        namespace=wire.metadata.namespace,
        name=wire.metadata.name,
        allowed=wire.status.disruptions_allowed,
        disrupted=frozenset(wire.status.disrupted_pods or ()),
        labels=selector.match_labels or {},
        expressions=selector.match_expressions or (),
        healthy=wire.status.current_healthy,
        desired_healthy=wire.status.desired_healthy,
        observed=wire.status.observed_generation >= wire.metadata.generation,
        selects_all=wire.spec.selector is not None
        and not (selector.match_labels or selector.match_expressions),
        forbids=wire.spec.max_unavailable in NONE_AT_ALL,
    )


class BudgetIndex:
    """Budgets by namespace, and which of them each pod counts against.

    Preemption asks about the same pods in many combinations, and a cluster may have thousands of
    budgets, so the budgets of pods with equal labels are looked up once.
    """

    def __init__(self, budgets: Iterable[PodDisruptionBudget] = ()) -> None:
        self._in_namespace: dict[str, list[PodDisruptionBudget]] = {}
        for budget in budgets:
            self._in_namespace.setdefault(budget.namespace, []).append(budget)
        self._of_labels: dict[
            tuple[str, frozenset[tuple[str, str]]], tuple[PodDisruptionBudget, ...]
        ] = {}

    def of(self, pod: BudgetedPod) -> tuple[PodDisruptionBudget, ...]:
        """Return the budgets that the preemption of a pod counts against."""
        there = self._in_namespace.get(pod.namespace)
        if not there:
            return ()
        key = pod.namespace, frozenset(pod.labels.items())
        found = self._of_labels.get(key)
        if found is None:
            found = tuple(budget for budget in there if budget.covers(pod.namespace, pod.labels))
            self._of_labels[key] = found
        if not any(pod.name in budget.disrupted for budget in found):
            return found
        return tuple(budget for budget in found if pod.name not in budget.disrupted)

    def violations(self, victims: Iterable[BudgetedPod]) -> int:
        """Return how many victims violate a budget when all are preempted one after the other.

        Source: pkg/scheduler/framework/preemption filterVictimsWithPDBViolation.
        """
        disruptions: Counter[tuple[str, str]] = Counter()
        violating = 0
        for victim in victims:
            violates = False
            for budget in self.of(victim):
                name = budget.namespace, budget.name
                disruptions[name] += 1
                violates |= disruptions[name] > budget.allowed
            violating += violates
        return violating


def _holds(wanted: SelectorExpressionJson, value: str | None) -> bool:
    if wanted.operator in _OF_NODES:
        return True
    found = operator_holds(wanted.operator, value, wanted.values or ())
    # An operator of a later release: assume that the pod is protected.
    return True if found is None else found
