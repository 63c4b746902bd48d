"""``fracgpu plan`` against a live API server and a real Prometheus with an hour of data."""

import json
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from cli.commands.plan import main
from cli.main import CALLED_WRONG, DONE, FAILED
from cli.main import main as fracgpu
from fracgpu.cards.card import CardUuid
from kube.client import KubeClient
from kube.kinds import PODS
from kube.objects import decode_object
from process.clock import SystemClock
from simulator.envtest.prometheus import RealPrometheus
from tests.cli.live_cluster import Cli, configure
from tests.support.backfill import Past, steady, wavering, write_blocks
from tests.support.moving import NAMESPACE, make_cluster
from tests.support.rebalancing import COOL_CARD, HOT_CARD

TARGET = {"job": "fracgpu", "instance": "10.0.0.1:9400"}


def a_card(uuid: CardUuid, busy: float) -> list[Past]:
    labels = {"UUID": uuid, "pod": "", **TARGET}
    return [
        Past(name="fracgpu_card_util", labels=labels, points=wavering(busy, since_s=4200)),
        Past(name="fracgpu_card_memory_free_mib", labels=labels, points=steady(16_000)),
    ]


def a_pod(uuid: CardUuid, uid: str, busy: float) -> Past:
    labels = {"UUID": uuid, "pod_uid": uid, **TARGET}
    return Past(name="fracgpu_pod_sm_util", labels=labels, points=steady(busy))


@asynccontextmanager
async def a_past_hour(folder: Path, kube: KubeClient) -> AsyncIterator[RealPrometheus]:
    """Run a Prometheus in which one card was hot for an hour, by two pods."""
    pods = [decode_object(bytes(raw)) for raw in (await kube.list(PODS, namespace=NAMESPACE)).items]
    uids = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in pods}
    series = [
        *a_card(HOT_CARD, 95),
        *a_card(COOL_CARD, 1),
        a_pod(HOT_CARD, uids["pod-a"], 35),
        a_pod(HOT_CARD, uids["pod-b"], 55),
    ]
    write_blocks(folder / "data", series, end_s=SystemClock().now().timestamp() + 30)
    async with RealPrometheus.start(folder, {}) as prometheus:
        yield prometheus


async def test_every_pod_of_a_hot_card_has_its_move_or_the_rule_that_holds_it(cli: Cli) -> None:
    await make_cluster(cli.kube)
    before = (await cli.kube.list(PODS)).resource_version
    async with a_past_hour(cli.folder / "prom", cli.kube) as prometheus:
        cli.read()
        code = await cli.call(main, "--prometheus-url", prometheus.url)

    out = cli.read().out
    assert code == DONE, out
    lines = out.splitlines()
    assert lines[0].startswith("mode dryRun (moves are only reported), aggressiveness 3; 100%")
    assert any(re.fullmatch(r"n1/0  NVIDIA A30  busy 9[56]%, hot", line) for line in lines)
    (move,) = [line for line in lines if line.startswith("  move ")]
    (stay,) = [line for line in lines if line.startswith("  stay ")]
    assert {move.split()[1], stay.split()[1]} == {"ml/pod-a", "ml/pod-b"}
    assert "-> n2/0 (gain " in move
    assert "moving another pod off the card relieves more" in stay
    assert (await cli.kube.list(PODS)).resource_version == before  # nothing was written


async def test_what_blocks_everything_is_named_and_what_would_happen_without_it(cli: Cli) -> None:
    await make_cluster(cli.kube)
    await configure(cli.kube, rebalancer="mode: active\npaused: true", placement="strategy: pack")
    async with a_past_hour(cli.folder / "prom", cli.kube) as prometheus:
        cli.read()
        code = await cli.call(main, "--prometheus-url", prometheus.url, "-o", "json")
        answer: Mapping[str, Any] = json.loads(cli.read().out)
        text = await cli.call(main, "--prometheus-url", prometheus.url)

    assert (code, text) == (DONE, DONE)
    assert (answer["mode"], answer["trustedRatio"]) == ("active", 1.0)
    assert [held["reason"] for held in answer["blocked"]] == ["paused"]
    assert answer["moves"] == []
    (card,) = answer["hotCards"]
    assert (card["name"], card["blockedBy"], len(card["moves"])) == ("n1/0", "paused", 1)
    assert card["moves"][0]["to"] == "n2/0"
    assert "not now: the rebalancer is paused; without that:" in cli.read().out


async def test_a_candidate_file_is_used_instead_of_the_configmap(cli: Cli) -> None:
    await make_cluster(cli.kube)
    await configure(cli.kube, rebalancer="hotRatio: 0.97")
    candidate = cli.folder / "candidate.yaml"
    candidate.write_text("namespaces: labelled")
    async with a_past_hour(cli.folder / "prom", cli.kube) as prometheus:
        cli.read()
        words = ("--prometheus-url", prometheus.url)
        assert await cli.call(main, *words) == DONE
        assert "no card is hot" in cli.read().out
        assert await cli.call(main, *words, "--config", str(candidate)) == DONE
        out = cli.read().out
        assert "stay ml/pod-a: its namespace is not rebalanced" in out
        candidate.write_text("hotRatio: 80")
        assert await cli.call(main, *words, "--config", str(candidate)) == FAILED
        assert "hotRatio is 80; want a number from 0.2 to 1" in cli.read().err


async def test_without_an_answer_of_prometheus_it_says_so(cli: Cli) -> None:
    await make_cluster(cli.kube)

    assert await cli.call(main, "--prometheus-url", "http://127.0.0.1:9") == FAILED

    assert "fracgpu plan: unreachable: " in cli.read().err


async def test_without_the_resource_for_moves_past_ones_are_unknown_and_it_says_so(
    cli: Cli,
) -> None:
    assert await cli.call(main, "--prometheus-url", "http://127.0.0.1:9") == FAILED

    assert "moves.fracgpu.io is not installed" in cli.read().err


def test_wrong_arguments_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert fracgpu(["plan", "--query-timeout-s", "soon"]) == CALLED_WRONG
    assert "--query-timeout-s" in capsys.readouterr().err
