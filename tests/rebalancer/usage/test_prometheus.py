"""Queries of Prometheus: each kind of failure is distinguished, in bounded time and memory."""

import asyncio
import math
from pathlib import Path
from typing import Any

import pytest

from rebalancer.usage.prometheus import Prometheus, QueryError, QueryFailed, Sample, is_sane
from simulator.envtest.prometheus import RealPrometheus
from tests.fakes.exporter import Exporter
from tests.fakes.prometheus import (
    Behaviour,
    answering,
    dripping,
    hanging_up,
    kept_back,
    serving,
    silent,
    vector,
)
from tests.support.waiting import until

SOON_S = 0.5


def client(url: str, **options: Any) -> Prometheus:
    """Return a client with a long limit, as a busy machine needs, unless a test is about it."""
    return Prometheus(url, **{"limit_s": 60.0, "limit_bytes": 10_000, **options})


async def test_a_vector_and_a_scalar_are_samples() -> None:
    body = vector(({"UUID": "GPU-a"}, "42.5"), ({}, "NaN"))
    async with serving(answering(body)) as (url, requests), client(url) as prometheus:
        first, second = await prometheus.query("up", at_s=12.3456)

        assert first == Sample(labels={"UUID": "GPU-a"}, value=42.5)
        assert math.isnan(second.value)
        assert "/api/v1/query?query=up&time=12.346&dedup=true&partial_response=false" in requests[0]

    scalar = {"status": "success", "data": {"resultType": "scalar", "result": [1.0, "7"]}}
    async with serving(answering(scalar)) as (url, requests), client(url) as prometheus:
        assert await prometheus.query("time()") == (Sample(labels={}, value=7.0),)
        assert "&time=" not in requests[0]


@pytest.mark.parametrize(
    ("behaviour", "trouble"),
    [
        (answering("busy", status=503), QueryError.REFUSED),
        (answering({"error": "bad query"}, status=422), QueryError.REFUSED),
        (answering("no", status=401), QueryError.UNAUTHORIZED),
        (answering("no", status=403), QueryError.UNAUTHORIZED),
        (answering(vector(({}, "1"), warnings=["store gone"])), QueryError.PARTIAL),
        (answering(vector(({}, "1"), isPartial=True)), QueryError.PARTIAL),
        (answering("<html>"), QueryError.GARBLED),
        (answering("{}"), QueryError.GARBLED),
        (answering('{"data": {"result": 7}}'), QueryError.GARBLED),
        (answering('{"data": {"result": [{"metric": {}}]}}'), QueryError.GARBLED),
        (answering(vector(({}, "many"))), QueryError.GARBLED),
        (
            answering('{"data": {"result": [{"metric": "up", "value": [1, "1"]}]}}'),
            QueryError.GARBLED,
        ),
        (answering(f'{{"data": {{"result": [1, {10**400}]}}}}'), QueryError.GARBLED),
        (answering(9_000 * "["), QueryError.GARBLED),
        (answering("[" + " " * 20_000 + "]"), QueryError.TOO_LARGE),
        (hanging_up, QueryError.UNREACHABLE),
    ],
)
async def test_whatever_is_no_complete_answer_is_told_apart(
    behaviour: Behaviour, trouble: QueryError
) -> None:
    async with serving(behaviour) as (url, _), client(url) as prometheus:
        assert await _trouble(prometheus) is trouble


@pytest.mark.parametrize("behaviour", [silent, dripping])
async def test_an_answer_that_would_never_be_complete_is_given_up(behaviour: Behaviour) -> None:
    """Neither answer ever ends by itself: that the test ends shows that the limit holds."""
    async with serving(behaviour) as (url, _), client(url, limit_s=SOON_S) as prometheus:
        for _ in range(2):
            with pytest.raises(QueryFailed) as caught:
                await prometheus.query("up")

            assert caught.value.trouble is QueryError.SLOW
            assert "the previous query" not in str(caught.value), "its thread waits no more"


async def test_an_empty_answer_is_an_answer() -> None:
    async with serving(answering(vector())) as (url, _), client(url) as prometheus:
        assert await prometheus.query("up") == ()


async def test_the_event_loop_goes_on_while_prometheus_is_silent() -> None:
    """The answer comes from the loop that waits for it, and not before that has gone on."""
    asked, go_on = asyncio.Event(), asyncio.Event()
    late = kept_back(answering(vector(({}, "1"))), asked=asked, until=go_on)
    async with serving(late) as (url, _), client(url) as prometheus, asyncio.TaskGroup() as group:
        ask = group.create_task(prometheus.query("up"))
        await asked.wait()
        assert not ask.done()
        go_on.set()

    assert ask.result() == (Sample(labels={}, value=1.0),)


async def test_a_query_that_still_hangs_is_not_queued_behind() -> None:
    asked, go_on = asyncio.Event(), asyncio.Event()
    late = kept_back(answering(vector()), asked=asked, until=go_on)
    async with serving(late) as (url, requests), client(url) as prometheus:
        async with asyncio.TaskGroup() as group:
            first = group.create_task(prometheus.query("up"))
            await asked.wait()
            with pytest.raises(QueryFailed, match="the previous query is still waiting") as caught:
                await prometheus.query("down")
            assert not first.done()
            go_on.set()
        assert caught.value.trouble is QueryError.SLOW
        assert first.result() == ()
        assert len(requests) == 1


async def test_proxies_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    async with serving(answering(vector())) as (url, _), client(url) as prometheus:
        assert await prometheus.query("up") == ()


async def test_a_real_prometheus_answers_refuses_and_vanishes(tmp_path: Path) -> None:
    async with Exporter.start() as exporter:
        exporter.text = 'answer{UUID="GPU-a"} 42\n'
        start = RealPrometheus.start(tmp_path, {"node": exporter.address})
        async with start as real, client(real.url) as prometheus:

            async def scraped() -> bool:
                return bool(await prometheus.query("answer"))

            await until(scraped, what="the exporter was scraped")
            (sample,) = await prometheus.query("answer")
            assert (sample.labels["UUID"], sample.value) == ("GPU-a", 42)
            assert (await prometheus.query("time()"))[0].value > 1e9
            with pytest.raises(QueryFailed, match="refused") as caught:
                await prometheus.query("this is no PromQL")
            assert caught.value.trouble is QueryError.REFUSED
        async with client(real.url) as prometheus:
            assert await _trouble(prometheus) is QueryError.UNREACHABLE


@pytest.mark.parametrize(
    ("value", "sane"),
    [(0, True), (100, True), (-0.1, False), (101, False), (math.nan, False), (math.inf, False)],
)
def test_only_numbers_in_range_are_sane(value: float, sane: bool) -> None:
    assert is_sane(value, low=0, high=100) is sane


async def _trouble(prometheus: Prometheus) -> QueryError:
    try:
        await prometheus.query("up")
    except QueryFailed as error:
        return error.trouble
    raise AssertionError("it answered")
