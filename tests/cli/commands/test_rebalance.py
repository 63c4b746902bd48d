"""``fracgpu rebalance replay`` on a real Prometheus with hours of recorded usage."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from cli.commands.rebalance import main
from cli.main import CALLED_WRONG, DONE, FAILED
from cli.main import main as fracgpu
from fracgpu import names
from kube.kinds import NAMESPACES
from process.clock import SystemClock
from simulator.envtest.prometheus import RealPrometheus
from tests.cli.live_cluster import Cli, configure
from tests.support.backfill import write_blocks
from tests.support.recorded import REPLICAS, recorded_series

HOURS = 4


@asynccontextmanager
async def recorded(folder: Path, *, left_out: str = "") -> AsyncIterator[str]:
    """Run a Prometheus that recorded a card kept hot by two replicas; return its address."""
    series = recorded_series(
        {"n1/0": 95, "n2/0": 0},
        {REPLICAS[0]: ("n1/0", 50), REPLICAS[1]: ("n1/0", 45)},
        since_s=3600 * HOURS,
        left_out=left_out,
    )
    write_blocks(folder / "data", series, end_s=SystemClock().now().timestamp())
    async with RealPrometheus.start(folder, {}) as prometheus:
        yield prometheus.url


async def test_a_candidate_is_shown_beside_the_present_configuration(cli: Cli) -> None:
    await cli.kube.create(NAMESPACES, {"metadata": {"name": names.SYSTEM_NAMESPACE}})
    await configure(cli.kube, rebalancer="hotRatio: 0.99")
    candidate = cli.folder / "candidate.yaml"
    candidate.write_text("mode: active\naggressiveness: 4\n")
    words = ["replay", "--from", "3h", "--config", str(candidate)]
    async with recorded(cli.folder / "prom") as url:
        cli.read()
        assert await cli.call(main, *words, "--prometheus-url", url, "--moves") == DONE
        text = cli.read()
        assert await cli.call(main, *words, "--prometheus-url", url, "--json") == DONE
        answer = json.loads(cli.read().out)

    head, *rows = text.out.splitlines()[1:]
    assert head.split() == ["nothing", "moved", "present", "candidate"]
    assert rows[0].split() == ["moves", "0", "0", "1"]
    assert f"ml/{REPLICAS[1]}  n1/0 -> n2/0  gain" in text.out
    assert "replay: done" in text.err
    found = answer["policies"]
    assert (found["present"]["moves"], found["candidate"]["moves"]) == (0, 1)
    assert found["nothing moved"]["hot_h"] == pytest.approx(3, abs=0.1)
    assert found["present"]["hot_h"] == found["nothing moved"]["hot_h"]
    assert found["candidate"]["hot_h"] < 1
    assert found["candidate"]["list"][0]["to"] == "n2/0"
    assert answer["frames"] == pytest.approx(180, abs=2)


async def test_what_was_not_recorded_is_named(cli: Cli) -> None:
    async with recorded(cli.folder / "prom", left_out="fracgpu_pod_gpu_memory_limit_mib") as url:
        words = ["replay", "--prometheus-url", url]
        assert await cli.call(main, *words, "--from", "2h") == FAILED
        assert "no series fracgpu_pod_gpu_memory_limit_mib from " in cli.read().err
        long_ago = ["--from", "2020-01-01", "--to", "2020-01-02"]
        assert await cli.call(main, *words, *long_ago) == FAILED
        assert "no series fracgpu_card_memory_shareable_mib from 2020" in cli.read().err


async def test_a_prometheus_that_is_gone_and_a_bad_candidate_are_told(cli: Cli) -> None:
    words = ["replay", "--from", "1h", "--prometheus-url", "http://127.0.0.1:9"]
    assert await cli.call(main, *words) == FAILED
    assert "fracgpu rebalance replay: unreachable" in cli.read().err
    (cli.folder / "bad.yaml").write_text("hotRatio: 80")
    assert await cli.call(main, *words, "--config", str(cli.folder / "bad.yaml")) == FAILED
    assert "bad.yaml: hotRatio is 80; want a number" in cli.read().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "--from"),
        (["dance", "--from", "1h"], "invalid choice: 'dance'"),
        (["replay", "--from", "yesterday"], "'yesterday'; want a time such as 2026-01-31T12:00"),
        (["replay", "--from", "1h", "--to", "2h"], "which begins before it ends"),
        (["replay", "--from", "99d"], "31 days at most"),
        (["replay", "--from", "1h", "--step-s", "1"], "'1'; want 5 to 300"),
        (["replay", "--from", "1h", "--step-s", "nan"], "'nan'; want 5 to 300"),
    ],
)
def test_wrong_arguments_are_refused(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fracgpu(["rebalance", *words, "--prometheus-url", "http://127.0.0.1:9"]) == CALLED_WRONG
    assert message in capsys.readouterr().err
