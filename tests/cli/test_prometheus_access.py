"""A command without --prometheus-url asks the rebalancer's Prometheus, however it is reached."""

import argparse
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from cli.prometheus_access import (
    ProxiedPrometheus,
    Service,
    reach_prometheus,
    rebalancers_url,
    service_of,
)
from cli.rebalancing import ReadingFailed, add_prometheus_flags
from fracgpu import names
from kube.access import connect_to
from kube.client import KubeClient
from kube.kinds import DEPLOYMENTS, NAMESPACES, SECRETS
from kube.retry import RetryPolicy
from process.clock import SystemClock
from rebalancer.usage.prometheus import QueryFailed
from simulator.envtest.prometheus import RealPrometheus
from tests.support.backfill import Past, steady, write_blocks
from tests.support.examined import shipped
from tests.support.scripted import ScriptedServer, a_server

SERVICE = "http://prometheus-operated.monitoring.svc:9090"
PROXY = "/api/v1/namespaces/monitoring/services/prometheus-operated:9090/proxy"
FORWARD = "kubectl -n monitoring port-forward service/prometheus-operated 9090:9090"
ANSWER = {"status": "success", "data": {"resultType": "scalar", "result": [1, "1"]}}


def flags(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_prometheus_flags(parser)
    options = parser.parse_args(words)
    options.system_namespace = names.SYSTEM_NAMESPACE
    return options


def a_rebalancer(url: str = "", *args: str) -> dict[str, Any]:
    (body,) = (b for b in shipped("Deployment") if b["metadata"]["name"] == "fracgpu-rebalancer")
    container = body["spec"]["template"]["spec"]["containers"][0]
    container["args"] = [*container["args"], *args]
    container["env"] = [{"name": "FRACGPU_REBALANCER_PROMETHEUS_URL", "value": url}] if url else []
    return body


@asynccontextmanager
async def installed(kube: KubeClient, url: str) -> AsyncIterator[KubeClient]:
    await kube.create(NAMESPACES, {"metadata": {"name": names.SYSTEM_NAMESPACE}})
    await kube.create(DEPLOYMENTS, a_rebalancer(url))
    yield kube


@pytest.mark.parametrize(
    ("url", "found"),
    [
        (SERVICE, ("monitoring", "prometheus-operated", 9090, False, "")),
        ("http://prom.obs.svc", ("obs", "prom", 80, False, "")),
        ("https://prom.obs.svc.cluster.local/a/", ("obs", "prom", 443, True, "/a")),
        ("https://prometheus.example.com", None),
        ("", None),
    ],
)
def test_a_service_is_known_by_its_host_name(url: str, found: tuple[Any, ...] | None) -> None:
    service = service_of(url)

    parts = service and (
        service.namespace, service.name, service.port, service.https, service.prefix
    )  # fmt: skip
    assert parts == found


def test_the_rebalancers_address_is_that_of_its_flag_else_of_its_variable() -> None:
    assert rebalancers_url(a_rebalancer("http://a")) == "http://a"
    assert rebalancers_url(a_rebalancer("http://a", "--prometheus-url=http://b")) == "http://b"
    assert rebalancers_url(a_rebalancer("http://a", "--prometheus-url", "http://c")) == "http://c"
    assert rebalancers_url(a_rebalancer()) == ""
    (body,) = (b for b in shipped("Deployment") if b["metadata"]["name"] == "fracgpu-rebalancer")
    assert service_of(rebalancers_url(body)) is not None  # as installed


async def test_a_service_is_asked_through_the_api_server(tmp_path: Path) -> None:
    end_s = SystemClock().now().timestamp()
    folder = tmp_path / "prometheus"
    write_blocks(
        folder / "data",
        [Past(name="busy", labels={"UUID": "GPU-1"}, points=steady(40))],
        end_s=end_s,
    )
    async with RealPrometheus.start(folder, {}) as prometheus:
        target = prometheus.url

        async def handler(request: web.Request) -> web.Response:
            if request.path.endswith("/deployments"):
                label = "app.kubernetes.io/name=fracgpu-rebalancer"
                assert request.query["labelSelector"] == label
                return web.json_response({"metadata": {}, "items": [a_rebalancer(SERVICE)]})
            assert request.path.startswith(f"{PROXY}/")
            url = target + request.path_qs.removeprefix(PROXY)
            async with aiohttp.ClientSession() as session, session.get(url) as answer:
                return web.Response(body=await answer.read(), status=answer.status)

        async with (
            a_server(handler) as server,
            connect_to(server.url) as client,
            reach_prometheus(client, flags()) as source,
        ):
            (now,) = await source.query("busy", at_s=end_s - 60)
            (past,) = await source.query_range(
                "busy", start_s=end_s - 600, end_s=end_s - 60, step_s=60
            )
            with pytest.raises(QueryFailed, match=r"refused: .*HTTP 400"):
                await source.query("busy[")

    assert (now.labels["UUID"], now.value) == ("GPU-1", 40)
    assert (len(past.points), past.points[0][1]) == (10, 40)


async def test_a_service_that_cannot_be_asked_is_reached_by_the_command_that_is_said() -> None:
    async def handler(_: web.Request) -> web.Response:
        body = {"kind": "Status", "message": "cannot get resource services/proxy", "code": 403}
        return web.json_response(body, status=403)

    with pytest.raises(QueryFailed) as raised:
        await proxied_query(handler)

    assert "cannot get resource services/proxy" in str(raised.value)
    assert f"{FORWARD}, and --prometheus-url http://localhost:9090" in str(raised.value)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ({"status": "success", "warnings": ["a store is missing"], "data": {}}, "a store is"),
        ({"status": "success"}, "not an answer to a query"),
        ("<html>", "not an answer to a query"),
    ],
)
async def test_an_answer_that_cannot_be_used_is_none(answer: Any, words: str) -> None:
    async def handler(_: web.Request) -> web.Response:
        return web.json_response(answer)

    with pytest.raises(QueryFailed, match=words):
        await proxied_query(handler)


async def proxied_query(handler: Any) -> None:
    service = service_of(SERVICE)
    assert isinstance(service, Service)
    async with a_server(handler) as server, connect_to(server.url) as client:
        await ProxiedPrometheus(client.with_retry(RetryPolicy(attempts=1)), service).query("up")


async def answering(_: web.Request) -> web.Response:
    return web.json_response(ANSWER)


async def presented(kube: KubeClient, *words: str) -> tuple[ScriptedServer, str | None]:
    """Return the server outside of the cluster, and the credentials that it was shown."""
    async with a_server(answering) as server, installed(kube, server.url):
        token = base64.b64encode(b"of-the-secret").decode()
        await kube.create(
            SECRETS,
            {"metadata": {"name": "fracgpu-prometheus"}, "data": {"token": token}},
            namespace=names.SYSTEM_NAMESPACE,
        )
        async with reach_prometheus(kube, flags(*words)) as source:
            await source.query("time()")
    return server, server.heard[-1].headers.get("Authorization")


async def test_an_address_outside_is_asked_directly_as_the_rebalancers_secret_says(
    kube: KubeClient,
) -> None:
    _, shown = await presented(kube)

    assert shown == "Bearer of-the-secret"


async def test_the_flag_for_credentials_counts_before_the_secret(
    kube: KubeClient, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text("of-the-flag")

    _, shown = await presented(kube, "--prometheus-credentials-dir", str(tmp_path))

    assert shown == "Bearer of-the-flag"


async def test_the_flag_for_the_address_counts_before_the_rebalancers(kube: KubeClient) -> None:
    # There is no rebalancer to ask.
    async with (
        a_server(answering) as server,
        reach_prometheus(kube, flags("--prometheus-url", server.url)) as source,
    ):
        await source.query("time()")

    assert "Authorization" not in server.heard[-1].headers


async def test_without_an_address_it_says_where_it_looked(kube: KubeClient) -> None:
    with pytest.raises(ReadingFailed, match="there is no Deployment fracgpu-system/fracgpu-reb"):
        await entered(kube)
    async with installed(kube, ""):
        with pytest.raises(ReadingFailed, match="has no FRACGPU_REBALANCER_PROMETHEUS_URL; name"):
            await entered(kube)


async def entered(kube: KubeClient) -> None:
    async with reach_prometheus(kube, flags()):
        raise AssertionError("there is no Prometheus to reach")
