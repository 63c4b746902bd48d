"""``fracgpu move pod``, ``drain card`` and ``moves approve``: what they write."""

import json
from typing import Any

import pytest

from cli.commands import moves
from cli.main import CALLED_WRONG, DONE, FAILED
from cli.requests import drain, move, resize
from fracgpu import names
from fracgpu.state.move_object import MovePhase, MoveStatus
from fracgpu.state.node_info import read_node
from kube.client import KubeClient
from kube.kinds import MOVES, NODES, PODS
from kube.objects import encode
from simulator.demo.definitions import install_definitions
from tests.cli.live_cluster import Cli
from tests.support.core import a_card
from tests.support.gpu import a_gpu_pod, a_sharing_node, register
from tests.support.moves import move_body, move_of, status_body


async def annotations(kube: KubeClient, kind: Any, name: str, **where: str) -> dict[str, str]:
    found = await kube.get_object(kind, name, **where)
    return found["metadata"].get("annotations") or {}


async def test_a_pod_that_should_be_moved_gets_the_annotation(cli: Cli, kube: KubeClient) -> None:
    await kube.create(PODS, a_gpu_pod("web", namespace="default"))

    assert await cli.call(move.main, "pod", "default/web") == DONE

    assert names.MOVE_REQUESTED in await annotations(kube, PODS, "web", namespace="default")
    assert "fracgpu moves --watch web" in cli.read().out
    assert await cli.call(move.main, "pod", "default/none") == FAILED
    assert "there is no pod default/none" in cli.read().err
    with pytest.raises(SystemExit, match=str(CALLED_WRONG)):
        await cli.call(move.main, "pod", "web")


@pytest.mark.parametrize("call", [(move, ()), (resize, ("--memory=4Gi",))], ids=["move", "resize"])
async def test_nothing_is_asked_for_a_pod_without_a_share(
    cli: Cli, kube: KubeClient, call: tuple[Any, tuple[str, ...]]
) -> None:
    command, more = call
    plain = a_gpu_pod("web")
    plain["metadata"]["annotations"], plain["spec"]["containers"][0]["resources"] = {}, {}
    await kube.create(PODS, plain)

    assert await cli.call(command.main, "pod", "default/web", *more) == FAILED
    assert "default/web requests no share of a card" in cli.read().err
    assert await annotations(kube, PODS, "web", namespace="default") == {}


async def test_a_card_is_drained_by_its_index_or_uuid_and_undone(
    cli: Cli, kube: KubeClient
) -> None:
    cards = [a_card("GPU-a"), a_card("GPU-b", index=1)]
    await register(kube, a_sharing_node("n1", cards=cards))

    async def drained() -> set[str]:
        return set(read_node(encode(await kube.get_object(NODES, "n1"))).drained)

    assert await cli.call(drain.main, "card", "n1/1") == DONE
    assert await drained() == {"GPU-b"}
    assert await cli.call(drain.main, "card", "n1/GPU-a") == DONE
    assert await drained() == {"GPU-a", "GPU-b"}
    for card in ("0", "1"):
        assert await cli.call(drain.main, "card", f"n1/{card}", "--undo") == DONE
    assert await drained() == set()
    assert names.NODE_DRAIN not in await annotations(kube, NODES, "n1")


async def test_programs_read_what_was_asked_for(cli: Cli, kube: KubeClient) -> None:
    await kube.create(PODS, a_gpu_pod("web", namespace="default"))
    await register(kube, a_sharing_node("n1", cards=[a_card("GPU-a")]))

    assert await cli.call(move.main, "pod", "default/web", "-o", "json") == DONE
    assert json.loads(cli.read().out).keys() == {"pod", "moveRequested"}
    assert await cli.call(drain.main, "card", "n1/0", "-o", "json") == DONE
    assert json.loads(cli.read().out) == {"node": "n1", "cards": ["GPU-a"], "drained": True}


@pytest.mark.parametrize(("name", "said"), [("n1/7", "has no card 7"), ("n9/0", "no node n9")])
async def test_a_card_that_is_not_there_is_named(
    cli: Cli, kube: KubeClient, name: str, said: str
) -> None:
    await register(kube, a_sharing_node("n1", cards=[a_card("GPU-a")]))

    assert await cli.call(drain.main, "card", name) == FAILED
    assert said in cli.read().err


async def test_only_what_is_recommended_is_approved(cli: Cli, kube: KubeClient) -> None:
    await install_definitions(kube)
    for name, phase in (("shown", MovePhase.RECOMMENDED), ("done", MovePhase.DONE)):
        await kube.create(MOVES, move_body(move_of(name)))
        status = status_body(MoveStatus(phase=phase))
        await kube.patch(MOVES, name, status, subresource="status")

    assert await cli.call(moves.main, "approve", "shown") == DONE
    assert (await annotations(kube, MOVES, "shown"))[names.APPROVED] == "true"
    assert await cli.call(moves.main, "approve", "done") == FAILED
    assert "done is Done, not recommended" in cli.read().err
    assert await cli.call(moves.main, "approve", "none") == FAILED
    assert await cli.call(moves.main, "approve") == CALLED_WRONG
    assert await cli.call(moves.main, "a", "b") == CALLED_WRONG
