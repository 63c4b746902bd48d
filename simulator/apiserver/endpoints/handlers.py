"""Request handling without HTTP: paths, queries, media types and verbs.

Source: k8s.io/apiserver pkg/endpoints (installer.go, handlers/*.go), docs "API concepts".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from fracgpu.k8s.selectors import parse_label_selector
from simulator.apiserver.apimachinery import resources
from simulator.apiserver.apimachinery.errors import (
    ApiError,
    bad_request,
    method_not_supported,
    unknown_resource,
)
from simulator.apiserver.apimachinery.field_selectors import parse_field_selector
from simulator.apiserver.apimachinery.request_info import Context, ListSelection, Target, User
from simulator.apiserver.endpoints import discovery, openapi
from simulator.apiserver.endpoints.bodies import (
    apply_patch,
    check_kind,
    check_namespace,
    check_same_uid,
    encoded,
    encoded_value,
    object_of,
    patch_of,
)
from simulator.apiserver.endpoints.lists import Lister, ListOptions
from simulator.apiserver.endpoints.tables import Tables, wants_table
from simulator.apiserver.endpoints.watches import LONGEST_S, WatchOptions, watch
from simulator.apiserver.registry import subresources
from simulator.objects import Json, encode

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from simulator.apiserver.apimachinery.resources import Resource
    from simulator.apiserver.registry.custom_resources import ServedResources
    from simulator.apiserver.registry.registry import Registry

_YES: Final = frozenset({"true", "1"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request as received, with path and query unquoted."""

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    content_type: str = "application/json"
    body: bytes = b""
    user: User = field(default_factory=User)
    accept: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One response: a body, or a stream of lines."""

    code: int = HTTPStatus.OK
    body: bytes = b""
    content_type: str = "application/json"
    warnings: tuple[str, ...] = ()
    retry_after_s: int = 0
    stream: AsyncGenerator[bytes, None] | None = None


class Handlers:
    """The API's routes over one registry."""

    def __init__(self, registry: Registry, *, bookmark_every_s: float = 10.0) -> None:
        self.registry: Final = registry
        self.lister: Final = Lister(registry.store)
        self._bookmark_every_s = bookmark_every_s

    async def handle(self, request: Request) -> Reply:
        """Return the response to *request*; errors are responses too."""
        context = Context(user=request.user, dry_run=bool(request.query.get("dryRun")))
        try:
            return await self._route(request, context)
        except ApiError as error:
            return Reply(
                code=error.code,
                body=encode(error.body()),
                warnings=tuple(context.warnings),
                retry_after_s=error.retry_after_s,
            )

    async def _route(self, request: Request, context: Context) -> Reply:
        if request.path in {"/healthz", "/livez", "/readyz"}:
            return Reply(body=b"ok", content_type="text/plain; charset=utf-8")
        served = self.registry.served.all()
        document = discovery.answer(request.path, served) or openapi.answer(request.path, served)
        if document is not None:
            return Reply(body=encode(document))
        target = _target(request.path, self.registry.served)
        if target is None:
            return Reply(
                code=HTTPStatus.NOT_FOUND,
                body=b"404 page not found\n",
                content_type="text/plain; charset=utf-8",
            )
        if target.subresource and target.subresource not in target.resource.subresources:
            raise unknown_resource()
        if target.name:
            return await self._one(target, request, context)
        return await self._collection(target, request, context)

    async def _collection(self, target: Target, request: Request, context: Context) -> Reply:
        match request.method:
            case "GET" if request.query.get("watch") in _YES:
                return self._watch(target, request)
            case "GET":
                tables = self._tables(target, request)
                page = self.lister.page(target.resource, _list_options(target, request))
                return Reply(body=page if tables is None else tables.of_list(page))
            case "POST" if target.namespace or not target.resource.namespaced:
                body = object_of(request.content_type, request.body)
                check_kind(target.resource, body)
                check_namespace(target, body)
                value = await self.registry.create(target, body, context)
                return _shown(target.resource, value, context, code=HTTPStatus.CREATED)
            case _:
                raise method_not_supported()

    async def _one(self, target: Target, request: Request, context: Context) -> Reply:
        if target.subresource not in ("", "status"):
            return await self._subresource(target, request, context)
        match request.method:
            case "GET" if request.query.get("watch") in _YES:
                return self._watch(target, request)
            case "GET":
                tables = self._tables(target, request)
                found = encoded(target.resource, self.registry.get(target))
                return Reply(body=found if tables is None else tables.of_object(found))
            case "PUT":
                return await self._put(target, request, context)
            case "PATCH":
                return await self._patch(target, request, context)
            case "DELETE" if not target.subresource:
                return await self._delete(target, request, context)
            case _:
                raise method_not_supported()

    async def _put(self, target: Target, request: Request, context: Context) -> Reply:
        body = object_of(request.content_type, request.body)
        check_kind(target.resource, body)
        check_namespace(target, body)
        if target.resource.plural == "leases" and self.registry.store.get(target.key) is None:
            # Leases may be created by an update (leaseStrategy.AllowCreateOnUpdate).
            where = Target(resource=target.resource, namespace=target.namespace)
            made = await self.registry.create(where, body, context)
            return _shown(target.resource, made, context, code=HTTPStatus.CREATED)
        stored = await self.registry.update(target, lambda _current: body, context)
        return _shown(target.resource, stored, context)

    async def _patch(self, target: Target, request: Request, context: Context) -> Reply:
        patch = patch_of(request.content_type, request.body, target.resource)

        def change(current: Json) -> Json:
            shown = {
                "kind": target.resource.kind,
                "apiVersion": target.resource.group_version,
                **current,
            }
            patched = apply_patch(request.content_type, shown, patch)
            check_kind(target.resource, patched)
            check_same_uid(target, shown, patched)
            return patched

        stored = await self.registry.update(target, change, context)
        return _shown(target.resource, stored, context)

    async def _delete(self, target: Target, request: Request, context: Context) -> Reply:
        context = _delete_context(request, context)
        value, gone = await self.registry.delete(target, context)
        # Some strategies have ReturnDeletedObject: the answer is the object as it was.
        returned = target.resource.plural in {"pods", "services", "serviceaccounts"}
        returned |= target.resource.group == resources.RESOURCE_CLAIMS.group
        if gone and not returned:
            details = {
                "name": target.name,
                "group": target.resource.group,
                "kind": target.resource.plural,
                "uid": value["metadata"]["uid"],
            }
            kept = {k: v for k, v in details.items() if v}
            body = encode({**subresources.SUCCESS, "details": kept})
            return Reply(body=body, warnings=tuple(context.warnings))
        return _shown(target.resource, value, context)

    async def _subresource(self, target: Target, request: Request, context: Context) -> Reply:
        registry = self.registry
        match target.subresource, request.method:
            case "binding", "POST":
                answer = await subresources.bind(
                    registry, target, object_of(request.content_type, request.body), context
                )
            case "eviction", "POST":
                answer = await subresources.evict(
                    registry, target, object_of(request.content_type, request.body), context
                )
            case _:
                raise method_not_supported()
        return Reply(code=HTTPStatus.CREATED, body=encode(answer), warnings=tuple(context.warnings))

    def _watch(self, target: Target, request: Request) -> Reply:
        query = request.query
        if query.get("sendInitialEvents") in _YES:  # as without the feature WatchList: clients list
            raise ApiError(HTTPStatus.UNPROCESSABLE_ENTITY, "Invalid", "no sendInitialEvents")
        version = query.get("resourceVersion", "")
        options = WatchOptions(
            selection=_selection(target, request),
            after=_revision(version) if version not in {"", "0"} else None,
            bookmarks=query.get("allowWatchBookmarks") in _YES,
            timeout_s=min(float(_number(query, "timeoutSeconds") or LONGEST_S), LONGEST_S),
            bookmark_every_s=self._bookmark_every_s,
        )
        tables = self._tables(target, request)
        lines = watch(self.registry.store, target.resource, options)
        return Reply(stream=lines if tables is None else tables.of_watch(lines))

    def _tables(self, target: Target, request: Request) -> Tables | None:
        """Return what makes tables of the answer, or None if the client wants objects."""
        if not wants_table(request.accept):
            return None
        include = request.query.get("includeObject", "")
        return Tables(target.resource, include, self.registry.clock.now)


def _target(path: str, served: ServedResources) -> Target | None:
    match path.strip("/").split("/"):
        case ["api", version, *rest]:
            group = ""
        case ["apis", group, version, *rest]:
            pass
        case _:
            return None
    if not served.is_served(group, version) or not rest or not all(rest):
        return None
    namespace = ""
    match rest:
        # /namespaces/NAME/status is the namespace's own, not a namespaced resource.
        case ["namespaces", _] | ["namespaces", _, "status"]:
            pass
        case ["namespaces", namespace, *inner]:
            rest = inner
        case _:
            pass
    resource = served.find(group, version, rest[0])
    if resource is None or (namespace and not resource.namespaced) or len(rest) > 3:  # noqa: PLR2004
        raise unknown_resource()
    if resource.namespaced and not namespace and len(rest) > 1:
        raise unknown_resource()
    name, subresource = [*rest[1:], "", ""][:2]
    return Target(resource=resource, namespace=namespace, name=name, subresource=subresource)


def _selection(target: Target, request: Request) -> ListSelection:
    query = request.query
    try:
        fields = query.get("fieldSelector", "")
        if target.name:  # a watch of one object is a watch of the collection by name
            fields = f"metadata.name={target.name}"
        return ListSelection(
            namespace=target.namespace or None,
            labels=parse_label_selector(query.get("labelSelector", "")),
            fields=parse_field_selector(fields, target.resource),
        )
    except ValueError as error:
        raise bad_request(str(error)) from error


def _list_options(target: Target, request: Request) -> ListOptions:
    query = request.query
    return ListOptions(
        selection=_selection(target, request),
        limit=_number(query, "limit"),
        token=query.get("continue", ""),
    )


def _revision(text: str) -> int:
    if not text.isdecimal():
        raise ApiError(HTTPStatus.BAD_REQUEST, "BadRequest", f"invalid resource version {text!r}")
    return int(text)


def _number(query: Mapping[str, str], name: str) -> int:
    text = query.get(name) or "0"
    if not text.isdecimal():
        raise bad_request(f"{name} is {text!r}; want a whole number")
    return int(text)


def _delete_context(request: Request, context: Context) -> Context:
    options = dict(object_of(request.content_type, request.body)) if request.body.strip() else {}
    if "gracePeriodSeconds" in request.query:
        text = request.query["gracePeriodSeconds"]
        options["gracePeriodSeconds"] = int(text) if text.lstrip("-").isdecimal() else text
    dry_run = context.dry_run or bool(options.get("dryRun"))
    return Context(user=context.user, dry_run=dry_run, options=options, warnings=context.warnings)


def _shown(
    resource: Resource, value: Json, context: Context, *, code: int = HTTPStatus.OK
) -> Reply:
    body = encoded_value(resource, value)
    return Reply(code=code, body=body, warnings=tuple(context.warnings))
