"""``fracgpu explain`` against a live API server: text, JSON and exit code."""

import json
from datetime import timedelta
from typing import Any

import pytest

from cli.commands.explain import main
from cli.main import CALLED_WRONG, DONE, FAILED
from cli.main import main as fracgpu
from fracgpu import names
from kube.kinds import MOVES, NAMESPACES, PODS
from process.clock import SystemClock
from simulator.demo.definitions import install_definitions
from tests.cli.live_cluster import NODE, Cli, a_pod, bind, configure, furnish
from tests.support.moves import a_beneficiary, move_body, move_of
from tests.support.objects import a_pod as a_plain_pod


async def test_a_pod_that_does_not_fit_is_exit_code_one_with_what_would_help(cli: Cli) -> None:
    await furnish(cli.kube)
    for card in (0, 1):
        pod = await a_pod(cli.kube, f"chat-{card}", mib=15_000)
        await bind(cli.kube, pod, card=card, mib=15_000)
    await a_pod(cli.kube, "waits", mib=12_000)

    assert await cli.call(main, "pod", "default/waits") == FAILED

    out = cli.read().out
    assert out.startswith("default/waits does not fit on the only node\n")
    assert 'at most fracgpu.io/memory: "9000Mi" fits now: gpu-1, card 0' in out
    assert "once default/chat-0 (14.6 GiB) is gone" in out


async def test_json_says_it_card_by_card(cli: Cli) -> None:
    await furnish(cli.kube)
    await a_pod(cli.kube, "waits", mib=30_000)

    assert await cli.call(main, "default/waits", "--json") == FAILED

    answer: dict[str, Any] = json.loads(cli.read().out)
    assert (answer["fits"], answer["verdict"]) == (False, "does not fit")
    cards = answer["nodes"][0]["cards"]
    assert [card["freeMib"] for card in cards] == [24_000, 24_000]
    assert all("for 30000 MiB" in card["reason"] for card in cards)


async def test_a_running_pod_is_exit_code_zero_and_names_its_card(cli: Cli) -> None:
    await furnish(cli.kube)
    await bind(cli.kube, await a_pod(cli.kube, "chat", mib=9_000), card=1, mib=9_000)

    assert await cli.call(main, "chat") == DONE

    out = cli.read().out
    assert out.startswith(f"default/chat runs on {NODE} since 2026-11-20 11:00:00 UTC\n")
    assert "card 1 NVIDIA A30: 9000 MiB" in out


async def test_gates_and_another_scheduler_are_told(cli: Cli) -> None:
    await furnish(cli.kube)
    gates = [{"name": "team/quota"}]
    await a_pod(cli.kube, "gated", mib=1_000, schedulingGates=gates, schedulerName="theirs")

    assert await cli.call(main, "default/gated") == FAILED
    out = cli.read().out
    assert "team/quota" in out
    assert "'theirs'; only fracgpu-scheduler asks" in out

    words = ("default/gated", "--scheduler-name", "theirs")
    assert await cli.call(main, *words) == FAILED
    assert "'theirs'" not in cli.read().out


async def test_a_pod_that_is_not_there_or_asks_nothing_is_a_wrong_call(cli: Cli) -> None:
    await cli.kube.create(PODS, a_plain_pod("plain"), namespace="default")

    assert await cli.call(main, "other/plain") == CALLED_WRONG
    assert "no pod other/plain; did you mean default/plain?" in cli.read().err
    assert await cli.call(main, "default/plain") == CALLED_WRONG
    assert "requests no share of a card; create it anew with fracgpu.io/fraction" in cli.read().err


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("default/web-7d4f9", "default/web-7d4f9-x2x4x"),
        ("deployment/web", "default/web-7d4f9-x2x4x"),
        ("pod/chat", "default/chat"),
        ("default/chta", "default/chat"),
        ("default/nothing", None),
    ],
)
async def test_a_name_typed_wrongly_is_answered_with_the_nearest(
    cli: Cli, word: str, meant: str | None
) -> None:
    for name in ("web-7d4f9-x2x4x", "chat"):
        await cli.kube.create(PODS, a_plain_pod(name), namespace="default")

    assert await cli.call(main, word) == CALLED_WRONG

    refused = "; if its pods are refused, the Events of the workload (ReplicaSet, Job) say why"
    hint = f"; did you mean {meant}?" if meant else refused
    assert cli.read().err == f"fracgpu explain: no pod {word}{hint}\n"


async def test_where_fracgpu_is_not_installed_a_pod_without_a_card_is_told_so(cli: Cli) -> None:
    await a_pod(cli.kube, "waits", mib=1_000)

    assert await cli.call(main, "waits") == FAILED
    assert "FracGPU is not installed in this cluster" in cli.read().err

    await install_definitions(cli.kube)
    assert await cli.call(main, "waits") == FAILED
    assert cli.read().err == ""


@pytest.mark.parametrize("argv", [[], ["pod"], ["pod", "a/b", "c/d"], ["a/b", "--what"]])
def test_anything_but_one_pod_is_a_wrong_call(argv: list[str]) -> None:
    assert fracgpu(["explain", *argv]) == CALLED_WRONG


async def test_explain_asks_with_the_clusters_strategy_and_the_pods_own(cli: Cli) -> None:
    await furnish(cli.kube)
    await bind(cli.kube, await a_pod(cli.kube, "chat", mib=9_000), card=0, mib=9_000)
    await cli.kube.create(NAMESPACES, {"metadata": {"name": names.SYSTEM_NAMESPACE}})
    await configure(cli.kube, placement="strategy: spread")
    await a_pod(cli.kube, "waits", mib=1_000)
    await a_pod(cli.kube, "packed", mib=1_000, annotations={names.PLACEMENT: "pack"})

    assert await cli.call(main, "waits") == DONE
    assert cli.read().out.startswith("default/waits fits now: gpu-1, card 1\n")
    assert await cli.call(main, "packed") == DONE
    assert cli.read().out.startswith("default/packed fits now: gpu-1, card 0\n")


async def test_cards_that_moves_reserve_and_keep_are_told_with_the_move(cli: Cli) -> None:
    await furnish(cli.kube)
    await install_definitions(cli.kube)
    until = SystemClock().now() + timedelta(hours=1)
    big = await a_pod(cli.kube, "big", mib=20_000)
    first, second = (f"GPU-{NODE}-{card}" for card in (0, 1))
    kept = a_beneficiary(second, uid=big["metadata"]["uid"], held_until=until)
    for move in (
        move_of("reserves", target=(NODE, first), mib=20_000, reserved_until=until),
        move_of("makes-room", source=(NODE, second), beneficiary=kept),
    ):
        body = move_body(move)
        body["spec"]["reservedUntil"] = until.isoformat()
        await cli.kube.create(MOVES, body)
    await a_pod(cli.kube, "other", mib=12_000)

    assert await cli.call(main, "default/other", "--json") == FAILED
    (node,) = json.loads(cli.read().out)["nodes"]
    assert [card["reason"] for card in node["cards"]] == [
        "too little free memory for 12000 MiB; 20000 MiB reserved for the replacement of "
        "team-a/web-1 (move reserves)",
        "kept for default/big, for which move makes-room makes room",
    ]
    assert await cli.call(main, "big") == DONE
    said = f"move makes-room makes room for it on {NODE}, where cards are kept for it until"
    assert said in cli.read().out
