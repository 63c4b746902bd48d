"""Requests of server-side apply: their parameters, their body, and what is answered.

Source: docs "Server-Side Apply" and k8s.io/apiserver pkg/endpoints/handlers/patch.go.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from simulator.apiserver.apimachinery.errors import (
    ApiError,
    StatusCause,
    bad_request,
    invalid,
)
from simulator.apiserver.apimachinery.request_info import Target
from simulator.apiserver.apimachinery.server_side_apply import (
    ApplyConflictError,
    FieldOwners,
    Fields,
    apply,
    fields_of,
    shown,
)
from simulator.apiserver.endpoints import versioning
from simulator.apiserver.endpoints.bodies import check_kind, check_namespace, object_of
from simulator.apiserver.endpoints.field_validation import check_fields

if TYPE_CHECKING:
    from collections.abc import Mapping

    from simulator.apiserver.apimachinery.request_info import Context
    from simulator.apiserver.registry.registry import Registry
    from simulator.objects import Json

MEDIA_TYPE: Final = "application/apply-patch+yaml"
_YES: Final = frozenset({"true", "1"})


class Applier:
    """Applies objects to one registry, and remembers who applied what."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._owners = FieldOwners()

    async def apply(
        self, target: Target, body: bytes, query: Mapping[str, str], context: Context
    ) -> tuple[Json, int]:
        """Create the object or change it; return it and the code of the answer.

        Raises:
            ApiError: anything the API server would answer.
        """
        wanted = self._checked(target, body, query, context)
        manager = query["fieldManager"]
        if self._registry.store.get(target.key) is None:
            where = Target(resource=target.resource, namespace=target.namespace)
            value = versioning.to_storage(target.resource, wanted)
            made = await self._registry.create(where, value, context)
            self._keep(made, {manager: fields_of(wanted)}, context)
            return made, HTTPStatus.CREATED
        owners = dict(self._owners.of(self._registry.get(target).object["metadata"]["uid"]))

        def change(current: Json) -> Json:
            live = versioning.from_storage(target.resource, current)
            done = apply(live, wanted, owners, manager=manager, force=query.get("force") in _YES)
            found.update(done.owners)
            return versioning.to_storage(target.resource, done.value)

        found: dict[str, Fields] = {}
        try:
            stored = await self._registry.update(target, change, context)
        except ApplyConflictError as error:
            raise _conflict(error) from error
        self._keep(stored, found, context)
        return stored, HTTPStatus.OK

    def _checked(
        self, target: Target, body: bytes, query: Mapping[str, str], context: Context
    ) -> Json:
        wanted = object_of("application/yaml", body)
        meta = wanted.get("metadata") or {}
        check_kind(target.resource, wanted)
        check_namespace(target, wanted)
        check_fields(target.resource, wanted, query.get("fieldValidation", ""), context)
        if not query.get("fieldManager"):
            fault = StatusCause(
                field="fieldManager",
                reason="FieldValueRequired",
                message="Required value: is required for apply patch",
            )
            raise invalid(target.resource, target.name, [fault])
        if meta.get("managedFields"):
            raise bad_request("metadata.managedFields must be nil")
        if meta.get("name", target.name) != target.name:
            raise bad_request(
                f"the name of the object ({meta['name']}) does not match the name on the URL "
                f"({target.name})"
            )
        meta["name"] = target.name
        wanted["metadata"] = meta
        return wanted

    def _keep(self, value: Json, owners: Mapping[str, Fields], context: Context) -> None:
        if not context.dry_run:
            self._owners.keep(value["metadata"]["uid"], owners)


def _conflict(error: ApplyConflictError) -> ApiError:
    causes = [
        {
            "reason": "FieldManagerConflict",
            "message": f'conflict with "{manager}"',
            "field": shown(path),
        }
        for path, manager in sorted(error.conflicts.items(), key=lambda pair: shown(pair[0]))
    ]
    count = f"{len(causes)} conflict{'s' if len(causes) > 1 else ''}"
    listed = ", ".join(f"{cause['message']}: {cause['field']}" for cause in causes)
    return ApiError(
        HTTPStatus.CONFLICT,
        "Conflict",
        f"Apply failed with {count}: {listed}",
        details={"causes": causes},
    )
