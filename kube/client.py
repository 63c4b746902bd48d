"""The verbs of the API server, each with a timeout; the program's only retry policy.

Only reads are retried, and only if the server did not answer, failed or was busy: a write whose
outcome is unknown is left to the caller.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from enum import Enum
from typing import Any, Final, Protocol, TypeVar

from kube.errors import Gone, KubeDecodeError, KubeError, TooManyRequests, Unavailable
from kube.kinds import PODS, Kind
from kube.objects import ObjectList, Raw, RawList, decode, decode_object
from kube.retry import RetryPolicy

_T = TypeVar("_T")
_PAGE_SIZE: Final = 500  # objects; the page size of kubectl and client-go
_RETRY: Final = RetryPolicy()
DEFAULT_TIMEOUT_S: Final = 30.0
_LIST_RESTARTS: Final = 3  # a continue token expires after about five minutes on the server


class PatchType(Enum):
    """The kind of a patch, by its media type."""

    JSON = "application/json-patch+json"
    MERGE = "application/merge-patch+json"
    STRATEGIC = "application/strategic-merge-patch+json"


class Transport(Protocol):
    """What the client needs of :class:`kube.transport.ApiTransport`."""

    async def request(
        self,
        verb: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: object = None,
        content_type: str = "application/json",
        timeout_s: float,
    ) -> bytes: ...

    def stream_lines(
        self, path: str, *, query: Mapping[str, str], inactivity_s: float
    ) -> AsyncGenerator[bytes, None]: ...


class KubeClient:
    """Typed verbs over one API server.

    Every failure of a request is raised as a :class:`kube.errors.KubeError`.

    Args:
        transport: sends the requests.
        timeout_s: limit of one request, in seconds.
        retry: for reads.
        guard: is called right before each write, and raises where this process may not write.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        retry: RetryPolicy = _RETRY,
        guard: Callable[[], None] = lambda: None,
    ) -> None:
        self.transport: Final = transport
        self._timeout_s = timeout_s
        self._retry = retry
        self._guard = guard

    def with_retry(self, retry: RetryPolicy) -> KubeClient:
        """Return a client on the same connection that retries its reads by *retry*."""
        return KubeClient(self.transport, timeout_s=self._timeout_s, retry=retry, guard=self._guard)

    def guarded(self, guard: Callable[[], None]) -> KubeClient:
        """Return a client on the same connection that calls *guard* right before each write."""
        return KubeClient(self.transport, timeout_s=self._timeout_s, retry=self._retry, guard=guard)

    async def get(self, kind: Kind, name: str, *, namespace: str | None = None) -> bytes:
        """Return one object as the raw JSON that the server sent.

        Raises:
            NotFound: there is none.
        """
        return await self.get_path(kind.path(namespace=namespace, name=name))

    async def get_object(
        self, kind: Kind, name: str, *, namespace: str | None = None
    ) -> dict[str, Any]:
        """Return one object, decoded.

        Raises:
            NotFound: there is none.
        """
        path = kind.path(namespace=namespace, name=name)
        return _object(await self.get_path(path), verb="GET", path=path)

    async def get_path(self, path: str, *, query: Mapping[str, str] | None = None) -> bytes:
        """GET any path, e.g. ``/version`` or ``/readyz``."""
        return await self.retrying(
            lambda: self.transport.request("GET", path, query=query, timeout_s=self._timeout_s)
        )

    async def list(
        self,
        kind: Kind,
        *,
        namespace: str | None = None,
        label_selector: str | None = None,
        field_selector: str | None = None,
    ) -> ObjectList:
        """Return all objects that match, as of one resourceVersion, in pages of 500.

        Items are raw JSON and, as the API server sends them, without ``kind`` and ``apiVersion``.

        Raises:
            Gone: the pages expired on the server three times before all were read.
        """
        path = kind.path(namespace=namespace)
        query = selection(label_selector=label_selector, field_selector=field_selector)
        for _ in range(_LIST_RESTARTS - 1):
            try:
                return await self._all_pages(path, query)
            except Gone:
                continue
        return await self._all_pages(path, query)

    async def pages(
        self,
        kind: Kind,
        *,
        namespace: str | None = None,
        label_selector: str | None = None,
        field_selector: str | None = None,
    ) -> AsyncGenerator[ObjectList, None]:
        """Yield a list page by page, so that a long one is never in memory whole.

        Raises:
            Gone: the rest of the pages expired on the server; list again.
        """
        path = kind.path(namespace=namespace)
        query = selection(label_selector=label_selector, field_selector=field_selector)
        async for page in self._pages(path, query):
            yield page

    async def _all_pages(self, path: str, query: Mapping[str, str]) -> ObjectList:
        items: list[Raw] = []
        version = ""
        async for page in self._pages(path, query):
            items += page.items
            version = page.resource_version
        # The last page repeats the resourceVersion of the first; not every server sets both.
        return ObjectList(resource_version=version, items=items)

    async def _pages(self, path: str, query: Mapping[str, str]) -> AsyncGenerator[ObjectList, None]:
        token = ""
        while True:
            paged = {**query, "limit": str(_PAGE_SIZE)} | ({"continue": token} if token else {})
            body = await self.get_path(path, query=paged)
            try:
                page = decode(body, RawList)
            except ValueError as error:
                raise _undecodable("GET", path, error) from error
            yield ObjectList(
                resource_version=page.metadata.resource_version, items=list(page.items or ())
            )
            token = page.metadata.continue_
            if not token:
                return

    async def retrying(self, attempt: Callable[[], Awaitable[_T]]) -> _T:
        """Return what *attempt*, a read, returns: again, by this client's policy, if it fails."""
        for failures in range(1, self._retry.attempts):
            try:
                return await attempt()
            except (Unavailable, TooManyRequests) as error:
                pause_s = self._retry.pause_s(failures)
                if isinstance(error, TooManyRequests) and error.retry_after_s is not None:
                    pause_s += min(error.retry_after_s, self._retry.longest_pause_s)
                await asyncio.sleep(pause_s)
        return await attempt()

    async def create(
        self,
        kind: Kind,
        body: Mapping[str, Any],
        *,
        namespace: str | None = None,
        dry_run: bool = False,
    ) -> dict[str, Any]:
        """Create an object and return it as stored; the namespace may also be inside *body*.

        Raises:
            AlreadyExists: the name is taken.
            Invalid: validation or an admission webhook refused it.
        """
        body = complete(kind, body)
        path = kind.path(namespace=namespace or body.get("metadata", {}).get("namespace"))
        return await self._write("POST", path, body, query=_dry_run(dry_run=dry_run))

    async def replace(
        self,
        kind: Kind,
        body: Mapping[str, Any],
        *,
        subresource: str | None = None,
        dry_run: bool = False,
    ) -> dict[str, Any]:
        """Replace a whole object; ``metadata.resourceVersion`` in *body* is the precondition.

        Raises:
            Conflict: another client has written it since.
        """
        body = complete(kind, body)
        metadata = body["metadata"]
        path = kind.path(
            namespace=metadata.get("namespace"), name=metadata["name"], subresource=subresource
        )
        return await self._write("PUT", path, body, query=_dry_run(dry_run=dry_run))

    async def patch(  # noqa: PLR0913 - the parts of a PATCH; all but the first three have defaults
        self,
        kind: Kind,
        name: str,
        patch: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        *,
        namespace: str | None = None,
        subresource: str | None = None,
        how: PatchType = PatchType.MERGE,
        dry_run: bool = False,
    ) -> dict[str, Any]:
        """Change parts of an object and return it as stored.

        A ``resourceVersion`` in a merge patch, or a ``test`` in a JSON patch, is a precondition.

        Raises:
            Conflict: the precondition does not hold.
            Invalid: the patch does not apply.
        """
        path = kind.path(namespace=namespace, name=name, subresource=subresource)
        query = _dry_run(dry_run=dry_run)
        return await self._write("PATCH", path, patch, query=query, content_type=how.value)

    async def delete(
        self,
        kind: Kind,
        name: str,
        *,
        namespace: str | None = None,
        uid: str | None = None,
        version: str = "",
        grace_s: int | None = None,
    ) -> None:
        """Delete an object; a pod remains until its kubelet has stopped it.

        Args:
            kind: of the object.
            name: of the object.
            namespace: of the object.
            uid: refuse (Conflict) when the name now belongs to another object.
            version: refuse (Conflict) when the object has another resourceVersion.
            grace_s: seconds that a pod gets to stop; 0 removes it at once.

        Raises:
            NotFound: there is none.
            Conflict: *uid* or *version* does not match.
        """
        options: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions"}
        preconditions = {"uid": uid, "resourceVersion": version}
        if any(preconditions.values()):
            options["preconditions"] = {key: value for key, value in preconditions.items() if value}
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        await self._write("DELETE", kind.path(namespace=namespace, name=name), options)

    async def bind(self, binding: Mapping[str, Any], *, namespace: str, name: str) -> None:
        """Bind a pod to a node: one write for the node name and the Binding's annotations.

        ``metadata.uid`` and ``metadata.resourceVersion`` of *binding* are preconditions.

        Raises:
            Conflict: a precondition does not hold, or the pod is bound already.
            NotFound: the pod is gone.
        """
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            **binding,
            "metadata": {"name": name, "namespace": namespace, **binding.get("metadata", {})},
        }
        path = PODS.path(namespace=namespace, name=name, subresource="binding")
        await self._write("POST", path, body)

    async def evict(
        self,
        *,
        namespace: str,
        name: str,
        uid: str,
        version: str = "",
        dry_run: bool = False,
        grace_s: int | None = None,
    ) -> None:
        """Evict a pod, if it has this UID and version, through its disruption budgets.

        Raises:
            TooManyRequests: a budget forbids it (``by_disruption_budget``), or the server is busy.
            Conflict: the name now belongs to another pod, or the pod has changed.
            NotFound: the pod is gone.
        """
        versions = {"resourceVersion": version} if version else {}
        options: dict[str, Any] = {"preconditions": {"uid": uid} | versions}
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
            "deleteOptions": options,
        }
        path = PODS.path(namespace=namespace, name=name, subresource="eviction")
        await self._write("POST", path, body, query=_dry_run(dry_run=dry_run))

    async def _write(
        self,
        verb: str,
        path: str,
        body: object,
        *,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
    ) -> dict[str, Any]:
        self._guard()
        answer = await self.transport.request(
            verb,
            path,
            query=query,
            body=body,
            content_type=content_type,
            timeout_s=self._timeout_s,
        )
        return _object(answer, verb=verb, path=path)


def selection(*, label_selector: str | None, field_selector: str | None) -> dict[str, str]:
    """Return the query of a list or watch that selects by labels, fields, both or neither."""
    chosen = {"labelSelector": label_selector, "fieldSelector": field_selector}
    return {key: value for key, value in chosen.items() if value}


def complete(kind: Kind, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return *body* with ``apiVersion`` and ``kind``, which list items come without."""
    return {"apiVersion": kind.group_version, "kind": kind.kind, **body}


def _dry_run(*, dry_run: bool) -> dict[str, str]:
    return {"dryRun": "All"} if dry_run else {}


def _object(body: bytes, *, verb: str, path: str) -> dict[str, Any]:
    try:
        return decode_object(body)
    except ValueError as error:
        raise _undecodable(verb, path, error) from error


def _undecodable(verb: str, path: str, error: ValueError) -> KubeError:
    return KubeDecodeError(
        verb=verb, path=path, status=200, reason="NotTheJsonPromised", message=str(error)
    )
