"""``fracgpu simulate``: how much of a fleet each placement policy would use.

It replays a trace (two CSV files), or the nodes and pods of the live cluster, through the product's
own placement: pods arrive one by one in a random order, until they have requested 130 % of all
cards, and none leaves.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from cli.cluster import observe, with_cluster
from cli.flags import Parser, add_cluster_flags, encode, number
from cli.main import CALLED_WRONG, DONE, complain
from cli.printers.chart import svg_chart, text_chart
from cli.printers.live import open_console, open_progress, show_lines
from cli.printers.text import Line, replay_lines
from fracgpu.errors import counted
from kube.client import KubeClient
from simulator.replay.policies import COMPARED, POLICIES, CpuPods
from simulator.replay.replay import FULL_LOAD, ReplayResult, mean_curve, replay
from simulator.replay.workload import ReplayWorkload, WorkloadError, of_cluster, read_trace

_FIRST_SEED: Final = 42


def main(argv: Sequence[str]) -> int:
    """Replay a workload with each policy and show how much of the fleet was allocated."""
    parser = arguments()
    options = parser.parse_args(argv)
    if options.live == (options.file is not None):
        parser.error("want either a pod list or --live")
    if options.live:
        return with_cluster("simulate", options, lambda client: _live(client, options))
    try:
        return _compare(_from_files(options.file, options.nodes), options)
    except (WorkloadError, OSError, UnicodeDecodeError) as error:
        return complain("simulate", str(error), code=CALLED_WRONG)


async def _live(client: KubeClient, options: argparse.Namespace) -> int:
    observed = await observe(client)
    nodes = (node.cards for node in observed.nodes)
    try:
        workload = of_cluster(nodes, (pod.info for pod in observed.pods))
    except WorkloadError as error:
        return complain("simulate", str(error))
    return _compare(workload, options)


def _from_files(pods: Path, nodes: Path | None) -> ReplayWorkload:
    """Return the trace; without *nodes*, its node list is the only ``*node*.csv`` beside *pods*.

    Raises:
        WorkloadError: the files are not a trace.
        OSError: a file cannot be read.
    """
    if nodes is None:
        beside = sorted(path for path in pods.parent.glob("*node*.csv") if path != pods)
        if len(beside) != 1:
            raise WorkloadError(
                f"{len(beside)} files *node*.csv beside {pods}; name the node list with --nodes"
            )
        nodes = beside[0]
    with nodes.open(newline="") as node_lines, pods.open(newline="") as pod_lines:
        return read_trace(nodes=node_lines, pods=pod_lines)


def _compare(workload: ReplayWorkload, options: argparse.Namespace) -> int:
    console = open_console()
    seeds = range(options.seed, options.seed + options.seeds)
    outcomes: dict[str, list[ReplayResult]] = {policy: [] for policy in options.policy}
    with open_progress(quiet=options.output.structured) as progress:
        for policy, results in outcomes.items():
            for number, seed in enumerate(seeds):
                tell = _scaled(progress, policy, number, len(seeds))
                result = replay(
                    workload, policy, seed=seed, cpu_pods=CpuPods(options.cpu_pods), tell=tell
                )
                results.append(result)
    curves = {policy: mean_curve(results) for policy, results in outcomes.items()}
    if options.plot is not None:
        title = f"{_what(workload, options.seeds)}"
        options.plot.write_text(svg_chart(curves, title=title))
    if options.output.structured:
        print(encode(replay_json(workload, outcomes), options.output))
        return DONE
    show_lines(console, [Line(text=_what(workload, options.seeds)), Line(text="")])
    show_lines(console, replay_lines(outcomes))
    show_lines(console, (Line(text=text) for text in ("", *text_chart(curves))))
    if options.plot is not None:
        show_lines(console, [Line(text=""), Line(text=f"chart written to {options.plot}")])
    return DONE


def replay_json(
    workload: ReplayWorkload, outcomes: Mapping[str, Sequence[ReplayResult]]
) -> dict[str, Any]:
    """Return the results as JSON."""
    return {
        "nodes": len(workload.nodes),
        "cards": workload.cards,
        "pods": len(workload.pods),
        "policies": [
            {
                "policy": policy,
                "seeds": [result.seed for result in results],
                "allocatedAtFullLoadPercent": [
                    round(result.allocated_percent(FULL_LOAD), 3) for result in results
                ],
                "refused": [result.refused for result in results],
                "curve": [round(percent, 3) for percent in mean_curve(results)],
            }
            for policy, results in outcomes.items()
        ],
    }


def _scaled(
    progress: Callable[[str, float], None], policy: str, number: int, runs: int
) -> Callable[[float], None]:
    return lambda ratio: progress(policy, (number + ratio) / runs)


def _what(workload: ReplayWorkload, seeds: int) -> str:
    nodes = f"{counted(len(workload.nodes), 'node')} with {counted(workload.cards, 'card')}"
    orders = f"{counted(seeds, 'order')} of arrival"
    return f"{nodes}, a workload of {counted(len(workload.pods), 'pod')}, {orders}"


def _policies(text: str) -> list[str]:
    chosen = list(dict.fromkeys(name.strip() for name in text.split(",")))
    unknown = [name for name in chosen if name not in POLICIES]
    if unknown:
        known = ", ".join(POLICIES)
        raise argparse.ArgumentTypeError(
            f"unknown policy {', '.join(unknown)}; want some of: {known}"
        )
    return chosen


def arguments() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments."""
    parser = Parser(
        prog="fracgpu simulate",
        usage="fracgpu simulate PODS.csv [--nodes NODES.csv] | --live [flags]",
        description="How much of a fleet each placement policy would use: the share of its cards "
        "that is allocated when pods have asked for 100 %% of them, and a curve.",
    )
    parser.add_argument(
        "file",
        nargs="?",
        type=Path,
        metavar="PODS.csv",
        help="pods, with columns name, cpu_milli, memory_mib, num_gpu, gpu_milli[, gpu_spec]",
    )
    parser.add_argument(
        "--nodes",
        type=Path,
        help="nodes, with columns sn, cpu_milli, memory_mib, gpu, model "
        "(default: the only *node*.csv beside the pods)",
    )
    parser.add_argument(
        "--live", action="store_true", help="replay the live cluster's nodes and pods instead"
    )
    parser.add_argument(
        "--policy",
        type=_policies,
        default=list(COMPARED),
        metavar="A,B",
        help=f"of {', '.join(POLICIES)} (default: {','.join(COMPARED)})",
    )
    parser.add_argument(
        "--seed", type=int, default=_FIRST_SEED, help=f"the first seed (default {_FIRST_SEED})"
    )
    parser.add_argument(
        "--seeds",
        type=number(int, 1, 100),
        default=1,
        help="orders of arrival to average (default 1)",
    )
    parser.add_argument(
        "--cpu-pods",
        choices=[choice.value for choice in CpuPods],
        default=CpuPods.KUBE_SCHEDULER.value,
        help="who places pods without cards: kube-scheduler by its default, as in a cluster, "
        "or the policy, as in published studies (default kube-scheduler)",
    )
    parser.add_argument("--plot", type=Path, metavar="FILE.svg", help="write the curves as SVG")
    add_cluster_flags(parser)
    return parser
