"""Which series Prometheus has, asked through the API server or directly."""

from typing import Any

from aiohttp import web

from cli.doctor.prometheus_probe import ask_directly, ask_through_proxy, query
from fracgpu.doctor.facts import PrometheusFact, Unread
from fracgpu.doctor.measurements import SERIES
from kube.access import connect_to
from rebalancer.usage.prometheus import QueryError, QueryFailed, Sample
from tests.support.scripted import ScriptedServer, a_server

URL = "http://prometheus-operated.monitoring.svc:9090"
ANSWER = {
    "status": "success",
    "data": {
        "resultType": "vector",
        "result": [{"metric": {"__name__": "fracgpu_card_util"}, "value": [1, "4"]}],
    },
}


def a_deployment(url: str) -> dict[str, Any]:
    variable = {"name": "FRACGPU_REBALANCER_PROMETHEUS_URL", "value": url}
    container = {"name": "rebalancer", "env": [{"name": "OTHER"}, variable]}
    return {"spec": {"template": {"spec": {"containers": [container]}}}}


async def asked(
    *, url: str = URL, answer: Any = ANSWER, status: int = 200
) -> tuple[PrometheusFact | Unread, ScriptedServer]:
    async def handler(request: web.Request) -> web.Response:
        if request.path.endswith("/deployments"):
            return web.json_response({"metadata": {}, "items": [a_deployment(url)]})
        return web.json_response(answer, status=status)

    async with a_server(handler) as server, connect_to(server.url) as client:
        return await ask_through_proxy(client, namespace="fracgpu-system"), server


async def test_the_rebalancers_prometheus_is_asked_through_the_api_server() -> None:
    url = "https://thanos.obs.svc.cluster.local/prom/"
    path = "/api/v1/namespaces/obs/services/https:thanos:443/proxy/prom/api/v1/query"

    answer, server = await asked(url=url)

    assert answer == PrometheusFact(url=url, series={"fracgpu_card_util": 4})
    assert (server.heard[1].path, server.heard[1].query) == (path, {"query": query()})


async def test_a_prometheus_outside_of_the_cluster_is_not_asked() -> None:
    answer, server = await asked(url="https://prometheus.example.com")

    assert isinstance(answer, Unread)
    assert "--prometheus-url" in answer.reason
    assert len(server.heard) == 1


async def test_an_account_that_may_not_use_the_proxy_is_told_what_to_name() -> None:
    answer, _ = await asked(status=403, answer={"kind": "Status", "message": "no services/proxy"})

    assert isinstance(answer, Unread)
    assert "no services/proxy" in answer.reason
    assert "--prometheus-url" in answer.reason


async def test_what_is_no_answer_of_prometheus_is_an_error() -> None:
    found, _ = await asked(status=404, answer={"kind": "Status", "message": "services not found"})

    assert isinstance(found, PrometheusFact)
    assert "unreachable: services not" in found.error


class Answers:
    """A Prometheus that is asked directly."""

    def __init__(self, *samples: Sample, error: QueryFailed | None = None) -> None:
        self.samples, self.error = samples, error
        self.asked: list[str] = []

    async def query(self, query: str, *, at_s: float | None = None) -> tuple[Sample, ...]:
        self.asked.append(query)
        if self.error is not None:
            raise self.error
        return self.samples


async def test_one_query_counts_every_series_and_the_longest_interval_is_told() -> None:
    prometheus = Answers(
        Sample(labels={"__name__": "fracgpu_pod_sm_util"}, value=2.0),
        Sample(labels={"UUID": "GPU-a", "job": "x"}, value=15.0),
        Sample(labels={"UUID": "GPU-b", "job": "y"}, value=60.0),
    )

    found = await ask_directly("http://localhost:9090", prometheus)

    assert found.series["fracgpu_pod_sm_util"] == 2
    assert found.interval_s == 60
    asked_for, *_ = prometheus.asked
    assert all(series.name in asked_for for series in SERIES)


async def test_a_prometheus_that_cannot_be_reached_is_an_error() -> None:
    failed = QueryFailed(QueryError.UNREACHABLE, "connection refused")

    found = await ask_directly("http://localhost:9090", Answers(error=failed))

    assert found.error == "unreachable: connection refused"
