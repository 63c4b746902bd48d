"""A parsed API request: the operation, the object, the user and the options."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from fracgpu.k8s.selectors import LabelSelector
from simulator.apiserver.apimachinery.field_selectors import FieldSelector
from simulator.apiserver.apimachinery.storage import Key

if TYPE_CHECKING:
    from simulator.apiserver.apimachinery.resources import Resource
    from simulator.objects import Json


class Operation(Enum):
    """The verb as admission knows it."""

    CREATE = "CREATE"
    UPDATE = "UPDATE"
    DELETE = "DELETE"


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """Who sends the request. The embedded server takes the bearer token for the user's name."""

    name: str = "kubernetes-admin"
    groups: tuple[str, ...] = ("system:masters", "system:authenticated")


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What accompanies a write: the user, dry run, and the warnings collected so far."""

    user: User = field(default_factory=User)
    dry_run: bool = False
    options: Json = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The object or collection a request is about; the namespace is empty where there is none."""

    resource: Resource
    namespace: str = ""
    name: str = ""
    subresource: str = ""

    @property
    def key(self) -> Key:
        return Key(self.resource.qualified, self.namespace, self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListSelection:
    """Which objects of a collection are selected; namespace None means all namespaces."""

    namespace: str | None = None
    labels: LabelSelector = field(default_factory=LabelSelector)
    fields: FieldSelector = field(default_factory=FieldSelector)

    def matches(self, found: Json) -> bool:
        meta = found["metadata"]
        return (
            self.namespace in (None, meta.get("namespace", ""))
            and self.labels.matches(meta.get("labels") or {})
            and self.fields.matches(found)
        )

    @property
    def is_narrowed(self) -> bool:
        """Whether a selector excludes objects."""
        return bool(self.labels.requirements or self.fields.terms)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attributes:
    """What an admission plugin sees of one write. ``kind`` is (group, version, kind)."""

    target: Target
    operation: Operation
    kind: tuple[str, str, str]
    value: Json | None
    before: Json | None
    context: Context
