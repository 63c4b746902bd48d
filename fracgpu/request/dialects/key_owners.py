"""Which dialects a pod mentions, and where: keys in their place, and keys out of it."""

from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace

from fracgpu.k8s.container import ContainerKind, ContainerSpec
from fracgpu.request.dialects.dialect import Dialect, PodForDialects
from fracgpu.request.dialects.registry import DIALECTS, annotation_owners, is_foreign, limit_owners


@dataclass(slots=True, kw_only=True)
class OwnedKeys:
    """What one dialect finds of its own in a pod.

    Attributes:
        limits: container name to its limits of this dialect.
        requests: container name to its requests of this dialect.
        annotations: pod annotations of this dialect.
        stray_annotations: resources of this dialect that stand among the annotations.
        stray_limits: container name to annotations of this dialect that stand in its limits.
    """

    dialect: Dialect
    limits: dict[str, dict[str, str]] = field(default_factory=dict)
    requests: dict[str, dict[str, str]] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    stray_annotations: dict[str, str] = field(default_factory=dict)
    stray_limits: dict[str, dict[str, str]] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """Whether nothing of this dialect is there at all."""
        return not (
            self.limits
            or self.requests
            or self.annotations
            or self.stray_annotations
            or self.stray_limits
        )

    def pieces(self, pod: PodForDialects) -> PodForDialects:
        """Give the pod as its dialect sees it: with its own keys in their place, and no others."""
        return replace(
            pod,
            annotations=self.annotations,
            containers=_with(pod.containers, limits=self.limits),
        )

    def mended(self, pod: PodForDialects) -> PodForDialects:
        """Give the pod as its dialect would see it, were its stray keys in their place.

        A limit that is another dialect's while this one is off, such as ``nvidia.com/gpu``, is seen
        as well: its author wrote both and meant one thing.
        """
        annotations = dict(self.annotations)
        for amounts in self.stray_limits.values():
            annotations = {**amounts, **annotations}
        limits = {}
        for spec in pod.containers:
            limits[spec.name] = {k: v for k, v in spec.limits.items() if k in self.dialect.limits}
        if self.stray_annotations and (home := _home(pod, limits)):
            limits[home] = {**self.stray_annotations, **limits[home]}
        containers = _with(pod.containers, limits=limits)
        return replace(pod, annotations=annotations, containers=containers)


def _home(pod: PodForDialects, limits: Mapping[str, Mapping[str, str]]) -> str:
    """Name the container that a stray resource belongs to: one that asks already, else the app."""
    asking = [name for name, amounts in limits.items() if amounts]
    apps = [it.name for it in pod.containers if it.kind is ContainerKind.APP]
    return next(iter([*asking, *apps]), "")


def keys_of(pieces: PodForDialects) -> tuple[str, ...]:
    """Give the keys of a pod as one dialect sees it: limits, then annotations, each once."""
    keys = [key for spec in pieces.containers for key in sorted(spec.limits)]
    return tuple(dict.fromkeys([*keys, *sorted(pieces.annotations)]))


def _with(
    containers: tuple[ContainerSpec, ...], *, limits: Mapping[str, Mapping[str, str]]
) -> tuple[ContainerSpec, ...]:
    return tuple(
        ContainerSpec(name=it.name, kind=it.kind, limits=limits.get(it.name, {}))
        for it in containers
    )


def _any_foreign(pod: PodForDialects) -> bool:
    return any(map(is_foreign, pod.annotations)) or any(
        is_foreign(key) for spec in pod.containers for key in (*spec.limits, *spec.requests)
    )


def find_owned_keys(pod: PodForDialects, *, enabled: Set[str]) -> tuple[OwnedKeys, ...]:
    """Sort a pod's foreign keys by the dialect they belong to, in the table's order."""
    if not _any_foreign(pod):
        return ()  # nearly every pod, so it is worth knowing at once
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
        _drop_none(owned)
    return tuple(
        found[it.name] for it in DIALECTS if it.name in found and not found[it.name].is_empty
    )


def is_zero_amount(amount: str) -> bool:
    """Tell whether an amount in limits asks for nothing, as templates with a switch write it."""
    return amount == "0"


def _drop_none(owned: OwnedKeys) -> None:
    """Forget containers whose every resource of this dialect is 0: they ask for nothing.

    One that is 0 beside another that is not is left to its dialect, which refuses it.
    """
    for amounts in (owned.limits, owned.requests):
        for name in [
            it for it, found in amounts.items() if all(map(is_zero_amount, found.values()))
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
    """Choose whose a key is: the first dialect that is on, else the one spoken here, else the last.

    The last row is the one that takes the key as the cluster without any of them would.
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
