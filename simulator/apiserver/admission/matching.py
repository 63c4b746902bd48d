"""Which webhooks a request concerns, and which webhook configurations are fit to be stored.

Source: k8s.io/apiserver pkg/admission/plugin/webhook/{rules,generic,predicates} and
k8s.io/kubernetes pkg/apis/admissionregistration/validation.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from fracgpu.k8s.selectors import label_selector
from simulator.apiserver.admission import match_conditions
from simulator.apiserver.apimachinery import resources
from simulator.apiserver.apimachinery.errors import StatusCause
from simulator.objects import Json, encode, labels

if TYPE_CHECKING:
    from collections.abc import Iterator

    from simulator.apiserver.apimachinery.request_info import Attributes
    from simulator.apiserver.apimachinery.storage import Store

CONFIGURATIONS: Final = (resources.MUTATING_WEBHOOKS, resources.VALIDATING_WEBHOOKS)
_EXEMPT: Final = frozenset(resource.storage for resource in CONFIGURATIONS)
_LONGEST_TIMEOUT_S: Final = 30
_FEWEST_NAME_PARTS: Final = 3


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
    if attributes.target.resource.storage in _EXEMPT:
        return []
    return [
        MatchedWebhook(name=spec["name"], spec=spec)
        for stored in store.list(kind.storage)
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
    key = target.key._replace(resource=namespaces.storage, namespace="", name=target.namespace)
    stored = store.get(key)
    return labels(stored.object) if stored else {}


def faults(configuration: Json, *, services_resolve: bool) -> Iterator[StatusCause]:
    """Return what is wrong with a webhook configuration.

    *services_resolve* means that ``clientConfig.service`` can be reached from here.
    """
    seen: set[str] = set()
    for index, spec in enumerate(configuration.get("webhooks") or []):
        where = f"webhooks[{index}]"
        name = str(spec.get("name") or "")
        if len(name.split(".")) < _FEWEST_NAME_PARTS:
            yield _invalid(f"{where}.name", name, "should be a domain with at least three "
                           "segments separated by dots")  # fmt: skip
        if name in seen:
            yield StatusCause(
                field=f"{where}.name",
                reason="FieldValueDuplicate",
                message=f'Duplicate value: "{name}"',
            )
        seen.add(name)
        yield from _policy_faults(where, spec)
        yield from _client_faults(f"{where}.clientConfig", spec, services_resolve=services_resolve)
        for number, condition in enumerate(spec.get("matchConditions") or []):
            expression = str(condition.get("expression") or "")
            why = match_conditions.fault(expression)
            if why:
                yield _invalid(f"{where}.matchConditions[{number}].expression", expression, why)


def _policy_faults(where: str, spec: Json) -> Iterator[StatusCause]:
    if "v1" not in (spec.get("admissionReviewVersions") or []):
        yield _invalid(
            f"{where}.admissionReviewVersions",
            spec.get("admissionReviewVersions"),
            "must include at least one of v1, v1beta1",
        )
    if "sideEffects" not in spec:
        yield StatusCause(
            field=f"{where}.sideEffects",
            reason="FieldValueRequired",
            message="Required value: must specify one of None, NoneOnDryRun",
        )
    elif spec["sideEffects"] not in {"None", "NoneOnDryRun"}:
        yield _unsupported(f"{where}.sideEffects", spec.get("sideEffects"), "None", "NoneOnDryRun")
    if spec.get("failurePolicy") not in {"Fail", "Ignore"}:
        yield _unsupported(f"{where}.failurePolicy", spec.get("failurePolicy"), "Fail", "Ignore")
    timeout_s = spec.get("timeoutSeconds")
    if not isinstance(timeout_s, int) or not 1 <= timeout_s <= _LONGEST_TIMEOUT_S:
        yield _invalid(
            f"{where}.timeoutSeconds",
            timeout_s,
            "the timeout value must be between 1 and 30 seconds",
        )


def _client_faults(where: str, spec: Json, *, services_resolve: bool) -> Iterator[StatusCause]:
    client = spec.get("clientConfig") or {}
    url, service = client.get("url"), client.get("service")
    if (url is None) == (service is None):
        yield StatusCause(
            field=where,
            reason="FieldValueRequired",
            message="Required value: exactly one of url or service is required",
        )
    if url is not None and not str(url).startswith("https://"):
        scheme = str(url).partition("://")[0]
        yield _invalid(
            f"{where}.url",
            scheme,
            "'https' is the only allowed URL scheme; desired format: https://host[/path]",
        )
    if service is not None and not services_resolve:
        yield StatusCause(
            field=f"{where}.service",
            reason="FieldValueForbidden",
            message="Forbidden: this embedded API server has no cluster network to reach a "
            "Service through; use url",
        )
    try:
        base64.b64decode(client.get("caBundle") or "", validate=True)
    except (binascii.Error, ValueError):
        yield _invalid(f"{where}.caBundle", "...", "illegal base64 data")


def _invalid(field: str, value: object, detail: str) -> StatusCause:
    shown = encode(value).decode()
    return StatusCause(
        field=field, reason="FieldValueInvalid", message=f"Invalid value: {shown}: {detail}"
    )


def _unsupported(field: str, value: object, *allowed: str) -> StatusCause:
    listed = ", ".join(f'"{word}"' for word in allowed)
    return StatusCause(
        field=field,
        reason="FieldValueNotSupported",
        message=f'Unsupported value: "{value}": supported values: {listed}',
    )
