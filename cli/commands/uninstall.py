"""``fracgpu uninstall``: nodes and cluster as they were before, in an order that nothing blocks."""

import argparse
import sys
from collections.abc import Sequence
from typing import Final

from cli.cluster import with_cluster
from cli.main import CALLED_WRONG, DONE, FAILED
from cli.removal import HOST_FILES, Left, Removal, RemovalPlan, StillSharesError, make_plan
from kube.client import KubeClient
from process.clock import SystemClock

_MOST_PODS_NAMED: Final = 20
# kubelet counts the slots of a plugin that has left for five minutes more.
_WAIT_S: Final = 420.0


def main(argv: Sequence[str]) -> int:
    """Show what would be removed, or remove it; 1 where something is left that we know of."""
    try:
        options = _parser().parse_args(argv)
    except SystemExit as end:  # argparse has printed its help or what is wrong
        return DONE if not end.code else CALLED_WRONG
    return with_cluster("uninstall", options.kubeconfig, lambda client: _run(client, options))


async def _run(client: KubeClient, options: argparse.Namespace) -> int:
    try:
        plan = await make_plan(client, node=options.node)
    except StillSharesError as error:
        print(f"fracgpu uninstall: {error}", file=sys.stderr)
        return FAILED
    for line in plan_lines(plan):
        print(line)
    if not plan:
        print("nothing of FracGPU is here")
        return DONE
    if not options.yes:
        print("nothing was changed; with --yes it is done")
        return DONE
    removal = Removal(
        client,
        SystemClock(),
        say=lambda line: print(line, file=sys.stderr, flush=True),
        limit_s=options.wait_s,
    )
    left = await removal.run(plan)
    for line in left_lines(left):
        print(line)
    return FAILED if left.unfinished else DONE


def plan_lines(plan: RemovalPlan) -> list[str]:
    """Say in lines what is there, and what becomes of the pods that still hold cards."""
    lines = [f"node {node}: {', '.join(marks.words)}" for node, marks in plan.nodes.items()]
    lines += [f"{it.kind.kind} {it.key}" for it in plan.objects]
    lines += [f"Namespace {name}, with everything in it" for name in plan.namespaces]
    if plan.pods:
        named = ", ".join(plan.pods[:_MOST_PODS_NAMED])
        more = len(plan.pods) - _MOST_PODS_NAMED
        lines.append(
            f"{len(plan.pods)} pods hold cards and run on with them until they end; their "
            f"containers cannot be started again, and nobody counts their memory any more: {named}"
            + (f" and {more} more" if more > 0 else "")
        )
    return lines


def left_lines(left: Left) -> list[str]:
    """Say in lines what is left, and who can remove it."""
    lines = [f"node {node} still carries {', '.join(words)}" for node, words in left.nodes.items()]
    lines += [f"Namespace {name} is not gone yet" for name in left.namespaces]
    if left.without_agent:
        lines.append(
            f"no agent has cleaned up on {', '.join(left.without_agent)}; on these hosts look for "
            f"{', '.join(HOST_FILES)}"
        )
    return lines or ["nothing is left"]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fracgpu uninstall",
        description="Takes back everything that FracGPU wrote in the cluster. Without --yes it "
        "only says what that is.",
    )
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument("--yes", action="store_true", help="do it")
    chosen.add_argument("--dry-run", action="store_true", help="only say it (the default)")
    parser.add_argument(
        "--node", help="only what is left on this node, which must not carry fracgpu.io/share=true"
    )
    parser.add_argument(
        "--wait-s",
        type=float,
        default=_WAIT_S,
        help="longest wait for agents, kubelets and the namespace's end (default %(default)g)",
    )
    parser.add_argument(
        "--kubeconfig", help="default: the pod's own account, else $KUBECONFIG, else ~/.kube/config"
    )
    return parser
