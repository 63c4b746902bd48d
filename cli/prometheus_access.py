"""How a command reaches Prometheus: by its flags, else as the rebalancer does.

The rebalancer's address is in its Deployment. A Service of the cluster is asked through the API
server, because its name means nothing outside; any other address is asked directly, with what the
rebalancer's Secret presents.
"""

import argparse
import base64
import itertools
import json
import re
import tempfile
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from cli.cluster import workload_of
from cli.rebalancing import ReadingFailed, open_prometheus
from fracgpu import names
from kube.client import KubeClient
from kube.errors import KubeError, NotFound
from kube.kinds import SECRETS
from kube.objects import decode_object
from rebalancer.usage.prometheus import (
    Prometheus,
    QueryError,
    QueryFailed,
    Sample,
    Series,
    samples_in,
    series_in,
)

_SECRET: Final = "fracgpu-prometheus"  # noqa: S105 - a name
_VARIABLE: Final = "FRACGPU_REBALANCER_PROMETHEUS_URL"
_FLAG: Final = "--prometheus-url"
_SERVICE: Final = re.compile(r"([a-z0-9-]+)\.([a-z0-9-]+)\.svc(\..+)?")
_KINDS: Final[Mapping[int | None, QueryError]] = {
    None: QueryError.UNREACHABLE,
    401: QueryError.UNAUTHORIZED,
    403: QueryError.UNAUTHORIZED,
    404: QueryError.UNREACHABLE,  # no such Service
    503: QueryError.UNREACHABLE,  # no endpoint of it
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """The Service of a Prometheus, and the path prefix below which it answers."""

    namespace: str
    name: str
    port: int
    https: bool
    prefix: str

    @property
    def proxy_path(self) -> str:
        """The path at which the API server passes requests on to it."""
        scheme = "https:" if self.https else ""
        return (
            f"/api/v1/namespaces/{self.namespace}/services/{scheme}{self.name}:{self.port}/proxy"
            f"{self.prefix}"
        )

    @property
    def port_forward(self) -> str:
        """What to type to reach it without the API server's proxy, and the flag to give then."""
        scheme = "https" if self.https else "http"
        return (
            f"kubectl -n {self.namespace} port-forward service/{self.name} 9090:{self.port}, and "
            f"{_FLAG} {scheme}://localhost:9090{self.prefix}"
        )


def service_of(url: str) -> Service | None:
    """Return the Service that the host of *url* names; None for any other host."""
    parts = urlsplit(url)
    found = _SERVICE.fullmatch(parts.hostname or "")
    if found is None:
        return None
    https = parts.scheme == "https"
    return Service(
        namespace=found[2],
        name=found[1],
        port=parts.port or (443 if https else 80),
        https=https,
        prefix=parts.path.rstrip("/"),
    )


def rebalancers_url(deployment: Mapping[str, Any]) -> str:
    """Return the address that a Deployment gives the rebalancer; empty if it gives none.

    As for the rebalancer itself, a flag counts before the variable.
    """
    template = deployment.get("spec", {}).get("template", {})
    containers: Iterable[Mapping[str, Any]] = template.get("spec", {}).get("containers") or ()
    for container in containers:
        words = [str(word) for word in container.get("args") or ()]
        for word, following in itertools.pairwise([*words, ""]):
            if word == _FLAG or word.startswith(f"{_FLAG}="):
                return following if word == _FLAG else word.partition("=")[2]
        for variable in container.get("env") or ():
            if variable.get("name") == _VARIABLE:
                return str(variable.get("value", ""))
    return ""


@asynccontextmanager
async def reach_prometheus(
    client: KubeClient, options: argparse.Namespace
) -> AsyncIterator["Prometheus | ProxiedPrometheus"]:
    """Open the Prometheus of the flags, else the rebalancer's.

    Raises:
        ReadingFailed: there is no flag, and the rebalancer's address is not known.
    """
    if options.prometheus_url is not None:
        async with open_prometheus(options, url=options.prometheus_url) as prometheus:
            yield prometheus
        return
    url = await _found_url(client, namespace=options.system_namespace)
    service = service_of(url)
    if service is not None:
        yield ProxiedPrometheus(client, service)
        return
    with tempfile.TemporaryDirectory(prefix="fracgpu-") as folder:
        await _write_secret(client, Path(folder), namespace=options.system_namespace)
        async with open_prometheus(options, url=url, presented=Path(folder)) as prometheus:
            yield prometheus


class ProxiedPrometheus:
    """Asks a Service through the API server; its own account is the only one that is presented.

    Source: https://kubernetes.io/docs/tasks/access-application-cluster/access-cluster-services/
    """

    def __init__(self, client: KubeClient, service: Service) -> None:
        self._client = client
        self._service = service

    async def query(self, query: str, *, at_s: float | None = None) -> tuple[Sample, ...]:
        """Return an instant vector.

        Raises:
            QueryFailed: there is none that can be used.
        """
        at = {} if at_s is None else {"time": f"{at_s:.3f}"}
        with _garbled():
            return samples_in(await self._ask("query", {"query": query, **at}))

    async def query_range(
        self, query: str, *, start_s: float, end_s: float, step_s: float
    ) -> tuple[Series, ...]:
        """Return the values of a query at every *step_s* from *start_s* to *end_s*.

        Raises:
            QueryFailed: there is no answer that can be used.
        """
        times = {"start": f"{start_s:.3f}", "end": f"{end_s:.3f}", "step": f"{step_s:g}"}
        with _garbled():
            return series_in(await self._ask("query_range", {"query": query, **times}))

    async def _ask(self, what: str, query: Mapping[str, str]) -> Any:
        path = f"{self._service.proxy_path}/api/v1/{what}"
        try:
            answer = json.loads(await self._client.get_path(path, query=query))
        except KubeError as error:
            raise QueryFailed(
                _KINDS.get(error.status, QueryError.REFUSED),
                f"{error.message} (HTTP {error.status}, asked through the API server); instead: "
                f"{self._service.port_forward}",
            ) from error
        if answer["status"] != "success" or answer.get("warnings"):
            detail = answer.get("error") or answer.get("warnings")
            raise QueryFailed(QueryError.PARTIAL, str(detail))
        return answer["data"]["result"]


@contextmanager
def _garbled() -> Iterator[None]:
    try:
        yield
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise QueryFailed(
            QueryError.GARBLED, f"not an answer to a query: {type(error).__name__}: {error}"
        ) from error


async def _found_url(client: KubeClient, *, namespace: str) -> str:
    where = f"Deployment {namespace}/{names.REBALANCER}"
    hint = f"name one with {_FLAG}"
    try:
        url = rebalancers_url(await workload_of(client, names.REBALANCER, namespace=namespace))
    except NotFound:
        raise ReadingFailed(f"no {_FLAG}, and there is no {where} to ask; {hint}") from None
    except KubeError as error:
        raise ReadingFailed(f"no {_FLAG}, and {where}: {error.message}; {hint}") from error
    if not url:
        raise ReadingFailed(f"no {_FLAG}, and {where} has no {_VARIABLE}; {hint}")
    return url


async def _write_secret(client: KubeClient, folder: Path, *, namespace: str) -> None:
    """Write into *folder* what the rebalancer presents; nothing where it may not be read."""
    try:
        body = decode_object(await client.get(SECRETS, _SECRET, namespace=namespace))
    except KubeError:
        return  # without credentials Prometheus says itself that it wants some
    for name, text in (body.get("data") or {}).items():
        file = folder / name
        file.touch(mode=0o600)
        file.write_bytes(base64.b64decode(text))
