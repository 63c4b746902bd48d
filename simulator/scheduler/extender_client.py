"""kube-scheduler's side of the scheduler extender protocol: three POSTs with its JSON.

Source: k8s.io/kubernetes pkg/scheduler/extender.go.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

import aiohttp
import msgspec

from simulator.objects import encode

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Mapping, Sequence

    from simulator.objects import Json

_T = TypeVar("_T")
_JSON: Final = {"Content-Type": "application/json"}


class ExtenderError(Exception):
    """The extender could not be called, or answered with an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Filtered:
    """The nodes that the extender accepts, and the failed ones."""

    passed: tuple[str, ...]
    refused: Mapping[str, str]


class _Result(msgspec.Struct, rename="pascal"):
    node_names: list[str] | None = None
    failed_nodes: dict[str, str] | None = None
    failed_and_unresolvable_nodes: dict[str, str] | None = None
    error: str = ""


class _Priority(msgspec.Struct, rename="pascal"):
    host: str
    score: int


class _BindingResult(msgspec.Struct, rename="pascal"):
    error: str = ""


class ExtenderClient:
    """Calls one extender, as with ``nodeCacheCapable: true``; made by :meth:`open`."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        url: str,
        *,
        timeout_s: float,
        server_name: str | None = None,
    ) -> None:
        self._session = session
        self._server_name = server_name
        self._url = url.rstrip("/")
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        url: str,
        *,
        timeout_s: float = 10.0,
        tls: ssl.SSLContext | None = None,
        server_name: str | None = None,
    ) -> AsyncIterator[ExtenderClient]:
        """Yield a client of an extender; nothing is sent yet.

        Args:
            url: of the extender (``urlPrefix``).
            timeout_s: limits one request.
            tls: for ``https``: the authority that is trusted and our own certificate.
            server_name: the name in the extender's certificate, if it is not that of *url*.
        """
        connector = aiohttp.TCPConnector(ssl=tls) if tls is not None else None
        async with aiohttp.ClientSession(connector=connector) as session:
            yield cls(session, url, timeout_s=timeout_s, server_name=server_name)

    async def filter(self, pod: Json, node_names: Sequence[str]) -> Filtered:
        """Return which of the nodes fit.

        Raises:
            ExtenderError: no answer that can be used.
        """
        body = await self._post("filter", _args(pod, node_names))
        result = _decode(body, _Result)
        if result.error:
            raise ExtenderError(result.error)
        passed = tuple(result.node_names or ())
        for name in passed:
            if name not in node_names:
                raise ExtenderError(f"the extender accepted node {name!r}, which was not asked for")
        refused = {**(result.failed_nodes or {}), **(result.failed_and_unresolvable_nodes or {})}
        return Filtered(passed=passed, refused=refused)

    async def prioritize(self, pod: Json, node_names: Sequence[str]) -> dict[str, int]:
        """Return the nodes' scores, 0 to 10.

        Raises:
            ExtenderError: no answer that can be used.
        """
        body = await self._post("prioritize", _args(pod, node_names))
        return {entry.host: entry.score for entry in _decode(body, list[_Priority])}

    async def bind(self, pod: Json, node: str) -> None:
        """Bind the pod through the extender.

        Raises:
            ExtenderError: the pod is not bound, or that is unknown.
        """
        meta = pod["metadata"]
        args = {
            "PodName": meta["name"],
            "PodNamespace": meta["namespace"],
            "PodUID": meta["uid"],
            "Node": node,
        }
        result = _decode(await self._post("bind", args), _BindingResult)
        if result.error:
            raise ExtenderError(result.error)

    async def _post(self, verb: str, args: Json) -> bytes:
        url = f"{self._url}/{verb}"
        try:
            async with self._session.post(
                url,
                data=encode(args),
                headers=_JSON,
                timeout=self._timeout,
                server_hostname=self._server_name,
            ) as response:
                body = await response.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            why = str(error) or type(error).__name__
            raise ExtenderError(f"no answer from the extender at {url}: {why}") from error
        if response.status != 200:  # noqa: PLR2004
            text = f"failed {verb} with extender at URL {url}, code {response.status}"
            raise ExtenderError(text)
        return body


def _args(pod: Json, node_names: Sequence[str]) -> dict[str, Any]:
    # kube-scheduler drops managedFields from the pods it keeps.
    meta = {key: value for key, value in pod["metadata"].items() if key != "managedFields"}
    bare = {key: value for key, value in pod.items() if key not in ("kind", "apiVersion")}
    return {"Pod": {**bare, "metadata": meta}, "Nodes": None, "NodeNames": list(node_names)}


def _decode(body: bytes, wanted: type[_T]) -> _T:
    try:
        return msgspec.json.decode(body, type=wanted)
    except ValueError as error:
        raise ExtenderError(f"the extender's answer cannot be read: {error}") from error
