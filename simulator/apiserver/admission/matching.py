"""Which webhooks a request concerns.

Source: k8s.io/apiserver pkg/admission/plugin/webhook/{rules,generic,predicates}.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from fracgpu.k8s.selectors import label_selector
from simulator.apiserver.apimachinery import resources
from simulator.objects import Json, labels

if TYPE_CHECKING:
    from simulator.apiserver.apimachinery.request_info import Attributes
    from simulator.apiserver.apimachinery.storage import Store

CONFIGURATIONS: Final = (resources.MUTATING_WEBHOOKS, resources.VALIDATING_WEBHOOKS)
_EXEMPT: Final = frozenset(resource.qualified for resource in CONFIGURATIONS)


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchedWebhook:
    """One webhook of one configuration."""

    name: str
    spec: Json

    @property
    def fails_open(self) -> bool:
        return bool(self.spec.get("failurePolicy") == "Ignore")


def webhooks_for(
    store: Store, kind: resources.Resource, attributes: Attributes
) -> list[MatchedWebhook]:
    """Return the webhooks whose rules and selectors match, in the order they are called.

    Match conditions are not evaluated here: they come last, as in the real server.
    """
    if attributes.target.resource.qualified in _EXEMPT:
        return []
    return [
        MatchedWebhook(name=spec["name"], spec=spec)
        for stored in store.list(kind.qualified)
        for spec in stored.object.get("webhooks") or []
        if _rules_match(spec, attributes) and _selectors_match(spec, attributes, store)
    ]


def _rules_match(spec: Json, attributes: Attributes) -> bool:
    return any(_rule_matches(rule, attributes) for rule in spec.get("rules") or [])


def _rule_matches(rule: Json, attributes: Attributes) -> bool:
    resource = attributes.target.resource
    scope = "Namespaced" if resource.namespaced else "Cluster"
    return (
        _listed(rule.get("operations"), attributes.operation.value)
        and _listed(rule.get("apiGroups"), resource.group)
        and _listed(rule.get("apiVersions"), resource.version)
        and rule.get("scope", "*") in ("*", scope)
        and any(
            _resource_matches(pattern, resource.plural, attributes.target.subresource)
            for pattern in rule.get("resources") or []
        )
    )


def _listed(wanted: list[str] | None, value: str) -> bool:
    return "*" in (wanted or []) or value in (wanted or [])


def _resource_matches(pattern: str, plural: str, subresource: str) -> bool:
    wanted, _, wanted_sub = pattern.partition("/")
    return wanted in ("*", plural) and (
        wanted_sub == subresource or (wanted_sub == "*" and pattern != "*")
    )


def _selectors_match(spec: Json, attributes: Attributes, store: Store) -> bool:
    by_object = label_selector(spec.get("objectSelector") or {})
    if by_object is not None and by_object.requirements:
        candidates = [
            labels(value) for value in (attributes.value, attributes.before) if value is not None
        ]
        if not any(by_object.matches(found) for found in candidates):
            return False
    by_namespace = label_selector(spec.get("namespaceSelector") or {})
    if by_namespace is None or not by_namespace.requirements:
        return True
    found = _namespace_labels(attributes, store)
    return found is None or by_namespace.matches(found)


def _namespace_labels(attributes: Attributes, store: Store) -> dict[str, str] | None:
    """Return the labels that a namespaceSelector sees; None for a cluster-scoped object."""
    target = attributes.target
    if target.resource is resources.NAMESPACES:
        return labels(attributes.value or attributes.before)
    if not target.namespace:
        return None
    namespaces = resources.NAMESPACES
    key = target.key._replace(resource=namespaces.qualified, namespace="", name=target.namespace)
    stored = store.get(key)
    return labels(stored.object) if stored else {}
