"""``fracgpu uninstall``: remove everything that FracGPU wrote to a cluster."""

import argparse
import sys
from collections.abc import Sequence
from typing import Any, Final

from cli.cluster import with_cluster
from cli.flags import LISTS, Output, Parser, add_cluster_flags, encode
from cli.main import DONE, FAILED, complain
from cli.removal import HOST_FILES, Left, Removal, RemovalPlan, StillSharesError, make_plan
from fracgpu.errors import counted
from kube.client import KubeClient
from process.clock import SystemClock

_MOST_NAMED: Final = 20
# kubelet keeps the slots of a device plugin that has gone for five minutes.
_WAIT_S: Final = 420.0


def main(argv: Sequence[str]) -> int:
    """Show what would be removed, or remove it; return 1 if something is left."""
    options = arguments().parse_args(argv)
    return with_cluster("uninstall", options, lambda client: _run(client, options))


async def _run(client: KubeClient, options: argparse.Namespace) -> int:
    try:
        plan = await make_plan(client, node=options.node, nodes_only=options.nodes)
    except StillSharesError as error:
        return complain("uninstall", str(error))
    if options.output in (Output.TABLE, Output.WIDE):
        return await _tell_and_remove(client, plan, options)
    if options.output is Output.NAME:
        for name in plan_names(plan):
            print(name)
    left = await _remove(client, plan, options) if options.yes and plan else Left()
    if options.output.structured:
        removed = left if options.yes else None
        print(encode({"found": plan_json(plan), "left": removed}, options.output))
    return FAILED if left.unfinished else DONE


async def _tell_and_remove(
    client: KubeClient, plan: RemovalPlan, options: argparse.Namespace
) -> int:
    for line in plan_lines(plan):
        print(line)
    if not plan:
        print("nothing of FracGPU is in this cluster")
        return DONE
    if not options.yes:
        print("nothing was changed; run it again with --yes to remove this")
        return DONE
    left = await _remove(client, plan, options)
    for line in left_lines(left):
        print(line)
    return FAILED if left.unfinished else DONE


async def _remove(client: KubeClient, plan: RemovalPlan, options: argparse.Namespace) -> Left:
    removal = Removal(
        client,
        SystemClock(),
        on_progress=lambda line: print(line, file=sys.stderr, flush=True),
        limit_s=options.wait_s,
    )
    return await (removal.clean_nodes(plan) if options.nodes else removal.run(plan))


def plan_names(plan: RemovalPlan) -> list[str]:
    """Return what is there as kubectl names it: ``node/NAME``, ``clusterrole.GROUP/NAME``."""
    groups = ((found.kind, found.key) for found in plan.objects)
    return [
        *(f"node/{name}" for name in plan.on_nodes),
        *(f"{kind.qualified_name}/{key.rpartition('/')[2]}" for kind, key in groups),
        *(f"namespace/{name}" for name in plan.namespaces),
    ]


def plan_json(plan: RemovalPlan) -> dict[str, Any]:
    """Return what is there as JSON."""
    return {
        "nodes": {name: list(words) for name, words in plan.on_nodes.items()},
        "objects": [
            {"kind": found.kind.kind, "namespace": found.namespace, "name": found.name}
            for found in plan.objects
        ],
        "namespaces": list(plan.namespaces),
        "sharedNamespaces": {name: list(others) for name, others in plan.shared.items()},
        "pods": list(plan.pods),
        "moved": list(plan.moved),
    }


def plan_lines(plan: RemovalPlan) -> list[str]:
    """Return lines that say what is there, and which pods still hold cards."""
    lines = [f"node {node}: {', '.join(words)}" for node, words in plan.on_nodes.items()]
    lines += [f"{found.kind.kind} {found.key}" for found in plan.objects]
    lines += [f"Namespace {name}, with everything in it" for name in plan.namespaces]
    lines += [
        f"Namespace {name} stays, because not everything in it is FracGPU's: {_named(others)}"
        for name, others in plan.shared.items()
    ]
    if plan.moved:
        lines.append(
            f"{counted(len(plan.moved), 'pod')} marked by a move, each of which goes back to its "
            f"owner: {_named(plan.moved)}"
        )
    if plan.pods:
        lines.append(
            f"{counted(len(plan.pods), 'pod')} with cards: each keeps them until it ends; its "
            "containers cannot be restarted, and its memory is no longer accounted for: "
            f"{_named(plan.pods)}"
        )
    return lines


def _named(objects: Sequence[str]) -> str:
    more = len(objects) - _MOST_NAMED
    return ", ".join(objects[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def left_lines(left: Left) -> list[str]:
    """Return lines that say what is left, and how to remove it."""
    lines = [f"node {node} still has {', '.join(words)}" for node, words in left.nodes.items()]
    lines += [f"Namespace {name} is not gone yet" for name in left.namespaces]
    lines += [f"pod {pod} still has the marks of a move" for pod in left.moved]
    if left.without_agent:
        lines.append(
            f"no agent cleaned up on {', '.join(left.without_agent)}; on these hosts look for "
            f"{', '.join(HOST_FILES)}"
        )
    return lines or ["nothing is left"]


def arguments() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments."""
    parser = Parser(
        prog="fracgpu uninstall",
        description="Remove everything that FracGPU wrote to the cluster. Without --yes, only "
        "list it.",
    )
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument("--yes", action="store_true", help="remove it")
    chosen.add_argument("--dry-run", action="store_true", help="only list it (the default)")
    part = parser.add_mutually_exclusive_group()
    part.add_argument(
        "--node", help="remove only what is on this node, which must not have fracgpu.io/share=true"
    )
    part.add_argument(
        "--nodes",
        action="store_true",
        help="remove only what is on nodes, the label fracgpu.io/share first; kubelets' count of "
        "slots is not waited for",
    )
    parser.add_argument(
        "--wait-s",
        type=float,
        default=_WAIT_S,
        help="longest wait for agents, kubelets and namespaces to end (default %(default)g)",
    )
    add_cluster_flags(parser, formats=LISTS)
    return parser
