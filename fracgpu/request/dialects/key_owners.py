"""Which dialects own the keys of a pod, and which keys are in the wrong place."""

from collections.abc import Mapping, Set
from dataclasses import dataclass, field

import msgspec

from fracgpu.k8s.container import ContainerKind, ContainerSpec
from fracgpu.request.dialects.dialect import Dialect, PodForDialects
from fracgpu.request.dialects.registry import DIALECTS, annotation_owners, is_foreign, limit_owners


@dataclass(slots=True, kw_only=True)
class OwnedKeys:
    """The keys of one dialect in a pod.

    Attributes:
        limits: container name to its limits of this dialect.
        requests: container name to its requests of this dialect.
        annotations: pod annotations of this dialect.
        stray_annotations: resources of this dialect that were written as annotations.
        stray_limits: container name to annotations of this dialect that were written as limits.
    """

    dialect: Dialect
    limits: dict[str, dict[str, str]] = field(default_factory=dict)
    requests: dict[str, dict[str, str]] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    stray_annotations: dict[str, str] = field(default_factory=dict)
    stray_limits: dict[str, dict[str, str]] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """Whether the pod has no key of this dialect."""
        return not (
            self.limits
            or self.requests
            or self.annotations
            or self.stray_annotations
            or self.stray_limits
        )

    def pieces(self, pod: PodForDialects) -> PodForDialects:
        """Return the pod with only this dialect's keys that are in the right place."""
        return msgspec.structs.replace(
            pod,
            annotations=self.annotations,
            containers=_with(pod.containers, limits=self.limits),
        )

    def mended(self, pod: PodForDialects) -> PodForDialects:
        """Return the pod with only this dialect's keys, the stray ones moved to the right place.

        It includes a limit that belongs to another dialect while this one is off, such as
        ``nvidia.com/gpu``: the author wrote both for one request.
        """
        annotations = dict(self.annotations)
        for amounts in self.stray_limits.values():
            annotations = {**amounts, **annotations}
        limits = {}
        for spec in pod.containers:
            limits[spec.name] = {
                key: text for key, text in spec.limits.items() if key in self.dialect.limits
            }
        if self.stray_annotations and (target := _target(pod, limits)):
            limits[target] = {**self.stray_annotations, **limits[target]}
        containers = _with(pod.containers, limits=limits)
        return msgspec.structs.replace(pod, annotations=annotations, containers=containers)


def _target(pod: PodForDialects, limits: Mapping[str, Mapping[str, str]]) -> str:
    """Return the container that a stray resource is for: the first with a request, else an app."""
    asking = [name for name, amounts in limits.items() if amounts]
    apps = [spec.name for spec in pod.containers if spec.kind is ContainerKind.APP]
    return next(iter([*asking, *apps]), "")


def keys_of(pod: PodForDialects) -> tuple[str, ...]:
    """Return the keys in the result of :meth:`OwnedKeys.pieces`: limits, then annotations."""
    keys = [key for spec in pod.containers for key in sorted(spec.limits)]
    return tuple(dict.fromkeys([*keys, *sorted(pod.annotations)]))


def _with(
    containers: tuple[ContainerSpec, ...], *, limits: Mapping[str, Mapping[str, str]]
) -> tuple[ContainerSpec, ...]:
    return tuple(
        ContainerSpec(name=spec.name, kind=spec.kind, limits=limits.get(spec.name, {}))
        for spec in containers
    )


def _any_foreign(pod: PodForDialects) -> bool:
    if any(map(is_foreign, pod.annotations)):
        return True
    for spec in pod.containers:
        if any(map(is_foreign, spec.limits)) or any(map(is_foreign, spec.requests)):
            return True
    return False


def find_owned_keys(pod: PodForDialects, *, enabled: Set[str]) -> tuple[OwnedKeys, ...]:
    """Return a pod's foreign keys by the dialect that owns them, in the registry's order."""
    if not _any_foreign(pod):
        return ()  # nearly every pod
    found: dict[str, OwnedKeys] = {}
    for spec in pod.containers:
        for key, text in spec.limits.items():
            _sort_limit(found, key, text, spec, enabled)
        for key, text in spec.requests.items():
            if owner := _owner(limit_owners(key), spec, enabled):
                _of(found, owner).requests.setdefault(spec.name, {})[key] = text
    for key, text in pod.annotations.items():
        _sort_annotation(found, key, text, enabled)
    for owned in found.values():
        _drop_zero_amounts(owned)
    return tuple(
        found[dialect.name]
        for dialect in DIALECTS
        if dialect.name in found and not found[dialect.name].is_empty
    )


def is_zero_amount(amount: str) -> bool:
    """Report whether an amount in limits asks for nothing, as templates with a switch write."""
    return amount == "0"


def _drop_zero_amounts(owned: OwnedKeys) -> None:
    """Remove containers all of whose resources of this dialect are 0: they ask for nothing.

    A 0 beside another amount is kept, and the dialect rejects it.
    """
    for amounts in (owned.limits, owned.requests):
        for name in [
            name for name, found in amounts.items() if all(map(is_zero_amount, found.values()))
        ]:
            del amounts[name]


def _sort_limit(
    found: dict[str, OwnedKeys], key: str, text: str, spec: ContainerSpec, enabled: Set[str]
) -> None:
    if owner := _owner(limit_owners(key), spec, enabled):
        _of(found, owner).limits.setdefault(spec.name, {})[key] = text
    elif owners := annotation_owners(key):
        _of(found, owners[0]).stray_limits.setdefault(spec.name, {})[key] = text


def _sort_annotation(found: dict[str, OwnedKeys], key: str, text: str, enabled: Set[str]) -> None:
    if owners := annotation_owners(key):
        _of(found, owners[0]).annotations[key] = text
    elif owner := _stray_owner(limit_owners(key), found, enabled):
        _of(found, owner).stray_annotations[key] = text


def _of(found: dict[str, OwnedKeys], dialect: Dialect) -> OwnedKeys:
    return found.setdefault(dialect.name, OwnedKeys(dialect=dialect))


def _owner(owners: tuple[Dialect, ...], spec: ContainerSpec, enabled: Set[str]) -> Dialect | None:
    """Return the dialect that owns a key in a container's limits or requests.

    It is the first of *owners* that is enabled, else the first whose other keys the container has,
    else the last, which gives the key the meaning that it has without any dialect.
    """
    if len(owners) <= 1:
        return owners[0] if owners else None
    for owner in owners:
        if owner.name in enabled:
            return owner
    for owner in owners:
        if any(key in owner.limits and key not in owner.quiet for key in spec.limits):
            return owner
    return owners[-1]


def _stray_owner(
    owners: tuple[Dialect, ...], found: Mapping[str, OwnedKeys], enabled: Set[str]
) -> Dialect | None:
    for owner in owners:
        if owner.name in enabled or owner.name in found:
            return owner
    return owners[-1] if owners else None
