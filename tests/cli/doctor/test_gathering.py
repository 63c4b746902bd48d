"""Facts are read at once, each with a limit, and one that fails leaves the others."""

import asyncio
from dataclasses import fields
from datetime import timedelta

import pytest
import yaml
from aiohttp import web

from cli.doctor.gathering import Gatherer
from fracgpu import names
from fracgpu.doctor.facts import Facts, PrometheusFact, Unread, name_of
from kube.access import connect_to
from kube.client import KubeClient
from kube.errors import KubeError, Unavailable
from kube.kinds import DEPLOYMENTS, JOBS, NAMESPACES, NODES, PODS
from process.clock import Clock, SystemClock
from simulator.demo.definitions import install_definitions
from tests.cli.live_cluster import configure
from tests.fakes.clock import VirtualClock
from tests.support.examined import DEPLOY, NODE, a_node, shipped
from tests.support.scripted import a_server


@pytest.fixture
async def kube(kube: KubeClient) -> KubeClient:
    """A client of an API server that has the namespaces."""
    for name in (names.SYSTEM_NAMESPACE, "ml"):
        await kube.create(NAMESPACES, {"metadata": {"name": name}})
    return kube


async def no_prometheus(_: KubeClient) -> Unread:
    return Unread("not asked here")


async def gathered(client: KubeClient, *, limit_s: float = 30, clock: Clock | None = None) -> Facts:
    gatherer = Gatherer(
        client,
        namespace=names.SYSTEM_NAMESPACE,
        probe_namespace=None,
        ask_prometheus=no_prometheus,
        limit_s=limit_s,
    )
    return await gatherer.gather(clock or VirtualClock(), own_version="0.1.0")


async def test_what_the_cluster_has_is_read(kube: KubeClient) -> None:
    await install_definitions(kube)
    await kube.create(NODES, a_node())
    (rebalancer,) = (b for b in shipped("Deployment") if name_of(b) == "fracgpu-rebalancer")
    await kube.create(DEPLOYMENTS, rebalancer)

    facts = await gathered(kube)

    assert isinstance(facts.nodes, tuple)
    assert [name_of(node) for node in facts.nodes] == [NODE]
    assert isinstance(facts.definitions, tuple)
    assert [name_of(body) for body in facts.definitions] == ["moves.fracgpu.io"]
    assert isinstance(facts.deployments, tuple)
    assert [name_of(body) for body in facts.deployments] == ["fracgpu-rebalancer"]
    assert facts.config_mistakes is None
    assert facts.admission == Unread("--no-probe was given, so no pod was sent as a dry run")


async def test_pods_that_have_not_ended_and_carry_a_key_of_ours_are_read(kube: KubeClient) -> None:
    container = {"name": "c", "image": "i"}
    for name, notes, phase in (
        ("asks", {names.FRACTION: "0.5"}, "Running"),
        ("ended", {names.FRACTION: "0.5"}, "Succeeded"),
        ("other", {"example.com/a": "b"}, "Running"),
    ):
        meta = {"name": name, "namespace": "ml", "annotations": notes}
        await kube.create(PODS, {"metadata": meta, "spec": {"containers": [container]}})
        status = {"status": {"phase": phase}}
        await kube.patch(PODS, name, status, namespace="ml", subresource="status")

    facts = await gathered(kube)

    assert isinstance(facts.requesting, tuple)
    assert [pod.record.key for pod in facts.requesting] == ["ml/asks"]
    assert isinstance(facts.namespace, tuple)
    assert [name_of(body) for body in facts.namespace] == [names.SYSTEM_NAMESPACE]


async def test_kube_schedulers_configuration_is_read_where_a_pod_of_ours_mounts_it() -> None:
    text = (DEPLOY / "scheduler-profile.yaml").read_text(encoding="utf-8")
    odd = ("kind: [odd", "on: 2026-13-45", "a: !!bool b", "a: !!timestamp b", "[" * 5000)
    notes = {f"notes-{number}": text for number, text in enumerate(odd)}
    lists = {
        "configmaps": [
            {"metadata": {"name": name}, "data": {"profile.yaml": text, **notes}}
            for name in ("fracgpu-scheduler-profile", "fracgpu-scheduler-profile-of-last-week")
        ],
        "deployments": [b for b in shipped("Deployment") if name_of(b) == "fracgpu-scheduler"],
    }

    async def handler(request: web.Request) -> web.Response:
        if request.path == "/version":
            return web.json_response({"gitVersion": "v1.36.2"})
        items = lists.get(request.path.rpartition("/")[2], [])
        return web.json_response({"metadata": {}, "items": items})

    async with a_server(handler) as server, connect_to(server.url) as client:
        facts = await gathered(client)

    assert facts.scheduler_configurations == {
        "ConfigMap fracgpu-scheduler-profile, key profile.yaml": yaml.safe_load(text)
    }


async def test_a_pod_of_another_shape_leaves_the_other_facts() -> None:
    odd = {"metadata": {"annotations": {names.FRACTION: "0.5"}}, "spec": ["nothing"]}

    async def handler(request: web.Request) -> web.Response:
        if request.path == "/version":
            return web.json_response({"gitVersion": "v1.36.2"})
        return web.json_response({"metadata": {}, "items": [odd] * request.path.endswith("/pods")})

    async with a_server(handler) as server, connect_to(server.url) as client:
        facts = await gathered(client)

    assert isinstance(facts.requesting, Unread)
    assert facts.nodes == ()


async def test_the_roles_own_parsers_judge_the_configuration(kube: KubeClient) -> None:
    await configure(
        kube,
        rebalancer="hotRatio: 9",
        placement="strategy: pakc",
        admission="whenNoCapacity: wait",
        rebalanser="mode: active",
    )

    mistakes = (await gathered(kube)).config_mistakes

    assert isinstance(mistakes, dict)
    assert set(mistakes) == {"rebalancer", "placement", "rebalanser"}
    assert "hotRatio is 9" in mistakes["rebalancer"]


async def test_settings_of_an_earlier_version_are_no_mistake_but_named(kube: KubeClient) -> None:
    await configure(kube, rebalancer="mode: active\ntickS: 5\nsettleS: 600")

    facts = await gathered(kube)

    assert facts.config_mistakes == {}
    assert facts.ignored_keys == ("settleS", "tickS")


@pytest.mark.parametrize(
    ("placement", "expected"),
    [("overcommit: 1.5", True), ("overcommit: 1", False), ("overcommit: much", False)],
)
async def test_an_overcommitment_above_one_is_told_from_none(
    kube: KubeClient, placement: str, expected: bool
) -> None:
    await configure(kube, placement=placement)

    assert (await gathered(kube)).overcommits is expected


async def test_workloads_are_read_only_where_kueue_admits_them(kube: KubeClient) -> None:
    for name, labels in (("queued", {"kueue.x-k8s.io/queue-name": "gpus"}), ("free", {})):
        body = {
            "metadata": {"name": name, "namespace": "ml", "labels": labels},
            "spec": {"template": {"spec": {"containers": [{"name": "c", "image": "i"}],
                                           "restartPolicy": "Never"}}},
        }  # fmt: skip
        await kube.create(JOBS, body)

    queued = (await gathered(kube)).queued

    assert isinstance(queued, tuple)
    assert [(body["kind"], name_of(body)) for body in queued] == [("Job", "queued")]


async def test_what_may_not_be_read_is_unread_and_what_hangs_is_given_up() -> None:
    at_once = most = 0

    async def handler(request: web.Request) -> web.Response:
        nonlocal at_once, most
        if request.path == "/version":
            return web.json_response({"gitVersion": "v1.36.2"})
        at_once += 1
        most = max(most, at_once)
        try:
            if request.path == "/api/v1/nodes":
                await asyncio.sleep(60)
            body = {"kind": "Status", "message": f'cannot read "{request.path}"'}
            return web.json_response(body, status=403)
        finally:
            at_once -= 1

    async with a_server(handler) as server, connect_to(server.url) as client:
        facts = await gathered(client, limit_s=2)

    read = {
        field.name: getattr(facts, field.name)
        for field in fields(Facts)
        if field.name
        not in ("now", "caller_ahead", "own_version", "system_namespace", "server_version")
    }
    assert all(isinstance(fact, Unread) for fact in read.values())
    assert facts.nodes == Unread("no answer within 2 s")
    assert isinstance(facts.policies, Unread)
    assert "this account may not read it: cannot read" in facts.policies.reason
    assert facts.server_version == "v1.36.2"
    assert most <= 8


async def test_an_api_server_that_does_not_answer_is_nothing_to_examine() -> None:
    async with connect_to("http://127.0.0.1:1") as client:
        with pytest.raises(Unavailable):
            await gathered(client)


async def test_prometheus_is_asked_with_the_same_client(kube: KubeClient) -> None:
    asked = []

    async def ask(client: KubeClient) -> PrometheusFact:
        asked.append(client.transport)
        return PrometheusFact(url="u")

    gatherer = Gatherer(kube, namespace="s", probe_namespace=None, ask_prometheus=ask, limit_s=30)

    assert (await gatherer.gather(VirtualClock(), own_version="0")).prometheus == PrometheusFact(
        url="u"
    )
    assert asked == [kube.transport]


@pytest.mark.parametrize("wrong_by", [timedelta(hours=2), timedelta(hours=-2)])
async def test_the_time_is_the_api_servers_whatever_the_callers_clock_says(
    kube: KubeClient, wrong_by: timedelta
) -> None:
    facts = await gathered(kube, clock=VirtualClock(SystemClock().now() + wrong_by))

    assert isinstance(facts.caller_ahead, timedelta)
    assert abs(facts.caller_ahead - wrong_by) < timedelta(minutes=2)
    assert abs(facts.now - SystemClock().now()) < timedelta(minutes=2)


async def test_the_version_and_the_time_are_of_one_answer() -> None:
    asked: list[str] = []

    async def handler(request: web.Request) -> web.Response:
        asked.append(request.path)
        if request.path == "/version":
            return web.json_response({"gitVersion": "v1.36.2"})
        return web.json_response({"metadata": {}, "items": []})

    async with a_server(handler) as server, connect_to(server.url) as client:
        facts = await gathered(client, clock=SystemClock())

    assert (facts.server_version, facts.caller_ahead) == ("v1.36.2", timedelta(0))
    assert asked.count("/version") == 1


async def test_what_is_not_a_version_is_not_an_answer() -> None:
    async def handler(_: web.Request) -> web.Response:
        return web.json_response({"gitVersion": None})

    async with a_server(handler) as server, connect_to(server.url) as client:
        with pytest.raises(KubeError, match="gitVersion"):
            await gathered(client)


async def test_an_answer_without_a_date_leaves_the_callers_clock() -> None:
    async def version(_: web.Request) -> web.Response:
        return web.json_response({"gitVersion": "v1.36.2"}, headers={"Date": "today"})

    clock = VirtualClock()
    async with a_server(version) as server, connect_to(server.url) as client:
        facts = await gathered(client, limit_s=5, clock=clock)

    assert facts.now == clock.now()
    assert facts.caller_ahead == Unread(
        "this machine's clock: the API server's answers have no header Date"
    )
