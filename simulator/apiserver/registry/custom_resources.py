"""The resources served at a moment: the fixed ones, and those of custom resource definitions.

Source: k8s.io/apiextensions-apiserver pkg/apiserver/customresource_handler.go and
pkg/registry/customresource. Of a definition the first version alone is served, at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from simulator.apiserver.apimachinery import resources
from simulator.apiserver.apimachinery.resources import DEFINITIONS, Resource
from simulator.objects import Json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simulator.apiserver.apimachinery.storage import Store


class ServedResources:
    """Looks up resources by path; those of definitions follow the store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._made: dict[str, tuple[int, Resource]] = {}

    def all(self) -> Sequence[Resource]:
        """Return every resource that is served."""
        return (*resources.ALL, *self._custom())

    def find(self, group: str, version: str, plural: str) -> Resource | None:
        """Return the resource served at this path, or None."""
        fixed = resources.find(group, version, plural)
        if fixed is not None:
            return fixed
        wanted = (group, version, plural)
        return next(
            (one for one in self._custom() if (one.group, one.version, one.plural) == wanted), None
        )

    def is_served(self, group: str, version: str) -> bool:
        """Report whether any resource has this group and version."""
        return resources.is_served(group, version) or any(
            (one.group, one.version) == (group, version) for one in self._custom()
        )

    def _custom(self) -> list[Resource]:
        found = []
        for stored in self._store.list(DEFINITIONS.qualified):
            revision, made = self._made.get(stored.key.name, (0, None))
            if made is None or revision != stored.revision:
                made = defined_by(stored.object)
                self._made[stored.key.name] = stored.revision, made
            found.append(made)
        return found


def defined_by(definition: Json) -> Resource:
    """Return the resource that a valid CustomResourceDefinition defines."""
    spec = definition["spec"]
    names, version = spec["names"], spec["versions"][0]
    return Resource(
        group=spec["group"],
        version=version["name"],
        plural=names["plural"],
        kind=names["kind"],
        namespaced=spec["scope"] == "Namespaced",
        short_names=tuple(names.get("shortNames") or ()),
        subresources=frozenset(version.get("subresources") or {}),
        generation=True,
        unconditional_update=False,
        schema=version["schema"]["openAPIV3Schema"],
        printer_columns=tuple(version.get("additionalPrinterColumns") or ()),
    )


def established(moment: str) -> Json:
    """Return the status of a definition that is served."""
    return {
        "conditions": [
            {
                "type": kind,
                "status": "True",
                "lastTransitionTime": moment,
                "reason": reason,
                "message": message,
            }
            for kind, reason, message in _CONDITIONS
        ]
    }


_CONDITIONS: Final = (
    ("NamesAccepted", "NoConflicts", "no conflicts found"),
    ("Established", "InitialNamesAccepted", "the initial names have been accepted"),
)
