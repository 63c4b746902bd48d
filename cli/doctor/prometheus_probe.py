"""Asks Prometheus which series there are: directly, or through the API server's Service proxy."""

from typing import Final

from cli.cluster import workload_of
from cli.prometheus_access import ProxiedPrometheus, rebalancers_url, service_of
from fracgpu import names
from fracgpu.disruption.policy import RebalancerPolicy
from fracgpu.doctor.facts import PrometheusFact, Unread
from fracgpu.doctor.measurements import NOT_COMPILED, SERIES
from kube.client import KubeClient
from kube.errors import Forbidden
from rebalancer.usage.measured import Querier, intervals
from rebalancer.usage.prometheus import QueryFailed
from rebalancer.usage.promql import interval

_NAME: Final = "__name__"
_WINDOWS_S: Final = (RebalancerPolicy().fast_window_s, RebalancerPolicy().forecast_window_s)


def query() -> str:
    """Return the query that counts every series of SERIES and NOT_COMPILED, by its name."""
    wanted = "|".join(series.name for series in SERIES)
    return f'count by ({_NAME}) ({{{_NAME}=~"{wanted}"}} or {NOT_COMPILED} == 0)'


async def ask_directly(url: str, prometheus: Querier) -> PrometheusFact:
    """Return what the Prometheus at *url* says."""
    try:
        return await _counted(url, prometheus)
    except QueryFailed as error:
        return PrometheusFact(url=url, error=str(error))


async def ask_through_proxy(client: KubeClient, *, namespace: str) -> PrometheusFact | Unread:
    """Return what the rebalancer's Prometheus says, asked through the API server.

    Unread where it is no Service of the cluster, or the account may not use the proxy.

    Raises:
        KubeError: the Deployment of the rebalancer cannot be read.
    """
    url = rebalancers_url(await workload_of(client, names.REBALANCER, namespace=namespace))
    service = service_of(url)
    if service is None:
        return Unread(
            f"the rebalancer's Prometheus, {url or '(none)'}, is no Service of this cluster; name "
            "an address that can be reached from here with --prometheus-url"
        )
    try:
        return await _counted(url, ProxiedPrometheus(client, service))
    except QueryFailed as error:
        if isinstance(error.__cause__, Forbidden):
            return Unread(
                "this account may not ask Prometheus through the API server "
                f"({error.__cause__.message}); instead: {service.port_forward}"
            )
        return PrometheusFact(url=url, error=str(error))


async def _counted(url: str, prometheus: Querier) -> PrometheusFact:
    series = {
        sample.labels.get(_NAME, ""): int(sample.value)
        for sample in await prometheus.query(query())
    }
    times = [await prometheus.query(interval(each)) for each in _WINDOWS_S]
    return PrometheusFact(
        url=url, series=series, interval_s=max(intervals(times).values(), default=None)
    )
