"""``fracgpu cards`` against a live API server."""

import asyncio
import json
from pathlib import Path

import pytest
import yaml

from cli.commands.cards import main
from cli.main import DONE, FAILED
from kube.client import KubeClient
from tests.cli.live_cluster import NODE, Cli, a_pod, bind, furnish, watched
from tests.support.waiting import until_true


async def test_every_card_is_listed_with_whose_slices_it_holds(cli: Cli) -> None:
    await furnish(cli.kube)
    await bind(cli.kube, await a_pod(cli.kube, "chat", mib=9_000), card=1, mib=9_000)

    assert await cli.call(main) == DONE

    head, first, second = cli.read().out.splitlines()
    assert head.split()[:2] == ["NODE", "CARD"]
    assert first.split()[:2] == [NODE, "0"]
    assert second.split()[-1] == "default/chat=9000"


async def test_json_is_for_programs(cli: Cli) -> None:
    await furnish(cli.kube)
    await bind(cli.kube, await a_pod(cli.kube, "chat", mib=9_000), card=1, mib=9_000)

    assert await cli.call(main, "--json", "--node", NODE) == DONE

    answer = json.loads(cli.read().out)
    assert (answer["heldMib"], answer["capacityMib"]) == (9_000, 48_000)
    assert [card["heldMib"] for card in answer["nodes"][0]["cards"]] == [0, 9_000]


async def test_yaml_and_names_are_for_programs_too(cli: Cli) -> None:
    await furnish(cli.kube)

    assert await cli.call(main, "-o", "yaml") == DONE
    assert yaml.safe_load(cli.read().out)["capacityMib"] == 48_000

    assert await cli.call(main, "-o", "name") == DONE
    assert cli.read().out == "card/GPU-gpu-1-0\ncard/GPU-gpu-1-1\n"


async def test_only_the_pods_of_one_namespace_are_shown_but_all_that_is_held(cli: Cli) -> None:
    await furnish(cli.kube)
    await bind(cli.kube, await a_pod(cli.kube, "chat", mib=9_000), card=1, mib=9_000)

    assert await cli.call(main, "-n", "elsewhere") == DONE

    row = cli.read().out.splitlines()[-1]
    assert "9000/24000" in row
    assert "chat" not in row


async def test_a_cluster_without_fracgpu_is_told_so(cli: Cli) -> None:
    assert await cli.call(main) == FAILED

    assert "FracGPU is not installed in this cluster" in cli.read().err


async def test_a_cluster_without_cards_is_told_how_to_share_some(cli: Cli) -> None:
    assert await cli.call(main) == FAILED

    assert "kubectl label node NAME fracgpu.io/share=true" in cli.read().out


async def test_watching_shows_each_change(kube: KubeClient) -> None:
    await furnish(kube)
    async with watched(kube) as shown:
        first = shown[-1].held_mib
        await bind(kube, await a_pod(kube, "chat", mib=9_000), card=1, mib=9_000)
        await until_true(lambda: shown[-1].held_mib == 9_000, what="the new slice is shown")

    assert first == 0


async def test_an_api_server_that_does_not_answer_is_said_in_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = str(tmp_path / "nowhere")

    assert await asyncio.to_thread(main, ["--kubeconfig", missing]) == FAILED

    assert capsys.readouterr().err.startswith("fracgpu cards: no kubeconfig at")
