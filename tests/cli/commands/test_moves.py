"""``fracgpu moves`` against a live API server."""

import asyncio
import json
from dataclasses import dataclass, field
from datetime import UTC, datetime

import msgspec
import pytest

from cli.commands.moves import main, newest_first, read_moves, watch_moves
from cli.main import CALLED_WRONG, DONE, FAILED
from cli.main import main as fracgpu
from fracgpu.cards.card import CardUuid
from fracgpu.state.move_object import (
    Move,
    MovePhase,
    MoveReason,
    MoveStatus,
    Replacement,
    Transition,
)
from kube.client import KubeClient
from kube.kinds import MOVES
from simulator.demo.definitions import install_definitions
from tests.cli.live_cluster import Cli
from tests.support.moves import move_body, move_of, status_body
from tests.support.waiting import until_true

BEGAN = datetime(2026, 1, 1, 12, tzinfo=UTC)


async def a_move(kube: KubeClient, name: str, *, status: MoveStatus | None = None) -> None:
    move = move_of(name, pod=("team-a", f"pod-of-{name}", f"uid-{name}"))
    reason = MoveReason(message="card busy 91%", busy_ratio=0.4, level_ratio=0.91, gain_points=7.5)
    move = msgspec.structs.replace(move, spec=msgspec.structs.replace(move.spec, reason=reason))
    await kube.create(MOVES, move_body(move))
    if status is not None:
        await kube.patch(MOVES, name, status_body(status), subresource="status")


FINISHED = MoveStatus(
    phase=MovePhase.DONE,
    result="relieved",
    message="the source went from 91% to 48%",
    replacement=Replacement(name="web-9", uid="u9", node="node-2", card=CardUuid("GPU-target")),
    transitions=(
        Transition(phase=MovePhase.PLANNED, at=BEGAN),
        Transition(phase=MovePhase.SURGING, at=BEGAN.replace(minute=1), message="released"),
        Transition(phase=MovePhase.DONE, at=BEGAN.replace(minute=9), message="it cooled"),
    ),
)


async def test_without_the_resource_it_says_what_to_install(cli: Cli) -> None:
    for words in ([], ["--watch"], ["move-1"]):
        assert await cli.call(main, *words) == FAILED

        captured = cli.read()
        assert captured.out == ""
        assert "install deploy/crds/moves.yaml" in captured.err


async def test_moves_are_a_table_with_phase_result_and_reason(cli: Cli) -> None:
    await install_definitions(cli.kube)
    assert await cli.call(main) == DONE
    assert cli.read().out == "no moves so far\n"
    await a_move(cli.kube, "one", status=FINISHED)
    await a_move(cli.kube, "two")

    assert await cli.call(main) == DONE

    head, *rows = cli.read().out.splitlines()
    assert head.split() == ["NAME", "POD", "FROM", "TO", "PHASE", "RESULT", "AGE", "REASON"]
    by_name = {row.split()[0]: row.split() for row in rows}
    assert by_name["one"][1:6] == [
        "team-a/pod-of-one", "node-1/0", "node-2/0", "Done", "relieved"
    ]  # fmt: skip
    assert by_name["two"][4:6] == ["Planned", "-"]
    assert by_name["two"][-3:] == ["card", "busy", "91%"]


async def test_one_move_is_shown_with_every_phase_by_its_name_or_its_pods(cli: Cli) -> None:
    await install_definitions(cli.kube)
    await a_move(cli.kube, "one", status=FINISHED)
    await a_move(cli.kube, "two")

    for name in ("one", "pod-of-one"):
        assert await cli.call(main, name) == DONE

        out = cli.read().out
        assert out.startswith("team-a/pod-of-one: Done, relieved\n")
        assert "web-9 on node-2 GPU-target" in out
        assert "gain 7.5 points" in out
        assert "2026-01-01 12:01:00  Surging  released" in out
        assert "two" not in out
    assert await cli.call(main, "three") == FAILED
    assert "no move is named 'three'" in cli.read().err


@pytest.mark.parametrize("flag", [["--json"], ["-o", "json"]])
async def test_json_is_what_the_api_server_has(cli: Cli, flag: list[str]) -> None:
    await install_definitions(cli.kube)
    await a_move(cli.kube, "one", status=FINISHED)

    assert await cli.call(main, *flag) == DONE

    (move,) = json.loads(cli.read().out)
    assert move["metadata"]["name"] == "one"
    assert move["spec"]["pod"]["name"] == "pod-of-one"
    assert [passed["phase"] for passed in move["status"]["transitions"]] == [
        "Planned", "Surging", "Done"
    ]  # fmt: skip


def test_the_newest_is_first_whatever_the_order_of_the_list() -> None:
    def made(name: str, at: datetime | None) -> Move:
        move = move_of(name)
        meta = msgspec.structs.replace(move.metadata, creation_timestamp=at)
        return msgspec.structs.replace(move, metadata=meta)

    moves = [
        made("b", BEGAN),
        made("old", BEGAN.replace(year=2025)),
        made("a", BEGAN),
        made("new", BEGAN.replace(year=2027)),
        made("unknown", None),
    ]

    assert [move.name for move in newest_first(moves)] == ["new", "a", "b", "old", "unknown"]


@dataclass
class Watched:
    shown: list[tuple[str, MovePhase, bool]] = field(default_factory=list)

    def show(self, move: Move, gone: bool) -> None:
        self.shown.append((move.name, move.status.phase, gone))


async def test_watching_shows_what_there_is_and_then_each_change(kube: KubeClient) -> None:
    await install_definitions(kube)
    await a_move(kube, "one")
    watched = Watched()
    async with asyncio.TaskGroup() as group:
        task = group.create_task(watch_moves(kube, watched.show))
        await until_true(lambda: len(watched.shown) == 1, what="the move is shown")
        await kube.patch(MOVES, "one", status_body(FINISHED), subresource="status")
        await until_true(lambda: len(watched.shown) == 2, what="its end is shown")
        await kube.delete(MOVES, "one")
        await until_true(lambda: len(watched.shown) == 3, what="its removal is shown")
        task.cancel()

    assert watched.shown == [
        ("one", MovePhase.PLANNED, False),
        ("one", MovePhase.DONE, False),
        ("one", MovePhase.DONE, True),
    ]
    assert await read_moves(kube) == []


def test_wrong_arguments_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert fracgpu(["moves", "one", "two"]) == CALLED_WRONG
    assert fracgpu(["moves", "-o", "xml"]) == CALLED_WRONG
    assert "'xml'; want one of table, wide, json, yaml, name" in capsys.readouterr().err
