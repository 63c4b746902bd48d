"""Asks Prometheus which series there are: directly, or through the API server's Service proxy."""

import json
from collections.abc import Iterable
from typing import Any, Final

from cli.prometheus_access import REBALANCER, rebalancers_url, service_of
from fracgpu.doctor.facts import PrometheusFact, Unread
from fracgpu.doctor.measurements import SERIES
from kube.client import KubeClient
from kube.errors import Forbidden, KubeError
from kube.kinds import DEPLOYMENTS
from rebalancer.usage.answers import Sample, samples_in
from rebalancer.usage.measured import Querier
from rebalancer.usage.prometheus import QueryFailed

_NAME: Final = "__name__"


def query() -> str:
    """Return the query that counts every series of SERIES, by its name."""
    spellings = "|".join(spelling for series in SERIES for spelling in series.spellings)
    return f'count by ({_NAME}) ({{{_NAME}=~"{spellings}"}})'


async def ask_directly(url: str, prometheus: Querier) -> PrometheusFact:
    """Return what the Prometheus at *url* says."""
    try:
        samples = await prometheus.query(query())
    except QueryFailed as error:
        return PrometheusFact(url=url, error=str(error))
    return _counted(url, samples)


async def ask_through_proxy(client: KubeClient, *, namespace: str) -> PrometheusFact | Unread:
    """Return what the rebalancer's Prometheus says, asked through the API server.

    Unread where it is no Service of the cluster, or the account may not use the proxy.

    Raises:
        KubeError: the Deployment of the rebalancer cannot be read.
    """
    url = rebalancers_url(await client.get_object(DEPLOYMENTS, REBALANCER, namespace=namespace))
    service = service_of(url)
    if service is None:
        return Unread(
            f"the rebalancer's Prometheus, {url or '(none)'}, is no Service of this cluster; name "
            "an address that can be reached from here with --prometheus-url"
        )
    path = f"{service.proxy_path}/api/v1/query"
    try:
        answer = json.loads(await client.get_path(path, query={"query": query()}))
    except Forbidden as error:
        return Unread(
            f"this account may not ask Prometheus through the API server ({error.message}); name "
            "an address that can be reached from here with --prometheus-url"
        )
    except KubeError as error:
        return PrometheusFact(url=url, error=error.message)
    except ValueError:
        return PrometheusFact(url=url, error="its answer is not JSON")
    return _read(url, answer)


def _read(url: str, answer: Any) -> PrometheusFact:
    try:
        return _counted(url, samples_in(answer["data"]["result"]))
    except (KeyError, IndexError, TypeError, ValueError):
        return PrometheusFact(url=url, error="its answer is not one of Prometheus' query API")


def _counted(url: str, samples: Iterable[Sample]) -> PrometheusFact:
    return PrometheusFact(
        url=url, series={sample.labels.get(_NAME, ""): int(sample.value) for sample in samples}
    )
