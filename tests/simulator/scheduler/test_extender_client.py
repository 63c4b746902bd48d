"""kube-scheduler's side of the extender protocol."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from simulator.envtest.ports import free_ports
from simulator.scheduler.extender_client import ExtenderClient, ExtenderError
from tests.support.gpu import Json, a_gpu_pod
from tests.support.scripted import a_server, answering


@asynccontextmanager
async def asking(body: str, *, status: int = 200) -> AsyncIterator[ExtenderClient]:
    answer = web.Response(text=body, status=status)
    async with (
        a_server(answering(answer)) as server,
        ExtenderClient.open(f"{server.url}/") as client,
    ):
        yield client


def the_pod() -> Json:
    pod = a_gpu_pod("p")
    pod["metadata"]["uid"] = "u1"
    return pod


async def test_both_maps_of_failed_nodes_are_reasons() -> None:
    body = '{"NodeNames":["a"],"FailedNodes":{"b":"x"},"FailedAndUnresolvableNodes":{"c":"y"}}'
    async with asking(body) as client:
        answer = await client.filter(the_pod(), ["a", "b", "c"])

    assert (answer.passed, answer.refused) == (("a",), {"b": "x", "c": "y"})


@pytest.mark.parametrize(
    ("body", "status", "reason"),
    [
        ('{"Error":"no leader"}', 200, "no leader"),
        ("sorry", 503, "code 503"),
        ("sorry", 200, "cannot be read"),
        ('{"NodeNames":["z"]}', 200, "'z'"),
    ],
)
async def test_an_answer_that_is_none_is_an_error(body: str, status: int, reason: str) -> None:
    async with asking(body, status=status) as client:
        with pytest.raises(ExtenderError, match=reason):
            await client.filter(the_pod(), ["a"])


async def test_an_error_in_the_binding_result_is_an_error() -> None:
    async with asking('{"Error":"taken"}') as client:
        with pytest.raises(ExtenderError, match="taken"):
            await client.bind(the_pod(), "a")


async def test_scores_are_read_by_host() -> None:
    async with asking('[{"Host":"a","Score":3}]') as client:
        assert await client.prioritize(the_pod(), ["a"]) == {"a": 3}


async def test_nobody_at_home_is_an_error() -> None:
    (port,) = free_ports(1)
    async with ExtenderClient.open(f"http://127.0.0.1:{port}") as client:
        with pytest.raises(ExtenderError, match="no answer from the extender"):
            await client.filter(the_pod(), ["a"])
