"""``fracgpu rebalance replay``: recorded usage, replayed against other settings.

Exit code 0: done; 1: Prometheus or the API server gave no usable answer, what is needed was not
recorded, or a policy has a mistake; 2: wrong arguments.
"""

import argparse
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from cli.cluster import with_cluster
from cli.flags import Parser, add_cluster_flags, add_system_namespace_flag, encode, number
from cli.main import DONE, complain
from cli.printers.live import open_console, open_progress, show_lines
from cli.printers.replay_lines import replay_table
from cli.prometheus_access import reach_prometheus
from cli.rebalancing import (
    ReadingFailed,
    add_prometheus_flags,
    read_policy_file,
    read_settings,
)
from kube.client import KubeClient
from process import logs
from process.clock import SystemClock
from rebalancer.usage.prometheus import QueryFailed
from simulator.usage_replay.recording import Recorder, RecordingMissing, read_pieces
from simulator.usage_replay.world import ReplayedWorld

_NONE: Final = "nothing moved"
_PRESENT: Final = "present"
_CANDIDATE: Final = "candidate"
_LONGEST: Final = timedelta(days=31)
_AGO: Final = re.compile(r"([0-9]{1,4})(m|h|d)")
_UNITS: Final = {"m": "minutes", "h": "hours", "d": "days"}


def main(argv: Sequence[str]) -> int:
    """Replay; return the exit code."""
    parser = arguments()
    options = parser.parse_args(argv)
    if not timedelta(0) < options.end - options.start <= _LONGEST:
        parser.error("--from, --to: want a time of 31 days at most, which begins before it ends")
    span = (options.start, min(options.end, SystemClock().now()))
    return with_cluster("rebalance replay", options, lambda client: _replay(client, options, span))


async def _replay(
    client: KubeClient, options: argparse.Namespace, span: tuple[datetime, datetime]
) -> int:
    logs.configure(level="error", json=False)
    try:
        worlds = await _worlds(client, options)
        async with reach_prometheus(client, options) as prometheus:
            frames = await play(
                prometheus, worlds, span, step_s=options.step_s, quiet=options.output.structured
            )
    except (ReadingFailed, QueryFailed, RecordingMissing) as error:
        return complain("rebalance replay", str(error))
    if options.output.structured:
        print(encode(replay_json(worlds, span, frames=frames), options.output))
    else:
        show_lines(open_console(), replay_table(worlds, span, frames=frames, moves=options.moves))
    return DONE


async def _worlds(client: KubeClient, options: argparse.Namespace) -> dict[str, ReplayedWorld]:
    candidate = read_policy_file(options.config) if options.config is not None else None
    settings = await read_settings(client, namespace=options.system_namespace)
    policies = {_NONE: None, _PRESENT: settings.policy}
    if candidate is not None:
        policies[_CANDIDATE] = candidate
    return {
        name: ReplayedWorld(
            policy,
            strategy=settings.strategy,
            step_s=options.step_s,
            startup_s=options.startup_s,
            hot_ratio=(candidate or settings.policy).hot_ratio,
        )
        for name, policy in policies.items()
    }


async def play(
    prometheus: Recorder,
    worlds: dict[str, ReplayedWorld],
    span: tuple[datetime, datetime],
    *,
    step_s: float,
    quiet: bool,
) -> int:
    """Play the recording in every world at once; return how many frames there were.

    Raises:
        RecordingMissing: what is needed was not recorded.
        QueryFailed: Prometheus gave no answer that can be used.
    """
    start, end = span
    frames = 0
    with open_progress(quiet=quiet) as progress:
        async for piece in read_pieces(prometheus, start=start, end=end, step_s=step_s):
            for world in worlds.values():
                for _ in world.play(piece):
                    pass
            frames += len(piece.frames)
            if piece.frames:
                progress("replay", (piece.frames[-1].at - start) / (end - start))
        progress("replay", 1.0)
    return frames


def replay_json(
    worlds: dict[str, ReplayedWorld], span: tuple[datetime, datetime], *, frames: int
) -> dict[str, Any]:
    """Return the figures of every world, and its moves."""
    return {
        "from": span[0],
        "to": span[1],
        "frames": frames,
        "policies": {
            name: {
                **{key: round(value, 4) for key, value in world.figures.numbers().items()},
                "held": dict(world.figures.held),
                "list": [
                    {
                        "at": move.at,
                        "pod": move.pod,
                        "from": move.source,
                        "to": move.target,
                        "gainPoints": move.gain_points,
                        "mode": move.mode,
                    }
                    for move in world.moves
                ],
            }
            for name, world in worlds.items()
        },
    }


def _time(text: str) -> datetime:
    now, ago = SystemClock().now(), _AGO.fullmatch(text)
    try:
        if text == "now":
            return now
        if ago is not None:
            return now - timedelta(**{_UNITS[ago.group(2)]: int(ago.group(1))})
        found = datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(
            f"{text!r}; want a time such as 2026-01-31T12:00 (UTC), or 90m, 12h or 7d ago"
        ) from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def arguments() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments."""
    parser = Parser(
        prog="fracgpu rebalance",
        usage="fracgpu rebalance replay --from TIME [--to TIME] [--config FILE] "
        "[--prometheus-url URL] [flags]",
        description="Replays what Prometheus recorded against the present configuration and a "
        "candidate, side by side: moves, hot hours, lost work.",
    )
    parser.add_argument("action", choices=("replay",))
    parser.add_argument(
        "--from",
        dest="start",
        required=True,
        type=_time,
        metavar="TIME",
        help="2026-01-31T12:00 (UTC), or 7d, 12h, 90m ago",
    )
    parser.add_argument(
        "--to", dest="end", default="now", type=_time, metavar="TIME", help="default: now"
    )
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="the candidate: the text of the ConfigMap's key rebalancer",
    )
    parser.add_argument(
        "--step-s", type=number(float, 5, 300), default=60.0, help="time between two cycles (60)"
    )
    parser.add_argument(
        "--startup-s",
        type=number(float, 0, 3600),
        default=60.0,
        help="how long a replacement takes to be ready (60)",
    )
    parser.add_argument("--moves", action="store_true", help="list every move as well")
    add_system_namespace_flag(parser)
    add_prometheus_flags(parser)
    add_cluster_flags(parser)
    return parser
