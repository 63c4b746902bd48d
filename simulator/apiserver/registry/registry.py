"""Creation, update and deletion of objects, as the API server's generic registry does them.

Source: k8s.io/apiserver pkg/registry/generic/registry/store.go and pkg/endpoints/handlers.
"""

from __future__ import annotations

import random
import uuid
from datetime import timedelta
from typing import TYPE_CHECKING, Final, Protocol

from simulator.apiserver.apimachinery import resources
from simulator.apiserver.apimachinery.errors import (
    StatusCause,
    already_exists,
    forbidden,
    invalid,
    not_found,
    stale,
)
from simulator.apiserver.apimachinery.request_info import Attributes, Context, Operation, Target
from simulator.apiserver.apimachinery.storage import StaleError, Stored
from simulator.apiserver.registry.custom_resources import ServedResources, defined_by, established
from simulator.apiserver.registry.defaults import apply_creation, apply_defaults
from simulator.apiserver.registry.strategy import (
    SERVER_OWNED,
    check_lock,
    check_preconditions,
    cleaned,
    grace_s,
    keep_all_but_status,
)
from simulator.apiserver.registry.validation import (
    validate_create,
    validate_update,
)
from simulator.objects import Json, format_time, metadata, thaw

if TYPE_CHECKING:
    from collections.abc import Callable

    from process.clock import Clock
    from simulator.apiserver.apimachinery.resources import Resource
    from simulator.apiserver.apimachinery.storage import Store

_SUFFIX: Final = "bcdfghjklmnpqrstvwxz2456789"  # k8s.io/apimachinery pkg/util/rand
_ATTEMPTS: Final = 5  # how often the server repeats a patch after a conflict
_IMMORTAL: Final = frozenset({"default", "kube-system", "kube-public"})


class Admission(Protocol):
    """Admission: mutates and validates a well-formed request before it is stored."""

    async def mutate(self, attributes: Attributes) -> Json:
        """Return the object as changed by the mutating webhooks, or the same if none changed it.

        Raises:
            ApiError: one refused, or could not be asked.
        """
        ...

    async def validate(self, attributes: Attributes) -> None:
        """Call the validating webhooks.

        Raises:
            ApiError: one refused, or could not be asked.
        """
        ...


class Registry:
    """Reads and writes objects as the API server's generic registry does."""

    def __init__(
        self, store: Store, admission: Admission, clock: Clock, rng: random.Random
    ) -> None:
        self.store: Final = store
        self.served: Final = ServedResources(store)
        self.admission: Final = admission
        self.clock: Final = clock
        self._rng = rng

    def get(self, target: Target) -> Stored:
        """Return the object.

        Raises:
            ApiError: 404.
        """
        found = self.store.get(target.key)
        if found is None:
            raise not_found(target.resource, target.name)
        return found

    async def create(self, target: Target, value: Json, context: Context) -> Json:
        """Create *value* in the collection *target* and return it as stored.

        Raises:
            ApiError: anything the API server would answer.
        """
        resource = target.resource
        value = cleaned(resource, value)
        meta = metadata(value)
        for owned in (*SERVER_OWNED, "resourceVersion"):
            meta.pop(owned, None)
        if target.namespace:
            meta["namespace"] = target.namespace
            self.get(Target(resource=resources.NAMESPACES, name=target.namespace))
        apply_defaults(resource, value)
        attributes = Attributes(
            target=Target(resource=resource, namespace=target.namespace, name=_name_of(value)),
            operation=Operation.CREATE,
            kind=(resource.group, resource.version, resource.kind),
            value=value,
            before=None,
            context=context,
        )
        value = await self._mutate(attributes)
        self._fill_in(resource, value)
        faults = validate_create(resource, value)
        if faults:
            raise invalid(resource, metadata(value)["name"], faults)
        await self.admission.validate(_with(attributes, value))
        created = Target(
            resource=resource, namespace=target.namespace, name=metadata(value)["name"]
        )
        if self.store.get(created.key) is not None:
            raise already_exists(resource, created.name)
        if context.dry_run:
            return value
        return self.store.write(created.key, value, expected=0).object

    async def update(
        self,
        target: Target,
        change: Callable[[Json], Json],
        context: Context,
        *,
        admit: bool = True,
    ) -> Json:
        """Replace the object by the result of *change* on a copy, and return it as stored.

        If *change* sets ``metadata.resourceVersion``, it must be the current one, else 409.
        Otherwise the update is repeated a few times after a conflict, as the API server does
        for patches. *admit* is False for the server's own writes, which no webhook sees.

        Raises:
            ApiError: anything the API server would answer, or what *change* raised.
        """
        for _ in range(_ATTEMPTS):
            current = self.get(target)
            value = self._prepared(target, change(thaw(current.object)), current)
            if admit:
                value = await self._admitted(target, value, current, context)
            if value == current.object or context.dry_run:
                return value
            try:
                return self._store_update(target, value, current)
            except StaleError:
                continue
        raise stale(target.resource, target.name)

    def _prepared(self, target: Target, value: Json, current: Stored) -> Json:
        resource, before = target.resource, current.object
        value = cleaned(resource, value)
        meta, old = metadata(value), before["metadata"]
        check_lock(target, meta, current)
        for owned in (*SERVER_OWNED, "namespace", "name"):
            meta.pop(owned, None)
            if owned in old:
                meta[owned] = old[owned]
        meta["resourceVersion"] = str(current.revision)
        if target.subresource == "status":
            keep_all_but_status(resource, value, before)
        elif resource.has_status:
            value.pop("status", None)
            if "status" in before:
                value["status"] = thaw({"status": before["status"]})["status"]
        apply_defaults(resource, value)
        if resource.generation and value.get("spec") != before.get("spec"):
            meta["generation"] = old.get("generation", 0) + 1
        return value

    async def _admitted(
        self, target: Target, value: Json, current: Stored, context: Context
    ) -> Json:
        resource = target.resource
        attributes = Attributes(
            target=target,
            operation=Operation.UPDATE,
            kind=(resource.group, resource.version, resource.kind),
            value=value,
            before=current.object,
            context=context,
        )
        mutated = await self._mutate(attributes)
        if mutated is not value:
            value = self._prepared(target, mutated, current)
        checked = resource.schema is not None or resource is resources.RESOURCE_CLAIMS
        if target.subresource != "status" or checked:
            faults = validate_update(resource, value, current.object)
            if faults:
                raise invalid(resource, target.name, faults)
        await self.admission.validate(_with(attributes, value))
        return value

    def _store_update(self, target: Target, value: Json, current: Stored) -> Json:
        meta = metadata(value)
        # The last finalizer is gone and the grace period is over: this write removes the object.
        if meta.get("deletionGracePeriodSeconds") == 0 and not meta.get("finalizers"):
            return self.store.remove(target.key, value, expected=current.revision).object
        return self.store.write(target.key, value, expected=current.revision).object

    async def delete(self, target: Target, context: Context) -> tuple[Json, bool]:
        """Delete the object; return its last state and whether it is already removed.

        ``context.options`` are DeleteOptions: gracePeriodSeconds, preconditions.

        Raises:
            ApiError: 404, 409 for a precondition, or an error of admission.
        """
        current = self.get(target)
        check_preconditions(target, current.object, context.options)
        resource = target.resource
        await self.admission.validate(
            Attributes(
                target=target,
                operation=Operation.DELETE,
                kind=(resource.group, resource.version, resource.kind),
                value=None,
                before=current.object,
                context=context,
            )
        )
        value, gone = self.remove(target, context)
        if gone and resource is resources.DEFINITIONS and not context.dry_run:
            self._remove_all(defined_by(value))
        return value, gone

    def remove(self, target: Target, context: Context) -> tuple[Json, bool]:
        """Delete without admission: the second half of :meth:`delete`, and of evictions."""
        current = self.get(target)
        check_preconditions(target, current.object, context.options)
        if target.resource is resources.NAMESPACES and target.name in _IMMORTAL:
            raise forbidden(target.resource, target.name, "this namespace may not be deleted")
        value = thaw(current.object)
        meta = metadata(value)
        wait_s = grace_s(target.resource, value, context.options)
        if "deletionTimestamp" in meta:
            # A second delete can only shorten the grace period.
            wait_s = min(wait_s, meta.get("deletionGracePeriodSeconds", wait_s))
        gone = wait_s == 0 and not meta.get("finalizers")
        if not gone or target.resource is resources.PODS:
            self._mark_deleted(value, wait_s)
        if context.dry_run or (value == current.object and not gone):
            return value, gone
        if gone:
            return self.store.remove(target.key, value, expected=current.revision).object, True
        return self.store.write(target.key, value, expected=current.revision).object, False

    def _remove_all(self, resource: Resource) -> None:
        """Remove what a deleted definition defined, and end the watches of it."""
        for stored in self.store.list(resource.qualified):
            self.store.remove(stored.key, thaw(stored.object), expected=stored.revision)
        self.store.end_subscriptions(resource.qualified)

    def _mark_deleted(self, value: Json, wait_s: int) -> None:
        meta = metadata(value)
        if meta.get("deletionGracePeriodSeconds") == wait_s:
            return
        first = "deletionTimestamp" not in meta
        end = self.clock.now() + timedelta(seconds=wait_s)
        meta["deletionTimestamp"] = format_time(end)
        meta["deletionGracePeriodSeconds"] = wait_s
        if first and "generation" in meta:
            meta["generation"] += 1

    async def _mutate(self, attributes: Attributes) -> Json:
        mutated = await self.admission.mutate(attributes)
        if mutated is not attributes.value:
            mutated = cleaned(attributes.target.resource, mutated)
            apply_defaults(attributes.target.resource, mutated)
        return mutated

    def _fill_in(self, resource: Resource, value: Json) -> None:
        meta = metadata(value)
        if not meta.get("name"):
            prefix = meta.get("generateName")
            if not prefix:
                fault = StatusCause(
                    field="metadata.name",
                    reason="FieldValueRequired",
                    message="Required value: name or generateName is required",
                )
                raise invalid(resource, "", [fault])
            meta["name"] = prefix + "".join(self._rng.choice(_SUFFIX) for _ in range(5))
        meta["uid"] = str(uuid.UUID(int=self._rng.getrandbits(128), version=4))
        meta["creationTimestamp"] = format_time(self.clock.now())
        if resource.generation:
            meta["generation"] = 1
        apply_creation(resource, value)
        if resource is resources.DEFINITIONS:
            value["status"] = established(meta["creationTimestamp"])


def _with(attributes: Attributes, value: Json) -> Attributes:
    return Attributes(
        target=attributes.target,
        operation=attributes.operation,
        kind=attributes.kind,
        value=value,
        before=attributes.before,
        context=attributes.context,
    )


def _name_of(value: Json) -> str:
    return str(metadata(value).get("name") or "")
