"""``fracgpu moves``: what the rebalancer moves, has moved and recommends, newest first.

Exit code 0: done; 1: there is no such move, the cluster has no Moves, or the API server does not
answer; 2: wrong arguments.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from cli.cluster import with_cluster
from cli.flags import LISTS, Output, Parser, add_cluster_flags, add_pod_namespace_flags, encode, say
from cli.main import CALLED_WRONG, DONE, FAILED, complain
from cli.printers.live import open_console, show_lines
from cli.printers.move_lines import change_line, move_lines, move_table
from fracgpu import names
from fracgpu.errors import WireError
from fracgpu.state.move_object import Move, MovePhase, decode_move
from kube.client import KubeClient
from kube.errors import NotFound
from kube.informer import Change, ChangeType, Informer
from kube.kinds import MOVES
from process import logs
from process.clock import SystemClock

_NO_MOVES: Final = (
    "this cluster has no Moves, the custom resource moves.fracgpu.io: install "
    "deploy/crds/moves.yaml, and a rebalancer that writes them"
)
_LONG_AGO: Final = datetime(1970, 1, 1, tzinfo=UTC)


def main(argv: Sequence[str]) -> int:
    """Show the moves; return the exit code."""
    options = arguments().parse_args(argv)
    words = options.words
    approving = words[:1] == ["approve"]
    if len(words) > 1 + approving or (approving and len(words) == 1):
        return complain("moves", "want NAME, or approve NAME", code=CALLED_WRONG)
    options.name = words[-1] if words else None
    work = _approve if approving else _follow if options.watch else _show
    ended = DONE if options.watch else FAILED  # what is followed ends with Ctrl-C
    return with_cluster("moves", options, lambda client: work(client, options), interrupted=ended)


async def read_moves(client: KubeClient) -> list[Move]:
    """List the moves, newest first; one that cannot be read is reported and left out.

    Raises:
        KubeError: NotFound where the cluster has no such resource.
    """
    moves = []
    for raw in (await client.list(MOVES)).items:
        try:
            moves.append(decode_move(bytes(raw)))
        except WireError as error:
            print(f"fracgpu moves: one is left out, {error}", file=sys.stderr)
    return newest_first(moves)


def newest_first(moves: Sequence[Move]) -> list[Move]:
    """Return the moves by when they were made, the newest first; by name within one second."""
    return sorted(
        moves,
        key=lambda move: (_LONG_AGO - (move.metadata.creation_timestamp or _LONG_AGO), move.name),
    )


async def watch_moves(client: KubeClient, show: Callable[[Move, bool], None]) -> None:
    """Call *show* with each move that there is, and with each change (True: deleted)."""

    def note(change: Change[Move]) -> None:
        show(change.object, change.type is ChangeType.DELETED)

    await Informer(client, MOVES, decode=decode_move, on_change=note).run()


async def _show(client: KubeClient, options: argparse.Namespace) -> int:
    try:
        moves = await read_moves(client)
    except NotFound:
        return complain("moves", _NO_MOVES)
    moves = [move for move in moves if _asked_for(move, options)]
    if options.name is None:
        _print(moves, options.output)
        return DONE
    found = [move for move in moves if options.name in (move.name, move.spec.pod.name)]
    if not found:
        return complain("moves", f"no move is named {options.name!r}, nor a pod that was moved")
    now = SystemClock().now()
    if options.output in (Output.TABLE, Output.WIDE):
        for move in found:
            show_lines(open_console(), move_lines(move, now=now))
    else:
        _print(found, options.output)
    return DONE


def _asked_for(move: Move, options: argparse.Namespace) -> bool:
    return options.namespace in (None, move.spec.pod.namespace)


def _print(moves: Sequence[Move], output: Output) -> None:
    if output.structured:
        print(encode([move_json(move) for move in moves], output))
    elif output is Output.NAME:
        for move in moves:
            print(f"move.fracgpu.io/{move.name}")
    elif not moves:
        print("no moves so far")
    else:
        console = open_console()
        width = console.width if console.is_terminal and output is Output.TABLE else None
        show_lines(console, move_table(moves, now=SystemClock().now(), width=width))


async def _approve(client: KubeClient, options: argparse.Namespace) -> int:
    change = {"metadata": {"annotations": {names.APPROVED: "true"}}}
    try:
        move = decode_move(await client.get(MOVES, options.name))
        if move.status.phase is not MovePhase.RECOMMENDED:
            return complain("moves", f"{move.name} is {move.status.phase.value}, not recommended")
        await client.patch(MOVES, move.name, change)
    except NotFound:
        return complain("moves", f"no move is named {options.name!r}")
    text = "approved; the rebalancer makes a new Move of it unless it is older than an hour"
    say({"move": move.name, "approved": True}, text, options.output)
    return DONE


async def _follow(client: KubeClient, options: argparse.Namespace) -> int:
    logs.configure(level="error", json=False)
    console, clock = open_console(), SystemClock()
    shown: dict[str, Move] = {}

    def show(move: Move, gone: bool) -> None:  # noqa: FBT001 - as watch_moves calls it
        if options.name not in (None, move.name, move.spec.pod.name):
            return
        if not _asked_for(move, options):
            return
        if options.output.structured:
            body = {**move_json(move), "deleted": gone}
            print(encode(body, options.output, stream=True), flush=True)
            return
        before = shown.get(move.name)
        if gone or before is None or before.status.phase is not move.status.phase:
            show_lines(console, [change_line(move, gone=gone, now=clock.now())])
        shown[move.name] = move

    try:
        await client.list(MOVES)  # an informer would wait for the resource
    except NotFound:
        return complain("moves", _NO_MOVES)
    await watch_moves(client, show)
    return DONE


def move_json(move: Move) -> dict[str, Any]:
    """Return a move as the API server has it, as far as it is read here."""
    body: dict[str, Any] = msgspec.to_builtins(move)
    return body


def arguments() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments."""
    parser = Parser(
        prog="fracgpu moves",
        usage="fracgpu moves [NAME | approve NAME] [flags]",
        description="The rebalancer's moves, newest first; with a name (of a move or of a pod that "
        "was moved) its reason and every phase. With approve, a recommended one is made.",
    )
    parser.add_argument("words", nargs="*", metavar="NAME", help="one move, or those of one pod")
    parser.add_argument("--watch", "-w", action="store_true", help="follow changes until Ctrl-C")
    add_pod_namespace_flags(parser)
    add_cluster_flags(parser, formats=LISTS)
    return parser
